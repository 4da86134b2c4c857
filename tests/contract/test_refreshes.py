"""JobStore.queue_refresh, and the end of a refresh: one at a time, and in nobody's counter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs
from sluiceway.domain.freshness import COOL_DOWN_FIRST_MS, COOL_DOWN_LONGEST_MS
from sluiceway.domain.job import JobStatus
from sluiceway.ports import Applied, VendorAnswer

from tests.contract.clients import FaultyClient, cancelled, timed_out
from tests.contract.harness import store_on
from tests.contract.test_valkey_path import CATALOGUE, Path
from tests.fakes.examples import a_job, a_refresh, an_entry, an_error, completed, failed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.job import Job

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

KEY = a_job().cache_key
ANSWER = VendorAnswer("an answer", "stop", input_tokens=10, output_tokens=20, latency_ms=300)


def filled(store: Store, **changes: Any) -> CacheEntry:
    """An entry as a completed job left it, or with these changes."""
    job = store.submit(a_job())
    entry = an_entry(job, **changes)
    store.jobs.apply(job, completed(job), entry=entry)
    return entry


def another(number: int, **changes: Any) -> Job:
    """Another refresh of the same entry."""
    return a_refresh(**{"job_id": f"job_another{number:015d}", **changes})


def entry_of(store: Store) -> CacheEntry:
    entry = store.cache.read(KEY)
    assert entry is not None
    return entry


def fail(store: Store, job: Job, *, at_ms: int) -> object:
    """Ends the refresh as a worker that had no luck."""
    end = replace(failed(job), failed_at_epoch_ms=at_ms)
    return store.jobs.apply(store.row(job), end)


# ------------------------------------------------------------------------------------ queueing


@pytest.mark.proves(17)
def test_refresh_is_written_with_its_claim_and_marks_the_entry(store: Store) -> None:
    entry = filled(store)

    queued = store.jobs.queue_refresh(a_refresh(), entry)

    assert queued is True
    assert store.row(a_refresh()) == a_refresh()
    assert store.rows.claim(a_refresh().job_key) == a_refresh().job_id
    assert entry_of(store) == replace(
        entry,
        refresh_until_epoch_ms=a_refresh().deadline_epoch_ms,
        refresh_job_id=a_refresh().job_id,
    )
    assert store.rows.in_flight("acme") == {}
    assert store.rows.in_flight(a_refresh().tenant) == {}


@pytest.mark.proves(18)
def test_second_refresh_is_refused_and_changes_nothing(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(another(2), entry)

    assert queued is False
    assert store.rows.picture() == before


@pytest.mark.proves(18)
@pytest.mark.parametrize("name", ["refresh_until_epoch_ms", "refresh_after_epoch_ms"])
@pytest.mark.parametrize(("ahead_ms", "expected"), [(1, False), (0, True), (-1, True)])
def test_refresh_waits_until_the_last_one_and_its_cool_down_are_over(
    store: Store, name: str, ahead_ms: int, *, expected: bool
) -> None:
    entry = filled(store, **{name: NOW_MS + ahead_ms})
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(a_refresh(), entry)

    assert queued is expected
    assert (store.rows.picture() == before) is not expected


@pytest.mark.proves(18)
def test_refresh_is_refused_while_another_has_the_claim(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    store.clock.advance(s=700)
    later = another(2, created_at_epoch_ms=a_refresh().deadline_epoch_ms + 1)
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(later, entry)  # the mark is over, the claim isn't

    assert queued is False
    assert store.rows.picture() == before


@pytest.mark.proves(9)
def test_refresh_takes_a_claim_that_has_ended(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    now_ms = store.clock.advance(s=48 * 3600)

    queued = store.jobs.queue_refresh(another(2, created_at_epoch_ms=now_ms), entry)

    assert queued is True
    assert store.rows.claim(a_refresh().job_key) == another(2).job_id


def test_refresh_of_an_entry_that_was_replaced_is_refused(store: Store) -> None:
    entry = filled(store)
    newer = store.submit(a_job(2, cache_key=KEY))
    store.jobs.apply(newer, completed(newer), entry=an_entry(newer, stored_at_epoch_ms=NOW_MS + 1))
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(a_refresh(), entry)

    assert queued is False
    assert store.rows.picture() == before


@pytest.mark.parametrize("invalidated", [False, True])
def test_refresh_of_an_entry_that_is_gone_is_refused(store: Store, *, invalidated: bool) -> None:
    if invalidated:
        filled(store)
        store.cache.invalidate(KEY, now_ms=NOW_MS)
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(a_refresh(), an_entry(a_job()))

    assert queued is False
    assert store.rows.picture() == before


def test_refresh_repeated_after_a_lost_reply_is_queued_once(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    before = store.rows.picture()

    queued = store.jobs.queue_refresh(a_refresh(), entry)

    assert queued is True
    assert store.rows.picture() == before


def test_refresh_repeated_when_it_has_ended_changes_nothing(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    fail(store, a_refresh(), at_ms=NOW_MS)
    before = store.rows.picture()

    store.jobs.queue_refresh(a_refresh(), entry)

    assert store.rows.picture() == before


def test_refresh_whose_reply_is_lost_is_queued(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    entry = filled(dynamodb_store)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    queued = store_on(client, tables, clock).jobs.queue_refresh(a_refresh(), entry)

    assert queued is True
    assert client.writes == 2
    assert dynamodb_store.row(a_refresh()) == a_refresh()


def test_refresh_gives_up_on_a_crowd_sooner_than_a_submit(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    entry = filled(dynamodb_store)

    def busy(_: object) -> None:
        raise cancelled("None", "None", "TransactionConflict")

    client: Any = FaultyClient(dynamodb, before=busy)

    with pytest.raises(Exception, match="busy"):
        store_on(client, tables, clock).jobs.queue_refresh(a_refresh(), entry)
    assert client.writes <= 3


# ------------------------------------------------------------------------------------ the end


@pytest.mark.proves(19)
def test_refresh_that_failed_lets_the_entry_cool_down_and_keeps_it(store: Store) -> None:
    entry = filled(store)
    store.submit(a_job(2))
    store.jobs.queue_refresh(a_refresh(), entry)

    outcome = fail(store, a_refresh(), at_ms=NOW_MS + 5000)

    assert isinstance(outcome, Applied)
    assert store.row(a_refresh()).status is JobStatus.FAILED
    assert entry_of(store) == replace(
        entry,
        refresh_job_id=a_refresh().job_id,
        refresh_until_epoch_ms=None,
        refresh_after_epoch_ms=NOW_MS + 5000 + COOL_DOWN_FIRST_MS,
        refresh_failures=1,
        refresh_error=an_error().code,
    )
    assert store.rows.claim(a_refresh().job_key) is None
    assert store.rows.in_flight("acme") == {0: 1}
    assert store.rows.in_flight(a_refresh().tenant) == {}


def test_failure_of_a_refresh_that_is_written_again_counts_once(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    fail(store, a_refresh(), at_ms=NOW_MS)
    before = store.rows.picture()

    again = store.jobs.apply(a_refresh(), replace(failed(a_refresh()), failed_at_epoch_ms=NOW_MS))

    assert isinstance(again, Applied)
    assert store.rows.picture() == before


def test_cool_down_doubles_until_it_is_long(store: Store) -> None:
    entry = filled(store)
    now_ms, waits = NOW_MS, []

    for number in range(6):
        job = another(number, created_at_epoch_ms=now_ms)
        assert store.jobs.queue_refresh(job, entry)
        fail(store, job, at_ms=now_ms)
        after_ms = entry_of(store).refresh_after_epoch_ms
        assert after_ms is not None
        waits.append(after_ms - now_ms)
        now_ms = store.clock.advance(after_ms - now_ms)

    assert waits == [60_000, 120_000, 240_000, 480_000, 900_000, 900_000]
    assert waits[-1] == COOL_DOWN_LONGEST_MS
    assert entry_of(store).refresh_failures == 6


def test_success_clears_what_the_failures_left(store: Store) -> None:
    entry = filled(store, refresh_failures=3, refresh_error="vendor_timeout", refresh_job_id="x")
    store.submit(a_job(2))
    store.jobs.queue_refresh(a_refresh(), entry)
    processing, lease = store.start(a_refresh())
    new = an_entry(a_job(), b"new", stored_at_epoch_ms=NOW_MS + 5000)

    outcome = store.jobs.apply(processing, completed(processing), lease=lease, entry=new)

    assert isinstance(outcome, Applied)
    assert entry_of(store) == new
    assert (new.refresh_failures, new.refresh_until_epoch_ms, new.refresh_error) == (0, None, None)
    assert store.rows.claim(a_refresh().job_key) is None
    assert store.rows.in_flight("acme") == {0: 1}
    assert store.rows.in_flight(a_refresh().tenant) == {}
    assert store.jobs.queue_refresh(another(2), new)


def test_failure_leaves_an_entry_alone_that_another_job_wrote_meanwhile(store: Store) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    newer = store.submit(a_job(2, cache_key=KEY))
    new = an_entry(newer, b"new", stored_at_epoch_ms=NOW_MS + 1)
    store.jobs.apply(newer, completed(newer), entry=new)

    fail(store, a_refresh(), at_ms=NOW_MS + 5000)

    assert entry_of(store) == new
    assert store.row(a_refresh()).status is JobStatus.FAILED
    assert store.rows.claim(a_refresh().job_key) is None


@pytest.mark.proves(18)
def test_refresh_that_ended_unsettled_is_settled_without_a_counter(store: Store) -> None:
    entry = filled(store)
    store.submit(a_job(2))
    store.jobs.queue_refresh(a_refresh(), entry)
    job = store.row(a_refresh())
    marked = replace(failed(job), unsettled=True, due_at_epoch_ms=NOW_MS, due_shard="0")
    store.rows.put_job(marked)

    store.jobs.settle(marked)

    stored = store.row(a_refresh())
    assert (stored.unsettled, stored.due_at_epoch_ms) == (False, None)
    assert store.rows.claim(a_refresh().job_key) is None
    assert entry_of(store).refresh_failures == 1
    assert store.rows.in_flight("acme") == {0: 1}
    assert store.rows.in_flight(a_refresh().tenant) == {}


def test_failure_whose_reply_is_lost_counts_once(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    entry = filled(dynamodb_store)
    dynamodb_store.jobs.queue_refresh(a_refresh(), entry)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])
    jobs = store_on(client, tables, clock).jobs
    assert isinstance(jobs, DynamoDBJobs)

    outcome = jobs.apply(a_refresh(), failed(a_refresh()))

    assert outcome == Applied(failed(a_refresh()))
    assert entry_of(dynamodb_store).refresh_failures == 1


# ------------------------------------------------------------------------------------ no use


def uncacheable(store: Store, job: Job) -> object:
    """The refresh ends with an answer that isn't cached."""
    now_ms = store.clock.now_ms()
    return store.jobs.apply(store.row(job), completed(store.row(job), now_ms=now_ms))


def test_refresh_that_renewed_nothing_completes_and_lets_the_entry_cool_down(
    store: Store,
) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)

    outcome = uncacheable(store, a_refresh())

    assert isinstance(outcome, Applied)
    assert store.row(a_refresh()).status is JobStatus.COMPLETED
    assert entry_of(store) == replace(
        entry,
        refresh_job_id=a_refresh().job_id,
        refresh_after_epoch_ms=NOW_MS + COOL_DOWN_FIRST_MS,
        refresh_failures=1,
        refresh_error="not_cacheable",
    )
    assert store.rows.claim(a_refresh().job_key) is None
    assert store.rows.in_flight(a_refresh().tenant) == {}


def test_cool_down_doubles_while_refreshes_renew_nothing_or_fail(store: Store) -> None:
    entry = filled(store)
    now_ms, waits = NOW_MS, []

    for number in range(4):
        job = another(number, created_at_epoch_ms=now_ms)
        assert store.jobs.queue_refresh(job, entry)
        _ = fail(store, job, at_ms=now_ms) if number == 1 else uncacheable(store, job)
        after_ms = entry_of(store).refresh_after_epoch_ms
        assert after_ms is not None
        waits.append(after_ms - now_ms)
        now_ms = store.clock.advance(after_ms - now_ms)

    assert waits == [60_000, 120_000, 240_000, 480_000]


@pytest.mark.parametrize("source", ["vendor", "cache"])
def test_refresh_that_renewed_nothing_leaves_an_entry_alone_that_another_job_wrote_meanwhile(
    store: Store, source: str
) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    newer = store.submit(a_job(2, cache_key=KEY))
    new = an_entry(newer, b"new", stored_at_epoch_ms=NOW_MS + 1)
    store.jobs.apply(newer, completed(newer), entry=new)

    store.jobs.apply(a_refresh(), completed(a_refresh(), source=source))

    assert entry_of(store) == new
    assert store.row(a_refresh()).status is JobStatus.COMPLETED
    assert store.rows.claim(a_refresh().job_key) is None


def test_refresh_that_renewed_nothing_counts_once_though_its_reply_is_lost(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    entry = filled(dynamodb_store)
    dynamodb_store.jobs.queue_refresh(a_refresh(), entry)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    outcome = uncacheable(store_on(client, tables, clock), a_refresh())

    assert isinstance(outcome, Applied)
    assert entry_of(dynamodb_store).refresh_failures == 1


@pytest.mark.parametrize("version", ["1", "2"], ids=["cut off", "another version"])
def test_refresh_without_an_answer_for_the_key_is_paid_and_cools_down(
    store: Store, version: str
) -> None:
    path = Path(store)
    path.submit()
    path.run_next()
    store.clock.advance(s=301)
    stale = path.hit().entry
    if version == "1":
        path.vendors.script = [ANSWER._replace(finish_reason="length")]
    models = {"demo-chat": CATALOGUE.model("demo-chat").model_copy(update={"version": version})}

    ended = path.run_next(CATALOGUE.model_copy(update={"models": models}))
    again = path.hit()
    store.clock.advance(COOL_DOWN_FIRST_MS)
    later = path.hit()

    assert (ended.status, path.vendors.total) == (JobStatus.COMPLETED, 2)
    assert again.entry.result == stale.result
    assert (again.entry.refresh_error, again.entry.refresh_failures) == ("not_cacheable", 1)
    assert again.refresh is None
    assert later.refresh is not None


# ------------------------------------------------------------------------------------ settled


def unsettled(store: Store, end: Job) -> Job:
    """The refresh ended so, without closing its claim and letting its entry cool down."""
    marked = replace(end, unsettled=True, due_at_epoch_ms=NOW_MS, due_shard="0")
    store.rows.put_job(marked)
    return marked


ENDS = pytest.mark.parametrize("end", [failed, completed], ids=["failed", "not cacheable"])


@ENDS
def test_settling_a_refresh_cools_its_entry_down_though_the_claim_is_gone(
    store: Store, end: Callable[[Job], Job]
) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    store.rows.drop_claim(a_refresh().job_key)

    store.jobs.settle(unsettled(store, end(a_refresh())))

    assert entry_of(store).refresh_failures == 1
    assert entry_of(store).refresh_until_epoch_ms is None
    assert not store.row(a_refresh()).unsettled


@ENDS
def test_settling_a_refresh_closes_its_claim_though_its_entry_was_renewed(
    store: Store, end: Callable[[Job], Job]
) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    newer = store.submit(a_job(2, cache_key=KEY))
    new = an_entry(newer, b"new", stored_at_epoch_ms=NOW_MS + 1)
    store.jobs.apply(newer, completed(newer), entry=new)

    store.jobs.settle(unsettled(store, end(a_refresh())))

    assert store.rows.claim(a_refresh().job_key) is None
    assert entry_of(store) == new
    assert not store.row(a_refresh()).unsettled


def test_settling_a_refresh_whose_claim_and_entry_are_others_takes_its_mark_off(
    store: Store,
) -> None:
    entry = filled(store)
    store.jobs.queue_refresh(a_refresh(), entry)
    store.rows.drop_claim(a_refresh().job_key)
    store.cache.invalidate(KEY, now_ms=NOW_MS)

    store.jobs.settle(unsettled(store, failed(a_refresh())))

    assert not store.row(a_refresh()).unsettled
    assert store.cache.read(KEY) is None
