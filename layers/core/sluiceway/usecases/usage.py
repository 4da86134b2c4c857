"""Usage: which days are asked for, and in which order they are told."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sluiceway.domain.usage import UsageRow

MAX_DAYS = 92
"""Of one request: a quarter."""

DEFAULT_DAYS_BACK = 30


class Period(NamedTuple):
    """Days (UTC) as `YYYY-MM-DD`, both included."""

    first_day: str
    last_day: str


def period_of(parameters: Mapping[str, str], *, now_ms: int) -> Period:
    """The days from `from` to `to`; without these until today, and from 30 days before the last.

    Raises InvalidRequestError, which names the wrong one.
    """
    last = _day(parameters, "to") or datetime.fromtimestamp(now_ms // 1000, UTC).date()
    first = _day(parameters, "from") or last - min(timedelta(DEFAULT_DAYS_BACK), last - date.min)
    if first > last:
        raise InvalidRequestError("from is after to, which is today unless it is given.")
    if (last - first).days >= MAX_DAYS:
        raise InvalidRequestError(f"from and to may span {MAX_DAYS} days at most.")
    return Period(first.isoformat(), last.isoformat())


def newest_first(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """The newest day first, and its models in alphabetical order."""
    by_model = sorted(rows, key=lambda row: row.model)
    return sorted(by_model, key=lambda row: row.day, reverse=True)


def _day(parameters: Mapping[str, str], name: str) -> date | None:
    """None when it isn't given. `date.fromisoformat` alone would take `20260131` and weeks, too."""
    given = parameters.get(name)
    if given is None:
        return None
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", given):
        with suppress(ValueError):  # there is no such day
            return date.fromisoformat(given)
    raise InvalidRequestError(f"{name} is a day as YYYY-MM-DD.")
