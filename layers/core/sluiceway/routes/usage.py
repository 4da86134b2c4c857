"""Usage: what the caller's jobs came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.http import Reply, usage_reply
from sluiceway.usecases.usage import newest_first, period_of

if TYPE_CHECKING:
    from sluiceway.routes.request import Request


def get_usage(request: Request) -> Reply:
    """The tenant's usage by day and model, newest first."""
    caller = request.caller("read")
    now_ms = request.deps.submitter.clock.now_ms()
    period = period_of(request.parameters("from", "to"), now_ms=now_ms)
    rows = request.deps.usage.read(caller.tenant, period.first_day, period.last_day)
    return usage_reply(period.first_day, period.last_day, newest_first(rows))
