"""Run: one delivery of a job's message, and at most one call to the vendor."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sluiceway.domain import backoff, gate, shares, strict_json, timeouts
from sluiceway.domain import job as transitions
from sluiceway.domain.catalogue import (
    FINISH_MARGIN_S,
    MODEL_GONE,
    Catalogue,
    Model,
    Vendor,
    scope_of,
)
from sluiceway.domain.errors import (
    CallAbortedError,
    NotCalledError,
    StoreBusyError,
    VendorError,
)
from sluiceway.domain.freshness import CacheEntry, Freshness, lifetime
from sluiceway.domain.gate import Limits, Room, Shut
from sluiceway.domain.job import (
    LAST_BOUNCE_AFTER_FAILURE_MS,
    LAST_RETURN_RECEIVE,
    LONGEST_RETURN_S,
    MAX_RECEIVES,
    REDRIVE_AFTER_FAILURE_MS,
    RESEND_AFTER_SUBMIT_MS,
    Job,
    JobError,
    JobStatus,
)
from sluiceway.domain.lease import Lease
from sluiceway.domain.payload import (
    INLINE_PLAIN_BYTES,
    INLINE_RESULT_BYTES,
    LAST_RESORT_BYTES,
    Payload,
    compress,
)
from sluiceway.ports import (
    Applied,
    Backlogs,
    Clock,
    Gates,
    JobStore,
    Latencies,
    LeaseHeld,
    Moved,
    PayloadStore,
    ResultCache,
    StateStore,
    Telemetry,
    VendorAnswer,
    VendorCall,
    VendorClient,
)
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.ticket import Ticket

MAX_STORE_TRIES = 8
FINISH_RESERVE_MS = 6_000
"""Of a lease: what the last write of a result needs."""

SHUT_SPREAD_MS = 2_000
PROBE_MARGIN_MS = 5_000

TIMER_SLACK_MS = 100
"""A call that ended so shortly before its timeout has used it up."""

MODEL_LOST_AFTER_MS = 3_600_000
"""A job whose model is unknown is given up so long after it was enqueued. Until then a push may be
on its way that this worker has not seen yet, or one that is taken back and repaired."""

MODEL_LOOK_MS = 60_000

MAX_LOOKS = 5
"""At a job that somebody else moves while we decide."""


class Delivery(NamedTuple):
    """One receive of a job's message."""

    tenant: str
    job_id: str
    receives: int
    """SQS's ApproximateReceiveCount, from 1."""
    enqueued_at_ms: int
    """When the message entered its lane: a redriven one, when it was moved back."""
    lane: str
    function_ends_ms: int
    """When Lambda will stop this worker."""


class Acknowledge(NamedTuple):
    """The message has done its duty."""


class GiveBack(NamedTuple):
    """The message shall come back after `delay_s`."""

    delay_s: float = 0.0


Decision = Acknowledge | GiveBack


class Worker(NamedTuple):
    """What a run needs from the outside."""

    catalogue: Catalogue
    jobs: JobStore
    cache: ResultCache
    state: StateStore
    payloads: PayloadStore
    gates: Gates
    latencies: Latencies
    backlogs: Backlogs
    vendors: VendorClient
    clock: Clock
    telemetry: Telemetry
    rand: Callable[[], float]
    """In [0, 1)."""
    token: Callable[[], str]
    """A fresh lease token."""
    pause: Callable[[float], None]
    """Waits that many seconds."""
    lease_ms: int


def run_job(delivery: Delivery, worker: Worker) -> Decision:
    """Runs the job of a message as far as it goes, and says what becomes of the message."""
    for _ in range(MAX_LOOKS):
        job = worker.jobs.get(delivery.tenant, delivery.job_id)
        if job is None:
            worker.telemetry.event("message_without_job")
            return Acknowledge()
        worker.telemetry.about(job)
        decision = _step(job, delivery, worker)
        if decision is not None:
            return decision
    return _later(delivery, worker)


def _step(job: Job, delivery: Delivery, worker: Worker) -> Decision | None:
    """One decision on the job as it was read; None: it moved, look again."""
    now_ms = worker.clock.now_ms()
    if job.status in {JobStatus.COMPLETED, JobStatus.CANCELLED} or job.discarded:
        return Acknowledge()
    if not job.open:
        return _send_on(job, delivery, worker)
    early_ms = (job.not_before_epoch_ms or 0) - now_ms
    if early_ms > 0:
        if _hold(job, early_ms, delivery, worker):
            return None
        # A parked job's copy: the sweeper sends another in time.
        return Acknowledge() if job.parked else _wait(job, delivery, worker, early_ms / 1000)
    refusal = _refusal(job, now_ms, worker)
    if refusal is not None:
        return _fail(job, refusal, delivery, worker, lease=None)
    if job.model not in worker.catalogue.models:
        until_ms = _look_for_model_ms(job, now_ms, worker)
        return _wait_outside(job, until_ms, "model_unknown", delivery, worker)
    if job.tenant in worker.state.read().paused_tenants:
        until_ms = _look_again_ms(job, _tenant_paused(now_ms), delivery, worker)
        return _wait_outside(job, until_ms, "tenant_paused", delivery, worker)

    outcome = worker.jobs.start(
        job,
        token=worker.token(),
        lease_ms=min(worker.lease_ms, delivery.function_ends_ms - now_ms),
        now_ms=now_ms,
        started=lambda fence: transitions.started(
            job,
            fence=fence,
            now_ms=now_ms,
            receives=delivery.receives,
            function_ends_ms=delivery.function_ends_ms,
        ),
    )
    if isinstance(outcome, Moved):
        return None
    if isinstance(outcome, LeaseHeld):
        return _wait_for_lease(job, delivery, worker, own=outcome.by_this_job)
    worker.telemetry.about(outcome.job)
    worker.telemetry.event("lease_acquired", outcome.job)
    unknown = job.called_at_epoch_ms is not None
    return _work(outcome.job, outcome.lease, delivery, worker, unknown=unknown)


def _hold(job: Job, early_ms: int, delivery: Delivery, worker: Worker) -> bool:
    """Waits in here for a job that may start soon; False: it is too early, or too little time left.

    Hold, call and finish fit into the length of a lease (`catalogue.check_times`), so that much
    must be left. A hold costs no receive, and holds no lease.
    """
    left_ms = delivery.function_ends_ms - worker.clock.now_ms()
    if early_ms > worker.catalogue.service.hold_max_s * 1000 or left_ms < worker.lease_ms:
        return False
    worker.telemetry.event("job_held", job, early_ms=early_ms)
    worker.pause(early_ms / 1000)
    return True


def _wait(
    job: Job, delivery: Delivery, worker: Worker, delay_s: float | None = None
) -> Decision | None:
    """The message of an open job comes back later; from the 7th receive on the job is parked.

    Without `delay_s`, as long as one waits for somebody else's lease. None: the job moved.
    """
    if delay_s is None:
        delay_s = backoff.contention_delay_s(delivery.receives, rand=worker.rand())
    if not _parks(delivery, delay_s):
        return GiveBack(delay_s)
    until_ms = worker.clock.now_ms() + round(delay_s * 1000)
    new = transitions.parked(job, not_before_ms=until_ms)
    if not isinstance(worker.jobs.apply(job, new), Applied):
        return None
    worker.telemetry.event("job_parked", new)
    return Acknowledge()


def _parks(delivery: Delivery, delay_s: float) -> bool:
    """Whether a wait of this message is one without it."""
    return delivery.receives > LAST_RETURN_RECEIVE or delay_s > LONGEST_RETURN_S


def _later(delivery: Delivery, worker: Worker) -> Decision:
    """For a job that somebody else moves: its message, or the sweeper, looks again."""
    if delivery.receives > LAST_RETURN_RECEIVE:
        return Acknowledge()
    return GiveBack(backoff.contention_delay_s(delivery.receives, rand=worker.rand()))


def _refusal(job: Job, now_ms: int, worker: Worker) -> JobError | None:
    """Why the job may not be started any more, in the protocol's order."""
    if now_ms >= job.deadline_epoch_ms:
        return _error(job, "deadline_exceeded", "The job's deadline passed.", now_ms)
    model = worker.catalogue.models.get(job.model)
    if model is None:
        if now_ms < job.enqueued_at_epoch_ms + MODEL_LOST_AFTER_MS:
            return None
        return _error(job, "vendor_rejected", MODEL_GONE, now_ms)
    if job.called_at_epoch_ms is not None and _fresh_entry(job, worker) is None:
        return _error(job, "outcome_unknown", _UNKNOWN, now_ms)
    if job.attempts >= model.max_attempts:
        if job.status is JobStatus.PROCESSING:
            message = "The worker ended without a word in each of the last attempts."
            return _error(job, "worker_crashed", message, now_ms)
        return _error(job, "attempts_exhausted", "All attempts are used up.", now_ms)
    return None


_UNKNOWN = "A worker died during the call, and this vendor may not be asked twice."


def _look_for_model_ms(job: Job, now_ms: int, worker: Worker) -> int:
    """When a job looks again whose model this worker doesn't know; more rarely as it waits."""
    waited_ms = max(0, now_ms - job.enqueued_at_epoch_ms)
    spread_ms = max(MODEL_LOOK_MS, waited_ms // 2)
    until_ms = now_ms + MODEL_LOOK_MS // 2 + round(worker.rand() * spread_ms)
    return min(until_ms, job.deadline_epoch_ms)


def _wait_outside(
    job: Job, until_ms: int, why: str, delivery: Delivery, worker: Worker
) -> Decision | None:
    """The job waits without a message, as behind a paused gate: no attempt, and no lease.

    What another worker is busy with is left to it.
    """
    now_ms = worker.clock.now_ms()
    new = transitions.parked(job, not_before_ms=until_ms)
    taken = job.status is JobStatus.PROCESSING
    outcome = worker.jobs.apply(job, new, unless_held_at_ms=now_ms if taken else None)
    if isinstance(outcome, LeaseHeld):
        return _wait_for_lease(job, delivery, worker, own=outcome.by_this_job)
    if not isinstance(outcome, Applied):
        return None
    worker.telemetry.event("job_parked", new, reason=why)
    return Acknowledge()


def _tenant_paused(now_ms: int) -> Shut:
    return Shut(now_ms + gate.PAUSE_LOOK_MS, paused=True)


def _wait_for_lease(job: Job, delivery: Delivery, worker: Worker, *, own: bool) -> Decision | None:
    """The key is being worked on."""
    if own:
        return Acknowledge()  # A copy of the message whose worker is at it.
    entry = _fresh_entry(job, worker)
    if entry is not None:
        return _complete_from_cache(job, entry, worker, lease=None)
    worker.telemetry.event("lease_contention", job)
    return _wait(job, delivery, worker)


def _work(job: Job, lease: Lease, delivery: Delivery, worker: Worker, *, unknown: bool) -> Decision:
    """The attempt itself, with the lease in hand. `unknown`: an earlier call's outcome is."""
    entry = _fresh_entry(job, worker)
    if entry is not None:
        decision = _complete_from_cache(job, entry, worker, lease=lease)
        return decision or _lost(job, lease, delivery, worker)
    if unknown:  # There was an entry before the start, and it is gone.
        reason = _error(job, "outcome_unknown", _UNKNOWN, worker.clock.now_ms())
        decision = _fail(job, reason, delivery, worker, lease=lease, call_nanos=0)
        return decision or _lost(job, lease, delivery, worker)
    model = worker.catalogue.model(job.model)
    try:
        passing = _passing(job, model, worker)
        # Before the slot: calls that begin late would come to the vendor in a bunch.
        worker.vendors.prepare(worker.catalogue.vendor_of(model))
    except VendorError as error:
        return _after_error(job, error, model, delivery, worker, lease)
    inside: list[tuple[Room, ...]] = []
    try:
        through = _let_in(job, lease, passing, inside, delivery, worker)
        if isinstance(through, Acknowledge | GiveBack):
            return through
        ticket, lease = through
        now_ms = worker.clock.now_ms()
        if ticket.missed(now_ms):  # the tables were slow
            return _park_at_gate(job, lease, now_ms, None, delivery, worker)
        return _ask(job, lease, passing, ticket, delivery, worker)
    finally:
        for rooms in inside:
            _leave(rooms, lease, worker)


def _let_in(
    job: Job,
    lease: Lease,
    passing: _Passing,
    inside: list[tuple[Room, ...]],
    delivery: Delivery,
    worker: Worker,
) -> tuple[Ticket, Lease] | Decision:
    """A slot whose moment has come; or the job waits without a message. Adds to `inside`.

    Rows that are busy cost no attempt: they are the gate's or the lane's, seldom the job's, too.
    """
    try:
        for rooms, why in ((_places(job, delivery, worker), "share"), (passing.rooms, "room")):
            if not rooms:
                continue
            now_ms = worker.clock.now_ms()
            if not worker.gates.enter(
                rooms, lease.token, now_ms=now_ms, until_ms=delivery.function_ends_ms
            ):
                line_ms = _line_ms(job, delivery, worker) if why == "share" else 0.0
                until_ms = _turn_ms(job, line_ms, worker)
                return _park_at_gate(job, lease, until_ms, None, delivery, worker, why)
            inside.append(rooms)
        return _pass_gate(job, lease, passing, delivery, worker)
    except StoreBusyError:
        until_ms = _turn_ms(job, 0.0, worker)
        return _park_at_gate(job, lease, until_ms, None, delivery, worker, "busy")


def _ask(
    job: Job,
    lease: Lease,
    passing: _Passing,
    ticket: Ticket,
    delivery: Delivery,
    worker: Worker,
) -> Decision:
    """The call, with a slot for it."""
    model = passing.model
    vendor = worker.catalogue.vendor_of(model)
    if vendor.on_unknown_outcome == "fail":
        marked = transitions.called(job, now_ms=worker.clock.now_ms())
        if not isinstance(worker.jobs.apply(job, marked), Applied):
            return _lost(job, lease, delivery, worker)
        job = marked
    held = lease

    def still_wanted() -> bool:
        """Renews the lease; False when it was lost or the job was cancelled."""
        nonlocal held
        now_ms = worker.clock.now_ms()
        try:
            renewed = worker.jobs.renew(job, held, ends_at_ms=_lease_end(now_ms, delivery, worker))
        except StoreBusyError:
            return held.working_time_ms(now_ms) > 0
        if not isinstance(renewed, Lease):
            return False
        held = renewed
        return True

    try:
        answer = _call(job, passing, vendor, lease, worker, still_wanted)
    except VendorError as error:
        with suppress(StoreBusyError):
            _tell_gate(passing, ticket, error, worker)
        return _after_error(job, error, model, delivery, worker, held)
    except CallAbortedError:
        return _lost(job, held, delivery, worker)
    decision = _complete(job, answer, passing, delivery, held, worker)
    with suppress(StoreBusyError):  # the result comes first
        worker.gates.worked(passing.key, ticket)
        spent = answer.input_tokens + answer.output_tokens
        worker.gates.settle(
            passing.key,
            passing.limits,
            ticket,
            tokens=passing.tokens - spent,
            now_ms=worker.clock.now_ms(),
        )
    _learn(passing.model, answer.latency_ms, worker)
    return decision


def _leave(rooms: tuple[Room, ...], lease: Lease, worker: Worker) -> None:
    """A place that can't be given back is free when the function's time is up."""
    with suppress(StoreBusyError):
        worker.gates.leave(rooms, lease.token)


def _lease_end(now_ms: int, delivery: Delivery, worker: Worker) -> int:
    return min(now_ms + worker.lease_ms, delivery.function_ends_ms)


# ------------------------------------------------------------------------------------ shares


def _places(job: Job, delivery: Delivery, worker: Worker) -> tuple[Room, ...]:
    """The places among the lane's workers that the job needs; it counts where it runs."""
    now_ms = worker.clock.now_ms()
    return shares.places_of(
        places.read(worker.backlogs, now_ms),
        worker.catalogue,
        lane=delivery.lane,
        tenant=job.tenant,
        model=job.model,
        redriven=job.redrives > 0,
        now_ms=now_ms,
    )


def _line_ms(job: Job, delivery: Delivery, worker: Worker) -> float:
    """How long the line takes that the job stands in; 0: not known."""
    return shares.line_ms(
        places.read(worker.backlogs, worker.clock.now_ms()),
        worker.catalogue,
        lane=delivery.lane,
        tenant=job.tenant,
        model=job.model,
    )


def _turn_ms(job: Job, line_ms: float, worker: Worker) -> int:
    """When a job of this line looks again."""
    now_ms = worker.clock.now_ms()
    left_ms = job.deadline_epoch_ms - now_ms
    return now_ms + shares.parked_ms(line_ms, rand=worker.rand(), left_ms=left_ms)


# ------------------------------------------------------------------------------------ the gate


class _Passing(NamedTuple):
    """What a call needs of the gate of its vendor's model."""

    name: str
    """Of the model."""
    model: Model
    body: bytes
    key: str
    limits: Limits
    rooms: tuple[Room, ...]
    tokens: int
    """Estimated."""
    timeout_s: float
    """Of the call, if the lease leaves so much."""


def _passing(job: Job, model: Model, worker: Worker) -> _Passing:
    """Raises NotCalledError when the job's input can't be had, so that no slot is spent on it."""
    try:
        body = payloads_of.load(job.input, payloads=worker.payloads)
    except StoreBusyError as error:
        message = "The job's input could not be read."
        raise NotCalledError("vendor_unavailable", message, retryable=True) from error
    except (KeyError, ValueError) as error:
        message = "The job's input is gone or damaged."
        raise NotCalledError("vendor_rejected", message, retryable=False) from error
    return _Passing(
        name=job.model,
        model=model,
        body=body,
        key=gate.key_of(model.vendor, model.vendor_model),
        limits=Limits.of(model),
        rooms=gate.rooms_of(model.vendor, worker.catalogue.vendor_of(model), model),
        tokens=sum(gate.estimated_tokens(body)) if model.tokens_per_minute else 0,
        timeout_s=_timeout_s(job, model, worker),
    )


def _timeout_s(job: Job, model: Model, worker: Worker) -> float:
    """By what calls took lately; the most that there is for a job whose last call took too long."""
    if job.last_errors and job.last_errors[-1].code == "vendor_timeout":
        return model.timeout_s.max
    median_ms = None
    with suppress(StoreBusyError):
        key = timeouts.key_of(model.vendor, model.vendor_model)
        median_ms = worker.latencies.median_ms(key, now_ms=worker.clock.now_ms())
    return timeouts.timeout_s(model.timeout_s, median_ms)


def _learn(model: Model, latency_ms: int, worker: Worker, *, timed_out: bool = False) -> None:
    """What a call took, for those that come; nothing waits for it."""
    key = timeouts.key_of(model.vendor, model.vendor_model)
    with suppress(StoreBusyError):
        worker.latencies.add(key, latency_ms, now_ms=worker.clock.now_ms(), surely=timed_out)


def _pass_gate(
    job: Job, lease: Lease, passing: _Passing, delivery: Delivery, worker: Worker
) -> tuple[Ticket, Lease] | Decision:
    """A slot whose moment has come; or the job waits without a message."""
    now_ms = worker.clock.now_ms()
    ticket = job.slot
    if (
        ticket is None
        or not ticket.usable(now_ms)
        or not worker.gates.still_open(passing.key, ticket, now_ms=now_ms)
    ):
        taken = worker.gates.take(
            passing.key,
            passing.limits,
            tokens=passing.tokens,
            now_ms=now_ms,
            probe_ms=round(passing.model.timeout_s.max * 1000) + PROBE_MARGIN_MS,
            furthest_ms=shares.reach_ms(
                places.read(worker.backlogs, now_ms),
                worker.catalogue,
                lane=delivery.lane,
                tenant=job.tenant,
                model=job.model,
                hold_ms=round(worker.catalogue.service.hold_max_s * 1000),
                now_ms=now_ms,
            ),
        )
        if isinstance(taken, Shut):
            until_ms = _look_again_ms(job, taken, delivery, worker)
            return _park_at_gate(job, lease, until_ms, None, delivery, worker)
        ticket = taken
    wait_ms = ticket.slot_at_ms - now_ms
    if wait_ms <= 0:
        return ticket, lease
    least_ms = round((passing.model.timeout_s.min + FINISH_MARGIN_S / 2) * 1000)
    room_ms = lease.working_time_ms(now_ms) - least_ms
    if wait_ms > min(worker.catalogue.service.hold_max_s * 1000, room_ms):
        return _park_at_gate(job, lease, ticket.slot_at_ms, ticket, delivery, worker)
    worker.telemetry.event("gate_waited", job, gate_wait_ms=wait_ms)
    worker.pause(wait_ms / 1000)
    now_ms = worker.clock.now_ms()
    if job.tenant in worker.state.read().paused_tenants:
        until_ms = _look_again_ms(job, _tenant_paused(now_ms), delivery, worker)
        return _park_at_gate(job, lease, until_ms, None, delivery, worker, "tenant_paused")
    renewed = worker.jobs.renew(
        job,
        lease,
        ends_at_ms=_lease_end(now_ms, delivery, worker),
        gate=(passing.key, ticket, now_ms),
    )
    if isinstance(renewed, Lease):
        return ticket, renewed
    if renewed is None:
        return _lost(job, lease, delivery, worker)
    until_ms = _look_again_ms(job, renewed, delivery, worker)
    return _park_at_gate(job, lease, until_ms, None, delivery, worker)


def _look_again_ms(job: Job, shut: Shut, delivery: Delivery, worker: Worker) -> int:
    """Not all at the same moment; after a pause soon enough for a resume to be felt in 90 s."""
    if shut.far and (line_ms := _line_ms(job, delivery, worker)):
        return _turn_ms(job, line_ms, worker)
    if shut.far:
        ahead_ms = shut.until_ms - worker.clock.now_ms()
        return shut.until_ms - round(worker.rand() * ahead_ms / 5)
    spread_ms = gate.PAUSE_LOOK_MS if shut.paused else SHUT_SPREAD_MS
    return shut.until_ms + round(worker.rand() * spread_ms)


def _park_at_gate(
    job: Job,
    lease: Lease,
    until_ms: int,
    slot: Ticket | None,
    delivery: Delivery,
    worker: Worker,
    why: str = "gate",
) -> Decision:
    """The attempt is taken back: nobody was asked. `why`: the reason that its event tells."""
    new = transitions.gated(job, not_before_ms=until_ms, slot=slot)
    if not isinstance(_write(job, new, worker, lease=lease), Applied):
        return _lost(job, lease, delivery, worker)
    worker.telemetry.event("job_parked", new, reason=why)
    return Acknowledge()


def _tell_gate(passing: _Passing, ticket: Ticket, error: VendorError, worker: Worker) -> None:
    """What the vendor's failure means for the other workers."""
    now_ms = worker.clock.now_ms()
    if error.overload:
        wait_s = error.retry_after_s
        wait_ms = gate.COOL_DOWN_MS if wait_s is None else round(wait_s * 1000)
        ours = worker.gates.close(
            passing.key, passing.limits, ticket, now_ms=now_ms, until_ms=now_ms + wait_ms
        )
        if ours:
            worker.telemetry.event("gate_closed", model=passing.name, closed_ms=wait_ms)
    elif error.down:
        worker.gates.failed(passing.key, passing.limits, ticket, now_ms=now_ms)
    elif error.http_status is not None:  # no good answer, but one: the vendor is up
        worker.gates.worked(passing.key, ticket)


def _call(
    job: Job,
    passing: _Passing,
    vendor: Vendor,
    lease: Lease,
    worker: Worker,
    still_wanted: Callable[[], bool],
) -> VendorAnswer:
    """One request on the wire. Raises VendorError, also when no time is left to begin it."""
    model = passing.model
    began_ms = worker.clock.now_ms()
    left_s = lease.working_time_ms(began_ms) / 1000 - FINISH_MARGIN_S / 2
    if left_s < model.timeout_s.min:
        message = "The lease left no time for the call."
        raise NotCalledError("vendor_timeout", message, retryable=True)
    call = VendorCall(
        vendor=vendor,
        model=model,
        body=passing.body,
        idempotency_key=job.job_id,
        timeout_s=min(passing.timeout_s, left_s),
        retry_after_max_s=worker.catalogue.service.retry_after_max_s,
        still_wanted=still_wanted,
    )
    try:
        with worker.telemetry.span(f"vendor {model.vendor}", job):
            return worker.vendors.call(call)
    except VendorError as error:
        spent_ms = worker.clock.now_ms() - began_ms
        error.latency_ms = spent_ms
        # Connecting times out sooner, and what the lease cut off tells nothing.
        if error.job_code == "vendor_timeout" and (
            spent_ms >= passing.timeout_s * 1000 - TIMER_SLACK_MS
        ):
            _learn(model, round(model.timeout_s.max * 1000), worker, timed_out=True)
        raise


def _complete(
    job: Job,
    answer: VendorAnswer,
    passing: _Passing,
    delivery: Delivery,
    lease: Lease,
    worker: Worker,
) -> Decision:
    """Keeps the paid answer: in the job, and in the cache when it is whole."""
    model = passing.model
    cost_nanos = model.price.cost_nanos(answer.input_tokens, answer.output_tokens)
    document: dict[str, object] = {"text": answer.text, "finish_reason": answer.finish_reason}
    if answer.content is not None:
        document["content"] = answer.content
    result = _keep(strict_json.dump(document), job, lease, worker)
    if result is None:
        message = "The result was paid for, and could not be stored."
        reason = _error(job, "result_too_large", message, worker.clock.now_ms())
        worker.telemetry.event("result_lost", job, cost_nanos=cost_nanos)
        decision = _fail(
            job,
            reason,
            delivery,
            worker,
            lease=lease,
            vendor_request_id=answer.vendor_request_id,
            call_nanos=cost_nanos,
        )
        return decision or _lost(job, lease, delivery, worker)
    now_ms = worker.clock.now_ms()
    new = transitions.completed(
        job,
        now_ms=now_ms,
        result=result,
        source="vendor",
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cost_nanos=cost_nanos,
        vendor_request_id=answer.vendor_request_id,
        upstream_latency_ms=answer.latency_ms,
    )
    entry = None
    if _storable(job, answer, passing, worker):
        entry = _entry(new, answer, model, worker)
    written = _write(job, new, worker, lease=lease, entry=entry)
    if not isinstance(written, Applied):
        worker.telemetry.event("result_lost", job, cost_nanos=cost_nanos)
        return _lost(job, lease, delivery, worker)
    worker.telemetry.event("job_completed", written.job)
    return Acknowledge()


def _keep(document: bytes, job: Job, lease: Lease, worker: Worker) -> Payload | None:
    """The result where it will be read from; None when it is too big for the only place left.

    It is paid for: the payload store is tried as long as the lease allows, then the row takes what
    it can.
    """
    # No tenant in the name: whoever shares the entry is given an address of the object.
    name = f"results/{job.job_id}/{job.fence}"
    for turn in range(MAX_STORE_TRIES):
        try:
            return payloads_of.keep(
                document, name, inline_bytes=INLINE_RESULT_BYTES, payloads=worker.payloads
            )
        except StoreBusyError:
            worker.telemetry.event("payload_store_failed", job)
            pause_s = worker.rand() * 2**turn
            if lease.working_time_ms(worker.clock.now_ms()) < FINISH_RESERVE_MS + pause_s * 1000:
                break
            worker.pause(pause_s)
    packed = compress(document)
    fits = len(packed) <= LAST_RESORT_BYTES and len(document) <= INLINE_PLAIN_BYTES
    return Payload(inline=packed) if fits else None


def _storable(job: Job, answer: VendorAnswer, passing: _Passing, worker: Worker) -> bool:
    """Whether others may have this answer, too, as the catalogue is now.

    The key names the version and the scope that were submitted; an answer that another catalogue
    allowed must not be found by it.
    """
    model = passing.model
    wanted = job.cache_scope != "none" and job.cache_mode != "bypass" and not job.no_store
    if not (wanted and answer.cacheable and job.model_version == model.version):
        return False
    tenant = worker.catalogue.tenant(job.entry_tenant)
    options = strict_json.parse(passing.body)["options"]
    return job.cache_scope == scope_of(model, options, allow_shared=tenant.allow_shared_cache)


def _entry(job: Job, answer: VendorAnswer, model: Model, worker: Worker) -> CacheEntry:
    """The entry that `job`, which has the result, leaves."""
    stored_at_ms = job.completed_at_epoch_ms or 0
    times = lifetime(
        stored_at_ms,
        soft_ttl_s=model.cache.soft_ttl_s,
        hard_ttl_s=model.cache.hard_ttl_s,
        stale_if_error_s=model.cache.stale_if_error_s,
        jitter=model.cache.jitter,
        rand=worker.rand(),
        ttl_s=job.cache_ttl_s,
    )
    return CacheEntry(
        cache_key=job.cache_key,
        scope=job.cache_scope,
        tenant=job.entry_tenant,
        model=job.model,
        result=job.result or Payload(),
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cost_nanos=job.cost_nanos or 0,
        asked_at_epoch_ms=job.started_at_epoch_ms or stored_at_ms,
        stored_at_epoch_ms=stored_at_ms,
        soft_expires_at_epoch_ms=times.soft_expires_at_epoch_ms,
        hard_expires_at_epoch_ms=times.hard_expires_at_epoch_ms,
        kept_until_epoch_ms=times.kept_until_epoch_ms,
        ttl_epoch_s=-(-times.kept_until_epoch_ms // 1000),
        upstream_latency_ms=answer.latency_ms,
        vendor_request_id=answer.vendor_request_id,
        fence=job.fence,
    )


def _complete_from_cache(
    job: Job, entry: CacheEntry, worker: Worker, *, lease: Lease | None
) -> Decision | None:
    """The result is there already; None: the job moved meanwhile."""
    new = transitions.completed_from(
        entry, job, now_ms=worker.clock.now_ms(), attempt_taken_back=lease is not None
    )
    if not isinstance(_write(job, new, worker, lease=lease), Applied):
        return None
    worker.telemetry.event("job_completed", new)
    return Acknowledge()


def _after_error(
    job: Job,
    error: VendorError,
    model: Model,
    delivery: Delivery,
    worker: Worker,
    lease: Lease,
) -> Decision:
    """A retry with backoff, or the end."""
    now_ms = worker.clock.now_ms()
    reason = _error(
        job,
        error.job_code,
        str(error),
        now_ms,
        retryable=error.retryable,
        http_status=error.http_status,
        error_class=type(error.__cause__ or error).__name__,
    )
    told = _about(reason)
    if error.latency_ms is not None:
        told["upstream_latency_ms"] = error.latency_ms
    if cost_nanos := model.price.cost_nanos(error.input_tokens, error.output_tokens):
        told["cost_nanos"] = cost_nanos
    worker.telemetry.event("vendor_error", job, **told)
    if error.job_code == "vendor_quota_exhausted":
        worker.telemetry.event("vendor_quota_exhausted", vendor=model.vendor)
    delay_s = backoff.retry_delay_s(
        job.attempts, rand=worker.rand(), retry_after_s=error.retry_after_s
    )
    not_before_ms = now_ms + round(delay_s * 1000)
    call_nanos = None if error.maybe_charged else 0
    if not error.retryable or job.attempts >= model.max_attempts:
        decision = _fail(
            job,
            reason,
            delivery,
            worker,
            lease=lease,
            vendor_request_id=error.vendor_request_id,
            call_nanos=call_nanos,
        )
        return decision or _lost(job, lease, delivery, worker)
    parked = _parks(delivery, delay_s)
    new = transitions.retrying(
        job, reason, not_before_ms=not_before_ms, parked=parked, call_nanos=call_nanos
    )
    if not isinstance(_write(job, new, worker, lease=lease), Applied):
        return _lost(job, lease, delivery, worker)
    worker.telemetry.event("job_retrying", new, **_about(reason))
    if parked:
        worker.telemetry.event("job_parked", new)
        return Acknowledge()
    return GiveBack(delay_s)


def _fail(
    job: Job,
    reason: JobError,
    delivery: Delivery,
    worker: Worker,
    *,
    lease: Lease | None,
    vendor_request_id: str | None = None,
    call_nanos: int | None = None,
) -> Decision | None:
    """Ends the job; the message goes on to the dead-letter queue by SQS itself. None: it moved.

    `call_nanos`: what the last call cost; None: nobody knows, or none was made since.
    """
    last = delivery.receives >= MAX_RECEIVES
    new = transitions.failed(
        job,
        reason,
        now_ms=worker.clock.now_ms(),
        last_receive=last,
        vendor_request_id=vendor_request_id,
        call_nanos=call_nanos,
    )
    written = _write(job, new, worker, lease=lease)
    if isinstance(written, LeaseHeld):
        return _wait_for_lease(job, delivery, worker, own=written.by_this_job)
    if isinstance(written, Moved):
        return None
    worker.telemetry.event("job_failed", new, **_about(reason))
    if new.status is JobStatus.DEAD_LETTERED:
        worker.telemetry.event("job_dead_lettered", new)
    return Acknowledge() if new.refresh else _bounce(new, delivery, worker)


def _write(
    old: Job,
    new: Job,
    worker: Worker,
    *,
    lease: Lease | None,
    entry: CacheEntry | None = None,
) -> Applied | Moved | LeaseHeld:
    """Writes a transition, for as long as the lease lets it be tried.

    A worker without the lease fails nothing that the holder of the lease is busy with.
    """
    now_ms = worker.clock.now_ms()
    outcome = worker.jobs.apply(
        old,
        new,
        lease=lease,
        entry=entry,
        give_up_at_ms=None if lease is None else now_ms + lease.working_time_ms(now_ms),
        unless_held_at_ms=now_ms if lease is None and new.result is None else None,
    )
    if isinstance(outcome, Applied) and lease is not None:
        worker.telemetry.event("lease_released", outcome.job)
    return outcome


def _send_on(job: Job, delivery: Delivery, worker: Worker) -> Decision | None:
    """A message of a failed job: an operator's redrive, or a leftover on its way to the DLQ.

    None: the job was redriven, or moved.
    """
    if job.refresh:
        return Acknowledge()  # Its entry cools down; the next refresh is another job.
    failed_at_ms = job.failed_at_epoch_ms or 0
    if delivery.enqueued_at_ms > failed_at_ms + REDRIVE_AFTER_FAILURE_MS:
        now_ms = worker.clock.now_ms()
        new = transitions.redriven(
            job, now_ms=now_ms, lane=delivery.lane, due_at_ms=now_ms + RESEND_AFTER_SUBMIT_MS
        )
        if isinstance(worker.jobs.redrive(job, new), Applied):
            worker.telemetry.event("job_redriven", new)
        return None
    if delivery.receives >= MAX_RECEIVES and job.status is JobStatus.FAILED:
        if isinstance(worker.jobs.apply(job, transitions.dead_lettered(job)), Applied):
            worker.telemetry.event("job_dead_lettered", job)
        return GiveBack()
    return _bounce(job, delivery, worker)


def _bounce(job: Job, delivery: Delivery, worker: Worker) -> Decision:
    """Back at once, until SQS moves the message; the last time but one not too soon.

    A send that was decided before the failure has ended by then: no copy comes later.
    """
    if delivery.receives != MAX_RECEIVES - 1:
        return GiveBack()
    until_ms = (job.failed_at_epoch_ms or 0) + LAST_BOUNCE_AFTER_FAILURE_MS
    return GiveBack(max(0, until_ms - worker.clock.now_ms()) / 1000)


def _fresh_entry(job: Job, worker: Worker) -> CacheEntry | None:
    """The entry that completes the job, as its submit would be answered now.

    What was stored while the job waited is young enough for it, whatever the soft TTL says.
    """
    if job.cache_scope == "none" or job.cache_mode == "bypass":
        return None
    entry = worker.cache.read(job.cache_key)
    if entry is None:
        return None
    freshness = entry.freshness(worker.clock.now_ms())
    stored_since = entry.stored_at_epoch_ms >= job.created_at_epoch_ms
    if freshness is not Freshness.FRESH and not (freshness is Freshness.STALE and stored_since):
        return None
    epoch = worker.state.read().epoch_for(job.model, job.entry_tenant)
    return entry if job.accepts(entry, epoch=epoch) else None


def _lost(job: Job, lease: Lease, delivery: Delivery, worker: Worker) -> Decision:
    """Somebody else moved the job while we had it: nothing of ours is written."""
    worker.jobs.release(lease)
    worker.telemetry.event("lease_lost", job)
    current = worker.jobs.get(job.tenant, job.job_id)
    if current is None or current.status in {JobStatus.COMPLETED, JobStatus.CANCELLED}:
        return Acknowledge()
    if not current.open:
        return Acknowledge() if current.refresh else GiveBack()
    return _later(delivery, worker)


def _error(
    job: Job,
    code: str,
    message: str,
    now_ms: int,
    *,
    retryable: bool = False,
    http_status: int | None = None,
    error_class: str = "SluicewayError",
) -> JobError:
    return JobError(
        code=code,
        message=message,
        retryable=retryable,
        attempt=job.attempts,
        at_epoch_ms=now_ms,
        error_class=error_class,
        http_status=http_status,
    )


def _about(reason: JobError) -> dict[str, str | int | bool]:
    return {
        "code": reason.code,
        "error_class": reason.error_class,
        "http_status": reason.http_status or 0,
        "retryable": reason.retryable,
    }
