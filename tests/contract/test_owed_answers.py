"""Owed answers: which job an equal request waits for, on the fake and on DynamoDB."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_owed_answers import DynamoDBOwedAnswers

from tests.contract.harness import make_tables
from tests.fakes.in_memory import NOW_MS, InMemoryOwedAnswers, World

if TYPE_CHECKING:
    from typing import Any

    from sluiceway.ports import OwedAnswers

UNTIL_MS = NOW_MS + 300_000


@pytest.fixture(params=["in_memory", "moto", "dynamodb_local"])
def owed(request: pytest.FixtureRequest) -> OwedAnswers:
    if request.param == "in_memory":
        return InMemoryOwedAnswers(World())
    client: Any = request.getfixturevalue(f"{request.param}_client")
    name = make_tables(client, f"owed-{secrets.token_hex(4)}").names.coordination
    return DynamoDBOwedAnswers(Table(client, pause=lambda _: None), name)


def test_nothing_is_owed_at_first(owed: OwedAnswers) -> None:
    assert owed.find("acme", "digest", now_ms=NOW_MS) is None


@pytest.mark.proves(9)
def test_answer_is_owed_until_its_end_and_no_longer(owed: OwedAnswers) -> None:
    owed.owe("acme", "digest", "job_1", until_ms=UNTIL_MS)

    assert owed.find("acme", "digest", now_ms=NOW_MS) == "job_1"
    assert owed.find("acme", "digest", now_ms=UNTIL_MS) == "job_1"
    assert owed.find("acme", "digest", now_ms=UNTIL_MS + 1) is None


def test_answer_is_owed_for_one_tenants_request_only(owed: OwedAnswers) -> None:
    owed.owe("acme", "digest", "job_1", until_ms=UNTIL_MS)

    assert owed.find("globex", "digest", now_ms=NOW_MS) is None
    assert owed.find("acme", "another", now_ms=NOW_MS) is None


def test_later_debt_takes_the_place_of_the_one_before(owed: OwedAnswers) -> None:
    owed.owe("acme", "digest", "job_1", until_ms=UNTIL_MS)

    owed.owe("acme", "digest", "job_2", until_ms=UNTIL_MS + 9)

    assert owed.find("acme", "digest", now_ms=UNTIL_MS + 9) == "job_2"


def test_forgotten_answer_is_owed_no_more(owed: OwedAnswers) -> None:
    owed.owe("acme", "digest", "job_1", until_ms=UNTIL_MS)

    owed.forget("acme", "digest", "job_1")

    assert owed.find("acme", "digest", now_ms=NOW_MS) is None


@pytest.mark.parametrize("there", [True, False])
def test_forgetting_leaves_another_jobs_answer_alone(owed: OwedAnswers, *, there: bool) -> None:
    if there:
        owed.owe("acme", "digest", "job_2", until_ms=UNTIL_MS)

    owed.forget("acme", "digest", "job_1")

    assert owed.find("acme", "digest", now_ms=NOW_MS) == ("job_2" if there else None)
