"""Cache entries in DynamoDB (port ResultCache)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write
from sluiceway.domain.freshness import TOMBSTONE_S, CacheEntry, cool_down_ms
from sluiceway.domain.payload import Payload
from sluiceway.ports import Found

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

_PLAIN = tuple(field.name for field in fields(CacheEntry) if field.name != "result")


class DynamoDBCache:
    """Weakness: a hot entry is one partition; 3,000 consistent reads of 4 KB a second at most.

    What it has to write is a part of the jobs' transactions (CacheWrites).
    """

    def __init__(self, table: Table, name: str) -> None:
        """`name`: of the Cache table."""
        self._table = table
        self._name = name

    def read(self, cache_key: str) -> CacheEntry | None:
        """See ResultCache."""
        return self.look(cache_key).entry

    def look(self, cache_key: str) -> Found:
        """See ResultCache."""
        values = self._table.read(self._name, _key(cache_key)) or {}
        return Found(_entry_of(values), values.get("invalidated_at_epoch_ms"))

    def invalidate(self, cache_key: str, *, now_ms: int) -> bool:
        """See ResultCache."""
        tombstone = _key(cache_key) | {
            "invalidated_at_epoch_ms": now_ms,
            "ttl_epoch_s": now_ms // 1000 + TOMBSTONE_S,
        }
        old = self._table.replace(self._name, tombstone)
        return old is not None and _entry_of(old) is not None

    # ------------------------------------------------------------------ writes of transactions

    def store(self, entry: CacheEntry, job: Job) -> list[Write]:
        """See CacheWrites."""
        write = Write(
            self._name,
            _key(entry.cache_key),
            item=_values_of(entry),
            condition=(
                "attribute_not_exists(#invalidated_at_epoch_ms) "
                "OR #invalidated_at_epoch_ms < :created"
            ),
            values={"created": job.created_at_epoch_ms},
        )
        return [write]

    def refresh_queued(self, entry: CacheEntry, job: Job) -> list[Write] | None:
        """See CacheWrites. The transaction itself finds out when the entry has changed."""
        write = Write(
            self._name,
            _key(entry.cache_key),
            update="SET #refresh_until_epoch_ms = :until, #refresh_job_id = :job",
            condition=(
                "#stored_at_epoch_ms = :stored AND "
                "(attribute_not_exists(#refresh_until_epoch_ms) "
                "OR #refresh_until_epoch_ms <= :now) AND "
                "(attribute_not_exists(#refresh_after_epoch_ms) "
                "OR #refresh_after_epoch_ms <= :now)"
            ),
            values={
                "until": job.deadline_epoch_ms,
                "job": job.job_id,
                "stored": entry.stored_at_epoch_ms,
                "now": job.created_at_epoch_ms,
            },
        )
        return [write]

    def refresh_won(self, entry: CacheEntry, job: Job) -> None:
        """See CacheWrites. The mark is written."""

    def refresh_failed(self, job: Job) -> list[Write]:
        """See CacheWrites."""
        entry = self.read(job.cache_key)
        failures = 1 + (entry.refresh_failures if entry else 0)
        ended_at_ms = job.failed_at_epoch_ms or job.completed_at_epoch_ms or 0
        write = Write(
            self._name,
            _key(job.cache_key),
            update=(
                "SET #refresh_after_epoch_ms = :after, #refresh_failures = :failures, "
                "#refresh_error = :error REMOVE #refresh_until_epoch_ms"
            ),
            condition="#refresh_job_id = :job",
            values={
                "after": ended_at_ms + cool_down_ms(failures),
                "failures": failures,
                "error": job.error.code if job.error else "not_cacheable",
                "job": job.job_id,
            },
        )
        return [write]


def _key(cache_key: str) -> dict[str, str]:
    return {"cache_key": cache_key}


def _values_of(entry: CacheEntry) -> dict[str, Any]:
    """The row's attributes."""
    return {name: getattr(entry, name) for name in _PLAIN} | {
        "result_inline": entry.result.inline,
        "result_ref": entry.result.ref,
    }


def _entry_of(values: dict[str, Any]) -> CacheEntry | None:
    """None for a tombstone and for a row that lacks something: there is no answer in it.

    What newer code wrote besides is left alone.
    """
    known = {name: values[name] for name in _PLAIN if name in values}
    result = Payload(values.get("result_inline"), values.get("result_ref"))
    if result == Payload():
        return None
    try:
        return CacheEntry(result=result, **known)
    except TypeError:
        return None
