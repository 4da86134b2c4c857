"""The routes in OpenAI's form, for its clients: chat completions and responses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluiceway.domain.errors import (
    JobNotFoundError,
    ResultExpiredError,
    StillRunningError,
    StoreBusyError,
)
from sluiceway.domain.keys import digest_of
from sluiceway.http import LONGEST_POLL_S, Reply, job_reply
from sluiceway.openai_http import chat_completion, is_open, response, unanswered
from sluiceway.routes.jobs import cancel, fetch, submitted_once, told_of
from sluiceway.routes.request import HOLD_ENDS_BEFORE_S, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.request import SubmitRequest
    from sluiceway.usecases.authorize import Caller

OWED_S = LONGEST_POLL_S + 240
"""After a 504 an equal request gets the same job's answer for so long; it may come again a minute
later, and the client that asks may be slow, or be asked itself to try again."""

_OF_THE_SUBMIT = ("RateLimit", "RateLimit-Policy", "Idempotent-Replayed")
"""Headers that are told of a held call, too."""


def post_chat(request: Request) -> Reply:
    """Holds until the answer is there, or asks to come again for it."""
    from sluiceway.domain.openai_request import chat_of  # noqa: PLC0415 - only these need it

    caller = request.caller("submit")
    caller.require("read")
    request.parameters()
    body = request.json()
    wanted = chat_of(body, protocol_of=_protocols(request), local=request.deps.local)
    job = _held(wanted, body, caller, request, "POST /chat/completions")
    return unanswered(job) or chat_completion(job)


def post_response(request: Request) -> Reply:
    """In the background the response is answered at once, else as a chat is."""
    from sluiceway.domain.openai_request import response_of  # noqa: PLC0415

    caller = request.caller("submit")
    caller.require("read")
    request.parameters()
    body = request.json()
    wanted = response_of(body, protocol_of=_protocols(request), local=request.deps.local)
    background = body.get("background") is True
    if background:
        job = submitted_once(wanted, body, caller, request, "POST /responses", feature="openai")
        return _whole(job) or response(job)
    job = _held(wanted, body, caller, request, "POST /responses")
    return unanswered(job) or response(job, background=False)


def get_response(request: Request, job_id: str) -> Reply:
    """Any job of the tenant as a response."""
    caller = request.caller("read")
    request.parameters()
    job = told_of(fetch(job_id, caller, request.deps), request)
    return _whole(job) or response(job)


def post_cancel(request: Request, job_id: str) -> Reply:
    """Cancels an open job; again for a cancelled one."""
    caller = request.caller("cancel")
    request.parameters()
    job = cancel(job_id, caller, request.deps)
    now_ms = request.deps.submitter.clock.now_ms()
    reply = job_reply(200, job, None, base_path=request.base_path, now_ms=now_ms)
    return response(reply)


def _protocols(request: Request) -> Callable[[str], str]:
    catalogue = request.deps.submitter.catalogue
    return lambda model: catalogue.vendors[catalogue.model(model).vendor].protocol


def _whole(job: Reply) -> Reply | None:
    """The error of an answer that is too large; a response tells all else of a job itself."""
    return unanswered(job) if "result_url" in job.body else None


def _held(wanted: SubmitRequest, body: Any, caller: Caller, request: Request, route: str) -> Reply:
    """The ended job, completed or not, or the hit.

    Raises StillRunningError when the time is over, and owes the answer then: an equal request
    waits for the same job, whether or not its result may be reused.
    """
    deps, clock = request.deps, request.deps.submitter.clock
    began_ms = clock.now_ms()
    hold_s = request.bearable_s(deps.hold_s, before_end_s=HOLD_ENDS_BEFORE_S)
    until_ms = began_ms + round(hold_s * 1000)
    # With a key the client says itself which of its requests are one.
    digest = None if "idempotency-key" in request.headers else digest_of([route, body])
    owed_id = None if digest is None else deps.owed.find(caller.tenant, digest, now_ms=began_ms)

    job = None if owed_id is None else _owed(owed_id, caller, request, until_ms)
    if job is None:
        first = submitted_once(wanted, body, caller, request, route, feature="openai")
        job = first
        if is_open(first):
            with suppress(StoreBusyError):  # the job goes on, and its answer is owed
                job = _ended(first.body["id"], caller, request, until_ms)
        kept = {name: first.headers[name] for name in _OF_THE_SUBMIT if name in first.headers}
        job = replace(job, headers={**kept, **job.headers})
    job_id = job.body["id"]
    if is_open(job):
        if digest is not None:
            ends_ms = clock.now_ms() + OWED_S * 1000
            deps.owed.owe(caller.tenant, digest, job_id, until_ms=ends_ms)
        raise StillRunningError(
            "The job is still running: the same request waits for its answer again.",
            retry_after_s=int(job.headers["Retry-After"]),
            job_id=job_id,
        )
    if owed_id is not None and digest is not None and job.body["status"] != "completed":
        # Told once; who asks again wants another try.
        deps.owed.forget(caller.tenant, digest, owed_id)
    return job


def _owed(job_id: str, caller: Caller, request: Request, until_ms: int) -> Reply | None:
    """The job whose answer is owed; None when it can't be had any more."""
    try:
        return _ended(job_id, caller, request, until_ms)
    except (JobNotFoundError, ResultExpiredError):
        return None


def _ended(job_id: str, caller: Caller, request: Request, until_ms: int) -> Reply:
    """The job when it has ended, or as it is at `until_ms`."""
    wait_s = (until_ms - request.deps.submitter.clock.now_ms()) / 1000
    return told_of(fetch(job_id, caller, request.deps, wait_s=wait_s), request)
