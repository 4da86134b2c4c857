"""How many crash points were tried is told at the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_POINTS = pytest.StashKey[Counter[str]]()


@pytest.fixture
def count_points(pytestconfig: pytest.Config) -> Callable[[str, int], None]:
    """Adds so many points of a kind."""
    points = pytestconfig.stash.setdefault(_POINTS, Counter())

    def add(kind: str, count: int) -> None:
        points[kind] += count

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    points = terminalreporter.config.stash.get(_POINTS, None)
    if points:
        told = ", ".join(f"{count:,} {kind}" for kind, count in points.items())
        terminalreporter.write_line(f"crash points: {told}")
