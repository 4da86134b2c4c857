"""What operators do with dead letters: list, redrive, discard, resubmit.

The message says which job; the job's row says everything else. Each step is safe to repeat, and a
job that can't be helped never stands in the way of the others.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.domain import job as transitions
from sluiceway.domain import strict_json
from sluiceway.domain.errors import DamagedRowError, RejectedError, SluicewayError, StoreBusyError
from sluiceway.domain.ids import hit_id
from sluiceway.domain.job import REDRIVE_AFTER_FAILURE_MS, Job, JobStatus
from sluiceway.domain.request import parse_submit
from sluiceway.domain.times import rfc3339
from sluiceway.ports import Applied, Clock, JobStore
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.submit_job import Hit, Origin, Submitter, submit_job

from sluiceway_cli.dead_letters import SENT_BY_HAND, DeadLetters, Letter, Look

DEFAULT_RATE = 10
"""Messages a second that go back to the lanes, so that live jobs aren't crowded out."""

OPERATOR = "operator"
"""Stands in a job's row where the partner's key would."""

REDRIVE_MARGIN_MS = 1_000
MAX_LOOKS = 5
"""At a job that somebody else moves meanwhile, and for messages that a task has hidden."""

HIDDEN_POLL_S = 1.0

A_REFRESH = "the job is a refresh: the readers of its entry renew it, and it is never redriven"

Work = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Operator:
    """What the operations work with."""

    letters: DeadLetters
    jobs: JobStore
    claimed_by: Callable[[Job], str | None]
    """Id of the job that has the claim for this job's work."""
    clock: Clock
    pause: Callable[[float], None] = time.sleep
    record: Callable[[str, str, str], None] = lambda action, subject, request_id: None  # noqa: ARG005
    """Writes an audit record of what was done; the request id may be empty."""

    def redriven(self, outcome: "Outcome") -> None:
        """Puts a job that runs again on record."""
        if outcome.outcome in {"redriven", "merged"}:
            self.record("dlq.redrive", f"job:{outcome.job_id}", "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job, or of one message that names none."""

    outcome: str
    """`redriven`; `merged`: redriven, and another job does the work; `skipped`; `failed`."""
    reason: str
    job_id: str | None = None
    tenant: str | None = None
    message_id: str | None = None

    def shown(self) -> dict[str, Any]:
        """For printing."""
        return {
            "job_id": self.job_id,
            "tenant": self.tenant,
            "outcome": self.outcome,
            "reason": self.reason,
            **({"message_id": self.message_id} if self.message_id else {}),
        }


# ------------------------------------------------------------------------------------ list


def list_letters(operator: Operator, *, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Each job with a message that can be seen, oldest failure first; False: the limit cut it off.

    As with every look here, `operator.letters.unseen` tells of the messages that it didn't get.
    """
    groups: dict[Work | str, list[Letter]] = {}
    with operator.letters.look(limit=limit) as look:
        for letter in look:
            groups.setdefault(letter.work or letter.message_id, []).append(letter)
    entries = [_entry(letters, operator) for letters in groups.values()]
    entries.sort(key=lambda entry: (entry["failed_at"] or "", entry["job_id"] or ""))
    return entries, look.complete


def _entry(letters: list[Letter], operator: Operator) -> dict[str, Any]:
    work = letters[0].work
    if work is None:
        return _shown(None, None, None, copies=len(letters), operator=operator) | {
            "message_id": letters[0].message_id,
            "bytes": len(letters[0].body.encode()),
        }
    tenant, job_id = work
    try:
        job = operator.jobs.get(tenant, job_id)
    except DamagedRowError as error:
        shown = _shown(None, tenant, job_id, copies=len(letters), operator=operator)
        return shown | {"why_stray": str(error)}
    return _shown(job, tenant, job_id, copies=len(letters), operator=operator)


def _shown(
    job: Job | None, tenant: str | None, job_id: str | None, *, copies: int, operator: Operator
) -> dict[str, Any]:
    """A line of the list. Its age is of the row: SQS forgets a moved message's."""
    why = _why_stray(job) if job_id else "the message isn't one of ours"
    since_ms = (job.failed_at_epoch_ms or job.enqueued_at_epoch_ms) if job else None
    return {
        "job_id": job_id,
        "tenant": tenant,
        "status": job.status.value if job else None,
        "model": job.model if job else None,
        "lane": job.lane if job else None,
        "error_code": job.error.code if job and job.error else None,
        "reason": job.error.message if job and job.error else None,
        "attempts": job.attempts if job else None,
        "attempts_total": job.attempts_total if job else None,
        "redrives": job.redrives if job else None,
        "failed_at": rfc3339(job.failed_at_epoch_ms) if job else None,
        "age_s": None if since_ms is None else max(0, operator.clock.now_ms() - since_ms) // 1000,
        "copies": copies,
        "stray": why is not None,
        "why_stray": why,
    }


def _why_stray(job: Job | None) -> str | None:
    """Why a message in the queue is nobody's to redrive; None when it is."""
    if job is None:
        return "there is no such job"
    if job.discarded:
        return "the job was discarded"
    if job.refresh:
        return A_REFRESH
    if job.open:
        return f"the job is {job.status.value}: the sweeper sends it again"
    if job.status in {JobStatus.COMPLETED, JobStatus.CANCELLED}:
        return f"the job is {job.status.value}"
    return None


# ------------------------------------------------------------------------------------ redrive


def redrive_all(operator: Operator, *, rate: int) -> Generator[Outcome]:
    """Moves every message back to its lane, by SQS itself where it can."""
    if not operator.letters.can_move_by_itself():
        yield from _Mover(operator, rate).run()
        return
    plan = _Plan(operator)
    plan.wait_until_redrivable()
    failure = operator.letters.move_all(rate=rate)
    if failure:
        _wait_for_hidden(operator)
    if failure == SENT_BY_HAND:
        lanes = plan.lanes_of_what_is_left()
        if len(lanes) == 1:
            failure = operator.letters.move_all(rate=rate, lane=lanes.pop())
    left = _Mover(operator, rate, only=plan.message_ids) if failure else None
    by_hand = {_name(outcome): outcome for outcome in left.run()} if left else {}
    for outcome in plan.outcomes:
        if _name(outcome) not in by_hand:
            operator.redriven(outcome)
        yield by_hand.get(_name(outcome), outcome)


def _wait_for_hidden(operator: Operator) -> None:
    """A task that failed has hidden what it couldn't move, for a second or two: so does LocalStack.

    What somebody else hides for longer is not waited for, and is told as unseen.
    """
    for _ in range(MAX_LOOKS):
        with operator.letters.look() as look:
            deque(look, maxlen=0)
        if not operator.letters.unseen:
            return
        operator.pause(HIDDEN_POLL_S)


def redrive_jobs(operator: Operator, jobs: Mapping[str, Job | None], *, rate: int) -> list[Outcome]:
    """Redrives these jobs: by their messages, and in the table where there is no message.

    A refresh is refused. `jobs`: by id; None: there is no such job.
    """
    known = {
        (job.tenant, job.job_id) for job in jobs.values() if job is not None and not job.refresh
    }
    moved = {_name(one): one for one in _Mover(operator, rate, works=known).run()} if known else {}
    return [
        moved.get(job_id) or _redrive_in_table(job, job_id, operator)
        for job_id, job in jobs.items()
    ]


class _Plan:
    """What is in the queue before SQS moves it all, and so what will have become of it."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.message_ids: set[str] = set()
        self.outcomes: list[Outcome] = []
        self._last_failure_ms = 0
        works: set[Work] = set()
        keys: dict[str, str] = {}
        with operator.letters.look() as look:
            for letter in look:
                self.message_ids.add(letter.message_id)
                if letter.work is None:
                    reason = "not a message of ours: it comes back"
                    self.outcomes.append(Outcome("skipped", reason, message_id=letter.message_id))
                elif letter.work not in works:
                    works.add(letter.work)
                    self._foresee(letter.work, keys)

    def _foresee(self, work: Work, keys: dict[str, str]) -> None:
        tenant, job_id = work
        job = self._operator.jobs.get(tenant, job_id)
        self.outcomes.append(_verdict(job, work, keys, self._operator))
        if job is not None:
            self._last_failure_ms = max(self._last_failure_ms, job.failed_at_epoch_ms or 0)

    def wait_until_redrivable(self) -> None:
        """A message that comes too soon after the failure is taken for a leftover."""
        _wait_after(self._last_failure_ms, self._operator)

    def lanes_of_what_is_left(self) -> set[str]:
        """The lanes of the jobs whose messages SQS couldn't move."""
        lanes: set[str] = set()
        with self._operator.letters.look() as look:
            for letter in look:
                if letter.message_id in self.message_ids and letter.work is not None:
                    job = self._operator.jobs.get(*letter.work)
                    lanes.add(job.lane if job else "interactive")
        return lanes


@dataclass(slots=True)
class _Mover:
    """Moves messages one by one: receive, send to the job's lane, delete."""

    operator: Operator
    rate: int
    works: set[Work] | None = None
    """Only these jobs' messages."""
    only: set[str] | None = None
    """Only these messages."""
    _moved: dict[Work, Job | None] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    """Job key -> id of the job that was redriven for it."""

    def run(self) -> Iterator[Outcome]:
        """One outcome for each job, as it is known."""
        with self.operator.letters.look() as look:
            for letter in look:
                if self.only is not None and letter.message_id not in self.only:
                    continue
                outcome = self._take(letter, look)
                if outcome is not None:
                    yield outcome

    def _take(self, letter: Letter, look: Look) -> Outcome | None:
        work = letter.work
        if work is None:
            if self.works is not None:
                return None
            reason = "not a message of ours: it stays"
            return Outcome("skipped", reason, message_id=letter.message_id)
        if self.works is not None and work not in self.works:
            return None
        try:
            job = self.operator.jobs.get(*work)
            if work in self._moved:
                self._drop_copy(letter, look, job, self._moved[work])
                return None
            outcome = _verdict(job, work, self._keys, self.operator)
            _wait_after((job.failed_at_epoch_ms if job else None) or 0, self.operator)
            lane = job.lane if job else "interactive"
            group = f"{work[0]}:{job.model}" if job else work[0]
            look.move(letter, self.operator.letters.lanes[lane], group=group)
        except (ClientError, BotoCoreError, SluicewayError) as error:
            self._keys = {key: one for key, one in self._keys.items() if one != work[1]}
            reason = f"{error}; its message stays, run it again"
            return Outcome("failed", reason, job_id=work[1], tenant=work[0])
        self._moved[work] = job
        self.operator.redriven(outcome)
        self.operator.pause(1 / self.rate)
        return outcome

    @staticmethod
    def _drop_copy(letter: Letter, look: Look, job: Job | None, before: Job | None) -> None:
        """Another message of a job that this run moved one of already.

        A job that failed again meanwhile keeps it: it is that failure's dead letter.
        """
        failed_at_ms = before.failed_at_epoch_ms if before else None
        if job is None or job.open or job.failed_at_epoch_ms in {None, failed_at_ms}:
            look.remove(letter)


def _verdict(job: Job | None, work: Work, keys: dict[str, str], operator: Operator) -> Outcome:
    """What moving the message back does. `keys` learns whom this redrive gave each work to."""
    tenant, job_id = work
    why = _why_stray(job)
    if job is None or why is not None:
        return Outcome(
            "skipped", f"{why}; its message goes back and is cleared away", job_id, tenant
        )
    twin = _live_twin(job, keys, operator)
    if twin is not None:
        return Outcome("merged", f"{twin} does the same work and shares its result", job_id, tenant)
    return Outcome("redriven", f"its message is back in {job.lane}", job_id, tenant)


def _live_twin(job: Job, keys: dict[str, str], operator: Operator) -> str | None:
    """The open job that does this job's work already, or will in this redrive."""
    first = keys.setdefault(job.job_key, job.job_id)
    if first != job.job_id:
        return first
    holder = operator.claimed_by(job)
    if holder is None or holder == job.job_id:
        return None
    twin = operator.jobs.get(job.tenant, holder)
    if twin is None or not twin.open:
        return None
    keys[job.job_key] = holder
    return holder


def _redrive_in_table(job: Job | None, job_id: str, operator: Operator) -> Outcome:
    """Gives a job without a message another run; the sweeper sends the message."""
    if job is None:
        return Outcome("failed", "there is no such job", job_id)
    if job.refresh:
        return Outcome("failed", A_REFRESH, job_id, job.tenant)
    try:
        for _ in range(MAX_LOOKS):
            why = _why_stray(job)
            if job is None or why is not None:
                return Outcome(
                    "skipped", f"{why}; no message seen", job_id, job.tenant if job else None
                )
            twin = _live_twin(job, {}, operator)
            now_ms = operator.clock.now_ms()
            new = transitions.redriven(job, now_ms=now_ms, lane=job.lane, due_at_ms=now_ms)
            written = operator.jobs.redrive(job, new)
            if isinstance(written, Applied):
                reason = "no message seen: the sweeper sends one within a minute"
                if twin is not None:
                    reason += f"; {twin} does the same work and shares its result"
                kind = "merged" if twin else "redriven"
                outcome = Outcome(kind, reason, job_id, new.tenant)
                operator.redriven(outcome)
                return outcome
            job = written.job
    except (ClientError, BotoCoreError, SluicewayError) as error:
        return Outcome("failed", f"{error}; run it again", job_id)
    return Outcome("failed", "the job kept moving; run it again", job_id)


def _wait_after(failed_at_ms: int, operator: Operator) -> None:
    """Until a message that is sent counts as a redrive of this failure, and not as its leftover."""
    redrivable_ms = failed_at_ms + REDRIVE_AFTER_FAILURE_MS + REDRIVE_MARGIN_MS
    left_ms = min(redrivable_ms - operator.clock.now_ms(), redrivable_ms - failed_at_ms)
    if left_ms > 0:
        operator.pause(left_ms / 1000)


def _name(outcome: Outcome) -> str | None:
    return outcome.job_id or outcome.message_id


# ------------------------------------------------------------------------------------ discard


def discard(operator: Operator, job: Job) -> tuple[Job, int]:
    """Ends a dead-lettered job for good, and gives it with the number of messages removed.

    Again removes what messages there still are. Raises RejectedError for a job in another state.
    """
    record = partial(operator.record, "dlq.discard", f"job:{job.job_id}", "")
    ended, written = _write_discarded(job, operator)
    if written:
        record()
    removed = _remove_messages(ended, operator)
    if removed and not written:
        record()
    return ended, removed


def _remove_messages(job: Job, operator: Operator) -> int:
    removed = 0
    with operator.letters.look() as look:
        for letter in look:
            if letter.work == (job.tenant, job.job_id):
                # One that can't be removed is a stray, which workers acknowledge.
                with suppress(ClientError, BotoCoreError):
                    look.remove(letter)
                    removed += 1
    return removed


def _write_discarded(job: Job, operator: Operator) -> tuple[Job, bool]:
    """The job as it is discarded; False when it was so already."""
    for _ in range(MAX_LOOKS):
        if job.discarded:
            return job, False
        require_dead_lettered(job)
        new = transitions.discarded(job, now_ms=operator.clock.now_ms())
        written = operator.jobs.apply(job, new)
        if isinstance(written, Applied):
            return written.job, True
        current = operator.jobs.get(job.tenant, job.job_id)
        if current is None:
            break
        job = current
    raise StoreBusyError("The job kept moving.", retry_after_s=1)


def require_dead_lettered(job: Job) -> None:
    """Raises RejectedError for a job that has another run ahead, or needs none."""
    if job.refresh:
        raise RejectedError(f"Nothing to do: {A_REFRESH}.")
    if job.status is JobStatus.FAILED and not job.discarded:
        raise RejectedError(
            "The job has just failed and is on its way to the dead-letter queue: it is "
            "dead_lettered in some seconds, in 15 minutes at the latest."
        )
    if job.status is not JobStatus.DEAD_LETTERED:
        state = "discarded already" if job.discarded else job.status.value
        raise RejectedError(f"The job is {state}; only a dead_lettered one can be given up.")


# ------------------------------------------------------------------------------------ resubmit


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """The id of the corrected job, and how it stands."""

    job_id: str
    status: str
    deduplicated: bool
    """The corrected work had an open job already."""


def resubmit(
    operator: Operator,
    submitter: Submitter,
    job: Job,
    *,
    corrected: object,
    told: Iterable[tuple[str, str | None]] = (),
) -> Resubmitted:
    """Submits the job with the input `corrected`, then discards it.

    `told`: members of the request that a row doesn't keep, with their values.
    Raises RejectedError for a job that isn't dead_lettered, and whatever a submit raises.
    """
    require_dead_lettered(job)
    document = strict_json.parse(payloads_of.load(job.input, payloads=submitter.payloads))
    oldest_ms = job.not_older_than_epoch_ms
    body = {
        "model": job.model,
        "input": corrected,
        "options": document["options"],
        "priority": job.lane,
        "metadata": job.metadata,
        "deadline_s": job.deadline_s,
        "cache": {
            "mode": job.cache_mode,
            "no_store": job.no_store,
            "ttl_s": job.cache_ttl_s,
            "max_age_s": (
                None if oldest_ms is None else (job.created_at_epoch_ms - oldest_ms) // 1000
            ),
        },
        **({"callback_url": job.callback_urls[0]} if job.callback_urls else {}),
        **{name: value for name, value in told if value is not None},
    }
    # Submit first: a crash in between leaves the old job to be discarded, and loses none.
    request_id = f"resubmit-{uuid.uuid4()}"
    outcome = submit_job(
        # The callback was checked when the partner gave it, and is at each delivery.
        parse_submit(strict_json.dump(body), local=True),
        Caller(job.tenant, frozenset({"submit", "bypass"}), key_id=OPERATOR),
        Origin(request_id=request_id, correlation_id=job.correlation_id),
        submitter,
    )
    operator.record("dlq.resubmit", f"job:{job.job_id}", request_id)
    if isinstance(outcome, Hit):
        _give_up(operator, job)
        return Resubmitted(hit_id(outcome.entry.cache_key), "completed", deduplicated=False)
    made = outcome.job
    for url in job.callback_urls[1:]:  # those of duplicates; a job that has ended takes none
        operator.jobs.add_callback(made, url)
    _give_up(operator, job)
    return Resubmitted(made.job_id, made.status.value, outcome.deduplicated)


def _give_up(operator: Operator, job: Job) -> None:
    """Discards the job that another takes the place of: a part of the resubmit, as on record."""
    ended, _ = _write_discarded(job, operator)
    _remove_messages(ended, operator)
