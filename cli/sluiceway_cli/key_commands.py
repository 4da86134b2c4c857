"""`sluiceway keys`: partners' API keys."""

from typing import Any

import click
from sluiceway.domain.api_key import POLICY_KEPT_S, PREFIX, SCOPES
from sluiceway.ports import PartnerKey

from sluiceway_cli import console, records, times
from sluiceway_cli import keys as key_making
from sluiceway_cli.target import Target, find_target

DAY_S = 24 * 3600
LONGEST_LIFE_S = 3650 * DAY_S
LONGEST_OVERLAP_S = 30 * DAY_S

STOPS = f"stops working within {POLICY_KEPT_S} s: the authorizer's answer is kept for so long"
KEEP_IT = "Keep the key now: it is not shown again."


def _scopes(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, in their order. Raises click.BadParameter."""
    named = [name.strip() for text in given for name in text.split(",")]
    if unknown := [name for name in named if name not in SCOPES]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in named)


def _duration(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Seconds. Raises click.BadParameter."""
    try:
        return None if text is None else times.duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Epoch seconds. Raises click.BadParameter."""
    try:
        return None if text is None else times.moment_ms(text) // 1000
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is no time like 2027-01-31") from None


def _key_id(_: click.Context, __: click.Parameter, text: str) -> str:
    """What was typed; a key is not said again. Raises click.BadParameter."""
    if text.startswith(PREFIX):
        raise click.BadParameter("that is a key; its id begins with key_, see: keys list")
    return text


@click.group("keys")
def group() -> None:
    """Make, list, rotate and revoke partners' API keys."""


@group.command("create")
@click.argument("tenant")
@click.option(
    "--scope",
    "--scopes",
    "scopes",
    multiple=True,
    callback=_scopes,
    default=("submit", "read", "cancel"),
    show_default="submit,read,cancel",
    help=f"Several times, or with commas: {', '.join(SCOPES)}.",
)
@click.option(
    "--expires-in", "lifetime_s", callback=_duration, help="90d, 12h, 30m; else it never expires."
)
@click.option(
    "--expires", "expires_at_s", callback=_moment, help="2027-01-31 or 2027-01-31T12:00:00Z; UTC."
)
@console.stack
@console.as_json
@click.pass_obj
def create_key(
    stack: str | None,
    tenant: str,
    scopes: tuple[str, ...],
    lifetime_s: int | None,
    expires_at_s: int | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Make a key for TENANT. It is shown once: nobody can look it up later."""
    if lifetime_s is not None and expires_at_s is not None:
        raise click.UsageError("Give --expires-in or --expires, not both.")
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_s = target.clock.now_ms() // 1000
        lives_s = lifetime_s if expires_at_s is None else expires_at_s - now_s
        if lives_s is not None and not 0 < lives_s <= LONGEST_LIFE_S:
            raise click.UsageError(
                f"A key expires in the future, and within {LONGEST_LIFE_S // DAY_S} days."
            )
        key, stored = key_making.create_key(
            key_making.valid_tenant(tenant),
            scopes,
            keys=target.partner_keys(),
            clock=target.clock,
            lifetime_s=lifetime_s,
            expires_at_s=expires_at_s,
        )
        _tell(
            {"key": key, **key_making.shown(stored, now_s=now_s)}, KEEP_IT, as_json=as_json
        )  # before anything else can fail
        target.record("key.create", f"key:{stored.key_id}")
        _warn_of_many(target, tenant)


@group.command("list")
@console.only_tenant
@console.stack
@console.as_json
@click.pass_obj
def list_keys(stack: str | None, tenant: str | None, as_json: bool) -> None:  # noqa: FBT001
    """List the keys: who, what for, until when, last used when; never the key itself."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_s = target.clock.now_ms() / 1000
        listed = [
            key_making.shown(key, now_s=now_s)
            for key in target.partner_keys().all()
            if tenant in {None, key.tenant}
        ]
        if as_json:
            console.print_json(listed)
            return
        if not listed:
            click.echo("There are no keys." if tenant is None else f"{tenant} has no keys.")
        for key in listed:
            click.echo(_line(key))


@group.command("rotate")
@click.argument("key_id", callback=_key_id)
@click.option(
    "--overlap",
    "overlap_s",
    callback=_duration,
    default="24h",
    show_default=True,
    help="How long the old key still works: 7d, 24h, 30m; 0m ends it now.",
)
@console.stack
@console.as_json
@click.pass_obj
def rotate_key(stack: str | None, key_id: str, overlap_s: int, as_json: bool) -> None:  # noqa: FBT001
    """Make a key in the place of KEY_ID, which works on until the overlap is over.

    The new key has the same tenant, scopes and lifetime. It is shown once.
    """
    if overlap_s > LONGEST_OVERLAP_S:
        raise click.BadParameter(
            f"{LONGEST_OVERLAP_S // DAY_S} days at most", param_hint="--overlap"
        )
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        key, new, old = key_making.rotate_key(
            _found(target, key_id),
            overlap_s=overlap_s,
            keys=target.partner_keys(),
            clock=target.clock,
        )
        now_s = target.clock.now_ms() / 1000
        ends_at = key_making.shown(old, now_s=now_s)["expires_at"]
        replaced = {"replaces": old.key_id, "replaced_expires_at": ends_at}
        _tell(
            {"key": key, **key_making.shown(new, now_s=now_s), **replaced},
            f"{KEEP_IT}\n{old.key_id} ends at {ends_at}. It then {STOPS}.",
            as_json=as_json,
        )
        request_id = records.new_request_id()
        target.record("key.rotate", f"key:{old.key_id}", request_id)
        target.record("key.create", f"key:{new.key_id}", request_id)
        _warn_of_many(target, new.tenant)


@group.command("revoke")
@click.argument("key_id", callback=_key_id)
@console.stack
@console.as_json
@click.pass_obj
def revoke_key(stack: str | None, key_id: str, as_json: bool) -> None:  # noqa: FBT001
    """Revoke KEY_ID, which stops working within a minute; again changes nothing."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_s = target.clock.now_ms() // 1000
        before = _found(target, key_id)
        revoked = target.partner_keys().revoke(key_id, now_s=now_s)
        if revoked is None:
            raise click.ClickException(f"there is no key {key_id}")
        told = key_making.shown(revoked, now_s=now_s)
        first = before.revoked_at_epoch_s is None
        _tell(
            told | ({"effective_within_s": POLICY_KEPT_S} if as_json else {}),
            f"It {STOPS}." if first else "It was revoked before.",
            as_json=as_json,
        )
        if first:
            target.record("key.revoke", f"key:{key_id}")


def _found(target: Target, key_id: str) -> PartnerKey:
    """The key of this id. Raises click.ClickException."""
    found = next((key for key in target.partner_keys().all() if key.key_id == key_id), None)
    if found is None:
        raise click.ClickException(f"there is no key {key_id}")
    return found


def _warn_of_many(target: Target, tenant: str) -> None:
    """Two keys at once are a rotation; one more is a key that nobody took back."""
    now_s = target.clock.now_ms() / 1000
    live = key_making.live_keys(tenant, keys=target.partner_keys(), now_s=now_s)
    if len(live) > key_making.LIVE_KEYS:
        names = ", ".join(key.key_id for key in live)
        click.echo(
            f"Warning: {tenant} has {len(live)} live keys, and a rotation needs "
            f"{key_making.LIVE_KEYS}: {names}. Revoke those that are not in use.",
            err=True,
        )


def _tell(fields: dict[str, Any], note: str, *, as_json: bool) -> None:
    """For programs without the note."""
    if as_json:
        console.print_json(fields)
        return
    console.print_fields(fields)
    click.echo(note, err=True)


def _line(key: dict[str, Any]) -> str:
    used = f"last used {key['last_used_at']}" if key["last_used_at"] else "never used"
    parts = [
        f"{key['key_id']}  {key['tenant']:<16} {key['status']:<8} {','.join(key['scopes'])}",
        f"created {key['created_at']}",
        used,
    ]
    for name, words in (("expires_at", "expires"), ("revoked_at", "revoked")):
        if key[name]:
            parts.append(f"{words} {key[name]}")
    if key["replaced_by"]:
        parts.append(f"replaced by {key['replaced_by']}")
    return "  ".join(parts)
