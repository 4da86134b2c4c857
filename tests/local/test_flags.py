"""Flags and degraded mode on the real template: what operators switch, and what a backlog does."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain import flags
from sluiceway_cli.target import Target
from sluiceway_local import emulator
from sluiceway_local.processes import wait_for

from tests.local.plant import CATALOGUE, TIMEOUT_S, built
from tests.local.test_webhooks import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.local.plant import Plant
    from tests.local.test_webhooks import Server

pytestmark = pytest.mark.slow

IN_FORCE_S = 35.0
"""After a deployment each process has read it, and may need a moment for a request."""

SERVICE = """
[service]
degraded_after_s = 10
degraded_until_s = 5
"""


@dataclass
class Ops:
    """An operator's hands on a stack, and what the bus tells him."""

    plant: Plant

    def __post_init__(self) -> None:
        local = self.plant.local
        self.target = Target(
            api_url=local.api_url,
            outputs=local.outputs,
            endpoint_url=local.endpoint_url,
            region=local.region,
        )
        self.logs = emulator.client("logs", local.endpoint_url)
        events = emulator.client("events", local.endpoint_url)
        bus = local.outputs["EventBusName"]
        sqs = self.plant.sqs
        self.notices_url = sqs.create_queue(QueueName="notices")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=self.notices_url, AttributeNames=["QueueArn"])
        pattern = {"source": ["sluiceway.ops"], "detail-type": ["DegradedBegan", "DegradedEnded"]}
        events.put_rule(Name="notices", EventBusName=bus, EventPattern=json.dumps(pattern))
        events.put_targets(
            Rule="notices",
            EventBusName=bus,
            Targets=[{"Id": "notices", "Arn": arn["Attributes"]["QueueArn"]}],
        )

    def switch(self, *switches: tuple[str, bool, str]) -> None:
        """Deploys a document of these alone, and returns when it is in force everywhere."""
        document: flags.Document = {}
        for feature, on, subject in switches:
            document = flags.switched(document, feature, on=on, subject=subject)
        rollout = self.target.rollout_id(gradual=False)
        profile = self.target.flags_profile
        profile.push(json.dumps(document), rollout, seen=profile.history(), description="test")
        self._in_force()

    def push_catalogue(self, text: str) -> None:
        text = text.replace("http://127.0.0.1:1/v1", self.plant.local.vendor_url)
        rollout = self.target.rollout_id(gradual=False)
        profile = self.target.catalogue_profile
        profile.push(text, rollout, seen=profile.history(), description="test")
        self._in_force()

    def _in_force(self) -> None:
        pushed_at = time.monotonic()
        assert wait_for(
            lambda: time.monotonic() > pushed_at + IN_FORCE_S, timeout_s=TIMEOUT_S, pause_s=0.5
        )

    def degraded(self) -> bool:
        """As the row says."""
        answer = self.plant.dynamodb.get_item(
            TableName=self.plant.local.outputs["CoordinationTableName"],
            Key={"coordination_key": {"S": "state"}},
            ConsistentRead=True,
        )
        return "degraded_since_epoch_ms" in answer.get("Item", {})

    def notice(self) -> Any:
        """The next one that comes."""
        taken: list[Any] = []

        def look() -> bool:
            answer = self.plant.sqs.receive_message(
                QueueUrl=self.notices_url, MaxNumberOfMessages=1
            )
            for message in answer.get("Messages", []):
                taken.append(json.loads(message["Body"]))
                self.plant.sqs.delete_message(
                    QueueUrl=self.notices_url, ReceiptHandle=message["ReceiptHandle"]
                )
            return bool(taken)

        assert wait_for(look, timeout_s=TIMEOUT_S, pause_s=0.2)
        return taken[0]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """What all functions have told of a metric, with its dimensions."""
        pages = self.logs.get_paginator("filter_log_events")
        lines = [
            json.loads(event["message"])
            for group in self.logs.describe_log_groups()["logGroups"]
            for page in pages.paginate(logGroupName=group["logGroupName"])
            for event in page["events"]
            if event["message"].startswith("{") and f'"{name}"' in event["message"]
        ]
        return [line for line in lines if "_aws" in line and name in line]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("flags") / ".sluiceway") as made:
        yield made


@pytest.fixture(scope="module")
def ops(plant: Plant) -> Ops:
    return Ops(plant)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with listening() as made:
        yield made


def ask(plant: Plant, model: str, prompt: str, client: httpx.Client | None = None) -> Any:
    body = {"model": model, "input": prompt}
    return (client or plant.acme).post("/jobs", json=body)


def a_hit(plant: Plant, model: str, prompt: str) -> str:
    """Runs the prompt, and gives the key of its entry."""
    plant.until(ask(plant, model, prompt).json()["id"], "completed")
    hit = ask(plant, model, prompt)
    assert hit.status_code == 200, hit.text
    return str(hit.json()["id"]).removeprefix("hit_")


def test_what_operators_switch_is_so_within_35_s_and_back_again(
    plant: Plant, ops: Ops, server: Server
) -> None:
    a_hit(plant, "demo-chat", "Cached")
    expired = a_hit(plant, "hasty", "Expired")
    plant.entry_expires(expired, soft_in_s=-20, hard_in_s=-10)
    webhook_id = plant.acme.post("/webhooks", json={"url": f"{server.url}/hook"}).json()["id"]
    heard = len(server.at("/hook"))

    ops.switch(
        ("submit", False, "model:demo-chat"),
        ("webhooks", False, "tenant:acme"),
        ("degraded", True, ""),
    )
    plant.sweep()

    # submit, for one model
    for prompt in ("Cached", "Never asked"):
        refused = ask(plant, "demo-chat", prompt)
        assert (refused.status_code, refused.json()["code"]) == (403, "feature_disabled")
    assert plant.calls("Never asked")["calls"] == 0
    # degraded
    assert ops.degraded()
    notice = ops.notice()
    assert notice["detail-type"] == "DegradedBegan"
    assert (notice["detail"]["actor"], notice["detail"]["reason"]) == ("flag", "flag")
    assert wait_for(
        lambda: ask(plant, "hasty", "Expired").json()["cache"]["status"] == "degraded",
        timeout_s=TIMEOUT_S,
        pause_s=0.2,
    )
    assert plant.calls("Expired")["calls"] == 1
    # webhooks, for one tenant
    test = plant.acme.post(f"/webhooks/{webhook_id}/test")
    assert (test.status_code, test.json()["code"]) == (403, "feature_disabled")
    job_id = ask(plant, "news", "Nobody is told").json()["id"]
    plant.until(job_id, "completed")
    found: list[Any] = []

    def suppressed() -> bool:
        found[:] = plant.acme.get(f"/webhooks/{webhook_id}/deliveries").json()["data"]
        return bool(found) and found[0]["job_id"] == job_id

    assert wait_for(suppressed, timeout_s=TIMEOUT_S, pause_s=0.2)
    assert (found[0]["status"], found[0]["attempts"]) == ("suppressed", 0)
    assert len(server.at("/hook")) == heard
    assert wait_for(
        lambda: bool(ops.metrics("WebhooksSuppressed")), timeout_s=TIMEOUT_S, pause_s=0.5
    )
    other = plant.globex.post("/webhooks", json={"url": f"{server.url}/globex"})
    assert other.status_code == 201

    ops.switch()
    plant.sweep()

    assert ask(plant, "demo-chat", "Cached").status_code == 200
    plant.until(ask(plant, "demo-chat", "Asked again").json()["id"], "completed")
    assert not ops.degraded()
    assert ops.notice()["detail-type"] == "DegradedEnded"
    path = f"/webhooks/{webhook_id}/deliveries/{found[0]['id']}"
    assert plant.acme.post(f"{path}/redeliver").status_code == 202
    assert wait_for(
        lambda: any(one.event["data"]["job_id"] == job_id for one in server.at("/hook")[heard:]),
        timeout_s=TIMEOUT_S,
        pause_s=0.2,
    )


def test_backlog_of_a_paused_lane_begins_degraded_mode_and_its_end_ends_it(
    plant: Plant, ops: Ops
) -> None:
    ops.push_catalogue(SERVICE + CATALOGUE)
    told = len(ops.metrics("DegradedSeconds"))
    plant.run_cli("pause", "lane:interactive")
    job_id = plant.submit("It waits in a paused lane")
    submitted_at = time.monotonic()
    assert wait_for(lambda: time.monotonic() > submitted_at + 11, timeout_s=TIMEOUT_S, pause_s=0.5)

    plant.sweep()

    assert ops.degraded()
    notice = ops.notice()
    assert (notice["detail-type"], notice["detail"]["reason"]) == ("DegradedBegan", "age")
    assert notice["detail"]["oldest_job_age_ms"] >= 10_000
    ages = [
        age
        for line in ops.metrics("OldestJobAge")
        if line.get("lane") == "interactive"
        for age in line["OldestJobAge"]
    ]
    assert max(ages) >= 10_000
    late = plant.acme.post(
        "/jobs", json={"model": "demo-chat", "input": "Too much", "priority": "batch"}
    )
    assert (late.status_code, late.json()["code"]) == (503, "degraded")

    plant.run_cli("resume", "lane:interactive")
    plant.until(job_id, "completed")
    plant.sweep()

    assert not ops.degraded()
    ended = ops.notice()
    assert ended["detail-type"] == "DegradedEnded"
    assert ended["detail"]["degraded_s"] >= 0
    assert wait_for(
        lambda: len(ops.metrics("DegradedSeconds")) > told, timeout_s=TIMEOUT_S, pause_s=0.5
    )
