"""Run: one delivery of a job's message, and at most one call to the vendor."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import StoreBusyError, VendorError
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.payload import Payload, compress
from sluiceway.http import job_reply
from sluiceway.ports import LeaseHeld, Moved, Started, VendorAnswer, VendorCall
from sluiceway.usecases.run_job import (
    MAX_LOOKS,
    MODEL_LOST_AFTER_MS,
    Acknowledge,
    Decision,
    GiveBack,
)

from tests.fakes.in_memory import (
    NOW_MS,
    Claim,
    FakeClock,
    InMemoryJobs,
    InMemoryPayloads,
    LeaseRow,
    World,
)
from tests.unit.bench import (
    ANSWER,
    FUNCTION_MS,
    LEASE_MS,
    Bench,
    incompressible,
    processing,
    rejected,
    unavailable,
)
from tests.unit.samples import CACHE_KEY, CATALOGUE, DAY_MS, JOB_ID, a_job, an_error

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put(a_job())
    return made


# ------------------------------------------------------------------ the first run


def test_run_completes_the_job_and_acknowledges(bench: Bench) -> None:
    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED
    assert bench.result == {"text": "an answer", "finish_reason": "stop"}


def test_run_writes_down_how_it_went(bench: Bench) -> None:
    bench.clock.advance(s=7)
    bench.vendors.script = [lambda _: (bench.clock.advance(s=3), ANSWER)[1]]

    bench.deliver(receives=2)

    job = bench.job
    assert (job.attempts, job.attempts_total, job.receives, job.fence) == (1, 1, 2, 1)
    assert (job.started_at_epoch_ms, job.completed_at_epoch_ms) == (NOW_MS + 7_000, NOW_MS + 10_000)
    assert (job.queue_wait_ms, job.upstream_latency_ms) == (7_000, 300)
    assert (job.input_tokens, job.output_tokens, job.cost_nanos) == (10, 20, 330_000)
    assert (job.result_source, job.vendor_request_id) == ("vendor", "req_vendor_1")
    assert job.error is None


def test_run_calls_the_vendor_once_with_the_frozen_work(bench: Bench) -> None:
    bench.deliver()

    (call,) = bench.vendors.calls
    assert json.loads(call.body) == {"input": "hello", "options": {}}
    assert call.idempotency_key == JOB_ID
    assert call.model == CATALOGUE.model("demo-chat")
    assert call.vendor == CATALOGUE.vendors["simulator"]
    assert call.retry_after_max_s == 3600


def test_run_closes_the_claim_and_settles_the_counter(bench: Bench) -> None:
    bench.deliver()

    assert bench.world.claims == {}
    assert bench.world.open_jobs("acme") == 0


def test_run_ends_its_lease_and_keeps_the_fence(bench: Bench) -> None:
    bench.deliver()

    assert bench.world.leases[CACHE_KEY] == LeaseRow(JOB_ID, None, 1, 0)


def test_run_holds_the_lease_while_it_calls(bench: Bench) -> None:
    seen: list[tuple[LeaseRow, Job]] = []

    def look(_: VendorCall) -> VendorAnswer:
        seen.append((bench.world.leases[CACHE_KEY], bench.job))
        return ANSWER

    bench.vendors.script = [look]

    bench.deliver()

    ((lease, job),) = seen
    assert lease == LeaseRow(JOB_ID, "token-1", 1, NOW_MS + LEASE_MS)
    assert (job.status, job.fence) == (JobStatus.PROCESSING, 1)
    assert job.due_at_epoch_ms == NOW_MS + FUNCTION_MS + 30_000


def test_run_caches_the_answer_for_its_hard_ttl(bench: Bench) -> None:
    bench.rand = 0.0

    bench.deliver()

    entry = bench.world.entries[CACHE_KEY]
    assert (entry.tenant, entry.scope, entry.model) == ("acme", "tenant", "demo-chat")
    assert (entry.stored_at_epoch_ms, entry.hard_expires_at_epoch_ms) == (NOW_MS, NOW_MS + DAY_MS)
    assert entry.result == bench.job.result
    assert (entry.input_tokens, entry.output_tokens, entry.cost_nanos) == (10, 20, 330_000)
    assert entry.vendor_request_id == "req_vendor_1"


def test_run_keeps_the_entry_for_its_stale_time_in_epoch_seconds(bench: Bench) -> None:
    bench.rand = 0.0

    bench.deliver()

    entry = bench.world.entries[CACHE_KEY]
    assert entry.ttl_epoch_s * 1000 == entry.kept_until_epoch_ms == NOW_MS + 2 * DAY_MS
    assert len(str(entry.ttl_epoch_s)) == 10


def test_run_tells_what_happened(bench: Bench) -> None:
    bench.deliver()

    assert bench.telemetry.names == ["lease_acquired", "lease_released", "job_completed"]
    assert bench.telemetry.jobs == [JOB_ID, JOB_ID]  # as it was read, and with its new attempt
    assert bench.telemetry.spans == [("vendor simulator", JOB_ID)]


def test_run_of_the_next_job_on_a_key_raises_the_fence(bench: Bench) -> None:
    bench.vendors.script = [ANSWER._replace(finish_reason="length")]
    bench.deliver()
    bench.put(a_job(job_id="job_2"))

    bench.deliver(job_id="job_2")

    assert bench.world.jobs["acme", "job_2"].fence == 2


# ------------------------------------------------------------------ nothing to do


def test_run_of_a_job_that_is_not_there_acknowledges_and_says_so(bench: Bench) -> None:
    decision = bench.deliver(job_id="job_unknown")

    assert decision == Acknowledge()
    assert bench.telemetry.names == ["message_without_job"]


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.CANCELLED])
def test_run_of_a_job_that_ended_well_acknowledges(status: JobStatus) -> None:
    bench = Bench()
    job = bench.put(a_job(status=status))

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.job == job
    assert bench.vendors.total == 0


def test_run_of_a_second_copy_of_the_message_acknowledges(bench: Bench) -> None:
    decisions = [bench.deliver(), bench.deliver()]

    assert decisions == [Acknowledge(), Acknowledge()]
    assert bench.vendors.total == 1


# ------------------------------------------------------------------ copies at the same time


def deliver_a_copy_meanwhile(bench: Bench, copies: list[Decision]) -> None:
    """Makes another worker get a copy of the message while the first one calls."""

    def call(_: VendorCall) -> VendorAnswer:
        bench.clock.advance(s=5)
        copies.append(bench.deliver(receives=2))
        return ANSWER

    bench.vendors.script = [call]


def test_copy_of_a_running_job_is_acknowledged(bench: Bench) -> None:
    copies: list[Decision] = []
    deliver_a_copy_meanwhile(bench, copies)

    decision = bench.deliver()

    assert (decision, copies) == (Acknowledge(), [Acknowledge()])
    assert bench.vendors.total == 1
    assert (bench.job.status, bench.job.attempts) == (JobStatus.COMPLETED, 1)


def test_message_that_comes_again_and_again_during_a_long_call_makes_no_other(  # case W01
    bench: Bench,
) -> None:
    copies: list[Decision] = []

    def call_of_over_a_minute(_: VendorCall) -> VendorAnswer:
        for receives in (2, 3, 4):  # a visibility that is far too short
            bench.clock.advance(s=20)
            copies.append(bench.deliver(receives=receives))
        return ANSWER

    bench.vendors.script = [call_of_over_a_minute]

    decision = bench.deliver()

    assert (decision, copies) == (Acknowledge(), [Acknowledge()] * 3)
    assert bench.vendors.total == 1
    assert (bench.job.status, bench.job.attempts) == (JobStatus.COMPLETED, 1)


def test_copy_during_the_last_attempt_leaves_the_job_to_its_worker() -> None:
    # Only with the lease free or ended is it decided that attempts are used
    # up. Else a copy fails a job whose paid answer is on its way.
    bench = Bench()
    bench.put(a_job(model="demo-once"))
    copies: list[Decision] = []
    deliver_a_copy_meanwhile(bench, copies)

    decision = bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert (decision, copies) == (Acknowledge(), [Acknowledge()])


def test_copy_past_the_deadline_leaves_a_running_job_to_its_worker() -> None:
    bench = Bench()
    bench.put(a_job(deadline_epoch_ms=NOW_MS + 1_000))
    copies: list[Decision] = []
    deliver_a_copy_meanwhile(bench, copies)

    decision = bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert (decision, copies) == (Acknowledge(), [Acknowledge()])


def test_copy_of_a_running_job_whose_model_went_away_leaves_it_to_its_worker() -> None:
    bench = Bench()
    job = bench.put(processing(model="demo-gone"))
    bench.hold_lease(JOB_ID)

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.job == job


# ------------------------------------------------------------------ the cache


def test_run_completes_from_a_fresh_entry_without_a_call(bench: Bench) -> None:
    entry = bench.put_entry()

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.vendors.total == 0
    assert (bench.job.status, bench.job.result) == (JobStatus.COMPLETED, entry.result)
    assert bench.job.result_source == "cache"


def test_run_from_the_cache_takes_its_attempt_back(bench: Bench) -> None:
    bench.put_entry()

    bench.deliver()

    assert (bench.job.attempts, bench.job.attempts_total) == (0, 0)


def test_run_from_the_cache_ends_lease_claim_and_counter(bench: Bench) -> None:
    bench.put_entry()

    bench.deliver()

    assert bench.world.leases[CACHE_KEY].token is None
    assert bench.world.claims == {}
    assert bench.world.open_jobs("acme") == 0


def test_run_from_the_cache_leaves_the_entry_as_it_was(bench: Bench) -> None:
    entry = bench.put_entry()

    bench.deliver()

    assert bench.world.entries == {CACHE_KEY: entry}


def test_run_from_the_cache_bills_nothing_and_shows_what_was_saved(bench: Bench) -> None:
    bench.put_entry()

    bench.deliver()

    body = job_reply(200, bench.job, b"{}", base_path="", now_ms=NOW_MS).body
    assert body["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": 0,
        "saved": 0.00033,
    }


def test_run_ignores_an_entry_past_its_expiry_though_it_is_still_there(bench: Bench) -> None:
    bench.put_entry(stored_at_epoch_ms=NOW_MS - 5_000, soft_expires_at_epoch_ms=NOW_MS - 1_000)

    bench.deliver()

    assert bench.vendors.total == 1
    assert bench.result["text"] == "an answer"


def test_run_without_a_cache_neither_reads_nor_writes_it() -> None:
    bench = Bench()
    bench.put(a_job(model="demo-uncached", cache_scope="none"))
    entry = bench.put_entry()

    bench.deliver()

    assert bench.vendors.total == 1
    assert bench.cache.reads == 0
    assert bench.world.entries == {CACHE_KEY: entry}


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER._replace(finish_reason="length"),
        ANSWER._replace(finish_reason="tool_calls", content=[{"type": "tool_calls"}]),
        ANSWER._replace(text=""),
        ANSWER._replace(text="", content=[]),
    ],
    ids=["truncated", "tool calls", "empty", "empty content"],
)
def test_run_never_caches_an_answer_that_is_not_whole(bench: Bench, answer: VendorAnswer) -> None:
    bench.vendors.script = [answer]

    bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.result["finish_reason"] == answer.finish_reason
    assert bench.world.entries == {}


def test_run_never_caches_another_versions_answer_under_its_key() -> None:
    # The model was moved to version 1 while the job waited with a key of version 0: once it is
    # moved back, that key would serve what version 1 said.
    bench = Bench()
    bench.put(a_job(model_version="0"))

    bench.deliver()

    assert bench.world.entries == {}


def test_run_after_a_truncated_answer_calls_the_vendor_again(bench: Bench) -> None:
    bench.vendors.script = [ANSWER._replace(finish_reason="length")]
    bench.deliver()
    bench.put(a_job(job_id="job_2"))

    bench.deliver(job_id="job_2")

    assert bench.vendors.total == 2


def test_run_keeps_content_that_is_more_than_text(bench: Bench) -> None:
    content: list[dict[str, object]] = [{"type": "x", "n": 0, "no": False, "null": None, "s": ""}]
    bench.vendors.script = [ANSWER._replace(content=content)]

    bench.deliver()

    assert repr(bench.result["content"]) == repr(content)


# ------------------------------------------------------------------ somebody else has the key


def test_run_waits_while_another_job_works_on_the_key(bench: Bench) -> None:
    job = bench.job
    lease = bench.hold_lease()

    decision = bench.deliver()

    assert decision == GiveBack(1.5)
    assert bench.job == job
    assert bench.world.leases[CACHE_KEY] == lease
    assert bench.vendors.total == 0
    assert bench.telemetry.names == ["lease_contention"]


def test_run_waits_longer_each_time(bench: Bench) -> None:
    bench.hold_lease(ends_in_ms=DAY_MS)
    bench.rand = 1 - 2**-53

    waits = [bench.deliver(receives=receives) for receives in range(1, 7)]

    assert [round(wait.delay_s) for wait in waits if isinstance(wait, GiveBack)] == [
        2,
        4,
        8,
        16,
        32,
        60,
    ]


def test_run_takes_the_answer_that_another_job_has_cached_meanwhile(bench: Bench) -> None:
    bench.hold_lease()
    entry = bench.put_entry()

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.result) == (JobStatus.COMPLETED, entry.result)
    assert (bench.job.attempts, bench.vendors.total) == (0, 0)


def test_run_leaves_anothers_lease_alone_when_it_completes_without_it(bench: Bench) -> None:
    lease = bench.hold_lease()
    bench.put_entry()

    bench.deliver()

    assert bench.world.leases[CACHE_KEY] == lease


def test_run_without_the_lease_keeps_the_count_of_an_attempt_that_crashed() -> None:
    # The crashed attempt may have reached the vendor: it was one, whoever answers in the end.
    bench = Bench()
    bench.put(processing())
    bench.hold_lease()
    bench.put_entry()

    bench.deliver(receives=2)

    assert (bench.job.status, bench.job.attempts) == (JobStatus.COMPLETED, 1)


@pytest.mark.parametrize(("after_ms", "taken"), [(CLOCK_SKEW_MS, False), (CLOCK_SKEW_MS + 1, True)])
def test_run_takes_a_lease_over_only_after_its_end_and_the_skew(
    bench: Bench, after_ms: int, *, taken: bool
) -> None:
    bench.hold_lease(ends_in_ms=-after_ms)

    bench.deliver()

    assert (bench.vendors.total == 1) is taken


def test_run_that_takes_a_lease_over_raises_the_fence(bench: Bench) -> None:
    bench.hold_lease(ends_in_ms=-DAY_MS)

    bench.deliver()

    assert bench.job.fence == 6


def test_run_behind_anothers_lease_ends_nothing() -> None:
    # Whether a job may still start is decided with the lease free or ended.
    bench = Bench()
    job = bench.put(a_job(deadline_epoch_ms=NOW_MS - 1))
    bench.hold_lease()

    decision = bench.deliver()

    assert decision == GiveBack(1.5)
    assert bench.job == job


class RestlessJobs(InMemoryJobs):
    """A job that somebody else moves whenever it is about to be started."""

    looks = 0

    def get(self, tenant: str, job_id: str) -> Job | None:
        self.looks += 1
        return super().get(tenant, job_id)

    def start(
        self, job: Job, *, token: str, lease_ms: int, now_ms: int, started: Callable[[int], Job]
    ) -> Started | LeaseHeld | Moved:
        del token, lease_ms, now_ms, started
        return Moved(job)


def test_run_gives_a_job_back_that_keeps_moving(bench: Bench) -> None:
    restless = RestlessJobs(bench.world, clock=bench.clock)
    bench.jobs = restless

    decision = bench.deliver()

    assert decision == GiveBack(1.5)
    assert restless.looks == MAX_LOOKS


# ------------------------------------------------------------------ retries


def test_run_retries_after_an_error_that_may_pass(bench: Bench) -> None:
    bench.vendors.script = [unavailable()]

    decision = bench.deliver()

    assert decision == GiveBack(1.0)
    assert (bench.job.status, bench.job.attempts) == (JobStatus.RETRYING, 1)
    assert bench.job.not_before_epoch_ms == NOW_MS + 1_000
    assert bench.job.due_at_epoch_ms == NOW_MS + 121_000


def test_run_that_will_retry_releases_the_lease_and_keeps_the_claim(bench: Bench) -> None:
    bench.vendors.script = [unavailable()]

    bench.deliver()

    assert bench.world.leases[CACHE_KEY] == LeaseRow(JOB_ID, None, 1, 0)
    assert bench.world.claims[bench.job.job_key].job_id == JOB_ID
    assert bench.world.open_jobs("acme") == 1


def test_run_that_will_retry_tells_why_without_the_text(bench: Bench) -> None:
    bench.vendors.script = [unavailable()]

    bench.deliver()

    assert bench.telemetry.names == [
        "lease_acquired",
        "vendor_error",
        "lease_released",
        "job_retrying",
    ]
    _, _, fields = bench.telemetry.events[1]
    assert fields == {
        "code": "vendor_unavailable",
        "error_class": "VendorError",
        "http_status": 503,
        "retryable": True,
        "upstream_latency_ms": 0,
    }


def test_run_writes_the_error_on_the_job(bench: Bench) -> None:
    error = unavailable()
    error.__cause__ = TimeoutError("hunter2")
    bench.vendors.script = [error]

    bench.deliver()

    assert bench.job.error == an_error(error_class="TimeoutError")
    assert bench.job.last_errors == (bench.job.error,)
    assert "hunter2" not in repr(bench.job)


@pytest.mark.parametrize(("wish_s", "delay_s"), [(None, 1.0), (0.0, 1.0), (0.5, 1.0), (120, 120)])
def test_run_waits_at_least_as_long_as_the_vendor_asks(
    bench: Bench, wish_s: float | None, delay_s: float
) -> None:
    bench.vendors.script = [unavailable(retry_after_s=wish_s)]

    decision = bench.deliver()

    assert decision == GiveBack(delay_s)
    assert bench.job.not_before_epoch_ms == NOW_MS + delay_s * 1000


def test_run_backs_off_with_jitter_over_the_whole_range(bench: Bench) -> None:
    bench.vendors.default = unavailable()
    waits = []
    for receives, rand in enumerate([0.0, 0.5, 0.99], start=1):
        bench.rand = rand
        decision = bench.deliver(receives=receives)
        assert isinstance(decision, GiveBack)
        waits.append(decision.delay_s)
        bench.clock.advance(s=decision.delay_s)

    assert waits == [0.0, 2.0, pytest.approx(7.92)]


def test_run_before_its_time_gives_the_message_back_for_the_rest(bench: Bench) -> None:
    bench.vendors.script = [unavailable(retry_after_s=100)]
    bench.deliver()
    retrying = bench.job
    bench.clock.advance(s=30)

    decision = bench.deliver(receives=2)

    assert decision == GiveBack(70)
    assert bench.job == retrying
    assert bench.vendors.total == 1


def test_run_at_its_time_tries_again(bench: Bench) -> None:
    bench.vendors.script = [unavailable(retry_after_s=100)]
    bench.deliver()
    bench.clock.advance(s=100)

    decision = bench.deliver(receives=2)

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.attempts, bench.job.fence) == (JobStatus.COMPLETED, 2, 2)
    assert bench.job.error is None
    assert len(bench.job.last_errors) == 1


def test_run_sends_one_frozen_body_and_one_key_with_each_attempt(bench: Bench) -> None:  # case V04
    bench.vendors.script = [unavailable(), unavailable(), unavailable()]

    bench.until_done()

    assert len({call.body for call in bench.vendors.calls}) == 1
    assert bench.vendors.per_key == {JOB_ID: 4}


@pytest.mark.parametrize(
    "script",
    [
        [],
        [unavailable()],
        [unavailable(), unavailable(), unavailable()],
        [unavailable()] * 9,
        [unavailable(), rejected()],
        [rejected()],
    ],
    ids=["success", "once", "thrice", "always", "then terminal", "terminal"],
)
def test_attempts_of_a_job_are_the_calls_on_the_wire(
    bench: Bench, script: list[VendorError]
) -> None:
    bench.vendors.script = list(script)

    bench.until_done()

    assert bench.job.attempts == bench.job.attempts_total == bench.vendors.total


# ------------------------------------------------------------------ the end without a result


def test_run_fails_the_job_on_an_error_that_will_not_pass(bench: Bench) -> None:
    bench.vendors.script = [rejected()]

    decision = bench.deliver()

    assert decision == GiveBack(0.0)
    assert (bench.job.status, bench.job.attempts) == (JobStatus.FAILED, 1)
    assert bench.job.failed_at_epoch_ms == NOW_MS
    assert bench.job.due_at_epoch_ms == NOW_MS + 15 * 60_000
    assert bench.job.error == an_error(
        code="vendor_rejected",
        message="The vendor answered 400.",
        retryable=False,
        http_status=400,
    )


def test_run_that_fails_ends_lease_claim_and_counter(bench: Bench) -> None:
    bench.vendors.script = [rejected()]

    bench.deliver()

    assert bench.world.leases[CACHE_KEY].token is None
    assert bench.world.claims == {}
    assert bench.world.open_jobs("acme") == 0


def test_run_that_fails_caches_nothing_and_tells(bench: Bench) -> None:
    bench.vendors.script = [rejected()]

    bench.deliver()

    assert bench.world.entries == {}
    assert bench.telemetry.names == [
        "lease_acquired",
        "vendor_error",
        "lease_released",
        "job_failed",
    ]


def test_run_that_fails_keeps_the_old_entry(bench: Bench) -> None:
    old = bench.put_entry(hard_expires_at_epoch_ms=NOW_MS - 1)
    bench.vendors.script = [rejected()]

    bench.deliver()

    assert bench.world.entries == {CACHE_KEY: old}


def test_run_that_fails_writes_the_vendors_request_id_down(bench: Bench) -> None:
    bench.vendors.script = [rejected(vendor_request_id="req_vendor_7")]

    bench.deliver()

    assert bench.job.vendor_request_id == "req_vendor_7"


def test_run_fails_with_the_cause_when_the_attempts_are_used_up(bench: Bench) -> None:
    bench.vendors.default = unavailable()

    decisions = bench.until_done()

    assert decisions[-1] == GiveBack(0.0)
    assert (bench.job.status, bench.job.attempts) == (JobStatus.FAILED, 4)
    assert bench.job.error is not None
    assert (bench.job.error.code, bench.job.error.attempt) == ("vendor_unavailable", 4)
    assert len(bench.job.last_errors) == 4


def test_run_fails_a_job_whose_model_allows_fewer_attempts_by_now() -> None:
    bench = Bench()
    before = an_error(code="vendor_rate_limited", attempt=4)
    bench.put(
        a_job(
            status=JobStatus.RETRYING,
            attempts=4,
            attempts_total=4,
            error=before,
            last_errors=(before,),
        )
    )

    decision = bench.deliver()

    assert decision == GiveBack(0.0)
    assert bench.job.error is not None
    assert (bench.job.status, bench.job.error.code) == (JobStatus.FAILED, "attempts_exhausted")
    assert before in bench.job.last_errors
    assert bench.vendors.total == 0


def test_run_fails_a_job_whose_workers_all_died() -> None:
    bench = Bench()
    bench.put(processing(attempts=4))
    bench.hold_lease(JOB_ID, ends_in_ms=-DAY_MS)

    decision = bench.deliver(receives=5)

    assert decision == GiveBack(0.0)
    assert bench.job.error is not None
    assert (bench.job.status, bench.job.error.code) == (JobStatus.FAILED, "worker_crashed")
    assert bench.vendors.total == 0


@pytest.mark.parametrize(("after_ms", "failed"), [(-1, False), (0, True), (1, True)])
def test_run_fails_a_job_past_its_deadline(*, after_ms: int, failed: bool) -> None:
    bench = Bench()
    bench.put(a_job(deadline_epoch_ms=NOW_MS + 60_000))
    bench.clock.advance(ms=60_000 + after_ms)

    decision = bench.deliver()

    assert (decision == GiveBack(0.0)) is failed
    assert (bench.vendors.total == 0) is failed
    code = bench.job.error.code if bench.job.error else None
    assert (code == "deadline_exceeded") is failed


def test_run_past_the_deadline_looks_at_nothing_else() -> None:
    bench = Bench()
    bench.put(processing(attempts=4, deadline_epoch_ms=NOW_MS))

    bench.deliver()

    assert bench.job.error is not None
    assert bench.job.error.code == "deadline_exceeded"


@pytest.fixture
def unknown() -> Bench:
    """A worker that doesn't know the model of its job."""
    bench = Bench(catalogue=CATALOGUE.model_copy(update={"models": {}}))
    bench.put(a_job())
    return bench


def test_job_of_a_model_that_this_worker_does_not_know_yet_waits_and_runs(unknown: Bench) -> None:
    before = unknown.job

    decision = unknown.deliver(receives=9)
    waiting = unknown.job
    unknown.catalogue = CATALOGUE
    unknown.clock.set(waiting.not_before_epoch_ms or 0)
    unknown.deliver()

    assert decision == Acknowledge()
    assert waiting == transitions.parked(before, not_before_ms=NOW_MS + 60_000)
    assert ("job_parked", JOB_ID, {"reason": "model_unknown"}) in unknown.telemetry.events
    assert (unknown.job.status, unknown.vendors.total) == (JobStatus.COMPLETED, 1)


def test_job_of_an_unknown_model_looks_the_more_rarely_the_longer_it_waits(unknown: Bench) -> None:
    looks = 0
    unknown.rand = 1.0
    while unknown.job.open:
        unknown.deliver()
        looks += 1
        unknown.clock.set(unknown.job.not_before_epoch_ms or 0)

    assert looks <= 10


def test_wait_for_a_model_ends_at_the_deadline_at_the_latest(unknown: Bench) -> None:
    unknown.put(a_job(deadline_epoch_ms=NOW_MS + 1_000))

    unknown.deliver()

    assert unknown.job.not_before_epoch_ms == unknown.job.due_at_epoch_ms == NOW_MS + 1_000


def test_worker_that_does_not_know_the_model_leaves_the_job_to_one_that_does(
    unknown: Bench,
) -> None:
    job = unknown.put(processing())
    unknown.hold_lease(JOB_ID)

    assert unknown.deliver() == Acknowledge()
    assert unknown.job == job


def test_run_fails_a_job_whose_model_is_gone_for_an_hour(unknown: Bench) -> None:
    unknown.clock.advance(ms=MODEL_LOST_AFTER_MS)

    decision = unknown.deliver()

    assert decision == GiveBack(0.0)
    assert unknown.job.error is not None
    assert (unknown.job.status, unknown.job.error.code) == (JobStatus.FAILED, "vendor_rejected")
    assert unknown.world.claims == {}


# ------------------------------------------------------------------ to the dead-letter queue


@pytest.mark.parametrize("receives", [1, 5, 8])
def test_message_of_a_failed_job_goes_back_at_once(receives: int) -> None:
    bench = Bench()
    job = bench.put(a_job(status=JobStatus.FAILED, failed_at_epoch_ms=NOW_MS))

    decision = bench.deliver(receives=receives)

    assert decision == GiveBack(0.0)
    assert bench.job == job
    assert bench.vendors.total == 0


def test_message_of_a_failed_job_marks_it_on_the_last_receive() -> None:
    bench = Bench()
    bench.put(a_job(status=JobStatus.FAILED, failed_at_epoch_ms=NOW_MS))

    decision = bench.deliver(receives=10)

    assert decision == GiveBack(0.0)
    assert bench.job.status is JobStatus.DEAD_LETTERED
    assert (bench.job.due_at_epoch_ms, bench.job.due_shard) == (None, None)
    assert bench.telemetry.names == ["job_dead_lettered"]


def test_message_of_a_dead_lettered_job_goes_on_to_the_queue() -> None:
    bench = Bench()
    job = bench.put(a_job(status=JobStatus.DEAD_LETTERED, failed_at_epoch_ms=NOW_MS))

    decision = bench.deliver(receives=10)

    assert decision == GiveBack(0.0)
    assert bench.job == job
    assert bench.telemetry.names == []


def test_failure_on_the_last_receive_is_dead_lettered_at_once(bench: Bench) -> None:
    bench.vendors.script = [rejected()]

    decision = bench.deliver(receives=10)

    assert decision == GiveBack(0.0)
    assert bench.job.status is JobStatus.DEAD_LETTERED


def test_failure_on_the_last_receive_counts_as_dead_lettered(bench: Bench) -> None:
    bench.vendors.script = [rejected()]

    bench.deliver(receives=10)

    assert "job_failed" in bench.telemetry.names
    assert "job_dead_lettered" in bench.telemetry.names


def test_last_receive_may_still_succeed(bench: Bench) -> None:
    decision = bench.deliver(receives=10)

    assert decision == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED


# ------------------------------------------------------------------ lost leases and crashes


def test_worker_that_was_overtaken_changes_nothing(bench: Bench) -> None:
    # A: acquires fence 1 ── stalls ──────────────────────────── writes with fence 1: refused
    # B:                      takes over (fence 2) ── completes
    def stall(_: VendorCall) -> VendorAnswer:
        bench.clock.advance(ms=LEASE_MS + CLOCK_SKEW_MS + 1)
        assert bench.deliver(receives=2) == Acknowledge()
        return ANSWER._replace(text="too late")

    bench.vendors.script = [stall]

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert (bench.job.fence, bench.job.attempts) == (2, 2)
    assert bench.result["text"] == "an answer"
    assert bench.world.entries[CACHE_KEY].result == bench.job.result
    assert bench.telemetry.names[-1] == "lease_lost"


def test_worker_that_was_overtaken_leaves_the_new_lease_alone(bench: Bench) -> None:
    def stall(_: VendorCall) -> VendorAnswer:
        bench.clock.advance(ms=LEASE_MS + CLOCK_SKEW_MS + 1)
        bench.jobs.start(
            bench.job,
            token="other",
            lease_ms=LEASE_MS,
            now_ms=bench.clock.now_ms(),
            started=lambda fence: replace(bench.job, fence=fence, attempts_total=2),
        )
        return ANSWER

    bench.vendors.script = [stall]

    bench.deliver()

    assert bench.world.leases[CACHE_KEY].token == "other"
    assert bench.job.status is JobStatus.PROCESSING
    assert bench.world.entries == {}


@pytest.mark.parametrize(
    "turn", [ANSWER, unavailable(), rejected()], ids=["answer", "retryable", "terminal"]
)
def test_worker_whose_job_was_cancelled_changes_nothing_and_releases(
    bench: Bench, turn: VendorAnswer | VendorError
) -> None:
    def cancelled_meanwhile(_: VendorCall) -> VendorAnswer:
        bench.jobs.apply(bench.job, replace(bench.job, status=JobStatus.CANCELLED))
        if isinstance(turn, VendorError):
            raise turn
        return turn

    bench.vendors.script = [cancelled_meanwhile]

    bench.deliver()

    assert (bench.job.status, bench.job.result) == (JobStatus.CANCELLED, None)
    assert bench.world.entries == {}
    assert bench.world.leases[CACHE_KEY].token is None
    assert bench.telemetry.names[-1] == "lease_lost"


def test_message_of_a_job_that_was_cancelled_meanwhile_is_acknowledged_next(bench: Bench) -> None:
    def cancelled_meanwhile(_: VendorCall) -> VendorAnswer:
        bench.jobs.apply(bench.job, replace(bench.job, status=JobStatus.CANCELLED))
        return ANSWER

    bench.vendors.script = [cancelled_meanwhile]
    bench.deliver()

    assert bench.deliver(receives=2) == Acknowledge()


def test_answer_after_the_leases_end_is_kept_when_nobody_took_over(bench: Bench) -> None:
    def slow(_: VendorCall) -> VendorAnswer:
        bench.clock.advance(ms=LEASE_MS + 1)
        return ANSWER

    bench.vendors.script = [slow]

    assert bench.deliver() == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED


def crash(_: VendorCall) -> VendorAnswer:
    raise SystemExit("the machine is gone")


def test_crash_leaves_the_job_to_the_next_delivery_after_the_lease(bench: Bench) -> None:
    bench.vendors.script = [crash]
    with pytest.raises(SystemExit):
        bench.deliver()
    bench.clock.advance(ms=LEASE_MS + CLOCK_SKEW_MS + 1)

    decision = bench.deliver(receives=2)

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.fence) == (JobStatus.COMPLETED, 2)
    assert bench.job.attempts == bench.vendors.total == 2
    assert bench.vendors.per_key == {JOB_ID: 2}


def test_crash_blocks_nobody_forever(bench: Bench) -> None:
    bench.vendors.script = [crash, crash, crash, crash]
    for _ in range(4):
        with pytest.raises(SystemExit):
            bench.deliver()
        bench.clock.advance(ms=LEASE_MS + CLOCK_SKEW_MS + 1)

    bench.deliver(receives=5)

    assert bench.job.error is not None
    assert (bench.job.status, bench.job.error.code) == (JobStatus.FAILED, "worker_crashed")
    assert bench.world.claims == {}


def test_delivery_just_after_a_crash_does_not_call_twice(bench: Bench) -> None:
    bench.vendors.script = [crash]
    with pytest.raises(SystemExit):
        bench.deliver()

    bench.deliver(receives=2)

    assert bench.vendors.total == 1
    assert bench.job.status is JobStatus.PROCESSING


# ------------------------------------------------------------------ time left


def test_call_ends_before_the_lease_does() -> None:
    bench = Bench(lease_ms=40_000)
    bench.put(a_job())

    bench.deliver()

    (call,) = bench.vendors.calls
    assert 5.0 <= call.timeout_s <= 40 - CLOCK_SKEW_MS / 1000 - 5


def test_call_takes_no_longer_than_its_model_allows(bench: Bench) -> None:
    bench.deliver()

    assert bench.vendors.calls[0].timeout_s == 60.0


def test_call_is_not_begun_when_the_lease_is_too_short() -> None:
    bench = Bench(lease_ms=15_000)
    bench.put(a_job())

    decision = bench.deliver()

    assert isinstance(decision, GiveBack)
    assert bench.vendors.total == 0
    assert bench.job.status is JobStatus.RETRYING
    assert bench.job.error is not None
    assert bench.job.error.code == "vendor_timeout"


class SlowPayloads(InMemoryPayloads):
    """An object store that takes its time."""

    def __init__(self, world: World, clock: FakeClock, takes_s: float) -> None:
        super().__init__(world)
        self._clock = clock
        self._takes_s = takes_s

    def get(self, name: str) -> bytes:
        self._clock.advance(s=self._takes_s)
        return super().get(name)


def test_call_is_not_begun_when_loading_the_input_used_the_lease_up() -> None:
    bench = Bench()
    bench.put(a_job(input=Payload(ref="inputs/acme/1")))
    bench.world.payloads["inputs/acme/1"] = compress(b'{"input":"hello","options":{}}')
    bench.payloads = SlowPayloads(bench.world, bench.clock, takes_s=90)

    bench.deliver()

    assert bench.vendors.total == 0


def test_run_gets_a_big_input_from_the_payloads() -> None:
    bench = Bench()
    bench.put(a_job(input=Payload(ref="inputs/acme/1")))
    bench.world.payloads["inputs/acme/1"] = compress(b'{"input":"big","options":{}}')

    bench.deliver()

    assert bench.vendors.calls[0].body == b'{"input":"big","options":{}}'


# ------------------------------------------------------------------ results


class UnreadablePayloads(InMemoryPayloads):
    """Can't be read so often, and then again."""

    failures = 1

    def get(self, name: str) -> bytes:
        if self.failures:
            self.failures -= 1
            raise StoreBusyError("The payload store failed.", retry_after_s=1)
        return super().get(name)


@pytest.mark.parametrize("model", ["demo-chat", "demo-careful"])
def test_run_tries_again_when_the_input_can_not_be_read_and_calls_nobody(model: str) -> None:
    bench = Bench()
    bench.put(a_job(model=model, input=Payload(ref="inputs/acme/1")))
    bench.world.payloads["inputs/acme/1"] = compress(b'{"input":"big","options":{}}')
    bench.payloads = UnreadablePayloads(bench.world)

    decision = bench.deliver()
    waiting, calls = bench.job, bench.vendors.total
    bench.clock.set(waiting.not_before_epoch_ms or 0)
    bench.deliver(receives=2)

    assert isinstance(decision, GiveBack)
    assert waiting.error is not None
    assert (waiting.status, waiting.error.code, waiting.error.retryable) == (
        *(JobStatus.RETRYING, "vendor_unavailable"),
        True,
    )
    assert (waiting.called_at_epoch_ms, calls) == (None, 0)
    assert (bench.job.status, bench.vendors.total) == (JobStatus.COMPLETED, 1)


@pytest.mark.parametrize("stored", [None, b"damaged"], ids=["gone", "damaged"])
def test_run_fails_a_job_whose_input_is_lost_and_calls_nobody(stored: bytes | None) -> None:
    bench = Bench()
    bench.put(a_job(input=Payload(ref="inputs/acme/1")))
    if stored is not None:
        bench.world.payloads["inputs/acme/1"] = stored

    assert bench.deliver() == GiveBack(0.0)

    assert bench.job.error is not None
    assert (bench.job.status, bench.job.error.code, bench.job.error.retryable) == (
        *(JobStatus.FAILED, "vendor_rejected"),
        False,
    )
    assert (bench.vendors.total, bench.world.claims) == (0, {})


@pytest.mark.parametrize("size", [130_000, 140_000, 1_700_000], ids=["390 KB", "420 KB", "5 MB"])
def test_big_result_is_kept_once_and_named_by_job_and_entry(  # case S01
    bench: Bench, size: int
) -> None:
    text = incompressible(size)
    bench.vendors.script = [ANSWER._replace(text=text)]

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.job.result == Payload(ref=f"results/{JOB_ID}/1")
    assert bench.world.entries[CACHE_KEY].result == bench.job.result
    assert list(bench.world.payloads) == [f"results/{JOB_ID}/1"]
    assert bench.result["text"] == text
    assert bench.vendors.total == 1


class BrokenPayloads(InMemoryPayloads):
    """An object store that takes nothing."""

    def put(self, name: str, data: bytes) -> None:
        raise OSError(f"{len(data)} bytes of {name} can't be written")


def test_big_result_that_can_not_be_kept_is_never_shown_as_a_good_one(  # case S02
    bench: Bench,
) -> None:
    bench.payloads = BrokenPayloads(bench.world)
    bench.vendors.default = ANSWER._replace(text=incompressible(130_000))

    for receives in range(1, 6):
        with suppress(OSError):
            bench.deliver(receives=receives)
        bench.clock.advance(ms=LEASE_MS + CLOCK_SKEW_MS + 1)

    assert (bench.job.status, bench.job.result) == (JobStatus.FAILED, None)
    assert bench.job.error is not None
    assert bench.world.entries == {}
    assert bench.vendors.per_key == {JOB_ID: 4}


def test_small_result_stays_in_the_rows(bench: Bench) -> None:
    bench.deliver()

    assert bench.job.result is not None
    assert bench.job.result.inline is not None
    assert bench.world.payloads == {}


@pytest.mark.parametrize("text", ["\x00\x07\x0b\ufffe", "a\r\nb", "😀 𠀀", '<&> "q"', "Cafe\u0301"])
def test_result_keeps_its_characters(bench: Bench, text: str) -> None:
    bench.vendors.script = [ANSWER._replace(text=text)]

    bench.deliver()

    assert bench.result["text"] == text


def test_paid_result_is_kept_though_claim_and_counter_cannot_be_written(bench: Bench) -> None:
    bench.world.counters_busy = True

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.unsettled) == (JobStatus.COMPLETED, True)
    assert bench.job.due_at_epoch_ms == NOW_MS
    assert bench.world.entries[CACHE_KEY].result == bench.job.result


def test_claim_that_is_anothers_by_now_is_left_alone(bench: Bench) -> None:
    bench.world.claims[bench.job.job_key] = Claim("job_other", NOW_MS + DAY_MS)

    decision = bench.deliver()

    assert decision == Acknowledge()
    assert bench.world.claims[bench.job.job_key].job_id == "job_other"
    assert bench.world.open_jobs("acme") == 0
