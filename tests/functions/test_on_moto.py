"""The API and the worker as bootstrap wires them, on moto's AWS, with the template's queues.

The poller gives the messages to the worker, and the simulator is the vendor.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway_local.poller import Poller
from sluiceway_local.simulator import Simulator

from functions.api import app as api
from functions.run_job import app as run_job
from tests.fakes.appconfig import FakeAppConfig
from tests.functions.stage import SIMULATED, request
from tests.template.calls import make_resources
from tests.template.rendering import render
from tests.unit.logs import a_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway.domain.job import Job

HASTY = "timeout_s = { min = 0.5, max = 1.0 }"


class Gateway:
    """What a partner does, what the mapping of the lane does, and who sends what to queues."""

    def __init__(self, session: boto3.Session, simulator: Simulator) -> None:
        self.simulator = simulator
        self.sends: list[str] = []
        """The names of the queues that somebody sent to."""
        session.events.register("provide-client-params.sqs", self._hear)
        self.sqs = session.client("sqs")
        self.api = bootstrap.api_deps.__wrapped__().now()
        worker = bootstrap.run_deps.__wrapped__()
        self.vendors: Any = worker.worker().vendors
        self._redrive_policy()
        self.lane = Poller(
            sqs=self.sqs,
            queue_url=self.url("InteractiveQueue"),
            handler=lambda event, context: run_job.handle(event, context, worker),
            function_name="run_job",
            timeout_s=120,
        )

    def _hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        if model.name.startswith("SendMessage"):
            self.sends.append(params["QueueUrl"].rsplit("/", 1)[1])

    def _redrive_policy(self) -> None:
        dead = self.sqs.get_queue_attributes(
            QueueUrl=self.url("DeadLetterQueue"), AttributeNames=["QueueArn"]
        )
        lane = render().of_type("AWS::SQS::Queue")["InteractiveQueue"]
        policy = lane["RedrivePolicy"] | {"deadLetterTargetArn": dead["Attributes"]["QueueArn"]}
        self.sqs.set_queue_attributes(
            QueueUrl=self.url("InteractiveQueue"), Attributes={"RedrivePolicy": json.dumps(policy)}
        )

    def url(self, queue: str) -> str:
        url: str = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return url

    def submit(self, prompt: str, *, no_store: bool = False, **sim: Any) -> str:
        """The job's id. `sim`: how the vendor misbehaves."""
        event = request("POST", "/jobs")
        body = {"model": "demo-chat", "input": prompt, "options": {"sim": sim} if sim else {}}
        body["cache"] = {"no_store": no_store}
        event["body"] = json.dumps(body)
        answer = api.handle(event, a_context(), self.api)
        assert answer["statusCode"] == 202, answer
        job_id: str = json.loads(answer["body"])["id"]
        return job_id

    def row(self, job_id: str) -> Job:
        job = self.api.submitter.jobs.get("acme", job_id)
        assert job is not None
        return job


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    with mock_aws(), Simulator() as simulator:
        session = boto3.Session(region_name="us-east-1")
        monkeypatch.setattr(bootstrap, "session", lambda: session._session)
        for name, value in make_resources(session, "dynamodb").items():
            monkeypatch.setenv(name, value)
        catalogue = f"{SIMULATED.format(url=simulator.url)}{HASTY}\n"
        FakeAppConfig(session, catalogue=catalogue, flags="{}")
        made = Gateway(session, simulator)
        yield made
        made.vendors.close()
        made.sqs.close()


@pytest.mark.proves(8, on="moto")
@pytest.mark.parametrize("sim", [{"drip_s": 0.2}, {"hang": True}], ids=["drip", "hang"])
def test_call_that_never_ends_is_cut(gateway: Gateway, sim: dict[str, Any]) -> None:  # case V01
    job_id = gateway.submit("It never ends", **sim)

    began = time.monotonic()
    gateway.lane.once()

    job = gateway.row(job_id)
    assert 1.0 <= time.monotonic() - began < 5
    assert (job.status.value, job.attempts) == ("retrying", 1)
    assert [error.code for error in job.last_errors] == ["vendor_timeout"]


@pytest.mark.proves(13, on="moto")
def test_message_that_nobody_can_read_is_moved_by_the_queue_itself(gateway: Gateway) -> None:
    gateway.sqs.send_message(QueueUrl=gateway.url("InteractiveQueue"), MessageBody="not ours")

    received = 0
    while gateway.lane.once():
        received += 1

    dead = gateway.sqs.receive_message(QueueUrl=gateway.url("DeadLetterQueue"))["Messages"]
    assert [message["Body"] for message in dead] == ["not ours"]
    assert received == 10
    assert gateway.sends == ["InteractiveQueue"]  # by this test


@pytest.mark.proves(15, on="moto")
def test_copy_of_a_message_calls_nobody(gateway: Gateway) -> None:
    job_id = gateway.submit("Twice", no_store=True)  # an entry would hide a second run
    body = json.dumps({"tenant": "acme", "job_id": job_id})
    gateway.sqs.send_message(QueueUrl=gateway.url("InteractiveQueue"), MessageBody=body)

    while gateway.lane.once():
        pass

    assert gateway.row(job_id).attempts_total == 1
    counted = httpx.get(f"{gateway.simulator.control_url}/calls").json()
    assert counted["by_prompt"]["Twice"]["calls"] == 1
