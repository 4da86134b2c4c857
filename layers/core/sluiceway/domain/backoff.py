"""When to try again: after a vendor's error, and while somebody else holds the lease."""

from __future__ import annotations

import email.utils
import math
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 120.0
CONTENTION_MAX_S = 60.0
MAX_VISIBILITY_S = 42_000
"""SQS: 12 hours, counted from the receive, of which a worker may have used 15 minutes."""


def retry_delay_s(attempt: int, *, rand: float, retry_after_s: float | None) -> float:
    """Seconds to the next attempt: exponential with full jitter, never under the vendor's wish.

    `attempt` is the number of the attempt that failed, from 1; `rand` is in [0, 1).
    """
    delay_s = rand * min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** min(attempt, 30))
    return max(delay_s, retry_after_s or 0.0)


def contention_delay_s(receives: int, *, rand: float) -> float:
    """Seconds before a message whose key somebody else works on is looked at again.

    2, 4, 8 … 60, less up to a half at random so that waiters don't come back together.
    """
    return min(CONTENTION_MAX_S, 2.0 ** min(receives, 30)) * (0.5 + rand / 2)


def parse_retry_after(headers: Mapping[str, str], *, now_s: float, max_s: float) -> float | None:
    """The wait that a vendor asks for, in seconds from now, `max_s` at most.

    Reads `retry-after-ms`, then `retry-after` as digits with a fraction or as an HTTP date
    (RFC 9110 section 10.2.3); a date in the past is 0, anything else is None.
    `headers` has lower-case names.
    """
    milliseconds = _plain_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(max_s, milliseconds / 1000)
    text = headers.get("retry-after", "").strip()
    seconds = _plain_number(text)
    if seconds is None:
        try:
            moment = email.utils.parsedate_to_datetime(text)
            if moment.tzinfo is None:  # HTTP dates are in UTC, the old forms without saying so
                moment = moment.replace(tzinfo=UTC)
            seconds = max(0.0, moment.timestamp() - now_s)
        except (ValueError, OverflowError):
            return None
    return min(max_s, seconds)


def _plain_number(text: str) -> float | None:
    """Digits with at most one point: no sign, exponent, `nan`, `inf` or other scripts' digits."""
    text = text.strip()
    whole, _, fraction = text.partition(".")
    if not text.isascii() or not whole.isdigit() or not (fraction.isdigit() or "." not in text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None
