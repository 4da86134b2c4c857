"""The cache entry, and when it answers a request."""

from dataclasses import dataclass

from sluiceway.domain.payload import Payload


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One row of the Cache table. All times are fixed when it is written; reads never move them."""

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
    stored_at_epoch_ms: int
    hard_expires_at_epoch_ms: int
    ttl_epoch_s: int
    vendor_request_id: str | None = None

    def answers(self, now_ms: int) -> bool:
        """Whether the entry may be served: DynamoDB keeps rows for days after their TTL."""
        return now_ms < self.hard_expires_at_epoch_ms

    def readable_by(self, tenant: str, *, allow_shared: bool) -> bool:
        """Whether this tenant may see the entry."""
        return self.tenant == tenant or (self.scope == "shared" and allow_shared)

    def age_s(self, now_ms: int) -> int:
        """Whole seconds since it was stored (RFC 9111 `Age`)."""
        return max(0, (now_ms - self.stored_at_epoch_ms) // 1000)

    def ttl_s(self, now_ms: int) -> int:
        """Whole seconds until it is no longer served."""
        return max(0, (self.hard_expires_at_epoch_ms - now_ms) // 1000)
