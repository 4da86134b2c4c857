"""When to try again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.backoff import (
    BACKOFF_MAX_S,
    contention_delay_s,
    parse_retry_after,
    retry_delay_s,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_S = 1_792_567_000.0
"""2026-10-21T07:16:40Z."""

RAND = st.floats(0, 1, exclude_max=True)


def parse(text: str, **headers: str) -> float | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_retry_after({"retry-after": text, **named}, now_s=NOW_S, max_s=3600)


# ------------------------------------------------------------------ between attempts


@given(st.integers(1, 10_000), RAND)
def test_retry_delay_is_jittered_over_the_whole_backoff(attempt: int, rand: float) -> None:
    delay_s = retry_delay_s(attempt, rand=rand, retry_after_s=None)

    assert 0 <= delay_s <= BACKOFF_MAX_S
    assert delay_s == pytest.approx(rand * min(BACKOFF_MAX_S, 2.0 ** min(attempt, 20)))


def test_retry_delay_doubles_up_to_its_cap() -> None:
    longest = [
        round(retry_delay_s(attempt, rand=1 - 2**-53, retry_after_s=None))
        for attempt in range(1, 10)
    ]

    assert longest == [2, 4, 8, 16, 32, 64, 120, 120, 120]


@given(st.integers(1, 50), RAND, st.floats(0, 100_000))
def test_retry_delay_is_never_under_the_vendors_wish(
    attempt: int, rand: float, wish_s: float
) -> None:
    delay_s = retry_delay_s(attempt, rand=rand, retry_after_s=wish_s)

    assert delay_s == max(wish_s, retry_delay_s(attempt, rand=rand, retry_after_s=None))


def test_retry_delay_may_exceed_our_own_cap_when_the_vendor_asks() -> None:
    assert retry_delay_s(1, rand=0.5, retry_after_s=171.0) == 171.0


# ------------------------------------------------------------------ behind a lease


@given(st.integers(1, 10_000), RAND)
def test_contention_delay_keeps_at_least_half_of_each_step(receives: int, rand: float) -> None:
    step_s = min(60.0, 2.0 ** min(receives, 10))

    delay_s = contention_delay_s(receives, rand=rand)

    assert step_s / 2 <= delay_s <= step_s


def test_contention_delay_doubles_up_to_a_minute() -> None:
    longest = [round(contention_delay_s(receives, rand=1 - 2**-53)) for receives in range(1, 9)]

    assert longest == [2, 4, 8, 16, 32, 60, 60, 60]


# ------------------------------------------------------------------ Retry-After


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 30 ", 30.0),
        ("0.000", 0.0),
        ("007", 7.0),
        ("3600", 3600.0),
        ("3601", 3600.0),
        ("99999999999", 3600.0),
    ],
)
def test_retry_after_reads_seconds(text: str, expected_s: float) -> None:
    assert parse(text) == expected_s


@pytest.mark.parametrize(
    "text",
    [
        "Wed, 21 Oct 2026 07:28:00 GMT",
        "Wednesday, 21-Oct-26 07:28:00 GMT",
        "Wed Oct 21 07:28:00 2026",
    ],
    ids=["fixed", "rfc 850", "asctime"],
)
def test_retry_after_reads_each_form_of_http_date(text: str) -> None:
    assert parse(text) == pytest.approx(680.0)


@pytest.fixture
def _time_zone_of_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_time_zone_of_tokyo")
@pytest.mark.parametrize("text", ["Wed, 21 Oct 2026 07:28:00 GMT", "Wed Oct 21 07:28:00 2026"])
def test_retry_after_dates_are_in_utc_wherever_we_run(text: str) -> None:
    assert parse(text) == pytest.approx(680.0)


def test_retry_after_in_the_past_is_now() -> None:
    assert parse("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_retry_after_far_away_is_capped() -> None:
    assert parse("Fri, 31 Dec 9999 23:59:59 GMT") == 3600.0


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "",
        " ",
        "-5",
        "+5",
        "nan",
        "NaN",
        "inf",
        "Infinity",
        "1e3",
        "0x10",
        "1.",
        ".5",
        "1.5.2",
        "1,5",
        "1_000",
        "120s",
        "120 seconds",
        "٣",
        "²",
        "1 2",
        "Wed, 32 Oct 2026 07:28:00 GMT",
        "Wed, 21 Oct 2026 25:28:00 GMT",
        "Wed, 21 Okt 2026 07:28:00 GMT",
        "21 Oct",
        "2026-10-21T07:28:00Z",
        "Wed, 21 Oct 99999999999 07:28:00 GMT",
        "\x00",
    ],
)
def test_retry_after_takes_anything_else_for_junk(text: str) -> None:
    assert parse(text) is None


@given(st.text(max_size=40) | st.from_regex(r"[A-Z][a-z]{2}, [0-9:, A-Za-z+-]{0,30}"))
def test_retry_after_never_raises(text: str) -> None:
    wait_s = parse(text, retry_after_ms=text)

    assert wait_s is None or 0 <= wait_s <= 3600


def test_retry_after_of_no_header_is_none() -> None:
    assert parse_retry_after({}, now_s=NOW_S, max_s=3600) is None


def test_retry_after_prefers_milliseconds() -> None:
    assert parse("60", retry_after_ms="4321") == 4.321


@pytest.mark.parametrize("junk", ["", "soon", "-1", "nan", "1e3"])
def test_retry_after_falls_back_from_junk_milliseconds(junk: str) -> None:
    assert parse("60", retry_after_ms=junk) == 60.0


def test_retry_after_caps_milliseconds() -> None:
    assert parse("", retry_after_ms="99999999") == 3600.0
