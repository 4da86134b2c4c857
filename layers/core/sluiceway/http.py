"""Replies of the partner API: jobs and problems as API Gateway takes them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sluiceway.domain.errors import (
    BusyError,
    MethodNotAllowedError,
    RejectedError,
    SluicewayError,
    UnauthenticatedError,
)
from sluiceway.domain.freshness import CacheEntry, Freshness, KeptHit
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sluiceway.domain.backlog import Place
    from sluiceway.domain.catalogue import Model
    from sluiceway.domain.endpoint import Endpoint
    from sluiceway.domain.usage import UsageRow
    from sluiceway.domain.webhook import DeliveryRecord
    from sluiceway.ports import RateLeft

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "feature_disabled": 403,
    "job_not_found": 404,
    "batch_not_found": 404,
    "cache_miss": 404,
    "model_not_found": 404,
    "webhook_not_found": 404,
    "delivery_not_found": 404,
    "route_not_found": 404,
    "method_not_allowed": 405,
    "not_cancellable": 409,
    "idempotency_in_progress": 409,
    "result_expired": 410,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "validation_failed": 422,
    "cost_limit": 422,
    "idempotency_key_reused": 422,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "internal": 500,
    "degraded": 503,
    "queue_full": 503,
    "still_running": 504,
}
"""HTTP status of each error code."""

_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

MAX_REPLY_BYTES = 5 * 1024 * 1024
"""Lambda returns 6 MB at most, headers and escapes included."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply; `body` is a JSON value, of which 204 has none, or the text of one."""

    status: int
    body: Any
    headers: Mapping[str, str]
    content_type: str = "application/json"

    def serialised(self) -> str:
        """The body's text; integers and floats stay exact."""
        if self.status == 204:  # noqa: PLR2004
            return ""
        if isinstance(self.body, str):
            return self.body
        return json.dumps(self.body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @property
    def too_large(self) -> bool:
        """Whether Lambda couldn't return it: the body travels as a JSON string within JSON."""
        return len(json.dumps(self.serialised())) > MAX_REPLY_BYTES

    def without_fallback(self) -> Reply:
        """The same without an old answer: the job's own will come."""
        return replace(self, body={n: value for n, value in self.body.items() if n != "fallback"})

    def without(self, *names: str) -> Reply:
        """A batch's, without these members of its jobs: each job can be fetched by its id."""
        data = [
            {**one, "job": {n: value for n, value in one["job"].items() if n not in names}}
            if "job" in one
            else one
            for one in self.body["data"]
        ]
        return replace(self, body={**self.body, "data": data})

    def with_result_url(self, url: str) -> Reply:
        """The same without the result, and with the address from which it is fetched."""
        body = {name: value for name, value in self.body.items() if name != "result"}
        return replace(self, body={**body, "result_url": url})


def problem(error: SluicewayError, request_id: str) -> Reply:
    """An error as problem+json (RFC 9457)."""
    status = STATUS[error.code]
    headers: dict[str, str] = {}
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": _TITLES[status],
        "status": status,
        "code": error.code,
        "detail": str(error),
        "retryable": isinstance(error, BusyError) or status >= 500,  # noqa: PLR2004
        "request_id": request_id,
    }
    if isinstance(error, RejectedError) and error.errors:
        body["errors"] = list(error.errors)
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = ", ".join(error.allow)
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.retry_after_s)
    return Reply(status, body, headers, "application/problem+json")


def job_body(
    job: Job,
    *,
    base_path: str,
    now_ms: int,
    deduplicated: bool = False,
    place: Place | None = None,
) -> dict[str, Any]:
    """A job as the partner sees it, without its result. `place`: of an open job."""
    self_url = f"{base_path}/jobs/{job.job_id}"
    body: dict[str, Any] = {
        "id": job.job_id,
        "object": "job",
        "status": job.status.value,
        "model": job.model,
        "priority": job.lane,
        "created_at": rfc3339(job.created_at_epoch_ms),
        "started_at": rfc3339(job.started_at_epoch_ms),
        "completed_at": rfc3339(job.completed_at_epoch_ms or job.failed_at_epoch_ms),
        "attempts": job.attempts,
        "deduplicated": deduplicated,
        "cache": _cache_of(job, now_ms)[0],
        "metadata": job.metadata,
        "urls": {"self": self_url, "cancel": f"{self_url}/cancel"},
    }
    if place is not None:
        body["queue"] = _queue(place)
    if job.result is not None:
        body["usage"] = {
            "input_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
            "cost": cost(job.cost_nanos),
            "saved": cost(job.saved_nanos),
        }
    if job.error is not None and not job.open:
        body["error"] = {
            "code": job.error.code,
            "message": job.error.message,
            "retryable": job.error.retryable,
            "at": rfc3339(job.error.at_epoch_ms),
        }
    return body


def job_reply(
    status: int,
    job: Job,
    result: bytes | None,
    *,
    base_path: str,
    now_ms: int,
    deduplicated: bool = False,
    fallback: tuple[CacheEntry, bytes] | None = None,
    place: Place | None = None,
) -> Reply:
    """A job as the partner sees it. `fallback`: an old answer and its document, for an open job.

    `place`: of an open job, where it stands.
    """
    body = job_body(job, base_path=base_path, now_ms=now_ms, deduplicated=deduplicated, place=place)
    headers = _cache_of(job, now_ms)[1]
    if result is not None:
        body["result"] = result_body(result, job.vendor_request_id)
    if fallback is not None:
        entry, document = fallback
        body["fallback"] = {
            "result": result_body(document, entry.vendor_request_id),
            "age_s": entry.age_s(now_ms),
        }
    if status == 202:  # noqa: PLR2004
        headers["Location"] = body["urls"]["self"]
    if job.open:
        headers["Retry-After"] = str(poll_after_s(place))
    return Reply(status, body, headers)


def list_reply(data: list[dict[str, Any]], *, has_more: bool, last_id: str | None) -> Reply:
    """A page of a list; `last_id` is the `after` of the next one."""
    body = {"object": "list", "data": data, "has_more": has_more, "last_id": last_id}
    return Reply(200, body, {})


def models_reply(models: Mapping[str, Model]) -> Reply:
    """The models in OpenAI's list form."""
    data = [_model_body(name, model) for name, model in sorted(models.items())]
    return Reply(200, {"object": "list", "data": data}, {})


def usage_reply(first_day: str, last_day: str, rows: Iterable[UsageRow]) -> Reply:
    """A tenant's usage of these days, in the order of `rows`."""
    data = [
        {
            "date": row.day,
            "model": row.model,
            "completed": row.completed,
            "failed": row.failed,
            "cancelled": row.cancelled,
            "from_cache": row.from_cache,
            "input_tokens": row.input_tokens,
            "output_tokens": row.output_tokens,
            "cost": cost(row.cost_nanos),
            "saved": cost(row.saved_nanos),
        }
        for row in rows
    ]
    return Reply(200, {"object": "list", "from": first_day, "to": last_day, "data": data}, {})


def model_reply(name: str, model: Model) -> Reply:
    """One of them."""
    return Reply(200, _model_body(name, model), {})


def _model_body(name: str, model: Model) -> dict[str, Any]:
    """A model as OpenAI's clients read it, with its version beside it.

    `created` is there for them; a catalogue doesn't know it.
    """
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": model.vendor,
        "version": model.version,
    }


def with_rate(reply: Reply, rate: RateLeft | None) -> Reply:
    """The reply with where the tenant stands (draft-ietf-httpapi-ratelimit-headers)."""
    if rate is None:
        return reply
    told = {
        "RateLimit": f'"minute";r={rate.left};t={rate.resets_in_s}',
        "RateLimit-Policy": f'"minute";q={rate.limit};w=60',
    }
    return replace(reply, headers={**reply.headers, **told})


_CACHE_STATUS = {
    "use": ("miss", "fwd=miss"),
    "refresh": ("refresh", "fwd=stale"),
    "bypass": ("bypass", "fwd=bypass"),
}
"""Of a job that asks the vendor, by its cache mode: in the body, and as RFC 9211 says it."""

_HIT_STATUS = {
    Freshness.FRESH: "hit",
    Freshness.STALE: "stale",
    Freshness.EXPIRED: "degraded",
}


def _cache_of(job: Job, now_ms: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What body and headers say of the cache's part in a job."""
    stored_at_ms = job.result_stored_at_epoch_ms
    if stored_at_ms is None:
        status, forwarded = _CACHE_STATUS[job.cache_mode]
        return {"status": status, "age_s": 0, "stale": False}, {
            "Cache-Status": f"sluiceway; {forwarded}"
        }
    # A result that another job had paid for, while this one waited for its turn.
    age_s = max(0, (now_ms - stored_at_ms) // 1000)
    return {"status": "hit", "age_s": age_s, "stale": False}, {
        "Cache-Status": "sluiceway; hit",
        "Age": str(age_s),
    }


def _cache_of_hit(hit: KeptHit) -> dict[str, Any]:
    return {
        "status": _HIT_STATUS[hit.freshness],
        "age_s": hit.age_s,
        "stale": hit.freshness is not Freshness.FRESH,
    }


def hit_reply(
    entry: CacheEntry, freshness: Freshness, result: bytes, *, base_path: str, now_ms: int
) -> Reply:
    """A cache entry as the partner sees it: a completed job that cost nothing."""
    hit = KeptHit.of(entry, freshness, now_ms)
    body = hit_body(hit, base_path=base_path)
    body["result"] = result_body(result, entry.vendor_request_id)
    return Reply(
        200,
        body,
        {"Cache-Status": f"sluiceway; hit; ttl={entry.ttl_s(now_ms)}", "Age": str(hit.age_s)},
    )


def hit_body(hit: KeptHit, *, base_path: str) -> dict[str, Any]:
    """A hit as the partner sees it, without its result."""
    stored_at = rfc3339(hit.stored_at_epoch_ms)
    return {
        "id": hit.hit_id,
        "object": "job",
        "status": JobStatus.COMPLETED.value,
        "model": hit.model,
        "priority": "interactive",
        "created_at": stored_at,
        "started_at": stored_at,
        "completed_at": stored_at,
        "attempts": 0,
        "deduplicated": False,
        "cache": _cache_of_hit(hit),
        "usage": {
            "input_tokens": hit.input_tokens,
            "output_tokens": hit.output_tokens,
            "cost": 0,
            "saved": cost(hit.cost_nanos),
        },
        "metadata": {},
        "urls": {"self": f"{base_path}/jobs/{hit.hit_id}"},
    }


def dry_run_reply(
    job: Job,
    *,
    now_ms: int,
    tokens: tuple[int, int],
    cost_nanos: int,
    place: Place,
    deduplicated: bool,
    hit: tuple[CacheEntry, Freshness] | None,
) -> Reply:
    """What a submit of `job` would get now. `tokens`: of question and answer, about."""
    cache = _cache_of(job, now_ms)[0] if hit is None else _cache_of_hit(KeptHit.of(*hit, now_ms))
    body = {
        "object": "dry_run",
        "model": job.model,
        "priority": job.lane,
        "job_key": job.job_key,
        "cache_key": job.cache_key,
        "cache": cache,
        "deduplicated": deduplicated,
        "estimate": {
            "input_tokens": tokens[0],
            "output_tokens": tokens[1],
            "cost": cost(cost_nanos),
        },
        "queue": _queue(place),
    }
    return Reply(200, body, {})


def invalidated_reply(
    subject: str, *, at_ms: int, epoch: int | None = None, found: bool | None = None
) -> Reply:
    """What an invalidation did; the other functions see it within 5 s.

    `epoch`: the new one of a model or tenant. `found`: whether a key had an entry.
    """
    body = {
        "object": "invalidation",
        "subject": subject,
        "at": rfc3339(at_ms),
        "epoch": epoch,
        "found": found,
    }
    return Reply(200, {name: value for name, value in body.items() if value is not None}, {})


def webhook_body(endpoint: Endpoint, secret: str | None = None) -> dict[str, Any]:
    """An endpoint as the partner sees it. `secret`: only where it is new."""
    body = {
        "id": endpoint.endpoint_id,
        "object": "webhook",
        "url": endpoint.url,
        "events": list(endpoint.events),
        "description": endpoint.description,
        "status": "disabled" if endpoint.disabled else "enabled",
        "disabled_reason": endpoint.disabled_reason,
        "disabled_at": rfc3339(endpoint.disabled_at_epoch_ms),
        "created_at": rfc3339(endpoint.created_at_epoch_ms),
    }
    return body if secret is None else {**body, "secret": secret}


def delivery_body(record: DeliveryRecord) -> dict[str, Any]:
    """A webhook's delivery as the partner sees it."""
    delivery = record.delivery
    return {
        "id": delivery.delivery_id,
        "object": "webhook_delivery",
        "event_id": delivery.event_id,
        "type": delivery.type,
        "job_id": delivery.job_id or None,
        "url": delivery.url or None,
        "status": record.status.value,
        "attempts": record.attempts,
        "http_status": record.http_status,
        "error": record.error,
        "created_at": rfc3339(delivery.at_epoch_ms),
        "first_attempt_at": rfc3339(record.first_attempt_at_epoch_ms),
        "last_attempt_at": rfc3339(record.last_attempt_at_epoch_ms),
    }


def result_body(document: bytes, vendor_request_id: str | None) -> dict[str, Any]:
    """A result document as the partner sees it."""
    return {**json.loads(document), "vendor_request_id": vendor_request_id}


def _queue(place: Place) -> dict[str, int]:
    return {"position": place.position, "eta_s": math.ceil(place.eta_ms / 1000)}


LEAST_POLL_S = 1
LONGEST_POLL_S = 60
"""A job may end earlier than was thought: a call that failed, a line that others left."""


def poll_after_s(place: Place | None) -> int:
    """Soon while the job may end at any moment, later when it has to wait for long."""
    after_s = 0 if place is None else math.ceil(place.look_in_ms / 1000)
    return min(max(LEAST_POLL_S, after_s), LONGEST_POLL_S)


def cost(nanos: int | None) -> float:
    """In the unit of the catalogue's prices."""
    return (nanos or 0) / 1e9
