"""Sweep: each minute, and within it while there are open jobs, whoever got stuck is helped on.

A send that failed, a message that was lost, a worker that died, a parked job whose time has come,
a deadline that passed unseen, a claim that a finish left: each is a row of the due index.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain import gate
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import DamagedRowError, StoreBusyError
from sluiceway.domain.job import (
    DUE_SHARDS,
    LANES,
    OPEN,
    SEND_STARTS_WITHIN_MS,
    Job,
    JobError,
    JobStatus,
)
from sluiceway.domain.notice import Notice
from sluiceway.ports import (
    Applied,
    Backlogs,
    Clock,
    DueJob,
    DueJobs,
    EventBus,
    Flags,
    Gates,
    IndexedJob,
    JobQueue,
    JobStore,
    Latencies,
    StateStore,
    Telemetry,
)
from sluiceway.usecases.paint_backlog import paint_backlog
from sluiceway.usecases.wake_jobs import POLL_EVERY_MS, Wake, to_wake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sluiceway.domain.backlog import Backlog
    from sluiceway.domain.catalogue import Catalogue

LOOK_AHEAD_MS = 60_000
"""Until the next sweep: what becomes due before it is sent now, with the delay that is left."""

STOP_BEFORE_END_MS = 5_000
"""Nothing is begun in the last seconds of the function: a send ends within 3."""

POLL_LOOKS_AHEAD_MS = 15_000
"""In a sweep that polls, a pass sends what is due before the next pass or the one after that."""

WOKEN_AFTER_S = 2
"""A job that is sent for finds workers that know the picture in which there is room for it."""

PAGE = 250
"""Due jobs that one pass takes of each shard; the next takes the others."""

MOST_READ = 20_000
"""Jobs of the index that a sweep reads one by one. When half of them are read it begins no other
shard: of a longer backlog they are the sample, and DynamoDB counts the others."""

MEASURE_WITHIN_MS = 20_000
"""What is counted by then is what is told; the rest of the function's time is for the jobs."""

ROWS_PER_POLL = 2_000
"""Of the index, that a sweep reads or counts on average to paint the picture again."""

SURELY_MISSING = 0.05
"""Of an estimated backlog: when fewer messages are missing than this part, none may be."""

LEAST_SENDS = 100
"""Of a lane and a sweep, however long its backlog: more than a lane can lose in a minute."""

LONG_WAIT_MS = 60_000
"""A worker that is free takes what has a message within moments: who waits longer was missed."""

MOST_TOLD_MS = 60_000
"""Of degraded mode by one sweep: an alarm counts its seconds while it lasts, about as they pass."""


class Sweeper(NamedTuple):
    """What a sweep needs from the outside."""

    jobs: JobStore
    state: StateStore
    due_jobs: DueJobs
    queue: JobQueue
    gates: Gates
    latencies: Latencies
    clock: Clock
    telemetry: Telemetry
    time_left_ms: Callable[[], int]
    """Of this invocation; the sweep stops in time and the next one goes on."""
    pause: Callable[[float], None]
    """Waits that many seconds."""
    catalogue: Catalogue
    flags: Flags
    bus: EventBus
    backlogs: Backlogs
    workers: Mapping[str, int]
    """By lane: how many may run at once."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did, in jobs."""

    sent: int = 0
    postponed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Census:
    """The open jobs, as the index tells of them."""

    jobs: list[IndexedJob]
    """All; or of very many a sample, and with it everyone at work and who waits longest."""
    weight: float = 1.0
    """For how many jobs each stands that waits."""
    whole: bool = True
    """False: the time was over, and there are more."""

    @property
    def sampled(self) -> bool:
        """Whether what waits is estimated."""
        return self.weight > 1


@dataclass(slots=True)
class _Sweep:
    """What the passes of one sweep share."""

    until_ms: int
    budget: dict[str, int]
    """By lane."""
    polls: bool = False
    did: Counter[str] = field(default_factory=Counter)
    looked_at: set[DueJob] = field(default_factory=set)
    """A row that is still as it was when it was looked at waits for the next sweep."""
    busy: StoreBusyError | None = None
    sent_for: set[IndexedJob] = field(default_factory=set)
    """Who was sent for before its turn: once a sweep, as long as it waits as it did."""
    polls_to_painting: int = 0
    """So many passes more until the picture of the backlog is painted again."""


def sweep_jobs(sweeper: Sweeper, *, poll: bool = False) -> Swept:
    """One sweep. Everything in it is safe to repeat, and two at once do no harm.

    With `poll` it goes on until its minute is nearly over, so that a wait that begins in between
    ends in time; without any open job it ends at once.
    Raises StoreBusyError when the tables let it do nothing at all.
    """
    census = _census(sweeper, within_ms=MEASURE_WITHIN_MS)
    let_in = _let_in(census.jobs, sweeper)
    budget = _measure(census, let_in, sweeper)
    with suppress(StoreBusyError):  # the jobs don't wait for it, and the next sweep looks again
        _switch_degraded(let_in, sweeper, whole=census.whole)
    sweep = _Sweep(until_ms=sweeper.clock.now_ms() + LOOK_AHEAD_MS, budget=budget, polls=poll)
    _paint(census, sweep, sweeper)
    _pass(sweep, sweeper)
    while poll and (census.jobs or not census.whole) and _time_to_poll(sweep, sweeper):
        sweeper.pause(POLL_EVERY_MS / 1000)
        _paint_again(sweep, sweeper)
        _pass(sweep, sweeper)
    if sweep.busy is not None and not sweep.did.total():
        raise sweep.busy
    swept = Swept(**sweep.did)
    sweeper.telemetry.event("jobs_swept", None, **asdict(swept))
    return swept


def _time_to_poll(sweep: _Sweep, sweeper: Sweeper) -> bool:
    """Whether another pass ends before the next sweep begins, and before the function does."""
    in_minute = sweeper.clock.now_ms() + POLL_EVERY_MS < sweep.until_ms
    return in_minute and sweeper.time_left_ms() >= POLL_EVERY_MS + STOP_BEFORE_END_MS


def _pass(sweep: _Sweep, sweeper: Sweeper) -> None:
    """Helps what is due within the sweep's minute, the oldest first."""
    until_ms = sweep.until_ms
    if sweep.polls:
        until_ms = min(until_ms, sweeper.clock.now_ms() + POLL_LOOKS_AHEAD_MS)
    due = [
        job
        for shard in range(DUE_SHARDS)
        for job in sweeper.due_jobs.due(str(shard), until_ms=until_ms, limit=PAGE)
        if job not in sweep.looked_at
    ]
    for seen in sorted(due, key=lambda job: job.due_at_epoch_ms):
        if sweeper.time_left_ms() < STOP_BEFORE_END_MS:
            break
        sweep.looked_at.add(seen)
        try:
            did = _look(seen, sweep, sweeper)
        except StoreBusyError as error:
            # The oldest comes first: it mustn't keep the others waiting each minute.
            sweep.busy = error
            continue
        except DamagedRowError:
            sweeper.telemetry.event("job_damaged", job_id=seen.job_id, tenant=seen.tenant)
            continue
        if did:
            sweep.did[did] += 1


def _look(seen: DueJob, sweep: _Sweep, sweeper: Sweeper) -> str:
    """Reads the job that the index told of, which lags, and helps it."""
    job = sweeper.jobs.get(seen.tenant, seen.job_id)
    if job is None or job.due_at_epoch_ms is None or job.due_at_epoch_ms > sweep.until_ms:
        return ""
    return _help(job, sweep.budget, sweeper)


def _help(job: Job, budget: dict[str, int], sweeper: Sweeper) -> str:
    """What the job needs; the name of what was done, "" when it moved meanwhile."""
    now_ms = sweeper.clock.now_ms()
    if job.unsettled and not job.open:
        sweeper.jobs.settle(job)
        return "settled"
    if job.status is JobStatus.FAILED:
        return _mark_dead_lettered(job, now_ms, sweeper)
    if not job.open:
        return ""
    if now_ms >= job.deadline_epoch_ms and now_ms >= (job.due_at_epoch_ms or 0):
        return _fail(job, now_ms, sweeper)
    return _send_again(job, now_ms, budget, sweeper)


def _mark_dead_lettered(job: Job, now_ms: int, sweeper: Sweeper) -> str:
    """Its message is in the dead-letter queue long since, and nobody was there to write it."""
    if now_ms < (job.due_at_epoch_ms or 0):
        return ""
    if not isinstance(sweeper.jobs.apply(job, transitions.dead_lettered(job)), Applied):
        return ""
    sweeper.telemetry.event("job_dead_lettered", job)
    return "dead_lettered"


def _fail(job: Job, now_ms: int, sweeper: Sweeper) -> str:
    error = JobError(
        code="deadline_exceeded",
        message="The job's deadline passed.",
        retryable=False,
        attempt=job.attempts,
        at_epoch_ms=now_ms,
        error_class="SluicewayError",
    )
    new = transitions.failed(job, error, now_ms=now_ms, last_receive=False)
    if not isinstance(sweeper.jobs.apply(job, new, unless_held_at_ms=now_ms), Applied):
        return ""
    sweeper.telemetry.event("job_failed", new, code=error.code, error_class=error.error_class)
    return "failed"


def _send_again(job: Job, now_ms: int, budget: dict[str, int], sweeper: Sweeper) -> str:
    """Another message, when the lane may lack one.

    The row moves first: a crash in between sends late, and never twice a minute.
    """
    due_ms = job.due_at_epoch_ms or now_ms
    at_ms = max(now_ms, due_ms)
    until_ms = _shut_until_ms(job, now_ms, sweeper)
    if until_ms > at_ms:
        # Nobody gets through: its message would only be parked again.
        later = sweeper.due_jobs.postpone(job, due_at_ms=until_ms, sent=False)
        return "postponed" if later else ""
    next_ms = transitions.next_look_ms(job, at_ms)
    if not sweeper.due_jobs.postpone(job, due_at_ms=next_ms):
        return ""
    # A parked job has no message for certain, until it is sent one: no part of a healthy backlog.
    without_message = job.parked and job.resends == 0
    if not without_message and budget[job.lane] <= 0:
        return "postponed"
    late = sweeper.clock.now_ms() - now_ms > SEND_STARTS_WITHIN_MS
    delay_s = math.ceil((at_ms - now_ms) / 1000)
    if late or not sweeper.queue.send(_without_lineage(job), delay_s=delay_s):
        if without_message:  # the next sweep sends it
            moved = replace(job, due_at_epoch_ms=next_ms)
            sweeper.due_jobs.postpone(moved, due_at_ms=due_ms, sent=False)
        return "postponed"
    if not without_message:
        budget[job.lane] -= 1
    sweeper.telemetry.event("job_resent", job)
    return "sent"


def _shut_until_ms(job: Job, now_ms: int, sweeper: Sweeper) -> int:
    """Until when a parked job would wait for its tenant or at the gate; 0: it may get through.

    During a pause that is the next sweep, so that each moves it once.
    """
    shut = _shut(job, now_ms, sweeper)
    if shut is None:
        return 0
    until_ms = now_ms + LOOK_AHEAD_MS if shut.paused else shut.until_ms
    return until_ms if until_ms < job.deadline_epoch_ms else 0


def _shut(job: Job, now_ms: int, sweeper: Sweeper) -> gate.Shut | None:
    """What a parked job waits for. A slot that it keeps lets it through the gate."""
    if not job.parked:
        return None
    if job.tenant in sweeper.state.read().paused_tenants:
        return gate.Shut(now_ms, paused=True)
    return None if job.slot is not None else _gate_shut(job.model, now_ms, sweeper)


def _gate_shut(name: str, now_ms: int, sweeper: Sweeper) -> gate.Shut | None:
    """Why nobody calls the model of this name now."""
    model = sweeper.catalogue.models.get(name)
    if model is None:
        return None
    key = gate.key_of(model.vendor, model.vendor_model)
    return sweeper.gates.look(key, now_ms=now_ms).shut(now_ms)


def _without_lineage(job: Job) -> Job:
    """Lambda stops a chain after 16 passes by its lineage; a job that was parked has more."""
    if job.trace_header is None:
        return job
    parts = job.trace_header.split(";")
    header = ";".join(part for part in parts if not part.startswith("Lineage="))
    return replace(job, trace_header=header or None)


@dataclass(slots=True)
class _Read:
    """What was read of the index one by one."""

    open: list[IndexedJob] = field(default_factory=list)
    rows: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """Shards of which not all is read, and how much is."""


def _census(sweeper: Sweeper, *, within_ms: int) -> Census:
    """Who waits and who is at work. What it costs here hardly grows with a long backlog.

    Shards are alike: a job's id, which is random, says in which it is.
    """
    stop_at_ms = sweeper.clock.now_ms() + within_ms
    read = _Read()
    for shard in map(str, range(DUE_SHARDS)):
        if not _read_shard(shard, read, sweeper, stop_at_ms):
            return Census(read.open, whole=False)
    if not read.left:
        return Census(read.open)
    tenants, models = _kept_back(read.open, sweeper)
    before = dict.fromkeys(
        (
            (status.value, lane)
            for status in (JobStatus.QUEUED, JobStatus.RETRYING)
            for lane in LANES
        ),
        sweeper.clock.now_ms() + 1,
    )
    for job in read.open:
        kind = str(job.status), job.lane
        if kind in before and job.tenant not in tenants and job.model not in models:
            before[kind] = min(before[kind], job.enqueued_at_epoch_ms)
    rows, found, whole = read.rows, dict.fromkeys(read.open), True
    for shard, known in read.left.items():
        rows -= known
        for number, told in sweeper.due_jobs.counted(
            shard, before=before, besides_tenants=tenants, besides_models=models
        ):
            rows += number
            found |= dict.fromkeys(told)
            if sweeper.clock.now_ms() > stop_at_ms:
                whole = False
                break
    return Census([*found], _weight([*found], read, rows), whole)


def _weight(found: Collection[IndexedJob], read: _Read, rows: int) -> float:
    """For how many of the index's `rows` each job stands that waits: together for all that do.

    Whoever is at work was found, and of what ended there is as much as among what was read.
    """
    waiting = sum(job.status != JobStatus.PROCESSING for job in found)
    still_open = rows * len(read.open) / max(1, read.rows)
    return max(1.0, (still_open - (len(found) - waiting)) / waiting) if waiting else 1.0


def _read_shard(shard: str, read: _Read, sweeper: Sweeper, stop_at_ms: int) -> bool:
    """Reads a shard, as far as one goes. False: the time is over."""
    known = 0
    if read.rows >= MOST_READ // 2:
        read.left[shard] = known
        return True
    for job in sweeper.due_jobs.indexed(shard):
        if read.rows >= MOST_READ:
            read.left[shard] = known
            return True
        if sweeper.clock.now_ms() > stop_at_ms:
            return False
        known += 1
        read.rows += 1
        if job.status in OPEN:
            read.open.append(job)
    return True


def _paint(census: Census, sweep: _Sweep, sweeper: Sweeper) -> None:
    """Writes the picture of the backlog; of no backlog only over that of one.

    What couldn't be counted is told by the messages of the lanes, copies among them.
    """
    waiting = census.jobs
    uncounted = {}
    for lane in () if census.whole else LANES:
        counted = round(census.weight * sum(job.lane == lane for job in waiting))
        with suppress(StoreBusyError):
            uncounted[lane] = sweeper.queue.backlog(lane) - counted
    sweep.polls_to_painting = max(1, math.ceil(census.weight * len(waiting) / ROWS_PER_POLL))
    with suppress(StoreBusyError):  # the jobs don't wait for it, and the next pass paints again
        picture = paint_backlog(
            waiting,
            weight=census.weight,
            now_ms=sweeper.clock.now_ms(),
            workers=sweeper.workers,
            catalogue=sweeper.catalogue,
            gates=sweeper.gates,
            latencies=sweeper.latencies,
            paused_tenants=sweeper.state.read().paused_tenants,
            uncounted=uncounted,
        )
        if picture.groups or sweeper.backlogs.read().groups:
            sweeper.backlogs.write(picture)
        if sweep.polls:
            _wake(census, picture, sweep, sweeper)


def _wake(census: Census, picture: Backlog, sweep: _Sweep, sweeper: Sweeper) -> None:
    """Sends for jobs before their turn, where workers and slots would be idle."""
    known = sweeper.state.read()
    wakes = to_wake(
        [
            job
            for job in census.jobs
            if job not in sweep.sent_for
            and job.tenant not in known.paused_tenants
            and job.model in sweeper.catalogue.models
        ],
        picture,
        sweeper.catalogue,
        now_ms=sweeper.clock.now_ms(),
        messages=sweeper.queue.backlog,
        paused_lanes=known.paused_lanes,
        next_ms=sweep.polls_to_painting * POLL_EVERY_MS,
        weight=round(census.weight),
    )
    for wake in wakes:
        if sweeper.time_left_ms() < STOP_BEFORE_END_MS:
            return
        sweep.sent_for.add(wake.job)
        with suppress(StoreBusyError, DamagedRowError):
            sweep.did["sent"] += _send_for(wake, sweeper)


def _send_for(wake: Wake, sweeper: Sweeper) -> int:
    """How many messages were sent. As ever, the row says first that the job is open still.

    A parked job is so no more; of one that has its message already this is another.
    """
    now_ms = sweeper.clock.now_ms()
    job = sweeper.jobs.get(wake.job.tenant, wake.job.job_id)
    if job is None or not job.open or job.status is JobStatus.PROCESSING:
        return 0
    if job.parked:
        if job.slot is not None or job.status is not JobStatus.QUEUED:
            return 0
        new = transitions.woken(job, now_ms=now_ms)
        if not isinstance(sweeper.jobs.apply(job, new), Applied):
            return 0
        job = new
    elif job.due_at_epoch_ms is None or not sweeper.due_jobs.postpone(
        job, due_at_ms=job.due_at_epoch_ms, sent=False
    ):
        return 0
    if sweeper.clock.now_ms() - now_ms > SEND_STARTS_WITHIN_MS:
        return 0
    if not sweeper.queue.send(
        replace(_without_lineage(job), lane=wake.lane), delay_s=WOKEN_AFTER_S
    ):
        return 0
    sweeper.telemetry.event("job_resent", job, early=True, to=wake.lane)
    return 1


def _paint_again(sweep: _Sweep, sweeper: Sweeper) -> None:
    """Paints in a later pass, the more rarely the longer the index is."""
    sweep.polls_to_painting -= 1
    if sweep.polls_to_painting <= 0:
        within_ms = sweeper.time_left_ms() - STOP_BEFORE_END_MS
        census = _census(sweeper, within_ms=within_ms)
        if census.whole:  # else it would tell less than the last one
            _paint(census, sweep, sweeper)


def _let_in(waiting: list[IndexedJob], sweeper: Sweeper) -> list[IndexedJob]:
    """Those that nothing keeps back: their age tells of the lanes."""
    tenants, models = _kept_back(waiting, sweeper)
    return [job for job in waiting if job.tenant not in tenants and job.model not in models]


def _kept_back(
    waiting: list[IndexedJob], sweeper: Sweeper
) -> tuple[Collection[str], Collection[str]]:
    """Tenants and models whose jobs a pause, a shut gate or a catalogue without them keeps."""
    now_ms = sweeper.clock.now_ms()
    try:
        paused_tenants = sweeper.state.read().paused_tenants
        closed_at = {
            name: _gate_shut(name, now_ms, sweeper) for name in {job.model for job in waiting}
        }
    except StoreBusyError:  # the jobs don't wait for a figure
        return (), ()
    shut = {name for name, closed in closed_at.items() if closed is not None and not closed.far}
    return paused_tenants, shut | (closed_at.keys() - sweeper.catalogue.models.keys())


def _switch_degraded(let_in: list[IndexedJob], sweeper: Sweeper, *, whole: bool) -> None:
    """Begins degraded mode when a job waits for its first run too long, and ends it well below.

    What waits for another attempt has its own reason to be late. A flag begins it whatever the age,
    and as long as that is on nothing ends it.
    """
    now_ms = sweeper.clock.now_ms()
    queued = (job for job in let_in if job.status == JobStatus.QUEUED)
    oldest_s = max((now_ms - job.enqueued_at_epoch_ms for job in queued), default=0) / 1000
    state = sweeper.state.read()
    since_ms = state.degraded_since_epoch_ms
    by_flag = sweeper.flags.on("degraded")
    if since_ms is None:
        late = by_flag or oldest_s >= sweeper.catalogue.service.degraded_after_s
        if late and sweeper.state.set_degraded(now_ms):
            told: dict[str, str | int | bool] = {
                "reason": "flag" if by_flag else "age",
                "oldest_job_age_ms": round(oldest_s * 1000),
            }
            sweeper.telemetry.event("degraded_began", None, **told)
            _tell("DegradedBegan", told, sweeper, actor="flag" if by_flag else "sweeper")
        return
    ends = not by_flag and whole and oldest_s < sweeper.catalogue.service.degraded_until_s
    # The row is moved first: who dies in between loses this part, and nobody counts it twice. What
    # a sweep leaves because it is late, the next ones tell, and the last one all the rest.
    told_ms = max(since_ms, state.degraded_told_epoch_ms or 0)
    until_ms = now_ms if ends else min(now_ms, told_ms + MOST_TOLD_MS)
    if until_ms > told_ms and sweeper.state.tell_degraded(since_ms, told_ms, until_ms):
        sweeper.telemetry.event("degraded_lasted", lasted_ms=until_ms - told_ms)
    if ends and sweeper.state.set_degraded(None):
        degraded_s = (now_ms - since_ms) // 1000
        sweeper.telemetry.event("degraded_ended", degraded_s=degraded_s)
        _tell("DegradedEnded", {"degraded_s": degraded_s}, sweeper, actor="sweeper")


def _tell(
    kind: str, facts: Mapping[str, str | int | bool], sweeper: Sweeper, *, actor: str
) -> None:
    """Notifies operators of what this sweep has written: once, or never when it dies in between."""
    notice = Notice(kind, sweeper.clock.now_ms(), "service", actor, facts)
    if sweeper.bus.put([notice]):
        sweeper.telemetry.event("notice_lost", notice=kind)


def _measure(census: Census, let_in: list[IndexedJob], sweeper: Sweeper) -> dict[str, int]:
    """Tells how each lane and its workers do; gives how many of its jobs may be sent again.

    A long backlog isn't a loss: while the lane holds a message for each waiting job, its jobs are
    only looked at again later. What is not whole tells of as much at least, and sends less.
    """
    now_ms = sweeper.clock.now_ms()
    budget = {}
    busy = _busy(census.jobs, sweeper.workers)
    missed = _missed(let_in, sweeper)
    waiting = Counter(job.lane for job in census.jobs if job.status != JobStatus.PROCESSING)
    for lane in LANES:
        depth = round(census.weight * waiting[lane])
        try:
            missing = depth - sweeper.queue.backlog(lane)
        except StoreBusyError:  # as if it were healthy: the least is sent
            missing = 0
        if census.sampled and missing < SURELY_MISSING * depth:
            missing = 0
        oldest_ms = max(
            (
                max(0, now_ms - job.enqueued_at_epoch_ms)  # by another clock it may be to come
                for job in let_in
                if job.lane == lane and job.status != JobStatus.PROCESSING
            ),
            default=0,
        )
        sweeper.telemetry.event(
            "lane_measured",
            lane=lane,
            queue_depth=depth,
            oldest_job_age_ms=oldest_ms,
            utilisation_percent=min(100, 100 * busy[lane] // sweeper.workers[lane]),
            workers_idle=max(0, min(sweeper.workers[lane] - busy[lane], missed[lane])),
            whole=census.whole,
        )
        budget[lane] = max(missing, LEAST_SENDS)
    return budget


def _busy(open_jobs: list[IndexedJob], workers: Mapping[str, int]) -> dict[str, int]:
    """How many workers of each lane are at work.

    What is more than a lane's own is lent: at work in the other one.
    """
    running = Counter(job.lane for job in open_jobs if job.status == JobStatus.PROCESSING)
    lent = {lane: max(0, running[lane] - workers[lane]) for lane in LANES}
    return {
        lane: running[lane] + lent[other] for lane, other in zip(LANES, LANES[::-1], strict=True)
    }


def _missed(let_in: list[IndexedJob], sweeper: Sweeper) -> Counter[str]:
    """By lane: jobs with a message that nothing but a worker is missing for, and for too long."""
    now_ms = sweeper.clock.now_ms()
    try:
        paused_lanes = sweeper.state.read().paused_lanes
    except StoreBusyError:  # the jobs don't wait for a figure
        return Counter()
    return Counter(
        job.lane
        for job in let_in
        if job.status in {JobStatus.QUEUED, JobStatus.RETRYING}
        and not job.parked
        and job.lane not in paused_lanes
        and now_ms - max(job.enqueued_at_epoch_ms, job.not_before_epoch_ms or 0) > LONG_WAIT_MS
    )
