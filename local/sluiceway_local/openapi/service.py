"""Health, the document itself, the models, and what operators may do to the cache."""

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Body, Path
from sluiceway.domain.request import InvalidateRequest
from sluiceway.http import Reply, invalidated_reply, model_reply, models_reply

from sluiceway_local.openapi import samples
from sluiceway_local.openapi.forms import (
    BODY,
    KEYED,
    OPEN,
    Absent,
    Answer,
    Count,
    Moment,
    answer,
    area,
    refusals,
)

AREA = area("service", "Whether the API is there, what it offers, and its operators' part.")


class Health(Answer):
    """The API answers."""

    status: Literal["ok"]


class Document(Answer):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    components: dict[str, Any]
    tags: list[dict[str, Any]]
    paths: dict[str, Any]


class Model(Answer):
    """A model of the catalogue, as OpenAI's clients read it."""

    id: str
    object: Literal["model"]
    created: Count
    """Always 0: a catalogue doesn't know it."""
    owned_by: str
    """The vendor's name in the catalogue."""
    version: str
    """A part of the keys: another version, another result."""


class ModelList(Answer):
    """The models, by name."""

    object: Literal["list"]
    data: list[Model]


class Invalidated(Answer):
    """What an invalidation did; every process acts on it within 5 s."""

    object: Literal["invalidation"]
    subject: str
    """`model:`, `tenant:` or `key:`, and its name."""
    at: Moment
    epoch: Count | Absent = None
    """The new one of a model or tenant."""
    found: bool | Absent = None
    """Whether a key had an entry."""


@AREA.call(
    "GET",
    "/health",
    "getHealth",
    scope=None,
    summary="Ask whether the API answers",
    description="Needs no key.",
    answers={
        200: answer("It does.", Health, {"It does": Reply(200, {"status": "ok"}, {})}),
        **refusals(*OPEN),
    },
)
def _health() -> None: ...


@AREA.call(
    "GET",
    "/openapi.json",
    "getOpenapi",
    scope=None,
    summary="Get this document",
    description="Needs no key.",
    answers={
        200: answer(
            "The document.",
            Document,
            {
                "Its beginning": Reply(
                    200,
                    {
                        "openapi": "3.1.0",
                        "info": {"title": "Sluiceway", "version": "1.0.0"},
                        "servers": [],
                        "components": {},
                        "tags": [],
                        "paths": {},
                    },
                    {},
                )
            },
        ),
        **refusals(*OPEN),
    },
)
def _openapi() -> None: ...


@AREA.call(
    "GET",
    "/models",
    "listModels",
    scope="read",
    summary="List the models",
    answers={
        200: answer("All models.", ModelList, {"One model": models_reply(samples.MODELS)}),
        **refusals(*KEYED),
    },
)
def _models() -> None: ...


@AREA.call(
    "GET",
    "/models/<name>",
    "getModel",
    scope="read",
    summary="Fetch a model",
    answers={
        200: answer(
            "The model.",
            Model,
            {"A model": model_reply("demo-chat", samples.MODELS["demo-chat"])},
        ),
        **refusals(*KEYED, "model_not_found"),
    },
)
def _model(name: Annotated[str, Path(description="Of the catalogue.")]) -> None: ...


@AREA.call(
    "POST",
    "/admin/cache/invalidate",
    "invalidateCache",
    scope="admin",
    summary="Make cached results invalid",
    description="Of one model or tenant, or under one key.",
    answers={
        200: answer(
            "It is done.",
            Invalidated,
            {
                "A model": invalidated_reply("model:demo-chat", at_ms=samples.NOW_MS, epoch=7),
                "A key": invalidated_reply(
                    f"key:{samples.QUEUED.cache_key}", at_ms=samples.NOW_MS, found=True
                ),
            },
        ),
        **refusals(*KEYED, *BODY, "model_not_found"),
    },
)
def _invalidate(
    body: Annotated[
        InvalidateRequest,
        Body(
            description="Exactly one of them.",
            openapi_examples={
                "model": {"summary": "A model", "value": {"model": "demo-chat"}},
                "key": {
                    "summary": "A key",
                    "value": {"key": samples.QUEUED.cache_key},
                },
            },
        ),
    ],
) -> None: ...
