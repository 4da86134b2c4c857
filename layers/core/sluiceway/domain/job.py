"""The job: its row, its states, and the transitions between them.

    queued ──> processing ──> completed
                 │   ^  └───> failed ──> dead_lettered
                 v   │
               retrying

A transition takes the job as it was read and gives the job as it shall be written. The store writes
the difference, on the condition that nobody moved the job in between (`Job.version`).
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from sluiceway.domain.payload import Payload

MAX_RECEIVES = 10
"""After so many receives SQS moves a message to the dead-letter queue (template.yaml)."""

LAST_ERRORS = 5
CLAIM_OUTLIVES_DEADLINE_MS = 3_600_000
"""So that a claim never ends while its job is open, whatever the clocks say."""

ROW_OUTLIVES_DEADLINE_S = 22 * 24 * 3600
"""14 days in the dead-letter queue, 7 of a redriven job's new deadline, and one to spare."""

RESEND_AFTER_SUBMIT_MS = 120_000
FUNCTION_END_MARGIN_MS = 30_000
RESEND_AFTER_BACKOFF_MS = 120_000
DEAD_LETTER_MARK_AFTER_MS = 15 * 60_000
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

    # Written at submit and by a redrive
    enqueued_at_epoch_ms: int = 0
    deadline_epoch_ms: int = 0
    redrives: int = 0

    # Raised by a duplicate that is more urgent
    lane: str = "interactive"

    # Each transition
    status: JobStatus = JobStatus.QUEUED
    due_at_epoch_ms: int | None = None
    """When somebody has to look at the job again if nobody moved it."""
    due_shard: str | None = None
    """Key of the sparse index; there as long as `due_at_epoch_ms` is."""

    # Each start
    attempts: int = 0
    attempts_total: int = 0
    receives: int = 0
    fence: int = 0
    """Fence of the lease under which the job was started last."""
    started_at_epoch_ms: int | None = None
    queue_wait_ms: int | None = None
    """From the enqueueing to the first start."""

    # A retry
    not_before_epoch_ms: int | None = None

    # Each failed attempt
    error: JobError | None = None
    last_errors: tuple[JobError, ...] = ()

    # The end
    completed_at_epoch_ms: int | None = None
    failed_at_epoch_ms: int | None = None
    result: Payload | None = None
    result_source: str | None = None
    """`vendor` or `cache`."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nanos: int | None = None
    """1e-9 of the unit of the catalogue's prices."""
    saved_nanos: int | None = None
    """What the answer cost when it was paid for, when this job had it from the cache."""
    vendor_request_id: str | None = None
    upstream_latency_ms: int | None = None
    unsettled: bool = False
    """The end was written without closing claim and counter; the sweeper does it."""

    @property
    def open(self) -> bool:
        """Whether the job may still change by itself."""
        return self.status in OPEN

    @property
    def version(self) -> tuple[JobStatus, int, int]:
        """What a write compares: no transition leaves all three as they were."""
        return self.status, self.fence, self.attempts_total


def submitted(job: Job) -> Job:
    """`job` as it enters the table."""
    return _due(job, job.created_at_epoch_ms + RESEND_AFTER_SUBMIT_MS)


def started(job: Job, *, fence: int, now_ms: int, receives: int, function_ends_ms: int) -> Job:
    """An attempt begins under the lease with this fence."""
    wait_ms = job.queue_wait_ms
    if wait_ms is None:
        wait_ms = max(0, now_ms - job.enqueued_at_epoch_ms)
    return _due(
        replace(
            job,
            status=JobStatus.PROCESSING,
            fence=fence,
            attempts=job.attempts + 1,
            attempts_total=job.attempts_total + 1,
            receives=receives,
            started_at_epoch_ms=now_ms,
            queue_wait_ms=wait_ms,
            not_before_epoch_ms=None,
        ),
        function_ends_ms + FUNCTION_END_MARGIN_MS,
    )


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
    attempt_taken_back: bool = False,
) -> Job:
    """The job has its result.

    `attempt_taken_back`: this worker's own attempt was counted, but it called nobody.
    """
    taken_back = int(attempt_taken_back)
    return _not_due(
        replace(
            job,
            status=JobStatus.COMPLETED,
            attempts=job.attempts - taken_back,
            attempts_total=job.attempts_total - taken_back,
            completed_at_epoch_ms=now_ms,
            result=result,
            result_source=source,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_nanos=cost_nanos,
            saved_nanos=saved_nanos,
            vendor_request_id=vendor_request_id,
            upstream_latency_ms=upstream_latency_ms,
            not_before_epoch_ms=None,
            error=None,
        )
    )


def retrying(job: Job, error: JobError, *, not_before_ms: int) -> Job:
    """The attempt failed, another will come. Never before `not_before_ms`."""
    return _due(
        replace(
            job,
            status=JobStatus.RETRYING,
            not_before_epoch_ms=not_before_ms,
            error=error,
            last_errors=(*job.last_errors, error)[-LAST_ERRORS:],
        ),
        not_before_ms + RESEND_AFTER_BACKOFF_MS,
    )


def failed(
    job: Job,
    error: JobError,
    *,
    now_ms: int,
    last_receive: bool,
    vendor_request_id: str | None = None,
) -> Job:
    """The job ends without a result.

    On the message's last receive the job is dead_lettered at once: SQS moves the message at the
    next receive, and nobody would come by to write it then.
    """
    ended = replace(
        job,
        status=JobStatus.DEAD_LETTERED if last_receive else JobStatus.FAILED,
        failed_at_epoch_ms=now_ms,
        vendor_request_id=vendor_request_id,
        not_before_epoch_ms=None,
        error=error,
        last_errors=(*job.last_errors, error)[-LAST_ERRORS:],
    )
    if last_receive:
        return _not_due(ended)
    return replace(
        ended,
        due_at_epoch_ms=now_ms + DEAD_LETTER_MARK_AFTER_MS,
        due_shard=due_shard(job.job_id),
    )


def dead_lettered(job: Job) -> Job:
    """A failed job whose message is on its last receive."""
    return _not_due(replace(job, status=JobStatus.DEAD_LETTERED))


def due_shard(job_id: str) -> str:
    """The partition of the index on `due_at_epoch_ms` for this job: `0` to `7`."""
    return str(sum(job_id.encode()) % DUE_SHARDS)


def _due(job: Job, at_ms: int) -> Job:
    """Never past the deadline, so that a job that waits is seen when its deadline comes."""
    if job.status is not JobStatus.PROCESSING:
        at_ms = min(at_ms, job.deadline_epoch_ms)
    return replace(job, due_at_epoch_ms=at_ms, due_shard=due_shard(job.job_id))


def _not_due(job: Job) -> Job:
    return replace(job, due_at_epoch_ms=None, due_shard=None)
