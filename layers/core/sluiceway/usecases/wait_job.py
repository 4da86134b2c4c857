"""Wait: a request is held until its jobs have ended, or its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.ports import Clock
    from sluiceway.usecases.get_job import Fetched

FIRST_LOOK_MS = 100
LONGER_EACH_TIME = 1.2
LONGEST_LOOK_MS = 500
LONGEST_BATCH_LOOK_MS = 1500
"""Between two looks. That of a job is one read, which costs a twentieth of the function that waits
half a second for it; that of a batch reads each of its jobs."""

_Seen = TypeVar("_Seen")


def wait_job(
    look: Callable[[], Fetched],
    *,
    until_ms: int,
    clock: Clock,
    pause: Callable[[float], None],
) -> Fetched:
    """What `look` finds when the job has ended, or at `until_ms`. `pause` takes seconds."""
    return wait_while(
        look,
        lambda fetched: isinstance(fetched.found, Job) and fetched.found.open,
        until_ms=until_ms,
        clock=clock,
        pause=pause,
    )


def wait_while(
    look: Callable[[], _Seen],
    is_open: Callable[[_Seen], bool],
    *,
    until_ms: int,
    clock: Clock,
    pause: Callable[[float], None],
    longest_ms: int = LONGEST_LOOK_MS,
) -> _Seen:
    """What `look` finds when it is open no more, or at `until_ms`. `pause` takes seconds.

    Raises as `look` does; StoreBusyError at `until_ms` only, since the next look may do better.
    """
    next_ms = float(FIRST_LOOK_MS)
    while True:
        try:
            seen = look()
            left_ms = until_ms - clock.now_ms()
            if not is_open(seen) or left_ms <= 0:
                return seen
        except StoreBusyError:
            left_ms = until_ms - clock.now_ms()
            if left_ms <= 0:
                raise
        pause(min(next_ms, left_ms) / 1000)
        next_ms = min(next_ms * LONGER_EACH_TIME, longest_ms)
