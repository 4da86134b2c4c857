"""The report of the benchmarks: results are rendered from JSON alone."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from bench import report

if TYPE_CHECKING:
    from pathlib import Path

PARTS = [
    "A paragraph.",
    report.Table("Some", ["path", "calls"], [["get", "1"], ["submit", "12"]]),
    report.Plot("rise", "It rises", x="jobs", y="ms", series={"p50": [(1, 2), (3, 4)]}),
    report.Bars("parts", "What it is of", y="ms", names=["one"], series={"p50": [1.0]}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def told(*options: str) -> None:
    given = report.options("Measures.", options)
    report.tell(given, "sample", figures={"calls": 12}, parts=PARTS)


def test_result_is_kept_with_command_machine_and_figures(folder: Path) -> None:
    told("--save")

    kept = json.loads((folder / "sample.json").read_text())
    assert kept["command"] == "bench/sample.py"
    assert kept["figures"] == {"calls": 12}
    assert kept["machine"]["cores"] >= 1
    assert {"cpu", "python", "botocore", "MiniStack"} <= kept["machine"].keys()
    assert report.saved("sample") == kept


def test_result_is_not_kept_unasked(folder: Path) -> None:
    told()

    assert list(folder.iterdir()) == []


def test_json_alone_is_printed_when_it_goes_to_stdout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told("--json", "-")

    assert json.loads(capsys.readouterr().out)["name"] == "sample"
    assert folder.exists()


def test_terminal_gets_columns_under_one_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told()

    shown = capsys.readouterr().out
    assert "| path   | calls |" in shown
    assert "| get    |     1 |" in shown
    assert folder.exists()


def test_document_has_the_result_between_its_markers(folder: Path) -> None:
    told("--save")
    before = "# Benchmarks\n<!-- sample -->\nold\n<!-- /sample -->\nafter\n"

    after = report.rendered(before, [report.saved("sample")])

    assert after.startswith("# Benchmarks\n<!-- sample -->\nMade with `.venv/bin/python bench/sam")
    assert "\n### Some\n\n| path | calls |\n| ---- | ----- |\n| get | 1 |\n" in after
    assert "![It rises](images/sample-rise.svg)" in after
    assert after.endswith("(images/sample-parts.svg)\n<!-- /sample -->\nafter\n")
    assert "old" not in after
    assert report.rendered(after, [report.saved("sample")]) == after
    assert folder.exists()


@pytest.mark.parametrize("text", ["", "<!-- sample -->", "<!-- /sample --><!-- sample -->"])
def test_document_without_the_markers_is_refused(folder: Path, text: str) -> None:
    told("--save")

    with pytest.raises(ValueError, match="lacks the markers"):
        report.rendered(text, [report.saved("sample")])

    assert folder.exists()


def test_plots_are_named_by_result_and_told_by_what_they_show(folder: Path) -> None:
    told("--save")
    found = report.plots()

    changed: dict[str, Any] = {**found["sample-rise.svg"], "series": {"p50": [(1, 2), (3, 5)]}}

    assert list(found) == ["sample-rise.svg", "sample-parts.svg"]
    assert report.digest(found["sample-rise.svg"]) != report.digest(changed)
    assert folder.exists()


def test_file_in_a_folder_that_is_not_there_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        told("--json", str(tmp_path / "none" / "x.json"))

    assert ended.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


def test_what_was_not_measured_is_told_in_a_line_and_is_a_failure() -> None:
    def main() -> int:
        raise report.NotMeasuredError("nothing is built; run: make build")

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            report.run(main)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ended.value.code == "not measured: nothing is built; run: make build"
