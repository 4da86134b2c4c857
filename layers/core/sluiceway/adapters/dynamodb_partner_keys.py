"""API keys in the Partners table (port PartnerKeys)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from sluiceway.adapters.dynamodb import Table, Write, from_item
from sluiceway.domain.api_key import USE_NOTED_EVERY_S
from sluiceway.domain.errors import StoreBusyError
from sluiceway.ports import PartnerKey

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_AFTER_END_S = 90 * 24 * 3600
"""So that `keys list` still shows what has ended lately."""


class DynamoDBPartnerKeys:
    """Weakness: listing and revoking scan the table, which holds a few keys for each partner."""

    def __init__(
        self, table: Table, name: str, *, hasty: Callable[[], Table] | None = None
    ) -> None:
        """`name`: of the Partners table.

        `hasty` gives a table whose client gives up soon, made when a use is to be written first.
        """
        self._table = table
        self._name = name
        self._make_hasty = hasty or (lambda: table)

    @cached_property
    def _hasty(self) -> Table:
        return self._make_hasty()

    def find(self, key_hash: str) -> PartnerKey | None:
        """See PartnerKeys."""
        values = self._table.read(self._name, {"key_hash": key_hash})
        return None if values is None else _key_of(values)

    def add(self, key: PartnerKey) -> None:
        """See PartnerKeys."""
        self._table.write(self._put(key))

    def replace(self, old: PartnerKey, new: PartnerKey, *, ends_at_epoch_s: int) -> bool:
        """See PartnerKeys."""
        as_read = (
            "attribute_not_exists(#expires_at_epoch_s)"
            if old.expires_at_epoch_s is None
            else "#expires_at_epoch_s = :as_read"
        )
        ends = Write(
            self._name,
            {"key_hash": old.key_hash},
            update=(
                "SET #expires_at_epoch_s = :ends, #ttl_epoch_s = :ttl, #replaced_by = :successor"
            ),
            condition=(
                "attribute_exists(#key_hash) AND attribute_not_exists(#revoked_at_epoch_s) "
                f"AND attribute_not_exists(#replaced_by) AND {as_read}"
            ),
            values={
                "ends": ends_at_epoch_s,
                "ttl": ends_at_epoch_s + KEPT_AFTER_END_S,
                "successor": new.key_id,
                "as_read": old.expires_at_epoch_s,
            },
        )
        return self._table.transact([self._put(new), ends]) is None

    def _put(self, key: PartnerKey) -> Write:
        ends = key.expires_at_epoch_s
        values = {
            "key_hash": key.key_hash,
            "key_id": key.key_id,
            "tenant": key.tenant,
            "scopes": list(key.scopes),
            "created_at_epoch_s": key.created_at_epoch_s,
            "expires_at_epoch_s": ends,
            "lifetime_s": key.lifetime_s,
            "ttl_epoch_s": ends + KEPT_AFTER_END_S if ends else None,
        }
        return Write(
            self._name,
            {"key_hash": key.key_hash},
            item=values,
            condition="attribute_not_exists(#key_hash)",
        )

    def all(self) -> list[PartnerKey]:
        """See PartnerKeys."""
        pages = self._table.client.get_paginator("scan").paginate(
            TableName=self._name, ConsistentRead=True
        )
        keys = [_key_of(from_item(item)) for page in pages for item in page["Items"]]
        return sorted(keys, key=lambda key: (key.tenant, key.created_at_epoch_s))

    def revoke(self, key_id: str, *, now_s: int) -> PartnerKey | None:
        """See PartnerKeys."""
        for key in self.all():
            if key.key_id == key_id:
                self._table.write(
                    Write(
                        self._name,
                        {"key_hash": key.key_hash},
                        update="SET #revoked_at_epoch_s = :now, #ttl_epoch_s = :ttl",
                        condition=(
                            "attribute_exists(#key_hash) AND "
                            "attribute_not_exists(#revoked_at_epoch_s)"
                        ),
                        values={"now": now_s, "ttl": now_s + KEPT_AFTER_END_S},
                    )
                )
                return self.find(key.key_hash)
        return None

    def note_use(self, key_hash: str, *, now_s: int) -> None:
        """See PartnerKeys."""
        # process A: reads the key, last used at 9 ── writes 10:05
        # process B: reads the key, last used at 9 ──────────────── writes 10:05: refused
        use = Write(
            self._name,
            {"key_hash": key_hash},
            update="SET #last_used_at_epoch_s = :now",
            condition=(
                "attribute_exists(#key_hash) AND attribute_not_exists(#revoked_at_epoch_s) "
                "AND (attribute_not_exists(#expires_at_epoch_s) OR #expires_at_epoch_s > :now) "
                "AND (attribute_not_exists(#last_used_at_epoch_s) "
                "OR #last_used_at_epoch_s <= :long_ago)"
            ),
            values={"now": now_s, "long_ago": now_s - USE_NOTED_EVERY_S},
        )
        try:
            self._hasty.write(use, tries=1)
        except ClientError as error:
            raise StoreBusyError("The use can't be written.", retry_after_s=1) from error


def _key_of(values: dict[str, Any]) -> PartnerKey:
    return PartnerKey(
        key_hash=values["key_hash"],
        key_id=values["key_id"],
        tenant=values.get("tenant", ""),
        scopes=tuple(values.get("scopes", ())),
        created_at_epoch_s=values["created_at_epoch_s"],
        expires_at_epoch_s=values.get("expires_at_epoch_s"),
        revoked_at_epoch_s=values.get("revoked_at_epoch_s"),
        lifetime_s=values.get("lifetime_s"),
        replaced_by=values.get("replaced_by"),
        last_used_at_epoch_s=values.get("last_used_at_epoch_s"),
    )
