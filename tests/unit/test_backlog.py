"""The backlog: shares of it, places in it, and how right the times are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sluiceway.domain.backlog import Backlog, Group, Pace, Place, place
from sluiceway.domain.catalogue import Catalogue, parse
from sluiceway.domain.gate import Gate, Limits, key_of
from sluiceway.domain.job import Job, JobStatus
from sluiceway.ports import IndexedJob
from sluiceway.usecases.paint_backlog import paint_backlog

from tests.fakes.in_memory import NOW_MS, InMemoryGates, InMemoryLatencies, World
from tests.unit.samples import a_job

WORKERS = {"interactive": 8, "batch": 2}
USUAL_MS = 4_000
SEEN_LATE_MS = 5_000
"""So old may a picture be."""


def a_group(tenant: str = "acme", waiting: int = 10, **members: Any) -> Group:
    """So many that came one each second, the last one now."""
    like = Group(
        *("interactive", "demo-chat", tenant),
        waiting=waiting,
        oldest_epoch_ms=NOW_MS - (waiting - 1) * 1_000,
        later_epoch_ms=(NOW_MS,) if waiting > 1 else (),
    )
    return replace(like, **members)


def a_picture(*groups: Group, **members: Any) -> Backlog:
    like = Backlog(NOW_MS, groups, {"demo-chat": Pace(1_000.0, 2_000, 0, NOW_MS)})
    return replace(like, **members)


def placed(
    picture: Backlog, *, after_ms: int = 0, shares: dict[str, int] | None = None, **members: Any
) -> Place:
    return place(
        a_job(**{"enqueued_at_epoch_ms": NOW_MS + 1, **members}),
        picture,
        share_of=lambda tenant: (shares or {}).get(tenant, 1),
        usual_ms=USUAL_MS,
        now_ms=NOW_MS + after_ms,
    )


# ------------------------------------------------------------------------------------ places


def test_job_without_a_picture_is_next_and_takes_a_usual_call() -> None:
    assert placed(Backlog()) == Place(1, USUAL_MS, 0)


def test_new_job_is_behind_all_of_its_tenant() -> None:
    assert placed(a_picture(a_group())) == Place(11, 12_000, 6_000)


@pytest.mark.parametrize(("index", "position"), [(0, 1), (4, 5), (9, 10)])
def test_job_finds_its_place_by_when_it_was_enqueued(index: int, position: int) -> None:
    enqueued_ms = NOW_MS - 9_000 + index * 1_000

    found = placed(a_picture(a_group()), enqueued_at_epoch_ms=enqueued_ms)

    assert (found.position, found.eta_ms) == (position, (position - 1) * 1_000 + 2_000)


def test_burst_of_old_jobs_is_no_even_line() -> None:
    # 90 came at once long ago, and 10 since.
    group = a_group(
        waiting=91,
        oldest_epoch_ms=NOW_MS - 100_000,
        later_epoch_ms=(*(NOW_MS - 100_000 + step for step in range(1, 9)), NOW_MS),
    )

    early = placed(a_picture(group), enqueued_at_epoch_ms=NOW_MS - 99_992)

    assert early.position == 81


def test_line_moves_on_with_the_time() -> None:
    assert placed(a_picture(a_group()), after_ms=4_000) == Place(7, 8_000, 4_000)
    assert placed(a_picture(a_group()), after_ms=60_000) == Place(1, 2_000, 1_000)


def test_burst_that_is_left_lets_the_first_ones_through_at_once() -> None:
    paces = {"demo-chat": Pace(1_000.0, 2_000, 0, NOW_MS - 8_000)}

    assert placed(a_picture(a_group(), paces=paces)).eta_ms == 2_000 + 2_000


def test_other_tenants_go_first_as_often_as_their_share_lets_them() -> None:
    picture = a_picture(a_group(waiting=3), a_group("globex", 500), a_group("initech", 1))

    assert placed(picture).position == 1 + 3 + 3 + 1
    assert placed(picture, shares={"globex": 10}).position == 1 + 3 + 35 + 1


def test_tenant_with_a_long_line_waits_for_the_short_lines_of_others_alone() -> None:
    picture = a_picture(a_group(waiting=500), a_group("globex", 10))

    assert placed(picture).position == 1 + 510


def test_batch_job_waits_for_the_interactive_ones_of_its_model() -> None:
    groups = a_group(waiting=20), a_group("globex", 5, lane="batch"), a_group(model="other")

    assert placed(a_picture(*groups), lane="batch").position == 1 + 20
    assert placed(a_picture(*groups), lane="interactive", tenant="globex").position == 1


def test_workers_are_the_bottleneck_of_slow_calls() -> None:
    paces = {"demo-chat": Pace(100.0, 16_000, 0, NOW_MS)}
    group = a_group(waiting=8, running=8)

    alone = placed(a_picture(group, paces=paces, workers=WORKERS))
    beside = placed(a_picture(group, a_group(model="other"), paces=paces, workers=WORKERS))

    assert alone.eta_ms == 9 * 2_000 + 16_000
    assert beside.eta_ms == 9 * 4_000 + 16_000


def test_free_workers_keep_nobody_waiting() -> None:
    paces = {"demo-chat": Pace(0.0, 16_000, 0, 0)}
    group = a_group(waiting=2, running=5)

    assert placed(a_picture(group, paces=paces, workers=WORKERS)).eta_ms == 16_000


@pytest.mark.parametrize(
    ("members", "eta_ms"),
    [
        ({"slot_at_epoch_ms": NOW_MS + 30_000, "parked": True}, 32_000),
        ({"slot_at_epoch_ms": NOW_MS - 1, "parked": True}, 12_000),
        ({"status": JobStatus.RETRYING, "not_before_epoch_ms": NOW_MS + 60_000}, 62_000),
        ({"status": JobStatus.PROCESSING, "started_at_epoch_ms": NOW_MS - 500}, 1_500),
        ({"status": JobStatus.PROCESSING, "started_at_epoch_ms": NOW_MS - 50_000}, 1_000),
    ],
    ids=["slot", "missed slot", "backoff", "at work", "late"],
)
def test_job_with_a_time_of_its_own(members: dict[str, Any], eta_ms: int) -> None:
    found = placed(a_picture(a_group()), **members)

    assert found.eta_ms == eta_ms
    assert (found.position == 0) is (members.get("status") is JobStatus.PROCESSING)


def test_nobody_starts_before_a_shut_gate_opens() -> None:
    paces = {"demo-chat": Pace(1_000.0, 2_000, NOW_MS + 40_000, NOW_MS + 40_000)}

    assert placed(a_picture(a_group(), paces=paces)).eta_ms == 52_000
    slot = placed(a_picture(paces=paces), slot_at_epoch_ms=NOW_MS + 9_000, parked=True)
    assert slot.eta_ms == 42_000


def test_backlog_is_drained_at_the_pace_of_all_models() -> None:
    picture = a_picture(a_group(), a_group(model="other"))
    paces = {"demo-chat": Pace(1_000.0), "other": Pace(250.0), "idle": Pace(1.0)}

    assert replace(picture, paces=paces).drained_in_ms(10) == pytest.approx(2_000)
    assert Backlog().drained_in_ms(10) == 0


# ------------------------------------------------------------------------------------ the truth


@dataclass
class Service:
    """One in which every policy holds exactly: gates, workers, lanes, and shares by turns."""

    catalogue: Catalogue
    latency_ms: dict[str, int]
    """By model."""
    jobs: list[Job]
    """By time of arrival."""

    def __post_init__(self) -> None:
        self.world = World()
        self.gates = InMemoryGates(self.world)
        self.now_ms = NOW_MS
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.ended: dict[str, int] = {}
        """When each has its result."""
        self.told: list[tuple[str, int, int]] = []
        """Whom, when, and how long it would take."""
        self.turns: dict[tuple[str, ...], float] = defaultdict(float)

    def run(self) -> float:
        """The part of what was told that was right within a factor of two.

        A picture is painted each 5 s, and all that were there then and still wait ask 3 s later.
        """
        coming = list(self.jobs)
        picture = Backlog()
        while coming or self.waiting or self.running:
            while coming and coming[0].enqueued_at_epoch_ms <= self.now_ms:
                self._come(coming.pop(0))
            self.running = [job for job in self.running if self.ended[job.job_id] > self.now_ms]
            for lane in WORKERS:
                while self._start(lane):
                    pass
            if self.now_ms % 5_000 == 0:
                picture = self._paint()
            if self.now_ms % 5_000 == 3_000:
                self._tell(picture)
            self.now_ms += 50
        right = [
            0.5 <= ms / (self.ended[job_id] - at_ms) <= 2
            or abs(ms - (self.ended[job_id] - at_ms)) <= SEEN_LATE_MS
            for job_id, at_ms, ms in self.told
        ]
        return sum(right) / len(right)

    def _come(self, job: Job) -> None:
        """Who comes later has saved up no turns."""
        line = [one for one in self.waiting if (one.lane, one.model) == (job.lane, job.model)]
        turns = {one.tenant: self.turns[one.lane, one.model, one.tenant] for one in line}
        if turns and job.tenant not in turns:
            mine = self.turns[job.lane, job.model, job.tenant]
            self.turns[job.lane, job.model, job.tenant] = max(mine, *turns.values())
        self.waiting.append(job)

    def _start(self, lane: str) -> bool:
        """Whether one of the lane's jobs was started: of whose turn it is, where it may."""
        waiting = [job for job in self.waiting if job.lane == lane]
        running = [job for job in self.running if job.lane == lane]
        if len(running) >= WORKERS[lane]:
            return False
        models = {job.model for job in waiting}
        places = WORKERS[lane] / max(1, len(models | {job.model for job in running}))
        for model in sorted(models, key=lambda model: self.turns[lane, model]):
            full = sum(job.model == model for job in running) >= places
            if full or not self._take(model):
                continue
            self._begin([job for job in waiting if job.model == model])
            return True
        return False

    def _begin(self, line: list[Job]) -> None:
        """Starts the oldest job of the tenant whose turn it is."""
        lane, model = line[0].lane, line[0].model
        tenants = {job.tenant for job in line}
        tenant = min(sorted(tenants), key=lambda tenant: self.turns[lane, model, tenant])
        self.turns[lane, model, tenant] += 1 / self.catalogue.tenant(tenant).share
        self.turns[lane, model] += 1
        job = next(job for job in line if job.tenant == tenant)
        self.waiting.remove(job)
        self.running.append(job)
        self.ended[job.job_id] = self.now_ms + self.latency_ms[model]

    def _take(self, model: str) -> bool:
        of = self.catalogue.model(model)
        key, limits = key_of(of.vendor, of.vendor_model), Limits.of(of)
        gate = self.world.gates.get(key, Gate())
        if gate.slot_at_us(limits, 0, self.now_ms * 1000) > self.now_ms * 1000:
            return False
        self.gates.take(key, limits, tokens=0, now_ms=self.now_ms, probe_ms=0, furthest_ms=0)
        return True

    def _paint(self) -> Backlog:
        picture = paint_backlog(
            [*map(_row_of, self.waiting), *(_row_of(job, "processing") for job in self.running)],
            now_ms=self.now_ms,
            workers=WORKERS,
            catalogue=self.catalogue,
            gates=self.gates,
            latencies=InMemoryLatencies(World()),
        )
        paces = {
            model: replace(pace, latency_ms=self.latency_ms[model])
            for model, pace in picture.paces.items()
        }
        return replace(picture, paces=paces)

    def _tell(self, picture: Backlog) -> None:
        measured_ms = picture.measured_at_epoch_ms
        for job in (job for job in self.waiting if job.enqueued_at_epoch_ms <= measured_ms):
            told = place(
                job,
                picture,
                share_of=lambda tenant: self.catalogue.tenant(tenant).share,
                usual_ms=USUAL_MS,
                now_ms=self.now_ms,
            )
            self.told.append((job.job_id, self.now_ms, told.eta_ms))


def _row_of(job: Job, status: str = "queued") -> IndexedJob:
    return IndexedJob(
        status=status,
        lane=job.lane,
        enqueued_at_epoch_ms=job.enqueued_at_epoch_ms,
        tenant=job.tenant,
        job_id=job.job_id,
        model=job.model,
    )


def a_catalogue(*, rates: dict[str, int], shares: dict[str, int] | None = None) -> Catalogue:
    """Models by their requests a minute, tenants by their share."""
    models = "".join(
        f'[models.{name}]\nvendor = "v"\nvendor_model = "{name}"\nversion = "1"\n'
        f"requests_per_minute = {rate}\nburst = 5\n"
        for name, rate in rates.items()
    )
    tenants = "".join(
        f"[tenants.{name}]\nshare = {share}\n" for name, share in (shares or {}).items()
    )
    return parse(f"[vendors.v]\n{models}{tenants}")


def arrivals(*bursts: tuple[str, str, str, int, int, int]) -> list[Job]:
    """Of each burst: lane, model, tenant, how many, the first after ms, and ms between two."""
    jobs = [
        a_job(
            lane=lane,
            model=model,
            tenant=tenant,
            job_id=f"job_{burst}_{number:04d}",
            enqueued_at_epoch_ms=NOW_MS + first_ms + number * step_ms,
        )
        for burst, (lane, model, tenant, count, first_ms, step_ms) in enumerate(bursts)
        for number in range(count)
    ]
    return sorted(jobs, key=lambda job: (job.enqueued_at_epoch_ms, job.job_id))


@pytest.mark.parametrize("rate", [120, 600, 6_000])
@pytest.mark.parametrize("latency_ms", [500, 5_000])
@pytest.mark.parametrize(
    ("shares", "bursts"),
    [
        ({}, [("interactive", "a", "acme", 200, 0, 10)]),
        (
            {},
            [("interactive", "a", "acme", 100, 0, 1_000), ("interactive", "a", "acme", 300, 0, 3)],
        ),
        (
            {"acme": 1, "globex": 3},
            [
                ("interactive", "a", "acme", 300, 0, 5),
                ("interactive", "a", "globex", 150, 4_000, 5),
            ],
        ),
        (
            {},
            [
                ("interactive", "a", "acme", 200, 0, 2),
                *(("interactive", "a", f"t{n}", 10, 4_000, 1) for n in range(4)),
            ],
        ),
        (
            {},
            [
                ("interactive", "a", "acme", 150, 0, 10),
                ("batch", "a", "acme", 90, 0, 10),
                ("interactive", "b", "globex", 150, 0, 10),
            ],
        ),
    ],
    ids=["one burst", "burst on a stream", "shares", "one big and four small", "lanes and models"],
)
def test_time_that_is_told_is_right_within_a_factor_of_two(
    rate: int,
    latency_ms: int,
    shares: dict[str, int],
    bursts: list[tuple[str, str, str, int, int, int]],
) -> None:
    catalogue = a_catalogue(rates={"a": rate, "b": 2 * rate}, shares=shares)
    service = Service(catalogue, {"a": latency_ms, "b": latency_ms // 2}, arrivals(*bursts))

    assert service.run() >= 0.9
    assert len(service.told) > 50
