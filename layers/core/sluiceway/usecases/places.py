"""Places: what the picture of the backlog tells of a job."""

import math

from sluiceway.domain.backlog import Backlog, Place, place
from sluiceway.domain.catalogue import Catalogue, Timeout
from sluiceway.domain.errors import StoreBusyError
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
    return place(
        job,
        backlog,
        share_of=lambda tenant: catalogue.tenant(tenant).share,
        usual_ms=_usual_ms(job.model, catalogue),
        now_ms=now_ms,
    )


def _usual_ms(model: str, catalogue: Catalogue) -> int:
    """A call's time as long as nobody has measured it.

    Between half of the least timeout and half of the longest, and as many times from either: a
    timeout is about twice what a call takes.
    """
    known = catalogue.models.get(model)
    timeout = Timeout() if known is None else known.timeout_s
    return round(math.sqrt(timeout.min * timeout.max) / 2 * 1000)
