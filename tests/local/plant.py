"""A local stack as the fault tests use it: partners, tables, queues, workers and the vendor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from sluiceway_local import deploy, emulator, stack
from sluiceway_local.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway_local.state import LocalStack

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0
PYTHONPATH = os.pathsep.join(str(ROOT / part) for part in ("layers/core", "cli", "local"))

CATALOGUE = """
[vendors.simulator]
base_url = "http://127.0.0.1:1/v1"
api_key_secret = "sluiceway/vendors/simulator"

[models.demo-chat]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"

[models.hasty]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
timeout_s = { min = 0.5, max = 1.5 }

[models.limited]
vendor = "simulator"
vendor_model = "sim-limited-1"
version = "1"

[models.heavy]
vendor = "simulator"
vendor_model = "sim-heavy-1"
version = "1"
weight = "heavy"

[models.news]
vendor = "simulator"
vendor_model = "sim-news-1"
version = "1"
cache = { scope = "shared", soft_ttl_s = 300, hard_ttl_s = 600, jitter = 0.0 }
"""
"""`hasty` gives up on a call after a second and a half; `limited` is refused, which closes its
gate; `heavy` goes to the lane `batch`; all partners share the entries of `news`."""


@dataclass
class Plant:
    """One stack; every test has prompts of its own, so that they don't meet."""

    local: LocalStack
    folder: Path

    def __post_init__(self) -> None:
        self.sqs, self.dynamodb, self.functions, self.logs = (
            emulator.client(service, self.local.endpoint_url)
            for service in ("sqs", "dynamodb", "lambda", "logs")
        )
        self.acme, self.globex = (
            httpx.Client(
                base_url=self.local.api_url,
                headers={"authorization": f"Bearer {self.local.partners[partner]}"},
                timeout=TIMEOUT_S,
            )
            for partner in ("acme", "globex")
        )

    def close(self) -> None:
        clients = (self.sqs, self.dynamodb, self.functions, self.logs, self.acme, self.globex)
        for client in clients:
            client.close()

    def url(self, queue: str) -> str:
        """Of `Interactive`, `Batch` or `DeadLetter`."""
        return self.local.outputs[f"{queue}QueueUrl"]

    # -------------------------------------------------------------------- partners

    def submit(
        self, prompt: str, sim: dict[str, Any] | None = None, *, model: str = "demo-chat"
    ) -> str:
        """Submits, and gives the job's id. `sim`: how the vendor misbehaves in this request."""
        body: dict[str, Any] = {"model": model, "input": prompt}
        if sim is not None:
            body["options"] = {"sim": sim}
        answer = self.acme.post("/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def until(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """The row, as soon as the job is in one of these states."""
        assert wait_for(
            lambda: self.row(job_id)["status"] in statuses, timeout_s=TIMEOUT_S, pause_s=0.1
        ), self.row(job_id)
        return self.row(job_id)

    def cli(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """`sluiceway`, run in the stack's folder."""
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "sluiceway_cli", *arguments],
            cwd=self.folder.parent,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run_cli(self, *arguments: str, text: str | None = None) -> Any:
        """What `sluiceway … --json` prints."""
        done = self.cli(*arguments, "--json", text=text)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    # -------------------------------------------------------------------- tables

    def row(self, job_id: str) -> dict[str, Any]:
        """The job's row, read consistently."""
        answer = self.dynamodb.get_item(
            TableName=self.local.outputs["JobsTableName"],
            Key=_item({"tenant": "acme", "job_id": job_id}),
            ConsistentRead=True,
        )
        return _values(answer["Item"])

    def set_back(self, job_id: str, *names: str) -> None:
        """Makes these times of the row a second ago, as if they had been waited for."""
        past_ms = time.time_ns() // 1_000_000 - 1000
        self.dynamodb.update_item(
            TableName=self.local.outputs["JobsTableName"],
            Key=_item({"tenant": "acme", "job_id": job_id}),
            UpdateExpression="SET " + ", ".join(f"#{name} = :past" for name in names),
            ExpressionAttributeNames={f"#{name}": name for name in names},
            ExpressionAttributeValues=_item({":past": past_ms}),
        )

    def open_gate(self, vendor_model: str) -> None:
        """Ends the cool-down of this model's gate, when no process believes its copy any more."""
        table, key = (
            self.local.outputs["CoordinationTableName"],
            _item({"coordination_key": f"gate#simulator#{vendor_model}"}),
        )
        seen_at = time.monotonic()
        assert wait_for(lambda: time.monotonic() > seen_at + 1.5, timeout_s=TIMEOUT_S, pause_s=0.1)
        self.dynamodb.update_item(
            TableName=table,
            Key=key,
            UpdateExpression="SET closed_until_ms = :past",
            ConditionExpression="closed_until_ms > :past",
            ExpressionAttributeValues=_item({":past": 0}),
        )

    def jobs_of(self, owner: str) -> list[dict[str, Any]]:
        """The rows of all jobs of a tenant, or of an entry: `refresh#<cache key>`."""
        answer = self.dynamodb.query(
            TableName=self.local.outputs["JobsTableName"],
            KeyConditionExpression="tenant = :owner",
            ExpressionAttributeValues=_item({":owner": owner}),
            ConsistentRead=True,
        )
        return [_values(item) for item in answer["Items"]]

    def entry(self, cache_key: str) -> dict[str, Any]:
        """The row of an entry."""
        answer = self.dynamodb.get_item(
            TableName=self.local.outputs["CacheTableName"],
            Key=_item({"cache_key": cache_key}),
            ConsistentRead=True,
        )
        return _values(answer["Item"])

    def entry_expires(self, cache_key: str, *, soft_in_s: float, hard_in_s: float) -> None:
        """Moves the entry's times to so long from now, as if they had been waited for."""
        now_ms = time.time_ns() // 1_000_000
        self.dynamodb.update_item(
            TableName=self.local.outputs["CacheTableName"],
            Key=_item({"cache_key": cache_key}),
            UpdateExpression=(
                "SET soft_expires_at_epoch_ms = :soft, hard_expires_at_epoch_ms = :hard"
            ),
            ConditionExpression="attribute_exists(cache_key)",
            ExpressionAttributeValues=_item(
                {
                    ":soft": now_ms + round(soft_in_s * 1000),
                    ":hard": now_ms + round(hard_in_s * 1000),
                }
            ),
        )

    def lease(self, job_id: str) -> dict[str, Any]:
        """The row of the lease on the job's cache key."""
        answer = self.dynamodb.get_item(
            TableName=self.local.outputs["CoordinationTableName"],
            Key=_item({"coordination_key": f"lease#{self.row(job_id)['cache_key']}"}),
            ConsistentRead=True,
        )
        return _values(answer["Item"])

    def end_lease(self, job_id: str) -> None:
        """Moves the end of the job's lease a minute back, as if it had been waited for."""
        past_ms = time.time_ns() // 1_000_000 - 60_000
        self.dynamodb.update_item(
            TableName=self.local.outputs["CoordinationTableName"],
            Key=_item({"coordination_key": f"lease#{self.row(job_id)['cache_key']}"}),
            UpdateExpression="SET ends_at_epoch_ms = :past",
            ExpressionAttributeValues=_item({":past": past_ms}),
        )

    def sweep(self) -> dict[str, int]:
        """Runs the sweeper now; the schedule does it each minute besides."""
        answer = self.functions.invoke(
            FunctionName=self.local.outputs["SweepJobsFunctionName"], Payload=b"{}"
        )
        text = answer["Payload"].read()
        assert "FunctionError" not in answer, text
        swept: dict[str, int] = json.loads(text)
        return swept

    # -------------------------------------------------------------------- queues

    def dead_letters(self) -> list[str]:
        """The job ids of what is in the dead-letter queue."""
        found = self.run_cli("dlq", "list")
        return [entry["job_id"] for entry in found["dead_letters"]]

    def take_from(self, queue: str, job_id: str) -> dict[str, Any]:
        """Receives the job's message as an operator by hand; the others are visible again."""
        url = self.url(queue)
        taken: list[dict[str, Any]] = []

        def look() -> bool:
            answer = self.sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=30
            )
            for message in answer.get("Messages", []):
                if json.loads(message["Body"])["job_id"] == job_id:
                    taken.append(message)
                else:
                    self.sqs.change_message_visibility(
                        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
                    )
            return bool(taken)

        assert wait_for(look, timeout_s=TIMEOUT_S, pause_s=0.2)
        return taken[0]

    def until_empty(self, queue: str) -> None:
        """Returns when no message is left in the queue, hidden ones included."""

        def empty() -> bool:
            answer = self.sqs.get_queue_attributes(
                QueueUrl=self.url(queue),
                AttributeNames=[
                    "ApproximateNumberOfMessages",
                    "ApproximateNumberOfMessagesNotVisible",
                ],
            )
            return not any(map(int, answer["Attributes"].values()))

        assert wait_for(empty, timeout_s=TIMEOUT_S)

    @contextmanager
    def lane_stopped(self, queue: str) -> Iterator[None]:
        """Nobody takes messages of this lane meanwhile."""
        (mapping,) = (
            one
            for one in self.functions.list_event_source_mappings()["EventSourceMappings"]
            if one["EventSourceArn"].endswith(self.url(queue).rsplit("/", 1)[1])
        )
        self.functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
        try:
            yield
        finally:
            self.functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=True)

    # -------------------------------------------------------------------- workers, vendor

    def processes_of(self, function: str) -> list[int]:
        """The ids of the processes that this function has now, by its name in the outputs."""
        name = self.local.outputs[f"{function}FunctionName"]
        return emulator.processes_of(name, emulator_pid=self.local.pid)

    def kill_workers(self) -> int:
        """Ends every worker's process without a word, and gives their number."""
        workers = self.processes_of("RunJob")
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return len(workers)

    def told(self, job_id: str) -> set[str]:
        """The events that the functions have logged about a job."""
        groups = self.logs.describe_log_groups()["logGroups"]
        pages = self.logs.get_paginator("filter_log_events")
        return {
            json.loads(event["message"])["message"]
            for group in groups
            for page in pages.paginate(logGroupName=group["logGroupName"])
            for event in page["events"]
            if f'"job_id":"{job_id}"' in event["message"] and '"level"' in event["message"]
        }

    @property
    def _control(self) -> str:
        return self.local.vendor_url.removesuffix("/v1") + "/_control"

    def calls(self, prompt: str) -> dict[str, int]:
        """What the vendor counted for this prompt: `calls`, `charged`, `replayed`, `rejected`."""
        counted = httpx.get(f"{self._control}/calls").json()["by_prompt"]
        seen: dict[str, int] = counted.get(prompt, {"calls": 0, "charged": 0})
        return seen

    def calls_begun(self, prompt: str, at_least: int = 1) -> None:
        """Returns when the vendor has been called for this prompt."""
        assert wait_for(lambda: self.calls(prompt)["calls"] >= at_least, timeout_s=TIMEOUT_S)

    def vendor_fails(self, match: str, **fault: Any) -> None:
        """From now on, for every prompt that holds `match`."""
        httpx.post(f"{self._control}/faults", json={"fault": fault, "match": match})

    def vendor_recovers(self) -> None:
        httpx.delete(f"{self._control}/faults")


@contextmanager
def built(folder: Path, *, more: str = "") -> Iterator[Plant]:
    """A stack in `folder` with the catalogue of these tests, and `more` of it."""
    catalogue = folder.parent / "catalogue.toml"
    catalogue.write_text(CATALOGUE + more)
    try:
        local = stack.up(
            deploy.Source(ROOT), port=emulator.free_port(), folder=folder, catalogue=catalogue
        )
        plant = Plant(local, folder)
        yield plant
        plant.close()
    finally:
        stack.down(folder)


def _item(values: dict[str, Any]) -> dict[str, Any]:
    return {name: TypeSerializer().serialize(value) for name, value in values.items()}


def _values(item: dict[str, Any]) -> dict[str, Any]:
    return {name: TypeDeserializer().deserialize(value) for name, value in item.items()}
