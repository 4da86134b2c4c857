"""`sluiceway jobs list` and `jobs show`: which jobs there are, and what happened to one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from botocore.exceptions import ClientError
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain import ids
from sluiceway.domain import job as transitions
from sluiceway.domain.endpoint import Endpoint
from sluiceway.domain.payload import Payload, compress
from sluiceway.domain.webhook import Attempt, DeliveryStatus
from sluiceway.ports import AuditRecord
from sluiceway_cli import listing
from sluiceway_cli.api import Api
from sluiceway_cli.logs import Line, Look
from sluiceway_cli.target import job_row

from tests.fakes.examples import a_delivery, a_job, a_partner_key, a_refresh, completed, failed
from tests.fakes.in_memory import NOW_MS, FakeClock
from tests.unit import desk as desks
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job
    from sluiceway_cli.pauses import Lane

SECRET = "a-prompt-that-nobody-may-read"
CATALOGUE = catalogues.parse(
    '[vendors.v]\n[models.demo-chat]\nvendor = "v"\nvendor_model = "big-1"\nversion = "1"\n'
)


@dataclass
class Logs:
    """What the functions logged, by function; or why it can't be read."""

    lines: dict[str, list[Line]] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    asked: list[tuple[str, str, int, int]] = field(default_factory=list)

    def find(self, function: str, phrase: str, *, since_ms: int, until_ms: int) -> Look:
        self.asked.append((function, phrase, since_ms, until_ms))
        if function in self.broken:
            raise self.broken[function]
        return Look(tuple(self.lines.get(function, ())))


@dataclass
class Mapping:
    """Of the lane `interactive`."""

    at: str = "Enabled"

    def state(self) -> str:
        return self.at


@dataclass(frozen=True)
class Desk(desks.Desk):
    """An installation in memory."""

    mapping: Mapping = field(default_factory=Mapping)

    def lane(self, name: str) -> Lane:
        assert name == "interactive"
        return self.mapping  # type: ignore[return-value]

    def catalogue(self) -> Catalogue:
        return CATALOGUE

    def put(self, job: Job) -> Job:
        self.world.jobs[job.tenant, job.job_id] = job
        return job

    @property
    def written(self) -> Logs:
        """The functions' logs."""
        logs = self.__dict__["logs"]
        assert isinstance(logs, Logs)
        return logs


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    monkeypatch.delenv("SLUICEWAY_API_KEY", raising=False)
    made = Desk("http://127.0.0.1:9/v1", outputs={"a": "b"}, local=True, clock=clock)
    made.__dict__["logs"] = Logs()
    stand_at(monkeypatch, made, "job_commands", "audit_commands")
    for number, tenant in ((1, "acme"), (2, "globex"), (3, "acme")):
        made.partner_keys().add(a_partner_key(number, tenant=tenant))
    clock.advance(s=100)
    return made


def aged(seconds: int, **changes: Any) -> Job:
    """A job that is so old at the desk; its id is of its time, as all are."""
    at_ms = NOW_MS + 100_000 - seconds * 1000
    identity = ids.job_id(at_ms, bytes(ids.RANDOM_BYTES))
    return a_job(1, **{"job_id": identity, "created_at_epoch_ms": at_ms, **changes})


def ages(*arguments: str) -> list[int]:
    return [row["age_s"] for row in told("jobs", "list", *arguments)["jobs"]]


# ------------------------------------------------------------------------------------ list


def test_list_merges_the_tenants_newest_first(desk: Desk) -> None:
    for seconds, tenant in ((3, "acme"), (2, "globex"), (1, "acme"), (4, "globex")):
        desk.put(aged(seconds, tenant=tenant))
    desk.put(aged(0, tenant="nobody"))
    desk.put(a_refresh())

    found = told("jobs", "list")
    first = run("jobs", "list").stdout.splitlines()[0]

    assert [(row["age_s"], row["tenant"]) for row in found["jobs"]] == [
        (1, "acme"),
        (2, "globex"),
        (3, "acme"),
        (4, "globex"),
    ]
    assert found["complete"] is True
    for word in (found["jobs"][0]["job_id"], "acme", "queued", "demo-chat", "interactive", "1s"):
        assert word in first


def test_list_of_a_tenant_has_no_others(desk: Desk) -> None:
    desk.put(aged(1))
    desk.put(aged(2, tenant="globex"))

    assert ages("--tenant", "globex") == [2]
    assert ages("--tenant", "nobody") == []
    assert "no such jobs" in run("jobs", "list", "--tenant", "nobody").stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [1, 2, 3, 4]),
        (("--status", "queued"), [1, 4]),
        (("--status", "dead_lettered", "--status", "completed"), [2, 3]),
        (("--model", "other"), [4]),
        (("--lane", "batch"), [1]),
        (("--status", "queued", "--lane", "interactive", "--model", "other"), [4]),
        (("--since", "2026-01-01T00:01:38Z"), [1, 2]),
        (("--limit", "2"), [1, 2]),
    ],
)
def test_list_takes_what_fits_all_filters(
    desk: Desk, options: tuple[str, ...], expected: list[int]
) -> None:
    desk.put(aged(1, lane="batch"))
    desk.put(failed(aged(2), last_receive=True))
    desk.put(completed(aged(3)))
    desk.put(aged(4, model="other"))

    assert ages(*options) == expected


def test_list_says_when_there_are_more(desk: Desk) -> None:
    for seconds in (1, 2, 3):
        desk.put(aged(seconds))

    assert told("jobs", "list", "--limit", "3")["complete"] is True
    assert told("jobs", "list", "--limit", "2")["complete"] is False
    assert "There are more" in run("jobs", "list", "--limit", "2").stderr


def test_list_tells_the_error_of_a_job_and_nothing_of_its_input(desk: Desk) -> None:
    secret = Payload(inline=compress(SECRET.encode()))
    desk.put(failed(aged(1, input=secret, metadata={"a": SECRET}), last_receive=True))

    (row,) = told("jobs", "list")["jobs"]

    assert row["error_code"] == "vendor_unavailable"
    assert set(row) - {"age_s"} <= set(job_row(a_job()))
    assert SECRET not in json.dumps(row)


def test_list_reads_so_many_pages_and_not_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "MOST_PAGES", 2)
    for seconds in range(1, 9):
        desk.put(aged(seconds, lane="batch" if seconds == 8 else "interactive"))

    found = told("jobs", "list", "--lane", "batch")

    assert found == {"jobs": [], "complete": False}


def test_list_stops_where_it_has_to_go_no_further_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "MOST_PAGES", 2)
    for seconds in range(1, 9):
        desk.put(aged(seconds))

    found = told("jobs", "list", "--lane", "batch", "--since", "2026-01-01T00:01:38Z")

    assert found == {"jobs": [], "complete": True}


@pytest.mark.parametrize(
    "options",
    [
        ("--status", "lost"),
        ("--lane", "fast"),
        ("--since", "yesterday"),
        ("--limit", "0"),
        ("--limit", "1001"),
    ],
    ids=" ".join,
)
def test_list_refuses_what_there_is_not(desk: Desk, options: tuple[str, ...]) -> None:
    assert desk.local

    assert run("jobs", "list", *options).exit_code == 2


def test_list_without_a_stack_asks_the_api_as_the_partner(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        number = len(asked)
        job = {
            "id": f"job_{number}",
            "status": "failed",
            "model": "demo-chat",
            "priority": "batch",
            "created_at": "2026-01-01T00:00:00.000Z",
            "attempts": 4,
            "error": {"code": "vendor_timeout"},
        }
        page = {"data": [job], "has_more": number < 2, "last_id": f"job_{number}"}
        return httpx.Response(200, json=page)

    api = Api("http://127.0.0.1/v1", "swk_x", transport=httpx.MockTransport(answer))
    monkeypatch.setattr("sluiceway_cli.console.partner_api", lambda *_: api)
    stand_at(monkeypatch, desks.Desk("http://127.0.0.1/v1", clock=clock), "job_commands")

    found = told("jobs", "list", "--status", "failed", "--limit", "5")

    assert asked == [
        {"status": "failed", "limit": "6"},
        {"status": "failed", "limit": "6", "after": "job_1"},
    ]
    assert [row["job_id"] for row in found["jobs"]] == ["job_1", "job_2"]
    assert found["jobs"][0] == {
        "job_id": "job_1",
        "tenant": None,
        "status": "failed",
        "model": "demo-chat",
        "lane": "batch",
        "created_at": "2026-01-01T00:00:00.000Z",
        "age_s": 0,
        "attempts": 4,
        "error_code": "vendor_timeout",
    }
    assert found["complete"] is True


# ------------------------------------------------------------------------------------ show


def ran(number: int = 1, **changes: Any) -> Job:
    """A job whose first attempt began after 2 s."""
    job = a_job(number, key_id="key_1", **changes)
    return transitions.started(
        job, fence=1, now_ms=NOW_MS + 2000, receives=1, function_ends_ms=NOW_MS + 100_000
    )


def died(**changes: Any) -> Job:
    """A job that failed twice, for good the second time, 3 s after it began."""
    once = transitions.retrying(
        ran(**changes), an_error_at(NOW_MS + 2500), not_before_ms=NOW_MS + 4000
    )
    again = transitions.started(
        once, fence=2, now_ms=NOW_MS + 4000, receives=2, function_ends_ms=NOW_MS + 100_000
    )
    error = an_error_at(NOW_MS + 4999, attempt=2, retryable=False)
    return transitions.failed(again, error, now_ms=NOW_MS + 5000, last_receive=True)


def an_error_at(at_ms: int, **changes: Any) -> transitions.JobError:
    return transitions.JobError(
        **{
            "code": "vendor_unavailable",
            "message": "The vendor answered 503.",
            "retryable": True,
            "attempt": 1,
            "at_epoch_ms": at_ms,
            "error_class": "VendorError",
            "http_status": 503,
            **changes,
        }
    )


def show(job: Job, *options: str) -> dict[str, Any]:
    found = told("jobs", "show", job.job_id, *options)
    assert isinstance(found, dict)
    return found


def events(found: dict[str, Any], *sources: str) -> list[tuple[int, str]]:
    return [
        (one["offset_ms"], one["event"])
        for one in found["timeline"]
        if one["source"] in sources or not sources
    ]


def test_show_keeps_the_members_of_the_row_at_their_place(desk: Desk) -> None:
    job = desk.put(died())

    found = show(job)

    row = job_row(job)
    assert {name: found[name] for name in row} == row
    assert found["job"] == row
    assert set(found) - set(row) == {"job", "timeline", "missing", "why"}


def test_show_tells_the_life_of_a_job_in_order(desk: Desk) -> None:
    job = desk.put(died())

    found = show(job)
    lines = run("jobs", "show", job.job_id, "--tenant", "acme").stdout.splitlines()

    assert events(found, "row") == [
        (0, "submitted"),
        (2500, "attempt 1 failed"),
        (4000, "started"),
        (4999, "failed"),
    ]
    assert "by key_1: demo-chat version 1" in found["timeline"][0]["detail"]
    assert "request request-1, correlation correlation-1" in found["timeline"][0]["detail"]
    (line,) = (one for one in lines if "attempt 1 failed" in one)
    assert line == (
        "2026-01-01T00:00:02.500Z    +2.500s  row  attempt 1 failed  vendor_unavailable: The "
        "vendor answered 503. (VendorError, HTTP 503; may be tried again)"
    )


def test_show_ends_with_why_and_where_to_go(desk: Desk) -> None:
    job = desk.put(died())

    found = show(job)
    last = run("jobs", "show", job.job_id).stdout.splitlines()[-2:]

    assert found["why"] == {
        "sentence": (
            "It is dead-lettered after 2 attempts, because the vendor could not be reached, or "
            "failed: The vendor answered 503. (vendor_unavailable)"
        ),
        "waits_for": None,
        "until": None,
        "runbook": "docs/runbook.md#redrive",
    }
    assert last == [f"why   {found['why']['sentence']}", "then  docs/runbook.md#redrive"]


def test_show_finds_the_job_of_whichever_tenant_has_a_key(desk: Desk) -> None:
    job = desk.put(a_job(1, tenant="globex"))

    assert show(job)["tenant"] == "globex"
    assert run("jobs", "show", job.job_id, "--tenant", "acme").exit_code == 1


def test_show_tells_what_operators_did_to_it_and_what_was_paused(desk: Desk) -> None:
    job = desk.put(died())
    for at_ms, action, subject in (
        (1000, "pause.begin", "model:demo-chat"),
        (1500, "pause.end", "model:demo-chat"),
        (1600, "pause.begin", "model:another"),
        (1700, "cache.invalidate", "model:demo-chat"),
        (9000, "dlq.redrive", f"job:{job.job_id}"),
        (9001, "dlq.redrive", "job:another"),
        (9002, "pause.begin", "tenant:acme"),  # it has ended
    ):
        desk.audit.add(AuditRecord(NOW_MS + at_ms, "user:ann", action, subject))

    found = show(job)

    assert events(found, "audit") == [
        (1000, "pause.begin"),
        (1500, "pause.end"),
        (9000, "dlq.redrive"),
    ]
    assert found["timeline"][-1]["detail"] == f"job:{job.job_id} by user:ann"


def test_show_tells_whose_place_a_resubmitted_job_took(desk: Desk) -> None:
    job = desk.put(a_job(1, key_id="operator", request_id="resubmit-7"))
    desk.audit.add(AuditRecord(NOW_MS + 1, "user:ann", "dlq.resubmit", "job:job_old", "resubmit-7"))

    found = show(job)

    assert "by an operator" in found["timeline"][0]["detail"]
    assert [one["detail"] for one in found["timeline"] if one["source"] == "audit"] == [
        "job:job_old by user:ann"
    ]


def test_show_tells_what_became_of_its_webhooks(desk: Desk) -> None:
    job = desk.put(died())
    desk.registrar.endpoints.change(
        "acme", lambda before: (*before, Endpoint("whk_1", "https://a.example/?key=1"))
    )
    for number, of_job in enumerate((job.job_id, "job_another", job.job_id), start=1):
        delivery = a_delivery(
            number, at_epoch_ms=NOW_MS + 5000, job_id=of_job, type="job.dead_lettered"
        )
        attempt = Attempt(NOW_MS + 5100 + number, DeliveryStatus.FAILED, 500, "refused")
        desk.registrar.delivery_log.record(delivery, attempt)

    found = show(job)

    assert events(found, "webhook") == [
        (5101, "job.dead_lettered failed"),
        (5103, "job.dead_lettered failed"),
    ]
    assert found["timeline"][-1]["detail"] == "to whk_1, 1 attempts, HTTP 500, refused"
    assert "a.example" not in json.dumps(found)


def a_line(at_ms: int, **members: Any) -> Line:
    return Line(NOW_MS + at_ms, {"job_id": a_job().job_id, "message": "job_parked", **members})


def test_show_tells_what_the_functions_logged_of_it(desk: Desk) -> None:
    job = desk.put(died())
    desk.written.lines = {
        "run_job": [a_line(2100, reason="gate", attempt=0), a_line(2200, message="lease_lost")],
        "api": [a_line(10, message="job_submitted", job_id="job_another")],
    }

    found = show(job)

    assert events(found, "run_job", "api") == [(2100, "job_parked"), (2200, "lease_lost")]
    (parked,) = (one for one in found["timeline"] if one["event"] == "job_parked")
    assert parked["detail"] == "attempt=0 reason=gate"
    assert {phrase for _, phrase, _, _ in desk.written.asked} == {job.job_id}
    assert all(NOW_MS - 60_000 < since <= NOW_MS for _, _, since, _ in desk.written.asked)


def test_show_tells_nothing_of_a_line_that_may_be_a_text(desk: Desk) -> None:
    job = desk.put(died(input=Payload(inline=SECRET.encode()), metadata={}))
    desk.written.lines = {
        "run_job": [
            a_line(2100, message=f"unexpected {SECRET}"),
            a_line(2200, reason=f"so: {SECRET}", prompt=SECRET, exception=SECRET, attempt=[SECRET]),
        ]
    }

    found = run("jobs", "show", job.job_id, "--json").stdout
    shown = run("jobs", "show", job.job_id).output

    assert "job_parked" in found
    assert SECRET not in found + shown


def test_show_without_logs_asks_for_none(desk: Desk) -> None:
    job = desk.put(died())

    found = show(job, "--no-logs")

    assert desk.written.asked == []
    assert found["missing"] == {}


def test_show_tells_what_it_could_not_read_and_everything_else(desk: Desk) -> None:
    job = desk.put(died())
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "Filter")
    desk.written.broken = {"api": refused, "run_job": ValueError("no such output")}
    desk.written.lines = {"sweep_jobs": [a_line(2100)]}

    found = show(job)
    result = run("jobs", "show", job.job_id)

    assert found["missing"]["log of run_job"] == "no such output"
    assert "not you" in found["missing"]["log of api"]
    assert (2100, "job_parked") in events(found)
    assert result.exit_code == 0
    assert "not in full: log of run_job: no such output" in result.stderr


def test_show_of_an_open_job_tells_what_is_planned_and_what_it_waits_for(
    desk: Desk, clock: FakeClock
) -> None:
    parked_until_ms = clock.now_ms() + 30_000
    job = desk.put(transitions.parked(a_job(1, key_id="key_1"), not_before_ms=parked_until_ms))
    desk.state.pause_tenant("acme")

    found = show(job)

    planned = [one["event"] for one in found["timeline"] if one["planned"]]
    assert planned == ["may start", "sweeper looks", "deadline"]
    assert found["why"]["waits_for"] == "tenant"
    assert "sluiceway resume tenant:acme" in found["why"]["sentence"]


def test_show_of_an_open_job_whose_model_is_gone_says_so(desk: Desk) -> None:
    job = desk.put(a_job(1, model="gone"))

    found = show(job)

    assert found["missing"] == {}
    assert found["why"]["waits_for"] == "catalogue"
    assert found["why"]["runbook"] == "docs/runbook.md#roll-back-a-catalogue"


def test_show_of_a_hits_id_says_where_to_look(desk: Desk) -> None:
    assert desk.local

    refused = told("jobs", "show", "hit_c1_x", code=1)

    assert "sluiceway cache show hit_c1_x" in refused["error"]["detail"]


def test_show_with_a_key_and_no_tenant_is_the_partners_view(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_API_KEY", "swk_x")
    job = {"id": "job_1", "status": "completed", "model": "demo-chat"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=job))
    api = Api(desk.api_url, "swk_x", transport=transport)
    monkeypatch.setattr("sluiceway_cli.console.partner_api", lambda *_: api)

    assert told("jobs", "show", "job_1") == job


# ------------------------------------------------------------------------------------ audit


def test_audit_takes_what_matches(desk: Desk) -> None:
    for number, (actor, action, subject) in enumerate(
        (
            ("user:ann", "dlq.redrive", "job:job_1"),
            ("user:bob", "dlq.redrive", "job:job_2"),
            ("user:ann", "dlq.discard", "job:job_2"),
        )
    ):
        desk.audit.add(AuditRecord(NOW_MS + number, actor, action, subject))

    def found(*options: str) -> list[str]:
        return [one["at"][-4:] for one in told("audit", *options)["records"]]

    assert found("--actor", "user:ann") == ["002Z", "000Z"]
    assert found("--action", "dlq.redrive") == ["001Z", "000Z"]
    assert found("--subject", "job:job_2") == ["002Z", "001Z"]
    assert found("--subject", "job:job_2", "--actor", "user:bob") == ["001Z"]


def test_audit_of_a_job_tells_who_triggered_it(desk: Desk) -> None:
    job = desk.put(a_job(1, key_id="key_1"))

    found = told("audit", "--subject", f"job:{job.job_id}")
    shown = run("audit", "--subject", f"job:{job.job_id}").stdout

    assert found["triggered_by"] == {
        "at": "2026-01-01T00:00:00.000Z",
        "tenant": "acme",
        "key_id": "key_1",
        "request_id": "request-1",
        "correlation_id": "correlation-1",
    }
    assert "by key_1 of acme, request request-1, correlation correlation-1." in shown


@pytest.mark.parametrize("job_id", ["job_gone", "", "../x"])
def test_audit_of_a_job_that_is_gone_says_so(desk: Desk, job_id: str) -> None:
    assert desk.world.jobs == {}

    assert told("audit", "--subject", f"job:{job_id}")["triggered_by"] is None
    assert "not any more" in run("audit", "--subject", f"job:{job_id}").stderr
