"""Batches in the Jobs table, under an owner of their own for each tenant (port Batches)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write, members
from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.errors import DamagedRowError
from sluiceway.domain.freshness import Freshness, KeptHit

if TYPE_CHECKING:
    from collections.abc import Mapping


class DynamoDBBatches:
    """Weakness: a batch whose items were all refused at length is over 300 KB."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._name = jobs

    def add(self, batch: Batch) -> None:
        """See Batches."""
        key = _key(batch.tenant, batch.batch_id)
        # A refusal is our own row: its id is random.
        self._table.write(
            Write(
                self._name,
                key,
                item={**key, **_values_of(batch)},
                condition="attribute_not_exists(#job_id)",
            )
        )

    def get(self, tenant: str, batch_id: str) -> Batch | None:
        """See Batches."""
        values = self._table.read(self._name, _key(tenant, batch_id))
        return None if values is None else _batch_of(values, tenant)


def _key(tenant: str, batch_id: str) -> dict[str, str]:
    """The owner is no tenant's name, so a batch is in no list of jobs."""
    return {"tenant": f"batch#{tenant}", "job_id": batch_id}


def _values_of(batch: Batch) -> dict[str, Any]:
    """The attributes but for the key."""
    return {
        "created_at_epoch_ms": batch.created_at_epoch_ms,
        "ttl_epoch_s": batch.ttl_epoch_s,
        "items": [_stored(asdict(item)) for item in batch.items],
    }


def _stored(value: Any) -> Any:
    """Members that say nothing are left out."""
    match value:
        case dict():
            told = {name: _stored(one) for name, one in value.items() if one is not None}
            return {name: one for name, one in told.items() if one is not False and one != []}
        case tuple() | list():
            return [_stored(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _batch_of(values: Mapping[str, Any], tenant: str) -> Batch:
    """Raises DamagedRowError."""
    try:
        return Batch(
            tenant=tenant,
            batch_id=values["job_id"],
            created_at_epoch_ms=int(values["created_at_epoch_ms"]),
            ttl_epoch_s=int(values["ttl_epoch_s"]),
            items=tuple(_item_of(item) for item in values["items"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRowError("The row of a batch is damaged.") from error


def _item_of(item: Mapping[str, Any]) -> BatchItem:
    hit, refusal = item.get("hit"), item.get("refusal")
    return BatchItem(
        custom_id=item["custom_id"],
        job_id=item.get("job_id"),
        deduplicated=item.get("deduplicated", False),
        hit=(
            None
            if hit is None
            else KeptHit(**members(KeptHit, hit) | {"freshness": Freshness(hit["freshness"])})
        ),
        refusal=(
            None
            if refusal is None
            else Refusal(**members(Refusal, refusal) | {"errors": tuple(refusal.get("errors", ()))})
        ),
    )
