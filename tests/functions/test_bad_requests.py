"""What is wrong with a request, on every route: its code, in the route's form, and nothing written.

Each route is tried with a request that is good but for one thing. `CALLS` has them all: a route
that is missing there fails the first test.
"""

from __future__ import annotations

import base64
import json
import re
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.webhook import Attempt, DeliveryStatus
from sluiceway.routes.table import ROUTES, allowed

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.functions.stage import ABSENT, Answer, Stage, request
from tests.functions.test_api import METHODS, MIB, assert_problem
from tests.functions.test_openai import assert_error

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPES = ("submit", "read", "cancel", "bypass", "admin")
URL = "https://hooks.partner.example/sluiceway"


@dataclass(frozen=True)
class Call:
    """A good request of one route. Its path may name what the tests make: `<open_id>` …"""

    method: str
    path: str
    scopes: tuple[str, ...]
    _: KW_ONLY
    body: Any = ABSENT
    """Absent: the route looks at none."""
    parameters: tuple[tuple[str, str], ...] = ()
    keyed: bool = False
    """It takes an Idempotency-Key."""
    may_be_empty: bool = False
    """A body may be left out."""

    @property
    def rule(self) -> str:
        """The path as the route has it."""
        return re.sub(r"<(open|ended)_id>", "<job_id>", self.path)

    @property
    def takes_a_body(self) -> bool:
        return self.body is not ABSENT

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


A_JOB = {"model": "demo-chat", "input": "hello"}
A_CHAT = {"model": "demo-chat", "messages": [{"role": "user", "content": "hello"}]}

CALLS = [
    Call("POST", "/jobs", ("submit",), body=A_JOB, parameters=(("dry_run", "false"),), keyed=True),
    Call(
        "GET",
        "/jobs",
        ("read",),
        parameters=(
            ("status", "queued"),
            ("model", "demo-chat"),
            ("limit", "5"),
            ("after", "job_01KDVT7V00000000000000000A"),
        ),
    ),
    Call("GET", "/jobs/<open_id>", ("read",)),
    Call("POST", "/jobs/<open_id>/cancel", ("cancel",)),
    Call(
        "POST",
        "/batches",
        ("submit",),
        body={"jobs": [{"custom_id": "a", **A_JOB}]},
        keyed=True,
    ),
    Call("GET", "/batches/<batch_id>", ("read",)),
    Call("GET", "/usage", ("read",), parameters=(("from", "2026-01-01"), ("to", "2026-01-01"))),
    Call("GET", "/models", ("read",)),
    Call("GET", "/models/<name>", ("read",)),
    Call("POST", "/admin/cache/invalidate", ("admin",), body={"model": "demo-chat"}),
    Call("POST", "/chat/completions", ("submit", "read"), body=A_CHAT, keyed=True),
    Call("POST", "/responses", ("submit", "read"), body=A_JOB, keyed=True),
    Call("GET", "/responses/<ended_id>", ("read",)),
    Call("POST", "/responses/<open_id>/cancel", ("cancel",)),
    Call("POST", "/webhooks", ("submit",), body={"url": URL}, keyed=True),
    Call("GET", "/webhooks", ("read",)),
    Call("GET", "/webhooks/<webhook_id>", ("read",)),
    Call("DELETE", "/webhooks/<webhook_id>", ("submit",)),
    Call(
        "POST",
        "/webhooks/<webhook_id>/rotate",
        ("submit",),
        body={"overlap_s": 60},
        may_be_empty=True,
    ),
    Call("POST", "/webhooks/<webhook_id>/test", ("submit",)),
    Call(
        "GET",
        "/webhooks/<webhook_id>/deliveries",
        ("read",),
        parameters=(("limit", "5"), ("after", "dlv_0123456789ABCDEFGHJKMNPQRS")),
    ),
    Call("POST", "/webhooks/<webhook_id>/deliveries/<delivery_id>/redeliver", ("submit",)),
]

OPEN_TO_ALL = {"/health", "/openapi.json"}
"""They need no key, and look at nothing but method and path."""

RULES = {(method, path) for path, methods in ROUTES.items() for method in allowed(methods)}

WITH_BODY = [call for call in CALLS if call.takes_a_body]
WITHOUT_BODY = [call for call in CALLS if not call.takes_a_body]
KEYED = [call for call in CALLS if call.keyed]


def of(calls: list[Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", calls, ids=str)


class Desk:
    """A stage on which each of CALLS would succeed, and that knows what has changed since."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        limits = Tenant(requests_per_minute=1000, jobs_per_day=1000)
        stage.catalogue = stage.catalogue.model_copy(update={"tenants": {"acme": limits}})
        ended_id = stage.submit("hello").body["id"]
        stage.run_job(ended_id)
        batch = self._post("/batches", {"jobs": [{"custom_id": "a", **A_JOB, "input": "open"}]})
        webhook_id = self._post("/webhooks", {"url": URL})["id"]
        delivery = a_delivery(endpoint_id=webhook_id)
        attempt = Attempt(NOW_MS + 60_000, DeliveryStatus.PENDING, 500, "refused")
        stage.registrar.delivery_log.record(delivery, attempt)
        self.ids = {
            "open_id": batch["data"][0]["job"]["id"],
            "ended_id": ended_id,
            "batch_id": batch["id"],
            "name": "demo-chat",
            "webhook_id": webhook_id,
            "delivery_id": delivery.delivery_id,
        }
        self._before = self._picture()

    def _post(self, path: str, body: Any) -> Any:
        event = request("POST", path)
        event["body"] = json.dumps(body)
        return self.stage.answer(event).body

    def event(self, call: Call, *, method: str | None = None, **changes: Any) -> dict[str, Any]:
        """The good request, with these changes."""
        path = re.sub(r"<(\w+)>", lambda found: self.ids[found[1]], call.path)
        changes.setdefault("scopes", " ".join(call.scopes))
        event = request(method or call.method, path, **changes)
        event["body"] = json.dumps(call.body) if call.takes_a_body else None
        return event

    def ask(self, call: Call, *, raw: str | bytes | None = None, **changes: Any) -> Answer:
        """`raw`: the body as it is, in base64 when it is bytes."""
        event = self.event(call, **changes)
        if isinstance(raw, bytes):
            event |= {"body": base64.b64encode(raw).decode(), "isBase64Encoded": True}
        elif raw is not None:
            event["body"] = raw
        return self.stage.answer(event)

    def _picture(self) -> dict[str, Any]:
        """All that is stored, sent or asked."""
        world, stage = self.stage.world, self.stage
        told = {
            one.name: deepcopy(getattr(world, one.name))
            for one in fields(world)
            if one.name not in {"lock", "written_by"}
        }
        outside = {
            "sent": stage.sent,
            "webhooks": stage.webhooks.taken,
            "vendor": stage.vendor.total,
        }
        return told | deepcopy(outside)

    def changed(self) -> list[str]:
        """The parts of the world that are not as they were."""
        now = self._picture()
        return [name for name, part in now.items() if part != self._before[name]]


@pytest.fixture
def desk(stage: Stage) -> Desk:
    return Desk(stage)


def assert_refused(call: Call, answer: Answer, status: int, code: str) -> str:
    """The answer is this error in the form of the route; gives its text."""
    if call.path.startswith(("/chat/", "/responses")):
        return str(assert_error(answer, status, code)["message"])
    assert_problem(answer, status, code)
    return str(answer.body["detail"])


# ------------------------------------------------------------------ the suite itself


def test_every_route_is_tried() -> None:
    """A new route belongs into CALLS."""
    tried = {(call.method, call.rule) for call in CALLS}
    heads = {("HEAD", path) for method, path in tried if method == "GET"}
    open_to_all = {(method, path) for method, path in RULES if path in OPEN_TO_ALL}

    assert RULES - open_to_all == tried | heads
    assert {method for method, _ in open_to_all} == {"GET", "HEAD"}


@of(CALLS)
def test_request_that_is_good_succeeds(desk: Desk, call: Call) -> None:
    """Else the refusals below would prove nothing."""
    answer = desk.ask(call)

    assert answer.status in {200, 201, 202, 204}, answer.text
    changes = call.method != "GET"
    reads = {"/chat/completions", "/responses", "/jobs"}  # these are answered by the cache
    assert bool(desk.changed()) is (changes and (call.path not in reads))


# ------------------------------------------------------------------ who asks


@of(CALLS)
@pytest.mark.parametrize(
    "authorizer", [ABSENT, None, {}, {"tenant": ""}, {"tenant": None}, {"scopes": "submit read"}]
)
def test_request_without_a_tenant_is_unauthenticated(  # case A04
    desk: Desk, call: Call, authorizer: Any
) -> None:
    event = desk.event(call)
    if authorizer is ABSENT:
        del event["requestContext"]["authorizer"]
    else:
        event["requestContext"]["authorizer"] = authorizer

    answer = desk.stage.answer(event)

    assert_refused(call, answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert desk.changed() == []


@pytest.mark.parametrize(
    ("call", "missing"),
    [(call, scope) for call in CALLS for scope in call.scopes],
    ids=str,
)
def test_request_without_a_scope_is_forbidden_and_told_which(
    desk: Desk, call: Call, missing: str
) -> None:
    answer = desk.ask(call, scopes=" ".join(scope for scope in SCOPES if scope != missing))

    assert f"'{missing}'" in assert_refused(call, answer, 403, "forbidden")
    assert desk.changed() == []


@of(WITH_BODY)
def test_nobody_without_the_scope_learns_what_is_wrong_with_a_body(desk: Desk, call: Call) -> None:
    answer = desk.ask(call, raw="{", scopes="")

    assert_refused(call, answer, 403, "forbidden")
    assert desk.changed() == []


@of(CALLS)
def test_tenant_in_a_header_or_parameter_is_nobodys(desk: Desk, call: Call) -> None:  # case A08
    headers = {"X-Tenant": "globex", "X-Tenant-Id": "globex"}

    told = desk.ask(call, query={"tenant": "globex"}, headers=headers)
    assert desk.changed() == []
    desk.ask(call, headers=headers)

    assert_refused(call, told, 400, "invalid_request")
    world = desk.stage.world
    assert {tenant for tenant, _ in world.jobs} | set(world.endpoints) == {"acme"}


@of(WITH_BODY)
@pytest.mark.parametrize("name", ["tenant_id", "owner", "key_id", "tenants", "sluiceway.tenant"])
def test_tenant_in_the_body_is_refused(desk: Desk, call: Call, name: str) -> None:  # case A08
    answer = desk.ask(call, raw=json.dumps({**call.body, name: "globex"}))

    assert_refused(call, answer, 422, "validation_failed")
    assert desk.changed() == []


# ------------------------------------------------------------------ bodies


def with_member(member: str) -> Callable[[str], str]:
    """The good body with one more member, written out."""
    return lambda good: f"{good[:-1]}, {member}}}"


def encoded(change: Callable[[str], str], encoding: str = "utf-8") -> Callable[[str], bytes]:
    return lambda good: change(good).encode(encoding)


def padded_to(size: int) -> Callable[[str], str]:
    return lambda good: good + " " * (size - len(good))


def same(good: str) -> str:
    return good


BAD_BODIES: dict[str, tuple[Callable[[str], str | bytes], int, str]] = {
    # Too large: what counts is what it is when it is decoded.
    "a byte too much": (padded_to(MIB + 1), 413, "payload_too_large"),
    "a byte too much in base64": (encoded(padded_to(MIB + 1)), 413, "payload_too_large"),
    "5 MiB": (padded_to(5 * MIB), 413, "payload_too_large"),
    "5 MiB in base64": (encoded(padded_to(5 * MIB)), 413, "payload_too_large"),
    "characters of three bytes": (
        with_member(f'"x": "{"€" * 350_000}"'),
        413,
        "payload_too_large",
    ),
    # Too deep.
    "33 levels": (with_member(f'"x": {"[" * 32}{"]" * 32}'), 400, "invalid_request"),
    "100,000 levels": (lambda _: "[" * 100_000, 400, "invalid_request"),
    "100,000 objects": (lambda _: '{"x":' * 100_000, 400, "invalid_request"),
    # No JSON.
    "only a space": (lambda _: " ", 400, "invalid_request"),
    "cut off": (lambda good: good[:-1], 400, "invalid_request"),
    "two documents": (lambda good: good + good, 400, "invalid_request"),
    "a form": (lambda _: "model=demo-chat&input=hello", 400, "invalid_request"),
    "a byte order mark": (lambda good: "\ufeff" + good, 400, "invalid_request"),
    "a byte order mark in base64": (
        encoded(lambda good: "\ufeff" + good),
        400,
        "invalid_request",
    ),
    "UTF-16": (encoded(same, "utf-16"), 400, "invalid_request"),
    "UTF-16 without its mark": (encoded(same, "utf-16-le"), 400, "invalid_request"),
    "Latin-1": (encoded(with_member('"x": "é"'), "latin-1"), 400, "invalid_request"),
    "base64 that nobody declared": (
        lambda good: base64.b64encode(good.encode()).decode(),
        400,
        "invalid_request",
    ),
    # JSON on which parsers differ (cases K13, K14, K17).
    "NaN": (with_member('"x": NaN'), 400, "invalid_request"),
    "Infinity": (with_member('"x": [-Infinity]'), 400, "invalid_request"),
    "beyond a double": (with_member('"x": 1e999'), 400, "invalid_request"),
    "101 digits": (with_member(f'"x": {"9" * 101}'), 400, "invalid_request"),
    "a name twice": (lambda good: f"{good[:-1]}, {good[1:]}", 400, "invalid_request"),
    "a name twice within": (with_member('"x": {"a": 1, "a": 2}'), 400, "invalid_request"),
    "a name twice, spelt otherwise": (
        with_member('"x": {"a": 1, "\\u0061": 2}'),
        400,
        "invalid_request",
    ),
    "half of a pair": (with_member('"x": "bad \\ud83d end"'), 422, "validation_failed"),
    "half of a pair in a name": (with_member('"\\udc00": 1'), 422, "validation_failed"),
    # No object, or another one than the route takes.
    "an array": (lambda good: f"[{good}]", 422, "validation_failed"),
    "an empty array": (lambda _: "[]", 422, "validation_failed"),
    "null": (lambda _: "null", 422, "validation_failed"),
    "a text": (json.dumps, 422, "validation_failed"),
    "an unknown member": (with_member('"reasoning_effort_x": "low"'), 422, "validation_failed"),
    "a name of 1,000 characters": (with_member(f'"{"n" * 1000}": 1'), 422, "validation_failed"),
    "a stream": (with_member('"stream": true'), 422, "validation_failed"),
}


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (call, kind)
        for call in WITH_BODY
        for kind in BAD_BODIES
        if not (kind == "only a space" and call.may_be_empty)  # it is as none
    ],
    ids=str,
)
def test_body_that_is_wrong_has_its_code_and_writes_nothing(  # case K04, K13, K14, K17
    desk: Desk, call: Call, kind: str
) -> None:
    change, status, code = BAD_BODIES[kind]
    raw = change(json.dumps(call.body))

    answer = desk.ask(call, raw=raw, headers={"Idempotency-Key": "key-1"} if call.keyed else {})

    assert_refused(call, answer, status, code)
    assert desk.changed() == []


@of([call for call in WITH_BODY if not call.may_be_empty])
@pytest.mark.parametrize("raw", ["", b"", None])
def test_body_that_is_missing_is_refused(desk: Desk, call: Call, raw: str | bytes | None) -> None:
    event = desk.event(call)
    event |= {"body": raw.decode() if isinstance(raw, bytes) else raw}
    event["isBase64Encoded"] = isinstance(raw, bytes)

    assert_refused(call, desk.stage.answer(event), 400, "invalid_request")
    assert desk.changed() == []


@of(WITH_BODY)
@pytest.mark.parametrize("text", ["no base64!", "e30", "e30=e30=", "{}"])
def test_body_that_is_declared_as_base64_and_is_none_is_refused(
    desk: Desk, call: Call, text: str
) -> None:
    event = desk.event(call)
    event |= {"body": text, "isBase64Encoded": True}

    assert_refused(call, desk.stage.answer(event), 400, "invalid_request")
    assert desk.changed() == []


@of(WITH_BODY)
@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "multipart/form-data; boundary=x", "application/json; charset=utf-16"],
)
def test_body_of_another_media_type_is_refused(desk: Desk, call: Call, content_type: str) -> None:
    answer = desk.ask(call, headers={"Content-Type": content_type})

    assert_refused(call, answer, 415, "unsupported_media_type")
    assert desk.changed() == []


@of(WITH_BODY)
@pytest.mark.parametrize(
    "content_type",
    [ABSENT, "application/json", "application/x-www-form-urlencoded", "application/octet-stream"],
)
@pytest.mark.parametrize("base64_encoded", [False, True])
def test_body_is_read_whatever_a_gateway_made_of_it(  # case S10
    desk: Desk, call: Call, content_type: Any, *, base64_encoded: bool
) -> None:
    good = json.dumps(call.body)

    answer = desk.ask(
        call,
        raw=good.encode() if base64_encoded else good,
        headers={"Content-Type": content_type},
    )

    assert answer.status in {200, 201, 202}, answer.text


@of(WITH_BODY)
def test_body_of_the_limit_and_of_32_levels_is_read(desk: Desk, call: Call) -> None:
    """What is refused then is what it holds."""
    deep = with_member(f'"x": {"[" * 31}{"]" * 31}')(json.dumps(call.body))

    whole = desk.ask(call, raw=padded_to(MIB)(json.dumps(call.body)))
    nested = desk.ask(call, raw=deep)

    assert whole.status in {200, 201, 202}, whole.text
    assert_refused(call, nested, 422, "validation_failed")


@of(WITHOUT_BODY)
@pytest.mark.parametrize("raw", ["{", "[]", '{"tenant": "globex"}', " " * (MIB + 1), b"\xff"])
def test_body_where_none_is_taken_is_not_looked_at(
    desk: Desk, call: Call, raw: str | bytes
) -> None:
    with_one = desk.ask(call, raw=raw, headers={"Content-Type": "text/plain"})

    assert with_one.status in {200, 202, 204}, with_one.text


@of(WITH_BODY)
def test_refusal_repeats_no_text_of_the_body(desk: Desk, call: Call) -> None:
    hidden = [{"role": "hunter2", "content": ["hunter2"]}]
    bad = dict.fromkeys(call.body, hidden) | {"x": "hunter2"}

    answer = desk.ask(call, raw=json.dumps(bad))

    assert_refused(call, answer, 422, "validation_failed")
    assert "hunter2" not in answer.text
    assert desk.changed() == []


# ------------------------------------------------------------------ parameters, headers, methods


@of(CALLS)
@pytest.mark.parametrize("name", ["verbose", "Limit", "api_key", ""])
def test_parameter_that_is_unknown_is_refused(desk: Desk, call: Call, name: str) -> None:
    answer = desk.ask(call, query={name: "hunter2"})

    told = assert_refused(call, answer, 400, "invalid_request")
    assert name in told
    assert "hunter2" not in answer.text
    assert desk.changed() == []


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [(call, name, value) for call in CALLS for name, value in call.parameters],
    ids=str,
)
def test_parameter_that_comes_twice_is_refused(
    desk: Desk, call: Call, name: str, value: str
) -> None:
    once = desk.ask(call, query={name: value})
    before = desk.changed()
    event = desk.event(call, query={name: value})
    event["multiValueQueryStringParameters"] = {name: [value, value]}

    twice = desk.stage.answer(event)

    assert once.status < 300, once.text
    assert name in assert_refused(call, twice, 400, "invalid_request")
    assert desk.changed() == before


@of(KEYED)
@pytest.mark.parametrize(
    "key",
    ["", '""', "k" * 256, "k" * 1000, "two words", "line\nend", "tab\there", "\x7f", "ключ", " "],
)
def test_idempotency_key_of_another_form_is_refused(  # case K21
    desk: Desk, call: Call, key: str
) -> None:
    answer = desk.ask(call, headers={"Idempotency-Key": key})

    assert "Idempotency-Key" in assert_refused(call, answer, 400, "invalid_request")
    assert desk.changed() == []


LACKING = [
    Call(method, path, SCOPES)
    for path in sorted({call.path for call in CALLS} | {"/health"})
    for method in METHODS
    if (method, Call(method, path, SCOPES).rule) not in RULES
]
"""Every path with every method that it doesn't have."""


@of(LACKING)
def test_method_that_a_path_lacks_is_refused_with_those_it_has(desk: Desk, call: Call) -> None:
    allowed = sorted(method for method, rule in RULES if rule == call.rule)

    answer = desk.ask(call)

    if call.method == "HEAD":
        assert (answer.status, answer.text) == (405, "")
    else:
        assert_refused(call, answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == ", ".join(allowed)
    assert desk.changed() == []


@of([call for call in CALLS if call.method == "GET"])
@pytest.mark.parametrize("wrong", ["nothing", "tenant", "scope", "parameter"])
def test_head_is_refused_as_its_get(desk: Desk, call: Call, wrong: str) -> None:
    every: dict[str, dict[str, Any]] = {
        "nothing": {},
        "tenant": {"tenant": ABSENT},
        "scope": {"scopes": ""},
        "parameter": {"query": {"x": "1"}},
    }
    changes = every[wrong]

    got, head = (desk.ask(call, method=method, **changes) for method in ("GET", "HEAD"))

    assert (head.status, head.headers, head.text) == (got.status, got.headers, "")


@pytest.mark.parametrize("path", sorted(OPEN_TO_ALL & {path for _, path in RULES}))
def test_path_that_is_open_to_all_looks_at_nothing_else(stage: Stage, path: str) -> None:
    event = request("GET", path, query={"x": "1"}, authorizer=None)
    event["body"] = "{"

    answer = stage.answer(event)

    assert answer.status == 200
    assert answer.body == stage.answer(request("GET", path)).body
