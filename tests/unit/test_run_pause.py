"""Run, for a paused tenant: its jobs wait without a message, and what is under way ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.gate import PAUSE_LOOK_MS
from sluiceway.domain.job import JobStatus
from sluiceway.usecases.run_job import Acknowledge, GiveBack

from tests.fakes.in_memory import NOW_MS, LeaseRow
from tests.unit.bench import ANSWER, LEASE_MS, Bench, processing
from tests.unit.samples import CACHE_KEY, JOB_ID, a_job, an_error

if TYPE_CHECKING:
    from sluiceway.domain.job import Job
    from sluiceway.ports import VendorAnswer, VendorCall


@pytest.fixture
def bench() -> Bench:
    """The tenant acme is paused."""
    made = Bench()
    made.world.paused_tenants.add("acme")
    return made


def retried() -> Job:
    return replace(
        transitions.retrying(processing(), an_error(), not_before_ms=NOW_MS), due_at_epoch_ms=NOW_MS
    )


@pytest.mark.parametrize(("rand", "wait_ms"), [(0.0, 30_000), (0.5, 45_000), (1.0, 60_000)])
@pytest.mark.parametrize("job", [a_job(), retried()], ids=["queued", "retrying"])
@pytest.mark.parametrize("receives", [1, 9])
def test_job_of_a_paused_tenant_is_parked_and_nothing_is_spent(
    bench: Bench, job: Job, rand: float, wait_ms: int, receives: int
) -> None:
    bench.put(job)
    bench.rand = rand

    assert bench.deliver(receives=receives) == Acknowledge()

    assert bench.job == transitions.parked(job, not_before_ms=NOW_MS + wait_ms)
    assert bench.job.status is job.status
    assert bench.vendors.total == 0
    assert bench.world.leases == {}
    assert ("job_parked", JOB_ID, {"reason": "tenant_paused"}) in bench.telemetry.events


def test_copy_of_the_message_of_a_parked_job_is_acknowledged(bench: Bench) -> None:
    bench.put(a_job())
    bench.deliver()
    before = bench.job

    assert bench.deliver() == Acknowledge()
    assert bench.job == before


def test_job_of_another_tenant_runs(bench: Bench) -> None:
    job = bench.put(a_job(tenant="globex"))

    bench.run(job)

    assert bench.world.jobs["globex", JOB_ID].status is JobStatus.COMPLETED


def test_refresh_of_an_entry_of_a_paused_tenant_runs(bench: Bench) -> None:
    job = bench.put(a_job(tenant=f"refresh#{CACHE_KEY}", refreshes_for="acme"))
    bench.put_entry()

    bench.run(job)

    assert not bench.world.jobs[job.tenant, JOB_ID].open


def test_resumed_job_runs_as_if_nothing_had_been(bench: Bench) -> None:
    bench.put(a_job())
    bench.deliver()

    bench.world.paused_tenants.clear()
    bench.clock.advance(ms=2 * PAUSE_LOOK_MS)
    bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert (bench.job.attempts, bench.job.attempts_total) == (1, 1)


def test_deadline_counts_during_the_pause(bench: Bench) -> None:
    bench.put(a_job(deadline_epoch_ms=NOW_MS + 40_000))
    bench.rand = 1.0
    bench.deliver()
    parked = bench.job

    bench.clock.advance(ms=40_000)
    bench.clock.set(parked.not_before_epoch_ms or 0)
    bench.deliver()

    assert parked.due_at_epoch_ms == NOW_MS + 40_000
    assert bench.job.status is JobStatus.FAILED
    assert bench.job.error is not None
    assert bench.job.error.code == "deadline_exceeded"


def test_attempt_that_is_under_way_ends_normally(bench: Bench) -> None:
    bench.world.paused_tenants.clear()
    bench.put(a_job())

    def pause_and_deliver_a_copy(_: VendorCall) -> VendorAnswer:
        bench.world.paused_tenants.add("acme")
        copies.append(bench.deliver())
        return ANSWER

    copies: list[Any] = []
    bench.vendors.script = [pause_and_deliver_a_copy]

    assert bench.deliver() == Acknowledge()

    assert copies == [Acknowledge()]
    assert bench.job.status is JobStatus.COMPLETED
    assert bench.vendors.total == 1


def test_job_whose_worker_died_is_parked_as_it_is(bench: Bench) -> None:
    bench.put(processing(called_at_epoch_ms=None))
    bench.world.leases[CACHE_KEY] = LeaseRow(JOB_ID, "of-the-dead", 1, NOW_MS + LEASE_MS)
    bench.clock.advance(ms=LEASE_MS + 10_000)
    before = bench.job

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.PROCESSING
    assert bench.job.parked
    assert (bench.job.attempts, bench.job.fence) == (before.attempts, before.fence)
    assert bench.vendors.total == 0


def test_job_whose_key_another_took_over_waits_for_that_one(bench: Bench) -> None:
    bench.put(processing())
    bench.hold_lease()

    assert isinstance(bench.deliver(), GiveBack)

    assert not bench.job.parked


def test_job_that_moves_meanwhile_is_looked_at_again(bench: Bench) -> None:
    bench.put(a_job())
    apply = bench.jobs.apply

    def cancelled_first(old: Job, new: Job, **named: Any) -> Any:
        bench.jobs.apply = apply  # type: ignore[method-assign]
        apply(old, transitions.cancelled(old, now_ms=NOW_MS))
        return apply(old, new, **named)

    bench.jobs.apply = cancelled_first  # type: ignore[method-assign]

    assert bench.deliver() == Acknowledge()
    assert bench.job.status is JobStatus.CANCELLED
