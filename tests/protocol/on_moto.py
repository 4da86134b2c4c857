"""The real stores on moto, and the stream of their changes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from sluiceway.adapters.dynamodb import Table, from_item
from sluiceway.adapters.dynamodb_cache import _entry_of
from sluiceway.adapters.dynamodb_due_jobs import DynamoDBDueJobs
from sluiceway.adapters.dynamodb_jobs import job_of
from sluiceway.adapters.dynamodb_state import COPY_LIVES_MS
from sluiceway.adapters.dynamodb_usage import OWNER_PREFIX, row_of

from tests.contract.harness import DynamoDBRows, make_tables, store_on, template_resources
from tests.fakes.in_memory import Claim, InMemoryPayloads, LeaseRow, World
from tests.protocol.events import Change, passes
from tests.protocol.stage import Stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.fakes.in_memory import FakeClock


STATE_LAGS_MS = COPY_LIVES_MS + 10_000
"""The clock that tells how old the copy is may fall back meanwhile."""


def on_moto(clock: FakeClock) -> Stores:
    """The real adapters on tables of their own."""
    client = client_for_moto()
    tables = make_tables(client, "protocol")
    store = store_on(client, tables, clock)
    rows = store.rows
    assert isinstance(rows, DynamoDBRows)

    def look() -> World:
        world = World()
        for values in rows.all(tables.names.jobs):
            owner, tenant = values["tenant"], values["tenant"].removeprefix(OWNER_PREFIX)
            if owner != tenant:
                usage = row_of(values)
                world.usage[tenant, values["job_id"], usage.model] = usage
                continue
            job = job_of(values)
            world.jobs[job.tenant, job.job_id] = job
        for row in rows.all(tables.names.coordination):
            _see(world, row)
        for row in rows.all(tables.names.cache):
            entry = _entry_of(row)
            if entry is not None:
                world.entries[entry.cache_key] = entry
            else:
                world.tombstones[row["cache_key"]] = row["invalidated_at_epoch_ms"]
        return world

    due_jobs = DynamoDBDueJobs(Table(client), tables.names.jobs)
    stream = RealStream(client, tables.names.jobs, clock.now_ms)
    return Stores(
        jobs=store.jobs,
        due_jobs=due_jobs,
        cache=store.cache,
        state=store.state,
        payloads=InMemoryPayloads(World()),
        look=look,
        changes=stream.read,
        state_lags_ms=STATE_LAGS_MS,
    )


def _see(world: World, row: dict[str, Any]) -> None:
    """Puts a coordination row into the world."""
    kind, _, name = row["coordination_key"].partition("#")
    if kind == "claim":
        world.claims[name] = Claim(row["job_id"], row["ends_at_epoch_ms"])
    elif kind == "lease":
        world.leases[name] = LeaseRow(
            row["job_id"], row.get("token"), row["fence"], row["ends_at_epoch_ms"]
        )
    elif kind == "state":
        world.epochs = {one: value for one, value in row.items() if ":" in one}
        world.degraded_since_epoch_ms = row.get("degraded_since_epoch_ms")
    elif kind == "day":
        tenant, _, day = name.partition("#")
        world.day_cost_nanos[tenant, day] = row.get("cost_nanos", 0)
    elif kind == "tenant":
        tenant, _, shard = name.partition("#")
        world.in_flight[tenant, int(shard)] = row["in_flight"]


class RealStream:
    """The stream of a table, from its beginning."""

    def __init__(self, client: DynamoDBClient, table: str, now_ms: Callable[[], int]) -> None:
        view: Any = {"StreamEnabled": True, "StreamViewType": stream_view()}
        described = client.update_table(TableName=table, StreamSpecification=view)
        self._arn = described["TableDescription"]["LatestStreamArn"]
        self._now_ms = now_ms
        self._client = client_for_streams()
        shards = self._client.describe_stream(StreamArn=self._arn)["StreamDescription"]["Shards"]
        self._shard = shards[0]["ShardId"]
        self._after: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}

    def read(self) -> list[Change]:
        """What came since the last time. moto puts its own time in the records."""
        where = self._client.get_shard_iterator(
            StreamArn=self._arn, ShardId=self._shard, **self._after
        )
        found = self._client.get_records(ShardIterator=where["ShardIterator"])["Records"]
        if found:
            last = found[-1]["dynamodb"]["SequenceNumber"]
            self._after = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": last}
        usage = [record for record in found if _owner_of(record).startswith(OWNER_PREFIX)]
        assert not any(map(passes, usage)), "the publisher sees what is no job"
        return [self._change(record) for record in found if record not in usage]

    def _change(self, record: Any) -> Change:
        now_ms = self._now_ms()
        images = {
            name: job_of(from_item(record["dynamodb"][name]))
            for name in ("NewImage", "OldImage")
            if record["dynamodb"].get(name)
        }
        told = record["dynamodb"] | {"ApproximateCreationDateTime": now_ms / 1000}
        return Change(
            images.get("OldImage"), images["NewImage"], now_ms, record | {"dynamodb": told}
        )


def _owner_of(record: Any) -> str:
    owner: str = record["dynamodb"]["Keys"]["tenant"]["S"]
    return owner


@cache
def client_for_moto() -> DynamoDBClient:
    """Made once, since making a client takes longer than an example."""
    return boto3.client("dynamodb")


@cache
def client_for_streams() -> Any:
    """As above."""
    return boto3.client("dynamodbstreams")


@cache
def stream_view() -> str:
    """What of a row is in the stream, by template.yaml."""
    view: str = template_resources()["JobsTable"]["Properties"]["StreamSpecification"][
        "StreamViewType"
    ]
    return view
