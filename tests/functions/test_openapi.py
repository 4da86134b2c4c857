"""docs/openapi.json: made from the code, served, and true of every answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.request import parse_invalidation, submit_of
from sluiceway.http import STATUS
from sluiceway.routes.table import ROUTES
from sluiceway_local.openapi import document

from tests.functions import conformance
from tests.functions.conformance import DOCUMENT, OF_NO_CALL, faults_of, resolved
from tests.functions.stage import ABSENT, Answer, Stage, request

if TYPE_CHECKING:
    from pathlib import Path

CALLS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
ANSWERS = {
    f"{call} {status} {kind}": content
    for call, operation in CALLS.items()
    for status, told in operation["responses"].items()
    for kind, content in told.get("content", {}).items()
}


@pytest.mark.parametrize(
    ("path", "compact"),
    [(document.COMMITTED, False), (document.SERVED, True)],
    ids=["docs", "served"],
)
def test_document_is_as_the_code_is(path: Path, *, compact: bool) -> None:
    fresh = path.read_text("utf-8") == document.as_text(document.document(), compact=compact)

    assert fresh, "run: make openapi"


def test_document_is_the_same_however_often_it_is_made() -> None:
    assert document.as_text(document.document()) == document.as_text(document.document())


def test_document_has_the_calls_that_the_api_has() -> None:
    served = {
        f"{method} {path.replace('<', '{').replace('>', '}')}"
        for path, methods in ROUTES.items()
        for method in methods
    }

    assert served == set(CALLS)


def test_document_is_served_as_it_is(stage: Stage) -> None:
    answer = stage.answer(request("GET", "/openapi.json", authorizer=None))

    assert (answer.status, answer.body) == (200, DOCUMENT)


def test_only_what_needs_no_key_has_no_security() -> None:
    needs_none = {call for call, operation in CALLS.items() if not operation["security"]}

    assert needs_none == {"GET /health", "GET /openapi.json"}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_call_says_what_it_is(call: str) -> None:
    operation = CALLS[call]

    assert operation["operationId"]
    assert operation["summary"]
    assert operation["tags"]
    assert all("description" in parameter for parameter in operation.get("parameters", []))


def test_operation_ids_are_of_one_call_each() -> None:
    ids = [operation["operationId"] for operation in CALLS.values()]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("answer", sorted(ANSWERS))
def test_answer_has_examples_that_are_like_it(answer: str) -> None:
    content = ANSWERS[answer]
    examples = {name: resolved(one)["value"] for name, one in content["examples"].items()}

    faults = {name: faults_of(value, content["schema"]) for name, value in examples.items()}

    assert examples
    assert not any(faults.values()), faults


BODIES = {
    f"{call} {name}": (content["schema"], example["value"])
    for call, operation in CALLS.items()
    if "requestBody" in operation
    for content in operation["requestBody"]["content"].values()
    for name, example in content["examples"].items()
}


@pytest.mark.parametrize("name", sorted(BODIES))
def test_example_of_a_body_is_one(name: str) -> None:
    schema, value = BODIES[name]

    assert faults_of(value, schema) == []


@pytest.mark.parametrize("name", sorted(BODIES))
def test_example_of_a_body_is_taken(stage: Stage, name: str) -> None:
    method, path, _ = name.split(" ")
    path = path.replace("{webhook_id}", "callbacks")
    event = request(method, path, scopes="submit read cancel bypass admin")
    event["body"] = json.dumps(BODIES[name][1])

    answer = stage.answer(event)

    # 504: held as long as it may be, since nobody runs the job.
    assert answer.status in {200, 201, 202, 504}, answer.text


def test_each_code_is_documented_somewhere() -> None:
    documented = {
        code
        for answer, content in ANSWERS.items()
        if not answer.split(" ")[2].startswith("2")
        for code in content["examples"]
    }

    assert documented - {"job_cancelled"} == set(STATUS) - set(OF_NO_CALL)


# ------------------------------------------------------------------ bodies that schemas can't take

SUBMIT: dict[str, Any] = {"$ref": "#/components/schemas/SubmitRequest"}
INVALIDATE: dict[str, Any] = {"$ref": "#/components/schemas/InvalidateRequest"}
KEY = "c1_" + "k" * 43


def refused(body: Any, parse: Any) -> bool:
    try:
        parse(body)
    except Exception:  # noqa: BLE001 - whatever it is, the body isn't taken
        return True
    return False


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"model": ""},
        {"model": "x" * 65},
        {"input": ""},
        {"input": {"messages": []}},
        {"input": {"messages": [{"role": "user", "content": "x"}]}},
        {"input": {"messages": [{"role": "user", "content": [1]}]}},
        {"input": {"messages": [{"role": "nobody"}]}},
        {"options": {"n": 1}},
        {"options": {"n": 2}},
        {"options": {"n": None}},
        {"options": {"model": "x"}},
        {"options": {"stream": False}},
        {"options": {"messages": []}},
        {"options": {"temperature": 0.5}},
        {"priority": "soon"},
        {"priority": None},
        {"cache": {"mode": "only"}},
        {"cache": None},
        {"cache": {"max_age_s": -1}},
        {"cache": {"ttl_s": 0}},
        {"locale": "x"},
        {"metadata": {"": "x"}},
        {"metadata": {str(number): "" for number in range(17)}},
        {"metadata": {"a": 1}},
        {"max_cost": -1},
        {"deadline_s": 0},
        {"deadline_s": 604_801},
        {"deadline_s": 60.0},
        {"deadline_s": 60.5},
        {"deadline_s": True},
        {"callback_url": "https://example.com/" + "x" * 2048},
        {"surprise": 1},
    ],
    ids=str,
)
def test_schema_takes_the_submits_that_the_api_takes(members: dict[str, Any]) -> None:
    body = {"model": "demo-chat", "input": "hello", **members}

    assert bool(faults_of(body, SUBMIT)) is refused(body, submit_of)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "demo-chat"},
        {"model": "Demo"},
        {"model": None},
        {"tenant": "acme"},
        {"key": KEY},
        {"key": "k"},
        {"model": None, "tenant": "acme"},
        {"model": "demo-chat", "tenant": "acme"},
        {"model": "demo-chat", "tenant": "acme", "key": KEY},
    ],
    ids=str,
)
def test_schema_takes_the_invalidations_that_the_api_takes(body: dict[str, Any]) -> None:
    assert bool(faults_of(body, INVALIDATE)) is refused(body, parse_invalidation)


# ------------------------------------------------------------------ what the tests of answers see


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (202, {}, {"object": "dry_run"}),
        (202, {}, {"surprise": 1}),
        (202, {}, {"status": "resting"}),
        (202, {}, {"status": ABSENT}),
        (202, {}, {"queue": {"position": 1, "eta_s": 9, "surprise": 1}}),
        (202, {}, {"created_at": "yesterday"}),
        (202, {"x-surprise": "1"}, {}),
        (202, {"location": ABSENT}, {}),
        (202, {"retry-after": "0"}, {}),
        (202, {"cache-status": "hit"}, {}),
        (202, {"content-type": "text/plain"}, {}),
        (418, {}, {}),
    ],
    ids=str,
)
def test_answer_that_is_not_as_documented_is_seen(
    stage: Stage, status: int, headers: dict[str, Any], body: dict[str, Any]
) -> None:
    good = stage.submit()
    wrong = Answer(
        status,
        {n: v for n, v in {**good.headers, **headers}.items() if v is not ABSENT},
        json.dumps({n: v for n, v in {**good.body, **body}.items() if v is not ABSENT}),
    )

    with pytest.raises((AssertionError, KeyError)):
        conformance.check("POST", "/jobs", wrong)


def test_code_that_a_call_does_not_document_is_seen(stage: Stage) -> None:
    gone = stage.get("job_unknown")

    with pytest.raises(AssertionError, match="isn't documented"):
        conformance.check("POST", "/admin/cache/invalidate", gone)
