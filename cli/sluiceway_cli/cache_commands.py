"""`sluiceway cache`: what is cached under a key, and making it invalid."""

import re
import sys
from typing import Any

import click
from sluiceway.domain import ids
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.ids import HIT_PREFIX, NAME_PATTERN
from sluiceway.domain.keys import CACHE_KEY_PATTERN
from sluiceway.domain.times import rfc3339
from sluiceway.http import invalidated_reply
from sluiceway.ports import PayloadStore, ServiceState
from sluiceway.usecases.invalidate_cache import Invalidation, invalidate_cache

from sluiceway_cli import console, records
from sluiceway_cli.target import Target, find_target

EFFECTIVE_WITHIN_S = 5
"""Every process reads an entry anew, and the epochs when its copy is so old."""

CLOCKS_DIFFER_MS = 5_000
"""An invalidation has its time of this machine: with a clock that is further off it would spare
answers from before it, or refuse some from after it."""


@click.group("cache")
def group() -> None:
    """Look at a cached result, or make cached results invalid."""


# ------------------------------------------------------------------------------------ show


def _key_or_job(_: click.Context, __: click.Parameter, given: str) -> str:
    """A cache key, also out of a hit's id, or a job's id."""
    key = given.removeprefix(HIT_PREFIX)
    if _is_key(key):
        return key
    if given.startswith(ids.PREFIX) and ids.well_formed(given):
        return given
    raise click.BadParameter(f"{given[:64]!r} is neither a cache key nor the id of a job or hit")


def _is_key(text: str) -> bool:
    return re.fullmatch(CACHE_KEY_PATTERN, text) is not None


@group.command("show")
@click.argument("key", callback=_key_or_job, metavar="KEY|JOB_ID")
@console.owner
@console.stack
@console.as_json
@click.pass_obj
def show(stack: str | None, key: str, tenant: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Print what is known of the entry of KEY or of the job JOB_ID, but never its text.

    KEY is a cache key (c1_...) or the id of a hit (hit_...). Ends with 1 when there is no entry.
    """
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        told = entry_row(_key_of(target, key, tenant), target)
        if as_json:
            console.print_json(told)
        else:
            console.print_fields(told)
            if refresh := told.get("refresh_job_id"):
                owner = ids.REFRESH_PREFIX + told["cache_key"]
                click.echo(f"Its refresh:  sluiceway jobs show {refresh} --tenant '{owner}'")
            if told["state"] == "none":
                click.echo("There is no entry.")
        if told["state"] != "entry":
            sys.exit(console.EXIT_REFUSED)


def _key_of(target: Target, given: str, tenant: str | None) -> str:
    if _is_key(given):
        return given
    job = target.find_job(given, tenant)
    if job is None:
        raise click.ClickException(console.no_such_job(given, tenant))
    return job.cache_key


def entry_row(cache_key: str, target: Target) -> dict[str, Any]:
    """What operators read of an entry: names, times and numbers.

    `state`: `entry`, `invalidated`, or `none` when there is nothing under the key.
    """
    found = target.reachable_cache.look(cache_key)
    entry, at_ms = found.entry, found.invalidated_at_epoch_ms
    if entry is None:
        return {
            "cache_key": cache_key,
            "state": "none" if at_ms is None else "invalidated",
            "invalidated_at": rfc3339(at_ms),
            "invalidated_by": None if at_ms is None else f"key:{cache_key}",
        }
    now_ms = target.clock.now_ms()
    by, epoch = _raised_epoch(entry, target.state.read())
    size, where = _kept(entry, target.payloads)
    return {
        "cache_key": cache_key,
        "state": "invalidated" if by else "entry",
        "invalidated_at": rfc3339(epoch if by else None),
        "invalidated_by": by,
        "model": entry.model,
        "scope": entry.scope,
        "tenant": entry.tenant,
        "freshness": entry.freshness(now_ms).value,
        "asked_at": rfc3339(entry.asked_at_epoch_ms),
        "stored_at": rfc3339(entry.stored_at_epoch_ms),
        "age_s": entry.age_s(now_ms),
        "soft_expires_at": rfc3339(entry.soft_expires_at_epoch_ms),
        "hard_expires_at": rfc3339(entry.hard_expires_at_epoch_ms),
        "kept_until": rfc3339(entry.kept_until_epoch_ms),
        "size_bytes": size,
        "kept_in": where,
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
        "cost_nanos": entry.cost_nanos,
        "vendor_request_id": entry.vendor_request_id,
        "refresh_queued_until": _ahead(entry.refresh_until_epoch_ms, now_ms),
        "refresh_cools_down_until": _ahead(entry.refresh_after_epoch_ms, now_ms),
        "refresh_job_id": entry.refresh_job_id,
        "refresh_failures": entry.refresh_failures,
        "refresh_error": entry.refresh_error,
    }


def _raised_epoch(entry: CacheEntry, known: ServiceState) -> tuple[str | None, int]:
    """The model or tenant whose invalidation the entry doesn't outlive, and when that was.

    Its owner's invalidation leaves a shared entry to the other tenants.
    """
    subjects = [f"model:{entry.model}"]
    if entry.scope == "tenant":
        subjects.append(f"tenant:{entry.tenant}")
    epoch, by = max((known.epoch(subject), subject) for subject in subjects)
    return (None, 0) if entry.answers(asked_after_ms=epoch) else (by, epoch)


def _kept(entry: CacheEntry, payloads: PayloadStore) -> tuple[int | None, str]:
    """The compressed result's bytes, and where they are."""
    if entry.result.ref is None:
        return len(entry.result.inline or b""), "row"
    try:
        return payloads.size(entry.result.ref), f"object {entry.result.ref}"
    except KeyError:
        return None, f"object {entry.result.ref}, which is gone"


def _ahead(moment_ms: int | None, now_ms: int) -> str | None:
    return rfc3339(moment_ms) if moment_ms is not None and moment_ms > now_ms else None


# ------------------------------------------------------------------------------------ invalidate


def _name(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is not None and not re.fullmatch(NAME_PATTERN, given):
        raise click.BadParameter(
            f"{given[:64]!r} can't be a name: up to 63 lower-case letters, digits, '.', '_' and '-'"
        )
    return given


def _cache_key(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    key = None if given is None else given.removeprefix(HIT_PREFIX)
    if key is not None and not _is_key(key):
        raise click.BadParameter(f"{key[:64]!r} is no cache key")
    return key


@group.command("invalidate")
@click.option("--model", callback=_name, help="All results of this model.")
@click.option("--tenant", callback=_name, help="All that this tenant may be answered with.")
@click.option("--key", callback=_cache_key, help="One result: its cache key, or the id of a hit.")
@console.stack
@console.as_json
@click.pass_obj
def invalidate(
    stack: str | None,
    model: str | None,
    tenant: str | None,
    key: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Serve no more what is cached for a model or a tenant, or under a key.

    Open jobs that were submitted before complete, and are not cached for later requests.
    """
    wanted: list[Invalidation] = []
    if model is not None:
        wanted.append(Invalidation("model", model))
    if tenant is not None:
        wanted.append(Invalidation("tenant", tenant))
    if key is not None:
        wanted.append(Invalidation("key", key))
    if len(wanted) != 1:
        raise click.UsageError("Give exactly one of --model, --tenant and --key.")
    with console.errors_told(as_json=as_json):
        target = find_target(stack)
        if model is not None:
            console.require_model(model, target)
        if tenant is not None:
            console.warn_of_stranger(tenant, target)
        if key is not None:
            target.reachable_cache  # noqa: B018 - raises where a tombstone would be of no use
        _require_good_clock(target)
        done = invalidate_cache(
            wanted[0],
            actor=target.actor,
            request_id=records.new_request_id(),
            invalidator=target.invalidator(),
        )
        reply = invalidated_reply(
            done.subject, at_ms=done.at_epoch_ms, epoch=done.epoch, found=done.found
        )
        if as_json:
            console.print_json({**reply.body, "effective_within_s": EFFECTIVE_WITHIN_S})
            return
        console.print_fields({name: one for name, one in reply.body.items() if name != "object"})
        click.echo(f"It is effective within {EFFECTIVE_WITHIN_S} s everywhere.")
        if done.found is False:
            click.echo("There was no entry; jobs that were submitted before won't store one.")


def _require_good_clock(target: Target) -> None:
    ahead_ms = target.clock_ahead_ms()
    if abs(ahead_ms) > CLOCKS_DIFFER_MS:
        way = "ahead of" if ahead_ms > 0 else "behind"
        raise click.ClickException(
            f"this machine's clock is {abs(ahead_ms) / 1000:.0f} s {way} that of AWS, and an "
            "invalidation has its time; set it, or use POST /admin/cache/invalidate"
        )
