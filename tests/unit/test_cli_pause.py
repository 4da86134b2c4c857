"""`sluiceway pause`, `sluiceway resume` and `sluiceway jobs move`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain import job as transitions
from sluiceway.domain.gate import Gate
from sluiceway.domain.job import SEND_STARTS_WITHIN_MS, Job
from sluiceway_cli import moves
from sluiceway_cli.target import AwsClock

from tests.fakes.examples import a_job, a_partner_key, completed, failed, retrying
from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    InMemoryGates,
    InMemoryJobs,
    InMemoryQueue,
)
from tests.unit import desk as desks
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.catalogue import Catalogue

JOB_ID = a_job().job_id
GATE = "gate#v#big-1"
CATALOGUE = catalogues.parse(
    "[vendors.v]\n"
    + "".join(
        f'[models."{name}"]\nvendor = "v"\nvendor_model = "{vendor_model}"\nversion = "1"\n'
        "requests_per_minute = 60\nburst = 1\n"
        for name, vendor_model in (("big", "big-1"), ("big-cached", "big-1"), ("small", "small-1"))
    )
)


@dataclass
class Mappings:
    """Lambda's event source mappings: a change is done when it was looked at so often."""

    looks: int = 2
    states: dict[str, str] = field(
        default_factory=lambda: {"arn:interactive": "Enabled", "arn:batch": "Enabled"}
    )
    updates: list[tuple[str, bool]] = field(default_factory=list)
    at_update: Callable[[], None] = lambda: None
    _left: int = 0

    def list_event_source_mappings(self, **request: str) -> dict[str, Any]:
        arn, of_queue = request["EventSourceArn"], []
        for function in ("run_job-function:live", "somebody-elses"):
            function_arn = f"arn:aws:lambda:us-east-1:000000000000:function:{function}"
            of_queue.append({"UUID": arn, "FunctionArn": function_arn})
        return {"EventSourceMappings": of_queue if arn in self.states else of_queue[1:]}

    def get_event_source_mapping(self, **request: str) -> dict[str, str]:
        state = self.states[request["UUID"]]
        if state.endswith("ing"):
            self._left -= 1
            if self._left <= 0:
                ended = {"Disabling": "Disabled", "Enabling": "Enabled", "Updating": "Enabled"}
                state = ended[state]
                self.states[request["UUID"]] = state
        return {"State": state}

    def update_event_source_mapping(self, **request: Any) -> None:
        self.at_update()
        assert set(request) == {"UUID", "Enabled"}
        assert not self.states[request["UUID"]].endswith("ing")
        self.updates.append((request["UUID"], request["Enabled"]))
        self.changes(request["UUID"], "Enabling" if request["Enabled"] else "Disabling")

    def changes(self, arn: str, state: str) -> None:
        self.states[arn] = state
        self._left = self.looks

    def get_queue_attributes(self, **request: Any) -> dict[str, Any]:
        return {"Attributes": {"QueueArn": request["QueueUrl"].replace("https://", "arn:")}}


@dataclass(frozen=True)
class Desk(desks.Desk):
    """An installation in memory, as the commands see it."""

    mappings: Mappings = field(default_factory=Mappings)
    sent: InMemoryQueue = field(default_factory=InMemoryQueue)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__.update(  # in place of the cached properties
            gates=InMemoryGates(self.world),
            queue=self.sent,
        )

    def client(self, service: Any, config: Any = None) -> Any:  # noqa: ARG002
        assert service in {"lambda", "sqs"}
        return self.mappings

    def catalogue(self) -> Catalogue:
        return CATALOGUE

    def put(self, job: Job) -> Job:
        self.world.jobs[job.tenant, job.job_id] = job
        return job

    def row(self, job: Job) -> Job:
        return self.world.jobs[job.tenant, job.job_id]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    """The local stack of an operator called ann."""
    monkeypatch.setenv("LOGNAME", "ann")
    made = Desk(
        "http://127.0.0.1:9/v1",
        outputs={
            "RunJobFunctionName": "run_job-function",
            "InteractiveQueueUrl": "https://interactive",
            "BatchQueueUrl": "https://batch",
        },
        endpoint_url="http://127.0.0.1:9",
        local=True,
        clock=clock,
        pause=clock.pause,
    )
    at_desk(monkeypatch, made)
    made.partner_keys().add(a_partner_key())
    return made


def at_desk(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    stand_at(monkeypatch, desk, "pause_commands")


# ------------------------------------------------------------------------------------ subjects


@pytest.mark.parametrize(
    "subject", ["batch", "lane:", "lane:slow", "queue:batch", "model:A", "tenant:a b", "tenant:"]
)
@pytest.mark.parametrize("command", ["pause", "resume"])
def test_subject_that_cannot_be_one_is_refused(desk: Desk, command: str, subject: str) -> None:
    result = run(command, subject)

    assert result.exit_code == 2
    assert subject.partition(":")[2] in result.output
    assert desk.done == []


def test_resume_wants_a_subject(desk: Desk) -> None:
    assert run("resume").exit_code == 2
    assert desk.done == []


# ------------------------------------------------------------------------------------ lanes


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_lane_is_paused_and_resumed_by_its_mapping(desk: Desk, lane: str) -> None:
    paused = told("pause", f"lane:{lane}")
    between = dict(desk.mappings.states)
    lending_nothing = set(desk.world.paused_lanes)
    resumed = told("resume", f"lane:{lane}")

    subject = {"subject": f"lane:{lane}", "changed": True}
    assert paused == {**subject, "paused": True, "mapping_state": "Disabled"}
    assert [arn for arn, state in between.items() if state != "Enabled"] == [f"arn:{lane}"]
    assert (lending_nothing, desk.world.paused_lanes) == ({lane}, set())
    assert resumed == {**subject, "paused": False, "mapping_state": "Enabled"}
    assert set(desk.mappings.states.values()) == {"Enabled"}
    assert desk.done == [("pause.begin", f"lane:{lane}"), ("pause.end", f"lane:{lane}")]


def test_lane_that_is_paused_again_is_left_alone(desk: Desk) -> None:
    run("pause", "lane:batch")

    again = run("pause", "lane:batch")
    shown = told("pause", "lane:batch")

    assert "already paused" in again.stdout
    assert shown["changed"] is False
    assert desk.mappings.updates == [("arn:batch", False)]
    assert desk.done == [("pause.begin", "lane:batch")]


def test_lane_that_is_not_paused_is_not_resumed(desk: Desk) -> None:
    assert "is not paused" in run("resume", "lane:batch").stdout
    assert (desk.mappings.updates, desk.done) == ([], [])


def test_lane_that_another_is_pausing_is_waited_for(desk: Desk) -> None:
    desk.mappings.changes("arn:batch", "Disabling")

    shown = told("pause", "lane:batch")

    assert (shown["changed"], shown["mapping_state"]) == (False, "Disabled")
    assert (desk.mappings.updates, desk.done) == ([], [])


@pytest.mark.parametrize("state", ["Disabling", "Updating"])
def test_mapping_that_changes_is_changed_when_it_may_be(desk: Desk, state: str) -> None:
    desk.mappings.changes("arn:batch", state)
    command = "resume" if state == "Disabling" else "pause"

    shown = told(command, "lane:batch")

    assert shown["mapping_state"] == ("Enabled" if state == "Disabling" else "Disabled")
    assert len(desk.mappings.updates) == 1


def test_lane_that_takes_too_long_is_told_so_and_stays_asked(desk: Desk, clock: FakeClock) -> None:
    desk.mappings.looks = 500

    result = run("pause", "lane:batch", "--timeout", "30")
    shown = told("pause", "lane:batch", "--timeout", "0", code=3)

    assert result.exit_code == 3
    assert "changing still: its event source mapping is Disabling" in result.stderr
    assert shown["mapping_state"] == "Disabling"
    assert 30_000 <= clock.now_ms() - NOW_MS <= 33_000
    assert desk.mappings.updates == [("arn:batch", False)]
    assert desk.done == [("pause.begin", "lane:batch")]


@pytest.mark.parametrize(
    ("code", "exit_code"), [("ResourceInUseException", 0), ("AccessDeniedException", 1)]
)
def test_change_that_lambda_refuses_is_told_unless_another_is_at_it(
    desk: Desk, code: str, exit_code: int
) -> None:
    def refuse() -> None:
        desk.mappings.at_update = lambda: None
        desk.mappings.changes("arn:batch", "Updating")
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "UpdateEventSourceMapping")

    desk.mappings.at_update = refuse

    result = run("pause", "lane:batch")

    assert result.exit_code == exit_code
    assert bool(desk.done) is (exit_code == 0)


def test_lane_without_a_mapping_is_told_so(desk: Desk) -> None:
    del desk.mappings.states["arn:batch"]

    result = run("pause", "lane:batch")

    assert result.exit_code == 1
    assert "0 event source mappings" in result.stderr


# ------------------------------------------------------------------------------------ models


def test_model_is_paused_and_resumed_by_its_gate(desk: Desk, clock: FakeClock) -> None:
    paused = told("pause", "model:big")
    between = desk.world.gates[GATE]
    clock.advance(s=100)
    resumed = told("resume", "model:big")

    subject = {"subject": "model:big", "changed": True, "shared_with": ["big-cached"]}
    assert paused == {**subject, "paused": True}
    assert between == Gate(version=1, paused=True)
    assert resumed == {**subject, "paused": False}
    after = desk.world.gates[GATE]
    assert (after.version, after.paused) == (2, False)
    assert after.next_request_at_us == (clock.now_ms() + 1000) * 1000
    assert desk.done == [("pause.begin", "model:big"), ("pause.end", "model:big")]


@pytest.mark.usefixtures("desk")
def test_model_that_shares_its_gate_says_so() -> None:
    shared, alone = run("pause", "model:big"), run("pause", "model:small")

    assert "the same gate: big-cached" in shared.stdout
    assert "the same gate" not in alone.stdout


def test_model_that_is_paused_again_is_left_alone(desk: Desk) -> None:
    run("pause", "model:big")

    again, other = run("pause", "model:big"), run("pause", "model:big-cached")

    assert "model:big is already paused" in again.stdout
    assert "model:big-cached is already paused" in other.stdout
    assert desk.done == [("pause.begin", "model:big")]


def test_model_that_the_catalogue_lacks_is_refused(desk: Desk) -> None:
    result = run("pause", "model:bigg")

    assert result.exit_code == 1
    assert "did you mean big?" in result.stderr
    assert (desk.world.gates, desk.done) == ({}, [])


# ------------------------------------------------------------------------------------ tenants


def test_tenant_is_paused_and_resumed_in_the_state(desk: Desk) -> None:
    paused = told("pause", "tenant:acme")
    between = set(desk.world.paused_tenants)
    resumed = told("resume", "tenant:acme")

    subject = {"subject": "tenant:acme", "changed": True}
    assert paused == {**subject, "paused": True, "has_keys": True}
    assert between == {"acme"}
    assert resumed == {**subject, "paused": False}
    assert desk.world.paused_tenants == set()
    assert desk.done == [("pause.begin", "tenant:acme"), ("pause.end", "tenant:acme")]


def test_tenant_that_is_paused_again_is_left_alone(desk: Desk) -> None:
    run("pause", "tenant:acme")

    assert "already paused" in run("pause", "tenant:acme").stdout
    assert "not paused" in run("resume", "tenant:globex").stdout
    assert desk.done == [("pause.begin", "tenant:acme")]


def test_tenant_without_a_key_is_paused_with_a_word_of_warning(desk: Desk) -> None:
    known, unknown = run("pause", "tenant:acme"), run("pause", "tenant:amce")

    assert known.stderr == ""
    assert "No API key is of this tenant" in unknown.stderr
    assert desk.world.paused_tenants == {"acme", "amce"}


# ------------------------------------------------------------------------------------ notices


@pytest.mark.parametrize("subject", ["lane:batch", "model:big", "tenant:acme"])
def test_operators_are_notified_of_a_pause_and_its_end_once(desk: Desk, subject: str) -> None:
    for command in ("pause", "pause", "resume", "resume"):
        run(command, subject)

    assert desk.told == [("PauseBegan", subject), ("PauseEnded", subject)]
    assert {notice.actor for notice in desk.events.taken} == {"user:ann"}


def test_pause_that_nobody_is_notified_of_holds_all_the_same(desk: Desk) -> None:
    desk.events.refusals.append(1)

    result = run("pause", "tenant:acme")

    assert result.exit_code == 0
    assert "Nobody was notified: PauseBegan of tenant:acme" in result.stderr
    assert desk.world.paused_tenants == {"acme"}


# ------------------------------------------------------------------------------------ the list


def test_gate_is_resumed_by_the_clock_of_aws(desk: Desk, clock: FakeClock) -> None:
    run("pause", "model:big")
    now_ms = clock.now_ms()
    desk.__dict__["aws_clock"] = AwsClock(clock, lambda: 600_000)  # this machine's is ahead
    clock.advance(s=600)

    run("resume", "model:big")

    slot_at_us = max(gate.next_request_at_us for gate in desk.world.gates.values())
    assert slot_at_us < (now_ms + 300_000) * 1000


def test_list_tells_of_a_pause_that_was_cut_off(desk: Desk) -> None:
    desk.state.pause_lane("batch")  # and its mapping is Enabled still

    assert told("pause") == {"paused": [{"subject": "lane:batch", "mapping_state": "Enabled"}]}
    assert run("pause").stdout == "lane:batch  Enabled\n"


def test_list_tells_what_is_paused_and_changes_nothing(desk: Desk) -> None:
    assert "Nothing is paused." in run("pause").stdout
    for subject in ("lane:batch", "model:big", "tenant:globex", "tenant:acme"):
        run("pause", subject)
    desk.mappings.states["arn:interactive"] = "Updating"
    desk.mappings.looks = desk.mappings._left = 500
    before = (dict(desk.world.gates), len(desk.done))

    assert told("pause") == {
        "paused": [
            {"subject": "lane:interactive", "mapping_state": "Updating"},
            {"subject": "lane:batch", "mapping_state": "Disabled"},
            {"subject": "model:big"},
            {"subject": "model:big-cached"},
            {"subject": "tenant:acme"},
            {"subject": "tenant:globex"},
        ]
    }
    assert run("pause").stdout.splitlines() == [
        "lane:interactive  Updating",
        *("lane:batch", "model:big", "model:big-cached", "tenant:acme", "tenant:globex"),
    ]
    assert (dict(desk.world.gates), len(desk.done)) == before


# ------------------------------------------------------------------------------------ jobs move


@pytest.mark.parametrize(("lane", "other"), [("interactive", "batch"), ("batch", "interactive")])
def test_job_is_moved_and_its_message_is_sent_to_the_lane(
    desk: Desk, lane: str, other: str
) -> None:
    job = desk.put(a_job(lane=other))

    shown = told("jobs", "move", JOB_ID, "--lane", lane)

    assert shown == {
        "outcomes": [{"job_id": JOB_ID, "outcome": "moved", "reason": "its message was sent there"}]
    }
    assert desk.row(job) == replace(job, lane=lane)
    assert desk.sent.sends == [(lane, "acme", JOB_ID)]
    assert desk.done == [("job.move", f"job:{JOB_ID}")]


def test_job_that_is_in_the_lane_already_is_left_alone(desk: Desk) -> None:
    desk.put(a_job(lane="batch"))

    result = run("jobs", "move", JOB_ID, "--lane", "batch")

    assert result.exit_code == 0
    assert "in the lane batch already" in result.stdout
    assert (desk.sent.sends, desk.done) == ([], [])


def started(**members: Any) -> Job:
    return transitions.started(
        a_job(**members), fence=1, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + 110_000
    )


def parked(not_before_ms: int, *, resends: int = 0) -> Job:
    job = transitions.parked(a_job(), not_before_ms=not_before_ms)
    return replace(job, resends=resends)


@pytest.mark.parametrize(
    ("job", "sends"),
    [
        (parked(NOW_MS), 0),
        (parked(NOW_MS + 1, resends=1), 0),
        (parked(NOW_MS, resends=1), 1),
        (started(), 0),
        (retrying(started(), delay_ms=1), 0),
        (retrying(started(), delay_ms=0), 1),
    ],
    ids=["parked", "parked again", "sent again", "processing", "retrying later", "retrying now"],
)
def test_job_that_another_message_comes_for_is_moved_without_one(
    desk: Desk, job: Job, sends: int
) -> None:
    desk.put(job)

    told("jobs", "move", JOB_ID, "--lane", "batch")

    assert desk.row(job) == replace(job, lane="batch")
    assert len(desk.sent.sends) == sends
    assert desk.done == [("job.move", f"job:{JOB_ID}")]


@pytest.mark.parametrize("end", [completed, failed], ids=["completed", "failed"])
def test_job_that_has_ended_is_refused(desk: Desk, end: Callable[[Job], Job]) -> None:
    job = desk.put(end(started()))

    result = run("jobs", "move", JOB_ID, "--lane", "batch")

    assert result.exit_code == 1
    assert f"refused: it has ended, as {job.status.value}" in result.stdout
    assert (desk.row(job), desk.sent.sends, desk.done) == (job, [], [])


def test_job_that_cannot_be_moved_never_blocks_the_rest(desk: Desk) -> None:
    ended, other = desk.put(completed(started())), desk.put(a_job(2))
    gone = "job_unknown"

    shown = told(
        *("jobs", "move", gone, ended.job_id, other.job_id, other.job_id, "--lane", "batch"), code=1
    )

    assert [(one["job_id"], one["outcome"]) for one in shown["outcomes"]] == [
        (gone, "refused"),
        (ended.job_id, "refused"),
        (other.job_id, "moved"),
    ]
    assert desk.done == [("job.move", f"job:{other.job_id}")]


def test_job_of_the_tenant_that_is_named_is_moved(desk: Desk) -> None:
    job = desk.put(a_job(tenant="no-key"))

    assert "--tenant" in run("jobs", "move", JOB_ID, "--lane", "batch").stdout
    told("jobs", "move", JOB_ID, "--lane", "batch", "--tenant", "no-key")

    assert desk.row(job).lane == "batch"


def test_message_that_could_not_be_sent_is_left_to_the_sweeper(desk: Desk) -> None:
    job = desk.put(a_job())
    desk.sent.broken = True

    (outcome,) = told("jobs", "move", JOB_ID, "--lane", "batch")["outcomes"]

    assert outcome["outcome"] == "moved"
    assert "sweeper" in outcome["reason"]
    assert desk.row(job).lane == "batch"


class Meanwhile(InMemoryJobs):
    """What happens in the middle of a move."""

    happens: Callable[[], object]
    written = True

    def move_lane(self, job: Job, lane: str) -> bool:
        moved = super().move_lane(job, lane) if self.written else False
        self.happens()
        return moved


def moved_while(desk: Desk, happens: Callable[[], object], *, written: bool) -> moves.Outcome:
    job = desk.put(a_job())
    clock = desk.clock
    assert isinstance(clock, FakeClock)
    jobs = Meanwhile(desk.world, clock=clock)
    jobs.happens, jobs.written = happens, written
    return moves.move(job, "batch", jobs=jobs, queue=desk.sent, clock=clock)


@pytest.mark.parametrize(("took_ms", "sends"), [(SEND_STARTS_WITHIN_MS, 1), (1_001, 0)])
def test_message_is_not_sent_long_after_the_move(
    desk: Desk, clock: FakeClock, took_ms: int, sends: int
) -> None:
    outcome = moved_while(desk, lambda: clock.advance(ms=took_ms), written=True)

    assert outcome.outcome == "moved"
    assert len(desk.sent.sends) == sends


def test_move_whose_reply_was_lost_is_ours(desk: Desk) -> None:
    outcome = moved_while(desk, lambda: desk.put(a_job(lane="batch")), written=False)

    assert outcome.outcome == "moved"
    assert desk.sent.sends == [("batch", "acme", JOB_ID)]


def test_job_that_ends_meanwhile_is_refused(desk: Desk) -> None:
    outcome = moved_while(desk, lambda: desk.put(completed(a_job())), written=False)

    assert outcome == moves.Outcome(JOB_ID, "refused", "it has ended, as completed")
    assert desk.sent.sends == []
