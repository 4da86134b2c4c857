"""A tenant's cap, split over shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.counters import shard_caps


@given(st.integers(1, 10**9))
def test_shard_caps_add_up_to_the_cap(in_flight: int) -> None:
    assert sum(shard_caps(in_flight)) == in_flight


@given(st.integers(1, 10**9))
def test_shard_caps_are_even_and_at_least_one(in_flight: int) -> None:
    caps = shard_caps(in_flight)

    assert min(caps) >= 1
    assert max(caps) - min(caps) <= 1


@pytest.mark.parametrize(
    ("in_flight", "shards"),
    [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (799, 7), (800, 8), (900, 8), (10**6, 8)],
)
def test_shard_caps_have_one_shard_for_each_hundred(in_flight: int, shards: int) -> None:
    assert len(shard_caps(in_flight)) == shards
