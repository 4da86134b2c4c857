"""The vendors' API keys from Secrets Manager, kept for a while in the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import NotCalledError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_secretsmanager import SecretsManagerClient

    from sluiceway.ports import Clock

KEPT_MS = 300_000
"""A rotated key is used after 5 minutes at the latest, and without a deploy."""

ASKED_AGAIN_AFTER_MS = 5_000
"""A key that the vendor refuses is read anew when it is older, so that a rotation is noticed at
once, and a key that is just wrong asks Secrets Manager once in this time, whatever is refused."""

_HOPELESS = frozenset(
    {"ResourceNotFoundException", "AccessDeniedException", "InvalidRequestException"}
)
"""There is no such secret, or it is not for us: waiting doesn't help."""


class SecretsManagerKeys:
    """Weakness: for up to 5 minutes after a rotation the old key is sent, until it is refused."""

    def __init__(self, client: Callable[[], SecretsManagerClient], clock: Clock) -> None:
        """`client` gives the client, the same each time."""
        self._client = client
        self._clock = clock
        self._kept: dict[str, tuple[int, str]] = {}
        self._asked_at_ms: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        """The secret string. Raises NotCalledError when it can't be read."""
        read_at_ms, value = self._kept.get(name, (-KEPT_MS, ""))
        return value if self._clock.now_ms() - read_at_ms < KEPT_MS else self._read(name)

    def successor(self, name: str, refused: str) -> str | None:
        """What has replaced the key that was refused; None when nothing has, as far as one knows.

        Unreadable secrets are "nothing": what the vendor said tells more than what we couldn't ask.
        """
        if self._clock.now_ms() - self._asked_at_ms.get(name, 0) <= ASKED_AGAIN_AFTER_MS:
            return None
        try:
            value = self._read(name)
        except NotCalledError:
            return None
        return value if value != refused else None

    def _read(self, name: str) -> str:
        now_ms = self._clock.now_ms()
        self._asked_at_ms[name] = now_ms
        try:
            value = self._client().get_secret_value(SecretId=name)["SecretString"]
        except ClientError as error:
            code = error.response["Error"]["Code"]
            raise NotCalledError(
                "vendor_auth_failed",
                f"The vendor's secret can't be read ({code}).",
                retryable=code not in _HOPELESS,
            ) from error
        except BotoCoreError as error:
            raise NotCalledError(
                "vendor_auth_failed", "The vendor's secret can't be reached.", retryable=True
            ) from error
        except KeyError:
            raise NotCalledError(
                "vendor_auth_failed", "The vendor's secret is no text.", retryable=False
            ) from None
        self._kept[name] = (now_ms, value)
        return value
