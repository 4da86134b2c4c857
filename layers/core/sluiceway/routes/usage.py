"""Usage: what the caller's jobs came to."""

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayRouter

from sluiceway.http import usage_reply
from sluiceway.routes.request import request_of
from sluiceway.usecases.usage import newest_first, period_of

router = APIGatewayRouter()  # type: ignore[no-untyped-call]


@router.route("/usage", ["GET", "HEAD"])
def get_usage() -> Response[str]:
    """The tenant's usage by day and model, newest first."""
    request = request_of(router)
    caller = request.caller("read")
    now_ms = request.deps.submitter.clock.now_ms()
    period = period_of(request.parameters("from", "to"), now_ms=now_ms)
    rows = request.deps.usage.read(caller.tenant, period.first_day, period.last_day)
    return request.respond(usage_reply(period.first_day, period.last_day, newest_first(rows)))
