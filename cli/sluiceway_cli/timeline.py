"""Everything that happened to a job, in the order of time.

It is told by its row, the audit records, its webhooks, and what the functions logged about it.
Never a prompt, a result or a key.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.domain import ids
from sluiceway.domain.errors import SluicewayError
from sluiceway.domain.job import Job, JobError, JobStatus
from sluiceway.domain.times import rfc3339
from sluiceway.domain.webhook import DELIVERY_PREFIX
from sluiceway.ports import AuditLog, AuditRecord, DeliveryLog, WebhookEndpoints

from sluiceway_cli.logs import OUTPUTS, FunctionLogs, Line
from sluiceway_cli.reasons import final_error
from sluiceway_cli.records import CLOCKS_DIFFER_MS
from sluiceway_cli.times import age

MOST_RECORDS = 1_000
"""Audit records of the job's life that are looked through."""

DELIVERIES = 100
MOST_PAGES = 5
"""Of an endpoint's deliveries in the job's life."""

WEBHOOKS_LAST_MS = 12 * 3600 * 1000
"""After a job's end nothing of it is logged later: its webhooks are tried for nine hours."""

CLOCKS_MS = 5_000
"""A function's clock may be that far off the API's."""

_TOLD = (
    *("attempt", "code", "error_class", "http_status", "retryable", "reason"),
    *("queue_wait_ms", "upstream_latency_ms", "processing_ms", "gate_wait_ms", "early_ms"),
    *("closed_ms", "early", "to", "what", "endpoint_id", "delivery_id", "delivery_attempt", "last"),
    *("webhook_latency_ms", "error_at", "request_id"),
)
"""Members of a log line that are told: names, ids, numbers and codes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, or that is to happen."""

    at_epoch_ms: int
    source: str
    """`row`, `audit`, `webhook`, or the name of the function that logged it."""
    event: str
    detail: str = ""
    planned: bool = False

    def shown(self, start_ms: int) -> dict[str, Any]:
        """For printing; `start_ms`: when the job was submitted."""
        return {
            "at": rfc3339(self.at_epoch_ms),
            "offset_ms": self.at_epoch_ms - start_ms,
            "source": self.source,
            "event": self.event,
            "detail": self.detail,
            "planned": self.planned,
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look besides the row."""

    audit: Callable[[], AuditLog]
    endpoints: Callable[[], WebhookEndpoints]
    delivery_log: Callable[[], DeliveryLog]
    logs: Callable[[], FunctionLogs] | None
    """None: logs aren't looked at."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The entries, the oldest first, and what could not be read, or not in full."""

    entries: list[Entry]
    missing: dict[str, str]
    """By source: why."""


def timeline(job: Job, sources: Sources, *, now_ms: int) -> Timeline:
    """Of a job; a source that can't be read is told, and hides nothing of the others."""
    entries = list(_of_row(job, now_ms))
    missing: dict[str, str] = {}
    looks: dict[str, Callable[[], tuple[list[Entry], bool]]] = {
        "audit": lambda: _of_audit(job, sources.audit(), now_ms),
        "webhooks": lambda: _of_webhooks(job, sources, now_ms),
    }
    if sources.logs is not None:
        logs = sources.logs()
        for function in OUTPUTS:
            looks[f"log of {function}"] = _log_look(function, job, logs, now_ms)
    for name, look in looks.items():
        try:
            found, whole = look()
        except (ClientError, BotoCoreError, SluicewayError, ValueError, KeyError) as error:
            missing[name] = str(error)
            continue
        entries += found
        if not whole:
            missing[name] = "there is more than was read"
    entries.sort(key=lambda entry: entry.at_epoch_ms)  # stable: of one moment, the row is first
    return Timeline(entries, missing)


# ------------------------------------------------------------------------------------ the row


def _of_row(job: Job, now_ms: int) -> Iterator[Entry]:
    yield Entry(job.created_at_epoch_ms, "row", "submitted", _submit(job))
    if job.enqueued_at_epoch_ms > job.created_at_epoch_ms:
        yield Entry(job.enqueued_at_epoch_ms, "row", "redriven", f"redrive {job.redrives}")
    if job.started_at_epoch_ms is not None:
        yield Entry(job.started_at_epoch_ms, "row", "started", _start(job))
    if job.called_at_epoch_ms is not None:
        text = "the outcome isn't known yet"
        yield Entry(job.called_at_epoch_ms, "row", "vendor called", text)
    final = final_error(job)
    for error in job.last_errors:
        event = "failed" if error is final else f"attempt {error.attempt} failed"
        event = "discarded" if error.code == "discarded" else event
        yield Entry(error.at_epoch_ms, "row", event, _error(error))
    if job.completed_at_epoch_ms is not None:
        yield Entry(job.completed_at_epoch_ms, "row", job.status.value, _end(job))
    if job.open:
        yield from _plans(job, now_ms)


def _submit(job: Job) -> str:
    if job.refresh:
        who = "behind a reader of a stale entry"
    elif job.key_id == "operator":
        who = "by an operator, in another job's place"
    else:
        who = f"by {job.key_id or 'a key that is not known'}"
    mode = "" if job.cache_mode == "use" else f", cache {job.cache_mode}"
    return (
        f"{who}: {job.model} version {job.model_version}, {job.lane}{mode}, request "
        f"{job.request_id}, correlation {job.correlation_id}"
    )


def _start(job: Job) -> str:
    waited = "" if job.queue_wait_ms is None else f", first one after {_ms(job.queue_wait_ms)}"
    return (
        f"the last start, attempt {job.attempts} of this run and {job.attempts_total} in all, "
        f"receive {job.receives}, fence {job.fence}{waited}"
    )


def _error(error: JobError) -> str:
    http = "" if error.http_status is None else f", HTTP {error.http_status}"
    again = "may be tried again" if error.retryable else "is final"
    return f"{error.code}: {error.message} ({error.error_class}{http}; {again})"


def _end(job: Job) -> str:
    if job.status is not JobStatus.COMPLETED:
        return ""
    told = [f"from the {job.result_source}"]
    if job.upstream_latency_ms is not None:
        told.append(f"the vendor took {_ms(job.upstream_latency_ms)}")
    told.append(f"{job.input_tokens} + {job.output_tokens} tokens")
    told.append(f"cost {(job.cost_nanos or 0) / 1e9:g}")
    if job.vendor_request_id:
        told.append(f"vendor request {job.vendor_request_id}")
    return ", ".join(told)


def _plans(job: Job, now_ms: int) -> Iterator[Entry]:
    """What is to come, or was to."""
    resent = f", sent again {job.resends} times" if job.resends else ""
    plans = (
        (job.slot_at_epoch_ms, "slot", "of the gate"),
        (job.not_before_epoch_ms, "may start", "parked" if job.parked else "its message waits"),
        (job.due_at_epoch_ms, "sweeper looks", f"if nobody moved it{resent}"),
        (job.deadline_epoch_ms, "deadline", ""),
    )
    for at_ms, event, detail in plans:
        if at_ms is not None:
            yield Entry(at_ms, "row", event, detail, planned=at_ms > now_ms)


# ------------------------------------------------------------------------------------ the others


def ended_at_ms(job: Job) -> int | None:
    """The last time of its row at which an ended job moved."""
    if job.open:
        return None
    moments = [job.completed_at_epoch_ms, job.failed_at_epoch_ms, job.started_at_epoch_ms]
    moments += [error.at_epoch_ms for error in job.last_errors]
    return max((at for at in moments if at is not None), default=job.created_at_epoch_ms)


def _of_audit(job: Job, audit: AuditLog, now_ms: int) -> tuple[list[Entry], bool]:
    """Records of the job, and of pauses that kept it waiting."""
    end_ms = ended_at_ms(job)
    found = audit.list(
        since_ms=job.created_at_epoch_ms - CLOCKS_DIFFER_MS,
        until_ms=now_ms + CLOCKS_DIFFER_MS,
        limit=MOST_RECORDS + 1,
    )
    around = {f"model:{job.model}", f"tenant:{job.tenant}", f"lane:{job.lane}"}

    def concerns(record: AuditRecord) -> bool:
        if record.subject == f"job:{job.job_id}":
            return True
        if record.action == "dlq.resubmit" and record.request_id == job.request_id:
            return True
        paused = record.action.startswith("pause.") and record.subject in around
        return paused and record.at_epoch_ms <= (end_ms or now_ms)

    entries = [
        Entry(record.at_epoch_ms, "audit", record.action, f"{record.subject} by {record.actor}")
        for record in found[:MOST_RECORDS]
        if concerns(record)
    ]
    return entries, len(found) <= MOST_RECORDS


def _of_webhooks(job: Job, sources: Sources, now_ms: int) -> tuple[list[Entry], bool]:
    """Deliveries of the job's events: their ids are in order of the events' times."""
    if job.refresh or (job.open and not job.redrives):
        return [], True
    end_ms = ended_at_ms(job)
    # A dead-lettered job is told so up to 15 minutes after its failure, a discarded one later.
    last_ms = now_ms if end_ms is None else min(now_ms, end_ms + 20 * 60_000)
    newest = ids.by_age(DELIVERY_PREFIX, last_ms + 1, bytes(ids.RANDOM_BYTES))
    oldest = ids.by_age(DELIVERY_PREFIX, job.created_at_epoch_ms, bytes(ids.RANDOM_BYTES))
    entries: list[Entry] = []
    whole = True
    for endpoint in sources.endpoints().read(job.tenant):
        before, pages = newest, 0
        while True:
            page = sources.delivery_log().list(
                job.tenant, endpoint.endpoint_id, now_ms=now_ms, limit=DELIVERIES, before=before
            )
            for record in (one.as_of(now_ms) for one in page):
                if record.delivery.job_id == job.job_id:
                    at_ms = record.last_attempt_at_epoch_ms or record.delivery.at_epoch_ms
                    status = f", HTTP {record.http_status}" if record.http_status else ""
                    error = f", {record.error}" if record.error else ""
                    entries.append(
                        Entry(
                            at_ms,
                            "webhook",
                            f"{record.delivery.type} {record.status.value}",
                            f"to {endpoint.endpoint_id}, {record.attempts} attempts{status}{error}",
                        )
                    )
            pages += 1
            if len(page) < DELIVERIES or page[-1].delivery.delivery_id < oldest:
                break
            if pages == MOST_PAGES:
                whole = False
                break
            before = page[-1].delivery.delivery_id
    return entries, whole


def _log_look(
    function: str, job: Job, logs: FunctionLogs, now_ms: int
) -> Callable[[], tuple[list[Entry], bool]]:
    def look() -> tuple[list[Entry], bool]:
        end_ms = ended_at_ms(job)
        until_ms = now_ms if end_ms is None else min(now_ms, end_ms + WEBHOOKS_LAST_MS)
        found = logs.find(
            function,
            job.job_id,
            since_ms=job.created_at_epoch_ms - CLOCKS_MS,
            until_ms=until_ms + CLOCKS_MS,
        )
        return list(_of_lines(function, job, found.lines)), found.whole

    return look


def _of_lines(function: str, job: Job, found: Iterable[Line]) -> Iterator[Entry]:
    for line in found:
        event = line.members.get("message")
        # An event is one word; anything else may be a text that holds more than it should.
        if line.members.get("job_id") == job.job_id and re.fullmatch("[a-z_]{1,64}", str(event)):
            yield Entry(line.at_epoch_ms, function, str(event), _members(line.members))


def _members(members: Mapping[str, Any]) -> str:
    """Numbers and words; a text may hold more than it should."""
    told = []
    for name in _TOLD:
        value = members.get(name)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        if isinstance(value, int | float | str) and re.fullmatch(r"[\w.:/+-]{1,128}", str(value)):
            told.append(f"{name}={value}")
    return " ".join(told)


def _ms(ms: int) -> str:
    return f"{ms} ms" if ms < 10_000 else age(ms / 1000)  # noqa: PLR2004
