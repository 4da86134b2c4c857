"""List: a tenant's jobs, newest first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain import ids
from sluiceway.domain.errors import InvalidRequestError
from sluiceway.domain.job import JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class Listing(NamedTuple):
    """Which jobs are wanted."""

    status: JobStatus | None = None
    model: str | None = None
    limit: int = DEFAULT_LIMIT
    after: str | None = None
    """Only jobs that were submitted before the one of this id."""


def listing_of(parameters: Mapping[str, str]) -> Listing:
    """What a query's parameters ask for. Raises InvalidRequestError, which names the wrong one."""
    status, model = parameters.get("status"), parameters.get("model")
    after = parameters.get("after")
    statuses = [one.value for one in JobStatus]
    if status is not None and status not in statuses:
        raise InvalidRequestError(f"status is one of {', '.join(statuses)}.")
    if model is not None and not re.fullmatch(ids.NAME_PATTERN, model):
        raise InvalidRequestError("model is the name of a model.")
    if after is not None and not (ids.well_formed(after) and after.startswith(ids.PREFIX)):
        raise InvalidRequestError("after is the last_id of the page before.")
    return Listing(
        status=None if status is None else JobStatus(status),
        model=model,
        limit=limit_of(parameters),
        after=after,
    )


def limit_of(parameters: Mapping[str, str]) -> int:
    """How long a page may be. Raises InvalidRequestError."""
    limit = parameters.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= MAX_LIMIT:
        raise InvalidRequestError(f"limit is a number from 1 to {MAX_LIMIT}.")
    return int(limit)
