"""Replies: every error is a problem, every job and hit has the partner's shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import errors
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import (
    BusyError,
    ConfigurationError,
    JobNotFoundError,
    QuotaExceededError,
    RejectedError,
    SluicewayError,
    StoreBusyError,
    UnauthenticatedError,
    ValidationFailedError,
    VendorError,
)
from sluiceway.domain.freshness import CacheEntry, Freshness
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.times import rfc3339
from sluiceway.http import (
    MAX_REPLY_BYTES,
    STATUS,
    Reply,
    hit_reply,
    job_reply,
    problem,
)

from tests.fakes.in_memory import NOW_MS
from tests.unit.samples import CACHE_KEY, JOB_ID, a_job, an_entry, an_error, packed

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = b'{"text":"an answer","finish_reason":"stop"}'
RESULT = packed(json.loads(DOCUMENT))


def tree(root: type[SluicewayError]) -> Iterator[type[SluicewayError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


ERRORS = list(tree(SluicewayError))


def an_instance(error: type[SluicewayError]) -> SluicewayError:
    """An error of this class, however it is made."""
    if issubclass(error, BusyError):
        return error("detail", retry_after_s=1)
    if issubclass(error, VendorError):
        return error("vendor_timeout", "detail", retryable=True)
    if issubclass(error, ConfigurationError):
        return error(("detail",))
    return error("detail")


def started(**members: Any) -> Job:
    return transitions.started(
        a_job(**members),
        fence=1,
        now_ms=NOW_MS + 1_234,
        receives=1,
        function_ends_ms=NOW_MS + 90_000,
    )


def completed(source: str = "vendor", **members: Any) -> Job:
    return transitions.completed(
        started(),
        now_ms=NOW_MS + 5_678,
        result=RESULT,
        source=source,
        input_tokens=10,
        output_tokens=20,
        cost_nanos=330_000,
        vendor_request_id="req_vendor_1",
        **members,
    )


def failed(status: JobStatus = JobStatus.FAILED) -> Job:
    return transitions.failed(
        started(),
        an_error(at_epoch_ms=NOW_MS + 5_678),
        now_ms=NOW_MS + 5_678,
        last_receive=status is JobStatus.DEAD_LETTERED,
    )


def hit_of(
    entry: CacheEntry, freshness: Freshness = Freshness.FRESH, *, document: bytes = DOCUMENT
) -> Reply:
    return hit_reply(entry, freshness, document, base_path="/v1", now_ms=NOW_MS + 61_500)


def reply_of(job: Job, result: bytes | None = None, *, status: int = 200) -> Reply:
    return job_reply(status, job, result, base_path="/v1", now_ms=NOW_MS + 61_500)


# ------------------------------------------------------------------ problems


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status_and_a_title(error: type[SluicewayError]) -> None:
    reply = problem(an_instance(error), "req-1")

    assert 400 <= reply.status <= 599
    assert reply.body["title"]


def test_every_code_of_the_statuses_is_some_errors() -> None:
    assert set(STATUS) == {error.code for error in ERRORS}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError, 400),
        (errors.UnauthenticatedError, 401),
        (errors.ForbiddenError, 403),
        (errors.JobNotFoundError, 404),
        (errors.ModelNotFoundError, 404),
        (errors.CacheMissError, 404),
        (errors.RouteNotFoundError, 404),
        (errors.MethodNotAllowedError, 405),
        (errors.ResultExpiredError, 410),
        (errors.PayloadTooLargeError, 413),
        (errors.UnsupportedMediaTypeError, 415),
        (errors.ValidationFailedError, 422),
    ],
)
def test_refusals_have_the_status_of_the_contract(error: type[RejectedError], status: int) -> None:
    reply = problem(error("No."), "req-1")

    assert (reply.status, reply.body["status"]) == (status, status)
    assert reply.body["retryable"] is False


def test_problem_has_the_members_of_the_contract() -> None:
    reply = problem(JobNotFoundError("There is no such job."), "req-1")

    assert reply.content_type == "application/problem+json"
    assert reply.body == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "job_not_found",
        "detail": "There is no such job.",
        "retryable": False,
        "request_id": "req-1",
    }


def test_problem_lists_the_members_that_are_wrong() -> None:
    wrong = ({"field": "model", "message": "Field required"},)

    reply = problem(ValidationFailedError("No.", errors=wrong), "req-1")

    assert reply.body["errors"] == list(wrong)


@pytest.mark.parametrize(("error", "status"), [(QuotaExceededError, 429), (StoreBusyError, 503)])
@pytest.mark.parametrize(("given_s", "told"), [(10, "10"), (1, "1"), (0, "1"), (-3, "1")])
def test_problem_tells_the_busy_when_to_come_again(
    error: type[BusyError], status: int, given_s: int, told: str
) -> None:
    reply = problem(error("Later.", retry_after_s=given_s), "req-1")

    assert (reply.status, reply.body["retryable"]) == (status, True)
    assert reply.headers["Retry-After"] == told


def test_problem_of_our_own_making_may_be_tried_again() -> None:
    reply = problem(SluicewayError("Something failed."), "req-1")

    assert (reply.status, reply.body["code"], reply.body["retryable"]) == (500, "internal", True)


def test_problem_of_a_missing_method_names_those_that_there_are() -> None:
    reply = problem(errors.MethodNotAllowedError("No.", allow=("GET", "HEAD")), "req-1")

    assert reply.headers["Allow"] == "GET, HEAD"


def test_problem_of_the_unauthenticated_names_the_scheme() -> None:
    # RFC 9110 section 11.6.1: a 401 has a WWW-Authenticate header.
    reply = problem(UnauthenticatedError("Who are you?"), "req-1")

    assert reply.headers["WWW-Authenticate"].startswith("Bearer")


# ------------------------------------------------------------------ jobs


def test_open_job_has_the_members_of_the_contract() -> None:
    reply = reply_of(a_job(metadata={"order": "7"}), status=202)

    assert reply.body == {
        "id": JOB_ID,
        "object": "job",
        "status": "queued",
        "model": "demo-chat",
        "priority": "interactive",
        "created_at": "2026-01-01T00:00:00.000Z",
        "started_at": None,
        "completed_at": None,
        "attempts": 0,
        "deduplicated": False,
        "cache": {"status": "miss", "age_s": 0, "stale": False},
        "metadata": {"order": "7"},
        "urls": {"self": f"/v1/jobs/{JOB_ID}", "cancel": f"/v1/jobs/{JOB_ID}/cancel"},
    }


def test_accepted_job_says_where_it_is_and_when_to_ask() -> None:
    reply = reply_of(a_job(), status=202)

    assert reply.headers["Location"] == f"/v1/jobs/{JOB_ID}"
    assert int(reply.headers["Retry-After"]) >= 1
    assert reply.headers["Cache-Status"] == "sluiceway; fwd=miss"


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.PROCESSING, JobStatus.RETRYING])
def test_open_job_says_when_to_ask_again(status: JobStatus) -> None:
    assert int(reply_of(a_job(status=status)).headers["Retry-After"]) >= 1


@pytest.mark.parametrize("job", [completed(), failed()], ids=["completed", "failed"])
def test_ended_job_needs_no_more_asking(job: Job) -> None:
    assert "Retry-After" not in reply_of(job, DOCUMENT if job.result else None).headers


def test_duplicate_is_marked() -> None:
    reply = job_reply(202, a_job(), None, base_path="", now_ms=NOW_MS, deduplicated=True)

    assert reply.body["deduplicated"] is True


def test_open_job_hides_the_error_of_an_attempt() -> None:
    job = transitions.retrying(started(), an_error(), not_before_ms=NOW_MS)

    assert "error" not in reply_of(job).body


def test_completed_job_has_its_result_and_usage() -> None:
    body = reply_of(completed(), DOCUMENT).body

    assert body["status"] == "completed"
    assert body["result"] == {
        "text": "an answer",
        "finish_reason": "stop",
        "vendor_request_id": "req_vendor_1",
    }
    assert body["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": 0.00033,
        "saved": 0,
    }
    assert (body["started_at"], body["completed_at"], body["attempts"]) == (
        "2026-01-01T00:00:01.234Z",
        "2026-01-01T00:00:05.678Z",
        1,
    )


def test_completed_job_keeps_what_is_more_than_text() -> None:
    document = b'{"text":"","finish_reason":"tool_calls","content":[{"type":"tool_calls"}]}'

    result = reply_of(completed(), document).body["result"]

    assert result["content"] == [{"type": "tool_calls"}]
    assert result["text"] == ""


def test_job_that_the_cache_completed_is_a_hit_in_body_and_header() -> None:
    reply = reply_of(completed(source="cache", stored_at_ms=NOW_MS + 1_000), DOCUMENT)

    assert reply.body["cache"] == {"status": "hit", "age_s": 60, "stale": False}
    assert reply.headers["Cache-Status"] == "sluiceway; hit"
    assert reply.headers["Age"] == "60"


@pytest.mark.parametrize(
    ("mode", "status", "header"),
    [
        ("use", "miss", "sluiceway; fwd=miss"),
        ("refresh", "refresh", "sluiceway; fwd=stale"),
        ("bypass", "bypass", "sluiceway; fwd=bypass"),
    ],
)
@pytest.mark.parametrize("ended", [False, True], ids=["open", "completed"])
def test_job_that_asks_the_vendor_says_why_the_cache_did_not_answer(
    mode: str, status: str, header: str, *, ended: bool
) -> None:
    job = replace(completed() if ended else started(), cache_mode=mode)

    reply = reply_of(job, DOCUMENT if ended else None)

    assert reply.body["cache"] == {"status": status, "age_s": 0, "stale": False}
    assert reply.headers["Cache-Status"] == header
    assert "Age" not in reply.headers


@pytest.mark.parametrize("mode", ["use", "refresh"])
def test_job_that_waited_for_anothers_result_is_a_hit_whatever_its_mode(mode: str) -> None:
    job = replace(completed(source="cache", stored_at_ms=NOW_MS + 5_000), cache_mode=mode)

    reply = reply_of(job, DOCUMENT)

    assert (reply.body["cache"]["status"], reply.body["cache"]["age_s"]) == ("hit", 56)
    assert (reply.headers["Cache-Status"], reply.headers["Age"]) == ("sluiceway; hit", "56")


def test_result_is_never_younger_than_new() -> None:
    job = completed(source="cache", stored_at_ms=NOW_MS + 3_600_000)

    assert reply_of(job, DOCUMENT).headers["Age"] == "0"


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.DEAD_LETTERED])
def test_failed_job_says_why(status: JobStatus) -> None:
    body = reply_of(failed(status)).body

    assert body["status"] == status.value
    assert body["error"] == {
        "code": "vendor_unavailable",
        "message": "The vendor answered 503.",
        "retryable": True,
        "at": "2026-01-01T00:00:05.678Z",
    }
    assert body["completed_at"] == "2026-01-01T00:00:05.678Z"
    assert "result" not in body


def test_job_body_shows_nothing_internal() -> None:
    told = reply_of(completed(), DOCUMENT).serialised()

    assert all(
        secret not in told for secret in ("c1_", "j1_", "acme", "fence", "lease", "corr-1", "shard")
    )


# ------------------------------------------------------------------ hits


def test_hit_is_a_completed_job_that_cost_nothing() -> None:
    reply = hit_of(an_entry())

    assert reply.status == 200
    assert reply.body == {
        "id": f"hit_{CACHE_KEY}",
        "object": "job",
        "status": "completed",
        "model": "demo-chat",
        "priority": "interactive",
        "created_at": "2026-01-01T00:00:00.000Z",
        "started_at": "2026-01-01T00:00:00.000Z",
        "completed_at": "2026-01-01T00:00:00.000Z",
        "attempts": 0,
        "deduplicated": False,
        "cache": {"status": "hit", "age_s": 61, "stale": False},
        "result": {
            "text": "an answer",
            "finish_reason": "stop",
            "vendor_request_id": "req_vendor_0",
        },
        "usage": {"input_tokens": 10, "output_tokens": 20, "cost": 0, "saved": 0.00033},
        "metadata": {},
        "urls": {"self": f"/v1/jobs/hit_{CACHE_KEY}"},
    }


def test_hit_says_so_in_the_headers() -> None:
    entry = an_entry(soft_expires_at_epoch_ms=NOW_MS + 100_000)

    headers = hit_of(entry).headers

    assert headers["Cache-Status"] == "sluiceway; hit; ttl=38"
    assert headers["Age"] == "61"


@pytest.mark.parametrize(
    ("freshness", "status", "stale"),
    [
        (Freshness.FRESH, "hit", False),
        (Freshness.STALE, "stale", True),
        (Freshness.EXPIRED, "degraded", True),
    ],
)
def test_hit_says_how_fresh_it_is_in_body_and_headers(
    freshness: Freshness, status: str, *, stale: bool
) -> None:
    entry = an_entry(soft_expires_at_epoch_ms=NOW_MS + (1 if stale else 100) * 1_000)

    reply = hit_of(entry, freshness)

    assert reply.body["cache"] == {"status": status, "age_s": 61, "stale": stale}
    assert reply.headers["Age"] == "61"
    left_s = -61 if stale else 38
    assert reply.headers["Cache-Status"] == f"sluiceway; hit; ttl={left_s}"


def test_hit_shows_nothing_of_whose_entry_it_is() -> None:
    entry = an_entry(scope="shared", refresh_job_id="job_refresh", refresh_error="vendor_timeout")

    reply = hit_of(entry, Freshness.STALE)

    told = reply.serialised() + repr(reply.headers)
    assert all(secret not in told for secret in ("acme", "shared", "job_refresh", "vendor_timeout"))


@pytest.mark.parametrize("value", [False, 0, "", None, [], {}, 0.0, 2**60, 1e-7, -0.0, 1.0])
def test_hit_keeps_values_and_their_types(value: Any) -> None:
    document = json.dumps({"text": "", "finish_reason": "stop", "content": [value]}).encode()

    reply = hit_of(an_entry(), document=document)

    assert repr(json.loads(reply.serialised())["result"]["content"]) == repr([value])


# ------------------------------------------------------------------ form


def test_reply_is_compact_json_with_characters_as_they_are() -> None:
    assert Reply(200, {"é": ["😀", 1.0]}, {}).serialised() == '{"é":["😀",1.0]}'


def test_reply_never_holds_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Reply(200, {"a": float("nan")}, {}).serialised()


@pytest.mark.parametrize(("character", "weight"), [("x", 1), ("\n", 3), ('"', 4), ("é", 6)])
def test_reply_is_too_large_by_what_lambda_sends(character: str, weight: int) -> None:
    # Lambda's answer holds the body as a string: what JSON escapes is escaped twice.
    fitting = (MAX_REPLY_BYTES - 100) // weight

    assert not Reply(200, {"text": character * fitting}, {}).too_large
    assert Reply(200, {"text": character * (fitting + 100)}, {}).too_large


def test_reply_with_an_address_has_no_result() -> None:
    reply = Reply(200, {"id": "x", "result": {"text": "long"}}, {"Age": "1"})

    shown = reply.with_result_url("https://bucket/key?signature")

    assert shown.body == {"id": "x", "result_url": "https://bucket/key?signature"}
    assert (shown.status, shown.headers) == (200, {"Age": "1"})


@pytest.mark.parametrize(
    ("epoch_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (NOW_MS + 999, "2026-01-01T00:00:00.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (None, None),
    ],
)
def test_times_are_rfc_3339_in_utc(epoch_ms: int | None, text: str | None) -> None:
    assert rfc3339(epoch_ms) == text
