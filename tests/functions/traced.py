"""The way of two jobs through the functions as Lambda traces it; a program of its own.

X-Ray's SDK decides at its import whether it is in Lambda, and patches botocore for the whole
process. The last line that is printed says what was seen on the way; before it come the logs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import boto3
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.usecases.payloads import load
from sluiceway_local.simulator import Simulator

from functions.api import app as api
from functions.run_job import app as run_job
from tests.fakes.appconfig import FakeAppConfig
from tests.functions.stage import INTERACTIVE_ARN, SIMULATED, request
from tests.template.calls import make_resources
from tests.unit.logs import a_context

if TYPE_CHECKING:
    from sluiceway.domain.catalogue import Vendor
    from sluiceway.ports import VendorAnswer, VendorCall

SECRET = "hunter2"  # what must be nowhere
LONG = 300_000
"""Characters of the first job's result, and of an input in each of these records."""
RECORDS = 10
ROOTS = {
    "api": "1-67891233-abcdef012345678912345678",
    "worker": "1-67891234-abcdef012345678912345678",
    "failure": "1-67891235-abcdef012345678912345678",
    "batch": "1-67891237-abcdef012345678912345678",
    "unsampled": "1-67891236-abcdef012345678912345678",
}


class Explodes:
    """A vendor's client that fails as nobody expects, with a text that nobody may see."""

    def prepare(self, vendor: Vendor) -> None:
        """It is ready."""

    def call(self, call: VendorCall) -> VendorAnswer:
        raise RuntimeError(f"{SECRET}: {call.body!r}")


def traced(name: str, *, sampled: int = 1) -> None:
    """The next event is traced under this name, as Lambda says it."""
    header = f"Root={ROOTS[name]};Parent=53995c3f42cd8ad8;Sampled={sampled}"
    os.environ["_X_AMZN_TRACE_ID"] = header


def submit(deps: Any, text: str) -> str:
    event = request("POST", "/jobs", headers={"X-Correlation-Id": "corr-7"})
    event["body"] = json.dumps({"model": "demo-chat", "input": f"{text} {SECRET}"})
    answer = api.handle(event, a_context(function_name="api", time_left_ms=29_000), deps)
    job_id: str = json.loads(answer["body"])["id"]
    return job_id


def message_of(sqs: Any, queue_url: str) -> dict[str, Any]:
    """The lane's next message as Lambda gets it."""
    (message,) = sqs.receive_message(
        QueueUrl=queue_url, AttributeNames=["All"], MessageSystemAttributeNames=["All"]
    )["Messages"]
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "eventSourceARN": INTERACTIVE_ARN.rpartition(":")[0] + ":InteractiveQueue",
    }


def run(deps: Any, *records: dict[str, Any]) -> None:
    run_job.handle({"Records": list(records)}, a_context(function_name="run_job"), deps)


def main() -> None:
    """Prints `header_of_row`, `header_of_message`, `job_id` and `vendor_headers`."""
    with mock_aws(), Simulator() as sim:
        session = boto3.Session(botocore_session=bootstrap.session())
        os.environ.update(make_resources(session, "dynamodb"))
        sqs, queue_url = session.client("sqs"), os.environ["INTERACTIVE_QUEUE_URL"]
        FakeAppConfig(session, catalogue=SIMULATED.format(url=sim.url), flags="{}")
        api_deps, run_deps = bootstrap.api_deps().now(), bootstrap.run_deps()
        worker = run_deps.worker()

        traced("api")
        job_id = submit(api_deps, f'first [[sim {{"size_bytes": {LONG}}}]]')
        record = message_of(sqs, queue_url)
        traced("worker")
        run(run_deps, record)

        traced("unsampled", sampled=0)
        submit(api_deps, "second")
        traced("failure")
        broken = worker._replace(vendors=Explodes())
        exploding = run_deps._replace(worker=lambda: broken)
        run(exploding, message_of(sqs, queue_url))

        traced("unsampled", sampled=0)
        for number in range(RECORDS):
            submit(api_deps, f"long {number} {'x' * LONG}")
        traced("batch")
        run(exploding, *(message_of(sqs, queue_url) for _ in range(RECORDS)))

        traced("unsampled", sampled=0)
        submit(api_deps, "third")
        run(run_deps, message_of(sqs, queue_url))
        job = worker.jobs.get("acme", job_id)
        seen = {
            "job_id": job_id,
            "status": job and job.status,
            "header_of_row": job and job.trace_header,
            "header_of_message": record["attributes"].get("AWSTraceHeader"),
            "vendor_headers": sim.ledger.snapshot()["headers"]["names"],
            "result_bytes": job and job.result and len(load(job.result, payloads=worker.payloads)),
            "vendor_calls": sim.ledger.snapshot()["calls"],
        }
        worker.vendors.close()  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
