"""The vendor of a benchmark: a simulator that enforces a limit, and what follows of the limit."""

import json
import statistics
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluiceway_local import processes

STARTS_IN_S = 20.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a vendor allows: a bucket of `burst` calls that is filled with `per_minute`."""

    per_minute: float
    burst: int

    def used(self, answered: int, *, in_s: float) -> float:
        """What part of the calls that are allowed in that time, from a full bucket on."""
        return answered / (self.burst + self.per_minute / 60 * in_s)


@dataclass(frozen=True, slots=True)
class Vendor:
    """A simulator that runs."""

    url: str
    """Its root."""

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Something of its control."""
        request = urllib.request.Request(  # noqa: S310 - our own simulator
            f"{self.url}/_control/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
            return found


@contextmanager
def started(limit: Limit, *, latency_s: float, log: Path) -> Iterator[Vendor]:
    """A fresh vendor in a process of its own. Raises RuntimeError when it doesn't come up."""
    options = {
        "--requests-per-minute": limit.per_minute,
        "--burst": limit.burst,
        "--latency-s": latency_s,
    }
    process = processes.start(
        [sys.executable, "-m", "sluiceway_local.simulator"]
        + [str(part) for option in options.items() for part in option],
        env=processes.clean_environment(),
        log=log,
    )
    try:
        told = "listening on "
        if not processes.wait_for(lambda: told in log.read_text(), timeout_s=STARTS_IN_S):
            raise RuntimeError(f"the vendor simulator didn't start; see {log}")
        yield Vendor(log.read_text().split(told, 1)[1].split()[0])
    finally:
        process.stop()


def starts(wanted_at_s: Sequence[float], limit: Limit) -> list[float]:
    """When a perfect scheduler makes each call: first come, first served, none refused.

    `wanted_at_s` ascends; the bucket is full at its first.
    """
    every_s, full = 60 / limit.per_minute, limit.burst
    made: list[float] = []
    tokens, at_s = float(full), wanted_at_s[0] if wanted_at_s else 0.0
    for wanted_s in wanted_at_s:
        tokens = min(full, tokens + max(0.0, wanted_s - at_s) / every_s)
        at_s = max(at_s, wanted_s)
        wait_s = max(0.0, 1 - tokens) * every_s
        tokens, at_s = max(tokens, 1.0) - 1, at_s + wait_s
        made.append(at_s)
    return made


def percentiles(values: Sequence[float], *percents: int) -> list[float]:
    """Of at least one value; between two of them in proportion."""
    many = values if len(values) > 1 else [*values, *values]
    cuts = statistics.quantiles(many, n=100, method="inclusive")
    return [cuts[percent - 1] for percent in percents]
