"""Webhooks: endpoints of a partner, and what became of what was sent to them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sluiceway.domain.endpoint import get, removed
from sluiceway.domain.errors import InvalidRequestError, StoreBusyError
from sluiceway.domain.webhook import is_delivery_id
from sluiceway.domain.webhook_request import WebhookRequest, parse_rotation, parse_webhook
from sluiceway.http import Reply, delivery_body, list_reply, webhook_body
from sluiceway.ports import AuditRecord
from sluiceway.routes.idempotency import answered_once
from sluiceway.usecases.features import require_feature
from sluiceway.usecases.list_jobs import limit_of
from sluiceway.usecases.manage_webhooks import (
    list_deliveries,
    newest_secret,
    queue_test,
    redeliver_webhook,
    register_webhook,
    rotate_webhook,
)

if TYPE_CHECKING:
    from sluiceway.routes.request import Request
    from sluiceway.usecases.authorize import Caller


def post_webhook(request: Request) -> Reply:
    """Registers an endpoint. Its secret is in this answer, and in no other."""
    caller = request.caller("submit")
    request.parameters()
    body = request.json()
    wanted = parse_webhook(body, local=request.deps.local)
    return answered_once(
        request,
        caller,
        "POST /webhooks",
        body,
        act=lambda: _registered(wanted, caller, request),
        again=lambda webhook_id: _told_again(webhook_id, caller, request),
    )


def get_webhooks(request: Request) -> Reply:
    """All endpoints of the tenant; its callbacks are the first."""
    caller = request.caller("read")
    request.parameters()
    found = request.deps.registrar().endpoints.read(caller.tenant)
    data = [webhook_body(one) for one in found]
    return list_reply(data, has_more=False, last_id=data[-1]["id"])


def get_webhook(request: Request, webhook_id: str) -> Reply:
    """An endpoint, without its secret."""
    caller = request.caller("read")
    request.parameters()
    found = get(request.deps.registrar().endpoints.read(caller.tenant), webhook_id)
    return Reply(200, webhook_body(found), {})


def delete_webhook(request: Request, webhook_id: str) -> Reply:
    """Takes an endpoint away; what is queued for it is not sent any more."""
    caller = request.caller("submit")
    request.parameters()
    request.deps.registrar().endpoints.change(
        caller.tenant, lambda before: removed(before, webhook_id)
    )
    _note("webhook.delete", webhook_id, caller, request)
    return Reply(204, None, {})


def post_rotate(request: Request, webhook_id: str) -> Reply:
    """Makes a new secret, which is in this answer only; the old one signs for a while more."""
    caller = request.caller("submit")
    request.parameters()
    wanted = parse_rotation(request.optional_json())
    endpoint, secret = rotate_webhook(
        caller.tenant, webhook_id, wanted.overlap_s, registrar=request.deps.registrar()
    )
    _note("webhook.rotate", webhook_id, caller, request)
    return Reply(200, webhook_body(endpoint, secret), {})


def post_test(request: Request, webhook_id: str) -> Reply:
    """Sends an event that is about no job."""
    caller = request.caller("submit")
    request.parameters()
    _require_webhooks(caller, request)
    queued = queue_test(
        caller.tenant,
        webhook_id,
        request.origin().correlation_id,
        registrar=request.deps.registrar(),
    )
    return Reply(202, delivery_body(queued), {})


def get_deliveries(request: Request, webhook_id: str) -> Reply:
    """What became of an endpoint's webhooks, newest first."""
    caller = request.caller("read")
    given = request.parameters("limit", "after")
    limit, after = limit_of(given), given.get("after")
    if after is not None and not is_delivery_id(after):
        raise InvalidRequestError("after is the last_id of the page before.")
    found, has_more = list_deliveries(
        caller.tenant, webhook_id, limit=limit, before=after, registrar=request.deps.registrar()
    )
    data = [delivery_body(one) for one in found]
    last_id = data[-1]["id"] if data else None
    return list_reply(data, has_more=has_more, last_id=last_id)


def post_redeliver(request: Request, webhook_id: str, delivery_id: str) -> Reply:
    """Sends the same webhook again."""
    caller = request.caller("submit")
    request.parameters()
    _require_webhooks(caller, request)
    queued = redeliver_webhook(
        caller.tenant, webhook_id, delivery_id, registrar=request.deps.registrar()
    )
    return Reply(202, delivery_body(queued), {})


def _require_webhooks(caller: Caller, request: Request) -> None:
    """Before what makes an endpoint or a delivery. Raises FeatureDisabledError."""
    require_feature("webhooks", flags=request.deps.submitter.flags, tenant=caller.tenant)


def _registered(wanted: WebhookRequest, caller: Caller, request: Request) -> Reply:
    _require_webhooks(caller, request)
    endpoint, secret = register_webhook(
        caller.tenant,
        wanted.url,
        tuple(wanted.events),
        wanted.description,
        registrar=request.deps.registrar(),
    )
    _note("webhook.create", endpoint.endpoint_id, caller, request)
    location = f"{request.base_path}/webhooks/{endpoint.endpoint_id}"
    return Reply(201, webhook_body(endpoint, secret), {"Location": location})


def _told_again(webhook_id: str, caller: Caller, request: Request) -> Reply:
    """To who sends the same registration again, and so may not have seen the secret."""
    registrar = request.deps.registrar()
    found = get(registrar.endpoints.read(caller.tenant), webhook_id)
    secret = newest_secret(caller.tenant, found, registrar=registrar)
    return Reply(201, webhook_body(found, secret), {})


def _note(action: str, webhook_id: str, caller: Caller, request: Request) -> None:
    """Tells operators, and writes who did it.

    It is done by now: a secret that was made must be shown, even if nobody could write it down.
    """
    deps = request.deps
    deps.telemetry.event(
        "webhook_changed", action=action, endpoint_id=webhook_id, tenant=caller.tenant
    )
    with suppress(StoreBusyError):
        deps.invalidator.audit.add(
            AuditRecord(
                at_epoch_ms=deps.submitter.clock.now_ms(),
                actor=f"key:{caller.key_id}",
                action=action,
                subject=f"webhook:{caller.tenant}:{webhook_id}",
                request_id=request.request_id,
            )
        )
