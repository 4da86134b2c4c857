"""What is known of a folder's local stack, and who may change it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import processes, stack, state
from sluiceway_local.state import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluiceway_local.processes import Process


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = processes.start(command, env=dict(os.environ), log=tmp_path / "log")
    try:
        yield process
    finally:
        process.stop()


def test_lock_lets_one_at_a_time_into_a_folder(tmp_path: Path) -> None:
    with (
        state.locked(tmp_path),
        pytest.raises(RuntimeError, match="at work"),
        state.locked(tmp_path),
    ):
        pytest.fail("two were let in")

    with state.locked(tmp_path):
        pass


def test_lock_waits_for_who_has_it(tmp_path: Path) -> None:
    mine = state.locked(tmp_path)
    mine.__enter__()
    freed = threading.Timer(0.2, lambda: mine.__exit__(None, None, None))
    freed.start()

    with state.locked(tmp_path, wait_s=20):
        freed.join()


def test_end_of_the_emulator_is_no_fault_of_whoever_waited_for_it(tmp_path: Path) -> None:
    with state.locked(tmp_path):  # by a `down`
        stack.clear(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_process_is_known_in_every_time_zone(
    sleeper: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,  # noqa: FBT001
) -> None:
    if not there:
        monkeypatch.setattr(processes, "_BOOT", tmp_path / "none")  # as on macOS
    known = processes.Process(sleeper.pid, born_of(sleeper.pid), sleeper.program)

    monkeypatch.setenv("TZ", "Pacific/Apia")

    assert known.alive()


def test_up_that_fails_still_knows_what_an_earlier_one_started(
    tmp_path: Path, sleeper: Process
) -> None:
    folder = tmp_path / ".sluiceway"
    state.write_running(Running({"simulator": sleeper}), folder)

    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        with pytest.raises(RuntimeError, match="in use"):
            stack.up(stack.source(), port=somebody.getsockname()[1], folder=folder)

    assert stack.down(folder) == ["simulator"]
    assert not sleeper.alive()


def test_process_with_the_number_of_one_that_ended_is_not_that_one(sleeper: Process) -> None:
    other = processes.Process(sleeper.pid, "Thu Jan  1 00:00:00 1970", sleeper.program)

    other.stop()

    assert not other.alive()
    assert sleeper.alive()


def test_stop_ends_what_the_process_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    process = processes.start([sys.executable, "-c", code], env=dict(os.environ), log=log)
    assert processes.wait_for(lambda: log.read_text().endswith("\n"), timeout_s=20)
    child = int(log.read_text())

    process.stop()

    assert processes.wait_for(
        lambda: not processes.Process(child, born_of(child)).alive(), timeout_s=5
    )


def born_of(pid: int) -> str:
    return processes._birth(pid) or "ended"
