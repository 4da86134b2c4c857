"""What bench/warm_path.py reckons, and what it refuses to measure."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import boto3
import botocore
import pytest
from aws_lambda_powertools.metrics.provider import cloudwatch_emf
from sluiceway.adapters import dynamodb, sqs_queue
from sluiceway.domain import keys

from bench import warm_path
from bench.report import NotMeasuredError
from bench.warm_path import Exchange, Figures, Network, Sampler, large_items


def an_exchange(operation: str = "GetItem", table: str = "JobsTable", key: str = "a") -> Exchange:
    body = json.dumps({"TableName": table, "Key": {"id": {"S": key}}}).encode()
    return Exchange(
        service="dynamodb",
        operation=operation,
        params={"TableName": table, "Key": {"id": {"S": key}}},
        begins=body.partition(b",")[0],
        known_as=warm_path._known_as(operation, body),
        status=200,
        headers={"content-type": "application/x-amz-json-1.0"},
        body=b'{"Item": {"id": {"S": "found"}}}',
    )


def a_client() -> tuple[Any, Network]:
    session = boto3.Session(
        aws_access_key_id="id", aws_secret_access_key="secret", region_name="us-east-1"
    )
    network = Network(session)
    return session.client("dynamodb"), network


def test_network_answers_what_was_recorded() -> None:
    client, network = a_client()
    network.play([an_exchange()], {})

    answers = [client.get_item(**an_exchange(key=key).params)["Item"] for key in "ab"]

    network.check()
    assert answers == [{"id": {"S": "found"}}] * 2


def test_network_refuses_what_was_not_recorded() -> None:
    client, network = a_client()
    network.play([an_exchange()], {})

    with pytest.raises(NotMeasuredError, match="CacheTable"):
        client.get_item(**an_exchange(table="CacheTable").params)

    with pytest.raises(NotMeasuredError, match="CacheTable"):
        network.check()


def test_network_notices_an_event_that_asks_for_less() -> None:
    client, network = a_client()
    network.play([an_exchange(), an_exchange()], {})
    client.get_item(**an_exchange().params)

    with pytest.raises(NotMeasuredError, match="fewer"):
        network.check()


def test_network_answers_aside_what_is_asked_now_and_then_and_not_each_time() -> None:
    client, network = a_client()
    state = an_exchange(table="CoordinationTable", key="state")
    network.play([an_exchange()], {state.known_as: state})
    for _ in range(10):
        client.get_item(**an_exchange().params)
    client.get_item(**state.params)
    network.check()

    client.get_item(**state.params)

    with pytest.raises(NotMeasuredError, match="others"):
        network.check()


@pytest.mark.parametrize(
    ("module", "group"),
    [
        (botocore.auth, "AWS: signing"),
        (botocore.hooks, "AWS: the rest of botocore"),
        (dynamodb, "rows"),
        (sqs_queue, "adapters, the rest"),
        (cloudwatch_emf, "metrics"),
        (keys, "keys"),
        (warm_path, ""),
        (json, None),
    ],
)
def test_time_belongs_to_the_file_that_spends_it(module: Any, group: str | None) -> None:
    assert warm_path._group_of(module.__file__) == group


def test_time_belongs_to_the_innermost_file_that_has_a_group() -> None:
    frames = [json.__file__, keys.__file__, dynamodb.__file__]
    frame: Any = None
    for file in reversed(frames):
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file), f_back=frame)
    sampler = Sampler()

    sampler._look(0, frame)

    assert sampler.shares() == {"keys": 1.0}


def test_shares_leave_out_the_benchmark_itself() -> None:
    sampler = Sampler()
    sampler.stacks.update({"": 50, "keys": 1, "rows": 3})

    assert sampler.shares() == {"keys": 0.25, "rows": 0.75}


def figures(name: str, **shares: float) -> Figures:
    return Figures(name, "api", 1, cpu_us=300.0, floor_us=200.0, shares=shares)


def test_ratio_is_of_the_path_to_its_requests_alone() -> None:
    assert figures("hit").ratio == 1.5


def test_large_items_are_those_of_a_tenth_and_our_own() -> None:
    found = [figures("hit", **{"AWS: signing": 0.5, "rows": 0.1, "keys": 0.09})]

    assert large_items(found) == "Own items of a tenth or more: rows (10% of “hit”)."


def test_largest_item_is_told_when_none_is_large() -> None:
    found = [figures("hit", rows=0.04, keys=0.09), figures("get", rows=0.05)]

    assert large_items(found).endswith("the largest is keys (9% of “hit”).")
