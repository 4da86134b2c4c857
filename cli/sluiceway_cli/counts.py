"""How often what happened lately: from CloudWatch's metrics, and on an emulator from the logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from sluiceway.telemetry import NAMESPACE, SERVICE

PERIOD_S = 60


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums of metrics."""

    sums: Mapping[int, Mapping[str, int]]
    """By minutes and metric."""
    whole: bool = True
    """False: there may be more."""


class Counts(Protocol):
    """The sums of metrics over all vendors, models, lanes and tenants."""

    def count(self, metrics: Sequence[str], minutes: Sequence[int], *, now_ms: int) -> Counted:
        """Each metric's sum over the last so many minutes, each of them."""
        ...


class CloudWatchCounts:
    """Weakness: a metric is there one to three minutes late."""

    def __init__(self, client: Any) -> None:
        """`client`: of CloudWatch."""
        self._client = client

    def count(self, metrics: Sequence[str], minutes: Sequence[int], *, now_ms: int) -> Counted:
        """See Counts. One call; its minutes are those of the clock, the running one included."""
        end = datetime.fromtimestamp(now_ms // 1000, UTC).replace(second=0) + timedelta(minutes=1)
        answer = self._client.get_metric_data(
            MetricDataQueries=[
                {
                    "Id": f"m{number}",
                    "MetricStat": {
                        "Metric": {
                            "Namespace": NAMESPACE,
                            "MetricName": name,
                            "Dimensions": [{"Name": "service", "Value": SERVICE}],
                        },
                        "Period": PERIOD_S,
                        "Stat": "Sum",
                    },
                }
                for number, name in enumerate(metrics)
            ],
            StartTime=end - timedelta(minutes=max(minutes)),
            EndTime=end,
        )
        found = {one["Id"]: one for one in answer["MetricDataResults"]}
        points = {
            name: list(zip(one["Timestamps"], one["Values"], strict=True))
            for number, name in enumerate(metrics)
            if (one := found.get(f"m{number}")) is not None
        }
        return Counted(
            {
                last: {
                    name: round(
                        sum(
                            value
                            for at, value in points.get(name, ())
                            if at >= end - timedelta(minutes=last)
                        )
                    )
                    for name in metrics
                }
                for last in minutes
            },
            whole="NextToken" not in answer,
        )
