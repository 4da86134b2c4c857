"""Fetch: a job or a hit, for whom it belongs to, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import JobNotFoundError, ResultExpiredError
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.get_job import Fetched, get_job

from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    InMemoryCache,
    InMemoryJobs,
    InMemoryPayloads,
    InMemoryState,
    World,
)
from tests.unit.samples import CACHE_KEY, CATALOGUE, JOB_ID, a_job, an_entry, packed

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry

HOUR_MS = 3_600_000
DOCUMENT = {"text": "an answer", "finish_reason": "stop"}


class ReadsAsDynamoDBDoes(InMemoryJobs):
    """DynamoDB refuses sort keys over 1,024 bytes, and empty ones, with an error."""

    def get(self, tenant: str, job_id: str) -> Job | None:
        if not 1 <= len(job_id.encode()) <= 1024:
            raise RuntimeError("ValidationException: the size of the sort key")
        return super().get(tenant, job_id)


class CachesAsDynamoDBDoes(InMemoryCache):
    """DynamoDB refuses partition keys over 2,048 bytes, and empty ones, with an error."""

    def read(self, cache_key: str) -> CacheEntry | None:
        if not 1 <= len(cache_key.encode()) <= 2048:
            raise RuntimeError("ValidationException: the size of the partition key")
        return super().read(cache_key)


@dataclass
class Gateway:
    """The use case with its ports."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)

    def get(self, job_id: str = JOB_ID, tenant: str = "acme") -> Fetched:
        return get_job(
            job_id,
            Caller(tenant, frozenset({"read"}), "key_1"),
            catalogue=CATALOGUE,
            jobs=ReadsAsDynamoDBDoes(self.world, clock=self.clock),
            cache=CachesAsDynamoDBDoes(self.world),
            state=InMemoryState(self.world),
            payloads=InMemoryPayloads(self.world),
            clock=self.clock,
        )

    def put(self, job: Job) -> Job:
        self.world.jobs[job.tenant, job.job_id] = job
        return job

    def put_entry(self, **members: Any) -> CacheEntry:
        entry = an_entry(**members)
        self.world.entries[entry.cache_key] = entry
        return entry


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def completed(result: Payload | None = None) -> Job:
    return transitions.completed(
        a_job(), now_ms=NOW_MS, result=result or packed(DOCUMENT), source="vendor"
    )


# ------------------------------------------------------------------ jobs


@pytest.mark.parametrize("status", JobStatus)
def test_job_is_found_in_every_state(gateway: Gateway, status: JobStatus) -> None:
    job = gateway.put(a_job(status=status))

    assert gateway.get() == Fetched(job, None)


def test_completed_job_comes_with_its_result(gateway: Gateway) -> None:
    job = gateway.put(completed())

    fetched = gateway.get()

    assert fetched.found == job
    assert fetched.result == b'{"text": "an answer", "finish_reason": "stop"}'


def test_completed_job_comes_with_a_big_result(gateway: Gateway) -> None:
    document = packed(DOCUMENT).inline
    assert document is not None
    gateway.world.payloads["results/acme/x/1"] = document
    gateway.put(completed(Payload(ref="results/acme/x/1")))

    assert gateway.get().result == b'{"text": "an answer", "finish_reason": "stop"}'


def test_completed_job_is_there_until_its_results_retention_ends(gateway: Gateway) -> None:
    gateway.put(completed())
    gateway.clock.set(NOW_MS + 72 * HOUR_MS)

    assert gateway.get().result is not None


def test_completed_job_is_gone_after_its_results_retention(gateway: Gateway) -> None:
    gateway.put(completed())
    gateway.clock.set(NOW_MS + 72 * HOUR_MS + 1)

    with pytest.raises(ResultExpiredError):
        gateway.get()


def test_completed_job_whose_object_was_collected_is_gone(gateway: Gateway) -> None:
    gateway.put(completed(Payload(ref="results/acme/gone/1")))

    with pytest.raises(ResultExpiredError):
        gateway.get()


def test_failed_job_stays_readable(gateway: Gateway) -> None:
    job = gateway.put(a_job(status=JobStatus.FAILED, failed_at_epoch_ms=NOW_MS))
    gateway.clock.set(NOW_MS + 100 * HOUR_MS)

    assert gateway.get() == Fetched(job, None)


# ------------------------------------------------------------------ whose they are


def refusal(gateway: Gateway, job_id: str, tenant: str) -> tuple[type[Exception], str]:
    with pytest.raises(JobNotFoundError) as caught:
        gateway.get(job_id, tenant)
    return type(caught.value), str(caught.value)


def test_another_tenants_job_is_exactly_like_an_unknown_one(gateway: Gateway) -> None:
    gateway.put(a_job())

    anothers = refusal(gateway, JOB_ID, "globex")
    unknown = refusal(gateway, "job_01KDVT7V00000000000000000Z", "globex")

    assert anothers == unknown


def test_another_tenants_expired_result_is_exactly_like_an_unknown_one(gateway: Gateway) -> None:
    gateway.put(completed())
    gateway.clock.set(NOW_MS + 1000 * HOUR_MS)

    anothers = refusal(gateway, JOB_ID, "globex")
    unknown = refusal(gateway, "job_01KDVT7V00000000000000000Z", "globex")

    assert anothers == unknown


def test_another_tenants_hit_is_exactly_like_an_unknown_one(gateway: Gateway) -> None:
    gateway.put_entry()

    anothers = refusal(gateway, f"hit_{CACHE_KEY}", "globex")
    unknown = refusal(gateway, f"hit_c1_{'x' * 43}", "globex")
    unknown_job = refusal(gateway, JOB_ID, "globex")

    assert anothers == unknown == unknown_job


@pytest.mark.parametrize(
    "job_id",
    ["", "x", "hit_", "job_", "hit_x", "hit_" + "x" * 3000, "job_" + "x" * 1100, "é" * 600, "#"],
    ids=["empty", "x", "hit_", "job_", "hit_x", "long hit", "long job", "long in bytes", "#"],
)
def test_id_that_was_never_ours_is_not_found(gateway: Gateway, job_id: str) -> None:
    with pytest.raises(JobNotFoundError):
        gateway.get(job_id)


# ------------------------------------------------------------------ hits


def test_hit_is_fetched_by_the_tenant_that_has_it(gateway: Gateway) -> None:
    entry = gateway.put_entry()

    fetched = gateway.get(f"hit_{CACHE_KEY}")

    assert fetched.found == entry
    assert fetched.result == b'{"text": "a cached answer", "finish_reason": "stop"}'


def test_shared_hit_is_fetched_by_every_tenant_that_shares(gateway: Gateway) -> None:
    entry = gateway.put_entry(scope="shared")

    assert gateway.get(f"hit_{CACHE_KEY}", "globex").found == entry


def test_shared_hit_is_hidden_from_a_tenant_that_does_not_share(gateway: Gateway) -> None:
    gateway.put_entry(scope="shared")

    with pytest.raises(JobNotFoundError):
        gateway.get(f"hit_{CACHE_KEY}", "private")


def test_hit_past_its_expiry_is_not_found_though_it_is_still_there(gateway: Gateway) -> None:
    gateway.put_entry(soft_expires_at_epoch_ms=NOW_MS - 1, hard_expires_at_epoch_ms=NOW_MS)

    with pytest.raises(JobNotFoundError):
        gateway.get(f"hit_{CACHE_KEY}")


def test_hit_whose_object_was_collected_is_gone(gateway: Gateway) -> None:
    gateway.put_entry(result=Payload(ref="results/acme/gone/1"))

    with pytest.raises(ResultExpiredError):
        gateway.get(f"hit_{CACHE_KEY}")
