"""Processes that the local stack starts, and stops again: these and no others."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A started process. Its start time tells it from a later one with the same number."""

    pid: int
    born: str
    program: str = ""
    """What was started: the first word of its command."""

    def alive(self) -> bool:
        """Whether it still runs."""
        running = _birth(self.pid) == self.born
        child = _children.get(self)
        if child is not None and child.poll() is not None:
            del _children[self]  # only a parent can let go of what has ended
        return running

    def stop(self) -> None:
        """Ends it and what it started: politely, then not. Does nothing when it is gone."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            if self._gone():
                return
            try:
                os.killpg(self.pid, how)
            except ProcessLookupError:
                return
            wait_for(self._gone, timeout_s=STOP_TIMEOUT_S)

    def _gone(self) -> bool:
        """Whether nothing is left of it: its first thread may end before the others do."""
        return not self.alive() and self not in _children


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> Process:
    """Starts `command` in a session of its own: it outlives us and is stopped as a whole."""
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - our own command lines
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Process(child.pid, _birth(child.pid), command[0])
    _children[process] = child
    return process


def this() -> Process:
    """The one that we are."""
    return Process(os.getpid(), _birth(os.getpid()))


def wait_for(happened: Callable[[], bool], *, timeout_s: float, pause_s: float = 0.05) -> bool:
    """Polls until `happened` or the timeout; gives which it was."""
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        if happened():
            return True
        time.sleep(pause_s)
    return happened()


def wait_until_ready(
    process: Process, answers: Callable[[], bool], *, timeout_s: float, failure: str
) -> None:
    """Returns when it answers; whatever else ends the wait ends the process, Ctrl-C too.

    Raises RuntimeError with `failure` when it ends by itself, or doesn't answer in time.
    """
    up = False
    try:
        ready = wait_for(lambda: answers() or not process.alive(), timeout_s=timeout_s)
        up = ready and process.alive()
    finally:
        if not up:
            process.stop()
    if not up:
        raise RuntimeError(failure)


def clean_environment(**extra: str) -> dict[str, str]:
    """What a child needs of ours: paths, and nothing of the user's AWS account."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        **extra,
    }


def emulator_environment(
    ours: Mapping[str, str], endpoint_url: str, **extra: str
) -> dict[str, str]:
    """Ours for code that calls AWS: it comes to the emulator and nowhere else."""
    kept = {
        name: value
        for name, value in ours.items()
        if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }
    emulated = {
        name: value for name, value in clean_environment().items() if name.startswith("AWS_")
    }
    return {
        **kept,
        **emulated,
        "AWS_REGION": REGION,
        **extra,
        "AWS_ENDPOINT_URL": endpoint_url,
    }


REGION = "us-east-1"
"""Of the local stack."""


_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each boot, on Linux."""


def _birth(pid: int) -> str:
    """When the process started; "" when there is none or only its remains.

    Linux counts from its boot, so that a clock that is set later changes nothing.
    """
    if _BOOT.exists():
        try:
            told = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        except OSError:
            return ""
        after_name = told.rpartition(")")[2].split()
        return "" if after_name[0] == "Z" else f"{after_name[19]} {_BOOT.read_text().strip()}"
    shown = subprocess.run(  # noqa: S603 - a number
        ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "TZ": "UTC0"},
    ).stdout.strip()
    state, _, born = shown.partition(" ")
    return "" if state.startswith("Z") else born.strip()


_children: dict[Process, subprocess.Popen[bytes]] = {}
"""Those of this process that it hasn't let go of."""
