"""Audit records in the Jobs table, under an owner of their own for each month (port AuditLog)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write, from_item, to_item
from sluiceway.ports import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_S = 400 * 24 * 3600
FILTERED_PAGE = 1000
"""Records that one read looks through for those that match."""


class DynamoDBAudit:
    """Weakness: a month is one partition; fine for what people do, not for each request."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._name = jobs

    def add(self, record: AuditRecord) -> None:
        """See AuditLog."""
        what = repr((record.actor, record.action, record.subject, record.request_id))
        digest = hashlib.sha256(what.encode()).hexdigest()[:16]
        key = {
            "tenant": _owner(record.at_epoch_ms),
            "job_id": f"{record.at_epoch_ms:013d}-{digest}",
        }
        self._table.write(
            Write(
                self._name,
                key,
                item={
                    **key,
                    **record._asdict(),
                    "ttl_epoch_s": record.at_epoch_ms // 1000 + KEPT_S,
                },
                condition="attribute_not_exists(#job_id)",
            )
        )

    def list(
        self, *, since_ms: int, until_ms: int, limit: int, matching: Mapping[str, str] | None = None
    ) -> list[AuditRecord]:
        """See AuditLog. What doesn't match is read all the same."""
        wanted = dict(matching or {})
        request: dict[str, Any] = {
            "KeyConditionExpression": "#tenant = :owner AND #job_id BETWEEN :since AND :until",
            "ExpressionAttributeNames": {
                name: name.removeprefix("#")
                for name in ("#tenant", "#job_id", *(f"#{one}" for one in wanted))
            },
        }
        if wanted:
            request["FilterExpression"] = " AND ".join(f"#{name} = :{name}" for name in wanted)
        found: list[AuditRecord] = []
        month_ms = until_ms
        while len(found) < limit and month_ms >= since_ms:
            left = limit - len(found)
            # A page ends at 1 MB, whatever its limit.
            pages = self._table.pages(
                TableName=self._name,
                ConsistentRead=True,
                ExpressionAttributeValues=to_item(
                    {
                        ":owner": _owner(month_ms),
                        ":since": f"{since_ms:013d}",
                        ":until": f"{until_ms:013d}~",
                        **{f":{name}": value for name, value in wanted.items()},
                    }
                ),
                ScanIndexForward=False,
                Limit=FILTERED_PAGE if wanted else left,
                **request,
            )
            items = islice(chain.from_iterable(pages), left)
            found += [_record_of(from_item(item)) for item in items]
            first = datetime.fromtimestamp(month_ms // 1000, UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            month_ms = round(first.timestamp() * 1000) - 1
        return found


def _owner(at_ms: int) -> str:
    """Not a tenant's name, so no partner can ask for it."""
    return f"audit#{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m}"


def _record_of(values: dict[str, object]) -> AuditRecord:
    names = ("actor", "action", "subject", "request_id")
    return AuditRecord(
        at_epoch_ms=int(str(values["at_epoch_ms"])),
        **{name: str(values.get(name, "")) for name in names},
    )
