"""Vendors over HTTP (port VendorClient): the transport that all wire forms share.

httpx has no total timeout: its read timeout starts again with every chunk, so a vendor that drips
never ends. Here the whole call runs under `asyncio.timeout`, headers and name resolution included.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sluiceway.adapters import anthropic_wire, openai_wire
from sluiceway.adapters.http_outbound import HttpOutbound
from sluiceway.domain import strict_json
from sluiceway.domain.backoff import parse_retry_after
from sluiceway.domain.errors import CallAbortedError, NotCalledError, RejectedError, VendorError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    import httpx

    from sluiceway.domain.catalogue import Vendor
    from sluiceway.ports import Clock, VendorAnswer, VendorCall

MAX_ANSWER_BYTES = 32 * 1024 * 1024
POOL_TIMEOUT_S = 1.0
WRITE_TIMEOUT_S = 10.0

_WIRES: Mapping[str, Any] = {"openai": openai_wire, "anthropic": anthropic_wire}

_KEY_REFUSED = frozenset({401, 403})
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_SIZE_CODES = frozenset({"context_length_exceeded", "request_too_large"})
"""This one request is too much, whatever the status says: the vendor takes others."""
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})


class ApiKeys(Protocol):
    """The vendors' keys."""

    def __call__(self, name: str) -> str:
        """The key in the secret of this name. Raises VendorError when it can't be had."""
        ...

    def successor(self, name: str, refused: str) -> str | None:
        """The key that has replaced one that the vendor refused, if one has; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class _Reply:
    """A whole HTTP reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpVendors:
    """Weakness: each call pays for its own TLS handshake."""

    def __init__(
        self,
        *,
        api_keys: ApiKeys,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` replaces the network in tests."""
        self._api_keys = api_keys
        self._clock = clock
        self._outbound = HttpOutbound(transport)

    def close(self) -> None:
        """Ends the event loop; the next call starts another."""
        self._outbound.close()

    def prepare(self, vendor: Vendor) -> None:
        """See VendorClient."""
        self._outbound.client()
        self._secret(vendor)

    def _secret(self, vendor: Vendor) -> str:
        return self._api_keys(vendor.api_key_secret) if vendor.api_key_secret else ""

    def call(self, call: VendorCall) -> VendorAnswer:
        """See VendorClient."""
        wire = _WIRES.get(call.vendor.protocol)
        if wire is None:
            raise NotCalledError(
                "vendor_rejected",
                f"The protocol {call.vendor.protocol!r} is not supported.",
                retryable=False,
            )
        secret = self._secret(call.vendor)
        work = json.loads(call.body)
        try:
            body = json.dumps(wire.request_body(call.model.vendor_model, work)).encode()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotCalledError(
                "vendor_rejected",
                f"The input can't be said in the vendor's protocol ({type(error).__name__}).",
                retryable=False,
            ) from None

        started_ms = self._clock.now_ms()
        exchange = self._exchange(wire, secret, body, call)
        reply = self._outbound.run(_while_wanted(exchange, call))
        latency_ms = self._clock.now_ms() - started_ms
        return _read(reply, wire, latency_ms, call, now_s=self._clock.now_ms() / 1000)

    async def _exchange(self, wire: Any, secret: str, body: bytes, call: VendorCall) -> _Reply:
        """A whole reply: to a second request, when the key of the first was out of date.

        A vendor that refuses a key has done nothing, so both are one attempt, under one deadline.
        Raises VendorError for what keeps a reply from coming.
        """
        import httpx  # noqa: PLC0415 - 0.3 s of start-up that hits and lost races don't need

        name = call.vendor.api_key_secret
        try:
            async with asyncio.timeout(call.timeout_s):
                reply = await self._send(wire, secret, body, call)
                if name and reply.status in _KEY_REFUSED:
                    # In a thread: it blocks, and meanwhile the lease is renewed.
                    newer = await asyncio.to_thread(self._api_keys.successor, name, secret)
                    if newer is not None:
                        reply = await self._send(wire, newer, body, call)
                return reply
        except (TimeoutError, httpx.TimeoutException) as error:
            raise VendorError(
                "vendor_timeout",
                f"The vendor didn't answer within {call.timeout_s:g} s.",
                retryable=True,
                sent=not isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout),
            ) from error
        except (
            *(httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL),
            *(ExceptionGroup, OverflowError, ValueError),
        ) as error:
            # Nothing was sent, and nothing else would be sent next time. The text may hold the key.
            raise NotCalledError(
                "vendor_rejected",
                f"The request can't be sent ({type(error).__name__}): check base_url and secret.",
                retryable=False,
            ) from None
        except httpx.HTTPError as error:
            # The text of such an error may hold the URL or a header.
            raise VendorError(
                "vendor_unavailable",
                f"The connection to the vendor failed ({type(error).__name__}).",
                retryable=True,
                sent=not isinstance(error, httpx.ConnectError),
            ) from error

    async def _send(self, wire: Any, secret: str, body: bytes, call: VendorCall) -> _Reply:
        """One request and its whole reply. Raises what httpx raises, and VendorError."""
        import httpx  # noqa: PLC0415 - as above

        url = call.vendor.base_url.rstrip("/") + wire.PATH
        headers = {
            **wire.request_headers(secret),
            "content-type": "application/json",
            "accept": "application/json",
            "idempotency-key": call.idempotency_key,
        }
        timeout = httpx.Timeout(
            connect=call.vendor.connect_timeout_s,
            read=call.timeout_s,
            write=WRITE_TIMEOUT_S,
            pool=POOL_TIMEOUT_S,
        )
        async with self._outbound.client().stream(
            "POST", url, content=body, headers=headers, timeout=timeout
        ) as response:
            chunks = bytearray()
            async for chunk in response.aiter_bytes():
                chunks += chunk
                if len(chunks) > MAX_ANSWER_BYTES:
                    raise VendorError(
                        "result_too_large",
                        f"The vendor's answer is over {MAX_ANSWER_BYTES} bytes.",
                        retryable=False,
                    )
            return _Reply(response.status_code, response.headers, bytes(chunks))


async def _while_wanted(exchange: Coroutine[Any, Any, _Reply], call: VendorCall) -> _Reply:
    """The exchange's reply; CallAbortedError as soon as nobody wants it any more.

    Asking blocks, so a thread does it; the asking ends with the exchange, and never after it.
    """
    exchanging = asyncio.create_task(exchange)
    try:
        while not (await asyncio.wait({exchanging}, timeout=call.ask_every_s))[0]:
            if not await asyncio.to_thread(call.still_wanted):
                raise CallAbortedError("The call is no longer wanted.")
        return exchanging.result()
    finally:
        if exchanging.cancel():
            await asyncio.wait({exchanging})


def _read(
    reply: _Reply, wire: Any, latency_ms: int, call: VendorCall, *, now_s: float
) -> VendorAnswer:
    """The answer in a reply. Raises VendorError for everything that isn't one."""
    request_id = reply.headers.get(wire.REQUEST_ID_HEADER)
    try:
        document = strict_json.parse(reply.body)
    except RejectedError:
        document = None
    if reply.status != 200:  # noqa: PLR2004
        raise _refusal(reply, wire.error_code(document), call, request_id, now_s=now_s)
    if not isinstance(document, dict) or document.get("error"):
        raise VendorError(
            "vendor_bad_response",
            "The vendor answered 200, but not with an answer.",
            retryable=False,
            http_status=200,
            vendor_request_id=request_id,
        )
    try:
        return wire.answer(document, latency_ms=latency_ms, request_id=request_id)  # type: ignore[no-any-return]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise VendorError(
            "vendor_bad_response",
            "The vendor's answer lacks what its protocol promises.",
            retryable=False,
            http_status=200,
            vendor_request_id=request_id,
        ) from error


def _refusal(
    reply: _Reply, vendor_code: str, call: VendorCall, request_id: str | None, *, now_s: float
) -> VendorError:
    """The kind of an error reply; its text is left out, since vendors repeat the prompt in it."""
    status = reply.status
    retryable = status in _RETRYABLE_STATUS or status >= 500  # noqa: PLR2004
    if vendor_code in _QUOTA_CODES:
        code, retryable = "vendor_quota_exhausted", False
    elif vendor_code in _SIZE_CODES:
        code, retryable = "vendor_rejected", False
    elif status in _KEY_REFUSED:
        code = "vendor_auth_failed"
    elif status == 429:  # noqa: PLR2004
        code = "vendor_rate_limited"
    elif retryable:
        code = "vendor_timeout" if status in {408, 504} else "vendor_unavailable"
    else:
        code = "vendor_rejected"
    return VendorError(
        code,
        f"The vendor answered {status}" + (f" ({vendor_code})." if vendor_code else "."),
        retryable=retryable,
        http_status=status,
        retry_after_s=parse_retry_after(reply.headers, now_s=now_s, max_s=call.retry_after_max_s),
        vendor_request_id=request_id,
    )
