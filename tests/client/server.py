"""The API as a script of replies, time that passes only by sleeping, and both clients alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx
from sluiceway_client import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "https://api.example/v1"
KEY = "swk_secret-key-of-a-partner"
NOW = "2026-01-01T00:00:00.000Z"

Step = httpx.Response | Exception


def job(status: str = "completed", **members: Any) -> dict[str, Any]:
    """A job's JSON; a completed one has a result."""
    body: dict[str, Any] = {
        "id": "job_1",
        "object": "job",
        "status": status,
        "model": "demo-chat",
        "priority": "interactive",
        "created_at": NOW,
        "cache": {"status": "miss", "age_s": 0, "stale": False},
    }
    if status == "completed":
        body["result"] = {"text": "Hello.", "finish_reason": "stop"}
    return {**body, **members}


def ok(body: Any, status: int = 200, **headers: str) -> httpx.Response:
    """`retry_after="3"` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


def problem(status: int, code: str, *, retryable: bool = False, **headers: str) -> httpx.Response:
    body = {
        "status": status,
        "code": code,
        "detail": f"It is {code}.",
        "retryable": retryable,
        "request_id": "req-1",
    }
    return ok(body, status, content_type="application/problem+json", **headers)


class Server:
    """Answers with its steps in turn; `slow_s` is how long each takes."""

    def __init__(self, *steps: Step, slow_s: float = 0.0) -> None:
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []
        self.slow_s = slow_s
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.now += self.slow_s
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        # A reply is read once, and a parametrised one serves several tests.
        return httpx.Response(step.status_code, headers=step.headers, content=step.content)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now

    @property
    def asked(self) -> list[str]:
        """Method and path with the query of each request."""
        return [f"{one.method} {one.url.raw_path.decode()}" for one in self.requests]

    def body(self, number: int = 0) -> Any:
        return json.loads(self.requests[number].content)

    def headers(self, name: str) -> list[str | None]:
        """The header of each request."""
        return [one.headers.get(name) for one in self.requests]


class Sync:
    """The blocking client of a server."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.options = {"max_retries": 3, "rand": lambda: 0.0, **options}
        self.server = server

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *values, **named: self._call(name, *values, **named)

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        with httpx.Client(transport=httpx.MockTransport(self.server)) as http:
            client = Client(
                URL,
                KEY,
                http_client=http,
                sleep=self.server.sleep,
                clock=self.server.clock,
                **self.options,
            )
            value = getattr(client, name)(*values, **named)
            return list(value) if isinstance(value, Iterator) else value


class Async(Sync):
    """The awaiting one, called in the same way."""

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        return asyncio.run(self._awaited(name, *values, **named))

    async def _sleep(self, seconds: float) -> None:
        self.server.sleep(seconds)

    async def _awaited(self, name: str, *values: Any, **named: Any) -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.server)) as http:
            client = AsyncClient(
                URL,
                KEY,
                http_client=http,
                sleep=self._sleep,
                clock=self.server.clock,
                **self.options,
            )
            value = getattr(client, name)(*values, **named)
            if isinstance(value, AsyncIterator):
                return [one async for one in value]
            return await value
