"""The gate's rules: when slots are due, and what closes, halves, opens and probes."""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluiceway.domain.catalogue import Model, Vendor
from sluiceway.domain.gate import (
    ANSWER_TOKENS,
    FURTHEST_SLOT_MS,
    LOWEST_RATE_PERMILLE,
    MOST_ANSWER_TOKENS,
    NEARS_IN_MS,
    OPEN_AFTER_FAILURES,
    OUTAGE_FIRST_MS,
    OUTAGE_LONGEST_MS,
    PAUSE_LOOK_MS,
    PROBES_EVERY_MS,
    RETURNS_IN_MS,
    SHARD_PER_MINUTE,
    Gate,
    Limits,
    Room,
    Shut,
    estimated_tokens,
    key_of,
    rooms_of,
)
from sluiceway.domain.ticket import SLOT_LIVES_MS, Ticket

from tests.fakes.in_memory import NOW_MS, InMemoryGates, World

KEY = key_of("simulator", "sim-chat-1")
PER_SECOND = Limits(requests_per_minute=60)
TOKENS = Limits(tokens_per_minute=6_000)
PROBE_MS = 65_000


@dataclass
class Taker:
    """Takes from one gate, and tells when each slot is due, in ms from the start."""

    limits: Limits
    gate: Gate

    def __post_init__(self) -> None:
        self.world = World(gates={KEY: self.gate})
        self.gates = InMemoryGates(self.world)

    def take(
        self, at_ms: int = 0, *, tokens: int = 0, furthest_ms: int = FURTHEST_SLOT_MS
    ) -> Ticket | Shut:
        return self.gates.take(
            KEY,
            self.limits,
            tokens=tokens,
            now_ms=NOW_MS + at_ms,
            probe_ms=PROBE_MS,
            furthest_ms=furthest_ms,
        )

    def slot(self, at_ms: int = 0, *, tokens: int = 0) -> int:
        ticket = self.take(at_ms, tokens=tokens)
        assert isinstance(ticket, Ticket)
        return ticket.slot_at_ms - NOW_MS

    def slots(self, number: int, at_ms: int = 0, *, tokens: int = 0) -> list[int]:
        return [self.slot(at_ms, tokens=tokens) for _ in range(number)]

    @property
    def now(self) -> Gate:
        return self.world.gates[KEY]


def taker(limits: Limits = PER_SECOND, **gate: int | bool) -> Taker:
    return Taker(limits, Gate(**gate))  # type: ignore[arg-type]


# ------------------------------------------------------------------ slots of requests


@pytest.mark.parametrize("burst", [1, 3, 10])
def test_burst_is_due_at_once_and_each_further_slot_an_interval_later(burst: int) -> None:
    gate = taker(replace(PER_SECOND, burst=burst))

    slots = gate.slots(burst + 3)

    assert slots == [0] * burst + [1_000, 2_000, 3_000]


@pytest.mark.parametrize("burst", [1, 3, 10])
def test_gate_that_was_idle_has_its_burst_again_and_no_more(burst: int) -> None:
    gate = taker(replace(PER_SECOND, burst=burst))
    gate.slots(burst)

    slots = gate.slots(burst + 1, at_ms=3_600_000)

    assert slots == [3_600_000] * burst + [3_601_000]


def test_each_interval_gives_one_slot_of_the_burst_back() -> None:
    gate = taker(replace(PER_SECOND, burst=3))
    gate.slots(3)

    assert gate.slots(3, at_ms=2_000) == [2_000, 2_000, 3_000]


def test_take_that_comes_late_gets_its_slot_at_once() -> None:
    gate = taker()
    gate.slot()

    assert gate.slot(at_ms=400) == 1_000
    assert gate.slot(at_ms=2_700) == 2_700
    assert gate.slot(at_ms=2_700) == 3_700


@pytest.mark.parametrize("per_minute", [7, 13, 59, 977, 29_999])
def test_rounding_gives_no_slot_too_early(per_minute: int) -> None:
    gate = taker(Limits(requests_per_minute=per_minute))

    slots = gate.slots(50)

    assert all(slot * per_minute >= number * 60_000 for number, slot in enumerate(slots))
    assert slots[-1] * per_minute < 49 * 60_000 + 2 * per_minute


def test_model_without_a_rate_has_no_slots_to_wait_for() -> None:
    assert Gate().interval_us(Limits(), NOW_MS) == 0
    assert taker(Limits()).slots(1_000, tokens=1_000_000) == [0] * 1_000


# ------------------------------------------------------------------ slots of tokens


def test_tokens_of_a_minute_are_due_at_once() -> None:
    assert taker(TOKENS).slots(5, tokens=2_000) == [0, 0, 0, 20_000, 40_000]


def test_few_tokens_wait_for_less() -> None:
    gate = taker(TOKENS)
    gate.slot(tokens=6_000)

    assert gate.slot(tokens=100) == 1_000
    assert gate.slot(tokens=1) == 1_010


def test_call_of_more_tokens_than_a_minute_has_waits_for_an_idle_gate_only() -> None:
    gate = taker(TOKENS)

    assert gate.slot(tokens=9_000) == 0
    assert gate.slot(tokens=9_000) == 90_000


@pytest.mark.parametrize("per_minute", [7_000, 13_001, 999_999])
def test_rounding_of_tokens_gives_no_slot_too_early(per_minute: int) -> None:
    gate = taker(Limits(tokens_per_minute=per_minute))
    gate.slot(tokens=per_minute)

    slots = gate.slots(50, tokens=11)

    assert all(
        slot * per_minute >= number * 11 * 60_000 for number, slot in enumerate(slots, start=1)
    )


def test_time_of_tokens_is_rounded_up_and_of_returned_ones_down() -> None:
    gate, limits = Gate(), Limits(tokens_per_minute=7_000)

    assert gate.tokens_us(limits, 1, NOW_MS) == 8_572
    assert gate.tokens_us(limits, -1, NOW_MS) == -8_571


def test_later_of_both_limits_counts() -> None:
    gate = taker(Limits(requests_per_minute=60, tokens_per_minute=6_000, burst=1))

    assert gate.slots(3, tokens=3_000) == [0, 1_000, 30_000]
    assert gate.slots(2, at_ms=120_000, tokens=10) == [120_000, 121_000]


# ------------------------------------------------------------------ shards


def test_gate_hotter_than_a_partition_has_as_many_shards_as_it_needs() -> None:
    rates = (0, 1, SHARD_PER_MINUTE, SHARD_PER_MINUTE + 1, 3 * SHARD_PER_MINUTE)

    assert [Limits(requests_per_minute=rate).shards for rate in rates] == [1, 1, 1, 2, 3]


def test_shards_share_rate_burst_and_tokens() -> None:
    limits = Limits(requests_per_minute=60_000, tokens_per_minute=6_000_000, burst=10)

    assert limits.shards == 2
    assert Gate().interval_us(limits, NOW_MS) == 2_000
    assert taker(limits).slots(8) == [0] * 5 + [2, 4, 6]
    assert taker(limits).slots(3, tokens=3_000_000) == [0, 60_000, 120_000]


def test_burst_smaller_than_the_shards_is_one_for_each() -> None:
    limits = Limits(requests_per_minute=90_000, burst=2)

    assert taker(limits).slots(3) == [0, 2, 4]


# ------------------------------------------------------------------ shut


def test_slots_up_to_ten_minutes_ahead_are_taken_and_none_beyond() -> None:
    gate = taker(Limits(requests_per_minute=1))

    assert gate.slots(11) == [minute * 60_000 for minute in range(11)]
    before = gate.now
    assert gate.take() == Shut(NOW_MS + FURTHEST_SLOT_MS, far=True)
    assert gate.now == before
    assert gate.slot(at_ms=60_000) == 11 * 60_000


def test_tokens_far_ahead_shut_the_gate_too() -> None:
    gate = taker(TOKENS, next_token_at_us=(NOW_MS + FURTHEST_SLOT_MS) * 1000 + 1)

    assert gate.take(tokens=1) == Shut(NOW_MS + FURTHEST_SLOT_MS, far=True)


def test_paused_gate_is_looked_at_again_after_half_a_minute() -> None:
    gate = taker(paused=True, closed_until_ms=NOW_MS + 1)

    assert gate.take() == Shut(NOW_MS + PAUSE_LOOK_MS, paused=True)


def test_closed_gate_opens_when_its_time_is_up() -> None:
    gate = taker(closed_until_ms=NOW_MS + 500)

    assert gate.take(at_ms=499) == Shut(NOW_MS + 500)
    assert gate.slot(at_ms=500) == 500


# ------------------------------------------------------------------ cool-down


def close(gate: Gate, *, now_ms: int = NOW_MS, wait_ms: int = 10_000) -> Gate:
    return gate.closed(PER_SECOND, now_ms=now_ms, until_ms=now_ms + wait_ms)


def test_close_halves_the_rate_and_ends_what_was_given_out() -> None:
    closed = close(Gate(version=4, next_request_at_us=(NOW_MS + 500_000) * 1000))

    assert (closed.version, closed.closed_until_ms) == (5, NOW_MS + 10_000)
    assert closed.rate_permille(NOW_MS + 10_000) == 500
    assert closed.interval_us(PER_SECOND, NOW_MS + 10_000) == 2_000_000
    assert closed.next_request_at_us == (NOW_MS + 10_000) * 1000


def test_close_after_close_halves_down_to_the_lowest_rate() -> None:
    rates, gate = [], Gate()
    for _ in range(8):
        gate = close(gate)
        rates.append(gate.rate_permille(NOW_MS))

    assert rates == [500, 250, 125, 62, 31, 20, 20, 20]
    assert min(rates) == LOWEST_RATE_PERMILLE


def test_close_never_shortens_a_longer_one() -> None:
    closed = close(Gate(closed_until_ms=NOW_MS + 60_000))

    assert closed.closed_until_ms == NOW_MS + 60_000


def test_close_by_a_probe_ends_with_its_own_time() -> None:
    closed = close(Gate(probing=True, closed_until_ms=NOW_MS + PROBE_MS))

    assert (closed.closed_until_ms, closed.probing) == (NOW_MS + 10_000, True)


def test_model_without_a_rate_is_closed_and_nothing_else() -> None:
    closed = Gate().closed(Limits(), now_ms=NOW_MS, until_ms=NOW_MS + 1_000)

    assert closed == Gate(version=1, closed_until_ms=NOW_MS + 1_000)


def test_gate_opens_without_a_burst_and_at_half_the_rate() -> None:
    gate = taker(replace(PER_SECOND, burst=10))
    gate.slots(200)
    gate.world.gates[KEY] = gate.now.closed(gate.limits, now_ms=NOW_MS, until_ms=NOW_MS + 9_000)

    assert gate.slots(3, at_ms=9_000) == [9_000, 11_000, 13_000]


def test_tokens_of_a_gate_that_opens_are_used_up() -> None:
    gate = taker(TOKENS)
    gate.world.gates[KEY] = gate.now.closed(TOKENS, now_ms=NOW_MS, until_ms=NOW_MS + 9_000)

    assert gate.slots(2, at_ms=9_000, tokens=100) == [11_000, 13_000]


def test_halving_lets_no_second_burst_through() -> None:
    gate = taker(replace(PER_SECOND, burst=60))
    starts = gate.slots(60)
    for at_ms in (1_000, 2_000, 3_000):
        gate.world.gates[KEY] = gate.now.closed(
            gate.limits, now_ms=NOW_MS + at_ms, until_ms=NOW_MS + at_ms + 500
        )
        starts += [slot for slot in gate.slots(60, at_ms=at_ms + 999) if slot <= at_ms + 999]

    assert len(starts) <= 60 + 4


def test_rate_returns_to_just_below_what_was_refused_and_probes_on_from_there() -> None:
    gate = close(Gate())  # until 10 s from now

    def rate(at_ms: int) -> int:
        return gate.rate_permille(NOW_MS + at_ms)

    assert [rate(ms) for ms in (0, 10_000)] == [500] * 2
    assert [rate(10_000 + ms) for ms in (1_000, 2_500, RETURNS_IN_MS)] == [590, 725, 950]
    there = 10_000 + RETURNS_IN_MS
    assert [rate(there + ms) for ms in (3_000, 75_000, NEARS_IN_MS - 1)] == [951, 975, 999]
    assert [rate(there + ms) for ms in (NEARS_IN_MS, 2 * NEARS_IN_MS, 10**7)] == [1_000] * 3


def test_rate_grows_on_beyond_what_was_refused_until_it_is_the_configured_one() -> None:
    gate = Gate(refused_permille=100, returns_from_ms=NOW_MS)
    there = NOW_MS + RETURNS_IN_MS + NEARS_IN_MS

    assert gate.rate_permille(there - 1) == 99
    rates = [gate.rate_permille(there + n * PROBES_EVERY_MS) for n in (0, 1, 50, 899, 900, 9_999)]
    assert rates == [100, 101, 150, 999, 1_000, 1_000]


def test_close_remembers_the_rate_that_was_used() -> None:
    at_ms = NOW_MS + 10_000 + RETURNS_IN_MS + NEARS_IN_MS // 5
    again = close(close(Gate()), now_ms=at_ms)

    assert again.refused_permille == 960
    assert again.rate_permille(at_ms + 10_000) == 480


@dataclass
class _Vendor:
    """A true limit of its own, as a bucket; calls go to it as the gate gives slots."""

    per_minute: float
    burst: int = 10
    answered: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def play(self, limits: Limits, *, until_ms: int) -> None:
        gate, tokens, filled_ms, at_ms = Gate(), float(self.burst), 0, 0
        while at_ms < until_ms:
            slot_us = gate.slot_at_us(limits, 0, at_ms * 1000)
            next_us = max(gate.next_request_at_us, at_ms * 1000)
            gate = replace(gate, next_request_at_us=next_us + gate.interval_us(limits, at_ms))
            at_ms = -(-slot_us // 1000)
            tokens = min(self.burst, tokens + (at_ms - filled_ms) * self.per_minute / 60_000)
            filled_ms = at_ms
            if tokens >= 1:
                tokens -= 1
                self.answered.append(at_ms)
                continue
            self.refused.append(at_ms)
            gate = gate.closed(limits, now_ms=at_ms, until_ms=at_ms + 1_000)
            at_ms += 1_000


@pytest.mark.parametrize("true_share", [0.5, 0.8, 0.1, 1.0])
def test_true_limit_below_the_configured_one_is_found_and_used(true_share: float) -> None:
    limits = Limits(requests_per_minute=600, burst=5)
    vendor = _Vendor(600 * true_share)

    vendor.play(limits, until_ms=10 * 60_000)

    for minute in range(1, 10):
        begins, ends = minute * 60_000, (minute + 1) * 60_000
        answered = sum(begins <= at < ends for at in vendor.answered)
        assert answered >= 0.9 * vendor.per_minute, minute
    assert len(vendor.refused) <= (20 if true_share < 1 else 0)
    assert sum(at >= 2 * 60_000 for at in vendor.refused) <= 8


# ------------------------------------------------------------------ outages


def test_some_failures_in_a_row_are_an_outage_and_fewer_are_none() -> None:
    gate = taker()
    first = gate.take()
    assert isinstance(first, Ticket)

    for _ in range(OPEN_AFTER_FAILURES - 1):
        gate.gates.failed(KEY, PER_SECOND, first, now_ms=NOW_MS)
    assert isinstance(gate.take(), Ticket)
    gate.gates.failed(KEY, PER_SECOND, first, now_ms=NOW_MS)

    assert gate.take() == Shut(NOW_MS + OUTAGE_FIRST_MS)
    assert (gate.now.version, gate.now.probing) == (1, True)


def test_outage_lasts_longer_with_each_probe_that_fails_up_to_the_longest() -> None:
    def lasts_ms(failures: int) -> int:
        down = Gate(failures=failures, probing=True).down(PER_SECOND, NOW_MS)
        assert down is not None
        return down.closed_until_ms - NOW_MS

    lasting = [lasts_ms(OPEN_AFTER_FAILURES + n) for n in (*range(9), 500)]

    assert lasting == [15_000] * 4 + [30_000, 60_000, 120_000, 240_000, 300_000, 300_000]
    assert OUTAGE_LONGEST_MS == 300_000
    assert Gate(failures=OPEN_AFTER_FAILURES - 1).down(PER_SECOND, NOW_MS) is None


def test_failures_of_many_calls_at_once_make_an_outage_no_longer() -> None:
    down = Gate(failures=OPEN_AFTER_FAILURES + 20).down(PER_SECOND, NOW_MS)

    assert down is not None
    assert down.closed_until_ms == NOW_MS + OUTAGE_FIRST_MS
    assert down.failures == OPEN_AFTER_FAILURES


def test_probe_goes_as_soon_as_the_outage_may_be_over() -> None:
    gate = taker(replace(PER_SECOND, burst=10), failures=5)
    gate.slots(100)
    down = gate.now.down(gate.limits, NOW_MS)
    assert down is not None
    gate.world.gates[KEY] = down

    assert gate.take(at_ms=14_999) == Shut(NOW_MS + 15_000)
    assert gate.slot(at_ms=15_000) == 15_000
    assert gate.take(at_ms=15_000) == Shut(NOW_MS + 15_000 + PROBE_MS)
    assert gate.slot(at_ms=15_000 + PROBE_MS) == 15_000 + PROBE_MS  # the first one died


def test_probe_takes_no_slot_ahead_of_its_time() -> None:
    gate = taker(probing=True, next_request_at_us=(NOW_MS + 700) * 1000 - 1)
    before = gate.now

    assert gate.take() == Shut(NOW_MS + 700)
    assert gate.now == before
    assert gate.slot(at_ms=700) == 700


def test_answer_opens_a_gate_that_was_probed_and_ends_its_slots() -> None:
    down = Gate(version=3, failures=7, probing=True, closed_until_ms=NOW_MS + 50_000)

    assert down.up() == Gate(version=4)


def test_answer_ends_a_row_of_failures_and_closes_or_opens_nothing() -> None:
    gate = Gate(version=3, failures=4, closed_until_ms=NOW_MS + 50_000)

    assert gate.up() == replace(gate, failures=0)


# ------------------------------------------------------------------ tickets


def test_kept_slot_may_be_used_from_its_moment_until_five_seconds_later() -> None:
    ticket = Ticket(NOW_MS, 1)

    assert SLOT_LIVES_MS == 5_000
    assert [ticket.usable(NOW_MS + ms) for ms in (-1, 0, 4_999, 5_000)] == [
        *(False, True),
        *(True, False),
    ]


# ------------------------------------------------------------------ names and estimates


def body(text: str = "hello", **options: object) -> bytes:
    return json.dumps({"input": text, "options": options}).encode()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_estimate_is_a_quarter_of_the_bytes_and_the_answer_that_is_allowed(name: str) -> None:
    asked = body("x" * 4_000, **{name: 50})

    assert sum(estimated_tokens(asked)) == -(-len(asked) // 4) + 50


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"max_tokens": 5_000.0}, 5_000),
        ({"max_tokens": 0.5}, 1),
        ({"max_tokens": 1, "max_completion_tokens": 5_000}, 5_000),
        ({"max_tokens": 1.7e308}, MOST_ANSWER_TOKENS),
        ({"max_tokens": 10**99}, MOST_ANSWER_TOKENS),
    ],
    ids=str,
)
def test_no_spelling_of_the_limit_makes_the_estimate_smaller(
    options: dict[str, object], allowed: int
) -> None:
    assert estimated_tokens(body("x", **options))[1] == allowed


@pytest.mark.parametrize(
    "options",
    [{}, {"max_tokens": "9"}, {"max_tokens": 0}, {"max_tokens": True}, {"n": 9}],
    ids=str,
)
def test_answer_of_open_length_is_estimated(options: dict[str, object]) -> None:
    asked = body("x", **options)

    assert sum(estimated_tokens(asked)) == -(-len(asked) // 4) + ANSWER_TOKENS


def test_gate_is_of_the_vendors_model() -> None:
    assert key_of("openai", "gpt-4.1") == "gate#openai#gpt-4.1"


def test_rooms_are_those_with_a_limit() -> None:
    def rooms(vendor: int, model: int) -> tuple[Room, ...]:
        return rooms_of(
            "v",
            Vendor(max_concurrency=vendor),
            Model(vendor="v", vendor_model="m.1", version="1", max_concurrency=model),
        )

    assert rooms(0, 0) == ()
    assert rooms(9, 0) == (Room("v", "all", 9),)
    assert rooms(0, 2) == (Room("v", "model:m.1", 2),)
    assert rooms(9, 2) == (Room("v", "all", 9), Room("v", "model:m.1", 2))


# ------------------------------------------------------------------ the promise


@dataclass(frozen=True)
class Turn:
    """What a worker does when its turn has come."""

    worker: int
    after_ms: int
    what: str
    """`take`, `keep`, `close` or `fail`."""
    ms: int
    """How late it uses a kept slot, or how long it closes."""


TURNS = st.lists(
    st.builds(
        Turn,
        worker=st.integers(0, 4),
        after_ms=st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 30_000)),
        what=st.sampled_from(["take", "take", "take", "take", "keep", "keep", "close", "fail"]),
        ms=st.integers(0, SLOT_LIVES_MS - 1),
    ),
    min_size=10,
    max_size=120,
)
SKEWS = st.lists(st.integers(-2_000, 2_000), min_size=5, max_size=5)
LIMITS = st.builds(
    Limits,
    requests_per_minute=st.sampled_from([1, 7, 60, 600, 6_000]),
    burst=st.sampled_from([1, 3, 10, 60]),
)


@dataclass
class Play:
    """Workers at one gate, each with a clock that is wrong by its skew. Times are true ones."""

    limits: Limits
    skews: list[int]
    turns: list[Turn]
    late: bool = True
    """Kept slots are used late, too."""

    def starts(self) -> list[int]:
        """When calls begin: slots that count no more at their moment begin none."""
        world = World()
        gates = InMemoryGates(world)
        plans: list[tuple[int, int, Ticket]] = []
        starts: list[int] = []
        true_ms = NOW_MS
        for turn in [*self.turns, Turn(0, 3_600_000, "end", 0)]:
            true_ms += turn.after_ms
            for plan in sorted(plans, key=lambda plan: plan[:2]):
                at_ms, worker, ticket = plan
                if at_ms <= true_ms:
                    plans.remove(plan)
                    if gates.still_open(KEY, ticket, now_ms=at_ms + self.skews[worker]):
                        starts.append(at_ms)
            skew_ms = self.skews[turn.worker]
            now_ms = true_ms + skew_ms
            ticket_now = Ticket(now_ms, world.gates.get(KEY, Gate()).version)
            if turn.what == "close":
                gates.close(
                    KEY, self.limits, ticket_now, now_ms=now_ms, until_ms=now_ms + 5_000 + turn.ms
                )
            elif turn.what == "fail":
                gates.failed(KEY, self.limits, ticket_now, now_ms=now_ms)
            elif turn.what in {"take", "keep"}:
                taken = gates.take(
                    KEY,
                    self.limits,
                    tokens=0,
                    now_ms=now_ms,
                    probe_ms=PROBE_MS,
                    furthest_ms=FURTHEST_SLOT_MS,
                )
                if isinstance(taken, Shut):
                    continue
                if taken.slot_at_ms <= now_ms:
                    starts.append(true_ms)
                    continue
                late_ms = turn.ms if turn.what == "keep" and self.late else 0
                plans.append((taken.slot_at_ms - skew_ms + late_ms, turn.worker, taken))
        return sorted(starts)


def worst_excess(starts: list[int], limits: Limits, slack_ms: int) -> float:
    """By how much the fullest window holds more than rate x (window + slack) + burst."""
    rate = limits.requests_per_minute / 60_000
    return max(
        (
            bisect.bisect_right(starts, last)
            - first_number
            - (rate * (last - first + slack_ms) + limits.burst)
            for first_number, first in enumerate(starts)
            for last in starts[first_number:]
        ),
        default=0,
    )


@settings(max_examples=300, deadline=None)
@given(limits=LIMITS, skews=SKEWS, turns=TURNS)
def test_starts_in_any_window_are_within_the_rate_with_clocks_that_differ(
    limits: Limits, skews: list[int], turns: list[Turn]
) -> None:
    starts = Play(limits, skews, turns, late=False).starts()

    assert worst_excess(starts, limits, slack_ms=5_000) <= 0


@settings(max_examples=300, deadline=None)
@given(limits=LIMITS, turns=TURNS)
def test_starts_in_any_window_are_within_the_rate_with_slots_used_late(
    limits: Limits, turns: list[Turn]
) -> None:
    starts = Play(limits, [0] * 5, turns).starts()

    assert worst_excess(starts, limits, slack_ms=5_000) <= 0


@settings(max_examples=300, deadline=None)
@given(limits=LIMITS, skews=SKEWS, turns=TURNS)
def test_what_clocks_differ_by_adds_to_how_late_slots_are_used(
    limits: Limits, skews: list[int], turns: list[Turn]
) -> None:
    starts = Play(limits, skews, turns).starts()
    differ_ms = max(skews) - min(skews)

    assert worst_excess(starts, limits, slack_ms=SLOT_LIVES_MS + differ_ms) <= 0


@settings(max_examples=200, deadline=None)
@given(turns=TURNS)
def test_without_closes_and_late_use_the_window_needs_no_slack(turns: list[Turn]) -> None:
    takes = [replace(turn, what="take") for turn in turns]
    limits = Limits(requests_per_minute=60, burst=3)
    starts = Play(limits, [0] * 5, takes).starts()

    assert worst_excess(starts, limits, slack_ms=0) <= 0
    assert all(a <= b for a, b in pairwise(starts))
