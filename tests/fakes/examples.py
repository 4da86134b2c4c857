"""Jobs, entries and keys to start a test from: say what matters, leave the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluiceway.domain import job as transitions
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.job import Job, JobError
from sluiceway.domain.payload import Payload, compress
from sluiceway.domain.webhook import Delivery
from sluiceway.ports import PartnerKey

from tests.fakes.in_memory import NOW_MS

DEADLINE_S = 3600


def a_job(number: int = 1, **changes: Any) -> Job:
    """A queued job, as a submit at NOW_MS makes it; another number is other work."""
    return replace(
        transitions.submitted(
            Job(
                tenant="acme",
                job_id=f"job_{number:026d}",
                model="demo-chat",
                model_version="1",
                job_key=f"j1_{number:042d}",
                cache_key=f"c1_{number:042d}",
                cache_scope="tenant",
                request_id=f"request-{number}",
                correlation_id=f"correlation-{number}",
                created_at_epoch_ms=NOW_MS,
                input=Payload(inline=compress(b'{"input":"hello","options":{}}')),
                counter_shard=0,
                deadline_s=DEADLINE_S,
                ttl_epoch_s=NOW_MS // 1000 + DEADLINE_S + transitions.ROW_OUTLIVES_DEADLINE_S,
                enqueued_at_epoch_ms=NOW_MS,
                deadline_epoch_ms=NOW_MS + DEADLINE_S * 1000,
            )
        ),
        **changes,
    )


def a_refresh(number: int = 1, **changes: Any) -> Job:
    """The refresh job of the entry that `a_job` of this number left."""
    like = a_job(number)
    return a_job(
        number,
        **{
            "tenant": f"refresh#{like.cache_key}",
            "job_id": f"job_refresh{number:015d}",
            "job_key": f"refresh:{like.cache_key}",
            "refreshes_for": "acme",
            "cache_mode": "refresh",
            "asked_after_epoch_ms": NOW_MS,
            "lane": "batch",
            **changes,
        },
    )


def an_error(attempt: int = 1, **changes: Any) -> JobError:
    """Why an attempt failed: the vendor was overloaded."""
    return replace(
        JobError(
            code="vendor_unavailable",
            message="The vendor answered 503.",
            retryable=True,
            attempt=attempt,
            at_epoch_ms=NOW_MS + attempt,
            error_class="VendorError",
            http_status=503,
        ),
        **changes,
    )


def an_entry(job: Job, text: bytes = b"a good answer", **changes: Any) -> CacheEntry:
    """The cached result of `job`, stored at NOW_MS and good for an hour."""
    return replace(
        CacheEntry(
            cache_key=job.cache_key,
            scope="tenant",
            tenant=job.tenant,
            model=job.model,
            result=Payload(inline=text),
            input_tokens=10,
            output_tokens=20,
            cost_nanos=330_000,
            asked_at_epoch_ms=NOW_MS - 1000,
            stored_at_epoch_ms=NOW_MS,
            soft_expires_at_epoch_ms=NOW_MS + 1_800_000,
            hard_expires_at_epoch_ms=NOW_MS + 3_600_000,
            kept_until_epoch_ms=NOW_MS + 7_200_000,
            ttl_epoch_s=NOW_MS // 1000 + 7200,
            vendor_request_id="req_vendor_1",
        ),
        **changes,
    )


def completed(job: Job, text: bytes = b"a good answer", **changes: Any) -> Job:
    """`job` with the vendor's result."""
    return transitions.completed(
        job,
        **{
            "now_ms": NOW_MS + 1000,
            "result": Payload(inline=text),
            "source": "vendor",
            "input_tokens": 10,
            "output_tokens": 20,
            "cost_nanos": 330_000,
            "vendor_request_id": "req_vendor_1",
            "upstream_latency_ms": 300,
            **changes,
        },
    )


def failed(job: Job, *, last_receive: bool = False) -> Job:
    """`job` without a result, for good."""
    return transitions.failed(
        job, an_error(retryable=False), now_ms=NOW_MS + 1000, last_receive=last_receive
    )


def redriven(job: Job, *, lane: str = "interactive", now_ms: int = NOW_MS + 60_000) -> Job:
    """A failed job that gets another run a minute after NOW_MS."""
    return transitions.redriven(job, now_ms=now_ms, lane=lane, due_at_ms=now_ms + 120_000)


def retrying(job: Job, *, delay_ms: int = 2000) -> Job:
    """`job` after an attempt that failed; the next may begin `delay_ms` after NOW_MS."""
    return transitions.retrying(job, an_error(job.attempts), not_before_ms=NOW_MS + delay_ms)


def a_delivery(number: int = 1, **changes: Any) -> Delivery:
    """To an endpoint of acme, of an event that happened so many seconds after NOW_MS."""
    return replace(
        Delivery(
            event_id=f"evt_{number}",
            endpoint_id="whk_1",
            tenant="acme",
            type="job.completed",
            at_epoch_ms=NOW_MS + number * 1000,
            job_id=f"job_{number}",
            correlation_id="corr-1",
            url="",
            body='{"type":"job.completed"}',
        ),
        **changes,
    )


def a_partner_key(number: int = 1, **changes: Any) -> PartnerKey:
    """A key of acme that may submit and read."""
    key = PartnerKey(
        key_hash=f"{number:064x}",
        key_id=f"key_{number:016x}",
        tenant="acme",
        scopes=("submit", "read"),
        created_at_epoch_s=NOW_MS // 1000,
    )
    return key._replace(**changes)
