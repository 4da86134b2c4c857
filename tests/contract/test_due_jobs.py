"""DueJobs: the sparse index of the jobs that somebody has to look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.dynamodb import to_item
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import DamagedRowError
from sluiceway.domain.job import DUE_SHARDS, JobStatus
from sluiceway.domain.ticket import Ticket
from sluiceway.ports import DueJob, IndexedJob

from tests.contract.harness import (
    sweep,
)
from tests.fakes.examples import a_job, completed, failed, redriven, retrying
from tests.fakes.in_memory import (
    NOW_MS,
    InMemoryQueue,
    RecordingTelemetry,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.job import Job

    from tests.contract.harness import (
        Store,
        Tables,
    )
    from tests.fakes.in_memory import FakeClock

FAR_MS = NOW_MS + 10**9
SHARD = transitions.due_shard(a_job(0).job_id)
NUMBERS = [number for number in range(200) if transitions.due_shard(a_job(number).job_id) == SHARD]
"""Of jobs that are in one shard."""


def submit(store: Store, index: int, due_at_ms: int | None = None) -> Job:
    """The job of this index in the one shard."""
    job = a_job(NUMBERS[index])
    return store.submit(job if due_at_ms is None else replace(job, due_at_epoch_ms=due_at_ms))


def due(store: Store, *, until_ms: int = FAR_MS, limit: int = 100) -> list[str]:
    return [job.job_id for job in store.due_jobs.due(SHARD, until_ms=until_ms, limit=limit)]


def everywhere(store: Store) -> list[DueJob]:
    return [
        job
        for shard in range(DUE_SHARDS)
        for job in store.due_jobs.due(str(shard), until_ms=FAR_MS, limit=100)
    ]


# ------------------------------------------------------------------------------------ due


def test_due_tells_what_is_known_of_a_job(store: Store) -> None:
    job = submit(store, 0)

    (found,) = store.due_jobs.due(SHARD, until_ms=FAR_MS, limit=100)

    assert found == DueJob(
        tenant="acme",
        job_id=job.job_id,
        status="queued",
        due_at_epoch_ms=NOW_MS + 120_000,
    )


def test_due_gives_the_oldest_first_whatever_the_order_of_their_submits(store: Store) -> None:
    times = [50, 10, 40, 20, 30]
    jobs = [submit(store, index, NOW_MS + ms) for index, ms in enumerate(times)]

    found = due(store)

    assert found == [job.job_id for _, job in sorted(zip(times, jobs, strict=True))]


def test_due_gives_no_more_than_the_limit_and_the_oldest_of_them(store: Store) -> None:
    jobs = [submit(store, index, NOW_MS - index) for index in range(5)]

    found = due(store, limit=2)

    assert found == [jobs[4].job_id, jobs[3].job_id]


@pytest.mark.proves(1)
@pytest.mark.parametrize(("after_ms", "found"), [(-1, 0), (0, 1), (1, 1)])
def test_due_gives_a_job_from_its_very_millisecond_on(
    store: Store, after_ms: int, found: int
) -> None:
    submit(store, 0, NOW_MS + 5_000)

    assert len(due(store, until_ms=NOW_MS + 5_000 + after_ms)) == found


def test_due_gives_the_jobs_of_its_own_shard_and_each_job_is_in_one(store: Store) -> None:
    jobs = [store.submit(a_job(number)) for number in range(20)]

    found = everywhere(store)

    assert sorted(job.job_id for job in found) == sorted(job.job_id for job in jobs)
    assert len({transitions.due_shard(job.job_id) for job in found}) == DUE_SHARDS


@pytest.mark.parametrize(
    "end",
    [
        completed,
        lambda job: failed(job, last_receive=True),
        lambda job: transitions.cancelled(job, now_ms=NOW_MS),
        lambda job: transitions.discarded(failed(job, last_receive=True), now_ms=NOW_MS),
    ],
    ids=["completed", "dead_lettered", "cancelled", "discarded"],
)
def test_due_has_no_job_that_ended_for_good(store: Store, end: Callable[[Job], Job]) -> None:
    job = submit(store, 0)

    store.jobs.apply(job, end(job))

    assert due(store) == []
    assert list(store.due_jobs.indexed(SHARD)) == []


def test_due_has_a_failed_job_until_it_is_marked_as_dead_lettered(store: Store) -> None:
    job = submit(store, 0)
    store.jobs.apply(job, failed(job))
    before = due(store)

    store.jobs.apply(failed(job), transitions.dead_lettered(failed(job)))

    assert (before, due(store)) == ([job.job_id], [])


@pytest.mark.proves(1)
def test_due_has_a_job_at_the_time_of_each_transition(store: Store) -> None:
    job = submit(store, 0)
    processing, lease = store.start(job)
    parked = transitions.retrying(
        processing,
        retrying(processing).error,
        not_before_ms=NOW_MS + 300_000,
        parked=True,  # type: ignore[arg-type]
    )
    at_start = store.due_jobs.due(SHARD, until_ms=FAR_MS, limit=1)
    store.jobs.apply(processing, parked, lease=lease)
    at_park = store.due_jobs.due(SHARD, until_ms=FAR_MS, limit=1)

    assert [(job.status, job.due_at_epoch_ms) for job in (*at_start, *at_park)] == [
        ("processing", processing.due_at_epoch_ms),
        ("retrying", NOW_MS + 300_000),
    ]


def test_due_has_a_job_again_after_its_redrive(store: Store) -> None:
    job = submit(store, 0)
    old = failed(job, last_receive=True)
    store.jobs.apply(job, old)
    store.jobs.redrive(old, redriven(old))

    (found,) = store.due_jobs.due(SHARD, until_ms=FAR_MS, limit=1)

    assert found.due_at_epoch_ms == redriven(old).due_at_epoch_ms
    (counted,) = store.due_jobs.indexed(SHARD)
    assert counted.enqueued_at_epoch_ms == redriven(old).enqueued_at_epoch_ms


# ------------------------------------------------------------------------------------ indexed


def test_indexed_gives_every_job_however_far_its_time_is_the_soonest_due_first(
    store: Store,
) -> None:
    for index, ms in enumerate((3 * 10**8, 0, 10**8)):
        job = replace(a_job(NUMBERS[index]), due_at_epoch_ms=NOW_MS + ms)
        store.submit(replace(job, enqueued_at_epoch_ms=NOW_MS - index, lane="batch"))

    found = list(store.due_jobs.indexed(SHARD))

    assert found == [
        IndexedJob(
            status="queued",
            lane="batch",
            enqueued_at_epoch_ms=NOW_MS - index,
            tenant="acme",
            job_id=a_job(NUMBERS[index]).job_id,
            model="demo-chat",
        )
        for index in (1, 2, 0)
    ]


@pytest.mark.parametrize("slot", [None, Ticket(NOW_MS + 400_000, 3)], ids=str)
def test_indexed_tells_who_waits_until_when_and_who_keeps_a_slot(
    store: Store, slot: Ticket | None
) -> None:
    processing, lease = store.start(submit(store, 0))
    parked = transitions.gated(processing, not_before_ms=NOW_MS + 400_000, slot=slot)
    store.jobs.apply(processing, parked, lease=lease)

    (found,) = store.due_jobs.indexed(SHARD)

    assert found.parked
    assert found.not_before_epoch_ms == NOW_MS + 400_000
    assert found.slot_at_epoch_ms == (slot.slot_at_ms if slot else None)


def test_indexed_tells_the_state_of_a_job(store: Store) -> None:
    submit(store, 0)
    store.start(submit(store, 1))
    processing, lease = store.start(submit(store, 2), "token-2")
    store.jobs.apply(processing, retrying(processing), lease=lease)
    job = submit(store, 3)
    store.jobs.apply(job, failed(job))

    found = store.due_jobs.indexed(SHARD)

    assert sorted(job.status for job in found) == ["failed", "processing", "queued", "retrying"]


def test_indexed_gives_more_jobs_than_one_page_holds(store: Store) -> None:
    # A page of DynamoDB is 1 MB.
    job = submit(store, 0)
    tenant = "t" * 2000
    for number in range(400):
        store.rows.put_job(replace(job, tenant=tenant, job_id=f"{number:0>1000}"))

    found = list(store.due_jobs.indexed(SHARD))

    assert len(found) == 401


# ------------------------------------------------------------------------------------ counted


def counted(
    store: Store, before: dict[tuple[str, str], int], **besides: Any
) -> tuple[int, set[str]]:
    """How many jobs the shard has, and who of them is known, by the job's index."""
    parts = list(store.due_jobs.counted(SHARD, before=before, **besides))
    ids = [a_job(number).job_id for number in NUMBERS]
    known = {ids.index(job.job_id) for _, jobs in parts for job in jobs}
    return sum(many for many, _ in parts), known


def test_counted_tells_how_many_there_are_and_who_is_at_work(store: Store) -> None:
    for index in range(9):
        submit(store, index)
    store.start(a_job(NUMBERS[8]))

    assert counted(store, {}) == (9, {8})


def test_counted_knows_who_was_enqueued_before_the_time_of_its_status_and_lane(
    store: Store,
) -> None:
    for index, (lane, age_ms) in enumerate((("batch", 1), ("batch", 2), ("interactive", 2))):
        job = replace(a_job(NUMBERS[index]), lane=lane)
        store.submit(replace(job, enqueued_at_epoch_ms=NOW_MS - age_ms))

    at_ms = NOW_MS - 1

    assert counted(store, {("queued", "batch"): at_ms}) == (3, {1})
    assert counted(store, {("retrying", "batch"): at_ms}) == (3, set())
    both = {("queued", "batch"): at_ms, ("queued", "interactive"): at_ms}
    assert counted(store, both) == (3, {1, 2})


def test_counted_knows_only_those_at_work_of_tenants_and_models_that_are_left_out(
    store: Store,
) -> None:
    members = [{}, {"tenant": "globex"}, {"model": "other"}, {"tenant": "globex"}]
    jobs = [
        store.submit(replace(a_job(NUMBERS[index]), **changes))
        for index, changes in enumerate(members)
    ]
    store.start(jobs[3])

    found = counted(
        store,
        {("queued", "interactive"): NOW_MS + 1},
        besides_tenants={"globex", "initech"},
        besides_models={"other"},
    )

    assert found == (4, {0, 3})


def test_counted_leaves_out_as_many_tenants_as_dynamodb_compares_at_once(store: Store) -> None:
    submit(store, 0)

    _, known = counted(
        store,
        {("queued", "interactive"): NOW_MS + 1},
        besides_tenants={"acme", *(f"t{number:03d}" for number in range(150))},
    )

    assert known == set()


def test_counted_gives_more_jobs_than_one_page_holds(store: Store) -> None:
    job = submit(store, 0)
    tenant = "t" * 2000
    for number in range(400):
        store.rows.put_job(replace(job, tenant=tenant, job_id=f"{number:0>1000}"))

    assert counted(store, {}) == (401, set())


# ------------------------------------------------------------------------------------ postpone


def test_postpone_moves_the_time_counts_the_look_and_nothing_else(store: Store) -> None:
    job = submit(store, 0)

    moved = store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)

    assert moved
    assert store.row(job) == replace(job, due_at_epoch_ms=NOW_MS + 500_000, resends=1)
    assert due(store, until_ms=NOW_MS + 499_999) == []
    assert due(store, until_ms=NOW_MS + 500_000) == [job.job_id]


def test_postpone_repeated_after_a_lost_reply_is_moved_and_counted_once(store: Store) -> None:
    job = submit(store, 0)
    store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)
    before = store.rows.picture()

    moved = store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)

    assert moved
    assert store.rows.picture() == before


def test_postpone_by_a_second_sweep_is_refused(store: Store) -> None:
    job = submit(store, 0)
    store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)
    before = store.rows.picture()

    moved = store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_001)

    assert not moved
    assert store.rows.picture() == before


def test_postpone_is_lost_to_a_start(store: Store) -> None:
    job = submit(store, 0)
    processing, _ = store.start(job)

    moved = store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)

    assert not moved
    assert store.row(job) == processing


@pytest.mark.parametrize("end", [completed, failed])
def test_postpone_is_lost_to_an_end(store: Store, end: Callable[[Job], Job]) -> None:
    job = submit(store, 0)
    store.jobs.apply(job, end(job))

    moved = store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)

    assert not moved
    assert store.row(job) == end(job)


def test_postpone_of_a_job_that_is_gone_makes_no_row(store: Store) -> None:
    moved = store.due_jobs.postpone(a_job(), due_at_ms=NOW_MS)

    assert not moved
    assert store.jobs.get("acme", a_job().job_id) is None


def test_transition_that_was_read_before_a_postponement_is_written_over_it(store: Store) -> None:
    # The sweeper's look is no transition: it must not make a worker's result void.
    job = submit(store, 0)
    processing, lease = store.start(job)
    store.due_jobs.postpone(processing, due_at_ms=NOW_MS + 500_000)

    store.jobs.apply(processing, completed(processing), lease=lease)

    assert store.row(job).status is JobStatus.COMPLETED
    assert due(store) == []


def test_start_that_was_read_before_a_postponement_sets_its_own_time(store: Store) -> None:
    job = submit(store, 0)
    store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)

    processing, _ = store.start(job)

    assert store.row(job).due_at_epoch_ms == processing.due_at_epoch_ms


# ------------------------------------------------------------------------------------ damaged rows


@pytest.mark.parametrize(
    "damage",
    [
        {"job_key": None},
        {"lane": None},
        {"lane": "weird"},
        {"status": "bogus"},
        {"deadline_epoch_ms": "soon"},
        {"error": {"code": "x"}},
        {"parked": "yes"},
        {"enqueued_at_epoch_ms": "once"},
    ],
    ids=str,
)
def test_damaged_row_is_told_and_keeps_no_other_job_from_the_sweep(
    dynamodb_store: Store,
    dynamodb: DynamoDBClient,
    tables: Tables,
    clock: FakeClock,
    damage: dict[str, Any],
) -> None:
    telemetry, queue = RecordingTelemetry(), InMemoryQueue()
    jobs = dynamodb_store.jobs
    good, bad = submit(dynamodb_store, 1, NOW_MS - 1), submit(dynamodb_store, 2, NOW_MS - 2)
    for name, value in damage.items():
        dynamodb.update_item(
            TableName=tables.names.jobs,
            Key=to_item({"tenant": bad.tenant, "job_id": bad.job_id}),
            UpdateExpression="REMOVE #name" if value is None else "SET #name = :value",
            ExpressionAttributeNames={"#name": name},
            **({} if value is None else {"ExpressionAttributeValues": to_item({":value": value})}),
        )

    with pytest.raises(DamagedRowError):
        jobs.get(bad.tenant, bad.job_id)
    due_jobs = dynamodb_store.due_jobs
    swept = sweep(jobs, due_jobs, queue, clock=clock, telemetry=telemetry)

    assert swept.sent == 1
    assert [job_id for _, _, job_id in queue.sends] == [good.job_id]
    assert "job_damaged" in telemetry.names


def test_fraction_that_somebody_wrote_into_a_row_stops_no_sweep(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock
) -> None:
    telemetry, queue = RecordingTelemetry(), InMemoryQueue()
    job = submit(dynamodb_store, 1, NOW_MS - 1)
    dynamodb.update_item(
        TableName=tables.names.jobs,
        Key=to_item({"tenant": job.tenant, "job_id": job.job_id}),
        UpdateExpression="SET enqueued_at_epoch_ms = :at",
        ExpressionAttributeValues={":at": {"N": f"{NOW_MS}.5"}},
    )

    swept = sweep(
        dynamodb_store.jobs, dynamodb_store.due_jobs, queue, clock=clock, telemetry=telemetry
    )

    assert swept.sent == 1
