"""Calls to AWS whose signature was too old when they arrived.

Lambda freezes a process between two events, and sometimes in the middle of a call: what was signed
before the freeze is sent after it, and refused. A new signature is all that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_EXPIRED = frozenset(
    {
        "InvalidSignatureException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
"""Each service has its word. Most say the same of a wrong key, so once must be enough."""


def renew(client: Any, on_renewal: Callable[[], None]) -> Any:
    """The client, which makes a call whose signature expired once more, signed anew.

    botocore signs each try, but doesn't try again by itself. Only the first try counts, so that
    the configured number of tries is never exceeded. `on_renewal` is told of each.
    """

    def now(response: Any, attempts: int, **_: Any) -> int | None:
        """In seconds, when to try again."""
        if response is None or attempts > 1:
            return None
        _, parsed = response
        if parsed.get("Error", {}).get("Code") not in _EXPIRED:
            return None
        on_renewal()
        return 0

    client.meta.events.register("needs-retry", now)
    return client
