"""Webhooks: whether one is real (github.com/standard-webhooks/standard-webhooks, spec 1.0)."""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sluiceway_client.errors import WebhookVerificationError
from sluiceway_client.models import Event

_PREFIX = "whsec_"


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance_s: float = 300,
    now: datetime | None = None,
) -> Event:
    """The event that a webhook tells, once its signature and its time are checked.

    `body`: the bytes that came in, not parsed and serialised again. `headers`: of the request, in
    whatever case. `secret`: the webhook's, `whsec_...`; several of them while it is rotated.
    `tolerance_s`: how far the webhook's time may be from `now`, which keeps old ones from being
    played again. `now`: with a time zone; what the clock says without it.

    Raises WebhookVerificationError, and ValueError for a secret that is none.
    """
    keys = [_key(one) for one in ([secret] if isinstance(secret, str) else secret)]
    if not keys:
        raise ValueError("give a webhook secret")
    given = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp, signatures = (
            given[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
        )
    except KeyError as error:
        raise WebhookVerificationError(f"the header {error.args[0]} is missing") from None
    if not re.fullmatch(r"[0-9]{1,12}", timestamp):
        raise WebhookVerificationError("webhook-timestamp is not a time")
    age_s = (now or datetime.now(UTC)).timestamp() - int(timestamp)
    if abs(age_s) > tolerance_s:
        raise WebhookVerificationError(
            f"the webhook was sent {abs(age_s):.0f} s {'ago' if age_s > 0 else 'in the future'}"
        )
    signed = f"{event_id}.{timestamp}.".encode(errors="replace") + body
    expected = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)) for key in keys]
    offered = [
        signature.encode(errors="replace")
        for version, _, signature in (one.partition(",") for one in signatures.split())
        if version == "v1"
    ]
    # All are compared, so that the time that it takes says nothing of which one was right.
    if not any([hmac.compare_digest(ours, theirs) for ours in expected for theirs in offered]):  # noqa: C419
        raise WebhookVerificationError("no signature is by this secret")
    return _event(event_id, body)


def _key(secret: str) -> bytes:
    encoded = secret.strip().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        # Without its cause, whose text may hold the secret.
        raise ValueError(f"a webhook secret is {_PREFIX} and base64") from None
    return key


def _event(event_id: str, body: bytes) -> Event:
    try:
        told = json.loads(body)
        return Event(
            event_id, told["type"], datetime.fromisoformat(told["timestamp"]), told.get("data", {})
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WebhookVerificationError("the webhook is signed, but tells no event") from error
