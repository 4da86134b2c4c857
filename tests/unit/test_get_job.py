"""Fetch: a job or a hit, for whom it belongs to, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import JobNotFoundError, ResultExpiredError, StoreBusyError
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.get_job import Fetched, get_job

from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryJobs,
    InMemoryPayloads,
    InMemoryState,
    World,
)
from tests.unit.gateway import Gateway as Submitting
from tests.unit.samples import CACHE_KEY, CATALOGUE, JOB_ID, a_job, an_entry, packed

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.ports import PayloadStore, ServiceState

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


class CountedState(InMemoryState):
    """Counts what DynamoDB would be asked."""

    reads = 0

    def read(self) -> ServiceState:
        self.reads += 1
        return super().read()


@dataclass
class Gateway:
    """The use case with its ports."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.cache = CachesAsDynamoDBDoes(self.world)
        self.state = CountedState(self.world)
        self.flags = FakeFlags()
        self.payloads: PayloadStore = InMemoryPayloads(self.world)

    def get(self, job_id: str = JOB_ID, tenant: str = "acme") -> Fetched:
        return get_job(
            job_id,
            Caller(tenant, frozenset({"read"}), "key_1"),
            catalogue=CATALOGUE,
            flags=self.flags,
            jobs=ReadsAsDynamoDBDoes(self.world, clock=self.clock),
            cache=self.cache,
            state=self.state,
            payloads=self.payloads,
            backlogs=InMemoryBacklogs(self.world),
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

    assert gateway.get() == Fetched(job, None, gateway.clock.now_ms())


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

    assert gateway.get() == Fetched(job, None, gateway.clock.now_ms())


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
    entry = gateway.put_entry(scope="shared", model="demo-shared")

    assert gateway.get(f"hit_{CACHE_KEY}", "globex").found == entry


@pytest.mark.parametrize("scope", ["shared", "tenant"])
@pytest.mark.parametrize(
    ("model", "readers"),
    [
        ("demo-shared", {"acme", "globex"}),
        ("demo-chat", {"acme"}),
        ("demo-uncached", set()),
        ("gone", {"acme"}),
    ],
)
def test_hit_is_read_by_whom_the_catalogue_of_now_lets_read_it(
    gateway: Gateway, model: str, readers: set[str], scope: str
) -> None:
    # Whatever it said when the entry was written.
    entry = gateway.put_entry(scope=scope, model=model)
    allowed = readers if scope == "shared" else readers & {"acme"}

    for tenant in ("acme", "globex", "private"):
        if tenant in allowed:
            assert gateway.get(f"hit_{CACHE_KEY}", tenant).found == entry
        else:
            refusal(gateway, f"hit_{CACHE_KEY}", tenant)


def test_tenant_that_shares_no_more_reads_what_it_paid_for(gateway: Gateway) -> None:
    entry = gateway.put_entry(scope="shared", model="demo-shared", tenant="private")

    assert gateway.get(f"hit_{CACHE_KEY}", "private").found == entry


def test_shared_hit_is_hidden_from_a_tenant_that_does_not_share(gateway: Gateway) -> None:
    gateway.put_entry(scope="shared", model="demo-shared")

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


@pytest.mark.parametrize(
    "result", [Payload(inline=b"damaged"), Payload(ref="results/x")], ids=["row", "object"]
)
def test_result_that_is_damaged_is_gone(gateway: Gateway, result: Payload) -> None:
    gateway.world.payloads["results/x"] = b""
    gateway.put_entry(result=result)
    gateway.put(completed(result))

    for job_id in (f"hit_{CACHE_KEY}", JOB_ID):
        with pytest.raises(ResultExpiredError):
            gateway.get(job_id)


# ------------------------------------------------------------------ the moment


class SlowPayloads(InMemoryPayloads):
    """A second passes with each read."""

    def __init__(self, world: World, clock: FakeClock) -> None:
        super().__init__(world)
        self._clock = clock

    def get(self, name: str) -> bytes:
        self._clock.advance(s=1)
        return super().get(name)


def test_what_is_fetched_comes_with_the_moment_at_which_it_was_decided(gateway: Gateway) -> None:
    document = packed(DOCUMENT).inline
    assert document is not None
    gateway.world.payloads["results/x"] = document
    gateway.payloads = SlowPayloads(gateway.world, gateway.clock)
    gateway.put(completed(Payload(ref="results/x")))
    gateway.put_entry(result=Payload(ref="results/x"), soft_expires_at_epoch_ms=NOW_MS + 1001)

    job, hit = gateway.get(), gateway.get(f"hit_{CACHE_KEY}")

    assert (job.at_ms, hit.at_ms) == (NOW_MS, NOW_MS + 1000)
    assert hit.freshness.value == "fresh"
    assert gateway.clock.now_ms() == NOW_MS + 2000


# ------------------------------------------------------------------ fallback

LATE_MS = 300_000
"""A job that has waited so long is late."""
OLD: dict[str, Any] = {
    "asked_at_epoch_ms": NOW_MS - 61_000,
    "stored_at_epoch_ms": NOW_MS - 60_000,
    "soft_expires_at_epoch_ms": NOW_MS - 50_000,
    "hard_expires_at_epoch_ms": NOW_MS - 40_000,
}
"""Of an entry that expired before the job came in."""


@pytest.fixture
def late(gateway: Gateway) -> Gateway:
    """In degraded mode, where a job whose entry has expired has waited just long enough."""
    gateway.put(a_job())
    gateway.put_entry(**OLD)
    gateway.world.degraded_since_epoch_ms = NOW_MS
    gateway.clock.set(NOW_MS + LATE_MS)
    return gateway


def test_late_job_comes_with_an_old_answer_in_degraded_mode(late: Gateway) -> None:
    fetched = late.get()

    assert fetched.found == a_job()
    assert fetched.result is None
    entry = late.world.entries[CACHE_KEY]
    assert fetched.fallback == (entry, b'{"text": "a cached answer", "finish_reason": "stop"}')


@pytest.mark.parametrize(("after_ms", "given"), [(-1, False), (0, True)])
def test_job_is_late_when_it_has_waited_for_so_long(
    late: Gateway, after_ms: int, *, given: bool
) -> None:
    late.clock.advance(ms=after_ms)

    assert (late.get().fallback is not None) is given


@pytest.mark.parametrize("status", JobStatus)
def test_only_open_jobs_come_with_an_old_answer(late: Gateway, status: JobStatus) -> None:
    job = late.put(a_job(status=status))

    assert (late.get().fallback is not None) is job.open


def test_late_job_comes_without_an_old_answer_in_good_times(late: Gateway) -> None:
    late.world.degraded_since_epoch_ms = None

    assert late.get() == Fetched(a_job(), None, late.clock.now_ms())
    assert late.cache.reads == 0


@pytest.mark.parametrize(
    "wish", [{"cache_mode": "refresh"}, {"cache_mode": "bypass"}, {"cache_scope": "none"}], ids=str
)
def test_job_that_wants_no_entry_comes_without_one(late: Gateway, wish: dict[str, Any]) -> None:
    late.put(a_job(**wish))

    assert late.get().fallback is None
    assert (late.cache.reads, late.state.reads) == (0, 0)


@pytest.mark.parametrize("member", ["not_older_than_epoch_ms", "asked_after_epoch_ms"])
@pytest.mark.parametrize("after_ms", [-1, 0, 1])
def test_old_answer_is_one_that_the_job_would_take(
    late: Gateway, member: str, after_ms: int
) -> None:
    asked = member == "asked_after_epoch_ms"
    moment_ms = OLD["asked_at_epoch_ms" if asked else "stored_at_epoch_ms"]
    late.put(a_job(**{member: moment_ms + after_ms}))

    assert (late.get().fallback is not None) is (after_ms < 0 if asked else after_ms <= 0)


@pytest.mark.parametrize(("left_ms", "given"), [(1, True), (0, False)])
def test_old_answer_is_given_until_it_is_gone(late: Gateway, left_ms: int, *, given: bool) -> None:
    late.put_entry(**OLD, kept_until_epoch_ms=late.clock.now_ms() + left_ms)

    assert (late.get().fallback is not None) is given


@pytest.mark.parametrize(
    ("model", "given"), [("demo-shared", True), ("demo-chat", False), ("demo-uncached", False)]
)
def test_old_answer_of_another_tenant_is_given_while_the_model_is_shared(
    late: Gateway, model: str, *, given: bool
) -> None:
    late.put(a_job(model=model, cache_scope="shared"))
    late.put_entry(**OLD, model=model, scope="shared", tenant="globex")

    assert (late.get().fallback is not None) is given


def test_tombstone_is_no_old_answer(late: Gateway) -> None:
    late.cache.invalidate(CACHE_KEY, now_ms=NOW_MS)

    assert late.get().fallback is None


@pytest.mark.parametrize("subject", ["model:demo-chat", "tenant:acme"])
@pytest.mark.parametrize("after_ms", [-61_001, -61_000, 1])
def test_answer_that_was_invalidated_is_no_fallback_of_a_job_that_waits(
    late: Gateway, subject: str, after_ms: int
) -> None:
    # Its key is the one of before, and so the entry is still found.
    late.state.invalidate(subject, now_ms=NOW_MS + after_ms)

    assert (late.get().fallback is not None) is (after_ms == -61_001)


@pytest.mark.parametrize("subject", ["model:demo-chat", "tenant:acme"])
def test_answer_that_was_invalidated_is_no_fallback_of_a_job_that_was_made_later(
    subject: str,
) -> None:
    gateway = Submitting()
    entry = gateway.store(Submitting().accept(), **OLD)
    gateway.state.invalidate(subject, now_ms=NOW_MS - 30_000)
    job = gateway.accept()
    gateway.world.degraded_since_epoch_ms = NOW_MS
    gateway.clock.advance(ms=LATE_MS)

    assert gateway.fetch(job.job_id).fallback is None
    assert entry.cache_key in gateway.world.entries


@pytest.mark.parametrize("subject", ["model:demo-heavy", "tenant:globex"])
def test_invalidation_of_something_else_leaves_the_old_answer(late: Gateway, subject: str) -> None:
    late.state.invalidate(subject, now_ms=NOW_MS + 1)

    assert late.get().fallback is not None


@pytest.mark.parametrize(
    "result", [Payload(ref="results/gone/1"), Payload(inline=b"damaged")], ids=["gone", "damaged"]
)
def test_job_is_fetched_though_its_old_answer_is_lost(late: Gateway, result: Payload) -> None:
    late.put_entry(**OLD, result=result)

    assert late.get() == Fetched(a_job(), None, late.clock.now_ms())


class Busy:
    """A store that can't be reached."""

    def __getattr__(self, _: str) -> NoReturn:
        raise StoreBusyError("The store failed.", retry_after_s=1)


@pytest.mark.parametrize("store", ["cache", "state", "payloads"])
def test_job_is_fetched_though_its_old_answer_can_not_be_had(late: Gateway, store: str) -> None:
    late.put_entry(**OLD, result=Payload(ref="results/job_1/1"))
    setattr(late, store, Busy())

    assert late.get() == Fetched(a_job(), None, late.clock.now_ms())


def test_old_answer_is_for_nobody_but_the_jobs_tenant(late: Gateway) -> None:
    with pytest.raises(JobNotFoundError):
        late.get(JOB_ID, "globex")
    assert late.cache.reads == 0


def test_another_tenants_answer_to_the_same_request_is_no_fallback() -> None:
    gateway = Submitting()
    gateway.store(gateway.accept("globex"), **OLD)
    job = gateway.accept("acme")
    gateway.world.degraded_since_epoch_ms = NOW_MS
    gateway.clock.advance(ms=LATE_MS)

    assert gateway.fetch(job.job_id).fallback is None


def test_usual_poll_reads_nothing_but_the_job(late: Gateway) -> None:
    late.clock.advance(ms=-1)

    late.get()

    assert (late.cache.reads, late.state.reads) == (0, 0)
