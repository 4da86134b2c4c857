"""The vendors' keys: read once in a while, and never a crash when they can't be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from sluiceway.adapters.secrets_manager import KEPT_MS, SecretsManagerKeys
from sluiceway.domain.errors import VendorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.in_memory import FakeClock

NAME = "sluiceway/vendors/v"
URL = "https://secretsmanager.us-east-1.amazonaws.com"


class Secrets:
    """Secrets Manager with one secret; `failure` is raised, when there is one."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"SecretString": "sk-hunter2"}
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
def keys(secrets: Secrets, clock: FakeClock) -> Callable[[str], str]:
    return SecretsManagerKeys(lambda: secrets, clock)  # type: ignore[arg-type,return-value]


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetSecretValue")


def test_secret_is_read_by_its_name(keys: Callable[[str], str], secrets: Secrets) -> None:
    assert keys(NAME) == "sk-hunter2"
    assert secrets.asked == [NAME]


def test_secret_is_kept_for_a_while(
    keys: Callable[[str], str], secrets: Secrets, clock: FakeClock
) -> None:
    keys(NAME)
    clock.advance(ms=KEPT_MS - 1)

    assert keys(NAME) == "sk-hunter2"
    assert len(secrets.asked) == 1


def test_secret_that_was_rotated_is_read_after_a_while(
    keys: Callable[[str], str], secrets: Secrets, clock: FakeClock
) -> None:
    keys(NAME)
    secrets.answer = {"SecretString": "sk-new"}
    clock.advance(ms=KEPT_MS)

    assert keys(NAME) == "sk-new"


def test_secrets_of_two_names_are_two(keys: Callable[[str], str], secrets: Secrets) -> None:
    keys(NAME)
    secrets.answer = {"SecretString": "sk-other"}

    assert (keys("sluiceway/vendors/w"), keys(NAME)) == ("sk-other", "sk-hunter2")


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [
        (refused("ResourceNotFoundException"), False),
        (refused("AccessDeniedException"), False),
        (refused("ThrottlingException"), True),
        (refused("InternalServiceError"), True),
        (EndpointConnectionError(endpoint_url=URL), True),
        (ConnectTimeoutError(endpoint_url=URL), True),
        (ReadTimeoutError(endpoint_url=URL), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_secret_that_can_not_be_read_is_a_vendor_error(
    keys: Callable[[str], str], secrets: Secrets, failure: Exception, *, retryable: bool
) -> None:
    # Any other error takes the worker down, with the lease in its hand and an attempt spent.
    secrets.failure = failure

    with pytest.raises(VendorError) as caught:
        keys(NAME)

    assert caught.value.retryable is retryable


def test_secret_that_is_no_text_is_a_vendor_error(
    keys: Callable[[str], str], secrets: Secrets
) -> None:
    secrets.answer = {"SecretBinary": b"sk-hunter2"}

    with pytest.raises(VendorError) as caught:
        keys(NAME)

    assert not caught.value.retryable


def test_secret_that_can_not_be_read_is_asked_for_again(
    keys: Callable[[str], str], secrets: Secrets
) -> None:
    secrets.failure = refused("ThrottlingException")
    with pytest.raises(VendorError):
        keys(NAME)
    secrets.failure = None

    assert keys(NAME) == "sk-hunter2"
