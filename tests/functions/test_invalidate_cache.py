"""Invalidation: the route of administrators, and the event of other programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.bootstrap import InvalidateDeps
from sluiceway.domain.errors import ModelNotFoundError, ValidationFailedError
from sluiceway.ports import AuditRecord
from sluiceway.usecases.invalidate_cache import Invalidator

from functions.invalidate_cache import app
from tests.fakes.in_memory import NOW_MS
from tests.functions.stage import ABSENT, Answer, Stage, request, sample
from tests.unit.logs import a_context, log_lines, output
from tests.unit.samples import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/admin/cache/invalidate"
ADMIN = "submit read admin"
KEY = "c1_" + "A" * 43


def invalidate(
    stage: Stage, body: Any = ABSENT, *, raw: str | None = None, scopes: str = ADMIN, **changes: Any
) -> Answer:
    """Asks as an administrator's key does."""
    event = request("POST", PATH, scopes=scopes, **changes)
    event["body"] = json.dumps(body) if raw is None else raw
    return stage.answer(event)


def assert_refused(stage: Stage, answer: Answer, status: int, code: str) -> None:
    """The problem, and nothing done."""
    assert (answer.status, answer.body["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (stage.world.epochs, stage.world.tombstones, stage.world.audit) == ({}, {}, [])


def a_hit(stage: Stage, text: str = "hello") -> str:
    """Submits, runs, and gives the cache key of what is a hit from then on."""
    job_id = stage.submit(text).body["id"]
    stage.run_job(job_id)
    hit: str = stage.submit(text).body["id"]
    assert hit.startswith("hit_")
    return hit.removeprefix("hit_")


# ------------------------------------------------------------------------------------ the route


@pytest.mark.parametrize("subject", ["model", "tenant", "key"])
def test_what_was_a_hit_is_a_miss(stage: Stage, subject: str) -> None:
    key = a_hit(stage)
    stage.clock.advance(s=1)

    name = {"model": "demo-chat", "tenant": "acme", "key": key}[subject]
    answer = invalidate(stage, {subject: name})
    again = stage.submit("hello")
    by_id = stage.get(f"hit_{key}")

    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert (again.status, again.body["cache"]["status"]) == (202, "miss")
    assert (by_id.status, by_id.body["code"]) == (404, "job_not_found")


@pytest.mark.parametrize("body", [{"model": "demo-chat"}, {"tenant": "globex"}])
def test_answer_tells_the_new_epoch(stage: Stage, body: dict[str, str]) -> None:
    answer = invalidate(stage, body)

    ((kind, name),) = body.items()
    assert answer.body == {
        "object": "invalidation",
        "subject": f"{kind}:{name}",
        "at": "2026-01-01T00:00:00.000Z",
        "epoch": NOW_MS,
    }
    assert stage.world.epochs == {f"{kind}:{name}": NOW_MS}


def test_answer_tells_whether_the_key_had_an_entry(stage: Stage) -> None:
    key = a_hit(stage)

    answers = [invalidate(stage, {"key": key}).body for _ in range(2)]

    assert [answer["found"] for answer in answers] == [True, False]
    assert all("epoch" not in answer for answer in answers)
    assert stage.world.tombstones == {key: NOW_MS}


def test_other_tenants_entries_stay_when_one_tenant_is_invalidated(stage: Stage) -> None:
    a_hit(stage)

    invalidate(stage, {"tenant": "globex"})

    assert stage.submit("hello").body["cache"]["status"] == "hit"


def test_invalidation_is_on_record_with_the_key_that_asked(stage: Stage) -> None:
    event = request("POST", PATH, scopes=ADMIN)
    event["body"] = json.dumps({"model": "demo-chat"})
    event["requestContext"]["authorizer"]["key_id"] = "key_of_ann"

    stage.answer(event)

    assert stage.world.audit == [
        AuditRecord(NOW_MS, "key:key_of_ann", "cache.invalidate", "model:demo-chat", "gateway-1")
    ]


def test_invalidation_is_told_without_what_was_cached(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    invalidate(stage, {"model": "demo-chat"})

    told = [line for line in log_lines(output(capsys)) if line["message"] == "cache_invalidated"]
    assert [line["subject"] for line in told] == ["model:demo-chat"]


@pytest.mark.parametrize("scopes", ["", "submit read cancel bypass", "Admin", "administrator"])
def test_key_without_the_scope_admin_is_refused(stage: Stage, scopes: str) -> None:
    answer = invalidate(stage, {"model": "demo-chat"}, scopes=scopes)

    assert_refused(stage, answer, 403, "forbidden")


def test_scope_admin_alone_is_enough(stage: Stage) -> None:
    assert invalidate(stage, {"model": "demo-chat"}, scopes="admin").status == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "demo-chat", "tenant": "acme"},
        {"model": "demo-chat", "key": KEY},
        {"model": "demo-chat", "tenant": "acme", "key": KEY},
        {"model": None},
        {"model": ""},
        {"model": "Demo"},
        {"model": 1},
        {"model": ["demo-chat"]},
        {"tenant": "a b"},
        {"tenant": "a" * 64},
        {"tenant": "acme\n"},
        {"key": "c1_short"},
        {"key": f"hit_{KEY}"},
        {"key": f"{KEY}\n"},
        {"model": "demo-chat", "reason": "none"},
        {"everything": True},
        [],
        "demo-chat",
        None,
    ],
    ids=repr,
)
def test_body_names_exactly_one_of_them(stage: Stage, body: Any) -> None:
    assert_refused(stage, invalidate(stage, body), 422, "validation_failed")


@pytest.mark.parametrize("raw", ["", "{", '{"model": "a", "model": "b"}'])
def test_body_that_is_no_strict_json_is_refused(stage: Stage, raw: str) -> None:
    assert_refused(stage, invalidate(stage, raw=raw), 400, "invalid_request")


def test_unknown_model_is_not_found(stage: Stage) -> None:
    assert_refused(stage, invalidate(stage, {"model": "demo-chatt"}), 404, "model_not_found")


def test_parameter_is_refused(stage: Stage) -> None:
    answer = invalidate(stage, {"model": "demo-chat"}, query={"dry_run": "true"})

    assert_refused(stage, answer, 400, "invalid_request")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
def test_route_has_no_other_method(stage: Stage, method: str) -> None:
    event = request(method, PATH, scopes=ADMIN)
    event["body"] = json.dumps({"model": "demo-chat"})

    answer = stage.answer(event)

    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert stage.world.epochs == {}


@pytest.mark.parametrize("path", ["/admin", "/admin/cache", "/admin/cache/invalidate/x"])
def test_paths_around_it_are_not_found(stage: Stage, path: str) -> None:
    answer = stage.answer(request("POST", path, scopes=ADMIN))

    assert (answer.status, answer.body["code"]) == (404, "route_not_found")


# ------------------------------------------------------------------------------------ the event


@pytest.fixture
def take(stage: Stage) -> Callable[[dict[str, Any]], None]:
    """The function, on the stage."""

    def handle(event: dict[str, Any]) -> None:
        invalidator = Invalidator(
            stage.cache, stage.state, stage.audit, stage.clock, stage.telemetry
        )
        context = a_context(aws_request_id="lambda-inv", function_name="invalidate_cache")
        app.handle(event, context, InvalidateDeps(invalidator, CATALOGUE, stage.telemetry))

    return handle


def an_event(**detail: Any) -> dict[str, Any]:
    return sample("invalidate_cache") | {"detail": detail}


def test_sample_event_raises_the_epoch(
    stage: Stage, take: Callable[[dict[str, Any]], None]
) -> None:
    a_hit(stage)

    take(sample("invalidate_cache"))

    event_id = sample("invalidate_cache")["id"]
    assert stage.world.epochs == {"model:demo-chat": NOW_MS}
    assert stage.submit("hello").body["cache"]["status"] == "miss"
    assert stage.world.audit == [
        AuditRecord(NOW_MS, f"event:{event_id}", "cache.invalidate", "model:demo-chat", event_id)
    ]


def test_event_may_name_a_tenant_or_a_key(
    stage: Stage, take: Callable[[dict[str, Any]], None]
) -> None:
    key = a_hit(stage)

    take(an_event(tenant="globex"))
    take(an_event(key=key))

    assert stage.world.epochs == {"tenant:globex": NOW_MS}
    assert stage.world.tombstones == {key: NOW_MS}


def test_event_that_comes_again_does_it_again(
    stage: Stage, take: Callable[[dict[str, Any]], None]
) -> None:
    take(sample("invalidate_cache"))
    take(sample("invalidate_cache"))

    assert stage.world.epochs == {"model:demo-chat": NOW_MS + 1}
    assert len(stage.world.audit) == 1


@pytest.mark.parametrize(
    "detail",
    [None, "demo-chat", [], {}, {"model": "demo-chat", "tenant": "acme"}, {"models": "x"}],
    ids=repr,
)
def test_detail_that_cannot_be_followed_raises_for_the_failure_queue(
    stage: Stage, take: Callable[[dict[str, Any]], None], detail: Any
) -> None:
    with pytest.raises(ValidationFailedError):
        take(sample("invalidate_cache") | {"detail": detail})
    assert (stage.world.epochs, stage.world.audit) == ({}, [])


def test_event_that_names_a_model_that_is_not_there_raises_for_the_failure_queue(
    stage: Stage, take: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises(ModelNotFoundError):
        take(an_event(model="demo-chatt"))
    assert (stage.world.epochs, stage.world.audit) == ({}, [])


def test_event_without_a_detail_raises(take: Callable[[dict[str, Any]], None]) -> None:
    event = sample("invalidate_cache")
    del event["detail"]

    with pytest.raises(ValidationFailedError):
        take(event)
