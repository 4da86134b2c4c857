"""Run, in a lane that tenants or models contend for: who has a place, and who is parked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluiceway.domain.backlog import Backlog, Group, Pace
from sluiceway.domain.catalogue import parse
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.shares import PARKED_FEW_MS, PARKED_LEAST_MS
from sluiceway.usecases.run_job import Acknowledge

from tests.fakes.in_memory import NOW_MS, InMemoryBacklogs
from tests.unit.bench import ANSWER, Bench, rejected
from tests.unit.samples import a_job
from tests.unit.test_run_gate import GateBench

WORKERS = {"interactive": 8, "batch": 2}
LANE = "lane:interactive"
SLOW = Pace(interval_ms=1_000)
AT_ONCE = 20
WIDE = parse(
    f"""
    [vendors.simulator]
    max_concurrency = {AT_ONCE}

    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    requests_per_minute = 60
    burst = 1

    [models.demo-free]
    vendor = "simulator"
    vendor_model = "sim-free-1"
    version = "1"
    """
)
"""More calls at once than workers."""


def groups(*names: str, model: str = "demo-chat") -> tuple[Group, ...]:
    return tuple(Group("interactive", model, tenant, waiting=100, running=4) for tenant in names)


def paint(bench: Bench, *of: Group, age_ms: int = 0, **members: Any) -> None:
    paces = {group.model: SLOW for group in of}
    bench.world.backlog = replace(Backlog(NOW_MS - age_ms, of, paces, WORKERS), **members)


def fill(bench: Bench, name: str, places: int) -> None:
    bench.world.rooms[LANE, name] = {f"t{n}": NOW_MS + 60_000 for n in range(places)}


@pytest.fixture
def bench() -> GateBench:
    made = GateBench(catalogue=WIDE)
    made.put(a_job())
    paint(made, *groups("acme", "other"))
    return made


def test_job_within_its_share_has_a_place_as_long_as_it_runs(bench: GateBench) -> None:
    fill(bench, "tenant:acme", 3)
    inside: list[set[str]] = []

    def look(_: Any) -> Any:
        inside.append(set(bench.world.rooms[LANE, "tenant:acme"]))
        return ANSWER

    bench.vendors.script = [look]

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.COMPLETED
    assert len(inside[0]) == 4
    assert len(bench.world.rooms[LANE, "tenant:acme"]) == 3


@pytest.mark.parametrize(("rand", "wait_ms"), [(0.0, PARKED_LEAST_MS), (1.0, 160_000)])
def test_job_over_its_share_is_parked_within_its_line(
    bench: GateBench, rand: float, wait_ms: int
) -> None:
    """100 of a second each, every second slot theirs: 200 s, and 1.25 come back for one served."""
    fill(bench, "tenant:acme", 4)
    bench.rand = rand

    assert bench.deliver(receives=5) == Acknowledge()

    assert bench.waits_ms == wait_ms
    assert (bench.job.status, bench.job.attempts, bench.job.slot) == (JobStatus.QUEUED, 0, None)
    assert bench.told["job_parked"] == {"reason": "share"}
    assert bench.gates.takes == bench.vendors.total == 0
    assert len(bench.world.rooms[LANE, "tenant:acme"]) == 4


def test_places_of_workers_that_were_killed_are_free_when_their_functions_have_ended(
    bench: GateBench,
) -> None:
    fill(bench, "tenant:acme", 4)  # until 60 s from now, and nobody gives them back
    bench.clock.advance(s=59.999)
    paint(bench, *groups("acme", "other"), age_ms=-59_999)
    bench.deliver()
    assert (bench.job.parked, bench.vendors.total) == (True, 0)

    bench.put(a_job())
    bench.clock.advance(ms=1)
    bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.world.rooms[LANE, "tenant:acme"] == {}


def test_worker_that_ends_in_its_call_gives_its_place_back(bench: GateBench) -> None:
    def leave(_: Any) -> Any:
        raise SystemExit("the machine is gone")

    bench.vendors.script = [leave]

    with pytest.raises(SystemExit):
        bench.deliver()

    assert bench.job.status is JobStatus.PROCESSING
    assert set(map(len, bench.world.rooms.values())) == {0}


def test_busy_model_leaves_places_to_another(bench: GateBench) -> None:
    paint(bench, *groups("acme"), *groups("acme", model="demo-free"))
    fill(bench, "model:demo-chat", 4)

    bench.deliver()
    assert bench.told["job_parked"] == {"reason": "share"}

    bench.put(a_job(job_id="job_01KDVT7V00000000000000000B", model="demo-free", cache_key="c2"))
    bench.deliver(job_id="job_01KDVT7V00000000000000000B")
    assert bench.vendors.total == 1


def test_lane_of_one_tenant_and_model_asks_for_no_place(bench: GateBench) -> None:
    paint(bench, *groups("acme"))

    bench.deliver()

    assert bench.gates.calls["enter"] == bench.gates.calls["leave"] == 1  # the vendor's


def test_picture_that_is_too_old_shares_nothing(bench: GateBench) -> None:
    paint(bench, *groups("acme", "other"), age_ms=75_001)
    fill(bench, "tenant:acme", 8)

    bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED


def test_picture_that_cannot_be_read_keeps_no_job_from_running(
    bench: GateBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: InMemoryBacklogs) -> Backlog:
        raise StoreBusyError("The tables are busy.", retry_after_s=1)

    monkeypatch.setattr(InMemoryBacklogs, "read", busy)

    assert bench.deliver() == Acknowledge()

    assert (bench.job.status, bench.job.attempts) == (JobStatus.COMPLETED, 1)


def test_job_counts_in_the_lane_where_it_runs(bench: GateBench) -> None:
    """Lent: the other lane is nobody's but its."""
    fill(bench, "tenant:acme", 4)

    bench.deliver(lane="batch")

    assert bench.job.status is JobStatus.COMPLETED
    assert {room for room in bench.world.rooms if room[0].startswith("lane:")} == {
        (LANE, "tenant:acme")
    }


@pytest.mark.parametrize(("redrives", "parked"), [(1, True), (0, False)])
def test_redriven_jobs_have_the_batch_share_though_nobody_contends(  # case D10
    bench: GateBench, redrives: int, *, parked: bool
) -> None:
    bench.put(a_job(redrives=redrives))
    paint(bench)
    fill(bench, "redriven", 2)

    bench.deliver()

    assert bench.job.parked is parked


def test_place_of_the_lane_is_given_back_when_the_vendors_room_is_full(bench: GateBench) -> None:
    full = {f"t{n}": NOW_MS + 60_000 for n in range(AT_ONCE)}
    bench.world.rooms["simulator", "all"] = full

    bench.deliver()

    assert bench.told["job_parked"] == {"reason": "room"}
    assert PARKED_LEAST_MS <= bench.waits_ms <= PARKED_FEW_MS
    assert bench.world.rooms[LANE, "tenant:acme"] == {}
    assert bench.inside == set(full)


@pytest.mark.parametrize("turn", [ANSWER, rejected()], ids=["answer", "error"])
def test_places_that_can_not_be_given_back_fail_nothing(bench: GateBench, turn: Any) -> None:
    bench.gates.busy = {"leave"}
    bench.vendors.script = [turn]

    bench.deliver()

    assert bench.vendors.total == 1
    assert not bench.job.open


def test_job_whose_shares_are_busy_waits_for_its_turn(bench: GateBench) -> None:
    bench.gates.busy = {"enter"}

    assert bench.deliver() == Acknowledge()

    assert bench.vendors.total == 0
    assert (bench.job.attempts, bench.told["job_parked"]) == (0, {"reason": "busy"})


@pytest.mark.parametrize(("ahead_s", "parked"), [(14, False), (16, True)])
def test_no_slot_is_kept_while_others_want_it(
    bench: GateBench, ahead_s: int, *, parked: bool
) -> None:
    bench.next_slot_in(ahead_s * 1000)
    before = bench.gate

    bench.deliver()

    assert bench.job.parked is parked
    assert bench.job.slot is None
    assert (bench.gate == before) is parked


@pytest.mark.parametrize(("ahead_s", "slot"), [(59, True), (61, False)])
def test_slot_is_kept_a_minute_ahead_at_most(bench: GateBench, ahead_s: int, *, slot: bool) -> None:
    paint(bench, *groups("acme"))
    bench.next_slot_in(ahead_s * 1000)

    bench.deliver()

    assert bench.job.parked
    assert (bench.job.slot is not None) is slot
