"""The gate's promise, on the real adapter: over any schedule, no window holds more than it may.

Some workers with clocks that differ play with one gate. Each does what a run does: it takes a slot,
waits for it or keeps it, looks whether it still counts, begins the call some time later, and tells
the gate what came of it. What one does may fall between two writes of another. Whatever they do,
the calls that begin in any window of true time are at most

    rate x (window + life of a kept slot + what the clocks differ by) + burst

and the same of their tokens, whether the gate has one of the two limits or both. Tokens that are
given back may come once more, a minute's at most, when their line rested after the call's slot: the
row doesn't say that it did.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sluiceway.adapters import dynamodb_gates
from sluiceway.adapters.dynamodb import Table, from_item
from sluiceway.adapters.dynamodb_gates import DynamoDBGates, gate_of
from sluiceway.domain.gate import FURTHEST_SLOT_MS, OPEN_AFTER_FAILURES, Limits, Shut
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.ticket import SLOT_LIVES_MS, Ticket

from tests.contract.harness import make_tables
from tests.fakes.in_memory import NOW_MS, InMemoryGates, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

PROBE_MS = 20_000
WORKERS = 4
_keys = itertools.count(1)


class Sharded(Limits):
    """A gate of three rows, without the thousands of calls a second that it takes to need them."""

    shards = 3  # type: ignore[assignment]


@dataclass(frozen=True)
class Turn:
    """What a worker does when its turn has come."""

    worker: int
    after_ms: int
    what: str
    late_ms: int
    """How long after its moment a kept slot is looked at."""
    slow_ms: int
    """From the worker's look at the gate until its call begins."""
    amid: bool
    """In the middle of what another does, if that takes several writes."""
    part: int
    """How many of the tokens, and which shard."""
    times: int
    """How many slots it takes."""


@dataclass
class Call:
    """A call that a worker began, at a true time."""

    at_ms: int
    ticket: Ticket
    tokens: int
    settled: bool = False
    given_back: int = 0


WHAT = ("take", "take", "take", "keep", "keep", "close", "outage", "worked", "settle")
MOSTLY_TAKES = (*WHAT, *["take"] * 12)
"""What one limit does to the other is seen when the line is long."""


def turns_of(*what: str) -> st.SearchStrategy[list[Turn]]:
    return st.lists(
        st.builds(
            Turn,
            worker=st.integers(0, WORKERS - 1),
            after_ms=st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 30_000)),
            what=st.sampled_from(what),
            late_ms=st.integers(0, SLOT_LIVES_MS),
            slow_ms=st.one_of(st.just(0), st.integers(0, SLOT_LIVES_MS + 1_000)),
            amid=st.booleans(),
            part=st.integers(0, 5),
            times=st.integers(1, 12),
        ),
        min_size=5,
        max_size=25,
    )


SKEWS = st.one_of(
    st.just([0] * WORKERS),
    st.lists(st.integers(0, CLOCK_SKEW_MS), min_size=WORKERS, max_size=WORKERS),
)
LIMITS = st.builds(
    lambda kind, requests, tokens, burst: kind(requests, tokens, burst),
    st.sampled_from([Limits, Sharded]),
    requests=st.sampled_from([0, 1, 7, 60]),
    tokens=st.sampled_from([0, 30, 600]),
    burst=st.sampled_from([1, 3, 10]),
)
ONE_LIMIT = LIMITS.filter(
    lambda limits: bool(limits.requests_per_minute) != bool(limits.tokens_per_minute)
)
BOTH_LIMITS = LIMITS.filter(
    lambda limits: limits.requests_per_minute > 1 and bool(limits.tokens_per_minute)
)


@dataclass
class Play:
    """One gate and its workers. Times are true ones unless they are given to the gate."""

    client: Any
    table: str
    limits: Limits
    skews: list[int]
    turns: list[Turn]
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = f"gate#simulator#{next(_keys)}"
        self.true_ms = NOW_MS
        self.busy = 0
        self.shard = 0
        self.gates = [
            DynamoDBGates(Table(self), self.table, rand=lambda: self.shard / 3)  # type: ignore[arg-type]
            for _ in self.skews
        ]
        self.plans: list[tuple[int, int, str, int, Ticket, int, int]] = []
        self.rest = list(reversed(self.turns))

    def __getattr__(self, name: str) -> Any:
        """A client, between whose calls others have their turns."""
        call = getattr(self.client, name)

        def meanwhile(**request: Any) -> Any:
            if self.busy == 1 and self.rest and self.rest[-1].amid:
                self.do(self.rest.pop())
            return call(**request)

        return meanwhile

    def run(self) -> list[Call]:
        while self.rest:
            turn = self.rest.pop()
            self.go_on(self.true_ms + turn.after_ms)
            self.do(turn)
        self.go_on(self.true_ms + 3_600_000)
        return sorted(self.calls, key=lambda call: call.at_ms)

    def go_on(self, until_ms: int) -> None:
        """What was planned until then happens."""
        while due := min((plan for plan in self.plans if plan[0] <= until_ms), default=None):
            self.plans.remove(due)
            self.true_ms, _, what, worker, ticket, tokens, slow_ms = due
            now_ms = self.true_ms + self.skews[worker]
            if not ticket.usable(now_ms):
                continue
            if what == "begin":
                self.calls.append(Call(self.true_ms, ticket, tokens))
            elif self.gates[worker].still_open(self.key, ticket, now_ms=now_ms):
                self.plan(self.true_ms + slow_ms, "begin", worker, ticket, tokens)
        self.true_ms = until_ms

    def plan(
        self, at_ms: int, what: str, worker: int, ticket: Ticket, tokens: int, slow_ms: int = 0
    ) -> None:
        self.plans.append((at_ms, next(_keys), what, worker, ticket, tokens, slow_ms))

    def do(self, turn: Turn) -> None:
        self.busy += 1
        self.shard = turn.part % 3
        gates, now_ms = self.gates[turn.worker], self.true_ms + self.skews[turn.worker]
        if turn.what in {"take", "keep"}:
            for _ in range(turn.times):
                self.take(turn, gates, now_ms)
        elif self.calls:
            self.tell(turn, gates, now_ms, self.calls[-1 - turn.part % len(self.calls)])
        self.busy -= 1

    def take(self, turn: Turn, gates: DynamoDBGates, now_ms: int) -> None:
        # At most what a row of three has in a minute: a call of more goes when the gate is idle.
        tokens = self.limits.tokens_per_minute * min(turn.part, 3) // 9 or 1
        taken = gates.take(
            self.key,
            self.limits,
            tokens=tokens,
            now_ms=now_ms,
            probe_ms=PROBE_MS,
            furthest_ms=FURTHEST_SLOT_MS,
        )
        if isinstance(taken, Shut):
            return
        if taken.slot_at_ms <= now_ms:
            self.plan(self.true_ms + turn.slow_ms, "begin", turn.worker, taken, tokens)
        else:
            late_ms = turn.late_ms if turn.what == "keep" else 0
            at_ms = taken.slot_at_ms - self.skews[turn.worker] + late_ms
            self.plan(at_ms, "look", turn.worker, taken, tokens, turn.slow_ms)

    def tell(self, turn: Turn, gates: DynamoDBGates, now_ms: int, call: Call) -> None:
        """What came of a call."""
        key, limits, ticket = self.key, self.limits, call.ticket
        if turn.what == "close":
            gates.close(key, limits, ticket, now_ms=now_ms, until_ms=now_ms + turn.late_ms)
        elif turn.what == "outage":
            for _ in range(OPEN_AFTER_FAILURES):
                gates.failed(key, limits, ticket, now_ms=now_ms)
        elif turn.what == "worked":
            gates.worked(key, ticket)
        elif not call.settled:
            unused = call.tokens // 2 * (turn.part % 3)
            gates.settle(key, limits, ticket, tokens=unused, now_ms=now_ms)
            call.settled, call.given_back, call.tokens = True, unused, call.tokens - unused


def worst_excess(
    starts: Iterable[tuple[int, int]], per_minute: int, slack_ms: int, burst: int
) -> float:
    """By how much the fullest window holds more than rate x (window + slack) + burst."""

    def excesses() -> Iterator[float]:
        known = list(starts)
        for number, (first_ms, _) in enumerate(known):
            total = 0
            for at_ms, units in known[number:]:
                total += units
                yield total - (per_minute * (at_ms - first_ms + slack_ms) / 60_000 + burst)

    return max(excesses(), default=0)


@pytest.fixture
def table(moto_client: DynamoDBClient) -> str:
    return make_tables(moto_client, "gate-promise").names.coordination


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=ONE_LIMIT, skews=SKEWS, turns=turns_of(*WHAT))
def test_no_window_holds_more_calls_or_tokens_than_the_gate_promises(
    moto_client: DynamoDBClient, table: str, limits: Limits, skews: list[int], turns: list[Turn]
) -> None:
    calls = Play(moto_client, table, limits, skews, turns).run()

    keep_the_promise(calls, limits, skews)


GIVEN_BACK_BEFORE_A_REST = [
    Turn(0, 0, "take", 740, 0, amid=False, part=3, times=4),
    Turn(0, 0, "take", 0, 0, amid=False, part=0, times=2),
    Turn(0, 0, "take", 540, 0, amid=True, part=0, times=11),
    Turn(0, 0, "take", 540, 0, amid=False, part=0, times=1),
    Turn(0, 0, "take", 80, 294, amid=True, part=0, times=8),
    Turn(3, 194, "take", 142, 0, amid=False, part=4, times=6),
    Turn(0, 414, "take", 238, 4937, amid=False, part=5, times=6),
    Turn(3, 4059, "take", 5000, 72, amid=False, part=5, times=10),
    Turn(2, 0, "take", 740, 0, amid=False, part=3, times=4),
    Turn(3, 399, "take", 264, 0, amid=False, part=3, times=5),
    Turn(1, 229, "settle", 600, 0, amid=False, part=5, times=8),
    Turn(2, 87, "settle", 277, 0, amid=True, part=4, times=2),
    Turn(1, 200, "take", 966, 0, amid=True, part=1, times=12),
]
"""The line for requests is so long that tokens are saved up again before what comes back counts."""


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@example(limits=Limits(7, 600, 3), skews=[0] * WORKERS, turns=GIVEN_BACK_BEFORE_A_REST)
@given(limits=BOTH_LIMITS, skews=SKEWS, turns=turns_of(*MOSTLY_TAKES))
def test_no_window_holds_more_calls_and_tokens_than_a_gate_with_both_limits_promises(
    moto_client: DynamoDBClient, table: str, limits: Limits, skews: list[int], turns: list[Turn]
) -> None:
    calls = Play(moto_client, table, limits, skews, turns).run()

    keep_the_promise(calls, limits, skews)


def keep_the_promise(calls: list[Call], limits: Limits, skews: list[int]) -> None:
    slack_ms = SLOT_LIVES_MS + max(skews) - min(skews)
    requests = [(call.at_ms, 1) for call in calls]
    burst = max(limits.burst, limits.shards)
    if limits.requests_per_minute:
        assert worst_excess(requests, limits.requests_per_minute, slack_ms, burst) <= 0
    if limits.tokens_per_minute:
        tokens = [(call.at_ms, call.tokens) for call in calls]
        of_a_minute = limits.tokens_per_minute
        again = min(of_a_minute, sum(call.given_back for call in calls))
        assert worst_excess(tokens, of_a_minute, slack_ms, of_a_minute + again) <= 0


@pytest.mark.parametrize(
    "tokens",
    [[3] * 10 + [9] * 8, [9] * 12 + [3] * 20, [3, 9, 6] * 8],
    ids=["wait for requests, then for tokens", "for tokens, then for requests", "in turns"],
)
def test_what_waits_for_one_limit_lets_no_more_through_at_the_other(
    moto_client: DynamoDBClient, table: str, tokens: list[int]
) -> None:
    limits = Limits(requests_per_minute=7, tokens_per_minute=30, burst=1)
    gates = DynamoDBGates(Table(moto_client), table)

    calls = []
    for size in tokens:
        taken = gates.take(
            "gate#a#b",
            limits,
            tokens=size,
            now_ms=NOW_MS,
            probe_ms=PROBE_MS,
            furthest_ms=FURTHEST_SLOT_MS,
        )
        assert isinstance(taken, Ticket)
        calls.append((taken.slot_at_ms, size))

    rounded_ms = 1
    requests = [(at_ms, 1) for at_ms, _ in calls]
    assert worst_excess(requests, 7, rounded_ms, 1) <= 0
    assert worst_excess(calls, 30, rounded_ms, 30) <= 0


@dataclass(frozen=True)
class Take:
    """By a worker whose copy of the gate is as old as its last take."""

    worker: int
    after_ms: int
    thirtieths: int
    """Of a minute's tokens."""
    unused: int
    """Of those of the take before, given back after this one."""


TAKES = st.lists(
    st.builds(
        Take,
        worker=st.integers(0, WORKERS - 1),
        after_ms=st.one_of(st.just(0), st.just(0), st.integers(0, 2_000), st.integers(0, 60_000)),
        thirtieths=st.sampled_from([0, 1, 3, 10, 30, 40]),
        unused=st.sampled_from([0, 0, 1, -1]),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=BOTH_LIMITS.filter(lambda limits: limits.shards == 1), takes=TAKES)
def test_workers_with_old_copies_get_the_slots_of_one_who_sees_all(
    moto_client: DynamoDBClient, table: str, limits: Limits, takes: list[Take]
) -> None:
    key = f"gate#simulator#{next(_keys)}"
    workers = [DynamoDBGates(Table(moto_client), table) for _ in range(WORKERS)]
    world = World()
    one = InMemoryGates(world)
    now_ms, before, given_back_ms = NOW_MS, 0, 0

    for take in takes:
        now_ms += take.after_ms
        tokens = limits.tokens_per_minute * take.thirtieths // 30
        gate = world.gates.get(key)
        taken = [
            gates.take(
                key,
                limits,
                tokens=tokens,
                now_ms=now_ms,
                probe_ms=PROBE_MS,
                furthest_ms=FURTHEST_SLOT_MS,
            )
            for gates in (workers[take.worker], one)
        ]
        if isinstance(taken[0], Shut) and taken[0].far and gate and isinstance(taken[1], Ticket):
            # A copy that was far away is believed for its life, whoever gives back meanwhile.
            assert now_ms - given_back_ms < dynamodb_gates._COPY_LIVES_MS
            world.gates[key] = gate
            continue
        assert taken[0] == taken[1]
        item = moto_client.get_item(TableName=table, Key={"coordination_key": {"S": key}})["Item"]
        assert gate_of(from_item(item)) == world.gates[key]
        if isinstance(taken[0], Ticket):
            for gates in (workers[take.worker], one):
                gates.settle(key, limits, taken[0], tokens=take.unused * before, now_ms=now_ms)
            given_back_ms = now_ms if take.unused > 0 else given_back_ms
            before = tokens
