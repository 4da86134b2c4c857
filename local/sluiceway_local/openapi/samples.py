"""What the document's examples are made of: the API's own replies to sample jobs."""

from dataclasses import replace
from typing import Any

from sluiceway.domain import job as transitions
from sluiceway.domain.backlog import Place
from sluiceway.domain.catalogue import Model
from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.domain.job import Job, JobError, JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.http import Reply, dry_run_reply, hit_reply, job_body, job_reply, list_reply

NOW_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

BASE_PATH = "/v1"
PLACE = Place(position=3, eta_ms=12_000, look_in_ms=6_000)
RESULT = b'{"text":"Sluice gates hold water back.","finish_reason":"stop"}'
_KEY = "Zm9yIHRoZSBkb2N1bWVudCBvbmx5LCBub3QgYSBrZXk"

QUEUED = transitions.submitted(
    Job(
        tenant="acme",
        job_id="job_01KDVT7V00000000000000000A",
        model="demo-chat",
        model_version="1",
        job_key=f"j1_{_KEY}",
        cache_key=f"c1_{_KEY}",
        cache_scope="tenant",
        request_id="request",
        correlation_id="order-1001",
        created_at_epoch_ms=NOW_MS,
        input=Payload(inline=b""),
        counter_shard=0,
        deadline_s=86_400,
        ttl_epoch_s=NOW_MS // 1000,
        metadata={"order": "1001"},
        enqueued_at_epoch_ms=NOW_MS,
        deadline_epoch_ms=NOW_MS + 86_400_000,
    )
)
COMPLETED = replace(
    QUEUED,
    status=JobStatus.COMPLETED,
    attempts=1,
    started_at_epoch_ms=NOW_MS + 2_000,
    completed_at_epoch_ms=NOW_MS + 4_500,
    result=Payload(inline=b""),
    input_tokens=10,
    output_tokens=20,
    cost_nanos=330_000,
    saved_nanos=0,
    vendor_request_id="req_vendor_1",
)
FAILED = replace(
    QUEUED,
    status=JobStatus.FAILED,
    attempts=4,
    started_at_epoch_ms=NOW_MS + 2_000,
    failed_at_epoch_ms=NOW_MS + 60_000,
    error=JobError(
        code="vendor_unavailable",
        message="The vendor answered 503.",
        retryable=True,
        attempt=4,
        at_epoch_ms=NOW_MS + 60_000,
        error_class="VendorError",
        http_status=503,
    ),
)
CANCELLED = replace(QUEUED, status=JobStatus.CANCELLED, completed_at_epoch_ms=NOW_MS + 3_000)
ENTRY = CacheEntry(
    cache_key=QUEUED.cache_key,
    scope="tenant",
    tenant="acme",
    model="demo-chat",
    result=Payload(inline=b""),
    input_tokens=10,
    output_tokens=20,
    cost_nanos=330_000,
    asked_at_epoch_ms=NOW_MS - 62_000,
    stored_at_epoch_ms=NOW_MS - 60_000,
    soft_expires_at_epoch_ms=NOW_MS + 3_540_000,
    hard_expires_at_epoch_ms=NOW_MS + 86_340_000,
    kept_until_epoch_ms=NOW_MS + 172_740_000,
    ttl_epoch_s=NOW_MS // 1000 + 172_740,
    vendor_request_id="req_vendor_1",
)
MODELS = {"demo-chat": Model(vendor="simulator", vendor_model="sim-chat-1", version="1")}


def job(status: int, of: Job, **members: Any) -> Reply:
    """The reply about this job."""
    result = RESULT if of.status is JobStatus.COMPLETED else None
    place = PLACE if of.open else None
    return job_reply(
        status, of, result, base_path=BASE_PATH, now_ms=NOW_MS + 60_000, place=place, **members
    )


def hit() -> Reply:
    """The reply that the cache gives."""
    return hit_reply(ENTRY, Freshness.FRESH, RESULT, base_path=BASE_PATH, now_ms=NOW_MS)


def late() -> Reply:
    """The reply about a job that is late, with an old answer."""
    return job(200, QUEUED, fallback=(ENTRY, RESULT))


def by_address() -> Reply:
    """The reply about a job whose result is too big for an answer."""
    return job(200, COMPLETED).with_result_url("https://bucket.s3.amazonaws.com/results/x?signed")


def dry_run() -> Reply:
    """The reply to a dry run."""
    return dry_run_reply(
        QUEUED,
        now_ms=NOW_MS,
        tokens=(10, 1_000),
        cost_nanos=15_030_000,
        place=PLACE,
        deduplicated=False,
        hit=None,
    )


def page() -> Reply:
    """The reply to a list."""
    data = [job_body(of, base_path=BASE_PATH, now_ms=NOW_MS + 60_000) for of in (COMPLETED, FAILED)]
    return list_reply(data, has_more=True, last_id=FAILED.job_id)
