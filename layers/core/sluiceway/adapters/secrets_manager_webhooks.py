"""The tenants' webhook secrets from Secrets Manager (port WebhookSecrets)."""

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import WebhookError
from sluiceway.domain.webhook import secret_keys
from sluiceway.ports import Clock

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

PREFIX = "sluiceway/webhooks/"
"""Before the tenant, in a secret's name."""

KEPT_MS = 300_000
"""A changed secret is honoured after 5 minutes; a new one at once."""


class SecretsManagerWebhooks:
    """Weakness: for up to 5 minutes after a change the old secret signs."""

    def __init__(self, client: "SecretsManagerClient", clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._kept: dict[str, tuple[int, tuple[bytes, ...]]] = {}

    def keys(self, tenant: str) -> tuple[bytes, ...] | None:
        """See WebhookSecrets."""
        now_ms = self._clock.now_ms()
        kept = self._kept.get(tenant)
        if kept is not None and now_ms - kept[0] < KEPT_MS:
            return kept[1]
        try:
            text = self._client.get_secret_value(SecretId=PREFIX + tenant)["SecretString"]
            keys = secret_keys(text)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ResourceNotFoundException":
                return None
            raise WebhookError("secret_unreadable", f"Its secret can't be read: {code}.") from error
        except BotoCoreError as error:
            raise WebhookError("secret_unreadable", "Its secret can't be reached.") from error
        except (KeyError, ValueError) as error:
            raise WebhookError("secret_unusable", "Its secret is no webhook secret.") from error
        self._kept[tenant] = (now_ms, keys)
        return keys
