"""Whatever is secret is marked, and comes out of no function of a whole stack, at DEBUG either."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local import emulator
from sluiceway_local.processes import wait_for

from tests.functions.marked import (
    CALLBACK,
    ENDPOINT,
    IDEMPOTENCY_KEY,
    MASTER,
    METADATA,
    PROMPT,
    REFUSED,
    RESULT,
    VENDOR_KEY,
)
from tests.functions.test_marked_secrets import marks_in
from tests.local import plant as plants
from tests.local.test_webhooks import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant
    from tests.local.test_webhooks import Server

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0


class Daemon:
    """X-Ray's, as far as the functions know."""

    def __init__(self, socket_: socket.socket) -> None:
        self._socket = socket_
        self.address = f"127.0.0.1:{socket_.getsockname()[1]}"
        self.packets: list[str] = []

    def listen(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self.packets.append(self._socket.recv(65_536).decode())
            except TimeoutError:
                continue


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as socket_:
        socket_.bind(("127.0.0.1", 0))
        socket_.settimeout(0.1)
        made, over = Daemon(socket_), threading.Event()
        listener = threading.Thread(target=made.listen, args=[over])
        listener.start()
        yield made
        over.set()
        listener.join()


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Iterator[Plant]:
    """A stack that tells all it can, with marked secrets."""
    with plants.built(tmp_path_factory.mktemp("stack") / ".sluiceway") as made:
        for page in made.functions.get_paginator("list_functions").paginate():
            for function in page["Functions"]:
                told = {"POWERTOOLS_LOG_LEVEL": "DEBUG", "AWS_XRAY_DAEMON_ADDRESS": daemon.address}
                variables = function["Environment"]["Variables"] | told
                made.functions.update_function_configuration(
                    FunctionName=function["FunctionName"], Environment={"Variables": variables}
                )
        secrets = emulator.client("secretsmanager", made.local.endpoint_url)
        for name, text in (
            ("sluiceway/vendors/simulator", VENDOR_KEY),
            (made.local.outputs["WebhookMasterArn"], MASTER),
        ):
            secrets.put_secret_value(SecretId=name, SecretString=text)
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with listening() as made:
        yield made


def logs_of(plant: Plant) -> dict[str, str]:
    """What each function has logged, by its log group."""
    logs = emulator.client("logs", plant.local.endpoint_url)
    pages = logs.get_paginator("filter_log_events")
    return {
        group["logGroupName"]: "\n".join(
            event["message"]
            for page in pages.paginate(logGroupName=group["logGroupName"])
            for event in page["events"]
        )
        for group in logs.describe_log_groups()["logGroups"]
    }


@contextmanager
def spied(plant: Plant) -> Iterator[list[str]]:
    """What the event bus is told meanwhile."""
    events, sqs = (
        emulator.client(service, plant.local.endpoint_url) for service in ("events", "sqs")
    )
    bus = plant.local.outputs["EventBusName"]
    url = sqs.create_queue(QueueName="spy")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    pattern = json.dumps({"source": ["sluiceway"]})
    events.put_rule(Name="spy", EventBusName=bus, EventPattern=pattern)
    events.put_targets(
        Rule="spy", EventBusName=bus, Targets=[{"Id": "spy", "Arn": arn["QueueArn"]}]
    )
    told: list[str] = []

    def look() -> None:
        while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in found:
                told.append(message["Body"])
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    yield told
    look()


def play(plant: Plant, server: Server) -> list[str]:
    """The main job as tests/functions/marked.py has it; gives the webhooks' secrets."""
    acme = plant.acme
    endpoint = {"url": f"{server.url}/{ENDPOINT}?token={ENDPOINT}", "description": ENDPOINT}
    registered = acme.post("/webhooks", json=endpoint).json()
    callbacks = acme.post("/webhooks/callbacks/rotate", json={"overlap_s": 60}).json()
    job: dict[str, Any] = {
        "model": "demo-chat",
        "input": PROMPT,
        "options": {"sim": {"text": RESULT}},
        "metadata": {"name": METADATA},
        "callback_url": f"{server.url}/{CALLBACK}?token={CALLBACK}",
    }
    keyed = {"idempotency-key": IDEMPOTENCY_KEY}
    first = acme.post("/jobs", json=job, headers=keyed)
    assert first.status_code == 202, first.text
    assert acme.post("/jobs", json=job, headers=keyed).headers["idempotent-replayed"] == "true"
    completed = first.json()["id"]
    plant.until(completed, "completed")
    assert acme.get(f"/jobs/{completed}").json()["result"]["text"] == RESULT
    assert acme.post("/jobs", json=job).status_code == 200
    failing = {**job, "options": {"sim": {"status": 400, "text": RESULT}}}
    plant.until(acme.post("/jobs", json=failing).json()["id"], "failed", "dead_lettered")
    slow = {**job, "input": f"slow {PROMPT}", "options": {"sim": {"delay_s": 30, "text": RESULT}}}
    cancelled = acme.post("/jobs", json=slow).json()["id"]
    assert acme.post(f"/jobs/{cancelled}/cancel").json()["status"] == "cancelled"
    for raw in (f'{{"input": "{REFUSED}"', json.dumps({**job, REFUSED: REFUSED})):
        refused = acme.post(
            "/jobs", content=raw, headers={"content-type": "application/json"}
        ).status_code
        assert refused in {400, 422}
    said = [{"role": "user", "content": f"chat {PROMPT}"}]
    chat = {"model": "demo-chat", "messages": said}  # asked for again when it is running still
    assert wait_for(
        lambda: PROMPT in acme.post("/chat/completions", json=chat).text, timeout_s=DEADLINE_S
    )
    server.wait(f"/{CALLBACK}?token={CALLBACK}")
    server.wait(f"/{ENDPOINT}?token={ENDPOINT}")
    acme.post("/admin/cache/invalidate", json={"model": "demo-chat"})
    return [registered["secret"], callbacks["secret"]]


def test_marks_come_out_of_no_function_of_a_stack(
    plant: Plant, server: Server, daemon: Daemon
) -> None:
    with spied(plant) as events:
        secrets = play(plant, server)
        plant.sweep()

        def all_told() -> bool:
            text = "\n".join(logs_of(plant).values())
            names = set(re.findall(r'"message":"(\w+)"', text))
            return names >= {
                *("job_submitted", "job_completed", "job_failed", "job_cancelled", "cache_hit"),
                *("request_refused", "events_published", "webhook_delivered", "jobs_swept"),
            }

        assert wait_for(all_told, timeout_s=DEADLINE_S, pause_s=1.0)
    logs = logs_of(plant)
    traces = "\n".join(daemon.packets)
    audit = plant.run_cli("audit")["records"]

    told = "\n".join([*logs.values(), traces, *events, json.dumps(audit)])
    assert marks_in(told) == set()
    for secret in (*secrets, *plant.local.partners.values()):
        assert secret.removeprefix("whsec_") not in told
    assert "whsec_" not in told
    assert len(events) >= 3
    assert audit
    assert re.findall(r'"name": ?"(## [^"]+)"', traces)
