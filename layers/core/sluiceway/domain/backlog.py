"""What waits and what runs, as the sweeper counted it a moment ago.

Shares of the workers, places in the line and times of arrival come from this picture, which every
process keeps a copy of. It is some seconds old, so nothing that must be exact is built on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TELLS_FOR_MS = 75_000
"""An older picture tells of nothing: without an open job the sweeper paints no other."""

MOST_GROUPS = 1_000
"""The smallest are left out of a picture that has more."""


@dataclass(frozen=True, slots=True)
class Group:
    """The open jobs of one tenant for one model in one lane."""

    lane: str
    model: str
    tenant: str
    waiting: int = 0
    """No worker is at them."""
    slotted: int = 0
    """Of these: parked, with a slot of the gate kept. They want no worker before."""
    running: int = 0
    oldest_epoch_ms: int = 0
    """When the one that waits longest was enqueued."""

    @property
    def wanting(self) -> int:
        """How many would run now if a worker were free."""
        return self.waiting - self.slotted


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a model's vendor takes jobs."""

    interval_ms: float = 0.0
    """Between two calls, at the gate's present rate; 0: no rate."""
    latency_ms: int = 0
    """The median of recent calls; 0: not known."""
    opens_at_epoch_ms: int = 0
    """When a gate that is shut lets calls through again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands."""

    position: int
    """1: it is the next."""
    eta_ms: int
    """Until it has its result."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The picture. `Backlog()` is that of a service without open jobs."""

    measured_at_epoch_ms: int = 0
    groups: tuple[Group, ...] = ()
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """By model."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """By lane: how many may run at once."""

    def at(self, now_ms: int) -> "Backlog":
        """Itself, or nothing when it is too old."""
        fresh = abs(now_ms - self.measured_at_epoch_ms) <= TELLS_FOR_MS
        return self if fresh else Backlog(workers=self.workers)

    def waiting(self, lane: str | None = None) -> int:
        """Open jobs that no worker is at, of one lane or of all."""
        return sum(group.waiting for group in self.groups if lane in {None, group.lane})

    def contending(self, lane: str, now_ms: int) -> tuple[Group, ...]:
        """Whose jobs want the lane's workers, or have them; nothing as long as none of them waits.

        Behind a shut gate nobody wants a worker.
        """
        groups = tuple(
            group
            for group in self.groups
            if group.lane == lane
            and (group.wanting or group.running)
            and self.pace(group.model).opens_at_epoch_ms <= now_ms
        )
        return groups if any(group.wanting for group in groups) else ()

    def pace(self, model: str) -> Pace:
        """Of a model; of one that isn't in the picture: nothing is known."""
        return self.paces.get(model, Pace())


def line_of(groups: Iterable[Group], *, lane: str, model: str) -> tuple[Group, ...]:
    """Who stands in the line of a model: a batch job waits for the interactive ones, too."""
    ahead = {"interactive"} if lane == "interactive" else {"interactive", "batch"}
    return tuple(group for group in groups if group.model == model and group.lane in ahead)
