"""Paint: the index of open jobs becomes the picture of the backlog."""

from __future__ import annotations

from typing import Any

import pytest
from sluiceway.domain import timeouts
from sluiceway.domain.backlog import MOST_GROUPS, Backlog, Group, Pace, Waits, whose
from sluiceway.domain.catalogue import parse
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.gate import Gate, Limits, key_of
from sluiceway.ports import IndexedJob
from sluiceway.usecases import sweep_jobs as sweeps
from sluiceway.usecases.paint_backlog import MARKS, paint_backlog
from sluiceway.usecases.sweep_jobs import MEASURE_WITHIN_MS

from tests.fakes.in_memory import NOW_MS, InMemoryBacklogs, InMemoryGates, InMemoryLatencies, World
from tests.unit.samples import a_job
from tests.unit.test_sweep_jobs import WORKERS, Minute

CATALOGUE = parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    requests_per_minute = 60
    burst = 5
    """
)
KEY = key_of("simulator", "sim-chat-1")


def a_row(number: int = 1, **members: Any) -> IndexedJob:
    """A job that waits in the interactive lane, each a second after the one before."""
    row = IndexedJob(
        status="queued",
        lane="interactive",
        enqueued_at_epoch_ms=NOW_MS - 100_000 + number * 1_000,
        tenant="acme",
        job_id=f"job_{number}",
        model="demo-chat",
    )
    return row._replace(**members)


def paint(*rows: IndexedJob, world: World | None = None, **members: Any) -> Backlog:
    return paint_backlog(
        rows,
        now_ms=NOW_MS,
        workers=WORKERS,
        catalogue=CATALOGUE,
        gates=InMemoryGates(world or World()),
        latencies=InMemoryLatencies(world or World()),
        **members,
    )


# ------------------------------------------------------------------------------------ groups


def test_jobs_are_counted_by_lane_model_and_tenant() -> None:
    picture = paint(
        a_row(1),
        a_row(2),
        a_row(3, status="processing"),
        a_row(4, tenant="globex"),
        a_row(5, lane="batch"),
        a_row(6, model="other"),
    )

    counted = {
        (group.lane, group.model, group.tenant): (group.waiting, group.running)
        for group in picture.groups
    }
    assert counted == {
        ("interactive", "demo-chat", "acme"): (2, 1),
        ("interactive", "demo-chat", "globex"): (1, 0),
        ("batch", "demo-chat", "acme"): (1, 0),
        ("interactive", "other", "acme"): (1, 0),
    }
    assert (picture.measured_at_epoch_ms, picture.workers) == (NOW_MS, WORKERS)


@pytest.mark.parametrize(
    ("members", "wants"),
    [
        ({}, 1),
        ({"parked": True, "not_before_epoch_ms": NOW_MS + 1}, 1),
        ({"parked": True, "slot_at_epoch_ms": NOW_MS + 1}, 0),
        ({"parked": True, "slot_at_epoch_ms": NOW_MS}, 1),
        ({"status": "retrying", "not_before_epoch_ms": NOW_MS + 1}, 0),
        ({"status": "retrying", "not_before_epoch_ms": NOW_MS}, 1),
    ],
    ids=str,
)
def test_who_has_a_later_slot_or_backs_off_waits_and_wants_no_worker(
    members: dict[str, Any], wants: int
) -> None:
    (group,) = paint(a_row(**members)).groups

    assert (group.waiting, group.slotted, group.wanting) == (1, 1 - wants, wants)


def test_refreshes_of_all_keys_are_one_group() -> None:
    (group,) = paint(a_row(1, tenant="refresh#c1_a"), a_row(2, tenant="refresh#c1_b")).groups

    assert (group.tenant, group.waiting) == ("refresh#", 2)
    assert whose("refresh#c1_a") == group.tenant
    assert whose("acme") == "acme"


@pytest.mark.parametrize("number", [1, 2, MARKS + 1, 1_000])
def test_line_tells_when_its_parts_were_enqueued(number: int) -> None:
    rows = [a_row(at, enqueued_at_epoch_ms=NOW_MS - at) for at in range(number)]

    (group,) = paint(*rows).groups

    marks = [group.oldest_epoch_ms, *group.later_epoch_ms]
    steps = min(MARKS, number - 1)
    expected = [
        NOW_MS - number + 1 + step * (number - 1) // max(1, steps) for step in range(steps + 1)
    ]
    assert marks == expected
    assert marks[-1] == NOW_MS


def test_only_those_who_want_a_worker_have_a_place_in_the_line() -> None:
    (group,) = paint(
        a_row(1, slot_at_epoch_ms=NOW_MS + 1), a_row(2), a_row(0, status="processing")
    ).groups

    assert (group.oldest_epoch_ms, group.later_epoch_ms) == (a_row(2).enqueued_at_epoch_ms, ())


def test_smallest_groups_are_left_out_and_their_jobs_counted() -> None:
    rows = [a_row(n, tenant=f"t{n % (MOST_GROUPS + 1)}") for n in range(2 * MOST_GROUPS + 1)]

    picture = paint(*rows)

    assert len(picture.groups) == MOST_GROUPS
    assert {group.waiting for group in picture.groups} == {2}
    assert picture.besides == {"interactive": 1}
    assert picture.waiting() == picture.waiting("interactive") == 2 * MOST_GROUPS + 1
    assert picture.waiting("batch") == 0


def test_what_could_not_be_counted_waits_too() -> None:
    picture = paint(a_row(), uncounted={"interactive": 3, "batch": -1})

    assert (picture.waiting("interactive"), picture.waiting("batch")) == (4, 0)


def test_sampled_job_stands_for_others_that_wait_and_for_none_at_work() -> None:
    later = {"status": "retrying", "not_before_epoch_ms": NOW_MS + 1}

    picture = paint(a_row(1), a_row(2, **later), a_row(3, status="processing"), weight=7.5)

    (group,) = picture.groups
    assert (group.waiting, group.slotted, group.running) == (15, 8, 1)
    assert group.oldest_epoch_ms == a_row(1).enqueued_at_epoch_ms
    assert picture.open == 16


# ------------------------------------------------------------------------------------ waits


def test_waits_of_a_lane_tell_what_is_parked_and_what_is_ready() -> None:
    picture = paint(
        a_row(1, parked=True, not_before_epoch_ms=NOW_MS + 1),
        a_row(2, status="retrying", not_before_epoch_ms=NOW_MS - 3),
        a_row(3, status="retrying", not_before_epoch_ms=NOW_MS + 1),
        a_row(4, status="processing"),
    )

    assert picture.waits == {
        "interactive": Waits(
            parked=1,
            oldest_epoch_ms=a_row(1).enqueued_at_epoch_ms,
            ready=1,
            ready_since_epoch_ms=NOW_MS - 3,
        )
    }


@pytest.mark.parametrize(
    ("kept", "gate"),
    [
        ({"tenant": "globex"}, Gate()),
        ({"model": "gone"}, Gate()),
        ({}, Gate(paused=True)),
        ({}, Gate(closed_until_ms=NOW_MS + 1)),
    ],
    ids=["tenant paused", "model gone", "gate paused", "gate closed"],
)
def test_what_is_kept_back_is_neither_the_oldest_nor_ready(
    kept: dict[str, str], gate: Gate
) -> None:
    world = World()
    world.gates[KEY] = gate

    picture = paint(a_row(**kept), world=world, paused_tenants={"globex"})

    assert picture.waits == {"interactive": Waits()}


# ------------------------------------------------------------------------------------ paces


def test_pace_of_an_idle_gate_has_its_burst_ahead_of_it() -> None:
    picture = paint(a_row(), a_row(model="gone"))

    assert picture.paces == {"demo-chat": Pace(1_000.0, 8_660, 0, NOW_MS - 4_000)}
    assert picture.pace("gone") == Pace()


def test_pace_knows_what_the_models_calls_took_lately() -> None:
    world = World()
    latencies = InMemoryLatencies(world)
    for n in range(64):
        latencies.add(timeouts.key_of("simulator", "sim-chat-1"), 4_000 + n, now_ms=NOW_MS)

    picture = paint(a_row(), world=world)

    assert 4_000 <= picture.pace("demo-chat").latency_ms < 4_064


def test_pace_is_that_of_the_rate_at_present_and_its_line_ends_at_the_last_slot() -> None:
    gate = Gate(
        refused_permille=1_000,
        returns_from_ms=NOW_MS,
        next_request_at_us=(NOW_MS + 30_000) * 1000,
    )

    picture = paint(a_row(), world=World(gates={KEY: gate}))

    assert picture.pace("demo-chat") == Pace(2_000.0, 8_660, 0, NOW_MS + 26_000)


@pytest.mark.parametrize(
    ("gate", "opens_at_ms"),
    [
        (Gate(closed_until_ms=NOW_MS + 9_000), NOW_MS + 9_000),
        (Gate(paused=True), NOW_MS + 30_000),
        (Gate(next_request_at_us=(NOW_MS + 3_600_000) * 1000), 0),
    ],
    ids=["closed", "paused", "far"],
)
def test_pace_tells_when_a_shut_gate_opens(gate: Gate, opens_at_ms: int) -> None:
    picture = paint(a_row(), world=World(gates={KEY: gate}))

    assert picture.pace("demo-chat").opens_at_epoch_ms == opens_at_ms
    assert bool(picture.contending("interactive", NOW_MS)) is (opens_at_ms == 0)


def test_pace_of_a_model_without_a_rate_and_of_one_with_tokens_alone() -> None:
    assert Pace.of(Gate(), Limits(), now_ms=NOW_MS) == Pace()
    assert Pace.of(Gate(), Limits(tokens_per_minute=60_000), now_ms=NOW_MS).interval_ms == 1_000
    assert Pace.of(Gate(), Limits(90_000), now_ms=NOW_MS).interval_ms == pytest.approx(
        60 / 90, 0.01
    )


# ------------------------------------------------------------------------------------ the sweep


@pytest.fixture
def minute() -> Minute:
    return Minute()


def backlogs_of(minute: Minute) -> InMemoryBacklogs:
    assert isinstance(minute.backlogs, InMemoryBacklogs)
    return minute.backlogs


def test_sweep_paints_at_each_poll_what_is_there_then(minute: Minute) -> None:
    minute.put(a_job())
    pictures: list[Backlog] = []
    minute.in_pauses = [
        lambda: pictures.append(minute.backlogs.read()),
        lambda: minute.put_many(3),
        lambda: pictures.append(minute.backlogs.read()),
    ]

    minute.sweep(poll=True)

    assert [picture.waiting() for picture in pictures] == [1, 4]
    assert [p.measured_at_epoch_ms for p in pictures] == [NOW_MS, NOW_MS + 10_000]
    assert backlogs_of(minute).writes == 11


def test_long_index_is_read_more_rarely(minute: Minute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "ROWS_PER_POLL", 10)
    minute.put_many(25)

    minute.sweep(poll=True)

    assert backlogs_of(minute).writes == 1 + 10 // 3


def test_backlog_that_is_gone_is_painted_over_once(minute: Minute) -> None:
    minute.put(a_job())
    minute.sweep()
    minute.world.jobs.clear()
    minute.clock.advance(s=60)

    minute.sweep()
    minute.clock.advance(s=60)
    minute.sweep()

    assert minute.backlogs.read() == Backlog(NOW_MS + 60_000, workers=WORKERS)
    assert backlogs_of(minute).writes == 2


def test_picture_that_cannot_be_written_keeps_no_job_waiting(minute: Minute) -> None:
    class Busy(InMemoryBacklogs):
        def write(self, backlog: Backlog) -> None:  # noqa: ARG002
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    minute.backlogs = Busy(minute.world)
    minute.put(a_job(due_at_epoch_ms=NOW_MS))

    assert minute.sweep().sent == 1


def test_index_that_could_not_be_read_in_time_is_completed_from_the_lanes(minute: Minute) -> None:
    minute.read_slowly(MEASURE_WITHIN_MS // 4)
    minute.put_many(100)
    minute.queue.backlogs = {"interactive": 90}

    minute.sweep(poll=True)

    assert minute.backlogs.read().waiting() == 90
    assert backlogs_of(minute).writes == 1


def test_group_of_running_jobs_alone_contends_only_beside_one_that_waits() -> None:
    waits = Group("interactive", "m", "acme", waiting=1)
    runs = Group("interactive", "m", "globex", running=1)

    assert Backlog(NOW_MS, (waits, runs)).contending("interactive", NOW_MS) == (waits, runs)
    assert Backlog(NOW_MS, (runs,)).contending("interactive", NOW_MS) == ()
    assert Backlog(NOW_MS, (waits, runs)).contending("batch", NOW_MS) == ()
