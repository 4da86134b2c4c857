"""Submit: a request becomes a cache hit, an attachment to an open job, or a new job."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from sluiceway.domain import ids, strict_json
from sluiceway.domain.catalogue import Catalogue, Model
from sluiceway.domain.counters import shard_caps
from sluiceway.domain.errors import QuotaExceededError, StoreBusyError, ValidationFailedError
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.job import (
    ROW_OUTLIVES_DEADLINE_S,
    SEND_STARTS_WITHIN_MS,
    Job,
    submitted,
)
from sluiceway.domain.keys import Keys, Work, keys_of
from sluiceway.domain.payload import INLINE_INPUT_BYTES
from sluiceway.domain.request import SubmitRequest
from sluiceway.domain.webhook import MAX_CALLBACKS
from sluiceway.ports import (
    Applied,
    CapReached,
    Claimed,
    Clock,
    JobQueue,
    JobStore,
    PayloadStore,
    ResultCache,
)
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.authorize import Caller

OPERATION = "chat"
"""The only one in v1."""

MAX_CLAIM_LOOKS = 5
"""A claim may change hands while we look at it; so often in a row means that something is wrong."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, for the job row and the logs."""

    request_id: str
    correlation_id: str
    trace_header: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """The cache has the answer; `result` is its document."""

    entry: CacheEntry
    result: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job that will give the answer; `deduplicated`: it was there before."""

    job: Job
    deduplicated: bool


def submit_job(
    request: SubmitRequest,
    caller: Caller,
    origin: Origin,
    *,
    catalogue: Catalogue,
    jobs: JobStore,
    cache: ResultCache,
    payloads: PayloadStore,
    queue: JobQueue,
    clock: Clock,
    randomness: Callable[[int], bytes],
) -> Hit | Accepted:
    """Answers a submit. An accepted job will end, whatever happens to its message.

    Raises ModelNotFoundError, QuotaExceededError (in-flight cap), StoreBusyError, and
    ValidationFailedError when the open job has as many callbacks as it may have.
    """
    model = catalogue.model(request.model)
    tenant = catalogue.tenant(caller.tenant)
    scope = _scope(model, allow_shared=tenant.allow_shared_cache)
    now_ms = clock.now_ms()
    keys = _keys(request, caller, model, scope, now_ms)

    if scope != "none":
        entry = cache.read(keys.cache_key)
        if entry is not None and entry.answers(now_ms):
            # An entry whose object was collected is a miss: there is no answer any more.
            with suppress(KeyError):
                return Hit(entry, payloads_of.load(entry.result, payloads=payloads))

    job_id = ids.job_id(now_ms, randomness(ids.RANDOM_BYTES))
    lane = request.priority or ("batch" if model.weight == "heavy" else "interactive")
    job = submitted(
        Job(
            tenant=caller.tenant,
            job_id=job_id,
            model=request.model,
            model_version=model.version,
            job_key=keys.job_key,
            cache_key=keys.cache_key,
            cache_scope=scope,
            request_id=origin.request_id,
            correlation_id=origin.correlation_id,
            trace_header=origin.trace_header,
            key_id=caller.key_id,
            metadata=request.metadata,
            callback_urls=() if request.callback_url is None else (request.callback_url,),
            input=payloads_of.keep(
                strict_json.dump({"input": request.plain_input(), "options": request.options}),
                f"inputs/{caller.tenant}/{job_id}",
                inline_bytes=INLINE_INPUT_BYTES,
                payloads=payloads,
            ),
            lane=lane,
            counter_shard=0,
            created_at_epoch_ms=now_ms,
            enqueued_at_epoch_ms=now_ms,
            deadline_s=request.deadline_s,
            deadline_epoch_ms=now_ms + request.deadline_s * 1000,
            ttl_epoch_s=now_ms // 1000 + request.deadline_s + ROW_OUTLIVES_DEADLINE_S,
        )
    )
    return _claim(job, shard_caps(tenant.in_flight), jobs=jobs, queue=queue, clock=clock)


def _claim(job: Job, caps: list[int], *, jobs: JobStore, queue: JobQueue, clock: Clock) -> Accepted:
    """Writes the job, or finds the one that has its claim."""
    replacing: str | None = None
    for _ in range(MAX_CLAIM_LOOKS):
        outcome = jobs.submit(job, shard_caps=caps, replacing=replacing)
        if isinstance(outcome, CapReached):
            raise QuotaExceededError(
                f"There may be {sum(caps)} open jobs at once.", retry_after_s=10
            )
        if not isinstance(outcome, Claimed):
            queue.send(outcome.job)
            return Accepted(outcome.job, deduplicated=False)
        holder = jobs.get(job.tenant, outcome.job_id)
        if holder is not None and holder.open and (told := _tell_too(holder, job, jobs=jobs)):
            told = _hurry(told, job.lane, jobs=jobs, queue=queue, clock=clock)
            return Accepted(told, deduplicated=True)
        # The holder ended and its claim stayed, or ended in between: the claim counts as ended.
        replacing = outcome.job_id
    raise StoreBusyError("The job's claim kept changing hands.", retry_after_s=1)


def _tell_too(holder: Job, job: Job, *, jobs: JobStore) -> Job | None:
    """The holder with this request's callback; None when it has ended meanwhile.

    Raises ValidationFailedError when the holder has as many callbacks as it may have.
    """
    for url in job.callback_urls:
        if url not in holder.callback_urls:
            outcome = jobs.add_callback(holder, url)
            if isinstance(outcome, Applied):
                holder = outcome.job
            elif outcome.job is None or not outcome.job.open:
                return None
            else:
                fault = {"field": "callback_url", "message": f"{MAX_CALLBACKS} at most for one job"}
                raise ValidationFailedError("The job has too many callbacks.", errors=(fault,))
    return holder


def _hurry(holder: Job, lane: str, *, jobs: JobStore, queue: JobQueue, clock: Clock) -> Job:
    """A more urgent duplicate moves the job; its first message becomes a harmless copy."""
    decided_ms = clock.now_ms()
    if lane == "interactive" and holder.lane == "batch" and jobs.raise_lane(holder):
        holder = replace(holder, lane="interactive")
        if clock.now_ms() - decided_ms <= SEND_STARTS_WITHIN_MS:  # else the sweeper sends it
            queue.send(holder)
    return holder


def _scope(model: Model, *, allow_shared: bool) -> str:
    """`shared` only when model and partner both allow it."""
    if model.cache.scope == "shared" and not allow_shared:
        return "tenant"
    return model.cache.scope


def _keys(request: SubmitRequest, caller: Caller, model: Model, scope: str, now_ms: int) -> Keys:
    return keys_of(
        Work(
            operation=OPERATION,
            tenant=caller.tenant,
            model=request.model,
            model_version=model.version,
            input=request.plain_input(),
            options=request.options,
            locale=request.locale,
            safety_profile=request.safety_profile,
            cache_scope=scope,
            window=now_ms // 1000 // model.key_window_s if model.key_window_s else None,
        )
    )
