"""Batches: many submits in one request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluiceway.batch_http import batch_reply
from sluiceway.domain import ids
from sluiceway.domain.errors import SluicewayError, StoreBusyError
from sluiceway.domain.request import BatchRequest, SubmitRequest, batch_of
from sluiceway.http import MAX_REPLY_BYTES, Reply, result_body, with_rate
from sluiceway.routes.idempotency import answered_once
from sluiceway.routes.jobs import applied, submit, wanted_wait_s
from sluiceway.routes.request import UNEXPECTED, Request
from sluiceway.usecases.features import require_feature
from sluiceway.usecases.get_batch import FetchedBatch, Result, documents_of, get_batch, with_places
from sluiceway.usecases.submit_batch import submit_batch
from sluiceway.usecases.submit_job import Accepted, Hit
from sluiceway.usecases.wait_job import LONGEST_BATCH_LOOK_MS, wait_while

if TYPE_CHECKING:
    from sluiceway.usecases.authorize import Caller

ANSWERED_WITHIN_S = 5
"""A wait ends so long before the invocation does: the last look and the answer need it."""


def post_batch(request: Request) -> Reply:
    """Submits many jobs, each with an outcome of its own."""
    caller = request.caller("submit")
    request.parameters()
    wait_s = wanted_wait_s(request)
    body = request.json()
    wanted = batch_of(body)
    reply = answered_once(
        request,
        caller,
        "POST /batches",
        body,
        act=lambda: _submitted(wanted, caller, request),
        again=lambda batch_id: _told(_fetch(batch_id, caller, request), 200, request),
    )
    if wait_s and reply.status == 202:  # noqa: PLR2004
        reply = _waited(reply, caller, request, wait_s)
    return reply


def get_one_batch(request: Request, batch_id: str) -> Reply:
    """A batch with its jobs as they are now."""
    caller = request.caller("read")
    request.parameters()
    wait_s = wanted_wait_s(request)
    reply = _told(_fetch(batch_id, caller, request, wait_s=wait_s), 200, request)
    if wait_s:
        reply = replace(reply, headers={**reply.headers, **applied(wait_s)})
    return reply


def _submitted(wanted: BatchRequest, caller: Caller, request: Request) -> Reply:
    deps, origin = request.deps, request.origin()
    submitter = deps.submitter
    require_feature("batches", flags=submitter.flags, tenant=caller.tenant)
    now_ms = submitter.clock.now_ms()
    batch_id = ids.batch_id(now_ms, submitter.randomness(ids.RANDOM_BYTES))
    deps.telemetry.keys(batch_id=batch_id)

    def submit_one(asked: SubmitRequest) -> Hit | Accepted:
        try:
            return submit(asked, caller, request, origin=origin)
        except SluicewayError:
            raise
        except Exception as error:
            # One item's boundary, as the handler is that of a request: the others go on.
            deps.telemetry.error("unexpected_error", error)
            raise SluicewayError(UNEXPECTED) from error

    done = submit_batch(
        wanted,
        caller.tenant,
        batch_id,
        now_ms=now_ms,
        submit=submit_one,
        time_left_ms=request.context.get_remaining_time_in_millis,
        batches=deps.batches,
        local=deps.local,
    )
    for job in done.shared:
        deps.telemetry.event("job_deduplicated", job)
    refused = [one for one in done.outcomes if isinstance(one, SluicewayError)]
    for error in refused:
        deps.telemetry.event("request_refused", code=error.code)
    accepted = [one for one in done.outcomes if isinstance(one, Accepted)]
    hits = [one.entry for one in done.outcomes if isinstance(one, Hit)]
    told = FetchedBatch(
        done.batch,
        found={one.job.job_id: one.job for one in accepted},
        at_ms=submitter.clock.now_ms(),
        results={
            ids.hit_id(one.cache_key): Result(one.result, one.vendor_request_id) for one in hits
        },
        places={one.job.job_id: one.place for one in accepted if one.place is not None},
    )
    deps.telemetry.event(
        "batch_submitted",
        tenant=caller.tenant,
        items=len(done.outcomes),
        jobs=len(told.found),
        hits=len(hits),
        refused=len(refused),
    )
    rates = [one.rate for one in accepted if one.rate is not None]
    reply = _told(told, 202, request)
    return with_rate(reply, min(rates, key=lambda rate: rate.left, default=None))


def _fetch(batch_id: str, caller: Caller, request: Request, *, wait_s: float = 0) -> FetchedBatch:
    """The batch, when all its jobs have ended or after `wait_s`. Raises as `get_batch` does."""
    deps, submitter = request.deps, request.deps.submitter

    def look() -> FetchedBatch:
        return get_batch(
            batch_id,
            caller.tenant,
            catalogue=submitter.catalogue,
            batches=deps.batches,
            lists=deps.lists,
            clock=submitter.clock,
        )

    until_ms = submitter.clock.now_ms() + round(wait_s * 1000)
    fetched = wait_while(
        look,
        lambda seen: seen.open,
        until_ms=until_ms,
        clock=submitter.clock,
        pause=deps.pause,
        longest_ms=LONGEST_BATCH_LOOK_MS,
    )
    return with_places(fetched, catalogue=submitter.catalogue, backlogs=submitter.backlogs)


def _told(fetched: FetchedBatch, status: int, request: Request) -> Reply:
    """What a partner is told of a batch."""
    payloads = request.deps.submitter.payloads
    documents = documents_of(fetched.results, most_bytes=MAX_REPLY_BYTES)
    told: dict[str, dict[str, Any]] = {}
    for name, result in fetched.results.items():
        if result.payload.ref is not None:
            told[name] = {"result_url": payloads.url(result.payload.ref)}
        elif name in documents:
            told[name] = {"result": result_body(documents[name], result.vendor_request_id)}
    reply = batch_reply(
        status,
        fetched.batch,
        fetched.found,
        told,
        base_path=request.base_path,
        now_ms=fetched.at_ms,
        places=fetched.places,
    )
    return _of_bearable_size(reply)


def _waited(reply: Reply, caller: Caller, request: Request, wait_s: int) -> Reply:
    """The batch when its jobs have ended or the wait is over, with the headers of its submit."""
    bearable_s = request.bearable_s(wait_s, before_end_s=ANSWERED_WITHIN_S)
    try:
        fetched = _fetch(reply.body["id"], caller, request, wait_s=bearable_s)
        now = _told(fetched, reply.status, request)
    except StoreBusyError:  # the batch is there all the same, and its id is what finds it
        return replace(reply, headers={**reply.headers, **applied(wait_s)})
    # The results of hits are told once.
    data = [
        before if before.get("job", {}).get("id", "").startswith(ids.HIT_PREFIX) else after
        for before, after in zip(reply.body["data"], now.body["data"], strict=True)
    ]
    kept = {name: value for name, value in reply.headers.items() if name != "Retry-After"}
    headers = {**kept, **now.headers, **applied(wait_s)}
    return _of_bearable_size(replace(now, body={**now.body, "data": data}, headers=headers))


def _of_bearable_size(reply: Reply) -> Reply:
    """The reply without what Lambda couldn't return; a job's own answer has it."""
    if reply.too_large:
        reply = reply.without("result")
    if reply.too_large:
        reply = reply.without("metadata")
    return reply
