"""Fetch: a job id becomes the job with its result, or a hit's id the entry."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluiceway.domain import ids
from sluiceway.domain.errors import JobNotFoundError, ResultExpiredError, StoreBusyError
from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases import places

if TYPE_CHECKING:
    from sluiceway.domain.backlog import Place
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job
    from sluiceway.domain.payload import Payload
    from sluiceway.ports import (
        Backlogs,
        Clock,
        Flags,
        JobStore,
        PayloadStore,
        ResultCache,
        StateStore,
    )
    from sluiceway.usecases.authorize import Caller


@dataclass(frozen=True, slots=True)
class Fetched:
    """A job or a cache entry, and its result document when there is one."""

    found: Job | CacheEntry
    result: bytes | None
    at_ms: int
    """When it was decided what is told: ages are counted to this moment."""
    freshness: Freshness = Freshness.FRESH
    """Of an entry."""
    fallback: tuple[CacheEntry, bytes] | None = None
    """Of an open job in degraded mode: an old answer, and its document."""
    place: Place | None = field(default=None, compare=False)
    """Of an open job; an estimate, so no part of what was found."""


def get_job(
    job_id: str,
    caller: Caller,
    *,
    catalogue: Catalogue,
    flags: Flags,
    jobs: JobStore,
    cache: ResultCache,
    state: StateStore,
    payloads: PayloadStore,
    backlogs: Backlogs,
    clock: Clock,
) -> Fetched:
    """The job as it is now.

    Raises JobNotFoundError, for another tenant's job too, and ResultExpiredError.
    """
    if not ids.well_formed(job_id):
        raise JobNotFoundError(_NOT_FOUND)
    now_ms = clock.now_ms()
    if job_id.startswith(ids.HIT_PREFIX):
        return _hit(
            job_id.removeprefix(ids.HIT_PREFIX),
            caller,
            catalogue=catalogue,
            cache=cache,
            state=state,
            payloads=payloads,
            now_ms=now_ms,
        )
    job = jobs.get(caller.tenant, job_id)
    if job is None:
        raise JobNotFoundError(_NOT_FOUND)
    if job.open:
        # Only who has waited for long has a use for it, or everybody when operators say so; a usual
        # poll is one read, for the picture of the backlog is a copy.
        waits_s = (now_ms - job.created_at_epoch_ms) / 1000
        late = waits_s >= catalogue.service.degraded_until_s or flags.on("degraded")
        return Fetched(
            job,
            None,
            now_ms,
            fallback=_fallback(job, catalogue, cache, state, payloads, now_ms) if late else None,
            place=places.place_of(job, places.read(backlogs, now_ms), catalogue, now_ms),
        )
    if job.result is None:
        return Fetched(job, None, now_ms)
    retained_ms = catalogue.service.result_retention_h * 3_600_000
    if now_ms > (job.completed_at_epoch_ms or 0) + retained_ms:
        raise ResultExpiredError("The job's result is past its retention.")
    return Fetched(job, result_of(job.result, payloads=payloads), now_ms)


def _fallback(
    job: Job,
    catalogue: Catalogue,
    cache: ResultCache,
    state: StateStore,
    payloads: PayloadStore,
    now_ms: int,
) -> tuple[CacheEntry, bytes] | None:
    """In degraded mode the entry that this job is to replace, if it answers who asked.

    Nor is it one that was invalidated while the job waits. None, too, when it can't be had: what
    was asked for is the job.
    """
    if job.cache_scope == "none" or job.cache_mode != "use":
        return None
    with suppress(KeyError, ValueError, StoreBusyError):
        known = state.read()
        entry = cache.read(job.cache_key) if known.degraded else None
        if entry is None or entry.freshness(now_ms) is Freshness.GONE:
            return None
        if not _readable(entry, job.tenant, catalogue):
            return None
        if job.accepts(entry, epoch=known.epoch_for(job.model, job.tenant)):
            return entry, payloads_of.load(entry.result, payloads=payloads)
    return None


def _hit(
    cache_key: str,
    caller: Caller,
    *,
    catalogue: Catalogue,
    cache: ResultCache,
    state: StateStore,
    payloads: PayloadStore,
    now_ms: int,
) -> Fetched:
    """The entry, while this tenant may read it and nobody invalidated it."""
    known = state.read()
    entry = cache.read(cache_key)
    if entry is None or not _readable(entry, caller.tenant, catalogue):
        raise JobNotFoundError(_NOT_FOUND)
    epoch = known.epoch_for(entry.model, caller.tenant)
    if not entry.servable(now_ms, degraded=known.degraded) or not entry.answers(
        asked_after_ms=epoch
    ):
        raise JobNotFoundError(_NOT_FOUND)
    document = result_of(entry.result, payloads=payloads)
    return Fetched(entry, document, now_ms, entry.freshness(now_ms))


def _readable(entry: CacheEntry, tenant: str, catalogue: Catalogue) -> bool:
    """Whether the tenant may see the entry by the catalogue as it is now.

    The entry was written by an older one, perhaps. Of a model that is gone only the owner reads.
    """
    model = catalogue.models.get(entry.model)
    scope = "tenant" if model is None else model.cache.scope
    shared = scope == "shared" and catalogue.tenant(tenant).allow_shared_cache
    return scope != "none" and entry.readable_by(tenant, allow_shared=shared)


def result_of(result: Payload, *, payloads: PayloadStore) -> bytes:
    """The result document: JSON with text, finish_reason, vendor_request_id, content.

    Raises ResultExpiredError when its object was collected, or when it is damaged.
    """
    try:
        return payloads_of.load(result, payloads=payloads)
    except KeyError as error:
        raise ResultExpiredError("The result is past its retention.") from error
    except ValueError as error:
        raise ResultExpiredError("The result is damaged, and can't be had any more.") from error


_NOT_FOUND = "There is no such job."
