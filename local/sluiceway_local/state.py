"""What is known of the local stack of a folder: `.sluiceway/local.json`, and its processes."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from sluiceway_local import processes
from sluiceway_local.processes import Process

FOLDER = Path(".sluiceway")


@dataclass(frozen=True, slots=True)
class LocalStack:
    """The contents of `.sluiceway/local.json`; programs outside the repository read it."""

    api_url: str
    endpoint_url: str
    region: str
    stack: str
    partners: dict[str, str]
    outputs: dict[str, str]
    vendor_url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Running:
    """The processes that `down` stops, by name."""

    processes: dict[str, Process] = field(default_factory=dict)


def read(folder: Path = FOLDER) -> LocalStack | None:
    """The stack that was started in this folder; None when there is none."""
    raw = read_json(folder / "local.json")
    try:
        return None if raw is None else LocalStack(**raw)
    except TypeError:
        return None  # of another version, or damaged: `up` writes it anew


def write(stack: LocalStack, folder: Path = FOLDER) -> None:
    """Keys are in it, so only its owner may read it."""
    write_json(folder / "local.json", asdict(stack))


def read_running(folder: Path = FOLDER) -> Running:
    """What was started."""
    raw = read_json(folder / "processes.json") or {}
    try:
        return Running({name: Process(**process) for name, process in raw.items()})
    except TypeError:
        return Running()


def write_running(running: Running, folder: Path = FOLDER) -> None:
    """Written after each start, so that an interrupted `up` leaves nothing unknown behind."""
    write_json(
        folder / "processes.json",
        {name: asdict(process) for name, process in running.processes.items()},
    )


class BusyError(RuntimeError):
    """Another process is at work on the stack of this folder."""


@contextmanager
def locked(folder: Path = FOLDER, *, wait_s: float = 0.0) -> Iterator[None]:
    """One `up` or `down` at a time in a folder. Raises BusyError if another is at it for longer."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        if not processes.wait_for(lambda: _lock(file), timeout_s=wait_s):
            raise BusyError("another `sluiceway local` is at work in this folder")
        yield


def _lock(file: IO[str]) -> bool:
    """Whether it is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def forget(folder: Path = FOLDER) -> None:
    """After a `down`."""
    for path in (folder / "local.json", folder / "processes.json", *folder.glob("polled-*.json")):
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """None when there is no such file, or no object in it."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """All or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file, indent=2)
    draft.replace(path)
