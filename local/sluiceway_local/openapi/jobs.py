"""Jobs: submit, fetch, list, cancel."""

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import Field
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.domain.job import JobStatus
from sluiceway.domain.request import Lane, SubmitRequest
from sluiceway.usecases.list_jobs import DEFAULT_LIMIT, MAX_LIMIT

from sluiceway_local.openapi import samples
from sluiceway_local.openapi.forms import (
    BODY,
    KEYED,
    Absent,
    Answer,
    CorrelationId,
    Count,
    IdempotencyKey,
    Moment,
    Money,
    Prefer,
    answer,
    area,
    refusals,
)

AREA = area("jobs", "Units of work: submit them, and fetch their results.")

Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]


class Cache(Answer):
    """The cache's part in the answer."""

    status: Literal["hit", "stale", "degraded", "miss", "refresh", "bypass"]
    age_s: Count
    """Seconds since the result was stored; 0 for what wasn't cached."""
    stale: bool
    """Whether it is past its soft TTL."""


class Queue(Answer):
    """Where an open job stands: estimates."""

    position: Count
    """1 is the next, 0 is at work."""
    eta_s: Count
    """Seconds until its result is there."""


class Result(Answer):
    """The vendor's answer."""

    text: str
    finish_reason: Literal["stop", "length", "tool_calls"]
    vendor_request_id: str | None
    """The vendor's name for the call."""
    content: list[Any] | Absent = None
    """The vendor's own parts, when the answer is more than text."""


class Fallback(Answer):
    """An old answer, for a job that is late in degraded mode."""

    result: Result
    age_s: Count
    """Seconds since it was stored."""


class Usage(Answer):
    """What the result took, in the unit of the catalogue's prices."""

    input_tokens: Count
    output_tokens: Count
    cost: Money
    saved: Money
    """What it would have cost without the cache."""


class JobFailure(Answer):
    """Why a job failed."""

    code: str
    """For programs. There may be new ones."""
    message: str
    retryable: bool
    """Whether the same work may succeed later."""
    at: Moment


class JobUrls(Answer):
    """Paths for this job."""

    self_: str = Field(alias="self")
    cancel: str | Absent = None
    """Not of a hit."""


class Job(Answer):
    """A unit of work, or a result from the cache in its form."""

    id: Key
    """Opaque."""
    object: Literal["job"]
    status: JobStatus
    model: str
    priority: Lane
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    """When it ended, however it did."""
    attempts: Count
    """Calls to the vendor that were begun."""
    deduplicated: bool
    """True in the answer to a submit that found its work open."""
    cache: Cache
    queue: Queue | Absent = None
    """Of an open job."""
    result: Result | Absent = None
    """Of a completed one."""
    result_url: str | Absent = None
    """In place of a result that is too big for an answer: where it is, signed for 15 minutes."""
    fallback: Fallback | Absent = None
    usage: Usage | Absent = None
    """Of a completed one."""
    error: JobFailure | Absent = None
    """Of one that failed."""
    metadata: dict[str, str]
    """As submitted."""
    urls: JobUrls


class Estimate(Answer):
    """What the work would take, about."""

    input_tokens: Count
    output_tokens: Count
    cost: Money


class DryRun(Answer):
    """What a submit would get; nothing is written."""

    object: Literal["dry_run"]
    model: str
    priority: Lane
    job_key: Key
    """The digest of the work: equal ones share a job while it is open."""
    cache_key: Key
    """The digest under which a result is cached."""
    cache: Cache
    deduplicated: bool
    """Whether it would share an open job."""
    estimate: Estimate
    queue: Queue


class JobList(Answer):
    """A page of jobs, newest first, without their results."""

    object: Literal["list"]
    data: list[Job]
    has_more: bool
    last_id: str | None
    """The `after` of the next page."""


JobId = Annotated[str, Path(description="Of the job, or of a hit.", max_length=64)]

_FETCHED = {
    "A result": samples.job(200, samples.COMPLETED),
    "A job that waits": samples.job(200, samples.QUEUED),
    "A job that failed": samples.job(200, samples.FAILED),
    "A result that is too big": samples.by_address(),
    "A job that is late, with an old answer": samples.late(),
}
_LINKS = {
    name: {
        "operationId": operation,
        "parameters": {"job_id": "$response.body#/id"},
        "description": description,
    }
    for name, operation, description in (
        ("fetch", "getJob", "The job's `id` is that of its fetch."),
        ("cancel", "cancelJob", "The job's `id` is that of its cancel."),
    )
}


@AREA.call(
    "POST",
    "/jobs",
    "submitJob",
    scope="submit",
    summary="Submit a job, or find its result",
    description=(
        "Equal requests share one job while it is open, and its result while the cache has it. The "
        "cache modes `refresh` and `bypass` need the scope `bypass`, too."
    ),
    answers={
        200: answer(
            "The result is there: the cache had it, or the job ended within the wait; or this is a "
            "dry run.",
            Job | DryRun,
            {"A hit": samples.hit(), "A dry run": samples.dry_run()},
            sometimes=(
                *("Age", "Cache-Status", "Idempotent-Replayed", "Location"),
                *("Preference-Applied", "RateLimit", "RateLimit-Policy"),
            ),
        ),
        202: answer(
            "The job is accepted, or was already open.",
            Job,
            {
                "A job that waits": samples.job(202, samples.QUEUED),
                "Shared work": samples.job(202, samples.QUEUED, deduplicated=True),
            },
            always=("Cache-Status", "Location"),
            sometimes=(
                *("Age", "Idempotent-Replayed", "Preference-Applied"),
                *("RateLimit", "RateLimit-Policy", "Retry-After"),
            ),
            links=_LINKS,
        ),
        **refusals(
            *KEYED,
            *BODY,
            *("model_not_found", "cache_miss", "job_not_found", "result_expired", "cost_limit"),
            *("idempotency_in_progress", "idempotency_key_reused"),
            *("feature_disabled", "quota_exceeded", "queue_full"),
        ),
    },
)
def _submit(
    *,
    body: Annotated[
        SubmitRequest,
        Body(
            description="The work, 1 MiB at most, as UTF-8 JSON that is read without guessing.",
            openapi_examples={
                "text": {
                    "summary": "A text",
                    "value": {"model": "demo-chat", "input": "What does a sluice gate do?"},
                },
                "chat": {
                    "summary": "A chat, with options and wishes",
                    "value": {
                        "model": "demo-chat",
                        "input": {
                            "messages": [
                                {"role": "system", "content": "Answer in one sentence."},
                                {"role": "user", "content": "What does a sluice gate do?"},
                            ]
                        },
                        "options": {"max_tokens": 200},
                        "priority": "batch",
                        "cache": {"max_age_s": 3600},
                        "metadata": {"order": "1001"},
                        "max_cost": 0.05,
                    },
                },
            },
        ),
    ],
    dry_run: Annotated[
        bool, Query(description="Say what a submit would get, and write nothing.")
    ] = False,
    prefer: Prefer = None,
    key: IdempotencyKey = None,
    correlation_id: CorrelationId = None,
) -> None: ...


@AREA.call(
    "GET",
    "/jobs",
    "listJobs",
    scope="read",
    summary="List the tenant's jobs",
    description=(
        "A page with a filter reads 1,000 rows at most, so it may be short with `has_more` true."
    ),
    answers={
        200: answer("A page.", JobList, {"A page": samples.page()}),
        **refusals(*KEYED),
    },
)
def _list(
    status: Annotated[JobStatus | None, Query(description="Only jobs in this state.")] = None,
    model: Annotated[
        str | None, Query(pattern=f"^{NAME_PATTERN}$", description="Only jobs of this model.")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_LIMIT, description="How long the page may be.")
    ] = DEFAULT_LIMIT,
    after: Annotated[
        str | None,
        Query(pattern=r"^job_[A-Za-z0-9_-]{1,60}$", description="The page before's `last_id`."),
    ] = None,
) -> None: ...


@AREA.call(
    "GET",
    "/jobs/<job_id>",
    "getJob",
    scope="read",
    summary="Fetch a job with its result",
    answers={
        200: answer(
            "The job, in whatever state; one that failed has `error`.",
            Job,
            _FETCHED,
            always=("Cache-Status",),
            sometimes=("Age", "Preference-Applied", "Retry-After"),
        ),
        **refusals(*KEYED, "job_not_found", "result_expired"),
    },
)
def _get(job_id: JobId, prefer: Prefer = None) -> None: ...


@AREA.call(
    "POST",
    "/jobs/<job_id>/cancel",
    "cancelJob",
    scope="cancel",
    summary="Cancel an open job",
    description="Again for a cancelled one.",
    answers={
        200: answer(
            "The cancelled job.",
            Job,
            {"A cancelled job": samples.job(200, samples.CANCELLED)},
            always=("Cache-Status",),
            sometimes=("Age",),
        ),
        **refusals(*KEYED, "job_not_found", "not_cancellable"),
    },
)
def _cancel(job_id: JobId) -> None: ...
