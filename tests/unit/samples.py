"""Sample jobs, entries and a catalogue, for tests that care about one member of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sluiceway.domain import catalogue
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.job import Job, JobError, submitted
from sluiceway.domain.payload import Payload, compress

from tests.fakes.in_memory import NOW_MS, World

JOB_ID = "job_01KDVT7V00000000000000000A"
CACHE_KEY = "c1_" + "k" * 43
JOB_KEY = "j1_" + "k" * 43
DAY_MS = 24 * 3600 * 1000

CATALOGUE = catalogue.parse(
    """
    [vendors.simulator]
    api_key_secret = "sluiceway/vendors/simulator"

    [vendors.careful]
    on_unknown_outcome = "fail"

    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }

    [models.demo-heavy]
    vendor = "simulator"
    vendor_model = "sim-heavy-1"
    version = "1"
    weight = "heavy"

    [models.demo-shared]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { scope = "shared" }

    [models.demo-uncached]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { scope = "none" }

    [models.demo-window]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    key_window_s = 60

    [models.demo-careful]
    vendor = "careful"
    vendor_model = "sim-chat-1"
    version = "1"

    [models.demo-once]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    max_attempts = 1

    [models.demo-exact]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { only_deterministic = true }

    [models.demo-early]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { early_refresh = 1.0 }

    [tenants.small]
    in_flight = 2

    [tenants.thrifty]
    bypasses_per_day = 2

    [tenants.private]
    allow_shared_cache = false
    """
)


def a_job(**members: Any) -> Job:
    """A job as it is just after its submit, with these members changed."""
    job = Job(
        tenant="acme",
        job_id=JOB_ID,
        model="demo-chat",
        model_version="1",
        job_key=JOB_KEY,
        cache_key=CACHE_KEY,
        cache_scope="tenant",
        request_id="req-1",
        correlation_id="corr-1",
        created_at_epoch_ms=NOW_MS,
        enqueued_at_epoch_ms=NOW_MS,
        deadline_s=86_400,
        deadline_epoch_ms=NOW_MS + DAY_MS,
        ttl_epoch_s=NOW_MS // 1000 + 30 * 86_400,
        counter_shard=0,
        input=packed({"input": "hello", "options": {}}),
    )
    return replace(submitted(job), **members)


def an_entry(**members: Any) -> CacheEntry:
    """A cache entry that was stored now and is good for a day, with these members changed."""
    entry = CacheEntry(
        cache_key=CACHE_KEY,
        scope="tenant",
        tenant="acme",
        model="demo-chat",
        result=packed({"text": "a cached answer", "finish_reason": "stop"}),
        input_tokens=10,
        output_tokens=20,
        cost_nanos=330_000,
        asked_at_epoch_ms=NOW_MS - 1000,
        stored_at_epoch_ms=NOW_MS,
        soft_expires_at_epoch_ms=NOW_MS + DAY_MS // 2,
        hard_expires_at_epoch_ms=NOW_MS + DAY_MS,
        kept_until_epoch_ms=NOW_MS + 2 * DAY_MS,
        ttl_epoch_s=(NOW_MS + 2 * DAY_MS) // 1000,
        vendor_request_id="req_vendor_0",
    )
    return replace(entry, **members)


def an_error(**members: Any) -> JobError:
    """Why an attempt failed."""
    error = JobError(
        code="vendor_unavailable",
        message="The vendor answered 503.",
        retryable=True,
        attempt=1,
        at_epoch_ms=NOW_MS,
        error_class="VendorError",
        http_status=503,
    )
    return replace(error, **members)


def packed(document: Any) -> Payload:
    """A payload that holds this JSON."""
    return Payload(inline=compress(json.dumps(document).encode()))


def written(world: World) -> dict[str, Any]:
    """Whatever is in the world, keys apart: {} when nothing was written."""
    parts = {
        "jobs": world.jobs,
        "claims": world.claims,
        "leases": world.leases,
        "in_flight": +world.in_flight,
        "entries": world.entries,
        "payloads": world.payloads,
    }
    return {name: part for name, part in parts.items() if part}
