"""Job ids are opaque, URL-safe and in order."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain import ids

TIME_MS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(TIME_MS, RANDOM)
def test_job_id_is_url_safe_and_short(now_ms: int, randomness: bytes) -> None:
    made = ids.job_id(now_ms, randomness)

    assert re.fullmatch(r"job_[0-9A-HJKMNP-TV-Z]{26}", made)
    assert len(made) <= 64


@given(TIME_MS, RANDOM, TIME_MS, RANDOM)
def test_job_ids_are_in_order_of_time(one_ms: int, one: bytes, other_ms: int, other: bytes) -> None:
    made = [ids.job_id(one_ms, one), ids.job_id(other_ms, other)]

    assert (made[0] < made[1]) == ((one_ms, one) < (other_ms, other))


@given(RANDOM, RANDOM)
def test_job_ids_of_one_moment_differ_by_their_randomness(one: bytes, other: bytes) -> None:
    assert (ids.job_id(5, one) == ids.job_id(5, other)) == (one == other)


@given(TIME_MS, RANDOM)
def test_job_id_is_well_formed(now_ms: int, randomness: bytes) -> None:
    assert ids.well_formed(ids.job_id(now_ms, randomness))


@pytest.mark.parametrize(
    "given_id",
    [
        "",
        "job_",
        "hit_",
        "x",
        "job-1",
        "JOB_1",
        "job_é",
        "job_a b",
        "job_a#b",
        "job_a/b",
        "job_1\n",
        " job_1",
        "refresh#c1_x",
        "job_" + "x" * 61,
        "hit_" + "x" * 3000,
    ],
    ids=lambda given_id: given_id[:12].encode("unicode_escape").decode(),
)
def test_id_that_we_never_made_is_not_well_formed(given_id: str) -> None:
    assert not ids.well_formed(given_id)


def test_hit_id_is_url_safe_and_short() -> None:
    made = ids.hit_id("c1_" + "A" * 43)

    assert re.fullmatch(r"hit_[A-Za-z0-9_-]+", made)
    assert ids.well_formed(made)
    assert len(made) <= 64


@pytest.mark.parametrize("name", ["acme", "a.b_c-1", "0", f"refresh#c1_{'k' * 43}"])
def test_owner_is_a_tenant_or_a_refresh(name: str) -> None:
    assert ids.owner(name)


@pytest.mark.parametrize(
    "name",
    ["", "ACME", "refresh#", "refresh#a b", "refresh#" + "k" * 61, "audit#2026-01", "acme\n", "é"],
)
def test_owner_is_nothing_else(name: str) -> None:
    assert not ids.owner(name)


@given(st.text(max_size=70))
def test_no_tenant_is_called_as_a_refresh(name: str) -> None:
    assert not re.fullmatch(ids.NAME_PATTERN, ids.REFRESH_PREFIX + name)


@given(TIME_MS, RANDOM)
def test_batch_id_is_one_and_no_jobs(now_ms: int, randomness: bytes) -> None:
    made = ids.batch_id(now_ms, randomness)

    assert ids.well_formed_batch(made)
    assert re.fullmatch(r"batch_[0-9A-HJKMNP-TV-Z]{26}", made)
    assert not ids.well_formed(made)


@pytest.mark.parametrize(
    "given_id",
    [
        *("", "batch_", "batch_" + "0" * 25, "batch_" + "0" * 27, "batch_" + "0" * 25 + "\n"),
        *("batch_" + "o" * 26, "batch_" + "U" * 26, "job_" + "0" * 26, " batch_" + "0" * 26),
    ],
)
def test_id_that_no_batch_has_is_not_well_formed(given_id: str) -> None:
    assert not ids.well_formed_batch(given_id)
