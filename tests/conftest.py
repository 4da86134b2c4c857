"""What every test has: no way out of this machine, no way into anybody's AWS account, and time."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local import dynamodb_local, localstack

from tests.fakes import valkey_server
from tests.fakes.in_memory import FakeClock, World
from tests.live import switch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ("tests.guarantees",)

REGION = "us-east-1"
FOLDER = Path(__file__).parents[1] / ".sluiceway"
"""Whatever folder the tests are run from."""


def _refuse_to_leave(address: Any) -> None:
    """Raises for an address that isn't this machine's own. Paths of Unix sockets are."""
    if not isinstance(address, tuple):
        return
    host = str(address[0]).partition("%")[0]
    if host == "localhost":
        return
    try:
        inside = ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        pytest.fail(f"the test tried to reach {address[0]!r}; tests stay on loopback")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("live")
    group.addoption(
        "--live",
        action="store_true",
        help="run tests/live, and nothing else, in the AWS account of these credentials",
    )
    group.addoption(
        "--live-endpoint",
        metavar="URL",
        help="rehearse tests/live on an emulator, which tells and costs nothing about AWS",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Live tests run when they are asked for; others don't beside them, since guards are off."""
    live = [item for item in items if item.get_closest_marker("live")]
    if not (config.getoption("--live") or config.getoption("--live-endpoint")):
        for item in live:
            item.add_marker(pytest.mark.skip(reason=switch.SKIPPED))
    elif config.getoption("--live") and config.getoption("--live-endpoint"):
        raise pytest.UsageError("--live is AWS itself, and --live-endpoint an emulator")
    elif len(live) != len(items):
        raise pytest.UsageError("live tests run alone: pytest tests/live --live")


@pytest.fixture(autouse=True, scope="session")
def _loopback_only(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes a test fail that connects to another machine, whichever library does it."""
    if request.config.getoption("--live"):
        yield
        return
    connect, connect_ex, sendto = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.socket.sendto,
    )
    resolve = socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _refuse_to_leave(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _refuse_to_leave(address)
        return connect_ex(self, address)

    def guarded_sendto(self: socket.socket, data: Any, *rest: Any) -> int:
        _refuse_to_leave(rest[-1])
        return sendto(self, data, *rest)

    def guarded_resolve(host: Any, *rest: Any, **named: Any) -> Any:
        # Asking for a name leaves the machine, too; an address needs no asking.
        name = host.decode() if isinstance(host, bytes) else host
        if name and not _is_address(name):
            _refuse_to_leave((name,))
        return resolve(host, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket.socket, "sendto", guarded_sendto)
        patch.setattr(socket, "getaddrinfo", guarded_resolve)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nobodys_account(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives credentials that open nothing, and hides those of whoever runs the tests."""
    if request.config.getoption("--live"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def dynamodb_local_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A DynamoDB Local for the whole run; skips what needs it where it can't be had, but in CI."""
    do_without = pytest.fail if os.environ.get("CI") else pytest.skip
    reason = dynamodb_local.unavailable(FOLDER)
    if reason is not None:
        do_without(reason)
    try:
        home = dynamodb_local.fetch(FOLDER)
    except dynamodb_local.FetchError as error:
        do_without(str(error))
    process, url = dynamodb_local.start(home, tmp_path_factory.mktemp("dynamodb") / "log")
    try:
        yield url
    finally:
        process.stop()


@pytest.fixture(scope="session")
def localstack_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A LocalStack for the whole run; skips what needs it where it isn't installed, but in CI."""
    reason = localstack.unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    process, url = localstack.start(tmp_path_factory.mktemp("localstack") / "log")
    try:
        yield url
    finally:
        process.stop()


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey for the whole run; skips what needs it where there is none, but in CI."""
    reason = valkey_server.unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    process, url = valkey_server.start(tmp_path_factory.mktemp("valkey"))
    try:
        yield url
    finally:
        process.stop()
