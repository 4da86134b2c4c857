"""What the real telemetry writes, read back from the captured output."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sluiceway.telemetry import SERVICE, PowertoolsTelemetry

if TYPE_CHECKING:
    import pytest
    from aws_lambda_powertools.utilities.typing import LambdaContext


@dataclass(frozen=True, slots=True)
class _Context:
    aws_request_id: str
    function_name: str
    time_left_ms: int

    def get_remaining_time_in_millis(self) -> int:
        return self.time_left_ms


def a_context(
    *,
    aws_request_id: str = "lambda-1",
    function_name: str = "api",
    time_left_ms: int = 110_000,
) -> LambdaContext:
    """As much of Lambda's context as the handlers look at."""
    return cast("LambdaContext", _Context(aws_request_id, function_name, time_left_ms))


class _Stdout:
    """Whatever is standard output when something is written; a test's capture changes it."""

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


def fresh_telemetry(*, level: str | None = None) -> PowertoolsTelemetry:
    """As in a process that just started: Powertools keeps a logger, and its stream, by name."""
    logger = logging.getLogger(SERVICE)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    for mark in ("init", "powertools_handler"):
        if hasattr(logger, mark):
            delattr(logger, mark)
    telemetry = PowertoolsTelemetry(level=level)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(_Stdout())
    return telemetry


def output(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Every line that was written since the last look; each is a JSON object."""
    captured = capsys.readouterr()
    assert captured.err == ""
    return [json.loads(line) for line in captured.out.splitlines()]


def log_lines(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in written if "_aws" not in line]


def metric_lines(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in written if "_aws" in line]
