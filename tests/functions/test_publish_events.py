"""The publisher, stream event in; an exception is the only way to see a record again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.bootstrap import PublishDeps
from sluiceway.domain.endpoint import NO_ENDPOINTS
from sluiceway.domain.errors import NotPublishedError
from sluiceway.domain.webhook import deliveries

from functions.publish_events import app
from tests.fakes.in_memory import InMemoryEndpoints
from tests.fakes.outside import FakeBus, FakeWebhookQueue
from tests.functions.stage import sample
from tests.unit.logs import a_context, log_lines, output

if TYPE_CHECKING:
    from tests.functions.stage import Stage


def publish(
    stage: Stage, event: dict[str, Any], bus: FakeBus | None = None
) -> tuple[FakeBus, FakeWebhookQueue]:
    bus, webhooks = bus or FakeBus(), FakeWebhookQueue()
    deps = PublishDeps(
        bus, InMemoryEndpoints(stage.world), webhooks, stage.telemetry, pause=lambda _: None
    )
    app.handle(event, a_context(function_name="publish_events"), deps)
    return bus, webhooks


def test_sample_event_is_told_to_both(stage: Stage) -> None:
    bus, webhooks = publish(stage, sample("publish_events"))

    (event,) = bus.taken
    assert (event.detail_type, event.job_id) == ("JobCompleted", "job_01KDVT7V00000000000000000A")
    assert webhooks.taken == deliveries(event, NO_ENDPOINTS)


def test_what_is_left_is_raised(stage: Stage) -> None:
    with pytest.raises(NotPublishedError):
        publish(stage, sample("publish_events"), FakeBus(1, 1, 1))


def test_unreadable_record_does_not_hold_up_the_others(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    event = sample("publish_events")
    good = event["Records"][0]["dynamodb"]["NewImage"]
    broken: list[Any] = [
        {"dynamodb": {"NewImage": {**good, "status": {"S": "failed"}, "error": {"S": "x"}}}},
        {"dynamodb": {"NewImage": {**good, "created_at_epoch_ms": {"S": "soon"}}}},
        {"dynamodb": {"NewImage": {**good, "created_at_epoch_ms": {"N": "soon"}}}},
        {"dynamodb": {"NewImage": {**good, "model": {"SS": ["a"]}}}},
        {"dynamodb": {"NewImage": {**good, "request_id": {"SS": ["a"]}}}},
        {"dynamodb": {"NewImage": {}}},
        {"dynamodb": {"NewImage": {"status": {"S": "completed"}}, "OldImage": {}}},
        {"dynamodb": {"NewImage": {"status": "completed"}}},
        {},
    ]
    event["Records"] = [*broken, *event["Records"]]

    bus, _ = publish(stage, event)

    assert len(bus.taken) == 1
    told = [line["message"] for line in log_lines(output(capsys))]
    assert told == ["record_unreadable"] * len(broken) + ["events_published"]


def test_batch_without_an_ended_job_is_quiet(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    event = sample("publish_events")
    event["Records"][0]["dynamodb"]["NewImage"]["status"] = {"S": "processing"}

    bus, webhooks = publish(stage, event)

    assert (bus.taken, webhooks.taken, output(capsys)) == ([], [], [])


def test_log_counts_and_holds_nothing_of_the_job(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(stage, sample("publish_events"))

    written = output(capsys)
    (line,) = log_lines(written)
    assert (line["events"], line["webhooks"]) == (1, 1)
    assert "hooks.partner.example" not in json.dumps(written)
