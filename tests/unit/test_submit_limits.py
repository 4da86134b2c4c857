"""What a tenant may submit in a minute, and what a job may cost."""

from __future__ import annotations

import pytest
from sluiceway.domain.catalogue import Model, Price, Tenant
from sluiceway.domain.errors import CostLimitError, RateLimitedError
from sluiceway.domain.gate import ANSWER_TOKENS
from sluiceway.usecases.submit_job import Accepted, Hit

from tests.fakes.in_memory import NOW_MS
from tests.unit.gateway import Gateway
from tests.unit.samples import CATALOGUE

MODEL = CATALOGUE.models["demo-chat"]


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
