"""Which change of the API's document breaks its clients, and which does not."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.openapi import document
from sluiceway_local.openapi.changes import breaks

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[dict[str, Any]], Any]

OLD: dict[str, Any] = {
    "paths": {
        "/jobs": {
            "post": {
                "operationId": "submit",
                "security": [{"key": ["submit"]}],
                "parameters": [
                    {
                        "in": "query",
                        "name": "limit",
                        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
                    },
                    {"in": "header", "name": "Prefer", "schema": {"type": "string"}},
                ],
                "requestBody": {
                    "required": False,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/In"}}
                    },
                },
                "responses": {
                    "200": {
                        "headers": {
                            "Age": {"$ref": "#/components/headers/Age"},
                            "Location": {"required": True, "schema": {"type": "string"}},
                        },
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Out"}}
                        },
                    },
                    "202": {"headers": {}, "content": {}},
                    "404": {"headers": {}, "content": {}},
                },
            },
            "get": {"operationId": "list", "security": [], "responses": {}},
        }
    },
    "components": {
        "examples": {"not_found": {}, "busy": {}},
        "headers": {"Age": {"required": False, "schema": {"type": "integer", "minimum": 0}}},
        "schemas": {
            "In": {
                "type": "object",
                "additionalProperties": False,
                "required": ["model"],
                "properties": {
                    "model": {"type": "string", "maxLength": 64},
                    "lane": {
                        "anyOf": [{"enum": ["fast", "slow"], "type": "string"}, {"type": "null"}]
                    },
                    "cost": {"type": "number", "minimum": 0},
                    "names": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                    "options": {"type": "object", "additionalProperties": True},
                    "inner": {"$ref": "#/components/schemas/In"},
                },
            },
            "Out": {
                "type": "object",
                "required": ["id", "status"],
                "properties": {
                    "id": {"type": "string", "maxLength": 64},
                    "status": {"type": "string", "enum": ["open", "done"]},
                    "result": {"type": "string"},
                    "at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                    "list": {"type": "array", "items": {"$ref": "#/components/schemas/Out"}},
                },
            },
        },
    },
}


def post(new: dict[str, Any]) -> Any:
    return new["paths"]["/jobs"]["post"]


def taken(new: dict[str, Any]) -> Any:
    return new["components"]["schemas"]["In"]


def given(new: dict[str, Any]) -> Any:
    return new["components"]["schemas"]["Out"]


def changed(change: Change) -> list[str]:
    new = deepcopy(OLD)
    change(new)
    assert new != OLD
    return breaks(OLD, new)


BREAKS: dict[str, Change] = {
    "a path is gone": lambda new: new["paths"].pop("/jobs"),
    "a method is gone": lambda new: new["paths"]["/jobs"].pop("get"),
    "another operation id": lambda new: post(new).update(operationId="other"),
    "a key is needed": lambda new: new["paths"]["/jobs"]["get"].update(security=[{"key": []}]),
    "another scope": lambda new: post(new).update(security=[{"key": ["admin"]}]),
    "a code is gone": lambda new: new["components"]["examples"].pop("busy"),
    "a parameter is gone": lambda new: post(new)["parameters"].pop(),
    "a parameter is required": lambda new: post(new)["parameters"][0].update(required=True),
    "a new required parameter": lambda new: post(new)["parameters"].append(
        {"in": "query", "name": "new", "required": True, "schema": {}}
    ),
    "a parameter's limit": lambda new: post(new)["parameters"][0]["schema"].update(maximum=50),
    "a parameter's type": lambda new: post(new)["parameters"][1]["schema"].update(type="integer"),
    "a parameter's default": lambda new: post(new)["parameters"][0]["schema"].update(default=5),
    "a parameter's pattern": lambda new: post(new)["parameters"][1]["schema"].update(pattern="x"),
    "the body is gone": lambda new: post(new).pop("requestBody"),
    "the body is required": lambda new: post(new)["requestBody"].update(required=True),
    "a new required body": lambda new: new["paths"]["/jobs"]["get"].update(
        requestBody={"required": True, "content": {}}
    ),
    "the body's type": lambda new: post(new)["requestBody"].update(content={"text/plain": {}}),
    "a new required member": lambda new: taken(new).update(
        required=["model", "new"],
        properties={**taken(new)["properties"], "new": {"type": "string"}},
    ),
    "a member is required": lambda new: taken(new)["required"].append("cost"),
    "a member is not taken": lambda new: taken(new)["properties"].pop("cost"),
    "a shorter text": lambda new: taken(new)["properties"]["model"].update(maxLength=32),
    "a longer text": lambda new: taken(new)["properties"]["model"].update(minLength=1),
    "fewer items": lambda new: taken(new)["properties"]["names"].update(maxItems=5),
    "narrower items": lambda new: taken(new)["properties"]["names"]["items"].update(maxLength=5),
    "a narrower number": lambda new: taken(new)["properties"]["cost"].update(type="integer"),
    "a value is not taken": lambda new: taken(new)["properties"]["lane"]["anyOf"][0]["enum"].pop(),
    "null is not taken": lambda new: taken(new)["properties"]["lane"]["anyOf"].pop(),
    "other members are not taken": lambda new: taken(new)["properties"]["options"].update(
        additionalProperties=False
    ),
    "one free member is bound": lambda new: taken(new)["properties"]["options"].update(
        properties={"n": {"const": 1}}
    ),
    "names are bound": lambda new: taken(new)["properties"]["options"].update(
        propertyNames={"maxLength": 3}
    ),
    "a condition is added": lambda new: taken(new).update(oneOf=[{"required": ["cost"]}]),
    "a success is gone": lambda new: post(new)["responses"].pop("202"),
    "a new success": lambda new: post(new)["responses"].update({"201": {"content": {}}}),
    "a body where there was none": lambda new: post(new)["responses"]["202"].update(
        content={"application/json": {}}
    ),
    "the answer's type": lambda new: post(new)["responses"]["200"].update(
        content={"text/plain": {}}
    ),
    "a header is gone": lambda new: post(new)["responses"]["200"]["headers"].pop("Age"),
    "a header may be missing": lambda new: post(new)["responses"]["200"]["headers"][
        "Location"
    ].update(required=False),
    "a header's values": lambda new: new["components"]["headers"]["Age"]["schema"].update(
        minimum=-1
    ),
    "a member is gone": lambda new: given(new)["properties"].pop("result"),
    "a required member is gone": lambda new: (
        given(new)["properties"].pop("status"),
        given(new)["required"].remove("status"),
    ),
    "a member may be missing": lambda new: given(new)["required"].remove("status"),
    "a member's type": lambda new: given(new)["properties"]["result"].update(type="object"),
    "a member may be null": lambda new: given(new)["properties"].update(
        result={"anyOf": [{"type": "string"}, {"type": "null"}]}
    ),
    "a new value": lambda new: given(new)["properties"]["status"]["enum"].append("resting"),
    "any value": lambda new: given(new)["properties"]["status"].pop("enum"),
    "a longer answer": lambda new: given(new)["properties"]["id"].update(maxLength=128),
    "other values of a map": lambda new: given(new)["properties"]["tags"].update(
        additionalProperties={"type": "integer"}
    ),
    "other items": lambda new: given(new)["properties"]["list"].update(items={"type": "string"}),
}

HARMLESS: dict[str, Change] = {
    "a new path": lambda new: new["paths"].update({"/new": {"get": {"responses": {}}}}),
    "a new method": lambda new: new["paths"]["/jobs"].update(put={"responses": {}}),
    "no key is needed": lambda new: post(new).update(security=[]),
    "a new code": lambda new: new["components"]["examples"].update(new={}),
    "another description": lambda new: given(new)["properties"]["id"].update(description="x"),
    "a new parameter": lambda new: post(new)["parameters"].append(
        {"in": "query", "name": "new", "required": False, "schema": {}}
    ),
    "a wider parameter": lambda new: post(new)["parameters"][0]["schema"].update(maximum=500),
    "a new body": lambda new: new["paths"]["/jobs"]["get"].update(
        requestBody={"required": False, "content": {}}
    ),
    "another type of body": lambda new: post(new)["requestBody"]["content"].update(
        {"text/plain": {}}
    ),
    "a new member": lambda new: taken(new)["properties"].update(new={"type": "string"}),
    "a member is no longer required": lambda new: taken(new).update(required=[]),
    "a longer text": lambda new: taken(new)["properties"]["model"].update(maxLength=128),
    "a new value": lambda new: taken(new)["properties"]["lane"]["anyOf"][0]["enum"].append("night"),
    "another form": lambda new: taken(new)["properties"].update(
        model={"anyOf": [{"type": "string", "maxLength": 64}, {"type": "integer"}]}
    ),
    "a new failure": lambda new: post(new)["responses"].update({"410": {"content": {}}}),
    "a failure is gone": lambda new: post(new)["responses"].pop("404"),
    "a new header": lambda new: post(new)["responses"]["200"]["headers"].update(New={"schema": {}}),
    "a header is always there": lambda new: new["components"]["headers"]["Age"].update(
        required=True
    ),
    "a new member of an answer": lambda new: given(new)["properties"].update(
        new={"type": "string"}
    ),
    "a member is always there": lambda new: given(new)["required"].append("result"),
    "a member is never null": lambda new: given(new)["properties"].update(at={"type": "string"}),
    "a value is gone": lambda new: given(new)["properties"]["status"]["enum"].pop(),
    "a whole number": lambda new: given(new)["properties"]["id"].update(maxLength=32),
    "a schema gets a name": lambda new: (
        new["components"]["schemas"].update(Id=given(new)["properties"]["id"]),
        given(new)["properties"].update(id={"$ref": "#/components/schemas/Id"}),
    ),
}


def test_document_that_did_not_change_breaks_nothing() -> None:
    assert breaks(OLD, deepcopy(OLD)) == []


@pytest.mark.parametrize("name", BREAKS)
def test_change_that_breaks_is_told_once(name: str) -> None:
    found = changed(BREAKS[name])

    assert len(found) == 1, found


@pytest.mark.parametrize("name", HARMLESS)
def test_change_that_breaks_nobody_is_not_told(name: str) -> None:
    assert changed(HARMLESS[name]) == []


def test_document_breaks_nothing_that_was_released() -> None:
    released = json.loads(document.RELEASED.read_text("utf-8"))

    found = breaks(released, document.document())

    assert found == [], "a break needs a new major version: see CONTRIBUTING.md"
