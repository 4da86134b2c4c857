"""The catalogue and the flags in AppConfig: versions of a text, and their deployments.

What functions do with them is in sluiceway.adapters.appconfig.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

UNDER_WAY = frozenset({"VALIDATING", "DEPLOYING", "BAKING", "ROLLING_BACK"})
"""States of a deployment that has not ended; an environment takes one at a time."""


class OvertakenError(Exception):
    """Somebody else changed it meanwhile, or is still deploying: nothing was done."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One version on its way to the functions, or arrived."""

    number: int
    version: int
    state: str
    """As AppConfig has it: DEPLOYING, BAKING, COMPLETE, ROLLED_BACK, REVERTED and others."""
    percentage: float
    started_at: datetime | str
    completed_at: datetime | str | None = None

    @property
    def under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in UNDER_WAY


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration profile, which is deployed to an environment of its own."""

    client: Any
    """Of AppConfig."""
    application_id: str
    environment_id: str
    profile_id: str
    content_type: str

    def deployments(self) -> list[Deployment]:
        """All that AppConfig remembers, newest first."""
        pages = self.client.get_paginator("list_deployments").paginate(
            ApplicationId=self.application_id, EnvironmentId=self.environment_id
        )
        found = [
            Deployment(
                number=item["DeploymentNumber"],
                version=int(item["ConfigurationVersion"]),
                state=item["State"],
                percentage=item["PercentageComplete"],
                started_at=item["StartedAt"],
                completed_at=item.get("CompletedAt"),
            )
            for page in pages
            for item in page["Items"]
        ]
        return sorted(found, key=lambda one: one.number, reverse=True)

    def running(self) -> Deployment | None:
        """Whose version is in force for all, or will be again when the one under way fails."""
        return next((one for one in self.deployments() if one.state == "COMPLETE"), None)

    def under_way(self) -> Deployment | None:
        """The deployment that has not ended."""
        return next((one for one in self.deployments() if one.under_way), None)

    def text(self, version: int) -> str:
        """The content of a version. Raises ValueError when there is no such version."""
        try:
            answer = self.client.get_hosted_configuration_version(
                ApplicationId=self.application_id,
                ConfigurationProfileId=self.profile_id,
                VersionNumber=version,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
            raise ValueError(f"there is no version {version}") from None
        content: bytes = answer["Content"].read()
        return content.decode()

    def running_text(self) -> str | None:
        """The content in force; None before the first deployment."""
        running = self.running()
        return None if running is None else self.text(running.version)

    def push(self, text: str, rollout_id: str, *, description: str) -> Deployment:
        """Makes a version of the text, and begins its deployment. Raises OvertakenError."""
        latest = max((one.number for one in self.deployments()), default=0)
        made = self.client.create_hosted_configuration_version(
            ApplicationId=self.application_id,
            ConfigurationProfileId=self.profile_id,
            Content=text.encode(),
            ContentType=self.content_type,
            Description=description,
        )
        return self.deploy(made["VersionNumber"], rollout_id, after=latest, description=description)

    def deploy(self, version: int, rollout_id: str, *, after: int, description: str) -> Deployment:
        """Begins the deployment of a version, as the next one after the number `after`.

        Raises OvertakenError.
        """
        try:
            answer = self.client.start_deployment(
                ApplicationId=self.application_id,
                EnvironmentId=self.environment_id,
                ConfigurationProfileId=self.profile_id,
                ConfigurationVersion=str(version),
                DeploymentStrategyId=rollout_id,
                Description=description,
                LatestDeploymentNumber=after,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConflictException":
                raise
            raise OvertakenError(str(error.response["Error"]["Message"])) from None
        return Deployment(
            number=answer["DeploymentNumber"],
            version=version,
            state=answer["State"],
            percentage=answer["PercentageComplete"],
            started_at=answer["StartedAt"],
            completed_at=answer.get("CompletedAt"),
        )

    def stop(self, deployment: Deployment) -> None:
        """Takes a deployment back, whether it has ended or not: what was before it is in force."""
        self.client.stop_deployment(
            ApplicationId=self.application_id,
            EnvironmentId=self.environment_id,
            DeploymentNumber=deployment.number,
            AllowRevert=True,
        )


def with_vendor(text: str, vendor_url: str) -> str:
    """A catalogue with every vendor's base_url replaced: by the simulator's, on a local stack."""
    return re.sub(
        r'^(\s*base_url\s*=\s*)"[^"]*"', rf'\g<1>"{vendor_url}"', text, flags=re.MULTILINE
    )
