"""Gates: slots, cool-down, outages and rooms, on the fake and on DynamoDB."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from sluiceway.adapters.dynamodb import Table, from_item, to_item
from sluiceway.adapters.dynamodb_gates import DynamoDBGates, gate_of
from sluiceway.domain import job as transitions
from sluiceway.domain.gate import (
    FURTHEST_SLOT_MS,
    OPEN_AFTER_FAILURES,
    OUTAGE_FIRST_MS,
    PAUSE_LOOK_MS,
    PAUSED_SHARDS,
    SHARD_PER_MINUTE,
    Gate,
    Limits,
    Room,
    Shut,
    key_of,
)
from sluiceway.domain.ticket import Ticket

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import make_tables, store_on
from tests.contract.test_gate_promise import worst_excess
from tests.fakes.examples import a_job
from tests.fakes.in_memory import NOW_MS, InMemoryGates, InMemoryJobs, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.job import Job
    from sluiceway.domain.lease import Lease
    from sluiceway.ports import Gates, JobStore

    from tests.contract.harness import Store
    from tests.fakes.in_memory import FakeClock

T = TypeVar("T")

KEY = key_of("simulator", "sim-chat-1")
PER_SECOND = Limits(requests_per_minute=60)
FAST = Limits(requests_per_minute=6_000)
TOKENS = Limits(tokens_per_minute=6_000)
BOTH = Limits(requests_per_minute=60, tokens_per_minute=6_000, burst=3)
FAST_BOTH = Limits(requests_per_minute=600, tokens_per_minute=60_000, burst=5)
UNLIMITED = Limits()
AROUND_MS = (0, 3_000, 63_000, 200_000)
PROBE_MS = 65_000
FIRST = Ticket(NOW_MS, 0)

_prefixes = itertools.count(1)


class Counted:
    """A client that counts its calls."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**request: Any) -> Any:
            self.calls[name] += 1
            return method(**request)

        return call


class OnDynamoDB:
    """Gates in tables, with a look at the rows."""

    def __init__(self, client: DynamoDBClient, clock: FakeClock, *, patient: bool = False) -> None:
        self.client = client
        self.counted = Counted(client)
        tables = make_tables(client, f"gates-{next(_prefixes)}-{secrets.token_hex(4)}")
        self.name = tables.names.coordination
        pause = time.sleep if patient else lambda _: None
        rand = random.random if patient else lambda: 0.0
        self._waits: dict[str, Any] = {"pause": pause, "rand": rand}
        self.store: Store = store_on(client, tables, clock, **self._waits)
        self.jobs: JobStore = self.store.jobs

    @property
    def calls(self) -> Counter[str]:
        return self.counted.calls

    def gates(self, client: Any = None, *, shard: float = 0.0) -> Gates:
        """Those of another process."""
        table = Table(client or self.counted, **self._waits)
        return DynamoDBGates(table, self.name, rand=lambda: shard)

    def row(self, key: str = KEY) -> Gate:
        return gate_of(self._read(key))

    def put(self, gate: Gate, key: str = KEY) -> None:
        values = {name: value for name, value in asdict(gate).items() if value or name == "version"}
        item = to_item({"coordination_key": key, **values})
        self.client.put_item(TableName=self.name, Item=item)

    def inside(self, room: Room) -> Mapping[str, int]:
        inside: Mapping[str, int] = (self._read(f"running#{room.vendor}") or {}).get(room.name, {})
        return inside

    def _read(self, key: str) -> dict[str, Any] | None:
        answer = self.client.get_item(
            TableName=self.name, Key=to_item({"coordination_key": key}), ConsistentRead=True
        )
        return from_item(answer["Item"]) if "Item" in answer else None


class InMemory:
    """The fake, with a look at its world."""

    def __init__(self, clock: FakeClock) -> None:
        self.world = World()
        self.jobs: JobStore = InMemoryJobs(self.world, clock=clock)

    def gates(self) -> Gates:
        return InMemoryGates(self.world)

    def row(self, key: str = KEY) -> Gate:
        return self.world.gates.get(key, Gate())

    def put(self, gate: Gate, key: str = KEY) -> None:
        self.world.gates[key] = gate

    def inside(self, room: Room) -> Mapping[str, int]:
        return self.world.rooms.get((room.vendor, room.name), {})


Place = InMemory | OnDynamoDB


@pytest.fixture(params=["in_memory", "moto", "dynamodb_local"])
def place(request: pytest.FixtureRequest, clock: FakeClock) -> Place:
    """The fake, and the real adapter on each emulator."""
    if request.param == "in_memory":
        return InMemory(clock)
    return OnDynamoDB(request.getfixturevalue(f"{request.param}_client"), clock)


@pytest.fixture
def tables(dynamodb: DynamoDBClient, clock: FakeClock) -> OnDynamoDB:
    """The real adapter on each emulator."""
    return OnDynamoDB(dynamodb, clock)


@pytest.fixture(params=["in_memory", "dynamodb_local"])
def crowded(request: pytest.FixtureRequest, clock: FakeClock) -> Place:
    """Where threads may meet."""
    if request.param == "in_memory":
        return InMemory(clock)
    return OnDynamoDB(request.getfixturevalue("dynamodb_local_client"), clock, patient=True)


@pytest.fixture
def gates(place: Place) -> Gates:
    return place.gates()


def take(
    gates: Gates,
    at_ms: int = 0,
    *,
    limits: Limits = PER_SECOND,
    tokens: int = 0,
    key: str = KEY,
    furthest_ms: int = FURTHEST_SLOT_MS,
) -> Ticket | Shut:
    return gates.take(
        key,
        limits,
        tokens=tokens,
        now_ms=NOW_MS + at_ms,
        probe_ms=PROBE_MS,
        furthest_ms=furthest_ms,
    )


def ticket(gates: Gates, at_ms: int = 0, **named: Any) -> Ticket:
    taken = take(gates, at_ms, **named)
    assert isinstance(taken, Ticket)
    return taken


def slot(gates: Gates, at_ms: int = 0, **named: Any) -> int:
    """In ms from the start."""
    return ticket(gates, at_ms, **named).slot_at_ms - NOW_MS


def close(gates: Gates, used: Ticket, *, limits: Limits = PER_SECOND, wait_ms: int = 9_000) -> bool:
    return gates.close(KEY, limits, used, now_ms=NOW_MS, until_ms=NOW_MS + wait_ms)


def fail(gates: Gates, used: Ticket, at_ms: int = 0, *, limits: Limits = PER_SECOND) -> None:
    gates.failed(KEY, limits, used, now_ms=NOW_MS + at_ms)


def at_once(*calls: Callable[[], T]) -> list[T]:
    line = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        line.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


# ------------------------------------------------------------------ slots


def test_slots_are_an_interval_apart_whoever_takes_them(place: Place) -> None:
    one, other = place.gates(), place.gates()

    assert [slot(one), slot(other), slot(one), slot(other)] == [0, 1_000, 2_000, 3_000]
    assert [slot(other, at_ms=2_500), slot(one, at_ms=9_000)] == [4_000, 9_000]


def test_burst_is_due_at_once(gates: Gates) -> None:
    limits = replace(PER_SECOND, burst=3)

    slots = [slot(gates, limits=limits) for _ in range(5)]

    assert slots == [0, 0, 0, 1_000, 2_000]


@pytest.mark.parametrize("processes", [1, 11])
def test_limit_of_ten_lets_ten_through_whoever_has_a_copy(  # case R13
    place: Place, processes: int
) -> None:
    limits = Limits(requests_per_minute=10, burst=10)
    gates = [place.gates() for _ in range(processes)]

    slots = [slot(gates[number % processes], limits=limits) for number in range(12)]

    assert slots == [0] * 10 + [6_000, 12_000]


@pytest.mark.parametrize("jump_ms", [6_000, 3_600_000])
def test_clock_that_jumped_ahead_shuts_the_gate_no_longer_than_it_jumped(
    place: Place, jump_ms: int
) -> None:
    jumped, right = place.gates(), place.gates()
    assert slot(jumped, jump_ms) == jump_ms

    at_ms, looks = 0, 0
    while isinstance(taken := take(right, at_ms), Shut):
        assert at_ms < taken.until_ms - NOW_MS <= at_ms + FURTHEST_SLOT_MS
        at_ms, looks = taken.until_ms - NOW_MS, looks + 1

    assert taken.slot_at_ms == NOW_MS + jump_ms + 1_000
    assert at_ms <= jump_ms
    assert looks <= 1 + jump_ms // FURTHEST_SLOT_MS


def test_line_that_a_wrong_clock_made_too_long_ends_with_a_pause(place: Place) -> None:
    ticket(place.gates(), 3_600_000)
    gates = place.gates()
    assert isinstance(take(gates), Shut)

    gates.pause(KEY, PER_SECOND)
    gates.resume(KEY, PER_SECOND, now_ms=NOW_MS)

    assert slot(gates) == 1_000


@pytest.mark.parametrize(
    ("jump_ms", "taken"),
    [(-6_000, Ticket(NOW_MS + 1_000, 0)), (-3_600_000, Shut(NOW_MS - 3_000_000, far=True))],
)
def test_clock_that_jumped_back_takes_nothing_from_the_others(
    place: Place, jump_ms: int, taken: Ticket | Shut
) -> None:
    jumped, right = place.gates(), place.gates()
    assert slot(right) == 0

    assert take(jumped, jump_ms) == taken

    after = 2_000 if isinstance(taken, Ticket) else 1_000
    assert slot(right) == after


def test_tokens_and_requests_are_counted_both(place: Place) -> None:
    one, other = place.gates(), place.gates()

    slots = [slot(gates, limits=BOTH, tokens=2_000) for gates in (one, other, one, other)]

    assert slots == [0, 0, 0, 20_000]
    assert slot(one, limits=BOTH, tokens=0) == 20_000
    row = place.row()
    assert row.next_request_at_us == (NOW_MS + 22_000) * 1000  # two calls waited for tokens
    assert row.next_token_at_us == (NOW_MS + 80_000) * 1000


@pytest.mark.parametrize(("request_ms", "token_ms"), list(itertools.product(AROUND_MS, AROUND_MS)))
@pytest.mark.parametrize("tokens", [100, 9_000])
def test_row_of_a_gate_that_had_one_limit_is_gone_on_from(
    place: Place, request_ms: int, token_ms: int, tokens: int
) -> None:
    row = Gate(
        next_request_at_us=(NOW_MS + request_ms) * 1000 if request_ms else 0,
        next_token_at_us=(NOW_MS + token_ms) * 1000 if token_ms else 0,
    )
    place.put(row)

    slots = [slot(place.gates(), limits=BOTH, tokens=tokens) for _ in range(3)]

    expected = []
    for _ in range(3):
        slot_us, row = row.taken(BOTH, tokens, NOW_MS * 1000)
        expected.append(slot_us // 1000 - NOW_MS)
    assert slots == expected
    assert place.row() == row


@pytest.mark.parametrize("limits", [PER_SECOND, TOKENS], ids=str)
def test_limit_that_goes_and_comes_back_is_counted_from_where_it_was(
    place: Place, limits: Limits
) -> None:
    gates = place.gates()
    for _ in range(2):
        ticket(gates, limits=BOTH, tokens=10)
    for _ in range(30):
        ticket(gates, limits=limits, tokens=300)
    row = place.row()

    slot_us, after = row.taken(BOTH, 2_000, NOW_MS * 1000)

    assert slot(gates, limits=BOTH, tokens=2_000) == slot_us // 1000 - NOW_MS
    assert place.row() == after


@pytest.mark.parametrize(
    ("back", "tokens"), [(0, 4_000), (4_100, 4_500)], ids=["more waits", "nothing waits"]
)
def test_guess_which_limit_a_call_waits_for_is_no_older_than_the_row(
    place: Place, back: int, tokens: int
) -> None:
    one, other = place.gates(), place.gates()
    first, last = (one, other) if back else (other, one)
    ticket(last, limits=BOTH, tokens=2_000)
    for _ in range(2):
        used = ticket(first, limits=BOTH, tokens=2_000)
    if back:
        ticket(other, limits=BOTH, tokens=1)
        one.settle(KEY, BOTH, used, tokens=back, now_ms=NOW_MS)
    _, after = place.row().taken(BOTH, tokens, (NOW_MS + 5_000) * 1000)

    ticket(last, 5_000, limits=BOTH, tokens=tokens)

    assert place.row() == after


@pytest.mark.parametrize("what", ["close", "outage"])
def test_gate_that_opens_again_keeps_both_limits(place: Place, what: str) -> None:
    gates = place.gates()
    used = ticket(gates, limits=BOTH, tokens=10)
    ticket(gates, limits=BOTH, tokens=10)
    if what == "close":
        close(gates, used, limits=BOTH)
    else:
        down(place, limits=BOTH)
        gates.worked(KEY, ticket(gates, OUTAGE_FIRST_MS, limits=BOTH))
    slot_us, after = place.row().taken(BOTH, 2_000, (NOW_MS + OUTAGE_FIRST_MS) * 1000)

    slot_ms = slot(gates, OUTAGE_FIRST_MS, limits=BOTH, tokens=2_000)

    assert slot_ms == -(-slot_us // 1000) - NOW_MS
    assert place.row() == after


def test_each_vendors_model_has_a_gate_of_its_own(gates: Gates) -> None:
    keys = ["gate#a#m", "gate#b#m", "gate#a#n"]

    assert [slot(gates, key=key) for key in keys * 2] == [0, 0, 0, 1_000, 1_000, 1_000]


def test_slots_tell_the_gates_version(place: Place) -> None:
    place.put(Gate(version=7))

    assert ticket(place.gates()) == Ticket(NOW_MS, 7)


def test_slots_are_taken_ten_minutes_ahead_and_no_further(place: Place) -> None:
    ahead_us = (NOW_MS + FURTHEST_SLOT_MS) * 1000
    place.put(Gate(next_request_at_us=ahead_us))
    gates = place.gates()

    assert slot(gates) == FURTHEST_SLOT_MS
    before = place.row()
    assert take(gates) == take(place.gates()) == Shut(NOW_MS + FURTHEST_SLOT_MS, far=True)
    assert place.row() == before


@pytest.mark.parametrize("burst", [1, 10])
def test_slots_are_taken_as_far_ahead_as_the_taker_says(place: Place, burst: int) -> None:
    """Its own burst is due at once, however far ahead that makes the row."""
    limits = Limits(requests_per_minute=6, burst=burst)
    gates = place.gates()

    taken = [take(place.gates(), limits=limits, furthest_ms=15_000) for _ in range(burst + 2)]

    assert [one.slot_at_ms - NOW_MS for one in taken if isinstance(one, Ticket)] == [
        *([0] * burst),
        10_000,
    ]
    before = place.row()
    assert taken[-1] == Shut(NOW_MS + 15_000, far=True)
    assert take(gates, limits=limits, furthest_ms=19_999) == Shut(NOW_MS + 19_999, far=True)
    assert place.row() == before
    assert slot(gates, limits=limits, furthest_ms=20_000) == 20_000


def test_line_that_others_made_too_long_meanwhile_is_not_made_longer(place: Place) -> None:
    gates = place.gates()
    ticket(gates)
    line = Gate(next_request_at_us=(NOW_MS + FURTHEST_SLOT_MS) * 1000 + 1)
    place.put(line)

    assert take(gates) == Shut(NOW_MS + FURTHEST_SLOT_MS, far=True)
    assert place.row() == line


@pytest.mark.parametrize(
    ("gate", "shut"),
    [
        (Gate(closed_until_ms=NOW_MS + 1), Shut(NOW_MS + 1)),
        (Gate(paused=True), Shut(NOW_MS + PAUSE_LOOK_MS, paused=True)),
        (Gate(paused=True, closed_until_ms=NOW_MS + 9), Shut(NOW_MS + PAUSE_LOOK_MS, paused=True)),
    ],
    ids=["closed", "paused", "both"],
)
@pytest.mark.parametrize("limits", [PER_SECOND, TOKENS, UNLIMITED], ids=str)
def test_nobody_takes_a_slot_of_a_shut_gate(
    place: Place, gate: Gate, shut: Shut, limits: Limits
) -> None:
    place.put(gate)

    assert take(place.gates(), limits=limits, tokens=10) == shut
    assert place.gates().look(KEY, now_ms=NOW_MS).shut(NOW_MS) == shut
    assert place.row() == gate


def test_gate_is_open_from_the_moment_that_it_was_closed_until(place: Place) -> None:
    place.put(Gate(version=1, closed_until_ms=NOW_MS + 2_000))

    assert slot(place.gates(), at_ms=2_000) == 2_000
    assert place.gates().look(KEY, now_ms=NOW_MS + 2_000).shut(NOW_MS + 2_000) is None


def test_gate_that_nobody_used_is_open(place: Place) -> None:
    assert place.gates().look(KEY, now_ms=NOW_MS).shut(NOW_MS) is None


def test_rate_that_was_refused_comes_back_with_the_time(place: Place) -> None:
    place.put(Gate(version=1, refused_permille=1_000, returns_from_ms=NOW_MS))
    gates = place.gates()

    slots = [slot(gates, at_ms=ms) for ms in (0, 0, 20_000, 20_000, 200_000, 200_000)]

    # After 20 s 955 thousandths are used, after 200 s all.
    assert slots == [0, 2_000, 20_000, 21_048, 200_000, 201_000]


# ------------------------------------------------------------------ what a take costs


def test_take_is_one_call_when_its_guess_is_right(tables: OnDynamoDB) -> None:
    gates = tables.gates()

    for at_ms in (0, 0, 0, 60_000, 60_000):  # idle, busy, busy, idle, busy
        ticket(gates, at_ms, limits=BOTH, tokens=10)

    assert tables.calls == {"update_item": 5}


def test_take_is_one_call_while_the_same_limit_holds_it_up(tables: OnDynamoDB) -> None:
    one, other = tables.gates(), tables.gates()
    for _ in range(5):
        ticket(one, limits=BOTH, tokens=2_000)
    ticket(other, limits=BOTH, tokens=2_000)  # sees that calls wait for tokens
    tables.calls.clear()

    slots = [slot(gates, limits=BOTH, tokens=2_000) for gates in (one, other, one, other)]

    assert slots == [80_000, 100_000, 120_000, 140_000]
    assert tables.calls == {"update_item": 4}


def test_take_is_two_calls_when_another_limit_holds_it_up_than_it_guessed(
    tables: OnDynamoDB,
) -> None:
    gates = tables.gates()
    ticket(gates, limits=BOTH, tokens=100)
    for _ in range(4):
        ticket(tables.gates(), limits=BOTH, tokens=2_000)
    tables.calls.clear()

    assert slot(gates, limits=BOTH, tokens=200) == 23_000
    assert tables.calls == {"update_item": 2}


def test_take_is_two_calls_when_its_guess_is_wrong(tables: OnDynamoDB) -> None:
    one, other = tables.gates(), tables.gates()
    ticket(one)
    tables.calls.clear()

    ticket(other)  # thinks that nobody was here

    assert tables.calls == {"update_item": 2}


def test_take_under_another_version_is_two_calls(tables: OnDynamoDB) -> None:
    gates = tables.gates()
    ticket(gates)
    tables.put(Gate(version=5, next_request_at_us=NOW_MS * 1000 + 1))
    tables.calls.clear()

    assert ticket(gates).version == 5
    assert tables.calls == {"update_item": 2}


def test_take_of_a_shut_gate_is_one_call_and_none_for_a_second(tables: OnDynamoDB) -> None:
    tables.put(Gate(paused=True))
    gates = tables.gates()

    for at_ms in (0, 500, 999):
        assert isinstance(take(gates, at_ms), Shut)
    assert tables.calls == {"update_item": 1}

    tables.put(Gate())
    assert slot(gates, at_ms=1_000) == 1_000


@pytest.mark.parametrize("tokens", [0, 1_000_000])
def test_model_without_a_rate_costs_one_read(tables: OnDynamoDB, tokens: int) -> None:
    gates = tables.gates()

    slots = [slot(gates, limits=UNLIMITED, tokens=tokens) for _ in range(3)]

    assert slots == [0, 0, 0]
    assert tables.calls == {"get_item": 3}


def test_look_of_the_sweeper_is_a_read_a_second(tables: OnDynamoDB) -> None:
    gates = tables.gates()

    for at_ms in (0, 500, 999, 1_000):
        gates.look(KEY, now_ms=NOW_MS + at_ms)

    assert tables.calls == {"get_item": 2}


def test_take_at_a_gate_that_changes_all_the_time_is_given_up(tables: OnDynamoDB) -> None:
    versions = itertools.count(1)

    class Restless(Counted):
        def __getattr__(self, name: str) -> Any:
            tables.put(Gate(version=next(versions)))
            return super().__getattr__(name)

    client = Restless(tables.client)

    assert take(tables.gates(client)) == Shut(NOW_MS + 1_000)
    assert client.calls == {"update_item": 4}


def test_lost_reply_of_a_take_takes_a_slot_that_stays_unused(tables: OnDynamoDB) -> None:
    client: Any = FaultyClient(tables.client, replies=[timed_out()])

    taken = ticket(tables.gates(client))

    assert taken.slot_at_ms == NOW_MS + 1_000


# ------------------------------------------------------------------ kept slots


def test_kept_slot_counts_while_the_gate_is_as_it_was(place: Place) -> None:
    kept = ticket(place.gates())

    assert place.gates().still_open(KEY, kept, now_ms=NOW_MS)


def test_slot_of_a_gate_that_nobody_wrote_counts(place: Place) -> None:
    assert place.gates().still_open(KEY, FIRST, now_ms=NOW_MS)
    assert not place.gates().still_open(KEY, Ticket(NOW_MS, 1), now_ms=NOW_MS)


@pytest.mark.parametrize(
    "gate",
    [
        Gate(version=1),
        Gate(paused=True),
        Gate(closed_until_ms=NOW_MS + 1),
    ],
    ids=["other version", "paused", "closed"],
)
def test_kept_slot_of_a_gate_that_changed_counts_no_more(place: Place, gate: Gate) -> None:
    place.put(gate)

    assert not place.gates().still_open(KEY, FIRST, now_ms=NOW_MS)


def started(place: Place, number: int = 1) -> tuple[Job, Lease]:
    job = a_job(number)
    submitted: Any = place.jobs.submit(job, shard_caps=[100])
    outcome: Any = place.jobs.start(
        submitted.job,
        token=f"token-{number}",
        lease_ms=60_000,
        now_ms=NOW_MS,
        started=lambda fence: transitions.started(
            submitted.job, fence=fence, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 60_000
        ),
    )
    return outcome.job, outcome.lease


def renew(place: Place, job: Job, lease: Lease, kept: Ticket = FIRST) -> Lease | Shut | None:
    return place.jobs.renew(job, lease, ends_at_ms=NOW_MS + 90_000, gate=(KEY, kept, NOW_MS))


@pytest.mark.parametrize(
    ("gate", "kept"),
    [
        (None, FIRST),
        (Gate(), FIRST),
        (Gate(version=3), Ticket(NOW_MS, 3)),
        (Gate(version=3, closed_until_ms=NOW_MS), Ticket(NOW_MS, 3)),
    ],
    ids=["no row", "unchanged", "later version", "open again"],
)
def test_lease_is_renewed_where_the_slot_counts(
    place: Place, gate: Gate | None, kept: Ticket
) -> None:
    if gate is not None:
        place.put(gate)
    job, lease = started(place)

    assert renew(place, job, lease, kept) == replace(lease, ends_at_epoch_ms=NOW_MS + 90_000)


@pytest.mark.parametrize(
    ("gate", "shut"),
    [
        (Gate(closed_until_ms=NOW_MS + 700), Shut(NOW_MS + 700)),
        (Gate(version=1, closed_until_ms=NOW_MS + 700), Shut(NOW_MS + 700)),
        (Gate(version=1), Shut(NOW_MS)),
        (Gate(paused=True), Shut(NOW_MS + PAUSE_LOOK_MS, paused=True)),
    ],
    ids=["closed", "closed and another version", "other version", "paused"],
)
def test_lease_is_not_renewed_where_the_slot_counts_no_more(
    place: Place, gate: Gate, shut: Shut
) -> None:
    place.put(gate)
    job, lease = started(place)

    assert renew(place, job, lease) == shut
    again = place.jobs.renew(job, lease, ends_at_ms=NOW_MS + 80_000)
    assert again == replace(lease, ends_at_epoch_ms=NOW_MS + 80_000)  # it is still held


def test_missing_row_is_of_no_later_version(place: Place) -> None:
    job, lease = started(place)

    assert renew(place, job, lease, Ticket(NOW_MS, 4)) == Shut(NOW_MS)


def test_cancelled_job_renews_nothing_whatever_the_gate_says(place: Place) -> None:
    place.put(Gate(paused=True))
    job, lease = started(place)
    place.jobs.apply(job, transitions.cancelled(job, now_ms=NOW_MS))

    assert renew(place, job, lease) is None


# ------------------------------------------------------------------ settling


def test_unused_tokens_are_given_back(place: Place) -> None:
    gates = place.gates()
    used = ticket(gates, limits=TOKENS, tokens=6_000)

    gates.settle(KEY, TOKENS, used, tokens=2_000, now_ms=NOW_MS)

    assert slot(gates, limits=TOKENS, tokens=2_000) == 0
    assert slot(place.gates(), limits=TOKENS, tokens=1_000) == 10_000


def test_call_of_over_a_minute_gives_nothing_back(place: Place) -> None:
    gates = place.gates()
    used = ticket(gates, limits=TOKENS, tokens=6_000)
    for _ in range(2):
        ticket(gates, 60_000, limits=TOKENS, tokens=3_000)

    gates.settle(KEY, TOKENS, used, tokens=6_000, now_ms=NOW_MS + 61_000)

    assert slot(gates, 61_000, limits=TOKENS, tokens=1_000) == 70_000


def test_more_tokens_than_estimated_are_taken(place: Place) -> None:
    gates = place.gates()
    used = ticket(gates, limits=TOKENS, tokens=6_000)

    gates.settle(KEY, TOKENS, used, tokens=-1_000, now_ms=NOW_MS)

    assert slot(gates, limits=TOKENS, tokens=1_000) == 20_000


def test_absurd_count_of_tokens_shuts_nobody_out_for_long(place: Place) -> None:
    gates = place.gates()
    used = [ticket(gates, limits=TOKENS, tokens=1_000) for _ in range(5)]

    for one in used:
        gates.settle(KEY, TOKENS, one, tokens=-(10**9), now_ms=NOW_MS)

    assert place.row().next_token_at_us == (NOW_MS + 50_000 + FURTHEST_SLOT_MS) * 1000


@pytest.mark.parametrize("tokens", [900, -900])
def test_nothing_is_settled_with_a_gate_that_closed_meanwhile(place: Place, tokens: int) -> None:
    gates = place.gates()
    used = [ticket(gates, limits=TOKENS, tokens=1_000) for _ in range(5)]
    close(gates, used[0], limits=TOKENS)
    closed = place.row()

    for one in used[1:]:
        gates.settle(KEY, TOKENS, one, tokens=tokens, now_ms=NOW_MS + 1_000)

    assert place.row() == closed


def test_estimate_that_was_right_and_a_model_without_tokens_cost_no_settling(
    tables: OnDynamoDB,
) -> None:
    gates = tables.gates()

    gates.settle(KEY, TOKENS, FIRST, tokens=0, now_ms=NOW_MS)
    gates.settle(KEY, PER_SECOND, FIRST, tokens=1_000, now_ms=NOW_MS)

    assert tables.calls == {}


@pytest.mark.parametrize("limits", [TOKENS, BOTH], ids=str)
def test_lost_reply_of_settling_gives_the_tokens_back_once(
    tables: OnDynamoDB, limits: Limits
) -> None:
    used = ticket(tables.gates(), limits=limits, tokens=6_000)
    client: Any = FaultyClient(tables.client, replies=[timed_out()])

    for gates in (tables.gates(client), tables.gates()):
        gates.settle(KEY, limits, used, tokens=2_000, now_ms=NOW_MS)

    assert tables.row().next_token_at_us == (NOW_MS + 20_000) * 1000


def test_settling_keeps_the_distance_of_the_two_limits(place: Place) -> None:
    gates = place.gates()
    for _ in range(5):
        used = ticket(gates, limits=BOTH, tokens=2_000)

    gates.settle(KEY, BOTH, used, tokens=6_000, now_ms=NOW_MS)

    slots = [slot(place.gates(), limits=BOTH, tokens=200) for _ in range(4)]
    assert slots == [39_000, 40_000, 41_000, 42_000]


def test_settling_is_one_call(tables: OnDynamoDB) -> None:
    gates = tables.gates()
    used = ticket(gates, limits=TOKENS, tokens=6_000)

    gates.settle(KEY, TOKENS, used, tokens=5, now_ms=NOW_MS)

    assert tables.calls == {"update_item": 2}


# ------------------------------------------------------------------ cool-down


def test_close_shuts_the_gate_for_everybody_and_halves_its_rate(place: Place) -> None:
    gates = place.gates()
    used = ticket(gates)

    assert close(gates, used)

    assert take(place.gates()) == take(gates) == Shut(NOW_MS + 9_000)
    row = place.row()
    assert (row.version, row.refused_permille, row.returns_from_ms) == (1, 1_000, NOW_MS + 9_000)
    assert not gates.still_open(KEY, used, now_ms=NOW_MS + 9_000)
    assert [slot(place.gates(), at_ms=9_000) for _ in range(3)] == [9_000, 11_000, 13_000]


def test_line_of_slots_that_count_no_more_keeps_nobody_waiting(place: Place) -> None:
    gates = place.gates()
    slots = [slot(gates) for _ in range(300)]
    assert slots[-1] == 299_000

    close(gates, FIRST)

    assert slot(place.gates(), at_ms=9_000) == 9_000


def test_second_close_of_calls_from_before_halves_nothing(place: Place) -> None:
    one, other = place.gates(), place.gates()
    first, second = ticket(one), ticket(other)

    assert close(one, first)
    assert not close(other, second)

    assert (place.row().refused_permille, place.row().version) == (1_000, 1)


@pytest.mark.parametrize(("waits_ms", "until_ms"), [((9_000, 30_000), 30_000), ((9_000, 1), 9_000)])
def test_longer_of_two_waits_counts(place: Place, waits_ms: tuple[int, int], until_ms: int) -> None:
    one, other = place.gates(), place.gates()
    first, second = ticket(one), ticket(other)

    close(one, first, wait_ms=waits_ms[0])
    close(other, second, wait_ms=waits_ms[1])

    assert place.row().closed_until_ms == NOW_MS + until_ms


def test_close_of_the_next_cool_down_halves_again(place: Place) -> None:
    gates = place.gates()
    close(gates, ticket(gates), wait_ms=1_000)
    used = ticket(gates, at_ms=1_000)

    assert gates.close(KEY, PER_SECOND, used, now_ms=NOW_MS + 1_000, until_ms=NOW_MS + 2_000)

    assert (place.row().refused_permille, place.row().version) == (500, 2)


def test_model_without_a_rate_is_only_closed(place: Place) -> None:
    gates = place.gates()

    assert close(gates, ticket(gates, limits=UNLIMITED), limits=UNLIMITED)

    assert place.row() == Gate(version=1, closed_until_ms=NOW_MS + 9_000)
    assert take(place.gates(), limits=UNLIMITED) == Shut(NOW_MS + 9_000)


def test_close_with_the_gate_known_is_one_call(tables: OnDynamoDB) -> None:
    gates = tables.gates()
    used = ticket(gates)
    tables.calls.clear()

    close(gates, used)

    assert tables.calls == {"update_item": 1}


# ------------------------------------------------------------------ outages


def test_failures_in_a_row_shut_the_gate(place: Place) -> None:
    workers = [place.gates() for _ in range(OPEN_AFTER_FAILURES)]

    for number, gates in enumerate(workers):
        fail(gates, ticket(gates), at_ms=number)

    last_ms = NOW_MS + OPEN_AFTER_FAILURES - 1
    assert take(place.gates(), at_ms=100) == Shut(last_ms + OUTAGE_FIRST_MS)
    row = place.row()
    assert (row.failures, row.version, row.probing) == (OPEN_AFTER_FAILURES, 1, True)


def test_answer_in_between_ends_the_row(place: Place) -> None:
    gates = place.gates()
    for _ in range(OPEN_AFTER_FAILURES - 1):
        fail(gates, ticket(gates))

    gates.worked(KEY, ticket(gates))
    for _ in range(OPEN_AFTER_FAILURES - 1):
        fail(gates, ticket(gates))

    assert place.row().failures == OPEN_AFTER_FAILURES - 1
    assert gates.look(KEY, now_ms=NOW_MS + 5_000).shut(NOW_MS + 5_000) is None


def test_failures_of_calls_from_before_the_outage_count_once(place: Place) -> None:
    gates = place.gates()
    before = ticket(gates)
    for _ in range(OPEN_AFTER_FAILURES + 20):
        fail(gates, before)

    row = place.row()
    assert (row.failures, row.version) == (OPEN_AFTER_FAILURES, 1)
    assert row.closed_until_ms == NOW_MS + OUTAGE_FIRST_MS


def test_more_failures_at_once_than_it_takes_make_the_outage_no_longer(place: Place) -> None:
    place.put(Gate(failures=30))

    fail(place.gates(), FIRST)

    row = place.row()
    assert (row.failures, row.closed_until_ms) == (OPEN_AFTER_FAILURES, NOW_MS + OUTAGE_FIRST_MS)


def down(place: Place, *, limits: Limits = PER_SECOND) -> None:
    gates = place.gates()
    for _ in range(OPEN_AFTER_FAILURES):
        fail(gates, FIRST, limits=limits)


@pytest.mark.parametrize("limits", [PER_SECOND, TOKENS, BOTH, UNLIMITED], ids=str)
def test_outage_is_probed_by_one_call(place: Place, limits: Limits) -> None:
    down(place, limits=limits)
    one, other = place.gates(), place.gates()

    assert take(one, OUTAGE_FIRST_MS - 1, limits=limits) == Shut(NOW_MS + OUTAGE_FIRST_MS)
    probe = ticket(one, OUTAGE_FIRST_MS, limits=limits)

    assert probe.slot_at_ms == NOW_MS + OUTAGE_FIRST_MS
    until = Shut(NOW_MS + OUTAGE_FIRST_MS + PROBE_MS)
    assert take(other, OUTAGE_FIRST_MS, limits=limits) == until
    assert take(one, OUTAGE_FIRST_MS + 2_000, limits=limits) == until


@pytest.mark.parametrize("limits", [PER_SECOND, UNLIMITED], ids=str)
def test_probe_that_is_answered_opens_the_gate(place: Place, limits: Limits) -> None:
    down(place, limits=limits)
    gates = place.gates()

    gates.worked(KEY, ticket(gates, OUTAGE_FIRST_MS, limits=limits))

    row = place.row()
    assert (row.version, row.failures, row.probing, row.closed_until_ms) == (2, 0, False, 0)
    assert isinstance(take(place.gates(), OUTAGE_FIRST_MS + 1, limits=limits), Ticket)


def test_probe_that_fails_shuts_the_gate_again(place: Place) -> None:
    down(place)
    gates = place.gates()
    probe = ticket(gates, OUTAGE_FIRST_MS)

    fail(gates, probe, at_ms=OUTAGE_FIRST_MS + 100)

    assert place.row().closed_until_ms == NOW_MS + OUTAGE_FIRST_MS + 100 + OUTAGE_FIRST_MS


def test_next_probe_follows_one_that_died(place: Place) -> None:
    down(place)
    ticket(place.gates(), OUTAGE_FIRST_MS)

    probe = ticket(place.gates(), OUTAGE_FIRST_MS + PROBE_MS)

    assert probe.slot_at_ms == NOW_MS + OUTAGE_FIRST_MS + PROBE_MS


@pytest.mark.parametrize(
    ("limits", "gate"),
    [
        (PER_SECOND, Gate(probing=True, next_request_at_us=(NOW_MS + 700) * 1000)),
        (TOKENS, Gate(probing=True, next_token_at_us=(NOW_MS + 60_600) * 1000)),
    ],
    ids=["requests", "tokens"],
)
def test_probe_takes_no_slot_ahead_of_its_time(place: Place, limits: Limits, gate: Gate) -> None:
    place.put(gate)
    gates = place.gates()

    for at_ms in (0, 100):
        assert take(gates, at_ms, limits=limits, tokens=10) == Shut(NOW_MS + 700)
    assert place.row() == gate
    assert slot(place.gates(), at_ms=700, limits=limits, tokens=10) == 700


def test_answer_to_a_call_from_before_opens_nothing(place: Place) -> None:
    gates = place.gates()
    before = ticket(gates)
    down(place)
    gates.look(KEY, now_ms=NOW_MS + 2_000)

    gates.worked(KEY, before)

    assert place.row().probing


def test_answer_ends_a_row_and_opens_no_gate_that_was_closed_meanwhile(place: Place) -> None:
    place.put(Gate(version=1, failures=2))
    gates = place.gates()
    used = ticket(gates)
    close(place.gates(), FIRST, wait_ms=30_000)  # a late one, under an older version

    gates.worked(KEY, used)

    assert (place.row().failures, place.row().closed_until_ms) == (0, NOW_MS + 30_000)


def test_answer_of_a_vendor_that_was_up_costs_no_call(tables: OnDynamoDB) -> None:
    gates = tables.gates()
    used = ticket(gates)
    tables.calls.clear()

    gates.worked(KEY, used)

    assert tables.calls == {}


# ------------------------------------------------------------------ shards


SHARDED = Limits(requests_per_minute=90_000, burst=3)


def test_shards_are_rows_of_their_own(tables: OnDynamoDB) -> None:
    tickets = [ticket(tables.gates(shard=rand), limits=SHARDED) for rand in (0.0, 0.34, 0.99)]

    assert [one.shard for one in tickets] == [0, 1, 2]
    for key in (KEY, f"{KEY}#1", f"{KEY}#2"):
        assert tables.row(key).next_request_at_us == NOW_MS * 1000 + 2_000


def test_shards_together_keep_the_rate(tables: OnDynamoDB) -> None:
    rand = itertools.cycle([0.0, 0.34, 0.99])
    gates = DynamoDBGates(Table(tables.counted), tables.name, rand=lambda: next(rand))  # type: ignore[arg-type]

    slots = sorted(slot(gates, limits=SHARDED) for _ in range(300))

    assert slots[:3] == [0, 0, 0]
    assert all(at_ms >= (number - 2) / 1.5 for number, at_ms in enumerate(slots))
    assert slots[-1] == 198


def test_close_shuts_all_shards_and_halves_each_once(tables: OnDynamoDB) -> None:
    first = ticket(tables.gates(shard=0.34), limits=SHARDED)
    second = ticket(tables.gates(shard=0.99), limits=SHARDED)

    assert close(tables.gates(), first, limits=SHARDED)
    assert not close(tables.gates(), second, limits=SHARDED)

    for key, shard in ((KEY, 0.0), (f"{KEY}#1", 0.34), (f"{KEY}#2", 0.99)):
        assert (tables.row(key).refused_permille, tables.row(key).version) == (1_000, 1)
        shut = take(tables.gates(shard=shard), limits=SHARDED)
        assert shut == Shut(NOW_MS + 9_000)


def test_slot_of_a_shard_is_checked_and_settled_there(tables: OnDynamoDB) -> None:
    limits = Limits(requests_per_minute=60_000, tokens_per_minute=12_000)
    gates = tables.gates(shard=0.9)
    used = ticket(gates, limits=limits, tokens=6_000)
    gates.settle(KEY, limits, used, tokens=3_000, now_ms=NOW_MS)
    tables.put(Gate(paused=True))  # the other one

    assert used.shard == 1
    assert gates.still_open(KEY, used, now_ms=NOW_MS)
    assert tables.row(f"{KEY}#1").next_token_at_us == (NOW_MS + 30_000) * 1000


# ------------------------------------------------------------------ pauses


PAUSED = Shut(NOW_MS + PAUSE_LOOK_MS, paused=True)


def resume(gates: Gates, at_ms: int = 0, *, limits: Limits = PER_SECOND) -> bool:
    return gates.resume(KEY, limits, now_ms=NOW_MS + at_ms)


@pytest.mark.parametrize("limits", [PER_SECOND, BOTH, UNLIMITED], ids=str)
@pytest.mark.parametrize("used", [True, False])
def test_pause_lets_nobody_through_whoever_saw_the_gate_open(
    place: Place, limits: Limits, *, used: bool
) -> None:
    worker = place.gates()
    if used:
        ticket(worker, limits=limits)

    assert place.gates().pause(KEY, limits)

    assert take(worker, 1, limits=limits) == replace(PAUSED, until_ms=PAUSED.until_ms + 1)
    assert place.gates().look(KEY, now_ms=NOW_MS).shut(NOW_MS) == PAUSED


def test_pause_ends_the_slots_that_were_kept(place: Place) -> None:
    gates = place.gates()
    kept = ticket(gates)

    gates.pause(KEY, PER_SECOND)
    gates.resume(KEY, PER_SECOND, now_ms=NOW_MS)

    assert not gates.still_open(KEY, kept, now_ms=NOW_MS)


def test_pause_and_resume_again_change_nothing(place: Place) -> None:
    gates = place.gates()

    assert (gates.pause(KEY, BOTH), gates.pause(KEY, BOTH)) == (True, False)
    assert place.row() == Gate(version=1, paused=True)
    assert (resume(gates, limits=BOTH), resume(gates, limits=BOTH)) == (True, False)
    assert (place.row().version, place.row().paused) == (2, False)


def test_resume_of_a_gate_that_nobody_used_makes_no_row(place: Place) -> None:
    assert not resume(place.gates())

    assert place.row() == Gate()


@pytest.mark.parametrize("before_ms", [-3_600_000, 500_000], ids=["idle", "a long line"])
def test_resume_begins_the_line_anew_without_a_burst(place: Place, before_ms: int) -> None:
    before_us = (NOW_MS + before_ms) * 1000
    place.put(Gate(version=3, next_request_at_us=before_us, next_token_at_us=before_us))
    gates = place.gates()
    gates.pause(KEY, BOTH)

    resume(gates, 60_000, limits=BOTH)

    row, opens_us = place.row(), (NOW_MS + 61_000) * 1000
    assert (row.version, row.paused) == (5, False)
    assert row.next_request_at_us == opens_us + 2_000_000
    assert row.next_token_at_us == opens_us + 60_000_000
    slots = [slot(gates, 60_000, limits=BOTH) for _ in range(4)]
    assert slots == [61_000, 62_000, 63_000, 64_000]


def test_resume_is_seen_by_who_saw_the_pause_within_a_second(place: Place) -> None:
    gates = place.gates()
    gates.pause(KEY, PER_SECOND)
    assert isinstance(take(gates), Shut)

    resume(place.gates(), 1)

    assert slot(gates, at_ms=1_001) == 1_001


def test_resume_opens_nothing_that_the_vendor_closed(place: Place) -> None:
    gates = place.gates()
    used = ticket(gates, limits=BOTH)
    gates.pause(KEY, BOTH)
    close(gates, used, limits=BOTH, wait_ms=20_000)  # of a call that was under way

    resume(gates, limits=BOTH)

    assert place.gates().look(KEY, now_ms=NOW_MS).shut(NOW_MS) == Shut(NOW_MS + 20_000)
    slots = [slot(place.gates(), at_ms=20_000, limits=BOTH) for _ in range(3)]
    assert slots == [20_000, 21_000, 22_000]


@pytest.mark.parametrize("limits", [PER_SECOND, UNLIMITED], ids=str)
@pytest.mark.parametrize("version", [0, 1], ids=["from before", "of the pause"])
def test_vendor_ends_no_pause(place: Place, limits: Limits, version: int) -> None:
    place.gates().pause(KEY, limits)
    used = Ticket(NOW_MS, version)

    for gates in (place.gates(), place.gates()):
        close(gates, used, limits=limits)
        for _ in range(OPEN_AFTER_FAILURES):
            fail(gates, used, limits=limits)
        gates.settle(KEY, limits, used, tokens=10, now_ms=NOW_MS)
        gates.worked(KEY, used)

    assert place.row().paused
    assert take(place.gates(), 3_600_000, limits=limits) == Shut(
        NOW_MS + 3_600_000 + PAUSE_LOOK_MS, paused=True
    )


def test_outage_is_still_probed_after_a_pause(place: Place) -> None:
    down(place)
    gates = place.gates()
    gates.pause(KEY, PER_SECOND)

    resume(gates, 3_600_000)

    assert place.row().probing
    assert slot(place.gates(), at_ms=3_601_000) == 3_601_000
    assert isinstance(take(place.gates(), 3_601_001), Shut)


def test_pause_is_of_all_shards_and_of_those_that_a_higher_rate_makes(tables: OnDynamoDB) -> None:
    tables.gates().pause(KEY, PER_SECOND)

    for shard in (0.0, 0.34, 0.99):
        assert take(tables.gates(shard=shard), limits=SHARDED) == PAUSED

    assert tables.gates().resume(KEY, SHARDED, now_ms=NOW_MS)
    for shard in (0.0, 0.34, 0.99):
        assert slot(tables.gates(shard=shard), limits=SHARDED) == 2
    assert {tables.row(f"{KEY}#{n}").paused for n in range(1, PAUSED_SHARDS)} == {False}


def test_gate_of_more_shards_than_that_is_paused_whole(tables: OnDynamoDB) -> None:
    limits = Limits(requests_per_minute=SHARD_PER_MINUTE * (PAUSED_SHARDS + 2))

    tables.gates().pause(KEY, limits)

    assert take(tables.gates(shard=0.99), limits=limits) == PAUSED


def test_pause_that_was_cut_off_is_finished_by_the_next(tables: OnDynamoDB) -> None:
    tables.gates().pause(KEY, SHARDED)
    tables.put(Gate(version=1), f"{KEY}#2")

    assert tables.gates().pause(KEY, SHARDED)

    assert tables.row(f"{KEY}#2").paused


def test_resume_that_was_cut_off_still_shows_as_a_pause(tables: OnDynamoDB) -> None:
    tables.gates().pause(KEY, SHARDED)
    broken: Any = FaultyClient(tables.client, replies=[None, KeyboardInterrupt()])  # type: ignore[list-item]

    with pytest.raises(KeyboardInterrupt):
        tables.gates(broken).resume(KEY, SHARDED, now_ms=NOW_MS)

    assert tables.gates().look(KEY, now_ms=NOW_MS).shut(NOW_MS) == PAUSED
    assert tables.gates().resume(KEY, SHARDED, now_ms=NOW_MS)
    assert not tables.row(f"{KEY}#1").paused


@pytest.mark.parametrize("paused", [False, True], ids=["pause", "resume"])
def test_lost_reply_of_a_pause_or_resume_is_ours(tables: OnDynamoDB, *, paused: bool) -> None:
    if paused:
        tables.gates().pause(KEY, PER_SECOND)
    client: Any = FaultyClient(tables.client, replies=[timed_out() for _ in range(PAUSED_SHARDS)])
    gates = tables.gates(client)

    changed = resume(gates) if paused else gates.pause(KEY, PER_SECOND)

    assert changed
    assert (tables.row().paused, tables.row().version) == (not paused, 2 if paused else 1)


def test_ten_pauses_and_ten_resumes_at_once_are_one_each(crowded: Place) -> None:
    workers = [crowded.gates() for _ in range(10)]

    paused = at_once(*[lambda gates=gates: gates.pause(KEY, FAST) for gates in workers])
    before = crowded.row()
    resumed = at_once(*[lambda gates=gates: resume(gates, limits=FAST) for gates in workers])

    assert before == Gate(version=1, paused=True)
    assert (crowded.row().paused, crowded.row().version) == (False, 2)
    assert sum(paused) >= 1
    assert sum(resumed) >= 1


def test_nobody_takes_a_slot_after_a_pause_that_met_many_takes(crowded: Place) -> None:
    workers = [crowded.gates() for _ in range(20)]

    *_, paused = at_once(
        *[lambda gates=gates: take(gates, limits=FAST) for gates in workers],
        lambda: crowded.gates().pause(KEY, FAST),
    )

    assert paused
    assert {take(gates, 1_001, limits=FAST).paused for gates in workers} == {True}  # type: ignore[union-attr]


# ------------------------------------------------------------------ damaged rows


@pytest.mark.parametrize(
    "damage",
    [
        {"version": "one"},
        {"next_request_at_us": "soon"},
        {"next_token_at_us": [1]},
        {"token_lead_us": "far"},
        {"closed_until_ms": "tomorrow"},
        {"refused_permille": {}},
        {"failures": True},
        {"probing": 1},
        {"paused": "yes"},
    ],
    ids=str,
)
def test_damaged_gate_is_paused_until_it_is_resumed_and_keeps_no_other_shut(
    dynamodb_local_client: DynamoDBClient, clock: FakeClock, damage: dict[str, Any]
) -> None:
    tables = OnDynamoDB(dynamodb_local_client, clock)  # moto compares no number with a text
    worker, other = tables.gates(), key_of("simulator", "sim-chat-2")
    kept = ticket(worker, limits=BOTH)
    item = to_item({"coordination_key": KEY, **asdict(tables.row()), **damage})
    tables.client.put_item(TableName=tables.name, Item=item)

    for gates in (worker, tables.gates()):
        assert take(gates, 2_000, limits=BOTH) == replace(PAUSED, until_ms=NOW_MS + 32_000)
        assert gates.look(KEY, now_ms=NOW_MS + 4_000).paused
        assert not gates.still_open(KEY, kept, now_ms=NOW_MS)
        assert isinstance(take(gates, limits=BOTH, key=other), Ticket)

    assert resume(worker, 60_000, limits=BOTH)
    assert not resume(worker, 60_000, limits=BOTH)
    slots = [slot(gates, 60_000, limits=BOTH) for gates in (worker, tables.gates())]
    assert slots == [61_000, 62_000]
    assert not worker.still_open(KEY, kept, now_ms=NOW_MS + 60_000)


def test_slot_kept_at_a_gate_that_was_damaged_meanwhile_counts_no_more(tables: OnDynamoDB) -> None:
    job, lease = started(tables)
    item = to_item({"coordination_key": KEY, "version": "one"})
    tables.client.put_item(TableName=tables.name, Item=item)

    assert renew(tables, job, lease) == PAUSED


# ------------------------------------------------------------------ rooms


ALL = Room("simulator", "all", 3)
CHAT = Room("simulator", "model:sim.chat-1", 2)
ENDS_MS = NOW_MS + 60_000


def enter(gates: Gates, *rooms: Room, token: str, at_ms: int = 0, ends_ms: int = ENDS_MS) -> bool:
    return gates.enter(rooms, token, now_ms=NOW_MS + at_ms, until_ms=ends_ms)


ACME = Room("lane:interactive", "tenant:acme", 3)
LANE_CHAT = Room("lane:interactive", "model:demo-chat", 8)


def test_rooms_of_a_lane_are_no_vendors(place: Place) -> None:
    gates = place.gates()
    for token in ("a", "b", "c"):
        assert enter(gates, ACME, LANE_CHAT, token=token)

    assert not enter(gates, ACME, LANE_CHAT, token="d")
    assert enter(gates, ALL, token="d")
    assert set(place.inside(ACME)) == set(place.inside(LANE_CHAT)) == {"a", "b", "c"}


def test_lane_of_two_hundred_tenants_keeps_few_empty_rooms(tables: OnDynamoDB) -> None:
    gates = tables.gates()
    for number in range(200):
        room = Room("lane:interactive", f"tenant:t{number}", 3)
        assert enter(gates, room, token="a")
        if number % 10:  # else its worker died
            gates.leave([room], "a")

    assert enter(gates, ACME, token="a", at_ms=60_001, ends_ms=NOW_MS + 120_000)
    row = tables._read("running#lane:interactive")
    assert row is not None
    assert len(row) < 40
    for number in range(4):  # the dead go, too, some with each write
        enter(gates, ACME, token=f"b{number}", at_ms=60_002, ends_ms=NOW_MS + 120_000)
        gates.leave([ACME], f"b{number}")
    row = tables._read("running#lane:interactive")
    assert row is not None
    assert len(row) <= 1 + 1 + 8 + 1
    assert set(tables.inside(ACME)) == {"a"}


def test_room_is_not_taken_out_that_somebody_entered_meanwhile(tables: OnDynamoDB) -> None:
    gates, other = tables.gates(), tables.gates()
    rooms = [Room("lane:interactive", f"tenant:t{number}", 3) for number in range(20)]
    for room in rooms:
        enter(gates, room, token="a", ends_ms=NOW_MS + 1)
    for room in rooms:
        enter(other, room, token="b")

    enter(gates, ACME, token="a", at_ms=1)

    assert all(set(tables.inside(room)) == {"a", "b"} for room in rooms)


def test_room_takes_as_many_as_it_has_places(place: Place) -> None:
    inside = [enter(place.gates(), ALL, token=f"t{n}") for n in range(5)]

    assert inside == [True, True, True, False, False]
    assert place.inside(ALL) == {"t0": ENDS_MS, "t1": ENDS_MS, "t2": ENDS_MS}


def test_place_that_was_left_is_taken_again(place: Place) -> None:
    gates = place.gates()
    for token in ("a", "b", "c"):
        enter(gates, ALL, token=token)

    gates.leave([ALL], "b")

    assert enter(place.gates(), ALL, token="d")
    assert set(place.inside(ALL)) == {"a", "c", "d"}


def test_leaving_twice_changes_nothing(place: Place) -> None:
    gates = place.gates()
    enter(gates, ALL, CHAT, token="a")
    enter(gates, ALL, CHAT, token="b")

    for _ in range(2):
        gates.leave([ALL, CHAT], "a")
    gates.leave([ALL, CHAT], "nobody")

    assert set(place.inside(ALL)) == set(place.inside(CHAT)) == {"b"}


def test_leaving_rooms_that_nobody_entered_changes_nothing(gates: Gates) -> None:
    gates.leave([ALL, CHAT], "a")
    gates.leave([], "a")


def test_two_rooms_are_entered_both_or_neither(place: Place) -> None:
    gates = place.gates()
    for token in ("a", "b"):
        assert enter(gates, ALL, CHAT, token=token)

    assert not enter(gates, ALL, CHAT, token="c")

    assert set(place.inside(ALL)) == set(place.inside(CHAT)) == {"a", "b"}
    assert enter(gates, ALL, token="c")
    assert not enter(gates, ALL, token="d")


def test_models_share_the_vendors_room_and_have_their_own(place: Place) -> None:
    other = replace(CHAT, name="model:other")

    assert enter(place.gates(), ALL, CHAT, token="a")
    assert enter(place.gates(), ALL, other, token="b")

    assert set(place.inside(ALL)) == {"a", "b"}
    assert (set(place.inside(CHAT)), set(place.inside(other))) == ({"a"}, {"b"})


@pytest.mark.proves(9)
def test_places_of_the_dead_are_free_when_their_time_is_up(place: Place) -> None:
    for number in range(3):
        rooms = [ALL, CHAT][: 2 if number < 2 else 1]
        assert enter(place.gates(), *rooms, token=f"dead{number}")

    assert not enter(place.gates(), ALL, CHAT, token="early", at_ms=59_999)
    assert enter(place.gates(), ALL, CHAT, token="late", at_ms=60_000, ends_ms=ENDS_MS * 2)

    assert set(place.inside(ALL)) == set(place.inside(CHAT)) == {"late"}


def test_dead_whose_places_others_took_make_no_room(place: Place) -> None:
    gates = place.gates()
    for token in ("dead1", "dead2", "dead3"):
        enter(gates, ALL, token=token)
    for token in ("a", "b", "c"):
        assert enter(place.gates(), ALL, token=token, at_ms=60_000, ends_ms=ENDS_MS * 2)

    assert not enter(gates, ALL, token="d", at_ms=60_001)

    assert set(place.inside(ALL)) == {"a", "b", "c"}


def test_place_whose_time_is_damaged_is_free(tables: OnDynamoDB) -> None:
    for number in range(3):
        enter(tables.gates(), ALL, token=f"t{number}")
    tables.client.update_item(
        TableName=tables.name,
        Key=to_item({"coordination_key": f"running#{ALL.vendor}"}),
        UpdateExpression="SET #room.#token = :damage",
        ExpressionAttributeNames={"#room": ALL.name, "#token": "t1"},
        ExpressionAttributeValues=to_item({":damage": "soon"}),
    )

    assert enter(tables.gates(), ALL, token="late")
    assert not enter(tables.gates(), ALL, token="later")
    assert set(tables.inside(ALL)) == {"t0", "t2", "late"}


def test_hundreds_of_dead_are_cleared_in_some_looks(place: Place) -> None:
    wide = replace(ALL, places=300)
    gates = place.gates()
    for number in range(300):
        assert enter(gates, wide, token=f"{number:032x}")
    narrow = replace(ALL, places=5)

    entered = [
        enter(place.gates(), narrow, token=f"late{n}", at_ms=60_000, ends_ms=ENDS_MS * 2)
        for n in range(8)
    ]

    assert entered.count(True) == 5
    assert len(place.inside(narrow)) == 5


@pytest.mark.parametrize("room", [ALL, ACME], ids=["of a vendor", "a share of a lane"])
def test_room_that_was_made_smaller_lets_nobody_in_until_it_is_emptier(
    place: Place, room: Room
) -> None:
    gates = place.gates()
    for token in ("a", "b", "c"):
        enter(gates, room, token=token)
    smaller = replace(room, places=2)

    gates.leave([room], "a")
    assert not enter(gates, smaller, token="d")
    gates.leave([room], "b")
    assert enter(gates, smaller, token="d")


def test_no_rooms_cost_no_call(tables: OnDynamoDB) -> None:
    gates = tables.gates()

    assert gates.enter([], "a", now_ms=NOW_MS, until_ms=ENDS_MS)
    gates.leave([], "a")

    assert tables.calls == {}


def test_entering_and_leaving_is_a_call_each_when_the_guess_is_right(tables: OnDynamoDB) -> None:
    gates = tables.gates()

    for token in ("a", "b", "c"):
        enter(gates, ALL, CHAT, token=token)
        gates.leave([ALL, CHAT], token)

    assert tables.calls == {"update_item": 6}


def test_lost_reply_of_entering_takes_one_place(tables: OnDynamoDB) -> None:
    client: Any = FaultyClient(tables.client, replies=[timed_out()])

    assert enter(tables.gates(client), ALL, CHAT, token="a")

    assert set(tables.inside(ALL)) == set(tables.inside(CHAT)) == {"a"}


# ------------------------------------------------------------------ many at once


def test_six_hundred_takes_of_twenty_threads_get_slots_an_interval_apart(crowded: Place) -> None:
    workers = [crowded.gates() for _ in range(5)] * 4

    def take_thirty(gates: Gates) -> list[int]:
        taken: list[int] = []
        while len(taken) < 30:
            one = take(gates, limits=FAST)
            if isinstance(one, Ticket):  # else others were in the way four times
                taken.append(one.slot_at_ms - NOW_MS)
        return taken

    slots = at_once(*[lambda gates=gates: take_thirty(gates) for gates in workers])

    assert sorted(itertools.chain(*slots)) == [10 * number for number in range(600)]


@pytest.mark.parametrize("client", ["one process", "twenty processes"])
def test_twenty_workers_at_once_take_no_more_than_a_share(crowded: Place, client: str) -> None:
    """Each tries until it was inside; 3 places of the tenant's, and 8 of the model's."""
    one = crowded.gates()
    workers = [one if client == "one process" else crowded.gates() for _ in range(20)]
    most, served = [], []

    def run(gates: Gates, token: str) -> None:
        for _ in range(200):
            if enter(gates, ACME, LANE_CHAT, token=token):
                most.append(len(crowded.inside(ACME)))
                gates.leave([ACME, LANE_CHAT], token)
                served.append(token)
                return

    at_once(*[lambda gates=gates, n=n: run(gates, f"t{n}") for n, gates in enumerate(workers)])

    assert served
    assert max(most) <= 3
    assert crowded.inside(ACME) == crowded.inside(LANE_CHAT) == {}


def test_twenty_workers_that_stay_fill_a_share(crowded: Place) -> None:
    at_once(
        *[lambda n=n: enter(crowded.gates(), ACME, LANE_CHAT, token=f"t{n}") for n in range(20)]
    )

    inside = crowded.inside(ACME)
    assert 1 <= len(inside) <= 3
    assert crowded.inside(LANE_CHAT) == inside


@pytest.mark.parametrize("known", [False, True], ids=["first look", "known"])
@pytest.mark.parametrize("tokens", [10, 100, 600])
def test_thirty_takers_at_both_limits_get_the_slots_of_one(
    crowded: Place,
    tokens: int,
    known: bool,  # noqa: FBT001 - of its parametrization
) -> None:
    workers = [crowded.gates() for _ in range(30)]
    single, expected = Gate(), []
    for _ in range(180 if known else 150):
        slot_us, single = single.taken(FAST_BOTH, tokens, NOW_MS * 1000)
        expected.append(slot_us // 1000 - NOW_MS)
    if known:
        before = [slot(gates, limits=FAST_BOTH, tokens=tokens) for gates in workers]
        assert before == expected[:30]
        del expected[:30]
    writes = crowded.calls.total() if isinstance(crowded, OnDynamoDB) else 0

    slots, shut = take_five_each(workers, lambda: tokens)

    assert sorted(at_ms for at_ms, _ in slots) == expected
    assert crowded.row() == single
    assert shut < 15
    if isinstance(crowded, OnDynamoDB):
        assert crowded.calls.total() - writes < 150 * 2


def test_thirty_takers_of_calls_that_wait_now_for_this_and_now_for_that_keep_both_limits(
    crowded: Place,
) -> None:
    tokens = random.Random(1)  # noqa: S311 - the same in each run

    slots, shut = take_five_each(
        [crowded.gates() for _ in range(30)], lambda: tokens.choice([1, 20, 200, 2_000])
    )

    per_minute, tokens_per_minute = FAST_BOTH.requests_per_minute, FAST_BOTH.tokens_per_minute
    requests = [(at_ms, 1) for at_ms, _ in sorted(slots)]
    assert worst_excess(requests, per_minute, 1, FAST_BOTH.burst) <= 0
    assert worst_excess(sorted(slots), tokens_per_minute, 1, tokens_per_minute) <= 0
    assert shut < 15


def take_five_each(
    workers: list[Gates], tokens: Callable[[], int]
) -> tuple[list[tuple[int, int]], int]:
    """Slots in ms from the start, with their tokens; how often others were in the way too often."""

    def take_five(gates: Gates) -> list[tuple[int, int] | Shut]:
        taken: list[tuple[int, int] | Shut] = []
        while sum(not isinstance(one, Shut) for one in taken) < 5:
            size = tokens()
            one = take(gates, limits=FAST_BOTH, tokens=size)
            taken.append(one if isinstance(one, Shut) else (one.slot_at_ms - NOW_MS, size))
        return taken

    taken = [
        one
        for some in at_once(*[lambda gates=gates: take_five(gates) for gates in workers])
        for one in some
    ]
    slots = [one for one in taken if not isinstance(one, Shut)]
    return slots, len(taken) - len(slots)


def test_fifty_refused_calls_halve_the_rate_once(crowded: Place) -> None:
    workers = [crowded.gates() for _ in range(50)]
    used = [ticket(gates, limits=FAST) for gates in workers]
    waits_ms = [10_000 + 100 * number for number in range(50)]
    random.shuffle(waits_ms)

    ours = at_once(
        *[
            lambda gates=gates, one=one, wait_ms=wait_ms: close(
                gates, one, limits=FAST, wait_ms=wait_ms
            )
            for gates, one, wait_ms in zip(workers, used, waits_ms, strict=True)
        ]
    )

    row = crowded.row()
    assert sum(ours) == 1
    assert (row.refused_permille, row.version) == (1_000, 1)
    assert row.closed_until_ms == NOW_MS + max(waits_ms)


def test_fifty_failures_at_once_are_one_outage(crowded: Place) -> None:
    workers = [crowded.gates() for _ in range(50)]

    at_once(*[lambda gates=gates: fail(gates, FIRST) for gates in workers])

    row = crowded.row()
    assert row.version == 1
    assert row.closed_until_ms == NOW_MS + OUTAGE_FIRST_MS
    assert row.failures == OPEN_AFTER_FAILURES


def test_fifty_takes_of_a_vendor_that_was_down_are_one_probe(crowded: Place) -> None:
    down(crowded)
    workers = [crowded.gates() for _ in range(50)]

    taken = at_once(*[lambda gates=gates: take(gates, OUTAGE_FIRST_MS) for gates in workers])

    assert sum(isinstance(one, Ticket) for one in taken) == 1


def test_room_never_holds_more_than_its_places(crowded: Place) -> None:
    rooms = [replace(ALL, places=7), replace(CHAT, places=5)]
    lock, inside, most = threading.Lock(), Counter[str](), Counter[str]()

    def visit(number: int) -> int:
        gates, visits = crowded.gates(), 0
        mine = rooms if number % 2 else rooms[:1]
        for turn in range(8):
            token = f"{number}-{turn}"
            if not enter(gates, *mine, token=token):
                continue
            with lock:
                for room in mine:
                    inside[room.name] += 1
                    most[room.name] = max(most[room.name], inside[room.name])
            visits += 1
            with lock:
                for room in mine:
                    inside[room.name] -= 1
            gates.leave(mine, token)
        return visits

    visits = at_once(*[lambda number=number: visit(number) for number in range(50)])

    assert sum(visits) > 0
    assert most["all"] <= 7
    assert most["model:sim.chat-1"] <= 5
    assert crowded.inside(rooms[0]) == crowded.inside(rooms[1]) == {}


def test_fifty_who_stay_fill_the_room_exactly(crowded: Place) -> None:
    room = replace(ALL, places=7)

    def come(number: int) -> bool:
        gates = crowded.gates()
        # Others may be in the way four times; who finds the room full is told so.
        return any(enter(gates, room, token=f"t{number}") for _ in range(20))

    inside = at_once(*[lambda number=number: come(number) for number in range(50)])

    assert sum(inside) == len(crowded.inside(room)) == 7
