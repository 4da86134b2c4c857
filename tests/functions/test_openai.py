"""The routes in OpenAI's form, event in and answer out: what no client of OpenAI's would send."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.errors import StoreBusyError
from sluiceway.ports import VendorAnswer
from sluiceway.routes.openai import OWED_S
from sluiceway.routes.request import HOLD_ENDS_BEFORE_S, HOLD_S

from tests.fakes.in_memory import NOW_MS, InMemoryJobs
from tests.functions.stage import ABSENT, Answer, Stage, request
from tests.unit.logs import log_lines, output
from tests.unit.samples import CATALOGUE, written

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

CHAT, RESPONSES = "/chat/completions", "/responses"
HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "demo-chat", "messages": HELLO},
    RESPONSES: {"model": "demo-chat", "input": "hello"},
}


def ask(stage: Stage, path: str, *, raw: str | None = None, **members: Any) -> Answer:
    event_members = {
        name: members.pop(name) for name in ("tenant", "scopes", "headers") if name in members
    }
    event = request("POST", path, **event_members)
    event["body"] = json.dumps({**BODIES[path], **members}) if raw is None else raw
    return stage.answer(event)


def assert_error(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The answer is this error in OpenAI's form, whole."""
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "gateway-1"
    retryable = status in {429, 500, 503} or code == "still_running"
    assert answer.headers["x-should-retry"] == str(retryable).lower()
    assert list(answer.body) == ["error"]
    error: dict[str, Any] = answer.body["error"]
    assert error.keys() - {"job_id"} == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    return error


@pytest.fixture(params=[CHAT, RESPONSES])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ------------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        ("", 400, "invalid_request"),
        ("{", 400, "invalid_request"),
        ('{"model": "demo-chat", "model": "demo-chat"}', 400, "invalid_request"),
        ('{"temperature": NaN}', 400, "invalid_request"),
        ("[" * 40 + "]" * 40, 400, "invalid_request"),
        ('{"input": "\\ud800"}', 422, "validation_failed"),
        ("[]", 422, "validation_failed"),
        ("null", 422, "validation_failed"),
        ("x" * (1024 * 1024 + 1), 413, "payload_too_large"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_body_that_is_no_request_is_refused(
    stage: Stage, path: str, raw: str, status: int, code: str
) -> None:
    assert_error(ask(stage, path, raw=raw), status, code)
    assert written(stage.world) == {}


def test_other_media_types_are_refused(stage: Stage, path: str) -> None:
    answer = ask(stage, path, headers={"content-type": "text/plain", "Content-Type": ABSENT})

    assert_error(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("members", "param"),
    [({"stream": True}, "stream"), ({"surprise": 1}, "surprise"), ({"model": None}, "model")],
    ids=str,
)
def test_member_that_is_refused_is_named(
    stage: Stage, path: str, members: dict[str, Any], param: str
) -> None:
    error = assert_error(ask(stage, path, **members), 422, "validation_failed")

    assert error["param"] == param
    assert f"{param}: " in error["message"]
    assert written(stage.world) == {}


def test_refusal_repeats_no_text_of_the_request(stage: Stage, path: str) -> None:
    answer = ask(stage, path, temperature="a secret", metadata={"a": ["another secret"]})

    assert_error(answer, 422, "validation_failed")
    assert "secret" not in answer.text


def test_parameters_are_refused(stage: Stage, path: str) -> None:
    event = request("POST", path, query={"beta": "true"})
    event["body"] = json.dumps(BODIES[path])

    assert_error(stage.answer(event), 400, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/responses", 405, "method_not_allowed"),
        ("DELETE", "/responses/job_1", 405, "method_not_allowed"),
        ("GET", "/chat/completions/chatcmpl-1", 404, "route_not_found"),
        ("GET", "/responses/job_1/input_items", 404, "route_not_found"),
        ("GET", "/responses/job_unknown", 404, "job_not_found"),
        ("GET", "/responses/%2e%2e", 404, "job_not_found"),
    ],
)
def test_what_is_not_there_is_told_in_openais_form(
    stage: Stage, method: str, path: str, status: int, code: str
) -> None:
    assert_error(stage.answer(request(method, path)), status, code)


def test_other_paths_keep_their_form(stage: Stage) -> None:
    for path in ("/responsesx", "/models/no-such", "/jobs/job_1"):
        answer = stage.answer(request("GET", path))
        assert answer.headers["content-type"] == "application/problem+json"


def test_head_of_a_response_has_no_body(stage: Stage) -> None:
    job_id = ask(stage, RESPONSES, background=True).body["id"]

    answer = stage.answer(request("HEAD", f"/responses/{job_id}"))

    assert (answer.status, answer.text) == (200, "")
    assert answer.headers["x-job-id"] == job_id


# ------------------------------------------------------------------ who may


@pytest.mark.parametrize("scopes", ["", "submit", "read", "cancel bypass admin"])
def test_held_call_needs_submit_and_read(stage: Stage, path: str, scopes: str) -> None:
    error = assert_error(ask(stage, path, scopes=scopes), 403, "forbidden")

    assert error["type"] == "permission_error"
    assert written(stage.world) == {}


def test_call_past_the_cache_needs_bypass(stage: Stage, path: str) -> None:
    assert_error(ask(stage, path, sluiceway={"cache": {"mode": "bypass"}}), 403, "forbidden")


def test_caller_without_a_tenant_is_unauthenticated(stage: Stage, path: str) -> None:
    answer = ask(stage, path, tenant=ABSENT)

    assert assert_error(answer, 401, "unauthenticated")["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_cancel_needs_its_scope(stage: Stage) -> None:
    job_id = ask(stage, RESPONSES, background=True).body["id"]

    answer = stage.answer(request("POST", f"/responses/{job_id}/cancel", scopes="submit read"))

    assert_error(answer, 403, "forbidden")


def test_other_tenants_are_owed_nothing(stage: Stage, path: str) -> None:
    first = ask(stage, path).body["error"]["job_id"]

    second = ask(stage, path, tenant="globex").body["error"]["job_id"]

    assert first != second
    assert {tenant for tenant, _ in stage.world.jobs} == {"acme", "globex"}


# ------------------------------------------------------------------ the hold


def test_call_is_held_for_so_long_and_then_owed(stage: Stage, path: str) -> None:
    answer = ask(stage, path)

    (job,) = stage.world.jobs.values()
    error = assert_error(answer, 504, "still_running")
    assert (error["job_id"], error["type"]) == (job.job_id, "server_error")
    assert answer.headers["x-job-id"] == job.job_id
    assert int(answer.headers["retry-after"]) >= 1
    assert stage.clock.now_ms() - NOW_MS == HOLD_S * 1000
    ((_, until_ms),) = stage.world.owed.values()
    assert until_ms == stage.clock.now_ms() + OWED_S * 1000


def test_call_is_held_no_longer_than_its_invocation_lasts(stage: Stage, path: str) -> None:
    stage.time_left_ms = 10_000

    assert_error(ask(stage, path), 504, "still_running")

    assert stage.clock.now_ms() - NOW_MS == 10_000 - HOLD_ENDS_BEFORE_S * 1000


def test_call_without_time_left_is_answered_at_once(stage: Stage, path: str) -> None:
    stage.time_left_ms = 1_000

    assert_error(ask(stage, path), 504, "still_running")

    assert stage.clock.now_ms() == NOW_MS


def test_still_running_is_logged_as_a_refusal(
    stage: Stage, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(stage, path)

    lines = log_lines(output(capsys))
    assert [line["code"] for line in lines if line["message"] == "request_refused"] == [
        "still_running"
    ]


@pytest.mark.parametrize(("late_s", "answered"), [(OWED_S, "the old job"), (OWED_S + 1, "a new")])
def test_answer_is_owed_for_some_minutes(
    stage: Stage, path: str, late_s: int, answered: str
) -> None:
    job_id = ask(stage, path, model="demo-uncached").body["error"]["job_id"]
    stage.run_job(job_id)
    stage.clock.advance(s=late_s)

    answer = ask(stage, path, model="demo-uncached")

    if answered == "the old job":
        assert (answer.status, answer.body["id"]) == (200, job_id)
    else:
        assert assert_error(answer, 504, "still_running")["job_id"] != job_id


def test_equal_calls_share_the_answer_that_is_owed(stage: Stage, path: str) -> None:
    job_id = ask(stage, path, model="demo-uncached").body["error"]["job_id"]
    stage.run_job(job_id)

    ids = [ask(stage, path, model="demo-uncached").body["id"] for _ in range(2)]

    assert ids == [job_id, job_id]


def test_call_that_differs_is_owed_nothing(stage: Stage, path: str) -> None:
    job_id = ask(stage, path, model="demo-uncached").body["error"]["job_id"]

    other = ask(stage, path, model="demo-uncached", temperature=0.5).body["error"]["job_id"]

    assert other != job_id


def test_owed_job_that_is_gone_is_made_again(stage: Stage, path: str) -> None:
    job_id = ask(stage, path, model="demo-uncached").body["error"]["job_id"]
    stage.world.jobs.clear()
    stage.world.claims.clear()

    answer = ask(stage, path, model="demo-uncached")

    assert assert_error(answer, 504, "still_running")["job_id"] != job_id


def test_owed_answer_takes_nothing_of_the_rate(stage: Stage, path: str) -> None:
    limits = CATALOGUE.tenant("acme").model_copy(update={"requests_per_minute": 1})
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": limits}})

    answers = [ask(stage, path) for _ in range(2)]

    assert [answer.status for answer in answers] == [504, 504]


def test_held_answer_tells_the_rate_and_no_poll(stage: Stage, path: str) -> None:
    limits = CATALOGUE.tenant("acme").model_copy(update={"requests_per_minute": 9})
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": {"acme": limits}})
    run_while_waiting(stage)

    answer = ask(stage, path)

    assert answer.status == 200
    assert answer.headers["ratelimit-policy"] == '"minute";q=9;w=60'
    assert answer.headers["cache-status"] == "sluiceway; fwd=miss"
    assert "retry-after" not in answer.headers
    assert "location" not in answer.headers


def test_background_response_is_owed_to_nobody(stage: Stage) -> None:
    answer = ask(stage, RESPONSES, background=True)

    assert (answer.status, answer.body["status"]) == (200, "queued")
    assert stage.clock.now_ms() == NOW_MS
    assert stage.world.owed == {}


# ------------------------------------------------------------------ answers


def run_while_waiting(stage: Stage) -> None:
    def pause(wait_s: float) -> None:
        stage.clock.pause(wait_s)
        for (tenant, job_id), job in list(stage.world.jobs.items()):
            if job.open:
                stage.run_job(job_id, tenant)

    stage.pause = pause


def test_same_text_is_one_piece_of_work_in_all_forms(stage: Stage) -> None:
    job_id = stage.submit("hello").body["id"]
    stage.run_job(job_id)

    chat, response = ask(stage, CHAT), ask(stage, RESPONSES)

    assert chat.body["id"] == response.body["id"]
    assert chat.headers["cache-status"].startswith("sluiceway; hit")
    assert stage.vendor.total == 1


def test_answer_that_is_too_large_says_where_it_is(stage: Stage, path: str) -> None:
    stage.vendor.default = VendorAnswer("\x01" * (2 * 1024 * 1024), "stop", 1, 2, 300)
    run_while_waiting(stage)

    answer = ask(stage, path)

    error = answer.body["error"]
    assert (answer.status, error["code"]) == (500, "result_too_large")
    assert f"/jobs/{error['job_id']}" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert "result_url" in stage.get(error["job_id"]).body
    assert stage.answer(request("GET", f"/responses/{error['job_id']}")).status == 500


def test_result_past_its_retention_is_gone(stage: Stage) -> None:
    job_id = ask(stage, RESPONSES, background=True).body["id"]
    stage.run_job(job_id)
    stage.clock.advance(s=80 * 3600)

    assert_error(stage.answer(request("GET", f"/responses/{job_id}")), 410, "result_expired")


def test_mode_only_without_an_entry_is_a_miss(stage: Stage, path: str) -> None:
    assert_error(ask(stage, path, sluiceway={"cache": {"mode": "only"}}), 404, "cache_miss")


def test_busy_tables_are_told_with_when_to_come_again(stage: Stage, path: str) -> None:
    stage.world.counters_busy = True

    answer = ask(stage, path)

    assert_error(answer, 503, "degraded")
    assert answer.headers["retry-after"] == "1"


def test_answer_is_owed_though_nobody_could_look_at_the_job_while_the_call_was_held(
    stage: Stage, path: str
) -> None:
    healthy = stage.jobs

    class Unreadable(InMemoryJobs):
        def get(self, tenant: str, job_id: str) -> Job | None:
            if stage.clock.now_ms() > NOW_MS:
                raise StoreBusyError("The tables are busy.", retry_after_s=1)
            return super().get(tenant, job_id)

    stage.jobs = Unreadable(stage.world, clock=stage.clock)
    job_id = assert_error(ask(stage, path), 504, "still_running")["job_id"]
    stage.jobs = healthy
    stage.run_job(job_id)

    assert ask(stage, path).body["id"] == job_id


def test_option_that_the_models_vendor_lacks_is_refused(stage: Stage) -> None:
    vendor = CATALOGUE.vendors["simulator"].model_copy(update={"protocol": "anthropic"})
    stage.catalogue = CATALOGUE.model_copy(
        update={"vendors": {**CATALOGUE.vendors, "simulator": vendor}}
    )

    assert assert_error(ask(stage, CHAT, seed=1), 422, "validation_failed")["param"] == "seed"
    assert ask(stage, CHAT, stop="x", max_completion_tokens=5).status == 504


def test_failed_attempt_of_an_owed_job_is_forgotten(stage: Stage, path: str) -> None:
    job_id = ask(stage, path).body["error"]["job_id"]
    stage.cancel(job_id)

    first, second = ask(stage, path), ask(stage, path)

    assert assert_error(first, 409, "job_cancelled")["job_id"] == job_id
    assert assert_error(second, 504, "still_running")["job_id"] != job_id


def test_idempotency_key_owes_nothing_besides(stage: Stage, path: str) -> None:
    headers = {"Idempotency-Key": "order-1"}

    jobs = {ask(stage, path, headers=headers).body["error"]["job_id"] for _ in range(2)}

    assert len(jobs) == 1
    assert stage.world.owed == {}


@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
def test_malformed_idempotency_key_is_refused(stage: Stage, path: str, key: str) -> None:
    answer = ask(stage, path, headers={"Idempotency-Key": key})

    assert_error(answer, 400, "invalid_request")


def test_degraded_batch_call_is_refused(stage: Stage, path: str) -> None:
    stage.world.degraded_since_epoch_ms = NOW_MS

    answer = ask(stage, path, sluiceway={"priority": "batch"})

    assert_error(answer, 503, "degraded")
