"""The job: its row, its states, and the transitions between them.

    queued ──> processing ──> completed
                 │   ^  └───> failed ──> dead_lettered ──> failed (discarded)
                 v   │           └────────────┴──> queued (redriven)
               retrying
    queued | retrying | processing ──> cancelled

A parked job is an open one with a `not_before_epoch_ms`, and without a message: the sweeper sends
it again then.

A transition takes the job as it was read and gives the job as it shall be written. The store writes
the difference, on the condition that nobody moved the job in between (`Job.version`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sluiceway.domain.ticket import Ticket
from sluiceway.domain.times import day_of

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.payload import Payload

MAX_RECEIVES = 10
"""After so many receives SQS moves a message to the dead-letter queue (template.yaml)."""

LANES = ("interactive", "batch")
LAST_ERRORS = 5
LAST_RETURN_RECEIVE = 6
"""From the next receive on, the message of an open job is never given back: it is parked instead.
So only crashes on receives 7 to 10 bring the message of an open job to the dead-letter queue."""

LONGEST_RETURN_S = 120.0
"""Longer waits are parked: a message that waits in a lane counts as backlog."""

CLAIM_OUTLIVES_DEADLINE_MS = 3_600_000
"""So that a claim never ends while its job is open, whatever the clocks say."""

ROW_OUTLIVES_DEADLINE_S = 22 * 24 * 3600
"""14 days in the dead-letter queue, 7 of a redriven job's new deadline, and one to spare."""

RESEND_AFTER_SUBMIT_MS = 120_000
FUNCTION_END_MARGIN_MS = 30_000
RESEND_AFTER_BACKOFF_MS = 120_000
DEAD_LETTER_MARK_AFTER_MS = 15 * 60_000
REDRIVE_AFTER_FAILURE_MS = 5_000
"""A message of a failed job is a redrive only when it was enqueued so much after the failure: by
then every send that was decided before has ended."""

SEND_STARTS_WITHIN_MS = 1_000
"""After the write that decided a send; one that can't is left to the next sweep. With the client's
timeouts every send ends within 3 s of its decision, and so before REDRIVE_AFTER_FAILURE_MS."""

LAST_BOUNCE_AFTER_FAILURE_MS = 10_000
"""A failed job's message goes to the dead-letter queue no earlier: its copies are in by then."""

RESEND_FIRST_MS = 120_000
RESEND_LONGEST_MS = 15 * 60_000
DUE_SHARDS = 8
"""The index on `due_at_epoch_ms` takes every write of an open job; a partition takes 1,000/s."""


class JobStatus(StrEnum):
    """Where a job stands; the partner sees these words."""

    QUEUED = "queued"
    PROCESSING = "processing"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"


OPEN = frozenset({JobStatus.QUEUED, JobStatus.PROCESSING, JobStatus.RETRYING})

MAX_URL_CHARACTERS = 2048
"""Of a callback."""

MAX_CALLBACKS = 10
"""Of one job: each duplicate of an open job may bring another."""


@dataclass(frozen=True, slots=True)
class JobError:
    """Why an attempt or a job failed. No text of prompt or result."""

    code: str
    message: str
    retryable: bool
    attempt: int
    at_epoch_ms: int
    error_class: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the Jobs table. Times are epoch milliseconds, durations milliseconds."""

    # Written at submit, never again
    tenant: str
    job_id: str
    model: str
    model_version: str
    job_key: str
    cache_key: str
    cache_scope: str
    request_id: str
    correlation_id: str
    created_at_epoch_ms: int
    input: Payload
    counter_shard: int
    deadline_s: int
    ttl_epoch_s: int
    trace_header: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    key_id: str | None = None
    """Which API key asked: the job row is the audit record of who triggered it."""
    cache_mode: str = "use"
    """`use`, `refresh` or `bypass`."""
    no_store: bool = False
    cache_ttl_s: int | None = None
    not_older_than_epoch_ms: int | None = None
    """An entry stored before doesn't answer this job."""
    refreshes_for: str | None = None
    """Of a refresh job: the tenant whose entry it is."""
    cost_reserved_nanos: int | None = None
    """What it was thought to cost, when its tenant has a budget of costs; unit as `cost_nanos`."""

    # Written at submit and by a redrive
    enqueued_at_epoch_ms: int = 0
    deadline_epoch_ms: int = 0
    redrives: int = 0

    revision: int = 0
    """Grows by one in each transition."""

    # Raised by a duplicate: by a forced refresh, and by one that is more urgent
    asked_after_epoch_ms: int | None = None
    """Nor does an entry answer this job whose vendor was asked by then."""
    lane: str = "interactive"

    # Written at submit, added to by a duplicate, taken away when an address says 410
    callback_urls: tuple[str, ...] = ()
    """Where the job's webhooks go, in alphabetical order. A part of no key and of no log."""

    # Each transition
    status: JobStatus = JobStatus.QUEUED
    due_at_epoch_ms: int | None = None
    """When somebody has to look at the job again if nobody moved it."""
    due_shard: str | None = None
    """Key of the sparse index; there as long as `due_at_epoch_ms` is."""
    resends: int = 0
    """How often the sweeper moved `due_at_epoch_ms` since the last transition."""

    # Each start
    attempts: int = 0
    attempts_total: int = 0
    receives: int = 0
    fence: int = 0
    """Fence of the lease under which the job was started last."""
    started_at_epoch_ms: int | None = None
    queue_wait_ms: int | None = None
    """From the enqueueing to the first start."""

    called_at_epoch_ms: int | None = None
    """Just before a call, where an unknown outcome must not be repeated; gone when it is known."""

    # A call without a result
    lost_nanos: int = 0
    """What this run's calls without a result cost, unit as `cost_nanos`; the reserve for each that
    may have cost something, and nobody knows how much. It is no part of `cost_nanos`."""

    # A retry, and parking
    not_before_epoch_ms: int | None = None
    parked: bool = False
    """Its message was acknowledged; the sweeper sends another."""

    # Parking at the gate
    slot_at_epoch_ms: int | None = None
    """The gate's slot that is kept for the job, with the gate's version and shard."""
    slot_version: int | None = None
    slot_shard: int | None = None

    # Each failed attempt
    error: JobError | None = None
    last_errors: tuple[JobError, ...] = ()

    # The end
    completed_at_epoch_ms: int | None = None
    failed_at_epoch_ms: int | None = None
    result: Payload | None = None
    result_source: str | None = None
    """`vendor` or `cache`."""
    result_stored_at_epoch_ms: int | None = None
    """Of a result from the cache."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nanos: int | None = None
    """1e-9 of the unit of the catalogue's prices."""
    saved_nanos: int | None = None
    """What the answer cost when it was paid for, when this job had it from the cache."""
    vendor_request_id: str | None = None
    upstream_latency_ms: int | None = None
    discarded: bool = False
    """An operator gave up on it: its messages are acknowledged."""
    unsettled: bool = False
    """The end was written without claim, counter, budget and usage; the sweeper does it."""

    @property
    def open(self) -> bool:
        """Whether the job may still change by itself."""
        return self.status in OPEN

    @property
    def refresh(self) -> bool:
        """Whether it renews a stale entry behind its readers: nobody's job, and in no cap."""
        return self.refreshes_for is not None

    @property
    def day(self) -> str:
        """The day (UTC) whose budgets it is in: of its submit, or of its last redrive."""
        return day_of(self.enqueued_at_epoch_ms)

    @property
    def spent_nanos(self) -> int:
        """What it counts in the cost of its day when its end is settled."""
        if self.cost_reserved_nanos is None:
            return 0
        return self.lost_nanos + (self.cost_nanos or 0)

    @property
    def budgeted_nanos(self) -> int:
        """What it counts in the cost of its day: its reserve, and after its end what it spent."""
        waits = self.open or self.unsettled
        return (self.cost_reserved_nanos or 0) if waits else self.spent_nanos

    @property
    def entry_tenant(self) -> str:
        """Whose the entry is that this job fills."""
        return self.refreshes_for or self.tenant

    @property
    def lease_key(self) -> str:
        """What one worker at a time works on: the entry, or the job where it fills none."""
        alone = self.cache_mode == "bypass" or self.no_store
        return f"job:{self.job_id}" if alone else self.cache_key

    def accepts(self, entry: CacheEntry, *, epoch: int = 0) -> bool:
        """Whether the entry is young enough for who asked, and asked after `epoch`."""
        return entry.answers(
            not_older_than_ms=self.not_older_than_epoch_ms or 0,
            asked_after_ms=max(self.asked_after_epoch_ms or 0, epoch),
        )

    @property
    def slot(self) -> Ticket | None:
        """The slot that is kept for it."""
        if self.slot_at_epoch_ms is None:
            return None
        return Ticket(self.slot_at_epoch_ms, self.slot_version or 0, self.slot_shard or 0)

    @property
    def version(self) -> tuple[JobStatus, int, int, int]:
        """What a write compares: no transition leaves all of it as it was."""
        return self.status, self.fence, self.attempts_total, self.revision


def submitted(job: Job) -> Job:
    """`job` as it enters the table."""
    return _moved(job, due_at_ms=job.created_at_epoch_ms + RESEND_AFTER_SUBMIT_MS)


def started(job: Job, *, fence: int, now_ms: int, receives: int, function_ends_ms: int) -> Job:
    """An attempt begins under the lease with this fence."""
    wait_ms = job.queue_wait_ms
    if wait_ms is None:
        wait_ms = max(0, now_ms - job.enqueued_at_epoch_ms)
    return _moved(
        job,
        due_at_ms=function_ends_ms + FUNCTION_END_MARGIN_MS,
        status=JobStatus.PROCESSING,
        fence=fence,
        attempts=job.attempts + 1,
        attempts_total=job.attempts_total + 1,
        receives=receives,
        started_at_epoch_ms=now_ms,
        queue_wait_ms=wait_ms,
        called_at_epoch_ms=job.called_at_epoch_ms,
        lost_nanos=_lost_nanos(job),
        slot_at_epoch_ms=job.slot_at_epoch_ms,
        slot_version=job.slot_version,
        slot_shard=job.slot_shard,
    )


def called(job: Job, *, now_ms: int) -> Job:
    """The vendor is about to be called, and the outcome is unknown until it is written."""
    return replace(job, called_at_epoch_ms=now_ms, revision=job.revision + 1)


def completed(
    job: Job,
    *,
    now_ms: int,
    result: Payload,
    source: str,
    input_tokens: int = 0,
    output_tokens: int = 0,
    cost_nanos: int = 0,
    saved_nanos: int = 0,
    vendor_request_id: str | None = None,
    upstream_latency_ms: int | None = None,
    stored_at_ms: int | None = None,
    attempt_taken_back: bool = False,
) -> Job:
    """The job has its result.

    `attempt_taken_back`: this worker's own attempt was counted, but it called nobody.
    """
    told = source == "vendor" and input_tokens + output_tokens > 0  # no vendor takes an empty input
    return _moved(
        _taken_back(job) if attempt_taken_back else job,
        status=JobStatus.COMPLETED,
        completed_at_epoch_ms=now_ms,
        result=result,
        result_source=source,
        result_stored_at_epoch_ms=stored_at_ms,
        lost_nanos=_lost_nanos(job, 0 if told or attempt_taken_back else None),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_nanos=cost_nanos,
        saved_nanos=saved_nanos,
        vendor_request_id=vendor_request_id,
        upstream_latency_ms=upstream_latency_ms,
        error=None,
    )


def completed_from(
    entry: CacheEntry, job: Job, *, now_ms: int, attempt_taken_back: bool = False
) -> Job:
    """The job has the result of a cache entry, which somebody paid for before."""
    return completed(
        job,
        now_ms=now_ms,
        result=entry.result,
        source="cache",
        stored_at_ms=entry.stored_at_epoch_ms,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        saved_nanos=entry.cost_nanos,
        vendor_request_id=entry.vendor_request_id,
        attempt_taken_back=attempt_taken_back,
    )


def retrying(
    job: Job,
    error: JobError,
    *,
    not_before_ms: int,
    parked: bool = False,
    call_nanos: int | None = None,
) -> Job:
    """The attempt failed, another will come. Never before `not_before_ms`.

    `call_nanos`: what its call cost; None: nobody knows.
    """
    return _moved(
        job,
        due_at_ms=not_before_ms if parked else not_before_ms + RESEND_AFTER_BACKOFF_MS,
        status=JobStatus.RETRYING,
        not_before_epoch_ms=not_before_ms,
        parked=parked,
        lost_nanos=_lost_nanos(job, call_nanos),
        error=error,
        last_errors=(*job.last_errors, error)[-LAST_ERRORS:],
    )


def parked(job: Job, *, not_before_ms: int) -> Job:
    """The job waits without a message; no attempt is spent on waiting.

    A processing job whose worker died stays so: its outcome is still unknown.
    """
    return _moved(
        job,
        due_at_ms=not_before_ms,
        not_before_epoch_ms=not_before_ms,
        parked=True,
        called_at_epoch_ms=job.called_at_epoch_ms,
    )


def gated(job: Job, *, not_before_ms: int, slot: Ticket | None) -> Job:
    """The gate lets nobody through now: as before the attempt, without a message, until then."""
    before = _taken_back(job)
    return _moved(
        before,
        due_at_ms=not_before_ms,
        status=JobStatus.RETRYING if before.attempts else JobStatus.QUEUED,
        not_before_epoch_ms=not_before_ms,
        parked=True,
        slot_at_epoch_ms=slot.slot_at_ms if slot else None,
        slot_version=slot.version if slot else None,
        slot_shard=slot.shard if slot else None,
    )


def woken(job: Job, *, now_ms: int) -> Job:
    """A job that was parked for its turn gets its message now."""
    return _moved(job, due_at_ms=now_ms + RESEND_AFTER_BACKOFF_MS)


def failed(
    job: Job,
    error: JobError,
    *,
    now_ms: int,
    last_receive: bool,
    vendor_request_id: str | None = None,
    call_nanos: int | None = None,
) -> Job:
    """The job ends without a result. `call_nanos` as in `retrying`.

    On the message's last receive the job is dead_lettered at once: SQS moves the message at the
    next receive, and nobody would come by to write it then. A refresh never is: its entry cools
    down, and the next refresh is another job.
    """
    last_receive = last_receive and not job.refresh
    marked_later = not (last_receive or job.refresh)
    return _moved(
        job,
        due_at_ms=now_ms + DEAD_LETTER_MARK_AFTER_MS if marked_later else None,
        status=JobStatus.DEAD_LETTERED if last_receive else JobStatus.FAILED,
        failed_at_epoch_ms=now_ms,
        vendor_request_id=vendor_request_id,
        lost_nanos=_lost_nanos(job, call_nanos),
        error=error,
        last_errors=(*job.last_errors, error)[-LAST_ERRORS:],
    )


def dead_lettered(job: Job) -> Job:
    """A failed job whose message is on its last receive."""
    return _moved(job, due_at_ms=_due_while_unsettled(job), status=JobStatus.DEAD_LETTERED)


def cancelled(job: Job, *, now_ms: int) -> Job:
    """The partner wants no result any more."""
    return _moved(
        job,
        status=JobStatus.CANCELLED,
        completed_at_epoch_ms=now_ms,
        lost_nanos=_lost_nanos(job),
    )


def redriven(job: Job, *, now_ms: int, lane: str, due_at_ms: int) -> Job:
    """An operator gives a failed job another run: fresh attempts, a fresh deadline."""
    deadline_ms = now_ms + job.deadline_s * 1000
    return _moved(
        replace(job, deadline_epoch_ms=deadline_ms),
        due_at_ms=due_at_ms,
        status=JobStatus.QUEUED,
        attempts=0,
        redrives=job.redrives + 1,
        lane=lane,
        enqueued_at_epoch_ms=now_ms,
        queue_wait_ms=None,
        lost_nanos=0,
        failed_at_epoch_ms=None,
        unsettled=False,
        error=None,
        ttl_epoch_s=deadline_ms // 1000 + ROW_OUTLIVES_DEADLINE_S,
    )


def discarded(job: Job, *, now_ms: int) -> Job:
    """An operator gives up on a dead-lettered job; its messages are acknowledged from here on."""
    error = JobError(
        code="discarded",
        message="An operator discarded the job.",
        retryable=False,
        attempt=job.attempts,
        at_epoch_ms=now_ms,
        error_class="SluicewayError",
    )
    return _moved(
        job,
        due_at_ms=_due_while_unsettled(job),
        status=JobStatus.FAILED,
        discarded=True,
        error=error,
        last_errors=(*job.last_errors, error)[-LAST_ERRORS:],
    )


def settled(job: Job) -> Job:
    """Claim and counter of a job that ended without them are written."""
    waits_for_mark = job.status is JobStatus.FAILED and not job.discarded and not job.refresh
    mark_ms = (job.failed_at_epoch_ms or 0) + DEAD_LETTER_MARK_AFTER_MS
    return _moved(job, due_at_ms=mark_ms if waits_for_mark else None, unsettled=False)


def cost_moves(old: Job, new: Job) -> list[tuple[Job, int]]:
    """What a transition adds to the cost of days: the job as it is in that day, and how much.

    A redrive leaves what the ended run spent where it is, and reserves anew in its own day.
    """
    if old.open or not new.open:
        moves = [(new, new.budgeted_nanos - old.budgeted_nanos)]
    else:
        unsettled_nanos = old.spent_nanos - old.budgeted_nanos
        moves = [(old, unsettled_nanos), (new, new.budgeted_nanos)]
        if old.day == new.day:
            moves = [(new, unsettled_nanos + new.budgeted_nanos)]
    return [(job, nanos) for job, nanos in moves if nanos]


def next_look_ms(job: Job, now_ms: int) -> int:
    """When the sweeper looks again after this look: doubling, and never past the deadline."""
    at_ms = now_ms + min(RESEND_LONGEST_MS, RESEND_FIRST_MS << min(job.resends, 10))
    if job.status in {JobStatus.QUEUED, JobStatus.RETRYING}:
        at_ms = min(at_ms, max(job.deadline_epoch_ms, now_ms + 1000))
    return at_ms


def due_shard(job_id: str) -> str:
    """The partition of the index on `due_at_epoch_ms` for this job: `0` to `7`."""
    return str(sum(job_id.encode()) % DUE_SHARDS)


def _due_while_unsettled(job: Job) -> int | None:
    """The sweeper must still find a job whose claim and counter are open."""
    return job.due_at_epoch_ms if job.unsettled else None


def _lost_nanos(job: Job, call_nanos: int | None = None) -> int:
    """`lost_nanos` when the job's attempt is over, whose call cost so much without a result.

    None: nobody knows, or there was none; a job at work may have been asked for.
    """
    if call_nanos is None:
        at_work = job.status is JobStatus.PROCESSING
        call_nanos = (job.cost_reserved_nanos or 0) if at_work else 0
    return job.lost_nanos + call_nanos


def _taken_back(job: Job) -> Job:
    return replace(job, attempts=job.attempts - 1, attempts_total=job.attempts_total - 1)


def _moved(job: Job, *, due_at_ms: int | None = None, **changes: Any) -> Job:
    """A transition: what it doesn't name of the last one's waiting is over.

    `due_at_ms` is never past the deadline while the job waits, so that it is seen then.
    """
    waits = changes.get("status", job.status) in {JobStatus.QUEUED, JobStatus.RETRYING}
    if due_at_ms is not None and waits:
        due_at_ms = min(due_at_ms, changes.get("deadline_epoch_ms", job.deadline_epoch_ms))
    return replace(
        job,
        **{
            "revision": job.revision + 1,
            "resends": 0,
            "not_before_epoch_ms": None,
            "parked": False,
            "called_at_epoch_ms": None,
            "slot_at_epoch_ms": None,
            "slot_version": None,
            "slot_shard": None,
            "due_at_epoch_ms": due_at_ms,
            "due_shard": None if due_at_ms is None else due_shard(job.job_id),
            **changes,
        },
    )
