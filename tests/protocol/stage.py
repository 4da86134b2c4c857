"""The use cases in a small world that keeps its own time, and in which any call may be the last.

Partners, workers, sweeps and operators are processes. Whatever they ask of a store, a lane or a
vendor goes through the Breaker, which can end a process there: before the call takes effect, or
after it did and before the answer came. Lanes behave as SQS does: a message that nobody
acknowledges comes back, and one that was received too often is moved to the dead-letter queue.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from sluiceway.adapters.dynamodb_stream import event_of
from sluiceway.domain import catalogue
from sluiceway.domain.errors import (
    BusyError,
    CacheMissError,
    CallAbortedError,
    NotCancellableError,
    NotPublishedError,
    RejectedError,
    StoreBusyError,
    VendorError,
)
from sluiceway.domain.freshness import Freshness, cool_down_ms
from sluiceway.domain.ids import REFRESH_PREFIX
from sluiceway.domain.job import (
    CLAIM_OUTLIVES_DEADLINE_MS,
    LANES,
    MAX_RECEIVES,
    Job,
    JobStatus,
)
from sluiceway.domain.request import CacheRequest, SubmitRequest
from sluiceway.ports import VendorAnswer, VendorCall
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.invalidate_cache import Invalidation, Invalidator, invalidate_cache
from sluiceway.usecases.publish_events import publish_events
from sluiceway.usecases.run_job import Acknowledge, Delivery, Worker, run_job
from sluiceway.usecases.submit_job import Accepted, Hit, Origin, Submitter, submit_job
from sluiceway.usecases.sweep_jobs import LOOK_AHEAD_MS, Sweeper, sweep_jobs
from sluiceway_cli import dlq
from sluiceway_cli.dead_letters import DeadLetters

from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    FakeFlags,
    InMemoryAudit,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryDueJobs,
    InMemoryGates,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryRates,
    InMemoryState,
    RecordingTelemetry,
    World,
)
from tests.fakes.outside import FakeBus
from tests.protocol.desk import DEAD, DeadLetterClient
from tests.protocol.events import Rows, Stream, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.domain.catalogue import Vendor
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.ports import DueJobs, JobQueue, JobStore, PayloadStore, ResultCache, StateStore

    from tests.protocol.events import Change

LEASE_MS = 100_000
FUNCTION_MS = 120_000
VISIBILITY_MS = 730_000
"""The template's, for its default RunJobTimeout."""

SWEEP_EVERY_MS = 60_000
API_MS = 29_000
SWEEP_MS = 55_000
PUBLISH_MS = 60_000
OPERATOR_MS = 600_000
REFRESH_MARGIN_MS = FUNCTION_MS + 30_000 + 4 * SWEEP_EVERY_MS
"""A worker that begins just before the deadline may die, and so may sweeps."""

STRAY_AFTER = 4
"""Crashes in a row that bring the message of an open job to the dead-letter queue."""

CALLBACK = "https://partner.invalid/jobs"
TOO_BIG_FOR_A_ROW = "".join(random.Random(1).choices("abcdefghijklmnop0123456789", k=12_000))  # noqa: S311

CATALOGUE = catalogue.parse(
    """
    [vendors.simulator]
    api_key_secret = "sluiceway/vendors/simulator"

    [vendors.careful]
    api_key_secret = "sluiceway/vendors/careful"
    on_unknown_outcome = "fail"

    [models.plain]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }

    [models.shared]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }
    cache = { scope = "shared" }

    [models.brief]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }
    cache = { soft_ttl_s = 600, hard_ttl_s = 900, jitter = 0.0 }

    [models.early]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }
    cache = { soft_ttl_s = 3000, hard_ttl_s = 9000, jitter = 0.0, early_refresh = 10 }

    [models.common]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }
    cache = { scope = "shared", soft_ttl_s = 3000, hard_ttl_s = 9000, jitter = 0.0 }

    [models.uncached]
    vendor = "simulator"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }
    cache = { scope = "none" }

    [models.careful]
    vendor = "careful"
    vendor_model = "sim-1"
    version = "1"
    price = { input_per_million = 3.0, output_per_million = 15.0 }

    [tenants.acme]
    cost_per_day = 100.0
    """
)

When = Literal["before", "after"]
JobId = tuple[str, str]
"""Tenant and job id."""

_TELLS: dict[str, Callable[[], VendorError]] = {
    "unavailable": lambda: VendorError(
        "vendor_unavailable", "The vendor answered 503.", retryable=True, http_status=503
    ),
    "later": lambda: VendorError(
        "vendor_rate_limited",
        "The vendor answered 429.",
        retryable=True,
        http_status=429,
        retry_after_s=300.0,
    ),
    "refused": lambda: VendorError(
        "vendor_rejected", "The vendor answered 400.", retryable=False, http_status=400
    ),
}
OUTCOMES = ("ok", "truncated", "empty", *_TELLS)


class Crash(BaseException):
    """This process ends here."""


# ------------------------------------------------------------------------------------ the breaker


@dataclass
class Breaker:
    """Counts the calls of processes, and ends one, or lets others in, at the calls of its plan."""

    counted: frozenset[str] | None = None
    """The processes whose calls have numbers; None: all."""
    crashes: dict[int, When] = field(default_factory=dict)
    meanwhile: dict[int | str, Callable[[], None]] = field(default_factory=dict)
    """What others do after a call took effect, before its answer comes: once, at the call of this
    number, or at the first that is logged so."""
    log: list[str] = field(default_factory=list)
    """Process and name of each call that has a number."""
    process: str = ""
    ended: bool = False
    """The running process did: what it would still call while it is torn down isn't called."""
    ends_at: Callable[[], bool] = lambda: False
    """Whether the running process's time is over."""
    watch: Callable[[], None] = lambda: None

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        """Makes the call, as far as the plan lets it."""
        if self.ended:
            raise Crash(name)
        number, called = -1, f"{self.process} {name}"
        if self.counted is None or self.process in self.counted:
            number = len(self.log)
            self.log.append(called)
        when = self.crashes.get(number)
        if when == "before" or self.ends_at():
            self._end(name)
        try:
            result = call()
        finally:
            self.watch()
            if when == "after":
                self._end(name)
        others = self.meanwhile.pop(number, None) or self.meanwhile.pop(called, None)
        if others is not None:
            others()
            if self.ends_at():
                self._end(name)
        return result

    @contextmanager
    def unnumbered(self) -> Iterator[None]:
        """No call in here has a number, so that none of them crashes."""
        before, self.counted = self.counted, frozenset()
        try:
            yield
        finally:
            self.counted = before

    def _end(self, name: str) -> NoReturn:
        self.ended = True
        raise Crash(name)

    @contextmanager
    def running(self, process: str, ends_at: Callable[[], bool]) -> Iterator[None]:
        """What is called in here is called by this process."""
        before = self.process, self.ends_at, self.ended
        self.process, self.ends_at, self.ended = process, ends_at, False
        try:
            yield
        finally:
            self.process, self.ends_at, self.ended = before


class Port:
    """A port whose calls go through the breaker."""

    def __init__(self, port: object, name: str, breaker: Breaker) -> None:
        self._port = port
        self._name = name
        self._breaker = breaker

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        real = getattr(self._port, verb)

        def call(*values: Any, **named: Any) -> Any:
            return self._breaker.around(f"{self._name}.{verb}", lambda: real(*values, **named))

        return call


# ------------------------------------------------------------------------------------ lanes


@dataclass(slots=True)
class Message:
    """One copy of a job's message."""

    number: int
    lane: str
    job: JobId
    enqueued_at_ms: int
    visible_at_ms: int
    receives: int = 0
    unanswered: int = 0
    """The last so many receives ended without a word."""


class Lanes:
    """SQS: the two lanes and their dead-letter queue (port JobQueue)."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._numbers = itertools.count(1)
        self.messages: dict[int, Message] = {}
        """By number, which is the receipt too."""
        self.dead: dict[int, Message] = {}
        self.lose_sends = 0
        """So many of the next sends fail."""

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        if self.lose_sends:
            self.lose_sends -= 1
            return False
        self.put(job.lane, (job.tenant, job.job_id), delay_ms=delay_s * 1000)
        return True

    def put(self, lane: str, job: JobId, *, delay_ms: int = 0) -> None:
        now_ms, number = self._now_ms(), next(self._numbers)
        self.messages[number] = Message(number, lane, job, now_ms, now_ms + delay_ms)

    def backlog(self, lane: str) -> int:
        return sum(message.lane == lane for message in self.messages.values())

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        message = self.messages.get(int(receipt))
        if message is not None and message.lane == lane:
            message.visible_at_ms = self._now_ms() + round(delay_s * 1000)

    def acknowledge(self, receipt: str) -> None:
        self.messages.pop(int(receipt), None)

    def move_back(self, number: int) -> None:
        """The first half of a redrive: a new message."""
        self.put(self.dead[number].lane, self.dead[number].job)

    def forget(self, number: int) -> None:
        """The second half of a redrive."""
        self.dead.pop(number, None)

    def duplicate(self, number: int) -> None:
        """SQS delivers at least once: a copy that comes at once, whoever has the first."""
        copy, now_ms = next(self._numbers), self._now_ms()
        self.messages[copy] = replace(self.messages[number], number=copy, visible_at_ms=now_ms)

    def receive(self, message: Message) -> bool:
        """False: it was received too often, and is in the dead-letter queue now."""
        if message.receives >= MAX_RECEIVES:
            self.dead[message.number] = self.messages.pop(message.number)
            return False
        message.receives += 1
        message.visible_at_ms = self._now_ms() + VISIBILITY_MS
        return True


# ------------------------------------------------------------------------------------ the vendor


class Simulator:
    """Says what it was told to say, and counts who asked (port VendorClient)."""

    def __init__(self, work: Callable[[], None], moment: Callable[[], Moment]) -> None:
        self._work = work
        self._moment = moment
        self.calls: Counter[str] = Counter()
        """By job id."""
        self.asked: list[tuple[str, Moment]] = []
        """Job id and moment of each call; an answer names its call."""
        self.charged: Counter[str] = Counter()
        """By job id: calls that weren't refused."""
        self.script: list[str] = []
        """Of OUTCOMES, one for each call; then `default`."""
        self.default = "ok"
        self.meanwhile: list[Callable[[], None]] = []
        """What others do during the next calls, one for each."""

    def prepare(self, vendor: Vendor) -> None:
        pass

    def call(self, call: VendorCall) -> VendorAnswer:
        self.calls[call.idempotency_key] += 1
        self.asked.append((call.idempotency_key, self._moment()))
        number = len(self.asked)
        self.charged[call.idempotency_key] += 1
        self._work()
        if self.meanwhile:
            self.meanwhile.pop(0)()
        if not call.still_wanted():
            raise CallAbortedError("nobody wants it any more")
        outcome = self.script.pop(0) if self.script else self.default
        if outcome in _TELLS:
            error = _TELLS[outcome]()
            self.charged[call.idempotency_key] -= not error.maybe_charged
            raise error
        return VendorAnswer(
            text="" if outcome == "empty" else answer_to(json.loads(call.body)["input"]),
            finish_reason="length" if outcome == "truncated" else "stop",
            input_tokens=10,
            output_tokens=20,
            latency_ms=1000,
            vendor_request_id=f"call-{number}",
        )


def call_of(vendor_request_id: str | None) -> int:
    """The place of this answer's call in `Simulator.asked`."""
    assert vendor_request_id is not None
    return int(vendor_request_id.removeprefix("call-")) - 1


def answer_to(text: str) -> str:
    """The right answer."""
    return f"the answer to {text}"


# ------------------------------------------------------------------------------------ the stage


@dataclass
class Stores:
    """The stores, and a way to see all that is in them."""

    jobs: JobStore
    due_jobs: DueJobs
    cache: ResultCache
    state: StateStore
    payloads: PayloadStore
    look: Callable[[], World]
    changes: Callable[[], list[Change]]
    """What the stream of the jobs has, since the last time."""
    state_lags_ms: int = 0
    """So long the state may be seen as it was."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When something took effect."""

    tick: int
    """Its place in the order of all that happened."""
    now_ms: int
    clock_ms: int
    """By the process's clock."""


@dataclass(slots=True)
class Forced:
    """What is remembered of forced refreshes."""

    asks: dict[JobId, list[Moment]] = field(default_factory=lambda: defaultdict(list))
    """When those began that were given this job."""
    replaced: set[JobId] = field(default_factory=set)
    """Open jobs that lost their claim to a newer one."""


@dataclass(slots=True)
class Past:
    """What is remembered of attempts and runs that are over."""

    known: Counter[JobId] = field(default_factory=Counter)
    """Attempts whose outcome was written and not final."""
    charged: Counter[JobId] = field(default_factory=Counter)
    """Calls of the runs before a redrive that were charged."""
    spent_nanos: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By these runs, by tenant and day."""


class Witness:
    """Cache or state, whose invalidations are remembered as they take effect."""

    def __init__(self, store: Any, remember: Callable[[str], None], prefix: str = "") -> None:
        self._store = store
        self._remember = remember
        self._prefix = prefix

    def invalidate(self, name: str, *, now_ms: int) -> Any:
        done = self._store.invalidate(name, now_ms=now_ms)
        self._remember(f"{self._prefix}{name}")
        return done


def in_memory(clock: FakeClock) -> Stores:
    """The fakes on a world of their own."""
    rows = Rows(clock.now_ms)
    world = World(jobs=rows)
    return Stores(
        jobs=InMemoryJobs(world, clock=clock),
        due_jobs=InMemoryDueJobs(world),
        cache=InMemoryCache(world),
        state=InMemoryState(world),
        payloads=InMemoryPayloads(world),
        look=lambda: world,
        changes=rows.read,
    )


class Stage:
    """Everything, and the processes that can be let loose in it.

    After each call of a process the rules that always hold are checked.
    """

    def __init__(
        self,
        stores: Callable[[FakeClock], Stores] = in_memory,
        *,
        counted: frozenset[str] | None = None,
        check_each_call: bool = True,
    ) -> None:
        self.now_ms = NOW_MS
        """True time, which the lanes have."""
        self.skew_ms = 0
        """What the processes' clock is off by."""
        self.clock = FakeClock()
        self.stores = stores(self.clock)
        self.lanes = Lanes(lambda: self.now_ms)
        self._ticks = 0
        self.vendor = Simulator(lambda: self.advance(1000), self._moment)
        self.audit = InMemoryAudit(World())
        self.stream = Stream(self.stores.changes)
        self.told = Told(self.stream)
        self._publishing = False
        self.gates = InMemoryGates(World())
        self.latencies = InMemoryLatencies(World())
        self.backlogs = InMemoryBacklogs(World())
        self.telemetry = RecordingTelemetry()
        self.crashed = 0
        """How many processes did."""
        self.breaker = Breaker(counted=counted)
        self._sees_all = check_each_call
        """Whether no move of a job is missed, so that each can be judged."""
        if check_each_call:
            self.breaker.watch = self.check
        self.rand = 0.5
        self.polls = False
        """Whether sweeps do, while workers go on."""
        self.punctual = True
        """Whether the sweeper comes each minute, so that refreshes end in time."""
        self._serial = itertools.count(1)
        self._sweep_at_ms = NOW_MS + SWEEP_EVERY_MS
        self._seen: dict[JobId, Job] = {}
        self.moved_back: Counter[JobId] = Counter()
        """Messages that operators moved out of the dead-letter queue."""
        self._owed: dict[JobId, int] = {}
        """How often each job must have been redriven in the end."""
        self._failed_by: dict[JobId, str] = {}
        """The process that wrote the failure."""
        self._promised: dict[JobId, set[str]] = defaultdict(set)
        """The addresses of the submits that were answered."""
        self._past = Past()
        self._made: dict[JobId, int] = {}
        """The moment that each job was first seen."""
        self._forced = Forced()
        self._entries: dict[str, CacheEntry] = {}
        self._stored: dict[int, int] = {}
        """The moment that the answer of a call was first seen in an entry."""
        self._invalidated: dict[str, Moment] = {}
        """The last one of each subject."""

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def _moment(self) -> Moment:
        return Moment(self._tick(), self.now_ms, self.clock.now_ms())

    # ------------------------------------------------------------------ time

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.clock.set(self.now_ms + self.skew_ms)

    def skew(self, ms: int) -> None:
        self.skew_ms = ms
        self.advance(0)

    # ------------------------------------------------------------------ processes

    def _port(self, port: object, name: str) -> Any:
        return Port(port, name, self.breaker)

    def _process(self, name: str, lasts_ms: int, body: Callable[[], Any]) -> Any:
        """Runs a process; None when it crashed."""
        end_ms = self.now_ms + lasts_ms
        with self.breaker.running(name, lambda: self.now_ms >= end_ms):
            try:
                return body()
            except Crash:
                self.crashed += 1
                return None

    def ask(
        self,
        text: str = "one",
        *,
        tenant: str = "acme",
        model: str = "plain",
        deadline_s: int = 86_400,
        lane: Literal["interactive", "batch"] | None = None,
        callback: str | None = CALLBACK,
        mode: Literal["use", "refresh", "bypass", "only"] = "use",
        no_store: bool = False,
    ) -> Hit | Accepted | None:
        """A partner submits. None: there was no answer, or a refusal."""

        def body() -> Hit | Accepted:
            return submit_job(
                SubmitRequest(
                    model=model,
                    input=text,
                    deadline_s=deadline_s,
                    priority=lane,
                    callback_url=callback,
                    cache=CacheRequest(mode=mode, no_store=no_store),
                ),
                Caller(tenant, frozenset({"submit", "bypass"}), "key_1"),
                Origin("request-1", "correlation-1"),
                Submitter(
                    flags=FakeFlags(),
                    catalogue=CATALOGUE,
                    jobs=cast("JobStore", self._port(self.stores.jobs, "jobs")),
                    cache=cast("ResultCache", self._port(self.stores.cache, "cache")),
                    rates=InMemoryRates(World()),
                    backlogs=self.backlogs,
                    state=cast("StateStore", self._port(self.stores.state, "state")),
                    payloads=cast("PayloadStore", self._port(self.stores.payloads, "payloads")),
                    queue=cast("JobQueue", self._port(self.lanes, "lanes")),
                    clock=self.clock,
                    randomness=lambda size: next(self._serial).to_bytes(size, "big"),
                    rand=lambda: self.rand,
                ),
            )

        begun, world = self._moment(), self.stores.look()
        tombstones = set(world.tombstones)
        degraded = world.degraded_since_epoch_ms is not None
        try:
            outcome = self._process("submit", API_MS, body)
        except (BusyError, CacheMissError):
            return None
        if isinstance(outcome, Hit):
            self._check_hit(outcome, begun, mode=mode, degraded=degraded)
        elif isinstance(outcome, Accepted):
            self._check_joined(outcome.job, begun, mode=mode, tombstones=tombstones)
            if callback is not None:
                self._promised[key_of(outcome.job)].add(callback)
        return cast("Hit | Accepted | None", outcome)

    def submit(self, text: str = "one", **how: Any) -> Job | None:
        """As `ask`. None: there was a hit, or no answer."""
        outcome = self.ask(text, **how)
        return outcome.job if isinstance(outcome, Accepted) else None

    def surely_ask(self, text: str = "one", **how: Any) -> Hit | Accepted:
        """A partner submits again until there is an answer."""
        for _ in range(5):
            outcome = self.ask(text, **how)
            if outcome is not None:
                return outcome
        raise AssertionError("no submit was answered")

    def surely_submit(self, text: str = "one", **how: Any) -> Job:
        """As `surely_ask`, where there is no hit."""
        outcome = self.surely_ask(text, **how)
        assert isinstance(outcome, Accepted), f"a hit: {outcome} {self.picture()}"
        return outcome.job

    def surely_hit(self, text: str = "one", **how: Any) -> Hit:
        """As `surely_ask`, where there is a hit."""
        outcome = self.surely_ask(text, **how)
        assert isinstance(outcome, Hit), f"no hit: {outcome} {self.picture()}"
        return outcome

    def invalidate(self, what: Invalidation) -> bool:
        """Somebody invalidates, in a millisecond of its own. False: there was no answer."""
        self.advance(1)

        def remember(subject: str) -> None:
            self._invalidated[subject] = self._moment()

        cache = Witness(self.stores.cache, remember, "key:")
        state = Witness(self.stores.state, remember)

        def body() -> bool:
            invalidate_cache(
                what,
                actor="key:key_1",
                request_id="request-1",
                invalidator=Invalidator(
                    cache=cast("ResultCache", self._port(cache, "cache")),
                    state=cast("StateStore", self._port(state, "state")),
                    audit=self._port(self.audit, "audit"),
                    clock=self.clock,
                    telemetry=self.telemetry,
                ),
            )
            return True

        try:
            return bool(self._process("invalidate", API_MS, body))
        finally:
            self.advance(1)

    def surely_invalidate(self, what: Invalidation) -> None:
        """Somebody invalidates again until there is an answer."""
        for _ in range(5):
            if self.invalidate(what):
                return
        raise AssertionError("no invalidation was answered")

    def deliver(self, message: Message) -> None:
        """A worker gets a message. Nothing more is heard of a worker that crashes."""
        if not self.lanes.receive(message):
            return
        lanes = self._port(self.lanes, "lanes")
        receipt = str(message.number)
        worker = Worker(
            catalogue=CATALOGUE,
            jobs=cast("JobStore", self._port(self.stores.jobs, "jobs")),
            cache=cast("ResultCache", self._port(self.stores.cache, "cache")),
            state=cast("StateStore", self._port(self.stores.state, "state")),
            payloads=cast("PayloadStore", self._port(self.stores.payloads, "payloads")),
            gates=self.gates,
            latencies=self.latencies,
            backlogs=self.backlogs,
            vendors=self._port(self.vendor, "vendors"),
            clock=self.clock,
            telemetry=self.telemetry,
            rand=lambda: self.rand,
            token=lambda: f"token-{next(self._serial)}",
            pause=lambda s: self.advance(round(s * 1000)),
            lease_ms=LEASE_MS,
        )
        tenant, job_id = message.job
        delivery = Delivery(
            tenant=tenant,
            job_id=job_id,
            receives=message.receives,
            enqueued_at_ms=message.enqueued_at_ms,
            lane=message.lane,
            function_ends_ms=self.clock.now_ms() + FUNCTION_MS,
        )

        def body() -> bool:
            decision = run_job(delivery, worker)
            if isinstance(decision, Acknowledge):
                lanes.acknowledge(receipt)
            else:
                lanes.give_back(message.lane, receipt, decision.delay_s)
            return True

        message.unanswered += 1
        try:
            if self._process("run", FUNCTION_MS, body):
                message.unanswered = 0
        except StoreBusyError:
            return  # The handler leaves the message where it is.
        finally:
            self.stores.look().counters_busy = False

    def sweep(self) -> None:
        """One sweep, as there is one each minute."""
        end_ms = self.now_ms + SWEEP_MS
        sweeper = Sweeper(
            flags=FakeFlags(),
            bus=FakeBus(),
            jobs=cast("JobStore", self._port(self.stores.jobs, "jobs")),
            state=cast("StateStore", self._port(self.stores.state, "state")),
            due_jobs=cast("DueJobs", self._port(self.stores.due_jobs, "due_jobs")),
            queue=cast("JobQueue", self._port(self.lanes, "lanes")),
            clock=self.clock,
            telemetry=self.telemetry,
            time_left_ms=lambda: end_ms - self.now_ms,
            pause=self._poll,
            gates=self.gates,
            latencies=self.latencies,
            catalogue=CATALOGUE,
            backlogs=self.backlogs,
            workers={"interactive": 8, "batch": 2},
        )
        self._sweep_at_ms = self.now_ms + SWEEP_EVERY_MS
        try:
            self._process("sweep", SWEEP_MS, lambda: sweep_jobs(sweeper, poll=self.polls))
        except StoreBusyError:
            return  # The next one goes on.

    def _poll(self, seconds: float) -> None:
        """Until its next pass, workers take what comes meanwhile."""
        self.advance(round(seconds * 1000))
        for message in self.visible():
            # While one is worked on, others come and go, this one among them.
            if any(message is one for one in self.visible()):
                self.deliver(message)

    def cancel(self, job: JobId) -> bool:
        """A partner cancels. False: there was no answer."""
        tenant, job_id = job
        jobs = cast("JobStore", self._port(self.stores.jobs, "jobs"))

        def body() -> bool:
            cancel_job(job_id, tenant, jobs=jobs, clock=self.clock)
            return True

        try:
            return bool(self._process("cancel", API_MS, body))
        except NotCancellableError:
            return True
        except StoreBusyError:
            return False

    def surely_cancel(self, job: JobId) -> None:
        """A partner cancels again until there is an answer."""
        for _ in range(5):
            if self.cancel(job):
                return
        raise AssertionError("no cancel was answered")

    def redrive(self, number: int) -> None:
        """An operator moves a message back from the dead-letter queue."""
        tenant_and_id = self.lanes.dead[number].job
        queue = self._port(self.lanes, "queues")

        def body() -> None:
            queue.move_back(number)
            queue.forget(number)

        before = len(self.lanes.messages)
        self.moved_back[tenant_and_id] += 1
        self._process("redrive", API_MS, body)
        if len(self.lanes.messages) > before:
            self._owe(tenant_and_id)

    def _owe(self, key: JobId) -> None:
        """A message was moved back: a failed job has another run ahead."""
        job = self.stores.jobs.get(*key)
        if job is None or job.discarded or job.refresh:
            return
        failed = job.status in {JobStatus.FAILED, JobStatus.DEAD_LETTERED}
        if failed and self.now_ms > (job.failed_at_epoch_ms or 0) + 5000:
            self._owed[key] = job.redrives + 1

    def surely_redrive(self, job: JobId) -> None:
        """An operator moves back what the dead-letter queue holds of this job."""
        for _ in range(5):
            mine = [number for number, dead in self.lanes.dead.items() if dead.job == job]
            if not mine:
                return
            self.redrive(mine[0])

    def _operator(self) -> dlq.Operator:
        """An operator's command, as it sees the queue and the tables."""

        def pause(seconds: float) -> None:
            self.advance(round(seconds * 1000))

        def claimed_by(job: Job) -> str | None:
            claim = self.stores.look().claims.get(job.job_key)
            return claim.job_id if claim else None

        client = self._port(DeadLetterClient(self.lanes, lambda: self.now_ms), "sqs")
        return dlq.Operator(
            letters=DeadLetters(client, DEAD, {lane: lane for lane in LANES}, wait_s=0),
            jobs=cast("JobStore", self._port(self.stores.jobs, "jobs")),
            claimed_by=lambda job: self.breaker.around("claims.holder", lambda: claimed_by(job)),
            clock=self.clock,
            pause=pause,
        )

    def redrive_job(self, key: JobId) -> bool:
        """`dlq redrive JOB`. False: there was no answer."""
        operator = self._operator()

        def body() -> list[dlq.Outcome]:
            job = operator.jobs.get(*key)
            return dlq.redrive_jobs(operator, {key[1]: job}, rate=dlq.DEFAULT_RATE)

        before = max(self.lanes.messages, default=0), self.job(key).redrives
        self.moved_back[key] += 1
        outcomes = self._process("redrive_job", OPERATOR_MS, body)
        moved = any(
            one.number > before[0] and one.job == key for one in self.lanes.messages.values()
        )
        if moved:
            self._owe(key)
        elif self.job(key).redrives == before[1]:
            self.moved_back[key] -= 1
        return outcomes is not None and outcomes[0].outcome != "failed"

    def surely_redrive_job(self, key: JobId) -> None:
        """An operator gives the command again until there is an answer."""
        for _ in range(5):
            if self.redrive_job(key):
                return
        raise AssertionError("no redrive was answered")

    def discard(self, key: JobId) -> bool:
        """`dlq discard JOB`. False: there was no answer."""
        operator = self._operator()

        def body() -> bool:
            job = operator.jobs.get(*key)
            assert job is not None
            dlq.discard(operator, job)
            return True

        try:
            return bool(self._process("discard", OPERATOR_MS, body))
        except RejectedError:
            return True
        except StoreBusyError:
            return False

    def surely_discard(self, key: JobId) -> None:
        """An operator discards again until there is an answer."""
        for _ in range(5):
            if self.discard(key):
                return
        raise AssertionError("no discard was answered")

    def lose_letters(self, key: JobId) -> None:
        """The job's messages were too long in the dead-letter queue, or somebody purged it."""
        mine = [number for number, dead in self.lanes.dead.items() if dead.job == key]
        for number in mine:
            self.lanes.forget(number)
        if mine:
            self._failed_by.pop(key, None)

    def publish(self) -> None:
        """Lambda brings the publisher the next batch of the stream. One at a time."""
        if self._publishing:
            return
        records, until = self.stream.batch()
        if not records:
            self.stream.advance(until)
            return
        stream = self._port(self.stream, "stream")

        def body() -> None:
            publish_events(
                [event for record in records if (event := event_of(record)) is not None],
                bus=self._port(self.told.bus, "bus"),
                endpoints=self._port(self.told.endpoints, "endpoints"),
                webhooks=self._port(self.told.webhooks, "webhooks"),
                telemetry=self.telemetry,
                pause=lambda seconds: self.advance(round(seconds * 1000)),
            )
            stream.advance(until)

        self._publishing = True
        try:
            self._process("publish", PUBLISH_MS, body)
        except NotPublishedError:
            return  # The stream brings the batch again.
        finally:
            self._publishing = False

    # ------------------------------------------------------------------ until it is quiet

    def visible(self) -> list[Message]:
        """What a worker could get now, the oldest first."""
        found = [m for m in self.lanes.messages.values() if m.visible_at_ms <= self.now_ms]
        return sorted(found, key=lambda message: (message.visible_at_ms, message.number))

    def _dues(self) -> list[int]:
        jobs = self.stores.look().jobs.values()
        return [job.due_at_epoch_ms for job in jobs if job.due_at_epoch_ms is not None]

    @property
    def quiet(self) -> bool:
        """Nothing will happen any more by itself."""
        return not self.lanes.messages and not self._dues()

    def step(self) -> None:
        """The next thing that happens by itself."""
        if visible := self.visible():
            self.deliver(visible[0])
            return
        moments = [message.visible_at_ms for message in self.lanes.messages.values()]
        if dues := self._dues():
            sweep_at_ms = max(self._sweep_at_ms, min(dues) - LOOK_AHEAD_MS - self.skew_ms)
            if sweep_at_ms <= min([self.now_ms, *moments]):
                self.sweep()
                return
            moments.append(sweep_at_ms)
        if moments:
            self.advance(max(0, min(moments) - self.now_ms))
            if dues and self.now_ms >= sweep_at_ms:
                self.sweep()

    def drain(self, *, most: int = 500) -> None:
        """Delivers, sweeps and publishes until nothing happens by itself any more."""
        for _ in range(most):
            self.publish()
            if not self.quiet:
                self.step()
            elif self.stream.ended:
                return
        raise AssertionError(f"it never got quiet: {self.picture()}")

    # ------------------------------------------------------------------ rules

    def picture(self) -> str:
        """For whoever has to find out what went wrong."""
        world = self.stores.look()
        rows = [
            f"{job.job_id[-3:]} {job.status} attempts {job.attempts}/{job.attempts_total} "
            f"redrives {job.redrives} parked {job.parked} unsettled {job.unsettled} "
            f"discarded {job.discarded} "
            f"due {(job.due_at_epoch_ms or 0) - self.now_ms} "
            f"error {job.error and job.error.code} calls {self.vendor.calls[job.job_id]} "
            f"mode {job.cache_mode} refresh {job.refresh}"
            for job in world.jobs.values()
        ]
        return "\n".join(
            [
                "",
                *rows,
                f"claims {world.claims}",
                f"leases {world.leases}",
                f"entries {list(world.entries.values())}",
                f"tombstones {world.tombstones} {self._invalidated}",
                f"in flight {dict(world.in_flight)}",
                f"lanes {list(self.lanes.messages.values())}",
                f"dead {list(self.lanes.dead.values())}",
                f"calls {list(enumerate(self.breaker.log))[-40:]}",
            ]
        )

    def check(self) -> None:
        """What holds at every moment."""
        world = self.stores.look()
        for job_id, job in world.jobs.items():
            before = self._seen.get(job_id)
            if before is not job:
                self._made.setdefault(job_id, self._tick())
                self._check_move(before, job)
                if job.refresh:
                    self._check_refresh(before, job, world)
                self._seen[job_id] = job
            self._check_calls(job)
        self._check_counters(world)
        self._check_days(world)
        self._check_usage(world)
        self._check_claims(world)
        self._check_entries(world)
        for dead in self.lanes.dead.values():
            stray = dead.job[0].startswith(REFRESH_PREFIX)
            assert not stray or dead.unanswered >= STRAY_AFTER, f"dead letter: {self.picture()}"

    def _check_move(self, before: Job | None, job: Job) -> None:
        key = job.tenant, job.job_id
        assert job.open <= (job.due_at_epoch_ms is not None), f"nobody will look: {self.picture()}"
        if job.discarded:
            assert job.status is JobStatus.FAILED, f"a discarded job lives: {self.picture()}"
            assert job.error, self.picture()
            assert job.error.code == "discarded", self.picture()
            looked_at = job.due_at_epoch_ms is not None
            assert looked_at <= job.unsettled, f"somebody will look: {self.picture()}"
        if before is None:
            return
        if job.status is JobStatus.RETRYING and before.status is JobStatus.PROCESSING:
            self._past.known[key] += 1
        if before.open and job.status in {JobStatus.FAILED, JobStatus.DEAD_LETTERED}:
            self._failed_by[key] = self.breaker.process
        if job.discarded and not before.discarded and self._sees_all:
            assert before.status is JobStatus.DEAD_LETTERED, f"not given up on: {before} {job}"
        if before.status in {JobStatus.COMPLETED, JobStatus.CANCELLED} or before.discarded:
            moved = replace(
                before,
                revision=job.revision,
                unsettled=job.unsettled,
                due_at_epoch_ms=job.due_at_epoch_ms,
                due_shard=job.due_shard,
                resends=job.resends,
            )
            assert job == moved, f"a final state was overwritten: {before} {job}"
        elif not before.open and job.open:
            self._past.spent_nanos[job.tenant, before.day] += self._spent_nanos(before)
            assert job.redrives > before.redrives, f"an end was overwritten: {before} {job}"
            assert job.redrives <= self.moved_back[key], (
                f"a leftover copy started a failed job again: {self.picture()}"
            )
            self._past.known[key] += 1
            self._past.charged[key] = self.vendor.charged[job.job_id]
        elif not before.open and job.redrives == before.redrives:
            assert job.failed_at_epoch_ms == before.failed_at_epoch_ms, f"failed again: {job}"

    def _check_calls(self, job: Job) -> None:
        calls = self.vendor.calls[job.job_id]
        assert calls <= job.attempts_total, f"more calls than attempts: {self.picture()}"
        if job.model == "careful" and self._sees_all:
            most = self._past.known[job.tenant, job.job_id] + 1
            assert calls <= most, f"called after an unknown outcome: {self.picture()}"

    def _check_counters(self, world: World) -> None:
        over: dict[str, int] = {}
        for (tenant, _), count in world.in_flight.items():
            over[tenant] = over.get(tenant, 0) + count
        for job in world.jobs.values():
            if not job.refresh:  # in nobody's counter
                over[job.tenant] = over.get(job.tenant, 0) - (job.open or job.unsettled)
        assert not any(over.values()), f"counters are over by {over}: {self.picture()}"
        assert min(world.in_flight.values(), default=0) >= 0, self.picture()

    def _check_days(self, world: World) -> None:
        """A day's cost: what its ended jobs have spent, and the reserves of the others."""
        over = Counter({day: -nanos for day, nanos in world.day_cost_nanos.items()})
        over.update(self._past.spent_nanos)
        for key, job in world.jobs.items():
            if job.cost_reserved_nanos is not None:
                waits = job.open or job.unsettled
                over[job.tenant, job.day] += (
                    job.cost_reserved_nanos if waits else self._spent_nanos(job)
                )
                self._check_spent(key, job)
            assert (job.cost_reserved_nanos is None) == (job.tenant != "acme"), self.picture()
        assert not any(over.values()), f"days are over by {over}: {self.picture()}"

    def _spent_nanos(self, job: Job) -> int:
        cost_nanos = job.cost_nanos if job.result_source == "vendor" else 0
        return job.lost_nanos + (cost_nanos or 0)

    def _check_spent(self, key: JobId, job: Job) -> None:
        """Each call that may be charged is in the job's cost or lost, and no more than attempts."""
        lost, rest = divmod(job.lost_nanos, job.cost_reserved_nanos or 1)
        assert (rest, lost <= job.attempts) == (0, True), f"more lost than tried: {self.picture()}"
        if not job.open and self._sees_all:
            charged = self.vendor.charged[job.job_id] - self._past.charged[key]
            told = lost + (job.result_source == "vendor")
            assert charged <= told, f"a call is in no day's cost: {self.picture()}"

    def _check_usage(self, world: World) -> None:
        """Each end of a run, and what it paid for, is counted once; that of a refresh never is."""
        over: Counter[tuple[str, str, str]] = Counter()
        for (tenant, _, model), row in world.usage.items():
            over.update({(tenant, model, name): count for name, count in row.counts.items()})
        for job in world.jobs.values():
            if job.refresh:
                continue
            ended: Counter[str] = Counter(failed=job.redrives)
            if not (job.open or job.unsettled):
                failed = job.status in {JobStatus.FAILED, JobStatus.DEAD_LETTERED}
                ended["failed" if failed else job.status.value] += 1
                if job.result_source == "cache":
                    ended += Counter(from_cache=1, saved_nanos=job.saved_nanos or 0)
                elif job.result_source == "vendor":
                    for name in ("input_tokens", "output_tokens", "cost_nanos"):
                        ended[name] += getattr(job, name)
            for name, count in ended.items():
                over[job.tenant, job.model, name] -= count
        assert not any(over.values()), f"usage is over by {over}: {self.picture()}"

    def _check_claims(self, world: World) -> None:
        by_id = {job.job_id: job for job in world.jobs.values()}
        for claim in world.claims.values():
            holder = by_id[claim.job_id]
            assert holder.open or holder.unsettled, f"claim of an ended job: {self.picture()}"
        for key, job in world.jobs.items():
            lasts = self.clock.now_ms() < job.deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS
            if not (job.open and job.redrives == 0 and lasts) or key in self._forced.replaced:
                continue
            taken = world.claims.get(job.job_key)
            if taken is None or taken.job_id != job.job_id:
                self._check_replaced(job, by_id[taken.job_id] if taken else None, world)
                self._forced.replaced.add(key)

    def _check_replaced(self, job: Job, holder: Job | None, world: World) -> None:
        """An open job lost its claim: a forced refresh that had begun, to one that came later."""
        equal = [one for one in world.jobs.values() if one.job_key == job.job_key]
        forced = job.cache_mode == "refresh" and not job.refresh
        assert forced, f"an open job has no claim: {self.picture()}"
        assert len(equal) > 1, f"nobody replaced it: {self.picture()}"
        if not self._sees_all:  # the other may have ended, and this one may be parked, since
            return
        assert job.attempts_total > 0, f"replaced before it began: {self.picture()}"
        assert holder is not None, f"nobody has its claim: {self.picture()}"
        newest = max(equal, key=lambda one: self._made[key_of(one)])
        assert holder is newest, f"an older one's claim: {self.picture()}"

    def _check_refresh(self, before: Job | None, job: Job, world: World) -> None:
        """Nobody's job: it is never given up on, redriven, cancelled or told of."""
        assert job.status not in {JobStatus.DEAD_LETTERED, JobStatus.CANCELLED}, self.picture()
        assert (job.redrives, job.discarded) == (0, False), self.picture()
        assert (job.callback_urls, job.metadata, job.lane) == ((), {}, "batch"), self.picture()
        if before is not None or not self._sees_all:
            return
        now_ms, entry = job.created_at_epoch_ms, self._entries.get(job.cache_key)
        assert self.breaker.process == "submit", self.picture()
        assert entry is not None, f"nothing to refresh: {self.picture()}"
        due = entry.freshness(now_ms) is Freshness.STALE or job.model == "early"
        assert due, f"not stale: {self.picture()}"
        assert entry.may_be_refreshed(now_ms), f"one too many: {self.picture()}"
        assert not entry.refresh_job_id or not self._claimed(entry, world), self.picture()

    def _claimed(self, entry: CacheEntry, world: World) -> bool:
        """Whether the last refresh of this entry is open, and its claim lasts."""
        last = world.jobs[REFRESH_PREFIX + entry.cache_key, entry.refresh_job_id or ""]
        ends_ms = last.deadline_epoch_ms + CLAIM_OUTLIVES_DEADLINE_MS
        return last.open and self.clock.now_ms() < ends_ms

    def _check_entries(self, world: World) -> None:
        by_id = {job.job_id: job for job in world.jobs.values()}
        for key, entry in world.entries.items():
            before = self._entries.get(key)
            if before is not entry and before != entry:
                self._check_entry(before, entry, by_id)
            if entry.refresh_until_epoch_ms is not None:
                job = by_id[entry.refresh_job_id or ""]
                assert job.refresh, self.picture()
                assert job.open or job.unsettled, f"the mark is left: {self.picture()}"
        if self._sees_all and len(self._entries.keys() - world.entries.keys()):
            assert self.breaker.process == "invalidate", f"an entry is gone: {self.picture()}"
        self._entries = dict(world.entries)

    def _check_entry(
        self, before: CacheEntry | None, entry: CacheEntry, by_id: dict[str, Job]
    ) -> None:
        call, process = call_of(entry.vendor_request_id), self.breaker.process
        if before is None or call != call_of(before.vendor_request_id):
            assert not before or call > call_of(before.vendor_request_id), self.picture()
            self._stored[call] = self._tick()
            self._check_stored(entry, by_id[self.vendor.asked[call][0]])
            assert process == "run" or not self._sees_all, f"by whom? {self.picture()}"
            return
        marks = ("until_epoch_ms", "job_id", "after_epoch_ms", "failures", "error")
        told: dict[str, Any] = {
            f"refresh_{mark}": getattr(entry, f"refresh_{mark}") for mark in marks
        }
        assert replace(before, **told) == entry, f"an entry moved: {before} {entry}"
        job = by_id[entry.refresh_job_id or ""]
        if not self._sees_all:
            return
        if entry.refresh_until_epoch_ms is not None:
            assert process == "submit", self.picture()
            until_ms = job.deadline_epoch_ms
            expected = replace(before, refresh_until_epoch_ms=until_ms, refresh_job_id=job.job_id)
        else:
            assert process in {"run", "sweep"}, self.picture()
            assert not job.open, self.picture()
            ended_ms = job.failed_at_epoch_ms or job.completed_at_epoch_ms or 0
            failures = before.refresh_failures + 1
            expected = replace(
                before,
                refresh_until_epoch_ms=None,
                refresh_after_epoch_ms=ended_ms + cool_down_ms(failures),
                refresh_failures=failures,
                refresh_error=job.error.code if job.error else "not_cacheable",
            )
        assert entry == expected, f"marked wrong: {expected} {self.picture()}"

    def _check_stored(self, entry: CacheEntry, writer: Job) -> None:
        """A new entry is a whole answer that this job may leave, without marks."""
        assert writer.status is JobStatus.COMPLETED, self.picture()
        assert writer.result == entry.result, self.picture()
        assert writer.lease_key == entry.cache_key, f"it stores nothing: {self.picture()}"
        assert self._valid(entry, writer), f"stored after an invalidation: {self.picture()}"
        marks = {entry.refresh_until_epoch_ms, entry.refresh_after_epoch_ms, entry.refresh_error}
        unmarked = marks == {None} and entry.refresh_failures == 0
        assert unmarked or not self._sees_all, f"marked anew: {self.picture()}"

    def _valid(self, entry: CacheEntry, writer: Job) -> bool:
        """Asked for after the last invalidation of its key, or so by the clocks of two machines."""
        gone = self._invalidated.get(f"key:{entry.cache_key}")
        return (
            gone is None
            or self.vendor.asked[call_of(entry.vendor_request_id)][1].tick > gone.tick
            or writer.created_at_epoch_ms > gone.clock_ms
        )

    def _gone(self, subject: str, begun: Moment) -> int:
        """The moment of an invalidation that everybody had seen when this began; 0: of none."""
        gone = self._invalidated.get(subject)
        if gone is None or gone.tick > begun.tick:
            return 0
        lag_ms = 0 if subject.startswith("key:") else self.stores.state_lags_ms
        return gone.tick if gone.now_ms + lag_ms <= begun.now_ms else 0

    def _check_hit(self, hit: Hit, begun: Moment, *, mode: str, degraded: bool) -> None:
        """What a partner is given from the cache, at the moment of the answer."""
        world, entry = self.stores.look(), hit.entry
        assert mode in {"use", "only"}, self.picture()
        degraded = degraded or world.degraded_since_epoch_ms is not None
        until_ms = entry.kept_until_epoch_ms if degraded else entry.hard_expires_at_epoch_ms
        assert begun.clock_ms < until_ms, f"too old: {hit} {self.picture()}"
        job_id, asked = self.vendor.asked[call_of(entry.vendor_request_id)]
        writer = next(job for job in world.jobs.values() if job.job_id == job_id)
        before_it = self._gone(f"key:{entry.cache_key}", begun) < asked.tick
        assert before_it or self._valid(entry, writer), f"invalid: {hit} {self.picture()}"
        assert self._gone(f"model:{entry.model}", begun) < asked.tick, f"invalid: {self.picture()}"
        now = world.entries.get(entry.cache_key)
        same = now is not None and now.stored_at_epoch_ms == entry.stored_at_epoch_ms
        if same and hit.freshness is Freshness.STALE and mode == "use" and hit.refresh is None:
            waits = now is not None and not now.may_be_refreshed(begun.clock_ms)
            refreshed = f"refresh:{entry.cache_key}" in world.claims
            assert waits or refreshed or world.counters_busy, f"no refresh: {self.picture()}"

    def _check_joined(self, job: Job, begun: Moment, *, mode: str, tombstones: set[str]) -> None:
        """Nobody joins a job from before the invalidation that he has seen."""
        made = self._made.setdefault(key_of(job), self._tick())
        assert not job.refresh, f"a partner was given a refresh: {self.picture()}"
        assert self._gone(f"model:{job.model}", begun) < made, f"too old: {self.picture()}"
        if mode == "use" and job.cache_key in tombstones:
            gone = self._gone(f"key:{job.cache_key}", begun)
            assert gone < made, f"joined a job from before: {self.picture()}"
        if mode == "refresh":
            self._forced.asks[key_of(job)].append(begun)

    def check_end(self) -> None:
        """What holds when all is quiet."""
        self.check()
        world = self.stores.look()
        assert self.quiet, self.picture()
        assert not world.claims, f"a claim is left: {self.picture()}"
        assert not +world.in_flight, f"a counter is left: {self.picture()}"
        for lease in world.leases.values():
            held = lease.token is not None
            assert not held or self.crashed, f"a lease is left: {self.picture()}"
            assert not held or lease.free_at(self.clock.now_ms() + LEASE_MS), self.picture()
        for key, job in world.jobs.items():
            assert not job.open, f"it never ended: {self.picture()}"
            assert not job.unsettled, self.picture()
            marked = job.status is not JobStatus.FAILED or job.discarded or job.refresh
            assert marked, f"no mark of its end: {self.picture()}"
            in_dlq = any(dead.job == key for dead in self.lanes.dead.values())
            if job.status is JobStatus.DEAD_LETTERED and self._failed_by.get(key) == "run":
                assert in_dlq, f"not in the dead-letter queue: {self.picture()}"
            if job.status is JobStatus.DEAD_LETTERED:
                assert job.redrives >= self._owed.get(key, 0), f"not redriven: {self.picture()}"
            self._check_result(job)
            ended_ms = job.failed_at_epoch_ms or job.completed_at_epoch_ms or 0
            late = ended_ms > job.deadline_epoch_ms + REFRESH_MARGIN_MS
            assert not (job.refresh and self.punctual and late), f"too late: {self.picture()}"
        by_id = {job.job_id: job for job in world.jobs.values()}
        for entry in world.entries.values():
            writer = by_id[self.vendor.asked[call_of(entry.vendor_request_id)][0]]
            assert entry.refresh_until_epoch_ms is None, f"a mark is left: {self.picture()}"
            cools = entry.refresh_after_epoch_ms is not None
            assert cools == (entry.refresh_failures > 0), self.picture()
            assert self._valid(entry, writer), f"an invalid entry: {self.picture()}"
        assert self.stream.ended, self.picture()
        self.told.check(world.jobs.values(), self._promised)

    def _check_result(self, job: Job) -> None:
        assert (job.result is not None) == (job.status is JobStatus.COMPLETED), self.picture()
        if job.result is None:
            return
        document = json.loads(payloads_of.load(job.result, payloads=self.stores.payloads))
        asked = json.loads(payloads_of.load(job.input, payloads=self.stores.payloads))["input"]
        assert document["text"] in {answer_to(asked), ""}, self.picture()
        self._check_age(job)

    def _check_age(self, job: Job) -> None:
        """Who wants no older answer has none; who goes past the cache has his own.

        An answer is from after a forced refresh by the order of all that happened, or at least by
        the clocks of the two machines.
        """
        call, made = call_of(job.vendor_request_id), self._made[key_of(job)]
        caller, asked = self.vendor.asked[call]
        if job.result_source == "vendor" or job.cache_mode == "bypass":
            assert caller == job.job_id, f"another's answer: {self.picture()}"
        elif self._sees_all and job.refresh:
            assert self._stored[call] > made, f"nothing was renewed: {self.picture()}"
        elif self._sees_all and job.cache_mode == "refresh":
            after = asked.tick > made or asked.clock_ms > job.created_at_epoch_ms
            assert after, f"the refresh was swallowed: {self.picture()}"
        for wanted in self._forced.asks[key_of(job)]:
            after = asked.tick > wanted.tick or asked.clock_ms > wanted.clock_ms
            assert after, f"a refresh that joined was swallowed: {self.picture()}"

    def job(self, key: JobId) -> Job:
        found = self.stores.jobs.get(*key)
        assert found is not None
        return found


def key_of(job: Job) -> JobId:
    return job.tenant, job.job_id
