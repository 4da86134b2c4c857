"""JobStore.add_callback and drop_callback: where a job's webhooks go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.job import MAX_CALLBACKS
from sluiceway.ports import Applied, Moved

from tests.fakes.examples import a_job, completed

if TYPE_CHECKING:
    from tests.contract.harness import Store

ONE, TWO = "https://hooks.example/1", "https://hooks.example/2?a=b"


def test_callbacks_of_the_submit_are_stored(store: Store) -> None:
    job = store.submit(a_job(callback_urls=(ONE, TWO)))

    assert store.row(job).callback_urls == (ONE, TWO)


def test_callback_is_added(store: Store) -> None:
    job = store.submit(a_job())

    first = store.jobs.add_callback(job, TWO)
    assert isinstance(first, Applied)
    second = store.jobs.add_callback(first.job, ONE)

    assert isinstance(second, Applied)
    assert second.job == store.row(job)
    assert store.row(job).callback_urls == (ONE, TWO)


def test_callback_that_is_there_stays_there_once(store: Store) -> None:
    job = store.submit(a_job(callback_urls=(ONE,)))

    assert isinstance(store.jobs.add_callback(job, ONE), Applied)
    assert store.row(job).callback_urls == (ONE,)


def test_callback_survives_a_transition_by_who_had_not_seen_it(store: Store) -> None:
    job = store.submit(a_job(callback_urls=(ONE,)))
    started, lease = store.start(job)
    store.jobs.add_callback(job, TWO)

    store.jobs.apply(started, completed(started), lease=lease)

    assert store.row(job).callback_urls == (ONE, TWO)


def test_ended_job_takes_no_callback(store: Store) -> None:
    job = store.submit(a_job())
    store.jobs.apply(job, completed(job))

    outcome = store.jobs.add_callback(job, ONE)

    assert isinstance(outcome, Moved)
    assert outcome.job == store.row(job)
    assert store.row(job).callback_urls == ()


def test_unknown_job_takes_no_callback(store: Store) -> None:
    assert store.jobs.add_callback(a_job(), ONE) == Moved(None)
    assert store.jobs.get("acme", a_job().job_id) is None


def test_full_job_takes_no_callback_but_those_it_has(store: Store) -> None:
    urls = tuple(sorted(f"https://hooks.example/{number}" for number in range(MAX_CALLBACKS)))
    job = store.submit(a_job(callback_urls=urls))

    assert isinstance(store.jobs.add_callback(job, TWO), Moved)
    assert isinstance(store.jobs.add_callback(job, urls[3]), Applied)
    assert store.row(job).callback_urls == urls


@pytest.mark.parametrize("ended", [False, True])
def test_callback_is_dropped(store: Store, *, ended: bool) -> None:
    job = store.submit(a_job(callback_urls=(ONE, TWO)))
    if ended:
        store.jobs.apply(job, completed(job))

    store.jobs.drop_callback(job.tenant, job.job_id, ONE)
    store.jobs.drop_callback(job.tenant, job.job_id, ONE)

    assert store.row(job).callback_urls == (TWO,)


def test_last_callback_is_dropped(store: Store) -> None:
    job = store.submit(a_job(callback_urls=(ONE,)))

    store.jobs.drop_callback(job.tenant, job.job_id, ONE)

    assert store.row(job).callback_urls == ()
    assert isinstance(store.jobs.add_callback(store.row(job), TWO), Applied)


def test_dropping_from_an_unknown_job_makes_none(store: Store) -> None:
    store.jobs.drop_callback("acme", "job_unknown", ONE)

    assert store.jobs.get("acme", "job_unknown") is None
