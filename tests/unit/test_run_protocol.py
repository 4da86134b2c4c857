"""Run, where it gets difficult: parking, unknown outcomes, redrives, cancels and lost leases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import CallAbortedError, StoreBusyError
from sluiceway.domain.job import LONGEST_RETURN_S, MAX_RECEIVES, Job, JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS, Lease
from sluiceway.ports import LeaseHeld, Moved, Started, VendorAnswer, VendorCall
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.run_job import Acknowledge, GiveBack

from tests.fakes.in_memory import NOW_MS, Claim, InMemoryJobs, LeaseRow
from tests.unit.bench import (
    ANSWER,
    FUNCTION_MS,
    LEASE_MS,
    Bench,
    processing,
    rejected,
    unavailable,
)
from tests.unit.samples import CACHE_KEY, CATALOGUE, DAY_MS, JOB_ID, a_job, an_error

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_OVER_MS = LEASE_MS + CLOCK_SKEW_MS + 1
FAILED_MS = NOW_MS - 60_000


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put(a_job())
    return made


def retrying(*, not_before_ms: int, parked: bool = False, **members: object) -> Job:
    """A job that waits for its second attempt."""
    job = processing(**members)  # type: ignore[arg-type]
    return transitions.retrying(job, an_error(), not_before_ms=not_before_ms, parked=parked)


class DyingJobs(InMemoryJobs):
    """Whose process ends when it is about to write any transition but a start."""

    def apply(self, *_: object, **__: object) -> NoReturn:
        raise SystemExit("the machine is gone")


def crash(_: VendorCall) -> VendorAnswer:
    raise SystemExit("the machine is gone")


def crash_in_the_call(bench: Bench, *, receives: int = 1) -> None:
    """A delivery whose worker dies while the vendor works; its lease is over afterwards."""
    bench.vendors.script = [crash]
    with pytest.raises(SystemExit):
        bench.deliver(receives=receives)
    bench.clock.advance(ms=LEASE_OVER_MS)


# ------------------------------------------------------------------ parking: the seventh receive


@pytest.mark.parametrize("receives", [1, 6])
def test_message_that_waits_for_a_lease_is_returned_through_its_sixth_receive(
    bench: Bench, receives: int
) -> None:
    job = bench.job
    bench.hold_lease()

    decision = bench.deliver(receives=receives)

    assert isinstance(decision, GiveBack)
    assert bench.job == job


@pytest.mark.parametrize("receives", [7, 8, 9, 10])
def test_message_that_waits_for_a_lease_is_parked_from_its_seventh_receive_on(
    bench: Bench, receives: int
) -> None:
    bench.hold_lease()

    decision = bench.deliver(receives=receives)

    job = bench.job
    assert decision == Acknowledge()
    assert (job.status, job.parked, job.attempts) == (JobStatus.QUEUED, True, 0)
    assert job.not_before_epoch_ms == job.due_at_epoch_ms == NOW_MS + 45_000
    assert bench.telemetry.names == ["lease_contention", "job_parked"]


def test_parked_job_keeps_claim_and_place_and_spends_no_attempt(bench: Bench) -> None:
    lease = bench.hold_lease()

    bench.deliver(receives=7)

    assert bench.world.claims[bench.job.job_key].job_id == JOB_ID
    assert bench.world.open_jobs("acme") == 1
    assert bench.world.leases[CACHE_KEY] == lease
    assert (bench.job.attempts, bench.job.attempts_total, bench.vendors.total) == (0, 0, 0)


@pytest.mark.parametrize("receives", range(1, MAX_RECEIVES + 1))
@pytest.mark.parametrize("wish_s", [None, 1.0, 120.0, 121.0, 3_600.0])
def test_message_is_never_hidden_so_long_that_sqs_would_refuse_it(  # case R09
    bench: Bench, receives: int, wish_s: float | None
) -> None:
    bench.vendors.script = [unavailable(retry_after_s=wish_s)]

    decisions = [bench.deliver(receives=receives)]
    bench.clock.advance(s=0.5)
    decisions.append(bench.deliver(receives=receives))

    hidden_s = [one.delay_s for one in decisions if isinstance(one, GiveBack)]
    assert max(hidden_s, default=0) <= LONGEST_RETURN_S


def test_message_runs_on_its_seventh_receive_all_the_same(bench: Bench) -> None:
    assert bench.deliver(receives=7) == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED


@pytest.mark.parametrize(("receives", "parked"), [(6, False), (7, True), (10, True)])
def test_retry_is_parked_from_the_seventh_receive_on(
    bench: Bench, receives: int, *, parked: bool
) -> None:
    bench.vendors.script = [unavailable()]

    decision = bench.deliver(receives=receives)

    assert decision == (Acknowledge() if parked else GiveBack(1.0))
    assert (bench.job.status, bench.job.attempts) == (JobStatus.RETRYING, 1)
    assert (bench.job.parked, bench.job.not_before_epoch_ms) == (parked, NOW_MS + 1_000)
    assert bench.job.due_at_epoch_ms == NOW_MS + (1_000 if parked else 121_000)
    assert ("job_parked" in bench.telemetry.names) is parked


@pytest.mark.parametrize(("wish_s", "parked"), [(120.0, False), (120.5, True), (3600.0, True)])
def test_retry_is_parked_when_it_is_over_two_minutes_ahead(
    bench: Bench, wish_s: float, *, parked: bool
) -> None:
    bench.vendors.script = [unavailable(retry_after_s=wish_s)]

    decision = bench.deliver()

    assert decision == (Acknowledge() if parked else GiveBack(wish_s))
    assert bench.job.parked is parked
    assert bench.job.not_before_epoch_ms == NOW_MS + wish_s * 1000


def test_parked_retry_releases_the_lease_and_keeps_claim_and_reason(bench: Bench) -> None:
    bench.vendors.script = [unavailable(retry_after_s=300.0)]

    bench.deliver()

    assert bench.world.leases[CACHE_KEY] == LeaseRow(JOB_ID, None, 1, 0)
    assert bench.world.claims[bench.job.job_key].job_id == JOB_ID
    assert bench.job.error is not None
    assert (bench.job.error.code, len(bench.job.last_errors)) == ("vendor_unavailable", 1)


def test_retry_is_parked_no_later_than_the_deadline() -> None:
    bench = Bench()
    bench.put(a_job(deadline_epoch_ms=NOW_MS + 200_000))
    bench.vendors.script = [unavailable(retry_after_s=300.0)]

    bench.deliver()

    assert bench.job.due_at_epoch_ms == NOW_MS + 200_000
    assert bench.job.not_before_epoch_ms == NOW_MS + 300_000


@pytest.mark.parametrize(
    "job",
    [
        transitions.parked(a_job(), not_before_ms=NOW_MS + 300_000),
        retrying(not_before_ms=NOW_MS + 300_000, parked=True),
    ],
    ids=["queued", "retrying"],
)
@pytest.mark.parametrize("receives", [1, 7])
def test_early_copy_of_a_parked_job_is_acknowledged(job: Job, receives: int) -> None:
    # The sweeper sends another in time, by which it isn't moved.
    bench = Bench()
    bench.put(job)

    decision = bench.deliver(receives=receives)

    assert decision == Acknowledge()
    assert bench.job == job
    assert bench.vendors.total == 0


def test_early_copy_of_a_retrying_job_waits_for_the_rest() -> None:
    bench = Bench()
    job = bench.put(retrying(not_before_ms=NOW_MS + 70_000))

    decision = bench.deliver(receives=6)

    assert decision == GiveBack(70)
    assert bench.job == job


def test_early_copy_of_a_retrying_job_is_parked_until_the_same_time_on_receive_seven() -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + 70_000))

    decision = bench.deliver(receives=7)

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.parked) == (JobStatus.RETRYING, True)
    assert bench.job.not_before_epoch_ms == bench.job.due_at_epoch_ms == NOW_MS + 70_000
    assert bench.job.error == an_error()


def test_message_of_a_parked_job_runs_at_its_time() -> None:
    bench = Bench()
    bench.put(transitions.parked(a_job(), not_before_ms=NOW_MS + 300_000))
    bench.clock.advance(ms=300_000)

    assert bench.deliver() == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED
    assert (bench.job.parked, bench.job.not_before_epoch_ms) == (False, None)


def test_parked_job_that_was_moved_meanwhile_is_looked_at_again(bench: Bench) -> None:
    class Moving(InMemoryJobs):
        """Whose job is started by somebody else when it is about to be parked."""

        def apply(self, old: Job, new: Job, **named: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
            if new.parked:
                bench.world.leases[CACHE_KEY] = LeaseRow(JOB_ID, "their-token", 5, NOW_MS + DAY_MS)
                self._write(old, old, replace(old, status=JobStatus.PROCESSING, fence=5))
                bench.jobs = InMemoryJobs(bench.world, clock=bench.clock)
            return super().apply(old, new, **named)  # type: ignore[arg-type]

    bench.hold_lease()
    bench.jobs = Moving(bench.world, clock=bench.clock)

    assert bench.deliver(receives=7) == Acknowledge()
    assert (bench.job.status, bench.job.parked) == (JobStatus.PROCESSING, False)


class RestlessJobs(InMemoryJobs):
    """A job that somebody else moves whenever it is about to be started."""

    def start(
        self, job: Job, *, token: str, lease_ms: int, now_ms: int, started: Callable[[int], Job]
    ) -> Started | LeaseHeld | Moved:
        del token, lease_ms, now_ms, started
        return Moved(job)


@pytest.mark.parametrize("receives", [7, 10])
def test_job_that_keeps_moving_is_left_to_the_sweeper_from_receive_seven_on(
    bench: Bench, receives: int
) -> None:
    bench.jobs = RestlessJobs(bench.world, clock=bench.clock)

    assert bench.deliver(receives=receives) == Acknowledge()


def test_open_jobs_message_is_never_returned_after_its_sixth_receive() -> None:
    # Whatever is in the way, only a crash brings an open job's message to the dead-letter queue.
    ways: list[Callable[[Bench], object]] = [
        lambda bench: bench.hold_lease(),
        lambda bench: bench.vendors.script.append(unavailable()),
        lambda bench: bench.vendors.script.append(unavailable(retry_after_s=90)),
        lambda bench: bench.put(retrying(not_before_ms=NOW_MS + 16_000)),
        lambda bench: setattr(bench, "lease_ms", 15_000),
    ]
    for way in ways:
        for receives in (7, 8, 9, 10):
            bench = Bench()
            bench.put(a_job())
            way(bench)

            assert bench.deliver(receives=receives) == Acknowledge()
            assert bench.job.open
            assert bench.job.due_at_epoch_ms is not None


# ------------------------------------------------------------------ holding


HOLD_MAX_MS = round(CATALOGUE.service.hold_max_s * 1000)


@pytest.mark.parametrize("parked", [True, False])
@pytest.mark.parametrize("early_ms", [1, 2_345, HOLD_MAX_MS])
@pytest.mark.parametrize("receives", [1, 7, 10])
def test_message_that_is_a_little_early_is_held_and_runs_at_its_time(
    early_ms: int, receives: int, *, parked: bool
) -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + early_ms, parked=parked))

    decision = bench.deliver(receives=receives)

    assert decision == Acknowledge()
    assert bench.job.status is JobStatus.COMPLETED
    assert bench.job.started_at_epoch_ms == NOW_MS + early_ms
    assert bench.telemetry.names[:2] == ["job_held", "lease_acquired"]


@pytest.mark.parametrize(("parked", "decision"), [(True, Acknowledge()), (False, GiveBack(15.001))])
def test_message_that_is_earlier_is_not_held(decision: object, *, parked: bool) -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + HOLD_MAX_MS + 1, parked=parked))

    assert bench.deliver() == decision
    assert bench.clock.now_ms() == NOW_MS


@pytest.mark.parametrize(("parked", "decision"), [(True, Acknowledge()), (False, GiveBack(5.0))])
def test_message_is_not_held_where_too_little_time_would_be_left_for_the_call(
    decision: object, *, parked: bool
) -> None:
    bench = Bench(function_ms=LEASE_MS - 1)
    bench.put(retrying(not_before_ms=NOW_MS + 5_000, parked=parked))

    assert bench.deliver() == decision
    assert bench.clock.now_ms() == NOW_MS


def test_call_after_the_longest_hold_has_all_its_time_and_a_lease_within_the_function() -> None:
    bench = Bench(function_ms=LEASE_MS)
    bench.put(retrying(not_before_ms=NOW_MS + HOLD_MAX_MS))
    ends: list[int | None] = []

    def answer(call: VendorCall) -> VendorAnswer:
        ends.append(bench.world.leases[CACHE_KEY].ends_at_epoch_ms)
        assert call.timeout_s == call.model.timeout_s.max
        return ANSWER

    bench.vendors.script = [answer]

    assert bench.deliver() == Acknowledge()
    assert ends == [NOW_MS + LEASE_MS]


def test_held_job_is_looked_at_again_before_it_starts() -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + 5_000))
    bench.pause = lambda seconds: (  # type: ignore[assignment]
        bench.clock.pause(seconds),
        cancel_job(JOB_ID, "acme", jobs=bench.jobs, clock=bench.clock),
    )

    assert bench.deliver() == Acknowledge()
    assert (bench.job.status, bench.vendors.total) == (JobStatus.CANCELLED, 0)


def test_held_job_that_is_parked_again_is_not_held_for_ever() -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + 15_000))

    def park_again(seconds: float) -> None:
        bench.clock.pause(seconds)
        later = transitions.parked(bench.job, not_before_ms=bench.clock.now_ms() + 15_000)
        bench.world.jobs["acme", JOB_ID] = later

    bench.pause = park_again

    assert bench.deliver() == Acknowledge()
    assert bench.clock.now_ms() == NOW_MS + 15_000
    assert bench.job.parked


def test_two_copies_that_are_held_make_one_call() -> None:
    bench = Bench()
    bench.put(retrying(not_before_ms=NOW_MS + 5_000))
    decisions = []

    def another(seconds: float) -> None:
        bench.pause = bench.clock.pause
        decisions.append(bench.deliver())
        bench.clock.pause(max(0, seconds - (bench.clock.now_ms() - NOW_MS) / 1000))

    bench.pause = another
    decisions.append(bench.deliver())

    assert decisions == [Acknowledge(), Acknowledge()]
    assert bench.vendors.total == 1


# ------------------------------------------------------------------ unknown outcomes


@pytest.fixture
def careful() -> Bench:
    """A job of a vendor that must not be asked twice."""
    made = Bench()
    made.put(a_job(model="demo-careful"))
    return made


def test_call_of_a_careful_vendor_is_written_down_before_it_is_made(careful: Bench) -> None:
    seen: list[Job] = []
    careful.vendors.script = [lambda _: (seen.append(careful.job), ANSWER)[1]]
    careful.clock.advance(s=2)

    careful.deliver()

    assert [(job.status, job.called_at_epoch_ms) for job in seen] == [
        (JobStatus.PROCESSING, NOW_MS + 2_000)
    ]


def test_call_of_any_other_vendor_is_not_written_down(bench: Bench) -> None:
    seen: list[int | None] = []
    bench.vendors.script = [lambda _: (seen.append(bench.job.called_at_epoch_ms), ANSWER)[1]]

    bench.deliver()

    assert seen == [None]


def test_job_of_a_careful_vendor_fails_when_the_outcome_is_unknown(careful: Bench) -> None:
    crash_in_the_call(careful)

    decision = careful.deliver(receives=2)

    job = careful.job
    assert decision == GiveBack(0.0)
    assert job.error is not None
    assert (job.status, job.error.code, job.error.retryable) == (
        JobStatus.FAILED,
        "outcome_unknown",
        False,
    )
    assert careful.vendors.total == job.attempts_total == 1
    assert careful.world.claims == {}


def test_unknown_outcome_is_told_before_attempts_that_are_used_up(careful: Bench) -> None:
    careful.world.jobs["acme", JOB_ID] = replace(careful.job, attempts=3, attempts_total=3)
    crash_in_the_call(careful)

    careful.deliver(receives=2)

    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"


def test_passed_deadline_is_told_before_an_unknown_outcome(careful: Bench) -> None:
    crash_in_the_call(careful)
    careful.clock.set(NOW_MS + DAY_MS)

    careful.deliver(receives=2)

    assert careful.job.error is not None
    assert careful.job.error.code == "deadline_exceeded"


def test_job_of_a_careful_vendor_whose_worker_died_before_the_call_starts_again(
    careful: Bench,
) -> None:
    careful.jobs = DyingJobs(careful.world, clock=careful.clock)
    with pytest.raises(SystemExit):
        careful.deliver()
    careful.jobs = InMemoryJobs(careful.world, clock=careful.clock)
    careful.clock.advance(ms=LEASE_OVER_MS)

    assert careful.deliver(receives=2) == Acknowledge()
    assert (careful.job.status, careful.vendors.total) == (JobStatus.COMPLETED, 1)


def test_job_of_a_forgiving_vendor_starts_again_when_the_outcome_is_unknown(bench: Bench) -> None:
    crash_in_the_call(bench)

    assert bench.deliver(receives=2) == Acknowledge()
    assert bench.vendors.per_key == {JOB_ID: 2}


def test_fresh_entry_wins_over_an_unknown_outcome(careful: Bench) -> None:
    crash_in_the_call(careful)
    entry = careful.put_entry()

    decision = careful.deliver(receives=2)

    assert decision == Acknowledge()
    assert (careful.job.status, careful.job.result) == (JobStatus.COMPLETED, entry.result)
    assert careful.job.called_at_epoch_ms is None
    assert (careful.vendors.total, careful.job.attempts_total) == (1, 1)


def test_stale_entry_does_not_win_over_an_unknown_outcome(careful: Bench) -> None:
    crash_in_the_call(careful)
    careful.put_entry(
        stored_at_epoch_ms=NOW_MS - 1, soft_expires_at_epoch_ms=careful.clock.now_ms()
    )

    careful.deliver(receives=2)

    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"


def test_entry_that_is_gone_after_the_start_leaves_the_outcome_unknown(careful: Bench) -> None:
    crash_in_the_call(careful)
    careful.put_entry()
    read = careful.cache.read
    entries = [read(CACHE_KEY), None]
    careful.cache.read = lambda _: entries.pop(0)  # type: ignore[method-assign]

    decision = careful.deliver(receives=2)

    assert decision == GiveBack(0.0)
    assert careful.job.error is not None
    assert (careful.job.status, careful.job.error.code) == (JobStatus.FAILED, "outcome_unknown")
    assert careful.vendors.total == 1


def test_outcome_stays_unknown_until_it_is_known_whatever_starts_in_between(
    careful: Bench,
) -> None:
    # A: calls, dies ── B: starts, for there is an entry; dies before it completes the job.
    # C: the entry has expired: C may not call, for nobody knows yet what became of A's call.
    crash_in_the_call(careful)
    careful.put_entry(
        stored_at_epoch_ms=NOW_MS - 1,
        soft_expires_at_epoch_ms=careful.clock.now_ms() + 1_000,
    )
    careful.jobs = DyingJobs(careful.world, clock=careful.clock)
    with pytest.raises(SystemExit):
        careful.deliver(receives=2)
    careful.jobs = InMemoryJobs(careful.world, clock=careful.clock)
    careful.clock.advance(ms=LEASE_OVER_MS)

    careful.deliver(receives=3)

    assert careful.vendors.total == 1
    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"


def test_mark_of_a_call_is_cleared_by_a_retry(careful: Bench) -> None:
    careful.vendors.script = [unavailable()]

    careful.deliver()
    retried = careful.job
    careful.clock.advance(s=2)
    decision = careful.deliver(receives=2)

    assert (retried.status, retried.called_at_epoch_ms) == (JobStatus.RETRYING, None)
    assert decision == Acknowledge()
    assert careful.vendors.total == careful.job.attempts_total == 2


@pytest.mark.parametrize("receives", [1, 10])
def test_mark_of_a_call_is_cleared_by_the_end(careful: Bench, receives: int) -> None:
    careful.vendors.script = [rejected()]

    careful.deliver(receives=receives)

    assert careful.job.called_at_epoch_ms is None


def test_mark_of_a_call_outlives_a_wait_for_somebody_elses_lease(careful: Bench) -> None:
    crash_in_the_call(careful)
    careful.hold_lease()

    assert careful.deliver(receives=7) == Acknowledge()
    assert careful.job.parked
    assert careful.job.called_at_epoch_ms == NOW_MS
    careful.clock.advance(ms=LEASE_OVER_MS)
    careful.deliver()

    assert careful.job.error is not None
    assert careful.job.error.code == "outcome_unknown"
    assert careful.vendors.total == 1


def test_call_of_a_careful_vendor_is_not_made_by_a_worker_that_was_overtaken(
    careful: Bench,
) -> None:
    class Overtaken(InMemoryJobs):
        """Whose job is taken over when the mark is about to be written."""

        def apply(self, old: Job, new: Job, **named: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
            if new.called_at_epoch_ms:
                self._write(old, old, replace(old, fence=2, attempts_total=2))
            return super().apply(old, new, **named)  # type: ignore[arg-type]

    careful.jobs = Overtaken(careful.world, clock=careful.clock)

    careful.deliver()

    assert careful.vendors.total == 0
    assert careful.telemetry.names[-1] == "lease_lost"


# ------------------------------------------------------------------ redrives and leftovers


def ended(*, status: JobStatus = JobStatus.DEAD_LETTERED, **members: object) -> Bench:
    """A job that failed a minute ago after four attempts."""
    bench = Bench()
    job = replace(
        a_job(),
        status=status,
        failed_at_epoch_ms=FAILED_MS,
        attempts=4,
        attempts_total=4,
        fence=4,
        error=an_error(),
        last_errors=(an_error(),),
        due_at_epoch_ms=None,
        due_shard=None,
        **members,
    )
    bench.put(job)
    return bench


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.DEAD_LETTERED])
@pytest.mark.parametrize(("after_ms", "redriven"), [(5_000, False), (5_001, True)])
def test_message_is_a_redrive_when_it_was_enqueued_over_five_seconds_after_the_failure(
    status: JobStatus, after_ms: int, *, redriven: bool
) -> None:
    bench = ended(status=status)
    before = bench.job

    decision = bench.deliver(enqueued_at_ms=FAILED_MS + after_ms)

    assert (bench.vendors.total == 1) is redriven
    if redriven:
        assert decision == Acknowledge()
        assert bench.job.status is JobStatus.COMPLETED
    else:
        assert decision == GiveBack(0.0)
        assert bench.job == before


def test_redriven_job_runs_at_once_with_fresh_attempts_and_its_old_ones_counted() -> None:
    bench = ended()
    bench.vendors.script = [unavailable()]

    bench.deliver()

    job = bench.job
    assert (job.status, job.attempts, job.attempts_total, job.redrives) == (
        JobStatus.RETRYING,
        1,
        5,
        1,
    )
    assert (job.failed_at_epoch_ms, job.enqueued_at_epoch_ms) == (None, NOW_MS)
    assert "job_redriven" in bench.telemetry.names


def test_redriven_job_has_its_whole_deadline_again() -> None:
    bench = ended(deadline_epoch_ms=NOW_MS - 1, deadline_s=3_600)

    bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.job.deadline_epoch_ms == NOW_MS + 3_600_000


def test_redriven_jobs_row_outlives_the_dead_letter_queue_again() -> None:
    bench = ended(deadline_s=3_600, ttl_epoch_s=NOW_MS // 1000 + 5)

    bench.deliver()

    assert bench.job.ttl_epoch_s > NOW_MS // 1000 + 3_600 + 14 * 24 * 3600


def test_redriven_job_runs_in_the_lane_where_it_arrives() -> None:
    bench = ended()
    bench.vendors.script = [unavailable()]

    bench.deliver(lane="batch")

    assert bench.job.lane == "batch"


def test_redriven_job_counts_as_in_flight_until_its_end() -> None:
    bench = ended()
    seen: list[tuple[int, Claim | None]] = []
    bench.vendors.script = [
        lambda _: (
            seen.append((bench.world.open_jobs("acme"), bench.world.claims.get(bench.job.job_key))),
            ANSWER,
        )[1]
    ]

    bench.deliver()

    ((in_flight, claim),) = seen
    assert in_flight == 1
    assert claim is not None
    assert claim.job_id == JOB_ID
    assert bench.world.open_jobs("acme") == 0
    assert bench.world.claims == {}


def test_redrive_that_fails_again_may_be_redriven_again() -> None:
    bench = ended()
    bench.vendors.script = [rejected()]
    bench.deliver()
    again_ms = bench.clock.advance(s=60)

    decision = bench.deliver(enqueued_at_ms=again_ms)

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.redrives) == (JobStatus.COMPLETED, 2)


def test_second_copy_of_a_redrive_runs_nothing_twice() -> None:
    bench = ended()

    decisions = [bench.deliver(), bench.deliver()]

    assert decisions == [Acknowledge(), Acknowledge()]
    assert (bench.vendors.total, bench.job.redrives) == (1, 1)


def test_redrive_of_a_job_with_an_unknown_outcome_is_an_operators_wish_to_call_again(
    careful: Bench,
) -> None:
    crash_in_the_call(careful)
    careful.deliver(receives=2)
    again_ms = careful.clock.advance(s=60)

    assert careful.deliver(enqueued_at_ms=again_ms) == Acknowledge()
    assert (careful.job.status, careful.vendors.total) == (JobStatus.COMPLETED, 2)


@pytest.mark.parametrize("receives", [1, 9, 10])
def test_message_of_a_discarded_job_is_acknowledged(receives: int) -> None:
    bench = ended()
    job = transitions.discarded(bench.job, now_ms=NOW_MS)
    bench.world.jobs["acme", JOB_ID] = job

    decision = bench.deliver(receives=receives)

    assert decision == Acknowledge()
    assert bench.job == job
    assert bench.vendors.total == 0


@pytest.mark.parametrize("receives", range(1, 9))
def test_leftover_is_returned_at_once_through_receive_eight(receives: int) -> None:
    bench = ended(status=JobStatus.FAILED)
    job = bench.job

    assert bench.deliver(receives=receives, enqueued_at_ms=FAILED_MS) == GiveBack(0.0)
    assert bench.job == job


@pytest.mark.parametrize(
    ("after_s", "delay_s"), [(0, 10.0), (2.5, 7.5), (9.999, 0.001), (10, 0.0), (60, 0.0)]
)
def test_leftover_is_returned_on_receive_nine_with_what_is_left_of_ten_seconds(
    after_s: float, delay_s: float
) -> None:
    bench = ended(status=JobStatus.FAILED)
    bench.clock.set(FAILED_MS + round(after_s * 1000))

    assert bench.deliver(receives=9, enqueued_at_ms=FAILED_MS) == GiveBack(delay_s)


def test_leftover_writes_dead_lettered_on_receive_ten_before_it_is_returned() -> None:
    bench = ended(status=JobStatus.FAILED)

    assert bench.deliver(receives=10, enqueued_at_ms=FAILED_MS) == GiveBack(0.0)
    assert bench.job.status is JobStatus.DEAD_LETTERED
    assert bench.telemetry.names == ["job_dead_lettered"]


def test_leftover_of_a_job_that_was_redriven_meanwhile_is_no_leftover_any_more() -> None:
    # Its copies are duplicates like any others.
    bench = ended()
    bench.deliver()

    assert bench.deliver(enqueued_at_ms=FAILED_MS, receives=4) == Acknowledge()
    assert bench.vendors.total == 1


def test_bounced_message_is_never_taken_for_a_redrive(bench: Bench) -> None:
    bench.vendors.script = [rejected()]
    decisions = []
    for receives in range(1, 11):
        decision = bench.deliver(receives=receives)
        assert isinstance(decision, GiveBack)
        decisions.append(decision.delay_s)
        bench.clock.advance(s=decision.delay_s)

    assert decisions == [0.0] * 8 + [10.0, 0.0]
    assert (bench.job.status, bench.vendors.total) == (JobStatus.DEAD_LETTERED, 1)


# ------------------------------------------------------------------ cancel during the call


def cancel(bench: Bench) -> None:
    cancel_job(JOB_ID, "acme", jobs=bench.jobs, clock=bench.clock)


def aborting(bench: Bench, meanwhile: Callable[[], object]) -> Callable[[VendorCall], VendorAnswer]:
    """A vendor who takes so long that the worker asks whether the answer is still wanted."""

    def call(call: VendorCall) -> VendorAnswer:
        bench.clock.advance(s=20)
        meanwhile()
        if not call.still_wanted():
            raise CallAbortedError("The call is no longer wanted.")
        return ANSWER

    return call


@pytest.mark.parametrize("receives", [1, 7])
def test_cancel_during_the_call_aborts_it_and_releases_the_lease(
    bench: Bench, receives: int
) -> None:
    bench.vendors.script = [aborting(bench, lambda: cancel(bench))]

    decision = bench.deliver(receives=receives)

    assert decision == Acknowledge()
    assert (bench.job.status, bench.job.result) == (JobStatus.CANCELLED, None)
    assert bench.world.leases[CACHE_KEY] == LeaseRow(JOB_ID, None, 1, 0)
    assert bench.world.open_jobs("acme") == 0
    assert bench.telemetry.names[-1] == "lease_lost"


def test_cancel_before_the_call_leaves_nothing_to_call_for(bench: Bench) -> None:
    cancel(bench)

    assert bench.deliver() == Acknowledge()
    assert bench.vendors.total == 0


def test_answer_that_comes_after_the_cancel_is_counted_with_its_cost(bench: Bench) -> None:
    price = CATALOGUE.models["demo-chat"].price
    bench.vendors.script = [lambda _: (cancel(bench), ANSWER)[1]]

    bench.deliver()

    cost_nanos = price.cost_nanos(ANSWER.input_tokens, ANSWER.output_tokens)
    assert ("result_lost", JOB_ID, {"cost_nanos": cost_nanos}) in bench.telemetry.events
    assert cost_nanos > 0


def test_answer_that_was_filtered_is_counted_with_its_cost(bench: Bench) -> None:
    price = CATALOGUE.models["demo-chat"].price
    bench.vendors.script = [
        rejected(input_tokens=10, output_tokens=20),
    ]

    bench.deliver()

    (fields,) = (told for name, _, told in bench.telemetry.events if name == "vendor_error")
    assert fields["cost_nanos"] == price.cost_nanos(10, 20)


def test_cancel_after_the_answer_came_throws_it_away(bench: Bench) -> None:
    bench.vendors.script = [lambda _: (cancel(bench), ANSWER)[1]]

    assert bench.deliver() == Acknowledge()
    assert (bench.job.status, bench.job.result) == (JobStatus.CANCELLED, None)
    assert bench.world.entries == {}
    assert bench.world.leases[CACHE_KEY].token is None


def test_equal_request_after_a_cancel_during_the_call_gets_a_job_that_runs(bench: Bench) -> None:
    bench.vendors.script = [aborting(bench, lambda: cancel(bench))]
    bench.deliver()
    bench.put(a_job(job_id="job_2"))

    assert bench.deliver(job_id="job_2") == Acknowledge()
    assert bench.world.jobs["acme", "job_2"].status is JobStatus.COMPLETED


# ------------------------------------------------------------------ renewal


def test_long_call_renews_its_lease_from_each_look(bench: Bench) -> None:
    ends: list[int | None] = []

    def slow(call: VendorCall) -> VendorAnswer:
        for _ in range(3):
            bench.clock.advance(s=3)
            assert call.still_wanted()
            ends.append(bench.world.leases[CACHE_KEY].ends_at_epoch_ms)
        return ANSWER

    bench.vendors.script = [slow]

    assert bench.deliver() == Acknowledge()
    assert ends == [NOW_MS + LEASE_MS + ms for ms in (3_000, 6_000, 9_000)]


def test_lease_is_renewed_to_the_functions_end_at_most(bench: Bench) -> None:
    ends: list[int | None] = []

    def slow(call: VendorCall) -> VendorAnswer:
        bench.clock.advance(s=50)
        assert call.still_wanted()
        ends.append(bench.world.leases[CACHE_KEY].ends_at_epoch_ms)
        return ANSWER

    bench.vendors.script = [slow]

    bench.deliver()

    assert ends == [NOW_MS + FUNCTION_MS]


def test_call_that_asks_is_asked_for_often_enough_to_keep_its_lease(bench: Bench) -> None:
    bench.deliver()

    (call,) = bench.vendors.calls
    assert call.ask_every_s <= (LEASE_MS - CLOCK_SKEW_MS) / 1000 / 2


def test_error_after_a_renewal_is_written_under_the_renewed_lease(bench: Bench) -> None:
    def slow(call: VendorCall) -> VendorAnswer:
        bench.clock.advance(s=9)
        assert call.still_wanted()
        raise unavailable()

    bench.vendors.script = [slow]

    assert bench.deliver() == GiveBack(1.0)
    assert bench.world.leases[CACHE_KEY] == LeaseRow(JOB_ID, None, 1, 0)


def take_over(bench: Bench) -> None:
    """Another worker has the job."""
    bench.world.leases[CACHE_KEY] = LeaseRow(JOB_ID, "their-token", 2, NOW_MS + DAY_MS)
    bench.world.jobs["acme", JOB_ID] = replace(bench.job, fence=2, attempts=2, attempts_total=2)


@pytest.mark.parametrize(("receives", "decision"), [(1, GiveBack(1.5)), (7, Acknowledge())])
def test_lease_lost_during_the_call_aborts_it_and_leaves_the_other_worker_alone(
    bench: Bench, receives: int, decision: GiveBack | Acknowledge
) -> None:
    bench.vendors.script = [aborting(bench, lambda: take_over(bench))]

    assert bench.deliver(receives=receives) == decision
    assert bench.world.leases[CACHE_KEY].token == "their-token"
    assert (bench.job.status, bench.job.fence) == (JobStatus.PROCESSING, 2)
    assert bench.world.entries == {}


@pytest.mark.parametrize("turn", [ANSWER, unavailable(), rejected()])
@pytest.mark.parametrize("receives", [7, 8, 9, 10])
def test_message_of_a_worker_that_lost_its_lease_is_acknowledged_from_receive_seven_on(
    bench: Bench, receives: int, turn: object
) -> None:
    def overtaken(_: VendorCall) -> VendorAnswer:
        take_over(bench)
        if isinstance(turn, Exception):
            raise turn
        return ANSWER

    bench.vendors.script = [overtaken]

    assert bench.deliver(receives=receives) == Acknowledge()
    assert bench.job.status is JobStatus.PROCESSING


def test_worker_whose_job_failed_meanwhile_sends_its_message_on(bench: Bench) -> None:
    def fail_it(_: VendorCall) -> VendorAnswer:
        job = bench.job
        bench.jobs.apply(
            job,
            transitions.failed(job, an_error(), now_ms=NOW_MS, last_receive=False),
        )
        return ANSWER

    bench.vendors.script = [fail_it]

    assert bench.deliver(receives=8) == GiveBack(0.0)
    assert bench.job.status is JobStatus.FAILED


class BusyRenewals(InMemoryJobs):
    """Whose renewals always meet others."""

    def renew(self, job: Job, lease: Lease, *, ends_at_ms: int) -> Lease | None:
        del job, lease, ends_at_ms
        raise StoreBusyError("The tables are busy.", retry_after_s=1)


def test_call_goes_on_while_the_lease_that_could_not_be_renewed_lasts(bench: Bench) -> None:
    bench.jobs = BusyRenewals(bench.world, clock=bench.clock)
    answers: list[bool] = []

    def slow(call: VendorCall) -> VendorAnswer:
        for at_ms in (1, LEASE_MS - CLOCK_SKEW_MS - 1, LEASE_MS - CLOCK_SKEW_MS, LEASE_MS):
            bench.clock.set(NOW_MS + at_ms)
            answers.append(call.still_wanted())
        return ANSWER

    bench.vendors.script = [slow]

    bench.deliver()

    assert answers == [True, True, False, False]


# ------------------------------------------------------------------ the last receive


def test_worker_that_finds_all_attempts_dead_on_the_last_receive_dead_letters_at_once() -> None:
    bench = Bench()
    bench.put(processing(attempts=4))
    bench.hold_lease(JOB_ID, ends_in_ms=-DAY_MS)

    assert bench.deliver(receives=10) == GiveBack(0.0)
    assert bench.job.status is JobStatus.DEAD_LETTERED
    assert bench.job.error is not None
    assert bench.job.error.code == "worker_crashed"
    assert bench.job.due_at_epoch_ms is None


def test_passed_deadline_on_the_last_receive_is_dead_lettered_at_once() -> None:
    bench = Bench()
    bench.put(a_job(deadline_epoch_ms=NOW_MS))

    assert bench.deliver(receives=10) == GiveBack(0.0)
    assert bench.job.status is JobStatus.DEAD_LETTERED


def test_two_deliveries_that_both_find_the_job_exhausted_fail_it_once() -> None:
    bench = Bench()
    bench.put(processing(attempts=4))
    bench.hold_lease(JOB_ID, ends_in_ms=-DAY_MS)

    decisions = [bench.deliver(receives=5), bench.deliver(receives=6)]

    assert decisions == [GiveBack(0.0), GiveBack(0.0)]
    assert bench.telemetry.names.count("job_failed") == 1
    assert bench.world.open_jobs("acme") == 0
