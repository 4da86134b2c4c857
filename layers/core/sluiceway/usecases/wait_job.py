"""Wait: a request is held until its job has ended, or its time is over."""

from collections.abc import Callable

from sluiceway.domain.job import Job
from sluiceway.ports import Clock
from sluiceway.usecases.get_job import Fetched

FIRST_LOOK_MS = 250
LONGEST_LOOK_MS = 1500
"""Between two looks, each of which is one read."""


def wait_job(
    look: Callable[[], Fetched],
    *,
    until_ms: int,
    clock: Clock,
    pause: Callable[[float], None],
) -> Fetched:
    """What `look` finds when the job has ended, or at `until_ms`. `pause` takes seconds."""
    next_ms = float(FIRST_LOOK_MS)
    while True:
        fetched = look()
        left_ms = until_ms - clock.now_ms()
        if not isinstance(fetched.found, Job) or not fetched.found.open or left_ms <= 0:
            return fetched
        pause(min(next_ms, left_ms) / 1000)
        next_ms = min(next_ms * 1.5, LONGEST_LOOK_MS)
