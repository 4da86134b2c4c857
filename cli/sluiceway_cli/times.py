"""Durations and times as they are typed."""

import re
from datetime import UTC, datetime

_UNITS_S = {"d": 24 * 3600, "h": 3600, "m": 60}


def duration_s(text: str) -> int:
    """Seconds of `7d`, `12h` or `30m`.

    Raises ValueError.
    """
    found = re.fullmatch(r"([0-9]{1,5})([dhm])", text)
    if found is None:
        raise ValueError(f"{text!r} is no duration like 7d, 12h or 30m")
    return int(found[1]) * _UNITS_S[found[2]]


def moment_ms(text: str) -> int:
    """Epoch milliseconds of `2026-01-31` or `2026-01-31T12:00:00Z`; of UTC without a zone.

    Raises ValueError.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def age(seconds: float) -> str:
    """`7s`, `3m12s`, `2h05m` or `3d04h`: two units at most, so that it is read at a glance."""
    whole = max(0, int(seconds))
    if whole < _UNITS_S["m"]:
        return f"{whole}s"
    if whole < _UNITS_S["h"]:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < _UNITS_S["d"]:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def offset(ms: int) -> str:
    """`+0.000s` to `+59.999s`, from a minute on as `age`."""
    sign, size = ("-" if ms < 0 else "+"), abs(ms)
    return (
        f"{sign}{size / 1000:.3f}s" if size < _UNITS_S["m"] * 1000 else f"{sign}{age(size / 1000)}"
    )
