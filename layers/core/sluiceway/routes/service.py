"""Health, the models, and what operators may do to the cache."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from sluiceway.domain.request import parse_invalidation
from sluiceway.http import Reply, invalidated_reply, model_reply, models_reply
from sluiceway.usecases.invalidate_cache import Invalidation, invalidate_cache

if TYPE_CHECKING:
    from sluiceway.routes.request import Request


def get_health(_: Request) -> Reply:
    """Whether the API answers; needs no key."""
    return Reply(200, {"status": "ok"}, {})


def get_openapi(_: Request) -> Reply:
    """The document of this API; needs no key. `make openapi` makes it."""
    return Reply(200, resources.files("sluiceway").joinpath("openapi.json").read_text("utf-8"), {})


def get_models(request: Request) -> Reply:
    """The models of the catalogue, in OpenAI's list form."""
    request.caller("read")
    request.parameters()
    return models_reply(request.deps.submitter.catalogue.models)


def get_model(request: Request, name: str) -> Reply:
    """One model of the catalogue."""
    request.caller("read")
    request.parameters()
    return model_reply(name, request.deps.submitter.catalogue.model(name))


def post_invalidate(request: Request) -> Reply:
    """Makes what is cached for a model or tenant, or under a key, invalid."""
    caller = request.caller("admin")
    request.parameters()
    wanted = parse_invalidation(request.json())
    if wanted.model is not None:
        # A slip of the pen would do nothing.
        request.deps.submitter.catalogue.model(wanted.model)
    done = invalidate_cache(
        Invalidation.of(wanted),
        actor=f"key:{caller.key_id}",
        request_id=request.request_id,
        invalidator=request.deps.invalidator,
    )
    return invalidated_reply(
        done.subject, at_ms=done.at_epoch_ms, epoch=done.epoch, found=done.found
    )
