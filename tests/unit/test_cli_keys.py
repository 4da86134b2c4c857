"""`sluiceway keys`: what a partner manager sees, and what becomes of the keys."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import api_key
from sluiceway.usecases.authorize import authorize
from sluiceway_cli.keys import rotate_key

from tests.fakes.examples import a_partner_key
from tests.fakes.in_memory import NOW_MS, FakeClock, InMemoryPartnerKeys, RecordingTelemetry
from tests.unit.desk import Desk, run, stand_at, told

if TYPE_CHECKING:
    from sluiceway.ports import PartnerKey

NOW_S = NOW_MS // 1000
DAY_S = 24 * 3600
NOW = "2026-01-01T00:00:00.000Z"
TOMORROW = "2026-01-02T00:00:00.000Z"
IN_90_DAYS = "2026-04-01T00:00:00.000Z"
KEY_ID = a_partner_key().key_id


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    """An installation in memory, at NOW_MS, without keys."""
    made = Desk("http://127.0.0.1:9/v1", clock=clock, endpoint_url="http://127.0.0.1:9")
    stand_at(monkeypatch, made, "key_commands")
    return made


def put(desk: Desk, number: int = 1, **changes: Any) -> PartnerKey:
    key = a_partner_key(number, **changes)
    desk.partner_keys().add(key)
    return key


def opens(desk: Desk, key: str) -> bool:
    """Whether the authorizer lets the key in, asked anew."""
    found = authorize(
        f"Bearer {key}",
        keys=desk.partner_keys(),
        clock=desk.clock,
        telemetry=RecordingTelemetry(),
    )
    return found is not None


def advance(desk: Desk, seconds: float) -> None:
    assert isinstance(desk.clock, FakeClock)
    desk.clock.advance(s=seconds)


# ------------------------------------------------------------------------------------ create


def test_created_key_opens_the_api_and_is_told_once(desk: Desk) -> None:
    made = told("keys", "create", "acme")

    listed = run("keys", "list").stdout
    assert api_key.well_formed(made["key"])
    assert opens(desk, made["key"])
    assert made["key"] not in listed
    assert made == {
        "key": made["key"],
        "key_id": api_key.key_id(api_key.key_hash(made["key"])),
        "tenant": "acme",
        "status": "live",
        "scopes": ["submit", "read", "cancel"],
        "created_at": NOW,
        "last_used_at": None,
        "expires_at": None,
        "revoked_at": None,
        "replaced_by": None,
    }


@pytest.mark.usefixtures("desk")
def test_created_key_is_shown_for_people_with_a_word_of_warning() -> None:
    result = run("keys", "create", "acme")

    fields = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert fields["key"].startswith("swk_")
    assert fields["scopes"] == "submit read cancel"
    assert "not shown again" in result.stderr


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("options", "scopes"),
    [
        (("--scope", "read"), ["read"]),
        (("--scope", "read", "--scope", "submit"), ["submit", "read"]),
        (("--scopes", "read,submit"), ["submit", "read"]),
        (("--scopes", "read, admin", "--scope", "read"), ["read", "admin"]),
        (("--scopes", ",".join(api_key.SCOPES)), list(api_key.SCOPES)),
    ],
)
def test_created_key_has_the_scopes_that_were_named(
    options: tuple[str, ...], scopes: list[str]
) -> None:
    assert told("keys", "create", "acme", *options)["scopes"] == scopes


@pytest.mark.parametrize("scopes", ["", ",", "reed", "read,", "read submit", "Read", "*"])
def test_create_refuses_a_scope_that_there_is_not(desk: Desk, scopes: str) -> None:
    result = run("keys", "create", "acme", "--scopes", scopes)

    assert result.exit_code == 2
    assert "submit, read, cancel, bypass, admin" in result.stderr
    assert desk.world.keys == {}


@pytest.mark.parametrize(
    ("options", "expires_at"),
    [
        (("--expires-in", "90d"), IN_90_DAYS),
        (("--expires-in", "24h"), TOMORROW),
        (("--expires-in", "1440m"), TOMORROW),
        (("--expires", "2026-01-02"), TOMORROW),
        (("--expires", "2026-01-02T02:00:00+02:00"), TOMORROW),
        (("--expires", "2026-04-01T00:00:00Z"), IN_90_DAYS),
    ],
)
def test_created_key_ends_when_it_was_told_to(
    desk: Desk, options: tuple[str, ...], expires_at: str
) -> None:
    made = told("keys", "create", "acme", *options)

    assert made["expires_at"] == expires_at
    assert opens(desk, made["key"])
    advance(desk, 90 * DAY_S)
    assert not opens(desk, made["key"])


@pytest.mark.parametrize(
    "options",
    [
        *(("--expires-in", text) for text in ("0d", "-1d", "1", "d", "1w", "99999d", "1e3d", "")),
        *(("--expires", text) for text in ("2026-01-01", "2025-12-31", "9999-01-01", "soon", "")),
        ("--expires-in", "1d", "--expires", "2026-02-01"),
    ],
    ids=" ".join,
)
def test_create_refuses_an_end_that_never_comes_or_has_passed(
    desk: Desk, options: tuple[str, ...]
) -> None:
    result = run("keys", "create", "acme", *options)

    assert result.exit_code == 2
    assert desk.world.keys == {}


def test_create_warns_of_a_third_live_key_and_makes_it(desk: Desk) -> None:
    put(desk, 1)
    put(desk, 2, tenant="globex")
    put(desk, 3, expires_at_epoch_s=NOW_S)  # no more

    second = run("keys", "create", "acme", "--json")
    third = run("keys", "create", "acme", "--json")

    assert second.stderr == ""
    assert "acme has 3 live keys" in third.stderr
    assert a_partner_key(1).key_id in third.stderr
    assert opens(desk, json.loads(third.stdout)["key"])


# ------------------------------------------------------------------------------------ list


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "live"),
        ({"expires_at_epoch_s": NOW_S + 7 * DAY_S + 1}, "live"),
        ({"expires_at_epoch_s": NOW_S + 7 * DAY_S}, "expiring"),
        ({"expires_at_epoch_s": NOW_S + 1}, "expiring"),
        ({"expires_at_epoch_s": NOW_S + 30 * DAY_S, "replaced_by": "key_2"}, "expiring"),
        ({"expires_at_epoch_s": NOW_S}, "expired"),
        ({"expires_at_epoch_s": NOW_S, "replaced_by": "key_2"}, "expired"),
        ({"revoked_at_epoch_s": NOW_S}, "revoked"),
        ({"revoked_at_epoch_s": NOW_S, "expires_at_epoch_s": NOW_S}, "revoked"),
    ],
)
def test_list_says_how_a_key_is(desk: Desk, changes: dict[str, Any], status: str) -> None:
    put(desk, **changes)

    (listed,) = told("keys", "list")

    assert listed["status"] == status
    assert f" {status} " in run("keys", "list").stdout


def test_list_says_when_a_key_was_used_last(desk: Desk) -> None:
    key = told("keys", "create", "acme")["key"]
    before = (told("keys", "list")[0]["last_used_at"], run("keys", "list").stdout)
    opens(desk, key)
    advance(desk, 60)

    after = (told("keys", "list")[0]["last_used_at"], run("keys", "list").stdout)

    assert before[0] is None
    assert "never used" in before[1]
    assert after[0] == NOW
    assert f"last used {NOW}" in after[1]


def test_list_is_of_one_tenant_when_it_is_named(desk: Desk) -> None:
    put(desk, 1)
    put(desk, 2, tenant="globex")

    assert [key["tenant"] for key in told("keys", "list", "--tenant", "globex")] == ["globex"]
    assert "initech has no keys" in run("keys", "list", "--tenant", "initech").stdout


# ------------------------------------------------------------------------------------ rotate


def test_both_keys_work_in_the_overlap_and_the_old_one_stops_after_it(desk: Desk) -> None:
    old = told("keys", "create", "acme", "--scopes", "submit,read")

    new = told("keys", "rotate", old["key_id"], "--overlap", "24h")

    assert (opens(desk, old["key"]), opens(desk, new["key"])) == (True, True)
    advance(desk, DAY_S - 1)
    assert (opens(desk, old["key"]), opens(desk, new["key"])) == (True, True)
    advance(desk, 1)
    assert (opens(desk, old["key"]), opens(desk, new["key"])) == (False, True)


def test_rotated_key_is_like_the_old_one_and_says_what_becomes_of_that(desk: Desk) -> None:
    old = put(desk, scopes=("read", "admin"))

    new = told("keys", "rotate", KEY_ID)

    assert (new["tenant"], new["scopes"], new["status"]) == ("acme", ["read", "admin"], "live")
    assert (new["replaces"], new["replaced_expires_at"]) == (KEY_ID, TOMORROW)
    assert desk.world.keys[old.key_hash] == old._replace(
        expires_at_epoch_s=NOW_S + DAY_S, replaced_by=new["key_id"]
    )


def test_rotation_tells_people_when_the_old_key_stops(desk: Desk) -> None:
    put(desk)

    result = run("keys", "rotate", KEY_ID)

    assert "not shown again" in result.stderr
    assert f"{KEY_ID} ends at {TOMORROW}" in result.stderr
    assert f"within {api_key.POLICY_KEPT_S} s" in result.stderr


@pytest.mark.parametrize(
    ("members", "expires_at"),
    [
        ({}, None),
        (
            {"lifetime_s": 90 * DAY_S, "expires_at_epoch_s": NOW_S + 5 * DAY_S},
            IN_90_DAYS,
        ),
        ({"expires_at_epoch_s": NOW_S + 90 * DAY_S}, IN_90_DAYS),
    ],
    ids=["for ever", "for so long", "until a date"],
)
def test_rotated_key_lives_by_the_same_rule(
    desk: Desk, members: dict[str, Any], expires_at: str | None
) -> None:
    put(desk, **members)

    assert told("keys", "rotate", KEY_ID)["expires_at"] == expires_at


def test_rule_outlives_many_rotations(desk: Desk) -> None:
    made = told("keys", "create", "acme", "--expires-in", "90d")

    for _ in range(3):
        advance(desk, 80 * DAY_S)
        made = told("keys", "rotate", made["key_id"])

    assert opens(desk, made["key"])
    advance(desk, 90 * DAY_S - 1)
    assert opens(desk, made["key"])
    advance(desk, 1)
    assert not opens(desk, made["key"])


def test_rotation_never_lets_the_old_key_live_longer(desk: Desk) -> None:
    put(desk, expires_at_epoch_s=NOW_S + 3600, lifetime_s=DAY_S)

    told("keys", "rotate", KEY_ID, "--overlap", "7d")

    assert desk.world.keys[a_partner_key().key_hash].expires_at_epoch_s == NOW_S + 3600


def test_rotation_without_an_overlap_ends_the_old_key_now(desk: Desk) -> None:
    old = told("keys", "create", "acme")

    told("keys", "rotate", old["key_id"], "--overlap", "0m")

    assert not opens(desk, old["key"])


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"revoked_at_epoch_s": NOW_S - 1}, "is revoked"),
        ({"expires_at_epoch_s": NOW_S}, "has expired"),
        ({"expires_at_epoch_s": NOW_S + 60, "replaced_by": "key_2"}, "replaced by key_2"),
    ],
)
def test_key_that_has_ended_or_was_replaced_is_not_rotated(
    desk: Desk, members: dict[str, Any], words: str
) -> None:
    key = put(desk, **members)

    result = run("keys", "rotate", KEY_ID)

    assert result.exit_code == 1
    assert words in result.stderr
    assert desk.world.keys == {key.key_hash: key}
    assert desk.world.audit == []


def test_rotation_of_a_key_that_was_revoked_meanwhile_makes_none(desk: Desk) -> None:
    read = put(desk)
    desk.partner_keys().revoke(KEY_ID, now_s=NOW_S)

    with pytest.raises(ValueError, match="just now"):
        rotate_key(read, overlap_s=60, keys=InMemoryPartnerKeys(desk.world), clock=desk.clock)
    assert list(desk.world.keys) == [read.key_hash]


@pytest.mark.parametrize("overlap", ["", "-1h", "1", "forever", "31d"])
def test_rotate_refuses_an_overlap_that_is_none(desk: Desk, overlap: str) -> None:
    key = put(desk)

    assert run("keys", "rotate", KEY_ID, "--overlap", overlap).exit_code == 2
    assert desk.world.keys == {key.key_hash: key}


def test_rotation_is_on_record_with_both_keys_and_without_their_text(desk: Desk) -> None:
    put(desk)

    new = told("keys", "rotate", KEY_ID)

    assert desk.done == [("key.rotate", f"key:{KEY_ID}"), ("key.create", f"key:{new['key_id']}")]
    assert len({record.request_id for record in desk.world.audit}) == 1
    assert new["key"] not in repr(desk.world)


def test_rotation_warns_when_it_makes_a_third_live_key(desk: Desk) -> None:
    put(desk, 1)
    alone = run("keys", "rotate", KEY_ID, "--json")
    put(desk, 2)

    beside = run("keys", "rotate", a_partner_key(2).key_id, "--json")

    assert alone.stderr == ""
    assert "acme has 4 live keys" in beside.stderr


# ------------------------------------------------------------------------------------ revoke


def test_revoked_key_is_let_in_no_more_and_the_command_says_how_soon(desk: Desk) -> None:
    made = told("keys", "create", "acme")

    result = run("keys", "revoke", made["key_id"])

    assert not opens(desk, made["key"])
    assert re.search(r"^status +revoked$", result.stdout, re.MULTILINE)
    assert "It stops working within 60 s: the authorizer's answer is kept" in result.stderr


def test_revoking_again_changes_nothing_and_says_so(desk: Desk) -> None:
    put(desk)
    first = told("keys", "revoke", KEY_ID)
    advance(desk, 60)

    second = run("keys", "revoke", KEY_ID)

    assert first["effective_within_s"] == api_key.POLICY_KEPT_S
    assert told("keys", "revoke", KEY_ID) == first
    assert second.exit_code == 0
    assert "revoked before" in second.stderr


@pytest.mark.parametrize("command", ["rotate", "revoke"])
def test_command_about_a_key_that_is_not_there_says_so(desk: Desk, command: str) -> None:
    result = run("keys", command, "key_unknown")

    assert result.exit_code == 1
    assert "there is no key key_unknown" in result.stderr
    assert desk.world.audit == []


@pytest.mark.parametrize("command", ["rotate", "revoke"])
def test_command_that_is_given_the_key_itself_does_not_repeat_it(desk: Desk, command: str) -> None:
    key = told("keys", "create", "acme")["key"]

    result = run("keys", command, key)

    assert result.exit_code == 2
    assert key not in result.output
    assert opens(desk, key)
