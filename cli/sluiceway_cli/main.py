"""`sluiceway`: the command line for partners, operators and developers."""

import contextlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from sluiceway.domain.errors import SluicewayError
from sluiceway.domain.job import LANES

from sluiceway_cli import (
    audit_commands,
    cache_commands,
    catalogue_commands,
    console,
    cost_commands,
    dlq_commands,
    flags_commands,
    job_commands,
    key_commands,
    moves,
    pause_commands,
    progress,
    status_commands,
    webhook_commands,
)
from sluiceway_cli.api import Api
from sluiceway_cli.target import Target, find_target

if TYPE_CHECKING:
    from sluiceway_local.watch import Told

SHOWN_FILES = 3
"""Of those that a deployment follows from."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@console.stack
def cli() -> None:
    """Sluiceway: an asynchronous gateway for expensive, rate-limited AI models.

    Commands talk to the local stack of this folder (.sluiceway/local.json), else to --stack in the
    AWS environment. Partner commands take their key from SLUICEWAY_API_KEY.
    """


# ------------------------------------------------------------------------------------ partners


@cli.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--input", "input_file", type=click.File("rb"), help="JSON of the input, or - .")
@click.option("--options", help="Options for the vendor, as JSON: '{\"top_p\": 1}'.")
@click.option("--priority", type=click.Choice(["interactive", "batch"]))
@click.option("--locale")
@click.option("--safety-profile")
@click.option("--deadline-s", type=int)
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait at most.")
@click.option("--dry-run", is_flag=True, help="Only say what the submit would get.")
@console.tenant
@console.stack
@console.as_json
@click.pass_obj
def submit(
    stack: str | None,
    /,
    model: str,
    prompt: str | None,
    input_file: Any,
    options: str | None,
    wait: bool,  # noqa: FBT001 - click passes options by name
    timeout: float,
    dry_run: bool,  # noqa: FBT001
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
    **optional: Any,
) -> None:
    """Submit PROMPT to MODEL and print the job.

    PROMPT is text; --input takes {"messages": [...]} instead; without either, standard input is
    the text.
    """
    if dry_run and wait:
        raise click.UsageError("--dry-run makes no job to --wait for.")
    with console.errors_told(as_json=as_json):
        api = console.partner_api(stack, tenant)
        body: dict[str, Any] = {"model": model, "input": _input(prompt, input_file)}
        if options is not None:
            body["options"] = console.json_option("--options", options)
        body |= {name: value for name, value in optional.items() if value is not None}
        if dry_run:
            told = api.dry_run(body)
            console.print_json(told) if as_json else console.print_fields(told)
            return
        job = api.submit(body)
        if wait:
            job = _wait(api, job, timeout, as_json=as_json)
        _print_end(job, as_json=as_json)


@cli.command("wait")
@click.argument("job_id", callback=console.job_id)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait at most.")
@console.tenant
@console.stack
@console.as_json
@click.pass_obj
def wait_for_job(
    stack: str | None,
    job_id: str,
    timeout: float,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Wait until JOB_ID has ended, and print it."""
    with console.errors_told(as_json=as_json):
        api = console.partner_api(stack, tenant)
        job = _wait(api, api.job(job_id), timeout, as_json=as_json)
        _print_end(job, as_json=as_json)


# ------------------------------------------------------------------------------------ jobs


@cli.group()
def jobs() -> None:
    """Look at jobs, cancel them, and move them to another lane."""


jobs.add_command(job_commands.list_jobs)
jobs.add_command(job_commands.show_job)


@jobs.command("cancel")
@click.argument("job_id", callback=console.job_id)
@console.tenant
@console.stack
@console.as_json
@click.pass_obj
def cancel_job(stack: str | None, job_id: str, tenant: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Cancel JOB_ID, as its partner; again changes nothing. A call that runs is aborted."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        api = console.partner_api(stack, tenant)
        # A partner with the API's address alone writes no records; the job's row tells of them.
        cancels = target.can_read_tables and _open(target, job_id, tenant)
        job = api.cancel(job_id)
        if cancels:
            target.record("job.cancel", f"job:{job_id}")
        console.print_job(job, as_json=as_json)


@jobs.command("move")
@click.argument("job_id", nargs=-1, required=True, callback=console.job_id)
@click.option("--lane", type=click.Choice(LANES), required=True)
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def move_jobs(
    stack: str | None,
    job_id: tuple[str, ...],
    lane: str,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Move JOB_ID, as an operator, to another lane while it is open; again changes nothing.

    One that can't be moved never blocks the rest. It ends with 1 then.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        queue = target.queue  # made before a write that is followed by a send
        clock = target.aws_clock
        outcomes = []
        for one in dict.fromkeys(job_id):
            job = target.find_job(one, tenant)
            if job is None:
                outcome = moves.Outcome(one, "refused", console.no_such_job(one, tenant))
            else:
                outcome = moves.move(job, lane, jobs=target.jobs, queue=queue, clock=clock)
            if outcome.outcome == "moved":
                target.record("job.move", f"job:{one}")
            if not as_json:
                click.echo(f"{one}  {outcome.outcome}: {outcome.reason}")
            outcomes.append(outcome)
        if as_json:
            console.print_json({"outcomes": [asdict(outcome) for outcome in outcomes]})
        if any(outcome.outcome == "refused" for outcome in outcomes):
            sys.exit(console.EXIT_REFUSED)


def _open(target: Target, job_id: str, tenant: str | None) -> bool:
    """Whether the job may still be cancelled, as far as we may know."""
    with contextlib.suppress(ClientError, BotoCoreError, SluicewayError):
        job = target.find_job(job_id, tenant)
        return job is None or job.open
    return True


cli.add_command(dlq_commands.group)
cli.add_command(cache_commands.group)
cli.add_command(catalogue_commands.group)
cli.add_command(flags_commands.group)
cli.add_command(key_commands.group)
cli.add_command(audit_commands.audit)
cli.add_command(pause_commands.pause)
cli.add_command(pause_commands.resume)
cli.add_command(webhook_commands.group)
cli.add_command(status_commands.status)
cli.add_command(cost_commands.cost)


# ------------------------------------------------------------------------------------ local


@cli.group()
def local() -> None:
    """Run the whole stack on this machine: no Docker, no account."""


@local.command("up")
@click.option("--detach", is_flag=True, help="Return when it is up; `local down` stops it.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=4566,
    show_default=True,
    help="Of the emulator, on loopback.",
)
@click.option("--vendor-url", help="Call this vendor instead of the simulator.")
@click.option(
    "--catalogue",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file; else what was pushed stays.",
)
@click.option("--built", is_flag=True, help="Deploy what `make build` made, as on AWS.")
@click.option("--watch", is_flag=True, help="Stay, and deploy again what changes in the sources.")
@console.as_json
def local_up(
    detach: bool,  # noqa: FBT001
    port: int,
    vendor_url: str | None,
    catalogue: Path | None,
    built: bool,  # noqa: FBT001
    watch: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Start the emulator and the simulator, and deploy. Again: deploy anew, keep the data."""
    from sluiceway_local import stack as local_stack  # noqa: PLC0415 - partners don't have it
    from sluiceway_local.watch import Files  # noqa: PLC0415

    if watch and detach:
        raise click.UsageError("--watch stays in the foreground: leave out --detach.")
    if watch and built:
        raise click.UsageError("--watch deploys the sources, not a build: leave out --built.")
    terminal = Console(stderr=True)
    with console.errors_told(as_json=as_json):
        source = local_stack.source(built=built)
        files = Files(source.root.absolute(), catalogue and catalogue.absolute())
        deployed = files()  # what is saved from here on counts, while `up` runs too
        stack = local_stack.up(
            source,
            port=port,
            vendor_url=vendor_url,
            catalogue=catalogue,
            say=lambda text: None if as_json else terminal.print(f"[dim]·[/] {text}"),
            python=local_stack.interpreter(built=built, say=terminal.print),
        )
        if as_json:
            click.echo(json.dumps(local_stack.status()))
        else:
            click.echo(f"API     {stack.api_url}")
            click.echo(f"AWS     {stack.endpoint_url}")
            click.echo(f"vendor  {stack.vendor_url}")
            click.echo("keys    in .sluiceway/local.json: " + ", ".join(stack.partners))
            click.echo('Try     sluiceway submit demo-chat "Hello" --tenant acme --wait')
        if detach:
            return
        if not as_json:
            click.echo("Ctrl-C stops it." + (" Saves are deployed." if watch else ""))
        try:
            if watch:
                local_stack.watch(
                    source,
                    files,
                    deployed=deployed,
                    tell=_tell_as_json if as_json else _tell,
                    vendor_url=vendor_url,
                )
            else:
                local_stack.stay(source)
        except KeyboardInterrupt:
            local_stack.down(wait_s=local_stack.OTHERS_S)  # a deployment may be ending
        else:
            click.echo("The emulator has ended.", err=True)
            local_stack.clear()


def _tell_as_json(told: "Told") -> None:
    outcome = asdict(told.outcome)
    del outcome["begun"]  # for us alone
    console.print_json({"changed": told.changed, **outcome, "took_s": told.took_s})


def _tell(told: "Told") -> None:
    """A line for each deployment, or for each reason why there is none."""
    outcome = told.outcome
    changed = ", ".join(told.changed[:SHOWN_FILES])
    if len(told.changed) > SHOWN_FILES:
        changed += f" and {len(told.changed) - SHOWN_FILES} more"
    when = time.strftime("%H:%M:%S")
    if outcome.faults:
        click.echo(f"{when}  {changed}: not deployed")
        for fault in outcome.faults:
            click.echo(f"          {fault}")
        return
    if not outcome.deployed:
        click.echo(f"{when}  {changed}: nothing to deploy, no function of the template has it")
        return
    deployed = ", ".join(outcome.deployed)
    click.echo(f"{when}  {changed}: deployed {deployed} in {told.took_s:.1f} s")
    if outcome.moved_to:
        click.echo(f"          the API is now {outcome.moved_to}")


@local.command("invoke")
@click.argument("function")
@click.option("--event", help="JSON file, or - ; else events/FUNCTION.json.")
@click.option("--poll", is_flag=True, help="Take the messages of its queues, until Ctrl-C.")
def local_invoke(function: str, event: str | None, poll: bool) -> None:  # noqa: FBT001
    """Run FUNCTION's handler in this process, against the local stack that runs here.

    FUNCTION is a folder of functions/. Breakpoints in it, and in the library, are met. Prints the
    answer; logs go to the standard error. Ends with 1 when the handler raises.
    """
    from sluiceway_local import invoke  # noqa: PLC0415
    from sluiceway_local import stack as local_stack  # noqa: PLC0415

    if poll and event is not None:
        raise click.UsageError("--poll takes its events from queues: leave out --event.")
    with console.errors_told(as_json=False):
        found = invoke.find(function, local_stack.source())
        text = sys.stdin.read() if event == "-" else None
        given = None if poll else invoke.event(found, event, text)
    answers = sys.stdout
    # On a terminal all is shown at one place, and a debugger's prompt can be edited only if the
    # standard output is what it was.
    apart = contextlib.nullcontext() if answers.isatty() else contextlib.redirect_stdout(sys.stderr)
    with apart:  # what the handler raises goes on as it is: debuggers stop there
        handler = invoke.load(found)

        def answered(event: Any, context: Any) -> Any:
            answer = handler(event, context)
            click.echo(json.dumps(answer, indent=2, ensure_ascii=False), file=answers)
            return answer

        if not poll:
            answered(given, found.context())
            return
        with contextlib.ExitStack() as ours:
            with console.errors_told(as_json=False):
                pollers = ours.enter_context(invoke.pollers(found, answered))
            queues = " and ".join(poller.queue_url.rsplit("/", 1)[-1] for poller in pollers)
            click.echo(f"{function} polls {queues}; Ctrl-C ends it", err=True)
            invoke.poll(pollers)


@local.command("down")
@console.as_json
def local_down(as_json: bool) -> None:  # noqa: FBT001
    """Stop what `local up` started, and nothing else."""
    from sluiceway_local import stack as local_stack  # noqa: PLC0415

    stopped = local_stack.down()
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@local.command("status")
@console.as_json
def local_status(as_json: bool) -> None:  # noqa: FBT001
    """Say what runs here; exit 1 when nothing does."""
    from sluiceway_local import stack as local_stack  # noqa: PLC0415

    told = local_stack.status()
    if as_json:
        click.echo(json.dumps(told))
    elif told["running"]:
        processes = [f"{name}={pid}" for name, pid in told["processes"].items()]
        console.print_fields(told | {"processes": processes})
    else:
        click.echo("not running; start it with: sluiceway local up")
    sys.exit(0 if told["running"] else 1)


@cli.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of the emulator; a free one by default.",
)
def demo(port: int) -> None:
    """Show the main job on a local stack of its own, step by step, and stop it again."""
    from sluiceway_local.demo import run_demo  # noqa: PLC0415

    with console.errors_told(as_json=False):
        run_demo(Console(highlight=False), port=port)


# ------------------------------------------------------------------------------------ pieces


def _input(prompt: str | None, file: Any) -> Any:
    if prompt is not None and file is not None:
        raise click.UsageError("Give PROMPT or --input, not both.")
    if file is not None:
        return console.json_option("--input", file.read())
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        raise click.UsageError("Give PROMPT, --input, or text on standard input.")
    return sys.stdin.read()


def _wait(api: Api, job: dict[str, Any], timeout_s: float, *, as_json: bool) -> dict[str, Any]:
    """Follows the job, on a terminal with a line that moves; elsewhere a line for each change."""
    ends = time.monotonic() + timeout_s
    with progress.display(Console(stderr=True), quiet=as_json) as show:
        show(job)
        while job["status"] in progress.OPEN:
            if time.monotonic() >= ends:
                click.echo(f"still {job['status']} after {timeout_s:g} s: {job['id']}", err=True)
                sys.exit(console.EXIT_TIMEOUT)
            time.sleep(min(api.retry_after_s, max(0.0, ends - time.monotonic())))
            job = api.job(job["id"])
            show(job)
    return job


def _print_end(job: dict[str, Any], *, as_json: bool) -> None:
    """Prints the job; the exit code says whether it came to nothing."""
    console.print_job(job, as_json=as_json)
    if job["status"] in {"failed", "dead_lettered", "cancelled"}:
        sys.exit(console.EXIT_JOB_FAILED)


def main() -> None:
    """Entry point."""
    cli()
