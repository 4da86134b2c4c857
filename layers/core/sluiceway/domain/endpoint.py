"""A tenant's webhook endpoints: addresses that are told of all its jobs, and what signs for them.

All of a tenant's endpoints are changed together, by pure functions from what there is to what there
is to be. Signing keys are derived and stored nowhere: whoever holds the service's master key can
make each of them anew.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from sluiceway.domain import ids
from sluiceway.domain.errors import ValidationFailedError, WebhookNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

EventType = Literal["job.completed", "job.failed", "job.dead_lettered", "job.cancelled"]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
TEST_TYPE = "webhook.test"
"""Of what a partner asks for, to see an endpoint work."""

CALLBACKS = "callbacks"
"""The id of the endpoint that every tenant has: the addresses that come with jobs."""

MAX_ENDPOINTS = 10
"""Of one tenant, besides its callbacks."""

MAX_SECRETS = 5
"""Of one endpoint that sign at a time; with one more the oldest ends at once."""

DEFAULT_OVERLAP_S = 24 * 3600
MAX_OVERLAP_S = 7 * 24 * 3600
"""How long the secrets before a rotation sign besides the new one."""

SECRET_PREFIX = "whsec_"  # noqa: S105 - of every secret, no secret itself

_ID_PREFIX = "whk_"


@dataclass(frozen=True, slots=True)
class Secret:
    """One generation of an endpoint's secret, and when it ends; None: it is the newest."""

    generation: int
    ends_at_epoch_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant's events go, and by what they are signed."""

    endpoint_id: str
    url: str | None
    """None of the callbacks, whose addresses come with the jobs."""
    events: tuple[str, ...] = EVENT_TYPES
    """The types that it is told."""
    description: str = ""
    created_at_epoch_ms: int | None = None
    """None of the callbacks, which were always there."""
    secrets: tuple[Secret, ...] = (Secret(1),)
    """The newest first. Generations begin at 1, and never again."""
    disabled_at_epoch_ms: int | None = None
    disabled_reason: str | None = None

    @property
    def disabled(self) -> bool:
        """Whether it is told nothing but tests."""
        return self.disabled_at_epoch_ms is not None

    def wants(self, event_type: str) -> bool:
        """Whether an event of this type is sent to its address."""
        return self.url is not None and not self.disabled and event_type in self.events

    def generations(self, now_ms: int) -> tuple[int, ...]:
        """The secrets that sign now, the newest first."""
        return tuple(secret.generation for secret in self.secrets if _lives(secret, now_ms))


Endpoints = tuple[Endpoint, ...]
"""All of a tenant: its callbacks, then the others by age."""

NO_ENDPOINTS: Endpoints = (Endpoint(CALLBACKS, None),)
"""Of a tenant that has registered nothing."""


def endpoint_id(now_ms: int, randomness: bytes) -> str:
    """An id of 30 URL-safe characters, as `ids.job_id`."""
    return ids.by_age(_ID_PREFIX, now_ms, randomness)


def find(endpoints: Endpoints, given: str) -> Endpoint | None:
    """The endpoint of this id."""
    return next((one for one in endpoints if one.endpoint_id == given), None)


def get(endpoints: Endpoints, given: str) -> Endpoint:
    """The endpoint of this id. Raises WebhookNotFoundError."""
    found = find(endpoints, given)
    if found is None:
        raise WebhookNotFoundError("There is no such webhook.")
    return found


def with_address(endpoints: Endpoints, given: str) -> Endpoint:
    """The endpoint of this id, which isn't the callbacks.

    Raises WebhookNotFoundError or ValidationFailedError.
    """
    found = get(endpoints, given)
    if found.url is None:
        raise ValidationFailedError("The callbacks have no address to delete or to test.")
    return found


# ------------------------------------------------------------------------------------ changes


def added(endpoints: Endpoints, new: Endpoint) -> Endpoints:
    """With a new one. Raises ValidationFailedError when there are MAX_ENDPOINTS."""
    if len(endpoints) - len(NO_ENDPOINTS) >= MAX_ENDPOINTS:
        raise ValidationFailedError(
            f"There are {MAX_ENDPOINTS} webhooks already, which is the most; delete one first."
        )
    return (*endpoints, new)


def removed(endpoints: Endpoints, given: str) -> Endpoints:
    """Without this one. Raises WebhookNotFoundError or ValidationFailedError."""
    gone = with_address(endpoints, given)
    return tuple(one for one in endpoints if one != gone)


def rotated(endpoints: Endpoints, given: str, *, now_ms: int, overlap_s: int) -> Endpoints:
    """With a new secret of this endpoint; those before sign for `overlap_s` more at most.

    Raises WebhookNotFoundError.
    """
    found = get(endpoints, given)
    ends_at_ms = now_ms + overlap_s * 1000
    before = [
        replace(secret, ends_at_epoch_ms=min(ends_at_ms, secret.ends_at_epoch_ms or ends_at_ms))
        for secret in found.secrets
    ]
    secrets = (
        Secret(found.secrets[0].generation + 1),
        *(secret for secret in before if _lives(secret, now_ms)),
    )
    return _replaced(endpoints, replace(found, secrets=secrets[:MAX_SECRETS]))


def disabled(endpoints: Endpoints, given: str, *, now_ms: int, reason: str) -> Endpoints:
    """With this endpoint told nothing more; unchanged when it is gone or disabled already."""
    found = find(endpoints, given)
    if found is None or found.disabled:
        return endpoints
    return _replaced(endpoints, replace(found, disabled_at_epoch_ms=now_ms, disabled_reason=reason))


def enabled(endpoints: Endpoints, given: str) -> Endpoints:
    """With this endpoint told again; unchanged when it is gone or enabled already."""
    found = find(endpoints, given)
    if found is None or not found.disabled:
        return endpoints
    return _replaced(endpoints, replace(found, disabled_at_epoch_ms=None, disabled_reason=None))


def _replaced(endpoints: Endpoints, new: Endpoint) -> Endpoints:
    return tuple(new if one.endpoint_id == new.endpoint_id else one for one in endpoints)


def _lives(secret: Secret, now_ms: int) -> bool:
    return secret.ends_at_epoch_ms is None or now_ms < secret.ends_at_epoch_ms


# ------------------------------------------------------------------------------------ secrets


def signing_key(master: bytes, tenant: str, endpoint_id: str, generation: int) -> bytes:
    """The 32 bytes that sign for an endpoint: other ones for each of tenant, id and generation."""
    derived_from = json.dumps(["sluiceway webhook", tenant, endpoint_id, generation])
    return hmac.digest(master, derived_from.encode(), hashlib.sha256)


def signing_keys(master: bytes, tenant: str, endpoint: Endpoint, *, now_ms: int) -> Sequence[bytes]:
    """The keys that sign now, the newest first; one at least."""
    return [
        signing_key(master, tenant, endpoint.endpoint_id, generation)
        for generation in endpoint.generations(now_ms)
    ]


def secret_text(key: bytes) -> str:
    """A key as the partner gets it: `whsec_<base64>`, the form of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(key).decode()
