"""JobStore.apply, release and move_lane: transitions that are whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.job import CLAIM_OUTLIVES_DEADLINE_MS, JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.ports import Applied, Claimed, LeaseHeld, Moved, Started, Submitted

from tests.contract.harness import LEASE_MS, start
from tests.fakes.examples import a_job, an_entry, completed, failed, retrying
from tests.fakes.in_memory import NOW_MS, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

CAPS = (100,)


def same_work(number: int, to: int = 1) -> Job:
    """Another job for the same work."""
    return replace(a_job(number), job_key=a_job(to).job_key, cache_key=a_job(to).cache_key)


def same_key(number: int, to: int = 1) -> Job:
    """Another job for other work whose result has the same cache key."""
    return replace(a_job(number), cache_key=a_job(to).cache_key)


def lease_ended(store: Store) -> None:
    """Lets the time pass after which a lease taken now is free."""
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)


def test_written_transition_is_no_moved_job_though_both_tell_of_the_same() -> None:
    """Every test below tells them apart by comparing them."""
    job = a_job()

    assert Applied(job) != Moved(job)
    assert Moved(job) != Applied(job)


# ------------------------------------------------------------------------------------ the finish


def test_finish_writes_job_entry_lease_claim_and_counter(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    entry = an_entry(processing)

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, entry=entry, give_up_at_ms=NOW_MS + 90_000
    )

    assert outcome == Applied(completed(processing))
    assert store.row(processing) == completed(processing)
    assert store.cache.read(processing.cache_key) == entry
    assert store.rows.lease(processing.cache_key) == LeaseRow(processing.job_id, None, 1, 0)
    assert store.rows.claim(processing.job_key) is None
    assert store.rows.in_flight("acme") == {}


def test_finish_without_an_entry_leaves_the_cache_alone(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    store.jobs.apply(processing, completed(processing), lease=lease)

    assert store.cache.read(processing.cache_key) is None


def test_finish_replaces_the_entry_of_an_earlier_job(store: Store) -> None:
    for number in (1, 2):
        processing, lease = store.start(store.submit(same_work(number)), f"token-{number}")
        entry = an_entry(processing, text=f"answer {number}".encode())
        store.jobs.apply(processing, completed(processing), lease=lease, entry=entry)

    assert store.cache.read(a_job(1).cache_key) == an_entry(a_job(1), text=b"answer 2")


def test_finish_frees_the_key_at_once(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    store.jobs.apply(processing, completed(processing), lease=lease)

    outcome = start(store, store.submit(same_work(2)), "token-2")

    assert isinstance(outcome, Started)
    assert outcome.lease.fence == 2


def test_finish_repeated_after_a_lost_reply_is_applied_and_settled_once(store: Store) -> None:
    store.submit(a_job(2))
    processing, lease = store.start(store.submit(a_job(1)))
    finish = completed(processing)
    store.jobs.apply(processing, finish, lease=lease, entry=an_entry(processing))
    before = store.rows.picture()

    outcome = store.jobs.apply(processing, finish, lease=lease, entry=an_entry(processing))

    assert outcome == Applied(finish)
    assert store.rows.picture() == before
    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.proves(5)
def test_finish_with_another_result_does_not_replace_the_first(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    first = completed(processing, b"first")
    store.jobs.apply(processing, first, lease=lease, entry=an_entry(processing, b"first"))
    before = store.rows.picture()

    outcome = store.jobs.apply(
        processing,
        completed(processing, b"second"),
        lease=lease,
        entry=an_entry(processing, b"second"),
    )

    assert outcome == Applied(first)
    assert store.rows.picture() == before


@pytest.mark.proves(5)
def test_failure_after_the_finish_changes_nothing(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, completed(processing), lease=lease)
    before = store.rows.picture()

    outcome = store.jobs.apply(processing, failed(processing), lease=lease)

    assert outcome == Moved(completed(processing))
    assert store.rows.picture() == before


@pytest.mark.proves(5)
def test_finish_after_the_failure_changes_nothing(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, failed(processing), lease=lease)
    before = store.rows.picture()

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, entry=an_entry(processing)
    )

    assert outcome == Moved(failed(processing))
    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ lost leases


@pytest.mark.proves(4)
def test_finish_under_a_fence_that_was_taken_over_changes_nothing(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    current, _ = store.start(late, "token-2")
    before = store.rows.picture()

    outcome = store.jobs.apply(late, completed(late), lease=lost, entry=an_entry(late))

    assert outcome == Moved(current)
    assert store.rows.picture() == before


@pytest.mark.proves(4)
def test_finish_by_a_former_holder_leaves_the_successors_result(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    current, lease = store.start(late, "token-2")
    finish = completed(current, b"the successor's")
    store.jobs.apply(current, finish, lease=lease, entry=an_entry(current, b"the successor's"))
    before = store.rows.picture()

    outcome = store.jobs.apply(late, completed(late), lease=lost, entry=an_entry(late))

    assert outcome == Moved(finish)
    assert store.rows.picture() == before


@pytest.mark.proves(4)
def test_finish_without_the_lease_of_its_key_changes_nothing(store: Store) -> None:
    late, lost = store.start(store.submit(a_job(1)), "token-1")
    other = store.submit(same_key(2))
    lease_ended(store)
    store.start(other, "token-2")
    before = store.rows.picture()

    outcome = store.jobs.apply(late, completed(late), lease=lost, entry=an_entry(late))

    assert outcome == Moved(late)
    assert store.rows.picture() == before


def test_finish_under_an_expired_lease_that_nobody_took_is_written(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    lease_ended(store)

    outcome = store.jobs.apply(processing, completed(processing), lease=lease)

    assert isinstance(outcome, Applied)


@pytest.mark.proves(4)
def test_finish_with_the_right_fence_and_another_token_changes_nothing(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    before = store.rows.picture()

    outcome = store.jobs.apply(
        processing, completed(processing), lease=replace(lease, token="token-9")
    )

    assert outcome == Moved(processing)
    assert store.rows.picture() == before


@pytest.mark.proves(4)
def test_finish_with_the_right_token_and_another_fence_changes_nothing(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    before = store.rows.picture()

    outcome = store.jobs.apply(processing, completed(processing), lease=replace(lease, fence=2))

    assert outcome == Moved(processing)
    assert store.rows.picture() == before


def test_transition_of_an_old_reading_changes_nothing(store: Store) -> None:
    job = store.submit(a_job())
    processing, _ = store.start(job)
    before = store.rows.picture()

    outcome = store.jobs.apply(job, failed(job))

    assert outcome == Moved(processing)
    assert store.rows.picture() == before


@pytest.mark.parametrize(
    "difference",
    [{"status": JobStatus.RETRYING}, {"fence": 9}, {"attempts_total": 9}, {"revision": 9}],
    ids=["status", "fence", "attempts_total", "revision"],
)
def test_transition_of_a_reading_that_differs_changes_nothing(
    store: Store, difference: dict[str, Any]
) -> None:
    processing, _ = store.start(store.submit(a_job()))
    misread = replace(processing, **difference)
    before = store.rows.picture()

    outcome = store.jobs.apply(misread, failed(misread))

    assert outcome == Moved(processing)
    assert store.rows.picture() == before


def test_transition_of_a_job_that_is_gone_writes_nothing(store: Store) -> None:
    before = store.rows.picture()

    outcome = store.jobs.apply(a_job(), failed(a_job()))

    assert outcome == Moved(None)
    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ claims


def test_finish_leaves_the_claim_that_another_job_took_over(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    store.clock.set(a_job().deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS + 1)
    store.submit(same_work(2))
    entry = an_entry(processing, kept_until_epoch_ms=store.clock.now_ms() + 1000)

    outcome = store.jobs.apply(processing, completed(processing), lease=lease, entry=entry)

    assert outcome == Applied(completed(processing))
    assert store.rows.claim(a_job(1).job_key) == a_job(2).job_id
    assert store.rows.in_flight("acme") == {0: 1}
    assert store.cache.read(processing.cache_key) == entry


def test_finish_without_any_claim_is_written_and_settled(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.rows.drop_claim(processing.job_key)

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, entry=an_entry(processing)
    )

    assert outcome == Applied(completed(processing))
    assert store.rows.in_flight("acme") == {}
    assert store.cache.read(processing.cache_key) == an_entry(processing)


def test_refused_finish_without_any_claim_changes_nothing(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    current, _ = store.start(late, "token-2")
    store.rows.drop_claim(late.job_key)
    before = store.rows.picture()

    outcome = store.jobs.apply(late, completed(late), lease=lost, entry=an_entry(late))

    assert outcome == Moved(current)
    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ other ends


def test_retry_releases_the_lease_and_keeps_claim_and_counter(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    outcome = store.jobs.apply(processing, retrying(processing), lease=lease)

    assert outcome == Applied(retrying(processing))
    assert store.row(processing) == retrying(processing)
    assert store.rows.lease(processing.cache_key) == LeaseRow(processing.job_id, None, 1, 0)
    assert store.rows.claim(processing.job_key) == processing.job_id
    assert store.rows.in_flight("acme") == {0: 1}


def test_retry_repeated_after_a_lost_reply_is_applied(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    store.jobs.apply(processing, retrying(processing), lease=lease)
    before = store.rows.picture()

    outcome = store.jobs.apply(processing, retrying(processing), lease=lease)

    assert outcome == Applied(retrying(processing))
    assert store.rows.picture() == before


def test_retrying_job_is_no_duplicate_of_itself(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    waiting = retrying(processing)
    store.jobs.apply(processing, waiting, lease=lease)

    twin = store.jobs.submit(same_work(2), shard_caps=CAPS)
    again = start(store, waiting, "token-2")

    assert twin == Claimed(a_job(1).job_id)
    assert isinstance(again, Started)


def test_twins_on_one_key_run_once_at_a_time_and_none_is_lost(store: Store) -> None:
    twins = [a_job(1), same_key(2)]
    for twin in twins:
        store.submit(twin)

    first, lease = store.start(twins[0], "token-1")
    meanwhile = start(store, twins[1], "token-2")
    store.jobs.apply(first, completed(first), lease=lease, entry=an_entry(first))
    entry = store.cache.read(first.cache_key)
    assert entry is not None
    from_cache = completed(twins[1], result=entry.result, source="cache")
    second = store.jobs.apply(twins[1], from_cache)

    assert not isinstance(meanwhile, Started)
    assert second == Applied(from_cache)
    assert store.rows.in_flight("acme") == {}


@pytest.mark.parametrize(
    "end",
    [
        failed,
        lambda job: failed(job, last_receive=True),
        lambda job: transitions.cancelled(job, now_ms=NOW_MS + 1000),
    ],
    ids=["failed", "dead_lettered", "cancelled"],
)
def test_every_other_end_settles_claim_and_counter(store: Store, end: Callable[[Job], Job]) -> None:
    processing, lease = store.start(store.submit(a_job()))

    outcome = store.jobs.apply(processing, end(processing), lease=lease)

    assert outcome == Applied(end(processing))
    assert store.row(processing) == end(processing)
    assert store.rows.claim(processing.job_key) is None
    assert store.rows.in_flight("acme") == {}
    assert store.rows.lease(processing.cache_key) == LeaseRow(processing.job_id, None, 1, 0)


def test_failure_without_a_lease_settles_and_leaves_anothers_lease(store: Store) -> None:
    other, _ = store.start(store.submit(a_job(1)))
    job = store.submit(same_key(2))
    held = store.rows.lease(other.cache_key)

    outcome = store.jobs.apply(job, failed(job))

    assert outcome == Applied(failed(job))
    assert store.rows.lease(other.cache_key) == held
    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.proves(15)
def test_two_deliveries_that_find_the_attempts_used_up_fail_the_job_once(store: Store) -> None:
    store.submit(a_job(2))
    processing, lease = store.start(store.submit(a_job(1)))
    used_up = retrying(processing)
    store.jobs.apply(processing, used_up, lease=lease)

    first = store.jobs.apply(used_up, failed(used_up))
    before = store.rows.picture()
    second = store.jobs.apply(used_up, failed(used_up))

    assert first == second == Applied(failed(used_up))
    assert store.rows.picture() == before
    assert store.rows.in_flight("acme") == {0: 1}


def test_mark_of_a_dead_letter_settles_nothing_twice(store: Store) -> None:
    store.submit(a_job(2))
    job = store.submit(a_job(1))
    store.jobs.apply(job, failed(job))
    store.submit(same_work(3))

    outcome = store.jobs.apply(failed(job), transitions.dead_lettered(failed(job)))

    assert outcome == Applied(transitions.dead_lettered(failed(job)))
    assert store.row(job).due_at_epoch_ms is None
    assert store.rows.claim(job.job_key) == a_job(3).job_id
    assert store.rows.in_flight("acme") == {0: 2}


def test_completion_from_the_cache_needs_no_lease(store: Store) -> None:
    other, lease = store.start(store.submit(a_job(1)))
    job = store.submit(same_key(2))
    held = store.rows.lease(other.cache_key)
    from_cache = completed(job, source="cache")

    outcome = store.jobs.apply(job, from_cache)

    assert outcome == Applied(from_cache)
    assert store.row(job).attempts == 0
    assert store.rows.claim(job.job_key) is None
    assert store.rows.in_flight("acme") == {0: 1}
    assert store.rows.lease(lease.key) == held


@pytest.mark.proves(14)
def test_completion_from_the_cache_after_the_start_takes_the_attempt_back(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    from_cache = completed(processing, source="cache", attempt_taken_back=True)

    outcome = store.jobs.apply(processing, from_cache, lease=lease)

    assert outcome == Applied(from_cache)
    assert store.row(processing).attempts == 0
    assert store.row(processing).attempts_total == 0


def test_completion_from_the_cache_repeated_after_the_start_is_applied(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    from_cache = completed(processing, source="cache", attempt_taken_back=True)
    store.jobs.apply(processing, from_cache, lease=lease)

    outcome = store.jobs.apply(processing, from_cache, lease=lease)

    assert outcome == Applied(from_cache)


# ------------------------------------------------------------------------------------ busy keys


def test_end_behind_a_workers_back_is_refused_until_its_lease_is_free(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()))
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS)
    before = store.rows.picture()

    outcome = store.jobs.apply(
        processing, failed(processing), unless_held_at_ms=store.clock.now_ms()
    )

    assert outcome == LeaseHeld(by_this_job=True)
    assert store.rows.picture() == before


def test_end_of_a_job_whose_worker_died_is_written_when_its_lease_is_free(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()))
    lease_ended(store)

    outcome = store.jobs.apply(
        processing, failed(processing), unless_held_at_ms=store.clock.now_ms()
    )

    assert outcome == Applied(failed(processing))
    assert store.rows.in_flight("acme") == {}


def test_end_of_a_job_that_waits_for_anothers_lease_is_refused_and_says_so(store: Store) -> None:
    store.start(store.submit(a_job(1)))
    job = store.submit(same_key(2))

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS)

    assert outcome == LeaseHeld(by_this_job=False)
    assert store.row(job) == job


def test_end_of_a_job_on_a_lease_without_an_end_is_refused(store: Store) -> None:
    job = store.submit(a_job())
    store.rows.put_lease(job.cache_key, LeaseRow(a_job(2).job_id, "token-9", 4, None))

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS)

    assert outcome == LeaseHeld(by_this_job=False)


def test_end_of_a_job_on_a_key_that_was_never_leased_is_written(store: Store) -> None:
    job = store.submit(a_job())

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS)

    assert outcome == Applied(failed(job))


def test_end_of_a_job_without_a_claim_is_written_when_nobody_is_busy(store: Store) -> None:
    job = store.submit(a_job())
    store.rows.drop_claim(job.job_key)

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS)

    assert outcome == Applied(failed(job))
    assert store.rows.in_flight("acme") == {}


def test_end_of_an_old_reading_is_moved_even_while_the_key_is_held(store: Store) -> None:
    job = store.submit(a_job())
    processing, _ = store.start(job)

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS)

    assert outcome == Moved(processing)


# ------------------------------------------------------------------------------------ release


def test_release_by_the_holder_frees_the_key_and_keeps_the_fence(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))

    store.jobs.release(lease)

    assert store.rows.lease(lease.key) == LeaseRow(processing.job_id, None, 1, 0)
    _, second = store.start(store.submit(same_key(2)), "token-2")
    assert second.fence == 2


def test_release_moves_no_job(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    store.jobs.release(lease)

    assert store.row(processing) == processing


@pytest.mark.parametrize("stranger", [{"token": "token-9"}, {"fence": 9}], ids=["token", "fence"])
def test_release_by_a_stranger_changes_nothing(
    store: Store, stranger: dict[str, str | int]
) -> None:
    _, lease = store.start(store.submit(a_job()))
    before = store.rows.picture()

    store.jobs.release(replace(lease, **stranger))

    assert store.rows.picture() == before


def test_release_by_a_former_holder_leaves_the_successors_lease(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    lease_ended(store)
    store.start(late, "token-2")
    before = store.rows.picture()

    store.jobs.release(lost)

    assert store.rows.picture() == before


def test_release_again_or_of_nothing_changes_nothing(store: Store) -> None:
    _, lease = store.start(store.submit(a_job()))
    store.jobs.release(lease)
    before = store.rows.picture()

    store.jobs.release(lease)
    store.jobs.release(replace(lease, key=a_job(7).cache_key))

    assert store.rows.picture() == before


# ------------------------------------------------------------------------------------ move_lane


@pytest.mark.parametrize("status", ["queued", "processing", "retrying"])
def test_move_lane_moves_an_open_job_either_way(store: Store, status: str) -> None:
    job = store.submit(a_job(lane="batch"))
    if status != "queued":
        job, lease = store.start(job)
    if status == "retrying":
        store.jobs.apply(job, retrying(job), lease=lease)
        job = store.row(job)

    for lane in ("interactive", "batch"):
        assert store.jobs.move_lane(job, lane)

        assert store.row(job) == replace(job, lane=lane)


def test_move_lane_to_the_lane_where_it_is_is_refused(store: Store) -> None:
    job = store.submit(a_job(lane="batch"))
    store.jobs.move_lane(job, "interactive")
    before = store.rows.picture()

    raised = store.jobs.move_lane(job, "interactive")

    assert not raised
    assert store.rows.picture() == before


@pytest.mark.parametrize("end", [completed, failed])
def test_move_lane_of_an_ended_job_is_refused(store: Store, end: Callable[[Job], Job]) -> None:
    job = store.submit(a_job(lane="batch"))
    store.jobs.apply(job, end(job))

    raised = store.jobs.move_lane(job, "interactive")

    assert not raised
    assert store.row(job).lane == "batch"


def test_move_lane_of_a_job_that_is_gone_makes_no_row(store: Store) -> None:
    raised = store.jobs.move_lane(a_job(lane="batch"), "interactive")

    assert not raised
    assert store.jobs.get("acme", a_job().job_id) is None


def test_raised_lane_outlives_a_transition_that_was_read_before(store: Store) -> None:
    job = store.submit(a_job(lane="batch"))
    store.jobs.move_lane(job, "interactive")

    started, _ = store.start(job)

    assert store.row(started).lane == "interactive"
    assert store.row(started).status is JobStatus.PROCESSING


# ------------------------------------------------------------------------------------ as a whole


def test_every_end_gives_its_place_back(store: Store) -> None:
    ends: list[Callable[[Job], Job]] = [completed, failed, completed]
    for number, end in enumerate(ends, start=1):
        job = store.submit(a_job(number), caps=(1,))
        processing, lease = store.start(job, f"token-{number}")
        store.jobs.apply(processing, end(processing), lease=lease)

    outcome = store.jobs.submit(a_job(4), shard_caps=(1,))

    assert isinstance(outcome, Submitted)
