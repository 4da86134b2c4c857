"""A lease's holder stops before anybody else may take over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.lease import CLOCK_SKEW_MS, ROW_OUTLIVES_LEASE_S, Lease, is_free

NOW_MS = 1_767_225_600_000
ENDS_MS = NOW_MS + 10_000
LEASE = Lease("c1_key", "token", 7, ENDS_MS)


@pytest.mark.parametrize(
    ("after_s", "free"), [(9, False), (10, False), (11, False), (16, False), (17, True)]
)
def test_lease_is_free_only_after_its_end_and_the_skew(  # case Z03
    after_s: int,
    *,
    free: bool,
) -> None:
    assert is_free(ENDS_MS, NOW_MS + after_s * 1000) is free


def test_lease_is_held_at_the_very_end_of_the_skew() -> None:
    assert not is_free(ENDS_MS, ENDS_MS + CLOCK_SKEW_MS)
    assert is_free(ENDS_MS, ENDS_MS + CLOCK_SKEW_MS + 1)


def test_lease_that_was_released_is_free() -> None:
    assert is_free(0, NOW_MS)


@pytest.mark.parametrize(
    ("after_s", "left_ms"), [(0, 4_000), (3, 1_000), (4, 0), (9, 0), (11, 0), (1_000_000, 0)]
)
def test_lease_leaves_its_holder_the_time_before_the_skew(after_s: int, left_ms: int) -> None:
    assert LEASE.working_time_ms(NOW_MS + after_s * 1000) == left_ms


@given(st.integers(0, 40_000), st.integers(-CLOCK_SKEW_MS, CLOCK_SKEW_MS))
def test_lease_never_has_two_holders_while_clocks_differ_by_less_than_twice_the_skew(
    after_ms: int, apart_ms: int
) -> None:
    holders_now_ms = NOW_MS + after_ms
    contenders_now_ms = holders_now_ms + 2 * apart_ms

    holder_works = LEASE.working_time_ms(holders_now_ms) > 0

    assert not (holder_works and is_free(ENDS_MS, contenders_now_ms))


def test_lease_row_outlives_its_end_by_more_than_a_day() -> None:
    assert ROW_OUTLIVES_LEASE_S > 24 * 3600
