"""`sluiceway status`: an installation at a glance, once or again and again."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sluiceway_cli import console
from sluiceway_cli.status import MINUTES, Document, Looker
from sluiceway_cli.target import find_target
from sluiceway_cli.times import age

DEFAULT_INTERVAL_S = 5.0

_STYLES = {"bad": "bold red", "warning": "yellow"}
_MARKS = {"bad": "!!", "warning": "! "}
_UNKNOWN = "unknown"


@click.command()
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=1),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    help="Seconds between two looks.",
)
@console.stack
@console.as_json
@click.pass_obj
def status(stack: str | None, watch: bool, interval: float, as_json: bool) -> None:  # noqa: FBT001
    """Show what waits, what runs, what is shut and what went wrong: problems first.

    A part that can't be read is shown as unknown, with the reason. With --json one look is one
    line.
    """
    with console.errors_told(as_json=as_json), suppress(KeyboardInterrupt):
        target = find_target(stack)
        if not target.can_read_tables:
            raise click.ClickException("this needs the local stack of this folder, or --stack")
        looker = Looker(target)
        terminal = Console(highlight=False)
        if as_json:
            console.print_json(looker.look())
        elif watch and terminal.is_terminal:
            live(looker, terminal, interval)
            return
        else:
            _print(looker.look(), terminal)
        while watch:
            target.pause(interval)
            if as_json:
                console.print_json(looker.look())
            else:
                terminal.print()
                _print(looker.look(), terminal)


def live(looker: Looker, terminal: Console, interval_s: float) -> None:
    """The last look stays on the terminal when it ends.

    What is wrong is folded on a narrow one, and tables are cut.
    """
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            live.update(Group(*lines(looker.look())), refresh=True)
            looker.target.pause(interval_s)


def _print(document: Document, terminal: Console) -> None:
    for line in lines(document):
        terminal.print(line, soft_wrap=True)


# ------------------------------------------------------------------------------------ lines


def lines(document: Document) -> list[Text]:
    """The document for people."""
    told = [Text(f"{document['at']}", style="bold")]
    told += [
        Text(f"{row['name']}: {row['value']}", style="dim") for row in document["installation"]
    ]
    told.append(Text(f"degraded: {_degraded(document['degraded'])}", style="dim"))
    told += _problem_lines(document["problems"])
    for part in (_lane_lines, _model_lines, _traffic_lines, _queue_lines):
        told += [Text(""), *part(document)]
    return told


def _degraded(degraded: Document | None) -> str:
    if degraded is None:
        return _UNKNOWN
    return f"since {degraded['since']}" if degraded["on"] else "no"


def _problem_lines(problems: Sequence[Document]) -> list[Text]:
    if not problems:
        return [Text("ok  nothing is wrong", style="green")]
    return [
        Text(
            f"{_MARKS[one['level']]}  {one['text']}"
            + (f"  -> {one['then']}" if one["then"] else ""),
            style=_STYLES[one["level"]],
        )
        for one in problems
    ]


def _lane_lines(document: Document) -> list[Text]:
    least = "" if document["counted_all"] else "at least "
    rows = []
    for name, lane in document["lanes"].items():
        messages = lane["messages"] or {}
        oldest = lane["oldest_age_s"]
        busy, most = lane["processing"], lane["workers"]
        rows.append(
            [
                name,
                *(_known(lane[member], before=least) for member in ("open", "waiting", "parked")),
                _known(None if oldest is None else age(oldest)),
                f"{_known(busy, before=least)} of {_known(most)}",
                *(_known(messages.get(member)) for member in ("visible", "in_flight", "delayed")),
                _known(lane["mapping_state"]) + (" (paused)" if lane["paused"] else ""),
            ]
        )
    head = ["LANE", "OPEN", "WAITING", "PARKED", "OLDEST", "WORKERS BUSY"]
    head += ["VISIBLE", "IN FLIGHT", "DELAYED", "MAPPING"]
    told = _table(head, rows)
    counted_at = document["counted_at"]
    if counted_at is not None and counted_at < document["at"]:
        ago = _until(document["at"], datetime.fromisoformat(counted_at))
        told.append(Text(f"So many are open that the sweeper counts them; it did {ago} ago."))
    return told


def _model_lines(document: Document) -> list[Text]:
    if document["models"] is None:
        return [Text(f"MODELS  {_UNKNOWN}")]
    now = datetime.fromisoformat(document["at"])
    rows = []
    for one in document["models"]:
        until = one["closed_until"]
        state = one["state"] + (f" for {_until(until, now)}" if until else "")
        rates = [
            _rate(one, "requests_per_minute", "/min"),
            _rate(one, "tokens_per_minute", " tokens/min"),
        ]
        slot = one["next_slot"]
        rows.append(
            [
                ", ".join(one["models"]),
                state,
                ", ".join(rate for rate in rates if rate) or "no limit",
                str(one["waiting"]),
                _known(one["slots_kept"]),
                "now" if slot is None else f"in {_until(slot, now)}",
            ]
        )
    return _table(["MODEL", "GATE", "RATE NOW", "WAITING", "SLOTS KEPT", "NEXT SLOT"], rows)


def _rate(one: Mapping[str, Any], member: str, unit: str) -> str:
    most, now = one[member], one[f"{member}_now"]
    if not most:
        return ""
    return f"{now}{unit}" if now == most else f"{now} of {most}{unit}"


def _until(moment: str, now: datetime) -> str:
    return age((datetime.fromisoformat(moment) - now).total_seconds())


def _traffic_lines(document: Document) -> list[Text]:
    traffic = document["traffic"]
    if traffic is None:
        return [Text(f"TRAFFIC  {_UNKNOWN}")]
    least = "" if traffic["counted_all"] else "at least "
    members = ("submitted", "deduplicated", "completed", "failed", "dead_lettered", "retries")
    rows = []
    for minutes in MINUTES:
        sums = traffic[f"last_{minutes}_min"]
        looked = sums["hits"] + sums["stale"] + sums["misses"]
        hits = "-" if sums["hit_ratio"] is None else f"{sums['hit_ratio']:.0%} of {looked}"
        told = (f"{least}{sums[member]}" for member in members)
        rows.append([f"last {minutes} min", hits, *told])
    head = ["TRAFFIC", "HIT RATIO", "SUBMITTED", "JOINED", "COMPLETED", "FAILED"]
    return _table([*head, "DEAD LETTERED", "RETRIES"], rows)


def _queue_lines(document: Document) -> list[Text]:
    rows = [
        [
            name.replace("_", " "),
            *(_known((messages or {}).get(one)) for one in ("visible", "in_flight", "delayed")),
        ]
        for name, messages in document["queues"].items()
    ]
    return _table(["QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED"], rows)


def _known(value: Any, *, before: str = "") -> str:
    return _UNKNOWN if value is None else f"{before}{value}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Text]:
    """Columns that are as wide as they have to be; what is unknown stands out."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    told = []
    for number, row in enumerate((head, *rows)):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        style = "bold" if number == 0 else ""
        line = Text("  ".join(cells).rstrip(), style=style, no_wrap=True)
        line.highlight_words([_UNKNOWN], style="yellow")
        told.append(line)
    return told
