"""The deliverer, SQS event in and batch item failures out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sluiceway.adapters.dynamodb_stream import event_of
from sluiceway.adapters.sqs_webhooks import message_body
from sluiceway.bootstrap import DeliverDeps
from sluiceway.domain.endpoint import NO_ENDPOINTS
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.webhook import RETRY_DELAYS_S, deliveries
from sluiceway.usecases.deliver_webhook import Courier

from functions.deliver_webhook import app
from tests.fakes.in_memory import InMemoryDeliveries, InMemoryEndpoints
from tests.fakes.outside import FakeWebhookClient, FakeWebhookQueue, FakeWebhookSecrets
from tests.functions.stage import Stage, sample
from tests.unit.logs import a_context, log_lines, metric_lines, output
from tests.unit.samples import JOB_ID, a_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sluiceway.domain.address import Target

URL = "https://hooks.partner.example/sluiceway"


@dataclass
class Desk:
    """The function on a stage, whose job wants the sample's webhook."""

    stage: Stage
    client: Any = field(default_factory=FakeWebhookClient)
    webhooks: FakeWebhookQueue = field(default_factory=FakeWebhookQueue)
    courier: Callable[[], Courier] | None = None
    """In place of one with all of this."""

    def __post_init__(self) -> None:
        self.stage.world.jobs["acme", JOB_ID] = a_job(callback_urls=(URL,))

    def deliver(self, *records: dict[str, Any]) -> list[str]:
        """Gives the ids of the messages that stay in the queue."""
        stage = self.stage
        courier = Courier(
            flags=stage.flags,
            jobs=stage.jobs,
            endpoints=InMemoryEndpoints(stage.world),
            delivery_log=InMemoryDeliveries(stage.world),
            webhook_secrets=FakeWebhookSecrets(),
            webhook_client=self.client,
            clock=stage.clock,
            telemetry=stage.telemetry,
            rand=lambda: 0.0,
            local=False,
        )
        answer = app.handle(
            {"Records": list(records)},
            a_context(function_name="deliver_webhook"),
            DeliverDeps(self.courier or (lambda: courier), self.webhooks, stage.telemetry),
        )
        assert list(answer) == ["batchItemFailures"]
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


@pytest.fixture
def desk(stage: Stage) -> Desk:
    return Desk(stage)


def a_message(message_id: str = "message-1", *, receives: int = 1, **changes: Any) -> Any:
    (record,) = sample("deliver_webhook")["Records"]
    attributes = {**record["attributes"], "ApproximateReceiveCount": str(receives)}
    return {**record, "messageId": message_id, "attributes": attributes, **changes}


def test_sample_event_is_what_the_publisher_sends() -> None:
    (record,) = sample("deliver_webhook")["Records"]
    event = event_of(sample("publish_events")["Records"][0])
    assert event is not None

    assert [record["body"]] == [message_body(one) for one in deliveries(event, NO_ENDPOINTS)]
    assert record["md5OfBody"] == hashlib.md5(record["body"].encode()).hexdigest()  # noqa: S324


def test_webhook_of_the_sample_event_is_delivered(desk: Desk) -> None:
    assert desk.deliver(*sample("deliver_webhook")["Records"]) == []

    (posted,) = desk.client.posts
    assert posted.target.host == "hooks.partner.example"
    assert json.loads(posted.body)["type"] == "job.completed"
    assert desk.webhooks.gives_back == []


@pytest.mark.parametrize(("receives", "delay_s"), [(1, 5), (2, 60), (6, 21_600), (7, 0)])
def test_failed_attempt_stays_in_the_queue_for_a_while(
    desk: Desk, receives: int, delay_s: float
) -> None:
    desk.client.script = [503]
    message = a_message(receives=receives)

    assert desk.deliver(message) == ["message-1"]
    assert desk.webhooks.gives_back == [(message["receiptHandle"], delay_s)]


@pytest.mark.parametrize("body", ["", "no json", '{"tenant": "acme"}'])
def test_unreadable_message_goes_to_the_dead_letter_queue(desk: Desk, body: str) -> None:
    message = a_message(body=body)

    assert desk.deliver(message) == ["message-1"]
    assert desk.webhooks.gives_back == [(message["receiptHandle"], 0)]


def test_unexpected_error_takes_no_other_record_along(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    class Exploding(FakeWebhookClient):
        def post(
            self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_s: float
        ) -> int:
            if not self.posts:
                super().post(target, headers, body, timeout_s=timeout_s)
                raise RuntimeError("hunter2")
            return super().post(target, headers, body, timeout_s=timeout_s)

    desk.client = Exploding()

    assert desk.deliver(a_message("first"), a_message("second")) == ["first"]
    written = output(capsys)
    assert [line["message"] for line in log_lines(written)] == [
        "unexpected_error",
        "webhook_delivered",
    ]
    assert "hunter2" not in json.dumps(written)


def test_delivery_is_counted_by_tenant(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.deliver(a_message())

    written = output(capsys)
    (metrics,) = metric_lines(written)
    assert metrics["WebhooksDelivered"] == [1.0]
    assert metrics["tenant"] == "acme"
    (line,) = log_lines(written)
    assert line["correlation_id"] == "corr-1"
    assert "hooks.partner.example" not in json.dumps(written)


def test_suppressed_webhook_is_done_with_and_counted_by_tenant(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.stage.flags.exceptions["webhooks", "tenant:acme"] = False

    kept = desk.deliver(a_message())

    assert kept == []
    assert desk.client.posts == []
    written = output(capsys)
    (metrics,) = metric_lines(written)
    assert metrics["WebhooksSuppressed"] == [1.0]
    assert metrics["tenant"] == "acme"
    assert [line["message"] for line in log_lines(written)] == ["webhook_suppressed"]


def test_webhook_waits_as_after_a_failure_while_the_flags_were_never_read(desk: Desk) -> None:
    def courier() -> NoReturn:
        raise StoreBusyError("The flags can't be read.", retry_after_s=5)

    desk.courier = courier

    assert desk.deliver(a_message(receives=3)) == ["message-1"]
    assert [delay_s for _, delay_s in desk.webhooks.gives_back] == [RETRY_DELAYS_S[2]]
    assert desk.client.posts == []
