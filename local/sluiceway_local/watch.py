"""`local up --watch`: deploys again what changed in the sources.

The files are looked at, a few hundred of them each quarter of a second: that needs no library, and
works on every file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from stat import S_ISREG

from sluiceway_local import processes
from sluiceway_local.redeploy import LIBRARY, TEMPLATE, Outcome, Request

PAUSE_S = 0.25
"""Between two looks; files that are still as they were at the last one are taken for written."""

_UNKNOWN = "unknown"
"""In the place of a digest, which it never equals."""

Look = Callable[[], dict[str, str]]
"""Gives a digest for each file."""


@dataclass(slots=True)
class Files:
    """What is watched. Calling it gives each file's digest; only what was touched is read again."""

    root: Path
    catalogue: Path | None = None
    _known: dict[Path, tuple[tuple[int, int, int], str]] = field(default_factory=dict)

    def __call__(self) -> dict[str, str]:
        """The files that there are now, by their names within `root`."""
        now = {path: self._digest(path) for path in self._paths()}
        return {self.name(path): digest for path, digest in now.items() if digest}

    def name(self, path: Path) -> str:
        """Within the root, or as it is."""
        return path.relative_to(self.root).as_posix() if self._inside(path) else str(path)

    def _inside(self, path: Path) -> bool:
        return path.is_relative_to(self.root)

    def _paths(self) -> Iterator[Path]:
        yield self.root / TEMPLATE
        if self.catalogue is not None:
            yield self.catalogue
        for part in ("functions", LIBRARY):
            for folder, folders, names in os.walk(self.root / part):
                folders[:] = [name for name in folders if name != "__pycache__"]
                yield from (Path(folder, name) for name in names if not _of_an_editor(name))

    def _digest(self, path: Path) -> str:
        """Empty when it is gone, or no file: a pipe may never speak, and a device never end."""
        try:
            stat = path.stat()
            if not S_ISREG(stat.st_mode):
                return ""
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._known.get(path)
            if known is None or known[0] != seen:
                known = (seen, hashlib.sha256(path.read_bytes()).hexdigest())
                self._known[path] = known
        except OSError:
            return ""
        return known[1]


def _of_an_editor(name: str) -> bool:
    """What editors leave beside a file that is being written."""
    return name.startswith((".", "#")) or name.endswith(("~", ".pyc", ".tmp"))


@dataclass(frozen=True, slots=True)
class Told:
    """What a save led to."""

    changed: list[str]
    outcome: Outcome
    took_s: float


def follow(
    look: Look,
    deploy: Callable[[list[str]], Outcome],
    *,
    deployed: dict[str, str],
    alive: Callable[[], bool],
    tell: Callable[[Told], None],
    pause: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Deploys each time when files have changed and stay as they are; returns when not `alive`.

    `deployed` is how they looked before the last deployment began.
    What failed is tried again with the next change, together with it. When it had begun, nobody
    knows what the stack has of it, so that change may be the way back to what was deployed before.
    """
    tried = deployed
    while alive():
        pause()
        now = look()
        if now == tried:
            continue
        now = tried = _at_rest(now, look, pause)
        names = deployed.keys() | now.keys()
        changed = sorted(name for name in names if deployed.get(name) != now.get(name))
        if not changed:
            continue  # back to what is deployed
        began = clock()
        outcome = deploy(changed)
        if not outcome.faults:
            deployed = now
        elif outcome.begun:
            deployed = {**deployed, **dict.fromkeys(changed, _UNKNOWN)}
        tell(Told(changed, outcome, clock() - began))


def _at_rest(now: dict[str, str], look: Look, pause: Callable[[], None]) -> dict[str, str]:
    """The files when they have stayed as they are for a pause."""
    while True:
        pause()
        before, now = now, look()
        if now == before:
            return now


def deploy_apart(
    files: Files, changed: list[str], *, endpoint_url: str, vendor_url: str | None, folder: Path
) -> Outcome:
    """Deploys in another process, which has the library as it is now.

    It imports what was saved, so it has nothing of the user's AWS, as on the emulator.
    """
    catalogue = None if files.catalogue is None else files.name(files.catalogue)
    request = Request(
        root=str(files.root),
        folder=str(folder.absolute()),
        changed=changed,
        vendor_url=vendor_url,
        catalogue=catalogue if catalogue in changed else None,
    )
    path = os.pathsep.join([str(files.root / "layers/core"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway_local.redeploy"],
        input=json.dumps(asdict(request)),
        env=processes.emulator_environment(os.environ, endpoint_url) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return Outcome(faults=[told[-1]], begun=True)
    return Outcome(**json.loads(done.stdout))
