"""Invalidate: what is cached for a model, for a tenant or under a key is served no more.

A model's or tenant's epoch is part of every key made from then on, so nothing is searched for and
nothing deleted: the old entries are found no longer, and open jobs complete without being found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from sluiceway.ports import AuditLog, AuditRecord, Clock, ResultCache, StateStore, Telemetry

if TYPE_CHECKING:
    from sluiceway.domain.request import InvalidateRequest


class Invalidation(NamedTuple):
    """What shall go: everything of a model, everything of a tenant, or one entry."""

    kind: Literal["model", "tenant", "key"]
    name: str
    """Of the model or tenant, or the cache key."""

    @classmethod
    def of(cls, request: InvalidateRequest) -> Invalidation:
        """What the request names."""
        if request.model is not None:
            return cls("model", request.model)
        if request.tenant is not None:
            return cls("tenant", request.tenant)
        return cls("key", request.key or "")

    @property
    def subject(self) -> str:
        """`model:NAME`, `tenant:NAME` or `key:NAME`."""
        return f"{self.kind}:{self.name}"


class Invalidated(NamedTuple):
    """What was done."""

    subject: str
    at_epoch_ms: int
    epoch: int | None
    """The new one of a model or tenant."""
    found: bool | None
    """Of a key: whether there was an entry."""


class Invalidator(NamedTuple):
    """What an invalidation needs from the outside."""

    cache: ResultCache
    state: StateStore
    audit: AuditLog
    clock: Clock
    telemetry: Telemetry


def invalidate_cache(
    what: Invalidation, *, actor: str, request_id: str, invalidator: Invalidator
) -> Invalidated:
    """Every function sees it within 5 s; safe to repeat.

    `actor` and `request_id` are those of AuditRecord. The record is written first: what was done is
    always on record, and what is on record may have to be done again.
    """
    now_ms = invalidator.clock.now_ms()
    invalidator.audit.add(AuditRecord(now_ms, actor, "cache.invalidate", what.subject, request_id))
    epoch, found = None, None
    if what.kind == "key":
        found = invalidator.cache.invalidate(what.name, now_ms=now_ms)
    else:
        epoch = invalidator.state.invalidate(what.subject, now_ms=now_ms)
    invalidator.telemetry.event("cache_invalidated", subject=what.subject)
    return Invalidated(what.subject, now_ms, epoch, found)
