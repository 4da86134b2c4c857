"""The webhooks' master key from Secrets Manager (port WebhookSecrets)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import WebhookError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_secretsmanager import SecretsManagerClient

    from sluiceway.ports import Clock

KEPT_MS = 300_000
"""A master key that was replaced is honoured after 5 minutes."""

MIN_MASTER_BYTES = 32


class SecretsManagerWebhooks:
    """Weakness: for up to 5 minutes after the master key was replaced the old one is used."""

    def __init__(
        self, client: Callable[[], SecretsManagerClient], secret: str, clock: Clock
    ) -> None:
        """`client` gives the client, the same each time; `secret`: the secret's name or ARN."""
        self._client = client
        self._secret = secret
        self._clock = clock
        self._master = b""
        self._read_at_ms = -KEPT_MS

    def master(self) -> bytes:
        """See WebhookSecrets."""
        now_ms = self._clock.now_ms()
        if now_ms - self._read_at_ms < KEPT_MS:
            return self._master
        try:
            text = self._client().get_secret_value(SecretId=self._secret)["SecretString"]
        except ClientError as error:
            code = error.response["Error"]["Code"]
            raise WebhookError("secret_unreadable", f"The secret can't be read: {code}.") from error
        except BotoCoreError as error:
            raise WebhookError("secret_unreadable", "The secret can't be reached.") from error
        except KeyError:
            raise WebhookError("secret_unusable", "The master key is no text.") from None
        if len(text.encode()) < MIN_MASTER_BYTES:
            raise WebhookError("secret_unusable", "The master key is too short.")
        self._master, self._read_at_ms = text.encode(), now_ms
        return self._master
