"""What is Valkey's alone: nothing of it is in a job's transaction, and it forgets by itself."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluiceway.adapters.valkey_cache import REFRESH_TRY_MS, ValkeyCache, _entry_of, _values_of
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.freshness import TOMBSTONE_S
from sluiceway.domain.payload import Payload
from sluiceway.ports import Moved

from tests.contract.clients import meet_another, transactions
from tests.contract.test_result_cache import KEY, a_refresh, cached, stored
from tests.fakes.examples import a_job, an_entry, completed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.domain.freshness import CacheEntry
    from valkey import Valkey

    from tests.contract.harness import DynamoDBRows, Store

HASH = f"entry:{KEY}"
COUNTS = st.integers(min_value=0, max_value=10**15)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ENTRIES = st.builds(
    replace,
    st.just(an_entry(a_job())),
    result=st.one_of(
        st.builds(Payload, inline=st.binary(max_size=64)),
        st.builds(Payload, ref=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)),
    ),
    tenant=TEXTS,
    vendor_request_id=st.none() | TEXTS,
    cost_nanos=COUNTS,
    asked_at_epoch_ms=COUNTS,
    refresh_job_id=st.none() | TEXTS,
    refresh_until_epoch_ms=st.none() | COUNTS,
    refresh_after_epoch_ms=st.none() | COUNTS,
    refresh_failures=COUNTS,
    refresh_error=st.none() | TEXTS,
)


@pytest.fixture
def store(valkey_store: Store) -> Store:
    return valkey_store


# ------------------------------------------------------------------------------------ the finish


def test_paid_answer_is_there_before_its_job_is_completed(
    store: Store, moto_client: DynamoDBClient
) -> None:
    job, lease = store.start(store.submit(a_job(1)))

    with transactions(moto_client, meet_another), pytest.raises(StoreBusyError):
        store.jobs.apply(job, completed(job), lease=lease, entry=an_entry(job))

    assert store.row(job) == job
    assert stored(store) == an_entry(job)


def test_cache_table_stays_empty(store: Store, valkey: Valkey) -> None:
    cached(store)

    rows: DynamoDBRows = store.rows  # type: ignore[assignment]

    assert rows.all(rows._names.cache) == []
    assert valkey.keys() == [HASH.encode()]


def test_answer_of_a_worker_that_lost_its_lease_is_kept_and_its_job_is_not_completed(
    store: Store,
) -> None:
    late, lost = store.start(store.submit(a_job(1)))
    store.clock.set(lost.ends_at_epoch_ms + 60_000)
    current, _ = store.start(late, "token-2")

    outcome = store.jobs.apply(late, completed(late), lease=lost, entry=an_entry(late))

    assert outcome == Moved(current)
    assert stored(store) == an_entry(late)


def test_answer_that_was_asked_for_earlier_does_not_replace_a_later_one(store: Store) -> None:
    job = store.submit(a_job(1))
    later = an_entry(job, b"later", asked_at_epoch_ms=NOW_MS + 1)
    store.jobs.apply(job, completed(job), entry=later)

    store.jobs.apply(job, completed(job), entry=an_entry(job, b"earlier", asked_at_epoch_ms=NOW_MS))

    assert stored(store) == later


def test_same_answer_may_be_stored_again(store: Store) -> None:
    job = store.submit(a_job(1))
    store.jobs.apply(job, completed(job), entry=an_entry(job, b"first"))

    store.jobs.apply(job, completed(job), entry=an_entry(job, b"second"))

    assert stored(store) == an_entry(job, b"second")


def test_of_answers_that_race_the_one_that_was_asked_for_last_stays(
    store: Store, told: list[tuple[str, str]]
) -> None:
    job = store.submit(a_job(1))
    cache: ValkeyCache = store.cache  # type: ignore[assignment]
    entries = [
        an_entry(job, f"answer {number}".encode(), asked_at_epoch_ms=NOW_MS + number)
        for number in range(40)
    ]
    shuffled = random.Random(1).sample(entries, len(entries))  # noqa: S311

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda entry: cache.store(entry, job), shuffled))

    assert stored(store) == entries[-1]
    assert told == []


# ------------------------------------------------------------------------------------ time


def test_entry_goes_when_nothing_may_use_it_any_more(store: Store, valkey: Valkey) -> None:
    entry = cached(store)

    lives_ms: Any = valkey.pttl(HASH)

    wanted_ms = entry.kept_until_epoch_ms - NOW_MS
    assert wanted_ms - 10_000 < lives_ms <= wanted_ms


def test_tombstone_goes_when_no_job_of_before_can_be_left(store: Store, valkey: Valkey) -> None:
    store.cache.invalidate(KEY, now_ms=NOW_MS)

    lives_ms: Any = valkey.pttl(HASH)

    assert TOMBSTONE_S * 1000 - 10_000 < lives_ms <= TOMBSTONE_S * 1000


@pytest.mark.parametrize("mark", ["queue", "fail"])
def test_marks_of_refreshes_lengthen_no_life(store: Store, valkey: Valkey, mark: str) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    valkey.pexpire(HASH, 50_000)

    store.jobs.queue_refresh(job, entry)
    if mark == "fail":
        ended = replace(store.row(job), failed_at_epoch_ms=NOW_MS)
        store.cache.refresh_failed(ended)  # type: ignore[attr-defined]

    lives_ms: Any = valkey.pttl(HASH)
    assert 0 < lives_ms <= 50_000


# ------------------------------------------------------------------------------------ refresh


def test_refresh_that_was_not_written_keeps_others_away_for_half_a_minute_only(
    store: Store, moto_client: DynamoDBClient, told: list[tuple[str, str]]
) -> None:
    cache: ValkeyCache = store.cache  # type: ignore[assignment]
    entry = an_entry(a_job(1))
    cache.store(entry, a_job(1))

    with transactions(moto_client, meet_another), pytest.raises(StoreBusyError):
        store.jobs.queue_refresh(a_refresh(store, 2), entry)

    assert stored(store).refresh_until_epoch_ms == NOW_MS + REFRESH_TRY_MS
    assert stored(store).may_be_refreshed(NOW_MS + REFRESH_TRY_MS)
    assert told == []


def test_refresh_is_queued_once_though_its_mark_was_lost(store: Store, valkey: Valkey) -> None:
    entry = cached(store)
    store.jobs.queue_refresh(a_refresh(store, 2), entry)
    valkey.hdel(HASH, "refresh_job_id", "refresh_until_epoch_ms")
    second = a_refresh(store, 3)

    queued = store.jobs.queue_refresh(second, entry)

    assert queued is False
    assert store.jobs.get(second.tenant, second.job_id) is None


def test_failure_of_a_refresh_is_counted_once_however_often_it_is_told(store: Store) -> None:
    entry = cached(store)
    job = a_refresh(store, 2)
    store.jobs.queue_refresh(job, entry)
    ended = replace(store.row(job), failed_at_epoch_ms=NOW_MS)
    cache: ValkeyCache = store.cache  # type: ignore[assignment]

    writes = [cache.refresh_failed(ended) for _ in range(2)]

    assert writes == [[], []]
    assert stored(store).refresh_failures == 1


# ------------------------------------------------------------------------------------ values


@settings(max_examples=150, deadline=None)
@given(ENTRIES)
def test_hash_of_any_entry_is_read_as_the_same_entry(entry: CacheEntry) -> None:
    def wire(value: bytes | str | int) -> bytes:
        return value if isinstance(value, bytes) else str(value).encode()

    found = {name.encode(): wire(value) for name, value in _values_of(entry).items()}

    assert _entry_of(found) == entry


def test_entry_is_few_fields(store: Store, valkey: Valkey) -> None:
    cached(store)

    names: Any = valkey.hkeys(HASH)

    assert sorted(names) == [
        *(b"asked_at_epoch_ms", b"refresh_failures", b"result_inline"),
        *(b"stored_at_epoch_ms", b"values"),
    ]


def test_what_newer_code_wrote_besides_is_left_alone(store: Store, valkey: Valkey) -> None:
    entry = cached(store)
    values: Any = valkey.hget(HASH, "values")
    valkey.hset(HASH, "values", values[:-1] + b',"of_tomorrow":[1]}')
    valkey.hset(HASH, "and_another", b"\xff")

    assert store.cache.read(KEY) == entry


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("values", b"{"),
        ("values", b"[]"),
        ("values", b"7"),
        ("values", b"{}"),
        ("stored_at_epoch_ms", b"soon"),
        ("refresh_error", b"\xff"),
    ],
)
def test_damaged_entry_answers_nothing(
    store: Store, valkey: Valkey, field: str, value: bytes
) -> None:
    cached(store)
    valkey.hset(HASH, field, value)

    assert store.cache.read(KEY) is None


def test_key_of_another_type_answers_nothing_and_is_told(
    store: Store, valkey: Valkey, told: list[tuple[str, str]]
) -> None:
    valkey.set(HASH, "not a hash")

    entry = store.cache.read(KEY)

    assert entry is None
    assert told == [("read", "ResponseError")]
