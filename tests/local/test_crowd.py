"""Many requests at once, each with a text of its own: everybody gets his own answer.

The API has several warm processes, of which each answers hundreds of requests, one after the other;
batches are submitted in threads besides.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

REQUESTS = 200
AT_ONCE = 12
"""More in flight only wait longer in the emulator."""

PROCESSES = 4
"""At least so many have answered."""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("crowd") / ".sluiceway") as made:
        yield made


def until_there(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    seen: list[dict[str, Any]] = [{}]

    def ended() -> bool:
        seen[0] = look()
        return seen[0].get("status") == "completed"

    assert wait_for(ended, timeout_s=TIMEOUT_S, pause_s=0.3), seen[0]
    return seen[0]


def alone(client: httpx.Client, nonce: str) -> list[str]:
    job = client.post("/jobs", json={"model": "demo-chat", "input": nonce}).json()
    return [until_there(lambda: client.get(job["urls"]["self"][3:]).json())["result"]["text"]]


def in_a_batch(client: httpx.Client, nonce: str) -> list[str]:
    items = [
        {"custom_id": f"{number}", "model": "demo-chat", "input": f"{nonce}.{number}"}
        for number in range(5)
    ]
    batch = client.post("/batches", json={"jobs": items}).json()
    ended = until_there(lambda: client.get(f"/batches/{batch['id']}").json())
    return [one["job"]["result"]["text"] for one in ended["data"]]


def as_a_chat(client: httpx.Client, nonce: str) -> list[str]:
    body = {"model": "demo-chat", "messages": [{"role": "user", "content": nonce}]}

    def asked() -> dict[str, Any]:
        answer = client.post("/chat/completions", json=body)
        return {"status": "completed" if answer.status_code == 200 else "", **answer.json()}

    return [until_there(asked)["choices"][0]["message"]["content"]]


def as_a_response(client: httpx.Client, nonce: str) -> list[str]:
    body = {"model": "demo-chat", "input": nonce, "background": True}
    response = client.post("/responses", json=body).json()
    ended = until_there(lambda: client.get(f"/responses/{response['id']}").json())
    return [ended["output"][0]["content"][0]["text"]]


FORMS = (alone, as_a_chat, alone, as_a_response, alone, as_a_chat, in_a_batch)


@pytest.mark.proves(10)
def test_everybody_of_a_crowd_gets_his_own_answer(plant: Plant) -> None:  # case A02
    partners = [plant.acme, plant.globex]

    def ask(number: int) -> tuple[str, list[str]]:
        nonce = f"nonce-{number:04d}-of-the-crowd"
        return nonce, FORMS[number % len(FORMS)](partners[number % 2], nonce)

    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    processes = len(plant.processes_of("Api"))
    print(f"\n{REQUESTS} requests, {processes} processes, {time.monotonic() - began_s:.0f} s")  # noqa: T201

    for nonce, texts in answers:
        if len(texts) == 1:
            assert texts[0].startswith(f"You said: {nonce} ["), (nonce, texts)
        else:
            for number, text in enumerate(texts):
                assert text.startswith(f"You said: {nonce}.{number} ["), (nonce, texts)
    assert processes >= PROCESSES
