"""When a call is tried again, when not, and how long it waits before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway_client import (
    ConflictError,
    ConnectionFailedError,
    QuotaExceededError,
    RateLimitedError,
    UnavailableError,
)
from sluiceway_client.calls import BACKOFF_MAX_S, RETRY_FOR_S

from tests.client.server import KEY, Server, Sync, job, ok, problem

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = httpx.ReadTimeout("nothing came")

PASSING = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    LOST,
    httpx.RemoteProtocolError("cut off"),
    problem(429, "rate_limited", retryable=True, retry_after="1"),
    problem(500, "internal", retryable=True),
    problem(503, "degraded", retryable=True, retry_after="1"),
    httpx.Response(502, json={"message": "Internal server error"}),
    httpx.Response(504, json={"message": "Endpoint request timed out"}),
    problem(409, "idempotency_in_progress", retry_after="1"),
]
FINAL = [
    problem(400, "invalid_request"),
    problem(404, "job_not_found"),
    problem(409, "not_cancellable"),
    problem(410, "result_expired"),
    problem(422, "validation_failed"),
    httpx.Response(500, text="not ours, and nobody says that it passes"),
]


@pytest.mark.parametrize("failure", PASSING)
def test_submit_is_tried_again_with_the_same_key_and_body(
    client_of: Callable[..., Any], failure: Any
) -> None:
    server = Server(failure, failure, ok(job()))

    client_of(server).submit(model="m", input="i")

    assert len(server.requests) == 3
    assert len(set(server.headers("idempotency-key"))) == 1
    assert len({one.content for one in server.requests}) == 1


@pytest.mark.parametrize("failure", FINAL)
def test_what_will_not_pass_is_not_tried_again(
    client_of: Callable[..., Any], failure: httpx.Response
) -> None:
    server = Server(failure)

    with pytest.raises(Exception, match=r"\(\d{3}\)"):
        client_of(server).get("job_1")

    assert server.slept == []


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get("job_1"),
        lambda client: client.cancel("job_1"),
        lambda client: client.result("job_1"),
    ],
)
def test_calls_that_may_be_repeated_are(
    client_of: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    server = Server(LOST, ok(job()))

    call(client_of(server))

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.delete_webhook("whk_1"),
        lambda client: client.rotate_webhook("whk_1"),
        lambda client: client.test_webhook("whk_1"),
        lambda client: client.redeliver("whk_1", "dlv_1"),
    ],
)
def test_calls_that_would_do_it_twice_are_not_repeated(
    client_of: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    server = Server(LOST)

    with pytest.raises(ConnectionFailedError):
        call(client_of(server))

    assert len(server.requests) == 1


def test_webhook_is_made_once_though_it_is_asked_for_again(client_of: Callable[..., Any]) -> None:
    server = Server(LOST, ok({"id": "whk_1", "secret": "whsec_x"}, 201))

    made = client_of(server).create_webhook("https://hooks.example/")

    first, second = server.headers("idempotency-key")
    assert first
    assert first == second
    assert made.secret == "whsec_x"


def test_failure_is_raised_when_the_tries_are_used_up(client_of: Callable[..., Any]) -> None:
    server = Server(*[problem(503, "degraded", retryable=True)] * 3)

    with pytest.raises(UnavailableError):
        client_of(server, max_retries=2).get("job_1")

    assert len(server.requests) == 3


def test_nothing_is_tried_again_when_it_is_so_wanted(client_of: Callable[..., Any]) -> None:
    server = Server(LOST)

    with pytest.raises(ConnectionFailedError):
        client_of(server, max_retries=0).get("job_1")


def test_backoff_grows_up_to_its_bound(client_of: Callable[..., Any]) -> None:
    server = Server(*[LOST] * 7, ok(job()))

    client_of(server, max_retries=9, rand=lambda: 1.0).get("job_1")

    assert server.slept == [1, 2, 4, 8, 8, 8, 8]


@given(
    rand=st.floats(0, 1, exclude_max=True),
    wish_s=st.none() | st.integers(0, 90),
    tries=st.integers(1, 6),
)
def test_pause_is_never_under_the_wish_nor_far_above_it(
    rand: float, wish_s: int | None, tries: int
) -> None:
    headers = {} if wish_s is None else {"retry_after": str(wish_s)}
    busy = problem(429, "rate_limited", retryable=True, **headers)
    server = Server(*[busy] * tries, ok(job()))

    try:
        Sync(server, max_retries=9, rand=lambda: rand).get("job_1")
    except RateLimitedError:
        assert server.now - 1000.0 + (wish_s or 0) + BACKOFF_MAX_S > RETRY_FOR_S

    assert all((wish_s or 0) <= one <= (wish_s or 0) + BACKOFF_MAX_S for one in server.slept)
    assert server.now - 1000.0 <= RETRY_FOR_S


def test_wish_that_is_too_long_is_left_to_the_caller(client_of: Callable[..., Any]) -> None:
    server = Server(problem(429, "quota_exceeded", retryable=True, retry_after="40000"))

    with pytest.raises(QuotaExceededError) as refused:
        client_of(server).submit(model="m", input="i")

    assert refused.value.retry_after_s == 40000
    assert server.slept == []


def test_tries_end_when_the_time_to_wait_is_over(client_of: Callable[..., Any]) -> None:
    busy = problem(503, "degraded", retryable=True, retry_after="4")
    server = Server(ok(job("queued"), retry_after="1"), busy, busy, busy)

    with pytest.raises(UnavailableError):
        client_of(server).wait("job_1", timeout_s=8)

    assert server.slept == [1, 4]


def test_submit_that_is_still_being_answered_elsewhere_is_a_conflict_in_the_end(
    client_of: Callable[..., Any],
) -> None:
    server = Server(*[problem(409, "idempotency_in_progress", retry_after="1")] * 2)

    with pytest.raises(ConflictError):
        client_of(server, max_retries=1).submit(model="m", input="i")


def test_lost_connection_names_the_host_and_no_more(client_of: Callable[..., Any]) -> None:
    link = "https://bucket.example/results/1?X-Amz-Signature=abc"
    server = Server(ok(job(result=None, result_url=link)), LOST)

    with pytest.raises(ConnectionFailedError) as failed:
        client_of(server, max_retries=0).result("job_1")

    assert str(failed.value) == "no reply from bucket.example: ReadTimeout"
    assert failed.value.__cause__ is LOST


def test_lost_connection_tells_no_key(client_of: Callable[..., Any]) -> None:
    with pytest.raises(ConnectionFailedError) as failed:
        client_of(Server(LOST), max_retries=0).submit(model="m", input="a prompt")

    assert KEY not in repr(failed.value)
    assert "prompt" not in repr(failed.value)
