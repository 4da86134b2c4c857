"""`sluiceway status`: problems first, and a part that can't be read hides no other."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from rich.console import Console
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain import flags
from sluiceway.domain import job as transitions
from sluiceway.domain.backlog import TELLS_FOR_MS, Backlog, Group, Waits
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.gate import Gate
from sluiceway.domain.job import JobStatus
from sluiceway.domain.ticket import Ticket
from sluiceway_cli import status as statuses
from sluiceway_cli import status_commands
from sluiceway_cli.configurations import Deployment, History
from sluiceway_cli.counts import Counted
from sluiceway_cli.status import Looker
from sluiceway_cli.target import Target

from tests.fakes.examples import a_job, completed
from tests.fakes.in_memory import NOW_MS, FakeClock
from tests.unit import desk as desks
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job

CATALOGUE = catalogues.parse(
    "[vendors.v]\n"
    + "".join(
        f'[models."{name}"]\nvendor = "v"\nvendor_model = "{vendor_model}"\nversion = "1"\n'
        "requests_per_minute = 60\nburst = 1\n"
        for name, vendor_model in (("demo-chat", "big-1"), ("cached", "big-1"), ("other", "o-1"))
    )
)
GATE = "gate#v#big-1"
COUNTS = ("open", "waiting", "parked", "processing", "oldest_age_s", "ready", "ready_for_s")
OUTPUTS = (*statuses.QUEUES.values(), "InteractiveQueueUrl", "BatchQueueUrl")


@dataclass
class Counts:
    """As many of everything as is given; the others are 0."""

    given: dict[str, int] = field(default_factory=dict)
    whole: bool = True

    def count(self, metrics: Sequence[str], minutes: Sequence[int], *, now_ms: int) -> Counted:
        assert now_ms >= NOW_MS
        sums = {name: self.given.get(name, 0) for name in metrics}
        return Counted(dict.fromkeys(minutes, sums), self.whole)


@dataclass
class Aws:
    """SQS and Lambda, which fail for what is in `broken`."""

    messages: dict[str, int] = field(default_factory=dict)
    """Visible ones, by output."""
    states: dict[str, str] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def get_queue_attributes(self, **request: Any) -> dict[str, Any]:
        url = request["QueueUrl"]
        self.asked.append(url)
        if url in self.broken:
            raise self.broken[url]
        if request["AttributeNames"] == ["QueueArn"]:
            return {"Attributes": {"QueueArn": f"arn:{url}"}}
        counts = dict.fromkeys(request["AttributeNames"], "0")
        counts["ApproximateNumberOfMessages"] = str(self.messages.get(url, 0))
        return {"Attributes": counts}

    def list_event_source_mappings(self, **request: str) -> dict[str, Any]:
        arn = request["EventSourceArn"]
        function = "arn:aws:lambda:us-east-1:123456789012:function:run_job:live"
        return {"EventSourceMappings": [{"UUID": arn, "FunctionArn": function}]}

    def get_event_source_mapping(self, **request: str) -> dict[str, Any]:
        state = self.states.get(request["UUID"].removeprefix("arn:"), "Enabled")
        return {"State": state, "ScalingConfig": {"MaximumConcurrency": 2}}


@dataclass
class Versions:
    """What was deployed of a profile, newest first."""

    history_of: tuple[Deployment, ...] = ()
    content: str = "{}"

    def history(self) -> History:
        return History(self.history_of)

    def text(self, version: int) -> str:
        assert version == self.history().running.version  # type: ignore[union-attr]
        return self.content


@dataclass(frozen=True)
class Desk(desks.Desk):
    """An installation in memory."""

    aws: Aws = field(default_factory=Aws)
    ahead_ms: int = 0
    """This machine's clock, of AWS's."""

    def clock_ahead_ms(self) -> int:
        return self.ahead_ms

    def client(self, service: Any, config: Any = None) -> Any:  # noqa: ARG002
        assert service in {"lambda", "sqs"}
        return self.aws

    def catalogue(self) -> Catalogue:
        return CATALOGUE

    def put(self, job: Job) -> Job:
        self.world.jobs[job.tenant, job.job_id] = job
        return job


def with_parts(desk: Desk) -> None:
    """In place of the cached properties."""
    desk.__dict__.update(counts=Counts(), catalogue_profile=Versions(), flags_profile=Versions())


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    made = Desk(
        "http://127.0.0.1:9/v1",
        outputs={name: name for name in OUTPUTS} | {"RunJobFunctionName": "run_job"},
        local=True,
        clock=clock,
        pause=clock.pause,
    )
    with_parts(made)
    stand_at(monkeypatch, made, "status_commands")
    return made


def deployment(number: int, state: str, percentage: float = 100.0) -> Deployment:
    return Deployment(number, number, state, percentage, "2026-01-01")


def texts(document: dict[str, Any]) -> list[str]:
    return [one["text"] for one in document["problems"]]


def processing(number: int, **changes: Any) -> Job:
    job = a_job(number, **changes)
    return transitions.started(
        job, fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 100_000
    )


# ------------------------------------------------------------------------------------ versions


def test_status_tells_which_versions_are_in_force_and_on_their_way(desk: Desk) -> None:
    desk.__dict__["catalogue_profile"] = Versions(
        (deployment(3, "DEPLOYING", 40.0), deployment(2, "COMPLETE"))
    )

    rows = {row["name"]: row["value"] for row in told("status")["installation"]}

    models = f"{len(CATALOGUE.models)} models"
    assert rows["catalogue"] == f"version 2, version 3 on its way (40 %), {models}"
    assert rows["flags"] == "nothing pushed"


def test_status_warns_of_what_is_switched(desk: Desk) -> None:
    document = flags.switched({}, "bypass", on=False)
    document = flags.switched(document, "submit", on=False, subject="model:big")
    document = flags.switched(document, "degraded", on=True)
    desk.__dict__["flags_profile"] = Versions((deployment(1, "COMPLETE"),), json.dumps(document))

    seen = told("status")

    assert seen["switched"] == texts(seen)
    assert seen["switched"] == ["submit is off for model big", "bypass is off", "degraded is on"]


# ------------------------------------------------------------------------------------ parts


def test_status_of_a_quiet_installation_has_no_problem(desk: Desk) -> None:
    document = told("status")
    shown = run("status").stdout

    assert document["problems"] == []
    assert document["unknown"] == {}
    assert desk.world.jobs == {}
    assert "nothing is wrong" in shown
    assert "\x1b" not in shown  # plain where it is no terminal


def test_status_counts_the_open_jobs_of_each_lane(desk: Desk, clock: FakeClock) -> None:
    desk.put(a_job(1))
    desk.put(transitions.gated(processing(2), not_before_ms=NOW_MS + 90_000, slot=None))
    desk.put(processing(3))
    desk.put(a_job(4, lane="batch"))
    desk.put(completed(a_job(5)))
    desk.aws.messages["InteractiveQueueUrl"] = 7
    clock.advance(s=72)

    document = told("status")
    lines = run("status").stdout.splitlines()

    lane = document["lanes"]["interactive"]
    assert {name: lane[name] for name in ("open", "waiting", "parked", "processing")} == {
        "open": 3,
        "waiting": 2,
        "parked": 1,
        "processing": 1,
    }
    assert (lane["oldest_age_s"], lane["workers"], lane["messages"]["visible"]) == (72, 2, 7)
    assert document["lanes"]["batch"]["open"] == 1
    (row,) = (line for line in lines if line.startswith("interactive"))
    assert " ".join(row.split()) == "interactive 3 2 1 1m12s 1 of 2 7 0 0 Enabled"


def test_status_says_at_least_when_there_are_more_than_it_counts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "COUNTED_ONE_BY_ONE", 8)
    for number in range(0, 40 * 8, 8):
        desk.put(a_job(number))

    assert told("status")["counted_all"] is False
    assert "at least" in run("status").stdout


def test_status_tells_of_many_open_jobs_what_the_sweeper_counted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setattr(statuses, "COUNTED_ONE_BY_ONE", 8)
    groups = (
        Group("interactive", "demo-chat", "acme", waiting=6, slotted=1, running=2),
        Group("batch", "gone", "acme", waiting=1),
    )
    desk.backlogs.write(
        Backlog(
            *(NOW_MS, groups),
            besides={"batch": 5},
            waits={"interactive": Waits(4, NOW_MS - 3_000, 2, NOW_MS - 2_000)},
        )
    )
    clock.advance(s=25)

    document = told("status")
    shown = run("status").stdout

    lanes = document["lanes"]
    assert {name: lanes["interactive"][name] for name in COUNTS} == {
        "open": 8,
        "waiting": 6,
        "parked": 4,
        "processing": 2,
        "oldest_age_s": 28,
        "ready": 2,
        "ready_for_s": 27,
    }
    assert (lanes["batch"]["open"], lanes["batch"]["oldest_age_s"]) == (6, 0)
    (model,) = (one for one in document["models"] if "demo-chat" in one["models"])
    assert (model["waiting"], model["slots_kept"]) == (6, None)
    assert document["counted_all"] is True
    assert document["counted_at"] == "2026-01-01T00:00:00.000Z"
    assert "it did 25s ago" in shown
    assert any(text.startswith("about 1 open job is of gone") for text in texts(document))


def test_status_counts_many_open_jobs_itself_when_the_sweeper_told_nothing_lately(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setattr(statuses, "COUNTED_ONE_BY_ONE", 8)
    groups = (Group("interactive", "demo-chat", "acme", waiting=9),)
    desk.backlogs.write(Backlog(NOW_MS, groups))
    desk.put(a_job())
    clock.advance(ms=TELLS_FOR_MS + 1)

    document = told("status")

    assert document["lanes"]["interactive"]["open"] == 1
    assert document["counted_at"] == document["at"]


def test_status_takes_no_age_from_a_picture_that_older_code_painted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "COUNTED_ONE_BY_ONE", 8)
    groups = (Group("interactive", "demo-chat", "acme", waiting=9),)
    desk.backlogs.write(Backlog(NOW_MS, groups))
    desk.put(a_job(enqueued_at_epoch_ms=NOW_MS - 9_000))

    document = told("status")

    assert document["lanes"]["interactive"]["oldest_age_s"] == 9


def test_status_of_an_age_leaves_out_what_a_pause_or_a_gate_keeps(
    desk: Desk, clock: FakeClock
) -> None:
    desk.put(a_job(1, tenant="globex"))
    desk.put(a_job(2))
    desk.put(a_job(3, model="other", enqueued_at_epoch_ms=NOW_MS + 5000))
    desk.state.pause_tenant("globex")
    desk.world.gates[GATE] = Gate(paused=True)
    clock.advance(s=60)

    assert told("status")["lanes"]["interactive"]["oldest_age_s"] == 55


@pytest.mark.parametrize(
    ("gate", "state", "problem"),
    [
        (Gate(), "open", None),
        (Gate(paused=True), "paused", "model:cached, model:demo-chat are paused"),
        (
            Gate(closed_until_ms=NOW_MS + 30_000),
            "closed",
            "the gate of cached, demo-chat is closed until 2026-01-01T00:00:30.000Z",
        ),
        (
            Gate(probing=True, failures=5, closed_until_ms=NOW_MS + 30_000),
            "down",
            "the vendor of cached, demo-chat is down: closed until 2026-01-01T00:00:30.000Z",
        ),
        (
            Gate(refused_permille=1000, returns_from_ms=NOW_MS),
            "open",
            "cached, demo-chat runs at 30 of 60 a minute since the vendor refused calls",
        ),
    ],
    ids=["open", "paused", "closed", "down", "slowed"],
)
def test_status_tells_how_each_gate_is(
    desk: Desk, gate: Gate, state: str, problem: str | None
) -> None:
    desk.world.gates[GATE] = gate

    document = told("status")

    (one,) = (one for one in document["models"] if "demo-chat" in one["models"])
    assert (one["state"], one["models"]) == (state, ["cached", "demo-chat"])
    assert texts(document) == ([problem] if problem else [])


def test_status_counts_the_slots_that_jobs_keep(desk: Desk) -> None:
    slot = Ticket(NOW_MS + 40_000, 0, 0)
    desk.put(transitions.gated(processing(1), not_before_ms=NOW_MS + 40_000, slot=slot))
    desk.put(a_job(2, model="cached"))

    (one,) = (one for one in told("status")["models"] if "demo-chat" in one["models"])

    assert (one["waiting"], one["slots_kept"]) == (2, 1)


def test_status_tells_the_traffic_and_the_share_of_hits(desk: Desk) -> None:
    desk.__dict__["counts"] = Counts(
        {"CacheHit": 2, "CacheStale": 1, "CacheMiss": 1, "JobsCompleted": 40, "JobsFailed": 1}
    )

    document = told("status")
    shown = run("status").stdout

    for minutes in (5, 60):
        sums = document["traffic"][f"last_{minutes}_min"]
        assert (sums["hit_ratio"], sums["completed"], sums["failed"]) == (0.75, 40, 1)
    assert "75% of 4" in shown
    assert texts(document) == ["1 of 41 jobs that ended in the last 5 min failed"]
    assert document["problems"][0]["level"] == "warning"


def test_status_finds_every_queue_that_should_be_empty(desk: Desk) -> None:
    desk.aws.messages.update(dict.fromkeys(statuses.QUEUES.values(), 1))
    desk.aws.messages["DeadLetterQueueUrl"] = 3

    document = told("status")

    assert document["queues"]["dead_letters"] == {"visible": 3, "in_flight": 0, "delayed": 0}
    assert texts(document) == [
        "3 messages are in the dead-letter queue",
        "1 message is in the queue of what publishing gave up on",
        "1 message is in the queue of invalidations that could not be followed",
        "1 message is in the webhooks' dead-letter queue",
    ]


def test_status_tells_what_is_paused_and_what_nobody_paused(desk: Desk) -> None:
    desk.state.pause_tenant("globex")
    desk.state.pause_lane("batch")
    desk.aws.states.update({"BatchQueueUrl": "Disabled", "InteractiveQueueUrl": "Disabled"})

    document = told("status")

    assert document["paused"] == ["lane:interactive", "lane:batch", "tenant:globex"]
    assert texts(document) == [
        "nobody paused lane:interactive, and its mapping is Disabled",
        "lane:batch is paused",
        "tenant:globex is paused",
    ]
    assert document["problems"][0]["level"] == "bad"
    assert {one["then"] for one in document["problems"]} == {
        "sluiceway resume lane:interactive",
        "sluiceway resume lane:batch",
        "sluiceway resume tenant:globex",
    }


def test_status_tells_of_open_jobs_whose_model_is_gone(desk: Desk) -> None:
    desk.put(a_job(1, model="gone"))

    document = told("status")

    assert texts(document) == ["1 open job is of gone, which the catalogue lacks: it will fail"]
    assert document["problems"][0]["then"] == "docs/runbook.md, Roll back a catalogue"


def test_status_tells_of_a_pause_that_was_cut_off(desk: Desk) -> None:
    desk.state.pause_lane("batch")  # and its mapping is Enabled still

    document = told("status")

    assert texts(document) == [
        "lane:batch is paused by half: its mapping is Enabled, so its jobs run"
    ]
    assert document["problems"][0]["then"] == "sluiceway pause lane:batch"


def test_status_tells_of_degraded_mode_and_of_jobs_that_wait_for_nothing(
    desk: Desk, clock: FakeClock
) -> None:
    desk.put(a_job(1))
    clock.advance(s=1000)
    desk.state.set_degraded(clock.now_ms() - 192_000)

    document = told("status")

    assert document["degraded"] == {"on": True, "since": "2026-01-01T00:13:28.000Z", "for_s": 192}
    assert texts(document) == [
        "degraded mode for 3m12s",
        "the oldest job of interactive waits for 16m40s",
        "jobs of interactive wait, and no worker is busy",
    ]


def test_status_does_not_ring_for_jobs_that_wait_for_their_time(
    desk: Desk, clock: FakeClock
) -> None:
    job = transitions.started(
        a_job(1), fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 100_000
    )
    later_ms = NOW_MS + 400_000
    desk.put(replace(job, status=JobStatus.RETRYING, not_before_epoch_ms=later_ms))
    clock.advance(s=120)

    backing_off = told("status")
    clock.advance(s=300)
    due = told("status")
    clock.advance(s=60)
    late = told("status")

    assert [one["lanes"]["interactive"]["ready"] for one in (backing_off, due, late)] == [0, 1, 1]
    assert due["lanes"]["interactive"]["ready_for_s"] == 20
    idle = "jobs of interactive wait, and no worker is busy"
    assert [idle in texts(one) for one in (backing_off, due, late)] == [False, False, True]


@pytest.mark.parametrize(
    ("ahead_ms", "told_of"),
    [
        (600_000, ["this machine's clock is 600 s ahead of that of AWS: ages are wrong"]),
        (-600_000, ["this machine's clock is 600 s behind that of AWS: ages are wrong"]),
        (2_000, []),
    ],
)
def test_status_tells_when_its_clock_is_off(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, told_of: list[str]
) -> None:
    made = replace(desk, ahead_ms=ahead_ms)
    with_parts(made)
    stand_at(monkeypatch, made, "status_commands")

    assert texts(told("status")) == told_of


def test_status_tells_when_all_workers_are_busy(desk: Desk) -> None:
    for number in (1, 2):
        desk.put(processing(number))
    desk.put(a_job(3))

    assert texts(told("status")) == ["all 2 workers of interactive are busy, and 1 jobs wait"]


def test_status_puts_what_is_bad_before_what_is_not(desk: Desk) -> None:
    desk.state.pause_tenant("globex")
    desk.aws.messages["DeadLetterQueueUrl"] = 1

    shown = [line for line in run("status").stdout.splitlines() if line.startswith("!")]

    assert shown == [
        "!!  1 message is in the dead-letter queue  -> sluiceway dlq list",
        "!   tenant:globex is paused  -> sluiceway resume tenant:globex",
    ]


# ------------------------------------------------------------------------------------ unknown


def test_status_tells_a_part_that_it_may_not_read_and_all_others(desk: Desk) -> None:
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "Get")
    desk.aws.broken["DeadLetterQueueUrl"] = refused

    document = told("status")
    shown = run("status")

    assert document["unknown"] == {"queue dead_letters": "AccessDenied: not you"}
    assert document["queues"]["dead_letters"] is None
    assert document["queues"]["webhooks"] is not None
    assert shown.exit_code == 0
    assert "unknown: queue dead_letters: AccessDenied: not you" in shown.stdout


def test_status_asks_a_service_that_does_not_answer_once(desk: Desk) -> None:
    silent = EndpointConnectionError(endpoint_url="https://sqs")
    desk.aws.broken.update(dict.fromkeys(OUTPUTS, silent))

    document = told("status")

    assert len(desk.aws.asked) == 1
    assert set(document["unknown"]) == {
        *("mapping of interactive", "mapping of batch", "queue interactive", "queue batch"),
        *(f"queue {name}" for name in statuses.QUEUES),
    }
    assert document["lanes"]["interactive"]["open"] == 0


@dataclass
class Unreachable:
    """A state row in a table that doesn't answer."""

    asked: int = 0

    def read(self) -> None:
        self.asked += 1
        silent = EndpointConnectionError(endpoint_url="https://dynamodb")
        raise StoreBusyError("The tables can't be reached.", retry_after_s=1) from silent


def test_status_asks_tables_that_do_not_answer_once(desk: Desk) -> None:
    desk.__dict__["state"] = state = Unreachable()

    document = told("status")

    assert state.asked == 1
    assert {"state", "models", "jobs"} <= set(document["unknown"])


def test_status_of_a_stack_without_an_output_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(
        desk, outputs={name: one for name, one in desk.outputs.items() if "Unpub" not in name}
    )
    with_parts(older)
    stand_at(monkeypatch, older, "status_commands")

    assert "deploy it again" in told("status")["unknown"]["queue unpublished"]


def test_status_without_counts_is_told_without_them(desk: Desk) -> None:
    class Missing:
        def count(self, *_: object, **__: object) -> Counted:
            raise ImportError("No module named 'sluiceway_local'")

    desk.__dict__["counts"] = Missing()

    document = told("status")

    assert document["traffic"] is None
    assert document["unknown"] == {"traffic": "No module named 'sluiceway_local'"}
    assert "TRAFFIC  unknown" in run("status").stdout


def test_status_is_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_at(monkeypatch, Target("http://127.0.0.1:9/v1"), "status_commands")

    result = run("status")

    assert result.exit_code == 1
    assert "--stack" in result.output


# ------------------------------------------------------------------------------------ watch


@pytest.fixture
def watched(desk: Desk, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """An installation that somebody watches for three looks, and then presses Ctrl-C."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(s=seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    made = replace(desk, pause=pause)
    with_parts(made)
    stand_at(monkeypatch, made, "status_commands")
    return made


def test_watch_prints_a_line_of_json_for_each_look_and_ends_in_order(watched: Desk) -> None:
    result = run("status", "--watch", "--interval", "2", "--json")

    assert watched.outputs
    assert result.exit_code == 0
    assert [json.loads(line)["at"] for line in result.stdout.splitlines()] == [
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:02.000Z",
        "2026-01-01T00:00:04.000Z",
    ]


def test_watch_prints_each_look_where_it_is_no_terminal(watched: Desk) -> None:
    result = run("status", "--watch")

    assert watched.outputs
    assert result.exit_code == 0
    assert result.stdout.count("nothing is wrong") == 3
    assert "Aborted" not in result.output


def test_watch_on_a_terminal_moves_one_picture_and_leaves_the_last(watched: Desk) -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=120, legacy_windows=False)

    with pytest.raises(KeyboardInterrupt):
        status_commands.live(Looker(watched), terminal, 2.0)

    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert shown.index("00:00:00.000Z") < shown.index("00:00:04.000Z")
    assert "\x1b[" in shown


def test_watch_on_a_narrow_terminal_folds_what_is_wrong(watched: Desk) -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=40, legacy_windows=False)
    watched.state.pause_tenant("a-tenant-with-a-long-name")

    with pytest.raises(KeyboardInterrupt):
        status_commands.live(Looker(watched), terminal, 2.0)

    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    last = shown.rsplit("00:00:04.000Z", 1)[1]
    assert last.count("tenant:a-tenant-with-a-long-name") == 2


@pytest.mark.parametrize("interval", ["0", "-1", "0.5", "x"])
def test_watch_refuses_what_is_no_interval(interval: str) -> None:
    assert run("status", "--watch", "--interval", interval).exit_code == 2
