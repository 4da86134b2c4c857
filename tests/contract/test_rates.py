"""Rates: a tenant's requests per minute, on the fake and on DynamoDB."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_rates import DynamoDBRates
from sluiceway.ports import RateLeft

from tests.contract.clients import ScriptedClient, refused
from tests.contract.harness import make_tables
from tests.fakes.in_memory import NOW_MS, InMemoryRates, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sluiceway.ports import TenantRates

    Place = Callable[[], TenantRates]

LIMIT = 10


def place_of(request: pytest.FixtureRequest) -> Place:
    """Makes the rates of another process."""
    if request.param == "in_memory":
        world = World()
        return lambda: InMemoryRates(world)
    client: Any = request.getfixturevalue(f"{request.param}_client")
    name = make_tables(client, f"rates-{secrets.token_hex(4)}").names.coordination
    return lambda: DynamoDBRates(Table(client, pause=lambda _: None), name)


@pytest.fixture(params=["in_memory", "moto", "dynamodb_local"])
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


@pytest.fixture(params=["in_memory", "dynamodb_local"])
def crowded(request: pytest.FixtureRequest) -> Place:
    """Where threads may meet."""
    return place_of(request)


def take(rates: TenantRates, at_ms: int = 0, *, tenant: str = "acme") -> RateLeft:
    return rates.take(tenant, LIMIT, now_ms=NOW_MS + at_ms)


def spend(rates: TenantRates, at_ms: int = 0) -> None:
    for _ in range(LIMIT):
        assert take(rates, at_ms).allowed


@pytest.mark.parametrize("processes", [1, 4])
def test_limit_is_met_exactly_whoever_counts(place: Place, processes: int) -> None:  # case R13
    rates = [place() for _ in range(processes)]

    taken = [take(rates[number % processes]) for number in range(LIMIT + 1)]

    assert [one.left for one in taken] == [*range(LIMIT - 1, -1, -1), 0]
    assert [one.allowed for one in taken] == [True] * LIMIT + [False]


def test_four_processes_at_once_share_one_limit(crowded: Place) -> None:  # case R16
    line = threading.Barrier(4)

    def ask(rates: TenantRates) -> int:
        line.wait()
        return sum(take(rates).allowed for _ in range(LIMIT))

    with ThreadPoolExecutor(4) as pool:
        allowed = sum(pool.map(ask, [crowded() for _ in range(4)]))

    assert allowed == LIMIT


@pytest.mark.parametrize("spent_ms", [0, 30_000, 59_000, 59_999])
def test_limit_that_is_reached_ends_with_its_minute(  # case R15
    place: Place, spent_ms: int
) -> None:
    rates = place()
    spend(rates, spent_ms)

    refusal = take(rates, spent_ms)

    assert (refusal.allowed, refusal.left) == (False, 0)
    assert refusal.resets_in_s == max(1, (60_000 - spent_ms) // 1000)
    assert not take(rates, 59_999).allowed
    assert take(rates, spent_ms + refusal.resets_in_s * 1000).allowed
    assert take(rates, 61_000).allowed


def test_tenants_are_counted_apart(place: Place) -> None:
    rates = place()
    spend(rates)

    assert take(rates, tenant="globex") == RateLeft(LIMIT, LIMIT - 1, 60, allowed=True)


def test_refusals_take_nothing_of_the_next_minute(place: Place) -> None:
    rates = place()
    spend(rates)
    for _ in range(LIMIT):
        assert not take(rates, 1).allowed

    assert take(rates, 60_000).left == LIMIT - 1


def test_throttle_of_the_row_is_waited_out() -> None:  # case R16
    throttle = refused("ProvisionedThroughputExceededException")
    client: Any = ScriptedClient(
        throttle, throttle, answer={"Attributes": {"requests": {"N": "1"}}}
    )

    taken = take(DynamoDBRates(Table(client, pause=lambda _: None), "coordination"))

    assert taken == RateLeft(LIMIT, LIMIT - 1, 60, allowed=True)
