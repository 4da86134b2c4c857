"""The poller deletes and keeps what Lambda's event source mapping would."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws
from sluiceway_local.poller import Context, Poller

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BODIES = ("one", "two", "three")


@pytest.fixture
def sqs() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("sqs")
        yield client
        client.close()


@pytest.fixture
def queue_url(sqs: Any) -> str:
    url: str = sqs.create_queue(QueueName="lane", Attributes={"VisibilityTimeout": "60"})[
        "QueueUrl"
    ]
    for body in BODIES:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    return url


class Handler:
    """Keeps its events, and answers `answer(event)`."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.events: list[dict[str, Any]] = []
        self.contexts: list[Context] = []

    def __call__(self, event: dict[str, Any], context: Context) -> Any:
        self.events.append(event)
        self.contexts.append(context)
        return self.answer(event)


def left(sqs: Any, queue_url: str) -> int:
    """What is in the queue, hidden or not."""
    attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])["Attributes"]
    return int(attributes["ApproximateNumberOfMessages"]) + int(
        attributes["ApproximateNumberOfMessagesNotVisible"]
    )


def failures(*identifiers: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": one} for one in identifiers]}


def test_handler_gets_records_like_those_of_lambda(sqs: Any, queue_url: str) -> None:
    handler = Handler(lambda _: failures())
    sample = json.loads((ROOT / "events/run_job.json").read_text("utf-8"))["Records"][0]

    Poller(sqs, queue_url, handler, "run_job", 30).once()

    (record,) = handler.events[0]["Records"]
    assert record.keys() == sample.keys()
    assert record["body"] in BODIES
    assert record["eventSourceARN"].endswith(":lane")
    assert record["eventSource"] == "aws:sqs"
    assert record["md5OfBody"] == hashlib.md5(record["body"].encode()).hexdigest()  # noqa: S324
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert {"SentTimestamp", "ApproximateFirstReceiveTimestamp"} <= record["attributes"].keys()
    assert 29_000 < handler.contexts[0].get_remaining_time_in_millis() <= 30_000
    assert handler.contexts[0].function_name == "run_job"


def test_record_has_the_ids_and_the_attributes_of_its_message(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="lane")["QueueUrl"]
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="one",
        MessageAttributes={"who": {"DataType": "String", "StringValue": "acme"}},
    )
    handler = Handler(lambda _: failures())

    Poller(sqs, url, handler, "run_job", 30).once()

    (record,) = handler.events[0]["Records"]
    assert record["messageId"] == sent["MessageId"]
    assert record["messageAttributes"] == {"who": {"dataType": "String", "stringValue": "acme"}}


def test_poll_waits_as_long_as_it_is_told(sqs: Any, queue_url: str) -> None:
    asked: list[dict[str, Any]] = []
    sqs.meta.events.register(
        "provide-client-params.sqs.ReceiveMessage", lambda params, **_: asked.append(params)
    )

    Poller(sqs, queue_url, Handler(lambda _: failures()), "run_job", 30).once(wait_s=7)

    assert asked[0]["WaitTimeSeconds"] == 7


def test_poll_of_an_empty_queue_calls_nobody(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="empty")["QueueUrl"]
    handler = Handler(lambda _: failures())

    taken = Poller(sqs, url, handler, "run_job", 30).once()

    assert (taken, handler.events) == (0, [])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: failures(), id="no failures"),
        pytest.param(lambda _: {"batchItemFailures": None}, id="null failures"),
        pytest.param(lambda _: {}, id="an empty answer"),
        pytest.param(lambda _: None, id="no answer"),
    ],
)
def test_batch_without_failures_is_deleted(sqs: Any, queue_url: str, answer: Any) -> None:
    poller = Poller(sqs, queue_url, Handler(answer), "run_job", 30, batch_size=10)

    taken = poller.once()

    assert (taken, left(sqs, queue_url)) == (3, 0)


def test_only_what_failed_stays(sqs: Any, queue_url: str) -> None:
    handler = Handler(lambda event: failures(event["Records"][0]["messageId"]))
    poller = Poller(sqs, queue_url, handler, "run_job", 30, batch_size=10)

    poller.once()

    assert left(sqs, queue_url) == 1


@pytest.mark.parametrize("identifier", ["", None, "of-another-batch"])
def test_failure_that_names_no_message_keeps_the_batch(
    sqs: Any, queue_url: str, identifier: Any
) -> None:
    poller = Poller(sqs, queue_url, Handler(lambda _: failures(identifier)), "run_job", 30, 10)

    poller.once()

    assert left(sqs, queue_url) == 3


def test_exception_of_the_handler_keeps_the_batch(sqs: Any, queue_url: str) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    poller = Poller(sqs, queue_url, Handler(fail), "run_job", 30, batch_size=10)

    with pytest.raises(ValueError, match="no"):
        poller.once()

    assert left(sqs, queue_url) == 3


def test_time_left_of_a_context_ends_at_zero() -> None:
    context = Context("run_job", 1, began_s=time.monotonic() - 5)

    assert context.get_remaining_time_in_millis() == 0
