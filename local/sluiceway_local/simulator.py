"""Stand in for an AI vendor in local development and tests, with faults on demand.

It speaks OpenAI's `POST /v1/chat/completions` and Anthropic's `POST /v1/messages` on loopback,
counts the calls, and misbehaves when told to (see `Fault`): in one request by the body member
`"sim"`, or by `[[sim {...}]]` typed into the prompt; for a while by `POST /_control/faults`.

What tests can rely on:

- The *prompt* of a call is the text of its last user message.
- A call is *charged* when it is accepted, before any delay: all but those refused (a status
  outside 2xx), over the rate limit, or dropped `"before"`. `hang` and `malformed` are charged.
- A call with the Idempotency-Key of a charged one is *replayed*: same answer, no charge. Faults
  apply to it too, but a `drop: "after"` told in the request without `times` spares it.
- Texts depend on the prompt and the seed alone. A token is 4 characters, rounded up;
  `max_tokens` never shortens a text.
- The rate limit covers every call with credentials.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self, get_type_hints
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from email.message import Message

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_PROMPT_CHARS: Final = 200  # of a prompt in the counts and in answers
_MAX_ANSWERS: Final = 10_000  # remembered for replay
_MAX_TIMES: Final = 100_000  # of calls, remembered
_POLL_S: Final = 0.02
_STOP_WITHIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """How a call shall go wrong; the default is a healthy answer."""

    delay_s: int | float | None = None  # wait before the answer; unset: the default latency
    drip_s: int | float = 0  # seconds between two bytes of the answer's body
    drip_headers: bool = False  # drip the status line and headers as well
    status: int = 200
    retry_after: str | int | float | None = None  # sent verbatim as Retry-After
    retry_after_ms: str | int | float | None = None  # sent verbatim as retry-after-ms
    error_code: str | None = None
    error_type: str | None = None
    body: str | None = None  # sent verbatim in place of the vendor's JSON
    finish: str = "stop"  # see _ALLOWED; each vendor has its own spelling
    empty: bool = False  # an answer of no text
    no_choices: bool = False  # choices [] or content []
    malformed: bool = False  # JSON that breaks off in the middle
    drop: str | None = None  # reset the connection "before" charging or "after" it
    hang: bool = False  # never answer, until the client goes away
    size_bytes: int | None = None  # about the length of the text
    text: str | None = None  # exactly the text
    times: int | None = None  # apply to the first calls with the same prompt only


_HEALTHY: Final = Fault()
_FAULT_KINDS: Final = get_type_hints(Fault)
_LIMIT_KINDS: Final = {"fault": dict, "times": int, "for_s": int | float, "match": str}
_ALLOWED: Final[dict[str, Sequence[object]]] = {
    "status": range(200, 600),
    "finish": ("stop", "length", "content_filter", "tool_calls"),
    "drop": (None, "before", "after"),
}


@dataclass(eq=False)
class RefusedError(Exception):
    """A call that gets an error; `kind` is the vendor's error type, None for the usual one."""

    status: int
    message: str
    param: str | None = None
    kind: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    fault: Fault = _HEALTHY


def _fits(member: str, content: object, kind: Any) -> bool:
    if kind is bool or isinstance(content, bool):  # a bool is an int, too
        return kind is bool and isinstance(content, bool)
    if not isinstance(content, kind) or content not in _ALLOWED.get(member, (content,)):
        return False
    if member.startswith("retry_after"):  # a line break would start a header of its own
        return re.fullmatch(r"[ -~]*", str(content)) is not None
    return not isinstance(content, int | float) or 0 <= content <= MAX_BODY_BYTES


def _check(value: object, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(400, "a fault must be an object", "sim")
    for member, content in value.items():
        if member not in kinds:
            raise RefusedError(400, f"unknown fault member {member!r}", "sim")
        if not _fits(member, content, kinds[member]):
            raise RefusedError(400, f"bad value of fault member {member!r}", "sim")
    return value


def split_directive(prompt: str) -> tuple[str, Fault | None]:
    """Return the prompt without its `[[sim {...}]]`, and the fault told by that, if any."""
    start = re.search(r"\[\[sim\s*(?=\{)", prompt)
    if start is None:
        return prompt, None
    try:
        value, end_index = json.JSONDecoder().raw_decode(prompt, start.end())
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"[[sim ...]] is not JSON: {error}", "sim") from error
    rest = prompt[end_index:].lstrip().removeprefix("]]")
    return (prompt[: start.start()] + rest).strip(), Fault(**_check(value, _FAULT_KINDS))


@dataclass(slots=True)
class _Standing:
    fault: Fault
    match: str
    times_left: float
    ends_at_s: float


class _FaultBoard:
    """The standing faults, and how often each fault with `times` met each prompt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._standing: list[_Standing] = []
        self._met: defaultdict[tuple[Fault, str], int] = defaultdict(int)

    def add(self, request: object) -> None:
        limits = _check(request, _LIMIT_KINDS)
        fault = Fault(**_check(limits.get("fault"), _FAULT_KINDS))
        ends_at_s = self._clock() + limits.get("for_s", math.inf)
        times = limits.get("times", math.inf)
        with self._lock:
            self._standing.append(_Standing(fault, limits.get("match", ""), times, ends_at_s))

    def clear(self) -> None:
        with self._lock:
            self._standing.clear()

    def forget_prompts(self) -> None:
        with self._lock:
            self._met.clear()

    def choose(self, prompt: str, told: Fault | None) -> Fault:
        """Return the fault told in the request, else the oldest standing one that fits."""
        with self._lock:
            if told is not None and self._admits(told, prompt):
                return told
            for standing in self._standing:
                alive = standing.times_left > 0 and self._clock() < standing.ends_at_s
                if alive and standing.match in prompt and self._admits(standing.fault, prompt):
                    standing.times_left -= 1
                    return standing.fault
        return _HEALTHY

    def _admits(self, fault: Fault, prompt: str) -> bool:
        if fault.times is None:
            return True
        self._met[fault, _digest(prompt)] += 1
        return self._met[fault, _digest(prompt)] <= fault.times


class TokenBucket:
    """A rate limit of `per_minute` calls (0: none); `clock` gives seconds."""

    def __init__(self, per_minute: float, burst: int, clock: Callable[[], float]) -> None:
        """Start full, with `burst` tokens."""
        self._rate_per_s, self._burst, self._clock = per_minute / 60, max(1, burst), clock
        self._lock = threading.Lock()
        self._tokens, self._filled_at_s = float(self._burst), clock()

    def take(self) -> float:
        """Take a token and return 0.0, or return the seconds until there will be one."""
        if not self._rate_per_s:
            return 0.0
        with self._lock:
            now_s = self._clock()
            gained = (now_s - self._filled_at_s) * self._rate_per_s
            self._tokens, self._filled_at_s = min(self._burst, self._tokens + gained), now_s
            if self._tokens < 1 - 1e-9:  # rounding must not lengthen a wait
                return (1 - self._tokens) / self._rate_per_s
            self._tokens -= 1
            return 0.0


@dataclass(slots=True)
class _Answered:
    """A call and when it was here, in epoch seconds."""

    idempotency_key: str | None
    arrived_at_s: float
    status: int
    left_at_s: float | None = None
    """When its answer was sent, or its connection ended."""


class _Ledger:
    """What came in and what was paid, behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ticket = 0
        self._open: set[int] = set()
        self._answers: dict[tuple[str, str], bytes] = {}
        self._headers: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Set the counts to zero; paid answers stay known, as a vendor forgets none."""
        with self._lock:
            self._counts = dict.fromkeys(("calls", "charged", "replayed", "rejected"), 0)
            self._by_prompt: dict[str, dict[str, int]] = {}
            self._answered: dict[int, _Answered] = {}
            self._max_in_flight = len(self._open)

    def _count(self, name: str, prompt: str | None) -> None:
        self._counts[name] += 1
        if prompt is not None:
            key = prompt[:MAX_PROMPT_CHARS]
            self._by_prompt.setdefault(key, {"calls": 0, "charged": 0})[name] += 1

    def enter(self, prompt: str | None, headers: Message) -> int:
        """Count a call that arrived, and return its ticket, which is unique."""
        with self._lock:
            self._last_ticket += 1
            self._open.add(self._last_ticket)
            self._max_in_flight = max(self._max_in_flight, len(self._open))
            self._count("calls", prompt)
            key = headers.get("Idempotency-Key")
            self._headers = {"names": headers.keys(), "idempotency_key": key}
            return self._last_ticket

    def leave(self, ticket: int) -> None:
        """Take the call out of those in flight; safe to repeat."""
        with self._lock:
            self._open.discard(ticket)
            if (call := self._answered.get(ticket)) and call.left_at_s is None:
                call.left_at_s = time.time()

    def reject(self) -> None:
        with self._lock:
            self._count("rejected", None)

    def answered(self, ticket: int, call: _Answered) -> None:
        """Note when a call came in and how it is answered."""
        with self._lock:
            if len(self._answered) < _MAX_TIMES:
                self._answered[ticket] = call

    def times(self) -> list[tuple[float, int]]:
        """Epoch seconds and status of each call, in the order of their arrival."""
        return [(call.arrived_at_s, call.status) for call in self.answers()]

    def answers(self) -> list[_Answered]:
        """Each call, in the order of their arrival."""
        with self._lock:
            copies = [replace(call) for call in self._answered.values()]
        return sorted(copies, key=lambda call: (call.arrived_at_s, call.status))

    def charge(self, call: Call, answer: bytes) -> tuple[bytes, bool]:
        """Charge for the answer; or return the one charged under the same key, and True."""
        key = (call.path, call.headers.get("Idempotency-Key") or call.serial)
        with self._lock:  # for both steps, so that of two equal calls at once one is charged
            if key in self._answers:
                self._count("replayed", None)
                return self._answers[key], True
            self._count("charged", call.prompt)
            self._answers[key] = answer
            if len(self._answers) > _MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return answer, False

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            flights = {"in_flight": len(self._open), "max_in_flight": self._max_in_flight}
            by_prompt = {prompt: dict(counts) for prompt, counts in self._by_prompt.items()}
            return {**self._counts, **flights, "by_prompt": by_prompt, "headers": self._headers}


def _digest(*parts: object) -> str:
    joined = "\x1f".join(str(part) for part in parts)
    return hashlib.sha256(joined.encode(errors="surrogatepass")).hexdigest()


def _text_of(content: object) -> str:
    """Return the text of a message's content: a string, or a list of parts with `text`."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _prompt_of(body: Mapping[str, Any]) -> str | None:
    messages = body.get("messages")
    found = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    users = [message for message in found if message.get("role") == "user"]
    return _text_of((users or found)[-1].get("content")) if found else None


def _answer_text(prompt: str, fault: Fault, seed: int) -> str:
    if fault.empty or fault.text is not None:
        return "" if fault.empty else fault.text or ""
    text = (
        f"You said: {split_directive(prompt)[0][:MAX_PROMPT_CHARS]} [{_digest(seed, prompt)[:8]}]"
    )
    if fault.size_bytes is not None:  # in whole characters, so perhaps 3 bytes short
        filler = f"{text} ".encode(errors="replace") * (fault.size_bytes // len(text) + 1)
        return filler[: fault.size_bytes].decode(errors="ignore")
    return text[: len(text) // 2] if fault.finish == "length" else text


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it came in; `body` is {} when it was no JSON object."""

    path: str
    headers: Message
    body: dict[str, Any]
    prompt: str
    serial: str  # hexadecimal digits that make the ids unique

    def usage(self, text: str) -> tuple[int, int]:
        """Return the tokens of what was sent and of the text answered."""
        sent = [self.body.get("system"), *(m.get("content") for m in self.body["messages"])]
        sent_chars = sum(len(_text_of(content)) for content in sent)
        return math.ceil(sent_chars / 4), math.ceil(len(text) / 4)

    def require(self, member: str, ok: object) -> None:
        """Refuse the call for this member of its body unless `ok` is true."""
        if not ok:
            raise RefusedError(400, f"{member}: missing, or not valid here", member)

    def require_chat(self, *roles: str) -> None:
        """Refuse the call unless it has a model, and messages of these roles."""
        model, messages = self.body.get("model"), self.body.get("messages")
        self.require("model", isinstance(model, str) and model)
        self.require("messages", isinstance(messages, list) and messages)
        for message in self.body["messages"]:
            self.require("messages", isinstance(message, dict) and message.get("role") in roles)
        self.require("stream", not self.body.get("stream"))  # the simulator does not stream


class _OpenAI:
    request_id_header = "x-request-id"
    usual: Final = {
        401: ("invalid_request_error", "invalid_api_key"),
        429: ("requests", "rate_limit_exceeded"),
    }

    def authorize(self, call: Call) -> None:
        scheme, _, token = call.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(401, "You didn't provide an API key.")

    def validate(self, call: Call) -> None:
        call.require_chat("developer", "system", "user", "assistant", "tool", "function")

    def answer(self, call: Call, fault: Fault, text: str) -> dict[str, Any]:
        tokens_in, tokens_out = call.usage(text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if fault.finish == "tool_calls":
            function = {"name": "simulated_tool", "arguments": "{}"}
            tool_call = {"id": f"call_{call.serial}", "type": "function", "function": function}
            message |= {"content": None, "tool_calls": [tool_call]}
        choice = {"index": 0, "message": message, "finish_reason": fault.finish}
        return {
            "id": f"chatcmpl-{call.serial}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": call.body["model"],
            "choices": [] if fault.no_choices else [choice],
            "usage": {
                "prompt_tokens": tokens_in,
                "completion_tokens": tokens_out,
                "total_tokens": tokens_in + tokens_out,
            },
        }

    def error(self, error: RefusedError, _request_id: str) -> dict[str, Any]:
        other = "server_error" if error.status >= 500 else "invalid_request_error"  # noqa: PLR2004
        kind, code = self.usual.get(error.status, (other, None))
        if error.code == "insufficient_quota":  # the one code that is its own type
            kind = error.code
        shown = {"message": error.message, "type": error.kind or kind, "param": error.param}
        return {"error": shown | {"code": error.code or code}}


class _Anthropic:
    request_id_header = "request-id"
    usual: Final = {
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    stop_reasons: Final = {
        "stop": "end_turn",
        "length": "max_tokens",
        "content_filter": "refusal",
        "tool_calls": "tool_use",
    }

    def authorize(self, call: Call) -> None:
        if not call.headers.get("x-api-key"):
            raise RefusedError(401, "x-api-key header is required")
        if not call.headers.get("anthropic-version"):
            raise RefusedError(400, "anthropic-version: header is required")

    def validate(self, call: Call) -> None:
        call.require_chat("user", "assistant")  # system text is not a message here
        max_tokens = call.body.get("max_tokens")
        call.require("max_tokens", type(max_tokens) is int and max_tokens > 0)

    def answer(self, call: Call, fault: Fault, text: str) -> dict[str, Any]:
        tokens_in, tokens_out = call.usage(text)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if fault.finish == "tool_calls":
            tool = {"id": f"toolu_{call.serial}", "name": "simulated_tool", "input": {}}
            content.append({"type": "tool_use", **tool})
        return {
            "id": f"msg_{call.serial}",
            "type": "message",
            "role": "assistant",
            "model": call.body["model"],
            "content": [] if fault.no_choices else content,
            "stop_reason": self.stop_reasons[fault.finish],
            "stop_sequence": None,
            "usage": {"input_tokens": tokens_in, "output_tokens": tokens_out},
        }

    def error(self, error: RefusedError, request_id: str) -> dict[str, Any]:
        other = "api_error" if error.status >= 500 else "invalid_request_error"  # noqa: PLR2004
        kind = error.kind or self.usual.get(error.status, other)
        shown: dict[str, Any] = {"type": kind, "message": error.message}
        if error.code:
            shown["details"] = {"error_code": error.code}
        return {"type": "error", "error": shown, "request_id": request_id}


_WIRES: Final[dict[str, _OpenAI | _Anthropic]] = {
    "/v1/chat/completions": _OpenAI(),
    "/v1/messages": _Anthropic(),
}


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    headers: tuple[tuple[str, object], ...] = ()


class _Handler(BaseHTTPRequestHandler):
    """One connection: read requests, let the simulator answer, deliver with faults."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else dripped bytes travel together
    server: _Server

    def log_message(self, *_: object) -> None:
        """Stay quiet: the listening line is all that this program says."""

    def _dispatch(self) -> None:
        path = urlsplit(self.path).path
        try:
            raw = self._read_body()
            if self.command == "POST" and path in _WIRES:
                self._serve_call(path, _parse_object(raw))
                return
            value = self.server.simulator.control(f"{self.command} {path}", _parse_object(raw))
            reply = _Reply(200, json.dumps(value).encode())
        except RefusedError as error:
            reply = _Reply(error.status, json.dumps(_OpenAI().error(error, "")).encode())
        self._send(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _dispatch  # noqa: N815 - looked up by name

    def _serve_call(self, path: str, body: dict[str, Any]) -> None:
        simulator, prompt = self.server.simulator, _prompt_of(body)
        ticket, arrived_at_s = simulator.ledger.enter(prompt, self.headers), time.time()
        try:
            serial = _digest(simulator.seed, ticket)[:24]
            reply, fault = simulator.answer(Call(path, self.headers, body, prompt or "", serial))
            key = self.headers.get("Idempotency-Key")
            simulator.ledger.answered(ticket, _Answered(key, arrived_at_s, reply.status))
            if not self._pause(math.inf if fault.hang else fault.delay_s or 0):
                self.close_connection = True
            elif fault.drop:
                simulator.ledger.leave(ticket)
                self._reset_connection()
            else:
                self._send(reply, fault, ticket)
        finally:
            simulator.ledger.leave(ticket)

    def _send(self, reply: _Reply, fault: Fault = _HEALTHY, ticket: int = 0) -> None:
        body = b"" if reply.status in {204, 304} else reply.body
        head = self._head(reply)
        data, at_once = head + body, len(head) * (not fault.drip_headers)
        ends = range(at_once, len(data)) if fault.drip_s else ()
        sent = 0
        for end in ends:
            self.wfile.write(data[sent:end])
            sent = end
            if end and not self._pause(fault.drip_s):
                self.close_connection = True
                return
        # Before the last byte: a client that has its answer may call again at once, and must not
        # be counted twice among those in flight.
        self.server.simulator.ledger.leave(ticket)
        self.wfile.write(data[sent:])

    def _head(self, reply: _Reply) -> bytes:
        kind = "text/html" if reply.body.lstrip().startswith(b"<") else "application/json"
        lines = [
            f"HTTP/1.1 {reply.status} {responses.get(reply.status, 'Unassigned')}",
            f"Date: {self.date_time_string()}",
            f"Content-Type: {kind}",
            *(f"{name}: {value}" for name, value in reply.headers),
            f"Connection: {'close' if self.close_connection else 'keep-alive'}",
        ]
        if reply.status not in {204, 304}:
            lines.append(f"Content-Length: {len(reply.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _pause(self, wait_s: float) -> bool:
        """Wait; return False early when the client goes away or the simulator stops."""
        deadline_s = time.monotonic() + wait_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self.server.stopping.wait(min(left_s, _POLL_S)) or self._client_is_gone():
                return False
        return True

    def _client_is_gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _reset_connection(self) -> None:
        # To linger for 0 s makes close() send RST. The descriptor is taken away from the socket
        # object, as socketserver would send FIN before it closes.
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" not in self.headers:
            return self._read_exactly(length if length.isdigit() else "", 10)
        if self.headers["Transfer-Encoding"].lower() != "chunked" or length != "0":
            raise self._misframed(400)
        body = b""
        while chunk := self._read_exactly(self._line().partition(";")[0], 16, len(body)):
            body += chunk
            self._line()
        while self._line():
            pass  # trailers
        return body

    def _line(self) -> str:
        return self.rfile.readline(65_537).decode("latin-1").strip()

    def _read_exactly(self, digits: str, base: int, already: int = 0) -> bytes:
        if not re.fullmatch("[0-9a-fA-F]{1,16}", digits.strip()):
            raise self._misframed(400)
        size = int(digits, base)
        if size + already > MAX_BODY_BYTES:
            raise self._misframed(413)
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionAbortedError
        return data

    def _misframed(self, status: int) -> RefusedError:
        self.close_connection = True  # nobody knows where the next request starts
        return RefusedError(status, "The body's length is not valid, or too large.")


class _Server(ThreadingHTTPServer):
    """A threading server that can end its connections, those that wait too."""

    request_queue_size = 128

    def __init__(self, port: int, simulator: Simulator) -> None:
        self.simulator = simulator
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks the host's name up and may wait for a resolver.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        target, arguments = self.process_request_thread, (request, client_address)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._lock:
            self._connections[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away is no news
            super().handle_error(request, client_address)

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads or writes
        deadline_s = time.monotonic() + _STOP_WITHIN_S
        for thread in connections.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))


@dataclass(kw_only=True)
class Simulator:
    """A vendor in this process, for `with Simulator() as sim:`; it stops within a second.

    While it runs, `url` is the base URL of both wire forms and `control_url` that of the control.
    `clock` gives seconds for the rate limit and for faults that end; delays take real time.
    """

    port: int = 0  # 0 takes a free one; once it listens, the one in use
    requests_per_minute: float = 0  # 0 means no limit
    burst: int = 10  # calls at once under the limit
    latency_s: float = 0.0  # wait before each paid answer
    seed: int = 0  # changes the digests in texts and ids
    clock: Callable[[], float] = time.monotonic

    def __enter__(self) -> Self:
        """Listen on 127.0.0.1 and serve in threads; OSError when the port is taken."""
        self.ledger, self.faults = _Ledger(), _FaultBoard(self.clock)
        self.bucket = TokenBucket(self.requests_per_minute, self.burst, self.clock)
        self._server = _Server(self.port, self)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.control_url = f"http://127.0.0.1:{self.port}/_control"
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, whatever the connections wait for."""
        self._server.stop()

    def control(self, request: str, body: dict[str, Any]) -> dict[str, Any]:
        """Obey a control request (`METHOD PATH`) and return the JSON to answer."""
        match request:
            case "GET /_control/calls":
                return self.ledger.snapshot()
            case "GET /_control/times":
                return {"calls": self.ledger.times()}
            case "GET /_control/spans":
                return {"calls": [asdict(call) for call in self.ledger.answers()]}
            case "DELETE /_control/calls":
                self.ledger.reset()
                self.faults.forget_prompts()
            case "POST /_control/faults":
                self.faults.add(body)
            case "DELETE /_control/faults":
                self.faults.clear()
            case "GET /_control/health":
                pass
            case _:
                raise RefusedError(404, f"Unknown request URL: {request}")
        return {"status": "ok"}

    def answer(self, call: Call) -> tuple[_Reply, Fault]:
        """Decide what to answer, and the fault to deliver it with."""
        wire, request_id = _WIRES[call.path], f"req_{call.serial}"
        retry_after: object = None
        try:
            body, fault = self._generate(call)
            status = fault.status
        except RefusedError as error:
            body = json.dumps(wire.error(error, request_id)).encode()
            status, fault, retry_after = error.status, error.fault, error.retry_after_s
        if fault.body is not None:
            body = fault.body.encode(errors="replace")
        elif fault.malformed:
            body = body[: len(body) // 2]
        headers = (
            (wire.request_id_header, request_id),
            ("Retry-After", retry_after if fault.retry_after is None else fault.retry_after),
            ("retry-after-ms", fault.retry_after_ms),
        )
        return _Reply(status, body, tuple(h for h in headers if h[1] is not None)), fault

    def _generate(self, call: Call) -> tuple[bytes, Fault]:
        """Return a charged or replayed answer, or raise RefusedError."""
        wire = _WIRES[call.path]
        wire.authorize(call)
        if wait_s := self.bucket.take():
            self.ledger.reject()
            wait_s = max(1, math.ceil(wait_s))
            raise RefusedError(429, "Rate limit reached.", retry_after_s=wait_s)
        wire.validate(call)
        _, told = split_directive(call.prompt)
        if "sim" in call.body:
            told = Fault(**_check(call.body["sim"], _FAULT_KINDS))
        fault = self.faults.choose(call.prompt, told)
        if not 200 <= fault.status <= 299 or fault.drop == "before":  # noqa: PLR2004
            message = f"The simulator was told to answer with status {fault.status}."
            kind, code = fault.error_type, fault.error_code
            raise RefusedError(fault.status, message, kind=kind, code=code, fault=fault)
        text = _answer_text(call.prompt, fault, self.seed)
        new_answer = json.dumps(wire.answer(call, fault, text)).encode()
        answer, is_replay = self.ledger.charge(call, new_answer)
        if is_replay and fault is told and fault.times is None:
            fault = replace(fault, drop=None)
        delay_s = self.latency_s if fault.delay_s is None else fault.delay_s
        return answer, replace(fault, delay_s=delay_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(description="Stand in for an AI vendor on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--requests-per-minute", type=float, default=0, help="0 means no limit")
    parser.add_argument("--burst", type=int, default=10, help="calls at once under the limit")
    parser.add_argument("--latency-s", type=float, default=0.5, help="seconds before an answer")
    parser.add_argument("--seed", type=int, default=0, help="changes digests in texts and ids")
    options = parser.parse_args(arguments)
    # Blocked before the threads start, then waited for: no signal handler can meet a held lock.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with Simulator(**vars(options)) as simulator:
            sys.stdout.write(f"listening on http://127.0.0.1:{simulator.port}\n")
            sys.stdout.flush()
            signal.sigwait(signals)
    except OSError as error:
        parser.exit(1, f"cannot listen on port {options.port}: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
