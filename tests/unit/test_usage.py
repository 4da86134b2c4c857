"""Usage: what an end counts, which days are asked for, and in which order they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import InvalidRequestError
from sluiceway.domain.usage import UsageRow, usage_of
from sluiceway.usecases.usage import MAX_DAYS, Period, newest_first, period_of

from tests.fakes.examples import a_job, an_entry, an_error, completed, failed, redriven
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

DAY_MS = 24 * 3600 * 1000
DEAD = failed(a_job(), last_receive=True)


# ------------------------------------------------------------------------------------ an end


@pytest.mark.parametrize(
    ("job", "counts"),
    [
        (
            completed(a_job()),
            {"completed": 1, "input_tokens": 10, "output_tokens": 20, "cost_nanos": 330_000},
        ),
        (completed(a_job(), input_tokens=0, output_tokens=0, cost_nanos=0), {"completed": 1}),
        (
            transitions.completed_from(an_entry(a_job()), a_job(), now_ms=NOW_MS),
            {"completed": 1, "from_cache": 1, "saved_nanos": 330_000},
        ),
        (failed(a_job()), {"failed": 1}),
        (DEAD, {"failed": 1}),
        (transitions.dead_lettered(failed(a_job())), {"failed": 1}),
        (transitions.discarded(DEAD, now_ms=NOW_MS + 5000), {"failed": 1}),
        (transitions.cancelled(a_job(), now_ms=NOW_MS), {"cancelled": 1}),
    ],
    ids=[
        *("completed", "completed for nothing", "from the cache", "failed", "dead-lettered"),
        *("marked later", "discarded", "cancelled"),
    ],
)
def test_end_counts_itself_and_what_the_job_paid(job: Job, counts: dict[str, int]) -> None:
    row = usage_of(job)

    assert (row.day, row.model) == ("2026-01-01", "demo-chat")
    assert row.counts == counts


@pytest.mark.parametrize(
    ("ended_at_ms", "day"),
    [
        (NOW_MS - 1, "2025-12-31"),
        (NOW_MS, "2026-01-01"),
        (NOW_MS + DAY_MS - 1, "2026-01-01"),
        (NOW_MS + DAY_MS, "2026-01-02"),
    ],
)
def test_end_is_counted_on_its_own_day_in_utc(ended_at_ms: int, day: str) -> None:
    error = an_error()

    ends = [
        completed(a_job(), now_ms=ended_at_ms),
        transitions.failed(a_job(), error, now_ms=ended_at_ms, last_receive=False),
        transitions.cancelled(a_job(), now_ms=ended_at_ms),
    ]

    assert {usage_of(job).day for job in ends} == {day}


def test_discard_and_mark_leave_the_day_of_the_failure() -> None:
    marked = transitions.dead_lettered(failed(a_job()))
    discarded = transitions.discarded(marked, now_ms=NOW_MS + 3 * DAY_MS)

    assert usage_of(discarded).day == usage_of(marked).day == "2026-01-01"


def test_second_end_of_a_redriven_job_is_on_a_day_of_its_own() -> None:
    again = redriven(DEAD, now_ms=NOW_MS + DAY_MS)

    ended = transitions.cancelled(again, now_ms=NOW_MS + 2 * DAY_MS)

    assert usage_of(ended) == UsageRow("2026-01-03", "demo-chat", cancelled=1)


def test_rows_add_up() -> None:
    one = UsageRow("2026-01-01", "demo-chat", completed=1, from_cache=1, saved_nanos=5)
    other = UsageRow("2026-01-01", "demo-chat", completed=2, failed=3, input_tokens=7)

    assert one + other == UsageRow(
        "2026-01-01",
        "demo-chat",
        completed=3,
        failed=3,
        from_cache=1,
        input_tokens=7,
        saved_nanos=5,
    )


# ------------------------------------------------------------------------------------ the period


def asked(first: str | None, last: str | None) -> Period:
    """On the last millisecond of 2026-01-31."""
    given = {"from": first, "to": last}
    parameters = {name: day for name, day in given.items() if day is not None}
    return period_of(parameters, now_ms=NOW_MS + 31 * DAY_MS - 1)


@pytest.mark.parametrize(
    ("given", "period"),
    [
        ((None, None), ("2026-01-01", "2026-01-31")),
        (("2026-01-15", None), ("2026-01-15", "2026-01-31")),
        ((None, "2026-01-15"), ("2025-12-16", "2026-01-15")),
        (("2024-02-29", "2024-02-29"), ("2024-02-29", "2024-02-29")),
        (("2026-01-30", "2026-03-01"), ("2026-01-30", "2026-03-01")),
        (("2025-11-01", "2026-01-31"), ("2025-11-01", "2026-01-31")),
        ((None, "0001-01-01"), ("0001-01-01", "0001-01-01")),
        (("9999-12-31", "9999-12-31"), ("9999-12-31", "9999-12-31")),
    ],
)
def test_period_is_what_was_given_and_a_month_until_today_else(
    given: tuple[str | None, str | None], period: tuple[str, str]
) -> None:
    assert asked(*given) == Period(*period)


@pytest.mark.parametrize(
    "day",
    [
        *("", "today", "2026-1-1", "20260101", "2026-W01-1", "2026-01-01T00:00:00Z", "2026/01/01"),
        *("2026-02-29", "2026-13-01", "2026-00-10", "2026-01-32", "0000-01-01", " 2026-01-01"),
        *(
            "2026-01-01\n",
            "-026-01-01",
            "\N{FULLWIDTH DIGIT TWO}026-01-01",
            "2026-01-01,2026-01-02",
        ),
    ],
)
@pytest.mark.parametrize("name", ["from", "to"])
def test_day_that_is_none_is_refused_by_the_name_of_its_parameter(day: str, name: str) -> None:
    given = (day, None) if name == "from" else (None, day)

    with pytest.raises(InvalidRequestError, match=rf"^{name} is a day"):
        asked(*given)


@pytest.mark.parametrize(
    "given", [("2026-01-02", "2026-01-01"), ("2026-02-01", None)], ids=["before", "not yet"]
)
def test_period_that_ends_before_it_begins_is_refused(given: tuple[str, str | None]) -> None:
    with pytest.raises(InvalidRequestError, match="from is after to"):
        asked(*given)


@pytest.mark.parametrize(
    "given", [("2025-10-31", None), ("2025-10-31", "2026-01-31"), ("0001-01-01", "9999-12-31")]
)
def test_period_of_more_than_92_days_is_refused(given: tuple[str, str | None]) -> None:
    with pytest.raises(InvalidRequestError, match=f"from and to may span {MAX_DAYS} days"):
        asked(*given)


# ------------------------------------------------------------------------------------ the order


def test_newest_day_is_first_and_its_models_in_alphabetical_order() -> None:
    days, models = ("2025-12-31", "2026-01-01"), ("b", "a", "c")
    rows = [UsageRow(day, model) for day in days for model in models]

    assert [(row.day, row.model) for row in newest_first(rows)] == [
        *(("2026-01-01", "a"), ("2026-01-01", "b"), ("2026-01-01", "c")),
        *(("2025-12-31", "a"), ("2025-12-31", "b"), ("2025-12-31", "c")),
    ]
