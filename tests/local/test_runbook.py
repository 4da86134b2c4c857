"""docs/runbook.md: its commands, in the order of an incident, on a running stack."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore import xform_name
from sluiceway_local import emulator
from sluiceway_local.processes import wait_for

from tests.local.plant import PYTHONPATH, TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

RUNBOOK = (Path(__file__).parents[2] / "docs/runbook.md").read_text("utf-8")
IN_FORCE_S = 40.0
"""What is pushed is in force within 35 s."""

NUMBERS = itertools.count()

LIMIT = """
[tenants.globex]
requests_per_minute = 1
"""

ASKS = re.compile(r"^(sluiceway catalogue (?:push|rollback).*)$", re.MULTILINE)
"""What asks on a terminal; here is none."""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("runbook") / ".sluiceway") as made:
        command = made.folder.parent / "sluiceway"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sluiceway_cli "$@"\n')
        command.chmod(0o755)
        yield made


def snippets(section: str) -> list[str]:
    """The shell snippets of a section, in their order."""
    text = RUNBOOK.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^( *)```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    assert found, section
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def run(plant: Plant, snippet: str, **names: str) -> str:
    """What it prints; `names` are put in place of the words in capitals."""
    for name, value in names.items():
        snippet = re.sub(rf"\b{name}\b", value, snippet)
    folder = plant.folder.parent
    done = subprocess.run(  # noqa: S603 - our own page
        ["/bin/bash", "-euo", "pipefail", "-c", ASKS.sub(r"\1 --yes", snippet)],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, snippet + done.stdout + done.stderr
    return done.stdout


def dead(plant: Plant, prompt: str) -> str:
    """The id of a job that failed for good and whose message is in the dead-letter queue."""
    job_id = plant.submit(prompt, {"status": 400, "times": 1})
    plant.until(job_id, "dead_lettered")
    assert wait_for(lambda: job_id in plant.dead_letters(), timeout_s=TIMEOUT_S)
    return job_id


def test_job_that_failed_is_found_explained_and_redriven(plant: Plant) -> None:
    job_id = dead(plant, "drill")
    names = {"JOB_ID": job_id, "TENANT": "acme", "MODEL": "demo-chat"}

    found, timeline, status, audit = (
        run(plant, snippet, **names) for snippet in snippets("Why did this job fail")
    )
    listed, shown = (
        run(plant, snippet, **names) for snippet in snippets("Look at the dead letters")
    )
    one, every, seen = snippets("Redrive")
    outcome = run(plant, one, **names)
    plant.until(job_id, "completed")
    nothing_left = run(plant, every, **names)
    after = run(plant, seen, **names)

    for text in (found, listed, shown):
        assert job_id in text
    assert "It was submitted at" in audit
    assert "by key_" in audit
    assert "vendor_rejected" in timeline
    assert "dead" in status
    assert "redriven" in outcome
    assert "The dead-letter queue is empty" in nothing_left
    assert "The dead-letter queue is empty" in after
    assert plant.row(job_id)["redrives"] == 1


def test_input_is_corrected_or_the_job_given_up(plant: Plant) -> None:
    (resubmit,) = snippets("Correct the input and resubmit")
    (discard,) = snippets("Discard")
    corrected, hopeless = dead(plant, "to correct"), dead(plant, "hopeless")

    told = run(plant, resubmit, JOB_ID=corrected)
    run(plant, discard, JOB_ID=hopeless)

    assert re.search(r"job_\w+", told.replace(corrected, ""))
    assert [plant.row(job_id)["status"] for job_id in (corrected, hopeless)] == ["failed"] * 2


def test_message_is_redriven_by_hand(plant: Plant) -> None:
    job_id = dead(plant, "by hand")
    receive, send = snippets("Redrive by hand")
    names = {"DLQ": plant.url("DeadLetter"), "LANE": plant.url("Interactive")}

    (answer,) = aws(plant, receive, **names)
    (message,) = (one for one in answer["Messages"] if job_id in one["Body"])
    # SQS takes a message that comes back within 5 s of the failure for a leftover.
    failed_ms = int(plant.row(job_id)["failed_at_epoch_ms"])
    assert wait_for(lambda: time.time() * 1000 > failed_ms + 6_000, timeout_s=TIMEOUT_S)
    aws(
        plant,
        send.replace("JOB_ID", job_id).replace("TENANT", "acme"),
        RECEIPT_HANDLE=message["ReceiptHandle"],
        **names,
    )

    assert plant.until(job_id, "completed")["redrives"] == 1


def test_model_tenant_and_lane_are_stopped_and_begin_again(plant: Plant) -> None:
    pause, move, resume = snippets("Slow a vendor or a tenant down")
    names = {"MODEL": "heavy", "TENANT": "acme"}

    run(plant, pause, **names)
    urgent = plant.submit("urgent", model="heavy")
    moved = run(plant, move, JOB_ID=urgent)
    left = run(plant, resume, **names)
    plant.run_cli("resume", "tenant:acme")
    plant.run_cli("resume", "lane:batch")

    assert "moved" in moved
    assert "lane:batch" in left
    assert "tenant:acme" in left
    assert "model:heavy" not in left.partition("resumed")[2].replace("model:heavy is", "")
    assert wait_for(lambda: plant.row(urgent)["status"] == "completed", timeout_s=100)


def test_tenant_is_slowed_down_by_a_push_that_is_taken_back(plant: Plant) -> None:
    (push,) = snippets("Slow a tenant down")
    history, rollback = snippets("Roll back a catalogue")
    catalogue = plant.folder.parent / "c.toml"
    catalogue.write_text(plant.cli("catalogue", "show").stdout + LIMIT)

    pushed = run(plant, push)
    refused = wait_for(lambda: 429 in globex_asks_twice(plant), timeout_s=IN_FORCE_S)
    told = run(plant, history)
    run(plant, rollback)
    taken = wait_for(lambda: globex_asks_twice(plant) == [202, 202], timeout_s=IN_FORCE_S)

    assert "tenants.globex" in pushed
    assert "COMPLETE" in told
    assert refused
    assert taken


def test_wrong_answer_leaves_the_cache(plant: Plant) -> None:
    show, invalidate = snippets("A wrong answer in the cache")
    plant.until(plant.submit("a wrong answer"), "completed")
    hit = plant.acme.post("/jobs", json={"model": "demo-chat", "input": "a wrong answer"}).json()
    names = {"hit_KEY": hit["id"], "TENANT": "acme", "MODEL": "demo-chat"}

    before = run(plant, show, **names)
    run(plant, invalidate, **names)
    after = plant.cli("cache", "show", hit["id"])

    assert hit["status"] == "completed"
    assert "fresh" in before
    assert "invalidated" in after.stdout
    assert after.returncode == 1


def test_everything_is_on_record(plant: Plant) -> None:
    (look,) = snippets("Who did that")
    actor = plant.run_cli("audit", "--limit", "1")["records"][0]["actor"].removeprefix("user:")

    told = run(plant, look, MODEL="demo-chat", LOGIN=actor)

    for action in ("dlq.redrive", "pause.begin", "pause.end", "catalogue.push", "job.move"):
        assert action in told
    assert "cache.invalidate" in told


# ------------------------------------------------------------------------------------ helpers


def globex_asks_twice(plant: Plant) -> list[int]:
    """The statuses of two new jobs, one right after the other."""
    globex_asks_twice.asked += 2  # type: ignore[attr-defined]
    number = globex_asks_twice.asked  # type: ignore[attr-defined]
    return [
        plant.globex.post(
            "/jobs", json={"model": "demo-chat", "input": f"globex {one}"}
        ).status_code
        for one in (number, number + 1)
    ]


globex_asks_twice.asked = 0  # type: ignore[attr-defined]


def aws(plant: Plant, snippet: str, **variables: str) -> list[dict[str, Any]]:
    """Does what the `aws` commands in it say; there is no such program here."""
    answers = []
    for line in snippet.strip().splitlines():
        told = subprocess.run(  # noqa: S603 - our own page
            ["/bin/bash", "-c", f"printf '%s\\0' {line}"],
            env=variables,
            capture_output=True,
            check=True,
        ).stdout.decode()
        program, service, command, *options = told.split("\0")[:-1]
        assert program == "aws"
        client = emulator.client(service, plant.local.endpoint_url)
        operation = client.meta.method_to_api_mapping[xform_name(command.replace("-", "_"))]
        members = client.meta.service_model.operation_model(operation).input_shape.members
        by_option = {f"--{xform_name(name, '-')}": name for name in members}
        given = dict(zip(options[::2], options[1::2], strict=True))
        answers.append(
            getattr(client, command.replace("-", "_"))(
                **{
                    by_option[name]: int(value)
                    if members[by_option[name]].type_name == "integer"
                    else value
                    for name, value in given.items()
                }
            )
        )
        client.close()
    return answers
