"""Each suite runs against the fake, and against the real adapter on moto and DynamoDB Local."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from moto import mock_aws

from tests.contract.harness import InMemoryRows, Store, make_tables, store_on
from tests.fakes.in_memory import (
    InMemoryAudit,
    InMemoryCache,
    InMemoryDueJobs,
    InMemoryJobs,
    InMemoryPartnerKeys,
    InMemoryState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

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


@pytest.fixture(params=("in_memory", *EMULATORS))
def store(request: pytest.FixtureRequest, clock: FakeClock, world: World) -> Store:
    """The fake, and the real adapters on each emulator."""
    if request.param == "in_memory":
        return Store(
            jobs=InMemoryJobs(world, clock=clock),
            due_jobs=InMemoryDueJobs(world),
            cache=InMemoryCache(world),
            keys=InMemoryPartnerKeys(world),
            state=InMemoryState(world),
            audit=InMemoryAudit(world),
            rows=InMemoryRows(world),
            clock=clock,
        )
    client: DynamoDBClient = request.getfixturevalue(f"{request.param}_client")
    return store_on(client, make_tables(client, f"t{next(_numbers)}"), clock)
