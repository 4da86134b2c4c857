"""Submit and fetch with the cache: its times, the modes, their budget, scopes and epochs."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.errors import (
    CacheMissError,
    DegradedError,
    ForbiddenError,
    JobNotFoundError,
    QuotaExceededError,
)
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.http import problem
from sluiceway.usecases.submit_job import Accepted, Hit

from tests.fakes.in_memory import NOW_MS, InMemoryJobs
from tests.unit.bench import Bench, incompressible
from tests.unit.gateway import Gateway
from tests.unit.samples import CATALOGUE, DAY_MS, packed, written

if TYPE_CHECKING:
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.job import Job
    from sluiceway.ports import Applied, Moved

# Fresh for 10 s, stale until 20 s, kept until 30 s.
SHORT: dict[str, Any] = {
    "soft_expires_at_epoch_ms": NOW_MS + 10_000,
    "hard_expires_at_epoch_ms": NOW_MS + 20_000,
    "kept_until_epoch_ms": NOW_MS + 30_000,
}
STALE_MS = 10_000
"""After NOW_MS the short entry is stale."""

FRESH, STALE, EXPIRED = Freshness.FRESH, Freshness.STALE, Freshness.EXPIRED
TIMES = [
    (0, FRESH, FRESH),
    (9_999, FRESH, FRESH),
    (10_000, STALE, STALE),
    (19_999, STALE, STALE),
    (20_000, None, EXPIRED),
    (29_999, None, EXPIRED),
    (30_000, None, None),
]
"""Milliseconds after NOW_MS; what is served then, in good times and in degraded mode."""


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def primed(gateway: Gateway, tenant: str = "acme", *, of: Any = None, **members: Any) -> CacheEntry:
    """An entry for the work of the request `of`, stored at NOW_MS, in an otherwise empty world."""
    job = Gateway(catalogue=gateway.catalogue).accept(tenant, **(of or {}))
    return gateway.store(job, **members)


def served(gateway: Gateway, **members: Any) -> Freshness | None:
    """How fresh the answer is; None: a job has to make one."""
    outcome = gateway.submit(**members)
    return outcome.freshness if isinstance(outcome, Hit) else None


# ------------------------------------------------------------------ times


@pytest.mark.parametrize(("after_ms", "good", "degraded"), TIMES)
def test_entry_is_served_by_its_times(
    gateway: Gateway, after_ms: int, good: Freshness | None, degraded: Freshness | None
) -> None:
    for mode, expected in ((None, good), (NOW_MS, degraded)):
        primed(gateway, **SHORT)
        gateway.world.degraded_since_epoch_ms = mode
        gateway.clock.set(NOW_MS + after_ms)

        assert served(gateway) is expected
        gateway.world.claims.clear()


@pytest.mark.parametrize(("after_ms", "good", "degraded"), TIMES)
def test_hit_is_fetched_again_by_its_times(
    gateway: Gateway, after_ms: int, good: Freshness | None, degraded: Freshness | None
) -> None:
    hit_id = f"hit_{primed(gateway, **SHORT).cache_key}"
    gateway.clock.set(NOW_MS + after_ms)

    for mode, expected in ((None, good), (NOW_MS, degraded)):
        gateway.world.degraded_since_epoch_ms = mode
        if expected is None:
            with pytest.raises(JobNotFoundError):
                gateway.fetch(hit_id)
        else:
            assert gateway.fetch(hit_id).freshness is expected


@pytest.mark.parametrize("degraded_since_ms", [None, NOW_MS])
@pytest.mark.parametrize(
    ("max_age_s", "after_ms", "hit"),
    [
        (0, 0, True),
        (0, 1, False),
        (5, 5_000, True),
        (5, 5_001, False),
        (15, 15_000, True),  # stale by then, and young enough
        (15, 15_001, False),
    ],
)
def test_max_age_is_kept_to_the_millisecond_in_degraded_mode_too(
    gateway: Gateway, degraded_since_ms: int | None, max_age_s: int, after_ms: int, *, hit: bool
) -> None:
    primed(gateway, **SHORT)
    gateway.world.degraded_since_epoch_ms = degraded_since_ms
    gateway.clock.set(NOW_MS + after_ms)

    assert (served(gateway, cache={"max_age_s": max_age_s}) is not None) is hit


def test_max_age_bounds_what_degraded_mode_serves_past_hard_expiry(gateway: Gateway) -> None:
    primed(gateway, **SHORT)
    gateway.world.degraded_since_epoch_ms = NOW_MS
    gateway.clock.set(NOW_MS + 25_000)

    assert served(gateway, cache={"max_age_s": 25}) is EXPIRED
    assert served(gateway, cache={"max_age_s": 24}) is None


def test_max_age_never_makes_an_entry_live_longer(gateway: Gateway) -> None:
    primed(gateway, **SHORT)
    gateway.clock.set(NOW_MS + 20_000)

    assert served(gateway, cache={"max_age_s": 3600}) is None


def test_reading_moves_no_expiry(gateway: Gateway) -> None:
    entry = primed(gateway, **SHORT)

    outcomes = []
    for _ in range(20):
        outcomes.append(served(gateway, cache={"mode": "use"}))
        gateway.clock.advance(s=1)

    assert outcomes == [FRESH] * 10 + [STALE] * 10
    kept = gateway.world.entries[entry.cache_key]
    assert [getattr(kept, name) for name in SHORT] == list(SHORT.values())


def test_entry_whose_object_can_not_be_read_is_a_miss_for_the_job_too(gateway: Gateway) -> None:
    for result in (Payload(ref="results/job_gone/1"), Payload(inline=b"damaged")):
        entry = primed(gateway, result=result)

        job = gateway.accept(input="hello")

        assert not entry.answers(asked_after_ms=job.asked_after_epoch_ms or 0)
        gateway.world.claims.clear()


# ------------------------------------------------------------------ modes: refresh and bypass


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
def test_mode_past_the_cache_is_a_job_although_there_is_a_fresh_entry(
    gateway: Gateway, mode: str
) -> None:
    primed(gateway)

    job = gateway.accept(cache={"mode": mode})

    assert job.cache_mode == mode
    assert gateway.cache.reads == 0


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
def test_mode_past_the_cache_needs_the_scope_bypass(gateway: Gateway, mode: str) -> None:
    primed(gateway)
    before = written(gateway.world)

    with pytest.raises(ForbiddenError):
        gateway.submit(scopes="submit read cancel admin", cache={"mode": mode})

    assert written(gateway.world) == before
    assert gateway.queue.sends == []


@pytest.mark.parametrize("cache", [{}, {"mode": "use"}, {"no_store": True}, {"max_age_s": 0}])
def test_other_wishes_need_no_more_than_a_submit(gateway: Gateway, cache: dict[str, Any]) -> None:
    assert isinstance(gateway.submit(scopes="submit", cache=cache), Accepted)


def test_forced_refresh_is_a_job_of_its_own_beside_an_equal_one(gateway: Gateway) -> None:
    running = gateway.accept()

    forced = gateway.accept(cache={"mode": "refresh"})

    assert forced.job_id != running.job_id
    assert forced.cache_key == forced.lease_key == running.cache_key


def test_forced_refresh_takes_nothing_that_was_asked_by_then(gateway: Gateway) -> None:
    gateway.clock.advance(s=7)

    job = gateway.accept(cache={"mode": "refresh"})

    assert job.asked_after_epoch_ms == NOW_MS + 7_000


@pytest.mark.parametrize("cache", [{"mode": "bypass"}, {"no_store": True}])
def test_job_that_fills_no_entry_is_worked_on_alone(
    gateway: Gateway, cache: dict[str, Any]
) -> None:
    job = gateway.accept(cache=cache)

    assert job.lease_key == f"job:{job.job_id}"


@pytest.mark.parametrize(
    "cache", [{"mode": "bypass"}, {"mode": "refresh"}, {"no_store": True}, {"mode": "use"}]
)
def test_equal_requests_with_equal_wishes_are_one_job(
    gateway: Gateway, cache: dict[str, Any]
) -> None:
    first = gateway.accept(cache=cache)

    assert gateway.submit(cache=cache) == Accepted(first, deduplicated=True)


def test_requests_that_keep_the_result_otherwise_are_different_jobs(gateway: Gateway) -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"no_store": True},
        {"mode": "refresh"},
        {"mode": "refresh", "no_store": True},
        {"mode": "bypass"},
    ]

    jobs = [gateway.accept(cache=wish) for wish in wishes]

    assert len({job.job_id for job in jobs}) == len({job.job_key for job in jobs}) == len(wishes)
    assert len({job.cache_key for job in jobs}) == 1


def test_no_store_is_answered_by_the_cache_all_the_same(gateway: Gateway) -> None:
    primed(gateway)

    assert served(gateway, cache={"no_store": True}) is FRESH


def test_job_keeps_the_wishes_about_its_result(gateway: Gateway) -> None:
    job = gateway.accept(cache={"max_age_s": 60, "ttl_s": 30, "no_store": True})

    assert (job.cache_ttl_s, job.no_store) == (30, True)
    assert job.not_older_than_epoch_ms == NOW_MS - 60_000


# ------------------------------------------------------------------ the day's budget


def test_jobs_past_the_cache_are_limited_by_the_day(gateway: Gateway) -> None:
    gateway.accept("thrifty", cache={"mode": "bypass"})
    gateway.accept("thrifty", cache={"mode": "refresh"})
    before = written(gateway.world)

    for mode in ("bypass", "refresh"):
        with pytest.raises(QuotaExceededError):
            gateway.submit("thrifty", input="one too many", cache={"mode": mode})

    assert written(gateway.world) == before
    assert gateway.world.bypasses == {("thrifty", "2026-01-01"): 2}


@pytest.mark.parametrize(
    ("into_the_day_ms", "retry_after_s"),
    [(0, 86_400), (1, 86_400), (1_000, 86_399), (DAY_MS - 1_000, 1), (DAY_MS - 1, 1)],
)
def test_who_waits_as_long_as_the_refusal_says_is_let_in(
    gateway: Gateway, into_the_day_ms: int, retry_after_s: int
) -> None:
    gateway.clock.set(NOW_MS + into_the_day_ms)
    for number in range(2):
        gateway.accept("thrifty", input=f"number {number}", cache={"mode": "bypass"})

    with pytest.raises(QuotaExceededError) as caught:
        gateway.submit("thrifty", cache={"mode": "bypass"})

    assert caught.value.retry_after_s == retry_after_s
    gateway.clock.advance(s=retry_after_s)
    assert isinstance(gateway.submit("thrifty", cache={"mode": "bypass"}), Accepted)


@pytest.mark.parametrize(("into_the_day_ms", "refused"), [(DAY_MS - 1, True), (DAY_MS, False)])
def test_budget_is_fresh_at_midnight_utc(
    gateway: Gateway, into_the_day_ms: int, *, refused: bool
) -> None:
    for number in range(2):
        gateway.accept("thrifty", input=f"number {number}", cache={"mode": "bypass"})
    gateway.clock.set(NOW_MS + into_the_day_ms)

    if refused:
        with pytest.raises(QuotaExceededError):
            gateway.submit("thrifty", cache={"mode": "bypass"})
    else:
        gateway.accept("thrifty", cache={"mode": "bypass"})


def test_budget_counts_new_jobs_past_the_cache_only(gateway: Gateway) -> None:
    primed(gateway, "thrifty", of={"input": "cached"})
    for _ in range(3):
        gateway.submit("thrifty", cache={"mode": "bypass"})  # one job and two duplicates
        gateway.submit("thrifty", input="cached")
        gateway.submit("thrifty", cache={"no_store": True})
        gateway.submit("thrifty", cache={"max_age_s": 0})

    assert sum(gateway.world.bypasses.values()) == 1


def test_budget_is_each_tenants_own(gateway: Gateway) -> None:
    for number in range(2):
        gateway.accept("thrifty", input=f"number {number}", cache={"mode": "bypass"})

    gateway.accept("acme", cache={"mode": "bypass"})


def test_budget_of_zero_is_no_limit() -> None:
    free = Tenant(bypasses_per_day=0)
    gateway = Gateway(catalogue=CATALOGUE.model_copy(update={"tenants": {"acme": free}}))

    for number in range(20):
        gateway.accept(input=f"number {number}", cache={"mode": "bypass"})

    assert gateway.world.bypasses.total() == 0


# ------------------------------------------------------------------ modes: only


@pytest.mark.parametrize(("after_ms", "good", "degraded"), TIMES)
def test_mode_only_is_served_as_any_other_and_never_makes_a_job(
    gateway: Gateway, after_ms: int, good: Freshness | None, degraded: Freshness | None
) -> None:
    primed(gateway, **SHORT)
    before = written(gateway.world)
    gateway.clock.set(NOW_MS + after_ms)

    for mode, expected in ((None, good), (NOW_MS, degraded)):
        gateway.world.degraded_since_epoch_ms = mode
        if expected is None:
            with pytest.raises(CacheMissError):
                gateway.submit(scopes="submit", cache={"mode": "only"})
        else:
            assert served(gateway, scopes="submit", cache={"mode": "only"}) is expected

    assert written(gateway.world) == before
    assert gateway.queue.sends == []


@pytest.mark.parametrize("model", ["demo-uncached", "demo-exact", "demo-chat"])
def test_mode_only_without_an_entry_is_a_miss_though_the_job_is_open(
    gateway: Gateway, model: str
) -> None:
    gateway.accept(model=model)
    before = written(gateway.world)

    with pytest.raises(CacheMissError):
        gateway.submit(model=model, cache={"mode": "only"})

    assert written(gateway.world) == before


def test_mode_only_keeps_to_its_max_age(gateway: Gateway) -> None:
    primed(gateway)
    gateway.clock.advance(ms=5_001)

    with pytest.raises(CacheMissError):
        gateway.submit(cache={"mode": "only", "max_age_s": 5})
    assert served(gateway, cache={"mode": "only", "max_age_s": 6}) is FRESH


# ------------------------------------------------------------------ scopes


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"temperature": 0}, "tenant"),
        ({"temperature": 0.0}, "tenant"),
        ({"temperature": -0.0}, "tenant"),
        ({"temperature": 1e-7}, "none"),
        ({"temperature": 1}, "none"),
        ({"temperature": None}, "none"),
        ({"temperature": "0"}, "none"),
        ({}, "none"),
    ],
    ids=str,
)
def test_model_that_keeps_exact_answers_only_caches_temperature_zero(
    gateway: Gateway, options: dict[str, Any], scope: str
) -> None:
    job = gateway.accept(model="demo-exact", options=options)
    gateway.store(job)
    gateway.end(job)

    assert job.cache_scope == scope
    assert (served(gateway, model="demo-exact", options=options) is FRESH) is (scope == "tenant")


def test_shared_entry_is_served_with_nothing_of_whose_it_was(gateway: Gateway) -> None:
    primed(gateway, "acme", of={"model": "demo-shared"})

    hit = gateway.hit("globex", model="demo-shared")

    assert json.loads(hit.result) == {"text": "a cached answer", "finish_reason": "stop"}
    assert gateway.fetch(f"hit_{hit.entry.cache_key}", "globex").found == hit.entry


# ------------------------------------------------------------------ epochs


@pytest.mark.parametrize("subject", ["model:demo-chat", "tenant:acme"])
def test_raised_epoch_makes_every_entry_a_miss(gateway: Gateway, subject: str) -> None:
    primed(gateway, asked_at_epoch_ms=NOW_MS + 60_000)
    gateway.state.invalidate(subject, now_ms=NOW_MS)

    job = gateway.accept()

    assert job.cache_key not in gateway.world.entries


@pytest.mark.parametrize("subject", ["model:demo-heavy", "tenant:globex"])
def test_epoch_of_another_changes_nothing(gateway: Gateway, subject: str) -> None:
    primed(gateway)
    gateway.state.invalidate(subject, now_ms=NOW_MS)

    assert served(gateway) is FRESH


@pytest.mark.parametrize("subject", ["model:demo-shared", "tenant:globex"])
@pytest.mark.parametrize(("asked_ms", "found"), [(-1, False), (0, False), (1, True)])
def test_hit_that_was_asked_by_its_epoch_is_not_found(
    gateway: Gateway, subject: str, asked_ms: int, *, found: bool
) -> None:
    entry = primed(
        gateway, "acme", of={"model": "demo-shared"}, asked_at_epoch_ms=NOW_MS + asked_ms
    )
    gateway.state.invalidate(subject, now_ms=NOW_MS)

    if found:
        assert gateway.fetch(f"hit_{entry.cache_key}", "globex").found == entry
    else:
        with pytest.raises(JobNotFoundError):
            gateway.fetch(f"hit_{entry.cache_key}", "globex")


@pytest.mark.parametrize(("asked_ms", "hit"), [(-1, False), (0, False), (1, True)])
def test_shared_entry_that_was_asked_by_a_tenants_epoch_is_a_miss_for_that_tenant_alone(
    gateway: Gateway, asked_ms: int, *, hit: bool
) -> None:
    primed(gateway, "acme", of={"model": "demo-shared"}, asked_at_epoch_ms=NOW_MS + asked_ms)
    gateway.state.invalidate("tenant:globex", now_ms=NOW_MS)

    assert served(gateway, model="demo-shared", tenant="acme") is FRESH
    outcome = gateway.submit("globex", model="demo-shared")
    assert isinstance(outcome, Hit) is hit
    if isinstance(outcome, Accepted):
        assert outcome.job.asked_after_epoch_ms == NOW_MS


# ------------------------------------------------------------------ degraded mode


@pytest.fixture
def degraded(gateway: Gateway) -> Gateway:
    gateway.world.degraded_since_epoch_ms = NOW_MS
    return gateway


BATCH: list[dict[str, Any]] = [{"priority": "batch"}, {"model": "demo-heavy"}]


@pytest.mark.parametrize("wish", BATCH, ids=["asked for", "heavy model"])
@pytest.mark.parametrize(
    "cache", [{}, {"mode": "refresh"}, {"mode": "bypass"}, {"no_store": True}], ids=str
)
def test_job_in_the_batch_lane_is_refused_before_anything_is_written(
    degraded: Gateway, wish: dict[str, Any], cache: dict[str, Any]
) -> None:
    with pytest.raises(DegradedError) as caught:
        degraded.submit(**wish, input=incompressible(100_000), cache=cache)

    reply = problem(caught.value, "req-1")
    assert (reply.status, reply.body["code"], reply.headers["Retry-After"]) == (
        *(503, "degraded"),
        "60",
    )
    assert written(degraded.world) == {}
    assert degraded.world.bypasses.total() == 0
    assert degraded.queue.sends == []


@pytest.mark.parametrize("wish", BATCH, ids=["asked for", "heavy model"])
@pytest.mark.parametrize(
    ("after_ms", "freshness"), [(0, FRESH), (10_000, STALE), (20_000, EXPIRED)]
)
def test_request_for_the_batch_lane_is_answered_by_an_entry(
    degraded: Gateway, wish: dict[str, Any], after_ms: int, freshness: Freshness
) -> None:
    primed(degraded, of=wish, **SHORT)
    degraded.clock.advance(ms=after_ms)

    assert served(degraded, **wish) is freshness


@pytest.mark.parametrize("wish", [{}, {"model": "demo-heavy", "priority": "interactive"}], ids=str)
def test_interactive_job_is_made_in_degraded_mode(degraded: Gateway, wish: dict[str, Any]) -> None:
    job = degraded.accept(**wish)

    assert degraded.queue.sends == [("interactive", "acme", job.job_id)]


def test_batch_job_is_made_again_when_degraded_mode_has_ended(degraded: Gateway) -> None:
    degraded.world.degraded_since_epoch_ms = None

    assert degraded.accept(priority="batch").lane == "batch"


def test_expired_entry_is_served_in_degraded_mode_and_queues_no_refresh(
    degraded: Gateway,
) -> None:
    primed(degraded, **SHORT)
    degraded.clock.advance(ms=20_000)

    hit = degraded.hit()

    assert (hit.freshness, hit.refresh) == (EXPIRED, None)
    assert degraded.queue.sends == []


# ------------------------------------------------------------------ what max_age_s costs


@pytest.mark.parametrize("degraded_since_ms", [None, NOW_MS])
@pytest.mark.parametrize(("after_ms", "good", "degraded"), TIMES)
def test_max_age_that_refuses_an_entry_counts_where_the_entry_would_have_answered(
    gateway: Gateway,
    degraded_since_ms: int | None,
    after_ms: int,
    good: Freshness | None,
    degraded: Freshness | None,
) -> None:
    primed(gateway, stored_at_epoch_ms=NOW_MS - 1, **SHORT)
    gateway.world.degraded_since_epoch_ms = degraded_since_ms
    gateway.clock.set(NOW_MS + after_ms)

    outcome = gateway.submit(scopes="submit", cache={"max_age_s": 0})

    would_have = good if degraded_since_ms is None else degraded
    assert isinstance(outcome, Accepted)
    assert gateway.world.bypasses.total() == int(would_have is not None)


def test_max_age_that_refuses_entries_is_limited_by_the_day(gateway: Gateway) -> None:
    for number in range(3):
        primed(gateway, "thrifty", of={"input": f"number {number}"})
    gateway.clock.advance(s=10)
    for number in range(2):
        gateway.accept("thrifty", input=f"number {number}", cache={"max_age_s": 5})

    with pytest.raises(QuotaExceededError):
        gateway.submit("thrifty", input="number 2", cache={"max_age_s": 5})
    assert isinstance(gateway.submit("thrifty", input="number 2"), Hit)


@pytest.mark.parametrize(
    "cache", [{"max_age_s": 10}, {"max_age_s": 5, "mode": "only"}], ids=["young enough", "only"]
)
def test_max_age_that_makes_no_job_counts_nothing(gateway: Gateway, cache: dict[str, Any]) -> None:
    primed(gateway)
    gateway.clock.advance(s=10)

    with suppress(CacheMissError):
        gateway.submit(cache=cache)

    assert gateway.world.bypasses.total() == 0


def test_max_age_on_an_entry_that_the_tenants_epoch_cut_off_counts_nothing(
    gateway: Gateway,
) -> None:
    primed(gateway, "acme", of={"model": "demo-shared"})
    gateway.state.invalidate("tenant:globex", now_ms=NOW_MS)
    gateway.clock.advance(s=10)

    gateway.accept("globex", model="demo-shared", cache={"max_age_s": 5})

    assert gateway.world.bypasses.total() == 0


# ------------------------------------------------------------------ an invalidated key


def invalidated(gateway: Gateway, older: Job) -> None:
    """The key of this job's work was invalidated a second later."""
    gateway.cache.invalidate(older.cache_key, now_ms=gateway.clock.advance(s=1))
    gateway.clock.advance(s=1)


@pytest.mark.parametrize("cache", [{}, {"no_store": True}, {"max_age_s": 60}], ids=str)
def test_request_after_the_invalidation_of_its_key_joins_no_job_from_before(
    gateway: Gateway, cache: dict[str, Any]
) -> None:
    older = gateway.accept(cache=cache)
    invalidated(gateway, older)

    newer = gateway.submit(cache=cache)
    gateway.clock.advance(s=1)
    equal = [gateway.submit(cache=cache) for _ in range(3)]

    assert isinstance(newer, Accepted)
    assert not newer.deduplicated
    assert newer.job.job_id != older.job_id
    assert newer.job.cache_key == older.cache_key
    assert equal == [Accepted(newer.job, deduplicated=True)] * 3
    assert gateway.world.open_jobs("acme") == 2


def test_each_invalidation_of_a_key_ends_joining_anew(gateway: Gateway) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(gateway.accept())
        invalidated(gateway, jobs[-1])

    assert len({job.job_id for job in jobs}) == 3


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
def test_invalidation_of_a_key_leaves_jobs_past_the_cache_as_they_join(
    gateway: Gateway, mode: str
) -> None:
    older = gateway.accept(cache={"mode": mode})
    invalidated(gateway, older)

    joined = gateway.submit(cache={"mode": mode})

    assert isinstance(joined, Accepted)
    assert (joined.job.job_id, joined.deduplicated) == (older.job_id, True)


def test_job_from_before_an_invalidation_leaves_its_key_to_the_job_from_after_it(
    gateway: Gateway,
) -> None:
    bench = Bench(world=gateway.world, clock=gateway.clock)
    older = gateway.accept()
    invalidated(gateway, older)
    newer = gateway.accept()

    bench.run(older)
    between = gateway.submit(cache={"mode": "use"})
    with pytest.raises(CacheMissError):
        gateway.submit(cache={"mode": "only"})
    bench.run(newer)

    assert between == Accepted(newer, deduplicated=True)
    assert bench.vendors.per_key == {older.job_id: 1, newer.job_id: 1}
    for mode in ("use", "only"):
        hit = gateway.hit(cache={"mode": mode})
        assert hit.entry.asked_at_epoch_ms > older.created_at_epoch_ms


# ------------------------------------------------------------------ the guess of the fence


@pytest.mark.parametrize(
    "after_ms", [-5_000, 20_000, 30_000], ids=["too old for who asks", "expired", "gone"]
)
def test_job_for_a_key_that_had_an_entry_guesses_its_fence(gateway: Gateway, after_ms: int) -> None:
    primed(gateway, fence=7, **{**SHORT, "stored_at_epoch_ms": NOW_MS - 10_000})
    gateway.clock.set(NOW_MS + after_ms)

    assert gateway.accept(cache={"max_age_s": 1}).fence == 7


@pytest.mark.parametrize("cache", [{"mode": "bypass"}, {"no_store": True}], ids=str)
def test_job_that_fills_no_entry_guesses_no_fence(gateway: Gateway, cache: dict[str, Any]) -> None:
    primed(gateway, fence=7, **SHORT)
    gateway.clock.advance(ms=20_000)

    assert gateway.accept(cache=cache).fence == 0


# ------------------------------------------------------------------ early refresh


@pytest.mark.parametrize(
    ("model", "rand", "refreshed"),
    [
        ("demo-chat", 1 - 2**-53, False),
        ("demo-early", 0.0, False),
        ("demo-early", 0.5, False),
        ("demo-early", 0.9, True),
    ],
)
def test_fresh_entry_is_refreshed_early_only_where_the_model_wants_it(
    gateway: Gateway, model: str, rand: float, *, refreshed: bool
) -> None:
    # Two seconds are left; the vendor takes one, and so these readers look 0, 0.7 or 2.3 s ahead.
    primed(gateway, of={"model": model}, upstream_latency_ms=1_000, **SHORT)
    gateway.clock.advance(s=8)
    gateway.rand = rand

    hit = gateway.hit(model=model)

    assert hit.freshness is FRESH
    assert (hit.refresh is not None) is refreshed
    assert len(gateway.queue.sends) == int(refreshed)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    "value", [2**60, -(2**60), 0.0, 0, -0.0, 1e-7, 1.0, 1, True, False, None, "", "0", [], {}]
)
def test_hit_keeps_value_and_type(gateway: Gateway, value: Any) -> None:
    primed(gateway, result=packed({"text": "", "content": [value]}))

    assert repr(json.loads(gateway.hit().result)["content"]) == repr([value])


# ------------------------------------------------------------------ forced refreshes meet


def test_forced_refresh_joins_one_that_has_not_begun() -> None:
    gateway = Gateway()
    first = gateway.accept(cache={"mode": "refresh"})

    again = gateway.submit(cache={"mode": "refresh"})

    assert isinstance(again, Accepted)
    assert (again.job.job_id, again.deduplicated) == (first.job_id, True)


def test_forced_refresh_that_joins_raises_what_the_job_takes_for_an_answer() -> None:
    gateway = Gateway()
    first = gateway.accept(cache={"mode": "refresh"})
    gateway.clock.advance(s=60)

    again = gateway.submit(cache={"mode": "refresh"})

    assert isinstance(again, Accepted)
    assert again.job.job_id == first.job_id
    assert again.job.asked_after_epoch_ms == first.created_at_epoch_ms + 60_000
    assert gateway.world.jobs["acme", first.job_id] == again.job


@pytest.mark.parametrize("mode", ["use", "bypass"])
def test_duplicate_that_is_no_forced_refresh_leaves_the_job_as_it_is(mode: str) -> None:
    gateway = Gateway()
    first = gateway.accept(cache={"mode": mode})
    gateway.clock.advance(s=60)

    gateway.submit(cache={"mode": mode})

    assert gateway.world.jobs["acme", first.job_id] == first


def test_forced_refresh_whose_holder_begins_before_it_joins_is_a_job_of_its_own() -> None:
    class BeginsMeanwhile(InMemoryJobs):
        def ask_again(self, job: Job, *, asked_after_ms: int) -> Applied | Moved:
            begun = replace(job, status=JobStatus.PROCESSING, attempts=1, attempts_total=1)
            gateway.world.jobs[job.tenant, job.job_id] = begun
            return super().ask_again(job, asked_after_ms=asked_after_ms)

    gateway = Gateway()
    first = gateway.accept(cache={"mode": "refresh"})
    gateway.jobs = BeginsMeanwhile(gateway.world, clock=gateway.clock)

    again = gateway.submit(cache={"mode": "refresh"})

    assert isinstance(again, Accepted)
    assert again.job.job_id != first.job_id
    assert gateway.world.claims[first.job_key].job_id == again.job.job_id


def test_forced_refresh_joins_none_whose_call_has_begun_and_is_joined_itself() -> None:
    gateway = Gateway()
    begun = gateway.accept(cache={"mode": "refresh"})
    gateway.world.jobs["acme", begun.job_id] = replace(begun, attempts=1, attempts_total=1)

    second = gateway.submit(cache={"mode": "refresh"})
    third = gateway.submit(cache={"mode": "refresh"})

    assert isinstance(second, Accepted)
    assert isinstance(third, Accepted)
    assert second.job.job_id != begun.job_id
    assert (second.deduplicated, third.deduplicated) == (False, True)
    assert third.job.job_id == second.job.job_id


# ------------------------------------------------------------------ between look and claim


class SlowJobs(InMemoryJobs):
    """Between the look into the cache and the claim an equal job ends."""

    def __init__(self, gateway: Gateway, passes_ms: int) -> None:
        super().__init__(gateway.world, clock=gateway.clock)
        self._gateway, self._passes_ms = gateway, passes_ms

    def submit(self, job: Job, **named: Any) -> Any:
        self._gateway.clock.advance(ms=self._passes_ms)
        self._gateway.store(job, stored_at_epoch_ms=self._gateway.clock.now_ms())
        return super().submit(job, **named)


@pytest.mark.parametrize(("passes_ms", "found"), [(100, True), (99, False)])
def test_answer_that_was_stored_while_a_slow_submit_claimed_is_given(
    passes_ms: int, *, found: bool
) -> None:
    gateway = Gateway()
    gateway.jobs = SlowJobs(gateway, passes_ms)

    outcome = gateway.submit()

    assert isinstance(outcome, Hit) is found
    (job,) = gateway.world.jobs.values()
    assert (job.status, job.result_source) == (
        (JobStatus.COMPLETED, "cache") if found else (JobStatus.QUEUED, None)
    )
    assert len(gateway.queue.sends) == int(not found)
    assert gateway.world.open_jobs("acme") == len(gateway.world.claims) == int(not found)


def test_slow_forced_submit_takes_no_answer_that_it_does_not_want() -> None:
    gateway = Gateway()
    gateway.jobs = SlowJobs(gateway, 1_000)

    assert isinstance(gateway.submit(cache={"mode": "bypass"}), Accepted)


def test_slow_submit_takes_no_answer_from_before_the_tenants_invalidation() -> None:
    gateway = Gateway()
    gateway.world.epochs["tenant:acme"] = NOW_MS + 1_000
    gateway.jobs = SlowJobs(gateway, 500)

    assert isinstance(gateway.submit(), Accepted)
