"""What the outside is told of a job: events, and the webhooks that carry them to partners.

An event is thin: ids, status, code, times and usage, never prompt, result or metadata. Its id is a
digest of the job and the transition, so that whoever sees it twice knows.

Webhooks follow Standard Webhooks (github.com/standard-webhooks/standard-webhooks, spec 1.0).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluiceway.domain import ids
from sluiceway.domain.endpoint import CALLBACKS, TEST_TYPE, Endpoints
from sluiceway.domain.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = "sluiceway"

DETAIL_TYPES = {
    "completed": "JobCompleted",
    "failed": "JobFailed",
    "dead_lettered": "JobDeadLettered",
    "cancelled": "JobCancelled",
}
"""The statuses that are told, and their names on the event bus."""


RETRY_DELAYS_S = (5.0, 60.0, 300.0, 1800.0, 7200.0, 21_600.0)
"""After the first failed attempt, the second and so on; close to nine hours in all."""

MAX_RECEIVES = len(RETRY_DELAYS_S) + 1
"""The webhook queue's maxReceiveCount (template.yaml): one attempt each."""

RETRY_JITTER = 0.1
TIMEOUT_S = 15.0
"""Of one attempt in all: name, connection, TLS, request and the head of the reply."""

GONE = 410

EVENT_ID_BYTES = 20

DELIVERY_PREFIX = "dlv_"
GIVEN_UP_AFTER_S = 24 * 3600
"""A delivery that was not tried for so long is not tried again by itself: no pause is as long. What
was to be written of its last attempt is lost."""

DELIVERY_KEPT_S = 30 * 24 * 3600
"""From the event on, whatever becomes of it."""

# ------------------------------------------------------------------------------------ events


@dataclass(frozen=True)
class JobEvent:
    """A job has reached a final state. Times are epoch milliseconds.

    What is told of it is worked out once: bus and webhooks tell the same.
    """

    tenant: str
    job_id: str
    model: str
    lane: str
    status: str
    at_epoch_ms: int
    """When the job reached the status."""
    created_at_epoch_ms: int
    request_id: str
    correlation_id: str
    attempts: int
    redrives: int
    discarded: bool = False
    """An operator gave up on the job, which had failed before."""
    started_at_epoch_ms: int | None = None
    completed_at_epoch_ms: int | None = None
    result_source: str | None = None
    error_code: str | None = None
    error_retryable: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nanos: int | None = None
    saved_nanos: int | None = None
    callback_urls: tuple[str, ...] = ()

    @cached_property
    def event_id(self) -> str:
        """The same however often this transition of this job is told: 36 characters.

        A redriven job comes to an end again, and a discarded one fails twice, so both count.
        """
        transition = [self.tenant, self.job_id, self.status, self.redrives, self.discarded]
        return _event_id(hashlib.sha256(json.dumps(transition).encode()).digest())

    @property
    def type(self) -> str:
        """Its name in a webhook."""
        return f"job.{self.status}"

    @property
    def source(self) -> str:
        """Whose event it is, on the bus."""
        return SOURCE

    @property
    def detail_type(self) -> str:
        """Its name on the event bus."""
        return DETAIL_TYPES[self.status]

    @cached_property
    def data(self) -> Mapping[str, Any]:
        """What a partner is told. The result is fetched from the API."""
        data: dict[str, Any] = {
            "job_id": self.job_id,
            "status": self.status,
            "model": self.model,
            "priority": self.lane,
            "correlation_id": self.correlation_id,
            "attempts": self.attempts,
            "created_at": rfc3339(self.created_at_epoch_ms),
            "started_at": rfc3339(self.started_at_epoch_ms),
            "completed_at": rfc3339(self.completed_at_epoch_ms),
        }
        if self.error_code is not None:
            data["error"] = {"code": self.error_code, "retryable": self.error_retryable}
        if self.status == "completed":
            data["usage"] = {
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "cost": (self.cost_nanos or 0) / 1e9,
                "saved": (self.saved_nanos or 0) / 1e9,
            }
        return data

    def detail(self) -> dict[str, Any]:
        """What the event bus is told: `data` with whose job it is."""
        return {
            "id": self.event_id,
            "tenant": self.tenant,
            "request_id": self.request_id,
            "redrives": self.redrives,
            "result_source": self.result_source,
            "at": rfc3339(self.at_epoch_ms),
            **self.data,
        }

    @cached_property
    def webhook_body(self) -> str:
        """The body of a webhook, the same in every attempt: what is signed must not change."""
        body = {
            "type": self.type,
            "timestamp": rfc3339(self.at_epoch_ms),
            "data": self.data,
        }
        return json.dumps(body, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one address. All text is ASCII."""

    event_id: str
    endpoint_id: str
    tenant: str
    type: str
    """Of EVENT_TYPES, or TEST_TYPE."""
    at_epoch_ms: int
    """When it happened, epoch milliseconds."""
    job_id: str
    """Empty of a test, which is about no job."""
    correlation_id: str
    url: str
    """Of a callback. Empty where the endpoint has an address."""
    body: str

    @property
    def delivery_id(self) -> str:
        """The same however often it is queued or tried, and in order of time: 30 characters."""
        what = json.dumps([self.event_id, self.tenant, self.endpoint_id, self.url])
        return ids.by_age(DELIVERY_PREFIX, self.at_epoch_ms, hashlib.sha256(what.encode()).digest())

    @property
    def is_test(self) -> bool:
        """Whether a partner asked for it, to see the endpoint work."""
        return self.type == TEST_TYPE


class DeliveryStatus(StrEnum):
    """How a delivery stands."""

    PENDING = "pending"
    """It will be tried, or tried again."""
    DELIVERED = "delivered"
    """Its last attempt was answered with 2xx."""
    FAILED = "failed"
    """Nothing more will be tried, unless somebody asks for it."""
    SUPPRESSED = "suppressed"
    """Webhooks were switched off when its turn came; nothing more will be tried, as above."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one attempt. `error`: a word, when it failed."""

    at_epoch_ms: int
    """When it began: of two attempts, the later one is kept in mind."""
    status: DeliveryStatus
    http_status: int | None = None
    error: str | None = None

    @property
    def made(self) -> bool:
        """Whether it was one. Else only the status says what became of the delivery."""
        return self.status is not DeliveryStatus.SUPPRESSED


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery with what is remembered of its attempts."""

    delivery: Delivery
    status: DeliveryStatus = DeliveryStatus.PENDING
    attempts: int = 0
    http_status: int | None = None
    """Of the last attempt, as `error`."""
    error: str | None = None
    first_attempt_at_epoch_ms: int | None = None
    last_attempt_at_epoch_ms: int | None = None
    """Or when it was suppressed."""

    def as_of(self, now_ms: int) -> DeliveryRecord:
        """As it stands at this time: nobody waits for ever for what will not come."""
        last_ms = self.last_attempt_at_epoch_ms
        if self.status is not DeliveryStatus.PENDING or last_ms is None:
            return self
        if now_ms - last_ms < GIVEN_UP_AFTER_S * 1000:
            return self
        return replace(self, status=DeliveryStatus.FAILED)


def deliveries(event: JobEvent, endpoints: Endpoints) -> list[Delivery]:
    """To each endpoint that wants the event, and to each other address that the job was given."""
    wanting = [one for one in endpoints if one.wants(event.type)]
    told = {one.url for one in wanting}
    addresses = [(one.endpoint_id, "") for one in wanting]
    addresses += [(CALLBACKS, url) for url in event.callback_urls if url not in told]
    return [
        Delivery(
            event_id=event.event_id,
            endpoint_id=endpoint_id,
            tenant=event.tenant,
            type=event.type,
            at_epoch_ms=event.at_epoch_ms,
            job_id=event.job_id,
            correlation_id=event.correlation_id,
            url=url,
            body=event.webhook_body,
        )
        for endpoint_id, url in addresses
    ]


def a_test(
    tenant: str, endpoint_id: str, *, correlation_id: str, now_ms: int, randomness: bytes
) -> Delivery:
    """A test of an endpoint. `randomness`: EVENT_ID_BYTES."""
    body = {
        "type": TEST_TYPE,
        "timestamp": rfc3339(now_ms),
        "data": {"webhook_id": endpoint_id, "correlation_id": correlation_id},
    }
    return Delivery(
        event_id=_event_id(randomness),
        endpoint_id=endpoint_id,
        tenant=tenant,
        type=TEST_TYPE,
        at_epoch_ms=now_ms,
        job_id="",
        correlation_id=correlation_id,
        url="",
        body=json.dumps(body, separators=(",", ":")),
    )


def is_delivery_id(given: str) -> bool:
    """Whether this may be the id of a delivery."""
    return re.fullmatch(rf"{DELIVERY_PREFIX}[0-9A-HJKMNP-TV-Z]{{26}}", given) is not None


def oldest_delivery_id(now_ms: int) -> str:
    """No delivery that is still remembered has an id before this one."""
    return ids.by_age(DELIVERY_PREFIX, now_ms - DELIVERY_KEPT_S * 1000, b"")


def _event_id(digest: bytes) -> str:
    return "evt_" + base64.b32encode(digest[:EVENT_ID_BYTES]).decode().lower()


def retry_delay_s(receives: int, *, rand: float) -> float:
    """Seconds from the failed attempt of this receive (from 1) to the next; 0 after the last.

    `rand` in [0, 1) adds up to a tenth, so that what failed together doesn't come back together.
    After the last attempt the message is made visible at once, and SQS moves it at that receive.
    """
    if receives > len(RETRY_DELAYS_S):
        return 0.0
    return RETRY_DELAYS_S[max(1, receives) - 1] * (1 + RETRY_JITTER * rand)


# ------------------------------------------------------------------------------------ signature


def signed_headers(delivery: Delivery, keys: Sequence[bytes], *, now_s: int) -> dict[str, str]:
    """The headers of one attempt. `now_s`: epoch seconds, against replays."""
    signed = f"{delivery.event_id}.{now_s}.{delivery.body}".encode()
    signatures = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in keys
    ]
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": " ".join(signatures),
    }
