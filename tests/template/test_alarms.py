"""The alarms and the dashboard: they watch what is measured, and somebody knows what to do."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from sluiceway.domain.catalogue import Service
from sluiceway.telemetry import EVENTS, NAMESPACE, SERVICE
from sluiceway_local import dashboard

from tests.functions.stage import Stage
from tests.functions.test_logs import live
from tests.template.rendering import PARAMETERS, RESOURCES, ROOT, SOURCE, render
from tests.unit.logs import metric_lines, output

ALARMS = {name: of for name, of in RESOURCES.items() if of["Type"] == "AWS::CloudWatch::Alarm"}
OURS = {metric.name for told in EVENTS.values() for metric in told}

AWS_METRICS = {
    ("AWS/Lambda", "Errors"): "FunctionName",
    ("AWS/Lambda", "Invocations"): "FunctionName",
    ("AWS/Lambda", "RecursiveInvocationsDropped"): "FunctionName",
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible"): "QueueName",
    ("AWS/ApiGateway", "5XXError"): "ApiName",
}
"""Those that AWS tells and that are watched, and their dimension."""

ASKED_FOR = {
    *("OldestJobAlarm", "DeadLettersAlarm", "WebhookDeadLettersAlarm", "UnpublishedEventsAlarm"),
    *("InvalidationsAlarm", "ErrorRateAlarm", "ContentionAlarm", "RetriesAlarm", "SweeperAlarm"),
    *("UtilisationAlarm", "IdleWorkersAlarm", "RecursionAlarm", "CostAlarm", "DegradedAlarm"),
    *("VendorQuotaAlarm", "CacheUnreachableAlarm", "UnexpectedErrorsAlarm", "ConfigurationAlarm"),
}


def watched(alarm: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Namespace, name and dimensions of each metric that it watches."""
    properties = alarm["Properties"]
    stats = [one["MetricStat"] for one in properties.get("Metrics", ()) if "MetricStat" in one]
    return [
        (
            metric["Namespace"],
            metric["MetricName"],
            {one["Name"]: one["Value"] for one in metric.get("Dimensions", ())},
        )
        for metric in ([stat["Metric"] for stat in stats] or [properties])
    ]


def section_of(alarm: dict[str, Any]) -> str:
    """The section of the runbook that its description names at its end."""
    description = " ".join(alarm["Properties"]["AlarmDescription"].split())
    found = re.search(r'docs/runbook\.md, "([^"]+)"\.$', description)
    assert found is not None, description
    return found[1]


@cache
def runbook() -> dict[str, str]:
    """The text of each section, by its title."""
    text = (ROOT / "docs/runbook.md").read_text("utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# ------------------------------------------------------------------------------------ alarms


def test_alarms_that_were_asked_for_are_there() -> None:
    assert ALARMS.keys() >= ASKED_FOR
    assert all(name.endswith("Alarm") for name in ALARMS)


@pytest.mark.parametrize("name", ALARMS)
def test_alarm_watches_metrics_that_are_told_with_these_dimensions(name: str) -> None:
    for namespace, metric, dimensions in watched(ALARMS[name]):
        if metric == "ApiFailures":  # of the access log, by ApiFailuresFilter (test_rollout.py)
            assert dimensions == {}
        elif namespace == NAMESPACE:
            assert metric in OURS
            assert dimensions == {"service": SERVICE}  # that set is told with every event
        else:
            assert set(dimensions) == {AWS_METRICS[namespace, metric]}


@pytest.mark.parametrize("name", ALARMS)
def test_alarm_notifies_the_topic_when_it_rings_and_when_it_is_quiet_again(name: str) -> None:
    arn = "arn:aws:sns:us-east-1:123456789012:ops"

    told = render(OpsTopicArn=arn).properties(name)
    untold = render().properties(name)

    assert (told["AlarmActions"], told["OKActions"]) == ([arn], [arn])
    assert [untold.get(name, []) for name in ("AlarmActions", "OKActions")] == [[], []]


@pytest.mark.parametrize("name", ALARMS)
def test_alarm_is_quiet_without_data(name: str) -> None:
    missing = ALARMS[name]["Properties"]["TreatMissingData"]

    assert missing == ("breaching" if name == "SweeperAlarm" else "notBreaching")


@pytest.mark.parametrize("name", ALARMS)
def test_alarm_that_computes_is_for_aws_alone_and_gives_one_figure(name: str) -> None:
    properties = ALARMS[name]["Properties"]
    metrics = properties.get("Metrics", [])

    assert (ALARMS[name].get("Condition") == "OnAws") is bool(metrics)
    if metrics:
        assert not {"MetricName", "Namespace", "Statistic", "Period"} & set(properties)
        (expression,) = (one for one in metrics if "Expression" in one)
        assert all(one["ReturnData"] is False for one in metrics if one is not expression)
        known = {one["Id"] for one in metrics} | {"METRICS"}
        named = set(re.findall(r"\b[a-z]+\b", expression["Expression"]))
        assert named <= known


@pytest.mark.parametrize("name", ["ErrorRateAlarm", "RetriesAlarm", "ContentionAlarm"])
def test_alarm_on_a_ratio_needs_ten_of_what_it_counts(name: str) -> None:
    (expression,) = (
        one["Expression"] for one in ALARMS[name]["Properties"]["Metrics"] if "Expression" in one
    )

    assert re.match(r"IF\(.+ >= 10, .+, 0\)$", expression)


@pytest.mark.parametrize("name", ALARMS)
def test_alarm_has_a_section_of_the_runbook(name: str) -> None:
    text = runbook()[section_of(ALARMS[name])]

    assert f"`{name}`" in text
    for part in ("*Meaning*", "*Check*", "*Act*"):
        assert part in text


def test_oldest_job_rings_when_degraded_mode_begins() -> None:
    threshold_ms = ALARMS["OldestJobAlarm"]["Properties"]["Threshold"]

    assert threshold_ms == Service().degraded_after_s * 1000


def test_dead_letter_queues_are_all_watched() -> None:
    watched_queues = {
        dimensions["QueueName"]["Fn::GetAtt"][0]
        for alarm in ALARMS.values()
        for namespace, _, dimensions in watched(alarm)
        if namespace == "AWS/SQS"
    }
    lanes_and_work = {"InteractiveQueue", "BatchQueue", "WebhookQueue"}
    queues = {name for name, of in RESOURCES.items() if of["Type"] == "AWS::SQS::Queue"}

    assert watched_queues == queues - lanes_and_work


def test_cost_alarm_is_the_operators_choice() -> None:
    assert render(CostAlarmPerHour="7").properties("CostAlarm")["Threshold"] == "7"
    assert PARAMETERS["CostAlarmPerHour"]["Default"] == 100


def test_alarms_are_documented() -> None:
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    row = r"^\| `(\w+Alarm)` \| .* \| \[.+\]\(runbook\.md#(.+)\) \|$"

    rows = dict(re.findall(row, text, re.MULTILINE))

    assert rows == {
        name: re.sub(r"[^\w\- ]", "", section_of(of).lower()).replace(" ", "-")
        for name, of in ALARMS.items()
    }


# ------------------------------------------------------------------------------------ dashboard


def drawn(**parameters: str) -> dict[str, Any]:
    """The dashboard as CloudWatch gets it; what only a deployment knows is "x"."""
    text, names = render(**parameters).properties("Dashboard")["DashboardBody"]["Fn::Sub"]
    more = names["AlarmsOnAws"]
    if isinstance(more, dict):
        more = more["Fn::Sub"]
    text = text.replace("${AlarmsOnAws}", more)
    body: dict[str, Any] = json.loads(re.sub(r"\$\{[\w.:]+\}", "x", text))
    return body


def graphs() -> list[dict[str, Any]]:
    return [one["properties"] for one in drawn()["widgets"] if one["type"] == "metric"]


@pytest.fixture
def told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> set[tuple[str, frozenset[str]]]:
    """Each metric that the handlers tell on a day, with each of its dimension sets."""
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    live(Stage())
    return {
        (metric["Name"], frozenset(names))
        for line in metric_lines(output(capsys))
        for directive in line["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]
        for names in directive["Dimensions"]
    }


def test_dashboard_in_the_template_is_that_of_its_definition() -> None:
    template = (ROOT / "template.yaml").read_text("utf-8")

    assert dashboard.text(template) == template, "run make dashboard"


def test_dashboard_shows_the_state_of_each_alarm() -> None:
    text, names = SOURCE["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    everywhere = set(re.findall(r"\$\{(\w+Alarm)\.Arn\}", text))
    on_aws = set(re.findall(r"\$\{(\w+Alarm)\.Arn\}", json.dumps(names)))

    assert everywhere | on_aws == ALARMS.keys()
    assert everywhere == render(Target="local").of_type("AWS::CloudWatch::Alarm").keys()


@pytest.mark.parametrize("target", ["aws", "local"])
def test_dashboard_is_whole_with_and_without_the_alarms_that_compute(target: str) -> None:
    (states,) = (one for one in drawn(Target=target)["widgets"] if one["type"] == "alarm")

    alarms = render(Target=target).of_type("AWS::CloudWatch::Alarm")
    assert states["properties"]["alarms"] == ["x"] * len(alarms)


def test_metrics_of_the_dashboard_are_told_with_these_dimensions(
    told: set[tuple[str, frozenset[str]]],
) -> None:
    service = frozenset({"service"})
    asked = set()
    for graph in graphs():
        for line in graph["metrics"]:
            if isinstance(line[0], dict):
                schema = re.match(
                    r"SEARCH\('\{Sluiceway,(.+)\} MetricName=\"(\w+)\"'", line[0]["expression"]
                )
                if schema:
                    asked.add((schema[2], frozenset(schema[1].split(","))))
            elif line[0] == NAMESPACE:
                asked.add((line[1], frozenset(line[2:-1:2])))
            else:
                assert AWS_METRICS[line[0], line[1]] == line[2]

    assert {name for name, of in asked if of == service} <= OURS
    assert {one for one in asked if one[1] != service} <= told
    assert len(asked) > 30


def test_expressions_of_the_dashboard_know_their_lines() -> None:
    for graph in graphs():
        ids = {line[-1]["id"] for line in graph["metrics"] if "id" in line[-1]}
        named = {
            name
            for line in graph["metrics"]
            for name in re.findall(r"\b[a-z]+\b", line[-1].get("expression", ""))
            if "SEARCH" not in line[-1].get("expression", "")
        }
        assert named == ids


def test_widgets_of_the_dashboard_lie_beside_each_other() -> None:
    cells = [
        (x, y)
        for one in drawn()["widgets"]
        for x in range(one["x"], one["x"] + one["width"])
        for y in range(one["y"], one["y"] + one["height"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
