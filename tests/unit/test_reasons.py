"""Why a job failed, or what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import MODEL_GONE
from sluiceway.domain.gate import Gate
from sluiceway.domain.ticket import Ticket
from sluiceway_cli.reasons import Surroundings, why
from sluiceway_cli.times import age, offset

from tests.fakes.examples import DEADLINE_S, a_job, completed, failed, redriven, retrying
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from sluiceway.domain.job import Job


def processing(**changes: Any) -> Job:
    return transitions.started(
        a_job(1, **changes), fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 60_000
    )


PARKED = transitions.parked(a_job(), not_before_ms=NOW_MS + 30_000)
SLOTTED = transitions.gated(
    processing(), not_before_ms=NOW_MS + 20_000, slot=Ticket(NOW_MS + 20_000, 0, 0)
)
PAUSED = Surroundings(gate=Gate(paused=True))
CLOSED = Surroundings(gate=Gate(closed_until_ms=NOW_MS + 72_000))
DOWN = Surroundings(gate=Gate(closed_until_ms=NOW_MS + 72_000, probing=True))
STOPPED = Surroundings(lane_stopped=True)
TENANT = Surroundings(tenant_paused=True, gate=Gate(paused=True))


@pytest.mark.parametrize(
    ("job", "around", "waits_for", "told"),
    [
        (a_job(), Surroundings(), "worker", "waits for a worker of interactive."),
        (
            a_job(),
            Surroundings(position=3, eta_ms=12_000),
            "worker",
            "about number 3 in its line; a result is expected in 12s",
        ),
        (a_job(), TENANT, "tenant", "sluiceway resume tenant:acme"),
        (a_job(), PAUSED, "model", "sluiceway resume model:demo-chat"),
        (a_job(), STOPPED, "lane", "sluiceway resume lane:interactive"),
        (a_job(), CLOSED, "gate", "for 1m12s, because the vendor refused calls"),
        (a_job(), DOWN, "gate", "for 1m12s, because the vendor fails"),
        (PARKED, Surroundings(), "turn", "parked, and looks again in 30s"),
        (PARKED, STOPPED, "turn", "parked, and looks again in 30s"),
        (SLOTTED, Surroundings(), "slot", "a slot of the gate in 20s"),
        (
            retrying(processing(), delay_ms=8000),
            Surroundings(),
            "retry",
            "tried again in 8s, after vendor_unavailable: The vendor answered 503.",
        ),
        (processing(), TENANT, "call", "A worker is at it since 0s, in attempt 1."),
        (redriven(failed(a_job()), now_ms=NOW_MS), Surroundings(), "worker", "waits for a worker"),
    ],
)
def test_open_job_waits_for_one_thing(
    job: Job, around: Surroundings, waits_for: str, told: str
) -> None:
    found = why(job, around, now_ms=NOW_MS)

    assert found.waits_for == waits_for
    assert told in found.sentence


@pytest.mark.parametrize(
    ("job", "at_s", "told"),
    [
        (PARKED, 31, "the sweeper sends its message"),
        (a_job(), DEADLINE_S, "deadline has passed"),
        (processing(), 91, "its worker must have died"),
        (processing(), DEADLINE_S, "its worker must have died"),
    ],
)
def test_overdue_job_waits_for_the_sweeper(job: Job, at_s: int, told: str) -> None:
    found = why(job, Surroundings(), now_ms=NOW_MS + at_s * 1000)

    assert found.waits_for == "sweeper"
    assert told in found.sentence
    assert found.runbook == "docs/operations.md#the-sweeper"


@pytest.mark.parametrize(
    ("job", "told", "section"),
    [
        (completed(a_job()), "completed, with a result from the vendor", None),
        (
            completed(a_job(), source="cache"),
            "completed, with a result from the cache",
            None,
        ),
        (transitions.cancelled(a_job(), now_ms=NOW_MS), "was cancelled", "cancel-a-job"),
        (failed(processing()), "It failed after 1 attempt, because the vendor", "redrive"),
        (
            failed(replace(processing(), attempts_total=5)),
            "It failed after 1 attempt of this run, and 5 in all, because the vendor",
            "redrive",
        ),
        (
            failed(processing(), last_receive=True),
            "It is dead-lettered after 1 attempt",
            "redrive",
        ),
        (
            transitions.discarded(failed(processing(), last_receive=True), now_ms=NOW_MS + 5000),
            "an operator gave it up; it had failed as vendor_unavailable: The vendor answered 503.",
            "discard",
        ),
    ],
)
def test_ended_job_has_a_cause_and_a_section(job: Job, told: str, section: str | None) -> None:
    found = why(job, Surroundings(), now_ms=NOW_MS)

    assert told in found.sentence
    assert found.waits_for is None
    assert found.runbook == (None if section is None else f"docs/runbook.md#{section}")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-3, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (192, "3m12s"),
        (3599, "59m59s"),
        (7500, "2h05m"),
        (273_600, "3d04h"),
    ],
)
def test_age_is_read_at_a_glance(seconds: float, told: str) -> None:
    assert age(seconds) == told


@pytest.mark.parametrize(
    ("ms", "told"), [(0, "+0.000s"), (1234, "+1.234s"), (-871, "-0.871s"), (61_500, "+1m01s")]
)
def test_offset_has_its_sign(ms: int, told: str) -> None:
    assert offset(ms) == told


def test_job_whose_model_was_taken_out_leads_to_the_catalogue() -> None:
    job = failed(processing())
    gone = replace(job.error, code="vendor_rejected", message=MODEL_GONE)

    found = why(replace(job, error=gone), Surroundings(), now_ms=NOW_MS)

    assert found.runbook == "docs/runbook.md#roll-back-a-catalogue"
