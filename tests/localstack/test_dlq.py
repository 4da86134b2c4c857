"""Dead letters in LocalStack's SQS, which can move them back itself, as AWS's and no other can."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.processes import wait_for

from tests.localstack.pair import LANES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.localstack.pair import Pair

pytestmark = pytest.mark.slow

FAULTY = "[faulty]"
"""In the prompts that the vendor refuses until it recovers."""

MODELS = {"interactive": "demo-chat", "batch": "heavy"}


def lane_of(name: str) -> str:
    return name.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Dead:
    """Jobs that the vendor refused for good, with their messages in the dead-letter queue."""

    pair: Pair
    jobs: dict[str, str]
    """Ids by name; the name begins with the lane."""

    def rows(self) -> dict[str, dict[str, Any]]:
        return {name: self.pair.row(job_id) for name, job_id in self.jobs.items()}

    def letters(self) -> dict[str, dict[str, str]]:
        """Of each job's message, the attributes that SQS gives it."""
        messages = self.pair.sqs.receive_message(
            QueueUrl=self.pair.url("DeadLetter"),
            MaxNumberOfMessages=10,
            VisibilityTimeout=0,
            AttributeNames=["All"],
        )["Messages"]
        return {json.loads(each["Body"])["job_id"]: each["Attributes"] for each in messages}

    def replace_by_hand(self, job_id: str) -> None:
        """Sends the job's message to the queue, and deletes the one that SQS moved there."""
        url, found = self.pair.url("DeadLetter"), 0
        for message in self.pair.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)[
            "Messages"
        ]:
            handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
            if json.loads(message["Body"])["job_id"] == job_id:
                self.pair.sqs.delete_message(**handle)
                found += 1
            else:
                self.pair.sqs.change_message_visibility(**handle, VisibilityTimeout=0)
        assert found == 1
        self.pair.send("DeadLetter", job_id)

    def wait_until_visible(self) -> None:
        """A move that failed has hidden a message."""

        def all_seen() -> bool:
            attributes = self.pair.sqs.get_queue_attributes(
                QueueUrl=self.pair.url("DeadLetter"),
                AttributeNames=["ApproximateNumberOfMessagesNotVisible"],
            )["Attributes"]
            return bool(attributes["ApproximateNumberOfMessagesNotVisible"] == "0")

        assert wait_for(all_seen, timeout_s=10)

    def wait_until_redrivable(self) -> None:
        """What comes within five seconds of the failure is a leftover."""
        last_ms = max(row["failed_at_epoch_ms"] for row in self.rows().values())
        assert wait_for(lambda: time.time() * 1000 > last_ms + 6_000, timeout_s=10)

    def move_back(self, **how: Any) -> dict[str, Any]:
        """Has SQS move the messages, as the console does, and gives what became of that."""
        sqs, source = self.pair.sqs, self.pair.arn(self.pair.url("DeadLetter"))
        sqs.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=10, **how)
        tasks: list[dict[str, Any]] = []

        def ended() -> bool:
            tasks[:] = sqs.list_message_move_tasks(SourceArn=source, MaxResults=1)["Results"]
            return bool(tasks[0]["Status"] != "RUNNING")

        assert wait_for(ended, timeout_s=30)
        return tasks[0]

    def work_until_completed(self) -> None:
        self.pair.work_until(
            lambda: all(row["status"] == "completed" for row in self.rows().values())
        )


@pytest.fixture
def dead(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Dead]:
    """Two jobs of each lane; the vendor would take them now."""
    pair.vendor_fails(FAULTY, status=400, error_code="invalid_prompt")
    jobs = {
        f"{lane} {number}": pair.submit(
            f"{FAULTY} {request.node.name} {number}", model=MODELS[lane]
        )
        for lane in MODELS
        for number in (1, 2)
    }
    pair.work_until(lambda: pair.left("DeadLetter") == len(jobs))
    pair.vendor_recovers()
    yield Dead(pair, jobs)
    pair.sqs.purge_queue(QueueUrl=pair.url("DeadLetter"))


@pytest.mark.proves(13)
def test_console_moves_each_dead_letter_to_its_own_lane_and_its_job_runs_again(dead: Dead) -> None:
    # case D01: what is moved back goes on counting receives here, and runs all the same
    before, listed = dead.rows(), dead.pair.cli("dlq", "list")["dead_letters"]
    messages = dead.letters()

    task = dead.move_back()
    lanes = [dead.pair.left(lane) for lane in LANES]
    dead.work_until_completed()

    assert {row["status"] for row in before.values()} == {"dead_lettered"}
    assert {letter["job_id"] for letter in listed} == set(dead.jobs.values())
    # Ten in the lane; the command's look and the test's are the others.
    assert {each["ApproximateReceiveCount"] for each in messages.values()} == {"12"}
    for name, job_id in dead.jobs.items():
        source = dead.pair.arn(dead.pair.url(lane_of(name).capitalize()))
        assert messages[job_id]["DeadLetterQueueSourceArn"] == source
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 4)
    assert lanes == [2, 2]
    for name, row in dead.rows().items():
        assert (row["attempts"], row["attempts_total"], row["redrives"]) == (1, 2, 1), name
        assert row["lane"] == lane_of(name)
    assert dead.pair.left("DeadLetter") == 0


def test_jobs_that_fail_again_in_the_lane_of_a_redrive_are_redriven_once_more(dead: Dead) -> None:
    dead.pair.vendor_fails(FAULTY, status=400, error_code="invalid_prompt")

    dead.move_back(DestinationArn=dead.pair.arn(dead.pair.url("Batch")))
    lanes = [dead.pair.left(lane) for lane in LANES]
    dead.pair.work_until(lambda: dead.pair.left("DeadLetter") == 4)
    between = dead.rows()
    dead.pair.vendor_recovers()
    dead.wait_until_redrivable()
    dead.move_back()
    dead.work_until_completed()

    assert lanes == [0, 4]
    assert {(row["status"], row["redrives"]) for row in between.values()} == {("dead_lettered", 1)}
    assert {row["redrives"] for row in dead.rows().values()} == {2}
    assert {row["lane"] for row in dead.rows().values()} == {"batch"}


def test_commands_do_what_the_console_can_not_and_a_message_sent_by_hand_stops_it(
    dead: Dead,
) -> None:
    one, by_hand, other = (
        dead.jobs[name] for name in ("interactive 1", "interactive 2", "batch 1")
    )
    dead.replace_by_hand(by_hand)

    shown = dead.pair.cli("dlq", "show", one)
    (first,) = dead.pair.cli("dlq", "redrive", one)["outcomes"]
    discarded = dead.pair.cli("dlq", "discard", other)
    task = dead.move_back()
    dead.wait_until_visible()
    told = dead.pair.cli("dlq", "redrive", "--all")
    kept = {name: job_id for name, job_id in dead.jobs.items() if job_id != other}
    Dead(dead.pair, kept).work_until_completed()

    assert shown["error_code"] == "vendor_rejected"
    assert first["outcome"] == "redriven"
    assert (discarded["status"], discarded["messages_removed"]) == ("failed", 1)
    # AWS says CouldNotDetermineMessageSource.
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AttributeError")
    assert {each["job_id"]: each["outcome"] for each in told["outcomes"]} == {by_hand: "redriven"}
    assert told["messages_unseen"] == 0
    assert dead.pair.left("DeadLetter") == 0


@pytest.mark.parametrize("lane", LANES)
def test_poison_message_ends_in_the_dead_letter_queue(pair: Pair, lane: str) -> None:
    # cases D09, T06
    pair.sqs.send_message(QueueUrl=pair.url(lane), MessageBody="not ours")
    poller, taken = pair.poller(lane), []

    def gone() -> bool:
        taken.append(poller.once())
        return pair.left(lane) == 0

    assert wait_for(gone, timeout_s=30)
    (entry,) = pair.cli("dlq", "list")["dead_letters"]
    pair.sqs.purge_queue(QueueUrl=pair.url("DeadLetter"))

    assert sum(taken) == 10
    assert entry["why_stray"] == "the message isn't one of ours"


def test_message_that_comes_back_too_soon_is_a_leftover_until_it_is_moved_again(pair: Pair) -> None:
    pair.vendor_fails(FAULTY, status=400, error_code="invalid_prompt")
    job_id = pair.submit(f"{FAULTY} too soon")
    pair.work_until(lambda: pair.row(job_id)["status"] == "failed")
    pair.vendor_recovers()

    pair.send("Interactive", job_id)  # within five seconds
    pair.work_until(lambda: pair.left("DeadLetter") == 2)
    row = pair.row(job_id)
    Dead(pair, {"interactive 1": job_id}).move_back()
    row_after = pair.run(job_id, "completed")
    pair.work_until(lambda: pair.left("Interactive") == 0)  # the copy, which isn't for other tests

    assert (row["status"], row["redrives"]) == ("dead_lettered", 0)
    assert (row_after["status"], row_after["redrives"]) == ("completed", 1)
    assert time.time() * 1000 - row["failed_at_epoch_ms"] > 10_000
