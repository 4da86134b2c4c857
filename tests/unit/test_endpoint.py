"""Endpoints: how many, what signs for them and for how long, and when they are told nothing."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sluiceway.domain.endpoint import (
    EVENT_TYPES,
    MAX_ENDPOINTS,
    MAX_SECRETS,
    NO_ENDPOINTS,
    Endpoint,
    Endpoints,
    Secret,
    added,
    disabled,
    enabled,
    endpoint_id,
    find,
    get,
    removed,
    rotated,
    secret_text,
    signing_key,
    signing_keys,
    with_address,
)
from sluiceway.domain.errors import ValidationFailedError, WebhookNotFoundError
from sluiceway.domain.webhook import signed_headers
from standardwebhooks.webhooks import Webhook

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS
from tests.fakes.outside import MASTER

HOUR_S = 3600
HOUR_MS = HOUR_S * 1000
ONE = Endpoint("whk_1", "https://hooks.example/1", created_at_epoch_ms=NOW_MS)
SOME: Endpoints = (*NO_ENDPOINTS, ONE)


def rotate(endpoints: Endpoints, *, at_ms: int = NOW_MS, overlap_s: int = HOUR_S) -> Endpoints:
    return rotated(endpoints, "whk_1", now_ms=at_ms, overlap_s=overlap_s)


def signing(endpoints: Endpoints, at_ms: int) -> tuple[int, ...]:
    return get(endpoints, "whk_1").generations(at_ms)


# ------------------------------------------------------------------ which there are


def test_ids_are_in_order_of_time_and_fit_for_a_url() -> None:
    ids = [endpoint_id(at_ms, bytes(10)) for at_ms in (NOW_MS, NOW_MS + 1)]

    assert ids == sorted(ids)
    assert all(one.startswith("whk_") and len(one) == 30 for one in ids)


def test_limit_counts_what_a_tenant_registered() -> None:
    endpoints = NO_ENDPOINTS
    for number in range(MAX_ENDPOINTS):
        endpoints = added(endpoints, replace(ONE, endpoint_id=f"whk_{number}"))

    with pytest.raises(ValidationFailedError, match="10 webhooks already"):
        added(endpoints, ONE)


def test_removed_endpoint_is_gone() -> None:
    assert removed(SOME, "whk_1") == NO_ENDPOINTS


def test_unknown_endpoint_is_not_found() -> None:
    assert find(SOME, "whk_2") is None
    for change in (get, removed, with_address):
        with pytest.raises(WebhookNotFoundError):
            change(SOME, "whk_2")


def test_callbacks_have_no_address_to_remove() -> None:
    for change in (removed, with_address):
        with pytest.raises(ValidationFailedError, match="callbacks"):
            change(SOME, "callbacks")


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_callbacks_want_nothing_by_themselves(event_type: str) -> None:
    assert ONE.wants(event_type)
    assert not NO_ENDPOINTS[0].wants(event_type)


# ------------------------------------------------------------------ rotation


def test_secret_before_a_rotation_signs_until_the_overlap_ends() -> None:
    after = rotate(SOME)

    assert signing(SOME, NOW_MS) == (1,)
    assert signing(after, NOW_MS) == (2, 1)
    assert signing(after, NOW_MS + HOUR_MS - 1) == (2, 1)
    assert signing(after, NOW_MS + HOUR_MS) == (2,)


def test_rotation_without_an_overlap_ends_all_others_at_once() -> None:
    after = rotate(rotate(SOME), overlap_s=0)

    assert get(after, "whk_1").secrets == (Secret(3),)


def test_no_rotation_prolongs_an_earlier_overlap() -> None:
    after = rotate(rotate(SOME), overlap_s=9 * HOUR_S)

    assert get(after, "whk_1").secrets == (
        Secret(3),
        Secret(2, NOW_MS + 9 * HOUR_MS),
        Secret(1, NOW_MS + HOUR_MS),
    )


def test_a_shorter_overlap_shortens_an_earlier_one() -> None:
    after = rotate(rotate(SOME), overlap_s=60)

    assert {one.ends_at_epoch_ms for one in get(after, "whk_1").secrets} == {None, NOW_MS + 60_000}


def test_secrets_that_ended_are_forgotten() -> None:
    after = rotate(rotate(SOME), at_ms=NOW_MS + HOUR_MS)

    assert signing(after, NOW_MS) == (3, 2)


def test_so_many_secrets_sign_and_the_oldest_ends() -> None:
    after = SOME
    for _ in range(MAX_SECRETS + 1):
        after = rotate(after)

    assert signing(after, NOW_MS) == (7, 6, 5, 4, 3)


def test_rotation_leaves_the_others_alone() -> None:
    assert rotate(SOME)[0] == SOME[0]


# ------------------------------------------------------------------ disabled


def test_disabled_endpoint_wants_nothing_until_it_is_enabled() -> None:
    off = disabled(SOME, "whk_1", now_ms=NOW_MS, reason="gone")

    assert off[1].disabled
    assert (off[1].disabled_at_epoch_ms, off[1].disabled_reason) == (NOW_MS, "gone")
    assert not off[1].wants("job.completed")
    assert enabled(off, "whk_1") == SOME


def test_what_is_so_already_or_gone_stays_as_it_is() -> None:
    off = disabled(SOME, "whk_1", now_ms=NOW_MS, reason="gone")

    assert disabled(off, "whk_1", now_ms=NOW_MS + 1, reason="other") is off
    assert disabled(SOME, "whk_2", now_ms=NOW_MS, reason="gone") is SOME
    assert enabled(SOME, "whk_1") is SOME
    assert enabled(SOME, "whk_2") is SOME


# ------------------------------------------------------------------ secrets


def test_key_never_changes() -> None:
    assert signing_key(MASTER, "acme", "whk_1", 1).hex() == (
        "2a4114790f26772b83a945c34adf998761f2f62077093bf768da2446addddd1b"
    )


@pytest.mark.parametrize(
    "other",
    [
        (b"another master key of 32 bytes..", "acme", "whk_1", 1),
        (MASTER, "globex", "whk_1", 1),
        (MASTER, "acme", "whk_2", 1),
        (MASTER, "acme", "whk_1", 2),
    ],
)
def test_each_master_tenant_endpoint_and_generation_has_a_key_of_its_own(
    other: tuple[bytes, str, str, int],
) -> None:
    assert signing_key(*other) != signing_key(MASTER, "acme", "whk_1", 1)


def test_secret_is_in_the_form_of_standard_webhooks() -> None:
    key = signing_key(MASTER, "acme", "whk_1", 1)

    prefix, _, encoded = secret_text(key).partition("_")

    assert prefix == "whsec"
    assert base64.b64decode(encoded, validate=True) == key
    assert len(key) == 32  # 24 to 64 by the specification


def test_each_secret_that_signs_is_verified_by_the_reference_library() -> None:
    after = rotate(SOME)
    delivery = a_delivery()

    headers = signed_headers(
        delivery,
        signing_keys(MASTER, "acme", after[1], now_ms=NOW_MS),
        now_s=NOW_MS // 1000,
    )

    expected = [
        Webhook(secret_text(signing_key(MASTER, "acme", "whk_1", generation))).sign(
            "evt_1", datetime.fromtimestamp(NOW_MS // 1000, UTC), delivery.body
        )
        for generation in (2, 1)
    ]
    assert headers["webhook-signature"].split(" ") == expected
