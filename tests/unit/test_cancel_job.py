"""Cancel: the partner wants no result any more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import JobNotFoundError, NotCancellableError, StoreBusyError
from sluiceway.domain.job import Job, JobStatus
from sluiceway.ports import Moved
from sluiceway.usecases.cancel_job import MAX_LOOKS, cancel_job

from tests.fakes.in_memory import NOW_MS, Claim, FakeClock, InMemoryJobs, World
from tests.unit.samples import DAY_MS, JOB_ID, JOB_KEY, a_job, an_error

PROCESSING = transitions.started(
    a_job(), fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 110_000
)
OPEN = {
    "queued": a_job(),
    "processing": PROCESSING,
    "retrying": transitions.retrying(PROCESSING, an_error(), not_before_ms=NOW_MS + 2_000),
    "parked": transitions.parked(a_job(), not_before_ms=NOW_MS + 300_000),
}


def put(world: World, job: Job) -> Job:
    world.jobs[job.tenant, job.job_id] = job
    if job.open:
        world.claims[job.job_key] = Claim(job.job_id, NOW_MS + 2 * DAY_MS)
        world.in_flight[job.tenant, job.counter_shard] += 1
    return job


def cancel(world: World, clock: FakeClock, job_id: str = JOB_ID, tenant: str = "acme") -> Job:
    return cancel_job(job_id, tenant, jobs=InMemoryJobs(world, clock=clock), clock=clock).job


@pytest.mark.parametrize("state", OPEN)
def test_open_job_is_cancelled_and_settled(world: World, clock: FakeClock, state: str) -> None:
    put(world, OPEN[state])
    clock.advance(s=3)

    job = cancel(world, clock)

    assert job == world.jobs["acme", JOB_ID]
    assert (job.status, job.completed_at_epoch_ms) == (JobStatus.CANCELLED, NOW_MS + 3_000)
    assert (job.due_at_epoch_ms, job.not_before_epoch_ms, job.parked) == (None, None, False)
    assert JOB_KEY not in world.claims
    assert world.open_jobs("acme") == 0


def test_cancel_again_gives_the_cancelled_job_and_settles_nothing_twice(
    world: World, clock: FakeClock
) -> None:
    put(world, a_job())
    put(world, a_job(job_id="job_2", job_key="j1_2"))
    first = cancel(world, clock)
    clock.advance(s=60)

    second = cancel(world, clock)

    assert second == first
    assert world.open_jobs("acme") == 1


def test_cancel_again_says_so(world: World, clock: FakeClock) -> None:
    put(world, a_job())
    jobs = InMemoryJobs(world, clock=clock)

    outcomes = [cancel_job(JOB_ID, "acme", jobs=jobs, clock=clock) for _ in range(2)]

    assert [outcome.again for outcome in outcomes] == [False, True]


def test_cancel_that_another_makes_at_the_same_time_is_one_again(
    world: World, clock: FakeClock
) -> None:
    put(world, a_job())

    class CancelledMeanwhile(InMemoryJobs):
        """Whose job another process cancels between the first look and the write."""

        def get(self, tenant: str, job_id: str) -> Job | None:
            found = super().get(tenant, job_id)
            if found is not None and found.open:
                cancel(world, clock)
            return found

    outcome = cancel_job(JOB_ID, "acme", jobs=CancelledMeanwhile(world, clock=clock), clock=clock)

    assert outcome.again
    assert outcome.job.status is JobStatus.CANCELLED


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD_LETTERED])
def test_job_that_ended_otherwise_stays_as_it_is_and_the_refusal_says_how(
    world: World, clock: FakeClock, status: JobStatus
) -> None:
    job = put(world, a_job(status=status))

    with pytest.raises(NotCancellableError, match=status.value):
        cancel(world, clock)

    assert world.jobs["acme", JOB_ID] == job


@pytest.mark.parametrize(
    ("job_id", "tenant"),
    [
        (JOB_ID, "globex"),
        ("job_unknown", "acme"),
        ("", "acme"),
        ("a b", "acme"),
        ("x" * 99, "acme"),
    ],
)
def test_job_that_is_not_the_tenants_is_not_found(
    world: World, clock: FakeClock, job_id: str, tenant: str
) -> None:
    job = put(world, a_job())

    with pytest.raises(JobNotFoundError):
        cancel(world, clock, job_id, tenant)

    assert world.jobs["acme", JOB_ID] == job


def test_job_that_moves_meanwhile_is_cancelled_as_it_is_then(
    world: World, clock: FakeClock
) -> None:
    put(world, a_job())

    class StartedMeanwhile(InMemoryJobs):
        """Whose job starts between the first look and the write."""

        looks = 0

        def get(self, tenant: str, job_id: str) -> Job | None:
            found = super().get(tenant, job_id)
            self.looks += 1
            if self.looks == 1:
                world.jobs[tenant, job_id] = PROCESSING
            return found

    outcome = cancel_job(JOB_ID, "acme", jobs=StartedMeanwhile(world, clock=clock), clock=clock)

    job = outcome.job
    assert (job.status, job.attempts) == (JobStatus.CANCELLED, 1)
    assert world.open_jobs("acme") == 0


def test_job_that_completes_meanwhile_is_not_cancelled(world: World, clock: FakeClock) -> None:
    put(world, a_job())
    done = replace(a_job(), status=JobStatus.COMPLETED, revision=9)

    class CompletedMeanwhile(InMemoryJobs):
        """Whose job ends between the first look and the write."""

        def get(self, tenant: str, job_id: str) -> Job | None:
            found = super().get(tenant, job_id)
            world.jobs[tenant, job_id] = done
            return found

    with pytest.raises(NotCancellableError):
        cancel_job(JOB_ID, "acme", jobs=CompletedMeanwhile(world, clock=clock), clock=clock)

    assert world.jobs["acme", JOB_ID] == done


def test_job_that_never_stands_still_is_told_as_busy(world: World, clock: FakeClock) -> None:
    put(world, a_job())
    looks: list[str] = []

    class Restless(InMemoryJobs):
        """Whose job moves before each write."""

        def apply(self, old: Job, new: Job, **_: object) -> Moved:  # type: ignore[override]
            looks.append(new.status)
            return Moved(old)

    with pytest.raises(StoreBusyError):
        cancel_job(JOB_ID, "acme", jobs=Restless(world, clock=clock), clock=clock)

    assert len(looks) == MAX_LOOKS
