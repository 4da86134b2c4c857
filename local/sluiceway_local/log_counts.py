"""Counts from the metrics in the functions' logs: the emulator makes no metrics of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sluiceway.telemetry import NAMESPACE
from sluiceway_cli.counts import Counted
from sluiceway_cli.logs import FunctionLogs

COUNTING = ("api", "run_job", "sweep_jobs")
"""The functions that tell of jobs and the cache."""

_IN_EACH = "CloudWatchMetrics"
"""Of every line of the embedded metric format (EMF)."""


class LogCounts:
    """Weakness: an invocation's lines are there when it has ended, a sweep's after a minute."""

    def __init__(self, logs: FunctionLogs) -> None:
        """`logs`: of the functions that count."""
        self._logs = logs

    def count(self, metrics: Sequence[str], minutes: Sequence[int], *, now_ms: int) -> Counted:
        """See sluiceway_cli.counts.Counts."""
        sums: dict[int, Counter[str]] = {last: Counter() for last in minutes}
        since_ms = now_ms - max(minutes) * 60_000
        whole = True
        for function in COUNTING:
            look = self._logs.find(function, _IN_EACH, since_ms=since_ms, until_ms=now_ms)
            whole = whole and look.whole
            for line in look.lines:
                at_ms = line.members.get("_aws", {}).get("Timestamp", line.at_epoch_ms)
                told = _values(line.members)
                for last in minutes:
                    if now_ms - last * 60_000 <= at_ms:
                        sums[last].update(told)
        return Counted(
            {last: {name: round(sums[last][name]) for name in metrics} for last in minutes}, whole
        )


def _values(members: Mapping[str, Any]) -> dict[str, float]:
    """What a line adds to each metric that is told without another dimension than the service."""
    told: dict[str, float] = {}
    for directive in members.get("_aws", {}).get("CloudWatchMetrics", ()):
        if directive.get("Namespace") == NAMESPACE and ["service"] in directive["Dimensions"]:
            for metric in directive["Metrics"]:
                values = members.get(metric["Name"], 0)
                told[metric["Name"]] = sum(values) if isinstance(values, list) else values
    return told
