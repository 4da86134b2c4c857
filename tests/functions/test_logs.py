"""What the handlers really print: every line about a job can be found, and is about that job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import VendorError
from sluiceway.domain.job import JobStatus

from tests.functions.stage import ABSENT, BATCH_ARN, message, request
from tests.functions.test_run_job import REJECTED, UNAVAILABLE, explode
from tests.unit.logs import log_lines, metric_lines, output

if TYPE_CHECKING:
    from tests.functions.stage import Stage

OF_A_JOB = {"request_id", "correlation_id", "job_id", "job_key", "tenant", "model", "attempt"}
OF_AN_ERROR = {"error_class", "upstream_latency_ms"}
TRACKED = {"X-Correlation-Id": "corr-7"}
SOFT_MS = 3_600_000
OVERLOADED = VendorError(
    "vendor_rate_limited", "The vendor answered 429.", retryable=True, http_status=429
)

Lines = list[dict[str, Any]]


def submitted(stage: Stage, text: str = "hello", **changes: Any) -> str:
    job_id: str = stage.submit(text, **{"headers": TRACKED, **changes}).body["id"]
    return job_id


def names(lines: Lines) -> set[str]:
    return {line["message"] for line in lines}


def live(stage: Stage) -> None:
    """What a day brings: two jobs that complete, one at the second try, and some that don't."""
    stage.vendor.script = [UNAVAILABLE, OVERLOADED]
    first = submitted(stage)
    submitted(stage)  # joins it
    for _ in range(6):
        stage.run(message(first, sent_at_ms=stage.clock.now_ms()))
        stage.clock.advance(s=200)
    stage.vendor.script = [REJECTED]
    failed = submitted(stage, "bad")
    for receives in range(1, 11):
        stage.run(message(failed, receives=receives, sent_at_ms=stage.clock.now_ms()))
    stage.clock.advance(s=60)
    stage.run(message(failed, sent_at_ms=stage.clock.now_ms()))  # a redrive
    stage.cancel(submitted(stage, "unwanted"))
    stage.vendor.script = [explode]
    stage.run_job(submitted(stage, "explodes"))
    submitted(stage, "stuck")
    stage.clock.advance(s=180)
    stage.sweep()
    late = submitted(stage, "late")
    stage.clock.advance(s=2 * 86_400)
    stage.sweep()
    stage.run_job(late)


def test_every_line_about_a_job_has_the_fields_that_it_is_found_by(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    live(stage)

    lines = [line for line in log_lines(output(capsys)) if "job_id" in line]
    assert names(lines) >= {
        *("job_submitted", "job_deduplicated", "cache_miss", "job_cancelled", "job_resent"),
        *("lease_acquired", "lease_released", "gate_closed", "vendor_error", "job_retrying"),
        *("job_completed", "job_failed", "job_dead_lettered", "job_redriven", "unexpected_error"),
    }
    assert [(line["message"], OF_A_JOB - set(line)) for line in lines if OF_A_JOB - set(line)] == []
    assert {line["correlation_id"] for line in lines} == {"corr-7"}


def test_every_line_about_a_vendors_error_says_its_class_and_how_long_it_took(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    live(stage)

    lines = log_lines(output(capsys))
    errors = [line for line in lines if line["message"] == "vendor_error"]
    assert len(errors) >= 3
    assert [line for line in errors if OF_AN_ERROR - set(line)] == []
    told = ("job_retrying", "job_failed", "unexpected_error")
    assert [line for line in lines if line["message"] in told and "error_class" not in line] == []


def test_lines_of_an_attempt_have_its_number(  # case O05
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.vendor.script = [UNAVAILABLE, explode]
    job_id = submitted(stage)
    output(capsys)

    stage.run_job(job_id)
    first = log_lines(output(capsys))
    stage.clock.advance(s=200)
    stage.run_job(job_id)
    second = log_lines(output(capsys))

    assert {line["attempt"] for line in first} == {1}
    assert {line["attempt"] for line in second} == {2}
    assert "unexpected_error" in names(second)


# ------------------------------------------------------------------ from hop to hop


def test_one_query_finds_every_hop_of_a_job(  # case O04
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.vendor.script = [REJECTED]
    job_id = submitted(stage)
    submitted(stage, "another", headers={"X-Correlation-Id": "corr-8"})
    for receives in range(1, 11):
        stage.run(message(job_id, receives=receives, sent_at_ms=stage.clock.now_ms()))
    stage.clock.advance(s=60)
    stage.run(message(job_id, sent_at_ms=stage.clock.now_ms(), arn=BATCH_ARN))

    lines = log_lines(output(capsys))
    found = [line for line in lines if line.get("correlation_id") == "corr-7"]
    assert found == [line for line in lines if line.get("job_id") == job_id]
    assert [line["message"] for line in found] == [
        *("job_submitted", "cache_miss"),
        *("lease_acquired", "vendor_error", "lease_released", "job_failed", "job_dead_lettered"),
        *("job_redriven", "lease_acquired", "lease_released", "job_completed"),
    ]


# ------------------------------------------------------------------ from event to event


def test_fields_of_a_record_are_gone_in_the_next_of_its_batch(  # case O01
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = submitted(stage)
    output(capsys)

    stage.run(message(job_id), message(body="no job of ours"), message("job_unknown"))

    unread, unknown = log_lines(output(capsys))[-2:]
    for line in (unread, unknown):
        assert not set(line) & {"job_id", "job_key", "tenant", "model", "correlation_id"}
    assert (unread["message"], unknown["message"]) == ("message_unreadable", "message_without_job")


def test_fields_of_a_request_are_gone_in_the_next_that_fails_early(  # case O01
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(stage)
    output(capsys)

    event = request("POST", "/jobs", tenant=ABSENT, headers={"X-Correlation-Id": ABSENT})
    answer = stage.answer(event)

    (line,) = log_lines(output(capsys))
    assert answer.status == 401
    assert not set(line) & {"job_id", "job_key", "tenant", "model"}
    assert line["correlation_id"] == line["request_id"]


def test_fields_of_a_request_are_no_dimensions_of_the_next(  # case O01
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(stage)
    output(capsys)

    stage.sweep()

    told = [line for line in metric_lines(output(capsys)) if "QueueDepth" in line]
    assert len(told) == 2
    assert not any({"tenant", "model"} & set(line) for line in told)


# ------------------------------------------------------------------ what is told to partners


def test_every_answer_says_what_the_cache_did_and_which_job_it_is_about(  # case O05
    stage: Stage,
) -> None:
    miss = stage.submit()
    job_id = miss.body["id"]
    stage.run_job(job_id)
    done = stage.get(job_id)
    hit = stage.submit()
    stage.clock.advance(s=SOFT_MS // 1000 + 60)
    stale = stage.submit()
    stage.vendor.script = [REJECTED]
    error_id = stage.submit("bad").body["id"]
    stage.run_job(error_id)
    error = stage.get(error_id)

    answers = {"miss": miss, "done": done, "hit": hit, "stale": stale, "error": error}
    assert {name: answer.headers["cache-status"] for name, answer in answers.items()} == {
        "miss": "sluiceway; fwd=miss",
        "done": "sluiceway; fwd=miss",
        "hit": hit.headers["cache-status"],
        "stale": stale.headers["cache-status"],
        "error": "sluiceway; fwd=miss",
    }
    assert hit.headers["cache-status"].startswith("sluiceway; hit")
    assert stale.headers["cache-status"].startswith("sluiceway; hit")
    assert [answer.body["cache"]["status"] for answer in (hit, stale)] == ["hit", "stale"]
    assert all(answer.body["id"] for answer in answers.values())
    assert (done.body["id"], error.body["id"]) == (job_id, error_id)


@pytest.mark.parametrize(
    ("script", "attempts", "status"),
    [
        ([], 1, JobStatus.COMPLETED),
        ([REJECTED], 1, JobStatus.FAILED),
        ([UNAVAILABLE], 2, JobStatus.COMPLETED),
        ([UNAVAILABLE] * 4, 4, JobStatus.FAILED),
    ],
    ids=["at once", "no retry", "second try", "all used up"],
)
def test_attempts_that_are_shown_are_the_calls_that_were_made(  # case O05
    stage: Stage, script: list[Any], attempts: int, status: JobStatus
) -> None:
    stage.vendor.script = list(script)
    job_id = submitted(stage)
    for _ in range(6):
        if stage.world.jobs["acme", job_id].open:
            stage.run(message(job_id, sent_at_ms=stage.clock.now_ms()))
            stage.clock.advance(s=200)

    body = stage.get(job_id).body

    assert (body["attempts"], body["status"]) == (attempts, status)
    assert stage.vendor.total == attempts


# ------------------------------------------------------------------ the cache


def test_answers_from_the_cache_are_counted_with_tenant_model_and_age(  # case O06
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = submitted(stage)
    submitted(stage)
    stage.run_job(job_id)
    stage.clock.advance(s=61)
    submitted(stage)
    stage.clock.advance(s=SOFT_MS // 1000)
    submitted(stage)

    written = output(capsys)
    answers = ("job_deduplicated", "cache_hit", "cache_stale")
    lines = [line for line in log_lines(written) if line["message"] in answers]
    assert [(line["message"], line["tenant"], line["model"]) for line in lines] == [
        (name, "acme", "demo-chat") for name in answers
    ]
    assert [line.get("age_s") for line in lines] == [None, 61, 61 + SOFT_MS // 1000]
    assert {line["correlation_id"] for line in lines} == {"corr-7"}


def test_hit_rate_can_be_computed_of_a_tenant_and_of_a_model(  # case O06
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.run_job(submitted(stage))
    for _ in range(3):
        submitted(stage)

    counted = {
        name: line
        for line in metric_lines(output(capsys))
        for name in ("CacheHit", "CacheMiss")
        if name in line
    }
    for line in counted.values():
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        assert directive["Dimensions"] == [["service"], ["vendor", "model"], ["tenant"]]
    assert set(counted) == {"CacheHit", "CacheMiss"}
