"""How the commands on catalogue and flags tell of a deployment, and wait for its end."""

from typing import Any

import click
from sluiceway.adapters.appconfig import KEPT_MS
from sluiceway.domain.times import rfc3339

from sluiceway_cli.configurations import Deployment, Profile
from sluiceway_cli.target import Target

EFFECTIVE_WITHIN_S = KEPT_MS // 1000 + 5
"""Every process asks again when what it has is so old; AppConfig takes some seconds."""

_BY = "by: "


def begun_by(actor: str) -> str:
    """The description of a deployment."""
    return f"{_BY}{actor}"[:1024]


def deployment_row(deployment: Deployment) -> dict[str, Any]:
    """For programs, and for lists."""
    started, completed = deployment.started_at, deployment.completed_at
    return {
        "deployment": deployment.number,
        "version": deployment.version,
        "state": deployment.state,
        "percentage": deployment.percentage,
        "started_at": rfc3339(round(started.timestamp() * 1000)),
        "completed_at": completed and rfc3339(round(completed.timestamp() * 1000)),
        "by": (deployment.description or "").removeprefix(_BY),
    }


def require_in_force(profile: Profile, deployment: Deployment, target: Target) -> Deployment:
    """Waits for the end of one that goes to all at once. Raises RuntimeError when it came to none.

    AppConfig takes it back when an alarm of the environment rings already.
    """
    ended = profile.ended(deployment, pause=target.pause)
    if ended.under_way or ended.state == "COMPLETE":
        return ended
    raise RuntimeError(
        f"AppConfig took version {ended.version} back at once ({ended.state}): an alarm that "
        "watches deployments rings, or has no data yet; what was in force is"
    )


def tell_rollout(deployment: Deployment) -> None:
    """How it goes on from here."""
    version = f"Version {deployment.version}"
    if not deployment.minutes:
        click.echo(f"{version} is in force: within {EFFECTIVE_WITHIN_S} s everywhere.")
        return
    each = deployment.minutes * deployment.growth / 100
    click.echo(
        f"{version} is on its way: {deployment.growth:g} % more of the processes each {each:g} "
        f"min, all of them after {deployment.minutes} min, and it can be stopped for "
        f"{deployment.watched_minutes} min more."
    )
