"""Each suite runs against the fake, and against the real adapter on moto and DynamoDB Local.

With "valkey" the entries are in a real Valkey, or Redis, and the jobs on moto.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from moto import mock_aws
from sluiceway.adapters import valkey_cache

from tests.contract.harness import InMemoryRows, Store, make_tables, store_on
from tests.fakes.in_memory import (
    InMemoryAudit,
    InMemoryBacklogs,
    InMemoryBatches,
    InMemoryCache,
    InMemoryDeliveries,
    InMemoryDueJobs,
    InMemoryEndpoints,
    InMemoryJobs,
    InMemoryPartnerKeys,
    InMemoryState,
    InMemoryUsage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient
    from valkey import Valkey

    from tests.contract.harness import Tables
    from tests.fakes.in_memory import FakeClock, World

EMULATORS = ("moto", "dynamodb_local")

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def dynamodb_local_client(dynamodb_local_url: str) -> Iterator[DynamoDBClient]:
    """Of DynamoDB Local; threads may share it."""
    client = boto3.client(
        "dynamodb",
        endpoint_url=dynamodb_local_url,
        config=Config(
            max_pool_connections=64, retries={"mode": "standard", "total_max_attempts": 3}
        ),
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def _client_for_moto() -> DynamoDBClient:
    """Made once, since making a client takes longer than most tests."""
    return boto3.client("dynamodb")


@pytest.fixture
def moto_client(_client_for_moto: DynamoDBClient) -> Iterator[DynamoDBClient]:
    """Of an empty moto."""
    with mock_aws():
        yield _client_for_moto


@pytest.fixture(params=EMULATORS)
def dynamodb(request: pytest.FixtureRequest) -> DynamoDBClient:
    """A client of each emulator."""
    client: DynamoDBClient = request.getfixturevalue(f"{request.param}_client")
    return client


@pytest.fixture
def tables(dynamodb: DynamoDBClient) -> Tables:
    """Empty tables in each emulator."""
    return make_tables(dynamodb, f"t{next(_numbers)}")


@pytest.fixture
def dynamodb_store(dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock) -> Store:
    """The real adapters on each emulator."""
    return store_on(dynamodb, tables, clock)


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[Valkey]:
    """A client of an empty Valkey."""
    client = valkey_cache.connect(valkey_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    """What a cache in Valkey said that it couldn't do, and why."""
    return []


@pytest.fixture
def valkey_store(
    valkey: Valkey, moto_client: DynamoDBClient, clock: FakeClock, told: list[tuple[str, str]]
) -> Store:
    """The entries in Valkey, the jobs on moto. Each failure of Valkey is in `told`."""
    cache = valkey_cache.ValkeyCache(
        valkey, clock=clock, on_failure=lambda *failure: told.append(failure)
    )
    tables = make_tables(moto_client, f"t{next(_numbers)}")
    return store_on(moto_client, tables, clock, valkey=cache)


@pytest.fixture(params=("in_memory", *EMULATORS, "valkey"))
def store(request: pytest.FixtureRequest, clock: FakeClock, world: World) -> Store:
    """The fake, the real adapters on each emulator, and those with the entries in Valkey."""
    if request.param == "in_memory":
        return Store(
            jobs=InMemoryJobs(world, clock=clock),
            due_jobs=InMemoryDueJobs(world),
            cache=InMemoryCache(world),
            keys=InMemoryPartnerKeys(world),
            state=InMemoryState(world),
            audit=InMemoryAudit(world),
            backlogs=InMemoryBacklogs(world),
            usage=InMemoryUsage(world),
            batches=InMemoryBatches(world),
            endpoints=InMemoryEndpoints(world),
            delivery_log=InMemoryDeliveries(world),
            rows=InMemoryRows(world),
            clock=clock,
        )
    if request.param == "valkey":
        store: Store = request.getfixturevalue("valkey_store")
        return store
    client: DynamoDBClient = request.getfixturevalue(f"{request.param}_client")
    return store_on(client, make_tables(client, f"t{next(_numbers)}"), clock)
