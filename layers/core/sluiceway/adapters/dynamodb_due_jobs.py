"""The sparse index on `due_at_epoch_ms` of the Jobs table (port DueJobs)."""

from collections.abc import Iterator
from typing import Any

from sluiceway.adapters.dynamodb import Table, Write, from_item
from sluiceway.domain.job import Job
from sluiceway.ports import DueJob, IndexedJob

INDEX = "due_at"


class DynamoDBDueJobs:
    """Weakness: the index lags behind the table, so what it says is looked up before it is used."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._jobs = jobs

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        """See DueJobs."""
        answer = self._table.client.query(
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
        return [_due_of(from_item(item)) for item in answer["Items"]]

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        """See DueJobs. Attributes that aren't asked for cost the time to parse them."""
        pages = self._table.client.get_paginator("query").paginate(
            TableName=self._jobs,
            IndexName=INDEX,
            KeyConditionExpression="#due_shard = :shard",
            ProjectionExpression="#status, #lane, #enqueued_at_epoch_ms",
            ExpressionAttributeNames={
                "#due_shard": "due_shard",
                "#status": "status",
                "#lane": "lane",
                "#enqueued_at_epoch_ms": "enqueued_at_epoch_ms",
            },
            ExpressionAttributeValues={":shard": {"S": shard}},
        )
        for page in pages:
            for item in page["Items"]:
                values = from_item(item)
                enqueued_at_ms = values.get("enqueued_at_epoch_ms")
                if isinstance(enqueued_at_ms, int):  # else it is damaged, and told by its look-up
                    yield IndexedJob(
                        status=str(values.get("status", "")),
                        lane=str(values.get("lane", "")),
                        enqueued_at_epoch_ms=enqueued_at_ms,
                    )

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


def _due_of(values: dict[str, Any]) -> DueJob:
    """What is missing in a damaged row is made up: the row itself is read before it is used."""
    return DueJob(
        tenant=values["tenant"],
        job_id=values["job_id"],
        status=str(values.get("status", "")),
        due_at_epoch_ms=values["due_at_epoch_ms"],
    )
