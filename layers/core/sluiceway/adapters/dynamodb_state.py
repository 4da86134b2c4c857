"""The service's state in one row of the Coordination table (port StateStore).

Attributes: `model:<name>` and `tenant:<name>` (epochs), `degraded_since_epoch_ms`,
`degraded_told_epoch_ms`, `paused_tenants` and `paused_lanes` (sets of names), and `degraded_by`,
`degraded_told_by` and `paused_by`, tokens of the last call that began or ended degraded mode, that
told of it, and that paused or resumed a tenant or a lane.
"""

from __future__ import annotations

import secrets
from typing import Any

from sluiceway.adapters.dynamodb import Table, Write
from sluiceway.ports import Clock, ServiceState

COPY_LIVES_MS = 4_500
"""With the time of a read less than the 5 s in which a change must be seen everywhere."""

STATE_KEY = {"coordination_key": "state"}


class DynamoDBState:
    """Weakness: one row is read by every process each 5 s, and holds some 8,000 epochs at most."""

    def __init__(self, table: Table, coordination: str, *, clock: Clock) -> None:
        """`coordination`: name of the Coordination table."""
        self._table = table
        self._name = coordination
        self._clock = clock
        self._copy = ServiceState()
        self._copied_at_ms = -COPY_LIVES_MS

    def read(self) -> ServiceState:
        """See StateStore."""
        now_ms = self._clock.now_ms()
        # A clock that went back makes the copy old, too.
        if not 0 <= now_ms - self._copied_at_ms < COPY_LIVES_MS:
            values = self._table.read(self._name, STATE_KEY) or {}
            self._copy = ServiceState(
                epochs={name: value for name, value in values.items() if ":" in name},
                degraded_since_epoch_ms=values.get("degraded_since_epoch_ms"),
                degraded_told_epoch_ms=values.get("degraded_told_epoch_ms"),
                paused_tenants=frozenset(values.get("paused_tenants", ())),
                paused_lanes=frozenset(values.get("paused_lanes", ())),
            )
            self._copied_at_ms = now_ms
        return self._copy

    def invalidate(self, subject: str, *, now_ms: int) -> int:
        """See StateStore."""
        epoch = now_ms
        while True:
            refusal = self._table.write(
                Write(
                    self._name,
                    STATE_KEY,
                    update="SET #epoch = :epoch",
                    condition="attribute_not_exists(#epoch) OR #epoch < :epoch",
                    values={"epoch": epoch},
                    names={"epoch": subject},
                )
            )
            if refusal is None:
                return epoch
            # Another clock is ahead; an epoch only ever grows.
            epoch = (refusal.old or {}).get(subject, epoch) + 1

    def set_degraded(self, since_ms: int | None) -> bool:
        """See StateStore."""
        if since_ms is None:
            return self._change(
                "degraded_by",
                "REMOVE #degraded_since_epoch_ms, #degraded_told_epoch_ms",
                "attribute_exists(#degraded_since_epoch_ms)",
            )
        return self._change(
            "degraded_by",
            ", #degraded_since_epoch_ms = :since",
            "attribute_not_exists(#degraded_since_epoch_ms)",
            since=since_ms,
        )

    def tell_degraded(self, since_ms: int, from_ms: int, until_ms: int) -> bool:
        """See StateStore."""
        return self._change(
            "degraded_told_by",
            ", #degraded_told_epoch_ms = :until",
            "#degraded_since_epoch_ms = :since AND (attribute_not_exists(#degraded_told_epoch_ms)"
            " OR #degraded_told_epoch_ms <= :from)",
            **{"since": since_ms, "from": from_ms, "until": until_ms},
        )

    def pause_tenant(self, tenant: str) -> bool:
        """See StateStore."""
        return self._pause("paused_tenants", tenant)

    def resume_tenant(self, tenant: str) -> bool:
        """See StateStore."""
        return self._resume("paused_tenants", tenant)

    def pause_lane(self, lane: str) -> bool:
        """See StateStore."""
        return self._pause("paused_lanes", lane)

    def resume_lane(self, lane: str) -> bool:
        """See StateStore."""
        return self._resume("paused_lanes", lane)

    def _pause(self, names: str, name: str) -> bool:
        missing = f"(attribute_not_exists(#{names}) OR NOT contains(#{names}, :name))"
        return self._change("paused_by", f"ADD #{names} :names", missing, names={name}, name=name)

    def _resume(self, names: str, name: str) -> bool:
        held = f"contains(#{names}, :name)"
        return self._change("paused_by", f"DELETE #{names} :names", held, names={name}, name=name)

    def _change(self, by: str, change: str, condition: str, **values: Any) -> bool:
        """Changes the row, and notes in `by` that it was this call; `change` follows that SET.

        False when the condition doesn't hold, unless by our own write, whose reply was lost.
        """
        self._copied_at_ms = -COPY_LIVES_MS  # of any time: the copy is used no more
        token = secrets.token_urlsafe(6)
        refusal = self._table.write(
            Write(
                self._name,
                STATE_KEY,
                update=f"SET #{by} = :token {change}",
                condition=condition,
                values={**values, "token": token},
            )
        )
        return refusal is None or (refusal.old or {}).get(by) == token
