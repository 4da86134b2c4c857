"""Paint: the open jobs of the index become the picture that everybody has a copy of."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from sluiceway.domain import timeouts
from sluiceway.domain.backlog import MOST_GROUPS, Backlog, Group, Pace, whose
from sluiceway.domain.gate import Limits, key_of
from sluiceway.domain.job import JobStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.ports import Gates, IndexedJob, Latencies

MARKS = 8
"""Steps of a group's line of which the time of arrival is told."""


def paint_backlog(
    jobs: Iterable[IndexedJob],
    *,
    now_ms: int,
    workers: Mapping[str, int],
    catalogue: Catalogue,
    gates: Gates,
    latencies: Latencies,
    paused_tenants: Collection[str] = (),
    uncounted: Mapping[str, int] | None = None,
) -> Backlog:
    """The picture of these open jobs. `uncounted`: by lane, about how many wait besides them."""
    groups, left_out = _grouped(jobs, now_ms, paused_tenants)
    besides = Counter(dict(uncounted or {}))
    for group in left_out:
        besides[group.lane] += group.waiting
    return Backlog(
        measured_at_epoch_ms=now_ms,
        groups=groups,
        paces=_paces({group.model for group in groups}, now_ms, catalogue, gates, latencies),
        workers=workers,
        besides={lane: waiting for lane, waiting in besides.items() if waiting > 0},
    )


def _grouped(
    jobs: Iterable[IndexedJob], now_ms: int, paused_tenants: Collection[str]
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
                waiting=len(since) + slotted[key],
                slotted=slotted[key],
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
