"""Timeouts of calls: which samples count, their median, and what a call may take by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.catalogue import Timeout
from sluiceway.domain.timeouts import (
    ENOUGH_SAMPLES,
    LEAST_SAMPLES,
    RING,
    SAMPLE_LIVES_MS,
    Sample,
    key_of,
    median_ms,
    timeout_s,
    wanted,
)

from tests.fakes.in_memory import NOW_MS

BOUNDS = Timeout(min=5, max=60)


def samples(*latencies_ms: int, age_ms: int = 0) -> list[Sample]:
    return [Sample(NOW_MS - age_ms, latency_ms) for latency_ms in latencies_ms]


def test_median_is_the_middle_whatever_the_order_and_the_upper_of_two() -> None:
    assert median_ms(samples(9, 1, 8, 2, 7, 3, 6, 4, 5_000), NOW_MS) == 6
    assert median_ms(samples(1, 2, 3, 4, 5, 6, 7, 8), NOW_MS) == 5


def test_few_samples_have_no_median() -> None:
    assert median_ms(samples(*[300] * (LEAST_SAMPLES - 1)), NOW_MS) is None
    assert median_ms(samples(*[300] * LEAST_SAMPLES), NOW_MS) == 300
    assert median_ms([], NOW_MS) is None


@pytest.mark.parametrize("age_ms", [SAMPLE_LIVES_MS, -SAMPLE_LIVES_MS])
def test_samples_count_for_an_hour_whichever_clock_is_ahead(age_ms: int) -> None:
    beyond_ms = age_ms + (1 if age_ms > 0 else -1)
    younger = samples(*[300] * LEAST_SAMPLES)

    assert median_ms(samples(*[900] * LEAST_SAMPLES, age_ms=age_ms), NOW_MS) == 900
    assert median_ms(samples(*[900] * LEAST_SAMPLES, age_ms=beyond_ms), NOW_MS) is None
    assert median_ms([*younger, *samples(*[900] * 20, age_ms=beyond_ms)], NOW_MS) == 300


def test_each_call_is_a_sample_until_enough_count_and_then_one_in_ten() -> None:
    few, enough = samples(*[300] * (ENOUGH_SAMPLES - 1)), samples(*[300] * ENOUGH_SAMPLES)
    old = samples(*[300] * RING, age_ms=SAMPLE_LIVES_MS + 1)

    assert wanted([], NOW_MS, 0.999)
    assert wanted(few, NOW_MS, 0.999)
    assert wanted(old, NOW_MS, 0.999)
    assert [wanted(enough, NOW_MS, rand) for rand in (0.0, 0.099, 0.1, 0.999)] == [
        *(True, True),
        *(False, False),
    ]
    assert LEAST_SAMPLES < ENOUGH_SAMPLES < RING


@pytest.mark.parametrize(
    ("known_ms", "seconds"),
    [
        (None, 60),
        (0, 5),
        (2_500, 5),
        (2_501, 5.002),
        (12_000, 24),
        (30_000, 60),
        (30_001, 60),
        (600_000, 60),
    ],
)
def test_timeout_is_twice_the_median_within_the_bounds(
    known_ms: int | None, seconds: float
) -> None:
    assert timeout_s(BOUNDS, known_ms) == seconds


@given(latencies=st.lists(st.integers(0, 900_000), max_size=RING))
def test_timeout_is_within_the_bounds_whatever_the_samples_say(latencies: list[int]) -> None:
    assert 5 <= timeout_s(BOUNDS, median_ms(samples(*latencies), NOW_MS)) <= 60


def test_samples_are_of_the_vendors_model() -> None:
    assert key_of("openai", "gpt-4.1") == "latency#openai#gpt-4.1"
