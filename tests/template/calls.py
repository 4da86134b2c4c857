"""What the functions do to AWS, found by running the adapters as bootstrap wires them.

`record` runs every verb of every port against moto's AWS, whose tables, queues and bucket are made
from the template and called by their logical ids. `verbs_of` reads the code of a function for the
verbs that it uses. Together they tell what a function's role must allow, and no more.
"""

from __future__ import annotations

import ast
import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    BasePersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.validate import validate_parameters
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb_stream import event_of
from sluiceway.domain import job as transitions
from sluiceway.domain.address import target_of
from sluiceway.domain.backlog import Backlog
from sluiceway.domain.batch import Batch
from sluiceway.domain.catalogue import Model, Vendor
from sluiceway.domain.endpoint import CALLBACKS, NO_ENDPOINTS, rotated
from sluiceway.domain.errors import StoreBusyError, VendorError, WebhookError
from sluiceway.domain.gate import OPEN_AFTER_FAILURES, Limits, Room
from sluiceway.domain.notice import Notice
from sluiceway.domain.ticket import Ticket
from sluiceway.domain.webhook import Attempt, DeliveryStatus, deliveries
from sluiceway.ports import AuditRecord, DayBudget, LeaseHeld, Started, Submitted, VendorCall
from sluiceway.routes.request import ApiDeps
from sluiceway.routes.table import ROUTES
from sluiceway.usecases.deliver_webhook import Courier
from sluiceway.usecases.invalidate_cache import Invalidator
from sluiceway.usecases.manage_webhooks import Registrar
from sluiceway.usecases.run_job import Worker
from sluiceway.usecases.submit_job import Submitter
from sluiceway.usecases.sweep_jobs import Sweeper

from tests.fakes import examples
from tests.fakes.appconfig import FakeAppConfig
from tests.fakes.in_memory import NOW_MS, FakeClock
from tests.template.rendering import RESOURCES, ROOT, render, render_with
from tests.unit.logs import a_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Verb = tuple[str, str]
"""A port and one of its methods."""

Right = tuple[str, str]
"""A resource and an IAM action."""

Write = tuple[str, str, str]
"""A table, an IAM action and the partition key of the item that is written."""

Noted = TypeVar("Noted", Right, Write)

Names = frozenset[str]
"""The keyword arguments of a call: they decide what a verb does."""

PORTS = frozenset(
    {"bus", "cache", "due_jobs", "gates", "jobs", "keys", "latencies", "payloads", "queue"}
    | {"audit", "backlogs", "state", "vendors", "webhook_client", "webhook_secrets", "webhooks"}
    | {
        "configuration",
        "idempotency",
        "lists",
        "batches",
        "usage",
        "owed",
        "delivery_log",
        "endpoints",
    }
)
"""The names under which use cases and routes know the ports that reach AWS."""

MADE_LATE = frozenset({"idempotency"})
"""Those that a route makes at first use, which counts as their one verb."""

DEPS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "AuthorizeFunction": (bootstrap.authorize_deps, (bootstrap.AuthorizeDeps,)),
    "ApiFunction": (bootstrap.api_deps, (ApiDeps, Submitter, Invalidator, Registrar)),
    "RunJobFunction": (bootstrap.run_deps, (bootstrap.RunDeps, Worker)),
    "SweepJobsFunction": (bootstrap.sweep_deps, (bootstrap.SweepDeps, Sweeper)),
    "PublishEventsFunction": (bootstrap.publish_deps, (bootstrap.PublishDeps,)),
    "DeliverWebhookFunction": (bootstrap.deliver_deps, (bootstrap.DeliverDeps, Courier)),
    "InvalidateCacheFunction": (
        bootstrap.invalidate_deps,
        (bootstrap.InvalidateDeps, Invalidator),
    ),
    "CheckCatalogueFunction": (bootstrap.check_deps, (bootstrap.CheckDeps,)),
}
"""Of each function: its builder, and the classes whose fields are the ports it has."""

CONFIGURED = frozenset(
    name
    for name, of in render().of_type("AWS::Lambda::Function").items()
    if "CONFIGURATION" in of["Environment"]["Variables"]
)
"""The functions that read the catalogue or the flags, which bootstrap does for them."""

_CONFIGURATIONS = {
    name.lower(): "application/${Configuration}"
    f"/environment/${{{name}Environment}}/configuration/${{{name}Profile}}"
    for name in ("Catalogue", "Flags")
}

BACKENDS = ("dynamodb", "valkey")

NO_VALKEY = "valkey://127.0.0.1:1"
"""Nobody listens there: what is done without it is done with it, too."""

SECRETS = "sluiceway/vendors/"
LEASE_MS = 60_000

_LIBRARY = ROOT / "layers/core/sluiceway"
_ITEM_ACTIONS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem"}
_BUCKETS = {"payloadbucket": "PayloadBucket"}
"""A bucket's name has no capitals."""


@dataclass(slots=True)
class Calls:
    """What was recorded."""

    rights: dict[Verb, dict[Names, set[Right]]] = field(default_factory=dict)
    """By verb and by the keyword arguments that it was run with."""
    writes: dict[Verb, dict[Names, set[Write]]] = field(default_factory=dict)
    """By the same: the items."""
    operations: set[str] = field(default_factory=set)
    """The clients' methods that were called."""
    known: set[str] = field(default_factory=set)
    """All methods that the clients have."""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def items(self, table: str) -> list[dict[str, Any]]:
        """The items that a table has held, in DynamoDB's own form."""
        return self.rows[table]

    def rights_of(self, function: str) -> set[Right]:
        """What a function's code does."""
        return _asked_for(function, self.rights)

    def writes_of(self, function: str) -> set[Write]:
        """What items it writes."""
        return _asked_for(function, self.writes)

    def has_run(self, verb: Verb, names: Names) -> bool:
        """Whether a verb was run with each of these keyword arguments, and with no others."""
        runs = [run for run in self.rights.get(verb, {}) if run <= names]
        return bool(runs) and frozenset[str]().union(*runs) == names


def _asked_for(function: str, noted: dict[Verb, dict[Names, set[Noted]]]) -> set[Noted]:
    """What was noted of the calls that a function's code makes."""
    return {
        one
        for verb, asked in calls_of(function)
        for run, ones in noted[verb].items()
        if run <= asked
        for one in ones
    }


# ------------------------------------------------------------------------------------ the code


def verbs_of(function: str) -> set[Verb]:
    """The verbs that a function's handler and use cases call, on the ports that it has."""
    return {verb for verb, _ in calls_of(function)}


def calls_of(function: str) -> set[tuple[Verb, Names]]:
    """The same, with the keyword arguments of each call."""
    fields = {name for kind in DEPS[function][1] for name in kind._fields}
    app = ROOT / RESOURCES[function]["Properties"]["CodeUri"] / "app.py"
    configured = {(("configuration", function), Names())} if function in CONFIGURED else set()
    return configured | {
        ((port, verb), names)
        for path in _used_by(app)
        for (port, verb), names in _method_calls(path)
        if port in fields & PORTS
    }


def client_methods(known: set[str]) -> set[str]:
    """The methods of AWS's clients that the adapters name."""
    return {
        node.attr
        for path in (_LIBRARY / "adapters").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value).removesuffix("()").endswith("client")
        and node.attr in known
    }


def _used_by(path: Path) -> Iterator[Path]:
    """A module, and the routes and use cases that it imports, by the table of paths, too."""
    yield path
    if path.stem == "table":
        modules = {target for methods in ROUTES.values() for target in methods.values()}
        for module in {target.partition(".")[0] for target in modules}:
            yield from _used_by(path.with_name(f"{module}.py"))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            package, _, module = name.rpartition(".")
            found = _LIBRARY / package.removeprefix("sluiceway.") / f"{module}.py"
            if package in {"sluiceway.usecases", "sluiceway.routes"} and found.exists():
                yield from _used_by(found)


def _method_calls(path: Path) -> Iterator[tuple[Verb, Names]]:
    """`jobs.get(…)` and `worker.jobs.get(…)` as `("jobs", "get")`, and the names of arguments."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            verb = ast.unparse(node.func.value).rpartition(".")[2], node.func.attr
            if verb[1] in MADE_LATE:
                verb = verb[1], "make"
            yield verb, frozenset(keyword.arg for keyword in node.keywords if keyword.arg)


# ------------------------------------------------------------------------------------ the run


def record(backend: str) -> Calls:
    """Runs every verb, on all of its ways that make other calls."""
    calls = Calls()
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        session = boto3.Session()
        patch.setattr(bootstrap, "session", lambda: session._session)
        patch.setattr(bootstrap, "SystemClock", FakeClock)
        for name, value in make_resources(session, backend).items():
            patch.setenv(name, value)
        recorder = _Recorder(calls)
        session.events.register("provide-client-params", recorder.hear)
        FakeAppConfig(session, catalogue="[service]", flags="{}")
        _run_all_verbs(recorder, session)
    return calls


class _Recorder:
    """Notes each call to AWS under the verb that is being run."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._noted: tuple[set[Right], set[Write]] | None = None

    def port(self, name: str, port: Any) -> Any:
        """`port`, whose verbs are noted."""
        return _Told(name, port, self)

    def run(self, verb: Verb, names: Names, call: Callable[[], Any]) -> Any:
        """Makes one call of a verb."""
        self._noted = (
            self.calls.rights.setdefault(verb, {}).setdefault(names, set()),
            self.calls.writes.setdefault(verb, {}).setdefault(names, set()),
        )
        try:
            return call()
        finally:
            self._noted = None

    def hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """botocore says that a client was called."""
        validate_parameters(params, model.input_shape)  # the functions' own clients don't
        if self._noted is not None:
            self.calls.operations.add(xform_name(model.name))
            service = model.service_model.service_name
            rights, writes = self._noted
            rights.update(_rights(service, model.name, params))
            if service == "dynamodb":
                writes.update(_writes(model.name, params))


class _Told:
    def __init__(self, name: str, port: Any, recorder: _Recorder) -> None:
        self._name, self._port, self._recorder = name, port, recorder

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._port, verb)
        return lambda *args, **named: self._recorder.run(
            (self._name, verb), frozenset(named), lambda: method(*args, **named)
        )


def _rights(service: str, operation: str, params: dict[str, Any]) -> Iterator[Right]:
    """What a role must allow for a call."""
    match service, operation:
        case "dynamodb", _:
            yield from _rights_to_tables(operation, params)
        case "s3", _:
            yield f"{_BUCKETS[params['Bucket']]}/*", f"s3:{operation}"
        case "sqs", _:
            # A batch of a call has no action of its own.
            yield params["QueueUrl"].rsplit("/", 1)[1], f"sqs:{operation.removesuffix('Batch')}"
        case "secretsmanager", _:
            name = params["SecretId"]
            secret = f"secret:{SECRETS}*" if name.startswith(SECRETS) else name
            yield secret, f"secretsmanager:{operation}"
        case "appconfigdata", _:
            token = params.get("ConfigurationToken", "").partition("|")[0]
            profile = token or params["ConfigurationProfileIdentifier"]
            yield _CONFIGURATIONS[profile], f"appconfig:{operation}"
        case "events", "PutEvents":
            yield params["Entries"][0]["EventBusName"], f"events:{operation}"
        case _:
            raise NotImplementedError(service)


def _rights_to_tables(operation: str, params: dict[str, Any]) -> Iterator[Right]:
    match operation:
        case "TransactWriteItems":
            for item in params["TransactItems"]:
                for action, request in item.items():
                    name = _ITEM_ACTIONS.get(action, f"{action}Item")
                    yield request["TableName"], f"dynamodb:{name}"
        case "BatchGetItem":
            (table,) = params["RequestItems"]
            yield table, "dynamodb:BatchGetItem"
        case _:
            index = f"/index/{params['IndexName']}" if "IndexName" in params else ""
            yield f"{params['TableName']}{index}", f"dynamodb:{operation}"


def _writes(operation: str, params: dict[str, Any]) -> Iterator[Write]:
    """The items that a call to DynamoDB writes."""
    for request in params.get("TransactItems", [{operation.removesuffix("Item"): params}]):
        for action, of in request.items():
            if action in _ITEM_ACTIONS:
                table = of["TableName"]
                key = {**of.get("Key", {}), **of.get("Item", {})}[_partition_key(table)]["S"]
                yield table, f"dynamodb:{_ITEM_ACTIONS[action]}", key


def _partition_key(table: str) -> str:
    schema = render().properties(table)["KeySchema"]
    (name,) = (key["AttributeName"] for key in schema if key["KeyType"] == "HASH")
    return str(name)


def make_resources(session: boto3.Session, backend: str) -> dict[str, str]:
    """Makes the template's resources, and gives the environment of all functions."""
    stack = render_with(backend)
    dynamodb, sqs = session.client("dynamodb"), session.client("sqs")
    names: dict[str, str] = {}
    for logical_id, of in stack.of_type("AWS::DynamoDB::Table").items():
        keys = ("KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes", "BillingMode")
        dynamodb.create_table(TableName=logical_id, **{key: of[key] for key in keys if key in of})
        names[logical_id] = logical_id
    for logical_id in stack.of_type("AWS::SQS::Queue"):
        names[logical_id] = sqs.create_queue(QueueName=logical_id)["QueueUrl"]
    for name, logical_id in _BUCKETS.items():
        session.client("s3").create_bucket(Bucket=name)
        names[logical_id] = name
    secrets = session.client("secretsmanager")
    secrets.create_secret(Name=f"{SECRETS}vendor", SecretString="fake")
    for logical_id, of in stack.of_type("AWS::SecretsManager::Secret").items():
        length = of["GenerateSecretString"]["PasswordLength"]
        secrets.create_secret(Name=logical_id, SecretString="f" * length)
        names[logical_id] = logical_id
    for logical_id in stack.of_type("AWS::Events::EventBus"):
        session.client("events").create_event_bus(Name=logical_id)
        names[logical_id] = logical_id
    return {
        name: _known(value, names)
        for function in stack.of_type("AWS::Lambda::Function").values()
        for name, value in function["Environment"]["Variables"].items()
    }


def _known(value: Any, names: dict[str, str]) -> str:
    match value:
        case {"Ref": "Configuration"}:
            return "application"
        case {"Ref": str(logical_id)}:
            return names[logical_id]
        case {"Fn::Sub": str(text)} if "${ValkeyCache." in text:
            return NO_VALKEY
    return str(value)


def _run_all_verbs(recorder: _Recorder, session: boto3.Session) -> None:
    api, run, authorize, sweep, publish, deliver, invalidate = (
        _deps_of(f"{function}Function", recorder)
        for function in (
            *("Api", "RunJob", "Authorize", "SweepJobs"),
            *("PublishEvents", "DeliverWebhook", "InvalidateCache"),
        )
    )
    for service in ("appconfigdata", "dynamodb", "sqs", "s3", "secretsmanager", "events"):
        recorder.calls.known |= set(session.client(service).meta.method_to_api_mapping)

    first = _run_verbs_of_the_api(recorder, api.submitter)
    recorder.port("usage", api.usage).read(first.tenant, "2026-01-01", "2026-01-31")
    _run_verbs_of_many_jobs(recorder, api, first)
    _run_verbs_of_owed_answers(recorder, api, session)
    _run_verbs_of_webhooks(recorder, api.registrar())
    recorder.run(("idempotency", "make"), frozenset(), lambda: _use_idempotency(api.idempotency()))

    jobs = recorder.port("jobs", run.worker().jobs)
    started = _start(jobs, first)
    assert isinstance(_try_start(jobs, examples.a_job(3, cache_key=first.cache_key)), LeaseHeld)
    _keep(recorder.calls, session)  # with its lease and its claim, which the end closes
    jobs.apply(
        started.job,
        examples.completed(started.job),
        lease=started.lease,
        entry=examples.an_entry(started.job),
    )
    jobs.release(started.lease)
    second = _submit(jobs, examples.a_job(4))
    jobs.apply(second, examples.failed(second), unless_held_at_ms=NOW_MS)
    refresh = _refresh(10)
    jobs.queue_refresh(refresh, examples.an_entry(first))
    jobs.apply(refresh, examples.failed(refresh), unless_held_at_ms=NOW_MS)
    jobs.redrive(examples.failed(second), examples.redriven(examples.failed(second)))
    fifth = _submit(jobs, examples.a_job(5))
    working = _start(jobs, fifth)
    jobs.renew(working.job, working.lease, ends_at_ms=NOW_MS + 2 * LEASE_MS)
    jobs.renew(
        working.job,
        working.lease,
        ends_at_ms=NOW_MS + 2 * LEASE_MS,
        gate=("gate#vendor#model-1", Ticket(NOW_MS, 0), NOW_MS),
    )
    slot = Ticket(NOW_MS + 60_000, 0)
    parked = transitions.gated(working.job, not_before_ms=slot.slot_at_ms, slot=slot)
    jobs.apply(working.job, parked, lease=working.lease)
    _run_verbs_of_gates(recorder.port("gates", run.worker().gates))
    latencies = recorder.port("latencies", run.worker().latencies)
    latencies.median_ms("latency#vendor#model-1", now_ms=NOW_MS)
    latencies.median_ms("latency#vendor#model-1", now_ms=NOW_MS, least=1)
    latencies.add("latency#vendor#model-1", 300, now_ms=NOW_MS, surely=True)
    queue = recorder.port("queue", run.queue)
    for lane in ("interactive", "batch"):
        queue.give_back(lane, "no-such-receipt", 1.0)
    vendors = recorder.port("vendors", run.worker().vendors)
    vendors.prepare(_call().vendor)  # reads the vendor's key
    with suppress(VendorError):  # nobody listens there
        vendors.call(_call())
    run.worker().vendors.close()

    _run_verbs_of_refreshes(recorder, run)
    _run_sweepers_verbs(recorder, sweep)
    _run_invalidators_verbs(recorder, invalidate)
    _run_verbs_of_events(recorder, publish, deliver)

    keys = recorder.port("keys", authorize.keys)
    ends_s = NOW_MS // 1000 + 3600
    keys.add(examples.a_partner_key(expires_at_epoch_s=ends_s))
    keys.find(examples.a_partner_key().key_hash)
    keys.note_use(examples.a_partner_key().key_hash, now_s=NOW_MS // 1000)
    keys.revoke(examples.a_partner_key().key_id, now_s=NOW_MS // 1000)
    _keep(recorder.calls, session)


def _deps_of(function: str, recorder: _Recorder) -> Any:
    """As its builder makes them; what they read of the configuration is noted."""
    made = DEPS[function][0].__wrapped__()
    verb = "configuration", function
    if isinstance(made, bootstrap.Live):
        return recorder.run(verb, Names(), made.now)
    if isinstance(made, bootstrap.RunDeps):
        worker = recorder.run(verb, Names(), made.worker)
        return made._replace(worker=lambda: worker)
    if isinstance(made, bootstrap.DeliverDeps):
        courier = recorder.run(verb, Names(), made.courier)
        return made._replace(courier=lambda: courier)
    if isinstance(made, bootstrap.SweepDeps):
        recorder.run(verb, Names(), lambda: made.sweeper(lambda: 0))
    return made


def _use_idempotency(store: BasePersistenceLayer) -> None:
    """All that Powertools does with a record: it is begun, kept, found, and dropped."""

    def act(*, asked: dict[str, str]) -> str:
        if asked["key"] == "refused":
            raise StoreBusyError("Not now.", retry_after_s=1)
        return "done"

    once = idempotent_function(
        act,
        data_keyword_argument="asked",
        persistence_store=store,
        config=IdempotencyConfig(event_key_jmespath="key", lambda_context=a_context()),
    )
    assert once(asked={"key": "kept"}) == once(asked={"key": "kept"})
    with suppress(StoreBusyError):
        once(asked={"key": "refused"})


def _run_verbs_of_the_api(recorder: _Recorder, submitter: Any) -> Any:
    """Gives the first job, queued."""
    jobs = recorder.port("jobs", submitter.jobs)
    first = _submit(jobs, examples.a_job(1, lane="batch"))
    jobs.submit(examples.a_job(2), shard_caps=[1])  # a full shard
    jobs.submit(examples.a_job(1, job_id="job_duplicate"), shard_caps=[9])  # a claim
    jobs.submit(examples.a_job(1, job_id="job_again"), shard_caps=[9], replacing="job_ended")
    wanted_no_more = _submit(jobs, examples.a_job(9))
    jobs.apply(wanted_no_more, transitions.cancelled(wanted_no_more, now_ms=NOW_MS))
    with _busy(submitter.jobs):
        jobs.submit(examples.a_job(1, job_id="job_conflict"), shard_caps=[9])
    jobs.get(first.tenant, first.job_id)
    jobs.holder(first)
    recorder.port("backlogs", submitter.backlogs).read()
    jobs.move_lane(first, "interactive")
    jobs.add_callback(first, "https://hooks.example/")
    jobs.drop_callback(first.tenant, first.job_id, "https://hooks.example/")
    recorder.port("cache", submitter.cache).read(first.cache_key)
    recorder.port("cache", submitter.cache).look(first.cache_key)
    recorder.port("state", submitter.state).read()
    forced = examples.a_job(11, cache_mode="refresh")
    jobs.submit(forced, shard_caps=[9], budget=DayBudget(bypasses=9))
    for _ in range(2):
        jobs.ask_again(forced, asked_after_ms=NOW_MS + 1)
    jobs.queue_refresh(examples.a_refresh(12), examples.an_entry(examples.a_job(12)))
    queue = recorder.port("queue", submitter.queue)
    queue.send(first)
    queue.send(replace(first, lane="interactive"))
    for lane in ("interactive", "batch"):
        queue.send(replace(first, lane=lane), delay_s=5)
    payloads = recorder.port("payloads", submitter.payloads)
    payloads.put("inputs/big", b"a big input")
    payloads.get("inputs/big")
    payloads.size("inputs/big")
    payloads.url("inputs/big")
    return first


def _run_verbs_of_many_jobs(recorder: _Recorder, api: Any, first: Any) -> None:
    lists = recorder.port("lists", api.lists)
    lists.page(first.tenant, limit=1, after="job_z", status=first.status, model=first.model)
    lists.get(first.tenant, [first.job_id])
    batches = recorder.port("batches", api.batches)
    batches.add(Batch(first.tenant, "batch_1", NOW_MS, NOW_MS // 1000 + 60, ()))
    batches.get(first.tenant, "batch_1")


def _run_verbs_of_owed_answers(recorder: _Recorder, api: Any, session: boto3.Session) -> None:
    owed = recorder.port("owed", api.owed)
    owed.owe("acme", "digest", "job_1", until_ms=NOW_MS)
    owed.find("acme", "digest", now_ms=NOW_MS)
    _keep(recorder.calls, session)
    owed.forget("acme", "digest", "job_1")


def _run_verbs_of_gates(gates: Any) -> None:
    key, rooms = "gate#vendor#model-1", (Room("vendor", "all", 1),)
    limits = Limits(requests_per_minute=60_000, tokens_per_minute=6_000)
    gates.enter(rooms, "token", now_ms=NOW_MS, until_ms=NOW_MS + LEASE_MS)
    gates.enter(rooms, "another", now_ms=NOW_MS, until_ms=NOW_MS + LEASE_MS)  # it is full
    for allowed in (limits, Limits()):
        ticket = gates.take(
            key, allowed, tokens=10, now_ms=NOW_MS, probe_ms=LEASE_MS, furthest_ms=LEASE_MS
        )
    gates.still_open(key, ticket, now_ms=NOW_MS)
    gates.settle(key, limits, ticket, tokens=5, now_ms=NOW_MS)
    for _ in range(OPEN_AFTER_FAILURES):
        gates.failed(key, limits, ticket, now_ms=NOW_MS)
    gates.worked(key, replace(ticket, version=1))
    for version in (2, 1):  # the second one knows another gate
        of_version = replace(ticket, version=version)
        gates.close(key, limits, of_version, now_ms=NOW_MS, until_ms=NOW_MS + version)
    gates.leave(rooms, "token")


def _run_verbs_of_refreshes(recorder: _Recorder, run: Any) -> None:
    """The end of a refresh job lets its entry cool down."""
    jobs = recorder.port("jobs", run.worker().jobs)
    refresh = examples.a_refresh(13)
    run.worker().jobs.queue_refresh(refresh, examples.an_entry(examples.a_job(13)))
    jobs.apply(refresh, examples.failed(refresh), unless_held_at_ms=NOW_MS)


def _run_invalidators_verbs(recorder: _Recorder, deps: Any) -> None:
    invalidator = deps.invalidator
    with suppress(StoreBusyError):  # no Valkey is there
        recorder.port("cache", invalidator.cache).invalidate("c1_key", now_ms=NOW_MS)
    recorder.port("state", invalidator.state).invalidate("model:demo-chat", now_ms=NOW_MS)
    recorder.port("audit", invalidator.audit).add(AuditRecord(NOW_MS, "user:me", "act", "it"))


def _run_sweepers_verbs(recorder: _Recorder, deps: Any) -> None:
    sweeper = deps.sweeper(lambda: 0)
    jobs = recorder.port("jobs", sweeper.jobs)
    due_jobs = recorder.port("due_jobs", sweeper.due_jobs)
    state = recorder.port("state", sweeper.state)
    state.read()
    state.set_degraded(NOW_MS)
    state.tell_degraded(NOW_MS, NOW_MS, NOW_MS + 1)
    state.set_degraded(None)
    recorder.port("bus", sweeper.bus).put([Notice("DegradedBegan", NOW_MS, "service", "sweeper")])
    late = examples.a_refresh(14)
    sweeper.jobs.queue_refresh(late, examples.an_entry(examples.a_job(14)))
    jobs.apply(late, examples.failed(late), unless_held_at_ms=NOW_MS)
    queue = recorder.port("queue", sweeper.queue)
    stuck = _submit(jobs, examples.a_job(6))
    due_jobs.due(stuck.due_shard, until_ms=NOW_MS, limit=1)
    list(due_jobs.indexed(stuck.due_shard))
    for _ in due_jobs.counted(
        stuck.due_shard,
        before={("queued", "batch"): NOW_MS},
        besides_tenants={"acme"},
        besides_models={"model-1"},
    ):
        pass
    due_jobs.postpone(stuck, due_at_ms=NOW_MS)
    due_jobs.postpone(stuck, due_at_ms=NOW_MS, sent=False)
    backlogs = recorder.port("backlogs", sweeper.backlogs)
    backlogs.read()
    backlogs.write(Backlog(measured_at_epoch_ms=NOW_MS))
    recorder.port("gates", sweeper.gates).look("gate#vendor#model-1", now_ms=NOW_MS)
    for lane in ("interactive", "batch"):
        queue.backlog(lane)
    with _counters_busy(sweeper.jobs):
        jobs.apply(stuck, examples.failed(stuck), give_up_at_ms=0)
    jobs.settle(sweeper.jobs.get(stuck.tenant, stuck.job_id))
    refresh = _refresh(11)
    jobs.apply(refresh, examples.failed(refresh), unless_held_at_ms=NOW_MS)


def _run_verbs_of_events(recorder: _Recorder, publish: Any, deliver: Any) -> None:
    told = event_of(_stream_record())
    assert told is not None
    recorder.port("bus", publish.bus).put([told])
    webhooks = recorder.port("webhooks", publish.webhooks)
    _run_verbs_of_webhooks(recorder, publish)
    webhooks.give_back("no-such-receipt", 1.0)
    courier = deliver.courier()
    _run_verbs_of_webhooks(recorder, courier)
    with suppress(WebhookError):  # nobody is called there
        recorder.port("webhook_client", courier.webhook_client).post(
            target_of("https://127.0.0.1/", local=True), {}, b"", timeout_s=5.0
        )
    courier.webhook_client.close()


def _run_verbs_of_webhooks(recorder: _Recorder, holder: Any) -> None:
    """Those of the ports that this one has: API, publisher and deliverer share some."""
    told = event_of(_stream_record())
    assert told is not None
    (delivery, *_) = deliveries(told, NO_ENDPOINTS)
    if hasattr(holder, "endpoints"):
        store = recorder.port("endpoints", holder.endpoints)
        store.read("acme")
        store.change("acme", lambda before: rotated(before, CALLBACKS, now_ms=NOW_MS, overlap_s=1))
    if hasattr(holder, "delivery_log"):
        log = recorder.port("delivery_log", holder.delivery_log)
        log.record(delivery, Attempt(NOW_MS, DeliveryStatus.DELIVERED))
        log.get("acme", CALLBACKS, delivery.delivery_id, now_ms=NOW_MS)
        log.list("acme", CALLBACKS, now_ms=NOW_MS, limit=1, before=None)
    if hasattr(holder, "webhook_secrets"):
        recorder.port("webhook_secrets", holder.webhook_secrets).master()
    if hasattr(holder, "webhooks"):
        recorder.port("webhooks", holder.webhooks).send([delivery])


@contextmanager
def _busy(jobs: Any) -> Iterator[None]:
    """Every transaction meets another."""
    conflict = {
        "Error": {"Code": "TransactionCanceledException", "Message": ""},
        "CancellationReasons": [{"Code": "TransactionConflict"}],
    }

    def refuse(**_: Any) -> None:
        raise ClientError(conflict, "TransactWriteItems")  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs._table, "_pause", lambda _: None)
        patch.setattr(jobs._table.client, "transact_write_items", refuse)
        yield


@contextmanager
def _counters_busy(jobs: Any) -> Iterator[None]:
    """Every transaction that touches a tenant's counter meets another."""
    transact = jobs._table.transact

    def refuse(writes: Any, **named: Any) -> Any:
        if any("tenant#" in str(write.key) for write in writes):
            raise StoreBusyError("The tables are busy.", retry_after_s=1)
        return transact(writes, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(jobs._table), "transact", lambda _, writes, **n: refuse(writes, **n))
        yield


def _refresh(number: int) -> Any:
    """A job that renews the entry of the first."""
    key = examples.a_job(1).cache_key
    return examples.a_job(number, cache_key=key, refreshes_for="acme", tenant=f"refresh#{key}")


def _submit(jobs: Any, job: Any) -> Any:
    outcome = jobs.submit(job, shard_caps=[100])
    assert isinstance(outcome, Submitted)
    return outcome.job


def _start(jobs: Any, job: Any) -> Started:
    outcome = _try_start(jobs, job)
    assert isinstance(outcome, Started)
    return outcome


def _try_start(jobs: Any, job: Any) -> Any:
    return jobs.start(
        job,
        token=job.job_id,
        lease_ms=LEASE_MS,
        now_ms=NOW_MS,
        started=lambda fence: transitions.started(
            job, fence=fence, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + LEASE_MS
        ),
    )


def _stream_record() -> Any:
    event = json.loads((ROOT / "events/publish_events.json").read_text("utf-8"))
    return event["Records"][0]


def _call() -> VendorCall:
    return VendorCall(
        vendor=Vendor(base_url="http://127.0.0.1:1/v1", api_key_secret=f"{SECRETS}vendor"),
        model=Model(vendor="vendor", vendor_model="model-1", version="1"),
        body=b'{"input":"hello","options":{}}',
        idempotency_key="job_1",
        timeout_s=5.0,
        retry_after_max_s=60.0,
    )


def _keep(calls: Calls, session: boto3.Session) -> None:
    """Adds the items that the tables hold now."""
    client = session.client("dynamodb")
    for table in render().of_type("AWS::DynamoDB::Table"):
        calls.rows.setdefault(table, []).extend(client.scan(TableName=table)["Items"])
