"""The results of the benchmarks: kept as JSON, and rendered from it into docs/benchmarks.md.

A program measures and calls `tell`. With `--save` that writes bench/results/NAME.json. Run as a
program, this module puts each saved result between its markers, `<!-- NAME -->` and
`<!-- /NAME -->`; bench/plots.py draws the plots, which needs more than the tests install.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "bench" / "results"

_STARTED_S = time.monotonic()


class NotMeasuredError(Exception):
    """A path went another way than the one that its name says."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are texts, ready to print; a title is a heading of the third level."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines through points (x, y); the labels of the axes name the units."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups: of each name, one of each series."""

    name: str
    title: str
    y: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


Part = Table | Plot | Bars | str
"""A text is a paragraph in Markdown."""


def options(
    doc: str | None,
    arguments: Sequence[str] | None,
    *,
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    """The options of a benchmark's command line; `doc` is its module's, `add` adds its own."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add(parser)
    parser.add_argument("--json", metavar="FILE", help="write the result there; -: to stdout")
    parser.add_argument("--save", action="store_true", help="keep the result in bench/results")
    given = parser.parse_args(arguments)
    if given.json and not Path(given.json).parent.is_dir():
        parser.error(f"--json: there is no folder for {given.json}")  # not after all is measured
    return given


def run(main: Callable[[], int]) -> NoReturn:
    """Ends with the code of `main`; what it started ends with it, also by SIGTERM.

    What wasn't measured is told in a line, and the code is 1.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except NotMeasuredError as error:
        sys.exit(f"not measured: {error}")


def tell(
    given: argparse.Namespace,
    name: str,
    *,
    figures: Mapping[str, Any],
    parts: Sequence[Part],
    command: str | None = None,
    also: Sequence[str] = (),
) -> None:
    """Gives what was measured in the forms that the options ask for.

    `figures` are for programs and `parts` for people. `command` is what follows `python` when it
    isn't `bench/NAME.py`; the versions of the distributions `also` belong to the machine's shape.
    """
    result = {
        "name": name,
        "command": command or f"bench/{name}.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "took_s": round(time.monotonic() - _STARTED_S),
        "machine": machine(also),
        "figures": figures,
        "parts": [_as_json(part) for part in parts],
    }
    text = f"{json.dumps(result, indent=1)}\n"
    if given.json == "-":
        sys.stdout.write(text)
    else:
        print(section(json.loads(text), aligned=True))
        if given.json:
            Path(given.json).write_text(text)
    if given.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text)


def _as_json(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"kind": "text", "text": part}
    return {"kind": type(part).__name__.lower(), **asdict(part)}


def machine(also: Sequence[str] = ()) -> dict[str, str | int]:
    """What the figures are made on."""
    versions = {name: metadata.version(name) for name in ("botocore", *also)}
    return {
        "cores": os.cpu_count() or 0,
        "cpu": _cpu(),
        "python": platform.python_version(),
        **versions,
        "MiniStack": metadata.version("ministack"),
    }


def _cpu() -> str:
    """The processor's name, where the machine tells it."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return found[1] if found else platform.machine()


# ------------------------------------------------------------------------------------ rendering


def saved(name: str) -> dict[str, Any]:
    """What `--save` kept. Raises FileNotFoundError."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def section(result: Mapping[str, Any], *, aligned: bool = False) -> str:
    """What the document has between the markers; for a terminal, columns are `aligned`."""
    on = dict(result["machine"])
    shape = f"{on.pop('cores')} cores of {on.pop('cpu')}, Python {on.pop('python')}"
    versions = ", ".join([shape, *(f"{name} {version}" for name, version in on.items())])
    made = (
        f"Made with `.venv/bin/python {result['command']} --save` on {result['date']}, "
        f"in {result['took_s']} s: {versions}."
    )
    parts = [_rendered(result["name"], part, aligned=aligned) for part in result["parts"]]
    return "\n\n".join([made, *parts])


def _rendered(name: str, part: Mapping[str, Any], *, aligned: bool) -> str:
    if part["kind"] == "text":
        return str(part["text"])
    if part["kind"] == "table":
        title = f"### {part['title']}\n\n" if part["title"] else ""
        shown = _aligned(part["head"], part["lines"]) if aligned else [part["head"], *part["lines"]]
        return title + as_markdown(shown[0], shown[1:])
    return f"![{part['title']}](images/{image(name, part)})"


def image(name: str, part: Mapping[str, Any]) -> str:
    """The file of a plot in docs/images."""
    return f"{name}-{part['name']}.svg"


def plots() -> dict[str, Mapping[str, Any]]:
    """Each saved plot by its file."""
    return {
        image(path.stem, part): part
        for path in sorted(RESULTS.glob("*.json"))
        for part in saved(path.stem)["parts"]
        if part["kind"] in {"plot", "bars"}
    }


def digest(part: Mapping[str, Any]) -> str:
    """Of what a plot shows; the file carries it, so that an old one can be told."""
    return hashlib.sha256(json.dumps(part).encode()).hexdigest()[:16]


def as_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a document."""
    ruled = ["-" * max(3, len(cell)) for cell in head]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ruled, *lines])


def _aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same cells, with spaces; what is only numbers stands to the right."""
    rows = [head, *lines]
    widths = [max(3, *(len(row[at]) for row in rows)) for at in range(len(head))]
    right = [
        all(re.fullmatch(r"[-+\d,.?/% ]*", line[at]) for line in lines) for at in range(len(head))
    ]
    return [
        [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        for row in rows
    ]


def rendered(text: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The document with each result in its place. Raises ValueError when a marker is missing."""
    for result in results:
        markers = f"<!-- {result['name']} -->", f"<!-- /{result['name']} -->"
        start, end = (text.find(marker) for marker in markers)
        if not 0 <= start < end:
            raise ValueError(f"{DOCUMENT.name} lacks the markers {markers}")
        start += len(markers[0])
        text = f"{text[:start]}\n{section(result)}\n{text[end:]}"
    return text


def main() -> int:
    """Renders what is saved."""
    results = [saved(path.stem) for path in sorted(RESULTS.glob("*.json"))]
    DOCUMENT.write_text(rendered(DOCUMENT.read_text("utf-8"), results))
    return 0


if __name__ == "__main__":
    run(main)
