"""OpenAI's own clients, sync and async, whose transport is the API on its stage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
from openai import AsyncOpenAI, OpenAI

from tests.functions.stage import Stage, request

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPES = "submit read cancel"


class OnStage(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """API Gateway in front of the stage; `asked` holds the paths, in their order."""

    def __init__(self, stage: Stage, tenant: str, scopes: str) -> None:
        self._stage, self._tenant, self._scopes = stage, tenant, scopes
        self.asked: list[str] = []
        self.answered: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(request, request.read())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._answer(request, await request.aread())

    def _answer(self, asked: httpx2.Request, body: bytes) -> httpx2.Response:
        path = asked.url.path.removeprefix("/v1")
        event = request(
            asked.method,
            path,
            tenant=self._tenant,
            scopes=self._scopes,
            query=dict(asked.url.params) or None,
            headers=dict(asked.headers),
        )
        event["body"] = body.decode() or None
        answer = self._stage.answer(event)
        self.asked.append(path)
        self.answered.append(answer.status)
        return httpx2.Response(answer.status, headers=answer.headers, text=answer.text)


class Clients:
    """One client of either kind; `ask` gives what it gives, and lets its time pass on the stage."""

    def __init__(
        self, stage: Stage, *, kind: str, tenant: str = "acme", scopes: str = SCOPES
    ) -> None:
        self.transport = OnStage(stage, tenant, scopes)
        self.slept_s: list[float] = []
        given: dict[str, Any] = {"base_url": "https://gateway.example/v1", "api_key": "swk_test"}

        def sleep(client: Any, left: int, options: Any, reply: Any) -> None:
            headers = None if reply is None else reply.headers
            wait_s = client._calculate_retry_timeout(left, options, headers)
            self.slept_s.append(wait_s)
            stage.pause(wait_s)

        class Sync(OpenAI):
            def _sleep_for_retry(
                self, *, retries_taken: int, max_retries: int, options: Any, response: Any
            ) -> None:
                sleep(self, max_retries - retries_taken, options, response)

        class Async(AsyncOpenAI):
            async def _sleep_for_retry(
                self, *, retries_taken: int, max_retries: int, options: Any, response: Any
            ) -> None:
                sleep(self, max_retries - retries_taken, options, response)

        self._client: Any = (
            Sync(http_client=httpx2.Client(transport=self.transport), **given)
            if kind == "sync"
            else Async(http_client=httpx2.AsyncClient(transport=self.transport), **given)
        )

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """What the call of the client gives; raises what it raises."""

        async def asked() -> Any:
            return await call(self._client)

        if isinstance(self._client, OpenAI):
            return call(self._client)
        return asyncio.run(asked())

    def close(self) -> None:
        if isinstance(self._client, OpenAI):
            self._client.close()
        else:
            asyncio.run(self._client.close())
