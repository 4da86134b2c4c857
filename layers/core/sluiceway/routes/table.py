"""The API's paths: which function answers which method.

A module of routes is imported when the first request for one of its paths comes: a cold start pays
for what it answers, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from sluiceway.domain.errors import MethodNotAllowedError, RouteNotFoundError
from sluiceway.http import Reply

Handler = Callable[..., Reply]
"""Takes the Request, and the parts of the path that have names in the table."""

ROUTES: dict[str, dict[str, str]] = {
    "/health": {"GET": "service.get_health"},
    "/openapi.json": {"GET": "service.get_openapi"},
    "/models": {"GET": "service.get_models"},
    "/models/<name>": {"GET": "service.get_model"},
    "/jobs": {"GET": "jobs.get_jobs", "POST": "jobs.post_job"},
    "/jobs/<job_id>": {"GET": "jobs.get_one_job"},
    "/jobs/<job_id>/cancel": {"POST": "jobs.post_cancel"},
    "/batches": {"POST": "batches.post_batch"},
    "/batches/<batch_id>": {"GET": "batches.get_one_batch"},
    "/chat/completions": {"POST": "openai.post_chat"},
    "/responses": {"POST": "openai.post_response"},
    "/responses/<job_id>": {"GET": "openai.get_response"},
    "/responses/<job_id>/cancel": {"POST": "openai.post_cancel"},
    "/usage": {"GET": "usage.get_usage"},
    "/webhooks": {"GET": "webhooks.get_webhooks", "POST": "webhooks.post_webhook"},
    "/webhooks/<webhook_id>": {
        "GET": "webhooks.get_webhook",
        "DELETE": "webhooks.delete_webhook",
    },
    "/webhooks/<webhook_id>/rotate": {"POST": "webhooks.post_rotate"},
    "/webhooks/<webhook_id>/test": {"POST": "webhooks.post_test"},
    "/webhooks/<webhook_id>/deliveries": {"GET": "webhooks.get_deliveries"},
    "/webhooks/<webhook_id>/deliveries/<delivery_id>/redeliver": {
        "POST": "webhooks.post_redeliver"
    },
    "/admin/cache/invalidate": {"POST": "service.post_invalidate"},
}
"""By path, by method: the module of this package and its function. HEAD is wherever GET is."""

_PARTS = [(path.split("/"), methods) for path, methods in ROUTES.items()]


def find(method: str, path: str) -> tuple[Handler, dict[str, str]]:
    """Who answers, and the named parts of the path.

    Raises RouteNotFoundError, and MethodNotAllowedError with the methods that there are.
    """
    parts = path.rstrip("/").split("/")
    for pattern, methods in _PARTS:
        named = _match(pattern, parts)
        if named is None:
            continue
        target = methods.get("GET" if method == "HEAD" else method)
        if target is None:
            raise MethodNotAllowedError(
                "This path doesn't have this method.", allow=allowed(methods)
            )
        return handler(target), named
    raise RouteNotFoundError("There is no such path.")


def _match(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    named = {}
    for wanted, given in zip(pattern, parts, strict=True):
        if wanted.startswith("<"):
            if not given:
                return None
            named[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return named


def allowed(methods: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods of a path, in order."""
    return tuple(sorted({*methods, "HEAD"} if "GET" in methods else methods))


def handler(target: str) -> Handler:
    """The function of a target in ROUTES."""
    module, _, name = target.partition(".")
    found: Handler = getattr(import_module(f"{__package__}.{module}"), name)
    return found
