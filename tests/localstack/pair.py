"""LocalStack with DynamoDB Local: all of AWS that the functions need, nearer to it than others are.

LocalStack has the queues, the bucket, the bus and the secrets; DynamoDB Local the tables and their
stream. The functions run in processes of their own, with the settings that the template gives them;
what Lambda and API Gateway do besides is done here.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import boto3
import httpx
import pytest
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import Table, to_item
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway_cli.keys import create_key
from sluiceway_local import processes
from sluiceway_local.emulator import free_port
from sluiceway_local.poller import Context, Poller
from sluiceway_local.processes import wait_for
from sluiceway_local.simulator import Simulator

from tests.fakes.appconfig import FakeAppConfig
from tests.functions.stage import Answer, read_answer, sample
from tests.template.calls import make_resources
from tests.template.rendering import SOURCE, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.usecases.submit_job import Submitter

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(
    str(ROOT / part) for part in (".", "layers/core", "cli", "local", "client")
)
TIMEOUT_S = 60.0
LANES = ("Interactive", "Batch")

LEASE_S = 20
RUN_JOB_TIMEOUT_S = 22.0
VISIBILITY_S = 28
"""Of the lanes. Each is shorter than the template's, and they fit together as those do: a message
comes back when the lease of a dead worker can be taken over."""

SECRET = "sluiceway/vendors/vendor"
CATALOGUE = """
[service]
hold_max_s = 1

[vendors.simulator]
base_url = "{vendor_url}"
api_key_secret = "{secret}"

[models.demo-chat]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
timeout_s = {{ min = 0.5, max = 4.0 }}
max_attempts = 3

[models.heavy]
vendor = "simulator"
vendor_model = "sim-heavy-1"
version = "1"
weight = "heavy"
timeout_s = {{ min = 0.5, max = 4.0 }}
"""
"""`heavy` goes to the lane `batch`."""


class FunctionError(Exception):
    """The handler raised, or its process is gone."""


@dataclass
class Function:
    """A function in a process of its own; one that is gone is started anew, as Lambda does."""

    name: str
    environment: dict[str, str]
    catalogue: Path
    _process: processes.Process | None = None
    _port: int = 0
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Any, context: Context | None = None) -> Any:
        """The handler's answer. Raises FunctionError."""
        timeout_s = context.timeout_s if context else 29.0
        with self._one_at_a_time:
            if self._process is None or not self._process.alive():
                self._start()
            try:
                with Client(("127.0.0.1", self._port)) as connection:
                    connection.send_bytes(
                        json.dumps({"event": event, "timeout_s": timeout_s}).encode()
                    )
                    told = json.loads(connection.recv_bytes())
            except (EOFError, ConnectionError) as error:
                raise FunctionError("the process is gone") from error
        if "error" in told:
            raise FunctionError(told["error"])
        return told["answer"]

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What the process has written since it was started."""
        return self._log.read_text("utf-8")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def _log(self) -> Path:
        return self.catalogue.with_name(f"{self.name}-{self._port}.log")

    def _start(self) -> None:
        self._port = free_port()
        process = self._process = processes.start(
            [
                *(sys.executable, "-m", "tests.localstack.function"),
                *(self.name, str(self._port), str(self.catalogue)),
            ],
            env=self.environment,
            log=self._log,
        )
        assert wait_for(lambda: self._listens() or not process.alive(), timeout_s=TIMEOUT_S)
        assert process.alive(), self.log()

    def _listens(self) -> bool:
        with suppress(ConnectionError), Client(("127.0.0.1", self._port)):
            return True
        return False


@dataclass
class Pair:
    """The resources, the functions and the vendor; every test has prompts of its own."""

    folder: Path
    endpoints: dict[str, str]
    settings: dict[str, str]
    """The environment of the functions."""
    vendor: Simulator
    clients: dict[str, Any]
    keys: dict[str, str] = field(default_factory=dict)
    """API keys by tenant."""
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def sqs(self) -> Any:
        return self.clients["sqs"]

    def url(self, queue: str) -> str:
        """Of the queue with this logical id, without its `Queue`."""
        found: str = self.sqs.get_queue_url(QueueName=f"{queue}Queue")["QueueUrl"]
        return found

    def arn(self, url: str) -> str:
        answer = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def function(self, name: str, **settings: str) -> Function:
        """The function of this name; with settings of its own, another process of it."""
        if settings or name not in self.functions:
            environment = processes.clean_environment(
                **{**self.settings, **self.endpoints, **settings}, PYTHONPATH=PYTHONPATH
            )
            made = Function(name, environment, self.folder / "catalogue.toml")
            self.functions[f"{name} {settings}" if settings else name] = made
            return made
        return self.functions[name]

    # -------------------------------------------------------------------- partners

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: str = "acme",
        key: str | None = None,
        api: Function | None = None,
    ) -> Answer:
        """A request as API Gateway passes it on: to the authorizer first, then to the API."""
        authorization = f"Bearer {key or self.keys[tenant]}"
        asked = sample("authorize")
        asked["headers"]["Authorization"] = authorization
        allowed = self.function("authorize")(asked)
        if allowed["policyDocument"]["Statement"][0]["Effect"] != "Allow":
            return Answer(401, {}, "null")
        event = sample("api_submit")
        path, _, query = path.partition("?")
        event |= {"httpMethod": method, "path": path, "body": None}
        event["queryStringParameters"] = dict(parse_qsl(query)) or None
        if body is not None:
            event["body"] = json.dumps(body)
        event["headers"]["Authorization"] = authorization
        event["requestContext"]["requestId"] = secrets.token_hex(8)
        event["requestContext"]["authorizer"] = {
            **allowed["context"],
            "principalId": allowed["principalId"],
        }
        return read_answer(event, (api or self.function("api"))(event))

    def submit(self, prompt: str, *, model: str = "demo-chat", **more: Any) -> str:
        """Submits, and gives the job's id."""
        answer = self.call("POST", "/jobs", {"model": model, "input": prompt, **more})
        assert answer.status == 202, answer.body
        return str(answer.body["id"])

    def cli(self, *arguments: str) -> Any:
        """What `sluiceway … --json` prints, run in the folder of the pair's `local.json`."""
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "sluiceway_cli", *arguments, "--json"],
            cwd=self.folder,
            env=processes.clean_environment(**self.endpoints, PYTHONPATH=PYTHONPATH),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    # -------------------------------------------------------------------- workers

    def poller(self, lane: str, *, batch_size: int = 1, worker: Function | None = None) -> Poller:
        """What takes a lane's messages to a worker."""
        return Poller(
            self.sqs,
            self.url(lane),
            worker or self.function("run_job"),
            "run_job",
            timeout_s=RUN_JOB_TIMEOUT_S,
            batch_size=batch_size,
        )

    def deliverer(self) -> Poller:
        """What takes webhooks to the function that delivers them."""
        deliver = self.function("deliver_webhook")
        return Poller(self.sqs, self.url("Webhook"), deliver, "deliver_webhook", timeout_s=30.0)

    def work_until(
        self, happened: Callable[[], bool], *lanes: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Runs what comes into the lanes, until then."""
        pollers = [self.poller(lane) for lane in lanes or LANES]

        def worked() -> bool:
            for poller in pollers:
                poller.once()
            return happened()

        assert wait_for(worked, timeout_s=timeout_s)

    def run(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """Works until the job is in one of these states, or at its end without any; its row."""
        ends = statuses or ("completed", "dead_lettered")
        self.work_until(lambda: self.row(job_id)["status"] in ends)
        return self.row(job_id)

    # -------------------------------------------------------------------- tables, queues, vendor

    def row(self, job_id: str, tenant: str = "acme") -> dict[str, Any]:
        """The job's row, read consistently."""
        row = Table(self.clients["dynamodb"]).read(
            "JobsTable", {"tenant": tenant, "job_id": job_id}
        )
        assert row is not None
        return row

    def set_back(self, job_id: str, name: str) -> None:
        """Makes this time of the row a second ago, as if it had been waited for."""
        self.clients["dynamodb"].update_item(
            TableName="JobsTable",
            Key=to_item({"tenant": "acme", "job_id": job_id}),
            UpdateExpression="SET #name = :past",
            ExpressionAttributeNames={"#name": name},
            ExpressionAttributeValues=to_item({":past": time.time_ns() // 1_000_000 - 1000}),
        )

    def left(self, queue: str) -> int:
        """The messages in a queue, hidden and delayed ones included."""
        attributes = self.sqs.get_queue_attributes(
            QueueUrl=self.url(queue), AttributeNames=["All"]
        )["Attributes"]
        return sum(
            int(attributes[f"ApproximateNumberOfMessages{which}"])
            for which in ("", "NotVisible", "Delayed")
        )

    def send(self, queue: str, job_id: str) -> None:
        """Sends a job's message, as nobody of us does."""
        body = json.dumps({"tenant": "acme", "job_id": job_id})
        self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=body)

    def heard(self, queue: str, *, wait_s: int = 5) -> list[dict[str, Any]]:
        """What is in a queue that a rule of the bus fills; it is gone from it then."""
        url, found = self.url(queue), []
        while messages := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0 if found else wait_s
        ).get("Messages"):
            for message in messages:
                found.append(json.loads(message["Body"]))
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def stream(self) -> list[dict[str, Any]]:
        """All records of the Jobs table's stream, as Lambda gives them to a function."""
        streams = self.clients["dynamodbstreams"]
        (stream,) = streams.list_streams(TableName="JobsTable")["Streams"]
        records: list[dict[str, Any]] = []
        described = streams.describe_stream(StreamArn=stream["StreamArn"])["StreamDescription"]
        for shard in described["Shards"]:
            iterator = streams.get_shard_iterator(
                StreamArn=stream["StreamArn"],
                ShardId=shard["ShardId"],
                ShardIteratorType="TRIM_HORIZON",
            )["ShardIterator"]
            while iterator:
                answer = streams.get_records(ShardIterator=iterator)
                if not answer["Records"]:
                    break
                records += answer["Records"]
                iterator = answer.get("NextShardIterator")
        plain: list[dict[str, Any]] = json.loads(json.dumps(records, default=_as_lambda_has_it))
        return plain

    def calls(self, prompt: str) -> dict[str, int]:
        """What the vendor counted for this prompt."""
        counted = httpx.get(f"{self.vendor.control_url}/calls").json()["by_prompt"]
        seen: dict[str, int] = counted.get(prompt, {"calls": 0, "charged": 0})
        return seen

    def vendor_fails(self, match: str, **fault: Any) -> None:
        """From now on, for every prompt that holds `match`."""
        self.vendor.control("POST /_control/faults", {"fault": fault, "match": match})

    def vendor_recovers(self) -> None:
        self.vendor.control("DELETE /_control/faults", {})

    @contextmanager
    def submitter(self) -> Iterator[Submitter]:
        """What a submit works with, as the API has it, in this process: for threads."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**self.settings, **self.endpoints}.items():
                patch.setenv(name, value)
            session = boto3.Session()
            patch.setattr(bootstrap, "session", lambda: session._session)
            catalogue = (self.folder / "catalogue.toml").read_text("utf-8")
            FakeAppConfig(session, catalogue=catalogue, flags="{}")
            yield bootstrap.api_deps.__wrapped__().now().submitter


@contextmanager
def built(folder: Path, *, localstack_url: str, dynamodb_local_url: str) -> Iterator[Pair]:
    """The template's resources on the emulators, empty, with two partners."""
    endpoints = {
        "AWS_ENDPOINT_URL": localstack_url,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_local_url,
        "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": dynamodb_local_url,
        "AWS_REGION": processes.REGION,
    }
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in endpoints.items():
                patch.setenv(name, value)
            session = boto3.Session(
                aws_access_key_id="test",
                aws_secret_access_key="test",
                region_name=processes.REGION,
            )
            settings = make_resources(session, "dynamodb")
            clients = {
                service: session.client(service)  # type: ignore[call-overload]
                for service in ("dynamodb", "dynamodbstreams", "events", "sqs")
            }
        for client in clients.values():
            stack.callback(client.close)
        vendor = stack.enter_context(Simulator(latency_s=0.05))
        settings |= {"TARGET": "local", "LEASE_S": str(LEASE_S)}
        pair = Pair(folder, endpoints, settings, vendor, clients)
        (folder / "catalogue.toml").write_text(
            CATALOGUE.format(vendor_url=vendor.url, secret=SECRET)
        )
        _finish(pair)
        try:
            yield pair
        finally:
            for function in pair.functions.values():
                function.stop()


def _finish(pair: Pair) -> None:
    """What the template says of the resources besides that they are there."""
    for logical_id, of in render().of_type("AWS::SQS::Queue").items():
        attributes = {"MessageRetentionPeriod": str(of["MessageRetentionPeriod"])}
        if "RedrivePolicy" in of:
            target, _ = of["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"]
            arn = pair.arn(pair.url(target.removesuffix("Queue")))
            policy = {**of["RedrivePolicy"], "deadLetterTargetArn": arn}
            attributes |= {
                "RedrivePolicy": json.dumps(policy),
                "VisibilityTimeout": str(VISIBILITY_S),
            }
        pair.sqs.set_queue_attributes(
            QueueUrl=pair.url(logical_id.removesuffix("Queue")), Attributes=attributes
        )
    view = render().properties("JobsTable")["StreamSpecification"]
    pair.clients["dynamodb"].update_table(
        TableName="JobsTable", StreamSpecification={"StreamEnabled": True, **view}
    )
    events = SOURCE["Resources"]["InvalidateCacheFunction"]["Properties"]["Events"]
    for queue, pattern in (
        ("Told", {"source": ["sluiceway"]}),
        ("Invalidate", events["CacheInvalidate"]["Properties"]["Pattern"]),
    ):
        pair.sqs.create_queue(QueueName=f"{queue}Queue")
        pair.clients["events"].put_rule(
            Name=queue, EventBusName="EventBus", EventPattern=json.dumps(pattern)
        )
        pair.clients["events"].put_targets(
            Rule=queue,
            EventBusName="EventBus",
            Targets=[{"Id": "queue", "Arn": pair.arn(pair.url(queue))}],
        )
    keys = DynamoDBPartnerKeys(Table(pair.clients["dynamodb"]), "PartnersTable")
    for tenant, scopes in (("acme", ("submit", "read", "cancel")), ("globex", ("submit", "read"))):
        pair.keys[tenant], _ = create_key(tenant, scopes, keys=keys, clock=bootstrap.SystemClock())
    _write_local_json(pair)


def _write_local_json(pair: Pair) -> None:
    """For the command line. The endpoints are two, so they are left to its environment."""
    outputs = {f"{lane}QueueUrl": pair.url(lane) for lane in (*LANES, "DeadLetter", "Webhook")}
    outputs |= {
        f"{table}TableName": f"{table}Table"
        for table in ("Jobs", "Cache", "Coordination", "Partners")
    }
    target = {
        "api_url": "http://127.0.0.1:1",
        "outputs": outputs,
        "partners": pair.keys,
        "endpoint_url": None,
        "region": processes.REGION,
    }
    path = pair.folder / ".sluiceway/local.json"
    path.parent.mkdir()
    path.write_text(json.dumps(target))


def _as_lambda_has_it(value: Any) -> Any:
    """Binary is base64 and times are epoch seconds in a function's event."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.timestamp()
