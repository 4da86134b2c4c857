"""What waits and what runs, as the sweeper counted it a moment ago.

Shares of the workers, places in the line and times of arrival come from this picture, which every
process keeps a copy of. It is some seconds old, so nothing that must be exact is built on it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluiceway.domain import ids
from sluiceway.domain.gate import ANSWER_TOKENS, Gate, Limits
from sluiceway.domain.job import Job, JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    """As `whose` gives it."""
    waiting: int = 0
    """No worker is at them."""
    slotted: int = 0
    """Of these: parked with a slot of the gate, or waiting for another attempt. They want no worker
    before."""
    running: int = 0
    oldest_epoch_ms: int = 0
    """When the one was enqueued that wants a worker longest."""
    later_epoch_ms: tuple[int, ...] = ()
    """And those after it: at equal steps of the line, the last one at its end."""

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
    """The median of recent calls, or what is supposed of one; 0: not known."""
    opens_at_epoch_ms: int = 0
    """When a gate that is shut lets calls through again; 0: it is open."""
    slot_at_epoch_ms: int = 0
    """When the slot is due that the next taker gets; in the past while some of the burst is left,
    by an interval for each call of it."""

    @classmethod
    def of(cls, gate: Gate, limits: Limits, *, now_ms: int, latency_ms: int = 0) -> Pace:
        """Of a model with this gate.

        What a job takes of a limit on tokens isn't known before: an answer of usual length.
        """
        request_us = gate.interval_us(limits, now_ms)
        token_us = gate.tokens_us(limits, ANSWER_TOKENS, now_ms)
        ahead_us = gate.ahead_us(limits, ANSWER_TOKENS, now_ms)
        now_us = now_ms * 1000
        slots_us = [
            max(next_us, now_us) - burst_us
            for next_us, burst_us, step_us in zip(
                (gate.next_request_at_us, gate.next_token_at_us),
                ahead_us,
                (request_us, token_us),
                strict=True,
            )
            if step_us
        ]
        shut = gate.shut(now_ms)
        return cls(
            interval_ms=max(request_us, token_us) / limits.shards / 1000,
            latency_ms=latency_ms,
            opens_at_epoch_ms=0 if shut is None or shut.far else shut.until_ms,
            slot_at_epoch_ms=max(slots_us, default=0) // 1000,
        )


_UNKNOWN = Pace()


@dataclass(frozen=True, slots=True)
class Waits:
    """What the jobs of a lane wait for that no worker is at."""

    parked: int = 0
    oldest_epoch_ms: int = 0
    """When the first was enqueued of those that no pause and no shut gate keeps; 0: there is none.
    """
    ready: int = 0
    """Of those: they wait for a worker, and for no slot and no other attempt."""
    ready_since_epoch_ms: int = 0
    """Since when the first of these does; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands."""

    position: int
    """1: it is the next; 0: it is at work."""
    eta_ms: int
    """Until it has its result."""
    look_in_ms: int = 0
    """When to look again: half-way to what is known of that time, so nobody is late by more than
    half of it, and who waits long asks rarely."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The picture. `Backlog()` is that of a service without open jobs."""

    measured_at_epoch_ms: int = 0
    groups: tuple[Group, ...] = ()
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """By model."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """By lane: how many may run at once."""
    besides: Mapping[str, int] = field(default_factory=dict)
    """By lane: about how many wait that are in no group, because there are too many."""
    waits: Mapping[str, Waits] = field(default_factory=dict)
    """By lane; nothing in a picture of older code."""

    @property
    def open(self) -> int:
        """Open jobs."""
        return self.waiting() + sum(group.running for group in self.groups)

    def at(self, now_ms: int) -> Backlog:
        """Itself, or nothing when it is too old."""
        fresh = abs(now_ms - self.measured_at_epoch_ms) <= TELLS_FOR_MS
        return self if fresh else Backlog(workers=self.workers)

    def waiting(self, lane: str | None = None) -> int:
        """Open jobs that no worker is at, of one lane or of all."""
        return sum(group.waiting for group in self.groups if lane in {None, group.lane}) + sum(
            waiting for name, waiting in self.besides.items() if lane in {None, name}
        )

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

    def models(self, lane: str, now_ms: int) -> set[str]:
        """Whose jobs contend for the lane's workers."""
        return {group.model for group in self.contending(lane, now_ms)}

    def drained_in_ms(self, jobs: int) -> float:
        """How long so many of those that wait take, when all models go on at their pace."""
        waits = {group.model for group in self.groups if group.waiting}
        per_ms = sum(
            1 / self.pace(model).interval_ms for model in waits if self.pace(model).interval_ms
        )
        return jobs / per_ms if per_ms else 0.0

    def pace(self, model: str) -> Pace:
        """Of a model; of one that isn't in the picture: nothing is known."""
        return self.paces.get(model, _UNKNOWN)


def whose(tenant: str) -> str:
    """In whose group a job of this owner is: all refreshes are in one."""
    return ids.REFRESH_PREFIX if tenant.startswith(ids.REFRESH_PREFIX) else tenant


def line_of(groups: Iterable[Group], *, lane: str, model: str) -> tuple[Group, ...]:
    """Who stands in the line of a model: a batch job waits for the interactive ones, too."""
    ahead = lanes_ahead(lane)
    return tuple(group for group in groups if group.model == model and group.lane in ahead)


def lanes_ahead(lane: str) -> tuple[str, ...]:
    """Whose jobs a job of the lane waits for."""
    return ("interactive",) if lane == "interactive" else ("interactive", "batch")


LEAST_LEFT_MS = 1_000
"""Of a call that takes longer than is usual."""


def place(
    job: Job,
    backlog: Backlog,
    *,
    share_of: Callable[[str], int],
    usual_ms: int,
    now_ms: int,
) -> Place:
    """Where an open job stands. `usual_ms`: a call's time, while the picture doesn't know it.

    It starts when all of these are over: its turn at the gate, its turn at the lane's workers, the
    time that the gate is shut, its own backoff.
    """
    pace = backlog.pace(job.model)
    latency_ms = pace.latency_ms or usual_ms
    if job.status is JobStatus.PROCESSING:
        begun_ms = now_ms if job.started_at_epoch_ms is None else job.started_at_epoch_ms
        left_ms = max(begun_ms + latency_ms - now_ms, LEAST_LEFT_MS)
        return Place(0, left_ms, left_ms // 2 if pace.latency_ms else 0)
    base_ms = max(backlog.measured_at_epoch_ms or now_ms, pace.opens_at_epoch_ms)
    interval_ms, free = _workers(job, backlog, latency_ms, now_ms)
    step_ms = max(pace.interval_ms, interval_ms)
    slot_ms = job.slot_at_epoch_ms or 0
    if slot_ms >= base_ms and slot_ms >= now_ms:  # else it was missed, or its gate closed since
        starts_ms: float = slot_ms
        ahead = (slot_ms - now_ms) / step_ms if step_ms else 0.0
    else:
        in_lane, before = _ahead(job, backlog, share_of)
        ahead = in_lane + before
        starts_ms = max(
            base_ms,
            (pace.slot_at_epoch_ms or base_ms) + ahead * pace.interval_ms,
            base_ms + max(0.0, in_lane + 1 - free) * interval_ms,
            job.not_before_epoch_ms or 0,
        )
        served = max(0, now_ms - base_ms) / step_ms if step_ms else ahead
        ahead -= served
    waits_ms = max(0, round(starts_ms) - now_ms)
    return Place(
        position=1 + max(0, int(ahead)),
        eta_ms=waits_ms + latency_ms,
        look_in_ms=(waits_ms + pace.latency_ms) // 2,
    )


def _workers(job: Job, backlog: Backlog, latency_ms: int, now_ms: int) -> tuple[float, float]:
    """Between two starts of the model's jobs in the lane, and how many of its workers are free.

    The models that contend have equal parts of the workers.
    """
    workers = backlog.workers.get(job.lane, 0)
    if not workers:
        return 0.0, 0.0
    places = workers / len(backlog.models(job.lane, now_ms) | {job.model})
    running = sum(
        group.running
        for group in backlog.groups
        if (group.lane, group.model) == (job.lane, job.model)
    )
    return latency_ms / places, max(0.0, places - running)


def _ahead(job: Job, backlog: Backlog, share_of: Callable[[str], int]) -> tuple[float, float]:
    """How many go first in the job's own lane, and how many of the more urgent one.

    In its lane that is who is ahead of it in its own tenant's line, and of each other tenant as
    many as its share lets through meanwhile.
    """
    me = whose(job.tenant)
    line = line_of(backlog.groups, lane=job.lane, model=job.model)
    in_lane = [group for group in line if group.lane == job.lane]
    own = sum(_rank(job, group) for group in in_lane if group.tenant == me)
    others = sum(
        min(group.wanting, (own + 0.5) * share_of(group.tenant) / share_of(me))
        for group in in_lane
        if group.tenant != me
    )
    return own + others, sum(group.wanting for group in line if group.lane != job.lane)


def _rank(job: Job, group: Group) -> float:
    """How many of its group want a worker longer than the job, by when they were enqueued."""
    marks = (group.oldest_epoch_ms, *group.later_epoch_ms)
    at_ms = job.enqueued_at_epoch_ms
    if not group.wanting or at_ms <= marks[0]:
        return 0.0
    if at_ms > marks[-1]:
        return group.wanting
    after = bisect_left(marks, at_ms)
    part = (at_ms - marks[after - 1]) / (marks[after] - marks[after - 1])
    return (after - 1 + part) / (len(marks) - 1) * (group.wanting - 1)
