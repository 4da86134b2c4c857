"""Logs, metrics and traces by Powertools (port Telemetry).

What goes in is names, ids, numbers and codes. Prompts, results and keys are never given to it.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import Metrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from aws_lambda_powertools import Tracer
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from sluiceway.domain.job import Job

SERVICE = "sluiceway"
NAMESPACE = "Sluiceway"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of an event: its value is the event's field over `per`, or 1 for a count."""

    name: str
    unit: MetricUnit = MetricUnit.Count
    field: str | None = None
    per: int = 1


_MS = MetricUnit.Milliseconds
_COST = Metric("CostEstimate", MetricUnit.NoUnit, "cost_nanos", per=10**9)

EVENTS: dict[str, tuple[Metric, ...]] = {
    "job_submitted": (Metric("JobsSubmitted"),),
    "job_deduplicated": (Metric("JobsDeduplicated"),),
    "cache_miss": (Metric("CacheMiss"),),
    "cache_hit": (Metric("CacheHit"),),
    "cache_stale": (Metric("CacheStale"),),
    "cache_degraded": (Metric("CacheStale"), Metric("Degraded")),
    "cache_invalidated": (),
    "cache_unreachable": (Metric("CacheUnreachable"),),
    "batch_submitted": (),
    "refresh_queued": (),
    "payload_store_failed": (),
    "result_lost": (_COST,),
    "degraded_began": (),
    "notice_lost": (),
    "degraded_lasted": (Metric("DegradedSeconds", MetricUnit.Seconds, "lasted_ms", per=1000),),
    "degraded_ended": (),
    "lease_acquired": (Metric("LeaseAcquired"), Metric("QueueWait", _MS, "queue_wait_ms")),
    "lease_contention": (Metric("LeaseContention"),),
    "lease_lost": (Metric("LeaseLost"),),
    "lease_released": (Metric("LeaseReleased"),),
    "job_completed": (
        Metric("JobsCompleted"),
        Metric("ProcessingTime", _MS, "processing_ms"),
        Metric("VendorLatency", _MS, "upstream_latency_ms"),
        _COST,
    ),
    "job_retrying": (Metric("Retries"),),
    "job_failed": (Metric("JobsFailed"),),
    "job_dead_lettered": (Metric("JobsDeadLettered"),),
    "job_cancelled": (),
    "job_redriven": (),
    "job_held": (),
    "job_parked": (Metric("Parked"),),
    "gate_waited": (Metric("GateWait", _MS, "gate_wait_ms"),),
    "gate_closed": (Metric("GateClosed"),),
    "job_resent": (Metric("SweeperResent"),),
    "jobs_swept": (),
    "job_damaged": (),
    "lane_measured": (
        Metric("QueueDepth", field="queue_depth"),
        Metric("OldestJobAge", _MS, "oldest_job_age_ms"),
        Metric("WorkerUtilisation", MetricUnit.Percent, "utilisation_percent"),
        Metric("WorkersIdle", field="workers_idle"),
    ),
    "vendor_error": (Metric("VendorErrors"), _COST),
    # Told without a model: an alarm watches one metric, and has no patterns of dimensions.
    "vendor_quota_exhausted": (Metric("VendorQuotaExhausted"),),
    "message_without_job": (),
    "message_unreadable": (),
    "send_failed": (),
    "request_refused": (),
    "key_use_lost": (),
    "record_unreadable": (),
    "events_published": (),
    "events_left": (),
    "publish_failed": (),
    "webhook_delivered": (Metric("WebhooksDelivered"),),
    "webhook_failed": (Metric("WebhookErrors"),),
    "webhook_disabled": (),
    "webhook_unwanted": (),
    "webhook_suppressed": (Metric("WebhooksSuppressed"),),
    "webhook_unrecorded": (),
    "webhook_changed": (),
    "configuration_kept": (Metric("ConfigurationKept"),),
    "configuration_ignored": (),
    "configuration_unread": (),
    "signature_expired": (Metric("SignaturesExpired"),),
    # A worker's are none of Lambda's errors: it answers with the message that is to stay.
    "unexpected_error": (Metric("UnexpectedErrors"),),
}
"""Each event that the library tells of, and the metrics it counts into."""


class _Line(LambdaPowertoolsFormatter):
    """Powertools' own line, of an event's name and fields alone.

    Powertools looks through each record for fields, for keys that are patterns, and for JSON in its
    message; that took as long as all the rest of telling an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter. `told` of the record is what the event says."""
        line: dict[str, Any] = {**self.log_format, **getattr(record, "told", {})}
        line["level"], line["message"] = record.levelname, record.getMessage()
        line["timestamp"] = self.formatTime(record)
        line["xray_trace_id"] = self._get_latest_trace_id()
        return self.serialize({name: value for name, value in line.items() if value is not None})


class PowertoolsTelemetry:
    """One for the process; `invocation` opens and closes what belongs to one event."""

    def __init__(self, *, level: str | None = None) -> None:
        """`level`: of our own logs; POWERTOOLS_LOG_LEVEL when None."""
        # Libraries below us log URLs, headers and bodies at INFO and DEBUG.
        logging.getLogger().setLevel(logging.WARNING)
        line = _Line(utc=True, location=None)
        self.logger = Logger(service=SERVICE, level=level, location=None, logger_formatter=line)
        self.metrics = Metrics(namespace=NAMESPACE, service=SERVICE)
        self._tracer: Tracer | None = None
        self._traces: Tracer | None = None
        """The tracer, while an event is traced."""
        self._models: dict[str, str] = {}
        # A batch is submitted in threads: Powertools collects metrics for the whole process, and
        # prints them in two steps, between which no other line may come.
        self._lock = Lock()

    def know_vendors(self, vendor_by_model: dict[str, str]) -> None:
        """Tells which vendor serves a model, for the dimension set [vendor, model]."""
        self._models = vendor_by_model

    @contextmanager
    def invocation(self, context: LambdaContext, correlation_id: str = "") -> Iterator[None]:
        """One event: a clean set of log fields, its trace, and its metrics written at the end."""
        self.logger.clear_state()
        self.logger.append_keys(request_id=context.aws_request_id)
        if correlation_id:
            self.logger.append_keys(correlation_id=correlation_id)
        self._traces = self._sampled_tracer()
        segment: AbstractContextManager[Any] = (
            nullcontext()
            if self._traces is None
            else self._traces.provider.in_subsegment(name=f"## {context.function_name}")
        )
        try:
            with segment:
                yield
        finally:
            self._traces = None
            self.logger.clear_state()

    def keys(self, **fields: str) -> None:
        """Fields for every log line of this invocation."""
        self.logger.append_keys(**fields)

    def about(self, job: Job) -> None:
        """See ports.Telemetry."""
        self.logger.append_keys(**_fields(job))
        if self._traces is not None:
            self._traces.put_annotation("job_id", job.job_id)
            self._traces.put_annotation("correlation_id", job.correlation_id)
            self._traces.put_annotation("tenant", _tenant(job))
            self._traces.put_annotation("model", job.model)

    def event(self, name: str, job: Job | None = None, **fields: str | int | bool) -> None:
        """See ports.Telemetry."""
        told: dict[str, Any] = {**(_fields(job) if job else {}), **fields}
        metrics = EVENTS[name]
        with self._lock:
            self.logger.info(name, extra={"told": told})
            self._count(metrics, told)

    def _count(self, metrics: tuple[Metric, ...], told: dict[str, Any]) -> None:
        counted = [
            (metric, value / metric.per if metric.per > 1 else value)
            for metric in metrics
            if (value := told.get(metric.field) if metric.field else 1) is not None
        ]
        if not counted:
            return
        for metric, value in counted:
            self.metrics.add_metric(name=metric.name, unit=metric.unit, value=value)
        if model := told.get("model"):
            vendor = self._models.get(model, "unknown")
            self.metrics.add_dimensions(vendor=vendor, model=model)
        for dimension in ("lane", "tenant"):
            if value := told.get(dimension):
                self.metrics.add_dimensions(**{dimension: value})
        self.metrics.flush_metrics()

    def error(self, name: str, error: BaseException) -> None:
        """An error that nobody expected: class and place, since its text may hold a prompt."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = (
            f"{os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}"  # noqa: PTH119
            if place is not None
            else ""
        )
        with self._lock:
            told = {"error_class": type(error).__name__, "error_at": where}
            self.logger.error(name, extra={"told": told})
            self._count(EVENTS[name], {})

    @contextmanager
    def span(self, name: str, job: Job) -> Iterator[None]:
        """See ports.Telemetry."""
        if self._traces is None:
            yield
            return
        with self._traces.provider.in_subsegment(name=name) as segment:
            segment.put_annotation("job_id", job.job_id)
            yield

    def _sampled_tracer(self) -> Tracer | None:
        """The tracer, when Lambda traces this event; its import costs a third of a second."""
        if "Sampled=1" not in os.environ.get("_X_AMZN_TRACE_ID", ""):
            return None
        if self._tracer is None:
            from aws_lambda_powertools import Tracer  # noqa: PLC0415 - see above

            # Only AWS calls are patched: a patched httpx would send our trace id to vendors.
            self._tracer = Tracer(service=SERVICE, patch_modules=("botocore",))
            recorder: Any = self._tracer.provider
            recorder.emitter = _WithoutTexts(recorder.emitter)
        return self._tracer


class _WithoutTexts:
    """Sends parts of a trace without the texts of exceptions, which could hold a prompt.

    X-Ray's SDK notes them wherever one passes through; class and place stay.
    """

    def __init__(self, emitter: Any) -> None:
        self._emitter = emitter

    def send_entity(self, entity: Any) -> None:
        """Sends an ended part, and what is in it."""
        _forget_texts(entity)
        self._emitter.send_entity(entity)

    def set_daemon_address(self, address: str | None) -> None:
        """Where to."""
        self._emitter.set_daemon_address(address)


def _forget_texts(entity: Any) -> None:
    if isinstance(entity.cause, dict):  # else the id of an error that another segment holds
        for error in entity.cause.get("exceptions", ()):
            error.message = None
    for inner in entity.subsegments:
        _forget_texts(inner)


def trace_header() -> str | None:
    """The current trace in the form that SQS carries along."""
    return os.environ.get("_X_AMZN_TRACE_ID") or None


def _fields(job: Job) -> dict[str, str | int]:
    """What every line about a job says."""
    fields: dict[str, str | int | None] = {
        "job_id": job.job_id,
        "job_key": job.job_key,
        "tenant": _tenant(job),
        "model": job.model,
        "lane": job.lane,
        "attempt": job.attempts,
        "correlation_id": job.correlation_id,
        "queue_wait_ms": job.queue_wait_ms,
        "upstream_latency_ms": job.upstream_latency_ms,
        "processing_ms": (
            job.completed_at_epoch_ms - job.started_at_epoch_ms
            if job.completed_at_epoch_ms and job.started_at_epoch_ms
            else None
        ),
        "cost_nanos": job.cost_nanos,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tenant(job: Job) -> str:
    """A refresh is nobody's, and its owner's name is as many as there are entries."""
    return "refresh" if job.refresh else job.tenant
