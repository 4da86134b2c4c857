"""How invocations end that don't end well: too late, by an error, or with their process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local import emulator, processes

from tests.functions.stage import request
from tests.rie.cloud import sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rie.cloud import Cloud

pytestmark = pytest.mark.slow

PROMPT = "mark-of-the-prompt"
FORM = {"errorMessage", "errorType", "requestId", "stackTrace"}
"""Lambda's, of an error that a handler lets out."""

MARGIN_S = 6
"""Nobody takes a lease over before so long after its end."""

OVERTIME = """
import app
from types import SimpleNamespace

def handler(event, context):
    return app.handler(event, SimpleNamespace(
        **vars(context), get_remaining_time_in_millis=lambda: 60_000 if event["overtime"] else
        context.get_remaining_time_in_millis()))
"""
"""A worker that believes to have more time than it has, and so isn't done when that is up."""


def submitted(cloud: Cloud, fault: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A job whose vendor has this fault, and the event with its message."""
    event = request("POST", "/jobs")
    job = {"model": "demo-chat", "input": PROMPT, "options": {"sim": fault}}
    event["body"] = json.dumps(job)
    with cloud.run("ApiFunction") as api:
        job_id: str = json.loads(api.invoke(event)["body"])["id"]
    (message,) = cloud.messages("InteractiveQueue")
    delivery = sample("run_job")
    delivery["Records"][0] |= {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
    }
    return job_id, delivery


def calls(cloud: Cloud) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = cloud.sim.control("GET /_control/spans", {})["calls"]
    return spans


def in_flight(cloud: Cloud) -> int:
    count: int = cloud.sim.control("GET /_control/calls", {})["in_flight"]
    return count


# ------------------------------------------------------------------------------------ time


@pytest.mark.proves(8)
def test_worker_gives_the_message_of_a_hanging_vendor_back_in_time(cloud: Cloud) -> None:
    # The model and the template's lease would let the call take 60 s.
    job_id, event = submitted(cloud, {"hang": True})

    with cloud.run("RunJobFunction", timeout_s=20) as worker:
        answer = worker.invoke(event)
        output = worker.output

    assert answer == {"batchItemFailures": [{"itemIdentifier": event["Records"][0]["messageId"]}]}
    assert "timed out" not in output
    row = cloud.job_row(job_id)
    assert row["status"] == {"S": "retrying"}
    assert row["error"]["M"]["code"] == {"S": "vendor_timeout"}


@pytest.mark.proves(3, 7)
def test_job_of_a_worker_whose_time_was_up_is_taken_over_after_its_lease(
    cloud: Cloud, tmp_path: Path
) -> None:
    # worker 1: acquires fence 1, 18 s ── calls ── 3 s: ended by Lambda
    # copies:                                        at work, nothing ─── 24 s: fence 2, calls
    (tmp_path / "overtime.py").write_text(OVERTIME)
    job_id, event = submitted(cloud, {"hang": True, "times": 1})
    settings = {**cloud.settings_of("RunJobFunction"), "LEASE_S": "18"}

    with cloud.run(
        "RunJobFunction", settings=settings, timeout_s=3, handler="overtime.handler", code=tmp_path
    ) as worker:
        worker.invoke({"Records": [], "overtime": False})
        (first,) = worker.pids()
        ended = worker.post({**event, "overtime": True})
        copies: list[Any] = []

        def taken_over() -> bool:
            copies.append(worker.invoke({**event, "overtime": True}))
            return cloud.job_row(job_id)["status"] == {"S": "completed"}

        assert processes.wait_for(taken_over, timeout_s=60, pause_s=1)
        (second,) = worker.pids()

    assert ended == "Task timed out after 3.00 seconds"
    assert first != second
    assert copies == [{"batchItemFailures": []}] * len(copies)
    row = cloud.job_row(job_id)
    assert (row["attempts"], row["fence"]) == ({"N": "2"}, {"N": "2"})
    lost, kept = calls(cloud)
    assert kept["arrived_at_s"] - lost["arrived_at_s"] > 18 + MARGIN_S - 3
    assert lost["idempotency_key"] == kept["idempotency_key"] == job_id


# ------------------------------------------------------------------------------------ errors


def test_error_that_the_publisher_lets_out_has_lambdas_form_and_no_text_of_a_job(
    cloud: Cloud,
) -> None:
    nowhere = f"http://127.0.0.1:{emulator.free_port()}"

    with cloud.run("PublishEventsFunction", endpoint_url=nowhere) as publisher:
        told = publisher.post(sample("publish_events"))
        output = publisher.output

    error = json.loads(told)
    assert set(error) == FORM
    assert error["errorType"] == "NotPublishedError"
    assert f"START RequestId: {error['requestId']}" in output
    assert error["stackTrace"]
    for text in ("hunter2", b64encode(b"a prompt of hunter2").decode()):
        assert text not in told + output


def test_api_without_aws_answers_with_a_problem(cloud: Cloud) -> None:
    nowhere = f"http://127.0.0.1:{emulator.free_port()}"

    with cloud.run("ApiFunction", endpoint_url=nowhere) as api:
        answer = api.invoke(sample("api_submit"))

    assert answer["statusCode"] == 503
    assert answer["multiValueHeaders"]["Content-Type"] == ["application/problem+json"]
    assert json.loads(answer["body"])["code"] == "degraded"


def test_api_whose_table_is_gone_answers_with_a_problem_and_writes_no_prompt(
    cloud: Cloud,
) -> None:
    event = request("POST", "/jobs")
    event["body"] = json.dumps({"model": "demo-chat", "input": PROMPT})
    settings = {**cloud.settings_of("ApiFunction"), "CACHE_TABLE": "no-such-table"}

    with cloud.run("ApiFunction", settings=settings) as api:
        told = api.post(event)
        output = api.output

    answer = json.loads(told)
    assert answer["statusCode"] == 500
    assert answer["multiValueHeaders"]["Content-Type"] == ["application/problem+json"]
    assert json.loads(answer["body"])["code"] == "internal"
    assert PROMPT not in told + output


def test_catalogue_that_is_refused_says_why_in_lambdas_form(cloud: Cloud) -> None:
    event = sample("check_catalogue")
    event["content"] = b64encode(b"[models.demo-chat]\nvendor = 'nobody'\n").decode()

    with cloud.run("CheckCatalogueFunction") as check:
        error = check.invoke(event)

    assert set(error) == FORM
    assert error["errorType"] == "ConfigurationError"
    assert "models.demo-chat.version: Field required" in error["errorMessage"]


# ------------------------------------------------------------------------------------ processes


def test_function_that_cannot_be_imported_says_so_each_time(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import no_such_package\n")

    with cloud.run("RunJobFunction", code=tmp_path) as broken:
        answers = [broken.invoke(sample("run_job")) for _ in range(2)]
        output = broken.output

    for answer in answers:
        assert set(answer) == FORM
        assert answer["errorType"] == "Runtime.ImportModuleError"
        assert answer["errorMessage"] == (
            "Unable to import module 'app': No module named 'no_such_package'"
        )
    assert "INIT RTDONE(status: error)" in output


def test_killed_worker_is_a_function_error_and_a_new_process_goes_on(cloud: Cloud) -> None:
    job_id, event = submitted(cloud, {"hang": True})
    answers: list[Any] = []

    with cloud.run("RunJobFunction") as worker:
        invocation = threading.Thread(target=lambda: answers.append(worker.invoke(event)))
        invocation.start()
        assert processes.wait_for(lambda: in_flight(cloud) == 1, timeout_s=20)
        (pid,) = worker.pids()
        os.kill(pid, signal.SIGKILL)
        invocation.join()
        after = worker.invoke(sample("run_job_batch"))
        (new,) = worker.pids()

    (killed,) = answers
    assert killed["errorType"] == "Runtime.ExitError"
    assert killed["errorMessage"].endswith("Error: Runtime exited with error: signal: killed")
    assert after == {"batchItemFailures": []}
    assert new != pid
    assert cloud.job_row(job_id)["status"] == {"S": "processing"}  # its lease has to end first


def test_environment_is_kept_warm_between_invocations(cloud: Cloud) -> None:
    with cloud.run("ApiFunction") as api:
        began = time.monotonic()
        api.invoke(sample("api_health"))
        between = time.monotonic()
        api.invoke(sample("api_health"))
        ended = time.monotonic()
        output = api.output

    assert output.count("INIT START") == 1
    assert ended - between < between - began
