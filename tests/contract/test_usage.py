"""UsageReader: each end of a run counts once, for its tenant, model and day."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb_usage import KEPT_S
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import DamagedRowError, StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.usage import UsageRow
from sluiceway.ports import Applied

from tests.contract.clients import FaultyClient, cancelled, timed_out
from tests.contract.harness import DynamoDBRows, store_on
from tests.fakes.examples import a_job, a_refresh, an_entry, completed, failed, redriven
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

DAY_MS = 24 * 3600 * 1000
TODAY = "2026-01-01"
COST = 330_000

ENDS: dict[str, tuple[Callable[[Job], Job], dict[str, int]]] = {
    "completed": (
        completed,
        {"completed": 1, "input_tokens": 10, "output_tokens": 20, "cost_nanos": COST},
    ),
    "completed from the cache": (
        lambda job: transitions.completed_from(an_entry(job), job, now_ms=NOW_MS + 1000),
        {"completed": 1, "from_cache": 1, "saved_nanos": COST},
    ),
    "failed": (failed, {"failed": 1}),
    "dead-lettered": (lambda job: failed(job, last_receive=True), {"failed": 1}),
    "cancelled": (
        lambda job: transitions.cancelled(job, now_ms=NOW_MS + 1000),
        {"cancelled": 1},
    ),
}
ends = pytest.mark.parametrize(("end", "counts"), ENDS.values(), ids=ENDS)


def usage(
    store: Store, tenant: str = "acme", first: str = "2025-01-01", last: str = "2027-12-31"
) -> list[UsageRow]:
    found = store.usage.read(tenant, first, last)
    return sorted(found, key=lambda row: (row.day, row.model))


def ended(store: Store, old: Job, new: Job) -> Job:
    """The job after this transition."""
    outcome = store.jobs.apply(old, new)
    assert isinstance(outcome, Applied)
    return outcome.job


def end_one(store: Store, number: int = 1, end: Callable[[Job], Job] = completed, **of: Any) -> Job:
    """A job that was submitted, and ends."""
    job = store.submit(a_job(number, **of))
    return ended(store, job, end(job))


def unsettled(store: Store, end: Callable[[Job], Job]) -> Job:
    """A job whose end left all that is counted to the sweeper."""
    job = store.submit(a_job())
    marked = replace(end(job), unsettled=True, due_at_epoch_ms=NOW_MS, due_shard=job.due_shard)
    store.rows.put_job(marked)
    return marked


# ------------------------------------------------------------------------------------ an end


@ends
def test_end_is_counted(store: Store, end: Callable[[Job], Job], counts: dict[str, int]) -> None:
    end_one(store, end=end)

    assert usage(store) == [UsageRow(TODAY, "demo-chat", **counts)]


@ends
def test_end_that_is_told_again_is_counted_once(
    store: Store, end: Callable[[Job], Job], counts: dict[str, int]
) -> None:
    job = store.submit(a_job())

    for _ in range(2):
        assert isinstance(store.jobs.apply(job, end(job)), Applied)

    assert usage(store) == [UsageRow(TODAY, "demo-chat", **counts)]


@ends
@pytest.mark.parametrize("lost", [1, 3], ids=["one reply", "every reply of a transaction"])
def test_end_whose_reply_is_lost_is_counted_once(
    dynamodb: Any,
    tables: Tables,
    clock: FakeClock,
    dynamodb_store: Store,
    end: Callable[[Job], Job],
    counts: dict[str, int],
    lost: int,
) -> None:
    job = dynamodb_store.submit(a_job())
    client: Any = FaultyClient(dynamodb, replies=[timed_out()] * lost)

    outcome = store_on(client, tables, clock).jobs.apply(
        job, end(job), give_up_at_ms=NOW_MS + 60_000
    )

    assert isinstance(outcome, Applied)
    assert not dynamodb_store.row(job).unsettled
    assert usage(dynamodb_store) == [UsageRow(TODAY, "demo-chat", **counts)]


def test_end_that_comes_second_is_not_counted(store: Store) -> None:
    job = store.submit(a_job())
    ended(store, job, transitions.cancelled(job, now_ms=NOW_MS + 1000))

    store.jobs.apply(job, completed(job))

    assert usage(store) == [UsageRow(TODAY, "demo-chat", cancelled=1)]


def test_finish_under_a_lost_lease_is_not_counted(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))

    store.jobs.apply(processing, completed(processing), lease=replace(lease, token="another"))

    assert usage(store) == []


def test_what_is_no_end_is_not_counted(store: Store) -> None:
    processing, lease = store.start(store.submit(a_job()))
    waits = transitions.parked(processing, not_before_ms=NOW_MS + 5000)

    store.jobs.apply(processing, waits, lease=lease)

    assert usage(store) == []


def test_mark_and_discard_of_a_failed_job_count_nothing_more(store: Store) -> None:
    job = end_one(store, end=failed)
    dead = ended(store, job, transitions.dead_lettered(job))

    ended(store, dead, transitions.discarded(dead, now_ms=NOW_MS + DAY_MS))

    assert usage(store) == [UsageRow(TODAY, "demo-chat", failed=1)]


@pytest.mark.proves(18)
@pytest.mark.parametrize("end", [completed, failed])
def test_refresh_is_in_nobodys_usage(store: Store, end: Callable[[Job], Job]) -> None:
    job = store.submit(a_job())
    entry = an_entry(job)
    store.jobs.apply(job, completed(job), entry=entry)
    before = usage(store)
    store.jobs.queue_refresh(a_refresh(), entry)

    store.jobs.apply(a_refresh(), end(a_refresh()))

    assert usage(store) == before
    assert usage(store, a_refresh().tenant) == []


# ------------------------------------------------------------------------------------ sums


def test_ends_of_a_day_and_a_model_add_up_over_the_counters_shards(store: Store) -> None:
    caps = (1, 1, 1)
    jobs = [store.submit(a_job(number), caps=caps) for number in (1, 2, 3)]
    assert {job.counter_shard for job in jobs} == {0, 1, 2}

    for job, end in zip(jobs, (completed, completed, failed), strict=True):
        ended(store, job, end(job))

    assert usage(store) == [
        UsageRow(
            TODAY,
            "demo-chat",
            completed=2,
            failed=1,
            input_tokens=20,
            output_tokens=40,
            cost_nanos=2 * COST,
        )
    ]


def test_models_stand_apart_whatever_their_names(store: Store) -> None:
    names = ["a", "gpt-4.1-mini", "model_2", "9.5", "status", "completed", "ttl_epoch_s", "x" * 63]
    for number, name in enumerate(names, 1):
        end_one(store, number, cancel, model=name)

    assert usage(store) == [UsageRow(TODAY, name, cancelled=1) for name in sorted(names)]


def test_tenants_stand_apart(store: Store) -> None:
    for number, tenant in enumerate(("acme", "acme", "acme-2", "acm"), 1):
        end_one(store, number, cancel, tenant=tenant)

    assert usage(store) == [UsageRow(TODAY, "demo-chat", cancelled=2)]
    assert usage(store, "acme-2") == [UsageRow(TODAY, "demo-chat", cancelled=1)]
    assert usage(store, "nobody") == []


def test_days_stand_apart_and_both_ends_belong_to_the_period(store: Store) -> None:
    for number, days in enumerate((-2, -1, 0, 1), 1):
        end_one(store, number, lambda job, days=days: cancel(job, days * DAY_MS))  # type: ignore[misc]

    def days_of(first: str, last: str) -> list[str]:
        return [row.day for row in usage(store, first=first, last=last)]

    assert days_of("2025-12-30", "2026-01-02") == [
        *("2025-12-30", "2025-12-31", "2026-01-01", "2026-01-02")
    ]
    assert days_of("2025-12-31", "2026-01-01") == ["2025-12-31", "2026-01-01"]
    assert days_of("2026-01-01", "2026-01-01") == ["2026-01-01"]
    assert days_of("2026-01-03", "2026-03-01") == []


# ------------------------------------------------------------------------------------ unsettled


@ends
def test_unsettled_end_is_counted_when_it_is_settled_and_once(
    store: Store, end: Callable[[Job], Job], counts: dict[str, int]
) -> None:
    job = unsettled(store, end)
    assert usage(store) == []

    for _ in range(2):
        store.jobs.settle(job)

    assert usage(store) == [UsageRow(TODAY, "demo-chat", **counts)]


def test_settled_end_is_counted_on_the_day_of_the_end(store: Store) -> None:
    job = unsettled(store, failed)
    store.clock.advance(DAY_MS)
    dead = ended(store, job, transitions.dead_lettered(job))
    discarded = ended(store, dead, transitions.discarded(dead, now_ms=store.clock.now_ms()))

    store.jobs.settle(discarded)

    assert usage(store) == [UsageRow(TODAY, "demo-chat", failed=1)]


def test_settling_whose_reply_is_lost_counts_once(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    job = unsettled(dynamodb_store, completed)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()] * 3)
    store = store_on(client, tables, clock)

    with suppress(StoreBusyError):  # moto forgets tokens, and refuses the second try
        store.jobs.settle(job)
    store.jobs.settle(job)

    (row,) = usage(dynamodb_store)
    assert (row.completed, row.cost_nanos) == (1, COST)


def test_finish_that_meets_others_at_its_usage_only_is_left_to_the_sweeper(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    def conflict(request: dict[str, Any]) -> None:
        if "usage#acme" in str(request):
            raise cancelled("None", "TransactionConflict")

    processing, lease = dynamodb_store.start(dynamodb_store.submit(a_job()))
    client: Any = FaultyClient(dynamodb, before=conflict)

    store_on(client, tables, clock).jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS
    )

    row = dynamodb_store.row(processing)
    assert (row.status, row.unsettled) == (JobStatus.COMPLETED, True)
    assert usage(dynamodb_store) == []
    dynamodb_store.jobs.settle(row)
    assert [row.completed for row in usage(dynamodb_store)] == [1]
    assert dynamodb_store.rows.in_flight("acme") == {}


# ------------------------------------------------------------------------------------ redrives


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
@pytest.mark.parametrize("twin", [False, True], ids=["claim is free", "claim is a twin's"])
def test_each_end_of_a_redriven_job_is_counted_on_its_day(
    store: Store, *, settled: bool, twin: bool
) -> None:
    old = end_one(store, end=failed) if settled else unsettled(store, failed)
    if not settled:
        store.rows.drop_claim(old.job_key)
    if twin:
        store.submit(a_job(2, job_key=old.job_key))
    new = redriven(old, now_ms=NOW_MS + DAY_MS)

    for _ in range(2):  # the second one is the reply that was lost
        assert isinstance(store.jobs.redrive(old, new), Applied)
    assert usage(store) == [UsageRow(TODAY, "demo-chat", failed=1)]
    ended(store, new, completed(new, now_ms=NOW_MS + DAY_MS + 1000))

    first, second = usage(store)
    assert first == UsageRow(TODAY, "demo-chat", failed=1)
    assert (second.day, second.completed, second.cost_nanos) == ("2026-01-02", 1, COST)


# ------------------------------------------------------------------------------------ the rows


def test_usage_is_kept_for_400_days_whether_or_not_its_row_was_collected(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    job = end_one(dynamodb_store)
    rows = DynamoDBRows(dynamodb, tables.names).all(tables.names.jobs)
    (row,) = (row for row in rows if row["tenant"] == "usage#acme")
    ends_s = (job.completed_at_epoch_ms or 0) // 1000 + KEPT_S

    assert row["ttl_epoch_s"] == ends_s
    assert KEPT_S == 400 * 24 * 3600
    dynamodb_store.clock.set(ends_s * 1000 - 1)
    assert len(usage(dynamodb_store)) == 1
    dynamodb_store.clock.set(ends_s * 1000)
    assert usage(dynamodb_store) == []


def test_usage_is_nobodys_job_and_never_due(store: Store) -> None:
    end_one(store)

    assert [list(store.due_jobs.indexed(str(shard))) for shard in range(8)] == [[]] * 8


def test_read_goes_past_a_page_of_the_table(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    for day in range(1, 6):
        item = {
            "tenant": {"S": "usage#acme"},
            "job_id": {"S": f"2026-01-{day:02d}#demo-chat#0"},
            "completed": {"N": "1"},
            "ttl_epoch_s": {"N": str(NOW_MS // 1000 + KEPT_S)},
            "of_another_version": {"S": "x" * 300_000},
        }
        dynamodb.put_item(TableName=tables.names.jobs, Item=item)

    assert [row.day for row in usage(dynamodb_store)] == [
        f"2026-01-{day:02d}" for day in range(1, 6)
    ]


def damage(client: Any, tables: Tables) -> None:
    client.update_item(
        TableName=tables.names.jobs,
        Key={"tenant": {"S": "usage#acme"}, "job_id": {"S": f"{TODAY}#demo-chat#0"}},
        UpdateExpression="SET #name = :text",
        ExpressionAttributeNames={"#name": "completed"},
        ExpressionAttributeValues={":text": {"S": "many"}},
    )


def test_paid_result_is_kept_though_its_usage_is_damaged(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    processing, lease = dynamodb_store.start(dynamodb_store.submit(a_job(1)))
    end_one(dynamodb_store, 2)
    damage(dynamodb, tables)

    dynamodb_store.jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS + 60_000
    )

    stored = dynamodb_store.row(processing)
    assert (stored.status, stored.unsettled) == (JobStatus.COMPLETED, True)
    assert stored.result == completed(processing).result


def test_damaged_usage_is_not_told_as_if_it_were_less(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    end_one(dynamodb_store)
    damage(dynamodb, tables)

    with pytest.raises(DamagedRowError):
        usage(dynamodb_store)


# ------------------------------------------------------------------------------------ helpers


def cancel(job: Job, after_ms: int = 0) -> Job:
    return transitions.cancelled(job, now_ms=NOW_MS + after_ms)
