"""The sweeper's minute: what starts it, how long it may take, and what it may do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluiceway.domain.job import MAX_RECEIVES
from sluiceway.usecases.sweep_jobs import LOOK_AHEAD_MS, STOP_BEFORE_END_MS

from tests.template.rendering import ROOT, alias_of, render

MINUTE_S = 60


def schedule() -> dict[str, Any]:
    (found,) = render().of_type("AWS::Scheduler::Schedule").values()
    return found


def test_sweeper_runs_each_minute() -> None:
    assert schedule()["ScheduleExpression"] == "rate(1 minute)"
    assert schedule()["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert schedule().get("State", "ENABLED") == "ENABLED"
    assert schedule()["Target"]["Arn"] == alias_of("SweepJobsFunction")


def test_schedule_lets_the_sweeper_poll() -> None:
    sample = json.loads((ROOT / "events/sweep_jobs.json").read_text("utf-8"))

    assert json.loads(schedule()["Target"]["Input"]) == sample == {"poll": True}


@pytest.mark.parametrize("target", ["aws", "local"])
def test_every_stack_has_the_schedule(target: str) -> None:
    assert len(render(Target=target).of_type("AWS::Scheduler::Schedule")) == 1


def test_sweep_ends_before_the_next_one_begins() -> None:
    timeout_s = render().properties("SweepJobsFunction")["Timeout"]

    assert STOP_BEFORE_END_MS / 1000 < timeout_s < MINUTE_S


def test_sweep_looks_ahead_to_the_next_one() -> None:
    assert LOOK_AHEAD_MS == MINUTE_S * 1000


def test_sweep_that_failed_is_left_to_the_next_minute() -> None:
    assert schedule()["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 0


def test_scheduler_may_invoke_the_sweeper_and_nothing_else() -> None:
    role: str = schedule()["Target"]["RoleArn"]["Fn::GetAtt"][0]
    of = render().properties(role)

    (trust,) = of["AssumeRolePolicyDocument"]["Statement"]
    (policy,) = of["Policies"]
    (statement,) = policy["PolicyDocument"]["Statement"]

    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trust["Action"] == "sts:AssumeRole"
    assert statement == {
        "Effect": "Allow",
        "Action": ["lambda:InvokeFunction"],
        "Resource": alias_of("SweepJobsFunction"),
    }
    assert "ManagedPolicyArns" not in of


def test_no_schedule_has_a_physical_name() -> None:
    # SAM names a schedule like its logical id unless OmitName says otherwise: the second stack in
    # an account, dev beside prod, could not be made.
    assert "Name" not in schedule()


def test_sweeper_sees_the_lanes_and_the_stores_and_no_results() -> None:
    variables = render().properties("SweepJobsFunction")["Environment"]["Variables"]

    assert {name: value["Ref"] for name, value in variables.items() if "Ref" in value} == {
        "JOBS_TABLE": "JobsTable",
        "CACHE_TABLE": "CacheTable",
        "COORDINATION_TABLE": "CoordinationTable",
        "INTERACTIVE_QUEUE_URL": "InteractiveQueue",
        "BATCH_QUEUE_URL": "BatchQueue",
        "CONFIGURATION": "Configuration",
        "EVENT_BUS": "EventBus",
    }


def test_due_index_has_all_that_a_sweep_reads_of_a_job_before_it_looks_it_up() -> None:
    (index,) = render().properties("JobsTable")["GlobalSecondaryIndexes"]
    keys = {"tenant", "job_id"} | {key["AttributeName"] for key in index["KeySchema"]}

    projected = keys | set(index["Projection"]["NonKeyAttributes"])

    assert {
        "tenant",
        "job_id",
        "status",
        "lane",
        "due_at_epoch_ms",
        "enqueued_at_epoch_ms",
    } <= projected


@pytest.mark.parametrize("lane", ["InteractiveQueue", "BatchQueue"])
def test_messages_that_a_sweep_delays_are_delayed_by_themselves_alone(lane: str) -> None:
    # A queue's own delay would make each park late.
    of = render().properties(lane)

    assert of.get("DelaySeconds", 0) == 0
    assert of["RedrivePolicy"]["maxReceiveCount"] == MAX_RECEIVES
