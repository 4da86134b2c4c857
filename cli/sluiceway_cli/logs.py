"""The functions' logs, as far as they can be read in a moment."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluiceway.ports import Clock

OUTPUTS = {
    "api": "ApiFunctionName",
    "run_job": "RunJobFunctionName",
    "sweep_jobs": "SweepJobsFunctionName",
    "publish_events": "PublishEventsFunctionName",
    "deliver_webhook": "DeliverWebhookFunctionName",
}
"""By function, the stack's output with its name: those whose lines tell of jobs."""

MOST_LINES = 10_000
"""Of one look at one function; FilterLogEvents gives so many at once."""

WITHIN_MS = 10_000
"""A look at one function ends then: a filter over days may take minutes."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is JSON."""

    at_epoch_ms: int
    """Of the line itself; an emulator has all lines of an invocation at its end."""
    members: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """The lines that were found, the oldest first, and whether these are all."""

    lines: tuple[Line, ...]
    whole: bool = True


class FunctionLogs:
    """Weakness: CloudWatch Logs shows a line some seconds late."""

    def __init__(
        self,
        functions: Callable[[], Any],
        logs: Callable[[], Any],
        names: Mapping[str, str],
        *,
        clock: Clock,
    ) -> None:
        """`functions`, `logs`: make clients of Lambda and CloudWatch Logs. `names`: by function."""
        self._make_functions = functions
        self._make_logs = logs
        self._names = names
        self._clock = clock
        self._clients: tuple[Any, Any] | None = None
        self._groups: dict[str, str] = {}

    def find(self, function: str, phrase: str, *, since_ms: int, until_ms: int) -> Look:
        """The JSON lines of that time that hold the phrase, which has no quotation marks.

        Emulators know no patterns on members of JSON, so a phrase is asked for, and the caller
        looks at the members itself.
        Raises ClientError, BotoCoreError, and ValueError when the function's name isn't known.
        """
        _, logs = self._both()
        stop_at_ms = self._clock.now_ms() + WITHIN_MS
        found: list[Line] = []
        request: dict[str, Any] = {
            "logGroupName": self._group(function),
            "filterPattern": f'"{phrase}"',
            "startTime": max(0, since_ms),
            "endTime": until_ms,
        }
        while True:
            answer = logs.filter_log_events(**request)
            found += [line for event in answer["events"] if (line := _line_of(event)) is not None]
            token = answer.get("nextToken")
            if token is None:  # an emulator ends with as many as it gives at once
                whole = len(answer["events"]) < MOST_LINES
                break
            if len(found) >= MOST_LINES or self._clock.now_ms() >= stop_at_ms:
                whole = False
                break
            request["nextToken"] = token
        return Look(tuple(sorted(found, key=lambda line: line.at_epoch_ms)), whole)

    def _both(self) -> tuple[Any, Any]:
        if self._clients is None:
            self._clients = self._make_functions(), self._make_logs()
        return self._clients

    def _group(self, function: str) -> str:
        """The function's log group: that of its configuration, else Lambda's own."""
        if function not in self._groups:
            if function not in self._names:
                raise ValueError(f"the stack doesn't tell the name of {function}")
            name = self._names[function]
            functions, _ = self._both()
            known = functions.get_function_configuration(FunctionName=name)
            group = known.get("LoggingConfig", {}).get("LogGroup")
            self._groups[function] = group or f"/aws/lambda/{name}"
        return self._groups[function]


def _line_of(event: Mapping[str, Any]) -> Line | None:
    try:
        members = json.loads(event["message"])
    except ValueError:
        return None
    if not isinstance(members, dict):
        return None
    return Line(_time_of(members) or event["timestamp"], members)


def _time_of(members: Mapping[str, Any]) -> int | None:
    try:
        return round(datetime.fromisoformat(members["timestamp"]).timestamp() * 1000)
    except (KeyError, TypeError, ValueError):
        return None
