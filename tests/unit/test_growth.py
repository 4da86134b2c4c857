"""Growth: the rows that are filled in, and what must not depend on how many there are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sluiceway.adapters.dynamodb import from_item
from sluiceway.adapters.dynamodb_jobs import job_of
from sluiceway.domain.job import DUE_SHARDS, JobStatus, due_shard
from sluiceway.usecases.sweep_jobs import MOST_READ

from bench import growth, report
from bench.aws_calls import Call, Units
from bench.growth import AtSize, CountedDueJobs, Measured
from tests.fakes.examples import a_job
from tests.fakes.in_memory import NOW_MS, InMemoryDueJobs, World


def rows(many: int) -> list[Any]:
    """As they are put, but for values in Base64."""
    likes = [growth._template(like, NOW_MS + 1) for like in growth.kinds_of(a_job(), NOW_MS)]
    puts = [growth._row(likes[at % len(likes)], at, NOW_MS) for at in range(many)]
    items = [json.loads(put)["PutRequest"]["Item"] for put in puts]
    return [
        job_of(from_item({name: value for name, value in item.items() if "B" not in value}))
        for item in items
    ]


def test_filled_rows_are_open_jobs_of_their_own() -> None:
    jobs = rows(200)

    assert len({(job.job_id, job.job_key, job.cache_key) for job in jobs}) == 200
    assert all(job.open and job.due_shard == due_shard(job.job_id) for job in jobs)
    assert {job.due_shard for job in jobs} == {str(shard) for shard in range(DUE_SHARDS)}
    assert {job.due_at_epoch_ms for job in jobs} == {NOW_MS + 1}
    ages_ms = [NOW_MS - job.enqueued_at_epoch_ms for job in jobs]
    assert 0 < min(ages_ms) < max(ages_ms) <= growth.AGES_MS


def test_every_second_row_is_of_the_tenant_that_is_measured() -> None:
    owners = Counter(job.tenant for job in rows(180))

    assert owners == {"acme": 90, **dict.fromkeys(growth.TENANTS[1:], 10)}


def test_filled_rows_stand_as_a_backlog_does() -> None:
    kinds = Counter(
        (job.status.value, job.lane, job.parked, job.slot is not None)
        for job in growth.kinds_of(a_job(), NOW_MS)
    )

    assert kinds == {
        ("queued", "interactive", False, False): 3,
        ("queued", "batch", False, False): 2,
        ("queued", "interactive", True, False): 2,
        ("queued", "interactive", True, True): 2,
        ("retrying", "interactive", False, False): 1,
    }


def test_index_tells_how_much_of_it_was_read_and_counted() -> None:
    world = World()
    for number in range(8):
        job = a_job(number)
        world.jobs[job.tenant, job.job_id] = replace(
            job, due_shard="3", status=JobStatus.PROCESSING if number == 0 else JobStatus.QUEUED
        )
    looked_on = CountedDueJobs(InMemoryDueJobs(world))

    list(looked_on.indexed("3"))
    assert (looked_on.read, looked_on.told) == (8, 0)

    list(looked_on.counted("3", before={}))
    assert (looked_on.read, looked_on.told) == (9, 8)


# ------------------------------------------------------------------------------------ check


def took(
    calls: int, *, read: float = 1.0, write: float = 0.0, rows: int = 0, **did: int
) -> Measured:
    """So many calls for jobs, and one besides; all units are those of the first."""
    each = [Call("dynamodb", "GetItem", rows="job", requests=1) for _ in range(calls)]
    each[0].units = Units(read, write)
    return Measured((*each, Call("dynamodb", "Query", requests=1)), cpu_ms=1.0, read=rows, did=did)


SWEEPS = {0: took(1), 100: took(200, write=300, sent=9), 1_000: took(2_000, write=3_000, sent=9)}


def at_size(**changes: Any) -> AtSize:
    return replace(AtSize({"get": took(1)}, SWEEPS, {}, 100), **changes)


def test_what_costs_the_same_at_all_sizes_is_right() -> None:
    growth.check({1_000: at_size(), 10_000: at_size()})


def test_sweep_may_look_at_a_longer_backlog_with_more_calls() -> None:
    longer = {
        due: replace(sweep, calls=sweep.calls + took(1).calls[1:], read=MOST_READ)
        for due, sweep in SWEEPS.items()
    }

    growth.check({1_000: at_size(), 100_000: at_size(sweeps=longer)})


@pytest.mark.parametrize(
    "changes",
    [
        {"paths": {"get": took(2)}},
        {"paths": {"get": took(1, read=1.5)}},
        {"sweeps": {**SWEEPS, 100: took(201, write=300, sent=9)}},
        {"sweeps": {**SWEEPS, 100: took(200, write=301, sent=9)}},
        {"sweeps": {**SWEEPS, 1_000: took(2_000, write=3_000, sent=10)}},
        {"sweeps": {**SWEEPS, 0: took(1, rows=MOST_READ + 1)}},
    ],
    ids=[
        *("calls of a job", "units of a job"),
        *("calls of due jobs", "units of due jobs", "messages", "reads too many"),
    ],
)
def test_what_grows_and_must_not_is_told(changes: dict[str, Any]) -> None:
    with pytest.raises(report.NotMeasuredError):
        growth.check({1_000: at_size(), 10_000: at_size(**changes)})
