"""`sluiceway cost`: what an installation costs on AWS, and what its vendors were paid."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from click.core import ParameterSource
from sluiceway.domain.usage import COUNTS, UsageRow

from sluiceway_cli import console, costs
from sluiceway_cli.costs import MILLION, Cost, Prices, Workload
from sluiceway_cli.target import Target, find_target

NANOS = 10**9
DEFAULT_DAYS = 30
DEFAULT = Workload()
_WORKLOAD = {
    "jobs": "requests",
    "webhooks": "webhook_ratio",
}
"""Options that are called otherwise than the workload's members."""


def _prices(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Prices:
    changed = {}
    for one in given:
        name, _equals, usd = one.partition("=")
        try:
            changed[name] = float(usd)
        except ValueError:
            raise click.BadParameter(f"{one!r} is not NAME=USD") from None
    try:
        return costs.LIST.changed(changed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


class _Number(click.FloatRange):
    """A finite one: float() takes nan and inf, too."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See click.ParamType."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


_least = _Number(min=0)
_ratio = _Number(0, 1)


@click.command()
@click.option(
    "--jobs",
    type=_Number(1, costs.MOST_REQUESTS),
    default=DEFAULT.requests,
    help="Submits a month, hits included.  [default: a million]",
)
@click.option("--hit-ratio", type=_ratio, default=DEFAULT.hit_ratio, show_default=True)
@click.option(
    "--prompt-kb",
    type=_Number(0, costs.MOST_PROMPT_KB),
    default=DEFAULT.prompt_kb,
    show_default=True,
)
@click.option(
    "--answer-kb",
    type=_Number(0, costs.MOST_ANSWER_KB),
    default=DEFAULT.answer_kb,
    show_default=True,
)
@click.option(
    "--vendor-s",
    type=_Number(0, costs.MOST_VENDOR_S),
    default=DEFAULT.vendor_s,
    show_default=True,
    help="Seconds of a call to the vendor; a worker waits for it and is billed.",
)
@click.option(
    "--polls",
    type=_least,
    default=DEFAULT.polls,
    show_default=True,
    help="GETs of a job, the last of which brings the answer.",
)
@click.option(
    "--webhooks",
    type=_ratio,
    default=DEFAULT.webhook_ratio,
    show_default=True,
    help="The part of the jobs of which a partner's server is told.",
)
@click.option(
    "--tenants",
    type=click.IntRange(min=1),
    default=DEFAULT.tenants,
    show_default=True,
    help="Metrics are kept for each, and for each model.",
)
@click.option("--models", type=click.IntRange(min=1), default=DEFAULT.models, show_default=True)
@click.option("--cache", type=click.Choice(costs.CACHES), default=DEFAULT.cache, show_default=True)
@click.option(
    "--entry-h",
    type=_least,
    default=DEFAULT.entry_h,
    show_default=True,
    help="Hours that an entry stays: hard TTL and stale-if-error.",
)
@click.option("--vendor-price", type=_least, default=0.0, help="USD of one call to the vendor.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME=USD",
    callback=_prices,
    help="Another price than us-east-1's, as write=0.7125; names and units: --json.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 400),
    help="Tell what vendors were paid in the last so many days, by the stack's usage.",
)
@click.option(
    "--tenant", callback=console.given_tenant, help="The same, for this tenant alone; 30 days."
)
@console.stack
@console.as_json
@click.pass_context
def cost(
    context: click.Context,
    /,
    prices: Prices,
    days: int | None,
    tenant: str | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
    **given: Any,
) -> None:
    """Tell what a month costs on AWS: by service, for a job, and of an idle installation.

    It computes and needs no stack: calls and units are counted, prices are AWS's list. With --days
    or --tenant it tells instead what the jobs of a stack paid their vendors.
    """
    with console.errors_told(as_json=as_json):
        if days is not None or tenant is not None:
            _refuse(context, {*given, "prices"})
            document = paid(find_target(context.obj), tenant, days or DEFAULT_DAYS)
            tell = _tell_paid
        else:
            members = {_WORKLOAD.get(name, name): value for name, value in given.items()}
            document = estimated(replace(DEFAULT, **members), prices)
            tell = _tell_estimated
        console.print_json(document) if as_json else tell(document)


def _refuse(context: click.Context, names: set[str]) -> None:
    """Raises UsageError for a given option that would count for nothing."""
    for option in context.command.params:
        if option.name in names and (
            context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
        ):
            raise click.UsageError(
                f"{option.opts[0]} is of a workload: it goes with neither --days nor --tenant"
            )


# ------------------------------------------------------------------------------------ the model


def estimated(workload: Workload, prices: Prices) -> dict[str, Any]:
    """The bill of a month, as a document."""
    counts = costs.counted()
    cost = costs.cost_of(workload, counts, prices)
    idle = costs.idle_cost(workload.cache, prices)
    return {
        "workload": asdict(workload),
        "prices": {
            "region": prices.region,
            "date": prices.date,
            "usd": {name: asdict(price) for name, price in prices.table.items()},
        },
        "counted": dict(counts.made),
        "services": _services(cost),
        "usd": cost.usd,
        "usd_per_million": cost.usd / workload.requests * MILLION,
        "usd_of_one": {
            name: costs.cost_of_events(dict.fromkeys(paths, 1.0), workload, counts, prices).usd
            for name, paths in _ones(workload).items()
        },
        "idle": {"usd": idle.usd, "services": _services(idle)},
        "break_even": _break_even(workload, prices),
        "vendor": {"usd": workload.vendor_usd, "saved_usd": workload.saved_usd},
        "left_out": list(costs.LEFT_OUT),
    }


def _ones(workload: Workload) -> dict[str, tuple[str, ...]]:
    """What a request is made of, by what becomes of it."""
    kind = "no cache" if workload.cache == "none" else "miss"
    steps = ("submit", "run", "get")
    job = {"job": (*(f"{kind}: {step}" for step in steps), "publish")}
    return job if workload.cache == "none" else {**job, "hit": ("fresh hit",)}


_ONE = {"job": "a submit, its run, one GET and the event of its end", "hit": "a submit"}


def _services(cost: Cost) -> list[dict[str, Any]]:
    """The dearest first."""
    found = [
        {
            "service": name,
            "usd": usd,
            "share": usd / cost.usd if cost.usd else 0.0,
            "items": [
                {"item": line.item, "many": line.many, "unit": line.unit, "usd": line.usd}
                for line in cost.lines
                if line.service == name
            ],
        }
        for name, usd in cost.by_service.items()
    ]
    return sorted(found, key=lambda one: -float(one["usd"]))


def _break_even(workload: Workload, prices: Prices) -> list[dict[str, Any]]:
    """Where Valkey is the cheaper cache: in a network without and with a NAT gateway."""
    if workload.cache == "none":
        return []
    found = (
        (nat, costs.break_even(workload, costs.counted(), prices, nat=nat)) for nat in (True, False)
    )
    return [
        {
            "new_nat_gateway": nat,
            "valkey_least_usd": one.least_usd,
            "submits_from": one.requests,
            "hits_from": one.hits,
        }
        for nat, one in found
    ]


def _tell_estimated(document: dict[str, Any]) -> None:
    workload = Workload(**document["workload"])
    click.echo(
        f"{workload.requests:,.0f} submits a month: {workload.hits:,.0f} hits and "
        f"{workload.jobs:,.0f} jobs, with {workload.polls:g} GETs each"
    )
    click.echo(
        f"{workload.prompt_kb:g} KB of prompt, {workload.answer_kb:g} KB of answer, "
        f"{workload.vendor_s:g} s at the vendor; {workload.tenants} tenants, "
        f"{workload.models} models, cache: {workload.cache}"
    )
    click.echo()
    rows = []
    for service in document["services"]:
        rows.append([service["service"], _usd(service["usd"]), f"{service['share']:.0%}", ""])
        rows += [
            [f"  {one['item']}", _usd(one["usd"]), "", f"{_many(one['many'])} {one['unit']}"]
            for one in service["items"]
        ]
    rows.append(["requests, together", _usd(document["usd"]), "100%", ""])
    rows.append(["idle installation", _usd(document["idle"]["usd"]), "", "without a request"])
    rows.append(["a month", _usd(document["usd"] + document["idle"]["usd"]), "", ""])
    _table(["AWS", "USD A MONTH", "SHARE", ""], rows)
    click.echo()
    click.echo(f"a million submits  {document['usd_per_million']:.2f} USD")
    for name, usd in document["usd_of_one"].items():
        click.echo(f"{'a ' + name:<17}  {usd:.8f} USD: {_ONE[name]}")
    if workload.vendor_price:
        vendor = document["vendor"]
        click.echo(
            f"vendors            {_usd(vendor['usd'])} USD; hits save {_usd(vendor['saved_usd'])}"
        )
    for one in document["break_even"]:
        click.echo(_break_even_line(one))
    click.echo()
    prices, counted = document["prices"], document["counted"]
    click.echo(f"List prices of {prices['region']}, {prices['date']}, beyond what is free.")
    click.echo(f"Calls, units and the handlers' time were counted on {counted['on']}.")
    click.echo(f"Left out: {'; '.join(document['left_out'])}.")


def _break_even_line(one: dict[str, Any]) -> str:
    where = "with a new NAT gateway" if one["new_nat_gateway"] else "where one is there"
    if one["submits_from"] is None:
        return f"Valkey {where}: never the cheaper cache for such requests"
    submits, hits = f"{one['submits_from']:,.0f}", f"{one['hits_from']:,.0f}"
    return (
        f"Valkey {where}: the cheaper cache from {submits} submits a month on, {hits} of them hits"
    )


def _usd(usd: float) -> str:
    return f"{usd:,.2f}"


def _many(many: float) -> str:
    return f"{many:,.0f}" if many >= 100 else f"{many:.3g}"  # noqa: PLR2004 - three digits do


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Two columns of texts around two of numbers."""
    rows = [head, *rows]
    first, usd, share = (max(len(row[at]) for row in rows) for at in range(3))
    for row in rows:
        line = f"{row[0]:<{first}}  {row[1]:>{usd}}  {row[2]:>{share}}  {row[3]}"
        click.echo(line.rstrip())


# ------------------------------------------------------------------------------------ paid


def paid(target: Target, tenant: str | None, days: int) -> dict[str, Any]:
    """What the jobs that ended in these days (UTC, today included) came to, by tenant.

    Raises ValueError for a tenant that has neither a key nor such a job.
    """
    today = datetime.fromtimestamp(target.clock.now_ms() / 1000, UTC).date()
    first, last = (today - timedelta(days - 1)).isoformat(), today.isoformat()
    known = {key.tenant for key in target.partner_keys().all()}
    tenants = [tenant] if tenant else sorted(known)
    found = {one: target.usage.read(one, first, last) for one in tenants}
    if tenant and tenant not in known and not found[tenant]:
        raise ValueError(f"no key is of tenant {tenant}, and no job of it ended since {first}")
    return {
        "from": first,
        "to": last,
        "tenants": [{"tenant": name, **_sums(rows)} for name, rows in found.items()],
        "total": _sums([row for rows in found.values() for row in rows]),
    }


def _sums(rows: Iterable[UsageRow]) -> dict[str, Any]:
    """Counts, and money in the unit of the catalogue's prices."""
    whole = sum(rows, UsageRow("", ""))
    counts = {name: getattr(whole, name) for name in COUNTS if not name.endswith("_nanos")}
    return {**counts, "cost": whole.cost_nanos / NANOS, "saved": whole.saved_nanos / NANOS}


def _tell_paid(document: dict[str, Any]) -> None:
    click.echo(f"jobs that ended from {document['from']} to {document['to']} (UTC)")
    head = ["TENANT", "COMPLETED", "FROM CACHE", "FAILED", "TOKENS IN", "TOKENS OUT"]
    rows = [[*head, "COST", "SAVED"]]
    for one in [*document["tenants"], {"tenant": "all", **document["total"]}]:
        counts = ("completed", "from_cache", "failed", "input_tokens", "output_tokens")
        rows.append(
            [
                one["tenant"],
                *(f"{one[name]:,}" for name in counts),
                *(f"{one[name]:,.6f}" for name in ("cost", "saved")),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        click.echo("  ".join(cells))
    click.echo("Money is in the unit of the catalogue's prices. SAVED is what jobs took from an")
    click.echo("entry when their turn came; hits that the API answered at once are in the metrics.")
