"""What an operator's command sees of SQS: the dead-letter queue of a stage, call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.adapters.sqs_queue import message_body, read_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.stage import Lanes

DEAD = "dead"
"""The queue's URL. A lane's is its name."""


class DeadLetterClient:
    """The calls of an SQS client that `DeadLetters` makes; it moves nothing by itself."""

    def __init__(self, lanes: Lanes, now_ms: Callable[[], int]) -> None:
        self._lanes = lanes
        self._now_ms = now_ms

    def receive_message(self, **request: Any) -> dict[str, Any]:
        """Who looks holds what it sees for a while, even when it dies."""
        assert request["QueueUrl"] == DEAD
        now_ms = self._now_ms()
        found = [one for one in self._lanes.dead.values() if one.visible_at_ms <= now_ms]
        found = found[: request["MaxNumberOfMessages"]]
        for one in found:
            one.visible_at_ms = now_ms + request["VisibilityTimeout"] * 1000
        return {
            "Messages": [
                {
                    "MessageId": str(one.number),
                    "ReceiptHandle": str(one.number),
                    "Body": message_body(*one.job),
                }
                for one in found
            ]
        }

    def get_queue_attributes(self, **request: Any) -> dict[str, Any]:
        """As many as there are: those that can be seen, and those that somebody looks at."""
        assert request["QueueUrl"] == DEAD
        now_ms = self._now_ms()
        letters = self._lanes.dead.values()
        hidden = sum(one.visible_at_ms > now_ms for one in letters)
        counts = {
            "ApproximateNumberOfMessages": len(letters) - hidden,
            "ApproximateNumberOfMessagesDelayed": 0,
            "ApproximateNumberOfMessagesNotVisible": hidden,
        }
        return {"Attributes": {name: str(counts[name]) for name in request["AttributeNames"]}}

    def change_message_visibility_batch(self, **request: Any) -> None:
        for entry in request["Entries"]:
            one = self._lanes.dead.get(int(entry["ReceiptHandle"]))
            if one is not None:
                one.visible_at_ms = self._now_ms() + entry["VisibilityTimeout"] * 1000

    def delete_message(self, **request: Any) -> None:
        assert request["QueueUrl"] == DEAD
        self._lanes.forget(int(request["ReceiptHandle"]))

    def send_message(self, **request: Any) -> None:
        job = read_body(request["MessageBody"])
        assert job is not None
        self._lanes.put(request["QueueUrl"], job)
