"""Submits against the picture of the backlog: a full queue, and what a dry run tells."""

from __future__ import annotations

from typing import Any

import pytest
from sluiceway.domain.backlog import TELLS_FOR_MS, Backlog, Group, Pace, Place
from sluiceway.domain.errors import CostLimitError, QueueFullError, StoreBusyError
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import Job
from sluiceway.usecases.submit_job import Accepted, DryRun

from tests.fakes.in_memory import NOW_MS, InMemoryBacklogs
from tests.unit.gateway import Gateway
from tests.unit.samples import CATALOGUE

FULL = 100


def waits(number: int, **members: Any) -> Backlog:
    """So many jobs of others."""
    others = Group("batch", "demo-chat", "globex", waiting=number, oldest_epoch_ms=NOW_MS)
    paces = {"demo-chat": Pace(2_000.0, 2_000)}
    return Backlog(NOW_MS, (others,), paces, **members)


def a_gateway(backlog: Backlog, *, full: int = FULL, retry_after_max_s: float = 3_600) -> Gateway:
    service = CATALOGUE.service.model_copy(
        update={"queue_full": full, "retry_after_max_s": retry_after_max_s}
    )
    gateway = Gateway(catalogue=CATALOGUE.model_copy(update={"service": service}))
    gateway.world.backlog = backlog
    return gateway


# ------------------------------------------------------------------------------------ full


@pytest.mark.parametrize("backlog", [waits(FULL), waits(1, besides={"interactive": FULL - 1})])
def test_full_queue_takes_no_new_job(backlog: Backlog) -> None:
    gateway = a_gateway(backlog)

    with pytest.raises(QueueFullError):
        gateway.submit()

    assert gateway.world.jobs == {}


@pytest.mark.parametrize(
    ("backlog", "full"),
    [(waits(FULL - 1), FULL), (waits(10**6), 0), (Backlog(), FULL)],
    ids=["room", "no limit", "no picture"],
)
def test_queue_with_room_takes_the_job(backlog: Backlog, full: int) -> None:
    assert isinstance(a_gateway(backlog, full=full).submit(), Accepted)


def test_old_picture_fills_no_queue() -> None:
    gateway = a_gateway(waits(FULL))
    gateway.clock.advance(ms=TELLS_FOR_MS + 1)

    assert isinstance(gateway.submit(), Accepted)


@pytest.mark.parametrize(
    ("waiting", "told_s"),
    [(10_000, 60), (FULL + 1, 6), (FULL, 5)],
    ids=["most", "some", "least"],
)
def test_full_queue_is_to_be_asked_again_within_bounds(waiting: int, told_s: int) -> None:
    gateway = a_gateway(waits(waiting), retry_after_max_s=60)

    with pytest.raises(QueueFullError) as refused:
        gateway.submit()

    assert refused.value.retry_after_s == told_s


def test_full_queue_still_answers_what_is_cached_or_open() -> None:
    gateway = a_gateway(Backlog())
    cached = gateway.accept(input="cached")
    gateway.store(cached)
    gateway.end(cached)
    opened = gateway.accept(input="open")
    gateway.world.backlog = waits(FULL)

    assert gateway.hit(input="cached").freshness is Freshness.FRESH
    again = gateway.submit(input="open")
    assert isinstance(again, Accepted)
    assert (again.job.job_id, again.deduplicated) == (opened.job_id, True)


def test_picture_that_cannot_be_read_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: object) -> Backlog:
        raise StoreBusyError("The tables are busy.", retry_after_s=1)

    monkeypatch.setattr(InMemoryBacklogs, "read", busy)

    assert isinstance(a_gateway(waits(FULL)).submit(), Accepted)


# ------------------------------------------------------------------------------------ dry run


def untouched(gateway: Gateway) -> object:
    world = gateway.world
    return (
        *(dict(world.jobs), dict(world.claims), dict(world.in_flight), dict(world.entries)),
        *(
            dict(world.minutes),
            dict(world.payloads),
            dict(world.bypasses),
            list(gateway.queue.sends),
        ),
    )


def asked(gateway: Gateway, **members: Any) -> DryRun:
    """A dry run, which changes nothing."""
    before = untouched(gateway)
    outcome = gateway.dry_run(**members)
    assert untouched(gateway) == before
    return outcome


def test_dry_run_tells_keys_cost_and_place() -> None:
    gateway = a_gateway(waits(10))

    run = asked(gateway, input="x" * 100_000, priority="batch")

    job = gateway.accept(input="x" * 100_000, priority="batch")
    assert (run.job.job_key, run.job.cache_key) == (job.job_key, job.cache_key)
    assert run.tokens == (-(-100_025 // 4), 1_000)
    assert run.cost_nanos == CATALOGUE.models["demo-chat"].price.cost_nanos(*run.tokens)
    assert run.place == Place(1, 1_000 + 2_000, 1_500)
    assert (run.hit, run.deduplicated) == (None, False)


def test_dry_run_tells_of_a_stale_hit_and_queues_no_refresh() -> None:
    gateway = a_gateway(Backlog())
    job = gateway.accept()
    gateway.store(job, soft_expires_at_epoch_ms=NOW_MS - 1)
    gateway.end(job)

    run = asked(gateway)

    assert run.hit is not None
    assert (run.hit.freshness, run.hit.refresh) == (Freshness.STALE, None)
    assert (run.cost_nanos, run.place) == (0, Place(0, 0))
    assert gateway.hit().refresh is not None


def test_dry_run_tells_of_the_open_job_that_it_would_join() -> None:
    gateway = a_gateway(Backlog())
    gateway.accept(priority="batch")

    run = asked(gateway, priority="interactive")

    assert (run.deduplicated, run.cost_nanos, run.job.lane) == (True, 0, "interactive")
    gateway.world.backlog = waits(FULL)
    assert asked(gateway).deduplicated


def test_dry_run_joins_no_job_that_has_ended() -> None:
    gateway = a_gateway(Backlog())
    gateway.end(gateway.accept())

    assert not asked(gateway).deduplicated


def test_dry_run_is_refused_as_the_submit_would_be() -> None:
    gateway = a_gateway(waits(FULL))

    with pytest.raises(QueueFullError):
        asked(gateway)
    gateway.world.backlog = Backlog()
    with pytest.raises(CostLimitError):
        asked(gateway, max_cost=1e-9)


def test_dry_run_takes_nothing_of_a_tenants_rate() -> None:
    gateway = a_gateway(Backlog())
    tenant = CATALOGUE.tenant("acme").model_copy(update={"requests_per_minute": 1})
    gateway.catalogue = gateway.catalogue.model_copy(update={"tenants": {"acme": tenant}})
    for _ in range(5):
        asked(gateway)

    assert isinstance(gateway.accept(), Job)
