"""WebhookEndpoints: all that a tenant has registered, changed as one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb import MAX_TRIES, Table
from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints
from sluiceway.domain.endpoint import (
    MAX_ENDPOINTS,
    NO_ENDPOINTS,
    Endpoint,
    Endpoints,
    Secret,
    added,
    disabled,
    removed,
    rotated,
)
from sluiceway.domain.errors import StoreBusyError, ValidationFailedError

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import DynamoDBRows
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from tests.contract.harness import Store, Tables


def an_endpoint(number: int = 1) -> Endpoint:
    return Endpoint(
        f"whk_{number}",
        f"https://hooks.example/{number}",
        events=("job.failed",),
        description="für uns",
        created_at_epoch_ms=NOW_MS + number,
    )


def add(store: Store, number: int = 1, tenant: str = "acme") -> Endpoint:
    new = an_endpoint(number)
    store.endpoints.change(tenant, lambda before: added(before, new))
    return new


def test_every_tenant_has_its_callbacks(store: Store) -> None:
    assert store.endpoints.read("acme") == NO_ENDPOINTS
    assert (Endpoint("callbacks", None),) == NO_ENDPOINTS


def test_endpoint_is_read_as_it_was_written(store: Store) -> None:
    new = an_endpoint()

    after = store.endpoints.change("acme", lambda before: added(before, new))

    assert after == (*NO_ENDPOINTS, new)
    assert store.endpoints.read("acme") == after


def test_each_member_of_an_endpoint_is_kept(store: Store) -> None:
    whole = replace(
        an_endpoint(),
        secrets=(Secret(3), Secret(2, NOW_MS + 5)),
        disabled_at_epoch_ms=NOW_MS + 7,
        disabled_reason="gone",
    )

    store.endpoints.change("acme", lambda _: (*NO_ENDPOINTS, whole))

    assert store.endpoints.read("acme")[1] == whole


def test_changes_follow_each_other(store: Store) -> None:
    one, two = add(store, 1), add(store, 2)

    store.endpoints.change("acme", lambda before: removed(before, one.endpoint_id))
    store.endpoints.change(
        "acme", lambda before: rotated(before, "callbacks", now_ms=NOW_MS, overlap_s=1)
    )

    callbacks, left = store.endpoints.read("acme")
    assert left == two
    assert callbacks.secrets == (Secret(2), Secret(1, NOW_MS + 1000))


@pytest.mark.proves(10)
def test_tenants_have_nothing_in_common(store: Store) -> None:
    add(store, tenant="acme")

    assert store.endpoints.read("globex") == NO_ENDPOINTS


def test_change_that_raises_writes_nothing(store: Store) -> None:
    for number in range(MAX_ENDPOINTS):
        add(store, number)
    before = store.rows.picture()

    with pytest.raises(ValidationFailedError):
        add(store, MAX_ENDPOINTS)

    assert store.rows.picture() == before


def test_change_of_nothing_writes_nothing(store: Store) -> None:
    add(store)
    before = store.rows.picture()

    store.endpoints.change(
        "acme", lambda now: disabled(now, "whk_other", now_ms=NOW_MS, reason="gone")
    )

    assert store.rows.picture() == before


def test_eleventh_of_many_at_once_is_refused(store: Store, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["store"] in {"moto", "valkey"}:  # both have jobs on moto
        pytest.skip("moto takes no lock between a condition and its write")

    def try_to_add(number: int) -> bool:
        while True:
            try:
                add(store, number)
            except ValidationFailedError:
                return False
            except StoreBusyError:
                continue
            return True

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(try_to_add, range(MAX_ENDPOINTS + 3)))

    assert sum(done) == MAX_ENDPOINTS
    assert len(store.endpoints.read("acme")) == 1 + MAX_ENDPOINTS


# ------------------------------------------------------------------ DynamoDB


def test_row_is_no_partners_and_holds_no_null(
    dynamodb: Any, tables: Tables, dynamodb_store: Store
) -> None:
    add(dynamodb_store)

    (row,) = DynamoDBRows(dynamodb, tables.names).all(tables.names.jobs)

    assert row["tenant"] == "webhook#acme"
    assert [name for one in row["endpoints"] for name, value in one.items() if value is None] == []


def test_own_write_whose_reply_was_lost_is_done_once(dynamodb: Any, tables: Tables) -> None:
    faulty = FaultyClient(dynamodb, replies=[timed_out()])
    store = DynamoDBEndpoints(Table(faulty, pause=lambda _: None), tables.names.jobs)  # type: ignore[arg-type]

    after = store.change(
        "acme", lambda before: rotated(before, "callbacks", now_ms=NOW_MS, overlap_s=0)
    )

    assert after[0].secrets == (Secret(2),)
    assert store.read("acme") == after


def test_quicker_other_is_built_upon(dynamodb_store: Store) -> None:
    seen: list[Endpoints] = []

    def change(before: Endpoints) -> Endpoints:
        seen.append(before)
        if len(seen) == 1:
            add(dynamodb_store, 1)
        return added(before, an_endpoint(2))

    dynamodb_store.endpoints.change("acme", change)

    assert dynamodb_store.endpoints.read("acme") == (*NO_ENDPOINTS, an_endpoint(1), an_endpoint(2))
    assert len(seen) == 2


def test_one_who_is_never_quick_enough_gives_up(dynamodb_store: Store) -> None:
    turns = iter(range(MAX_TRIES))

    def change(before: Endpoints) -> Endpoints:
        turn = next(turns)
        dynamodb_store.endpoints.change("acme", lambda _: (*NO_ENDPOINTS, an_endpoint(turn)))
        return (*before, an_endpoint(100))

    with pytest.raises(StoreBusyError):
        dynamodb_store.endpoints.change("acme", change)
