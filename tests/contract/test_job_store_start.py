"""JobStore.start: the lease and the job's move to processing are one write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.job import JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS, Lease
from sluiceway.ports import LeaseHeld, Moved, Started

from tests.contract.harness import LEASE_MS, start
from tests.fakes.examples import a_job, completed, failed, retrying
from tests.fakes.in_memory import NOW_MS, LeaseRow

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

ENDS_MS = NOW_MS + LEASE_MS
LAST_HELD_MS = ENDS_MS + CLOCK_SKEW_MS


def same_key(number: int, to: int = 1) -> Job:
    """Another job whose result has the same cache key."""
    return replace(a_job(number), cache_key=a_job(to).cache_key)


def test_start_of_a_fresh_key_takes_the_lease_and_moves_the_job(store: Store) -> None:
    job = store.submit(a_job())

    outcome = start(store, job)

    processing = transitions.started(
        job, fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=ENDS_MS
    )
    assert outcome == Started(processing, Lease(job.cache_key, "token-1", 1, ENDS_MS))
    assert store.row(job) == processing
    assert processing.status is JobStatus.PROCESSING
    assert store.rows.lease(job.cache_key) == LeaseRow(job.job_id, "token-1", 1, ENDS_MS)


def test_start_leaves_claim_and_counter_alone(store: Store) -> None:
    job = store.submit(a_job())

    store.start(job)

    assert store.rows.claim(job.job_key) == job.job_id
    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.proves(15)
def test_start_of_a_job_that_is_being_worked_on_says_so(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()), "token-1")
    before = store.rows.picture()

    outcome = start(store, processing, "token-2")

    assert outcome == LeaseHeld(by_this_job=True)
    assert store.rows.picture() == before


@pytest.mark.proves(15)
def test_start_by_a_copy_that_read_the_job_before_says_so_too(store: Store) -> None:
    job = store.submit(a_job())
    store.start(job, "token-1")
    before = store.rows.picture()

    outcome = start(store, job, "token-2")

    assert outcome == LeaseHeld(by_this_job=True)
    assert store.rows.picture() == before


@pytest.mark.proves(3)
def test_start_on_a_key_that_another_job_works_on_changes_nothing(store: Store) -> None:
    store.start(store.submit(a_job(1)))
    waiting = store.submit(same_key(2))
    before = store.rows.picture()

    outcome = start(store, waiting, "token-2")

    assert outcome == LeaseHeld(by_this_job=False)
    assert store.rows.picture() == before


def test_start_of_another_key_does_not_wait(store: Store) -> None:
    store.start(store.submit(a_job(1)))

    outcome = start(store, store.submit(a_job(2)), "token-2")

    assert isinstance(outcome, Started)


# ------------------------------------------------------------------------------------ taking over


@pytest.mark.proves(3)
def test_start_finds_the_lease_held_until_its_end_and_the_skew_have_passed(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()))
    store.clock.set(LAST_HELD_MS)

    outcome = start(store, processing, "token-2")

    assert outcome == LeaseHeld(by_this_job=True)


def test_start_takes_over_a_millisecond_later_with_the_next_fence(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()))
    store.clock.set(LAST_HELD_MS + 1)

    outcome = start(store, processing, "token-2")

    assert isinstance(outcome, Started)
    assert outcome.lease == Lease(processing.cache_key, "token-2", 2, LAST_HELD_MS + 1 + LEASE_MS)
    assert (outcome.job.fence, outcome.job.attempts) == (2, 2)
    assert store.row(processing) == outcome.job


@pytest.mark.proves(3)
def test_start_by_another_job_finds_the_lease_held_on_the_same_boundary(store: Store) -> None:
    store.start(store.submit(a_job(1)))
    waiting = store.submit(same_key(2))
    store.clock.set(LAST_HELD_MS)

    outcome = start(store, waiting, "token-2")

    assert outcome == LeaseHeld(by_this_job=False)


def test_start_by_another_job_takes_over_in_one_call_with_the_next_fence(store: Store) -> None:
    store.start(store.submit(a_job(1)))
    waiting = store.submit(same_key(2))
    store.clock.set(LAST_HELD_MS + 1)

    outcome = start(store, waiting, "token-2")

    assert isinstance(outcome, Started)
    assert (outcome.lease.fence, outcome.job.fence) == (2, 2)
    assert store.row(waiting) == outcome.job
    row = store.rows.lease(waiting.cache_key)
    assert row is not None
    assert (row.job_id, row.token, row.fence) == (waiting.job_id, "token-2", 2)


@pytest.mark.proves(3)
@pytest.mark.parametrize("holder", [1, 2])
def test_start_leaves_a_lease_without_an_end_to_its_holder(store: Store, holder: int) -> None:
    job = store.submit(a_job(1))
    store.rows.put_lease(job.cache_key, LeaseRow(a_job(holder).job_id, "token-9", 4, None))
    store.clock.advance(s=10 * 24 * 3600)
    before = store.rows.picture()

    outcome = start(store, job)

    assert outcome == LeaseHeld(by_this_job=holder == 1)
    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ the fence


def test_start_after_a_retry_takes_the_next_fence(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, retrying(processing), lease=lease)

    again, second = store.start(retrying(processing), "token-2")

    assert (again.fence, second.fence) == (2, 2)
    assert store.rows.claim(again.job_key) == again.job_id


def test_start_of_the_next_job_on_a_finished_key_goes_on_with_the_fence(store: Store) -> None:
    for number in (1, 2, 3):
        processing, lease = store.start(store.submit(same_key(number)), f"token-{number}")
        store.jobs.apply(processing, completed(processing), lease=lease)

    assert processing.fence == 3
    assert lease.fence == 3


def test_start_after_a_retry_goes_on_with_the_fence_of_those_who_came_between(
    store: Store,
) -> None:
    processing, lease = store.start(store.submit(a_job(1)), "token-1")
    waiting = retrying(processing)
    store.jobs.apply(processing, waiting, lease=lease)
    between, lease = store.start(store.submit(same_key(2)), "token-2")
    store.jobs.apply(between, completed(between), lease=lease)

    again, third = store.start(waiting, "token-3")

    assert (again.fence, third.fence) == (3, 3)


def test_start_without_the_lease_row_goes_on_with_the_jobs_own_fence(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, retrying(processing), lease=lease)
    store.rows.drop_lease(processing.cache_key)

    again, second = store.start(retrying(processing), "token-2")

    assert (again.fence, second.fence) == (2, 2)


def test_start_is_never_under_a_fence_that_the_job_has_seen(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, retrying(processing), lease=lease)
    store.rows.put_lease(processing.cache_key, LeaseRow("job_of_old", None, 1, 0))
    moved, lease = store.start(retrying(processing), "token-2")
    store.jobs.apply(moved, retrying(moved), lease=lease)
    store.rows.put_lease(moved.cache_key, LeaseRow("job_of_old", None, 1, 0))

    again, third = store.start(retrying(moved), "token-3")

    assert (again.fence, third.fence) == (3, 3)


# ------------------------------------------------------------------------------------ too late


@pytest.mark.proves(6)
def test_start_repeated_after_a_lost_reply_is_started_and_counted_once(store: Store) -> None:
    job = store.submit(a_job())
    first = start(store, job, "token-1")
    before = store.rows.picture()

    outcome = start(store, job, "token-1")

    assert outcome == first
    assert store.rows.picture() == before
    assert store.row(job).attempts == 1


def test_start_of_a_job_that_moved_gives_what_it_is_now_and_takes_no_lease(store: Store) -> None:
    job = store.submit(a_job())
    store.jobs.apply(job, failed(job))
    before = store.rows.picture()

    outcome = start(store, job)

    assert outcome == Moved(failed(job))
    assert store.rows.picture() == before


def test_start_of_an_old_reading_changes_nothing(store: Store) -> None:
    job = store.submit(a_job())
    processing, lease = store.start(job)
    store.jobs.apply(processing, retrying(processing), lease=lease)
    before = store.rows.picture()

    outcome = start(store, job, "token-2")

    assert outcome == Moved(retrying(processing))
    assert store.rows.picture() == before


def test_start_of_a_job_that_is_gone_takes_no_lease(store: Store) -> None:
    outcome = start(store, a_job())

    assert outcome == Moved(None)
    assert store.rows.lease(a_job().cache_key) is None
