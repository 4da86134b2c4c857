"""Cache entries in DynamoDB (port ResultCache)."""

from dataclasses import fields
from typing import Any

from sluiceway.adapters.dynamodb import Table
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.payload import Payload

_PLAIN = tuple(field.name for field in fields(CacheEntry) if field.name != "result")


class DynamoDBCache:
    """Weakness: a hot entry is one partition; 3,000 consistent reads of 4 KB a second at most."""

    def __init__(self, table: Table, name: str) -> None:
        """`name`: of the Cache table."""
        self._table = table
        self._name = name

    def read(self, cache_key: str) -> CacheEntry | None:
        """See ResultCache."""
        values = self._table.read(self._name, {"cache_key": cache_key})
        return None if values is None else _entry_of(values)


def entry_values(entry: CacheEntry) -> dict[str, Any]:
    """The row's attributes."""
    return {
        "cache_key": entry.cache_key,
        "scope": entry.scope,
        "tenant": entry.tenant,
        "model": entry.model,
        "result_inline": entry.result.inline,
        "result_ref": entry.result.ref,
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
        "cost_nanos": entry.cost_nanos,
        "vendor_request_id": entry.vendor_request_id,
        "stored_at_epoch_ms": entry.stored_at_epoch_ms,
        "hard_expires_at_epoch_ms": entry.hard_expires_at_epoch_ms,
        "ttl_epoch_s": entry.ttl_epoch_s,
    }


def _entry_of(values: dict[str, Any]) -> CacheEntry:
    """What newer code wrote besides is left alone."""
    known = {name: values[name] for name in _PLAIN if name in values}
    result = Payload(values.get("result_inline"), values.get("result_ref"))
    return CacheEntry(result=result, **known)
