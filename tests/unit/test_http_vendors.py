"""Vendors over HTTP, against the simulator and against replies made by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from botocore.exceptions import ClientError
from sluiceway.adapters.http_outbound import ALIVE_EVERY_S, HttpOutbound
from sluiceway.adapters.http_vendors import MAX_ANSWER_BYTES, HttpVendors
from sluiceway.adapters.secrets_manager import ASKED_AGAIN_AFTER_MS
from sluiceway.bootstrap import SystemClock
from sluiceway.domain.catalogue import Model, Vendor
from sluiceway.domain.errors import CallAbortedError, VendorError
from sluiceway.ports import VendorAnswer, VendorCall
from sluiceway_local.simulator import Simulator

from tests.fakes.in_memory import FakeClock
from tests.fakes.outside import FakeSecretsManager
from tests.unit.logs import fresh_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "sk-hunter2"
WIRES = ["openai", "anthropic"]
BASE_URL = "http://vendor.invalid/v1"

OPENAI: dict[str, Any] = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"content": "an answer"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 20},
}
ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "content": [{"type": "text", "text": "an answer"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 20},
}
GOOD = {"openai": OPENAI, "anthropic": ANTHROPIC}
REQUEST_ID_HEADER = {"openai": "x-request-id", "anthropic": "request-id"}

Send = Callable[..., VendorAnswer]


@pytest.fixture
def sim() -> Iterator[Simulator]:
    """A vendor of this test's own: a simulator forgets no answer that was paid."""
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def open_vendors() -> Iterator[Callable[..., HttpVendors]]:
    """Makes clients that are closed after the test."""
    opened: list[HttpVendors] = []

    def make(*, secret: str = SECRET, clock: Any = None, transport: Any = None) -> HttpVendors:
        clock = clock or FakeClock()
        keys = FakeSecretsManager(secret).vendor_keys(clock)
        vendors = HttpVendors(api_keys=keys, clock=clock, transport=transport)
        opened.append(vendors)
        return vendors

    yield make
    for vendors in opened:
        vendors.close()


@pytest.fixture
def send(sim: Simulator, open_vendors: Callable[..., HttpVendors]) -> Send:
    """Sends one call to the simulator; `fault` is told in the request."""

    def send(
        given: Any = "hello",
        wire: str = "openai",
        *,
        options: dict[str, Any] | None = None,
        key: str = "job_1",
        timeout_s: float = 5.0,
        secret: str = SECRET,
        **fault: Any,
    ) -> VendorAnswer:
        told = {**(options or {}), **({"sim": fault} if fault else {})}
        return open_vendors(secret=secret).call(
            a_call(wire, given, options=told, base_url=sim.url, key=key, timeout_s=timeout_s)
        )

    return send


def a_call(
    wire: str = "openai",
    given: Any = "hello",
    *,
    options: dict[str, Any] | None = None,
    base_url: str = BASE_URL,
    key: str = "job_1",
    timeout_s: float = 5.0,
    keyed: bool = True,
) -> VendorCall:
    secret_name = "sluiceway/vendors/v" if keyed else ""
    return VendorCall(
        vendor=Vendor.model_validate(
            {"protocol": wire, "base_url": base_url, "api_key_secret": secret_name}
        ),
        model=Model(vendor="v", vendor_model="sim-1", version="1"),
        body=json.dumps({"input": given, "options": options or {}}).encode(),
        idempotency_key=key,
        timeout_s=timeout_s,
        retry_after_max_s=3600,
    )


def answering(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> httpx.MockTransport:
    """A network on which every request gets this reply."""
    return httpx.MockTransport(lambda _: httpx.Response(status, content=body, headers=headers))


class Recorder:
    """A network that remembers the requests."""

    def __init__(self, wire: str) -> None:
        self.requests: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)
        self._body = json.dumps(GOOD[wire]).encode()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, content=self._body)

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)


def failure(send: Callable[[], object]) -> VendorError:
    """The error of a call that fails."""
    with pytest.raises(VendorError) as caught:
        send()
    return caught.value


# ------------------------------------------------------------------ good answers


@pytest.mark.parametrize("wire", WIRES)
def test_call_gives_the_answer_with_its_usage_and_request_id(send: Send, wire: str) -> None:
    answer = send("hello", wire)

    assert answer.text.startswith("You said: hello")
    assert answer.finish_reason == "stop"
    assert (answer.input_tokens, answer.output_tokens) == (2, -(-len(answer.text) // 4))
    assert answer.vendor_request_id is not None
    assert answer.vendor_request_id.startswith("req_")
    assert answer.content is None
    assert answer.cacheable


@pytest.mark.parametrize("wire", WIRES)
def test_call_is_one_call_on_the_wire(send: Send, sim: Simulator, wire: str) -> None:
    send("hello", wire)

    counts = sim.ledger.snapshot()
    assert (counts["calls"], counts["charged"]) == (1, 1)


@pytest.mark.parametrize("wire", WIRES)
def test_call_names_the_documents_id_when_no_header_has_one(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    vendors = open_vendors(transport=answering(json.dumps(GOOD[wire]).encode()))

    assert vendors.call(a_call(wire)).vendor_request_id == GOOD[wire]["id"]


@pytest.mark.parametrize("wire", WIRES)
def test_call_tells_how_long_the_vendor_took(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    clock = FakeClock()

    def slow(_: httpx.Request) -> httpx.Response:
        clock.advance(ms=1_234)
        return httpx.Response(200, json=GOOD[wire])

    vendors = open_vendors(clock=clock, transport=httpx.MockTransport(slow))

    assert vendors.call(a_call(wire)).latency_ms == 1_234


@pytest.mark.parametrize("wire", WIRES)
def test_call_marks_an_answer_that_was_cut_off(send: Send, wire: str) -> None:
    answer = send("hello", wire, finish="length")

    assert answer.finish_reason == "length"
    assert not answer.cacheable


@pytest.mark.parametrize("wire", WIRES)
def test_call_keeps_tool_calls_as_content(send: Send, wire: str) -> None:
    answer = send("hello", wire, finish="tool_calls")

    assert answer.finish_reason == "tool_calls"
    assert "simulated_tool" in json.dumps(answer.content)
    assert not answer.cacheable


@pytest.mark.parametrize("wire", WIRES)
def test_call_takes_an_empty_text_and_never_for_reusable(send: Send, wire: str) -> None:
    answer = send("hello", wire, empty=True)

    assert answer.text == ""
    assert not answer.cacheable


def test_call_keeps_all_blocks_of_an_answer_that_is_more_than_text(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "42"}]
    body = json.dumps({**ANTHROPIC, "content": blocks}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call("anthropic"))

    assert (answer.text, answer.content) == ("42", blocks)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("text", ["\x00\x07\x0b\ufffe", "a\r\nb", "😀 𠀀", '<&> "q"', "é e\u0301"])
def test_call_keeps_the_characters_of_an_answer(send: Send, wire: str, text: str) -> None:
    assert send("hello", wire, text=text).text == text


def test_call_unpacks_a_compressed_answer(open_vendors: Callable[..., HttpVendors]) -> None:
    packed = gzip.compress(json.dumps(OPENAI).encode())
    vendors = open_vendors(transport=answering(packed, headers={"content-encoding": "gzip"}))

    assert vendors.call(a_call()).text == "an answer"


@pytest.mark.parametrize("wire", WIRES)
def test_call_takes_an_answer_whose_error_is_null(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    body = json.dumps({**GOOD[wire], "error": None}).encode()

    assert open_vendors(transport=answering(body)).call(a_call(wire)).text == "an answer"


def test_call_marks_an_answer_that_filled_the_context_window_as_cut_off(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    body = json.dumps({**ANTHROPIC, "stop_reason": "model_context_window_exceeded"}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call("anthropic"))

    assert (answer.text, answer.finish_reason) == ("an answer", "length")


@pytest.mark.parametrize("usage", [None, {}])
def test_call_takes_an_openai_answer_without_usage(
    open_vendors: Callable[..., HttpVendors], usage: Any
) -> None:
    vendors = open_vendors(transport=answering(json.dumps({**OPENAI, "usage": usage}).encode()))

    answer = vendors.call(a_call())

    assert (answer.input_tokens, answer.output_tokens) == (0, 0)


def test_call_after_close_works_again(sim: Simulator) -> None:
    clock = FakeClock()
    vendors = HttpVendors(api_keys=FakeSecretsManager().vendor_keys(clock), clock=clock)
    vendors.call(a_call(base_url=sim.url))
    vendors.close()

    answer = vendors.call(a_call(base_url=sim.url))
    vendors.close()

    assert answer.finish_reason == "stop"


def test_call_after_a_failed_one_works(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    vendors = open_vendors()
    failure(lambda: vendors.call(a_call(options={"sim": {"drop": "before"}}, base_url=sim.url)))

    assert vendors.call(a_call(base_url=sim.url)).finish_reason == "stop"


# ------------------------------------------------------------------ what is sent


@pytest.mark.parametrize(
    ("wire", "path", "body"),
    [
        (
            "openai",
            "/v1/chat/completions",
            {"temperature": 0.5, "messages": [{"role": "user", "content": "hello"}]},
        ),
        (
            "anthropic",
            "/v1/messages",
            {
                "max_tokens": 4096,
                "temperature": 0.5,
                "messages": [{"role": "user", "content": "hello"}],
            },
        ),
    ],
)
def test_call_sends_the_vendors_form(
    open_vendors: Callable[..., HttpVendors], wire: str, path: str, body: dict[str, Any]
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(a_call(wire, options={"temperature": 0.5}))

    assert recorder.requests[0].method == "POST"
    assert recorder.requests[0].url.path == path
    assert recorder.body == {**body, "model": "sim-1"}


@pytest.mark.parametrize("wire", WIRES)
def test_call_takes_a_base_url_with_a_slash_at_its_end(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(a_call(wire, base_url=f"{BASE_URL}/"))

    assert "//" not in recorder.requests[0].url.path


@pytest.mark.parametrize("wire", WIRES)
def test_call_sends_the_idempotency_key(send: Send, sim: Simulator, wire: str) -> None:
    send("hello", wire, key="job_42")

    assert sim.ledger.snapshot()["headers"]["idempotency_key"] == "job_42"


@pytest.mark.parametrize("wire", WIRES)
def test_call_repeated_with_its_key_after_a_drop_is_charged_once(  # case V04
    send: Send, sim: Simulator, wire: str
) -> None:
    error = failure(lambda: send("hello", wire, key="job_1", drop="after"))
    answer = send("hello", wire, key="job_1", drop="after")

    assert (error.job_code, error.retryable) == ("vendor_unavailable", True)
    assert answer.text.startswith("You said: hello")
    counts = sim.ledger.snapshot()
    assert (counts["calls"], counts["charged"], counts["replayed"]) == (2, 1, 1)


@pytest.mark.parametrize("wire", WIRES)
def test_call_of_another_job_is_charged_anew(  # case V04
    send: Send, sim: Simulator, wire: str
) -> None:
    send("hello", wire, key="job_1")
    send("hello", wire, key="job_2")

    assert sim.ledger.snapshot()["charged"] == 2


@pytest.mark.parametrize("wire", WIRES)
def test_options_never_override_model_and_messages(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(
        a_call(wire, options={"model": "dear", "messages": [], "top_k": 0})
    )

    assert recorder.body["model"] == "sim-1"
    assert recorder.body["messages"] == [{"role": "user", "content": "hello"}]
    assert recorder.body["top_k"] == 0


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "text", ["\x00\x07\x0b\ufffe\uffff", "a\r\nb", "😀 𠀀 Ѱ", '<&> "q"', "é e\u0301"]
)
def test_call_sends_the_characters_as_they_came(
    open_vendors: Callable[..., HttpVendors], wire: str, text: str
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(a_call(wire, text))

    assert recorder.body["messages"][0]["content"] == text


@pytest.mark.parametrize("wire", WIRES)
def test_call_sends_numbers_as_they_came(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    recorder = Recorder(wire)
    options = {"seed": 9007199254740993, "top_p": 1.0, "penalty": 1e-7, "flag": False, "no": None}

    open_vendors(transport=recorder.transport).call(a_call(wire, options=options))

    sent = {name: recorder.body[name] for name in options}
    assert repr(sent) == repr(options)


def test_openai_messages_are_sent_as_they_are(open_vendors: Callable[..., HttpVendors]) -> None:
    recorder = Recorder("openai")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]

    open_vendors(transport=recorder.transport).call(a_call("openai", {"messages": messages}))

    assert recorder.body["messages"] == messages


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([], None),
        ([("system", "be brief")], "be brief"),
        ([("developer", "be brief")], "be brief"),
        ([("system", "be brief"), ("developer", "be kind")], "be brief\n\nbe kind"),
        (
            [("system", "be brief"), ("system", [{"type": "text", "text": "be kind"}])],
            [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}],
        ),
    ],
    ids=["none", "system", "developer", "both", "blocks"],
)
def test_anthropic_system_messages_move_to_their_own_member(
    open_vendors: Callable[..., HttpVendors], messages: list[tuple[str, Any]], system: Any
) -> None:
    recorder = Recorder("anthropic")
    given = [{"role": role, "content": content} for role, content in messages]
    user = {"role": "user", "content": "hello"}

    open_vendors(transport=recorder.transport).call(
        a_call("anthropic", {"messages": [*given, user]})
    )

    assert recorder.body.get("system") == system
    assert recorder.body["messages"] == [user]


def test_anthropic_max_tokens_of_the_partner_wins(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    recorder = Recorder("anthropic")

    open_vendors(transport=recorder.transport).call(a_call("anthropic", options={"max_tokens": 7}))

    assert recorder.body["max_tokens"] == 7


def test_anthropic_system_option_is_not_dropped_beside_system_messages(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    # An option that is in the key but never sent makes two requests differ that don't.
    recorder = Recorder("anthropic")
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]

    open_vendors(transport=recorder.transport).call(
        a_call("anthropic", {"messages": messages}, options={"system": "be brief"})
    )

    sent = json.dumps(recorder.body["system"])
    assert "be kind" in sent
    assert "be brief" in sent


@pytest.mark.parametrize(
    "message",
    [{"role": "system"}, {"role": "system", "content": None}, {"role": "developer"}],
    ids=["no content", "null content", "developer"],
)
def test_anthropic_system_message_without_content_is_no_crash(
    open_vendors: Callable[..., HttpVendors], message: dict[str, Any]
) -> None:
    # The schema of a submit allows it: it may end the job, but not the worker.
    recorder = Recorder("anthropic")
    call = a_call("anthropic", {"messages": [message, {"role": "user", "content": "hello"}]})

    try:
        open_vendors(transport=recorder.transport).call(call)
    except VendorError as error:
        assert not error.retryable  # noqa: PT017 - both outcomes are good
    else:
        assert recorder.body["messages"] == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    "option",
    [5, True, 1.5, {"type": "text"}, ["be brief"]],
    ids=lambda option: type(option).__name__,
)
def test_anthropic_system_option_of_any_type_is_no_crash(
    open_vendors: Callable[..., HttpVendors], option: Any
) -> None:
    # Options go to the vendor as they are: it is the vendor's to refuse them.
    recorder = Recorder("anthropic")

    open_vendors(transport=recorder.transport).call(a_call("anthropic", options={"system": option}))

    assert recorder.body["system"] == option


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault",
    [
        {"drip_s": 0.05},
        {"drip_s": 0.05, "drip_headers": True},
        {"hang": True},
        {"delay_s": 30},
        {"status": 500, "delay_s": 30},
    ],
    ids=["drip", "header drip", "hang", "slow", "slow error"],
)
def test_call_ends_at_its_total_deadline(  # case V01
    sim: Simulator,
    open_vendors: Callable[..., HttpVendors],
    wire: str,
    fault: dict[str, Any],
) -> None:
    call = a_call(wire, options={"sim": fault}, base_url=sim.url, timeout_s=0.3)
    began_s = time.monotonic()

    error = failure(lambda: open_vendors(clock=SystemClock()).call(call))

    assert 0.3 <= time.monotonic() - began_s < 5
    assert (error.job_code, error.retryable) == ("vendor_timeout", True)
    assert sim.ledger.snapshot()["calls"] == 1


@pytest.mark.parametrize("wire", WIRES)
def test_call_takes_a_drip_that_ends_in_time(send: Send, wire: str) -> None:
    assert send("hello", wire, drip_s=0.0005).text.startswith("You said: hello")


@pytest.mark.parametrize(
    ("error", "charged"),
    [
        (httpx.ConnectTimeout, False),
        (httpx.ReadTimeout, True),
        (httpx.WriteTimeout, True),
        (httpx.PoolTimeout, False),
    ],
)
def test_call_that_waits_too_long_for_one_thing_is_a_timeout(
    open_vendors: Callable[..., HttpVendors],
    error: type[httpx.TimeoutException],
    *,
    charged: bool,
) -> None:
    def give_up(request: httpx.Request) -> httpx.Response:
        raise error("hunter2", request=request)

    vendors = open_vendors(transport=httpx.MockTransport(give_up))

    failed = failure(lambda: vendors.call(a_call()))

    assert (failed.job_code, failed.retryable) == ("vendor_timeout", True)
    assert (failed.maybe_charged, failed.down) == (charged, True)


def test_call_sets_each_timeout_apart(open_vendors: Callable[..., HttpVendors]) -> None:
    recorder = Recorder("openai")

    open_vendors(transport=recorder.transport).call(a_call(timeout_s=42.0))

    timeouts = recorder.requests[0].extensions["timeout"]
    assert timeouts["connect"] == 2.0
    assert timeouts["read"] == 42.0
    assert 0 < timeouts["write"] <= 42.0
    assert 0 < timeouts["pool"] <= 42.0


def test_connection_that_is_waited_on_is_kept_known(sim: Simulator) -> None:  # case V06
    outbound = HttpOutbound()

    async def options_of_a_connection() -> list[int]:
        async with outbound.client().stream("POST", f"{sim.url}/nowhere") as response:
            ours = response.extensions["network_stream"].get_extra_info("socket")
            return [
                ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                *(
                    ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                    for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL")
                    if hasattr(socket, name)
                ),
            ]

    switched_on, *times_s = outbound.run(options_of_a_connection())
    outbound.close()

    assert switched_on
    assert set(times_s) == {ALIVE_EVERY_S}
    assert ALIVE_EVERY_S < 350


# ------------------------------------------------------------------ lost connections


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("drop", ["before", "after"])
def test_call_whose_connection_drops_may_be_retried(
    send: Send, sim: Simulator, wire: str, drop: str
) -> None:
    error = failure(lambda: send("hello", wire, drop=drop))

    assert (error.job_code, error.retryable, error.http_status) == (
        "vendor_unavailable",
        True,
        None,
    )
    assert error.maybe_charged
    assert sim.ledger.snapshot()["calls"] == 1


def test_call_to_nobody_may_be_retried(open_vendors: Callable[..., HttpVendors]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    error = failure(lambda: open_vendors().call(a_call(base_url=f"http://127.0.0.1:{port}/v1")))

    assert (error.job_code, error.retryable) == ("vendor_unavailable", True)
    assert (error.maybe_charged, error.down) == (False, True)


def test_call_whose_answer_can_not_be_unpacked_may_be_retried(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    vendors = open_vendors(transport=answering(b"no gzip", headers={"content-encoding": "gzip"}))

    error = failure(lambda: vendors.call(a_call()))

    assert (error.job_code, error.retryable) == ("vendor_unavailable", True)
    assert error.maybe_charged


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("status", "code", "retryable", "charged"),
    [
        (400, "vendor_rejected", False, False),
        (401, "vendor_auth_failed", False, False),
        (403, "vendor_auth_failed", False, False),
        (404, "vendor_rejected", False, False),
        (408, "vendor_timeout", True, True),
        (409, "vendor_unavailable", True, True),
        (413, "vendor_rejected", False, False),
        (422, "vendor_rejected", False, False),
        (425, "vendor_unavailable", True, True),
        (429, "vendor_rate_limited", True, False),
        (500, "vendor_unavailable", True, True),
        (502, "vendor_unavailable", True, True),
        (503, "vendor_unavailable", True, True),
        (504, "vendor_timeout", True, True),
        (529, "vendor_unavailable", True, False),
    ],
)
def test_call_that_is_refused_is_told_apart_by_status(
    send: Send, sim: Simulator, wire: str, status: int, code: str, *, retryable: bool, charged: bool
) -> None:
    error = failure(lambda: send("hello", wire, status=status))

    assert (error.job_code, error.retryable, error.http_status) == (code, retryable, status)
    assert error.maybe_charged is charged
    assert error.vendor_request_id is not None
    assert error.vendor_request_id.startswith("req_")
    assert sim.ledger.snapshot()["calls"] == 1


@pytest.mark.parametrize("status", [429, 403, 402, 400])
@pytest.mark.parametrize(
    ("wire", "error"),
    [
        ("openai", {"code": "insufficient_quota", "type": "insufficient_quota"}),
        ("openai", {"code": None, "type": "insufficient_quota"}),
        ("openai", {"code": "billing_hard_limit_reached", "type": "invalid_request_error"}),
        ("anthropic", {"type": "billing_error"}),
    ],
    ids=["code", "type", "billing limit", "anthropic"],
)
def test_call_without_quota_is_never_retried(
    open_vendors: Callable[..., HttpVendors], wire: str, error: dict[str, Any], status: int
) -> None:
    body = json.dumps({"type": "error", "error": {"message": "no money", **error}}).encode()
    vendors = open_vendors(transport=answering(body, status, {"retry-after": "1"}))

    failed = failure(lambda: vendors.call(a_call(wire)))

    assert (failed.job_code, failed.retryable) == ("vendor_quota_exhausted", False)
    assert not failed.maybe_charged


@pytest.mark.parametrize("status", [429, 413, 400, 500])
@pytest.mark.parametrize(
    ("wire", "error"),
    [
        ("openai", {"code": "context_length_exceeded", "type": "invalid_request_error"}),
        ("openai", {"code": "request_too_large", "type": "tokens"}),
        ("openai", {"code": None, "type": "request_too_large"}),
        ("anthropic", {"type": "request_too_large"}),
    ],
    ids=["context", "code", "type", "anthropic"],
)
def test_request_that_is_too_large_is_never_retried_and_closes_no_gate(
    open_vendors: Callable[..., HttpVendors], wire: str, error: dict[str, Any], status: int
) -> None:
    body = json.dumps({"type": "error", "error": {"message": "too long", **error}}).encode()
    vendors = open_vendors(transport=answering(body, status, {"retry-after": "1"}))

    failed = failure(lambda: vendors.call(a_call(wire)))

    assert (failed.job_code, failed.retryable) == ("vendor_rejected", False)
    assert (failed.overload, failed.down) == (False, False)


def test_simulated_quota_error_is_never_retried(send: Send) -> None:
    error = failure(lambda: send("hello", status=429, error_code="insufficient_quota"))

    assert (error.job_code, error.retryable) == ("vendor_quota_exhausted", False)


@pytest.mark.parametrize("wire", WIRES)
def test_call_that_was_filtered_is_never_retried(send: Send, wire: str) -> None:
    error = failure(lambda: send("hello", wire, finish="content_filter"))

    assert (error.job_code, error.retryable, error.http_status) == ("vendor_filtered", False, 200)
    assert error.maybe_charged
    assert error.vendor_request_id is not None
    assert error.input_tokens > 0  # it is charged all the same
    assert error.output_tokens > 0


def test_call_that_the_model_refused_is_filtered(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    message = {"content": None, "refusal": "I can't help with hunter2."}
    body = {**OPENAI, "choices": [{"message": message, "finish_reason": "stop"}]}

    error = failure(
        lambda: open_vendors(transport=answering(json.dumps(body).encode())).call(a_call())
    )

    assert error.job_code == "vendor_filtered"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("told", "wait_s"),
    [
        ({"retry_after": "120"}, 120.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after": 30}, 30.0),
        ({"retry_after": "Thu, 01 Jan 2026 00:02:00 GMT"}, 120.0),
        ({"retry_after": "Wed, 31 Dec 2025 00:00:00 GMT"}, 0.0),
        ({"retry_after": "171"}, 171.0),
        ({"retry_after": "99999"}, 3600.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": ""}, None),
        ({"retry_after": "-5"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after_ms": 4321}, 4.321),
        ({"retry_after_ms": "4321", "retry_after": "60"}, 4.321),
        ({}, None),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_call_that_was_limited_tells_when_to_come_again(
    send: Send, wire: str, told: dict[str, Any], wait_s: float | None
) -> None:
    error = failure(lambda: send("hello", wire, status=429, **told))

    assert (error.job_code, error.retry_after_s) == ("vendor_rate_limited", wait_s)


@pytest.mark.parametrize(
    ("status", "charged"), [(408, True), (500, True), (503, False), (529, False)]
)
def test_call_that_failed_otherwise_tells_when_to_come_again_too(
    send: Send, status: int, *, charged: bool
) -> None:
    error = failure(lambda: send("hello", status=status, retry_after="7"))

    assert (error.retry_after_s, error.maybe_charged) == (7.0, charged)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_call_follows_no_redirect(open_vendors: Callable[..., HttpVendors], status: int) -> None:
    seen: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(status, headers={"location": "http://thief.invalid/"})

    vendors = open_vendors(transport=httpx.MockTransport(redirect))

    error = failure(lambda: vendors.call(a_call()))

    assert seen == [f"{BASE_URL}/chat/completions"]
    assert (error.job_code, error.retryable) == ("vendor_rejected", False)


@pytest.mark.parametrize("status", [201, 202, 204])
def test_call_takes_nothing_but_200_for_an_answer(
    open_vendors: Callable[..., HttpVendors], status: int
) -> None:
    body = b"" if status == 204 else json.dumps(OPENAI).encode()
    vendors = open_vendors(transport=answering(body, status))

    assert failure(lambda: vendors.call(a_call())).http_status == status


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("body", [b"", b"<html>hunter2</html>", b"[]", b'{"error":"hunter2 x"}'])
def test_call_that_is_refused_in_any_form_is_told_by_its_status(
    open_vendors: Callable[..., HttpVendors], wire: str, body: bytes
) -> None:
    vendors = open_vendors(transport=answering(body, 503))

    error = failure(lambda: vendors.call(a_call(wire)))

    assert (error.job_code, str(error)) == ("vendor_unavailable", "The vendor answered 503.")


@pytest.mark.parametrize("wire", WIRES)
def test_refusals_repeat_nothing_that_the_vendor_says(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    error = {"message": "you said hunter2", "type": "said hunter2", "code": "hunter2!", "param": ""}
    body = json.dumps({"error": error}).encode()
    call = a_call(wire, "hunter2")

    failed = failure(lambda: open_vendors(transport=answering(body, 400)).call(call))

    assert "hunter2" not in everything_about(failed)


# ------------------------------------------------------------------ malformed answers


def changed(wire: str, **members: Any) -> bytes:
    return json.dumps({**GOOD[wire], **members}).encode()


def choice(**members: Any) -> list[dict[str, Any]]:
    return [{**OPENAI["choices"][0], **members}]


MALFORMED = {
    wire: {
        "empty": b"",
        "html": b"<html><body>Bad Gateway</body></html>",
        "a list": b"[]",
        "null": b"null",
        "a text": b'"an answer"',
        "an empty object": b"{}",
        "an error": b'{"error":{"message":"overloaded","type":"server_error"}}',
        "cut off": json.dumps(GOOD[wire]).encode()[:-20],
        "two documents": json.dumps(GOOD[wire]).encode() * 2,
        "no utf-8": json.dumps(GOOD[wire]).encode().replace(b"an answer", b"\xff"),
        "half a pair": json.dumps(GOOD[wire]).encode().replace(b"an answer", b"\\ud83d"),
        "nan": json.dumps(GOOD[wire]).encode().replace(b"20", b"NaN"),
        "infinity": json.dumps(GOOD[wire]).encode().replace(b"20", b"-Infinity"),
        "beyond a double": json.dumps(GOOD[wire]).encode().replace(b"20", b"1e999"),
        "nan elsewhere": json.dumps({**GOOD[wire], "score": float("nan")}).encode(),
        "a name twice": json.dumps(GOOD[wire]).encode()[:-1] + b',"usage":{}}',
        "bottomless": b'{"a":' * 100_000,
        "usage is a text": changed(wire, usage="much"),
        "usage is a list": changed(wire, usage=[1]),
    }
    for wire in WIRES
}
MALFORMED["openai"] |= {
    "no choices": changed("openai", choices=[]),
    "choices missing": json.dumps({"id": "x"}).encode(),
    "choices are no list": changed("openai", choices={"0": 1}),
    "choice is null": changed("openai", choices=[None]),
    "choice is empty": changed("openai", choices=[{}]),
    "no message": changed("openai", choices=choice(message=None)),
    "message is a text": changed("openai", choices=choice(message="an answer")),
    "no content": changed("openai", choices=choice(message={})),
    "content is null": changed("openai", choices=choice(message={"content": None})),
    "content is a number": changed("openai", choices=choice(message={"content": 5})),
    "content is a list": changed("openai", choices=choice(message={"content": ["x"]})),
    "no finish reason": changed("openai", choices=choice(finish_reason=None)),
    "other finish reason": changed("openai", choices=choice(finish_reason="tired")),
    "finish reason is a list": changed("openai", choices=choice(finish_reason=["stop"])),
    "tokens are no number": changed("openai", usage={"prompt_tokens": "many"}),
    "tokens are negative": changed("openai", usage={"completion_tokens": -5}),
    "tokens are absurd": changed("openai", usage={"completion_tokens": 1e300}),
}
MALFORMED["anthropic"] |= {
    "no content": changed("anthropic", content=[]),
    "content missing": json.dumps({"stop_reason": "end_turn", "usage": {}}).encode(),
    "content is a text": changed("anthropic", content="an answer"),
    "content is null": changed("anthropic", content=None),
    "block is null": changed("anthropic", content=[None]),
    "block without type": changed("anthropic", content=[{"text": "x"}]),
    "block without text": changed("anthropic", content=[{"type": "text"}]),
    "text is a number": changed("anthropic", content=[{"type": "text", "text": 5}]),
    "no stop reason": changed("anthropic", stop_reason=None),
    "other stop reason": changed("anthropic", stop_reason="tired"),
    "stop reason is a list": changed("anthropic", stop_reason=["end_turn"]),
    "no usage": json.dumps({k: v for k, v in ANTHROPIC.items() if k != "usage"}).encode(),
    "no tokens": changed("anthropic", usage={}),
    "tokens are negative": changed("anthropic", usage={"input_tokens": 1, "output_tokens": -5}),
    "tokens are absurd": changed("anthropic", usage={"input_tokens": 1e300, "output_tokens": 1}),
}


@pytest.mark.parametrize(
    ("wire", "kind"), [(wire, kind) for wire in WIRES for kind in MALFORMED[wire]]
)
def test_answer_that_is_malformed_is_a_bad_response(  # case K13, V07
    open_vendors: Callable[..., HttpVendors], wire: str, kind: str
) -> None:
    vendors = open_vendors(
        transport=answering(MALFORMED[wire][kind], 200, {REQUEST_ID_HEADER[wire]: "req_1"})
    )

    error = failure(lambda: vendors.call(a_call(wire)))

    assert (error.job_code, error.retryable) == ("vendor_bad_response", False)
    assert (error.http_status, error.vendor_request_id) == (200, "req_1")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault",
    [
        {"malformed": True},
        {"no_choices": True},
        {"body": "<html>oops</html>"},
        {"body": '{"choices": [{"message": {"content": NaN}}]}'},
        {"body": ""},
    ],
    ids=["malformed", "no choices", "html", "nan", "empty"],
)
def test_simulated_malformed_answer_is_a_bad_response(
    send: Send, sim: Simulator, wire: str, fault: dict[str, Any]
) -> None:
    error = failure(lambda: send("hello", wire, **fault))

    assert (error.job_code, error.retryable) == ("vendor_bad_response", False)
    assert sim.ledger.snapshot()["calls"] == 1


class Chunks(httpx.AsyncByteStream):
    """A body that comes in pieces of a mebibyte."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._count):
            self.sent += 1
            yield bytes(1024 * 1024)


def test_answer_that_is_too_large_is_refused_before_it_is_read_whole(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    endless = Chunks(1000)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=endless))

    error = failure(lambda: open_vendors(transport=transport).call(a_call()))

    assert (error.job_code, error.retryable) == ("result_too_large", False)
    assert endless.sent == MAX_ANSWER_BYTES // (1024 * 1024) + 1


def test_answer_that_unpacks_to_too_much_is_refused(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    bomb = gzip.compress(bytes(MAX_ANSWER_BYTES + 1))
    vendors = open_vendors(transport=answering(bomb, headers={"content-encoding": "gzip"}))

    assert failure(lambda: vendors.call(a_call())).job_code == "result_too_large"


# ------------------------------------------------------------------ secrets


def everything_about(error: BaseException) -> str:
    """All that a log with a traceback could show of an error: texts, causes and attributes."""
    parts = [*traceback.format_exception(error), repr(error), str(error)]
    parts += [repr(vars(error))]
    record = logging.LogRecord(
        "x", logging.ERROR, __file__, 1, "failed", (), (type(error), error, error.__traceback__)
    )
    return "".join([*parts, logging.Formatter().format(record)])


@pytest.mark.parametrize("wire", WIRES)
def test_key_travels_in_its_header_only(  # case A05
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(a_call(wire))

    (request,) = recorder.requests
    holders = [name for name, value in request.headers.items() if "hunter2" in value]
    assert holders == [{"openai": "authorization", "anthropic": "x-api-key"}[wire]]
    assert "hunter2" not in str(request.url) + request.content.decode()


@pytest.mark.parametrize("wire", WIRES)
def test_vendor_without_a_secret_is_sent_no_credential(
    open_vendors: Callable[..., HttpVendors], wire: str
) -> None:
    recorder = Recorder(wire)

    open_vendors(transport=recorder.transport).call(a_call(wire, keyed=False))

    assert "authorization" not in recorder.requests[0].headers
    assert "hunter2" not in str(recorder.requests[0].headers.raw)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 401},
        {"status": 503},
        {"drop": "before"},
        {"drop": "after"},
        {"hang": True},
        {"malformed": True},
        {"finish": "content_filter"},
    ],
    ids=lambda fault: "-".join(map(str, next(iter(fault.items())))),
)
def test_errors_hold_no_key_anywhere(  # case A06
    send: Send, wire: str, fault: dict[str, Any]
) -> None:
    error = failure(lambda: send("hello", wire, timeout_s=0.2, **fault))

    assert "hunter2" not in everything_about(error)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "secret",
    ["sk-hunter2\n", "sk-hunter2\r\nX-Evil: 1", "sk-hunter2\x00", "sk-hunter2-é", "sk-hunter2-😀"],
    ids=["line end", "header injection", "nul", "latin-1", "emoji"],
)
def test_errors_of_a_key_that_no_header_takes_hold_no_key(  # case A06
    send: Send, sim: Simulator, wire: str, secret: str
) -> None:
    error = failure(lambda: send("hello", wire, secret=secret))

    assert "hunter2" not in everything_about(error)
    assert sim.ledger.snapshot()["calls"] == 0


@pytest.mark.parametrize("wire", WIRES)
def test_key_that_no_header_takes_is_never_retried(send: Send, wire: str) -> None:
    # It is our configuration that is wrong; another attempt sends the same.
    error = failure(lambda: send("hello", wire, secret="sk-hunter2\x00"))

    assert (error.retryable, error.maybe_charged) == (False, False)


def test_key_that_can_not_be_read_is_a_vendor_error(sim: Simulator) -> None:
    # The port says: raises VendorError. Anything else takes the worker down, attempt by attempt.
    secrets, clock = FakeSecretsManager(), FakeClock()
    secrets.failure = ClientError(
        {"Error": {"Code": "ResourceNotFoundException", "Message": "no secret"}}, "GetSecretValue"
    )
    vendors = HttpVendors(api_keys=secrets.vendor_keys(clock), clock=clock)

    error = failure(lambda: vendors.call(a_call(base_url=sim.url)))

    assert (error.job_code, error.retryable) == ("vendor_auth_failed", False)
    assert not error.maybe_charged


class Rotation:
    """A vendor that takes one key alone, and the secret that our key is read from."""

    def __init__(self, wire: str, *, taken: str = "sk-hunter2-new", status: int = 401) -> None:
        self.clock = FakeClock()
        self.secrets = FakeSecretsManager("sk-hunter2-old")
        self.keys: list[str] = []
        self.ids: list[str] = []
        self.takes = 0.0
        """Seconds of each answer."""
        self._wire, self._taken, self._status = wire, taken, status
        transport = httpx.MockTransport(self._answer)
        self.vendors = HttpVendors(
            api_keys=self.secrets.vendor_keys(self.clock), clock=self.clock, transport=transport
        )
        self.vendors.prepare(a_call(wire).vendor)
        self.clock.advance(ms=ASKED_AGAIN_AFTER_MS + 1)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        sent = request.headers.get("x-api-key") or request.headers["authorization"]
        self.keys.append(sent.removeprefix("Bearer "))
        self.ids.append(request.headers["idempotency-key"])
        await asyncio.sleep(self.takes)
        if self.keys[-1] != self._taken:
            return httpx.Response(self._status, json={"error": {"code": "invalid_api_key"}})
        return httpx.Response(200, json=GOOD[self._wire])

    def call(self, timeout_s: float = 5.0) -> VendorAnswer:
        try:
            return self.vendors.call(a_call(self._wire, timeout_s=timeout_s))
        finally:
            self.vendors.close()


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("wire", WIRES)
def test_call_whose_key_was_revoked_is_made_again_with_the_one_that_replaced_it(
    wire: str, status: int
) -> None:
    rotation = Rotation(wire, status=status)
    rotation.secrets.rotate("sk-hunter2-new")

    answer = rotation.call()

    assert answer.text == "an answer"
    assert rotation.keys == ["sk-hunter2-old", "sk-hunter2-new"]
    assert rotation.ids == ["job_1", "job_1"]
    assert rotation.call().text == "an answer"
    assert rotation.keys[2:] == ["sk-hunter2-new"]


@pytest.mark.parametrize("wire", WIRES)
def test_call_whose_key_is_still_the_secret_fails_after_one_request(wire: str) -> None:
    rotation = Rotation(wire)

    error = failure(rotation.call)

    assert (error.job_code, error.retryable, error.http_status) == (
        *("vendor_auth_failed", False),
        401,
    )
    assert rotation.keys == ["sk-hunter2-old"]


@pytest.mark.parametrize("wire", WIRES)
def test_call_whose_new_key_is_refused_too_fails_after_two_requests(wire: str) -> None:
    rotation = Rotation(wire, taken="another")
    rotation.secrets.rotate("sk-hunter2-new")

    error = failure(rotation.call)

    assert (error.job_code, error.retryable) == ("vendor_auth_failed", False)
    assert len(rotation.keys) == 2
    assert "hunter2" not in everything_about(error)


def test_call_whose_key_was_just_read_fails_after_one_request() -> None:
    rotation = Rotation("openai")
    rotation.clock.advance(ms=-1)
    rotation.secrets.rotate("sk-hunter2-new")

    assert failure(rotation.call).http_status == 401
    assert rotation.keys == ["sk-hunter2-old"]


def test_call_whose_secret_can_not_be_read_anew_fails_with_what_the_vendor_said() -> None:
    rotation = Rotation("openai")
    rotation.secrets.failure = ClientError(
        {"Error": {"Code": "ThrottlingException", "Message": "hunter2"}}, "GetSecretValue"
    )

    error = failure(rotation.call)

    assert (error.retryable, error.http_status) == (False, 401)
    assert "hunter2" not in everything_about(error)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_refusal_for_another_reason_than_the_key_reads_no_secret(status: int) -> None:
    rotation = Rotation("openai", status=status)
    rotation.secrets.rotate("sk-hunter2-new")

    assert failure(rotation.call).http_status == status
    assert len(rotation.secrets.asked) == 1


def test_both_requests_of_a_rotation_are_under_one_deadline() -> None:
    rotation = Rotation("openai")
    rotation.secrets.rotate("sk-hunter2-new")
    rotation.takes = 0.3

    error = failure(lambda: rotation.call(timeout_s=0.5))

    assert (error.job_code, error.retryable) == ("vendor_timeout", True)
    assert len(rotation.keys) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_vendor_without_a_secret_that_refuses_is_asked_once(
    open_vendors: Callable[..., HttpVendors], status: int
) -> None:
    vendors = open_vendors(transport=answering(b"{}", status))

    assert failure(lambda: vendors.call(a_call(keyed=False))).http_status == status


@pytest.mark.parametrize("wire", WIRES)
def test_calls_log_neither_key_nor_prompt(  # case A05
    send: Send, wire: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh_telemetry(level="DEBUG")

    send("the prompt of hunter2", wire)
    failure(lambda: send("the prompt of hunter2", wire, status=503))

    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err


# ------------------------------------------------------------------ our surroundings


@pytest.mark.parametrize("wire", WIRES)
def test_call_never_tells_the_vendor_our_trace(
    send: Send, sim: Simulator, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")
    monkeypatch.setenv("AWS_XRAY_CONTEXT_MISSING", "IGNORE_ERROR")

    send("hello", wire)

    names = {name.lower() for name in sim.ledger.snapshot()["headers"]["names"]}
    assert not {"x-amzn-trace-id", "traceparent", "tracestate", "baggage"} & names
    assert not any(name.startswith("x-amz") for name in names)


def test_call_goes_through_no_proxy_of_the_environment(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    assert send("hello").finish_reason == "stop"


def test_protocol_that_we_lack_is_refused_without_a_call(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    recorder = Recorder("openai")

    error = failure(lambda: open_vendors(transport=recorder.transport).call(a_call("bedrock")))

    assert (error.job_code, error.retryable) == ("vendor_rejected", False)
    assert not error.maybe_charged
    assert recorder.requests == []


@pytest.mark.parametrize("base_url", ["http://", "http://[::1", "http://127.0.0.1:99999/v1"])
def test_base_url_that_is_none_is_a_vendor_error(
    open_vendors: Callable[..., HttpVendors], base_url: str
) -> None:
    error = failure(lambda: open_vendors().call(a_call(base_url=base_url)))

    assert not error.maybe_charged


# ------------------------------------------------------------------ answers that are odd but paid


@pytest.mark.parametrize("counts", [{"prompt_tokens": None, "completion_tokens": None}, {}])
def test_call_takes_an_openai_answer_whose_counts_are_unknown(
    open_vendors: Callable[..., HttpVendors], counts: dict[str, Any]
) -> None:
    body = json.dumps({**OPENAI, "usage": counts}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call())

    assert (answer.text, answer.input_tokens, answer.output_tokens) == ("an answer", 0, 0)


@pytest.mark.parametrize("given", [1.5, ["x"], {"a": 1}, "x" * 420_000, None])
@pytest.mark.parametrize("wire", WIRES)
def test_call_leaves_out_an_id_that_is_none(
    open_vendors: Callable[..., HttpVendors], wire: str, given: Any
) -> None:
    body = json.dumps({**GOOD[wire], "id": given}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call(wire))

    assert answer.vendor_request_id is None


def test_anthropic_turn_that_was_paused_is_cut_off(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    body = json.dumps({**ANTHROPIC, "stop_reason": "pause_turn"}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call("anthropic"))

    assert answer.finish_reason == "length"
    assert not answer.cacheable


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "thinking", "thinking": "…", "signature": "s"}, {"type": "text", "text": ""}],
        [{"type": "thinking", "thinking": "…", "signature": "s"}],
        [{"type": "text", "text": " \n"}],
        [
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        ],
        [{"type": "something_new"}],
    ],
    ids=["thinking and nothing", "thinking only", "white space", "tool use", "unknown"],
)
def test_anthropic_answer_without_a_final_text_is_not_reusable(
    open_vendors: Callable[..., HttpVendors], blocks: list[dict[str, Any]]
) -> None:
    body = json.dumps({**ANTHROPIC, "content": blocks, "stop_reason": "end_turn"}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call("anthropic"))

    assert not answer.cacheable


@pytest.mark.parametrize("reason", ["function_call", "stop"])
@pytest.mark.parametrize("text", [None, "let me see"])
def test_function_call_of_the_old_kind_is_kept_and_not_reusable(
    open_vendors: Callable[..., HttpVendors], text: str | None, reason: str
) -> None:
    call = {"name": "f", "arguments": "{}"}
    message = {"content": text, "function_call": call}
    body = json.dumps(
        {**OPENAI, "choices": [{"message": message, "finish_reason": reason}]}
    ).encode()

    answer = open_vendors(transport=answering(body)).call(a_call())

    assert (answer.text, answer.finish_reason) == (text or "", "tool_calls")
    assert answer.content == [{"type": "function_call", "function_call": call}]
    assert not answer.cacheable


@pytest.mark.parametrize(
    "kind",
    [
        *("tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result"),
        *("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
    ],
)
def test_answer_with_a_block_of_any_tool_is_kept_whole_and_not_reusable(
    open_vendors: Callable[..., HttpVendors], kind: str
) -> None:
    blocks = [{"type": "text", "text": "so"}, {"type": kind, "id": "t"}]
    blocks.append({"type": "text", "text": " it is"})
    body = json.dumps({**ANTHROPIC, "content": blocks}).encode()

    answer = open_vendors(transport=answering(body)).call(a_call("anthropic"))

    assert (answer.text, answer.finish_reason) == ("so it is", "tool_calls")
    assert answer.content == blocks
    assert not answer.cacheable


def test_input_that_a_protocol_can_not_say_is_rejected_and_not_retried(
    open_vendors: Callable[..., HttpVendors],
) -> None:
    recorder = Recorder("anthropic")
    messages = [{"role": "system", "content": 5}, {"role": "user", "content": "x"}]
    call = a_call("anthropic", {"messages": messages})

    error = failure(lambda: open_vendors(transport=recorder.transport).call(call))

    assert (error.job_code, error.retryable) == ("vendor_rejected", False)
    assert not error.maybe_charged
    assert recorder.requests == []


# ------------------------------------------------------------------ a call that nobody wants


def asking(call: VendorCall, still_wanted: Callable[[], bool], every_s: float) -> VendorCall:
    """The call, during which somebody is asked whether its answer is still wanted."""
    return call._replace(still_wanted=still_wanted, ask_every_s=every_s)


@pytest.mark.parametrize("wire", WIRES)
def test_call_that_is_wanted_no_more_is_aborted_at_the_next_look(
    open_vendors: Callable[..., HttpVendors], sim: Simulator, wire: str
) -> None:
    call = a_call(wire, options={"sim": {"hang": True}}, base_url=sim.url, timeout_s=30)
    started_s = time.monotonic()

    with pytest.raises(CallAbortedError):
        open_vendors().call(asking(call, lambda: False, 0.2))

    assert 0.2 <= time.monotonic() - started_s < 1.2


def test_call_that_drips_is_aborted_at_the_next_look(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    call = a_call(options={"sim": {"drip_s": 0.05}}, base_url=sim.url, timeout_s=30)
    started_s = time.monotonic()

    with pytest.raises(CallAbortedError):
        open_vendors().call(asking(call, lambda: False, 0.2))

    assert time.monotonic() - started_s < 1.2


def test_call_is_asked_about_every_so_often(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    looks: list[float] = []
    call = a_call(options={"sim": {"delay_s": 1.0}}, base_url=sim.url)

    def still_wanted() -> bool:
        looks.append(time.monotonic())
        return True

    answer = open_vendors().call(asking(call, still_wanted, 0.2))

    assert answer.finish_reason == "stop"
    assert 3 <= len(looks) <= 5
    assert all(later - sooner >= 0.19 for sooner, later in pairwise(looks))


def test_call_that_is_answered_in_time_is_never_asked_about(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    looks: list[int] = []

    open_vendors().call(asking(a_call(base_url=sim.url), lambda: not looks.append(1), 5.0))

    assert looks == []


@pytest.mark.parametrize("fault", [{"delay_s": 0.5}, {"delay_s": 0.5, "status": 503}])
def test_call_is_not_asked_about_after_its_end(
    open_vendors: Callable[..., HttpVendors], sim: Simulator, fault: dict[str, Any]
) -> None:
    # A heartbeat that outlives its work would renew a lease that is released.
    looks: list[float] = []
    call = asking(
        a_call(options={"sim": fault}, base_url=sim.url), lambda: not looks.append(1.0), 0.1
    )
    vendors = open_vendors()

    with suppress(VendorError):
        vendors.call(call)
    asked = len(looks)
    time.sleep(0.4)

    assert asked >= 2
    assert len(looks) == asked


def test_call_ends_with_its_answer_though_a_look_is_under_way(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    # The renewal is in flight when the answer comes: it ends first, and no other follows.
    looks: list[str] = []

    def slowly() -> bool:
        looks.append("begun")
        time.sleep(0.6)
        looks.append("done")
        return True

    call = asking(a_call(options={"sim": {"delay_s": 0.3}}, base_url=sim.url), slowly, 0.2)
    started_s = time.monotonic()

    answer = open_vendors().call(call)

    assert answer.finish_reason == "stop"
    assert time.monotonic() - started_s < 1.3
    time.sleep(0.3)
    assert looks == ["begun", "done"]


def test_call_with_its_total_time_over_is_a_timeout_though_it_is_wanted(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    call = a_call(options={"sim": {"hang": True}}, base_url=sim.url, timeout_s=0.5)

    error = failure(lambda: open_vendors().call(asking(call, lambda: True, 0.1)))

    assert (error.job_code, error.retryable) == ("vendor_timeout", True)


def test_call_whose_look_fails_ends_with_that_error_and_the_next_call_works(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    vendors = open_vendors()

    def fail() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        vendors.call(asking(a_call(options={"sim": {"hang": True}}, base_url=sim.url), fail, 0.1))

    assert vendors.call(a_call(base_url=sim.url)).finish_reason == "stop"


def test_aborted_call_closes_its_connection_and_the_next_call_works(
    open_vendors: Callable[..., HttpVendors], sim: Simulator
) -> None:
    vendors = open_vendors()
    call = a_call(options={"sim": {"hang": True}}, base_url=sim.url, timeout_s=30)
    with pytest.raises(CallAbortedError):
        # Wanted until it has arrived there: on a busy machine that may take a while.
        vendors.call(asking(call, lambda: sim.ledger.snapshot()["calls"] == 0, 0.1))

    answer = vendors.call(a_call(base_url=sim.url, key="job_2"))

    assert answer.finish_reason == "stop"
    assert sim.ledger.snapshot()["calls"] == 2


def test_prepare_asks_for_the_key_and_calls_nobody(sim: Simulator) -> None:
    secrets, clock = FakeSecretsManager(), FakeClock()

    vendors = HttpVendors(api_keys=secrets.vendor_keys(clock), clock=clock)
    vendors.prepare(Vendor(base_url=sim.url, api_key_secret="sluiceway/vendors/sim"))

    assert secrets.asked == ["sluiceway/vendors/sim"]
    vendors.prepare(Vendor(base_url=sim.url))
    assert secrets.asked == ["sluiceway/vendors/sim"]
    assert sim.control("GET /_control/calls", {})["calls"] == 0
