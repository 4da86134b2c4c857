"""How long a call may take: twice the median of what calls of its vendor's model took lately.

The workers share a ring of samples for each vendor's model. A new sample takes a random place, so
that it needs no read; what was there is forgotten. A call that timed out would have taken longer
than anybody knows, and is a sample of the longest time that its model allows: when most samples are
such ones, calls get that time, and the next samples tell how slow the vendor has become.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluiceway.domain.catalogue import Timeout

RING = 32
"""Samples of a vendor's model."""

SAMPLE_LIVES_MS = 3_600_000
"""Older ones count no more."""

LEAST_SAMPLES = 8
"""With fewer that count, nothing is known."""

ENOUGH_SAMPLES = 16
"""From so many on, one call in `ONE_IN` is a sample; before, each is."""

ONE_IN = 10

TIMES_MEDIAN = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """What one call took, and when it ended."""

    at_epoch_ms: int
    latency_ms: int


def median_ms(samples: Iterable[Sample], now_ms: int, *, least: int = LEAST_SAMPLES) -> int | None:
    """Of the samples that count, the upper one of two; None when they are fewer than `least`."""
    counted = _counted(samples, now_ms)
    return counted[len(counted) // 2] if len(counted) >= least else None


def wanted(samples: Iterable[Sample], now_ms: int, rand: float) -> bool:
    """Whether one more is written. `rand` is in [0, 1)."""
    return rand * ONE_IN < 1 or len(_counted(samples, now_ms)) < ENOUGH_SAMPLES


def timeout_s(bounds: Timeout, median_ms: int | None) -> float:
    """Seconds that a call may take; the most that its model allows when there is no median."""
    if median_ms is None:
        return bounds.max
    return max(bounds.min, min(bounds.max, TIMES_MEDIAN * median_ms / 1000))


def usual_ms(bounds: Timeout) -> int:
    """What a call takes as long as nobody has measured it.

    Between half of the least timeout and half of the longest, and as many times from either: a
    timeout is about twice what a call takes.
    """
    return round(math.sqrt(bounds.min * bounds.max) / TIMES_MEDIAN * 1000)


def key_of(vendor: str, vendor_model: str) -> str:
    """Of the samples that all models of the catalogue with this vendor's model share."""
    return f"latency#{vendor}#{vendor_model}"


def _counted(samples: Iterable[Sample], now_ms: int) -> list[int]:
    """Of a clock that went wrong by more than a sample's life, none counts."""
    return sorted(
        one.latency_ms for one in samples if abs(now_ms - one.at_epoch_ms) <= SAMPLE_LIVES_MS
    )
