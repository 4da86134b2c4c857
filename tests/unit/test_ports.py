"""What came of a call is told by its kind, too."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sluiceway.ports import (
    Applied,
    BudgetSpent,
    CapReached,
    Claimed,
    LeaseHeld,
    Moved,
    Started,
    Submitted,
)

OUTCOMES: list[Any] = [
    *(kind("same") for kind in (Applied, BudgetSpent, Claimed, LeaseHeld, Moved, Submitted)),
    *(CapReached(), (), ("same",), Started("a", "b"), ("a", "b")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(OUTCOMES, 2)], ids=repr)
def test_outcomes_of_two_kinds_are_never_equal(one: Any, other: Any) -> None:
    assert not one == other  # noqa: SIM201 - both operators are asked
    assert one != other


@pytest.mark.parametrize("one", OUTCOMES, ids=repr)
def test_outcomes_of_one_kind_are_equal_when_they_hold_the_same(one: Any) -> None:
    same = type(one)(one) if type(one) is tuple else type(one)(*one)

    assert one == same
    assert not one != same  # noqa: SIM202
    assert hash(one) == hash(same)
