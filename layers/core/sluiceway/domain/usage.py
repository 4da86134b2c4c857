"""Usage: what a tenant's jobs came to, by the day of their end (UTC) and by model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.times import day_of


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One model's day. What jobs paid for stands apart from what the cache saved them."""

    day: str
    """`YYYY-MM-DD`."""
    model: str
    completed: int = 0
    """Jobs with a result, those in `from_cache` included."""
    failed: int = 0
    """Ends of runs: a redriven job that fails again counts twice."""
    cancelled: int = 0
    from_cache: int = 0
    """Completed jobs that found an entry when their turn came."""
    input_tokens: int = 0
    """Paid for, as `output_tokens` are."""
    output_tokens: int = 0
    cost_nanos: int = 0
    """1e-9 of the unit of the catalogue's prices."""
    saved_nanos: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The numbers by name, without zeros."""
        return {name: count for name in COUNTS if (count := getattr(self, name))}

    def __add__(self, other: UsageRow) -> UsageRow:
        """Both, under the day and the model of the first."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return replace(self, **sums)


COUNTS = tuple(field.name for field in fields(UsageRow) if field.name not in {"day", "model"})

_COUNTED_AS = {
    JobStatus.COMPLETED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.DEAD_LETTERED: "failed",
    JobStatus.CANCELLED: "cancelled",
}


def ended_at_ms(job: Job) -> int:
    """When the job reached its end; that it was dead-lettered or discarded later is no other."""
    return job.completed_at_epoch_ms or job.failed_at_epoch_ms or 0


def usage_of(job: Job) -> UsageRow:
    """What the end of this job, which isn't open, adds to its tenant's usage."""
    row = UsageRow(day_of(ended_at_ms(job)), job.model, **{_COUNTED_AS[job.status]: 1})
    if job.status is not JobStatus.COMPLETED:
        return row
    if job.result_source == "cache":
        return replace(row, from_cache=1, saved_nanos=job.saved_nanos or 0)
    return replace(
        row,
        input_tokens=job.input_tokens or 0,
        output_tokens=job.output_tokens or 0,
        cost_nanos=job.cost_nanos or 0,
    )
