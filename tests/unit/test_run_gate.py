"""Run, at the gate: who waits inside, who is parked, and what the vendor's refusals close."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import catalogue
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import CallAbortedError, NotCalledError, StoreBusyError, VendorError
from sluiceway.domain.gate import (
    COOL_DOWN_MS,
    FURTHEST_SLOT_MS,
    OPEN_AFTER_FAILURES,
    OUTAGE_FIRST_MS,
    PAUSE_LOOK_MS,
    Gate,
    estimated_tokens,
    key_of,
)
from sluiceway.domain.job import JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.shares import PARKED_FEW_MS, PARKED_LEAST_MS
from sluiceway.domain.ticket import SLOT_LIVES_MS
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.run_job import (
    PROBE_MARGIN_MS,
    SHUT_SPREAD_MS,
    Acknowledge,
    GiveBack,
)

from tests.fakes.in_memory import NOW_MS, InMemoryGates, LeaseRow
from tests.unit.bench import ANSWER, LEASE_MS, Bench, rejected, unavailable
from tests.unit.samples import CACHE_KEY, a_job, an_entry, an_error, packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.job import Job
    from sluiceway.ports import VendorAnswer, VendorCall

CATALOGUE = catalogue.parse(
    """
    [vendors.simulator]
    max_concurrency = 3

    [vendors.careful]
    on_unknown_outcome = "fail"

    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    requests_per_minute = 60
    tokens_per_minute = 6000
    burst = 1
    max_concurrency = 2

    [models.demo-free]
    vendor = "careful"
    vendor_model = "sim-free-1"
    version = "1"
    """
)
KEY = key_of("simulator", "sim-chat-1")
ALL, CHAT = ("simulator", "all"), ("simulator", "model:sim-chat-1")
HOLD_MS = 15_000


class CountingGates(InMemoryGates):
    """Counts its calls, and fails those that it is told to."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.calls: Counter[str] = Counter()
        self.busy: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found
        self.calls[name] += 1
        if name in self.busy:

            def refuse(*_: Any, **__: Any) -> Any:
                raise StoreBusyError("The tables are busy.", retry_after_s=1)

            return refuse
        return found


@dataclass
class GateBench(Bench):
    """The worker's bench at a gate with a slot a second."""

    catalogue: catalogue.Catalogue = field(default_factory=lambda: CATALOGUE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gates: CountingGates = CountingGates(self.world)
        self.pauses: list[float] = []
        self.in_pause: Callable[[], object] = lambda: None
        self.pause = self._pause_and_note

    def _pause_and_note(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.pause(seconds)
        self.in_pause()

    @property
    def gate(self) -> Gate:
        return self.world.gates.get(KEY, Gate())

    def set(self, **members: Any) -> Gate:
        self.world.gates[KEY] = replace(self.gate, **members)
        return self.gate

    def next_slot_in(self, ms: int) -> None:
        self.set(next_request_at_us=(self.clock.now_ms() + ms) * 1000)

    @property
    def inside(self) -> set[str]:
        return {token for room in self.world.rooms.values() for token in room}

    @property
    def waits_ms(self) -> int:
        """Of a parked job: from now."""
        assert self.job.parked
        assert self.job.not_before_epoch_ms is not None
        assert self.job.due_at_epoch_ms == self.job.not_before_epoch_ms
        return self.job.not_before_epoch_ms - self.clock.now_ms()

    @property
    def told(self) -> dict[str, dict[str, Any]]:
        return {name: fields for name, _, fields in self.telemetry.events}

    def wake(self, after_ms: int = 0) -> None:
        """The sweeper's message comes so long after the job may begin."""
        assert self.job.not_before_epoch_ms is not None
        self.clock.set(self.job.not_before_epoch_ms + after_ms)
        self.deliver()


@pytest.fixture
def bench() -> GateBench:
    made = GateBench()
    made.put(a_job())
    return made


def is_as_before(bench: GateBench, before: Job) -> bool:
    """Waiting cost nothing, and left nothing behind."""
    job = bench.job
    same = ("status", "attempts", "attempts_total", "error", "last_errors", "called_at_epoch_ms")
    assert [getattr(job, name) for name in same] == [getattr(before, name) for name in same]
    assert bench.world.leases[CACHE_KEY].token is None
    assert bench.inside == set()
    assert bench.vendors.total == 0
    return True


# ------------------------------------------------------------------ through at once


def test_free_slot_costs_one_take_and_no_wait(bench: GateBench) -> None:
    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.gates.takes == 1
    assert bench.pauses == []
    assert bench.gate.next_request_at_us == (NOW_MS + 1_000) * 1000


def test_slot_whose_moment_passes_on_slow_tables_begins_no_call(bench: GateBench) -> None:
    before, take = bench.job, bench.gates.take

    def slow(*args: Any, **named: Any) -> Any:
        taken = take(*args, **named)
        bench.clock.advance(SLOT_LIVES_MS)
        return taken

    bench.gates.take = slow  # type: ignore[method-assign]

    assert bench.deliver() == Acknowledge()

    assert is_as_before(bench, before)
    assert (bench.waits_ms, bench.job.slot) == (0, None)


def test_answer_of_the_cache_asks_no_gate(bench: GateBench) -> None:
    bench.put_entry()
    bench.set(paused=True)

    bench.deliver()

    assert bench.job.result_source == "cache"
    assert bench.gates.calls == Counter()


def test_input_that_cannot_be_read_takes_no_slot(bench: GateBench) -> None:
    bench.put(a_job(input=replace(packed({}), inline=None, ref="inputs/gone")))

    bench.deliver()

    assert bench.job.error is not None
    assert bench.job.error.code == "vendor_rejected"
    assert bench.gates.calls == Counter()


# ------------------------------------------------------------------ short waits


def test_short_wait_is_held_and_the_lease_is_renewed_after_it(bench: GateBench) -> None:
    bench.next_slot_in(9_000)
    seen: list[LeaseRow] = []

    def call(_: VendorCall) -> VendorAnswer:
        seen.append(bench.world.leases[CACHE_KEY])
        return ANSWER

    bench.vendors.script = [call]

    bench.deliver()

    assert bench.pauses == [9.0]
    assert bench.told["gate_waited"] == {"gate_wait_ms": 9_000}
    assert seen[0].ends_at_epoch_ms == NOW_MS + 9_000 + LEASE_MS
    assert bench.job.status is JobStatus.COMPLETED
    assert (bench.job.attempts, bench.gates.takes) == (1, 1)


def test_renewed_lease_ends_with_the_function(bench: GateBench) -> None:
    bench.next_slot_in(15_000)
    ends: list[int | None] = []
    bench.in_pause = lambda: None
    bench.vendors.script = [
        lambda _: (ends.append(bench.world.leases[CACHE_KEY].ends_at_epoch_ms), ANSWER)[1]
    ]

    bench.deliver()

    assert ends == [NOW_MS + bench.function_ms]


def test_call_has_the_time_of_the_renewed_lease(bench: GateBench) -> None:
    bench.lease_ms = 50_000
    bench.deliver()
    bench.world.entries.clear()
    bench.put(a_job())
    bench.next_slot_in(9_000)

    bench.deliver()

    at_once, held = bench.vendors.calls
    assert at_once.timeout_s == held.timeout_s < 50


def test_longest_hold_is_the_catalogues(bench: GateBench) -> None:
    bench.next_slot_in(HOLD_MS)
    bench.deliver()
    assert bench.pauses == [15.0]


def test_job_that_is_cancelled_during_the_hold_calls_nobody(bench: GateBench) -> None:
    bench.next_slot_in(5_000)
    bench.in_pause = lambda: cancel_job(
        bench.job.job_id, "acme", jobs=bench.jobs, clock=bench.clock
    )

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.CANCELLED
    assert bench.vendors.total == 0
    assert bench.inside == set()
    assert bench.world.leases[CACHE_KEY].token is None


@pytest.mark.parametrize(
    ("change", "waits_ms"),
    [
        ({"version": 1, "closed_until_ms": NOW_MS + 25_000}, 20_000 + SHUT_SPREAD_MS // 2),
        ({"version": 1}, SHUT_SPREAD_MS // 2),
        ({"paused": True}, PAUSE_LOOK_MS + PAUSE_LOOK_MS // 2),
    ],
    ids=["closed", "closed and opened", "paused"],
)
def test_gate_that_changes_during_the_hold_parks_without_a_slot(
    bench: GateBench, change: dict[str, Any], waits_ms: int
) -> None:
    before = bench.job
    bench.next_slot_in(5_000)
    bench.in_pause = lambda: bench.set(**change)

    assert bench.deliver() == Acknowledge()

    assert bench.waits_ms == waits_ms
    assert bench.job.slot is None
    assert is_as_before(bench, before)


def test_hold_that_leaves_no_time_for_the_call_is_none(bench: GateBench) -> None:
    bench.lease_ms = CLOCK_SKEW_MS + 20_000
    bench.next_slot_in(12_000)

    bench.deliver()

    assert bench.pauses == []
    assert bench.job.slot_at_epoch_ms == NOW_MS + 12_000


# ------------------------------------------------------------------ long waits


@pytest.mark.parametrize(
    ("before", "status"),
    [
        (a_job(), JobStatus.QUEUED),
        (
            transitions.retrying(
                a_job(attempts=2, attempts_total=5), an_error(), not_before_ms=NOW_MS
            ),
            JobStatus.RETRYING,
        ),
    ],
    ids=["first attempt", "third attempt"],
)
def test_long_wait_is_parked_with_its_slot_and_costs_no_attempt(
    bench: GateBench, before: Job, status: JobStatus
) -> None:
    bench.put(before)
    bench.next_slot_in(60_000)
    bench.set(version=4)

    assert bench.deliver(receives=3) == Acknowledge()

    assert bench.waits_ms == 60_000
    assert (bench.job.slot_at_epoch_ms, bench.job.slot_version) == (NOW_MS + 60_000, 4)
    assert (bench.job.status, bench.job.receives) == (status, 3)
    assert is_as_before(bench, before)
    assert bench.pauses == []
    assert bench.told["job_parked"] == {"reason": "gate"}


def test_parked_job_is_due_by_its_deadline_however_far_its_slot_is(bench: GateBench) -> None:
    bench.put(a_job(deadline_epoch_ms=NOW_MS + 30_000))
    bench.next_slot_in(60_000)

    bench.deliver()

    assert bench.job.due_at_epoch_ms == NOW_MS + 30_000
    assert bench.job.not_before_epoch_ms == NOW_MS + 60_000


@pytest.mark.parametrize("late_ms", [0, SLOT_LIVES_MS - 1])
def test_kept_slot_is_used_without_another_take(bench: GateBench, late_ms: int) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()

    bench.wake(late_ms)

    assert bench.job.status is JobStatus.COMPLETED
    assert (bench.job.attempts, bench.job.slot) == (1, None)
    assert bench.gates.takes == 1
    assert bench.pauses == []


def test_kept_slot_that_is_over_is_taken_anew(bench: GateBench) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()

    bench.wake(SLOT_LIVES_MS)

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.gates.takes == 2


@pytest.mark.parametrize(
    "change", [{"version": 9}, {"next_request_at_us": 0, "version": 9}], ids=str
)
def test_kept_slot_of_another_version_is_taken_anew(
    bench: GateBench, change: dict[str, Any]
) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    bench.set(**change)

    bench.wake()

    assert bench.gates.takes == 2
    assert bench.vendors.total == 1


def test_kept_slot_of_a_gate_that_is_closed_now_is_given_up(bench: GateBench) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    before = bench.job
    bench.set(closed_until_ms=NOW_MS + 90_000)

    bench.wake()

    assert bench.waits_ms == 30_000 + SHUT_SPREAD_MS // 2
    assert bench.job.slot is None
    assert is_as_before(bench, before)


def test_message_that_comes_before_the_slot_is_not_let_in(bench: GateBench) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    before = bench.job
    bench.clock.advance(s=20)

    assert bench.deliver() == Acknowledge()
    assert bench.job == before


def test_retry_after_a_kept_slot_keeps_none(bench: GateBench) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    bench.vendors.script = [unavailable()]

    bench.wake()

    assert (bench.job.status, bench.job.slot) == (JobStatus.RETRYING, None)


# ------------------------------------------------------------------ shut


@pytest.mark.parametrize("rand", [0.0, 0.5, 0.999])
@pytest.mark.parametrize(
    ("gate", "least_ms", "most_ms"),
    [
        ({"closed_until_ms": NOW_MS + 40_000}, 40_000, 42_000),
        ({"closed_until_ms": NOW_MS + 1}, 1, 2_001),
        ({"closed_until_ms": NOW_MS + 3_600_000}, 3_600_000, 3_602_000),
        ({"paused": True}, 30_000, 60_000),
        ({"paused": True, "closed_until_ms": NOW_MS + 40_000}, 30_000, 60_000),
        ({"next_request_at_us": (NOW_MS + FURTHEST_SLOT_MS) * 1000 + 1}, 480_000, 600_000),
        ({"next_token_at_us": (NOW_MS + FURTHEST_SLOT_MS) * 1000 + 1}, 480_000, 600_000),
    ],
    ids=["closed", "nearly open", "for long", "paused", "both", "far", "far by tokens"],
)
def test_shut_gate_parks_for_its_time_and_not_all_at_once(
    bench: GateBench, gate: dict[str, Any], least_ms: int, most_ms: int, rand: float
) -> None:
    before = bench.job
    shut = bench.set(**gate)
    bench.rand = rand

    assert bench.deliver() == Acknowledge()

    spread_ms = most_ms - least_ms
    far = "next" in next(iter(gate))
    expected_ms = most_ms - rand * spread_ms if far else least_ms + rand * spread_ms
    assert bench.waits_ms == round(expected_ms)
    assert bench.job.slot is None
    assert bench.gate == shut
    assert is_as_before(bench, before)


@pytest.mark.parametrize(("rand", "waits_ms"), [(0.0, 5_000), (0.5, 10_000), (1.0, 15_000)])
@pytest.mark.parametrize("room", [ALL, CHAT])
def test_full_room_parks_for_a_while_and_takes_no_slot(
    bench: GateBench, room: tuple[str, str], rand: float, waits_ms: int
) -> None:
    before = bench.job
    others = {f"other-{number}": NOW_MS + 90_000 for number in range(3)}
    bench.world.rooms[room] = dict(others)
    bench.rand = rand

    assert bench.deliver() == Acknowledge()

    assert bench.waits_ms == waits_ms
    assert PARKED_LEAST_MS == 5_000
    assert bench.gates.takes == 0
    assert bench.world.rooms[room] == others
    bench.world.rooms[room].clear()
    assert is_as_before(bench, before)


def test_places_are_taken_until_the_function_ends(bench: GateBench) -> None:
    seen: list[dict[str, int]] = []
    bench.vendors.script = [
        lambda _: (seen.extend(dict(room) for room in bench.world.rooms.values()), ANSWER)[1]
    ]

    bench.deliver()

    assert seen == [{"token-1": NOW_MS + bench.function_ms}] * 2


# ------------------------------------------------------------------ places are given back


def abort(_: VendorCall) -> VendorAnswer:
    raise CallAbortedError("The call is no longer wanted.")


def crash(_: VendorCall) -> VendorAnswer:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    "turn",
    [ANSWER, unavailable(), unavailable(http_status=429), rejected(), abort, crash],
    ids=["answer", "retryable", "429", "final", "aborted", "exception"],
)
def test_places_are_given_back_whatever_becomes_of_the_call(bench: GateBench, turn: Any) -> None:
    bench.vendors.script = [turn]

    if turn is crash:
        with pytest.raises(RuntimeError):
            bench.deliver()
    else:
        bench.deliver()

    assert bench.gates.calls["leave"] == 1
    assert bench.inside == set()


def test_tenant_that_is_paused_while_its_job_is_held_calls_nobody(bench: GateBench) -> None:
    bench.next_slot_in(14_000)

    def paused_meanwhile(seconds: float) -> None:
        bench.clock.pause(seconds)
        bench.world.paused_tenants.add("acme")

    bench.pause = paused_meanwhile

    assert bench.deliver() == Acknowledge()

    assert bench.vendors.total == 0
    assert (bench.job.status, bench.job.attempts, bench.inside) == ("queued", 0, set())
    assert bench.told["job_parked"] == {"reason": "tenant_paused"}
    assert PAUSE_LOOK_MS <= bench.waits_ms <= 2 * PAUSE_LOOK_MS


@pytest.mark.parametrize("verb", ["enter", "take", "still_open"])
def test_busy_rows_of_the_gate_cost_no_attempt_and_no_place(bench: GateBench, verb: str) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    bench.gates.busy = {verb}

    bench.wake(SLOT_LIVES_MS if verb == "take" else 0)

    assert bench.inside == set()
    assert (bench.job.status, bench.job.attempts, bench.job.parked) == ("queued", 0, True)
    assert bench.told["job_parked"] == {"reason": "busy"}
    assert PARKED_LEAST_MS <= bench.waits_ms <= PARKED_FEW_MS
    bench.gates.busy = set()
    bench.wake(PARKED_FEW_MS)
    assert bench.job.status is JobStatus.COMPLETED


def test_place_that_cannot_be_given_back_costs_nothing_else(bench: GateBench) -> None:
    bench.gates.busy = {"leave"}

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.inside == {"token-1"}


# ------------------------------------------------------------------ what the vendor says


def overload(status: int, retry_after_s: float | None = None) -> VendorError:
    code = "vendor_rate_limited" if status == 429 else "vendor_unavailable"
    return VendorError(
        code, "Too much.", retryable=True, http_status=status, retry_after_s=retry_after_s
    )


@pytest.mark.parametrize(
    ("status", "retry_after_s", "closed_ms"),
    [
        (429, 40.0, 40_000),
        (429, 0.25, 250),
        (429, None, COOL_DOWN_MS),
        (529, None, COOL_DOWN_MS),
        (529, 7.0, 7_000),
        (503, 3.0, 3_000),
    ],
)
def test_overload_closes_the_gate_and_halves_its_rate(
    bench: GateBench, status: int, retry_after_s: float | None, closed_ms: int
) -> None:
    bench.vendors.script = [overload(status, retry_after_s)]

    bench.deliver()

    assert bench.job.status is JobStatus.RETRYING
    assert bench.gate.closed_until_ms == NOW_MS + closed_ms
    assert (bench.gate.version, bench.gate.refused_permille, bench.gate.failures) == (1, 1_000, 0)
    assert bench.told["gate_closed"] == {"model": "demo-chat", "closed_ms": closed_ms}


def test_refusal_under_a_gate_that_is_closed_already_is_not_counted_again(
    bench: GateBench,
) -> None:
    def other_worker_first(_: VendorCall) -> VendorAnswer:
        bench.set(version=1, closed_until_ms=NOW_MS + 10_000, refused_permille=1_000)
        raise overload(429, 30.0)

    bench.vendors.script = [other_worker_first]

    bench.deliver()

    assert (bench.gate.refused_permille, bench.gate.version) == (1_000, 1)
    assert bench.gate.closed_until_ms == NOW_MS + 30_000
    assert "gate_closed" not in bench.told


def test_cool_down_of_a_model_leaves_another_of_its_vendor_alone(  # case R07
    bench: GateBench,
) -> None:
    twin = bench.catalogue.models["demo-chat"].model_copy(update={"vendor_model": "sim-chat-2"})
    models = {**bench.catalogue.models, "demo-twin": twin}
    bench.catalogue = bench.catalogue.model_copy(update={"models": models})
    other = bench.put(a_job(model="demo-twin", job_id="job_2", job_key="j2", cache_key="c2"))
    bench.vendors.script = [overload(429, 60.0)]
    bench.deliver()

    bench.run(other)

    assert bench.job.status is JobStatus.RETRYING
    assert bench.world.jobs["acme", "job_2"].status is JobStatus.COMPLETED
    assert bench.pauses == []
    assert bench.world.gates[key_of("simulator", "sim-chat-2")].closed_until_ms == 0


@pytest.mark.parametrize("jump_ms", [6_000, -6_000, 3_600_000, -3_600_000])
def test_job_at_the_gate_runs_once_though_a_workers_clock_jumped(
    bench: GateBench, jump_ms: int
) -> None:
    bench.next_slot_in(20_000)
    bench.deliver()
    now_ms = bench.job.not_before_epoch_ms or 0

    bench.clock.set(now_ms + jump_ms)
    bench.deliver()
    for _ in range(3):  # the sweeper's next messages come to workers with the right time
        now_ms = max(now_ms + 5_000, min(bench.job.not_before_epoch_ms or 0, now_ms + 60_000))
        bench.clock.set(now_ms)
        bench.deliver()

    assert bench.job.status is JobStatus.COMPLETED
    assert (bench.job.attempts, bench.vendors.total) == (1, 1)
    assert all(pause_s * 1000 <= HOLD_MS for pause_s in bench.pauses)


def test_model_without_a_rate_is_closed_all_the_same(bench: GateBench) -> None:
    bench.put(a_job(model="demo-free"))
    bench.vendors.script = [overload(429, 20.0)]

    bench.deliver()

    gate = bench.world.gates[key_of("careful", "sim-free-1")]
    assert gate == Gate(version=1, closed_until_ms=NOW_MS + 20_000)


@pytest.mark.parametrize(
    "error",
    [
        unavailable(),
        unavailable(http_status=500),
        unavailable(http_status=None),
        VendorError("vendor_timeout", "It took too long.", retryable=True),
    ],
    ids=["503", "500", "connection", "timeout"],
)
def test_failure_of_the_vendor_is_counted_and_closes_nothing(
    bench: GateBench, error: VendorError
) -> None:
    bench.vendors.script = [error]

    bench.deliver()

    assert (bench.gate.failures, bench.gate.closed_until_ms) == (1, 0)
    assert bench.gate.refused_permille == 0


def test_failures_in_a_row_park_the_next_job_until_a_probe(bench: GateBench) -> None:
    bench.set(failures=OPEN_AFTER_FAILURES - 1)
    bench.vendors.script = [unavailable()]
    bench.deliver()
    bench.put(a_job())

    bench.deliver()

    assert bench.waits_ms == OUTAGE_FIRST_MS + SHUT_SPREAD_MS // 2


def test_probe_closes_the_gate_for_the_longest_call_and_its_answer_opens_it(
    bench: GateBench,
) -> None:
    bench.set(version=3, failures=5, probing=True)
    seen: list[int] = []
    bench.vendors.script = [lambda _: (seen.append(bench.gate.closed_until_ms), ANSWER)[1]]

    bench.deliver()

    assert seen == [NOW_MS + 60_000 + PROBE_MARGIN_MS]
    gate = bench.gate
    assert (gate.version, gate.failures, gate.probing, gate.closed_until_ms) == (4, 0, False, 0)


@pytest.mark.parametrize(
    "error",
    [
        rejected(),
        rejected(http_status=401),
        VendorError("vendor_filtered", "No.", retryable=False, http_status=200),
        VendorError("vendor_quota_exhausted", "No.", retryable=False, http_status=429),
    ],
    ids=["400", "401", "filtered", "quota"],
)
def test_refusal_of_this_one_request_closes_nothing_and_shows_that_the_vendor_is_up(
    bench: GateBench, error: VendorError
) -> None:
    bench.set(version=3, failures=5, probing=True)
    bench.vendors.script = [error]

    bench.deliver()

    gate = bench.gate
    assert (gate.failures, gate.probing, gate.closed_until_ms) == (0, False, 0)
    assert gate.refused_permille == 0


@pytest.mark.parametrize("code", ["vendor_quota_exhausted", "vendor_rejected"])
def test_quota_that_is_exhausted_is_told_once_and_not_tried_again(
    bench: GateBench, code: str
) -> None:
    bench.vendors.script = [VendorError(code, "No.", retryable=False, http_status=429)]

    bench.deliver()

    assert bench.job.status is JobStatus.FAILED
    assert bench.vendors.total == 1
    told = [fields for name, _, fields in bench.telemetry.events if name == code]
    assert told == ([{"vendor": "simulator"}] if code == "vendor_quota_exhausted" else [])


def test_call_that_was_never_made_says_nothing_of_the_vendor(bench: GateBench) -> None:
    bench.lease_ms = CLOCK_SKEW_MS + 3_000

    bench.deliver()

    assert bench.job.error is not None
    assert bench.job.error.code == "vendor_timeout"
    assert bench.vendors.total == 0
    assert bench.gate.failures == 0


def test_answer_ends_a_row_of_failures(bench: GateBench) -> None:
    bench.set(failures=3)

    bench.deliver()

    assert bench.gate.failures == 0


# ------------------------------------------------------------------ tokens


def test_estimate_is_taken_before_the_call_and_the_bill_counts_after_it(bench: GateBench) -> None:
    job = bench.put(a_job(input=packed({"input": "hello", "options": {"max_tokens": 500}})))
    body = json.dumps({"input": "hello", "options": {"max_tokens": 500}}).encode()
    estimate = sum(estimated_tokens(body))
    seen: list[int] = []
    bench.vendors.script = [lambda _: (seen.append(bench.gate.next_token_at_us), ANSWER)[1]]

    bench.run(job)

    assert seen == [NOW_MS * 1000 + estimate * 10_000]
    assert bench.gate.next_token_at_us == NOW_MS * 1000 + 30 * 10_000


def test_answer_that_cost_more_than_estimated_is_counted(bench: GateBench) -> None:
    bench.vendors.script = [ANSWER._replace(input_tokens=3_000, output_tokens=1_000)]

    bench.deliver()

    assert bench.gate.next_token_at_us == NOW_MS * 1000 + 4_000 * 10_000


@pytest.mark.parametrize("busy", ["worked", "settle"])
def test_paid_result_is_kept_when_the_gates_row_is_busy(bench: GateBench, busy: str) -> None:
    bench.gates.busy = {busy}

    assert bench.deliver() == Acknowledge()

    assert bench.job.status is JobStatus.COMPLETED
    assert bench.result["text"] == "an answer"


@pytest.mark.parametrize(("busy", "status"), [("close", 429), ("failed", 500), ("worked", 400)])
def test_refusal_is_written_down_when_the_gates_row_is_busy(
    bench: GateBench, busy: str, status: int
) -> None:
    bench.gates.busy = {busy}
    bench.vendors.script = [rejected() if status == 400 else overload(status, 1.0)]

    decision = bench.deliver()

    assert isinstance(decision, GiveBack)
    assert bench.job.error is not None
    assert bench.job.error.http_status == status


def test_mark_of_a_call_is_written_with_a_slot_in_hand(bench: GateBench) -> None:
    bench.put(a_job(model="demo-free"))
    bench.world.gates[key_of("careful", "sim-free-1")] = Gate(paused=True)

    bench.deliver()

    assert bench.job.parked
    assert bench.job.called_at_epoch_ms is None


def test_entry_that_appears_while_parked_completes_without_a_slot(bench: GateBench) -> None:
    bench.next_slot_in(60_000)
    bench.deliver()
    entry = an_entry()
    bench.world.entries[entry.cache_key] = entry

    bench.wake()

    assert bench.job.result_source == "cache"
    assert (bench.job.attempts, bench.job.slot, bench.vendors.total) == (0, None, 0)


# ------------------------------------------------------------------ ready before the slot


def test_worker_is_ready_for_the_call_before_it_takes_a_slot(bench: GateBench) -> None:
    takes: list[int] = []
    prepare = bench.vendors.prepare

    def note(vendor: catalogue.Vendor) -> None:
        takes.append(bench.gates.calls["take"])
        prepare(vendor)

    bench.vendors.prepare = note  # type: ignore[method-assign]

    bench.deliver()

    assert takes == [0]
    assert [vendor.base_url for vendor in bench.vendors.prepared] == [
        CATALOGUE.vendors["simulator"].base_url
    ]


def test_key_that_cannot_be_had_costs_no_slot(bench: GateBench) -> None:
    bench.vendors.unprepared = NotCalledError("vendor_auth_failed", "No key.", retryable=True)

    bench.deliver()

    assert bench.job.status is JobStatus.RETRYING
    assert bench.gates.calls["take"] == bench.gates.calls["enter"] == 0
    assert bench.vendors.total == 0
