"""Jobs, claims, leases and counters in DynamoDB (port JobStore).

Coordination rows, by `coordination_key`:
    claim#<job key>             job_id, ends_at_epoch_ms
    lease#<cache key>           job_id, token, fence, ends_at_epoch_ms
    tenant#<tenant>#<shard>     in_flight
    day#<tenant>#<date>         jobs, cost_nanos, bypasses
"""

from __future__ import annotations

import dataclasses
import random
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Refusal, Table, Write, changes, members
from sluiceway.adapters.dynamodb_gates import gate_of, open_check
from sluiceway.adapters.dynamodb_usage import usage_write
from sluiceway.domain.errors import DamagedRowError, StoreBusyError
from sluiceway.domain.gate import Shut
from sluiceway.domain.job import (
    CLAIM_OUTLIVES_DEADLINE_MS,
    LANES,
    MAX_CALLBACKS,
    OPEN,
    Job,
    JobError,
    JobStatus,
    cost_moves,
    due_shard,
    settled,
)
from sluiceway.domain.lease import CLOCK_SKEW_MS, ROW_OUTLIVES_LEASE_S, Lease, is_free
from sluiceway.domain.payload import Payload
from sluiceway.ports import (
    Applied,
    BudgetSpent,
    CapReached,
    Claimed,
    Clock,
    DayBudget,
    LeaseHeld,
    Moved,
    Started,
    Submitted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sluiceway.adapters.cache_writes import CacheWrites
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.ticket import Ticket

_NESTED = frozenset(
    {"input", "result", "error", "last_errors", "status", "metadata", "callback_urls"}
)
_MAX_LEASE_GUESSES = 4
_REFRESH_TRIES = 3
_DAY_ROW_S = 14 * 24 * 3600
"""Twice the longest deadline: a job's end finds the row of its day, and doesn't begin another."""

_OPEN_VALUES = {f"open_{index}": status.value for index, status in enumerate(sorted(OPEN))}
_IS_OPEN = f"#status IN ({', '.join(f':{name}' for name in _OPEN_VALUES)})"


@dataclass(frozen=True, slots=True)
class TableNames:
    """Physical names of the tables."""

    jobs: str
    cache: str
    coordination: str


class DynamoDBJobs:
    """Weakness: a tenant's submits meet at its counter rows, and their conflicts are waited out.

    With a daily budget they meet at one row, however many counters there are.
    """

    def __init__(
        self,
        table: Table,
        names: TableNames,
        cache: CacheWrites,
        *,
        clock: Clock,
        rand: Callable[[], float] = random.random,
    ) -> None:
        """`rand`, in [0, 1), picks the counter shard that a submit tries first."""
        self._table = table
        self._names = names
        self._cache = cache
        self._clock = clock
        self._rand = rand
        self._writer = secrets.token_urlsafe(6)
        """Tells our own write from another's that made the same transition of the same row."""

    def get(self, tenant: str, job_id: str) -> Job | None:
        """See JobStore."""
        values = self._table.read(self._names.jobs, _job_key(tenant, job_id))
        return None if values is None else job_of(values)

    # ------------------------------------------------------------------ submit

    def submit(
        self,
        job: Job,
        *,
        shard_caps: Sequence[int],
        replacing: str | None = None,
        budget: DayBudget | None = None,
    ) -> Submitted | Claimed | CapReached | BudgetSpent:
        """See JobStore."""
        # Equal requests race for the claim, a tenant's requests for its counter:
        #   A: job, claim, counter ──────────────> written
        #   B:      claim is A's ────────────────> refused, the old claim names A's job
        shard = int(self._rand() * len(shard_caps))

        def submit_in(shard: int) -> Submitted | Claimed | BudgetSpent | None:
            moved = replace(job, counter_shard=shard)
            return self._submit_in(moved, shard_caps[shard], replacing, budget or DayBudget())

        outcome = submit_in(shard)
        if outcome is not None:
            return outcome
        # This shard is full. One read tells of all the others, and of an equal job that came in
        # meanwhile: it answers better than a refusal.
        claim, rooms = self._claim_and_rooms(job, shard_caps)
        if claim is not None and self._claim_holds(claim, job, replacing):
            return Claimed(claim["job_id"])
        for room, other in sorted(rooms, reverse=True):
            if room > 0:
                outcome = submit_in(other)
                if outcome is not None:
                    return outcome
        return CapReached()

    def _claim_and_rooms(
        self, job: Job, shard_caps: Sequence[int]
    ) -> tuple[dict[str, Any] | None, list[tuple[int, int]]]:
        """The claim, and for each counter shard `(free places, shard)`, read consistently."""
        counters = [
            _counter_key(replace(job, counter_shard=shard)) for shard in range(len(shard_caps))
        ]
        rows = self._table.read_all(self._names.coordination, [_claim_key(job), *counters])
        rooms = [
            (cap - (row["in_flight"] if row else 0), shard)
            for shard, (cap, row) in enumerate(zip(shard_caps, rows[1:], strict=True))
        ]
        return rows[0], rooms

    def _submit_in(
        self, job: Job, cap: int, replacing: str | None, budget: DayBudget
    ) -> Submitted | Claimed | BudgetSpent | None:
        """Tries one counter shard; None when it is full."""
        writes = [
            self._new_job_write(job),
            self._claim_write(job, replacing),
            Write(
                self._names.coordination,
                _counter_key(job),
                update="ADD #in_flight :one",
                condition="attribute_not_exists(#in_flight) OR #in_flight < :cap",
                values={"one": 1, "cap": cap},
            ),
            *self._budget_writes(job, budget),
        ]
        try:
            refusals = self._table.transact(writes)
        except StoreBusyError:
            # The conflict may be an equal request's that is in by now.
            claim = self._table.read(self._names.coordination, _claim_key(job))
            if claim is None or not self._claim_holds(claim, job, replacing):
                raise
            return Submitted(job) if claim["job_id"] == job.job_id else Claimed(claim["job_id"])
        if refusals is None:
            return Submitted(job)
        claim_refusal = refusals[1]
        if refusals[0] is not None or (claim_refusal and self._owns(claim_refusal, job)):
            # Our own write, whose reply was lost: the id is random, so nobody else's is there.
            return Submitted(self.get(job.tenant, job.job_id) or job)
        if claim_refusal is not None:
            old = claim_refusal.old or self._table.read(self._names.coordination, _claim_key(job))
            if old is None:
                raise StoreBusyError("The claim was closed meanwhile.", retry_after_s=1)
            return Claimed(old["job_id"])
        budget_refusal = next(filter(None, refusals[3:]), None)
        if budget_refusal is None:
            return None
        day = budget_refusal.old or self._table.read(self._names.coordination, _day_key(job)) or {}
        spent = budget.spent(day, job.cost_reserved_nanos or 0)
        if spent is None:
            raise StoreBusyError("The day's budget has room again.", retry_after_s=1)
        return spent

    def _new_job_write(self, job: Job) -> Write:
        return Write(
            self._names.jobs,
            _job_key(job.tenant, job.job_id),
            item=_values_of(job),
            condition="attribute_not_exists(#job_id)",
        )

    def _budget_writes(self, job: Job, budget: DayBudget) -> list[Write]:
        """Counts the job in its tenant's day, where everything must have room at once."""
        adds = {"jobs": 1, "cost_nanos": job.cost_reserved_nanos or 0, "bypasses": 1}
        caps = {name: cap for name in adds if (cap := getattr(budget, name))}
        if not caps:
            return []
        # Without the attribute nothing was counted, and the job itself may be over the cap.
        conditions = [
            f"(attribute_not_exists(#{name}) OR #{name} <= :{name}_room)"
            if adds[name] <= cap
            else f"#{name} <= :{name}_room"
            for name, cap in caps.items()
        ]
        rooms = {f"{name}_room": cap - adds[name] for name, cap in caps.items()}
        return [self._day_write(job, {name: adds[name] for name in caps}, conditions, rooms)]

    def _cost_writes(self, old: Job, new: Job) -> list[Write]:
        """Counts in the day's cost what the job counts now, and no more what it did before."""
        moves = cost_moves(old, new)
        return [self._day_write(job, {"cost_nanos": nanos}) for job, nanos in moves]

    def _day_write(
        self,
        job: Job,
        adds: Mapping[str, int],
        conditions: Sequence[str] = (),
        values: Mapping[str, int] | None = None,
    ) -> Write:
        """The row is in the transactions of all of the tenant's jobs of that day."""
        sums = ", ".join(f"#{name} :{name}" for name in adds)
        return Write(
            self._names.coordination,
            _day_key(job),
            update=f"ADD {sums} SET #ttl_epoch_s = :ttl",
            condition=" AND ".join(conditions) or None,
            values={
                **adds,
                **(values or {}),
                "ttl": job.enqueued_at_epoch_ms // 1000 + _DAY_ROW_S,
            },
        )

    def holder(self, job: Job) -> str | None:
        """See JobStore."""
        claim = self._table.read(self._names.coordination, _claim_key(job))
        if claim is None or not self._claim_holds(claim, job, None):
            return None
        return str(claim["job_id"])

    def queue_refresh(self, job: Job, entry: CacheEntry) -> bool:
        """See JobStore."""
        # Of many readers of a stale entry one wins; the others have their answer already, so they
        # don't wait for the winner's transaction as long as a submit would.
        marks = self._cache.refresh_queued(entry, job)
        if marks is None:
            return False
        refusals = self._table.transact(
            [self._new_job_write(job), self._claim_write(job, None), *marks],
            tries=_REFRESH_TRIES,
        )
        # The random id or the claim may be there already: our own write, whose reply was lost.
        won = (
            refusals is None
            or refusals[0] is not None
            or (refusals[1] is not None and self._owns(refusals[1], job))
        )
        if won:
            self._cache.refresh_won(entry, job)
        return won

    @staticmethod
    def _owns(refusal: Refusal, job: Job) -> bool:
        return refusal.old is not None and refusal.old.get("job_id") == job.job_id

    def _claim_holds(self, claim: Mapping[str, Any], job: Job, replacing: str | None) -> bool:
        if claim["job_id"] == job.job_id:
            return True
        ended = claim["ends_at_epoch_ms"] < self._clock.now_ms()
        return not ended and claim["job_id"] != replacing

    # ------------------------------------------------------------------ start

    def start(
        self,
        job: Job,
        *,
        token: str,
        lease_ms: int,
        now_ms: int,
        started: Callable[[int], Job],
    ) -> Started | LeaseHeld | Moved:
        """See JobStore."""
        # The fence must be known before the write that raises it. The guess, that nobody else
        # worked on this key since this job did, is right for a first run and for a retry; else the
        # refusal brings the lease's row, and the second try knows.
        known_fence = job.fence
        for _ in range(_MAX_LEASE_GUESSES):
            fence = max(known_fence, job.fence) + 1
            new = started(fence)
            lease = Lease(job.lease_key, token, fence, now_ms + lease_ms)
            refusals = self._table.transact(
                [
                    self._job_write(job, new),
                    self._lease_write(lease, job.job_id, known_fence, now_ms),
                ]
            )
            if refusals is None:
                return Started(new, lease)
            job_refusal, lease_refusal = refusals
            row = lease_refusal.old if lease_refusal else None
            if row is not None and row.get("token") == token:
                ours = row["fence"]  # the reply was lost
                return Started(started(ours), replace(lease, fence=ours))
            if lease_refusal is not None and row is not None and not _lease_free(row, now_ms):
                return LeaseHeld(by_this_job=row["job_id"] == job.job_id)
            if job_refusal is not None:
                return Moved(self._seen(job_refusal, job))
            known_fence = row["fence"] if row is not None else 0
        return LeaseHeld(by_this_job=False)

    def _lease_write(self, lease: Lease, job_id: str, known_fence: int, now_ms: int) -> Write:
        """Owner, fence and end in one write: no second step is needed for safety."""
        return Write(
            self._names.coordination,
            _lease_key(lease.key),
            update=(
                "SET #job_id = :job, #token = :token, #fence = :fence, "
                "#ends_at_epoch_ms = :ends, #ttl_epoch_s = :ttl"
            ),
            condition=(
                "#fence = :known AND #ends_at_epoch_ms < :free_before"
                if known_fence
                else "attribute_not_exists(#fence)"
            ),
            values={
                "job": job_id,
                "token": lease.token,
                "fence": lease.fence,
                "ends": lease.ends_at_epoch_ms,
                "ttl": lease.ends_at_epoch_ms // 1000 + ROW_OUTLIVES_LEASE_S,
                "known": known_fence,
                "free_before": now_ms - CLOCK_SKEW_MS,
            },
        )

    # ------------------------------------------------------------------ the other transitions

    def apply(
        self,
        old: Job,
        new: Job,
        *,
        lease: Lease | None = None,
        entry: CacheEntry | None = None,
        give_up_at_ms: int | None = None,
        unless_held_at_ms: int | None = None,
    ) -> Applied | Moved | LeaseHeld:
        """See JobStore."""
        core = [self._job_write(old, new)]
        if lease is not None:
            core.append(self._release_write(lease))
        elif unless_held_at_ms is not None:
            core.append(self._lease_check(old.lease_key, unless_held_at_ms))
        # What is gone or another's by now never stands in the way of a result: these are left out
        # when they are refused.
        stored = [] if entry is None else self._cache.store(entry, old)
        ends = old.open and not new.open
        settling = self._closing_writes(new, stored=entry is not None) if ends else []
        counts = self._counting_writes(old, new) if ends else []
        while True:
            needed = core + counts
            try:
                refusals = self._table.transact(needed + stored + settling)
            except (StoreBusyError, DamagedRowError) as error:
                if give_up_at_ms is None:
                    raise
                busy = isinstance(error, StoreBusyError)
                if busy and self._clock.now_ms() < give_up_at_ms:
                    continue
                return self._apply_unsettled(old, new, core[1:], stored)
            if refusals is None:
                return Applied(new)
            if any(refusals[: len(needed)]):
                checked = lease is None and unless_held_at_ms is not None
                return self._refused(refusals, old, new, checked=checked)
            refused = iter(refusals[len(needed) :])
            stored = [write for write in stored if not next(refused)]
            settling = [write for write in settling if not next(refused)]

    def _refused(
        self, refusals: Sequence[Refusal | None], old: Job, new: Job, *, checked: bool
    ) -> Applied | Moved | LeaseHeld:
        """Why a transition wasn't written; `checked`: the second write only looked at the lease."""
        if checked and refusals[0] is None and refusals[1] is not None:
            row = refusals[1].old or {}
            return LeaseHeld(by_this_job=row.get("job_id") == old.job_id)
        return self._explain(refusals[0], old, new)

    def _apply_unsettled(
        self, old: Job, new: Job, rest: list[Write], stored: list[Write]
    ) -> Applied | Moved:
        """The last resort of a paid result: without claim and counts, marked as open."""
        marked = new
        if old.open and not new.open:
            now_ms, shard = self._clock.now_ms(), due_shard(new.job_id)
            marked = replace(new, unsettled=True, due_at_epoch_ms=now_ms, due_shard=shard)
        core = [self._job_write(old, marked), *rest]
        refusals = self._table.transact(core + stored)
        if refusals is not None and not any(refusals[: len(core)]):
            refusals = self._table.transact(core)
        return Applied(marked) if refusals is None else self._explain(refusals[0], old, marked)

    def _explain(self, refusal: Refusal | None, old: Job, new: Job) -> Applied | Moved:
        """A refused transition: ours after all, when the row is as we wrote it, and by us."""
        row = refusal.old if refusal else None
        if row is None:
            row = self._table.read(self._names.jobs, _job_key(old.tenant, old.job_id))
        if row is None:
            return Moved(None)
        current = job_of(row)
        ours = row.get("written_by") == self._writer
        return Applied(current) if ours and current.version == new.version else Moved(current)

    def renew(
        self,
        job: Job,
        lease: Lease,
        *,
        ends_at_ms: int,
        gate: tuple[str, Ticket, int] | None = None,
    ) -> Lease | Shut | None:
        """See JobStore."""
        writes = [
            Write(
                self._names.jobs,
                _job_key(job.tenant, job.job_id),
                check=True,
                condition="#status = :processing AND #fence = :fence",
                values={"processing": JobStatus.PROCESSING.value, "fence": lease.fence},
            ),
            Write(
                self._names.coordination,
                _lease_key(lease.key),
                update="SET #ends_at_epoch_ms = :ends, #ttl_epoch_s = :ttl",
                condition="#token = :token AND #fence = :fence",
                values={
                    "ends": ends_at_ms,
                    "ttl": ends_at_ms // 1000 + ROW_OUTLIVES_LEASE_S,
                    "token": lease.token,
                    "fence": lease.fence,
                },
            ),
        ]
        if gate is not None:
            writes.append(open_check(self._names.coordination, *gate))
        refusals = self._table.transact(writes)
        if refusals is None:
            return replace(lease, ends_at_epoch_ms=ends_at_ms)
        if gate is None or any(refusals[:2]) or refusals[2] is None:
            return None
        # It closed, opened again or paused meanwhile; in the second case another look is due now.
        now_ms = gate[2]
        return gate_of(refusals[2].old).shut(now_ms) or Shut(now_ms)

    def redrive(self, old: Job, new: Job) -> Applied | Moved:
        """See JobStore."""
        if old.refresh:
            raise ValueError("a refresh is not redriven")
        writes = [self._job_write(old, new)]
        if old.unsettled:  # its place in the counter was never given back, nor its end counted
            writes += self._usage_writes(old)
        else:
            writes.append(
                Write(
                    self._names.coordination,
                    _counter_key(new),
                    update="ADD #in_flight :one",
                    values={"one": 1},
                )
            )
        writes += self._cost_writes(old, new)
        refusals = self._table.transact([*writes, self._claim_write(new, new.job_id)])
        if refusals is not None and not refusals[0]:
            # An equal job has the claim: both run, and the second finds the first one's result.
            refusals = self._table.transact(writes)
        if refusals is None:
            return Applied(new)
        return self._explain(refusals[0], old, new)

    def settle(self, job: Job) -> None:
        """See JobStore."""
        if not job.unsettled:
            return
        done = settled(job)
        needed = [self._job_write(job, done), *self._counting_writes(job, done)]
        closing = self._closing_writes(job, stored=False)
        while True:
            refusals = self._table.transact(needed + closing)
            if refusals is None or any(refusals[: len(needed)]):
                return
            refused = refusals[len(needed) :]
            closing = [write for write, no in zip(closing, refused, strict=True) if not no]

    def release(self, lease: Lease) -> None:
        """See JobStore."""
        self._table.write(self._release_write(lease))

    def move_lane(self, job: Job, lane: str) -> bool:
        """See JobStore."""
        refusal = self._table.write(
            Write(
                self._names.jobs,
                _job_key(job.tenant, job.job_id),
                update="SET #lane = :lane",
                condition=f"#lane <> :lane AND {_IS_OPEN}",
                values={"lane": lane, **_OPEN_VALUES},
            )
        )
        return refusal is None

    def ask_again(self, job: Job, *, asked_after_ms: int) -> Applied | Moved:
        """See JobStore."""
        # Many may come at once, so it is no transition from the row as it was read. The revision
        # keeps a worker that read it before from completing the job as it was wanted then.
        told = self._table.update(
            Write(
                self._names.jobs,
                _job_key(job.tenant, job.job_id),
                update="SET #asked_after_epoch_ms = :at ADD #revision :one",
                condition=(
                    "#status = :queued AND #attempts_total = :none "
                    "AND (attribute_not_exists(#asked_after_epoch_ms) "
                    "OR #asked_after_epoch_ms < :at)"
                ),
                values={
                    "at": asked_after_ms,
                    "one": 1,
                    "queued": JobStatus.QUEUED.value,
                    "none": 0,
                },
            )
        )
        if not isinstance(told, Refusal):
            return Applied(job_of(told))
        current = self._seen(told, job)
        waits = current is not None and current.open and not current.attempts_total
        if current is None or not waits or (current.asked_after_epoch_ms or 0) < asked_after_ms:
            return Moved(current)
        return Applied(current)

    def add_callback(self, job: Job, url: str) -> Applied | Moved:
        """See JobStore."""
        refusal = self._table.write(
            Write(
                self._names.jobs,
                _job_key(job.tenant, job.job_id),
                update="ADD #callback_urls :urls",
                condition=(
                    f"{_IS_OPEN} AND ("
                    "attribute_not_exists(#callback_urls) OR contains(#callback_urls, :url) "
                    "OR size(#callback_urls) < :most)"
                ),
                values={"urls": {url}, "url": url, "most": MAX_CALLBACKS, **_OPEN_VALUES},
            )
        )
        if refusal is not None:
            return Moved(self._seen(refusal, job))
        return Applied(replace(job, callback_urls=tuple(sorted({*job.callback_urls, url}))))

    def drop_callback(self, tenant: str, job_id: str, url: str) -> None:
        """See JobStore."""
        self._table.write(
            Write(
                self._names.jobs,
                _job_key(tenant, job_id),
                update="DELETE #callback_urls :urls",
                condition="contains(#callback_urls, :url)",
                values={"urls": {url}, "url": url},
            )
        )

    # ------------------------------------------------------------------ single writes

    def _claim_write(self, job: Job, replacing: str | None) -> Write:
        """Takes the claim when it is absent, ended, or that of `replacing`."""
        ends_ms = job.deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS
        return Write(
            self._names.coordination,
            _claim_key(job),
            item=_claim_key(job)
            | {
                "job_id": job.job_id,
                "ends_at_epoch_ms": ends_ms,
                "ttl_epoch_s": ends_ms // 1000,
            },
            condition=(
                "attribute_not_exists(#job_id) OR #ends_at_epoch_ms < :now"
                + (" OR #job_id = :replacing" if replacing else "")
            ),
            values={"now": self._clock.now_ms(), "replacing": replacing},
        )

    def _job_write(self, old: Job, new: Job) -> Write:
        """The difference, on the condition that the row is as `old` was read."""
        update, values = changes(_values_of(old), {**_values_of(new), "written_by": self._writer})
        status, fence, attempts_total, revision = old.version
        return Write(
            self._names.jobs,
            _job_key(old.tenant, old.job_id),
            update=update,
            condition=(
                "#status = :old_status AND #fence = :old_fence "
                "AND #attempts_total = :old_attempts_total AND #revision = :old_revision"
            ),
            values={
                **values,
                "old_status": status.value,
                "old_fence": fence,
                "old_attempts_total": attempts_total,
                "old_revision": revision,
            },
        )

    def _release_write(self, lease: Lease) -> Write:
        return Write(
            self._names.coordination,
            _lease_key(lease.key),
            update="SET #ends_at_epoch_ms = :over REMOVE #token",
            condition="#token = :token AND #fence = :fence",
            values={"over": 0, "token": lease.token, "fence": lease.fence},
        )

    def _lease_check(self, cache_key: str, now_ms: int) -> Write:
        return Write(
            self._names.coordination,
            _lease_key(cache_key),
            check=True,
            condition="attribute_not_exists(#fence) OR #ends_at_epoch_ms < :free_before",
            values={"free_before": now_ms - CLOCK_SKEW_MS},
        )

    def _closing_writes(self, job: Job, *, stored: bool) -> list[Write]:
        """The claim of a job that has ended; of a refresh that renewed nothing the cool-down, too.

        An entry that another job renewed meanwhile doesn't name this refresh, and stays as it is.
        """
        claim = Write(
            self._names.coordination,
            _claim_key(job),
            condition="#job_id = :job",
            values={"job": job.job_id},
        )
        if job.refresh and not stored:
            return [claim, *self._cache.refresh_failed(job)]
        return [claim]

    def _counting_writes(self, old: Job, new: Job) -> list[Write]:
        """Where a job that has ended was counted as open, and where its end is."""
        return [
            *self._counter_writes(new),
            *self._cost_writes(old, new),
            *self._usage_writes(new),
        ]

    def _counter_writes(self, job: Job) -> list[Write]:
        """The counter of a job that has ended; a refresh is in none."""
        if job.refresh:
            return []
        return [
            Write(
                self._names.coordination,
                _counter_key(job),
                update="ADD #in_flight :minus_one",
                values={"minus_one": -1},
            )
        ]

    def _usage_writes(self, job: Job) -> list[Write]:
        """Counts the end of a job; that of a refresh is nobody's."""
        return [] if job.refresh else [usage_write(self._names.jobs, job)]

    def _seen(self, refusal: Refusal, job: Job) -> Job | None:
        """The job in a refusal; read again where an emulator leaves it out."""
        return job_of(refusal.old) if refusal.old else self.get(job.tenant, job.job_id)


# ------------------------------------------------------------------------------------ rows


def _job_key(tenant: str, job_id: str) -> dict[str, str]:
    return {"tenant": tenant, "job_id": job_id}


def _claim_key(job: Job) -> dict[str, str]:
    return {"coordination_key": f"claim#{job.job_key}"}


def _lease_key(cache_key: str) -> dict[str, str]:
    return {"coordination_key": f"lease#{cache_key}"}


def _counter_key(job: Job) -> dict[str, str]:
    return {"coordination_key": f"tenant#{job.tenant}#{job.counter_shard}"}


def _day_key(job: Job) -> dict[str, str]:
    return {"coordination_key": f"day#{job.tenant}#{job.day}"}


def _lease_free(row: Mapping[str, Any], now_ms: int) -> bool:
    """A row without an end is held: only its holder may end it."""
    ends = row.get("ends_at_epoch_ms")
    return ends is not None and is_free(ends, now_ms)


_PLAIN = tuple(field.name for field in dataclasses.fields(Job) if field.name not in _NESTED)


def _values_of(job: Job) -> dict[str, Any]:
    """The row's attributes; every one is named, None means absent."""
    values = {name: getattr(job, name) for name in _PLAIN}
    values["status"] = job.status.value
    values["lost_nanos"] = job.lost_nanos or None  # nearly always 0, and a row pays by the KB
    values["metadata"] = job.metadata or None
    values["callback_urls"] = set(job.callback_urls) or None
    values["input_inline"], values["input_ref"] = job.input.inline, job.input.ref
    values["result_inline"] = job.result.inline if job.result else None
    values["result_ref"] = job.result.ref if job.result else None
    values["error"] = _error_values(job.error) if job.error else None
    values["last_errors"] = [_error_values(error) for error in job.last_errors] or None
    return values


def _error_values(error: JobError) -> dict[str, Any]:
    """Without what is None: within a map it would be stored as NULL."""
    values = dataclasses.asdict(error)
    return {name: value for name, value in values.items() if value is not None}


_KINDS: dict[Any, Any] = {"str": str, "int": int, "bool": bool}
_KINDS |= {f"{name} | None": kind | None for name, kind in _KINDS.items()}

_TYPES = {
    field.name: _KINDS[field.type]  # a text; of another kind the check would know nothing
    for field in dataclasses.fields(Job)
    if field.name in _PLAIN
}


def job_of(values: Mapping[str, Any]) -> Job:
    """The job in a row's values.

    Raises DamagedRowError: one row mustn't stop whoever looks at many.
    """
    try:
        _check_types(values)
        return _parsed(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRowError(
            f"The row of job {values.get('job_id')} is damaged ({type(error).__name__})."
        ) from error


def _check_types(values: Mapping[str, Any]) -> None:
    """Raises TypeError or ValueError for what the code would stumble over later."""
    for name, kind in _TYPES.items():
        if name in values and not isinstance(values[name], kind):
            raise TypeError(name)
    if values["lane"] not in LANES:
        raise ValueError("lane")


def _error_of(values: Mapping[str, Any]) -> JobError:
    return JobError(**members(JobError, values))


def _parsed(values: Mapping[str, Any]) -> Job:
    plain = {name: values[name] for name in _PLAIN if name in values}
    has_result = "result_inline" in values or "result_ref" in values
    return Job(
        **plain,
        status=JobStatus(values["status"]),
        metadata=values.get("metadata", {}),
        callback_urls=tuple(sorted(values.get("callback_urls", ()))),
        input=Payload(values.get("input_inline"), values.get("input_ref")),
        result=(
            Payload(values.get("result_inline"), values.get("result_ref")) if has_result else None
        ),
        error=_error_of(values["error"]) if "error" in values else None,
        last_errors=tuple(map(_error_of, values.get("last_errors", ()))),
    )
