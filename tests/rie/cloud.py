"""AWS as the functions under the runtime interface emulator see it, and what is in it.

MiniStack without a stack: the template's tables, queues and the like are there, and nobody takes
messages from the queues but the test.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway.domain import api_key
from sluiceway.ports import PartnerKey
from sluiceway_local import deploy, emulator

from tests.functions.stage import EVENTS, SIMULATED
from tests.rie import runtime
from tests.template.calls import make_resources
from tests.template.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sluiceway_local.simulator import Simulator

STACK = render(**deploy.PARAMETERS)
"""As it is deployed to emulators."""

FUNCTIONS = sorted(STACK.of_type("AWS::Lambda::Function"))
API_KEY = "swk_" + "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"
"""Of acme, in the sample events."""

VENDOR_KEY = "sk-mark-of-the-vendor-key"
CATALOGUE = SIMULATED + "timeout_s = {{ min = 1.0, max = 60.0 }}\n"


@dataclass(frozen=True, slots=True)
class Cloud:
    """One test's AWS, and its vendor."""

    endpoint_url: str
    folder: Path
    known: Mapping[str, str]
    """The values of all settings, by name."""
    sim: Simulator

    def settings_of(self, function: str) -> dict[str, str]:
        """The variables that the template gives the function, with the names of what is here."""
        variables = STACK.properties(function)["Environment"]["Variables"]
        return {
            name: value if isinstance(value, str) else self.known[name]
            for name, value in variables.items()
        }

    def run(self, function: str, **changes: Any) -> AbstractContextManager[runtime.Runtime]:
        """The function with the template's settings, timeout and memory, unless changed."""
        of = STACK.properties(function)
        return runtime.running(
            function,
            self.folder,
            **{
                "settings": self.settings_of(function),
                "endpoint_url": self.endpoint_url,
                "timeout_s": int(of["Timeout"]),
                "memory_mb": of["MemorySize"],
                **changes,
            },
        )

    def client(self, service: str) -> Any:
        return emulator.client(service, self.endpoint_url)

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """What is in a queue, by its logical id; it is hidden from now on."""
        found: list[dict[str, Any]] = (
            self.client("sqs")
            .receive_message(
                QueueUrl=self.url_of(queue), MaxNumberOfMessages=10, AttributeNames=["All"]
            )
            .get("Messages", [])
        )
        return found

    def url_of(self, queue: str) -> str:
        url: str = self.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
        return url

    def job_row(self, job_id: str, tenant: str = "acme") -> dict[str, Any]:
        """In DynamoDB's own form."""
        item: dict[str, Any] = self.client("dynamodb").get_item(
            TableName="JobsTable", Key={"tenant": {"S": tenant}, "job_id": {"S": job_id}}
        )["Item"]
        return item


def sample(name: str, *, hook: str = "") -> dict[str, Any]:
    """A sample event whose queues are those that are here, and whose webhook goes to `hook`."""
    text = (EVENTS / f"{name}.json").read_text("utf-8")
    text = re.sub(r"sluiceway-(\w+)-1A2B3C4D5E6F", r"\1", text)
    event: dict[str, Any] = json.loads(
        text.replace("https://hooks.partner.example/sluiceway", hook) if hook else text
    )
    return event


def fill(endpoint_url: str, folder: Path, sim: Simulator) -> Cloud:
    """Makes everything anew: what was there before is gone."""
    httpx.post(f"{endpoint_url}/_ministack/reset", timeout=30, trust_env=False).raise_for_status()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint_url)
        known = make_resources(boto3.Session(), "dynamodb")
    cloud = Cloud(endpoint_url, folder, known, sim)
    cloud.client("secretsmanager").put_secret_value(
        SecretId="sluiceway/vendors/vendor", SecretString=VENDOR_KEY
    )
    push(cloud, CATALOGUE.format(url=sim.url))
    hashed = api_key.key_hash(API_KEY)
    DynamoDBPartnerKeys(Table(cloud.client("dynamodb")), known["PARTNERS_TABLE"]).add(
        PartnerKey(hashed, api_key.key_id(hashed), "acme", api_key.SCOPES, 0)
    )
    return cloud


def push(cloud: Cloud, catalogue: str) -> None:
    """Deploys a catalogue, with AppConfig's resources as the template names them."""
    client = cloud.client("appconfig")
    application = client.create_application(Name=cloud.known["CONFIGURATION"])["Id"]
    environment = client.create_environment(ApplicationId=application, Name="catalogue")["Id"]
    profile = client.create_configuration_profile(
        ApplicationId=application, Name="catalogue", LocationUri="hosted"
    )["Id"]
    version = client.create_hosted_configuration_version(
        ApplicationId=application,
        ConfigurationProfileId=profile,
        Content=catalogue.encode(),
        ContentType="application/toml",
    )["VersionNumber"]
    strategy = client.create_deployment_strategy(
        Name="at-once", DeploymentDurationInMinutes=0, GrowthFactor=100.0, ReplicateTo="NONE"
    )["Id"]
    client.start_deployment(
        ApplicationId=application,
        EnvironmentId=environment,
        ConfigurationProfileId=profile,
        ConfigurationVersion=str(version),
        DeploymentStrategyId=strategy,
    )
