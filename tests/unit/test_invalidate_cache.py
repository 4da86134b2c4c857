"""Invalidation: of a model, of a tenant or of one key, on record before it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.errors import StoreBusyError, ValidationFailedError
from sluiceway.domain.request import InvalidateRequest, parse_invalidation
from sluiceway.ports import AuditRecord
from sluiceway.usecases.invalidate_cache import (
    Invalidated,
    Invalidation,
    Invalidator,
    invalidate_cache,
)
from sluiceway.usecases.submit_job import Accepted

from tests.fakes.in_memory import NOW_MS, InMemoryAudit, InMemoryCache, RecordingTelemetry
from tests.unit.bench import Bench
from tests.unit.gateway import Gateway

if TYPE_CHECKING:
    from sluiceway.domain.job import Job

NAMES = ["model", "tenant", "key"]
KEY = "c1_" + "k" * 43


class Desk:
    """The use case beside readers and a worker, with one entry of acme's."""

    def __init__(self) -> None:
        self.gateway = Gateway()
        self.bench = Bench(world=self.gateway.world, clock=self.gateway.clock)
        self.telemetry = RecordingTelemetry()
        self.audit = InMemoryAudit(self.gateway.world)
        self.first: Job = self.gateway.accept()
        self.bench.run(self.first)
        self.gateway.clock.advance(s=1)

    def invalidate(
        self, kind: Literal["model", "tenant", "key"], name: str, *, request_id: str = "req-7"
    ) -> Invalidated:
        return invalidate_cache(
            Invalidation(kind, name),
            actor="key:key_1",
            request_id=request_id,
            invalidator=Invalidator(
                cache=self.gateway.cache,
                state=self.gateway.state,
                audit=self.audit,
                clock=self.gateway.clock,
                telemetry=self.telemetry,
            ),
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ------------------------------------------------------------------ what is gone


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_invalidated_is_served_no_more_and_asked_anew(desk: Desk, kind: Any) -> None:
    name = {"model": "demo-chat", "tenant": "acme", "key": desk.first.cache_key}[kind]

    desk.invalidate(kind, name)
    desk.gateway.clock.advance(s=1)

    again = desk.gateway.accept()
    desk.bench.run(again)
    assert desk.bench.vendors.total == 2
    assert desk.gateway.hit().entry.stored_at_epoch_ms == desk.gateway.clock.now_ms()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("model", "demo-heavy"), ("tenant", "globex"), ("key", "c1_" + "x" * 43)],
)
def test_what_is_not_invalidated_is_served_as_ever(desk: Desk, kind: Any, name: str) -> None:
    desk.invalidate(kind, name)

    assert desk.gateway.hit().entry.cache_key == desk.first.cache_key


@pytest.mark.parametrize("kind", NAMES)
def test_job_that_was_open_completes_and_is_not_served(desk: Desk, kind: Any) -> None:
    open_job = desk.gateway.accept(input="open")
    name = {"model": "demo-chat", "tenant": "acme", "key": open_job.cache_key}[kind]
    desk.invalidate(kind, name)

    desk.bench.run(open_job)

    assert desk.gateway.fetch(open_job.job_id).result is not None
    assert isinstance(desk.gateway.submit(input="open"), Accepted)


@pytest.mark.parametrize("kind", ["model", "tenant"])
def test_epoch_grows_each_time_even_when_the_clock_does_not(desk: Desk, kind: Any) -> None:
    epochs = [desk.invalidate(kind, "demo-chat").epoch or 0 for _ in range(3)]
    desk.gateway.clock.set(NOW_MS - 60_000)
    epochs.append(desk.invalidate(kind, "demo-chat").epoch or 0)

    assert epochs == sorted(set(epochs))


# ------------------------------------------------------------------ what is told


def test_invalidation_of_an_epoch_tells_the_new_one(desk: Desk) -> None:
    done = desk.invalidate("model", "demo-chat")

    assert done == Invalidated("model:demo-chat", NOW_MS + 1_000, NOW_MS + 1_000, None)


@pytest.mark.parametrize("there", [True, False])
def test_invalidation_of_a_key_tells_whether_it_was_there(desk: Desk, *, there: bool) -> None:
    key = desk.first.cache_key if there else KEY

    assert desk.invalidate("key", key) == Invalidated(f"key:{key}", NOW_MS + 1_000, None, there)


def test_invalidation_may_be_repeated(desk: Desk) -> None:
    assert [desk.invalidate("key", desk.first.cache_key).found for _ in range(2)] == [True, False]
    assert len(desk.gateway.world.audit) == 1


def test_invalidation_is_on_record_with_who_did_it(desk: Desk) -> None:
    desk.invalidate("tenant", "acme")

    assert desk.gateway.world.audit == [
        AuditRecord(NOW_MS + 1_000, "key:key_1", "cache.invalidate", "tenant:acme", "req-7")
    ]
    assert desk.telemetry.events == [("cache_invalidated", None, {"subject": "tenant:acme"})]


def test_invalidation_that_fails_is_on_record_and_not_told_as_done(desk: Desk) -> None:
    class Busy(InMemoryCache):
        def invalidate(self, cache_key: str, *, now_ms: int) -> NoReturn:
            raise StoreBusyError(f"{cache_key} at {now_ms}", retry_after_s=1)

    desk.gateway.cache = Busy(desk.gateway.world)

    with pytest.raises(StoreBusyError):
        desk.invalidate("key", KEY)

    assert [record.subject for record in desk.gateway.world.audit] == [f"key:{KEY}"]
    assert desk.telemetry.names == []


# ------------------------------------------------------------------ the request


@pytest.mark.parametrize("name", NAMES)
def test_request_names_one_thing(name: str) -> None:
    value = KEY if name == "key" else "demo-chat"

    assert parse_invalidation({name: value}) == InvalidateRequest.model_validate({name: value})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"model": None},
        {"model": "a", "tenant": "b"},
        {"model": "a", "key": KEY},
        {"model": "a", "tenant": "b", "key": KEY},
        {"model": ""},
        {"model": "Demo"},
        {"model": "a\n"},
        {"tenant": "x" * 64},
        {"tenant": "refresh#c1"},
        {"tenant": 7},
        {"key": f"hit_{KEY}"},
        {"key": KEY[:-1]},
        {"key": KEY + "k"},
        {"key": KEY + "\n"},
        {"key": "j1_" + "k" * 43},
        {"all": True},
        {"model": "a", "all": True},
        [],
        None,
        "model",
    ],
    ids=repr,
)
def test_request_that_names_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ValidationFailedError):
        parse_invalidation(value)


def test_refusal_repeats_no_text_of_the_request() -> None:
    with pytest.raises(ValidationFailedError) as caught:
        parse_invalidation({"model": "Hunter2!", "tenant": "Hunter2!"})

    assert "unter2" not in str(caught.value) + repr(caught.value.errors)
    assert {fault["field"] for fault in caught.value.errors} == {"model", "tenant"}


@given(st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=3))
def test_request_of_any_json_is_taken_or_refused(value: Any) -> None:
    for name in NAMES:
        try:
            parse_invalidation({name: value})
        except ValidationFailedError:
            continue
