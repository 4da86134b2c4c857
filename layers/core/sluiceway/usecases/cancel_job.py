"""Cancel: the partner wants no result any more."""

from __future__ import annotations

from typing import NamedTuple

from sluiceway.domain import ids
from sluiceway.domain.errors import JobNotFoundError, NotCancellableError, StoreBusyError
from sluiceway.domain.job import Job, JobStatus, cancelled
from sluiceway.ports import Applied, Clock, JobStore

MAX_LOOKS = 5
"""At a job that a worker moves meanwhile."""


class Cancelled(NamedTuple):
    """The cancelled job; `again`: it was cancelled before, or by somebody else just now."""

    job: Job
    again: bool = False


def cancel_job(job_id: str, tenant: str, *, jobs: JobStore, clock: Clock) -> Cancelled:
    """Cancels the job; again changes nothing.

    A call that runs is aborted at its next look, and its answer is thrown away.
    Raises JobNotFoundError, for another tenant's job too, and NotCancellableError.
    """
    for _ in range(MAX_LOOKS):
        job = jobs.get(tenant, job_id) if ids.well_formed(job_id) else None
        if job is None:
            raise JobNotFoundError("There is no such job.")
        if job.status is JobStatus.CANCELLED:
            return Cancelled(job, again=True)
        if not job.open:
            raise NotCancellableError(f"The job is {job.status.value} already.")
        outcome = jobs.apply(job, cancelled(job, now_ms=clock.now_ms()))
        if isinstance(outcome, Applied):
            return Cancelled(outcome.job)
    raise StoreBusyError("The job kept moving.", retry_after_s=1)
