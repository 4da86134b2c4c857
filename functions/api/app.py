"""The partner API: takes requests, answers at once."""

import base64
import re
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.utilities.typing import LambdaContext
from sluiceway import bootstrap
from sluiceway.bootstrap import ApiDeps
from sluiceway.domain import strict_json
from sluiceway.domain.errors import (
    CacheMissError,
    InvalidRequestError,
    MethodNotAllowedError,
    PayloadTooLargeError,
    RouteNotFoundError,
    SluicewayError,
    UnsupportedMediaTypeError,
)
from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.domain.payload import Payload
from sluiceway.domain.request import MAX_BODY_BYTES, parse_invalidation, parse_submit
from sluiceway.http import (
    Reply,
    dry_run_reply,
    hit_reply,
    invalidated_reply,
    job_reply,
    problem,
    with_rate,
)
from sluiceway.telemetry import trace_header
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.get_job import get_job
from sluiceway.usecases.invalidate_cache import Invalidation, invalidate_cache
from sluiceway.usecases.submit_job import Hit, Origin, dry_run, submit_job

_JSON_TYPES = frozenset(
    {"", "application/json", "application/octet-stream", "application/x-www-form-urlencoded"}
)
"""curl calls a body a form unless it is told otherwise, and gateways call one that they took for
binary an octet-stream; what counts is that it is JSON."""

app = APIGatewayRestResolver()


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers an API Gateway proxy event."""
    return handle(event, context, bootstrap.api_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: ApiDeps) -> dict[str, Any]:
    """Routes the request; whatever goes wrong becomes problem+json. Clears what it kept of it."""
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    request_id = event["requestContext"]["requestId"]
    with deps.telemetry.invocation(context, headers.get("x-correlation-id", "")[:128]):
        deps.telemetry.keys(request_id=request_id)  # the one that the partner sees
        app.append_context(deps=deps, headers=headers, request_id=request_id)  # type: ignore[no-untyped-call]
        answer: dict[str, Any] = app.resolve(event, context)
        if event["httpMethod"] == "HEAD":  # the status and the headers of a GET, and no more
            answer["body"] = ""
        return answer


# ------------------------------------------------------------------------------------ routes


@app.route("/health", ["GET", "HEAD"])
def health() -> Response[str]:
    """Whether the API answers; needs no key."""
    return _response(Reply(200, {"status": "ok"}, {}))


@app.post("/jobs")
def post_job() -> Response[str]:
    """Submits a job, or finds its result."""
    deps = _deps()
    caller = _caller()
    caller.require("submit")
    only_asks = _dry_run()
    request = parse_submit(_body(), local=deps.local)
    correlation_id = _correlation_id()
    origin = Origin(app.context["request_id"], correlation_id, trace_header())
    if only_asks:
        run = dry_run(request, caller, origin, deps.submitter)
        return _response(
            dry_run_reply(
                run.job,
                now_ms=run.at_ms,
                tokens=run.tokens,
                cost_nanos=run.cost_nanos,
                place=run.place,
                deduplicated=run.deduplicated,
                hit=None if run.hit is None else (run.hit.entry, run.hit.freshness),
            )
        )
    try:
        outcome = submit_job(request, caller, origin, deps.submitter)
    except CacheMissError:
        deps.telemetry.event("cache_miss", model=request.model, tenant=caller.tenant)
        raise
    if isinstance(outcome, Hit):
        deps.telemetry.event(
            _EVENT_OF_HIT[outcome.freshness],
            model=request.model,
            tenant=caller.tenant,
            age_s=outcome.entry.age_s(outcome.at_ms),
        )
        if outcome.refresh is not None:
            deps.telemetry.event("refresh_queued", outcome.refresh)
        return _hit(outcome.entry, outcome.freshness, outcome.result, outcome.at_ms)
    deps.telemetry.about(outcome.job)
    deps.telemetry.event(
        "job_deduplicated" if outcome.deduplicated else "job_submitted", outcome.job
    )
    if request.cache.mode == "use" and outcome.job.cache_scope != "none":
        # With the fields of a hit, so that the two are counted by the same dimensions.
        deps.telemetry.event("cache_miss", model=request.model, tenant=caller.tenant)
    return _response(
        with_rate(
            job_reply(
                202,
                outcome.job,
                None,
                base_path=_base_path(),
                now_ms=deps.submitter.clock.now_ms(),
                deduplicated=outcome.deduplicated,
                place=outcome.place,
            ),
            outcome.rate,
        )
    )


_EVENT_OF_HIT = {
    Freshness.FRESH: "cache_hit",
    Freshness.STALE: "cache_stale",
    Freshness.EXPIRED: "cache_degraded",
}


@app.route("/jobs/<job_id>", ["GET", "HEAD"])
def get_one_job(job_id: str) -> Response[str]:
    """A job with its result."""
    deps = _deps()
    caller = _caller()
    caller.require("read")
    _refuse_unknown_parameters()
    fetched = get_job(
        job_id,
        caller,
        catalogue=deps.submitter.catalogue,
        jobs=deps.submitter.jobs,
        cache=deps.submitter.cache,
        state=deps.submitter.state,
        payloads=deps.submitter.payloads,
        backlogs=deps.submitter.backlogs,
        clock=deps.submitter.clock,
    )
    found = fetched.found
    if isinstance(found, CacheEntry):
        return _hit(found, fetched.freshness, fetched.result or b"{}", fetched.at_ms)
    reply = job_reply(
        200,
        found,
        fetched.result,
        base_path=_base_path(),
        now_ms=fetched.at_ms,
        fallback=fetched.fallback,
        place=fetched.place,
    )
    if fetched.fallback is not None and reply.too_large:
        reply = reply.without_fallback()
    return _response(_of_bearable_size(reply, found.result))


@app.post("/jobs/<job_id>/cancel")
def post_cancel(job_id: str) -> Response[str]:
    """Cancels an open job; again for a cancelled one."""
    deps = _deps()
    caller = _caller()
    caller.require("cancel")
    _refuse_unknown_parameters()
    clock = deps.submitter.clock
    outcome = cancel_job(job_id, caller.tenant, jobs=deps.submitter.jobs, clock=clock)
    if not outcome.again:
        deps.telemetry.event("job_cancelled", outcome.job)
    reply = job_reply(200, outcome.job, None, base_path=_base_path(), now_ms=clock.now_ms())
    return _response(reply)


@app.post("/admin/cache/invalidate")
def post_invalidate() -> Response[str]:
    """Makes what is cached for a model or tenant, or under a key, invalid."""
    deps = _deps()
    caller = _caller()
    caller.require("admin")
    _refuse_unknown_parameters()
    request = parse_invalidation(strict_json.parse(_body()))
    if request.model is not None:
        deps.submitter.catalogue.model(request.model)  # a slip of the pen would do nothing
    done = invalidate_cache(
        Invalidation.of(request),
        actor=f"key:{caller.key_id}",
        request_id=app.context["request_id"],
        invalidator=deps.invalidator,
    )
    return _response(
        invalidated_reply(done.subject, at_ms=done.at_epoch_ms, epoch=done.epoch, found=done.found)
    )


def _hit(entry: CacheEntry, freshness: Freshness, result: bytes, at_ms: int) -> Response[str]:
    """`at_ms`: when the freshness was decided, so that header and body say the same."""
    reply = hit_reply(entry, freshness, result, base_path=_base_path(), now_ms=at_ms)
    return _response(_of_bearable_size(reply, entry.result))


def _of_bearable_size(reply: Reply, result: Payload | None) -> Reply:
    """The reply, with an address in the result's place when Lambda couldn't return it."""
    if result is None or result.ref is None or not reply.too_large:
        return reply
    return reply.with_result_url(_deps().submitter.payloads.url(result.ref))


_METHODS = {
    "/health": ("GET", "HEAD"),
    "/jobs": ("POST",),
    "/jobs/[^/]+": ("GET", "HEAD"),
    "/jobs/[^/]+/cancel": ("POST",),
    "/admin/cache/invalidate": ("POST",),
}
"""What each path takes; everything else is refused with these in `Allow`, whatever its name."""


@app.not_found
def no_route(_: Exception) -> Response[str]:
    """An unknown path, or a known one without this method."""
    path, method = app.current_event.path, app.current_event.http_method
    for known, allowed in _METHODS.items():
        if re.fullmatch(f"{known}/*", path) and method not in allowed:
            error = MethodNotAllowedError("This path doesn't have this method.")
            return _problem(error, Allow=", ".join(allowed))
    return _problem(RouteNotFoundError("There is no such path."))


@app.exception_handler(SluicewayError)  # type: ignore[untyped-decorator]
def refused(error: SluicewayError) -> Response[str]:
    """What the use cases raise on purpose."""
    _deps().telemetry.event("request_refused", code=error.code)
    return _problem(error)


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]
def unexpected(error: Exception) -> Response[str]:
    """The boundary: a traceback is no answer, and its text may hold a prompt."""
    _deps().telemetry.error("unexpected_error", error)
    return _problem(SluicewayError(_UNEXPECTED))


_UNEXPECTED = "Something failed on our side. The same request may be sent again."


# ------------------------------------------------------------------------------------ request


def _deps() -> ApiDeps:
    deps: ApiDeps = app.context["deps"]
    return deps


def _caller() -> Caller:
    """Whom the authorizer let in; its context arrives as strings."""
    context = app.current_event.raw_event["requestContext"].get("authorizer") or {}
    return Caller(
        tenant=context.get("tenant") or "",
        scopes=frozenset((context.get("scopes") or "").split()),
        key_id=context.get("key_id") or "",
    )


def _body() -> bytes:
    """The decoded body, JSON by its declared type and of bearable size."""
    media_type, _, parameters = app.context["headers"].get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if media_type not in _JSON_TYPES and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError("Send JSON as application/json.")
    charset = re.search(r'charset="?([^";]+)', parameters, re.IGNORECASE)
    if charset and charset[1].strip().lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise UnsupportedMediaTypeError("Send JSON as UTF-8.")
    raw = app.current_event.raw_event
    text: str = raw.get("body") or ""
    if len(text) > 2 * MAX_BODY_BYTES:
        raise PayloadTooLargeError(f"The body may be {MAX_BODY_BYTES} bytes at most.")
    if not raw.get("isBase64Encoded"):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRequestError("The body is not base64.") from error


def _correlation_id() -> str:
    given: str | None = app.context["headers"].get("x-correlation-id")
    if given is None:
        return str(app.context["request_id"])
    if not re.fullmatch(r"[\x21-\x7e]{1,128}", given):
        raise InvalidRequestError("X-Correlation-Id is 1 to 128 visible ASCII characters.")
    return given


def _refuse_unknown_parameters(*known: str) -> None:
    """A parameter that we don't know may change what the client expects, so it isn't ignored."""
    given = app.current_event.raw_event.get("queryStringParameters") or {}
    unknown = given.keys() - known
    if unknown:
        names = ", ".join(sorted(name[:32] for name in unknown))
        raise InvalidRequestError(f"This path takes no parameter {names}.")


def _dry_run() -> bool:
    """Whether the submit only asks what it would get."""
    _refuse_unknown_parameters("dry_run")
    raw = app.current_event.raw_event
    one = (raw.get("queryStringParameters") or {}).get("dry_run", "false")
    values = (raw.get("multiValueQueryStringParameters") or {}).get("dry_run") or [one]
    if len(values) != 1 or values[0] not in {"true", "false"}:
        raise InvalidRequestError("dry_run is true or false.")
    return bool(values[0] == "true")


def _base_path() -> str:
    """What stands before our paths: the stage, or whatever a custom domain maps to it."""
    raw = app.current_event.raw_event
    full: str = raw["requestContext"].get("path") or raw["path"]
    return full.rstrip("/").removesuffix(raw["path"].rstrip("/")).rstrip("/")


# ------------------------------------------------------------------------------------ reply


def _problem(error: SluicewayError, **headers: str) -> Response[str]:
    return _response(problem(error, app.context["request_id"], **headers))


def _response(reply: Reply) -> Response[str]:
    given = app.context["headers"].get("x-correlation-id", "")
    correlation_id = given if re.fullmatch(r"[\x21-\x7e]{1,128}", given) else ""
    return Response(
        status_code=reply.status,
        content_type=reply.content_type,
        body=reply.serialised(),
        headers={
            **reply.headers,
            "X-Request-Id": app.context["request_id"],
            "X-Correlation-Id": correlation_id or app.context["request_id"],
            "Cache-Control": "no-store",
        },
    )
