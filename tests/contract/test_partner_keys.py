"""PartnerKeys: API keys by their hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from sluiceway.adapters.dynamodb import Table, from_item, to_item
from sluiceway.adapters.dynamodb_partner_keys import KEPT_AFTER_END_S, DynamoDBPartnerKeys
from sluiceway.domain.api_key import USE_NOTED_EVERY_S
from sluiceway.domain.errors import StoreBusyError

from tests.contract.clients import ScriptedClient, refused, timed_out
from tests.fakes.examples import a_partner_key
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.ports import PartnerKey

    from tests.contract.harness import Store, Tables

NOW_S = NOW_MS // 1000
OLD, NEW = a_partner_key(1), a_partner_key(2)


def found(store: Store, number: int = 1) -> PartnerKey:
    key = store.keys.find(a_partner_key(number).key_hash)
    assert key is not None
    return key


def test_find_knows_nothing_of_a_hash_that_was_never_added(store: Store) -> None:
    assert store.keys.find("0" * 64) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"expires_at_epoch_s": NOW_S + 60},
        {"expires_at_epoch_s": NOW_S + 60, "lifetime_s": 60},
        {"scopes": ()},
        {"scopes": ("submit", "read", "cancel", "bypass", "admin")},
    ],
    ids=["as it is", "with an end", "with a lifetime", "no scopes", "all scopes"],
)
def test_find_gives_the_key_as_it_was_added(store: Store, changes: dict[str, object]) -> None:
    key = a_partner_key()._replace(**changes)

    store.keys.add(key)

    assert store.keys.find(key.key_hash) == key


@pytest.mark.proves(9)
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


# ------------------------------------------------------------------------------------ rotation


@pytest.mark.parametrize("ends_s", [None, NOW_S + 3600], ids=["for ever", "with an end"])
def test_replace_stores_the_new_key_and_ends_the_old(store: Store, ends_s: int | None) -> None:
    old = a_partner_key(1, expires_at_epoch_s=ends_s)
    store.keys.add(old)

    replaced = store.keys.replace(old, NEW, ends_at_epoch_s=NOW_S + 60)

    assert replaced
    assert found(store, 1) == old._replace(expires_at_epoch_s=NOW_S + 60, replaced_by=NEW.key_id)
    assert found(store, 2) == NEW


def test_replace_of_a_key_that_was_replaced_changes_nothing(store: Store) -> None:
    store.keys.add(OLD)
    store.keys.replace(OLD, NEW, ends_at_epoch_s=NOW_S + 60)

    again = store.keys.replace(found(store), a_partner_key(3), ends_at_epoch_s=NOW_S + 120)

    assert not again
    assert store.keys.find(a_partner_key(3).key_hash) is None
    assert found(store).expires_at_epoch_s == NOW_S + 60


@pytest.mark.parametrize(
    "read",
    [
        {"expires_at_epoch_s": None},
        {"expires_at_epoch_s": NOW_S + 7200},
    ],
    ids=["for ever", "with another end"],
)
def test_replace_of_a_key_that_ends_otherwise_changes_nothing(
    store: Store, read: dict[str, int | None]
) -> None:
    store.keys.add(a_partner_key(1, expires_at_epoch_s=NOW_S + 3600))

    replaced = store.keys.replace(
        a_partner_key(1, expires_at_epoch_s=read["expires_at_epoch_s"]),
        NEW,
        ends_at_epoch_s=NOW_S + 7200,
    )

    assert not replaced
    assert store.keys.find(NEW.key_hash) is None
    assert found(store).expires_at_epoch_s == NOW_S + 3600


def test_replace_of_a_revoked_key_changes_nothing(store: Store) -> None:
    store.keys.add(OLD)
    store.keys.revoke(OLD.key_id, now_s=NOW_S)

    assert not store.keys.replace(OLD, NEW, ends_at_epoch_s=NOW_S + 60)
    assert store.keys.find(NEW.key_hash) is None
    assert found(store) == a_partner_key(1, revoked_at_epoch_s=NOW_S)


def test_replace_of_a_key_that_is_not_there_adds_none(store: Store) -> None:
    assert not store.keys.replace(OLD, NEW, ends_at_epoch_s=NOW_S + 60)

    assert store.keys.all() == []


def test_replaced_key_can_be_revoked(store: Store) -> None:
    store.keys.add(OLD)
    store.keys.replace(OLD, NEW, ends_at_epoch_s=NOW_S + 60)

    store.keys.revoke(OLD.key_id, now_s=NOW_S + 1)

    assert found(store).revoked_at_epoch_s == NOW_S + 1
    assert found(store, 2) == NEW


# ------------------------------------------------------------------------------------ last use


def test_use_is_noted_once_an_hour(store: Store) -> None:
    store.keys.add(OLD)

    noted = []
    for late_s in (0, 1, USE_NOTED_EVERY_S - 1, USE_NOTED_EVERY_S, USE_NOTED_EVERY_S + 1):
        store.keys.note_use(OLD.key_hash, now_s=NOW_S + late_s)
        noted.append(found(store).last_used_at_epoch_s)

    assert noted == [NOW_S, NOW_S, NOW_S, NOW_S + USE_NOTED_EVERY_S, NOW_S + USE_NOTED_EVERY_S]


def test_use_changes_nothing_else_of_the_key_and_no_other(store: Store) -> None:
    full = a_partner_key(1, expires_at_epoch_s=NOW_S + 60, lifetime_s=60)
    store.keys.add(full)
    store.keys.add(NEW)

    store.keys.note_use(full.key_hash, now_s=NOW_S)

    assert found(store, 1) == full._replace(last_used_at_epoch_s=NOW_S)
    assert found(store, 2) == NEW


def test_use_of_a_key_that_opens_nothing_is_not_noted(store: Store) -> None:
    store.keys.add(a_partner_key(1, expires_at_epoch_s=NOW_S))
    store.keys.add(a_partner_key(2))
    store.keys.revoke(a_partner_key(2).key_id, now_s=NOW_S - 1)

    for number in (1, 2, 3):  # the third isn't there
        store.keys.note_use(a_partner_key(number).key_hash, now_s=NOW_S)

    assert [key.last_used_at_epoch_s for key in store.keys.all()] == [None, None]


def test_older_use_does_not_take_a_newer_ones_place(store: Store) -> None:
    store.keys.add(OLD)
    store.keys.note_use(OLD.key_hash, now_s=NOW_S)

    store.keys.note_use(OLD.key_hash, now_s=NOW_S - 2 * USE_NOTED_EVERY_S)

    assert found(store).last_used_at_epoch_s == NOW_S


@pytest.mark.parametrize(
    "error",
    [refused("ThrottlingException"), refused("AccessDeniedException"), timed_out()],
    ids=["throttled", "denied", "no answer"],
)
def test_use_is_tried_once_and_by_the_client_that_gives_up_soon(error: Exception) -> None:
    patient, hasty = ScriptedClient(), ScriptedClient(error)
    pauses: list[float] = []
    keys = DynamoDBPartnerKeys(
        Table(cast("DynamoDBClient", patient)),
        "partners",
        hasty=lambda: Table(cast("DynamoDBClient", hasty), pause=pauses.append),
    )

    with pytest.raises(StoreBusyError):
        keys.note_use(OLD.key_hash, now_s=NOW_S)

    assert (len(patient.requests), len(hasty.requests), pauses) == (0, 1, [])


# ------------------------------------------------------------------------------------ the row


def test_row_of_a_key_that_ends_is_collected_after_its_end(
    dynamodb: DynamoDBClient, tables: Tables, dynamodb_store: Store
) -> None:
    def collected_at() -> int | None:
        item = dynamodb.get_item(
            TableName=tables.partners, Key=to_item({"key_hash": OLD.key_hash})
        )["Item"]
        ttl: int | None = from_item(item).get("ttl_epoch_s")
        return ttl

    dynamodb_store.keys.add(OLD)
    times = [collected_at()]
    dynamodb_store.keys.replace(OLD, NEW, ends_at_epoch_s=NOW_S + 60)
    times.append(collected_at())
    dynamodb_store.keys.revoke(OLD.key_id, now_s=NOW_S + 1)
    times.append(collected_at())

    assert times == [None, NOW_S + 60 + KEPT_AFTER_END_S, NOW_S + 1 + KEPT_AFTER_END_S]
