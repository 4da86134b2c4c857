"""Clients of an emulator: they go there, whatever the user's environment says."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from botocore.awsrequest import AWSResponse
from sluiceway_cli import target as targets
from sluiceway_cli.api import Api, ApiError
from sluiceway_cli.target import Target
from sluiceway_local import emulator
from sluiceway_local.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDPOINT_URL = "http://127.0.0.1:4999"


@pytest.fixture(autouse=True)
def users_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that leads everybody elsewhere."""
    for name, value in {
        "AWS_PROFILE": "there-is-no-such-profile",
        "AWS_ENDPOINT_URL": "https://example.amazonaws.com",
        "AWS_ENDPOINT_URL_S3": "https://s3.example.amazonaws.com",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_ACCESS_KEY_ID": "AKIA-of-the-user",
        "AWS_SESSION_TOKEN": "token-of-the-user",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    targets.emulator_session.cache_clear()
    yield
    targets.emulator_session.cache_clear()


def of_the_local_stack(service: str, endpoint_url: str) -> Any:
    target = Target(api_url="", endpoint_url=endpoint_url, region="us-east-1", local=True)
    return target.client(service)


@pytest.mark.parametrize("make", [emulator.client, of_the_local_stack])
@pytest.mark.parametrize("service", ["s3", "sqs", "dynamodb", "lambda"])
def test_client_goes_to_its_emulator(make: Callable[[str, str], Any], service: str) -> None:
    sent: list[Any] = []
    client = make(service, ENDPOINT_URL)

    def send(request: Any, **_: Any) -> AWSResponse:
        sent.append(request)
        return AWSResponse("", 200, {}, Empty())

    client.meta.events.register("before-send", send)
    call_of = {
        "s3": "list_buckets",
        "sqs": "list_queues",
        "dynamodb": "list_tables",
        "lambda": "list_functions",
    }
    getattr(client, call_of[service])()

    assert sent[0].url.startswith(f"{ENDPOINT_URL}/")
    assert b"Credential=test/" in sent[0].headers["Authorization"]
    assert "X-Amz-Security-Token" not in sent[0].headers


def test_api_of_this_machine_is_asked_past_the_proxy() -> None:
    with (
        Simulator() as sim,
        closing(Api(sim.url, "swk_")) as api,
        pytest.raises(ApiError) as refused,
    ):
        api.job("job_1")

    assert refused.value.status == 404


def test_simulator_is_asked_past_the_proxy() -> None:
    with Simulator() as sim, emulator.direct.open(url_of_calls(sim)) as answer:
        text = answer.read()

    assert b'"calls": 0' in text


@pytest.mark.parametrize("make", [emulator.client, of_the_local_stack])
def test_client_has_no_proxy(make: Callable[[str, str], Any]) -> None:
    client = make("sqs", ENDPOINT_URL)

    assert client.meta.config.proxies == {}  # and None would be those of the environment


def url_of_calls(sim: Simulator) -> str:
    return sim.url.removesuffix("/v1") + "/_control/calls"


class Empty:
    """A body without anything in it."""

    def stream(self) -> Iterator[bytes]:
        yield b""
