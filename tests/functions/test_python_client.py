"""The Python client and the API: each says what the other understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from sluiceway.domain.errors import VendorError
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
)

from tests.functions.stage import Stage, request

if TYPE_CHECKING:
    from collections.abc import Iterator


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
