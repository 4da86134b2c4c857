"""Submit of a batch: what goes at once, what goes in order, and when there is no time left."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.batch import BatchItem, Refusal
from sluiceway.domain.errors import (
    DegradedError,
    ForbiddenError,
    QuotaExceededError,
    StoreBusyError,
    ValidationFailedError,
)
from sluiceway.domain.freshness import Freshness, KeptHit
from sluiceway.domain.job import ROW_OUTLIVES_DEADLINE_S
from sluiceway.domain.request import MAX_BATCH_JOBS, SubmitRequest, batch_of
from sluiceway.usecases.submit_batch import (
    AT_ONCE,
    BEGIN_BEFORE_END_MS,
    MAX_REFUSAL_BYTES,
    SubmittedBatch,
    submit_batch,
)
from sluiceway.usecases.submit_job import Accepted, Hit

from tests.fakes.in_memory import NOW_MS, InMemoryBatches, World
from tests.unit.samples import a_job, an_entry

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ID = "batch_01KDVT7V00000000000000000A"


def submitted(
    items: list[dict[str, Any]],
    submit: Callable[[SubmitRequest], Hit | Accepted],
    *,
    left_ms: Callable[[], int] = lambda: 29_000,
    world: World | None = None,
) -> SubmittedBatch:
    wanted = batch_of(
        {
            "jobs": [
                {"custom_id": str(number), "model": "demo-chat", "input": "hello", **item}
                for number, item in enumerate(items)
            ]
        }
    )
    return submit_batch(
        wanted,
        "acme",
        BATCH_ID,
        now_ms=NOW_MS,
        submit=submit,
        time_left_ms=left_ms,
        batches=InMemoryBatches(world or World()),
    )


def accepted(asked: SubmitRequest) -> Accepted:
    return Accepted(a_job(job_id=f"job_{asked.input}"), deduplicated=False)


def test_outcomes_are_in_the_order_of_the_items_however_they_come() -> None:
    later = threading.Event()

    def submit(asked: SubmitRequest) -> Accepted:
        if asked.input == "0":
            assert later.wait(10)
        if asked.input == "3":
            later.set()
        return accepted(asked)

    done = submitted([{"input": str(number)} for number in range(4)], submit)

    assert [item.job_id for item in done.batch.items] == [f"job_{number}" for number in range(4)]
    assert [item.custom_id for item in done.batch.items] == ["0", "1", "2", "3"]


def test_few_submits_are_in_flight_at_once() -> None:
    lock, inside, most = threading.Lock(), 0, 0
    full = threading.Barrier(AT_ONCE)

    def submit(asked: SubmitRequest) -> Accepted:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        full.wait(10)
        with lock:
            inside -= 1
        return accepted(asked)

    submitted([{"input": str(number)} for number in range(3 * AT_ONCE)], submit)

    assert most == AT_ONCE


def test_equal_items_go_one_after_the_other_in_their_order() -> None:
    seen: list[dict[str, str]] = []

    submitted(
        [{"metadata": {"number": str(number)}, "deadline_s": number + 1} for number in range(20)],
        lambda asked: (seen.append(asked.metadata), accepted(asked))[1],
    )

    assert [one["number"] for one in seen] == [str(number) for number in range(20)]


def test_items_that_differ_in_their_metadata_only_are_one_submit() -> None:
    seen: list[SubmitRequest] = []

    done = submitted(
        [{"metadata": {"number": str(number)}} for number in range(100)],
        lambda asked: (seen.append(asked), accepted(asked))[1],
    )

    assert [one.metadata for one in seen] == [{"number": "0"}]
    assert {item.job_id for item in done.batch.items} == {"job_hello"}
    assert [item.deduplicated for item in done.batch.items] == [False] + [True] * 99
    assert len(done.shared) == 99


def test_equal_item_of_one_that_was_refused_is_submitted() -> None:
    outcomes: list[Any] = [QuotaExceededError("Too many.", retry_after_s=10)]

    def submit(asked: SubmitRequest) -> Accepted:
        if outcomes:
            raise outcomes.pop()
        return accepted(asked)

    done = submitted([{}, {}, {}], submit)

    assert [item.job_id for item in done.batch.items] == [None, "job_hello", "job_hello"]


def test_equal_item_is_told_of_its_job_as_a_later_one_has_left_it() -> None:
    def submit(asked: SubmitRequest) -> Accepted:
        assert asked.priority is not None
        return Accepted(a_job(lane=asked.priority), deduplicated=asked.priority == "interactive")

    done = submitted([{}, {"priority": "interactive"}, {}], submit)

    last = done.outcomes[2]
    assert isinstance(last, Accepted)
    assert (last.job.lane, last.deduplicated) == ("interactive", True)


@pytest.mark.parametrize(
    "other",
    [
        {"input": "other"},
        {"model": "demo-heavy"},
        {"options": {"seed": 1}},
        {"locale": "de"},
        {"safety_profile": "strict"},
        {"cache": {"mode": "refresh"}},
        {"cache": {"no_store": True}},
    ],
    ids=str,
)
def test_other_work_does_not_wait_for_it(other: dict[str, Any]) -> None:
    both = threading.Barrier(2)

    def submit(asked: SubmitRequest) -> Accepted:
        both.wait(10)
        return accepted(asked)

    done = submitted([{}, other], submit)

    assert all(isinstance(one, Accepted) for one in done.outcomes)


def test_items_for_which_there_is_no_time_are_told_to_come_again() -> None:
    left = iter([BEGIN_BEFORE_END_MS, BEGIN_BEFORE_END_MS - 1])
    calls: list[SubmitRequest] = []

    done = submitted(
        [{}, {"deadline_s": 60}],
        lambda asked: (calls.append(asked), accepted(asked))[1],
        left_ms=lambda: next(left),
    )

    assert len(calls) == 1
    assert isinstance(done.outcomes[0], Accepted)
    assert isinstance(done.outcomes[1], DegradedError)
    refusal = done.batch.items[1].refusal
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("degraded", 5)


def test_batch_is_kept_with_what_is_needed_to_tell_it_again() -> None:
    world = World()
    entry = an_entry()

    def submit(asked: SubmitRequest) -> Hit | Accepted:
        match asked.input:
            case "hit":
                return Hit(entry, Freshness.STALE, b"a big result", at_ms=NOW_MS + 5_000)
            case "refused":
                raise ForbiddenError("no")
            case "busy":
                raise StoreBusyError("later", retry_after_s=7)
        return Accepted(a_job(ttl_epoch_s=NOW_MS // 1000 + 99_999_999), deduplicated=True)

    done = submitted(
        [{"input": one} for one in ("hit", "refused", "busy", "job")], submit, world=world
    )

    assert world.batches == {("acme", BATCH_ID): done.batch}
    assert done.batch.created_at_epoch_ms == NOW_MS
    assert done.batch.ttl_epoch_s == NOW_MS // 1000 + 99_999_999
    assert done.batch.items == (
        BatchItem("0", hit=KeptHit.of(entry, Freshness.STALE, NOW_MS + 5_000)),
        BatchItem("1", refusal=Refusal("forbidden", "no")),
        BatchItem("2", refusal=Refusal("degraded", "later", retry_after_s=7)),
        BatchItem("3", job_id=a_job().job_id, deduplicated=True),
    )
    assert isinstance(done.outcomes[0], Hit)
    assert done.outcomes[0].result == b""


def test_batch_without_jobs_lives_as_long_as_a_job_does_after_its_deadline() -> None:
    def submit(_: SubmitRequest) -> Hit | Accepted:
        raise ForbiddenError("no")

    done = submitted([{}], submit)

    assert done.batch.ttl_epoch_s == NOW_MS // 1000 + ROW_OUTLIVES_DEADLINE_S


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_refusals_of_a_whole_batch_fit_into_a_row(character: str) -> None:
    faults = tuple({"field": character * 64, "message": f"{n}" * 64} for n in range(50))

    def submit(_: SubmitRequest) -> Hit | Accepted:
        raise ValidationFailedError("The body doesn't fit the schema.", errors=faults)

    done = submitted([{"input": str(n)} for n in range(MAX_BATCH_JOBS)], submit)

    for item in done.batch.items:
        assert item.refusal is not None
        assert item.refusal.errors == faults[: len(item.refusal.errors)]
        assert len(item.refusal.errors) > 1
        size = sum(len(text.encode()) for one in item.refusal.errors for text in one.values())
        assert size <= MAX_REFUSAL_BYTES
