"""Tables of the benchmarks, for a terminal and for docs/benchmarks.md."""

import argparse
import json
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def as_text(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a terminal; what is only numbers stands to the right."""
    widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head))]
    right = [
        all(re.fullmatch(r"[-\d,.?/ ]*", line[at]) for line in lines) for at in range(len(head))
    ]
    shown = []
    for line in [head, ["-" * width for width in widths], *lines]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def as_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same for a document."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def machine() -> dict[str, str | int]:
    """What the figures were made on."""
    return {
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "botocore": metadata.version("botocore"),
        "emulator": f"MiniStack {metadata.version('ministack')}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def made_with(command: str) -> str:
    """The line above the figures: how and on what they were made."""
    about = machine()
    return (
        f"Made with `.venv/bin/python {command}` on {about['date']}: {about['cores']} cores, "
        f"Python {about['python']}, botocore {about['botocore']}, {about['emulator']}."
    )


def options(
    doc: str | None,
    arguments: Sequence[str] | None,
    *,
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    """The options of a benchmark's command line; `doc` is its module's, `add` adds its own."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add(parser)
    parser.add_argument("--json", metavar="FILE", help="write the figures there; -: to stdout")
    parser.add_argument("--markdown", action="store_true", help="rewrite docs/benchmarks.md")
    return parser.parse_args(arguments)


def run(main: Callable[[], int]) -> NoReturn:
    """Ends with the code of `main`; what it started ends with it, also by SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


def tell(
    given: argparse.Namespace,
    markers: tuple[str, str],
    *,
    as_json: Callable[[], object],
    section: Callable[[], str],
    text: Callable[[], str],
) -> None:
    """Gives the figures in the forms that the options ask for."""
    if given.json:
        document = json.dumps(as_json(), indent=2)
        if given.json == "-":
            print(document)
        else:
            Path(given.json).write_text(f"{document}\n")
    if given.markdown:
        rewrite(markers, section())
    if given.json != "-":
        print(text())


def rewrite(markers: tuple[str, str], section: str, document: Path = DOCUMENT) -> None:
    """Puts the section between the markers. Raises ValueError when they are missing."""
    text = document.read_text()
    start, end = (text.find(marker) for marker in markers)
    if not 0 <= start < end:
        raise ValueError(f"{document.name} lacks the markers {markers}")
    start += len(markers[0])
    document.write_text(f"{text[:start]}\n{section}\n{text[end:]}")
