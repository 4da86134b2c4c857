"""What all commands share: their common options, how they print, and how they fail."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

import click
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError
from sluiceway.domain import ids
from sluiceway.domain.errors import SluicewayError

from sluiceway_cli import progress
from sluiceway_cli.api import Api, ApiError, error_text
from sluiceway_cli.target import LOCAL_FILE, Target, find_target

EXIT_REFUSED = 1
EXIT_JOB_FAILED = 2
EXIT_TIMEOUT = 3

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def use_stack(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """`--stack` may stand before the command or behind it."""
    if name is not None:
        context.obj = name


def job_id(_: click.Context, __: click.Parameter, given: Any) -> Any:
    """The id or ids that were given. Raises click.BadParameter for what can't be one."""
    for one in (given,) if isinstance(given, str) else given:
        if not ids.well_formed(one):
            raise click.BadParameter(f"{one[:64]!r} is no job's id")
    return given


def given_tenant(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """A tenant's name, or none; an empty one is nobody's. Raises click.BadParameter."""
    if name is not None and not name.strip():
        raise click.BadParameter("a tenant's name isn't empty")
    return name


stack = click.option(
    "--stack",
    callback=use_stack,
    expose_value=False,
    help="Name of a stack on AWS; else the local one of this folder.",
)
tenant = click.option(
    "--tenant", callback=given_tenant, help="Local stack: use this partner's key."
)
owner = click.option(
    "--tenant",
    callback=given_tenant,
    help="Whose job it is; without it, tenants with keys are tried.",
)
only_tenant = click.option("--tenant", callback=given_tenant, help="Only this tenant's.")


def partner_api(stack_name: str | None, tenant_name: str | None) -> Api:
    """The API with a partner's key: of the environment, or of a local partner."""
    target = find_target(stack_name)
    return Api(target.api_url, target.api_key(tenant_name))


def no_such_job(job_id: str, tenant: str | None) -> str:
    """That nobody has it, as far as was looked."""
    if job_id.startswith(ids.HIT_PREFIX):
        return (
            f"{job_id} is the id of an answer from the cache, which has no job: "
            f"sluiceway cache show {job_id}"
        )
    whose = tenant or "a tenant that has a key (another is named by --tenant)"
    return f"there is no job {job_id} of {whose}"


def require_model(name: str, target: Target) -> None:
    """A slip of the pen would be done, and do nothing. Raises click.ClickException."""
    known = sorted(target.catalogue().models)
    if name in known:
        return
    near = get_close_matches(name, known)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    raise click.ClickException(
        f"the catalogue has no model {name!r}; {hint if known else 'it has none'}"
    )


def warn_of_stranger(tenant: str, target: Target) -> None:
    """Says so when no key is of this tenant; it may be done all the same."""
    if not any(key.tenant == tenant for key in target.partner_keys().all()):
        click.echo("No API key is of this tenant: look twice at the name.", err=True)


def json_option(name: str, text: str | bytes) -> Any:
    """The value of an option that is JSON. Raises click.UsageError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{name} is not JSON: {error}") from error


def print_json(value: Any) -> None:
    """For programs: one line, in UTF-8."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_job(job: Mapping[str, Any], *, as_json: bool) -> None:
    """A job as the API tells it."""
    if as_json:
        print_json(job)
    else:
        for line in progress.lines(dict(job)):
            click.echo(line)


def print_row(row: dict[str, Any], *, as_json: bool) -> None:
    """A job as its row tells it, with a line for each of its last errors."""
    if as_json:
        print_json(row)
        return
    print_fields({name: value for name, value in row.items() if name != "last_errors"})
    for error in row["last_errors"]:
        status = f", HTTP {error['http_status']}" if error["http_status"] else ""
        click.echo(
            f"attempt {error['attempt']}, {error['at']}, {error['code']}: {error['message']} "
            f"({error['error_class']}{status})"
        )


def print_fields(fields: dict[str, Any]) -> None:
    """Names and values in two columns; what is None is left out."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if isinstance(value, list):
            value = " ".join(map(str, value))  # noqa: PLW2901
        elif isinstance(value, dict):
            value = " ".join(f"{key}={one}" for key, one in value.items())  # noqa: PLW2901
        elif isinstance(value, bool):
            value = "yes" if value else "no"  # noqa: PLW2901
        if value is not None and value != "":
            click.echo(f"{name:<{width}}  {value}")


@contextlib.contextmanager
def errors_told(*, as_json: bool) -> Iterator[None]:
    """What went wrong, in one line or as JSON, and never as a traceback."""
    try:
        yield
    except (click.Abort, click.exceptions.Exit, click.UsageError):
        raise  # a no or Ctrl-C, an end in order, and a command line that is wrong
    except ApiError as error:
        if not as_json:
            raise click.ClickException(error_text(error)) from error
        _end(error.problem, EXIT_REFUSED)
    except (
        *(click.ClickException, ClientError, BotoCoreError),
        *(SluicewayError, RuntimeError, ValueError, OSError),
    ) as error:
        told = error if isinstance(error, click.ClickException) else _told(error)
        if not as_json:
            raise told from error
        _end({"detail": told.format_message()}, told.exit_code)


def _told(error: Exception) -> click.ClickException:
    if not isinstance(error, ClientError | BotoCoreError):
        return click.ClickException(str(error))
    hint = ""
    if isinstance(error, EndpointConnectionError) and LOCAL_FILE.exists():
        hint = " (does it run? sluiceway local status)"
    return click.ClickException(f"AWS or the local stack: {error}{hint}")


def _end(problem: Mapping[str, Any], code: int) -> NoReturn:
    """For programs: what is wrong is all that is printed."""
    print_json({"error": problem})
    sys.exit(code)
