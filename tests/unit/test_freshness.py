"""When a cache entry answers, and whom."""

from __future__ import annotations

from dataclasses import fields

import pytest
from sluiceway.domain.freshness import CacheEntry

from tests.fakes.in_memory import NOW_MS
from tests.unit.samples import an_entry


@pytest.mark.parametrize(("after_ms", "answers"), [(0, True), (9_999, True), (10_000, False)])
def test_entry_answers_until_its_hard_expiry(after_ms: int, *, answers: bool) -> None:
    entry = an_entry(hard_expires_at_epoch_ms=NOW_MS + 10_000)

    assert entry.answers(NOW_MS + after_ms) is answers


def test_entry_that_the_table_kept_past_its_ttl_is_dead() -> None:
    entry = an_entry(hard_expires_at_epoch_ms=NOW_MS - 1_000, ttl_epoch_s=NOW_MS // 1000 - 1)

    assert not entry.answers(NOW_MS)


@pytest.mark.parametrize(
    ("scope", "tenant", "allow_shared", "readable"),
    [
        ("tenant", "acme", True, True),
        ("tenant", "globex", True, False),
        ("shared", "globex", True, True),
        ("shared", "globex", False, False),
        ("shared", "acme", False, True),
        ("none", "globex", True, False),
        ("tenant", "", True, False),
        ("tenant", "ACME", True, False),
    ],
)
def test_entry_is_readable_by_its_owner_and_by_those_it_is_shared_with(
    scope: str, tenant: str, *, allow_shared: bool, readable: bool
) -> None:
    entry = an_entry(scope=scope)

    assert entry.readable_by(tenant, allow_shared=allow_shared) is readable


def test_entry_tells_its_age_and_what_is_left_in_whole_seconds() -> None:
    entry = an_entry(hard_expires_at_epoch_ms=NOW_MS + 10_000)

    told = [(entry.age_s(NOW_MS + ms), entry.ttl_s(NOW_MS + ms)) for ms in (0, 999, 1_000, 4_500)]

    assert told == [(0, 10), (0, 9), (1, 9), (4, 5)]


def test_entry_is_never_younger_than_new_nor_deader_than_dead() -> None:
    entry = an_entry(hard_expires_at_epoch_ms=NOW_MS + 10_000)

    assert entry.age_s(NOW_MS - 5_000) == 0
    assert entry.ttl_s(NOW_MS + 60_000) == 0


def test_entry_is_not_moved_by_reading() -> None:
    entry = an_entry()
    before = [getattr(entry, field.name) for field in fields(CacheEntry)]

    for second in range(100):
        entry.answers(NOW_MS + second * 1000)

    assert [getattr(entry, field.name) for field in fields(CacheEntry)] == before
