"""The template as a whole, and the environments that samconfig.toml deploys it to."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.template.rendering import (
    PARAMETERS,
    RESOURCES,
    ROOT,
    SOURCE,
    render,
    render_with,
    variants,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED_BY_EMULATORS = re.compile(
    r"AWS::(ApiGateway::Account|CodeDeploy::.*|WAFv2::WebACLAssociation|CloudWatch::CompositeAlarm"
    r"|SecretsManager::RotationSchedule|EC2::NatGateway|ElastiCache::ServerlessCache|XRay::Group)"
)
PHYSICAL_NAMES = {
    "BucketName",
    "EventBusName",
    "FunctionName",
    "GroupName",
    "LayerName",
    "LogGroupName",
    "Name",
    "QueueName",
    "RoleName",
    "ServerlessCacheName",
    "TableName",
}
"""Two stacks in one account would fight for them, and a replacement could not be made."""

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "samconfig.toml").read_text("utf-8"))
ENVIRONMENTS = ("dev", "prod", "local")

OUTPUTS = {
    *("ConfigurationId", "GradualRolloutId", "ImmediateRolloutId"),
    *("CatalogueEnvironmentId", "CatalogueProfileId", "FlagsEnvironmentId", "FlagsProfileId"),
    "ApiUrl",
    "InteractiveQueueUrl",
    "BatchQueueUrl",
    "DeadLetterQueueUrl",
    "WebhookQueueUrl",
    "WebhookDeadLetterQueueUrl",
    "JobsTableName",
    "CacheTableName",
    "CacheBackend",
    "WebhookMasterArn",
    "CoordinationTableName",
    "IdempotencyTableName",
    "PartnersTableName",
    "EventBusName",
    "PayloadBucketName",
    "ApiFunctionName",
    "RunJobFunctionName",
    "SweepJobsFunctionName",
    "PublishEventsFunctionName",
    "DeliverWebhookFunctionName",
    "AuthorizeFunctionName",
    "InvalidateCacheFunctionName",
    "UnpublishedQueueUrl",
    "InvalidationDeadLetterQueueUrl",
}


# ------------------------------------------------------------------------------------ template


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameter_is_explained_and_has_a_default(name: str) -> None:
    of = PARAMETERS[name]

    assert len(of["Description"]) > 20
    assert "Default" in of


@pytest.mark.parametrize("name", sorted(n for n in PARAMETERS if "AllowedValues" in PARAMETERS[n]))
def test_parameters_default_is_allowed(name: str) -> None:
    of = PARAMETERS[name]

    assert of["Default"] in of["AllowedValues"]


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(values, id="-".join(values.values()))
        for values in variants("ApiGatewayLogRole")
    ],
)
def test_local_stack_has_nothing_that_emulators_refuse(parameters: dict[str, str]) -> None:
    stack = render(Target="local", **parameters)

    refused = [
        name for name, of in stack.resources.items() if REFUSED_BY_EMULATORS.fullmatch(of["Type"])
    ]

    assert refused == []


def test_local_stack_has_no_alarm_of_several_metrics() -> None:
    alarms = render(Target="local").of_type("AWS::CloudWatch::Alarm")

    assert [name for name, of in alarms.items() if "Metrics" in of] == []


def test_local_stack_lacks_nothing_else() -> None:
    local, aws = render(Target="local"), render(Target="aws")

    missing = {RESOURCES[name]["Type"] for name in aws.resources.keys() - local.resources.keys()}

    assert missing == {
        "AWS::ApiGateway::Account",
        "AWS::CloudWatch::Alarm",
        "AWS::IAM::Role",
        "AWS::Logs::MetricFilter",
    }


def test_nothing_is_written_twice() -> None:
    # A loader takes the last of two, silently.
    node = yaml.compose((ROOT / "template.yaml").read_text("utf-8"))

    twice = [
        key
        for mapping in mappings_in(node)
        for key, times in Counter(name.value for name, _ in mapping.value).items()
        if times > 1
    ]

    assert twice == []


def mappings_in(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    if isinstance(node, yaml.MappingNode):
        yield node
    if isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                yield from mappings_in(part)


def test_no_resource_has_a_physical_name() -> None:
    given = {
        name: sorted(
            key
            for key, value in of.get("Properties", {}).items()
            if key in PHYSICAL_NAMES and value not in [{"Ref": other} for other in RESOURCES]
        )
        for name, of in RESOURCES.items()
    }
    named = {name: keys for name, keys in given.items() if keys}

    # CloudFormation makes up no name for these, so they have the stack's.
    assert named == {
        "Configuration": ["Name"],
        "EventBus": ["Name"],
        "GradualRollout": ["Name"],
        "ImmediateRollout": ["Name"],
        "ValkeyCache": ["ServerlessCacheName"],
        # Of the application alone, and read under these names.
        **{f"Catalogue{part}": ["Name"] for part in ("Environment", "Profile")},
        **{f"Flags{part}": ["Name"] for part in ("Environment", "Profile")},
    }
    names = {name: RESOURCES[name]["Properties"][key] for name, (key,) in named.items()}
    assert {name for name, value in names.items() if "AWS::StackName" not in str(value)} == {
        name for name in named if name.startswith(("Catalogue", "Flags"))
    }


def test_outputs_are_those_that_programs_read() -> None:
    assert SOURCE["Outputs"].keys() == OUTPUTS


@pytest.mark.parametrize("name", sorted(OUTPUTS - {"CacheBackend"}))
def test_output_refers_to_a_resource_that_every_stack_has(name: str) -> None:
    value = json.dumps(SOURCE["Outputs"][name]["Value"])

    referred = set(re.findall(r'"Ref": "(\w+)"|\$\{(\w+)\}', value))

    assert referred
    assert {one or other for one, other in referred} <= render(Target="local").resources.keys()


# ------------------------------------------------------------------------------------ valkey


def test_stack_without_valkey_has_nothing_of_it() -> None:
    only = render_with("valkey").resources.keys() - render().resources.keys()

    kinds = sorted(RESOURCES[name]["Type"] for name in only if name in RESOURCES)

    assert kinds == [
        *("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroup"),
        "AWS::ElastiCache::ServerlessCache",
    ]
    assert {name for name in only if name not in RESOURCES} == {
        name for name in render_with("valkey").resources if name.startswith("ValkeyLayer")
    }
    assert not render().resources.keys() - render_with("valkey").resources.keys()


def test_only_functions_of_the_stack_reach_the_cache() -> None:
    stack = render_with("valkey")
    cache = stack.properties("ValkeyCache")

    (rule,) = stack.properties("ValkeySecurityGroup")["SecurityGroupIngress"]

    assert cache["Engine"] == "valkey"
    assert cache["SecurityGroupIds"] == [{"Fn::GetAtt": ["ValkeySecurityGroup", "GroupId"]}]
    assert rule["SourceSecurityGroupId"] == {"Fn::GetAtt": ["FunctionSecurityGroup", "GroupId"]}
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 6379, 6379)
    assert "SecurityGroupIngress" not in stack.properties("FunctionSecurityGroup")


def test_functions_speak_tls_with_the_cache_and_are_in_its_subnets() -> None:
    stack = render_with("valkey")
    functions = [of for of in stack.of_type("AWS::Lambda::Function").values() if "VpcConfig" in of]

    subnets = stack.properties("ValkeyCache")["SubnetIds"]

    assert functions
    assert all(of["VpcConfig"]["SubnetIds"] == subnets for of in functions)
    assert {of["Environment"]["Variables"]["CACHE_URL"]["Fn::Sub"] for of in functions} == {
        "valkeys://${ValkeyCache.Endpoint.Address}:${ValkeyCache.Endpoint.Port}"
    }


def test_deployment_with_valkey_is_refused_without_a_network() -> None:
    rule = SOURCE["Rules"]["ValkeyHasANetwork"]

    asserted = [one["Assert"] for one in rule["Assertions"]]

    assert rule["RuleCondition"] == {"Fn::Equals": [{"Ref": "CacheBackend"}, "valkey"]}
    assert asserted == [
        {"Fn::Not": [{"Fn::Equals": [{"Ref": "VpcId"}, ""]}]},
        {"Fn::Not": [{"Fn::Equals": [{"Ref": "PrivateSubnetIds"}, ""]}]},
        {"Fn::Equals": [{"Ref": "Target"}, "aws"]},
    ]


# ------------------------------------------------------------------------------------ samconfig


def settings(environment: str) -> dict[str, Any]:
    found: dict[str, Any] = CONFIG[environment]["deploy"]["parameters"]
    return found


def overrides(environment: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in settings(environment)["parameter_overrides"].split())


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environment_sets_parameters_that_the_template_has(environment: str) -> None:
    for name, value in overrides(environment).items():
        allowed = map(str, PARAMETERS[name].get("AllowedValues", [value]))

        assert value in allowed


def test_environments_have_stacks_of_their_own() -> None:
    stacks = [settings(environment)["stack_name"] for environment in ENVIRONMENTS]

    assert len(set(stacks)) == len(stacks)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environment_lets_sam_make_roles_without_names_only(environment: str) -> None:
    assert settings(environment)["capabilities"] == "CAPABILITY_IAM"


def test_only_the_local_environment_is_for_emulators() -> None:
    targets = {
        environment: overrides(environment).get("Target", PARAMETERS["Target"]["Default"])
        for environment in ENVIRONMENTS
    }

    assert targets == {"dev": "aws", "prod": "aws", "local": "local"}


def test_production_protects_its_data_and_asks_before_it_changes() -> None:
    assert overrides("prod")["ProtectData"] == "true"
    assert settings("prod")["confirm_changeset"] is True


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environment_renders(environment: str) -> None:
    stack = render(**overrides(environment))

    assert stack.of_type("AWS::Lambda::Function")
