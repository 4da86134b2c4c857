"""The partner API: takes requests, answers at once."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.utilities.typing import LambdaContext
from sluiceway import bootstrap
from sluiceway.domain.errors import (
    MethodNotAllowedError,
    RouteNotFoundError,
    SluicewayError,
    StoreBusyError,
)
from sluiceway.http import Reply
from sluiceway.routes import batches, jobs, openai, service, usage, webhooks
from sluiceway.routes.request import UNEXPECTED, ApiDeps, Request, request_of

app = APIGatewayRestResolver()
app.include_router(service.router)
app.include_router(jobs.router)
app.include_router(usage.router)
app.include_router(batches.router)
app.include_router(openai.router)
app.include_router(webhooks.router)


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers an API Gateway proxy event."""
    try:
        deps = bootstrap.api_deps().now()
    except StoreBusyError as error:  # no catalogue was ever read: there is nothing to work with
        return refuse(event, context, error)
    return handle(event, context, deps)


def refuse(event: dict[str, Any], context: LambdaContext, error: StoreBusyError) -> dict[str, Any]:
    """Answers any request with the error."""
    # A refusal needs nothing of what there isn't.
    request = Request(event, context, deps=None)  # type: ignore[arg-type]
    response = request.refuse(error)
    return {
        "statusCode": response.status_code,
        "multiValueHeaders": {name: [str(value)] for name, value in response.headers.items()},
        "body": "" if event["httpMethod"] == "HEAD" else response.body,
        "isBase64Encoded": False,
    }


def handle(event: dict[str, Any], context: LambdaContext, deps: ApiDeps) -> dict[str, Any]:
    """Routes the request; whatever goes wrong becomes an answer. Clears what it kept of it."""
    request = Request(event, context, deps)
    correlation_id = request.headers.get("x-correlation-id") or request.request_id
    with deps.telemetry.invocation(context, correlation_id[:128]):
        deps.telemetry.keys(request_id=request.request_id)  # the one that the partner sees
        app.append_context(request=request)  # type: ignore[no-untyped-call]
        answered: dict[str, Any] = app.resolve(event, context)
        if event["httpMethod"] == "HEAD":  # the status and the headers of a GET, and no more
            answered["body"] = ""
        return answered


@app.route("/openapi.json", ["GET", "HEAD"])
def get_openapi() -> Response[str]:
    """The document of this API; needs no key."""
    return request_of(app).respond(Reply(200, _document(), {}))


@cache
def _document() -> Any:
    """Made by `make openapi`, and packaged with the function; read when it is asked for."""
    return json.loads(Path(__file__).with_name("openapi.json").read_text("utf-8"))


@app.not_found
def no_route(_: Exception) -> Response[str]:
    """An unknown path, or a known one without this method.

    Everything else is refused with the methods that there are in `Allow`, whatever its name.
    """
    request = request_of(app)
    path, method = request.event["path"].rstrip("/"), request.event["httpMethod"]
    routes = (*app._static_routes, *app._dynamic_routes)  # noqa: SLF001 - it has no public list
    allowed = {route.method for route in routes if route.rule.match(path)}
    if allowed and method not in allowed:
        error = MethodNotAllowedError("This path doesn't have this method.")
        return request.refuse(error, Allow=", ".join(sorted(allowed)))
    return request.refuse(RouteNotFoundError("There is no such path."))


@app.exception_handler(SluicewayError)  # type: ignore[untyped-decorator]
def refused(error: SluicewayError) -> Response[str]:
    """What the use cases raise on purpose."""
    request = request_of(app)
    request.deps.telemetry.event("request_refused", code=error.code)
    return request.refuse(error)


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]
def unexpected(error: Exception) -> Response[str]:
    """The boundary: a traceback is no answer, and its text may hold a prompt."""
    request = request_of(app)
    request.deps.telemetry.error("unexpected_error", error)
    return request.refuse(SluicewayError(UNEXPECTED))
