"""The main job across the functions, each under AWS's own runtime."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import api_key
from sluiceway_local import processes
from sluiceway_local.poller import Poller

from tests.functions.stage import request
from tests.rie.cloud import API_KEY, VENDOR_KEY, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rie.cloud import Cloud
    from tests.rie.runtime import Runtime

pytestmark = pytest.mark.slow

PROMPT = "mark-of-the-prompt"
RESULT = "mark-of-the-result"
JOB = {"model": "demo-chat", "input": PROMPT, "options": {"sim": {"text": RESULT}}}


def ask(api: Runtime, method: str, path: str, body: Any = None, **changes: Any) -> tuple[int, Any]:
    """Status and body of an answer."""
    event = request(method, path, **changes)
    event["body"] = None if body is None else json.dumps(body)
    answer = api.invoke(event)
    return answer["statusCode"], json.loads(answer["body"])


def submit(api: Runtime, **changes: Any) -> Any:
    """The job, or its result."""
    status, body = ask(api, "POST", "/jobs", {**JOB, **changes})
    assert status in {200, 202}
    return body


def poller(cloud: Cloud, queue: str, function: Runtime) -> Poller:
    return Poller(
        sqs=cloud.client("sqs"),
        queue_url=cloud.url_of(queue),
        handler=lambda event, _: function.invoke(event),
        function_name=function.function,
        timeout_s=30,
    )


@contextmanager
def sink() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A partner's server, and the headers of what came."""
    came: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            came.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream_event(item: dict[str, Any]) -> Any:
    """What the stream tells of a job that has just ended."""
    event = sample("publish_events")
    event["Records"][0]["dynamodb"] |= {
        "NewImage": item,
        "OldImage": {**item, "status": {"S": "processing"}},
    }
    return json.loads(json.dumps(event, default=lambda binary: b64encode(binary).decode()))


def test_job_goes_from_the_key_to_the_result(cloud: Cloud) -> None:
    functions = [cloud.run(f"{name}Function") for name in ("Authorize", "Api", "RunJob")]

    with functions[0] as authorize, functions[1] as api, functions[2] as worker:
        caller = authorize.invoke(sample("authorize"))["context"]
        accepted, job = ask(api, "POST", "/jobs", JOB, authorizer=caller)
        took = poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        fetched, done = ask(api, "GET", f"/jobs/{job['id']}", authorizer=caller)
        found, hit = ask(api, "POST", "/jobs", JOB, authorizer=caller)
        outputs = [function.output for function in (authorize, api, worker)]

    assert (accepted, took, fetched, found) == (202, 1, 200, 200)
    assert (done["status"], done["result"]["text"]) == ("completed", RESULT)
    assert (hit["cache"]["status"], hit["result"]["text"]) == ("hit", RESULT)
    assert cloud.sim.control("GET /_control/calls", {})["calls"] == 1
    assert cloud.messages("InteractiveQueue") == []
    for secret in (PROMPT, RESULT, API_KEY, VENDOR_KEY):
        assert not any(secret in output for output in outputs)


def test_end_of_a_job_reaches_its_partner(cloud: Cloud) -> None:
    names = ("Api", "RunJob", "PublishEvents", "DeliverWebhook")
    functions = [cloud.run(f"{name}Function") for name in names]

    with sink() as (url, came), functions[0] as api, functions[1] as worker:
        job = submit(api, callback_url=url)
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        with functions[2] as publisher, functions[3] as deliverer:
            told = publisher.invoke(stream_event(cloud.job_row(job["id"])))
            delivered = poller(cloud, "WebhookQueue", deliverer).once(wait_s=5)
            outputs = [function.output for function in (api, worker, publisher, deliverer)]

    assert (told, delivered) == (None, 1)
    (headers,) = came
    assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= set(headers)
    assert not any(secret in output for secret in (PROMPT, RESULT, url) for output in outputs)


@pytest.mark.proves(2)
def test_equal_submit_gets_the_open_job(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api:
        first, second = submit(api), submit(api)

    assert first["id"] == second["id"]
    assert (first["deduplicated"], second["deduplicated"]) == (False, True)
    assert len(cloud.messages("InteractiveQueue")) == 1


@pytest.mark.proves(15)
def test_copy_of_a_message_calls_nobody_again(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api, cloud.run("RunJobFunction") as worker:
        job = submit(api, cache={"no_store": True})  # an entry would hide a second run
        (message,) = cloud.messages("InteractiveQueue")
        event = sample("run_job")
        event["Records"][0] |= {"body": message["Body"]}
        answers = [worker.invoke(event) for _ in range(2)]

    assert answers == [{"batchItemFailures": []}] * 2
    assert cloud.job_row(job["id"])["attempts"] == {"N": "1"}
    assert cloud.sim.control("GET /_control/calls", {})["calls"] == 1


@pytest.mark.proves(10)
def test_another_tenants_job_is_not_found(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api:
        job = submit(api)
        other = ask(api, "GET", f"/jobs/{job['id']}", tenant="globex")
        cancelled = ask(
            api, "POST", f"/jobs/{job['id']}/cancel", tenant="globex", scopes="submit read cancel"
        )
        unknown = ask(api, "GET", "/jobs/job_unknown", tenant="globex")

    assert other[0] == cancelled[0] == unknown[0] == 404
    assert other[1]["code"] == cancelled[1]["code"] == unknown[1]["code"] == "job_not_found"


@pytest.mark.proves(5)
def test_message_of_a_cancelled_job_calls_nobody(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api, cloud.run("RunJobFunction") as worker:
        job = submit(api)
        cancelled = ask(api, "POST", f"/jobs/{job['id']}/cancel", scopes="cancel")
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        after = ask(api, "GET", f"/jobs/{job['id']}")

    assert cancelled[1]["status"] == after[1]["status"] == "cancelled"
    assert cloud.sim.control("GET /_control/calls", {})["calls"] == 0


@pytest.mark.proves(9)
def test_expired_key_is_refused_while_its_row_is_there(cloud: Cloud) -> None:
    hashed = {"S": api_key.key_hash(API_KEY)}
    cloud.client("dynamodb").update_item(
        TableName="PartnersTable",
        Key={"key_hash": hashed},
        UpdateExpression="SET expires_at_epoch_s = :past",
        ExpressionAttributeValues={":past": {"N": "1"}},
    )

    with cloud.run("AuthorizeFunction") as authorize:
        policy = authorize.invoke(sample("authorize"))["policyDocument"]

    assert policy["Statement"][0]["Effect"] == "Deny"


@pytest.mark.proves(21)
def test_entry_says_its_age_which_reads_do_not_change(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api, cloud.run("RunJobFunction") as worker:
        submit(api)
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        first = submit(api)["cache"]["age_s"]
        aged = processes.wait_for(
            lambda: submit(api)["cache"]["age_s"] >= first + 2, timeout_s=10, pause_s=0.2
        )

    assert aged


@pytest.mark.proves(20)
def test_invalidated_entry_is_not_served_after_five_seconds(cloud: Cloud) -> None:
    functions = [cloud.run(f"{name}Function") for name in ("Api", "RunJob", "InvalidateCache")]

    with functions[0] as api, functions[1] as worker, functions[2] as invalidator:
        submit(api)
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        hit = submit(api)
        invalidator.invoke(sample("invalidate_cache"))
        gone = processes.wait_for(
            lambda: submit(api)["cache"]["status"] == "miss", timeout_s=5, pause_s=0.5
        )

    assert hit["cache"]["status"] == "hit"
    assert gone


@pytest.mark.proves(11)
def test_cut_off_answer_is_not_cached(cloud: Cloud) -> None:
    options = {"sim": {"text": RESULT, "finish": "length"}}

    with cloud.run("ApiFunction") as api, cloud.run("RunJobFunction") as worker:
        first = submit(api, options=options)
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        second = submit(api, options=options)

    assert cloud.job_row(first["id"])["status"] == {"S": "completed"}
    assert second["cache"]["status"] == "miss"
    assert second["id"] != first["id"]


@pytest.mark.parametrize(
    ("size_bytes", "member"), [(4_000_000, "result"), (5_600_000, "result_url")]
)
def test_answer_stays_under_what_lambda_takes(size_bytes: int, member: str, cloud: Cloud) -> None:
    options = {"sim": {"size_bytes": size_bytes}}

    with cloud.run("ApiFunction") as api, cloud.run("RunJobFunction") as worker:
        job = submit(api, options=options)
        poller(cloud, "InteractiveQueue", worker).once(wait_s=5)
        status, done = ask(api, "GET", f"/jobs/{job['id']}")

    assert (status, done["status"]) == (200, "completed")
    assert {"result", "result_url"} & set(done) == {member}
