"""The gate of a vendor's model: rate slots, cool-down, and what a vendor's refusal does to both.

Slots are given out by GCRA (the leaky bucket of ITU-T I.371): the row holds when the next slot
would be due if nobody had waited, and each take moves that time on by one interval.

    rate 60/min, burst 3:   take take take  take      take      take
                            |    |    |     +1 s      +2 s      +3 s
                            now  now  now   a slot ahead of its time is kept: the taker waits for it

A take adds to that time, so that it needs no read and no taker stands in another's way. What it
assumes, that the gate is busy or idle, and its version, is its condition; a refusal tells the row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.domain.catalogue import Model, Vendor
    from sluiceway.domain.ticket import Ticket

FURTHEST_SLOT_MS = 10 * 60_000
"""No slot further ahead is ever taken: who gave up would waste it."""

_MINUTE_US = 60_000_000

PAUSE_LOOK_MS = 30_000
"""When a job behind a pause looks again, at the earliest."""

PAUSED_SHARDS = 8
"""Rows that a pause writes at least: a higher rate may split the gate meanwhile."""

COOL_DOWN_MS = 10_000
"""After a 429 or an overload without a Retry-After."""

LOWEST_RATE_PERMILLE = 20
RETURNS_IN_MS = 5_000
"""From half the rate that was refused to just below it, where most of a limit is used."""

BELOW_REFUSED_PERMILLE = 950
NEARS_IN_MS = 150_000
"""From there to what was refused: a limit lower than the configured one is overshot rarely, and one
that isn't is used in full again."""

PROBES_EVERY_MS = 3_000
"""Beyond it one thousandth of the configured rate is added each time."""

OPEN_AFTER_FAILURES = 5
"""Failures in a row after which the vendor counts as down."""

OUTAGE_FIRST_MS = 15_000
OUTAGE_EVEN = 4
"""So many probes come one such time after another: a short outage is seen to end soon."""

OUTAGE_LONGEST_MS = 5 * 60_000
"""How long nobody calls a vendor that is down, doubling; then one call probes it."""

ANSWER_TOKENS = 1_000
"""Of an answer whose length the request leaves open."""

MOST_ANSWER_TOKENS = 1_000_000_000
"""More than any answer has; a bound on numbers that are multiplied, and told to partners."""

SHARD_PER_MINUTE = 30_000
"""Takes of one row: a partition of DynamoDB takes 1,000 writes a second."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model's vendor allows; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    burst: int = 1

    @classmethod
    def of(cls, model: Model) -> Limits:
        """Those of the catalogue."""
        return cls(model.requests_per_minute, model.tokens_per_minute, model.burst)

    @property
    def any(self) -> bool:
        """Whether there is a rate."""
        return bool(self.requests_per_minute or self.tokens_per_minute)

    @property
    def shards(self) -> int:
        """Rows that the gate is split into, so that none is written too often."""
        return max(1, -(-self.requests_per_minute // SHARD_PER_MINUTE))


def _burst_us(limits: Limits) -> int:
    """Between the first and the last call of a burst, if they came at the configured rate."""
    return (max(1, limits.burst // limits.shards) - 1) * Gate().interval_us(limits, 0)


@dataclass(frozen=True, slots=True)
class Gate:
    """The row. Times are epoch milliseconds, or microseconds where slots may be closer than one.

    A gate that nobody has used yet is `Gate()`.
    """

    version: int = 0
    """Grows when the gate closes, opens or pauses: slots that were kept before count no more."""
    next_request_at_us: int = 0
    """GCRA's theoretical arrival time of the next request."""
    next_token_at_us: int = 0
    """The same for tokens."""
    closed_until_ms: int = 0
    paused: bool = False
    refused_permille: int = 0
    """Of the configured rate: where the vendor refused last; 0: never."""
    returns_from_ms: int = 0
    """When the rate began to grow again from half of that."""
    failures: int = 0
    """In a row, of a vendor that seems down."""
    probing: bool = False
    """One call at a time finds out whether it is up again."""

    def rate_permille(self, now_ms: int) -> int:
        """Of the configured rate that is used now.

                                              . ' + 1 ‰ each 3 s
        refused  ─ ─ ┐             . . - ─ ─ '
        95 % of it   │           /      150 s
        half         └─(closed)─/ 5 s
        """
        refused = self.refused_permille
        if not refused:
            return 1000
        high = refused * BELOW_REFUSED_PERMILLE // 1000
        since_ms = max(0, now_ms - self.returns_from_ms)
        near_ms = since_ms - RETURNS_IN_MS
        beyond_ms = near_ms - NEARS_IN_MS
        if near_ms < 0:
            low = refused // 2
            rate = low + (high - low) * since_ms // RETURNS_IN_MS
        elif beyond_ms < 0:
            rate = high + (refused - high) * near_ms // NEARS_IN_MS
        else:
            rate = refused + beyond_ms // PROBES_EVERY_MS
        return min(1000, max(LOWEST_RATE_PERMILLE, rate))

    def interval_us(self, limits: Limits, now_ms: int) -> int:
        """Between two requests, at the present rate; 0 without a limit."""
        return self._us(1, limits.requests_per_minute, limits, now_ms)

    def tokens_us(self, limits: Limits, tokens: int, now_ms: int) -> int:
        """Of so many tokens, at the present rate; 0 without a limit."""
        return self._us(tokens, limits.tokens_per_minute, limits, now_ms)

    def _us(self, amount: int, per_minute: int, limits: Limits, now_ms: int) -> int:
        if not per_minute:
            return 0
        per_minute_permille = per_minute * self.rate_permille(now_ms)
        return -(-_MINUTE_US * 1000 * limits.shards * amount // per_minute_permille)

    def back_us(self, limits: Limits, ticket: Ticket, tokens: int, now_ms: int) -> int:
        """How far tokens that weren't used move their line back; on, when they are negative.

        What a take adds to the line lies within a minute of its slot. What of that has passed was
        given to others already, or to nobody. A count that is absurd keeps nobody out for longer
        than the furthest slot.
        """
        left_us = max(0, (ticket.slot_at_ms - now_ms) * 1000 + _MINUTE_US)
        back_us = self.tokens_us(limits, tokens, now_ms)
        return max(-FURTHEST_SLOT_MS * 1000, min(left_us, back_us))

    def ahead_us(self, limits: Limits, tokens: int, now_ms: int) -> tuple[int, int]:
        """How far ahead the times of requests and tokens may be, and a take's slot is due at once.

        A minute's tokens may come in one burst, requests as many as `burst`: at the configured
        rate, whatever the present one is. If it grew with the interval, each halving would let
        another burst through. A call of more tokens than a minute has goes when the gate is idle.
        """
        tokens_us = max(0, _MINUTE_US - self.tokens_us(limits, tokens, now_ms))
        return _burst_us(limits), tokens_us

    def slot_at_us(self, limits: Limits, tokens: int, now_us: int) -> int:
        """When the slot is due that this take gets; now: at once."""
        request_ahead_us, token_ahead_us = self.ahead_us(limits, tokens, now_us // 1000)
        request_us = max(self.next_request_at_us, now_us) - request_ahead_us
        token_us = max(self.next_token_at_us, now_us) - token_ahead_us
        return max(
            request_us if limits.requests_per_minute else now_us,
            token_us if limits.tokens_per_minute else now_us,
            now_us,
        )

    def taken(self, limits: Limits, tokens: int, now_us: int) -> tuple[int, Gate]:
        """The slot of a take, and the gate after it.

        A call comes to both lines at its slot: what it waits for at one of them is no time in
        which the other may hand out more.
        """
        slot_us, now_ms = self.slot_at_us(limits, tokens, now_us), now_us // 1000
        after = self
        if limits.requests_per_minute:
            request_us = max(self.next_request_at_us, slot_us) + self.interval_us(limits, now_ms)
            after = replace(after, next_request_at_us=request_us)
        if limits.tokens_per_minute:
            token_us = max(self.next_token_at_us, slot_us) + self.tokens_us(limits, tokens, now_ms)
            after = replace(after, next_token_at_us=token_us)
        return slot_us, after

    def probe_waits(self, limits: Limits, tokens: int, now_ms: int) -> Shut | None:
        """A probe keeps everybody out, so it takes no slot ahead of its time."""
        slot_ms = -(-self.slot_at_us(limits, tokens, now_ms * 1000) // 1000)
        return Shut(slot_ms) if self.probing and slot_ms > now_ms else None

    def shut(self, now_ms: int) -> Shut | None:
        """Why no slot is given now, whatever the rate says."""
        if self.paused:
            return Shut(now_ms + PAUSE_LOOK_MS, paused=True)
        if self.closed_until_ms > now_ms:
            return Shut(self.closed_until_ms)
        if max(self.next_request_at_us, self.next_token_at_us) > (now_ms + FURTHEST_SLOT_MS) * 1000:
            return Shut(now_ms + FURTHEST_SLOT_MS, far=True)
        return None

    def far(self, limits: Limits, tokens: int, now_ms: int, furthest_ms: int) -> Shut | None:
        """Why this take gets no slot: it is more than `furthest_ms` ahead."""
        until_ms = now_ms + furthest_ms
        slot_us = self.slot_at_us(limits, tokens, now_ms * 1000)
        return Shut(until_ms, far=True) if slot_us > until_ms * 1000 else None

    def closed(self, limits: Limits, *, now_ms: int, until_ms: int) -> Gate:
        """After the vendor said that it was too much: a pause, then half the rate."""
        # What a probe closed for its own time is over.
        closed_until_ms = max(0 if self.probing else self.closed_until_ms, until_ms)
        closed = replace(self, version=self.version + 1, closed_until_ms=closed_until_ms)
        if not limits.any:
            return closed
        return replace(
            _emptied(closed, limits, now_ms, closed_until_ms),
            refused_permille=self.rate_permille(now_ms),
            returns_from_ms=until_ms,
        )

    def down(self, limits: Limits, now_ms: int) -> Gate | None:
        """Closed for an outage, when `failures` say so."""
        if self.failures < OPEN_AFTER_FAILURES:
            return None
        # Of many calls that fail at once more may be counted than it takes; probes count singly.
        failures = self.failures if self.probing else OPEN_AFTER_FAILURES
        doubled = min(max(0, failures - OPEN_AFTER_FAILURES + 1 - OUTAGE_EVEN), 10)
        until_ms = now_ms + min(OUTAGE_LONGEST_MS, OUTAGE_FIRST_MS << doubled)
        down = replace(
            self,
            version=self.version + 1,
            failures=failures,
            probing=True,
            closed_until_ms=until_ms,
        )
        return _emptied(down, limits, now_ms, until_ms)

    def up(self) -> Gate:
        """After an answer. What was closed for the outage opens; earlier slots count no more."""
        if not self.probing:
            return replace(self, failures=0)
        return replace(self, version=self.version + 1, failures=0, probing=False, closed_until_ms=0)

    def pause(self) -> Gate:
        """Nobody calls until somebody resumes it; earlier slots count no more."""
        return replace(self, version=self.version + 1, paused=True)

    def resumed(self, limits: Limits, now_ms: int) -> Gate:
        """After a pause, in which no burst was saved up. What the vendor closed stays closed."""
        resumed = replace(self, version=self.version + 1, paused=False)
        return _emptied(resumed, limits, now_ms, max(now_ms, self.closed_until_ms))


def _emptied(gate: Gate, limits: Limits, now_ms: int, until_ms: int) -> Gate:
    """As if all bursts were used up when the gate opens.

    The slots that were given out count no more. If theirs stayed in the row, nobody would call for
    as long as their line was: ten minutes at most.
    """
    opens_us = max(until_ms * 1000, now_ms * 1000 + Gate().interval_us(limits, 0))
    return replace(
        gate,
        next_request_at_us=opens_us + _burst_us(limits) if limits.requests_per_minute else 0,
        next_token_at_us=opens_us + _MINUTE_US if limits.tokens_per_minute else 0,
    )


@dataclass(frozen=True, slots=True)
class Shut:
    """No slot was taken; the gate is worth another look at `until_ms`."""

    until_ms: int
    paused: bool = False
    far: bool = False
    """So many wait that the next slot is too far ahead to be taken."""


@dataclass(frozen=True, slots=True)
class Room:
    """A limit on calls at once: of a vendor, or of one of its models."""

    vendor: str
    name: str
    """`all`, or `model:` and the vendor's model."""
    places: int


def rooms_of(vendor_name: str, vendor: Vendor, model: Model) -> tuple[Room, ...]:
    """The limits on calls at once that a call of this model is under; none: no limit."""
    rooms = (
        Room(vendor_name, "all", vendor.max_concurrency),
        Room(vendor_name, f"model:{model.vendor_model}", model.max_concurrency),
    )
    return tuple(room for room in rooms if room.places)


def key_of(vendor: str, vendor_model: str) -> str:
    """Of the gate that all models of the catalogue with this vendor's model share."""
    return f"gate#{vendor}#{vendor_model}"


def estimated_tokens(body: bytes) -> tuple[int, int]:
    """What a call may take: a quarter of its bytes, and the answer that it allows.

    `body` is the frozen `{"input", "options"}`. The vendor's own count replaces it after the call.
    """
    options: Mapping[str, object] = json.loads(body).get("options", {})
    asked = (options.get(name) for name in ("max_tokens", "max_completion_tokens"))
    allowed = max(
        (
            math.ceil(min(value, MOST_ANSWER_TOKENS))
            for value in asked
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        ),
        default=ANSWER_TOKENS,
    )
    return -(-len(body) // 4), allowed
