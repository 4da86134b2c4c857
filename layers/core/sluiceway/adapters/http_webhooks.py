"""Webhooks over HTTP (port WebhookClient).

The name is looked up at each attempt, every address that it has is checked, and the connection goes
to an address that was checked: a name that says something else a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from sluiceway.adapters.http_outbound import HttpOutbound
from sluiceway.domain.address import Target, may_call
from sluiceway.domain.errors import WebhookError

if TYPE_CHECKING:
    import httpx

MAX_ADDRESSES = 3
"""Tried in turn while nothing was sent: one may be of a kind that this machine can't reach."""

CONNECT_TIMEOUT_S = 4.0

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system knows them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class HttpWebhooks:
    """One client for the process; no connection is kept, no redirect followed, no reply read.

    Weakness: each attempt pays for its own TLS handshake.
    """

    def __init__(
        self,
        *,
        local: bool,
        resolve: Resolve = look_up,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`local`: any address may be called. `transport` replaces the network in tests."""
        self._local = local
        self._resolve = resolve
        # Hosts of different partners may share an address, and a cookie must not.
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self._outbound = HttpOutbound(transport, cookies=no_cookies)

    def close(self) -> None:
        """Ends the event loop; the next call starts another."""
        self._outbound.close()

    def post(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> int:
        """See WebhookClient."""
        return self._outbound.run(self._post(target, headers, body, timeout_s))

    async def _post(
        self, target: Target, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> int:
        import httpx  # noqa: PLC0415 - 0.3 s of start-up that a disabled webhook doesn't need

        try:
            async with asyncio.timeout(timeout_s):
                addresses = await self._addresses(target)
                for address in addresses[:-1]:
                    try:
                        return await self._post_to(address, target, headers, body, timeout_s)
                    except (httpx.ConnectError, httpx.ConnectTimeout):
                        continue
                return await self._post_to(addresses[-1], target, headers, body, timeout_s)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise WebhookError("timeout", f"No reply within {timeout_s:g} s.") from error
        except (httpx.HTTPError, httpx.InvalidURL, ExceptionGroup, OSError) as error:
            # The text of such an error may hold the URL.
            kind = type(error).__name__
            raise WebhookError("connection", f"The connection failed ({kind}).") from error

    async def _addresses(self, target: Target) -> list[str]:
        """The addresses to try, IPv4 first: Lambda has no IPv6 of its own. One at least."""
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label over 63 characters
            raise WebhookError("unknown_host", "The host's name has no address.") from error
        addresses = sorted(dict.fromkeys(found), key=lambda address: ":" in address)
        if not addresses:
            raise WebhookError("unknown_host", "The host's name has no address.")
        # One forbidden address among good ones is no mistake that an honest host makes.
        if not all(may_call(address, local=self._local) for address in addresses):
            raise WebhookError("forbidden_address", "The host is in no public network.")
        return addresses[:MAX_ADDRESSES]

    async def _post_to(
        self,
        address: str,
        target: Target,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> int:
        """One request to one address, in the name of the host, its certificate's too."""
        import httpx  # noqa: PLC0415 - see above

        async with self._outbound.client().stream(
            "POST",
            httpx.URL(
                scheme=target.scheme,
                host=address,
                port=target.port,
                raw_path=target.path.encode(),
            ),
            content=body,
            headers={**headers, "host": target.authority},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            extensions={"sni_hostname": target.host.rstrip(".")},
        ) as response:
            return response.status_code
