"""What the functions do to AWS, found by running the adapters as bootstrap wires them.

`record` runs every verb of every port against moto's AWS, whose tables, queues and bucket are made
from the template and called by their logical ids. `verbs_of` reads the code of a function for the
verbs that it uses. Together they tell what a function's role must allow, and no more.
"""

from __future__ import annotations

import ast
import dataclasses
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import Model, Vendor
from sluiceway.domain.errors import VendorError
from sluiceway.ports import LeaseHeld, Started, Submitted, VendorCall
from sluiceway.usecases.run_job import Worker

from tests.fakes import examples
from tests.fakes.in_memory import NOW_MS, FakeClock
from tests.template.rendering import RESOURCES, ROOT, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Verb = tuple[str, str]
"""A port and one of its methods."""

Right = tuple[str, str]
"""A resource and an IAM action."""

PORTS = frozenset({"cache", "jobs", "keys", "payloads", "queue", "vendors"})
"""The names under which the use cases know the ports that reach AWS."""

DEPS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "AuthorizeFunction": (bootstrap.authorize_deps, (bootstrap.AuthorizeDeps,)),
    "ApiFunction": (bootstrap.api_deps, (bootstrap.ApiDeps,)),
    "RunJobFunction": (bootstrap.run_deps, (bootstrap.RunDeps, Worker)),
}
"""Of each function: its builder, and the classes whose fields are the ports it has."""

SECRETS = "sluiceway/vendors/"
LEASE_MS = 60_000

_LIBRARY = ROOT / "layers/core/sluiceway"
_ITEM_ACTIONS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem"}
_BUCKETS = {"payloadbucket": "PayloadBucket"}
"""A bucket's name has no capitals."""


@dataclass(slots=True)
class Calls:
    """What was recorded."""

    rights: dict[Verb, set[Right]] = field(default_factory=dict)
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
        return {right for verb in verbs_of(function) for right in self.rights[verb]}


# ------------------------------------------------------------------------------------ the code


def verbs_of(function: str) -> set[Verb]:
    """The verbs that a function's handler and use cases call, on the ports that it has."""
    fields = {field.name for kind in DEPS[function][1] for field in dataclasses.fields(kind)}
    app = ROOT / RESOURCES[function]["Properties"]["CodeUri"] / "app.py"
    return {
        (port, verb)
        for path in _used_by(app)
        for port, verb in _method_calls(path)
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
    """A module and the use cases that it imports."""
    yield path
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            package, _, module = name.rpartition(".")
            found = _LIBRARY / "usecases" / f"{module}.py"
            if package == "sluiceway.usecases" and found.exists():
                yield from _used_by(found)


def _method_calls(path: Path) -> Iterator[tuple[str, str]]:
    """`jobs.get(…)` and `worker.jobs.get(…)` as `("jobs", "get")`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value).rpartition(".")[2], node.func.attr


# ------------------------------------------------------------------------------------ the run


def record() -> Calls:
    """Runs every verb, on all of its ways that make other calls."""
    calls = Calls()
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        session = boto3.Session()
        patch.setattr(boto3, "DEFAULT_SESSION", session)
        patch.setattr(bootstrap, "SystemClock", FakeClock)
        for name, value in _make_resources(session).items():
            patch.setenv(name, value)
        recorder = _Recorder(calls)
        session.events.register("provide-client-params", recorder.hear)
        _run_all_verbs(recorder, session)
    return calls


class _Recorder:
    """Notes each call to AWS under the verb that is being run."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._verb: Verb | None = None

    def port(self, name: str, port: Any) -> Any:
        """`port`, whose verbs are noted."""
        return _Told(name, port, self)

    def run(self, verb: Verb, call: Callable[[], Any]) -> Any:
        """Makes one call of a verb."""
        self.calls.rights.setdefault(verb, set())
        self._verb = verb
        try:
            return call()
        finally:
            self._verb = None

    def hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """botocore says that a client was called."""
        if self._verb is not None:
            self.calls.operations.add(xform_name(model.name))
            self.calls.rights[self._verb].update(
                _rights(model.service_model.service_name, model.name, params)
            )


class _Told:
    def __init__(self, name: str, port: Any, recorder: _Recorder) -> None:
        self._name, self._port, self._recorder = name, port, recorder

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._port, verb)
        return lambda *args, **named: self._recorder.run(
            (self._name, verb), lambda: method(*args, **named)
        )


def _rights(service: str, operation: str, params: dict[str, Any]) -> Iterator[Right]:
    """What a role must allow for a call."""
    match service, operation:
        case "dynamodb", "TransactWriteItems":
            for item in params["TransactItems"]:
                for action, request in item.items():
                    name = _ITEM_ACTIONS.get(action, f"{action}Item")
                    yield request["TableName"], f"dynamodb:{name}"
        case "dynamodb", "BatchGetItem":
            for table in params["RequestItems"]:
                yield table, "dynamodb:BatchGetItem"
        case "dynamodb", _:
            yield params["TableName"], f"dynamodb:{operation}"
        case "s3", _:
            yield f"{_BUCKETS[params['Bucket']]}/*", f"s3:{operation}"
        case "sqs", _:
            yield params["QueueUrl"].rsplit("/", 1)[1], f"sqs:{operation}"
        case "secretsmanager", _:
            assert params["SecretId"].startswith(SECRETS)
            yield f"secret:{SECRETS}*", f"secretsmanager:{operation}"
        case _:
            raise NotImplementedError(service)


def _make_resources(session: boto3.Session) -> dict[str, str]:
    """Makes the template's resources, and gives the environment of all functions."""
    stack = render()
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
    session.client("secretsmanager").create_secret(Name=f"{SECRETS}vendor", SecretString="fake")
    return {
        name: names[value["Ref"]] if isinstance(value, dict) else value
        for function in stack.of_type("AWS::Lambda::Function").values()
        for name, value in function["Environment"]["Variables"].items()
    }


def _run_all_verbs(recorder: _Recorder, session: boto3.Session) -> None:
    api, run, authorize = (
        DEPS[function][0].__wrapped__()
        for function in ("ApiFunction", "RunJobFunction", "AuthorizeFunction")
    )
    for service in ("dynamodb", "sqs", "s3", "secretsmanager"):
        recorder.calls.known |= set(session.client(service).meta.method_to_api_mapping)

    jobs = recorder.port("jobs", api.jobs)
    first = _submit(jobs, examples.a_job(1, lane="batch"))
    jobs.submit(examples.a_job(2), shard_caps=[1])  # a full shard
    jobs.submit(examples.a_job(1, job_id="job_duplicate"), shard_caps=[9])  # a claim
    with _busy(api.jobs):
        jobs.submit(examples.a_job(1, job_id="job_conflict"), shard_caps=[9])
    jobs.get(first.tenant, first.job_id)
    jobs.raise_lane(first)
    recorder.port("cache", api.cache).read(first.cache_key)
    queue = recorder.port("queue", api.queue)
    queue.send(first)
    queue.send(replace(first, lane="interactive"))
    payloads = recorder.port("payloads", api.payloads)
    payloads.put("inputs/big", b"a big input")
    payloads.get("inputs/big")
    payloads.url("inputs/big")

    jobs = recorder.port("jobs", run.worker.jobs)
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
    _submit(jobs, examples.a_job(5))
    queue = recorder.port("queue", run.queue)
    for lane in ("interactive", "batch"):
        queue.give_back(lane, "no-such-receipt", 1.0)
    with suppress(VendorError):  # nobody listens there; but the vendor's key was read
        recorder.port("vendors", run.worker.vendors).call(_call())
    run.worker.vendors.close()

    keys = recorder.port("keys", authorize.keys)
    ends_s = NOW_MS // 1000 + 3600
    keys.add(examples.a_partner_key(expires_at_epoch_s=ends_s))
    keys.find(examples.a_partner_key().key_hash)
    keys.revoke(examples.a_partner_key().key_id, now_s=NOW_MS // 1000)
    _keep(recorder.calls, session)


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
