"""The routes in OpenAI's form as OpenAI's own client sees them, sync and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.errors import VendorError
from sluiceway.ports import VendorAnswer

from tests.functions.openai_clients import Clients
from tests.unit.samples import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.functions.stage import Stage

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=["sync", "async"])
def clients(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Clients]:
    made = Clients(stage, kind=request.param)
    yield made
    made.close()


def kind_of(clients: Clients) -> str:
    return "sync" if isinstance(clients._client, openai.OpenAI) else "async"


def runs_after(stage: Stage, seconds: float) -> None:
    """From now on open jobs are run when so much time has passed."""
    at_ms = stage.clock.now_ms() + round(seconds * 1000)

    def pause(wait_s: float) -> None:
        stage.clock.pause(wait_s)
        if stage.clock.now_ms() >= at_ms:
            for (tenant, job_id), job in list(stage.world.jobs.items()):
                if job.open:
                    stage.run_job(job_id, tenant)

    stage.pause = pause


def chat(clients: Clients, **members: Any) -> Any:
    asked = {"model": "demo-chat", "messages": HELLO, **members}
    return clients.ask(lambda client: client.chat.completions.create(**asked))


def respond(clients: Clients, **members: Any) -> Any:
    asked = {"model": "demo-chat", "input": "hello", **members}
    return clients.ask(lambda client: client.responses.create(**asked))


def retrieve(clients: Clients, response_id: str) -> Any:
    return clients.ask(lambda client: client.responses.retrieve(response_id))


def cancel(clients: Clients, response_id: str) -> Any:
    return clients.ask(lambda client: client.responses.cancel(response_id))


# ------------------------------------------------------------------ chat


def test_chat_gives_the_answer(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 5)

    answer = chat(clients, temperature=0.5, metadata={"order": "1"})

    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    assert answer.choices[0].message.content == "a good answer"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 30
    assert answer._request_id == "gateway-1"
    (job,) = stage.world.jobs.values()
    assert (answer.id, answer.created) == (job.job_id, job.created_at_epoch_ms // 1000)
    assert job.metadata == {"order": "1"}


def test_chat_that_is_cached_asks_nobody(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 1)
    first = chat(clients)

    second = chat(clients)

    ChatCompletion.model_validate(second.model_dump(), strict=True)
    assert second.choices == first.choices
    assert second.id.startswith("hit_")
    assert stage.vendor.total == 1


@pytest.mark.parametrize("model", ["demo-chat", "demo-uncached"])
def test_chat_that_lasts_is_gone_on_with_by_the_clients_own_retry(
    stage: Stage, clients: Clients, model: str
) -> None:
    runs_after(stage, 40)

    answer = chat(clients, model=model)

    assert answer.choices[0].message.content == "a good answer"
    assert clients.transport.answered == [504, 200]
    assert stage.vendor.total == 1
    assert [job.job_id for job in stage.world.jobs.values()] == [answer.id]


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_answer_that_came_between_two_calls_is_told_though_it_may_not_be_reused(
    stage: Stage, clients: Clients, finish_reason: str
) -> None:
    stage.vendor.default = VendorAnswer("cut", finish_reason, 1, 2, 300)
    runs_after(stage, 25.5)  # while the client waits

    answer = chat(clients, model="demo-uncached")

    assert answer.choices[0].finish_reason == finish_reason
    assert clients.transport.answered == [504, 200]
    assert stage.vendor.total == 1


def test_chat_that_lasts_longer_than_the_clients_retries_says_which_job_it_was(
    stage: Stage, clients: Clients
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        chat(clients)

    (job,) = stage.world.jobs.values()
    error = caught.value
    assert (error.status_code, error.code, error.type) == (504, "still_running", "server_error")
    body: Any = error.body
    assert body["job_id"] == error.response.headers["x-job-id"] == job.job_id
    assert int(error.response.headers["retry-after"]) == clients.slept_s[-1]
    assert clients.transport.answered == [504, 504, 504]


def test_chat_may_be_asked_again_after_the_clients_retries(stage: Stage, clients: Clients) -> None:
    with pytest.raises(openai.InternalServerError):
        chat(clients, model="demo-uncached")
    (job,) = stage.world.jobs.values()
    stage.run_job(job.job_id)

    answer = chat(clients, model="demo-uncached")

    assert answer.id == job.job_id
    assert stage.vendor.total == 1


def test_chat_passes_tools_and_their_calls(stage: Stage, clients: Clients) -> None:
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    stage.vendor.default = VendorAnswer(
        "", "tool_calls", 1, 2, 300, content=[{"type": "tool_calls", "tool_calls": [call]}]
    )
    runs_after(stage, 1)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]

    answer = chat(clients, tools=tools, tool_choice="auto")

    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    assert message.tool_calls[0].model_dump() == call
    again = [*HELLO, message, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    stage.vendor.default = VendorAnswer("rain", "stop", 1, 2, 300)
    assert chat(clients, messages=again, tools=tools).choices[0].message.content == "rain"


# ------------------------------------------------------------------ responses


def test_response_in_the_background_is_polled_until_it_is_there(
    stage: Stage, clients: Clients
) -> None:
    response = respond(clients, background=True, instructions="be kind", metadata={"order": "1"})
    Response.model_validate(response.model_dump(), strict=True)
    statuses = [response.status, retrieve(clients, response.id).status]
    stage.run_job(response.id)

    done = retrieve(clients, response.id)

    Response.model_validate(done.model_dump(), strict=True)
    assert statuses == ["queued", "queued"]
    assert (done.status, done.output_text) == ("completed", "a good answer")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (10, 20)
    assert (done.metadata, done.background) == ({"order": "1"}, True)
    assert stage.get(response.id).body["result"]["text"] == done.output_text


def test_response_in_the_foreground_is_held(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 40)

    response = respond(clients)

    Response.model_validate(response.model_dump(), strict=True)
    assert (response.status, response.output_text) == ("completed", "a good answer")
    assert response.background is False
    assert clients.transport.answered == [504, 200]
    assert stage.vendor.total == 1


def test_response_that_was_cut_off_is_incomplete(stage: Stage, clients: Clients) -> None:
    stage.vendor.default = VendorAnswer("cut", "length", 1, 2, 300)
    runs_after(stage, 1)

    response = respond(clients, max_output_tokens=2)

    Response.model_validate(response.model_dump(), strict=True)
    assert (response.status, response.output_text) == ("incomplete", "cut")
    assert response.incomplete_details.reason == "max_output_tokens"


def test_response_is_sent_back_as_it_was(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 1)
    first = respond(clients)

    second = respond(clients, input=[*HELLO, *first.output, {"role": "user", "content": "and?"}])

    assert second.status == "completed"
    assert stage.vendor.total == 2


def test_response_is_cancelled(stage: Stage, clients: Clients) -> None:
    response = respond(clients, background=True)

    cancelled = [cancel(clients, response.id), cancel(clients, response.id)]

    Response.model_validate(cancelled[0].model_dump(), strict=True)
    assert [one.status for one in cancelled] == ["cancelled", "cancelled"]
    assert retrieve(clients, response.id).status == "cancelled"
    assert stage.get(response.id).body["status"] == "cancelled"


def test_response_that_is_there_is_not_cancelled(stage: Stage, clients: Clients) -> None:
    response = respond(clients, background=True)
    stage.run_job(response.id)

    with pytest.raises(openai.ConflictError) as caught:
        cancel(clients, response.id)

    assert caught.value.code == "not_cancellable"
    assert clients.slept_s == []  # a 409 is tried again unless it says no


def test_response_that_failed_says_so(stage: Stage, clients: Clients) -> None:
    stage.vendor.default = VendorError("vendor_filtered", "It was filtered.", retryable=False)
    response = respond(clients, background=True)
    stage.run_job(response.id)

    failed = retrieve(clients, response.id)

    Response.model_validate(failed.model_dump(), strict=True)
    assert (failed.status, failed.error.code) == ("failed", "invalid_prompt")
    assert failed.error.model_extra == {"job_code": "vendor_filtered"}


def test_response_of_another_tenant_is_not_found(stage: Stage, clients: Clients) -> None:
    response = respond(clients, background=True)
    globex = Clients(stage, kind=kind_of(clients), tenant="globex")

    for ask in (retrieve, cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(globex, response.id)
        assert caught.value.code == "job_not_found"

    globex.close()


# ------------------------------------------------------------------ models


def test_models_are_listed_and_retrieved(clients: Clients) -> None:
    listed = clients.ask(lambda client: client.models.list())
    one = clients.ask(lambda client: client.models.retrieve("demo-chat"))

    assert one.id in {model.id for model in listed.data}
    assert one.owned_by == "simulator"


def test_model_that_the_catalogue_lacks_is_not_found(clients: Clients) -> None:
    with pytest.raises(openai.NotFoundError):
        clients.ask(lambda client: client.models.retrieve("no-such"))
    with pytest.raises(openai.NotFoundError) as caught:
        chat(clients, model="no-such")

    assert caught.value.code == "model_not_found"


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("vendor_rejected", openai.BadRequestError, 400),
        ("vendor_filtered", openai.BadRequestError, 400),
        ("vendor_auth_failed", openai.InternalServerError, 500),
        ("vendor_quota_exhausted", openai.InternalServerError, 500),
        ("vendor_bad_response", openai.InternalServerError, 500),
        ("vendor_timeout", openai.InternalServerError, 504),
    ],
)
def test_chat_whose_job_failed_is_paid_once(
    stage: Stage, clients: Clients, code: str, kind: type[openai.APIStatusError], status: int
) -> None:
    stage.vendor.default = VendorError(code, "It failed.", retryable=False)
    runs_after(stage, 1)

    with pytest.raises(kind) as caught:
        chat(clients)

    (job,) = stage.world.jobs.values()
    assert (caught.value.status_code, caught.value.code) == (status, code)
    body: Any = caught.value.body
    assert body["job_id"] == job.job_id
    assert clients.transport.answered == [status]
    assert stage.vendor.total == 1


def test_failure_is_told_once_and_then_tried_again(stage: Stage, clients: Clients) -> None:
    stage.vendor.script = [VendorError("vendor_rejected", "No.", retryable=False)]
    runs_after(stage, 40)
    with pytest.raises(openai.BadRequestError):
        chat(clients)

    answer = chat(clients)

    assert answer.choices[0].message.content == "a good answer"
    assert clients.transport.answered == [504, 400, 200]


def test_chat_whose_job_is_cancelled_ends(stage: Stage, clients: Clients) -> None:
    def pause(wait_s: float) -> None:
        stage.clock.pause(wait_s)
        (job,) = stage.world.jobs.values()
        stage.cancel(job.job_id)

    stage.pause = pause

    with pytest.raises(openai.ConflictError) as caught:
        chat(clients)

    assert caught.value.code == "job_cancelled"
    assert clients.transport.answered == [409]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"extra_body": {"top_k": 4}}, "top_k"),
        ({"extra_body": {"sluiceway": {"priority": "now"}}}, "sluiceway.priority"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_by_its_name(
    stage: Stage, clients: Clients, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        chat(clients, **members)

    error = caught.value
    assert (error.code, error.param) == ("validation_failed", param)
    assert error.type == "invalid_request_error"
    assert error.request_id == "gateway-1"
    assert param in error.message
    assert stage.world.jobs == {}


def test_our_members_go_along(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 1)

    chat(clients, extra_body={"sluiceway": {"priority": "batch", "deadline_s": 60}})

    (job,) = stage.world.jobs.values()
    assert (job.lane, job.deadline_s) == ("batch", 60)


@pytest.mark.parametrize("ask", [chat, respond])
def test_rate_that_is_used_up_is_waited_for(
    stage: Stage, clients: Clients, ask: Callable[..., Any]
) -> None:
    limits = Tenant(requests_per_minute=1)
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": limits}})
    runs_after(stage, 1)
    ask(clients)

    ask(clients, temperature=0.5)

    assert clients.transport.answered == [200, 429, 200]
    assert 0 < clients.slept_s[0] <= 60


def test_rate_that_stays_used_up_is_a_rate_limit_error(stage: Stage, clients: Clients) -> None:
    limits = Tenant(in_flight=1)
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": limits}})
    respond(clients, background=True)

    with pytest.raises(openai.RateLimitError) as caught:
        chat(clients, seed=1)

    assert caught.value.code == "quota_exceeded"
    assert clients.slept_s == [10, 10]


@pytest.mark.parametrize(
    ("tenant", "scopes", "kind", "code"),
    [
        ("", "submit read", openai.AuthenticationError, "unauthenticated"),
        ("acme", "read", openai.PermissionDeniedError, "forbidden"),
        ("acme", "submit", openai.PermissionDeniedError, "forbidden"),
    ],
)
def test_key_that_may_not_is_told_so(
    stage: Stage,
    clients: Clients,
    tenant: str,
    scopes: str,
    kind: type[openai.APIStatusError],
    code: str,
) -> None:
    weak = Clients(stage, kind=kind_of(clients), tenant=tenant, scopes=scopes)

    with pytest.raises(kind) as caught:
        chat(weak)

    weak.close()
    assert caught.value.code == code


def test_error_that_nobody_expected_is_tried_again(stage: Stage, clients: Clients) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("with a prompt in it")

    stage.jobs = Broken()

    with pytest.raises(openai.InternalServerError) as caught:
        chat(clients)

    assert caught.value.code == "internal"
    assert "prompt" not in str(caught.value)
    assert clients.transport.answered == [500, 500, 500]


# ------------------------------------------------------------------ Idempotency-Key


def test_idempotency_key_gives_the_same_job_again(stage: Stage, clients: Clients) -> None:
    runs_after(stage, 40)
    again = {"Idempotency-Key": "order-1"}

    first = chat(clients, model="demo-uncached", extra_headers=again)
    second = chat(clients, model="demo-uncached", extra_headers=again)
    third = chat(clients, model="demo-uncached", extra_headers={"Idempotency-Key": "order-2"})

    assert first.id == second.id != third.id
    assert stage.vendor.total == 2
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        chat(clients, extra_headers=again)
    assert caught.value.code == "idempotency_key_reused"


def test_idempotency_key_gives_the_same_response_again(stage: Stage, clients: Clients) -> None:
    again = {"Idempotency-Key": "order-1"}
    first = respond(clients, background=True, extra_headers=again)
    stage.run_job(first.id)

    second = respond(clients, background=True, extra_headers=again)

    assert (second.id, second.status) == (first.id, "completed")
