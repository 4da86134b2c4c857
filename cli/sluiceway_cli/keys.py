"""Making API keys."""

import secrets

from sluiceway.domain import api_key
from sluiceway.ports import Clock, PartnerKey, PartnerKeys


def create_key(
    tenant: str,
    scopes: tuple[str, ...],
    *,
    keys: PartnerKeys,
    clock: Clock,
    expires_in_s: int | None = None,
) -> tuple[str, PartnerKey]:
    """A new key for `tenant`, which is told once and never again, and what was stored of it."""
    key = api_key.api_key(secrets.token_bytes(32))
    hashed = api_key.key_hash(key)
    now_s = clock.now_ms() // 1000
    stored = PartnerKey(
        key_hash=hashed,
        key_id=api_key.key_id(hashed),
        tenant=tenant,
        scopes=scopes,
        created_at_epoch_s=now_s,
        expires_at_epoch_s=None if expires_in_s is None else now_s + expires_in_s,
    )
    keys.add(stored)
    return key, stored
