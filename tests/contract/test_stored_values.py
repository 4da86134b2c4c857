"""What goes in comes out: jobs and entries keep every value through the real serialiser."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluiceway.adapters.dynamodb import from_item, to_item
from sluiceway.adapters.dynamodb_jobs import _values_of, job_of
from sluiceway.domain.errors import DamagedRowError
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.payload import Payload

from tests.fakes.examples import a_job, an_entry, an_error, completed, failed, retrying
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from tests.contract.harness import Store

NO_PLAIN_VALUES = frozenset(
    {"status", "metadata", "callback_urls", "error", "last_errors"}
    | {"input_inline", "input_ref", "result_inline", "result_ref"}
)
"""Attributes of a row that are no text, number or truth value, or have a check of their own."""

TEXTS = st.text(max_size=40)
PAYLOADS = st.one_of(
    st.builds(Payload, inline=st.binary(max_size=64)),
    st.builds(Payload, ref=st.text(min_size=1, max_size=40)),
)
COUNTS = st.integers(min_value=0, max_value=10**15)
ERRORS = st.builds(
    an_error,
    attempt=st.integers(0, 20),
    message=TEXTS,
    retryable=st.booleans(),
    http_status=st.none() | st.integers(100, 599),
)
JOBS = st.builds(
    replace,
    st.just(a_job()),
    status=st.sampled_from(JobStatus),
    metadata=st.dictionaries(st.text(min_size=1, max_size=10), TEXTS, max_size=4),
    input=PAYLOADS,
    result=st.none() | PAYLOADS,
    trace_header=st.none() | TEXTS,
    key_id=st.none() | TEXTS,
    vendor_request_id=st.none() | TEXTS,
    error=st.none() | ERRORS,
    last_errors=st.lists(ERRORS, max_size=5).map(tuple),
    due_at_epoch_ms=st.none() | COUNTS,
    due_shard=st.none() | st.sampled_from("01234567"),
    attempts=COUNTS,
    queue_wait_ms=st.none() | COUNTS,
    cost_nanos=st.none() | COUNTS,
    unsettled=st.booleans(),
)


def a_full_job() -> Job:
    """A job with every field set to something that no default is."""
    return replace(
        a_job(),
        trace_header="Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",
        metadata={"empty": "", "é\U0001f30a": "\uff57ide \x00 \u2028 text"},
        key_id="key_1",
        cache_mode="refresh",
        no_store=True,
        cache_ttl_s=60,
        not_older_than_epoch_ms=NOW_MS - 5,
        asked_after_epoch_ms=NOW_MS - 6,
        refreshes_for="globex",
        cost_reserved_nanos=10**15 + 1,
        result_stored_at_epoch_ms=NOW_MS - 7,
        redrives=2,
        revision=8,
        lane="batch",
        callback_urls=("https://one.example/", "https://two.example/?a=b"),
        status=JobStatus.PROCESSING,
        due_at_epoch_ms=NOW_MS + 1,
        due_shard="7",
        resends=6,
        attempts=3,
        attempts_total=2**53 + 1,
        receives=4,
        fence=5,
        started_at_epoch_ms=NOW_MS + 2,
        queue_wait_ms=3,
        called_at_epoch_ms=NOW_MS + 3,
        lost_nanos=600_000,
        not_before_epoch_ms=NOW_MS + 4,
        parked=True,
        slot_at_epoch_ms=NOW_MS + 4,
        slot_version=5,
        slot_shard=6,
        error=an_error(3, http_status=None),
        last_errors=(an_error(1), an_error(2, message=""), an_error(3, http_status=None)),
        completed_at_epoch_ms=NOW_MS + 5,
        failed_at_epoch_ms=NOW_MS + 6,
        result=Payload(inline=b"\x00\xff"),
        result_source="vendor",
        input_tokens=1,
        output_tokens=2,
        cost_nanos=10**15,
        saved_nanos=9,
        vendor_request_id="req_\u00e9",
        upstream_latency_ms=7,
        discarded=True,
        unsettled=True,
    )


def test_example_of_a_full_job_leaves_no_field_at_its_default() -> None:
    job = a_full_job()

    at_default = [
        one.name
        for one in fields(Job)
        if (one.default is not MISSING and getattr(job, one.name) == one.default)
        or (one.default_factory is not MISSING and getattr(job, one.name) == one.default_factory())
    ]

    assert at_default == []


def test_submit_keeps_every_value_of_a_job(store: Store) -> None:
    store.submit(a_full_job())

    assert store.row(a_job()) == replace(a_full_job(), counter_shard=0)


@pytest.mark.parametrize(
    "payload",
    [Payload(inline=b""), Payload(inline=bytes(range(256))), Payload(ref="inputs/acme/é")],
    ids=["empty", "all bytes", "reference"],
)
def test_payloads_keep_their_form(store: Store, payload: Payload) -> None:
    job = store.submit(a_job(input=payload))
    finish = completed(job, result=payload)

    store.jobs.apply(job, finish)

    assert store.row(job).input == payload
    assert store.row(job).result == payload


@pytest.mark.proves(7)
def test_transition_keeps_what_it_does_not_change_and_removes_what_it_ends(store: Store) -> None:
    job = store.submit(a_job(metadata={"order": ""}, trace_header="Root=1"))
    processing, lease = store.start(job)
    waiting = retrying(processing)
    store.jobs.apply(processing, waiting, lease=lease)
    again, lease = store.start(waiting, "token-2")

    store.jobs.apply(again, completed(again), lease=lease)

    stored = store.row(job)
    assert stored == completed(again)
    assert (stored.metadata, stored.trace_header) == ({"order": ""}, "Root=1")
    assert (stored.error, stored.not_before_epoch_ms, stored.due_shard) == (None, None, None)
    assert stored.last_errors == waiting.last_errors


def test_last_errors_keep_their_order_and_are_the_last_five(store: Store) -> None:
    job = store.submit(a_job())
    for number in range(1, 8):
        processing, lease = store.start(job, f"token-{number}")
        job = retrying(processing)
        store.jobs.apply(processing, job, lease=lease)

    store.jobs.apply(job, failed(job))

    assert [error.attempt for error in store.row(job).last_errors] == [4, 5, 6, 7, 1]


@settings(max_examples=150, deadline=None)
@given(JOBS)
def test_row_of_any_job_is_read_as_the_same_job(job: Job) -> None:
    row = from_item(to_item(_values_of(job)))

    assert job_of(row) == job


def test_error_without_an_http_status_has_no_attribute_of_it() -> None:
    error = an_error(http_status=None)

    row = _values_of(a_job(error=error, last_errors=(error, error)))

    assert not any("http_status" in values for values in (row["error"], *row["last_errors"]))


def test_error_whose_http_status_was_stored_as_null_is_read_as_one_without() -> None:
    job = a_job(error=an_error(http_status=None))
    row = _values_of(job)
    row["error"]["http_status"] = None

    assert job_of(from_item(to_item(row))) == job


@pytest.mark.parametrize("name", sorted(_values_of(a_full_job()).keys() - NO_PLAIN_VALUES))
def test_row_with_a_value_of_another_type_is_damaged(name: str) -> None:
    values = _values_of(a_full_job())
    value = values[name]

    for other in (value.encode() if isinstance(value, str) else str(value), [value]):
        with pytest.raises(DamagedRowError):
            job_of(values | {name: other})


# ------------------------------------------------------------------------------------ entries


def test_cache_knows_nothing_of_a_key_that_was_never_written(store: Store) -> None:
    assert store.cache.read("c1_unknown") is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scope": "shared", "vendor_request_id": None},
        {"result": Payload(inline=b"")},
        {"result": Payload(ref="results/acme/job_1/1")},
        {"cost_nanos": 0, "input_tokens": 0, "output_tokens": 10**15},
    ],
    ids=["as it is", "shared", "empty", "reference", "numbers"],
)
def test_cache_keeps_every_value_of_an_entry(store: Store, changes: dict[str, object]) -> None:
    job = store.submit(a_job())
    entry = replace(an_entry(job), **changes)

    store.jobs.apply(job, completed(job), entry=entry)

    assert store.cache.read(job.cache_key) == entry


@pytest.mark.proves(9)
def test_expired_entry_is_gone_or_answers_nothing(store: Store) -> None:
    job = store.submit(a_job())
    expired = an_entry(
        job,
        kept_until_epoch_ms=NOW_MS - 1000,
        soft_expires_at_epoch_ms=NOW_MS - 3000,
        hard_expires_at_epoch_ms=NOW_MS - 2000,
        ttl_epoch_s=NOW_MS // 1000 - 1,
    )
    store.jobs.apply(job, completed(job), entry=expired)

    entry = store.cache.read(job.cache_key)

    assert entry is None or entry.freshness(store.clock.now_ms()) is Freshness.GONE


@pytest.mark.proves(9)
def test_expired_entry_that_is_still_visible_is_replaced_by_a_new_result(  # case T09
    store: Store,
) -> None:
    job = store.submit(a_job(1))
    expired = an_entry(job, hard_expires_at_epoch_ms=NOW_MS - 1000)
    store.jobs.apply(job, completed(job), entry=expired)
    again = store.submit(
        replace(a_job(2), job_key=job.job_key, cache_key=job.cache_key),
    )

    store.jobs.apply(again, completed(again), entry=an_entry(again, b"new"))

    assert store.cache.read(job.cache_key) == an_entry(again, b"new")
