"""The webhooks' master key: kept for a while, and never repeated in an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sluiceway.adapters.secrets_manager_webhooks import KEPT_MS, SecretsManagerWebhooks
from sluiceway.domain.errors import WebhookError

from tests.fakes.outside import MASTER

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock


class Secrets:
    """Secrets Manager; `failure` is raised, when there is one."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"SecretString": MASTER.decode()}
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
    return SecretsManagerWebhooks(lambda: secrets, "arn:of-the-secret", clock)  # type: ignore[arg-type,return-value]


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "hunter2"}}, "GetSecretValue")


def test_master_key_is_the_text_of_the_secret(
    port: SecretsManagerWebhooks, secrets: Secrets
) -> None:
    assert port.master() == MASTER
    assert secrets.asked == ["arn:of-the-secret"]


def test_master_key_is_kept_for_five_minutes(
    port: SecretsManagerWebhooks, secrets: Secrets, clock: FakeClock
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
    port: SecretsManagerWebhooks, secrets: Secrets, failure: Exception
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
    port: SecretsManagerWebhooks, secrets: Secrets, answer: dict[str, Any]
) -> None:
    secrets.answer = answer

    with pytest.raises(WebhookError) as caught:
        port.master()

    assert caught.value.reason == "secret_unusable"
    assert "hunter2" not in str(caught.value)
