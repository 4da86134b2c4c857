"""A stage for each test, whose log level is its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.functions.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    before = logging.getLogger().level
    yield Stage()
    logging.getLogger().setLevel(before)
