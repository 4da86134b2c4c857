"""The webhooks' master key: kept for a while, and never repeated in an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sluiceway.adapters.secrets_manager_webhooks import KEPT_MS, SecretsManagerWebhooks
from sluiceway.domain.errors import WebhookError

from tests.fakes.outside import MASTER, FakeSecretsManager

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock


@pytest.fixture
def secrets() -> FakeSecretsManager:
    return FakeSecretsManager(MASTER.decode())


@pytest.fixture
def port(secrets: FakeSecretsManager, clock: FakeClock) -> SecretsManagerWebhooks:
    return SecretsManagerWebhooks(lambda: secrets, "arn:of-the-secret", clock)  # type: ignore[arg-type,return-value]


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "hunter2"}}, "GetSecretValue")


def test_master_key_is_the_text_of_the_secret(
    port: SecretsManagerWebhooks, secrets: FakeSecretsManager
) -> None:
    assert port.master() == MASTER
    assert secrets.asked == ["arn:of-the-secret"]


def test_master_key_is_kept_for_five_minutes(
    port: SecretsManagerWebhooks, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    port.master()
    clock.advance(KEPT_MS - 1)
    port.master()
    assert len(secrets.asked) == 1

    clock.advance(1)
    port.master()
    assert len(secrets.asked) == 2


@pytest.mark.parametrize(
    "failure",
    [
        refused("ResourceNotFoundException"),
        refused("AccessDeniedException"),
        refused("ThrottlingException"),
        EndpointConnectionError(endpoint_url="https://secretsmanager.invalid"),
    ],
)
def test_failure_is_not_kept(
    port: SecretsManagerWebhooks, secrets: FakeSecretsManager, failure: Exception
) -> None:
    secrets.failure = failure

    with pytest.raises(WebhookError) as caught:
        port.master()

    assert caught.value.reason == "secret_unreadable"
    assert "hunter2" not in str(caught.value)
    secrets.failure = None
    assert port.master() == MASTER


@pytest.mark.parametrize("answer", [{"SecretString": "hunter2"}, {"SecretBinary": b"hunter2"}])
def test_secret_that_can_be_no_master_key(
    port: SecretsManagerWebhooks, secrets: FakeSecretsManager, answer: dict[str, Any]
) -> None:
    secrets.answer = answer

    with pytest.raises(WebhookError) as caught:
        port.master()

    assert caught.value.reason == "secret_unusable"
    assert "hunter2" not in str(caught.value)
