"""What every resource of a kind has to have: encryption, TLS, no way in for the public."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sluiceway import http

from tests.template.rendering import RESOURCES, render, render_with
from tests.template.test_api import OF_THE_GATEWAY

STACK = render()
QUEUES = sorted(STACK.of_type("AWS::SQS::Queue"))
BUCKETS = sorted(STACK.of_type("AWS::S3::Bucket"))
TABLES = sorted(STACK.of_type("AWS::DynamoDB::Table"))

NO_TLS = {"Bool": {"aws:SecureTransport": "false"}}

ENCRYPTED_BY_AWS = {
    *("AWS::Logs::LogGroup", "AWS::SecretsManager::Secret", "AWS::Events::EventBus"),
    *("AWS::ElastiCache::ServerlessCache", "AWS::AppConfig::ConfigurationProfile"),
}
"""Always, and with no way to say no; a key of one's own is all that can be chosen."""

HOLDS_NOTHING = re.compile(
    r"AWS::(ApiGateway|CloudWatch|CodeDeploy|EC2|IAM|Lambda|Scheduler|WAFv2)::\w+"
    r"|AWS::AppConfig::(Application|DeploymentStrategy|Environment)"
    r"|AWS::(Events::Rule|Logs::MetricFilter|S3::BucketPolicy|SQS::QueuePolicy)"
)
"""Of partners' data, that is."""


def denials_without_tls(policy: dict[str, Any]) -> list[dict[str, Any]]:
    """The statements of a resource's policy that refuse everybody who uses no TLS."""
    return [
        statement
        for statement in policy["PolicyDocument"]["Statement"]
        if (statement["Effect"], statement["Principal"]) == ("Deny", "*")
        and statement["Condition"] == NO_TLS
    ]


# ------------------------------------------------------------------------------------ encryption


def test_every_kind_of_resource_is_known_to_hold_data_or_not() -> None:
    stacks = [render_with("valkey"), render(WebAcl="managed"), render(Target="local")]
    kinds = {of["Type"] for stack in stacks for of in stack.resources.values()}

    encrypted_by_us = {"AWS::SQS::Queue", "AWS::S3::Bucket", "AWS::DynamoDB::Table"}
    others = kinds - encrypted_by_us - ENCRYPTED_BY_AWS

    assert [kind for kind in others if not HOLDS_NOTHING.fullmatch(kind)] == []


@pytest.mark.parametrize("queue", QUEUES)
def test_queue_is_encrypted(queue: str) -> None:
    assert STACK.properties(queue)["SqsManagedSseEnabled"] is True


@pytest.mark.parametrize("table", TABLES)
def test_table_is_encrypted(table: str) -> None:
    assert STACK.properties(table)["SSESpecification"] == {"SSEEnabled": True}


@pytest.mark.parametrize("bucket", BUCKETS)
def test_bucket_is_encrypted_and_nothing_in_it_can_be_public(bucket: str) -> None:
    of = STACK.properties(bucket)

    (encryption,) = of["BucketEncryption"]["ServerSideEncryptionConfiguration"]

    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] in {"AES256", "aws:kms"}
    assert all(of["PublicAccessBlockConfiguration"].values())
    assert len(of["PublicAccessBlockConfiguration"]) == 4
    assert of["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]


def test_log_groups_are_kept_for_a_time_that_is_said() -> None:
    groups = STACK.of_type("AWS::Logs::LogGroup")

    assert groups
    assert all(int(of["RetentionInDays"]) > 0 for of in groups.values())


# ------------------------------------------------------------------------------------ TLS


@pytest.mark.parametrize("queue", QUEUES)
def test_queue_refuses_everything_without_tls(queue: str) -> None:
    policies = [
        of
        for of in STACK.of_type("AWS::SQS::QueuePolicy").values()
        if {"Ref": queue} in of["Queues"]
    ]

    # A queue has one policy: a second would take the place of the first.
    (policy,) = policies
    (denial,) = denials_without_tls(policy)
    assert (denial["Action"], denial["Resource"]) == ("sqs:*", "*")


@pytest.mark.parametrize("bucket", BUCKETS)
def test_bucket_refuses_everything_without_tls(bucket: str) -> None:
    policies = STACK.of_type("AWS::S3::BucketPolicy").values()

    (policy,) = (of for of in policies if of["Bucket"] == {"Ref": bucket})
    (denial,) = denials_without_tls(policy)

    assert denial["Action"] == "s3:*"
    assert denial["Resource"] == [
        {"Fn::GetAtt": [bucket, "Arn"]},
        {"Fn::Sub": f"${{{bucket}.Arn}}/*"},
    ]


def test_policies_of_resources_allow_nobody() -> None:
    policies = [
        *STACK.of_type("AWS::SQS::QueuePolicy").values(),
        *STACK.of_type("AWS::S3::BucketPolicy").values(),
    ]

    effects = {one["Effect"] for of in policies for one in of["PolicyDocument"]["Statement"]}

    assert effects == {"Deny"}


def test_api_speaks_no_tls_before_1_2() -> None:
    of = STACK.properties("Api")

    # Without a policy, API Gateway takes TLS 1.0, too.
    assert of["SecurityPolicy"].startswith("SecurityPolicy_TLS13_1_2_")
    assert of["EndpointAccessMode"] in {"BASIC", "STRICT"}


# ------------------------------------------------------------------------------------ firewall


def firewall() -> dict[str, Any]:
    return render(WebAcl="managed").properties("ApiFirewall")


def statements() -> dict[str, dict[str, Any]]:
    """Of the firewall's rules, by the names of AWS's groups, or of ours."""
    return {
        rule["Statement"].get("ManagedRuleGroupStatement", rule)["Name"]: rule
        for rule in firewall()["Rules"]
    }


@pytest.mark.parametrize(
    "parameters",
    [{}, {"Target": "local", "WebAcl": "managed"}],
    ids=["by default", "on a local stack"],
)
def test_stack_has_no_firewall(parameters: dict[str, str]) -> None:
    assert {"ApiFirewall", "ApiFirewallAssociation"}.isdisjoint(render(**parameters).resources)


def test_firewall_is_before_the_apis_stage() -> None:
    of = render(WebAcl="managed").properties("ApiFirewallAssociation")

    assert of["WebACLArn"] == {"Fn::GetAtt": ["ApiFirewall", "Arn"]}
    (stage,) = render().of_type("AWS::ApiGateway::Stage")
    arn = "arn:${AWS::Partition}:apigateway:${AWS::Region}::/restapis/${Api}/stages/"
    assert of["ResourceArn"] == {"Fn::Sub": f"{arn}${{{stage}}}"}


def test_firewall_refuses_bad_addresses_floods_and_known_attacks() -> None:
    assert set(statements()) == {
        *("Flood", "AWSManagedRulesAmazonIpReputationList"),
        *("AWSManagedRulesCommonRuleSet", "AWSManagedRulesKnownBadInputsRuleSet"),
    }
    priorities = [rule["Priority"] for rule in firewall()["Rules"]]
    assert priorities == sorted(set(priorities))


@pytest.mark.parametrize(
    ("group", "of_bodies"),
    [
        (
            "AWSManagedRulesCommonRuleSet",
            {
                *("SizeRestrictions_BODY", "CrossSiteScripting_BODY", "EC2MetaDataSSRF_BODY"),
                *("GenericLFI_BODY", "GenericRFI_BODY"),
            },
        ),
        (
            "AWSManagedRulesKnownBadInputsRuleSet",
            {"JavaDeserializationRCE_BODY", "Log4JRCE_BODY", "ReactJSRCE_BODY"},
        ),
    ],
)
def test_firewall_refuses_no_prompt_for_what_it_says(group: str, of_bodies: set[str]) -> None:
    overrides = statements()[group]["Statement"]["ManagedRuleGroupStatement"]["RuleActionOverrides"]

    counted = {one["Name"] for one in overrides if one["ActionToUse"] == {"Count": {}}}

    assert {name for name in counted if name.endswith("_BODY")} == of_bodies


def test_firewall_counts_requests_of_an_address_as_the_parameter_says() -> None:
    rules = render(WebAcl="managed", WebAclRequestsPerMinute="77").properties("ApiFirewall")[
        "Rules"
    ]

    (flood,) = (rule for rule in rules if "RateBasedStatement" in rule["Statement"])

    assert flood["Statement"]["RateBasedStatement"] == {
        "AggregateKeyType": "IP",
        "EvaluationWindowSec": 60,
        "Limit": "77",
    }


def test_firewall_refuses_a_flood_in_the_apis_form() -> None:
    block = statements()["Flood"]["Action"]["Block"]["CustomResponse"]
    body = json.loads(firewall()["CustomResponseBodies"][block["CustomResponseBodyKey"]]["Content"])

    assert block["ResponseCode"] == body["status"] == OF_THE_GATEWAY[body["code"]]
    assert body["retryable"] is True
    assert block["ResponseHeaders"] == [{"Name": "Retry-After", "Value": "60"}]


def test_firewalls_refusal_is_the_apis_forbidden() -> None:
    reply = RESOURCES["Api"]["Properties"]["GatewayResponses"]["WAF_FILTERED"]

    code = json.loads(reply["ResponseTemplates"]["application/json"])["code"]

    assert int(reply["StatusCode"]) == http.STATUS[code]


def test_firewall_keeps_no_samples_of_requests_which_hold_keys() -> None:
    configs = [firewall(), *firewall()["Rules"]]

    assert not any(one["VisibilityConfig"]["SampledRequestsEnabled"] for one in configs)
    assert not render(WebAcl="managed").of_type("AWS::WAFv2::LoggingConfiguration")
