"""Timeouts that follow the vendor: what a run allows a call, and what it learns from it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import CallAbortedError, StoreBusyError, VendorError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.timeouts import LEAST_SAMPLES, RING, Sample, key_of

from tests.fakes.in_memory import NOW_MS, InMemoryLatencies
from tests.unit.bench import ANSWER, Bench, rejected, unavailable
from tests.unit.samples import CATALOGUE, a_job, an_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from sluiceway.domain.job import Job
    from sluiceway.ports import VendorAnswer, VendorCall

MODEL = CATALOGUE.model("demo-chat")
KEY = key_of(MODEL.vendor, MODEL.vendor_model)
LONGEST_MS = round(MODEL.timeout_s.max * 1000)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def know(bench: Bench, latency_ms: int, number: int = RING) -> None:
    bench.world.latencies[KEY] = dict(enumerate([Sample(NOW_MS, latency_ms)] * number))


def learnt(bench: Bench) -> list[int]:
    return sorted(one.latency_ms for one in bench.world.latencies.get(KEY, {}).values())


def taking(bench: Bench, latency_ms: int) -> Callable[[VendorCall], VendorAnswer]:
    """A vendor that takes so long, if it is allowed to."""

    def answer(call: VendorCall) -> VendorAnswer:
        allowed_ms = round(call.timeout_s * 1000)
        bench.clock.advance(min(latency_ms, allowed_ms))
        if latency_ms > allowed_ms:
            raise VendorError("vendor_timeout", "It took too long.", retryable=True)
        return ANSWER._replace(latency_ms=latency_ms)

    return answer


# ------------------------------------------------------------------ what a call may take


@pytest.mark.parametrize(
    ("known_ms", "seconds"), [(1_000, MODEL.timeout_s.min), (9_000, 18), (31_000, 60)]
)
def test_call_may_take_twice_the_median(bench: Bench, known_ms: int, seconds: float) -> None:
    know(bench, known_ms)
    bench.run(bench.put(a_job()))

    assert [call.timeout_s for call in bench.vendors.calls] == [seconds]


def test_call_may_take_the_longest_while_little_is_known(bench: Bench) -> None:
    know(bench, 9_000, LEAST_SAMPLES - 1)
    bench.run(bench.put(a_job()))

    assert [call.timeout_s for call in bench.vendors.calls] == [60]


def test_call_takes_no_longer_than_the_lease_leaves(bench: Bench) -> None:
    know(bench, 20_000)
    bench.lease_ms = 30_000
    bench.run(bench.put(a_job()))

    assert [call.timeout_s for call in bench.vendors.calls] == [16.5]


def test_call_after_one_that_took_too_long_may_take_the_longest(bench: Bench) -> None:
    know(bench, 5_000)
    bench.put(a_job())
    bench.vendors.script = [taking(bench, 30_000), taking(bench, 30_000)]

    bench.until_done()

    assert [call.timeout_s for call in bench.vendors.calls] == [10, 60]
    assert bench.job.status is JobStatus.COMPLETED


def test_call_after_another_error_may_take_twice_the_median(bench: Bench) -> None:
    know(bench, 5_000)
    bench.put(a_job(last_errors=(an_error(code="vendor_timeout"), an_error())))
    bench.until_done()

    assert [call.timeout_s for call in bench.vendors.calls] == [10]


def test_samples_that_cannot_be_read_cost_no_job(bench: Bench) -> None:
    def busy(*_: object, **__: object) -> NoReturn:
        raise StoreBusyError("The tables are busy.", retry_after_s=1)

    know(bench, 5_000)
    bench.latencies.median_ms = busy  # type: ignore[method-assign]
    bench.run(bench.put(a_job()))

    assert [call.timeout_s for call in bench.vendors.calls] == [60]
    assert bench.job.status is JobStatus.COMPLETED


# ------------------------------------------------------------------ what is learnt


def test_answer_is_a_sample_of_what_the_vendor_took(bench: Bench) -> None:
    bench.run(bench.put(a_job()))

    assert learnt(bench) == [ANSWER.latency_ms]


def test_result_is_stored_before_anything_is_learnt_and_whatever_comes_of_that(
    bench: Bench,
) -> None:
    def busy(*_: object, **__: object) -> NoReturn:
        assert bench.job.status is JobStatus.COMPLETED
        raise StoreBusyError("The tables are busy.", retry_after_s=1)

    bench.latencies.add = busy  # type: ignore[method-assign]
    bench.run(bench.put(a_job()))

    assert bench.job.status is JobStatus.COMPLETED


def test_call_that_took_too_long_is_a_sample_of_the_longest(bench: Bench) -> None:
    know(bench, 5_000)
    bench.vendors.script = [taking(bench, 30_000)]
    bench.run(bench.put(a_job()))

    assert learnt(bench) == [5_000] * (RING - 1) + [LONGEST_MS]


def test_timeout_that_cannot_be_learnt_is_retried_as_ever(bench: Bench) -> None:
    def busy(*_: object, **__: object) -> NoReturn:
        raise StoreBusyError("The tables are busy.", retry_after_s=1)

    bench.latencies.add = busy  # type: ignore[method-assign]
    bench.vendors.script = [taking(bench, 90_000)]
    bench.run(bench.put(a_job()))

    assert bench.job.status is JobStatus.RETRYING


def test_connecting_that_took_too_long_is_no_sample(bench: Bench) -> None:
    def cannot_connect(_: VendorCall) -> NoReturn:
        bench.clock.advance(2_000)
        raise VendorError("vendor_timeout", "It took too long.", retryable=True)

    bench.vendors.script = [cannot_connect]
    bench.run(bench.put(a_job()))

    assert learnt(bench) == []


def test_call_that_the_lease_cut_off_is_no_sample(bench: Bench) -> None:
    bench.lease_ms = 30_000
    bench.vendors.script = [taking(bench, 50_000)]
    bench.run(bench.put(a_job()))

    assert bench.job.last_errors[-1].code == "vendor_timeout"
    assert learnt(bench) == []


def test_call_that_was_not_made_is_no_sample(bench: Bench) -> None:
    bench.lease_ms = 15_000
    bench.run(bench.put(a_job()))

    assert bench.vendors.total == 0
    assert learnt(bench) == []


@pytest.mark.parametrize("error", [unavailable(), rejected()], ids=str)
def test_other_failures_are_no_samples(bench: Bench, error: VendorError) -> None:
    def late(call: VendorCall) -> NoReturn:
        bench.clock.advance(s=call.timeout_s)
        raise error

    bench.vendors.script = [late]
    bench.run(bench.put(a_job()))

    assert learnt(bench) == []


def test_cancelled_call_is_no_sample(bench: Bench) -> None:
    def cancelled(call: VendorCall) -> NoReturn:
        bench.clock.advance(s=call.timeout_s)
        raise CallAbortedError("The call is no longer wanted.")

    bench.vendors.script = [cancelled]
    bench.run(bench.put(a_job()))

    assert learnt(bench) == []


# ------------------------------------------------------------------ a vendor that becomes slower


MOST_CALLS = 60
"""After the vendor's latency jumped, so many calls at most until the timeout follows."""


@pytest.mark.parametrize("seed", range(20))
def test_timeout_follows_a_latency_that_jumps_from_5_to_30_seconds(seed: int) -> None:
    """No job fails for it, and each is called twice at most."""
    bench = Bench()
    bench.latencies = InMemoryLatencies(bench.world, rand=random.Random(seed).random)  # noqa: S311
    know(bench, 5_000)
    allowed_s: list[float] = []

    for number in range(MOST_CALLS):
        ended = call_until_done(bench, f"job_{number}")
        allowed_s += [call.timeout_s for call in bench.vendors.calls[len(allowed_s) :]]
        assert ended.status is JobStatus.COMPLETED
        assert ended.attempts <= 2
        if len(allowed_s) >= MOST_CALLS:
            break

    assert allowed_s[0] == 10
    assert bench.latencies.median_ms(KEY, now_ms=bench.clock.now_ms()) is not None
    call_until_done(bench, "job_after")
    assert bench.vendors.calls[len(allowed_s)].timeout_s == 60


def call_until_done(bench: Bench, job_id: str) -> Job:
    """A job of a vendor that takes 30 s."""
    job = bench.put(a_job(job_id=job_id, job_key=job_id, cache_key=job_id))
    while job.open:
        bench.clock.set(max(bench.clock.now_ms(), job.not_before_epoch_ms or 0))
        bench.vendors.script = [taking(bench, 30_000)]
        bench.run(job)
        job = bench.world.jobs[job.tenant, job_id]
    return job
