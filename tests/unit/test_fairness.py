"""Fairness, measured: the real workers and the real sweeper in simulated time, on plain queues.

The small tenants' jobs come when those of a big one have filled the lane. It takes a picture (5 s,
and a copy of 2 s) until that is seen, and the time to get past the big one's messages and the slots
that it has: what is measured as contended begins with the first call of a small one.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
from sluiceway.domain.catalogue import Catalogue, parse

from tests.unit.simulation import OVERHEAD_S, Stack, jain, quantile

SMALL = "bcde"


def catalogue(**per_minute: int) -> Catalogue:
    models = (
        f"""
        [models.{name}]
        vendor = "simulator"
        vendor_model = "{name}"
        version = "1"
        requests_per_minute = {rate}
        burst = 1
        """
        for name, rate in per_minute.items()
    )
    return parse("[vendors.simulator]\n" + "".join(models))


def small_ones(stack: Stack) -> Stack:
    for tenant in SMALL:
        stack.submit(tenant, "x", 10, at_s=5)
    return stack


def waits(stack: Stack) -> list[float]:
    return [call.wait_s for call in stack.calls if call.tenant in SMALL]


SEEDS = (1, 2, 3)


@pytest.mark.parametrize(
    ("per_minute", "latency_s"),
    [(60, 1.0), (60, 5.0), (120, 5.0)],
    ids=["slots are scarce", "both are scarce", "workers are scarce"],
)
def test_small_tenants_wait_for_a_big_one_and_one_another_alike(
    per_minute: int, latency_s: float
) -> None:
    """500 jobs of one tenant, then 10 of each of four, 8 workers, and a slot as often as said."""
    models, evenness = catalogue(x=per_minute), []
    for seed in SEEDS:
        alone = small_ones(Stack(models, {"x": latency_s}, seed=seed)).run()
        stack = Stack(models, {"x": latency_s}, seed=seed)
        stack.submit("a", "x", 500)
        small_ones(stack).run()

        assert len(stack.calls) == 540
        assert quantile(waits(stack), 0.95) <= 2 * quantile(waits(alone), 0.95)

        begins = [call.began_at_s for call in stack.calls]
        best = min(per_minute / 60, 8 / (latency_s + OVERHEAD_S))
        assert len(begins) / (max(begins) - min(begins)) >= 0.9 * best
        assert stack.invocations <= 4 * len(stack.calls)

        small = sorted(call.began_at_s for call in stack.calls if call.tenant in SMALL)
        served = Counter(
            call.tenant for call in stack.calls if small[0] <= call.began_at_s <= small[-1]
        )
        evenness.append(jain([served[tenant] for tenant in "abcde"]))
    assert fmean(evenness) >= 0.95


def test_slow_model_keeps_its_quota_and_leaves_the_other_its_workers() -> None:
    """A call of 20 s each 6 s, so it wants 3.4 of 8 workers; the other takes what it gets."""
    models, latency_s = catalogue(x=10, y=0), {"x": 20.0, "y": 1.0}
    stack = Stack(models, latency_s)
    stack.submit("a", "x", 60)
    stack.submit("a", "y", 400, at_s=10)
    stack.run()

    slow = [call.began_at_s for call in stack.calls if call.model == "x"]
    fast = [call.began_at_s for call in stack.calls if call.model == "y"]
    assert (len(slow) - 1) / (max(slow) - min(slow)) >= 0.9 * 10 / 60
    assert len(fast) / (max(fast) - min(fast)) >= 0.9 * 4 / (1 + OVERHEAD_S)
    assert stack.invocations <= 4 * len(stack.calls)


def test_long_calls_leave_places_to_short_ones() -> None:
    """Calls of 30 s without a rate would hold all workers; an hour of them waits."""
    stack = Stack(catalogue(x=0, y=0), {"x": 30.0, "y": 1.0})
    stack.submit("a", "x", 200)
    stack.submit("b", "y", 40, at_s=60)
    stack.run()

    assert quantile([call.wait_s for call in stack.calls if call.tenant == "b"], 0.95) <= 60
