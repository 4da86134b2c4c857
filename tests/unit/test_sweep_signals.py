"""What a sweep measures for the alarms: workers at work, idle ones, and degraded mode."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import Model
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.gate import Gate, key_of
from sluiceway.domain.job import Job, JobStatus
from sluiceway.ports import ServiceState
from sluiceway.usecases.sweep_jobs import LONG_WAIT_MS, MOST_TOLD_MS

from tests.fakes.in_memory import NOW_MS, InMemoryState
from tests.unit.bench import processing
from tests.unit.samples import a_job
from tests.unit.test_sweep_jobs import MINUTE_MS, WORKERS, Minute

if TYPE_CHECKING:
    from typing import NoReturn

LATER_MS = NOW_MS + 15 * MINUTE_MS
AGE_MS = LONG_WAIT_MS + 1


@pytest.fixture
def minute() -> Minute:
    return Minute()


def told_of(minute: Minute, field: str) -> dict[str, Any]:
    """A field of the lanes' last measure, by lane."""
    return {
        str(fields["lane"]): fields[field]
        for name, _, fields in minute.telemetry.events
        if name == "lane_measured"
    }


def running(minute: Minute, number: int, lane: str) -> None:
    for n in range(number):
        minute.put(processing(job_id=f"job_{lane}_{n}", lane=lane, job_key=f"{lane} {n}"))


def waiting(**members: Any) -> Job:
    """A job that waits since before a minute, and that nobody has to look at."""
    return a_job(
        **{"enqueued_at_epoch_ms": NOW_MS - AGE_MS, "due_at_epoch_ms": LATER_MS, **members}
    )


# ------------------------------------------------------------------------------------ workers


@pytest.mark.parametrize(
    ("interactive", "batch", "percent"),
    [
        (0, 0, {"interactive": 0, "batch": 0}),
        (4, 1, {"interactive": 50, "batch": 50}),
        (8, 2, {"interactive": 100, "batch": 100}),
        (0, 6, {"interactive": 50, "batch": 100}),  # four were lent
        (9, 0, {"interactive": 100, "batch": 50}),
        (20, 9, {"interactive": 100, "batch": 100}),  # of some the worker is dead
    ],
)
def test_utilisation_is_the_part_of_a_lanes_workers_that_is_at_work(
    minute: Minute, interactive: int, batch: int, percent: dict[str, int]
) -> None:
    running(minute, interactive, "interactive")
    running(minute, batch, "batch")

    minute.sweep()

    assert told_of(minute, "utilisation_percent") == percent


def test_idle_workers_are_told_when_jobs_wait_for_nothing_else(minute: Minute) -> None:
    running(minute, WORKERS["interactive"] - 3, "interactive")
    for n in range(5):
        minute.put(waiting(job_id=f"job_{n}"))
    minute.put(waiting(job_id="job_batch", lane="batch"))

    minute.sweep()

    assert told_of(minute, "workers_idle") == {"interactive": 3, "batch": 1}


def test_no_worker_is_idle_while_all_are_at_work(minute: Minute) -> None:
    running(minute, WORKERS["interactive"], "interactive")
    minute.put(waiting())

    minute.sweep()

    assert told_of(minute, "workers_idle") == {"interactive": 0, "batch": 0}


WAITS_FOR_SOMETHING = {
    "is parked": waiting(parked=True),
    "has just come": waiting(enqueued_at_epoch_ms=NOW_MS - LONG_WAIT_MS),
    "backs off": waiting(status=JobStatus.RETRYING, not_before_epoch_ms=NOW_MS + 1),
    "backed off a moment ago": waiting(
        status=JobStatus.RETRYING, not_before_epoch_ms=NOW_MS - LONG_WAIT_MS
    ),
}


@pytest.mark.parametrize("why", WAITS_FOR_SOMETHING)
def test_job_that_waits_for_something_else_makes_no_worker_idle(minute: Minute, why: str) -> None:
    minute.put(WAITS_FOR_SOMETHING[why])

    minute.sweep()

    assert set(told_of(minute, "workers_idle").values()) == {0}


@pytest.mark.parametrize("what", ["tenant", "model", "lane", "gate"])
def test_job_that_a_pause_or_a_shut_gate_keeps_makes_no_worker_idle(
    minute: Minute, what: str
) -> None:
    minute.models = {"demo-chat": Model(vendor="v", vendor_model="m", version="1")}
    gates = {"model": Gate(paused=True), "gate": Gate(closed_until_ms=NOW_MS + 1)}
    minute.put(waiting())
    if what in gates:
        minute.world.gates[key_of("v", "m")] = gates[what]
    elif what == "tenant":
        minute.world.paused_tenants.add("acme")
    else:
        minute.world.paused_lanes.add("interactive")

    minute.sweep()

    assert set(told_of(minute, "workers_idle").values()) == {0}


def test_retry_that_nobody_takes_is_waiting(minute: Minute) -> None:
    minute.put(waiting(status=JobStatus.RETRYING, not_before_epoch_ms=NOW_MS - AGE_MS))

    minute.sweep()

    assert told_of(minute, "workers_idle") == {"interactive": 1, "batch": 0}


def test_state_that_can_not_be_read_makes_no_worker_idle(minute: Minute) -> None:
    class Busy(InMemoryState):
        def read(self) -> NoReturn:
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    minute.state = Busy(minute.world)
    minute.put(waiting())

    minute.sweep()

    assert set(told_of(minute, "workers_idle").values()) == {0}


# ------------------------------------------------------------------------------------ degraded mode

AFTER_MS = 900_000


def told_ms(minute: Minute) -> list[Any]:
    """What was counted of degraded mode, in order."""
    return [
        fields["lasted_ms"]
        for name, _, fields in minute.telemetry.events
        if name == "degraded_lasted"
    ]


def degrade(minute: Minute, *, since_ms: int = NOW_MS) -> Job:
    """Degraded mode, and the job that keeps it on."""
    minute.world.degraded_since_epoch_ms = since_ms
    return minute.put(waiting(enqueued_at_epoch_ms=NOW_MS - AFTER_MS, due_at_epoch_ms=2 * NOW_MS))


def end(minute: Minute, job: Job) -> None:
    minute.world.jobs["acme", job.job_id] = replace(job, status=JobStatus.COMPLETED)


def test_duration_of_degraded_mode_is_told_while_it_lasts(minute: Minute) -> None:
    degrade(minute)

    list(minute.sweep_each_minute(4))

    assert told_ms(minute) == [MINUTE_MS] * 3


@pytest.mark.parametrize("gaps_s", [(60, 60, 60), (58, 61, 63, 57), (20,), (60, 600, 30), (1, 1)])
def test_parts_of_degraded_mode_add_up_to_its_duration(
    minute: Minute, gaps_s: tuple[int, ...]
) -> None:
    job = degrade(minute)

    for gap_s in gaps_s:
        minute.sweep()
        minute.clock.advance(s=gap_s)
    end(minute, job)
    minute.sweep()
    minute.sweep()

    assert sum(told_ms(minute)) == sum(gaps_s) * 1000
    assert all(part_ms <= MOST_TOLD_MS for part_ms in told_ms(minute)[:-1])


def test_sweeps_that_come_late_are_made_up_for_by_those_that_follow(minute: Minute) -> None:
    degrade(minute)

    for gap_s in (65, 55, 60):
        minute.clock.advance(s=gap_s)
        minute.sweep()

    assert told_ms(minute) == [60_000, 60_000, 60_000]


def test_two_sweeps_at_once_count_no_part_twice(minute: Minute) -> None:
    degrade(minute, since_ms=NOW_MS - 30_000)

    class Stale(InMemoryState):
        """A process whose copy is from before the other's sweep."""

        def read(self) -> ServiceState:
            return ServiceState(degraded_since_epoch_ms=NOW_MS - 30_000)

    for _ in range(2):
        minute.state = Stale(minute.world)
        minute.sweep()

    assert told_ms(minute) == [30_000]


def test_sweep_that_dies_loses_its_own_part_and_no_other(minute: Minute) -> None:
    degrade(minute)

    class Dies(InMemoryState):
        """The process ends right after the write."""

        def tell_degraded(self, since_ms: int, from_ms: int, until_ms: int) -> bool:
            super().tell_degraded(since_ms, from_ms, until_ms)
            raise KeyboardInterrupt

    living = minute.state
    for state in (living, Dies(minute.world), living):
        minute.clock.advance(s=60)
        minute.state = state
        try:
            minute.sweep()
        except KeyboardInterrupt:
            continue

    assert told_ms(minute) == [60_000, 60_000]


def test_part_of_an_earlier_degraded_mode_is_not_counted_for_the_next(minute: Minute) -> None:
    job = degrade(minute)
    minute.clock.advance(s=60)
    end(minute, job)
    minute.sweep()
    degrade(minute, since_ms=minute.clock.now_ms() + 1_000)

    minute.clock.advance(s=31)
    minute.sweep()

    assert told_ms(minute) == [60_000, 30_000]
