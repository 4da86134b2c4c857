"""The vendors' keys: read once in a while, and never a crash when they can't be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from sluiceway.adapters.secrets_manager import (
    ASKED_AGAIN_AFTER_MS,
    KEPT_MS,
    SecretsManagerKeys,
)
from sluiceway.domain.errors import VendorError

from tests.fakes.outside import FakeSecretsManager

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock

NAME = "sluiceway/vendors/v"
URL = "https://secretsmanager.us-east-1.amazonaws.com"


@pytest.fixture
def secrets() -> FakeSecretsManager:
    return FakeSecretsManager()


@pytest.fixture
def keys(secrets: FakeSecretsManager, clock: FakeClock) -> SecretsManagerKeys:
    return secrets.vendor_keys(clock)


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetSecretValue")


def test_secret_is_read_by_its_name(keys: SecretsManagerKeys, secrets: FakeSecretsManager) -> None:
    assert keys(NAME) == "sk-hunter2"
    assert secrets.asked == [NAME]


def test_secret_is_kept_for_a_while(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    keys(NAME)
    clock.advance(ms=KEPT_MS - 1)

    assert keys(NAME) == "sk-hunter2"
    assert len(secrets.asked) == 1


def test_secret_that_was_rotated_is_read_after_a_while(  # case Z02
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    keys(NAME)
    secrets.rotate("sk-new")
    clock.advance(ms=KEPT_MS)

    assert keys(NAME) == "sk-new"


def test_secrets_of_two_names_are_two(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager
) -> None:
    keys(NAME)
    secrets.rotate("sk-other")

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
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, failure: Exception, *, retryable: bool
) -> None:
    # Any other error takes the worker down, with the lease in its hand and an attempt spent.
    secrets.failure = failure

    with pytest.raises(VendorError) as caught:
        keys(NAME)

    assert caught.value.retryable is retryable


def test_secret_that_is_no_text_is_a_vendor_error(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager
) -> None:
    secrets.answer = {"SecretBinary": b"sk-hunter2"}

    with pytest.raises(VendorError) as caught:
        keys(NAME)

    assert not caught.value.retryable


def test_secret_that_can_not_be_read_is_asked_for_again(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager
) -> None:
    secrets.failure = refused("ThrottlingException")
    with pytest.raises(VendorError):
        keys(NAME)
    secrets.failure = None

    assert keys(NAME) == "sk-hunter2"


# ------------------------------------------------------------------ a key that was refused


def test_key_that_has_replaced_a_refused_one_is_found_and_kept(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    refused = keys(NAME)
    secrets.rotate("sk-new")
    clock.advance(ms=ASKED_AGAIN_AFTER_MS + 1)

    assert keys.successor(NAME, refused) == "sk-new"
    assert keys(NAME) == "sk-new"
    assert len(secrets.asked) == 2


def test_key_that_was_refused_and_is_still_the_secret_has_no_successor(
    keys: SecretsManagerKeys, clock: FakeClock
) -> None:
    refused = keys(NAME)
    clock.advance(ms=ASKED_AGAIN_AFTER_MS + 1)

    assert keys.successor(NAME, refused) is None


def test_key_that_was_just_read_is_not_asked_for_again(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    refused = keys(NAME)
    secrets.rotate("sk-new")
    clock.advance(ms=ASKED_AGAIN_AFTER_MS)

    assert keys.successor(NAME, refused) is None
    assert len(secrets.asked) == 1


@pytest.mark.parametrize("failure", [None, refused("ThrottlingException")], ids=["bad", "no read"])
def test_key_that_is_refused_again_and_again_asks_once_in_a_while(
    keys: SecretsManagerKeys,
    secrets: FakeSecretsManager,
    clock: FakeClock,
    failure: Exception | None,
) -> None:
    key = keys(NAME)
    secrets.failure = failure

    for _ in range(40):  # 10 s
        clock.advance(ms=250)
        assert keys.successor(NAME, key) is None

    assert len(secrets.asked) == 2


@pytest.mark.parametrize(
    "failure",
    [
        refused("ThrottlingException"),
        refused("ResourceNotFoundException"),
        EndpointConnectionError(endpoint_url=URL),
    ],
    ids=lambda value: type(value).__name__,
)
def test_secret_that_can_not_be_read_has_no_successor_and_the_key_is_kept(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock, failure: Exception
) -> None:
    key = keys(NAME)
    secrets.failure = failure
    clock.advance(ms=ASKED_AGAIN_AFTER_MS + 1)

    assert keys.successor(NAME, key) is None
    assert keys(NAME) == key


def test_refused_key_of_one_secret_leaves_the_other_alone(
    keys: SecretsManagerKeys, secrets: FakeSecretsManager, clock: FakeClock
) -> None:
    keys("sluiceway/vendors/w")
    clock.advance(ms=ASKED_AGAIN_AFTER_MS + 1)
    key = keys(NAME)
    secrets.rotate("sk-new")

    assert keys.successor(NAME, key) is None
    assert keys.successor("sluiceway/vendors/w", "sk-hunter2") == "sk-new"
