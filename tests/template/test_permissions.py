"""Least privilege: a role allows the calls that its function's code makes, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.template.calls import DEPS, PORTS, Calls, Right, calls_of, client_methods, verbs_of
from tests.template.rendering import render

FUNCTIONS = sorted(render().of_type("AWS::Lambda::Function"))

LOGS = ("logs:CreateLogStream", "logs:PutLogEvents")
TRACES = {("*", "xray:PutTraceSegments"), ("*", "xray:PutTelemetryRecords")}
MAPPING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
STREAM = ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator")

NOT_USED = {"delete_item", "head_object"}
"""Table.write could delete; no verb does. The size of an object is for an operator's command."""


def role_of(function: str) -> str:
    role: str = render().properties(function)["Role"]["Fn::GetAtt"][0]
    return role


def statements(role: str) -> list[dict[str, Any]]:
    return [
        statement
        for policy in render().properties(role)["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def resource_name(resource: Any) -> str:
    """A resource of a policy, as `Calls` names it."""
    match resource:
        case "*":
            return "*"
        case {"Fn::GetAtt": [str(logical_id), "Arn"]}:
            return logical_id
        case {"Fn::GetAtt": [str(logical_id), "StreamArn"]}:
            return f"{logical_id}/stream"
        case {"Fn::Sub": str(text)}:
            if of_resource := re.fullmatch(r"\$\{(\w+)\.Arn\}(/\*|/index/\w+|/stream/\*)", text):
                return "".join(of_resource.groups())
            arn = r"arn:\$\{AWS::Partition\}:\w+:\$\{AWS::Region\}:\$\{AWS::AccountId\}:"
            return re.sub(arn, "", text)
    raise NotImplementedError(resource)


def allowed(role: str) -> set[Right]:
    return {
        (resource_name(resource), action)
        for statement in statements(role)
        for resource in listed(statement["Resource"])
        for action in listed(statement["Action"])
    }


def of_the_platform(function: str) -> set[Right]:
    """What Lambda does in the function's name."""
    stack = render()
    log_group = stack.properties(function)["LoggingConfig"]["LogGroup"]["Ref"]
    rights = {(log_group, action) for action in LOGS} | TRACES
    for mapping in stack.of_type("AWS::Lambda::EventSourceMapping").values():
        if mapping["FunctionName"] != {"Ref": function}:
            continue
        source, attribute = mapping["EventSourceArn"]["Fn::GetAtt"]
        if attribute == "StreamArn":
            rights |= {(f"{source}/stream", action) for action in STREAM}
            rights.add((f"{source}/stream/*", "dynamodb:ListStreams"))
            failures = mapping["DestinationConfig"]["OnFailure"]["Destination"]
            rights.add((resource_name(failures), "sqs:SendMessage"))
        else:
            rights |= {(source, action) for action in MAPPING}
    for invocation in stack.of_type("AWS::Lambda::EventInvokeConfig").values():
        if invocation["FunctionName"] == {"Ref": function}:
            failures = invocation["DestinationConfig"]["OnFailure"]["Destination"]
            rights.add((resource_name(failures), "sqs:SendMessage"))
    return rights


def to_tell_a_missing_object(rights: set[Right]) -> set[Right]:
    """S3 says "access denied" for a missing object to whoever may not list the bucket."""
    return {
        (resource.removesuffix("/*"), "s3:ListBucket")
        for resource, action in rights
        if action == "s3:GetObject"
    }


# ------------------------------------------------------------------------------------ completeness


def test_every_function_of_the_template_is_looked_at() -> None:
    assert set(DEPS) == set(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_verb_that_a_function_uses_was_run(function: str, calls: Calls) -> None:
    asked = calls_of(function)

    assert asked
    assert {(verb, names) for verb, names in asked if not calls.has_run(verb, names)} == set()


def test_every_port_is_used_by_a_function() -> None:
    used = {port for function in FUNCTIONS for port, _ in verbs_of(function)}

    assert used == PORTS


def test_every_client_method_in_the_adapters_was_called(calls: Calls) -> None:
    named = client_methods(calls.known)

    assert named <= calls.operations | NOT_USED
    assert not named & calls.operations & NOT_USED


# ------------------------------------------------------------------------------------ roles


@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_allows_exactly_what_the_function_does(function: str, calls: Calls) -> None:
    rights = calls.rights_of(function)

    needed = rights | to_tell_a_missing_object(rights) | of_the_platform(function)

    assert allowed(role_of(function)) == needed


@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_tracing_has_no_resource_and_no_action_is_a_wildcard(function: str) -> None:
    rights = allowed(role_of(function))

    assert {right for right in rights if right[0] == "*"} == TRACES
    assert not [action for _, action in rights if "*" in action]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_grants_by_these_statements_alone(function: str) -> None:
    role = render().properties(role_of(function))

    assert all(statement["Effect"] == "Allow" for statement in statements(role_of(function)))
    assert not {"NotAction", "NotResource"} & {k for s in statements(role_of(function)) for k in s}
    assert "ManagedPolicyArns" not in role
    assert not render().of_type("AWS::IAM::Policy")
    assert not render().of_type("AWS::IAM::ManagedPolicy")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_is_assumed_by_lambda_alone(function: str) -> None:
    trust = render().properties(role_of(function))["AssumeRolePolicyDocument"]

    assert trust["Statement"] == [
        {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ]


def test_no_role_serves_two_functions() -> None:
    roles = [role_of(function) for function in FUNCTIONS]

    assert len(set(roles)) == len(roles)
