"""Dead letters on the real template: how they get there, and how operators bring them back."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

FAULTY = "[faulty]"
"""In the prompts that the vendor refuses until it recovers."""

NAMES = ("shown", "redriven", "by hand", "no message", "in bulk", "in bulk too")
SECRET = "a-prompt-that-nobody-may-read"


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("dlq") / ".sluiceway") as made:
        yield made


@pytest.fixture(scope="module")
def dead(plant: Plant) -> dict[str, str]:
    """The ids of jobs that the vendor refused for good, by name; now it would take them.

    Those to be discarded and resubmitted hold their fault, and so would fail again.
    """
    plant.vendor_fails(FAULTY, status=400, error_code="invalid_prompt")
    jobs = {name: plant.submit(f"{FAULTY} {name} {SECRET}") for name in NAMES}
    jobs |= {
        name: plant.submit(f'{name} {SECRET} [[sim {{"status": 400}}]]')
        for name in ("discarded", "resubmitted")
    }
    for job_id in jobs.values():
        plant.until(job_id, "dead_lettered")
    begun = time.monotonic()
    while len(plant.dead_letters()) < len(jobs) and time.monotonic() - begun < 30:
        time.sleep(0.5)
    plant.vendor_recovers()
    return jobs


def prompt_of(name: str) -> str:
    return f"{FAULTY} {name} {SECRET}"


def test_list_joins_each_message_with_the_reason_and_shows_no_prompt(
    plant: Plant, dead: dict[str, str]
) -> None:
    found = plant.run_cli("dlq", "list")

    listed = found["dead_letters"]
    assert (found["complete"], found["messages_unseen"]) == (True, 0)
    entry = next(one for one in listed if one["job_id"] == dead["shown"])
    assert (entry["tenant"], entry["status"], entry["stray"]) == ("acme", "dead_lettered", False)
    assert (entry["error_code"], entry["attempts"]) == ("vendor_rejected", 1)
    assert entry["reason"] == "The vendor answered 400 (invalid_prompt)."
    assert 0 <= entry["age_s"] < 120
    assert {one["job_id"] for one in listed} == set(dead.values())
    assert SECRET not in json.dumps(listed)


def test_list_takes_no_message_away(plant: Plant, dead: dict[str, str]) -> None:
    # The set-up looked until all were there, and the test above looked once more.
    assert sorted(plant.dead_letters()) == sorted(dead.values())


def test_show_tells_everything_but_the_prompt(plant: Plant, dead: dict[str, str]) -> None:
    shown = plant.run_cli("dlq", "show", dead["shown"])

    (error,) = shown["last_errors"]
    assert (error["code"], error["http_status"], error["retryable"]) == (
        "vendor_rejected",
        400,
        False,
    )
    assert shown["tenant"] == "acme"
    assert SECRET not in json.dumps(shown)


def test_show_of_an_unknown_job_says_so(plant: Plant) -> None:
    done = plant.cli("dlq", "show", "job_01M8MG8BZK0FN56HXMX48ZSJAN")

    assert done.returncode == 1
    assert "there is no job" in done.stderr


def test_redriven_job_succeeds_with_fresh_attempts(plant: Plant, dead: dict[str, str]) -> None:
    job_id = dead["redriven"]

    (outcome,) = plant.run_cli("dlq", "redrive", job_id)["outcomes"]
    row = plant.until(job_id, "completed", "failed", "dead_lettered")

    assert outcome["outcome"] == "redriven"
    assert (row["status"], row["attempts"], row["redrives"]) == ("completed", 1, 1)
    assert row["attempts_total"] == 2
    assert plant.calls(prompt_of("redriven"))["calls"] == 2
    assert job_id not in plant.dead_letters()


def test_message_that_is_moved_by_hand_is_a_redrive(plant: Plant, dead: dict[str, str]) -> None:
    job_id = dead["by hand"]

    message = plant.take_from("DeadLetter", job_id)
    plant.sqs.send_message(QueueUrl=plant.url("Interactive"), MessageBody=message["Body"])
    plant.sqs.delete_message(
        QueueUrl=plant.url("DeadLetter"), ReceiptHandle=message["ReceiptHandle"]
    )
    row = plant.until(job_id, "completed", "failed")

    assert (row["status"], row["redrives"]) == ("completed", 1)
    assert plant.calls(prompt_of("by hand"))["calls"] == 2


def test_job_without_a_message_is_redriven_by_the_table_and_the_sweeper(
    plant: Plant, dead: dict[str, str]
) -> None:
    job_id = dead["no message"]
    message = plant.take_from("DeadLetter", job_id)
    plant.sqs.delete_message(
        QueueUrl=plant.url("DeadLetter"), ReceiptHandle=message["ReceiptHandle"]
    )

    (outcome,) = plant.run_cli("dlq", "redrive", job_id)["outcomes"]
    plant.sweep()
    row = plant.until(job_id, "completed", "failed", "dead_lettered")

    assert outcome["outcome"] == "redriven"
    assert "no message" in outcome["reason"]
    assert (row["status"], row["redrives"]) == ("completed", 1)


def test_discarded_job_ends_and_its_message_is_gone(plant: Plant, dead: dict[str, str]) -> None:
    job_id = dead["discarded"]

    told = plant.run_cli("dlq", "discard", job_id)
    again = plant.run_cli("dlq", "discard", job_id)

    assert (told["status"], told["error_code"], told["messages_removed"]) == (
        "failed",
        "discarded",
        1,
    )
    assert again["messages_removed"] == 0
    seen = plant.acme.get(f"/jobs/{job_id}").json()
    assert (seen["status"], seen["error"]["code"]) == ("failed", "discarded")


def test_message_of_a_discarded_job_is_acknowledged(plant: Plant, dead: dict[str, str]) -> None:
    job_id = dead["discarded"]
    assert plant.row(job_id)["discarded"]
    body = json.dumps({"tenant": "acme", "job_id": job_id})

    plant.sqs.send_message(QueueUrl=plant.url("Interactive"), MessageBody=body)
    plant.until_empty("Interactive")

    assert plant.row(job_id)["status"] == "failed"


def test_resubmit_runs_the_corrected_input_and_discards_the_old(
    plant: Plant, dead: dict[str, str]
) -> None:
    job_id = dead["resubmitted"]

    made = plant.run_cli("dlq", "resubmit", job_id, "--input", "-", text='"corrected"')
    row = plant.until(made["job_id"], "completed", "failed")

    assert row["job_id"] != job_id
    assert (row["status"], row["key_id"]) == ("completed", "operator")
    assert plant.calls("corrected")["calls"] == 1
    assert plant.row(job_id)["discarded"]


def test_redrive_of_all_clears_the_queue_and_tells_of_each_job(
    plant: Plant, dead: dict[str, str]
) -> None:
    done = plant.submit("Done already")
    plant.until(done, "completed")
    for body in (
        json.dumps({"tenant": "acme", "job_id": done}),
        json.dumps({"tenant": "acme", "job_id": "job_01M8MG8BZK0FN56HXMX48ZSJAN"}),
        f"not ours: {SECRET}",
    ):
        plant.sqs.send_message(QueueUrl=plant.url("DeadLetter"), MessageBody=body)
    listed = plant.run_cli("dlq", "list")["dead_letters"]

    outcomes = plant.run_cli("dlq", "redrive", "--all")["outcomes"]
    rows = [plant.until(dead[name], "completed", "failed") for name in ("in bulk", "in bulk too")]

    strays = {one["job_id"]: one["why_stray"] for one in listed if one["stray"]}
    assert strays[done] == "the job is completed"
    assert strays[None] == "the message isn't one of ours"
    told = {one["job_id"]: one["outcome"] for one in outcomes}
    assert told[dead["in bulk"]] == told[dead["in bulk too"]] == "redriven"
    assert told[done] == told[None] == "skipped"
    assert [row["status"] for row in rows] == ["completed"] * 2
    assert done not in plant.dead_letters()
    assert SECRET not in json.dumps([listed, outcomes])
    plant.sqs.purge_queue(QueueUrl=plant.url("DeadLetter"))
    assert plant.run_cli("dlq", "redrive", "--all") == {"outcomes": [], "messages_unseen": 0}


@pytest.mark.parametrize("lane", ["Interactive", "Batch"])
def test_poison_message_ends_in_the_dead_letter_queue(plant: Plant, lane: str) -> None:
    # case D09, T04, T06: it is given back ten times, and moved by the receive after that.
    plant.sqs.send_message(QueueUrl=plant.url(lane), MessageBody=f"not ours: {SECRET}")

    assert wait_for(lambda: bool(plant.dead_letters()), timeout_s=30, pause_s=0.5)

    (entry,) = plant.run_cli("dlq", "list")["dead_letters"]
    assert entry["why_stray"] == "the message isn't one of ours"
    plant.until_empty(lane)
    plant.sqs.purge_queue(QueueUrl=plant.url("DeadLetter"))


def test_what_somebody_else_looks_at_is_counted(plant: Plant) -> None:
    queue = plant.url("DeadLetter")
    for number in range(3):
        plant.sqs.send_message(QueueUrl=queue, MessageBody=f"not ours: {number}")
    taken = plant.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, VisibilityTimeout=60)
    (message,) = taken["Messages"]

    told = plant.run_cli("dlq", "list")
    shown = plant.cli("dlq", "list")
    plant.sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    after = plant.run_cli("dlq", "list")

    assert (len(told["dead_letters"]), told["messages_unseen"], told["complete"]) == (2, 1, False)
    assert "SQS counts 1 more" in shown.stderr
    assert (len(after["dead_letters"]), after["messages_unseen"], after["complete"]) == (3, 0, True)
    plant.sqs.purge_queue(QueueUrl=queue)


def test_what_was_done_to_each_job_is_on_record(plant: Plant, dead: dict[str, str]) -> None:
    done: dict[str, list[str]] = {}
    for record in plant.run_cli("audit", "--limit", "1000")["records"]:
        done.setdefault(record["subject"], []).append(record["action"])
        assert record["actor"].startswith("user:")

    assert {name: done.get(f"job:{job_id}") for name, job_id in dead.items()} == {
        "shown": ["dlq.redrive"],  # with all the others
        "redriven": ["dlq.redrive"],
        "by hand": None,
        "no message": ["dlq.redrive"],
        "in bulk": ["dlq.redrive"],
        "in bulk too": ["dlq.redrive"],
        "discarded": ["dlq.discard"],
        "resubmitted": ["dlq.resubmit"],
    }
