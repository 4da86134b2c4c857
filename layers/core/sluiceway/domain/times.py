"""Moments as text, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def day_of(epoch_ms: int) -> str:
    """The day (UTC), `YYYY-MM-DD`."""
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%Y-%m-%d}"


def rfc3339(epoch_ms: int | None) -> str | None:
    """`2026-01-01T00:00:00.000Z` for epoch milliseconds."""
    if epoch_ms is None:
        return None
    moment = datetime.fromtimestamp(epoch_ms // 1000, UTC)
    return f"{moment.isoformat()[:19]}.{epoch_ms % 1000:03d}Z"
