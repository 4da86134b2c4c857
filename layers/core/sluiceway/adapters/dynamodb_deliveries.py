"""What became of webhooks, in the Jobs table, by endpoint (port DeliveryLog)."""

from __future__ import annotations

from typing import Any

from sluiceway.adapters.dynamodb import Table, Write
from sluiceway.domain.webhook import (
    DELIVERY_KEPT_S,
    DELIVERY_PREFIX,
    Attempt,
    Delivery,
    DeliveryRecord,
    DeliveryStatus,
    oldest_delivery_id,
)

_AS_THEY_ARE = ("event_id", "type", "at_epoch_ms", "correlation_id", "url", "body")
"""Members of a delivery that are attributes of the same name."""


class DynamoDBDeliveries:
    """Weakness: of attempts that overlap, one that began first and ends last isn't counted."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._name = jobs

    def record(self, delivery: Delivery, attempt: Attempt) -> None:
        """See DeliveryLog. One write."""
        outcome = {"http_status": attempt.http_status, "error": attempt.error}
        values: dict[str, Any] = {
            **{name: getattr(delivery, name) for name in _AS_THEY_ARE},
            "of_job_id": delivery.job_id,  # `job_id` is the sort key
            "ttl_epoch_s": delivery.at_epoch_ms // 1000 + DELIVERY_KEPT_S,
            "delivery_status": attempt.status.value,
            "last_attempt_at_epoch_ms": attempt.at_epoch_ms,
            **(outcome if attempt.made else {}),
        }
        sets = [f"#{name} = :{name}" for name, value in values.items() if value is not None]
        removes = [f"#{name}" for name, value in values.items() if value is None]
        update = f"SET {', '.join(sets)}, #attempts = if_not_exists(#attempts, :zero) + :made"
        if attempt.made:
            update += (
                ", #first_attempt_at_epoch_ms = "
                "if_not_exists(#first_attempt_at_epoch_ms, :last_attempt_at_epoch_ms)"
            )
        # Its own first write, whose reply was lost, is refused as well: it is counted once.
        self._table.write(
            Write(
                self._name,
                _key(delivery.tenant, delivery.endpoint_id, delivery.delivery_id),
                update=update + (f" REMOVE {', '.join(removes)}" if removes else ""),
                condition=(
                    "attribute_not_exists(#last_attempt_at_epoch_ms) "
                    "OR #last_attempt_at_epoch_ms < :last_attempt_at_epoch_ms"
                ),
                values={**values, "zero": 0, "made": int(attempt.made)},
            )
        )

    def get(
        self, tenant: str, endpoint_id: str, delivery_id: str, *, now_ms: int
    ) -> DeliveryRecord | None:
        """See DeliveryLog."""
        if delivery_id < oldest_delivery_id(now_ms):
            return None
        row = self._table.read(self._name, _key(tenant, endpoint_id, delivery_id))
        return None if row is None else _record_in(row, tenant, endpoint_id)

    def list(
        self, tenant: str, endpoint_id: str, *, now_ms: int, limit: int, before: str | None
    ) -> list[DeliveryRecord]:
        """See DeliveryLog. One read: what fits into its page of 1 MB is more than is asked for."""
        oldest, newest = oldest_delivery_id(now_ms), before or f"{DELIVERY_PREFIX}~"
        if newest < oldest:
            return []
        rows, _ = self._table.query(
            TableName=self._name,
            ConsistentRead=True,
            KeyConditionExpression="#tenant = :owner AND #job_id BETWEEN :oldest AND :newest",
            ExpressionAttributeNames={"#tenant": "tenant", "#job_id": "job_id"},
            ExpressionAttributeValues={
                ":owner": {"S": _owner(tenant, endpoint_id)},
                ":oldest": {"S": oldest},
                ":newest": {"S": newest},
            },
            ScanIndexForward=False,
            Limit=limit + 1,  # both ends belong to BETWEEN, and `before` doesn't
        )
        return [_record_in(row, tenant, endpoint_id) for row in rows if row["job_id"] != before][
            :limit
        ]


def _owner(tenant: str, endpoint_id: str) -> str:
    """Not a tenant's name, so no partner can ask for it."""
    return f"delivery#{tenant}#{endpoint_id}"


def _key(tenant: str, endpoint_id: str, delivery_id: str) -> dict[str, str]:
    return {"tenant": _owner(tenant, endpoint_id), "job_id": delivery_id}


def _record_in(row: dict[str, Any], tenant: str, endpoint_id: str) -> DeliveryRecord:
    return DeliveryRecord(
        delivery=Delivery(
            endpoint_id=endpoint_id,
            tenant=tenant,
            job_id=row["of_job_id"],
            **{name: row[name] for name in _AS_THEY_ARE},
        ),
        status=DeliveryStatus(row["delivery_status"]),
        attempts=row["attempts"],
        http_status=row.get("http_status"),
        error=row.get("error"),
        first_attempt_at_epoch_ms=row.get("first_attempt_at_epoch_ms"),
        last_attempt_at_epoch_ms=row["last_attempt_at_epoch_ms"],
    )
