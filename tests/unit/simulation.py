"""Workers and the sweeper of a whole stack in simulated time: the real use cases over the fakes.

Each process is a thread, and only one runs at a time, from one of its waits to the next; whose
wait ends first is next. Nothing is random but what a seed gives, so a run is as its seed has it.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluiceway.domain.backlog import Backlog
from sluiceway.usecases.run_job import Acknowledge, Delivery, Worker, run_job
from sluiceway.usecases.sweep_jobs import Sweeper, sweep_jobs

from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryDueJobs,
    InMemoryGates,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryState,
    RecordingTelemetry,
    World,
)
from tests.fakes.outside import FakeBus
from tests.unit.bench import ANSWER, FUNCTION_MS, LEASE_MS
from tests.unit.samples import a_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.catalogue import Catalogue, Vendor
    from sluiceway.domain.job import Job
    from sluiceway.ports import VendorAnswer, VendorCall

OVERHEAD_S = 0.06
"""Of an invocation: what a worker's calls to AWS take, and the poller's."""

SEND_S = 0.025
"""What the sweeper's calls for one job take."""

IDLE_S = 0.1
COPY_MS = 2_000


class _Stopped(BaseException):
    """The simulation is over."""


class Timeline:
    """Simulated time, and the processes that live in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._wakes: list[tuple[int, int, threading.Semaphore]] = []
        self._serial = itertools.count()
        self._turn = threading.Semaphore(0)
        self._own = threading.local()
        self._threads: list[threading.Thread] = []
        self._over = False

    def spawn(self, process: Callable[[], None]) -> None:
        mine = threading.Semaphore(0)

        def body() -> None:
            self._own.turn = mine
            mine.acquire()
            try:
                if not self._over:
                    process()
            except _Stopped:
                pass
            finally:
                self._turn.release()

        thread = threading.Thread(target=body, daemon=True)
        self._threads.append(thread)
        heapq.heappush(self._wakes, (self.clock.now_ms(), next(self._serial), mine))
        thread.start()

    def sleep(self, seconds: float) -> None:
        at_ms = self.clock.now_ms() + max(0, round(seconds * 1000))
        heapq.heappush(self._wakes, (at_ms, next(self._serial), self._own.turn))
        self._turn.release()
        self._own.turn.acquire()
        if self._over:
            raise _Stopped

    def run(self, *, until: Callable[[], bool], most_s: float) -> None:
        """Until it is so, or so much time has passed."""
        ends_ms = self.clock.now_ms() + round(most_s * 1000)
        while self._wakes and not until() and self.clock.now_ms() < ends_ms:
            self._step()
        self._over = True
        while self._wakes:
            self._step()
        for thread in self._threads:
            thread.join()

    def _step(self) -> None:
        at_ms, _, turn = heapq.heappop(self._wakes)
        self.clock.set(max(at_ms, self.clock.now_ms()))
        turn.release()
        self._turn.acquire()


@dataclass(slots=True)
class Message:
    visible_at_ms: int
    serial: int
    tenant: str
    job_id: str
    enqueued_at_ms: int
    receives: int = 0


class Lanes:
    """The queues (port JobQueue), first in first out: no fair queue helps."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._serial = itertools.count()
        self.pause: Callable[[float], None] = lambda _: None
        self.waiting: dict[str, list[tuple[int, int, Message]]] = {"interactive": [], "batch": []}
        self.inside = dict.fromkeys(self.waiting, 0)

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        self.pause(SEND_S)
        self.put(job, delay_s)
        return True

    def put(self, job: Job, delay_s: float = 0) -> None:
        now_ms = self._clock.now_ms()
        message = Message(
            now_ms + round(delay_s * 1000), next(self._serial), job.tenant, job.job_id, now_ms
        )
        self._push(job.lane, message)

    def _push(self, lane: str, message: Message) -> None:
        heapq.heappush(self.waiting[lane], (message.visible_at_ms, message.serial, message))

    def receive(self, lane: str) -> Message | None:
        line = self.waiting[lane]
        if not line or line[0][0] > self._clock.now_ms():
            return None
        message = heapq.heappop(line)[2]
        message.receives += 1
        self.inside[lane] += 1
        return message

    def done(self, lane: str, message: Message, decision: Any) -> None:
        self.inside[lane] -= 1
        if not isinstance(decision, Acknowledge):
            message.visible_at_ms = self._clock.now_ms() + round(decision.delay_s * 1000)
            self._push(lane, message)

    def backlog(self, lane: str) -> int:
        return len(self.waiting[lane]) + self.inside[lane]

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Call:
    """One job's call to the vendor."""

    tenant: str
    model: str
    submitted_at_s: float
    began_at_s: float
    lane: str

    @property
    def wait_s(self) -> float:
        return self.began_at_s - self.submitted_at_s


@dataclass
class Stack:
    """A stack whose models' calls take `latency_s`, by model, give or take a quarter."""

    catalogue: Catalogue
    latency_s: dict[str, float]
    workers: dict[str, int] = field(default_factory=lambda: {"interactive": 8, "batch": 2})
    seed: int = 1

    def __post_init__(self) -> None:
        self.timeline = Timeline()
        self.clock = self.timeline.clock
        self.world = World()
        self.random = random.Random(self.seed)  # noqa: S311 - the same each time
        self.lanes = Lanes(self.clock)
        self.jobs = InMemoryJobs(self.world, clock=self.clock)
        self.telemetry = RecordingTelemetry()
        self.calls: list[Call] = []
        self.invocations = 0
        self.busy_s = dict.fromkeys(self.workers, 0.0)
        self.submits: list[tuple[float, Job]] = []
        self.contended_from_s: float | None = None
        self._serial = itertools.count(1)

    # ------------------------------------------------------------------ jobs

    def submit(
        self, tenant: str, model: str, number: int, *, at_s: float = 0.0, **members: Any
    ) -> None:
        for _ in range(number):
            serial = next(self._serial)
            at_ms = NOW_MS + round(at_s * 1000)
            job = a_job(
                tenant=tenant,
                model=model,
                job_id=f"job_{serial:026d}",
                job_key=f"j1_{serial:043d}",
                cache_key=f"c1_{serial:043d}",
                created_at_epoch_ms=at_ms,
                enqueued_at_epoch_ms=at_ms,
                due_at_epoch_ms=at_ms + 120_000,
                due_shard=str(serial % 8),
                deadline_epoch_ms=at_ms + 86_400_000,
                **members,
            )
            self.submits.append((at_s, job))

    def _submit_all(self) -> None:
        for at_s, job in sorted(self.submits, key=lambda submit: submit[0]):
            wait_s = at_s - self.now_s
            if wait_s > 0:
                self.timeline.sleep(wait_s)
            self.world.jobs[job.tenant, job.job_id] = job
            self.lanes.put(job)

    @property
    def now_s(self) -> float:
        return (self.clock.now_ms() - NOW_MS) / 1000

    # ------------------------------------------------------------------ processes

    def run(self, *, most_s: float = 7_200) -> Stack:
        self.timeline.spawn(self._submit_all)
        self.timeline.spawn(self._sweep)
        for lane, number in self.workers.items():
            for _ in range(number):
                self.timeline.spawn(lambda lane=lane: self._work(lane))  # type: ignore[misc]
        self.timeline.run(until=lambda: len(self.calls) == len(self.submits), most_s=most_s)
        return self

    def prepare(self, vendor: Vendor) -> None:
        """See VendorClient."""

    def call(self, call: VendorCall) -> VendorAnswer:
        """See VendorClient."""
        job = self._by_id[call.idempotency_key]
        at_s = (job.created_at_epoch_ms - NOW_MS) / 1000
        self.calls.append(Call(job.tenant, job.model, at_s, self.now_s, job.lane))
        latency_s = self.latency_s[job.model] * self.random.uniform(0.75, 1.25)
        self.timeline.sleep(latency_s)
        return ANSWER._replace(latency_ms=round(latency_s * 1000))

    @property
    def _by_id(self) -> dict[str, Job]:
        if not hasattr(self, "_ids"):
            self._ids = {job.job_id: job for _, job in self.submits}
        return self._ids

    def _work(self, lane: str) -> None:
        worker = Worker(
            catalogue=self.catalogue,
            jobs=self.jobs,
            cache=InMemoryCache(self.world),
            state=InMemoryState(self.world),
            payloads=InMemoryPayloads(self.world),
            gates=InMemoryGates(self.world),
            backlogs=_Copied(self),
            latencies=InMemoryLatencies(self.world),
            vendors=self,
            clock=self.clock,
            telemetry=self.telemetry,
            rand=self.random.random,
            token=lambda: f"token-{next(self._serial)}",
            pause=self.timeline.sleep,
            lease_ms=LEASE_MS,
        )
        while True:
            message = self.lanes.receive(lane)
            if message is None:
                self.timeline.sleep(IDLE_S)
                continue
            self.invocations += 1
            began_s = self.now_s
            self.timeline.sleep(OVERHEAD_S)
            decision = run_job(
                Delivery(
                    tenant=message.tenant,
                    job_id=message.job_id,
                    receives=message.receives,
                    enqueued_at_ms=message.enqueued_at_ms,
                    lane=lane,
                    function_ends_ms=self.clock.now_ms() + FUNCTION_MS,
                ),
                worker,
            )
            self.busy_s[lane] += self.now_s - began_s
            self.lanes.done(lane, message, decision)

    def _sweep(self) -> None:
        queue = Lanes.__new__(Lanes)
        queue.__dict__.update(self.lanes.__dict__)
        queue.pause = self.timeline.sleep
        backlogs = _Painted(self)
        self.timeline.sleep(self.random.uniform(0, 5))
        while True:
            began_ms = self.clock.now_ms()

            sweep_jobs(
                Sweeper(
                    flags=FakeFlags(),
                    bus=FakeBus(),
                    jobs=self.jobs,
                    state=InMemoryState(self.world),
                    due_jobs=InMemoryDueJobs(self.world),
                    queue=queue,
                    latencies=InMemoryLatencies(self.world),
                    gates=InMemoryGates(self.world),
                    clock=self.clock,
                    telemetry=self.telemetry,
                    time_left_ms=lambda began_ms=began_ms: 70_000 - self.clock.now_ms() + began_ms,  # type: ignore[misc]
                    pause=self.timeline.sleep,
                    catalogue=self.catalogue,
                    backlogs=backlogs,
                    workers=self.workers,
                ),
                poll=True,
            )
            self.timeline.sleep((began_ms + 60_000 - self.clock.now_ms()) / 1000)


class _Painted(InMemoryBacklogs):
    """Notes when two contend."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.world)
        self._stack = stack

    def write(self, backlog: Backlog) -> None:
        super().write(backlog)
        groups = backlog.contending("interactive", backlog.measured_at_epoch_ms)
        tenants, models = ({getattr(one, kind) for one in groups} for kind in ("tenant", "model"))
        if self._stack.contended_from_s is None and max(len(tenants), len(models)) > 1:
            self._stack.contended_from_s = self._stack.now_s


class _Copied(InMemoryBacklogs):
    """A process's copy of the picture."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.world)
        self._clock = stack.clock
        self._copy = Backlog()
        self._read_at_ms = 0

    def read(self) -> Backlog:
        if self._clock.now_ms() - self._read_at_ms >= COPY_MS:
            self._copy, self._read_at_ms = super().read(), self._clock.now_ms()
        return self._copy


def jain(service: list[float]) -> float:
    return sum(service) ** 2 / (len(service) * sum(one**2 for one in service))


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]
