"""The tenants' requests per minute in DynamoDB (port TenantRates).

Coordination rows, by `coordination_key`:
    rate#<tenant>#<minute since 1970>       requests
"""

from __future__ import annotations

from sluiceway.adapters.dynamodb import Refusal, Table, Write
from sluiceway.ports import RateLeft

_MINUTE_MS = 60_000
_ROW_LIVES_S = 3600


class DynamoDBRates:
    """Weakness: a window begins with each minute, so twice the limit fits around its beginning."""

    def __init__(self, table: Table, coordination: str) -> None:
        """`coordination`: name of the Coordination table."""
        self._table = table
        self._name = coordination

    def take(self, tenant: str, limit: int, *, now_ms: int) -> RateLeft:
        """See TenantRates."""
        minute, into_ms = divmod(now_ms, _MINUTE_MS)
        answer = self._table.update(
            Write(
                self._name,
                {"coordination_key": f"rate#{tenant}#{minute}"},
                update="ADD #requests :one SET #ttl_epoch_s = :ttl",
                condition="attribute_not_exists(#requests) OR #requests < :limit",
                values={"one": 1, "limit": limit, "ttl": now_ms // 1000 + _ROW_LIVES_S},
            )
        )
        resets_in_s = -(-(_MINUTE_MS - into_ms) // 1000)
        if isinstance(answer, Refusal):
            return RateLeft(limit, 0, resets_in_s, allowed=False)
        return RateLeft(limit, limit - answer["requests"], resets_in_s, allowed=True)
