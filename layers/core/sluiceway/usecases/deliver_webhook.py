"""Deliver: one attempt at one webhook.

The message's visibility is the clock of the attempts, and SQS itself moves what never arrived to
the webhooks' dead-letter queue. A partner may get a webhook twice, under the same `webhook-id`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain.address import Target, target_of
from sluiceway.domain.endpoint import Endpoint, disabled, enabled, find, signing_keys
from sluiceway.domain.errors import StoreBusyError, WebhookError
from sluiceway.domain.webhook import (
    GONE,
    MAX_RECEIVES,
    TIMEOUT_S,
    Attempt,
    Delivery,
    DeliveryStatus,
    retry_delay_s,
    signed_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.ports import (
        Clock,
        DeliveryLog,
        Flags,
        JobStore,
        Telemetry,
        WebhookClient,
        WebhookEndpoints,
        WebhookSecrets,
    )

Told = dict[str, str | int | bool]


class Courier(NamedTuple):
    """What a delivery works with."""

    jobs: JobStore
    endpoints: WebhookEndpoints
    delivery_log: DeliveryLog
    webhook_secrets: WebhookSecrets
    webhook_client: WebhookClient
    flags: Flags
    clock: Clock
    telemetry: Telemetry
    rand: Callable[[], float]
    """In [0, 1)."""
    local: bool
    """Any scheme, port and address may be called."""


def deliver_webhook(delivery: Delivery, receives: int, courier: Courier) -> float | None:
    """Makes one attempt. None: done with; else the seconds until the message is to come again.

    While webhooks are switched off for the tenant none is made, and the delivery is suppressed.
    `receives` counts from 1; after MAX_RECEIVES the message goes to the dead-letter queue. A test
    is tried once.
    """
    telemetry = courier.telemetry
    told: Told = {
        "tenant": delivery.tenant,
        "endpoint_id": delivery.endpoint_id,
        "delivery_id": delivery.delivery_id,
        "job_id": delivery.job_id,
        "correlation_id": delivery.correlation_id,
        "event_id": delivery.event_id,
        "delivery_attempt": receives,
    }
    started_ms = courier.clock.now_ms()
    if not courier.flags.on("webhooks", tenant=delivery.tenant):
        if not _record(delivery, Attempt(started_ms, DeliveryStatus.SUPPRESSED), courier, told):
            return retry_delay_s(receives, rand=courier.rand())  # else nobody could ask for it
        telemetry.event("webhook_suppressed", None, **told)
        return None
    endpoint = find(courier.endpoints.read(delivery.tenant), delivery.endpoint_id)
    url = None if endpoint is None else _address(delivery, endpoint, courier)
    if endpoint is None or url is None:
        telemetry.event("webhook_unwanted", None, **told)
        if endpoint is not None:
            unwanted = Attempt(started_ms, DeliveryStatus.FAILED, error="unwanted")
            _record(delivery, unwanted, courier, told)
        return None
    last = receives >= MAX_RECEIVES or delivery.is_test
    attempt = _attempt(delivery, endpoint, url, started_ms, courier)
    if attempt.status is not DeliveryStatus.DELIVERED and (last or attempt.http_status == GONE):
        attempt = replace(attempt, status=DeliveryStatus.FAILED)
    told["webhook_latency_ms"] = courier.clock.now_ms() - started_ms
    if attempt.http_status is not None:
        told["http_status"] = attempt.http_status
    _follow(delivery, endpoint, attempt, courier)
    _record(delivery, attempt, courier, told)
    if attempt.status is DeliveryStatus.DELIVERED:
        telemetry.event("webhook_delivered", None, **told)
        return None
    if attempt.http_status == GONE:
        telemetry.event("webhook_disabled", None, **told)
        return None
    telemetry.event("webhook_failed", None, **told, reason=attempt.error or "", last=last)
    return None if delivery.is_test else retry_delay_s(receives, rand=courier.rand())


def _address(delivery: Delivery, endpoint: Endpoint, courier: Courier) -> str | None:
    """Where it goes, if it is still wanted there."""
    if endpoint.url is not None:
        return None if endpoint.disabled and not delivery.is_test else endpoint.url
    job = courier.jobs.get(delivery.tenant, delivery.job_id)
    if job is None or delivery.url not in job.callback_urls:
        return None  # the address answered 410, or the job's time is over
    courier.telemetry.about(job)
    return delivery.url


def _attempt(
    delivery: Delivery, endpoint: Endpoint, url: str, started_ms: int, courier: Courier
) -> Attempt:
    """One request, signed anew; one that failed is pending."""
    try:
        master = courier.webhook_secrets.master()
        keys = signing_keys(master, delivery.tenant, endpoint, now_ms=started_ms)
        status = courier.webhook_client.post(
            _target(url, local=courier.local),
            {
                "content-type": "application/json",
                **signed_headers(delivery, keys, now_s=started_ms // 1000),
            },
            delivery.body.encode(),
            timeout_s=TIMEOUT_S,
        )
    except WebhookError as error:
        return Attempt(started_ms, DeliveryStatus.PENDING, error=error.reason)
    if 200 <= status < 300:  # noqa: PLR2004
        return Attempt(started_ms, DeliveryStatus.DELIVERED, http_status=status)
    reason = "redirected" if 300 <= status < 400 else "refused"  # noqa: PLR2004
    return Attempt(
        started_ms,
        DeliveryStatus.PENDING,
        http_status=status,
        error="gone" if status == GONE else reason,
    )


def _follow(delivery: Delivery, endpoint: Endpoint, attempt: Attempt, courier: Courier) -> None:
    """410 ends what comes to this address, and a good test lets it begin again."""
    if attempt.http_status == GONE and endpoint.url is None:
        courier.jobs.drop_callback(delivery.tenant, delivery.job_id, delivery.url)
    elif attempt.http_status == GONE:
        courier.endpoints.change(
            delivery.tenant,
            lambda before: disabled(
                before, endpoint.endpoint_id, now_ms=attempt.at_epoch_ms, reason="gone"
            ),
        )
    elif attempt.status is DeliveryStatus.DELIVERED and delivery.is_test and endpoint.disabled:
        courier.endpoints.change(
            delivery.tenant, lambda before: enabled(before, endpoint.endpoint_id)
        )


def _record(delivery: Delivery, attempt: Attempt, courier: Courier, told: Told) -> bool:
    """Whether it is noted. A partner who has the webhook mustn't get it again because it isn't."""
    try:
        courier.delivery_log.record(delivery, attempt)
    except StoreBusyError:
        courier.telemetry.event("webhook_unrecorded", None, **told)
        return False
    return True


def _target(url: str, *, local: bool) -> Target:
    """Where it goes, by today's rules: those of its registration may have been others."""
    try:
        return target_of(url, local=local)
    except ValueError as error:
        raise WebhookError("forbidden_url", "The URL may not be called.") from error
