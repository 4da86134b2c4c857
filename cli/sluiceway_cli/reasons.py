"""Why a job failed, or what it waits for, in one sentence, and where to read on."""

from dataclasses import dataclass

from sluiceway.domain.catalogue import MODEL_GONE
from sluiceway.domain.gate import Gate
from sluiceway.domain.job import Job, JobError, JobStatus
from sluiceway.domain.times import rfc3339

from sluiceway_cli.times import age

RUNBOOK = "docs/runbook.md"
SWEEPER = "docs/operations.md#the-sweeper"

GONE = "roll-back-a-catalogue"
"""The runbook's section about models that were taken out of the catalogue."""

CAUSES = {
    "vendor_timeout": ("the vendor did not answer in time", "redrive"),
    "vendor_unavailable": ("the vendor could not be reached, or failed", "redrive"),
    "vendor_rate_limited": ("the vendor refused the calls as too many", "redrive"),
    "vendor_rejected": (
        "the vendor or the catalogue refused the request as it is",
        "correct-the-input-and-resubmit",
    ),
    "vendor_auth_failed": ("the vendor refused our key", "decide"),
    "vendor_quota_exhausted": (
        "our quota or billing at the vendor is exhausted",
        "a-vendors-quota-is-exhausted",
    ),
    "vendor_bad_response": ("the vendor's answer could not be used", "decide"),
    "vendor_filtered": ("the vendor's filter kept the answer back", "decide"),
    "outcome_unknown": (
        "a worker died during the call, and this vendor may not be asked twice",
        "decide",
    ),
    "deadline_exceeded": ("it waited past its deadline", "decide"),
    "worker_crashed": ("the workers died in each attempt", "decide"),
    "result_too_large": (
        "the result was too large to be kept",
        "correct-the-input-and-resubmit",
    ),
    "attempts_exhausted": ("its attempts were used up", "decide"),
    "discarded": ("an operator gave it up", "discard"),
}
"""By error code: the cause, and the runbook's section about it."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer."""

    sentence: str
    waits_for: str | None = None
    """Of an open job: `tenant`, `model`, `lane`, `gate`, `slot`, `retry`, `turn`, `worker`, `call`,
    `sweeper`, `catalogue`."""
    until_epoch_ms: int | None = None
    """When that is over, as far as it is known."""
    runbook: str | None = None
    """File and section."""

    def shown(self) -> dict[str, str | None]:
        """For printing."""
        return {
            "sentence": self.sentence,
            "waits_for": self.waits_for,
            "until": rfc3339(self.until_epoch_ms),
            "runbook": self.runbook,
        }


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's own row doesn't tell; what isn't known is None, or looks as if it were open."""

    gate: Gate | None = None
    model_gone: bool = False
    """The catalogue in force lacks it."""
    tenant_paused: bool = False
    lane_stopped: bool = False
    """Its mapping isn't enabled."""
    position: int | None = None
    eta_ms: int | None = None


def why(job: Job, around: Surroundings, *, now_ms: int) -> Why:
    """Of any job."""
    if job.open:
        return _waits(job, around, now_ms)
    if job.status is JobStatus.COMPLETED:
        return Why(f"It is completed, with a result from the {job.result_source}.")
    if job.status is JobStatus.CANCELLED:
        return Why("It was cancelled.", runbook=f"{RUNBOOK}#cancel-a-job")
    return _failed(job)


def _failed(job: Job) -> Why:
    error = job.error
    if error is None:
        return Why("It failed; its row doesn't say why.", runbook=f"{RUNBOOK}#decide")
    before = final_error(job) if job.discarded else None
    cause, section = CAUSES.get(error.code, (f"of {error.code}", "decide"))
    if error.message == MODEL_GONE:
        section = GONE
    times = f"after {job.attempts} attempt{'' if job.attempts == 1 else 's'}"
    if job.attempts_total > job.attempts:
        times += f" of this run, and {job.attempts_total} in all"
    if job.discarded:
        failed_of = "" if before is None else f"; it had failed as {before.code}: {before.message}"
        return Why(f"It is given up: {cause}{failed_of}", runbook=f"{RUNBOOK}#{section}")
    ended = "is dead-lettered" if job.status is JobStatus.DEAD_LETTERED else "failed"
    return Why(
        f"It {ended} {times}, because {cause}: {error.message} ({error.code})",
        runbook=f"{RUNBOOK}#{section}",
    )


def final_error(job: Job) -> JobError | None:
    """Why the job failed for good, before it was discarded perhaps; None when it hasn't."""
    if job.failed_at_epoch_ms is None:
        return None
    return next((one for one in reversed(job.last_errors) if one.code != "discarded"), None)


def _waits(job: Job, around: Surroundings, now_ms: int) -> Why:
    """What keeps an open job."""
    if job.status is JobStatus.PROCESSING:
        return _runs(job, now_ms)
    if now_ms >= job.deadline_epoch_ms:
        text = "Its deadline has passed: the sweeper ends it within two minutes or so."
        return Why(text, "sweeper", job.due_at_epoch_ms, SWEEPER)
    if around.model_gone:
        text = "Its model is no longer in the catalogue: it fails as soon as a worker looks at it."
        return Why(text, "catalogue", None, f"{RUNBOOK}#{GONE}")
    return _is_kept(job, around, now_ms) or _has_its_turn(job, around, now_ms)


def _is_kept(job: Job, around: Surroundings, now_ms: int) -> Why | None:
    """By what keeps others waiting, too: a pause, which somebody has to end, or a closed gate."""
    gate = around.gate or Gate()
    for paused, kind, name in (
        (around.tenant_paused, "tenant", job.tenant),
        (gate.paused, "model", job.model),
        (around.lane_stopped and not job.parked, "lane", job.lane),
    ):
        if paused:
            text = f"It waits: its {kind} is paused (sluiceway resume {kind}:{name})."
            return Why(text, kind, None, "docs/operations.md#pauses")
    if gate.closed_until_ms <= now_ms:
        return None
    because = "the vendor fails" if gate.probing else "the vendor refused calls"
    return Why(
        f"It waits: nobody calls the model's vendor for {_in(gate.closed_until_ms, now_ms)}, "
        f"because {because}.",
        "gate",
        gate.closed_until_ms,
        f"{RUNBOOK}#slow-a-vendor-or-a-tenant-down",
    )


def _has_its_turn(job: Job, around: Surroundings, now_ms: int) -> Why:
    """At a time of its own, or when a worker is free."""
    slot_ms, start_ms = job.slot_at_epoch_ms or 0, job.not_before_epoch_ms or 0
    if slot_ms > now_ms:
        return Why(f"It has a slot of the gate in {_in(slot_ms, now_ms)}.", "slot", slot_ms)
    if start_ms > now_ms and job.status is JobStatus.RETRYING and job.error is not None:
        when, error = _in(start_ms, now_ms), job.error
        text = f"It is tried again in {when}, after {error.code}: {error.message}"
        return Why(text, "retry", start_ms)
    if start_ms > now_ms:
        return Why(f"It is parked, and looks again in {_in(start_ms, now_ms)}.", "turn", start_ms)
    if job.parked:
        text = "Its time has come: the sweeper sends its message within a minute or so."
        return Why(text, "sweeper", job.due_at_epoch_ms, SWEEPER)
    place = f", about number {around.position} in its line" if around.position else ""
    if around.eta_ms is None:
        return Why(f"It waits for a worker of {job.lane}{place}.", "worker")
    text = f"; a result is expected in {age(around.eta_ms / 1000)}."
    return Why(
        f"It waits for a worker of {job.lane}{place}{text}", "worker", now_ms + around.eta_ms
    )


def _runs(job: Job, now_ms: int) -> Why:
    since = age((now_ms - (job.started_at_epoch_ms or now_ms)) / 1000)
    if job.due_at_epoch_ms is not None and job.due_at_epoch_ms < now_ms:
        return Why(
            f"Attempt {job.attempts} began {since} ago and its worker must have died: the sweeper "
            "sends the job again.",
            "sweeper",
            job.due_at_epoch_ms,
            SWEEPER,
        )
    return Why(f"A worker is at it since {since}, in attempt {job.attempts}.", "call")


def _in(moment_ms: int, now_ms: int) -> str:
    return age((moment_ms - now_ms) / 1000)
