"""Least privilege: a role allows the calls that its function's code makes, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.template.calls import (
    BACKENDS,
    DEPS,
    PORTS,
    Calls,
    Right,
    calls_of,
    client_methods,
    verbs_of,
)
from tests.template.rendering import alias_of, render, render_with

FUNCTIONS = sorted(render().of_type("AWS::Lambda::Function"))

LOGS = ("logs:CreateLogStream", "logs:PutLogEvents")
TRACES = {("*", "xray:PutTraceSegments"), ("*", "xray:PutTelemetryRecords")}
MAPPING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
STREAM = (
    *("dynamodb:DescribeStream", "dynamodb:GetRecords"),
    *("dynamodb:GetShardIterator", "dynamodb:ListStreams"),
)

IN_THE_NETWORK = ("ApiFunction", "InvalidateCacheFunction", "RunJobFunction", "SweepJobsFunction")
"""Of a stack with Valkey."""

NETWORK = {
    ("*", f"ec2:{action}")
    for action in (
        *("AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "DescribeSubnets"),
        *("CreateNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces"),
    )
}


def role_of(function: str) -> str:
    role: str = render().properties(function)["Role"]["Fn::GetAtt"][0]
    return role


def statements(role: str, backend: str) -> list[dict[str, Any]]:
    return [
        statement
        for policy in render_with(backend).properties(role)["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def resource_name(resource: Any) -> str:
    """A resource of a policy, as `Calls` names it."""
    match resource:
        case "*":
            return "*"
        case {"Fn::GetAtt": [str(logical_id), "Arn"]} | {"Ref": str(logical_id)}:
            return logical_id
        case {"Fn::Sub": [str(text), {"Part": {"Fn::Sub": str(part)}}]}:
            return resource_name({"Fn::Sub": text.replace("${Part}", part)})
        case {"Fn::Sub": str(text)}:
            if of_resource := re.fullmatch(r"\$\{(\w+)\.Arn\}(/\*|/index/\w+|/stream/\*)", text):
                return "".join(of_resource.groups())
            arn = r"arn:\$\{AWS::Partition\}:\w+:\$\{AWS::Region\}:\$\{AWS::AccountId\}:"
            return re.sub(arn, "", text)
    raise NotImplementedError(resource)


def rights_in(role: str, backend: str, effect: str = "Allow") -> set[Right]:
    return {
        (resource_name(resource), action)
        for statement in statements(role, backend)
        if statement["Effect"] == effect
        for resource in listed(statement["Resource"])
        for action in listed(statement["Action"])
    }


def of_the_platform(function: str, backend: str) -> set[Right]:
    """What Lambda does in the function's name."""
    stack = render_with(backend)
    log_group = stack.properties(function)["LoggingConfig"]["LogGroup"]["Ref"]
    rights = {(log_group, action) for action in LOGS} | TRACES
    if "VpcConfig" in stack.properties(function):
        rights |= NETWORK
    for mapping in stack.of_type("AWS::Lambda::EventSourceMapping").values():
        if mapping["FunctionName"] != alias_of(function):
            continue
        source, attribute = mapping["EventSourceArn"]["Fn::GetAtt"]
        if attribute == "StreamArn":
            rights |= {(f"{source}/stream/*", action) for action in STREAM}
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_verb_that_a_function_uses_was_run(
    function: str, backend: str, calls_with: dict[str, Calls]
) -> None:
    asked, calls = calls_of(function), calls_with[backend]

    assert asked
    assert {(verb, names) for verb, names in asked if not calls.has_run(verb, names)} == set()


def test_every_port_is_used_by_a_function() -> None:
    used = {port for function in FUNCTIONS for port, _ in verbs_of(function)}

    assert used == PORTS


def test_every_client_method_in_the_adapters_was_called(calls: Calls) -> None:
    named = client_methods(calls.known)

    assert named <= calls.operations


# ------------------------------------------------------------------------------------ roles


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_allows_exactly_what_the_function_does(
    function: str, backend: str, calls_with: dict[str, Calls]
) -> None:
    rights = calls_with[backend].rights_of(function)

    needed = rights | to_tell_a_missing_object(rights) | of_the_platform(function, backend)

    assert rights_in(role_of(function), backend) == needed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_tracing_and_networks_have_no_resource_and_no_action_is_a_wildcard(
    function: str, backend: str
) -> None:
    rights = rights_in(role_of(function), backend)

    in_a_network = "VpcConfig" in render_with(backend).properties(function)

    assert {right for right in rights if right[0] == "*"} == TRACES | (
        NETWORK if in_a_network else set()
    )
    assert not [action for _, action in rights if "*" in action]


def test_functions_are_in_a_network_where_the_cache_is_in_one() -> None:
    inside = {
        backend: {f for f in FUNCTIONS if "VpcConfig" in render_with(backend).properties(f)}
        for backend in BACKENDS
    }

    assert inside == {"dynamodb": set(), "valkey": set(IN_THE_NETWORK)}


@pytest.mark.parametrize("function", IN_THE_NETWORK)
def test_rights_to_a_network_are_lambdas_and_not_the_codes(function: str) -> None:
    role = role_of(function)

    (denied,) = (one for one in statements(role, "valkey") if one["Effect"] == "Deny")

    assert rights_in(role, "valkey", "Deny") == NETWORK
    assert denied["Condition"] == {"Null": {"lambda:SourceFunctionArn": "false"}}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_stack_with_valkey_has_no_rights_to_the_cache_table(function: str) -> None:
    rights = rights_in(role_of(function), "valkey")

    assert not [action for resource, action in rights if resource == "CacheTable"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_grants_by_these_statements_alone(function: str, backend: str) -> None:
    role = role_of(function)
    of_role = statements(role, backend)

    assert {one["Effect"] for one in of_role} <= {"Allow", "Deny"}
    assert not {"NotAction", "NotResource"} & {key for one in of_role for key in one}
    assert "ManagedPolicyArns" not in render_with(backend).properties(role)
    assert not render_with(backend).of_type("AWS::IAM::Policy")
    assert not render_with(backend).of_type("AWS::IAM::ManagedPolicy")


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
