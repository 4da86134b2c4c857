"""`sluiceway flags`: features that are switched while everything runs."""

import json
import re
from typing import Any

import click
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.domain import flags
from sluiceway.domain.ids import NAME_PATTERN

from sluiceway_cli import changes, console
from sluiceway_cli.configurations import Deployment, History, Profile
from sluiceway_cli.rollouts import (
    EFFECTIVE_WITHIN_S,
    begun_by,
    deployment_row,
    require_in_force,
    tell_rollout,
)
from sluiceway_cli.target import Target, find_target


@click.group("flags")
def group() -> None:
    """Look at feature flags, and switch features on and off."""


# ------------------------------------------------------------------------------------ show


@group.command("show")
@console.stack
@console.as_json
@click.pass_obj
def show(stack: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Tell of each feature whether it is on, and for whom it is otherwise."""
    with console.errors_told(as_json=as_json):
        profile = find_target(stack).flags_profile
        seen = profile.history()
        document = _document(profile, seen.running)
        coming = _document(profile, seen.under_way) if seen.under_way else document
        if as_json:
            console.print_json(
                {
                    "version": seen.running.version if seen.running else 0,
                    "features": [_feature_row(document, feature) for feature in flags.FEATURES],
                    "under_way": seen.under_way
                    and deployment_row(profile.deployment(seen.under_way.number)),
                }
            )
            return
        for feature in flags.FEATURES:
            usual = changes.state(document, feature) == changes.state({}, feature)
            click.echo(
                f"{feature:<10} {changes.state(document, feature)}" + ("" if usual else "  *")
            )
        if seen.running is not None:
            click.echo(f"Version {seen.running.version} is in force.")
        if seen.under_way is not None:
            click.echo(f"Version {seen.under_way.version} is on its way: {_far(seen.under_way)}.")
            _tell_changes(changes.of_flags(document, coming))


def _feature_row(document: flags.Document, feature: str) -> dict[str, Any]:
    found = flags.exceptions(document, feature)
    return {
        "feature": feature,
        "on": flags.is_on(document, feature),
        "exceptions": {kind: sorted(names) for kind, names in found.items()},
    }


def _far(deployment: Deployment) -> str:
    return f"{deployment.state}, {deployment.percentage:g} %"


def _document(profile: Profile, deployment: Deployment | None) -> flags.Document:
    """What a deployment brings; nothing before the first. Raises ConfigurationError.

    Without what newer code alone knows: a stack that was rolled back would take no switch with it.
    """
    if deployment is None:
        return {}
    unknown: list[str] = []
    text = profile.text(deployment.version)
    parse_flags(text, on_unknown=unknown.extend)
    document: flags.Document = json.loads(text)
    for name in unknown:
        click.echo(f"{name}: this version has no such feature, and leaves it out.", err=True)
        del document[name]
    return document


# ------------------------------------------------------------------------------------ set


@group.command("set")
@click.argument("feature", metavar="FEATURE|model:NAME|tenant:NAME")
@click.argument("state", type=click.Choice(["on", "off"]))
@click.option("--model", help="For this model alone.")
@click.option("--tenant", help="For this tenant alone.")
@click.option("--gradual", is_flag=True, help="Over 10 minutes, instead of at once.")
@click.option("--replace", is_flag=True, help="Bring what is on its way into force with it.")
@console.stack
@console.as_json
@click.pass_obj
def set_flag(
    stack: str | None,
    feature: str,
    state: str,
    model: str | None,
    tenant: str | None,
    gradual: bool,  # noqa: FBT001
    replace: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Switch FEATURE on or off: for all, for a model or for a tenant.

    `model:NAME` and `tenant:NAME` in place of FEATURE switch `submit` for this one. Switched for
    all, nobody keeps an exception.
    """
    feature, subject = _switch_of(feature, model, tenant)
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        profile = target.flags_profile
        seen = profile.history()
        base, in_force = _base(profile, seen, replace=replace)
        document = flags.switched(base, feature, on=state == "on", subject=subject)
        text = json.dumps(document, indent=2, sort_keys=True)
        parse_flags(text)
        _require_known(subject, base, feature, target)
        changed = changes.of_flags(in_force, document)
        deployment, stopped = None, seen.under_way
        if stopped is not None:
            seen = profile.take_back(stopped, pause=target.pause)
        if changed:
            deployment = profile.push(
                text,
                target.rollout_id(gradual=gradual),
                seen=seen,
                description=begun_by(target.actor),
            )
            if not gradual:
                deployment = require_in_force(profile, deployment, target)
        in_force_now = deployment or seen.running
        if changed or stopped:
            version = in_force_now.version if in_force_now else 0
            _on_record(target, feature, subject, version, on=state == "on", gradual=gradual)
        if as_json:
            console.print_json(
                {
                    "feature": feature,
                    "subject": subject or None,
                    "on": state == "on",
                    "changed": bool(changed or stopped),
                    "changes": [
                        {"feature": one.member, "before": one.before, "after": one.after}
                        for one in changed
                    ],
                    "deployment": deployment and deployment_row(deployment),
                    "effective_within_s": None if gradual else EFFECTIVE_WITHIN_S,
                }
            )
            return
        _tell_changes(changed)
        if deployment is not None:
            tell_rollout(deployment)
        elif stopped is not None:
            click.echo(f"Version {stopped.version} was stopped, and so it is as it was before.")
        else:
            click.echo("It is so already: nothing is done.")


def _switch_of(feature: str, model: str | None, tenant: str | None) -> tuple[str, str]:
    """The feature, and `model:NAME`, `tenant:NAME` or nothing. Raises click.UsageError."""
    subjects = [f"model:{model}"] * (model is not None) + [f"tenant:{tenant}"] * (
        tenant is not None
    )
    if ":" in feature:
        subjects.append(feature)
        feature = "submit"
    if len(subjects) > 1:
        raise click.UsageError("Switch it for one model, for one tenant or for all.")
    for subject in subjects:
        kind, _, name = subject.partition(":")
        if kind not in flags.SUBJECTS or not re.fullmatch(NAME_PATTERN, name):
            raise click.BadParameter(f"{subject[:80]!r} is neither model:NAME nor tenant:NAME")
    return feature, "".join(subjects)


def _base(
    profile: Profile, seen: History, *, replace: bool
) -> tuple[flags.Document, flags.Document]:
    """What is switched, and what is in force. Raises ValueError when something is on its way."""
    in_force = _document(profile, seen.running)
    if seen.under_way is None:
        return in_force, in_force
    if not replace:
        raise ValueError(
            f"version {seen.under_way.version} is on its way ({_far(seen.under_way)}): wait for "
            "it, or bring it into force at once together with this: --replace"
        )
    return _document(profile, seen.under_way), in_force


def _require_known(subject: str, base: flags.Document, feature: str, target: Target) -> None:
    """A slip of the pen would be done, and do nothing. Raises click.ClickException."""
    kind, _, name = subject.partition(":")
    if name in flags.exceptions(base, feature).get(kind, ()):
        return  # it may have left the catalogue since
    if kind == "model":
        console.require_model(name, target)
    elif kind == "tenant":
        console.warn_of_stranger(name, target)


def _on_record(
    target: Target,
    feature: str,
    subject: str,
    version: int,
    *,
    on: bool,
    gradual: bool,
) -> None:
    flag = ":".join(filter(None, ("flag", feature, subject)))
    target.record("flags.on" if on else "flags.off", flag)
    target.notify("FlagsChanged", flag, on=on, version=version, gradual=gradual)


def _tell_changes(changed: list[changes.Change]) -> None:
    for one in changed:
        click.echo(f"{one.member}: {one.before} -> {one.after}")
