"""The worker: takes a job's message from a lane and runs the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.adapters.sqs_queue import read_body
from sluiceway.domain.errors import StoreBusyError
from sluiceway.usecases.run_job import Acknowledge, Decision, Delivery, GiveBack, run_job

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import RunDeps

NO_CATALOGUE_S = 60.0
"""A message waits so long while the catalogue can't be read, and so much longer each time: it would
be in the dead-letter queue within ten minutes."""


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers an SQS event with the messages that are to stay in the queue."""
    return handle(event, context, bootstrap.run_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: RunDeps) -> dict[str, Any]:
    """One record at a time; one that fails unexpectedly comes back when its visibility ends."""
    kept = []
    for record in event["Records"]:
        with deps.telemetry.invocation(context):
            try:
                decision = _run(record, context, deps)
                if isinstance(decision, Acknowledge):
                    continue
                lane = deps.lane_of_queue[_queue_name(record)]
                deps.queue.give_back(lane, record["receiptHandle"], decision.delay_s)
            except Exception as error:  # noqa: BLE001 - the boundary: a record mustn't take others along
                deps.telemetry.error("unexpected_error", error)
        kept.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": kept}


def _queue_name(record: dict[str, Any]) -> str:
    name: str = record["eventSourceARN"].rsplit(":", 1)[-1]
    return name


def _run(record: dict[str, Any], context: LambdaContext, deps: RunDeps) -> Decision:
    work = read_body(record["body"])
    if work is None:
        deps.telemetry.event("message_unreadable", message_id=record["messageId"])
        return GiveBack()
    tenant, job_id = work
    attributes = record["attributes"]
    enqueued_at_ms = int(attributes["SentTimestamp"])
    if "DeadLetterQueueSourceArn" in attributes:
        # LocalStack keeps the first enqueueing's time in a message that it moves back.
        enqueued_at_ms = max(enqueued_at_ms, int(attributes["ApproximateFirstReceiveTimestamp"]))
    receives = int(attributes["ApproximateReceiveCount"])
    try:
        worker = deps.worker()
    except StoreBusyError as error:  # without a catalogue nobody knows what the job needs
        deps.telemetry.error("configuration_unread", error)
        return GiveBack(NO_CATALOGUE_S * receives)
    return run_job(
        Delivery(
            tenant=tenant,
            job_id=job_id,
            receives=receives,
            enqueued_at_ms=enqueued_at_ms,
            lane=deps.lane_of_queue[_queue_name(record)],
            function_ends_ms=worker.clock.now_ms() + context.get_remaining_time_in_millis(),
        ),
        worker,
    )
