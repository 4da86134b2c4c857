"""The catalogue and the flags in AppConfig: versions of a text, and their deployments.

What functions do with them is in sluiceway.adapters.appconfig.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

UNDER_WAY = frozenset({"VALIDATING", "DEPLOYING", "BAKING", "ROLLING_BACK"})
"""States of a deployment that has not ended; an environment takes one at a time."""

TAKEN_BACK = frozenset({"ROLLED_BACK", "REVERTED"})
"""States of one that was stopped, and of one that was taken back after its end."""

REVERTED_WITHIN_S = 71 * 3600
"""AppConfig takes back a deployment that has ended for 72 hours."""

LOOKS = 60
"""At a deployment that is ending, a second apart."""


OVERTAKEN = "somebody else changed it meanwhile, so nothing was done: look, and try again"


class OvertakenError(RuntimeError):
    """Somebody else changed it meanwhile, or is still deploying: nothing was done."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One version on its way to the functions, or arrived."""

    number: int
    version: int
    state: str
    """As AppConfig has it: DEPLOYING, BAKING, COMPLETE, ROLLED_BACK, REVERTED and others."""
    percentage: float
    started_at: datetime
    completed_at: datetime | None = None
    growth: float = 100.0
    """Per cent of the processes that each step reaches."""
    minutes: int = 0
    """Until all are reached."""
    watched_minutes: int = 0
    """After that, until an alarm takes it back no more."""
    description: str | None = None
    """None where it wasn't asked for."""

    @property
    def under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in UNDER_WAY

    def can_be_taken_back(self, now_ms: int) -> bool:
        """Whether AppConfig still takes back a deployment that has ended."""
        if not isinstance(self.completed_at, datetime):
            return False
        return now_ms / 1000 - self.completed_at.timestamp() < REVERTED_WITHIN_S


@dataclass(frozen=True, slots=True)
class History:
    """The deployments to an environment as they were at one moment, newest first."""

    deployments: tuple[Deployment, ...] = ()

    @property
    def latest(self) -> int:
        """The number of the newest; 0 before the first."""
        return self.deployments[0].number if self.deployments else 0

    @property
    def running(self) -> Deployment | None:
        """Whose version is in force for all, or will be again when the one under way fails."""
        return next((one for one in self.deployments if one.state == "COMPLETE"), None)

    @property
    def under_way(self) -> Deployment | None:
        """The deployment that has not ended."""
        return next((one for one in self.deployments if one.under_way), None)

    @property
    def before(self) -> tuple[Deployment, ...]:
        """Those that were in force before the running one, the last of them first."""
        running = self.running
        return tuple(
            one
            for one in self.deployments
            if running is not None and one.state == "COMPLETE" and one.number < running.number
        )

    def same_as(self, other: "History") -> bool:
        """Whether nothing was begun, ended or taken back in between."""
        return [(one.number, one.state) for one in self.deployments] == [
            (one.number, one.state) for one in other.deployments
        ]


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration profile, which is deployed to an environment of its own."""

    client: Any
    """Of AppConfig."""
    application_id: str
    environment_id: str
    profile_id: str
    content_type: str

    def history(self) -> History:
        """All that AppConfig remembers, as it is now."""
        pages = self.client.get_paginator("list_deployments").paginate(
            ApplicationId=self.application_id, EnvironmentId=self.environment_id
        )
        found = [_deployment(item) for page in pages for item in page["Items"]]
        return History(tuple(sorted(found, key=lambda one: one.number, reverse=True)))

    def deployment(self, number: int) -> Deployment:
        """With its description, which a history doesn't have."""
        return _deployment(
            self.client.get_deployment(
                ApplicationId=self.application_id,
                EnvironmentId=self.environment_id,
                DeploymentNumber=number,
            )
        )

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
        running = self.history().running
        return None if running is None else self.text(running.version)

    def push(self, text: str, rollout_id: str, *, seen: History, description: str) -> Deployment:
        """Makes a version of the text, and begins its deployment.

        `seen` is the history from before what the text was made from was read, so that no change
        of somebody else's is lost. Raises OvertakenError.
        """
        self._require(seen)
        made = self.client.create_hosted_configuration_version(
            ApplicationId=self.application_id,
            ConfigurationProfileId=self.profile_id,
            Content=text.encode(),
            ContentType=self.content_type,
            Description=description,
        )
        return self._deploy(made["VersionNumber"], rollout_id, seen=seen, description=description)

    def deploy(
        self, version: int, rollout_id: str, *, seen: History, description: str
    ) -> Deployment:
        """Begins the deployment of a version that there is. Raises OvertakenError."""
        self._require(seen)
        return self._deploy(version, rollout_id, seen=seen, description=description)

    def take_back(self, deployment: Deployment, *, pause: Callable[[float], None]) -> History:
        """Takes it back, whether it has ended or not, and waits until what was before is in force.

        No alarm prevents that. Raises OvertakenError when it takes more than a minute.
        """
        if deployment.state != "ROLLING_BACK":
            self._stop(deployment)
        for _ in range(LOOKS):
            if self.deployment(deployment.number).state in TAKEN_BACK:
                return self.history()
            pause(1.0)
        raise OvertakenError("it is being taken back still: look, and try again")

    def ended(self, deployment: Deployment, *, pause: Callable[[float], None]) -> Deployment:
        """The deployment when it has ended, or as it is after a minute."""
        for _ in range(LOOKS):
            deployment = self.deployment(deployment.number)
            if not deployment.under_way:
                break
            pause(1.0)
        return deployment

    def _require(self, seen: History) -> None:
        """A deployment that was taken back leaves no number, so this is looked at, too."""
        if not self.history().same_as(seen):
            raise OvertakenError(OVERTAKEN)

    def _deploy(
        self, version: int, rollout_id: str, *, seen: History, description: str
    ) -> Deployment:
        # AppConfig refuses when another deployment was begun after the one of this number. The
        # first has none to name.
        after = {"LatestDeploymentNumber": seen.latest} if seen.latest else {}
        try:
            answer = self.client.start_deployment(
                ApplicationId=self.application_id,
                EnvironmentId=self.environment_id,
                ConfigurationProfileId=self.profile_id,
                ConfigurationVersion=str(version),
                DeploymentStrategyId=rollout_id,
                Description=description,
                **after,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConflictException":
                raise
            raise OvertakenError(OVERTAKEN) from None
        deployment = _deployment(answer)
        if not seen.latest and deployment.number != 1:  # two first ones at once
            self._stop(deployment)
            raise OvertakenError(OVERTAKEN)
        return deployment

    def _stop(self, deployment: Deployment) -> None:
        self.client.stop_deployment(
            ApplicationId=self.application_id,
            EnvironmentId=self.environment_id,
            DeploymentNumber=deployment.number,
            AllowRevert=True,
        )


def _deployment(item: Mapping[str, Any]) -> Deployment:
    return Deployment(
        number=item["DeploymentNumber"],
        version=int(item["ConfigurationVersion"]),
        state=item["State"],
        percentage=item["PercentageComplete"],
        started_at=item["StartedAt"],
        completed_at=item.get("CompletedAt"),
        growth=item.get("GrowthFactor", 100.0),
        minutes=item.get("DeploymentDurationInMinutes", 0),
        watched_minutes=item.get("FinalBakeTimeInMinutes", 0),
        description=item.get("Description"),
    )


def with_vendor(text: str, vendor_url: str) -> str:
    """A catalogue with every vendor's base_url replaced: by the simulator's, on a local stack."""
    return re.sub(
        r'^(\s*base_url\s*=\s*)"[^"]*"', rf'\g<1>"{vendor_url}"', text, flags=re.MULTILINE
    )
