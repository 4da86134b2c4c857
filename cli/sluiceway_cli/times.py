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
