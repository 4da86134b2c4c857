"""What an operator sees of a stack on which a job has failed for good."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

SECRET = "a-prompt-that-nobody-may-read"


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("views") / ".sluiceway") as made:
        yield made


@pytest.fixture(scope="module")
def jobs(plant: Plant) -> dict[str, str]:
    """The ids of one job that completed, of one that failed for good, and of one that waits."""
    done = plant.submit(f"done {SECRET}")
    dead = plant.submit(f"dead {SECRET}", {"status": 400})
    plant.until(done, "completed")
    plant.until(dead, "dead_lettered")
    assert wait_for(lambda: dead in plant.dead_letters(), timeout_s=TIMEOUT_S)
    plant.run_cli("pause", "model:heavy")
    waits = plant.submit(f"waits {SECRET}", model="heavy")
    assert wait_for(lambda: plant.row(waits).get("parked", False), timeout_s=TIMEOUT_S)
    return {"done": done, "dead": dead, "waits": waits}


def test_status_tells_what_is_wrong(plant: Plant, jobs: dict[str, str]) -> None:
    assert jobs
    seen: dict[str, Any] = {}

    def counted() -> bool:  # the lines of an invocation are there when it has ended
        seen.update(plant.run_cli("status"))
        return bool(seen["traffic"]["last_5_min"]["dead_lettered"])

    assert wait_for(counted, timeout_s=TIMEOUT_S)
    shown = plant.cli("status")

    assert seen["unknown"] == {}
    traffic = seen["traffic"]["last_5_min"]
    assert (traffic["submitted"], traffic["completed"], traffic["failed"]) == (3, 1, 1)
    assert (traffic["misses"], traffic["hit_ratio"]) == (3, 0)
    assert seen["queues"]["dead_letters"]["visible"] == 1
    assert seen["lanes"]["batch"]["parked"] == 1
    assert seen["lanes"]["interactive"]["workers"] == 15
    assert seen["paused"] == ["model:heavy"]
    assert [one["text"] for one in seen["problems"]] == [
        "1 message is in the dead-letter queue",
        "1 of 2 jobs that ended in the last 5 min failed",
        "model:heavy is paused",
    ]
    assert shown.returncode == 0
    assert "!!  1 message is in the dead-letter queue  -> sluiceway dlq list" in shown.stdout


def test_list_finds_the_job_by_its_status(plant: Plant, jobs: dict[str, str]) -> None:
    found = plant.run_cli("jobs", "list", "--status", "dead_lettered", "--since", "1h")
    all_of_acme = plant.run_cli("jobs", "list", "--tenant", "acme")

    assert [row["job_id"] for row in found["jobs"]] == [jobs["dead"]]
    assert found["jobs"][0]["error_code"] == "vendor_rejected"
    assert [row["job_id"] for row in all_of_acme["jobs"]] == [
        jobs[name] for name in ("waits", "dead", "done")
    ]


def test_show_tells_the_story_of_the_job_that_failed(plant: Plant, jobs: dict[str, str]) -> None:
    found = plant.run_cli("jobs", "show", jobs["dead"])
    shown = plant.cli("jobs", "show", jobs["dead"]).stdout

    assert found["missing"] == {}
    told = [(one["source"], one["event"]) for one in found["timeline"]]
    story = [
        ("row", "submitted"),
        ("api", "job_submitted"),
        ("run_job", "lease_acquired"),
        ("run_job", "vendor_error"),
        ("run_job", "job_failed"),
        ("run_job", "job_dead_lettered"),
    ]
    assert [one for one in told if one in story] == story
    assert ("row", "failed") in told
    offsets = [one["offset_ms"] for one in found["timeline"]]
    assert offsets == sorted(offsets)
    assert found["why"]["runbook"] == "docs/runbook.md#correct-the-input-and-resubmit"
    assert "The vendor answered 400" in found["why"]["sentence"]
    assert found["why"]["sentence"] in shown
    assert SECRET not in json.dumps(found) + shown


def test_show_tells_what_an_open_job_waits_for(plant: Plant, jobs: dict[str, str]) -> None:
    found = plant.run_cli("jobs", "show", jobs["waits"], "--no-logs")

    assert found["why"]["waits_for"] == "model"
    assert "sluiceway resume model:heavy" in found["why"]["sentence"]
    assert ("audit", "pause.begin") in [(one["source"], one["event"]) for one in found["timeline"]]


def test_audit_tells_who_triggered_the_job(plant: Plant, jobs: dict[str, str]) -> None:
    found = plant.run_cli("audit", "--subject", f"job:{jobs['dead']}")

    row = plant.row(jobs["dead"])
    assert found["records"] == []
    assert found["triggered_by"]["key_id"] == row["key_id"]
    assert found["triggered_by"]["request_id"] == row["request_id"]


def test_cost_tells_what_the_jobs_came_to(plant: Plant, jobs: dict[str, str]) -> None:
    found = plant.run_cli("cost", "--days", "2")

    assert {one["tenant"] for one in found["tenants"]} == {"acme", "globex"}
    assert (found["total"]["completed"], found["total"]["failed"]) == (1, 1)
    assert found["total"]["cost"] == float(plant.row(jobs["done"])["cost_nanos"]) / 1e9
