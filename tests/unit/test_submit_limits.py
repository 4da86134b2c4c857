"""What a tenant may submit in a minute, and what a job may cost."""

from __future__ import annotations

import pytest
from sluiceway.domain.catalogue import Model, Price, Tenant
from sluiceway.domain.errors import CostLimitError, QuotaExceededError, RateLimitedError
from sluiceway.domain.gate import ANSWER_TOKENS
from sluiceway.domain.job import cancelled, started
from sluiceway.usecases.submit_job import Accepted, Hit

from tests.fakes.in_memory import NOW_MS
from tests.unit.gateway import Gateway
from tests.unit.samples import CATALOGUE, DAY_MS, written

MODEL = CATALOGUE.models["demo-chat"]
TODAY = ("acme", "2026-01-01")


def limited(per_minute: int) -> Gateway:
    tenant = Tenant(requests_per_minute=per_minute)
    return Gateway(catalogue=CATALOGUE.model_copy(update={"tenants": {"acme": tenant}}))


def priced(**members: object) -> Gateway:
    model = MODEL.model_copy(update=members)
    return Gateway(catalogue=CATALOGUE.model_copy(update={"models": {"demo-chat": model}}))


def submit(gateway: Gateway, number: int) -> Accepted:
    outcome = gateway.submit(input=f"number {number}")
    assert isinstance(outcome, Accepted)
    return outcome


# ------------------------------------------------------------------------------------ rate


def test_tenant_may_submit_exactly_as_often_as_its_rate_says() -> None:
    gateway = limited(10)

    left = [submit(gateway, number).rate for number in range(10)]

    assert [rate.left for rate in left if rate] == list(range(9, -1, -1))
    with pytest.raises(RateLimitedError):
        submit(gateway, 11)
    assert len(gateway.world.jobs) == 10


def test_refused_tenant_is_told_when_its_minute_is_over_and_is_right() -> None:
    gateway = limited(1)
    gateway.clock.set(NOW_MS + 59_001)
    submit(gateway, 1)
    with pytest.raises(RateLimitedError) as refused:
        submit(gateway, 2)

    assert refused.value.retry_after_s == 1
    gateway.clock.advance(s=refused.value.retry_after_s)
    submit(gateway, 2)


def test_tenants_have_a_minute_of_their_own() -> None:
    gateway = limited(1)
    submit(gateway, 1)

    assert isinstance(gateway.submit("globex", input="number 1"), Accepted)


def test_hit_counts_in_no_rate_and_a_tenant_without_one_is_told_none() -> None:
    gateway = limited(1)
    job = submit(gateway, 1).job
    gateway.store(job)
    gateway.end(job)

    assert isinstance(gateway.submit(input="number 1"), Hit)
    assert submit(limited(0), 1).rate is None


# ------------------------------------------------------------------------------------ cost


def test_job_that_no_minute_of_the_model_has_room_for_is_refused() -> None:
    body = len('{"input":"hello","options":{}}') // 4 + 1

    assert submit(priced(tokens_per_minute=2 * ANSWER_TOKENS), 1)
    with pytest.raises(CostLimitError):
        priced(tokens_per_minute=ANSWER_TOKENS + body - 1).submit(input="hello")
    tight = priced(tokens_per_minute=ANSWER_TOKENS + body)
    assert isinstance(tight.submit(input="hello"), Accepted)


@pytest.mark.parametrize(("max_cost", "accepted"), [(0.01, True), (0.0099, False), (0, False)])
def test_max_cost_is_held_against_the_answer_that_is_asked_for(
    max_cost: float, *, accepted: bool
) -> None:
    gateway = priced(price=Price(output_per_million=100.0))
    body = {"input": "hello", "options": {"max_tokens": 100}, "max_cost": max_cost}

    if accepted:
        assert isinstance(gateway.submit(**body), Accepted)
    else:
        with pytest.raises(CostLimitError):
            gateway.submit(**body)
        assert gateway.world.jobs == {}


def test_max_cost_is_no_part_of_what_is_asked() -> None:
    gateway = Gateway()
    first = gateway.accept(input="hello")

    again = gateway.submit(input="hello", max_cost=5.0)

    assert isinstance(again, Accepted)
    assert again.job.job_id == first.job_id


def test_model_without_limits_refuses_nothing() -> None:
    assert Model(vendor="v", vendor_model="m", version="1").tokens_per_minute == 0
    assert isinstance(priced(price=Price()).submit(input="x" * 100_000, max_cost=0), Accepted)


# ------------------------------------------------------------------------------------ the day


def budgeted(price: Price | None = None, **budgets: float) -> Gateway:
    """Acme has these budgets; an answer of 100 tokens costs 0.01."""
    model = MODEL.model_copy(update={"price": price or Price(output_per_million=100.0)})
    update = {"tenants": {"acme": Tenant(**budgets)}, "models": {"demo-chat": model}}  # type: ignore[arg-type]
    return Gateway(catalogue=CATALOGUE.model_copy(update=update))


def ask(gateway: Gateway, number: int, **members: object) -> Accepted | Hit:
    return gateway.submit(input=f"number {number}", options={"max_tokens": 100}, **members)


def test_jobs_per_day_lets_so_many_in_until_the_day_is_over() -> None:
    gateway = budgeted(jobs_per_day=3)
    gateway.clock.set(NOW_MS + DAY_MS - 60_000)
    for number in range(3):
        ask(gateway, number)
    before = written(gateway.world)

    with pytest.raises(QuotaExceededError, match="jobs_per_day") as refused:
        ask(gateway, 3)

    assert written(gateway.world) == before
    assert refused.value.retry_after_s == 60
    gateway.clock.advance(s=60)
    assert isinstance(ask(gateway, 3), Accepted)


@pytest.mark.parametrize(
    ("budgets", "members"),
    [
        ({"jobs_per_day": 2}, {}),
        ({"cost_per_day": 0.025}, {}),
        ({"bypasses_per_day": 2}, {"cache": {"mode": "bypass"}}),
    ],
    ids=["jobs", "cost", "bypasses"],
)
@pytest.mark.parametrize("before_ms", [1_000, 1])
def test_budget_that_is_spent_before_midnight_is_whole_after_it(
    budgets: dict[str, float], members: dict[str, object], before_ms: int
) -> None:
    gateway = budgeted(**budgets)
    gateway.clock.set(NOW_MS + DAY_MS - before_ms)  # 23:59:59
    for number in range(2):
        ask(gateway, number, **members)

    with pytest.raises(QuotaExceededError) as refused:
        ask(gateway, 2, **members)

    assert refused.value.retry_after_s == 1
    gateway.clock.set(NOW_MS + DAY_MS + 1_000)  # 00:00:01
    for number in (2, 3):
        ask(gateway, number, **members)
    with pytest.raises(QuotaExceededError):
        ask(gateway, 4, **members)


def test_duplicates_and_hits_are_in_no_budget() -> None:
    gateway = budgeted(jobs_per_day=1, cost_per_day=0.01)
    job = gateway.accept(options={"max_tokens": 100})
    assert gateway.accept(options={"max_tokens": 100}).job_id == job.job_id
    gateway.store(job)

    assert isinstance(gateway.submit(options={"max_tokens": 100}), Hit)
    assert gateway.world.day_jobs == {TODAY: 1}
    assert gateway.world.day_cost_nanos == {TODAY: 10_000_000}


def test_cost_per_day_reserves_what_the_jobs_may_cost() -> None:
    gateway = budgeted(cost_per_day=0.02)

    jobs = [ask(gateway, number) for number in (1, 2)]

    with pytest.raises(QuotaExceededError, match="cost_per_day") as refused:
        ask(gateway, 3)
    reserves = {one.job.cost_reserved_nanos for one in jobs if isinstance(one, Accepted)}
    assert reserves == {10_000_000}
    assert gateway.world.day_cost_nanos == {TODAY: 20_000_000}
    assert refused.value.retry_after_s == DAY_MS // 1000


def test_reserve_of_a_job_that_is_cancelled_before_its_start_is_free_again() -> None:
    gateway = budgeted(cost_per_day=0.01)
    first = ask(gateway, 1)
    assert isinstance(first, Accepted)

    gateway.jobs.apply(first.job, cancelled(first.job, now_ms=NOW_MS))

    assert isinstance(ask(gateway, 2), Accepted)


def test_reserve_of_a_job_that_is_cancelled_at_work_is_spent() -> None:
    gateway = budgeted(cost_per_day=0.01)
    first = ask(gateway, 1)
    assert isinstance(first, Accepted)
    job = started(first.job, fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 1)

    gateway.jobs.apply(first.job, job)
    gateway.jobs.apply(job, cancelled(job, now_ms=NOW_MS))

    with pytest.raises(QuotaExceededError, match="cost_per_day"):
        ask(gateway, 2)


def test_job_that_no_day_has_room_for_is_refused_for_good() -> None:
    with pytest.raises(CostLimitError, match="cost_per_day"):
        ask(budgeted(cost_per_day=0.009), 1)

    assert isinstance(ask(budgeted(cost_per_day=0.01), 1), Accepted)


def test_job_of_a_tenant_without_a_budget_of_costs_reserves_nothing() -> None:
    gateway = budgeted(jobs_per_day=5)

    accepted = ask(gateway, 1, max_cost=1.0)

    assert isinstance(accepted, Accepted)
    assert accepted.job.cost_reserved_nanos is None
    assert not gateway.world.day_cost_nanos.total()


def test_refresh_behind_a_reader_reserves_nothing() -> None:
    gateway = budgeted(cost_per_day=0.01, jobs_per_day=1)
    job = gateway.accept(options={"max_tokens": 100})
    gateway.store(job, soft_expires_at_epoch_ms=NOW_MS)

    hit = gateway.hit(options={"max_tokens": 100})

    assert hit.refresh is not None
    assert hit.refresh.cost_reserved_nanos is None
    assert gateway.world.day_jobs == {TODAY: 1}
    assert gateway.world.day_cost_nanos == {TODAY: 10_000_000}


def test_budgets_of_a_tenant_without_any_count_nothing() -> None:
    gateway = budgeted(bypasses_per_day=0)
    ask(gateway, 1, cache={"mode": "bypass"})

    world = gateway.world
    assert not any((+world.day_jobs, +world.day_cost_nanos, +world.bypasses))
