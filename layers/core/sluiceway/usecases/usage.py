"""Usage: what the caller's ended jobs came to, by day (UTC) and model."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sluiceway.domain.errors import InvalidRequestError
from sluiceway.domain.usage import UsageRow
from sluiceway.ports import Clock, UsageReader

MAX_DAYS = 92
"""Of one request: a quarter."""

DEFAULT_DAYS_BACK = 30


@dataclass(frozen=True, slots=True)
class Period:
    """Days from the first to the last, both included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Usage:
    """What was found in a period, the newest day first, and its models in alphabetical order."""

    period: Period
    rows: tuple[UsageRow, ...]


def read_usage(
    given_from: str | None,
    given_to: str | None,
    tenant: str,
    *,
    usage: UsageReader,
    clock: Clock,
) -> Usage:
    """The tenant's usage of these days; None is a day that wasn't given.

    Raises InvalidRequestError.
    """
    today = datetime.fromtimestamp(clock.now_ms() // 1000, UTC).date()
    period = period_of(given_from, given_to, today)
    rows = usage.read(tenant, period.first.isoformat(), period.last.isoformat())
    by_model = sorted(rows, key=lambda row: row.model)
    return Usage(period, tuple(sorted(by_model, key=lambda row: row.day, reverse=True)))


def period_of(given_from: str | None, given_to: str | None, today: date) -> Period:
    """The days that were asked for: by default until today, and from 30 days before the last.

    Raises InvalidRequestError.
    """
    last = today if given_to is None else _day(given_to, "to")
    if given_from is not None:
        first = _day(given_from, "from")
    else:
        first = last - min(timedelta(DEFAULT_DAYS_BACK), last - date.min)
    if first > last:
        raise InvalidRequestError("from is after to, which is today unless it is given.")
    if (last - first).days >= MAX_DAYS:
        raise InvalidRequestError(f"from and to may span {MAX_DAYS} days at most.")
    return Period(first, last)


def _day(given: str, name: str) -> date:
    """`date.fromisoformat` alone would take weeks, and days without hyphens, too."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", given):
        try:
            return date.fromisoformat(given)
        except ValueError:
            pass  # there is no such day
    raise InvalidRequestError(f"{name} is a day as YYYY-MM-DD.")
