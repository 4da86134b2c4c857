"""What the use cases need from the outside, as they see it.

A store's verbs are the transitions of the protocol. Each is one atomic write, safe to repeat: an
adapter that loses a reply and finds its own write on the second try reports success.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # the authorizer needs none of it, nor pydantic
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sluiceway.domain.address import Target
    from sluiceway.domain.backlog import Backlog
    from sluiceway.domain.batch import Batch
    from sluiceway.domain.catalogue import Model, Vendor
    from sluiceway.domain.endpoint import Endpoints
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.gate import Gate, Limits, Room, Shut
    from sluiceway.domain.job import Job, JobStatus
    from sluiceway.domain.lease import Lease
    from sluiceway.domain.ticket import Ticket
    from sluiceway.domain.usage import UsageRow
    from sluiceway.domain.webhook import Attempt, Delivery, DeliveryRecord

# ------------------------------------------------------------------------------------ jobs

K = TypeVar("K", bound=type)


def _own_kind(kind: K) -> K:
    """Lets a NamedTuple equal none of another kind: what came of a call is told by the kind."""
    tuple_kind: Any = kind
    tuple_kind.__eq__ = lambda one, other: type(one) is type(other) and tuple.__eq__(one, other)
    tuple_kind.__ne__ = lambda one, other: not tuple_kind.__eq__(one, other)
    return kind


@_own_kind
class Submitted(NamedTuple):
    """The job, its claim and its place in the counter were written."""

    job: Job


@_own_kind
class Claimed(NamedTuple):
    """Another job holds the claim for this work."""

    job_id: str


@_own_kind
class CapReached(NamedTuple):
    """The tenant has as many open jobs as it may have."""


class DayBudget(NamedTuple):
    """What a submit counts in of its tenant's day (UTC), as the most that there may be; 0: not."""

    jobs: int = 0
    cost_nanos: int = 0
    """1e-9 of the unit of the catalogue's prices."""
    bypasses: int = 0
    """Jobs past the cache."""

    def spent(self, day: Mapping[str, int], cost_nanos: int) -> BudgetSpent | None:
        """The first that has no room for a job of this cost after what is in `day`, by name."""
        wanted = {"jobs": 1, "cost_nanos": cost_nanos, "bypasses": 1}
        for name, more in wanted.items():
            most = getattr(self, name)
            if most and day.get(name, 0) + more > most:
                return BudgetSpent(name)
        return None


@_own_kind
class BudgetSpent(NamedTuple):
    """The tenant's day (UTC) has no room for the job; `budget`: a member of DayBudget."""

    budget: str


@_own_kind
class Started(NamedTuple):
    """The job is processing under this lease."""

    job: Job
    lease: Lease


@_own_kind
class LeaseHeld(NamedTuple):
    """Somebody works on the cache key; `by_this_job`: on this very job."""

    by_this_job: bool


@_own_kind
class Moved(NamedTuple):
    """The job is no longer as it was read; `job` is what it is now, None when it is gone."""

    job: Job | None


@_own_kind
class Applied(NamedTuple):
    """The transition was written."""

    job: Job


class JobStore(Protocol):
    """Jobs with their claims, leases and counters."""

    def get(self, tenant: str, job_id: str) -> Job | None:
        """The job, read consistently."""
        ...

    def submit(
        self,
        job: Job,
        *,
        shard_caps: Sequence[int],
        replacing: str | None = None,
        budget: DayBudget | None = None,
    ) -> Submitted | Claimed | CapReached | BudgetSpent:
        """Writes job, claim and counter together.

        The claim must be absent, ended, or that of the job `replacing`, which has ended, or is open
        and no answer to this one: it goes on without its claim. The written job's
        `counter_shard` is the one with room. With `budget`, the job and its `cost_reserved_nanos`
        are counted in the tenant's day, too.
        """
        ...

    def holder(self, job: Job) -> str | None:
        """The id of the job that has the claim of this one's work; None when nobody has it."""
        ...

    def queue_refresh(self, job: Job, entry: CacheEntry) -> bool:
        """Writes a refresh job with its claim, and marks the entry, which must be as it was read.

        False: somebody else's refresh is under way or has just ended.
        """
        ...

    def start(
        self,
        job: Job,
        *,
        token: str,
        lease_ms: int,
        now_ms: int,
        started: Callable[[int], Job],
    ) -> Started | LeaseHeld | Moved:
        """Takes the lease of the job's cache key and writes `started(fence)` together."""
        ...

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
        """Writes a transition, if the job is still as `old` was read.

        Moved, too, when another store made this very transition: one of them is told Applied.
        With `lease`, it must still be held, and is released. With `unless_held_at_ms`, nobody may
        hold the job's lease key at that time: what a worker is busy with isn't ended behind its
        back. With `entry`, the result is cached in the same write, unless the key was invalidated
        after the job's creation.
        A transition to an end also closes the claim, if it is this job's, settles the counter and
        the day's cost, and counts in the tenant's usage.
        The failure of a refresh lets its entry cool down instead.
        When those can't be written until `give_up_at_ms`, the job is written without them and
        marked `unsettled`.
        """
        ...

    def renew(
        self,
        job: Job,
        lease: Lease,
        *,
        ends_at_ms: int,
        gate: tuple[str, Ticket, int] | None = None,
    ) -> Lease | Shut | None:
        """Moves the lease's end, if it is still held and the job processing under its fence.

        None: it was lost, or the job was cancelled. With `gate`, its key, a slot of it and the
        time, it must be open and as it was when the slot was taken, too: Shut when it isn't.
        """
        ...

    def redrive(self, old: Job, new: Job) -> Applied | Moved:
        """Writes `redriven`: the job is in flight again, and in the day's cost, whatever the caps.

        It takes its claim back, where nobody has it meanwhile. Of two at once one is told Applied.
        Raises ValueError for a refresh, which is renewed by its entry's readers.
        """
        ...

    def settle(self, job: Job) -> None:
        """Closes claim, counter, cost and usage of a job that ended `unsettled`.

        Again changes nothing.
        """
        ...

    def release(self, lease: Lease) -> None:
        """Ends the lease, if it is still held: for a worker whose job moved on without it."""
        ...

    def move_lane(self, job: Job, lane: str) -> bool:
        """Moves an open job to `lane`; False when it isn't open in another one now.

        False, too, when this was written and the reply was lost: then no message follows the job,
        and the one that it has in the other lane runs it.
        """
        ...

    def ask_again(self, job: Job, *, asked_after_ms: int) -> Applied | Moved:
        """Raises an open job's `asked_after_epoch_ms`, unless it is as high; before any start only.

        Who has read the job before finds that it moved. Moved: it has begun, or ended.
        """
        ...

    def add_callback(self, job: Job, url: str) -> Applied | Moved:
        """Adds an address to an open job's `callback_urls`; one that is there stays there once.

        Moved: the job has ended, or has as many as it may have (`job.MAX_CALLBACKS`).
        """
        ...

    def drop_callback(self, tenant: str, job_id: str, url: str) -> None:
        """Takes an address away from a job, whatever its status; again changes nothing."""
        ...


class JobPage(NamedTuple):
    """Some jobs of a tenant, newest first."""

    jobs: Sequence[Job]
    has_more: bool
    last_id: str | None
    """Behind which the next page begins; None when this one is empty and the last."""


class JobLists(Protocol):
    """A tenant's jobs, many at once; read consistently. A damaged row is left out."""

    def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        status: JobStatus | None = None,
        model: str | None = None,
    ) -> JobPage:
        """The jobs older than `after`, newest first.

        A page that is filtered may have fewer than `limit` jobs, or none, and still have more
        behind it: 1,000 rows are read at most.
        """
        ...

    def get(self, tenant: str, job_ids: Sequence[str]) -> Mapping[str, Job]:
        """Those of the jobs that there are, by id; up to 100 ids.

        Raises StoreBusyError when not all could be read.
        """
        ...


class DueJob(NamedTuple):
    """A row of the index on `due_at_epoch_ms`: what it said a moment ago."""

    tenant: str
    job_id: str
    status: str
    due_at_epoch_ms: int


class IndexedJob(NamedTuple):
    """As much of a row of that index as is counted."""

    status: str
    lane: str
    enqueued_at_epoch_ms: int
    tenant: str
    job_id: str
    model: str
    parked: bool = False
    slot_at_epoch_ms: int | None = None
    not_before_epoch_ms: int | None = None


class DueJobs(Protocol):
    """The jobs that somebody has to look at, for the sweeper."""

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        """The oldest due jobs of a shard. Eventually consistent."""
        ...

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        """Every job of a shard, the soonest due first; read as far as one goes through it."""
        ...

    def counted(
        self,
        shard: str,
        *,
        before: Mapping[tuple[str, str], int],
        besides_tenants: Collection[str] = (),
        besides_models: Collection[str] = (),
    ) -> Iterator[tuple[int, list[IndexedJob]]]:
        """How many jobs a shard has, part by part, and those of each part that must be known.

        These are the jobs at work; and who was enqueued before the time (epoch ms) that `before`
        has for its status and lane, but for those of these tenants and models; of more than a
        hundred of these some may be there all the same. The others cost this process nothing.
        """
        ...

    def postpone(self, job: Job, *, due_at_ms: int, sent: bool = True) -> bool:
        """Moves `due_at_epoch_ms`, if status and `due_at_epoch_ms` are as read.

        `sent`: a message will follow, so `resends` grows.

        True, too, when this very move was made before and its reply was lost.
        """
        ...


class Found(NamedTuple):
    """What is under a key: an entry, a tombstone, or nothing."""

    entry: CacheEntry | None = None
    invalidated_at_epoch_ms: int | None = None


class ResultCache(Protocol):
    """Results that can be served again; written by `JobStore.apply`."""

    def read(self, cache_key: str) -> CacheEntry | None:
        """The entry, read consistently; it may be past its times."""
        ...

    def invalidate(self, cache_key: str, *, now_ms: int) -> bool:
        """Replaces the entry by a tombstone: a job created before can't write the key any more.

        False when there was no entry; the tombstone stands all the same.
        """
        ...

    def look(self, cache_key: str) -> Found:
        """As `read`, with the tombstone that may be there in its place."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What holds for all functions at this moment."""

    epochs: Mapping[str, int] = field(default_factory=dict)
    """By `model:NAME` or `tenant:NAME`: when it was invalidated last, epoch milliseconds."""
    degraded_since_epoch_ms: int | None = None
    paused_tenants: frozenset[str] = frozenset()
    """Whose jobs are not started."""
    paused_lanes: frozenset[str] = frozenset()
    """Whose jobs are not lent workers, and whose workers are not lent."""
    degraded_told_epoch_ms: int | None = None
    """Up to when the duration of degraded mode is counted; None: not at all."""

    @property
    def degraded(self) -> bool:
        """Whether expired entries are served, because the lanes are far behind."""
        return self.degraded_since_epoch_ms is not None

    def epoch(self, subject: str) -> int:
        """The epoch of a model or tenant; 0 when it was never invalidated."""
        return self.epochs.get(subject, 0)

    def epoch_for(self, model: str, tenant: str) -> int:
        """What was asked for by then answers no request of the tenant to the model."""
        return max(self.epoch(f"model:{model}"), self.epoch(f"tenant:{tenant}"))


class Flags(Protocol):
    """What operators have switched on or off (sluiceway.domain.flags)."""

    def on(self, feature: str, *, model: str = "", tenant: str = "") -> bool:
        """Whether the feature is on for this model and tenant."""
        ...


class StateStore(Protocol):
    """The one row that every process keeps a copy of."""

    def read(self) -> ServiceState:
        """The state, at most 5 s old."""
        ...

    def invalidate(self, subject: str, *, now_ms: int) -> int:
        """Raises the epoch of `model:NAME` or `tenant:NAME`; gives the new one."""
        ...

    def set_degraded(self, since_ms: int | None) -> bool:
        """Begins degraded mode, or ends it with None; False when somebody else did."""
        ...

    def tell_degraded(self, since_ms: int, from_ms: int, until_ms: int) -> bool:
        """Takes this part of the degraded mode that began at `since_ms`, to count it.

        False when it is over, or somebody else took what comes after `from_ms`.
        """
        ...

    def pause_tenant(self, tenant: str) -> bool:
        """Lets the tenant's jobs wait; False when they do already."""
        ...

    def resume_tenant(self, tenant: str) -> bool:
        """Lets them start again; False when they weren't paused."""
        ...

    def pause_lane(self, lane: str) -> bool:
        """Ends the lending to and from the lane; False when it has ended already."""
        ...

    def resume_lane(self, lane: str) -> bool:
        """Lets it be again; False when the lane wasn't paused."""
        ...


class Backlogs(Protocol):
    """The picture of what waits and runs, which the sweeper paints."""

    def read(self) -> Backlog:
        """The picture, from a copy of 2 s at most."""
        ...

    def write(self, backlog: Backlog) -> None:
        """Replaces the picture, unless a later one is there."""
        ...


class AuditRecord(NamedTuple):
    """Who did what when. Never changed, kept for 400 days."""

    at_epoch_ms: int
    actor: str
    """`key:<key id>`, `aws:<ARN>`, `user:<login>` or `event:<event id>`."""
    action: str
    subject: str
    request_id: str = ""


class AuditLog(Protocol):
    """What operators did."""

    def add(self, record: AuditRecord) -> None:
        """Appends; the same record again changes nothing."""
        ...

    def list(
        self, *, since_ms: int, until_ms: int, limit: int, matching: Mapping[str, str] | None = None
    ) -> list[AuditRecord]:
        """The records of a time, both ends included, newest first.

        `matching`: only those with these values of `actor`, `action` and `subject`.
        """
        ...


class UsageReader(Protocol):
    """What tenants' jobs came to; written by the transitions of `JobStore` to an end."""

    def read(self, tenant: str, first_day: str, last_day: str) -> list[UsageRow]:
        """One row for each day and model with ended jobs, in any order; both days belong to it.

        Days are `YYYY-MM-DD`. What was written a moment ago may be missing.
        Raises DamagedRowError for what isn't a number.
        """
        ...


class Batches(Protocol):
    """What the requests for many jobs were told of them."""

    def add(self, batch: Batch) -> None:
        """Writes a batch, whose id is new; again changes nothing."""
        ...

    def get(self, tenant: str, batch_id: str) -> Batch | None:
        """The batch, read consistently; it may be past its time."""
        ...


class Gates(Protocol):
    """Who may call a vendor's model now; shared by all workers."""

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
        """The next slot, for a call of about so many tokens. One write as a rule.

        None that is more than `furthest_ms` ahead.
        A vendor that was down is probed by one call at a time, each `probe_ms` long at most.
        """
        ...

    def look(self, key: str, *, now_ms: int) -> Gate:
        """The gate, from a copy of a second at most."""
        ...

    def still_open(self, key: str, ticket: Ticket, *, now_ms: int) -> bool:
        """Whether a kept slot counts: the gate is open, and as it was when it was taken."""
        ...

    def settle(self, key: str, limits: Limits, ticket: Ticket, *, tokens: int, now_ms: int) -> None:
        """Gives back `tokens` that were taken and not used; takes more when negative.

        A minute after the slot there is nothing to give back: their time has passed. Nor after the
        gate closed or paused: its lines began again. Whatever is taken, nobody waits for it longer
        than twice as long as for the furthest slot.
        """
        ...

    def close(
        self, key: str, limits: Limits, ticket: Ticket, *, now_ms: int, until_ms: int
    ) -> bool:
        """The vendor refused a call for its rate or load: nobody calls until then.

        The rate is halved, once for all calls whose slots were taken before.
        True when it was this call that closed it.
        """
        ...

    def failed(self, key: str, limits: Limits, ticket: Ticket, *, now_ms: int) -> None:
        """The vendor failed; after some failures in a row nobody calls it for a while."""
        ...

    def worked(self, key: str, ticket: Ticket) -> None:
        """The vendor answered; it is up."""
        ...

    def pause(self, key: str, limits: Limits) -> bool:
        """Nobody calls until `resume`, whatever the vendor says; slots that are out count no more.

        False when it was paused already.
        """
        ...

    def resume(self, key: str, limits: Limits, *, now_ms: int) -> bool:
        """Ends a pause. False when there was none.

        The line begins anew, without a burst. What the vendor closed stays closed.
        """
        ...

    def enter(self, rooms: Sequence[Room], token: str, *, now_ms: int, until_ms: int) -> bool:
        """Takes a place in each of the rooms, or in none; the dead leave at `until_ms`.

        They are one vendor's, or one lane's.
        """
        ...

    def leave(self, rooms: Sequence[Room], token: str) -> None:
        """Gives the places back. Again changes nothing."""
        ...


class Latencies(Protocol):
    """What calls of each vendor's model took lately; shared by all workers.

    Keys are those of `timeouts.key_of`.
    """

    def median_ms(self, key: str, *, now_ms: int, least: int = ...) -> int | None:
        """Of the recent samples, from a copy of half a minute at most; None: fewer than `least`.

        By default so many as a timeout needs (`timeouts.LEAST_SAMPLES`).
        """
        ...

    def add(self, key: str, latency_ms: int, *, now_ms: int, surely: bool = False) -> None:
        """A call took so long. Not each is written, unless `surely`, or few are known."""
        ...


class RateLeft(NamedTuple):
    """Where a tenant stands in its minute."""

    limit: int
    left: int
    resets_in_s: int
    """Whole seconds until the next minute, 1 at least."""
    allowed: bool


class TenantRates(Protocol):
    """How often a tenant submits what isn't answered from the cache."""

    def take(self, tenant: str, limit: int, *, now_ms: int) -> RateLeft:
        """Counts a request, if the minute has room for it; `limit` is 1 at least."""
        ...


class OwedAnswers(Protocol):
    """The jobs whose answers are owed: their requests were told to come again for them."""

    def find(self, tenant: str, digest: str, *, now_ms: int) -> str | None:
        """The job whose answer a request with this digest is owed, read consistently."""
        ...

    def owe(self, tenant: str, digest: str, job_id: str, *, until_ms: int) -> None:
        """Such a request gets this job's answer until then. A later call replaces it."""
        ...

    def forget(self, tenant: str, digest: str, job_id: str) -> None:
        """The next such request is new work, unless it is owed another job's answer by now."""
        ...


class PayloadStore(Protocol):
    """Bytes that are too big for a row."""

    def put(self, name: str, data: bytes) -> None:
        """Writes an object; the same name is only ever written with the same meaning.

        Raises StoreBusyError when that failed.
        """
        ...

    def get(self, name: str) -> bytes:
        """The object. Raises KeyError when there is none, StoreBusyError when it can't be had."""
        ...

    def size(self, name: str) -> int:
        """Bytes of the object. Raises as `get` does."""
        ...

    def url(self, name: str) -> str:
        """An address from which anybody who has it may fetch the object for a while."""
        ...


# ------------------------------------------------------------------------------------ queue


class JobQueue(Protocol):
    """The lanes."""

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        """Sends the job's message to its lane within 3 s; False when that failed.

        Nobody receives it before `delay_s`, 900 at most.
        """
        ...

    def backlog(self, lane: str) -> int:
        """About how many messages the lane holds, received and delayed ones included.

        Raises StoreBusyError when it can't be told.
        """
        ...

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        """Makes a received message visible again after `delay_s`."""
        ...


# ------------------------------------------------------------------------------------ vendor


class VendorAnswer(NamedTuple):
    """What a vendor said, in one form for all vendors.

    `finish_reason` is `stop`, `length` or `tool_calls`; `content` holds the answer when it is more
    than text.
    """

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    latency_ms: int
    vendor_request_id: str | None = None
    content: list[dict[str, object]] | None = None

    @property
    def cacheable(self) -> bool:
        """Whether the answer is whole: cut-off, empty and tool-call answers aren't reusable."""
        return self.finish_reason == "stop" and bool(self.text.strip())


class VendorCall(NamedTuple):
    """One call. `body` is the frozen `{"input", "options"}` of the submit."""

    vendor: Vendor
    model: Model
    body: bytes
    idempotency_key: str
    """The same for every attempt of one job, so that a vendor that knows it charges once."""
    timeout_s: float
    """Total, whatever arrives in between."""
    retry_after_max_s: float
    still_wanted: Callable[[], bool] = lambda: True
    """Asked during a long call; False aborts it. It may block, so a thread asks."""
    ask_every_s: float = 20.0


class VendorClient(Protocol):
    """The vendors."""

    def prepare(self, vendor: Vendor) -> None:
        """Makes a call's start quick: what the first call of a process needs takes a second.

        Raises NotCalledError when the vendor's key can't be had.
        """
        ...

    def call(self, call: VendorCall) -> VendorAnswer:
        """One request that the vendor works on, never more.

        One that it refuses for its key is made again at once, if there is a newer key.
        Raises VendorError, and CallAbortedError when the call is no longer wanted.
        """
        ...


# ------------------------------------------------------------------------------------ outside


class Event(Protocol):
    """What goes onto the event bus."""

    @property
    def source(self) -> str:
        """Whose event it is."""
        ...

    @property
    def detail_type(self) -> str:
        """What it is called."""
        ...

    @property
    def at_epoch_ms(self) -> int:
        """When it happened."""
        ...

    def detail(self) -> dict[str, Any]:
        """What it says."""
        ...


E = TypeVar("E", bound=Event)


class EventBus(Protocol):
    """Where operators and other programs hear of jobs, and of what was switched."""

    def put(self, events: Sequence[E]) -> list[E]:
        """Publishes events; gives those that were not taken, for a reason that may pass."""
        ...


class WebhookQueue(Protocol):
    """The webhooks that are to be delivered."""

    def send(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Queues webhooks; gives those that were not taken, for a reason that may pass."""
        ...

    def give_back(self, receipt: str, delay_s: float) -> None:
        """Makes a received message visible again after `delay_s`."""
        ...


class WebhookEndpoints(Protocol):
    """The addresses that tenants have registered, and the secrets of their callbacks."""

    def read(self, tenant: str) -> Endpoints:
        """All of the tenant's endpoints, read consistently; the callbacks are the first."""
        ...

    def change(self, tenant: str, change: Callable[[Endpoints], Endpoints]) -> Endpoints:
        """Makes the endpoints into what `change` makes of them; gives what they are then.

        It is called again when somebody else was quicker, and may raise: nothing is written then.
        Raises StoreBusyError when others were quicker again and again.
        """
        ...


class DeliveryLog(Protocol):
    """What became of each webhook, for 30 days from its event on."""

    def record(self, delivery: Delivery, attempt: Attempt) -> None:
        """Counts an attempt, and keeps what came of it. The same attempt again changes nothing.

        One that began before the last that is known isn't counted. One that wasn't made changes
        only the status and when it was given.
        """
        ...

    def get(
        self, tenant: str, endpoint_id: str, delivery_id: str, *, now_ms: int
    ) -> DeliveryRecord | None:
        """The delivery of this well-formed id, if it was tried and is still known."""
        ...

    def list(
        self, tenant: str, endpoint_id: str, *, now_ms: int, limit: int, before: str | None
    ) -> list[DeliveryRecord]:
        """An endpoint's deliveries by the time of their events, the newest first.

        `limit`: 101 at most. `before`: a delivery's id; only those after it in this order.
        """
        ...


class WebhookSecrets(Protocol):
    """What the keys that sign webhooks are derived from."""

    def master(self) -> bytes:
        """The service's master key. Raises WebhookError when it can't be read."""
        ...


class WebhookClient(Protocol):
    """The partners' servers."""

    def post(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> int:
        """One POST, total time `timeout_s`, redirects not followed; gives the HTTP status.

        Raises WebhookError when no reply came, or when the address may not be called.
        """
        ...


# ------------------------------------------------------------------------------------ keys


class PartnerKey(NamedTuple):
    """An API key as it is stored: everything but the key."""

    key_hash: str
    key_id: str
    tenant: str
    scopes: tuple[str, ...]
    created_at_epoch_s: int
    expires_at_epoch_s: int | None = None
    revoked_at_epoch_s: int | None = None
    lifetime_s: int | None = None
    """For how long it was made; its successor lives as long. None: until a date, or for ever."""
    replaced_by: str | None = None
    """The id of the key that a rotation made in its place."""
    last_used_at_epoch_s: int | None = None
    """When it opened the API; it may have done so again in the hour after."""

    def usable(self, now_s: float) -> bool:
        """Whether it opens the API now."""
        return self.revoked_at_epoch_s is None and (
            self.expires_at_epoch_s is None or now_s < self.expires_at_epoch_s
        )


class PartnerKeys(Protocol):
    """The API keys, found by their SHA-256."""

    def find(self, key_hash: str) -> PartnerKey | None:
        """The key of this hash, read consistently."""
        ...

    def add(self, key: PartnerKey) -> None:
        """Stores a new key."""
        ...

    def all(self) -> list[PartnerKey]:
        """Every key; there are few."""
        ...

    def replace(self, old: PartnerKey, new: PartnerKey, *, ends_at_epoch_s: int) -> bool:
        """Stores `new`, and lets `old` end at that time, both or neither.

        False, and nothing changes, unless `old` is as it was read: with the same end, and neither
        revoked nor replaced.
        """
        ...

    def revoke(self, key_id: str, *, now_s: int) -> PartnerKey | None:
        """Revokes the key; None when there is no such key. Again changes nothing."""
        ...

    def note_use(self, key_hash: str, *, now_s: int) -> None:
        """Writes that the key was used, unless that was written within USE_NOTED_EVERY_S.

        A key that opens nothing now is left as it is. One hasty try: StoreBusyError when it could
        not be written, for whatever reason.
        """
        ...


# ------------------------------------------------------------------------------------ world


class Clock(Protocol):
    """The time."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        ...


class Telemetry(Protocol):
    """Logs, metrics and traces. Nothing it is given may hold a prompt, a result or a key."""

    def about(self, job: Job) -> None:
        """What is said from here on, in this invocation, is about this job."""
        ...

    def event(self, name: str, job: Job | None = None, **fields: str | int | bool) -> None:
        """Something happened that operators count or look for; `name` is in EVENTS."""
        ...

    def span(self, name: str, job: Job) -> AbstractContextManager[None]:
        """A part of the trace that deserves its own line."""
        ...
