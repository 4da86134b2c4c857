"""The deliverer: takes a webhook from its queue and makes one attempt at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.adapters.sqs_webhooks import read_body
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.webhook import retry_delay_s
from sluiceway.usecases.deliver_webhook import deliver_webhook

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import DeliverDeps


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers an SQS event with the messages that are to stay in the queue."""
    return handle(event, context, bootstrap.deliver_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: DeliverDeps) -> dict[str, Any]:
    """One record at a time; one that fails unexpectedly comes back when its visibility ends."""
    kept = []
    for record in event["Records"]:
        with deps.telemetry.invocation(context):
            try:
                delay_s = _deliver(record, deps)
                if delay_s is None:
                    continue
                deps.webhooks.give_back(record["receiptHandle"], delay_s)
            except Exception as error:  # noqa: BLE001 - the boundary: a record mustn't take others along
                deps.telemetry.error("unexpected_error", error)
        kept.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": kept}


def _deliver(record: dict[str, Any], deps: DeliverDeps) -> float | None:
    delivery = read_body(record["body"])
    if delivery is None:
        deps.telemetry.event("message_unreadable", message_id=record["messageId"])
        return 0.0  # until SQS moves it to the dead-letter queue
    receives = int(record["attributes"]["ApproximateReceiveCount"])
    try:
        courier = deps.courier()
    except StoreBusyError as error:  # without flags nobody knows whether it may go out
        deps.telemetry.error("configuration_unread", error)
        return retry_delay_s(receives, rand=0.0)
    return deliver_webhook(delivery, receives, courier)
