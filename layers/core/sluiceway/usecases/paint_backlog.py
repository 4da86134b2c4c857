"""Paint: the open jobs of the index become the picture that everybody has a copy of."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from sluiceway.domain import timeouts
from sluiceway.domain.backlog import MOST_GROUPS, Backlog, Group, Pace, Waits, whose
from sluiceway.domain.gate import Limits, key_of
from sluiceway.domain.job import JobStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.ports import Gates, IndexedJob, Latencies

MARKS = 8
"""Steps of a group's line of which the time of arrival is told."""


def paint_backlog(
    jobs: Collection[IndexedJob],
    *,
    now_ms: int,
    weight: float = 1.0,
    workers: Mapping[str, int],
    catalogue: Catalogue,
    gates: Gates,
    latencies: Latencies,
    paused_tenants: Collection[str] = (),
    uncounted: Mapping[str, int] | None = None,
) -> Backlog:
    """The picture of these open jobs.

    `weight`: for how many each stands that waits. `uncounted`: by lane, about how many wait
    besides.
    """
    groups, left_out = _grouped(jobs, now_ms, paused_tenants, weight)
    models = {group.model for group in (*groups, *left_out)}
    paces = _paces(models, now_ms, catalogue, gates, latencies)
    shut = {name for name in models if name not in paces or paces[name].opens_at_epoch_ms > now_ms}
    besides = Counter(dict(uncounted or {}))
    for group in left_out:
        besides[group.lane] += group.waiting
    return Backlog(
        measured_at_epoch_ms=now_ms,
        groups=groups,
        paces=paces,
        workers=workers,
        besides={lane: waiting for lane, waiting in besides.items() if waiting > 0},
        waits=waits_of(
            jobs, now_ms=now_ms, paused_tenants=paused_tenants, shut_models=shut, weight=weight
        ),
    )


def waits_of(
    jobs: Iterable[IndexedJob],
    *,
    now_ms: int,
    paused_tenants: Collection[str],
    shut_models: Collection[str],
    weight: float = 1.0,
) -> dict[str, Waits]:
    """By lane. The oldest is that of the metric OldestJobAge."""
    parked: Counter[str] = Counter()
    ready: Counter[str] = Counter()
    oldest: dict[str, int] = {}
    since: dict[str, int] = {}
    for job in jobs:
        if job.status == JobStatus.PROCESSING:
            continue
        lane, enqueued_at_ms = job.lane, job.enqueued_at_epoch_ms
        parked[lane] += job.parked
        if job.tenant in paused_tenants or job.model in shut_models:
            continue
        oldest[lane] = min(oldest.get(lane, enqueued_at_ms), enqueued_at_ms)
        not_before_ms = job.not_before_epoch_ms or 0
        if not job.parked and not_before_ms <= now_ms:
            ready[lane] += 1
            since_ms = max(enqueued_at_ms, not_before_ms)
            since[lane] = min(since.get(lane, since_ms), since_ms)
    return {
        lane: Waits(
            parked=round(weight * parked[lane]),
            oldest_epoch_ms=oldest.get(lane, 0),
            ready=round(weight * ready[lane]),
            ready_since_epoch_ms=since.get(lane, 0),
        )
        for lane in parked
    }


def _grouped(
    jobs: Iterable[IndexedJob], now_ms: int, paused_tenants: Collection[str], weight: float
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """The biggest groups, and those for which there is no room."""
    running: Counter[tuple[str, str, str]] = Counter()
    slotted: Counter[tuple[str, str, str]] = Counter()
    wanting: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for job in jobs:
        key = job.lane, job.model, whose(job.tenant)
        if job.status == JobStatus.PROCESSING:
            running[key] += 1
        elif job.tenant in paused_tenants or _wants_none_yet(job, now_ms):
            slotted[key] += 1
        else:
            wanting[key].append(job.enqueued_at_epoch_ms)
    groups = []
    for key in {*running, *slotted, *wanting}:
        since = sorted(wanting.get(key, ()))
        oldest, *later = _marks(since) or [0]
        groups.append(
            Group(
                *key,
                waiting=round(weight * (len(since) + slotted[key])),
                slotted=round(weight * slotted[key]),
                running=running[key],
                oldest_epoch_ms=oldest,
                later_epoch_ms=tuple(later),
            )
        )
    groups.sort(key=lambda group: (-group.waiting - group.running, group.lane, group.model))
    return tuple(groups[:MOST_GROUPS]), tuple(groups[MOST_GROUPS:])


def _wants_none_yet(job: IndexedJob, now_ms: int) -> bool:
    """Whether a worker would be of no use to it now: it has a later slot, or waits for a retry.

    What is parked without a slot would run if it were let in.
    """
    backing_off = job.status == JobStatus.RETRYING and (job.not_before_epoch_ms or 0) > now_ms
    return (job.slot_at_epoch_ms or 0) > now_ms or backing_off


def _marks(since: list[int]) -> list[int]:
    """The first, and those at equal steps after it, up to the last."""
    steps = min(MARKS, len(since) - 1)
    return [since[step * (len(since) - 1) // max(1, steps)] for step in range(steps + 1)]


def _paces(
    models: Iterable[str],
    now_ms: int,
    catalogue: Catalogue,
    gates: Gates,
    latencies: Latencies,
) -> dict[str, Pace]:
    """Of each model that the catalogue has still."""
    paces = {}
    for name in sorted(models):
        model = catalogue.models.get(name)
        if model is not None:
            key = key_of(model.vendor, model.vendor_model)
            gate = gates.look(key, now_ms=now_ms)
            sampled = timeouts.key_of(model.vendor, model.vendor_model)
            median_ms = latencies.median_ms(sampled, now_ms=now_ms, least=1)
            latency_ms = median_ms or timeouts.usual_ms(model.timeout_s)
            paces[name] = Pace.of(gate, Limits.of(model), now_ms=now_ms, latency_ms=latency_ms)
    return paces
