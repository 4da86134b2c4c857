"""Who is calling: an Authorization header becomes a tenant and its scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluiceway.domain import api_key
from sluiceway.domain.errors import ForbiddenError, StoreBusyError, UnauthenticatedError

if TYPE_CHECKING:
    from sluiceway.ports import Clock, PartnerKey, PartnerKeys, Telemetry


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom the authorizer let in. The tenant comes from here and from nowhere else."""

    tenant: str
    scopes: frozenset[str]
    key_id: str

    def __post_init__(self) -> None:
        """An empty tenant would turn the filter by owner off."""
        if not self.tenant:
            raise UnauthenticatedError("The request has no tenant.")

    def require(self, scope: str) -> None:
        """Raises ForbiddenError when the key lacks `scope`."""
        if scope not in self.scopes:
            raise ForbiddenError(f"This API key lacks the scope {scope!r}.")


def authorize(
    authorization: str, *, keys: PartnerKeys, clock: Clock, telemetry: Telemetry
) -> PartnerKey | None:
    """The key in an `Authorization: Bearer <key>` header, when it opens the API; else None.

    Its use is put down once an hour at most; when that fails, the caller gets in all the same.
    """
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not api_key.well_formed(token):
        return None
    key = keys.find(api_key.key_hash(token))
    now_ms = clock.now_ms()
    if key is None or not key.tenant or not key.usable(now_ms / 1000):
        return None
    now_s, used_s = now_ms // 1000, key.last_used_at_epoch_s
    if used_s is None or now_s - used_s >= api_key.USE_NOTED_EVERY_S:
        try:
            keys.note_use(key.key_hash, now_s=now_s)
        except StoreBusyError as error:
            cause = type(error.__cause__ or error).__name__
            telemetry.event("key_use_lost", key_id=key.key_id, error_class=cause)
    return key
