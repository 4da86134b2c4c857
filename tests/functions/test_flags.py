"""What operators switch off, over the real routes: what is refused, and what goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluiceway.domain.flags import FEATURES
from sluiceway.domain.webhook import Attempt, DeliveryStatus

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.functions.stage import Answer, Stage, request
from tests.functions.test_api import assert_problem
from tests.functions.test_openai import assert_error
from tests.unit.logs import log_lines, metric_lines, output
from tests.unit.samples import written

SCOPES = "submit read cancel bypass admin"
URL = "https://hooks.partner.example/sluiceway"
JOB = {"model": "demo-chat", "input": "hello"}
WEBHOOK = {"url": URL}

WORK: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "submit": ("/jobs", JOB, {}),
    "dry run": ("/jobs", JOB, {"dry_run": "true"}),
    "refresh": ("/jobs", {**JOB, "cache": {"mode": "refresh"}}, {}),
    "bypass": ("/jobs", {**JOB, "cache": {"mode": "bypass"}}, {}),
    "callback": ("/jobs", {**JOB, "callback_url": URL}, {}),
    "batch": ("/batches", {"jobs": [{"custom_id": "a", **JOB}]}, {}),
    "chat": (
        "/chat/completions",
        {"model": "demo-chat", "messages": [{"role": "user", "content": "hello"}]},
        {},
    ),
    "response": ("/responses", {**JOB, "background": True}, {}),
    "webhook": ("/webhooks", WEBHOOK, {}),
    "test": ("/webhooks/{webhook_id}/test", {}, {}),
    "redeliver": ("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", {}, {}),
}
"""What makes work, by a name: path, body and query."""

OF_SUBMIT = {"submit", "dry run", "refresh", "bypass", "callback", "chat", "response"}
REFUSES = {
    "submit": OF_SUBMIT,
    "bypass": {"refresh", "bypass"},
    "batches": {"batch"},
    "openai": {"chat", "response"},
    "webhooks": {"callback", "webhook", "test", "redeliver"},
    "refresh": set[str](),
    "degraded": set[str](),
}
"""By feature: what isn't done without it. An item of a batch has its own error."""

OF_MODELS = {"submit", "bypass"}
"""The features that may be off for one model."""


@pytest.fixture
def known(stage: Stage) -> dict[str, str]:
    """Ids of what acme had before anything was switched."""
    webhook_id = ask(stage, "POST", "/webhooks", WEBHOOK).body["id"]
    delivery = a_delivery(1, endpoint_id=webhook_id)
    stage.registrar.delivery_log.record(delivery, Attempt(NOW_MS, DeliveryStatus.SUPPRESSED))
    open_id = stage.submit("open").body["id"]
    ended_id = stage.submit("ended").body["id"]
    stage.run_job(ended_id)
    hit_id = stage.submit("ended").body["id"]
    batch = ask(stage, "POST", "/batches", {"jobs": [{"custom_id": "a", **JOB, "input": "batch"}]})
    return {
        "webhook_id": webhook_id,
        "delivery_id": delivery.delivery_id,
        "open_id": open_id,
        "ended_id": ended_id,
        "hit_id": hit_id,
        "batch_id": batch.body["id"],
    }


def ask(
    stage: Stage, method: str, path: str, body: Any = None, *, tenant: str = "acme", **changes: Any
) -> Answer:
    event = request(method, path, scopes=SCOPES, tenant=tenant, **changes)
    event["body"] = None if body is None else json.dumps(body)
    return stage.answer(event)


def work(stage: Stage, name: str, known: dict[str, str], **changes: Any) -> Answer:
    path, body, query = WORK[name]
    return ask(stage, "POST", path.format(**known), body, query=query, **changes)


def refused(answer: Answer, name: str) -> bool:
    """Whether this is the refusal of what is switched off, whole."""
    if "feature_disabled" not in answer.text:
        return False
    if name in {"chat", "response"}:
        assert_error(answer, 403, "feature_disabled")
    elif name == "batch" and answer.status == 202:
        ((_, error),) = ((one["custom_id"], one["error"]) for one in answer.body["data"])
        assert (error["code"], error["retryable"]) == ("feature_disabled", False)
    else:
        assert_problem(answer, 403, "feature_disabled")
        assert answer.body["retryable"] is False
        assert "retry-after" not in answer.headers
    return True


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("subject", ["", "tenant:acme"])
def test_route_refuses_what_is_off_and_nothing_else(
    stage: Stage, known: dict[str, str], feature: str, name: str, subject: str
) -> None:
    if subject:
        stage.flags.exceptions[feature, subject] = False
    else:
        stage.flags.switched[feature] = False

    answer = work(stage, name, known)

    expected = name in REFUSES[feature] or (feature, name) == ("submit", "batch")
    assert refused(answer, name) is expected, answer.text


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("feature", FEATURES)
def test_model_that_is_off_is_so_on_each_route(
    stage: Stage, known: dict[str, str], feature: str, name: str
) -> None:
    stage.flags.exceptions[feature, "model:demo-chat"] = False

    answer = work(stage, name, known)

    of_model = feature in OF_MODELS and name in REFUSES[feature]
    assert refused(answer, name) is (of_model or (feature, name) == ("submit", "batch"))


@pytest.mark.parametrize("name", sorted(set(WORK) - {"test", "redeliver"}))
@pytest.mark.parametrize("feature", FEATURES)
def test_flag_of_one_tenant_changes_nothing_for_another(
    stage: Stage, known: dict[str, str], feature: str, name: str
) -> None:
    """Nor does it tell anything: the answer is the one without any flag."""
    before = work(stage, name, known, tenant="globex")
    stage.flags.exceptions[feature, "tenant:acme"] = False

    after = work(stage, name, known, tenant="globex")

    assert after.status == before.status
    assert not refused(after, name)
    assert "switched" not in after.text


def test_refusal_tells_no_tenant_of_the_exceptions_of_another(stage: Stage) -> None:
    stage.flags.switched["submit"] = False
    alone = ask(stage, "POST", "/jobs", JOB)

    stage.flags.exceptions["submit", "tenant:globex"] = True

    assert ask(stage, "POST", "/jobs", JOB).body == alone.body
    assert ask(stage, "POST", "/jobs", JOB, tenant="globex").status == 202


def test_items_of_a_batch_are_refused_by_their_model(stage: Stage) -> None:
    stage.flags.exceptions["submit", "model:demo-heavy"] = False
    jobs = [
        {"custom_id": model, "model": model, "input": "hello"}
        for model in ("demo-chat", "demo-heavy")
    ]

    answer = ask(stage, "POST", "/batches", {"jobs": jobs})

    first, second = answer.body["data"]
    assert first["job"]["status"] == "queued"
    assert second["error"] == {
        "code": "feature_disabled",
        "message": "The model demo-heavy is switched off.",
        "retryable": False,
    }


def test_refused_submit_writes_nothing_and_is_told(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.flags.switched["submit"] = False

    work(stage, "submit", {})

    assert written(stage.world) == {}
    assert stage.world.minutes == {}
    lines = output(capsys)
    (told,) = [line for line in log_lines(lines) if line["message"] == "request_refused"]
    assert told["code"] == "feature_disabled"
    assert metric_lines(lines) == []


@pytest.mark.parametrize("name", ["submit", "chat", "response"])
def test_cached_answer_is_not_given_and_counts_as_no_hit(  # case O06
    stage: Stage, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    stage.run_job(work(stage, "submit", {}).body["id"])
    assert work(stage, name, {}).status == 200
    output(capsys)
    stage.flags.exceptions["submit", "model:demo-chat"] = False

    answer = work(stage, name, {})

    assert refused(answer, name)
    events = {line["message"] for line in log_lines(output(capsys))}
    assert not events & {"cache_hit", "cache_miss"}


# ------------------------------------------------------------------ what goes on


READS = (
    *("/jobs", "/jobs/{open_id}", "/jobs/{ended_id}", "/jobs/{hit_id}"),
    *("/responses/{open_id}", "/responses/{ended_id}", "/batches/{batch_id}"),
    *("/models", "/models/demo-chat", "/usage"),
    *("/webhooks", "/webhooks/{webhook_id}", "/webhooks/{webhook_id}/deliveries"),
)


@pytest.fixture
def all_off(stage: Stage, known: dict[str, str]) -> dict[str, str]:
    """Nothing is on, for nobody and no model."""
    for feature in FEATURES:
        stage.flags.switched[feature] = False
    return known


@pytest.mark.parametrize("path", READS)
def test_reading_goes_on_whatever_is_off(stage: Stage, all_off: dict[str, str], path: str) -> None:
    assert ask(stage, "GET", path.format(**all_off)).status == 200


@pytest.mark.parametrize("path", ["/jobs/{open_id}/cancel", "/responses/{open_id}/cancel"])
def test_cancelling_goes_on_whatever_is_off(
    stage: Stage, all_off: dict[str, str], path: str
) -> None:
    assert ask(stage, "POST", path.format(**all_off)).status == 200


def test_webhook_is_rotated_and_deleted_whatever_is_off(
    stage: Stage, all_off: dict[str, str]
) -> None:
    path = f"/webhooks/{all_off['webhook_id']}"

    assert ask(stage, "POST", f"{path}/rotate").status == 200
    assert ask(stage, "DELETE", path).status == 204


def test_invalidating_goes_on_whatever_is_off(stage: Stage, all_off: dict[str, str]) -> None:
    assert all_off
    answer = ask(stage, "POST", "/admin/cache/invalidate", {"model": "demo-chat"})

    assert answer.status == 200


def test_answers_of_a_model_that_is_off_and_invalid_are_gone(
    stage: Stage, all_off: dict[str, str]
) -> None:
    path = f"/jobs/{all_off['hit_id']}"
    before = ask(stage, "GET", path).status

    ask(stage, "POST", "/admin/cache/invalidate", {"model": "demo-chat"})

    assert (before, ask(stage, "GET", path).status) == (200, 404)


def test_open_job_runs_on_whatever_is_off(stage: Stage, all_off: dict[str, str]) -> None:
    stage.run_job(all_off["open_id"])

    assert ask(stage, "GET", f"/jobs/{all_off['open_id']}").body["status"] == "completed"


def test_refresh_that_is_queued_runs_on(stage: Stage) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)
    job = stage.world.jobs["acme", job_id]
    entry = stage.world.entries[job.cache_key]
    stage.clock.set(entry.soft_expires_at_epoch_ms + 1)
    stage.submit()
    (refresh,) = [one for one in stage.world.jobs.values() if one.refresh]

    stage.flags.switched["refresh"] = False
    stage.run_job(refresh.job_id, refresh.tenant)

    stored_ms = stage.world.entries[job.cache_key].stored_at_epoch_ms
    assert stored_ms > entry.stored_at_epoch_ms


@pytest.mark.parametrize("name", ["submit", "batch", "response", "webhook"])
def test_replay_of_what_was_accepted_is_told_whatever_is_off(stage: Stage, name: str) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = work(stage, name, {}, headers=headers)
    for feature in FEATURES:
        stage.flags.switched[feature] = False

    again = work(stage, name, {}, headers=headers)
    other = work(stage, name, {}, headers={"Idempotency-Key": "key-2"})

    assert (again.status, again.body["id"]) == (first.status, first.body["id"])
    assert again.headers["idempotent-replayed"] == "true"
    assert other.status == 403


def test_refusal_is_not_kept_under_its_key(stage: Stage) -> None:
    headers = {"Idempotency-Key": "key-1"}
    stage.flags.switched["submit"] = False
    off = work(stage, "submit", {}, headers=headers)

    stage.flags.switched["submit"] = True

    assert off.status == 403
    assert work(stage, "submit", {}, headers=headers).status == 202


@pytest.mark.parametrize("feature", ["openai", "submit"])
def test_answer_that_a_held_call_is_owed_is_given_whatever_is_off(
    stage: Stage, feature: str
) -> None:
    first = work(stage, "chat", {})
    job_id = first.headers["x-job-id"]
    stage.flags.switched[feature] = False

    stage.run_job(job_id)

    again = work(stage, "chat", {})
    assert (first.status, again.status, again.headers["x-job-id"]) == (504, 200, job_id)


# ------------------------------------------------------------------ degraded


def test_sweeper_begins_degraded_mode_by_its_flag_and_expired_entries_are_served(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = stage.submit().body["id"]
    stage.run_job(job_id)
    entry = stage.world.entries[stage.world.jobs["acme", job_id].cache_key]
    stage.clock.set(entry.hard_expires_at_epoch_ms + 1)
    stage.flags.switched["degraded"] = True
    output(capsys)

    stage.sweep()

    answer = stage.submit()
    assert answer.status == 200
    assert answer.body["cache"]["status"] == "degraded"
    assert [one.detail_type for one in stage.bus.taken] == ["DegradedBegan"]
    (told,) = [line for line in log_lines(output(capsys)) if line["message"] == "degraded_began"]
    assert told["reason"] == "flag"
