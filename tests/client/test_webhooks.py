"""Webhooks: what is signed is believed, and nothing else, as by the Standard Webhooks package."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.endpoint import secret_text
from sluiceway.domain.webhook import signed_headers
from sluiceway_client import WebhookVerificationError, verify_webhook

from tests.fakes.examples import a_delivery

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = (b"another-one-of-thirty-two-bytes!", b"0123456789abcdef0123456789abcdef")
OTHER, SECRET = map(secret_text, KEYS)
BODY = json.dumps(
    {
        "type": "job.completed",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"job_id": "job_1", "status": "completed"},
    }
).encode()


def headers(
    body: bytes = BODY, *secrets: str, event_id: str = "evt_1", at: datetime = NOW
) -> dict[str, str]:
    """As the Standard Webhooks package signs."""
    signatures = [
        standardwebhooks.Webhook(secret).sign(event_id, at, body.decode())
        for secret in secrets or (SECRET,)
    ]
    return {
        "Webhook-Id": event_id,
        "Webhook-Timestamp": str(int(at.timestamp())),
        "Webhook-Signature": " ".join(signatures),
    }


def test_signed_webhook_is_the_event() -> None:
    event = verify_webhook(BODY, headers(), SECRET, now=NOW)

    assert (event.id, event.type, event.job_id) == ("evt_1", "job.completed", "job_1")
    assert event.timestamp == NOW
    assert event.data["status"] == "completed"


def test_clock_says_when_it_is() -> None:
    assert verify_webhook(BODY, headers(at=datetime.now(UTC)), SECRET).id == "evt_1"


@given(
    key=st.binary(min_size=24, max_size=64),
    event_id=st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=40),
    job_id=st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_any_signature_of_the_standard_package_is_right(
    key: bytes, event_id: str, job_id: str
) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    body = json.dumps(
        {"type": "job.failed", "timestamp": "2026-01-01T00:00:00Z", "data": {"job_id": job_id}},
        ensure_ascii=False,
    ).encode()

    event = verify_webhook(body, headers(body, secret, event_id=event_id), secret, now=NOW)

    assert (event.id, event.job_id) == (event_id, job_id)


def test_what_the_server_signs_is_right_for_both() -> None:
    delivery = a_delivery(body=BODY.decode())
    now = datetime.now(UTC)  # the package knows no other time

    sent = signed_headers(delivery, KEYS, now_s=int(now.timestamp()))

    assert verify_webhook(BODY, sent, SECRET, now=now).id == "evt_1"
    assert standardwebhooks.Webhook(SECRET).verify(BODY, sent)["type"] == "job.completed"


@pytest.mark.parametrize(
    ("signed_by", "known"),
    [([OTHER, SECRET], SECRET), ([SECRET], [OTHER, SECRET]), ([SECRET], (SECRET,))],
)
def test_one_right_signature_is_enough(signed_by: list[str], known: Any) -> None:
    assert verify_webhook(BODY, headers(BODY, *signed_by), known, now=NOW).id == "evt_1"


def test_secret_may_lack_its_prefix_and_its_padding() -> None:
    secret = SECRET.removeprefix("whsec_").rstrip("=")

    assert verify_webhook(BODY, headers(), secret, now=NOW).id == "evt_1"


@pytest.mark.parametrize(
    "forged",
    [
        {"Webhook-Id": "evt_2"},
        {"Webhook-Timestamp": str(int(NOW.timestamp()) + 1)},
        {"Webhook-Signature": headers(BODY, OTHER)["Webhook-Signature"]},
        {"Webhook-Signature": headers()["Webhook-Signature"].replace("v1,", "v2,")},
        {"Webhook-Signature": headers()["Webhook-Signature"].replace("v1,", "v1a,")},
        {"Webhook-Signature": headers()["Webhook-Signature"].removeprefix("v1,")},
        {"Webhook-Signature": headers()["Webhook-Signature"] + "x"},
        {"Webhook-Signature": "v1,"},
        {"Webhook-Signature": "v1,\u00e9\udc80"},
        {"Webhook-Signature": ""},
        {"Webhook-Id": "\udc80"},
        {"Webhook-Timestamp": "soon"},
        {"Webhook-Timestamp": "-1"},
        {"Webhook-Timestamp": "nan"},
        {"Webhook-Timestamp": "\u0661"},
        {"Webhook-Timestamp": "9" * 400},
    ],
)
def test_what_is_forged_is_refused(forged: dict[str, str]) -> None:
    with pytest.raises(WebhookVerificationError):
        verify_webhook(BODY, {**headers(), **forged}, SECRET, now=NOW)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_changed_body_is_refused(at: int, by: int) -> None:
    changed = bytearray(BODY)
    changed[at] ^= by

    with pytest.raises(WebhookVerificationError, match="no signature"):
        verify_webhook(bytes(changed), headers(), SECRET, now=NOW)


@pytest.mark.parametrize("name", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_missing_header_is_named(name: str) -> None:
    given = {one: value for one, value in headers().items() if one != name}

    with pytest.raises(WebhookVerificationError, match=name.lower()):
        verify_webhook(BODY, given, SECRET, now=NOW)


@pytest.mark.parametrize(("off_s", "right"), [(300, True), (-300, True), (301, False)])
def test_webhook_is_of_now(off_s: int, right: bool) -> None:  # noqa: FBT001
    now = NOW + timedelta(seconds=off_s)

    if right:
        assert verify_webhook(BODY, headers(), SECRET, now=now).id == "evt_1"
    else:
        with pytest.raises(WebhookVerificationError, match="301 s ago"):
            verify_webhook(BODY, headers(), SECRET, now=now)


def test_webhook_of_the_future_is_refused() -> None:
    with pytest.raises(WebhookVerificationError, match="400 s in the future"):
        verify_webhook(BODY, headers(at=NOW + timedelta(seconds=400)), SECRET, now=NOW)


def test_tolerance_may_be_another() -> None:
    later = NOW + timedelta(hours=1)

    assert verify_webhook(BODY, headers(), SECRET, tolerance_s=4000, now=later).id == "evt_1"


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_\u00e9", "whsec_a b!", [], ["whsec_!"]])
def test_secret_that_is_none_is_refused_without_being_told(secret: Any) -> None:
    with pytest.raises(ValueError, match="webhook secret") as refused:
        verify_webhook(BODY, headers(), secret, now=NOW)

    assert "!" not in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"null", b'"x"', b"not json", b'{"type": "x", "timestamp": "soon"}'],
)
def test_signed_text_that_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(WebhookVerificationError, match="no event"):
        verify_webhook(body, headers(body), SECRET, now=NOW)
