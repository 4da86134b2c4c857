"""What the tests on AWS's own runtime share: an AWS on this machine, and a vendor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import emulator
from sluiceway_local.simulator import Simulator

from tests.rie import cloud as clouds
from tests.rie import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rie.cloud import Cloud


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An emulator with nothing in it; skips where functions can't be run, but in CI."""
    reason = runtime.unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    log = tmp_path_factory.mktemp("ministack") / "log"
    port = emulator.free_port()
    process = emulator.start(port, log)
    try:
        emulator.wait_until_ready(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator() as sim:
        yield sim


@pytest.fixture
def cloud(ministack: str, tmp_path: Path, simulator: Simulator) -> Cloud:
    """Made anew for each test."""
    return clouds.fill(ministack, tmp_path, simulator)
