"""Figures of docs/benchmarks.md that follow from the code alone are those that it gives now.

What is measured on a machine is not checked here: `make bench` makes it anew.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from sluiceway_cli import costs

from bench import aws_calls, cache_cost, early_refresh, report, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXT = report.DOCUMENT.read_text("utf-8")
CAPACITY = report.DOCUMENT.with_name("capacity.md").read_text("utf-8")
MAKEFILE = (report.ROOT / "Makefile").read_text("utf-8")
IN_MAKE_BENCH = re.findall(r"^BENCHES := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
RESULTS = sorted(path.stem for path in report.RESULTS.glob("*.json"))

Table = tuple[list[str], list[list[str]]]


def between(name: str) -> str:
    """What a program wrote."""
    return TEXT.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def first_cells(text: str) -> list[str]:
    """Of each line of the tables in a text, heads left out."""
    return re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)


def test_document_is_what_the_results_give() -> None:
    assert report.rendered(TEXT, [report.saved(name) for name in RESULTS]) == TEXT


def test_plots_are_those_of_the_results() -> None:
    drawn = {
        path.name: re.findall(r"<dc:description>(\w+)</dc:description>", path.read_text("utf-8"))
        for path in report.IMAGES.glob("*.svg")
    }

    assert drawn == {name: [report.digest(part)] for name, part in report.plots().items()}


def test_every_program_is_run_by_make_bench_or_said_to_be_left_out() -> None:
    programs = {
        path.stem
        for path in (report.ROOT / "bench").glob("*.py")
        if "report.tell(" in path.read_text("utf-8")
    }

    assert programs - set(IN_MAKE_BENCH) == {"burst"}
    assert set(IN_MAKE_BENCH) <= programs
    assert set(IN_MAKE_BENCH) <= set(RESULTS) <= programs


def test_the_set_takes_less_than_fifteen_minutes() -> None:
    took_s = sum(report.saved(name)["took_s"] for name in IN_MAKE_BENCH)

    assert took_s < 15 * 60


def test_each_path_has_its_figures() -> None:
    calls = first_cells(between("aws_calls"))
    costs = first_cells(between("cache_cost"))

    assert [path for path, _, _ in aws_calls.PATHS if calls.count(path) != 2] == []
    assert [path for path in cache_cost.PATHS if path not in costs] == []


@pytest.mark.parametrize(
    "table",
    [cache_cost.price_table(), cache_cost.object_table(), cache_cost.idle_table()],
    ids=["prices", "objects", "idle"],
)
def test_computed_table_is_up_to_date(table: Table) -> None:
    assert report.as_markdown(*table) in between("cache_cost")


def test_counts_of_the_command_line_are_those_of_the_results() -> None:
    saved = report.saved("cache_cost")["figures"]["counts"]

    assert costs.Counts.parse(json.dumps(saved)) == costs.counted()


SAME_PATHS = {
    "authorize": "authorize, policy not cached",
    "fresh hit": "submit, cache hit, fresh",
    "stale hit, refresh queued already": "submit, stale hit, refresh queued",
    "stale hit that queues a refresh": "submit, stale hit that queues a refresh",
    "miss: submit": "submit, fresh",
    "miss: run": "run, first attempt succeeds",
    "miss: get": "get, completed job",
    "poll": "get, open job",
    "refresh: run": "run, refresh",
    "retryable error": "run, retryable error",
}
"""Those of the costs and those of the calls."""


@pytest.mark.parametrize("path", SAME_PATHS)
def test_counts_of_the_command_line_are_those_of_the_calls(path: str) -> None:
    (cells,) = re.findall(
        rf"^\| {re.escape(SAME_PATHS[path])} \|((?:[^|]*\|){{8}})$",
        between("aws_calls"),
        re.MULTILINE,
    )
    *_, by_operation, _ = cells.split("|")
    counted = next(iter(costs.counted().paths[path].by_answer.values()))

    told = {operation: int(many) for many, operation in re.findall(r"(\d+) (\w+)", by_operation)}
    assert counted.calls == told


def test_assumed_waits_are_those_of_the_text() -> None:
    waits = costs.WAITS_MS

    told = (
        f"{waits['GetItem']} ms for a read, {waits['TransactWriteItems']} ms for a transaction, "
        f"{waits['SendMessage']} ms for a send, {waits['PutObject']} ms for an S3 write and "
        f"{waits['GetObject']} ms for an S3 read"
    )
    assert told in TEXT
    assert f"The vendor takes {costs.Workload().vendor_s:g} s" in TEXT
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
    assert line in between("early_refresh")


def test_load_simulation_gives_the_figures_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "TRUE_LIMITS", (0.5,))
    unknown = simulate.unknown_limits()

    _, lines = simulate.unknown_table(simulate.Findings({}, {}, [], unknown, {}))
    assert f"| {' | '.join(lines[0])} |" in between("simulate")


def lines_of(rows: Sequence[Sequence[early_refresh.Cell]]) -> list[str]:
    """As the document has them."""
    return report.as_markdown(*early_refresh.table(rows)).splitlines()[2:]


def p95_of(column: str) -> Callable[[dict[str, str]], str]:
    return lambda row: row[column].split(" / ")[1]


POLICIES = "Policies side by side"
OF_POLICIES: list[tuple[str, list[str | Callable[[dict[str, str]], str]]]] = [
    (
        "no shares",
        [
            "workers",
            "load",
            "policy",
            "busy, %",
            p95_of("interactive: p50 / p95, s"),
            p95_of("batch: p50 / p95, s"),
        ],
    ),
    (
        "",
        [
            "workers",
            "load",
            "policy",
            "jobs ended, of those that came, %",
            p95_of("interactive: p50 / p95, s"),
            "150 smallest tenants: p95, s",
            "sweeper, %",
        ],
    ),
]
WHOLE = (
    "What a million requests cost",
    "Where it breaks first, % of what each part takes",
    "When the vendor's limit is not known",
    "A contract for 20 calls at once of 8 s",
)


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[dict[str, str]]]:
    parts = report.saved("simulate")["parts"]
    return {
        part["title"]: [dict(zip(part["head"], line, strict=True)) for line in part["lines"]]
        for part in parts
        if part["kind"] == "table"
    }


@pytest.mark.parametrize("title", WHOLE)
def test_table_of_capacity_is_that_of_the_simulation(
    simulated: dict[str, list[dict[str, str]]], title: str
) -> None:
    wanted = "\n".join(f"| {' | '.join(row.values())} |" for row in simulated[title])

    assert wanted in CAPACITY


@pytest.mark.parametrize(("policy", "columns"), OF_POLICIES, ids=["lanes", "shares"])
def test_policies_of_capacity_are_those_of_the_simulation(
    simulated: dict[str, list[dict[str, str]]],
    policy: str,
    columns: list[str | Callable[[dict[str, str]], str]],
) -> None:
    wanted = "\n".join(
        f"| {' | '.join(c(row) if callable(c) else row[c] for c in columns)} |"
        for row in simulated[POLICIES]
        if policy in row["policy"] and (policy or "fixed" not in row["policy"])
    )

    assert wanted in CAPACITY
