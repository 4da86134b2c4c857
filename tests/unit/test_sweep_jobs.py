"""Sweep: each minute, whoever got stuck is helped on."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import Catalogue, Model, Service
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.gate import Gate, key_of
from sluiceway.domain.job import DUE_SHARDS, Job, JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.webhook import rfc3339
from sluiceway.ports import ServiceState
from sluiceway.usecases import sweep_jobs as module
from sluiceway.usecases.run_job import Acknowledge
from sluiceway.usecases.sweep_jobs import (
    LEAST_SENDS,
    MEASURE_WITHIN_MS,
    PAGE,
    STOP_BEFORE_END_MS,
    Sweeper,
    Swept,
    sweep_jobs,
)
from sluiceway.usecases.wake_jobs import POLL_EVERY_MS

from tests.fakes.in_memory import (
    NOW_MS,
    Claim,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryDueJobs,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryQueue,
    InMemoryState,
    LeaseRow,
    World,
)
from tests.fakes.outside import FakeBus
from tests.unit.bench import FUNCTION_MS, LEASE_MS, Bench, processing, unavailable
from tests.unit.samples import CACHE_KEY, CATALOGUE, DAY_MS, JOB_ID, a_job, an_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.ports import Applied, DueJob, IndexedJob, JobStore, LeaseHeld, Moved

MINUTE_MS = 60_000
LONGEST_MS = 15 * MINUTE_MS
ERROR = an_error()
WORKERS = {"interactive": 8, "batch": 2}


class CountingDueJobs(InMemoryDueJobs):
    """Counts what DynamoDB would be asked."""

    calls: Counter[str]

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        self.calls["query due"] += 1
        return super().due(shard, until_ms=until_ms, limit=limit)

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        self.calls["query indexed"] += 1
        return super().indexed(shard)

    def counted(self, shard: str, **asked: Any) -> Iterator[tuple[int, list[IndexedJob]]]:
        self.calls["query counted"] += 1
        return super().counted(shard, **asked)

    def postpone(self, job: Job, *, due_at_ms: int, sent: bool = True) -> bool:
        self.calls["update"] += 1
        return super().postpone(job, due_at_ms=due_at_ms, sent=sent)


@dataclass
class Minute(Bench):
    """The worker's bench with the sweeper beside it."""

    queue: InMemoryQueue = field(default_factory=InMemoryQueue)
    time_left_ms: int = 55_000
    service: Service = field(default_factory=Service)
    models: dict[str, Model] = field(default_factory=lambda: dict(CATALOGUE.models))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: Counter[str] = Counter()
        self.due_jobs = CountingDueJobs(self.world)
        self.due_jobs.calls = self.calls
        self.store: JobStore = self.jobs
        self.state = InMemoryState(self.world)
        self.backlogs = InMemoryBacklogs(self.world)
        self.flags = FakeFlags()
        self.bus = FakeBus()
        self.in_pauses: list[Callable[[], object]] = []
        """What others do while a sweep pauses, one each time."""

    def pause_sweep(self, seconds: float) -> None:
        self.clock.pause(seconds)
        self.time_left_ms -= round(seconds * 1000)
        if self.in_pauses:
            self.in_pauses.pop(0)()

    def read_slowly(self, each_ms: int) -> None:
        """Each job of the index takes so long from here on."""
        indexed = self.due_jobs.indexed

        def slowly(shard: str) -> Iterator[IndexedJob]:
            for job in indexed(shard):
                self.clock.advance(ms=each_ms)
                yield job

        self.due_jobs.indexed = slowly  # type: ignore[method-assign]

    def sweep(self, *, poll: bool = False) -> Swept:
        return sweep_jobs(
            Sweeper(
                flags=self.flags,
                bus=self.bus,
                jobs=self.store,
                state=self.state,
                due_jobs=self.due_jobs,
                queue=self.queue,
                clock=self.clock,
                telemetry=self.telemetry,
                time_left_ms=lambda: self.time_left_ms,
                pause=self.pause_sweep,
                gates=self.gates,
                latencies=InMemoryLatencies(World()),
                catalogue=Catalogue(
                    service=self.service, vendors=CATALOGUE.vendors, models=self.models
                ),
                backlogs=self.backlogs,
                workers=WORKERS,
            ),
            poll=poll,
        )

    def sweep_each_minute(self, minutes: int) -> Iterator[Swept]:
        for _ in range(minutes):
            yield self.sweep()
            self.clock.advance(ms=MINUTE_MS)

    def put_many(self, number: int, **members: Any) -> list[Job]:
        """So many jobs, each with its message in the lane."""
        like = a_job(**members)
        jobs = [
            replace(like, job_id=f"job_{n:06d}", job_key=f"j{n}", cache_key=f"c{n}")
            for n in range(number)
        ]
        jobs = [replace(job, due_shard=transitions.due_shard(job.job_id)) for job in jobs]
        for job in jobs:
            self.put(job)
        return jobs

    @property
    def measured(self) -> dict[str, tuple[int, int]]:
        """Of each lane: depth and oldest age, as told last."""
        return {
            fields["lane"]: (fields["queue_depth"], fields["oldest_job_age_ms"])  # type: ignore[misc]
            for name, _, fields in self.telemetry.events
            if name == "lane_measured"
        }

    @property
    def switches(self) -> list[tuple[str, dict[str, Any]]]:
        """What was told of the begin and the end of degraded mode."""
        return [
            (name, fields)
            for name, _, fields in self.telemetry.events
            if name in {"degraded_began", "degraded_ended"}
        ]

    @property
    def whole(self) -> dict[str, bool]:
        """Of each lane: whether depth and age were told of all its jobs."""
        return {
            fields["lane"]: fields["whole"]  # type: ignore[misc]
            for name, _, fields in self.telemetry.events
            if name == "lane_measured"
        }


@pytest.fixture
def minute() -> Minute:
    return Minute()


# ------------------------------------------------------------------ what got stuck


def test_sweep_of_nothing_does_nothing_and_says_so(minute: Minute) -> None:
    assert minute.sweep() == Swept()
    assert minute.queue.sends == []
    assert minute.telemetry.names == ["lane_measured", "lane_measured", "jobs_swept"]


def test_job_whose_send_failed_is_sent_at_its_time_and_runs(minute: Minute) -> None:
    minute.put(a_job())
    minute.clock.advance(ms=120_000)

    swept = minute.sweep()

    assert swept == Swept(sent=1)
    assert minute.queue.sends == [("interactive", "acme", JOB_ID)]
    assert minute.queue.delays == [0]
    assert minute.deliver() == Acknowledge()
    assert minute.job.status is JobStatus.COMPLETED


def test_job_that_is_not_due_within_a_minute_is_left_alone(minute: Minute) -> None:
    job = minute.put(a_job())
    minute.clock.advance(ms=59_999)

    assert minute.sweep() == Swept()
    assert minute.job == job


def test_job_that_is_due_within_the_minute_is_sent_with_the_delay_that_is_left(
    minute: Minute,
) -> None:
    minute.put(a_job())
    minute.clock.advance(ms=77_700)

    minute.sweep()

    assert minute.queue.delays == [43]
    assert minute.job.due_at_epoch_ms == NOW_MS + 120_000 + 120_000


def test_job_goes_to_the_lane_that_it_is_in(minute: Minute) -> None:
    minute.put(a_job(lane="batch", due_at_epoch_ms=NOW_MS))

    minute.sweep()

    assert minute.queue.sends == [("batch", "acme", JOB_ID)]


def test_retrying_job_whose_message_was_lost_is_sent_again(minute: Minute) -> None:
    minute.put(a_job())
    minute.vendors.script = [unavailable()]
    minute.deliver()
    minute.clock.set(minute.job.due_at_epoch_ms or 0)

    assert minute.sweep() == Swept(sent=1)
    assert minute.deliver() == Acknowledge()
    assert (minute.job.status, minute.job.attempts) == (JobStatus.COMPLETED, 2)


@pytest.mark.parametrize("wait_ms", [1, 1_000, 31_001, 60_000])
def test_parked_job_is_sent_so_that_it_arrives_at_its_time_and_never_early(
    minute: Minute, wait_ms: int
) -> None:
    minute.put(transitions.parked(a_job(), not_before_ms=NOW_MS + wait_ms))

    minute.sweep()

    (delay_s,) = minute.queue.delays
    assert wait_ms <= delay_s * 1000 < wait_ms + 1000


def test_parked_job_runs_when_its_message_arrives(minute: Minute) -> None:
    minute.put(a_job())
    minute.hold_lease()
    minute.deliver(receives=7)

    minute.sweep()
    (delay_s,) = minute.queue.delays
    minute.world.leases.clear()
    minute.clock.advance(s=delay_s)

    assert minute.deliver() == Acknowledge()
    assert minute.job.status is JobStatus.COMPLETED


def test_parked_job_is_never_moved_by_the_sweeper(minute: Minute) -> None:
    job = minute.put(transitions.parked(a_job(), not_before_ms=NOW_MS + 30_000))

    minute.sweep()

    assert minute.job.not_before_epoch_ms == job.not_before_epoch_ms
    assert minute.job.parked


def test_job_of_a_dead_worker_is_sent_after_its_functions_end(minute: Minute) -> None:
    minute.put(processing())
    minute.hold_lease(JOB_ID, ends_in_ms=LEASE_MS)
    minute.clock.advance(ms=FUNCTION_MS + 30_000)

    assert minute.sweep() == Swept(sent=1)
    assert minute.deliver() == Acknowledge()
    assert (minute.job.status, minute.job.attempts) == (JobStatus.COMPLETED, 2)


def test_failed_job_is_marked_as_dead_lettered_after_a_quarter_of_an_hour(minute: Minute) -> None:
    failed = transitions.failed(a_job(), ERROR, now_ms=NOW_MS, last_receive=False)
    minute.put(failed)
    minute.clock.advance(ms=LONGEST_MS - 1)
    before = minute.sweep()
    minute.clock.advance(ms=1)

    assert before == Swept()
    assert minute.sweep() == Swept(dead_lettered=1)
    assert (minute.job.status, minute.job.error) == (JobStatus.DEAD_LETTERED, ERROR)
    assert minute.job.due_at_epoch_ms is None
    assert minute.queue.sends == []


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_job_that_ended_without_its_claim_and_counter_is_settled(minute: Minute, end: str) -> None:
    minute.put(a_job(model="demo-chat" if end == "completed" else "demo-gone"))
    minute.world.counters_busy = True
    if end == "completed":
        minute.deliver()
    else:
        job = processing()
        minute.world.jobs["acme", JOB_ID] = job
        failed = transitions.failed(job, ERROR, now_ms=NOW_MS, last_receive=True)
        minute.jobs.apply(job, failed, give_up_at_ms=0)
    minute.world.counters_busy = False
    assert minute.job.unsettled

    assert minute.sweep() == Swept(settled=1)
    assert minute.world.claims == {}
    assert minute.world.open_jobs("acme") == 0
    assert not minute.job.unsettled
    assert minute.sweep() == Swept()


# ------------------------------------------------------------------ deadlines


def test_job_whose_worker_died_spends_its_reserve_at_its_deadline(minute: Minute) -> None:
    minute.put(
        a_job(
            status=JobStatus.PROCESSING,
            attempts=1,
            attempts_total=1,
            deadline_epoch_ms=NOW_MS,
            due_at_epoch_ms=NOW_MS,
            cost_reserved_nanos=500,
        )
    )

    assert minute.sweep() == Swept(failed=1)
    assert (minute.job.lost_nanos, minute.job.spent_nanos) == (500, 500)


@pytest.mark.parametrize(("after_ms", "failed"), [(-1, False), (0, True)])
@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RETRYING])
def test_waiting_job_fails_at_its_deadline(
    minute: Minute, status: JobStatus, after_ms: int, *, failed: bool
) -> None:
    minute.put(
        a_job(status=status, deadline_epoch_ms=NOW_MS + 90_000, due_at_epoch_ms=NOW_MS + 90_000)
    )
    minute.clock.advance(ms=90_000 + after_ms)

    swept = minute.sweep()

    assert swept == (Swept(failed=1) if failed else Swept(sent=1))
    if failed:
        assert minute.job.error is not None
        assert (minute.job.status, minute.job.error.code) == (JobStatus.FAILED, "deadline_exceeded")
        assert minute.world.claims == {}
        assert minute.world.open_jobs("acme") == 0
        assert "job_failed" in minute.telemetry.names


def test_parked_job_fails_at_its_deadline_not_at_its_time(minute: Minute) -> None:
    job = a_job(deadline_epoch_ms=NOW_MS + 90_000)
    minute.put(transitions.parked(job, not_before_ms=NOW_MS + DAY_MS))
    minute.clock.advance(ms=90_000)

    assert minute.sweep() == Swept(failed=1)


def test_processing_job_past_its_deadline_is_left_to_its_worker_until_it_is_due(
    minute: Minute,
) -> None:
    minute.put(processing(deadline_epoch_ms=NOW_MS + 1_000))
    minute.hold_lease(JOB_ID)
    minute.clock.advance(ms=FUNCTION_MS + 30_000 - MINUTE_MS - 1)
    before = minute.sweep()
    minute.clock.set(NOW_MS + FUNCTION_MS + 30_000)

    assert before == Swept()
    assert minute.sweep() == Swept(failed=1)
    assert minute.job.status is JobStatus.FAILED


def test_processing_job_whose_lease_was_renewed_is_never_failed_behind_its_back(
    minute: Minute,
) -> None:
    job = minute.put(processing(deadline_epoch_ms=NOW_MS + 1_000))
    minute.clock.set(NOW_MS + FUNCTION_MS + 30_000)
    minute.hold_lease(JOB_ID, ends_in_ms=-CLOCK_SKEW_MS)

    assert minute.sweep() == Swept()
    assert minute.job == job


def test_every_open_job_ends_though_its_messages_are_all_lost(minute: Minute) -> None:
    # A 202 is a promise: the job always ends.
    minute.put(a_job())
    minute.queue.broken = True

    sweeps = list(minute.sweep_each_minute(24 * 60 + 2))

    assert sum(swept.failed for swept in sweeps) == 1
    assert minute.job.status is JobStatus.FAILED


# ------------------------------------------------------------------ how often


def test_due_time_doubles_up_to_a_quarter_of_an_hour(minute: Minute) -> None:
    minute.put(a_job())
    waits = []
    for _ in range(6):
        minute.clock.set(minute.job.due_at_epoch_ms or 0)
        minute.sweep()
        waits.append((minute.job.due_at_epoch_ms or 0) - minute.clock.now_ms())

    assert [wait // MINUTE_MS for wait in waits] == [2, 4, 8, 15, 15, 15]
    assert minute.job.resends == 6


def test_transition_starts_the_doubling_again(minute: Minute) -> None:
    minute.put(a_job(resends=5))
    minute.vendors.script = [unavailable()]

    minute.deliver()

    assert minute.job.resends == 0


@pytest.mark.parametrize("left_ms", [1_001, 60_000, 119_999])
def test_due_time_is_never_moved_past_the_deadline(minute: Minute, left_ms: int) -> None:
    minute.put(a_job(deadline_epoch_ms=NOW_MS + left_ms, due_at_epoch_ms=NOW_MS))

    minute.sweep()

    assert minute.job.due_at_epoch_ms == NOW_MS + left_ms


def test_processing_jobs_due_time_does_not_end_at_the_deadline(minute: Minute) -> None:
    minute.put(processing(deadline_epoch_ms=NOW_MS + DAY_MS))
    minute.clock.set(NOW_MS + FUNCTION_MS + 30_000)

    minute.sweep()

    assert minute.job.due_at_epoch_ms == minute.clock.now_ms() + 120_000


def test_row_is_moved_before_its_message_is_sent(minute: Minute) -> None:
    # A crash in between sends late, and never twice a minute.
    minute.put(a_job(due_at_epoch_ms=NOW_MS))

    class Dying(InMemoryQueue):
        """Whose process ends at the send."""

        def send(self, job: Job, *, delay_s: int = 0) -> bool:
            raise SystemExit(f"{job.job_id} {delay_s}")

    minute.queue = Dying()
    with pytest.raises(SystemExit):
        minute.sweep()
    minute.queue = InMemoryQueue()

    assert minute.job.due_at_epoch_ms == NOW_MS + 120_000
    assert minute.sweep() == Swept()


def test_two_sweeps_at_once_send_a_job_once(minute: Minute) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS - 10))
    read = minute.jobs.get

    def get_while_another_sweeps(tenant: str, job_id: str) -> Job | None:
        job = read(tenant, job_id)
        minute.jobs.get = read  # type: ignore[method-assign]
        minute.clock.advance(ms=-3)
        minute.sweep()
        minute.clock.advance(ms=3)
        return job

    minute.jobs.get = get_while_another_sweeps  # type: ignore[method-assign]

    minute.sweep()

    assert minute.queue.sends == [("interactive", "acme", JOB_ID)]


def test_send_that_fails_is_not_counted_as_sent(minute: Minute) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS))
    minute.queue.broken = True

    swept = minute.sweep()

    assert swept.sent == 0
    assert "job_resent" not in minute.telemetry.names


# ------------------------------------------------------------------ the index lags


@pytest.mark.parametrize(
    "now",
    [
        transitions.completed(processing(), now_ms=NOW_MS, result=a_job().input, source="vendor"),
        transitions.cancelled(a_job(), now_ms=NOW_MS),
        processing(),
        transitions.parked(a_job(), not_before_ms=NOW_MS + 90_000),
    ],
    ids=["completed", "cancelled", "started", "parked"],
)
def test_job_that_the_index_shows_as_it_was_is_left_as_it_is(minute: Minute, now: Job) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS))
    old = [
        found
        for shard in range(DUE_SHARDS)
        for found in minute.due_jobs.due(str(shard), until_ms=NOW_MS, limit=1)
    ]
    minute.world.jobs["acme", JOB_ID] = now
    minute.due_jobs.due = lambda *_, **__: old  # type: ignore[method-assign]

    assert minute.sweep() == Swept()
    assert minute.job == now
    assert minute.queue.sends == []


def test_job_that_is_gone_but_in_the_index_is_passed_over(minute: Minute) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS))
    minute.jobs.get = lambda *_: None  # type: ignore[method-assign]

    assert minute.sweep() == Swept()


def test_job_that_starts_while_it_is_swept_is_not_sent(minute: Minute) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS))
    read = minute.jobs.get

    def get_and_start(tenant: str, job_id: str) -> Job | None:
        job = read(tenant, job_id)
        minute.world.jobs[tenant, job_id] = processing()
        return job

    minute.jobs.get = get_and_start  # type: ignore[method-assign]

    assert minute.sweep() == Swept()
    assert minute.job == processing()


# ------------------------------------------------------------------ bounded work


def test_healthy_backlog_of_twenty_thousand_jobs_is_no_storm(
    minute: Minute, capsys: pytest.CaptureFixture[str]
) -> None:
    # Queued for an hour, a message of each in its lane: a quarter of an hour looks at each once.
    for number, job in enumerate(minute.put_many(20_000, resends=4)):
        minute.world.jobs["acme", job.job_id] = replace(
            job, due_at_epoch_ms=NOW_MS + MINUTE_MS + number * LONGEST_MS // 20_000
        )
    minute.queue.backlogs = {"interactive": 20_000}

    sweeps = list(minute.sweep_each_minute(15))

    looks = sum(swept.sent + swept.postponed for swept in sweeps)
    most = max(swept.sent + swept.postponed for swept in sweeps)
    sends = sum(swept.sent for swept in sweeps)
    queries = sum(minute.calls[f"query {kind}"] for kind in ("due", "indexed", "counted"))
    with capsys.disabled():
        print(  # noqa: T201 - the measured case of the issue
            f"\n20,000 healthy jobs, 15 sweeps: {sends} sends, {queries} queries, {looks} reads "
            f"and {minute.calls['update']} updates; at most {most} jobs a sweep"
        )
    assert max(swept.sent for swept in sweeps) <= LEAST_SENDS
    assert looks == minute.calls["update"] <= 20_000
    assert most <= 1_400
    assert queries == 15 * 2 * DUE_SHARDS
    assert sends == len(minute.queue.sends)


def test_backlog_that_is_due_all_at_once_is_looked_at_page_by_page(minute: Minute) -> None:
    minute.put_many(5_000)
    minute.queue.backlogs = {"interactive": 5_000}
    minute.clock.advance(ms=120_000)

    sweeps = list(minute.sweep_each_minute(3))

    assert [swept.sent for swept in sweeps] == [LEAST_SENDS] * 3
    assert all(swept.sent + swept.postponed <= DUE_SHARDS * PAGE for swept in sweeps)
    assert all(job.resends >= 1 for job in minute.world.jobs.values())


def test_healthy_backlog_sends_the_oldest_and_moves_the_others(minute: Minute) -> None:
    jobs = minute.put_many(150)
    for number, job in enumerate(jobs):
        minute.world.jobs["acme", job.job_id] = replace(job, due_at_epoch_ms=NOW_MS - number)
    minute.queue.backlogs = {"interactive": 150}

    assert minute.sweep() == Swept(sent=100, postponed=50)
    assert [job_id for _, _, job_id in minute.queue.sends] == [
        job.job_id for job in reversed(jobs[50:])
    ]
    assert {job.due_at_epoch_ms for job in minute.world.jobs.values()} == {NOW_MS + 120_000}


def test_parked_job_whose_message_was_not_sent_is_sent_by_the_next_sweep(minute: Minute) -> None:
    parked = minute.put(replace(a_job(), parked=True, due_at_epoch_ms=NOW_MS))
    minute.queue.broken = True

    assert minute.sweep() == Swept(postponed=1)
    assert minute.job == parked
    minute.queue.broken = False
    assert minute.sweep() == Swept(sent=1)


@pytest.mark.parametrize("poll", [True, False])
def test_lanes_that_can_not_be_measured_keep_no_deadline_from_passing(
    minute: Minute, *, poll: bool
) -> None:
    minute.put(a_job(deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS))
    minute.queue.broken = True

    assert minute.sweep(poll=poll) == Swept(failed=1)


def test_lane_that_lost_its_messages_is_sent_all_of_them(minute: Minute) -> None:
    minute.put_many(500, due_at_epoch_ms=NOW_MS)
    minute.queue.backlogs = {"interactive": 150}

    assert minute.sweep() == Swept(sent=350, postponed=150)


def test_backlog_of_one_lane_takes_nothing_from_the_other(minute: Minute) -> None:
    minute.put_many(300, lane="batch", due_at_epoch_ms=NOW_MS)
    minute.queue.backlogs = {"batch": 300}
    minute.put(a_job(due_at_epoch_ms=NOW_MS))

    assert minute.sweep() == Swept(sent=101, postponed=200)


def test_parked_jobs_are_all_sent_at_their_time_beside_a_healthy_backlog(minute: Minute) -> None:
    healthy = minute.put_many(150, due_at_epoch_ms=NOW_MS - 1)
    parked = [
        minute.put(replace(job, job_id=f"p{job.job_id}", parked=True, due_at_epoch_ms=NOW_MS))
        for job in healthy
    ]
    minute.queue.backlogs = {"interactive": 300}

    swept = minute.sweep()

    sent = {job_id for _, _, job_id in minute.queue.sends}
    assert swept == Swept(sent=250, postponed=50)
    assert {job.job_id for job in parked} <= sent


def test_parked_jobs_whose_messages_are_sent_are_part_of_a_healthy_backlog(
    minute: Minute,
) -> None:
    # Each was sent at its time and waits in a long lane now: another copy of all is a storm.
    minute.put_many(500, due_at_epoch_ms=NOW_MS, not_before_epoch_ms=NOW_MS - 120_000, parked=True)
    for key, job in list(minute.world.jobs.items()):
        minute.world.jobs[key] = replace(job, resends=1)
    minute.queue.backlogs = {"interactive": 500}

    assert minute.sweep().sent <= LEAST_SENDS


def test_sweep_stops_in_time_and_the_next_goes_on(minute: Minute) -> None:
    minute.put_many(20, due_at_epoch_ms=NOW_MS)
    left = iter([9_000] * 7 + [4_999])

    def time_left() -> int:
        return next(left)

    sweeper = Sweeper(
        flags=FakeFlags(),
        bus=FakeBus(),
        jobs=minute.jobs,
        state=minute.state,
        due_jobs=minute.due_jobs,
        queue=minute.queue,
        clock=minute.clock,
        telemetry=minute.telemetry,
        time_left_ms=time_left,
        pause=minute.pause_sweep,
        gates=minute.gates,
        latencies=InMemoryLatencies(World()),
        catalogue=Catalogue(),
        backlogs=minute.backlogs,
        workers=WORKERS,
    )

    first = sweep_jobs(sweeper)

    assert first == Swept(sent=7)
    assert minute.sweep() == Swept(sent=13)


def test_one_sweep_takes_a_page_of_each_shard(minute: Minute) -> None:
    shard = transitions.due_shard(JOB_ID)
    for number in range(PAGE + 5):
        job_id = f"job_{number}"
        minute.put(a_job(job_id=job_id, due_shard=shard, due_at_epoch_ms=NOW_MS))

    assert minute.sweep() == Swept(sent=PAGE)
    assert minute.sweep() == Swept(sent=5)


def test_job_that_can_not_be_written_does_not_keep_the_others_waiting(minute: Minute) -> None:
    # The oldest job is always looked at first: an error of it would stop each minute's sweep.
    stuck, other = minute.put_many(2, due_at_epoch_ms=NOW_MS)
    minute.world.jobs["acme", stuck.job_id] = replace(
        stuck, deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS - 1
    )
    minute.world.counters_busy = True

    with suppress(StoreBusyError):
        minute.sweep()

    assert ("interactive", "acme", other.job_id) in minute.queue.sends


# ------------------------------------------------------------------ polling


def parks(minute: Minute, wait_ms: int, job_id: str = JOB_ID) -> Callable[[], object]:
    """Somebody parks a job for that long."""
    return lambda: minute.put(
        transitions.parked(
            a_job(job_id=job_id, job_key=job_id), not_before_ms=minute.clock.now_ms() + wait_ms
        )
    )


@pytest.fixture
def busy(minute: Minute) -> Minute:
    """One job is open, and not due for long."""
    minute.put(a_job(job_id="job_other", due_at_epoch_ms=NOW_MS + LONGEST_MS))
    return minute


def test_job_that_is_parked_while_a_sweep_polls_is_sent_at_its_time(busy: Minute) -> None:
    busy.in_pauses = [lambda: None, parks(busy, 7_200)]

    swept = busy.sweep(poll=True)

    assert swept == Swept(sent=1)
    assert busy.queue.sends == [("interactive", "acme", JOB_ID)]
    assert busy.queue.delays == [8]


@pytest.mark.parametrize("turn", range(9))
def test_wait_that_ends_between_two_polls_is_late_by_one_of_them(busy: Minute, turn: int) -> None:
    busy.in_pauses = [*[lambda: None] * turn, parks(busy, 100)]

    busy.sweep(poll=True)

    (sent_ms,) = [job.due_at_epoch_ms - 120_000 for job in [busy.job] if job.due_at_epoch_ms]
    assert 0 <= sent_ms - (busy.job.not_before_epoch_ms or 0) <= POLL_EVERY_MS


def test_sweep_polls_until_its_function_is_nearly_over(busy: Minute) -> None:
    busy.sweep(poll=True)

    assert busy.time_left_ms == STOP_BEFORE_END_MS
    assert busy.clock.now_ms() == NOW_MS + 50_000


def test_sweep_of_a_function_that_lasts_longer_ends_before_the_next_one(busy: Minute) -> None:
    busy.time_left_ms = 300_000

    busy.sweep(poll=True)

    assert busy.clock.now_ms() < NOW_MS + MINUTE_MS


@pytest.mark.parametrize("jump_s", [6, -6, 3600, -3600])
def test_sweep_whose_clock_jumps_ends_and_the_next_goes_on(busy: Minute, jump_s: int) -> None:
    pauses: list[None] = []

    def jump() -> None:
        pauses.append(None)
        busy.clock.advance(s=jump_s)

    busy.in_pauses = [jump, *[lambda: pauses.append(None)] * 99]
    busy.sweep(poll=True)
    assert len(pauses) <= 11

    busy.clock.set(NOW_MS + 120_000)  # by another's clock, which is right
    busy.time_left_ms = 55_000
    busy.put(a_job(job_id="job_late", due_at_epoch_ms=NOW_MS + 120_000))
    busy.sweep(poll=True)

    assert ("interactive", "acme", "job_late") in busy.queue.sends
    told = busy.backlogs.read().at(busy.clock.now_ms())
    assert told.waiting() >= 1


def test_sweep_without_open_jobs_ends_at_once(minute: Minute) -> None:
    minute.put(transitions.failed(a_job(), ERROR, now_ms=NOW_MS, last_receive=False))
    minute.in_pauses = [parks(minute, 1_000, "job_late")]

    assert minute.sweep(poll=True) == Swept()
    assert minute.clock.now_ms() == NOW_MS


def test_sweep_by_hand_is_one_pass(busy: Minute) -> None:
    busy.in_pauses = [parks(busy, 1_000)]

    assert busy.sweep() == Swept()
    assert busy.clock.now_ms() == NOW_MS


def test_polls_only_look_for_what_is_due_and_paint_the_backlog(busy: Minute) -> None:
    busy.sweep(poll=True)

    assert busy.calls == {"query indexed": 11 * DUE_SHARDS, "query due": 11 * DUE_SHARDS}
    assert busy.telemetry.names == ["lane_measured", "lane_measured", "jobs_swept"]


def test_row_that_nobody_moved_is_looked_at_once_in_a_sweep(busy: Minute) -> None:
    # Behind another's lease it can't be failed, and the tables shouldn't be asked each time.
    busy.put(a_job(deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS))
    busy.hold_lease()
    tries: list[str] = []
    write = busy.jobs.apply

    def apply(old: Job, new: Job, **named: Any) -> Applied | Moved | LeaseHeld:
        tries.append(old.job_id)
        return write(old, new, **named)

    busy.jobs.apply = apply  # type: ignore[method-assign]

    busy.sweep(poll=True)

    assert tries == [JOB_ID]


def test_backlog_of_a_polling_sweep_is_sent_no_more_than_that_of_one_pass(busy: Minute) -> None:
    busy.put_many(2_500, due_at_epoch_ms=NOW_MS)
    busy.queue.backlogs = {"interactive": 2_500, "batch": 10}  # nobody is idle

    swept = busy.sweep(poll=True)

    assert swept == Swept(sent=LEAST_SENDS, postponed=2_400)


def test_polling_sweep_that_could_do_nothing_is_an_error(busy: Minute) -> None:
    busy.put(a_job(deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS))
    busy.world.counters_busy = True

    with pytest.raises(StoreBusyError):
        busy.sweep(poll=True)


# ------------------------------------------------------------------ many sweeps at once


def test_failure_that_ten_sweeps_write_at_once_is_told_once(minute: Minute) -> None:
    # All of them have read the job before the first one writes, in the same millisecond.
    stale = minute.put(a_job(deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS))
    (seen,) = minute.due_jobs.due(stale.due_shard or "", until_ms=NOW_MS, limit=1)
    minute.due_jobs.due = lambda shard, **_: [seen] * (shard == "0")  # type: ignore[method-assign]

    class Stale(InMemoryJobs):
        """Whose first look is at the job as it was."""

        looks = 0

        def get(self, tenant: str, job_id: str) -> Job | None:
            self.looks += 1
            return stale if self.looks == 1 else super().get(tenant, job_id)

    for _ in range(10):
        minute.store = Stale(minute.world, clock=minute.clock)
        minute.sweep()

    assert minute.telemetry.names.count("job_failed") == 1
    assert minute.job.status is JobStatus.FAILED
    assert minute.world.open_jobs("acme") == 0


# ------------------------------------------------------------------ what it measures


def long_backlog(minute: Minute, each: int, **members: Any) -> None:
    """So many jobs in each shard, which are enqueued now and are not due."""
    for shard in range(DUE_SHARDS):
        for n in range(each):
            job_id = f"job_{shard}_{n}"
            minute.put(waiting(0, **{"job_id": job_id, "due_shard": str(shard)} | members))


@pytest.fixture
def reads_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep reads 80 jobs one by one at most, and half of them before it begins no shard."""
    monkeypatch.setattr(module, "MOST_READ", 80)


@pytest.mark.usefixtures("reads_few")
@pytest.mark.parametrize(("each", "counts"), [(5, 0), (6, 1), (50, 7)])
def test_long_backlog_is_counted_and_not_read_beyond_so_many_jobs(
    minute: Minute, each: int, counts: int
) -> None:
    long_backlog(minute, each)

    minute.sweep()

    assert minute.measured["interactive"][0] == each * DUE_SHARDS
    assert minute.calls["query counted"] == counts
    assert minute.whole == {"interactive": True, "batch": True}


@pytest.mark.usefixtures("reads_few")
def test_shard_that_is_too_long_is_read_in_part_and_counted(minute: Minute) -> None:
    for n in range(200):
        minute.put(waiting(0, job_id=f"job_{n}", due_shard="3"))

    minute.sweep()

    assert minute.measured["interactive"][0] == 200
    assert minute.whole["interactive"]


@pytest.mark.usefixtures("reads_few")
@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_oldest_of_a_long_backlog_is_exact_wherever_it_is(minute: Minute, lane: str) -> None:
    long_backlog(minute, 50)
    minute.put(waiting(70_000, job_id="job_old", due_shard="7", lane=lane))

    minute.sweep()

    assert minute.measured[lane][1] == 70_000
    assert minute.backlogs.read().waits[lane].oldest_epoch_ms == NOW_MS - 70_000


@pytest.mark.usefixtures("reads_few")
def test_oldest_of_a_long_backlog_is_none_that_a_pause_keeps(minute: Minute) -> None:
    long_backlog(minute, 50)
    minute.put(waiting(80_000, job_id="job_paused", due_shard="7", tenant="globex"))
    minute.put(waiting(70_000, job_id="job_old", due_shard="6"))
    minute.state.pause_tenant("globex")

    minute.sweep()

    assert minute.measured["interactive"][1] == 70_000


@pytest.mark.usefixtures("reads_few")
def test_degraded_mode_begins_by_the_age_of_one_job_in_a_long_backlog(minute: Minute) -> None:
    long_backlog(minute, 50)
    minute.put(waiting(AFTER_MS * 2, job_id="job_late", due_shard="0", status=JobStatus.RETRYING))
    minute.put(waiting(AFTER_MS, job_id="job_old", due_shard="7"))

    minute.sweep()

    assert minute.state.read().degraded


@pytest.mark.usefixtures("reads_few")
def test_everyone_at_work_is_known_beside_a_long_backlog(minute: Minute) -> None:
    long_backlog(minute, 50)
    for n in range(4):
        minute.put(waiting(0, job_id=f"job_at_{n}", due_shard="7", status=JobStatus.PROCESSING))

    minute.sweep()

    assert minute.backlogs.read().groups[0].running == 4


@pytest.mark.usefixtures("reads_few")
def test_open_jobs_of_a_long_backlog_are_exact_however_unlike_its_shards_are(
    minute: Minute,
) -> None:
    long_backlog(minute, 50)
    for n in range(30):
        minute.put(waiting(0, job_id=f"job_at_{n}", due_shard="7", status=JobStatus.PROCESSING))
        minute.put(waiting(9_000, job_id=f"job_gone_{n}", due_shard="6", model="gone"))

    minute.sweep()

    assert minute.measured["interactive"] == (430, 0)
    assert minute.backlogs.read().open == 460


@pytest.mark.usefixtures("reads_few")
def test_what_ended_is_no_part_of_a_long_backlog(minute: Minute) -> None:
    for n in range(800):
        status = JobStatus.QUEUED if n % 2 else JobStatus.FAILED
        due = {"due_shard": str(n % 16 // 2), "due_at_epoch_ms": NOW_MS + LONGEST_MS + n}
        minute.put(waiting(0, job_id=f"job_{n}", status=status, **due))

    minute.sweep()

    assert minute.measured["interactive"][0] == 400


@pytest.mark.usefixtures("reads_few")
@pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.FAILED])
def test_long_index_in_which_nobody_waits_is_no_backlog(minute: Minute, status: JobStatus) -> None:
    long_backlog(minute, 50, status=status)

    minute.sweep()

    assert minute.measured["interactive"] == (0, 0)
    assert minute.backlogs.read().waiting() == 0


def test_job_that_another_clock_enqueued_later_is_of_no_age(minute: Minute) -> None:
    minute.put(waiting(-5_000))

    minute.sweep()

    assert minute.measured["interactive"] == (1, 0)


@pytest.mark.usefixtures("reads_few")
@pytest.mark.parametrize(("messages", "sent"), [(400, 5), (385, 5), (300, 100)])
def test_estimated_backlog_is_sent_again_only_when_messages_are_surely_missing(
    minute: Minute, monkeypatch: pytest.MonkeyPatch, messages: int, sent: int
) -> None:
    monkeypatch.setattr(module, "LEAST_SENDS", 5)
    long_backlog(minute, 50, due_at_epoch_ms=NOW_MS)
    minute.queue.backlogs = {"interactive": messages}

    assert minute.sweep().sent == sent


@pytest.mark.usefixtures("reads_few")
def test_counting_of_a_long_backlog_ends_in_time_and_says_so(minute: Minute) -> None:
    long_backlog(minute, 50)
    counted = minute.due_jobs.counted

    def slowly(shard: str, **asked: Any) -> Iterator[tuple[int, list[IndexedJob]]]:
        for part in counted(shard, **asked):
            minute.clock.advance(ms=MEASURE_WITHIN_MS + 1)
            yield part

    minute.due_jobs.counted = slowly  # type: ignore[method-assign]

    minute.sweep()

    assert 50 < minute.measured["interactive"][0] < 400
    assert not minute.whole["interactive"]


def test_measuring_ends_in_time_and_the_jobs_are_helped_all_the_same(minute: Minute) -> None:
    minute.put_many(10, due_at_epoch_ms=NOW_MS)
    minute.read_slowly(MEASURE_WITHIN_MS // 4)

    swept = minute.sweep()

    assert minute.measured["interactive"][0] == 4
    assert not minute.whole["interactive"]
    assert swept == Swept(sent=10)


def test_sweep_that_had_no_time_to_count_an_open_job_polls_all_the_same(minute: Minute) -> None:
    minute.put(a_job())
    minute.read_slowly(MEASURE_WITHIN_MS + 1)
    pauses: list[None] = []
    minute.in_pauses = [lambda: pauses.append(None)]

    minute.sweep(poll=True)

    assert pauses


def test_sweep_tells_depth_and_oldest_age_of_each_lane(minute: Minute) -> None:
    minute.put(a_job(job_id="job_1", lane="batch", enqueued_at_epoch_ms=NOW_MS - 5_000))
    minute.put(a_job(job_id="job_2", lane="batch", enqueued_at_epoch_ms=NOW_MS - 70_000))
    minute.put(a_job(job_id="job_3", enqueued_at_epoch_ms=NOW_MS - 1))

    minute.sweep()

    assert minute.measured == {"batch": (2, 70_000), "interactive": (1, 1)}


def test_jobs_that_are_worked_on_or_ended_are_not_measured(minute: Minute) -> None:
    minute.put(processing(job_id="job_1"))
    minute.put(transitions.failed(a_job(), ERROR, now_ms=NOW_MS, last_receive=False))

    minute.sweep()

    assert minute.measured == {"batch": (0, 0), "interactive": (0, 0)}


def test_sweep_tells_what_it_did(minute: Minute) -> None:
    minute.put(a_job(due_at_epoch_ms=NOW_MS))

    minute.sweep()

    assert minute.telemetry.events[-1] == (
        "jobs_swept",
        None,
        {"sent": 1, "postponed": 0, "failed": 0, "dead_lettered": 0, "settled": 0},
    )
    assert "job_resent" in minute.telemetry.names


def test_claim_of_a_job_that_waits_outlives_every_look(minute: Minute) -> None:
    minute.put(a_job())
    minute.world.claims["other"] = Claim("job_other", NOW_MS)
    for _ in minute.sweep_each_minute(60):
        assert minute.world.claims[minute.job.job_key].job_id == JOB_ID
        assert minute.world.open_jobs("acme") == 1


def test_job_behind_anothers_lease_is_not_failed_and_not_forgotten(minute: Minute) -> None:
    minute.put(a_job(deadline_epoch_ms=NOW_MS, due_at_epoch_ms=NOW_MS))
    minute.world.leases[CACHE_KEY] = LeaseRow("job_other", "their-token", 1, NOW_MS + LEASE_MS)
    before = minute.sweep()
    minute.world.leases.clear()

    assert before == Swept()
    assert minute.sweep() == Swept(failed=1)


# ------------------------------------------------------------------ degraded mode

AFTER_MS, UNTIL_MS = 900_000, 300_000


def waiting(age_ms: int, **members: Any) -> Job:
    """A job that waits for its first run since then, and is not due."""
    members = {"due_at_epoch_ms": NOW_MS + LONGEST_MS} | members
    return a_job(enqueued_at_epoch_ms=NOW_MS - age_ms, **members)


@pytest.mark.parametrize("lane", ["interactive", "batch"])
@pytest.mark.parametrize(("age_ms", "begins"), [(AFTER_MS - 1, False), (AFTER_MS, True)])
def test_degraded_mode_begins_when_the_oldest_queued_job_of_any_lane_is_too_old(
    minute: Minute, lane: str, age_ms: int, *, begins: bool
) -> None:
    minute.put(waiting(age_ms, lane=lane))
    minute.put(waiting(1, job_id="job_young"))

    minute.sweep()

    assert minute.world.degraded_since_epoch_ms == (NOW_MS if begins else None)
    told = [("degraded_began", {"reason": "age", "oldest_job_age_ms": AFTER_MS})]
    assert minute.switches == (told if begins else [])


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.QUEUED}))
def test_jobs_that_wait_for_no_first_run_begin_no_degraded_mode(
    minute: Minute, status: JobStatus
) -> None:
    minute.put(waiting(10 * AFTER_MS, status=status))

    minute.sweep()

    assert minute.switches == []


@pytest.mark.parametrize("why", ["paused model", "closed gate", "paused tenant", "full gate"])
def test_jobs_that_are_kept_out_are_of_no_age(minute: Minute, why: str) -> None:
    minute.models = {"demo-chat": Model(vendor="v", vendor_model="m", version="1")}
    minute.put(waiting(AFTER_MS))
    if why == "paused tenant":
        minute.world.paused_tenants.add(minute.job.tenant)
    else:
        minute.world.gates[key_of("v", "m")] = {
            "paused model": Gate(paused=True),
            "closed gate": Gate(closed_until_ms=NOW_MS + 1),
            "full gate": Gate(next_request_at_us=(NOW_MS + 3_600_000) * 1000),
        }[why]

    minute.sweep()

    age_ms = AFTER_MS if why == "full gate" else 0
    assert minute.measured["interactive"] == (1, age_ms)
    assert minute.state.read().degraded is (why == "full gate")


@pytest.mark.parametrize(("age_ms", "ends"), [(UNTIL_MS - 1, True), (UNTIL_MS, False)])
def test_degraded_mode_ends_when_no_queued_job_is_old_any_more(
    minute: Minute, age_ms: int, *, ends: bool
) -> None:
    minute.world.degraded_since_epoch_ms = NOW_MS - 90_500
    minute.put(waiting(age_ms))
    minute.put(waiting(10 * AFTER_MS, job_id="job_late", status=JobStatus.RETRYING))

    minute.sweep()

    assert minute.state.read().degraded is not ends
    assert minute.switches == ([("degraded_ended", {"degraded_s": 90})] if ends else [])


def test_degraded_mode_ends_when_nothing_waits(minute: Minute) -> None:
    minute.world.degraded_since_epoch_ms = NOW_MS

    minute.sweep()

    assert not minute.state.read().degraded


@pytest.mark.parametrize("since_ms", [None, NOW_MS - 1], ids=["good times", "degraded"])
@pytest.mark.parametrize("age_ms", [UNTIL_MS, AFTER_MS - 1])
def test_degraded_mode_stays_as_it_is_between_its_bounds(
    minute: Minute, since_ms: int | None, age_ms: int
) -> None:
    minute.world.degraded_since_epoch_ms = since_ms
    minute.put(waiting(age_ms))

    minute.sweep()

    assert minute.world.degraded_since_epoch_ms == since_ms
    assert minute.switches == []


def test_degraded_mode_is_not_ended_by_a_measure_that_is_not_whole(minute: Minute) -> None:
    minute.read_slowly(MEASURE_WITHIN_MS)
    minute.world.degraded_since_epoch_ms = NOW_MS - 1
    for number in range(2):
        minute.put(waiting(1, job_id=f"job_{number}", due_shard="3"))

    minute.sweep()

    assert minute.state.read().degraded


def test_degraded_mode_begins_by_a_measure_that_is_not_whole(minute: Minute) -> None:
    minute.read_slowly(MEASURE_WITHIN_MS)
    for number in range(2):
        minute.put(waiting(AFTER_MS, job_id=f"job_{number}", due_shard="3"))

    minute.sweep()

    assert minute.state.read().degraded


def test_degraded_mode_is_told_of_when_it_changes_and_not_each_minute(minute: Minute) -> None:
    job = minute.put(waiting(AFTER_MS))
    began = list(minute.sweep_each_minute(3))
    minute.world.jobs["acme", job.job_id] = replace(job, status=JobStatus.COMPLETED)
    ended = list(minute.sweep_each_minute(2))

    assert (len(began), len(ended)) == (3, 2)
    assert [name for name, _ in minute.switches] == ["degraded_began", "degraded_ended"]


@pytest.mark.parametrize(
    ("since_ms", "age_ms", "told"),
    [(None, AFTER_MS, "degraded_began"), (NOW_MS - 1, 0, "degraded_ended")],
)
def test_degraded_mode_that_two_sweepers_switch_is_told_of_once(
    minute: Minute, since_ms: int | None, age_ms: int, told: str
) -> None:
    minute.put(waiting(age_ms))

    class Stale(InMemoryState):
        """A process whose copy is from before the other's sweep."""

        def read(self) -> ServiceState:
            return ServiceState(degraded_since_epoch_ms=since_ms)

    minute.world.degraded_since_epoch_ms = since_ms
    for _ in range(2):
        minute.state = Stale(minute.world)
        minute.sweep()

    assert [name for name, _ in minute.switches] == [told]
    assert len(minute.bus.taken) == 1


def test_degraded_mode_is_begun_by_its_flag_whatever_the_age(minute: Minute) -> None:
    minute.flags = FakeFlags(degraded=True)

    minute.sweep()

    assert minute.state.read().degraded
    assert minute.switches == [("degraded_began", {"reason": "flag", "oldest_job_age_ms": 0})]


@pytest.mark.parametrize(
    ("by_flag", "age_ms", "lasts"),
    [
        (True, 0, True),
        (True, UNTIL_MS - 1, True),
        (False, UNTIL_MS, True),  # the hysteresis is as it is
        (False, UNTIL_MS - 1, False),
    ],
)
def test_degraded_mode_ends_when_its_flag_is_off_and_no_job_is_old(
    minute: Minute, age_ms: int, *, by_flag: bool, lasts: bool
) -> None:
    minute.world.degraded_since_epoch_ms = NOW_MS - 1
    minute.put(waiting(age_ms))
    minute.flags = FakeFlags(degraded=by_flag)

    minute.sweep()

    assert minute.state.read().degraded is lasts


def test_degraded_mode_that_age_began_is_kept_by_the_flag(minute: Minute) -> None:
    job = minute.put(waiting(AFTER_MS))
    minute.sweep()
    minute.flags = FakeFlags(degraded=True)
    minute.world.jobs["acme", job.job_id] = replace(job, status=JobStatus.COMPLETED)

    minute.sweep()
    kept = minute.state.read().degraded
    minute.flags = FakeFlags()
    minute.sweep()

    assert kept
    assert not minute.state.read().degraded
    assert [name for name, _ in minute.switches] == ["degraded_began", "degraded_ended"]


@pytest.mark.parametrize(
    ("by_flag", "age_ms", "actor", "reason"),
    [(False, AFTER_MS, "sweeper", "age"), (True, 0, "flag", "flag")],
)
def test_operators_are_notified_when_degraded_mode_begins_and_ends(
    minute: Minute, age_ms: int, actor: str, reason: str, *, by_flag: bool
) -> None:
    job = minute.put(waiting(age_ms))
    minute.flags = FakeFlags(degraded=by_flag)
    began_at = rfc3339(minute.clock.now_ms())
    minute.sweep()
    minute.sweep()
    minute.flags = FakeFlags()
    minute.world.jobs["acme", job.job_id] = replace(job, status=JobStatus.COMPLETED)
    minute.clock.advance(s=90)
    ended_at = rfc3339(minute.clock.now_ms())

    minute.sweep()

    assert [(one.source, one.detail_type, one.detail()) for one in minute.bus.taken] == [
        (
            "sluiceway.ops",
            "DegradedBegan",
            {
                "at": began_at,
                "subject": "service",
                "actor": actor,
                "reason": reason,
                "oldest_job_age_ms": age_ms,
            },
        ),
        (
            "sluiceway.ops",
            "DegradedEnded",
            {"at": ended_at, "subject": "service", "actor": "sweeper", "degraded_s": 90},
        ),
    ]


def test_bus_that_takes_no_notice_fails_no_sweep(minute: Minute) -> None:
    minute.put_many(3, due_at_epoch_ms=NOW_MS)
    minute.flags = FakeFlags(degraded=True)
    minute.bus = FakeBus(1)

    swept = minute.sweep()

    assert swept.sent == 3
    assert minute.state.read().degraded
    told = [fields for name, _, fields in minute.telemetry.events if name == "notice_lost"]
    assert told == [{"notice": "DegradedBegan"}]


def test_job_whose_model_nobody_knows_degrades_no_one(minute: Minute) -> None:
    minute.put(replace(waiting(900_000), model="demo-new"))

    minute.sweep()

    assert not minute.state.read().degraded


def test_bounds_of_degraded_mode_are_the_catalogues(minute: Minute) -> None:
    minute.service = Service(degraded_after_s=60, degraded_until_s=30)
    seen = []

    for age_ms in (59_999, 60_000, 30_000, 29_999):
        minute.put(waiting(age_ms))
        minute.sweep()
        seen.append(minute.state.read().degraded)

    assert seen == [False, True, True, False]


def test_jobs_are_helped_though_the_state_can_not_be_read(minute: Minute) -> None:
    class Busy(InMemoryState):
        def read(self) -> NoReturn:
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    minute.state = Busy(minute.world)
    minute.put(a_job(due_at_epoch_ms=NOW_MS))

    assert minute.sweep() == Swept(sent=1)
