"""The transitions of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain import job as transitions
from sluiceway.domain.job import LAST_ERRORS, OPEN, Job, JobStatus
from sluiceway.domain.payload import Payload

from tests.fakes.in_memory import NOW_MS
from tests.unit.samples import DAY_MS, a_job, an_error, packed

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT = packed({"text": "an answer", "finish_reason": "stop"})


def started(job: Job, *, fence: int = 1, now_ms: int = NOW_MS + 5_000) -> Job:
    return transitions.started(
        job, fence=fence, now_ms=now_ms, receives=1, function_ends_ms=now_ms + 90_000
    )


def retrying(job: Job, *, not_before_ms: int = NOW_MS + 9_000) -> Job:
    return transitions.retrying(job, an_error(), not_before_ms=not_before_ms)


def redriven(job: Job, *, now_ms: int = NOW_MS + 60_000, lane: str = "interactive") -> Job:
    return transitions.redriven(job, now_ms=now_ms, lane=lane, due_at_ms=now_ms + 120_000)


# ------------------------------------------------------------------ states


@pytest.mark.parametrize("status", JobStatus)
def test_job_is_open_until_it_ends(status: JobStatus) -> None:
    job = a_job(status=status)

    assert job.open is (status.value in {"queued", "processing", "retrying"})


def test_every_transition_changes_the_version() -> None:
    job = a_job()
    processing = started(job)
    retried = retrying(processing)
    failed = transitions.failed(processing, an_error(), now_ms=NOW_MS, last_receive=False)
    moves = [
        (job, processing),
        (processing, started(processing, fence=2)),
        (processing, retried),
        (retried, started(retried, fence=2)),
        (processing, transitions.completed(processing, now_ms=0, result=RESULT, source="vendor")),
        (
            processing,
            transitions.completed(
                processing, now_ms=0, result=RESULT, source="cache", attempt_taken_back=True
            ),
        ),
        (job, transitions.completed(job, now_ms=0, result=RESULT, source="cache")),
        (processing, failed),
        (failed, transitions.dead_lettered(failed)),
        (job, transitions.parked(job, not_before_ms=NOW_MS)),
        (processing, transitions.called(processing, now_ms=NOW_MS)),
        (processing, transitions.cancelled(processing, now_ms=NOW_MS)),
        (failed, redriven(failed)),
        (failed, transitions.discarded(failed, now_ms=NOW_MS)),
        (failed, transitions.settled(failed)),
    ]

    assert all(old.version != new.version for old, new in moves)


# ------------------------------------------------------------------ submit


def test_submitted_job_is_looked_at_after_two_minutes() -> None:
    job = transitions.submitted(a_job(due_at_epoch_ms=None, due_shard=None))

    assert job.status is JobStatus.QUEUED
    assert job.due_at_epoch_ms == NOW_MS + 120_000
    assert job.due_shard == transitions.due_shard(job.job_id)


def test_submitted_job_is_looked_at_no_later_than_its_deadline() -> None:
    job = transitions.submitted(a_job(deadline_epoch_ms=NOW_MS + 30_000))

    assert job.due_at_epoch_ms == NOW_MS + 30_000


# ------------------------------------------------------------------ start


def test_started_job_is_processing_under_its_fence() -> None:
    job = transitions.started(
        a_job(), fence=7, now_ms=NOW_MS + 5_000, receives=3, function_ends_ms=NOW_MS + 95_000
    )

    assert (job.status, job.fence, job.receives) == (JobStatus.PROCESSING, 7, 3)
    assert job.started_at_epoch_ms == NOW_MS + 5_000


def test_started_job_counts_the_attempt() -> None:
    job = started(a_job(attempts=1, attempts_total=4))

    assert (job.attempts, job.attempts_total) == (2, 5)


def test_started_job_is_looked_at_after_the_functions_end() -> None:
    job = started(a_job())

    assert job.due_at_epoch_ms == NOW_MS + 5_000 + 90_000 + 30_000


def test_started_job_is_looked_at_after_the_functions_end_even_past_its_deadline() -> None:
    job = started(a_job(deadline_epoch_ms=NOW_MS + 6_000))

    assert job.due_at_epoch_ms == NOW_MS + 125_000


def test_started_job_tells_how_long_it_waited_in_the_queue() -> None:
    assert started(a_job(), now_ms=NOW_MS + 5_000).queue_wait_ms == 5_000


def test_started_job_keeps_the_wait_of_its_first_start() -> None:
    again = started(started(a_job(), now_ms=NOW_MS + 5_000), now_ms=NOW_MS + 60_000)

    assert again.queue_wait_ms == 5_000
    assert again.started_at_epoch_ms == NOW_MS + 60_000


def test_started_job_never_waited_less_than_nothing() -> None:
    assert started(a_job(), now_ms=NOW_MS - 500).queue_wait_ms == 0


def test_started_job_has_no_time_to_wait_for_any_more() -> None:
    assert started(retrying(started(a_job()))).not_before_epoch_ms is None


# ------------------------------------------------------------------ complete


def test_completed_job_has_its_result_and_what_it_cost() -> None:
    job = transitions.completed(
        started(a_job()),
        now_ms=NOW_MS + 9_000,
        result=RESULT,
        source="vendor",
        input_tokens=10,
        output_tokens=20,
        cost_nanos=330_000,
        vendor_request_id="req_vendor_1",
        upstream_latency_ms=300,
    )

    assert (job.status, job.result, job.result_source) == (JobStatus.COMPLETED, RESULT, "vendor")
    assert (job.input_tokens, job.output_tokens, job.cost_nanos) == (10, 20, 330_000)
    assert (job.vendor_request_id, job.upstream_latency_ms) == ("req_vendor_1", 300)
    assert job.completed_at_epoch_ms == NOW_MS + 9_000


def test_completed_job_is_due_no_more() -> None:
    job = transitions.completed(started(a_job()), now_ms=NOW_MS, result=RESULT, source="vendor")

    assert (job.due_at_epoch_ms, job.due_shard) == (None, None)


def test_completed_job_keeps_its_attempt_when_the_vendor_answered() -> None:
    job = transitions.completed(started(a_job()), now_ms=NOW_MS, result=RESULT, source="vendor")

    assert (job.attempts, job.attempts_total) == (1, 1)


def test_completed_job_takes_its_attempt_back_when_it_called_nobody() -> None:
    job = transitions.completed(
        started(a_job(attempts=1, attempts_total=3)),
        now_ms=NOW_MS,
        result=RESULT,
        source="cache",
        attempt_taken_back=True,
    )

    assert (job.attempts, job.attempts_total) == (1, 3)


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RETRYING, JobStatus.PROCESSING])
def test_completed_job_that_another_worker_started_keeps_its_attempts(status: JobStatus) -> None:
    job = transitions.completed(
        a_job(status=status, attempts=1, attempts_total=1),
        now_ms=NOW_MS,
        result=RESULT,
        source="cache",
    )

    assert (job.attempts, job.attempts_total) == (1, 1)


def test_completed_job_has_no_error_but_remembers_the_last_ones() -> None:
    job = transitions.completed(
        started(retrying(started(a_job()))), now_ms=NOW_MS, result=RESULT, source="vendor"
    )

    assert job.error is None
    assert job.last_errors == (an_error(),)


def test_completed_job_keeps_a_falsy_result() -> None:
    empty = Payload(inline=b"")

    job = transitions.completed(started(a_job()), now_ms=NOW_MS, result=empty, source="vendor")

    assert job.result == empty


# ------------------------------------------------------------------ retry


def test_retrying_job_waits_until_its_time() -> None:
    job = retrying(started(a_job()), not_before_ms=NOW_MS + 9_000)

    assert (job.status, job.not_before_epoch_ms) == (JobStatus.RETRYING, NOW_MS + 9_000)
    assert job.error == an_error()


def test_retrying_job_is_looked_at_two_minutes_after_its_time() -> None:
    job = retrying(started(a_job()), not_before_ms=NOW_MS + 9_000)

    assert job.due_at_epoch_ms == NOW_MS + 129_000


def test_retrying_job_is_looked_at_no_later_than_its_deadline() -> None:
    job = retrying(
        started(a_job(deadline_epoch_ms=NOW_MS + 60_000)), not_before_ms=NOW_MS + 3_600_000
    )

    assert job.due_at_epoch_ms == NOW_MS + 60_000


@given(st.integers(-DAY_MS, 20 * DAY_MS), st.integers(1, 7 * DAY_MS))
def test_waiting_job_is_never_looked_at_after_its_deadline(
    not_before_ms: int, deadline_ms: int
) -> None:
    job = started(a_job(deadline_epoch_ms=NOW_MS + deadline_ms))

    due_ms = retrying(job, not_before_ms=NOW_MS + not_before_ms).due_at_epoch_ms

    assert due_ms is not None
    assert due_ms <= NOW_MS + deadline_ms


def test_job_remembers_its_last_five_errors() -> None:
    job = a_job()
    for attempt in range(1, 8):
        job = transitions.retrying(
            started(job), an_error(attempt=attempt), not_before_ms=NOW_MS + 9_000
        )

    assert [error.attempt for error in job.last_errors] == [3, 4, 5, 6, 7]
    assert len(job.last_errors) == LAST_ERRORS
    assert job.error == an_error(attempt=7)


# ------------------------------------------------------------------ fail


def test_failed_job_waits_for_its_message_to_reach_the_dead_letter_queue() -> None:
    job = transitions.failed(started(a_job()), an_error(), now_ms=NOW_MS, last_receive=False)

    assert (job.status, job.failed_at_epoch_ms) == (JobStatus.FAILED, NOW_MS)
    assert job.due_at_epoch_ms == NOW_MS + 15 * 60_000
    assert job.due_shard == transitions.due_shard(job.job_id)


def test_failed_job_is_marked_in_time_even_past_its_deadline() -> None:
    job = transitions.failed(
        a_job(deadline_epoch_ms=NOW_MS), an_error(), now_ms=NOW_MS, last_receive=False
    )

    assert job.due_at_epoch_ms == NOW_MS + 15 * 60_000


def test_failed_job_on_its_last_receive_is_dead_lettered_at_once() -> None:
    job = transitions.failed(started(a_job()), an_error(), now_ms=NOW_MS, last_receive=True)

    assert (job.status, job.failed_at_epoch_ms) == (JobStatus.DEAD_LETTERED, NOW_MS)
    assert (job.due_at_epoch_ms, job.due_shard) == (None, None)


def test_failed_job_tells_why() -> None:
    before = an_error(code="vendor_timeout")
    job = replace(started(a_job()), error=before, last_errors=(before,))

    failed = transitions.failed(job, an_error(), now_ms=NOW_MS, last_receive=False)

    assert failed.error == an_error()
    assert failed.last_errors == (before, an_error())


def test_failed_job_remembers_its_last_five_errors() -> None:
    job = a_job(last_errors=tuple(an_error(attempt=attempt) for attempt in range(1, 6)))

    failed = transitions.failed(job, an_error(attempt=6), now_ms=NOW_MS, last_receive=False)

    assert [error.attempt for error in failed.last_errors] == [2, 3, 4, 5, 6]


def test_failed_job_keeps_its_attempts() -> None:
    job = transitions.failed(started(a_job()), an_error(), now_ms=NOW_MS, last_receive=False)

    assert (job.attempts, job.attempts_total, job.not_before_epoch_ms) == (1, 1, None)


def test_dead_lettered_job_keeps_the_reason_and_is_due_no_more() -> None:
    failed = transitions.failed(started(a_job()), an_error(), now_ms=NOW_MS, last_receive=False)

    job = transitions.dead_lettered(failed)

    assert (job.status, job.error) == (JobStatus.DEAD_LETTERED, an_error())
    assert (job.due_at_epoch_ms, job.due_shard) == (None, None)


# ------------------------------------------------------------------ park


def test_parked_job_is_due_at_its_time_and_spends_no_attempt() -> None:
    job = transitions.parked(a_job(attempts=2, attempts_total=3), not_before_ms=NOW_MS + 9_000)

    assert job.parked
    assert job.not_before_epoch_ms == job.due_at_epoch_ms == NOW_MS + 9_000
    assert (job.status, job.attempts, job.attempts_total) == (JobStatus.QUEUED, 2, 3)


def test_parked_job_is_due_no_later_than_its_deadline_which_its_time_may_be() -> None:
    job = transitions.parked(
        a_job(deadline_epoch_ms=NOW_MS + 60_000), not_before_ms=NOW_MS + 3_600_000
    )

    assert job.due_at_epoch_ms == NOW_MS + 60_000
    assert job.not_before_epoch_ms == NOW_MS + 3_600_000


def test_parked_retry_keeps_its_reason() -> None:
    job = transitions.parked(retrying(started(a_job())), not_before_ms=NOW_MS + 9_000)

    assert (job.status, job.error, job.last_errors) == (
        JobStatus.RETRYING,
        an_error(),
        (an_error(),),
    )


def test_retry_that_is_parked_is_due_at_its_time() -> None:
    job = transitions.retrying(
        started(a_job()), an_error(), not_before_ms=NOW_MS + 300_000, parked=True
    )

    assert (job.parked, job.due_at_epoch_ms) == (True, NOW_MS + 300_000)


@pytest.mark.parametrize(
    "move",
    [
        started,
        retrying,
        lambda job: transitions.cancelled(job, now_ms=NOW_MS),
        lambda job: transitions.completed(job, now_ms=NOW_MS, result=RESULT, source="cache"),
        lambda job: transitions.failed(job, an_error(), now_ms=NOW_MS, last_receive=False),
    ],
    ids=["start", "retry", "cancel", "completion", "failure"],
)
def test_next_transition_ends_the_parking_and_the_sweepers_count(
    move: Callable[[Job], Job],
) -> None:
    parked = replace(transitions.parked(a_job(), not_before_ms=NOW_MS - 1), resends=3)

    job = move(parked)

    assert (job.parked, job.resends) == (False, 0)
    assert job.not_before_epoch_ms != NOW_MS - 1


# ------------------------------------------------------------------ the mark before a call


def test_called_job_differs_in_its_mark_alone() -> None:
    job = started(a_job())

    called = transitions.called(job, now_ms=NOW_MS + 6_000)

    assert called == replace(job, called_at_epoch_ms=NOW_MS + 6_000, revision=job.revision + 1)


@pytest.mark.parametrize("outcome", ["retry", "completion", "failure", "redrive"])
def test_known_outcome_takes_the_mark_of_the_call_off(outcome: str) -> None:
    called = transitions.called(started(a_job()), now_ms=NOW_MS)
    failed = transitions.failed(called, an_error(), now_ms=NOW_MS, last_receive=False)
    known = {
        "retry": retrying(called),
        "completion": transitions.completed(called, now_ms=0, result=RESULT, source="vendor"),
        "failure": failed,
        "redrive": redriven(failed),
    }

    assert known[outcome].called_at_epoch_ms is None


@pytest.mark.parametrize("move", ["start", "park"])
def test_mark_of_a_call_outlives_what_tells_no_outcome(move: str) -> None:
    called = transitions.called(started(a_job()), now_ms=NOW_MS)
    moves = {
        "start": started(called, fence=2),
        "park": transitions.parked(called, not_before_ms=NOW_MS + 9_000),
    }

    assert moves[move].called_at_epoch_ms == NOW_MS


# ------------------------------------------------------------------ cancel


def test_cancelled_job_is_due_no_more_and_says_when() -> None:
    job = transitions.cancelled(retrying(started(a_job())), now_ms=NOW_MS + 3_000)

    assert (job.status, job.completed_at_epoch_ms) == (JobStatus.CANCELLED, NOW_MS + 3_000)
    assert (job.due_at_epoch_ms, job.due_shard, job.not_before_epoch_ms) == (None, None, None)


# ------------------------------------------------------------------ redrive, discard, settle


def test_redriven_job_has_fresh_attempts_and_its_whole_deadline() -> None:
    failed = transitions.failed(
        a_job(attempts=4, attempts_total=9, redrives=1),
        an_error(),
        now_ms=NOW_MS,
        last_receive=True,
    )

    job = redriven(failed, now_ms=NOW_MS + DAY_MS, lane="batch")

    assert (job.status, job.attempts, job.attempts_total) == (JobStatus.QUEUED, 0, 9)
    assert (job.redrives, job.lane) == (2, "batch")
    assert job.deadline_epoch_ms == NOW_MS + DAY_MS + job.deadline_s * 1000
    assert job.enqueued_at_epoch_ms == NOW_MS + DAY_MS
    assert job.created_at_epoch_ms == NOW_MS
    assert (job.failed_at_epoch_ms, job.error, job.queue_wait_ms) == (None, None, None)
    assert job.last_errors == failed.last_errors
    assert job.due_shard == transitions.due_shard(job.job_id)


def test_redriven_jobs_row_outlives_its_new_deadline() -> None:
    failed = transitions.failed(a_job(), an_error(), now_ms=NOW_MS, last_receive=True)

    job = redriven(failed, now_ms=NOW_MS + DAY_MS)

    assert job.ttl_epoch_s - job.deadline_epoch_ms // 1000 > 14 * 24 * 3600


def test_discarded_job_is_failed_for_good_and_due_no_more() -> None:
    failed = transitions.failed(a_job(), an_error(), now_ms=NOW_MS, last_receive=False)

    job = transitions.discarded(failed, now_ms=NOW_MS + 1_000)

    assert job.error is not None
    assert (job.status, job.discarded, job.error.code) == (JobStatus.FAILED, True, "discarded")
    assert (job.due_at_epoch_ms, job.due_shard) == (None, None)
    assert job.last_errors[:-1] == failed.last_errors


# ------------------------------------------------------------------ the sweeper's next look


@pytest.mark.parametrize(
    ("resends", "minutes"), [(0, 2), (1, 4), (2, 8), (3, 15), (4, 15), (1_000, 15)]
)
def test_next_look_doubles_up_to_a_quarter_of_an_hour(resends: int, minutes: int) -> None:
    assert transitions.next_look_ms(a_job(resends=resends), NOW_MS) == NOW_MS + minutes * 60_000


@given(st.integers(0, 20), st.integers(-DAY_MS, DAY_MS))
def test_next_look_at_a_waiting_job_is_at_its_deadline_at_the_latest_and_never_now(
    resends: int, left_ms: int
) -> None:
    job = a_job(resends=resends, deadline_epoch_ms=NOW_MS + left_ms)

    at_ms = transitions.next_look_ms(job, NOW_MS)

    assert NOW_MS < at_ms <= NOW_MS + max(left_ms, 1_000)


# ------------------------------------------------------------------ the index


@given(st.text(max_size=64))
def test_due_shard_is_one_of_eight(job_id: str) -> None:
    assert transitions.due_shard(job_id) in set("01234567")


def test_due_shards_are_all_used() -> None:
    used = {transitions.due_shard(f"job_{number:026d}") for number in range(100)}

    assert used == set("01234567")


def test_open_states_are_those_that_may_change_by_themselves() -> None:
    assert {JobStatus.QUEUED, JobStatus.PROCESSING, JobStatus.RETRYING} == OPEN
