"""The command line where it needs no stack: what it refuses, and how it says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest
from click.testing import CliRunner, Result
from sluiceway.domain.payload import Payload
from sluiceway_cli.api import Api
from sluiceway_cli.dlq_commands import dead_letter_line
from sluiceway_cli.main import cli
from sluiceway_cli.progress import lines
from sluiceway_cli.target import job_row

from tests.fakes.examples import a_job, failed

if TYPE_CHECKING:
    from pathlib import Path

DEAD_STACK = {
    "api_url": "http://127.0.0.1:9/v1",
    "endpoint_url": "http://127.0.0.1:9",
    "region": "us-east-1",
    "stack": "sluiceway-local",
    "partners": {"acme": "swk_x"},
    "outputs": {"PartnersTableName": "p", "JobsTableName": "j", "CacheTableName": "c"},
    "vendor_url": "http://127.0.0.1:9/v1",
    "pid": 1,
}
JOB_ID = "job_01M8MG8BZK0FN56HXMX48ZSJAN"
CACHE_KEY = "c1_47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLUICEWAY_API_KEY", raising=False)
    monkeypatch.delenv("SLUICEWAY_API_URL", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, input='"a text"')


def stand_at(folder: Path, text: str) -> None:
    (folder / ".sluiceway").mkdir()
    (folder / ".sluiceway/local.json").write_text(text)


def assert_told(result: Result, *, code: int) -> None:
    """In words, not as a traceback: click turns what it knows into SystemExit."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    assert "Error" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ("submit", "demo-chat", "x", "--tenant", "acme"),
        ("wait", JOB_ID, "--tenant", "acme"),
        ("keys", "list"),
        ("jobs", "show", JOB_ID),
        ("jobs", "list"),
        ("status",),
        ("jobs", "cancel", JOB_ID),
        ("dlq", "list"),
        ("dlq", "show", JOB_ID),
        ("dlq", "redrive", JOB_ID),
        ("dlq", "redrive", "--all"),
        ("dlq", "discard", JOB_ID),
        ("dlq", "resubmit", JOB_ID, "--input", "-"),
        ("cache", "show", JOB_ID),
        ("cache", "show", CACHE_KEY),
        ("cache", "invalidate", "--tenant", "acme"),
        ("audit",),
    ],
    ids=" ".join,
)
def test_command_without_a_stack_says_what_to_do(command: tuple[str, ...]) -> None:
    result = run(*command)

    assert_told(result, code=1)
    assert "sluiceway local up" in result.output


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"api_url": 1}'])
def test_command_with_a_damaged_file_says_so(folder: Path, text: str) -> None:
    stand_at(folder, text)

    result = run("keys", "list")

    assert_told(result, code=1)
    assert "damaged" in result.output


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_local_status_with_a_damaged_file_says_that_nothing_runs(folder: Path, text: str) -> None:
    stand_at(folder, text)

    result = run("local", "status")

    assert result.exit_code == 1
    assert "not running" in result.output


@pytest.mark.parametrize("text", ["", "{", "[]", '{"emulator": {"pid": 1}}'])
def test_local_down_with_a_damaged_file_has_nothing_to_stop(folder: Path, text: str) -> None:
    stand_at(folder, "{}")
    (folder / ".sluiceway/processes.json").write_text(text)

    result = run("local", "down")

    assert result.exit_code == 0
    assert "nothing was running" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ("keys", "list"),
        ("jobs", "show", JOB_ID, "--tenant", "acme"),
        ("jobs", "show", JOB_ID),
        ("jobs", "list"),
        ("submit", "demo-chat", "x", "--tenant", "acme"),
        ("jobs", "cancel", JOB_ID, "--tenant", "acme"),
        ("dlq", "list"),
        ("dlq", "show", JOB_ID),
        ("dlq", "redrive", JOB_ID),
        ("dlq", "redrive", "--all"),
        ("dlq", "discard", JOB_ID),
        ("dlq", "resubmit", JOB_ID, "--input", "-"),
        ("cache", "show", JOB_ID),
        ("cache", "show", CACHE_KEY),
        ("cache", "invalidate", "--tenant", "acme"),
        ("audit",),
    ],
    ids=" ".join,
)
def test_command_at_a_stack_that_is_gone_says_so(folder: Path, command: tuple[str, ...]) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))

    assert_told(run(*command), code=1)


@pytest.mark.parametrize("job_id", ["", "../health", "job_", "x" * 2000, "job_ä"])
@pytest.mark.parametrize(
    "command",
    [
        ("wait",),
        ("jobs", "show"),
        ("jobs", "cancel"),
        ("dlq", "show"),
        ("dlq", "redrive"),
        ("dlq", "discard"),
        ("dlq", "resubmit", "--input", "-"),
        ("cache", "show"),
    ],
    ids=" ".join,
)
def test_command_refuses_what_is_no_job_id(command: tuple[str, ...], job_id: str) -> None:
    assert_told(run(*command, job_id), code=2)


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize(
    "command",
    [
        ("submit", "demo-chat", "x"),
        ("wait", JOB_ID),
        ("jobs", "show", JOB_ID),
        ("jobs", "list"),
        ("jobs", "cancel", JOB_ID),
        ("keys", "list"),
        ("dlq", "show", JOB_ID),
        ("dlq", "redrive", JOB_ID),
        ("dlq", "discard", JOB_ID),
        ("dlq", "resubmit", JOB_ID, "--input", "-"),
        ("cache", "show", JOB_ID),
        ("cache", "show", CACHE_KEY),
        ("cache", "invalidate"),
    ],
    ids=" ".join,
)
def test_command_refuses_a_tenant_without_a_name(command: tuple[str, ...], name: str) -> None:
    result = run(*command, "--tenant", name)

    assert_told(result, code=2)
    assert "--tenant" in result.output


@pytest.mark.parametrize("arguments", [(), ("--all", JOB_ID)], ids=["neither", "both"])
def test_redrive_takes_jobs_or_all(arguments: tuple[str, ...]) -> None:
    assert_told(run("dlq", "redrive", *arguments), code=2)


@pytest.mark.parametrize("rate", ["0", "-1", "501", "x"])
def test_redrive_refuses_a_rate_that_sqs_does_not_have(rate: str) -> None:
    assert_told(run("dlq", "redrive", "--all", "--rate", rate), code=2)


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x"])
def test_local_up_refuses_what_is_no_port(port: str) -> None:
    assert_told(run("local", "up", "--port", port), code=2)


@pytest.mark.parametrize("url", ['http://a"b', "ftp://x", "http://a b", "x"])
def test_local_up_refuses_what_is_no_vendor_url(url: str) -> None:
    result = run("local", "up", "--vendor-url", url)

    assert_told(result, code=1)
    assert "no URL" in result.output


def test_local_up_takes_a_vendor_url_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("as far as it may go")

    monkeypatch.setattr("sluiceway_local.stack._up", refuse)

    assert "as far as it may go" in run("local", "up", "--vendor-url", "HTTP://V.Example/v1").output


@pytest.mark.parametrize("tenant", ["", "Acme", "a b", "a" * 64, "a/b", "ä"])
def test_keys_create_refuses_what_can_name_no_tenant(folder: Path, tenant: str) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))

    result = run("keys", "create", tenant)

    assert_told(result, code=1)
    assert "can't name a tenant" in result.output


def test_submit_refuses_options_that_are_no_json(folder: Path) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))

    result = run("submit", "demo-chat", "x", "--tenant", "acme", "--options", "{")

    assert_told(result, code=2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "attempts 4  2 min old  vendor_rejected: No."),
        ({"copies": 3}, "2 min old  3 copies  vendor_rejected"),
        ({"age_s": 7}, "7 s old"),
        ({"age_s": 90_000}, "1 d old"),
        ({"stray": True, "why_stray": "the job is completed"}, "stray: the job is completed"),
        ({"status": None, "stray": True, "why_stray": "there is no such job"}, "no such job"),
        (
            {"job_id": None, "stray": True, "why_stray": "not ours", "message_id": "m", "bytes": 7},
            "message m  stray: not ours (7 bytes)",
        ),
    ],
)
def test_dead_letter_is_one_line(changes: dict[str, object], told: str) -> None:
    entry = {
        "job_id": JOB_ID,
        "tenant": "acme",
        "status": "dead_lettered",
        "model": "demo-chat",
        "error_code": "vendor_rejected",
        "reason": "No.",
        "attempts": 4,
        "age_s": 130,
        "copies": 1,
        "stray": False,
        "why_stray": None,
    }

    line = dead_letter_line({**entry, **changes})

    assert told in line
    assert "\n" not in line


def test_row_tells_its_last_errors_and_no_input() -> None:
    secret = Payload(inline=b"a-prompt-that-nobody-may-read")

    row = job_row(failed(a_job(input=secret, callback_urls=("https://a.example/?key=1",))))

    (error,) = row["last_errors"]
    assert (error["code"], error["http_status"]) == ("vendor_unavailable", 503)
    assert row["callbacks"] == 1
    for private in ("a-prompt", "a.example"):
        assert private not in json.dumps(row)


def test_cancel_asks_the_api_as_the_partner() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"id": JOB_ID, "status": "cancelled"})

    api = Api("http://127.0.0.1/v1", "swk_x", transport=httpx.MockTransport(answer))
    job = api.cancel(JOB_ID)
    api.close()

    (request,) = asked
    assert job["status"] == "cancelled"
    assert (request.method, request.url.path) == ("POST", f"/v1/jobs/{JOB_ID}/cancel")
    assert request.headers["authorization"] == "Bearer swk_x"


def test_result_that_is_too_large_is_shown_by_its_address() -> None:
    job = {
        "id": JOB_ID,
        "status": "completed",
        "model": "demo-chat",
        "cache": {"status": "miss"},
        "deduplicated": False,
        "result_url": "http://127.0.0.1/result",
    }

    assert "http://127.0.0.1/result" in "\n".join(lines(job))


# ------------------------------------------------------------------------------------ dry run


def test_submit_with_dry_run_asks_and_prints_what_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))
    told = {"object": "dry_run", "queue": {"position": 3, "eta_s": 12}, "deduplicated": False}
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json=told)

    api = Api("http://127.0.0.1/v1", "swk_x", transport=httpx.MockTransport(answer))
    monkeypatch.setattr("sluiceway_cli.console.partner_api", lambda *_: api)

    for_people = run("submit", "demo-chat", "x", "--dry-run", "--tenant", "acme")
    for_programs = run("submit", "demo-chat", "x", "--dry-run", "--json")

    assert [str(request.url) for request in asked] == ["http://127.0.0.1/v1/jobs?dry_run=true"] * 2
    assert json.loads(asked[0].content) == {"model": "demo-chat", "input": "x"}
    assert "position=3 eta_s=12" in for_people.output
    assert json.loads(for_programs.output) == told


def test_submit_with_dry_run_makes_nothing_to_wait_for(folder: Path) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))

    assert_told(run("submit", "demo-chat", "x", "--dry-run", "--wait"), code=2)
