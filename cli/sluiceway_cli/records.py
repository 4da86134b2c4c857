"""Audit records and notices of what operators do on the command line."""

import getpass
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click
from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.adapters.dynamodb_audit import KEPT_S
from sluiceway.domain.errors import SluicewayError
from sluiceway.domain.notice import Notice
from sluiceway.domain.times import rfc3339
from sluiceway.ports import AuditLog, AuditRecord, Clock, EventBus

from sluiceway_cli import times

CLOCKS_DIFFER_MS = 15 * 60_000
"""AWS refuses requests of a clock that is further off, so no record is from later than that."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes a record of what was done, after it was done."""

    log: AuditLog
    clock: Clock
    actor: Callable[[], str]
    """Who runs the command; asked when there is something to record."""

    def __call__(self, action: str, subject: str, request_id: str = "") -> None:
        """A record that can't be written is told, and undoes nothing: the command goes on."""
        try:
            self.log.add(
                AuditRecord(
                    at_epoch_ms=self.clock.now_ms(),
                    actor=self.actor(),
                    action=action,
                    subject=subject,
                    request_id=request_id or new_request_id(),
                )
            )
        except (BotoCoreError, ClientError, SluicewayError) as error:
            click.echo(f"Not on record: {action} of {subject} was done, but {error}", err=True)


@dataclass(frozen=True, slots=True)
class Notifier:
    """Tells the bus of what was switched, after it was."""

    bus: EventBus
    clock: Clock
    actor: Callable[[], str]

    def __call__(self, detail_type: str, subject: str, **facts: str | int | bool) -> None:
        """A notice that isn't taken is told, and undoes nothing: the command goes on."""
        notice = Notice(detail_type, self.clock.now_ms(), subject, self.actor(), facts)
        if self.bus.put([notice]):
            click.echo(
                f"Nobody was notified: {detail_type} of {subject} was done, but the event bus "
                "doesn't take the notice",
                err=True,
            )


def new_request_id() -> str:
    """Of one run of a command, as records have it."""
    return f"cli-{uuid.uuid4()}"


def local_actor() -> str:
    """`user:<login>`."""
    try:
        return f"user:{getpass.getuser()}"
    except (KeyError, OSError):  # a container without an account
        return "user:unknown"


def listed(
    log: AuditLog, *, since_ms: int, now_ms: int, limit: int, matching: Mapping[str, str]
) -> tuple[list[dict[str, str]], bool]:
    """The records since then for printing, newest first; False: there are more than `limit`."""
    found = log.list(
        since_ms=max(since_ms, now_ms - KEPT_S * 1000),  # earlier ones were deleted
        until_ms=now_ms + CLOCKS_DIFFER_MS,
        limit=limit + 1,
        matching=matching,
    )
    return [_shown(record) for record in found[:limit]], len(found) <= limit


def _shown(record: AuditRecord) -> dict[str, str]:
    return {
        "at": rfc3339(record.at_epoch_ms) or "",
        "actor": record.actor,
        "action": record.action,
        "subject": record.subject,
        "request_id": record.request_id,
    }


def since_ms(text: str, *, now_ms: int) -> int:
    """Epoch milliseconds of `7d` or `12h` ago, `2026-01-31` or `2026-01-31T12:00:00Z`.

    Raises ValueError.
    """
    try:
        return now_ms - times.duration_s(text) * 1000
    except ValueError:
        return times.moment_ms(text)


def since_option(text: str | None, *, now_ms: int) -> int:
    """What `--since` says; 0 without it. Raises click.BadParameter."""
    try:
        return 0 if text is None else since_ms(text, now_ms=now_ms)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a time nor a duration like 7d or 12h", param_hint="--since"
        ) from None
