"""The command line where it needs no stack: what it refuses, and how it says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from sluiceway_cli.main import cli
from sluiceway_cli.progress import lines

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLUICEWAY_API_KEY", raising=False)
    monkeypatch.delenv("SLUICEWAY_API_URL", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


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
        ("submit", "demo-chat", "x", "--tenant", "acme"),
    ],
    ids=" ".join,
)
def test_command_at_a_stack_that_is_gone_says_so(folder: Path, command: tuple[str, ...]) -> None:
    stand_at(folder, json.dumps(DEAD_STACK))

    assert_told(run(*command), code=1)


@pytest.mark.parametrize("job_id", ["", "../health", "job_", "x" * 2000, "job_ä"])
@pytest.mark.parametrize("command", [("wait",), ("jobs", "show")], ids=" ".join)
def test_command_refuses_what_is_no_job_id(command: tuple[str, ...], job_id: str) -> None:
    assert_told(run(*command, job_id), code=2)


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x"])
def test_local_up_refuses_what_is_no_port(port: str) -> None:
    assert_told(run("local", "up", "--port", port), code=2)


@pytest.mark.parametrize("url", ['http://a"b', "ftp://x", "http://a b", "x"])
def test_local_up_refuses_what_is_no_vendor_url(url: str) -> None:
    result = run("local", "up", "--vendor-url", url)

    assert_told(result, code=1)
    assert "no URL" in result.output


@pytest.mark.parametrize("days", ["0", "-1", "4000000", "inf", "1e40"])
def test_keys_create_refuses_an_expiry_that_never_comes_or_has_passed(days: str) -> None:
    assert_told(run("keys", "create", "acme", "--expires-in-days", days), code=2)


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
