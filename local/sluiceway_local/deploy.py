"""Deploys template.yaml to the emulator by CloudFormation, the way `sam deploy` does it to AWS."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, WaiterError
from samtranslator.yaml_helper import yaml_parse

from sluiceway_local import emulator

CODE_BUCKET = "sluiceway-local-code"
TEMPLATE_KEY = "template.json"

START_UP_S = 120
"""AWS gives a function's start-up ten seconds of its own; here fifty may start up on two cores."""

LAST_INVOCATION_S = 30
"""A version may be invoked for so long after it was replaced: until its process has started."""

PARAMETERS = {
    "Target": "local",
    "WorkerConcurrency": "20",
    "ApiRequestsPerSecond": "1000",
    "ApiBurst": "1000",
}
"""Twenty workers: enough for a laptop, and each is a process."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to deploy: the sources as they are, or what `sam build` made of them."""

    root: Path
    built: bool = False

    @property
    def template(self) -> Path:
        """The template whose paths are relative to its own folder."""
        return (
            self.root / ".aws-sam/build/template.yaml"
            if self.built
            else self.root / "template.yaml"
        )


def deploy(source: Source, *, endpoint_url: str, stack: str) -> dict[str, str]:
    """Creates or updates the stack, and gives its outputs.

    Raises RuntimeError with CloudFormation's own reasons when it fails.
    """
    template = yaml_parse(source.template.read_text())
    s3 = emulator.client("s3", endpoint_url)
    s3.create_bucket(Bucket=CODE_BUCKET)
    base = source.template.parent
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Serverless::Function":
            archive = _zip(_files(base / properties["CodeUri"]))
            properties["CodeUri"] = _upload(s3, archive)
            _suit_the_emulator(properties)
        elif resource["Type"] == "AWS::Serverless::LayerVersion":
            folder = base / properties["ContentUri"]
            if "Condition" in resource:  # no emulator has what it is for, so nobody loads it
                properties["ContentUri"] = _upload(s3, _zip(()))
                continue
            files = (
                _files(folder, compiled=True)
                if source.built
                else _files(folder / "sluiceway", "python/sluiceway/")
            )
            properties["ContentUri"] = _upload(s3, _zip(files))
    url = _upload_template(s3, template, endpoint_url)
    _apply(url, endpoint_url=endpoint_url, stack=stack)
    answer = emulator.client("cloudformation", endpoint_url).describe_stacks(StackName=stack)
    return {output["OutputKey"]: output["OutputValue"] for output in answer["Stacks"][0]["Outputs"]}


def reserved_concurrency(template: dict[str, Any]) -> int:
    """What the template reserves for the workers under PARAMETERS."""
    row = template["Mappings"]["Concurrency"][PARAMETERS["WorkerConcurrency"]]
    reserved: int = row["Reserved"]
    return reserved


def lease_s(template: dict[str, Any]) -> float:
    """How long a worker's lease lasts under the template's defaults."""
    timeout = template["Parameters"]["RunJobTimeout"]["Default"]
    return float(template["Mappings"]["RunJobTimings"][timeout]["Lease"])


def functions(template: dict[str, Any]) -> dict[str, str]:
    """The logical id of each function, by the name of its folder."""
    return {
        Path(resource["Properties"]["CodeUri"]).name: name
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::Function"
    }


def physical_names(*, endpoint_url: str, stack: str) -> dict[str, str]:
    """What the stack's resources are called, by their logical ids."""
    pages = (
        emulator.client("cloudformation", endpoint_url)
        .get_paginator("list_stack_resources")
        .paginate(StackName=stack)
    )
    return {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for page in pages
        for one in page["StackResourceSummaries"]
    }


def forget_old_versions(
    template: dict[str, Any], *, endpoint_url: str, stack: str, now_s: float
) -> None:
    """Deletes the functions' versions that were replaced so long ago that none is at work.

    The emulator keeps a process of each version until Lambda's API deletes that, and ends it in the
    middle of its work then. CloudFormation's deletion would leave the process.
    """
    names = physical_names(endpoint_url=endpoint_url, stack=stack)
    client = emulator.client("lambda", endpoint_url)
    for logical_id in functions(template).values():
        longest_s = _timeout_s(template, logical_id) + LAST_INVOCATION_S
        found = client.list_versions_by_function(FunctionName=names[logical_id])["Versions"]
        published = sorted((one for one in found if one["Version"] != "$LATEST"), key=_number)
        for old, successor in pairwise(published):
            replaced_s = datetime.fromisoformat(successor["LastModified"]).timestamp()
            if now_s - replaced_s > longest_s:
                try:
                    client.delete_function(FunctionName=names[logical_id], Qualifier=old["Version"])
                except client.exceptions.ResourceConflictException:
                    continue  # the alias went back to it when a deployment failed


def _number(version: dict[str, Any]) -> int:
    return int(version["Version"])


def _timeout_s(template: dict[str, Any], function: str) -> int:
    """Of the template, under its defaults."""
    timeout = template["Resources"][function]["Properties"]["Timeout"]
    if not isinstance(timeout, int):
        timeout = template["Parameters"][timeout["Ref"]]["Default"]
    return int(timeout)


def _suit_the_emulator(function: dict[str, Any]) -> None:
    """Start-up time isn't counted into the timeout.

    The worker's timeout is a parameter that its lease and visibility follow, so that one stays.
    """
    if isinstance(function["Timeout"], int):
        function["Timeout"] = START_UP_S


def _apply(template_url: str, *, endpoint_url: str, stack: str) -> None:
    cloudformation = emulator.client("cloudformation", endpoint_url)
    request: dict[str, Any] = {
        "StackName": stack,
        "TemplateURL": template_url,
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": value} for name, value in PARAMETERS.items()
        ],
        "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    }
    try:
        cloudformation.describe_stacks(StackName=stack)
    except ClientError:
        cloudformation.create_stack(**request)
        done = "stack_create_complete"
    else:
        try:
            cloudformation.update_stack(**request)
        except ClientError as error:
            if "No updates" in str(error):
                return
            raise
        done = "stack_update_complete"
    try:
        cloudformation.get_waiter(done).wait(
            StackName=stack, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
        )
    except WaiterError as error:
        events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
        reasons = [
            f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason', '')}"
            for event in events
            if event["ResourceStatus"].endswith("FAILED")
        ]
        raise RuntimeError("the deployment failed:\n  " + "\n  ".join(reasons)) from error


def _files(
    folder: Path, prefix: str = "", *, compiled: bool = False
) -> Iterable[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (compiled or "__pycache__" not in path.parts):
            yield prefix + path.relative_to(folder).as_posix(), path.read_bytes()


def _zip(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive that depends on its contents alone: unchanged code isn't deployed again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _upload_template(s3: Any, template: dict[str, Any], endpoint_url: str) -> str:
    """Its address: within a request, CloudFormation takes 51,200 bytes at most."""
    s3.put_object(Bucket=CODE_BUCKET, Key=TEMPLATE_KEY, Body=json.dumps(template).encode())
    return f"{endpoint_url}/{CODE_BUCKET}/{TEMPLATE_KEY}"


def _upload(s3: Any, archive: bytes) -> dict[str, str]:
    key = f"{hashlib.sha256(archive).hexdigest()}.zip"
    s3.put_object(Bucket=CODE_BUCKET, Key=key, Body=archive)
    return {"Bucket": CODE_BUCKET, "Key": key}
