"""`sluiceway dlq` as a process that is told to end while it looks at the queue."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(str(ROOT / part) for part in ("layers/core", "cli"))
CODE = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

from sluiceway_cli.main import main

main()
"""
"""The command with the signals of a terminal, whatever these tests are run by."""

TIMEOUT_S = 60.0


class Sqs(ThreadingHTTPServer):
    """A queue of messages that aren't ours, which sends a signal to whoever receives for long.

    The signal goes out between the second receive and its answer.
    """

    daemon_threads = True

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.number = number
        self.pids: queue.Queue[int] = queue.Queue()
        self.hidden: set[str] = set()
        self.receives = 0

    def receive(self) -> dict[str, Any]:
        self.receives += 1
        name = f"message-{self.receives}"
        if self.receives == 2:
            os.kill(self.pids.get(timeout=TIMEOUT_S), self.number)
        if self.receives > 2:
            return {}
        self.hidden.add(name)
        return {"Messages": [{"MessageId": name, "ReceiptHandle": name, "Body": "not ours"}]}

    def change(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        for entry in entries:
            assert entry["VisibilityTimeout"] == 0
            self.hidden.remove(entry["ReceiptHandle"])
        return {"Successful": [{"Id": entry["Id"]} for entry in entries], "Failed": []}


class Requests(BaseHTTPRequestHandler):
    """The JSON protocol of SQS, as far as a look uses it."""

    server: Sqs

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.headers["X-Amz-Target"].removeprefix("AmazonSQS."):
            case "ReceiveMessage":
                answer = self.server.receive()
            case "ChangeMessageVisibilityBatch":
                answer = self.server.change(asked["Entries"])
            case "GetQueueAttributes":
                answer = {"Attributes": {"ApproximateNumberOfMessages": "2"}}
            case other:
                raise AssertionError(other)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def listening(number: signal.Signals) -> Iterator[Sqs]:
    with Sqs(number) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda value: getattr(value, "name", None),
)
def test_signal_in_a_receive_leaves_no_message_hidden(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with listening(number) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        queues = ("DeadLetterQueueUrl", "InteractiveQueueUrl", "BatchQueueUrl")
        tables = ("JobsTableName", "CacheTableName", "CoordinationTableName")
        local = {
            "api_url": url,
            "endpoint_url": url,
            "region": "us-east-1",
            "partners": {},
            "outputs": {
                **{name: f"{url}/1/{name}" for name in queues},
                **dict.fromkeys(tables, "t"),
            },
        }
        (tmp_path / ".sluiceway").mkdir()
        (tmp_path / ".sluiceway/local.json").write_text(json.dumps(local))

        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", CODE, "dlq", "list"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            server.pids.put(command.pid)
            try:
                stdout, stderr = command.communicate(timeout=TIMEOUT_S)
            finally:
                command.kill()

    assert command.returncode == code, stderr
    assert server.receives == 2
    assert server.hidden == set()
    assert stdout == ""
    assert "Traceback" not in stderr
