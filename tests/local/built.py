"""What `make build` made, for the tests of it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from sluiceway_local import pythons

ROOT = Path(__file__).parents[2]
BUILD = ROOT / ".aws-sam/build"
LAYER = BUILD / "CoreLayer/python"
VERSION = "3.13"
"""The template's Python."""


def unavailable() -> str | None:
    """Why what was built can't be tried on this machine; None when it can."""
    if not (BUILD / "template.yaml").exists():
        return "nothing is built; run: make build"
    if _stale():
        return "what is built is older than the sources; run: make build"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "what is built is for Linux on x86_64, and this is another machine"
    return None if pythons.find(VERSION) else f"no Python {VERSION} found"


def _stale() -> bool:
    """Whether anything was changed since the build."""
    built_at = (BUILD / "template.yaml").stat().st_mtime
    sources = [
        ROOT / "template.yaml",
        *(ROOT / "layers").glob("*/*.txt"),
        *(ROOT / "functions").glob("*/*.json"),
        *(
            path
            for folder in ("layers/core", "functions")
            for path in (ROOT / folder).rglob("*.py")
        ),
    ]
    return any(path.stat().st_mtime > built_at for path in sources)
