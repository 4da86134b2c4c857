"""The publisher: tells the event bus and the webhook queue of jobs that have ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.adapters.dynamodb_stream import event_of
from sluiceway.usecases.publish_events import publish_events

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import PublishDeps
    from sluiceway.domain.webhook import JobEvent


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Takes a batch of the Jobs table's stream."""
    handle(event, context, bootstrap.publish_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: PublishDeps) -> None:
    """Raises when anything is left, so that the stream brings the batch again, or halves of it.

    A reported partial failure would do less on AWS and lose the record on emulators.
    """
    with deps.telemetry.invocation(context):
        publish_events(
            [told for record in event["Records"] if (told := _read(record, deps))],
            bus=deps.bus,
            endpoints=deps.endpoints,
            webhooks=deps.webhooks,
            telemetry=deps.telemetry,
            pause=deps.pause,
        )


def _read(record: dict[str, Any], deps: PublishDeps) -> JobEvent | None:
    """A record that can't be read never can be: it mustn't hold up its shard."""
    try:
        told = event_of(record)
        if told is not None:
            json.dumps(told.detail())
        return told  # noqa: TRY300 - the detail is what may fail, and its JSON
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        deps.telemetry.event("record_unreadable", error_class=type(error).__name__)
        return None
