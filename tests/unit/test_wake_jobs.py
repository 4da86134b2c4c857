"""Wake: who is sent for before its turn, and through which lane's queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.backlog import Backlog, Pace
from sluiceway.domain.catalogue import parse
from sluiceway.domain.job import REDRIVE_AFTER_FAILURE_MS, RESEND_AFTER_BACKOFF_MS, JobStatus
from sluiceway.domain.ticket import Ticket
from sluiceway.ports import IndexedJob
from sluiceway.usecases.run_job import Acknowledge, GiveBack
from sluiceway.usecases.sweep_jobs import WOKEN_AFTER_S
from sluiceway.usecases.wake_jobs import AHEAD_MS, MOST_AT_ONCE, POLL_EVERY_MS, to_wake

from tests.fakes.in_memory import NOW_MS
from tests.unit.bench import processing
from tests.unit.samples import JOB_ID
from tests.unit.test_sweep_jobs import Minute

CATALOGUE = parse("[tenants.big]\nshare = 3\n")
SECOND = Pace(interval_ms=1_000, latency_ms=750, slot_at_epoch_ms=NOW_MS)
LATER_MS = NOW_MS + 60_000


def parked(number: int, tenant: str = "a", **members: Any) -> list[IndexedJob]:
    members = {"parked": True, "not_before_epoch_ms": LATER_MS} | members
    return waiting(number, tenant, **members)


def waiting(number: int, tenant: str = "a", **members: Any) -> list[IndexedJob]:
    members = {"status": "queued", "lane": "interactive", "model": "x"} | members
    return [
        IndexedJob(
            enqueued_at_epoch_ms=NOW_MS - 1_000 + n, tenant=tenant, job_id=f"{tenant}{n}", **members
        )
        for n in range(number)
    ]


def woken(
    *jobs: IndexedJob,
    pace: Pace = SECOND,
    workers: tuple[int, int] = (8, 2),
    messages: dict[str, int] | None = None,
    paused_lanes: tuple[str, ...] = (),
    next_ms: int = POLL_EVERY_MS,
    weight: int = 1,
) -> Counter[tuple[str, str]]:
    """By tenant and lane."""
    picture = Backlog(
        NOW_MS,
        paces=dict.fromkeys("xy", pace),
        workers={"interactive": workers[0], "batch": workers[1]},
    )
    wakes = to_wake(
        jobs,
        picture,
        CATALOGUE,
        now_ms=NOW_MS,
        messages=lambda lane: (messages or {}).get(lane, 0),
        paused_lanes=paused_lanes,
        next_ms=next_ms,
        weight=weight,
    )
    assert len({wake.job for wake in wakes}) == len(wakes)
    return Counter((wake.job.tenant, wake.lane) for wake in wakes)


# ------------------------------------------------------------------ one's own lane


def test_parked_jobs_are_sent_for_as_many_as_there_are_slots() -> None:
    assert woken(*parked(50)) == {("a", "interactive"): 10}
    assert woken(*parked(5)) == {("a", "interactive"): 5}
    assert woken(*parked(50), next_ms=POLL_EVERY_MS + 10_000) == {("a", "interactive"): 20}


def test_what_comes_by_itself_is_waited_for() -> None:
    soon = parked(4, "b", not_before_epoch_ms=NOW_MS + AHEAD_MS)

    assert woken(*parked(50), *soon, *waiting(3, "c")) == {("a", "interactive"): 3}


def test_slots_that_are_taken_are_none() -> None:
    taken = replace(SECOND, slot_at_epoch_ms=NOW_MS + 7_000)

    assert woken(*parked(50), pace=taken) == {("a", "interactive"): 3}


def test_without_a_rate_the_workers_are_what_there_is() -> None:
    """8 workers, each for a run of a second: 80 in 10 s."""
    free = Pace(latency_ms=750)

    assert woken(*parked(200), pace=free, workers=(8, 0)) == {("a", "interactive"): 80}
    slow = Pace(latency_ms=59_750)
    busy = waiting(6, "b", status="processing")
    assert woken(*parked(200), *busy, pace=slow, workers=(8, 0)) == {("a", "interactive"): 3}


def test_nobody_is_sent_for_behind_a_shut_gate() -> None:
    assert woken(*parked(50), pace=replace(SECOND, opens_at_epoch_ms=NOW_MS + 1)) == {}


@pytest.mark.parametrize(
    "members",
    [
        {"slot_at_epoch_ms": LATER_MS},
        {"status": "retrying"},
        {"parked": False},
    ],
    ids=["keeps a slot", "backs off", "has its message"],
)
def test_who_waits_for_something_else_is_left_alone(members: dict[str, Any]) -> None:
    assert woken(*parked(50, **members)) == {}


def test_tenants_take_turns_as_their_shares_say() -> None:
    assert woken(*parked(50), *parked(50, "big")) == {
        ("a", "interactive"): 3,
        ("big", "interactive"): 7,
    }
    assert woken(*parked(50), *parked(50, "b"), *waiting(4, "b", status="processing")) == {
        ("a", "interactive"): 7,
        ("b", "interactive"): 3,
    }


def test_jobs_are_sent_for_in_the_order_of_their_turns() -> None:
    picture = Backlog(NOW_MS, paces={"x": SECOND}, workers={"interactive": 8, "batch": 2})
    jobs = [*parked(50), *parked(50, "b")]

    wakes = to_wake(jobs, picture, CATALOGUE, now_ms=NOW_MS, messages=lambda _: 0)

    assert [wake.job.tenant for wake in wakes] == ["a", "b"] * 5


def test_sampled_job_that_comes_by_itself_stands_for_others() -> None:
    assert woken(*parked(50), *waiting(2)) == {("a", "interactive"): 8}
    assert woken(*parked(50), *waiting(2), weight=4) == {("a", "interactive"): 2}


def test_oldest_of_a_tenant_comes_first() -> None:
    picture = Backlog(NOW_MS, paces={"x": SECOND}, workers={"interactive": 8, "batch": 2})

    wakes = to_wake(parked(50)[::-1], picture, CATALOGUE, now_ms=NOW_MS, messages=lambda _: 0)

    assert [wake.job.job_id for wake in wakes] == [f"a{n}" for n in range(10)]


def test_models_share_the_workers() -> None:
    free = Pace(latency_ms=750)

    found = woken(*parked(200), *parked(200, "b", model="y"), pace=free, workers=(8, 0))

    assert found == {("a", "interactive"): 40, ("b", "interactive"): 40}


def test_one_poll_sends_for_so_many() -> None:
    free = Pace(latency_ms=50)

    assert woken(*parked(5_000), pace=free).total() == MOST_AT_ONCE


# ------------------------------------------------------------------ lending

FREE = Pace(latency_ms=4_750)
"""A run of 5 s: one in a poll."""


def test_idle_batch_workers_are_lent_all() -> None:
    assert woken(*waiting(100), pace=FREE) == {("a", "batch"): 2}


def test_of_idle_interactive_workers_a_quarter_is_kept() -> None:
    batch = waiting(100, lane="batch")

    assert woken(*batch, pace=FREE) == {("a", "interactive"): 6}
    assert woken(*batch, pace=FREE, workers=(3, 2)) == {("a", "interactive"): 2}
    assert woken(*batch, pace=FREE, workers=(1, 2)) == {}


def test_workers_that_have_work_are_not_lent() -> None:
    own = waiting(1, "b", lane="batch", status="processing")

    assert woken(*waiting(100), *own, pace=FREE) == {("a", "batch"): 1}
    assert woken(*waiting(100), pace=FREE, messages={"batch": 2}) == {}  # lent already
    assert woken(*waiting(100), pace=FREE, workers=(8, 0)) == {}


@pytest.mark.parametrize("lane", ["interactive", "batch"])
@pytest.mark.parametrize("paused", ["interactive", "batch"])
def test_nothing_is_lent_to_or_from_a_paused_lane(lane: str, paused: str) -> None:
    jobs = waiting(100, lane=lane)

    assert woken(*jobs, pace=FREE) != {}
    assert woken(*jobs, pace=FREE, paused_lanes=(paused,)) == {}


def test_parked_jobs_of_a_paused_lane_are_left_alone() -> None:
    assert woken(*parked(50), paused_lanes=("interactive",)) == {}
    assert woken(*parked(50), paused_lanes=("batch",)) == {("a", "interactive"): 10}


def test_nothing_is_lent_to_a_lane_with_idle_workers_or_without_slots() -> None:
    assert woken(*waiting(7), pace=FREE) == {}
    assert woken(*waiting(100), pace=SECOND) == {}  # its own workers use them all


def test_who_has_nothing_running_is_lent_first() -> None:
    others = waiting(8, "b", status="processing")

    assert woken(*waiting(50, "b"), *waiting(5, "c"), *others, pace=FREE) == {("c", "batch"): 2}


# ------------------------------------------------------------------ in a sweep


@pytest.fixture
def minute() -> Minute:
    made = Minute()
    made.in_pauses = [made.clock.now_ms] * 20
    return made


def at_gate(**members: Any) -> Any:
    return replace(transitions.gated(processing(), not_before_ms=LATER_MS, slot=None), **members)


def test_job_that_is_sent_for_is_parked_no_more_and_runs(minute: Minute) -> None:
    minute.put(at_gate(not_before_epoch_ms=LATER_MS + 60_000, due_at_epoch_ms=LATER_MS + 60_000))
    minute.time_left_ms = 6_000

    minute.sweep(poll=True)

    assert minute.queue.sends == [("interactive", "acme", JOB_ID)]
    assert minute.queue.delays == [WOKEN_AFTER_S]
    job = minute.job
    assert (job.status, job.parked, job.not_before_epoch_ms) == (JobStatus.QUEUED, False, None)
    assert job.due_at_epoch_ms == NOW_MS + RESEND_AFTER_BACKOFF_MS
    assert ("job_resent", JOB_ID, {"early": True, "to": "interactive"}) in minute.telemetry.events
    assert minute.deliver() == Acknowledge()
    assert minute.job.status is JobStatus.COMPLETED


def test_sweep_by_hand_sends_for_nobody(minute: Minute) -> None:
    before = minute.put(at_gate(not_before_epoch_ms=LATER_MS, due_at_epoch_ms=LATER_MS + 1))

    minute.sweep()

    assert minute.queue.sends == []
    assert minute.job == before


@pytest.mark.parametrize(("model", "sent"), [("demo-chat", 1), ("demo-new", 0)])
def test_job_of_a_model_that_the_sweeper_does_not_know_is_not_woken(
    minute: Minute, model: str, sent: int
) -> None:
    far = LATER_MS + 60_000
    minute.put(at_gate(model=model, not_before_epoch_ms=far, due_at_epoch_ms=far))

    minute.sweep(poll=True)

    assert len(minute.queue.sends) == sent


@pytest.mark.parametrize(
    "change",
    [
        {"status": JobStatus.CANCELLED, "due_at_epoch_ms": None},
        {"revision": 99},
    ],
    ids=["cancelled", "moved"],
)
def test_job_that_moves_meanwhile_is_sent_no_message(
    minute: Minute, change: dict[str, Any]
) -> None:
    far = LATER_MS + 60_000
    minute.put(at_gate(not_before_epoch_ms=far, due_at_epoch_ms=far))
    get = minute.store.get

    class Late(type(minute.jobs)):  # type: ignore[misc]
        def apply(self, old: Any, new: Any, **named: Any) -> Any:
            minute.world.jobs["acme", JOB_ID] = replace(minute.job, **change)
            return super().apply(old, new, **named)

    minute.store = Late(minute.world, clock=minute.clock)
    minute.time_left_ms = 6_000
    assert get("acme", JOB_ID) is not None

    minute.sweep(poll=True)

    assert minute.queue.sends == []


def test_lent_job_leaves_its_row_as_it_is_and_each_copy_runs_it_once(minute: Minute) -> None:
    minute.put_many(200)
    before = dict(minute.world.jobs)
    minute.queue.backlogs = {"interactive": 200}
    minute.time_left_ms = 6_000

    minute.sweep(poll=True)

    lent = [(tenant, job_id) for lane, tenant, job_id in minute.queue.sends if lane == "batch"]
    assert len(lent) == 2  # workers, each with a call that lasts until the next poll
    assert minute.world.jobs == before
    for lane in ("batch", "interactive"):
        for tenant, job_id in lent:
            assert minute.deliver(tenant=tenant, job_id=job_id, lane=lane) == Acknowledge()
    assert minute.vendors.total == len(lent)


def test_job_is_lent_once_in_a_sweep(minute: Minute) -> None:
    minute.put_many(200)
    minute.queue.backlogs = {"interactive": 200}

    minute.sweep(poll=True)

    assert max(Counter(minute.queue.sends).values()) == 1


def test_lent_copy_of_a_job_that_failed_is_no_redrive(minute: Minute) -> None:
    """It was enqueued at once when its row was open still."""
    failed_at_ms = NOW_MS + 100
    failed = transitions.failed(
        processing(), an_error_now(), now_ms=failed_at_ms, last_receive=False
    )
    minute.put(failed)
    minute.clock.set(failed_at_ms + 1_000)

    latest_ms = NOW_MS + 3_000
    assert latest_ms < failed_at_ms + REDRIVE_AFTER_FAILURE_MS
    assert isinstance(minute.deliver(enqueued_at_ms=latest_ms, lane="batch"), GiveBack)
    assert minute.job == failed


def an_error_now() -> Any:
    return transitions.JobError(
        code="vendor_rejected",
        message="The vendor said no.",
        retryable=False,
        attempt=1,
        at_epoch_ms=NOW_MS,
        error_class="VendorError",
    )


def test_job_with_a_slot_is_not_sent_for(minute: Minute) -> None:
    far = LATER_MS + 60_000
    slot = Ticket(far, 0)
    job = transitions.gated(processing(), not_before_ms=far, slot=slot)
    minute.put(job)
    minute.time_left_ms = 6_000

    minute.sweep(poll=True)

    assert minute.queue.sends == []
    assert minute.job.slot == slot


def test_no_more_are_sent_for_than_the_vendor_takes_at_once() -> None:
    """Of x it takes 2 at once, each for 5 s; the rest of the workers are for y."""
    few = parse(
        "[vendors.v]\nprotocol = 'openai'\nbase_url = 'http://x'\n"
        "[models.x]\nvendor = 'v'\nvendor_model = 'x'\nversion = '1'\nmax_concurrency = 2\n"
    )
    picture = Backlog(NOW_MS, paces={"x": FREE, "y": FREE}, workers={"interactive": 8, "batch": 2})

    def sent_for(*jobs: IndexedJob) -> Counter[tuple[str, str]]:
        wakes = to_wake(jobs, picture, few, now_ms=NOW_MS, messages=lambda _: 0)
        return Counter((wake.job.model, wake.lane) for wake in wakes)

    assert sent_for(*parked(100)) == {("x", "interactive"): 4}
    assert sent_for(*parked(100), *parked(100, "b", model="y")) == {
        ("x", "interactive"): 4,
        ("y", "interactive"): 12,
        ("y", "batch"): 2,
    }
    running = waiting(2, status="processing")
    assert sent_for(*waiting(100, "b"), *running) == {}
