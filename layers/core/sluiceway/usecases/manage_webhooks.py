"""Webhook endpoints: a partner registers, rotates, tests, looks back, and sends again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain.endpoint import (
    Endpoint,
    added,
    endpoint_id,
    get,
    rotated,
    secret_text,
    signing_key,
    with_address,
)
from sluiceway.domain.errors import (
    DeliveryNotFoundError,
    StoreBusyError,
    ValidationFailedError,
    WebhookError,
)
from sluiceway.domain.ids import RANDOM_BYTES
from sluiceway.domain.webhook import (
    EVENT_ID_BYTES,
    DeliveryRecord,
    DeliveryStatus,
    a_test,
    is_delivery_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluiceway.ports import Clock, DeliveryLog, WebhookEndpoints, WebhookQueue, WebhookSecrets


class Registrar(NamedTuple):
    """What the use cases here work with."""

    endpoints: WebhookEndpoints
    delivery_log: DeliveryLog
    webhook_secrets: WebhookSecrets
    webhooks: WebhookQueue
    clock: Clock
    randomness: Callable[[int], bytes]
    """So many random bytes."""


def register_webhook(
    tenant: str, url: str, events: tuple[str, ...], description: str, *, registrar: Registrar
) -> tuple[Endpoint, str]:
    """A new endpoint, and its secret, which is told here only.

    Raises ValidationFailedError when the tenant has as many as it may.
    """
    _master(registrar)  # before the write: else it might be there, and nobody told its secret
    now_ms = registrar.clock.now_ms()
    new = Endpoint(
        endpoint_id(now_ms, registrar.randomness(RANDOM_BYTES)),
        url,
        events=events,
        description=description,
        created_at_epoch_ms=now_ms,
    )
    registrar.endpoints.change(tenant, lambda before: added(before, new))
    return new, newest_secret(tenant, new, registrar=registrar)


def rotate_webhook(
    tenant: str, given: str, overlap_s: int, *, registrar: Registrar
) -> tuple[Endpoint, str]:
    """The endpoint with a new secret, and that secret, which is told here only.

    Those before it sign for `overlap_s` more. Raises WebhookNotFoundError.
    """
    _master(registrar)
    now_ms = registrar.clock.now_ms()
    after = registrar.endpoints.change(
        tenant, lambda before: rotated(before, given, now_ms=now_ms, overlap_s=overlap_s)
    )
    endpoint = get(after, given)
    return endpoint, newest_secret(tenant, endpoint, registrar=registrar)


def newest_secret(tenant: str, endpoint: Endpoint, *, registrar: Registrar) -> str:
    """`whsec_…`, for the answers that show it. Raises StoreBusyError."""
    generation = endpoint.secrets[0].generation
    key = signing_key(_master(registrar), tenant, endpoint.endpoint_id, generation)
    return secret_text(key)


def queue_test(
    tenant: str, given: str, correlation_id: str, *, registrar: Registrar
) -> DeliveryRecord:
    """Queues a test of an endpoint, which may be disabled.

    Raises WebhookNotFoundError, and ValidationFailedError of the callbacks.
    """
    with_address(registrar.endpoints.read(tenant), given)
    delivery = a_test(
        tenant,
        given,
        correlation_id=correlation_id,
        now_ms=registrar.clock.now_ms(),
        randomness=registrar.randomness(EVENT_ID_BYTES),
    )
    return _queued(DeliveryRecord(delivery), registrar)


def list_deliveries(
    tenant: str, given: str, *, limit: int, before: str | None, registrar: Registrar
) -> tuple[Sequence[DeliveryRecord], bool]:
    """What became of an endpoint's webhooks, the newest first; True: there are more.

    `limit`: 1 to 100. Raises WebhookNotFoundError.
    """
    get(registrar.endpoints.read(tenant), given)
    now_ms = registrar.clock.now_ms()
    found = registrar.delivery_log.list(
        tenant, given, now_ms=now_ms, limit=limit + 1, before=before
    )
    return [one.as_of(now_ms) for one in found[:limit]], len(found) > limit


def redeliver_webhook(
    tenant: str, given: str, delivery_id: str, *, registrar: Registrar
) -> DeliveryRecord:
    """Queues the same webhook again, whatever became of it.

    Raises WebhookNotFoundError, DeliveryNotFoundError, and ValidationFailedError of an endpoint
    that is disabled.
    """
    endpoint = get(registrar.endpoints.read(tenant), given)
    found = (
        registrar.delivery_log.get(tenant, given, delivery_id, now_ms=registrar.clock.now_ms())
        if is_delivery_id(delivery_id)
        else None
    )
    if found is None:
        raise DeliveryNotFoundError("There is no such delivery, or not any more.")
    if endpoint.disabled and not found.delivery.is_test:
        raise ValidationFailedError("The webhook is disabled; a test that succeeds enables it.")
    return _queued(replace(found, status=DeliveryStatus.PENDING), registrar)


def _queued(record: DeliveryRecord, registrar: Registrar) -> DeliveryRecord:
    if registrar.webhooks.send([record.delivery]):
        raise StoreBusyError("The webhook queue doesn't take it now.", retry_after_s=1)
    return record


def _master(registrar: Registrar) -> bytes:
    try:
        return registrar.webhook_secrets.master()
    except WebhookError as error:
        raise StoreBusyError("The webhook secrets can't be had now.", retry_after_s=5) from error
