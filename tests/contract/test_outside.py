"""The ports to what has no tables: the webhooks' queue, the event bus, and the vendors' keys."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws
from sluiceway.adapters.eventbridge_events import EventBridgeEvents
from sluiceway.adapters.secrets_manager import SecretsManagerKeys
from sluiceway.adapters.sqs_webhooks import SQSWebhooks, read_body
from sluiceway.domain.errors import VendorError
from sluiceway.domain.notice import Notice

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.fakes.outside import FakeBus, FakeSecretsManager, FakeWebhookQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.domain.webhook import Delivery
    from sluiceway.ports import EventBus, WebhookQueue

    from tests.fakes.in_memory import FakeClock

EMULATORS = ("moto", "localstack")
SECRET = "sluiceway/vendors/simulator"

_numbers = itertools.count(1)


def drained(sqs: Any, url: str) -> list[str]:
    """The bodies of what is in the queue, which are gone from it then."""
    bodies = []
    while messages := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
    ).get("Messages"):
        bodies += [message["Body"] for message in messages]
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


@dataclass(frozen=True, slots=True)
class Outside:
    """One implementation of the ports, with nothing in it but a vendor's key."""

    webhooks: WebhookQueue
    delivered: Callable[[], list[Delivery]]
    """The webhooks that are in the queue."""
    bus: EventBus
    heard: Callable[[], list[tuple[str, str, dict[str, Any]]]]
    """Source, kind and detail of the events that a rule for all of them has brought; moto brings
    none without a library that we don't have."""
    keys: SecretsManagerKeys


def in_memory(clock: FakeClock) -> Outside:
    bus, webhooks = FakeBus(), FakeWebhookQueue()
    return Outside(
        webhooks,
        lambda: webhooks.taken,
        bus,
        lambda: [(event.source, event.detail_type, event.detail()) for event in bus.taken],
        FakeSecretsManager().vendor_keys(clock),
    )


def on_aws(clock: FakeClock, endpoint_url: str | None) -> Outside:
    """The adapters; what comes over the bus is put into a queue."""
    sqs, events, secrets = (
        boto3.client(service, endpoint_url=endpoint_url)  # type: ignore[call-overload]
        for service in ("sqs", "events", "secretsmanager")
    )
    name = f"outside-{next(_numbers)}"
    url, heard_url = (
        sqs.create_queue(QueueName=f"{name}-{purpose}")["QueueUrl"]
        for purpose in ("webhooks", "heard")
    )
    arn = sqs.get_queue_attributes(QueueUrl=heard_url, AttributeNames=["QueueArn"])["Attributes"]
    events.create_event_bus(Name=name)
    events.put_rule(
        Name="all", EventBusName=name, EventPattern='{"source": [{"prefix": "sluiceway"}]}'
    )
    events.put_targets(
        Rule="all", EventBusName=name, Targets=[{"Id": "queue", "Arn": arn["QueueArn"]}]
    )
    secrets.put_secret_value(SecretId=secret_made(secrets), SecretString="sk-hunter2")

    def heard() -> list[tuple[str, str, dict[str, Any]]]:
        came = [json.loads(body) for body in drained(sqs, heard_url)]
        return [(event["source"], event["detail-type"], event["detail"]) for event in came]

    return Outside(
        SQSWebhooks(sqs, url),
        lambda: [one for body in drained(sqs, url) if (one := read_body(body))],
        EventBridgeEvents(events, name),
        heard,
        SecretsManagerKeys(lambda: secrets, clock),
    )


def secret_made(secrets: Any) -> str:
    """The name of the vendor's secret, which is there then."""
    with suppress(secrets.exceptions.ResourceExistsException):
        secrets.create_secret(Name=SECRET, SecretString="another")
    return SECRET


@pytest.fixture
def on_moto(clock: FakeClock) -> Iterator[Outside]:
    with mock_aws():
        yield on_aws(clock, None)


@pytest.fixture
def on_localstack(clock: FakeClock, localstack_url: str) -> Outside:
    return on_aws(clock, localstack_url)


@pytest.fixture(params=EMULATORS)
def emulated(request: pytest.FixtureRequest) -> Outside:
    """The adapters on each emulator."""
    found: Outside = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture(params=("in_memory", *EMULATORS))
def outside(request: pytest.FixtureRequest, clock: FakeClock) -> Outside:
    """The fakes, and the adapters on each emulator."""
    if request.param == "in_memory":
        return in_memory(clock)
    found: Outside = request.getfixturevalue(f"on_{request.param}")
    return found


def test_webhooks_of_several_batches_arrive_as_they_were_sent(outside: Outside) -> None:
    sent = [a_delivery(number) for number in range(12)]

    refused = outside.webhooks.send(sent)

    assert refused == []
    assert sorted(outside.delivered(), key=str) == sorted(sent, key=str)


def test_webhook_that_is_gone_is_given_back_without_a_word(outside: Outside) -> None:
    outside.webhooks.give_back("no such receipt", 5.0)

    assert outside.delivered() == []


@pytest.mark.parametrize("outside", ["in_memory", "localstack"], indirect=True)
def test_events_of_several_batches_arrive_with_all_they_say(outside: Outside) -> None:
    told = [
        Notice("PauseBegan", NOW_MS + number, "model:demo-chat", "user:me", {"number": number})
        for number in range(12)
    ]

    refused = outside.bus.put(told)

    assert refused == []
    assert sorted(outside.heard(), key=str) == sorted(
        ((one.source, one.detail_type, one.detail()) for one in told), key=str
    )


def test_key_of_a_vendor_is_its_secret(outside: Outside) -> None:
    assert outside.keys(SECRET) == "sk-hunter2"


def test_secret_that_is_not_there_is_an_error_that_waiting_does_not_help(
    emulated: Outside,
) -> None:
    with pytest.raises(VendorError) as failure:
        emulated.keys("sluiceway/vendors/nobody")

    assert not failure.value.retryable
