"""Prefer: wait, which holds a request until its job has ended."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import StoreBusyError

from tests.fakes import examples
from tests.fakes.in_memory import InMemoryJobs
from tests.functions.stage import request

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

    from tests.functions.stage import Stage


class Busy(InMemoryJobs):
    """Jobs that can't be read so many times."""

    reads = 0

    def get(self, tenant: str, job_id: str) -> Job | None:
        self.reads -= 1
        if self.reads >= 0:
            raise StoreBusyError("The tables are busy.", retry_after_s=1)
        return super().get(tenant, job_id)


def busy_while_waiting(stage: Stage, *, reads: int) -> None:
    """From the first pause on."""
    stage.jobs = jobs = Busy(stage.world, clock=stage.clock)
    pause = stage.pause

    first = itertools.count()

    def pause_busy(seconds: float) -> None:
        if next(first) == 0:
            jobs.reads = reads
        pause(seconds)

    stage.pause = pause_busy


def run_while_waiting(stage: Stage, *, after_s: float = 0.0) -> list[float]:
    """Lets a worker run what was sent when a request has waited for so long; gives its pauses."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        stage.clock.pause(seconds)
        pauses.append(seconds)
        if sum(pauses) >= after_s:
            for _, tenant, job_id in stage.sent:
                stage.run_job(job_id, tenant)

    stage.pause = pause
    return pauses


def wait(seconds: object) -> dict[str, object]:
    return {"Prefer": f"wait={seconds}"}


def test_submit_that_waits_gets_the_result(stage: Stage) -> None:
    run_while_waiting(stage)

    answer = stage.submit(headers=wait(5))

    assert answer.status == 200
    assert answer.body["status"] == "completed"
    assert answer.body["result"]["text"]
    assert answer.headers["preference-applied"] == "wait=5"
    assert answer.headers["location"] == answer.body["urls"]["self"]
    assert "retry-after" not in answer.headers


def test_submit_that_waits_in_vain_is_accepted(stage: Stage) -> None:
    answer = stage.submit(headers=wait(5))

    assert answer.status == 202
    assert answer.body["status"] == "queued"
    assert answer.headers["preference-applied"] == "wait=5"
    assert answer.headers["retry-after"]


def test_failed_job_ends_the_wait_with_its_error(stage: Stage) -> None:
    submitted = stage.submit().body["id"]
    job = stage.world.jobs["acme", submitted]

    def pause(seconds: float) -> None:
        stage.clock.pause(seconds)
        stage.world.jobs["acme", submitted] = examples.failed(job)

    stage.pause = pause

    answer = stage.get(submitted, headers=wait(5))

    assert (answer.status, answer.body["status"]) == (200, "failed")
    assert answer.body["error"]["code"]


@pytest.mark.parametrize(("asked", "granted"), [(1, 1), (20, 20), (21, 20), (999_999_999, 20)])
def test_wait_is_as_long_as_asked_and_twenty_seconds_at_most(
    stage: Stage, asked: int, granted: int
) -> None:
    pauses = run_while_waiting(stage, after_s=1e9)
    before_ms = stage.clock.now_ms()

    answer = stage.submit(headers=wait(asked))

    assert answer.headers["preference-applied"] == f"wait={granted}"
    assert stage.clock.now_ms() - before_ms == pytest.approx(granted * 1000, abs=2)
    assert max(pauses) <= 0.5
    assert len(pauses) <= 9 + 2 * granted


@pytest.mark.parametrize(
    "prefer",
    [
        *("wait=0", "wait=-1", "wait=1.5", "wait=soon", "wait=", "wait", "await=5", "wait=5x"),
        *("respond-async", "return=minimal; wait", "x=wait", 'x="y", wait=1e3'),
    ],
)
def test_wait_that_is_none_is_ignored(stage: Stage, prefer: str) -> None:
    pauses = run_while_waiting(stage)

    answer = stage.submit(headers={"Prefer": prefer})

    assert answer.status == 202
    assert "preference-applied" not in answer.headers
    assert pauses == []


@pytest.mark.parametrize(
    "prefer", ["wait=5", "Wait=5", 'wait="5"', "respond-async, wait=5", "wait = 5; x=y, foo"]
)
def test_wait_is_found_among_other_preferences(stage: Stage, prefer: str) -> None:
    run_while_waiting(stage)

    answer = stage.submit(headers={"Prefer": prefer})

    assert answer.status == 200
    assert answer.headers["preference-applied"] == "wait=5"


def test_fetch_that_waits_gets_the_result(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    run_while_waiting(stage, after_s=2)

    answer = stage.get(job_id, headers=wait(10))

    assert (answer.status, answer.body["status"]) == (200, "completed")
    assert answer.headers["preference-applied"] == "wait=10"


def test_hit_and_ended_job_are_told_at_once(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)
    pauses = run_while_waiting(stage)

    answers = [stage.submit(headers=wait(5)), stage.get(job_id, headers=wait(5))]

    assert [answer.status for answer in answers] == [200, 200]
    assert pauses == []


def test_wait_for_an_equal_open_job_says_that_it_is_shared(stage: Stage) -> None:
    stage.submit()
    run_while_waiting(stage)

    answer = stage.submit(headers=wait(5))

    assert (answer.status, answer.body["deduplicated"]) == (200, True)


def test_dry_run_waits_for_nothing(stage: Stage) -> None:
    pauses = run_while_waiting(stage)

    answer = stage.submit(headers=wait(5), query={"dry_run": "true"})

    assert answer.status == 200
    assert pauses == []


def test_wait_for_another_tenants_job_finds_nothing_at_once(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    pauses = run_while_waiting(stage)

    answer = stage.get(job_id, tenant="globex", headers=wait(20))

    assert (answer.status, answer.body["code"]) == (404, "job_not_found")
    assert pauses == []


def test_header_that_comes_twice_is_one_list_of_preferences(stage: Stage) -> None:
    run_while_waiting(stage)
    event = request("GET", f"/jobs/{stage.submit().body['id']}")
    event["headers"]["Prefer"] = "respond-async"
    event["multiValueHeaders"]["Prefer"] = ["wait=5", "respond-async"]

    answer = stage.answer(event)

    assert answer.headers["preference-applied"] == "wait=5"
    assert answer.body["status"] == "completed"


def test_wait_of_a_slow_submit_ends_before_its_invocation(stage: Stage) -> None:
    pauses = run_while_waiting(stage, after_s=1e9)
    stage.time_left_ms = 8_000

    answer = stage.submit(headers=wait(20))

    assert answer.status == 202
    assert sum(pauses) == pytest.approx(5, abs=0.01)


def test_wait_goes_on_when_the_tables_were_busy_for_a_moment(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    run_while_waiting(stage, after_s=1)
    busy_while_waiting(stage, reads=1)

    answer = stage.get(job_id, headers=wait(5))

    assert (answer.status, answer.body["status"]) == (200, "completed")


def test_job_is_accepted_though_nobody_could_look_at_it_while_it_was_waited_for(
    stage: Stage,
) -> None:
    busy_while_waiting(stage, reads=10**9)

    answer = stage.submit(headers=wait(5))

    assert (answer.status, answer.body["status"]) == (202, "queued")
    assert answer.headers["location"].endswith(answer.body["id"])
    assert answer.headers["preference-applied"] == "wait=5"
