"""Logs and metrics as Powertools really writes them."""

from __future__ import annotations

import ast
import logging
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sluiceway
from aws_xray_sdk.core.models.segment import Segment
from aws_xray_sdk.core.models.subsegment import Subsegment
from sluiceway.domain import job as transitions
from sluiceway.domain.payload import Payload
from sluiceway.telemetry import EVENTS, PowertoolsTelemetry, _WithoutTexts, trace_header

from tests.fakes.in_memory import NOW_MS
from tests.unit.logs import a_context, fresh_telemetry, log_lines, metric_lines, output
from tests.unit.samples import JOB_ID, JOB_KEY, a_job

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
CODE = [
    *Path(sluiceway.__file__).parent.rglob("*.py"),
    *(REPOSITORY / "functions").rglob("*.py"),
]

# What dashboards and alarms may rely on.
METRICS = set(
    """
    JobsSubmitted JobsCompleted JobsFailed JobsDeadLettered JobsDeduplicated CacheHit CacheMiss
    CacheStale QueueWait QueueDepth OldestJobAge ProcessingTime VendorLatency VendorErrors Retries
    LeaseAcquired LeaseReleased LeaseContention LeaseLost GateWait GateClosed Parked
    WorkerUtilisation Degraded DegradedSeconds CostEstimate SweeperResent
    WebhooksDelivered WebhookErrors WebhooksSuppressed CacheUnreachable VendorQuotaExhausted
    WorkersIdle ConfigurationKept UnexpectedErrors SignaturesExpired
    """.split()  # noqa: SIM905 - as the contract has it
)

UNITS = {
    **dict.fromkeys(("QueueWait", "OldestJobAge", "ProcessingTime"), "Milliseconds"),
    **dict.fromkeys(("VendorLatency", "GateWait"), "Milliseconds"),
    "DegradedSeconds": "Seconds",
    "WorkerUtilisation": "Percent",
    "CostEstimate": "None",  # of a currency, which CloudWatch has no unit for
}
"""Of the metrics that are no counts."""

COMPLETED = transitions.completed(
    transitions.started(
        a_job(),
        fence=1,
        now_ms=NOW_MS + 2_000,
        receives=1,
        function_ends_ms=NOW_MS + 90_000,
    ),
    now_ms=NOW_MS + 5_000,
    result=Payload(inline=b"hunter2"),
    source="vendor",
    upstream_latency_ms=2_500,
    cost_nanos=12_500_000,
)

MEASURED = {
    "lane_measured": {
        "queue_depth": 7,
        "oldest_job_age_ms": 3_600_000,
        "utilisation_percent": 80,
        "workers_idle": 0,
    },
    "degraded_lasted": {"lasted_ms": 59_500},
    "gate_waited": {"gate_wait_ms": 700},
}
"""What an event that measures something is told with."""


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[PowertoolsTelemetry]:
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    before = logging.getLogger().level
    made = fresh_telemetry(level="INFO")
    made.know_vendors({"demo-chat": "simulator"})
    yield made
    logging.getLogger().setLevel(before)


def emf(line: dict[str, Any]) -> dict[str, Any]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert isinstance(directive, dict)
    return directive


# ------------------------------------------------------------------ log lines


def test_log_line_of_a_job_has_the_fields_of_the_contract(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context(aws_request_id="lambda-1")):
        telemetry.event("job_completed", COMPLETED)

    (line,) = log_lines(output(capsys))
    assert line.pop("timestamp")
    assert line == {
        "level": "INFO",
        "message": "job_completed",
        "service": "sluiceway",
        "request_id": "lambda-1",
        "correlation_id": "corr-1",
        "job_id": JOB_ID,
        "job_key": JOB_KEY,
        "tenant": "acme",
        "model": "demo-chat",
        "lane": "interactive",
        "attempt": 1,
        "queue_wait_ms": 2_000,
        "upstream_latency_ms": 2_500,
        "processing_ms": 3_000,
        "cost_nanos": 12_500_000,
    }


def test_log_line_has_what_the_event_adds(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context()):
        told: dict[str, str | bool] = {
            "code": "vendor_timeout",
            "error_class": "ReadTimeout",
            "retryable": True,
        }
        telemetry.event("vendor_error", a_job(), **told)

    (line,) = log_lines(output(capsys))
    assert (line["code"], line["error_class"], line["retryable"]) == (
        "vendor_timeout",
        "ReadTimeout",
        True,
    )


def test_log_line_before_the_first_start_has_no_empty_fields(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_submitted", a_job())

    (line,) = log_lines(output(capsys))
    assert None not in line.values()
    assert "upstream_latency_ms" not in line


def test_log_lines_after_about_are_about_the_job(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context()):
        telemetry.about(a_job())
        telemetry.event("send_failed", error_class="ClientError")

    (line,) = log_lines(output(capsys))
    assert (line["job_id"], line["tenant"], line["correlation_id"]) == (JOB_ID, "acme", "corr-1")


def test_log_lines_carry_the_correlation_id_of_the_request(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context(), "corr-7"):
        telemetry.event("request_refused", code="forbidden")

    (line,) = log_lines(output(capsys))
    assert line["correlation_id"] == "corr-7"


def test_log_lines_never_hold_input_or_result(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job(input=Payload(inline=b"hunter2"), metadata={"note": "hunter2"}, key_id="hunter2")

    with telemetry.invocation(a_context()):
        telemetry.about(COMPLETED)
        for name in EVENTS:
            telemetry.event(name, job)
            telemetry.event(name, COMPLETED)

    assert "hunter2" not in capsys.readouterr().out


# ------------------------------------------------------------------ threads


def test_events_of_many_threads_are_each_a_line_and_a_metric_of_their_own(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = threading.Barrier(8)
    usual_s = sys.getswitchinterval()

    def tell(number: int) -> None:
        begin.wait(10)
        for _ in range(50):
            telemetry.event("cache_hit", model="demo-chat", tenant=f"tenant-{number}")

    sys.setswitchinterval(1e-6)
    try:
        with telemetry.invocation(a_context()), ThreadPoolExecutor(8) as threads:
            list(threads.map(tell, range(8)))
    finally:
        sys.setswitchinterval(usual_s)

    written = output(capsys)
    counted = Counter(line["tenant"] for line in metric_lines(written))
    assert counted == {f"tenant-{number}": 50 for number in range(8)}
    assert {tuple(line["CacheHit"]) for line in metric_lines(written)} == {(1.0,)}
    assert len(log_lines(written)) == 400


# ------------------------------------------------------------------ one invocation and the next


def test_keys_of_one_invocation_are_gone_in_the_next(  # case O01
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context(aws_request_id="lambda-1"), "corr-1"):
        telemetry.about(COMPLETED)
        telemetry.keys(route="/jobs")
        telemetry.event("lease_acquired", COMPLETED)
    output(capsys)

    with telemetry.invocation(a_context(aws_request_id="lambda-2")):
        telemetry.event("request_refused", code="forbidden")

    (line,) = log_lines(output(capsys))
    assert line.pop("timestamp")
    assert line == {
        "level": "INFO",
        "message": "request_refused",
        "service": "sluiceway",
        "request_id": "lambda-2",
        "code": "forbidden",
    }


def test_keys_that_were_set_before_an_invocation_are_gone_in_it(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.about(COMPLETED)

    with telemetry.invocation(a_context()):
        telemetry.event("message_without_job")

    (line,) = log_lines(output(capsys))
    assert not {"tenant", "job_id", "correlation_id"} & set(line)


def test_keys_of_an_invocation_that_failed_are_gone_too(  # case O01
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with telemetry.invocation(a_context(), "corr-1"):
            telemetry.about(COMPLETED)
            raise RuntimeError("hunter2")

    with pytest.raises(RuntimeError):
        fail()

    with telemetry.invocation(a_context(aws_request_id="lambda-2")):
        telemetry.event("message_without_job")

    (line,) = log_lines(output(capsys))
    assert "tenant" not in line
    assert "job_id" not in line
    assert "correlation_id" not in line


def test_dimensions_of_one_event_are_gone_in_the_next(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("lease_acquired", a_job())
    output(capsys)

    telemetry.event("lease_lost")

    (line,) = metric_lines(output(capsys))
    assert not {"tenant", "lane", "model", "vendor", "LeaseAcquired"} & set(line)


# ------------------------------------------------------------------ metrics


def test_metrics_have_the_namespace_and_the_dimension_sets_of_the_contract(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_submitted", a_job())

    (line,) = metric_lines(output(capsys))
    assert emf(line)["Namespace"] == "Sluiceway"
    sets = [sorted(dimensions) for dimensions in emf(line)["Dimensions"]]
    assert all(wanted in sets for wanted in (["model", "vendor"], ["lane"], ["tenant"]))
    assert (line["vendor"], line["model"], line["lane"], line["tenant"]) == (
        "simulator",
        "demo-chat",
        "interactive",
        "acme",
    )


def test_metrics_never_mix_dimensions_of_several_sets(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_submitted", a_job())

    (line,) = metric_lines(output(capsys))
    for dimensions in emf(line)["Dimensions"]:
        assert set(dimensions) <= {"service"} or set(dimensions) in (
            {"vendor", "model"},
            {"lane"},
            {"tenant"},
        )


def test_metrics_of_a_completed_job_have_its_times(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_completed", COMPLETED)

    (line,) = metric_lines(output(capsys))
    assert {(metric["Name"], metric["Unit"]) for metric in emf(line)["Metrics"]} == {
        ("JobsCompleted", "Count"),
        ("ProcessingTime", "Milliseconds"),
        ("VendorLatency", "Milliseconds"),
        ("CostEstimate", "None"),
    }
    assert (line["JobsCompleted"], line["ProcessingTime"], line["VendorLatency"]) == (
        [1],
        [3000],
        [2500],
    )


def test_metric_is_in_its_own_unit_though_the_field_is_finer(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_completed", COMPLETED)
    telemetry.event("degraded_lasted", lasted_ms=59_500)

    cost, seconds = metric_lines(output(capsys))
    assert cost["CostEstimate"] == [0.0125]
    assert seconds["DegradedSeconds"] == [59.5]


def test_metrics_leave_out_a_time_that_is_not_known(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_completed", a_job())

    (line,) = metric_lines(output(capsys))
    assert [metric["Name"] for metric in emf(line)["Metrics"]] == ["JobsCompleted"]


def test_metrics_keep_a_time_of_zero(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("lease_acquired", a_job(queue_wait_ms=0))

    (line,) = metric_lines(output(capsys))
    assert line["QueueWait"] == [0]


def test_metrics_of_a_hit_name_tenant_and_model(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("cache_hit", model="demo-chat", tenant="acme")

    (line,) = metric_lines(output(capsys))
    assert line["CacheHit"] == [1]
    assert (line["vendor"], line["model"], line["tenant"]) == ("simulator", "demo-chat", "acme")


def test_metrics_of_a_model_that_is_gone_have_an_unknown_vendor(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.event("job_failed", a_job(model="demo-gone"))

    (line,) = metric_lines(output(capsys))
    assert line["vendor"] == "unknown"


@pytest.mark.parametrize("name", EVENTS)
def test_each_event_writes_one_log_line_and_its_metrics_at_once(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    telemetry.event(name, COMPLETED, **MEASURED.get(name, {}))

    written = output(capsys)
    assert [line["message"] for line in log_lines(written)] == [name]
    counted = [metric["Name"] for line in metric_lines(written) for metric in emf(line)["Metrics"]]
    assert counted == [metric.name for metric in EVENTS[name]]


def test_event_that_nobody_knows_is_refused(telemetry: PowertoolsTelemetry) -> None:
    with pytest.raises(KeyError):
        telemetry.event("job_vanished")


def test_metrics_are_those_of_the_contract_in_its_units() -> None:
    used = {(metric.name, metric.unit.value) for told in EVENTS.values() for metric in told}

    assert used == {(name, UNITS.get(name, "Count")) for name in METRICS}


@pytest.mark.parametrize("name", sorted(name for name, told in EVENTS.items() if told))
def test_every_metric_is_told_for_the_service_as_a_whole(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    telemetry.event(name, COMPLETED, **MEASURED.get(name, {}))

    (line,) = metric_lines(output(capsys))
    assert ["service"] in emf(line)["Dimensions"]
    assert line["service"] == "sluiceway"


def test_tenants_of_refreshes_are_one_dimension(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, told in EVENTS.items():
        if told:
            job = a_job(tenant="refresh#c1_x", refreshes_for="acme")
            telemetry.event(name, job, **MEASURED.get(name, {}))

    written = output(capsys)
    assert {line["tenant"] for line in written} == {"refresh"}


# ------------------------------------------------------------------ errors


def fail_with(secret: str) -> None:
    """Raises an error whose text and cause both hold the secret."""
    raise RuntimeError(f"the call with {secret} failed") from ValueError(f"illegal {secret}")


def raised(secret: str) -> Exception:
    with pytest.raises(RuntimeError) as caught:
        fail_with(secret)
    return caught.value


def test_error_is_told_by_class_and_place_only(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    with telemetry.invocation(a_context()):
        telemetry.error("unexpected_error", raised("hunter2"))

    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert '"level":"ERROR"' in captured.out
    assert '"error_class":"RuntimeError"' in captured.out
    assert '"error_at":"test_telemetry.py:' in captured.out


def test_error_that_was_never_raised_has_no_place(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.error("unexpected_error", ValueError("hunter2"))

    (line,) = log_lines(output(capsys))
    assert (line["error_class"], line["error_at"]) == ("ValueError", "")


def test_error_is_counted(
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.error("unexpected_error", ValueError("hunter2"))

    (line,) = metric_lines(output(capsys))
    assert line["UnexpectedErrors"] == [1]
    assert emf(line)["Dimensions"] == [["service"]]


def test_log_level_never_lets_the_libraries_below_us_speak(  # case A05
    telemetry: PowertoolsTelemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    del telemetry
    fresh_telemetry(level="DEBUG")

    for name in ("httpx", "httpcore.http11", "botocore.auth", "urllib3.connectionpool", "asyncio"):
        logging.getLogger(name).info("Authorization: Bearer hunter2")
        logging.getLogger(name).debug("Authorization: Bearer hunter2")

    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)


# ------------------------------------------------------------------ traces


def test_span_without_a_trace_is_nothing(telemetry: PowertoolsTelemetry) -> None:
    with telemetry.span("vendor simulator", a_job()):
        seen = True

    assert seen


def test_invocation_with_a_trace_works_as_without(
    telemetry: PowertoolsTelemetry,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")

    with telemetry.invocation(a_context()):
        telemetry.about(a_job())
        with telemetry.span("vendor simulator", a_job()):
            telemetry.event("lease_acquired", a_job())

    assert [line["message"] for line in log_lines(output(capsys))] == ["lease_acquired"]


def test_trace_names_the_class_of_an_error_and_not_its_text() -> None:  # case A06
    sent: list[str] = []
    segment = Segment("worker")
    inner = Subsegment("vendor simulator", "local", segment)
    innermost = Subsegment("dynamodb", "aws", segment)
    segment.add_subsegment(inner)
    inner.add_subsegment(innermost)
    for one in (segment, inner, innermost):
        one.add_exception(ValueError("hunter2"), None)
    emitter = _WithoutTexts(
        SimpleNamespace(send_entity=lambda entity: sent.append(entity.serialize()))
    )

    emitter.send_entity(segment)

    (told,) = sent
    assert told.count("ValueError") == 3
    assert "hunter2" not in told


def test_trace_of_an_error_that_another_segment_holds_is_sent_as_it_is() -> None:
    sent: list[Any] = []
    segment = Segment("worker")
    segment.cause = "53995c3f42cd8ad8"

    _WithoutTexts(SimpleNamespace(send_entity=sent.append)).send_entity(segment)

    assert sent == [segment]


@pytest.mark.parametrize(
    ("value", "header"), [(None, None), ("", None), ("Root=1-2;Sampled=0", "Root=1-2;Sampled=0")]
)
def test_trace_header_is_the_current_trace(
    monkeypatch: pytest.MonkeyPatch, value: str | None, header: str | None
) -> None:
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    if value is not None:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", value)

    assert trace_header() == header


# ------------------------------------------------------------------ the names in the code


def names_told() -> dict[str, str]:
    """Each event name that the code tells, and where: the first argument of `.event`, `.error`.

    Where that is looked up in a table of the module, each name in the table.
    """
    found = {}
    for path in CODE:
        module = ast.parse(path.read_text("utf-8"))
        tables = {
            target.id: node.value
            for node in module.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"event", "error"}
                and "telemetry" in ast.unparse(node.func.value)
            ):
                name: ast.expr = node.args[0]
                if isinstance(name, ast.Subscript) and isinstance(name.value, ast.Name):
                    name = tables[name.value.id]
                for part in ast.walk(name):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value] = f"{path.name}:{part.lineno}"
    return found


def test_every_event_that_the_code_tells_is_known() -> None:
    told = names_told()

    assert len(told) >= 10
    assert {name: place for name, place in told.items() if name not in EVENTS} == {}


def test_every_event_that_is_known_is_told_by_the_code() -> None:
    assert set(EVENTS) - set(names_told()) == set()
