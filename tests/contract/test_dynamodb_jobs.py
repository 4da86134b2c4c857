"""What only the tables show: lost replies, rows that can't be written, and garbage collection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sluiceway.adapters.dynamodb import MAX_TRIES
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus, due_shard
from sluiceway.domain.lease import CLOCK_SKEW_MS
from sluiceway.ports import Applied, CapReached, Claimed, LeaseHeld, Moved, Started, Submitted
from sluiceway.usecases.cancel_job import cancel_job

from tests.contract.clients import (
    FaultyClient,
    cancelled,
    coordination_keys,
    refused,
    timed_out,
)
from tests.contract.harness import (
    LEASE_MS,
    DynamoDBRows,
    start,
    store_on,
    template_resources,
)
from tests.fakes.examples import (
    a_job,
    a_partner_key,
    an_entry,
    completed,
    failed,
    redriven,
    retrying,
)
from tests.fakes.in_memory import NOW_MS, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

CAPS = (100,)
DAY_S = 24 * 3600


@pytest.fixture
def good(dynamodb_store: Store) -> Store:
    """The store as everybody else sees it."""
    return dynamodb_store


@pytest.fixture
def faulty(
    dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock
) -> Callable[..., tuple[Store, FaultyClient]]:
    """Gives the same store through a client that meets these faults."""

    def pause(_: float) -> None:
        clock.advance(500)  # waiting takes time, as it does outside

    def make(**faults: Any) -> tuple[Store, FaultyClient]:
        client = FaultyClient(dynamodb, **faults)
        store = store_on(cast("DynamoDBClient", client), tables, clock, pause=pause)
        return store, client

    return make


# ------------------------------------------------------------------------------------ lost replies


def test_submit_whose_reply_is_lost_is_submitted_and_counted_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    store, client = faulty(replies=[timed_out()])

    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(a_job())
    assert client.writes == 2
    assert good.row(a_job()) == a_job()
    assert good.rows.in_flight("acme") == {0: 1}


def test_submit_whose_reply_is_lost_is_submitted_though_it_filled_the_cap(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    store, _ = faulty(replies=[timed_out()])

    outcome = store.jobs.submit(a_job(), shard_caps=(1,))

    assert outcome == Submitted(a_job())
    assert good.rows.in_flight("acme") == {0: 1}


def test_submit_that_never_hears_of_its_success_knows_its_claim(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    def busy_after_the_first(_: object) -> None:
        if client.writes > 1:
            raise cancelled("None", "TransactionConflict", "None")

    store, client = faulty(before=busy_after_the_first, replies=[timed_out()])

    outcome = store.jobs.submit(a_job(), shard_caps=CAPS)

    assert outcome == Submitted(a_job())
    assert good.rows.in_flight("acme") == {0: 1}


def test_start_whose_reply_is_lost_is_started_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    job = good.submit(a_job())
    store, client = faulty(replies=[timed_out()])

    outcome = start(store, job)

    assert isinstance(outcome, Started)
    assert client.writes == 2
    assert good.row(job) == outcome.job
    assert (outcome.job.attempts, outcome.job.fence, outcome.lease.fence) == (1, 1, 1)


def test_start_over_an_old_lease_whose_reply_is_lost_is_started_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    job = good.submit(a_job())
    good.rows.put_lease(job.cache_key, LeaseRow("job_of_old", None, 7, 0))
    store, _ = faulty(replies=[timed_out()])

    outcome = start(store, job)

    assert isinstance(outcome, Started)
    assert (outcome.job.fence, outcome.lease.fence) == (8, 8)
    assert good.row(job) == outcome.job


def test_start_repeated_over_an_old_lease_gives_the_job_under_the_fence_it_has(
    good: Store,
) -> None:
    job = good.submit(a_job())
    good.rows.put_lease(job.cache_key, LeaseRow("job_of_old", None, 7, 0))
    first = start(good, job)

    again = start(good, job)

    assert again == first


def test_finish_whose_reply_is_lost_is_applied_and_settled_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    good.submit(a_job(2))
    processing, lease = good.start(good.submit(a_job(1)))
    store, client = faulty(replies=[timed_out()])

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, entry=an_entry(processing)
    )

    assert outcome == Applied(completed(processing))
    assert client.writes == 2
    assert good.cache.read(processing.cache_key) == an_entry(processing)
    assert good.rows.in_flight("acme") == {0: 1}


def test_finish_outlasts_lost_connections_until_its_time_is_up(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))

    def unreachable_for_a_minute(_: object) -> None:
        if good.clock.now_ms() < NOW_MS + 60_000:
            good.clock.advance(s=4)
            raise timed_out()

    store, _ = faulty(before=unreachable_for_a_minute)

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS + 90_000
    )

    assert outcome == Applied(completed(processing))


@pytest.mark.parametrize("end", [retrying, failed])
def test_other_transition_whose_reply_is_lost_is_applied(
    good: Store,
    faulty: Callable[..., tuple[Store, FaultyClient]],
    end: Callable[[Job], Job],
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, _ = faulty(replies=[timed_out()])

    outcome = store.jobs.apply(processing, end(processing), lease=lease)

    assert outcome == Applied(end(processing))
    assert good.row(processing) == end(processing)


def test_end_of_a_dead_workers_job_whose_reply_is_lost_is_applied(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, _ = good.start(good.submit(a_job()))
    now_ms = good.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)
    store, _ = faulty(replies=[timed_out()])

    outcome = store.jobs.apply(processing, failed(processing), unless_held_at_ms=now_ms)

    assert outcome == Applied(failed(processing))
    assert good.rows.in_flight("acme") == {}


def test_release_whose_reply_is_lost_is_done(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, _ = faulty(replies=[timed_out()])

    store.jobs.release(lease)

    assert good.rows.lease(lease.key) == LeaseRow(processing.job_id, None, 1, 0)


def test_renewal_whose_reply_is_lost_is_renewed(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, client = faulty(replies=[timed_out()])

    renewed = store.jobs.renew(processing, lease, ends_at_ms=NOW_MS + 2 * LEASE_MS)

    assert renewed == replace(lease, ends_at_epoch_ms=NOW_MS + 2 * LEASE_MS)
    assert client.writes == 2
    row = good.rows.lease(lease.key)
    assert row is not None
    assert row.ends_at_epoch_ms == NOW_MS + 2 * LEASE_MS


def test_renewal_that_always_conflicts_is_store_busy_and_changes_nothing(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    before = good.rows.picture()

    def busy(_: object) -> None:
        raise cancelled("None", "TransactionConflict")

    store, _ = faulty(before=busy)

    with pytest.raises(StoreBusyError):
        store.jobs.renew(processing, lease, ends_at_ms=NOW_MS + 2 * LEASE_MS)
    assert good.rows.picture() == before


def test_renewed_lease_row_outlives_its_new_end(
    good: Store, dynamodb: DynamoDBClient, tables: Tables
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    ends_ms = NOW_MS + 40 * DAY_S * 1000

    good.jobs.renew(processing, lease, ends_at_ms=ends_ms)

    (ttl,) = [
        row["ttl_epoch_s"]
        for row in DynamoDBRows(dynamodb, tables.names).all(tables.names.coordination)
        if row["coordination_key"] == f"lease#{lease.key}"
    ]
    assert ttl >= ends_ms // 1000 + DAY_S


@pytest.mark.parametrize("twin", [False, True], ids=["claim is free", "claim is a twin's"])
def test_redrive_whose_reply_is_lost_is_applied_and_counted_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]], *, twin: bool
) -> None:
    job = good.submit(a_job(1))
    old = failed(job, last_receive=True)
    good.jobs.apply(job, old)
    if twin:
        good.submit(replace(a_job(2), job_key=job.job_key))
    store, _ = faulty(replies=[timed_out()])

    outcome = store.jobs.redrive(old, redriven(old))

    assert outcome == Applied(redriven(old))
    assert good.row(job) == redriven(old)
    assert good.rows.in_flight("acme") == {0: 1 + twin}


def test_settling_whose_reply_is_lost_is_done_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    good.submit(a_job(2))
    job = good.submit(a_job(1))
    marked = replace(completed(job), unsettled=True, due_at_epoch_ms=1, due_shard=job.due_shard)
    good.rows.put_job(marked)
    store, _ = faulty(replies=[timed_out()])

    store.jobs.settle(marked)

    assert not good.row(job).unsettled
    assert good.rows.in_flight("acme") == {0: 1}


def test_postponement_whose_reply_is_lost_is_moved_once(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    job = good.submit(a_job())
    store, client = faulty(replies=[timed_out()])

    assert store.due_jobs.postpone(job, due_at_ms=NOW_MS + 500_000)
    assert client.writes == 2
    assert (good.row(job).due_at_epoch_ms, good.row(job).resends) == (NOW_MS + 500_000, 1)


def test_cancel_whose_reply_is_lost_gives_the_cancelled_job(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    good.submit(a_job(2))
    good.submit(a_job(1))
    store, _ = faulty(replies=[timed_out()])

    job = cancel_job(a_job(1).job_id, "acme", jobs=store.jobs, clock=good.clock).job

    assert job == good.row(job)
    assert job.status is JobStatus.CANCELLED
    assert good.rows.in_flight("acme") == {0: 1}


# ------------------------------------------------------------------------------------ conflicts


def test_submit_that_always_conflicts_over_the_claim_names_the_job_that_got_it(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    good.submit(a_job(1))

    def busy(_: object) -> None:
        raise cancelled("None", "TransactionConflict", "TransactionConflict")

    store, _ = faulty(before=busy)

    outcome = store.jobs.submit(replace(a_job(2), job_key=a_job(1).job_key), shard_caps=CAPS)

    assert outcome == Claimed(a_job(1).job_id)


def test_submit_that_always_conflicts_over_the_counter_is_store_busy(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    def busy(_: object) -> None:
        raise cancelled("None", "None", "TransactionConflict")

    store, client = faulty(before=busy)

    with pytest.raises(StoreBusyError):
        store.jobs.submit(a_job(), shard_caps=CAPS)

    assert client.writes == MAX_TRIES
    assert good.jobs.get("acme", a_job().job_id) is None


def test_submit_over_the_cap_names_an_equal_job_that_came_in_meanwhile(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    in_the_way = good.submit(a_job(1), caps=(1,))
    twin = replace(a_job(2), job_key=a_job(3).job_key)

    def twin_takes_the_place() -> None:
        good.jobs.apply(in_the_way, completed(in_the_way))
        good.submit(twin, caps=(1,))

    store, _ = faulty(meanwhile=twin_takes_the_place)

    outcome = store.jobs.submit(a_job(3), shard_caps=(1,))

    assert outcome == Claimed(twin.job_id)


def test_submit_over_the_cap_takes_a_place_that_came_free_meanwhile(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    in_the_way = good.submit(a_job(1), caps=(1,))
    store, _ = faulty(meanwhile=lambda: good.jobs.apply(in_the_way, completed(in_the_way)))

    outcome = store.jobs.submit(a_job(2), shard_caps=(1,))

    assert isinstance(outcome, Submitted)
    assert good.rows.in_flight("acme") == {0: 1}


# ------------------------------------------------------------------------------------ unsettled


def settling_conflicts(request: dict[str, Any]) -> None:
    """Others always get in the way of claim and counter."""
    keys = coordination_keys(request)
    if any(key.startswith(("claim#", "tenant#")) for key in keys):
        raise cancelled(*["None"] * (len(request["TransactItems"]) - 1), "TransactionConflict")


def test_finish_that_cannot_be_settled_in_time_is_written_without_and_marked(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, _ = faulty(before=settling_conflicts)
    entry = an_entry(processing)

    outcome = store.jobs.apply(
        processing,
        completed(processing),
        lease=lease,
        entry=entry,
        give_up_at_ms=NOW_MS + 90_000,
    )

    marked_ms = good.clock.now_ms()
    expected = replace(
        completed(processing),
        unsettled=True,
        due_at_epoch_ms=marked_ms,
        due_shard=due_shard(processing.job_id),
    )
    assert outcome == Applied(expected)
    assert good.row(processing) == expected
    assert good.cache.read(processing.cache_key) == entry
    assert good.rows.lease(processing.cache_key) == LeaseRow(processing.job_id, None, 1, 0)
    assert NOW_MS + 90_000 <= marked_ms < NOW_MS + 95_000


def test_finish_that_cannot_be_settled_leaves_claim_and_counter_to_the_sweeper(
    good: Store,
    faulty: Callable[..., tuple[Store, FaultyClient]],
    dynamodb: DynamoDBClient,
    tables: Tables,
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, _ = faulty(before=settling_conflicts)

    store.jobs.apply(processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS + 90_000)

    found = dynamodb.query(
        TableName=tables.names.jobs,
        IndexName="due_at",
        KeyConditionExpression="#due_shard = :shard",
        ExpressionAttributeNames={"#due_shard": "due_shard"},
        ExpressionAttributeValues={":shard": {"S": due_shard(processing.job_id)}},
    )["Items"]
    assert [item["job_id"]["S"] for item in found] == [processing.job_id]
    assert good.rows.claim(processing.job_key) == processing.job_id
    assert good.rows.in_flight("acme") == {0: 1}


def test_finish_that_can_be_settled_in_time_is_settled(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))

    def busy_for_a_minute(request: dict[str, Any]) -> None:
        if good.clock.now_ms() < NOW_MS + 60_000:
            settling_conflicts(request)

    store, _ = faulty(before=busy_for_a_minute)

    outcome = store.jobs.apply(
        processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS + 90_000
    )

    assert outcome == Applied(completed(processing))
    assert good.rows.in_flight("acme") == {}


def test_finish_without_a_time_limit_that_cannot_be_settled_is_store_busy(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    before = good.rows.picture()
    store, _ = faulty(before=settling_conflicts)

    with pytest.raises(StoreBusyError):
        store.jobs.apply(processing, completed(processing), lease=lease)

    assert good.rows.picture() == before


def test_last_resort_of_a_worker_that_lost_its_job_changes_nothing(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    late, lost = good.start(good.submit(a_job()), "token-1")
    good.clock.advance(LEASE_MS + CLOCK_SKEW_MS + 1)
    current, _ = good.start(late, "token-2")
    before = good.rows.picture()
    store, _ = faulty(before=settling_conflicts)

    outcome = store.jobs.apply(
        late, completed(late), lease=lost, entry=an_entry(late), give_up_at_ms=NOW_MS
    )

    assert outcome == Moved(current)
    assert good.rows.picture() == before


def test_last_resort_whose_reply_is_lost_is_applied(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))
    store, _ = faulty(before=settling_conflicts, replies=[timed_out()])

    outcome = store.jobs.apply(processing, completed(processing), lease=lease, give_up_at_ms=NOW_MS)

    assert outcome == Applied(good.row(processing))
    assert good.row(processing).unsettled


def test_last_resort_of_a_failure_keeps_away_from_a_busy_key(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    good.start(good.submit(a_job(1)))
    job = good.submit(replace(a_job(2), cache_key=a_job(1).cache_key))
    store, _ = faulty(before=settling_conflicts)

    outcome = store.jobs.apply(job, failed(job), unless_held_at_ms=NOW_MS, give_up_at_ms=NOW_MS)

    assert outcome != Applied(failed(job))
    assert isinstance(outcome, Moved | LeaseHeld)
    assert good.row(job) == job


def test_retry_that_conflicts_until_its_time_is_up_is_never_marked_unsettled(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    processing, lease = good.start(good.submit(a_job()))

    def busy_at_first(_: object) -> None:
        if client.writes <= MAX_TRIES:
            raise cancelled("TransactionConflict", "None")

    store, client = faulty(before=busy_at_first)

    outcome = store.jobs.apply(processing, retrying(processing), lease=lease, give_up_at_ms=NOW_MS)

    assert outcome == Applied(retrying(processing))
    assert good.row(processing) == retrying(processing)


# ------------------------------------------------------------------------------------ one write


def test_start_needs_no_second_write_for_the_end_of_its_lease(
    good: Store, faulty: Callable[..., tuple[Store, FaultyClient]]
) -> None:
    job = good.submit(a_job())

    def die_at_the_second(_: object) -> None:
        if client.writes > 1:
            raise refused("AccessDeniedException")

    store, client = faulty(before=die_at_the_second)

    outcome = start(store, job)

    assert isinstance(outcome, Started)
    assert good.rows.lease(job.cache_key) == LeaseRow(job.job_id, "token-1", 1, NOW_MS + LEASE_MS)


# ------------------------------------------------------------------------------------ garbage


def test_ttl_attributes_are_epoch_seconds_and_outlive_what_they_must(
    good: Store, dynamodb: DynamoDBClient, tables: Tables
) -> None:
    processing, lease = good.start(good.submit(a_job(1)))
    good.jobs.apply(processing, completed(processing), lease=lease, entry=an_entry(processing))
    good.start(good.submit(a_job(2)))
    good.keys.add(a_partner_key(expires_at_epoch_s=NOW_MS // 1000 + DAY_S))
    rows = DynamoDBRows(dynamodb, tables.names)
    now_s = NOW_MS // 1000
    deadline_s = a_job().deadline_epoch_ms // 1000

    ttls: dict[str, list[Any]] = {
        "entry": [row.get("ttl_epoch_s") for row in rows.all(tables.names.cache)],
        "key": [row.get("ttl_epoch_s") for row in rows.all(tables.partners)],
    }
    for row in rows.all(tables.names.jobs):
        kind = "usage" if row["tenant"] == "usage#acme" else "job"
        ttls.setdefault(kind, []).append(row.get("ttl_epoch_s"))
    for row in rows.all(tables.names.coordination):
        kind = row["coordination_key"].partition("#")[0]
        ttls.setdefault(kind, []).append(row.get("ttl_epoch_s"))

    assert ttls.pop("tenant") == [None]
    assert {kind: len(found) for kind, found in ttls.items()} == {
        "job": 2,
        "usage": 1,
        "entry": 1,
        "key": 1,
        "lease": 2,
        "claim": 1,
    }
    for found in ttls.values():
        assert all(type(ttl) is int and len(str(ttl)) == 10 for ttl in found)
        assert all(now_s <= ttl <= now_s + 401 * DAY_S for ttl in found)
    assert min(ttls["job"]) >= deadline_s + 14 * DAY_S
    assert min(ttls["lease"]) >= now_s + LEASE_MS // 1000 + DAY_S
    assert min(ttls["claim"]) >= deadline_s + 3600


@pytest.mark.parametrize("table", ["JobsTable", "CacheTable", "CoordinationTable", "PartnersTable"])
def test_ttl_attribute_is_the_one_that_the_template_names(table: str) -> None:
    specification = template_resources()[table]["Properties"]["TimeToLiveSpecification"]

    assert specification == {"AttributeName": "ttl_epoch_s", "Enabled": True}


def test_index_holds_the_jobs_that_are_due_and_no_others(
    good: Store, dynamodb: DynamoDBClient, tables: Tables
) -> None:
    good.submit(a_job(1))
    ended = good.submit(a_job(2))
    good.jobs.apply(ended, completed(ended))

    found = dynamodb.scan(TableName=tables.names.jobs, IndexName="due_at")["Items"]

    assert [item["job_id"]["S"] for item in found] == [a_job(1).job_id]


# ------------------------------------------------------------------------------------ replicas


class Lagging:
    """A real client whose replicas know nothing yet: only consistent reads find something."""

    def __init__(self, client: DynamoDBClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_item(self, **request: Any) -> Any:
        return self._client.get_item(**request) if request.get("ConsistentRead") else {}


def test_what_was_just_written_is_seen_though_replicas_lag(  # case W13
    dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock
) -> None:
    client: Any = Lagging(dynamodb)
    store = store_on(client, tables, clock)
    job = store.submit(a_job(1), caps=(1,))

    assert store.jobs.get(job.tenant, job.job_id) == job
    assert store.jobs.holder(job) == job.job_id
    again = replace(a_job(2), job_key=job.job_key)
    assert store.jobs.submit(again, shard_caps=(1,)) == Claimed(job.job_id)
    assert store.jobs.submit(a_job(3), shard_caps=(1,)) == CapReached()
    processing, lease = store.start(job)
    assert store.jobs.get(job.tenant, job.job_id) == processing
    entry = an_entry(job)
    store.jobs.apply(processing, completed(processing), lease=lease, entry=entry)
    assert store.cache.read(job.cache_key) == entry
    store.state.pause_tenant("acme")
    assert store.state.read().paused_tenants == {"acme"}
