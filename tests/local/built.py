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
    if stale(ROOT):
        return "what is built is older than the sources; run: make build"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "what is built is for Linux on x86_64, and this is another machine"
    return None if pythons.find(VERSION) else f"no Python {VERSION} found"


def stale(root: Path) -> bool:
    """Whether anything that the build is made of was changed since."""
    built_at = (root / ".aws-sam/build/template.yaml").stat().st_mtime
    sources = [
        root / "template.yaml",
        *(
            path
            for folder in ("layers", "functions")
            for path in (root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ),
    ]
    return any(path.stat().st_mtime > built_at for path in sources)
