"""Shares of a lane's workers, and how long a job waits that is over its tenant's or its model's.

They hold as long as two tenants or two models want the lane's workers. All of it comes from the
picture of the backlog, so a share is right some seconds late.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from sluiceway.domain.backlog import Backlog, Group, lanes_ahead, line_of, whose
from sluiceway.domain.gate import Room, rooms_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluiceway.domain.catalogue import Catalogue

REACH_MS = 60_000
"""No slot further ahead is taken: who comes now, or is more urgent, stands behind a minute of kept
slots at most. What waits for a slot without one is sent for in time."""

SOON_MS = 10_000
"""Who gets no slot of its gate until then wants no worker."""

PARKED_LEAST_MS = 5_000
PARKED_FEW_MS = 15_000
"""Who is parked for its turn looks again between these two, unless its line takes longer."""

FAR_BELOW = 8
"""Whose jobs, those that wait too, are so many fewer than its share needs no place: in a lane of
hundreds of workers nearly nobody's are more, and all of them would write one row."""

OFFERED_PER_SERVED = 1.25
"""So many of those that are parked look again in the time in which one is served: who isn't lucky
is parked again, but no worker and no slot waits for them."""


def share_of(places: int, weight: int, others: Iterable[tuple[int, int]]) -> int:
    """How many of `places` one may take, beside others with (weight, how many they want).

    Who wants less than its share leaves the rest to those that want more. 1 at least, and one is
    always left for the others.
    """
    wanting = sorted(others, key=lambda other: other[1] / other[0])
    if not wanting:
        return places
    left, weights = places, weight + sum(other for other, _ in wanting)
    for other, wanted in wanting:
        if wanted * weights >= left * other:
            break
        left -= wanted
        weights -= other
    return max(1, min(math.ceil(left * weight / weights), places - 1))


def at_once(catalogue: Catalogue, model: str) -> float:
    """How many calls of the model its vendor takes at once: more want no worker."""
    known = catalogue.models.get(model)
    if known is None:
        return math.inf
    rooms = rooms_of(known.vendor, catalogue.vendor_of(known), known)
    return min((room.places for room in rooms), default=math.inf)


def places_of(
    backlog: Backlog,
    catalogue: Catalogue,
    *,
    lane: str,
    tenant: str,
    model: str,
    redriven: bool,
    now_ms: int,
) -> tuple[Room, ...]:
    """Where a worker of the lane needs a place before it asks for a slot; none: nowhere.

    A tenant that would be done within PARKED_FEW_MS at its share is let in: to park its jobs would
    take longer.
    """
    rooms = []
    workers = backlog.workers.get(lane, 0)
    short = workers and _short(backlog, catalogue, lane)
    groups = _contending(backlog, catalogue, lane, now_ms) if short else ()
    tenants, models = Counter[str](), Counter[str]()
    for group in groups:
        most = at_once(catalogue, group.model)
        wanted = group.wanting + group.running
        tenants[group.tenant] += math.floor(min(wanted, most))
        models[group.model] = math.floor(min(models[group.model] + wanted, most))
    own = whose(tenant)
    if tenants.keys() - {own} and not _soon_done(backlog, catalogue, lane, tenant, model):
        others = [
            (catalogue.tenant(name).share, wanted)
            for name, wanted in tenants.items()
            if name != own
        ]
        share = share_of(workers, catalogue.tenant(own).share, others)
        if tenants[own] > share - FAR_BELOW:
            rooms.append(Room(f"lane:{lane}", f"tenant:{own}", share))
    if models.keys() - {model}:
        others = [(1, wanted) for name, wanted in models.items() if name != model]
        share = share_of(workers, 1, others)
        if models[model] > share - FAR_BELOW:
            rooms.append(Room(f"lane:{lane}", f"model:{model}", share))
    batch = backlog.workers.get("batch", 0)
    if redriven and lane == "interactive" and batch:
        rooms.append(Room(f"lane:{lane}", "redriven", batch))
    return tuple(rooms)


def reach_ms(
    backlog: Backlog,
    catalogue: Catalogue,
    *,
    lane: str,
    tenant: str,
    model: str,
    hold_ms: int,
    now_ms: int,
) -> int:
    """How far ahead a slot may be that is taken: as long as others want it, one waits inside.

    Those of the interactive lane want a batch job's, too.
    """
    others = any(
        (group.tenant, group.model) != (whose(tenant), model)
        for group in _contending(backlog, catalogue, lane, now_ms)
    )
    urgent = any(group.lane != lane for group in line_of(backlog.groups, lane=lane, model=model))
    return min(REACH_MS, hold_ms) if others or urgent else REACH_MS


def line_ms(backlog: Backlog, catalogue: Catalogue, *, lane: str, tenant: str, model: str) -> float:
    """How long the tenant's waiting jobs for the model take at its share; 0: not known."""
    own = whose(tenant)
    line = line_of(backlog.groups, lane=lane, model=model)
    waiting = sum(group.waiting for group in line if group.tenant == own)
    shares = _shares(line, catalogue, own)
    models = {group.model for group in backlog.groups if group.lane == lane}
    each_ms = _each_ms(backlog, lane, model, models=len(models))
    return each_ms * waiting * shares / catalogue.tenant(own).share


def parked_ms(line_ms: float, *, rand: float, left_ms: int) -> int:
    """How long a job waits for its turn: somewhere in the time that its line takes.

    So those that wait come back about as fast as they are served. With `left_ms` to its deadline
    it looks again in the first half of that.
    """
    longest_ms = min(max(PARKED_FEW_MS, line_ms / OFFERED_PER_SERVED), left_ms / 2)
    return PARKED_LEAST_MS + round(rand * max(0, longest_ms - PARKED_LEAST_MS))


def _soon_done(backlog: Backlog, catalogue: Catalogue, lane: str, tenant: str, model: str) -> bool:
    line = line_ms(backlog, catalogue, lane=lane, tenant=tenant, model=model)
    return 0 < line + backlog.pace(model).latency_ms <= PARKED_FEW_MS


def _short(backlog: Backlog, catalogue: Catalogue, lane: str) -> bool:
    """Whether more jobs would run now than the lane has idle workers.

    Something always waits for the moment until it begins, and a job whose gate has no slot or no
    place for it needs no worker: as long as some are idle, nobody stands in another's way.
    """
    groups = [group for group in backlog.groups if group.lane == lane]
    wanting, running = Counter[str](), Counter[str]()
    for group in groups:
        wanting[group.model] += group.wanting
        running[group.model] += group.running
    wanted = 0.0
    for model, number in wanting.items():
        interval_ms = backlog.pace(model).interval_ms
        soon = SOON_MS / interval_ms if interval_ms else math.inf
        wanted += max(0, min(number, soon, at_once(catalogue, model) - running[model]))
    return wanted > backlog.workers.get(lane, 0) - sum(group.running for group in groups)


def _contending(
    backlog: Backlog, catalogue: Catalogue, lane: str, now_ms: int
) -> tuple[Group, ...]:
    """Whose jobs want the lane's workers still: those of a short line are done by now."""
    age_ms = now_ms - backlog.measured_at_epoch_ms
    groups = backlog.contending(lane, now_ms)
    ahead = lanes_ahead(lane)
    # A picture has 1,000 groups, and each start of a worker looks at it: once at each group.
    lines: dict[str, set[str]] = {group.model: set() for group in groups}
    for group in backlog.groups:
        if group.model in lines and group.lane in ahead:
            lines[group.model].add(group.tenant)
    share = {tenant: catalogue.tenant(tenant).share for tenant in set().union(*lines.values())}
    each_ms = {model: _each_ms(backlog, lane, model, models=len(lines)) for model in lines}
    per_job_ms = {
        model: each_ms[model] * sum(share[tenant] for tenant in line)
        for model, line in lines.items()
    }
    latency_ms = {model: backlog.pace(model).latency_ms for model in lines}

    def lasts(group: Group) -> bool:
        model = group.model
        line_ms = per_job_ms[model] * group.waiting / share[group.tenant]
        return not each_ms[model] or line_ms + latency_ms[model] >= age_ms

    lasting = tuple(group for group in groups if lasts(group))
    return lasting if any(group.wanting for group in lasting) else ()


def _each_ms(backlog: Backlog, lane: str, model: str, *, models: int) -> float:
    """From one of the model's jobs to the next, as its gate and the lane's workers allow."""
    pace = backlog.pace(model)
    workers = max(1.0, backlog.workers.get(lane, 1) / max(1, models))
    return max(pace.interval_ms, pace.latency_ms / workers)


def _shares(groups: Iterable[Group], catalogue: Catalogue, *besides: str) -> int:
    """Of all tenants that have jobs in these groups."""
    return sum(
        catalogue.tenant(tenant).share for tenant in {*besides, *(one.tenant for one in groups)}
    )
