"""The functions on one world of fakes, and their sample events."""

from __future__ import annotations

import base64
import itertools
import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sluiceway.bootstrap import AuthorizeDeps, RunDeps, SweepDeps
from sluiceway.routes.request import ApiDeps
from sluiceway.usecases.invalidate_cache import Invalidator
from sluiceway.usecases.manage_webhooks import Registrar
from sluiceway.usecases.run_job import Worker
from sluiceway.usecases.submit_job import Submitter
from sluiceway.usecases.sweep_jobs import Sweeper

from functions.api import app as api
from functions.authorize import app as authorize
from functions.run_job import app as run_job
from functions.sweep_jobs import app as sweep_jobs
from tests.fakes.in_memory import (
    FakeClock,
    FakeFlags,
    FakeVendors,
    InMemoryAudit,
    InMemoryBacklogs,
    InMemoryBatches,
    InMemoryCache,
    InMemoryDeliveries,
    InMemoryDueJobs,
    InMemoryEndpoints,
    InMemoryGates,
    InMemoryIdempotency,
    InMemoryJobLists,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryOwedAnswers,
    InMemoryPartnerKeys,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    InMemoryUsage,
    World,
)
from tests.fakes.outside import FakeBus, FakeWebhookQueue, FakeWebhookSecrets
from tests.functions import conformance
from tests.unit.logs import a_context, fresh_telemetry
from tests.unit.samples import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_lambda_powertools.utilities.idempotency import BasePersistenceLayer
    from sluiceway.ports import Batches, JobQueue, JobStore, PayloadStore, ResultCache, VendorClient

EVENTS = Path(__file__).parents[2] / "events"
INTERACTIVE_ARN = "arn:aws:sqs:us-east-1:123456789012:sluiceway-InteractiveQueue-1A2B3C4D5E6F"
BATCH_ARN = "arn:aws:sqs:us-east-1:123456789012:sluiceway-BatchQueue-1A2B3C4D5E6F"

SIMULATED = """
[vendors.simulator]
base_url = "{url}"
api_key_secret = "sluiceway/vendors/vendor"

[models.demo-chat]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
"""
"""A catalogue whose vendor is the simulator at `url`; its secret is that of `make_resources`."""

ABSENT = object()
"""For a member of an event that is to be left out."""


def sample(name: str) -> dict[str, Any]:
    """A sample event."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    return event


@dataclass(frozen=True, slots=True)
class Answer:
    """A proxy answer, read as a client does; header names are in lower case."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


def read_answer(event: dict[str, Any], raw: dict[str, Any]) -> Answer:
    """What the API gave for the event, which must be as openapi.json says."""
    json.dumps(raw)  # Lambda does
    assert not raw["isBase64Encoded"]
    headers = {name.lower(): values[0] for name, values in raw["multiValueHeaders"].items()}
    answer = Answer(raw["statusCode"], headers, raw["body"])
    conformance.check(event["httpMethod"], event["path"], answer)
    return answer


@dataclass
class Stage:
    """Whatever is set here before a request is what the functions work with."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    queue: JobQueue = field(default_factory=InMemoryQueue)
    vendors: VendorClient = field(default_factory=FakeVendors)

    def __post_init__(self) -> None:
        self.jobs: JobStore = InMemoryJobs(self.world, clock=self.clock)
        self.cache: ResultCache = InMemoryCache(self.world)
        self.gates = InMemoryGates(self.world)
        self.catalogue = CATALOGUE
        self.flags = FakeFlags()
        self.bus = FakeBus()
        self.state = InMemoryState(self.world)
        self.audit = InMemoryAudit(self.world)
        self.batches: Batches = InMemoryBatches(self.world)
        self.rand = 0.5
        self.no_worker: Callable[[], NoReturn] | None = None
        """Raises in place of giving one."""
        self.pause: Callable[[float], None] = self.clock.pause
        self.time_left_ms = 29_000
        """Of each invocation of the API."""
        self.idempotency: BasePersistenceLayer = InMemoryIdempotency(self.world)
        self.payloads: PayloadStore = InMemoryPayloads(self.world)
        self.keys = InMemoryPartnerKeys(self.world)
        self.telemetry = fresh_telemetry(level="INFO")
        self.telemetry.know_vendors({name: m.vendor for name, m in CATALOGUE.models.items()})
        self._serial = itertools.count()
        self.webhooks = FakeWebhookQueue()
        self.webhook_secrets = FakeWebhookSecrets()
        self.registrar = Registrar(
            endpoints=InMemoryEndpoints(self.world),
            delivery_log=InMemoryDeliveries(self.world),
            webhook_secrets=self.webhook_secrets,
            webhooks=self.webhooks,
            clock=self.clock,
            randomness=lambda size: next(self._serial).to_bytes(size, "big"),
        )

    @property
    def sent(self) -> list[tuple[str, str, str]]:
        """Lane, tenant and job id of each message that was sent."""
        assert isinstance(self.queue, InMemoryQueue)
        return self.queue.sends

    @property
    def given_back(self) -> list[tuple[str, str, float]]:
        """Lane, receipt and delay of each message that was given back."""
        assert isinstance(self.queue, InMemoryQueue)
        return self.queue.gives_back

    @property
    def vendor(self) -> FakeVendors:
        assert isinstance(self.vendors, FakeVendors)
        return self.vendors

    # ------------------------------------------------------------------ api

    def answer(self, event: dict[str, Any]) -> Answer:
        """Asks the API with this event."""
        deps = ApiDeps(
            submitter=Submitter(
                flags=self.flags,
                catalogue=self.catalogue,
                jobs=self.jobs,
                cache=self.cache,
                rates=InMemoryRates(self.world),
                backlogs=InMemoryBacklogs(self.world),
                state=self.state,
                payloads=self.payloads,
                queue=self.queue,
                clock=self.clock,
                randomness=lambda size: next(self._serial).to_bytes(size, "big"),
                rand=lambda: self.rand,
            ),
            invalidator=Invalidator(
                cache=self.cache,
                state=self.state,
                audit=self.audit,
                clock=self.clock,
                telemetry=self.telemetry,
            ),
            lists=InMemoryJobLists(self.world),
            usage=InMemoryUsage(self.world),
            batches=self.batches,
            owed=InMemoryOwedAnswers(self.world),
            registrar=lambda: self.registrar,
            telemetry=self.telemetry,
            pause=self.pause,
            idempotency=lambda: self.idempotency,
        )
        context = a_context(time_left_ms=self.time_left_ms)
        return read_answer(event, api.handle(event, context, deps))

    def post(self, body: Any = ABSENT, *, raw: str | bytes | None = None, **changes: Any) -> Answer:
        """Submits; `raw` is the body as it is, in base64 when it is bytes."""
        event = request("POST", "/jobs", **changes)
        if isinstance(raw, bytes):
            event["body"], event["isBase64Encoded"] = base64.b64encode(raw).decode(), True
        elif raw is not None:
            event["body"] = raw
        elif body is not ABSENT:
            event["body"] = json.dumps(body)
        return self.answer(event)

    def submit(self, text: Any = "hello", **changes: Any) -> Answer:
        """Submits this input to the demo model."""
        return self.post({"model": "demo-chat", "input": text}, **changes)

    def get(self, job_id: str, **changes: Any) -> Answer:
        return self.answer(request("GET", f"/jobs/{job_id}", **changes))

    def cancel(self, job_id: str, *, scopes: str = "cancel", **changes: Any) -> Answer:
        return self.answer(request("POST", f"/jobs/{job_id}/cancel", scopes=scopes, **changes))

    # ------------------------------------------------------------------ worker

    def run(self, *records: dict[str, Any]) -> list[str]:
        """Runs these messages as one batch; gives the ids of those that stay in the queue."""
        deps = RunDeps(
            worker=self.no_worker
            or (
                lambda: Worker(
                    catalogue=CATALOGUE,
                    jobs=self.jobs,
                    cache=self.cache,
                    state=self.state,
                    payloads=self.payloads,
                    gates=self.gates,
                    latencies=InMemoryLatencies(self.world),
                    backlogs=InMemoryBacklogs(self.world),
                    vendors=self.vendors,
                    clock=self.clock,
                    telemetry=self.telemetry,
                    rand=lambda: self.rand,
                    token=lambda: f"token-{next(self._serial)}",
                    pause=self.clock.pause,
                    lease_ms=100_000,
                )
            ),
            queue=self.queue,
            lane_of_queue={
                INTERACTIVE_ARN.rpartition(":")[2]: "interactive",
                BATCH_ARN.rpartition(":")[2]: "batch",
            },
            telemetry=self.telemetry,
        )
        context = a_context(aws_request_id="lambda-run", function_name="run_job")
        answer = run_job.handle({"Records": list(records)}, context, deps)
        assert list(answer) == ["batchItemFailures"]
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def run_job(self, job_id: str, tenant: str = "acme") -> list[str]:
        return self.run(message(job_id, tenant))

    # ------------------------------------------------------------------ sweeper

    def sweep(self, event: Any = None) -> dict[str, int]:
        """Sweeps as the schedule does, or for another event."""
        deps = SweepDeps(
            sweeper=lambda time_left_ms: Sweeper(
                flags=self.flags,
                bus=self.bus,
                jobs=self.jobs,
                state=self.state,
                due_jobs=InMemoryDueJobs(self.world),
                queue=self.queue,
                clock=self.clock,
                telemetry=self.telemetry,
                time_left_ms=time_left_ms,
                pause=self.clock.pause,
                gates=InMemoryGates(self.world),
                latencies=InMemoryLatencies(self.world),
                catalogue=CATALOGUE,
                backlogs=InMemoryBacklogs(self.world),
                workers={"interactive": 8, "batch": 2},
            ),
            telemetry=self.telemetry,
        )
        context = a_context(aws_request_id="lambda-sweep", function_name="sweep_jobs")
        answer: dict[str, int] = sweep_jobs.handle(
            sample("sweep_jobs") if event is None else event, context, deps
        )
        json.dumps(answer)  # Lambda does
        return answer

    # ------------------------------------------------------------------ authorizer

    def authorize(self, event: dict[str, Any]) -> dict[str, Any]:
        deps = AuthorizeDeps(keys=self.keys, clock=self.clock, telemetry=self.telemetry)
        answer: dict[str, Any] = authorize.handle(event, a_context(), deps)
        return answer


def request(
    method: str,
    path: str,
    *,
    tenant: Any = "acme",
    scopes: str = "submit read",
    headers: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
    authorizer: Any = ABSENT,
) -> dict[str, Any]:
    """A proxy event like the samples; a header or an authorizer that is ABSENT is left out."""
    event = sample("api_submit" if method == "POST" else "api_get_job")
    event |= {"httpMethod": method, "path": path, "queryStringParameters": query}
    event["headers"] |= headers or {}
    event["headers"] = {
        name: value for name, value in event["headers"].items() if value is not ABSENT
    }
    event["multiValueHeaders"] = {name: [value] for name, value in event["headers"].items()}
    context = event["requestContext"]
    context |= {"httpMethod": method, "path": f"/v1{path}", "requestId": "gateway-1"}
    context["authorizer"] |= {"tenant": tenant, "scopes": scopes}
    if tenant is ABSENT:
        del context["authorizer"]["tenant"]
    if authorizer is not ABSENT:
        context["authorizer"] = authorizer
    return event


def message(
    job_id: str = "job_unknown",
    tenant: str = "acme",
    *,
    body: str | None = None,
    receives: int = 1,
    message_id: str = "message-1",
    arn: str = INTERACTIVE_ARN,
    sent_at_ms: int | None = None,
    first_received_at_ms: int | None = None,
    moved_back: bool = False,
) -> dict[str, Any]:
    """An SQS record like the sample; `moved_back`: it says that it was in the DLQ."""
    (record,) = deepcopy(sample("run_job")["Records"])
    record |= {
        "messageId": message_id,
        "receiptHandle": f"receipt of {message_id}",
        "eventSourceARN": arn,
        "body": json.dumps({"tenant": tenant, "job_id": job_id}) if body is None else body,
    }
    attributes = record["attributes"]
    attributes["ApproximateReceiveCount"] = str(receives)
    if sent_at_ms is not None:
        attributes["SentTimestamp"] = str(sent_at_ms)
    if first_received_at_ms is not None:
        attributes["ApproximateFirstReceiveTimestamp"] = str(first_received_at_ms)
    if moved_back:
        attributes["DeadLetterQueueSourceArn"] = arn
    return dict(record)


def end(stage: Stage, job_id: str, **members: Any) -> None:
    """Changes a job behind the functions' backs."""
    job = stage.world.jobs["acme", job_id]
    stage.world.jobs["acme", job_id] = replace(job, **members)
