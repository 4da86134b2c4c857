"""JobStore.renew, redrive and settle: what keeps a long call, a second run and a paid result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.job import CLAIM_OUTLIVES_DEADLINE_MS, JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS, Lease
from sluiceway.ports import Applied, Claimed, LeaseHeld, Moved, Started, Submitted

from tests.contract.harness import LEASE_MS, start
from tests.fakes.examples import a_job, a_refresh, completed, failed, redriven, retrying
from tests.fakes.in_memory import NOW_MS, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

LATER_MS = NOW_MS + 60_000 + LEASE_MS


def same_work(number: int, to: int = 1) -> Job:
    """Another job for the same work."""
    return replace(a_job(number), job_key=a_job(to).job_key, cache_key=a_job(to).cache_key)


def cancelled(job: Job) -> Job:
    return transitions.cancelled(job, now_ms=NOW_MS + 2_000)


def lease_ended(store: Store) -> None:
    """Lets the time pass after which a lease taken now is free."""
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)


# ------------------------------------------------------------------------------------ renew


def test_renew_moves_the_end_and_nothing_else(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    assert renewed == replace(lease, ends_at_epoch_ms=LATER_MS)
    assert store.rows.lease(lease.key) == LeaseRow(processing.job_id, lease.token, 1, LATER_MS)
    assert store.row(processing) == processing


@pytest.mark.proves(3)
def test_renewed_lease_is_held_until_its_new_end_and_the_skew(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    store.clock.set(LATER_MS + CLOCK_SKEW_MS)
    held = start(store, processing, "token-2")
    store.clock.advance(1)
    taken = start(store, processing, "token-2")

    assert held == LeaseHeld(by_this_job=True)
    assert isinstance(taken, Started)


def test_renewed_lease_writes_the_finish(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    outcome = store.jobs.apply(processing, completed(processing), lease=renewed)

    assert outcome == Applied(completed(processing))
    assert store.rows.lease(lease.key) == LeaseRow(processing.job_id, None, 1, 0)


def test_renew_again_with_the_lease_of_before_the_first_time_moves_the_end(store: Store) -> None:
    # The reply of the first time was lost.
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS + 1)

    assert renewed == replace(lease, ends_at_epoch_ms=LATER_MS + 1)


def test_renew_after_the_end_that_nobody_used_gets_the_lease_back(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    lease_ended(store)

    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS * 2)

    assert renewed is not None
    assert start(store, processing, "token-2") == LeaseHeld(by_this_job=True)


@pytest.mark.parametrize("end", [cancelled, completed, failed, retrying])
def test_renew_of_a_job_that_somebody_moved_is_refused(
    store: Store, end: Callable[[Job], Job]
) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, end(processing))
    before = store.rows.picture()

    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    assert renewed is None
    assert store.rows.picture() == before


def test_renew_after_a_takeover_is_refused(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    store.start(late, "token-2")
    before = store.rows.picture()

    renewed = store.jobs.renew(late, lost, ends_at_ms=LATER_MS * 2)

    assert renewed is None
    assert store.rows.picture() == before


def test_renew_after_another_job_took_the_key_is_refused(store: Store) -> None:
    late, lost = store.start(store.submit(a_job(1)), "token-1")
    other = store.submit(replace(a_job(2), cache_key=late.cache_key))
    lease_ended(store)
    store.start(other, "token-2")
    before = store.rows.picture()

    renewed = store.jobs.renew(late, lost, ends_at_ms=LATER_MS * 2)

    assert renewed is None
    assert store.rows.picture() == before


def test_renew_after_the_release_is_refused_and_leaves_the_key_free(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.release(lease)

    renewed = store.jobs.renew(processing, lease, ends_at_ms=LATER_MS)

    assert renewed is None
    assert store.rows.lease(lease.key) == LeaseRow(processing.job_id, None, 1, 0)


@pytest.mark.parametrize(
    "stranger",
    [{"token": "token-9"}, {"fence": 9}, {"key": "c1_other"}],
    ids=["token", "fence", "key"],
)
def test_renew_by_a_stranger_is_refused(store: Store, stranger: dict[str, Any]) -> None:
    processing, lease = store.start(store.submit(a_job()))
    before = store.rows.picture()

    renewed = store.jobs.renew(processing, replace(lease, **stranger), ends_at_ms=LATER_MS)

    assert renewed is None
    assert store.rows.picture() == before


def test_renew_for_a_job_that_is_gone_makes_no_row(store: Store) -> None:
    job = a_job()
    before = store.rows.picture()

    renewed = store.jobs.renew(job, Lease(job.cache_key, "t", 1, NOW_MS), ends_at_ms=LATER_MS)

    assert renewed is None
    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ redrive


def ended(store: Store, number: int = 1, *, caps: tuple[int, ...] = (100,)) -> Job:
    """A job that failed and whose message is in the dead-letter queue."""
    job = store.submit(a_job(number), caps=caps)
    store.jobs.apply(job, failed(job, last_receive=True))
    return failed(job, last_receive=True)


@pytest.mark.parametrize("last_receive", [False, True], ids=["failed", "dead_lettered"])
def test_redrive_queues_the_job_with_claim_and_counter(store: Store, *, last_receive: bool) -> None:
    job = store.submit(a_job())
    old = failed(job, last_receive=last_receive)
    store.jobs.apply(job, old)

    outcome = store.jobs.redrive(old, redriven(old, lane="batch"))

    assert outcome == Applied(redriven(old, lane="batch"))
    row = store.row(job)
    assert row == redriven(old, lane="batch")
    assert (row.status, row.attempts, row.redrives, row.lane) == (JobStatus.QUEUED, 0, 1, "batch")
    assert store.rows.claim(job.job_key) == job.job_id
    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.parametrize("unsettled", [False, True])
def test_refresh_is_not_redriven_and_nothing_is_written(store: Store, *, unsettled: bool) -> None:
    old = replace(failed(a_refresh(), last_receive=True), unsettled=unsettled)
    store.rows.put_job(old)
    before = store.rows.picture()

    with pytest.raises(ValueError, match="refresh"):
        store.jobs.redrive(old, redriven(old))

    assert store.rows.picture() == before
    assert store.rows.in_flight(old.tenant) == {}


def test_redriven_job_is_found_by_the_same_request(store: Store) -> None:
    old = ended(store)
    store.jobs.redrive(old, redriven(old))

    outcome = store.jobs.submit(same_work(2), shard_caps=(100,))

    assert outcome == Claimed(old.job_id)


def test_redriven_jobs_claim_outlives_its_new_deadline(store: Store) -> None:
    old = ended(store)
    store.clock.set(redriven(old).enqueued_at_epoch_ms)
    store.jobs.redrive(old, redriven(old))
    store.clock.set(redriven(old).deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS)

    outcome = store.jobs.submit(same_work(2), shard_caps=(100,))

    assert outcome == Claimed(old.job_id)


def test_redrive_takes_a_claim_that_has_ended(store: Store) -> None:
    old = ended(store, 1)
    store.submit(same_work(2))  # its row outlives it: nobody ever ran it
    store.clock.set(a_job(2).deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS + 1)

    outcome = store.jobs.redrive(old, redriven(old, now_ms=store.clock.now_ms()))

    assert isinstance(outcome, Applied)
    assert store.rows.claim(old.job_key) == old.job_id
    assert store.rows.in_flight("acme") == {0: 2}


def test_redrive_leaves_the_claim_of_an_equal_job_that_is_open(store: Store) -> None:
    old = ended(store, 1)
    twin = store.submit(same_work(2))

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Applied(redriven(old))
    assert store.rows.claim(old.job_key) == twin.job_id
    assert store.rows.in_flight("acme") == {0: 2}


def test_end_of_a_redriven_job_without_the_claim_leaves_its_twins(store: Store) -> None:
    old = ended(store, 1)
    twin = store.submit(same_work(2))
    store.jobs.redrive(old, redriven(old))

    store.jobs.apply(redriven(old), completed(redriven(old)))

    assert store.rows.claim(old.job_key) == twin.job_id
    assert store.rows.in_flight("acme") == {0: 1}


def test_redrive_counts_beyond_the_cap(store: Store) -> None:
    old = ended(store, 1, caps=(1,))
    store.submit(a_job(2), caps=(1,))

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Applied(redriven(old))
    assert store.rows.in_flight("acme") == {0: 2}


def test_redrive_counts_in_the_jobs_own_shard(store: Store) -> None:
    for number in (1, 2):
        job = store.submit(a_job(number), caps=(1, 1))
    assert job.counter_shard == 1
    store.jobs.apply(job, failed(job))

    store.jobs.redrive(failed(job), redriven(failed(job)))

    assert store.rows.in_flight("acme") == {0: 1, 1: 1}


def test_redrive_repeated_after_a_lost_reply_is_applied_and_counted_once(store: Store) -> None:
    old = ended(store)
    store.jobs.redrive(old, redriven(old))
    before = store.rows.picture()

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Applied(redriven(old))
    assert store.rows.picture() == before


def test_redrive_repeated_without_the_claim_is_applied_and_counted_once(store: Store) -> None:
    old = ended(store, 1)
    store.submit(same_work(2))
    store.jobs.redrive(old, redriven(old))
    before = store.rows.picture()

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Applied(redriven(old))
    assert store.rows.picture() == before


def test_redrive_of_a_job_that_moved_gives_what_it_is_now(store: Store) -> None:
    old = ended(store)
    discarded = transitions.discarded(old, now_ms=NOW_MS)
    store.jobs.apply(old, discarded)
    before = store.rows.picture()

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Moved(discarded)
    assert store.rows.picture() == before


def test_redrive_of_a_job_that_runs_again_already_changes_nothing(store: Store) -> None:
    old = ended(store)
    store.jobs.redrive(old, redriven(old))
    processing, _ = store.start(redriven(old))
    before = store.rows.picture()

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Moved(processing)
    assert store.rows.picture() == before


def test_redrive_of_a_job_that_is_gone_makes_no_row(store: Store) -> None:
    old = failed(a_job())
    before = store.rows.picture()

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Moved(None)
    assert store.rows.picture() == before


def test_redriven_job_starts_under_the_next_fence_and_goes_on_counting(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    old = failed(processing)
    store.jobs.apply(processing, old, lease=lease)
    store.jobs.redrive(old, redriven(old))

    again, second = store.start(redriven(old), "token-2")

    assert (again.fence, second.fence) == (2, 2)
    assert (again.attempts, again.attempts_total) == (1, 2)


def test_each_redrive_gives_its_place_back_in_the_end(store: Store) -> None:
    job = store.submit(a_job())
    for number in range(1, 4):
        old = failed(job)
        store.jobs.apply(job, old)
        store.jobs.redrive(old, redriven(old))
        job = redriven(old)
        assert job.redrives == number

    store.jobs.apply(job, completed(job))

    assert store.rows.in_flight("acme") == {}
    assert store.rows.claim(job.job_key) is None
    assert isinstance(store.jobs.submit(same_work(2), shard_caps=(1,)), Submitted)


# ------------------------------------------------------------------------------------ settle


def unsettled(store: Store, end: Callable[[Job], Job] = completed) -> Job:
    """A job that ended without closing its claim and giving its place back."""
    job = store.submit(a_job())
    marked = replace(end(job), unsettled=True, due_at_epoch_ms=NOW_MS, due_shard=job.due_shard)
    store.rows.put_job(marked)
    return marked


def test_settle_closes_claim_and_counter_and_takes_the_mark_off(store: Store) -> None:
    job = unsettled(store)

    store.jobs.settle(job)

    assert store.rows.claim(job.job_key) is None
    assert store.rows.in_flight("acme") == {}
    row = store.row(job)
    assert (row.status, row.result, row.unsettled) == (JobStatus.COMPLETED, job.result, False)
    assert (row.due_at_epoch_ms, row.due_shard) == (None, None)


def test_settle_again_changes_nothing(store: Store) -> None:
    store.submit(a_job(2))
    job = unsettled(store)
    store.jobs.settle(job)
    before = store.rows.picture()

    store.jobs.settle(job)

    assert store.rows.picture() == before
    assert store.rows.in_flight("acme") == {0: 1}


def test_settle_of_a_job_without_the_mark_changes_nothing(store: Store) -> None:
    # The transaction is conditional on the mark: a second one would count somebody else out.
    store.submit(a_job(2))
    settled = unsettled(store)
    store.jobs.settle(settled)
    before = store.rows.picture()

    store.jobs.settle(store.row(settled))

    assert store.rows.picture() == before


def test_settle_leaves_the_claim_that_is_anothers_by_now(store: Store) -> None:
    job = unsettled(store)
    twin = store.jobs.submit(same_work(2), shard_caps=(100,), replacing=job.job_id)
    assert isinstance(twin, Submitted)

    store.jobs.settle(job)

    assert store.rows.claim(job.job_key) == twin.job.job_id
    assert store.rows.in_flight("acme") == {0: 1}
    assert not store.row(job).unsettled


def test_settle_without_any_claim_gives_the_place_back(store: Store) -> None:
    job = unsettled(store)
    store.rows.drop_claim(job.job_key)

    store.jobs.settle(job)

    assert store.rows.in_flight("acme") == {}
    assert not store.row(job).unsettled


def test_settle_of_a_job_that_is_gone_changes_nothing(store: Store) -> None:
    before = store.rows.picture()

    store.jobs.settle(replace(completed(a_job()), unsettled=True))

    assert store.rows.picture() == before


def test_settled_failure_still_waits_for_its_mark_as_dead_lettered(store: Store) -> None:
    # Its message is on its way to the dead-letter queue, and the sweeper writes what is lost.
    job = unsettled(store, failed)

    store.jobs.settle(job)

    assert store.row(job).status is JobStatus.FAILED
    assert store.row(job).due_at_epoch_ms == job.failed_at_epoch_ms + 15 * 60_000  # type: ignore[operator]


def test_failure_that_reaches_the_dead_letter_queue_unsettled_is_settled_after_all(
    store: Store,
) -> None:
    # Its ten receives take seconds: the sweeper comes after the mark, and must still find it.
    job = unsettled(store, failed)

    store.jobs.apply(job, transitions.dead_lettered(job))

    row = store.row(job)
    assert row.status is JobStatus.DEAD_LETTERED
    assert row.due_at_epoch_ms is not None or store.rows.in_flight("acme") == {}


def test_redrive_of_an_unsettled_failure_counts_the_job_once(store: Store) -> None:
    job = unsettled(store, failed)
    store.jobs.redrive(job, redriven(job))
    again = store.row(job)
    if again.unsettled:  # what the sweeper does then
        store.jobs.settle(again)

    row = store.row(job)

    assert (row.status, row.due_at_epoch_ms) == (JobStatus.QUEUED, redriven(job).due_at_epoch_ms)
    assert store.rows.claim(job.job_key) == job.job_id
    assert store.rows.in_flight("acme") == {0: 1}


# ------------------------------------------------------------------------------------ cancel


@pytest.mark.parametrize("status", ["queued", "processing", "retrying", "parked"])
def test_cancel_closes_claim_and_counter_in_every_open_state(store: Store, status: str) -> None:
    job = store.submit(a_job())
    if status in {"processing", "retrying"}:
        job, lease = store.start(job)
    if status == "retrying":
        store.jobs.apply(job, retrying(job), lease=lease)
        job = retrying(job)
    if status == "parked":
        parked = transitions.parked(job, not_before_ms=NOW_MS + 5_000)
        store.jobs.apply(job, parked)
        job = parked

    outcome = store.jobs.apply(job, cancelled(job))

    assert outcome == Applied(cancelled(job))
    assert store.row(job).due_at_epoch_ms is None
    assert store.rows.claim(job.job_key) is None
    assert store.rows.in_flight("acme") == {}


@pytest.mark.proves(5)
def test_finish_after_the_cancel_changes_nothing_and_the_lease_can_be_released(
    store: Store,
) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, cancelled(processing))
    before = store.rows.picture()

    outcome = store.jobs.apply(processing, completed(processing), lease=lease)

    assert outcome == Moved(cancelled(processing))
    assert store.rows.picture() == before
    store.jobs.release(lease)
    assert store.rows.lease(lease.key) == LeaseRow(processing.job_id, None, 1, 0)


def test_mark_before_the_call_is_written_under_the_jobs_own_fence_alone(store: Store) -> None:
    late, _ = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    current, _ = store.start(late, "token-2")

    refused = store.jobs.apply(late, transitions.called(late, now_ms=NOW_MS))
    written = store.jobs.apply(current, transitions.called(current, now_ms=NOW_MS))

    assert refused == Moved(current)
    assert written == Applied(transitions.called(current, now_ms=NOW_MS))
    assert store.row(current).called_at_epoch_ms == NOW_MS
