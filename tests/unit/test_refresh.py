"""Refreshes: a stale entry is renewed once, behind its readers, whatever becomes of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sluiceway.adapters.sqs_queue import SQSJobQueue, message_body, read_body
from sluiceway.domain.errors import StoreBusyError, VendorError
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import Job, JobStatus
from sluiceway.usecases.run_job import Acknowledge

from tests.fakes.in_memory import NOW_MS, InMemoryJobs, InMemoryPayloads
from tests.unit.bench import ANSWER, LEASE_MS, Bench, incompressible, rejected, unavailable
from tests.unit.gateway import Gateway
from tests.unit.logs import fresh_telemetry, log_lines, output
from tests.unit.samples import CATALOGUE

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.ports import VendorAnswer, VendorCall

SOFT_MS = 3_600_000
HARD_MS = 86_400_000
"""demo-chat's, without jitter."""
MINUTE_MS = 60_000


class House:
    """Readers and a worker on one world, with an entry for `hello` that is stale now."""

    def __init__(self, tenant: str = "acme", model: str = "demo-chat") -> None:
        self.gateway = Gateway()
        self.world, self.clock = self.gateway.world, self.gateway.clock
        self.bench = Bench(world=self.world, clock=self.clock, rand=0.0)
        self.model = model
        first = self.gateway.accept(tenant, model=model)
        self.bench.run(first)
        self.key = first.cache_key
        self.gateway.queue.sends.clear()
        self.bench.vendors.calls.clear()
        self.clock.set(NOW_MS + SOFT_MS)

    @property
    def entry(self) -> CacheEntry:
        return self.world.entries[self.key]

    def read(self, tenant: str = "acme", **members: Any) -> Job | None:
        """A reader is served the stale entry; gives the refresh that it queued."""
        hit = self.gateway.hit(tenant, model=self.model, **members)
        assert hit.freshness is Freshness.STALE
        return hit.refresh

    def refresh(self, tenant: str = "acme", **members: Any) -> Job:
        queued = self.read(tenant, **members)
        assert queued is not None
        return queued

    def stored(self, job: Job) -> Job:
        return self.world.jobs[job.tenant, job.job_id]


@pytest.fixture
def house() -> House:
    return House()


# ------------------------------------------------------------------ what is queued


def test_refresh_is_nobodys_job(house: House) -> None:
    job = house.refresh(metadata={"order": "7"}, callback_url="https://example.com/hook")

    assert job == house.stored(job)
    assert (job.tenant, job.job_key) == (f"refresh#{house.key}", f"refresh:{house.key}")
    assert (job.cache_key, job.lease_key, job.entry_tenant) == (house.key, house.key, "acme")
    assert (job.metadata, job.callback_urls) == ({}, ())
    assert [owner for owner, _ in house.world.jobs if owner == "acme"] == ["acme"]  # the first job
    assert house.gateway.jobs.get("acme", job.job_id) is None


def test_refresh_is_sent_before_the_reader_is_answered(house: House) -> None:
    job = house.refresh()

    assert house.gateway.queue.sends == [("batch", job.tenant, job.job_id)]
    assert house.world.claims[job.job_key].job_id == job.job_id


def test_refresh_whose_send_failed_is_left_to_the_sweeper(house: House) -> None:
    house.gateway.queue.broken = True

    job = house.refresh()

    assert house.stored(job).due_at_epoch_ms == NOW_MS + SOFT_MS + 120_000


def test_refresh_has_ten_minutes(house: House) -> None:
    job = house.refresh(deadline_s=7 * 86_400)

    assert (job.deadline_s, job.deadline_epoch_ms) == (600, NOW_MS + SOFT_MS + 600_000)
    assert house.entry.refresh_until_epoch_ms == job.deadline_epoch_ms


def test_refresh_is_in_no_cap_counter_or_budget() -> None:
    house = House("thrifty")
    house.gateway.catalogue = CATALOGUE.model_copy(
        update={
            "tenants": {
                "thrifty": CATALOGUE.tenant("thrifty").model_copy(update={"in_flight": 1}),
            }
        }
    )
    house.gateway.accept("thrifty", input="fills the cap", cache={"mode": "bypass"})
    counted = (+house.world.in_flight, +house.world.bypasses)

    job = house.refresh("thrifty")
    assert (+house.world.in_flight, +house.world.bypasses) == counted

    house.bench.run(job)
    assert (+house.world.in_flight, +house.world.bypasses) == counted


def test_refresh_message_passes_through_the_queue(house: House) -> None:
    job = house.refresh()
    sent: list[dict[str, Any]] = []

    class Client:
        def send_message(self, **message: Any) -> None:
            sent.append(message)

    assert SQSJobQueue(Client(), {"batch": "url"}).send(job)  # type: ignore[arg-type]

    (message,) = sent
    assert message["MessageGroupId"] == "refresh:demo-chat"
    assert message["MessageBody"] == message_body(job.tenant, job.job_id)
    assert read_body(message["MessageBody"]) == (job.tenant, job.job_id)


def test_refresh_is_told_as_that_of_the_tenant_refresh(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh_telemetry(level="INFO").event("refresh_queued", house.refresh())

    (line,) = log_lines(output(capsys))
    assert line["tenant"] == "refresh"


def test_big_input_of_a_refresh_names_no_tenant() -> None:
    text = incompressible(100_000)
    house = House()
    first = house.gateway.accept(input=text)
    house.bench.run(first)
    house.clock.advance(ms=SOFT_MS)

    job = house.refresh(input=text)

    assert job.input.ref == f"inputs/refresh/{job.job_id}"


# ------------------------------------------------------------------ how many


def test_any_number_of_readers_queue_one_refresh(house: House) -> None:
    barrier = threading.Barrier(20)

    def read(_: int) -> Job | None:
        barrier.wait()
        return house.read()

    with ThreadPoolExecutor(20) as pool:
        queued = list(pool.map(read, range(20)))

    assert sum(job is not None for job in queued) == 1
    assert len(house.gateway.queue.sends) == 1


def test_later_readers_of_a_stale_entry_write_nothing(house: House) -> None:
    house.refresh()
    before = dict(house.world.jobs), dict(house.world.claims), dict(house.world.entries)

    assert [house.read() for _ in range(50)] == [None] * 50

    assert (house.world.jobs, house.world.claims, house.world.entries) == before
    assert len(house.gateway.queue.sends) == 1


def test_later_readers_of_a_stale_entry_do_not_even_try(house: House) -> None:
    class Watched(InMemoryJobs):
        def queue_refresh(self, *_: object) -> NoReturn:
            raise AssertionError("the entry says that a refresh is under way")

    house.refresh()
    house.gateway.jobs = Watched(house.world, clock=house.clock)

    assert house.read() is None


@pytest.mark.parametrize(("after_ms", "queued"), [(-1, False), (0, True)])
def test_refresh_that_is_lost_holds_the_next_one_up_until_its_deadline(
    house: House, after_ms: int, *, queued: bool
) -> None:
    job = house.refresh()
    del house.world.claims[job.job_key]
    house.clock.set(job.deadline_epoch_ms + after_ms)

    assert (house.read() is not None) is queued


def test_refresh_that_is_still_open_is_the_only_one_though_its_time_is_over(house: House) -> None:
    job = house.refresh()
    house.clock.set(job.deadline_epoch_ms)

    assert house.read() is None
    house.bench.run(job)
    house.clock.advance(ms=MINUTE_MS)
    assert house.read() is not None


def test_each_stale_window_has_one_refresh(house: House) -> None:
    for _ in range(3):
        job = house.refresh()
        assert house.read() is None
        house.bench.run(job)
        assert house.gateway.hit().freshness is Freshness.FRESH
        house.clock.advance(ms=SOFT_MS)

    assert house.bench.vendors.total == 3


def test_readers_of_other_tenants_share_the_refresh_of_a_shared_entry() -> None:
    house = House(model="demo-shared")

    job = house.refresh("globex")
    assert house.read("acme") is None
    house.bench.run(job)

    assert (house.entry.tenant, house.entry.scope) == ("acme", "shared")
    assert "globex" not in repr(house.entry)


@pytest.mark.parametrize("cache", [{"mode": "only"}, {"mode": "only", "max_age_s": 7200}])
def test_reader_with_mode_only_queues_no_refresh(house: House, cache: dict[str, Any]) -> None:
    assert house.read(cache=cache) is None
    assert house.gateway.queue.sends == []
    assert house.entry.refresh_until_epoch_ms is None


@pytest.mark.parametrize(("after_ms", "queued"), [(-1, False), (0, True)])
def test_refresh_is_queued_from_the_soft_expiry_on(
    house: House, after_ms: int, *, queued: bool
) -> None:
    house.clock.set(NOW_MS + SOFT_MS + after_ms)

    assert (house.gateway.hit().refresh is not None) is queued


def test_reader_after_the_hard_expiry_gets_a_job_of_its_own(house: House) -> None:
    house.refresh()
    house.clock.set(NOW_MS + HARD_MS)

    assert house.gateway.accept().tenant == "acme"


def test_degraded_reader_past_the_hard_expiry_queues_nothing(house: House) -> None:
    house.world.degraded_since_epoch_ms = NOW_MS
    house.clock.set(NOW_MS + HARD_MS)

    hit = house.gateway.hit()

    assert (hit.freshness, hit.refresh) == (Freshness.EXPIRED, None)


def test_reader_who_wants_it_younger_gets_a_job_and_queues_no_refresh(house: House) -> None:
    job = house.gateway.accept(cache={"max_age_s": 60})

    assert not job.refresh
    assert house.entry.refresh_until_epoch_ms is None


# ------------------------------------------------------------------ what it renews


def test_refresh_stores_what_others_may_have_whoever_reads(house: House) -> None:
    # The reader's own wishes are about its own result, and it has that already.
    job = house.refresh(cache={"no_store": True, "ttl_s": 1, "max_age_s": 7200})

    house.bench.run(job)

    assert house.bench.vendors.total == 1
    assert house.entry.stored_at_epoch_ms == NOW_MS + SOFT_MS
    assert house.entry.soft_expires_at_epoch_ms == NOW_MS + 2 * SOFT_MS


def test_refresh_that_succeeds_leaves_a_fresh_entry_and_no_claim(house: House) -> None:
    job = house.refresh()

    assert house.bench.run(job) == Acknowledge()

    assert house.stored(job).status is JobStatus.COMPLETED
    assert house.entry.refresh_until_epoch_ms is None
    assert job.job_key not in house.world.claims
    assert house.gateway.hit().freshness is Freshness.FRESH


def test_refresh_calls_nobody_when_the_entry_was_renewed_after_its_creation(house: House) -> None:
    # A: wants it younger; asks ──────────────────────────> stores
    # B:                          reads the stale entry, queues R
    # R:                                                           finds what A has stored
    younger = house.gateway.accept(cache={"max_age_s": 60})
    queued: list[Job] = []

    def read_meanwhile(_: VendorCall) -> VendorAnswer:
        house.clock.advance(s=1)
        queued.append(house.refresh())
        house.clock.advance(s=1)
        return ANSWER

    house.bench.vendors.script = [read_meanwhile]
    house.bench.run(younger)

    assert house.bench.run(queued[0]) == Acknowledge()

    assert house.bench.vendors.total == 1
    assert house.stored(queued[0]).result_source == "cache"


@pytest.mark.parametrize(("after_ms", "taken"), [(0, False), (1, True)])
def test_refresh_takes_what_was_stored_after_its_creation(
    house: House, after_ms: int, *, taken: bool
) -> None:
    job = house.refresh()
    house.bench.put_entry(
        cache_key=house.key,
        stored_at_epoch_ms=job.created_at_epoch_ms + after_ms,
        soft_expires_at_epoch_ms=job.created_at_epoch_ms + SOFT_MS,
    )
    house.clock.advance(s=1)

    house.bench.run(job)

    assert (house.stored(job).result_source == "cache") is taken


def test_early_refresh_is_not_answered_by_the_fresh_entry_that_it_renews() -> None:
    house = House(model="demo-early")
    house.gateway.rand = 0.9
    house.clock.set(NOW_MS + SOFT_MS - 100)
    hit = house.gateway.hit(model="demo-early")
    assert hit.refresh is not None

    house.bench.run(hit.refresh)

    assert house.bench.vendors.total == 1
    assert house.entry.stored_at_epoch_ms == NOW_MS + SOFT_MS - 100


@pytest.mark.parametrize(
    "answer",
    [ANSWER._replace(finish_reason="length"), ANSWER._replace(text="")],
    ids=["truncated", "empty"],
)
def test_refresh_whose_answer_is_not_whole_keeps_the_old_one(
    house: House, answer: VendorAnswer
) -> None:
    old = house.entry.result
    job = house.refresh()
    house.bench.vendors.script = [answer]

    assert house.bench.run(job) == Acknowledge()

    assert house.entry.result == old


CUT_OFF = ANSWER._replace(finish_reason="length")


def test_entry_cools_down_twice_as_long_each_time_that_a_refresh_renewed_nothing(
    house: House,
) -> None:
    house.bench.vendors.default = CUT_OFF
    waits = []
    for _ in range(3):
        job = house.refresh()
        house.bench.run(job)
        assert house.stored(job).status is JobStatus.COMPLETED
        assert house.read() is None
        after_ms = house.entry.refresh_after_epoch_ms
        assert after_ms is not None
        waits.append((after_ms - house.clock.now_ms()) // MINUTE_MS)
        house.clock.set(after_ms)

    assert waits == [1, 2, 4]
    assert (house.entry.refresh_error, house.entry.refresh_failures) == ("not_cacheable", 3)
    assert house.bench.vendors.total == 3


def test_refresh_that_got_another_versions_answer_completes_and_cools_its_entry_down(
    house: House,
) -> None:
    before = house.entry.result
    job = house.refresh()
    house.world.jobs[job.tenant, job.job_id] = replace(job, model_version="0")

    assert house.bench.run(job) == Acknowledge()

    assert house.stored(job).status is JobStatus.COMPLETED
    assert house.entry.result == before
    assert house.entry.refresh_error == "not_cacheable"


def test_refresh_that_renewed_nothing_leaves_alone_what_somebody_renewed_meanwhile(
    house: House,
) -> None:
    job = house.refresh()
    renewed: list[CacheEntry] = []

    def renew(_: VendorCall) -> VendorAnswer:
        now_ms = house.clock.advance(s=1)
        renewed.append(house.bench.put_entry(cache_key=house.key, stored_at_epoch_ms=now_ms))
        return CUT_OFF

    house.bench.vendors.script = [renew]

    house.bench.run(job)

    assert house.stored(job).status is JobStatus.COMPLETED
    assert [house.entry] == renewed


# ------------------------------------------------------------------ when it fails


def fail(house: House) -> Job:
    """A reader queues a refresh, and the vendor refuses it."""
    job = house.refresh()
    house.bench.vendors.script = [rejected()]
    house.bench.run(job)
    assert house.stored(job).status is JobStatus.FAILED
    return job


def test_refresh_that_fails_keeps_the_stale_value_and_says_why(house: House) -> None:
    before = house.entry

    fail(house)

    assert house.read() is None
    assert house.entry == replace(
        before,
        refresh_job_id=house.entry.refresh_job_id,
        refresh_after_epoch_ms=NOW_MS + SOFT_MS + MINUTE_MS,
        refresh_failures=1,
        refresh_error="vendor_rejected",
    )


@pytest.mark.parametrize(("after_ms", "queued"), [(-1, False), (0, True)])
def test_entry_cools_down_after_a_refresh_that_failed(
    house: House, after_ms: int, *, queued: bool
) -> None:
    fail(house)
    house.clock.advance(ms=MINUTE_MS + after_ms)

    assert (house.read() is not None) is queued


def test_cool_down_doubles_while_refreshes_fail(house: House) -> None:
    waits = []
    for _ in range(6):
        fail(house)
        after_ms = house.entry.refresh_after_epoch_ms
        assert after_ms is not None
        waits.append((after_ms - house.clock.now_ms()) // MINUTE_MS)
        house.clock.set(after_ms)

    assert waits == [1, 2, 4, 8, 15, 15]


def test_failing_vendor_is_asked_once_per_cool_down_however_many_read(house: House) -> None:
    house.bench.vendors.default = rejected()
    for _ in range(100):
        job = house.read()
        if job is not None:
            house.bench.run(job)
        house.clock.advance(ms=100)

    assert house.bench.vendors.total == 1


def test_success_clears_the_cool_down(house: House) -> None:
    fail(house)
    house.clock.advance(ms=MINUTE_MS)
    house.bench.run(house.refresh())
    cleared = house.entry.refresh_failures, house.entry.refresh_after_epoch_ms
    house.clock.advance(ms=SOFT_MS)

    fail(house)

    assert cleared == (0, None)
    assert house.entry.refresh_failures == 1


def test_readers_own_success_after_the_hard_expiry_clears_the_cool_down(house: House) -> None:
    fail(house)
    house.clock.set(NOW_MS + HARD_MS)
    house.bench.run(house.gateway.accept())
    house.clock.advance(ms=SOFT_MS)

    assert house.read() is not None


def test_failure_of_a_refresh_leaves_an_entry_alone_that_was_renewed_meanwhile(
    house: House,
) -> None:
    job = house.refresh()
    house.bench.run(house.gateway.accept(cache={"mode": "refresh"}))
    renewed = house.entry
    house.clock.set(job.deadline_epoch_ms)

    assert house.bench.run(job) == Acknowledge()

    assert house.stored(job).status is JobStatus.FAILED
    assert house.entry == renewed


@pytest.mark.parametrize("receives", [1, 6, 7, 9, 10])
def test_refresh_that_fails_is_acknowledged_and_never_dead_lettered(
    house: House, receives: int
) -> None:
    job = house.refresh()
    house.bench.vendors.script = [rejected()]

    decision = house.bench.run(job, receives=receives)

    failed = house.stored(job)
    assert decision == Acknowledge()
    assert failed.status is JobStatus.FAILED
    assert (failed.due_at_epoch_ms, failed.due_shard) == (None, None)
    assert "job_dead_lettered" not in house.bench.telemetry.names


@pytest.mark.parametrize("receives", [1, 10])
@pytest.mark.parametrize(("after_ms", "failed"), [(-1, False), (0, True)])
def test_refresh_ends_at_its_deadline_with_a_cool_down(
    house: House, receives: int, after_ms: int, *, failed: bool
) -> None:
    job = house.refresh()
    house.clock.set(job.deadline_epoch_ms + after_ms)

    assert house.bench.run(job, receives=receives) == Acknowledge()

    assert (house.stored(job).status is JobStatus.FAILED) is failed
    assert (house.entry.refresh_error == "deadline_exceeded") is failed
    assert house.bench.vendors.total == int(not failed)


@pytest.mark.parametrize("receives", [1, 10])
@pytest.mark.parametrize("sent_after_ms", [0, 3_600_000])
def test_leftover_message_of_a_failed_refresh_is_acknowledged_and_redrives_nothing(
    house: House, receives: int, sent_after_ms: int
) -> None:
    job = fail(house)
    before = house.stored(job)

    decision = house.bench.deliver(
        tenant=job.tenant,
        job_id=job.job_id,
        receives=receives,
        enqueued_at_ms=house.clock.now_ms() + sent_after_ms,
    )

    assert decision == Acknowledge()
    assert house.stored(job) == before


def test_refresh_that_was_failed_behind_its_workers_back_is_acknowledged(house: House) -> None:
    # The worker stalls past its lease and the deadline, and the sweeper or a copy ends the job.
    job = house.refresh()

    def stall(_: VendorCall) -> VendorAnswer:
        house.clock.set(job.deadline_epoch_ms + LEASE_MS)
        assert house.bench.run(job, receives=2) == Acknowledge()
        return ANSWER

    house.bench.vendors.script = [stall]

    assert house.bench.run(job, receives=10) == Acknowledge()
    assert house.stored(job).status is JobStatus.FAILED


def test_refresh_that_may_be_retried_is_before_it_fails(house: House) -> None:
    job = house.refresh()
    house.bench.vendors.script = [unavailable()]

    house.bench.run(job)

    assert house.stored(job).status is JobStatus.RETRYING
    assert house.entry.refresh_until_epoch_ms == job.deadline_epoch_ms
    assert house.read() is None


# ------------------------------------------------------------------ when stores are busy


@pytest.mark.parametrize("answer", [ANSWER, rejected()], ids=["success", "failure"])
def test_refresh_that_ended_unsettled_is_settled_later(
    house: House, answer: VendorAnswer | VendorError
) -> None:
    job = house.refresh()
    house.bench.vendors.default = answer
    house.world.counters_busy = True
    assert house.bench.run(job) == Acknowledge()
    assert house.stored(job).unsettled

    house.world.counters_busy = False
    house.gateway.jobs.settle(house.stored(job))

    settled = house.stored(job)
    assert (settled.unsettled, settled.due_at_epoch_ms) == (False, None)
    assert job.job_key not in house.world.claims
    assert +house.world.in_flight == {}
    failures = int(settled.status is JobStatus.FAILED)
    assert house.entry.refresh_failures == failures


def test_reader_is_answered_although_the_refresh_can_not_be_queued(house: House) -> None:
    class Busy(InMemoryJobs):
        def queue_refresh(self, *_: object) -> NoReturn:
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    house.gateway.jobs = Busy(house.world, clock=house.clock)

    assert house.read() is None
    assert house.gateway.queue.sends == []


def test_reader_is_answered_although_the_refresh_can_not_keep_its_input() -> None:
    class Busy(InMemoryPayloads):
        def put(self, name: str, data: bytes) -> NoReturn:
            raise StoreBusyError(f"{name} of {len(data)} bytes", retry_after_s=1)

    text = incompressible(100_000)
    house = House()
    house.bench.run(house.gateway.accept(input=text))
    house.clock.advance(ms=SOFT_MS)
    house.gateway.payloads = Busy(house.world)

    assert house.read(input=text) is None


# ------------------------------------------------------------------ invalidation in between


def test_refresh_of_an_entry_that_was_invalidated_meanwhile_does_not_bring_it_back(
    house: House,
) -> None:
    job = house.refresh()
    house.clock.advance(s=1)
    house.gateway.cache.invalidate(house.key, now_ms=house.clock.now_ms())

    assert house.bench.run(job) == Acknowledge()

    assert house.key not in house.world.entries
    assert job.job_key not in house.world.claims
