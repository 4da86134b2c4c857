"""The event bus in EventBridge (port EventBus)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluiceway.ports import E

MAX_ENTRIES = 10
"""Of one PutEvents."""


class EventBridgeEvents:
    """Weakness: a batch whose reply was lost may have arrived; the events' ids tell."""

    def __init__(
        self,
        client: Any,
        bus: str,
        *,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`client`: of EventBridge. `bus`: its name. `on_failure` is told each failure's code."""
        self._client = client
        self._bus = bus
        self._on_failure = on_failure

    def put(self, events: Sequence[E]) -> list[E]:
        """See EventBus."""
        refused: list[E] = []
        for start in range(0, len(events), MAX_ENTRIES):
            batch = events[start : start + MAX_ENTRIES]
            try:
                refused += self._put(batch)
            except (BotoCoreError, ClientError) as error:
                # The rest would fail as slowly, and the stream's other readers wait.
                self._on_failure(type(error).__name__)
                return [*refused, *events[start:]]
        return refused

    def _put(self, batch: Sequence[E]) -> list[E]:
        answer = self._client.put_events(
            Entries=[
                {
                    "Time": datetime.fromtimestamp(event.at_epoch_ms / 1000, UTC),
                    "Source": event.source,
                    "DetailType": event.detail_type,
                    "Detail": json.dumps(event.detail()),
                    "EventBusName": self._bus,
                }
                for event in batch
            ]
        )
        refused = []
        for event, entry in zip(batch, answer["Entries"], strict=True):
            if "ErrorCode" in entry:
                self._on_failure(entry["ErrorCode"])
                refused.append(event)
        return refused
