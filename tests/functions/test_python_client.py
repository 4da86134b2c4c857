"""The Python client and the API: each says what the other understands."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import httpx
import pytest
from sluiceway.domain.endpoint import disabled
from sluiceway.domain.errors import VendorError
from sluiceway.domain.webhook import Attempt, DeliveryStatus, signed_headers
from sluiceway.routes.jobs import LONGEST_WAIT_S
from sluiceway_client import (
    CacheMissError,
    Client,
    ConflictError,
    Job,
    JobCancelledError,
    JobFailedError,
    NotFoundError,
    PermissionDeniedError,
    ValidationFailedError,
    calls,
    verify_webhook,
)

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.functions.stage import Stage, request

if TYPE_CHECKING:
    from collections.abc import Iterator


URL = "https://hooks.partner.example/sluiceway"


def run_all(stage: Stage) -> None:
    """As the workers do."""
    for _, tenant, job_id in stage.sent:
        stage.run_job(job_id, tenant)
    stage.sent.clear()


def client_of(stage: Stage, scopes: str) -> Client:
    """A client of the API; while it sleeps, the workers work."""

    def answer(asked: httpx.Request) -> httpx.Response:
        event = request(
            asked.method,
            asked.url.path.removeprefix("/v1"),
            scopes=scopes,
            headers=dict(asked.headers),
            query=dict(asked.url.params) or None,
        )
        event["body"] = asked.content.decode() or None
        told = stage.answer(event)
        return httpx.Response(told.status, headers=told.headers, text=told.text)

    def sleep(seconds: float) -> None:
        stage.clock.advance(s=seconds)
        run_all(stage)

    return Client(
        "https://api.example/v1",
        "swk_x",
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
        sleep=sleep,
        clock=lambda: stage.clock.now_ms() / 1000,
    )


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    made = client_of(stage, "submit read cancel")
    yield made
    made._http.close()


def test_server_holds_as_long_as_the_client_asks() -> None:
    assert calls.LONGEST_HOLD_S == LONGEST_WAIT_S


def test_job_is_run_and_its_result_is_there(stage: Stage, client: Client) -> None:
    ran = client.run(model="demo-chat", input="hello", metadata={"order": "7"})

    assert (ran.status, ran.text, ran.metadata) == ("completed", "a good answer", {"order": "7"})
    assert ran.result is not None
    assert ran.result.vendor_request_id == "req_vendor_1"
    assert ran.usage is not None
    assert (ran.usage.input_tokens, ran.usage.output_tokens) == (10, 20)
    assert (ran.cache.status, ran.attempts) == ("miss", 1)
    assert stage.vendor.total == 1


def test_job_that_ends_while_the_server_holds_needs_no_second_request(
    stage: Stage, client: Client
) -> None:
    def pause(seconds: float) -> None:
        stage.clock.advance(s=seconds)
        run_all(stage)

    stage.pause = pause

    ran = client.submit(model="demo-chat", input="hello", wait_s=10)

    assert (ran.status, ran.text) == ("completed", "a good answer")


def test_open_job_says_where_it_stands_and_when_to_ask(client: Client) -> None:
    job = client.submit(model="demo-chat", input="hello")

    assert (job.status, job.ended) == ("queued", False)
    assert job.retry_after_s is not None
    assert job.retry_after_s >= 1
    assert client.get(job).id == job.id


def test_second_run_is_a_hit(client: Client) -> None:
    client.run(model="demo-chat", input="hello")

    hit = client.run(model="demo-chat", input="hello")

    assert (hit.cache.status, hit.text) == ("hit", "a good answer")
    assert client.result(hit.id).text == "a good answer"


def test_same_idempotency_key_gives_the_same_job(stage: Stage, client: Client) -> None:
    first = client.submit(model="demo-chat", input="hello", idempotency_key="order-7")
    run_all(stage)

    again = client.submit(model="demo-chat", input="hello", idempotency_key="order-7")

    assert (again.id, again.status) == (first.id, "completed")


def test_idempotency_key_of_another_request_is_a_conflict(client: Client) -> None:
    client.submit(model="demo-chat", input="hello", idempotency_key="order-7")

    with pytest.raises(ConflictError) as refused:
        client.submit(model="demo-chat", input="bye", idempotency_key="order-7")

    assert refused.value.code == "idempotency_key_reused"


def test_failed_job_raises_the_vendors_reason(stage: Stage, client: Client) -> None:
    stage.vendor.script.append(VendorError("vendor_rejected", "No.", retryable=False))

    with pytest.raises(JobFailedError) as failed:
        client.run(model="demo-chat", input="hello")

    assert failed.value.code == "vendor_rejected"
    assert failed.value.job.ended


def test_cancelled_job_raises_when_it_is_waited_for(client: Client) -> None:
    job = client.submit(model="demo-chat", input="hello")

    assert client.cancel(job).status == "cancelled"
    with pytest.raises(JobCancelledError):
        client.wait(job.id)


def test_completed_job_is_not_cancelled(client: Client) -> None:
    job = client.run(model="demo-chat", input="hello")

    with pytest.raises(ConflictError) as refused:
        client.cancel(job)

    assert refused.value.code == "not_cancellable"


def test_jobs_are_listed_over_several_pages(client: Client) -> None:
    made = [client.submit(model="demo-chat", input=f"{n}") for n in range(5)]

    listed = list(client.jobs(status="queued", model="demo-chat", limit=2))

    assert sorted(job.id for job in listed) == sorted(job.id for job in made)


def test_result_of_a_listed_job_is_fetched(client: Client) -> None:
    client.run(model="demo-chat", input="hello")

    (listed,) = client.jobs()

    assert isinstance(listed, Job)
    assert listed.result is None
    assert client.result(listed).text == "a good answer"


def test_dry_run_tells_cost_and_cache(stage: Stage, client: Client) -> None:
    told = client.dry_run(model="demo-chat", input="hello")

    assert (told.cache.status, told.estimate.cost > 0) == ("miss", True)
    assert stage.sent == []


def test_models_are_those_of_the_catalogue(stage: Stage, client: Client) -> None:
    assert [model.id for model in client.models()] == sorted(stage.catalogue.models)


def test_refusals_are_told_apart(stage: Stage, client: Client) -> None:
    with pytest.raises(NotFoundError, match="model_not_found"):
        client.submit(model="no-such-model", input="hello")
    with pytest.raises(NotFoundError, match="job_not_found"):
        client.get("job_unknown")
    with pytest.raises(CacheMissError):
        client.submit(model="demo-chat", input="hello", cache={"mode": "only"})
    with pytest.raises(PermissionDeniedError, match="submit"):
        client_of(stage, "read").submit(model="demo-chat", input="hello")
    with pytest.raises(ValidationFailedError, match="deadline_s"):
        client.submit(model="demo-chat", input="hello", deadline_s=0)


# ------------------------------------------------------------------ batches, usage


def test_batch_is_run_and_each_item_has_its_own_outcome(client: Client) -> None:
    batch = client.create_batch(
        [
            {"custom_id": "good", "model": "demo-chat", "input": "one"},
            {"custom_id": "lost", "model": "no-such-model", "input": "two"},
            {"custom_id": "wrong", "model": "demo-chat", "input": ""},
        ]
    )

    ended = client.wait_batch(batch)

    assert batch.retry_after_s is not None
    assert batch.status == "in_progress"
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == (
        "completed",
        1,
        2,
    )
    good, lost, wrong = ended.data
    assert good.job is not None
    assert client.result(good.job).text == "a good answer"
    assert (good.custom_id, good.error) == ("good", None)
    assert lost.error is not None
    assert (lost.job, lost.error.code, lost.error.retryable) == (None, "model_not_found", False)
    assert "model" in lost.error.message
    assert wrong.error is not None
    assert [fault["field"] for fault in wrong.error.errors] == ["input"]
    assert ended.usage is not None
    assert ended.usage.output_tokens == 20


def test_usage_is_told_by_day_and_model(client: Client) -> None:
    client.run(model="demo-chat", input="hello")

    (row,) = client.usage(date(2026, 1, 1), date(2026, 1, 1))

    assert (row.date, row.model, row.completed) == (date(2026, 1, 1), "demo-chat", 1)
    assert (row.input_tokens, row.output_tokens, row.cost > 0) == (10, 20, True)


# ------------------------------------------------------------------ webhooks


def test_webhook_is_made_shown_and_deleted(stage: Stage, client: Client) -> None:
    made = client.create_webhook(URL, events=["job.failed"], description="ours")

    callbacks, listed = client.webhooks()

    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    assert listed == replace(made, secret=None) == client.get_webhook(made)
    assert (listed.url, listed.events, listed.status) == (URL, ("job.failed",), "enabled")
    assert (callbacks.id, callbacks.url) == ("callbacks", None)
    client.delete_webhook(made)
    assert len(stage.world.endpoints["acme"]) == 1


def test_webhook_is_made_once_with_one_idempotency_key(stage: Stage, client: Client) -> None:
    first = client.create_webhook(URL, idempotency_key="hook-1")

    again = client.create_webhook(URL, idempotency_key="hook-1")

    assert again == first
    assert again.secret is not None
    assert len(stage.world.endpoints["acme"]) == 2


def test_disabled_webhook_says_since_when_and_why(stage: Stage, client: Client) -> None:
    made = client.create_webhook(URL)
    stage.registrar.endpoints.change(
        "acme", lambda before: disabled(before, made.id, now_ms=NOW_MS, reason="gone")
    )

    found = client.get_webhook(made)

    assert (found.status, found.disabled_reason) == ("disabled", "gone")
    assert found.disabled_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_rotated_secret_is_another_one(client: Client) -> None:
    made = client.create_webhook(URL)

    rotated = client.rotate_webhook(made, overlap_s=0)

    assert rotated.secret is not None
    assert rotated.secret != made.secret


def test_test_is_pending_and_can_be_verified(stage: Stage, client: Client) -> None:
    made = client.create_webhook(URL)
    assert made.secret is not None

    told = client.test_webhook(made)

    (sent,) = stage.webhooks.taken
    assert (told.id, told.event_id) == (sent.delivery_id, sent.event_id)
    assert (told.type, told.status, told.job_id, told.attempts) == (
        "webhook.test",
        "pending",
        None,
        0,
    )
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    event = verify_webhook(
        sent.body.encode(),
        signed_headers(sent, [key], now_s=NOW_MS // 1000),
        made.secret,
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert (event.id, event.type, event.job_id) == (told.event_id, "webhook.test", None)


def test_deliveries_are_listed_over_pages_and_sent_again(stage: Stage, client: Client) -> None:
    made = client.create_webhook(URL)
    attempt = Attempt(NOW_MS + 60_000, DeliveryStatus.FAILED, 500, "refused")
    for number in range(3):
        delivery = a_delivery(number, endpoint_id=made.id)
        stage.registrar.delivery_log.record(delivery, attempt)

    listed = list(client.webhook_deliveries(made, limit=2))

    assert [one.id for one in listed] == sorted((one.id for one in listed), reverse=True)
    assert len(listed) == 3
    newest = listed[0]
    assert (newest.status, newest.http_status, newest.error) == ("failed", 500, "refused")
    assert (newest.attempts, newest.url) == (1, None)
    assert (
        newest.first_attempt_at == newest.last_attempt_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    )
    again = client.redeliver(made, newest)
    assert (again.id, again.event_id, again.status) == (newest.id, newest.event_id, "pending")


def test_delivery_of_a_callback_says_where_it_went(stage: Stage, client: Client) -> None:
    attempt = Attempt(NOW_MS + 60_000, DeliveryStatus.DELIVERED, 200)
    stage.registrar.delivery_log.record(
        a_delivery(1, endpoint_id="callbacks", url="https://hooks.example/job"), attempt
    )

    (told,) = client.webhook_deliveries("callbacks")

    assert (told.url, told.status) == ("https://hooks.example/job", "delivered")


def test_unknown_webhook_and_delivery_are_not_found(client: Client) -> None:
    made = client.create_webhook(URL)

    with pytest.raises(NotFoundError, match="webhook_not_found"):
        client.get_webhook("whk_unknown")
    with pytest.raises(NotFoundError, match="delivery_not_found"):
        client.redeliver(made, "dlv_unknown")
    with pytest.raises(ValidationFailedError, match="url"):
        client.create_webhook("https://127.0.0.1/")
