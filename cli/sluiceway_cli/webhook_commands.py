"""`sluiceway webhooks`: a tenant's webhook endpoints, for operators who act in its place."""

import re
from typing import Any

import click
from sluiceway.domain.endpoint import DEFAULT_OVERLAP_S, EVENT_TYPES, MAX_OVERLAP_S, removed
from sluiceway.domain.errors import ValidationFailedError
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.domain.webhook import is_delivery_id
from sluiceway.domain.webhook_request import parse_webhook
from sluiceway.http import delivery_body, webhook_body
from sluiceway.usecases.list_jobs import DEFAULT_LIMIT, MAX_LIMIT
from sluiceway.usecases.manage_webhooks import (
    list_deliveries,
    queue_test,
    redeliver_webhook,
    register_webhook,
    rotate_webhook,
)

from sluiceway_cli import console, records
from sluiceway_cli.target import Target, find_target


@click.group("webhooks")
def group() -> None:
    """Manage a tenant's webhook endpoints, and look at what became of its webhooks."""


def _tenant(_: click.Context, __: click.Parameter, given: str) -> str:
    if not re.fullmatch(NAME_PATTERN, given):
        raise click.BadParameter(f"{given[:64]!r} can't name a tenant")
    return given


def _delivery(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is not None and not is_delivery_id(given):
        raise click.BadParameter(f"{given[:64]!r} is no delivery's id")
    return given


tenant_of = click.option("--tenant", callback=_tenant, required=True, help="Whose it is.")
webhook = click.argument("webhook_id")


@group.command("list")
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def list_webhooks(stack: str | None, tenant: str, as_json: bool) -> None:  # noqa: FBT001
    """List the endpoints: where, what for, and whether they are told anything."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        found = [webhook_body(one) for one in target.registrar.endpoints.read(tenant)]
        if as_json:
            console.print_json({"webhooks": found})
            return
        for one in found:
            what = " ".join(one["events"]) if len(one["events"]) < len(EVENT_TYPES) else "all"
            where = one["url"] or "the addresses that come with jobs"
            click.echo(f"{one['id']:<30}  {one['status']:<8}  {where}  {what}")


@group.command("create")
@click.argument("url")
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(EVENT_TYPES),
    help="What it is told; may be given several times. Everything by default.",
)
@click.option("--description", default="")
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def create(
    stack: str | None,
    url: str,
    events: tuple[str, ...],
    description: str,
    tenant: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Register URL. Its secret is shown once; `rotate` makes another."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        body = {"url": url, "events": [*(events or EVENT_TYPES)], "description": description}
        try:
            wanted = parse_webhook(body, local=target.endpoint_url is not None)
        except ValidationFailedError as error:
            faults = "; ".join(f"{one['field']}: {one['message']}" for one in error.errors)
            raise click.ClickException(faults) from None
        made, secret = register_webhook(
            tenant,
            wanted.url,
            tuple(wanted.events),
            wanted.description,
            registrar=target.registrar,
        )
        _record(target, "webhook.create", tenant, made.endpoint_id)
        _print_with_secret(webhook_body(made, secret), as_json=as_json)


@group.command("delete")
@webhook
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def delete(stack: str | None, webhook_id: str, tenant: str, as_json: bool) -> None:  # noqa: FBT001
    """Take WEBHOOK_ID away. What is queued for it is not sent any more."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        target.registrar.endpoints.change(tenant, lambda before: removed(before, webhook_id))
        _record(target, "webhook.delete", tenant, webhook_id)
        if as_json:
            console.print_json({"id": webhook_id, "deleted": True})
        else:
            click.echo(f"deleted: {webhook_id}")


@group.command("rotate")
@webhook
@click.option(
    "--overlap-s",
    type=click.IntRange(0, MAX_OVERLAP_S),
    default=DEFAULT_OVERLAP_S,
    show_default=True,
    help="Seconds that the old secret signs, too.",
)
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def rotate(
    stack: str | None,
    webhook_id: str,
    overlap_s: int,
    tenant: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Make a new secret of WEBHOOK_ID, or of `callbacks`. It is shown once."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        endpoint, secret = rotate_webhook(tenant, webhook_id, overlap_s, registrar=target.registrar)
        _record(target, "webhook.rotate", tenant, webhook_id)
        _print_with_secret(webhook_body(endpoint, secret), as_json=as_json)


@group.command("test")
@webhook
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def send_test(stack: str | None, webhook_id: str, tenant: str, as_json: bool) -> None:  # noqa: FBT001
    """Send WEBHOOK_ID an event that is about no job. A disabled one that takes it is enabled."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        queued = queue_test(
            tenant, webhook_id, records.new_request_id(), registrar=target.registrar
        )
        _record(target, "webhook.test", tenant, webhook_id)
        _print(delivery_body(queued), as_json=as_json)


@group.command("deliveries")
@webhook
@click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True
)
@click.option("--after", callback=_delivery, help="Only those older than this delivery.")
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def show_deliveries(
    stack: str | None,
    webhook_id: str,
    limit: int,
    after: str | None,
    tenant: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List what became of the webhooks to WEBHOOK_ID, or to `callbacks`, newest first."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        found, has_more = list_deliveries(
            tenant, webhook_id, limit=limit, before=after, registrar=target.registrar
        )
        listed = [delivery_body(one) for one in found]
        if as_json:
            console.print_json({"deliveries": listed, "has_more": has_more})
            return
        if not listed:
            click.echo("There are no deliveries.")
        for one in listed:
            told = one["http_status"] or ""
            click.echo(
                f"{one['id']}  {one['created_at']}  {one['type']:<17}  {one['status']:<9}  "
                f"{one['attempts']} attempts  {told} {one['error'] or ''}".rstrip()
            )
        if has_more:
            click.echo(f"There are more: --after {listed[-1]['id']}", err=True)


@group.command("redeliver")
@webhook
@click.argument("delivery_id", callback=_delivery)
@tenant_of
@console.stack
@console.as_json
@click.pass_obj
def redeliver(
    stack: str | None,
    webhook_id: str,
    delivery_id: str,
    tenant: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Send the webhook DELIVERY_ID to WEBHOOK_ID, or to `callbacks`, again."""
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        queued = redeliver_webhook(tenant, webhook_id, delivery_id, registrar=target.registrar)
        _record(target, "webhook.redeliver", tenant, webhook_id)
        _print(delivery_body(queued), as_json=as_json)


def _record(target: Target, action: str, tenant: str, webhook_id: str) -> None:
    target.record(action, f"webhook:{tenant}:{webhook_id}")


def _print(body: dict[str, Any], *, as_json: bool) -> None:
    console.print_json(body) if as_json else console.print_fields(body)


def _print_with_secret(body: dict[str, Any], *, as_json: bool) -> None:
    _print(body, as_json=as_json)
    if not as_json:
        click.echo("Keep the secret now: it is not shown again.", err=True)
