"""Sweep, and gates: who waits at one that is shut is sent no message."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import parse
from sluiceway.domain.errors import VendorError
from sluiceway.domain.gate import FURTHEST_SLOT_MS, Gate, key_of
from sluiceway.domain.job import JobStatus
from sluiceway.domain.ticket import Ticket
from sluiceway.usecases import sweep_jobs as module
from sluiceway.usecases.run_job import GiveBack
from sluiceway.usecases.sweep_jobs import LOOK_AHEAD_MS, Sweeper, Swept, sweep_jobs

from tests.fakes.in_memory import (
    NOW_MS,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryDueJobs,
    InMemoryGates,
    InMemoryLatencies,
    InMemoryQueue,
    InMemoryState,
)
from tests.fakes.outside import FakeBus
from tests.unit.bench import ANSWER, Bench, processing
from tests.unit.samples import a_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job
    from sluiceway.ports import VendorAnswer, VendorCall

KEY = key_of("simulator", "sim-chat-1")
CATALOGUE = parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    requests_per_minute = 60
    burst = 1
    """
)
CLOSED = Gate(version=1, closed_until_ms=NOW_MS + 20_000)
PAUSED = Gate(paused=True)
FAR = Gate(next_request_at_us=(NOW_MS + 2 * FURTHEST_SLOT_MS) * 1000)


class Minute(Bench):
    """The worker's bench with the sweeper beside it, and one gate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalogue = CATALOGUE
        self.queue = InMemoryQueue()
        self.due_jobs = InMemoryDueJobs(self.world)
        self.writes: Counter[str] = Counter()
        self.time_left_ms = 55_000

    def set_burst(self, burst: int) -> None:
        model = self.catalogue.models["demo-chat"].model_copy(update={"burst": burst})
        self.catalogue = self.catalogue.model_copy(update={"models": {"demo-chat": model}})

    def shut(self, gate: Gate) -> None:
        self.world.gates[KEY] = gate

    def sweep(self, *, poll: bool = False) -> Swept:
        self.time_left_ms = 55_000
        return sweep_jobs(
            Sweeper(
                flags=FakeFlags(),
                bus=FakeBus(),
                jobs=self.jobs,
                state=InMemoryState(self.world),
                due_jobs=self.due_jobs,
                queue=self.queue,
                gates=self.gates,
                latencies=InMemoryLatencies(self.world),
                clock=self.clock,
                telemetry=self.telemetry,
                time_left_ms=lambda: self.time_left_ms,
                pause=self.pause_sweep,
                catalogue=self.catalogue,
                backlogs=InMemoryBacklogs(self.world),
                workers={"interactive": 8, "batch": 2},
            ),
            poll=poll,
        )

    def pause_sweep(self, seconds: float) -> None:
        self.clock.pause(seconds)
        self.time_left_ms -= round(seconds * 1000)


@pytest.fixture
def minute() -> Minute:
    return Minute()


def limited(retry_after_s: float | None) -> VendorError:
    """Too many requests, says the vendor."""
    return VendorError(
        "vendor_rate_limited",
        "The vendor answered 429.",
        retryable=True,
        http_status=429,
        retry_after_s=retry_after_s,
    )


def parked(*, in_ms: int = 0, slot: Ticket | None = None, **members: Any) -> Job:
    """A job that waits at the gate."""
    job = transitions.gated(processing(), not_before_ms=NOW_MS + in_ms, slot=slot)
    return replace(job, **members)


@pytest.mark.parametrize(
    ("gate", "until_ms"),
    [
        (CLOSED, NOW_MS + 20_000),
        (PAUSED, NOW_MS + LOOK_AHEAD_MS),
        (FAR, NOW_MS + FURTHEST_SLOT_MS),
    ],
    ids=["closed", "paused", "far"],
)
def test_parked_job_behind_a_shut_gate_is_moved_and_not_sent(
    minute: Minute, gate: Gate, until_ms: int
) -> None:
    before = minute.put(parked())
    minute.shut(gate)

    assert minute.sweep() == Swept(postponed=1)

    assert minute.queue.sends == []
    assert minute.job == replace(before, due_at_epoch_ms=until_ms)
    assert minute.job.resends == 0


def test_closed_gate_is_waited_for_once_and_then_the_job_is_sent(minute: Minute) -> None:
    minute.put(parked())
    minute.shut(CLOSED)
    minute.sweep()

    minute.sweep()  # still in the minute of the first one

    assert minute.queue.sends == [("interactive", "acme", minute.job.job_id)]
    assert minute.queue.delays == [20]
    assert minute.job.resends == 1


def test_paused_gate_moves_a_job_once_a_sweep_and_sends_it_soon_after_a_resume(
    minute: Minute,
) -> None:
    minute.put(parked())
    minute.shut(PAUSED)
    minute.clock.advance(ms=1)
    resumed_ms = 0
    for number in range(4):
        did = minute.sweep(poll=True)
        assert did.postponed + did.sent <= 2
        if number == 2:
            resumed_ms = minute.clock.now_ms()
            minute.shut(Gate())
        minute.clock.set(NOW_MS + (number + 1) * 60_000)

    (delay_s,) = minute.queue.delays
    assert minute.queue.sends
    assert minute.clock.now_ms() - 60_000 + delay_s * 1000 - resumed_ms <= 90_000


def test_jobs_behind_a_shut_gate_spend_nothing_of_the_budget(
    minute: Minute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_SENDS", 1)
    minute.queue.backlogs["interactive"] = 100
    minute.shut(CLOSED)
    for number in range(20):
        minute.put(parked(job_id=f"job_{number}", job_key=f"j{number}", resends=1))
    lost = a_job(job_id="job_lost", job_key="j_lost", due_at_epoch_ms=NOW_MS)
    minute.put(lost)

    did = minute.sweep()

    assert (did.postponed, did.sent) == (20, 1)
    assert minute.queue.sends == [("interactive", "acme", "job_lost")]


@pytest.mark.parametrize("gate", [CLOSED, PAUSED, FAR], ids=["closed", "paused", "far"])
def test_job_that_keeps_a_slot_is_sent_whatever_the_gate_says(minute: Minute, gate: Gate) -> None:
    minute.put(parked(in_ms=15_000, slot=Ticket(NOW_MS + 15_000, 0)))
    minute.shut(gate)

    assert minute.sweep() == Swept(sent=1)

    assert minute.queue.delays == [15]


@pytest.mark.parametrize(
    "job",
    [
        a_job(due_at_epoch_ms=NOW_MS),
        replace(processing(), due_at_epoch_ms=NOW_MS),
        parked(in_ms=20_000),
        parked(model="demo-gone"),
    ],
    ids=["queued", "past the gate", "opens in time", "model gone"],
)
def test_job_that_does_not_wait_at_the_gate_is_sent(minute: Minute, job: Job) -> None:
    minute.put(job)
    minute.shut(CLOSED)

    assert minute.sweep() == Swept(sent=1)


def test_job_behind_an_open_gate_is_sent(minute: Minute) -> None:
    minute.put(parked())
    minute.shut(Gate(version=3, closed_until_ms=NOW_MS, next_request_at_us=NOW_MS * 1000 + 1))

    assert minute.sweep() == Swept(sent=1)


@pytest.mark.parametrize("gate", [CLOSED, PAUSED, FAR], ids=["closed", "paused", "far"])
def test_deadline_ends_a_job_behind_a_shut_gate(minute: Minute, gate: Gate) -> None:
    minute.put(parked(deadline_epoch_ms=NOW_MS + 30_000))
    minute.shut(replace(gate, closed_until_ms=gate.closed_until_ms and NOW_MS + 3_600_000))

    for _ in range(3):
        minute.sweep(poll=True)
        minute.clock.advance(ms=10_000)

    assert minute.job.status is JobStatus.FAILED
    assert minute.job.error is not None
    assert minute.job.error.code == "deadline_exceeded"
    assert minute.job.failed_at_epoch_ms is not None
    assert minute.job.failed_at_epoch_ms - (NOW_MS + 30_000) <= 10_000


class Lane(Minute):
    """Messages that come to workers, are returned, and are sent again as time passes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.came: list[str] = []
        self.called_ms: list[int] = []
        self.slept_s: list[float] = []
        self.visible: list[tuple[int, str]] = []
        """When a message comes, and of which job."""
        self.pause = self.sleep

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.clock.pause(seconds)

    def come(self, job_id: str) -> None:
        self.came.append(job_id)
        decision = self.deliver(job_id=job_id)
        if isinstance(decision, GiveBack):
            self.visible.append((self.clock.now_ms() + round(decision.delay_s * 1000), job_id))

    def step(self) -> None:
        """Five seconds, a sweep, and what comes then."""
        self.clock.advance(s=5)
        self.sweep()
        for (_, _, job_id), delay_s in zip(self.queue.sends, self.queue.delays, strict=True):
            self.visible.append((self.clock.now_ms() + delay_s * 1000, job_id))
        self.queue.sends, self.queue.delays = [], []
        now_ms = self.clock.now_ms()
        due = [job_id for at_ms, job_id in self.visible if at_ms <= now_ms]
        self.visible = [one for one in self.visible if one[0] > now_ms]
        for job_id in due:
            self.come(job_id)

    def turn(self, wait_s: float | None, *meanwhile: str) -> Callable[[VendorCall], VendorAnswer]:
        """A call that is refused, in the middle of which others come."""

        def call(_: VendorCall) -> VendorAnswer:
            self.called_ms.append(self.clock.now_ms())
            for job_id in meanwhile:
                self.come(job_id)
            raise limited(wait_s)

        return call

    def answer(self, _: VendorCall) -> VendorAnswer:
        self.called_ms.append(self.clock.now_ms())
        return ANSWER


@pytest.mark.parametrize("wait_s", [171, 300, 3_600])
def test_no_job_calls_before_the_vendors_retry_after_is_over(  # cases R02, R03, R11
    wait_s: int,
) -> None:
    lane, opens_ms = Lane(), NOW_MS + wait_s * 1000
    lane.set_burst(3)
    ids = [f"job_{n}" for n in range(6)]
    for n, job_id in enumerate(ids):
        lane.put(replace(a_job(), job_id=job_id, job_key=f"j{n}", cache_key=f"c{n}"))
    # Three workers call at once; the others come when the gate is shut.
    lane.vendors.script = [lane.turn(wait_s, ids[1]), lane.turn(None, ids[2]), lane.turn(20)]
    lane.vendors.script += [lane.answer] * 6

    for job_id in (ids[0], *ids[3:]):
        lane.come(job_id)
    assert lane.called_ms == [NOW_MS] * 3
    assert (lane.clock.now_ms(), lane.slept_s) == (NOW_MS, [])  # each worker was free at once
    while lane.clock.now_ms() < opens_ms - 5_000:
        lane.step()
    assert (len(lane.called_ms), lane.slept_s) == (3, [])
    came = len(lane.came)
    for _ in range(12):
        lane.step()

    jobs = lane.world.jobs.values()
    assert {job.status for job in jobs} == {JobStatus.COMPLETED}
    assert min(lane.called_ms[3:]) >= opens_ms
    assert sum(job.attempts_total for job in jobs) == len(lane.called_ms) == 3 + 6
    assert came <= 2 * len(ids)  # nobody comes again and again to a shut gate


def test_gate_that_a_hundred_wait_at_is_looked_at_and_not_taken_from(minute: Minute) -> None:
    for number in range(100):
        minute.put(parked(job_id=f"job_{number}", job_key=f"j{number}"))
    minute.shut(CLOSED)

    minute.sweep()

    assert isinstance(minute.gates, InMemoryGates)
    assert minute.gates.takes == 0
    assert minute.world.gates[KEY] == CLOSED


# ------------------------------------------------------------------ paused tenants


def waiting(*, in_ms: int = 0, **members: Any) -> Job:
    """A job that waits for its tenant."""
    return replace(transitions.parked(a_job(), not_before_ms=NOW_MS + in_ms), **members)


@pytest.mark.parametrize(
    "job",
    [waiting(), parked(), parked(slot=Ticket(NOW_MS, 0)), waiting(model="demo-gone")],
    ids=["by the worker", "at the gate", "with a slot", "model gone"],
)
def test_parked_job_of_a_paused_tenant_is_moved_and_not_sent(minute: Minute, job: Job) -> None:
    minute.put(job)
    minute.world.paused_tenants.add("acme")

    assert minute.sweep() == Swept(postponed=1)

    assert minute.queue.sends == []
    assert minute.job == replace(job, due_at_epoch_ms=NOW_MS + LOOK_AHEAD_MS)


@pytest.mark.parametrize(
    "job", [a_job(due_at_epoch_ms=NOW_MS), waiting(tenant="globex")], ids=["queued", "another's"]
)
def test_pause_of_a_tenant_keeps_no_other_job_from_being_sent(minute: Minute, job: Job) -> None:
    minute.put(job)
    minute.world.paused_tenants.add("acme")

    assert minute.sweep() == Swept(sent=1)


@pytest.mark.parametrize("resumed_ms", range(0, 180_000, 7_000))
def test_job_of_a_tenant_that_is_resumed_is_sent_within_90_s(
    minute: Minute, resumed_ms: int
) -> None:
    minute.put(waiting(in_ms=60_000))
    minute.world.paused_tenants.add("acme")
    seen_late_ms = resumed_ms + 5_000  # by a process with an old copy

    for _ in range(60):
        if minute.clock.now_ms() - NOW_MS >= seen_late_ms:
            minute.world.paused_tenants.clear()
        minute.sweep()
        if minute.queue.sends:
            break
        minute.clock.advance(ms=5_000)

    (delay_s,) = minute.queue.delays
    assert minute.clock.now_ms() + delay_s * 1000 - (NOW_MS + resumed_ms) <= 90_000


def test_deadline_ends_a_job_of_a_paused_tenant(minute: Minute) -> None:
    minute.put(waiting(deadline_epoch_ms=NOW_MS + 30_000))
    minute.world.paused_tenants.add("acme")

    for _ in range(3):
        minute.sweep(poll=True)
        minute.clock.advance(ms=10_000)

    assert minute.job.error is not None
    assert minute.job.error.code == "deadline_exceeded"
