"""The way of requests with the entries in Valkey: submit, run, hit, stale, refresh, invalidate."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.errors import JobNotFoundError, VendorError
from sluiceway.domain.freshness import COOL_DOWN_FIRST_MS, Freshness
from sluiceway.domain.ids import HIT_PREFIX
from sluiceway.domain.job import JobStatus
from sluiceway.domain.request import SubmitRequest
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.get_job import get_job
from sluiceway.usecases.run_job import Acknowledge, Delivery, Worker, run_job
from sluiceway.usecases.submit_job import Accepted, Hit, Origin, Submitter, submit_job

from tests.contract.clients import meet_another, transactions
from tests.fakes.in_memory import (
    FakeFlags,
    FakeVendors,
    InMemoryBacklogs,
    InMemoryGates,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    RecordingTelemetry,
    World,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job

    from tests.contract.harness import Store

CATALOGUE = catalogues.parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { soft_ttl_s = 300, hard_ttl_s = 3600, stale_if_error_s = 60, jitter = 0.0 }
    """
)
CALLER = Caller("acme", frozenset({"submit", "read", "bypass"}), "key_1")


@dataclass
class Path:
    """The use cases on a store, a lane that a test reads, and a vendor that it scripts."""

    store: Store

    def __post_init__(self) -> None:
        world = World()
        self.vendors, self.queue = FakeVendors(), InMemoryQueue()
        self.state, self.payloads = InMemoryState(world), InMemoryPayloads(world)
        self._tokens = (f"token-{number}" for number in itertools.count(1))

    def submit(self) -> Hit | Accepted:
        return submit_job(
            SubmitRequest(model="demo-chat", input="Hello"),
            CALLER,
            Origin("request", "correlation"),
            Submitter(
                flags=FakeFlags(),
                catalogue=CATALOGUE,
                jobs=self.store.jobs,
                cache=self.store.cache,
                rates=InMemoryRates(World()),
                backlogs=InMemoryBacklogs(World()),
                state=self.state,
                payloads=self.payloads,
                queue=self.queue,
                clock=self.store.clock,
                randomness=secrets.token_bytes,
                rand=lambda: 0.5,
            ),
        )

    def run_next(self, catalogue: Catalogue = CATALOGUE) -> Job:
        """Delivers the oldest message, and gives its job as it is then."""
        lane, tenant, job_id = self.queue.sends.pop(0)
        now_ms = self.store.clock.now_ms()
        decision = run_job(
            Delivery(tenant, job_id, 1, now_ms, lane, now_ms + 110_000),
            Worker(
                catalogue=catalogue,
                jobs=self.store.jobs,
                cache=self.store.cache,
                state=self.state,
                payloads=self.payloads,
                gates=InMemoryGates(World()),
                latencies=InMemoryLatencies(World()),
                backlogs=InMemoryBacklogs(World()),
                vendors=self.vendors,
                clock=self.store.clock,
                telemetry=RecordingTelemetry(),
                rand=lambda: 0.5,
                token=lambda: next(self._tokens),
                pause=lambda _: None,
                lease_ms=100_000,
            ),
        )
        assert decision == Acknowledge()
        job = self.store.jobs.get(tenant, job_id)
        assert job is not None
        return job

    def hit(self) -> Hit:
        outcome = self.submit()
        assert isinstance(outcome, Hit)
        return outcome


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
