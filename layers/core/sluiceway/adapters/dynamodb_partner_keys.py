"""API keys in the Partners table (port PartnerKeys)."""

from typing import Any

from sluiceway.adapters.dynamodb import Table, Write, from_item
from sluiceway.ports import PartnerKey

KEPT_AFTER_EXPIRY_S = 90 * 24 * 3600
"""So that `keys list` still shows what has ended lately."""


class DynamoDBPartnerKeys:
    """Weakness: listing and revoking scan the table, which holds a few keys for each partner."""

    def __init__(self, table: Table, name: str) -> None:
        """`name`: of the Partners table."""
        self._table = table
        self._name = name

    def find(self, key_hash: str) -> PartnerKey | None:
        """See PartnerKeys."""
        values = self._table.read(self._name, {"key_hash": key_hash})
        return None if values is None else _key_of(values)

    def add(self, key: PartnerKey) -> None:
        """See PartnerKeys."""
        ends = key.expires_at_epoch_s
        values = {
            "key_hash": key.key_hash,
            "key_id": key.key_id,
            "tenant": key.tenant,
            "scopes": list(key.scopes),
            "created_at_epoch_s": key.created_at_epoch_s,
            "expires_at_epoch_s": ends,
            "ttl_epoch_s": ends + KEPT_AFTER_EXPIRY_S if ends else None,
        }
        self._table.write(
            Write(
                self._name,
                {"key_hash": key.key_hash},
                item=values,
                condition="attribute_not_exists(#key_hash)",
            )
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
                        update="SET #revoked_at_epoch_s = :now",
                        condition=(
                            "attribute_exists(#key_hash) AND "
                            "attribute_not_exists(#revoked_at_epoch_s)"
                        ),
                        values={"now": now_s},
                    )
                )
                return self.find(key.key_hash)
        return None


def _key_of(values: dict[str, Any]) -> PartnerKey:
    return PartnerKey(
        key_hash=values["key_hash"],
        key_id=values["key_id"],
        tenant=values.get("tenant", ""),
        scopes=tuple(values.get("scopes", ())),
        created_at_epoch_s=values["created_at_epoch_s"],
        expires_at_epoch_s=values.get("expires_at_epoch_s"),
        revoked_at_epoch_s=values.get("revoked_at_epoch_s"),
    )
