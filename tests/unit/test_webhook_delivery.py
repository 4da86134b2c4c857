"""Deliver: one attempt, and what becomes of the message after it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import WebhookError
from sluiceway.domain.webhook import MAX_RECEIVES, TIMEOUT_S, Delivery
from sluiceway.usecases.deliver_webhook import Courier, deliver_webhook

from tests.fakes.in_memory import NOW_MS, FakeClock, InMemoryJobs, RecordingTelemetry, World
from tests.fakes.outside import KEY, FakeWebhookClient, FakeWebhookSecrets
from tests.unit.samples import JOB_ID, a_job

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

URL = "https://hooks.example/path?token=hunter2"
DELIVERY = Delivery("evt_1", "acme", JOB_ID, URL, '{"type":"job.completed"}')


@dataclass
class Desk:
    """The use case with its ports; the job wants webhooks at URL."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    secrets: FakeWebhookSecrets = field(default_factory=FakeWebhookSecrets)
    client: FakeWebhookClient = field(default_factory=FakeWebhookClient)
    telemetry: RecordingTelemetry = field(default_factory=RecordingTelemetry)
    local: bool = False

    def __post_init__(self) -> None:
        self.world.jobs["acme", JOB_ID] = a_job(callback_urls=(URL,))

    @property
    def job(self) -> Job:
        return self.world.jobs["acme", JOB_ID]

    def deliver(self, *, receives: int = 1, url: str = URL) -> float | None:
        courier = Courier(
            jobs=InMemoryJobs(self.world, clock=self.clock),
            webhook_secrets=self.secrets,
            webhook_client=self.client,
            clock=self.clock,
            telemetry=self.telemetry,
            rand=lambda: 0.0,
            local=self.local,
        )
        return deliver_webhook(replace(DELIVERY, url=url), receives, courier)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_delivered_webhook_is_done_with(desk: Desk, status: int) -> None:
    desk.client.script = [status]

    assert desk.deliver() is None
    assert desk.telemetry.names == ["webhook_delivered"]


def test_webhook_is_signed_anew_in_each_attempt(desk: Desk) -> None:
    desk.client.script = [500]

    desk.deliver()
    desk.clock.advance(s=5)
    desk.deliver(receives=2)

    first, second = desk.client.posts
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "evt_1"
    assert first.body == second.body == DELIVERY.body.encode()
    assert first.headers["webhook-timestamp"] == str(NOW_MS // 1000)
    assert second.headers["webhook-timestamp"] == str(NOW_MS // 1000 + 5)
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


def test_request_says_what_it_is(desk: Desk) -> None:
    desk.deliver()

    (posted,) = desk.client.posts
    assert posted.headers["content-type"] == "application/json"
    assert (posted.target.host, posted.target.path) == ("hooks.example", "/path?token=hunter2")
    assert posted.timeout_s == TIMEOUT_S == 15


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 422, 429, 500, 503])
def test_any_other_answer_is_tried_again(desk: Desk, status: int) -> None:
    desk.client.script = [status]

    assert desk.deliver() == 5.0
    ((name, _, told),) = desk.telemetry.events
    assert name == "webhook_failed"
    assert told["http_status"] == status
    assert told["reason"] == ("redirected" if status < 400 else "refused")


@pytest.mark.parametrize("reason", ["timeout", "connection", "unknown_host", "forbidden_address"])
def test_attempt_without_an_answer_is_tried_again(desk: Desk, reason: str) -> None:
    desk.client.script = [WebhookError(reason, "no")]

    assert desk.deliver(receives=2) == 60.0
    ((_, _, told),) = desk.telemetry.events
    assert told["reason"] == reason


def test_last_attempt_leaves_the_message_to_the_dead_letter_queue(desk: Desk) -> None:
    desk.client.script = [500]

    assert desk.deliver(receives=MAX_RECEIVES) == 0.0
    assert desk.telemetry.events[0][2]["last"] is True


def test_gone_disables_the_callback_of_this_job(desk: Desk) -> None:
    other = "https://hooks.example/other"
    desk.world.jobs["acme", JOB_ID] = a_job(callback_urls=(other, URL))
    desk.client.script = [410]

    assert desk.deliver() is None
    assert desk.job.callback_urls == (other,)
    assert desk.telemetry.names == ["webhook_disabled"]


def test_disabled_callback_gets_nothing_more(desk: Desk) -> None:
    desk.client.script = [410]
    desk.deliver()

    assert desk.deliver() is None
    assert len(desk.client.posts) == 1
    assert desk.telemetry.names[-1] == "webhook_unwanted"


def test_webhook_of_a_job_that_is_gone_is_done_with(desk: Desk) -> None:
    desk.world.jobs.clear()

    assert desk.deliver() is None
    assert desk.client.posts == []


def test_tenant_without_a_secret_gets_no_webhook_and_an_event_says_so(desk: Desk) -> None:
    desk.secrets.found = None

    assert desk.deliver() is None
    assert desk.client.posts == []
    assert desk.telemetry.names == ["webhook_unsigned"]


def test_unreadable_secret_is_tried_again(desk: Desk) -> None:
    desk.secrets.failure = WebhookError("secret_unreadable", "no")

    assert desk.deliver() == 5.0
    assert desk.client.posts == []


@pytest.mark.parametrize("url", ["http://hooks.example/", "https://10.0.0.1/"])
def test_url_is_judged_by_the_rules_of_the_attempt(desk: Desk, url: str) -> None:
    desk.world.jobs["acme", JOB_ID] = a_job(callback_urls=(url,))

    assert desk.deliver(url=url) == 5.0
    assert desk.client.posts == []
    assert desk.telemetry.events[0][2]["reason"] == "forbidden_url"

    desk.local = True
    assert desk.deliver(url=url) is None


@pytest.mark.parametrize("status", [204, 302, 410, 500])
def test_log_names_neither_the_address_nor_the_secret(desk: Desk, status: int) -> None:
    desk.client.script = [status]

    desk.deliver()

    told = json.dumps([fields for _, _, fields in desk.telemetry.events])
    assert "hunter2" not in told
    assert "hooks.example" not in told
    assert KEY.decode() not in told
    assert desk.telemetry.jobs == [JOB_ID]
