"""`sluiceway catalogue`: check a catalogue, push it, look at what is in force, and take it back."""

import sys
from dataclasses import dataclass
from typing import Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.bootstrap import packaged_text
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.catalogue import VENDOR_SECRETS, Catalogue
from sluiceway.domain.errors import ConfigurationError

from sluiceway_cli import changes, console
from sluiceway_cli.configurations import Deployment, History, Profile, with_vendor
from sluiceway_cli.rollouts import (
    EFFECTIVE_WITHIN_S,
    begun_by,
    deployment_row,
    require_in_force,
    tell_rollout,
)
from sluiceway_cli.status import open_jobs
from sluiceway_cli.target import Target, find_target

NO_VERSION = 0
"""Before the first push: what is packaged is in force."""

MOST_BYTES = 1_000_000
"""What AppConfig takes of a hosted configuration, unless an account's quota is larger."""

MOST_TOLD = 50
"""Changes, and warnings, that people are shown."""

yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group("catalogue")
def group() -> None:
    """Check, push and look at the catalogue: vendors, models, tenants and their limits."""


# ------------------------------------------------------------------------------------ check


@dataclass(frozen=True, slots=True)
class Checked:
    """What is right and wrong with a text."""

    catalogue: Catalogue | None
    """None: it can't be read."""
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    lease_s: float | None = None
    """What its times were compared with; None: with nothing."""

    def row(self) -> dict[str, Any]:
        """For programs."""
        held = {} if self.catalogue is None else _held(self.catalogue)
        return {
            "valid": not self.faults,
            "faults": list(self.faults),
            "warnings": list(self.warnings),
            "lease_s": self.lease_s,
            **held,
        }


@group.command("check")
@click.argument("file", type=click.File("rb"))
@console.stack
@console.as_json
@click.pass_obj
def check(stack: str | None, file: Any, as_json: bool) -> None:  # noqa: FBT001
    """Say what is wrong with FILE, or what it holds; ends with 1 when something is wrong.

    With a stack its times are compared with the lease of the stack's workers, too.
    """
    with console.errors_told(as_json=as_json):
        target = None
        try:
            target = find_target(stack)
        except ValueError:
            if stack is not None:
                raise
        if target is not None and not target.can_read_tables:
            target = None
        checked = _checked(_text_of(file), target)
        if as_json:
            console.print_json(checked.row())
        else:
            _tell_checked(checked)
        if checked.faults:
            sys.exit(console.EXIT_REFUSED)


def _text_of(file: Any) -> str:
    """Without the mark of byte order that some editors set. Raises ValueError."""
    try:
        text: str = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not UTF-8: {error}") from error
    return text


def _checked(text: str, target: Target | None) -> Checked:
    """Against the stack, if there is one."""
    try:
        catalogue = catalogues.parse(text)
    except ConfigurationError as error:
        return Checked(None, error.errors)
    warnings = _remarks(text, catalogue)
    if target is None:
        return Checked(catalogue, warnings=tuple(warnings))
    warnings += _secrets_missing(catalogue, target)
    try:
        lease_s = target.lease_s()
    except (ClientError, BotoCoreError, KeyError) as error:
        warnings.append(f"the workers' lease can't be read, so times weren't checked: {error}")
        return Checked(catalogue, warnings=tuple(warnings))
    faults = catalogues.check_times(catalogue, lease_s=lease_s)
    return Checked(catalogue, faults, tuple(warnings), lease_s)


def _remarks(text: str, catalogue: Catalogue) -> list[str]:
    """What is allowed and hardly meant."""
    found = []
    if not catalogue.models:
        found.append("it has no model, so every submit is refused")
    if (size := len(text.encode())) > MOST_BYTES:
        found.append(
            f"it has {size / 1e6:.1f} MB, and AppConfig takes {MOST_BYTES / 1e6:g} MB, unless your "
            "account's quota is larger"
        )
    return found


def _secrets_missing(catalogue: Catalogue, target: Target) -> list[str]:
    """Secrets of vendors that aren't there, or that we may not see."""
    found: list[str] = []
    client = target.client("secretsmanager")
    for name in sorted({vendor.api_key_secret for vendor in catalogue.vendors.values()} - {""}):
        if not name.startswith(VENDOR_SECRETS):
            found.append(f"the workers may not read the secret {name}: not in {VENDOR_SECRETS}")
            continue
        try:
            client.describe_secret(SecretId=name)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            missing = code == "ResourceNotFoundException"
            found.append(
                f"the secret {name} " + ("isn't there" if missing else f"can't be seen: {code}")
            )
    return found


def _held(catalogue: Catalogue) -> dict[str, int]:
    return {group: len(getattr(catalogue, group)) for group in changes.GROUPS}


def _tell_checked(checked: Checked) -> None:
    for fault in checked.faults:
        click.echo(fault, err=True)
    _warn(checked.warnings)
    if checked.faults or checked.catalogue is None:
        return
    held = ", ".join(f"{name} {number}" for name, number in _held(checked.catalogue).items())
    click.echo(f"It is right: {held}.")
    if checked.lease_s is not None:
        click.echo(f"Its times fit into the workers' lease of {checked.lease_s:g} s.")
    else:
        click.echo("Its times were not compared with a stack's lease.")


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings[:MOST_TOLD]:
        click.echo(f"Warning: {warning}", err=True)
    if (more := len(warnings) - MOST_TOLD) > 0:
        click.echo(f"Warning: and {more} more like these", err=True)


# ------------------------------------------------------------------------------------ push


@dataclass(frozen=True, slots=True)
class Plan:
    """What would come into force, and what it would change."""

    text: str
    catalogue: Catalogue
    in_force: str
    changed: list[changes.Change]
    warnings: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether it is in force already, down to its comments."""
        return self.text == self.in_force

    def row(self) -> dict[str, Any]:
        """For programs."""
        return {
            "changes": [
                {"member": one.member, "before": one.before, "after": one.after}
                for one in self.changed
            ],
            "warnings": list(self.warnings),
        }


@group.command("push")
@click.argument("file", type=click.File("rb"))
@click.option("--now", is_flag=True, help="For all processes at once, instead of gradually.")
@yes
@console.stack
@console.as_json
@click.pass_obj
def push(
    stack: str | None,
    file: Any,
    now: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Check FILE, tell what it changes, and bring it into force.

    Gradually, so that an alarm can take it back before it has reached all processes; --now is for
    all at once. Without --yes it asks before.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        profile = target.catalogue_profile
        seen = _seen(profile)
        plan = _planned(_text_of(file), target, seen, as_json=as_json)
        if plan.nothing:
            _tell_nothing(plan, seen, as_json=as_json)
            return
        _tell_plan(plan, as_json=as_json)
        _ask("Push it?" if now else "Push it, gradually?", yes=yes, as_json=as_json)
        deployment = profile.push(
            plan.text,
            target.rollout_id(gradual=not now),
            seen=seen,
            description=begun_by(target.actor),
        )
        if now:
            deployment = require_in_force(profile, deployment, target)
        subject = f"version:{deployment.version}"
        target.record("catalogue.push", subject)
        target.notify("CatalogueChanged", subject, gradual=not now, changes=len(plan.changed))
        if as_json:
            row = {"pushed": True, "version": deployment.version}
            console.print_json(plan.row() | row | {"deployment": deployment_row(deployment)})
            return
        tell_rollout(deployment)
        click.echo("See how far it is:  sluiceway catalogue history")
        click.echo("Take it back:       sluiceway catalogue rollback")


def _seen(profile: Profile) -> History:
    """The history, when nothing is under way. Raises ValueError."""
    seen = profile.history()
    if (under_way := seen.under_way) is not None:
        raise ValueError(
            f"version {under_way.version} is on its way ({under_way.state}, "
            f"{under_way.percentage:g} %): wait for it, or take it back with: "
            "sluiceway catalogue rollback"
        )
    return seen


def _planned(text: str, target: Target, seen: History, *, as_json: bool) -> Plan:
    """Ends the command when something is wrong with the text."""
    if target.local and target.vendor_url is not None:
        local = with_vendor(text, target.vendor_url)
        if local != text and not as_json:
            click.echo(f"Every base_url is replaced by the simulator's: {target.vendor_url}")
        text = local
    checked = _checked(text, target)
    faults = checked.faults
    if checked.catalogue is not None and target.local:
        faults += _outside(checked.catalogue, target)
    if faults or checked.catalogue is None:
        if as_json:
            console.print_json(checked.row() | {"valid": False, "faults": list(faults)})
        else:
            _tell_checked(Checked(None, faults, checked.warnings))
        sys.exit(console.EXIT_REFUSED)
    in_force = _text_in_force(target.catalogue_profile, seen.running)
    warnings = list(checked.warnings)
    try:
        before = catalogues.parse(in_force, on_unknown=lambda _: None)
    except ConfigurationError:  # deployed by other means
        before = Catalogue()
        warnings.append("what is in force can't be read, so all of this is told as new")
    changed = changes.of_catalogues(before, checked.catalogue)
    warnings += _consequences(before, checked.catalogue, target)
    return Plan(text, checked.catalogue, in_force, changed, tuple(warnings))


def _outside(catalogue: Catalogue, target: Target) -> tuple[str, ...]:
    """Vendors of a local stack that would really be called."""
    return tuple(
        f"vendors.{name}.base_url: a local stack calls its simulator alone; "
        'write base_url = "..." on a line of its own, where it is replaced'
        for name, vendor in catalogue.vendors.items()
        if vendor.base_url != target.vendor_url
    )


def _text_in_force(profile: Profile, running: Deployment | None) -> str:
    return packaged_text() if running is None else profile.text(running.version)


def _consequences(before: Catalogue, after: Catalogue, target: Target) -> list[str]:
    """What the removal of models and tenants means."""
    warnings = []
    removed = sorted(before.models.keys() - after.models.keys())
    if removed:
        jobs = open_jobs(target)
        warnings += [
            f"models.{name} is removed: submits of it are refused, and its open jobs "
            f"({jobs.nearly}{jobs.open_of(name)} now) fail as "
            "vendor_rejected, an hour after they were enqueued"
            for name in removed
        ]
    warnings += [
        f"tenants.{name} is removed: it has the limits of tenants.default then"
        for name in sorted(before.tenants.keys() - after.tenants.keys())
    ]
    return warnings


def _tell_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        return
    for change in plan.changed[:MOST_TOLD]:
        click.echo(str(change))
    many = len(plan.changed)
    if many > MOST_TOLD:
        click.echo(f"and {many - MOST_TOLD} more")
    click.echo(
        f"{many} change{'s'[: many != 1]}."
        if many
        else "No member changes; comments or the layout do."
    )
    _warn(plan.warnings)


def _tell_nothing(plan: Plan, seen: History, *, as_json: bool) -> None:
    version = seen.running.version if seen.running else NO_VERSION
    if as_json:
        row = {"pushed": False, "version": version, "deployment": None}
        console.print_json(plan.row() | row)
        return
    _warn(plan.warnings)
    click.echo("It is in force already: nothing is done.")


def _ask(question: str, *, yes: bool, as_json: bool) -> None:
    """Raises click.Abort on a no, and click.ClickException where nobody can be asked."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise click.ClickException("nobody can be asked here, so nothing is done; say --yes")
    click.confirm(question, abort=True)


# ------------------------------------------------------------------------------------ looks


@group.command("show")
@click.option("--version", type=click.IntRange(1), help="Of this version, in force or not.")
@console.stack
@console.as_json
@click.pass_obj
def show(stack: str | None, version: int | None, as_json: bool) -> None:  # noqa: FBT001
    """Print the TOML in force, as it was pushed, and nothing else."""
    with console.errors_told(as_json=as_json):
        profile = find_target(stack).catalogue_profile
        if version is None:
            seen = profile.history()
            text, version = _text_in_force(profile, seen.running), _version(seen.running)
            if (coming := seen.under_way) is not None:
                click.echo(f"Version {coming.version} is on its way; this is {version}.", err=True)
        else:
            text = profile.text(version)
        if as_json:
            console.print_json({"version": version, "text": text})
        else:
            click.echo(text, nl=False)


@group.command("history")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@console.stack
@console.as_json
@click.pass_obj
def history(stack: str | None, limit: int, as_json: bool) -> None:  # noqa: FBT001
    """List what was brought into force, newest first: version, state, when and by whom."""
    with console.errors_told(as_json=as_json):
        profile = find_target(stack).catalogue_profile
        seen = profile.history()
        shown = [profile.deployment(one.number) for one in seen.deployments[:limit]]
        if as_json:
            rows = [deployment_row(one) for one in shown]
            complete = len(seen.deployments) <= limit
            console.print_json(
                {"deployments": rows, "in_force": _version(seen.running), "complete": complete}
            )
            return
        for one in shown:
            row = deployment_row(one)
            mark = "in force" if seen.running and one.number == seen.running.number else ""
            click.echo(
                f"version {one.version:<4} {one.state:<12} {one.percentage:>3.0f} %  "
                f"{row['started_at']}  {row['by']}  {mark}".rstrip()
            )
        if seen.running is None:
            click.echo("What is packaged is in force.")
        if len(seen.deployments) > limit:
            click.echo("There are more: --limit", err=True)


def _version(running: Deployment | None) -> int:
    return NO_VERSION if running is None else running.version


# ------------------------------------------------------------------------------------ rollback


@group.command("rollback")
@click.option("--version", type=click.IntRange(1), help="Bring this version into force again.")
@yes
@console.stack
@console.as_json
@click.pass_obj
def rollback(
    stack: str | None,
    version: int | None,
    yes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Take back what is on its way, or else what is in force, for all processes at once.

    What is on its way is stopped; else the version before the one in force, or --version, is
    brought into force again.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        profile = target.catalogue_profile
        seen = profile.history()
        if (under_way := seen.under_way) is not None:
            if not as_json:
                click.echo(
                    f"Version {under_way.version} is on its way ({under_way.percentage:g} %)."
                )
            _ask("Stop it?", yes=yes, as_json=as_json)
            seen = profile.take_back(under_way, pause=target.pause)
            if version is None or version == _version(seen.running):
                _tell_rollback(_version(seen.running), [], target, as_json=as_json)
                return
        to = _rollback_to(seen, version)
        if to == _version(seen.running):
            raise ValueError(f"version {to} is in force")
        text = profile.text(to)
        plan = _planned(text, target, seen, as_json=as_json)
        _tell_plan(plan, as_json=as_json)
        _ask(f"Bring version {to} into force?", yes=yes, as_json=as_json)
        rollout, description = target.rollout_id(gradual=False), begun_by(target.actor)
        in_force = to
        if plan.text != text:  # the simulator has another address now
            deployment = profile.push(plan.text, rollout, seen=seen, description=description)
            in_force = require_in_force(profile, deployment, target).version
        elif (running := _can_be_taken_back(seen, to, target)) is not None:
            profile.take_back(running, pause=target.pause)
        else:
            deployment = profile.deploy(to, rollout, seen=seen, description=description)
            require_in_force(profile, deployment, target)
        _tell_rollback(in_force, plan.changed, target, as_json=as_json)


def _rollback_to(seen: History, version: int | None) -> int:
    """The last version in force that is lower than the one that is. Raises ValueError.

    So one rollback after another goes further back, and not to what was just taken back.
    """
    if version is not None:
        return version
    for one in seen.before:
        if seen.running is not None and one.version < seen.running.version:
            return one.version
    raise ValueError("there is no version before the one in force; name one: --version")


def _can_be_taken_back(seen: History, to: int, target: Target) -> Deployment | None:
    """The deployment in force, when its end brings `to` back: an alarm can't prevent that."""
    running = seen.running
    if running is None or running.number != seen.latest or not seen.before:
        return None
    fits = seen.before[0].version == to and running.can_be_taken_back(target.clock.now_ms())
    return running if fits else None


def _tell_rollback(
    version: int, changed: list[changes.Change], target: Target, *, as_json: bool
) -> None:
    """Puts it on record, and says what is in force now."""
    subject = f"version:{version}"
    target.record("catalogue.rollback", subject)
    target.notify("CatalogueChanged", subject, gradual=False, changes=len(changed))
    if as_json:
        console.print_json({"version": version, "effective_within_s": EFFECTIVE_WITHIN_S})
        return
    what = f"Version {version}" if version else "What is packaged"
    click.echo(f"{what} is in force: within {EFFECTIVE_WITHIN_S} s everywhere.")
