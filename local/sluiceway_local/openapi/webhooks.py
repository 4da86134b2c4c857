"""Webhooks: endpoints of a partner, and what became of what was sent to them."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import Field
from sluiceway.domain.endpoint import CALLBACKS, Endpoint, EventType
from sluiceway.domain.webhook import DELIVERY_PREFIX, DeliveryRecord, DeliveryStatus
from sluiceway.domain.webhook import Delivery as Queued
from sluiceway.domain.webhook_request import RotateRequest, WebhookRequest
from sluiceway.http import Reply, delivery_body, list_reply, webhook_body
from sluiceway.usecases.list_jobs import DEFAULT_LIMIT, MAX_LIMIT

from sluiceway_local.openapi import samples
from sluiceway_local.openapi.forms import (
    BODY,
    KEYED,
    Answer,
    Count,
    IdempotencyKey,
    Moment,
    answer,
    area,
    nothing,
    refusals,
)
from sluiceway_local.openapi.jobs import Key

AREA = area("webhooks", "Addresses that are told of the tenant's jobs (Standard Webhooks).")


class Webhook(Answer):
    """An endpoint. The one with the id `callbacks` stands for the addresses that jobs name."""

    id: Key
    object: Literal["webhook"]
    url: str | None
    events: list[EventType]
    description: str
    status: Literal["enabled", "disabled"]
    disabled_reason: str | None
    disabled_at: Moment | None
    created_at: Moment | None


class NewWebhook(Webhook):
    """An endpoint with its secret, which is told only here."""

    secret: Annotated[str, Field(pattern=r"^whsec_")]


class WebhookList(Answer):
    """All endpoints; the callbacks are the first."""

    object: Literal["list"]
    data: list[Webhook]
    has_more: bool
    last_id: str | None


class Delivery(Answer):
    """One event on its way to one address."""

    id: Key
    object: Literal["webhook_delivery"]
    event_id: str
    type: EventType | Literal["webhook.test"]
    job_id: str | None
    """Null of a test."""
    url: str | None
    """Of a callback; an endpoint has its own."""
    status: DeliveryStatus
    """`suppressed`: webhooks were switched off when it was to be sent."""
    attempts: Count
    http_status: int | None
    """Of the last attempt, as `error`."""
    error: str | None
    created_at: Moment
    first_attempt_at: Moment | None
    last_attempt_at: Moment | None
    """Or when it was suppressed."""


class DeliveryList(Answer):
    """A page of deliveries, newest first."""

    object: Literal["list"]
    data: list[Delivery]
    has_more: bool
    last_id: str | None
    """The `after` of the next page."""


_ENDPOINT = Endpoint(
    "whk_01KDVT7V00000000000000000A",
    "https://partner.example/hooks",
    created_at_epoch_ms=samples.NOW_MS,
)
_SECRET = "whsec_Zm9yIHRoZSBkb2N1bWVudCBvbmx5"  # noqa: S105 - an example
_PENDING = DeliveryRecord(
    Queued(
        event_id="evt_01KDVT7V00000000000000000A",
        endpoint_id=_ENDPOINT.endpoint_id,
        tenant="acme",
        type="job.completed",
        at_epoch_ms=samples.NOW_MS,
        job_id=samples.QUEUED.job_id,
        correlation_id="order-1001",
        url="",
        body="{}",
    )
)
_DELIVERED = replace(
    _PENDING,
    status=DeliveryStatus.DELIVERED,
    attempts=1,
    http_status=204,
    first_attempt_at_epoch_ms=samples.NOW_MS + 1_000,
    last_attempt_at_epoch_ms=samples.NOW_MS + 1_000,
)

WebhookId = Annotated[str, Path(description=f"Of the endpoint, or `{CALLBACKS}`.", max_length=64)]


def _told(body: dict[str, Any]) -> Reply:
    return Reply(200, body, {})


@AREA.call(
    "POST",
    "/webhooks",
    "createWebhook",
    scope="submit",
    summary="Register an endpoint",
    answers={
        201: answer(
            "The endpoint and its secret.",
            NewWebhook,
            {"An endpoint": _told(webhook_body(_ENDPOINT, _SECRET))},
            sometimes=("Idempotent-Replayed", "Location"),
        ),
        **refusals(
            *KEYED,
            *BODY,
            *("webhook_not_found", "idempotency_in_progress", "idempotency_key_reused"),
            "feature_disabled",
        ),
    },
)
def _create(
    body: Annotated[
        WebhookRequest,
        Body(
            description="Where to, and what.",
            openapi_examples={
                "all": {
                    "summary": "All events",
                    "value": {"url": "https://partner.example/hooks"},
                }
            },
        ),
    ],
    key: IdempotencyKey = None,
) -> None: ...


@AREA.call(
    "GET",
    "/webhooks",
    "listWebhooks",
    scope="read",
    summary="List the endpoints",
    answers={
        200: answer(
            "All of them.",
            WebhookList,
            {
                "One endpoint": list_reply(
                    [webhook_body(Endpoint(CALLBACKS, None)), webhook_body(_ENDPOINT)],
                    has_more=False,
                    last_id=_ENDPOINT.endpoint_id,
                )
            },
        ),
        **refusals(*KEYED),
    },
)
def _list() -> None: ...


@AREA.call(
    "GET",
    "/webhooks/<webhook_id>",
    "getWebhook",
    scope="read",
    summary="Fetch an endpoint",
    answers={
        200: answer("The endpoint.", Webhook, {"An endpoint": _told(webhook_body(_ENDPOINT))}),
        **refusals(*KEYED, "webhook_not_found"),
    },
)
def _get(webhook_id: WebhookId) -> None: ...


@AREA.call(
    "DELETE",
    "/webhooks/<webhook_id>",
    "deleteWebhook",
    scope="submit",
    summary="Take an endpoint away",
    description="What is queued for it is not sent any more.",
    answers={
        204: nothing("It is gone."),
        **refusals(*KEYED, "webhook_not_found", "validation_failed"),
    },
)
def _delete(webhook_id: WebhookId) -> None: ...


@AREA.call(
    "POST",
    "/webhooks/<webhook_id>/rotate",
    "rotateWebhookSecret",
    scope="submit",
    summary="Make a new secret",
    description="The secrets before it sign for a while more, besides the new one.",
    answers={
        200: answer(
            "The endpoint and its new secret.",
            NewWebhook,
            {"An endpoint": _told(webhook_body(_ENDPOINT, _SECRET))},
        ),
        **refusals(*KEYED, *BODY, "webhook_not_found"),
    },
)
def _rotate(
    webhook_id: WebhookId,
    body: Annotated[
        RotateRequest | None,
        Body(
            description="May be left out.",
            openapi_examples={"hour": {"summary": "An hour", "value": {"overlap_s": 3600}}},
        ),
    ] = None,
) -> None: ...


@AREA.call(
    "POST",
    "/webhooks/<webhook_id>/test",
    "testWebhook",
    scope="submit",
    summary="Send a test event",
    answers={
        202: answer("It is queued.", Delivery, {"A delivery": _told(delivery_body(_PENDING))}),
        **refusals(*KEYED, "feature_disabled", "webhook_not_found", "validation_failed"),
    },
)
def _test(webhook_id: WebhookId) -> None: ...


@AREA.call(
    "GET",
    "/webhooks/<webhook_id>/deliveries",
    "listDeliveries",
    scope="read",
    summary="List what became of an endpoint's webhooks",
    answers={
        200: answer(
            "A page.",
            DeliveryList,
            {
                "A page": list_reply(
                    [delivery_body(_DELIVERED)],
                    has_more=False,
                    last_id=_DELIVERED.delivery.delivery_id,
                )
            },
        ),
        **refusals(*KEYED, "webhook_not_found"),
    },
)
def _deliveries(
    webhook_id: WebhookId,
    limit: Annotated[
        int, Query(ge=1, le=MAX_LIMIT, description="How long the page may be.")
    ] = DEFAULT_LIMIT,
    after: Annotated[
        str | None,
        Query(
            pattern=rf"^{DELIVERY_PREFIX}[0-9A-HJKMNP-TV-Z]{{26}}$",
            description="The page before's `last_id`.",
        ),
    ] = None,
) -> None: ...


@AREA.call(
    "POST",
    "/webhooks/<webhook_id>/deliveries/<delivery_id>/redeliver",
    "redeliverWebhook",
    scope="submit",
    summary="Send the same webhook again",
    answers={
        202: answer("It is queued.", Delivery, {"A delivery": _told(delivery_body(_PENDING))}),
        **refusals(
            *KEYED,
            *("feature_disabled", "webhook_not_found", "delivery_not_found", "validation_failed"),
        ),
    },
)
def _redeliver(
    webhook_id: WebhookId,
    delivery_id: Annotated[str, Path(description="Of the delivery.", max_length=64)],
) -> None: ...
