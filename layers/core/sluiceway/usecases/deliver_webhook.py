"""Deliver: one attempt at one webhook.

The message's visibility is the clock of the attempts, and SQS itself moves what never arrived to
the webhooks' dead-letter queue. A partner may get a webhook twice, under the same `webhook-id`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sluiceway.domain.errors import WebhookError
from sluiceway.domain.webhook import (
    GONE,
    MAX_RECEIVES,
    TIMEOUT_S,
    Delivery,
    Target,
    retry_delay_s,
    signed_headers,
    target_of,
)
from sluiceway.ports import Clock, JobStore, Telemetry, WebhookClient, WebhookSecrets


@dataclass(frozen=True, slots=True)
class Courier:
    """What a delivery works with."""

    jobs: JobStore
    webhook_secrets: WebhookSecrets
    webhook_client: WebhookClient
    clock: Clock
    telemetry: Telemetry
    rand: Callable[[], float]
    """In [0, 1)."""
    local: bool
    """Any scheme, port and address may be called."""


def deliver_webhook(delivery: Delivery, receives: int, courier: Courier) -> float | None:
    """Makes one attempt. None: done with; else the seconds until the message is to come again.

    `receives` counts from 1; after MAX_RECEIVES the message goes to the dead-letter queue.
    """
    jobs, telemetry = courier.jobs, courier.telemetry
    told: dict[str, str | int | bool] = {
        "tenant": delivery.tenant,
        "job_id": delivery.job_id,
        "event_id": delivery.event_id,
        "delivery_attempt": receives,
    }
    job = jobs.get(delivery.tenant, delivery.job_id)
    if job is None or delivery.url not in job.callback_urls:
        telemetry.event("webhook_unwanted", None, **told)  # disabled, or the job's time is over
        return None
    telemetry.about(job)
    started_ms = courier.clock.now_ms()
    try:
        keys = courier.webhook_secrets.keys(delivery.tenant)
        if keys is None:
            telemetry.event("webhook_unsigned", None, **told)
            return None
        status = courier.webhook_client.post(
            _target(delivery, local=courier.local),
            {
                "content-type": "application/json",
                **signed_headers(delivery, keys, now_s=started_ms // 1000),
            },
            delivery.body.encode(),
            timeout_s=TIMEOUT_S,
        )
        told["webhook_latency_ms"] = courier.clock.now_ms() - started_ms
        if 200 <= status < 300:  # noqa: PLR2004
            telemetry.event("webhook_delivered", None, **told, http_status=status)
            return None
        if status == GONE:
            jobs.drop_callback(delivery.tenant, delivery.job_id, delivery.url)
            telemetry.event("webhook_disabled", None, **told)
            return None
        told["http_status"] = status
        reason = "redirected" if 300 <= status < 400 else "refused"  # noqa: PLR2004
    except WebhookError as error:
        reason = error.reason
    telemetry.event("webhook_failed", None, **told, reason=reason, last=receives >= MAX_RECEIVES)
    return retry_delay_s(receives, rand=courier.rand())


def _target(delivery: Delivery, *, local: bool) -> Target:
    """Where it goes, by today's rules: the submit's may have been others."""
    try:
        return target_of(delivery.url, local=local)
    except ValueError as error:
        raise WebhookError("forbidden_url", "The URL may not be called.") from error
