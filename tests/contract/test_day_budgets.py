"""The budgets of a tenant's day: jobs, what they cost, and jobs past the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.request import MAX_DEADLINE_S
from sluiceway.ports import Applied, BudgetSpent, CapReached, Claimed, DayBudget, Submitted

from tests.contract.clients import (
    FaultyClient,
    cancelled,
    coordination_keys,
    timed_out,
)
from tests.contract.harness import (
    DynamoDBRows,
    store_on,
    sweep,
)
from tests.fakes.examples import (
    a_job,
    a_refresh,
    an_entry,
    an_error,
    completed,
    failed,
    redriven,
    retrying,
)
from tests.fakes.in_memory import (
    NOW_MS,
    InMemoryQueue,
    RecordingTelemetry,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

CAPS = (100,)
BUDGET = 3
RESERVE, COST = 500_000, 330_000
ANY_COST = DayBudget(cost_nanos=10**12)
DAY_MS = 24 * 3600 * 1000


def submit(store: Store, job: Job, *, budget: int = BUDGET, caps: tuple[int, ...] = CAPS) -> object:
    return store.jobs.submit(job, shard_caps=caps, budget=DayBudget(bypasses=budget))


def spend(store: Store, *, budget: int = BUDGET, **changes: Any) -> None:
    """Uses the day's budget up."""
    for number in range(1, budget + 1):
        assert isinstance(submit(store, a_job(number, **changes), budget=budget), Submitted)


def test_budget_takes_exactly_so_many_jobs(store: Store) -> None:
    spend(store)
    before = store.rows.picture()

    outcome = submit(store, a_job(BUDGET + 1))

    assert outcome == BudgetSpent("bypasses")
    assert store.rows.picture() == before


def test_job_that_ends_gives_nothing_back(store: Store) -> None:
    spend(store)
    store.jobs.apply(store.row(a_job(1)), completed(store.row(a_job(1))))

    assert submit(store, a_job(9)) == BudgetSpent("bypasses")


def test_next_day_of_utc_has_a_budget_of_its_own(store: Store) -> None:
    spend(store, enqueued_at_epoch_ms=NOW_MS - 1)  # the last millisecond of a year

    last = submit(store, a_job(8, enqueued_at_epoch_ms=NOW_MS - DAY_MS))
    first = submit(store, a_job(9, enqueued_at_epoch_ms=NOW_MS))

    assert last == BudgetSpent("bypasses")
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
    assert submit(store, a_job(4)) == BudgetSpent("bypasses")
    assert submit(store, duplicates[0]) == Claimed(a_job(1).job_id)


def test_job_over_the_cap_is_not_counted(store: Store) -> None:
    submit(store, a_job(1), caps=(1,))

    refused = [submit(store, a_job(number), caps=(1,)) for number in range(2, 8)]

    assert refused == [CapReached()] * 6
    assert isinstance(submit(store, a_job(2)), Submitted)
    assert isinstance(submit(store, a_job(3)), Submitted)


def test_spent_budget_answers_where_the_cap_is_reached_too(store: Store) -> None:
    spend(store)

    assert submit(store, a_job(9), caps=(BUDGET,)) == BudgetSpent("bypasses")


def test_submit_repeated_when_its_own_job_spent_the_budget_is_submitted(store: Store) -> None:
    spend(store)
    before = store.rows.picture()

    outcome = submit(store, a_job(BUDGET))

    assert outcome == Submitted(a_job(BUDGET))
    assert store.rows.picture() == before


def test_budget_that_was_lowered_is_spent(store: Store) -> None:
    spend(store)

    assert submit(store, a_job(9), budget=2) == BudgetSpent("bypasses")


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
    # Longer than any deadline, so that every end finds it.
    assert row["ttl_epoch_s"] >= (NOW_MS + DAY_MS) // 1000 + MAX_DEADLINE_S


def day_row(dynamodb: Any, tables: Tables) -> dict[str, Any]:
    (row,) = [
        row
        for row in DynamoDBRows(dynamodb, tables.names).all(tables.names.coordination)
        if row["coordination_key"].startswith("day#")
    ]
    return row


# ------------------------------------------------------------------------------------ jobs


def test_budget_of_jobs_takes_exactly_so_many(store: Store) -> None:
    two = DayBudget(jobs=2)
    for number in (1, 2):
        assert isinstance(charge(store, a_job(number), two), Submitted)
    before = store.rows.picture()

    outcome = charge(store, a_job(3), two)

    assert outcome == BudgetSpent("jobs")
    assert store.rows.picture() == before
    assert store.rows.day(a_job()) == {"jobs": 2}


def test_end_of_a_job_without_a_cost_writes_nothing_to_its_day(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    touched: list[str] = []
    client: Any = FaultyClient(dynamodb, before=lambda request: touched.extend(keys(request)))
    charge(dynamodb_store, a_job(), DayBudget(jobs=2, bypasses=2))

    store_on(client, tables, clock).jobs.apply(a_job(), completed(a_job()))

    assert touched
    assert not any(key.startswith("day#") for key in touched)
    assert dynamodb_store.rows.day(a_job()) == {"jobs": 1, "bypasses": 1}


def test_submit_without_a_budget_writes_nothing_to_a_day(store: Store) -> None:
    store.submit(a_job())

    assert store.rows.day(a_job()) == {}


def test_three_budgets_are_one_write(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    touched: list[str] = []
    client: Any = FaultyClient(dynamodb, before=lambda request: touched.extend(keys(request)))
    all_three = DayBudget(jobs=1, cost_nanos=RESERVE, bypasses=1)

    charge(store_on(client, tables, clock), costly(), all_three)

    assert [key for key in touched if key.startswith("day#")] == ["day#acme#2026-01-01"]
    assert dynamodb_store.rows.day(costly()) == {"jobs": 1, "cost_nanos": RESERVE, "bypasses": 1}


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (DayBudget(jobs=1, cost_nanos=2 * RESERVE, bypasses=2), "jobs"),
        (DayBudget(jobs=2, cost_nanos=2 * RESERVE - 1, bypasses=2), "cost_nanos"),
        (DayBudget(jobs=2, cost_nanos=2 * RESERVE, bypasses=1), "bypasses"),
        (DayBudget(jobs=1, cost_nanos=1, bypasses=1), "jobs"),
        (DayBudget(cost_nanos=1, bypasses=1), "cost_nanos"),
    ],
)
def test_refusal_names_the_budget_and_nothing_is_counted(
    store: Store, budget: DayBudget, spent: str
) -> None:
    charge(store, costly(1), DayBudget(jobs=9, cost_nanos=9 * RESERVE, bypasses=9))
    before = store.rows.picture()

    assert charge(store, costly(2), budget) == BudgetSpent(spent)
    assert store.rows.picture() == before


def test_refusal_whose_row_is_left_out_is_read(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    # As an emulator may do it: a condition failed, and no word of the item.
    charge(dynamodb_store, a_job(1), DayBudget(jobs=1))

    def refuse(_: object) -> None:
        raise cancelled("None", "None", "None", "ConditionalCheckFailed")

    client: Any = FaultyClient(dynamodb, before=refuse)
    store = store_on(client, tables, clock)

    assert charge(store, a_job(2), DayBudget(jobs=1)) == BudgetSpent("jobs")
    with pytest.raises(StoreBusyError):
        charge(store, a_job(2), DayBudget(jobs=2))


def test_claim_answers_where_every_budget_is_spent_too(store: Store) -> None:
    one = DayBudget(jobs=1, cost_nanos=RESERVE, bypasses=1)
    charge(store, costly(1), one)
    twin = replace(costly(2), job_key=costly(1).job_key)

    assert charge(store, twin, one) == Claimed(costly(1).job_id)
    assert charge(store, costly(3), one) == BudgetSpent("jobs")


# ------------------------------------------------------------------------------------ cost


def test_reserve_that_just_fits_is_accepted_and_the_next_is_not(store: Store) -> None:
    two = DayBudget(cost_nanos=2 * RESERVE)

    outcomes = [charge(store, costly(number), two) for number in (1, 2, 3)]
    last = charge(store, costly(4, cost_reserved_nanos=1), two)

    assert outcomes == [Submitted(costly(1)), Submitted(costly(2)), BudgetSpent("cost_nanos")]
    assert last == BudgetSpent("cost_nanos")
    assert store.rows.day(costly()) == {"cost_nanos": 2 * RESERVE}


@pytest.mark.parametrize("day_has", [{}, {"jobs": 1}], ids=["no row", "a row without costs"])
def test_job_above_the_whole_budget_is_refused_on_a_fresh_day(
    store: Store, day_has: dict[str, int]
) -> None:
    if day_has:
        charge(store, a_job(1), DayBudget(jobs=9))

    outcome = charge(store, costly(2), DayBudget(cost_nanos=RESERVE - 1))

    assert outcome == BudgetSpent("cost_nanos")
    assert store.rows.day(costly()) == day_has


def test_job_that_may_cost_nothing_is_counted_with_what_it_cost(store: Store) -> None:
    job = paid(store, costly(cost_reserved_nanos=0))

    store.jobs.apply(job, completed(job))

    assert store.rows.day(job) == {"cost_nanos": COST}


def ending(job: Job, call_nanos: int | None = None) -> Job:
    """The job, failed for good by a call that cost so much."""
    return transitions.failed(
        job, an_error(), now_ms=NOW_MS + 1000, last_receive=False, call_nanos=call_nanos
    )


ENDS: dict[str, tuple[Callable[[Job], Job], int]] = {
    "completed for less": (completed, COST),
    "completed for as much": (lambda job: completed(job, cost_nanos=RESERVE), RESERVE),
    "completed for more": (lambda job: completed(job, cost_nanos=9 * RESERVE), 9 * RESERVE),
    "completed for nothing": (lambda job: completed(job, cost_nanos=0), 0),
    "completed from the cache": (
        lambda job: transitions.completed_from(an_entry(job), job, now_ms=NOW_MS + 1000),
        0,
    ),
    "failed": (failed, 0),
    "dead-lettered": (lambda job: failed(job, last_receive=True), 0),
    "cancelled": (lambda job: transitions.cancelled(job, now_ms=NOW_MS + 1000), 0),
    "at work, completed": (lambda job: completed(at_work(job)), COST),
    "at work, completed from the cache": (
        lambda job: transitions.completed_from(
            an_entry(job), at_work(job), now_ms=NOW_MS + 1000, attempt_taken_back=True
        ),
        0,
    ),
    "at work, completed from the cache by another worker": (
        lambda job: transitions.completed_from(an_entry(job), at_work(job), now_ms=NOW_MS + 1000),
        RESERVE,
    ),
    "at work, cancelled": (
        lambda job: transitions.cancelled(at_work(job), now_ms=NOW_MS + 1000),
        RESERVE,
    ),
    "at work, failed after a call that may be charged": (
        lambda job: ending(at_work(job)),
        RESERVE,
    ),
    "at work, dead-lettered after a call that may be charged": (
        lambda job: failed(at_work(job), last_receive=True),
        RESERVE,
    ),
    "at work, refused": (lambda job: ending(at_work(job), call_nanos=0), 0),
    "at work, its answer lost": (lambda job: ending(at_work(job), call_nanos=9), 9),
    "timed out, then completed": (
        lambda job: completed(at_work(retrying(at_work(job)))),
        RESERVE + COST,
    ),
    "timed out, then cancelled in its wait": (
        lambda job: transitions.cancelled(retrying(at_work(job)), now_ms=NOW_MS + 1000),
        RESERVE,
    ),
    "timed out twice, then refused": (
        lambda job: ending(at_work(retrying(at_work(retrying(at_work(job))))), call_nanos=0),
        2 * RESERVE,
    ),
    "crashed, then completed": (lambda job: completed(at_work(at_work(job))), RESERVE + COST),
    "crashed, then parked at the gate and cancelled": (
        lambda job: transitions.cancelled(
            transitions.gated(at_work(at_work(job)), not_before_ms=NOW_MS + 5000, slot=None),
            now_ms=NOW_MS + 1000,
        ),
        RESERVE,
    ),
}
ends = pytest.mark.parametrize(("end", "cost"), ENDS.values(), ids=ENDS)


@ends
def test_end_puts_the_cost_in_the_place_of_the_reserve(
    store: Store, end: Callable[[Job], Job], cost: int
) -> None:
    other, job = paid(store, costly(2)), paid(store)

    store.jobs.apply(job, end(job))

    assert store.rows.day(other) == {"cost_nanos": RESERVE + cost}


@ends
def test_end_that_is_told_again_is_counted_once(
    store: Store, end: Callable[[Job], Job], cost: int
) -> None:
    paid(store, costly(2))
    job = paid(store)

    for _ in range(2):
        assert isinstance(store.jobs.apply(job, end(job)), Applied)

    assert store.rows.day(job) == {"cost_nanos": RESERVE + cost}


@ends
def test_end_whose_reply_is_lost_is_counted_once(
    dynamodb: Any,
    tables: Tables,
    clock: FakeClock,
    dynamodb_store: Store,
    end: Callable[[Job], Job],
    cost: int,
) -> None:
    paid(dynamodb_store, costly(2))
    job = paid(dynamodb_store)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    outcome = store_on(client, tables, clock).jobs.apply(job, end(job))

    assert isinstance(outcome, Applied)
    assert dynamodb_store.rows.day(job) == {"cost_nanos": RESERVE + cost}


def test_reserve_whose_reply_is_lost_is_counted_once(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])
    once = DayBudget(cost_nanos=RESERVE, jobs=1)

    assert charge(store_on(client, tables, clock), costly(), once) == Submitted(costly())
    assert dynamodb_store.rows.day(costly()) == {"cost_nanos": RESERVE, "jobs": 1}


def test_discard_counts_nothing_more(store: Store) -> None:
    job = paid(store)
    dead = ended(store, job, failed(job, last_receive=True))

    store.jobs.apply(dead, transitions.discarded(dead, now_ms=NOW_MS + 2000))

    assert store.rows.day(dead) == {}


def test_end_of_another_day_is_counted_where_the_job_was(store: Store) -> None:
    yesterday = paid(store, costly(enqueued_at_epoch_ms=NOW_MS - 1))

    store.jobs.apply(yesterday, completed(yesterday))

    assert store.rows.day(yesterday) == {"cost_nanos": COST}
    assert store.rows.day(costly()) == {}


def test_room_that_an_end_leaves_is_given_to_the_next(store: Store) -> None:
    one = DayBudget(cost_nanos=RESERVE + COST)
    job = paid(store)
    assert charge(store, costly(2), one) == BudgetSpent("cost_nanos")

    store.jobs.apply(job, completed(job))

    assert charge(store, costly(2), one) == Submitted(costly(2))


@pytest.mark.proves(18)
def test_refresh_is_in_no_budget(store: Store) -> None:
    job = store.submit(a_job())
    entry = an_entry(job)
    store.jobs.apply(job, completed(job), entry=entry)
    store.jobs.queue_refresh(a_refresh(), entry)

    store.jobs.apply(a_refresh(), completed(a_refresh()), entry=entry)

    assert store.rows.day(a_refresh()) == store.rows.day(job) == {}


# ------------------------------------------------------------------------------------ unsettled


@ends
def test_unsettled_end_keeps_its_reserve_until_it_is_settled_once(
    store: Store, end: Callable[[Job], Job], cost: int
) -> None:
    paid(store, costly(2))
    job = unsettled(store, end)
    assert store.rows.day(job) == {"cost_nanos": 2 * RESERVE}

    for _ in range(2):
        store.jobs.settle(job)

    assert store.rows.day(job) == {"cost_nanos": RESERVE + cost}


def test_finish_that_meets_others_at_its_day_only_is_left_to_the_sweeper(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    def conflict(request: dict[str, Any]) -> None:
        if any(key.startswith("day#") for key in keys(request)):
            raise cancelled("None", "TransactionConflict")

    processing, lease = dynamodb_store.start(paid(dynamodb_store))
    client: Any = FaultyClient(dynamodb, before=conflict)

    store_on(client, tables, clock).jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS
    )

    row = dynamodb_store.row(processing)
    assert (row.unsettled, row.cost_nanos) == (True, COST)
    assert dynamodb_store.rows.day(row) == {"cost_nanos": RESERVE}
    dynamodb_store.jobs.settle(row)
    assert dynamodb_store.rows.day(row) == {"cost_nanos": COST}


def test_unsettled_job_that_is_marked_and_discarded_is_settled_once(store: Store) -> None:
    job = unsettled(store, failed)
    dead = ended(store, job, transitions.dead_lettered(job))
    given_up = ended(store, dead, transitions.discarded(dead, now_ms=NOW_MS + 2000))
    assert store.rows.day(job) == {"cost_nanos": RESERVE}

    store.jobs.settle(given_up)

    assert store.rows.day(job) == {}


def test_calls_that_may_be_charged_are_no_usage(store: Store) -> None:
    job = paid(store)

    ended(store, job, completed(at_work(retrying(at_work(job)))))

    (row,) = store.usage.read("acme", job.day, job.day)
    assert (row.completed, row.cost_nanos) == (1, COST)


def test_open_job_counts_its_reserve_once_however_often_it_was_called_for(store: Store) -> None:
    job = paid(store)

    for _ in range(3):
        processing = ended(store, job, at_work(job))
        job = ended(store, processing, retrying(processing))

    assert job.lost_nanos == 3 * RESERVE
    assert store.rows.day(job) == {"cost_nanos": RESERVE}


def test_partner_who_cancels_each_call_uses_the_day_up(store: Store) -> None:
    two = DayBudget(cost_nanos=2 * RESERVE)
    for number in (1, 2):
        outcome = charge(store, costly(number), two)
        assert isinstance(outcome, Submitted)
        processing = ended(store, outcome.job, at_work(outcome.job))
        ended(store, processing, transitions.cancelled(processing, now_ms=NOW_MS + 1000))

    assert charge(store, costly(3), two) == BudgetSpent("cost_nanos")


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
@pytest.mark.parametrize("later_ms", [60_000, DAY_MS], ids=["same day", "next day"])
def test_redrive_leaves_what_the_run_spent_in_its_day(
    store: Store, later_ms: int, *, settled: bool
) -> None:
    def end(job: Job) -> Job:
        return ending(at_work(retrying(at_work(job))))

    if settled:
        job = paid(store)
        old = ended(store, job, end(job))
    else:
        old = unsettled(store, end)
    new = redriven(old, now_ms=NOW_MS + later_ms)

    for _ in range(2):  # the second one is the reply that was lost
        assert isinstance(store.jobs.redrive(old, new), Applied)

    left = {old.day: 2 * RESERVE}
    assert new.lost_nanos == 0
    assert days(store, old, new) == add(left, new.day, RESERVE)
    store.jobs.apply(new, completed(new))
    assert days(store, old, new) == add(left, new.day, COST)


# ------------------------------------------------------------------------------------ redrives


def test_redrive_reserves_again_whatever_the_cap(store: Store) -> None:
    one = DayBudget(cost_nanos=RESERVE)
    job = paid(store)
    old = ended(store, job, failed(job))
    charge(store, costly(2), one)

    store.jobs.redrive(old, redriven(old))

    assert store.rows.day(old) == {"cost_nanos": 2 * RESERVE}
    assert charge(store, costly(3), one) == BudgetSpent("cost_nanos")


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
@pytest.mark.parametrize("later_ms", [60_000, DAY_MS], ids=["same day", "next day"])
@pytest.mark.parametrize("twin", [False, True], ids=["claim is free", "claim is a twin's"])
def test_redriven_job_counts_once_and_on_the_day_of_its_redrive(
    store: Store, later_ms: int, *, settled: bool, twin: bool
) -> None:
    if settled:
        job = paid(store)
        old = ended(store, job, failed(job))
    else:
        old = unsettled(store, failed)
        store.rows.drop_claim(old.job_key)
    if twin:
        store.submit(a_job(2, job_key=old.job_key))
    new = redriven(old, now_ms=NOW_MS + later_ms)

    for _ in range(2):  # the second one is the reply that was lost
        assert isinstance(store.jobs.redrive(old, new), Applied)

    assert store.rows.day(new) == {"cost_nanos": RESERVE}
    assert store.rows.day(old) == ({} if new.day != old.day else {"cost_nanos": RESERVE})
    store.jobs.apply(new, completed(new))
    assert store.rows.day(new) == {"cost_nanos": COST}


# ------------------------------------------------------------------------------------ all of it


def test_day_adds_up_to_what_its_jobs_have_cost(store: Store) -> None:
    for number, (end, _) in enumerate(ENDS.values(), 1):
        job = paid(store, costly(number))
        ended(store, job, end(job))
    again = store.row(costly(6))  # it failed
    new = redriven(again)
    store.jobs.redrive(again, new)
    ended(store, new, completed(new, cost_nanos=7))
    late = unsettled(store, lambda job: completed(job, cost_nanos=11), number=120)
    store.jobs.settle(late)
    open_still = paid(store, costly(121, cost_reserved_nanos=13))

    assert store.rows.day(open_still) == {
        "cost_nanos": sum(cost for _, cost in ENDS.values()) + 7 + 11 + 13
    }


# ------------------------------------------------------------------------------------ damaged rows


def damage(client: Any, tables: Tables, key: str, name: str) -> None:
    client.update_item(
        TableName=tables.names.coordination,
        Key={"coordination_key": {"S": key}},
        UpdateExpression="SET #name = :text",
        ExpressionAttributeNames={"#name": name},
        ExpressionAttributeValues={":text": {"S": "many"}},
    )


@pytest.mark.parametrize("row", ["day", "counter"])
def test_paid_result_is_kept_though_its_day_or_counter_is_damaged(
    dynamodb: Any, tables: Tables, dynamodb_store: Store, row: str
) -> None:
    processing, lease = dynamodb_store.start(paid(dynamodb_store))
    if row == "day":
        damage(dynamodb, tables, f"day#acme#{processing.day}", "cost_nanos")
    else:
        damage(dynamodb, tables, f"tenant#acme#{processing.counter_shard}", "in_flight")

    dynamodb_store.jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS + 60_000
    )

    stored = dynamodb_store.row(processing)
    assert (stored.status, stored.unsettled) == (JobStatus.COMPLETED, True)
    assert stored.result == completed(processing).result


def test_sweep_passes_over_who_cannot_be_settled_as_its_day_is_damaged(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    bad = unsettled(dynamodb_store, failed)
    good = unsettled(dynamodb_store, failed, number=2, tenant="globex")
    damage(dynamodb, tables, f"day#acme#{bad.day}", "cost_nanos")
    telemetry = RecordingTelemetry()

    swept = sweep(
        dynamodb_store.jobs,
        dynamodb_store.due_jobs,
        InMemoryQueue(),
        clock=clock,
        telemetry=telemetry,
    )

    assert swept.settled == 1
    assert (dynamodb_store.row(bad).unsettled, dynamodb_store.row(good).unsettled) == (True, False)
    assert "job_damaged" in telemetry.names


# ------------------------------------------------------------------------------------ helpers


def charge(store: Store, job: Job, budget: DayBudget) -> object:
    return store.jobs.submit(job, shard_caps=CAPS, budget=budget)


def costly(number: int = 1, **changes: Any) -> Job:
    """A job of a tenant with a budget of costs."""
    return a_job(number, **{"cost_reserved_nanos": RESERVE, **changes})


def paid(store: Store, job: Job | None = None) -> Job:
    """The job, submitted with its reserve."""
    outcome = charge(store, job or costly(), ANY_COST)
    assert isinstance(outcome, Submitted)
    return outcome.job


def at_work(job: Job) -> Job:
    """The job, after the start of an attempt."""
    return transitions.started(
        job, fence=job.fence + 1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 1000
    )


def days(store: Store, *jobs: Job) -> dict[str, int]:
    """The cost of the days of these jobs."""
    return {job.day: store.rows.day(job)["cost_nanos"] for job in jobs}


def add(costs: dict[str, int], day: str, nanos: int) -> dict[str, int]:
    return {**costs, day: costs.get(day, 0) + nanos}


def ended(store: Store, old: Job, new: Job) -> Job:
    """The job after this transition."""
    outcome = store.jobs.apply(old, new)
    assert isinstance(outcome, Applied)
    return outcome.job


def unsettled(store: Store, end: Callable[[Job], Job], *, number: int = 1, **changes: Any) -> Job:
    """A job whose end left claim, counter and budget to the sweeper."""
    job = paid(store, costly(number, **changes))
    marked = replace(end(job), unsettled=True, due_at_epoch_ms=NOW_MS, due_shard=job.due_shard)
    store.rows.put_job(marked)
    return marked


def keys(request: dict[str, Any]) -> list[str]:
    """The coordination rows of a transaction; none of another write."""
    return coordination_keys(request) if "TransactItems" in request else []
