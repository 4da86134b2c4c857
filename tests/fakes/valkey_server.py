"""A real Valkey, or a Redis, which speaks the same: for the tests alone, and gone with them."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING

from sluiceway_local import processes
from sluiceway_local.emulator import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from sluiceway_local.processes import Process

PROGRAMS = ("valkey-server", "redis-server")
START_TIMEOUT_S = 20.0


def unavailable() -> str | None:
    """Why it can't run on this machine; None when it can."""
    if _program() is None:
        return f"none of {', '.join(PROGRAMS)} is on the PATH"
    return None


def start(folder: Path) -> tuple[Process, str]:
    """Starts it on a free port of loopback, empty; gives the process and the URL.

    It writes nothing but its log, into `folder`. Raises RuntimeError when it doesn't come up.
    """
    program, port, log = _program(), free_port(), folder / "log"
    if program is None:
        raise RuntimeError(unavailable())
    process = processes.start(
        [
            *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
        ],
        env=processes.clean_environment(),
        log=log,
    )
    processes.wait_until_ready(
        process,
        lambda: _answers(port),
        timeout_s=START_TIMEOUT_S,
        failure=f"{program} didn't start; see {log}",
    )
    return process, f"valkey://127.0.0.1:{port}"


def _program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
    except OSError:
        return False
