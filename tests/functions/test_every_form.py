"""The same work in each form of a submit: alone, in a batch, as a chat, as a response.

What the keys are made of, what reaches the vendor and what comes back must not depend on the form.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import VendorError
from sluiceway.domain.job import JobStatus
from sluiceway.ports import VendorAnswer

from tests.functions.stage import ABSENT, Answer, Stage, end, request
from tests.functions.test_bad_requests import URL
from tests.unit.samples import an_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.ports import AuditRecord

FORMS = ("/jobs", "/batches", "/chat/completions", "/responses")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
REORDERED = {
    "properties": {"age": {"type": "integer"}, "name": {"type": "string"}},
    "type": "object",
}
OTHER = {**SCHEMA, "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}


def body_of(form: str, text: str = "hello", **options: Any) -> dict[str, Any]:
    """A request for this work. `options` are those that every form has."""
    if form == "/chat/completions":
        messages = [{"role": "user", "content": text}]
        return {"model": "demo-chat", "messages": messages, **options}
    if form == "/responses":
        if "response_format" in options:
            described = options.pop("response_format")["json_schema"]
            options["text"] = {"format": {"type": "json_schema", **described}}
        return {"model": "demo-chat", "input": text, "background": True, **options}
    job = {"model": "demo-chat", "input": text, "options": options}
    if form == "/batches":
        return {"jobs": [{"custom_id": "a", "priority": "interactive", **job}]}
    return job


@dataclass(frozen=True)
class Told:
    """What is told of the one job."""

    answer: Answer
    job_id: str
    text: str | None
    """Of the answer, if it is there."""


class Partner:
    """Asks in one form. A held call isn't held: its job runs on when the test says so."""

    def __init__(self, stage: Stage, form: str) -> None:
        self.stage, self.form = stage, form
        stage.time_left_ms = 29_000 if form == "/batches" else 1_000

    def send(self, raw: str | bytes, **changes: Any) -> Answer:
        event = request("POST", self.form, **changes)
        if isinstance(raw, bytes):
            event |= {"body": base64.b64encode(raw).decode(), "isBase64Encoded": True}
        else:
            event["body"] = raw
        return self.stage.answer(event)

    def ask(self, body: Any, **changes: Any) -> Told:
        """Sends this JSON, or this text."""
        answer = self.send(body if isinstance(body, str | bytes) else json.dumps(body), **changes)
        told = answer.body
        if self.form == "/batches":
            job = told["data"][0]["job"]
            return Told(answer, job["id"], job.get("result", {}).get("text"))
        if told.get("error"):
            assert told["error"]["code"] == "still_running", answer.text
            return Told(answer, told["error"]["job_id"], None)
        text = None
        if "choices" in told:
            text = told["choices"][0]["message"]["content"]
        elif told.get("output"):
            text = told["output"][0]["content"][0]["text"]
        elif "result" in told:
            text = told["result"]["text"]
        return Told(answer, told["id"], text)

    def jobs(self, *bodies: Any) -> list[str]:
        """The ids of the jobs to which these requests lead."""
        return [self.ask(body).job_id for body in bodies]


@pytest.fixture(params=FORMS)
def partner(request: pytest.FixtureRequest, stage: Stage) -> Partner:
    return Partner(stage, request.param)


def turned(value: Any) -> Any:
    """The same JSON with the members of each object in the opposite order."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


# ------------------------------------------------------------------ equal work


def test_order_and_spaces_make_no_other_work(partner: Partner) -> None:  # case K01
    body = body_of(partner.form, temperature=0.5, top_p=1)

    one, other = partner.jobs(body, json.dumps(turned(body), indent=4))

    assert one == other
    partner.stage.run_job(one)
    assert partner.stage.vendor.total == 1
    assert len(partner.stage.sent) == 1


def test_order_and_spaces_make_no_other_hit(partner: Partner) -> None:  # case K01
    body = body_of(partner.form, temperature=0.5)
    partner.stage.run_job(partner.ask(body).job_id)
    job_ids = partner.jobs(body_of(partner.form, temperature=0.6))

    again = partner.ask(json.dumps(turned(body), indent=4))

    assert again.text == "a good answer"
    assert again.job_id not in job_ids
    assert partner.stage.vendor.total == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("Caf\u00e9", "Cafe\u0301"), ("a\nb", "a\r\nb"), ("\u212b", "\u00c5")],
    ids=["accent", "line end", "Ångström"],
)
def test_spelling_of_the_text_makes_no_other_work(  # case K15
    partner: Partner, one: str, other: str
) -> None:
    first, second = partner.jobs(body_of(partner.form, one), body_of(partner.form, other))

    partner.stage.run_job(first)
    assert first == second
    assert json.loads(partner.stage.vendor.calls[0].body)["input"] == one


def test_schema_of_the_answer_is_part_of_the_work(partner: Partner) -> None:  # case K20
    def wanting(schema: dict[str, Any]) -> dict[str, Any]:
        described = {"name": "person", "schema": schema, "strict": True}
        return body_of(
            partner.form, response_format={"type": "json_schema", "json_schema": described}
        )

    plain, one, same, other = partner.jobs(
        body_of(partner.form), wanting(SCHEMA), wanting(REORDERED), wanting(OTHER)
    )

    assert one == same
    assert len({plain, one, other}) == 3
    partner.stage.run_job(one)
    assert partner.ask(wanting(REORDERED)).text == "a good answer"
    assert partner.stage.vendor.total == 1


def test_schema_is_one_in_all_forms(stage: Stage) -> None:  # case K19, K20
    described = {"name": "person", "schema": SCHEMA}
    wanted = {"type": "json_schema", "json_schema": described}

    jobs = {
        Partner(stage, form).ask(body_of(form, response_format=wanted)).job_id for form in FORMS
    }

    assert len(jobs) == 1


@pytest.mark.parametrize("option", ["temperature", "top_p"])
@pytest.mark.parametrize(
    ("spelt", "different"),
    [(("1", "1.0", "1e0"), "0.9"), (("0", "-0.0", "0e5"), "1e-7"), (("1e-7", "0.0000001"), "0")],
)
def test_spelling_of_a_number_makes_no_other_work(  # case K10
    partner: Partner, option: str, spelt: tuple[str, ...], different: str
) -> None:
    def wanting(number: str) -> str:
        return json.dumps(body_of(partner.form, **{option: "NUMBER"})).replace('"NUMBER"', number)

    jobs = partner.jobs(*map(wanting, spelt))
    other = partner.ask(wanting(different)).job_id

    partner.stage.run_job(jobs[0])
    assert len(set(jobs)) == 1
    assert other != jobs[0]
    sent = json.loads(partner.stage.vendor.calls[0].body)["options"][option]
    assert sent == float(spelt[0])


@pytest.mark.parametrize("form", ["/jobs", "/batches", "/chat/completions"])
def test_integers_that_doubles_confuse_are_different_work(  # case K09
    stage: Stage, form: str
) -> None:
    partner = Partner(stage, form)

    one, other = partner.jobs(body_of(form, seed=2**53), body_of(form, seed=2**53 + 1))

    stage.run_job(other)
    assert one != other
    assert json.loads(stage.vendor.calls[0].body)["options"] == {"seed": 2**53 + 1}


BOTH_CHATS = ("/chat/completions", "/responses")


@pytest.mark.parametrize(
    ("form", "member", "values"),
    [
        *((form, "stream", [0, "false", "true", 1]) for form in FORMS),
        *((form, "n", [True, "1"]) for form in ("/jobs", "/batches", "/chat/completions")),
        # Options of a submit go to the vendor as they are, and each type has keys of its own.
        *((form, "temperature", [True, "1", "NaN"]) for form in BOTH_CHATS),
        *((form, "top_logprobs", [False, "0"]) for form in BOTH_CHATS),
    ],
)
def test_values_of_another_type_are_refused(  # case K12, K13
    stage: Stage, form: str, member: str, values: list[Any]
) -> None:
    partner = Partner(stage, form)

    answers = [partner.send(json.dumps(body_of(form, **{member: value}))) for value in values]

    for answer in answers:
        if form == "/batches":
            assert answer.body["data"][0]["error"]["code"] == "validation_failed"
        else:
            assert answer.status == 422, answer.text
    assert stage.world.jobs == {}


def test_option_that_is_of_another_type_is_other_work(stage: Stage) -> None:  # case K12
    values = [1, True, "1", "true", [1], None]

    jobs = Partner(stage, "/jobs").jobs(*(body_of("/jobs", x=value) for value in values))

    assert len(set(jobs)) == len(values)


def test_item_with_an_unknown_member_is_refused_by_its_name(stage: Stage) -> None:  # case K04
    body = body_of("/batches")
    body["jobs"].append({**body["jobs"][0], "custom_id": "b", "reasoning_effort": "low"})
    body["jobs"].append({**body["jobs"][0], "custom_id": "c", "tenant": "globex"})  # case A08

    _, low, other = Partner(stage, "/batches").send(json.dumps(body)).body["data"]

    assert low["error"]["errors"][0]["field"] == "reasoning_effort"
    assert other["error"]["errors"][0]["field"] == "tenant"
    assert {tenant for tenant, _ in stage.world.jobs} == {"acme"}
    assert len(stage.sent) == 1


def test_effort_that_differs_is_other_work(stage: Stage) -> None:  # case K04
    low, high = (
        Partner(stage, "/chat/completions")
        .ask(body_of("/chat/completions", reasoning_effort=effort))
        .job_id
        for effort in ("low", "high")
    )

    assert low != high


# ------------------------------------------------------------------ characters


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x07\x0b\ufffe\uffff",  # case S05
        "😀 𠀀 Ѱ 2026-01-01T00:00:00Z",  # case S06
        'a\r\nb\rc <&> "q" \\',  # case S07
        "\ud83d\ude00",  # case K17: a pair, once it is joined
    ],
    ids=["control", "emoji", "line ends and xml", "pair"],
)
@pytest.mark.parametrize("escaped", [False, True])
def test_characters_reach_the_vendor_and_come_back_unchanged(
    partner: Partner, text: str, *, escaped: bool
) -> None:
    stage = partner.stage
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    stage.vendor.default = VendorAnswer(text, "stop", 1, 1, 1)
    raw = json.dumps(body_of(partner.form, text), ensure_ascii=escaped)

    job_id = partner.ask(raw.encode()).job_id
    stage.run_job(job_id)

    seen = json.loads(stage.vendor.calls[0].body)
    assert seen["input"] == text
    # What the worker saw is the same work as what was submitted.
    again = partner.ask(body_of(partner.form, seen["input"]))
    assert again.text == text
    assert (len(stage.sent), stage.vendor.total) == (1, 1)


@pytest.mark.parametrize(
    "content_type",
    [ABSENT, "application/json", "application/x-www-form-urlencoded", "application/octet-stream"],
)
def test_body_in_base64_is_the_same_work_as_its_plain_twin(  # case S10
    partner: Partner, content_type: Any
) -> None:
    raw = json.dumps(body_of(partner.form, "Café\r\n😀"), ensure_ascii=False)

    plain = partner.ask(raw).job_id
    encoded = partner.ask(raw.encode(), headers={"Content-Type": content_type}).job_id

    assert plain == encoded


# ------------------------------------------------------------------ whose work


def test_same_work_of_another_tenant_is_as_if_nobody_had_asked(partner: Partner) -> None:
    """Case A01: neither body nor headers tell that another tenant's answer is there."""
    stage = partner.stage
    stage.run_job(partner.ask(body_of(partner.form, "known")).job_id)
    sent = len(stage.sent)

    known, unknown = (
        partner.ask(body_of(partner.form, text), tenant="globex") for text in ("known", "new")
    )

    def nameless(told: Told) -> str:
        own = told.answer.body["id"] if partner.form == "/batches" else told.job_id
        return repr(told.answer).replace(told.job_id, "JOB").replace(own, "ID")

    assert nameless(known).replace("position': 1", "position': 2") == nameless(unknown)
    assert [tenant for _, tenant, _ in stage.sent[sent:]] == ["globex", "globex"]


# ------------------------------------------------------------------ Idempotency-Key

KEYED = (*FORMS, "/webhooks")
FIRST: dict[str, Any] = {form: body_of(form) for form in FORMS} | {
    "/webhooks": {"url": URL, "description": "one"}
}
SECOND: dict[str, Any] = {form: body_of(form, "bye") for form in FORMS} | {
    "/webhooks": {"url": URL, "description": "two"}
}


@pytest.fixture(params=KEYED)
def keyed(request: pytest.FixtureRequest, stage: Stage) -> Callable[..., Answer]:
    """Sends one of these bodies with the key `k1`."""
    partner = Partner(stage, request.param)

    def send(bodies: dict[str, Any], *, reorder: bool = False, **changes: Any) -> Answer:
        body = bodies[partner.form]
        headers = {"Idempotency-Key": "k1"} | changes.pop("headers", {})
        raw = json.dumps(turned(body), indent=2) if reorder else json.dumps(body)
        return partner.send(raw, headers=headers, **changes)

    return send


def id_of(answer: Answer) -> str:
    body = answer.body
    return str((body.get("error") or body).get("job_id") or body["id"])


def code_of(answer: Answer) -> str:
    body = answer.body
    return str((body.get("error") or body)["code"])


@pytest.mark.parametrize("how_far", ["queued", "completed", "failed"])
def test_key_with_another_body_is_refused_and_with_the_same_is_the_first_answer(  # case K18
    stage: Stage, keyed: Callable[..., Answer], how_far: str
) -> None:
    first = keyed(FIRST)
    for tenant, job_id in list(stage.world.jobs):
        if how_far == "completed":
            stage.run_job(job_id, tenant)
        elif how_far == "failed":
            end(stage, job_id, status=JobStatus.FAILED, error=an_error())
    sent, called = len(stage.sent), stage.vendor.total

    other, again = keyed(SECOND), keyed(FIRST, reorder=True)

    assert (other.status, code_of(other)) == (422, "idempotency_key_reused")
    assert id_of(again) == id_of(first)
    assert (len(stage.sent), stage.vendor.total) == (sent, called)
    assert len(stage.world.endpoints.get("acme", ())) in {0, 2}  # callbacks, and the one


def test_key_of_another_tenant_or_case_is_another_key(  # case K21
    stage: Stage, keyed: Callable[..., Answer]
) -> None:
    first = keyed(FIRST)

    others = [keyed(FIRST, tenant="globex"), keyed(SECOND, headers={"Idempotency-Key": "K1"})]

    assert [answer.status for answer in others] == [first.status] * 2
    assert len({id_of(answer) for answer in (first, *others)}) == 3
    assert all("idempotent-replayed" not in answer.headers for answer in others)
    assert len(stage.world.idempotency) == 3


def test_key_is_kept_as_a_digest_of_tenant_route_and_key(stage: Stage) -> None:  # case K21
    bodies = {form: json.dumps(FIRST[form]) for form in KEYED}
    for form, raw in bodies.items():
        Partner(stage, form).send(raw, headers={"Idempotency-Key": "a/b#acme:hunter2"})

    names = list(stage.world.idempotency)

    assert len(names) == len(KEYED)  # the same key on another route is another one
    assert not [name for name in names if "hunter2" in name or "acme" in name]


def test_key_is_in_progress_while_the_first_is_answered(  # case K18
    stage: Stage, keyed: Callable[..., Answer]
) -> None:
    inner: list[Answer] = []
    take, add = stage.queue.send, stage.audit.add

    def meanwhile() -> None:
        if not inner:
            inner.extend([keyed(FIRST), keyed(SECOND)])

    def send(*args: Any, **named: Any) -> bool:
        meanwhile()
        return take(*args, **named)

    def note(record: AuditRecord) -> None:
        meanwhile()
        add(record)

    stage.queue.send = send  # type: ignore[method-assign]
    stage.audit.add = note  # type: ignore[method-assign]

    first = keyed(FIRST)

    same, other = inner
    assert first.status < 300 or code_of(first) == "still_running"
    assert (same.status, code_of(same)) == (409, "idempotency_in_progress")
    assert other.status in {409, 422}
    assert len(stage.world.jobs) + len(stage.world.endpoints.get("acme", ())) // 2 == 1


# ------------------------------------------------------------------ V: what the vendor gets wrong


def test_answer_of_the_vendor_that_is_none_is_a_named_error(partner: Partner) -> None:  # case V07
    stage = partner.stage
    error = VendorError(
        "vendor_bad_response",
        "The vendor's answer lacks what its protocol promises.",
        retryable=False,
        http_status=200,
        vendor_request_id="req_vendor_9",
    )
    stage.vendor.script = [error]
    job_id = partner.ask(body_of(partner.form)).job_id
    stage.run_job(job_id)

    answers = [stage.answer(request("GET", f"{path}/{job_id}")) for path in ("/jobs", "/responses")]

    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body["error"]["code"] == "vendor_bad_response"
    assert answers[1].body["error"]["job_code"] == "vendor_bad_response"
    assert "Traceback" not in answers[0].text + answers[1].text
    assert stage.world.jobs["acme", job_id].vendor_request_id == "req_vendor_9"
    assert stage.world.entries == {}
