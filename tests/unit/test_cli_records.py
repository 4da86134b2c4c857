"""What the commands on dead letters put on record: what they did, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import boto3
import pytest
from moto import mock_aws
from sluiceway.domain.errors import RejectedError, SluicewayError
from sluiceway.domain.payload import Payload, compress
from sluiceway_cli import dlq

from tests.fakes.examples import a_job, completed
from tests.unit.test_operate_dlq import LANES, Desk, dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.in_memory import FakeClock, World

Record = tuple[str, str, str]
FIRST, SECOND = (f"job:{a_job(number).job_id}" for number in (1, 2))


@pytest.fixture
def desk(clock: FakeClock, world: World) -> Iterator[Desk]:
    with mock_aws():
        sqs = boto3.client("sqs")
        urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("dead", *LANES)}
        clock.advance(s=60)
        yield Desk(sqs, urls, world, clock)
        sqs.close()


@pytest.fixture
def records(desk: Desk) -> list[Record]:
    """What is put on record at the desk."""
    kept: list[Record] = []
    desk.operator = replace(desk.operator, record=lambda *record: kept.append(record))
    return kept


def actions(records: list[Record]) -> list[tuple[str, str]]:
    return [(action, subject) for action, subject, _ in records]


@pytest.mark.parametrize("by_itself", [False, True])
def test_redrive_of_all_records_each_job_that_runs_again(
    desk: Desk, records: list[Record], *, by_itself: bool
) -> None:
    desk.queues.moves_by_itself = by_itself
    desk.put(dead(1), copies=2)
    desk.put(dead(2, job_key=a_job(1).job_key))  # merged
    desk.put(completed(a_job(3)))  # a stray

    desk.redrive_all()

    assert sorted(actions(records)) == [("dlq.redrive", FIRST), ("dlq.redrive", SECOND)]


def test_redrive_by_sqs_and_by_hand_records_each_job_once(
    desk: Desk, records: list[Record]
) -> None:
    desk.queues.moves_by_itself = True
    jobs = [desk.put(dead(number, lane=lane)) for number, lane in enumerate(LANES, start=1)]
    desk.queues.sent_by_hand = {job.job_id for job in jobs}

    desk.redrive_all()

    assert sorted(actions(records)) == [("dlq.redrive", FIRST), ("dlq.redrive", SECOND)]


def test_redrive_that_failed_is_not_on_record(desk: Desk, records: list[Record]) -> None:
    desk.queues.refuses = {desk.put(dead()).job_id}

    desk.redrive_all()

    assert records == []


def test_redrive_in_the_table_is_on_record_and_again_is_not(
    desk: Desk, records: list[Record]
) -> None:
    job = dead()
    desk.world.jobs[job.tenant, job.job_id] = job

    desk.redrive(job)
    desk.redrive(job)

    assert actions(records) == [("dlq.redrive", FIRST)]


def test_redrive_of_an_unknown_job_is_not_on_record(desk: Desk, records: list[Record]) -> None:
    dlq.redrive_jobs(desk.operator, {"job_unknown": None}, rate=10)

    assert records == []


def test_discard_is_on_record_whenever_it_did_something(desk: Desk, records: list[Record]) -> None:
    job = desk.put(dead())

    dlq.discard(desk.operator, job)
    first = actions(records)
    dlq.discard(desk.operator, desk.row(job))
    second = actions(records)
    desk.put(desk.row(job))  # a message that came since
    dlq.discard(desk.operator, desk.row(job))

    assert first == second == [("dlq.discard", FIRST)]
    assert actions(records) == [("dlq.discard", FIRST)] * 2


def test_discard_that_is_refused_is_not_on_record(desk: Desk, records: list[Record]) -> None:
    job = desk.put(completed(a_job()))

    with pytest.raises(RejectedError):
        dlq.discard(desk.operator, job)
    assert records == []


def test_resubmit_is_one_record_that_names_the_request_of_the_new_job(
    desk: Desk, records: list[Record]
) -> None:
    frozen = Payload(inline=compress(b'{"input":"wrong","options":{}}'))
    job = desk.put(dead(input=frozen))

    made = dlq.resubmit(desk.operator, desk.submitter, job, corrected="right")

    ((action, subject, request_id),) = records
    assert (action, subject) == ("dlq.resubmit", FIRST)
    assert request_id == desk.world.jobs["acme", made.job_id].request_id
    assert desk.row(job).discarded


def test_resubmit_that_is_refused_is_not_on_record(desk: Desk, records: list[Record]) -> None:
    job = desk.put(dead())

    with pytest.raises(SluicewayError):
        dlq.resubmit(desk.operator, desk.submitter, job, corrected=7)
    assert records == []
    assert not desk.row(job).discarded
