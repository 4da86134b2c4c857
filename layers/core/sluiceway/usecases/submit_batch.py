"""Batch: many submits in one request, each with an outcome of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.errors import BusyError, DegradedError, RejectedError, SluicewayError
from sluiceway.domain.freshness import KeptHit
from sluiceway.domain.job import ROW_OUTLIVES_DEADLINE_S, Job
from sluiceway.domain.keys import digest_of
from sluiceway.domain.request import BatchRequest, SubmitRequest, submit_of
from sluiceway.usecases.submit_job import Accepted, Hit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluiceway.ports import Batches

AT_ONCE = 5
"""Submits in flight. A tenant has few rows for its counter, where more would only wait for each
other, and each may hold a big result of a hit in memory."""

BEGIN_BEFORE_END_MS = 10_000
"""No submit is begun later: the batch's row and the answer need a moment, too."""

RETRY_S = 5
"""When items for which there was no time may come again."""

MAX_REFUSAL_BYTES = 2_500
"""Of the faults that are kept for one item, so that 100 of them fit into a row."""

Outcome = Hit | Accepted | SluicewayError


class SubmittedBatch(NamedTuple):
    """What was kept, and what came of each item, in their order; a hit is without its result."""

    batch: Batch
    outcomes: Sequence[Outcome]
    shared: Sequence[Job]
    """One for each item that has the job of an equal one before it, and was not submitted."""


def submit_batch(
    wanted: BatchRequest,
    tenant: str,
    batch_id: str,
    *,
    now_ms: int,
    submit: Callable[[SubmitRequest], Hit | Accepted],
    time_left_ms: Callable[[], int],
    batches: Batches,
    local: bool = False,
) -> SubmittedBatch:
    """Submits each item, some at once, and keeps what came of them under the batch's id.

    An item without a `priority` goes to the lane `batch`. Items that ask for the same go one after
    the other in their order, so that the first one's job is the others', too. Those that differ in
    nothing but their metadata have it even when it ends meanwhile: nobody pays twice for one batch.
    `submit` is called in several threads; what it raises is the item's own error.
    Raises StoreBusyError when the batch can't be kept. Its jobs are there all the same, and the
    same batch again finds those that are open.
    """
    outcomes: list[Outcome] = [SluicewayError()] * len(wanted.jobs)
    lines: dict[str, list[tuple[int, SubmitRequest]]] = {}
    for number, item in enumerate(wanted.jobs):
        try:
            asked = submit_of(item.submit, local=local)
        except RejectedError as error:
            outcomes[number] = error
            continue
        if asked.priority is None:
            asked = asked.model_copy(update={"priority": "batch"})
        lines.setdefault(_work_of(asked), []).append((number, asked))

    shared: list[Job] = []

    def go_through(line: Sequence[tuple[int, SubmitRequest]]) -> None:
        job_ids: list[tuple[SubmitRequest, str]] = []
        jobs: dict[str, Accepted] = {}
        for number, asked in line:
            work = asked.model_copy(update={"metadata": {}})
            had = next((job_id for before, job_id in job_ids if before == work), None)
            if had is not None:
                outcomes[number] = replace(jobs[had], deduplicated=True)
                shared.append(jobs[had].job)
                continue
            outcome = outcomes[number] = _outcome(asked, submit, time_left_ms)
            if isinstance(outcome, Accepted):
                job_ids.append((work, outcome.job.job_id))
                jobs[outcome.job.job_id] = outcome

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in threads.map(go_through, lines.values()):
            pass

    kept_until_s = [one.job.ttl_epoch_s for one in outcomes if isinstance(one, Accepted)]
    batch = Batch(
        tenant=tenant,
        batch_id=batch_id,
        created_at_epoch_ms=now_ms,
        ttl_epoch_s=max([now_ms // 1000 + ROW_OUTLIVES_DEADLINE_S, *kept_until_s]),
        items=tuple(
            _kept(item.custom_id, outcome)
            for item, outcome in zip(wanted.jobs, outcomes, strict=True)
        ),
    )
    batches.add(batch)
    return SubmittedBatch(batch, outcomes, shared)


def _work_of(asked: SubmitRequest) -> str:
    """The same for items that may share a job; what else is in a key is the same for all."""
    cache = asked.cache
    return digest_of(
        [
            *(asked.model, asked.plain_input(), asked.options),
            *(asked.locale, asked.safety_profile, cache.mode, cache.no_store),
        ]
    )


def _outcome(
    asked: SubmitRequest,
    submit: Callable[[SubmitRequest], Hit | Accepted],
    time_left_ms: Callable[[], int],
) -> Outcome:
    if time_left_ms() < BEGIN_BEFORE_END_MS:
        return DegradedError("There was no time left for this item.", retry_after_s=RETRY_S)
    try:
        done = submit(asked)
    except SluicewayError as error:
        return error
    # A hundred big results at once would be more than the memory.
    return done._replace(result=b"") if isinstance(done, Hit) else done


def _kept(custom_id: str, outcome: Outcome) -> BatchItem:
    match outcome:
        case Hit():
            hit = KeptHit.of(outcome.entry, outcome.freshness, outcome.at_ms)
            return BatchItem(custom_id, hit=hit)
        case Accepted():
            return BatchItem(
                custom_id, job_id=outcome.job.job_id, deduplicated=outcome.deduplicated
            )
    return BatchItem(custom_id, refusal=_refusal(outcome))


def _refusal(error: SluicewayError) -> Refusal:
    told, size = [], 0
    for fault in error.errors if isinstance(error, RejectedError) else ():
        size += sum(len(name) + len(text.encode()) for name, text in fault.items())
        if size > MAX_REFUSAL_BYTES:
            break
        told.append(fault)
    return Refusal(
        code=error.code,
        message=str(error),
        errors=tuple(told),
        retry_after_s=error.retry_after_s if isinstance(error, BusyError) else None,
    )
