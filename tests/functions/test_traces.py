"""One linked trace from the API to the store, collected as X-Ray's daemon collects it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.functions.traced import LONG, RECORDS, ROOTS, SECRET

REPOSITORY = Path(__file__).parents[2]
LIMIT_BYTES = 64 * 1024
"""Of a document; X-Ray drops what is longer."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What the program left: its log lines, what it saw, and what was sent to the daemon."""

    logs: list[dict[str, Any]]
    errors: str
    seen: dict[str, Any]
    segments: list[dict[str, Any]]
    raw: list[bytes]

    def of(self, trace: str) -> list[dict[str, Any]]:
        """The segments of one invocation."""
        return [one for one in self.segments if one["trace_id"] == ROOTS[trace]]

    def named(self, trace: str, name: str) -> dict[str, Any]:
        """The only segment of this name in it."""
        (segment,) = (one for one in self.of(trace) if one["name"] == name)
        return segment

    def calls(self, trace: str) -> list[tuple[str, str]]:
        """The calls to AWS in it: service and operation."""
        ours = (one for one in self.of(trace) if one.get("namespace") == "aws")
        return [(one["name"], one["aws"]["operation"]) for one in ours]


@pytest.fixture(scope="module")
def traced() -> Traced:
    """The program's run, with this process as the daemon."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        daemon.bind(("127.0.0.1", 0))
        environment = {
            **{name: os.environ[name] for name in os.environ if name.startswith("AWS_")},
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(
                str(REPOSITORY / name) for name in ("", "layers/core", "cli", "local")
            ),
            "LAMBDA_TASK_ROOT": "/var/task",
            "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
        }
        done = subprocess.run(  # our own program
            [sys.executable, "-m", "tests.functions.traced"],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        raw = []
        daemon.setblocking(False)  # noqa: FBT003 - all of it is here
        while True:
            try:
                raw.append(daemon.recv(1024 * 1024))
            except BlockingIOError:
                break
    *logs, seen = map(json.loads, done.stdout.splitlines())
    segments = [json.loads(one.split(b"\n", 1)[1]) for one in raw]
    return Traced(logs, done.stderr, seen, segments, raw)


def test_trace_of_the_submit_is_on_the_row_and_in_the_message(traced: Traced) -> None:  # case O04
    assert f"Root={ROOTS['api']}" in traced.seen["header_of_row"]
    assert f"Root={ROOTS['api']}" in traced.seen["header_of_message"]


@pytest.mark.parametrize(("trace", "function"), [("api", "## api"), ("worker", "## run_job")])
def test_each_hop_of_a_job_can_be_searched_for(  # case O04
    traced: Traced, trace: str, function: str
) -> None:
    annotations = traced.named(trace, function)["annotations"]

    assert {
        "job_id": traced.seen["job_id"],
        "correlation_id": "corr-7",
        "tenant": "acme",
        "model": "demo-chat",
    }.items() <= annotations.items()


def test_each_hop_of_a_job_is_logged_under_one_correlation_id(traced: Traced) -> None:  # case O04
    of_job = [line for line in traced.logs if line.get("job_id") == traced.seen["job_id"]]

    assert {line["message"] for line in of_job} >= {"job_submitted", "job_completed"}
    assert {line["correlation_id"] for line in of_job} == {"corr-7"}


def test_trace_leads_from_the_api_to_queue_and_store(traced: Traced) -> None:
    assert traced.seen["status"] == "completed"
    assert ("sqs", "SendMessage") in traced.calls("api")
    assert ("dynamodb", "TransactWriteItems") in traced.calls("api")
    assert traced.calls("worker").count(("dynamodb", "TransactWriteItems")) == 2
    assert (
        traced.named("worker", "vendor simulator")["annotations"]["job_id"]
        == (traced.seen["job_id"])
    )


@pytest.mark.parametrize("trace", ["api", "worker"])
def test_parts_of_a_trace_hang_together(traced: Traced, trace: str) -> None:
    ids = {one["id"] for one in traced.of(trace)} | {"53995c3f42cd8ad8"}

    assert {one["parent_id"] for one in traced.of(trace)} <= ids


def test_vendor_is_sent_no_trace(traced: Traced) -> None:
    names = {name.lower() for name in traced.seen["vendor_headers"]}

    assert traced.seen["vendor_calls"] == 2
    assert "idempotency-key" in names
    assert not {name for name in names if "trace" in name or name.startswith("x-amzn")}


def test_trace_holds_no_text_of_a_request_an_answer_or_an_error(traced: Traced) -> None:  # case O03
    failed = traced.named("failure", "vendor simulator")

    (cause,) = failed["cause"]["exceptions"]

    assert failed["fault"] is True
    assert cause["type"] == "RuntimeError"
    assert "message" not in cause
    for one in traced.raw:
        assert SECRET.encode() not in one
        assert b"Bearer" not in one
        assert b"swk_" not in one
    assert "hunter2" not in json.dumps(traced.logs) + traced.errors


def test_each_record_of_a_batch_has_its_part_in_the_trace(traced: Traced) -> None:  # case O03
    of_batch = [one for one in traced.of("batch") if one["name"] == "vendor simulator"]

    assert len({one["annotations"]["job_id"] for one in of_batch}) == RECORDS
    assert all(one["fault"] for one in of_batch)


def test_parts_of_a_trace_are_small_and_come_each_by_itself(traced: Traced) -> None:  # case O03
    assert traced.seen["result_bytes"] > LONG
    assert max(map(len, traced.raw)) < LIMIT_BYTES
    assert not any(one.get("subsegments") for one in traced.segments)
    assert not any("metadata" in one for one in traced.segments)


def test_event_that_is_not_sampled_leaves_no_trace_and_no_noise(traced: Traced) -> None:
    assert traced.of("unsampled") == []
    assert not {"xray", "segment", "traceback"} & set(re.findall(r"[a-z]+", traced.errors.lower()))
    assert traced.seen["vendor_calls"] == 2
