"""How a deploy reaches the functions: versions, the alias that all call, and the way back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from samtranslator.model.preferences.deployment_preference_collection import (
    CODEDEPLOY_PREDEFINED_CONFIGURATIONS_LIST as KNOWN_TO_SAM,
)

from tests.docs.test_docs import RUNBOOK, anchors_of
from tests.template.rendering import (
    PARAMETERS,
    RESOURCES,
    SOURCE,
    alias_of,
    render,
    transform,
)
from tests.template.test_template import overrides

FUNCTIONS = sorted(render().of_type("AWS::Lambda::Function"))
AT_ONCE = "AllAtOnce"
CHOICES: list[str] = PARAMETERS["Rollout"]["AllowedValues"]
GRADUAL = sorted(set(CHOICES) - {AT_ONCE})
ALARMS = ("ApiErrorsAlarm", "WorkerErrorsAlarm")
STOPS = (*ALARMS, "ConfigurationAlarm")
"""A version that can't read the configuration fails nowhere: it answers 503, and gives back."""

WATCHED = {
    "ApiErrorsAlarm": {"ApiFunction", "AuthorizeFunction"},
    "WorkerErrorsAlarm": {
        *("RunJobFunction", "SweepJobsFunction"),
        *("PublishEventsFunction", "DeliverWebhookFunction"),
    },
}
CALLERS = {
    "AWS::Events::Rule": lambda of: [target["Arn"] for target in of["Targets"]],
    "AWS::Lambda::EventSourceMapping": lambda of: [of["FunctionName"]],
    "AWS::Lambda::Permission": lambda of: [of["FunctionName"]],
    "AWS::Scheduler::Schedule": lambda of: [of["Target"]["Arn"]],
}
"""What names a function to have it called, and where; the API is in test_api.py."""

METRICS_ARE_LATE_S = 120
"""At most, as a rule: those from logs are the latest."""

DESCRIPTION_CHARACTERS = 256
"""Lambda's limit for the description of a version."""

NOT_OF_A_VERSION = {
    "AutoPublishAlias",
    "AutoPublishAliasAllProperties",
    "CodeUri",
    "DeploymentPreference",
    "EventInvokeConfig",
    "Events",
    "LoggingConfig",
    "ReservedConcurrentExecutions",
    "Role",
    "VersionDescription",
}
"""Properties that a version doesn't keep, or whose change SAM sees by itself."""


def versions(transformed: dict[str, Any]) -> dict[str, str]:
    """The logical id of each function's version."""
    return {
        of["Properties"]["FunctionName"]["Ref"]: name
        for name, of in transformed["Resources"].items()
        if of["Type"] == "AWS::Lambda::Version"
    }


def parameters_in(value: Any) -> set[str]:
    """The parameters that a value depends on."""
    match value:
        case {"Ref": str(name)} if name in PARAMETERS:
            return {name}
        case {"Condition": str(name)}:
            return parameters_in(SOURCE["Conditions"][name])
        case {"Fn::If": [str(name), *values]}:
            return parameters_in(SOURCE["Conditions"][name]) | parameters_in(values)
        case {"Fn::Sub": [str(text), values]}:
            return parameters_in({"Fn::Sub": text}) | parameters_in(values)
        case {"Fn::Sub": str(text)}:
            return set(re.findall(r"\$\{(\w+)\}", text)) & PARAMETERS.keys()
        case dict():
            return parameters_in(list(value.values()))
        case list():
            return {name for one in value for name in parameters_in(one)}
    return set()


def metrics_of(alarm: str) -> dict[str, dict[str, Any]]:
    """The metrics that the alarm adds up, by their ids."""
    metrics = render().properties(alarm)["Metrics"]
    return {one["Id"]: one["MetricStat"]["Metric"] for one in metrics if "MetricStat" in one}


# ------------------------------------------------------------------------------------ the alias


@pytest.mark.parametrize("function", FUNCTIONS)
def test_alias_is_at_the_version_of_this_deploy(function: str) -> None:
    stack = render()

    alias = stack.properties(alias_of(function)["Ref"])

    version, attribute = alias["FunctionVersion"]["Fn::GetAtt"]
    assert (alias["Name"], alias["FunctionName"]) == ("live", {"Ref": function})
    assert (version, attribute) == (versions(transform())[function], "Version")
    assert stack.properties(version)["FunctionName"] == {"Ref": function}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_versions_of_the_past_stay(function: str) -> None:
    version = transform()["Resources"][versions(transform())[function]]

    assert version["DeletionPolicy"] == "Retain"


@pytest.mark.parametrize("kind", sorted(CALLERS))
def test_whatever_calls_a_function_calls_its_alias(kind: str) -> None:
    aliases = [alias_of(function) for function in FUNCTIONS]

    called = [
        named
        for of in render().of_type(kind).values()
        if of.get("Principal") != "appconfig.amazonaws.com"  # a validator is a function, no alias
        for named in CALLERS[kind](of)
    ]

    assert called
    assert [named for named in called if named not in aliases] == []


def test_retries_of_events_hold_for_the_alias() -> None:
    (of,) = render().of_type("AWS::Lambda::EventInvokeConfig").values()

    assert of["Qualifier"] == "live"


# ------------------------------------------------------------------------------------ versions


def test_change_of_the_layer_publishes_every_function() -> None:
    before, after = versions(transform()), versions(transform("CoreLayer"))

    assert {function for function in FUNCTIONS if before[function] != after[function]} == {
        *FUNCTIONS
    }


def test_change_of_a_function_publishes_that_one() -> None:
    before, after = versions(transform()), versions(transform("RunJobFunction"))

    changed = [function for function in FUNCTIONS if before[function] != after[function]]

    assert changed == ["RunJobFunction"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_change_of_a_parameter_publishes_every_function(function: str) -> None:
    # SAM hashes the template's text, where a parameter is a name. A description that differs makes
    # CloudFormation replace the version; a variable that differs lets Lambda publish another.
    stack = render()
    version = stack.properties(versions(transform())[function])
    variables = stack.properties(function)["Environment"]["Variables"]

    reach = {
        name
        for source in (SOURCE["Globals"]["Function"], RESOURCES[function]["Properties"])
        for key, value in source.items()
        if key not in NOT_OF_A_VERSION
        for name in parameters_in(value)
    }

    assert version["Description"] == variables["PARAMETERS"]
    assert reach == parameters_in(SOURCE["Globals"]["Function"]["Environment"])


def test_change_of_the_layer_of_valkey_publishes_every_function() -> None:
    before, after = (
        transform(changed)["Resources"]["RunJobFunction"]["Properties"]["Environment"]["Variables"]
        for changed in ("", "ValkeyLayer")
    )

    assert before["PARAMETERS"] != after["PARAMETERS"]


def test_description_of_a_version_fits() -> None:
    longest = {
        name: max(map(str, of.get("AllowedValues", [""])), key=len)
        for name, of in PARAMETERS.items()
    } | {
        "VpcId": "vpc-" + 17 * "0",
        "PrivateSubnetIds": ",".join(3 * ["subnet-" + 17 * "0"]),
        "Layer": "arn:aws:lambda:ap-southeast-2:123456789012:layer:ValkeyLayer0123456789:1234",
    }
    text, _ = SOURCE["Globals"]["Function"]["Environment"]["Variables"]["PARAMETERS"]["Fn::Sub"]

    filled = re.sub(r"\$\{(\w+)\}", lambda name: longest[name[1]], text)

    assert len(filled) <= DESCRIPTION_CHARACTERS


# ------------------------------------------------------------------------------------ the rollout


def test_rollouts_are_those_that_sam_knows() -> None:
    assert set(CHOICES) <= set(KNOWN_TO_SAM)
    assert {name: row["CodeDeploy"] for name, row in SOURCE["Mappings"]["Rollouts"].items()} == {
        AT_ONCE: "false",
        **dict.fromkeys(GRADUAL, "true"),
    }


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("rollout", GRADUAL)
def test_gradual_rollout_goes_back_when_an_alarm_rings(rollout: str, function: str) -> None:
    stack = render(Rollout=rollout)
    policy = stack.resources[alias_of(function)["Ref"]]["UpdatePolicy"]

    update = policy["CodeDeployLambdaAliasUpdate"]
    group = stack.properties(update["DeploymentGroupName"]["Ref"])

    assert group["ApplicationName"] == update["ApplicationName"]
    assert group["DeploymentConfigName"]["Fn::Sub"] == [
        "CodeDeployDefault.Lambda${ConfigName}",
        {"ConfigName": rollout},
    ]
    assert group["AlarmConfiguration"] == {
        "Enabled": True,
        "Alarms": [{"Name": {"Ref": alarm}} for alarm in STOPS],
    }
    assert group["AutoRollbackConfiguration"]["Enabled"] is True
    assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]


def test_rollout_at_once_needs_no_codedeploy() -> None:
    # It deploys while an alarm rings, too, which CodeDeploy refuses.
    stack = render(Rollout=AT_ONCE)

    of_codedeploy = [name for name, of in stack.resources.items() if "CodeDeploy" in of["Type"]]

    assert of_codedeploy == []
    assert "CodeDeployServiceRole" not in stack.resources
    assert [name for name, of in stack.resources.items() if "UpdatePolicy" in of] == []


def test_rollout_changes_nothing_but_the_way_to_the_new_versions() -> None:
    at_once, canary = render().resources, render(Rollout=GRADUAL[0]).resources

    added = {of["Type"] for name, of in canary.items() if name not in at_once}

    assert at_once.keys() <= canary.keys()
    assert added == {
        *("AWS::CodeDeploy::Application", "AWS::CodeDeploy::DeploymentGroup"),
        "AWS::IAM::Role",
    }
    assert all(canary[name]["Properties"] == of["Properties"] for name, of in at_once.items())


def test_production_lets_a_canary_go_first() -> None:
    rollouts = {name: overrides(name).get("Rollout", AT_ONCE) for name in ("dev", "prod", "local")}

    assert rollouts == {"dev": AT_ONCE, "prod": "Canary10Percent5Minutes", "local": AT_ONCE}
    assert PARAMETERS["Rollout"]["Default"] == AT_ONCE  # MiniStack sees the default alone


# ------------------------------------------------------------------------------------ the alarms


@pytest.mark.parametrize("alarm", ALARMS)
def test_alarm_adds_up_the_errors_of_its_functions(alarm: str) -> None:
    metrics = metrics_of(alarm)
    (sum_of_all,) = (one for one in render().properties(alarm)["Metrics"] if "Expression" in one)

    functions = {
        dimension["Value"]["Ref"]
        for metric in metrics.values()
        for dimension in metric.get("Dimensions", [])
        if (metric["Namespace"], metric["MetricName"]) == ("AWS/Lambda", "Errors")
    }

    assert functions == WATCHED[alarm]
    assert set(re.findall(r"FILL\((\w+), 0\)", sum_of_all["Expression"])) == metrics.keys()


@pytest.mark.parametrize("alarm", STOPS)
def test_alarm_rings_within_a_canary(alarm: str) -> None:
    of = render().properties(alarm)
    metrics = of.get("Metrics") or [{"MetricStat": of}]
    (period_s,) = {one["MetricStat"]["Period"] for one in metrics if "MetricStat" in one}

    rings_after_s = of["DatapointsToAlarm"] * period_s

    canaries_s = [int(minutes) * 60 for minutes in re.findall(r"Percent(\d+)Min", str(CHOICES))]
    assert rings_after_s + METRICS_ARE_LATE_S < min(canaries_s)
    assert of["TreatMissingData"] == "notBreaching"


@pytest.mark.parametrize("alarm", ALARMS)
def test_alarm_tells_the_topic_if_there_is_one(alarm: str) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:ops"
    nobody, somebody = render().properties(alarm), render(OpsTopicArn=topic).properties(alarm)

    assert not {"AlarmActions", "OKActions"} & nobody.keys()
    assert somebody["AlarmActions"] == somebody["OKActions"] == [topic]


@pytest.mark.parametrize("alarm", ALARMS)
def test_alarm_names_the_section_of_the_runbook(alarm: str) -> None:
    description = render().properties(alarm)["AlarmDescription"]

    section = re.search(r'docs/runbook\.md, "([^"]+)"\.$', description)

    assert section is not None
    assert section[1].lower().replace(" ", "-") in anchors_of(RUNBOOK)


def test_answers_that_the_code_means_ring_no_alarm() -> None:
    (of,) = render().of_type("AWS::Logs::MetricFilter").values()
    (made,) = of["MetricTransformations"]
    watched = metrics_of("ApiErrorsAlarm")["answers"]
    access_log = SOURCE["Resources"]["Api"]["Properties"]["AccessLogSetting"]["Format"]

    counted = set(re.findall(r'\$\.status = "(\d+)"', of["FilterPattern"]))

    assert counted == {"500", "502"}
    assert '"status":"$context.status"' in access_log  # a text: numbers would never be equal
    assert of["LogGroupName"] == {"Ref": "ApiAccessLogGroup"}
    assert (made["MetricNamespace"], made["MetricName"]) == (
        watched["Namespace"],
        watched["MetricName"],
    )
