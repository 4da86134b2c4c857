"""The tests themselves: they can't reach another machine or anybody's AWS account."""

from __future__ import annotations

import os
import socket

import boto3
import httpx
import pytest

ELSEWHERE = "192.0.2.1"
"""An address of TEST-NET-1 (RFC 5737): nobody has it."""

Refused = pytest.fail.Exception


def test_connection_to_another_machine_fails_the_test() -> None:
    with socket.socket() as connection, pytest.raises(Refused, match=ELSEWHERE):
        connection.connect((ELSEWHERE, 443))


def test_connection_without_an_exception_to_another_machine_fails_the_test() -> None:
    with socket.socket() as connection, pytest.raises(Refused, match=ELSEWHERE):
        connection.connect_ex((ELSEWHERE, 443))


def test_datagram_to_another_machine_fails_the_test() -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as connection,
        pytest.raises(Refused, match=ELSEWHERE),
    ):
        connection.sendto(b"hello", (ELSEWHERE, 9))


def test_question_for_a_name_fails_the_test() -> None:
    with pytest.raises(Refused, match=r"example\.com"):
        socket.getaddrinfo("example.com", 443)


def test_http_client_cannot_leave() -> None:
    with pytest.raises(Refused, match=r"example\.com"):
        httpx.get("https://example.com/", timeout=1)


def test_aws_client_cannot_leave() -> None:
    client = boto3.client("sqs")

    with pytest.raises(Refused, match=r"amazonaws\.com"):
        client.list_queues()

    client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_connection_to_this_machine_works(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with socket.create_connection((host, port), timeout=5) as connection:
            assert connection.getpeername()[1] == port


def test_environment_has_only_credentials_that_open_nothing() -> None:
    session = boto3.Session()

    credentials = session.get_credentials()

    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key) == ("test", "test")
    assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"} & set(os.environ)
    assert session.region_name == "us-east-1"
