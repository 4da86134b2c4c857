"""Fetch: a batch's id becomes its items, with their jobs as they are now."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain import ids
from sluiceway.domain.errors import BatchNotFoundError
from sluiceway.domain.payload import Payload, decompress
from sluiceway.usecases import places as places_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.domain.backlog import Place
    from sluiceway.domain.batch import Batch
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job
    from sluiceway.ports import Backlogs, Batches, Clock, JobLists


class Result(NamedTuple):
    """A result as it is kept, and the vendor's name for the call."""

    payload: Payload
    vendor_request_id: str | None


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch, and by their ids the jobs that are found, and the results of jobs and hits."""

    batch: Batch
    found: Mapping[str, Job]
    at_ms: int
    results: Mapping[str, Result]
    """Those that may be told."""
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)
    """Of the open jobs."""

    @property
    def open(self) -> bool:
        """Whether there are jobs that haven't ended."""
        return any(job.open for job in self.found.values())


def get_batch(
    batch_id: str,
    tenant: str,
    *,
    catalogue: Catalogue,
    batches: Batches,
    lists: JobLists,
    clock: Clock,
) -> FetchedBatch:
    """The batch as it is now: two reads. Raises BatchNotFoundError, for another tenant's, too."""
    now_ms = clock.now_ms()
    batch = batches.get(tenant, batch_id) if ids.well_formed_batch(batch_id) else None
    if batch is None or now_ms // 1000 >= batch.ttl_epoch_s:
        raise BatchNotFoundError("There is no such batch.")
    found = lists.get(tenant, batch.job_ids)
    retained_ms = catalogue.service.result_retention_h * 3_600_000
    results = {
        job_id: Result(job.result, job.vendor_request_id)
        for job_id, job in found.items()
        if job.result is not None and now_ms <= (job.completed_at_epoch_ms or 0) + retained_ms
    }
    return FetchedBatch(batch, found, now_ms, results)


def with_places(fetched: FetchedBatch, *, catalogue: Catalogue, backlogs: Backlogs) -> FetchedBatch:
    """The same with where its open jobs stand; apart, since a wait looks often and tells once."""
    if not fetched.open:
        return fetched
    backlog = places_of.read(backlogs, fetched.at_ms)
    placed = {
        job_id: places_of.place_of(job, backlog, catalogue, fetched.at_ms)
        for job_id, job in fetched.found.items()
    }
    return replace(
        fetched, places={job_id: place for job_id, place in placed.items() if place is not None}
    )


def documents_of(results: Mapping[str, Result], *, most_bytes: int) -> dict[str, bytes]:
    """The documents of the results that are in the rows, while they are `most_bytes` together.

    None when they are more. A damaged one is left out; fetching its job says so.
    """
    documents: dict[str, bytes] = {}
    size = 0
    for name, result in results.items():
        if result.payload.inline is not None:
            with suppress(ValueError):
                documents[name] = decompress(result.payload.inline)
                size += len(documents[name])
        if size > most_bytes:
            return {}
    return documents
