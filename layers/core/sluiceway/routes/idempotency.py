"""Idempotency-Key: the same request again gets the same job, by Powertools idempotency.

A record keeps status, id and some headers for 24 hours; what is told again is read anew. Only what
succeeded is kept: a refusal wrote nothing, so the same request may try again.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluiceway.domain import ids
from sluiceway.domain.errors import (
    IdempotencyInProgressError,
    IdempotencyKeyReusedError,
    InvalidRequestError,
    JobNotFoundError,
    ResultExpiredError,
    StoreBusyError,
)
from sluiceway.domain.keys import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.http import Reply
    from sluiceway.routes.request import Request
    from sluiceway.usecases.authorize import Caller

KEPT_S = 24 * 3600
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_HEADERS = ("Location", "Cache-Status", "RateLimit", "RateLimit-Policy")


def answered_once(
    request: Request,
    caller: Caller,
    route: str,
    payload: Any,
    *,
    act: Callable[[], Reply],
    again: Callable[[str], Reply],
) -> Reply:
    """`act`'s reply, or that of the first request with this key, told again.

    `payload` is the JSON that must be the same. `act`'s body has an `id`; `again` makes a reply of
    one. Upper and lower case are different keys, and a key is of one tenant and route.
    A hit whose entry is gone can't be told again: `act` answers, and what it did is not kept.
    Raises InvalidRequestError, IdempotencyKeyReusedError, IdempotencyInProgressError,
    StoreBusyError, and as `act` and `again` do.
    """
    key = key_of(request)
    request.origin()  # a header that is refused the first time is refused the second time, too
    if key is None:
        return act()
    # The layer costs half a second of a cold start, so only who needs it pays for it.
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415
        IdempotencyConfig,
        exceptions,
        idempotent_function,
    )

    config = IdempotencyConfig(
        event_key_jmespath="key",
        payload_validation_jmespath="payload",
        expires_after_seconds=KEPT_S,
        hash_function="sha256",
        # A crash in between must not block the key for longer than this invocation could last.
        lambda_context=request.context,
    )
    replies: list[Reply] = []

    def act_for(asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - read by its name
        reply = act()
        replies.append(reply)
        kept = {name: reply.headers[name] for name in _KEPT_HEADERS if name in reply.headers}
        return {"status": reply.status, "id": reply.body["id"], "headers": kept}

    once = idempotent_function(
        act_for,
        data_keyword_argument="asked",
        persistence_store=request.deps.idempotency(),
        config=config,
        key_prefix="api",
    )
    asked = {"key": [caller.tenant, route, key], "payload": digest_of(payload)}
    try:
        kept = once(asked=asked)
    except exceptions.IdempotencyValidationError:
        raise IdempotencyKeyReusedError("This Idempotency-Key came with another body.") from None
    except (
        exceptions.IdempotencyAlreadyInProgressError,
        exceptions.IdempotencyInconsistentStateError,
    ):
        raise IdempotencyInProgressError(
            "The first request with this Idempotency-Key is still being answered.", retry_after_s=1
        ) from None
    except exceptions.IdempotencyPersistenceLayerError as error:
        if replies:  # the job is there; that its key isn't kept is no reason to hide it
            return replies[0]
        raise StoreBusyError("The Idempotency-Key can't be looked up.", retry_after_s=1) from error
    if replies:
        return replies[0]
    try:
        reply = again(kept["id"])
    except (JobNotFoundError, ResultExpiredError):
        if not kept["id"].startswith(ids.HIT_PREFIX):
            raise
        # The entry is gone. There is no job that this could be a second one of, and nobody could
        # use the key until tomorrow: it is answered as if it came for the first time.
        return act()
    return replace(
        reply,
        status=kept["status"],
        headers={**reply.headers, **kept["headers"], "Idempotent-Replayed": "true"},
    )


def key_of(request: Request) -> str | None:
    """The key without its quotes; None when there is none. Raises InvalidRequestError."""
    given = request.all_of("idempotency-key")
    if not given:
        return None
    key = str(given[0]).strip()
    if key.startswith('"') and key.endswith('"') and len(key) > 1:
        key = key[1:-1]
    if len(given) > 1 or not _KEY.fullmatch(key):
        raise InvalidRequestError("Idempotency-Key is one of 1 to 255 visible ASCII characters.")
    return key
