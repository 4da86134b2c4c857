"""What is started here is stopped again, however the wait for it ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def process(tmp_path: Path) -> Iterator[processes.Process]:
    """One that ends when it is told to."""
    code = "import threading; threading.Event().wait()"
    command = [sys.executable, "-c", code]
    started = processes.start(command, env=dict(os.environ), log=tmp_path / "log")
    yield started
    started.stop()


def test_process_that_answers_goes_on(process: processes.Process) -> None:
    processes.wait_until_ready(process, lambda: True, timeout_s=10, failure="no")

    assert process.alive()


def test_process_that_never_answers_is_stopped(process: processes.Process) -> None:
    with pytest.raises(RuntimeError, match="not there"):
        processes.wait_until_ready(process, lambda: False, timeout_s=0.1, failure="not there")

    assert not process.alive()


def test_process_that_ends_before_it_answers_is_told(process: processes.Process) -> None:
    def answers() -> bool:
        process.stop()
        return False

    with pytest.raises(RuntimeError, match="not there"):
        processes.wait_until_ready(process, answers, timeout_s=10, failure="not there")


def test_interrupt_while_a_process_starts_stops_it(process: processes.Process) -> None:
    def answers() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.wait_until_ready(process, answers, timeout_s=10, failure="not there")

    assert not process.alive()


FIRST_THREAD_ENDS = (
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,)).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)\n"
)


def test_stop_leaves_nothing_of_a_process_whose_first_thread_has_ended(tmp_path: Path) -> None:
    process = processes.start(
        [sys.executable, "-c", FIRST_THREAD_ENDS], env={}, log=tmp_path / "log"
    )
    assert processes.wait_for(lambda: not process.alive(), timeout_s=10)

    process.stop()

    assert process not in processes._children
