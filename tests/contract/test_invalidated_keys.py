"""ResultCache.invalidate: a tombstone that jobs from before it don't write over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.freshness import TOMBSTONE_S
from sluiceway.domain.request import MAX_DEADLINE_S
from sluiceway.ports import Applied

from tests.contract.harness import DynamoDBRows
from tests.fakes.examples import a_job, a_refresh, an_entry, completed, failed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables

KEY = a_job().cache_key


def filled(store: Store, job: Job | None = None, text: bytes = b"old") -> Job:
    """An entry, by a job that has completed."""
    job = store.submit(job or a_job())
    store.jobs.apply(job, completed(job, text), entry=an_entry(job, text))
    return job


def same_key(number: int, created_at_ms: int = NOW_MS) -> Job:
    """Another job for the entry."""
    return a_job(number, cache_key=KEY, created_at_epoch_ms=created_at_ms)


@pytest.mark.proves(20)
def test_invalidated_entry_is_read_no_more(store: Store) -> None:
    filled(store)

    found = store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    assert found is True
    assert store.cache.read(KEY) is None
    assert store.cache.look(KEY).invalidated_at_epoch_ms == NOW_MS + 5


def test_key_without_an_entry_is_invalidated_all_the_same(store: Store) -> None:
    found = store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    assert found is False
    assert store.cache.look(KEY).invalidated_at_epoch_ms == NOW_MS + 5


def test_invalidation_again_finds_nothing_and_counts_from_now(store: Store) -> None:
    filled(store)
    store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    again = store.cache.invalidate(KEY, now_ms=NOW_MS + 9)

    assert again is False
    assert store.cache.look(KEY).invalidated_at_epoch_ms == NOW_MS + 9


def test_key_that_was_never_invalidated_has_no_time(store: Store) -> None:
    filled(store)

    assert store.cache.look(KEY).invalidated_at_epoch_ms is None
    assert store.cache.look("c1_unknown").invalidated_at_epoch_ms is None


def test_other_keys_are_left_alone(store: Store) -> None:
    other = filled(store, a_job(2))
    filled(store)

    store.cache.invalidate(KEY, now_ms=NOW_MS)

    assert store.cache.read(other.cache_key) == an_entry(other, b"old")


@pytest.mark.proves(20)
@pytest.mark.parametrize("created_at_ms", [NOW_MS - 60_000, NOW_MS], ids=["before", "just then"])
def test_job_from_before_completes_and_writes_no_entry(store: Store, created_at_ms: int) -> None:
    filled(store)
    processing, lease = store.start(store.submit(same_key(2, created_at_ms)))
    store.cache.invalidate(KEY, now_ms=NOW_MS)

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, entry=an_entry(processing)
    )

    assert outcome == Applied(completed(processing))
    assert store.row(processing) == completed(processing)
    assert store.cache.read(KEY) is None
    assert store.cache.look(KEY).invalidated_at_epoch_ms == NOW_MS
    assert store.rows.claim(processing.job_key) is None
    assert store.rows.in_flight("acme") == {}


def test_job_from_after_it_writes_its_entry(store: Store) -> None:
    filled(store)
    store.cache.invalidate(KEY, now_ms=NOW_MS)

    job = filled(store, same_key(2, NOW_MS + 1), b"new")

    assert store.cache.read(KEY) == an_entry(job, b"new")
    assert store.cache.look(KEY).invalidated_at_epoch_ms is None


@pytest.mark.proves(20)
def test_refresh_from_before_writes_no_entry_and_no_cool_down(store: Store) -> None:
    filled(store)
    entry = store.cache.read(KEY)
    assert entry is not None
    store.jobs.queue_refresh(a_refresh(), entry)
    store.cache.invalidate(KEY, now_ms=NOW_MS + 1)
    before = store.rows.claim(a_refresh().job_key)

    outcome = store.jobs.apply(a_refresh(), failed(a_refresh()))

    assert before == a_refresh().job_id
    assert outcome == Applied(failed(a_refresh()))
    assert store.rows.claim(a_refresh().job_key) is None
    assert store.cache.read(KEY) is None
    assert store.cache.look(KEY).invalidated_at_epoch_ms == NOW_MS + 1


def test_tombstone_outlives_every_job_from_before(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    dynamodb_store.cache.invalidate(KEY, now_ms=NOW_MS)

    (row,) = DynamoDBRows(dynamodb, tables.names).all(tables.names.cache)
    assert row["ttl_epoch_s"] == NOW_MS // 1000 + TOMBSTONE_S
    assert TOMBSTONE_S >= MAX_DEADLINE_S + 24 * 3600
