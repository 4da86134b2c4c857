"""The main job with marks in whatever is secret, through the real handlers and adapters.

A program of its own, so that all that the functions write is its output: `python -m
tests.functions.marked REPORT`. AWS is moto's, the vendor and the partner's server are real. REPORT
is what went to queues, bus and audit log, what stayed in rows as errors, and what happened.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.domain import api_key
from sluiceway.ports import PartnerKey
from sluiceway_local.simulator import Simulator

from functions.api import app as api
from functions.authorize import app as authorize
from functions.deliver_webhook import app as deliver_webhook
from functions.invalidate_cache import app as invalidate_cache
from functions.publish_events import app as publish_events
from functions.run_job import app as run_job
from functions.sweep_jobs import app as sweep_jobs
from tests.fakes.appconfig import FakeAppConfig
from tests.functions.stage import SIMULATED, request, sample
from tests.template.calls import make_resources
from tests.unit.logs import a_context

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = "mark-of-the-prompt"
RESULT = "mark-of-the-result"
METADATA = "mark-of-the-metadata"
REFUSED = "mark-of-the-refused-body"
IDEMPOTENCY_KEY = "mark-of-the-idempotency-key"
CALLBACK = "mark-of-the-callback"
ENDPOINT = "mark-of-the-endpoint"
VENDOR_KEY = "sk-mark-of-the-vendor-key"
MASTER = "mark-of-the-webhooks-master-key-of-64-characters".ljust(64, "0")
API_KEY = "swk_" + "mark-of-the-api-key".ljust(43, "0")
BAD_KEY = "swk_" + "mark-of-the-bad-api-key".ljust(43, "0")


class Report:
    """What the functions told others, and what happened."""

    def __init__(self) -> None:
        self.messages: dict[str, list[str]] = {}
        """Bodies by queue."""
        self.events: list[str] = []
        self.audit: list[str] = []
        self.errors: list[str] = []
        """Of the jobs' rows."""
        self.secrets: list[str] = []
        """That the API showed the partner."""
        self.happened: list[str] = []

    def hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """botocore says that a client was called."""
        match model.name:
            case "SendMessage" | "SendMessageBatch":
                queue = params["QueueUrl"].rsplit("/", 1)[1]
                sent = json.dumps(params.get("Entries", params), default=str)
                self.messages.setdefault(queue, []).append(sent)
            case "PutEvents":
                self.events.append(json.dumps(params["Entries"], default=str))
            case "PutItem" if params["Item"].get("tenant", {}).get("S", "").startswith("audit#"):
                self.audit.append(json.dumps(params["Item"]))


class Cast:
    """The functions, called as Lambda calls them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._sqs, self._dynamodb = boto3.client("sqs"), boto3.client("dynamodb")

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        time_left_ms: int = 29_000,
        **headers: str,
    ) -> Any:
        """An answer of the API, and a note of its status."""
        event = request(
            method,
            path,
            scopes=" ".join(api_key.SCOPES),
            headers={"Authorization": f"Bearer {API_KEY}", **headers},
        )
        event["body"] = body if isinstance(body, str | None) else json.dumps(body)
        answer = api.handler(event, a_context(time_left_ms=time_left_ms))
        self.report.happened.append(f"{method} {path.split('/')[1]} {answer['statusCode']}")
        document = json.loads(answer["body"])
        if isinstance(document, dict) and "secret" in document:
            self.report.secrets.append(document["secret"])
        return document

    def let_in(self, key: str) -> None:
        """The authorizer's word about a key."""
        event = sample("authorize")
        event["headers"]["Authorization"] = f"Bearer {key}"
        answer = authorize.handler(event, a_context(function_name="authorize"))
        effect = answer["policyDocument"]["Statement"][0]["Effect"]
        self.report.happened.append(f"authorize {effect}")

    def run(self, queue: str, handler: Any, what: str) -> None:
        """Gives every message of a queue to its function."""
        url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        while messages := self._sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in messages:
                (record,) = deepcopy(sample("run_job")["Records"])
                record |= {
                    "messageId": message["MessageId"],
                    "receiptHandle": message["ReceiptHandle"],
                    "body": message["Body"],
                    "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue}",
                }
                kept = handler({"Records": [record]}, a_context(function_name=what))
                self.report.happened.append(f"{what} {len(kept['batchItemFailures'])} kept")
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def publish(self) -> None:
        """Tells of the ends of all jobs, as the stream does."""
        records = []
        for item in self._dynamodb.scan(TableName="JobsTable")["Items"]:
            if "status" not in item:
                continue
            record = deepcopy(sample("publish_events")["Records"][0])
            before = {**item, "status": {"S": "processing"}}
            record["dynamodb"] |= {"NewImage": item, "OldImage": before}
            records.append(record)
            status = item["status"]["S"]
            self.report.happened.append(f"job {status}")
            self.report.errors.append(json.dumps([item.get("error"), item.get("last_errors")]))
        publish_events.handler({"Records": records}, a_context(function_name="publish_events"))


class Broken:
    """A port whose every verb fails as nobody expects, with a text that repeats the prompt."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{name}: {PROMPT}")

        return fail


class BrokenCall(Broken):
    """Vendors that fail within the trace of a call."""

    def prepare(self, vendor: object) -> None:
        pass


BROKEN: Any = Broken()
BROKEN_CALL: Any = BrokenCall()


def play(cast: Cast, hook: str) -> None:
    """The main job: hit, miss, failures, webhooks, cancel, bad requests, both forms."""
    keyed = {"Idempotency-Key": IDEMPOTENCY_KEY}
    job = {
        "model": "demo-chat",
        "input": PROMPT,
        "options": {"sim": {"text": RESULT}},
        "metadata": {"name": METADATA},
        "callback_url": f"{hook}/{CALLBACK}?token={CALLBACK}",
    }
    cast.let_in(API_KEY)
    cast.let_in(BAD_KEY)
    endpoint = {"url": f"{hook}/{ENDPOINT}?token={ENDPOINT}", "description": ENDPOINT}
    webhook_id = cast.ask("POST", "/webhooks", endpoint)["id"]
    cast.ask("POST", f"/webhooks/{webhook_id}/rotate", {"overlap_s": 60})
    cast.ask("POST", "/webhooks/callbacks/rotate", {"overlap_s": 60})
    cast.ask("POST", f"/webhooks/{webhook_id}/test")
    for _ in range(2):  # the second is a replay
        job_id = cast.ask("POST", "/jobs", job, **keyed)["id"]
    cast.ask("POST", "/jobs", {**job, "input": f"another {PROMPT}"}, **keyed)  # a key used again
    cast.run("InteractiveQueue", run_job.handler, "run_job")
    cast.ask("GET", f"/jobs/{job_id}")
    cast.ask("POST", "/jobs", job)  # a hit
    for fault in ({"status": 400}, {"status": 401}, {"status": 503}, {"malformed": True}):
        cast.ask("POST", "/jobs", {**job, "options": {"sim": {**fault, "text": RESULT}}})
    big = {**job, "input": PROMPT * 20_000, "options": {"sim": {"text": RESULT * 20_000}}}
    cast.ask("POST", "/jobs", big)
    cast.ask("POST", "/batches", {"jobs": [{**job, "input": f"b {PROMPT}", "custom_id": "1"}]})
    cast.run("InteractiveQueue", run_job.handler, "run_job")
    cast.run("BatchQueue", run_job.handler, "run_job")
    waiting = cast.ask("POST", "/jobs", {**job, "input": f"cancel {PROMPT}"})["id"]
    cast.ask("POST", f"/jobs/{waiting}/cancel")
    cast.ask("GET", "/jobs")
    said = {"model": "demo-chat", "messages": [{"role": "user", "content": f"chat {PROMPT}"}]}
    said |= {"user": METADATA, "metadata": {"name": METADATA}}
    cast.ask("POST", "/chat/completions", said, time_left_ms=2_000)
    cast.ask("POST", "/responses", {"model": "demo-chat", "input": PROMPT, "background": True})
    cast.run("InteractiveQueue", run_job.handler, "run_job")
    cast.ask("POST", "/chat/completions", said)
    for body in (
        f'{{"input": "{REFUSED}"',
        f'{{"{REFUSED}": 1, "{REFUSED}": 2}}',
        json.dumps({**job, REFUSED: REFUSED}),
        json.dumps({**job, "model": REFUSED}),
        json.dumps({**job, "input": {"messages": REFUSED}}),
        json.dumps({**job, "callback_url": f"ftp://{REFUSED}"}),
    ):
        cast.ask("POST", "/jobs", body)
        cast.ask("POST", "/responses", body)
    cast.ask("GET", f"/jobs/{REFUSED}")
    cast.publish()
    cast.run("WebhookQueue", deliver_webhook.handler, "deliver_webhook")
    cast.ask("GET", f"/webhooks/{webhook_id}/deliveries")
    cast.ask("POST", "/admin/cache/invalidate", {"model": "demo-chat"})
    invalidate_cache.handler(
        sample("invalidate_cache"), a_context(function_name="invalidate_cache")
    )
    sweep_jobs.handler({}, a_context(function_name="sweep_jobs"))
    unreadable = sample("run_job")
    unreadable["Records"][0]["body"] = PROMPT
    run_job.handler(unreadable, a_context(function_name="run_job"))
    play_the_unexpected(cast, {**job, "input": f"unexpected {PROMPT}"})


def play_the_unexpected(cast: Cast, job: dict[str, Any]) -> None:
    """Errors that nobody expects, in each function that works on what is secret."""
    cast.ask("POST", "/jobs", job)
    run = bootstrap.run_deps()
    broken_worker = run.worker()._replace(vendors=BROKEN_CALL)
    broken_run = run._replace(worker=lambda: broken_worker)
    cast.run(
        "InteractiveQueue",
        lambda event, context: run_job.handle(event, context, broken_run),
        "run_job",
    )
    deliver = bootstrap.deliver_deps()
    courier = deliver.courier()._replace(webhook_client=BROKEN)
    broken_courier = deliver._replace(courier=lambda: courier)
    cast.publish()
    cast.run(
        "WebhookQueue",
        lambda event, context: deliver_webhook.handle(event, context, broken_courier),
        "deliver_webhook",
    )
    deps = bootstrap.api_deps().now()
    broken_api = deps._replace(submitter=deps.submitter._replace(jobs=BROKEN))
    event = request("POST", "/jobs", headers={"Authorization": f"Bearer {API_KEY}"})
    event["body"] = json.dumps({**job, "input": f"again {PROMPT}"})
    status = api.handle(event, a_context(), broken_api)["statusCode"]
    cast.report.happened.append(f"unexpected {status}")


@contextmanager
def partners_server(report: Report) -> Iterator[str]:
    """A partner's server; the address of an endpoint is refused, a callback is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status = 503 if ENDPOINT in self.path else 204
            report.happened.append(f"webhook {status}")
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main(report_to: Path) -> None:
    """Plays it, and writes the report."""
    # As Lambda does: whatever a library tells at its level is seen.
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    report = Report()
    with mock_aws(), Simulator() as sim, partners_server(report) as hook:
        session = boto3.Session(botocore_session=bootstrap.session())
        os.environ.update({**make_resources(session, "dynamodb"), "TARGET": "local"})
        FakeAppConfig(session, catalogue=SIMULATED.format(url=sim.url), flags="{}")
        secrets = session.client("secretsmanager")
        secrets.put_secret_value(SecretId="sluiceway/vendors/vendor", SecretString=VENDOR_KEY)
        secrets.put_secret_value(SecretId="WebhookMaster", SecretString=MASTER)
        hashed = api_key.key_hash(API_KEY)
        key = PartnerKey(hashed, api_key.key_id(hashed), "acme", api_key.SCOPES, 0)
        bootstrap.authorize_deps().keys.add(key)
        session.events.register("provide-client-params", report.hear)
        vendors: Any = bootstrap.run_deps().worker().vendors
        play(Cast(report), hook)
        vendors.close()
    report_to.write_text(json.dumps(vars(report)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
