"""Puts the areas together, by Powertools, and mends what it can't express."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver
from aws_lambda_powertools.event_handler.openapi.models import HTTPBearer, Server, Tag
from pydantic import BaseModel
from sluiceway.domain import openai_request, request, webhook_request

from sluiceway_local.openapi import batches, forms, jobs, openai, service, usage, webhooks

AREAS = tuple(one.AREA for one in (service, jobs, batches, usage, webhooks, openai))

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "docs/openapi.json"
SERVED = ROOT / "layers/core/sluiceway/openapi.json"
"""The same without white space, where `sam build` packages it with the library."""

RELEASED = ROOT / "docs/openapi.released.json"
"""That of the last release, with which a new one has to agree."""

DESCRIPTION = """\
An asynchronous gateway for expensive, rate-limited AI models: submit a job, and fetch its result.

`HEAD` is answered wherever there is `GET`, with the same status and headers and without a body.
Unknown members of a body are refused with 422, and unknown parameters of a query with 400.
Members of an answer that a client doesn't know are to be ignored: there may be new ones.
Errors are `application/problem+json` (RFC 9457); programs go by `code`.
"""


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of the code as it is."""
    request.CacheRequest.model_rebuild()  # built late, and a default that the document shows
    app = APIGatewayRestResolver(enable_validation=True)
    for area in AREAS:
        app.include_router(area.router)
    made: dict[str, Any] = json.loads(
        app.get_openapi_json_schema(
            title="Sluiceway",
            version=metadata.version("sluiceway"),
            openapi_version="3.1.0",
            description=DESCRIPTION,
            tags=[Tag(name=area.name, description=area.description) for area in AREAS],
            servers=[
                Server(url=".", description="Where this document is."),
                Server(
                    url="https://{api}.execute-api.{region}.amazonaws.com/v1",
                    description="A stack's output ApiUrl.",
                    variables={"api": {"default": "api-id"}, "region": {"default": "us-east-1"}},
                ),
            ],
            security_schemes={
                forms.SECURITY_SCHEME: HTTPBearer(
                    description="An API key. It belongs to one tenant, and has scopes."
                )
            },
        )
    )
    return _mended(made)


def as_text(made: dict[str, Any], *, compact: bool = False) -> str:
    """The document as it is written into a file."""
    form: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 1}
    return json.dumps(made, ensure_ascii=False, **form) + "\n"


def write() -> list[Path]:
    """Writes the document anew, and gives the files that weren't like it."""
    made = document()
    fresh = {COMMITTED: as_text(made), SERVED: as_text(made, compact=True)}
    stale = [
        path for path, told in fresh.items() if not path.exists() or path.read_text("utf-8") != told
    ]
    for path in stale:
        path.write_text(fresh[path], "utf-8")
    return stale


def release() -> None:
    """Makes the committed document the one with which later ones have to agree."""
    RELEASED.write_bytes(COMMITTED.read_bytes())


# ------------------------------------------------------------------------------------ mending


def _mended(made: dict[str, Any]) -> dict[str, Any]:
    schemas = made["components"]["schemas"]
    # Powertools documents the answers of its own validation, which isn't what validates.
    for name in ("HTTPValidationError", "ResponseValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operation in _operations(made):
        responses = operation["responses"]
        if "HTTPValidationError" in json.dumps(responses.get("422", {})):
            del responses["422"]
        operation["responses"] = dict(sorted(responses.items()))
        # It leaves a bodyless answer without `content`, as it should, but not an open call without
        # `security`, which says that none is needed.
        operation.setdefault("security", [])
        for parameter in operation.get("parameters", []):
            _mend_parameter(parameter)
        for content in operation.get("requestBody", {}).get("content", {}).values():
            _without_null(content["schema"])
    # pydantic titles everything by its name, which is no news.
    _tidy(schemas)
    _tidy(made["paths"])
    for name in _NULL_IS_ABSENT:
        _with_null(schemas[name])
    _describe(schemas, _request_models())
    made["components"] = {
        "securitySchemes": made["components"]["securitySchemes"],
        "headers": forms.header_components(),
        "examples": forms.problem_components(),
        "schemas": dict(sorted(schemas.items())),
    }
    _drop_unused(made, "headers")
    _drop_unused(made, "examples")
    made["paths"] = dict(sorted(made["paths"].items()))
    return made


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in made["paths"].values():
        yield from path.values()


def _mend_parameter(parameter: dict[str, Any]) -> None:
    if parameter["in"] == "header":  # Powertools writes them in lower case
        names = {name.lower(): name for name in forms.PARAMETERS}
        parameter["name"] = names[parameter["name"]]
    schema = parameter["schema"]
    schema.pop("description", None)  # the parameter's own, again
    _without_null(schema)  # there is none in a URL or a header


def _without_null(schema: dict[str, Any]) -> None:
    """Of what may be left out, which Python calls None."""
    kinds = schema.get("anyOf")
    if kinds and {"type": "null"} in kinds:
        (kind,) = [one for one in kinds if one != {"type": "null"}]
        del schema["anyOf"]
        schema.update(kind)


_NULL_IS_ABSENT = ("ChatRequest", "ResponsesRequest")
"""OpenAI's clients send null for what they leave out."""


def _with_null(schema: dict[str, Any]) -> None:
    for name, member in schema["properties"].items():
        if name not in schema["required"] and {"type": "null"} not in member.get("anyOf", []):
            schema["properties"][name] = {"anyOf": [member, {"type": "null"}]}


def _tidy(node: Any) -> None:
    """Takes away titles that say the name again, and writes whole limits as they were meant."""
    if isinstance(node, list):
        for one in node:
            _tidy(one)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for name, one in node.items():
            if name in {"minimum", "maximum"} and float(one).is_integer():
                node[name] = int(one)
            elif name not in {"examples", "default", "enum", "const"}:
                _tidy(one)


def _request_models() -> Iterator[type[BaseModel]]:
    for one in (
        *vars(request).values(),
        *vars(openai_request).values(),
        *vars(webhook_request).values(),
    ):
        if inspect.isclass(one) and issubclass(one, BaseModel):
            yield one


def _describe(schemas: dict[str, Any], models: Iterator[type[BaseModel]]) -> None:
    """Gives the members of requests their docstrings.

    pydantic would do it by itself, at the cost of reading its source at every cold start.
    """
    for model in models:
        members = schemas.get(model.__name__, {}).get("properties", {})
        for name, description in _docstrings_of(model):
            if name in members:
                members[name]["description"] = description


def _docstrings_of(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(found, ast.ClassDef)  # noqa: S101 - what a class's source is
    for member, after in zip(found.body, found.body[1:], strict=False):
        if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield member.target.id, inspect.cleandoc(str(after.value.value)).replace("\n", " ")


def _drop_unused(made: dict[str, Any], kind: str) -> None:
    used = json.dumps(made["paths"])
    found = made["components"][kind]
    made["components"][kind] = {
        name: value for name, value in found.items() if f'"#/components/{kind}/{name}"' in used
    }
