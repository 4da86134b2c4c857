"""`sluiceway cache`, `sluiceway audit`, and the records of what commands do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws
from sluiceway.adapters.dynamodb import Table
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.payload import Payload
from sluiceway.ports import AuditRecord
from sluiceway_cli.api import Api
from sluiceway_cli.target import Target

from tests.fakes.examples import a_job, a_partner_key, a_refresh, an_entry, completed
from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    InMemoryAudit,
    InMemoryCache,
    InMemoryPayloads,
)
from tests.unit import desk as desks
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.job import Job

SECRET = b"a-result-that-nobody-may-read"
JOB_ID = a_job().job_id
KEY = "c1_" + "A" * 42 + "1"
EMULATOR = "http://127.0.0.1:9"
CATALOGUE = catalogues.parse(
    "[vendors.v]\n"
    + "".join(
        f'[models."{name}"]\nvendor = "v"\nvendor_model = "m"\nversion = "1"\n'
        for name in ("demo-chat", "demo-chat-2", "heavy")
    )
)


@dataclass
class Replies:
    """A client of DynamoDB, for what its replies say besides."""

    headers: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None
    takes: Callable[[], object] = lambda: None
    """What happens while a reply is under way."""

    def get_item(self, **request: Any) -> dict[str, Any]:
        assert request["Key"] == {"coordination_key": {"S": "state"}}
        self.takes()
        if self.error is not None:
            raise self.error
        return {"ResponseMetadata": {"HTTPHeaders": self.headers}}


@dataclass(frozen=True)
class Desk(desks.Desk):
    """An installation in memory, as the commands see it."""

    aws: Replies = field(default_factory=Replies)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__.update(  # in place of the cached properties
            cache=InMemoryCache(self.world),
            payloads=InMemoryPayloads(self.world),
            _table=Table(self.aws),  # type: ignore[arg-type]
        )

    def catalogue(self) -> Catalogue:
        return CATALOGUE

    def put(self, entry: CacheEntry, job: Job | None = None) -> None:
        """The entry, and the completed job that left it."""
        self.world.entries[entry.cache_key] = entry
        job = completed(replace(job or a_job(), cache_key=entry.cache_key), SECRET)
        self.world.jobs[job.tenant, job.job_id] = job


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    """The local stack of an operator called ann."""
    monkeypatch.setenv("LOGNAME", "ann")
    made = Desk(
        "http://127.0.0.1:9/v1",
        outputs={"JobsTableName": "j", "CoordinationTableName": "c"},
        partners={"acme": "swk_x"},
        endpoint_url=EMULATOR,
        region="us-east-1",
        local=True,
        clock=clock,
    )
    at_desk(monkeypatch, made)
    made.partner_keys().add(a_partner_key())
    return made


@pytest.fixture
def on_aws(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> Desk:
    """The same world, as a stack on AWS."""
    made = replace(desk, endpoint_url=None, local=False)
    at_desk(monkeypatch, made)
    return made


def at_desk(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    stand_at(monkeypatch, desk, "cache_commands", "audit_commands", "key_commands")


def entry(**changes: Any) -> CacheEntry:
    return an_entry(a_job(), SECRET, **{"cache_key": KEY, **changes})


# ------------------------------------------------------------------------------------ show


def test_show_tells_everything_but_the_text(desk: Desk, clock: FakeClock) -> None:
    desk.put(entry())
    clock.advance(s=90)

    shown = told("cache", "show", KEY)

    assert shown == {
        "cache_key": KEY,
        "state": "entry",
        "invalidated_at": None,
        "invalidated_by": None,
        "model": "demo-chat",
        "scope": "tenant",
        "tenant": "acme",
        "freshness": "fresh",
        "asked_at": "2025-12-31T23:59:59.000Z",
        "stored_at": "2026-01-01T00:00:00.000Z",
        "age_s": 90,
        "soft_expires_at": "2026-01-01T00:30:00.000Z",
        "hard_expires_at": "2026-01-01T01:00:00.000Z",
        "kept_until": "2026-01-01T02:00:00.000Z",
        "size_bytes": len(SECRET),
        "kept_in": "row",
        "input_tokens": 10,
        "output_tokens": 20,
        "cost_nanos": 330_000,
        "vendor_request_id": "req_vendor_1",
        "refresh_queued_until": None,
        "refresh_cools_down_until": None,
        "refresh_job_id": None,
        "refresh_failures": 0,
        "refresh_error": None,
    }
    assert SECRET.decode() not in run("cache", "show", KEY).output


@pytest.mark.parametrize("given", [KEY, f"hit_{KEY}", JOB_ID])
def test_show_takes_a_key_a_hit_or_a_job(desk: Desk, given: str) -> None:
    desk.put(entry())

    result = run("cache", "show", given)

    assert result.exit_code == 0
    assert KEY in result.stdout


def test_show_finds_the_job_of_the_tenant_that_is_named(desk: Desk) -> None:
    desk.put(entry(), a_job(tenant="no-key"))

    unnamed = run("cache", "show", JOB_ID)

    assert unnamed.exit_code == 1
    assert "--tenant" in unnamed.output
    assert told("cache", "show", JOB_ID, "--tenant", "no-key")["cache_key"] == KEY


@pytest.mark.parametrize(
    ("age_s", "freshness"),
    [(0, "fresh"), (1799, "fresh"), (1800, "stale"), (3600, "expired"), (7200, "gone")],
)
def test_show_tells_how_fresh_it_is(
    desk: Desk, clock: FakeClock, age_s: int, freshness: str
) -> None:
    desk.put(entry())
    clock.advance(s=age_s)

    shown = told("cache", "show", KEY)

    assert (shown["freshness"], shown["age_s"]) == (freshness, age_s)


@pytest.mark.parametrize("there", [True, False])
def test_show_tells_where_a_big_result_is(desk: Desk, *, there: bool) -> None:
    desk.put(entry(result=Payload(ref="results/job_1/1")))
    if there:
        desk.payloads.put("results/job_1/1", b"x" * 5000)

    shown = told("cache", "show", KEY)

    assert shown["size_bytes"] == (5000 if there else None)
    assert shown["kept_in"].startswith("object results/job_1/1")
    assert ("gone" in shown["kept_in"]) is not there


def test_show_tells_of_a_refresh_that_is_queued(desk: Desk) -> None:
    desk.put(entry())
    desk.jobs.queue_refresh(a_refresh(cache_key=KEY), entry())

    shown = told("cache", "show", KEY)

    assert shown["refresh_queued_until"] == "2026-01-01T01:00:00.000Z"
    assert shown["refresh_job_id"] == a_refresh().job_id


def test_show_tells_of_refreshes_that_failed_until_they_may_be_tried_again(
    desk: Desk, clock: FakeClock
) -> None:
    desk.put(
        entry(
            refresh_after_epoch_ms=NOW_MS + 60_000,
            refresh_failures=2,
            refresh_error="vendor_timeout",
        )
    )

    cooling = told("cache", "show", KEY)
    clock.advance(s=60)
    over = told("cache", "show", KEY)

    assert cooling["refresh_cools_down_until"] == "2026-01-01T00:01:00.000Z"
    assert over["refresh_cools_down_until"] is None
    for shown in (cooling, over):
        assert (shown["refresh_failures"], shown["refresh_error"]) == (2, "vendor_timeout")


def test_show_of_nothing_says_so(desk: Desk) -> None:
    assert desk.world.entries == {}

    result = run("cache", "show", KEY)

    assert result.exit_code == 1
    assert "There is no entry." in result.stdout
    assert told("cache", "show", KEY, code=1)["state"] == "none"


def test_show_tells_when_the_key_was_invalidated(desk: Desk) -> None:
    desk.put(entry())
    desk.cache.invalidate(KEY, now_ms=NOW_MS + 1)

    shown = told("cache", "show", KEY, code=1)

    assert shown == {
        "cache_key": KEY,
        "state": "invalidated",
        "invalidated_at": "2026-01-01T00:00:00.001Z",
        "invalidated_by": f"key:{KEY}",
    }


@pytest.mark.parametrize(
    ("subject", "scope", "by"),
    [
        ("model:demo-chat", "tenant", "model:demo-chat"),
        ("model:demo-chat", "shared", "model:demo-chat"),
        ("tenant:acme", "tenant", "tenant:acme"),
        ("tenant:acme", "shared", None),
        ("model:heavy", "tenant", None),
        ("tenant:globex", "tenant", None),
    ],
)
def test_show_tells_of_an_entry_that_an_epoch_cut_off(
    desk: Desk, subject: str, scope: str, by: str | None
) -> None:
    desk.put(entry(scope=scope))
    desk.state.invalidate(subject, now_ms=NOW_MS + 1)

    shown = told("cache", "show", KEY, code=0 if by is None else 1)

    assert (shown["state"], shown["invalidated_by"]) == (
        ("entry", None) if by is None else ("invalidated", by)
    )
    assert shown["invalidated_at"] == (None if by is None else "2026-01-01T00:00:00.001Z")
    assert shown["model"] == "demo-chat"


def test_show_of_an_entry_that_was_asked_for_after_the_epoch_is_an_entry(desk: Desk) -> None:
    desk.put(entry())
    desk.state.invalidate("model:demo-chat", now_ms=entry().asked_at_epoch_ms - 1)

    assert told("cache", "show", KEY)["state"] == "entry"


@pytest.mark.parametrize(
    "given", ["", "c1_short", f"{KEY}A", f"{KEY}\n", "hit_job_1", f"j{KEY[1:]}", "job_", "x" * 999]
)
def test_show_refuses_what_is_no_key_and_no_job(desk: Desk, given: str) -> None:
    assert desk.local

    assert run("cache", "show", given).exit_code == 2


# ------------------------------------------------------------------------------------ invalidate


@pytest.mark.parametrize("option", ["model", "tenant"])
def test_invalidate_raises_the_epoch_and_says_so(desk: Desk, option: str) -> None:
    name = {"model": "demo-chat", "tenant": a_partner_key().tenant}[option]

    result = run("cache", "invalidate", f"--{option}", name)

    assert result.exit_code == 0
    assert desk.world.epochs == {f"{option}:{name}": NOW_MS}
    assert f"{option}:{name}" in result.stdout
    assert "within 5 s everywhere" in result.stdout
    assert result.stderr == ""


def test_invalidate_of_a_tenant_without_a_key_is_done_with_a_warning(desk: Desk) -> None:
    result = run("cache", "invalidate", "--tenant", "glubex")

    assert desk.world.epochs == {"tenant:glubex": NOW_MS}
    assert "look twice at the name" in result.stderr


def test_invalidate_in_json_tells_what_the_api_tells(desk: Desk) -> None:
    desk.put(entry())

    model = told("cache", "invalidate", "--model", "demo-chat")
    key = told("cache", "invalidate", "--key", KEY)

    at = "2026-01-01T00:00:00.000Z"
    assert model == {
        "object": "invalidation",
        "subject": "model:demo-chat",
        "at": at,
        "epoch": NOW_MS,
        "effective_within_s": 5,
    }
    assert key == {
        "object": "invalidation",
        "subject": f"key:{KEY}",
        "at": at,
        "found": True,
        "effective_within_s": 5,
    }


@pytest.mark.parametrize("given", [KEY, f"hit_{KEY}"])
def test_invalidate_replaces_the_entry_of_a_key(desk: Desk, given: str) -> None:
    desk.put(entry())

    first = run("cache", "invalidate", "--key", given)
    again = run("cache", "invalidate", "--key", given)

    assert desk.world.entries == {}
    assert desk.world.tombstones == {KEY: NOW_MS}
    assert "no entry" not in first.stdout
    assert "There was no entry" in again.stdout


def test_invalidation_is_on_record_as_the_login_of_who_did_it(desk: Desk) -> None:
    told("cache", "invalidate", "--model", "demo-chat")

    (record,) = desk.world.audit
    assert (record.actor, record.action) == ("user:ann", "cache.invalidate")
    assert record.subject == "model:demo-chat"
    assert record.request_id.startswith("cli-")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--model", "demo-chat", "--tenant", "acme"),
        ("--model", "demo-chat", "--key", KEY),
        ("--tenant", "Acme"),
        ("--tenant", ""),
        ("--model", "a b"),
        ("--key", "c1_short"),
        ("--key", JOB_ID),
    ],
    ids=" ".join,
)
def test_invalidate_takes_exactly_one_that_can_be_meant(
    desk: Desk, arguments: tuple[str, ...]
) -> None:
    result = run("cache", "invalidate", *arguments)

    assert result.exit_code == 2
    assert (desk.world.epochs, desk.world.tombstones, desk.world.audit) == ({}, {}, [])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("demo-chatt", "did you mean demo-chat or demo-chat-2?"),
        ("heavi", "did you mean heavy?"),
        ("zzz", "there are: demo-chat, demo-chat-2, heavy"),
    ],
)
def test_invalidate_refuses_a_model_that_the_catalogue_lacks(
    desk: Desk, name: str, hint: str
) -> None:
    result = run("cache", "invalidate", "--model", name)

    assert result.exit_code == 1
    assert hint in result.output
    assert (desk.world.epochs, desk.world.audit) == ({}, [])


# ------------------------------------------------------------------------------------ clocks


def date(ms: int) -> str:
    """As HTTP says it: in whole seconds."""
    return formatdate(ms // 1000, usegmt=True)


@pytest.mark.parametrize("subject", [("--model", "demo-chat"), ("--tenant", "x"), ("--key", KEY)])
@pytest.mark.parametrize(
    ("ahead_ms", "way"),
    [
        (-60_000, "60 s behind that of AWS"),
        (-6_000, "6 s behind that of AWS"),
        (-5_000, ""),
        (0, ""),
        (5_999, ""),  # AWS may be at the end of the second that it tells
        (7_000, "6 s ahead of that of AWS"),
        (3_601_000, "3600 s ahead of that of AWS"),
    ],
)
def test_invalidate_is_refused_with_a_clock_that_is_far_off(
    desk: Desk, subject: tuple[str, str], ahead_ms: int, way: str
) -> None:
    desk.aws.headers = {"date": date(NOW_MS)}
    desk.put(entry())
    assert isinstance(desk.clock, FakeClock)
    desk.clock.advance(ms=ahead_ms)

    result = run("cache", "invalidate", *subject)

    assert result.exit_code == (1 if way else 0)
    assert way in result.stderr
    assert bool(desk.world.audit) is not bool(way)
    assert bool(desk.world.epochs or desk.world.tombstones) is not bool(way)


@pytest.mark.parametrize(("ahead_s", "expected_s"), [(600, 1), (-600, 0), (0, 0)])
def test_times_that_functions_compare_are_told_by_the_clock_of_aws(
    clock: FakeClock, ahead_s: int, expected_s: int
) -> None:
    aws = Replies({"date": date(NOW_MS)})
    clock.advance(s=ahead_s)
    table = Table(aws)  # type: ignore[arg-type]
    target = Target("", outputs={"CoordinationTableName": "c"}, clock=clock)
    target.__dict__["_table"] = table

    told_ms = target.aws_clock.now_ms()

    assert abs(told_ms - NOW_MS) <= expected_s * 1000


@pytest.mark.parametrize("headers", [{}, {"date": ""}, {"date": "yesterday"}], ids=str)
def test_invalidate_goes_on_where_nobody_tells_the_time(
    desk: Desk, headers: dict[str, str]
) -> None:
    desk.aws.headers = headers

    assert run("cache", "invalidate", "--model", "demo-chat").exit_code == 0
    assert desk.world.epochs


def test_reply_that_takes_long_is_no_sign_of_a_clock_that_is_off(desk: Desk) -> None:
    assert isinstance(desk.clock, FakeClock)
    clock = desk.clock
    desk.aws.takes = lambda: clock.advance(s=20)
    for told_ms in (NOW_MS, NOW_MS + 40_000):
        clock.set(NOW_MS + 20_000 if told_ms > NOW_MS else NOW_MS)
        desk.aws.headers = {"date": date(told_ms)}

        assert run("cache", "invalidate", "--model", "demo-chat").exit_code == 0


def test_refusal_tells_the_time_as_well(desk: Desk) -> None:
    desk.aws.error = ClientError(
        {
            "Error": {"Code": "AccessDeniedException", "Message": "no"},
            "ResponseMetadata": {"HTTPHeaders": {"date": date(NOW_MS - 60_000)}},  # type: ignore[typeddict-item]
        },
        "GetItem",
    )

    assert "59 s ahead of" in run("cache", "invalidate", "--model", "demo-chat").stderr
    desk.aws.error = EndpointConnectionError(endpoint_url=EMULATOR)
    assert run("cache", "invalidate", "--model", "demo-chat").exit_code == 1
    assert desk.world.epochs == {}


# ------------------------------------------------------------------------------------ Valkey


@pytest.fixture
def with_valkey(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The same world, as a stack whose entries are in Valkey."""
    made = replace(desk, outputs={**desk.outputs, "CacheBackend": "valkey"})
    at_desk(monkeypatch, made)
    return made


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "arguments",
    [("show", KEY), ("show", f"hit_{KEY}"), ("show", JOB_ID), ("invalidate", "--key", KEY)],
    ids=" ".join,
)
def test_entry_in_a_valkey_that_the_command_cannot_reach_is_refused_plainly(
    with_valkey: Desk, arguments: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    with_valkey.put(entry())

    result = run("cache", *arguments, *as_json)

    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    reason = json.loads(result.stdout)["error"]["detail"] if as_json else result.stderr[7:]
    assert reason.startswith("the entries are in Valkey")
    assert (with_valkey.world.audit, with_valkey.world.tombstones) == ([], {})
    assert list(with_valkey.world.entries) == [KEY]


@pytest.mark.parametrize(("option", "name"), [("model", "demo-chat"), ("tenant", "globex")])
def test_epochs_of_a_stack_with_valkey_are_raised_all_the_same(
    with_valkey: Desk, option: str, name: str
) -> None:
    told("cache", "invalidate", f"--{option}", name)

    assert with_valkey.world.epochs == {f"{option}:{name}": NOW_MS}
    assert with_valkey.done == [("cache.invalidate", f"{option}:{name}")]


def test_entry_of_a_stack_that_says_dynamodb_is_shown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_desk(monkeypatch, replace(desk, outputs={**desk.outputs, "CacheBackend": "dynamodb"}))
    desk.put(entry())

    assert told("cache", "show", KEY)["state"] == "entry"


# ------------------------------------------------------------------------------------ who


@mock_aws
def test_actor_on_aws_is_who_calls_there(on_aws: Desk) -> None:
    told("cache", "invalidate", "--tenant", "acme")

    (record,) = on_aws.world.audit
    assert record.actor.startswith("aws:arn:aws:sts::123456789012:")


class WithoutIdentity:
    def get_caller_identity(self) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "Any")


@pytest.mark.parametrize("error", ["client", "answer"])
def test_actor_that_aws_does_not_tell_is_the_login(
    on_aws: Desk, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def client(*_: object) -> WithoutIdentity:
        if error == "client":
            raise NoCredentialsError
        return WithoutIdentity()

    monkeypatch.setattr(Target, "client", client)

    assert on_aws.actor == "user:ann"


def test_actor_without_an_account_is_unknown(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)

    assert desk.actor == "user:unknown"


# ------------------------------------------------------------------------------------ records


def test_making_a_key_is_on_record_once_and_without_the_key(desk: Desk) -> None:
    made = told("keys", "create", "globex")

    (record,) = desk.world.audit
    assert (record.actor, record.action) == ("user:ann", "key.create")
    assert record.subject == f"key:{made['key_id']}"
    assert made["key"] not in repr(record)


def test_revoking_a_key_is_on_record_and_again_is_not(desk: Desk) -> None:
    key_id = a_partner_key().key_id

    told("keys", "revoke", key_id)
    told("keys", "revoke", key_id)

    assert desk.done == [("key.revoke", f"key:{key_id}")]


def test_revoking_a_key_that_is_not_there_is_not_on_record(desk: Desk) -> None:
    assert run("keys", "revoke", "key_unknown").exit_code == 1

    assert desk.world.audit == []


def test_listing_and_showing_is_not_on_record(desk: Desk) -> None:
    desk.put(entry())

    for command in (("keys", "list"), ("cache", "show", KEY), ("audit",)):
        told(*command)

    assert desk.world.audit == []


@pytest.fixture
def api(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partner API: cancels every job that is there."""

    def answer(request: httpx.Request) -> httpx.Response:
        job_id = request.url.path.split("/")[-2]
        if ("acme", job_id) not in desk.world.jobs:
            return httpx.Response(404, json={"code": "job_not_found", "detail": "No."})
        return httpx.Response(200, json={"id": job_id, "status": "cancelled"})

    monkeypatch.setattr(
        "sluiceway_cli.console.partner_api",
        lambda *_: Api(EMULATOR, "swk_x", transport=httpx.MockTransport(answer)),
    )


@pytest.mark.usefixtures("api")
def test_cancelling_a_job_is_on_record_and_again_is_not(desk: Desk) -> None:
    desk.world.jobs["acme", JOB_ID] = a_job()
    told("jobs", "cancel", JOB_ID)
    desk.world.jobs["acme", JOB_ID] = completed(a_job())

    told("jobs", "cancel", JOB_ID)

    assert desk.done == [("job.cancel", f"job:{JOB_ID}")]


@pytest.mark.usefixtures("api")
def test_cancel_that_was_refused_is_not_on_record(desk: Desk) -> None:
    assert run("jobs", "cancel", JOB_ID).exit_code == 1

    assert desk.world.audit == []


@pytest.mark.usefixtures("api")
def test_partner_without_the_stack_cancels_without_a_record(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.world.jobs["acme", JOB_ID] = a_job()
    at_desk(monkeypatch, replace(desk, outputs={}))

    told("jobs", "cancel", JOB_ID)

    assert desk.world.audit == []


class BusyAudit(InMemoryAudit):
    def add(self, _: AuditRecord) -> None:
        raise StoreBusyError("The tables are busy.", retry_after_s=1)


def test_what_was_done_counts_though_its_record_could_not_be_written(desk: Desk) -> None:
    desk.__dict__["audit"] = BusyAudit(desk.world)

    result = run("keys", "create", "globex", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["key"].startswith("swk_")
    assert "Not on record: key.create" in result.stderr


def test_invalidation_that_cannot_be_put_on_record_is_not_done(desk: Desk) -> None:
    desk.__dict__["audit"] = BusyAudit(desk.world)

    assert run("cache", "invalidate", "--model", "demo-chat").exit_code == 1
    assert desk.world.epochs == {}


# ------------------------------------------------------------------------------------ audit


def on_record(desk: Desk, *ages_s: int) -> None:
    for age_s in ages_s:
        desk.audit.add(
            AuditRecord(NOW_MS - age_s * 1000, "user:ann", "key.create", f"key:{age_s}", "cli-1")
        )


def subjects(*arguments: str) -> list[str]:
    return [record["subject"] for record in told("audit", *arguments)["records"]]


def test_audit_lists_who_did_what_newest_first(desk: Desk) -> None:
    on_record(desk, 60, 0)

    found = told("audit")

    assert found["complete"] is True
    assert found["records"][0] == {
        "at": "2026-01-01T00:00:00.000Z",
        "actor": "user:ann",
        "action": "key.create",
        "subject": "key:0",
        "request_id": "cli-1",
    }
    assert [record["subject"] for record in found["records"]] == ["key:0", "key:60"]
    assert run("audit").stdout.splitlines() == [
        "2026-01-01T00:00:00.000Z  user:ann  key.create  key:0  cli-1",
        "2025-12-31T23:59:00.000Z  user:ann  key.create  key:60  cli-1",
    ]


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("7d", ["key:60", "key:86400", "key:604800"]),
        ("1d", ["key:60", "key:86400"]),
        ("23h", ["key:60"]),
        ("0d", []),
        ("2026-01-01", []),
        ("2025-12-31", ["key:60", "key:86400"]),
        ("2025-12-31T23:00:00Z", ["key:60"]),
        ("2026-01-01T00:30:00+01:00", ["key:60"]),
        ("1999-01-01", ["key:60", "key:86400", "key:604800"]),
    ],
)
def test_audit_begins_where_it_is_told(desk: Desk, since: str, expected: list[str]) -> None:
    on_record(desk, 60, 86_400, 604_800)

    assert subjects("--since", since) == expected


@pytest.mark.parametrize("since", ["", "yesterday", "7", "7w", "-7d", "2026-13-01", "9" * 30])
def test_audit_refuses_what_is_no_time(desk: Desk, since: str) -> None:
    assert desk.local

    assert run("audit", "--since", since).exit_code == 2


def test_audit_without_a_beginning_has_all_that_is_kept(desk: Desk) -> None:
    on_record(desk, 0, 400 * 86_400, 400 * 86_400 + 1)

    assert subjects() == ["key:0", f"key:{400 * 86_400}"]


def test_audit_has_records_of_a_clock_that_is_ahead(desk: Desk) -> None:
    on_record(desk, -600)

    assert subjects("--since", "1h") == ["key:-600"]


def test_audit_says_when_its_limit_cut_it_short(desk: Desk) -> None:
    on_record(desk, 1, 2, 3)

    assert told("audit", "--limit", "3")["complete"] is True
    cut = told("audit", "--limit", "2")
    assert ([one["subject"] for one in cut["records"]], cut["complete"]) == (
        ["key:1", "key:2"],
        False,
    )
    assert "the newest 2" in run("audit", "--limit", "2").stderr


def test_audit_of_nothing_says_so(desk: Desk) -> None:
    assert desk.world.audit == []

    assert run("audit").stdout == "There are no records.\n"
    assert told("audit") == {"records": [], "complete": True}
