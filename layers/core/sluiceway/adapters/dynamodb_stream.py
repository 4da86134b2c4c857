"""Records of the Jobs table's stream, as Lambda delivers them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import from_item
from sluiceway.domain import ids
from sluiceway.domain.webhook import DETAIL_TYPES, JobEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_COPIED = (
    *("tenant", "job_id", "model", "lane", "status", "created_at_epoch_ms", "request_id"),
    *("correlation_id", "redrives", "started_at_epoch_ms", "result_source", "discarded"),
    *("input_tokens", "output_tokens", "cost_nanos", "saved_nanos"),
)
_READ = frozenset(
    {*_COPIED, "attempts_total", "completed_at_epoch_ms", "failed_at_epoch_ms", "error"}
    | {"callback_urls"}
)
"""Neither input nor result nor metadata is even looked at."""


def event_of(record: Mapping[str, Any]) -> JobEvent | None:
    """What a record tells of a job; None when the job reached no final state in it.

    Raises KeyError, TypeError or ValueError for a record that isn't one of the Jobs table.
    """
    change = record["dynamodb"]
    new, old = change.get("NewImage"), change.get("OldImage") or {}
    if new is None:  # deleted
        return None
    status = new["status"]["S"]
    if status not in DETAIL_TYPES or status == old.get("status", {}).get("S"):
        return None
    values = from_item({name: new[name] for name in _READ if name in new})
    if not re.fullmatch(ids.NAME_PATTERN, values["tenant"]):
        return None  # a row of ours, not a partner's
    error = values.get("error") or {}
    failed_at_ms = values.get("failed_at_epoch_ms")
    ended_at_ms = values.get("completed_at_epoch_ms") or failed_at_ms
    if status == "failed":
        at_ms = error["at_epoch_ms"]  # a discarded job failed before, too
    elif status == "dead_lettered" and old.get("status", {}).get("S") == "failed":
        at_ms = round(float(change["ApproximateCreationDateTime"]) * 1000)
    else:
        at_ms = ended_at_ms
    return JobEvent(
        **{name: values[name] for name in _COPIED if name in values},
        at_epoch_ms=at_ms,
        attempts=values["attempts_total"],
        completed_at_epoch_ms=ended_at_ms,
        error_code=error.get("code"),
        error_retryable=error.get("retryable", False),
        callback_urls=tuple(sorted(values.get("callback_urls", ()))),
    )
