"""How a tenant's in-flight counter is split, so that no row is written too often."""

from __future__ import annotations


def shard_caps(in_flight: int) -> list[int]:
    """The cap of each shard: one shard for each 100 jobs, 8 at most, adding up to `in_flight`."""
    shards = max(1, min(8, in_flight // 100))
    share, rest = divmod(in_flight, shards)
    return [share + (1 if index < rest else 0) for index in range(shards)]
