"""The sweeper, scheduler event in and counts out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus

from tests.fakes.in_memory import InMemoryJobs, InMemoryQueue
from tests.functions.stage import Stage, end
from tests.unit.logs import log_lines, metric_lines, output

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

NOTHING = {"sent": 0, "postponed": 0, "failed": 0, "dead_lettered": 0, "settled": 0}


@pytest.mark.parametrize("event", [None, {}, []], ids=["schedule", "by hand", "anything"])
def test_sweep_answers_any_event_with_what_it_did(stage: Stage, event: Any) -> None:
    stage.submit()
    stage.clock.advance(s=120)

    assert stage.sweep(event) == NOTHING | {"sent": 1}


@pytest.mark.parametrize(
    ("event", "sent"), [(None, True), ({}, False), ({"poll": 1}, False)], ids=str
)
def test_sweep_polls_for_its_schedule_alone(stage: Stage, event: Any, *, sent: bool) -> None:
    job_id = stage.submit().body["id"]

    def become_due(seconds: float) -> None:
        now_ms = stage.clock.advance(s=seconds)
        end(stage, job_id, due_at_epoch_ms=now_ms)

    stage.clock.pause = become_due  # type: ignore[method-assign]

    assert (stage.sweep(event)["sent"] > 0) is sent


def test_sweep_of_nothing_answers_with_zeros(stage: Stage) -> None:
    assert stage.sweep() == NOTHING


def test_job_whose_send_failed_is_run_after_the_sweep(stage: Stage) -> None:
    stage.queue = broken = InMemoryQueue()
    broken.broken = True
    job_id = stage.submit().body["id"]
    stage.queue = InMemoryQueue()
    stage.clock.advance(s=120)

    stage.sweep()

    assert stage.sent == [("interactive", "acme", job_id)]
    assert stage.run_job(job_id) == []
    assert stage.get(job_id).body["status"] == "completed"


def test_job_past_its_deadline_is_shown_as_failed_after_the_sweep(stage: Stage) -> None:
    job_id = stage.post({"model": "demo-chat", "input": "x", "deadline_s": 60}).body["id"]
    stage.clock.advance(s=60)

    assert stage.sweep() == NOTHING | {"failed": 1}
    body = stage.get(job_id).body
    assert (body["status"], body["error"]["code"]) == ("failed", "deadline_exceeded")


def test_parked_job_is_shown_as_queued_while_it_waits(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    end(stage, job_id, parked=True, not_before_epoch_ms=stage.clock.now_ms() + 10**6)

    assert stage.get(job_id).body["status"] == JobStatus.QUEUED


def test_sweep_that_an_error_ends_is_lambdas_to_count(stage: Stage) -> None:
    class Broken(InMemoryJobs):
        """Whose table can't be reached."""

        def get(self, tenant: str, job_id: str) -> Job | None:
            raise StoreBusyError(f"{tenant} {job_id}", retry_after_s=1)

    stage.submit()
    stage.clock.advance(s=120)
    stage.jobs = Broken(stage.world, clock=stage.clock)

    with pytest.raises(StoreBusyError):
        stage.sweep()


def test_sweep_logs_with_its_request_and_measures_both_lanes(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.submit()
    stage.clock.advance(s=7)
    output(capsys)

    stage.sweep()

    written = output(capsys)
    assert {line["request_id"] for line in log_lines(written)} == {"lambda-sweep"}
    assert [line["message"] for line in log_lines(written)] == [
        "lane_measured",
        "lane_measured",
        "jobs_swept",
    ]
    measured = {
        line["lane"]: (line["QueueDepth"], line["OldestJobAge"]) for line in metric_lines(written)
    }
    assert measured == {"interactive": ([1], [7_000]), "batch": ([0], [0])}


def test_log_fields_of_a_sweep_are_gone_in_the_next_invocation(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.submit()
    stage.clock.advance(s=120)
    stage.sweep()
    output(capsys)

    stage.run_job("job_unknown")

    (line,) = log_lines(output(capsys))
    assert not {"job_id", "tenant", "lane"} & set(line)
