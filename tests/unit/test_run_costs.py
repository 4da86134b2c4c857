"""What a job spends by calls that gave no result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import NotCalledError, VendorError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.payload import Payload

from tests.fakes.in_memory import NOW_MS
from tests.unit.bench import ANSWER, LEASE_MS, Bench, incompressible, processing
from tests.unit.samples import DAY_MS, JOB_ID, a_job
from tests.unit.test_run_cache import FailingPayloads

if TYPE_CHECKING:
    from sluiceway.ports import VendorAnswer, VendorCall

RESERVE = 5_000_000
COST = 330_000
TODAY = ("acme", "2026-01-01")


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put(a_job(cost_reserved_nanos=RESERVE))
    made.world.day_cost_nanos[TODAY] = RESERVE
    return made


def spent(bench: Bench) -> int:
    """What the day counts when the job has ended, and how it says so itself."""
    assert not bench.job.open
    assert bench.world.day_cost_nanos[TODAY] == bench.job.spent_nanos
    return bench.job.spent_nanos


def failing(code: str, *, sent: bool = True, http_status: int | None = None) -> VendorError:
    return VendorError(code, "It failed.", retryable=False, http_status=http_status, sent=sent)


@pytest.mark.parametrize(
    ("error", "cost"),
    [
        (failing("vendor_rejected", http_status=400), 0),
        (failing("vendor_quota_exhausted", http_status=429), 0),
        (failing("vendor_unavailable", sent=False), 0),
        (NotCalledError("vendor_auth_failed", "No key.", retryable=False), 0),
        (failing("vendor_timeout"), RESERVE),
        (failing("vendor_unavailable", http_status=500), RESERVE),
        (failing("vendor_bad_response", http_status=200), RESERVE),
        (failing("vendor_filtered", http_status=200), RESERVE),
    ],
    ids=lambda value: (
        f"{value.job_code} {value.http_status}" if isinstance(value, VendorError) else ""
    ),
)
def test_failed_job_spends_what_its_call_may_be_charged(
    bench: Bench, error: VendorError, cost: int
) -> None:
    bench.vendors.script = [error]

    bench.deliver()

    assert bench.job.status is JobStatus.FAILED
    assert spent(bench) == cost


def test_job_without_its_vendors_key_spends_nothing(bench: Bench) -> None:
    bench.vendors.unprepared = NotCalledError("vendor_auth_failed", "No key.", retryable=False)

    bench.deliver()

    assert spent(bench) == 0


def test_job_whose_input_is_gone_spends_nothing(bench: Bench) -> None:
    bench.world.jobs["acme", JOB_ID] = replace(bench.job, input=Payload(ref="inputs/gone"))

    bench.deliver()

    assert spent(bench) == 0


def test_job_that_timed_out_twice_spends_both_and_its_result(bench: Bench) -> None:
    timeout = VendorError("vendor_timeout", "It took too long.", retryable=True)
    bench.vendors.script = [timeout, timeout]

    bench.until_done()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.job.cost_nanos == COST
    assert spent(bench) == 2 * RESERVE + COST


def test_answer_that_tells_no_tokens_spends_the_reserve(bench: Bench) -> None:
    bench.vendors.default = ANSWER._replace(input_tokens=0, output_tokens=0)

    bench.deliver()

    assert (bench.job.status, bench.job.cost_nanos) == (JobStatus.COMPLETED, 0)
    assert spent(bench) == RESERVE


def test_paid_result_that_fits_nowhere_spends_its_cost(bench: Bench) -> None:
    bench.payloads = FailingPayloads(bench.world, failures=1_000)
    bench.vendors.default = ANSWER._replace(text=incompressible(400_000))

    bench.deliver()

    assert (bench.job.status, bench.job.cost_nanos) == (JobStatus.FAILED, None)
    assert spent(bench) == COST


def test_call_that_is_cancelled_spends_the_reserve(bench: Bench) -> None:
    def cancel(_: VendorCall) -> VendorAnswer:
        bench.jobs.apply(bench.job, transitions.cancelled(bench.job, now_ms=NOW_MS))
        return ANSWER

    bench.vendors.script = [cancel]

    bench.deliver()

    assert bench.job.status is JobStatus.CANCELLED
    assert spent(bench) == RESERVE


def test_job_whose_workers_all_died_spends_all_their_calls(bench: Bench) -> None:
    bench.world.jobs["acme", JOB_ID] = processing(
        attempts=4, cost_reserved_nanos=RESERVE, lost_nanos=3 * RESERVE
    )
    bench.hold_lease(JOB_ID, ends_in_ms=-DAY_MS)

    bench.deliver(receives=5)

    assert bench.job.error is not None
    assert bench.job.error.code == "worker_crashed"
    assert spent(bench) == 4 * RESERVE


def test_entry_that_is_there_after_a_crash_leaves_the_crash_spent(bench: Bench) -> None:
    bench.world.jobs["acme", JOB_ID] = processing(cost_reserved_nanos=RESERVE)
    bench.clock.advance(ms=2 * LEASE_MS)
    bench.put_entry()

    bench.deliver(receives=2)

    assert (bench.job.result_source, bench.job.attempts) == ("cache", 1)
    assert spent(bench) == RESERVE


def died_in_a_call() -> Bench:
    """The worker of a careful vendor's job died, and nobody knows what came of its call."""
    careful = Bench()
    careful.put(
        replace(
            processing(model="demo-careful", cost_reserved_nanos=RESERVE), called_at_epoch_ms=NOW_MS
        )
    )
    careful.world.day_cost_nanos[TODAY] = RESERVE
    careful.clock.advance(ms=2 * LEASE_MS)
    return careful


def test_outcome_that_stays_unknown_spends_one_call() -> None:
    careful = died_in_a_call()

    careful.deliver(receives=2)

    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"
    assert spent(careful) == RESERVE


def test_outcome_that_stays_unknown_after_a_start_spends_one_call() -> None:
    careful = died_in_a_call()
    entries = [careful.put_entry(), None]
    careful.cache.read = lambda _: entries.pop(0)  # type: ignore[method-assign]

    careful.deliver(receives=2)

    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"
    assert spent(careful) == RESERVE
