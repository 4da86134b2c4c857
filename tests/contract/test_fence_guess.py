"""The fence that a submit guesses from the entry: one transaction starts what renews it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.job import JobStatus
from sluiceway.ports import LeaseHeld, Started
from sluiceway.usecases.submit_job import Accepted

from tests.contract.clients import FaultyClient
from tests.contract.harness import LEASE_MS, start, store_on
from tests.contract.test_valkey_path import Path
from tests.fakes.in_memory import LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock


def refresh(path: Path) -> Job:
    """A reader of the stale entry queues one."""
    path.store.clock.advance(s=301)
    queued = path.hit().refresh
    assert queued is not None
    return queued


def expired(path: Path) -> Job:
    """A reader gets a job of its own."""
    path.store.clock.advance(s=3_600)
    outcome = path.submit()
    assert isinstance(outcome, Accepted)
    return outcome.job


WAYS = pytest.mark.parametrize("renew", [refresh, expired])


def filled(store: Store, *, times: int = 2) -> Path:
    """An entry that was renewed already, and so isn't of the first fence."""
    path = Path(store)
    path.submit()
    path.run_next()
    for _ in range(times - 1):
        refresh(path)
        assert path.run_next().status is JobStatus.COMPLETED
    return path


@WAYS
@pytest.mark.parametrize("times", [1, 3])
def test_start_of_what_renews_an_entry_is_one_transaction(
    dynamodb: Any,
    tables: Tables,
    clock: FakeClock,
    renew: Callable[[Path], Job],
    times: int,
) -> None:
    client: Any = FaultyClient(dynamodb)
    store = store_on(client, tables, clock)
    job = renew(filled(store, times=times))
    client.writes = 0

    started, lease = store.start(job)

    assert client.writes == 1
    assert started.fence == lease.fence == times + 1


@WAYS
@pytest.mark.parametrize(
    ("row", "fence"),
    [(None, 3), (LeaseRow("job_other", None, 9, 0), 10), (LeaseRow("job_of_old", None, 1, 0), 3)],
    ids=["collected", "another holder since", "began again"],
)
def test_start_under_a_wrong_guess_is_under_a_fence_that_nobody_had(
    store: Store, renew: Callable[[Path], Job], row: LeaseRow | None, fence: int
) -> None:
    job = renew(filled(store))
    if row is None:
        store.rows.drop_lease(job.lease_key)
    else:
        store.rows.put_lease(job.lease_key, row)

    outcome = start(store, job)

    assert isinstance(outcome, Started)
    assert outcome.job.fence == outcome.lease.fence == fence
    assert store.row(job) == outcome.job
    kept = store.rows.lease(job.lease_key)
    assert kept is not None
    assert (kept.job_id, kept.token, kept.fence) == (job.job_id, "token-1", fence)


@WAYS
def test_start_under_a_guess_waits_for_who_holds_the_lease(
    store: Store, renew: Callable[[Path], Job]
) -> None:
    job = renew(filled(store))
    ends_ms = store.clock.now_ms() + LEASE_MS
    store.rows.put_lease(job.lease_key, LeaseRow("job_other", "token-9", job.fence, ends_ms))

    assert start(store, job) == LeaseHeld(by_this_job=False)
    assert store.row(job) == job
