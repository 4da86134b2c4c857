"""Catalogue and flags in the template: who checks them, who is told, what takes them back."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.domain import flags, notice
from sluiceway.domain.catalogue import VENDOR_SECRETS

from tests.template.calls import SECRETS
from tests.template.rendering import render

TOPIC = "arn:aws:sns:us-east-1:000000000000:ops"


def schema() -> Any:
    (validator,) = render().properties("FlagsProfile")["Validators"]
    assert validator["Type"] == "JSON_SCHEMA"
    return json.loads(validator["Content"])


def fits(document: object) -> bool:
    return bool(jsonschema.Draft4Validator(schema()).is_valid(document))


def feature(**rule: Any) -> flags.Document:
    condition = {"action": "KEY_IN_VALUE", "key": "model", "value": ["m"]}
    whole = {"when_match": False, "conditions": [condition], **rule}
    return {"submit": {"default": True, "rules": {"off for models": whole}}}


# ------------------------------------------------------------------------------------ validators


def test_schema_of_flags_is_one() -> None:
    jsonschema.Draft4Validator.check_schema(schema())


@pytest.mark.parametrize("name", flags.FEATURES)
@pytest.mark.parametrize("on", [True, False])
def test_schema_takes_all_that_a_switch_writes(name: str, on: bool) -> None:  # noqa: FBT001
    document = flags.switched({}, name, on=on)
    for kind in flags.ASKED_FOR[name]:
        document = flags.switched(document, name, on=not on, subject=f"{kind}:some")

    assert fits(document)
    parse_flags(json.dumps(document))


@pytest.mark.parametrize(
    "document",
    [
        *([], "x", None, {"sumbit": {"default": True}}, {"submit": True}, {"submit": {}}),
        {"submit": {"default": "yes"}},
        {"submit": {"default": True, "boolean_type": False}},
        *(feature(when_match="no"), feature(conditions=[]), feature(more=1)),
        feature(conditions=[{"action": "EQUALS", "key": "model", "value": "m"}]),
        feature(conditions=[{"action": "KEY_IN_VALUE", "key": "lane", "value": ["m"]}]),
        feature(conditions=[{"action": "KEY_IN_VALUE", "key": "model", "value": "m"}]),
        {"submit": {"default": True, "rules": {"mine": {}}}},
    ],
)
def test_schema_refuses_what_no_switch_writes(document: object) -> None:
    assert fits(feature())
    assert not fits(document)


def test_catalogue_is_checked_by_the_function_that_appconfig_may_call() -> None:
    (validator,) = render().properties("CatalogueProfile")["Validators"]
    permission = render().properties("CheckCataloguePermission")

    assert validator == {
        "Type": "LAMBDA",
        "Content": {"Fn::GetAtt": ["CheckCatalogueFunction", "Arn"]},
    }
    assert permission["FunctionName"] == {"Ref": "CheckCatalogueFunction"}
    assert permission["Principal"] == "appconfig.amazonaws.com"


@pytest.mark.parametrize("timeout", ["120", "300", "600", "900"])
def test_check_knows_the_lease_of_the_workers(timeout: str) -> None:
    stack = render(RunJobTimeout=timeout)

    leases = {
        stack.properties(function)["Environment"]["Variables"]["LEASE_S"]
        for function in ("CheckCatalogueFunction", "RunJobFunction")
    }

    assert len(leases) == 1


def test_secrets_of_vendors_are_where_workers_may_read_them() -> None:
    assert VENDOR_SECRETS == SECRETS


# ------------------------------------------------------------------------------------ alarms


def test_alarms_take_a_catalogue_back_and_never_a_switch() -> None:
    stack = render()
    monitors = stack.properties("CatalogueEnvironment")["Monitors"]
    (role,) = {one["AlarmRoleArn"]["Fn::GetAtt"][0] for one in monitors}

    alarms = {one["AlarmArn"]["Fn::GetAtt"][0] for one in monitors}

    assert alarms <= stack.of_type("AWS::CloudWatch::Alarm").keys()
    assert all(  # AppConfig takes an alarm without data for one that rings
        stack.properties(name)["TreatMissingData"] == "notBreaching" for name in alarms
    )
    (statement,) = stack.properties(role)["Policies"][0]["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["cloudwatch:DescribeAlarms"]
    assert "Monitors" not in stack.properties("FlagsEnvironment")
    assert "Monitors" not in render(Target="local").properties("CatalogueEnvironment")


# ------------------------------------------------------------------------------------ notices


def test_every_notice_goes_to_the_ops_topic() -> None:
    rule = render(OpsTopicArn=TOPIC).properties("OpsNoticesRule")
    (target,) = rule["Targets"]

    pattern = rule["EventPattern"]

    assert pattern == {"source": [notice.SOURCE], "detail-type": list(notice.KINDS)}
    assert rule["EventBusName"] == {"Ref": "EventBus"}
    assert target["Arn"] == TOPIC


def test_text_of_a_notice_has_what_every_notice_says() -> None:
    (target,) = render(OpsTopicArn=TOPIC).properties("OpsNoticesRule")["Targets"]
    told = notice.Notice("PauseBegan", 0, "lane:batch", "user:ann").detail()
    paths = target["InputTransformer"]["InputPathsMap"]

    assert {path for path in paths.values() if "detail." in path} == {
        f"$.detail.{member}" for member in told
    }
    template = target["InputTransformer"]["InputTemplate"]["Fn::Sub"]
    assert [name for name in paths if f"<{name}>" not in template] == []


def test_stack_without_a_topic_tells_nobody() -> None:
    assert "OpsNoticesRule" not in render().resources
