"""docs/partners.md: each of its snippets, in its order, on a running stack."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.webhook import JobEvent
from sluiceway_local import deploy, emulator, stack
from standardwebhooks.webhooks import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway_local.state import LocalStack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/partners.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ADDRESS = "https://HOST/"
"""In the one block that only says what is needed."""

PYTHON = [text for language, text in BLOCKS if language == "python" and "def receive" not in text]
DEADLINE_S = 180


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("partners") / ".sluiceway"
    try:
        yield stack.up(deploy.Source(ROOT), port=emulator.free_port(), folder=folder)
    finally:
        stack.down(folder)


def environment(local: LocalStack) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "client"),
        "SLUICEWAY_API_URL": local.api_url,
        "SLUICEWAY_API_KEY": local.partners["acme"],
    }


def run(command: list[str], local: LocalStack, folder: Path) -> str:
    done = subprocess.run(  # noqa: S603 - our own page
        command,
        env=environment(local),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documents(text: str) -> list[Any]:
    """The JSON documents in an output, whatever stands between them."""
    found, at = [], text.find("{")
    while at >= 0:
        value, end = json.JSONDecoder().raw_decode(text, at)
        found.append(value)
        at = text.find("{", end)
    return found


def shape(value: Any) -> Any:
    """What a document is made of: names and types, and of a list the first one's."""
    match value:
        case dict():
            return {name: shape(one) for name, one in value.items()}
        case list():
            return [shape(one) for one in value[:1]]
        case bool() | None:
            return type(value).__name__
        case int() | float():
            return "number"
    return "text"


def test_page_has_snippets_of_each_kind() -> None:
    languages = [language for language, _ in BLOCKS]

    assert set(languages) == {"sh", "python", "json"}
    assert [text for _, text in BLOCKS if ADDRESS in text] == [BLOCKS[0][1]]


def test_shell_snippets_do_what_the_page_says(local: LocalStack, tmp_path: Path) -> None:
    shown: dict[int, Any] = {}
    script = ["set -euo pipefail"]
    for number, (language, text) in enumerate(BLOCKS):
        if language == "json":
            shown[number - 1] = json.loads(text)
        elif language == "sh" and ADDRESS not in text:
            script.append(f"{{\n{text}\n}} > out-{number}")

    run(["bash", "-c", "\n".join(script)], local, tmp_path)

    told = {
        int(path.name.removeprefix("out-")): documents(path.read_text("utf-8"))
        for path in tmp_path.glob("out-*")
    }
    assert len(told) == len(script) - 1
    for number, answers in told.items():
        assert answers, BLOCKS[number][1]
        if number in shown:
            assert [shape(answer) for answer in answers] == [shape(shown[number])]
        else:  # nothing was refused
            assert not [answer for answer in answers if "code" in answer]


@pytest.mark.parametrize("text", PYTHON, ids=range(len(PYTHON)))
def test_python_snippet_runs_and_prints(text: str, local: LocalStack, tmp_path: Path) -> None:
    printed = run([sys.executable, "-W", "error", "-c", text], local, tmp_path)

    assert printed.strip()
    assert "None" not in printed


def test_webhook_on_the_page_is_one_of_ours() -> None:
    (text,) = [text for language, text in BLOCKS if language == "json" and '"data"' in text]
    event = JobEvent(
        **dict.fromkeys(("tenant", "job_id", "model", "lane", "request_id", "correlation_id"), "x"),
        **dict.fromkeys(("at_epoch_ms", "created_at_epoch_ms", "attempts", "redrives"), 1),
        **dict.fromkeys(("started_at_epoch_ms", "completed_at_epoch_ms"), 1),
        **dict.fromkeys(("input_tokens", "output_tokens", "cost_nanos", "saved_nanos"), 1),
        status="completed",
    )

    assert shape(json.loads(text)) == shape(json.loads(event.webhook_body))


def test_receiver_takes_our_webhooks_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    monkeypatch.setenv("WEBHOOK_SECRET", secret)
    (text,) = [text for _, text in BLOCKS if "def receive" in text]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/partners.md", "exec"), names)  # noqa: S102 - our own page
    body = json.dumps(
        {
            "type": "job.completed",
            "timestamp": "2026-11-30T08:34:25.374Z",
            "data": {"job_id": "job_1", "status": "completed"},
        }
    )
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("evt_1", now, body),
    }

    assert names["receive"](body.encode(), headers) == 204
    assert names["receive"](body.replace("job_1", "job_2").encode(), headers) == 400
