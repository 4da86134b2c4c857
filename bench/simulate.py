"""Simulate the service under load: quotas, lanes, shares and the sweeper, in simulated time.

A discrete-event model. Gates, slots, shares, the picture of the backlog, waking, lending and
backoff are the service's own code; queues, workers, the order of the sweeper's work and the vendor
are modelled here, with the constants of the code. The randomness is seeded, so the same figures
come out each time. What the model leaves out stands in docs/benchmarks.md.

With --check it plays a burst of equal jobs instead, and compares it with measured figures.
"""

import argparse
import heapq
import itertools
import json
import math
import random
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import Any
from unittest.mock import patch

import simpy
from sluiceway.domain import backoff, gate, shares, timeouts
from sluiceway.domain.backlog import Backlog
from sluiceway.domain.catalogue import parse
from sluiceway.domain.gate import Limits, Room, Shut
from sluiceway.domain.job import (
    DUE_SHARDS,
    LANES,
    RESEND_AFTER_BACKOFF_MS,
    RESEND_AFTER_SUBMIT_MS,
    RESEND_FIRST_MS,
    RESEND_LONGEST_MS,
    JobStatus,
)
from sluiceway.domain.ticket import Ticket
from sluiceway.ports import IndexedJob
from sluiceway.usecases.paint_backlog import paint_backlog
from sluiceway.usecases.run_job import SHUT_SPREAD_MS
from sluiceway.usecases.sweep_jobs import (
    LOOK_AHEAD_MS,
    PAGE,
    POLL_LOOKS_AHEAD_MS,
    ROWS_PER_POLL,
    STOP_BEFORE_END_MS,
    WOKEN_AFTER_S,
)
from sluiceway.usecases.wake_jobs import POLL_EVERY_MS, to_wake
from sluiceway_cli import costs
from sluiceway_cli.costs import LIST, MILLION, STACK, UPDATE_MS, WAITS_MS

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report
from tests.fakes.in_memory import InMemoryGates, InMemoryLatencies, World

SEED = 5
HOLD_MAX_S = 15.0
"""The default of the catalogue."""

# ------------------------------------------------------------------------------------ assumed

PICK_UP_S = 0.02
"""From a free worker and a visible message to the handler's start; not billed."""

COLD_START_S = 1.0
START_S = (2 * WAITS_MS["GetItem"] + WAITS_MS["TransactWriteItems"] + UPDATE_MS + 3) / 1000
"""Of a run up to its call: job, lease, cache, gate, and the code's own time."""

FINISH_S = (WAITS_MS["TransactWriteItems"] + UPDATE_MS + 2) / 1000
"""Of a run after its call, and of a park."""

LOOK_S = (WAITS_MS["GetItem"] + UPDATE_MS) / 1000
"""The sweeper at one job: it reads the row and moves it."""

SEND_S = WAITS_MS["SendMessage"] / 1000
COUNT_S = 0.0001
"""The sweeper reads one row of the index at 256 MB (docs/benchmarks.md)."""

COUNT_MOST_S = 20.0
SWEEP_S = 60.0
SWEEPER_ENDS_S = 55.0
"""Between two sweeps, and the function's time (template.yaml)."""

REFUSED_S = 0.05
"""A vendor takes so long to answer 429."""

PARTITION_UNITS = 1000
"""Write units a second of one row."""

PARTITION_READS = 3000
"""Read units a second of one row."""

MAPPING_MOST = 1000
"""MaximumConcurrency of one mapping at most."""

ROOM_ENTRY_BYTES = 31
"""Of a worker in a room: token and time."""

PICTURE_GROUP_BYTES = 15
PICTURE_LIVES_S = 2.0
"""The row of the backlog: bytes of a group, and the life of a process's copy."""

DAY_MS = 86_400_000
"""No deadline is nearer."""

FAIR_FROM = 30
FAIR_SHARE = 0.1
"""A group of so many messages in flight that are so much of the queue's is noisy (AWS)."""


# ------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True, slots=True)
class Kind:
    """A model, and its part of the load."""

    name: str
    part: float
    """Of the requests; all kinds' together are 1."""
    latency_s: float
    """On average; the distribution is lognormal."""
    limits: Limits
    sigma: float = 0.5
    tokens: int = 0
    """That a call takes; its estimate is half as much again."""
    places: int = 0
    """max_concurrency; 0: no limit."""
    heavy: bool = False
    true_per_minute: int = 0
    """What the vendor really allows; 0: what the catalogue says."""
    vendor_burst: int = 0
    """Calls at once under it; 0: twice the catalogue's."""

    retry_after: bool = False
    """The vendor says with a refusal in how many whole seconds it takes a call again."""

    @property
    def gate(self) -> str:
        """The row of its gate."""
        return gate.key_of("simulator", self.name)

    @property
    def latencies(self) -> str:
        """The row of its latencies."""
        return timeouts.key_of("simulator", self.name)

    @property
    def estimate(self) -> int:
        """Of a call's tokens."""
        return 3 * self.tokens // 2

    @property
    def catalogued(self) -> str:
        """As the catalogue has it."""
        return f"""
            [models.{self.name}]
            vendor = "simulator"
            vendor_model = "{self.name}"
            version = "1"
            requests_per_minute = {self.limits.requests_per_minute}
            tokens_per_minute = {self.limits.tokens_per_minute}
            burst = {self.limits.burst}
        """


@dataclass(frozen=True, slots=True)
class Policy:
    """What of the service's rules is in force."""

    name: str
    shares: bool = False
    """domain/shares.py: places in a lane, and how far a slot may be ahead."""
    lends: bool = False
    """Idle workers to the other lane."""
    senders: int = 1
    """Jobs that the sweeper sends side by side; the service's does one after another."""


FIXED = Policy("fixed split, no shares")
LENDING = Policy("lending, no shares", lends=True)
BUILT = Policy("lending and shares", shares=True, lends=True)
WIDE = replace(BUILT, name="the same, 8 sends side by side", senders=8)
POLICIES = (FIXED, LENDING, BUILT)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What comes in, and what there is to do it with."""

    name: str
    kinds: tuple[Kind, ...]
    tenants: tuple[float, ...]
    """Weights of their load, the biggest first."""
    per_s: float
    """Requests on average, cache hits and all."""
    workers: Mapping[str, int]
    policy: Policy
    seconds: float
    warm_up_s: float = 0.0
    hits: float = 0.0
    """Of the requests, that the cache or an open job answers."""
    batch_part: float = 0.15
    """Of the jobs of light models."""
    burst_part: float = 0.2
    """Of the jobs, that come as bursts of one tenant for one model."""
    burst_jobs: int = 50
    flood: int = 0
    """Jobs of one more tenant for the first model, all there when measuring begins."""
    hold_max_s: float = HOLD_MAX_S
    overhead_s: float = 0.0
    """Of a run, more than is assumed."""
    jobs: int = 0
    """Ends after so many requests; 0: after `seconds`."""
    warm: bool = False
    """All workers are, from the first job on."""
    seed: int = SEED


def zipf(count: int, exponent: float = 1.0) -> tuple[float, ...]:
    """Parts of a whole, the biggest first."""
    raw = [1 / rank**exponent for rank in range(1, count + 1)]
    return tuple(one / sum(raw) for one in raw)


REQUESTS_A_DAY = 10_000_000
TENANTS = 200
MODELS = 20
WORKERS = {"interactive": 375, "batch": 125}
HITS = 0.3
PEAK = 3.0

HEAVY_S = {8: 4.0, 14: 6.0, 20: 8.0}
"""Latency of the heavy models, by rank."""

LIGHT_S = (1.25, 0.75, 1.75, 1.0, 1.5)
"""Of the others, in turn."""

SHORT = 3
"""The model that in one scenario has a tenth less quota than load at the peak."""

COUNTED = (1, 2)
"""Models with a limit on tokens; the second has one on calls at once, too."""


def big_kinds(factor: float = 1.0, *, short: bool = False) -> tuple[Kind, ...]:
    """20 models with quotas a quarter above their load at the peak; with `short`: but for one."""
    peak_per_minute = 60 * factor * PEAK * (1 - HITS) * REQUESTS_A_DAY / 86_400
    kinds = []
    for rank, part in enumerate(zipf(MODELS), 1):
        latency_s = HEAVY_S.get(rank, LIGHT_S[rank % len(LIGHT_S)])
        quota = round(peak_per_minute * part * (0.9 if short and rank == SHORT else 1.25))
        tokens = 1500 if rank in COUNTED else 0
        kinds.append(
            Kind(
                name=f"model-{rank:02}",
                part=part,
                latency_s=latency_s,
                limits=Limits(quota, 2 * tokens * quota, burst=10),
                tokens=tokens,
                places=round(1.5 * quota / 60 * latency_s) if rank == COUNTED[-1] else 0,
                heavy=rank in HEAVY_S,
            )
        )
    return tuple(kinds)


def big(
    name: str,
    *,
    load: float,
    seconds: float,
    policy: Policy,
    factor: float = 1.0,
    short: bool = False,
) -> Scenario:
    """`load`: of the day's mean; `factor`: of load, workers and quotas together."""
    return Scenario(
        name=name,
        kinds=big_kinds(factor, short=short),
        tenants=zipf(TENANTS),
        per_s=factor * load * REQUESTS_A_DAY / 86_400,
        workers={lane: round(factor * count) for lane, count in WORKERS.items()},
        policy=policy,
        seconds=seconds,
        warm_up_s=min(60.0, seconds),
        hits=HITS,
        burst_jobs=max(5, round(50 * min(1.0, factor))),
    )


# ------------------------------------------------------------------------------------ the model


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work."""

    number: str
    kind: Kind
    tenant: str
    lane: str
    came_ms: int
    status: JobStatus = JobStatus.QUEUED
    not_before_ms: int = 0
    parked: bool = False
    slot: Ticket | None = None
    attempts: int = 0
    sends: int = 0
    stamp: int = 0
    """Grows when the job moves: a due time from before counts no more."""

    @property
    def waits(self) -> bool:
        """Whether nobody is at it, and it isn't done."""
        return self.status in {JobStatus.QUEUED, JobStatus.RETRYING}

    @property
    def indexed(self) -> IndexedJob:
        """As the index has it."""
        return IndexedJob(
            status=self.status,
            lane=self.lane,
            enqueued_at_epoch_ms=self.came_ms,
            tenant=self.tenant,
            job_id=self.number,
            model=self.kind.name,
            parked=self.parked,
            slot_at_epoch_ms=self.slot.slot_at_ms if self.slot else None,
            not_before_epoch_ms=self.not_before_ms or None,
        )


class Lane:
    """A queue of SQS and its workers."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.running = 0
        self._messages: deque[Job] = deque()
        self._noisy: deque[Job] = deque()
        self._in_flight: Counter[tuple[str, str]] = Counter()

    def put(self, job: Job) -> None:
        """A message becomes visible."""
        self._messages.append(job)

    def take(self) -> Job | None:
        """The next message for a free worker; those of noisy groups come last (fair queues)."""
        if self.running >= self.workers:
            return None
        while self._messages:
            job = self._messages.popleft()
            own = self._in_flight[job.tenant, job.kind.name]
            if own < FAIR_FROM or own <= FAIR_SHARE * self.running:
                return self._taken(job)
            self._noisy.append(job)
        return self._taken(self._noisy.popleft()) if self._noisy else None

    def done(self, job: Job) -> None:
        """A worker is free."""
        self.running -= 1
        self._in_flight[job.tenant, job.kind.name] -= 1

    @property
    def depth(self) -> int:
        """Messages that nobody has."""
        return len(self._messages) + len(self._noisy)

    def _taken(self, job: Job) -> Job:
        self.running += 1
        self._in_flight[job.tenant, job.kind.name] += 1
        return job


@dataclass
class Figures:
    """What one run of the model gave. Times in seconds, rates a second."""

    scenario: Scenario
    measured_s: float = 0.0
    requests: int = 0
    ended: int = 0
    """Jobs whose result came in the measured time."""
    came: int = 0
    """Jobs in the measured time, hits left out."""
    calls: Counter[str] = field(default_factory=Counter)
    """By model."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers 429, by model."""
    lost_slots: int = 0
    busy_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LANES, 0.0))
    """Of the workers, by lane."""
    calling_s: float = 0.0
    held_s: float = 0.0
    waits: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From the arrival to the call, by lane and by class of tenants."""
    parks: Counter[str] = field(default_factory=Counter)
    """By reason."""
    runs: int = 0
    cold: int = 0
    sweeper_s: float = 0.0
    sends: int = 0
    woken: int = 0
    """Of the sends, before the job's turn."""
    lent: int = 0
    """Of these, through the other lane."""
    looks: int = 0
    units: Counter[str] = field(default_factory=Counter)
    """Write units by row."""
    groups: int = 0
    """Of the picture, at the end."""
    open_at_end: int = 0
    last_call_s: float = 0.0
    started: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When the calls of a model began, the refused ones too; only for a model that records."""

    def use(self, *lanes: str) -> float:
        """Of the lanes' workers."""
        workers = sum(self.scenario.workers[lane] for lane in lanes)
        return sum(self.busy_s[lane] for lane in lanes) / self.measured_s / workers

    def quota(self, kind: Kind) -> float:
        """Of what the vendor allows, that was used."""
        allowed = kind.true_per_minute or kind.limits.requests_per_minute
        return self.calls[kind.name] / self.measured_s * 60 / allowed

    def wait(self, name: str, per_cent: int) -> float:
        """A percentile of the waits."""
        waits = self.waits[name]
        if len(waits) < 2:  # noqa: PLR2004 - one has no percentiles
            return sum(waits)
        return quantiles(waits, n=100, method="inclusive")[per_cent - 1]

    def of_jobs(self, number: float) -> float:
        """Of a thousand jobs that came."""
        return 1000 * number / max(1, self.came)


CLASSES = ("5 biggest tenants", "next 45", "other 150")
FLOOD = "the flood"
"""A tenant of its own."""


def class_of(tenant: str) -> str:
    """Of a tenant, by its rank from 0."""
    if tenant == FLOOD:
        return FLOOD
    rank = int(tenant)
    return CLASSES[0] if rank < 5 else CLASSES[1] if rank < 50 else CLASSES[2]  # noqa: PLR2004


Steps = Generator[simpy.Event, Any, None]


class Model:
    """The service, its vendors and its partners, in simulated time."""

    def __init__(self, scenario: Scenario, *, records: bool = False) -> None:
        """`records`: keeps the time of each call."""
        self.scenario = scenario
        self.env = simpy.Environment()
        self.lanes = {lane: Lane(count) for lane, count in scenario.workers.items()}
        self.figures = Figures(scenario)
        self._records = records
        self._rng = random.Random(scenario.seed)  # noqa: S311 - repeatable on purpose
        self._world = World()
        self._gates = InMemoryGates(self._world)
        self._latencies = InMemoryLatencies(self._world, rand=self._rng.random)
        self._catalogue = parse(
            "[vendors.simulator]\n" + "".join(kind.catalogued for kind in scenario.kinds)
        )
        self._vendor = dict.fromkeys((kind.name for kind in scenario.kinds), 0.0)
        """When the vendor's own line ends."""
        self._idle = sum(scenario.workers.values()) if scenario.warm else 0
        """Warm environments without work."""
        self._picture = Backlog()
        self._open: dict[str, Job] = {}
        self._due: list[tuple[float, int, Job, int]] = []
        self._submitted: deque[Job] = deque()
        """Jobs that the sweeper looks at two minutes after their submit, in order."""
        self._serial = itertools.count()
        self._changed_s = dict.fromkeys(LANES, 0.0)

    def run(self) -> Figures:
        """All of it."""
        env, scenario = self.env, self.scenario
        env.process(self._sweeper())
        with (
            patch.object(shares, "_contending", _once_a_second(shares._contending)),  # noqa: SLF001
            patch.object(shares, "_short", _once_a_picture(shares._short)),  # noqa: SLF001
            patch.object(shares, "at_once", _once_a_model(shares.at_once)),
        ):
            if scenario.jobs:
                env.run(until=env.process(self._some_arrivals()))
                while self._open:
                    env.run(until=env.now + 1)
            else:
                env.process(self._arrivals())
                env.process(self._bursts())
                if scenario.warm_up_s:
                    env.run(until=scenario.warm_up_s)
                self.figures = Figures(scenario)
                self._changed_s = dict.fromkeys(LANES, env.now)
                for _ in range(scenario.flood):
                    self._submit(FLOOD, scenario.kinds[0], hit=False)
                env.run(until=scenario.warm_up_s + scenario.seconds)
        for lane in LANES:
            self._count_busy(lane)
        self.figures.measured_s = env.now - scenario.warm_up_s
        self.figures.open_at_end = len(self._open)
        self.figures.groups = len(self._picture.groups)
        return self.figures

    @property
    def _now_ms(self) -> int:
        return int(self.env.now * 1000)

    # ---------------------------------------------------------------- arrivals

    def _arrivals(self) -> Steps:
        """Single requests, as a Poisson process."""
        scenario, rng = self.scenario, self._rng
        per_s = scenario.per_s * (1 - scenario.burst_part)
        while True:
            yield self.env.timeout(rng.expovariate(per_s))
            self._submit(*self._drawn())

    def _bursts(self) -> Steps:
        scenario, rng = self.scenario, self._rng
        if not scenario.burst_part:
            return
        per_s = scenario.per_s * scenario.burst_part / scenario.burst_jobs
        while True:
            yield self.env.timeout(rng.expovariate(per_s))
            tenant, kind = self._drawn()
            for _ in range(scenario.burst_jobs):
                self._submit(tenant, kind)

    def _drawn(self) -> tuple[str, Kind]:
        scenario, rng = self.scenario, self._rng
        (tenant,) = rng.choices(range(len(scenario.tenants)), scenario.tenants)
        (kind,) = rng.choices(scenario.kinds, [kind.part for kind in scenario.kinds])
        return str(tenant), kind

    def _some_arrivals(self) -> Steps:
        """So many requests, evenly, of each tenant in turn; exactly so many hits."""
        scenario = self.scenario
        hits = round(scenario.jobs * scenario.hits)
        for number in range(scenario.jobs):
            is_hit = (number + 1) * hits // scenario.jobs > number * hits // scenario.jobs
            kind = scenario.kinds[number % len(scenario.kinds)]
            self._submit(str(number % len(scenario.tenants)), kind, hit=is_hit)
            yield self.env.timeout(1 / scenario.per_s)

    def _submit(self, tenant: str, kind: Kind, *, hit: bool | None = None) -> None:
        rng, scenario = self._rng, self.scenario
        self.figures.requests += 1
        if rng.random() < scenario.hits if hit is None else hit:
            return
        is_batch = kind.heavy or (tenant != FLOOD and rng.random() < scenario.batch_part)
        lane = "batch" if is_batch else "interactive"
        job = Job(f"{next(self._serial)}", kind, tenant, lane, self._now_ms)
        self._open[job.number] = job
        self.figures.came += 1
        self.figures.units[f"counter {tenant}"] += 2
        self.figures.units["due"] += 1
        self._submitted.append(job)
        self._put(job, job.lane)

    # ---------------------------------------------------------------- lanes and workers

    def _put(self, job: Job, lane: str) -> None:
        self.lanes[lane].put(job)
        self._dispatch(lane)

    def _put_later(self, job: Job, lane: str, delay_s: float) -> Steps:
        yield self.env.timeout(delay_s)
        self._put(job, lane)

    def _dispatch(self, lane: str) -> None:
        """Free workers and messages come together."""
        self._count_busy(lane)
        while (job := self.lanes[lane].take()) is not None:
            self.env.process(self._invoke(job, lane))

    def _count_busy(self, lane: str) -> None:
        now_s = self.env.now
        self.figures.busy_s[lane] += self.lanes[lane].running * (now_s - self._changed_s[lane])
        self._changed_s[lane] = now_s

    def _invoke(self, job: Job, lane: str) -> Steps:
        """One delivery of a message."""
        self.figures.runs += 1
        cold_s = 0.0
        if self._idle:
            self._idle -= 1
        else:
            self.figures.cold += 1
            cold_s = COLD_START_S
        yield self.env.timeout(PICK_UP_S + cold_s + START_S + self.scenario.overhead_s)
        early_s = job.not_before_ms / 1000 - self.env.now
        if 0 < early_s <= self.scenario.hold_max_s and job.waits:
            self.figures.held_s += early_s
            yield self.env.timeout(early_s)
            early_s = 0
        if early_s <= 0 and job.waits:  # else it is a copy
            yield from self._work(job, lane)
        self._count_busy(lane)
        self.lanes[lane].done(job)
        self._idle += 1
        self._dispatch(lane)

    def _work(self, job: Job, lane: str) -> Steps:
        """As usecases/run_job.py has it, from the start on."""
        job.status = JobStatus.PROCESSING
        job.parked = False
        job.stamp += 1
        self.figures.units["due"] += 2
        kind = job.kind
        inside: list[tuple[Room, ...]] = []
        for rooms, why in (
            (self._places(job, lane), "share"),
            ((Room(kind.name, "all", kind.places),) if kind.places else (), "room"),
        ):
            if not rooms:
                continue
            self._count_room(rooms)
            until_ms = self._now_ms + 3_600_000
            if not self._gates.enter(rooms, job.number, now_ms=self._now_ms, until_ms=until_ms):
                line_ms = self._line_ms(job, lane) if why == "share" else 0.0
                yield from self._park(job, why, self._turn_ms(line_ms))
                break
            inside.append(rooms)
        else:
            yield from self._through_gate(job, lane)
        for rooms in inside:
            self._count_room(rooms)
            self._gates.leave(rooms, job.number)

    def _count_room(self, rooms: Sequence[Room]) -> None:
        row = rooms[0].vendor
        inside = sum(len(room) for (name, _), room in self._world.rooms.items() if name == row)
        self.figures.units[f"room {row}"] += -(-(1 + inside) * ROOM_ENTRY_BYTES // 1024)

    def _places(self, job: Job, lane: str) -> tuple[Room, ...]:
        if not self.scenario.policy.shares:
            return ()
        return shares.places_of(
            self._picture.at(self._now_ms),
            self._catalogue,
            lane=lane,
            tenant=job.tenant,
            model=job.kind.name,
            redriven=False,
            now_ms=self._now_ms,
        )

    def _line_ms(self, job: Job, lane: str) -> float:
        return shares.line_ms(
            self._picture.at(self._now_ms),
            self._catalogue,
            lane=lane,
            tenant=job.tenant,
            model=job.kind.name,
        )

    def _turn_ms(self, line_ms: float) -> int:
        return self._now_ms + shares.parked_ms(line_ms, rand=self._rng.random(), left_ms=DAY_MS)

    def _through_gate(self, job: Job, lane: str) -> Steps:
        kind, now_ms = job.kind, self._now_ms
        key = kind.gate
        ticket, job.slot = job.slot, None
        if ticket is not None and not (
            ticket.usable(now_ms) and self._gates.still_open(key, ticket, now_ms=now_ms)
        ):
            self.figures.lost_slots += 1
            ticket = None
        if ticket is None:
            taken = self._take(job, lane)
            if isinstance(taken, Shut):
                why = "far" if taken.far else "shut"
                yield from self._park(job, why, self._again_ms(taken, job, lane))
                return
            ticket = taken
        wait_s = (ticket.slot_at_ms - self._now_ms) / 1000
        if wait_s > self.scenario.hold_max_s:
            job.slot = ticket
            yield from self._park(job, "slot", ticket.slot_at_ms)
            return
        if wait_s > 0:
            self.figures.held_s += wait_s
            yield self.env.timeout(wait_s)
            if not self._gates.still_open(key, ticket, now_ms=self._now_ms):
                self.figures.lost_slots += 1
                shut = self._gates.look(key, now_ms=self._now_ms).shut(self._now_ms)
                again = shut or Shut(self._now_ms)
                yield from self._park(job, "shut", self._again_ms(again, job, lane))
                return
        yield from self._call(job, ticket)

    def _take(self, job: Job, lane: str) -> Ticket | Shut:
        kind, now_ms = job.kind, self._now_ms
        self.figures.units[f"gate {kind.name}"] += 1
        furthest_ms = shares.REACH_MS
        if self.scenario.policy.shares:
            furthest_ms = shares.reach_ms(
                self._picture.at(now_ms),
                self._catalogue,
                lane=lane,
                tenant=job.tenant,
                model=kind.name,
                hold_ms=round(self.scenario.hold_max_s * 1000),
                now_ms=now_ms,
            )
        return self._gates.take(
            kind.gate,
            kind.limits,
            tokens=kind.estimate,
            now_ms=now_ms,
            probe_ms=60_000,
            furthest_ms=furthest_ms,
        )

    def _again_ms(self, shut: Shut, job: Job, lane: str) -> int:
        """When a job looks again that found the gate shut."""
        if shut.far and (line_ms := self._line_ms(job, lane)):
            return self._turn_ms(line_ms)
        spread_ms = (self._now_ms - shut.until_ms) / 5 if shut.far else SHUT_SPREAD_MS
        return shut.until_ms + round(self._rng.random() * spread_ms)

    def _call(self, job: Job, ticket: Ticket) -> Steps:
        kind, now_s, figures = job.kind, self.env.now, self.figures
        if self._records:
            figures.started[kind.name].append(now_s)
        refused_s = self._refused_s(kind, now_s)
        if refused_s:
            figures.refused[kind.name] += 1
            yield self.env.timeout(REFUSED_S + FINISH_S)
            told_s = math.ceil(refused_s) if kind.retry_after else None
            until_ms = self._now_ms + (gate.COOL_DOWN_MS if told_s is None else 1000 * told_s)
            self._gates.close(
                kind.gate, kind.limits, ticket, now_ms=self._now_ms, until_ms=until_ms
            )
            self.figures.units[f"gate {kind.name}"] += 1
            job.attempts += 1
            delay_s = backoff.retry_delay_s(
                job.attempts, rand=self._rng.random(), retry_after_s=told_s
            )
            self._wait_again(job, self._now_ms + round(1000 * delay_s))
            self.env.process(self._put_later(job, job.lane, delay_s))
            return
        figures.calls[kind.name] += 1
        figures.last_call_s = now_s
        of = class_of(job.tenant)
        for name in (job.lane, of) if of != FLOOD else (of,):
            figures.waits[name].append(now_s - job.came_ms / 1000)
        latency_s = kind.latency_s
        if kind.sigma:
            mu = math.log(latency_s) - kind.sigma**2 / 2
            latency_s = self._rng.lognormvariate(mu, kind.sigma)
        yield self.env.timeout(latency_s + FINISH_S)
        self.figures.calling_s += latency_s
        self._latencies.add(kind.latencies, round(1000 * latency_s), now_ms=self._now_ms)
        if kind.tokens:
            self.figures.units[f"gate {kind.name}"] += 1
            spare = kind.estimate - kind.tokens
            self._gates.settle(kind.gate, kind.limits, ticket, tokens=spare, now_ms=self._now_ms)
        self.figures.units[f"counter {job.tenant}"] += 2
        self.figures.units["due"] += 1
        job.status = JobStatus.COMPLETED
        self.figures.ended += 1
        del self._open[job.number]

    def _refused_s(self, kind: Kind, now_s: float) -> float:
        """By the vendor's own limit, a GCRA: in how long it takes the call; 0: now."""
        allowed = kind.true_per_minute or kind.limits.requests_per_minute
        if not allowed:
            return 0.0
        each_s = 60 / allowed
        ahead_s = ((kind.vendor_burst or 2 * kind.limits.burst) - 1) * each_s
        line_s = max(self._vendor[kind.name], now_s)
        if line_s - now_s <= ahead_s:
            self._vendor[kind.name] = line_s + each_s
        return max(0.0, line_s - now_s - ahead_s)

    def _wait_again(self, job: Job, until_ms: int) -> None:
        job.status = JobStatus.RETRYING if job.attempts else JobStatus.QUEUED
        job.not_before_ms = until_ms
        job.stamp += 1
        self.figures.units["due"] += 2

    def _park(self, job: Job, reason: str, until_ms: int) -> Steps:
        yield self.env.timeout(FINISH_S)
        self.figures.parks[reason] += 1
        job.parked = True
        job.sends = 0
        self._wait_again(job, until_ms)
        self._look_at(job, until_ms / 1000)

    def _look_at(self, job: Job, due_s: float) -> None:
        heapq.heappush(self._due, (due_s, next(self._serial), job, job.stamp))

    # ---------------------------------------------------------------- the sweeper

    def _sweeper(self) -> Steps:
        """A sweep each minute, and its polls, as usecases/sweep_jobs.py has them."""
        env = self.env
        while True:
            began_s = env.now
            until_s = began_s + LOOK_AHEAD_MS / 1000
            stops_s = began_s + SWEEPER_ENDS_S - STOP_BEFORE_END_MS / 1000
            sent_for: set[IndexedJob] = set()
            polls_to_painting = 0
            while True:
                polls_to_painting -= 1
                if polls_to_painting <= 0:
                    polls_to_painting = max(1, -(-len(self._open) // ROWS_PER_POLL))
                    yield from self._paint(sent_for, stops_s, polls_to_painting * POLL_EVERY_MS)
                look_s = min(until_s, env.now + POLL_LOOKS_AHEAD_MS / 1000)
                yield from self._pass(look_s, stops_s)
                poll_s = POLL_EVERY_MS / 1000
                if env.now + poll_s >= until_s or env.now + poll_s > stops_s:
                    break
                yield env.timeout(poll_s)
            yield env.timeout(began_s + SWEEP_S - env.now)

    def _sweeps(self, took_s: float) -> simpy.Event:
        took_s /= self.scenario.policy.senders
        self.figures.sweeper_s += took_s
        return self.env.timeout(took_s)

    def _paint(self, sent_for: set[IndexedJob], stops_s: float, next_ms: int) -> Steps:
        """The picture of the backlog, and who is sent for."""
        yield self._sweeps(min(COUNT_MOST_S, len(self._open) * COUNT_S))
        waiting = [job.indexed for job in self._open.values()]
        picture = paint_backlog(
            waiting,
            now_ms=self._now_ms,
            workers=self.scenario.workers,
            catalogue=self._catalogue,
            gates=self._gates,
            latencies=self._latencies,
        )
        self.env.process(self._show(picture))
        wakes = to_wake(
            [job for job in waiting if job not in sent_for],
            picture,
            self._catalogue,
            now_ms=self._now_ms,
            messages=lambda lane: self.lanes[lane].depth + self.lanes[lane].running,
            next_ms=next_ms,
        )
        for wake in wakes:
            job = self._open.get(wake.job.job_id)
            if self.env.now > stops_s:
                return
            if job is None or (wake.lane != job.lane and not self.scenario.policy.lends):
                continue
            sent_for.add(wake.job)
            yield self._sweeps(LOOK_S)
            if not job.waits or job.slot is not None:
                continue
            self.figures.units["due"] += 2
            if job.parked:
                job.parked, job.not_before_ms, job.sends = False, 0, 0
                job.stamp += 1
                self._look_at(job, self.env.now + RESEND_AFTER_BACKOFF_MS / 1000)
            yield self._sweeps(SEND_S)
            self.figures.sends += 1
            self.figures.woken += 1
            self.figures.lent += wake.lane != job.lane
            self.env.process(self._put_later(job, wake.lane, WOKEN_AFTER_S))

    def _show(self, picture: Backlog) -> Steps:
        """On average the processes' copies are so old."""
        yield self.env.timeout(PICTURE_LIVES_S / 2)
        self._picture = picture

    def _pass(self, until_s: float, stops_s: float) -> Steps:
        for due_s, job in self._due_jobs(until_s):
            if self.env.now > stops_s:
                self._look_at(job, due_s)
            else:
                yield from self._look(job, due_s)

    def _due_jobs(self, until_s: float) -> list[tuple[float, Job]]:
        """The oldest first, one page of each shard at most."""
        found: list[tuple[float, Job]] = []
        first_s = RESEND_AFTER_SUBMIT_MS / 1000
        while self._submitted and self._submitted[0].came_ms / 1000 + first_s <= until_s:
            job = self._submitted.popleft()
            if job.stamp == 0:
                self._look_at(job, job.came_ms / 1000 + first_s)
        while self._due and self._due[0][0] <= until_s and len(found) < PAGE * DUE_SHARDS:
            due_s, _, job, stamp = heapq.heappop(self._due)
            if stamp == job.stamp and job.waits:
                found.append((due_s, job))
        return found

    def _look(self, job: Job, due_s: float) -> Steps:
        """What one due job needs."""
        if not job.waits:
            return
        at_s = max(self.env.now, due_s)
        self.figures.looks += 1
        self.figures.units["due"] += 2
        yield self._sweeps(LOOK_S)
        if not job.waits:
            return
        if not job.parked:  # it has its message; a copy does no harm and is left out here
            self._look_at(job, self._next_look_s(job, at_s))
            return
        shut = self._gates.look(job.kind.gate, now_ms=self._now_ms).shut(self._now_ms)
        if job.slot is None and shut is not None and shut.until_ms / 1000 > at_s:
            self._look_at(job, shut.until_ms / 1000)
            return
        self._look_at(job, self._next_look_s(job, at_s))
        delay_s = math.ceil(at_s - self.env.now)
        yield self._sweeps(SEND_S)
        self.figures.sends += 1
        self.env.process(self._put_later(job, job.lane, max(0, delay_s)))

    def _next_look_s(self, job: Job, at_s: float) -> float:
        job.sends += 1
        return at_s + min(RESEND_LONGEST_MS, RESEND_FIRST_MS << min(job.sends - 1, 10)) / 1000


def _once_a_second(contending: Callable[..., Any]) -> Callable[..., Any]:
    """The same for all who look within a second: else the model takes ten times as long."""
    found: dict[tuple[int, str, int], Any] = {}

    def remembered(backlog: Backlog, catalogue: Any, lane: str, now_ms: int) -> Any:
        key = backlog.measured_at_epoch_ms, lane, now_ms // 1000
        if key not in found:
            if len(found) > 4:  # noqa: PLR2004 - two lanes, this second and the last
                found.clear()
            found[key] = contending(backlog, catalogue, lane, now_ms)
        return found[key]

    return remembered


def _once_a_picture(short: Callable[..., bool]) -> Callable[..., bool]:
    """The same until another is painted, which is exact, and takes half the time."""
    found: dict[str, tuple[Backlog, bool]] = {}

    def remembered(backlog: Backlog, catalogue: Any, lane: str) -> bool:
        if lane not in found or found[lane][0] is not backlog:
            found[lane] = backlog, short(backlog, catalogue, lane)
        return found[lane][1]

    return remembered


def _once_a_model(at_once: Callable[..., float]) -> Callable[..., float]:
    """The catalogue stays as it is for as long as a model runs."""
    found: dict[str, float] = {}

    def remembered(catalogue: Any, model: str) -> float:
        if model not in found:
            found[model] = at_once(catalogue, model)
        return found[model]

    return remembered


# ------------------------------------------------------------------------------------ the runs


HOUR_S = 300.0
"""So much of each hour is simulated, after a minute of warm-up."""

LADDER = {2: 30.0, 4: 15.0}
"""Times the peak, and seconds that are simulated."""

SIZES = {"10": (0.02, 1800.0), "100": (0.2, 300.0), "500": (1.0, 90.0)}
"""Workers: the part of load and quotas, and seconds that are simulated."""

NIGHT_BATCH = 0.9
NIGHT_LOAD = 2.5
FLOOD_LOAD = 2.0
FLOOD_MINUTES = 2
"""Of the first model's whole quota."""

UNKNOWN_S = 900.0
TRUE_LIMITS = (1.0, 0.9, 0.7, 0.5)
"""Of what the catalogue says."""


def hours() -> dict[str, Figures]:
    """The mean hour, the hour at the peak, and that one with a quota that is too small."""
    runs = {
        "mean": big("mean", load=1.0, seconds=HOUR_S, policy=BUILT),
        "peak": big("peak", load=PEAK, seconds=HOUR_S / 2, policy=BUILT),
        "peak, one quota too small": big(
            "short", load=PEAK, seconds=HOUR_S / 2, policy=BUILT, short=True
        ),
    }
    return {name: _run(scenario) for name, scenario in runs.items()}


def ladder(peak: Figures) -> dict[int, Figures]:
    """Load, workers and quotas at the peak, once and more often."""
    return {1: peak} | {
        factor: _run(big(f"{factor}x", load=PEAK, seconds=seconds, policy=BUILT, factor=factor))
        for factor, seconds in LADDER.items()
    }


def policies() -> list[tuple[str, str, Figures]]:
    """Size, situation and figures of each policy."""
    found = []
    for size, (factor, seconds) in SIZES.items():
        situations = {"peak": big(size, load=PEAK, seconds=seconds, policy=FIXED, factor=factor)}
        if factor < 1:
            calm = big(size, load=FLOOD_LOAD, seconds=seconds, policy=FIXED, factor=factor)
            per_minute = calm.kinds[0].limits.requests_per_minute
            situations["a flood"] = replace(calm, flood=FLOOD_MINUTES * per_minute)
        if size == "100":
            night = big(size, load=NIGHT_LOAD, seconds=seconds, policy=FIXED, factor=factor)
            situations["mostly batch"] = replace(night, batch_part=NIGHT_BATCH)
        found += [
            (size, situation, _run(replace(scenario, policy=policy)))
            for situation, scenario in situations.items()
            for policy in (*POLICIES, *((WIDE,) if size == "500" else ()))
        ]
    return found


def unknown_limits() -> dict[float, tuple[Figures, Figures]]:
    """A model of 600 a minute whose vendor allows less, with work for 1.2 times what it allows.

    The vendor that says when to come again, and the one that doesn't.
    """

    def of(part: float, *, tells: bool) -> Figures:
        true = round(600 * part)
        kind = Kind("model", 1.0, 1.0, Limits(600, 0, 5), true_per_minute=true, retry_after=tells)
        return _run(
            Scenario(
                name=f"true limit {part}",
                kinds=(kind,),
                tenants=(1.0,) * 3,
                per_s=1.2 * 10 * part,
                workers={"interactive": 38, "batch": 12},
                policy=BUILT,
                seconds=UNKNOWN_S,
                warm_up_s=60.0,
                batch_part=0.0,
                burst_part=0.0,
            )
        )

    return {part: (of(part, tells=True), of(part, tells=False)) for part in TRUE_LIMITS}


CONTRACT = Kind("model", 1.0, 8.0, Limits(600, 2_000_000, 10), tokens=3000, places=20)
"""600 requests and 2 million tokens a minute, 20 calls at once, and answers after 8 s."""

CONTRACT_S = 1800.0
SETTINGS = {
    "600 a minute, 20 workers": (600, {"interactive": 15, "batch": 5}),
    "600 a minute, 50 workers": (600, {"interactive": 38, "batch": 12}),
    "150 a minute, 50 workers": (150, {"interactive": 38, "batch": 12}),
}
"""Requests a minute in the catalogue, and workers."""

CONTRACT_LOAD = 0.9


def contracts() -> dict[str, Figures]:
    """Ways to set up for that contract, with work for nine tenths of what it takes."""
    found = {}
    for name, (per_minute, workers) in SETTINGS.items():
        limits = replace(CONTRACT.limits, requests_per_minute=per_minute)
        found[name] = _run(
            Scenario(
                name=name,
                kinds=(replace(CONTRACT, limits=limits),),
                tenants=(1.0,) * 5,
                per_s=CONTRACT_LOAD * CONTRACT.places / CONTRACT.latency_s,
                workers=workers,
                policy=BUILT,
                seconds=CONTRACT_S,
                warm_up_s=60.0,
                burst_jobs=10,
            )
        )
    return found


def _run(scenario: Scenario) -> Figures:
    print(f"  {scenario.name}: {scenario.policy.name}", file=sys.stderr)
    return Model(scenario).run()


# ------------------------------------------------------------------------------------ limits


LANE_ROW = "the lane's row"


def loads(figures: Figures) -> dict[str, float]:
    """Of each thing that can't be bought: how much of what it takes is asked of it."""
    per_s = {name: units / figures.measured_s for name, units in figures.units.items()}

    def hottest(kind: str) -> float:
        return max((units for name, units in per_s.items() if name.startswith(kind)), default=0.0)

    reads = sum(figures.busy_s.values()) / figures.measured_s / PICTURE_LIVES_S
    picture_bytes = figures.groups * PICTURE_GROUP_BYTES
    sweeper_s = (SWEEPER_ENDS_S - STOP_BEFORE_END_MS / 1000) / SWEEP_S
    return {
        "a tenant's counter": hottest("counter") / COUNTER_SHARDS / PARTITION_UNITS,
        "a gate's row": hottest("gate") / PARTITION_UNITS,
        "a vendor's rooms": hottest("room model") / PARTITION_UNITS,
        LANE_ROW: hottest("room lane") / PARTITION_UNITS,
        "the index of due jobs": per_s.get("due", 0.0) / DUE_SHARDS / PARTITION_UNITS,
        "the picture's row": reads * -(-picture_bytes // 4096) / 2 / PARTITION_READS,
        "the sweeper": figures.sweeper_s / figures.measured_s / sweeper_s,
        "a mapping's concurrency": max(figures.scenario.workers.values()) / MAPPING_MOST,
    }


COUNTER_SHARDS = 8
"""Of a tenant that may have 800 jobs in flight and more."""


# ------------------------------------------------------------------------------------ money


ANSWER_KB = 10


API_MS = {"submit": 30, "get": 8}
"""Billed, of a warm function."""

PARK_PATH = "retryable error"
"""A park reads and writes the same rows."""


def cost(figures: Figures) -> dict[str, float]:
    """USD of a million requests, by service."""
    mb, paths = STACK.memory_mb, costs.counted().paths
    hits, new = figures.requests - figures.came, figures.came
    parks = figures.parks.total()
    runs = figures.runs - parks
    of_paths = (
        (hits, "fresh hit"),
        (new, "miss: submit"),
        (new, "miss: get"),
        (figures.ended, "miss: run"),
        (parks, PARK_PATH),
    )
    read = write = 0.0
    for count, path in of_paths:
        step = paths[path].step(0, ANSWER_KB)
        read, write = read + count * step.read_units, write + count * step.write_units
    read += max(0, runs - figures.ended) + figures.looks  # copies read their job
    write += 3 * figures.looks + sum(
        units for name, units in figures.units.items() if name.split()[0] in {"gate", "room"}
    )
    gb_s = sum(figures.busy_s.values()) * mb["run_job"] / 1024
    gb_s += figures.measured_s * mb["sweep_jobs"] / 1024
    gb_s += (new * API_MS["submit"] + (new + hits) * API_MS["get"]) / 1000 * mb["api"] / 1024
    messages = new + figures.sends + 2 * figures.runs
    parts = {
        "DynamoDB": read * LIST.one("read") + write * LIST.one("write"),
        "Lambda": (figures.runs + 2 * new + hits) * LIST.one("invocation")
        + gb_s * LIST.one("gb_second"),
        "API Gateway": (2 * new + hits) * LIST.one("request"),
        "SQS": messages * (LIST.one("message") + LIST.one("fair")),
    }
    return {name: usd / figures.requests * MILLION for name, usd in parts.items()}


# ------------------------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Findings:
    """All figures."""

    hours: Mapping[str, Figures]
    ladder: Mapping[int, Figures]
    policies: Sequence[tuple[str, str, Figures]]
    unknown: Mapping[float, tuple[Figures, Figures]]
    contracts: Mapping[str, Figures]


Table = tuple[list[str], list[list[str]]]


def _per_cent(part: float) -> str:
    return f"{100 * part:.0f}"


def hours_table(found: Findings) -> Table:
    """What the day is like."""
    head = ["hour", *found.hours]
    rows: dict[str, list[str]] = {}
    for figures in found.hours.values():
        seconds = figures.measured_s
        quotas = sorted(figures.quota(kind) for kind in figures.scenario.kinds)
        row = {
            "requests a second": f"{figures.requests / seconds:.0f}",
            "new jobs a second": f"{figures.came / seconds:.0f}",
            "jobs ended a second": f"{figures.ended / seconds:.0f}",
            "workers busy, %: interactive / batch": " / ".join(
                _per_cent(figures.use(lane)) for lane in LANES
            ),
            "of them holding, workers": f"{figures.held_s / seconds:.0f}",
            "models' quotas used, %: least / median / most": " / ".join(
                _per_cent(quotas[at]) for at in (0, len(quotas) // 2, -1)
            ),
            "runs of a worker for a job": f"{figures.runs / max(1, figures.ended):.2f}",
            "parks of 1,000 jobs": f"{figures.of_jobs(figures.parks.total()):.1f}",
            "of them over a share": f"{figures.of_jobs(figures.parks['share']):.1f}",
            "kept slots lost, of 1,000 jobs": f"{figures.of_jobs(figures.lost_slots):.1f}",
            "sent for early, of 1,000 jobs": f"{figures.of_jobs(figures.woken):.1f}",
            "of them lent": f"{figures.of_jobs(figures.lent):.1f}",
            "sweeper busy, %": _per_cent(figures.sweeper_s / seconds),
            "jobs open at the end": f"{figures.open_at_end:,}",
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
    return head, [[name, *values] for name, values in rows.items()]


def waits_table(found: Findings) -> Table:
    """From the submit to the call."""
    head = ["wait for the call, s, p50 / p95 / p99", *found.hours]
    lines = [
        [
            name,
            *(
                " / ".join(f"{figures.wait(name, at):.1f}" for at in (50, 95, 99))
                for figures in found.hours.values()
            ),
        ]
        for name in (*LANES, *CLASSES)
    ]
    return head, lines


def cost_table(found: Findings) -> Table:
    """USD of a million requests."""
    bills = {name: cost(figures) for name, figures in found.hours.items()}
    services = list(next(iter(bills.values())))
    head = ["hour", *services, "all, USD a million requests"]
    lines = [
        [name, *(f"{bill[one]:.2f}" for one in services), f"{sum(bill.values()):.2f}"]
        for name, bill in bills.items()
    ]
    return head, lines


def ladder_table(found: Findings) -> Table:
    """What saturates, and how much of it is asked."""
    names = list(loads(next(iter(found.ladder.values()))))
    head = ["times the peak", "new jobs a second", "workers", *names, "most is asked of"]
    lines = []
    for factor, figures in found.ladder.items():
        asked = loads(figures)
        most = max(asked, key=lambda name: asked[name])
        lines.append(
            [
                str(factor),
                f"{figures.came / figures.measured_s:.0f}",
                f"{sum(figures.scenario.workers.values()):,}",
                *(_per_cent(asked[name]) for name in names),
                f"{most}{'' if asked[most] >= 1 else ', which stands it'}",
            ]
        )
    return head, lines


def policy_table(found: Findings) -> Table:
    """Side by side."""
    head = [
        *("workers", "load", "policy", "busy, %", "jobs ended, of those that came, %"),
        *("interactive: p50 / p95, s", "batch: p50 / p95, s", "150 smallest tenants: p95, s"),
        *("parks of 1,000 jobs", "sweeper, %", "lane's row, units a second"),
    ]
    lines = []
    for size, situation, figures in found.policies:
        asked = loads(figures)
        lines.append(
            [
                *(size, situation, figures.scenario.policy.name),
                _per_cent(figures.use(*LANES)),
                _per_cent(figures.ended / max(1, figures.came)),
                *(f"{figures.wait(lane, 50):.1f} / {figures.wait(lane, 95):.0f}" for lane in LANES),
                f"{figures.wait(CLASSES[-1], 95):.0f}",
                f"{figures.of_jobs(figures.parks.total()):.0f}",
                _per_cent(asked["the sweeper"]),
                f"{PARTITION_UNITS * asked[LANE_ROW]:,.0f}",
            ]
        )
    return head, lines


def unknown_table(found: Findings) -> Table:
    """A vendor that allows less than the catalogue says."""
    head = ["vendor allows, a minute", "of the configured rate, %"]
    for how in ("with Retry-After", "without it"):
        head += [f"used of what it allows, %, {how}", f"answers 429 an hour, {how}"]
    lines = []
    for part, both in found.unknown.items():
        line = [f"{600 * part:.0f}", _per_cent(part)]
        for figures in both:
            line.append(_per_cent(figures.quota(figures.scenario.kinds[0])))
            line.append(f"{figures.refused.total() / figures.measured_s * 3600:.0f}")
        lines.append(line)
    return head, lines


def contract_table(found: Findings) -> Table:
    """Ways to set up for the same contract."""
    head = [
        *("settings", "calls a minute", "of 20 at once in use, %", "workers busy, %"),
        *("interactive: p50 / p95, s", "parks of 1,000 jobs", "kept slots lost, of 1,000 jobs"),
    ]
    lines = [
        [
            name,
            f"{60 * figures.calls.total() / figures.measured_s:.0f}",
            _per_cent(figures.calling_s / figures.measured_s / CONTRACT.places),
            _per_cent(figures.use(*LANES)),
            " / ".join(f"{figures.wait('interactive', at):.0f}" for at in (50, 95)),
            f"{figures.of_jobs(figures.parks.total()):.0f}",
            f"{figures.of_jobs(figures.lost_slots):.0f}",
        ]
        for name, figures in found.contracts.items()
    ]
    return head, lines


MONEY = "What a million requests cost"


def sections(found: Findings) -> dict[str, Table]:
    """All tables by their titles."""
    return {
        "Two hours of a day of 10 million requests": hours_table(found),
        "Waits by lane and by tenant": waits_table(found),
        MONEY: cost_table(found),
        "Where it breaks first, % of what each part takes": ladder_table(found),
        "Policies side by side": policy_table(found),
        "When the vendor's limit is not known": unknown_table(found),
        "A contract for 20 calls at once of 8 s": contract_table(found),
    }


def cost_bars(found: Findings) -> report.Bars:
    """What a million requests cost, by service."""
    bills = {name: cost(figures) for name, figures in found.hours.items()}
    services = list(next(iter(bills.values())))
    return report.Bars(
        name="cost",
        title="What a million requests cost in an hour of that day",
        y="USD a million requests",
        names=services,
        series={name: [round(bill[one], 2) for one in services] for name, bill in bills.items()},
    )


def parts(found: Findings) -> list[report.Part]:
    """For people."""
    parts: list[report.Part] = []
    for title, table in sections(found).items():
        parts.append(report.Table(title, *table))
        if title == MONEY:
            parts.append(cost_bars(found))
    return parts


def figures(found: Findings) -> dict[str, Any]:
    """For programs."""
    return {
        "seed": SEED,
        "tables": {
            title: [dict(zip(head, line, strict=True)) for line in lines]
            for title, (head, lines) in sections(found).items()
        },
    }


# ------------------------------------------------------------------------------------ the check


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst as bench/burst.py makes it: all of it is there when the lanes go on."""

    submits: int = 600
    duplicates: float = 0.4
    """Part of the submits."""
    per_minute: int = 600
    latency_s: float = 0.3
    halved: bool = False
    """The vendor allows half of what the catalogue says, and the burst is twice as long."""
    gate_burst: int = 5
    vendor_burst: int = 10
    tenants: int = 3
    workers: str = "8+2"
    """Interactive and batch."""
    overhead_s: float = 0.0
    """Of a run, more than is assumed of AWS: an emulator is slower."""

    @property
    def true_per_minute(self) -> int:
        """What the vendor allows."""
        return self.per_minute // (2 if self.halved else 1)

    @property
    def scenario(self) -> Scenario:
        """For the model."""
        interactive, batch = (int(count) for count in self.workers.split("+"))
        kind = Kind(
            name="model",
            part=1.0,
            latency_s=self.latency_s,
            limits=Limits(self.per_minute, 0, self.gate_burst),
            sigma=0.0,
            true_per_minute=self.true_per_minute,
            vendor_burst=self.vendor_burst,
            retry_after=True,
        )
        return Scenario(
            name="burst",
            kinds=(kind,),
            tenants=(1.0,) * self.tenants,
            per_s=1e6,
            workers={"interactive": interactive, "batch": batch},
            policy=BUILT,
            seconds=0.0,
            hits=self.duplicates,
            batch_part=0.0,
            overhead_s=self.overhead_s,
            jobs=self.submits * (2 if self.halved else 1),
            warm=True,
        )


def check(burst: Burst) -> dict[str, float]:
    """What bench/burst.py tells of it: from the first worker's start to the last answered call."""
    figures = Model(burst.scenario).run()
    calls = figures.calls.total()
    took_s = figures.last_call_s + burst.latency_s
    return {
        "jobs": calls,
        "took_s": took_s,
        "quota_used": (calls - burst.gate_burst) / (took_s * burst.true_per_minute / 60),
        "refused": figures.refused.total(),
    }


COMPARED = ("jobs", "took_s", "quota_used")


def compare(
    simulated: Mapping[str, float], measured: Mapping[str, float], tolerance: float
) -> tuple[Table, bool]:
    """A table, and whether each figure is as near as that. Of `refused` it only tells."""
    lines, near = [], True
    for name in COMPARED:
        off = simulated[name] / measured[name] - 1
        near &= abs(off) <= tolerance
        lines.append([name, f"{simulated[name]:.3g}", f"{measured[name]:.3g}", f"{100 * off:+.1f}"])
    lines.append(["refused", f"{simulated['refused']:g}", f"{measured['refused']:g}", "-"])
    return (["figure", "simulated", "measured", "off, %"], lines), near


def _told_check(given: argparse.Namespace) -> int:
    """The figures, and those that bench/burst.py measured with the same setting beside them."""
    burst = Burst(halved=given.scenario == "halved", overhead_s=given.overhead_s)
    if not given.against:
        lines = [[name, f"{value:.3g}"] for name, value in check(burst).items()]
        print(report.as_markdown(["figure", "simulated"], lines))
        return 0
    told = json.loads(Path(given.against).read_text())["figures"]
    measured = next(one for one in told["bursts"] if one["scenario"] == given.scenario)
    setting = told["setting"]
    burst = replace(
        burst,
        submits=setting["jobs"],
        per_minute=setting["per_minute"],
        latency_s=setting["latency_s"],
    )
    table, near = compare(check(burst), measured, given.tolerance)
    print(report.as_markdown(*table))
    return 0 if near else 1


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="simulate a burst instead")
    parser.add_argument(
        "--against", metavar="FILE", help="compare it with what bench/burst.py --json wrote"
    )
    parser.add_argument("--scenario", choices=("met", "halved"), default="met", help="of the burst")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of each figure")
    parser.add_argument("--overhead-s", type=float, default=0.0, help="of a run, on top")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a check is off by more than the tolerance."""
    given = report.options(__doc__, arguments, add=_options)
    if given.check:
        return _told_check(given)
    days = hours()
    found = Findings(days, ladder(days["peak"]), policies(), unknown_limits(), contracts())
    report.tell(given, "simulate", figures=figures(found), parts=parts(found), also=("simpy",))
    return 0


if __name__ == "__main__":
    report.run(main)
