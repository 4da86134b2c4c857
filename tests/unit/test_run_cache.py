"""Run with the cache: what completes a job without a call, and what a result leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.payload import LAST_RESORT_BYTES, Payload
from sluiceway.usecases.run_job import FINISH_RESERVE_MS, Acknowledge, GiveBack
from sluiceway.usecases.submit_job import Accepted

from tests.fakes.in_memory import NOW_MS, InMemoryPayloads, LeaseRow, World
from tests.unit.bench import ANSWER, LEASE_MS, Bench, incompressible
from tests.unit.gateway import Gateway
from tests.unit.samples import CACHE_KEY, CATALOGUE, DAY_MS, JOB_ID, a_job

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.ports import VendorAnswer, VendorCall

HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put(a_job())
    return made


def with_job(**members: Any) -> Bench:
    made = Bench()
    made.put(a_job(**members))
    return made


# ------------------------------------------------------------------ what completes it


@pytest.mark.parametrize("held", [False, True], ids=["with the lease", "behind another's lease"])
@pytest.mark.parametrize(("left_ms", "taken"), [(1, True), (0, False), (-1, False)])
def test_entry_completes_a_job_until_its_soft_expiry(
    bench: Bench, left_ms: int, *, held: bool, taken: bool
) -> None:
    bench.put_entry(stored_at_epoch_ms=NOW_MS - 1, soft_expires_at_epoch_ms=NOW_MS + left_ms)
    if held:
        bench.hold_lease()

    bench.deliver()

    assert (bench.job.result_source == "cache") is taken
    assert bench.vendors.total == int(not (taken or held))


def test_degraded_mode_completes_no_job_with_a_stale_entry(bench: Bench) -> None:
    bench.world.degraded_since_epoch_ms = NOW_MS
    bench.put_entry(stored_at_epoch_ms=NOW_MS - 1, soft_expires_at_epoch_ms=NOW_MS)

    bench.deliver()

    assert bench.job.result_source == "vendor"


@pytest.mark.parametrize(("hard_ms", "taken"), [(1, True), (0, False)])
def test_entry_that_was_stored_while_the_job_waited_completes_it_until_its_hard_expiry(
    bench: Bench, hard_ms: int, *, taken: bool
) -> None:
    # The soft TTL is shorter than the wait for the lease.
    bench.clock.advance(s=60)
    bench.put_entry(
        stored_at_epoch_ms=NOW_MS,
        soft_expires_at_epoch_ms=NOW_MS + 2_000,
        hard_expires_at_epoch_ms=NOW_MS + 60_000 + hard_ms,
    )

    bench.deliver()

    assert (bench.job.result_source == "cache") is taken


@pytest.mark.parametrize("subject", ["model:demo-chat", "tenant:acme", "tenant:globex"])
def test_entry_that_was_invalidated_while_the_job_waited_does_not_complete_it(
    bench: Bench, subject: str
) -> None:
    entry = bench.put_entry()
    bench.world.epochs[subject] = entry.asked_at_epoch_ms

    bench.deliver()

    assert (bench.job.result_source == "cache") is (subject == "tenant:globex")


@pytest.mark.parametrize("held", [False, True], ids=["with the lease", "behind another's lease"])
@pytest.mark.parametrize(("stored_ms", "taken"), [(-1, False), (0, True)])
def test_entry_completes_a_job_only_when_it_is_young_enough(
    stored_ms: int, *, held: bool, taken: bool
) -> None:
    bench = with_job(not_older_than_epoch_ms=NOW_MS - 5_000)
    bench.put_entry(stored_at_epoch_ms=NOW_MS - 5_000 + stored_ms)
    if held:
        bench.hold_lease()

    bench.deliver()

    assert (bench.job.result_source == "cache") is taken


@pytest.mark.parametrize("held", [False, True], ids=["with the lease", "behind another's lease"])
@pytest.mark.parametrize(("asked_ms", "taken"), [(-1, False), (0, False), (1, True)])
def test_entry_completes_a_forced_refresh_only_when_it_was_asked_after(
    asked_ms: int, *, held: bool, taken: bool
) -> None:
    bench = with_job(cache_mode="refresh", asked_after_epoch_ms=NOW_MS)
    bench.put_entry(asked_at_epoch_ms=NOW_MS + asked_ms, stored_at_epoch_ms=NOW_MS + 5_000)
    if held:
        bench.hold_lease()

    bench.deliver()

    assert (bench.job.result_source == "cache") is taken


def test_job_from_the_cache_knows_how_old_its_result_is(bench: Bench) -> None:
    bench.put_entry(stored_at_epoch_ms=NOW_MS - 60_000)

    bench.deliver()

    assert bench.job.result_stored_at_epoch_ms == NOW_MS - 60_000


def test_job_from_the_vendor_has_a_result_of_no_age(bench: Bench) -> None:
    bench.deliver()

    assert bench.job.result_stored_at_epoch_ms is None


# ------------------------------------------------------------------ bypass and no_store


def test_bypass_neither_reads_nor_writes_the_cache() -> None:
    bench = with_job(cache_mode="bypass")
    entry = bench.put_entry()

    assert bench.deliver() == Acknowledge()

    assert (bench.vendors.total, bench.cache.reads) == (1, 0)
    assert bench.world.entries == {CACHE_KEY: entry}


def test_no_store_leaves_no_entry_and_takes_one() -> None:
    bench = with_job(no_store=True)

    bench.deliver()
    assert bench.world.entries == {}
    assert bench.world.payloads == {}

    bench.put(a_job(job_id="job_2", no_store=True))
    bench.put_entry()
    bench.deliver(job_id="job_2")
    assert bench.vendors.total == 1


@pytest.mark.parametrize("wish", [{"cache_mode": "bypass"}, {"no_store": True}])
def test_job_that_fills_no_entry_waits_for_nobody_and_keeps_nobody_waiting(
    wish: dict[str, Any],
) -> None:
    bench = with_job(**wish)
    theirs = bench.hold_lease()

    assert bench.deliver() == Acknowledge()

    assert bench.job.result_source == "vendor"
    assert bench.world.leases == {
        CACHE_KEY: theirs,
        f"job:{JOB_ID}": LeaseRow(JOB_ID, None, 1, 0),
    }


@pytest.mark.parametrize("wish", [{"cache_mode": "bypass"}, {"no_store": True}])
def test_copy_of_a_job_that_fills_no_entry_is_acknowledged_while_it_runs(
    wish: dict[str, Any],
) -> None:
    bench = with_job(**wish)
    copies = []

    def call(_: VendorCall) -> VendorAnswer:
        copies.append(bench.deliver(receives=2))
        return ANSWER

    bench.vendors.script = [call]

    assert bench.deliver() == Acknowledge()
    assert copies == [Acknowledge()]
    assert bench.vendors.total == 1


# ------------------------------------------------------------------ a forced refresh meanwhile


def test_forced_refresh_while_an_equal_job_runs_brings_an_answer_that_was_asked_after_it() -> None:
    # A: starts, asks ────────────────────────────────> stores what was asked before B came
    # B:                  comes in; waits for the lease             asks again, stores
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    running = gateway.accept()
    forced = []

    def correct(_: VendorCall) -> VendorAnswer:
        gateway.clock.advance(s=1)
        forced.append(gateway.accept(cache={"mode": "refresh"}))
        assert isinstance(bench.run(forced[0]), GiveBack)
        gateway.clock.advance(s=1)
        return ANSWER

    bench.vendors.script = [correct, ANSWER._replace(text="the correction")]

    assert bench.run(running) == Acknowledge()
    assert bench.run(forced[0], receives=2) == Acknowledge()

    assert bench.vendors.per_key == {running.job_id: 1, forced[0].job_id: 1}
    assert b"the correction" in gateway.hit().result
    assert gateway.hit().entry.asked_at_epoch_ms > forced[0].created_at_epoch_ms


def test_forced_refresh_that_was_joined_has_no_answer_from_before_the_second_asked() -> None:
    # A: used:              starts, asks ──────────────────> stores
    # B: forced: comes in                                    A's is too old for C: asks again
    # C: forced:                            comes in, joins B
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    running = gateway.accept()
    forced = gateway.accept(cache={"mode": "refresh"})
    gateway.clock.advance(s=1)

    def correct(_: VendorCall) -> VendorAnswer:
        gateway.clock.advance(s=1)
        joined = gateway.submit(cache={"mode": "refresh"})
        assert isinstance(joined, Accepted)
        assert joined.job.job_id == forced.job_id
        return ANSWER

    bench.vendors.script = [correct, ANSWER._replace(text="the correction")]

    bench.run(running)
    bench.run(forced)

    assert bench.vendors.per_key == {running.job_id: 1, forced.job_id: 1}
    assert b"the correction" in gateway.hit().result


def test_job_that_waited_for_a_forced_refresh_has_its_result() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    forced = gateway.accept(cache={"mode": "refresh"})
    waiting = gateway.accept()

    bench.run(forced)
    bench.run(waiting)

    assert bench.vendors.total == 1
    assert bench.world.jobs["acme", waiting.job_id].result_source == "cache"


# ------------------------------------------------------------------ what a result leaves


@pytest.mark.parametrize("rand", [0.0, 0.5, 1 - 2**-53])
def test_entry_lives_within_the_jitter_of_its_model(bench: Bench, rand: float) -> None:
    bench.rand = rand

    bench.deliver()

    entry = bench.world.entries[CACHE_KEY]
    assert entry.soft_expires_at_epoch_ms - NOW_MS == round(HOUR_MS * (1 - 0.1 * rand))
    assert entry.hard_expires_at_epoch_ms - NOW_MS == round(DAY_MS * (1 - 0.1 * rand))
    assert entry.kept_until_epoch_ms - entry.hard_expires_at_epoch_ms == DAY_MS
    assert 0 <= entry.ttl_epoch_s * 1000 - entry.kept_until_epoch_ms < 1_000


@pytest.mark.parametrize(
    ("ttl_s", "lives_s"),
    [(None, (3_600, 86_400, 172_800)), (60, (60, 60, 60)), (7_200, (3_600, 7_200, 7_200))],
)
def test_entry_lives_no_longer_than_the_request_allows(
    ttl_s: int | None, lives_s: tuple[int, int, int]
) -> None:
    bench = with_job(cache_ttl_s=ttl_s)
    bench.rand = 0.0

    bench.deliver()

    assert times_of(bench.world.entries[CACHE_KEY]) == tuple(
        NOW_MS + seconds * 1000 for seconds in lives_s
    )


def times_of(entry: CacheEntry) -> tuple[int, int, int]:
    return (
        entry.soft_expires_at_epoch_ms,
        entry.hard_expires_at_epoch_ms,
        entry.kept_until_epoch_ms,
    )


def test_entry_says_when_its_attempt_began_and_how_long_the_vendor_took(bench: Bench) -> None:
    bench.clock.advance(s=7)
    bench.vendors.script = [lambda _: (bench.clock.advance(s=3), ANSWER)[1]]

    bench.deliver()

    entry = bench.world.entries[CACHE_KEY]
    assert (entry.asked_at_epoch_ms, entry.stored_at_epoch_ms) == (NOW_MS + 7_000, NOW_MS + 10_000)
    assert entry.upstream_latency_ms == 300


@pytest.mark.parametrize(("after_ms", "stored"), [(-1, True), (0, False), (1, False)])
def test_tombstone_keeps_jobs_that_were_there_by_then_from_writing(
    bench: Bench, after_ms: int, *, stored: bool
) -> None:
    bench.cache.invalidate(CACHE_KEY, now_ms=NOW_MS + after_ms)

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.COMPLETED
    assert (CACHE_KEY in bench.world.entries) is stored


def test_key_that_was_invalidated_during_the_call_stays_empty_until_the_next_job(
    bench: Bench,
) -> None:
    def invalidate(_: VendorCall) -> VendorAnswer:
        bench.cache.invalidate(CACHE_KEY, now_ms=bench.clock.advance(s=1))
        return ANSWER

    bench.vendors.script = [invalidate]

    bench.deliver()
    assert bench.world.entries == {}

    later_ms = bench.clock.advance(s=1)
    bench.put(a_job(job_id="job_2", created_at_epoch_ms=later_ms))
    bench.deliver(job_id="job_2")
    assert bench.world.entries[CACHE_KEY].stored_at_epoch_ms == later_ms


# ------------------------------------------------------------------ shared between tenants


def test_second_tenant_of_a_shared_model_has_the_firsts_result_without_a_call() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    first = gateway.accept("acme", model="demo-shared")
    second = gateway.accept("globex", model="demo-shared")
    bench.vendors.default = ANSWER._replace(text=incompressible(20_000))

    bench.run(first)
    bench.clock.advance(s=1)
    assert bench.run(second) == Acknowledge()

    got = bench.world.jobs["globex", second.job_id]
    assert (bench.vendors.total, got.attempts) == (1, 0)
    assert (got.result_source, got.saved_nanos) == (
        "cache",
        bench.world.entries[first.cache_key].cost_nanos,
    )
    assert got.result is not None
    assert got.result.ref is not None
    assert "acme" not in got.result.ref


def test_second_tenant_of_a_model_that_is_not_shared_pays_for_its_own() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)

    for tenant in ("acme", "globex"):
        bench.run(gateway.accept(tenant))

    assert bench.vendors.total == 2


def test_tenants_epoch_makes_its_next_job_ask_again_for_all_who_share() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    bench.run(gateway.accept("acme", model="demo-shared"))
    gateway.clock.advance(s=1)
    gateway.state.invalidate("tenant:globex", now_ms=gateway.clock.now_ms())
    gateway.clock.advance(s=1)

    bench.run(gateway.accept("globex", model="demo-shared"))

    assert bench.vendors.total == 2
    renewed = gateway.hit("globex", model="demo-shared").entry
    assert renewed == gateway.hit("acme", model="demo-shared").entry
    assert renewed.stored_at_epoch_ms == gateway.clock.now_ms()


def test_job_whose_entry_lost_its_object_asks_the_vendor_again() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    bench.vendors.script = [ANSWER._replace(text=incompressible(20_000))]
    bench.run(gateway.accept())
    gateway.world.payloads.clear()
    gateway.clock.advance(s=1)

    again = gateway.accept()
    bench.run(again)

    assert bench.vendors.total == 2
    assert gateway.fetch(again.job_id).result is not None
    assert b"an answer" in gateway.hit().result


# ------------------------------------------------------------------ a payload store that fails


class FailingPayloads(InMemoryPayloads):
    """Fails so often, then works again."""

    def __init__(self, world: World, failures: int) -> None:
        super().__init__(world)
        self.failures = failures
        self.tries = 0

    def put(self, name: str, data: bytes) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise StoreBusyError("The payload store failed.", retry_after_s=1)
        super().put(name, data)


def test_paid_result_is_stored_when_the_payload_store_works_again(bench: Bench) -> None:
    bench.payloads = FailingPayloads(bench.world, failures=3)
    bench.vendors.default = ANSWER._replace(text=incompressible(130_000))

    assert bench.deliver() == Acknowledge()

    assert bench.job.result == Payload(ref=f"results/{JOB_ID}/1")
    assert bench.world.entries[CACHE_KEY].result == bench.job.result
    assert bench.vendors.total == 1
    assert bench.clock.now_ms() > NOW_MS
    assert bench.telemetry.names.count("payload_store_failed") == 3


def test_payload_store_is_tried_no_longer_than_the_lease_allows(bench: Bench) -> None:
    payloads = FailingPayloads(bench.world, failures=1_000)
    bench.payloads = payloads
    bench.rand = 1 - 2**-53
    bench.vendors.default = ANSWER._replace(text=incompressible(20_000))

    bench.deliver()

    assert payloads.tries > 3
    latest_ms = NOW_MS + LEASE_MS - CLOCK_SKEW_MS - FINISH_RESERVE_MS
    assert bench.clock.now_ms() <= latest_ms
    assert bench.job.status is JobStatus.COMPLETED


def test_paid_result_goes_into_the_row_as_a_last_resort(bench: Bench) -> None:
    bench.payloads = FailingPayloads(bench.world, failures=1_000)
    text = incompressible(20_000)
    bench.vendors.default = ANSWER._replace(text=text)

    assert bench.deliver() == Acknowledge()

    assert bench.job.result is not None
    assert bench.job.result.inline is not None
    assert bench.result["text"] == text
    assert bench.world.entries[CACHE_KEY].result == bench.job.result
    assert bench.vendors.total == 1


@pytest.mark.parametrize(
    "text",
    [incompressible(400_000), "x" * 2_000_000],
    ids=["too big packed", "too big unpacked"],
)
def test_paid_result_that_fits_nowhere_fails_the_job_by_name_after_one_call(  # case S02
    bench: Bench, text: str
) -> None:
    bench.payloads = FailingPayloads(bench.world, failures=1_000)
    bench.vendors.default = ANSWER._replace(text=text)

    assert bench.deliver() == GiveBack(0.0)
    assert bench.deliver(receives=2) == GiveBack(0.0)

    job = bench.job
    assert job.error is not None
    assert (job.status, job.error.code, job.error.retryable) == (
        JobStatus.FAILED,
        "result_too_large",
        False,
    )
    assert (job.result, job.vendor_request_id) == (None, "req_vendor_1")
    assert (bench.vendors.total, bench.world.entries) == (1, {})
    assert "result_lost" in bench.telemetry.names


@pytest.mark.parametrize(("over", "kept"), [(0, True), (1, False)])
def test_last_resort_takes_results_up_to_its_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, over: int, *, kept: bool
) -> None:
    bench.payloads = FailingPayloads(bench.world, failures=1_000)
    bench.vendors.default = ANSWER._replace(text=incompressible(20_000))
    packed = b"x" * (LAST_RESORT_BYTES + over)
    monkeypatch.setattr("sluiceway.usecases.run_job.compress", lambda _: packed)

    bench.deliver()

    assert (bench.job.status is JobStatus.COMPLETED) is kept


def test_refresh_whose_result_fits_nowhere_cools_down() -> None:
    gateway = Gateway()
    bench = Bench(world=gateway.world, clock=gateway.clock)
    bench.run(gateway.accept())
    gateway.clock.advance(ms=HOUR_MS)
    refresh = gateway.hit().refresh
    assert refresh is not None
    bench.payloads = FailingPayloads(bench.world, failures=1_000)
    bench.vendors.default = ANSWER._replace(text=incompressible(400_000))

    assert bench.run(refresh) == Acknowledge()

    entry = bench.world.entries[refresh.cache_key]
    assert entry.refresh_error == "result_too_large"
    assert bench.vendors.total == 2


# ------------------------------------------------------------------ the catalogue moved on


@pytest.mark.parametrize(
    "present",
    [{"scope": "none"}, {"scope": "shared"}, {"only_deterministic": True}],
    ids=["none", "shared", "deterministic"],
)
def test_answer_is_not_stored_under_a_scope_that_the_catalogue_has_no_longer(
    present: dict[str, Any],
) -> None:
    model = CATALOGUE.models["demo-chat"]
    cache = model.cache.model_copy(update=present)
    models = {**CATALOGUE.models, "demo-chat": model.model_copy(update={"cache": cache})}
    bench = Bench(catalogue=CATALOGUE.model_copy(update={"models": models}))
    bench.put(a_job())

    bench.deliver()

    assert bench.job.result_source == "vendor"
    assert bench.world.entries == {}
