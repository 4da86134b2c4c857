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
    if reason := outdated():
        return reason
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "what is built is for Linux on x86_64, and this is another machine"
    return None if pythons.find(VERSION) else f"no Python {VERSION} found"


def outdated(root: Path = ROOT) -> str | None:
    """Why what was built isn't what would be built now; None when it is."""
    build = root / ".aws-sam/build/template.yaml"
    if not build.exists():
        return "nothing is built; run: make build"
    sources = [
        root / "template.yaml",
        *(
            path
            for folder in ("layers", "functions")
            for path in (root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ),
    ]
    if any(path.stat().st_mtime > build.stat().st_mtime for path in sources):
        return "what is built is older than the sources; run: make build"
    return None
