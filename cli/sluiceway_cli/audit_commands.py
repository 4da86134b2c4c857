"""`sluiceway audit`: what operators did."""

import click

from sluiceway_cli import console, records
from sluiceway_cli.target import find_target

DEFAULT_LIMIT = 100


@click.command()
@click.option("--since", help="7d, 12h, 2026-01-31 or 2026-01-31T12:00:00Z; else all that is kept.")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=10_000),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Records at most.",
)
@console.stack
@console.as_json
@click.pass_obj
def audit(stack: str | None, since: str | None, limit: int, as_json: bool) -> None:  # noqa: FBT001
    """List what operators did, and who, newest first. Records are kept for 400 days."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_ms = target.clock.now_ms()
        try:
            since_ms = 0 if since is None else records.since_ms(since, now_ms=now_ms)
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{since!r} is neither a time nor a duration like 7d or 12h", param_hint="--since"
            ) from None
        found, complete = records.listed(
            target.audit, since_ms=since_ms, now_ms=now_ms, limit=limit
        )
        if as_json:
            console.print_json({"records": found, "complete": complete})
            return
        if not found:
            click.echo("There are no records.")
        for one in found:
            line = "  ".join((one["at"], one["actor"], one["action"], one["subject"]))
            click.echo(line + (f"  {one['request_id']}" if one["request_id"] else ""))
        if not complete:
            click.echo(f"There are more; these are the newest {limit}.", err=True)
