"""OpenAI's own clients, sync and async, against the real template and a real vendor."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

CATALOGUE = """
[models.patient]
vendor = "simulator"
vendor_model = "sim-patient-1"
version = "1"
timeout_s = { min = 60.0, max = 60.0 }

[tenants.globex]
in_flight = 1
"""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("openai") / ".sluiceway"
    with built(folder, more=CATALOGUE) as made:
        yield made


class Client:
    """A client of either kind; `answered` holds the statuses that it saw."""

    def __init__(self, plant: Plant, kind: str, *, partner: str = "acme", key: str = "") -> None:
        self._plant, self._kind = plant, kind
        self._given: dict[str, Any] = {
            "base_url": plant.local.api_url,
            "api_key": key or plant.local.partners[partner],
        }
        self.answered: list[int] = []

    def ask(self, call: Callable[[Any], Any], **members: Any) -> Any:
        """What the call of the client gives; raises what it raises."""
        if self._kind == "async":
            return asyncio.run(self._ask(call, members))

        def note(response: httpx2.Response) -> None:
            self.answered.append(response.status_code)

        http = httpx2.Client(event_hooks={"response": [note]}, timeout=TIMEOUT_S)
        with openai.OpenAI(http_client=http, **self._given, **members) as client:
            return call(client)

    async def _ask(self, call: Callable[[Any], Any], members: dict[str, Any]) -> Any:
        async def note(response: httpx2.Response) -> None:
            self.answered.append(response.status_code)

        http = httpx2.AsyncClient(event_hooks={"response": [note]}, timeout=TIMEOUT_S)
        async with openai.AsyncOpenAI(http_client=http, **self._given, **members) as client:
            return await call(client)

    def chat(self, prompt: str, *, model: str = "demo-chat", retries: int = 2, **more: Any) -> Any:
        messages = [{"role": "user", "content": prompt}]
        return self.ask(
            lambda client: client.chat.completions.create(model=model, messages=messages, **more),
            max_retries=retries,
        )

    def respond(self, prompt: str, **more: Any) -> Any:
        return self.ask(
            lambda client: client.responses.create(model="demo-chat", input=prompt, **more)
        )

    def retrieve(self, response_id: str) -> Any:
        return self.ask(lambda client: client.responses.retrieve(response_id))

    def cancel(self, response_id: str) -> Any:
        return self.ask(lambda client: client.responses.cancel(response_id))


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, plant: Plant) -> Client:
    return Client(plant, request.param)


def of_kind(client: Client, plant: Plant, **members: Any) -> Client:
    return Client(plant, client._kind, **members)


def test_chat_gives_the_answer(client: Client) -> None:
    prompt = f"chat {client._kind}"

    answer = client.chat(prompt, temperature=0.5)

    assert answer.choices[0].message.content.startswith(f"You said: {prompt}")
    assert client.answered == [200]


def test_response_in_the_background_is_polled_until_it_is_there(client: Client) -> None:
    prompt = f"background {client._kind}"
    response = client.respond(prompt, background=True)
    assert response.status in {"queued", "in_progress"}

    assert wait_for(
        lambda: client.retrieve(response.id).status == "completed",
        timeout_s=TIMEOUT_S,
        pause_s=0.2,
    )

    assert client.retrieve(response.id).output_text.startswith(f"You said: {prompt}")


def test_response_is_cancelled(client: Client, plant: Plant) -> None:
    prompt = f"cancelled {client._kind}"
    plant.vendor_fails(prompt, delay_s=20)
    response = client.respond(prompt, background=True)

    cancelled = client.cancel(response.id)

    assert cancelled.status == client.retrieve(response.id).status == "cancelled"
    assert plant.row(response.id)["status"] == "cancelled"


def test_chat_that_lasts_is_gone_on_with_by_the_clients_own_retry(plant: Plant) -> None:
    clients = [Client(plant, kind) for kind in ("sync", "async")]
    prompts = [f"a slow chat {client._kind}" for client in clients]
    plant.vendor_fails("a slow chat", delay_s=27)
    began_s = time.monotonic()

    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(lambda client, prompt: client.chat(prompt, model="patient"), clients, prompts)
        )

    assert time.monotonic() - began_s < TIMEOUT_S
    for client, prompt, answer in zip(clients, prompts, answers, strict=True):
        assert answer.choices[0].message.content.startswith(f"You said: {prompt}")
        assert client.answered == [504, 200]
        assert plant.calls(prompt) == {"calls": 1, "charged": 1}
        assert plant.row(answer.id)["status"] == "completed"


def test_cap_that_is_reached_is_waited_for(client: Client, plant: Plant) -> None:
    globex = of_kind(client, plant, partner="globex")
    prompt = f"a long one {client._kind}"
    plant.vendor_fails(prompt, delay_s=4)
    globex.respond(prompt, background=True)

    with pytest.raises(openai.RateLimitError) as caught:
        globex.chat(f"one more {client._kind}", retries=0)
    answer = globex.chat(f"one more {client._kind}")

    assert caught.value.code == "quota_exceeded"
    assert answer.choices[0].finish_reason == "stop"
    assert globex.answered == [200, 429, 429, 200]


def test_key_that_nobody_has_is_an_authentication_error(client: Client, plant: Plant) -> None:
    stranger = of_kind(client, plant, key="swk_nobody")

    with pytest.raises(openai.AuthenticationError):
        stranger.chat("hello")


def test_what_is_not_there_is_not_found(client: Client, plant: Plant) -> None:
    response = client.respond(f"mine {client._kind}", background=True)

    globex = of_kind(client, plant, partner="globex")

    for stranger, response_id in ((client, "job_nobody"), (globex, response.id)):
        with pytest.raises(openai.NotFoundError):
            stranger.retrieve(response_id)
    with pytest.raises(openai.NotFoundError):
        client.ask(lambda one: one.models.retrieve("no-such"))


def test_request_that_the_vendor_rejects_is_a_bad_request(client: Client, plant: Plant) -> None:
    prompt = f"rejected {client._kind}"
    plant.vendor_fails(prompt, status=400)

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat(prompt)

    assert caught.value.code == "vendor_rejected"
    assert client.answered == [400]


def test_stream_is_refused(client: Client) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat("hello", stream=True)

    assert (caught.value.code, caught.value.param) == ("validation_failed", "stream")


def test_models_are_listed(client: Client) -> None:
    listed = client.ask(lambda one: one.models.list())

    assert "demo-chat" in {model.id for model in listed.data}
