"""`sluiceway jobs list` and `jobs show`: which jobs there are, and what happened to one."""

import os
import sys
from functools import cache
from typing import Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.domain.errors import SluicewayError
from sluiceway.domain.job import LANES, Job, JobStatus
from sluiceway.usecases import places

from sluiceway_cli import console, listing, pauses, records
from sluiceway_cli.listing import Listed, Wanted
from sluiceway_cli.reasons import Surroundings, why
from sluiceway_cli.target import KEY_VARIABLE, Target, find_target, job_row
from sluiceway_cli.timeline import Sources, Timeline, timeline
from sluiceway_cli.times import age, offset

DEFAULT_LIMIT = 50

since = click.option(
    "--since", help="Only what is younger: 2h, 7d, 2026-01-31 or 2026-01-31T12:00:00Z."
)


# ------------------------------------------------------------------------------------ list


@click.command("list")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([one.value for one in JobStatus]),
    help="Only jobs with this status; may be given several times.",
)
@click.option("--model", help="Only jobs of this model.")
@click.option("--lane", type=click.Choice(LANES), help="Only jobs of this lane.")
@since
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=1000),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Jobs at most.",
)
@console.only_tenant
@console.stack
@console.as_json
@click.pass_obj
def list_jobs(
    stack: str | None,
    statuses: tuple[str, ...],
    model: str | None,
    lane: str | None,
    since: str | None,
    limit: int,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List jobs, newest first: an operator's, of all tenants that have keys, or a partner's own.

    Reads are bounded: when not all jobs could be looked at, it says so.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        now_ms = target.clock.now_ms()
        wanted = Wanted(
            statuses=frozenset(JobStatus(one) for one in statuses),
            model=model,
            lane=lane,
            since_ms=records.since_option(since, now_ms=now_ms),
        )
        listed = _listed(target, wanted, tenant=tenant, limit=limit, stack=stack)
        if as_json:
            console.print_json({"jobs": listed.rows, "complete": listed.complete})
            return
        for row in listed.rows:
            click.echo(_line(row))
        if not listed.rows:
            click.echo("There are no such jobs.")
        if not listed.complete:
            click.echo(
                f"There are more, or not all could be looked at; these are {len(listed.rows)} of "
                "the newest. Narrow it with --tenant or --since, or raise --limit.",
                err=True,
            )


def _listed(
    target: Target, wanted: Wanted, *, tenant: str | None, limit: int, stack: str | None
) -> Listed:
    if not target.can_read_tables:
        api = console.partner_api(stack, tenant)
        return listing.by_api(wanted, limit=limit, api=api, now_ms=target.clock.now_ms())
    tenants = (
        [tenant]
        if tenant is not None
        else sorted({key.tenant for key in target.partner_keys().all()})
    )
    return listing.by_tables(
        tenants, wanted, limit=limit, job_lists=target.job_lists, clock=target.clock
    )


def _line(row: dict[str, Any]) -> str:
    owner = f"{row['tenant']:<12}  " if row["tenant"] is not None else ""
    error = f"  {row['error_code']}" if row["error_code"] else ""
    return (
        f"{row['job_id']}  {owner}{row['status']:<13}  {row['model']:<16}  {row['lane']:<11}  "
        f"{row['created_at']}  {age(row['age_s']):>6}  attempts {row['attempts']}{error}"
    )


# ------------------------------------------------------------------------------------ show


@click.command("show")
@click.argument("job_id", callback=console.job_id)
@click.option("--no-logs", is_flag=True, help="Leave the functions' logs out, which take longest.")
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def show_job(
    stack: str | None,
    job_id: str,
    no_logs: bool,  # noqa: FBT001
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Print what is known of JOB_ID: its row, everything that happened to it, and why.

    That is an operator's view. With a key in SLUICEWAY_API_KEY and without --tenant, or without
    access to the stack, it is the partner's, by the API.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        if not target.can_read_tables or (tenant is None and os.environ.get(KEY_VARIABLE)):
            _as_partner(job_id, stack, tenant, as_json=as_json)
            return
        job = target.find_job(job_id, tenant)
        if job is None:
            raise click.ClickException(console.no_such_job(job_id, tenant))
        now_ms = target.clock.now_ms()
        sources = Sources(
            audit=lambda: target.audit,
            endpoints=lambda: target.registrar.endpoints,
            delivery_log=lambda: target.registrar.delivery_log,
            logs=None if no_logs else lambda: target.logs,
        )
        told = timeline(job, sources, now_ms=now_ms)
        around, unknown = _surroundings(job, target, now_ms)
        reason = why(job, around, now_ms=now_ms)
        row = job_row(job)
        if as_json:
            console.print_json(
                {
                    **row,
                    "job": row,
                    "timeline": [one.shown(job.created_at_epoch_ms) for one in told.entries],
                    "missing": {**told.missing, **unknown},
                    "why": reason.shown(),
                }
            )
            return
        console.print_fields({name: one for name, one in row.items() if name != "last_errors"})
        _print_timeline(told, job)
        for name, because in {**told.missing, **unknown}.items():
            click.echo(f"not in full: {name}: {because}", err=True)
        click.echo(f"\nwhy   {reason.sentence}")
        if reason.runbook is not None:
            click.echo(f"then  {reason.runbook}")


def _as_partner(job_id: str, stack: str | None, tenant: str | None, *, as_json: bool) -> None:
    job = console.partner_api(stack, tenant).job(job_id)
    console.print_job(job, as_json=as_json)
    if job["status"] in {"failed", "dead_lettered", "cancelled"}:
        sys.exit(console.EXIT_JOB_FAILED)


def _print_timeline(told: Timeline, job: Job) -> None:
    click.echo("")
    sources = max((len(one.source) for one in told.entries), default=0)
    for one in told.entries:
        shown = one.shown(job.created_at_epoch_ms)
        mark = "~" if one.planned else " "
        detail = f"  {one.detail}" if one.detail else ""
        click.echo(
            f"{shown['at']} {mark}{offset(shown['offset_ms']):>9}  {one.source:<{sources}}  "
            f"{one.event}{detail}"
        )


def _surroundings(job: Job, target: Target, now_ms: int) -> tuple[Surroundings, dict[str, str]]:
    """What an open job may wait for, and what of it can't be read."""
    around: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    if not job.open:
        return Surroundings(), unknown
    catalogue = cache(target.catalogue)

    def tenant() -> dict[str, Any]:
        return {"tenant_paused": job.tenant in target.state.read().paused_tenants}

    def model() -> dict[str, Any]:
        found = catalogue().models.get(job.model)
        if found is None:
            return {"model_gone": True}
        return {"gate": target.gates.look(pauses.gate_of(found)[0], now_ms=now_ms)}

    def lane() -> dict[str, Any]:
        return {"lane_stopped": target.lane(job.lane).state() != "Enabled"}

    def place() -> dict[str, Any]:
        picture = target.backlogs.read().at(now_ms)
        found = places.place_of(job, picture, catalogue(), now_ms)
        if found is None or not picture.groups:
            return {}
        return {"position": found.position, "eta_ms": found.eta_ms}

    for look in (tenant, model, lane, place):
        try:
            around |= look()
        except (ClientError, BotoCoreError, SluicewayError, ValueError, OSError) as error:
            unknown[f"what it waits for ({look.__name__})"] = str(error)
    return Surroundings(**around), unknown
