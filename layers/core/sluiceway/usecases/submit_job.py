"""Submit: a request becomes a cache hit, an attachment to an open job, or a new job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain import gate, ids, strict_json
from sluiceway.domain.backlog import Backlog, Place
from sluiceway.domain.catalogue import Catalogue, Model, Tenant, scope_of
from sluiceway.domain.counters import shard_caps
from sluiceway.domain.errors import (
    CacheMissError,
    CostLimitError,
    DegradedError,
    QueueFullError,
    QuotaExceededError,
    RateLimitedError,
    StoreBusyError,
    ValidationFailedError,
)
from sluiceway.domain.freshness import REFRESH_DEADLINE_S, CacheEntry, Freshness
from sluiceway.domain.job import (
    MAX_CALLBACKS,
    ROW_OUTLIVES_DEADLINE_S,
    SEND_STARTS_WITHIN_MS,
    Job,
    completed_from,
    submitted,
)
from sluiceway.domain.keys import Work, keys_of
from sluiceway.domain.payload import INLINE_INPUT_BYTES, Payload
from sluiceway.ports import (
    Applied,
    Backlogs,
    BudgetSpent,
    CapReached,
    Claimed,
    Clock,
    DayBudget,
    Flags,
    JobQueue,
    JobStore,
    PayloadStore,
    RateLeft,
    ResultCache,
    ServiceState,
    StateStore,
    TenantRates,
)
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases import places
from sluiceway.usecases.features import require_feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.request import SubmitRequest
    from sluiceway.usecases.authorize import Caller

OPERATION = "chat"
"""The only one in v1."""

SLOW_SUBMIT_MS = 100
"""From the look into the cache to the claim: time enough for an equal job to end in between."""

LEAST_FULL_RETRY_S = 5
"""The next picture may tell of room."""

MAX_CLAIM_LOOKS = 5
"""A claim may change hands while we look at it; so often in a row means that something is wrong."""


class Origin(NamedTuple):
    """Where a request came from, for the job row and the logs."""

    request_id: str
    correlation_id: str
    trace_header: str | None = None


class Hit(NamedTuple):
    """The cache has the answer; `result` is its document."""

    entry: CacheEntry
    freshness: Freshness
    """Never GONE; EXPIRED only in degraded mode."""
    result: bytes
    refresh: Job | None = None
    """The job that this reader queued to renew the entry."""
    at_ms: int = 0
    """When `freshness` was decided: ages are counted to this moment."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job that will give the answer; `deduplicated`: it was there before."""

    job: Job
    deduplicated: bool
    rate: RateLeft | None = None
    """Where the tenant stands in its minute, when it has a rate."""
    place: Place | None = field(default=None, compare=False)
    """Where the job stands, when it is open; an estimate, so no part of what the outcome is."""


class DryRun(NamedTuple):
    """What a submit would get."""

    job: Job
    """As it would be made, without its input."""
    at_ms: int
    tokens: tuple[int, int]
    """About what the call would take, asked and answered."""
    cost_nanos: int
    """Of it; 0 where another job or an entry answers."""
    place: Place
    hit: Hit | None = None
    deduplicated: bool = False
    """There is an open job that answers it."""


class Submitter(NamedTuple):
    """What a submit needs from the outside."""

    catalogue: Catalogue
    flags: Flags
    jobs: JobStore
    cache: ResultCache
    state: StateStore
    rates: TenantRates
    backlogs: Backlogs
    payloads: PayloadStore
    queue: JobQueue
    clock: Clock
    randomness: Callable[[int], bytes]
    rand: Callable[[], float]
    """In [0, 1)."""


def submit_job(
    request: SubmitRequest, caller: Caller, origin: Origin, submitter: Submitter
) -> Hit | Accepted:
    """Answers a submit. An accepted job will end, whatever happens to its message.

    Raises ModelNotFoundError, FeatureDisabledError, ForbiddenError, CacheMissError,
    QuotaExceededError (open jobs, or a budget of the day), CostLimitError, RateLimitedError,
    DegradedError, QueueFullError, StoreBusyError, and ValidationFailedError when the open job has
    as many callbacks as it may have.
    """
    ready = _ready(request, caller, origin, submitter)
    if ready.hit is not None:
        return _with_refresh(request, ready, ready.hit, submitter)
    tenant, job = submitter.catalogue.tenant(caller.tenant), ready.job
    _refuse_when_full(ready, submitter)
    rate = _take_rate(tenant, caller, ready.now_ms, submitter)
    kept = _with_input(job, ready.body, f"inputs/{job.tenant}/{job.job_id}", submitter.payloads)
    caps = shard_caps(tenant.in_flight)
    budget = DayBudget(
        jobs=tenant.jobs_per_day,
        cost_nanos=tenant.cost_nanos_per_day,
        bypasses=tenant.bypasses_per_day if ready.past_the_cache else 0,
    )
    outcome = _claim(kept, caps, budget, submitter)
    if isinstance(outcome, Hit):
        return outcome
    place = places.place_of(outcome.job, ready.backlog, submitter.catalogue, ready.now_ms)
    return replace(outcome, rate=rate, place=place)


def dry_run(request: SubmitRequest, caller: Caller, origin: Origin, submitter: Submitter) -> DryRun:
    """What the submit would get now. Nothing is written, counted or sent.

    Raises as `submit_job` does, but knows nothing of what is counted only by a write: the tenant's
    rate, its open jobs and its budgets.
    """
    ready = _ready(request, caller, origin, submitter)
    job, tokens = ready.job, gate.estimated_tokens(ready.body or _body(request))
    if ready.hit is not None:
        return DryRun(job, ready.now_ms, tokens, 0, Place(0, 0), hit=ready.hit)
    holder = _refuse_when_full(ready, submitter) or _joined(job, submitter)
    if holder is not None and "interactive" in {job.lane, holder.lane}:
        holder = replace(holder, lane="interactive")
    stands = job if holder is None else holder
    place = places.place_of(stands, ready.backlog, submitter.catalogue, ready.now_ms)
    cost_nanos = ready.model.price.cost_nanos(*tokens) if holder is None else 0
    return DryRun(
        replace(job, lane=stands.lane),
        ready.now_ms,
        tokens,
        cost_nanos,
        place or Place(0, 0),
        deduplicated=holder is not None,
    )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A submit before its first write."""

    job: Job
    """Without its input."""
    model: Model
    now_ms: int
    past_the_cache: bool
    body: bytes = b""
    backlog: Backlog = field(default_factory=Backlog)
    hit: Hit | None = None
    """Then neither input nor backlog matter."""


def _ready(request: SubmitRequest, caller: Caller, origin: Origin, submitter: Submitter) -> _Ready:
    """Decides all that can be decided without a write."""
    model = submitter.catalogue.model(request.model)
    past_the_cache = request.cache.mode in {"refresh", "bypass"}
    _require_features(request, caller, submitter.flags, past_the_cache=past_the_cache)
    known, now_ms = submitter.state.read(), submitter.clock.now_ms()
    work = _work(request, caller, model, known, now_ms, submitter)
    job = _job(request, caller, origin, model, work, now_ms, submitter)
    if job.cache_scope != "none" and not past_the_cache:
        found = submitter.cache.look(job.cache_key)
        if found.invalidated_at_epoch_ms is not None:
            again = replace(work, invalidated_at_epoch_ms=found.invalidated_at_epoch_ms)
            job = replace(job, job_key=keys_of(again).job_key)
        entry = found.entry
        if entry is not None and entry.servable(now_ms, degraded=known.degraded):
            # A good answer that is older than the partner wants: it pays as for a refresh.
            good = entry.answers(asked_after_ms=job.asked_after_epoch_ms or 0)
            too_old = entry.stored_at_epoch_ms < (job.not_older_than_epoch_ms or 0)
            past_the_cache = good and too_old
            answer = _hit(job, entry, submitter)
            if isinstance(answer, Hit):
                return _Ready(job, model, now_ms, past_the_cache, hit=answer)
            job = answer
        if entry is not None and job.lease_key == entry.cache_key:
            job = replace(job, fence=entry.fence)
    if request.cache.mode == "only":
        raise CacheMissError("There is no cached answer, and only one was asked for.")
    if known.degraded and job.lane == "batch":
        raise DegradedError("The lanes are far behind: send batch jobs later.", retry_after_s=60)
    body = _body(request)
    tenant = submitter.catalogue.tenant(caller.tenant)
    cost_nanos = _estimated_cost(request, body, model, tenant)
    if tenant.cost_nanos_per_day:
        job = replace(job, cost_reserved_nanos=cost_nanos)
    backlog = places.read(submitter.backlogs, now_ms)
    return _Ready(job, model, now_ms, past_the_cache, body, backlog)


def _require_features(
    request: SubmitRequest, caller: Caller, flags: Flags, *, past_the_cache: bool
) -> None:
    """What is off is so where the cache has the answer, too: it may be off because of its answers.

    Raises FeatureDisabledError, and ForbiddenError.
    """
    require_feature("submit", flags=flags, tenant=caller.tenant, model=request.model)
    if past_the_cache:
        caller.require("bypass")
        require_feature("bypass", flags=flags, tenant=caller.tenant, model=request.model)
    if request.callback_url is not None:
        require_feature("webhooks", flags=flags, tenant=caller.tenant)


def _refuse_when_full(ready: _Ready, submitter: Submitter) -> Job | None:
    """Raises QueueFullError when too many wait by the picture; gives the open job to attach to.

    Only then is that one looked for: one that ends before the claim is read lets one more in.
    """
    service = submitter.catalogue.service
    waiting = ready.backlog.waiting()
    if not service.queue_full or waiting < service.queue_full:
        return None
    holder = _joined(ready.job, submitter)
    if holder is not None:
        return holder
    # Until there is room for some, so that not all come back for one place.
    room = waiting - service.queue_full + 1 + service.queue_full // 100
    retry_s = min(ready.backlog.drained_in_ms(room) / 1000, service.retry_after_max_s)
    raise QueueFullError(
        "So many jobs wait that no more are taken.",
        retry_after_s=max(LEAST_FULL_RETRY_S, math.ceil(retry_s)),
    )


def _joined(job: Job, submitter: Submitter) -> Job | None:
    """The open job that the submit would attach to."""
    job_id = submitter.jobs.holder(job)
    holder = None if job_id is None else submitter.jobs.get(job.tenant, job_id)
    return holder if holder is not None and _joinable(holder, job) else None


def _estimated_cost(request: SubmitRequest, body: bytes, model: Model, tenant: Tenant) -> int:
    """In 1e-9 of the prices' unit; 0 where nothing depends on it.

    Raises CostLimitError for what could never be run, or not for so little.
    """
    if not (model.tokens_per_minute or request.max_cost is not None or tenant.cost_per_day):
        return 0
    asked, answered = gate.estimated_tokens(body)
    if model.tokens_per_minute and asked + answered > model.tokens_per_minute:
        raise CostLimitError(
            f"The job may take {asked + answered} tokens, and a minute of the model has "
            f"{model.tokens_per_minute}."
        )
    nanos = model.price.cost_nanos(asked, answered)
    cost = nanos / 1e9
    if request.max_cost is not None and cost > request.max_cost:
        raise CostLimitError(f"The job may cost {cost:.6g}, and max_cost is {request.max_cost:g}.")
    if tenant.cost_per_day and nanos > tenant.cost_nanos_per_day:
        raise CostLimitError(
            f"The job may cost {cost:.6g}, and cost_per_day is {tenant.cost_per_day:g}."
        )
    return nanos


def _take_rate(
    tenant: Tenant, caller: Caller, now_ms: int, submitter: Submitter
) -> RateLeft | None:
    """Raises RateLimitedError."""
    if not tenant.requests_per_minute:
        return None
    rate = submitter.rates.take(caller.tenant, tenant.requests_per_minute, now_ms=now_ms)
    if not rate.allowed:
        raise RateLimitedError(
            f"There may be {rate.limit} requests a minute.", retry_after_s=rate.resets_in_s
        )
    return rate


def _hit(job: Job, entry: CacheEntry, submitter: Submitter) -> Hit | Job:
    """The entry in place of `job`, when it is young enough for who asks; else the job."""
    now_ms = job.created_at_epoch_ms
    if not job.accepts(entry):
        return job
    try:
        result = payloads_of.load(entry.result, payloads=submitter.payloads)
    except (KeyError, ValueError):
        # Its object was collected or is damaged: there is no answer any more, for the worker
        # neither, which doesn't look into results.
        return replace(job, asked_after_epoch_ms=entry.asked_at_epoch_ms)
    return Hit(entry, entry.freshness(now_ms), result, at_ms=now_ms)


def _with_refresh(request: SubmitRequest, ready: _Ready, hit: Hit, submitter: Submitter) -> Hit:
    """The hit, with the refresh of a stale entry behind its reader."""
    now_ms, entry = ready.now_ms, hit.entry
    beta = ready.model.cache.early_refresh
    wanted = hit.freshness is Freshness.STALE or (
        hit.freshness is Freshness.FRESH and entry.early(now_ms, beta=beta, rand=submitter.rand())
    )
    wanted = wanted and request.cache.mode != "only" and entry.may_be_refreshed(now_ms)
    if wanted and submitter.flags.on("refresh", model=request.model):
        return hit._replace(refresh=_queue_refresh(request, ready.job, entry, submitter))
    return hit


def _queue_refresh(
    request: SubmitRequest, job: Job, entry: CacheEntry, submitter: Submitter
) -> Job | None:
    """The job that renews the entry; None when another reader was first.

    The reader has its answer whatever happens here: when a store is busy the next reader does it.
    """
    now_ms = job.created_at_epoch_ms
    refresh = submitted(
        replace(
            job,
            tenant=ids.REFRESH_PREFIX + job.cache_key,
            job_key=f"refresh:{job.cache_key}",
            refreshes_for=entry.tenant,
            fence=entry.fence,
            cache_mode="refresh",
            no_store=False,
            cache_ttl_s=None,
            not_older_than_epoch_ms=now_ms + 1,
            asked_after_epoch_ms=None,
            lane="batch",
            callback_urls=(),
            metadata={},
            deadline_s=REFRESH_DEADLINE_S,
            deadline_epoch_ms=now_ms + REFRESH_DEADLINE_S * 1000,
            ttl_epoch_s=now_ms // 1000 + REFRESH_DEADLINE_S + ROW_OUTLIVES_DEADLINE_S,
        )
    )
    name = f"inputs/refresh/{job.job_id}"
    try:
        kept = _with_input(refresh, _body(request), name, submitter.payloads)
        if not submitter.jobs.queue_refresh(kept, entry):
            return None
    except StoreBusyError:
        return None
    submitter.queue.send(kept)
    return kept


def _work(
    request: SubmitRequest,
    caller: Caller,
    model: Model,
    known: ServiceState,
    now_ms: int,
    submitter: Submitter,
) -> Work:
    """All that defines what is asked for."""
    tenant = submitter.catalogue.tenant(caller.tenant)
    wish = request.cache
    return Work(
        operation=OPERATION,
        tenant=caller.tenant,
        model=request.model,
        model_version=model.version,
        input=request.plain_input(),
        options=request.options,
        locale=request.locale,
        safety_profile=request.safety_profile,
        cache_scope=scope_of(model, request.options, allow_shared=tenant.allow_shared_cache),
        window=now_ms // 1000 // model.key_window_s if model.key_window_s else None,
        model_epoch=known.epoch(f"model:{request.model}"),
        tenant_epoch=known.epoch(f"tenant:{caller.tenant}"),
        cache_mode="use" if wish.mode == "only" else wish.mode,
        no_store=wish.no_store,
    )


def _job(
    request: SubmitRequest,
    caller: Caller,
    origin: Origin,
    model: Model,
    work: Work,
    now_ms: int,
    submitter: Submitter,
) -> Job:
    """The job that the request asks for, but for its input."""
    wish, keys = request.cache, keys_of(work)
    asked_after_ms = now_ms if wish.mode == "refresh" else work.tenant_epoch
    return submitted(
        Job(
            tenant=caller.tenant,
            job_id=ids.job_id(now_ms, submitter.randomness(ids.RANDOM_BYTES)),
            model=request.model,
            model_version=model.version,
            job_key=keys.job_key,
            cache_key=keys.cache_key,
            cache_scope=work.cache_scope,
            request_id=origin.request_id,
            correlation_id=origin.correlation_id,
            trace_header=origin.trace_header,
            key_id=caller.key_id,
            cache_mode=wish.mode,
            no_store=wish.no_store,
            cache_ttl_s=wish.ttl_s,
            not_older_than_epoch_ms=(
                None if wish.max_age_s is None else now_ms - wish.max_age_s * 1000
            ),
            asked_after_epoch_ms=asked_after_ms or None,
            metadata=request.metadata,
            callback_urls=() if request.callback_url is None else (request.callback_url,),
            input=Payload(),
            lane=request.priority or ("batch" if model.weight == "heavy" else "interactive"),
            counter_shard=0,
            created_at_epoch_ms=now_ms,
            enqueued_at_epoch_ms=now_ms,
            deadline_s=request.deadline_s,
            deadline_epoch_ms=now_ms + request.deadline_s * 1000,
            ttl_epoch_s=now_ms // 1000 + request.deadline_s + ROW_OUTLIVES_DEADLINE_S,
        )
    )


def _body(request: SubmitRequest) -> bytes:
    """What the vendor will be asked, frozen."""
    return strict_json.dump({"input": request.plain_input(), "options": request.options})


def _with_input(job: Job, body: bytes, name: str, payloads: PayloadStore) -> Job:
    """The job with its input, written under `name` when it is too big for the row."""
    kept = payloads_of.keep(body, name, inline_bytes=INLINE_INPUT_BYTES, payloads=payloads)
    return replace(job, input=kept)


def _claim(job: Job, caps: list[int], budget: DayBudget, submitter: Submitter) -> Hit | Accepted:
    """Writes the job, or finds the one that has its claim."""
    jobs, queue = submitter.jobs, submitter.queue
    replacing: str | None = None
    for _ in range(MAX_CLAIM_LOOKS):
        outcome = jobs.submit(job, shard_caps=caps, replacing=replacing, budget=budget)
        if isinstance(outcome, CapReached):
            raise QuotaExceededError(
                f"There may be {sum(caps)} open jobs at once.", retry_after_s=10
            )
        if isinstance(outcome, BudgetSpent):
            raise QuotaExceededError(
                _spent(outcome, budget),
                retry_after_s=_DAY_S - job.created_at_epoch_ms // 1000 % _DAY_S,
            )
        if not isinstance(outcome, Claimed):
            if (hit := _answered_meanwhile(outcome.job, submitter)) is not None:
                return hit
            queue.send(outcome.job)
            return Accepted(outcome.job, deduplicated=False)
        holder = jobs.get(job.tenant, outcome.job_id)
        joined = holder if holder is not None and _joinable(holder, job) else None
        if joined is not None and job.cache_mode == "refresh":
            joined = _asked_again(joined, job, jobs=jobs)
        if joined is not None and (told := _tell_too(joined, job, jobs=jobs)):
            told = _hurry(told, job.lane, jobs=jobs, queue=queue, clock=submitter.clock)
            return Accepted(told, deduplicated=True)
        # The holder ended and its claim stayed, or ended in between, or is no answer to this
        # request: the claim counts as ended. A holder that is open goes on without it.
        replacing = outcome.job_id
    raise StoreBusyError("The job's claim kept changing hands.", retry_after_s=1)


_DAY_S = 24 * 3600


def _spent(spent: BudgetSpent, budget: DayBudget) -> str:
    """Which budget has no room for the job, for the partner to read."""
    return {
        "jobs": f"jobs_per_day is spent: there may be {budget.jobs} new jobs a day (UTC).",
        "cost_nanos": (
            "cost_per_day has no room for this job: "
            f"the jobs of a day (UTC) may cost {budget.cost_nanos / 1e9:g}."
        ),
        "bypasses": (
            f"bypasses_per_day is spent: {budget.bypasses} jobs a day (UTC) may go past the cache."
        ),
    }[spent.budget]


def _answered_meanwhile(job: Job, submitter: Submitter) -> Hit | None:
    """The answer that an equal job stored between our look into the cache and our claim.

    Looked for only where that took long; the job that we made has its result at once then.
    """
    now_ms = submitter.clock.now_ms()
    slow = now_ms - job.created_at_epoch_ms >= SLOW_SUBMIT_MS
    if not slow or job.cache_mode != "use" or job.cache_scope == "none":
        return None
    try:
        entry = submitter.cache.read(job.cache_key)
        if entry is None or entry.freshness(now_ms) is not Freshness.FRESH:
            return None
        if entry.stored_at_epoch_ms < job.created_at_epoch_ms or not job.accepts(entry):
            return None
        result = payloads_of.load(entry.result, payloads=submitter.payloads)
        done = completed_from(entry, job, now_ms=now_ms)
        if not isinstance(submitter.jobs.apply(job, done), Applied):
            return None
    except (KeyError, ValueError, StoreBusyError):
        return None  # the worker looks, too
    return Hit(entry, Freshness.FRESH, result, at_ms=now_ms)


def _joinable(holder: Job, job: Job) -> bool:
    """Whether the open job answers this request, too.

    A forced refresh wants what is true now, and a call that has begun may not know it.
    """
    return holder.open and not (job.cache_mode == "refresh" and holder.attempts_total > 0)


def _asked_again(holder: Job, job: Job, *, jobs: JobStore) -> Job | None:
    """The holder, which no call from before this forced refresh answers; None when it has begun.

    Else a job of mode `use` that called between the two submits would complete it.
    """
    outcome = jobs.ask_again(holder, asked_after_ms=job.asked_after_epoch_ms or 0)
    return outcome.job if isinstance(outcome, Applied) else None


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
    if lane == "interactive" and holder.lane == "batch" and jobs.move_lane(holder, lane):
        holder = replace(holder, lane="interactive")
        if clock.now_ms() - decided_ms <= SEND_STARTS_WITHIN_MS:  # else the sweeper sends it
            queue.send(holder)
    return holder
