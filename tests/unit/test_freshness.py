"""When a cache entry answers, and whom; how long it lives; when it is worth a refresh."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.catalogue import MAX_TTL_S
from sluiceway.domain.freshness import CacheEntry, Freshness, Lifetime, cool_down_ms, lifetime

from tests.fakes.in_memory import NOW_MS
from tests.unit.samples import an_entry

MINUTE_MS = 60_000
SECONDS = st.floats(min_value=0.001, max_value=MAX_TTL_S)


def a_short_entry(**members: int | None) -> CacheEntry:
    """Fresh for 10 s, stale until 20 s, kept until 30 s."""
    return an_entry(
        soft_expires_at_epoch_ms=NOW_MS + 10_000,
        hard_expires_at_epoch_ms=NOW_MS + 20_000,
        kept_until_epoch_ms=NOW_MS + 30_000,
        **members,
    )


# ------------------------------------------------------------------ the three times


@pytest.mark.parametrize(
    ("after_ms", "freshness"),
    [
        (0, Freshness.FRESH),
        (9_999, Freshness.FRESH),
        (10_000, Freshness.STALE),
        (19_999, Freshness.STALE),
        (20_000, Freshness.EXPIRED),
        (29_999, Freshness.EXPIRED),
        (30_000, Freshness.GONE),
    ],
)
def test_entry_goes_from_fresh_to_gone_at_its_times(after_ms: int, freshness: Freshness) -> None:
    assert a_short_entry().freshness(NOW_MS + after_ms) is freshness


def test_entry_that_the_table_kept_past_its_ttl_is_gone() -> None:
    entry = a_short_entry(ttl_epoch_s=NOW_MS // 1000 + 30)

    assert entry.freshness(NOW_MS + 3_600_000) is Freshness.GONE


def test_entry_is_not_moved_by_reading() -> None:
    entry = an_entry()
    before = [getattr(entry, field.name) for field in fields(CacheEntry)]

    for second in range(100):
        entry.freshness(NOW_MS + second * 1000)
        entry.answers(not_older_than_ms=NOW_MS)
        entry.may_be_refreshed(NOW_MS)

    assert [getattr(entry, field.name) for field in fields(CacheEntry)] == before


# ------------------------------------------------------------------ whom it answers


@pytest.mark.parametrize(("stored_ms", "answers"), [(-1, False), (0, True), (1, True)])
def test_entry_answers_who_wants_it_no_older_than_it_is(stored_ms: int, *, answers: bool) -> None:
    entry = an_entry(stored_at_epoch_ms=NOW_MS + stored_ms)

    assert entry.answers(not_older_than_ms=NOW_MS) is answers


@pytest.mark.parametrize(("asked_ms", "answers"), [(-1, False), (0, False), (1, True)])
def test_entry_answers_who_wants_it_asked_later_only_when_it_was(
    asked_ms: int, *, answers: bool
) -> None:
    entry = an_entry(asked_at_epoch_ms=NOW_MS + asked_ms, stored_at_epoch_ms=NOW_MS + 9_000)

    assert entry.answers(asked_after_ms=NOW_MS) is answers


@pytest.mark.parametrize(
    ("scope", "tenant", "allow_shared", "readable"),
    [
        ("tenant", "acme", True, True),
        ("tenant", "globex", True, False),
        ("shared", "globex", True, True),
        ("shared", "globex", False, False),
        ("shared", "acme", False, True),
        ("none", "globex", True, False),
        ("tenant", "", True, False),
        ("tenant", "ACME", True, False),
    ],
)
def test_entry_is_readable_by_its_owner_and_by_those_it_is_shared_with(
    scope: str, tenant: str, *, allow_shared: bool, readable: bool
) -> None:
    entry = an_entry(scope=scope)

    assert entry.readable_by(tenant, allow_shared=allow_shared) is readable


# ------------------------------------------------------------------ what it tells


def test_entry_tells_its_age_and_what_is_left_in_whole_seconds() -> None:
    entry = a_short_entry()

    told = [(entry.age_s(NOW_MS + ms), entry.ttl_s(NOW_MS + ms)) for ms in (0, 999, 1_000, 4_500)]

    assert told == [(0, 10), (0, 9), (1, 9), (4, 5)]


def test_entry_is_never_younger_than_new() -> None:
    assert a_short_entry().age_s(NOW_MS - 5_000) == 0


@pytest.mark.parametrize(("after_ms", "ttl_s"), [(10_000, 0), (10_001, -1), (15_000, -5)])
def test_stale_entry_says_how_long_it_is_stale(after_ms: int, ttl_s: int) -> None:
    # RFC 9211 section 2.5: a negative ttl is that of a response that was stale when it was used.
    assert a_short_entry().ttl_s(NOW_MS + after_ms) == ttl_s


# ------------------------------------------------------------------ lifetimes


def a_lifetime(**members: float | None) -> Lifetime:
    times = {"soft_ttl_s": 3600, "hard_ttl_s": 86_400, "stale_if_error_s": 600, "jitter": 0.1}
    return lifetime(NOW_MS, **{**times, "rand": 0.0, **members})  # type: ignore[arg-type]


def seconds(times: Lifetime) -> tuple[float, float, float]:
    """From NOW_MS."""
    return (
        (times.soft_expires_at_epoch_ms - NOW_MS) / 1000,
        (times.hard_expires_at_epoch_ms - NOW_MS) / 1000,
        (times.kept_until_epoch_ms - NOW_MS) / 1000,
    )


@pytest.mark.parametrize(
    ("jitter", "rand", "soft_s", "hard_s"),
    [
        (0.1, 0.0, 3600, 86_400),
        (0.1, 0.5, 3420, 82_080),
        (0.1, 1 - 2**-53, 3240, 77_760),
        (0.0, 0.9, 3600, 86_400),
    ],
)
def test_jitter_shortens_soft_and_hard_alike_and_never_the_stale_time(
    jitter: float, rand: float, soft_s: float, hard_s: float
) -> None:
    times = a_lifetime(jitter=jitter, rand=rand)

    assert seconds(times) == (soft_s, hard_s, hard_s + 600)


@pytest.mark.parametrize(
    ("ttl_s", "expected"),
    [
        (None, (3600, 86_400, 87_000)),
        (1, (1, 1, 1)),
        (3599, (3599, 3599, 3599)),
        (3601, (3600, 3601, 3601)),
        (86_401, (3600, 86_400, 86_401)),
        (1_000_000, (3600, 86_400, 87_000)),
    ],
)
def test_ttl_of_the_request_only_shortens_and_leaves_nothing_for_degraded_mode(
    ttl_s: int | None, expected: tuple[int, int, int]
) -> None:
    assert seconds(a_lifetime(ttl_s=ttl_s)) == expected


@given(
    soft_s=SECONDS,
    longer_s=st.floats(0, MAX_TTL_S),
    stale_s=st.floats(0, MAX_TTL_S),
    jitter=st.floats(0, 1, exclude_max=True),
    rand=st.floats(0, 1, exclude_max=True),
    ttl_s=st.none() | st.integers(1, 2 * MAX_TTL_S),
)
def test_times_are_in_order_and_within_what_model_and_request_allow(
    soft_s: float, longer_s: float, stale_s: float, jitter: float, rand: float, ttl_s: int | None
) -> None:
    hard_s = soft_s + longer_s

    soft, hard, kept = seconds(
        lifetime(
            NOW_MS,
            soft_ttl_s=soft_s,
            hard_ttl_s=hard_s,
            stale_if_error_s=stale_s,
            jitter=jitter,
            rand=rand,
            ttl_s=ttl_s,
        )
    )

    half_ms = 0.0005  # times are whole milliseconds
    bound = math.inf if ttl_s is None else ttl_s
    assert 0 <= soft <= hard <= kept <= bound
    assert min(soft_s * (1 - jitter), bound) - half_ms <= soft <= soft_s + half_ms
    assert min(hard_s * (1 - jitter), bound) - half_ms <= hard <= hard_s + half_ms
    assert kept <= hard_s + stale_s + half_ms


# ------------------------------------------------------------------ refreshes


@pytest.mark.parametrize("member", ["refresh_until_epoch_ms", "refresh_after_epoch_ms"])
@pytest.mark.parametrize(("after_ms", "may"), [(-1, False), (0, True)])
def test_entry_may_be_refreshed_when_the_last_refresh_and_its_cool_down_are_over(
    member: str, after_ms: int, *, may: bool
) -> None:
    entry = a_short_entry(**{member: NOW_MS + 60_000})

    assert entry.may_be_refreshed(NOW_MS + 60_000 + after_ms) is may


def test_entry_that_was_never_refreshed_may_be() -> None:
    assert a_short_entry().may_be_refreshed(NOW_MS)


@pytest.mark.parametrize(
    ("failures", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (6, 15), (10_000, 15)]
)
def test_cool_down_doubles_with_each_failure_up_to_a_quarter_of_an_hour(
    failures: int, minutes: int
) -> None:
    assert cool_down_ms(failures) == minutes * MINUTE_MS


@pytest.mark.parametrize("rand", [0.0, 0.5, 1 - 2**-53])
def test_entry_is_never_refreshed_early_without_a_beta(rand: float) -> None:
    entry = a_short_entry(upstream_latency_ms=60_000)

    assert not entry.early(NOW_MS + 9_999, beta=0.0, rand=rand)


@pytest.mark.parametrize(
    ("left_ms", "beta", "rand", "early"),
    [
        # The latency is a second; the logarithms of 0.5 and 0.1 are -0.693 and -2.303.
        (693, 1.0, 0.5, True),
        (694, 1.0, 0.5, False),
        (1_386, 2.0, 0.5, True),
        (1_387, 2.0, 0.5, False),
        (2_302, 1.0, 0.9, True),
        (2_303, 1.0, 0.9, False),
        (1, 1.0, 0.0, False),
    ],
)
def test_entry_is_refreshed_early_by_the_xfetch_rule(
    left_ms: int, beta: float, rand: float, *, early: bool
) -> None:
    entry = a_short_entry(upstream_latency_ms=1_000)

    assert entry.early(NOW_MS + 10_000 - left_ms, beta=beta, rand=rand) is early


@pytest.mark.parametrize(("after_ms", "early"), [(4_999, False), (5_000, True)])
@pytest.mark.parametrize("latency_ms", [60_000, 10**7])
def test_entry_is_never_refreshed_before_half_of_its_fresh_life_is_over(
    latency_ms: int, after_ms: int, *, early: bool
) -> None:
    entry = a_short_entry(upstream_latency_ms=latency_ms)

    assert entry.early(NOW_MS + after_ms, beta=10.0, rand=1 - 2**-53) is early


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 10**7), st.floats(0, 10))
def test_xfetch_rule_takes_any_number_it_may_get(rand: float, latency_ms: int, beta: float) -> None:
    entry = a_short_entry(upstream_latency_ms=latency_ms)

    entry.early(NOW_MS, beta=beta, rand=rand)
    assert entry.early(NOW_MS + 10_000, beta=beta, rand=rand) is (beta > 0)
