"""The dashboard of a stack; `python -m sluiceway_local.dashboard` puts it into template.yaml.

CloudWatch wants it as one JSON text, in which the stack's own names are filled in.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

TEMPLATE = Path(__file__).parents[2] / "template.yaml"
BEGIN = "      # Made by `make dashboard` from local/sluiceway_local/dashboard.py.\n"
END = "      # The end of the dashboard.\n"

WIDTH, HEIGHT, COLUMNS = 8, 6, 3
"""Of a widget, in CloudWatch's grid of 24 columns."""

SERVICE = {"service": "sluiceway"}
LANES = ("interactive", "batch")


@dataclass(frozen=True, slots=True)
class Line:
    """A metric. `name`: by which the widget's expressions know it; `hidden`: only they do."""

    metric: str
    statistic: str = "Sum"
    label: str = ""
    of: Mapping[str, str] = field(default_factory=lambda: SERVICE)
    namespace: str = "Sluiceway"
    name: str = ""
    hidden: bool = False
    right: bool = False
    """Against the axis on the right."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What CloudWatch computes of the widget's lines, or finds by a search."""

    expression: str
    label: str = ""
    right: bool = False


@dataclass(frozen=True, slots=True)
class Widget:
    """A graph; `left` and `right` are the units of its axes."""

    title: str
    lines: tuple[Line | Computed, ...]
    left: str = ""
    right: str = ""


def _percentiles(metric: str) -> tuple[Line, ...]:
    return tuple(Line(metric, p, f"{metric} {p}") for p in ("p50", "p95", "p99"))


def _by_lane(metric: str, statistic: str, *, right: bool = False) -> tuple[Line, ...]:
    return tuple(
        Line(metric, statistic, f"{metric} {lane}", {"lane": lane}, right=right) for lane in LANES
    )


def _counts(*metrics: str) -> tuple[Line, ...]:
    return tuple(Line(metric, label=metric) for metric in metrics)


def _by_model(metric: str, statistic: str) -> Computed:
    """A line for each model."""
    schema = "{Sluiceway,vendor,model}"
    return Computed(f"SEARCH('{schema} MetricName=\"{metric}\"', '{statistic}')")


def _messages(queue: str, label: str) -> Line:
    return Line(
        *("ApproximateNumberOfMessagesVisible", "Maximum", label),
        {"QueueName": f"${{{queue}.QueueName}}"},
        "AWS/SQS",
    )


def _lambda(metric: str, *functions: str) -> tuple[Line, ...]:
    return tuple(
        Line(
            metric,
            "Sum",
            f"{name} {metric}",
            {"FunctionName": f"${{{name}Function}}"},
            "AWS/Lambda",
        )
        for name in functions
    )


HIT_RATIO = Computed(
    "100 * SUM([hit, stale]) / SUM([hit, stale, miss])", "answered by the cache", right=True
)

WIDGETS = (
    Widget(
        "Backlog against hit ratio",
        (
            *_by_lane("QueueDepth", "Maximum"),
            Line("CacheHit", name="hit", hidden=True),
            Line("CacheStale", name="stale", hidden=True),
            Line("CacheMiss", name="miss", hidden=True),
            HIT_RATIO,
        ),
        left="jobs that wait",
        right="percent",
    ),
    Widget("Age of the oldest job", _by_lane("OldestJobAge", "Maximum"), left="ms"),
    Widget(
        "Jobs",
        _counts("JobsSubmitted", "JobsDeduplicated", "JobsCompleted", "JobsFailed"),
        left="jobs",
    ),
    Widget("Vendor latency", _percentiles("VendorLatency"), left="ms"),
    Widget("Vendor latency by model", (_by_model("VendorLatency", "p95"),), left="ms, p95"),
    Widget("Processing time", _percentiles("ProcessingTime"), left="ms"),
    Widget("Wait in the queue", _percentiles("QueueWait"), left="ms"),
    Widget(
        "Errors and retries",
        (
            *_counts("VendorErrors", "Retries", "SweeperResent", "UnexpectedErrors"),
            *_lambda("Errors", "Api", "RunJob", "SweepJobs"),
        ),
        left="events",
    ),
    Widget("Errors by model", (_by_model("VendorErrors", "Sum"),), left="calls"),
    Widget(
        "Gates",
        (*_counts("GateClosed", "Parked"), Line("GateWait", "p95", "GateWait p95", right=True)),
        left="events",
        right="ms",
    ),
    Widget("Gates that closed, by model", (_by_model("GateClosed", "Sum"),), left="events"),
    Widget(
        "Leases",
        _counts("LeaseAcquired", "LeaseReleased", "LeaseContention", "LeaseLost"),
        left="events",
    ),
    Widget(
        "Workers",
        (
            *_by_lane("WorkerUtilisation", "Maximum"),
            *_by_lane("WorkersIdle", "Maximum", right=True),
        ),
        left="percent at work",
        right="idle while jobs wait",
    ),
    Widget(
        "Degraded mode",
        (
            Line("DegradedSeconds", label="on"),
            Line("Degraded", label="answers past their hard TTL", right=True),
        ),
        left="seconds",
        right="answers",
    ),
    Widget(
        "Dead letters",
        (
            _messages("DeadLetterQueue", "jobs"),
            _messages("WebhookDeadLetterQueue", "webhooks"),
            _messages("UnpublishedQueue", "events"),
            _messages("InvalidationDeadLetterQueue", "invalidations"),
            Line("JobsDeadLettered", label="JobsDeadLettered", right=True),
        ),
        left="messages",
        right="jobs",
    ),
    Widget("Cost", (Line("CostEstimate", label="of calls"),), left="of the prices' currency"),
    Widget("Cost by model", (_by_model("CostEstimate", "Sum"),), left="of the prices' currency"),
    Widget("Webhooks", _counts("WebhooksDelivered", "WebhookErrors"), left="attempts"),
)


def body(alarms: list[str], alarms_on_aws: str = "") -> dict[str, Any]:
    """The dashboard as CloudWatch reads it; `alarms_on_aws` is put after the last of the alarms."""
    placed = [
        {
            "type": "metric",
            "x": number % COLUMNS * WIDTH,
            "y": number // COLUMNS * HEIGHT + 3,
            "width": WIDTH,
            "height": HEIGHT,
            "properties": _graph(widget),
        }
        for number, widget in enumerate(WIDGETS)
    ]
    arns = [f"${{{name}.Arn}}" for name in alarms]
    arns[-1] += alarms_on_aws
    states = {
        "type": "alarm",
        "x": 0,
        "y": 0,
        "width": COLUMNS * WIDTH,
        "height": 3,
        "properties": {"title": "Alarms", "alarms": arns},
    }
    return {"widgets": [states, *placed]}


def _graph(widget: Widget) -> dict[str, Any]:
    axes = {
        side: {"label": unit, "showUnits": False, "min": 0}
        for side, unit in (("left", widget.left), ("right", widget.right))
        if unit
    }
    return {
        "title": widget.title,
        "region": "${AWS::Region}",
        "view": "timeSeries",
        "period": 60,
        "metrics": [_metric(line) for line in widget.lines],
        "yAxis": axes,
    }


def _metric(line: Line | Computed) -> list[Any]:
    shown: dict[str, Any] = {"label": line.label} if line.label else {}
    if line.right:
        shown["yAxis"] = "right"
    if isinstance(line, Computed):
        return [{"expression": line.expression, **shown}]
    if line.name:
        shown["id"] = line.name
    if line.hidden:
        shown["visible"] = False
    dimensions = [part for pair in line.of.items() for part in pair]
    return [line.namespace, line.metric, *dimensions, {"stat": line.statistic, **shown}]


def text(template: str) -> str:
    """The template with this dashboard in it. Raises ValueError when it has no place for it."""
    before, begin, rest = template.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the template has no dashboard between its marks")
    return before + begin + "".join(_property(yaml_parse(template)["Resources"])) + end + after


def _property(resources: dict[str, Any]) -> Iterator[str]:
    """`DashboardBody`, in YAML: a line for each widget.

    Emulators lack some of the alarms, which nothing may refer to then.
    """
    alarms = {name: of for name, of in resources.items() if of["Type"] == "AWS::CloudWatch::Alarm"}
    everywhere = [name for name, of in alarms.items() if "Condition" not in of]
    on_aws = [f"${{{name}.Arn}}" for name in alarms if name not in everywhere]
    widgets = body(everywhere, "${AlarmsOnAws}")["widgets"]
    yield '      DashboardBody: !Sub\n        - >-\n          {"widgets": [\n'
    for number, widget in enumerate(widgets, 1):
        ends = "" if number == len(widgets) else ","
        yield f"          {json.dumps(widget)}{ends}\n"
    yield "          ]}\n"
    more = json.dumps("".join(f'","{arn}' for arn in on_aws))
    yield f'        - AlarmsOnAws: !If [OnAws, !Sub {more}, ""]\n'


if __name__ == "__main__":
    TEMPLATE.write_text(text(TEMPLATE.read_text("utf-8")), "utf-8")
    print(f"wrote the dashboard into {TEMPLATE.name}")  # noqa: T201
