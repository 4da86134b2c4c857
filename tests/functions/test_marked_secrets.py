"""None of the marks in tests/functions/marked.py comes out, at INFO, at DEBUG, or in a trace."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.functions.marked import CALLBACK, MASTER, PROMPT, RESULT

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(
    str(ROOT / part) for part in (".", "layers/core", "cli", "local", "client")
)
DEADLINE_S = 120.0

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
MARK = re.compile(r"mark-of-the-[a-z0-9-]+")
ENCODED = [
    base64.b64encode(b" " * shift + b"mark-of-the-")[4 * (shift > 0) : -4].decode()
    for shift in range(3)
]
"""What every base64 of a mark holds, wherever it begins in the text."""


@dataclass(frozen=True)
class Outcome:
    """All that a run put out."""

    stdout: str
    stderr: str
    segments: str
    report: dict[str, Any]


@pytest.fixture(scope="module", params=["DEBUG", "INFO"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Plays the main job once, with an X-Ray daemon that listens."""
    report = tmp_path_factory.mktemp("marked") / "report.json"
    packets: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(0.1)
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                try:
                    packets.append(daemon.recv(65_536))
                except TimeoutError:
                    continue

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-m", "tests.functions.marked", str(report)],
                cwd=ROOT,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": PYTHONPATH,
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_DEFAULT_REGION": "us-east-1",
                    "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
                    "LAMBDA_TASK_ROOT": "/var/task",
                    "_X_AMZN_TRACE_ID": TRACE,
                    "POWERTOOLS_LOG_LEVEL": request.param,
                    "POWERTOOLS_TRACER_CAPTURE_RESPONSE": "false",
                    "POWERTOOLS_TRACER_CAPTURE_ERROR": "false",
                },
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )
        finally:
            over.set()
            listener.join()
    assert done.returncode == 0, done.stderr
    return Outcome(
        done.stdout,
        done.stderr,
        b"\n".join(packets).decode(),
        json.loads(report.read_text("utf-8")),
    )


def marks_in(text: str) -> set[str]:
    """The marks in a text, as they are or in base64."""
    return set(MARK.findall(text)) | {one for one in ENCODED if one in text}


# ------------------------------------------------------------------ what the run was


def test_marks_are_found_in_whatever_form() -> None:
    forms = [PROMPT, json.dumps({"a": PROMPT}), *(" " * n + PROMPT for n in range(3))]

    assert marks_in(forms[0]) == marks_in(forms[1]) == {PROMPT}
    for form in forms:
        assert marks_in(base64.b64encode(form.encode()).decode())


def test_run_was_the_whole_main_job(outcome: Outcome) -> None:
    happened = set(outcome.report["happened"])

    assert happened >= {
        *("authorize Allow", "authorize Deny"),
        *("POST jobs 202", "POST jobs 200", "POST jobs 400", "POST jobs 422", "POST jobs 404"),
        *("GET jobs 200", "GET jobs 404", "POST batches 202", "POST webhooks 201"),
        *("POST chat 504", "POST chat 200", "POST responses 200", "POST responses 422"),
        *("POST admin 200", "unexpected 500", "webhook 204", "webhook 503"),
        *("job completed", "job failed", "job cancelled", "job retrying"),
        *("run_job 0 kept", "run_job 1 kept", "deliver_webhook 0 kept", "deliver_webhook 1 kept"),
    }
    assert len(outcome.report["secrets"]) >= 3
    assert any("vendor_auth_failed" in error for error in outcome.report["errors"])


def test_run_wrote_logs_and_traces(outcome: Outcome) -> None:
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    messages = {line.get("message") for line in lines}
    names = re.findall(r'"name":\s*"([^"]+)"', outcome.segments)

    assert messages >= {
        *("job_submitted", "job_completed", "job_failed", "request_refused", "unexpected_error"),
    }
    assert any("_aws" in line for line in lines)
    assert {"## api", "## run_job", "## deliver_webhook"} <= set(names)
    assert {"dynamodb", "sqs", "secretsmanager"} <= {name.lower() for name in names}


# ------------------------------------------------------------------ what came out


def test_logs_and_metrics_hold_no_mark(outcome: Outcome) -> None:
    assert marks_in(outcome.stdout) == set()


def test_nothing_else_that_was_printed_holds_a_mark(outcome: Outcome) -> None:
    assert marks_in(outcome.stderr) == set()


def test_traces_hold_no_mark(outcome: Outcome) -> None:
    assert '"type":"RuntimeError"' in outcome.segments.replace(": ", ":")  # an error is told
    assert marks_in(outcome.segments) == set()


@pytest.mark.parametrize("what", ["events", "audit", "errors"])
def test_what_others_are_told_holds_no_mark(outcome: Outcome, what: str) -> None:
    told = outcome.report[what]

    assert told
    assert marks_in("\n".join(told)) == set()


def test_messages_hold_no_mark_but_the_address_of_a_callback(outcome: Outcome) -> None:
    # Its queue is where the deliverer has it from; the lanes hold ids alone.
    messages = {
        queue: marks_in("\n".join(sent)) for queue, sent in outcome.report["messages"].items()
    }

    assert messages == {"InteractiveQueue": set(), "BatchQueue": set(), "WebhookQueue": {CALLBACK}}


def test_secrets_of_webhooks_are_told_to_the_partner_alone(outcome: Outcome) -> None:
    told = json.dumps([outcome.report[name] for name in ("messages", "events", "audit", "errors")])
    everything = outcome.stdout + outcome.stderr + outcome.segments + told

    assert "whsec_" not in everything
    for secret in (*outcome.report["secrets"], MASTER):
        assert secret.removeprefix("whsec_") not in everything


def test_result_is_nowhere_but_in_answers(outcome: Outcome) -> None:
    assert RESULT not in outcome.stdout + outcome.stderr + json.dumps(outcome.report)
