"""The examples of the client's README, over real sockets."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_client import Client

from tests.client.server import KEY, job

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[2] / "client/README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)

A_JOB = job(cache={"status": "hit"})
A_BATCH = {
    "id": "batch_1",
    "status": "completed",
    "request_counts": {"total": 2, "completed": 1, "failed": 1},
    "data": [{"custom_id": "a", "job": A_JOB}, {"custom_id": "b", "error": {"code": "internal"}}],
}


class Api(BaseHTTPRequestHandler):
    """Every job is done, and every batch."""

    def do_GET(self) -> None:
        """Answers."""
        body = json.dumps(A_BATCH if "/batches" in self.path else A_JOB).encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class names it

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def api_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(api_url: str, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_API_URL", api_url)
    monkeypatch.setenv("SLUICEWAY_API_KEY", KEY)

    exec(compile(example, str(README), "exec"), {})  # noqa: S102 - our own text


def test_example_prints_the_text(
    api_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICEWAY_API_URL", api_url)
    monkeypatch.setenv("SLUICEWAY_API_KEY", KEY)

    exec(compile(EXAMPLES[0], str(README), "exec"), {})  # noqa: S102 - our own text

    assert capsys.readouterr().out == "Hello. hit\n"


def test_client_is_shared_by_threads(api_url: str) -> None:
    texts: list[str] = []
    with Client(api_url, KEY) as client:
        threads = [
            threading.Thread(target=lambda: texts.append(client.run(model="m", input="i").text))
            for _ in range(8)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    assert texts == ["Hello."] * 8
