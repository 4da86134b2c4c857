"""JobQueue: the lanes."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from pydantic import TypeAdapter, ValidationError
from sluiceway.adapters.sqs_queue import SQSJobQueue, read_body
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import Name
from sluiceway.domain.errors import StoreBusyError

from tests.contract.harness import sweep
from tests.fakes.examples import a_job
from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    InMemoryDueJobs,
    InMemoryJobs,
    InMemoryQueue,
    RecordingTelemetry,
    World,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_sqs import SQSClient
    from sluiceway.ports import JobQueue

LANES = ("interactive", "batch")

_numbers = itertools.count(1)


class Lanes(Protocol):
    """A queue, and what tests see of it."""

    queue: JobQueue

    def messages(self) -> list[tuple[str, str, str]]:
        """Lane, tenant and job id of each message that is there."""
        ...

    def break_down(self) -> None:
        """From here on sends fail."""
        ...

    def put_in(self, lane: str, number: int) -> None:
        """So many more messages are in this lane."""
        ...


class InMemoryLanes:
    """Looks into the fake."""

    def __init__(self) -> None:
        self.queue = InMemoryQueue()

    def messages(self) -> list[tuple[str, str, str]]:
        return self.queue.sends

    def break_down(self) -> None:
        self.queue.broken = True

    def put_in(self, lane: str, number: int) -> None:
        self.queue.backlogs[lane] = number


@dataclass(slots=True)
class SQSLanes:
    """Looks into an emulator's queues."""

    client: SQSClient
    urls: dict[str, str]
    queue: SQSJobQueue
    failures: list[str]

    def messages(self) -> list[tuple[str, str, str]]:
        found = []
        for lane in LANES:
            for message in self.receive(lane):
                body = read_body(message["Body"])
                assert body is not None
                found.append((lane, *body))
        return found

    def receive(self, lane: str, *, wait_s: int = 0) -> list[Any]:
        """The visible messages with all they carry; they are invisible for a minute then."""
        answer = self.client.receive_message(
            QueueUrl=self.urls[lane],
            MaxNumberOfMessages=10,
            VisibilityTimeout=60,
            WaitTimeSeconds=wait_s,
            MessageSystemAttributeNames=["All"],
        )
        return list(answer.get("Messages", []))

    def put_in(self, lane: str, number: int) -> None:
        for index in range(number):
            self.queue.send(a_job(index, lane=lane))

    def break_down(self) -> None:
        for url in self.urls.values():
            self.client.delete_queue(QueueUrl=url)


@contextmanager
def lanes_in_sqs(endpoint_url: str | None) -> Iterator[SQSLanes]:
    """Two empty queues."""
    client = boto3.client("sqs", endpoint_url=endpoint_url)
    number = next(_numbers)  # SQS has a deleted queue's name again after a minute only
    urls = {lane: client.create_queue(QueueName=f"{lane}-{number}")["QueueUrl"] for lane in LANES}
    failures: list[str] = []
    yield SQSLanes(client, urls, SQSJobQueue(client, urls, on_failure=failures.append), failures)
    client.close()


@pytest.fixture
def on_moto() -> Iterator[SQSLanes]:
    with mock_aws(), lanes_in_sqs(None) as lanes:
        yield lanes


@pytest.fixture
def on_localstack(localstack_url: str) -> Iterator[SQSLanes]:
    with lanes_in_sqs(localstack_url) as lanes:
        yield lanes


@pytest.fixture(params=["moto", "localstack"])
def sqs(request: pytest.FixtureRequest) -> SQSLanes:
    """Two empty queues in each emulator."""
    found: SQSLanes = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture(params=["in_memory", "moto", "localstack"])
def lanes(request: pytest.FixtureRequest) -> Lanes:
    """Empty lanes."""
    if request.param == "in_memory":
        return InMemoryLanes()
    found: SQSLanes = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.mark.parametrize("lane", LANES)
def test_send_puts_the_job_into_its_own_lane(lanes: Lanes, lane: str) -> None:
    sent = lanes.queue.send(a_job(lane=lane))

    assert sent
    assert lanes.messages() == [(lane, "acme", a_job().job_id)]


def test_send_that_fails_says_so_and_raises_nothing(lanes: Lanes) -> None:
    lanes.break_down()

    sent = lanes.queue.send(a_job())

    assert not sent


@pytest.mark.parametrize("lane", LANES)
def test_backlog_counts_the_messages_of_its_own_lane(lanes: Lanes, lane: str) -> None:
    lanes.put_in(lane, 3)

    assert {of: lanes.queue.backlog(of) for of in LANES} == dict.fromkeys(LANES, 0) | {lane: 3}


def test_lane_that_can_not_be_measured_is_busy(lanes: Lanes) -> None:
    lanes.break_down()

    with pytest.raises(StoreBusyError):
        lanes.queue.backlog("interactive")


def test_send_with_a_delay_is_a_send(lanes: Lanes) -> None:
    assert lanes.queue.send(a_job(), delay_s=5)


def test_give_back_of_a_message_that_is_gone_is_left_alone(lanes: Lanes) -> None:
    lanes.queue.give_back("batch", "no such receipt", 5.0)

    assert lanes.messages() == []


# ------------------------------------------------------------------------------------ SQS


def accepts(length: int) -> bool:
    """Whether the catalogue takes a name of this length."""
    try:
        TypeAdapter(Name).validate_python("n" * length)
    except ValidationError:
        return False
    return True


def test_sqs_message_is_small_ascii_json_without_the_input(sqs: SQSLanes) -> None:  # case S05
    sqs.queue.send(a_job(tenant="t" * 64))

    (message,) = sqs.receive("interactive")
    assert json.loads(message["Body"]) == {"tenant": "t" * 64, "job_id": a_job().job_id}
    assert message["Body"].isascii()
    assert len(message["Body"]) < 1024


def test_sqs_message_is_grouped_by_tenant_and_model(sqs: SQSLanes) -> None:
    sqs.queue.send(a_job())

    (message,) = sqs.receive("interactive")
    assert message["Attributes"]["MessageGroupId"] == "acme:demo-chat"


def test_sqs_group_of_the_longest_names_is_one_that_sqs_takes(sqs: SQSLanes) -> None:
    longest = "n" * max(length for length in range(1, 200) if accepts(length))

    sqs.queue.send(a_job(tenant=longest, model=longest))

    (message,) = sqs.receive("interactive")
    assert len(message["Attributes"]["MessageGroupId"]) <= 128


def test_sqs_message_carries_the_trace_of_the_submit(sqs: SQSLanes) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

    sqs.queue.send(replace(a_job(), trace_header=trace))

    (message,) = sqs.receive("interactive")
    assert message["Attributes"]["AWSTraceHeader"] == trace


def test_sqs_send_that_fails_tells_the_class_of_the_error(sqs: SQSLanes) -> None:
    sqs.break_down()

    sqs.queue.send(a_job())

    assert len(sqs.failures) == 1
    assert "acme" not in sqs.failures[0]


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "ThrottlingException"}}, "ChangeMessageVisibility"),
        EndpointConnectionError(endpoint_url="http://127.0.0.1"),
    ],
    ids=["throttled", "unreachable"],
)
def test_sqs_message_that_can_not_be_given_back_is_told_and_comes_again_later(  # case W08
    sqs: SQSLanes, error: Exception
) -> None:
    class Failing:
        def change_message_visibility(self, **_: Any) -> None:
            raise error

    queue: Any = Failing()

    SQSJobQueue(queue, sqs.urls, on_failure=sqs.failures.append).give_back("batch", "receipt", 0)

    assert sqs.failures == [type(error).__name__]


def test_sqs_message_given_back_without_delay_is_visible_at_once(sqs: SQSLanes) -> None:
    sqs.queue.send(a_job())
    (message,) = sqs.receive("interactive")

    sqs.queue.give_back("interactive", message["ReceiptHandle"], 0)

    (again,) = sqs.receive("interactive")
    assert again["Body"] == message["Body"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


@pytest.mark.parametrize("delay_s", [0.001, 30.0, 1e9], ids=["a moment", "30 s", "for ever"])
def test_sqs_message_given_back_with_a_delay_is_not_visible_yet(
    sqs: SQSLanes, delay_s: float
) -> None:
    sqs.queue.send(a_job())
    (message,) = sqs.receive("interactive")

    sqs.queue.give_back("interactive", message["ReceiptHandle"], delay_s)

    assert sqs.receive("interactive") == []
    assert sqs.failures == []


def test_sqs_message_given_back_with_a_negative_delay_is_visible_at_once(sqs: SQSLanes) -> None:
    sqs.queue.send(a_job())
    (message,) = sqs.receive("interactive")

    sqs.queue.give_back("interactive", message["ReceiptHandle"], -3.0)

    assert len(sqs.receive("interactive")) == 1


def test_sqs_message_with_a_delay_arrives_after_it_and_not_before(sqs: SQSLanes) -> None:
    sqs.queue.send(a_job(), delay_s=1)

    began = time.monotonic()
    at_once = sqs.receive("interactive")
    messages = sqs.receive("interactive", wait_s=5)

    assert at_once == []
    assert len(messages) == 1
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize("delay_s", [900, 901, 10**6])
def test_sqs_message_is_delayed_by_no_more_than_sqs_allows(sqs: SQSLanes, delay_s: int) -> None:
    assert sqs.queue.send(a_job(), delay_s=delay_s)
    assert sqs.receive("interactive") == []
    assert sqs.failures == []


def test_sqs_backlog_has_visible_delayed_and_received_messages(sqs: SQSLanes) -> None:
    sqs.queue.send(a_job(1))
    sqs.receive("interactive")
    sqs.queue.send(a_job(2))
    sqs.queue.send(a_job(3), delay_s=100)

    assert sqs.queue.backlog("interactive") == 3


def test_sqs_messages_of_twenty_sweeps_carry_the_submits_trace_without_its_lineage(  # case D04
    sqs: SQSLanes,
) -> None:
    # Lambda counts the passes of a lineage and stops the sixteenth; a parked job has many.
    root = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    world, clock = World(), FakeClock()
    job = a_job(
        trace_header=f"{root};Lineage=1:5759e988:3|2:53995c3f:14",
        due_at_epoch_ms=NOW_MS,
        deadline_epoch_ms=NOW_MS + 24 * 3600 * 1000,
    )
    world.jobs[job.tenant, job.job_id] = replace(job, due_shard=transitions.due_shard(job.job_id))
    carried = []

    for _ in range(20):
        sweep(
            InMemoryJobs(world, clock=clock),
            InMemoryDueJobs(world),
            sqs.queue,
            clock=clock,
            telemetry=RecordingTelemetry(),
        )
        carried += [one["Attributes"]["AWSTraceHeader"] for one in sqs.receive("interactive")]
        clock.advance(s=1000)  # over the longest wait between two sends

    assert carried == [root] * 20
    assert world.jobs[job.tenant, job.job_id].open
