"""Who is calling."""

from __future__ import annotations

from typing import Any

import pytest
from sluiceway.domain import api_key
from sluiceway.domain.errors import ForbiddenError, StoreBusyError, UnauthenticatedError
from sluiceway.ports import PartnerKey
from sluiceway.usecases.authorize import Caller, authorize

from tests.fakes.in_memory import (
    NOW_MS,
    FakeClock,
    InMemoryPartnerKeys,
    RecordingTelemetry,
    World,
)

KEY = api_key.api_key(b"\x07" * 32)
OTHER_KEY = api_key.api_key(b"\x08" * 32)
NOW_S = NOW_MS // 1000
HOUR_S = api_key.USE_NOTED_EVERY_S


def stored(key: str = KEY, **members: Any) -> PartnerKey:
    hashed = api_key.key_hash(key)
    values = {
        "key_hash": hashed,
        "key_id": api_key.key_id(hashed),
        "tenant": "acme",
        "scopes": ("submit", "read"),
        "created_at_epoch_s": NOW_S,
        **members,
    }
    return PartnerKey(**values)


class Keys(InMemoryPartnerKeys):
    """Knows what it was asked."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sought: list[str] = []
        self.noted: list[int] = []

    def find(self, key_hash: str) -> PartnerKey | None:
        self.sought.append(key_hash)
        return super().find(key_hash)

    def note_use(self, key_hash: str, *, now_s: int) -> None:
        self.noted.append(now_s)
        super().note_use(key_hash, now_s=now_s)


class UnwritableKeys(InMemoryPartnerKeys):
    def note_use(self, key_hash: str, *, now_s: int) -> None:
        raise StoreBusyError("The tables are busy.", retry_after_s=1) from TimeoutError(
            f"{key_hash} at {now_s}"
        )


@pytest.fixture
def keys() -> Keys:
    return Keys(World())


@pytest.fixture
def telemetry() -> RecordingTelemetry:
    return RecordingTelemetry()


def ask(authorization: str, **members: Any) -> PartnerKey | None:
    """Asks with one key stored, which has these members."""
    keys = InMemoryPartnerKeys(World())
    keys.add(stored(**members))
    return asked(keys, authorization)


def asked(
    keys: InMemoryPartnerKeys,
    authorization: str = f"Bearer {KEY}",
    *,
    clock: FakeClock | None = None,
    telemetry: RecordingTelemetry | None = None,
) -> PartnerKey | None:
    return authorize(
        authorization,
        keys=keys,
        clock=clock or FakeClock(),
        telemetry=telemetry or RecordingTelemetry(),
    )


def last_used(keys: InMemoryPartnerKeys, key: str = KEY) -> int | None:
    """Epoch seconds."""
    found = keys.find(api_key.key_hash(key))
    assert found is not None
    return found.last_used_at_epoch_s


@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER {KEY}", f"  Bearer   {KEY}  "],
)
def test_authorize_lets_a_good_key_in(authorization: str) -> None:
    assert ask(authorization) == stored()


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        " ",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        f"Token {KEY}",
        f"Bearer{KEY}",
        f"Bearer Bearer {KEY}",
        f"Bearer {KEY} {KEY}",
        f"Bearer {KEY},",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY}A",
        f"Bearer {KEY.lower()}",
        f"Bearer {KEY.removeprefix('swk_')}",
        f"Bearer swk_{'é' * 43}",
        "Bearer swk_",
        "Bearer \x00",
        f"Bearer {api_key.key_hash(KEY)}",
        f"Bearer {api_key.key_id(api_key.key_hash(KEY))}",
        f"Bearer {api_key.api_key(bytes(32))}",
        f"Bearer swk_{'x' * 100_000}",
    ],
    ids=lambda value: value[:24].encode("unicode_escape").decode(),
)
def test_authorize_lets_nothing_else_in(authorization: str) -> None:
    assert ask(authorization) is None


@pytest.mark.parametrize(
    ("members", "usable"),
    [
        ({"expires_at_epoch_s": None}, True),
        ({"expires_at_epoch_s": NOW_S + 1}, True),
        ({"expires_at_epoch_s": NOW_S}, False),
        ({"expires_at_epoch_s": NOW_S - 1}, False),
        ({"expires_at_epoch_s": 0}, False),
        ({"revoked_at_epoch_s": NOW_S - 1}, False),
        ({"revoked_at_epoch_s": NOW_S + 1}, False),
        ({"revoked_at_epoch_s": 0}, False),
    ],
)
def test_authorize_honours_expiry_and_revocation(members: dict[str, Any], *, usable: bool) -> None:
    assert (ask(f"Bearer {KEY}", **members) is not None) is usable


def test_authorize_lets_no_key_without_a_tenant_in() -> None:
    assert ask(f"Bearer {KEY}", tenant="") is None


@pytest.mark.parametrize(
    "token", ["", "swk_", "swk_wrong", f"{KEY}A", KEY[:-1], "é" * 47, f"swk_{'x' * 100_000}", "0"]
)
def test_authorize_looks_nothing_up_that_can_be_no_key(keys: Keys, token: str) -> None:
    asked(keys, f"Bearer {token}")

    assert keys.sought == []


def test_authorize_lets_both_keys_of_a_tenant_in(keys: Keys) -> None:
    keys.add(stored())
    keys.add(stored(OTHER_KEY, scopes=("read",)))

    found = [asked(keys, f"Bearer {key}") for key in (KEY, OTHER_KEY)]

    assert [key and (key.tenant, key.scopes) for key in found] == [
        ("acme", ("submit", "read")),
        ("acme", ("read",)),
    ]


def test_authorize_lets_a_replaced_key_in_until_its_overlap_is_over(keys: Keys) -> None:
    clock = FakeClock()
    keys.add(stored())
    keys.replace(stored(), stored(OTHER_KEY), ends_at_epoch_s=NOW_S + 60)

    def let_in() -> list[bool]:
        return [asked(keys, f"Bearer {key}", clock=clock) is not None for key in (KEY, OTHER_KEY)]

    at_first = let_in()
    clock.advance(s=59.9)
    at_last = let_in()
    clock.advance(s=0.1)
    after = let_in()

    assert (at_first, at_last, after) == ([True, True], [True, True], [False, True])


# ------------------------------------------------------------------ the last use


def test_use_is_put_down_at_first_and_after_an_hour(keys: Keys) -> None:
    clock = FakeClock()
    keys.add(stored())

    for pause_s in (0, HOUR_S - 1, 0.9, 0.1, 60):
        clock.advance(s=pause_s)
        asked(keys, clock=clock)

    assert keys.noted == [NOW_S, NOW_S + HOUR_S]
    assert last_used(keys) == NOW_S + HOUR_S


@pytest.mark.parametrize(
    "members",
    [
        {"expires_at_epoch_s": NOW_S},
        {"revoked_at_epoch_s": NOW_S - 1},
        {"tenant": ""},
    ],
    ids=["expired", "revoked", "no tenant"],
)
def test_key_that_opens_nothing_has_no_use(keys: Keys, members: dict[str, Any]) -> None:
    keys.add(stored(**members))

    asked(keys)

    assert keys.noted == []
    assert last_used(keys) is None


def test_use_of_one_key_says_nothing_of_another(keys: Keys) -> None:
    keys.add(stored())
    keys.add(stored(OTHER_KEY))

    asked(keys)

    assert (last_used(keys), last_used(keys, OTHER_KEY)) == (NOW_S, None)


def test_key_gets_in_though_its_use_cannot_be_put_down(telemetry: RecordingTelemetry) -> None:
    keys = UnwritableKeys(World())
    keys.add(stored())

    found = asked(keys, telemetry=telemetry)

    assert found == stored()
    assert telemetry.events == [
        ("key_use_lost", None, {"key_id": stored().key_id, "error_class": "TimeoutError"})
    ]


# ------------------------------------------------------------------ the caller


def test_caller_without_a_tenant_is_nobody() -> None:
    with pytest.raises(UnauthenticatedError):
        Caller("", frozenset({"read"}), "key_1")


def test_caller_may_what_its_scopes_say() -> None:
    Caller("acme", frozenset({"submit", "read"}), "key_1").require("read")


@pytest.mark.parametrize("scope", ["admin", "Read", "", "submi", "submit read"])
def test_caller_may_nothing_else_and_is_told_which_scope_is_missing(scope: str) -> None:
    caller = Caller("acme", frozenset({"submit", "read"}), "key_1")

    with pytest.raises(ForbiddenError, match=f"'{scope}'"):
        caller.require(scope)
