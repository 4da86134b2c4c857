"""JobStore.submit: job, claim and counter are one write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs
from sluiceway.domain import job as transitions
from sluiceway.domain.job import CLAIM_OUTLIVES_DEADLINE_MS
from sluiceway.ports import Applied, CapReached, Claimed, Moved, Submitted

from tests.fakes.examples import a_job, an_entry, completed, failed, redriven, retrying
from tests.fakes.in_memory import NOW_MS, InMemoryJobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

CAPS = (100,)


def equal_work(number: int, to: int = 1) -> Job:
    """Another job for the same work."""
    return replace(a_job(number), job_key=a_job(to).job_key, cache_key=a_job(to).cache_key)


def test_submit_writes_job_claim_and_counter(store: Store) -> None:
    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(a_job())
    assert store.row(a_job()) == a_job()
    assert store.rows.claim(a_job().job_key) == a_job().job_id
    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.proves(10)
def test_get_finds_nothing_under_another_tenant(store: Store) -> None:
    store.submit(a_job())

    found = store.jobs.get("globex", a_job().job_id)

    assert found is None


@pytest.mark.proves(2)
def test_submit_of_equal_work_names_the_job_that_has_the_claim(store: Store) -> None:
    store.submit(a_job(1))
    before = store.rows.picture()

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert outcome == Claimed(a_job(1).job_id)
    assert store.rows.picture() == before


@pytest.mark.proves(1)
def test_submit_answers_only_with_ids_that_resolve(store: Store) -> None:
    store.submit(a_job(1))

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert isinstance(outcome, Claimed)
    assert store.jobs.get("acme", outcome.job_id) == a_job(1)
    assert store.jobs.get("acme", a_job(2).job_id) is None


def test_submit_repeated_after_a_lost_reply_is_submitted_and_counted_once(store: Store) -> None:
    store.submit(a_job())
    before = store.rows.picture()

    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(a_job())
    assert store.rows.picture() == before


def test_submit_repeated_when_its_own_job_filled_the_cap_is_submitted(store: Store) -> None:
    store.submit(a_job(), caps=(1,))

    outcome = store.jobs.submit(a_job(), shard_caps=(1,))

    assert outcome == Submitted(a_job())
    assert store.rows.in_flight("acme") == {0: 1}


def test_submit_repeated_gives_the_job_as_it_is_by_now(store: Store) -> None:
    processing, _ = store.start(store.submit(a_job()))

    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(processing)


def test_submit_repeated_when_its_own_job_has_ended_is_submitted(store: Store) -> None:
    ended = completed(store.submit(a_job()))
    store.jobs.apply(a_job(), ended)

    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(ended)
    assert store.rows.claim(a_job().job_key) is None
    assert store.rows.in_flight("acme") == {}


# ------------------------------------------------------------------------------------ the claim


@pytest.mark.proves(2)
def test_submit_finds_the_claim_held_at_the_last_moment_of_its_time(store: Store) -> None:
    store.submit(a_job(1))
    store.clock.set(a_job().deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS)

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert outcome == Claimed(a_job(1).job_id)


@pytest.mark.proves(9)
def test_submit_takes_over_an_expired_claim_that_is_still_visible(store: Store) -> None:
    store.submit(a_job(1))
    store.clock.set(a_job().deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS + 1)

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert isinstance(outcome, Submitted)
    assert store.rows.claim(a_job(1).job_key) == a_job(2).job_id
    assert store.row(a_job(1)) == a_job(1)


def test_submit_takes_over_the_claim_of_a_holder_that_has_ended(store: Store) -> None:
    store.submit(a_job(1))

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS, replacing=a_job(1).job_id)

    assert isinstance(outcome, Submitted)
    assert store.rows.claim(a_job(1).job_key) == a_job(2).job_id


def test_submit_leaves_a_claim_that_went_from_the_ended_holder_to_another(store: Store) -> None:
    store.submit(a_job(1))
    store.jobs.submit(equal_work(2), shard_caps=CAPS, replacing=a_job(1).job_id)
    before = store.rows.picture()

    outcome = store.jobs.submit(equal_work(3), shard_caps=CAPS, replacing=a_job(1).job_id)

    assert outcome == Claimed(a_job(2).job_id)
    assert store.rows.picture() == before


def test_submit_replacing_a_holder_whose_claim_is_gone_is_submitted(store: Store) -> None:
    store.submit(a_job(1))
    store.jobs.apply(a_job(1), completed(a_job(1)))

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS, replacing=a_job(1).job_id)

    assert isinstance(outcome, Submitted)


@pytest.mark.parametrize(
    "end",
    [
        completed,
        failed,
        lambda job: failed(job, last_receive=True),
        lambda job: transitions.cancelled(job, now_ms=NOW_MS + 1000),
    ],
    ids=["completed", "failed", "dead_lettered", "cancelled"],
)
def test_open_holder_that_was_replaced_ends_without_the_claim_of_the_newer(
    store: Store, end: Callable[[Job], Job]
) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    store.jobs.submit(equal_work(2), shard_caps=CAPS, replacing=processing.job_id)
    counted = store.rows.in_flight("acme")

    outcome = store.jobs.apply(processing, end(processing), lease=lease)

    assert outcome == Applied(end(processing))
    assert store.rows.claim(processing.job_key) == a_job(2).job_id
    assert (counted, store.rows.in_flight("acme")) == ({0: 2}, {0: 1})
    assert store.jobs.submit(equal_work(3), shard_caps=CAPS) == Claimed(a_job(2).job_id)


def test_open_holder_that_was_replaced_is_redriven_beside_the_newer(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    newer = equal_work(2)
    store.jobs.submit(newer, shard_caps=CAPS, replacing=processing.job_id)
    old = failed(processing, last_receive=True)
    store.jobs.apply(processing, old, lease=lease)

    store.jobs.redrive(old, redriven(old))
    beside = store.rows.claim(old.job_key), store.rows.in_flight("acme")
    store.jobs.apply(newer, completed(newer))
    alone = store.rows.claim(old.job_key), store.rows.in_flight("acme")
    store.jobs.apply(redriven(old), completed(redriven(old)))

    assert beside == (newer.job_id, {0: 2})
    assert alone == (None, {0: 1})
    assert store.rows.in_flight("acme") == {}


def test_open_holder_that_was_replaced_leaves_its_entry_and_frees_the_lease(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job(1)))
    store.jobs.submit(equal_work(2), shard_caps=CAPS, replacing=processing.job_id)
    entry = an_entry(processing)

    store.jobs.apply(processing, completed(processing), lease=lease, entry=entry)
    newer, _ = store.start(store.row(equal_work(2)), "token-2")

    assert store.cache.read(processing.cache_key) == entry
    assert newer.fence == processing.fence + 1


def test_submit_after_the_holders_end_is_new_work(store: Store) -> None:
    store.submit(a_job(1))
    ended = store.jobs.apply(a_job(1), completed(a_job(1)))

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert isinstance(ended, Applied)
    assert isinstance(outcome, Submitted)


# ------------------------------------------------------------------------------------ the cap


def test_submit_over_the_cap_writes_nothing(store: Store) -> None:
    store.submit(a_job(1), caps=(1,))
    before = store.rows.picture()

    outcome = store.jobs.submit(a_job(2), shard_caps=(1,))

    assert outcome == CapReached()
    assert store.rows.picture() == before


def test_submit_into_a_full_shard_tries_the_others(store: Store) -> None:
    caps = (1, 1, 1)

    shards = [store.submit(a_job(number), caps=caps).counter_shard for number in (1, 2, 3)]
    outcome = store.jobs.submit(a_job(4), shard_caps=caps)

    assert sorted(shards) == [0, 1, 2]
    assert store.rows.in_flight("acme") == {0: 1, 1: 1, 2: 1}
    assert outcome == CapReached()


def test_submit_begins_with_the_shard_that_chance_picks(store: Store) -> None:
    jobs = store.jobs
    assert isinstance(jobs, InMemoryJobs | DynamoDBJobs)
    jobs._rand = lambda: 0.99

    written = store.submit(a_job(), caps=(1, 1, 1))

    assert written.counter_shard == 2


def test_submit_stores_the_shard_that_the_end_gives_back(store: Store) -> None:
    store.submit(a_job(1), caps=(1, 1))
    second = store.submit(a_job(2), caps=(1, 1))

    store.jobs.apply(store.row(second), completed(store.row(second)))

    assert store.rows.in_flight("acme") == {0: 1}


@pytest.mark.proves(2)
def test_submit_of_equal_work_over_the_cap_names_the_job_that_has_the_claim(store: Store) -> None:
    store.submit(a_job(1), caps=(1,))

    outcome = store.jobs.submit(equal_work(2), shard_caps=(1,))

    assert outcome == Claimed(a_job(1).job_id)


def test_submit_replacing_a_holder_is_still_held_to_the_cap(store: Store) -> None:
    store.submit(a_job(1), caps=(1,))

    outcome = store.jobs.submit(equal_work(2), shard_caps=(1,), replacing=a_job(1).job_id)

    assert outcome == CapReached()
    assert store.rows.claim(a_job(1).job_key) == a_job(1).job_id


def test_submit_over_a_cap_that_was_lowered_is_refused(store: Store) -> None:
    for number in (1, 2, 3):
        store.submit(a_job(number), caps=(3,))

    outcome = store.jobs.submit(a_job(4), shard_caps=(2,))

    assert outcome == CapReached()


def test_submit_counts_each_tenant_for_itself(store: Store) -> None:
    store.submit(a_job(1), caps=(1,))

    outcome = store.jobs.submit(a_job(2, tenant="globex"), shard_caps=(1,))

    assert isinstance(outcome, Submitted)
    assert store.rows.in_flight("globex") == {0: 1}


# ------------------------------------------------------------------------------------ holder


def test_holder_is_the_open_job_of_the_same_work(store: Store) -> None:
    before = store.jobs.holder(a_job(2, job_key=a_job(1).job_key))
    store.submit(a_job(1))

    assert before is None
    assert store.jobs.holder(a_job(2, job_key=a_job(1).job_key)) == a_job(1).job_id
    assert store.jobs.holder(a_job(2)) is None


@pytest.mark.proves(9)
def test_nobody_holds_a_claim_that_has_ended(store: Store) -> None:
    job = store.submit(a_job(1))
    store.clock.advance(s=job.deadline_s + 3_601)

    assert store.jobs.holder(a_job(1, job_id="job_another")) is None


# ------------------------------------------------------------------------------------ ask again


def test_job_that_waits_is_asked_again(store: Store) -> None:
    job = store.submit(a_job(asked_after_epoch_ms=NOW_MS))

    outcome = store.jobs.ask_again(job, asked_after_ms=NOW_MS + 1)

    assert outcome == Applied(store.row(job))
    expected = replace(job, asked_after_epoch_ms=NOW_MS + 1, revision=job.revision + 1)
    assert store.row(job) == expected


def test_job_that_took_every_answer_is_asked_again(store: Store) -> None:
    job = store.submit(a_job(asked_after_epoch_ms=None))

    store.jobs.ask_again(job, asked_after_ms=NOW_MS)

    assert store.row(job).asked_after_epoch_ms == NOW_MS


@pytest.mark.parametrize("later_ms", [0, 1])
def test_job_that_was_asked_later_stays_as_it_is(store: Store, later_ms: int) -> None:
    job = store.submit(a_job(asked_after_epoch_ms=NOW_MS + later_ms))

    outcome = store.jobs.ask_again(job, asked_after_ms=NOW_MS)

    assert outcome == Applied(job)
    assert store.row(job) == job


def test_worker_that_read_the_job_before_it_was_asked_again_finds_it_moved(store: Store) -> None:
    job = store.submit(a_job(asked_after_epoch_ms=NOW_MS))
    store.jobs.ask_again(job, asked_after_ms=NOW_MS + 1)

    from_an_entry = store.jobs.apply(job, completed(job, source="cache"))

    assert from_an_entry == Moved(store.row(job))
    assert store.row(job).open


@pytest.mark.parametrize("then", ["processing", "retrying", "completed"])
def test_job_that_has_begun_is_not_asked_again(store: Store, then: str) -> None:
    job = store.submit(a_job(asked_after_epoch_ms=NOW_MS))
    processing, lease = store.start(job)
    if then != "processing":
        new = retrying(processing) if then == "retrying" else completed(processing)
        store.jobs.apply(processing, new, lease=lease)
    before = store.rows.picture()

    outcome = store.jobs.ask_again(job, asked_after_ms=NOW_MS + 1)

    assert outcome == Moved(store.row(job))
    assert store.rows.picture() == before


def test_asking_a_job_that_is_gone_makes_no_row(store: Store) -> None:
    outcome = store.jobs.ask_again(a_job(), asked_after_ms=NOW_MS)

    assert outcome == Moved(None)
    assert store.jobs.get("acme", a_job().job_id) is None
