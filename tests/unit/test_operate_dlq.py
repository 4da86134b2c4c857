"""Operating the dead-letter queue: real messages in moto's SQS, jobs in the fake store."""

from __future__ import annotations

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from click.testing import CliRunner, Result
from moto import mock_aws
from sluiceway.adapters.sqs_queue import SQSJobQueue, message_body, read_body
from sluiceway.domain import catalogue
from sluiceway.domain import job as transitions
from sluiceway.domain.errors import (
    DamagedRowError,
    ModelNotFoundError,
    RejectedError,
    ValidationFailedError,
)
from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.payload import Payload, compress
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.run_job import Acknowledge, Delivery, Worker, run_job
from sluiceway.usecases.submit_job import Submitter
from sluiceway_cli import dlq
from sluiceway_cli.dead_letters import SENT_BY_HAND, DeadLetters, Look
from sluiceway_cli.main import cli

from tests.fakes.examples import a_job, a_refresh, an_entry, completed, failed
from tests.fakes.in_memory import (
    NOW_MS,
    Claim,
    FakeClock,
    FakeFlags,
    FakeVendors,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryGates,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryRates,
    InMemoryState,
    RecordingTelemetry,
    World,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_sqs import SQSClient

CATALOGUE = catalogue.parse(
    '[vendors.v]\n[models.demo-chat]\nvendor = "v"\nvendor_model = "m"\nversion = "1"\n'
)
LANES = ("interactive", "batch")
SECRET = "a-prompt-that-nobody-may-read"


class Queues:
    """A client of moto that counts its sends, refuses some, and may move messages by itself."""

    def __init__(self, client: SQSClient, urls: dict[str, str]) -> None:
        self._client = client
        self._urls = urls
        self.refuses: set[str] = set()
        """Job ids whose messages it doesn't take."""
        self.sent: list[tuple[str, str]] = []
        """Lane and job id."""
        self.moves_by_itself = False
        self.tasks: list[dict[str, Any]] = []
        self.sent_by_hand: set[str] = set()
        """Job ids whose messages have no source."""
        self.hides = False
        """Whether a task that fails leaves the message hidden, until somebody waits."""
        self.hidden: list[str] = []
        self._failure: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_message(self, **request: Any) -> Any:
        work = read_body(request["MessageBody"])
        assert work is not None
        if work[1] in self.refuses:
            raise ClientError({"Error": {"Code": "Throttled", "Message": "later"}}, "SendMessage")
        lane = next(lane for lane, url in self._urls.items() if url == request["QueueUrl"])
        self.sent.append((lane, work[1]))
        return self._client.send_message(**request)

    def list_message_move_tasks(self, **request: Any) -> Any:
        if not self.moves_by_itself:
            raise NotImplementedError
        assert request["SourceArn"].endswith(":dead")
        status = {"Status": "FAILED", "FailureReason": self._failure} if self._failure else {}
        return {"Results": [{"Status": "COMPLETED", **status}] if self.tasks else []}

    def start_message_move_task(self, **request: Any) -> Any:
        """As SQS does it: each to its source, and a failure for one that has none."""
        self.tasks.append(request)
        self._failure = None
        url = self._urls["dead"]
        while messages := self._client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0
        ).get("Messages"):
            for message in messages:
                work = read_body(message["Body"])
                assert work is not None
                if work[1] in self.sent_by_hand and "DestinationArn" not in request:
                    self._failure = SENT_BY_HAND
                    if self.hides:
                        self._hide(message["ReceiptHandle"])
                    return
                self.sent.append((request.get("DestinationArn", "its source"), work[1]))
                self._client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def _hide(self, receipt: str) -> None:
        self.hidden.append(receipt)
        self._client.change_message_visibility(
            QueueUrl=self._urls["dead"], ReceiptHandle=receipt, VisibilityTimeout=60
        )

    def reveal(self) -> None:
        """The time of what was hidden is over."""
        while self.hidden:
            self._client.change_message_visibility(
                QueueUrl=self._urls["dead"], ReceiptHandle=self.hidden.pop(), VisibilityTimeout=0
            )


@dataclass
class Desk:
    """An operator's desk: queues, tables and a clock."""

    sqs: SQSClient
    urls: dict[str, str]
    world: World
    clock: FakeClock
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queues = Queues(self.sqs, self.urls)
        self.jobs = InMemoryJobs(self.world, clock=self.clock)
        self.letters = DeadLetters(
            self.queues,  # type: ignore[arg-type]
            self.urls["dead"],
            {lane: self.urls[lane] for lane in LANES},
            wait_s=0,
            pause=self._pause,
        )
        self.operator = dlq.Operator(
            self.letters, self.jobs, self._claimed_by, self.clock, pause=self._pause
        )
        self.submitter = Submitter(
            flags=FakeFlags(),
            catalogue=CATALOGUE,
            jobs=self.jobs,
            cache=InMemoryCache(self.world),
            rates=InMemoryRates(self.world),
            backlogs=InMemoryBacklogs(self.world),
            state=InMemoryState(self.world),
            payloads=InMemoryPayloads(self.world),
            queue=SQSJobQueue(self.queues, self.urls),  # type: ignore[arg-type]
            clock=self.clock,
            randomness=bytes,
            rand=lambda: 0.5,
        )

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(s=seconds)
        self.queues.reveal()

    def _claimed_by(self, job: Job) -> str | None:
        claim = self.world.claims.get(job.job_key)
        return claim.job_id if claim else None

    def put(self, job: Job, *, copies: int = 1) -> Job:
        """The job's row, and its messages in the dead-letter queue."""
        self.world.jobs[job.tenant, job.job_id] = job
        for _ in range(copies):
            self.put_body(message_body(job.tenant, job.job_id))
        return job

    def put_body(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.urls["dead"], MessageBody=body)

    def row(self, job: Job) -> Job:
        return self.world.jobs[job.tenant, job.job_id]

    def in_queue(self, name: str = "dead") -> list[str]:
        """The bodies of the visible messages."""
        answer = self.sqs.receive_message(
            QueueUrl=self.urls[name], MaxNumberOfMessages=10, VisibilityTimeout=0
        )
        return [message["Body"] for message in answer.get("Messages", [])]

    def count(self, name: str = "dead") -> int:
        """The messages, hidden ones included."""
        answer = self.sqs.get_queue_attributes(
            QueueUrl=self.urls[name],
            AttributeNames=[
                "ApproximateNumberOfMessages",
                "ApproximateNumberOfMessagesNotVisible",
            ],
        )
        return sum(map(int, answer["Attributes"].values()))

    def redrive_all(self) -> list[dlq.Outcome]:
        return list(dlq.redrive_all(self.operator, rate=10))

    def redrive(self, *jobs: Job) -> list[dlq.Outcome]:
        found = {job.job_id: self.jobs.get(job.tenant, job.job_id) for job in jobs}
        return dlq.redrive_jobs(self.operator, found, rate=10)

    def work_off(self, *, vendors: FakeVendors | None = None) -> list[Any]:
        """A worker takes every message of the lanes once."""
        worker = Worker(
            catalogue=CATALOGUE,
            jobs=self.jobs,
            cache=self.submitter.cache,
            state=InMemoryState(self.world),
            payloads=self.submitter.payloads,
            gates=InMemoryGates(self.world),
            latencies=InMemoryLatencies(self.world),
            backlogs=InMemoryBacklogs(self.world),
            vendors=vendors or FakeVendors(),
            clock=self.clock,
            telemetry=RecordingTelemetry(),
            rand=lambda: 0.0,
            token=lambda: f"token-{self.clock.advance(1)}",
            pause=self.clock.pause,
            lease_ms=100_000,
        )
        decisions = []
        for lane in LANES:
            while messages := self.sqs.receive_message(QueueUrl=self.urls[lane]).get("Messages"):
                work = read_body(messages[0]["Body"])
                assert work is not None
                delivery = Delivery(
                    *work,
                    receives=1,
                    enqueued_at_ms=self.clock.now_ms(),
                    lane=lane,
                    function_ends_ms=self.clock.now_ms() + 120_000,
                )
                decisions.append(run_job(delivery, worker))
        return decisions


@pytest.fixture(scope="module")
def sqs() -> SQSClient:
    return boto3.client("sqs")


@pytest.fixture
def desk(sqs: SQSClient, clock: FakeClock, world: World) -> Iterator[Desk]:
    with mock_aws():
        urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("dead", *LANES)}
        clock.advance(s=60)
        yield Desk(sqs, urls, world, clock)


def dead(number: int = 1, **changes: Any) -> Job:
    """A job that failed at NOW_MS + 1 s, and is dead_lettered."""
    return replace(failed(a_job(number), last_receive=True), attempts=4, **changes)


def names(outcomes: list[dlq.Outcome]) -> list[str]:
    return [one.outcome for one in outcomes]


# ------------------------------------------------------------------------------------ list


def test_list_joins_each_message_with_its_job(desk: Desk) -> None:  # case T06
    job = desk.put(dead())

    (entry,), complete = dlq.list_letters(desk.operator, limit=None)

    assert complete
    assert entry == {
        "job_id": job.job_id,
        "tenant": "acme",
        "status": "dead_lettered",
        "model": "demo-chat",
        "lane": "interactive",
        "error_code": "vendor_unavailable",
        "reason": "The vendor answered 503.",
        "attempts": 4,
        "attempts_total": 0,
        "redrives": 0,
        "failed_at": "2026-01-01T00:00:01.000Z",
        "age_s": 59,
        "copies": 1,
        "stray": False,
        "why_stray": None,
    }


def test_list_leaves_every_message_visible(desk: Desk) -> None:
    for number in range(25):
        desk.put(dead(number))

    first, _ = dlq.list_letters(desk.operator, limit=None)
    second, _ = dlq.list_letters(desk.operator, limit=None)

    assert len(first) == len(second) == 25
    assert len(desk.in_queue()) == 10


def test_list_counts_copies_of_a_job_once(desk: Desk) -> None:
    desk.put(dead(), copies=3)

    (entry,), _ = dlq.list_letters(desk.operator, limit=None)

    assert entry["copies"] == 3


def test_damaged_row_is_listed_as_such_and_hides_no_other_job(desk: Desk) -> None:
    bad, good = desk.put(dead(1)), desk.put(dead(2))

    class OneDamaged(InMemoryJobs):
        def get(self, tenant: str, job_id: str) -> Job | None:
            if job_id == bad.job_id:
                raise DamagedRowError(f"The row of job {job_id} is damaged (TypeError).")
            return super().get(tenant, job_id)

    operator = replace(desk.operator, jobs=OneDamaged(desk.world, clock=desk.clock))

    entries, complete = dlq.list_letters(operator, limit=None)

    assert complete
    assert {entry["job_id"] for entry in entries} == {bad.job_id, good.job_id}
    (damaged,) = [entry for entry in entries if entry["job_id"] == bad.job_id]
    assert damaged["stray"]
    assert "damaged" in damaged["why_stray"]


def test_look_goes_on_behind_a_batch_that_it_saw_before() -> None:
    # A look that takes long sees again what it left; that is not the end of the queue.
    def message(number: int) -> dict[str, str]:
        return {"MessageId": f"m{number}", "ReceiptHandle": f"r{number}", "Body": "garbage"}

    class SlowQueue:
        batches: ClassVar = [[message(1)], [message(1)], [message(2)], []]

        def receive_message(self, **_: Any) -> dict[str, Any]:
            return {"Messages": self.batches.pop(0)}

    look = Look(SlowQueue(), "queue", wait_s=0, limit=None)  # type: ignore[arg-type]

    assert [letter.message_id for letter in look] == ["m1", "m2"]


def test_list_says_when_its_limit_cut_it_short(desk: Desk) -> None:
    for number in range(3):
        desk.put(dead(number))

    entries, complete = dlq.list_letters(desk.operator, limit=2)

    assert len(entries) == 2
    assert not complete


# ------------------------------------------------------------------------------------ unseen


def hide(desk: Desk, count: int) -> list[str]:
    """Somebody else looks at so many messages; gives their receipts."""
    answer = desk.sqs.receive_message(
        QueueUrl=desk.urls["dead"], MaxNumberOfMessages=count, VisibilityTimeout=300
    )
    return [message["ReceiptHandle"] for message in answer["Messages"]]


def test_list_counts_what_somebody_else_looks_at(desk: Desk) -> None:
    for number in range(5):
        desk.put(dead(number))
    receipts = hide(desk, 3)

    entries, _ = dlq.list_letters(desk.operator, limit=None)
    unseen = desk.letters.unseen
    for receipt in receipts:
        desk.sqs.change_message_visibility(
            QueueUrl=desk.urls["dead"], ReceiptHandle=receipt, VisibilityTimeout=0
        )
    after, _ = dlq.list_letters(desk.operator, limit=None)

    assert (len(entries), unseen) == (2, 3)
    assert (len(after), desk.letters.unseen) == (5, 0)


def test_list_counts_what_its_limit_left_out(desk: Desk) -> None:
    for number in range(5):
        desk.put(dead(number))

    dlq.list_letters(desk.operator, limit=2)

    assert desk.letters.unseen == 3


@pytest.mark.parametrize("by_itself", [False, True], ids=["one by one", "by SQS"])
def test_redrive_counts_what_it_did_not_see(desk: Desk, *, by_itself: bool) -> None:
    desk.queues.moves_by_itself = by_itself
    for number in range(5):
        desk.put(dead(number))
    hide(desk, 3)

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven"] * 2
    assert desk.letters.unseen == 3


def test_redrive_and_discard_of_a_job_count_what_they_did_not_see(desk: Desk) -> None:
    job, other = desk.put(dead(1)), desk.put(dead(2))
    hide(desk, 2)

    (outcome,) = desk.redrive(job)
    after_redrive = desk.letters.unseen
    _, removed = dlq.discard(desk.operator, other)

    assert "no message seen" in outcome.reason
    assert (after_redrive, removed, desk.letters.unseen) == (2, 0, 2)


def test_what_was_moved_or_removed_is_not_unseen(desk: Desk) -> None:
    first, second = desk.put(dead(1), copies=2), desk.put(dead(2))

    desk.redrive(first)
    after_redrive = desk.letters.unseen
    dlq.discard(desk.operator, second)

    assert (after_redrive, desk.letters.unseen) == (0, 0)


def test_what_others_remove_meanwhile_is_not_unseen(desk: Desk) -> None:
    for number in range(3):
        desk.put(dead(number))
    (receipt,) = hide(desk, 1)

    with desk.letters.look() as look:
        assert len(list(look)) == 2
        desk.sqs.delete_message(QueueUrl=desk.urls["dead"], ReceiptHandle=receipt)

    assert desk.letters.unseen == 0


@pytest.mark.parametrize(
    ("counts", "unseen"),
    [
        ([2, 2], 0),
        ([5, 5], 3),
        ([5, 3], 1),  # somebody else removed two meanwhile
        ([5, 1], 0),
        ([1, 9], 0),  # SQS counted late before the look
        ([9, None], 7),  # and can't be asked after it
    ],
)
def test_both_counts_have_to_say_that_something_is_unseen(
    counts: list[int | None], unseen: int
) -> None:
    class Counted:
        answers = iter(counts)

        def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
            count = next(self.answers)
            if count is None:
                raise ClientError({"Error": {"Code": "Throttled"}}, "GetQueueAttributes")
            return {"Attributes": {"ApproximateNumberOfMessages": str(count)}}

        batches: ClassVar = [
            [{"MessageId": f"m{n}", "ReceiptHandle": f"r{n}", "Body": "x"} for n in (1, 2)],
            [],
        ]

        def receive_message(self, **_: Any) -> dict[str, Any]:
            return {"Messages": self.batches.pop(0)}

        def change_message_visibility_batch(self, **_: Any) -> None:
            pass

    Counted.batches = [list(batch) for batch in Counted.batches]
    letters = DeadLetters(Counted(), "queue", {}, wait_s=0)  # type: ignore[arg-type]

    with letters.look() as look:
        list(look)

    assert letters.unseen == unseen


# ------------------------------------------------------------------------------------ signals


@pytest.fixture
def handlers() -> Iterator[None]:
    """The process has a handler that would fail the test, and keeps it."""

    def unexpected(*_: Any) -> None:
        raise AssertionError("the signal came outside of the look")

    before = {number: signal.signal(number, unexpected) for number in SIGNALS}
    yield
    assert {signal.getsignal(number) for number in SIGNALS} == {unexpected}
    for number, handler in before.items():
        signal.signal(number, handler)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ended_by(number: signal.Signals) -> Any:
    return pytest.raises(KeyboardInterrupt if number is signal.SIGINT else SystemExit)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_signal_ends_a_look_and_makes_its_messages_visible(
    desk: Desk, number: signal.Signals
) -> None:
    for one in range(3):
        desk.put(dead(one))

    with ended_by(number) as caught, desk.letters.look() as look:
        assert len(list(look)) == 3
        assert desk.in_queue() == []
        signal.raise_signal(number)

    assert len(desk.in_queue()) == 3
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 128 + number


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("during", ["receive_message", "change_message_visibility_batch"])
def test_signal_waits_for_a_receive_and_for_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, during: str
) -> None:
    for one in range(3):
        desk.put(dead(one))
    call = getattr(desk.sqs, during)

    def call_and_signal(**request: Any) -> Any:
        answer = call(**request) if during == "receive_message" else None
        signal.raise_signal(number)
        return call(**request) if answer is None else answer

    monkeypatch.setattr(desk.queues, during, call_and_signal, raising=False)

    with ended_by(number):
        dlq.list_letters(desk.operator, limit=None)

    assert len(desk.in_queue()) == 3


@pytest.mark.usefixtures("handlers")
def test_signal_between_two_moves_of_a_redrive_leaves_the_rest_visible(  # case D10
    desk: Desk,
) -> None:
    for one in range(3):
        desk.put(dead(one))

    with closing(dlq.redrive_all(desk.operator, rate=10)) as coming:
        next(coming)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)

    assert len(desk.in_queue()) == 2
    assert len(desk.queues.sent) == 1


@pytest.mark.usefixtures("handlers")
def test_signal_during_a_move_waits_until_there_is_one_message_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.put(dead(1))
    send = desk.queues.send_message

    def send_and_signal(**request: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return send(**request)

    monkeypatch.setattr(desk.queues, "send_message", send_and_signal)

    with pytest.raises(SystemExit):
        desk.redrive_all()

    assert desk.count() == 0
    assert desk.count("interactive") == 1


def test_signal_that_is_ignored_stays_ignored(desk: Desk) -> None:  # nohup
    desk.put(dead())
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with desk.letters.look() as look:
            assert len(list(look)) == 1
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_look_outside_of_the_main_thread_leaves_signals_alone(desk: Desk) -> None:
    desk.put(dead())
    before = signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        entries, _ = pool.submit(dlq.list_letters, desk.operator, limit=None).result()

    assert len(entries) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_end_of_a_look_gives_up_when_nobody_answers_and_not_when_one_batch_is_refused() -> None:
    class Failing:
        def __init__(self, error: Exception) -> None:
            self.error, self.asked = error, 0

        def receive_message(self, **_: Any) -> dict[str, Any]:
            if self.asked:
                return {}
            self.asked = 1
            numbers = range(25)
            return {
                "Messages": [
                    {"MessageId": f"m{n}", "ReceiptHandle": f"r{n}", "Body": "x"} for n in numbers
                ]
            }

        def change_message_visibility_batch(self, **_: Any) -> None:
            self.asked += 1
            raise self.error

    asked = []
    for error in (
        EndpointConnectionError(endpoint_url="x"),
        ClientError({"Error": {"Code": "Throttled"}}, "ChangeMessageVisibilityBatch"),
    ):
        queue = Failing(error)
        look = Look(queue, "queue", wait_s=0)  # type: ignore[arg-type]
        list(look)
        look.end()
        asked.append(queue.asked - 1)

    assert asked == [1, 3]


# ------------------------------------------------------------------------------------ strays


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job(), "the job is queued: the sweeper sends it again"),
        (completed(a_job()), "the job is completed"),
        (transitions.cancelled(a_job(), now_ms=NOW_MS), "the job is cancelled"),
        (transitions.discarded(dead(), now_ms=NOW_MS), "the job was discarded"),
    ],
    ids=["open", "completed", "cancelled", "discarded"],
)
def test_list_shows_a_message_of_no_dead_job_as_stray(desk: Desk, job: Job, why: str) -> None:
    desk.put(job)

    (entry,), _ = dlq.list_letters(desk.operator, limit=None)

    assert entry["stray"]
    assert entry["why_stray"] == why


def test_list_tells_a_job_that_never_started_from_one_that_failed(desk: Desk) -> None:  # case W09
    throttled = desk.put(a_job(1))  # ten receives by Lambda, and none by the worker
    tried = desk.put(dead(2, attempts_total=4))
    assert throttled.job_id != tried.job_id

    entries, _ = dlq.list_letters(desk.operator, limit=None)

    told = {
        entry["job_id"]: (entry["stray"], entry["status"], entry["attempts_total"])
        for entry in entries
    }
    assert told == {
        throttled.job_id: (True, "queued", 0),
        tried.job_id: (False, "dead_lettered", 4),
    }


def test_list_shows_unknown_jobs(desk: Desk) -> None:
    desk.put_body(message_body("acme", a_job().job_id))

    (entry,), _ = dlq.list_letters(desk.operator, limit=None)

    assert (entry["job_id"], entry["tenant"]) == (a_job().job_id, "acme")
    assert entry["status"] is None
    assert entry["why_stray"] == "there is no such job"


def test_list_shows_unreadable_messages_without_their_bodies(desk: Desk) -> None:
    desk.put_body(SECRET)

    (entry,), _ = dlq.list_letters(desk.operator, limit=None)

    assert entry["stray"]
    assert entry["message_id"]
    assert entry["bytes"] == len(SECRET)
    assert SECRET not in json.dumps(entry)


# ------------------------------------------------------------------------------------ redrive


def test_redrive_moves_each_message_to_its_jobs_lane(desk: Desk) -> None:
    light, heavy = desk.put(dead(1)), desk.put(dead(2, lane="batch"))

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven", "redriven"]
    assert sorted(desk.queues.sent) == [("batch", heavy.job_id), ("interactive", light.job_id)]
    assert desk.count() == 0


def test_redrive_gives_fresh_attempts(desk: Desk) -> None:  # case D01
    job = desk.put(dead())

    desk.redrive_all()
    decisions = desk.work_off()

    row = desk.row(job)
    assert decisions == [Acknowledge()]
    assert (row.status, row.attempts, row.redrives) == (JobStatus.COMPLETED, 1, 1)


def test_redrive_reports_each_job_and_none_blocks_the_rest(desk: Desk) -> None:  # case D11
    for number in range(1, 98):
        desk.put(dead(number))
    first = desk.put(dead(98))
    desk.put(dead(99, job_key=first.job_key))
    twin = a_job(200)
    desk.world.jobs[twin.tenant, twin.job_id] = twin
    desk.world.claims[twin.job_key] = Claim(twin.job_id, twin.deadline_epoch_ms)
    desk.put(dead(100, job_key=twin.job_key))
    desk.queues.refuses = {dead(50).job_id}

    outcomes = desk.redrive_all()

    assert names(outcomes).count("redriven") == 97
    assert names(outcomes).count("failed") == 1
    merged = {one.job_id: one.reason for one in outcomes if one.outcome == "merged"}
    assert len(merged) == 2
    assert twin.job_id in merged[dead(100).job_id]
    assert desk.in_queue() == [message_body("acme", dead(50).job_id)]


def test_redrive_may_be_run_again(desk: Desk) -> None:  # case D11
    jobs = [desk.put(dead(number)) for number in (1, 2)]
    desk.queues.refuses = {jobs[0].job_id}

    first = desk.redrive_all()
    desk.queues.refuses = set()
    second, third = desk.redrive_all(), desk.redrive_all()
    desk.work_off()

    assert sorted(names(first)) == ["failed", "redriven"]
    assert [(one.job_id, one.outcome) for one in second] == [(jobs[0].job_id, "redriven")]
    assert third == []
    assert [desk.row(job).redrives for job in jobs] == [1, 1]


def test_both_of_two_equal_jobs_have_the_one_result(desk: Desk) -> None:
    first = desk.put(dead(1))
    second = desk.put(dead(2, job_key=first.job_key, cache_key=first.cache_key))
    vendors = FakeVendors()

    outcomes = desk.redrive_all()
    desk.work_off(vendors=vendors)

    assert sorted(names(outcomes)) == ["merged", "redriven"]
    assert [desk.row(job).status for job in (first, second)] == [JobStatus.COMPLETED] * 2
    assert vendors.total == 1


def test_redrive_sends_one_of_several_copies(desk: Desk) -> None:
    desk.put(dead(), copies=3)

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven"]
    assert desk.count() == 0
    assert desk.count("interactive") == 1


def test_redrive_keeps_the_message_of_a_job_that_fails_again_meanwhile(desk: Desk) -> None:
    job = desk.put(dead(), copies=2)

    def fail_again(_: float) -> None:
        again = replace(job, failed_at_epoch_ms=desk.clock.now_ms(), redrives=1)
        desk.world.jobs[job.tenant, job.job_id] = again

    desk.operator = replace(desk.operator, pause=fail_again)

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven"]
    assert desk.in_queue() == [message_body("acme", job.job_id)]


def test_redrive_clears_strays_away_and_leaves_what_it_cannot_read(desk: Desk) -> None:
    job = desk.put(completed(a_job()))
    desk.put_body(message_body("acme", "job_unknown"))
    desk.put_body(SECRET)

    outcomes = desk.redrive_all()
    decisions = desk.work_off()

    assert names(outcomes) == ["skipped"] * 3
    assert decisions == [Acknowledge()] * 2
    assert desk.row(job) == job
    assert desk.in_queue() == [SECRET]
    assert SECRET not in json.dumps([one.shown() for one in outcomes])


def test_redrive_keeps_to_its_rate(desk: Desk) -> None:  # case D10
    for number in range(20):
        desk.put(dead(number))

    list(dlq.redrive_all(desk.operator, rate=4))

    assert sum(desk.pauses) == 5


def test_redrive_waits_until_the_message_no_longer_counts_as_a_leftover(desk: Desk) -> None:
    job = desk.put(dead(failed_at_epoch_ms=desk.clock.now_ms() - 1000))

    desk.redrive_all()
    desk.work_off()

    assert desk.pauses[0] == 5
    assert desk.row(job).status is JobStatus.COMPLETED


# ------------------------------------------------------------------------------------ by SQS


def test_redrive_has_sqs_move_the_messages_where_it_can(desk: Desk) -> None:
    desk.queues.moves_by_itself = True
    desk.put(dead(1))
    desk.put(dead(2))
    desk.put(completed(a_job(3)))

    outcomes = desk.redrive_all()

    assert sorted(names(outcomes)) == ["redriven", "redriven", "skipped"]
    (task,) = desk.queues.tasks
    assert task["MaxNumberOfMessagesPerSecond"] == 10
    assert "DestinationArn" not in task
    assert desk.count() == 0


def test_redrive_names_the_lane_for_messages_that_somebody_sent(desk: Desk) -> None:
    desk.queues.moves_by_itself = True
    job = desk.put(dead(1, lane="batch"))
    desk.queues.sent_by_hand = {job.job_id}

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven"]
    assert desk.queues.tasks[1]["DestinationArn"].endswith(":batch")
    assert desk.count() == 0


def test_redrive_waits_for_what_a_failed_task_has_hidden(desk: Desk) -> None:
    desk.queues.moves_by_itself = True
    desk.queues.hides = True
    job = desk.put(dead(1, lane="batch"))
    desk.queues.sent_by_hand = {job.job_id}

    outcomes = desk.redrive_all()

    assert names(outcomes) == ["redriven"]
    assert [lane.rpartition(":")[2] for lane, _ in desk.queues.sent] == ["batch"]
    assert (desk.count(), desk.letters.unseen) == (0, 0)


def test_redrive_moves_by_hand_what_sqs_leaves_and_has_several_lanes(desk: Desk) -> None:
    desk.queues.moves_by_itself = True
    jobs = [desk.put(dead(1)), desk.put(dead(2, lane="batch"))]
    desk.queues.sent_by_hand = {job.job_id for job in jobs}
    desk.queues.refuses = {jobs[0].job_id}

    outcomes = desk.redrive_all()

    assert {one.job_id: one.outcome for one in outcomes} == {
        jobs[0].job_id: "failed",
        jobs[1].job_id: "redriven",
    }
    assert desk.queues.sent == [("batch", jobs[1].job_id)]
    assert len(desk.queues.tasks) == 1


# ------------------------------------------------------------------------------------ one job


def a_failed_refresh() -> Job:
    return failed(a_refresh(9))


def test_redrive_of_a_refresh_is_refused_and_nothing_is_written(desk: Desk) -> None:
    refresh = desk.put(a_failed_refresh())
    row, counters = desk.row(refresh), dict(desk.world.in_flight)

    (outcome,) = desk.redrive(refresh)

    assert outcome == dlq.Outcome("failed", dlq.A_REFRESH, refresh.job_id, refresh.tenant)
    assert (desk.row(refresh), dict(desk.world.in_flight)) == (row, counters)
    assert desk.world.claims == {}
    assert (desk.queues.sent, desk.count()) == ([], 1)


def test_redrive_of_several_refuses_the_refreshes_among_them(desk: Desk) -> None:
    job, refresh = desk.put(dead(1), copies=0), desk.put(a_failed_refresh(), copies=0)

    outcomes = desk.redrive(refresh, job)

    assert [(one.job_id, one.outcome) for one in outcomes] == [
        (refresh.job_id, "failed"),
        (job.job_id, "redriven"),
    ]
    assert desk.world.in_flight == {("acme", 0): 1}


def test_refresh_in_the_queue_is_listed_as_a_stray_and_cleared_away(desk: Desk) -> None:
    refresh = desk.put(a_failed_refresh())

    (entry,), _ = dlq.list_letters(desk.operator, limit=None)
    (outcome,) = desk.redrive_all()

    assert (entry["stray"], entry["why_stray"]) == (True, dlq.A_REFRESH)
    assert outcome.outcome == "skipped"
    assert outcome.reason.startswith(dlq.A_REFRESH)
    assert desk.work_off() == [Acknowledge()]
    assert desk.row(refresh) == refresh
    assert desk.world.in_flight == {}


def test_refresh_is_neither_discarded_nor_resubmitted(desk: Desk) -> None:
    refresh = desk.put(a_failed_refresh())

    with pytest.raises(RejectedError, match="is a refresh"):
        dlq.discard(desk.operator, refresh)
    with pytest.raises(RejectedError, match="is a refresh"):
        dlq.resubmit(desk.operator, desk.submitter, refresh, corrected="x")
    assert desk.row(refresh) == refresh


def test_redrive_of_a_job_leaves_the_others_messages(desk: Desk) -> None:
    job, other = desk.put(dead(1), copies=2), desk.put(dead(2))

    outcomes = desk.redrive(job)

    assert names(outcomes) == ["redriven"]
    assert desk.queues.sent == [("interactive", job.job_id)]
    assert desk.in_queue() == [message_body("acme", other.job_id)]


@pytest.mark.parametrize("job", [dead(), failed(a_job())], ids=["dead_lettered", "failed"])
def test_redrive_of_a_job_without_a_message_is_written_in_the_table(desk: Desk, job: Job) -> None:
    desk.put(job, copies=0)

    (outcome,) = desk.redrive(job)

    row = desk.row(job)
    assert outcome.outcome == "redriven"
    assert "no message" in outcome.reason
    assert (row.status, row.attempts, row.redrives) == (JobStatus.QUEUED, 0, 1)
    assert row.due_at_epoch_ms == desk.clock.now_ms()
    assert desk.world.open_jobs("acme") == 1
    assert desk.queues.sent == []


def test_redrive_of_a_job_may_be_run_again(desk: Desk) -> None:
    job = desk.put(dead(), copies=0)

    desk.redrive(job)
    (again,) = desk.redrive(job)

    assert again.outcome == "skipped"
    assert desk.row(job).redrives == 1
    assert desk.world.open_jobs("acme") == 1


def test_redrive_of_an_unknown_job_does_not_block_the_others(desk: Desk) -> None:
    job = desk.put(dead())

    outcomes = dlq.redrive_jobs(
        desk.operator, {"job_unknown": None, job.job_id: desk.row(job)}, rate=10
    )

    assert names(outcomes) == ["failed", "redriven"]


# ------------------------------------------------------------------------------------ discard


def test_discard_ends_the_job_and_removes_its_messages(desk: Desk) -> None:
    job, other = desk.put(dead(1), copies=2), desk.put(dead(2))

    ended, removed = dlq.discard(desk.operator, job)

    assert (ended.status, ended.discarded, removed) == (JobStatus.FAILED, True, 2)
    assert desk.row(job) == ended
    assert ended.error is not None
    assert ended.error.code == "discarded"
    assert desk.in_queue() == [message_body("acme", other.job_id)]


def test_discard_again_removes_what_came_since(desk: Desk) -> None:
    job = desk.put(dead())
    ended, _ = dlq.discard(desk.operator, job)
    desk.put(ended)

    again, removed = dlq.discard(desk.operator, ended)

    assert (again, removed) == (ended, 1)
    assert desk.count() == 0


@pytest.mark.parametrize(
    "job",
    [a_job(), completed(a_job()), failed(a_job()), transitions.cancelled(a_job(), now_ms=NOW_MS)],
    ids=["queued", "completed", "failed", "cancelled"],
)
def test_discard_refuses_a_job_that_is_not_dead_lettered(desk: Desk, job: Job) -> None:
    desk.put(job)

    with pytest.raises(RejectedError):
        dlq.discard(desk.operator, job)

    assert desk.row(job) == job
    assert desk.count() == 1


# ------------------------------------------------------------------------------------ resubmit


def with_work(job: Job) -> Job:
    work = b'{"input":"wrong","options":{"top_p":0.5}}'
    return replace(job, input=Payload(inline=compress(work)), metadata={"a": "b"}, lane="batch")


def test_resubmit_makes_a_corrected_job_and_discards_the_old(desk: Desk) -> None:
    old = desk.put(with_work(dead()))

    made = dlq.resubmit(desk.operator, desk.submitter, old, corrected="right")

    new = desk.world.jobs["acme", made.job_id]
    work = payloads_of.load(new.input, payloads=desk.submitter.payloads)
    assert json.loads(work) == {"input": "right", "options": {"top_p": 0.5}}
    assert (new.model, new.lane, new.metadata) == (old.model, "batch", {"a": "b"})
    assert (new.deadline_s, new.correlation_id) == (old.deadline_s, old.correlation_id)
    assert new.key_id == dlq.OPERATOR
    assert desk.world.claims[new.job_key].job_id == new.job_id
    assert desk.world.open_jobs("acme") == 1
    assert desk.row(old).discarded
    assert desk.in_queue("batch") == [message_body("acme", new.job_id)]
    assert desk.count() == 0


@pytest.mark.parametrize("mode", ["use", "refresh", "bypass"])
@pytest.mark.parametrize("no_store", [False, True])
@pytest.mark.parametrize(("ttl_s", "max_age_s"), [(None, None), (60, 0), (60, 300)])
def test_resubmit_keeps_what_the_partner_wanted_of_the_cache(
    desk: Desk, mode: str, ttl_s: int | None, max_age_s: int | None, *, no_store: bool
) -> None:
    wishes = {"cache_mode": mode, "no_store": no_store, "cache_ttl_s": ttl_s}
    ages_ms = None if max_age_s is None else max_age_s * 1000
    old = desk.put(
        with_work(
            dead(not_older_than_epoch_ms=None if ages_ms is None else NOW_MS - ages_ms, **wishes)
        )
    )

    made = dlq.resubmit(desk.operator, desk.submitter, old, corrected="right")

    new = desk.world.jobs["acme", made.job_id]
    assert {name: getattr(new, name) for name in wishes} == wishes
    oldest_ms = None if ages_ms is None else new.created_at_epoch_ms - ages_ms
    assert new.not_older_than_epoch_ms == oldest_ms
    assert new.created_at_epoch_ms > old.created_at_epoch_ms


def test_resubmit_tells_the_same_callbacks(desk: Desk) -> None:
    urls = ("https://a.example/hook", "https://b.example/hook")
    old = desk.put(with_work(dead(callback_urls=urls)))

    made = dlq.resubmit(desk.operator, desk.submitter, old, corrected="right")

    assert desk.world.jobs["acme", made.job_id].callback_urls == urls


def test_resubmit_of_work_that_is_cached_is_answered_by_the_cache(desk: Desk) -> None:
    old = desk.put(with_work(dead()))
    first = dlq.resubmit(desk.operator, desk.submitter, old, corrected="right")
    cache_key = desk.world.jobs["acme", first.job_id].cache_key
    entry = an_entry(a_job(cache_key=cache_key), compress(b"{}"))
    desk.world.entries[cache_key] = entry
    other = desk.put(with_work(dead(2)))

    made = dlq.resubmit(desk.operator, desk.submitter, other, corrected="right")

    assert (made.job_id, made.status) == (f"hit_{cache_key}", "completed")
    assert desk.row(other).discarded


def test_resubmit_takes_the_members_that_a_row_does_not_keep(desk: Desk) -> None:
    plain = dlq.resubmit(desk.operator, desk.submitter, desk.put(dead(1)), corrected="right")
    german = dlq.resubmit(
        desk.operator,
        desk.submitter._replace(randomness=lambda count: b"1" * count),
        desk.put(dead(2)),
        corrected="right",
        told=[("locale", "de-DE"), ("safety_profile", None)],
    )

    keys_of_both = {desk.world.jobs["acme", one.job_id].cache_key for one in (plain, german)}
    assert len(keys_of_both) == 2


@pytest.mark.parametrize("job", [a_job(), completed(a_job()), failed(a_job())])
def test_resubmit_refuses_a_job_that_is_not_dead_lettered(desk: Desk, job: Job) -> None:
    desk.put(job)

    with pytest.raises(RejectedError):
        dlq.resubmit(desk.operator, desk.submitter, job, corrected="right")

    assert list(desk.world.jobs.values()) == [job]


def test_resubmit_keeps_the_old_job_when_the_new_one_is_refused(desk: Desk) -> None:
    job = desk.put(dead())

    with pytest.raises(ValidationFailedError):
        dlq.resubmit(desk.operator, desk.submitter, job, corrected=7)
    nothing = desk.submitter._replace(catalogue=catalogue.parse(""))
    with pytest.raises(ModelNotFoundError):
        dlq.resubmit(desk.operator, nothing, job, corrected="right")

    assert desk.row(job) == job
    assert desk.count() == 1


# ------------------------------------------------------------------------------------ commands


@pytest.fixture
def command(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`sluiceway dlq` at this desk."""

    class Here:
        def operator(self) -> dlq.Operator:
            return desk.operator

        def submitter(self) -> Submitter:
            return desk.submitter

        def find_job(self, job_id: str, tenant: str | None) -> Job | None:
            return desk.jobs.get(tenant or "acme", job_id)

    monkeypatch.setattr("sluiceway_cli.dlq_commands.find_target", lambda _: Here())
    return lambda *arguments: CliRunner().invoke(cli, ["dlq", *arguments], input='"right"')


@pytest.mark.parametrize("arguments", [("list",), ("redrive", "--all")], ids=" ".join)
def test_command_says_empty_only_of_an_empty_queue(
    desk: Desk, command: Callable[..., Result], arguments: tuple[str, ...]
) -> None:
    empty = command(*arguments)
    for number in range(3):
        desk.put(dead(number))
    hide(desk, 3)

    hidden = command(*arguments)

    assert empty.stdout == "The dead-letter queue is empty.\n"
    assert empty.stderr == ""
    assert hidden.exit_code == 0
    assert "empty" not in hidden.output
    assert hidden.stdout == "No dead letter can be seen now.\n"
    assert "SQS counts 3 more" in hidden.stderr
    assert "within 5 minutes" in hidden.stderr


def documented_members(command: str) -> set[str]:
    """What docs/operations.md says that the command prints with `--json`."""
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `dlq {command}` \| (.*) \|$", text, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("redrive", "--all"), ("redrive",), ("discard",), ("resubmit", "--input", "-")],
    ids=" ".join,
)
@pytest.mark.parametrize("hidden", [0, 2])
def test_command_tells_of_what_it_did_not_see(
    desk: Desk, command: Callable[..., Result], arguments: tuple[str, ...], hidden: int
) -> None:
    others = [desk.put(with_work(dead(number))) for number in range(hidden)]
    if others:
        hide(desk, hidden)
    jobs = [desk.put(with_work(dead(number))) for number in (11, 12)]
    ids = [] if arguments in {("list",), ("redrive", "--all")} else [[job.job_id] for job in jobs]
    of_text, of_json = ids or ([], [])

    text = command(*arguments, *of_text)
    told = json.loads(command(*arguments, *of_json, "--json").stdout)

    assert text.exit_code == 0
    assert ("SQS counts 2 more" in text.stderr) is bool(hidden)
    assert told["messages_unseen"] == hidden
    assert set(told) == documented_members(arguments[0])


def test_list_in_json_says_whether_it_is_complete(
    desk: Desk, command: Callable[..., Result]
) -> None:
    for number in range(3):
        desk.put(dead(number))

    whole, cut = (json.loads(command("list", "--json", *of).stdout) for of in ([], ["--limit", 2]))

    assert (whole["complete"], whole["messages_unseen"]) == (True, 0)
    assert len(whole["dead_letters"]) == 3
    assert (cut["complete"], cut["messages_unseen"]) == (False, 1)
    assert len(cut["dead_letters"]) == 2


@pytest.mark.parametrize(("limit", "told"), [(2, "about 1 more"), (3, "perhaps more")])
def test_list_says_how_many_its_limit_left_out(
    desk: Desk, command: Callable[..., Result], limit: int, told: str
) -> None:
    for number in range(3):
        desk.put(dead(number))

    result = command("list", "--limit", limit)

    assert f"There are {told}; these are the first {limit} messages." in result.stderr
    assert "SQS counts" not in result.stderr


def test_redrive_command_that_is_told_to_end_leaves_the_rest_visible(
    desk: Desk, command: Callable[..., Result]
) -> None:
    for number in range(3):
        desk.put(dead(number))

    def end(_: float) -> None:
        signal.raise_signal(signal.SIGTERM)

    desk.operator = replace(desk.operator, pause=end)

    result = command("redrive", "--all")

    assert result.exit_code == 128 + signal.SIGTERM
    assert len(desk.in_queue()) == 2


def test_redrive_command_that_is_told_to_end_as_it_prints_leaves_the_rest_visible(
    desk: Desk, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        desk.put(dead(number))

    def end(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("sluiceway_cli.dlq_commands.click.echo", end)

    result = command("redrive", "--all")

    assert result.exit_code == 128 + signal.SIGTERM
    assert len(desk.in_queue()) == 2
