"""Places: what the picture of the backlog tells of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.domain import timeouts
from sluiceway.domain.backlog import Backlog, Place, place
from sluiceway.domain.catalogue import Catalogue, Timeout
from sluiceway.domain.errors import StoreBusyError

if TYPE_CHECKING:
    from sluiceway.domain.job import Job
    from sluiceway.ports import Backlogs


def read(backlogs: Backlogs, now_ms: int) -> Backlog:
    """The picture; an empty one when it is too old or can't be had: it is an estimate anyway."""
    try:
        return backlogs.read().at(now_ms)
    except StoreBusyError:
        return Backlog()


def place_of(job: Job, backlog: Backlog, catalogue: Catalogue, now_ms: int) -> Place | None:
    """Where the job stands; None when it has ended."""
    if not job.open:
        return None
    known = catalogue.models.get(job.model)
    return place(
        job,
        backlog,
        share_of=lambda tenant: catalogue.tenant(tenant).share,
        usual_ms=timeouts.usual_ms(known.timeout_s if known else Timeout()),
        now_ms=now_ms,
    )
