"""The partner API, event in and answer out."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from sluiceway import bootstrap
from sluiceway.domain.backlog import Backlog, Group, Pace
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.errors import StoreBusyError, VendorError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.ports import VendorAnswer

from functions.api import app
from tests.fakes.appconfig import FakeAppConfig
from tests.fakes.in_memory import NOW_MS, InMemoryPayloads, InMemoryQueue
from tests.functions.stage import (
    ABSENT,
    Answer,
    Stage,
    end,
    message,
    read_answer,
    request,
    sample,
)
from tests.unit.logs import a_context, log_lines, metric_lines, output
from tests.unit.samples import CACHE_KEY, CATALOGUE, JOB_ID, a_job, an_entry, packed, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024 * 1024
LAMBDA_ANSWER_BYTES = 6 * MIB


def padded(size: int, **members: Any) -> bytes:
    """A good body of exactly so many bytes."""
    body = {"model": "demo-chat", "input": "", **members}
    empty = len(json.dumps(body).encode())
    return json.dumps({**body, "input": "x" * (size - empty)}).encode()


def assert_problem(answer: Answer, status: int, code: str) -> None:
    """The answer is this problem, whole (RFC 9457, and our own members)."""
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "gateway-1"
    body = answer.body
    assert (body["status"], body["code"], body["request_id"]) == (status, code, "gateway-1")
    assert body["type"]
    assert body["title"]
    assert body["detail"]
    assert body["retryable"] is (status in {429, 500, 503})
    assert ("retry-after" in answer.headers) is (status in {429, 503})


def assert_nothing_happened(stage: Stage) -> None:
    assert written(stage.world) == {}
    assert stage.sent == []


# ------------------------------------------------------------------ before there is a catalogue


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAppConfig]:
    """What a process that starts finds in AppConfig."""
    session = boto3.Session(region_name="us-east-1")
    monkeypatch.setattr(bootstrap, "session", lambda: session._session)
    for name in ("jobs_table", "cache_table", "coordination_table", "idempotency_table"):
        monkeypatch.setenv(name.upper(), name)
    for name in ("interactive_queue_url", "batch_queue_url", "webhook_queue_url"):
        monkeypatch.setenv(name.upper(), f"https://sqs.example/1/{name}")
    for name in ("payload_bucket", "webhook_master", "configuration", "target"):
        monkeypatch.setenv(name.upper(), name)
    monkeypatch.setenv("CACHE_BACKEND", "dynamodb")
    bootstrap.api_deps.cache_clear()
    yield FakeAppConfig(session)
    bootstrap.api_deps.cache_clear()


@pytest.fixture
def unread(configuration: FakeAppConfig) -> None:
    """A process that starts while AppConfig can't be reached."""
    configuration.failing = EndpointConnectionError(endpoint_url="https://a.example")


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("path", ["/jobs/job_1", "/health"])
def test_process_without_a_catalogue_answers_503(path: str) -> None:
    event = request("GET", path)
    answer = read_answer(event, app.handler(event, a_context()))

    assert_problem(answer, 503, "degraded")


@pytest.mark.usefixtures("unread")
def test_process_without_a_catalogue_answers_clients_of_openai_in_their_form() -> None:
    event = request("POST", "/chat/completions")
    answer = read_answer(event, app.handler(event, a_context()))

    assert (answer.status, answer.body["error"]["code"]) == (503, "degraded")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.usefixtures("unread")
def test_process_without_a_catalogue_answers_head_without_a_body() -> None:
    event = request("HEAD", "/health")
    answer = read_answer(event, app.handler(event, a_context()))

    assert (answer.status, answer.text) == (503, "")


def test_process_works_with_a_configuration_of_newer_code_and_tells(
    configuration: FakeAppConfig, caplog: pytest.LogCaptureFixture
) -> None:
    model = '[models.chat]\nvendor = "v"\nvendor_model = "c"\nversion = "1"\nmagic = true\n'
    configuration.documents["catalogue"] = f"[vendors.v]\n{model}"
    configuration.documents["flags"] = '{"teleport": {"default": true}}'
    event = request("GET", "/models", scopes="read")

    answer = read_answer(event, app.handler(event, a_context()))

    told = [vars(line)["told"] for line in caplog.records if line.msg == "configuration_ignored"]
    assert (answer.status, [one["id"] for one in answer.body["data"]]) == (200, ["chat"])
    assert [(line["profile"], line["members"]) for line in told] == [
        ("catalogue", "models.chat.magic"),
        ("flags", "teleport"),
    ]


# ------------------------------------------------------------------ the sample events


def test_api_accepts_the_sample_submit(stage: Stage) -> None:
    answer = stage.answer(sample("api_submit"))

    assert answer.status == 202
    assert answer.body["status"] == "queued"
    assert answer.body["metadata"] == {"order": "1001"}


def test_api_finds_the_job_of_the_sample_get(stage: Stage) -> None:
    stage.world.jobs["acme", JOB_ID] = a_job()

    answer = stage.answer(sample("api_get_job"))

    assert (answer.status, answer.body["id"]) == (200, JOB_ID)


def test_api_answers_the_sample_health_check(stage: Stage) -> None:
    answer = stage.answer(sample("api_health"))

    assert (answer.status, answer.body) == (200, {"status": "ok"})
    assert_nothing_happened(stage)


# ------------------------------------------------------------------ submit, run, fetch


def test_submit_is_answered_with_the_job_and_where_it_is(stage: Stage) -> None:
    answer = stage.submit()

    job_id = answer.body["id"]
    assert answer.status == 202
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert answer.body["urls"]["self"] == f"/v1/jobs/{job_id}"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["cache-status"] == "sluiceway; fwd=miss"
    assert answer.headers["cache-control"] == "no-store"
    assert stage.sent == [("interactive", "acme", job_id)]


def test_job_is_found_at_once_under_the_id_that_was_given(stage: Stage) -> None:
    submitted = stage.submit()

    fetched = stage.get(submitted.body["id"])

    assert fetched.status == 200
    assert fetched.body == submitted.body
    assert int(fetched.headers["retry-after"]) >= 1


def test_job_that_ran_is_fetched_with_its_result(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)

    fetched = stage.get(job_id)

    assert fetched.status == 200
    assert fetched.body["status"] == "completed"
    assert fetched.body["result"] == {
        "text": "a good answer",
        "finish_reason": "stop",
        "vendor_request_id": "req_vendor_1",
    }
    assert fetched.body["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": 0.00033,
        "saved": 0,
    }
    assert fetched.body["attempts"] == 1
    assert "retry-after" not in fetched.headers


def test_job_that_failed_is_fetched_with_its_error(stage: Stage) -> None:
    stage.vendor.default = VendorError(
        "vendor_rejected", "The vendor answered 400.", retryable=False, http_status=400
    )
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)

    fetched = stage.get(job_id)

    assert fetched.status == 200
    assert fetched.body["status"] == "failed"
    assert fetched.body["error"] == {
        "code": "vendor_rejected",
        "message": "The vendor answered 400.",
        "retryable": False,
        "at": "2026-01-01T00:00:00.000Z",
    }


def test_same_request_while_the_job_is_open_attaches_to_it(stage: Stage) -> None:
    first = stage.submit()

    second = stage.submit()

    assert second.status == 202
    assert second.body == {**first.body, "deduplicated": True}
    assert len(stage.sent) == 1


def test_same_request_after_the_answer_is_a_hit(stage: Stage) -> None:
    stage.rand = 0.0
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)
    stage.clock.advance(s=61)

    hit = stage.submit()

    assert hit.status == 200
    assert hit.body["status"] == "completed"
    assert hit.body["cache"] == {"status": "hit", "age_s": 61, "stale": False}
    assert hit.headers["cache-status"] == f"sluiceway; hit; ttl={3_600 - 61}"
    assert hit.headers["age"] == "61"
    assert "location" not in hit.headers
    assert hit.body["result"]["text"] == "a good answer"
    assert hit.body["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": 0,
        "saved": 0.00033,
    }
    assert stage.vendor.total == 1


def test_hit_is_fetched_again_under_its_id(stage: Stage) -> None:
    stage.run_job(stage.submit().body["id"])
    hit = stage.submit()

    fetched = stage.get(hit.body["id"])

    assert fetched.status == 200
    assert fetched.body == hit.body


@pytest.mark.parametrize(
    "text",
    ["\x00\x07\x0b\ufffe\uffff", "a\r\nb\rc", "😀 𠀀 Ѱ", 'b <&> "q" \\', "Cafe\u0301 Caf\u00e9"],
    ids=["control", "line ends", "emoji", "xml", "accents"],
)
def test_characters_reach_the_vendor_and_come_back_unchanged(  # case S05, S06, S07
    stage: Stage, text: str
) -> None:
    stage.vendor.default = VendorAnswer(text, "stop", 1, 1, 1)
    job_id = stage.submit(text).body["id"]

    stage.run_job(job_id)

    assert json.loads(stage.vendor.calls[0].body)["input"] == text
    assert stage.get(job_id).body["result"]["text"] == text


def test_result_that_lambda_could_not_return_is_answered_by_address(stage: Stage) -> None:
    stage.vendor.default = VendorAnswer("é" * (1024 * 1024), "stop", 1, 1, 1)
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)

    answers = [stage.get(job_id), stage.submit()]

    for answer in answers:
        assert answer.status == 200
        assert f"/results/{job_id}/1" in answer.body["result_url"]
        assert "result" not in answer.body
        assert answer.body["usage"]["output_tokens"] == 1


# ------------------------------------------------------------------ the cache

SOFT_S, HARD_S = 3_600, 86_400
"""demo-chat's, without jitter."""


def cached(stage: Stage, **members: Any) -> str:
    """Submits and runs a job, whose answer is in the cache from NOW_MS on; gives its id."""
    stage.rand = 0.0
    job_id: str = stage.post({"model": "demo-chat", "input": "hello", **members}).body["id"]
    stage.run_job(job_id)
    return job_id


def wish(stage: Stage, scopes: str = "submit read bypass", **cache: Any) -> Answer:
    """The same request with these wishes about the cache."""
    body = {"model": "demo-chat", "input": "hello", "cache": cache}
    return stage.post(body, scopes=scopes)


def cache_of(answer: Answer) -> tuple[str, str]:
    """The cache's part in body and header, which must tell the same."""
    told = answer.body["cache"]
    assert told["stale"] is (told["status"] in {"stale", "degraded"})
    assert set(told) == {"status", "age_s", "stale"}
    if "hit" in answer.headers["cache-status"]:
        assert answer.headers["age"] == str(told["age_s"])
    else:
        assert "age" not in answer.headers
        assert told["age_s"] == 0
    return told["status"], answer.headers["cache-status"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("use", ("miss", "sluiceway; fwd=miss")),
        ("refresh", ("refresh", "sluiceway; fwd=stale")),
        ("bypass", ("bypass", "sluiceway; fwd=bypass")),
    ],
)
def test_job_that_asks_the_vendor_says_so_from_submit_to_fetch(
    stage: Stage, mode: str, expected: tuple[str, str]
) -> None:
    accepted = wish(stage, mode=mode)
    job_id = accepted.body["id"]
    answers = [accepted, wish(stage, mode=mode), stage.get(job_id)]
    stage.run_job(job_id)
    stage.clock.advance(s=61)
    answers.append(stage.get(job_id))

    assert [answer.status for answer in answers] == [202, 202, 200, 200]
    assert [cache_of(answer) for answer in answers] == [expected] * 4


@pytest.mark.parametrize(
    ("after_s", "degraded", "expected"),
    [
        (0, False, ("hit", f"sluiceway; hit; ttl={SOFT_S}")),
        (SOFT_S - 1, False, ("hit", "sluiceway; hit; ttl=1")),
        (SOFT_S, False, ("stale", "sluiceway; hit; ttl=0")),
        (HARD_S - 1, False, ("stale", f"sluiceway; hit; ttl={SOFT_S - HARD_S + 1}")),
        (HARD_S, True, ("degraded", f"sluiceway; hit; ttl={SOFT_S - HARD_S}")),
    ],
)
def test_hit_says_how_fresh_it_is_on_submit_and_fetch(
    stage: Stage, after_s: int, expected: tuple[str, str], *, degraded: bool
) -> None:
    cached(stage)
    stage.clock.advance(s=after_s)
    stage.world.degraded_since_epoch_ms = NOW_MS if degraded else None

    hit = stage.submit()
    fetched = stage.get(hit.body["id"])

    for answer in (hit, fetched):
        assert answer.status == 200
        assert cache_of(answer) == expected
        assert answer.body["cache"]["age_s"] == after_s
        assert answer.body["result"]["text"] == "a good answer"
    assert fetched.body == hit.body


class SlowStage(Stage):
    """Every look into the payload store takes its time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stage = self

        class Slow(InMemoryPayloads):
            def get(self, name: str) -> bytes:
                stage.clock.advance(s=2)
                return super().get(name)

        self.payloads = Slow(self.world)


@pytest.mark.parametrize("by", ["submit", "fetch"])
def test_hit_that_gets_stale_while_it_is_read_says_one_thing(
    by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = SlowStage()
    cached(stage)
    ((key, entry),) = stage.world.entries.items()
    assert entry.result.inline is not None
    stage.world.payloads["results/x"] = entry.result.inline
    stage.world.entries[key] = replace(entry, result=Payload(ref="results/x"))
    stage.clock.advance(s=SOFT_S - 1)
    output(capsys)

    answer = stage.submit() if by == "submit" else stage.get(f"hit_{key}")

    assert stage.clock.now_ms() == NOW_MS + (SOFT_S + 1) * 1000
    assert cache_of(answer) == ("hit", "sluiceway; hit; ttl=1")
    assert answer.body["cache"]["age_s"] == SOFT_S - 1
    told = [line["age_s"] for line in log_lines(output(capsys)) if line["message"] == "cache_hit"]
    assert told == ([SOFT_S - 1] if by == "submit" else [])


def test_age_of_a_job_from_the_cache_is_of_when_it_was_read() -> None:
    stage = SlowStage()
    waiting = wish(stage, no_store=True).body["id"]
    cached(stage)
    stage.run_job(waiting)
    result = stage.world.jobs["acme", waiting].result
    assert result is not None
    assert result.inline is not None
    stage.world.payloads["results/x"] = result.inline
    end(stage, waiting, result=Payload(ref="results/x"))
    stage.clock.advance(s=5)

    answer = stage.get(waiting)

    assert (answer.body["cache"]["age_s"], answer.headers["age"]) == (5, "5")


@pytest.mark.parametrize("what", ["job", "hit"])
def test_result_that_is_damaged_is_gone(stage: Stage, what: str) -> None:
    job_id = cached(stage)
    ((key, entry),) = stage.world.entries.items()
    damaged = Payload(inline=b"damaged")
    stage.world.entries[key] = replace(entry, result=damaged)
    end(stage, job_id, result=damaged)

    assert_problem(stage.get(job_id if what == "job" else f"hit_{key}"), 410, "result_expired")


def test_job_that_waited_for_anothers_result_says_so(stage: Stage) -> None:
    waiting = wish(stage, no_store=True).body["id"]
    cached(stage)
    stage.run_job(waiting)
    stage.clock.advance(s=5)

    answer = stage.get(waiting)

    assert cache_of(answer) == ("hit", "sluiceway; hit")
    assert answer.body["cache"]["age_s"] == 5
    assert (answer.body["usage"]["cost"], answer.body["usage"]["saved"]) == (0, 0.00033)
    assert stage.vendor.total == 1


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
def test_mode_past_the_cache_without_its_scope_is_forbidden(stage: Stage, mode: str) -> None:
    answer = wish(stage, "submit read cancel admin", mode=mode)

    assert_problem(answer, 403, "forbidden")
    assert "'bypass'" in answer.body["detail"]
    assert_nothing_happened(stage)


def test_mode_only_without_an_entry_is_not_found_and_nothing_is_written(stage: Stage) -> None:
    answer = wish(stage, mode="only")

    assert_problem(answer, 404, "cache_miss")
    assert_nothing_happened(stage)


def test_mode_only_is_answered_by_the_cache(stage: Stage) -> None:
    cached(stage)

    assert cache_of(wish(stage, mode="only"))[0] == "hit"


def test_budget_of_jobs_past_the_cache_is_refused_until_midnight(stage: Stage) -> None:
    stage.clock.advance(s=86_400 - 90)

    def bypass(text: str) -> Answer:
        body = {"model": "demo-chat", "input": text, "cache": {"mode": "bypass"}}
        return stage.post(body, tenant="thrifty", scopes="submit bypass")

    assert [bypass(text).status for text in ("one", "two")] == [202, 202]
    refused = bypass("three")

    assert_problem(refused, 429, "quota_exceeded")
    assert refused.headers["retry-after"] == "90"
    stage.clock.advance(s=90)
    assert bypass("three").status == 202


@pytest.mark.parametrize(
    "cache",
    [
        None,
        "use",
        {"mode": "never"},
        {"mode": None},
        {"max_age_s": -1},
        {"max_age_s": 1.5},
        {"max_age_s": "5"},
        {"max_age_s": True},
        {"max_age_s": 2**60},
        {"ttl_s": 0},
        {"ttl_s": 2**60},
        {"no_store": 1},
        {"no_store": "true"},
        {"max_age": 5},
    ],
    ids=repr,
)
def test_wish_that_the_cache_does_not_know_is_refused(stage: Stage, cache: Any) -> None:
    answer = stage.post({"model": "demo-chat", "input": "hello", "cache": cache})

    assert_problem(answer, 422, "validation_failed")
    assert_nothing_happened(stage)


def test_stale_hit_and_its_refresh_are_counted_and_logged(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    cached(stage)
    stage.clock.advance(s=SOFT_S)
    output(capsys)

    stage.submit()
    stage.submit()

    written_lines = output(capsys)
    told = [(line["message"], line["tenant"]) for line in log_lines(written_lines)]
    assert told == [("cache_stale", "acme"), ("refresh_queued", "refresh"), ("cache_stale", "acme")]
    assert [line["CacheStale"] for line in metric_lines(written_lines)] == [[1.0], [1.0]]


def late(stage: Stage, text: str) -> str:
    """Id of a job that is late in degraded mode, with an old answer of this text."""
    stage.world.jobs["acme", JOB_ID] = a_job()
    document = {"text": text, "finish_reason": "stop"}
    stage.world.entries[CACHE_KEY] = an_entry(result=packed(document))
    stage.world.degraded_since_epoch_ms = NOW_MS
    stage.clock.advance(s=300)
    return JOB_ID


def test_late_job_is_fetched_with_an_old_answer_in_degraded_mode(stage: Stage) -> None:
    answer = stage.get(late(stage, "an old answer"))

    assert (answer.status, answer.body["status"]) == (200, "queued")
    assert answer.body["fallback"] == {
        "result": {
            "text": "an old answer",
            "finish_reason": "stop",
            "vendor_request_id": "req_vendor_0",
        },
        "age_s": 300,
    }
    assert "result" not in answer.body
    assert answer.body["cache"] == {"status": "miss", "age_s": 0, "stale": False}
    assert "retry-after" in answer.headers


def test_late_job_is_fetched_without_an_old_answer_that_is_too_big(stage: Stage) -> None:
    answer = stage.get(late(stage, "x" * (6 * MIB)))

    assert (answer.status, answer.body["id"]) == (200, JOB_ID)
    assert "fallback" not in answer.body
    assert "result_url" not in answer.body
    assert len(answer.text) < MIB


def test_degraded_hit_is_counted_as_one(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    cached(stage)
    stage.clock.advance(s=HARD_S)
    stage.world.degraded_since_epoch_ms = NOW_MS
    output(capsys)

    stage.submit()

    written_lines = output(capsys)
    assert [line["message"] for line in log_lines(written_lines)] == ["cache_degraded"]
    (metrics,) = metric_lines(written_lines)
    assert (metrics["Degraded"], metrics["CacheStale"]) == ([1.0], [1.0])


def test_refresh_is_found_by_no_tenant(stage: Stage) -> None:
    cached(stage)
    stage.clock.advance(s=SOFT_S)
    stage.submit()
    ((_, owner, job_id),) = stage.sent[-1:]

    assert owner.startswith("refresh#")
    assert_problem(stage.get(job_id), 404, "job_not_found")
    assert_problem(stage.cancel(job_id), 404, "job_not_found")


@pytest.mark.parametrize("size", [10, 1_100_000], ids=["small", "by address"])
def test_shared_answer_tells_nothing_of_who_paid_for_it(stage: Stage, size: int) -> None:
    stage.vendor.default = VendorAnswer("é" * size, "stop", 1, 1, 1)
    cached(stage, model="demo-shared", metadata={"note": "of acme"})

    hit = stage.post({"model": "demo-shared", "input": "hello"}, tenant="globex")
    fetched = stage.get(hit.body["id"], tenant="globex")

    assert stage.vendor.total == 1
    for answer in (hit, fetched):
        assert answer.status == 200
        assert ("result_url" in answer.body) is (size > 10)
        assert "acme" not in answer.text + repr(answer.headers)


@pytest.mark.parametrize(
    "value", [2**60, 0.0, 0, -0.0, 1e-7, 1.0, 1, True, False, None, "", "0", [], {}], ids=repr
)
def test_values_of_an_answer_keep_their_types_on_every_path(stage: Stage, value: Any) -> None:
    content: list[dict[str, object]] = [{"type": "x", "value": value}]
    stage.vendor.default = VendorAnswer("text", "stop", 1, 1, 1, content=content)
    job_id = cached(stage)

    answers = [stage.get(job_id), stage.submit()]

    for answer in answers:
        assert repr(answer.body["result"]["content"]) == repr(content)


# ------------------------------------------------------------------ whose jobs


def test_anothers_job_is_exactly_like_an_unknown_one(stage: Stage) -> None:
    job_id = stage.submit().body["id"]

    anothers = stage.get(job_id, tenant="globex")
    unknown = stage.get("job_01KDVT7V00000000000000000Z", tenant="globex")

    assert anothers == unknown
    assert_problem(anothers, 404, "job_not_found")


def test_anothers_hit_is_exactly_like_an_unknown_one(stage: Stage) -> None:
    stage.world.entries[CACHE_KEY] = an_entry()

    anothers = stage.get(f"hit_{CACHE_KEY}", tenant="globex")
    unknown = stage.get(f"hit_c1_{'x' * 43}", tenant="globex")

    assert anothers == unknown
    assert_problem(anothers, 404, "job_not_found")


def test_anothers_same_request_is_no_hit(stage: Stage) -> None:
    stage.run_job(stage.submit().body["id"])

    other = stage.submit(tenant="globex")

    assert other.status == 202
    assert other.body["deduplicated"] is False
    assert other.headers["cache-status"] == "sluiceway; fwd=miss"


@pytest.mark.parametrize(
    "authorizer", [ABSENT, None, {}, {"tenant": None}, {"tenant": "", "scopes": "submit read"}]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_without_a_tenant_is_refused(stage: Stage, authorizer: Any, method: str) -> None:
    path = {"GET": f"/jobs/{JOB_ID}", "POST": "/jobs"}[method]
    event = request(method, path, tenant=ABSENT, authorizer=authorizer)

    answer = stage.answer(event)

    assert_problem(answer, 401, "unauthenticated")
    assert_nothing_happened(stage)


def test_tenant_called_zero_is_a_tenant_like_any_other(stage: Stage) -> None:  # case A04
    stage.submit(tenant="acme")

    answer = stage.submit(tenant="0")

    assert answer.body["deduplicated"] is False
    assert [tenant for _, tenant, _ in stage.sent] == ["acme", "0"]


@pytest.mark.parametrize("name", ["tenant_id", "tenant", "owner", "key_id"])
def test_tenant_in_the_body_is_refused(stage: Stage, name: str) -> None:
    answer = stage.post({"model": "demo-chat", "input": "hello", name: "globex"})

    assert_problem(answer, 422, "validation_failed")
    assert answer.body["errors"][0]["field"] == name
    assert_nothing_happened(stage)


def test_tenant_in_a_header_changes_nothing(stage: Stage) -> None:
    stage.submit(headers={"X-Tenant": "globex", "X-Tenant-Id": "globex"})

    assert [tenant for _, tenant, _ in stage.sent] == ["acme"]


@pytest.mark.parametrize("scopes", ["", "read", "cancel bypass admin", "submitter", "SUBMIT"])
def test_submit_needs_its_scope(stage: Stage, scopes: str) -> None:
    answer = stage.submit(scopes=scopes)

    assert_problem(answer, 403, "forbidden")
    assert "'submit'" in answer.body["detail"]
    assert_nothing_happened(stage)


@pytest.mark.parametrize("scopes", ["", "submit", "reader"])
def test_fetch_needs_its_scope(stage: Stage, scopes: str) -> None:
    stage.world.jobs["acme", JOB_ID] = a_job()

    answer = stage.get(JOB_ID, scopes=scopes)

    assert_problem(answer, 403, "forbidden")
    assert "'read'" in answer.body["detail"]


# ------------------------------------------------------------------ bodies


def test_base64_body_is_the_same_work_as_its_plain_twin(stage: Stage) -> None:
    raw = '{"model": "demo-chat", "input": "Café\\r\\n😀 ü"}'

    plain = stage.post(raw=raw)
    encoded = stage.post(raw=raw.encode())

    assert (plain.status, encoded.status) == (202, 202)
    assert encoded.body == {**plain.body, "deduplicated": True}


@pytest.mark.parametrize(
    "content_type",
    [
        ABSENT,
        "",
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; charset=utf8; profile=x",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "application/vnd.partner+json",
    ],
)
@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "base64"])
def test_body_is_taken_whatever_a_client_calls_json(
    stage: Stage, content_type: Any, *, encoded: bool
) -> None:
    raw = b'{"model": "demo-chat", "input": "hello"}'
    expected = stage.submit().body["id"]

    answer = stage.post(
        raw=raw if encoded else raw.decode(), headers={"Content-Type": content_type}
    )

    assert (answer.status, answer.body["id"]) == (202, expected)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/html",
        "multipart/form-data; boundary=x",
        "application/xml",
        "application/jsonx",
        "application/json-seq",
        "json",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        'application/json; charset="iso-8859-1"',
    ],
)
def test_body_of_another_kind_is_refused(stage: Stage, content_type: str) -> None:
    answer = stage.submit(headers={"Content-Type": content_type})

    assert_problem(answer, 415, "unsupported_media_type")
    assert_nothing_happened(stage)


def test_header_names_are_read_in_any_case(stage: Stage) -> None:
    answer = stage.submit(headers={"Content-Type": ABSENT, "CONTENT-TYPE": "text/plain"})

    assert_problem(answer, 415, "unsupported_media_type")


def test_request_without_any_header_is_read(stage: Stage) -> None:
    event = request("POST", "/jobs")
    event["body"] = '{"model": "demo-chat", "input": "hello"}'
    event["headers"] = event["multiValueHeaders"] = None

    assert stage.answer(event).status == 202


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "base64"])
def test_body_of_exactly_the_limit_is_taken(stage: Stage, *, encoded: bool) -> None:
    raw = padded(MIB)

    assert stage.post(raw=raw if encoded else raw.decode()).status == 202


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB + 1, 5 * MIB])
@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "base64"])
def test_body_over_the_limit_is_refused(stage: Stage, size: int, *, encoded: bool) -> None:
    raw = padded(size)

    answer = stage.post(raw=raw if encoded else raw.decode())

    assert_problem(answer, 413, "payload_too_large")
    assert_nothing_happened(stage)


def test_limit_counts_decoded_bytes(stage: Stage) -> None:
    raw = json.dumps({"model": "demo-chat", "input": "€" * 350_000}, ensure_ascii=False)

    assert_problem(stage.post(raw=raw), 413, "payload_too_large")


@pytest.mark.parametrize(
    "raw",
    [
        "",
        b"",
        " ",
        "{",
        "model=demo-chat&input=hello",
        b"model=demo-chat&input=hello",
        '{"model": "demo-chat", "input": "hello"',
        '\ufeff{"model": "demo-chat", "input": "hello"}',
        '{"model": "demo-chat", "input": "hello"}'.encode("utf-16"),
        b'{"model": "demo-chat", "input": "caf\xe9"}',
        '{"model": "demo-chat", "input": "bad \ud83d end"}',
        '{"model":"demo-chat","input":"x","options":{"temperature":NaN}}',
        '{"model":"demo-chat","input":"x","options":{"temperature":-Infinity}}',
        '{"model":"demo-chat","input":"x","options":{"temperature":1e999}}',
        '{"model":"demo-chat","input":"x","options":{"seed":' + "9" * 5000 + "}}",
        '{"model":"demo-chat","input":"x","model":"demo-heavy"}',
        '{"model":"demo-chat","input":"x","options":{"a":1,"a":2}}',
        '{"model":"demo-chat","input":"x","options":{"a":' + "[" * 31 + "]" * 31 + "}}",
        "[" * 100_000,
    ],
    ids=lambda raw: str(raw)[:24].encode("unicode_escape").decode(),
)
def test_body_that_is_not_the_json_we_take_is_refused(stage: Stage, raw: str | bytes) -> None:
    answer = stage.post(raw=raw)

    assert_problem(answer, 400, "invalid_request")
    assert_nothing_happened(stage)


def test_body_that_is_missing_is_refused(stage: Stage) -> None:
    event = request("POST", "/jobs")
    event["body"] = None

    assert_problem(stage.answer(event), 400, "invalid_request")


@pytest.mark.parametrize("text", ["no base64!", "e30", "e30=e30=", "{}", "é", "😀"])
def test_body_that_is_no_base64_is_refused(stage: Stage, text: str) -> None:
    event = request("POST", "/jobs")
    event |= {"body": text, "isBase64Encoded": True}

    answer = stage.answer(event)

    assert_problem(answer, 400, "invalid_request")
    assert_nothing_happened(stage)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ("[]", None),
        ("null", None),
        ('{"input":"x"}', "model"),
        ('{"model":"demo-chat"}', "input"),
        ('{"model":"demo-chat","input":"x","reasoning_effort":"low"}', "reasoning_effort"),
        ('{"model":"demo-chat","input":"x","stream":true}', "stream"),
        ('{"model":"demo-chat","input":"x","options":{"n":true}}', "options"),
        ('{"model":"demo-chat","input":"x","options":{"stream":1}}', "options"),
        ('{"model":"demo-chat","input":"x","deadline_s":"60"}', "deadline_s"),
        ('{"model":"demo-chat","input":"x","deadline_s":604801}', "deadline_s"),
        ('{"model":"demo-chat","input":"bad \\ud83d end"}', None),
        ('{"model":"demo-chat","input":"x","metadata":{"\\udc00":"v"}}', None),
    ],
)
def test_body_that_does_not_fit_the_schema_is_refused(
    stage: Stage, raw: str, field: str | None
) -> None:
    answer = stage.post(raw=raw)

    assert_problem(answer, 422, "validation_failed")
    assert [error["field"] for error in answer.body.get("errors", [])] == ([field] if field else [])
    assert_nothing_happened(stage)


def test_refusal_repeats_no_text_of_the_body(stage: Stage) -> None:
    answer = stage.post({"model": "demo-chat", "input": ["hunter2"], "locale": "hunter2" * 9})

    assert_problem(answer, 422, "validation_failed")
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"input": {"messages": [{"role": "user", "content": [0] * 120_000}]}},
        {f"u{number}": 0 for number in range(80_000)},
    ],
    ids=["many wrong parts", "many unknown members"],
)
def test_refusal_is_never_too_large_for_lambda_to_return(stage: Stage, body: Any) -> None:
    answer = stage.post({"model": "demo-chat", "input": "x", **body})

    size = len(json.dumps(answer.text))
    assert_problem(answer, 422, "validation_failed")
    assert size < LAMBDA_ANSWER_BYTES


def test_model_that_is_not_there_is_refused(stage: Stage) -> None:
    answer = stage.post({"model": "gpt-9", "input": "hello"})

    assert_problem(answer, 404, "model_not_found")
    assert_nothing_happened(stage)


# ------------------------------------------------------------------ parameters, headers, routes


@pytest.mark.parametrize("query", [{"verbose": "1"}, {"model": "demo-heavy"}, {"": ""}])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_query_parameter_that_we_do_not_know_is_refused(
    stage: Stage, query: dict[str, str], method: str
) -> None:
    path = {"GET": f"/jobs/{JOB_ID}", "POST": "/jobs"}[method]
    event = request(method, path, query=query)

    answer = stage.answer(event)

    assert_problem(answer, 400, "invalid_request")
    assert_nothing_happened(stage)


@pytest.mark.parametrize("given", ["order-1001", "x", "a" * 128, "!#$%&'*+-./:;<=>?@[]^_`{|}~"])
def test_correlation_id_is_stored_and_echoed(stage: Stage, given: str) -> None:
    answer = stage.submit(headers={"X-Correlation-Id": given})

    assert answer.headers["x-correlation-id"] == given
    assert stage.world.jobs["acme", answer.body["id"]].correlation_id == given


def test_correlation_id_is_on_every_log_line(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.submit(headers={"X-Correlation-Id": "order-1001"})
    stage.submit(headers={"X-Correlation-Id": "order-1001"}, scopes="")

    lines = log_lines(output(capsys))
    assert [line["message"] for line in lines] == ["job_submitted", "cache_miss", "request_refused"]
    assert {line["correlation_id"] for line in lines} == {"order-1001"}


def test_request_id_on_every_log_line_is_the_one_that_the_partner_sees(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [stage.submit(), stage.submit(scopes="")]

    lines = log_lines(output(capsys))
    assert {line["request_id"] for line in lines} == {"gateway-1"}
    assert {answer.headers["x-request-id"] for answer in answers} == {"gateway-1"}


def test_correlation_id_is_the_request_id_when_none_is_given(stage: Stage) -> None:
    answer = stage.submit(headers={"X-Correlation-Id": ABSENT})

    assert answer.headers["x-correlation-id"] == "gateway-1"
    assert stage.world.jobs["acme", answer.body["id"]].correlation_id == "gateway-1"


@pytest.mark.parametrize("given", ["", " ", "a b", "a" * 129, "é", "a\tb", "a\nb", "\x7f"])
def test_correlation_id_that_is_none_is_refused(stage: Stage, given: str) -> None:
    answer = stage.submit(headers={"X-Correlation-Id": given})

    assert_problem(answer, 400, "invalid_request")
    assert answer.headers["x-correlation-id"] == "gateway-1"
    assert_nothing_happened(stage)


def test_correlation_id_that_is_none_is_refused_in_a_replay_too(stage: Stage) -> None:
    headers = {"Idempotency-Key": "order-1001"}
    assert stage.submit(headers=headers).status == 202

    answer = stage.submit(headers=headers | {"X-Correlation-Id": "two words"})

    assert_problem(answer, 400, "invalid_request")


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


@pytest.mark.parametrize(
    "path",
    ["/", "/nope", "/jobs/x/y", "/jobs/x/cancel/y", "/jobs//cancel", "/job", "/health/x", "/JOBS"],
)
@pytest.mark.parametrize("method", METHODS)
def test_path_that_is_unknown_is_not_found(stage: Stage, path: str, method: str) -> None:
    answer = stage.answer(request(method, path))

    assert "allow" not in answer.headers
    if method == "HEAD":
        assert (answer.status, answer.text) == (404, "")
    else:
        assert_problem(answer, 404, "route_not_found")
    assert_nothing_happened(stage)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD"),
        ("/jobs", "GET, HEAD, POST"),
        ("/jobs/", "GET, HEAD, POST"),
        (f"/jobs/{JOB_ID}", "GET, HEAD"),
        (f"/jobs/{JOB_ID}/cancel", "POST"),
        ("/batches", "POST"),
        ("/batches/batch_01KDVT7V00000000000000000A", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_method_that_a_path_lacks_is_refused_with_those_it_has(
    stage: Stage, path: str, allowed: str, method: str
) -> None:
    answer = stage.answer(request(method, path))

    if method in allowed.split(", "):
        assert answer.status != 405
        return
    if method == "HEAD":
        assert (answer.status, answer.text) == (405, "")
    else:
        assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed
    assert_nothing_happened(stage)


def test_id_that_no_job_can_have_is_not_found(stage: Stage) -> None:
    assert_problem(stage.answer(request("GET", '/jobs/"')), 404, "job_not_found")


@pytest.mark.parametrize("of", ["health", "open job", "unknown job", "another tenant's job"])
def test_head_is_a_get_without_its_body(stage: Stage, of: str) -> None:
    job_id = stage.submit().body["id"]
    path = {"health": "/health", "unknown job": f"/jobs/{JOB_ID}"}.get(of, f"/jobs/{job_id}")
    tenant = "globex" if of == "another tenant's job" else "acme"

    got, head = (stage.answer(request(verb, path, tenant=tenant)) for verb in ("GET", "HEAD"))

    assert (head.status, head.headers) == (got.status, got.headers)
    assert got.text
    assert head.text == ""


def test_head_needs_the_scope_of_a_get(stage: Stage) -> None:
    answer = stage.answer(request("HEAD", f"/jobs/{JOB_ID}", scopes="submit"))

    assert (answer.status, answer.text) == (403, "")


@pytest.mark.parametrize(
    ("path", "full", "base"),
    [
        ("/jobs", "/v1/jobs", "/v1"),
        ("/jobs/", "/v1/jobs/", "/v1"),
        ("/jobs", "/jobs", ""),
        ("/jobs", "/ai/gateway/jobs", "/ai/gateway"),
    ],
    ids=["stage", "slash at the end", "custom domain", "base path mapping"],
)
def test_location_is_where_the_client_finds_the_job(
    stage: Stage, path: str, full: str, base: str
) -> None:
    event = request("POST", path)
    event["body"] = '{"model": "demo-chat", "input": "hello"}'
    event["requestContext"]["path"] = full

    answer = stage.answer(event)

    assert answer.status == 202
    assert answer.headers["location"] == f"{base}/jobs/{answer.body['id']}"


@pytest.mark.parametrize(
    "job_id", ["x", "hit_", "job_", "hit_" + "x" * 3000, "x" * 5000], ids=lambda value: value[:5]
)
def test_id_that_was_never_ours_is_not_found(stage: Stage, job_id: str) -> None:
    assert_problem(stage.get(job_id), 404, "job_not_found")


# ------------------------------------------------------------------ not now


def test_quota_is_refused_with_a_time_to_come_again(stage: Stage) -> None:
    stage.submit("one", tenant="small")
    stage.submit("two", tenant="small")

    answer = stage.submit("three", tenant="small")

    assert_problem(answer, 429, "quota_exceeded")
    assert int(answer.headers["retry-after"]) >= 1
    assert len(stage.sent) == 2


def test_busy_tables_are_told_with_a_time_to_come_again(stage: Stage) -> None:
    stage.world.counters_busy = True

    answer = stage.submit()

    assert_problem(answer, 503, "degraded")
    assert int(answer.headers["retry-after"]) >= 1
    assert_nothing_happened(stage)


def test_submit_whose_send_failed_is_accepted_all_the_same(stage: Stage) -> None:
    queue = InMemoryQueue()
    queue.broken = True
    stage.queue = queue

    answer = stage.submit()

    assert answer.status == 202
    assert stage.get(answer.body["id"]).status == 200


# ------------------------------------------------------------------ what nobody expected


class Broken:
    """A port of which every call fails, with a text that nobody may see."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


@pytest.mark.parametrize("port", ["jobs", "cache"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unexpected_error_is_a_problem_without_its_text(
    stage: Stage, capsys: pytest.CaptureFixture[str], port: str, method: str
) -> None:
    setattr(stage, port, Broken(RuntimeError("hunter2")))
    job_id = {"jobs": JOB_ID, "cache": f"hit_{CACHE_KEY}"}[port]

    answer = stage.get(job_id) if method == "GET" else stage.submit()

    assert_problem(answer, 500, "internal")
    assert "hunter2" not in answer.text + str(answer.headers)
    assert "Traceback" not in answer.text
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert '"error_class":"RuntimeError"' in captured.out
    assert_nothing_happened(stage)


def test_busy_port_anywhere_is_told_as_busy(stage: Stage) -> None:
    stage.cache = Broken(StoreBusyError("The tables are busy.", retry_after_s=3))

    answer = stage.submit()

    assert_problem(answer, 503, "degraded")
    assert answer.headers["retry-after"] == "3"


def test_request_after_an_unexpected_error_is_answered_as_ever(stage: Stage) -> None:
    working, stage.jobs = stage.jobs, Broken(RuntimeError("hunter2"))
    stage.submit()
    stage.jobs = working

    assert stage.submit().status == 202


# ------------------------------------------------------------------ logs


def test_log_fields_of_one_request_are_gone_in_the_next(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = stage.submit(headers={"X-Correlation-Id": "order-1001"}).body["id"]
    output(capsys)

    stage.submit(headers={"X-Correlation-Id": ABSENT}, authorizer=None)

    (line,) = log_lines(output(capsys))
    assert line["message"] == "request_refused"
    assert "tenant" not in line
    assert job_id not in str(line)
    assert "order-1001" not in str(line)


def test_logs_and_metrics_hold_no_text_of_prompt_result_or_key(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.vendor.default = VendorAnswer("hunter2 is the answer", "stop", 1, 1, 1)
    key = {"Authorization": "Bearer swk_hunter2"}
    job_id = stage.submit("hunter2 is the question", headers=key).body["id"]
    stage.submit("hunter2 is the question", headers=key)
    stage.run_job(job_id)
    stage.submit("hunter2 is the question", headers=key)
    stage.get(job_id, headers=key)
    stage.post({"model": "hunter2", "input": "hunter2"}, headers=key)
    stage.post({"hunter2": "hunter2"}, headers=key)
    stage.post(raw="hunter2", headers=key)

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) > 10
    assert "hunter2" not in captured.out + captured.err


def test_each_kind_of_answer_to_a_submit_is_counted(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = stage.submit().body["id"]
    stage.submit()
    stage.run_job(job_id)
    output(capsys)

    stage.submit()
    stage.submit("other")
    stage.submit("other")

    counted = names_of_metrics(output(capsys))
    assert counted == ["CacheHit", "JobsSubmitted", "CacheMiss", "JobsDeduplicated", "CacheMiss"]


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        ({}, ["JobsSubmitted", "CacheMiss"]),
        ({"cache": {"no_store": True}}, ["JobsSubmitted", "CacheMiss"]),
        ({"cache": {"mode": "only"}}, ["CacheMiss"]),
        ({"cache": {"mode": "refresh"}}, ["JobsSubmitted"]),
        ({"cache": {"mode": "bypass"}}, ["JobsSubmitted"]),
        ({"model": "demo-uncached"}, ["JobsSubmitted"]),
        ({"model": "demo-exact"}, ["JobsSubmitted"]),
        ({"model": "demo-exact", "options": {"temperature": 0}}, ["JobsSubmitted", "CacheMiss"]),
        ({"model": "demo-unknown"}, []),
    ],
    ids=str,
)
def test_miss_is_counted_for_who_looked_and_found_nothing(
    stage: Stage, capsys: pytest.CaptureFixture[str], body: dict[str, Any], counted: list[str]
) -> None:
    whole = {"model": "demo-chat", "input": "hello", **body}

    stage.post(whole, scopes="submit bypass")
    first = output(capsys)
    stage.post(whole, scopes="submit bypass")
    second = output(capsys)

    assert names_of_metrics(first) == counted
    again = [name.replace("JobsSubmitted", "JobsDeduplicated") for name in counted]
    assert names_of_metrics(second) == again


def test_miss_is_counted_by_the_dimensions_of_a_hit(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    def dimensions(name: str) -> Any:
        (line,) = [line for line in metric_lines(output(capsys)) if name in line]
        return line["_aws"]["CloudWatchMetrics"][0]["Dimensions"]

    job_id = stage.submit().body["id"]
    miss = dimensions("CacheMiss")
    stage.run_job(job_id)
    output(capsys)
    stage.submit()

    assert dimensions("CacheHit") == miss


def names_of_metrics(text: str) -> list[str]:
    return [
        metric["Name"]
        for line in metric_lines(text)
        for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    ]


def test_hit_is_logged_with_tenant_model_and_age(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.run_job(stage.submit().body["id"])
    stage.clock.advance(s=61)
    output(capsys)

    stage.submit()

    (line,) = log_lines(output(capsys))
    assert (line["message"], line["tenant"], line["model"]) == ("cache_hit", "acme", "demo-chat")
    assert line["age_s"] == 61


# ------------------------------------------------------------------ the rest


def test_expired_result_is_gone(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)
    stage.clock.advance(s=72 * 3600 + 1)

    assert_problem(stage.get(job_id), 410, "result_expired")


@pytest.mark.parametrize("status", JobStatus)
def test_job_is_shown_in_every_state(stage: Stage, status: JobStatus) -> None:
    job_id = stage.submit().body["id"]
    end(stage, job_id, status=status)

    answer = stage.get(job_id)

    assert (answer.status, answer.body["status"]) == (200, status.value)


def test_trace_of_the_request_goes_into_the_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "Root=1-69559e80-0123456789abcdef01234567;Sampled=0"
    monkeypatch.setenv("_X_AMZN_TRACE_ID", trace)

    job_id = stage.submit().body["id"]

    assert stage.world.jobs["acme", job_id].trace_header == trace


def test_each_answer_holds_its_own_request(stage: Stage) -> None:
    nonces = [os.urandom(8).hex() for _ in range(50)]
    ids = {nonce: stage.submit(nonce).body["id"] for nonce in nonces}
    for nonce, job_id in ids.items():
        stage.vendor.script = [VendorAnswer(f"answer to {nonce}", "stop", 1, 1, 1)]
        stage.run(message(job_id))

    answers = {nonce: stage.get(job_id).body["result"]["text"] for nonce, job_id in ids.items()}

    assert answers == {nonce: f"answer to {nonce}" for nonce in nonces}
    assert stage.clock.now_ms() == NOW_MS


# ------------------------------------------------------------------ cancel


def test_open_job_is_cancelled_and_shown(stage: Stage) -> None:
    submitted = stage.submit()
    stage.clock.advance(s=3)

    answer = stage.cancel(submitted.body["id"])

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    was = {name: value for name, value in submitted.body.items() if name != "queue"}
    assert answer.body == was | {
        "status": "cancelled",
        "completed_at": "2026-01-01T00:00:03.000Z",
    }
    assert "retry-after" not in answer.headers
    assert stage.get(submitted.body["id"]).body == answer.body


def test_address_for_the_cancel_is_the_one_that_the_job_names(stage: Stage) -> None:
    submitted = stage.submit()
    path = submitted.body["urls"]["cancel"].removeprefix("/v1")

    answer = stage.answer(request("POST", path, scopes="cancel"))

    assert (answer.status, answer.body["status"]) == (200, "cancelled")


def test_cancel_again_is_answered_the_same(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    first = stage.cancel(job_id)
    stage.clock.advance(s=60)

    second = stage.cancel(job_id)

    assert (second.status, second.body) == (200, first.body)


def test_cancelled_jobs_place_is_free_and_the_same_request_is_a_new_job(stage: Stage) -> None:
    job_id = stage.submit().body["id"]

    stage.cancel(job_id)

    assert stage.world.open_jobs("acme") == 0
    again = stage.submit()
    assert (again.status, again.body["deduplicated"]) == (202, False)
    assert again.body["id"] != job_id


def test_cancelled_jobs_message_is_gone_without_a_call(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.cancel(job_id)

    assert stage.run_job(job_id) == []
    assert stage.vendor.total == 0


def test_job_that_is_worked_on_is_cancelled(stage: Stage) -> None:
    answers: list[Answer] = []

    def cancelled_meanwhile(_: Any) -> VendorAnswer:
        answers.append(stage.cancel(job_id))
        return VendorAnswer("too late", "stop", 1, 1, 1)

    stage.vendor.script = [cancelled_meanwhile]
    job_id = stage.submit().body["id"]

    assert stage.run_job(job_id) == []
    assert [(answer.status, answer.body["status"]) for answer in answers] == [(200, "cancelled")]
    fetched = stage.get(job_id).body
    assert (fetched["status"], "result" in fetched) == ("cancelled", False)


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD_LETTERED])
def test_job_that_ended_otherwise_can_not_be_cancelled(stage: Stage, status: JobStatus) -> None:
    job_id = stage.submit().body["id"]
    end(stage, job_id, status=status)

    answer = stage.cancel(job_id)

    assert_problem(answer, 409, "not_cancellable")
    assert status.value in answer.body["detail"]
    assert stage.world.jobs["acme", job_id].status is status


def test_cancel_of_anothers_job_is_exactly_like_that_of_an_unknown_one(stage: Stage) -> None:
    job_id = stage.submit().body["id"]

    anothers, unknown = stage.cancel(job_id, tenant="globex"), stage.cancel(JOB_ID)

    assert_problem(anothers, 404, "job_not_found")
    assert anothers.body == unknown.body
    assert stage.world.jobs["acme", job_id].status is JobStatus.QUEUED


@pytest.mark.parametrize("scopes", ["", "submit read", "submit read bypass admin", "cancelled"])
def test_cancel_needs_its_scope(stage: Stage, scopes: str) -> None:
    job_id = stage.submit().body["id"]

    answer = stage.cancel(job_id, scopes=scopes)

    assert_problem(answer, 403, "forbidden")
    assert "'cancel'" in answer.body["detail"]
    assert stage.world.jobs["acme", job_id].status is JobStatus.QUEUED


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_cancel_by_another_method_is_refused(stage: Stage, method: str) -> None:
    job_id = stage.submit().body["id"]

    answer = stage.answer(request(method, f"/jobs/{job_id}/cancel", scopes="cancel"))

    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert stage.world.jobs["acme", job_id].status is JobStatus.QUEUED


def test_cancel_takes_no_query_parameters(stage: Stage) -> None:
    job_id = stage.submit().body["id"]

    assert_problem(stage.cancel(job_id, query={"force": "1"}), 400, "invalid_request")


def test_cancel_is_logged_with_its_job(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    job_id = stage.submit().body["id"]
    output(capsys)

    stage.cancel(job_id)

    (line,) = log_lines(output(capsys))
    assert (line["message"], line["job_id"]) == ("job_cancelled", job_id)


def test_cancel_again_is_not_logged_as_another(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = stage.submit().body["id"]
    stage.cancel(job_id)
    output(capsys)

    assert stage.cancel(job_id).status == 200
    assert log_lines(output(capsys)) == []


def test_cancel_while_the_tables_are_busy_is_told_with_a_time_to_come_again(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.world.counters_busy = True

    assert_problem(stage.cancel(job_id), 503, "degraded")
    assert stage.world.jobs["acme", job_id].status is JobStatus.QUEUED


def test_submit_of_a_tenant_with_a_rate_says_where_it_stands(stage: Stage) -> None:
    limits = Tenant(requests_per_minute=2)
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": limits}})

    first, second, third = (stage.submit(f"number {number}") for number in range(3))

    assert (first.headers["ratelimit"], first.headers["ratelimit-policy"]) == (
        '"minute";r=1;t=60',
        '"minute";q=2;w=60',
    )
    assert second.headers["ratelimit"] == '"minute";r=0;t=60'
    assert (third.status, third.body["code"], third.headers["retry-after"]) == (
        429,
        "rate_limited",
        "60",
    )
    assert "ratelimit" not in stage.get(first.body["id"]).headers


DAY_MS = 24 * 3600 * 1000
WHOLE_SECONDS = re.compile(r"[1-9][0-9]*")


@pytest.mark.parametrize("into_ms", [0, 500, 59_000, 59_999, DAY_MS - 1_000, DAY_MS - 1])
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"requests_per_minute": 2}, "rate_limited"),
        ({"jobs_per_day": 2}, "quota_exceeded"),
        ({"cost_per_day": 0.035}, "quota_exceeded"),
        ({"bypasses_per_day": 2}, "quota_exceeded"),
    ],
    ids=str,
)
def test_client_that_waits_as_long_as_it_is_told_gets_in(  # case R06
    stage: Stage, limits: dict[str, Any], code: str, into_ms: int
) -> None:
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": Tenant(**limits)}})
    stage.clock.advance(into_ms)
    cache = {"mode": "bypass"} if "bypasses_per_day" in limits else {}

    def submit(text: str) -> Answer:
        body = {"model": "demo-chat", "input": text, "options": {"max_tokens": 1_000}}
        return stage.post(body | {"cache": cache}, scopes="submit bypass")

    assert [submit(text).status for text in ("one", "two")] == [202, 202]
    refused = submit("three")

    assert_problem(refused, 429, code)
    assert WHOLE_SECONDS.fullmatch(refused.headers["retry-after"])
    stage.clock.advance(s=int(refused.headers["retry-after"]))
    assert submit("three").status == 202


@pytest.mark.parametrize("reason", ["cap", "queue", "degraded", "tables"])
def test_client_that_waits_gets_in_when_the_reason_is_over(  # case R06
    stage: Stage, reason: str
) -> None:
    full = CATALOGUE.service.model_copy(update={"queue_full": 40})
    stage.catalogue = CATALOGUE.model_copy(
        update={"service": full, "tenants": {"acme": Tenant(in_flight=1)}}
    )
    first = "" if reason != "cap" else stage.submit("first").body["id"]
    if reason == "queue":
        waits = Group("interactive", "demo-chat", "acme", waiting=40, oldest_epoch_ms=NOW_MS - 1)
        stage.world.backlog = Backlog(NOW_MS, (waits,), {"demo-chat": Pace(50.0)})
    elif reason == "degraded":
        stage.world.degraded_since_epoch_ms = NOW_MS
    elif reason == "tables":
        stage.world.counters_busy = True
    body = {"model": "demo-chat", "input": "hello", "priority": "batch"}

    refused = stage.post(body)

    assert refused.body["code"] == {"cap": "quota_exceeded", "queue": "queue_full"}.get(
        reason, "degraded"
    )
    assert WHOLE_SECONDS.fullmatch(refused.headers["retry-after"])
    stage.clock.advance(s=int(refused.headers["retry-after"]))
    if first:
        stage.run_job(first)
    stage.world.backlog, stage.world.counters_busy = Backlog(), False
    stage.world.degraded_since_epoch_ms = None
    assert stage.post(body).status == 202


# ------------------------------------------------------------------ the line


def test_open_job_says_where_it_stands_and_when_to_ask(stage: Stage) -> None:
    acme = Group("interactive", "demo-chat", "acme", waiting=40, oldest_epoch_ms=NOW_MS - 1)
    stage.world.backlog = Backlog(NOW_MS, (acme,), {"demo-chat": Pace(1_000.0, 2_000, 0, NOW_MS)})

    submitted = stage.submit()
    fetched = stage.get(submitted.body["id"])
    stage.clock.advance(s=10)
    later = stage.get(submitted.body["id"])

    assert submitted.body["queue"] == fetched.body["queue"] == {"position": 41, "eta_s": 42}
    assert submitted.headers["retry-after"] == fetched.headers["retry-after"] == "21"
    assert later.body["queue"] == {"position": 31, "eta_s": 32}
    assert later.headers["retry-after"] == "16"


def test_job_that_has_ended_stands_in_no_line(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)

    assert "queue" not in stage.get(job_id).body


def test_full_queue_refuses_a_submit_for_a_while(stage: Stage) -> None:
    full = CATALOGUE.service.model_copy(update={"queue_full": 40})
    stage.catalogue = CATALOGUE.model_copy(update={"service": full})
    acme = Group("interactive", "demo-chat", "acme", waiting=40, oldest_epoch_ms=NOW_MS - 1)
    stage.world.backlog = Backlog(NOW_MS, (acme,), {"demo-chat": Pace(9_000.0)})

    answer = stage.submit()

    assert_problem(answer, 503, "queue_full")
    assert answer.headers["retry-after"] == "9"  # one job's time
    assert_nothing_happened(stage)


# ------------------------------------------------------------------ dry run


def ask(stage: Stage, value: str = "true", **members: Any) -> Answer:
    body = {"model": "demo-chat", "input": "hello", **members}
    return stage.post(body, query={"dry_run": value})


def test_dry_run_says_what_a_submit_would_get_and_does_nothing(stage: Stage) -> None:
    answer = ask(stage, options={"max_tokens": 50})

    assert answer.status == 200
    assert answer.body == {
        "object": "dry_run",
        "model": "demo-chat",
        "priority": "interactive",
        "job_key": answer.body["job_key"],
        "cache_key": answer.body["cache_key"],
        "cache": {"status": "miss", "age_s": 0, "stale": False},
        "deduplicated": False,
        "estimate": {"input_tokens": 12, "output_tokens": 50, "cost": 0.000786},
        "queue": {"position": 1, "eta_s": 9},
    }
    assert_nothing_happened(stage)
    body = {"model": "demo-chat", "input": "hello", "options": {"max_tokens": 50}}
    job = stage.world.jobs["acme", stage.post(body).body["id"]]
    assert (job.job_key, job.cache_key) == (answer.body["job_key"], answer.body["cache_key"])


def test_answer_of_absurd_length_is_estimated_and_refused_by_what_it_may_cost(
    stage: Stage,
) -> None:
    absurd = {"model": "demo-chat", "input": "hello", "options": {"max_tokens": 1.7e308}}

    estimated = stage.post(absurd, query={"dry_run": "true"})
    refused = stage.post(absurd | {"max_cost": 5})

    assert estimated.status == 200
    assert (refused.status, refused.body["code"]) == (422, "cost_limit")
    assert len(refused.body["detail"]) < 100


def test_dry_run_that_is_false_is_a_submit(stage: Stage) -> None:
    assert ask(stage, "false").status == 202


@pytest.mark.parametrize("value", ["", "1", "True", "yes"])
def test_dry_run_is_true_or_false(stage: Stage, value: str) -> None:
    assert_problem(ask(stage, value), 400, "invalid_request")
    assert_nothing_happened(stage)


def test_dry_run_that_says_both_is_refused(stage: Stage) -> None:
    event = request("POST", "/jobs", query={"dry_run": "true"})
    event["multiValueQueryStringParameters"] = {"dry_run": ["false", "true"]}

    assert_problem(stage.answer(event), 400, "invalid_request")


@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({"model": "no-such"}, 404, "model_not_found"),
        ({"surprise": 1}, 422, "validation_failed"),
        ({"max_cost": 1e-9}, 422, "cost_limit"),
        ({"cache": {"mode": "only"}}, 404, "cache_miss"),
        ({"cache": {"mode": "bypass"}}, 403, "forbidden"),
    ],
    ids=str,
)
def test_dry_run_is_refused_as_the_submit_would_be(
    stage: Stage, members: dict[str, Any], status: int, code: str
) -> None:
    assert_problem(ask(stage, **members), status, code)
    assert_nothing_happened(stage)


def test_dry_run_with_a_malformed_idempotency_key_is_refused_as_the_submit_would_be(
    stage: Stage,
) -> None:
    body = {"model": "demo-chat", "input": "hello"}

    answer = stage.post(body, query={"dry_run": "true"}, headers={"Idempotency-Key": "two words"})

    assert_problem(answer, 400, "invalid_request")


def test_other_paths_know_no_dry_run(stage: Stage) -> None:
    job_id = stage.submit().body["id"]

    answer = stage.answer(request("GET", f"/jobs/{job_id}", query={"dry_run": "true"}))

    assert_problem(answer, 400, "invalid_request")
