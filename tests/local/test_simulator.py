"""The vendor simulator: wire forms, faults, counts, rate limit, and the process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sluiceway_local import simulator
from sluiceway_local.simulator import Simulator, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPENAI_HEADERS = {"Authorization": "Bearer test-credential"}
ANTHROPIC_HEADERS = {"x-api-key": "test-credential", "anthropic-version": "2023-06-01"}
DEADLINE_S = 5.0


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        """Start at a time that is not zero."""
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


class Partner:
    """A client of one simulator, for both wire forms and the control endpoints."""

    def __init__(self, sim: Simulator, http: httpx.Client) -> None:
        """Call `sim` through `http`."""
        self.sim = sim
        self.http = http

    def openai(
        self, prompt: str = "hello", *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Make a chat completion; `options` go into the body."""
        body = {"model": "m-1", "messages": [{"role": "user", "content": prompt}], **options}
        url = f"{self.sim.url}/chat/completions"
        return self.http.post(url, json=body, headers={**OPENAI_HEADERS, **(headers or {})})

    def anthropic(self, prompt: str = "hello", **options: Any) -> httpx.Response:
        """Make a message; `options` go into the body."""
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "m-1", "messages": messages, "max_tokens": 100, **options}
        return self.http.post(f"{self.sim.url}/messages", json=body, headers=ANTHROPIC_HEADERS)

    def keyed(self, key: str, prompt: str = "hello", **options: Any) -> httpx.Response:
        """Make a chat completion with an Idempotency-Key."""
        return self.openai(prompt, headers={"Idempotency-Key": key}, **options)

    def stand(self, fault: dict[str, Any], **limits: Any) -> httpx.Response:
        """Add a standing fault."""
        return self.http.post(f"{self.sim.control_url}/faults", json={"fault": fault, **limits})

    def calls(self) -> dict[str, Any]:
        """Return the counts."""
        counts: dict[str, Any] = self.http.get(f"{self.sim.control_url}/calls").json()
        return counts


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Give one client to all tests, as making one takes longer than most of them."""
    with httpx.Client(timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def start(http: httpx.Client) -> Iterator[Callable[..., Partner]]:
    """Give a function that starts a simulator with these settings, stopped after the test."""
    with ExitStack() as started:
        yield lambda **settings: Partner(started.enter_context(Simulator(**settings)), http)


@pytest.fixture
def partner(start: Callable[..., Partner]) -> Partner:
    """Give a client of a simulator without latency or limits."""
    return start()


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands still."""
    return Clock()


def text_of(response: httpx.Response) -> str:
    """Return the text of an OpenAI answer."""
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; fail at the deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never held"
        time.sleep(0.01)


def raw_request(sim: Simulator, **sim_fault: Any) -> bytes:
    """Return the bytes of a chat call with this fault."""
    body = {"model": "m", "messages": [{"role": "user", "content": "raw"}], "sim": sim_fault}
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{sim.port}\r\n"
        f"Authorization: Bearer x\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@contextmanager
def raw_connection(port: int) -> Iterator[socket.socket]:
    """Open a plain connection to the simulator."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        yield connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Read until what came in ends so."""
    received = b""
    while not received.endswith(end):
        piece = connection.recv(1)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return received


# Wire forms


def test_openai_answer_has_the_vendors_form(partner: Partner) -> None:
    response = partner.openai("hello there")

    answer = response.json()
    assert response.status_code == 200
    assert response.headers["x-request-id"].startswith("req_")
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "m-1"
    assert isinstance(answer["created"], int)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith("You said: hello there [")
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "total_tokens": 11,
    }


def test_openai_call_without_bearer_gets_401(partner: Partner) -> None:
    response = partner.openai(headers={"Authorization": "Basic abc"})

    assert response.status_code == 401
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert partner.calls()["charged"] == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": ["x"]}, "messages"),
        ({"model": "m", "messages": [{"role": "nobody"}]}, "messages"),
        ({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}, "stream"),
        ("not an object", "model"),
    ],
)
def test_openai_call_with_a_bad_body_gets_400(partner: Partner, body: object, param: str) -> None:
    url = f"{partner.sim.url}/chat/completions"

    response = partner.http.post(url, json=body, headers=OPENAI_HEADERS)

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["param"] == param


def test_anthropic_answer_has_the_vendors_form(partner: Partner) -> None:
    response = partner.anthropic("hello there", system="be brief")

    answer = response.json()
    assert response.status_code == 200
    assert response.headers["request-id"].startswith("req_")
    assert answer["id"].startswith("msg_")
    assert answer["type"] == "message"
    assert answer["role"] == "assistant"
    assert answer["content"][0]["type"] == "text"
    assert answer["content"][0]["text"].startswith("You said: hello there [")
    assert answer["stop_reason"] == "end_turn"
    assert answer["usage"] == {"input_tokens": 5, "output_tokens": 8}


@pytest.mark.parametrize(
    ("header", "status", "kind"),
    [
        ("x-api-key", 401, "authentication_error"),
        ("anthropic-version", 400, "invalid_request_error"),
    ],
)
def test_anthropic_call_without_a_header_is_refused(
    partner: Partner, header: str, status: int, kind: str
) -> None:
    headers = {name: value for name, value in ANTHROPIC_HEADERS.items() if name != header}

    response = partner.http.post(f"{partner.sim.url}/messages", json={}, headers=headers)

    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"messages": None},
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": [{"role": "system", "content": "x"}]},
    ],
)
def test_anthropic_call_with_a_bad_body_gets_400(partner: Partner, options: dict[str, Any]) -> None:
    response = partner.anthropic(**options)

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_answer_text_depends_on_prompt_and_seed_alone(
    partner: Partner, start: Callable[..., Partner]
) -> None:
    first, again, other = partner.openai("a"), partner.openai("a"), partner.openai("b")
    seeded = start(seed=7).openai("a")

    assert text_of(first) == text_of(again)
    assert first.json()["id"] != again.json()["id"]
    assert len({text_of(first), text_of(other), text_of(seeded)}) == 3


def test_answer_echoes_a_long_prompt_in_part(partner: Partner) -> None:
    text = text_of(partner.openai("x" * 10_000))

    assert len(text) < 250


def test_prompt_is_the_text_of_the_last_user_message(partner: Partner) -> None:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "old"},
        {"role": "user", "content": [{"type": "text", "text": "new"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "well"},
    ]

    partner.openai(messages=messages)

    assert list(partner.calls()["by_prompt"]) == ["new\n"]


def test_prompt_with_lone_surrogates_is_answered(partner: Partner) -> None:
    content = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800 caf\xc3\xa9"}]}'
    url = f"{partner.sim.url}/chat/completions"

    response = partner.http.post(url, content=content, headers=OPENAI_HEADERS)

    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"].startswith("You said: \ud800 café")


# Faults


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "invalid_request_error", "invalid_api_key"),
        (429, "requests", "rate_limit_exceeded"),
        (500, "server_error", None),
        (503, "server_error", None),
    ],
)
def test_status_fault_has_openais_error_form(
    partner: Partner, status: int, kind: str, code: str | None
) -> None:
    response = partner.openai(sim={"status": status})

    error = response.json()["error"]
    assert response.status_code == status
    assert (error["type"], error["code"], error["param"]) == (kind, code, None)
    assert "retry-after" not in response.headers
    assert partner.calls()["charged"] == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_status_fault_has_anthropics_error_form(partner: Partner, status: int, kind: str) -> None:
    response = partner.anthropic(sim={"status": status})

    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind
    assert response.json()["request_id"] == response.headers["request-id"]


def test_error_code_and_type_faults_replace_the_usual_ones(partner: Partner) -> None:
    quota = partner.openai(sim={"status": 429, "error_code": "insufficient_quota"})
    named = partner.openai(sim={"status": 400, "error_code": "c", "error_type": "t"})
    anthropic = partner.anthropic(sim={"status": 429, "error_code": "c", "error_type": "t"})

    assert quota.json()["error"]["type"] == "insufficient_quota"
    assert quota.json()["error"]["code"] == "insufficient_quota"
    assert (named.json()["error"]["type"], named.json()["error"]["code"]) == ("t", "c")
    assert anthropic.json()["error"]["type"] == "t"
    assert anthropic.json()["error"]["details"] == {"error_code": "c"}


@pytest.mark.parametrize("value", ["7", "1.5", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_retry_after_fault_is_sent_verbatim(partner: Partner, value: str) -> None:
    response = partner.openai(sim={"status": 429, "retry_after": value, "retry_after_ms": "1500"})

    assert response.headers["retry-after"] == value
    assert response.headers["retry-after-ms"] == "1500"


@pytest.mark.parametrize(
    ("fault", "status", "content_type", "charged"),
    [
        ({"body": "<html>busy</html>"}, 200, "text/html", 1),
        ({"body": "<html>busy</html>", "status": 502}, 502, "text/html", 0),
        ({"body": '{"error": {"message": "x"}}'}, 200, "application/json", 1),
        ({"body": '{"usage": Infinity}'}, 200, "application/json", 1),
        ({"body": ""}, 200, "application/json", 1),
    ],
)
def test_body_fault_is_sent_verbatim(
    partner: Partner, fault: dict[str, Any], status: int, content_type: str, charged: int
) -> None:
    response = partner.openai(sim=fault)

    assert response.status_code == status
    assert response.text == fault["body"]
    assert response.headers["content-type"] == content_type
    assert partner.calls()["charged"] == charged


@pytest.mark.parametrize(
    ("finish", "openai", "anthropic"),
    [
        ("length", "length", "max_tokens"),
        ("content_filter", "content_filter", "refusal"),
        ("tool_calls", "tool_calls", "tool_use"),
    ],
)
def test_finish_fault_has_each_vendors_spelling(
    partner: Partner, finish: str, openai: str, anthropic: str
) -> None:
    fault = {"finish": finish}

    assert partner.openai(sim=fault).json()["choices"][0]["finish_reason"] == openai
    assert partner.anthropic(sim=fault).json()["stop_reason"] == anthropic


def test_length_fault_cuts_the_text(partner: Partner) -> None:
    whole, cut = partner.openai(), partner.openai(sim={"finish": "length"})

    assert text_of(whole).startswith(text_of(cut))
    assert len(text_of(cut)) < len(text_of(whole))


def test_tool_calls_fault_has_each_vendors_form(partner: Partner) -> None:
    fault = {"finish": "tool_calls"}

    message = partner.openai(sim=fault).json()["choices"][0]["message"]
    content = partner.anthropic(sim=fault).json()["content"]

    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "simulated_tool", "arguments": "{}"}
    assert content[-1]["type"] == "tool_use"
    assert content[-1]["input"] == {}


def test_empty_fault_gives_an_empty_text(partner: Partner) -> None:
    openai = partner.openai(sim={"empty": True})
    anthropic = partner.anthropic(sim={"empty": True})

    assert text_of(openai) == ""
    assert openai.json()["usage"]["completion_tokens"] == 0
    assert anthropic.json()["content"] == [{"type": "text", "text": ""}]


def test_no_choices_fault_gives_an_empty_list(partner: Partner) -> None:
    assert partner.openai(sim={"no_choices": True}).json()["choices"] == []
    assert partner.anthropic(sim={"no_choices": True}).json()["content"] == []


def test_malformed_fault_breaks_the_json_off(partner: Partner) -> None:
    response = partner.openai(sim={"malformed": True})

    assert response.status_code == 200
    assert response.text.startswith('{"id": "chatcmpl-')
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        response.json()


@pytest.mark.parametrize("size_bytes", [0, 5, 4_000, 500_000])
def test_size_fault_sets_the_length_of_the_text(partner: Partner, size_bytes: int) -> None:
    text = text_of(partner.openai("crème", sim={"size_bytes": size_bytes}))

    assert size_bytes - 3 <= len(text.encode()) <= size_bytes


def test_text_fault_gives_exactly_that_text(partner: Partner) -> None:
    assert text_of(partner.openai(sim={"text": "日本 \x00 ok"})) == "日本 \x00 ok"
    assert text_of(partner.openai(sim={"text": ""})) == ""


def test_delay_fault_waits_before_the_answer(partner: Partner) -> None:
    response = partner.openai(sim={"delay_s": 0.2})

    assert response.elapsed.total_seconds() >= 0.2


def test_latency_applies_to_paid_answers_unless_a_delay_is_told(
    start: Callable[..., Partner],
) -> None:
    partner = start(latency_s=0.5)

    usual = partner.openai()
    told = partner.openai(sim={"delay_s": 0})
    refused = partner.openai(sim={"status": 500})

    assert usual.elapsed.total_seconds() >= 0.5
    assert told.elapsed.total_seconds() < 0.5
    assert refused.elapsed.total_seconds() < 0.5


def test_delayed_call_ends_when_its_client_goes_away(partner: Partner) -> None:
    with pytest.raises(httpx.ReadTimeout):
        partner.http.post(
            f"{partner.sim.url}/chat/completions",
            json={
                "model": "m",
                "messages": [{"role": "user", "content": "x"}],
                "sim": {"delay_s": 60},
            },
            headers=OPENAI_HEADERS,
            timeout=0.1,
        )

    wait_until(lambda: partner.calls()["in_flight"] == 0)
    assert partner.calls()["charged"] == 1


def test_drip_fault_sends_the_body_byte_by_byte(partner: Partner) -> None:
    request = raw_request(partner.sim, drip_s=0.02, body="abcdefgh")

    with raw_connection(partner.sim.port) as connection:
        started_s = time.monotonic()
        connection.sendall(request)
        head = read_until(connection, b"Content-Length: 8\r\n\r\n")
        read_until(connection, b"abcdefgh")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert time.monotonic() - started_s >= 8 * 0.02


def test_drip_headers_fault_drips_the_head_too(partner: Partner) -> None:
    request = raw_request(partner.sim, drip_s=0.001, drip_headers=True, body="ab")

    with raw_connection(partner.sim.port) as connection:
        started_s = time.monotonic()
        connection.sendall(request)
        whole = read_until(connection, b"\r\n\r\nab")

    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert time.monotonic() - started_s >= (len(whole) - 1) * 0.001


def test_dripped_call_ends_when_its_client_goes_away(partner: Partner) -> None:
    with raw_connection(partner.sim.port) as connection:
        connection.sendall(raw_request(partner.sim, drip_s=30))
        connection.recv(65_536)

    wait_until(lambda: partner.calls()["in_flight"] == 0)


@pytest.mark.parametrize(("drop", "charged"), [("before", 0), ("after", 1)])
def test_drop_fault_resets_the_connection(partner: Partner, drop: str, charged: int) -> None:
    with raw_connection(partner.sim.port) as connection:
        connection.sendall(raw_request(partner.sim, drop=drop))
        with pytest.raises(ConnectionResetError):
            connection.recv(1)

    counts = partner.calls()
    assert (counts["calls"], counts["charged"], counts["in_flight"]) == (1, charged, 0)


def test_hang_fault_never_answers(partner: Partner) -> None:
    with raw_connection(partner.sim.port) as connection:
        connection.sendall(raw_request(partner.sim, hang=True))
        wait_until(lambda: partner.calls()["in_flight"] == 1)
        connection.settimeout(0.15)
        with pytest.raises(TimeoutError):
            connection.recv(1)

    wait_until(lambda: partner.calls()["in_flight"] == 0)
    assert partner.calls()["charged"] == 1


def test_times_fault_applies_to_the_first_calls_of_a_prompt(partner: Partner) -> None:
    fault = {"status": 500, "times": 2}

    seen = [partner.openai("a", sim=fault).status_code for _ in range(4)]
    other = partner.openai("b", sim=fault).status_code

    assert seen == [500, 500, 200, 200]
    assert other == 500


def test_typed_directive_tells_a_fault(partner: Partner) -> None:
    prompt = 'Say [[sim {"status": 503, "times": 1, "error_code": "]]}"}]] hi'

    first, second = partner.openai(prompt), partner.openai(prompt)

    assert first.status_code == 503
    assert first.json()["error"]["code"] == "]]}"
    assert text_of(second).startswith("You said: Say  hi [")
    assert partner.calls()["by_prompt"][prompt] == {"calls": 2, "charged": 1}


def test_typed_directive_that_is_not_json_gets_400(partner: Partner) -> None:
    response = partner.openai("[[sim {oops}]]")

    assert response.status_code == 400
    assert "not JSON" in response.json()["error"]["message"]


def test_body_directive_wins_over_the_typed_one(partner: Partner) -> None:
    response = partner.openai('[[sim {"status": 503}]]', sim={"status": 418})

    assert response.status_code == 418


def test_unknown_fault_member_is_named_in_the_vendors_form(partner: Partner) -> None:
    openai = partner.openai(sim={"dely_s": 1})
    anthropic = partner.anthropic('[[sim {"dely_s": 1}]]')

    assert (openai.status_code, anthropic.status_code) == (400, 400)
    assert "'dely_s'" in openai.json()["error"]["message"]
    assert "'dely_s'" in anthropic.json()["error"]["message"]
    assert anthropic.json()["type"] == "error"
    assert partner.calls()["charged"] == 0


@pytest.mark.parametrize(
    "fault",
    [
        {"delay_s": -1},
        {"delay_s": "1"},
        {"delay_s": True},
        {"status": 199},
        {"status": 200.0},
        {"hang": 1},
        {"finish": "done"},
        {"drop": "during"},
        {"text": 5},
        {"retry_after": "1\r\nX-Evil: 1"},
        {"retry_after": "é"},
        "slow",
        None,
    ],
)
def test_fault_with_a_bad_value_gets_400(partner: Partner, fault: Any) -> None:
    assert partner.openai(sim=fault).status_code == 400
    assert partner.stand(fault).status_code == 400


# Standing faults


def test_standing_fault_applies_to_so_many_calls(partner: Partner) -> None:
    added = partner.stand({"status": 500}, times=2)

    assert added.status_code == 200
    assert [partner.openai().status_code for _ in range(3)] == [500, 500, 200]


def test_standing_fault_ends_with_its_time(start: Callable[..., Partner], clock: Clock) -> None:
    partner = start(clock=clock)
    partner.stand({"status": 529}, for_s=30)

    clock.now_s += 29.5
    during = partner.anthropic().status_code
    clock.now_s += 0.5
    after = partner.anthropic().status_code

    assert (during, after) == (529, 200)


def test_standing_fault_applies_to_prompts_that_match(partner: Partner) -> None:
    partner.stand({"status": 500}, match="poison", times=5)

    assert partner.openai("fine").status_code == 200
    assert partner.openai("some poison here").status_code == 500


def test_standing_faults_are_cleared(partner: Partner) -> None:
    partner.stand({"status": 500})
    before = partner.openai().status_code

    cleared = partner.http.delete(f"{partner.sim.control_url}/faults")

    assert cleared.status_code == 200
    assert (before, partner.openai().status_code) == (500, 200)


def test_standing_fault_yields_to_the_one_told(partner: Partner) -> None:
    partner.stand({"status": 500}, times=1)

    assert partner.openai(sim={"status": 418}).status_code == 418
    assert partner.openai().status_code == 500
    assert partner.openai().status_code == 200


@pytest.mark.parametrize(
    ("request_body", "named"),
    [
        ({"fault": {"dely_s": 1}}, "dely_s"),
        ({"fault": {}, "tmes": 1}, "tmes"),
        ({"fault": {}, "times": "1"}, "times"),
        ({"fault": {}, "for_s": -1}, "for_s"),
        ({}, "object"),
        ([], "object"),
    ],
)
def test_standing_fault_with_a_bad_member_gets_400(
    partner: Partner, request_body: object, named: str
) -> None:
    response = partner.http.post(f"{partner.sim.control_url}/faults", json=request_body)

    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


# Idempotency


def test_idempotency_key_replays_the_answer_without_a_charge(partner: Partner) -> None:
    first, second, other = partner.keyed("k1"), partner.keyed("k1"), partner.keyed("k2")

    counts = partner.calls()
    assert first.content == second.content
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.json()["id"] != other.json()["id"]
    assert (counts["calls"], counts["charged"], counts["replayed"]) == (3, 2, 1)
    assert counts["by_prompt"]["hello"] == {"calls": 3, "charged": 2}


def test_idempotency_key_of_a_refused_call_is_charged_later(partner: Partner) -> None:
    fault = {"status": 500, "times": 1}

    refused, paid = partner.keyed("k", sim=fault), partner.keyed("k", sim=fault)

    assert (refused.status_code, paid.status_code) == (500, 200)
    assert (partner.calls()["charged"], partner.calls()["replayed"]) == (1, 0)


def test_idempotency_key_gets_the_answer_that_was_dropped(partner: Partner) -> None:
    with pytest.raises(httpx.ReadError):
        partner.keyed("k", sim={"drop": "after"})

    retried = partner.keyed("k", sim={"drop": "after"})

    assert retried.status_code == 200
    assert (partner.calls()["charged"], partner.calls()["replayed"]) == (1, 1)


def test_idempotency_key_is_dropped_as_often_as_told(partner: Partner) -> None:
    fault = {"drop": "after", "times": 2}
    for _ in range(2):
        with pytest.raises(httpx.ReadError):
            partner.keyed("k", sim=fault)

    assert partner.keyed("k", sim=fault).status_code == 200
    assert (partner.calls()["calls"], partner.calls()["charged"]) == (3, 1)


def test_idempotency_key_gets_a_whole_answer_after_a_malformed_one(partner: Partner) -> None:
    fault = {"malformed": True, "times": 1}

    partner.keyed("k", sim=fault)

    assert text_of(partner.keyed("k", sim=fault)).startswith("You said: hello")
    assert partner.calls()["charged"] == 1


def test_idempotency_key_is_charged_once_by_calls_at_once(partner: Partner) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: partner.keyed("k", sim={"delay_s": 0.05}), range(8)))

    assert len({answer.content for answer in answers}) == 1
    assert (partner.calls()["charged"], partner.calls()["replayed"]) == (1, 7)


# Counts


def test_counts_are_kept_by_prompt(partner: Partner) -> None:
    partner.openai("a")
    partner.openai("a", sim={"status": 500})
    partner.anthropic("b")
    partner.openai("c" * 300)

    counts = partner.calls()
    assert (counts["calls"], counts["charged"]) == (4, 3)
    assert counts["by_prompt"] == {
        "a": {"calls": 2, "charged": 1},
        "b": {"calls": 1, "charged": 1},
        "c" * 200: {"calls": 1, "charged": 1},
    }


def test_counts_show_header_names_but_no_credentials(partner: Partner) -> None:
    partner.keyed("k-1")

    response = partner.http.get(f"{partner.sim.control_url}/calls")

    headers = response.json()["headers"]
    assert headers["idempotency_key"] == "k-1"
    assert "authorization" in {name.lower() for name in headers["names"]}
    assert "test-credential" not in response.text


def test_counts_show_calls_in_flight(partner: Partner) -> None:
    with ThreadPoolExecutor(5) as pool:
        pending = [pool.submit(partner.openai, sim={"delay_s": 0.3}) for _ in range(5)]
        wait_until(lambda: partner.calls()["in_flight"] == 5)
        for call in pending:
            call.result()

    assert (partner.calls()["in_flight"], partner.calls()["max_in_flight"]) == (0, 5)


def test_counts_see_one_call_in_flight_of_a_client_that_takes_turns(partner: Partner) -> None:
    for _ in range(50):
        partner.openai()

    assert partner.calls()["max_in_flight"] == 1


def test_counts_are_reset(partner: Partner) -> None:
    fault = {"status": 500, "times": 1}
    partner.keyed("k")
    partner.openai("a", sim=fault)

    partner.http.delete(f"{partner.sim.control_url}/calls")

    counts = partner.calls()
    assert (counts["calls"], counts["charged"], counts["by_prompt"]) == (0, 0, {})
    assert partner.openai("a", sim=fault).status_code == 500
    partner.keyed("k")
    assert (partner.calls()["charged"], partner.calls()["replayed"]) == (0, 1)


# The rate limit


def test_rate_limit_refuses_until_the_bucket_fills(
    start: Callable[..., Partner], clock: Clock
) -> None:
    partner = start(requests_per_minute=6, burst=2, clock=clock)

    at_once = [partner.openai().status_code for _ in range(3)]
    refused = partner.anthropic()
    clock.now_s += 10
    later = [partner.openai().status_code for _ in range(2)]

    counts = partner.calls()
    assert at_once == [200, 200, 429]
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "10"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert later == [200, 429]
    assert (counts["calls"], counts["charged"], counts["rejected"]) == (6, 3, 3)


def test_rate_limit_asks_for_a_whole_second_at_least(
    start: Callable[..., Partner], clock: Clock
) -> None:
    partner = start(requests_per_minute=6000, burst=1, clock=clock)

    partner.openai()
    refused = partner.openai()

    assert refused.headers["retry-after"] == "1"


def test_rate_limit_does_not_count_faults_as_rejected(partner: Partner) -> None:
    partner.openai(sim={"status": 429})

    assert partner.calls()["rejected"] == 0


def test_token_bucket_gives_a_token_after_the_wait_it_named(clock: Clock) -> None:
    bucket = TokenBucket(7, 1, clock)
    bucket.take()

    for _ in range(100):
        clock.now_s += bucket.take()

        assert bucket.take() == 0.0


def test_token_bucket_without_a_rate_never_waits(clock: Clock) -> None:
    bucket = TokenBucket(0, 1, clock)

    assert {bucket.take() for _ in range(100)} == {0.0}


# HTTP


def test_connection_is_kept_for_the_next_call(partner: Partner) -> None:
    with raw_connection(partner.sim.port) as connection:
        for _ in range(3):
            connection.sendall(raw_request(partner.sim, body="ok"))
            received = read_until(connection, b"\r\n\r\nok")

    assert b"Connection: keep-alive" in received


def test_connection_closes_when_the_client_asks(partner: Partner) -> None:
    response = partner.openai(headers={"Connection": "close"})

    assert response.status_code == 200
    assert response.headers["connection"] == "close"


def test_chunked_body_is_read(partner: Partner) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "in chunks"}]}'
    url = f"{partner.sim.url}/chat/completions"

    responses = [
        partner.http.post(url, content=iter([body[:20], body[20:]]), headers=OPENAI_HEADERS)
        for _ in range(2)
    ]

    assert [response.status_code for response in responses] == [200, 200]
    assert partner.calls()["by_prompt"] == {"in chunks": {"calls": 2, "charged": 2}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: ten", b"400"),
        (b"Content-Length: -1", b"400"),
        (b"Content-Length: 99999999999", b"413"),
        (b"Transfer-Encoding: gzip", b"400"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz", b"400"),
    ],
)
def test_misframed_body_is_refused_and_the_connection_closed(
    partner: Partner, headers: bytes, status: bytes
) -> None:
    with raw_connection(partner.sim.port) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n")
        received = b""
        while piece := connection.recv(65_536):
            received += piece

    assert received.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in received


def test_status_without_a_body_is_framed_right(partner: Partner) -> None:
    response = partner.openai(sim={"status": 204})

    assert response.status_code == 204
    assert "content-length" not in response.headers
    assert partner.openai().status_code == 200


def test_unknown_url_gets_404(partner: Partner) -> None:
    root = f"http://127.0.0.1:{partner.sim.port}"

    assert partner.http.get(f"{root}/v1/chat/completions").status_code == 404
    assert partner.http.post(f"{root}/v1/nothing", json={}).status_code == 404
    assert partner.http.put(f"{root}/_control/calls", json={}).status_code == 404
    assert partner.calls()["calls"] == 0


def test_health_answers_200(partner: Partner) -> None:
    assert partner.http.get(f"{partner.sim.control_url}/health").status_code == 200


# Start and stop


def test_simulator_stops_with_connections_that_wait() -> None:
    threads_before = threading.active_count()
    with Simulator() as sim, raw_connection(sim.port) as hanging, raw_connection(sim.port):
        hanging.sendall(raw_request(sim, hang=True))
        wait_until(lambda: sim.ledger.snapshot()["in_flight"] == 1)
        started_s = time.monotonic()

        sim.__exit__()

        assert time.monotonic() - started_s < 1
        assert hanging.recv(1) == b""

    wait_until(lambda: threading.active_count() <= threads_before)


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the simulator as a process of its own; end it in any case."""
    folder = str(Path(simulator.__file__).parents[1])
    command = [sys.executable, "-m", "sluiceway_local.simulator", *arguments]
    environment = {**os.environ, "PYTHONPATH": folder}
    with subprocess.Popen(  # noqa: S603 - our own module
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def port_of(started: subprocess.Popen[str]) -> int:
    """Read the listening line and return its port."""
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line.startswith("listening on http://127.0.0.1:")
    return int(line.rpartition(":")[2])


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_until_a_signal_and_exits_quietly(
    http: httpx.Client, ending: signal.Signals
) -> None:
    with process("--port", "0", "--latency-s", "0", "--requests-per-minute", "60") as started:
        port = port_of(started)
        sim = Simulator(port=port)
        with raw_connection(port) as hanging:
            hanging.sendall(raw_request(sim, hang=True))
            calls_url = f"http://127.0.0.1:{port}/_control/calls"
            wait_until(lambda: http.get(calls_url).json()["in_flight"] == 1)

            started.send_signal(ending)
            rest, errors = started.communicate(timeout=1)

    assert started.returncode == 0
    assert (rest, errors) == ("", "")


def test_process_says_when_the_port_is_taken() -> None:
    with Simulator() as sim, process("--port", str(sim.port)) as started:
        output, errors = started.communicate(timeout=DEADLINE_S)

    assert started.returncode == 1
    assert output == ""
    assert errors.startswith(f"cannot listen on port {sim.port}: ")


def test_times_tell_when_each_call_came_in_and_its_status(partner: Partner) -> None:
    before_s = time.time()
    partner.openai()
    partner.openai(sim={"status": 503})

    calls = partner.http.get(f"{partner.sim.control_url}/times").json()["calls"]

    assert [status for _, status in calls] == [200, 503]
    assert before_s <= calls[0][0] <= calls[1][0] <= time.time()
    partner.http.delete(f"{partner.sim.control_url}/calls")
    assert partner.http.get(f"{partner.sim.control_url}/times").json() == {"calls": []}


def test_spans_tell_how_long_each_call_was_here_and_its_key(partner: Partner) -> None:
    before_s = time.time()
    partner.keyed("job-1", sim={"delay_s": 0.05})
    partner.openai(sim={"status": 503})

    calls = partner.http.get(f"{partner.sim.control_url}/spans").json()["calls"]

    assert [(call["idempotency_key"], call["status"]) for call in calls] == [
        ("job-1", 200),
        (None, 503),
    ]
    assert all(before_s <= call["arrived_at_s"] <= call["left_at_s"] for call in calls)
    assert calls[0]["left_at_s"] - calls[0]["arrived_at_s"] >= 0.05
    assert calls[1]["left_at_s"] <= time.time()
