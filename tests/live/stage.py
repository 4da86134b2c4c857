"""A stack on AWS with what the live tests need around it: its making, and how they talk to it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import httpx
from botocore.exceptions import ClientError
from samtranslator.yaml_helper import yaml_parse
from sluiceway_cli.target import Target, find_target
from sluiceway_local.processes import wait_for

from tests.live import reading, switch, vendor
from tests.live.teardown import PREFIX, TAG, Teardown, code_bucket, outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sluiceway.domain.job import Job

ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".aws-sam/build/template.yaml"
SAM = ROOT / ".venv-sam/bin/sam"
PYTHONPATH = os.pathsep.join(str(ROOT / part) for part in ("layers/core", "cli", "local"))

REQUEST_TIMEOUT_S = 60.0
DEPLOY_TIMEOUT_S = 1200
JOB_TIMEOUT_S = 90.0
LOG_TIMEOUT_S = 60.0

PARTNERS = {
    "partner": "submit,read,cancel,bypass,admin",
    "noisy": "submit,read,cancel",
    "quiet": "submit,read,cancel",
    "leaver": "submit,read",
}
"""Tenants, each with a key of these scopes."""

CATALOGUE = """
[vendors.live]
base_url = "{url}/v1"
api_key_secret = "sluiceway/vendors/{stack}"

[models.live-chat]
vendor = "live"
vendor_model = "live-1"
version = "1"
price = {{ input_per_million = 3.0, output_per_million = 15.0 }}

[models.live-flaky]
vendor = "live"
vendor_model = "live-2"
version = "1"
max_attempts = 20

[models.live-heavy]
vendor = "live"
vendor_model = "live-3"
version = "1"
weight = "heavy"
"""


@dataclass
class Stage:
    """One deployed stack, from outside: as its partners, its operators and its vendor see it."""

    stack: str
    account: str
    region: str
    endpoint_url: str | None
    """Of an emulator; None: AWS itself."""
    vendor_key: str
    say: Callable[[str], None]
    keys: dict[str, str] = field(default_factory=dict)
    around: dict[str, str] = field(default_factory=dict)
    """Outputs of the second stack."""
    workers: int | None = None
    """The cap over both lanes; None: the account has too little concurrency to reserve any."""
    report: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.time)

    @property
    def rehearsal(self) -> bool:
        """Whether this is an emulator."""
        return self.endpoint_url is not None

    def client(self, service: str) -> Any:
        """A client, of the environment's account and region."""
        return boto3.client(service)  # type: ignore[call-overload]

    @cached_property
    def target(self) -> Target:
        """What the command line works with."""
        return find_target(self.stack)

    @cached_property
    def resources(self) -> list[dict[str, Any]]:
        """Of the tested stack, as CloudFormation lists them."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources")
        return [
            one
            for page in pages.paginate(StackName=self.stack)
            for one in page["StackResourceSummaries"]
        ]

    # -------------------------------------------------------------------- making

    def make(self) -> None:
        """Deploys both stacks, pushes a catalogue and makes keys."""
        self._deploy()
        self._deploy_outside()
        catalogue = CATALOGUE.format(url=self.vendor_url, stack=self.stack)
        self.say("pushing a catalogue, and making keys")
        self.cli("catalogue", "push", "-", "--now", "--yes", text=catalogue)
        for tenant, scopes in PARTNERS.items():
            self.keys[tenant] = self.cli("keys", "create", tenant, "--scopes", scopes)["key"]
        ready = wait_for(self._ready, timeout_s=180, pause_s=2)
        assert ready, "the API knows no models three minutes after the push"

    def _deploy(self) -> None:
        bucket = code_bucket(self.stack, self.account)
        location = {"LocationConstraint": self.region}
        s3 = self.client("s3")
        if self.region == "us-east-1":
            s3.create_bucket(Bucket=bucket)
        else:
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=location)
        self.say(f"deploying {self.stack} with sam; on AWS that takes about five minutes")
        parameters = {"LogRetentionDays": "1", **self._parameters()}
        command = [
            *(str(SAM), "deploy", "--template-file", str(BUILT), "--stack-name", self.stack),
            *("--region", self.region, "--s3-bucket", bucket, "--capabilities", "CAPABILITY_IAM"),
            *("--no-confirm-changeset", "--no-progressbar", "--tags", f"{TAG}={self.stack}"),
            "--parameter-overrides",
            *(f"{name}={value}" for name, value in parameters.items()),
        ]
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            cwd=BUILT.parent,
            env={**os.environ, "SAM_CLI_TELEMETRY": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEPLOY_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    def _parameters(self) -> dict[str, str]:
        """What this account has room for, and what is its own already."""
        if self.rehearsal:
            self.workers = switch.WORKERS
            return {"Target": "local", "WorkerConcurrency": str(switch.WORKERS)}
        limits = self.client("lambda").get_account_settings()["AccountLimit"]
        workers = switch.workers(limits["UnreservedConcurrentExecutions"])
        self.workers = None if workers == "off" else int(workers)
        has_role = self.client("apigateway").get_account().get("cloudwatchRoleArn")
        return {
            "WorkerConcurrency": workers,
            "ApiGatewayLogRole": "existing" if has_role else "create",
        }

    def _deploy_outside(self) -> None:
        name = outside(self.stack)
        self.say(f"making {name}: a vendor, and queues to look into")
        cloudformation = self.client("cloudformation")
        cloudformation.create_stack(
            StackName=name,
            TemplateBody=outside_template(),
            Parameters=[
                {"ParameterKey": "Installation", "ParameterValue": self.stack},
                {"ParameterKey": "VendorKey", "ParameterValue": self.vendor_key},
            ],
            Capabilities=["CAPABILITY_IAM"],
            Tags=[{"Key": TAG, "Value": self.stack}],
        )
        cloudformation.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 3, "MaxAttempts": 120}
        )
        (made,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
        self.around = {one["OutputKey"]: one["OutputValue"] for one in made["Outputs"]}

    def _ready(self) -> bool:
        """Whether the API has the catalogue, and the vendor answers."""
        with self.partner("partner") as client:
            answer = client.get("/models")
        return answer.status_code == 200 and bool(answer.json()["data"])

    # -------------------------------------------------------------------- partners

    @property
    def api_url(self) -> str:
        return self.target.api_url

    @contextmanager
    def partner(self, tenant: str) -> Iterator[httpx.Client]:
        """A client with this tenant's key."""
        with httpx.Client(
            base_url=self.api_url,
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=REQUEST_TIMEOUT_S,
        ) as client:
            yield client

    def prompt(self, about: str) -> str:
        """One that nobody used before."""
        return f"{about} {secrets.token_hex(8)}"

    def submit(
        self,
        prompt: str,
        sim: Mapping[str, Any] | None = None,
        *,
        tenant: str = "partner",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> str:
        """Submits, and gives the job's id. `sim`: what the vendor does."""
        body = {"model": "live-chat", "input": prompt, **more}
        if sim is not None:
            body["options"] = {"sim": sim}
        with self.partner(tenant) as client:
            answer = client.post("/jobs", json=body, headers=dict(headers or {}))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def until(
        self,
        job_id: str,
        status: str,
        *,
        tenant: str = "partner",
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> dict[str, Any]:
        """The job as the partner gets it, as soon as it has this status."""
        with self.partner(tenant) as client:
            seen: dict[str, Any] = {}

            def there() -> bool:
                seen.update(client.get(f"/jobs/{job_id}").json())
                return bool(seen["status"] == status)

            assert wait_for(there, timeout_s=timeout_s, pause_s=1.0), seen
        return seen

    # -------------------------------------------------------------------- operators

    def cli(self, *arguments: str, text: str | None = None) -> Any:
        """What `sluiceway … --json` prints."""
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "sluiceway_cli", *arguments, "--stack", self.stack, "--json"],
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=REQUEST_TIMEOUT_S * 3,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def row(self, job_id: str, tenant: str = "partner") -> Job:
        """The job's row, read consistently."""
        job = self.target.jobs.get(tenant, job_id)
        assert job is not None, job_id
        return job

    def dead_letters(self) -> list[str]:
        """The ids of the jobs whose messages are in the dead-letter queue."""
        return [one["job_id"] for one in self.cli("dlq", "list")["dead_letters"]]

    # -------------------------------------------------------------------- vendor

    @property
    def vendor_url(self) -> str:
        """Its function's URL; an emulator has it at its own address."""
        url = self.around["VendorUrl"].rstrip("/")
        if self.endpoint_url is None:
            return url
        return f"{self.endpoint_url}/_aws/lambda-url/{url.split('//')[1].split('.')[0]}"

    @property
    def hook_url(self) -> str:
        """Where it takes webhooks."""
        return self.vendor_url + vendor.hook_path(self.vendor_key)

    def vendor_lines(self) -> list[dict[str, Any]]:
        """What the vendor logged, up to some seconds ago."""
        return reading.vendor_lines(self.logged(self.around["VendorLogGroup"]))

    def calls(self, prompt: str, *, at_least: int = 1) -> list[dict[str, Any]]:
        """The vendor's calls for this prompt, as soon as its log, which is late, has so many."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [
                one for one in self.vendor_lines() if one.get("call") == vendor.digest(prompt)
            ]
            return len(found) >= at_least

        assert wait_for(there, timeout_s=LOG_TIMEOUT_S, pause_s=2.0), found
        return found

    # -------------------------------------------------------------------- watching

    def logged(self, group: str) -> list[str]:
        """All messages of a log group since the beginning."""
        pages = self.client("logs").get_paginator("filter_log_events")
        try:
            return [
                event["message"]
                for page in pages.paginate(
                    logGroupName=group, startTime=round(self.began_s * 1000) - 60_000
                )
                for event in page["events"]
            ]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return []
            raise

    def log_groups(self) -> dict[str, str]:
        """The physical names of the stack's log groups, by their logical ones."""
        return {
            one["LogicalResourceId"]: one["PhysicalResourceId"]
            for one in self.resources
            if one["ResourceType"] == "AWS::Logs::LogGroup"
        }

    def receive(self, url: str, *, keep: bool = False) -> list[dict[str, Any]]:
        """What is in a queue now, ten at most; `keep` leaves it there, visible."""
        sqs = self.client("sqs")
        extra = {"VisibilityTimeout": 0} if keep else {}
        messages: list[dict[str, Any]] = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=2,
            AttributeNames=["All"],
            **extra,
        ).get("Messages", [])
        if not keep:
            for message in messages:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return messages

    def queue_arn(self, url: str) -> str:
        arn: str = self.client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["QueueArn"]
        )["Attributes"]["QueueArn"]
        return arn


def outside_template() -> str:
    """The second stack's template, with the vendor's code in it."""
    template = yaml_parse((ROOT / "tests/live/outside.yaml").read_text("utf-8"))
    code = {"ZipFile": Path(vendor.__file__).read_text("utf-8")}
    template["Resources"]["VendorFunction"]["Properties"]["Code"] = code
    return json.dumps(template)


@contextmanager
def deployed(
    caller: Mapping[str, str],
    region: str,
    endpoint_url: str | None,
    *,
    say: Callable[[str], None],
    stack: str = "",
) -> Iterator[Stage]:
    """A stage, and nothing of it afterwards. `stack`: its name; without one, a new one."""
    stage = Stage(
        stack=stack or new_name(),
        account=caller["Account"],
        region=region,
        endpoint_url=endpoint_url,
        vendor_key=secrets.token_urlsafe(32),
        say=say,
    )
    try:
        stage.make()
        yield stage
    finally:
        say("deleting everything; interrupted now, something stays. By hand it is:")
        say(f"  .venv/bin/python -m tests.live.teardown {stage.stack}")
        Teardown(stage.stack, say=say).run()


def new_name() -> str:
    """For a stack of its own."""
    return PREFIX + secrets.token_hex(4)
