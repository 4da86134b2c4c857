"""Whatever partners, workers, operators, SQS, the vendor and the clocks do, in whatever order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from moto import mock_aws
from sluiceway.domain.job import JobStatus
from sluiceway.usecases.invalidate_cache import Invalidation

from tests.protocol.on_moto import on_moto
from tests.protocol.stage import OUTCOMES, Stage, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.stage import JobId, When

MOST_JOBS = 3
"""Besides refreshes, and those that go past the cache."""

MOST_PAST_THE_CACHE = 2
MOST_MESSAGES = 6
MOST_STEPS = 40
"""From a failure to its mark."""

SECOND_MS = 1000
JUMPS_MS = tuple(
    round(seconds * SECOND_MS) for seconds in (1, 5.5, 30, 110, 130, 740, 3700, 86_500, 500_000)
)
"""Past a redrive's margin, a lease's end while its worker lives, a visibility, a deadline."""

WORK: tuple[dict[str, Any], ...] = (
    {"text": "one"},
    {"text": "one", "lane": "batch", "callback": "https://partner.invalid/others"},
    {"text": "two", "deadline_s": 300},
    {"text": "three", "model": "shared"},
    {"text": "three", "model": "shared"},
    {"text": "three", "model": "shared", "tenant": "globex"},
    {"text": "three", "model": "shared", "tenant": "globex"},
    {"text": "four", "model": "careful"},
    {"text": "five", "model": "uncached", "callback": None},
    {"text": "six", "model": "brief"},
    {"text": "six", "model": "brief", "no_store": True},
    {"text": "seven", "model": "common"},
)
SHARED: tuple[dict[str, Any], ...] = (
    {"text": "seven", "model": "common", "tenant": "acme"},
    {"text": "seven", "model": "common", "tenant": "globex"},
)
STORED = ({"text": "one"}, SHARED[0])
READS: tuple[dict[str, Any], ...] = (
    *({"text": "six", "model": "brief"}, {"text": "six", "model": "brief", "mode": "only"}),
    *({"text": "one"}, *SHARED),
)
"""Most of them hits."""

crashes = st.none() | st.tuples(st.integers(0, 9), st.sampled_from(("before", "after")))
others = st.lists(
    st.sampled_from(
        (
            *("deliver", "duplicate", "sweep", "cancel", "redrive", "submit", "publish"),
            *("redrive_job", "discard", "110", "20", "read", "force", "bypass", "invalidate"),
        )
    ),
    max_size=3,
)
interruptions = st.none() | st.tuples(st.integers(0, 9), others)


class Machine(RuleBasedStateMachine):
    """Rules are what may happen; the stage checks what must hold after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = self.make_stage()
        self.stage.punctual = False  # jumps leave sweeps out
        self.stored: set[JobId] = set()
        """The jobs that left an entry before it all began."""

    def make_stage(self) -> Stage:
        return Stage()

    # ------------------------------------------------------------------ helpers

    def _jobs(self) -> list[JobId]:
        """The partners'."""
        jobs = self.stage.stores.look().jobs.items()
        return sorted(key for key, job in jobs if not job.refresh and key not in self.stored)

    def _past_the_cache(self) -> list[JobId]:
        jobs = self.stage.stores.look().jobs
        return [key for key in self._jobs() if jobs[key].cache_mode in {"refresh", "bypass"}]

    def _given_up(self) -> list[JobId]:
        """The jobs that operators are there for."""
        jobs = self.stage.stores.look().jobs
        ends = {JobStatus.FAILED, JobStatus.DEAD_LETTERED}
        return [key for key in self._jobs() if jobs[key].status in ends]

    def _plan(
        self, crash: tuple[int, When] | None, interruption: tuple[int, list[str]] | None
    ) -> None:
        """Of the process that is started next."""
        breaker = self.stage.breaker
        breaker.crashes.clear()
        breaker.meanwhile.clear()
        calls = len(breaker.log)
        if crash is not None:
            breaker.crashes[calls + crash[0]] = crash[1]
        if interruption is not None:
            at, names = interruption
            breaker.meanwhile[calls + at] = lambda: self._others(names)

    def _others(self, names: list[str]) -> None:
        """What others do while a process waits for an answer."""
        self.stage.breaker.crashes.clear()
        for name in names:
            self._other(name)

    def _other(self, name: str) -> None:
        stage = self.stage
        jobs = self._jobs()
        doing: dict[str, Callable[[], Any]] = {
            "sweep": stage.sweep,
            "publish": stage.publish,
            "submit": lambda: self._submit(WORK[0]),
            "read": lambda: self._read(READS[0]),
            "force": lambda: self._submit(WORK[0], mode="refresh"),
            "bypass": lambda: self._submit(WORK[0], mode="bypass"),
            "invalidate": lambda: self._invalidate(0, "key"),
            "110": lambda: stage.advance(107 * SECOND_MS),
            "20": lambda: stage.advance(20 * SECOND_MS),
        }
        if stage.lanes.messages:
            doing["deliver"] = self._deliver_one_or_its_copy
        if jobs:
            doing["cancel"] = lambda: stage.cancel(jobs[-1])
            doing["redrive_job"] = lambda: stage.redrive_job(jobs[-1])
            doing["discard"] = lambda: stage.discard(jobs[-1])
        if stage.lanes.dead:
            doing["redrive"] = lambda: stage.redrive(min(stage.lanes.dead))
        if 0 < len(stage.lanes.messages) < MOST_MESSAGES:
            doing["duplicate"] = lambda: stage.lanes.duplicate(min(stage.lanes.messages))
        doing.get(name, lambda: None)()

    def _deliver_one_or_its_copy(self) -> None:
        lanes = self.stage.lanes
        if not self.stage.visible():
            lanes.duplicate(min(lanes.messages))
        self.stage.deliver(self.stage.visible()[0])

    def _submit(self, work: dict[str, Any], *, mode: str = "use") -> None:
        past = self._past_the_cache()
        if mode == "only":
            self.stage.ask(**work)
        elif mode == "use" and len(self._jobs()) - len(past) < MOST_JOBS:
            self.stage.submit(**work)
        elif mode != "use" and len(past) < MOST_PAST_THE_CACHE:
            self.stage.submit(**{**work, "mode": mode, "no_store": False})

    def _read(self, work: dict[str, Any]) -> None:
        """Of what is cached; else it would be one more job."""
        model = work.get("model", "plain")
        entries = self.stage.stores.look().entries.values()
        if any(entry.model == model for entry in entries):
            self._submit(work, mode=work.get("mode", "use"))

    def _invalidate(self, which: int, kind: Literal["key", "model", "tenant"]) -> None:
        jobs = [*self._jobs(), *sorted(self.stored)]
        if jobs:
            job = self.stage.job(jobs[which % len(jobs)])
            names = {"key": job.cache_key, "model": job.model, "tenant": job.tenant}
            self.stage.invalidate(Invalidation(kind, names[kind]))

    # ------------------------------------------------------------------ rules

    @initialize(
        works=st.lists(st.sampled_from(WORK), min_size=1, max_size=MOST_JOBS),
        outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=4),
    )
    def begin(self, works: list[dict[str, Any]], outcomes: list[str]) -> None:
        self.stage.vendor.script = list(outcomes)
        for work in works:
            self._submit(work)

    @rule(work=st.sampled_from(WORK), crash=crashes, interruption=interruptions)
    def submit(
        self, work: dict[str, Any], crash: Any, interruption: tuple[int, list[str]] | None
    ) -> None:
        self._plan(crash, interruption)
        self._submit(work)

    @precondition(lambda self: self.stage.stores.look().entries)
    @rule(
        work=st.sampled_from(READS),
        later_ms=st.sampled_from((0, 650 * SECOND_MS, 3_100 * SECOND_MS, 3_500 * SECOND_MS)),
        crash=crashes,
        interruption=interruptions,
    )
    def stale_submit(
        self,
        work: dict[str, Any],
        later_ms: int,
        crash: Any,
        interruption: tuple[int, list[str]] | None,
    ) -> None:
        """Past the soft TTL of what was stored a moment ago."""
        self.stage.advance(later_ms)
        self._plan(crash, interruption)
        self._read(work)

    @rule(
        work=st.sampled_from(WORK),
        mode=st.sampled_from(("refresh", "bypass")),
        crash=crashes,
        interruption=interruptions,
    )
    def submit_past_the_cache(
        self,
        work: dict[str, Any],
        mode: str,
        crash: Any,
        interruption: tuple[int, list[str]] | None,
    ) -> None:
        self._plan(crash, interruption)
        self._submit(work, mode=mode)

    @precondition(lambda self: self._jobs() or self.stored)
    @rule(
        which=st.integers(0, MOST_JOBS + MOST_PAST_THE_CACHE),
        kind=st.sampled_from(("key", "model", "tenant", None, None, None)),
        crash=crashes,
        interruption=interruptions,
    )
    def invalidate(
        self,
        which: int,
        kind: Literal["key", "model", "tenant"] | None,
        crash: Any,
        interruption: tuple[int, list[str]] | None,
    ) -> None:
        """Not each time, or there would seldom be an entry."""
        self._plan(crash, interruption)
        if kind is not None:
            self._invalidate(which, kind)

    @precondition(lambda self: self.stage.visible())
    @rule(which=st.integers(0, MOST_MESSAGES), crash=crashes, interruption=interruptions)
    def deliver(self, which: int, crash: Any, interruption: tuple[int, list[str]] | None) -> None:
        self._plan(crash, interruption)
        visible = self.stage.visible()
        self.stage.deliver(visible[which % len(visible)])

    @precondition(lambda self: not self.stage.quiet)
    @rule(times=st.integers(1, 12), crash=crashes, interruption=interruptions)
    def time_passes(
        self, times: int, crash: Any, interruption: tuple[int, list[str]] | None
    ) -> None:
        self._plan(crash, interruption)
        for _ in range(times):
            self.stage.step()

    @precondition(lambda self: 0 < len(self.stage.lanes.messages) < MOST_MESSAGES)
    @rule(which=st.integers(0, MOST_MESSAGES))
    def duplicate(self, which: int) -> None:
        messages = list(self.stage.lanes.messages)
        self.stage.lanes.duplicate(messages[which % len(messages)])

    @rule(jump_ms=st.sampled_from(JUMPS_MS), behind_ms=st.integers(0, 5 * SECOND_MS))
    def jump(self, jump_ms: int, behind_ms: int) -> None:
        """The processes' clock may fall behind meanwhile, or catch up."""
        self.stage.skew(-behind_ms)
        self.stage.advance(jump_ms)

    @precondition(lambda self: self._jobs())
    @rule(which=st.integers(0, MOST_JOBS), crash=crashes, interruption=interruptions)
    def cancel(self, which: int, crash: Any, interruption: tuple[int, list[str]] | None) -> None:
        self._plan(crash, interruption)
        jobs = self._jobs()
        self.stage.cancel(jobs[which % len(jobs)])

    @precondition(lambda self: self.stage.lanes.dead)
    @rule(which=st.integers(0, MOST_MESSAGES), crash=crashes)
    def redrive(self, which: int, crash: Any) -> None:
        self._plan(crash, None)
        dead = list(self.stage.lanes.dead)
        self.stage.redrive(dead[which % len(dead)])

    @precondition(lambda self: self._given_up())
    @rule(
        which=st.integers(0, MOST_JOBS),
        lost=st.booleans(),
        crash=crashes,
        interruption=interruptions,
    )
    def redrive_job(
        self,
        which: int,
        crash: Any,
        interruption: tuple[int, list[str]] | None,
        *,
        lost: bool,
    ) -> None:
        """By the command; without a message when it was lost, or when another look hides it."""
        jobs = self._given_up()
        job = jobs[which % len(jobs)]
        if lost:
            self.stage.lose_letters(job)
        self._plan(crash, interruption)
        self.stage.redrive_job(job)

    @precondition(lambda self: self._given_up())
    @rule(which=st.integers(0, MOST_JOBS), crash=crashes, interruption=interruptions)
    def discard(self, which: int, crash: Any, interruption: tuple[int, list[str]] | None) -> None:
        """Of a job that was dead-lettered meanwhile, or still is on its way."""
        jobs = self._given_up()
        job = jobs[which % len(jobs)]
        self._plan(None, None)
        for _ in range(MOST_STEPS * (which % 2)):
            if self.stage.job(job).status is JobStatus.FAILED:
                self.stage.step()
        self._plan(crash, interruption)
        self.stage.discard(job)

    @precondition(lambda self: not self.stage.stream.ended)
    @rule(
        crash=crashes,
        interruption=interruptions,
        refusals=st.lists(st.integers(1, 2), max_size=8),
    )
    def publish(
        self, crash: Any, interruption: tuple[int, list[str]] | None, refusals: list[int]
    ) -> None:
        """What the bus and the queue don't take meanwhile, they take later."""
        told = self.stage.told
        told.bus.refusals = refusals[::2]
        told.webhooks.refusals = refusals[1::2]
        self._plan(crash, interruption)
        self.stage.publish()

    @precondition(lambda self: self._jobs())
    @rule(
        crash=crashes,
        interruption=st.none() | st.tuples(st.integers(15, 25), others),
        polls=st.booleans(),
    )
    def sweep(self, crash: Any, interruption: tuple[int, list[str]] | None, *, polls: bool) -> None:
        later = None if crash is None else (crash[0] + 15, crash[1])
        self._plan(later, interruption)
        self.stage.polls = polls
        self.stage.sweep()
        self.stage.polls = False

    @rule(
        outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=4),
        default=st.sampled_from(OUTCOMES),
        sends=st.integers(0, 2),
        busy=st.booleans(),
    )
    def circumstances(self, outcomes: list[str], default: str, sends: int, *, busy: bool) -> None:
        """What the vendor will say, how many sends fail, whether the counters can be written."""
        self.stage.vendor.script = list(outcomes)
        self.stage.vendor.default = default
        self.stage.lanes.lose_sends = sends
        self.stage.stores.look().counters_busy = busy

    # ------------------------------------------------------------------ the end

    def teardown(self) -> None:
        """Without further faults all comes to a good end."""
        stage = self.stage
        self._plan(None, None)
        stage.lanes.lose_sends = 0
        stage.stores.look().counters_busy = False
        stage.skew(0)
        stage.drain()
        stage.check_end()


class StaleMachine(Machine):
    """There are entries, and they are stale: what is tried is mostly about refreshes."""

    @initialize(
        works=st.lists(st.sampled_from(WORK), max_size=1),
        outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=4),
    )
    def begin(self, works: list[dict[str, Any]], outcomes: list[str]) -> None:
        for work in STORED:
            self.stored.add(key_of(self.stage.surely_submit(callback=None, **work)))
        self.stage.drain()
        self.stage.advance(3_500 * SECOND_MS)
        super().begin(works, outcomes)

    @rule(
        work=st.sampled_from(STORED),
        later_ms=st.sampled_from((0, 61 * SECOND_MS, 3_500 * SECOND_MS)),
        crash=crashes,
        interruption=interruptions,
    )
    def read(
        self,
        work: dict[str, Any],
        later_ms: int,
        crash: Any,
        interruption: tuple[int, list[str]] | None,
    ) -> None:
        """In or after a cool-down, or when the entry has been renewed."""
        self.stale_submit(work, later_ms, crash, interruption)

    @precondition(lambda self: self.stage.lanes.messages)
    @rule(crash=crashes, interruption=interruptions)
    def deliver_refresh(self, crash: Any, interruption: tuple[int, list[str]] | None) -> None:
        """The last that was sent, which mostly is one."""
        lanes = self.stage.lanes
        number = max(lanes.messages)
        if lanes.messages[number].visible_at_ms > self.stage.now_ms:
            lanes.duplicate(number)
            number = max(lanes.messages)
        self._plan(crash, interruption)
        self.stage.deliver(lanes.messages[number])


class OnMoto(Machine):
    """The same, with the real stores on moto."""

    def make_stage(self) -> Stage:
        self._mock = mock_aws()
        self._mock.start()
        return Stage(on_moto, check_each_call=False)

    @invariant()
    def the_rules_hold(self) -> None:
        self.stage.check()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._mock.stop()


class StaleOnMoto(OnMoto, StaleMachine):
    """As StaleMachine."""


def examples(count: int, steps: int) -> settings:
    """The same examples in each run."""
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


class TestInMemory(Machine.TestCase):
    settings = examples(500, 40)


class TestStaleInMemory(StaleMachine.TestCase):
    settings = examples(300, 40)


@pytest.mark.proves(1, 2, 5, 6, 16, on="moto")
class TestOnMoto(OnMoto.TestCase):
    settings = examples(5, 20)


@pytest.mark.proves(17, 20, 21, on="moto")
class TestStaleOnMoto(StaleOnMoto.TestCase):
    settings = examples(4, 15)
