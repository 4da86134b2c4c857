"""Shares: how many workers of a lane one tenant or model may have, and who waits how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluiceway.domain.backlog import Backlog, Group, Pace
from sluiceway.domain.catalogue import parse
from sluiceway.domain.gate import Room
from sluiceway.domain.shares import (
    PARKED_FEW_MS,
    PARKED_LEAST_MS,
    REACH_MS,
    line_ms,
    parked_ms,
    places_of,
    reach_ms,
    share_of,
)

from tests.fakes.in_memory import NOW_MS

CATALOGUE = parse("[tenants.big]\nshare = 3\n")
WORKERS = {"interactive": 8, "batch": 2}
SLOW = Pace(interval_ms=1_000, latency_ms=5_000)


def picture(*groups: Group, pace: Pace = SLOW, age_ms: int = 0, **named: Pace) -> Backlog:
    """All of the lane's workers are busy, with jobs of the first group unless told otherwise."""
    if groups and not any(group.running for group in groups):
        groups = (replace(groups[0], running=WORKERS[groups[0].lane]), *groups[1:])
    paces = {group.model: pace for group in groups} | named
    return Backlog(NOW_MS - age_ms, groups, paces, WORKERS)


def group(tenant: str, waiting: int = 100, *, model: str = "x", running: int = 0) -> Group:
    return Group("interactive", model, tenant, waiting=waiting, running=running)


def places(
    backlog: Backlog,
    tenant: str,
    model: str = "x",
    *,
    lane: str = "interactive",
    redriven: bool = False,
) -> dict[str, int]:
    rooms = places_of(
        backlog,
        CATALOGUE,
        lane=lane,
        tenant=tenant,
        model=model,
        redriven=redriven,
        now_ms=NOW_MS,
    )
    assert {room.vendor for room in rooms} <= {f"lane:{lane}"}
    return {room.name: room.places for room in rooms}


@pytest.mark.parametrize(
    ("workers", "weight", "others", "share"),
    [
        (8, 1, [], 8),
        (8, 1, [(1, 100)], 4),
        (8, 1, [(1, 100)] * 4, 2),  # 8 / 5, rounded up
        (8, 3, [(1, 100)], 6),
        (8, 1, [(3, 100)], 2),
        (8, 1, [(1, 100)] * 20, 1),
        (8, 1, [(1, 1)], 7),  # it wants no more
        (8, 1, [(1, 1), (1, 1), (1, 100)], 3),
        (8, 1, [(1, 3), (1, 4)], 3),  # both want more than a third of 8 or of what is left
        (8, 100, [(1, 100)], 7),  # one is left for the others
        (2, 1, [(1, 100)], 1),
        (1, 1, [(1, 100)], 1),
    ],
)
def test_share_is_what_one_gets_that_wants_all(
    workers: int, weight: int, others: list[tuple[int, int]], share: int
) -> None:
    assert share_of(workers, weight, others) == share


def test_lane_of_one_tenant_and_one_model_has_no_shares() -> None:
    assert places(picture(group("a")), "a") == {}
    assert places(Backlog(), "a") == {}


@pytest.mark.parametrize(("idle", "shared"), [(2, True), (3, False), (4, False)])
def test_lane_has_shares_when_more_jobs_want_workers_than_are_idle(
    idle: int, *, shared: bool
) -> None:
    calls_are_long = Pace(latency_ms=60_000)
    two = picture(group("a", 2, running=7 - idle), group("b", 1, running=1), pace=calls_are_long)

    assert bool(places(two, "a")) is shared


def test_jobs_whose_gate_has_no_slot_for_them_soon_want_no_workers() -> None:
    """A slot each 5 s: two of a hundred begin in 10 s, and three workers are idle."""
    two = picture(group("a", running=4), group("b", running=1), pace=Pace(interval_ms=5_000))

    assert places(two, "a") == {}
    assert places(replace(two, paces={"x": Pace(interval_ms=2_000)}), "a") == {"tenant:a": 4}


def test_five_tenants_have_a_fifth_each() -> None:
    five = picture(*(group(tenant) for tenant in "abcde"))

    assert places(five, "a") == {"tenant:a": 2}


def test_share_of_a_tenant_is_as_the_catalogue_has_it() -> None:
    two = picture(group("big"), group("a"))

    assert places(two, "big") == {"tenant:big": 6}
    assert places(two, "a") == {"tenant:a": 2}


def test_tenant_that_the_picture_lacks_is_let_in_until_the_next() -> None:
    assert places(picture(group("a")), "b") == {}


def test_who_is_far_below_its_share_writes_no_row() -> None:
    wide = replace(
        picture(group("a", 200), group("b", 2, running=4), pace=Pace(latency_ms=60_000)),
        workers={"interactive": 75, "batch": 25},
    )

    assert places(wide, "a") == {"tenant:a": 69}
    assert places(wide, "b") == {}


def test_two_models_of_a_tenant_have_half_each() -> None:
    two = picture(group("a"), group("a", model="y"))

    assert places(two, "a") == {"model:x": 4}


def test_tenants_and_models_may_contend_both() -> None:
    two = picture(group("a"), group("b", model="y"))

    assert places(two, "a") == {"tenant:a": 4, "model:x": 4}


def test_nothing_is_shared_while_nobody_waits() -> None:
    assert places(picture(group("a", 0, running=4), group("b", 0, running=4)), "a") == {}


def test_who_waits_behind_a_shut_gate_wants_no_worker() -> None:
    shut = picture(group("a"), group("b", model="y"), y=Pace(opens_at_epoch_ms=NOW_MS + 1))

    assert places(shut, "a") == {}


def test_tenant_that_is_soon_done_is_let_in() -> None:
    """2 jobs of 1 s beside one other tenant: 4 s at its share, and a call of 5 s."""
    few = picture(group("a"), group("b", 2))

    assert places(few, "b") == {}
    assert places(few, "a") == {"tenant:a": 6}
    assert places(picture(group("a"), group("b", 6)), "b") == {"tenant:b": 4}


def test_short_line_of_an_old_picture_is_over() -> None:
    """2 jobs take 4 s at their share, and the call 5 s."""
    assert places(picture(group("a"), group("b", 2), age_ms=9_000), "a") != {}
    assert places(picture(group("a"), group("b", 2), age_ms=9_001), "a") == {}
    unknown = picture(group("a"), group("b", 2), age_ms=60_000, pace=Pace())
    assert places(unknown, "a") != {}


@pytest.mark.parametrize(
    ("lane", "redriven", "rooms"),
    [
        ("interactive", True, {"redriven": 2}),
        ("interactive", False, {}),
        ("batch", True, {}),
    ],
)
def test_redriven_jobs_have_the_batch_share_of_the_interactive_lane(
    lane: str, *, redriven: bool, rooms: dict[str, int]
) -> None:
    assert places(picture(), "a", lane=lane, redriven=redriven) == rooms


def test_batch_jobs_keep_no_slots_ahead_of_urgent_ones() -> None:
    urgent, patient = group("a"), replace(group("a"), lane="batch")

    def reach(lane: str, *groups: Group) -> int:
        return reach_ms(
            picture(*groups),
            CATALOGUE,
            lane=lane,
            tenant="a",
            model="x",
            hold_ms=15_000,
            now_ms=NOW_MS,
        )

    assert reach("batch", patient) == REACH_MS
    assert reach("batch", patient, urgent) == 15_000
    assert reach("interactive", patient, urgent) == REACH_MS


def test_room_of_a_lane_is_no_vendors() -> None:
    rooms = places_of(
        picture(group("a"), group("b")),
        CATALOGUE,
        lane="interactive",
        tenant="a",
        model="x",
        redriven=False,
        now_ms=NOW_MS,
    )

    assert rooms == (Room("lane:interactive", "tenant:a", 4),)


@pytest.mark.parametrize(
    ("backlog", "reach"),
    [
        (Backlog(), REACH_MS),
        (picture(group("a")), REACH_MS),
        (picture(group("a"), group("b")), 15_000),
        (picture(group("a"), group("a", model="y")), 15_000),
    ],
)
def test_slots_reach_less_far_as_long_as_others_want_them(backlog: Backlog, reach: int) -> None:
    found = reach_ms(
        backlog,
        CATALOGUE,
        lane="interactive",
        tenant="a",
        model="x",
        hold_ms=15_000,
        now_ms=NOW_MS,
    )

    assert found == reach


@pytest.mark.parametrize(
    ("backlog", "line"),
    [
        (Backlog(), 0),
        (picture(group("a", 10)), 10_000),
        (picture(group("a", 10), group("b", 500)), 20_000),  # every second slot is its
        (picture(group("a", 10), group("big")), 40_000),  # every fourth
        (picture(group("a", 10), pace=Pace(latency_ms=4_000)), 5_000),  # on 8 workers
        (picture(group("a", 10), group("a", model="y"), pace=Pace(latency_ms=4_000)), 10_000),
    ],
)
def test_line_is_as_long_as_the_tenants_own_jobs_take(backlog: Backlog, line: float) -> None:
    assert line_ms(backlog, CATALOGUE, lane="interactive", tenant="a", model="x") == line


@pytest.mark.parametrize(
    ("line", "left_ms", "longest_ms"),
    [
        (0, 86_400_000, PARKED_FEW_MS),
        (100_000, 86_400_000, 80_000),
        (100_000, 60_000, 30_000),
        (100_000, 1_000, PARKED_LEAST_MS),
    ],
)
def test_who_is_parked_looks_again_within_its_line(
    line: float, left_ms: int, longest_ms: int
) -> None:
    assert parked_ms(line, rand=0.0, left_ms=left_ms) == PARKED_LEAST_MS
    assert parked_ms(line, rand=1.0, left_ms=left_ms) == longest_ms


def test_model_whose_vendor_takes_few_calls_at_once_leaves_the_workers_to_others() -> None:
    """A hundred of its jobs wait, and two run: it has no use for a half of the workers."""
    few = parse(
        "[vendors.v]\nprotocol = 'openai'\nbase_url = 'http://x'\nmax_concurrency = 2\n"
        "[models.x]\nvendor = 'v'\nvendor_model = 'x'\nversion = '1'\n"
    )
    backlog = picture(group("a", running=2), group("b", model="y", running=6), pace=Pace())

    rooms = places_of(
        backlog, few, lane="interactive", tenant="b", model="y", redriven=False, now_ms=NOW_MS
    )

    assert {room.name: room.places for room in rooms} == {"tenant:b": 6, "model:y": 6}
    idle = picture(group("a", running=2), group("b", 4, model="y", running=2), pace=Pace())
    assert not places_of(
        idle, few, lane="interactive", tenant="b", model="y", redriven=False, now_ms=NOW_MS
    )
