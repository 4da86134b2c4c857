"""The arithmetic of a vendor's limit, as the benchmarks use it."""

from __future__ import annotations

import pytest

from bench.vendor import Limit, percentiles, starts


def test_quota_used_counts_the_full_bucket_as_allowed() -> None:
    limit = Limit(per_minute=300, burst=10)

    used = limit.used(55, in_s=20)

    assert used == pytest.approx(55 / (10 + 100))


def test_starts_take_the_bucket_at_once_and_then_the_rate() -> None:
    made = starts([0.0] * 5, Limit(per_minute=120, burst=3))

    assert made == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0])


def test_starts_never_come_before_they_are_wanted() -> None:
    made = starts([0.0, 7.0], Limit(per_minute=60, burst=1))

    assert made == pytest.approx([0.0, 7.0])


def test_starts_find_what_was_filled_while_nothing_was_wanted() -> None:
    made = starts([0.0, 0.0, 3.0, 3.0, 3.0], Limit(per_minute=60, burst=2))

    assert made == pytest.approx([0.0, 0.0, 3.0, 3.0, 4.0])


def test_starts_keep_a_part_of_a_call_that_is_filled() -> None:
    made = starts([0.0, 0.25, 0.75], Limit(per_minute=60, burst=1))

    assert made == pytest.approx([0.0, 1.0, 2.0])


def test_no_calls_have_no_starts() -> None:
    assert starts([], Limit(per_minute=60, burst=1)) == []


def test_percentiles_lie_within_the_values() -> None:
    values = [float(n) for n in range(101)]

    found = percentiles(values, 50, 95, 99)

    assert found == pytest.approx([50.0, 95.0, 99.0])


def test_percentiles_of_one_value_are_that_value() -> None:
    assert percentiles([3.0], 50, 99) == [3.0, 3.0]
