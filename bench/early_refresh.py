"""Simulate early refreshes: what `early_refresh` (XFetch) spares readers, and what it costs.

One entry, read by a Poisson process and refreshed as submit_job does it: a reader of a stale entry,
or one whom `CacheEntry.early` picks, queues a refresh unless one is under way; the new answer is
there one vendor latency later. Time is simulated and the randomness seeded, so the same figures
come out each time. There is no queue, no jitter and no failure.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.domain.payload import Payload

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report

RATES_PER_S = (0.1, 1.0, 10.0, 100.0)
LATENCIES_S = (1, 10, 30)
BETAS = (0.0, 0.5, 1.0, 2.0)
SOFT_TTLS_S = (3600, 300)
"""The default of a model, and a short one."""

REFRESHES = 200
"""Simulated in each cell."""

SEED = 20
NEGLIGIBLE = 1e-3
"""Readers of whom so few are picked in one life of the entry are not asked one by one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What was found for one rate, latency and beta."""

    rate_per_s: float
    latency_s: int
    beta: float
    stale_share: float
    """Of the readers."""
    took_s: float
    """Simulated."""
    asked: int
    """Readers whom the rule was applied to."""
    early: int
    """Refreshes queued before the soft expiry."""
    lead_s: float
    """Mean time from the queueing of a refresh to the soft expiry; negative: after it."""

    @property
    def calls_per_hour(self) -> float:
        """To the vendor."""
        return REFRESHES / self.took_s * 3600


def simulate(rate_per_s: float, latency_s: int, beta: float, soft_ttl_s: int) -> Cell:
    """So many refreshes of one entry."""
    rng = random.Random(f"{SEED} {rate_per_s} {latency_s} {beta} {soft_ttl_s}")  # noqa: S311
    entry = _stored_at(0, latency_s, soft_ttl_s)
    asked = early = 0
    stale_s = lead_s = 0.0
    for _ in range(REFRESHES):
        now_ms: float = entry.stored_at_epoch_ms + _unpicked_ms(entry, rate_per_s, beta)
        wanted = False
        while not wanted:
            now_ms += rng.expovariate(rate_per_s) * 1000
            asked += 1
            is_stale = entry.freshness(int(now_ms)) is not Freshness.FRESH
            wanted = is_stale or entry.early(int(now_ms), beta=beta, rand=rng.random())
        early += not is_stale
        soft_ms, ready_ms = entry.soft_expires_at_epoch_ms, int(now_ms) + latency_s * 1000
        lead_s += (soft_ms - now_ms) / 1000
        # From here on readers change nothing, so as many count as come on average.
        stale_s += max(0, ready_ms - max(soft_ms, now_ms)) / 1000
        entry = _stored_at(ready_ms, latency_s, soft_ttl_s)
    took_s = entry.stored_at_epoch_ms / 1000
    return Cell(
        rate_per_s,
        latency_s,
        beta,
        stale_share=(rate_per_s * stale_s + REFRESHES - early) / (rate_per_s * took_s),
        took_s=took_s,
        asked=asked,
        early=early,
        lead_s=lead_s / REFRESHES,
    )


def _unpicked_ms(entry: CacheEntry, rate_per_s: float, beta: float) -> int:
    """How long after its storing hardly anybody is picked."""
    ahead_s = entry.upstream_latency_ms / 1000 * beta
    unlikely = min(0.5, NEGLIGIBLE / (1 + rate_per_s * ahead_s))
    lives_ms = entry.soft_expires_at_epoch_ms - entry.stored_at_epoch_ms
    left_ms = 0
    while left_ms < lives_ms and entry.early(
        entry.soft_expires_at_epoch_ms - left_ms, beta=beta, rand=1 - unlikely
    ):
        left_ms += 1000
    return max(0, lives_ms - left_ms)


def _stored_at(now_ms: int, latency_s: int, soft_ttl_s: int) -> CacheEntry:
    """The entry as a vendor that took so long leaves it."""
    return CacheEntry(
        cache_key="c1",
        scope="tenant",
        tenant="acme",
        model="demo-chat",
        result=Payload(inline=b""),
        input_tokens=1,
        output_tokens=1,
        cost_nanos=1,
        asked_at_epoch_ms=now_ms - latency_s * 1000,
        stored_at_epoch_ms=now_ms,
        soft_expires_at_epoch_ms=now_ms + soft_ttl_s * 1000,
        hard_expires_at_epoch_ms=now_ms + 24 * soft_ttl_s * 1000,
        kept_until_epoch_ms=now_ms + 48 * soft_ttl_s * 1000,
        ttl_epoch_s=now_ms // 1000 + 48 * soft_ttl_s,
        upstream_latency_ms=latency_s * 1000,
    )


def measure(soft_ttl_s: int) -> Iterator[list[Cell]]:
    """For each rate and latency the cells of all betas, beta 0 first."""
    for rate_per_s in RATES_PER_S:
        for latency_s in LATENCIES_S:
            yield [simulate(rate_per_s, latency_s, beta, soft_ttl_s) for beta in BETAS]


Found = dict[int, list[list[Cell]]]
"""By the soft TTL."""


def table(rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines: one for each rate and latency, and in each cell all betas."""
    betas = " / ".join(f"{beta:g}" for beta in BETAS)
    head = [
        "readers a second",
        "vendor latency, s",
        f"stale readers, %, beta {betas}",
        f"more vendor calls, %, beta {' / '.join(f'{beta:g}' for beta in BETAS[1:])}",
        f"queued before soft expiry, s, beta {betas}",
    ]
    lines = []
    for cells in rows:
        none = cells[0]
        lines.append(
            [
                f"{none.rate_per_s:g}",
                str(none.latency_s),
                " / ".join(f"{100 * cell.stale_share:.3f}" for cell in cells),
                " / ".join(
                    f"{100 * (cell.calls_per_hour / none.calls_per_hour - 1):.1f}"
                    for cell in cells[1:]
                ),
                " / ".join(f"{cell.lead_s:.1f}" for cell in cells),
            ]
        )
    return head, lines


def parts(found: Found) -> list[report.Part]:
    """For people."""
    return [
        part
        for soft_ttl_s, rows in found.items()
        for part in (f"Soft TTL {soft_ttl_s:,} s:", report.Table("", *table(rows)))
    ]


def figures(found: Found) -> dict[str, Any]:
    """For programs."""
    return {
        "seed": SEED,
        "refreshes": REFRESHES,
        "cells": [
            {
                "soft_ttl_s": soft_ttl_s,
                "rate_per_s": cell.rate_per_s,
                "latency_s": cell.latency_s,
                "beta": cell.beta,
                "stale_share": cell.stale_share,
                "early_refreshes": cell.early,
                "vendor_calls_per_hour": cell.calls_per_hour,
                "lead_s": cell.lead_s,
            }
            for soft_ttl_s, rows in found.items()
            for cells in rows
            for cell in cells
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulates all, and tells."""
    given = report.options(__doc__, arguments)
    found = {soft_ttl_s: list(measure(soft_ttl_s)) for soft_ttl_s in SOFT_TTLS_S}
    report.tell(given, "early_refresh", figures=figures(found), parts=parts(found))
    return 0


if __name__ == "__main__":
    report.run(main)
