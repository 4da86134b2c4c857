"""Requests that we send: one event loop and one client for the process.

No connection is kept between calls: one that idled while Lambda had us frozen would fail in the
middle of a call. No redirect is followed, and the environment's proxies are not asked.
A call that waits long for its answer keeps its connection known to what is in between.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from http.cookiejar import CookieJar

    import httpx

Answer = TypeVar("Answer")

ALIVE_EVERY_S = 60
"""NAT gateways and load balancers forget a connection on which nothing came for 350 s, and the
answer of a longer call would never arrive."""


class HttpOutbound:
    """Weakness: each call pays for its own TLS handshake."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
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

    def client(self) -> httpx.AsyncClient:
        """The client; made on first use."""
        import httpx  # noqa: PLC0415 - 0.3 s of start-up that not every event needs

        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport
                or httpx.AsyncHTTPTransport(
                    limits=httpx.Limits(max_keepalive_connections=0),
                    trust_env=False,
                    socket_options=_signs_of_life(),
                ),
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


def _signs_of_life() -> list[tuple[int, int, int]]:
    """TCP keep-alive: the options of a socket. Systems name the idle time differently."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL")
    times = [getattr(socket, name) for name in names if hasattr(socket, name)]
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, time, ALIVE_EVERY_S) for time in times),
    ]
