"""Event source mappings that `local invoke --poll` stands in for, and gives back.

Which they are, and whose, is written down before they are disabled: whoever comes next enables
those of a process that was killed.
"""

from __future__ import annotations

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
            _enable(taken.mappings if taken else [], file, endpoint_url)


@contextmanager
def taken(function: str, name: str, endpoint_url: str, folder: Path) -> Iterator[list[str]]:
    """The names of the queues that feed a function; meanwhile they feed it no more.

    `function` is its physical name, `name` the one that people know. Mappings that are disabled
    already are somebody's pause, and are left alone.
    Raises RuntimeError when no queue feeds the function, or another process has its mappings.
    """
    client = emulator.client("lambda", endpoint_url)
    file = folder / f"polled-{name}.json"
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
    try:
        for mapping in ours.mappings:
            client.update_event_source_mapping(UUID=mapping, Enabled=False)
        yield [one["EventSourceArn"].rsplit(":", 1)[-1] for one in enabled]
    finally:
        # When the emulator has gone there is nothing to enable.
        with suppress(BotoCoreError):
            _enable(ours.mappings, file, endpoint_url)


def _enable(mappings: list[str], file: Path, endpoint_url: str) -> None:
    client: Any = emulator.client("lambda", endpoint_url)
    for mapping in mappings:
        with suppress(ClientError):  # of an earlier stack
            client.update_event_source_mapping(UUID=mapping, Enabled=True)
    file.unlink(missing_ok=True)


def _read(file: Path) -> Taken | None:
    raw = state.read_json(file)
    try:
        return None if raw is None else Taken(Process(**raw["process"]), raw["mappings"])
    except (TypeError, KeyError):
        return None
