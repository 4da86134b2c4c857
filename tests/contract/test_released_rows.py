"""A release and the one before work on the same rows and messages, and each reads the other's.

So it is during a rollout, and after one that went back.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.harness import make_tables
from tests.contract.release import samples_of, seen, versions, written
from tests.template.calls import record

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.contract.release import Sample

SAMPLES = [
    pytest.param(sample, id=f"{version}-{number}-{sample['kind']}")
    for version in versions()
    for number, sample in enumerate(samples_of(version))
]
NEWER = "added_later"
"""A name that no code knows."""


@pytest.fixture(scope="module")
def today(_nobodys_account: None) -> list[Sample]:
    """What this code writes."""
    return written(record("dynamodb").rows)


def covers(now: Any, then: Any) -> bool:
    """Whether all that was read then is read now; there may be more."""
    match then:
        case dict():
            return isinstance(now, dict) and all(
                name in now and covers(now[name], one) for name, one in then.items()
            )
        case list():
            return isinstance(now, list) and len(now) == len(then) and all(map(covers, now, then))
    return bool(now == then)


def with_more(value: Any) -> Any:
    """A sample as newer code would write it: with a member more in whatever has members."""
    match value:
        case {"M": dict(members)}:
            more = {NEWER: {"S": "something"}}
            return {"M": {name: with_more(one) for name, one in members.items()} | more}
        case {"L": list(items)}:
            return {"L": [with_more(item) for item in items]}
    return value


def always_there(samples: list[Sample]) -> dict[str, dict[str, set[str]]]:
    """By kind of row: the attributes that each of them has, and the types that they had."""
    found: dict[str, dict[str, set[str]]] = {}
    for sample in samples:
        if "item" not in sample:
            continue
        types = {
            name: set(value)
            for name, value in sample["item"].items()
            if not name.isdigit()  # a place in the ring of latencies, taken at random
        }
        before = found.setdefault(sample["kind"], types)
        found[sample["kind"]] = {
            name: before[name] | types[name] for name in before.keys() & types.keys()
        }
    return found


# ------------------------------------------------------------------------------------ theirs


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_a_release_wrote_is_read_as_it_was(
    sample: Sample, moto_client: DynamoDBClient
) -> None:
    tables = make_tables(moto_client, "released")

    now = seen(sample, moto_client, tables)

    assert covers(now, sample["seen"]), now


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_newer_code_wrote_besides_is_left_alone(
    sample: Sample, moto_client: DynamoDBClient
) -> None:
    newer = copy.deepcopy(sample)
    if "item" in newer and "coordination_key" not in newer["item"]:
        newer["item"] = with_more({"M": newer["item"]})["M"]
    elif sample["kind"] == "message of a job" or sample["kind"] == "message of a webhook":
        newer["message"] = json.dumps({**json.loads(newer["message"]), NEWER: "something"})
    elif "hash" in newer:
        newer["hash"][NEWER] = "something"
        newer["hash"]["values"] = json.dumps({**json.loads(newer["hash"]["values"]), NEWER: 1})
    elif newer["kind"] not in {"backlog", "running", "state"}:
        newer["item"][NEWER] = {"S": "something"}
    tables = make_tables(moto_client, "newer")

    now = seen(newer, moto_client, tables)

    assert covers(now, sample["seen"]), now


# ------------------------------------------------------------------------------------ ours


def test_a_release_finds_in_our_rows_all_that_its_own_had(today: list[Sample]) -> None:
    ours = always_there(today)

    missing = [
        (version, kind, name)
        for version in versions()
        for kind, attributes in always_there(samples_of(version)).items()
        for name, types in attributes.items()
        if not types >= ours.get(kind, {}).get(name, {"none"})  # a type that it doesn't know
    ]

    assert missing == []


@pytest.mark.parametrize("kind", ["message of a job", "message of a webhook"])
def test_a_release_finds_in_our_messages_all_that_its_own_had(
    kind: str, today: list[Sample]
) -> None:
    (ours,) = (json.loads(one["message"]) for one in today if one["kind"] == kind)

    theirs = [
        json.loads(sample["message"])
        for version in versions()
        for sample in samples_of(version)
        if sample["kind"] == kind
    ]

    assert theirs
    assert all(one.keys() <= ours.keys() for one in theirs)
