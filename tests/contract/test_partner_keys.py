"""PartnerKeys: API keys by their hash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.fakes.examples import a_partner_key
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from tests.contract.harness import Store

NOW_S = NOW_MS // 1000


def test_find_knows_nothing_of_a_hash_that_was_never_added(store: Store) -> None:
    assert store.keys.find("0" * 64) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"expires_at_epoch_s": NOW_S + 60},
        {"scopes": ()},
        {"scopes": ("submit", "read", "cancel", "bypass", "admin")},
    ],
    ids=["as it is", "with an end", "no scopes", "all scopes"],
)
def test_find_gives_the_key_as_it_was_added(store: Store, changes: dict[str, object]) -> None:
    key = replace(a_partner_key(), **changes)

    store.keys.add(key)

    assert store.keys.find(key.key_hash) == key


def test_find_still_gives_an_expired_key_which_then_opens_nothing(store: Store) -> None:
    store.keys.add(a_partner_key(expires_at_epoch_s=NOW_S - 1))

    key = store.keys.find(a_partner_key().key_hash)

    assert key is not None
    assert not key.usable(NOW_S)


def test_add_of_a_hash_that_is_there_changes_nothing(store: Store) -> None:
    store.keys.add(a_partner_key())

    store.keys.add(a_partner_key(tenant="globex"))

    assert store.keys.find(a_partner_key().key_hash) == a_partner_key()


def test_add_does_not_bring_a_revoked_key_back(store: Store) -> None:
    store.keys.add(a_partner_key())
    store.keys.revoke(a_partner_key().key_id, now_s=NOW_S)

    store.keys.add(a_partner_key())

    key = store.keys.find(a_partner_key().key_hash)
    assert key is not None
    assert key.revoked_at_epoch_s == NOW_S


def test_all_lists_the_keys_by_tenant_and_age(store: Store) -> None:
    newer = a_partner_key(1, created_at_epoch_s=NOW_S + 1)
    older = a_partner_key(2)
    others = a_partner_key(3, tenant="abc")
    for key in (newer, older, others):
        store.keys.add(key)

    assert store.keys.all() == [others, older, newer]


def test_all_of_nothing_is_empty(store: Store) -> None:
    assert store.keys.all() == []


def test_revoke_ends_the_key_and_no_other(store: Store) -> None:
    store.keys.add(a_partner_key(1))
    store.keys.add(a_partner_key(2))

    revoked = store.keys.revoke(a_partner_key(1).key_id, now_s=NOW_S)

    assert revoked == a_partner_key(1, revoked_at_epoch_s=NOW_S)
    assert store.keys.find(a_partner_key(1).key_hash) == revoked
    assert store.keys.find(a_partner_key(2).key_hash) == a_partner_key(2)


def test_revoke_again_keeps_the_first_time(store: Store) -> None:
    store.keys.add(a_partner_key())
    store.keys.revoke(a_partner_key().key_id, now_s=NOW_S)

    again = store.keys.revoke(a_partner_key().key_id, now_s=NOW_S + 60)

    assert again == a_partner_key(revoked_at_epoch_s=NOW_S)


def test_revoke_of_a_key_that_is_not_there_finds_none(store: Store) -> None:
    assert store.keys.revoke("key_unknown", now_s=NOW_S) is None
