"""What the tests prove of each guarantee of docs/architecture.md, and on which back end.

A test names the guarantees that it shows by `@pytest.mark.proves(3, 15)`, with the numbers of the
list. What no test shows on a back end is said in guarantees.toml. Run as a program, this module
writes the table of both into docs/local.md. As a plugin of pytest it selects tests by guarantee.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "local.md"
PROMISES = ROOT / "docs" / "architecture.md"
SAID = Path(__file__).with_suffix(".toml")
MARKERS = ("<!-- guarantees -->", "<!-- /guarantees -->")

BACK_ENDS = {
    "moto": "moto",
    "ministack": "MiniStack",
    "localstack": "LocalStack + DynamoDB Local",
    "rie": "RIE",
    "aws": "AWS",
}
"""The columns of the table, and their heads."""

NO_TEST = "no test"
"""It could be shown there, and nobody does."""

KINDS = {
    "not_provable": "not provable",
    "different": "different",
    "left_out": NO_TEST,
    "remark": "",
}
"""What a note of guarantees.toml may be, and what it makes of its cells. A remark is of cells that
have tests, and the others of cells that have none."""

Cell = tuple[int, str]
"""A guarantee's number, and a back end."""

_OF_PARAMETER = {
    "moto": "moto",
    "dynamodb_local": "localstack",
    "localstack": "localstack",
    "in_memory": None,
    "valkey": None,
}
_OF_FIXTURE = {"moto_client": "moto", "dynamodb_local_client": "localstack"}
_OF_FOLDER = {"local": "ministack", "localstack": "localstack", "rie": "rie", "live": "aws"}


@dataclass(frozen=True, slots=True)
class Proof:
    """One run of a marked test. `back_end` is None on fakes, which are no back end."""

    test: str
    guarantees: tuple[int, ...]
    back_end: str | None

    @property
    def function(self) -> str:
        """The test without its parameters."""
        return self.test.partition("[")[0]


@dataclass(frozen=True, slots=True)
class Note:
    """What is said of cells besides the number of their tests: one sentence in each line."""

    kind: str
    text: str


# ------------------------------------------------------------------------------------ the tests


def proof_of(item: pytest.Item) -> Proof | None:
    """What an item says that it proves; None without a mark."""
    marks = list(item.iter_markers("proves"))
    if not marks:
        return None
    numbers = tuple(sorted({number for mark in marks for number in mark.args}))
    told = [mark.kwargs["on"] for mark in marks if "on" in mark.kwargs]
    return Proof(item.nodeid, numbers, told[0] if told else _back_end(item))


def _back_end(item: pytest.Item) -> str | None:
    """That of the parameter's id, of a client that the test asks for, or of the folder."""
    callspec = getattr(item, "callspec", None)
    parameters: Sequence[str] = callspec.id.split("-") if callspec else ()
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    told: tuple[tuple[Mapping[str, str | None], str], ...] = (
        *((_OF_PARAMETER, name) for name in parameters),
        *((_OF_FIXTURE, name) for name in fixtures),
        (_OF_FOLDER, folder),
    )
    return next((known[name] for known, name in told if name in known), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("guarantees")
    group.addoption(
        "--guarantee",
        type=int,
        action="append",
        metavar="N",
        help="select the tests that prove guarantee N of docs/architecture.md",
    )
    group.addoption("--proofs", metavar="FILE", help="write what the marked tests prove, as JSON")


PROOFS = pytest.StashKey[list[Proof]]()
"""In the configuration of a run that has collected all tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    proofs = {item: proof for item in items if (proof := proof_of(item))}
    if _collects_all(config):
        config.stash[PROOFS] = list(proofs.values())
    file = config.getoption("--proofs")
    if file:
        Path(file).write_text(json.dumps([asdict(proof) for proof in proofs.values()]))
    wanted = set(config.getoption("--guarantee") or ())
    if wanted:
        left_out = [
            item
            for item in items
            if item not in proofs or not wanted.intersection(proofs[item].guarantees)
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _collects_all(config: pytest.Config) -> bool:
    """Whether nothing is left out before the tests are collected."""
    leave_out = ("lf", "ignore", "ignore_glob", "deselect")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        config.getoption(option, None) for option in leave_out
    )


def collected() -> list[Proof]:
    """Of all tests, which are collected by a pytest of its own and not run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "proofs.json"
        done = subprocess.run(  # noqa: S603 - our own command
            [
                *(sys.executable, "-m", "pytest", "--collect-only", "--quiet"),
                *("-p", "no:cacheprovider", "--proofs", str(file), "tests"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        told: list[dict[str, Any]] = json.loads(file.read_text())
    return [Proof(one["test"], tuple(one["guarantees"]), one["back_end"]) for one in told]


# ------------------------------------------------------------------------------------ the table


def promises() -> dict[int, str]:
    """Number and title of each guarantee: the bold text that its paragraph begins with."""
    section = PROMISES.read_text("utf-8").split("\n## Guarantees\n")[1].split("\n## ")[0]
    found = re.findall(r"^(\d+)\. \*\*(.+?)\.?\*\*", section, re.MULTILINE)
    return {int(number): title for number, title in found}


def said() -> dict[Cell, list[Note]]:
    """What guarantees.toml says, by cell."""
    found: dict[Cell, list[Note]] = {}
    for table in tomllib.loads(SAID.read_text("utf-8"))["note"]:
        kinds = table.keys() - BACK_ENDS.keys()
        if len(kinds) != 1 or not kinds <= KINDS.keys():
            raise ValueError(f"a note is of one of {[*KINDS]}, and not of {sorted(kinds)}")
        (kind,) = kinds
        note = Note(kind, table[kind].strip())
        for back_end in BACK_ENDS:
            for number in table.get(back_end, ()):
                found.setdefault((number, back_end), []).append(note)
    return found


def counts(proofs: Iterable[Proof]) -> dict[Cell, int]:
    """How many tests prove a guarantee on a back end, whatever their parameters."""
    tests = {
        (number, proof.back_end, proof.function)
        for proof in proofs
        for number in proof.guarantees
        if proof.back_end
    }
    many: dict[Cell, int] = {}
    for number, back_end, _ in tests:
        many[number, back_end] = many.get((number, back_end), 0) + 1
    return many


def state(cell: Cell, many: Mapping[Cell, int], notes: Iterable[Note]) -> str:
    """What the table says in a cell, but for the numbers of its notes."""
    if cell in many:
        return f"{'asked, not run here' if cell[1] == 'aws' else 'proven'} ({many[cell]})"
    return next((KINDS[note.kind] for note in notes if KINDS[note.kind]), NO_TEST)


def table(proofs: Iterable[Proof]) -> str:
    """The table and its notes."""
    many, told = counts(proofs), said()
    numbered: dict[Note, int] = {}
    lines = [
        f"| guarantee | {' | '.join(BACK_ENDS.values())} |",
        f"| --- | {' | '.join('---' for _ in BACK_ENDS)} |",
    ]
    for number, title in promises().items():
        cells = []
        for back_end in BACK_ENDS:
            notes = told.get((number, back_end), [])
            shown = [numbered.setdefault(note, len(numbered) + 1) for note in notes]
            text = state((number, back_end), many, notes)
            cells.append(", ".join([text, *(f"note {note}" for note in shown)]))
        lines.append(f"| {number}. {title} | {' | '.join(cells)} |")
    listed = [
        f"{number}. {note.text}".replace("\n", "\n" + " " * len(f"{number}. "))
        for note, number in numbered.items()
    ]
    return "\n".join([*lines, "", "Notes:", "", *listed])


def rendered(text: str, proofs: Iterable[Proof]) -> str:
    """The document with the table in its place. Raises ValueError when a marker is missing."""
    start, end = (text.find(marker) for marker in MARKERS)
    if not 0 <= start < end:
        raise ValueError(f"{DOCUMENT.name} lacks the markers {MARKERS}")
    return f"{text[: start + len(MARKERS[0])]}\n{table(proofs)}\n{text[end:]}"


def main() -> int:
    """Writes the table."""
    DOCUMENT.write_text(rendered(DOCUMENT.read_text("utf-8"), collected()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
