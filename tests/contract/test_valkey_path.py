"""The way of requests with the entries in Valkey: submit, run, hit, stale, refresh, invalidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import JobNotFoundError, VendorError
from sluiceway.domain.freshness import COOL_DOWN_FIRST_MS, Freshness
from sluiceway.domain.ids import HIT_PREFIX
from sluiceway.domain.job import JobStatus
from sluiceway.usecases.get_job import get_job
from sluiceway.usecases.submit_job import Accepted

from tests.contract.clients import meet_another, transactions
from tests.contract.path import CALLER, CATALOGUE, Path
from tests.fakes.in_memory import FakeFlags, InMemoryBacklogs, World

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.contract.harness import Store


@pytest.fixture
def path(valkey_store: Store) -> Path:
    return Path(valkey_store)


def test_request_is_answered_from_valkey_until_it_is_stale_and_then_renewed(path: Path) -> None:
    accepted = path.submit()
    ran = path.run_next()
    path.store.clock.advance(s=30)
    fresh = path.hit()
    path.store.clock.advance(s=271)
    stale, again = path.hit(), path.hit()
    refreshed = path.run_next()
    renewed = path.hit()

    assert isinstance(accepted, Accepted)
    assert (ran.status, ran.result_source) == (JobStatus.COMPLETED, "vendor")
    assert (fresh.freshness, fresh.refresh) == (Freshness.FRESH, None)
    assert stale.freshness is again.freshness is Freshness.STALE
    assert stale.refresh is not None
    assert again.refresh is None
    assert refreshed.job_id == stale.refresh.job_id
    assert refreshed.status is JobStatus.COMPLETED
    assert renewed.freshness is Freshness.FRESH
    assert renewed.entry.stored_at_epoch_ms > fresh.entry.stored_at_epoch_ms
    assert path.vendors.total == 2
    assert path.queue.sends == []


def test_failed_refresh_leaves_the_stale_answer_and_is_tried_again_after_a_while(
    path: Path,
) -> None:
    path.submit()
    path.run_next()
    path.store.clock.advance(s=301)
    path.hit()
    path.vendors.script = [VendorError("vendor_rejected", "no", retryable=False)]

    failed = path.run_next()
    cooling = path.hit()
    path.store.clock.advance(COOL_DOWN_FIRST_MS)
    later = path.hit()

    assert failed.status is JobStatus.FAILED
    assert cooling.freshness is Freshness.STALE
    assert cooling.refresh is None
    assert later.refresh is not None


def test_worker_that_died_before_its_finish_leaves_the_answer_to_the_next(
    path: Path, moto_client: DynamoDBClient
) -> None:
    path.submit()
    message = path.queue.sends[0]
    with transactions(moto_client, die_at_the_finish), pytest.raises(Crash):
        path.run_next()
    path.store.clock.advance(s=120)  # its lease has ended
    path.queue.sends.append(message)

    job = path.run_next()

    assert (job.status, job.result_source) == (JobStatus.COMPLETED, "cache")
    assert path.vendors.total == 1


class Crash(BaseException):
    """This worker ends here."""


def die_at_the_finish(params: dict[str, Any], **_: Any) -> None:
    """The entry is written by then, and the job's result isn't."""
    if "result_source" in repr(params):
        raise Crash


def test_hit_is_fetched_by_its_id_until_it_is_invalidated(path: Path) -> None:
    path.submit()
    key = path.run_next().cache_key

    def fetch() -> object:
        return get_job(
            HIT_PREFIX + key,
            CALLER,
            catalogue=CATALOGUE,
            flags=FakeFlags(),
            jobs=path.store.jobs,
            cache=path.store.cache,
            state=path.state,
            payloads=path.payloads,
            backlogs=InMemoryBacklogs(World()),
            clock=path.store.clock,
        ).found

    entry, found = path.store.cache.read(key), fetch()
    path.store.cache.invalidate(key, now_ms=path.store.clock.now_ms())
    outcome = path.submit()

    assert found == entry is not None
    assert isinstance(outcome, Accepted)
    with pytest.raises(JobNotFoundError):
        fetch()


def test_stale_answer_is_given_when_its_refresh_can_not_be_queued(
    path: Path, moto_client: DynamoDBClient
) -> None:
    path.submit()
    path.run_next()
    path.store.clock.advance(s=301)

    with transactions(moto_client, meet_another):
        hit = path.hit()

    assert hit.freshness is Freshness.STALE
    assert hit.refresh is None
