"""Many jobs at once, the newest first: over tenants, filtered, with bounded reads."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluiceway.domain import ids
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.times import rfc3339
from sluiceway.ports import Clock, JobLists

from sluiceway_cli.api import Api

PAGE = 100
"""Jobs that are read at once, as many as the API gives."""

MOST_PAGES = 20
"""Of one tenant."""

WITHIN_MS = 20_000
"""No other page is begun then."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs; an empty member takes all."""

    statuses: Collection[JobStatus] = ()
    model: str | None = None
    lane: str | None = None
    since_ms: int = 0

    def takes(self, row: dict[str, Any]) -> bool:
        """Whether a row of `listed_row` is one of them."""
        return (
            (not self.statuses or row["status"] in self.statuses)
            and self.model in {None, row["model"]}
            and self.lane in {None, row["lane"]}
            and row["created_at"] >= (rfc3339(self.since_ms) or "")
        )

    @property
    def status(self) -> JobStatus | None:
        """The only one, which a page may be asked for."""
        return next(iter(self.statuses)) if len(self.statuses) == 1 else None


@dataclass(frozen=True, slots=True)
class Listed:
    """The newest jobs, and whether these are all."""

    rows: list[dict[str, Any]]
    complete: bool


def listed_row(job: Job, *, now_ms: int) -> dict[str, Any]:
    """A job in a list, by members that its row has under the same names."""
    return {
        "job_id": job.job_id,
        "tenant": job.tenant,
        "status": job.status.value,
        "model": job.model,
        "lane": job.lane,
        "created_at": rfc3339(job.created_at_epoch_ms),
        "age_s": max(0, now_ms - job.created_at_epoch_ms) // 1000,
        "attempts": job.attempts,
        "error_code": job.error.code if job.error else None,
    }


def by_tables(
    tenants: Iterable[str], wanted: Wanted, *, limit: int, job_lists: JobLists, clock: Clock
) -> Listed:
    """The jobs of these tenants, as an operator reads them."""
    stop_at_ms = clock.now_ms() + WITHIN_MS
    rows: list[dict[str, Any]] = []
    complete = True
    for tenant in tenants:
        found, whole = _of_tenant(
            tenant, wanted, limit=limit, job_lists=job_lists, clock=clock, stop_at_ms=stop_at_ms
        )
        rows += found
        complete = complete and whole
    rows.sort(key=lambda row: (row["created_at"], row["job_id"]), reverse=True)
    return Listed(rows[:limit], complete and len(rows) <= limit)


def _of_tenant(
    tenant: str, wanted: Wanted, *, limit: int, job_lists: JobLists, clock: Clock, stop_at_ms: int
) -> tuple[list[dict[str, Any]], bool]:
    """One more than `limit` at most."""
    oldest_id = ids.job_id(max(0, wanted.since_ms), bytes(ids.RANDOM_BYTES))
    found: list[dict[str, Any]] = []
    after: str | None = None
    for _ in range(MOST_PAGES):
        if clock.now_ms() >= stop_at_ms:
            return found, False
        page = job_lists.page(
            tenant,
            limit=min(PAGE, limit + 1),
            after=after,
            status=wanted.status,
            model=wanted.model,
        )
        rows = (listed_row(job, now_ms=clock.now_ms()) for job in page.jobs)
        found += [row for row in rows if wanted.takes(row)]
        after = page.last_id
        if len(found) > limit:
            return found[: limit + 1], True
        # Ids are in order of time: what is behind this page is older than it has to be.
        if not page.has_more or after is None or (wanted.since_ms and after < oldest_id):
            return found, True
    return found, False


def by_api(wanted: Wanted, *, limit: int, api: Api, now_ms: int) -> Listed:
    """The partner's own jobs, as the API tells them; the tenant is not among it."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    for _ in range(MOST_PAGES):
        page = api.jobs(
            status=wanted.status, model=wanted.model, limit=min(PAGE, limit + 1), after=after
        )
        rows = [_row_of(job, now_ms) for job in page["data"]]
        found += [row for row in rows if wanted.takes(row)]
        after = page["last_id"]
        if len(found) > limit:
            return Listed(found[:limit], complete=False)
        passed = bool(rows) and rows[-1]["created_at"] < (rfc3339(wanted.since_ms) or "")
        if not page["has_more"] or after is None or passed:
            return Listed(found, complete=True)
    return Listed(found, complete=False)


def _row_of(job: dict[str, Any], now_ms: int) -> dict[str, Any]:
    created_ms = round(datetime.fromisoformat(job["created_at"]).timestamp() * 1000)
    return {
        "job_id": job["id"],
        "tenant": None,
        "status": job["status"],
        "model": job["model"],
        "lane": job["priority"],
        "created_at": rfc3339(created_ms),
        "age_s": max(0, now_ms - created_ms) // 1000,
        "attempts": job["attempts"],
        "error_code": (job.get("error") or {}).get("code"),
    }
