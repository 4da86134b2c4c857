"""Event source mappings that `local invoke --poll` stands in for, and gives back.

Which they are, and whose, is written down before they are disabled. A process of their own enables
them when their poller has ended, however it did; should it be killed as well, whoever comes next
does that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway_local import emulator, processes, state
from sluiceway_local.processes import Process


@dataclass(frozen=True, slots=True)
class Taken:
    """The mappings that a process has disabled."""

    process: Process
    mappings: list[str]


def repair(endpoint_url: str, folder: Path = state.FOLDER) -> None:
    """Enables what a process has disabled that was killed."""
    for file in folder.glob("polled-*.json"):
        taken = _read(file)
        if taken is None or not taken.process.alive():
            enable(file, endpoint_url)


@contextmanager
def taken(function: str, name: str, endpoint_url: str, folder: Path) -> Iterator[list[str]]:
    """The names of the queues that feed a function; meanwhile they feed it no more.

    `function` is its physical name, `name` the one that people know. Mappings that are disabled
    already are somebody's pause, and are left alone.
    Raises RuntimeError when no queue feeds the function, or another process has its mappings.
    """
    client = emulator.client("lambda", endpoint_url)
    file = folder.absolute() / f"polled-{name}.json"
    with state.locked(folder):
        repair(endpoint_url, folder)
        if (others := _read(file)) is not None:
            raise RuntimeError(f"process {others.process.pid} polls for {name} already")
        found = [
            one
            for page in client.get_paginator("list_event_source_mappings").paginate()
            for one in page["EventSourceMappings"]
            if f":function:{function}" in one["FunctionArn"] and ":sqs:" in one["EventSourceArn"]
        ]
        if not found:
            raise RuntimeError(f"no queue feeds {name}, so there is nothing to poll")
        enabled = [one for one in found if one["State"] in {"Enabled", "Enabling"}]
        if not enabled:
            raise RuntimeError(f"all queues of {name} are paused; see: sluiceway pause")
        ours = Taken(processes.this(), [one["UUID"] for one in enabled])
        state.write_json(file, asdict(ours))
    with _given_back(file, endpoint_url):
        for mapping in ours.mappings:
            client.update_event_source_mapping(UUID=mapping, Enabled=False)
        yield [one["EventSourceArn"].rsplit(":", 1)[-1] for one in enabled]


@contextmanager
def _given_back(file: Path, endpoint_url: str) -> Iterator[None]:
    """Has the mappings of `file` enabled at the end, also of a process that is killed meanwhile.

    A shell waits for the end of a pipe that we alone hold open. It is no Python, so debuggers that
    follow children leave it alone, and its session isn't ours, so Ctrl-C does.
    """
    guard = subprocess.Popen(  # noqa: S603 - our own command line
        [
            *("/bin/sh", "-c", 'cat > /dev/null; exec "$@"', "sh"),
            *(sys.executable, "-m", "sluiceway_local.mappings", str(file), endpoint_url),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait()
        if file.exists():  # somebody killed the guard
            with suppress(BotoCoreError):  # the stack has ended
                enable(file, endpoint_url)


def enable(file: Path, endpoint_url: str) -> None:
    """Enables the mappings that are written down there."""
    client: Any = emulator.client("lambda", endpoint_url)
    taken = _read(file)
    for mapping in taken.mappings if taken else []:
        with suppress(ClientError):  # of an earlier stack
            client.update_event_source_mapping(UUID=mapping, Enabled=True)
    file.unlink(missing_ok=True)


def _read(file: Path) -> Taken | None:
    raw = state.read_json(file)
    try:
        return None if raw is None else Taken(Process(**raw["process"]), raw["mappings"])
    except (TypeError, KeyError):
        return None


if __name__ == "__main__":
    enable(Path(sys.argv[1]), sys.argv[2])
