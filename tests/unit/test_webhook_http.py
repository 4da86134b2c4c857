"""Webhooks over HTTP: to a checked address, in the host's name, within the time, and no further."""

from __future__ import annotations

import asyncio
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sluiceway.adapters.http_webhooks import HttpWebhooks, look_up
from sluiceway.domain.address import target_of
from sluiceway.domain.errors import WebhookError

from tests.unit.logs import fresh_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PUBLIC = "93.184.216.34"
URL = "https://hooks.example/path?token=hunter2"


class Names:
    """A resolver with one answer for each look-up, the last one for good."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Network(httpx.AsyncBaseTransport):
    """Remembers the requests; fails at some addresses."""

    def __init__(
        self, status: int = 204, *, unreachable: tuple[str, ...] = (), **headers: str
    ) -> None:
        self.status, self.unreachable, self.headers = status, unreachable, headers
        self.requests: list[httpx.Request] = []
        self.failure: Exception | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host in self.unreachable:
            raise httpx.ConnectError("hunter2")
        if self.failure is not None:
            raise self.failure
        return httpx.Response(self.status, headers=self.headers)

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.requests]


@pytest.fixture
def open_client() -> Iterator[Callable[..., HttpWebhooks]]:
    """Makes clients that are closed after the test."""
    opened: list[HttpWebhooks] = []

    def make(**named: Any) -> HttpWebhooks:
        opened.append(HttpWebhooks(**{"local": False, **named}))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def post(
    client: HttpWebhooks, url: str = URL, *, local: bool = False, timeout_s: float = 5.0
) -> int:
    headers = {"webhook-id": "evt_1", "content-type": "application/json"}
    return client.post(target_of(url, local=local), headers, b"{}", timeout_s=timeout_s)


def reason_of(client: HttpWebhooks, url: str = URL, **named: Any) -> str:
    with pytest.raises(WebhookError) as caught:
        post(client, url, **named)
    assert "hunter2" not in str(caught.value)
    assert "hooks.example" not in str(caught.value)
    return caught.value.reason


# ------------------------------------------------------------------ where it goes


@pytest.mark.parametrize(
    "url", [URL, URL.replace("https://hooks.example", "HTTPS://Hooks.Example")]
)
def test_request_goes_to_the_checked_address_in_the_hosts_name(
    open_client: Callable[..., HttpWebhooks], url: str
) -> None:
    names, network = Names([PUBLIC]), Network()

    status = post(open_client(resolve=names, transport=network), url)

    (request,) = network.requests
    assert status == 204
    assert names.asked == [("hooks.example", 443)]
    assert (request.url.host, request.url.port) == (PUBLIC, None)
    assert request.url.raw_path == b"/path?token=hunter2"
    assert request.headers["host"] == "hooks.example"
    assert request.extensions["sni_hostname"] == "hooks.example"
    assert request.headers["webhook-id"] == "evt_1"
    assert request.content == b"{}"


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0"),  # noqa: S104
        *("::1", "fe80::1%eth0", "fd00:ec2::254", "::ffff:8.8.8.8", "2002:808:808::1"),
        *("64:ff9b::808:808", "ff02::1"),
    ],
)
def test_forbidden_address_is_not_called(
    open_client: Callable[..., HttpWebhooks], address: str
) -> None:
    network = Network()

    assert reason_of(open_client(resolve=Names([address]), transport=network)) == (
        "forbidden_address"
    )
    assert network.requests == []


def test_one_forbidden_address_among_good_ones_is_enough(
    open_client: Callable[..., HttpWebhooks],
) -> None:
    network = Network()
    client = open_client(resolve=Names([PUBLIC, "10.0.0.1"]), transport=network)

    assert reason_of(client) == "forbidden_address"
    assert network.requests == []


def test_name_is_looked_up_at_each_attempt_and_once(
    open_client: Callable[..., HttpWebhooks],
) -> None:
    names, network = Names([PUBLIC], ["127.0.0.1"]), Network()
    client = open_client(resolve=names, transport=network)

    assert post(client) == 204
    assert reason_of(client) == "forbidden_address"
    assert network.hosts == [PUBLIC]
    assert len(names.asked) == 2


@pytest.mark.parametrize("answer", [[], socket.gaierror("hunter2"), UnicodeError("hunter2")])
def test_name_without_an_address(
    open_client: Callable[..., HttpWebhooks], answer: list[str] | Exception
) -> None:
    client = open_client(resolve=Names(answer), transport=Network())

    assert reason_of(client) == "unknown_host"


def test_addresses_are_tried_in_turn_ipv4_first(open_client: Callable[..., HttpWebhooks]) -> None:
    network = Network(unreachable=("93.184.216.34", "93.184.216.35"))
    names = Names(["2606:4700::1111", "93.184.216.34", "93.184.216.35", "93.184.216.34"])

    assert post(open_client(resolve=names, transport=network)) == 204
    assert network.hosts == ["93.184.216.34", "93.184.216.35", "2606:4700::1111"]


def test_no_more_than_three_addresses_are_tried(open_client: Callable[..., HttpWebhooks]) -> None:
    addresses = [f"93.184.216.{number}" for number in range(1, 9)]
    network = Network(unreachable=tuple(addresses))

    assert reason_of(open_client(resolve=Names(addresses), transport=network)) == "connection"
    assert network.hosts == addresses[:3]


def test_request_that_may_have_arrived_is_not_sent_to_another_address(
    open_client: Callable[..., HttpWebhooks],
) -> None:
    network = Network()
    network.failure = httpx.ReadError("hunter2")
    client = open_client(resolve=Names([PUBLIC, "93.184.216.35"]), transport=network)

    assert reason_of(client) == "connection"
    assert network.hosts == [PUBLIC]


# ------------------------------------------------------------------ what comes back


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_an_answer_and_is_not_followed(
    open_client: Callable[..., HttpWebhooks], status: int
) -> None:
    network = Network(status, location="https://10.0.0.1/")

    assert post(open_client(resolve=Names([PUBLIC]), transport=network)) == status
    assert network.hosts == [PUBLIC]


def test_cookie_of_one_host_is_not_sent_to_another(
    open_client: Callable[..., HttpWebhooks],
) -> None:
    network = Network()
    network.headers = {"set-cookie": "session=hunter2"}
    client = open_client(resolve=Names([PUBLIC]), transport=network)

    post(client)
    post(client, "https://other.example/")

    assert "cookie" not in network.requests[1].headers


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (httpx.ReadTimeout("hunter2"), "timeout"),
        (httpx.RemoteProtocolError("hunter2"), "connection"),
        (OSError("hunter2"), "connection"),
    ],
)
def test_failure_has_a_reason(
    open_client: Callable[..., HttpWebhooks], failure: Exception, reason: str
) -> None:
    network = Network()
    network.failure = failure

    assert reason_of(open_client(resolve=Names([PUBLIC]), transport=network)) == reason


def test_environments_proxy_is_not_asked(
    open_client: Callable[..., HttpWebhooks], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert post(open_client(local=True), server.url, local=True) == 204


# ------------------------------------------------------------------ on a real wire


class Server:
    """A partner's server on loopback; `behave` writes the answer."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[dict[str, str]] = []
        self.behave: Callable[[http.server.BaseHTTPRequestHandler], None] = _answer
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append({name.lower(): one for name, one in self.headers.items()})
                outer.behave(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a client that hangs up is what these tests are about

        self.listening = Quiet(("127.0.0.1", 0), Handler)
        if context is not None:
            self.listening.socket = context.wrap_socket(self.listening.socket, server_side=True)
        self.port: int = self.listening.server_address[1]
        self.url = f"http://localhost:{self.port}/hook"
        threading.Thread(target=self.listening.serve_forever, args=(0.02,), daemon=True).start()


def _answer(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(204)
    handler.end_headers()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.listening.shutdown()
    one.listening.server_close()


def test_webhook_arrives(open_client: Callable[..., HttpWebhooks], server: Server) -> None:
    assert post(open_client(local=True), server.url, local=True) == 204
    assert server.requests[0]["host"] == f"localhost:{server.port}"
    assert server.requests[0]["webhook-id"] == "evt_1"


def test_log_of_no_library_has_the_address(  # case A05
    open_client: Callable[..., HttpWebhooks],
    server: Server,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fresh_telemetry(level="DEBUG")
    client = open_client(local=True)
    hidden = f"{server.url}?token=hunter2"

    post(client, hidden, local=True)
    server.behave = lambda handler: handler.wfile.write(b"no HTTP at all hunter2")
    assert reason_of(client, hidden, local=True) == "connection"

    captured = capsys.readouterr()
    told = captured.out + captured.err + caplog.text
    assert len(server.requests) == 2
    assert "hunter2" not in told
    assert str(server.port) not in told


def test_client_works_again_after_it_was_closed(
    open_client: Callable[..., HttpWebhooks], server: Server
) -> None:
    client = open_client(local=True)
    post(client, server.url, local=True)
    client.close()

    assert post(client, server.url, local=True) == 204


def test_hanging_server_is_given_up(
    open_client: Callable[..., HttpWebhooks], server: Server
) -> None:
    server.behave = lambda _: time.sleep(1.0)

    assert reason_of(open_client(local=True), server.url, local=True, timeout_s=0.2) == "timeout"


def test_dripping_server_is_given_up(
    open_client: Callable[..., HttpWebhooks], server: Server
) -> None:
    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        for byte in b"HTTP/1.1 204 No Content\r\n":
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)

    server.behave = drip
    started = time.monotonic()

    assert reason_of(open_client(local=True), server.url, local=True, timeout_s=0.3) == "timeout"
    assert time.monotonic() - started < 1.0


def test_slow_name_is_part_of_the_time(open_client: Callable[..., HttpWebhooks]) -> None:
    async def slow(*_: Any) -> list[str]:
        await asyncio.sleep(1.0)
        return [PUBLIC]

    client = open_client(resolve=slow, transport=Network())

    assert reason_of(client, timeout_s=0.1) == "timeout"


def test_endless_body_is_not_read(open_client: Callable[..., HttpWebhooks], server: Server) -> None:
    def flood(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    server.behave = flood

    assert post(open_client(local=True), server.url, local=True, timeout_s=2.0) == 200


def test_nobody_listening(open_client: Callable[..., HttpWebhooks]) -> None:
    assert reason_of(open_client(local=True), "http://127.0.0.1:1/", local=True) == "connection"


def test_system_knows_localhost() -> None:
    assert set(asyncio.run(look_up("localhost", 443))) <= {"127.0.0.1", "::1"}


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of hooks.example, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    file = tmp_path_factory.mktemp("tls") / "hooks.pem"
    key = file.with_name("key.pem")
    subprocess.run(  # noqa: S603
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"),
            *("-keyout", str(key), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + key.read_text())
    return file


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    one = Server(context)
    yield one
    one.listening.shutdown()
    one.listening.server_close()


@pytest.mark.parametrize(
    ("host", "good"), [("hooks.example", True), ("hooks.example.", True), ("other.example", False)]
)
def test_certificate_is_checked_against_the_hosts_name(
    open_client: Callable[..., HttpWebhooks],
    tls_server: Server,
    certificate: Path,
    host: str,
    *,
    good: bool,
) -> None:
    trusting = httpx.AsyncHTTPTransport(verify=ssl.create_default_context(cafile=certificate))
    client = open_client(local=True, resolve=Names(["127.0.0.1"]), transport=trusting)
    url = f"https://{host}:{tls_server.port}/"

    if good:
        assert post(client, url, local=True) == 204
        assert tls_server.requests[0]["host"] == f"{host}:{tls_server.port}"
    else:
        assert reason_of(client, url, local=True) == "connection"
        assert tls_server.requests == []


def test_unknown_issuer_is_refused(
    open_client: Callable[..., HttpWebhooks], tls_server: Server
) -> None:
    client = open_client(local=True, resolve=Names(["127.0.0.1"]))

    assert reason_of(client, f"https://hooks.example:{tls_server.port}/", local=True) == (
        "connection"
    )
