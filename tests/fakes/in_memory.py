"""Fakes of the ports, in memory: each passes the contract suite of the real adapter.

One `World` holds what all of them know, so that a job's end is seen by cache, claim and counter at
once. Nothing sleeps, and nothing is random unless a test says so.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from aws_lambda_powertools.utilities.idempotency import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from sluiceway.adapters.dynamodb_job_lists import MOST_READ
from sluiceway.domain import timeouts
from sluiceway.domain.api_key import USE_NOTED_EVERY_S
from sluiceway.domain.backlog import TELLS_FOR_MS, Backlog
from sluiceway.domain.endpoint import NO_ENDPOINTS, Endpoints
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.flags import FEATURES
from sluiceway.domain.freshness import cool_down_ms
from sluiceway.domain.gate import FURTHEST_SLOT_MS, Gate, Limits, Room, Shut
from sluiceway.domain.job import (
    CLAIM_OUTLIVES_DEADLINE_MS,
    MAX_CALLBACKS,
    Job,
    JobStatus,
    cost_moves,
    due_shard,
    settled,
)
from sluiceway.domain.lease import Lease, is_free
from sluiceway.domain.ticket import Ticket
from sluiceway.domain.timeouts import Sample
from sluiceway.domain.usage import UsageRow, usage_of
from sluiceway.domain.webhook import Attempt, Delivery, DeliveryRecord, oldest_delivery_id
from sluiceway.ports import (
    Applied,
    AuditRecord,
    BudgetSpent,
    CapReached,
    Claimed,
    DayBudget,
    DueJob,
    Found,
    IndexedJob,
    JobPage,
    LeaseHeld,
    Moved,
    PartnerKey,
    RateLeft,
    ServiceState,
    Started,
    Submitted,
    VendorAnswer,
    VendorCall,
)
from sluiceway.telemetry import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
    from sluiceway.domain.batch import Batch
    from sluiceway.domain.catalogue import Vendor
    from sluiceway.domain.errors import NotCalledError, VendorError
    from sluiceway.domain.freshness import CacheEntry

NOW_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z, when a FakeClock starts."""


class FakeClock:
    """A clock that stands still until the test moves it (port Clock)."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def pause(self, seconds: float) -> None:
        """As time.sleep, without waiting."""
        self.advance(s=seconds)

    def advance(self, ms: int = 0, *, s: float = 0.0) -> int:
        """Moves on, and gives the new time."""
        self._now_ms += ms + round(s * 1000)
        return self._now_ms


# ------------------------------------------------------------------------------------ the world


@dataclass(frozen=True, slots=True)
class Claim:
    """Which job does the work of a job key."""

    job_id: str
    ends_at_epoch_ms: int


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who works on a cache key; without a token nobody does, and the fence is kept."""

    job_id: str
    token: str | None
    fence: int
    ends_at_epoch_ms: int | None
    """None: held until its holder ends it."""

    def free_at(self, now_ms: int) -> bool:
        return self.ends_at_epoch_ms is not None and is_free(self.ends_at_epoch_ms, now_ms)


@dataclass(slots=True)
class World:
    """Everything that is stored. Tests may look into it and change it."""

    jobs: dict[tuple[str, str], Job] = field(default_factory=dict)
    """By tenant and job id."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """By job key."""
    leases: dict[str, LeaseRow] = field(default_factory=dict)
    """By cache key."""
    in_flight: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By tenant and counter shard."""
    entries: dict[str, CacheEntry] = field(default_factory=dict)
    """By cache key."""
    tombstones: dict[str, int] = field(default_factory=dict)
    """By cache key: when it was invalidated."""
    bypasses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By tenant and day."""
    day_jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    day_cost_nanos: Counter[tuple[str, str]] = field(default_factory=Counter)
    usage: dict[tuple[str, str, str], UsageRow] = field(default_factory=dict)
    """By tenant, day and model."""
    minutes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By tenant and minute since 1970: its requests."""
    owed: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """By tenant and digest of the request: the job, and until when."""
    endpoints: dict[str, Endpoints] = field(default_factory=dict)
    """By tenant: where its events go."""
    deliveries: dict[tuple[str, str, str], DeliveryRecord] = field(default_factory=dict)
    """By tenant, endpoint's id and delivery's id."""
    epochs: dict[str, int] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    rooms: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """By vendor and room: who is inside, and when it has left."""
    latencies: dict[str, dict[int, Sample]] = field(default_factory=dict)
    """By vendor's model and place in its ring."""
    degraded_since_epoch_ms: int | None = None
    degraded_told_epoch_ms: int | None = None
    paused_tenants: set[str] = field(default_factory=set)
    paused_lanes: set[str] = field(default_factory=set)
    backlog: Backlog = field(default_factory=Backlog)
    audit: list[AuditRecord] = field(default_factory=list)
    batches: dict[tuple[str, str], Batch] = field(default_factory=dict)
    """By tenant and batch id."""
    payloads: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, PartnerKey] = field(default_factory=dict)
    """By hash."""
    idempotency: dict[str, DataRecord] = field(default_factory=dict)
    counters_busy: bool = False
    """Claims and counters can't be written: others always get in the way."""
    written_by: dict[tuple[str, str], object] = field(default_factory=dict)
    """By tenant and job id: the store that made the last transition."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def open_jobs(self, tenant: str) -> int:
        """The tenant's counter, over its shards."""
        return sum(count for (owner, _), count in self.in_flight.items() if owner == tenant)


# ------------------------------------------------------------------------------------ jobs


class InMemoryJobs:
    """Jobs, claims, leases and counters in a World (port JobStore)."""

    def __init__(
        self, world: World, *, clock: FakeClock, rand: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`rand`, in [0, 1), picks the counter shard that a submit tries first."""
        self._world = world
        self._clock = clock
        self._rand = rand

    def get(self, tenant: str, job_id: str) -> Job | None:
        with self._world.lock:
            return self._world.jobs.get((tenant, job_id))

    def submit(
        self,
        job: Job,
        *,
        shard_caps: Sequence[int],
        replacing: str | None = None,
        budget: DayBudget | None = None,
    ) -> Submitted | Claimed | CapReached | BudgetSpent:
        world, now_ms = self._world, self._clock.now_ms()
        with world.lock:
            own = self.get(job.tenant, job.job_id)
            if own is not None:
                return Submitted(own)
            claim = world.claims.get(job.job_key)
            if claim and claim.ends_at_epoch_ms >= now_ms and claim.job_id != replacing:
                return Claimed(claim.job_id)
            if world.counters_busy:
                raise StoreBusyError("The tables are busy.", retry_after_s=1)
            day, budget = (job.tenant, job.day), budget or DayBudget()
            used = {
                "jobs": world.day_jobs[day],
                "cost_nanos": world.day_cost_nanos[day],
                "bypasses": world.bypasses[day],
            }
            spent = budget.spent(used, job.cost_reserved_nanos or 0)
            if spent is not None:
                return spent
            shards = len(shard_caps)
            first = int(self._rand() * shards)
            for shard in ((first + step) % shards for step in range(shards)):
                if world.in_flight[job.tenant, shard] < shard_caps[shard]:
                    world.bypasses[day] += 1 if budget.bypasses else 0
                    world.day_jobs[day] += 1 if budget.jobs else 0
                    world.day_cost_nanos[day] += job.budgeted_nanos if budget.cost_nanos else 0
                    written = replace(job, counter_shard=shard)
                    world.in_flight[job.tenant, shard] += 1
                    world.jobs[job.tenant, job.job_id] = written
                    self._claim(written)
                    return Submitted(written)
            return CapReached()

    def holder(self, job: Job) -> str | None:
        with self._world.lock:
            claim = self._world.claims.get(job.job_key)
            held = claim is not None and claim.ends_at_epoch_ms >= self._clock.now_ms()
            return claim.job_id if claim is not None and held else None

    def queue_refresh(self, job: Job, entry: CacheEntry) -> bool:
        world, now_ms = self._world, self._clock.now_ms()
        with world.lock:
            if self.get(job.tenant, job.job_id) is not None:
                return True
            claim = world.claims.get(job.job_key)
            current = world.entries.get(entry.cache_key)
            if claim and claim.ends_at_epoch_ms >= now_ms:
                return False
            if current is None or current.stored_at_epoch_ms != entry.stored_at_epoch_ms:
                return False
            if not current.may_be_refreshed(job.created_at_epoch_ms):
                return False
            if world.counters_busy:
                raise StoreBusyError("The tables are busy.", retry_after_s=1)
            world.jobs[job.tenant, job.job_id] = job
            self._claim(job)
            world.entries[entry.cache_key] = replace(
                current,
                refresh_until_epoch_ms=job.deadline_epoch_ms,
                refresh_job_id=job.job_id,
            )
            return True

    def start(
        self,
        job: Job,
        *,
        token: str,
        lease_ms: int,
        now_ms: int,
        started: Callable[[int], Job],
    ) -> Started | LeaseHeld | Moved:
        world = self._world
        with world.lock:
            row = world.leases.get(job.lease_key)
            ends_ms = now_ms + lease_ms
            if row and row.token == token:
                return Started(started(row.fence), Lease(job.lease_key, token, row.fence, ends_ms))
            if row and not row.free_at(now_ms):
                return LeaseHeld(by_this_job=row.job_id == job.job_id)
            current = self.get(job.tenant, job.job_id)
            if current is None or current.version != job.version:
                return Moved(current)
            fence = max(row.fence if row else 0, job.fence) + 1
            new = started(fence)
            self._write(current, job, new)
            world.leases[job.lease_key] = LeaseRow(job.job_id, token, fence, ends_ms)
            return Started(new, Lease(job.lease_key, token, fence, ends_ms))

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
        world = self._world
        with world.lock:
            current = self.get(old.tenant, old.job_id)
            if current is None:
                return Moved(None)
            if current.version != old.version or not (lease is None or self._holds(lease)):
                return self._explain(current, new)
            row = None if lease else world.leases.get(old.lease_key)
            if unless_held_at_ms is not None and row and not row.free_at(unless_held_at_ms):
                return LeaseHeld(by_this_job=row.job_id == old.job_id)
            ends = old.open and not new.open
            if ends and world.counters_busy:
                if give_up_at_ms is None:
                    raise StoreBusyError("The tables are busy.", retry_after_s=1)
                new = replace(
                    new,
                    unsettled=True,
                    due_at_epoch_ms=self._clock.now_ms(),
                    due_shard=due_shard(new.job_id),
                )
            elif ends:
                self._settle(new, stored=entry is not None)
            self._write(current, old, new)
            if lease is not None:
                self.release(lease)
            if entry is not None and (
                world.tombstones.get(entry.cache_key, -1) < old.created_at_epoch_ms
            ):
                world.tombstones.pop(entry.cache_key, None)
                world.entries[entry.cache_key] = entry
            return Applied(new)

    def renew(
        self,
        job: Job,
        lease: Lease,
        *,
        ends_at_ms: int,
        gate: tuple[str, Ticket, int] | None = None,
    ) -> Lease | Shut | None:
        with self._world.lock:
            current = self.get(job.tenant, job.job_id)
            processing = current is not None and (
                (current.status, current.fence) == (JobStatus.PROCESSING, lease.fence)
            )
            if not processing or not self._holds(lease):
                return None
            if gate is not None:
                key, ticket, now_ms = gate
                at_gate = self._world.gates.get(key, Gate())
                shut = at_gate.shut(now_ms)
                if at_gate.version != ticket.version or shut:
                    return shut or Shut(now_ms)
            row = self._world.leases[lease.key]
            self._world.leases[lease.key] = replace(row, ends_at_epoch_ms=ends_at_ms)
            return replace(lease, ends_at_epoch_ms=ends_at_ms)

    def redrive(self, old: Job, new: Job) -> Applied | Moved:
        if old.refresh:
            raise ValueError("a refresh is not redriven")
        world = self._world
        with world.lock:
            current = self.get(old.tenant, old.job_id)
            if current is None:
                return Moved(None)
            if current.version != old.version:
                return self._explain(current, new)
            claim = world.claims.get(new.job_key)
            ended = claim is None or claim.ends_at_epoch_ms < self._clock.now_ms()
            if ended or (claim and claim.job_id == new.job_id):
                self._claim(new)
            if old.unsettled:
                self._count(old)
            else:
                world.in_flight[new.tenant, new.counter_shard] += 1
            self._write(current, old, new)
            return Applied(new)

    def settle(self, job: Job) -> None:
        with self._world.lock:
            current = self.get(job.tenant, job.job_id)
            if current is not None and current.unsettled and current.version == job.version:
                self._settle(current)
                self._write(current, job, settled(job))

    def release(self, lease: Lease) -> None:
        with self._world.lock:
            if self._holds(lease):
                row = self._world.leases[lease.key]
                self._world.leases[lease.key] = replace(row, token=None, ends_at_epoch_ms=0)

    def move_lane(self, job: Job, lane: str) -> bool:
        with self._world.lock:
            current = self.get(job.tenant, job.job_id)
            if current is None or not current.open or current.lane == lane:
                return False
            self._world.jobs[job.tenant, job.job_id] = replace(current, lane=lane)
            return True

    def ask_again(self, job: Job, *, asked_after_ms: int) -> Applied | Moved:
        with self._world.lock:
            current = self.get(job.tenant, job.job_id)
            if current is None or not current.open or current.attempts_total:
                return Moved(current)
            if (current.asked_after_epoch_ms or 0) < asked_after_ms:
                current = replace(
                    current, asked_after_epoch_ms=asked_after_ms, revision=current.revision + 1
                )
                self._world.jobs[job.tenant, job.job_id] = current
            return Applied(current)

    def add_callback(self, job: Job, url: str) -> Applied | Moved:
        with self._world.lock:
            current = self.get(job.tenant, job.job_id)
            if current is None or not current.open:
                return Moved(current)
            if url not in current.callback_urls and len(current.callback_urls) >= MAX_CALLBACKS:
                return Moved(current)
            urls = tuple(sorted({*current.callback_urls, url}))
            self._world.jobs[job.tenant, job.job_id] = replace(current, callback_urls=urls)
            return Applied(replace(job, callback_urls=tuple(sorted({*job.callback_urls, url}))))

    def drop_callback(self, tenant: str, job_id: str, url: str) -> None:
        with self._world.lock:
            current = self.get(tenant, job_id)
            if current is not None:
                urls = tuple(one for one in current.callback_urls if one != url)
                self._world.jobs[tenant, job_id] = replace(current, callback_urls=urls)

    def _explain(self, current: Job, new: Job) -> Applied | Moved:
        """Ours after all, when the row is as we wrote it, and by us."""
        ours = self._world.written_by.get((new.tenant, new.job_id)) is self
        return Applied(current) if ours and current.version == new.version else Moved(current)

    def _holds(self, lease: Lease) -> bool:
        row = self._world.leases.get(lease.key)
        return row is not None and (row.token, row.fence) == (lease.token, lease.fence)

    def _claim(self, job: Job) -> None:
        ends_at_epoch_ms = job.deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS
        self._world.claims[job.job_key] = Claim(job.job_id, ends_at_epoch_ms)

    def _settle(self, job: Job, *, stored: bool = False) -> None:
        """A claim that is gone or another's is left alone."""
        claim = self._world.claims.get(job.job_key)
        if claim and claim.job_id == job.job_id:
            del self._world.claims[job.job_key]
        if not job.refresh:
            self._world.in_flight[job.tenant, job.counter_shard] -= 1
            self._count(job)
            return
        entry = self._world.entries.get(job.cache_key)
        if not stored and entry and entry.refresh_job_id == job.job_id:
            failures = entry.refresh_failures + 1
            ended_at_ms = job.failed_at_epoch_ms or job.completed_at_epoch_ms or 0
            self._world.entries[job.cache_key] = replace(
                entry,
                refresh_until_epoch_ms=None,
                refresh_after_epoch_ms=ended_at_ms + cool_down_ms(failures),
                refresh_failures=failures,
                refresh_error=job.error.code if job.error else "not_cacheable",
            )

    def _count(self, job: Job) -> None:
        """Its end, in the usage."""
        row = usage_of(job)
        key = job.tenant, row.day, row.model
        before = self._world.usage.get(key)
        self._world.usage[key] = before + row if before else row

    def _write(self, current: Job, old: Job, new: Job) -> None:
        """The difference only: a lane that was raised in between stays raised."""
        changed = {
            name: getattr(new, name)
            for name in (one.name for one in fields(Job))
            if getattr(new, name) != getattr(old, name)
        }
        self._world.jobs[old.tenant, old.job_id] = replace(current, **changed)
        for job, nanos in cost_moves(old, new):
            self._world.day_cost_nanos[job.tenant, job.day] += nanos
        self._world.written_by[old.tenant, old.job_id] = self


class InMemoryJobLists:
    """A tenant's jobs, many at once (port JobLists)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        status: JobStatus | None = None,
        model: str | None = None,
    ) -> JobPage:
        with self._world.lock:
            rows = sorted(
                (
                    job
                    for job in self._world.jobs.values()
                    if job.tenant == tenant and (after is None or job.job_id < after)
                ),
                key=lambda job: job.job_id,
                reverse=True,
            )
        found: list[Job] = []
        for read, job in enumerate(rows, 1):
            if status in {None, job.status} and model in {None, job.model}:
                found.append(job)
            if len(found) > limit:
                return JobPage(found[:limit], has_more=True, last_id=found[limit - 1].job_id)
            if read == MOST_READ and read < len(rows):
                return JobPage(found, has_more=True, last_id=job.job_id)
        last = found[-1].job_id if found else None
        return JobPage(found, has_more=False, last_id=last)

    def get(self, tenant: str, job_ids: Sequence[str]) -> dict[str, Job]:
        with self._world.lock:
            jobs = self._world.jobs
            return {one: jobs[tenant, one] for one in job_ids if (tenant, one) in jobs}


COUNTED_AT_ONCE = 4
"""Jobs of one part: few, so that tests see several."""


class InMemoryDueJobs:
    """The index of a World (port DueJobs). It never lags."""

    def __init__(self, world: World) -> None:
        self._world = world

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        found = [job for job in self._of(shard) if (job.due_at_epoch_ms or 0) <= until_ms]
        oldest_first = sorted(found, key=lambda job: job.due_at_epoch_ms or 0)
        return [_due_of(job) for job in oldest_first[:limit]]

    def counted(
        self,
        shard: str,
        *,
        before: Mapping[tuple[str, str], int],
        besides_tenants: Collection[str] = (),
        besides_models: Collection[str] = (),
    ) -> Iterator[tuple[int, list[IndexedJob]]]:
        jobs = [_indexed_of(job) for job in self._of(shard)]
        for start in range(0, len(jobs), COUNTED_AT_ONCE):
            part = jobs[start : start + COUNTED_AT_ONCE]
            yield (
                len(part),
                [
                    job
                    for job in part
                    if job.status == JobStatus.PROCESSING
                    or (
                        job.enqueued_at_epoch_ms < before.get((job.status, job.lane), 0)
                        and job.tenant not in besides_tenants
                        and job.model not in besides_models
                    )
                ],
            )

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        for job in sorted(self._of(shard), key=lambda job: job.due_at_epoch_ms or 0):
            yield _indexed_of(job)

    def postpone(self, job: Job, *, due_at_ms: int, sent: bool = True) -> bool:
        resends = job.resends + int(sent)
        with self._world.lock:
            current = self._world.jobs.get((job.tenant, job.job_id))
            if current is None or current.status is not job.status:
                return False
            if (current.due_at_epoch_ms, current.resends) == (due_at_ms, resends):
                return True
            if current.due_at_epoch_ms != job.due_at_epoch_ms:
                return False
            self._world.jobs[job.tenant, job.job_id] = replace(
                current, due_at_epoch_ms=due_at_ms, resends=resends
            )
            return True

    def _of(self, shard: str) -> list[Job]:
        with self._world.lock:
            return [
                job
                for job in self._world.jobs.values()
                if job.due_shard == shard and job.due_at_epoch_ms is not None
            ]


def _indexed_of(job: Job) -> IndexedJob:
    return IndexedJob(
        status=job.status,
        lane=job.lane,
        enqueued_at_epoch_ms=job.enqueued_at_epoch_ms,
        tenant=job.tenant,
        job_id=job.job_id,
        model=job.model,
        parked=job.parked,
        slot_at_epoch_ms=job.slot_at_epoch_ms,
        not_before_epoch_ms=job.not_before_epoch_ms,
    )


def _due_of(job: Job) -> DueJob:
    return DueJob(
        tenant=job.tenant,
        job_id=job.job_id,
        status=job.status,
        due_at_epoch_ms=job.due_at_epoch_ms or 0,
    )


class InMemoryCache:
    """The entries of a World (port ResultCache). Expired ones stay, as in DynamoDB."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.reads = 0

    def read(self, cache_key: str) -> CacheEntry | None:
        return self.look(cache_key).entry

    def look(self, cache_key: str) -> Found:
        with self._world.lock:
            self.reads += 1
            entry = self._world.entries.get(cache_key)
            return Found(entry, None if entry else self._world.tombstones.get(cache_key))

    def invalidate(self, cache_key: str, *, now_ms: int) -> bool:
        with self._world.lock:
            self._world.tombstones[cache_key] = now_ms
            return self._world.entries.pop(cache_key, None) is not None


class FakeFlags:
    """Flags (port Flags): as they are by default, but for `switched`."""

    def __init__(self, **switched: bool) -> None:
        """By feature, for everybody."""
        self.switched: dict[str, bool] = switched
        self.exceptions: dict[tuple[str, str], bool] = {}
        """By feature, and `model:NAME` or `tenant:NAME`."""

    def on(self, feature: str, *, model: str = "", tenant: str = "") -> bool:
        for subject in (f"model:{model}", f"tenant:{tenant}"):
            if (feature, subject) in self.exceptions:
                return self.exceptions[feature, subject]
        return self.switched.get(feature, FEATURES[feature])


class InMemoryState:
    """The state of a World (port StateStore). Its copy is never old."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self) -> ServiceState:
        with self._world.lock:
            return ServiceState(
                dict(self._world.epochs),
                self._world.degraded_since_epoch_ms,
                frozenset(self._world.paused_tenants),
                frozenset(self._world.paused_lanes),
                self._world.degraded_told_epoch_ms,
            )

    def invalidate(self, subject: str, *, now_ms: int) -> int:
        with self._world.lock:
            epoch = max(now_ms, self._world.epochs.get(subject, 0) + 1)
            self._world.epochs[subject] = epoch
            return epoch

    def set_degraded(self, since_ms: int | None) -> bool:
        with self._world.lock:
            if (since_ms is None) is (self._world.degraded_since_epoch_ms is None):
                return False
            self._world.degraded_since_epoch_ms = since_ms
            self._world.degraded_told_epoch_ms = None
            return True

    def tell_degraded(self, since_ms: int, from_ms: int, until_ms: int) -> bool:
        with self._world.lock:
            told_ms = self._world.degraded_told_epoch_ms
            if self._world.degraded_since_epoch_ms != since_ms or (told_ms or 0) > from_ms:
                return False
            self._world.degraded_told_epoch_ms = until_ms
            return True

    def pause_tenant(self, tenant: str) -> bool:
        with self._world.lock:
            paused = tenant in self._world.paused_tenants
            self._world.paused_tenants.add(tenant)
            return not paused

    def resume_tenant(self, tenant: str) -> bool:
        with self._world.lock:
            paused = tenant in self._world.paused_tenants
            self._world.paused_tenants.discard(tenant)
            return paused

    def pause_lane(self, lane: str) -> bool:
        with self._world.lock:
            paused = lane in self._world.paused_lanes
            self._world.paused_lanes.add(lane)
            return not paused

    def resume_lane(self, lane: str) -> bool:
        with self._world.lock:
            paused = lane in self._world.paused_lanes
            self._world.paused_lanes.discard(lane)
            return paused


class InMemoryBacklogs:
    """The picture of a World (port Backlogs). Nothing is copied."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.writes = 0

    def read(self) -> Backlog:
        return self._world.backlog

    def write(self, backlog: Backlog) -> None:
        with self._world.lock:
            self.writes += 1
            ahead_ms = self._world.backlog.measured_at_epoch_ms - backlog.measured_at_epoch_ms
            if not 0 <= ahead_ms <= TELLS_FOR_MS:
                self._world.backlog = backlog


class InMemoryRates:
    """The minutes of a World (port TenantRates)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def take(self, tenant: str, limit: int, *, now_ms: int) -> RateLeft:
        minute, into_ms = divmod(now_ms, 60_000)
        resets_in_s = -(-(60_000 - into_ms) // 1000)
        with self._world.lock:
            allowed = self._world.minutes[tenant, minute] < limit
            self._world.minutes[tenant, minute] += int(allowed)
            left = limit - self._world.minutes[tenant, minute]
        return RateLeft(limit, left, resets_in_s, allowed=allowed)


class InMemoryOwedAnswers:
    """The answers that a World owes (port OwedAnswers)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find(self, tenant: str, digest: str, *, now_ms: int) -> str | None:
        with self._world.lock:
            job_id, until_ms = self._world.owed.get((tenant, digest), (None, 0))
        return job_id if until_ms >= now_ms else None

    def owe(self, tenant: str, digest: str, job_id: str, *, until_ms: int) -> None:
        with self._world.lock:
            self._world.owed[tenant, digest] = (job_id, until_ms)

    def forget(self, tenant: str, digest: str, job_id: str) -> None:
        with self._world.lock:
            if self._world.owed.get((tenant, digest), ("", 0))[0] == job_id:
                del self._world.owed[tenant, digest]


class InMemoryEndpoints:
    """The webhook endpoints of a World (port WebhookEndpoints)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, tenant: str) -> Endpoints:
        with self._world.lock:
            return self._world.endpoints.get(tenant, NO_ENDPOINTS)

    def change(self, tenant: str, change: Callable[[Endpoints], Endpoints]) -> Endpoints:
        with self._world.lock:
            after = change(self.read(tenant))
            self._world.endpoints[tenant] = after
            return after


class InMemoryDeliveries:
    """What became of the webhooks of a World (port DeliveryLog)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def record(self, delivery: Delivery, attempt: Attempt) -> None:
        key = (delivery.tenant, delivery.endpoint_id, delivery.delivery_id)
        with self._world.lock:
            known = self._world.deliveries.get(key) or DeliveryRecord(delivery)
            last_ms = known.last_attempt_at_epoch_ms
            if last_ms is not None and last_ms >= attempt.at_epoch_ms:
                return
            known = replace(
                known, status=attempt.status, last_attempt_at_epoch_ms=attempt.at_epoch_ms
            )
            self._world.deliveries[key] = known
            if not attempt.made:
                return
            self._world.deliveries[key] = replace(
                known,
                attempts=known.attempts + 1,
                http_status=attempt.http_status,
                error=attempt.error,
                first_attempt_at_epoch_ms=known.first_attempt_at_epoch_ms or attempt.at_epoch_ms,
            )

    def get(
        self, tenant: str, endpoint_id: str, delivery_id: str, *, now_ms: int
    ) -> DeliveryRecord | None:
        found = self._known(tenant, endpoint_id, now_ms)
        return next((one for one in found if one.delivery.delivery_id == delivery_id), None)

    def list(
        self, tenant: str, endpoint_id: str, *, now_ms: int, limit: int, before: str | None
    ) -> list[DeliveryRecord]:
        found = self._known(tenant, endpoint_id, now_ms)
        later = [one for one in found if before is None or one.delivery.delivery_id < before]
        return later[:limit]

    def _known(self, tenant: str, endpoint_id: str, now_ms: int) -> Sequence[DeliveryRecord]:
        with self._world.lock:
            found = [
                record
                for (owner, endpoint, delivery_id), record in self._world.deliveries.items()
                if (owner, endpoint) == (tenant, endpoint_id)
                and delivery_id >= oldest_delivery_id(now_ms)
            ]
        return sorted(found, key=lambda one: one.delivery.delivery_id, reverse=True)


class InMemoryAudit:
    """The audit records of a World (port AuditLog)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add(self, record: AuditRecord) -> None:
        with self._world.lock:
            if record not in self._world.audit:
                self._world.audit.append(record)

    def list(
        self, *, since_ms: int, until_ms: int, limit: int, matching: Mapping[str, str] | None = None
    ) -> list[AuditRecord]:
        wanted = (matching or {}).items()
        with self._world.lock:
            found = [
                one
                for one in self._world.audit
                if since_ms <= one.at_epoch_ms <= until_ms
                and all(getattr(one, name) == value for name, value in wanted)
            ]
        return sorted(found, key=lambda one: one.at_epoch_ms, reverse=True)[:limit]


class InMemoryUsage:
    """The usage of a World (port UsageReader). It is never old."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, tenant: str, first_day: str, last_day: str) -> list[UsageRow]:
        with self._world.lock:
            return [
                row
                for (owner, day, _), row in self._world.usage.items()
                if owner == tenant and first_day <= day <= last_day
            ]


class InMemoryBatches:
    """The batches of a World (port Batches)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add(self, batch: Batch) -> None:
        with self._world.lock:
            self._world.batches.setdefault((batch.tenant, batch.batch_id), batch)

    def get(self, tenant: str, batch_id: str) -> Batch | None:
        with self._world.lock:
            return self._world.batches.get((tenant, batch_id))


class InMemoryGates:
    """The gates and rooms of a World (port Gates). A gate is never sharded."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.takes = 0

    def take(
        self,
        key: str,
        limits: Limits,
        *,
        tokens: int,
        now_ms: int,
        probe_ms: int,
        furthest_ms: int,
    ) -> Ticket | Shut:
        with self._world.lock:
            gate = self._of(key)
            if shut := (
                gate.shut(now_ms)
                or gate.probe_waits(limits, tokens, now_ms)
                or gate.far(limits, tokens, now_ms, furthest_ms)
            ):
                return shut
            self.takes += 1
            slot_us, after = gate.taken(limits, tokens, now_ms * 1000)
            self._world.gates[key] = replace(
                after,
                closed_until_ms=now_ms + probe_ms if gate.probing else gate.closed_until_ms,
            )
            return Ticket(-(-slot_us // 1000), gate.version)

    def look(self, key: str, *, now_ms: int) -> Gate:  # noqa: ARG002 - nothing is copied
        return self._of(key)

    def still_open(self, key: str, ticket: Ticket, *, now_ms: int) -> bool:
        gate = self._of(key)
        return gate.version == ticket.version and gate.shut(now_ms) is None

    def settle(self, key: str, limits: Limits, ticket: Ticket, *, tokens: int, now_ms: int) -> None:
        with self._world.lock:
            gate = self._of(key)
            back_us = gate.back_us(limits, ticket, tokens, now_ms)
            far = gate.next_token_at_us >= (now_ms + FURTHEST_SLOT_MS) * 1000
            if gate.version != ticket.version or (back_us < 0 and far):
                return
            self._world.gates[key] = replace(gate, next_token_at_us=gate.next_token_at_us - back_us)

    def close(
        self,
        key: str,
        limits: Limits,
        ticket: Ticket,
        *,
        now_ms: int,
        until_ms: int,
    ) -> bool:
        with self._world.lock:
            gate = self._of(key)
            if gate.version == ticket.version:
                self._world.gates[key] = gate.closed(limits, now_ms=now_ms, until_ms=until_ms)
                return True
            self._world.gates[key] = replace(
                gate, closed_until_ms=max(gate.closed_until_ms, until_ms)
            )
            return False

    def failed(self, key: str, limits: Limits, ticket: Ticket, *, now_ms: int) -> None:
        with self._world.lock:
            gate = self._of(key)
            if gate.version == ticket.version:
                gate = replace(gate, failures=gate.failures + 1)
                self._world.gates[key] = gate.down(limits, now_ms) or gate

    def worked(self, key: str, ticket: Ticket) -> None:
        with self._world.lock:
            gate = self._of(key)
            if gate.version == ticket.version and (gate.failures or gate.probing):
                self._world.gates[key] = gate.up()

    def pause(self, key: str, limits: Limits) -> bool:  # noqa: ARG002
        with self._world.lock:
            gate = self._of(key)
            if not gate.paused:
                self._world.gates[key] = gate.pause()
            return not gate.paused

    def resume(self, key: str, limits: Limits, *, now_ms: int) -> bool:
        with self._world.lock:
            gate = self._of(key)
            if gate.paused:
                self._world.gates[key] = gate.resumed(limits, now_ms)
            return gate.paused

    def enter(self, rooms: Sequence[Room], token: str, *, now_ms: int, until_ms: int) -> bool:
        with self._world.lock:
            for room in rooms:
                inside = self._world.rooms.setdefault((room.vendor, room.name), {})
                for one in [one for one, left_ms in inside.items() if left_ms <= now_ms]:
                    del inside[one]
                if len(inside) >= room.places and token not in inside:
                    return False
            for room in rooms:
                self._world.rooms[room.vendor, room.name][token] = until_ms
            return True

    def leave(self, rooms: Sequence[Room], token: str) -> None:
        with self._world.lock:
            for room in rooms:
                self._world.rooms.get((room.vendor, room.name), {}).pop(token, None)

    def _of(self, key: str) -> Gate:
        with self._world.lock:
            return self._world.gates.get(key, Gate())


class InMemoryLatencies:
    """The samples of a World (port Latencies). No copy is kept."""

    def __init__(self, world: World, *, rand: Callable[[], float] | None = None) -> None:
        self._world = world
        self._rand = rand or random.Random(1).random  # noqa: S311 - the same in each run

    def median_ms(
        self, key: str, *, now_ms: int, least: int = timeouts.LEAST_SAMPLES
    ) -> int | None:
        with self._world.lock:
            return timeouts.median_ms(self._ring(key).values(), now_ms, least=least)

    def add(self, key: str, latency_ms: int, *, now_ms: int, surely: bool = False) -> None:
        with self._world.lock:
            ring = self._ring(key)
            if surely or timeouts.wanted(ring.values(), now_ms, self._rand()):
                ring[int(self._rand() * timeouts.RING)] = Sample(now_ms, latency_ms)

    def _ring(self, key: str) -> dict[int, Sample]:
        return self._world.latencies.setdefault(key, {})


class InMemoryPayloads:
    """The objects of a World (port PayloadStore)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def put(self, name: str, data: bytes) -> None:
        with self._world.lock:
            self._world.payloads[name] = data

    def get(self, name: str) -> bytes:
        with self._world.lock:
            return self._world.payloads[name]

    def size(self, name: str) -> int:
        return len(self.get(name))

    def url(self, name: str) -> str:
        return f"https://payloads.invalid/{name}"


class InMemoryPartnerKeys:
    """The API keys of a World (port PartnerKeys)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find(self, key_hash: str) -> PartnerKey | None:
        with self._world.lock:
            return self._world.keys.get(key_hash)

    def add(self, key: PartnerKey) -> None:
        with self._world.lock:
            self._world.keys.setdefault(key.key_hash, key)

    def all(self) -> list[PartnerKey]:
        with self._world.lock:
            return sorted(
                self._world.keys.values(), key=lambda key: (key.tenant, key.created_at_epoch_s)
            )

    def replace(self, old: PartnerKey, new: PartnerKey, *, ends_at_epoch_s: int) -> bool:
        with self._world.lock:
            stored = self._world.keys.get(old.key_hash)
            if (
                stored is None
                or new.key_hash in self._world.keys
                or stored.expires_at_epoch_s != old.expires_at_epoch_s
                or stored.revoked_at_epoch_s is not None
                or stored.replaced_by is not None
            ):
                return False
            self.add(new)
            self._world.keys[old.key_hash] = stored._replace(
                expires_at_epoch_s=ends_at_epoch_s, replaced_by=new.key_id
            )
            return True

    def revoke(self, key_id: str, *, now_s: int) -> PartnerKey | None:
        with self._world.lock:
            for key in self.all():
                if key.key_id == key_id:
                    if key.revoked_at_epoch_s is None:
                        key = key._replace(revoked_at_epoch_s=now_s)  # noqa: PLW2901
                        self._world.keys[key.key_hash] = key
                    return key
            return None

    def note_use(self, key_hash: str, *, now_s: int) -> None:
        with self._world.lock:
            key = self._world.keys.get(key_hash)
            if key is None or not key.usable(now_s):
                return
            used_s = key.last_used_at_epoch_s
            if used_s is None or used_s <= now_s - USE_NOTED_EVERY_S:
                self._world.keys[key_hash] = key._replace(last_used_at_epoch_s=now_s)


# ------------------------------------------------------------------------------------ the rest


class InMemoryQueue:
    """Remembers what was sent and given back (port JobQueue)."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, str, str]] = []
        """Lane, tenant and job id of each message that was taken."""
        self.gives_back: list[tuple[str, str, float]] = []
        """Lane, receipt and delay in seconds."""
        self.delays: list[int] = []
        """Seconds of each of `sends`."""
        self.backlogs: dict[str, int] = {}
        """What `backlog` tells of a lane."""
        self.broken = False
        """Sends fail, and nobody knows what is in a lane."""
        self.refused: list[tuple[str, str, str]] = []
        """The sends that failed."""

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        message = (job.lane, job.tenant, job.job_id)
        (self.refused if self.broken else self.sends).append(message)
        if not self.broken:
            self.delays.append(delay_s)
        return not self.broken

    def backlog(self, lane: str) -> int:
        if self.broken:
            raise StoreBusyError("The lane can't be measured.", retry_after_s=1)
        return self.backlogs.get(lane, 0)

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        self.gives_back.append((lane, receipt, delay_s))


class FakeVendors:
    """Answers as it was told, in that order, and then with `default` (port VendorClient).

    A turn that is an error is raised; one that is a function is called with the call, in the middle
    of which a test can let time pass or somebody else come in.
    """

    def __init__(
        self, *script: VendorAnswer | VendorError | Callable[[VendorCall], VendorAnswer]
    ) -> None:
        self.script = list(script)
        self.default: VendorAnswer | VendorError = VendorAnswer(
            text="a good answer",
            finish_reason="stop",
            input_tokens=10,
            output_tokens=20,
            latency_ms=300,
            vendor_request_id="req_vendor_1",
        )
        self.calls: list[VendorCall] = []
        self.prepared: list[Vendor] = []
        self.unprepared: NotCalledError | None = None
        """Raised by `prepare`."""
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """How many calls were made."""
        return len(self.calls)

    @property
    def per_key(self) -> Counter[str]:
        """How many calls were made with each idempotency key."""
        return Counter(call.idempotency_key for call in self.calls)

    def prepare(self, vendor: Vendor) -> None:
        if self.unprepared is not None:
            raise self.unprepared
        self.prepared.append(vendor)

    def call(self, call: VendorCall) -> VendorAnswer:
        with self._lock:
            self.calls.append(call)
            turn = self.script.pop(0) if self.script else self.default
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, VendorAnswer) else turn(call)


class RecordingTelemetry:
    """Remembers what it was told (port Telemetry), and refuses what the real one would trip on."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None, dict[str, str | int | bool]]] = []
        """Name, job id and fields of each."""
        self.spans: list[tuple[str, str]] = []
        """Name and job id of each."""
        self.jobs: list[str] = []
        """The job ids that were talked about."""

    @property
    def names(self) -> list[str]:
        """The events' names, in order."""
        return [name for name, _, _ in self.events]

    def about(self, job: Job) -> None:
        self.jobs.append(job.job_id)

    def event(self, name: str, job: Job | None = None, **fields: str | int | bool) -> None:
        assert name in EVENTS, f"{name} is not in sluiceway.telemetry.EVENTS"
        assert all(isinstance(value, str | int) for value in fields.values()), fields
        self.events.append((name, job.job_id if job else None, fields))

    @contextmanager
    def span(self, name: str, job: Job) -> Iterator[None]:
        self.spans.append((name, job.job_id))
        yield


class InMemoryIdempotency(BasePersistenceLayer):
    """What Powertools keeps of requests with an Idempotency-Key."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__()  # type: ignore[no-untyped-call]

    def _get_record(self, idempotency_key: str) -> DataRecord:
        with self._world.lock:
            if idempotency_key not in self._world.idempotency:
                raise IdempotencyItemNotFoundError
            return self._world.idempotency[idempotency_key]

    def _put_record(self, data_record: DataRecord) -> None:
        with self._world.lock:
            there = self._world.idempotency.get(data_record.idempotency_key)
            if there is not None and not there.is_expired:
                self._validate_payload(data_payload=data_record, stored_data_record=there)
                raise IdempotencyItemAlreadyExistsError(old_data_record=there)
            self._world.idempotency[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord) -> None:
        with self._world.lock:
            self._world.idempotency[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record: DataRecord) -> None:
        with self._world.lock:
            self._world.idempotency.pop(data_record.idempotency_key, None)
