"""What the outside is told of a job: thin, signed, under a stable id, and to public addresses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from sluiceway.domain.address import callback_of, may_call, target_of
from sluiceway.domain.endpoint import EVENT_TYPES, NO_ENDPOINTS, Endpoint
from sluiceway.domain.job import MAX_URL_CHARACTERS, JobStatus
from sluiceway.domain.webhook import (
    DETAIL_TYPES,
    GIVEN_UP_AFTER_S,
    MAX_RECEIVES,
    RETRY_DELAYS_S,
    JobEvent,
    a_test,
    deliveries,
    is_delivery_id,
    retry_delay_s,
    signed_headers,
)

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS


def an_event(**members: Any) -> JobEvent:
    event = JobEvent(
        tenant="acme",
        job_id="job_1",
        model="demo-chat",
        lane="interactive",
        status="completed",
        at_epoch_ms=NOW_MS + 1000,
        created_at_epoch_ms=NOW_MS,
        request_id="req-1",
        correlation_id="corr-1",
        attempts=1,
        redrives=0,
        started_at_epoch_ms=NOW_MS + 250,
        completed_at_epoch_ms=NOW_MS + 1000,
        result_source="vendor",
        input_tokens=10,
        output_tokens=20,
        cost_nanos=330_000,
        callback_urls=("https://hooks.example/a", "https://hooks.example/b"),
    )
    return replace(event, **members)


# ------------------------------------------------------------------ events


def test_every_final_status_is_told() -> None:
    final = {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD_LETTERED, JobStatus.CANCELLED}

    assert set(DETAIL_TYPES) == final
    assert {f"job.{status}" for status in final} == set(EVENT_TYPES)


def test_event_id_never_changes() -> None:
    assert an_event().event_id == "evt_2zv4izqzmo44m32eyz3lgoz5bxfwzg4o"


@pytest.mark.parametrize(
    "detail", [{"at_epoch_ms": 1}, {"attempts": 7}, {"callback_urls": ()}, {"lane": "batch"}]
)
def test_event_id_is_that_of_the_transition(detail: dict[str, Any]) -> None:
    assert an_event(**detail).event_id == an_event().event_id


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "globex"},
        {"job_id": "job_2"},
        {"status": "failed"},
        {"redrives": 1},
        {"discarded": True},
    ],
)
def test_another_transition_has_another_event_id(other: dict[str, Any]) -> None:
    assert an_event(**other).event_id != an_event().event_id


def test_event_id_is_fit_for_a_header() -> None:
    assert re.fullmatch(r"evt_[a-z2-7]{32}", an_event().event_id)


def test_detail_of_a_completed_job() -> None:
    assert an_event().detail() == {
        "id": an_event().event_id,
        "tenant": "acme",
        "request_id": "req-1",
        "redrives": 0,
        "result_source": "vendor",
        "at": "2026-01-01T00:00:01.000Z",
        "job_id": "job_1",
        "status": "completed",
        "model": "demo-chat",
        "priority": "interactive",
        "correlation_id": "corr-1",
        "attempts": 1,
        "created_at": "2026-01-01T00:00:00.000Z",
        "started_at": "2026-01-01T00:00:00.250Z",
        "completed_at": "2026-01-01T00:00:01.000Z",
        "usage": {"input_tokens": 10, "output_tokens": 20, "cost": 0.00033, "saved": 0.0},
    }


def test_failed_job_has_its_error_code_and_no_usage() -> None:
    data = an_event(status="failed", error_code="vendor_rejected").data

    assert data["error"] == {"code": "vendor_rejected", "retryable": False}
    assert "usage" not in data


def test_webhook_body_is_thin_and_does_not_name_the_tenant() -> None:
    body = json.loads(an_event().webhook_body)

    assert body == {
        "type": "job.completed",
        "timestamp": "2026-01-01T00:00:01.000Z",
        "data": an_event().data,
    }
    assert "acme" not in an_event().webhook_body


def test_each_callback_gets_a_webhook() -> None:
    told = deliveries(an_event(), NO_ENDPOINTS)

    assert [one.url for one in told] == ["https://hooks.example/a", "https://hooks.example/b"]
    assert {one.event_id for one in told} == {an_event().event_id}


URL = "https://hooks.example/a"


def to(url: str, **members: Any) -> Endpoint:
    return Endpoint(f"whk_{url[-1]}", url, **members)


def addresses(event: JobEvent, *others: Endpoint) -> list[tuple[str, str]]:
    told = deliveries(event, (*NO_ENDPOINTS, *others))
    return [(one.endpoint_id, one.url) for one in told]


def test_each_endpoint_that_wants_the_event_gets_a_webhook() -> None:
    others = (to(f"{URL}1"), to(f"{URL}2", events=("job.failed", "job.completed")))

    assert addresses(an_event(callback_urls=()), *others) == [("whk_1", ""), ("whk_2", "")]


@pytest.mark.parametrize(
    "members",
    [{"events": ("job.failed",)}, {"disabled_at_epoch_ms": 1, "disabled_reason": "gone"}],
)
def test_endpoint_that_does_not_want_it_gets_none(members: dict[str, Any]) -> None:
    assert addresses(an_event(callback_urls=()), to(URL, **members)) == []


def test_callback_that_is_an_endpoint_is_told_once() -> None:
    event = an_event(callback_urls=(URL, "https://hooks.example/b"))

    assert addresses(event, to(URL)) == [
        ("whk_a", ""),
        ("callbacks", "https://hooks.example/b"),
    ]
    assert addresses(event, to(URL, events=("job.failed",))) == [
        ("callbacks", URL),
        ("callbacks", "https://hooks.example/b"),
    ]


def test_delivery_id_is_the_same_for_the_same_event_and_address() -> None:
    ids = [
        one.delivery_id
        for _ in range(2)
        for one in deliveries(an_event(), (*NO_ENDPOINTS, to(f"{URL}1"), to(f"{URL}2")))
    ]

    assert ids[:4] == ids[4:]
    assert len(set(ids)) == 4
    assert all(is_delivery_id(one) for one in ids)


def test_delivery_ids_are_in_order_of_time() -> None:
    ids = [a_delivery(at_epoch_ms=at_ms).delivery_id for at_ms in (0, 1, NOW_MS, NOW_MS + 1)]

    assert ids == sorted(ids)


@pytest.mark.parametrize(
    "given",
    ["", "dlv_", "dlv_" + "A" * 25, "dlv_" + "a" * 26, "dlv_" + "U" * 26, "job_" + "A" * 26],
)
def test_other_text_is_no_delivery_id(given: str) -> None:
    assert not is_delivery_id(given)


def test_test_is_a_thin_event_of_its_own() -> None:
    first, second = (
        a_test("acme", "whk_1", correlation_id="corr-1", now_ms=NOW_MS, randomness=byte * 20)
        for byte in (b"a", b"b")
    )

    assert json.loads(first.body) == {
        "type": "webhook.test",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"webhook_id": "whk_1", "correlation_id": "corr-1"},
    }
    assert re.fullmatch(r"evt_[a-z2-7]{32}", first.event_id)
    assert first.event_id != second.event_id
    assert first.is_test
    assert not a_delivery().is_test


# ------------------------------------------------------------------ retries


def test_waits_grow_from_seconds_to_hours() -> None:
    waits = [retry_delay_s(receives, rand=0.0) for receives in range(1, MAX_RECEIVES)]

    assert waits == list(RETRY_DELAYS_S) == [5, 60, 300, 1800, 7200, 21_600]


def test_jitter_only_lengthens() -> None:
    assert 5 < retry_delay_s(1, rand=0.99) < 5.5


def test_no_pause_is_as_long_as_that_after_which_a_delivery_is_given_up() -> None:
    longest_s = max(retry_delay_s(receives, rand=1.0) for receives in range(1, MAX_RECEIVES + 1))

    assert 2 * longest_s < GIVEN_UP_AFTER_S


def test_after_the_last_attempt_the_message_goes_to_the_dead_letter_queue_at_once() -> None:
    assert retry_delay_s(MAX_RECEIVES, rand=0.5) == 0
    assert retry_delay_s(MAX_RECEIVES + 5, rand=0.5) == 0


# ------------------------------------------------------------------ signature

KEY = b"0123456789abcdef0123456789abcdef"
DELIVERY = a_delivery()


def test_signature_is_that_of_standard_webhooks() -> None:
    headers = signed_headers(DELIVERY, (KEY,), now_s=1_767_225_600)

    content = b'evt_1.1767225600.{"type":"job.completed"}'
    expected = base64.b64encode(hmac.digest(KEY, content, hashlib.sha256)).decode()
    assert headers == {
        "webhook-id": "evt_1",
        "webhook-timestamp": "1767225600",
        "webhook-signature": f"v1,{expected}",
    }


def test_signature_of_the_published_example() -> None:
    # From the test suite of standard-webhooks, where it stands for every language.
    example = a_delivery(event_id="msg_p5jXN8AQM9LWM0D4loKWxJek", body='{"test": 2432232314}')

    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers(example, (key,), now_s=1_614_265_330)

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_key_signs_the_first_one_first() -> None:
    other = b"f" * 32

    signatures = signed_headers(DELIVERY, (KEY, other), now_s=1)["webhook-signature"].split(" ")

    assert signatures == [
        signed_headers(DELIVERY, (key,), now_s=1)["webhook-signature"] for key in (KEY, other)
    ]
    assert len(set(signatures)) == 2


# ------------------------------------------------------------------ addresses

FORBIDDEN = {
    "this network": ["0.0.0.0", "0.1.2.3", "::"],  # noqa: S104
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd12::1", "fc00::1"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255", "100.100.100.200"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1"],
    "metadata": ["169.254.169.254", "169.254.170.2", "fd00:ec2::254"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::8.8.8.8"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1", "192.88.99.1"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1"],
    "Teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "site-local": ["fec0::1"],
    "segment routing": ["5f00::1"],
    "scoped": ["2606:4700::1%1"],
    "no address": ["", "hooks.example", "8.8.8", "0x7f.1", "2130706433", "08.8.8.8"],
}
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111"]


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(one, id=f"{kind}-{one}")
        for kind, addresses in FORBIDDEN.items()
        for one in addresses
    ],
)
def test_address_outside_public_networks_is_not_called(address: str) -> None:
    assert not may_call(address, local=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_called(address: str) -> None:
    assert may_call(address, local=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "8.8.8.8"])
def test_local_mode_calls_any_address(address: str) -> None:
    assert may_call(address, local=True)


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://hooks.example", ("https", "hooks.example", 443, "/", "hooks.example")),
        ("https://Hooks.Example:443/a/b?c=d", (*("https", "hooks.example", 443, "/a/b?c=d"), None)),
        ("HTTPS://Hooks.Example/A?b=C", ("https", "hooks.example", 443, "/A?b=C", "hooks.example")),
        ("hTTps://HOOKS.EXAMPLE:443", ("https", "hooks.example", 443, "/", "hooks.example")),
        ("https://hooks.example?x=@y", ("https", "hooks.example", 443, "/?x=@y", None)),
        ("https://8.8.8.8/x", ("https", "8.8.8.8", 443, "/x", None)),
        ("https://[2606:4700::1111]/", ("https", "2606:4700::1111", 443, "/", "[2606:4700::1111]")),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443, "/", None)),
    ],
)
def test_url_is_taken_apart(url: str, parts: tuple[Any, ...]) -> None:
    target = target_of(url, local=False)

    *expected, authority = parts
    assert [target.scheme, target.host, target.port, target.path] == expected
    assert target.authority == (authority or target.host)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/",
        "HTTP://HOOKS.EXAMPLE/",
        "HTTPS://LOCALHOST:80/",
        "HTTPS://[::FFFF:8.8.8.8]/",
        "https://hooks.example:8443/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[::ffff:8.8.8.8]/",
    ],
)
def test_url_for_local_mode_only(url: str) -> None:
    assert target_of(url, local=True)
    with pytest.raises(ValueError, match=r"must be https|no public network"):
        target_of(url, local=False)


def test_port_that_is_not_the_schemes_own_is_told_to_the_host() -> None:
    assert target_of("http://localhost:8080/", local=True).authority == "localhost:8080"
    assert target_of("http://localhost:80/", local=True).authority == "localhost"
    assert target_of("http://[::1]:8080/", local=True).authority == "[::1]:8080"


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "//hooks.example/",
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "http\u017f://hooks.example/",  # a letter that is an s in capitals
        "HTTPSS://hooks.example/",
        "https:///path",
        "https://user:hunter2@hooks.example/",  # pragma: allowlist secret
        "https://hooks.example@10.0.0.1/",
        "https://hooks.example/#fragment",
        "https://hooks.example\\@10.0.0.1/",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nHost: other",
        "https://hooks.example/\n",
        "https://bücher.example/",
        "https://hooks.example/ü",
        "https://hooks%2eexample/",
        "https://-hooks.example/",
        "https://hooks.example:0/",
        "https://hooks.example:65536/",
        "https://hooks.example:443443/",
        "https://[::1/",
        "https://[1:2:3]/",
        "https://[::1]extra/",
        "https://hooks.example/" + "a" * MAX_URL_CHARACTERS,
    ],
)
def test_url_that_parsers_could_disagree_on_is_refused(url: str, *, local: bool) -> None:
    with pytest.raises(ValueError, match=r"^(may have|is no|has an?) ") as caught:
        target_of(url, local=local)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("HTTPS://Hooks.Example/A?b=C//D", "https://hooks.example/A?b=C//D"),
        ("https://HOOKS.example:443", "https://hooks.example/"),
        ("https://hooks.example:0443/a:443", "https://hooks.example/a:443"),
        ("HTTPS://Hooks.Example?A=//B", "https://hooks.example/?A=//B"),
        ("HTTPS://[2606:4700::ABCD]/A", "https://[2606:4700::abcd]/A"),
    ],
)
def test_callback_is_kept_in_one_form(url: str, kept: str) -> None:
    assert callback_of(url, local=False) == kept
    assert target_of(url, local=False) == target_of(kept, local=False)


def test_callback_that_may_not_be_called_is_not_kept() -> None:
    with pytest.raises(ValueError, match="must be https"):
        callback_of("HTTP://hooks.example/", local=False)


def test_longest_url_is_taken() -> None:
    url = "https://hooks.example/".ljust(MAX_URL_CHARACTERS, "a")

    assert target_of(url, local=False)
