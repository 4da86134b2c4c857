"""Wake: what is parked for its turn is sent for earlier where workers and slots would be idle.

A lane that has more work than workers is lent those of the other, as far as they are idle: its
jobs' messages go through the other's queue. Whose tenant has the least of its share comes first.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain.job import LANES, JobStatus
from sluiceway.domain.shares import at_once, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from sluiceway.domain.backlog import Backlog, Pace
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.ports import IndexedJob

AHEAD_MS = 10_000
"""A poll, and the time that it takes: what comes by itself until then is waited for. The longer
where the next look is more than a poll away."""

POLL_EVERY_MS = 5_000
"""Between two passes of a sweep that polls: a short wait in between ends so late at most."""

AROUND_CALL_MS = 250
"""Of a run, besides the vendor's call."""

UNKNOWN_RUN_MS = 1_000
"""Of a run whose call's latency isn't known."""

KEPT_FREE = 4
"""One of so many idle interactive workers is never lent, 1 at least: an urgent job finds it."""

MOST_AT_ONCE = 200
"""Sent for in one poll: the other due jobs wait for it."""


class Wake(NamedTuple):
    """Send this job's message into the lane now."""

    job: IndexedJob
    lane: str


def to_wake(
    jobs: Iterable[IndexedJob],
    picture: Backlog,
    catalogue: Catalogue,
    *,
    now_ms: int,
    messages: Callable[[str], int],
    next_ms: int = POLL_EVERY_MS,
    paused_lanes: Collection[str] = (),
    weight: int = 1,
) -> list[Wake]:
    """Which jobs are sent for.

    `messages`: in a lane's queue, received ones included. `next_ms`: to the next look. `weight`:
    for how many each job stands that waits.
    A paused lane has no part in it: its jobs wait there, and nobody else's are sent there.
    """
    lanes = {
        name: _Lane(picture.workers.get(name, 0), next_ms)
        for name in LANES
        if name not in paused_lanes
    }
    for job in jobs:
        if job.lane in lanes:
            lanes[job.lane].add(job, now_ms, weight)
    wakes: list[Wake] = []
    for name, lane in lanes.items():
        wakes += [Wake(job, name) for job in lane.woken(picture, catalogue, now_ms)]
    for name, other in permutations(lanes, 2):
        idle = lanes[other].idle
        if idle < 1 or lanes[name].idle > 0:
            continue
        idle = min(idle, lanes[other].workers - messages(other))  # what was lent is there, too
        if other == "interactive":
            idle -= max(1, -(-idle // KEPT_FREE))
        wakes += [Wake(job, other) for job in lanes[name].lent(idle, picture, catalogue, now_ms)]
    return wakes[:MOST_AT_ONCE]


@dataclass(slots=True)
class _Lane:
    """What waits and runs in one lane."""

    workers: int
    next_ms: int
    running: Counter[str] = field(default_factory=Counter)
    """By model."""
    coming: Counter[str] = field(default_factory=Counter)
    """By model: those that begin soon, or would if a worker were free."""
    served: Counter[str] = field(default_factory=Counter)
    """By tenant: those that run or come."""
    running_of: Counter[str] = field(default_factory=Counter)
    """By tenant."""
    parked: defaultdict[str, list[IndexedJob]] = field(default_factory=lambda: defaultdict(list))
    """By model: those that nothing keeps but their turn."""
    queued: defaultdict[str, list[IndexedJob]] = field(default_factory=lambda: defaultdict(list))
    """By model: those whose message waits in the lane."""

    def add(self, job: IndexedJob, now_ms: int, weight: int) -> None:
        """One of the lane's open jobs; so many, as far as it waits."""
        later_ms = max(job.not_before_epoch_ms or 0, job.slot_at_epoch_ms or 0)
        if job.status == JobStatus.PROCESSING:
            self.running[job.model] += 1
            self.running_of[job.tenant] += 1
            self.served[job.tenant] += 1
        elif later_ms <= now_ms + self.ahead_ms:
            self.coming[job.model] += weight
            self.served[job.tenant] += weight
            if not job.parked and later_ms <= now_ms:
                self.queued[job.model].append(job)
        elif job.parked and job.status == JobStatus.QUEUED and job.slot_at_epoch_ms is None:
            self.parked[job.model].append(job)

    @property
    def ahead_ms(self) -> int:
        """Until what is sent for at the next look begins."""
        return AHEAD_MS + self.next_ms - POLL_EVERY_MS

    @property
    def idle(self) -> int:
        """Workers that have nothing to do, and will have nothing soon."""
        return self.workers - self.running.total() - self.coming.total()

    def starts(self, model: str, pace: Pace, catalogue: Catalogue) -> float:
        """How many of the model's jobs the lane's workers begin soon."""
        running = self.running[model]
        free = max(0, self.most(model, catalogue) - running)
        rounds = self.ahead_ms / _run_ms(pace)
        return free * max(1.0, rounds) + running * rounds

    def most(self, model: str, catalogue: Catalogue) -> float:
        """How many of the model's jobs run at once in the lane, at its share of the workers."""
        wanted = self.running + self.coming + Counter(dict(_lengths(self.parked)))
        others = [
            (1, math.floor(min(number, at_once(catalogue, name))))
            for name, number in wanted.items()
            if name != model
        ]
        return min(share_of(self.workers, 1, others), at_once(catalogue, model))

    def woken(self, picture: Backlog, catalogue: Catalogue, now_ms: int) -> Iterator[IndexedJob]:
        """Those of the parked for which there will be workers and slots."""
        for model, jobs in sorted(self.parked.items()):
            pace = picture.pace(model)
            room = (
                min(_slots(pace, now_ms, self.ahead_ms), self.starts(model, pace, catalogue))
                - self.coming[model]
            )
            chosen = dict.fromkeys(_in_turn(jobs, room, catalogue, self.served))  # in that order
            jobs[:] = [job for job in jobs if job not in chosen]
            self.coming[model] += len(chosen)
            yield from chosen

    def lent(
        self, idle: int, picture: Backlog, catalogue: Catalogue, now_ms: int
    ) -> Iterator[IndexedJob]:
        """Those that `idle` workers of the other lane begin, and its own don't."""
        for model in sorted({*self.parked, *self.queued}):
            pace, jobs = picture.pace(model), self.parked[model] + self.queued[model]
            wanted = min(
                _slots(pace, now_ms, self.ahead_ms), self.coming[model] + len(self.parked[model])
            )
            each = max(1, self.next_ms // _run_ms(pace))
            begun = self.starts(model, pace, catalogue)
            beside = (at_once(catalogue, model) - self.most(model, catalogue)) * each
            room = min(wanted - begun, idle * each, beside)
            chosen = list(_in_turn(jobs, room, catalogue, self.running_of))
            idle -= -(-len(chosen) // each)
            yield from chosen


def _in_turn(
    jobs: list[IndexedJob], room: float, catalogue: Catalogue, served: Counter[str]
) -> Iterator[IndexedJob]:
    """As many as there is room for: whose tenant has the least of its share first."""
    lines: defaultdict[str, list[IndexedJob]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: -job.enqueued_at_epoch_ms):
        lines[job.tenant].append(job)
    shares = {tenant: catalogue.tenant(tenant).share for tenant in lines}
    heap = [(served[tenant] / shares[tenant], tenant) for tenant in lines]
    heapq.heapify(heap)
    while heap and room >= 1:
        room -= 1
        _, tenant = heap[0]
        served[tenant] += 1
        yield lines[tenant].pop()
        if lines[tenant]:
            heapq.heapreplace(heap, (served[tenant] / shares[tenant], tenant))
        else:
            heapq.heappop(heap)


def _lengths(lines: Mapping[str, list[IndexedJob]]) -> Iterator[tuple[str, int]]:
    return ((name, len(line)) for name, line in lines.items())


def _run_ms(pace: Pace) -> int:
    """Of a worker with one job."""
    return pace.latency_ms + AROUND_CALL_MS if pace.latency_ms else UNKNOWN_RUN_MS


def _slots(pace: Pace, now_ms: int, ahead_ms: int) -> float:
    """How many calls the gate lets through soon."""
    if pace.opens_at_epoch_ms > now_ms:
        return 0
    if not pace.interval_ms:
        return float("inf")
    return (now_ms + ahead_ms - pace.slot_at_epoch_ms) / pace.interval_ms
