"""The table of guarantees in docs/local.md is what the tests' marks and guarantees.toml give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import guarantees

if TYPE_CHECKING:
    from tests.guarantees import Proof


@pytest.fixture(scope="module")
def proofs(pytestconfig: pytest.Config) -> list[Proof]:
    """Those of this run, when it has collected all tests."""
    known = pytestconfig.stash.get(guarantees.PROOFS, None)
    return guarantees.collected() if known is None else known


def test_table_is_what_the_tests_prove(proofs: list[Proof]) -> None:
    text = guarantees.DOCUMENT.read_text("utf-8")

    assert guarantees.rendered(text, proofs) == text, "run `make guarantees`"


def test_marks_name_guarantees_that_there_are(proofs: list[Proof]) -> None:
    wrong = [
        proof.test
        for proof in proofs
        if not proof.guarantees or not set(proof.guarantees) <= guarantees.promises().keys()
    ]

    assert wrong == []


def test_every_marked_test_counts_on_a_back_end(proofs: list[Proof]) -> None:
    marked = {proof.function for proof in proofs}
    counted = {proof.function for proof in proofs if proof.back_end in guarantees.BACK_ENDS}

    assert marked - counted == set()


def test_every_guarantee_is_proven_somewhere(proofs: list[Proof]) -> None:
    many = guarantees.counts(proof for proof in proofs if proof.back_end != "aws")

    proven = {number for number, _ in many}
    assert guarantees.promises().keys() - proven == set()


def test_every_cell_without_tests_says_why(proofs: list[Proof]) -> None:
    many, told = guarantees.counts(proofs), guarantees.said()
    cells = {
        (number, back_end) for number in guarantees.promises() for back_end in guarantees.BACK_ENDS
    }

    assert cells - many.keys() - told.keys() == set()


def test_notes_are_of_cells_that_there_are() -> None:
    assert {number for number, _ in guarantees.said()} <= guarantees.promises().keys()


def test_remarks_are_of_cells_with_tests_and_other_notes_of_those_without(
    proofs: list[Proof],
) -> None:
    many = guarantees.counts(proofs)

    wrong = [
        (*cell, note.text)
        for cell, notes in guarantees.said().items()
        for note in notes
        if (note.kind == "remark") != (cell in many)
    ]

    assert wrong == []


def test_what_the_live_suite_asks_is_not_called_proven() -> None:
    cell = (1, "aws")

    assert guarantees.state(cell, {cell: 2}, []) == "asked, not run here (2)"
