"""Moving jobs to another lane."""

from dataclasses import dataclass, replace

from sluiceway.domain.job import SEND_STARTS_WITHIN_MS, Job, JobStatus
from sluiceway.ports import Clock, JobQueue, JobStore


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one job: `moved`, `unchanged` or `refused`, and why."""

    job_id: str
    outcome: str
    reason: str


def move(job: Job, lane: str, *, jobs: JobStore, queue: JobQueue, clock: Clock) -> Outcome:
    """Moves an open job, and sends its message to the lane unless it waits for another one.

    The message that it has in the old lane becomes a harmless copy.
    """
    if job.open and job.lane == lane:
        return Outcome(job.job_id, "unchanged", f"it is in the lane {lane} already")
    decided_ms = clock.now_ms()
    if not jobs.move_lane(job, lane):
        # Also when this was written and the reply was lost: then the job is as we want it.
        job = jobs.get(job.tenant, job.job_id) or job
        if not job.open:
            return Outcome(job.job_id, "refused", f"it has ended, as {job.status.value}")
        if job.lane != lane:
            return Outcome(job.job_id, "refused", f"somebody moved it to {job.lane} meanwhile")
    now_ms = clock.now_ms()
    # A parked job whose time has come has a message again, which the sweeper sent to the old lane.
    parked = job.parked and job.resends == 0
    waits = parked or (job.not_before_epoch_ms or 0) > now_ms
    if waits or job.status is JobStatus.PROCESSING:
        return Outcome(job.job_id, "moved", "its next message goes there")
    in_time = now_ms - decided_ms <= SEND_STARTS_WITHIN_MS
    if in_time and queue.send(replace(job, lane=lane)):
        return Outcome(job.job_id, "moved", "its message was sent there")
    return Outcome(job.job_id, "moved", "the sweeper will send its message there")
