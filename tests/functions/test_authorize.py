"""The authorizer, REQUEST event in and policy out."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from sluiceway.domain import api_key
from sluiceway.domain.errors import StoreBusyError
from sluiceway.ports import PartnerKey

from tests.fakes.in_memory import NOW_MS, InMemoryPartnerKeys
from tests.functions.stage import Stage, sample
from tests.unit.logs import fresh_telemetry, log_lines, output

KEY = sample("authorize")["headers"]["Authorization"].removeprefix("Bearer ")
NOW_S = NOW_MS // 1000
EVERY_METHOD = "arn:aws:execute-api:us-east-1:123456789012:a1b2c3d4e5/v1/*"


def add_key(stage: Stage, **members: Any) -> PartnerKey:
    """Stores the key of the sample event."""
    hashed = api_key.key_hash(KEY)
    values: dict[str, Any] = {
        "key_hash": hashed,
        "key_id": api_key.key_id(hashed),
        "tenant": "acme",
        "scopes": ("submit", "read"),
        "created_at_epoch_s": NOW_S,
        **members,
    }
    key = PartnerKey(**values)
    stage.keys.add(key)
    return key


def asking(authorization: str | None, name: str = "Authorization") -> dict[str, Any]:
    """The sample event with another header."""
    event = sample("authorize")
    del event["headers"]["Authorization"]
    if authorization is not None:
        event["headers"][name] = authorization
    return event


def effect(policy: dict[str, Any]) -> str:
    (statement,) = policy["policyDocument"]["Statement"]
    return str(statement["Effect"])


def test_authorizer_lets_the_key_of_the_sample_event_in(stage: Stage) -> None:
    add_key(stage)

    policy = stage.authorize(sample("authorize"))

    assert policy["principalId"] == "acme"
    assert policy["policyDocument"] == {
        "Version": "2012-10-17",
        "Statement": [
            {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": EVERY_METHOD}
        ],
    }


def test_authorizer_tells_tenant_scopes_and_key_as_strings(stage: Stage) -> None:
    key = add_key(stage)

    context = stage.authorize(sample("authorize"))["context"]

    assert context == {"tenant": "acme", "scopes": "submit read", "key_id": key.key_id}
    assert all(isinstance(value, str) for value in context.values())


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/jobs/job_1"), ("POST", "/jobs"), ("DELETE", "/webhooks/a/b/c")]
)
def test_policy_covers_the_whole_stage_since_the_gateway_keeps_it(
    stage: Stage, method: str, path: str
) -> None:
    add_key(stage)
    arn = f"arn:aws:execute-api:us-east-1:123456789012:a1b2c3d4e5/v1/{method}{path}"

    policy = stage.authorize({**sample("authorize"), "methodArn": arn, "httpMethod": method})

    assert policy["policyDocument"]["Statement"][0]["Resource"] == EVERY_METHOD


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_authorizer_reads_the_header_in_any_case(stage: Stage, name: str) -> None:
    add_key(stage)

    assert effect(stage.authorize(asking(f"Bearer {KEY}", name))) == "Allow"


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, "", " ", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY}x"),
        *("Bearer swk_wrong", f"Bearer {KEY}, Bearer {KEY}", f"Bearer swk_{'x' * 10_240}"),
        *("Bearer swk_\u00e9", "\ud800", "\x00", "Bearer\t" + KEY, "\u212a" * 40),
    ],
    ids=ascii,
)
def test_authorizer_denies_what_is_no_good_key(stage: Stage, authorization: str | None) -> None:
    add_key(stage)

    policy = stage.authorize(asking(authorization))

    assert effect(policy) == "Deny"
    assert policy["policyDocument"]["Statement"][0]["Resource"] == EVERY_METHOD
    assert policy["principalId"] == "unknown"
    assert not policy["context"].get("tenant")


@pytest.mark.parametrize(
    "members",
    [
        {"expires_at_epoch_s": NOW_S},
        {"expires_at_epoch_s": NOW_S - 1},
        {"revoked_at_epoch_s": NOW_S - 1},
        {"tenant": ""},
    ],
    ids=["just expired", "expired", "revoked", "no tenant"],
)
def test_authorizer_denies_a_key_that_opens_nothing(stage: Stage, members: dict[str, Any]) -> None:
    add_key(stage, **members)

    policy = stage.authorize(sample("authorize"))

    assert effect(policy) == "Deny"
    assert not policy["context"].get("tenant")


def test_authorizer_denies_when_there_are_no_headers(stage: Stage) -> None:
    assert effect(stage.authorize({**sample("authorize"), "headers": None})) == "Deny"


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_authorizer_answers_are_json_and_nothing_it_writes_has_the_key(
    stage: Stage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    level: str,
) -> None:
    wrong = api_key.api_key(b"\x09" * 32)
    stage.telemetry = fresh_telemetry(level=level)
    stage.keys = UnwritableKeys(stage.world)
    add_key(stage)

    answers = [
        stage.authorize(asking(authorization))
        for authorization in (f"Bearer {KEY}", f"Bearer {wrong}", f"Basic {KEY}", "swk_hunter2")
    ]

    captured = capsys.readouterr()
    told = json.dumps(answers) + captured.out + captured.err + caplog.text
    assert "key_use_lost" in told
    assert [secret for secret in (KEY, wrong, "hunter2") if secret in told] == []
    assert not logging.getLogger("botocore").isEnabledFor(logging.INFO)


class UnwritableKeys(InMemoryPartnerKeys):
    def note_use(self, key_hash: str, *, now_s: int) -> None:
        raise StoreBusyError("The tables are busy.", retry_after_s=1) from OSError(key_hash, now_s)


def test_authorizer_puts_the_use_down_and_never_waits_for_it_to_succeed(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    key = add_key(stage)

    first = effect(stage.authorize(sample("authorize")))
    used = stage.keys.find(key.key_hash)
    stage.clock.advance(s=api_key.USE_NOTED_EVERY_S)
    stage.keys = UnwritableKeys(stage.world)
    second = effect(stage.authorize(sample("authorize")))

    assert (first, second) == ("Allow", "Allow")
    assert used is not None
    assert used.last_used_at_epoch_s == NOW_S
    (line,) = log_lines(output(capsys))
    assert (line["message"], line["key_id"]) == ("key_use_lost", key.key_id)
    assert line["error_class"] == "OSError"
