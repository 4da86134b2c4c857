"""Webhooks on the real template: a partner registers, verifies, rotates, and looks back."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_client import Client, NotFoundError, verify_webhook
from sluiceway_local import deploy, stack
from sluiceway_local.processes import wait_for
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.local import plant as plants

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0


@dataclass(frozen=True)
class Received:
    """One request that came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def verified_by(self, secret: str) -> bool:
        try:
            Webhook(secret).verify(self.body, self.headers)
        except WebhookVerificationError:
            return False
        return True


@dataclass
class Server:
    """A partner's server: remembers what came in, and answers 204 unless told otherwise."""

    url: str
    received: list[Received] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    """By path."""

    def at(self, path: str) -> list[Received]:
        return [one for one in self.received if one.path == path]

    def wait(self, path: str, count: int = 1) -> list[Received]:
        assert wait_for(lambda: len(self.at(path)) >= count, timeout_s=DEADLINE_S, pause_s=0.1)
        return self.at(path)


@contextmanager
def listening() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.received.append(Received(self.path, headers, body))
            self.send_response(made.answers.get(self.path, 204))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Server(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with plants.built(tmp_path_factory.mktemp("stack") / ".sluiceway") as made:
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    with listening() as made:
        yield made


@pytest.fixture
def acme(plant: Plant) -> Iterator[httpx.Client]:
    """Leaves no endpoint behind: the next test's jobs are not for it."""
    yield plant.acme
    for one in plant.acme.get("/webhooks").json()["data"]:
        if one["url"] is not None:
            plant.acme.delete(f"/webhooks/{one['id']}")


def register(acme: httpx.Client, url: str, **members: Any) -> Any:
    answer = acme.post("/webhooks", json={"url": url, **members})
    assert answer.status_code == 201, answer.text
    return answer.json()


def deliveries(acme: httpx.Client, webhook_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = acme.get(f"/webhooks/{webhook_id}/deliveries").json()["data"]
    return found


def until_delivery(acme: httpx.Client, webhook_id: str, **members: Any) -> dict[str, Any]:
    """The newest delivery, as soon as it has these members."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = deliveries(acme, webhook_id)
        return bool(found) and members.items() <= found[0].items()

    assert wait_for(look, timeout_s=DEADLINE_S, pause_s=0.1), found
    return found[0]


@pytest.mark.proves(16)
def test_job_is_told_to_the_endpoint_and_its_signature_is_verified(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    webhook = register(acme, f"{server.url}/jobs")
    failures = register(acme, f"{server.url}/failures", events=["job.failed"])

    job_id = plant.submit("Told to an endpoint")
    (received,) = server.wait("/jobs")
    delivery = until_delivery(acme, webhook["id"], status="delivered")

    assert received.verified_by(webhook["secret"])
    assert not received.verified_by(failures["secret"])
    assert received.event["type"] == "job.completed"
    assert received.event["data"]["job_id"] == job_id
    assert (delivery["event_id"], delivery["job_id"]) == (received.headers["webhook-id"], job_id)
    assert (delivery["attempts"], delivery["http_status"]) == (1, 204)
    assert server.at("/failures") == []


def test_callback_is_signed_and_one_that_is_an_endpoint_is_told_once(
    acme: httpx.Client, server: Server
) -> None:
    secret = acme.post("/webhooks/callbacks/rotate").json()["secret"]
    webhook = register(acme, f"{server.url}/both")

    for name in ("own", "both"):
        body = {
            "model": "demo-chat",
            "input": f"With the callback {name}",
            "callback_url": f"{server.url}/{name}",
        }
        assert acme.post("/jobs", json=body).status_code == 202
    (callback,) = server.wait("/own")
    both = server.wait("/both", 2)  # one for each job

    assert callback.verified_by(secret)
    assert all(one.verified_by(webhook["secret"]) for one in both)
    assert len({one.headers["webhook-id"] for one in both}) == 2
    delivery = until_delivery(acme, "callbacks", status="delivered")
    assert delivery["url"] == f"{server.url}/own"


def test_both_secrets_sign_during_the_overlap_and_only_the_new_one_without(
    acme: httpx.Client, server: Server
) -> None:
    path = "/rotated"
    webhook = register(acme, server.url + path)
    address = f"/webhooks/{webhook['id']}"

    second = acme.post(f"{address}/rotate", json={"overlap_s": 600}).json()["secret"]
    assert acme.post(f"{address}/test").status_code == 202
    (both,) = server.wait(path)
    third = acme.post(f"{address}/rotate", json={"overlap_s": 0}).json()["secret"]
    assert acme.post(f"{address}/test").status_code == 202
    (_, alone) = server.wait(path, 2)

    assert [both.verified_by(one) for one in (webhook["secret"], second, third)] == [
        *(True, True, False)
    ]
    assert [alone.verified_by(one) for one in (webhook["secret"], second, third)] == [
        *(False, False, True)
    ]


@pytest.mark.proves(16)
def test_failed_delivery_is_tried_again_and_sent_again_by_hand(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    path = "/flaky"
    webhook = register(acme, server.url + path)
    server.answers[path] = 503

    plant.submit("Told twice")
    server.wait(path)
    failed = until_delivery(acme, webhook["id"], attempts=1)
    server.answers.clear()
    delivered = until_delivery(acme, webhook["id"], attempts=2)
    again = acme.post(f"/webhooks/{webhook['id']}/deliveries/{failed['id']}/redeliver")
    server.wait(path, 3)
    redelivered = until_delivery(acme, webhook["id"], attempts=3)

    assert (failed["status"], failed["http_status"], failed["error"]) == (
        *("pending", 503, "refused"),
    )
    assert (delivered["id"], delivered["status"]) == (failed["id"], "delivered")
    assert (again.status_code, again.json()["id"]) == (202, failed["id"])
    assert redelivered["status"] == "delivered"
    assert len({(one.headers["webhook-id"], one.body) for one in server.at(path)}) == 1
    assert all(one.verified_by(webhook["secret"]) for one in server.at(path))


def test_410_disables_the_endpoint_until_a_test_succeeds(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    path = "/gone"
    webhook = register(acme, server.url + path)
    address = f"/webhooks/{webhook['id']}"
    server.answers[path] = 410

    plant.submit("Told to nobody")
    gone = until_delivery(acme, webhook["id"], status="failed")
    disabled = acme.get(address).json()
    server.answers.clear()
    acme.post(f"{address}/test")
    until_delivery(acme, webhook["id"], type="webhook.test", status="delivered")
    enabled = acme.get(address).json()
    acme.post(f"{address}/deliveries/{gone['id']}/redeliver")

    assert (gone["http_status"], gone["error"]) == (410, "gone")
    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "gone")
    assert (enabled["status"], enabled["disabled_reason"]) == ("enabled", None)
    assert [one.event["type"] for one in server.wait(path, 3)] == [
        *("job.completed", "webhook.test", "job.completed")
    ]


@pytest.mark.proves(10)
def test_another_partner_sees_and_changes_none_of_it(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    webhook = register(acme, f"{server.url}/mine")
    address = f"/webhooks/{webhook['id']}"

    answers = [
        plant.globex.get(address),
        plant.globex.delete(address),
        plant.globex.post(f"{address}/rotate"),
        plant.globex.post(f"{address}/test"),
        plant.globex.get(f"{address}/deliveries"),
    ]

    assert {(one.status_code, one.json()["code"]) for one in answers} == {
        (404, "webhook_not_found")
    }
    assert [one["id"] for one in plant.globex.get("/webhooks").json()["data"]] == ["callbacks"]


def test_operator_acts_in_a_partners_place(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    path = "/by-an-operator"
    made = plant.run_cli("webhooks", "create", server.url + path, "--tenant", "acme")

    plant.run_cli("webhooks", "test", made["id"], "--tenant", "acme")
    (received,) = server.wait(path)
    delivery = until_delivery(acme, made["id"], status="delivered")
    listed = plant.run_cli("webhooks", "deliveries", made["id"], "--tenant", "acme")

    assert received.verified_by(made["secret"])
    assert listed == {"deliveries": [delivery], "has_more": False}


def test_python_client_does_all_of_it(plant: Plant, server: Server) -> None:
    path = "/by-the-client"
    with Client(plant.local.api_url, plant.local.partners["acme"]) as client:
        webhook = client.create_webhook(server.url + path, events=["job.failed"])
        assert webhook.secret is not None
        test = client.test_webhook(webhook)
        (received,) = server.wait(path)
        event = verify_webhook(received.body, received.headers, webhook.secret)
        until_delivery(plant.acme, webhook.id, status="delivered")
        deliveries_of = list(client.webhook_deliveries(webhook, limit=1))
        again = client.redeliver(webhook, deliveries_of[0])
        server.wait(path, 2)
        rotated = client.rotate_webhook(webhook, overlap_s=0)
        listed = client.webhooks()
        client.delete_webhook(webhook)

        assert (event.id, event.type) == (test.event_id, "webhook.test")
        assert [one.id for one in deliveries_of] == [test.id] == [again.id]
        assert rotated.secret not in {None, webhook.secret}
        assert [one.id for one in listed] == ["callbacks", webhook.id]
        with pytest.raises(NotFoundError):
            client.get_webhook(webhook)


def test_deploying_again_changes_no_secret(
    plant: Plant, acme: httpx.Client, server: Server
) -> None:
    path = "/after-a-deploy"
    webhook = register(acme, server.url + path)

    stack.up(
        deploy.Source(plants.ROOT),
        folder=plant.folder,
        catalogue=plant.folder.parent / "catalogue.toml",
    )
    acme.post(f"/webhooks/{webhook['id']}/test")
    (received,) = server.wait(path)

    assert received.verified_by(webhook["secret"])
