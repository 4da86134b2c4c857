"""Requests that we send: one event loop and one client for the process.

No connection is kept between calls: one that idled while Lambda had us frozen would fail in the
middle of a call. No redirect is followed, and the environment's proxies are not asked.
"""

import asyncio
from collections.abc import Coroutine
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")


class HttpOutbound:
    """Weakness: each call pays for its own TLS handshake."""

    def __init__(
        self,
        transport: "httpx.AsyncBaseTransport | None" = None,
        *,
        cookies: CookieJar | None = None,
    ) -> None:
        """`transport` replaces the network in tests; `cookies` is httpx's own jar when None."""
        self._transport = transport
        self._cookies = cookies
        self._client: httpx.AsyncClient | None = None
        self._runner: asyncio.Runner | None = None

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What the coroutine gives or raises."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def client(self) -> "httpx.AsyncClient":
        """The client; made on first use."""
        import httpx  # noqa: PLC0415 - 0.3 s of start-up that not every event needs

        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport,
                limits=httpx.Limits(max_keepalive_connections=0),
                follow_redirects=False,
                trust_env=False,
                headers={"user-agent": "sluiceway"},
                cookies=self._cookies,
            )
        return self._client

    def close(self) -> None:
        """Ends the event loop; the next call starts another."""
        if self._runner is not None:
            if self._client is not None:
                self._runner.run(self._client.aclose())
            self._runner.close()
        self._client = self._runner = None
