"""Idempotency-Key, on the fake and on Powertools' own store of records."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    BasePersistenceLayer,
    DynamoDBPersistenceLayer,
)
from moto import mock_aws
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.job import JobStatus
from sluiceway.ports import VendorAnswer

from tests.fakes.in_memory import InMemoryPayloads
from tests.functions.stage import Stage, end, request
from tests.unit.samples import written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.functions.stage import Answer

BODY = {"model": "demo-chat", "input": "hello"}


@pytest.fixture(params=["in_memory", "dynamodb"])
def stage(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Stage]:
    if request.param == "in_memory":
        yield stage
        return
    with mock_aws():
        client: Any = boto3.client("dynamodb", region_name="us-east-1")
        name = f"idempotency-{secrets.token_hex(4)}"
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        stage.idempotency = DynamoDBPersistenceLayer(table_name=name, boto3_client=client)
        yield stage


def post(stage: Stage, key: object = "key-1", body: Any = None, **changes: Any) -> Answer:
    headers = {"Idempotency-Key": key} | changes.pop("headers", {})
    return stage.post(BODY | (body or {}), headers=headers, **changes)


def records_of(stage: Stage) -> Any:
    """All that is stored."""
    if isinstance(stage.idempotency, DynamoDBPersistenceLayer):
        layer = stage.idempotency
        return layer.client.scan(TableName=layer.table_name)["Items"]
    return [vars(record) for record in stage.world.idempotency.values()]


def allow(stage: Stage, **limits: int) -> None:
    stage.catalogue = stage.catalogue.model_copy(update={"tenants": {"acme": Tenant(**limits)}})


def replayed(answer: Answer) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


def test_same_request_again_is_the_first_answer(stage: Stage) -> None:
    first = post(stage)

    second = post(stage)

    assert (first.status, second.status) == (202, 202)
    assert second.body["id"] == first.body["id"]
    assert [replayed(first), replayed(second)] == [False, True]
    assert second.headers["location"] == first.headers["location"]
    assert len(stage.sent) == 1


def test_replay_tells_the_job_as_it_is_now(stage: Stage) -> None:
    first = post(stage, body={"cache": {"mode": "bypass"}}, scopes="submit read bypass")
    stage.run_job(first.body["id"])

    second = post(stage, body={"cache": {"mode": "bypass"}}, scopes="submit read bypass")

    assert second.body["id"] == first.body["id"]
    assert (second.status, second.body["status"]) == (202, "completed")
    assert second.body["result"]["text"]
    assert replayed(second)


def test_address_of_a_result_is_signed_when_it_is_asked_for(stage: Stage) -> None:  # case Z02
    class Signing(InMemoryPayloads):
        def url(self, name: str) -> str:
            return f"{super().url(name)}?signed_at={stage.clock.now_ms()}"

    stage.payloads = Signing(stage.world)
    stage.vendor.default = VendorAnswer("é" * (1024 * 1024), "stop", 1, 1, 1)
    job_id = post(stage).body["id"]
    stage.run_job(job_id)
    asked = stage.get, lambda _: post(stage), lambda _: stage.submit()

    for _ in range(2):
        urls = [ask(job_id).body["result_url"] for ask in asked]

        assert {url.partition("?")[2] for url in urls} == {f"signed_at={stage.clock.now_ms()}"}
        stage.clock.advance(s=1800)  # twice as long as a signature is good for
    assert "signed_at" not in repr((stage.world, stage.sent, records_of(stage)))


def test_replay_waits_when_it_is_asked_to(stage: Stage) -> None:
    first = post(stage)
    stage.run_job(first.body["id"])

    second = post(stage, headers={"Prefer": "wait=5"})

    assert (second.status, second.body["status"]) == (200, "completed")
    assert replayed(second)


def test_replay_of_a_hit_is_the_entry(stage: Stage) -> None:
    stage.run_job(stage.submit().body["id"])
    first = post(stage)
    assert first.body["id"].startswith("hit_")

    second = post(stage)

    assert (second.status, second.body["id"]) == (200, first.body["id"])
    assert second.body["result"] == first.body["result"]
    assert replayed(second)


def test_replay_of_a_hit_whose_entry_is_gone_is_answered_anew(stage: Stage) -> None:
    stage.run_job(stage.submit().body["id"])
    assert post(stage).body["id"].startswith("hit_")
    stage.world.entries.clear()

    again = post(stage)
    at_once = post(stage)
    stage.run_job(again.body["id"])
    later = post(stage)

    assert (again.status, again.body["status"], again.body["deduplicated"]) == (
        202,
        "queued",
        False,
    )
    assert not replayed(again)
    assert (at_once.body["id"], at_once.body["deduplicated"]) == (again.body["id"], True)
    assert (later.status, later.body["status"]) == (200, "completed")


def test_members_in_another_order_are_the_same_body(stage: Stage) -> None:
    first = post(stage)

    text = '{ "input" : "hello",\n "model": "demo-chat" }'
    second = stage.post(raw=text, headers={"Idempotency-Key": "key-1"})

    assert second.body["id"] == first.body["id"]
    assert replayed(second)


@pytest.mark.parametrize(
    "other", [{"input": "bye"}, {"metadata": {"a": "b"}}, {"options": {"seed": 1}}]
)
@pytest.mark.parametrize("how_far", ["queued", "completed", "failed"])
def test_other_body_is_refused(stage: Stage, other: dict[str, Any], how_far: str) -> None:
    first = post(stage)
    if how_far == "completed":
        stage.run_job(first.body["id"])
    elif how_far == "failed":
        end(stage, first.body["id"], status=JobStatus.FAILED)

    second = post(stage, body=other)

    assert (second.status, second.body["code"]) == (422, "idempotency_key_reused")
    assert second.body["retryable"] is False
    assert len(stage.sent) == 1


def test_request_beside_the_first_is_told_to_come_again(stage: Stage) -> None:
    answers: list[Answer] = []
    take = stage.queue.send

    def send(*args: Any, **named: Any) -> bool:
        if not answers:
            answers.append(post(stage))
        return take(*args, **named)

    stage.queue.send = send  # type: ignore[method-assign]

    first = post(stage)

    assert first.status == 202
    assert (answers[0].status, answers[0].body["code"]) == (409, "idempotency_in_progress")
    assert answers[0].body["retryable"] is True
    assert answers[0].headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("key", "good"),
    [
        ("k", True),
        ("k" * 255, True),
        ('"quoted"', True),
        ("a/b#c:d", True),
        ("", False),
        ('""', False),
        ("k" * 256, False),
        ("k" * 1000, False),
        ("with space", False),
        ("line\nend", False),
        ("ключ", False),
        ("tab\there", False),
    ],
)
def test_form_of_the_key_is_checked(stage: Stage, key: str, good: bool) -> None:  # noqa: FBT001
    answer = post(stage, key)

    if good:
        assert answer.status == 202
    else:
        assert (answer.status, answer.body["code"]) == (400, "invalid_request")
        assert "Idempotency-Key" in answer.body["detail"]
        assert written(stage.world) == {}


def test_two_keys_are_refused(stage: Stage) -> None:
    event = request("POST", "/jobs", headers={"Idempotency-Key": "a"})
    event["multiValueHeaders"]["Idempotency-Key"] = ["a", "b"]

    answer = stage.answer(event)

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


def test_quotes_are_no_part_of_the_key(stage: Stage) -> None:
    first = post(stage, "abc")

    assert replayed(post(stage, '"abc"'))
    assert first.status == 202


def test_case_is_part_of_the_key(stage: Stage) -> None:
    post(stage, "abc")

    other = post(stage, "ABC", {"input": "other"})

    assert other.status == 202
    assert not replayed(other)


def test_key_of_another_tenant_is_another_key(stage: Stage) -> None:
    first = post(stage)

    theirs = post(stage, tenant="globex")

    assert theirs.status == 202
    assert theirs.body["id"] != first.body["id"]
    assert not replayed(theirs)


def test_refused_request_keeps_no_record(stage: Stage) -> None:
    allow(stage, in_flight=1)
    blocker = stage.submit("other").body["id"]
    refused = post(stage)
    assert refused.status == 429
    stage.run_job(blocker)

    again = post(stage)

    assert again.status == 202
    assert not replayed(again)


def test_replays_are_not_limited(stage: Stage) -> None:
    allow(stage, requests_per_minute=1)
    first = post(stage)
    assert stage.submit("other").status == 429

    again = [post(stage) for _ in range(3)]

    assert [answer.status for answer in again] == [202] * 3
    assert again[0].headers["ratelimit"] == first.headers["ratelimit"]


def test_bad_body_is_refused_before_the_key_is_looked_at(stage: Stage) -> None:
    bad = stage.post(raw="{", headers={"Idempotency-Key": "key-1"})
    assert bad.status == 400

    good = post(stage)

    assert good.status == 202
    assert not replayed(good)


def test_dry_run_uses_up_no_key(stage: Stage) -> None:
    asked = post(stage, query={"dry_run": "true"})
    assert asked.status == 200

    assert not replayed(post(stage, body={"input": "other"}))


def test_record_holds_no_text_of_the_body(stage: Stage) -> None:
    post(stage, "marked-key", body={"input": "marked prompt"})

    told = json.dumps(records_of(stage))

    assert "marked" not in told
    assert "job_" in told


class _Broken(BasePersistenceLayer):
    """Fails in the write of this name."""

    def __init__(self, layer: BasePersistenceLayer, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer, self._name = layer, name

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in {"_put_record", "_update_record", "_delete_record", "_get_record"}:
            if name == own["_name"]:
                raise RuntimeError("the table can't be reached")
            return getattr(own["_layer"], name)
        return object.__getattribute__(self, name)

    def _put_record(self, data_record: Any) -> None: ...
    def _update_record(self, data_record: Any) -> None: ...
    def _delete_record(self, data_record: Any) -> None: ...
    def _get_record(self, idempotency_key: str) -> Any: ...


def test_key_that_cant_be_looked_up_writes_nothing(stage: Stage) -> None:
    stage.idempotency = _Broken(stage.idempotency, "_put_record")

    answer = post(stage)

    assert (answer.status, answer.body["code"]) == (503, "degraded")
    assert written(stage.world) == {}


def test_job_is_told_even_if_its_key_isnt_kept(stage: Stage) -> None:
    stage.idempotency = _Broken(stage.idempotency, "_update_record")

    answer = post(stage)

    assert answer.status == 202
    assert stage.get(answer.body["id"]).status == 200
