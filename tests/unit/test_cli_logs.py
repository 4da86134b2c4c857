"""What the command line reads from CloudWatch: the functions' lines, and the sums of metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from sluiceway_cli import logs as logs_module
from sluiceway_cli.counts import CloudWatchCounts
from sluiceway_cli.logs import FunctionLogs
from sluiceway_local.log_counts import LogCounts

from tests.fakes.in_memory import NOW_MS
from tests.unit.logs import a_context, fresh_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.in_memory import FakeClock

GROUPS = {"api": "of-the-template", "run_job": "/aws/lambda/run-1", "sweep_jobs": "/aws/lambda/s-1"}
NAMES = {"api": "api-1", "run_job": "run-1", "sweep_jobs": "s-1"}


class Functions:
    """Lambda, which tells the log group of one function only."""

    def get_function_configuration(self, **request: str) -> dict[str, Any]:
        named = request["FunctionName"] == "api-1"
        return {"LoggingConfig": {"LogGroup": GROUPS["api"]}} if named else {}


@pytest.fixture
def client() -> Iterator[Any]:
    """Of CloudWatch Logs on moto, with a group for each function."""
    with mock_aws():
        made = boto3.client("logs")
        for group in GROUPS.values():
            made.create_log_group(logGroupName=group)
            made.create_log_stream(logGroupName=group, logStreamName="s")
        yield made
        made.close()


@pytest.fixture
def logs(client: Any, clock: FakeClock) -> FunctionLogs:
    now_ms = round(datetime.now(UTC).timestamp() * 1000)  # moto refuses events that are old
    clock.set(now_ms)
    return FunctionLogs(Functions, lambda: client, NAMES, clock=clock)


def write(client: Any, function: str, at_ms: int, *messages: object) -> None:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in messages]
    client.put_log_events(
        logGroupName=GROUPS[function],
        logStreamName="s",
        logEvents=[{"timestamp": at_ms, "message": text} for text in texts],
    )


@pytest.mark.parametrize("function", ["api", "run_job"])
def test_lines_are_found_by_a_phrase_in_the_functions_group(
    client: Any, logs: FunctionLogs, clock: FakeClock, function: str
) -> None:
    now_ms = clock.now_ms()
    write(client, function, now_ms, {"job_id": "job_1"}, {"job_id": "job_2"}, "START job_1")

    look = logs.find(function, "job_1", since_ms=now_ms - 1000, until_ms=now_ms + 1000)

    assert [line.members for line in look.lines] == [{"job_id": "job_1"}]
    assert look.whole


def test_line_has_its_own_time_and_the_oldest_is_first(
    client: Any, logs: FunctionLogs, clock: FakeClock
) -> None:
    now_ms = clock.now_ms()
    own = "2026-11-30 11:37:51,787+0000"
    write(client, "api", now_ms, {"n": 2, "a": "x"}, {"n": 1, "a": "x", "timestamp": own})

    look = logs.find("api", "x", since_ms=0, until_ms=now_ms)

    times = {line.members["n"]: line.at_epoch_ms for line in look.lines}
    assert times[1] == 1_796_038_671_787
    assert times[2] == now_ms
    assert [line.at_epoch_ms for line in look.lines] == sorted(times.values())


def test_lines_of_another_time_are_left_out(
    client: Any, logs: FunctionLogs, clock: FakeClock
) -> None:
    now_ms = clock.now_ms()
    write(client, "api", now_ms - 5000, {"a": "x"})

    assert logs.find("api", "x", since_ms=now_ms - 4999, until_ms=now_ms).lines == ()
    assert len(logs.find("api", "x", since_ms=now_ms - 5000, until_ms=now_ms).lines) == 1


def test_group_that_is_not_there_is_an_error(
    client: Any, logs: FunctionLogs, clock: FakeClock
) -> None:
    client.delete_log_group(logGroupName=GROUPS["api"])

    with pytest.raises(ClientError):
        logs.find("api", "x", since_ms=0, until_ms=clock.now_ms())


def test_function_whose_name_the_stack_does_not_tell_is_an_error(logs: FunctionLogs) -> None:
    with pytest.raises(ValueError, match="deliver_webhook"):
        logs.find("deliver_webhook", "x", since_ms=0, until_ms=NOW_MS)


class Pages:
    """CloudWatch Logs with a long log: each page has a line, and another behind it."""

    def __init__(self, clock: FakeClock, *, takes_s: float = 0.0, last: int = 100) -> None:
        self.asked = 0
        self._clock = clock
        self._takes_s = takes_s
        self._last = last

    def filter_log_events(self, **request: Any) -> dict[str, Any]:
        assert ("nextToken" in request) == (self.asked > 0)
        self.asked += 1
        self._clock.advance(s=self._takes_s)
        more = {} if self.asked == self._last else {"nextToken": "t"}
        return {"events": [{"timestamp": self.asked, "message": '{"a": "x"}'}], **more}


@pytest.mark.parametrize(
    ("pages", "whole", "expected"), [({"last": 3}, True, 3), ({"takes_s": 4.0}, False, 3)]
)
def test_look_reads_every_page_until_its_time_is_over(
    clock: FakeClock, pages: dict[str, Any], *, whole: bool, expected: int
) -> None:
    client = Pages(clock, **pages)
    logs = FunctionLogs(Functions, lambda: client, NAMES, clock=clock)

    look = logs.find("api", "x", since_ms=0, until_ms=NOW_MS)

    assert (len(look.lines), look.whole) == (expected, whole)


def test_look_stops_at_the_most_lines(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "MOST_LINES", 5)
    logs = FunctionLogs(Functions, lambda: Pages(clock), NAMES, clock=clock)

    look = logs.find("api", "x", since_ms=0, until_ms=NOW_MS)

    assert (len(look.lines), look.whole) == (5, False)


# ------------------------------------------------------------------------------------ counts


def test_counts_of_the_logs_are_what_the_functions_told(
    client: Any, logs: FunctionLogs, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = fresh_telemetry()
    with telemetry.invocation(a_context()):
        for event in ("cache_hit", "cache_miss", "cache_hit", "job_retrying"):
            telemetry.event(event, model="demo-chat", tenant="acme")
    lines = capsys.readouterr().out.splitlines()
    now_ms = clock.now_ms()
    write(client, "api", now_ms, *lines)

    counted = LogCounts(logs).count(
        ["CacheHit", "CacheMiss", "Retries", "JobsFailed"], [5, 60], now_ms=now_ms + 1000
    )

    assert counted.sums[5] == {"CacheHit": 2, "CacheMiss": 1, "Retries": 1, "JobsFailed": 0}
    assert counted.sums[60] == counted.sums[5]
    assert counted.whole


@pytest.mark.parametrize(("minutes_ago", "expected"), [(1, (1, 1)), (30, (0, 1)), (90, (0, 0))])
def test_counts_of_the_logs_are_of_the_last_minutes(
    client: Any, logs: FunctionLogs, clock: FakeClock, minutes_ago: int, expected: tuple[int, int]
) -> None:
    now_ms = clock.now_ms()
    at_ms = now_ms - minutes_ago * 60_000
    metric = {"Namespace": "Sluiceway", "Dimensions": [["service"]], "Metrics": [{"Name": "M"}]}
    told = {"_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [metric]}, "M": [1.0]}
    write(client, "run_job", at_ms, told)

    counted = LogCounts(logs).count(["M"], [5, 60], now_ms=now_ms)

    assert (counted.sums[5]["M"], counted.sums[60]["M"]) == expected


def test_counts_of_cloudwatch_are_of_the_service_alone() -> None:
    now = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    service = [{"Name": "service", "Value": "sluiceway"}]
    with mock_aws():
        client = boto3.client("cloudwatch")
        for minutes_ago, value in ((0, 1), (4, 2), (5, 4), (59, 8), (61, 16)):
            at = datetime.fromtimestamp(now.timestamp() - minutes_ago * 60, UTC)
            for dimensions in (service, [{"Name": "tenant", "Value": "acme"}]):
                client.put_metric_data(
                    Namespace="Sluiceway",
                    MetricData=[
                        {
                            "MetricName": "CacheHit",
                            "Timestamp": at,
                            "Value": value,
                            "Dimensions": dimensions,
                        }
                    ],
                )

        counted = CloudWatchCounts(client).count(
            ["CacheHit", "Retries"], [5, 60], now_ms=round(now.timestamp() * 1000)
        )
        client.close()

    assert counted.sums == {5: {"CacheHit": 3, "Retries": 0}, 60: {"CacheHit": 15, "Retries": 0}}
    assert counted.whole
