"""Webhook endpoints in the Jobs table, a row for each tenant (port WebhookEndpoints).

All that a tenant has fits into one row, so that a change is one conditional write, its limit is
exact, and an event reads one row to know who wants it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import MAX_TRIES, Table, Write, members
from sluiceway.domain.endpoint import NO_ENDPOINTS, Endpoint, Endpoints, Secret
from sluiceway.domain.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

_SORT_KEY = "endpoints"


class DynamoDBEndpoints:
    """Weakness: changes of one tenant get in each other's way; they are rare."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._name = jobs

    def read(self, tenant: str) -> Endpoints:
        """See WebhookEndpoints."""
        return _endpoints_in(self._table.read(self._name, _key(tenant)))

    def change(self, tenant: str, change: Callable[[Endpoints], Endpoints]) -> Endpoints:
        """See WebhookEndpoints."""
        key = _key(tenant)
        row = self._table.read(self._name, key)
        for _ in range(MAX_TRIES):
            before = _endpoints_in(row)
            wanted = change(before)
            if wanted == before:
                return before
            seen = 0 if row is None else row["revision"]
            item = {**key, "revision": seen + 1, "endpoints": [_values_of(one) for one in wanted]}
            refusal = self._table.write(
                Write(
                    self._name,
                    key,
                    item=item,
                    condition="#revision = :seen" if seen else "attribute_not_exists(#revision)",
                    values={"seen": seen},
                )
            )
            # Refused by our own write, when its reply was lost: then the row is what we wrote.
            if refusal is None or refusal.old == item:
                return wanted
            row = refusal.old
        raise StoreBusyError("The webhooks are being changed.", retry_after_s=1)


def _key(tenant: str) -> dict[str, str]:
    """Not a tenant's name, so no partner can ask for it."""
    return {"tenant": f"webhook#{tenant}", "job_id": _SORT_KEY}


def _values_of(endpoint: Endpoint) -> dict[str, Any]:
    values = {
        "endpoint_id": endpoint.endpoint_id,
        "url": endpoint.url,
        "events": list(endpoint.events),
        "description": endpoint.description,
        "created_at_epoch_ms": endpoint.created_at_epoch_ms,
        "secrets": [
            _present(generation=one.generation, ends_at_epoch_ms=one.ends_at_epoch_ms)
            for one in endpoint.secrets
        ],
        "disabled_at_epoch_ms": endpoint.disabled_at_epoch_ms,
        "disabled_reason": endpoint.disabled_reason,
    }
    return _present(**values)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _endpoints_in(row: dict[str, Any] | None) -> Endpoints:
    if row is None:
        return NO_ENDPOINTS
    return tuple(
        Endpoint(
            endpoint_id=one["endpoint_id"],
            url=one.get("url"),
            events=tuple(one["events"]),
            description=one["description"],
            created_at_epoch_ms=one.get("created_at_epoch_ms"),
            secrets=tuple(Secret(**members(Secret, secret)) for secret in one["secrets"]),
            disabled_at_epoch_ms=one.get("disabled_at_epoch_ms"),
            disabled_reason=one.get("disabled_reason"),
        )
        for one in row["endpoints"]
    )
