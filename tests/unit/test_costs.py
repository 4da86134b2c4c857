"""The model of costs: bills by hand, what moves them, and the counts that come with it."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from sluiceway_cli import costs
from sluiceway_cli.costs import (
    LIST,
    MILLION,
    MONTH_H,
    MONTH_S,
    Counts,
    Path,
    Step,
    Stored,
    Workload,
    break_even,
    cost_of,
    cost_of_cache,
    cost_of_events,
    idle_cost,
)

COUNTED = costs.counted()
SMALL = Workload()


def a_step(**numbers: float) -> Step:
    return Step(calls={"GetItem": 2, "TransactWriteItems": 1}, read_units=3, **numbers)


def one_path(function: str, step: Step) -> Counts:
    flat = Stored({1: 1000}, {1: 0})
    return Counts({}, {"it": Path(function, {1: step}, {1: step})}, flat, flat, flat)


def usd_of(lines: tuple[costs.Line, ...], *items: str) -> list[float]:
    by_item = {line.item: line.usd for line in lines}
    return [by_item[item] for item in items]


# ------------------------------------------------------------------------------------ one event


def test_event_of_the_api_costs_units_a_request_and_its_time() -> None:
    counts = one_path("api", a_step(write_units=8, code_ms=10, log_bytes=220))

    lines = cost_of_events({"it": MILLION}, SMALL, counts).lines

    # 10 ms of a core at 1,024 of 1,769 MB, and 4 + 4 + 15 ms of waits, in one GB.
    billed_s = (10 * 1769 / 1024 + 23) / 1000
    assert usd_of(lines, "reads", "writes", "time of api", "logs taken in") == pytest.approx(
        [3 * 0.125, 8 * 0.625, billed_s * 16.6667, (220 + 330 + 450) / 1000 * 0.5]
    )
    assert [line.usd for line in lines if line.service == "API Gateway"] == [3.5]
    assert [line for line in lines if line.service == "SQS"] == []


def test_run_waits_for_the_vendor_and_has_its_message_received_and_deleted() -> None:
    counts = one_path("run_job", Step(calls={"PutObject": 1}))

    lines = cost_of_events({"it": MILLION}, replace(SMALL, vendor_s=8), counts).lines

    assert usd_of(lines, "time of run_job", "PutObject", "fair queues, on top") == pytest.approx(
        [8.035 * 0.5 * 16.6667, 5.0, 2 * 0.1]
    )
    assert [line for line in lines if line.service == "API Gateway"] == []


def test_memory_beyond_a_whole_core_makes_no_code_faster() -> None:
    step = Step(code_ms=100)

    assert costs.billed_s(step, 1769) == costs.billed_s(step, 3538) == 0.1
    assert costs.billed_s(step, 256) == pytest.approx(0.1 * 1769 / 256)


def test_step_between_sizes_goes_straight_and_beyond_them_stays() -> None:
    first, last = a_step(write_units=10), a_step(write_units=20)
    path = Path("api", {1: first, 11: last}, {1: first, 3: a_step(write_units=14)})

    found = [path.step(prompt, answer).write_units for prompt, answer in SIZES]

    assert found == pytest.approx([10, 15, 20, 12, 24])


SIZES = [(0, 0), (1, 6), (1, 99), (2, 1), (9, 11)]


# ------------------------------------------------------------------------------------ a month


def test_keys_are_asked_for_once_a_minute_at_most() -> None:
    busy, quiet = (
        costs.events_of(Workload(requests=requests, polls=0, tenants=1))["authorize"]
        for requests in (1e9, 100.0)
    )

    assert busy == pytest.approx(2 * MONTH_S / 60, rel=0.01)
    assert quiet == pytest.approx(100, rel=0.01)


def test_traces_are_one_a_second_and_one_in_twenty_of_the_rest() -> None:
    assert costs.traces(100) == pytest.approx(100, rel=0.01)
    assert costs.traces(101 * MONTH_S) == pytest.approx(6 * MONTH_S, rel=0.01)


def test_runs_ends_and_webhooks_begin_traces_of_their_own() -> None:
    few = Workload(requests=100, hit_ratio=0.4, polls=1, webhook_ratio=0.5)

    (line,) = (one for one in cost_of(few, COUNTED).lines if one.service == "X-Ray")

    assert line.many == pytest.approx(160 + 60 + 60 + 30, rel=0.01)


def test_metric_is_billed_for_the_hours_in_which_it_is_told() -> None:
    assert costs.metric_months(0) == 0
    assert costs.metric_months(7.3) == pytest.approx(0.01, rel=0.01)
    assert costs.metric_months(1e6) == pytest.approx(1)


def test_default_workload_has_each_event_of_its_jobs() -> None:
    events = costs.events_of(replace(SMALL, webhook_ratio=0.25))

    assert events == {
        "authorize": pytest.approx(events["authorize"]),
        "fresh hit": 300_000,
        "miss: submit": 700_000,
        "miss: run": 700_000,
        "poll": 700_000,
        "miss: get": 700_000,
        "publish": 525_000,
        "publish with a webhook": 175_000,
        "deliver": 175_000,
    }


def test_nothing_that_comes_costs_nothing() -> None:
    assert cost_of(replace(SMALL, requests=0), COUNTED).usd == 0


@pytest.mark.parametrize(
    "changes",
    [
        *({"requests": 2e6}, {"prompt_kb": 20.0}, {"answer_kb": 8.0}, {"answer_kb": 100.0}),
        *({"vendor_s": 11.0}, {"polls": 3.0}, {"webhook_ratio": 0.1}, {"tenants": 6}),
        *({"models": 4}, {"hit_ratio": 0.2}, {"entry_h": 96.0}, {"row_days": 40.0}),
    ],
    ids=str,
)
def test_more_of_anything_costs_more(changes: dict[str, float]) -> None:
    assert cost_of(replace(SMALL, **changes), COUNTED).usd > cost_of(SMALL, COUNTED).usd


def test_bill_is_the_sum_of_its_services() -> None:
    bill = cost_of(SMALL, COUNTED)

    assert sum(bill.by_service.values()) == pytest.approx(bill.usd)
    assert bill.usd == pytest.approx(sum(line.usd for line in bill.lines))
    assert all(line.usd > 0 for line in bill.lines)


def test_price_of_a_unit_moves_its_lines_alone() -> None:
    dear = LIST.changed({"write": 1.25})

    before, after = (cost_of(SMALL, COUNTED, prices).by_service for prices in (LIST, dear))

    assert {name for name in before if before[name] != after[name]} == {"DynamoDB"}


@pytest.mark.parametrize("usd", [{"wirte": 1.0}, {"write": -1.0}, {"write": math.nan}])
def test_wrong_price_is_refused(usd: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="price"):
        LIST.changed(usd)


@pytest.mark.parametrize(
    "changes",
    [
        {"hit_ratio": 1.1},
        {"webhook_ratio": -0.1},
        {"polls": math.inf},
        {"cache": "x"},
        {"tenants": 0},
    ],
    ids=str,
)
def test_workload_that_can_not_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r" (is|are) "):
        cost_of(replace(SMALL, **changes), COUNTED)


def test_hits_save_the_calls_of_the_vendor() -> None:
    workload = replace(SMALL, hit_ratio=0.25, vendor_price=0.01)

    assert (workload.vendor_usd, workload.saved_usd) == (7_500, 2_500)
    assert replace(workload, cache="none").vendor_usd == 10_000


# ------------------------------------------------------------------------------------ idle


def test_idle_queues_are_polled_five_times_in_twenty_seconds() -> None:
    (receives,) = [line for line in idle_cost().lines if line.item == "empty receives"]

    assert receives.many == 3 * 5 * 3 * 60 * MONTH_H
    assert receives.usd == pytest.approx(receives.many * 0.4e-6)


def test_valkey_adds_its_least_storage_and_a_gateway_to_an_idle_stack() -> None:
    more = idle_cost("valkey").usd - idle_cost().usd

    assert more == pytest.approx(0.1 * 730 * 0.084 + 730 * 0.045)


# ------------------------------------------------------------------------------------ break-even


BRIEF = Workload(hit_ratio=0.5, answer_kb=1.0, prompt_kb=0.2, entry_h=1.0)


def test_break_even_is_where_both_cost_the_same() -> None:
    found = break_even(BRIEF, COUNTED)

    assert found.requests is not None
    cost = cost_of_cache(replace(BRIEF, requests=found.requests), COUNTED)
    assert cost["dynamodb"] == pytest.approx(cost["valkey"] + found.least_usd, rel=1e-3)
    assert found.hits == found.requests / 2


def test_gateway_that_is_there_brings_the_break_even_nearer() -> None:
    far, near = (break_even(BRIEF, COUNTED, nat=nat).requests for nat in (True, False))

    assert far is not None
    assert near is not None
    assert near < far


def test_entries_that_stay_for_long_are_never_cheaper_in_valkey() -> None:
    assert break_even(replace(BRIEF, entry_h=24 * 30, answer_kb=10), COUNTED).requests is None


# ------------------------------------------------------------------------------------ the counts


def test_counts_are_read_as_they_were_written() -> None:
    assert Counts.parse(COUNTED.text()) == COUNTED


def test_every_path_of_a_workload_is_counted() -> None:
    paths = {
        path
        for cache in costs.CACHES
        for path in costs.events_of(replace(SMALL, cache=cache, webhook_ratio=0.5))
    }

    assert paths <= set(COUNTED.paths)
    assert {path.function for path in COUNTED.paths.values()} <= set(costs.STACK.memory_mb)


def test_cache_has_its_part_in_the_units_of_a_path() -> None:
    for path in COUNTED.paths.values():
        for step in (*path.by_answer.values(), *path.by_prompt.values()):
            assert 0 <= step.cache_read_units <= step.read_units
            assert 0 <= step.cache_write_units <= step.write_units
    assert COUNTED.paths["miss: run"].step(1, 1).cache_write_units == 2
    assert COUNTED.paths["fresh hit"].step(1, 1).cache_read_units == 1


def test_every_price_is_used() -> None:
    used = set()

    class Watched(costs.Prices):
        def one(self, name: str) -> float:
            used.add(name)
            return LIST.one(name)

    for cache in costs.CACHES:
        cost_of(replace(SMALL, cache=cache, answer_kb=100), COUNTED, Watched())
        idle_cost(cache, Watched())

    assert used == set(LIST.table)
    assert {one.name for one in fields(LIST)} == {"date", "region", "table"}
