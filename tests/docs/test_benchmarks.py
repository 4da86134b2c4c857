"""Figures of docs/benchmarks.md that follow from the code alone are those that it gives now.

What is measured on a machine is not checked here: `make bench` makes it anew.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from bench import aws_calls, burst, cache_cost, early_refresh, report, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = report.DOCUMENT.read_text("utf-8")
SECTIONS = (aws_calls.MARKERS, cache_cost.MARKERS, early_refresh.MARKERS, simulate.MARKERS)
"""Of the programs that `make bench` runs."""

Table = tuple[list[str], list[list[str]]]


def between(markers: tuple[str, str]) -> str:
    """What a program wrote."""
    return TEXT.split(markers[0])[1].split(markers[1])[0]


def first_cells(text: str) -> list[str]:
    """Of each line of the tables in a text, heads left out."""
    return re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)


@pytest.mark.parametrize("markers", [*SECTIONS, burst.MARKERS], ids=lambda markers: markers[0])
def test_figures_say_how_on_what_and_when_they_were_made(markers: tuple[str, str]) -> None:
    made = between(markers).strip().splitlines()[0]

    name = markers[0].split()[1]
    assert re.fullmatch(
        rf"Made with `\.venv/bin/python bench/{name}\.py --markdown` on \d{{4}}-\d\d-\d\d: "
        r"\d+ cores, Python [\d.]+, botocore [\d.]+, MiniStack [\d.]+\.",
        made,
    )


def test_make_bench_runs_each_program() -> None:
    makefile = (report.ROOT / "Makefile").read_text("utf-8")

    programs = re.findall(r"python bench/(\w+)\.py$", makefile, re.MULTILINE)

    assert programs == [markers[0].split()[1] for markers in SECTIONS]


def test_each_path_has_its_figures() -> None:
    calls = first_cells(between(aws_calls.MARKERS))
    costs = first_cells(between(cache_cost.MARKERS))

    assert [path for path, _, _ in aws_calls.PATHS if calls.count(path) != 2] == []
    assert [path for path in cache_cost.PATHS if path not in costs] == []


@pytest.mark.parametrize(
    "table",
    [cache_cost.price_table(), cache_cost.break_even_table()],
    ids=["prices", "break-even"],
)
def test_computed_table_is_up_to_date(table: Table) -> None:
    assert report.as_markdown(*table) in between(cache_cost.MARKERS)


def test_assumed_waits_are_those_of_the_text() -> None:
    waits = cache_cost.WAITS_MS

    told = (
        f"{waits['GetItem']} ms for a read, {waits['TransactWriteItems']} ms for a transaction, "
        f"{waits['SendMessage']} ms for a send, {waits['PutObject']} ms for an S3 write and "
        f"{waits['GetObject']} ms for an S3 read"
    )
    assert told in TEXT
    assert f"The vendor takes {cache_cost.VENDOR_S} s" in TEXT
    assert f"Each figure is of {cache_cost.TIMED} events after {cache_cost.WARM_UP} others" in TEXT
    assert f"over {early_refresh.REFRESHES} refreshes for each figure" in TEXT


@pytest.mark.parametrize(("rate_per_s", "latency_s"), [(0.1, 30), (1.0, 10)])
@pytest.mark.parametrize("soft_ttl_s", early_refresh.SOFT_TTLS_S)
def test_simulation_gives_the_figures_of_the_text(
    rate_per_s: float, latency_s: int, soft_ttl_s: int
) -> None:
    cells = [
        early_refresh.simulate(rate_per_s, latency_s, beta, soft_ttl_s)
        for beta in early_refresh.BETAS
    ]

    (line,) = lines_of([cells])
    assert line in between(early_refresh.MARKERS)


def test_load_simulation_gives_the_figures_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "TRUE_LIMITS", (0.5,))
    unknown = simulate.unknown_limits()

    _, lines = simulate.unknown_table(simulate.Findings({}, {}, [], unknown, {}))
    assert f"| {' | '.join(lines[0])} |" in between(simulate.MARKERS)


def lines_of(rows: Sequence[Sequence[early_refresh.Cell]]) -> list[str]:
    """As the document has them."""
    return report.as_markdown(*early_refresh.table(rows)).splitlines()[2:]
