"""The invalidator: an event on the bus makes cached answers invalid.

So a release that changes a model's answers can say so, without a key of this API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.domain.request import parse_invalidation
from sluiceway.usecases.invalidate_cache import Invalidation, invalidate_cache

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import InvalidateDeps


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Takes an EventBridge event `CacheInvalidate` of the source `sluiceway.ops`."""
    handle(event, context, bootstrap.invalidate_deps().now())


def handle(event: dict[str, Any], context: LambdaContext, deps: InvalidateDeps) -> None:
    """Raises for an event that can't be followed: it ends in the function's failure queue."""
    with deps.telemetry.invocation(context):
        event_id = str(event.get("id", ""))
        request = parse_invalidation(event.get("detail"))
        if request.model is not None:
            deps.catalogue.model(request.model)  # a slip of the pen would do nothing
        invalidate_cache(
            Invalidation.of(request),
            actor=f"event:{event_id}",
            request_id=event_id,
            invalidator=deps.invalidator,
        )
