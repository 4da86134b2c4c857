"""One function as AWS runs it: what was built, under AWS's own runtime client and an emulator.

The client (`awslambdaric`) is what drives a handler inside Lambda. The emulator (RIE) speaks
Lambda's runtime API to it and takes invocations by HTTP; the wheel of the SAM command line has it.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from sluiceway_local import emulator, processes, pythons
from sluiceway_local.processes import REGION, Process

from tests.local import built

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START_TIMEOUT_S = 30
_INVOKE = "2015-03-31/functions/function/invocations"


def unavailable() -> str | None:
    """Why no function can be run so on this machine; None when it can."""
    if reason := built.unavailable():
        return reason
    if not client_path():
        return "there is no runtime interface client; run: make .venv-rie/installed"
    return None if emulator_path() else "there is no SAM command line; run: make build"


def client_path() -> Path | None:
    """The folder of packages that the runtime interface client is in."""
    found = sorted(built.ROOT.glob(f".venv-rie/lib/python{built.VERSION}/site-packages"))
    return found[0] if found and (found[0] / "awslambdaric").exists() else None


def emulator_path() -> Path | None:
    """The emulator's program, for the machines that the build is for."""
    rapid = ".venv-sam/lib/python*/site-packages/samcli/local/rapid/aws-lambda-rie-x86_64"
    return next(built.ROOT.glob(rapid), None)


def packages_of(function: str) -> tuple[Path, Path]:
    """What AWS gets of a function: its own folder and the layer."""
    return built.BUILD / function, built.LAYER


@dataclass(frozen=True, slots=True)
class Runtime:
    """A function that takes one invocation at a time; the first one starts it."""

    function: str
    url: str
    process: Process
    log: Path

    def invoke(self, event: Any, *, timeout_s: float = 90) -> Any:
        """What the function answers: its value, or Lambda's form of an error."""
        return json.loads(self.post(event, timeout_s=timeout_s))

    def post(self, event: Any, *, timeout_s: float = 90) -> str:
        """The same as the text that came; the emulator's own words are no JSON."""
        return httpx.post(
            f"{self.url}/{_INVOKE}", content=json.dumps(event), timeout=timeout_s, trust_env=False
        ).text

    @property
    def output(self) -> str:
        """All that the function and the emulator have written."""
        return self.log.read_text("utf-8", errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines of it: the function's logs and metrics."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def pids(self) -> list[int]:
        """Of the processes in which the handler runs: one, or none before the first event."""
        return emulator.processes_of(self.function, emulator_pid=self.process.pid)


@contextmanager
def running(
    function: str,
    folder: Path,
    *,
    settings: Mapping[str, str],
    endpoint_url: str,
    timeout_s: int,
    memory_mb: int = 512,
    handler: str = "app.handler",
    code: Path | None = None,
) -> Iterator[Runtime]:
    """Starts a function by its logical id, and stops it.

    `settings` is the whole environment that the template would give it; `code` is another folder
    whose modules come before those of the function, as probes do.
    """
    task_root = built.BUILD / function
    packages = (*((code,) if code else ()), *packages_of(function), client_path())
    port, api_port = emulator.free_port(), emulator.free_port()
    command = [
        str(emulator_path()),
        *("--log-level", "info"),
        *("--runtime-interface-emulator-address", f"127.0.0.1:{port}"),
        *("--runtime-api-address", f"127.0.0.1:{api_port}"),
        # -S and -P: nothing but what the path names; -B: what was built stays as it is.
        *(str(pythons.find(built.VERSION)), "-S", "-P", "-B", "-m", "awslambdaric", handler),
    ]
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "LAMBDA_TASK_ROOT": str(task_root),
        "TZ": ":UTC",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_LAMBDA_FUNCTION_NAME": function,
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(memory_mb),
        "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout_s),
        **settings,
    }
    log = folder / f"{function}-{port}.log"
    process = processes.start(command, env=environment, log=log)
    try:
        listening = processes.wait_for(
            lambda: not emulator.port_is_free(port) or not process.alive(),
            timeout_s=START_TIMEOUT_S,
        )
        assert listening
        assert process.alive(), log.read_text()
        yield Runtime(function, f"http://127.0.0.1:{port}", process, log)
    finally:
        process.stop()
