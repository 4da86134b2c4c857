"""The cache entry: how fresh it is, whom it answers, and when it is worth a refresh.

    stored ───── soft ───────── hard ──────────── kept until
       │  fresh   │    stale     │    expired       │  gone
       │  served  │ served, and  │ served only in   │
       │          │ refreshed    │ degraded mode    │

All times are fixed when the entry is written; reads never move them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sluiceway.domain import ids

if TYPE_CHECKING:
    from sluiceway.domain.payload import Payload

REFRESH_DEADLINE_S = 600
"""Of a refresh job. Until then the entry's later readers ask for no other."""

COOL_DOWN_FIRST_MS = 60_000
COOL_DOWN_LONGEST_MS = 15 * 60_000
"""After a refresh that failed, doubling: a vendor that is down isn't asked by each reader."""


TOMBSTONE_S = 8 * 24 * 3600
"""Of an invalidated key: longer than any job that was there before may run."""


class Freshness(StrEnum):
    """Where an entry stands between its times."""

    FRESH = "fresh"
    STALE = "stale"
    EXPIRED = "expired"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The times of an entry, epoch milliseconds."""

    soft_expires_at_epoch_ms: int
    hard_expires_at_epoch_ms: int
    kept_until_epoch_ms: int


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One row of the cache."""

    cache_key: str
    scope: str
    """`tenant` or `shared`."""
    tenant: str
    """Who paid; in scope `tenant` nobody else may read it."""
    model: str
    result: Payload
    input_tokens: int
    output_tokens: int
    cost_nanos: int
    """What the answer cost; a hit saves it."""
    asked_at_epoch_ms: int
    """When the vendor was asked: whatever was wanted before is in the answer."""
    stored_at_epoch_ms: int
    soft_expires_at_epoch_ms: int
    hard_expires_at_epoch_ms: int
    kept_until_epoch_ms: int
    ttl_epoch_s: int
    upstream_latency_ms: int = 0
    vendor_request_id: str | None = None
    fence: int = 0
    """Of the lease under which it was written: the next holder's first guess."""

    # Written by refreshes, which are no reads
    refresh_job_id: str | None = None
    refresh_until_epoch_ms: int | None = None
    """A refresh is queued or running, and has ended by then."""
    refresh_after_epoch_ms: int | None = None
    """The last refresh failed: no other before then."""
    refresh_failures: int = 0
    """In a row."""
    refresh_error: str | None = None
    """Code of the last failure."""

    def freshness(self, now_ms: int) -> Freshness:
        """How fresh the entry is: DynamoDB keeps rows for days after their TTL."""
        if now_ms < self.soft_expires_at_epoch_ms:
            return Freshness.FRESH
        if now_ms < self.hard_expires_at_epoch_ms:
            return Freshness.STALE
        return Freshness.EXPIRED if now_ms < self.kept_until_epoch_ms else Freshness.GONE

    def servable(self, now_ms: int, *, degraded: bool) -> bool:
        """Whether its own times let it be served; an expired one only in degraded mode."""
        freshness = self.freshness(now_ms)
        return freshness in {Freshness.FRESH, Freshness.STALE} or (
            degraded and freshness is Freshness.EXPIRED
        )

    def answers(self, *, not_older_than_ms: int = 0, asked_after_ms: int = -1) -> bool:
        """Whether it is young enough for who asks, whatever its own times say."""
        return (
            self.stored_at_epoch_ms >= not_older_than_ms and self.asked_at_epoch_ms > asked_after_ms
        )

    def readable_by(self, tenant: str, *, allow_shared: bool) -> bool:
        """Whether this tenant may see the entry."""
        return self.tenant == tenant or (self.scope == "shared" and allow_shared)

    def may_be_refreshed(self, now_ms: int) -> bool:
        """Whether no refresh is under way, nor failed a moment ago."""
        return now_ms >= max(self.refresh_until_epoch_ms or 0, self.refresh_after_epoch_ms or 0)

    def early(self, now_ms: int, *, beta: float, rand: float) -> bool:
        """Whether this reader refreshes the entry before it is stale (the XFetch rule).

        The nearer the soft expiry and the longer the vendor took, the likelier; so of a hot entry's
        many readers one comes in time, and a rarely read entry costs nothing. `beta` 0: never;
        1: the optimum of Vattani, Chierichetti and Lowenstein, 2015. `rand` is in [0, 1).
        Never before half of the fresh life is over: a vendor that got slow isn't asked more often.
        """
        ahead_ms = -self.upstream_latency_ms * beta * math.log(1 - rand)
        half_ms = (self.soft_expires_at_epoch_ms - self.stored_at_epoch_ms) / 2
        return beta > 0 and now_ms + min(ahead_ms, half_ms) >= self.soft_expires_at_epoch_ms

    def age_s(self, now_ms: int) -> int:
        """Whole seconds since it was stored (RFC 9111 `Age`)."""
        return max(0, (now_ms - self.stored_at_epoch_ms) // 1000)

    def ttl_s(self, now_ms: int) -> int:
        """Whole seconds until it is stale, negative when it is (RFC 9211 `ttl`)."""
        return (self.soft_expires_at_epoch_ms - now_ms) // 1000


def lifetime(
    stored_at_ms: int,
    *,
    soft_ttl_s: float,
    hard_ttl_s: float,
    stale_if_error_s: float,
    jitter: float,
    rand: float,
    ttl_s: int | None = None,
) -> Lifetime:
    """The times of an entry stored now.

    Jitter only shortens, by up to that share (`rand` in [0, 1)), so that entries written together
    don't expire together and none lives longer than the model allows. `ttl_s`, the partner's own
    bound, shortens all of it: nothing is kept for degraded mode past it.
    """
    scale = 1 - jitter * rand
    soft_s, hard_s = soft_ttl_s * scale, hard_ttl_s * scale
    kept_s = hard_s + stale_if_error_s
    if ttl_s is not None:
        soft_s, hard_s, kept_s = min(soft_s, ttl_s), min(hard_s, ttl_s), min(kept_s, ttl_s)
    return Lifetime(*(stored_at_ms + round(seconds * 1000) for seconds in (soft_s, hard_s, kept_s)))


def cool_down_ms(failures: int) -> int:
    """How long no refresh is tried after so many failures in a row, 1 at least."""
    return min(COOL_DOWN_LONGEST_MS, COOL_DOWN_FIRST_MS << min(failures - 1, 10))


@dataclass(frozen=True, slots=True)
class KeptHit:
    """A hit as it was given out, without its result: what is told of it later, too."""

    cache_key: str
    model: str
    freshness: Freshness
    age_s: int
    """When it was given out."""
    stored_at_epoch_ms: int
    input_tokens: int
    output_tokens: int
    cost_nanos: int
    """What the call had cost, in 1e-9 of the prices' unit: the hit saves it."""

    @classmethod
    def of(cls, entry: CacheEntry, freshness: Freshness, now_ms: int) -> KeptHit:
        """The entry as it is given out now."""
        return cls(
            cache_key=entry.cache_key,
            model=entry.model,
            freshness=freshness,
            age_s=entry.age_s(now_ms),
            stored_at_epoch_ms=entry.stored_at_epoch_ms,
            input_tokens=entry.input_tokens,
            output_tokens=entry.output_tokens,
            cost_nanos=entry.cost_nanos,
        )

    @property
    def hit_id(self) -> str:
        """The id under which its result is fetched."""
        return ids.hit_id(self.cache_key)
