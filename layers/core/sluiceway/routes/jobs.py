"""Jobs: submit, fetch, list, cancel."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluiceway.domain.errors import CacheMissError, StoreBusyError
from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.domain.job import Job
from sluiceway.domain.request import SubmitRequest, submit_of
from sluiceway.http import (
    Reply,
    dry_run_reply,
    hit_reply,
    job_body,
    job_reply,
    list_reply,
    with_rate,
)
from sluiceway.routes.idempotency import answered_once, key_of
from sluiceway.routes.request import HOLD_ENDS_BEFORE_S, ApiDeps, Request, flag
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.features import require_feature
from sluiceway.usecases.get_job import Fetched, get_job
from sluiceway.usecases.list_jobs import listing_of
from sluiceway.usecases.submit_job import Accepted, Hit, Origin, dry_run, submit_job
from sluiceway.usecases.wait_job import wait_job

if TYPE_CHECKING:
    from sluiceway.domain.payload import Payload
    from sluiceway.usecases.authorize import Caller

LONGEST_WAIT_S = 20
"""API Gateway gives up after 29 s, and a job needs a moment to be submitted and read."""


def post_job(request: Request) -> Reply:
    """Submits a job, or finds its result."""
    caller = request.caller("submit")
    only_asks = flag(request.parameters("dry_run"), "dry_run")
    wait_s = wanted_wait_s(request)
    body = request.json()
    wanted = submit_of(body, local=request.deps.local)
    if only_asks:
        key_of(request)  # refused as a submit's would be; there is nothing to tell again
        return _dry_run(wanted, caller, request)
    reply = submitted_once(wanted, body, caller, request, "POST /jobs")
    if wait_s and reply.status == 202:  # noqa: PLR2004
        reply = _waited(reply, caller, request, wait_s)
    return reply


def get_jobs(request: Request) -> Reply:
    """The tenant's jobs, newest first, without their results."""
    caller = request.caller("read")
    wanted = listing_of(request.parameters("status", "model", "limit", "after"))
    page = request.deps.lists.page(
        caller.tenant,
        limit=wanted.limit,
        after=wanted.after,
        status=wanted.status,
        model=wanted.model,
    )
    now_ms = request.deps.submitter.clock.now_ms()
    data = [job_body(job, base_path=request.base_path, now_ms=now_ms) for job in page.jobs]
    reply = list_reply(data, has_more=page.has_more, last_id=page.last_id)
    while reply.too_large:  # metadata only; what is left out begins the next page
        data = data[: len(data) // 2]
        reply = list_reply(data, has_more=True, last_id=data[-1]["id"])
    return reply


def get_one_job(request: Request, job_id: str) -> Reply:
    """A job with its result."""
    caller = request.caller("read")
    request.parameters()
    wait_s = wanted_wait_s(request)
    found = fetch(job_id, caller, request.deps, wait_s=wait_s)
    reply = told_of(found, request)
    if wait_s:
        reply = replace(reply, headers={**reply.headers, **applied(wait_s)})
    return reply


def post_cancel(request: Request, job_id: str) -> Reply:
    """Cancels an open job; again for a cancelled one."""
    caller = request.caller("cancel")
    request.parameters()
    job = cancel(job_id, caller, request.deps)
    now_ms = request.deps.submitter.clock.now_ms()
    return job_reply(200, job, None, base_path=request.base_path, now_ms=now_ms)


# ------------------------------------------------------------------------------------ shared


def submitted_once(
    wanted: SubmitRequest,
    body: Any,
    caller: Caller,
    request: Request,
    route: str,
    *,
    feature: str | None = None,
) -> Reply:
    """The job or the hit of a submit, or of the first one with the same Idempotency-Key.

    `body`: the JSON that asks for it. `feature`: what must be on for new work by this route; what
    was accepted before is told all the same. Raises as `submit` and `answered_once` do.
    """

    def act() -> Reply:
        if feature is not None:
            require_feature(feature, flags=request.deps.submitter.flags, tenant=caller.tenant)
        return told(submit(wanted, caller, request), request)

    return answered_once(
        request,
        caller,
        route,
        body,
        act=act,
        again=lambda job_id: told_of(fetch(job_id, caller, request.deps), request),
    )


def submit(
    wanted: SubmitRequest, caller: Caller, request: Request, *, origin: Origin | None = None
) -> Hit | Accepted:
    """Submits, and tells operators what came of it. Raises as `submit_job` does.

    `origin`: of one of many jobs of the request, which isn't about this one alone; several threads
    may call it then.
    """
    deps = request.deps
    try:
        outcome = submit_job(wanted, caller, origin or request.origin(), deps.submitter)
    except CacheMissError:
        deps.telemetry.event("cache_miss", model=wanted.model, tenant=caller.tenant)
        raise
    if isinstance(outcome, Hit):
        deps.telemetry.event(
            _EVENT_OF_HIT[outcome.freshness],
            model=wanted.model,
            tenant=caller.tenant,
            age_s=outcome.entry.age_s(outcome.at_ms),
        )
        if outcome.refresh is not None:
            deps.telemetry.event("refresh_queued", outcome.refresh)
        return outcome
    if origin is None:
        deps.telemetry.about(outcome.job)
    deps.telemetry.event(
        "job_deduplicated" if outcome.deduplicated else "job_submitted", outcome.job
    )
    if wanted.cache.mode == "use" and outcome.job.cache_scope != "none":
        # With the fields of a hit, so that the two are counted by the same dimensions.
        deps.telemetry.event("cache_miss", model=wanted.model, tenant=caller.tenant)
    return outcome


def fetch(job_id: str, caller: Caller, deps: ApiDeps, *, wait_s: float = 0) -> Fetched:
    """The job, when it has ended or after `wait_s`. Raises as `get_job` does."""
    submitter = deps.submitter

    def look() -> Fetched:
        return get_job(
            job_id,
            caller,
            catalogue=submitter.catalogue,
            flags=submitter.flags,
            jobs=submitter.jobs,
            cache=submitter.cache,
            state=submitter.state,
            payloads=submitter.payloads,
            backlogs=submitter.backlogs,
            clock=submitter.clock,
        )

    until_ms = submitter.clock.now_ms() + round(wait_s * 1000)
    return wait_job(look, until_ms=until_ms, clock=submitter.clock, pause=deps.pause)


def cancel(job_id: str, caller: Caller, deps: ApiDeps) -> Job:
    """Cancels, and tells operators of it once. Raises as `cancel_job` does."""
    submitter = deps.submitter
    outcome = cancel_job(job_id, caller.tenant, jobs=submitter.jobs, clock=submitter.clock)
    if not outcome.again:
        deps.telemetry.event("job_cancelled", outcome.job)
    return outcome.job


def told(outcome: Hit | Accepted, request: Request) -> Reply:
    """What a partner is told of a submit."""
    if isinstance(outcome, Hit):
        return _hit(outcome.entry, outcome.freshness, outcome.result, outcome.at_ms, request)
    reply = job_reply(
        202,
        outcome.job,
        None,
        base_path=request.base_path,
        now_ms=request.deps.submitter.clock.now_ms(),
        deduplicated=outcome.deduplicated,
        place=outcome.place,
    )
    return with_rate(reply, outcome.rate)


def told_of(fetched: Fetched, request: Request) -> Reply:
    """What a partner is told of a job or an entry."""
    found = fetched.found
    if isinstance(found, CacheEntry):
        result = fetched.result or b"{}"
        return _hit(found, fetched.freshness, result, fetched.at_ms, request)
    reply = job_reply(
        200,
        found,
        fetched.result,
        base_path=request.base_path,
        now_ms=fetched.at_ms,
        fallback=fetched.fallback,
        place=fetched.place,
    )
    if fetched.fallback is not None and reply.too_large:
        reply = reply.without_fallback()
    return _of_bearable_size(reply, found.result, request)


def wanted_wait_s(request: Request) -> int:
    """Of `Prefer: wait=n` (RFC 7240), LONGEST_WAIT_S at most; 0 without it.

    Other preferences are ignored, as is one that isn't well formed: a preference binds nobody.
    """
    found = _WAIT.search(", ".join(request.all_of("prefer")))
    return min(int(found[1]), LONGEST_WAIT_S) if found else 0


_WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?:[,;]|$)', re.IGNORECASE)


def applied(wait_s: int) -> dict[str, str]:
    """How long a request that asked for a wait may have been held."""
    return {"Preference-Applied": f"wait={wait_s}"}


_EVENT_OF_HIT = {
    Freshness.FRESH: "cache_hit",
    Freshness.STALE: "cache_stale",
    Freshness.EXPIRED: "cache_degraded",
}


def _dry_run(wanted: SubmitRequest, caller: Caller, request: Request) -> Reply:
    run = dry_run(wanted, caller, request.origin(), request.deps.submitter)
    return dry_run_reply(
        run.job,
        now_ms=run.at_ms,
        tokens=run.tokens,
        cost_nanos=run.cost_nanos,
        place=run.place,
        deduplicated=run.deduplicated,
        hit=None if run.hit is None else (run.hit.entry, run.hit.freshness),
    )


def _waited(reply: Reply, caller: Caller, request: Request, wait_s: int) -> Reply:
    """The accepted job when it has ended or the wait is over, with the headers of its submit."""
    body: dict[str, Any] = reply.body
    bearable_s = request.bearable_s(wait_s, before_end_s=HOLD_ENDS_BEFORE_S)
    try:
        fetched = fetch(body["id"], caller, request.deps, wait_s=bearable_s)
        now = told_of(fetched, request)
    except StoreBusyError:  # the job was accepted all the same, and its id is what finds it
        return replace(reply, headers={**reply.headers, **applied(wait_s)})
    found = fetched.found
    ended = not (isinstance(found, Job) and found.open)
    kept = {name: value for name, value in reply.headers.items() if name not in _OF_THE_MOMENT}
    return replace(
        now,
        status=200 if ended else 202,
        body={**now.body, "deduplicated": body["deduplicated"]},
        headers={**kept, **now.headers, **applied(wait_s)},
    )


_OF_THE_MOMENT = frozenset({"Retry-After", "Cache-Status", "Age"})


def _hit(
    entry: CacheEntry, freshness: Freshness, result: bytes, at_ms: int, request: Request
) -> Reply:
    """`at_ms`: when the freshness was decided, so that header and body say the same."""
    reply = hit_reply(entry, freshness, result, base_path=request.base_path, now_ms=at_ms)
    return _of_bearable_size(reply, entry.result, request)


def _of_bearable_size(reply: Reply, result: Payload | None, request: Request) -> Reply:
    """The reply, with an address in the result's place when Lambda couldn't return it."""
    if result is None or result.ref is None or not reply.too_large:
        return reply
    return reply.with_result_url(request.deps.submitter.payloads.url(result.ref))
