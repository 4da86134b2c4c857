"""`sluiceway pause` and `sluiceway resume`: lanes, models and tenants."""

import re
import sys
from typing import Any

import click
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.domain.job import LANES

from sluiceway_cli import console, pauses
from sluiceway_cli.target import Target, find_target

SUBJECTS = "lane:NAME|model:NAME|tenant:NAME"
DEFAULT_TIMEOUT_S = 120.0

EFFECT = {
    "lane": "A call that runs ends normally; messages wait in the lane.",
    "model": "New calls stop within a second; a call that runs ends normally.",
    "tenant": "New calls stop within 5 s; a call that runs ends normally. Submits are accepted.",
}
RESUMED = {
    "lane": "Its messages are received again.",
    "model": "Waiting jobs look again within 90 s.",
    "tenant": "Waiting jobs look again within 90 s.",
}


def _subject(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, str] | None:
    """Kind and name. Raises click.BadParameter."""
    if given is None:
        return None
    kind, name = given.split(":", 1) if ":" in given else (given, "")
    if kind not in EFFECT or not re.fullmatch(NAME_PATTERN, name):
        raise click.BadParameter(f"{given[:80]!r} is none of {SUBJECTS}")
    if kind == "lane" and name not in LANES:
        raise click.BadParameter(f"there is no lane {name!r}; there are: {', '.join(LANES)}")
    return kind, name


timeout = click.option(
    "--timeout",
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait at most for a lane's event source mapping.",
)


@click.command("pause")
@click.argument("subject", callback=_subject, required=False, metavar=f"[{SUBJECTS}]")
@timeout
@console.stack
@console.as_json
@click.pass_obj
def pause(
    stack: str | None,
    subject: tuple[str, str] | None,
    timeout: float,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Start no new work of a lane, a model or a tenant; without one, list what is paused.

    It stays so, over deploys too, until `resume`. Ends with 3 when a lane's mapping is changing
    still.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        if subject is None:
            _list(target, as_json=as_json)
        else:
            _switch(target, *subject, paused=True, timeout_s=timeout, as_json=as_json)


@click.command("resume")
@click.argument("subject", callback=_subject, metavar=SUBJECTS)
@timeout
@console.stack
@console.as_json
@click.pass_obj
def resume(
    stack: str | None,
    subject: tuple[str, str],
    timeout: float,
    as_json: bool,  # noqa: FBT001
) -> None:
    """End a pause of a lane, a model or a tenant.

    Ends with 3 when a lane's mapping is changing still.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        _switch(target, *subject, paused=False, timeout_s=timeout, as_json=as_json)


def _switch(
    target: Target, kind: str, name: str, *, paused: bool, timeout_s: float, as_json: bool
) -> None:
    """Pauses or resumes it, puts it on record, and tells what came of it."""
    subject = f"{kind}:{name}"
    more: dict[str, Any] = {}
    waits = False
    if kind == "lane":
        lane = target.lane(name)
        if paused:  # first: else its jobs are lent the other lane's workers
            target.state.pause_lane(name)
        state, changed = pauses.switch_lane(
            lane,
            enabled=not paused,
            timeout_s=timeout_s,
            clock=target.clock,
            pause=target.pause,
        )
        more["mapping_state"] = state
        waits = state != ("Disabled" if paused else "Enabled")
        if not paused:
            target.state.resume_lane(name)
    elif kind == "model":
        changed, more["shared_with"] = _switch_model(target, name, paused=paused)
    elif paused:
        changed = target.state.pause_tenant(name)
        more["has_keys"] = any(key.tenant == name for key in target.partner_keys().all())
    else:
        changed = target.state.resume_tenant(name)
    if changed:
        target.record("pause.begin" if paused else "pause.end", subject)
        target.notify("PauseBegan" if paused else "PauseEnded", subject)
    if as_json:
        console.print_json({"subject": subject, "paused": paused, "changed": changed, **more})
    elif waits:
        state = more["mapping_state"]
        click.echo(f"{subject} is changing still: its event source mapping is {state}.", err=True)
    else:
        _tell(subject, paused=paused, changed=changed, more=more)
    if waits:
        sys.exit(console.EXIT_TIMEOUT)


def _switch_model(target: Target, name: str, *, paused: bool) -> tuple[bool, list[str]]:
    """Whether that changed anything, and the other models of the gate."""
    console.require_model(name, target)
    catalogue = target.catalogue()
    key, limits = pauses.gate_of(catalogue.models[name])
    if paused:
        changed = target.gates.pause(key, limits)
    else:
        changed = target.gates.resume(key, limits, now_ms=target.aws_clock.now_ms())
    return changed, pauses.sharing(name, catalogue)


def _tell(subject: str, *, paused: bool, changed: bool, more: dict[str, Any]) -> None:
    kind = subject.partition(":")[0]
    if not changed:
        click.echo(f"{subject} is already paused." if paused else f"{subject} is not paused.")
    else:
        click.echo(f"{subject} is {'paused' if paused else 'resumed'}.")
        click.echo((EFFECT if paused else RESUMED)[kind])
    if shared_with := more.get("shared_with"):
        click.echo(f"So it is with what has the same gate: {', '.join(shared_with)}.")
    if more.get("has_keys") is False:
        click.echo("No API key is of this tenant: look twice at the name.", err=True)


def _list(target: Target, *, as_json: bool) -> None:
    """What is paused now; a lane that is changing is told with the state of its mapping."""
    paused: list[dict[str, str]] = []
    known = target.state.read()
    for lane in LANES:
        state = target.lane(lane).state()
        if state != "Enabled" or lane in known.paused_lanes:  # a pause was cut off before the end
            paused.append({"subject": f"lane:{lane}", "mapping_state": state})
    models = pauses.paused_models(target.catalogue(), target.gates, now_ms=target.clock.now_ms())
    paused += [{"subject": f"model:{name}"} for name in models]
    paused += [{"subject": f"tenant:{name}"} for name in sorted(known.paused_tenants)]
    if as_json:
        console.print_json({"paused": paused})
        return
    for one in paused:
        state = one.get("mapping_state", "")
        click.echo(one["subject"] + (f"  {state}" if state not in {"", "Disabled"} else ""))
    if not paused:
        click.echo("Nothing is paused.")
