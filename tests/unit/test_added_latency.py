"""The arithmetic of the benchmark of added latency."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sluiceway_client import Job
from sluiceway_client.models import Cache

from bench import added_latency, report
from bench.added_latency import MOMENTS, PARTS, Found, Rate, Seen

AT_S = 1_000_000.0
MOMENTS_S = dict(
    zip(
        MOMENTS,
        (0.0, 0.002, 0.010, 0.030, 0.035, 0.045, 0.060, 0.360, 0.380, 0.700),
        strict=True,
    )
)


def a_job(job_id: str, *, deduplicated: bool = False) -> Job:
    return Job(
        id=job_id,
        status="completed",
        model="limited",
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
        cache=Cache("miss"),
        deduplicated=deduplicated,
    )


def seen(due_s: float, seen_s: float, job: Job | None = None, error: str = "") -> Seen:
    return Seen(AT_S + due_s, AT_S + due_s, AT_S + seen_s, job, error)


def ok(due_s: float, seen_s: float) -> Seen:
    return seen(due_s, seen_s, a_job("job_1"))


def test_parts_follow_each_other_but_for_the_vendors_time() -> None:
    followed = list(itertools.pairwise(MOMENTS))

    parts = [(part.begins, part.ends) for part in PARTS.values()]

    assert [pair for pair in followed if pair not in parts] == [("called", "answered")]
    assert [pair for pair in followed if pair in parts] == parts


def test_parts_sum_up_to_what_was_added() -> None:
    parts = added_latency.parts_ms(MOMENTS_S)

    request = ok(0.0, 0.700)
    vendor_s = (AT_S + MOMENTS_S["called"], AT_S + MOMENTS_S["answered"])
    assert sum(parts.values()) == pytest.approx(400)
    assert added_latency.added_ms(request, vendor_s) == pytest.approx(400)
    assert parts["answer"] == pytest.approx(320)


def test_parts_are_never_negative_and_sum_up_when_the_worker_is_faster_than_the_api() -> None:
    early = {**MOMENTS_S, "submitted": 0.040}  # the worker started at 0.035

    parts = added_latency.parts_ms(early)

    assert parts["lane"] == 0
    assert parts["submit"] == pytest.approx(25)
    assert sum(parts.values()) == pytest.approx(400)


@pytest.mark.parametrize(
    ("due_s", "vendor_s", "expected_ms"),
    [
        (0.0, (0.1, 0.4), 200),
        (0.2, (0.1, 0.4), 100),  # the vendor was at work for another's request already
        (0.45, (0.1, 0.4), 50),
        (0.0, None, 500),
    ],
    ids=["whole", "half", "over", "not asked"],
)
def test_added_leaves_out_what_the_vendor_took_of_the_request(
    due_s: float, vendor_s: tuple[float, float] | None, expected_ms: float
) -> None:
    span = vendor_s and (AT_S + vendor_s[0], AT_S + vendor_s[1])

    added_ms = added_latency.added_ms(ok(due_s, 0.5), span)

    assert added_ms == pytest.approx(expected_ms)


def test_percentiles_lie_between_the_values() -> None:
    values = [float(n) for n in range(100, -1, -1)]

    told = added_latency.percentiles(values)

    assert told == {
        "p50": pytest.approx(50),
        "p95": pytest.approx(95),
        "p99": pytest.approx(99),
        "most": 100,
    }


def test_percentiles_of_few_values_have_no_p99() -> None:
    assert added_latency.percentiles([3.0]) == {"p50": 3, "p95": 3, "p99": None, "most": 3}
    assert added_latency.percentiles([1.0, 3.0])["p50"] == 2


def test_summed_floors_are_those_of_steps_one_after_the_other() -> None:
    floors = {"GetItem": [1.0, 2.0], "poller": [10.0, 20.0], "SendMessage": [100.0, 100.0]}

    assert added_latency.summed(floors, ("poller", "GetItem", "GetItem")) == [12, 24]


def test_every_step_of_a_part_has_a_floor_that_is_measured() -> None:
    steps = {step for part in PARTS.values() for step in part.floor}

    assert steps == {
        *("gateway, there", "gateway, back", "poller"),
        *("GetItem", "UpdateItem", "TransactWriteItems", "SendMessage"),
    }


def test_arrivals_are_so_many_in_order_and_the_same_each_time() -> None:
    moments, again = (
        added_latency.arrivals_s(4, 12.5, random.Random("a"))  # noqa: S311
        for _ in range(2)
    )

    assert moments == again
    assert moments == sorted(moments)
    assert len(moments) == 50
    assert moments[0] >= 0
    assert moments[-1] <= 12.5


def test_rate_is_carried_whose_requests_have_their_results_in_time() -> None:
    requests = [ok(n / 10, n / 10 + 0.8) for n in range(20)]

    rate = added_latency.rate_of(2.0, 0.3, requests)

    assert (rate.offered_per_s, rate.achieved_per_s, rate.errors) == (10, 10, 0)
    assert not rate.saturated


def test_rate_is_saturated_whose_backlog_grows() -> None:
    requests = [ok(n / 10, n / 5 + 0.8) for n in range(20)]

    rate = added_latency.rate_of(2.0, 0.3, requests)

    assert rate.achieved_per_s < 9.5
    assert rate.saturated


def test_rate_is_saturated_that_has_an_error() -> None:
    requests = [*(ok(n / 10, n / 10 + 0.8) for n in range(19)), seen(2.0, 2.1, None, "ApiError")]

    rate = added_latency.rate_of(2.0, 0.3, requests)

    assert rate.errors == 1
    assert rate.saturated


def test_duplicates_are_those_that_came_upon_the_others_job() -> None:
    first, second = ok(0.0, 0.7), seen(0.1, 0.7, a_job("job_1", deduplicated=True))

    assert added_latency.duplicates([first, second]) == [second]


@pytest.mark.parametrize(
    "other",
    [a_job("job_2"), a_job("job_2", deduplicated=True), None],
    ids=["a job of its own", "another's", "failed"],
)
def test_duplicates_that_went_another_way_are_not_measured(other: Job | None) -> None:
    with pytest.raises(report.NotMeasuredError):
        added_latency.duplicates([ok(0.0, 0.7), seen(0.1, 0.7, other, "ApiError")])


@pytest.mark.parametrize(
    ("takes_ms", "wait_ms", "looks"),
    [(0, 0, 1), (100, 0, 2), (101, 119, 3), (220, 0, 3)],
)
def test_held_request_finds_the_end_at_its_next_look(
    takes_ms: int, wait_ms: int, looks: int
) -> None:
    assert added_latency.look_ms(takes_ms) == (wait_ms, looks)


def found() -> Found:
    carried = Rate(2.0, 2.0, 0, (ok(0.0, 0.7),))
    crowded = Rate(10.0, 6.0, 3, (ok(0.0, 9.0), seen(0.1, 29.0, None, "UnavailableError")))
    floors = {step: [2.0, 3.0] for part in PARTS.values() for step in part.floor}
    parts = {2.0: [added_latency.parts_ms(MOMENTS_S)]}
    return Found((carried, crowded), {2.0: [400.0]}, parts, {"held": [400.0]}, floors)


def test_nothing_is_told_of_what_a_saturated_rate_adds() -> None:
    carried, crowded = added_latency.rate_lines(found())

    assert carried == ("2", "2.0", "1", "0", "400", "400", "-", "400", "")
    assert crowded == ("10", "6.0", "2", "3", "-", "-", "-", "-", "saturated")


def test_parts_are_told_beside_the_emulators_floor() -> None:
    lines = {line[0]: line[2:] for line in added_latency.part_lines(found())}

    assert list(lines) == [*PARTS, "all"]
    assert lines["client"] == ("2", "2", "-", "-", "-")
    assert lines["finish"][:4] == ("20", "20", "2", "3")
    steps = sum(len(part.floor) for part in PARTS.values())
    assert lines["all"][:3] == ("400", "400", f"{2.5 * steps:.0f}")


def test_saturated_rates_alone_give_no_point_in_the_plot() -> None:
    only = replace(found(), rates=found().rates[:1])

    plots = [
        [part for part in added_latency.parts_of(one) if isinstance(part, report.Plot)]
        for one in (only, found())
    ]

    assert plots[0] == plots[1]
    assert plots[0][0].series == {
        "p50": [(2.0, pytest.approx(400))],
        "p95": [(2.0, pytest.approx(400))],
    }


@pytest.mark.parametrize(
    "options",
    [("--rate", "0"), ("--rate", "4", "--rate", "2"), ("--rate", "nan"), ("--for-s", "0")],
    ids=" ".join,
)
def test_rates_that_do_not_rise_are_not_measured(options: tuple[str, ...]) -> None:
    with pytest.raises(report.NotMeasuredError, match="rates rise"):
        added_latency.main(options)
