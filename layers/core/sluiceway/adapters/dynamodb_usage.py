"""Usage in the Jobs table, under an owner of its own for each tenant (port UsageReader).

tenant    usage#<tenant>
job_id    <YYYY-MM-DD>#<model>#<counter shard>
<count>   each count of domain/usage.py that isn't zero
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write, from_item, to_item
from sluiceway.domain.errors import DamagedRowError
from sluiceway.domain.usage import COUNTS, UsageRow, ended_at_ms, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.domain.job import Job
    from sluiceway.ports import Clock

KEPT_S = 400 * 24 * 3600

OWNER_PREFIX = "usage#"
"""'#' is in no tenant's name, so no partner's job stands there."""


def usage_write(jobs: str, job: Job) -> Write:
    """Counts the end of a job, within the transaction that settles its counter.

    The row is split as the counter is, so that it is in nobody's way who isn't there already.
    """
    usage = usage_of(job)
    sums = ", ".join(f"#{name} :{name}" for name in usage.counts)
    row = f"{usage.day}#{usage.model}#{job.counter_shard}"
    return Write(
        jobs,
        {"tenant": _owner(job.tenant), "job_id": row},
        update=f"ADD {sums} SET #ttl_epoch_s = :ttl",
        values={**usage.counts, "ttl": ended_at_ms(job) // 1000 + KEPT_S},
    )


class DynamoDBUsage:
    """Weakness: a day of many models and shards is as many rows, which a read goes through."""

    def __init__(self, table: Table, jobs: str, *, clock: Clock) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._name = jobs
        self._clock = clock

    def read(self, tenant: str, first_day: str, last_day: str) -> list[UsageRow]:
        """See UsageReader."""
        pages = self._table.pages(
            TableName=self._name,
            KeyConditionExpression="#tenant = :owner AND #job_id BETWEEN :first AND :last",
            ExpressionAttributeNames={"#tenant": "tenant", "#job_id": "job_id"},
            ExpressionAttributeValues=to_item(
                {":owner": _owner(tenant), ":first": f"{first_day}#", ":last": f"{last_day}#~"}
            ),
        )
        found: dict[tuple[str, str], UsageRow] = {}
        now_s = self._clock.now_ms() // 1000
        for item in map(from_item, chain.from_iterable(pages)):
            if item["ttl_epoch_s"] > now_s:
                row = row_of(item)
                key = row.day, row.model
                found[key] = found[key] + row if key in found else row
        return list(found.values())


def row_of(item: Mapping[str, Any]) -> UsageRow:
    """What a row says. A count that this version doesn't know is left out."""
    day, model, _ = item["job_id"].split("#")
    counts = {name: item[name] for name in COUNTS if name in item}
    if not all(type(count) is int for count in counts.values()):
        raise DamagedRowError(f"The usage of {item['job_id']} has more than numbers.")
    return UsageRow(day, model, **counts)


def _owner(tenant: str) -> str:
    return f"{OWNER_PREFIX}{tenant}"
