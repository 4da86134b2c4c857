"""An operator's desk with AppConfig as MiniStack has it, and the rest of the stack in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError
from ministack.services import appconfig as ministack

from tests.fakes.appconfig import emulated
from tests.unit import desk as desks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sluiceway_cli.configurations import Deployment, Profile

LEASE_S = 100


@dataclass
class Workers:
    """Lambda, as far as it tells of the workers' lease."""

    lease_s: str | None = str(LEASE_S)

    def get_function_configuration(self, **request: str) -> dict[str, Any]:
        assert request == {"FunctionName": "run_job-function"}
        if self.lease_s is None:
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "Get")
        return {"Environment": {"Variables": {"LEASE_S": self.lease_s}}}


@dataclass
class Secrets:
    """Secrets Manager, as far as it tells what is there."""

    names: set[str] = field(default_factory=lambda: {"sluiceway/vendors/v"})
    refusal: str = "ResourceNotFoundException"

    def describe_secret(self, **request: str) -> None:
        if request["SecretId"] not in self.names:
            raise ClientError({"Error": {"Code": self.refusal, "Message": "no"}}, "DescribeSecret")


@dataclass(frozen=True)
class Desk(desks.Desk):
    """An installation whose catalogue and flags can be pushed."""

    appconfig: Any = None
    workers: Workers = field(default_factory=Workers)
    secrets: Secrets = field(default_factory=Secrets)

    def client(self, service: Any, config: Any = None) -> Any:  # noqa: ARG002
        return {
            "appconfig": self.appconfig,
            "lambda": self.workers,
            "secretsmanager": self.secrets,
        }[service]

    def deployed(self, profile: Profile, *texts: str, gradual: bool = False) -> Deployment:
        """Brings these into force, one after another; gives the last one's deployment."""
        for text in texts:
            made = profile.push(
                text,
                self.rollout_id(gradual=gradual),
                seen=profile.history(),
                description="by: user:bob",
            )
        return made

    def meanwhile(self, operation: str, act: Callable[[], object]) -> None:
        """Does it once, when this operation of AppConfig is called next."""
        done: list[bool] = []

        def once(**_: Any) -> None:
            if not done:
                done.append(True)
                act()

        self.appconfig.meta.events.register(f"before-call.appconfig.{operation}", once)

    def takes_back(self, profile: Profile) -> None:
        """As an alarm does it, with every deployment from now on."""

        def take(**_: Any) -> None:
            number = profile.history().latest
            key = f"{profile.application_id}/{profile.environment_id}/{number}"
            ministack._deployments[key]["State"] = "ROLLED_BACK"

        self.appconfig.meta.events.register("before-call.appconfig.GetDeployment", take)


def make_desk(clock: Any, **members: Any) -> Desk:
    """A local stack on which nothing was pushed yet."""
    client = emulated(boto3.Session(region_name=os.environ["AWS_DEFAULT_REGION"]))
    application = client.create_application(Name="stack")["Id"]
    outputs = {"RunJobFunctionName": "run_job-function", "ConfigurationId": application}
    for name in ("Catalogue", "Flags"):
        made = client.create_environment(ApplicationId=application, Name=name)
        outputs[f"{name}EnvironmentId"] = made["Id"]
        made = client.create_configuration_profile(
            ApplicationId=application, Name=name, LocationUri="hosted"
        )
        outputs[f"{name}ProfileId"] = made["Id"]
    for name, minutes in (("Gradual", 10), ("Immediate", 0)):
        made = client.create_deployment_strategy(
            Name=name,
            GrowthFactor=20 if minutes else 100,
            DeploymentDurationInMinutes=minutes,
            FinalBakeTimeInMinutes=minutes,
            ReplicateTo="NONE",
        )
        outputs[f"{name}RolloutId"] = made["Id"]
    return Desk(
        "http://127.0.0.1:9/v1",
        outputs=outputs,
        endpoint_url="http://127.0.0.1:9",
        clock=clock,
        pause=clock.pause,
        appconfig=client,
        **members,
    )


def states(profile: Profile) -> list[tuple[int, str]]:
    """Version and state of each deployment, newest first."""
    return [(one.version, one.state) for one in profile.history().deployments]


def lines(text: str) -> Iterable[str]:
    """Without those that are empty."""
    return [line for line in text.splitlines() if line.strip()]
