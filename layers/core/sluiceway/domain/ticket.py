"""A slot of a gate, as a job keeps it."""

from __future__ import annotations

from dataclasses import dataclass

SLOT_LIVES_MS = 5_000
"""How late a kept slot may be used; then another is taken."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A slot that was taken, and under which version of the gate."""

    slot_at_ms: int
    version: int
    shard: int = 0

    def usable(self, now_ms: int) -> bool:
        """Whether its moment is now."""
        return self.slot_at_ms <= now_ms and not self.missed(now_ms)

    def missed(self, now_ms: int) -> bool:
        """Whether it is too late for it. Its moment was rounded up to a whole millisecond."""
        return now_ms >= self.slot_at_ms + SLOT_LIVES_MS
