"""DeliveryLog: what became of webhooks, newest first, for thirty days."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_deliveries import DynamoDBDeliveries
from sluiceway.domain.webhook import (
    DELIVERY_KEPT_S,
    Attempt,
    DeliveryRecord,
    DeliveryStatus,
)

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import DynamoDBRows
from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from sluiceway.domain.webhook import Delivery

    from tests.contract.harness import Store, Tables

PENDING, DELIVERED, FAILED, SUPPRESSED = DeliveryStatus


def an_attempt(at_ms: int = NOW_MS + 60_000, **members: Any) -> Attempt:
    return replace(Attempt(at_ms, DELIVERED, http_status=204), **members)


def listed(
    store: Store,
    *,
    endpoint_id: str = "whk_1",
    tenant: str = "acme",
    now_ms: int = NOW_MS + 60_000,
    limit: int = 10,
    before: str | None = None,
) -> list[Delivery]:
    found = store.delivery_log.list(tenant, endpoint_id, now_ms=now_ms, limit=limit, before=before)
    return [record.delivery for record in found]


def known(store: Store, delivery: Delivery, *, now_ms: int = NOW_MS + 60_000) -> Any:
    return store.delivery_log.get(
        delivery.tenant, delivery.endpoint_id, delivery.delivery_id, now_ms=now_ms
    )


def test_unknown_delivery_is_none(store: Store) -> None:
    assert known(store, a_delivery()) is None
    assert listed(store) == []


@pytest.mark.parametrize(
    "delivery",
    [
        a_delivery(),
        a_delivery(endpoint_id="callbacks", url="https://hooks.example/?a=b"),
        a_delivery(type="webhook.test", job_id=""),
    ],
    ids=["endpoint", "callback", "test"],
)
@pytest.mark.parametrize(
    ("status", "http_status", "error"),
    [(DELIVERED, 200, None), (PENDING, None, "timeout"), (FAILED, 500, "refused")],
)
def test_attempt_is_remembered(
    store: Store,
    delivery: Delivery,
    status: DeliveryStatus,
    http_status: int | None,
    error: str | None,
) -> None:
    store.delivery_log.record(
        delivery, an_attempt(status=status, http_status=http_status, error=error)
    )

    assert known(store, delivery) == DeliveryRecord(
        delivery=delivery,
        status=status,
        attempts=1,
        http_status=http_status,
        error=error,
        first_attempt_at_epoch_ms=NOW_MS + 60_000,
        last_attempt_at_epoch_ms=NOW_MS + 60_000,
    )


def test_later_attempt_counts_and_says_how_it_stands(store: Store) -> None:
    store.delivery_log.record(a_delivery(), an_attempt(status=PENDING, error="refused"))
    store.delivery_log.record(a_delivery(), an_attempt(NOW_MS + 65_000))

    assert known(store, a_delivery()) == DeliveryRecord(
        delivery=a_delivery(),
        status=DELIVERED,
        attempts=2,
        http_status=204,
        first_attempt_at_epoch_ms=NOW_MS + 60_000,
        last_attempt_at_epoch_ms=NOW_MS + 65_000,
    )


def test_suppressed_delivery_is_remembered_without_an_attempt(store: Store) -> None:
    store.delivery_log.record(a_delivery(), Attempt(NOW_MS + 60_000, SUPPRESSED))

    assert listed(store) == [a_delivery()]
    assert known(store, a_delivery()) == DeliveryRecord(
        delivery=a_delivery(),
        status=SUPPRESSED,
        last_attempt_at_epoch_ms=NOW_MS + 60_000,
    )


def test_suppressed_delivery_keeps_what_came_of_its_attempts(store: Store) -> None:
    tried = an_attempt(status=PENDING, http_status=500, error="refused")
    store.delivery_log.record(a_delivery(), tried)
    store.delivery_log.record(a_delivery(), Attempt(NOW_MS + 65_000, SUPPRESSED))
    suppressed = known(store, a_delivery())
    store.delivery_log.record(a_delivery(), an_attempt(NOW_MS + 70_000))

    assert suppressed == DeliveryRecord(
        delivery=a_delivery(),
        status=SUPPRESSED,
        attempts=1,
        http_status=500,
        error="refused",
        first_attempt_at_epoch_ms=NOW_MS + 60_000,
        last_attempt_at_epoch_ms=NOW_MS + 65_000,
    )
    assert known(store, a_delivery()) == replace(
        suppressed,
        status=DELIVERED,
        attempts=2,
        http_status=204,
        error=None,
        last_attempt_at_epoch_ms=NOW_MS + 70_000,
    )


@pytest.mark.parametrize("at_ms", [NOW_MS + 60_000, NOW_MS + 59_999])
def test_same_attempt_and_an_earlier_one_change_nothing(store: Store, at_ms: int) -> None:
    store.delivery_log.record(a_delivery(), an_attempt())
    before = known(store, a_delivery())

    store.delivery_log.record(a_delivery(), an_attempt(at_ms, status=PENDING, error="refused"))

    assert known(store, a_delivery()) == before


def test_newest_event_is_first_in_whatever_order_they_were_tried(store: Store) -> None:
    for number in (2, 3, 1):
        store.delivery_log.record(a_delivery(number), an_attempt())

    assert listed(store) == [a_delivery(3), a_delivery(2), a_delivery(1)]


@pytest.mark.proves(10)
def test_endpoints_and_tenants_have_lists_of_their_own(store: Store) -> None:
    mine = a_delivery()
    others = [a_delivery(endpoint_id="whk_2"), a_delivery(tenant="globex")]
    for delivery in (mine, *others):
        store.delivery_log.record(delivery, an_attempt())

    assert listed(store) == [mine]
    assert listed(store, endpoint_id="whk_2") == [others[0]]
    assert listed(store, tenant="globex") == [others[1]]
    assert store.delivery_log.get("acme", "whk_2", mine.delivery_id, now_ms=NOW_MS) is None


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pages_hold_everything_once(store: Store, limit: int) -> None:
    for number in range(5):
        store.delivery_log.record(a_delivery(number), an_attempt())

    found: list[Delivery] = []
    while page := listed(store, limit=limit, before=found[-1].delivery_id if found else None):
        assert len(page) <= limit
        found += page

    assert found == [a_delivery(number) for number in range(4, -1, -1)]


def test_cursor_that_is_no_delivery_here_is_a_moment(store: Store) -> None:
    for number in (1, 3):
        store.delivery_log.record(a_delivery(number), an_attempt())

    before = a_delivery(2, endpoint_id="whk_2").delivery_id

    assert listed(store, before=before) == [a_delivery(1)]


def test_delivery_is_known_for_thirty_days_from_its_event_on(store: Store) -> None:
    store.delivery_log.record(a_delivery(), an_attempt())
    ends_ms = NOW_MS + 1000 + 30 * 24 * 3600 * 1000

    assert known(store, a_delivery(), now_ms=ends_ms) is not None
    assert len(listed(store, now_ms=ends_ms)) == 1
    assert known(store, a_delivery(), now_ms=ends_ms + 1) is None
    assert listed(store, now_ms=ends_ms + 1) == []
    assert listed(store, now_ms=ends_ms + 1, before=a_delivery().delivery_id) == []


# ------------------------------------------------------------------ DynamoDB


def test_row_is_no_partners_and_ends(dynamodb: Any, tables: Tables, dynamodb_store: Store) -> None:
    dynamodb_store.delivery_log.record(a_delivery(), an_attempt())

    (row,) = DynamoDBRows(dynamodb, tables.names).all(tables.names.jobs)

    assert row["tenant"] == "delivery#acme#whk_1"
    assert row["ttl_epoch_s"] == NOW_MS // 1000 + 1 + DELIVERY_KEPT_S
    assert "status" not in row  # the stream's filter takes what has one for a job


def test_attempt_whose_reply_was_lost_counts_once(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    faulty = FaultyClient(dynamodb, replies=[timed_out()])
    log = DynamoDBDeliveries(Table(faulty, pause=lambda _: None), tables.names.jobs)  # type: ignore[arg-type]

    log.record(a_delivery(), an_attempt())

    assert known(dynamodb_store, a_delivery()).attempts == 1
