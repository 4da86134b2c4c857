"""Webhooks in the API: register, look, rotate, test, look back, send again, delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.endpoint import (
    EVENT_TYPES,
    MAX_ENDPOINTS,
    NO_ENDPOINTS,
    disabled,
    secret_text,
    signing_key,
)
from sluiceway.domain.errors import WebhookError
from sluiceway.domain.webhook import Attempt, DeliveryStatus

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.fakes.outside import MASTER, FakeWebhookQueue
from tests.functions.stage import Answer, Stage, request
from tests.unit.logs import log_lines, output

if TYPE_CHECKING:
    from sluiceway.domain.endpoint import Endpoint
    from sluiceway.domain.webhook import Delivery

URL = "https://hooks.partner.example/sluiceway"
NOW = "2026-01-01T00:00:00.000Z"


def call(stage: Stage, method: str, path: str = "", body: Any = None, **changes: Any) -> Answer:
    event = request(method, f"/webhooks{path}", **changes)
    event["body"] = None if body is None else json.dumps(body)
    return stage.answer(event)


def register(stage: Stage, **members: Any) -> Any:
    answer = call(stage, "POST", body={"url": URL, **members})
    assert answer.status == 201, answer.text
    return answer.body


def attempted(stage: Stage, webhook_id: str, number: int = 1, **members: Any) -> Delivery:
    """A delivery that was tried, of an event so many seconds after NOW_MS."""
    delivery = a_delivery(number, endpoint_id=webhook_id, **members)
    attempt = Attempt(NOW_MS + 60_000, DeliveryStatus.PENDING, 500, "refused")
    stage.registrar.delivery_log.record(delivery, attempt)
    return delivery


def stored(stage: Stage) -> Endpoint:
    return stage.world.endpoints["acme"][1]


def disable(stage: Stage) -> None:
    stage.registrar.endpoints.change(
        "acme",
        lambda before: disabled(before, before[1].endpoint_id, now_ms=NOW_MS, reason="gone"),
    )


# ------------------------------------------------------------------ register


def test_registered_webhook_is_told_with_its_secret(stage: Stage) -> None:
    answer = call(
        stage, "POST", body={"url": URL, "events": ["job.failed"], "description": "Für uns"}
    )

    webhook_id = stored(stage).endpoint_id
    assert answer.status == 201
    assert answer.headers["location"] == f"/v1/webhooks/{webhook_id}"
    assert answer.body == {
        "id": webhook_id,
        "object": "webhook",
        "url": URL,
        "events": ["job.failed"],
        "description": "Für uns",
        "status": "enabled",
        "disabled_reason": None,
        "disabled_at": None,
        "created_at": NOW,
        "secret": secret_text(signing_key(MASTER, "acme", webhook_id, 1)),
    }


def test_webhook_is_told_everything_unless_it_says_what(stage: Stage) -> None:
    assert register(stage)["events"] == list(EVENT_TYPES)


def test_types_are_told_once_and_in_order(stage: Stage) -> None:
    webhook = register(stage, events=["job.failed", "job.completed", "job.failed"])

    assert webhook["events"] == ["job.completed", "job.failed"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": None},
        {"url": "http://hooks.partner.example/"},
        {"url": "https://hooks.partner.example:8443/"},
        {"url": "https://127.0.0.1/"},
        {"url": "https://169.254.169.254/"},
        {"url": "https://user@hooks.partner.example/"},
        {"url": URL, "events": []},
        {"url": URL, "events": ["job.started"]},
        {"url": URL, "events": ["webhook.test"]},
        {"url": URL, "description": "x" * 257},
        {"url": URL, "secret": "whsec_hunter2"},
        [],
    ],
    ids=str,
)
def test_registration_that_does_not_fit_is_refused_and_writes_nothing(
    stage: Stage, body: Any
) -> None:
    answer = call(stage, "POST", body=body)

    assert (answer.status, answer.body["code"]) == (422, "validation_failed")
    assert stage.world.endpoints == {}


def test_eleventh_webhook_is_refused(stage: Stage) -> None:
    for _ in range(MAX_ENDPOINTS):
        register(stage)

    answer = call(stage, "POST", body={"url": URL})

    assert (answer.status, answer.body["code"]) == (422, "validation_failed")
    assert "10 webhooks" in answer.body["detail"]


def test_nothing_is_registered_whose_secret_could_not_be_shown(stage: Stage) -> None:
    stage.webhook_secrets.failure = WebhookError("secret_unreadable", "hunter2")

    answer = call(stage, "POST", body={"url": URL})

    assert (answer.status, answer.body["code"]) == (503, "degraded")
    assert "hunter2" not in answer.text
    assert stage.world.endpoints == {}


def test_registration_with_the_same_idempotency_key_is_one_webhook(stage: Stage) -> None:
    headers = {"Idempotency-Key": "key-1"}

    first = call(stage, "POST", body={"url": URL}, headers=headers)
    second = call(stage, "POST", body={"url": URL}, headers=headers)

    assert second.headers["idempotent-replayed"] == "true"
    assert (second.status, second.body) == (201, first.body)
    assert len(stage.world.endpoints["acme"]) == 2


# ------------------------------------------------------------------ look


def test_callbacks_are_listed_first_and_have_no_address(stage: Stage) -> None:
    webhook = register(stage)

    answer = call(stage, "GET")

    secret = webhook.pop("secret")
    assert answer.status == 200
    assert answer.body == {
        "object": "list",
        "data": [
            {
                **webhook,
                "id": "callbacks",
                "url": None,
                "description": "",
                "created_at": None,
            },
            webhook,
        ],
        "has_more": False,
        "last_id": webhook["id"],
    }
    assert secret not in answer.text


def test_webhook_is_found_without_its_secret(stage: Stage) -> None:
    webhook = register(stage)

    answer = call(stage, "GET", f"/{webhook['id']}")

    del webhook["secret"]
    assert (answer.status, answer.body) == (200, webhook)


def test_disabled_webhook_says_since_when_and_why(stage: Stage) -> None:
    webhook = register(stage)
    disable(stage)

    body = call(stage, "GET", f"/{webhook['id']}").body

    assert body["status"] == "disabled"
    assert (body["disabled_reason"], body["disabled_at"]) == ("gone", NOW)


PATHS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/rotate"),
    ("POST", "/test"),
    ("GET", "/deliveries"),
    ("POST", "/deliveries/dlv_0123456789ABCDEFGHJKMNPQRS/redeliver"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_another_tenants_webhook_is_the_same_as_an_unknown_one(
    stage: Stage, method: str, path: str
) -> None:
    webhook = register(stage)
    before = dict(stage.world.endpoints)

    others = call(stage, method, f"/{webhook['id']}{path}", tenant="globex")
    unknown = call(stage, method, f"/whk_unknown{path}")

    assert (others.status, others.body["code"]) == (404, "webhook_not_found")
    assert others.body == unknown.body
    assert stage.world.endpoints["acme"] == before["acme"]
    assert stage.world.endpoints.get("globex", NO_ENDPOINTS) == NO_ENDPOINTS


@pytest.mark.parametrize(("method", "path"), [("POST", None), ("GET", None), *PATHS])
def test_each_path_needs_its_scope(stage: Stage, method: str, path: str | None) -> None:
    webhook = register(stage)
    other = "submit cancel bypass" if method == "GET" else "read cancel bypass"
    full = "" if path is None else f"/{webhook['id']}{path}"

    answer = call(stage, method, full, body={"url": URL}, scopes=other)

    assert (answer.status, answer.body["code"]) == (403, "forbidden")


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_unknown_parameter_is_refused(stage: Stage, method: str, path: str) -> None:
    webhook = register(stage)

    answer = call(stage, method, f"/{webhook['id']}{path}", query={"force": "1"})

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


# ------------------------------------------------------------------ delete


def test_deleted_webhook_is_gone(stage: Stage) -> None:
    webhook = register(stage)

    answer = call(stage, "DELETE", f"/{webhook['id']}")

    assert (answer.status, answer.text) == (204, "")
    assert stage.world.endpoints["acme"] == NO_ENDPOINTS
    assert call(stage, "DELETE", f"/{webhook['id']}").status == 404


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/test")])
def test_callbacks_can_neither_be_deleted_nor_tested(stage: Stage, method: str, path: str) -> None:
    answer = call(stage, method, f"/callbacks{path}")

    assert (answer.status, answer.body["code"]) == (422, "validation_failed")


# ------------------------------------------------------------------ rotate


@pytest.mark.parametrize(
    ("body", "overlap_s"), [(None, 86_400), ({}, 86_400), ({"overlap_s": 60}, 60)]
)
@pytest.mark.parametrize("which", ["registered", "callbacks"])
def test_rotation_gives_a_new_secret_and_keeps_the_old_one_for_a_while(
    stage: Stage, which: str, body: Any, overlap_s: int
) -> None:
    webhook = register(stage)
    webhook_id = webhook["id"] if which == "registered" else "callbacks"

    answer = call(stage, "POST", f"/{webhook_id}/rotate", body=body)

    assert answer.status == 200
    assert answer.body["secret"] == secret_text(signing_key(MASTER, "acme", webhook_id, 2))
    (rotated,) = (one for one in stage.world.endpoints["acme"] if one.endpoint_id == webhook_id)
    ends_ms = NOW_MS + overlap_s * 1000
    assert rotated.generations(ends_ms - 1) == (2, 1)
    assert rotated.generations(ends_ms) == (2,)


@pytest.mark.parametrize(
    "body",
    [{"overlap_s": -1}, {"overlap_s": 604_801}, {"overlap_s": "1"}, {"overlap": 1}, [], None],
    ids=str,
)
def test_rotation_that_does_not_fit_is_refused(stage: Stage, body: Any) -> None:
    webhook = register(stage)
    event = request("POST", f"/webhooks/{webhook['id']}/rotate")
    event["body"] = json.dumps(body)

    answer = stage.answer(event)

    assert (answer.status, answer.body["code"]) == (422, "validation_failed")
    assert stored(stage).generations(NOW_MS) == (1,)


# ------------------------------------------------------------------ test


@pytest.mark.parametrize("off", [False, True])
def test_test_is_queued(stage: Stage, *, off: bool) -> None:
    webhook = register(stage)
    if off:
        disable(stage)

    answer = call(stage, "POST", f"/{webhook['id']}/test", headers={"X-Correlation-Id": "corr-9"})

    (queued,) = stage.webhooks.taken
    assert answer.status == 202
    assert answer.body == {
        "id": queued.delivery_id,
        "object": "webhook_delivery",
        "event_id": queued.event_id,
        "type": "webhook.test",
        "job_id": None,
        "url": None,
        "status": "pending",
        "attempts": 0,
        "http_status": None,
        "error": None,
        "created_at": NOW,
        "first_attempt_at": None,
        "last_attempt_at": None,
    }
    assert (queued.tenant, queued.endpoint_id) == ("acme", webhook["id"])
    assert json.loads(queued.body)["data"] == {
        "webhook_id": webhook["id"],
        "correlation_id": "corr-9",
    }


def test_queue_that_does_not_take_it_is_told(stage: Stage) -> None:
    webhook = register(stage)
    stage.registrar = stage.registrar._replace(webhooks=FakeWebhookQueue(1))

    answer = call(stage, "POST", f"/{webhook['id']}/test")

    assert (answer.status, answer.body["code"]) == (503, "degraded")


# ------------------------------------------------------------------ deliveries


def test_deliveries_are_listed_newest_first_in_pages(stage: Stage) -> None:
    webhook = register(stage)
    sent = [attempted(stage, webhook["id"], number) for number in (1, 2, 3)]
    path = f"/{webhook['id']}/deliveries"

    first = call(stage, "GET", path, query={"limit": "2"}).body
    second = call(stage, "GET", path, query={"limit": "2", "after": first["last_id"]}).body

    ids = [one.delivery_id for one in reversed(sent)]
    assert [one["id"] for one in first["data"]] == ids[:2]
    assert (first["object"], first["has_more"], first["last_id"]) == ("list", True, ids[1])
    assert [one["id"] for one in second["data"]] == ids[2:]
    assert second["has_more"] is False
    assert first["data"][0] == {
        "id": ids[0],
        "object": "webhook_delivery",
        "event_id": "evt_3",
        "type": "job.completed",
        "job_id": "job_3",
        "url": None,
        "status": "pending",
        "attempts": 1,
        "http_status": 500,
        "error": "refused",
        "created_at": "2026-01-01T00:00:03.000Z",
        "first_attempt_at": "2026-01-01T00:01:00.000Z",
        "last_attempt_at": "2026-01-01T00:01:00.000Z",
    }


@pytest.mark.parametrize(("after_s", "status"), [(86_399, "pending"), (86_400, "failed")])
def test_delivery_that_nobody_tries_any_more_has_failed(
    stage: Stage, after_s: int, status: str
) -> None:
    webhook_id = register(stage)["id"]
    attempted(stage, webhook_id)  # a minute later
    stage.clock.advance(s=60 + after_s)

    (told,) = call(stage, "GET", f"/{webhook_id}/deliveries").body["data"]

    assert (told["status"], told["error"], told["attempts"]) == (status, "refused", 1)


def test_no_deliveries_are_an_empty_list(stage: Stage) -> None:
    body = call(stage, "GET", "/callbacks/deliveries").body

    assert body == {"object": "list", "data": [], "has_more": False, "last_id": None}


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"after": "job_1"}, {"after": ""}]
)
def test_page_that_makes_no_sense_is_refused(stage: Stage, query: dict[str, str]) -> None:
    answer = call(stage, "GET", "/callbacks/deliveries", query=query)

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


# ------------------------------------------------------------------ redeliver


@pytest.mark.parametrize("url", ["", "https://hooks.partner.example/of-the-job"])
def test_same_webhook_is_sent_again(stage: Stage, url: str) -> None:
    webhook_id = "callbacks" if url else register(stage)["id"]
    sent = attempted(stage, webhook_id, url=url)

    answer = call(stage, "POST", f"/{webhook_id}/deliveries/{sent.delivery_id}/redeliver")

    assert answer.status == 202
    assert (answer.body["id"], answer.body["status"]) == (sent.delivery_id, "pending")
    assert answer.body["url"] == (url or None)
    assert (answer.body["attempts"], answer.body["http_status"]) == (1, 500)  # up to now
    assert stage.webhooks.taken == [sent]


@pytest.mark.parametrize("given", ["dlv_0123456789ABCDEFGHJKMNPQRS", "dlv_1", "job_1"])
def test_unknown_delivery_is_not_found(stage: Stage, given: str) -> None:
    webhook = register(stage)

    answer = call(stage, "POST", f"/{webhook['id']}/deliveries/{given}/redeliver")

    assert (answer.status, answer.body["code"]) == (404, "delivery_not_found")
    assert stage.webhooks.taken == []


def test_delivery_of_another_webhook_is_not_found(stage: Stage) -> None:
    webhook = register(stage)
    sent = attempted(stage, "callbacks", url=URL)

    answer = call(stage, "POST", f"/{webhook['id']}/deliveries/{sent.delivery_id}/redeliver")

    assert (answer.status, answer.body["code"]) == (404, "delivery_not_found")


def test_nothing_is_sent_again_to_a_disabled_webhook_but_tests(stage: Stage) -> None:
    webhook = register(stage)
    sent = attempted(stage, webhook["id"])
    test = attempted(stage, webhook["id"], 2, type="webhook.test", job_id="")
    disable(stage)
    path = f"/{webhook['id']}/deliveries"

    refused = call(stage, "POST", f"{path}/{sent.delivery_id}/redeliver")
    taken = call(stage, "POST", f"{path}/{test.delivery_id}/redeliver")

    assert (refused.status, refused.body["code"]) == (422, "validation_failed")
    assert taken.status == 202
    assert stage.webhooks.taken == [test]


# ------------------------------------------------------------------ what operators see


def test_changes_are_told_and_on_record_with_who_made_them(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    webhook = register(stage)
    call(stage, "POST", f"/{webhook['id']}/rotate")
    call(stage, "DELETE", f"/{webhook['id']}")

    written = output(capsys)
    actions = ["webhook.create", "webhook.rotate", "webhook.delete"]
    told = [one for one in log_lines(written) if one["message"] == "webhook_changed"]
    assert [one["action"] for one in told] == actions
    assert [one.action for one in stage.world.audit] == actions
    assert {one.subject for one in stage.world.audit} == {f"webhook:acme:{webhook['id']}"}
    assert {one.actor[:4] for one in stage.world.audit} == {"key:"}
    assert webhook["secret"] not in json.dumps(written)
    assert "hooks.partner.example" not in json.dumps(written)
