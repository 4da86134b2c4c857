"""Entries over their life: invalidated, marked by a refresh, renewed by it, or cooling down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.freshness import COOL_DOWN_FIRST_MS, CacheEntry

from tests.fakes.examples import a_job, an_entry, completed, failed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

MINUTES_10 = 600_000
KEY = a_job().cache_key


def cached(store: Store, job: Job | None = None, text: bytes = b"old") -> CacheEntry:
    """An entry that a job has left."""
    filled = store.submit(job or a_job(1))
    store.jobs.apply(filled, completed(filled), entry=an_entry(filled, text))
    return stored(store)


def stored(store: Store) -> CacheEntry:
    entry = store.cache.read(KEY)
    assert entry is not None
    return entry


def a_refresh(store: Store, number: int, **changes: Any) -> Job:
    """A job that renews the entry, as a reader would queue it now."""
    now_ms = store.clock.now_ms()
    return a_job(
        number,
        tenant=f"refresh#{KEY}",
        cache_key=KEY,
        job_key=f"refresh:{KEY}",
        refreshes_for="acme",
        cache_mode="refresh",
        created_at_epoch_ms=now_ms,
        deadline_epoch_ms=now_ms + MINUTES_10,
        **changes,
    )


def fail(store: Store, job: Job) -> Job:
    """The refresh has failed now."""
    current = store.row(job)
    ended = replace(failed(current), failed_at_epoch_ms=store.clock.now_ms())
    store.jobs.apply(current, ended)
    return ended


# ------------------------------------------------------------------------------------ invalidation


def test_invalidated_key_has_no_entry(store: Store) -> None:
    cached(store)

    found = store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    assert found is True
    assert store.cache.read(KEY) is None


def test_invalidation_says_when_there_was_nothing(store: Store) -> None:
    found = [store.cache.invalidate(KEY, now_ms=NOW_MS + at) for at in (5, 6)]

    assert found == [False, False]
    assert store.cache.read(KEY) is None


@pytest.mark.parametrize("after_ms", [0, 5])
def test_job_that_was_there_at_an_invalidation_completes_and_fills_nothing(
    store: Store, after_ms: int
) -> None:
    job = store.submit(a_job(1))
    store.cache.invalidate(KEY, now_ms=job.created_at_epoch_ms + after_ms)

    store.jobs.apply(job, completed(job), entry=an_entry(job))

    assert store.row(job) == completed(job)
    assert store.cache.read(KEY) is None


def test_job_of_after_an_invalidation_fills_the_key(store: Store) -> None:
    store.cache.invalidate(KEY, now_ms=NOW_MS - 1)

    entry = cached(store, text=b"new")

    assert entry == an_entry(a_job(1), b"new")


def test_invalidated_key_can_be_invalidated_again_after_it_was_filled(store: Store) -> None:
    store.cache.invalidate(KEY, now_ms=NOW_MS - 1)
    cached(store)

    found = store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    assert found is True
    assert store.cache.read(KEY) is None


# ------------------------------------------------------------------------------------ refresh


def test_queued_refresh_marks_its_entry_until_its_deadline(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)

    queued = store.jobs.queue_refresh(job, entry)

    assert queued is True
    assert store.row(job) == job
    assert stored(store) == replace(
        entry, refresh_job_id=job.job_id, refresh_until_epoch_ms=job.deadline_epoch_ms
    )


def test_second_refresh_of_an_entry_is_not_queued(store: Store) -> None:
    entry = cached(store)
    first, second = a_refresh(store, 2), a_refresh(store, 3)
    store.jobs.queue_refresh(first, entry)

    queued = store.jobs.queue_refresh(second, entry)

    assert queued is False
    assert store.jobs.get(second.tenant, second.job_id) is None
    assert stored(store).refresh_job_id == first.job_id


def test_queueing_a_refresh_again_says_that_it_is_queued(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)

    again = store.jobs.queue_refresh(job, entry)

    assert again is True
    assert store.row(job) == job


def test_refresh_of_an_entry_that_was_renewed_meanwhile_is_not_queued(store: Store) -> None:
    entry = cached(store)
    renewed = store.submit(replace(a_job(2), cache_key=KEY))
    newer = an_entry(renewed, b"new", stored_at_epoch_ms=NOW_MS + 7)
    store.jobs.apply(renewed, completed(renewed), entry=newer)

    queued = store.jobs.queue_refresh(a_refresh(store, 3), entry)

    assert queued is False
    assert stored(store) == newer


def test_refresh_of_an_entry_that_was_invalidated_meanwhile_is_not_queued(store: Store) -> None:
    entry = cached(store)
    store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    queued = store.jobs.queue_refresh(a_refresh(store, 2), entry)

    assert queued is False
    assert store.cache.read(KEY) is None


def test_refresh_may_be_queued_once_the_mark_has_ended_and_the_claim_with_it(store: Store) -> None:
    entry = cached(store)
    first = a_refresh(store, 2)
    store.jobs.queue_refresh(first, entry)
    store.jobs.apply(store.row(first), completed(first))
    store.clock.set(first.deadline_epoch_ms)

    queued = store.jobs.queue_refresh(a_refresh(store, 3), stored(store))

    assert queued is True


def test_finished_refresh_leaves_an_entry_without_marks(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)
    newer = an_entry(job, b"new", tenant="acme", stored_at_epoch_ms=NOW_MS + 7)

    store.jobs.apply(store.row(job), completed(job), entry=newer)

    assert stored(store) == newer


def test_failed_refresh_lets_its_entry_cool_down(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)

    ended = fail(store, job)

    assert store.row(job) == ended
    assert stored(store) == replace(
        entry,
        refresh_job_id=job.job_id,
        refresh_after_epoch_ms=NOW_MS + COOL_DOWN_FIRST_MS,
        refresh_failures=1,
        refresh_error="vendor_unavailable",
    )


def test_entry_that_cools_down_gets_no_refresh(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)
    fail(store, job)
    store.clock.advance(COOL_DOWN_FIRST_MS - 1)

    queued = store.jobs.queue_refresh(a_refresh(store, 3), entry)

    assert queued is False


def test_second_failure_cools_twice_as_long(store: Store) -> None:
    entry = cached(store)
    first = a_refresh(store, 2)
    store.jobs.queue_refresh(first, entry)
    fail(store, first)
    now_ms = store.clock.advance(COOL_DOWN_FIRST_MS)
    second = a_refresh(store, 3)
    store.jobs.queue_refresh(second, entry)

    fail(store, second)

    assert stored(store).refresh_failures == 2
    assert stored(store).refresh_after_epoch_ms == now_ms + 2 * COOL_DOWN_FIRST_MS


def test_failure_of_a_refresh_leaves_the_entry_that_another_job_renewed(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)
    renewed = store.submit(replace(a_job(3), cache_key=KEY))
    newer = an_entry(renewed, b"new", stored_at_epoch_ms=NOW_MS + 7)
    store.jobs.apply(renewed, completed(renewed), entry=newer)

    fail(store, job)

    assert stored(store) == newer


def test_failure_of_a_refresh_whose_entry_is_gone_brings_nothing_back(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)
    store.cache.invalidate(KEY, now_ms=NOW_MS + 5)

    ended = fail(store, job)

    assert store.row(job) == ended
    assert store.cache.read(KEY) is None
