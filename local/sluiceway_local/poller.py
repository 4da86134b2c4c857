"""Takes messages of a queue and gives them to a handler, as Lambda's event source mapping does.

For what has no mapping that works: an emulator of SQS alone, and a handler that somebody wants to
step through. It runs in the thread of whoever calls it, one batch at a time, and never sleeps.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluiceway_local.processes import REGION

if TYPE_CHECKING:
    from collections.abc import Callable

ACCOUNT = "000000000000"
"""Of the emulators."""


@dataclass(frozen=True, slots=True)
class Context:
    """What Lambda tells a handler of its invocation, as far as handlers look at it."""

    function_name: str
    timeout_s: float
    began_s: float = field(default_factory=time.monotonic)
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    memory_limit_in_mb: int = 512
    function_version: str = "$LATEST"

    @property
    def invoked_function_arn(self) -> str:
        """In the account of the emulators."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Nobody ends the handler when it is 0."""
        return max(0, round((self.began_s + self.timeout_s - time.monotonic()) * 1000))


@dataclass(frozen=True, slots=True)
class Poller:
    """One queue and the handler that is to have its messages.

    The mapping reports batch item failures: what the handler names stays in the queue and comes
    back when its visibility ends, and the rest is deleted.
    """

    sqs: Any
    """A client of SQS."""
    queue_url: str
    handler: Callable[[dict[str, Any], Any], Any]
    function_name: str
    timeout_s: float
    """Of the function; the queue says for how long a message is hidden."""
    batch_size: int = 1

    def once(self, *, wait_s: int = 0) -> int:
        """Runs the handler on what is there, or comes within `wait_s`; gives how much it was.

        Raises what the handler raises; all its messages stay in the queue then.
        """
        answer = self.sqs.receive_message(
            QueueUrl=self.queue_url,
            MaxNumberOfMessages=self.batch_size,
            WaitTimeSeconds=wait_s,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages = answer.get("Messages", [])
        if not messages:
            return 0
        records = [self._record(message) for message in messages]
        told = self.handler({"Records": records}, Context(self.function_name, self.timeout_s))
        kept = _kept(told, {record["messageId"] for record in records})
        for record in records:
            if record["messageId"] not in kept:
                self.sqs.delete_message(
                    QueueUrl=self.queue_url, ReceiptHandle=record["receiptHandle"]
                )
        return len(records)

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": {
                name: {f"{kind[0].lower()}{kind[1:]}": value for kind, value in attribute.items()}
                for name, attribute in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.queue_url.rsplit('/', 1)[1]}",
            "awsRegion": REGION,
        }


def _kept(told: Any, known: set[str]) -> set[str]:
    """The messages that stay: those that are named, or all when one is named that there isn't."""
    failures = (told or {}).get("batchItemFailures") or []
    named = {failure.get("itemIdentifier") for failure in failures}
    return named if named.issubset(known) else known
