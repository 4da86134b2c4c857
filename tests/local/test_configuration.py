"""Catalogue and flags on the real template: pushed, refused, taken back, and kept over deploys."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_cli.rollouts import EFFECTIVE_WITHIN_S
from sluiceway_local import deploy, emulator, stack
from sluiceway_local.processes import wait_for

from tests.local.plant import ROOT, TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

MORE = """
[models.{name}]
vendor = "simulator"
vendor_model = "sim-{name}-1"
version = "1"
"""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("configuration") / ".sluiceway") as made:
        yield made


def in_force(plant: Plant) -> str:
    return str(plant.run_cli("catalogue", "show")["text"])


def edited(plant: Plant, more: str) -> Path:
    """What `catalogue show > c.toml` and an editor give."""
    file = plant.folder.parent / "c.toml"
    file.write_text(plant.cli("catalogue", "show").stdout + more)
    return file


def status_of_submit(plant: Plant, model: str) -> int:
    return plant.acme.post("/jobs", json={"model": model, "input": f"For {model}"}).status_code


def states(plant: Plant) -> list[str]:
    return [one["state"] for one in plant.run_cli("catalogue", "history")["deployments"]]


def test_bad_catalogue_is_refused_and_the_running_one_stays(plant: Plant) -> None:
    before, deployed = in_force(plant), states(plant)
    file = edited(plant, MORE.format(name="slow") + "timeout_s = { max = 500 }\n")

    done = plant.cli("catalogue", "push", str(file), "--now", "--yes")

    assert done.returncode == 1
    assert "models.slow.timeout_s.max" in done.stderr
    assert (in_force(plant), states(plant)) == (before, deployed)
    assert status_of_submit(plant, "demo-chat") == 202


def test_catalogue_that_is_pushed_is_in_force_in_time_and_so_is_its_end(plant: Plant) -> None:
    assert status_of_submit(plant, "fresh") == 404
    file = edited(plant, MORE.format(name="fresh"))

    pushed = plant.run_cli("catalogue", "push", str(file), "--now", "--yes")
    seen = wait_for(
        lambda: status_of_submit(plant, "fresh") in {200, 202},
        timeout_s=EFFECTIVE_WITHIN_S,
        pause_s=1.0,
    )

    assert seen
    assert [one["member"] for one in pushed["changes"]] == ["models.fresh"]
    assert plant.run_cli("audit", "--limit", "1")["records"][0]["action"] == "catalogue.push"
    back = plant.run_cli("catalogue", "rollback", "--yes")
    assert back["version"] == pushed["version"] - 1
    assert "models.fresh" not in in_force(plant)
    assert wait_for(
        lambda: status_of_submit(plant, "fresh") == 404,
        timeout_s=EFFECTIVE_WITHIN_S,
        pause_s=1.0,
    )


def test_gradual_push_is_under_way_until_it_is_taken_back(plant: Plant) -> None:
    before = in_force(plant)
    file = edited(plant, MORE.format(name="gradual"))

    plant.run_cli("catalogue", "push", str(file), "--yes")
    under_way = states(plant)[0]
    blocked = plant.cli("catalogue", "push", str(file), "--now", "--yes")
    plant.run_cli("catalogue", "rollback", "--yes")

    assert under_way == "DEPLOYING"
    assert "is on its way" in blocked.stderr
    assert states(plant)[0] == "ROLLED_BACK"
    assert in_force(plant) == before


def test_deploy_keeps_what_was_pushed_and_switched(plant: Plant) -> None:
    file = edited(plant, MORE.format(name="kept"))
    plant.run_cli("catalogue", "push", str(file), "--now", "--yes")
    plant.run_cli("flags", "set", "bypass", "off")
    plant.run_cli("flags", "set", "model:kept", "off")
    before = in_force(plant), states(plant), plant.run_cli("flags", "show")

    plant.local = stack.up(deploy.Source(ROOT), folder=plant.folder)

    assert (in_force(plant), states(plant), plant.run_cli("flags", "show")) == before
    bypass = next(one for one in before[2]["features"] if one["feature"] == "bypass")
    assert (bypass["on"], before[2]["version"]) == (False, 2)
    assert plant.run_cli("flags", "set", "bypass", "on")["changed"] is True


def test_operators_hear_of_what_is_switched(plant: Plant) -> None:
    inbox = ops_inbox(plant)

    plant.run_cli("pause", "tenant:globex")
    plant.run_cli("resume", "tenant:globex")
    plant.run_cli("flags", "set", "refresh", "off")

    kinds = ("PauseBegan", "PauseEnded", "FlagsChanged")
    told = received(plant, inbox, len(kinds))
    assert sorted(text.split(": ", 1)[1].split(" ")[0] for text in told) == sorted(kinds)
    assert any("PauseBegan of tenant:globex, by user:" in text for text in told)


def ops_inbox(plant: Plant) -> str:
    """A queue that gets what the stack's rule would tell an ops topic. Gives its URL."""
    url = plant.local.endpoint_url
    sns, events = emulator.client("sns", url), emulator.client("events", url)
    topic = sns.create_topic(Name="ops")["TopicArn"]
    queue = plant.sqs.create_queue(QueueName="ops-inbox")["QueueUrl"]
    arn = plant.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])
    template = deploy.yaml_parse((ROOT / "template.yaml").read_text())
    rule = template["Resources"]["OpsNoticesRule"]["Properties"]
    (target,) = rule["Targets"]
    transformer = dict(target["InputTransformer"])
    text = transformer["InputTemplate"]["Fn::Sub"].replace("${AWS::StackName}", "stack")
    bus = plant.local.outputs["EventBusName"]
    events.put_rule(Name="ops", EventBusName=bus, EventPattern=json.dumps(rule["EventPattern"]))
    events.put_targets(
        Rule="ops",
        EventBusName=bus,
        Targets=[
            {"Id": "ops", "Arn": topic, "InputTransformer": transformer | {"InputTemplate": text}}
        ],
    )
    return str(queue)


def received(plant: Plant, queue: str, number: int) -> list[str]:
    found: list[str] = []

    def look() -> bool:
        answer: dict[str, Any] = plant.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
        found.extend(json.loads(one["Body"])["Message"] for one in answer.get("Messages", []))
        return len(found) >= number

    started = time.monotonic()
    assert wait_for(look, timeout_s=TIMEOUT_S, pause_s=0.2), (found, time.monotonic() - started)
    return found
