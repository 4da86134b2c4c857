"""Deliver: one attempt, and what becomes of the message after it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.endpoint import (
    NO_ENDPOINTS,
    Endpoint,
    Secret,
    signing_key,
)
from sluiceway.domain.errors import StoreBusyError, WebhookError
from sluiceway.domain.webhook import (
    MAX_RECEIVES,
    TIMEOUT_S,
    Attempt,
    DeliveryRecord,
    DeliveryStatus,
    signed_headers,
)
from sluiceway.usecases.deliver_webhook import Courier, deliver_webhook

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    FakeFlags,
    InMemoryDeliveries,
    InMemoryEndpoints,
    InMemoryJobs,
    RecordingTelemetry,
    World,
)
from tests.fakes.outside import MASTER, FakeWebhookClient, FakeWebhookSecrets
from tests.unit.samples import JOB_ID, a_job

if TYPE_CHECKING:
    from sluiceway.domain.endpoint import Endpoints
    from sluiceway.domain.job import Job
    from sluiceway.domain.webhook import Delivery

URL = "https://hooks.example/path?token=hunter2"
DELIVERY = a_delivery(endpoint_id="callbacks", job_id=JOB_ID, url=URL)
TO_ENDPOINT = replace(DELIVERY, endpoint_id="whk_1", url="")
TEST = replace(TO_ENDPOINT, type="webhook.test", job_id="", body='{"type":"webhook.test"}')
ENDPOINT = Endpoint("whk_1", URL, created_at_epoch_ms=NOW_MS)
OFF = replace(ENDPOINT, disabled_at_epoch_ms=NOW_MS - 5, disabled_reason="gone")


@dataclass
class Desk:
    """The use case with its ports; the job wants webhooks at URL."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    secrets: FakeWebhookSecrets = field(default_factory=FakeWebhookSecrets)
    client: FakeWebhookClient = field(default_factory=FakeWebhookClient)
    telemetry: RecordingTelemetry = field(default_factory=RecordingTelemetry)
    local: bool = False
    flags: FakeFlags = field(default_factory=FakeFlags)

    def __post_init__(self) -> None:
        self.world.jobs["acme", JOB_ID] = a_job(callback_urls=(URL,))
        self.world.endpoints["acme"] = (*NO_ENDPOINTS, ENDPOINT)
        self.delivery_log = InMemoryDeliveries(self.world)

    @property
    def endpoint(self) -> Endpoint:
        return self.world.endpoints["acme"][1]

    def record(self, delivery: Delivery = DELIVERY) -> DeliveryRecord:
        """What is remembered of it."""
        found = self.delivery_log.get(
            "acme", delivery.endpoint_id, delivery.delivery_id, now_ms=self.clock.now_ms()
        )
        assert found is not None
        return found

    @property
    def job(self) -> Job:
        return self.world.jobs["acme", JOB_ID]

    def deliver(self, delivery: Delivery = DELIVERY, *, receives: int = 1) -> float | None:
        courier = Courier(
            flags=self.flags,
            jobs=InMemoryJobs(self.world, clock=self.clock),
            endpoints=InMemoryEndpoints(self.world),
            delivery_log=self.delivery_log,
            webhook_secrets=self.secrets,
            webhook_client=self.client,
            clock=self.clock,
            telemetry=self.telemetry,
            rand=lambda: 0.0,
            local=self.local,
        )
        return deliver_webhook(delivery, receives, courier)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_delivered_webhook_is_done_with(desk: Desk, status: int) -> None:
    desk.client.script = [status]

    assert desk.deliver() is None
    assert desk.telemetry.names == ["webhook_delivered"]


def test_webhook_is_signed_anew_in_each_attempt(desk: Desk) -> None:  # case Z02
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


def test_unreadable_secret_is_tried_again(desk: Desk) -> None:
    desk.secrets.failure = WebhookError("secret_unreadable", "no")

    assert desk.deliver() == 5.0
    assert desk.client.posts == []


@pytest.mark.parametrize("url", ["http://hooks.example/", "https://10.0.0.1/"])
def test_url_is_judged_by_the_rules_of_the_attempt(desk: Desk, url: str) -> None:
    desk.world.jobs["acme", JOB_ID] = a_job(callback_urls=(url,))

    assert desk.deliver(replace(DELIVERY, url=url)) == 5.0
    assert desk.client.posts == []
    assert desk.telemetry.events[0][2]["reason"] == "forbidden_url"

    desk.local = True
    assert desk.deliver(replace(DELIVERY, url=url)) is None


@pytest.mark.parametrize("status", [204, 302, 410, 500])
def test_log_names_neither_the_address_nor_the_secret(desk: Desk, status: int) -> None:
    desk.client.script = [status]

    desk.deliver()

    told = json.dumps([fields for _, _, fields in desk.telemetry.events])
    assert "hunter2" not in told
    assert "hooks.example" not in told
    assert MASTER.decode() not in told
    assert desk.telemetry.jobs == [JOB_ID]


# ------------------------------------------------------------------ switched off


@pytest.mark.parametrize("delivery", [DELIVERY, TO_ENDPOINT, TEST], ids=["job", "endpoint", "test"])
@pytest.mark.parametrize("receives", [1, MAX_RECEIVES])
def test_webhook_is_suppressed_while_webhooks_are_off(
    desk: Desk, delivery: Delivery, receives: int
) -> None:
    desk.flags.switched["webhooks"] = False

    assert desk.deliver(delivery, receives=receives) is None

    record = desk.record(delivery)
    assert (record.status, record.attempts) == (DeliveryStatus.SUPPRESSED, 0)
    assert record.first_attempt_at_epoch_ms is None
    assert desk.client.posts == []
    ((name, _, told),) = desk.telemetry.events
    assert (name, told["delivery_id"]) == ("webhook_suppressed", delivery.delivery_id)


@pytest.mark.parametrize(("tenant", "posts"), [("acme", 0), ("globex", 1)])
def test_webhooks_are_off_for_one_tenant_alone(desk: Desk, tenant: str, posts: int) -> None:
    desk.flags.exceptions["webhooks", f"tenant:{tenant}"] = False

    assert desk.deliver() is None

    assert len(desk.client.posts) == posts


def test_suppressed_webhook_keeps_what_came_of_it_before_and_may_be_sent_again(desk: Desk) -> None:
    desk.client.script = [500, 204]
    desk.deliver()
    desk.flags.switched["webhooks"] = False
    desk.clock.advance(s=5)
    desk.deliver(receives=2)
    suppressed = desk.record()

    desk.flags.switched["webhooks"] = True
    desk.clock.advance(s=5)
    desk.deliver()

    assert (suppressed.status, suppressed.attempts) == (DeliveryStatus.SUPPRESSED, 1)
    assert (suppressed.http_status, suppressed.error) == (500, "refused")
    assert (desk.record().status, desk.record().attempts) == (DeliveryStatus.DELIVERED, 2)


def test_webhook_that_nobody_could_note_as_suppressed_comes_again(desk: Desk) -> None:
    class Busy(InMemoryDeliveries):
        def record(self, delivery: Delivery, attempt: Attempt) -> None:  # noqa: ARG002
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    desk.delivery_log = Busy(desk.world)
    desk.flags.switched["webhooks"] = False

    assert desk.deliver() == 5.0
    assert desk.telemetry.names == ["webhook_unrecorded"]


# ------------------------------------------------------------------ endpoints


def test_endpoint_is_told_at_its_address_and_no_job_is_read(desk: Desk) -> None:
    desk.world.jobs.clear()

    assert desk.deliver(TO_ENDPOINT) is None

    (posted,) = desk.client.posts
    assert (posted.target.host, posted.headers["webhook-id"]) == ("hooks.example", "evt_1")
    ((name, _, told),) = desk.telemetry.events
    assert name == "webhook_delivered"
    assert told["delivery_id"] == TO_ENDPOINT.delivery_id
    assert (told["endpoint_id"], told["correlation_id"]) == ("whk_1", "corr-1")


@pytest.mark.parametrize(
    ("secrets", "generations"),
    [
        ((Secret(1),), [1]),
        ((Secret(3), Secret(2, NOW_MS + 1)), [3, 2]),
        ((Secret(3), Secret(2, NOW_MS)), [3]),
    ],
)
@pytest.mark.parametrize("delivery", [TO_ENDPOINT, DELIVERY], ids=["endpoint", "callback"])
def test_each_secret_that_lives_signs_the_newest_first(
    desk: Desk, delivery: Delivery, secrets: tuple[Secret, ...], generations: list[int]
) -> None:
    desk.world.endpoints["acme"] = tuple(
        replace(one, secrets=secrets) for one in desk.world.endpoints["acme"]
    )
    keys = [signing_key(MASTER, "acme", delivery.endpoint_id, one) for one in generations]

    desk.deliver(delivery)

    expected = signed_headers(delivery, keys, now_s=NOW_MS // 1000)
    assert desk.client.posts[0].headers["webhook-signature"] == expected["webhook-signature"]


def test_gone_disables_the_endpoint(desk: Desk) -> None:
    desk.client.script = [410]

    assert desk.deliver(TO_ENDPOINT) is None

    assert (desk.endpoint.disabled_at_epoch_ms, desk.endpoint.disabled_reason) == (NOW_MS, "gone")
    assert desk.job.callback_urls == (URL,)
    assert desk.telemetry.names == ["webhook_disabled"]


@pytest.mark.parametrize("left", [(), (OFF,)], ids=["deleted", "disabled"])
def test_what_is_queued_for_an_endpoint_that_is_gone_or_disabled_is_dropped(
    desk: Desk, left: Endpoints
) -> None:
    desk.world.endpoints["acme"] = (*NO_ENDPOINTS, *left)

    assert desk.deliver(TO_ENDPOINT) is None
    assert desk.client.posts == []
    assert desk.telemetry.names == ["webhook_unwanted"]
    assert len(desk.world.deliveries) == len(left)  # who looks back sees why


# ------------------------------------------------------------------ tests


def test_test_that_succeeds_enables_the_endpoint(desk: Desk) -> None:
    desk.world.endpoints["acme"] = (*NO_ENDPOINTS, OFF)

    assert desk.deliver(TEST) is None
    assert desk.endpoint == ENDPOINT
    assert desk.record(TEST).status is DeliveryStatus.DELIVERED


@pytest.mark.parametrize("turn", [500, 302, WebhookError("timeout")])
def test_test_that_fails_is_not_tried_again_and_enables_nothing(
    desk: Desk, turn: int | WebhookError
) -> None:
    desk.world.endpoints["acme"] = (*NO_ENDPOINTS, OFF)
    desk.client.script = [turn]

    assert desk.deliver(TEST) is None
    assert desk.endpoint == OFF
    assert desk.record(TEST).status is DeliveryStatus.FAILED
    assert desk.telemetry.names == ["webhook_failed"]


# ------------------------------------------------------------------ what is remembered


@pytest.mark.parametrize(
    ("turn", "receives", "attempt"),
    [
        (204, 1, Attempt(NOW_MS, DeliveryStatus.DELIVERED, 204)),
        (500, 1, Attempt(NOW_MS, DeliveryStatus.PENDING, 500, "refused")),
        (302, 6, Attempt(NOW_MS, DeliveryStatus.PENDING, 302, "redirected")),
        (500, MAX_RECEIVES, Attempt(NOW_MS, DeliveryStatus.FAILED, 500, "refused")),
        (410, 1, Attempt(NOW_MS, DeliveryStatus.FAILED, 410, "gone")),
        (WebhookError("timeout"), 1, Attempt(NOW_MS, DeliveryStatus.PENDING, None, "timeout")),
    ],
)
@pytest.mark.parametrize("delivery", [TO_ENDPOINT, DELIVERY], ids=["endpoint", "callback"])
def test_attempt_is_remembered(
    desk: Desk, delivery: Delivery, turn: int | WebhookError, receives: int, attempt: Attempt
) -> None:
    desk.client.script = [turn]

    desk.deliver(delivery, receives=receives)

    assert desk.record(delivery) == DeliveryRecord(
        delivery,
        attempt.status,
        1,
        attempt.http_status,
        attempt.error,
        first_attempt_at_epoch_ms=NOW_MS,
        last_attempt_at_epoch_ms=NOW_MS,
    )


def test_webhook_that_was_delivered_is_done_with_though_nobody_could_note_it(desk: Desk) -> None:
    class Full(InMemoryDeliveries):
        def record(self, delivery: Delivery, attempt: Attempt) -> None:  # noqa: ARG002
            raise StoreBusyError("no", retry_after_s=1)

    desk.delivery_log = Full(desk.world)

    assert desk.deliver() is None
    assert desk.telemetry.names == ["webhook_unrecorded", "webhook_delivered"]
