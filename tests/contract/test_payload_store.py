"""PayloadStore: bytes by name."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
import pytest
from moto import mock_aws
from sluiceway.adapters.s3_payloads import S3Payloads

from tests.fakes.in_memory import InMemoryPayloads, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway.ports import PayloadStore

BUCKET = "payloads"

_numbers = itertools.count(1)


@pytest.fixture(params=["in_memory", "moto", "localstack"])
def payloads(request: pytest.FixtureRequest) -> Iterator[PayloadStore]:
    """Empty."""
    if request.param == "in_memory":
        yield InMemoryPayloads(World())
        return
    emulated = request.param == "localstack"
    endpoint_url = request.getfixturevalue("localstack_url") if emulated else None
    with nullcontext() if emulated else mock_aws():
        client = boto3.client("s3", endpoint_url=endpoint_url)
        bucket = f"{BUCKET}-{next(_numbers)}"
        client.create_bucket(Bucket=bucket)
        yield S3Payloads(lambda: client, bucket)
        client.close()


@pytest.mark.parametrize("data", [b"", b"text", bytes(range(256)) * 4096], ids=["0", "4", "1 MB"])
def test_get_gives_the_bytes_that_were_put(payloads: PayloadStore, data: bytes) -> None:
    payloads.put("inputs/acme/job_1", data)

    assert payloads.get("inputs/acme/job_1") == data


def test_get_of_a_name_that_was_never_put_is_a_key_error(payloads: PayloadStore) -> None:
    payloads.put("inputs/acme/job_1", b"text")

    with pytest.raises(KeyError):
        payloads.get("inputs/acme/job_2")


def test_put_again_replaces_the_object(payloads: PayloadStore) -> None:
    payloads.put("results/acme/job_1/1", b"once")
    payloads.put("results/acme/job_1/1", b"twice")

    assert payloads.get("results/acme/job_1/1") == b"twice"


def test_url_is_an_address_of_the_object(payloads: PayloadStore) -> None:
    payloads.put("results/acme/job_1/1", b"text")

    url = urlsplit(payloads.url("results/acme/job_1/1"))

    assert url.scheme == "https" or url.hostname == "127.0.0.1"
    assert url.path.endswith("/results/acme/job_1/1")


def test_s3_client_is_made_by_the_first_call_that_needs_it() -> None:
    made: list[str] = []

    def refuse() -> None:
        made.append("client")

    S3Payloads(refuse, BUCKET)

    assert made == []


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_size_is_that_of_the_bytes_that_were_put(payloads: PayloadStore, size: int) -> None:
    payloads.put("results/job_1/1", b"x" * size)

    assert payloads.size("results/job_1/1") == size


def test_size_of_a_name_that_was_never_put_is_a_key_error(payloads: PayloadStore) -> None:
    with pytest.raises(KeyError):
        payloads.size("results/job_1/1")
