"""The simulation: the same figures for the same seed, and nothing that the service can't do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.gate import Limits

from bench import simulate
from bench.simulate import BUILT, FIXED, LENDING, Burst, Kind, Model, Policy, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAST = Kind("fast", 0.7, 0.3, Limits(600, 0, 10))
SLOW = Kind("slow", 0.3, 3.0, Limits(120, 900_000, 5), tokens=1500, places=4, heavy=True)

SMALL = Scenario(
    name="small",
    kinds=(FAST, SLOW),
    tenants=simulate.zipf(5),
    per_s=4.0,
    workers={"interactive": 8, "batch": 2},
    policy=LENDING,
    seconds=200.0,
    hits=0.3,
    burst_jobs=20,
)

BUSY = replace(SMALL, per_s=40.0)
"""More than quotas and workers take."""


@pytest.mark.parametrize("policy", simulate.POLICIES, ids=lambda policy: policy.name)
def test_same_seed_gives_same_figures(policy: Policy) -> None:
    scenario = replace(BUSY, policy=policy, seconds=120.0)

    first, again, other = (
        Model(replace(scenario, seed=seed), records=True).run() for seed in (1, 1, 2)
    )

    assert replace(first, scenario=SMALL) == replace(again, scenario=SMALL)
    assert first.started != other.started


@pytest.mark.parametrize("scenario", [SMALL, BUSY], ids=["small", "busy"])
@pytest.mark.parametrize("policy", [LENDING, BUILT], ids=lambda policy: policy.name)
def test_no_window_has_more_calls_than_allowed(scenario: Scenario, policy: Policy) -> None:
    figures = Model(replace(scenario, policy=policy), records=True).run()

    assert figures.refused.total() == 0
    for kind in scenario.kinds:
        starts = figures.started[kind.name]
        per_s = kind.limits.requests_per_minute / 60
        assert len(starts) > 20
        # A slot may be used up to 5 s late.
        over = [
            (first_s, last_s)
            for first, first_s in enumerate(starts)
            for last, last_s in enumerate(starts[first:], first)
            if last - first + 1 > per_s * (last_s - first_s + 5) + kind.limits.burst
        ]
        assert over == []


def test_no_worker_is_free_while_a_message_waits() -> None:
    model = Model(BUSY)
    looks = []

    def looking() -> Iterator[object]:
        while True:
            yield model.env.timeout(0.1)
            looks.extend(
                (lane.depth > 0, lane.running < lane.workers, lane.running <= lane.workers)
                for lane in model.lanes.values()
            )

    model.env.process(looking())  # type: ignore[arg-type]
    model.run()

    assert {True, False} == {waits for waits, _, _ in looks}
    assert not any(waits and free for waits, free, _ in looks)
    assert all(within for _, _, within in looks)


def test_every_job_of_a_burst_is_called_once_and_ends() -> None:
    scenario = replace(SMALL, jobs=200, per_s=50.0, hits=0.4)

    figures = Model(scenario).run()

    assert figures.requests == 200
    assert figures.came == figures.ended == figures.calls.total() == 120
    assert figures.open_at_end == 0


def test_busy_workers_are_counted_by_time() -> None:
    kind = Kind("steady", 1.0, 2.0, Limits(), sigma=0.0)
    figures = Model(
        replace(SMALL, kinds=(kind,), per_s=2.0, hits=0.0, batch_part=0.0, burst_part=0.0)
    ).run()

    run_s = 2.0 + simulate.PICK_UP_S + simulate.START_S + simulate.FINISH_S
    assert figures.use("interactive") == pytest.approx(2.0 * run_s / 8, rel=0.1)
    assert figures.use("batch") == 0


def test_idle_lane_helps_the_busy_one() -> None:
    batch = replace(SMALL, kinds=(replace(FAST, part=1.0, heavy=True),), per_s=10.0, hits=0.0)

    fixed, lending = (Model(replace(batch, policy=policy)).run() for policy in (FIXED, LENDING))

    assert fixed.use("interactive") == 0
    assert lending.lent > 0
    assert lending.ended > 1.3 * fixed.ended


def test_lower_limit_of_a_vendor_is_found() -> None:
    kind = replace(FAST, part=1.0, true_per_minute=300)
    figures = Model(replace(SMALL, kinds=(kind,), per_s=8.0, hits=0.0, seconds=1200.0)).run()

    assert 0 < figures.refused.total() < 0.02 * figures.calls.total()
    assert 0.5 < figures.quota(kind) <= 1.01


def test_flood_of_one_tenant_leaves_the_others_their_share() -> None:
    calm = replace(SMALL, kinds=(replace(FAST, part=1.0),), per_s=6.0, batch_part=0.0, flood=1000)

    without, shared = (Model(replace(calm, policy=policy)).run() for policy in (LENDING, BUILT))

    assert without.parks["share"] == 0
    assert shared.parks["share"] > 100
    assert shared.wait("interactive", 95) < 0.5 * without.wait("interactive", 95)


@pytest.mark.parametrize(("off", "code"), [(1.0, 0), (1.1, 1)])
@pytest.mark.parametrize("figure", simulate.COMPARED)
def test_check_compares_each_figure(figure: str, off: float, code: int, tmp_path: Path) -> None:
    simulated = simulate.check(Burst(submits=100, per_minute=300, latency_s=0.2))
    measured = simulated | {"scenario": "met", figure: simulated[figure] * off}
    told = {
        "setting": {"jobs": 100, "per_minute": 300, "latency_s": 0.2},
        "bursts": [{"scenario": "halved"}, measured],
    }
    file = tmp_path / "burst.json"
    file.write_text(json.dumps({"figures": told}))

    assert simulate.main(["--check", "--against", str(file)]) == code


def test_burst_uses_the_whole_quota() -> None:
    met, halved = (simulate.check(Burst(halved=halved)) for halved in (False, True))

    assert (met["jobs"], met["refused"]) == (360, 0)
    assert 0.97 < met["quota_used"] <= 1.0
    assert halved["jobs"] == 720
    assert 0 < halved["refused"] < 30
    assert 0.9 < halved["quota_used"] < 1.0


def test_load_and_cost_grow_with_the_jobs() -> None:
    few, many = (Model(replace(SMALL, per_s=per_s)).run() for per_s in (1.0, 4.0))

    asked, more = simulate.loads(few), simulate.loads(many)
    assert 0 < asked["the index of due jobs"] < more["the index of due jobs"] < 0.1
    assert all(usd > 0 for usd in simulate.cost(many).values())
    assert simulate.cost(replace(few, came=few.requests))["API Gateway"] == pytest.approx(7.0)


def test_report_has_all_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "HOUR_S", 12.0)
    monkeypatch.setattr(simulate, "LADDER", {2: 2.0})
    monkeypatch.setattr(simulate, "SIZES", {"10": (0.02, 5.0), "100": (0.2, 5.0)})
    monkeypatch.setattr(simulate, "UNKNOWN_S", 60.0)
    monkeypatch.setattr(simulate, "CONTRACT_S", 60.0)

    assert simulate.main([]) == 0

    told = capsys.readouterr().out
    assert "mostly batch" in told
    assert "most is asked of" in told
    assert told.count(BUILT.name) == 5
