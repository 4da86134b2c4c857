"""What the model of costs takes for granted of the stack, against the template and the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sluiceway.adapters.appconfig import KEPT_MS
from sluiceway.domain import catalogue, job
from sluiceway.domain.job import DUE_SHARDS, ROW_OUTLIVES_DEADLINE_S
from sluiceway.telemetry import EVENTS
from sluiceway.usecases.wake_jobs import POLL_EVERY_MS
from sluiceway_cli import costs
from sluiceway_cli.costs import (
    CONFIGURATION_KEPT_S,
    METRICS,
    POLICY_KEPT_S,
    STACK,
    STEADY_METRICS,
    Workload,
)

from tests.template.rendering import RESOURCES, SOURCE
from tests.template.test_alarms import ALARMS, watched

FUNCTIONS = {
    re.sub(r"(?<!^)([A-Z])", r"_\1", name.removesuffix("Function")).lower(): of["Properties"]
    for name, of in RESOURCES.items()
    if of["Type"] == "AWS::Serverless::Function"
}


def events_of(kind: str) -> list[dict[str, Any]]:
    return [
        event["Properties"]
        for function in FUNCTIONS.values()
        for event in function.get("Events", {}).values()
        if event["Type"] == kind
    ]


def of_type(kind: str) -> int:
    return sum(of["Type"] == kind for of in RESOURCES.values())


def test_memory_of_functions_is_that_of_the_template() -> None:
    assert STACK.memory_mb == {name: FUNCTIONS[name]["MemorySize"] for name in STACK.memory_mb}
    assert set(FUNCTIONS) - set(STACK.memory_mb) == {"invalidate_cache", "check_catalogue"}
    assert {function.get("Architectures") for function in FUNCTIONS.values()} == {None}  # x86


def test_queues_that_are_polled_are_those_with_a_mapping() -> None:
    assert len(events_of("SQS")) == STACK.polled_queues


def test_sweeper_comes_as_often_and_polls_as_long_as_is_reckoned() -> None:
    (schedule,) = events_of("ScheduleV2")
    most_s = FUNCTIONS["sweep_jobs"]["Timeout"]

    assert schedule["ScheduleExpression"] == "rate(1 minute)"
    assert STACK.sweeps_per_h == 60
    assert STACK.due_shards == DUE_SHARDS
    assert STACK.polls_of_a_sweep == most_s * 1000 // POLL_EVERY_MS


def test_alarms_dashboards_and_secrets_are_those_of_the_template() -> None:
    assert STACK.alarm_metrics == sum(len(watched(alarm)) for alarm in ALARMS.values())
    assert STACK.dashboards == of_type("AWS::CloudWatch::Dashboard")
    assert STACK.secrets == of_type("AWS::SecretsManager::Secret")


def test_nothing_else_in_the_template_is_billed_while_idle() -> None:
    # What has a price by the hour or month must be in idle_cost; this list is what has none.
    free = {
        *("AWS::ApiGateway::Account", "AWS::Serverless::Api", "AWS::CloudFormation::WaitCondition"),
        *("AWS::AppConfig::Application", "AWS::AppConfig::ConfigurationProfile"),
        *("AWS::AppConfig::DeploymentStrategy", "AWS::AppConfig::Environment"),
        *("AWS::DynamoDB::Table", "AWS::EC2::SecurityGroup", "AWS::Events::EventBus"),
        *("AWS::Events::Rule", "AWS::IAM::Role", "AWS::Lambda::Permission", "AWS::Logs::LogGroup"),
        *("AWS::Logs::MetricFilter", "AWS::S3::Bucket", "AWS::S3::BucketPolicy"),
        *("AWS::SQS::Queue", "AWS::SQS::QueuePolicy", "AWS::Serverless::Function"),
        *("AWS::Serverless::LayerVersion",),
    }
    reckoned = {
        *("AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard", "AWS::SecretsManager::Secret"),
        "AWS::ElastiCache::ServerlessCache",
    }
    said_to_be_left_out = {"AWS::WAFv2::WebACL", "AWS::WAFv2::WebACLAssociation"}

    found = {of["Type"] for of in RESOURCES.values()}

    assert found - free - reckoned == said_to_be_left_out


def test_tables_are_on_demand_and_without_keys_of_their_own() -> None:
    tables = [of["Properties"] for of in RESOURCES.values() if of["Type"] == "AWS::DynamoDB::Table"]

    assert {table["BillingMode"] for table in tables} == {"PAY_PER_REQUEST"}
    assert not any("KMSMasterKeyId" in table["SSESpecification"] for table in tables)


def test_functions_that_begin_traces_are_traced_and_the_access_log_has_one_metric() -> None:
    assert SOURCE["Globals"]["Function"]["Tracing"] == "Active"
    assert not any("Tracing" in function for function in FUNCTIONS.values())
    assert len(events_of("DynamoDB")) == 1
    assert of_type("AWS::Logs::MetricFilter") == 1


def test_policies_are_kept_as_long_as_is_reckoned() -> None:
    (authorizer,) = RESOURCES["Api"]["Properties"]["Auth"]["Authorizers"].values()

    assert authorizer["Identity"]["ReauthorizeEvery"] == POLICY_KEPT_S


def test_metrics_are_those_that_events_count_into() -> None:
    told = {metric.name for metrics in EVENTS.values() for metric in metrics}

    assert set(METRICS) <= told
    assert len(job.LANES) == costs.LANES
    assert len(EVENTS["lane_measured"]) * (1 + costs.LANES) == STEADY_METRICS
    assert CONFIGURATION_KEPT_S * 1000 == KEPT_MS


def test_times_of_a_default_workload_are_those_of_the_catalogue() -> None:
    model = catalogue.parse(
        """
        [vendors.simulator]
        [models.m]
        vendor = "simulator"
        vendor_model = "m"
        version = "1"
        """
    )
    kept_s = model.models["m"].cache.hard_ttl_s + model.models["m"].cache.stale_if_error_s

    assert Workload().entry_h * 3600 == kept_s
    assert Workload().result_days * 24 == model.service.result_retention_h
    assert (Workload().row_days - 1) * 24 * 3600 == pytest.approx(ROW_OUTLIVES_DEADLINE_S)
