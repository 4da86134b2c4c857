"""The sparse index on `due_at_epoch_ms` of the Jobs table (port DueJobs)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write, integer, to_item
from sluiceway.domain.job import Job, JobStatus
from sluiceway.ports import DueJob, IndexedJob

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

INDEX = "due_at"

MOST_OPERANDS = 100
"""Of DynamoDB's IN."""


class DynamoDBDueJobs:
    """Weakness: the index lags behind the table, so what it says is looked up before it is used."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._jobs = jobs

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        """See DueJobs."""
        items, _ = self._table.query(
            TableName=self._jobs,
            IndexName=INDEX,
            KeyConditionExpression="#due_shard = :shard AND #due_at_epoch_ms <= :until",
            ExpressionAttributeNames={
                "#due_shard": "due_shard",
                "#due_at_epoch_ms": "due_at_epoch_ms",
            },
            ExpressionAttributeValues={":shard": {"S": shard}, ":until": {"N": str(until_ms)}},
            Limit=limit,
        )
        return [_due_of(item) for item in items]

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        """See DueJobs. Of many rows the parsing costs the most, so they are taken as they come."""
        pages = self._table.pages(
            TableName=self._jobs,
            IndexName=INDEX,
            KeyConditionExpression="#due_shard = :shard",
            ProjectionExpression=", ".join(f"#{name}" for name in _COUNTED),
            ExpressionAttributeNames={f"#{name}": name for name in ("due_shard", *_COUNTED)},
            ExpressionAttributeValues={":shard": {"S": shard}},
        )
        for page in pages:
            yield from _indexed_of(page)

    def counted(
        self,
        shard: str,
        *,
        before: Mapping[tuple[str, str], int],
        besides_tenants: Collection[str] = (),
        besides_models: Collection[str] = (),
    ) -> Iterator[tuple[int, list[IndexedJob]]]:
        """See DueJobs. DynamoDB looks at each row, and only what is wanted comes from there."""
        values: dict[str, Any] = {"shard": shard, "processing": JobStatus.PROCESSING.value}
        old = []
        for number, ((status, lane), at_ms) in enumerate(sorted(before.items())):
            values |= {f"status{number}": status, f"lane{number}": lane, f"at{number}": at_ms}
            old.append(
                f"#status = :status{number} AND #lane = :lane{number}"
                f" AND #enqueued_at_epoch_ms < :at{number}"
            )
        wanted = " OR ".join(old)
        for name, besides in (("tenant", besides_tenants), ("model", besides_models)):
            some = sorted(besides)[:MOST_OPERANDS]
            if wanted and some:
                values |= {f"{name}{number}": one for number, one in enumerate(some)}
                among = ", ".join(f":{name}{number}" for number in range(len(some)))
                wanted = f"({wanted}) AND NOT #{name} IN ({among})"
        answers = self._table.answers(
            TableName=self._jobs,
            IndexName=INDEX,
            KeyConditionExpression="#due_shard = :shard",
            FilterExpression=" OR ".join(["#status = :processing", *filter(None, [wanted])]),
            ProjectionExpression=", ".join(f"#{name}" for name in _COUNTED),
            ExpressionAttributeNames={f"#{name}": name for name in ("due_shard", *_COUNTED)},
            ExpressionAttributeValues={
                f":{name}": value for name, value in to_item(values).items()
            },
        )
        for answer in answers:
            yield answer["ScannedCount"], list(_indexed_of(answer["Items"]))

    def postpone(self, job: Job, *, due_at_ms: int, sent: bool = True) -> bool:
        """See DueJobs."""
        resends = job.resends + int(sent)
        refusal = self._table.write(
            Write(
                self._jobs,
                {"tenant": job.tenant, "job_id": job.job_id},
                update="SET #due_at_epoch_ms = :due, #resends = :resends",
                condition="#status = :status AND #due_at_epoch_ms = :seen",
                values={
                    "due": due_at_ms,
                    "resends": resends,
                    "status": job.status.value,
                    "seen": job.due_at_epoch_ms,
                },
            )
        )
        if refusal is None:
            return True
        old = refusal.old or {}
        return bool(
            old.get("status") == job.status.value
            and old.get("due_at_epoch_ms") == due_at_ms
            and old.get("resends", 0) == resends
        )


_COUNTED = (
    *("status", "lane", "enqueued_at_epoch_ms", "tenant", "job_id", "model"),
    *("parked", "slot_at_epoch_ms", "not_before_epoch_ms"),
)


def _indexed_of(items: Iterable[Any]) -> Iterator[IndexedJob]:
    """Of the client's own items; what is damaged is told by its look-up."""
    for item in items:
        enqueued_at_ms = _number(item, "enqueued_at_epoch_ms")
        if enqueued_at_ms is not None:
            yield IndexedJob(
                status=_word(item, "status"),
                lane=_word(item, "lane"),
                enqueued_at_epoch_ms=enqueued_at_ms,
                tenant=_word(item, "tenant"),
                job_id=item["job_id"]["S"],
                model=_word(item, "model"),
                parked=item.get("parked", {}).get("BOOL") is True,
                slot_at_epoch_ms=_number(item, "slot_at_epoch_ms"),
                not_before_epoch_ms=_number(item, "not_before_epoch_ms"),
            )


def _word(item: Any, name: str) -> str:
    """One of few, of which one copy is enough."""
    return sys.intern(str(item.get(name, {}).get("S", "")))


def _number(item: Any, name: str) -> int | None:
    number = item.get(name, {}).get("N")
    return None if number is None else integer(number)


def _due_of(values: dict[str, Any]) -> DueJob:
    """What is missing in a damaged row is made up: the row itself is read before it is used."""
    return DueJob(
        tenant=values["tenant"],
        job_id=values["job_id"],
        status=str(values.get("status", "")),
        due_at_epoch_ms=values["due_at_epoch_ms"],
    )
