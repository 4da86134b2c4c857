"""JobStore.submit: job, claim and counter are one write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs
from sluiceway.domain.job import CLAIM_OUTLIVES_DEADLINE_MS
from sluiceway.ports import Applied, CapReached, Claimed, Submitted

from tests.fakes.examples import a_job, completed
from tests.fakes.in_memory import InMemoryJobs

if TYPE_CHECKING:
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


def test_get_finds_nothing_under_another_tenant(store: Store) -> None:
    store.submit(a_job())

    found = store.jobs.get("globex", a_job().job_id)

    assert found is None


def test_submit_of_equal_work_names_the_job_that_has_the_claim(store: Store) -> None:
    store.submit(a_job(1))
    before = store.rows.picture()

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert outcome == Claimed(a_job(1).job_id)
    assert store.rows.picture() == before


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


def test_submit_finds_the_claim_held_at_the_last_moment_of_its_time(store: Store) -> None:
    store.submit(a_job(1))
    store.clock.set(a_job().deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS)

    outcome = store.jobs.submit(equal_work(2), shard_caps=CAPS)

    assert outcome == Claimed(a_job(1).job_id)


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


def test_nobody_holds_a_claim_that_has_ended(store: Store) -> None:
    job = store.submit(a_job(1))
    store.clock.advance(s=job.deadline_s + 3_601)

    assert store.jobs.holder(a_job(1, job_id="job_another")) is None
