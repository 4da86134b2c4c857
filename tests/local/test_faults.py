"""Vendors, workers and messages that fail, on the real template: each job ends as it should."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("faults") / ".sluiceway") as made:
        yield made


# ------------------------------------------------------------------------------------ the vendor


def test_vendor_that_answers_500_three_times_is_asked_a_fourth(plant: Plant) -> None:
    job_id = plant.submit("Thrice 500", {"status": 500, "times": 3})

    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["attempts"]) == ("completed", 4)
    assert plant.calls("Thrice 500")["calls"] == 4
    assert [error["code"] for error in row["last_errors"]] == ["vendor_unavailable"] * 3


def test_vendor_is_not_asked_before_its_retry_after(plant: Plant) -> None:
    job_id = plant.submit("Later", {"status": 429, "retry_after": 3, "times": 1})

    plant.calls_begun("Later")
    began = time.monotonic()
    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert time.monotonic() - began >= 2.8  # the first call was seen a moment after it was made
    (error,) = row["last_errors"]
    assert error["code"] == "vendor_rate_limited"
    assert row["started_at_epoch_ms"] >= error["at_epoch_ms"] + 3000


@pytest.mark.proves(6)
def test_vendor_that_always_answers_500_is_asked_as_often_as_is_allowed(plant: Plant) -> None:
    job_id = plant.submit("Always 500", {"status": 500})

    row = plant.until(job_id, "failed", "dead_lettered")

    assert (row["attempts"], row["error"]["code"]) == (4, "vendor_unavailable")
    assert plant.calls("Always 500")["calls"] == 4


@pytest.mark.proves(7)
def test_connection_dropped_after_accepting_is_charged_once(plant: Plant) -> None:
    job_id = plant.submit("Dropped", {"drop": "after", "times": 1})

    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert [error["code"] for error in row["last_errors"]] == ["vendor_unavailable"]
    seen = plant.calls("Dropped")
    assert (seen["calls"], seen["charged"]) == (2, 1)


@pytest.mark.proves(8)
def test_calls_that_never_end_are_cut_at_their_total_timeout(plant: Plant) -> None:  # case V01
    faults: dict[str, dict[str, object]] = {
        "Drip": {"drip_s": 0.2},
        "Drip of headers": {"drip_s": 0.2, "drip_headers": True},
        "Hang": {"hang": True},
    }
    jobs = {
        prompt: plant.submit(prompt, {**fault, "times": 1}, model="hasty")
        for prompt, fault in faults.items()
    }

    rows = {prompt: plant.until(job_id, "completed", "failed") for prompt, job_id in jobs.items()}

    for prompt, row in rows.items():
        assert (row["status"], row["attempts"]) == ("completed", 2), prompt
        assert [error["code"] for error in row["last_errors"]] == ["vendor_timeout"], prompt
        seen = plant.calls(prompt)
        assert (seen["calls"], seen["charged"]) == (2, 1), prompt


# ------------------------------------------------------------------------------------ cancelling


@pytest.mark.proves(5)
def test_cancel_during_a_slow_call_aborts_it_and_frees_the_lease(plant: Plant) -> None:
    job_id = plant.submit("Slow", {"delay_s": 50})
    plant.calls_begun("Slow")
    assert plant.lease(job_id)["token"]

    cancelled = plant.run_cli("jobs", "cancel", job_id, "--tenant", "acme")
    again = plant.run_cli("jobs", "cancel", job_id, "--tenant", "acme")
    began = time.monotonic()
    while "token" in plant.lease(job_id) and time.monotonic() - began < 45:
        time.sleep(0.2)

    assert cancelled["status"] == again["status"] == "cancelled"
    assert "token" not in plant.lease(job_id)
    assert time.monotonic() - began < 30  # the worker asks every 20 s
    assert plant.until(job_id, "cancelled")["attempts"] == 1


# ------------------------------------------------------------------------------------ workers


@pytest.mark.proves(1, 7)
def test_job_of_a_worker_that_was_killed_in_mid_call_runs_again(plant: Plant) -> None:
    """The lease and `due_at` are set back in the tables instead of waiting for two minutes.

    The first message stays hidden for its 730 s: it is the sweeper's copy that runs the job.
    """
    job_id = plant.submit("Killed", {"delay_s": 20, "times": 1})
    plant.calls_begun("Killed")
    fence = plant.row(job_id)["fence"]

    assert plant.kill_workers() >= 1
    assert plant.row(job_id)["status"] == "processing"
    plant.end_lease(job_id)
    plant.set_back(job_id, "due_at_epoch_ms")
    plant.sweep()
    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["attempts"], row["fence"]) == ("completed", 2, fence + 1)
    seen = plant.calls("Killed")
    assert (seen["calls"], seen["charged"]) == (2, 1)


@pytest.mark.proves(4)
def test_answer_that_comes_when_another_worker_has_finished_changes_nothing(plant: Plant) -> None:
    job_id = plant.submit("Late", {"delay_s": 8, "times": 1})
    plant.calls_begun("Late")
    plant.end_lease(job_id)
    plant.set_back(job_id, "due_at_epoch_ms")
    plant.sweep()
    row = plant.until(job_id, "completed", "failed")
    lease = plant.lease(job_id)

    assert wait_for(lambda: "lease_lost" in plant.told(job_id), timeout_s=TIMEOUT_S, pause_s=0.5)

    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert plant.row(job_id) == row
    assert plant.lease(job_id) == lease


# ------------------------------------------------------------------------------------ messages


@pytest.mark.proves(1)
def test_lost_message_is_sent_again_by_the_sweeper(plant: Plant) -> None:
    with plant.lane_stopped("Batch"):
        job_id = plant.submit("Lost", model="heavy")
        plant.sqs.purge_queue(QueueUrl=plant.url("Batch"))
        assert plant.row(job_id)["status"] == "queued"
    plant.set_back(job_id, "due_at_epoch_ms")

    plant.sweep()

    row = plant.until(job_id, "completed", "failed")
    assert (row["status"], row["attempts"]) == ("completed", 1)
    assert plant.calls("Lost")["calls"] == 1


def test_parked_job_is_sent_by_the_sweeper_when_its_time_has_come(plant: Plant) -> None:
    fault = {"status": 429, "retry_after": 125, "times": 1}
    job_id = plant.submit("Parked", fault, model="limited")
    parked = plant.until(job_id, "retrying")

    plant.sweep()  # too early: it sends nothing
    assert plant.row(job_id) == parked
    plant.open_gate("sim-limited-1")
    plant.set_back(job_id, "due_at_epoch_ms", "not_before_epoch_ms")
    plant.sweep()
    row = plant.until(job_id, "completed", "failed")

    assert parked["parked"]
    wait_ms = parked["not_before_epoch_ms"] - parked["error"]["at_epoch_ms"]
    assert wait_ms == 125_000
    assert parked["due_at_epoch_ms"] == parked["not_before_epoch_ms"]
    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert plant.calls("Parked")["calls"] == 2


@pytest.mark.proves(15)
def test_copies_of_a_message_make_no_second_call(plant: Plant) -> None:
    job_id = plant.submit("Copied", {"delay_s": 2})
    body = f'{{"tenant": "acme", "job_id": "{job_id}"}}'

    with ThreadPoolExecutor(4) as pool:
        sends = [
            pool.submit(plant.sqs.send_message, QueueUrl=plant.url(lane), MessageBody=body)
            for lane in ("Interactive", "Interactive", "Batch", "Batch")
        ]
    assert all(send.result()["MessageId"] for send in sends)
    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["attempts"]) == ("completed", 1)
    assert plant.calls("Copied")["calls"] == 1


@pytest.mark.proves(12)
def test_jobs_for_whom_there_is_no_worker_wait_in_their_lane(plant: Plant) -> None:
    jobs = [plant.submit(f"One of many {n}", {"delay_s": 1}, model="heavy") for n in range(15)]

    rows = [plant.until(job_id, "completed", "failed") for job_id in jobs]

    assert {(row["status"], row["receives"]) for row in rows} == {("completed", 1)}
    assert not set(jobs) & set(plant.dead_letters())
