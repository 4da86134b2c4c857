"""One stack for all live tests: asked for, announced, deployed, and deleted again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.live import stage as stages
from tests.live import switch
from tests.local import built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.stage import Stage

ROOT = Path(__file__).parents[2]
REPORT = ROOT / ".sluiceway/live-report.json"
REHEARSED = ROOT / ".sluiceway/live-rehearsal.json"
"""A rehearsal finds out nothing about AWS, so it doesn't overwrite what was."""


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, _nobodys_account: None) -> Iterator[Stage]:
    """The stack. What is found out about AWS is written down at the end."""
    endpoint_url: str | None = request.config.getoption("--live-endpoint")
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, flush=True)  # noqa: T201 - whoever pays has to see it now

    with pytest.MonkeyPatch.context() as patch:
        if endpoint_url is not None:
            patch.setenv("AWS_ENDPOINT_URL", endpoint_url)
        caller, region = _caller()
        if endpoint_url is None:
            reason = switch.refusal(os.environ.get(switch.VARIABLE), caller["Account"])
            reason = reason or switch.elsewhere(_endpoint_urls())
            if reason is not None:
                pytest.exit(reason, switch.NOT_ASKED)
        if reason := built.outdated():  # without a Python 3.13, `make build` leaves it as it is
            pytest.exit(reason, switch.NOT_ASKED)
        name = stages.new_name()
        say("\n" + switch.announcement(name, caller, region))
        with stages.deployed(caller, region, endpoint_url, say=say, stack=name) as made:
            try:
                yield made
            finally:
                written = _write(made, caller)
                say(f"what was found out is in {written.relative_to(ROOT)}")


def _caller() -> tuple[dict[str, str], str]:
    region = boto3.Session().region_name
    if region is None:
        pytest.exit("say in which region: set AWS_REGION", switch.NOT_ASKED)
    try:
        return boto3.client("sts").get_caller_identity(), region
    except (BotoCoreError, ClientError) as error:
        pytest.exit(f"AWS doesn't say whose credentials these are: {error}", switch.NOT_ASKED)


def _endpoint_urls() -> dict[str, str]:
    """Where each service is looked for, by the environment and the profile."""
    return {
        service: boto3.client(service).meta.endpoint_url  # type: ignore[call-overload]
        for service in switch.SERVICES
    }


def _write(made: Stage, caller: dict[str, str]) -> Path:
    head: dict[str, Any] = {
        "stack": made.stack,
        "region": made.region,
        "account": caller["Account"],
        "rehearsal": made.rehearsal,
        "workers": made.workers,
    }
    path = REHEARSED if made.rehearsal else REPORT
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(head | made.report, indent=1, default=str) + "\n", "utf-8")
    return path
