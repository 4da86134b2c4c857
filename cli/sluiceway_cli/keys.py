"""Making API keys."""

import re
import secrets
from typing import Any

from sluiceway.domain import api_key
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.http import rfc3339
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


def valid_tenant(name: str) -> str:
    """`name`, when it may name a tenant. Raises ValueError."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"{name!r} can't name a tenant: up to 63 lower-case letters, digits, '.', '_' and '-'"
        )
    return name


def shown(key: PartnerKey, *, now_s: float) -> dict[str, Any]:
    """What is told of a key; never the key."""
    if key.revoked_at_epoch_s is not None:
        status = "revoked"
    else:
        status = "live" if key.usable(now_s) else "expired"
    return {
        "key_id": key.key_id,
        "tenant": key.tenant,
        "status": status,
        "scopes": list(key.scopes),
        "created_at": _moment(key.created_at_epoch_s),
        "expires_at": _moment(key.expires_at_epoch_s),
        "revoked_at": _moment(key.revoked_at_epoch_s),
    }


def _moment(epoch_s: int | None) -> str | None:
    return rfc3339(None if epoch_s is None else epoch_s * 1000)
