"""Batches: what was told of many jobs, kept as it was, for its tenant alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.dynamodb_batches import DynamoDBBatches
from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.errors import DamagedRowError
from sluiceway.domain.freshness import Freshness, KeptHit

from tests.contract.harness import DynamoDBRows
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from tests.contract.harness import Store, Tables

BATCH_ID = "batch_01KDVT7V00000000000000000A"

HIT = KeptHit(
    cache_key="c1_key",
    model="demo-chat",
    freshness=Freshness.STALE,
    age_s=0,
    stored_at_epoch_ms=NOW_MS - 1,
    input_tokens=0,
    output_tokens=20,
    cost_nanos=0,
)

ITEMS = (
    BatchItem("a", job_id="job_1"),
    BatchItem("b", job_id="job_1", deduplicated=True),
    BatchItem("c", hit=HIT),
    BatchItem("d", hit=replace(HIT, freshness=Freshness.EXPIRED, age_s=7, cost_nanos=5)),
    BatchItem("e", refusal=Refusal("model_not_found", "There is no such model.")),
    BatchItem("f", refusal=Refusal("rate_limited", "Later.", retry_after_s=9)),
    BatchItem(
        "g",
        refusal=Refusal(
            "validation_failed",
            "The body doesn't fit.",
            errors=({"field": "", "message": "m"}, {"field": "ü", "message": "\U0001f600"}),
        ),
    ),
)


def a_batch(**changes: Any) -> Batch:
    return replace(Batch("acme", BATCH_ID, NOW_MS, NOW_MS // 1000 + 60, ITEMS), **changes)


def test_unknown_batch_is_none(store: Store) -> None:
    assert store.batches.get("acme", BATCH_ID) is None


@pytest.mark.parametrize("items", [ITEMS, ITEMS[::-1], ()], ids=["all", "reversed", "none"])
def test_batch_is_read_as_it_was_written(store: Store, items: tuple[BatchItem, ...]) -> None:
    store.batches.add(a_batch(items=items))

    assert store.batches.get("acme", BATCH_ID) == a_batch(items=items)


@pytest.mark.proves(10)
def test_batch_is_its_tenants_alone(store: Store) -> None:
    store.batches.add(a_batch())

    assert store.batches.get("globex", BATCH_ID) is None


def test_batches_of_two_tenants_with_one_id_are_two(store: Store) -> None:
    store.batches.add(a_batch())
    store.batches.add(a_batch(tenant="globex", items=ITEMS[:1]))

    assert store.batches.get("acme", BATCH_ID) == a_batch()
    assert store.batches.get("globex", BATCH_ID) == a_batch(tenant="globex", items=ITEMS[:1])


def test_same_batch_again_changes_nothing(store: Store) -> None:
    store.batches.add(a_batch())
    before = store.rows.picture()

    store.batches.add(a_batch())

    assert store.batches.get("acme", BATCH_ID) == a_batch()
    assert store.rows.picture() == before


def test_batch_is_nobodys_job_and_never_due(store: Store) -> None:
    store.batches.add(a_batch())

    assert store.jobs.get("acme", BATCH_ID) is None
    assert [list(store.due_jobs.indexed(str(shard))) for shard in range(8)] == [[]] * 8


def test_row_is_no_jobs_for_the_stream(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    dynamodb_store.batches.add(a_batch())

    (row,) = DynamoDBRows(dynamodb, tables.names).all(tables.names.jobs)
    assert (row["tenant"], row["job_id"]) == ("batch#acme", BATCH_ID)
    assert "status" not in row
    assert row["ttl_epoch_s"] == NOW_MS // 1000 + 60


def test_batch_of_the_longest_refusals_fits_into_a_row(store: Store) -> None:
    faults = tuple({"field": "\U0001f600" * 100, "message": "m" * 100} for _ in range(5))
    refusal = Refusal("validation_failed", "m" * 200, errors=faults, retry_after_s=3600)
    items = tuple(BatchItem(f"{n:064d}", refusal=refusal) for n in range(100))

    store.batches.add(a_batch(items=items))

    assert store.batches.get("acme", BATCH_ID) == a_batch(items=items)


@pytest.mark.parametrize(
    "damage",
    [
        {"items": None},
        {"items": 7},
        {"items": ["x"]},
        {"items": [{"job_id": "job_1"}]},
        {"items": [{"custom_id": "a", "hit": {}}]},
        {"items": [{"custom_id": "a", "refusal": {"new": "member"}}]},
        {"ttl_epoch_s": "soon"},
    ],
    ids=str,
)
def test_damaged_row_is_told_as_one(
    tables: Tables, dynamodb_store: Store, damage: dict[str, Any]
) -> None:
    batches = dynamodb_store.batches
    assert isinstance(batches, DynamoDBBatches)
    row = {
        "tenant": "batch#acme",
        "job_id": BATCH_ID,
        "created_at_epoch_ms": NOW_MS,
        "ttl_epoch_s": 1,
        "items": [],
        **damage,
    }
    batches._table.replace(tables.names.jobs, row)

    with pytest.raises(DamagedRowError):
        batches.get("acme", BATCH_ID)
