"""Making API keys, and replacing them."""

import re
import secrets
from typing import Any

from sluiceway.domain import api_key
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.domain.times import rfc3339
from sluiceway.ports import Clock, PartnerKey, PartnerKeys

LIVE_KEYS = 2
"""Of a tenant, at most: the one in use, and its successor during a rotation."""

EXPIRING_S = 7 * 24 * 3600
"""A key that ends within it is about to."""


def create_key(
    tenant: str,
    scopes: tuple[str, ...],
    *,
    keys: PartnerKeys,
    clock: Clock,
    lifetime_s: int | None = None,
    expires_at_s: int | None = None,
) -> tuple[str, PartnerKey]:
    """A new key for `tenant`, which is told once and never again, and what was stored of it.

    It lives for `lifetime_s`, or until `expires_at_s`, or for ever.
    """
    key, stored = _made(
        tenant, scopes, clock=clock, lifetime_s=lifetime_s, expires_at_s=expires_at_s
    )
    keys.add(stored)
    return key, stored


def rotate_key(
    old: PartnerKey, *, overlap_s: int, keys: PartnerKeys, clock: Clock
) -> tuple[str, PartnerKey, PartnerKey]:
    """A new key in the place of `old`, what was stored of it, and `old` as it is then.

    The new key may do the same, and lives as long as `old` was made for; when that was until a
    date, until that date. `old` ends after the overlap, and never later than it would have.

    Raises ValueError when `old` opens nothing any more, or was replaced.
    """
    now_s = clock.now_ms() // 1000
    if old.revoked_at_epoch_s is not None:
        raise ValueError(f"{old.key_id} is revoked; make another with: keys create")
    if not old.usable(now_s):
        raise ValueError(f"{old.key_id} has expired; make another with: keys create")
    if old.replaced_by is not None:
        raise ValueError(
            f"{old.key_id} was replaced by {old.replaced_by} already; rotate that one, "
            f"or revoke {old.key_id} when it must end sooner"
        )
    key, new = _made(
        old.tenant,
        old.scopes,
        clock=clock,
        lifetime_s=old.lifetime_s,
        expires_at_s=old.expires_at_epoch_s,
    )
    ends_s = now_s + overlap_s
    if old.expires_at_epoch_s is not None:
        ends_s = min(ends_s, old.expires_at_epoch_s)
    if not keys.replace(old, new, ends_at_epoch_s=ends_s):
        raise ValueError(f"{old.key_id} was revoked or replaced just now; see: keys list")
    return key, new, old._replace(expires_at_epoch_s=ends_s, replaced_by=new.key_id)


def _made(
    tenant: str,
    scopes: tuple[str, ...],
    *,
    clock: Clock,
    lifetime_s: int | None,
    expires_at_s: int | None,
) -> tuple[str, PartnerKey]:
    key = api_key.api_key(secrets.token_bytes(32))
    hashed = api_key.key_hash(key)
    now_s = clock.now_ms() // 1000
    return key, PartnerKey(
        key_hash=hashed,
        key_id=api_key.key_id(hashed),
        tenant=tenant,
        scopes=scopes,
        created_at_epoch_s=now_s,
        expires_at_epoch_s=expires_at_s if lifetime_s is None else now_s + lifetime_s,
        lifetime_s=lifetime_s,
    )


def live_keys(tenant: str, *, keys: PartnerKeys, now_s: float) -> list[PartnerKey]:
    """The keys of `tenant` that open the API now."""
    return [key for key in keys.all() if key.tenant == tenant and key.usable(now_s)]


def valid_tenant(name: str) -> str:
    """`name`, when it may name a tenant. Raises ValueError."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"{name!r} can't name a tenant: up to 63 lower-case letters, digits, '.', '_' and '-'"
        )
    return name


def shown(key: PartnerKey, *, now_s: float) -> dict[str, Any]:
    """What is told of a key; never the key."""
    return {
        "key_id": key.key_id,
        "tenant": key.tenant,
        "status": _status(key, now_s),
        "scopes": list(key.scopes),
        "created_at": _moment(key.created_at_epoch_s),
        "last_used_at": _moment(key.last_used_at_epoch_s),
        "expires_at": _moment(key.expires_at_epoch_s),
        "revoked_at": _moment(key.revoked_at_epoch_s),
        "replaced_by": key.replaced_by,
    }


def _status(key: PartnerKey, now_s: float) -> str:
    if key.revoked_at_epoch_s is not None:
        return "revoked"
    if not key.usable(now_s):
        return "expired"
    return "live" if key.replaced_by is None and key.usable(now_s + EXPIRING_S) else "expiring"


def _moment(epoch_s: int | None) -> str | None:
    return rfc3339(None if epoch_s is None else epoch_s * 1000)
