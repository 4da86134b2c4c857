"""What holds when many come at once: threads on DynamoDB Local, which has real transactions."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import parse
from sluiceway.domain.counters import shard_caps
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import JobStatus
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.domain.payload import compress
from sluiceway.domain.request import CacheRequest, SubmitRequest
from sluiceway.ports import (
    Applied,
    CapReached,
    Claimed,
    DayBudget,
    Found,
    LeaseHeld,
    Moved,
    Started,
    Submitted,
)
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.cancel_job import cancel_job
from sluiceway.usecases.submit_job import Accepted, Hit, Origin, Submitter, submit_job

from tests.contract.harness import LEASE_MS, make_tables, start, store_on
from tests.fakes.examples import (
    a_job,
    a_refresh,
    an_entry,
    completed,
    failed,
    redriven,
    retrying,
)
from tests.fakes.in_memory import (
    NOW_MS,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryJobs,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    World,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.job import Job
    from sluiceway.ports import JobStore, ResultCache

    from tests.contract.harness import Store
    from tests.fakes.in_memory import FakeClock

T = TypeVar("T")

CATALOGUE = parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { scope = "none" }
    """
)


@pytest.fixture
def store(dynamodb_local_client: DynamoDBClient, clock: FakeClock) -> Store:
    """The real adapters as they are in production: they wait between tries, at random."""
    tables = make_tables(dynamodb_local_client, f"race-{secrets.token_hex(4)}")
    return store_on(dynamodb_local_client, tables, clock, pause=time.sleep, rand=random.random)


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Makes all calls at the same moment, and gives what they gave, in order."""
    line = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        line.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def kinds(outcomes: list[object]) -> Counter[str]:
    """How many outcomes of each kind there are."""
    return Counter(type(outcome).__name__ for outcome in outcomes)


def submits(store: Store, jobs: list[object], caps: list[int]) -> list[object]:
    """Submits all of them at once."""
    return at_once(*[lambda job=job: store.jobs.submit(job, shard_caps=caps) for job in jobs])


# ------------------------------------------------------------------------------------ submit


@pytest.mark.proves(2)
def test_fifty_equal_submits_make_one_job_and_all_name_it(store: Store) -> None:
    jobs = [replace(a_job(number), job_key=a_job(1).job_key) for number in range(1, 51)]

    outcomes = submits(store, jobs, shard_caps(1000))

    (winner,) = [outcome.job for outcome in outcomes if isinstance(outcome, Submitted)]
    assert kinds(outcomes) == {"Submitted": 1, "Claimed": 49}
    named = {outcome.job_id for outcome in outcomes if isinstance(outcome, Claimed)}
    assert named == {winner.job_id}
    assert store.rows.claim(a_job(1).job_key) == winner.job_id
    assert store.rows.in_flight("acme") == {winner.counter_shard: 1}
    assert sum(store.jobs.get("acme", job.job_id) is not None for job in jobs) == 1


@pytest.mark.proves(2)
def test_fifty_equal_submits_with_room_for_one_make_one_job_and_all_name_it(store: Store) -> None:
    jobs = [replace(a_job(number), job_key=a_job(1).job_key) for number in range(1, 51)]

    outcomes = submits(store, jobs, [1])

    assert kinds(outcomes) == {"Submitted": 1, "Claimed": 49}


def test_fifty_different_submits_are_all_written_and_counted(store: Store) -> None:
    jobs = [a_job(number) for number in range(1, 51)]

    outcomes = submits(store, jobs, shard_caps(1000))

    shards = [outcome.job.counter_shard for outcome in outcomes if isinstance(outcome, Submitted)]
    assert kinds(outcomes) == {"Submitted": 50}
    assert store.rows.in_flight("acme") == Counter(shards)
    assert all(store.rows.claim(job.job_key) == job.job_id for job in jobs)


@pytest.mark.parametrize("caps", [[5], [3, 2], [1, 1, 1, 1, 1]], ids=str)
def test_cap_of_five_lets_exactly_five_of_twenty_in(store: Store, caps: list[int]) -> None:
    jobs = [a_job(number) for number in range(1, 21)]

    outcomes = submits(store, jobs, caps)

    assert kinds(outcomes) == {"Submitted": 5, "CapReached": 15}
    assert store.rows.in_flight("acme") == dict(enumerate(caps))
    written = [
        store.jobs.get("acme", job.job_id) is not None
        for job, outcome in zip(jobs, outcomes, strict=True)
        if isinstance(outcome, CapReached)
    ]
    assert not any(written)


# ------------------------------------------------------------------------------------ start


@pytest.mark.proves(3, 6, 15)
def test_ten_starts_of_one_job_start_it_once(store: Store) -> None:
    job = store.submit(a_job())

    outcomes = at_once(*[lambda n=n: start(store, job, f"token-{n}") for n in range(10)])

    (started,) = [outcome for outcome in outcomes if isinstance(outcome, Started)]
    assert set(kinds(outcomes)) <= {"Started", "LeaseHeld", "Moved"}
    assert started.lease.fence == 1
    assert store.row(job) == started.job
    assert store.row(job).attempts == 1


@pytest.mark.proves(3)
def test_ten_starts_of_ten_jobs_on_one_key_start_one(store: Store) -> None:
    jobs = [
        store.submit(replace(a_job(number), cache_key=a_job(1).cache_key))
        for number in range(1, 11)
    ]

    outcomes = at_once(*[lambda job=job: start(store, job, job.job_id) for job in jobs])

    (started,) = [outcome for outcome in outcomes if isinstance(outcome, Started)]
    assert kinds(outcomes) == {"Started": 1, "LeaseHeld": 9}
    assert started.lease.fence == 1
    attempts = [store.row(job).attempts for job in jobs]
    assert sum(attempts) == 1


@pytest.mark.proves(3)
def test_ten_takeovers_of_a_dead_workers_lease_give_it_to_one(store: Store) -> None:
    dead, _ = store.start(store.submit(a_job()), "token-dead")
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)

    outcomes = at_once(*[lambda n=n: start(store, dead, f"token-{n}") for n in range(10)])

    (started,) = [outcome for outcome in outcomes if isinstance(outcome, Started)]
    row = store.rows.lease(dead.cache_key)
    assert row is not None
    assert (started.lease.fence, started.job.fence, row.fence) == (2, 2, 2)
    assert row.token == started.lease.token
    assert store.row(dead) == started.job


@pytest.mark.proves(3)
def test_takeovers_by_other_jobs_give_a_dead_workers_lease_to_one(store: Store) -> None:
    dead, _ = store.start(store.submit(a_job(1)), "token-dead")
    others = [
        store.submit(replace(a_job(number), cache_key=dead.cache_key)) for number in range(2, 12)
    ]
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)

    outcomes = at_once(*[lambda job=job: start(store, job, job.job_id) for job in others])

    (started,) = [outcome for outcome in outcomes if isinstance(outcome, Started)]
    assert kinds(outcomes) == {"Started": 1, "LeaseHeld": 9}
    assert started.lease.fence == 2


# ------------------------------------------------------------------------------------ the end


@pytest.mark.proves(5)
def test_two_finishes_of_one_worker_leave_one_result(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    def finish(text: bytes) -> object:
        return store.jobs.apply(
            processing, completed(processing, text), lease=lease, entry=an_entry(processing, text)
        )

    outcomes = at_once(lambda: finish(b"first"), lambda: finish(b"second"))

    row, entry = store.row(processing), store.cache.read(processing.cache_key)
    assert outcomes == [Applied(row), Applied(row)]
    assert entry is not None
    assert entry.result == row.result
    assert store.rows.in_flight("acme") == {}


@pytest.mark.proves(4)
def test_finish_of_a_former_holder_never_wins_over_its_successors(store: Store) -> None:
    late, lost = store.start(store.submit(a_job()), "token-1")
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)
    current, lease = store.start(late, "token-2")

    outcomes = at_once(
        lambda: store.jobs.apply(late, completed(late, b"late"), lease=lost),
        lambda: store.jobs.apply(current, completed(current, b"right"), lease=lease),
    )

    assert [type(outcome) for outcome in outcomes] == [Moved, Applied]
    assert store.row(current) == completed(current, b"right")
    assert store.rows.in_flight("acme") == {}


@pytest.mark.proves(4)
def test_finish_against_takeover_gives_the_job_to_one_of_them(store: Store) -> None:
    late, lease = store.start(store.submit(a_job()), "token-1")
    store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)

    finish, takeover = at_once(
        lambda: store.jobs.apply(late, completed(late), lease=lease, entry=an_entry(late)),
        lambda: start(store, late, "token-2"),
    )

    row = store.row(late)
    entry = store.cache.read(late.cache_key)
    if isinstance(finish, Applied):
        assert isinstance(takeover, Moved)
        assert (row, entry) == (completed(late), an_entry(late))
    else:
        assert isinstance(takeover, Started)
        assert (row, entry) == (takeover.job, None)


@pytest.mark.proves(5)
def test_finish_against_failure_ends_the_job_one_way(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    ends = [completed(processing), failed(processing)]

    outcomes = at_once(
        *[lambda end=end: store.jobs.apply(processing, end, lease=lease) for end in ends]
    )

    assert kinds(outcomes) == {"Applied": 1, "Moved": 1}
    (winner,) = [
        end for end, outcome in zip(ends, outcomes, strict=True) if isinstance(outcome, Applied)
    ]
    assert store.row(processing) == winner
    assert store.rows.claim(processing.job_key) is None
    assert store.rows.in_flight("acme") == {}


def test_retry_against_failure_settles_only_what_ended(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    retry, failure = at_once(
        lambda: store.jobs.apply(processing, retrying(processing), lease=lease),
        lambda: store.jobs.apply(processing, failed(processing), lease=lease),
    )

    assert kinds([retry, failure]) == {"Applied": 1, "Moved": 1}
    assert store.rows.in_flight("acme") == ({0: 1} if isinstance(retry, Applied) else {})


def test_failure_behind_a_workers_back_never_ends_a_job_that_starts(store: Store) -> None:
    jobs = [store.submit(a_job(number)) for number in range(1, 9)]
    now_ms = store.clock.now_ms()

    for job in jobs:
        failure, started = at_once(
            lambda job=job: store.jobs.apply(job, failed(job), unless_held_at_ms=now_ms),
            lambda job=job: start(store, job),
        )

        if isinstance(started, Started):
            assert isinstance(failure, LeaseHeld | Moved)
            assert store.row(job) == started.job
        else:
            assert isinstance(failure, Applied)
            assert store.row(job) == failed(job)


def test_ten_raises_of_a_lane_move_the_job_once(store: Store) -> None:
    job = store.submit(a_job(lane="batch"))

    raised = at_once(*[lambda: store.jobs.move_lane(job, "interactive")] * 10)

    assert sum(raised) == 1
    assert store.row(job).lane == "interactive"


def test_raise_of_a_lane_and_start_at_once_are_both_written(store: Store) -> None:
    job = store.submit(a_job(lane="batch"))

    raised, started = at_once(
        lambda: store.jobs.move_lane(job, "interactive"), lambda: start(store, job)
    )

    assert raised
    assert isinstance(started, Started)
    assert store.row(job) == replace(started.job, lane="interactive")


def test_counters_come_back_to_nothing_when_submits_meet_ends(store: Store) -> None:
    def live(number: int) -> None:
        outcome = store.jobs.submit(a_job(number), shard_caps=shard_caps(300))
        assert isinstance(outcome, Submitted)
        processing, lease = store.start(outcome.job, f"token-{number}")
        end = completed(processing) if number % 2 else failed(processing)
        assert store.jobs.apply(processing, end, lease=lease) == Applied(end)

    at_once(*[lambda number=number: live(number) for number in range(1, 21)])

    assert store.rows.in_flight("acme") == {}


def test_jobs_that_end_twice_at_once_are_each_in_the_usage_once(store: Store) -> None:
    jobs = [store.submit(a_job(number), caps=(4, 4)) for number in range(1, 9)]
    assert {job.counter_shard for job in jobs} == {0, 1}

    outcomes = at_once(
        *[
            lambda job=job, end=end: store.jobs.apply(job, end(job))
            for job in jobs
            for end in (completed, failed)
        ]
    )

    assert kinds(outcomes) == {"Applied": 8, "Moved": 8}
    ended = Counter(store.row(job).status.value for job in jobs)
    (usage,) = store.usage.read("acme", "2026-01-01", "2026-01-01")
    assert (usage.completed, usage.failed) == (ended["completed"], ended["failed"])


# ------------------------------------------------------------------------------------ cancel


@pytest.mark.proves(5)
def test_cancel_against_finish_ends_the_job_one_way(store: Store) -> None:
    for number in range(1, 9):
        processing, lease = store.start(store.submit(a_job(number)), f"token-{number}")
        cancelled = transitions.cancelled(processing, now_ms=NOW_MS + 2_000)

        finish, cancel = at_once(
            lambda processing=processing, lease=lease: store.jobs.apply(
                processing, completed(processing), lease=lease, entry=an_entry(processing)
            ),
            lambda processing=processing, cancelled=cancelled: store.jobs.apply(
                processing, cancelled
            ),
        )

        row, entry = store.row(processing), store.cache.read(processing.cache_key)
        assert kinds([finish, cancel]) == {"Applied": 1, "Moved": 1}
        if isinstance(finish, Applied):
            assert (row, entry) == (completed(processing), an_entry(processing))
        else:
            assert (row, entry) == (cancelled, None)
        assert store.rows.claim(processing.job_key) is None
    assert store.rows.in_flight("acme") == {}


@pytest.mark.proves(5)
def test_cancel_against_start_and_retry_is_never_undone(store: Store) -> None:
    def cancel(number: int) -> None:
        clock = store.clock
        assert cancel_job(a_job(number).job_id, "acme", jobs=store.jobs, clock=clock)

    def run(job: Job) -> None:
        started = start(store, job, f"token-{job.job_id}")
        if isinstance(started, Started):
            store.jobs.apply(started.job, retrying(started.job), lease=started.lease)

    jobs = [store.submit(a_job(number)) for number in range(1, 9)]
    for number, job in enumerate(jobs, start=1):
        at_once(lambda job=job: run(job), lambda number=number: cancel(number))

        assert store.row(job).status is JobStatus.CANCELLED
    assert store.rows.in_flight("acme") == {}


def test_ten_cancels_at_once_settle_the_job_once(store: Store) -> None:
    job = store.submit(a_job(1))
    store.submit(a_job(2))

    outcomes = at_once(
        *[lambda: cancel_job(job.job_id, "acme", jobs=store.jobs, clock=store.clock)] * 10
    )

    assert [outcome.job for outcome in outcomes] == [store.row(job)] * 10
    assert store.row(job).status is JobStatus.CANCELLED
    assert sum(store.rows.in_flight("acme").values()) == 1


# ------------------------------------------------------------------------------------ claims


def test_claim_of_a_new_job_against_the_finish_of_the_old_one_is_never_lost(store: Store) -> None:
    for number in range(1, 9):
        old, lease = store.start(store.submit(a_job(number)), f"token-{number}")
        new = replace(a_job(100 + number), job_key=old.job_key)

        finish, submit = at_once(
            lambda old=old, lease=lease: store.jobs.apply(old, completed(old), lease=lease),
            lambda new=new: store.jobs.submit(new, shard_caps=[100]),
        )

        assert isinstance(finish, Applied)
        claim = store.rows.claim(old.job_key)
        if isinstance(submit, Submitted):
            assert claim == new.job_id
        else:
            assert submit == Claimed(old.job_id)
            assert claim is None


# ------------------------------------------------------------------------------------ redrive


def test_two_redrives_at_once_count_the_job_once(store: Store) -> None:
    for number in range(1, 9):
        job = store.submit(a_job(number))
        old = failed(job, last_receive=True)
        store.jobs.apply(job, old)

        outcomes = at_once(*[lambda old=old: store.jobs.redrive(old, redriven(old))] * 2)

        assert outcomes == [Applied(redriven(old)), Applied(redriven(old))]
        assert store.row(job) == redriven(old)
        assert store.rows.claim(job.job_key) == job.job_id
    assert sum(store.rows.in_flight("acme").values()) == 8


def test_redrive_against_discard_does_one_of_them(store: Store) -> None:
    for number in range(1, 9):
        job = store.submit(a_job(number))
        old = failed(job, last_receive=True)
        store.jobs.apply(job, old)
        discarded = transitions.discarded(old, now_ms=NOW_MS)

        redrive, discard = at_once(
            lambda old=old: store.jobs.redrive(old, redriven(old)),
            lambda old=old, discarded=discarded: store.jobs.apply(old, discarded),
        )

        assert kinds([redrive, discard]) == {"Applied": 1, "Moved": 1}
        won = isinstance(redrive, Applied)
        assert store.row(job) == (redriven(old) if won else discarded)
        assert store.rows.claim(job.job_key) == (job.job_id if won else None)


def test_redrive_against_an_equal_submit_leaves_the_claim_to_one_of_them(store: Store) -> None:
    for number in range(1, 9):
        job = store.submit(a_job(number))
        old = failed(job, last_receive=True)
        store.jobs.apply(job, old)
        twin = replace(a_job(100 + number), job_key=job.job_key)

        redrive, submit = at_once(
            lambda old=old: store.jobs.redrive(old, redriven(old)),
            lambda twin=twin: store.jobs.submit(twin, shard_caps=[100]),
        )

        assert redrive == Applied(redriven(old))
        holder = twin.job_id if isinstance(submit, Submitted) else job.job_id
        assert store.rows.claim(job.job_key) == holder


# ------------------------------------------------------------------------------------ told once


@pytest.mark.parametrize(
    "end",
    [
        failed,
        lambda job: failed(job, last_receive=True),
        lambda job: transitions.cancelled(job, now_ms=NOW_MS + 1000),
        lambda job: transitions.parked(job, not_before_ms=NOW_MS + 300_000),
    ],
    ids=["failed", "dead_lettered", "cancelled", "parked"],
)
def test_transition_that_ten_processes_make_at_once_is_told_to_one(
    dynamodb_local_client: DynamoDBClient, clock: FakeClock, end: Callable[[Job], Job]
) -> None:
    tables = make_tables(dynamodb_local_client, f"race-{secrets.token_hex(4)}")
    processes = [
        store_on(dynamodb_local_client, tables, clock, pause=time.sleep, rand=random.random).jobs
        for _ in range(10)
    ]
    for number in range(1, 5):
        job = a_job(number)
        processes[0].submit(job, shard_caps=[100])

        outcomes = at_once(
            *[lambda jobs=jobs, job=job: jobs.apply(job, end(job)) for jobs in processes]
        )

        assert kinds(outcomes) == {"Applied": 1, "Moved": 9}
        assert [outcome.job for outcome in outcomes] == [end(job)] * 10


def test_redrive_that_two_processes_make_at_once_is_told_to_one(
    dynamodb_local_client: DynamoDBClient, clock: FakeClock
) -> None:
    tables = make_tables(dynamodb_local_client, f"race-{secrets.token_hex(4)}")
    one, two = (
        store_on(dynamodb_local_client, tables, clock, pause=time.sleep, rand=random.random)
        for _ in range(2)
    )
    for number in range(1, 9):
        job = one.submit(a_job(number))
        old = failed(job, last_receive=True)
        one.jobs.apply(job, old)

        outcomes = at_once(
            *[lambda old=old, of=of: of.jobs.redrive(old, redriven(old)) for of in (one, two)]
        )

        assert kinds(outcomes) == {"Applied": 1, "Moved": 1}
    assert sum(one.rows.in_flight("acme").values()) == 8


# ------------------------------------------------------------------------------------ the sweep


def test_two_sweeps_at_once_move_a_job_once(store: Store) -> None:
    for number in range(1, 9):
        job = store.submit(a_job(number))

        moved = at_once(
            *[
                lambda job=job, ms=ms: store.due_jobs.postpone(job, due_at_ms=NOW_MS + ms)
                for ms in (500_000, 500_001)
            ]
        )

        assert sorted(moved) == [False, True]
        assert store.row(job).resends == 1


@pytest.mark.proves(1)
def test_postponement_against_a_start_never_hides_a_dead_workers_job(store: Store) -> None:
    for number in range(1, 9):
        job = store.submit(a_job(number))

        _, started = at_once(
            lambda job=job: store.due_jobs.postpone(job, due_at_ms=NOW_MS + 900_000),
            lambda job=job: start(store, job),
        )

        assert isinstance(started, Started)
        assert store.row(job).due_at_epoch_ms == started.job.due_at_epoch_ms


def test_ten_settlings_at_once_settle_once(store: Store) -> None:
    store.submit(a_job(2))
    job = store.submit(a_job(1))
    marked = replace(completed(job), unsettled=True, due_at_epoch_ms=1, due_shard=job.due_shard)
    store.rows.put_job(marked)

    at_once(*[lambda: store.jobs.settle(marked)] * 10)

    assert sum(store.rows.in_flight("acme").values()) == 1
    assert store.rows.claim(job.job_key) is None
    assert not store.row(job).unsettled


# ------------------------------------------------------------------------------------ renewal


@pytest.mark.proves(3)
def test_renewal_against_takeover_gives_the_lease_to_one_of_them(store: Store) -> None:
    for number in range(1, 9):
        late, lease = store.start(store.submit(a_job(number)), "token-1")
        now_ms = store.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)

        renewed, taken = at_once(
            lambda late=late, lease=lease, now_ms=now_ms: store.jobs.renew(
                late, lease, ends_at_ms=now_ms + LEASE_MS
            ),
            lambda late=late: start(store, late, "token-2"),
        )

        row = store.rows.lease(late.cache_key)
        assert row is not None
        assert (renewed is None) is isinstance(taken, Started)
        assert row.token == ("token-1" if renewed else "token-2")
        assert row.fence == store.row(late).fence == (1 if renewed else 2)


def test_renewal_against_cancel_never_revives_the_job(store: Store) -> None:
    for number in range(1, 9):
        processing, lease = store.start(store.submit(a_job(number)), "token-1")
        cancelled = transitions.cancelled(processing, now_ms=NOW_MS)

        cancel, _ = at_once(
            lambda processing=processing, cancelled=cancelled: store.jobs.apply(
                processing, cancelled
            ),
            lambda processing=processing, lease=lease: store.jobs.renew(
                processing, lease, ends_at_ms=NOW_MS + 2 * LEASE_MS
            ),
        )

        assert cancel == Applied(cancelled)
        assert store.row(processing) == cancelled
        assert store.jobs.renew(processing, lease, ends_at_ms=NOW_MS + 3 * LEASE_MS) is None


def test_renewal_against_the_finish_leaves_the_key_free(store: Store) -> None:
    for number in range(1, 9):
        processing, lease = store.start(store.submit(a_job(number)), "token-1")

        finish, _ = at_once(
            lambda processing=processing, lease=lease: store.jobs.apply(
                processing, completed(processing), lease=lease
            ),
            lambda processing=processing, lease=lease: store.jobs.renew(
                processing, lease, ends_at_ms=NOW_MS + 2 * LEASE_MS
            ),
        )

        assert finish == Applied(completed(processing))
        row = store.rows.lease(processing.cache_key)
        assert row is not None
        assert (row.token, row.ends_at_epoch_ms) == (None, 0)


# ------------------------------------------------------------------------------------ both ends


@pytest.mark.proves(1, 2)
@pytest.mark.parametrize("end", [completed, failed])
def test_submits_that_race_the_holders_end_are_neither_lost_nor_doubled(
    store: Store, end: Callable[[object], object]
) -> None:
    queue, payloads = InMemoryQueue(), InMemoryPayloads(World())

    def submit() -> Accepted:
        outcome = submit_job(
            SubmitRequest(model="demo-chat", input="the same for all"),
            Caller("acme", frozenset({"submit"}), "key_1"),
            Origin("request", "correlation"),
            Submitter(
                flags=FakeFlags(),
                catalogue=CATALOGUE,
                jobs=store.jobs,
                cache=store.cache,
                rates=InMemoryRates(World()),
                backlogs=InMemoryBacklogs(World()),
                state=InMemoryState(World()),
                payloads=payloads,
                queue=queue,
                clock=store.clock,
                randomness=secrets.token_bytes,
                rand=lambda: 0.5,
            ),
        )
        assert isinstance(outcome, Accepted)
        return outcome

    processing, lease = store.start(submit().job)
    ended = end(processing)

    applied, *accepted = at_once(
        lambda: store.jobs.apply(processing, ended, lease=lease), *[submit] * 12
    )

    named = {outcome.job.job_id for outcome in accepted}
    rows = [store.jobs.get("acme", job_id) for job_id in named]
    open_now = [row for row in rows if row is not None and row.open]
    assert applied == Applied(ended)
    assert None not in rows
    assert len(open_now) <= 1
    assert named <= {processing.job_id, *(row.job_id for row in open_now)}
    assert sum(store.rows.in_flight("acme").values()) == len(open_now)
    assert store.rows.claim(processing.job_key) == (open_now[0].job_id if open_now else None)
    made = [outcome for outcome in accepted if not outcome.deduplicated]
    assert len(made) == len(open_now)
    assert len(queue.sends) == 1 + len(made)


# ------------------------------------------------------------------------------------ the cache


@pytest.mark.proves(17, 18)
def test_fifty_readers_of_a_stale_entry_queue_one_refresh(store: Store) -> None:
    job = store.submit(a_job())
    entry = an_entry(job)
    store.jobs.apply(job, completed(job), entry=entry)
    refreshes = [a_refresh(job_id=f"job_refresh{number:015d}") for number in range(50)]

    def queue(refresh: Job) -> bool:
        try:
            return store.jobs.queue_refresh(refresh, entry)
        except StoreBusyError:  # the crowd was in the way; this reader has its answer
            return False

    queued = at_once(*[lambda refresh=refresh: queue(refresh) for refresh in refreshes])

    (winner,) = [one for one, won in zip(refreshes, queued, strict=True) if won]
    marked = store.cache.read(entry.cache_key)
    assert marked is not None
    assert marked.refresh_job_id == store.rows.claim(winner.job_key) == winner.job_id
    assert sum(store.jobs.get(one.tenant, one.job_id) is not None for one in refreshes) == 1
    assert store.rows.in_flight("acme") == {}


def test_budget_of_ten_lets_exactly_ten_of_fifty_past_the_cache(store: Store) -> None:
    jobs = [a_job(number) for number in range(50)]

    outcomes: list[object] = at_once(
        *[
            lambda job=job: store.jobs.submit(
                job, shard_caps=shard_caps(1000), budget=DayBudget(bypasses=10)
            )
            for job in jobs
        ]
    )

    assert kinds(outcomes) == {"Submitted": 10, "BudgetSpent": 40}
    assert sum(store.rows.in_flight("acme").values()) == 10
    assert sum(store.jobs.get("acme", job.job_id) is not None for job in jobs) == 10


def test_budget_of_ten_jobs_lets_exactly_ten_of_fifty_in(store: Store) -> None:
    jobs = [a_job(number) for number in range(50)]
    ten = DayBudget(jobs=10)

    outcomes: list[object] = at_once(
        *[
            lambda job=job: store.jobs.submit(job, shard_caps=shard_caps(1000), budget=ten)
            for job in jobs
        ]
    )

    assert kinds(outcomes) == {"Submitted": 10, "BudgetSpent": 40}
    assert sum(store.rows.in_flight("acme").values()) == 10
    assert store.rows.day(jobs[0]) == {"jobs": 10}


def test_reserves_and_ends_at_once_keep_within_the_cost_and_add_up(store: Store) -> None:
    # Ten are open at a reserve of 10 each, and the cap is 150: five new ones fit, and one more for
    # each two that end for 5, as far as their end came first.
    cap = DayBudget(cost_nanos=150)
    running = [
        submitted_at_cost(store, a_job(number, cost_reserved_nanos=10), cap) for number in range(10)
    ]
    coming = [a_job(number, cost_reserved_nanos=10) for number in range(10, 35)]

    outcomes: list[object] = at_once(
        *[lambda job=job: store.jobs.apply(job, completed(job, cost_nanos=5)) for job in running],
        *[
            lambda job=job: store.jobs.submit(job, shard_caps=shard_caps(1000), budget=cap)
            for job in coming
        ],
    )

    told = kinds(outcomes)
    assert told["Applied"] == 10
    assert 5 <= told["Submitted"] <= 10
    assert told["Submitted"] + told["BudgetSpent"] == 25
    assert store.rows.day(running[0]) == {"cost_nanos": 10 * 5 + told["Submitted"] * 10}


def submitted_at_cost(store: Store, job: Job, budget: DayBudget) -> Job:
    outcome = store.jobs.submit(job, shard_caps=shard_caps(1000), budget=budget)
    assert isinstance(outcome, Submitted)
    return outcome.job


@pytest.mark.proves(20)
def test_twenty_invalidations_of_a_model_give_twenty_epochs(store: Store) -> None:
    clocks_ms = [NOW_MS - (number % 3) * 60_000 for number in range(20)]  # some are behind

    epochs = at_once(
        *[
            lambda now_ms=now_ms: store.state.invalidate("model:gpt-4.1", now_ms=now_ms)
            for now_ms in clocks_ms
        ]
    )

    assert len(set(epochs)) == 20
    assert max(epochs) >= NOW_MS
    assert store.state.read().epoch("model:gpt-4.1") == max(epochs)


@pytest.mark.proves(20)
def test_invalidation_and_finish_at_once_leave_no_entry_from_before(store: Store) -> None:
    for number in range(1, 11):
        processing, lease = store.start(store.submit(a_job(number)))
        end = completed(processing)

        at_once(
            lambda processing=processing, lease=lease, end=end: store.jobs.apply(
                processing, end, lease=lease, entry=an_entry(processing)
            ),
            lambda key=processing.cache_key: store.cache.invalidate(key, now_ms=NOW_MS),
        )

        assert store.row(processing).status is JobStatus.COMPLETED
        assert store.cache.read(processing.cache_key) is None
        assert store.cache.look(processing.cache_key).invalidated_at_epoch_ms == NOW_MS


# ------------------------------------------------------------------------------------ stampede


@pytest.fixture(params=["in_memory", "dynamodb_local"])
def shelf(request: pytest.FixtureRequest, clock: FakeClock) -> Shelf:
    """Jobs and cache: in memory, and the real adapters."""
    if request.param == "in_memory":
        world = World()
        return Shelf(InMemoryJobs(world, clock=clock), InMemoryCache(world), clock)
    store: Store = request.getfixturevalue("store")
    return Shelf(store.jobs, store.cache, clock)


@dataclass(frozen=True, slots=True)
class Shelf:
    """As much of a store as readers of a cache need."""

    jobs: JobStore
    cache: ResultCache
    clock: FakeClock

    def submitter(self, queue: InMemoryQueue) -> Submitter:
        return Submitter(
            flags=FakeFlags(),
            catalogue=STAMPEDED,
            jobs=self.jobs,
            cache=self.cache,
            rates=InMemoryRates(World()),
            backlogs=InMemoryBacklogs(World()),
            state=InMemoryState(World()),
            payloads=InMemoryPayloads(World()),
            queue=queue,
            clock=self.clock,
            randomness=secrets.token_bytes,
            rand=lambda: 0.5,
        )

    def start(self, job: Job, token: str) -> Started:
        now_ms = self.clock.now_ms()
        outcome = self.jobs.start(
            job,
            token=token,
            lease_ms=LEASE_MS,
            now_ms=now_ms,
            started=lambda fence: transitions.started(
                job, fence=fence, now_ms=now_ms, receives=1, function_ends_ms=now_ms + LEASE_MS
            ),
        )
        assert isinstance(outcome, Started)
        return outcome

    def store_answer(self, job: Job, token: str, text: bytes) -> None:
        """Runs the job, which leaves an entry that is fresh for a minute and stale for an hour."""
        started = self.start(job, token)
        now_ms, packed = self.clock.now_ms(), compress(b'{"text":"' + text + b'"}')
        ended = completed(started.job, packed, now_ms=now_ms)
        entry = an_entry(
            job,
            packed,
            tenant="acme",
            asked_at_epoch_ms=now_ms,
            stored_at_epoch_ms=now_ms,
            soft_expires_at_epoch_ms=now_ms + SOFT_MS,
            hard_expires_at_epoch_ms=now_ms + 60 * SOFT_MS,
        )
        applied = self.jobs.apply(started.job, ended, lease=started.lease, entry=entry)
        assert applied == Applied(ended)


READERS = 200
SOFT_MS = 60_000
STAMPEDED = parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    """
)


def read_once(
    shelf: Shelf, queue: InMemoryQueue, mode: Literal["use", "refresh"] = "use"
) -> Hit | Accepted:
    return submit_job(
        SubmitRequest(model="demo-chat", input="the same for all", cache=CacheRequest(mode=mode)),
        Caller("acme", frozenset({"submit", "bypass"}), "key_1"),
        Origin("request", "correlation"),
        shelf.submitter(queue),
    )


@pytest.mark.proves(17, 18)
def test_two_hundred_readers_at_soft_expiry_queue_one_refresh(shelf: Shelf) -> None:
    queue = InMemoryQueue()
    first = read_once(shelf, queue)
    assert isinstance(first, Accepted)
    shelf.store_answer(first.job, "token-1", b"old")
    shelf.clock.advance(SOFT_MS)
    queue.sends.clear()

    hits = at_once(*[lambda: read_once(shelf, queue)] * READERS)

    assert all(isinstance(hit, Hit) and hit.freshness is Freshness.STALE for hit in hits)
    assert {hit.result for hit in hits if isinstance(hit, Hit)} == {b'{"text":"old"}'}
    (refresh,) = [hit.refresh for hit in hits if isinstance(hit, Hit) and hit.refresh]
    assert queue.sends == [("batch", refresh.tenant, refresh.job_id)]
    entry = shelf.cache.read(refresh.cache_key)
    assert entry is not None
    assert entry.refresh_job_id == refresh.job_id
    assert shelf.jobs.get(refresh.tenant, refresh.job_id) == refresh


@pytest.mark.proves(18)
def test_readers_who_looked_before_a_refresh_and_write_after_it_queue_no_other(
    shelf: Shelf,
) -> None:
    queue = InMemoryQueue()
    first = read_once(shelf, queue)
    assert isinstance(first, Accepted)
    shelf.store_answer(first.job, "token-1", b"old")
    shelf.clock.advance(SOFT_MS)
    late = READERS // 10
    looked, refreshed = threading.Barrier(late + 1), threading.Event()

    class SlowCache:
        def look(self, cache_key: str) -> Found:
            found = shelf.cache.look(cache_key)
            looked.wait(30)
            assert refreshed.wait(30)
            return found

    with ThreadPoolExecutor(late) as pool:
        slow = replace(shelf, cache=cast("ResultCache", SlowCache()))
        readers = [pool.submit(read_once, slow, queue) for _ in range(late)]
        looked.wait(30)
        stale = read_once(shelf, queue)
        assert isinstance(stale, Hit)
        assert stale.refresh is not None
        shelf.clock.advance(1)
        shelf.store_answer(stale.refresh, "token-2", b"new")
        refreshed.set()
        hits = [reader.result() for reader in readers]

    assert {hit.result for hit in hits if isinstance(hit, Hit)} == {b'{"text":"old"}'}
    assert not any(isinstance(hit, Hit) and hit.refresh for hit in hits)
    assert len(queue.sends) == 2
    after = read_once(shelf, queue)
    assert isinstance(after, Hit)
    assert (after.result, after.freshness) == (b'{"text":"new"}', Freshness.FRESH)


@pytest.mark.proves(2)
def test_two_hundred_readers_past_hard_expiry_get_one_job(shelf: Shelf) -> None:
    queue = InMemoryQueue()
    first = read_once(shelf, queue)
    assert isinstance(first, Accepted)
    shelf.store_answer(first.job, "token-1", b"old")
    shelf.clock.advance(60 * SOFT_MS)
    queue.sends.clear()

    accepted = at_once(*[lambda: read_once(shelf, queue)] * READERS)

    jobs = {outcome.job.job_id for outcome in accepted if isinstance(outcome, Accepted)}
    assert kinds(list(accepted)) == {"Accepted": READERS}
    assert len(jobs) == len(queue.sends) == 1


def test_fifty_forced_refreshes_at_once_get_one_job_and_again_when_it_has_begun(
    shelf: Shelf,
) -> None:
    queue = InMemoryQueue()

    def ask() -> Accepted:
        shelf.clock.advance(1)
        outcome = read_once(shelf, queue, "refresh")
        assert isinstance(outcome, Accepted)
        return outcome

    first = at_once(*[ask] * 50)
    waiting = shelf.jobs.get("acme", first[0].job.job_id)
    assert waiting is not None
    begun = shelf.start(waiting, "token-1").job
    second = at_once(*[ask] * 50)

    for asked in (first, second):
        assert len({one.job.job_id for one in asked}) == 1
        assert sum(not one.deduplicated for one in asked) == 1
    newer = shelf.jobs.get("acme", second[0].job.job_id)
    assert newer is not None
    assert newer.job_id != begun.job_id
    assert newer.asked_after_epoch_ms == max(one.job.asked_after_epoch_ms or 0 for one in second)
    assert shelf.jobs.holder(begun) == newer.job_id
