"""From replies to errors: by code, else by status, with a text that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.http import STATUS
from sluiceway_client import (
    ApiError,
    AuthenticationError,
    CacheMissError,
    ConflictError,
    CostLimitError,
    FeatureDisabledError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    RateLimitedError,
    ResultExpiredError,
    UnavailableError,
    ValidationFailedError,
)
from sluiceway_client.errors import _BY_CODE, api_error

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", InvalidRequestError),
        (401, "unauthenticated", AuthenticationError),
        (403, "forbidden", PermissionDeniedError),
        (403, "feature_disabled", FeatureDisabledError),
        (404, "job_not_found", NotFoundError),
        (404, "cache_miss", CacheMissError),
        (409, "not_cancellable", ConflictError),
        (410, "result_expired", ResultExpiredError),
        (422, "validation_failed", ValidationFailedError),
        (422, "cost_limit", CostLimitError),
        (422, "idempotency_key_reused", ConflictError),
        (429, "rate_limited", RateLimitedError),
        (429, "quota_exceeded", QuotaExceededError),
        (503, "queue_full", UnavailableError),
        (504, "still_running", UnavailableError),
        (409, "job_cancelled", ConflictError),
    ],
)
def test_error_is_of_the_class_of_its_code(status: int, code: str, kind: type[ApiError]) -> None:
    error = api_error(status, {}, {"code": code})

    assert type(error) is kind
    assert (error.code, error.status) == (code, status)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, ApiError),
        (400, InvalidRequestError),
        (401, AuthenticationError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (418, InvalidRequestError),
        (429, RateLimitedError),
        (500, UnavailableError),
        (504, UnavailableError),
    ],
)
@pytest.mark.parametrize(("body", "code"), [({"code": "new"}, "new"), (None, None)])
def test_unknown_code_is_of_the_class_of_its_status(
    status: int, kind: type[ApiError], body: Any, code: str | None
) -> None:
    error = api_error(status, {}, body)

    assert type(error) is kind
    assert error.code == (code or f"http_{status}")


def test_every_code_of_the_server_is_known() -> None:
    assert STATUS.keys() - _BY_CODE.keys() == set()


@given(status=st.integers(300, 599), body=JSON | st.dictionaries(st.just("errors"), JSON))
def test_any_reply_makes_an_error(status: int, body: Any) -> None:
    error = api_error(status, {"retry-after": "soon"}, body)

    assert error.status == status
    assert error.code in str(error)


def test_text_says_what_is_wrong_and_what_to_do() -> None:
    faults = [{"field": "input.messages.0.role", "message": "unknown"}]
    body = {"code": "validation_failed", "detail": "Wrong.", "request_id": "r", "errors": faults}

    assert str(api_error(422, {}, body)) == (
        "validation_failed (422): Wrong. input.messages.0.role: unknown [request r]"
    )
    assert str(api_error(401, {}, {"code": "unauthenticated", "detail": "No."})) == (
        "unauthenticated (401): No. Check the API key."
    )
    assert str(api_error(429, {"retry-after": "7"}, {"code": "rate_limited", "detail": "No."})) == (
        "rate_limited (429): No. Try again in 7 s."
    )


def test_refusal_by_something_else_says_what_to_check_and_gives_no_advice_on_keys() -> None:
    text = str(api_error(403, {}, {"message": "Missing Authentication Token"}))

    assert text == (
        "http_403 (403): a reply without a code is none of this API's own: check base_url, which "
        "ends in the stage, and what stands between."
    )


def test_request_id_is_taken_from_the_header_when_the_body_has_none() -> None:
    assert api_error(502, {"x-request-id": "r"}, None).request_id == "r"
