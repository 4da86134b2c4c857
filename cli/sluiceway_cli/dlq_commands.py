"""`sluiceway dlq`: what operators do about jobs that failed for good."""

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click
from sluiceway.domain.job import Job

from sluiceway_cli import console, dlq
from sluiceway_cli.target import Target, find_target, job_row

DEFAULT_LIMIT = 1000


@click.group("dlq")
def group() -> None:
    """Look at dead letters, and redrive, discard or correct their jobs."""


@group.command("list")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=100_000),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Messages to read at most.",
)
@console.stack
@console.as_json
@click.pass_obj
def list_letters(stack: str | None, limit: int, as_json: bool) -> None:  # noqa: FBT001
    """List the jobs with messages in the dead-letter queue, and why they failed.

    A look counts as a receive, and hides the messages from others while it lasts.
    """
    with console.errors_told(as_json=as_json):
        operator = find_target(stack).operator()
        entries, whole = dlq.list_letters(operator, limit=limit)
        unseen = operator.letters.unseen
        if as_json:
            complete = whole and not unseen
            told = {"dead_letters": entries, "complete": complete, "messages_unseen": unseen}
            console.print_json(told)
            return
        for entry in entries:
            click.echo(dead_letter_line(entry))
        if whole:
            _tell_of_unseen(unseen, any_seen=bool(entries))
        else:
            more = f"about {unseen} more" if unseen else "perhaps more"
            click.echo(f"There are {more}; these are the first {limit} messages.", err=True)
        if entries:
            click.echo("This look counts as a receive of each message.", err=True)


@group.command("show")
@click.argument("job_id", callback=console.job_id)
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def show(stack: str | None, job_id: str, tenant: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Print everything that is known of JOB_ID but its input and result."""
    with console.errors_told(as_json=as_json):
        job = _job(find_target(stack), job_id, tenant)
        console.print_row(job_row(job), as_json=as_json)


@group.command("redrive")
@click.argument("job_id", nargs=-1, callback=console.job_id)
@click.option("--all", "everything", is_flag=True, help="Every message of the queue.")
@click.option(
    "--rate",
    type=click.IntRange(min=1, max=500),
    default=dlq.DEFAULT_RATE,
    show_default=True,
    help="Messages a second at most.",
)
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def redrive(
    stack: str | None,
    job_id: tuple[str, ...],
    everything: bool,  # noqa: FBT001
    rate: int,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Give JOB_ID, or with --all every job in the queue, another run with fresh attempts.

    Their messages go back to their lanes. One that can't be helped never blocks the rest, and the
    command may be repeated. It ends with 1 when something has to be.
    """
    if bool(job_id) == everything:
        raise click.UsageError("Give JOB_ID or --all, and not both.")
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        operator = target.operator()
        jobs = {one: target.find_job(one, tenant) for one in job_id}
        # Closed in any case: its look ends here, and not when somebody collects garbage.
        with closing(_redriven(operator, jobs, rate)) as coming:
            outcomes = list(coming) if as_json else _print_outcomes(coming)
        unseen = operator.letters.unseen
        if as_json:
            shown = [outcome.shown() for outcome in outcomes]
            console.print_json({"outcomes": shown, "messages_unseen": unseen})
        else:
            _tell_of_unseen(unseen, any_seen=bool(outcomes), again=True)
        if any(outcome.outcome == "failed" for outcome in outcomes):
            sys.exit(console.EXIT_REFUSED)


@group.command("discard")
@click.argument("job_id", callback=console.job_id)
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def discard(stack: str | None, job_id: str, tenant: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Give up on JOB_ID for good: it ends as failed, and its messages are removed."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        operator = target.operator()
        job, removed = dlq.discard(operator, _job(target, job_id, tenant))
        told = {
            "job_id": job.job_id,
            "tenant": job.tenant,
            "status": job.status.value,
            "error_code": job.error.code if job.error else None,
            "messages_removed": removed,
            "messages_unseen": operator.letters.unseen,
        }
        if as_json:
            console.print_json(told)
        else:
            console.print_fields(told)
            _tell_of_unseen(operator.letters.unseen, again=True)


@group.command("resubmit")
@click.argument("job_id", callback=console.job_id)
@click.option(
    "--input",
    "input_file",
    type=click.File("rb"),
    required=True,
    help="JSON of the corrected input, or - .",
)
@click.option("--locale", help="As in the first submit; the row doesn't keep it.")
@click.option("--safety-profile", help="As in the first submit; the row doesn't keep it.")
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def resubmit(
    stack: str | None,
    /,
    job_id: str,
    input_file: Any,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
    **told: str | None,
) -> None:
    """Submit JOB_ID with a corrected input as a new job, and discard the old one.

    Model, options, lane, metadata and length of the deadline are the old job's.
    """
    with console.errors_told(as_json=as_json):
        corrected = console.json_option("--input", input_file.read())
        target = find_target(stack)
        operator = target.operator()
        made = dlq.resubmit(
            operator,
            target.submitter(),
            _job(target, job_id, tenant),
            corrected=corrected,
            told=told.items(),
        )
        unseen = operator.letters.unseen
        shown = asdict(made) | {"discarded": job_id, "messages_unseen": unseen}
        if as_json:
            console.print_json(shown)
        else:
            console.print_fields(shown)
            _tell_of_unseen(unseen)


def _job(target: Target, job_id: str, tenant: str | None) -> Job:
    job = target.find_job(job_id, tenant)
    if job is None:
        raise click.ClickException(console.no_such_job(job_id, tenant))
    return job


def dead_letter_line(entry: dict[str, Any]) -> str:
    """An entry of the list on a terminal."""
    copies = f"  {entry['copies']} copies" if entry["copies"] > 1 else ""
    if entry["job_id"] is None:
        return (
            f"message {entry['message_id']}  stray: {entry['why_stray']} ({entry['bytes']} bytes)"
        )
    stray = f"  stray: {entry['why_stray']}" if entry["stray"] else ""
    if entry["status"] is None:
        return f"{entry['job_id']}  {entry['tenant']}{copies}{stray}"
    error = f"  {entry['error_code']}: {entry['reason']}" if entry["error_code"] else ""
    return (
        f"{entry['job_id']}  {entry['tenant']}  {entry['status']}  {entry['model']}"
        f"  attempts {entry['attempts']}  {_age(entry['age_s'])}{copies}{stray}{error}"
    )


def _age(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} old"
    return f"{seconds} s old"


def _print_outcomes(coming: Iterable[dlq.Outcome]) -> list[dlq.Outcome]:
    """Each as it comes, and how many of which kind they were."""
    outcomes = []
    for one in coming:
        outcomes.append(one)
        click.echo(f"{one.job_id or f'message {one.message_id}'}  {one.outcome}: {one.reason}")
    if outcomes:
        counts = Counter(one.outcome for one in outcomes)
        click.echo(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), err=True)
    return outcomes


def _redriven(
    operator: dlq.Operator, jobs: Mapping[str, Job | None], rate: int
) -> Generator[dlq.Outcome]:
    """What becomes of these jobs, or without any of every job in the queue."""
    if jobs:
        yield from dlq.redrive_jobs(operator, jobs, rate=rate)
    else:
        yield from dlq.redrive_all(operator, rate=rate)


def _tell_of_unseen(unseen: int, *, any_seen: bool = True, again: bool = False) -> None:
    """An empty look is no empty queue: SQS hides what somebody else received."""
    if unseen:
        if not any_seen:
            click.echo("No dead letter can be seen now.")
        click.echo(
            f"SQS counts {unseen} more: hidden by somebody else's look, or by one that was cut "
            "off. They show again within 5 minutes." + (" Run this again then." if again else ""),
            err=True,
        )
    elif not any_seen:
        click.echo("The dead-letter queue is empty.")
