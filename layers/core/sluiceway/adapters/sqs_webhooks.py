"""The webhooks that are to be delivered, in SQS (port WebhookQueue)."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.backoff import MAX_VISIBILITY_S
from sluiceway.domain.webhook import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mypy_boto3_sqs import SQSClient

MAX_ENTRIES = 10
"""Of one SendMessageBatch."""

_END_OF_TIME_MS = 1 << 48
"""More doesn't fit into an id; the year 10889."""

_MEMBERS = Delivery.__dataclass_fields__.keys()
_NEEDED = frozenset(of.name for of in fields(Delivery) if of.default is MISSING)


class SQSWebhooks:
    """Weakness: a send whose reply was lost may have arrived; the partner sees the same id."""

    def __init__(
        self,
        client: SQSClient,
        queue_url: str,
        *,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_failure` is told the code of each failure."""
        self._client = client
        self._queue_url = queue_url
        self._on_failure = on_failure

    def send(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """See WebhookQueue."""
        refused: list[Delivery] = []
        for start in range(0, len(deliveries), MAX_ENTRIES):
            batch = deliveries[start : start + MAX_ENTRIES]
            try:
                refused += self._send(batch)
            except (BotoCoreError, ClientError) as error:
                # The rest would fail as slowly, and the stream's other readers wait.
                self._on_failure(type(error).__name__)
                return [*refused, *deliveries[start:]]
        return refused

    def _send(self, batch: Sequence[Delivery]) -> list[Delivery]:
        answer = self._client.send_message_batch(
            QueueUrl=self._queue_url,
            Entries=[
                {
                    "Id": str(place),
                    "MessageBody": message_body(delivery),
                    "MessageGroupId": delivery.tenant,  # fair queues: one can't crowd
                }
                for place, delivery in enumerate(batch)
            ],
        )
        sent = {int(entry["Id"]) for entry in answer.get("Successful", ())}
        for entry in answer.get("Failed", ()):
            self._on_failure(entry["Code"])
        return [delivery for place, delivery in enumerate(batch) if place not in sent]

    def give_back(self, receipt: str, delay_s: float) -> None:
        """See WebhookQueue. A message that is gone or visible already is left alone."""
        try:
            self._client.change_message_visibility(
                QueueUrl=self._queue_url,
                ReceiptHandle=receipt,
                VisibilityTimeout=min(MAX_VISIBILITY_S, max(0, math.ceil(delay_s))),
            )
        except (BotoCoreError, ClientError) as error:
            # It comes back when its visibility ends, which is later or sooner but as good.
            self._on_failure(type(error).__name__)


def message_body(delivery: Delivery) -> str:
    """The message: ASCII, since SQS refuses some characters."""
    return json.dumps({name: getattr(delivery, name) for name in _MEMBERS})


def read_body(body: str) -> Delivery | None:
    """The delivery in a message; None when it isn't one of ours.

    What newer code wrote besides is left alone: two versions share the queue during a rollout.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not value.keys() >= _NEEDED:
        return None
    value = {name: value[name] for name in _MEMBERS & value.keys()}
    at_ms = value.pop("at_epoch_ms")
    if type(at_ms) is not int or not 0 <= at_ms < _END_OF_TIME_MS:
        return None
    if not all(isinstance(item, str) and item.isascii() for item in value.values()):
        return None
    return Delivery(at_epoch_ms=at_ms, **value)
