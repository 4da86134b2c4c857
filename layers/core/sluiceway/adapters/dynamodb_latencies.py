"""What calls of the vendors' models took lately, in DynamoDB (port Latencies).

Coordination rows, by `coordination_key`:
    latency#<vendor>#<vendor model>     `0` to `31`, each [at_epoch_ms, latency_ms]; ttl_epoch_s
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Refusal, Table, Write
from sluiceway.domain import timeouts
from sluiceway.domain.timeouts import LEAST_SAMPLES, RING, SAMPLE_LIVES_MS, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COPY_LIVES_MS = 30_000
COPY_OF_FEW_LIVES_MS = 5_000
"""As long as too few samples are known for a median."""

_ROW_LIVES_S = 2 * SAMPLE_LIVES_MS // 1000


class DynamoDBLatencies:
    """Weakness: samples are written blindly, so two may take one place, and one is forgotten."""

    def __init__(
        self, table: Table, coordination: str, *, rand: Callable[[], float] = random.random
    ) -> None:
        """`coordination`: name of the Coordination table. `rand` is in [0, 1)."""
        self._table = table
        self._name = coordination
        self._rand = rand
        self._copies: dict[str, tuple[list[Sample], int]] = {}
        """Each ring as it was seen last, and when."""

    def median_ms(self, key: str, *, now_ms: int, least: int = LEAST_SAMPLES) -> int | None:
        """See Latencies."""
        samples, seen_at_ms = self._copies.get(key, ([], -COPY_LIVES_MS))
        few = len(samples) < LEAST_SAMPLES
        if not 0 <= now_ms - seen_at_ms < (COPY_OF_FEW_LIVES_MS if few else COPY_LIVES_MS):
            samples = self._see(
                key, self._table.read(self._name, _key(key), consistent=False), now_ms
            )
        return timeouts.median_ms(samples, now_ms, least=least)

    def add(self, key: str, latency_ms: int, *, now_ms: int, surely: bool = False) -> None:
        """See Latencies."""
        samples, _ = self._copies.get(key, ([], 0))
        if not (surely or timeouts.wanted(samples, now_ms, self._rand())):
            return
        row = self._table.update(
            Write(
                self._name,
                _key(key),
                update="SET #place = :sample, #ttl_epoch_s = :ttl",
                values={"sample": [now_ms, latency_ms], "ttl": now_ms // 1000 + _ROW_LIVES_S},
                names={"place": str(int(self._rand() * RING))},
            )
        )
        if not isinstance(row, Refusal):
            self._see(key, row, now_ms)

    def _see(self, key: str, row: Mapping[str, Any] | None, now_ms: int) -> list[Sample]:
        samples = [
            Sample(at_ms, latency_ms)
            for name, value in (row or {}).items()
            if name.isdigit() and _is_sample(value)
            for at_ms, latency_ms in [value]
        ]
        self._copies[key] = samples, now_ms
        return samples


def _is_sample(value: Any) -> bool:
    """Whether it is a pair of numbers; what is damaged is as good as no sample."""
    return isinstance(value, list) and [type(part) for part in value] == [int, int]


def _key(key: str) -> dict[str, str]:
    return {"coordination_key": key}
