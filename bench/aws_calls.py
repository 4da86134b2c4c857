"""Count the AWS calls and the DynamoDB units of each path, against the budget of calls.

The handlers run in this process, as bootstrap.py wires them, on a local stack of their own: the
emulator on a free port with template.yaml deployed, and the vendor simulator. botocore's events
count every HTTP request that the SDK sends, its own retries included. What Lambda's pollers do for
a worker (receive and delete a message) is done past the count, and so is everything that prepares
a path.

Units are computed from the rows as they are before and after each call, by the rules that AWS
publishes; the emulator's own figures stand beside them. Nothing here measures time.
"""

import importlib.util
import json
import math
import os
import random
import signal
import string
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs
from sluiceway.adapters.dynamodb_state import DynamoDBState
from sluiceway.adapters.dynamodb_usage import OWNER_PREFIX
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain import ids
from sluiceway.domain.backlog import Backlog, Group
from sluiceway.domain.catalogue import Vendor
from sluiceway.domain.counters import shard_caps
from sluiceway.domain.timeouts import LEAST_SAMPLES
from sluiceway.ports import (
    Backlogs,
    ServiceState,
    StateStore,
    VendorAnswer,
    VendorCall,
    VendorClient,
)
from sluiceway_local import deploy, emulator, processes, stack
from sluiceway_local.simulator import Simulator
from sluiceway_local.state import LocalStack

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report

READ_UNIT_BYTES = 4096
WRITE_UNIT_BYTES = 1024
TRANSACTION_FACTOR = 2
"""AWS: a transactional write or read of an item costs twice the plain one."""

SMALL_PROMPT_CHARS = 200
PROMPT_CHARS = (200, 10_000, 70_000, 100_000, 500_000)
"""70,000 characters compress to a little less than what a job row takes (INLINE_INPUT_BYTES)."""

BIG_RESULT_CHARS = 20_000
"""Far over INLINE_RESULT_BYTES once it is compressed."""

CATALOGUE = """
[vendors.simulator]
protocol = "openai"
base_url = "{url}"
api_key_secret = "sluiceway/vendors/simulator"

[models.own]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
price = {{ input_per_million = 3.0, output_per_million = 15.0 }}

[models.shared]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
cache = {{ scope = "shared" }}
price = {{ input_per_million = 3.0, output_per_million = 15.0 }}

[models.uncached]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
cache = {{ scope = "none" }}
price = {{ input_per_million = 3.0, output_per_million = 15.0 }}

[tenants.default]
in_flight = {in_flight}
"""

IN_FLIGHT = 1000
"""The default of eight counter shards."""

Item = Mapping[str, Any]


# ------------------------------------------------------------------------------------ units


@dataclass(frozen=True, slots=True)
class Units:
    """Read and write request units of DynamoDB (on-demand prices count them)."""

    read: float = 0.0
    write: float = 0.0

    def __add__(self, other: "Units") -> "Units":
        return Units(self.read + other.read, self.write + other.write)


@dataclass(frozen=True, slots=True)
class Index:
    """A global secondary index, as far as its cost goes."""

    keys: tuple[str, ...]
    attributes: frozenset[str] | None
    """What an entry holds; None: everything."""

    def entry(self, item: Item | None) -> Item | None:
        """The entry of this item; None when the index leaves the item out."""
        if item is None or any(key not in item for key in self.keys):
            return None
        if self.attributes is None:
            return item
        return {name: item[name] for name in self.attributes if name in item}

    def write_units(self, old: Item | None, new: Item | None) -> float:
        """Of a write that makes `old` into `new`.

        Nothing when the entry stays as it is, 1 per KB when it comes, goes or changes, and both
        when its key changes, since then one entry goes and another comes. A transaction doesn't
        double it: an index follows its table afterwards.
        """
        before, after = self.entry(old), self.entry(new)
        if before == after:
            return 0.0
        if before is None or after is None:
            return write_units(before or after)
        if any(before[key] != after[key] for key in self.keys):
            return write_units(before) + write_units(after)
        return max(write_units(before), write_units(after))


def item_bytes(item: Item | None) -> int:
    """Size of an item as AWS counts it: names and values, by the rules for each type."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in (item or {}).items())


def read_units(item: Item | None, *, consistent: bool) -> float:
    """1 per started 4 KB, half of that for an eventually consistent read; no item costs as one."""
    whole = max(1, math.ceil(item_bytes(item) / READ_UNIT_BYTES))
    return whole * (1.0 if consistent else 0.5)


def write_units(item: Item | None) -> float:
    """1 per started KB, 1 at least."""
    return float(max(1, math.ceil(item_bytes(item) / WRITE_UNIT_BYTES)))


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(str(content).encode())
        case "B":
            return len(bytes(content))
        case "N":
            digits = str(content).lstrip("-").replace(".", "").strip("0")
            return math.ceil(len(digits) / 2) + 1 + str(content).startswith("-")
        case "BOOL" | "NULL":
            return 1
        case "L":
            return 3 + sum(1 + _value_bytes(one) for one in content)
        case "M":
            return 3 + sum(1 + len(n.encode()) + _value_bytes(one) for n, one in content.items())
    return sum(_value_bytes({kind[0]: one}) for one in content)  # a set


class Tables:
    """Rows and indexes of the deployed tables, read past the count."""

    def __init__(self, client: Any, coordination: str, results: str) -> None:
        """`client` isn't hooked; `coordination` is the table whose keys name the kind of row.

        `results`: the Cache table.
        """
        self._client = client
        self.results = results
        self.coordination = coordination
        self._described = cache(lambda name: client.describe_table(TableName=name)["Table"])

    def row(self, table: str, key: Item) -> Item | None:
        """The row as it is now."""
        answer = self._client.get_item(TableName=table, Key=key, ConsistentRead=True)
        row: Item | None = answer.get("Item")
        return row

    def key_of(self, table: str, item: Item) -> Item:
        """The key attributes of an item."""
        return {name: item[name] for name in self._keys(self._described(table))}

    def indexes(self, table: str) -> list[Index]:
        """The table's global secondary indexes."""
        described = self._described(table)
        found = []
        for index in described.get("GlobalSecondaryIndexes", []):
            projection, keys = index["Projection"], self._keys(index)
            held = {*keys, *self._keys(described), *projection.get("NonKeyAttributes", [])}
            everything = projection["ProjectionType"] == "ALL"
            found.append(Index(keys, None if everything else frozenset(held)))
        return found

    def claims(self) -> dict[str, Item]:
        """All claim rows by their key."""
        pages = self._client.get_paginator("scan").paginate(TableName=self.coordination)
        rows = [row for page in pages for row in page["Items"]]
        keyed = {row["coordination_key"]["S"]: row for row in rows}
        return {key: row for key, row in keyed.items() if key.startswith("claim#")}

    def fill_counters(self, tenant: str, shards: int, in_flight: int) -> None:
        """Writes the tenant's counters as that many open jobs in each shard leave them."""
        for shard in range(shards):
            row = {
                "coordination_key": {"S": f"tenant#{tenant}#{shard}"},
                "in_flight": {"N": str(in_flight)},
            }
            self._client.put_item(TableName=self.coordination, Item=row)

    def make_stale(self, cache_key: str) -> None:
        """Moves an entry's soft expiry into the past."""
        self._client.update_item(
            TableName=self.results,
            Key={"cache_key": {"S": cache_key}},
            UpdateExpression="SET soft_expires_at_epoch_ms = :past",
            ExpressionAttributeValues={":past": {"N": "1"}},
        )

    def refresh_of(self, cache_key: str) -> str:
        """The id of the refresh job that the entry names."""
        row = self.row(self.results, {"cache_key": {"S": cache_key}}) or {}
        return str(row["refresh_job_id"]["S"])

    def put_back(self, claims: Mapping[str, Item]) -> None:
        """Writes the claims that are gone since."""
        for key in claims.keys() - self.claims().keys():
            self._client.put_item(TableName=self.coordination, Item=claims[key])

    @staticmethod
    def _keys(described: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(part["AttributeName"] for part in described["KeySchema"])


# ------------------------------------------------------------------------------------ counting


@dataclass(frozen=True, slots=True)
class Target:
    """One row that a request touches, as it was before."""

    table: str
    key: Item
    old: Item | None
    put: Item | None = None
    """The whole new row, when the request has it."""


@dataclass(slots=True)
class Call:
    """One call of a client's method."""

    service: str
    operation: str
    rows: str = ""
    """The kinds of the rows that it touches."""
    requests: int = 0
    """HTTP requests: more than one when the SDK tried again."""
    refused: bool = False
    """By a condition; nothing was written."""
    units: Units = Units()
    """By AWS's rules."""
    cache_units: Units = Units()
    """Of `units`, those of rows of the cache."""
    reported: Units = Units()
    """By the emulator."""

    @property
    def told(self) -> str:
        """The call for people."""
        rows = f" {self.rows}" if self.rows else ""
        return f"{self.operation}{rows}{' (refused)' if self.refused else ''}"


@dataclass(slots=True)
class _Open:
    """A call under way."""

    call: Call
    params: Mapping[str, Any]
    targets: list[Target] = field(default_factory=list)


class Recorder:
    """Counts what the clients of a session do while somebody asks for it.

    One thread: a request belongs to the call that began last.
    """

    def __init__(self, tables: Tables, words: Mapping[str, str]) -> None:
        """`words`: what a row of a table is called, by the table's name."""
        self._tables = tables
        self._words = words
        self._calls: list[Call] | None = None
        self._open: _Open | None = None
        self.own_cpu_s = 0.0
        """CPU time of this process that the counting itself took so far."""

    def attach(self, session: boto3.Session) -> None:
        """Hooks all clients that the session makes from here on."""
        session.events.register("before-parameter-build", self._timed(self._begins))
        session.events.register("before-send", self._sends)
        session.events.register("after-call", self._timed(self._ends))

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(**about: Any) -> None:
            began_s = time.process_time()
            hook(**about)
            self.own_cpu_s += time.process_time() - began_s

        return timed

    @contextmanager
    def counting(self) -> Iterator[list[Call]]:
        """Fills the list with the calls made inside."""
        calls: list[Call] = []
        self._calls = calls
        try:
            yield calls
        finally:
            self._calls = self._open = None

    def _begins(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        if self._calls is None:
            return
        call = Call(model.service_model.service_name, model.name)
        self._calls.append(call)
        self._open = _Open(call, params)
        if call.service == "dynamodb":
            if "ReturnConsumedCapacity" in model.input_shape.members:
                params["ReturnConsumedCapacity"] = "TOTAL"
            self._open.targets = [*self._targets(call.operation, params)]
            call.rows = " + ".join(self._word(target) for target in self._open.targets)

    def _sends(self, **_: Any) -> None:
        if self._open is not None:
            self._open.call.requests += 1

    def _ends(self, parsed: Mapping[str, Any], **_: Any) -> None:
        if self._open is None or self._open.call.service != "dynamodb":
            return
        done, self._open = self._open, None
        call = done.call
        call.reported = _reported(call.operation, parsed)
        code = parsed.get("Error", {}).get("Code")
        call.refused = code in {"ConditionalCheckFailedException", "TransactionCanceledException"}
        if code is None or call.refused:
            call.units = self._units(done)
            cached = [one for one in done.targets if one.table == self._tables.results]
            if cached:
                call.cache_units = self._units(_Open(call, done.params, cached))

    def _targets(self, operation: str, params: Mapping[str, Any]) -> Iterator[Target]:
        requests: Iterable[Mapping[str, Any]] = [params]
        if operation == "TransactWriteItems":
            requests = [action for one in params["TransactItems"] for action in one.values()]
        for request in requests:
            table, put = request.get("TableName", ""), request.get("Item")
            key = request.get("Key") or (self._tables.key_of(table, put) if put else None)
            if key is not None:
                yield Target(table, key, self._tables.row(table, key), put)

    def _word(self, target: Target) -> str:
        if target.table == self._tables.coordination:
            kind: str = target.key["coordination_key"]["S"].split("#", 1)[0]
            return {"tenant": "counter"}.get(kind, kind)
        if target.key.get("tenant", {}).get("S", "").startswith(OWNER_PREFIX):
            return "usage"
        return self._words.get(target.table, target.table)

    def _units(self, done: _Open) -> Units:
        match done.call.operation:
            case "GetItem":
                consistent = done.params.get("ConsistentRead", False)
                return Units(read=read_units(done.targets[0].old, consistent=consistent))
            case "PutItem" | "UpdateItem" | "DeleteItem":
                return self._writes(done, 1)
            case "TransactWriteItems":
                return self._writes(done, TRANSACTION_FACTOR)
        return done.call.reported  # there is no rule for it here yet

    def _writes(self, done: _Open, factor: int) -> Units:
        """Of each row the larger of old and new; a refused write costs what it could at most.

        AWS documents that a refused condition costs the write of the existing item, 1 at least,
        and that a cancelled transaction costs, but not how much: there the row to be put counts.
        """
        units = 0.0
        for target in done.targets:
            if done.call.refused:
                new = target.put if factor > 1 else None
                units += factor * max(write_units(target.old), write_units(new))
                continue
            new = self._tables.row(target.table, target.key)
            units += factor * max(write_units(target.old), write_units(new))
            for index in self._tables.indexes(target.table):
                units += index.write_units(target.old, new)
        return Units(write=units)


def _reported(operation: str, parsed: Mapping[str, Any]) -> Units:
    """The consumed capacity in an answer; refusals come without it."""
    consumed = parsed.get("ConsumedCapacity", [])
    tables = consumed if isinstance(consumed, list) else [consumed]
    total = sum(table["CapacityUnits"] for table in tables)
    reads = operation in {"GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan"}
    return Units(read=total) if reads else Units(write=total)


# ------------------------------------------------------------------------------------ gateway


@dataclass(frozen=True, slots=True)
class Context:
    """What the handlers read of Lambda's context."""

    function_name: str
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:000000000000:function:bench"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        """Milliseconds; RunJobTimeout's default."""
        return 120_000


@dataclass(frozen=True, slots=True)
class _Interrupted:
    """A vendor that lets something happen before it answers (port VendorClient)."""

    vendors: VendorClient
    happens: Callable[[], None]

    def prepare(self, vendor: Vendor) -> None:
        """See VendorClient."""
        self.vendors.prepare(vendor)

    def call(self, call: VendorCall) -> VendorAnswer:
        """See VendorClient."""
        self.happens()
        return self.vendors.call(call)


class _State:
    """The process's copy of the service's state, as old as a path wants it (port StateStore)."""

    def __init__(self, state: StateStore) -> None:
        """Read on the first look."""
        self._state = state
        self._copy: ServiceState | None = None

    def read(self) -> ServiceState:
        """See StateStore."""
        if self._copy is None:
            self._copy = self._state.read()
        return self._copy

    def grow_old(self, state: StateStore) -> None:
        """The next look reads the row, with an adapter that knows nothing yet."""
        self._state, self._copy = state, None

    def invalidate(self, subject: str, *, now_ms: int) -> int:
        """See StateStore."""
        return self._state.invalidate(subject, now_ms=now_ms)

    def set_degraded(self, since_ms: int | None) -> bool:
        """See StateStore."""
        return self._state.set_degraded(since_ms)

    def tell_degraded(self, since_ms: int, from_ms: int, until_ms: int) -> bool:
        """See StateStore."""
        return self._state.tell_degraded(since_ms, from_ms, until_ms)

    def pause_tenant(self, tenant: str) -> bool:
        """See StateStore."""
        return self._state.pause_tenant(tenant)

    def resume_tenant(self, tenant: str) -> bool:
        """See StateStore."""
        return self._state.resume_tenant(tenant)

    def pause_lane(self, lane: str) -> bool:
        """See StateStore."""
        return self._state.pause_lane(lane)

    def resume_lane(self, lane: str) -> bool:
        """See StateStore."""
        return self._state.resume_lane(lane)


class _KnownLatencies:
    """Samples that were read a moment ago, and calls that are none (port Latencies)."""

    def median_ms(self, key: str, *, now_ms: int, least: int = LEAST_SAMPLES) -> int | None:
        """See Latencies."""

    def add(self, key: str, latency_ms: int, *, now_ms: int, surely: bool = False) -> None:
        """See Latencies."""


class _Picture:
    """The process's copy of the picture of the backlog, as old as a path wants it (Backlogs)."""

    def __init__(self, backlogs: Backlogs) -> None:
        """Read on the first look."""
        self._backlogs = backlogs
        self._copy: Backlog | None = None

    def read(self) -> Backlog:
        """See Backlogs."""
        if self._copy is None:
            self._copy = self._backlogs.read()
        return self._copy

    def grow_old(self, backlogs: Backlogs) -> None:
        """The next look reads the row, with an adapter that knows nothing yet."""
        self._backlogs, self._copy = backlogs, None

    def write(self, backlog: Backlog) -> None:
        """See Backlogs."""
        self._backlogs.write(backlog)


Record = dict[str, Any]
"""One record of an SQS event."""


class _Given:
    """The picture of the backlog that a path wants (port Backlogs)."""

    def __init__(self) -> None:
        self._picture = Backlog()

    def read(self) -> Backlog:
        return self._picture

    def write(self, backlog: Backlog) -> None:
        self._picture = backlog


def _counted_table() -> Table:
    client: Any = bootstrap.session().create_client("dynamodb")
    return Table(client)


class Gateway:
    """The three functions in this process."""

    def __init__(
        self,
        local: LocalStack,
        catalogue: catalogues.Catalogue,
        simulator: Simulator,
        tables: Tables,
        recorder: Recorder,
    ) -> None:
        """`catalogue` takes the place of the one that is deployed."""
        self.local = local
        self._simulator = simulator
        self._sqs = emulator.client("sqs", local.endpoint_url)
        self._inbox: defaultdict[str, list[Record]] = defaultdict(list)
        self._serial = 0
        self.tables = tables
        self.recorder = recorder
        self.counting = recorder.counting
        self._authorize, self._api, self._run = map(function, ("authorize", "api", "run_job"))
        self._authorize_deps = bootstrap.authorize_deps()
        deps = bootstrap.api_deps().now()
        self._api_state = _State(deps.submitter.state)
        self._picture = _Picture(deps.submitter.backlogs)
        submitter = deps.submitter._replace(
            catalogue=catalogue, state=self._api_state, backlogs=self._picture
        )
        self._api_deps = deps._replace(submitter=submitter)
        run_deps = bootstrap.run_deps()
        self._run_state = _State(run_deps.worker().state)
        # Without jitter a retry is due at once.
        self.picture = _Given()
        # One call in ten is a sample, and samples are read every 30 s: told apart from the count.
        worker = run_deps.worker()._replace(
            catalogue=catalogue,
            rand=lambda: 0.0,
            latencies=_KnownLatencies(),
            state=self._run_state,
            backlogs=self.picture,
        )
        self._worker = worker
        self._run_deps = run_deps._replace(worker=lambda: self._worker)

    def prompt(self, chars: int = SMALL_PROMPT_CHARS) -> str:
        """A new prompt that hardly compresses, the same in every run of this program."""
        self._serial += 1
        return f"#{self._serial}# ".ljust(12) + hard_text(chars - 12, seed=self._serial)

    def fault(self, prompt: str, **fault: Any) -> None:
        """What the vendor does with this prompt; `times`: only so often."""
        times = {"times": fault.pop("times")} if "times" in fault else {}
        body = {"fault": fault, "match": prompt[:12], **times}
        self._simulator.control("POST /_control/faults", body)

    def forget_state(self) -> None:
        """The next submit and run read the state, as each process does after 5 s."""
        coordination = self.local.outputs["CoordinationTableName"]
        for state in (self._api_state, self._run_state):
            table = _counted_table()
            state.grow_old(DynamoDBState(table, coordination, clock=bootstrap.SystemClock()))

    def forget_picture(self) -> None:
        """The next look at a place reads it, as each process does after 2 s."""
        coordination = self.local.outputs["CoordinationTableName"]
        table, clock = _counted_table(), bootstrap.SystemClock()
        self._picture.grow_old(DynamoDBBacklogs(table, coordination, clock=clock))

    def authorize(self) -> None:
        """What API Gateway asks on a miss of its policy cache."""
        arn = "arn:aws:execute-api:us-east-1:000000000000:bench/v1/GET/jobs"
        event = {
            "type": "REQUEST",
            "methodArn": arn,
            "headers": {"Authorization": f"Bearer {self.local.partners['acme']}"},
        }
        answer = self._authorize.handle(event, Context("authorize"), self._authorize_deps)
        effect = answer["policyDocument"]["Statement"][0]["Effect"]
        expect("the policy", effect, "Allow")

    def submit(
        self,
        prompt: str,
        *,
        tenant: str = "acme",
        model: str = "own",
        priority: str = "interactive",
        status: int = 202,
        deduplicated: bool = False,
    ) -> str:
        """The id in the answer, "" in a refusal; it must have this status and mark."""
        body = {"model": model, "input": prompt, "priority": priority}
        answer = self.ask("POST", "/jobs", tenant, json.dumps(body))
        expect("the answer to a submit", answer[0], status)
        expect("deduplicated", answer[1].get("deduplicated", False), deduplicated)
        return str(answer[1].get("id", ""))

    def fetch(self, job_id: str, *, status: str) -> None:
        """Gets a job, which must have this status."""
        http_status, body = self.ask("GET", f"/jobs/{job_id}", "acme")
        expect("the answer to a fetch", http_status, 200)
        expect("the job's status", body["status"], status)

    def receive(self, job_id: str, lane: str = "interactive") -> Record:
        """The job's message, as Lambda's poller would hand it over."""
        names = {"interactive": "InteractiveQueueUrl", "batch": "BatchQueueUrl"}
        url = self.local.outputs[names[lane]]
        for _ in range(20):
            if self._inbox[job_id]:
                return self._inbox[job_id].pop(0)
            answer = self._sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1,
                MessageSystemAttributeNames=["All"],
            )
            for message in answer.get("Messages", []):
                record = record_of(message, url)
                self._inbox[json.loads(record["body"])["job_id"]].append(record)
        raise report.NotMeasuredError(f"no message of {job_id} came")

    def empty_lanes(self) -> None:
        """Messages that nobody will ask for are deleted."""
        for name in ("InteractiveQueueUrl", "BatchQueueUrl"):
            self._sqs.purge_queue(QueueUrl=self.local.outputs[name])
        self._inbox.clear()

    def deliver(
        self,
        record: Record,
        *,
        acknowledged: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Runs the worker on a message; `meanwhile` happens while the vendor is called."""
        deps = self._run_deps
        if meanwhile is not None:
            vendors = _Interrupted(self._worker.vendors, meanwhile)
            deps = deps._replace(worker=lambda: self._worker._replace(vendors=vendors))
        answer = self._run.handle({"Records": [record]}, Context("run_job"), deps)
        expect("acknowledged", not answer["batchItemFailures"], acknowledged)

    def run(self, job_id: str) -> None:
        """Receives and runs a job whose message is acknowledged; the message is deleted."""
        record = self.receive(job_id)
        self.deliver(record)
        self._sqs.delete_message(
            QueueUrl=self.local.outputs["InteractiveQueueUrl"],
            ReceiptHandle=record["receiptHandle"],
        )

    def ask(
        self,
        method: str,
        path: str,
        tenant: str,
        body: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """The HTTP status and the body of the answer to any request of a partner."""
        event = api_event(method, path, tenant, body) | {"queryStringParameters": query}
        answer = self._api.handle(event, Context("api"), self._api_deps)
        return answer["statusCode"], json.loads(answer["body"])


def api_event(method: str, path: str, tenant: str, body: str | None) -> dict[str, Any]:
    """What API Gateway hands over."""
    return {
        "httpMethod": method,
        "path": path,
        "resource": "/{proxy+}",
        "headers": {"Content-Type": "application/json"},
        "queryStringParameters": None,
        "body": body,
        "isBase64Encoded": False,
        "requestContext": {
            "requestId": str(uuid.uuid4()),
            "stage": "v1",
            "path": f"/v1{path}",
            "authorizer": {
                "tenant": tenant,
                "scopes": "submit read cancel",
                "key_id": "key_0123456789abcdef",
            },
        },
    }


def hard_text(chars: int, *, seed: int) -> str:
    """Random printable ASCII: about 6.6 bits of information a character."""
    letters = string.ascii_letters + string.digits + string.punctuation + " "
    return "".join(random.Random(seed).choices(letters, k=chars))  # noqa: S311 - repeatable on purpose


def function(name: str) -> ModuleType:
    """The module of functions/<name>/app.py: all of them are called `app`."""
    path = report.ROOT / "functions" / name / "app.py"
    spec = importlib.util.spec_from_file_location(f"functions_{name}", path)
    if spec is None or spec.loader is None:
        raise report.NotMeasuredError(f"{path} can't be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record_of(message: Mapping[str, Any], queue_url: str) -> Record:
    """A received message as Lambda hands it over."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:{queue_url.rsplit('/', 1)[-1]}",
        "awsRegion": "us-east-1",
    }


def expect(what: str, found: object, expected: object) -> None:
    """Raises NotMeasuredError when it went another way."""
    if found != expected:
        raise report.NotMeasuredError(f"{what}: {found!r}, not {expected!r}")


# ------------------------------------------------------------------------------------ paths


@dataclass(frozen=True, slots=True)
class Row:
    """What was found about one path."""

    path: str
    budget: int | None
    """Calls at most; None: the budget doesn't speak of this path."""
    calls: tuple[Call, ...] = ()
    fault: str = ""
    """Why it was not measured."""

    @property
    def count(self) -> int:
        """HTTP requests to AWS."""
        return sum(call.requests for call in self.calls)

    @property
    def within(self) -> bool | None:
        """Whether the budget is kept; None when there is none."""
        return None if self.budget is None or self.fault else self.count <= self.budget

    @property
    def units(self) -> Units:
        """By AWS's rules."""
        return sum((call.units for call in self.calls), Units())

    @property
    def refused(self) -> Units:
        """The part of the units that refused writes cost."""
        return sum((call.units for call in self.calls if call.refused), Units())

    @property
    def reported(self) -> Units:
        """By the emulator."""
        return sum((call.reported for call in self.calls), Units())


def authorized(gateway: Gateway) -> list[Call]:
    """The authorizer lets a key in."""
    with gateway.counting() as calls:
        gateway.authorize()
    return calls


def fresh_submit(gateway: Gateway, chars: int = SMALL_PROMPT_CHARS) -> list[Call]:
    """Work that nobody asked for yet."""
    prompt = gateway.prompt(chars)
    with gateway.counting() as calls:
        gateway.submit(prompt)
    return calls


def hit(gateway: Gateway, *, big: bool = False) -> list[Call]:
    """A submit whose result is in the cache."""
    prompt, _ = _completed(gateway, big=big)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def hit_after_a_while(gateway: Gateway) -> list[Call]:
    """As `hit`, and the process's copy of the epochs is older than 5 s."""
    prompt, _ = _completed(gateway, big=False)
    gateway.forget_state()
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def stale_hit(gateway: Gateway, *, refresh_queued: bool) -> list[Call]:
    """A submit whose result is past its soft expiry."""
    prompt, _ = _completed(gateway, big=False)
    make_stale(gateway, prompt)
    if refresh_queued:
        gateway.submit(prompt, status=200)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def make_stale(gateway: Gateway, prompt: str) -> str:
    """The cache key of the prompt's entry, which is past its soft expiry now."""
    cache_key = gateway.submit(prompt, status=200).removeprefix(ids.HIT_PREFIX)
    gateway.tables.make_stale(cache_key)
    return cache_key


def run_refresh(gateway: Gateway) -> list[Call]:
    """A refresh job's run succeeds."""
    prompt, _ = _completed(gateway, big=False)
    cache_key = make_stale(gateway, prompt)
    gateway.submit(prompt, status=200)
    record = gateway.receive(gateway.tables.refresh_of(cache_key), "batch")
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def duplicate(gateway: Gateway) -> list[Call]:
    """A submit of work whose job is open."""
    prompt = gateway.prompt()
    gateway.submit(prompt)
    with gateway.counting() as calls:
        gateway.submit(prompt, deduplicated=True)
    return calls


def hurrying_duplicate(gateway: Gateway) -> list[Call]:
    """An interactive submit of work whose job waits in the batch lane."""
    prompt = gateway.prompt()
    gateway.submit(prompt, priority="batch")
    with gateway.counting() as calls:
        gateway.submit(prompt, deduplicated=True)
    return calls


def duplicate_of_ended(gateway: Gateway) -> list[Call]:
    """A submit of work whose claim outlived its job, as after an unsettled finish."""
    prompt = gateway.prompt()
    gateway.fault(prompt, finish="length")  # so that it isn't cached
    job_id = gateway.submit(prompt)
    claims = gateway.tables.claims()
    gateway.run(job_id)
    gateway.tables.put_back(claims)
    with gateway.counting() as calls:
        gateway.submit(prompt)
    return calls


def capped_submit(gateway: Gateway) -> list[Call]:
    """Fresh work of a tenant that has as many open jobs as it may have."""
    caps = shard_caps(IN_FLIGHT)
    gateway.tables.fill_counters("full", len(caps), max(caps))
    prompt = gateway.prompt()
    with gateway.counting() as calls:
        gateway.submit(prompt, tenant="full", status=429)
    return calls


def fetch_open(gateway: Gateway) -> list[Call]:
    """A partner polls."""
    job_id = gateway.submit(gateway.prompt())
    with gateway.counting() as calls:
        gateway.fetch(job_id, status="queued")
    return calls


def fetch_open_after_a_while(gateway: Gateway) -> list[Call]:
    """As `fetch_open`, and the process's copy of the picture of the backlog is older than 2 s."""
    job_id = gateway.submit(gateway.prompt())
    gateway.forget_picture()
    with gateway.counting() as calls:
        gateway.fetch(job_id, status="queued")
    return calls


def fetch_completed(gateway: Gateway, *, big: bool = False) -> list[Call]:
    """A partner gets the result."""
    _, job_id = _completed(gateway, big=big)
    with gateway.counting() as calls:
        gateway.fetch(job_id, status="completed")
    return calls


def fetch_hit(gateway: Gateway, *, big: bool = False) -> list[Call]:
    """A partner gets a hit again by its id."""
    prompt, _ = _completed(gateway, big=big)
    hit_id = gateway.submit(prompt, status=200)
    with gateway.counting() as calls:
        gateway.fetch(hit_id, status="completed")
    return calls


def run(gateway: Gateway, *, big: bool = False, copy_is_old: bool = False) -> list[Call]:
    """The first attempt at new work succeeds."""
    prompt = gateway.prompt()
    _answer(gateway, prompt, big=big)
    record = gateway.receive(gateway.submit(prompt))
    if copy_is_old:
        gateway.forget_state()
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def run_contended(gateway: Gateway) -> list[Call]:
    """The first attempt succeeds, in a lane that two tenants want."""
    record = gateway.receive(gateway.submit(gateway.prompt()))
    groups = (Group("interactive", "own", tenant, waiting=100) for tenant in ("acme", "globex"))
    now_ms = bootstrap.SystemClock().now_ms()
    gateway.picture.write(Backlog(now_ms, tuple(groups), workers={"interactive": 8, "batch": 2}))
    with gateway.counting() as calls:
        gateway.deliver(record)
    gateway.picture.write(Backlog())
    return calls


def run_known_key(gateway: Gateway) -> list[Call]:
    """The first attempt succeeds at work that was done before, with nothing in the cache."""
    prompt = gateway.prompt()
    gateway.fault(prompt, finish="length")  # so that it isn't cached
    gateway.run(gateway.submit(prompt))
    record = gateway.receive(gateway.submit(prompt))
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def run_from_cache(gateway: Gateway) -> list[Call]:
    """The result came while the job waited: two tenants asked for the same shared work."""
    prompt = gateway.prompt()
    first = gateway.submit(prompt, model="shared")
    second = gateway.submit(prompt, model="shared", tenant="globex")
    gateway.run(first)
    record = gateway.receive(second)
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def run_meets_lease(gateway: Gateway) -> list[Call]:
    """Another job's worker is at the same shared work."""
    prompt = gateway.prompt()
    first = gateway.receive(gateway.submit(prompt, model="shared"))
    second = gateway.receive(gateway.submit(prompt, model="shared", tenant="globex"))
    return _deliver_meanwhile(gateway, first, second, acknowledged=False)


def run_copy_of_running(gateway: Gateway) -> list[Call]:
    """A copy of a message comes while a worker is at the job."""
    record = gateway.receive(gateway.submit(gateway.prompt()))
    return _deliver_meanwhile(gateway, record, record, acknowledged=True)


def _deliver_meanwhile(
    gateway: Gateway, first: Record, second: Record, *, acknowledged: bool
) -> list[Call]:
    """Counts the delivery of `second` while the vendor is called for `first`."""
    found: list[Call] = []

    def meanwhile() -> None:
        with gateway.counting() as calls:
            gateway.deliver(second, acknowledged=acknowledged)
        found.extend(calls)

    gateway.deliver(first, meanwhile=meanwhile)
    return found


def run_copy_of_completed(gateway: Gateway) -> list[Call]:
    """A copy of a message comes after the job's end."""
    record = gateway.receive(gateway.submit(gateway.prompt()))
    gateway.deliver(record)
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def run_retryable(gateway: Gateway) -> list[Call]:
    """The vendor answers 503."""
    prompt = gateway.prompt()
    gateway.fault(prompt, status=503, times=1)
    record = gateway.receive(gateway.submit(prompt))
    with gateway.counting() as calls:
        gateway.deliver(record, acknowledged=False)
    return calls


def run_second_attempt(gateway: Gateway) -> list[Call]:
    """The attempt after a 503 succeeds."""
    prompt = gateway.prompt()
    gateway.fault(prompt, status=503, times=1)
    job_id = gateway.submit(prompt)
    gateway.deliver(gateway.receive(job_id), acknowledged=False)
    record = gateway.receive(job_id)
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def run_failing(gateway: Gateway, receive: int = 1) -> list[Call]:
    """The vendor answers 400 on receive 1; the message goes on to the dead-letter queue."""
    prompt = gateway.prompt()
    gateway.fault(prompt, status=400)
    job_id = gateway.submit(prompt)
    for _ in range(receive - 1):
        gateway.deliver(gateway.receive(job_id), acknowledged=False)
    record = gateway.receive(job_id)
    with gateway.counting() as calls:
        gateway.deliver(record, acknowledged=False)
    return calls


def _completed(gateway: Gateway, *, big: bool) -> tuple[str, str]:
    """A prompt whose result is cached, and its job."""
    prompt = gateway.prompt()
    _answer(gateway, prompt, big=big)
    job_id = gateway.submit(prompt)
    gateway.run(job_id)
    return prompt, job_id


def _answer(gateway: Gateway, prompt: str, *, big: bool) -> None:
    if big:
        gateway.fault(prompt, text=hard_text(BIG_RESULT_CHARS, seed=0))


Drive = Callable[[Gateway], list[Call]]

PATHS: tuple[tuple[str, int | None, Drive], ...] = (
    ("authorize, policy not cached", 1, authorized),
    ("submit, cache hit, fresh", 1, hit),
    ("submit, cache hit, big result", 2, lambda gateway: hit(gateway, big=True)),
    ("submit, cache hit, epochs older than 5 s", 2, hit_after_a_while),
    (
        "submit, stale hit, refresh queued",
        1,
        lambda gateway: stale_hit(gateway, refresh_queued=True),
    ),
    (
        "submit, stale hit that queues a refresh",
        3,
        lambda gateway: stale_hit(gateway, refresh_queued=False),
    ),
    ("submit, fresh", 3, fresh_submit),
    ("submit, duplicate of an open job", 3, duplicate),
    ("submit, duplicate that raises the lane", 4, hurrying_duplicate),
    ("submit, claim of an ended job", None, duplicate_of_ended),
    ("submit, refused by the in-flight cap", None, capped_submit),
    ("get, open job", 1, fetch_open),
    ("get, open job, picture older than 2 s", 2, fetch_open_after_a_while),
    ("get, completed job", 1, fetch_completed),
    ("get, completed job, big result", 2, lambda gateway: fetch_completed(gateway, big=True)),
    ("get, hit", 1, fetch_hit),
    ("get, hit, big result", 2, lambda gateway: fetch_hit(gateway, big=True)),
    ("run, first attempt succeeds", 5, run),
    ("run, first attempt succeeds, big result", 6, lambda gateway: run(gateway, big=True)),
    (
        "run, first attempt succeeds, state older than 5 s",
        None,
        lambda gateway: run(gateway, copy_is_old=True),
    ),
    ("run, first attempt succeeds, key leased before", 5, run_known_key),
    ("run, contended lane", 7, run_contended),
    ("run, refresh", 5, run_refresh),
    ("run, completes from the cache", None, run_from_cache),
    ("run, meets another job's lease", None, run_meets_lease),
    ("run, copy while the job is processing", None, run_copy_of_running),
    ("run, copy after the job's end", None, run_copy_of_completed),
    ("run, retryable error", None, run_retryable),
    ("run, second attempt succeeds", None, run_second_attempt),
    ("run, terminal failure", None, run_failing),
    ("run, failed job's message, receive 2", None, lambda gateway: run_failing(gateway, 2)),
    ("run, failed job's message, receive 10", None, lambda gateway: run_failing(gateway, 10)),
)
"""Name, calls at most by the contract, and how it is measured."""

LIFE = ("submit, fresh", "run, first attempt succeeds", "get, completed job")
"""The parts of a small job's life, added up in one more row."""


def measure(path: str, budget: int | None, drive: Drive, gateway: Gateway) -> Row:
    """One path; a path that goes another way than expected is told, not hidden."""
    try:
        return Row(path, budget, tuple(drive(gateway)))
    except report.NotMeasuredError as fault:
        return Row(path, budget, fault=str(fault))


def measure_size(chars: int, gateway: Gateway) -> dict[str, Row]:
    """The life of a job with a prompt of so many characters, by its parts."""
    prompt = gateway.prompt(chars)
    with gateway.counting() as submitted:
        job_id = gateway.submit(prompt)
    with gateway.counting() as polled:
        gateway.fetch(job_id, status="queued")
    record = gateway.receive(job_id)
    with gateway.counting() as ran:
        gateway.deliver(record)
    return {
        "submit": Row("submit", 3, tuple(submitted)),
        "get": Row("get", 1, tuple(polled)),
        "run": Row("run", 5, tuple(ran)),
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured."""

    rows: list[Row]
    life: Row
    """Of a small job."""
    cold: dict[str, Counter[str]]
    """By function: calls that only its first event makes."""
    sizes: dict[int, dict[str, Row]]
    """By the characters of the prompt."""


def measure_all(gateway: Gateway) -> Findings:
    """Cold first, then each path warm, then the sizes."""
    firsts: dict[str, Drive] = {"authorize": authorized, "api": fresh_submit, "run_job": run}
    first = {name: _operations(drive(gateway)) for name, drive in firsts.items()}
    cold = {name: first[name] - _operations(drive(gateway)) for name, drive in firsts.items()}
    rows = []
    for path, budget, drive in PATHS:
        print(f"  {path}", file=sys.stderr)
        rows.append(measure(path, budget, drive, gateway))
    parts = [row for row in rows if row.path in LIFE]
    life = Row(
        "a small job: submit, run, get",
        sum(row.budget or 0 for row in parts),
        tuple(call for row in parts for call in row.calls),
    )
    sizes = {}
    for chars in PROMPT_CHARS:
        print(f"  prompt of {chars:,} characters", file=sys.stderr)
        sizes[chars] = measure_size(chars, gateway)
    return Findings(rows, life, cold, sizes)


def _operations(calls: Iterable[Call]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for call in calls:
        counted[f"{call.service}:{call.operation}"] += call.requests
    return counted


# ------------------------------------------------------------------------------------ stack


@contextmanager
def gateway_on_local_stack(
    catalogue: str = CATALOGUE,
    *,
    dynamodb_url: str | None = None,
    make_tables: Callable[[Any, Mapping[str, str]], None] = lambda _, __: None,
) -> Iterator[Gateway]:
    """A whole stack of its own, stopped at the end whatever happens.

    `dynamodb_url`: another DynamoDB than the emulator's; `make_tables` is called with its client
    and the stack's outputs.
    """
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sluiceway-bench-")))
        simulator = ends.enter_context(Simulator())
        text = catalogue.format(url=simulator.url, in_flight=IN_FLIGHT)
        (folder / "catalogue.toml").write_text(text)
        ends.callback(_stop, folder)
        with _undisturbed():
            local = stack.up(
                deploy.Source(report.ROOT),
                port=emulator.free_port(),
                vendor_url=simulator.url,
                catalogue=folder / "catalogue.toml",
                say=lambda line: print(f"  {line}", file=sys.stderr),
                folder=folder,
            )
        _pause_deployed_workers(local)
        _use(local)
        if dynamodb_url is not None:
            os.environ["AWS_ENDPOINT_URL_DYNAMODB"] = dynamodb_url
        outputs = local.outputs
        plain = boto3.Session().client("dynamodb")
        make_tables(plain, outputs)
        tables = Tables(plain, outputs["CoordinationTableName"], outputs["CacheTableName"])
        words = {"JobsTableName": "job", "CacheTableName": "cache", "PartnersTableName": "key"}
        recorder = Recorder(tables, {outputs[name]: word for name, word in words.items()})
        bootstrap.session.cache_clear()
        # The functions' session is the command line's, too: what it asks is counted as well.
        boto3.DEFAULT_SESSION = boto3.Session(botocore_session=bootstrap.session())
        recorder.attach(boto3.DEFAULT_SESSION)
        yield Gateway(local, catalogues.parse(text), simulator, tables, recorder)


def _stop(folder: Path) -> None:
    """Stops what was started, by process id."""
    with _undisturbed():
        stack.down(folder)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps Ctrl-C and SIGTERM for afterwards: a start or stop cut in half leaves processes."""
    came: list[int] = []
    before = {
        kind: signal.signal(kind, lambda number, _: came.append(number))
        for kind in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def _pause_deployed_workers(local: LocalStack) -> None:
    """The deployed worker and deliverer would take the messages of those in this process."""
    client = emulator.client("lambda", local.endpoint_url)
    for output in ("RunJobFunctionName", "DeliverWebhookFunctionName"):
        found = client.list_event_source_mappings(FunctionName=local.outputs[output])
        for mapping in found["EventSourceMappings"]:
            client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)


def _use(local: LocalStack) -> None:
    """This process's environment becomes that of the deployed functions together."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    functions = emulator.client("lambda", local.endpoint_url).list_functions()["Functions"]
    for function in functions:
        variables = function.get("Environment", {}).get("Variables", {})
        os.environ.update({name: str(value) for name, value in variables.items()})
    environment = processes.clean_environment(
        AWS_ENDPOINT_URL=local.endpoint_url,
        POWERTOOLS_LOG_LEVEL="CRITICAL",
        POWERTOOLS_METRICS_DISABLED="true",
        # It is stored in the job row, so it counts in the units; unsampled, nothing is traced.
        _X_AMZN_TRACE_ID=(
            "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0"
        ),
    )
    os.environ.update(environment)


# ------------------------------------------------------------------------------------ report


def number(value: float) -> str:
    """Units without a needless fraction."""
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"  # noqa: PLR2004 - %g's own limit


def pair(units: Units) -> str:
    """Read and write units."""
    return f"{number(units.read)} / {number(units.write)}"


def path_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines."""
    head = [
        *("path", "calls", "budget", "within", "RRU", "WRU", "refused WRU"),
        *("emulator RRU / WRU", "by operation"),
    ]
    lines = []
    for row in rows:
        within = {True: "yes", False: "NO", None: "-"}[row.within]
        if row.fault:
            lines.append([row.path, "?", str(row.budget or "-"), "?", *[""] * 4, row.fault])
            continue
        lines.append(
            [
                row.path,
                str(row.count),
                str(row.budget or "-"),
                within,
                number(row.units.read),
                number(row.units.write),
                number(row.refused.write),
                pair(row.reported),
                by_operation(row.calls),
            ]
        )
    return head, lines


def by_operation(calls: Iterable[Call]) -> str:
    """`2 GetItem, 1 SendMessage`."""
    counted = _operations(calls)
    return ", ".join(f"{many} {name.split(':')[1]}" for name, many in counted.items())


def in_order(row: Row) -> str:
    """The calls one after the other, with the rows that they touch."""
    told = []
    for call, same in groupby(call.told for call in row.calls):
        many = len(list(same))
        told.append(call if many == 1 else f"{many} times {call}")
    return row.fault or "; ".join(told)


def size_table(sizes: Mapping[int, Mapping[str, Row]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines."""
    head = [
        *("prompt, characters", "input in", "submit calls", "submit WRU", "get open RRU"),
        *("run calls", "run RRU", "run WRU", "all RRU / WRU", "emulator RRU / WRU"),
    ]
    lines = []
    for chars, parts in sizes.items():
        submit, get, ran = parts["submit"], parts["get"], parts["run"]
        stored = any(call.operation == "PutObject" for call in submit.calls)
        lines.append(
            [
                f"{chars:,}",
                "S3" if stored else "row",
                str(submit.count),
                number(submit.units.write),
                number(get.units.read),
                str(ran.count),
                number(ran.units.read),
                number(ran.units.write),
                pair(submit.units + get.units + ran.units),
                pair(submit.reported + get.reported + ran.reported),
            ]
        )
    return head, lines


def cold_line(cold: Mapping[str, Counter[str]]) -> str:
    """What the first event of a process costs more."""
    extra = [
        f"{name}: {', '.join(f'{many} {call}' for call, many in calls.items())}"
        for name, calls in cold.items()
        if calls
    ]
    return "; ".join(extra) or "none"


def parts(found: Findings) -> list[report.Part]:
    """For people."""
    return [
        report.Table("", *path_table([*found.rows, found.life])),
        f"More on the first event of a process: {cold_line(found.cold)}.",
        report.Table(
            "The calls in order",
            ["path", "calls"],
            [[row.path, in_order(row)] for row in found.rows],
        ),
        report.Table("How a long prompt grows them", *size_table(found.sizes)),
    ]


def figures(found: Findings) -> dict[str, Any]:
    """For programs."""
    return {
        "paths": [_row_json(row) for row in [*found.rows, found.life]],
        "cold": {name: dict(calls) for name, calls in found.cold.items()},
        "prompt_chars": {
            str(chars): {name: _row_json(row) for name, row in parts.items()}
            for chars, parts in found.sizes.items()
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "path": row.path,
        "calls": row.count,
        "budget": row.budget,
        "within": row.within,
        "by_operation": dict(_operations(row.calls)),
        "in_order": [call.told for call in row.calls],
        "sdk_retries": row.count - len(row.calls),
        "rru": row.units.read,
        "wru": row.units.write,
        "wru_refused": row.refused.write,
        "emulator_rru": row.reported.read,
        "emulator_wru": row.reported.write,
        "not_measured": row.fault or None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every path was measured, whatever the budget says of it."""
    given = report.options(__doc__, arguments)
    with gateway_on_local_stack() as gateway:
        found = measure_all(gateway)
    report.tell(given, "aws_calls", figures=figures(found), parts=parts(found))
    return 1 if any(row.fault for row in found.rows) else 0


if __name__ == "__main__":
    report.run(main)
