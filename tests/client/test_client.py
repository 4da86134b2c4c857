"""What the clients send, and what they make of the answers."""

from __future__ import annotations

import inspect
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sluiceway_client import (
    AsyncClient,
    BadReplyError,
    Client,
    Job,
    JobCancelledError,
    JobFailedError,
    NoResultError,
    PermissionDeniedError,
    ResultExpiredError,
    UnavailableError,
    WaitTimeoutError,
    calls,
)
from sluiceway_client.calls import Send

from tests.client.server import KEY, NOW, URL, Server, job, ok, problem

if TYPE_CHECKING:
    from collections.abc import Callable

LINK = "https://bucket.example/results/1?X-Amz-Signature=abc%2Fdef&X-Amz-Expires=900"


def an_item(custom_id: str, **members: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, **members}


def a_batch(status: str, *items: dict[str, Any]) -> dict[str, Any]:
    counts = {"total": 2, "completed": 1, "failed": 1, "cancelled": 0, "in_progress": 0}
    return {
        "id": "batch_1",
        "object": "batch",
        "status": status,
        "created_at": NOW,
        "request_counts": counts,
        "usage": {"input_tokens": 1, "output_tokens": 2, "cost": 0.5, "saved": 0},
        "data": list(items),
    }


def a_list(*data: dict[str, Any], has_more: bool = False, last_id: str | None = None) -> Any:
    return {"object": "list", "data": list(data), "has_more": has_more, "last_id": last_id}


# ------------------------------------------------------------------ both are the same


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_clients_have_the_same_calls_with_the_same_arguments() -> None:
    blocking, awaiting = public(Client), public(AsyncClient)

    assert {name: list(one.parameters.values()) for name, one in blocking.items()} == {
        name: list(one.parameters.values()) for name, one in awaiting.items()
    }


# ------------------------------------------------------------------ set-up


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_API_URL", URL + "/")
    monkeypatch.setenv("SLUICEWAY_API_KEY", KEY + "\n")
    server = Server(ok(a_list()))

    with httpx.Client(transport=httpx.MockTransport(server)) as http:
        Client(http_client=http).models()

    assert str(server.requests[0].url) == f"{URL}/models"
    assert server.headers("authorization") == [f"Bearer {KEY}"]


@pytest.mark.parametrize("missing", ["SLUICEWAY_API_URL", "SLUICEWAY_API_KEY"])
def test_client_without_address_or_key_says_which_variable_is_missing(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("SLUICEWAY_API_URL", URL)
    monkeypatch.setenv("SLUICEWAY_API_KEY", KEY)
    monkeypatch.delenv(missing)

    with pytest.raises(ValueError, match=missing):
        Client()


@pytest.mark.parametrize(
    "url",
    ["api.example/v1", "ftp://api.example", "https://", "https://a.example:x", f"{URL}?a=b"],
)
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Client(url, KEY)


def test_address_with_a_password_is_refused_without_being_told() -> None:
    with pytest.raises(ValueError, match="no password") as refused:
        Client("https://acme:hunter2@api.example/v1", KEY)  # pragma: allowlist secret

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("key", ["swk_\u00e9", "swk_a b", "swk_a\nx"])
def test_key_that_no_header_can_hold_is_refused_without_being_told(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as refused:
        Client(URL, key)

    assert "swk_" not in str(refused.value)


def test_client_closes_what_it_has_made_and_nothing_else() -> None:
    with httpx.Client() as given:
        with Client(URL, KEY) as own, Client(URL, KEY, http_client=given):
            pass

        assert own._http.is_closed
        assert not given.is_closed


def test_client_never_shows_its_key() -> None:
    with Client(URL, KEY) as client:
        assert repr(client) == f"Client({URL!r})"


# ------------------------------------------------------------------ submit


def test_submit_sends_the_request_as_it_is_given(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job("queued"), 202, retry_after="3"))

    accepted = client_of(server).submit(
        model="demo-chat", input="Grüße", options={"max_tokens": 5}, priority=None, max_cost=0.5
    )

    assert server.asked == ["POST /v1/jobs"]
    assert server.body() == {
        "model": "demo-chat",
        "input": "Grüße",
        "options": {"max_tokens": 5},
        "max_cost": 0.5,
    }
    assert server.headers("authorization") == [f"Bearer {KEY}"]
    assert server.headers("content-type") == ["application/json"]
    assert server.headers("prefer") == [None]
    assert isinstance(accepted, Job)
    assert (accepted.id, accepted.status, accepted.retry_after_s) == ("job_1", "queued", 3)


def test_each_submit_has_a_key_of_its_own(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job()), ok(job()))
    client = client_of(server)

    client.submit(model="m", input="i")
    client.submit(model="m", input="i")

    keys = server.headers("idempotency-key")
    assert len(set(keys)) == 2
    assert None not in keys


def test_submit_takes_an_idempotency_key(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job()))

    client_of(server).submit(model="m", input="i", idempotency_key="order-7")

    assert server.headers("idempotency-key") == ["order-7"]


@pytest.mark.parametrize("key", ["", "a b", "\u00e9", "k" * 256, "a\r\nx: y"])
def test_idempotency_key_that_no_header_can_hold_is_refused(
    client_of: Callable[..., Any], key: str
) -> None:
    server = Server()

    with pytest.raises(ValueError, match="idempotency_key"):
        client_of(server).submit(model="m", input="i", idempotency_key=key)

    assert server.asked == []


@pytest.mark.parametrize(
    ("wait_s", "told"), [(None, None), (0, None), (0.9, None), (5, "wait=5"), (7.9, "wait=7")]
)
def test_wait_is_asked_for_in_whole_seconds(
    client_of: Callable[..., Any], wait_s: float | None, told: str | None
) -> None:
    server = Server(ok(job()))

    client_of(server).submit(model="m", input="i", wait_s=wait_s)

    assert server.headers("prefer") == [told]


def test_wait_is_as_long_as_the_server_holds_and_the_reply_may_take_as_much_longer(
    client_of: Callable[..., Any],
) -> None:
    server = Server(ok(job()))

    client_of(server, timeout=5).get("job_1", wait_s=3600)

    assert server.headers("prefer") == ["wait=20"]
    assert server.requests[0].extensions["timeout"]["read"] == 25
    assert server.requests[0].extensions["timeout"]["connect"] == 5


def test_dry_run_tells_what_a_submit_would_get(client_of: Callable[..., Any]) -> None:
    body = {
        "object": "dry_run",
        "model": "m",
        "priority": "batch",
        "job_key": "j",
        "cache_key": "c",
        "cache": {"status": "miss", "age_s": 0, "stale": False},
        "deduplicated": False,
        "estimate": {"input_tokens": 3, "output_tokens": 4, "cost": 0.5},
        "queue": {"position": 2, "eta_s": 7},
    }
    server = Server(ok(body))

    told = client_of(server).dry_run(model="m", input="i")

    assert server.asked == ["POST /v1/jobs?dry_run=true"]
    assert (told.estimate.cost, told.queue.eta_s, told.cache.status) == (0.5, 7, "miss")


# ------------------------------------------------------------------ one job


def test_cancelled_job_is_given_back(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job("cancelled")))

    assert client_of(server).cancel("job_1").status == "cancelled"
    assert server.asked == ["POST /v1/jobs/job_1/cancel"]


@pytest.mark.parametrize("job_id", ["", ".", "..", "../webhooks", "a/b", "a?b", "a#b", "\u00e9"])
def test_id_that_would_be_another_path_is_refused(
    client_of: Callable[..., Any], job_id: str
) -> None:
    server = Server()

    with pytest.raises(ValueError, match="no id"):
        client_of(server).get(job_id)

    assert server.asked == []


def test_members_of_a_newer_server_are_ignored(client_of: Callable[..., Any]) -> None:
    body = job(mood="good", result={"text": "Hello.", "colour": "red"}, usage=None)

    got = client_of(Server(ok(body))).get("job_1")

    assert (got.text, got.usage) == ("Hello.", None)
    assert got.created_at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, text="<html>Log in</html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"status": "ok"}),
        httpx.Response(200, json=job(created_at="soon")),
        httpx.Response(200, json=job(usage=[1])),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(200, content=b'{"a":' * 100_000),
        httpx.Response(204),
        httpx.Response(200, json=job(status={})),
        httpx.Response(200, json=job(id=7)),
        httpx.Response(200, json=job(deduplicated="yes")),
        httpx.Response(200, json=job(metadata=["order"])),
        httpx.Response(200, json=job(result={"text": ["Hello."]})),
        httpx.Response(200, json=job(result=None, result_url=7)),
    ],
)
def test_reply_of_something_else_is_no_job(
    client_of: Callable[..., Any], reply: httpx.Response
) -> None:
    with pytest.raises(BadReplyError):
        client_of(Server(reply)).get("job_1")


def test_error_that_is_nested_too_deep_is_one_without_a_code(
    client_of: Callable[..., Any],
) -> None:
    with pytest.raises(UnavailableError, match="http_500"):
        client_of(Server(httpx.Response(500, content=b"[" * 100_000))).get("job_1")


def test_cursor_of_something_else_is_none(client_of: Callable[..., Any]) -> None:
    page = a_list(job(), has_more=True) | {"last_id": ["job_1"]}

    with pytest.raises(BadReplyError):
        client_of(Server(ok(page))).jobs()


def test_result_at_no_address_is_not_fetched(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job(result=None, result_url="https://bucket:port/")))

    with pytest.raises(BadReplyError, match="result_url of job_1"):
        client_of(server).result("job_1")

    assert len(server.requests) == 1


def test_repr_of_a_step_holds_neither_key_nor_input_nor_address() -> None:
    """It is a local variable, which some tools put into the logs of errors."""
    send = Send("GET", LINK, headers={"authorization": f"Bearer {KEY}"}, content=b"a prompt")

    told = repr(send)

    assert KEY not in told
    assert "prompt" not in told
    assert "Signature" not in told


def test_repr_of_a_job_holds_neither_its_text_nor_its_address(
    client_of: Callable[..., Any],
) -> None:
    body = job(result={"text": "secret", "content": [{"type": "secret"}]}, result_url=LINK)

    got = client_of(Server(ok(body))).get("job_1")

    assert "secret" not in repr(got)
    assert "Signature" not in repr(got)


# ------------------------------------------------------------------ waiting


def test_wait_asks_again_when_the_server_wants_it(client_of: Callable[..., Any]) -> None:
    server = Server(
        ok(job("queued"), retry_after="7"), ok(job("processing"), retry_after="2"), ok(job())
    )

    assert client_of(server).wait("job_1").text == "Hello."
    assert server.slept == [7, 2]
    assert server.headers("prefer") == ["wait=20"] * 3


@pytest.mark.parametrize(
    ("wish", "waited_s"), [("0", 1), ("86400", 60), ("soon", 1), ("-5", 1), ("nan", 1)]
)
def test_wait_takes_no_wish_that_is_out_of_reason(
    client_of: Callable[..., Any], wish: str, waited_s: float
) -> None:
    server = Server(ok(job("queued"), retry_after=wish), ok(job()))

    client_of(server).wait("job_1")

    assert server.slept == [waited_s]


def test_wait_for_a_submitted_job_heeds_the_first_wish(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job("queued"), 202, retry_after="9"), ok(job()))
    client = client_of(server)

    client.wait(client.submit(model="m", input="i"))

    assert server.slept == [9]


def test_wait_ends_in_time_with_the_job_as_it_was_last(client_of: Callable[..., Any]) -> None:
    server = Server(*[ok(job("queued"), retry_after="4")] * 9)

    with pytest.raises(TimeoutError) as ended:
        client_of(server).wait("job_1", timeout_s=10)

    assert isinstance(ended.value, WaitTimeoutError)
    assert isinstance(ended.value.last, Job)
    assert server.slept == [4, 4, 2]
    assert server.headers("prefer") == ["wait=10", "wait=6", "wait=2", None]


@pytest.mark.parametrize("status", ["failed", "dead_lettered"])
def test_failed_job_raises_its_code(client_of: Callable[..., Any], status: str) -> None:
    error = {"code": "vendor_timeout", "message": "Too slow.", "retryable": True, "at": NOW}
    server = Server(ok(job(status, error=error)))

    with pytest.raises(JobFailedError, match=r"job_1 failed: vendor_timeout: Too slow\.") as failed:
        client_of(server).wait("job_1")

    assert (failed.value.code, failed.value.retryable) == ("vendor_timeout", True)
    assert failed.value.job.error.at == datetime(2026, 1, 1, tzinfo=UTC)  # type: ignore[union-attr]


def test_cancelled_job_raises(client_of: Callable[..., Any]) -> None:
    with pytest.raises(JobCancelledError, match="job_1 was cancelled"):
        client_of(Server(ok(job("cancelled")))).wait("job_1")


def test_run_submits_and_waits(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job("queued"), 202, retry_after="1"), ok(job()))

    assert client_of(server).run(model="m", input="i").text == "Hello."
    assert server.asked == ["POST /v1/jobs", "GET /v1/jobs/job_1"]
    assert server.headers("prefer") == ["wait=20", "wait=20"]


def test_run_of_a_hit_asks_once(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job(id="hit_1", cache={"status": "hit", "age_s": 3, "stale": False})))

    ran = client_of(server).run(model="m", input="i")

    assert (ran.cache.status, ran.cache.age_s) == ("hit", 3)
    assert server.asked == ["POST /v1/jobs"]


def test_time_to_run_begins_with_the_submit(client_of: Callable[..., Any]) -> None:
    server = Server(*[ok(job("queued"), 202, retry_after="1")] * 9, slow_s=4)

    with pytest.raises(WaitTimeoutError):
        client_of(server).run(model="m", input="i", timeout_s=6)

    assert len(server.requests) == 2


# ------------------------------------------------------------------ results


def test_big_result_is_fetched_from_its_address_without_the_key(
    client_of: Callable[..., Any],
) -> None:
    server = Server(ok(job(result=None, result_url=LINK)), ok({"text": "Long.", "content": [1]}))

    done = client_of(server).wait("job_1")

    assert (done.text, done.result.content) == ("Long.", [1])
    assert str(server.requests[1].url) == LINK
    assert server.headers("authorization")[1] is None
    assert KEY not in str(server.requests[1].headers.raw)


def test_key_and_cookies_of_a_given_client_stay_with_it() -> None:
    server = Server(ok(job(result=None, result_url=LINK)), ok({"text": "Long."}))
    http = httpx.Client(
        transport=httpx.MockTransport(server),
        headers={"Authorization": "Bearer other"},
        auth=("user", "password"),
        cookies={"session": "1"},
        follow_redirects=True,
    )

    with http:
        Client(URL, KEY, http_client=http).result("job_1")

    assert server.headers("authorization") == [f"Bearer {KEY}", None]
    assert server.headers("cookie")[1] is None


def test_address_that_is_past_its_time_is_asked_for_anew(client_of: Callable[..., Any]) -> None:
    old = job(result=None, result_url=LINK)
    server = Server(
        ok(old),
        httpx.Response(403, text="<Error/>"),
        ok({**old, "result_url": LINK + "&new=1"}),
        ok({"text": "Long."}),
    )

    assert client_of(server).result("job_1").text == "Long."
    assert str(server.requests[3].url).endswith("&new=1")


def test_result_that_is_gone_has_expired(client_of: Callable[..., Any]) -> None:
    body = job(result=None, result_url=LINK)
    gone = httpx.Response(404, text="<Error/>")
    server = Server(ok(body), gone, ok(body), gone)

    with pytest.raises(ResultExpiredError):
        client_of(server).result("job_1")


def test_result_in_the_job_is_taken_from_there(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job()))
    client = client_of(server)

    assert client.result(client.get("job_1")).text == "Hello."
    assert len(server.requests) == 1


def test_result_that_a_list_left_out_is_fetched(client_of: Callable[..., Any]) -> None:
    server = Server(ok(a_list(job(result=None))), ok(job()))
    client = client_of(server)

    assert client.result(client.jobs()[0]).text == "Hello."


def test_open_job_has_no_result(client_of: Callable[..., Any]) -> None:
    server = Server(ok(job("queued")), ok(job("queued")))
    client = client_of(server)

    with pytest.raises(NoResultError, match="job_1 is queued"):
        client.result("job_1")
    with pytest.raises(NoResultError, match="wait"):
        _ = client.get("job_1").text


# ------------------------------------------------------------------ lists


def test_jobs_are_listed_page_by_page(client_of: Callable[..., Any]) -> None:
    server = Server(
        ok(a_list(job(id="job_3"), job(id="job_2"), has_more=True, last_id="job_2")),
        ok(a_list(has_more=True, last_id="job_1b")),  # a filtered page may be empty
        ok(a_list(job(id="job_1"))),
    )

    listed = client_of(server).jobs(status="completed", model="m", limit=2)

    assert [one.id for one in listed] == ["job_3", "job_2", "job_1"]
    assert server.asked == [
        "GET /v1/jobs?status=completed&model=m&limit=2",
        "GET /v1/jobs?status=completed&model=m&limit=2&after=job_2",
        "GET /v1/jobs?status=completed&model=m&limit=2&after=job_1b",
    ]


def test_pages_are_fetched_as_they_are_needed() -> None:
    server = Server(ok(a_list(job(id="job_2"), has_more=True, last_id="job_2")))

    with httpx.Client(transport=httpx.MockTransport(server)) as http:
        first = next(Client(URL, KEY, http_client=http).jobs())

    assert first.id == "job_2"
    assert len(server.requests) == 1


def test_list_that_never_gets_on_ends(client_of: Callable[..., Any]) -> None:
    page = a_list(job(), has_more=True, last_id="job_1")
    server = Server(ok(page), ok(page))

    assert len(client_of(server).jobs()) == 2


# ------------------------------------------------------------------ batches


def test_batch_is_submitted_and_waited_for(client_of: Callable[..., Any]) -> None:
    refusal = {"code": "model_not_found", "detail": "No such model.", "status": 404}
    items = (an_item("a", job=job()), an_item("b", error=refusal))
    server = Server(
        ok(a_batch("in_progress"), 202),
        ok(a_batch("in_progress"), retry_after="9"),
        ok(a_batch("completed", *items)),
    )
    client = client_of(server)

    jobs = [
        {"custom_id": "a", "model": "m", "input": "i", "locale": None},
        {"custom_id": "b", "model": "?", "input": "i"},
    ]
    batch = client.wait_batch(client.create_batch(jobs))

    assert server.body() == {
        "jobs": [
            {"custom_id": "a", "model": "m", "input": "i"},
            {"custom_id": "b", "model": "?", "input": "i"},
        ]
    }
    assert server.asked[1:] == ["GET /v1/batches/batch_1"] * 2
    assert server.headers("idempotency-key")[0]
    assert server.slept == [calls.BATCH_POLL_S, 9]
    assert batch.request_counts.failed == 1
    assert [one.custom_id for one in batch.data] == ["a", "b"]
    assert batch.data[0].job.text == "Hello."
    assert (batch.data[1].error.code, batch.data[1].error.message) == (
        "model_not_found",
        "No such model.",
    )


def test_wait_for_a_batch_ends_in_time(client_of: Callable[..., Any]) -> None:
    server = Server(*[ok(a_batch("in_progress"))] * 9)

    with pytest.raises(WaitTimeoutError, match="batch_1 is still in_progress"):
        client_of(server).wait_batch("batch_1", timeout_s=7)


# ------------------------------------------------------------------ models, usage, webhooks


def test_models_are_listed(client_of: Callable[..., Any]) -> None:
    row = {"id": "demo-chat", "object": "model", "owned_by": "simulator", "version": "1"}

    models = client_of(Server(ok(a_list(row)))).models()

    assert [(one.id, one.owned_by, one.version) for one in models] == [
        ("demo-chat", "simulator", "1")
    ]


@pytest.mark.parametrize(
    "days",
    [
        ("2026-01-01", "2026-01-31"),
        (date(2026, 1, 1), date(2026, 1, 31)),
        (datetime(2026, 1, 1, 9, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_usage_is_asked_for_by_day(client_of: Callable[..., Any], days: tuple[Any, Any]) -> None:
    row = {"date": "2026-01-02", "model": "m", "completed": 3, "cost": 0.25}
    server = Server(ok(a_list(row)))

    rows = client_of(server).usage(*days)

    assert server.asked == ["GET /v1/usage?from=2026-01-01&to=2026-01-31"]
    assert [(one.date, one.completed, one.failed, one.cost) for one in rows] == [
        (date(2026, 1, 2), 3, 0, 0.25)
    ]


A_WEBHOOK = {
    "id": "whk_1",
    "object": "webhook",
    "url": "https://hooks.example/",
    "events": ["job.completed"],
    "status": "enabled",
    "created_at": NOW,
}
A_DELIVERY = {
    "id": "dlv_1",
    "object": "webhook_delivery",
    "event_id": "evt_1",
    "type": "job.completed",
    "job_id": "job_1",
    "status": "pending",
    "attempts": 2,
    "http_status": 500,
    "created_at": NOW,
    "last_attempt_at": NOW,
}


def test_webhook_is_made_with_a_secret_that_no_repr_holds(client_of: Callable[..., Any]) -> None:
    server = Server(ok({**A_WEBHOOK, "secret": "whsec_x"}, 201))

    made = client_of(server).create_webhook("https://hooks.example/", events=["job.completed"])

    assert server.body() == {"url": "https://hooks.example/", "events": ["job.completed"]}
    assert (made.secret, made.events) == ("whsec_x", ("job.completed",))
    assert "whsec_x" not in repr(made)


def test_webhook_of_the_callbacks_has_no_address(client_of: Callable[..., Any]) -> None:
    server = Server(ok(a_list({**A_WEBHOOK, "id": "callbacks", "url": None})))

    assert [(one.id, one.url) for one in client_of(server).webhooks()] == [("callbacks", None)]


@pytest.mark.parametrize(
    ("call", "reply", "asked"),
    [
        (lambda c: c.get_webhook("whk_1"), ok(A_WEBHOOK), "GET /v1/webhooks/whk_1"),
        (lambda c: c.delete_webhook("whk_1"), httpx.Response(204), "DELETE /v1/webhooks/whk_1"),
        (lambda c: c.test_webhook("whk_1"), ok(A_DELIVERY, 202), "POST /v1/webhooks/whk_1/test"),
        (lambda c: c.rotate_webhook("whk_1"), ok(A_WEBHOOK), "POST /v1/webhooks/whk_1/rotate"),
        (
            lambda c: c.webhook_deliveries("whk_1", limit=5),
            ok(a_list(A_DELIVERY)),
            "GET /v1/webhooks/whk_1/deliveries?limit=5",
        ),
        (
            lambda c: c.redeliver("whk_1", "dlv_1"),
            ok(A_DELIVERY, 202),
            "POST /v1/webhooks/whk_1/deliveries/dlv_1/redeliver",
        ),
    ],
)
def test_webhooks_are_worked_with(
    client_of: Callable[..., Any],
    call: Callable[[Any], Any],
    reply: httpx.Response,
    asked: str,
) -> None:
    server = Server(reply)

    call(client_of(server))

    assert server.asked == [asked]


def test_rotation_may_say_how_long_both_secrets_sign(client_of: Callable[..., Any]) -> None:
    server = Server(ok(A_WEBHOOK))

    client_of(server).rotate_webhook("whk_1", overlap_s=0)

    assert server.body() == {"overlap_s": 0}


# ------------------------------------------------------------------ redirects


def test_redirect_is_not_followed_with_the_key(client_of: Callable[..., Any]) -> None:
    server = Server(httpx.Response(301, headers={"location": "https://elsewhere.example/"}))

    with pytest.raises(Exception, match="http_301"):
        client_of(server).get("job_1")

    assert len(server.requests) == 1


def test_error_of_the_result_host_is_no_problem_of_the_api(client_of: Callable[..., Any]) -> None:
    down = httpx.Response(500, text="<Error/>")
    server = Server(ok(job(result=None, result_url=LINK)), down)

    with pytest.raises(UnavailableError) as failed:
        client_of(server).result("job_1")

    assert "Signature" not in str(failed.value)


def test_error_is_raised_by_its_code(client_of: Callable[..., Any]) -> None:
    server = Server(problem(403, "forbidden"))

    with pytest.raises(PermissionDeniedError) as refused:
        client_of(server).get("job_1")

    assert (refused.value.code, refused.value.request_id) == ("forbidden", "req-1")
    assert KEY not in str(refused.value)
