"""Simulate the service under load: quotas, lanes, shares and the sweeper, in simulated time.

A discrete-event model. The rules of gates, slots and backoff are the service's own code; lanes,
workers, parking, the sweeper and the vendor are modelled here, with the constants of the code. The
randomness is seeded, so the same figures come out each time. What the model leaves out stands in
docs/benchmarks.md.

With --check it plays a burst of equal jobs instead, and compares it with measured figures.
"""

import argparse
import heapq
import json
import math
import random
import re
import sys
from array import array
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import simpy
from sluiceway.domain import backoff, gate
from sluiceway.domain.gate import Gate, Limits, Room, Shut
from sluiceway.domain.job import (
    DUE_SHARDS,
    LANES,
    RESEND_AFTER_SUBMIT_MS,
    RESEND_FIRST_MS,
    RESEND_LONGEST_MS,
)
from sluiceway.domain.ticket import Ticket
from sluiceway.usecases.run_job import ROOM_WAIT_MS, SHUT_SPREAD_MS
from sluiceway.usecases.sweep_jobs import LOOK_AHEAD_MS, PAGE, POLL_EVERY_MS, STOP_BEFORE_END_MS

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import cache_cost, report
from bench.cache_cost import MILLION, WAITS_MS, price
from tests.fakes.in_memory import InMemoryGates, World

MARKERS = ("<!-- simulate -->", "<!-- /simulate -->")

SEED = 5
HOLD_MAX_S = 15.0
"""The default of the catalogue."""

# ------------------------------------------------------------------------------------ assumed

UPDATE_MS = 8
"""Of one conditional write, as WAITS_MS has the other calls."""

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
SWEEPER_MB = 256
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
"""Of a worker in a room: token and time. In the row of a lane it is in two: tenant and model."""

PICTURE_GROUP_BYTES = 15
PICTURE_GROUPS = 1000
PICTURE_LIVES_S = 2.0
"""The row of the backlog: bytes of a group, groups at most, and the life of a process's copy."""

FAIR_FROM = 30
FAIR_SHARE = 0.1
"""A group of so many messages in flight that are so much of the queue's is noisy (AWS)."""

FURTHEST_BATCH_MS = 60_000
"""A batch job takes no slot further ahead."""

LENT_SHARE = {"interactive": 0.75, "batch": 1.0}
"""Of a lane's idle workers, that the other lane may have."""


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
    """Calls at once under it; 0: the catalogue's burst, and what comes in a second."""

    @property
    def median_s(self) -> float:
        """Of the latency."""
        return self.latency_s / math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class Policy:
    """How workers are divided."""

    name: str
    shares: Literal["none", "equal", "by need"] = "none"
    """Of tenants and models in a contended lane: the same for each, or filled up from below."""
    lends: bool = False
    idle_most: int = 10_000
    """Shares hold only while no more workers of the lane are idle."""
    fair: bool = True
    """SQS fair queues."""
    senders: int = 1
    """Jobs that the sweeper looks at side by side."""


FIXED = Policy("fixed split, no shares")
LENDING = Policy("lending, no shares", lends=True)
EQUAL = Policy("lending, equal shares", shares="equal", lends=True)
NEED = Policy("lending, shares by need", shares="by need", lends=True)
FULL = Policy("lending, shares by need in a full lane", "by need", lends=True, idle_most=2)
WIDE = Policy("the same, 16 sends side by side", "by need", lends=True, idle_most=2, senders=16)
POLICIES = (FIXED, LENDING, EQUAL, NEED, FULL, WIDE)


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
        warm_up_s=min(120.0, seconds),
        hits=HITS,
        burst_jobs=max(5, round(50 * min(1.0, factor))),
    )


# ------------------------------------------------------------------------------------ the model


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work. Times are seconds of the simulation, but the slot's."""

    kind: Kind
    tenant: int
    lane: str
    came_s: float
    state: str = "waiting"
    """Then `running`, at last `done`."""
    not_before_s: float = 0.0
    parked: bool = False
    slot: Ticket | None = None
    attempts: int = 0
    parks: int = 0
    runs: int = 0
    sends: int = 0
    lent: bool = False
    stamp: int = 0
    """Grows when the job moves: a due time from before counts no more."""


class Lane:
    """A queue of SQS and its workers."""

    def __init__(self, workers: int, *, fair: bool) -> None:
        self.workers = workers
        self.running = 0
        self.messages: deque[Job] = deque()
        self._noisy: deque[Job] = deque()
        self._in_flight: Counter[tuple[int, str]] | None = Counter() if fair else None

    def put(self, job: Job) -> None:
        """A message becomes visible."""
        self.messages.append(job)

    def take(self) -> Job | None:
        """The next message for a free worker; those of noisy groups come last."""
        if self.running >= self.workers:
            return None
        while self.messages:
            job = self.messages.popleft()
            if not self._is_noisy(job):
                return self._taken(job)
            self._noisy.append(job)
        return self._taken(self._noisy.popleft()) if self._noisy else None

    def done(self, job: Job) -> None:
        """A worker is free."""
        self.running -= 1
        if self._in_flight is not None:
            self._in_flight[job.tenant, job.kind.name] -= 1

    @property
    def depth(self) -> int:
        """Messages that nobody has."""
        return len(self.messages) + len(self._noisy)

    def oldest(self) -> Iterable[Job]:
        """Messages, about the oldest first."""
        yield from self._noisy
        yield from self.messages

    def _taken(self, job: Job) -> Job:
        self.running += 1
        if self._in_flight is not None:
            self._in_flight[job.tenant, job.kind.name] += 1
        return job

    def _is_noisy(self, job: Job) -> bool:
        if self._in_flight is None:
            return False
        own = self._in_flight[job.tenant, job.kind.name]
        return own >= FAIR_FROM and own > FAIR_SHARE * self.running


@dataclass(slots=True)
class Picture:
    """What the sweeper saw of a lane, as far as shares go."""

    tenants: dict[int, int] = field(default_factory=dict)
    """How many workers each tenant may have; nothing: as many as it likes."""
    kinds: dict[str, int] = field(default_factory=dict)
    lines: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """How many wait, by tenant and model."""
    tenants_seen: int = 1


def shares_of(policy: Policy, workers: int, wants: Mapping[Any, int]) -> dict[Any, int]:
    """How many of the workers each of those who want them may have.

    `wants`: those who run and those who wait. This is the place of the rule, for both tenants and
    models.
    """
    if policy.shares == "equal":
        return dict.fromkeys(wants, max(1, -(-workers // len(wants))))
    left, level = workers, 0
    for count, wanted in enumerate(sorted(wants.values())):
        level = -(-left // (len(wants) - count))
        if wanted > level:
            break
        left -= wanted
    return dict.fromkeys(wants, max(1, level))


@dataclass
class Figures:
    """What one run of the model gave. Times in seconds, rates a second."""

    scenario: Scenario
    measured_s: float
    requests: int
    ended: int
    """Jobs whose result came in the measured time."""
    came: int
    """Jobs in the measured time, hits left out."""
    calls: Counter[str]
    refused: Counter[str]
    """Answers 429, by model."""
    lost_slots: int
    busy_s: Mapping[str, float]
    """Of the workers, by lane."""
    calling_s: float
    held_s: float
    waits: Mapping[str, Sequence[float]]
    """From the arrival to the call, by lane and by class of tenants."""
    parks: Counter[str]
    """By reason."""
    runs: int
    cold: int
    sweeper_s: float
    sends: int
    lent: int
    looks: int
    late_s: float
    """How late the sweeper was at most."""
    units: Counter[str]
    """Write units by row."""
    picture_bytes: int
    open_at_end: int
    waiting_at_end: Mapping[str, int]
    last_call_s: float
    started: Mapping[str, Sequence[float]]
    """When the calls of a model began, the refused ones too; only for a model that records."""

    def use(self, lane: str) -> float:
        """Of the lane's workers."""
        return self.busy_s[lane] / self.measured_s / self.scenario.workers[lane]

    @property
    def use_of_all(self) -> float:
        """Of all workers."""
        return sum(self.busy_s.values()) / self.measured_s / sum(self.scenario.workers.values())

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

    @property
    def sweeper(self) -> float:
        """Of its time, that it worked."""
        return self.sweeper_s / self.measured_s


CLASSES = ("5 biggest tenants", "next 45", "other 150")


def class_of(tenant: int) -> str:
    """Of a tenant, by its rank from 0."""
    return CLASSES[0] if tenant < 5 else CLASSES[1] if tenant < 50 else CLASSES[2]  # noqa: PLR2004


def _row(kind: Kind, shard: int = 0) -> str:
    return f"{kind.name}#{shard}"


Steps = Generator[simpy.Event, Any, None]


class Model:
    """The service, its vendors and its partners, in simulated time."""

    def __init__(self, scenario: Scenario, *, records: bool = False) -> None:
        """`records`: keeps the time of each call."""
        self.scenario = scenario
        self.env = simpy.Environment()
        self.lanes = {
            lane: Lane(count, fair=scenario.policy.fair) for lane, count in scenario.workers.items()
        }
        self._rng = random.Random(scenario.seed)  # noqa: S311 - repeatable on purpose
        self._gates = InMemoryGates(World())
        self._vendor = {kind.name: 0.0 for kind in scenario.kinds}
        """When the vendor's own line ends."""
        self._records = records
        self._idle = sum(scenario.workers.values()) if scenario.warm else 0
        """Warm environments without work."""
        self._pictures = {lane: Picture() for lane in LANES}
        self._entered: dict[str, Counter[Any]] = {lane: Counter() for lane in LANES}
        """In the lane's row, by tenant and by model."""
        self._open = {lane: Counter[tuple[int, str]]() for lane in LANES}
        """Jobs that wait for a worker or a message, those with a slot left out."""
        self._runs = {lane: Counter[tuple[int, str]]() for lane in LANES}
        self._due: list[tuple[float, int, Job, int]] = []
        self._submitted: deque[Job] = deque()
        """Jobs that the sweeper looks at two minutes after their submit, in order."""
        self._serial = 0
        self._open_jobs = 0
        self._reset()

    def _reset(self) -> None:
        self._requests = self._came = self._ended = 0
        self._calls: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._parks: Counter[str] = Counter()
        self._units: Counter[str] = Counter()
        self._lost = self._run_count = self._cold = self._sends = self._lent = self._looks = 0
        self._sweeper_s = self._late_s = self._calling_s = self._held_s = 0.0
        self._busy_s = dict.fromkeys(LANES, 0.0)
        self._changed_s = dict.fromkeys(LANES, self.env.now)
        names = (*LANES, *CLASSES)
        self._waits: dict[str, Any] = {name: array("d") for name in names}
        self._picture_groups = 0
        self._last_call_s = 0.0
        self._started: dict[str, list[float]] = {kind.name: [] for kind in self.scenario.kinds}

    def run(self) -> Figures:
        """All of it."""
        env, scenario = self.env, self.scenario
        env.process(self._sweeper())
        if scenario.jobs:
            arrivals = env.process(self._some_arrivals())
            env.run(until=arrivals)
            while self._open_jobs:
                env.run(until=env.now + 1)
        else:
            env.process(self._arrivals())
            env.process(self._bursts())
            if scenario.warm_up_s:
                env.run(until=scenario.warm_up_s)
                self._reset()
            env.run(until=scenario.warm_up_s + scenario.seconds)
        return self._figures()

    def _figures(self) -> Figures:
        for lane in LANES:
            self._count_busy(lane)
        return Figures(
            scenario=self.scenario,
            measured_s=self.env.now - self.scenario.warm_up_s,
            requests=self._requests,
            ended=self._ended,
            came=self._came,
            calls=self._calls,
            refused=self._refused,
            lost_slots=self._lost,
            busy_s=self._busy_s,
            calling_s=self._calling_s,
            held_s=self._held_s,
            waits=self._waits,
            parks=self._parks,
            runs=self._run_count,
            cold=self._cold,
            sweeper_s=self._sweeper_s,
            sends=self._sends,
            lent=self._lent,
            looks=self._looks,
            late_s=self._late_s,
            units=self._units,
            picture_bytes=min(PICTURE_GROUPS, self._picture_groups) * PICTURE_GROUP_BYTES,
            open_at_end=self._open_jobs,
            waiting_at_end={lane: self._open[lane].total() for lane in LANES},
            last_call_s=self._last_call_s,
            started=self._started,
        )

    @property
    def _now_ms(self) -> int:
        return int(self.env.now * 1000)

    # ---------------------------------------------------------------- arrivals

    def _arrivals(self) -> Steps:
        """Single requests, as a Poisson process."""
        scenario, rng = self.scenario, self._rng
        per_s = scenario.per_s * (1 - scenario.burst_part)
        parts = [kind.part for kind in scenario.kinds]
        while True:
            tenants = rng.choices(range(len(scenario.tenants)), scenario.tenants, k=1000)
            for tenant, kind in zip(
                tenants, rng.choices(scenario.kinds, parts, k=1000), strict=True
            ):
                yield self.env.timeout(rng.expovariate(per_s))
                self._submit(tenant, kind)

    def _bursts(self) -> Steps:
        scenario, rng = self.scenario, self._rng
        if not scenario.burst_part:
            return
        per_s = scenario.per_s * scenario.burst_part / scenario.burst_jobs
        while True:
            yield self.env.timeout(rng.expovariate(per_s))
            (tenant,) = rng.choices(range(len(scenario.tenants)), scenario.tenants)
            (kind,) = rng.choices(scenario.kinds, [kind.part for kind in scenario.kinds])
            for _ in range(scenario.burst_jobs):
                self._submit(tenant, kind)

    def _some_arrivals(self) -> Steps:
        """So many requests, evenly, of each tenant in turn; exactly so many hits."""
        scenario = self.scenario
        hits = round(scenario.jobs * scenario.hits)
        for number in range(scenario.jobs):
            is_hit = (number + 1) * hits // scenario.jobs > number * hits // scenario.jobs
            kind = scenario.kinds[number % len(scenario.kinds)]
            self._submit(number % len(scenario.tenants), kind, hit=is_hit)
            yield self.env.timeout(1 / scenario.per_s)

    def _submit(self, tenant: int, kind: Kind, *, hit: bool | None = None) -> None:
        rng, scenario = self._rng, self.scenario
        self._requests += 1
        if rng.random() < scenario.hits if hit is None else hit:
            return
        is_batch = kind.heavy or rng.random() < scenario.batch_part
        job = Job(kind, tenant, "batch" if is_batch else "interactive", self.env.now)
        self._came += 1
        self._open_jobs += 1
        self._open[job.lane][tenant, kind.name] += 1
        self._units[f"counter {tenant}"] += 2
        self._units["due"] += 1
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
        while True:
            self._count_busy(lane)
            job = self.lanes[lane].take()
            if job is None:
                return
            self.env.process(self._invoke(job, lane))

    def _count_busy(self, lane: str) -> None:
        now_s = self.env.now
        self._busy_s[lane] += self.lanes[lane].running * (now_s - self._changed_s[lane])
        self._changed_s[lane] = now_s

    def _invoke(self, job: Job, lane: str) -> Steps:
        """One delivery of a message."""
        self._run_count += 1
        cold_s = 0.0
        if self._idle:
            self._idle -= 1
        else:
            self._cold += 1
            cold_s = COLD_START_S
        yield self.env.timeout(PICK_UP_S + cold_s + START_S + self.scenario.overhead_s)
        early_s = job.not_before_s - self.env.now
        if 0 < early_s <= self.scenario.hold_max_s and job.state == "waiting":
            self._held_s += early_s
            yield self.env.timeout(early_s)
            early_s = 0
        if early_s <= 0 and job.state == "waiting":  # else it is a copy
            yield from self._work(job, lane)
        self._count_busy(lane)
        self.lanes[lane].done(job)
        self._idle += 1
        self._dispatch(lane)

    def _work(self, job: Job, lane: str) -> Steps:
        """As usecases/run_job.py has it, from the start on."""
        group = job.tenant, job.kind.name
        job.state = "running"
        job.parked = False
        job.runs += 1
        job.stamp += 1
        if job.slot is None:
            self._open[job.lane][group] -= 1
        self._runs[job.lane][group] += 1
        self._units["due"] += 2
        entered = self._enter_lane(job, lane)
        if entered is None:
            yield from self._park(job, "share", self.env.now + self._line_s(job, lane))
        else:
            yield from self._in_room(job, lane)
        if entered:
            self._leave_lane(job, lane)
        self._runs[job.lane][group] -= 1

    def _in_room(self, job: Job, lane: str) -> Steps:
        rooms: tuple[Room, ...] = ()
        if job.kind.places:
            rooms = (Room(job.kind.name, "all", job.kind.places),)
            token = str(id(job))
            until_ms = self._now_ms + 3_600_000
            self._count_room(job.kind)
            if not self._gates.enter(rooms, token, now_ms=self._now_ms, until_ms=until_ms):
                wait_s = ROOM_WAIT_MS / 1000 * (1 + 2 * self._rng.random())
                yield from self._park(job, "room", self.env.now + wait_s)
                return
        yield from self._through_gate(job, lane)
        if rooms:
            self._count_room(job.kind)
            self._gates.leave(rooms, token)

    def _count_room(self, kind: Kind) -> None:
        inside = self._gates._world.rooms.get((kind.name, "all"), {})  # noqa: SLF001 - its size
        self._units[f"room {kind.name}"] += -(-(1 + len(inside)) * ROOM_ENTRY_BYTES // 1024)

    def _through_gate(self, job: Job, lane: str) -> Steps:
        kind, now_ms = job.kind, self._now_ms
        ticket, job.slot = job.slot, None
        if ticket is not None and not (
            ticket.usable(now_ms)
            and self._gates.still_open(_row(kind, ticket.shard), ticket, now_ms=now_ms)
        ):
            self._lost += 1
            ticket = None
        if ticket is None:
            taken = self._take(job, lane)
            if isinstance(taken, Shut):
                yield from self._park(
                    job, "far" if taken.far else "shut", self._again_s(taken, job, lane)
                )
                return
            ticket = taken
        wait_s = (ticket.slot_at_ms - self._now_ms) / 1000
        if wait_s > self.scenario.hold_max_s:
            job.slot = ticket
            yield from self._park(job, "slot", ticket.slot_at_ms / 1000)
            return
        if wait_s > 0:
            self._held_s += wait_s
            yield self.env.timeout(wait_s)
            row = _row(kind, ticket.shard)
            if not self._gates.still_open(row, ticket, now_ms=self._now_ms):
                self._lost += 1
                until_s = self.env.now + SHUT_SPREAD_MS / 1000 * self._rng.random()
                shut = self._gates.shut(row, now_ms=self._now_ms)
                if shut is not None:
                    until_s = self._again_s(shut, job, lane)
                yield from self._park(job, "shut", until_s)
                return
        yield from self._call(job, ticket)

    def _take(self, job: Job, lane: str) -> Ticket | Shut:
        kind, now_ms = job.kind, self._now_ms
        self._units[f"gate {kind.name}"] += 1
        furthest_ms = gate.FURTHEST_SLOT_MS
        if self.scenario.policy.shares != "none":
            if job.lane == "batch":
                furthest_ms = FURTHEST_BATCH_MS
            if self._pictures[lane].tenants:
                furthest_ms = round(self.scenario.hold_max_s * 1000)
        tokens = round(1.5 * kind.tokens)
        shard = int(self._rng.random() * kind.limits.shards)
        ahead_ms = self._slot_at_ms(kind, shard, tokens) - now_ms
        if ahead_ms > furthest_ms:
            shut = self._gates.shut(_row(kind, shard), now_ms=now_ms)
            return shut or Shut(now_ms + furthest_ms, far=True)
        taken = self._gates.take(
            _row(kind, shard), kind.limits, tokens=tokens, now_ms=now_ms, probe_ms=60_000
        )
        return replace(taken, shard=shard) if isinstance(taken, Ticket) else taken

    def _gate(self, kind: Kind, shard: int = 0) -> Gate:
        return self._gates._of(_row(kind, shard))  # noqa: SLF001 - the row itself

    def _slot_at_ms(self, kind: Kind, shard: int, tokens: int) -> float:
        """When a slot is due that is taken now."""
        now_ms = self._now_ms
        line = self._gate(kind, shard).recovered(now_ms)
        return line.slot_at_us(kind.limits, tokens, now_ms * 1000) / 1000

    def _interval_s(self, kind: Kind) -> float:
        """Between two calls, at the gate's present rate."""
        line = self._gate(kind).recovered(self._now_ms)
        return line.interval_us(kind.limits) / kind.limits.shards / 1e6

    def _again_s(self, shut: Shut, job: Job, lane: str) -> float:
        """When a job looks again that found the gate shut."""
        if shut.far and self.scenario.policy.shares != "none":
            return self.env.now + self._line_s(job, lane)
        spread_ms = gate.FURTHEST_SLOT_MS // -5 if shut.far else SHUT_SPREAD_MS
        return (shut.until_ms + self._rng.random() * spread_ms) / 1000

    def _call(self, job: Job, ticket: Ticket) -> Steps:
        kind, now_s = job.kind, self.env.now
        if self._records:
            self._started[kind.name].append(now_s)
        if not self._vendor_takes(kind, now_s):
            self._refused[kind.name] += 1
            yield self.env.timeout(REFUSED_S + FINISH_S)
            now_ms = self._now_ms
            until_ms = now_ms + gate.COOL_DOWN_MS
            for shard in range(kind.limits.shards):
                self._units[f"gate {kind.name}"] += 1
                row, seen = _row(kind, shard), self._gate(kind, shard)
                closing = ticket if shard == ticket.shard else Ticket(0, seen.version, shard)
                self._gates.close(row, kind.limits, closing, now_ms=now_ms, until_ms=until_ms)
            job.attempts += 1
            delay_s = backoff.retry_delay_s(
                job.attempts, rand=self._rng.random(), retry_after_s=None
            )
            self._wait_again(job, self.env.now + delay_s)
            self.env.process(self._put_later(job, job.lane, delay_s))
            return
        self._calls[kind.name] += 1
        self._last_call_s = now_s
        waited_s = now_s - job.came_s
        self._waits[job.lane].append(waited_s)
        self._waits[class_of(job.tenant)].append(waited_s)
        latency_s = kind.median_s
        if kind.sigma:
            latency_s = self._rng.lognormvariate(math.log(kind.median_s), kind.sigma)
        self._calling_s += latency_s
        yield self.env.timeout(latency_s + FINISH_S)
        if kind.tokens:
            self._units[f"gate {kind.name}"] += 1
            spare = round(1.5 * kind.tokens) - kind.tokens
            self._gates.settle(_row(kind, ticket.shard), kind.limits, ticket, tokens=spare)
        self._units[f"counter {job.tenant}"] += 2
        self._units["due"] += 1
        job.state = "done"
        self._ended += 1
        self._open_jobs -= 1

    def _vendor_takes(self, kind: Kind, now_s: float) -> bool:
        """The vendor's own limit, by GCRA."""
        allowed = kind.true_per_minute or kind.limits.requests_per_minute
        if not allowed:
            return True
        each_s = 60 / allowed
        ahead_s = (kind.limits.burst - 1) * each_s + 1
        if kind.vendor_burst:
            ahead_s = (kind.vendor_burst - 1) * each_s
        line_s = max(self._vendor[kind.name], now_s)
        if line_s - now_s > ahead_s:
            return False
        self._vendor[kind.name] = line_s + each_s
        return True

    # ---------------------------------------------------------------- parking

    def _wait_again(self, job: Job, until_s: float) -> None:
        job.state = "waiting"
        job.not_before_s = until_s
        job.stamp += 1
        if job.slot is None:
            self._open[job.lane][job.tenant, job.kind.name] += 1
        self._units["due"] += 2

    def _park(self, job: Job, reason: str, until_s: float) -> Steps:
        yield self.env.timeout(FINISH_S)
        self._parks[reason] += 1
        job.parks += 1
        job.parked = True
        job.lent = False
        job.sends = 0
        self._wait_again(job, until_s)
        self._look_at(job, until_s)

    def _look_at(self, job: Job, due_s: float) -> None:
        self._serial += 1
        heapq.heappush(self._due, (due_s, self._serial, job, job.stamp))

    # ---------------------------------------------------------------- shares

    def _enter_lane(self, job: Job, lane: str) -> bool | None:
        """Whether the worker stands in the lane's row; None: its tenant or model has its share."""
        picture = self._pictures[lane]
        most = picture.tenants.get(job.tenant), picture.kinds.get(job.kind.name)
        if not picture.tenants:
            return False
        inside = self._entered[lane]
        self._count_lane(lane)
        for who, places in zip((job.tenant, job.kind.name), most, strict=True):
            if places is not None and inside[who] >= places:
                return None
        inside[job.tenant] += 1
        inside[job.kind.name] += 1
        return True

    def _leave_lane(self, job: Job, lane: str) -> None:
        self._count_lane(lane)
        self._entered[lane][job.tenant] -= 1
        self._entered[lane][job.kind.name] -= 1

    def _count_lane(self, lane: str) -> None:
        inside = self._entered[lane].total() // 2
        self._units[f"lane {lane}"] += -(-(1 + inside) * 2 * ROOM_ENTRY_BYTES // 1024)

    def _line_s(self, job: Job, lane: str) -> float:
        """How long a job without a share is parked."""
        picture = self._pictures[lane]
        waiting = sum(count for (_, name), count in picture.lines.items() if name == job.kind.name)
        own = picture.lines.get((job.tenant, job.kind.name), 0) * picture.tenants_seen
        line_s = self._interval_s(job.kind) * min(waiting, own)
        most_s = min(gate.FURTHEST_SLOT_MS / 1000, max(15.0, line_s / 1.25))
        return 5.0 + self._rng.random() * (most_s - 5.0)

    def _paint(self) -> None:
        """The picture of the backlog, from which shares follow."""
        policy = self.scenario.policy
        self._picture_groups = 0
        for lane in LANES:
            now_ms = self._now_ms
            shut = {
                kind.name
                for kind in self.scenario.kinds
                if self._gate(kind).closed_until_ms > now_ms
            }
            waiting = {who: count for who, count in self._open[lane].items() if count > 0}
            running = {who: count for who, count in self._runs[lane].items() if count > 0}
            self._picture_groups += len(waiting.keys() | running.keys())
            picture = Picture(lines=waiting)
            tenants: Counter[int] = Counter()
            kinds: Counter[str] = Counter()
            for groups in (waiting, running):
                for (tenant, name), count in groups.items():
                    if name not in shut:
                        tenants[tenant] += count
                        kinds[name] += count
            wanted = any(name not in shut for _, name in waiting) and (
                sum(running.values()) >= self.lanes[lane].workers - policy.idle_most
            )
            if policy.shares != "none" and wanted and (len(tenants) > 1 or len(kinds) > 1):
                workers = self.lanes[lane].workers
                picture.tenants = shares_of(policy, workers, tenants)
                picture.tenants_seen = len(tenants)
                most = max(1, workers - 1)
                shares = shares_of(policy, workers, kinds)
                picture.kinds = {name: min(most, share) for name, share in shares.items()}
            self._pictures[lane] = picture

    # ---------------------------------------------------------------- the sweeper

    def _sweeper(self) -> Steps:
        """A sweep each minute, and its polls, as usecases/sweep_jobs.py has them."""
        env = self.env
        while True:
            began_s = env.now
            until_s = began_s + LOOK_AHEAD_MS / 1000
            yield from self._sweeps(min(COUNT_MOST_S, self._open_jobs * COUNT_S))
            yield from self._pass(until_s, began_s)
            while (
                env.now + POLL_EVERY_MS / 1000 < until_s
                and began_s + SWEEPER_ENDS_S - env.now
                >= (POLL_EVERY_MS + STOP_BEFORE_END_MS) / 1000
            ):
                yield env.timeout(POLL_EVERY_MS / 1000)
                if self.scenario.policy.shares != "none" or self.scenario.policy.lends:
                    yield from self._sweeps(min(COUNT_MOST_S, self._open_jobs * COUNT_S))
                yield from self._pass(until_s, began_s)
            yield env.timeout(began_s + SWEEP_S - env.now)

    def _sweeps(self, took_s: float) -> Steps:
        took_s /= self.scenario.policy.senders
        yield self.env.timeout(took_s)
        self._sweeper_s += took_s

    def _pass(self, until_s: float, began_s: float) -> Steps:
        self._paint()
        if self.scenario.policy.lends:
            yield from self._lend()
        for due_s, job in self._due_jobs(until_s):
            if self.env.now > began_s + SWEEPER_ENDS_S - STOP_BEFORE_END_MS / 1000:
                self._look_at(job, due_s)
            else:
                yield from self._look(job, due_s)

    def _due_jobs(self, until_s: float) -> list[tuple[float, Job]]:
        """The oldest first, one page of each shard at most."""
        found: list[tuple[float, Job]] = []
        first_s = RESEND_AFTER_SUBMIT_MS / 1000
        while self._submitted and self._submitted[0].came_s + first_s <= until_s:
            job = self._submitted.popleft()
            if job.stamp == 0:
                self._look_at(job, job.came_s + first_s)
        while self._due and self._due[0][0] <= until_s and len(found) < PAGE * DUE_SHARDS:
            due_s, _, job, stamp = heapq.heappop(self._due)
            if stamp == job.stamp and job.state == "waiting":
                found.append((due_s, job))
        return found

    def _look(self, job: Job, due_s: float) -> Steps:
        """What one due job needs."""
        now_s = self.env.now
        if job.state != "waiting":
            return
        self._late_s = max(self._late_s, now_s - due_s)
        self._looks += 1
        self._units["due"] += 2
        yield from self._sweeps(LOOK_S)
        if job.state != "waiting":
            return
        if not job.parked:  # it has its message; a copy does no harm and is left out here
            self._look_at(job, self._next_look_s(job, now_s))
            return
        shut = self._gates.shut(_row(job.kind), now_ms=self._now_ms)
        if job.slot is None and shut is not None and shut.until_ms / 1000 > max(now_s, due_s):
            self._look_at(job, shut.until_ms / 1000)
            return
        yield from self._sweeps(SEND_S)
        self._sends += 1
        self._look_at(job, self._next_look_s(job, max(now_s, due_s)))
        delay_s = math.ceil(max(0.0, due_s - now_s))
        self.env.process(self._put_later(job, job.lane, delay_s))

    def _next_look_s(self, job: Job, at_s: float) -> float:
        job.sends += 1
        return at_s + min(RESEND_LONGEST_MS, RESEND_FIRST_MS << min(job.sends - 1, 10)) / 1000

    def _lend(self) -> Steps:
        """Copies of a busy lane's longest waiting jobs go through an idle lane's queue."""
        for lane, other in (LANES, LANES[::-1]):
            busy, idle = self.lanes[lane], self.lanes[other]
            if busy.running < busy.workers or not busy.depth:
                continue
            free = idle.workers - idle.running - idle.depth
            kept = max(1, round((1 - LENT_SHARE[other]) * free)) if LENT_SHARE[other] < 1 else 0
            mean_s = max(1.0, self._calling_s / max(1, self._calls.total()))
            count = round(max(0, free - kept) * max(1.0, POLL_EVERY_MS / 1000 / mean_s))
            fresh = (job for job in busy.oldest() if job.state == "waiting" and not job.lent)
            for job in list(islice(fresh, min(count, PAGE))):
                job.lent = True
                self._lent += 1
                yield from self._sweeps(SEND_S)
                self._put(job, other)


# ------------------------------------------------------------------------------------ the runs


HOUR_S = 1200.0
"""So much of each hour is simulated, after two minutes of warm-up."""

LADDER = {1: 240.0, 2: 150.0, 4: 90.0, 8: 60.0}
"""Times the peak, and seconds that are simulated."""

SIZES = {"10": (0.02, 3600.0), "100": (0.2, 900.0), "500": (1.0, 240.0)}
"""Workers: the part of load and quotas, and seconds that are simulated."""

NIGHT_BATCH = 0.9
NIGHT_LOAD = 2.5

UNKNOWN_S = 1800.0
TRUE_LIMITS = (1.0, 0.9, 0.7, 0.5)
"""Of what the catalogue says."""


def hours() -> dict[str, Figures]:
    """The mean hour, the hour at the peak, and that one with a quota that is too small."""
    runs = {
        "mean": big("mean", load=1.0, seconds=HOUR_S, policy=LENDING),
        "peak": big("peak", load=PEAK, seconds=HOUR_S, policy=LENDING),
        "peak, one quota too small": big(
            "short", load=PEAK, seconds=HOUR_S / 4, policy=LENDING, short=True
        ),
    }
    return {name: _run(scenario) for name, scenario in runs.items()}


HOLDS_S = (2.0, 5.0, 15.0, 30.0)
HOLD_RUN_S = 120.0


def holds() -> dict[float, Figures]:
    """The peak with the quota that is too small, by `hold_max_s`."""
    short = big("holding", load=PEAK, seconds=HOLD_RUN_S, policy=LENDING, short=True)
    return {hold_s: _run(replace(short, hold_max_s=hold_s)) for hold_s in HOLDS_S}


def ladder() -> dict[int, Figures]:
    """Load, workers and quotas at the peak, once and more often."""
    return {
        factor: _run(big(f"{factor}x", load=PEAK, seconds=seconds, policy=LENDING, factor=factor))
        for factor, seconds in LADDER.items()
    }


def policies() -> list[tuple[str, str, Figures]]:
    """Size, situation and figures of each policy."""
    found = []
    for size, (factor, seconds) in SIZES.items():
        for policy in POLICIES:
            peak = big(f"{size} peak", load=PEAK, seconds=seconds, policy=policy, factor=factor)
            found.append((size, "peak", _run(peak)))
    factor, seconds = SIZES["100"]
    for policy in (FIXED, LENDING, FULL):
        night = big("night", load=NIGHT_LOAD, seconds=seconds, policy=policy, factor=factor)
        found.append(("100", "mostly batch", _run(replace(night, batch_part=NIGHT_BATCH))))
    return found


def unknown_limits() -> dict[float, Figures]:
    """A model of 600 a minute whose vendor allows less, with work for 1.2 times what it allows."""
    found = {}
    for part in TRUE_LIMITS:
        kind = Kind("model", 1.0, 1.0, Limits(600, 0, 10), true_per_minute=round(600 * part))
        found[part] = _run(
            Scenario(
                name=f"true limit {part}",
                kinds=(kind,),
                tenants=(1.0,) * 3,
                per_s=1.2 * 10 * part,
                workers={"interactive": 38, "batch": 12},
                policy=FIXED,
                seconds=UNKNOWN_S,
                warm_up_s=60.0,
                batch_part=0.0,
                burst_part=0.0,
            )
        )
    return found


CONTRACT = Kind("model", 1.0, 8.0, Limits(600, 2_000_000, 10), tokens=3000, places=20)
"""600 requests and 2 million tokens a minute, 20 calls at once, and answers after 8 s."""

CONTRACT_S = 3600.0
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
                policy=LENDING,
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
    per_s = {name: count / figures.measured_s for name, count in figures.units.items()}
    kinds = {kind.name: kind for kind in figures.scenario.kinds}

    def hottest(kind: str) -> float:
        rows = {name: units for name, units in per_s.items() if name.startswith(f"{kind} ")}
        shards = {
            name: kinds[name.split()[1]].limits.shards if kind == "gate" else 1 for name in rows
        }
        return max((units / shards[name] for name, units in rows.items()), default=0.0)

    reads = sum(figures.busy_s.values()) / figures.measured_s / PICTURE_LIVES_S
    sweeper_s = (SWEEPER_ENDS_S - STOP_BEFORE_END_MS / 1000) / SWEEP_S
    return {
        "a tenant's counter": hottest("counter") / COUNTER_SHARDS / PARTITION_UNITS,
        "a gate's row": hottest("gate") / PARTITION_UNITS,
        "a vendor's rooms": hottest("room") / PARTITION_UNITS,
        LANE_ROW: hottest("lane") / PARTITION_UNITS,
        "the index of due jobs": per_s.get("due", 0.0) / DUE_SHARDS / PARTITION_UNITS,
        "the picture's row": reads * -(-figures.picture_bytes // 4096) / 2 / PARTITION_READS,
        "the sweeper": figures.sweeper / sweeper_s,
        "a mapping's concurrency": max(figures.scenario.workers.values()) / MAPPING_MOST,
    }


COUNTER_SHARDS = 8
"""Of a tenant that may have 800 jobs in flight and more."""


# ------------------------------------------------------------------------------------ money


def counted(path: str) -> tuple[float, float]:
    """Read and write units of a path with answers of 10 KB, as docs/benchmarks.md has them."""
    text = report.DOCUMENT.read_text("utf-8")
    cells = re.search(rf"^\| {re.escape(path)} \|(.*)\|$", text, re.MULTILINE)
    if cells is None:
        raise ValueError(f"{report.DOCUMENT.name} has no figures of {path!r}")
    columns = [cell.strip() for cell in cells[1].split("|")]
    if "," in path:  # of the calls of each path
        return float(columns[3]), float(columns[4])
    read, write = (float(columns[at].split(" / ")[1]) for at in (1, 2))
    return read, write


API_MS = {"submit": 30, "get": 8}
"""Billed, of a warm function."""

PARK_PATH = "run, retryable error"
"""A park reads and writes the same rows."""


def cost(figures: Figures) -> dict[str, float]:
    """USD of a million requests, by service."""
    mb = cache_cost.memory_mb()
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
        one_read, one_write = counted(path)
        read, write = read + count * one_read, write + count * one_write
    read += max(0, runs - figures.ended) + figures.looks  # copies read their job
    write += 3 * figures.looks + sum(
        units
        for name, units in figures.units.items()
        if name.split()[0] in {"gate", "room", "lane"}
    )
    gb_s = sum(figures.busy_s.values()) * mb["run_job"] / 1024
    gb_s += figures.measured_s * SWEEPER_MB / 1024
    gb_s += (new * API_MS["submit"] + (new + hits) * API_MS["get"]) / 1000 * mb["api"] / 1024
    messages = new + figures.sends + figures.lent + 2 * figures.runs
    parts = {
        "DynamoDB": read * price("read") + write * price("write"),
        "Lambda": (figures.runs + 2 * new + hits) * price("invocation") + gb_s * price("gb_second"),
        "API Gateway": (2 * new + hits) * price("request"),
        "SQS": messages * (price("message") + price("fair")),
    }
    return {name: usd / figures.requests * MILLION for name, usd in parts.items()}


# ------------------------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Findings:
    """All figures."""

    hours: Mapping[str, Figures]
    ladder: Mapping[int, Figures]
    policies: Sequence[tuple[str, str, Figures]]
    unknown: Mapping[float, Figures]
    contracts: Mapping[str, Figures]
    holds: Mapping[float, Figures]


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
        jobs = max(1, figures.ended)
        row = {
            "requests a second": f"{figures.requests / seconds:.0f}",
            "new jobs a second": f"{figures.came / seconds:.0f}",
            "jobs ended a second": f"{figures.ended / seconds:.0f}",
            "workers busy, %: interactive / batch": " / ".join(
                _per_cent(figures.use(lane)) for lane in LANES
            ),
            "workers busy, all, %": _per_cent(figures.use_of_all),
            "of them holding, workers": f"{figures.held_s / seconds:.0f}",
            "models' quotas used, %: least / median / most": " / ".join(
                _per_cent(quotas[at]) for at in (0, len(quotas) // 2, -1)
            ),
            "runs of a worker for a job": f"{figures.runs / jobs:.2f}",
            "parks of 1,000 jobs": f"{1000 * figures.parks.total() / jobs:.1f}",
            "kept slots lost, of 1,000 jobs": f"{1000 * figures.lost_slots / jobs:.1f}",
            "copies lent, of 1,000 jobs": f"{1000 * figures.lent / jobs:.1f}",
            "cold starts": f"{figures.cold:,}",
            "sweeper busy, %": f"{100 * figures.sweeper:.1f}",
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


def quota_table(found: Findings) -> Table:
    """Of each model."""
    head = [
        *("model", "calls a minute allowed", "latency, s"),
        *(f"used, %, {name}" for name in found.hours),
    ]
    peak = found.hours["peak"]
    lines = [
        [
            kind.name,
            f"{kind.limits.requests_per_minute:,}",
            f"{kind.latency_s:g}{' (heavy)' if kind.heavy else ''}",
            *(
                _per_cent(figures.quota(figures.scenario.kinds[at]))
                for figures in found.hours.values()
            ),
        ]
        for at, kind in enumerate(peak.scenario.kinds)
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
                _per_cent(figures.use_of_all),
                _per_cent(figures.ended / max(1, figures.came)),
                *(f"{figures.wait(lane, 50):.1f} / {figures.wait(lane, 95):.0f}" for lane in LANES),
                f"{figures.wait(CLASSES[-1], 95):.0f}",
                f"{1000 * figures.parks.total() / max(1, figures.came):.0f}",
                _per_cent(asked["the sweeper"]),
                f"{PARTITION_UNITS * asked[LANE_ROW]:,.0f}",
            ]
        )
    return head, lines


def unknown_table(found: Findings) -> Table:
    """A vendor that allows less than the catalogue says."""
    head = [
        *("vendor allows, a minute", "of the configured rate, %", "used of what it allows, %"),
        "answers 429 an hour",
    ]
    lines = [
        [
            f"{600 * part:.0f}",
            _per_cent(part),
            _per_cent(figures.quota(figures.scenario.kinds[0])),
            f"{figures.refused.total() / figures.measured_s * 3600:.0f}",
        ]
        for part, figures in found.unknown.items()
    ]
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
            _per_cent(figures.use_of_all),
            " / ".join(f"{figures.wait('interactive', at):.0f}" for at in (50, 95)),
            f"{1000 * figures.parks.total() / figures.came:.0f}",
            f"{1000 * figures.lost_slots / figures.came:.0f}",
        ]
        for name, figures in found.contracts.items()
    ]
    return head, lines


def hold_table(found: Findings) -> Table:
    """What `hold_max_s` changes."""
    head = [
        *("hold_max_s", "workers busy, %", "of them holding, workers", "jobs ended a second"),
        *("interactive: p50 / p95, s", "quota used, %, of the short model", "sweeper, %"),
        *("parks of 1,000 jobs", "kept slots lost, of 1,000 jobs"),
    ]
    lines = [
        [
            f"{hold_s:g}",
            _per_cent(figures.use_of_all),
            f"{figures.held_s / figures.measured_s:.0f}",
            f"{figures.ended / figures.measured_s:.0f}",
            " / ".join(f"{figures.wait('interactive', at):.1f}" for at in (50, 95)),
            _per_cent(figures.quota(figures.scenario.kinds[SHORT - 1])),
            _per_cent(loads(figures)["the sweeper"]),
            f"{1000 * figures.parks.total() / figures.came:.0f}",
            f"{1000 * figures.lost_slots / figures.came:.0f}",
        ]
        for hold_s, figures in found.holds.items()
    ]
    return head, lines


def sections(found: Findings) -> dict[str, Table]:
    """All tables by their titles."""
    return {
        "Two hours of a day of 10 million requests": hours_table(found),
        "Waits by lane and by tenant": waits_table(found),
        "Quotas": quota_table(found),
        "What a million requests cost": cost_table(found),
        "Where it breaks first, % of what each part takes": ladder_table(found),
        "Policies side by side": policy_table(found),
        "When the vendor's limit is not known": unknown_table(found),
        "A contract for 20 calls at once of 8 s": contract_table(found),
        "How long workers hold, with one quota too small": hold_table(found),
    }


def report_text(found: Findings) -> str:
    """For a terminal."""
    return "\n\n".join(
        f"{title}\n{report.as_text(*table)}" for title, table in sections(found).items()
    )


def report_markdown(found: Findings) -> str:
    """The section of docs/benchmarks.md."""
    parts = [report.made_with("bench/simulate.py --markdown")]
    for title, table in sections(found).items():
        parts += ["", f"### {title}", "", report.as_markdown(*table)]
    return "\n".join(parts)


def report_json(found: Findings) -> dict[str, Any]:
    """For programs."""
    return {
        "machine": report.machine(),
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
        )
        return Scenario(
            name="burst",
            kinds=(kind,),
            tenants=(1.0,) * self.tenants,
            per_s=1e6,
            workers={"interactive": interactive, "batch": batch},
            policy=FIXED,
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
    burst = Burst(
        submits=given.jobs,
        per_minute=given.per_minute,
        latency_s=given.latency_s,
        halved=given.scenario == "halved",
        workers=given.workers,
        overhead_s=given.overhead_s,
    )
    measured = None
    if given.against:
        told = json.loads(Path(given.against).read_text())
        measured = next(one for one in told["bursts"] if one["scenario"] == given.scenario)
        setting = told["setting"]
        burst = replace(
            burst,
            submits=setting["jobs"],
            per_minute=setting["per_minute"],
            latency_s=setting["latency_s"],
        )
    simulated = check(burst)
    if given.json:
        document = json.dumps(simulated, indent=2)
        if given.json == "-":
            print(document)
        else:
            Path(given.json).write_text(f"{document}\n")
    if measured is None:
        lines = [[name, f"{value:.3g}"] for name, value in simulated.items()]
        if given.json != "-":
            print(report.as_text(["figure", "simulated"], lines))
        return 0
    table, near = compare(simulated, measured, given.tolerance)
    print(report.as_text(*table))
    return 0 if near else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when a check is off by more than the tolerance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures there; -: to stdout")
    parser.add_argument("--markdown", action="store_true", help="rewrite docs/benchmarks.md")
    parser.add_argument("--check", action="store_true", help="simulate a burst instead")
    parser.add_argument(
        "--against", metavar="FILE", help="compare it with what bench/burst.py --json wrote"
    )
    parser.add_argument("--scenario", choices=("met", "halved"), default="met", help="of the burst")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of each figure")
    parser.add_argument("--jobs", type=int, default=600, help="submits of the burst")
    parser.add_argument("--per-minute", type=int, default=600, help="the catalogue's rate")
    parser.add_argument("--latency-s", type=float, default=0.3, help="of the vendor")
    parser.add_argument("--workers", default="8+2", help="interactive+batch")
    parser.add_argument("--overhead-s", type=float, default=0.0, help="of a run, on top")
    given = parser.parse_args(arguments)
    if given.check:
        return _told_check(given)
    found = Findings(hours(), ladder(), policies(), unknown_limits(), contracts(), holds())
    report.tell(
        given,
        MARKERS,
        as_json=lambda: report_json(found),
        section=lambda: report_markdown(found),
        text=lambda: report_text(found),
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
