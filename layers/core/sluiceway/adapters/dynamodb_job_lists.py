"""A tenant's jobs, many at once, from the Jobs table (port JobLists)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, to_item
from sluiceway.adapters.dynamodb_jobs import job_of
from sluiceway.domain.errors import DamagedRowError
from sluiceway.ports import JobPage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluiceway.domain.job import Job, JobStatus

MOST_READ = 1000
"""Rows, for one page."""


class DynamoDBJobLists:
    """Weakness: a filter reads what it leaves out; rows hold inputs, so a page may be 1 MB."""

    def __init__(self, table: Table, jobs: str) -> None:
        """`jobs`: name of the Jobs table."""
        self._table = table
        self._jobs = jobs

    def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        status: JobStatus | None = None,
        model: str | None = None,
    ) -> JobPage:
        """See JobLists."""
        wanted = {
            name: value
            for name, value in (("status", status and status.value), ("model", model))
            if value is not None
        }
        found: list[dict[str, Any]] = []
        read = 0
        while True:
            rest = limit + 1 - len(found)
            items, answer = self._table.query(
                **_request(tenant, after, wanted),
                TableName=self._jobs,
                Limit=min(MOST_READ - read, MOST_READ // 4 if wanted else rest),
            )
            found += items
            read += answer["ScannedCount"]
            end: Mapping[str, Any] | None = answer.get("LastEvaluatedKey")
            if len(found) > limit:
                return _page(found[:limit], has_more=True)
            if end is None:
                return _page(found, has_more=False)
            after = end["job_id"]["S"]
            if read >= MOST_READ:
                return _page(found, has_more=True, last_id=after)

    def get(self, tenant: str, job_ids: Sequence[str]) -> Mapping[str, Job]:
        """See JobLists."""
        keys = [{"tenant": tenant, "job_id": job_id} for job_id in dict.fromkeys(job_ids)]
        rows = self._table.read_all(self._jobs, keys) if keys else []
        return {job.job_id: job for job in _jobs_of([row for row in rows if row is not None])}


def _request(tenant: str, after: str | None, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Query's members but for the table and the limit."""
    names = {"#tenant": "tenant"} | {f"#{name}": name for name in wanted}
    values = {":tenant": tenant} | {f":{name}": value for name, value in wanted.items()}
    request: dict[str, Any] = {
        "KeyConditionExpression": "#tenant = :tenant",
        "ScanIndexForward": False,
        "ConsistentRead": True,
    }
    if after is not None:
        request["KeyConditionExpression"] += " AND #job_id < :after"
        names["#job_id"], values[":after"] = "job_id", after
    if wanted:
        request["FilterExpression"] = " AND ".join(f"#{name} = :{name}" for name in wanted)
    return request | {
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": to_item(values),
    }


def _page(
    rows: Sequence[Mapping[str, Any]], *, has_more: bool, last_id: str | None = None
) -> JobPage:
    last = rows[-1]["job_id"] if rows else None
    return JobPage(tuple(_jobs_of(rows)), has_more, last_id or last)


def _jobs_of(rows: Sequence[Mapping[str, Any]]) -> list[Job]:
    """One damaged row mustn't hide the others."""
    jobs = []
    for row in rows:
        try:
            jobs.append(job_of(row))
        except DamagedRowError:
            continue
    return jobs
