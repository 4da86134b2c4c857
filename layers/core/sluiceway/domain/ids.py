"""Ids: opaque to partners, and in order of their making.

48 bits of time and 80 of randomness in Crockford's base 32 (the layout of a ULID), so that a query
by sort key lists a tenant's jobs by age.
"""

from __future__ import annotations

import re

NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,62}"
"""Of a vendor, a model or a tenant: fit for a URL and a metric dimension, and two for the name of a
message group, which SQS allows 128 characters."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

PREFIX = "job_"
HIT_PREFIX = "hit_"
"""A cache hit has no job; its id is this prefix and the entry's cache key."""
BATCH_PREFIX = "batch_"

RANDOM_BYTES = 10


REFRESH_PREFIX = "refresh#"
"""Of the owner under which a refresh job stands; its entry's key follows. No tenant's name."""


def job_id(now_ms: int, randomness: bytes) -> str:
    """An id of 30 URL-safe characters. `now_ms`: epoch milliseconds; `randomness`: 10 bytes."""
    return by_age(PREFIX, now_ms, randomness)


def batch_id(now_ms: int, randomness: bytes) -> str:
    """An id of 32 URL-safe characters, of the same."""
    return by_age(BATCH_PREFIX, now_ms, randomness)


def by_age(prefix: str, at_ms: int, rest: bytes) -> str:
    """The prefix and 26 characters, in order of time; `rest`: 10 bytes that tell ids apart."""
    number = (at_ms << 80) | int.from_bytes(rest[:RANDOM_BYTES], "big")
    return prefix + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def hit_id(cache_key: str) -> str:
    """The id under which a cache hit is fetched again."""
    return HIT_PREFIX + cache_key


def well_formed(given: str) -> bool:
    """Whether this may be a job's or hit's id: anything else needs no look at the tables."""
    return re.fullmatch(r"(job|hit)_[A-Za-z0-9_-]{1,60}", given) is not None


def well_formed_batch(given: str) -> bool:
    """Whether this may be a batch's id."""
    return re.fullmatch(rf"{BATCH_PREFIX}[{_ALPHABET}]{{26}}", given) is not None


def owner(given: str) -> bool:
    """Whether this may be whose job it is: a tenant's name, or that of a refresh."""
    return re.fullmatch(rf"{NAME_PATTERN}|{REFRESH_PREFIX}[A-Za-z0-9_-]{{1,60}}", given) is not None
