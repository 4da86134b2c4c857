"""What `local up --watch` makes of saves, and what `local invoke` gives a handler."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from sluiceway_cli.main import cli
from sluiceway_local import invoke
from sluiceway_local.invoke import Function
from sluiceway_local.redeploy import Outcome, deployed_by, import_faults, syntax_faults
from sluiceway_local.watch import Files, Told, follow

if TYPE_CHECKING:
    from pathlib import Path

FUNCTIONS = ("api", "run_job")
GOOD, BAD = Outcome(deployed=["run_job"]), Outcome(faults=["app.py:1: SyntaxError"])


# ------------------------------------------------------------------------------------ what follows


@pytest.mark.parametrize(
    ("changed", "deployed"),
    [
        (["functions/run_job/app.py"], ["run_job"]),
        (["functions/api/app.py", "functions/api/more.py"], ["api"]),
        (["functions/api/app.py", "functions/run_job/app.py"], ["api", "run_job"]),
        (["layers/core/sluiceway/domain/job.py"], ["the library with all functions"]),
        (["layers/core/sluiceway/openapi.json"], ["the library with all functions"]),
        (["template.yaml"], ["the template"]),
        (["/home/us/catalogue.toml"], ["the catalogue"]),
        (["functions/draft/app.py"], []),
        (["functions/notes.txt"], []),
    ],
)
def test_deployment_follows_from_what_changed(changed: list[str], deployed: list[str]) -> None:
    assert (
        deployed_by(changed, functions=FUNCTIONS, catalogue="/home/us/catalogue.toml") == deployed
    )


# ------------------------------------------------------------------------------------ when


class Saves:
    """Scripted looks, one for each pause; the deployments that they lead to are kept."""

    def __init__(self, *looks: dict[str, str], outcomes: tuple[Outcome, ...] = ()) -> None:
        self._looks = iter(looks)
        self._left = len(looks)
        self._outcomes = iter(outcomes)
        self.deployed: list[list[str]] = []
        self.told: list[Told] = []

    def look(self) -> dict[str, str]:
        self._left -= 1
        return next(self._looks)

    def deploy(self, changed: list[str]) -> Outcome:
        self.deployed.append(changed)
        return next(self._outcomes, GOOD)

    def run(self) -> list[list[str]]:
        follow(
            self.look,
            self.deploy,
            deployed={"a": "1", "b": "1"},
            alive=lambda: self._left > 0,
            tell=self.told.append,
            pause=lambda: None,
            clock=lambda: 0.0,
        )
        return self.deployed


def test_save_is_deployed_when_it_is_at_rest() -> None:
    saves = Saves({"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "2", "b": "1"})

    assert saves.run() == [["a"]]


def test_burst_is_deployed_once() -> None:
    saves = Saves(
        {"a": "2", "b": "1"},
        {"a": "2", "b": "2", "a~1": "draft"},
        {"a": "3", "b": "2", "c": "1"},
        {"a": "3", "b": "2", "c": "1"},
        {"a": "3", "b": "2", "c": "1"},
    )

    assert saves.run() == [["a", "b", "c"]]


def test_removed_file_is_a_change() -> None:
    assert Saves({"a": "1"}, {"a": "1"}).run() == [["b"]]


def test_what_failed_is_tried_with_the_next_save() -> None:
    saves = Saves(
        {"a": "2", "b": "1"},
        {"a": "2", "b": "1"},
        {"a": "2", "b": "1"},
        {"a": "2", "b": "2"},
        {"a": "2", "b": "2"},
        outcomes=(BAD, GOOD),
    )

    assert saves.run() == [["a"], ["a", "b"]]
    assert [told.outcome for told in saves.told] == [BAD, GOOD]


def test_return_to_what_is_deployed_deploys_nothing() -> None:
    saves = Saves(
        {"a": "2", "b": "1"},
        {"a": "2", "b": "1"},
        {"a": "1", "b": "1"},
        {"a": "1", "b": "1"},
        outcomes=(BAD,),
    )

    assert saves.run() == [["a"]]


def test_return_after_a_deployment_that_broke_off_is_deployed() -> None:
    saves = Saves(
        {"a": "2", "b": "1"},
        {"a": "2", "b": "1"},
        {"a": "1", "b": "1"},
        {"a": "1", "b": "1"},
        {"a": "1", "b": "1"},
        outcomes=(Outcome(faults=["it ended with -9"], begun=True), GOOD),
    )

    assert saves.run() == [["a"], ["a"]]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in (
        *("template.yaml", "README.md", "catalogue.toml", "functions/api/app.py"),
        *("functions/api/.app.py.swp", "functions/api/app.py~", "functions/api/#app.py#"),
        *("functions/api/__pycache__/app.pyc", "layers/core/sluiceway/domain/job.py"),
        "layers/core/requirements.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_sources_are_watched_and_nothing_beside_them(sources: Path) -> None:
    assert set(Files(sources, sources / "catalogue.toml")()) == {
        *("catalogue.toml", "functions/api/app.py"),
        *("layers/core/sluiceway/domain/job.py", "template.yaml"),
    }


def test_what_is_no_file_is_not_read(sources: Path) -> None:
    before = Files(sources)()
    os.mkfifo(sources / "functions/api/pipe")
    (sources / "functions/api/endless").symlink_to("/dev/zero")
    (sources / "functions/api/nowhere").symlink_to(sources / "gone")
    (sources / "functions/api/loop").symlink_to(sources)

    assert Files(sources)() == before


def test_file_that_is_touched_has_not_changed(sources: Path) -> None:
    look = Files(sources)
    before = look()
    draft = sources / "draft"
    draft.write_text((sources / "template.yaml").read_text())
    draft.replace(sources / "template.yaml")

    assert look() == before


def test_file_that_is_written_has_changed(sources: Path) -> None:
    look = Files(sources)
    before = look()
    (sources / "template.yaml").write_text("Resources: {}")

    after = look()

    assert {name for name in before if before[name] != after[name]} == {"template.yaml"}


@pytest.mark.parametrize("other", ["--detach", "--built"])
def test_watch_says_what_it_does_not_go_with(other: str) -> None:
    done = CliRunner().invoke(cli, ["local", "up", "--watch", other])

    assert done.exit_code == 2
    assert f"leave out {other}" in done.output


# ------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("functions/api/app.py", "def f(:\n", "functions/api/app.py:1: SyntaxError: "),
        ("functions/api/app.py", "\nif x:\ny", "functions/api/app.py:3: IndentationError: "),
        ("template.yaml", "A: 1\nB: [\n", "template.yaml:3: "),
        ("template.yaml", "A: 1\n\tB: 1\n", "template.yaml:2: "),
        ("catalogue.toml", "a = 1\nb =\n", "catalogue.toml: Invalid value (at line 2"),
    ],
)
def test_fault_of_syntax_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

    (told,) = syntax_faults(tmp_path, [name, "functions/api/gone.py"])

    assert told.startswith(fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import json\nimport not_there\n", "app.py:2: ModuleNotFoundError: No module named"),
        ("def f():\n    1 / 0\n\n\nf()\n", "app.py:2: ZeroDivisionError: division by zero"),
        ("import beside\nx = beside.nothing\n", "app.py:2: AttributeError: module 'beside'"),
        ("raise SystemExit(3)\n", "app.py:1: SystemExit: 3"),
        ("def handle(event, context): ...\n", "app.py: it has no `handler`"),
    ],
)
def test_fault_of_a_start_is_told_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    folder = tmp_path / "functions/api"
    folder.mkdir(parents=True)
    (folder / "beside.py").write_text("")
    (folder / "app.py").write_text(text)

    (told,) = import_faults(tmp_path, [], ["api"])

    assert told.startswith(f"functions/api/{fault}")


def test_good_start_is_no_fault(tmp_path: Path) -> None:
    folder = tmp_path / "functions/api"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("def handler(event, context): ...\n")

    assert list(import_faults(tmp_path, [], ["api"])) == []


# ------------------------------------------------------------------------------------ invoke


@pytest.fixture
def function(tmp_path: Path) -> Function:
    (tmp_path / "events").mkdir()
    return Function(
        name="run_job",
        physical_name="stack-RunJobFunction-1",
        path=tmp_path / "functions/run_job/app.py",
        environment={"JOBS_TABLE": "stack-JobsTable-1"},
        timeout_s=120.0,
        memory_mb=512,
        endpoint_url="http://127.0.0.1:4566",
        queues={"BatchQueue": "stack-BatchQueue-1"},
    )


def test_environment_leads_nowhere_but_to_the_emulator(function: Function) -> None:
    ours = {
        "PATH": "/bin",
        "AWS_PROFILE": "production",
        "AWS_SESSION_TOKEN": "token",
        "AWS_ENDPOINT_URL_DYNAMODB": "https://dynamodb.us-east-1.amazonaws.com",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "http_proxy": "http://proxy.example:3128",
    }

    given = invoke.environment(function, ours)

    assert given["AWS_ENDPOINT_URL"] == "http://127.0.0.1:4566"
    assert given["AWS_ACCESS_KEY_ID"] == "test"
    assert given["JOBS_TABLE"] == "stack-JobsTable-1"
    assert given["PATH"] == "/bin"
    assert given.keys().isdisjoint(ours.keys() - {"PATH"})


def test_sample_is_the_event_with_this_stacks_queue(function: Function) -> None:
    sample = function.path.parents[2] / "events/run_job.json"
    sample.write_text(
        '{"Records": [{"eventSourceARN": "arn:aws:sqs:us-east-1:1:other-BatchQueue-2"}]}'
    )

    event = invoke.event(function, None)

    assert event["Records"][0]["eventSourceARN"] == "arn:aws:sqs:us-east-1:1:stack-BatchQueue-1"


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"Records": 5}', '{"Records": [5, {"eventSourceARN": 5}]}']
)
def test_event_of_any_form_comes_to_the_handler_as_it_is(function: Function, text: str) -> None:
    assert invoke.event(function, "-", text) == json.loads(text)


def test_event_that_is_no_text_is_told(function: Function, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_bytes(b"\xff\xfe")

    with pytest.raises(RuntimeError, match=r"event\.json: it is no UTF-8"):
        invoke.event(function, str(tmp_path / "event.json"))


def test_function_without_a_sample_names_those_that_are_near(function: Function) -> None:
    for name in ("run_job_late.json", "run_job_first.json", "api.json"):
        (function.path.parents[2] / "events" / name).write_text("{}")

    with pytest.raises(
        RuntimeError, match=r"such as events/run_job_first\.json or events/run_job_late\.json$"
    ):
        invoke.event(function, None)
