"""What the contract suites see of a store besides its port: the rows that no verb shows."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from samtranslator.yaml_helper import yaml_parse
from sluiceway.adapters.dynamodb import Table, from_item, to_item
from sluiceway.adapters.dynamodb_audit import DynamoDBAudit
from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs
from sluiceway.adapters.dynamodb_batches import DynamoDBBatches
from sluiceway.adapters.dynamodb_cache import DynamoDBCache
from sluiceway.adapters.dynamodb_deliveries import DynamoDBDeliveries
from sluiceway.adapters.dynamodb_due_jobs import DynamoDBDueJobs
from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints
from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs, TableNames, _values_of
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway.adapters.dynamodb_state import DynamoDBState
from sluiceway.adapters.dynamodb_usage import DynamoDBUsage
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import Catalogue
from sluiceway.ports import Started, Submitted
from sluiceway.usecases.sweep_jobs import Sweeper, Swept, sweep_jobs

from tests.fakes.in_memory import (
    FakeFlags,
    InMemoryBacklogs,
    InMemoryGates,
    InMemoryLatencies,
    InMemoryState,
    LeaseRow,
    World,
)
from tests.fakes.outside import FakeBus

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.adapters.valkey_cache import ValkeyCache
    from sluiceway.domain.job import Job
    from sluiceway.domain.lease import Lease
    from sluiceway.ports import (
        AuditLog,
        Backlogs,
        Batches,
        DeliveryLog,
        DueJobs,
        JobQueue,
        JobStore,
        PartnerKeys,
        ResultCache,
        StateStore,
        Telemetry,
        UsageReader,
        WebhookEndpoints,
    )

    from tests.fakes.in_memory import FakeClock

LEASE_MS = 100_000
TEMPLATE = Path(__file__).parents[2] / "template.yaml"


class Rows(Protocol):
    """The coordination rows, and a picture of everything."""

    def claim(self, job_key: str) -> str | None:
        """The job id in the claim."""
        ...

    def drop_claim(self, job_key: str) -> None: ...

    def lease(self, cache_key: str) -> LeaseRow | None: ...

    def put_lease(self, cache_key: str, row: LeaseRow) -> None: ...

    def drop_lease(self, cache_key: str) -> None: ...

    def in_flight(self, tenant: str) -> dict[int, int]:
        """The tenant's counter, by shard."""
        ...

    def day(self, job: Job) -> dict[str, int]:
        """What is counted in the day of the job's tenant, without zeros."""
        ...

    def put_job(self, job: Job) -> None:
        """Writes a job's row over what was there."""
        ...

    def picture(self) -> object:
        """Equal to an earlier one when nothing has changed."""
        ...


@dataclass(frozen=True, slots=True)
class Store:
    """One implementation of the ports on one storage, empty at the start of each test."""

    jobs: JobStore
    due_jobs: DueJobs
    cache: ResultCache
    keys: PartnerKeys
    state: StateStore
    audit: AuditLog
    backlogs: Backlogs
    usage: UsageReader
    batches: Batches
    endpoints: WebhookEndpoints
    delivery_log: DeliveryLog
    rows: Rows
    clock: FakeClock

    def submit(self, job: Job, *, caps: tuple[int, ...] = (100,)) -> Job:
        """The job as it is stored."""
        outcome = self.jobs.submit(job, shard_caps=caps)
        assert isinstance(outcome, Submitted)
        return outcome.job

    def start(self, job: Job, token: str = "token-1") -> tuple[Job, Lease]:  # noqa: S107
        """The job as processing, and its lease."""
        outcome = start(self, job, token)
        assert isinstance(outcome, Started)
        return outcome.job, outcome.lease

    def row(self, job: Job) -> Job:
        """The job as it is stored now."""
        stored = self.jobs.get(job.tenant, job.job_id)
        assert stored is not None
        return stored


def start(store: Store, job: Job, token: str = "token-1") -> object:  # noqa: S107
    """One start as the worker makes it, whatever comes of it."""
    now_ms = store.clock.now_ms()
    return store.jobs.start(
        job,
        token=token,
        lease_ms=LEASE_MS,
        now_ms=now_ms,
        started=lambda fence: transitions.started(
            job, fence=fence, now_ms=now_ms, receives=1, function_ends_ms=now_ms + LEASE_MS
        ),
    )


# ------------------------------------------------------------------------------------ in memory


class InMemoryRows:
    """Looks into a World."""

    def __init__(self, world: World) -> None:
        self._world = world

    def claim(self, job_key: str) -> str | None:
        claim = self._world.claims.get(job_key)
        return claim.job_id if claim else None

    def drop_claim(self, job_key: str) -> None:
        del self._world.claims[job_key]

    def lease(self, cache_key: str) -> LeaseRow | None:
        return self._world.leases.get(cache_key)

    def put_lease(self, cache_key: str, row: LeaseRow) -> None:
        self._world.leases[cache_key] = row

    def drop_lease(self, cache_key: str) -> None:
        del self._world.leases[cache_key]

    def in_flight(self, tenant: str) -> dict[int, int]:
        return {
            shard: count
            for (owner, shard), count in self._world.in_flight.items()
            if owner == tenant and count
        }

    def day(self, job: Job) -> dict[str, int]:
        world, day = self._world, (job.tenant, job.day)
        counted = {
            "jobs": world.day_jobs[day],
            "cost_nanos": world.day_cost_nanos[day],
            "bypasses": world.bypasses[day],
        }
        return {name: count for name, count in counted.items() if count}

    def put_job(self, job: Job) -> None:
        self._world.jobs[job.tenant, job.job_id] = job

    def picture(self) -> object:
        world = self._world
        return copy.deepcopy(
            (
                *(world.jobs, world.claims, world.leases, +world.in_flight),
                *(world.entries, world.tombstones, +world.bypasses),
                *(+world.day_jobs, +world.day_cost_nanos, world.usage),
                *(world.endpoints, world.deliveries),
            )
        )


# ------------------------------------------------------------------------------------ DynamoDB


class DynamoDBRows:
    """Looks into the tables with a plain client."""

    def __init__(self, client: DynamoDBClient, names: TableNames) -> None:
        self._client = client
        self._names = names

    def claim(self, job_key: str) -> str | None:
        row = self._read(f"claim#{job_key}")
        return row["job_id"] if row else None

    def drop_claim(self, job_key: str) -> None:
        self._drop(f"claim#{job_key}")

    def lease(self, cache_key: str) -> LeaseRow | None:
        row = self._read(f"lease#{cache_key}")
        if row is None:
            return None
        return LeaseRow(row["job_id"], row.get("token"), row["fence"], row.get("ends_at_epoch_ms"))

    def put_lease(self, cache_key: str, row: LeaseRow) -> None:
        self._client.put_item(
            TableName=self._names.coordination,
            Item=to_item(
                {
                    "coordination_key": f"lease#{cache_key}",
                    "job_id": row.job_id,
                    "token": row.token,
                    "fence": row.fence,
                    "ends_at_epoch_ms": row.ends_at_epoch_ms,
                }
            ),
        )

    def drop_lease(self, cache_key: str) -> None:
        self._drop(f"lease#{cache_key}")

    def in_flight(self, tenant: str) -> dict[int, int]:
        return {
            int(row["coordination_key"].rsplit("#", 1)[1]): row["in_flight"]
            for row in self.all(self._names.coordination)
            if row["coordination_key"].startswith(f"tenant#{tenant}#") and row["in_flight"]
        }

    def day(self, job: Job) -> dict[str, int]:
        row = self._read(f"day#{job.tenant}#{job.day}") or {}
        counted = {name: row.get(name, 0) for name in ("jobs", "cost_nanos", "bypasses")}
        return {name: count for name, count in counted.items() if count}

    def put_job(self, job: Job) -> None:
        self._client.put_item(TableName=self._names.jobs, Item=to_item(_values_of(job)))

    def picture(self) -> object:
        return {
            table: sorted(self.all(table), key=repr)
            for table in (self._names.jobs, self._names.cache, self._names.coordination)
        }

    def all(self, table: str) -> list[dict[str, Any]]:
        """Every row of a table, as plain values."""
        pages = self._client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return [from_item(item) for page in pages for item in page["Items"]]

    def _read(self, key: str) -> dict[str, Any] | None:
        answer = self._client.get_item(
            TableName=self._names.coordination,
            Key={"coordination_key": {"S": key}},
            ConsistentRead=True,
        )
        return from_item(answer["Item"]) if "Item" in answer else None

    def _drop(self, key: str) -> None:
        self._client.delete_item(
            TableName=self._names.coordination, Key={"coordination_key": {"S": key}}
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one test."""

    names: TableNames
    partners: str


@cache
def template_resources() -> dict[str, Any]:
    """The resources of template.yaml."""
    resources: dict[str, Any] = yaml_parse(TEMPLATE.read_text())["Resources"]
    return resources


def make_tables(client: DynamoDBClient, prefix: str) -> Tables:
    """Makes the tables as template.yaml defines them, so that tests and deployment can't differ."""
    wanted = ("JobsTable", "CacheTable", "CoordinationTable", "PartnersTable")
    for logical_id in wanted:
        properties = template_resources()[logical_id]["Properties"]
        definition = {
            name: properties[name]
            for name in (
                "KeySchema",
                "AttributeDefinitions",
                "GlobalSecondaryIndexes",
                "BillingMode",
            )
            if name in properties
        }
        client.create_table(TableName=f"{prefix}-{logical_id}", **definition)
    jobs, cache, coordination, partners = (f"{prefix}-{logical_id}" for logical_id in wanted)
    return Tables(TableNames(jobs, cache, coordination), partners)


def store_on(
    client: DynamoDBClient,
    tables: Tables,
    clock: FakeClock,
    *,
    pause: Callable[[float], None] = lambda _: None,
    rand: Callable[[], float] = lambda: 0.0,
    valkey: ValkeyCache | None = None,
) -> Store:
    """The real adapters on these tables. Nothing waits and nothing is random, unless told so.

    With `valkey`, the entries are there.
    """
    table = Table(client, pause=pause, rand=rand)
    cache = valkey or DynamoDBCache(table, tables.names.cache)
    return Store(
        jobs=DynamoDBJobs(table, tables.names, cache, clock=clock, rand=rand),
        due_jobs=DynamoDBDueJobs(table, tables.names.jobs),
        cache=cache,
        keys=DynamoDBPartnerKeys(table, tables.partners),
        state=DynamoDBState(table, tables.names.coordination, clock=clock),
        audit=DynamoDBAudit(table, tables.names.jobs),
        backlogs=DynamoDBBacklogs(table, tables.names.coordination, clock=clock),
        usage=DynamoDBUsage(table, tables.names.jobs, clock=clock),
        batches=DynamoDBBatches(table, tables.names.jobs),
        endpoints=DynamoDBEndpoints(table, tables.names.jobs),
        delivery_log=DynamoDBDeliveries(table, tables.names.jobs),
        rows=DynamoDBRows(client, tables.names),
        clock=clock,
    )


def sweep(
    jobs: JobStore, due_jobs: DueJobs, queue: JobQueue, *, clock: FakeClock, telemetry: Telemetry
) -> Swept:
    """One pass over these stores, with nothing paused and nothing shut."""
    world = World()
    return sweep_jobs(
        Sweeper(
            flags=FakeFlags(),
            bus=FakeBus(),
            jobs=jobs,
            state=InMemoryState(world),
            due_jobs=due_jobs,
            queue=queue,
            clock=clock,
            telemetry=telemetry,
            time_left_ms=lambda: 60_000,
            pause=clock.pause,
            gates=InMemoryGates(world),
            latencies=InMemoryLatencies(world),
            catalogue=Catalogue(),
            backlogs=InMemoryBacklogs(world),
            workers={"interactive": 8, "batch": 2},
        )
    )
