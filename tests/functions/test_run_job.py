"""The worker, SQS event in and batch item failures out."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NoReturn

import pytest
from sluiceway.adapters.http_vendors import HttpVendors
from sluiceway.adapters.sqs_queue import message_body
from sluiceway.domain.errors import StoreBusyError, VendorError
from sluiceway.domain.job import JobStatus
from sluiceway.ports import VendorAnswer, VendorCall
from sluiceway_local.simulator import Simulator

from tests.fakes.in_memory import InMemoryQueue, LeaseRow
from tests.fakes.outside import FakeSecretsManager
from tests.functions.stage import BATCH_ARN, INTERACTIVE_ARN, Stage, end, message, sample
from tests.unit.logs import log_lines, output
from tests.unit.samples import CATALOGUE, JOB_ID, a_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway.domain.job import Job

UNAVAILABLE = VendorError(
    "vendor_unavailable", "The vendor answered 503.", retryable=True, retry_after_s=90
)
REJECTED = VendorError("vendor_rejected", "The vendor answered 400.", retryable=False)


def explode(_: VendorCall) -> VendorAnswer:
    raise RuntimeError("hunter2")


def status_of(stage: Stage, job_id: str) -> JobStatus:
    return stage.world.jobs["acme", job_id].status


def submitted(stage: Stage, text: str = "hello", **members: str) -> str:
    """Submits through the API and gives the job's id."""
    job_id: str = stage.post({"model": "demo-chat", "input": text, **members}).body["id"]
    return job_id


# ------------------------------------------------------------------ the sample event


def test_worker_runs_the_job_of_the_sample_event(stage: Stage) -> None:
    stage.world.jobs["acme", JOB_ID] = a_job()

    failures = stage.run(*sample("run_job")["Records"])

    assert failures == []
    assert status_of(stage, JOB_ID) is JobStatus.COMPLETED


def test_sample_event_is_what_the_queue_would_send() -> None:
    (record,) = sample("run_job")["Records"]

    assert record["body"] == message_body("acme", JOB_ID)
    assert record["md5OfBody"] == hashlib.md5(record["body"].encode()).hexdigest()  # noqa: S324


# ------------------------------------------------------------------ what becomes of the message


def test_message_of_a_job_that_completes_is_gone(stage: Stage) -> None:
    job_id = submitted(stage)

    failures = stage.run_job(job_id)

    assert failures == []
    assert stage.given_back == []
    assert status_of(stage, job_id) is JobStatus.COMPLETED


@pytest.mark.parametrize("job_id", ["job_unknown", JOB_ID])
def test_message_without_a_job_is_gone(stage: Stage, job_id: str) -> None:
    assert stage.run_job(job_id) == []
    assert stage.given_back == []


@pytest.mark.parametrize(("arn", "lane"), [(INTERACTIVE_ARN, "interactive"), (BATCH_ARN, "batch")])
def test_message_that_shall_come_again_stays_in_its_own_queue(
    stage: Stage, arn: str, lane: str
) -> None:
    stage.vendor.script = [UNAVAILABLE]
    job_id = submitted(stage)

    failures = stage.run(message(job_id, arn=arn, message_id="m-7"))

    assert failures == ["m-7"]
    assert stage.given_back == [(lane, "receipt of m-7", 90)]
    assert status_of(stage, job_id) is JobStatus.RETRYING


def test_message_goes_back_to_the_queue_it_came_from_not_to_the_jobs_lane(stage: Stage) -> None:
    stage.vendor.script = [UNAVAILABLE]
    job_id = submitted(stage, priority="batch")

    stage.run(message(job_id, arn=INTERACTIVE_ARN))

    assert [lane for lane, _, _ in stage.given_back] == ["interactive"]


def test_message_of_a_job_that_failed_goes_on_to_the_dead_letter_queue(  # case D09
    stage: Stage,
) -> None:
    stage.vendor.script = [REJECTED]
    job_id = submitted(stage)

    failures = [stage.run(message(job_id, receives=receives)) for receives in range(1, 11)]

    assert failures == [["message-1"]] * 10
    # On receive 9 it waits until every copy that was sent before the failure is in.
    assert [delay_s for _, _, delay_s in stage.given_back] == [0.0] * 8 + [10.0, 0.0]
    assert status_of(stage, job_id) is JobStatus.DEAD_LETTERED
    assert stage.vendor.total == 1
    assert stage.sent == [("interactive", "acme", job_id)]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "{",
        "null",
        "5",
        "[]",
        '"job"',
        "{}",
        '{"tenant": "acme"}',
        '{"job_id": "job_1"}',
        '{"tenant": "", "job_id": "job_1"}',
        '{"tenant": "acme", "job_id": ""}',
        '{"tenant": 5, "job_id": "job_1"}',
        '{"tenant": "acme", "job_id": 5}',
        '{"tenant": "acme", "job_id": null}',
        '{"tenant": ["acme"], "job_id": {"a": 1}}',
        '[{"tenant": "acme", "job_id": "job_1"}]',
        '{"Records": [{"s3": {}}]}',
        "[" * 100_000,
    ],
    ids=lambda body: body[:40],
)
def test_message_that_is_not_ours_goes_on_to_the_dead_letter_queue(  # case D09
    stage: Stage, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    failures = stage.run(message(body=body, message_id="m-7"))

    assert failures == ["m-7"]
    assert stage.given_back == [("interactive", "receipt of m-7", 0.0)]
    (line,) = log_lines(output(capsys))
    assert (line["message"], line["message_id"]) == ("message_unreadable", "m-7")


@pytest.mark.parametrize(
    "body",
    [
        '{"tenant": "acme", "job_id": "%s"}',
        '{"job_id":"%s","tenant":"acme"}',
        '{"tenant": "acme", "job_id": "%s", "extra": true}',
        '{"tenant": "\\u0061cme", "job_id": "%s"}',
        '\n {"tenant": "acme",\n "job_id": "%s"}\n',
    ],
)
def test_message_is_read_whatever_its_spelling(stage: Stage, body: str) -> None:
    job_id = submitted(stage)

    assert stage.run(message(body=body % job_id)) == []
    assert status_of(stage, job_id) is JobStatus.COMPLETED


# ------------------------------------------------------------------ redrives


def dead_lettered(stage: Stage) -> tuple[str, int]:
    """A job whose message was moved to the dead-letter queue, and when it failed."""
    stage.vendor.script = [REJECTED]
    job_id = submitted(stage)
    for receives in range(1, 11):
        stage.run(message(job_id, receives=receives))
    failed_at_ms = stage.clock.now_ms()
    stage.clock.advance(s=3600)
    assert status_of(stage, job_id) is JobStatus.DEAD_LETTERED
    return job_id, failed_at_ms


@pytest.mark.parametrize(("after_ms", "redriven"), [(5_000, False), (5_001, True)])
def test_message_that_was_sent_over_five_seconds_after_the_failure_is_a_redrive(
    stage: Stage, after_ms: int, *, redriven: bool
) -> None:
    job_id, failed_at_ms = dead_lettered(stage)

    failures = stage.run(message(job_id, sent_at_ms=failed_at_ms + after_ms))

    assert (failures == []) is redriven
    assert (status_of(stage, job_id) is JobStatus.COMPLETED) is redriven


def test_message_that_keeps_its_first_time_is_a_redrive_by_its_source_and_first_receive(
    stage: Stage,
) -> None:
    # LocalStack keeps SentTimestamp in a message that it moves back.
    job_id, failed_at_ms = dead_lettered(stage)
    before_ms = failed_at_ms - 60_000

    failures = stage.run(
        message(
            job_id,
            sent_at_ms=before_ms,
            first_received_at_ms=stage.clock.now_ms(),
            moved_back=True,
        )
    )

    assert failures == []
    assert status_of(stage, job_id) is JobStatus.COMPLETED
    assert stage.world.jobs["acme", job_id].redrives == 1


@pytest.mark.parametrize(
    ("moved_back", "after_ms"),
    [(False, 3_600_000), (True, 5_000)],
    ids=["it was never in the DLQ", "it was first received before the failure"],
)
def test_message_of_a_failed_job_whose_times_tell_of_no_redrive_is_a_leftover(
    stage: Stage, after_ms: int, *, moved_back: bool
) -> None:
    job_id, failed_at_ms = dead_lettered(stage)

    failures = stage.run(
        message(
            job_id,
            sent_at_ms=failed_at_ms - 60_000,
            first_received_at_ms=failed_at_ms + after_ms,
            moved_back=moved_back,
        )
    )

    assert failures == ["message-1"]
    assert status_of(stage, job_id) is JobStatus.DEAD_LETTERED


def test_message_that_was_moved_back_keeps_the_later_of_its_times(stage: Stage) -> None:
    job_id, failed_at_ms = dead_lettered(stage)

    failures = stage.run(
        message(
            job_id,
            sent_at_ms=stage.clock.now_ms(),
            first_received_at_ms=failed_at_ms - 60_000,
            moved_back=True,
        )
    )

    assert failures == []


@pytest.mark.parametrize(("arn", "lane"), [(INTERACTIVE_ARN, "interactive"), (BATCH_ARN, "batch")])
def test_redriven_job_runs_in_the_lane_whose_queue_it_came_from(
    stage: Stage, arn: str, lane: str
) -> None:
    job_id, _ = dead_lettered(stage)
    stage.vendor.script = [UNAVAILABLE]

    stage.run(message(job_id, arn=arn, sent_at_ms=stage.clock.now_ms()))

    assert stage.world.jobs["acme", job_id].lane == lane
    assert [of for of, _, _ in stage.given_back[-1:]] == [lane]


def test_redriven_job_is_fetched_as_any_other(stage: Stage) -> None:
    job_id, _ = dead_lettered(stage)
    failed = stage.get(job_id).body["status"]
    stage.run(message(job_id, sent_at_ms=stage.clock.now_ms()))

    fetched = stage.get(job_id).body

    assert failed in {"failed", "dead_lettered"}
    assert (fetched["status"], fetched["result"]["text"]) == ("completed", "a good answer")
    assert "error" not in fetched


def test_message_without_its_time_is_kept(stage: Stage) -> None:
    record = message(submitted(stage))
    del record["attributes"]["SentTimestamp"]

    assert stage.run(record) == ["message-1"]


def test_message_of_a_job_that_is_parked_is_gone(stage: Stage) -> None:
    stage.vendor.script = [UNAVAILABLE]
    job_id = submitted(stage)

    failures = stage.run(message(job_id, receives=7))

    assert failures == []
    assert stage.given_back == []
    assert status_of(stage, job_id) is JobStatus.RETRYING


# ------------------------------------------------------------------ several records


@pytest.mark.parametrize("receives", [1, 2, 9])
def test_message_waits_the_longer_the_oftener_no_catalogue_could_be_read(
    stage: Stage, receives: int
) -> None:
    def no_worker() -> NoReturn:
        raise StoreBusyError("The catalogue can't be read.", retry_after_s=5)

    job_id = submitted(stage)
    stage.no_worker = no_worker

    assert stage.run(message(job_id, receives=receives)) == ["message-1"]

    assert isinstance(stage.queue, InMemoryQueue)
    assert stage.queue.gives_back == [("interactive", "receipt of message-1", 60.0 * receives)]
    assert status_of(stage, job_id) is JobStatus.QUEUED


def test_duplicates_in_one_batch_run_once(stage: Stage) -> None:  # case T05
    job_id = submitted(stage)

    failures = stage.run(*(message(job_id, message_id=f"m-{n}") for n in range(3)))

    assert failures == []
    assert stage.vendor.total == 1


def test_unexpected_error_of_one_record_leaves_the_others_alone(  # case T04, P04
    stage: Stage,
) -> None:
    ids = [submitted(stage, f"number {n}") for n in range(10)]
    good = stage.vendor.default
    assert isinstance(good, VendorAnswer)
    stage.vendor.script = [good, good, good, explode]

    failures = stage.run(*(message(job_id, message_id=f"m-{n}") for n, job_id in enumerate(ids)))

    assert failures == ["m-3"]
    assert [status_of(stage, job_id) for job_id in ids] == [
        JobStatus.PROCESSING if n == 3 else JobStatus.COMPLETED for n in range(10)
    ]
    assert stage.vendor.total == 10


def test_unexpected_error_keeps_the_message_and_its_visibility(stage: Stage) -> None:
    stage.vendor.script = [explode]
    job_id = submitted(stage)

    failures = stage.run(message(job_id, message_id="m-7"))

    # It comes back when its visibility ends, which is after the lease's end.
    assert failures == ["m-7"]
    assert stage.given_back == []
    assert stage.sent == [("interactive", "acme", job_id)]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_end_of_the_process_loses_no_message_and_runs_nothing_twice(  # case W16
    stage: Stage, end: type[BaseException]
) -> None:
    def leave(_: VendorCall) -> VendorAnswer:
        raise end

    good, bad = submitted(stage, "good"), submitted(stage, "bad")
    assert isinstance(stage.vendor.default, VendorAnswer)
    stage.vendor.script = [stage.vendor.default, leave]

    # What the handler raises is no answer: Lambda deletes no message of the batch.
    with pytest.raises(end):
        stage.run(message(good), message(bad, message_id="m-2"))

    assert (status_of(stage, good), status_of(stage, bad)) == ("completed", "processing")
    assert stage.given_back == []  # it keeps its receive count
    assert len(stage.sent) == 2  # and nobody sends a copy
    stage.clock.advance(s=200)
    failures = stage.run(message(good, receives=2), message(bad, receives=2, message_id="m-2"))
    assert failures == []
    assert (status_of(stage, good), status_of(stage, bad)) == ("completed", "completed")
    assert stage.vendor.per_key == {good: 1, bad: 2}


def test_unexpected_error_is_logged_without_its_text(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.vendor.script = [explode]
    job_id = submitted(stage, "hunter2")

    stage.run(message(job_id))

    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert '"error_class":"RuntimeError"' in captured.out


def test_unexpected_error_is_logged_with_its_request_and_job(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    # Every line has request_id, correlation_id and job_id; the one that an
    # operator looks for most needs them too.
    stage.vendor.script = [explode]
    job_id = submitted(stage)
    output(capsys)

    stage.run(message(job_id))

    (line,) = [line for line in log_lines(output(capsys)) if line["level"] == "ERROR"]
    assert line["message"] == "unexpected_error"
    assert (line.get("request_id"), line.get("job_id")) == ("lambda-run", job_id)


def test_message_of_a_queue_that_is_not_ours_is_kept(stage: Stage) -> None:
    stage.vendor.script = [UNAVAILABLE]
    job_id = submitted(stage)

    failures = stage.run(message(job_id, arn="arn:aws:sqs:us-east-1:123456789012:other"))

    assert failures == ["message-1"]
    assert stage.given_back == []


def test_record_without_a_receive_count_is_kept_and_others_run(stage: Stage) -> None:
    broken = message("job_x", message_id="broken")
    del broken["attributes"]["ApproximateReceiveCount"]
    job_id = submitted(stage)

    failures = stage.run(broken, message(job_id))

    assert failures == ["broken"]
    assert status_of(stage, job_id) is JobStatus.COMPLETED


def test_log_fields_of_one_record_are_gone_in_the_next(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = submitted(stage)
    output(capsys)

    stage.run(message(job_id), message("job_unknown", message_id="m-2"))

    lines = log_lines(output(capsys))
    assert lines[-1]["message"] == "message_without_job"
    assert not {"job_id", "tenant", "job_key", "correlation_id"} & set(lines[-1])
    assert all(line["job_id"] == job_id for line in lines[:-1])


def test_log_lines_of_a_job_carry_what_came_in_with_the_request(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = stage.submit(headers={"X-Correlation-Id": "order-1001"}).body["id"]
    output(capsys)

    stage.run_job(job_id)

    lines = log_lines(output(capsys))
    assert len(lines) >= 3
    assert {line["correlation_id"] for line in lines} == {"order-1001"}
    assert {line["request_id"] for line in lines} == {"lambda-run"}


# ------------------------------------------------------------------ other states of the world


def test_receive_count_of_the_message_is_written_down(stage: Stage) -> None:
    job_id = submitted(stage)

    stage.run(message(job_id, receives=3))

    assert stage.world.jobs["acme", job_id].receives == 3


def test_time_that_the_function_has_left_decides_when_the_job_is_looked_at(stage: Stage) -> None:
    seen: list[Job] = []

    def look(_: VendorCall) -> VendorAnswer:
        seen.append(stage.world.jobs["acme", job_id])
        raise UNAVAILABLE

    stage.vendor.script = [look]
    job_id = submitted(stage)

    stage.run_job(job_id)

    assert seen[0].due_at_epoch_ms == stage.clock.now_ms() + 110_000 + 30_000


def test_message_of_a_job_on_a_busy_key_comes_again_soon(stage: Stage) -> None:
    job_id = submitted(stage)
    job = stage.world.jobs["acme", job_id]
    ends_ms = stage.clock.now_ms() + 60_000
    stage.world.leases[job.cache_key] = LeaseRow("job_other", "token", 1, ends_ms)

    failures = stage.run_job(job_id)

    assert failures == ["message-1"]
    assert stage.given_back == [("interactive", "receipt of message-1", 1.5)]


def test_message_of_a_cancelled_job_is_gone(stage: Stage) -> None:
    job_id = submitted(stage)
    end(stage, job_id, status=JobStatus.CANCELLED)

    assert stage.run_job(job_id) == []
    assert stage.vendor.total == 0


@pytest.mark.parametrize("receives", [1, 9, 10])
def test_message_of_a_refresh_that_failed_is_gone(stage: Stage, receives: int) -> None:
    stage.rand = 0.0
    stage.run_job(submitted(stage))
    stage.clock.advance(s=3_600)
    stage.submit()
    ((_, owner, job_id),) = stage.sent[-1:]
    stage.vendor.default = REJECTED
    record = message(job_id, owner, receives=receives, arn=BATCH_ARN)

    assert stage.run(record) == []
    assert stage.run(record) == []

    assert stage.world.jobs[owner, job_id].status is JobStatus.FAILED
    assert stage.given_back == []
    assert stage.submit().body["cache"]["status"] == "stale"


# ------------------------------------------------------------------ a real vendor


class ToSimulator:
    """Calls the simulator in the place of the catalogue's vendor."""

    def __init__(self, sim: Simulator, http: HttpVendors, wire: str = "openai") -> None:
        self._http = http
        told = {"base_url": sim.url, "protocol": wire}
        self._vendor = CATALOGUE.vendors["simulator"].model_copy(update=told)

    def prepare(self, vendor: object) -> None:  # noqa: ARG002 - it is another
        self._http.prepare(self._vendor)

    def call(self, call: VendorCall) -> VendorAnswer:
        return self._http.call(call._replace(vendor=self._vendor))


@pytest.fixture
def http(stage: Stage) -> Iterator[HttpVendors]:
    keys = FakeSecretsManager().vendor_keys(stage.clock)
    vendors = HttpVendors(api_keys=keys, clock=stage.clock)
    yield vendors
    vendors.close()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "fault",
    [
        {"finish": "length"},
        {"finish": "content_filter"},
        {"finish": "tool_calls"},
        {"empty": True},
        {"text": " \n"},
        {"no_choices": True},
        {"malformed": True},
        {"body": '{"error": {"type": "server_error"}}'},
        {"body": "<html>"},
        {"status": 400},
    ],
    ids=json.dumps,
)
def test_answer_that_is_not_whole_is_never_cached_and_asked_for_again(
    stage: Stage, http: HttpVendors, wire: str, fault: dict[str, object]
) -> None:
    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, http, wire)
        for _ in range(2):
            answer = stage.submit(f"[[sim {json.dumps(fault)}]] hello")
            assert answer.status == 202
            assert not answer.body["deduplicated"]
            stage.run_job(answer.body["id"])
        calls = sim.ledger.snapshot()["calls"]

    assert calls == 2
    assert stage.world.entries == {}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_answer_that_is_whole_is_cached(stage: Stage, http: HttpVendors, wire: str) -> None:
    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, http, wire)
        stage.run_job(submitted(stage))

        assert stage.submit().body["cache"]["status"] == "hit"
        assert sim.ledger.snapshot()["calls"] == 1


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_job_whose_vendor_key_was_rotated_and_revoked_completes_in_one_attempt(
    stage: Stage, wire: str
) -> None:
    secrets = FakeSecretsManager()
    http = HttpVendors(api_keys=secrets.vendor_keys(stage.clock), clock=stage.clock)
    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, http, wire)
        stage.run_job(submitted(stage))  # the key is read, and kept
        secrets.rotate("sk-hunter2-new")
        stage.clock.advance(ms=60_000)
        job_id = submitted(stage, '[[sim {"status": 401, "times": 1}]] again')
        stage.run_job(job_id)
        counts = sim.ledger.snapshot()
    http.close()

    job = stage.world.jobs["acme", job_id]
    assert (job.status, job.attempts, job.last_errors) == (JobStatus.COMPLETED, 1, ())
    assert (counts["calls"], counts["charged"]) == (3, 2)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        ({"status": 500}, 4),
        ({"status": 503}, 4),
        ({"status": 408}, 4),
        ({"status": 409}, 4),
        ({"status": 429, "retry_after": 0}, 4),
        ({"drop": "before"}, 4),
        ({"drop": "after"}, 2),
        ({"status": 400}, 1),
    ],
    ids=json.dumps,
)
def test_attempts_of_a_job_are_the_requests_that_reach_the_vendor(  # case R04
    stage: Stage, http: HttpVendors, wire: str, fault: dict[str, object], calls: int
) -> None:
    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, http, wire)
        job_id = submitted(stage, f"[[sim {json.dumps(fault)}]] hello")
        for _ in range(2 * calls):  # in between it is parked where the gate is shut
            stage.run_job(job_id)
            job = stage.world.jobs["acme", job_id]
            stage.clock.set(max(stage.clock.now_ms(), job.not_before_epoch_ms or 0))
        counted = sim.ledger.snapshot()["calls"]

    assert not job.open
    assert (counted, job.attempts, job.attempts_total) == (calls, calls, calls)


def test_run_with_a_real_vendor_leaks_no_key_at_any_log_level(  # case A05, A06
    stage: Stage, http: HttpVendors, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.telemetry.logger.setLevel("DEBUG")
    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, http)
        good = submitted(stage, "a good one")
        bad = submitted(stage, '[[sim {"status": 503, "retry_after": 1}]] a bad one')
        stage.run(message(good), message(bad, message_id="m-2"))
        names = {name.lower() for name in sim.ledger.snapshot()["headers"]["names"]}

    captured = capsys.readouterr()
    told = (
        captured.out + captured.err + json.dumps([repr(job) for job in stage.world.jobs.values()])
    )
    assert status_of(stage, good) is JobStatus.COMPLETED
    assert status_of(stage, bad) is JobStatus.RETRYING
    assert "hunter2" not in told
    assert "authorization" in names
