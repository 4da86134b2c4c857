"""The timed right to work on a key: that of a cache entry, or of one job that fills none.

A lease is free when its end, plus the skew allowed between clocks, has passed; its holder stops as
much before its end. So two machines whose clocks differ by less than twice the skew never work on
one key at once.

    A: acquires fence 7 ── pauses ───────────────── writes with fence 7: refused
    B:                      takes over (fence 8) ── completes
"""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_SKEW_MS = 6_000
"""What clocks may differ by; Lambda's differ by milliseconds."""

ROW_OUTLIVES_LEASE_S = 30 * 24 * 3600
"""The row keeps the fence: if it went away, the fence would start again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its holder knows it. `token` is fresh for each delivery."""

    key: str
    """`Job.lease_key`."""
    token: str
    fence: int
    ends_at_epoch_ms: int

    def working_time_ms(self, now_ms: int) -> int:
        """Milliseconds in which the holder may still begin something; 0 at least."""
        return max(0, self.ends_at_epoch_ms - CLOCK_SKEW_MS - now_ms)


def is_free(ends_at_epoch_ms: int, now_ms: int) -> bool:
    """Whether a lease with this end can be taken over."""
    return ends_at_epoch_ms + CLOCK_SKEW_MS < now_ms
