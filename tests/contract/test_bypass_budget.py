"""JobStore.submit with a budget: how many jobs a day may go past the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sluiceway.ports import BudgetSpent, CapReached, Claimed, Submitted

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import DynamoDBRows, store_on
from tests.fakes.examples import a_job, completed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

CAPS = (100,)
BUDGET = 3
DAY_MS = 24 * 3600 * 1000


def submit(store: Store, job: Job, *, budget: int = BUDGET, caps: tuple[int, ...] = CAPS) -> object:
    return store.jobs.submit(job, shard_caps=caps, bypasses_per_day=budget)


def spend(store: Store, *, budget: int = BUDGET, **changes: Any) -> None:
    """Uses the day's budget up."""
    for number in range(1, budget + 1):
        assert isinstance(submit(store, a_job(number, **changes), budget=budget), Submitted)


def test_budget_takes_exactly_so_many_jobs(store: Store) -> None:
    spend(store)
    before = store.rows.picture()

    outcome = submit(store, a_job(BUDGET + 1))

    assert outcome == BudgetSpent()
    assert store.rows.picture() == before


def test_job_that_ends_gives_nothing_back(store: Store) -> None:
    spend(store)
    store.jobs.apply(store.row(a_job(1)), completed(store.row(a_job(1))))

    assert submit(store, a_job(9)) == BudgetSpent()


def test_next_day_of_utc_has_a_budget_of_its_own(store: Store) -> None:
    spend(store, created_at_epoch_ms=NOW_MS - 1)  # the last millisecond of a year

    last = submit(store, a_job(8, created_at_epoch_ms=NOW_MS - DAY_MS))
    first = submit(store, a_job(9, created_at_epoch_ms=NOW_MS))

    assert last == BudgetSpent()
    assert isinstance(first, Submitted)


def test_tenants_have_budgets_of_their_own(store: Store) -> None:
    spend(store)

    assert isinstance(submit(store, a_job(9, tenant="globex")), Submitted)


def test_jobs_that_use_the_cache_are_not_counted(store: Store) -> None:
    for number in range(10, 15):
        store.submit(a_job(number))

    spend(store)

    assert isinstance(submit(store, a_job(20), budget=0), Submitted)


def test_duplicate_is_not_counted_and_needs_no_budget(store: Store) -> None:
    submit(store, a_job(1))
    duplicates = [replace(a_job(number), job_key=a_job(1).job_key) for number in (11, 12, 13)]

    outcomes = [submit(store, job) for job in duplicates]
    submit(store, a_job(2))
    submit(store, a_job(3))

    assert outcomes == [Claimed(a_job(1).job_id)] * 3
    assert submit(store, a_job(4)) == BudgetSpent()
    assert submit(store, duplicates[0]) == Claimed(a_job(1).job_id)


def test_job_over_the_cap_is_not_counted(store: Store) -> None:
    submit(store, a_job(1), caps=(1,))

    refused = [submit(store, a_job(number), caps=(1,)) for number in range(2, 8)]

    assert refused == [CapReached()] * 6
    assert isinstance(submit(store, a_job(2)), Submitted)
    assert isinstance(submit(store, a_job(3)), Submitted)


def test_spent_budget_answers_where_the_cap_is_reached_too(store: Store) -> None:
    spend(store)

    assert submit(store, a_job(9), caps=(BUDGET,)) == BudgetSpent()


def test_submit_repeated_when_its_own_job_spent_the_budget_is_submitted(store: Store) -> None:
    spend(store)
    before = store.rows.picture()

    outcome = submit(store, a_job(BUDGET))

    assert outcome == Submitted(a_job(BUDGET))
    assert store.rows.picture() == before


def test_budget_that_was_lowered_is_spent(store: Store) -> None:
    spend(store)

    assert submit(store, a_job(9), budget=2) == BudgetSpent()


def test_submit_whose_reply_is_lost_is_counted_once(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    outcome = submit(store_on(client, tables, clock), a_job())

    assert outcome == Submitted(a_job())
    assert day_row(dynamodb, tables)["bypasses"] == 1
    assert dynamodb_store.row(a_job()) == a_job()


def test_row_of_a_day_outlives_it(dynamodb: Any, tables: Tables, dynamodb_store: Store) -> None:
    submit(dynamodb_store, a_job())

    row = day_row(dynamodb, tables)

    assert row["coordination_key"] == "day#acme#2026-01-01"
    assert row["ttl_epoch_s"] >= (NOW_MS + 2 * DAY_MS) // 1000


def day_row(dynamodb: Any, tables: Tables) -> dict[str, Any]:
    (row,) = [
        row
        for row in DynamoDBRows(dynamodb, tables.names).all(tables.names.coordination)
        if row["coordination_key"].startswith("day#")
    ]
    return row
