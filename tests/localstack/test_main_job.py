"""The main job on LocalStack and DynamoDB Local: from a request to the end that is told."""

from __future__ import annotations

import json
import os
import secrets
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from sluiceway.domain.request import parse_submit
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.submit_job import Accepted, Origin, submit_job
from sluiceway_local.processes import wait_for

from tests.contract.test_races import at_once
from tests.local.test_webhooks import listening
from tests.localstack.pair import FunctionError

if TYPE_CHECKING:
    from tests.localstack.pair import Pair

pytestmark = pytest.mark.slow

HARD_CHARACTERS = "bell \x07, null \x00, tab \x0b, U+FFFE \ufffe, U+FFFF \uffff"


# ------------------------------------------------------------------------------------ the way there


@pytest.mark.proves(21)
def test_job_runs_and_its_equal_is_a_hit_that_tells_its_age(pair: Pair) -> None:
    job_id = pair.submit("Hello")

    row = pair.run(job_id)
    seen = pair.call("GET", f"/jobs/{job_id}").body
    again = pair.call("POST", "/jobs", {"model": "demo-chat", "input": "Hello"})

    assert (row["status"], row["attempts"], row["receives"]) == ("completed", 1, 1)
    assert (again.status, again.body["cache"]["status"]) == (200, "hit")
    assert again.body["result"]["text"] == seen["result"]["text"]
    assert int(again.headers["age"]) == again.body["cache"]["age_s"]
    assert pair.calls("Hello")["calls"] == 1
    assert pair.left("Interactive") == 0


@pytest.mark.proves(10)
def test_strangers_are_not_let_in_and_partners_do_not_see_each_other(pair: Pair) -> None:
    job_id = pair.submit("Whose is it")

    unknown = pair.call("GET", f"/jobs/{job_id}", key="swk_" + "B" * 43)
    another, nobody = (
        pair.call("GET", f"/jobs/{one}", tenant="globex")
        for one in (job_id, "job_01M8MG8BZK0FN56HXMX48ZSJAN")
    )

    assert unknown.status == 401
    assert another.status == nobody.status == 404
    assert {**another.body, "request_id": ""} == {**nobody.body, "request_id": ""}


@pytest.mark.proves(2)
def test_fifty_equal_submits_at_once_are_one_job_and_one_call(pair: Pair) -> None:
    body = json.dumps({"model": "demo-chat", "input": "Fifty"}).encode()
    caller = Caller("acme", frozenset({"submit"}), "key_1")

    with pair.submitter() as submitter:
        outcomes = at_once(
            *[
                lambda number=number: submit_job(  # type: ignore[misc]
                    parse_submit(body),
                    caller,
                    Origin(f"request-{number}", f"correlation-{number}"),
                    submitter,
                )
                for number in range(50)
            ]
        )

    assert {type(outcome) for outcome in outcomes} == {Accepted}
    (job_id,) = {outcome.job.job_id for outcome in outcomes}
    assert pair.run(job_id)["attempts"] == 1
    pair.work_until(lambda: pair.left("Interactive") == 0)
    assert pair.calls("Fifty")["calls"] == 1


@pytest.mark.parametrize(
    "text",
    ['a\r\nb <&> "q"', "a\rb\nc", "𠀀 Ѱ 🙂 é e\u0301", HARD_CHARACTERS],
    ids=["line ends", "carriage return", "planes", "control characters"],
)
def test_text_reaches_the_vendor_as_it_was_sent(
    pair: Pair, text: str
) -> None:  # case S05, S06, S07
    job_id = pair.submit(text)

    row = pair.run(job_id)

    assert (row["status"], pair.calls(text)["calls"]) == ("completed", 1)


@pytest.mark.parametrize("character", ["\x00", "\x07", "\ufffe"])
def test_queue_refuses_what_a_message_of_ours_never_holds(pair: Pair, character: str) -> None:
    with pytest.raises(ClientError) as refusal:
        pair.sqs.send_message(QueueUrl=pair.url("Batch"), MessageBody=f"a{character}b")

    assert refusal.value.response["Error"]["Code"] == "InvalidMessageContents"


def test_big_input_is_in_the_bucket_and_reaches_the_vendor(pair: Pair) -> None:
    text = secrets.token_hex(100_000)
    job_id = pair.submit(text)

    row = pair.run(job_id)

    assert row["status"] == "completed"
    assert row["input_ref"]
    assert pair.calls(text[:200])["calls"] == 1


# ------------------------------------------------------------------------------------ messages


@pytest.mark.proves(15)
def test_copies_of_a_message_do_nothing_twice(pair: Pair) -> None:  # case E04
    job_id = pair.submit("Copies", cache={"no_store": True})  # an entry would hide a second run
    for _ in range(4):
        pair.send("Interactive", job_id)

    row = pair.run(job_id)
    pair.work_until(lambda: pair.left("Interactive") == 0)

    assert (row["status"], pair.row(job_id)["attempts"]) == ("completed", 1)
    assert pair.calls("Copies")["calls"] == 1


@pytest.mark.proves(15)
def test_copies_in_one_batch_do_nothing_twice(pair: Pair) -> None:  # case T05
    job_id = pair.submit("Same batch", model="heavy", cache={"no_store": True})
    for _ in range(3):
        pair.send("Batch", job_id)

    taken = pair.poller("Batch", batch_size=10).once(wait_s=1)

    assert taken == 4
    assert pair.row(job_id)["status"] == "completed"
    assert pair.calls("Same batch")["calls"] == 1
    assert pair.left("Batch") == 0


def test_bad_record_is_returned_alone(pair: Pair) -> None:  # case T04, W05
    first = pair.submit("Before the bad one", model="heavy")
    pair.sqs.send_message(QueueUrl=pair.url("Batch"), MessageBody="not ours")
    second = pair.submit("After the bad one", model="heavy")

    taken = pair.poller("Batch", batch_size=10).once(wait_s=1)

    assert taken == 3
    assert [pair.row(job_id)["status"] for job_id in (first, second)] == ["completed"] * 2
    (left,) = pair.sqs.receive_message(QueueUrl=pair.url("Batch"), AttributeNames=["All"])[
        "Messages"
    ]
    assert (left["Body"], left["Attributes"]["ApproximateReceiveCount"]) == ("not ours", "2")
    pair.sqs.delete_message(QueueUrl=pair.url("Batch"), ReceiptHandle=left["ReceiptHandle"])


@pytest.mark.proves(6)
def test_retry_comes_back_when_its_visibility_ends(pair: Pair) -> None:
    job_id = pair.submit("Twice 503", options={"sim": {"status": 503, "times": 2}})

    row = pair.run(job_id)

    assert (row["status"], row["attempts"], row["receives"]) == ("completed", 3, 3)
    assert pair.calls("Twice 503")["calls"] == 3


@pytest.mark.proves(1, 3, 7)
def test_message_of_a_killed_worker_comes_back_and_its_job_ends(
    pair: Pair,
) -> None:  # case L01, L03
    job_id = pair.submit("Killed", options={"sim": {"delay_s": 3, "times": 1}})
    worker = pair.function("run_job", PART="killed")
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(pair.poller("Interactive", worker=worker).once, wait_s=1)
        assert wait_for(lambda: pair.calls("Killed")["calls"] == 1, timeout_s=30)
        os.kill(worker.pid, signal.SIGKILL)
        assert isinstance(working.exception(), FunctionError)
    before = pair.row(job_id)
    pair.send("Interactive", job_id)
    copies = pair.poller("Interactive").once(wait_s=2)
    meanwhile = pair.row(job_id)

    row = pair.run(job_id)

    assert (before["status"], copies) == ("processing", 1)
    assert meanwhile == before  # the lease of the dead worker is nobody's yet
    assert (row["status"], row["attempts"], row["receives"]) == ("completed", 2, 2)
    assert row["fence"] == before["fence"] + 1
    assert row["started_at_epoch_ms"] >= before["started_at_epoch_ms"] + 26_000  # lease and skew
    seen = pair.calls("Killed")
    assert (seen["calls"], seen["charged"]) == (2, 1)


@pytest.mark.proves(5)
def test_message_of_a_cancelled_job_is_acknowledged(pair: Pair) -> None:
    job_id = pair.submit("Cancelled")

    told = pair.call("POST", f"/jobs/{job_id}/cancel")
    pair.work_until(lambda: pair.left("Interactive") == 0)

    assert (told.status, pair.row(job_id)["status"]) == (200, "cancelled")
    assert pair.calls("Cancelled")["calls"] == 0


# ------------------------------------------------------------------------------------ the sweeper


@pytest.mark.proves(1)
def test_job_whose_send_failed_is_sent_by_the_sweeper(pair: Pair) -> None:  # case E01, L16, L18
    unable = pair.function("api", INTERACTIVE_QUEUE_URL=f"{pair.url('Interactive')}-gone")
    body = {"model": "demo-chat", "input": "Never sent"}
    before = pair.left("Interactive")

    accepted = pair.call("POST", "/jobs", body, api=unable)
    assert (accepted.status, pair.left("Interactive")) == (202, before)
    job_id = accepted.body["id"]
    again = pair.call("POST", "/jobs", body, api=unable)
    early = pair.function("sweep_jobs")({})
    pair.set_back(job_id, "due_at_epoch_ms")
    swept = pair.function("sweep_jobs")({})
    row = pair.run(job_id)

    assert '"send_failed"' in unable.log()
    assert (again.status, again.body["id"]) == (202, job_id)
    assert (early["sent"], swept["sent"]) == (0, 1)
    assert (row["status"], pair.calls("Never sent")["calls"]) == ("completed", 1)


# ------------------------------------------------------------------------------------ what is told


@pytest.mark.proves(16)
def test_ends_come_over_the_stream_to_the_bus_and_to_the_partner(pair: Pair) -> None:
    with listening() as server:
        done = pair.submit("Told", callback_url=f"{server.url}/told")
        ended = pair.submit("Told of the end", callback_url=f"{server.url}/cancelled")
        pair.call("POST", f"/jobs/{ended}/cancel")
        pair.run(done)

        pair.function("publish_events")({"Records": pair.stream()})
        heard = pair.heard("Told")
        deliver = pair.deliverer()
        while deliver.once(wait_s=1):
            pass

    events = {event["detail"]["job_id"]: event for event in heard}
    assert (events[done]["source"], events[done]["detail-type"]) == ("sluiceway", "JobCompleted")
    assert events[ended]["detail-type"] == "JobCancelled"
    for path, job_id in (("/told", done), ("/cancelled", ended)):
        (received,) = server.at(path)
        assert received.event["data"]["job_id"] == job_id
        assert received.headers["webhook-signature"].startswith("v1,")
    assert pair.left("Webhook") == 0


@pytest.mark.proves(20)
def test_event_on_the_bus_invalidates_a_model(pair: Pair) -> None:
    body = {"model": "heavy", "input": "Invalidated"}
    pair.run(pair.submit(body["input"], model="heavy"))
    before = pair.call("POST", "/jobs", body)

    pair.clients["events"].put_events(
        Entries=[
            {
                "EventBusName": "EventBus",
                "Source": "sluiceway.ops",
                "DetailType": "CacheInvalidate",
                "Detail": json.dumps({"model": "heavy"}),
            }
        ]
    )
    (event,) = pair.heard("Invalidate")
    pair.function("invalidate_cache")(event)
    answers: list[Any] = []

    def missed() -> bool:
        answers.append(pair.call("POST", "/jobs?dry_run=true", body))
        return bool(answers[-1].body["cache"]["status"] == "miss")

    assert before.body["cache"]["status"] == "hit"
    assert wait_for(missed, timeout_s=6, pause_s=0.5)
