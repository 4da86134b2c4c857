"""`sluiceway audit`: what operators did."""

from typing import Any

import click
from sluiceway.domain import ids
from sluiceway.domain.times import rfc3339

from sluiceway_cli import console, records
from sluiceway_cli.target import Target, find_target

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
@click.option("--subject", help="Only what was done to it: job:ID, model:NAME, key:KEY_ID, ...")
@click.option("--actor", help="Only what this one did: aws:ARN, user:LOGIN, key:KEY_ID, event:ID.")
@click.option("--action", help="Only this: dlq.redrive, pause.begin, ...")
@console.stack
@console.as_json
@click.pass_obj
def audit(
    stack: str | None,
    since: str | None,
    limit: int,
    subject: str | None,
    actor: str | None,
    action: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List what operators did, and who, newest first. Records are kept for 400 days.

    With --subject job:ID it also tells who triggered the job, which its row knows: as long as that
    is there, about three weeks from its deadline on.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_ms = target.clock.now_ms()
        wanted = {"subject": subject, "actor": actor, "action": action}
        found, complete = records.listed(
            target.audit,
            since_ms=records.since_option(since, now_ms=now_ms),
            now_ms=now_ms,
            limit=limit,
            matching={name: value for name, value in wanted.items() if value is not None},
        )
        trigger = _trigger(subject, target)
        if as_json:
            console.print_json({"records": found, "complete": complete, **trigger})
            return
        if not found:
            click.echo("There are no records.")
        for one in found:
            line = "  ".join((one["at"], one["actor"], one["action"], one["subject"]))
            click.echo(line + (f"  {one['request_id']}" if one["request_id"] else ""))
        if trigger:
            _tell_trigger(trigger["triggered_by"])
        if not complete:
            click.echo(f"There are more; these are the newest {limit}.", err=True)


def _trigger(subject: str | None, target: Target) -> dict[str, dict[str, Any] | None]:
    """Who asked for a job, as its row tells it: one member, and None when there is no row."""
    kind, _, job_id = (subject or "").partition(":")
    if kind != "job":
        return {}
    job = target.find_job(job_id) if ids.well_formed(job_id) else None
    if job is None:
        return {"triggered_by": None}
    return {
        "triggered_by": {
            "at": rfc3339(job.created_at_epoch_ms),
            "tenant": job.tenant,
            "key_id": job.key_id,
            "request_id": job.request_id,
            "correlation_id": job.correlation_id,
        }
    }


def _tell_trigger(told: dict[str, Any] | None) -> None:
    if told is None:
        click.echo("No tenant that has a key has this job, or not any more.", err=True)
        return
    click.echo(
        f"It was submitted at {told['at']} by {told['key_id'] or 'an unknown key'} of "
        f"{told['tenant']}, request {told['request_id']}, correlation {told['correlation_id']}."
    )
