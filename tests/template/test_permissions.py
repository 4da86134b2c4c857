"""Least privilege: a role allows the calls that its function's code makes, and nothing else."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.template.calls import (
    BACKENDS,
    DEPS,
    PORTS,
    Calls,
    Right,
    Write,
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

JOBS_TABLE = {"Fn::GetAtt": ["JobsTable", "Arn"]}
AUDIT_KEY = "audit#2026-01"
CHANGES = (
    *("BatchWriteItem", "DeleteItem", "UpdateItem"),
    *("PartiQLDelete", "PartiQLInsert", "PartiQLUpdate"),
)
"""All that DynamoDB has for changing an item, but PutItem, by which records are added."""
OWNERS = {"", "audit#", "batch#", "delivery#", "refresh#", "usage#", "webhook#"}
"""How the partition keys of the Jobs table begin; those of tenants' own rows hold no `#`."""

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


def may(role: str, backend: str, write: Write) -> bool:
    """What IAM says to a write: a statement that allows it, and none that denies it."""
    table, action, key = write
    effects = {
        statement["Effect"]
        for statement in statements(role, backend)
        if table in map(resource_name, listed(statement["Resource"]))
        and action in listed(statement["Action"])
        and holds(statement.get("Condition", {}), key)
    }
    return effects == {"Allow"}


def holds(condition: dict[str, Any], key: str) -> bool:
    """Whether a statement is about an item with this partition key."""
    for operator, operands in condition.items():
        # A write of one item has one key, so any and all of its keys are the same.
        if operator not in {"ForAnyValue:StringLike", "ForAllValues:StringLike"}:
            raise NotImplementedError(operator)
        ((name, patterns),) = operands.items()
        if name != "dynamodb:LeadingKeys":
            raise NotImplementedError(name)
        if not any(fnmatchcase(key, pattern) for pattern in patterns):
            return False
    return True


# ------------------------------------------------------------------------------------ completeness


def test_every_function_of_the_template_is_looked_at() -> None:
    assert set(DEPS) == set(FUNCTIONS)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_verb_that_a_function_uses_was_run(
    function: str, backend: str, calls_with: dict[str, Calls]
) -> None:
    asked, calls = calls_of(function), calls_with[backend]

    assert bool(asked) is (function != "CheckCatalogueFunction")  # which asks AWS for nothing
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
def test_role_allows_exactly_what_the_function_does(  # case P05
    function: str, backend: str, calls_with: dict[str, Calls]
) -> None:
    rights = calls_with[backend].rights_of(function)

    needed = rights | to_tell_a_missing_object(rights) | of_the_platform(function, backend)

    assert rights_in(role_of(function), backend) == needed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_role_lets_the_function_write_every_item_that_it_writes(
    function: str, backend: str, calls_with: dict[str, Calls]
) -> None:
    writes = calls_with[backend].writes_of(function)

    assert {write for write in writes if not may(role_of(function), backend, write)} == set()


@pytest.mark.parametrize("action", [f"dynamodb:{action}" for action in CHANGES])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_role_may_change_an_audit_record(function: str, action: str) -> None:
    assert not may(role_of(function), "dynamodb", ("JobsTable", action, AUDIT_KEY))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_change_of_an_audit_record_is_denied_and_not_just_left_out_to_whoever_writes_its_table(
    function: str,
) -> None:
    of_role = statements(role_of(function), "dynamodb")
    writes = {f"dynamodb:{action}" for action in (*CHANGES, "PutItem")}

    allowed = [
        action
        for one in of_role
        if one["Effect"] == "Allow" and one["Resource"] == JOBS_TABLE
        for action in listed(one["Action"])
        if action in writes and holds(one.get("Condition", {}), "acme")
    ]
    denied = {
        action
        for one in of_role
        if one["Effect"] == "Deny" and holds(one.get("Condition", {}), AUDIT_KEY)
        for action in listed(one["Action"])
    }

    assert not allowed or denied >= {f"dynamodb:{action}" for action in CHANGES}


def test_audit_records_are_added_by_the_functions_that_record_and_no_others(
    calls: Calls,
) -> None:
    write = ("JobsTable", "dynamodb:PutItem", AUDIT_KEY)

    allowed = {function for function in FUNCTIONS if may(role_of(function), "dynamodb", write)}
    recording = {
        function
        for function in FUNCTIONS
        if any(key.startswith("audit#") for _, _, key in calls.writes_of(function))
    }

    assert allowed == recording == {"ApiFunction", "InvalidateCacheFunction"}


@pytest.mark.parametrize(
    ("function", "action", "owners"),
    [
        ("RunJobFunction", "UpdateItem", {"", "refresh#", "usage#"}),
        ("RunJobFunction", "PutItem", set()),
        ("SweepJobsFunction", "UpdateItem", {"", "refresh#", "usage#"}),
        ("SweepJobsFunction", "PutItem", set()),
        ("DeliverWebhookFunction", "UpdateItem", {"", "delivery#", "webhook#"}),
        ("DeliverWebhookFunction", "PutItem", {"webhook#"}),
        ("InvalidateCacheFunction", "UpdateItem", set()),
        ("InvalidateCacheFunction", "PutItem", {"audit#"}),
        ("PublishEventsFunction", "UpdateItem", set()),
        ("PublishEventsFunction", "PutItem", set()),
        ("AuthorizeFunction", "UpdateItem", set()),
        ("AuthorizeFunction", "PutItem", set()),
    ],
)
def test_rows_of_the_jobs_table_that_a_role_may_write_are_its_functions(
    function: str, action: str, owners: set[str]
) -> None:
    allowed = {
        owner
        for owner in OWNERS
        if may(role_of(function), "dynamodb", ("JobsTable", f"dynamodb:{action}", f"{owner}acme"))
    }

    assert allowed == owners


def test_owners_of_rows_are_all_known(calls: Calls) -> None:
    owners = {
        "".join(item["tenant"]["S"].partition("#")[:2]) if "#" in item["tenant"]["S"] else ""
        for item in calls.items("JobsTable")
    }

    assert owners == OWNERS


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

    (denied,) = (
        one
        for one in statements(role, "valkey")
        if one["Effect"] == "Deny" and one["Resource"] == "*"
    )

    assert {("*", action) for action in denied["Action"]} == NETWORK
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_function_that_a_queue_feeds_may_send_to_no_queue(backend: str) -> None:  # case D04
    # Lambda stops a chain of a function and its own queue after sixteen passes.
    stack = render_with(backend)
    fed = {
        function
        for function in FUNCTIONS
        for mapping in stack.of_type("AWS::Lambda::EventSourceMapping").values()
        if mapping["FunctionName"] == alias_of(function)
        and mapping["EventSourceArn"]["Fn::GetAtt"][1] == "Arn"
    }

    sending = {
        function
        for function in fed
        for _, action in rights_in(role_of(function), backend)
        if action == "sqs:SendMessage"
    }

    assert fed == {"RunJobFunction", "DeliverWebhookFunction"}
    assert sending == set()


def test_no_role_serves_two_functions() -> None:
    roles = [role_of(function) for function in FUNCTIONS]

    assert len(set(roles)) == len(roles)
