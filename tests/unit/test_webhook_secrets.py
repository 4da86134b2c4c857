"""The tenants' webhook secrets: kept for a while, missing for as short as can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sluiceway.adapters.secrets_manager_webhooks import KEPT_MS, SecretsManagerWebhooks
from sluiceway.domain.errors import WebhookError

from tests.fakes.outside import KEY, SECRET

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock


class Secrets:
    """Secrets Manager; `failure` is raised, when there is one."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"SecretString": SECRET}
        self.failure: Exception | None = None
        self.asked: list[str] = []

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]:  # noqa: N803 - boto3's name
        self.asked.append(SecretId)
        if self.failure is not None:
            raise self.failure
        return self.answer


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def port(secrets: Secrets, clock: FakeClock) -> SecretsManagerWebhooks:
    return SecretsManagerWebhooks(secrets, clock)  # type: ignore[arg-type]


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "hunter2"}}, "GetSecretValue")


def test_secret_is_found_under_the_tenants_name(
    port: SecretsManagerWebhooks, secrets: Secrets
) -> None:
    assert port.keys("acme") == (KEY,)
    assert secrets.asked == ["sluiceway/webhooks/acme"]


def test_tenants_do_not_share_a_secret(port: SecretsManagerWebhooks, secrets: Secrets) -> None:
    port.keys("acme")
    port.keys("globex")

    assert secrets.asked == ["sluiceway/webhooks/acme", "sluiceway/webhooks/globex"]


def test_secret_is_kept_for_five_minutes(
    port: SecretsManagerWebhooks, secrets: Secrets, clock: FakeClock
) -> None:
    port.keys("acme")
    clock.advance(KEPT_MS - 1)
    port.keys("acme")
    assert len(secrets.asked) == 1

    clock.advance(1)
    port.keys("acme")
    assert len(secrets.asked) == 2


def test_new_secret_is_found_at_once(port: SecretsManagerWebhooks, secrets: Secrets) -> None:
    secrets.failure = refused("ResourceNotFoundException")
    assert port.keys("acme") is None

    secrets.failure = None
    assert port.keys("acme") == (KEY,)


@pytest.mark.parametrize(
    "failure",
    [
        refused("AccessDeniedException"),
        refused("ThrottlingException"),
        EndpointConnectionError(endpoint_url="https://secretsmanager.invalid"),
    ],
)
def test_secret_that_cannot_be_read_is_no_missing_one(
    port: SecretsManagerWebhooks, secrets: Secrets, failure: Exception
) -> None:
    secrets.failure = failure

    with pytest.raises(WebhookError) as caught:
        port.keys("acme")

    assert caught.value.reason == "secret_unreadable"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("answer", [{"SecretString": "hunter2"}, {"SecretBinary": b"hunter2"}])
def test_secret_that_is_no_webhook_secret(
    port: SecretsManagerWebhooks, secrets: Secrets, answer: dict[str, Any]
) -> None:
    secrets.answer = answer

    with pytest.raises(WebhookError) as caught:
        port.keys("acme")

    assert caught.value.reason == "secret_unusable"
    assert "hunter2" not in str(caught.value)
