"""Who is calling: an Authorization header becomes a tenant and its scopes."""

from dataclasses import dataclass

from sluiceway.domain import api_key
from sluiceway.domain.errors import ForbiddenError, UnauthenticatedError
from sluiceway.ports import Clock, PartnerKey, PartnerKeys


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


def authorize(authorization: str, *, keys: PartnerKeys, clock: Clock) -> PartnerKey | None:
    """The key in an `Authorization: Bearer <key>` header, when it opens the API; else None."""
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token.startswith(api_key.PREFIX) or not token.isascii():
        return None
    key = keys.find(api_key.key_hash(token))
    if key is None or not key.tenant or not key.usable(clock.now_ms() / 1000):
        return None
    return key
