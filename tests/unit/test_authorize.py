"""Who is calling."""

from __future__ import annotations

from typing import Any

import pytest
from sluiceway.domain import api_key
from sluiceway.domain.errors import ForbiddenError, UnauthenticatedError
from sluiceway.ports import PartnerKey
from sluiceway.usecases.authorize import Caller, authorize

from tests.fakes.in_memory import NOW_MS, FakeClock, InMemoryPartnerKeys, World

KEY = api_key.api_key(b"\x07" * 32)
NOW_S = NOW_MS // 1000


def stored(**members: Any) -> PartnerKey:
    hashed = api_key.key_hash(KEY)
    values = {
        "key_hash": hashed,
        "key_id": api_key.key_id(hashed),
        "tenant": "acme",
        "scopes": ("submit", "read"),
        "created_at_epoch_s": NOW_S,
        **members,
    }
    return PartnerKey(**values)


def ask(authorization: str, **members: Any) -> PartnerKey | None:
    """Asks with one key stored, which has these members."""
    world = World()
    keys = InMemoryPartnerKeys(world)
    keys.add(stored(**members))
    return authorize(authorization, keys=keys, clock=FakeClock())


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


# ------------------------------------------------------------------ the caller


def test_caller_without_a_tenant_is_nobody() -> None:
    with pytest.raises(UnauthenticatedError):
        Caller("", frozenset({"read"}), "key_1")


def test_caller_may_what_its_scopes_say() -> None:
    Caller("acme", frozenset({"submit", "read"}), "key_1").require("read")


@pytest.mark.parametrize("scope", ["admin", "Read", "", "submi", "submit read"])
def test_caller_may_nothing_else(scope: str) -> None:
    caller = Caller("acme", frozenset({"submit", "read"}), "key_1")

    with pytest.raises(ForbiddenError):
        caller.require(scope)
