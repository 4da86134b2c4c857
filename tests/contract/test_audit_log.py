"""AuditLog: records that stay as they were written, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb_audit import KEPT_S
from sluiceway.ports import AuditRecord

from tests.contract.harness import DynamoDBRows
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from tests.contract.harness import Store, Tables

DAY_MS = 24 * 3600 * 1000


def a_record(number: int = 1, **changes: Any) -> AuditRecord:
    """One that was written so many seconds after NOW_MS."""
    return AuditRecord(
        at_epoch_ms=NOW_MS + number * 1000,
        actor="key:key_1",
        action="cache.invalidate",
        subject="model:demo-chat",
        request_id=f"request-{number}",
    )._replace(
        **changes,
    )


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def listed(
    store: Store,
    *,
    since_ms: int = NOW_MS - 400 * DAY_MS,
    until_ms: int = NOW_MS + 400 * DAY_MS,
    limit: int = 100,
) -> list[AuditRecord]:
    return store.audit.list(since_ms=since_ms, until_ms=until_ms, limit=limit)


def test_list_of_nothing_is_empty(store: Store) -> None:
    assert listed(store) == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"request_id": ""},
        {"actor": "aws:arn:aws:sts::123456789012:assumed-role/ops/ann", "subject": "key:key_2"},
    ],
)
def test_record_is_listed_as_it_was_written(store: Store, changes: dict[str, str]) -> None:
    store.audit.add(a_record(**changes))

    assert listed(store) == [a_record(**changes)]


def test_newest_record_is_first_in_whatever_order_they_came(store: Store) -> None:
    for number in (2, 3, 1):
        store.audit.add(a_record(number))

    assert listed(store) == [a_record(3), a_record(2), a_record(1)]


def test_same_record_again_changes_nothing(store: Store) -> None:
    store.audit.add(a_record())
    before = store.rows.picture()

    store.audit.add(a_record())

    assert listed(store) == [a_record()]
    assert store.rows.picture() == before


@pytest.mark.parametrize("name", ["actor", "action", "subject", "request_id"])
def test_records_of_one_moment_are_all_kept(store: Store, name: str) -> None:
    other = a_record()._replace(**{name: "another"})  # type: ignore[arg-type]

    store.audit.add(a_record())
    store.audit.add(other)

    assert sorted(map(repr, listed(store))) == sorted(map(repr, [a_record(), other]))


def test_list_goes_from_month_to_month(store: Store) -> None:
    moments = [
        at("2024-02-29T12:00:00"),
        at("2024-12-31T23:59:59.999"),
        at("2025-01-01T00:00:00"),
        at("2025-01-31T23:59:59.999"),
        at("2025-02-01T00:00:00"),
        at("2025-06-15T12:00:00"),
    ]
    for moment in moments:
        store.audit.add(a_record(at_epoch_ms=moment))

    found = listed(store, since_ms=moments[0], until_ms=at("2025-12-31T23:59:59"))

    assert [record.at_epoch_ms for record in found] == moments[::-1]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [(1, 3, [3, 2, 1]), (2, 2, [2]), (4, 9, []), (-9, 0, []), (3, 1, [])],
)
def test_both_ends_of_the_time_belong_to_it(
    store: Store, since: int, until: int, expected: list[int]
) -> None:
    for number in (1, 2, 3):
        store.audit.add(a_record(number))

    found = listed(store, since_ms=NOW_MS + since * 1000, until_ms=NOW_MS + until * 1000)

    assert found == [a_record(number) for number in expected]


def test_record_a_millisecond_outside_of_the_time_is_left_out(store: Store) -> None:
    store.audit.add(a_record(1))

    assert listed(store, since_ms=NOW_MS + 1001) == []
    assert listed(store, until_ms=NOW_MS + 999) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_limit_takes_the_newest_over_the_months(store: Store, limit: int) -> None:
    moments = [NOW_MS + 2, NOW_MS + 1, NOW_MS - 1, NOW_MS - 40 * DAY_MS]  # NOW_MS begins a year
    for moment in moments:
        store.audit.add(a_record(at_epoch_ms=moment))

    found = listed(store, limit=limit)

    assert [record.at_epoch_ms for record in found] == moments[:limit]


def test_list_goes_past_a_page_of_the_table(store: Store) -> None:
    large = [a_record(number, subject="x" * 300_000) for number in range(5, 0, -1)]  # 1.5 MB
    for record in large:
        store.audit.add(record)

    assert listed(store) == large
    assert listed(store, limit=4) == large[:4]


def test_record_is_kept_for_400_days(dynamodb: Any, tables: Tables, dynamodb_store: Store) -> None:
    dynamodb_store.audit.add(a_record())

    (row,) = DynamoDBRows(dynamodb, tables.names).all(tables.names.jobs)
    assert row["ttl_epoch_s"] == (NOW_MS + 1000) // 1000 + KEPT_S
    assert KEPT_S == 400 * 24 * 3600


def test_record_is_nobodys_job_and_never_due(store: Store) -> None:
    store.audit.add(a_record())

    assert [list(store.due_jobs.indexed(str(shard))) for shard in range(8)] == [[]] * 8


@pytest.mark.parametrize(
    ("matching", "expected"),
    [
        ({"subject": "job:1"}, [4, 1]),
        ({"actor": "user:ann"}, [4, 3]),
        ({"action": "dlq.discard"}, [3]),
        ({"subject": "job:1", "actor": "user:ann", "action": "dlq.redrive"}, [4]),
        ({"subject": "job:3"}, []),
        ({}, [4, 3, 2, 1]),
    ],
)
def test_list_takes_what_matches_in_every_member(
    store: Store, matching: dict[str, str], expected: list[int]
) -> None:
    for number, subject, actor, action in (
        (1, "job:1", "user:bob", "dlq.redrive"),
        (2, "job:2", "user:bob", "dlq.redrive"),
        (3, "job:2", "user:ann", "dlq.discard"),
        (4, "job:1", "user:ann", "dlq.redrive"),
    ):
        store.audit.add(a_record(number, subject=subject, actor=actor, action=action))

    found = store.audit.list(
        since_ms=NOW_MS, until_ms=NOW_MS + DAY_MS, limit=100, matching=matching
    )

    assert [record.at_epoch_ms for record in found] == [NOW_MS + one * 1000 for one in expected]


def test_limit_counts_what_matches_over_the_months(store: Store) -> None:
    for number in range(6):
        subject = "job:1" if number % 2 else "job:2"
        store.audit.add(a_record(at_epoch_ms=NOW_MS - number * 20 * DAY_MS, subject=subject))

    found = store.audit.list(
        since_ms=NOW_MS - 400 * DAY_MS, until_ms=NOW_MS, limit=2, matching={"subject": "job:1"}
    )

    assert [record.at_epoch_ms for record in found] == [
        NOW_MS - 20 * DAY_MS,
        NOW_MS - 60 * DAY_MS,
    ]
