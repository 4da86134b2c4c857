"""The loop of a developer: a save is deployed, and a breakpoint is met."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local import emulator, state
from sluiceway_local.processes import wait_for

from tests.local.plant import CATALOGUE, ROOT, TIMEOUT_S, Plant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

RUN_JOB = "functions/run_job/app.py"
SERVICE = "layers/core/sluiceway/routes/service.py"


@dataclass
class Desk:
    """A copy of the sources that `local up --watch` watches, and what it printed."""

    root: Path
    plant: Plant
    watcher: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return (self.root / "watch.log").read_text()

    def told(self, text: str, *, after: int) -> str:
        """What was printed from `after` on, as soon as `text` is in it."""
        assert wait_for(lambda: text in self.output[after:], timeout_s=TIMEOUT_S), self.output[
            after:
        ]
        return self.output[after:]

    def save(self, name: str, text: str, *, until: str) -> str:
        """Writes a file, and gives what that led to."""
        before = len(self.output)
        (self.root / name).write_text(text)
        return self.told(until, after=before)

    def edit(self, name: str, old: str, new: str, *, until: str = ": deployed ") -> str:
        text = (self.root / name).read_text()
        assert old in text
        return self.save(name, text.replace(old, new, 1), until=until)

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A Python with the copy's library."""
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment(self.root),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            **more,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment(self.root),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lane_states(self) -> set[str]:
        """Of the event source mappings of the worker."""
        found = self.plant.functions.list_event_source_mappings()["EventSourceMappings"]
        worker = self.plant.local.outputs["RunJobFunctionName"]
        return {one["State"] for one in found if worker in one["FunctionArn"]}

    def ran(self, prompt: str) -> dict[str, Any]:
        """The row of a new job, when it has completed."""
        return self.plant.until(self.plant.submit(prompt), "completed")


def environment(root: Path) -> dict[str, str]:
    """Of a user whose AWS and whose proxy lead elsewhere."""
    parts = (root / "layers/core", ROOT / "cli", ROOT / "local")
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        "PYTHONUNBUFFERED": "1",
        "AWS_PROFILE": "there-is-no-such-profile",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "HTTP_PROXY": "http://127.0.0.1:1",
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    root = tmp_path_factory.mktemp("watch")
    shutil.copy(ROOT / "template.yaml", root)
    for folder in ("functions", "layers", "events"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "catalogue.toml").write_text(CATALOGUE)
    port = emulator.free_port()
    command = ["local", "up", "--watch", "--port", str(port), "--catalogue", "catalogue.toml"]
    with (root / "watch.log").open("wb") as log:
        watcher = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "sluiceway_cli", *command],
            cwd=root,
            env=environment(root),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        started = wait_for(
            lambda: (
                "Saves are deployed" in (root / "watch.log").read_text()
                or watcher.poll() is not None
            ),
            timeout_s=TIMEOUT_S,
        )
        local = state.read(root / ".sluiceway")
        assert started, (root / "watch.log").read_text()
        assert local is not None, (root / "watch.log").read_text()
        plant = Plant(local, root / ".sluiceway")
        yield Desk(root, plant, watcher)
        plant.close()
    finally:
        if watcher.poll() is None:
            os.killpg(watcher.pid, signal.SIGINT)
        watcher.wait(TIMEOUT_S)
    # Ctrl-C has stopped what was started.
    assert watcher.returncode == 0
    assert state.read(root / ".sluiceway") is None


def log_of(plant: Plant, function: str) -> str:
    logs: Any = emulator.client("logs", plant.local.endpoint_url)
    (group,) = (
        one["logGroupName"]
        for one in logs.describe_log_groups()["logGroups"]
        if one["logGroupName"].endswith(f"/{function}LogGroup")
    )
    return "\n".join(one["message"] for one in logs.filter_log_events(logGroupName=group)["events"])


def test_next_job_meets_the_saved_function(desk: Desk) -> None:
    desk.ran("Before the save")

    told = desk.edit(RUN_JOB, "    kept = []\n", '    print("saved code")\n    kept = []\n')
    desk.ran("After the save")

    assert re.search(rf"{RUN_JOB}: deployed run_job in \d+\.\d s$", told, re.MULTILINE)
    assert log_of(desk.plant, "RunJob").count("saved code") == 1


def test_next_request_meets_the_saved_library(desk: Desk) -> None:
    told = desk.edit(SERVICE, '"ok"', '"saved"')

    assert desk.plant.acme.get("/health").json() == {"status": "saved"}
    assert f"{SERVICE}: deployed the library with all functions in" in told


def test_job_at_work_ends_over_a_deployment(desk: Desk) -> None:
    prompt = "At work while it is deployed"
    job_id = desk.plant.submit(prompt, {"delay_s": 5})
    desk.plant.calls_begun(prompt)

    desk.edit("layers/core/sluiceway/__init__.py", '"""', '"""Saved: ')
    status = desk.plant.row(job_id)["status"]
    row = desk.plant.until(job_id, "completed")

    assert status == "processing"
    assert row["attempts_total"] == 1
    assert desk.plant.calls(prompt)["calls"] == 1


def test_request_that_waits_is_answered_over_a_deployment(desk: Desk) -> None:
    prompt = "Waited for while it is deployed"
    job_id = desk.plant.submit(prompt, {"delay_s": 5})
    key = desk.plant.local.partners["acme"]
    waiting = desk.start(
        "-c",
        "import sys, urllib.request as r\n"
        "q = r.Request(sys.argv[1], headers={'authorization': sys.argv[2], 'prefer': 'wait=20'})\n"
        "print(r.build_opener(r.ProxyHandler({})).open(q).read().decode())",
        f"{desk.plant.local.api_url}/jobs/{job_id}",
        f"Bearer {key}",
    )
    desk.plant.calls_begun(prompt)

    desk.edit("layers/core/sluiceway/__init__.py", '"""', '"""Saved: ')
    answer, _ = waiting.communicate(timeout=TIMEOUT_S)

    assert json.loads(answer)["status"] == "completed"


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        (RUN_JOB, "    kept = []\n", "    kept = [\n", r"app\.py:\d+: SyntaxError: '\[' was never"),
        (RUN_JOB, "import bootstrap", "import bootstrip", r"app\.py:\d+: ImportError: cannot imp"),
        (RUN_JOB, "def handler(", "def handled(", r"app\.py: it has no `handler`"),
        (SERVICE, "def ", "none()\n\n\ndef ", r"service\.py:\d+: NameError: name 'none'"),
        ("template.yaml", "Resources:\n", "Resources: [\n", r"template\.yaml:\d+: "),
        ("template.yaml", "Runtime: python3.13", "Runtime: [", r"template\.yaml:\d+: "),
        ("template.yaml", "!Ref RunJobTimeout", "!Ref Nothing", r"Nothing"),
        ("catalogue.toml", "[vendors", "[vendors.", r"catalogue\.toml: .*line \d+"),
        ("catalogue.toml", "vendor_model", "vendor_modle", r"vendor_modle"),
    ],
)
def test_fault_is_told_and_the_next_save_goes_on(
    desk: Desk, name: str, old: str, new: str, fault: str
) -> None:
    text = (desk.root / name).read_text()
    before = len(desk.output)

    desk.edit(name, old, new, until=": not deployed\n")
    assert wait_for(lambda: bool(re.search(fault, desk.output[before:])), timeout_s=5), desk.output
    refused = desk.output[before:]
    desk.plant.acme.get("/health").raise_for_status()
    (desk.root / name).write_text(text)
    again = desk.edit("functions/api/app.py", '"""', '"""Saved: ')

    assert ": deployed" not in refused
    assert re.search(r"  functions/api/app\.py(, template\.yaml)?: deployed api", again)


def test_burst_of_saves_is_one_deployment(desk: Desk) -> None:
    before = len(desk.output)
    for path in (desk.root / "layers/core/sluiceway").rglob("*.py"):
        draft = path.with_name(f"{path.name}.tmp")
        draft.write_text(path.read_text() + "\n# of another branch\n")
        draft.replace(path)
    (desk.root / "functions/api/.app.py.swp").write_text("an editor's")

    told = desk.told(": deployed ", after=before)
    desk.edit("functions/api/app.py", '"""', '"""Saved: ')

    assert re.search(r" and \d{2,} more: deployed the library with all functions in", told)
    assert desk.output[before:].count(": deployed ") == 2
    assert ".swp" not in desk.output


def test_saved_catalogue_is_pushed(desk: Desk) -> None:
    told = desk.edit("catalogue.toml", "[models.heavy]", "[models.saved]")

    shown = desk.run("-m", "sluiceway_cli", "catalogue", "show").stdout

    assert "catalogue.toml: deployed the catalogue in" in told
    assert "[models.saved]" in shown


# ------------------------------------------------------------------------------------ invoke


def test_handler_answers_here(desk: Desk) -> None:
    done = desk.run(
        "-m",
        "sluiceway_cli",
        "local",
        "invoke",
        "api",
        "--event",
        "-",
        input=(desk.root / "events/api_health.json").read_text(),
    )

    assert json.loads(done.stdout)["statusCode"] == 200, done.stderr


def test_sample_event_meets_this_stacks_queues(desk: Desk) -> None:
    done = desk.run("-m", "sluiceway_cli", "local", "invoke", "run_job")

    assert json.loads(done.stdout) == {"batchItemFailures": []}
    assert "message_without_job" in done.stderr


def test_what_a_handler_raises_is_shown(desk: Desk) -> None:
    done = desk.run(
        "-m", "sluiceway_cli", "local", "invoke", "api", "--event", "-", input='{"no": "request"}'
    )

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "KeyError: 'requestContext'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text", "told"),
    [
        (["nothing"], "", "there is no function 'nothing'; there are: api, authorize, "),
        (["api"], "", "give --event, such as events/api_cancel_job.json or "),
        (["api", "--event", "none.json"], "", "none.json: No such file"),
        (["api", "--event", "-"], '{\n"a": }', "standard input:2:6: Expecting value"),
        (["api", "--poll"], "", "no queue feeds api"),
        (["run_job", "--poll", "--event", "-"], "", "leave out --event"),
    ],
)
def test_invocation_that_cannot_be_says_why(
    desk: Desk, arguments: list[str], text: str, told: str
) -> None:
    done = desk.run("-m", "sluiceway_cli", "local", "invoke", *arguments, input=text)

    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_library_of_other_sources_is_refused(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway_cli", "local", "invoke", "sweep_jobs"],
        cwd=desk.root,
        env=environment(ROOT),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert done.returncode == 1
    assert f"set PYTHONPATH={desk.root}/layers/core" in done.stderr


def test_breakpoint_of_a_worker_is_met_by_a_submitted_job(desk: Desk) -> None:
    module = "layers/core/sluiceway/usecases/run_job.py"
    lines = (desk.root / module).read_text().splitlines()
    place = lines.index("        worker.telemetry.about(job)") + 1
    poll = ["-m", "pdb", "-m", "sluiceway_cli", "local", "invoke", "run_job", "--poll"]
    with desk.start(*poll) as debugger:
        assert debugger.stdin is not None
        debugger.stdin.write(f"b {module}:{place}\nc\n")
        debugger.stdin.flush()
        assert wait_for(lambda: desk.lane_states() == {"Disabled"}, timeout_s=TIMEOUT_S)
        job_id = desk.plant.submit("Met by a breakpoint")
        debugger.stdin.write("p 'seen', delivery.job_id\nc\n")
        debugger.stdin.flush()
        row = desk.plant.until(job_id, "completed")
        debugger.send_signal(signal.SIGTERM)
        shown, _ = debugger.communicate(timeout=TIMEOUT_S)

    assert f"('seen', '{job_id}')" in shown
    assert row["attempts_total"] == 1
    assert desk.lane_states() == {"Enabled"}


def test_breakpoint_in_the_source_is_met_here_and_passed_over_there(desk: Desk) -> None:
    source = (desk.root / RUN_JOB).read_text()
    desk.edit(RUN_JOB, "    kept = []\n", "    breakpoint()\n    kept = []\n")

    desk.ran("Past a breakpoint")
    here = desk.run(
        "-m", "sluiceway_cli", "local", "invoke", "run_job", input="p len(event['Records'])\nc\n"
    )

    desk.save(RUN_JOB, source, until=": deployed ")
    assert "(Pdb) 1\n" in here.stderr
    assert json.loads(here.stdout) == {"batchItemFailures": []}


def test_stopped_poller_gives_the_lanes_back(desk: Desk) -> None:
    with desk.start("-m", "sluiceway_cli", "local", "invoke", "run_job", "--poll") as poller:
        assert wait_for(lambda: desk.lane_states() == {"Disabled"}, timeout_s=TIMEOUT_S)
        job_id = desk.plant.submit("Given to the poller")
        desk.plant.until(job_id, "completed")
        poller.send_signal(signal.SIGINT)
        shown, _ = poller.communicate(timeout=TIMEOUT_S)

    assert poller.returncode == 0
    assert "run_job polls " in shown
    assert '"batchItemFailures": []' in shown
    assert desk.lane_states() == {"Enabled"}


def test_killed_poller_gives_the_lanes_back(desk: Desk) -> None:
    with desk.start("-m", "sluiceway_cli", "local", "invoke", "run_job", "--poll") as poller:
        assert wait_for(lambda: desk.lane_states() == {"Disabled"}, timeout_s=TIMEOUT_S)
        second = desk.run("-m", "sluiceway_cli", "local", "invoke", "run_job", "--poll")
        poller.kill()

    assert f"process {poller.pid} polls for run_job already" in second.stderr
    assert wait_for(lambda: desk.lane_states() == {"Enabled"}, timeout_s=TIMEOUT_S)
    desk.ran("After the poller was killed")


def test_poller_without_its_guard_gives_the_lanes_back(desk: Desk) -> None:
    with desk.start("-m", "sluiceway_cli", "local", "invoke", "run_job", "--poll") as poller:
        assert wait_for(lambda: desk.lane_states() == {"Disabled"}, timeout_s=TIMEOUT_S)
        for guard in children(poller.pid):
            os.killpg(guard, signal.SIGKILL)
        poller.send_signal(signal.SIGINT)
        poller.communicate(timeout=TIMEOUT_S)

    assert desk.lane_states() == {"Enabled"}
    assert not (desk.plant.folder / "polled-run_job.json").exists()


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if int(line.split()[1]) == pid]


def test_next_up_gives_back_what_nobody_did(desk: Desk) -> None:
    worker = desk.plant.local.outputs["RunJobFunctionName"]
    mappings = [
        one["UUID"]
        for one in desk.plant.functions.list_event_source_mappings()["EventSourceMappings"]
        if worker in one["FunctionArn"]
    ]
    for mapping in mappings:
        desk.plant.functions.update_event_source_mapping(UUID=mapping, Enabled=False)
    ended = {"pid": 2**22, "born": "long ago", "program": ""}
    note = desk.plant.folder / "polled-run_job.json"
    note.write_text(json.dumps({"process": ended, "mappings": mappings}))

    done = desk.run("-m", "sluiceway_cli", "local", "up", "--detach")

    assert done.returncode == 0, done.stderr
    assert desk.lane_states() == {"Enabled"}
    assert not note.exists()
