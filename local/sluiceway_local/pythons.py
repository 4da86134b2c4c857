"""Finds a Python of a version: the template's is often not the one that the tools run under."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_TELL = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"


def find(version: str) -> str | None:
    """The path of a Python such as "3.13": the one on the PATH, else one that pyenv has.

    None when there is none. The Makefile looks in the same places, in the same order.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = sorted(root.glob(f"versions/{version}*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        if candidate and (path := _path_of(candidate, version)):
            return path
    return None


def _path_of(candidate: str, version: str) -> str | None:
    """Where it really is; pyenv's stand-ins on the PATH do nothing for versions not chosen."""
    try:
        told = subprocess.run(  # noqa: S603 - an interpreter of this machine
            [candidate, "-c", _TELL], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return None
    found, _, path = told.stdout.strip().partition("\n")
    return path if found == version else None
