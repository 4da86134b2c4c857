"""Batches: many submits in one request."""

from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Body, Path
from pydantic import Field
from sluiceway.batch_http import batch_reply
from sluiceway.domain.batch import Batch as Row
from sluiceway.domain.batch import BatchItem, Refusal
from sluiceway.domain.request import BatchRequest
from sluiceway.http import Reply

from sluiceway_local.openapi import samples
from sluiceway_local.openapi.forms import (
    BODY,
    KEYED,
    Absent,
    Answer,
    CorrelationId,
    Count,
    Fault,
    IdempotencyKey,
    Moment,
    Prefer,
    answer,
    area,
    refusals,
)
from sluiceway_local.openapi.jobs import Job, Key, Usage

AREA = area("batches", "Up to 100 jobs in one request.")


class RequestCounts(Answer):
    """How the items stand."""

    total: Count
    completed: Count
    failed: Count
    """Refused items are among them."""
    cancelled: Count
    in_progress: Count


class ItemError(Answer):
    """Why an item has no job."""

    code: str
    """That of the error that the item's submit alone would have got."""
    message: str
    retryable: bool
    errors: Annotated[list[Fault], Field(min_length=1)] | Absent = None
    retry_after_s: Annotated[int, Field(ge=1)] | Absent = None
    """Seconds after which it may be sent again."""


class BatchJob(Job):
    """A job of a batch."""

    metadata: dict[str, str] | Absent = None  # type: ignore[assignment]
    """As submitted; left out where the answer would be too large otherwise."""


class Item(Answer):
    """One item: either a job or an error."""

    custom_id: str
    job: BatchJob | Absent = None
    error: ItemError | Absent = None


class BatchUrls(Answer):
    """Paths for this batch."""

    self_: str = Field(alias="self")


class Batch(Answer):
    """Items in the order of the request."""

    id: Key
    object: Literal["batch"]
    status: Literal["in_progress", "completed"]
    """`completed` when no job of it is open, however they ended."""
    created_at: Moment
    request_counts: RequestCounts
    usage: Usage
    """The sums; a job that several items share is counted once."""
    data: list[Item]
    urls: BatchUrls


def _sample(status: int) -> Reply:
    refused = Refusal("model_not_found", "There is no such model.")
    row = Row(
        tenant="acme",
        batch_id="batch_01KDVT7V00000000000000000A",
        created_at_epoch_ms=samples.NOW_MS,
        ttl_epoch_s=samples.NOW_MS // 1000,
        items=(
            BatchItem("first", job_id=samples.QUEUED.job_id),
            BatchItem("second", refusal=refused),
        ),
    )
    return batch_reply(
        status,
        row,
        {samples.QUEUED.job_id: samples.QUEUED},
        {},
        base_path=samples.BASE_PATH,
        now_ms=samples.NOW_MS,
        places={samples.QUEUED.job_id: samples.PLACE},
    )


@AREA.call(
    "POST",
    "/batches",
    "submitBatch",
    scope="submit",
    summary="Submit many jobs",
    description=(
        "What is wrong with an item is that item's own error, and the others go on. Items go to "
        "the lane `batch` unless they say otherwise."
    ),
    answers={
        202: answer(
            "The batch, with a job or an error for each item.",
            Batch,
            {"A batch": _sample(202)},
            always=("Location",),
            sometimes=(
                *("Idempotent-Replayed", "Preference-Applied", "RateLimit", "RateLimit-Policy"),
                "Retry-After",
            ),
            links={
                "fetch": {
                    "operationId": "getBatch",
                    "parameters": {"batch_id": "$response.body#/id"},
                    "description": "The batch's `id` is that of its fetch.",
                }
            },
        ),
        **refusals(
            *KEYED,
            *BODY,
            *("batch_not_found", "idempotency_in_progress", "idempotency_key_reused"),
            "feature_disabled",
        ),
    },
)
def _submit(
    *,
    body: Annotated[
        BatchRequest,
        Body(
            description="The items, 1 MiB at most; each is a submit with a `custom_id`.",
            openapi_examples={
                "two": {
                    "summary": "Two jobs",
                    "value": {
                        "jobs": [
                            {"custom_id": "first", "model": "demo-chat", "input": "One?"},
                            {"custom_id": "second", "model": "demo-chat", "input": "Two?"},
                        ]
                    },
                }
            },
        ),
    ],
    prefer: Prefer = None,
    key: IdempotencyKey = None,
    correlation_id: CorrelationId = None,
) -> None: ...


@AREA.call(
    "GET",
    "/batches/<batch_id>",
    "getBatch",
    scope="read",
    summary="Fetch a batch with its jobs",
    answers={
        200: answer(
            "The batch, with its jobs as they are now.",
            Batch,
            {"A batch": _sample(200)},
            sometimes=("Preference-Applied", "Retry-After"),
        ),
        **refusals(*KEYED, "batch_not_found"),
    },
)
def _get(
    batch_id: Annotated[str, Path(description="Of the batch.", max_length=64)],
    prefer: Prefer = None,
) -> None: ...
