"""Holds an answer against docs/openapi.json: nothing in it may be undocumented."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from sluiceway.http import STATUS

if TYPE_CHECKING:
    from tests.functions.stage import Answer

DOCUMENT: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs/openapi.json").read_text("utf-8")
)
OF_NO_CALL = {"route_not_found": 404, "method_not_allowed": 405}
"""Codes of what is no call of the document."""


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The components, whose objects have the members that are documented and no others."""
    components = deepcopy(document["components"])

    def close(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                close(one)
        elif isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                node.setdefault("additionalProperties", False)
            for one in node.values():
                close(one)

    close(components["schemas"])
    return components


COMPONENTS = closed(DOCUMENT)


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": COMPONENTS})


def faults_of(value: Any, schema: dict[str, Any]) -> list[str]:
    """What of the value doesn't fit, members that the schema doesn't know included."""
    found = _validator(json.dumps(schema)).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """The part itself, or what it refers to."""
    found: Any = DOCUMENT
    for name in part["$ref"].removeprefix("#/").split("/") if "$ref" in part else ():
        found = found[name]
    return found if "$ref" in part else part


def operation_of(method: str, path: str) -> dict[str, Any] | None:
    """The documented call of this request, if it is one."""
    method = {"HEAD": "GET"}.get(method, method).lower()
    for template, operations in DOCUMENT["paths"].items():
        pattern = "".join(
            "[^/]+" if part.startswith("{") else re.escape(part)
            for part in re.split(r"(\{\w+\})", template)
        )
        if re.fullmatch(pattern, path.rstrip("/")) and method in operations:
            found: dict[str, Any] = operations[method]
            return found
    return None


def check(method: str, path: str, answer: Answer) -> None:
    """Fails when status, headers, type or body of the answer aren't as the document says."""
    problem = answer.headers.get("content-type") == "application/problem+json"
    code = _code_of(answer)
    operation = operation_of(method, path)
    if operation is None or code in OF_NO_CALL:
        if code is not None:
            form = "Problem" if problem else "OpenAIError"
            assert OF_NO_CALL[code] == answer.status
            assert faults_of(answer.body, {"$ref": f"#/components/schemas/{form}"}) == []
        return
    assert str(answer.status) in operation["responses"], (method, path, answer)
    told = operation["responses"][str(answer.status)]
    _check_headers(told.get("headers", {}), answer)
    if method == "HEAD" or not told.get("content"):
        assert answer.text == ""
        return
    content = told["content"][answer.headers["content-type"]]
    assert faults_of(answer.body, content["schema"]) == []
    # In OpenAI's form a failed job is told with its own code.
    if code is not None and (problem or code in STATUS):
        assert code in content["examples"], f"{method} {path} says {code}, which isn't documented"


def _code_of(answer: Answer) -> str | None:
    """Of a refusal with a body, in either form."""
    if answer.status < 400 or not answer.text:
        return None
    code: str = answer.body.get("error", answer.body)["code"]
    return code


def _check_headers(told: dict[str, Any], answer: Answer) -> None:
    documented = {name.lower(): resolved(header) for name, header in told.items()}
    assert set(answer.headers) - {"content-type"} <= set(documented), answer.headers
    for name, header in documented.items():
        if name not in answer.headers:
            assert not header["required"], f"there is no {name}"
            continue
        value: Any = answer.headers[name]
        if header["schema"]["type"] == "integer":
            value = int(value)
        assert faults_of(value, header["schema"]) == [], (name, value)
