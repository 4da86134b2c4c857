"""The partner API: takes requests, answers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.domain.errors import SluicewayError, StoreBusyError
from sluiceway.routes import jobs, table  # noqa: F401 - most requests are about jobs
from sluiceway.routes.request import UNEXPECTED, ApiDeps, Request

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


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
    return Request(event, context, deps=None).refuse(error)  # type: ignore[arg-type]


def handle(event: dict[str, Any], context: LambdaContext, deps: ApiDeps) -> dict[str, Any]:
    """Routes the request; whatever goes wrong becomes an answer."""
    request = Request(event, context, deps)
    correlation_id = request.headers.get("x-correlation-id") or request.request_id
    telemetry = deps.telemetry
    with telemetry.invocation(context, correlation_id[:128]):
        telemetry.keys(request_id=request.request_id)  # the one that the partner sees
        try:
            answer, named = table.find(event["httpMethod"], event["path"])
            return request.answer(answer(request, **named))
        except SluicewayError as error:  # what the use cases raise on purpose
            telemetry.event("request_refused", code=error.code)
            return request.refuse(error)
        except Exception as error:  # noqa: BLE001 - the boundary: a traceback is no answer, and its text may hold a prompt
            telemetry.error("unexpected_error", error)
            return request.refuse(SluicewayError(UNEXPECTED))
