"""Pauses on the real template: what they stop, what they leave, and that deploys keep them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import deploy, stack
from sluiceway_local.processes import wait_for

from tests.local.plant import ROOT, TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("pause") / ".sluiceway") as made:
        yield made


def pass_by(seconds: float) -> None:
    """Returns when every process's copy is so old."""
    ends = time.monotonic() + seconds
    assert wait_for(lambda: time.monotonic() > ends, timeout_s=TIMEOUT_S, pause_s=0.1)


def paused(plant: Plant) -> list[str]:
    return [one["subject"] for one in plant.run_cli("pause")["paused"]]


def test_jobs_of_a_paused_lane_wait_or_are_moved(plant: Plant) -> None:
    plant.run_cli("pause", "lane:batch")
    waits, moved = (plant.submit(text, model="heavy") for text in ("It waits", "It is moved"))

    plant.run_cli("jobs", "move", moved, "--lane", "interactive")
    plant.until(moved, "completed")

    assert plant.row(waits)["status"] == "queued"
    assert plant.calls("It waits")["calls"] == 0
    plant.run_cli("resume", "lane:batch")
    row = plant.until(waits, "completed")
    assert (row["lane"], row["receives"]) == ("batch", 1)
    plant.until_empty("Batch")
    assert plant.calls("It is moved")["calls"] == 1


@pytest.mark.proves(14)
@pytest.mark.parametrize(("subject", "copy_lives_s"), [("model:heavy", 1.5), ("tenant:acme", 5.0)])
def test_job_behind_a_pause_is_parked_and_runs_after_a_resume(
    plant: Plant, subject: str, copy_lives_s: float
) -> None:
    plant.run_cli("pause", subject)
    pass_by(copy_lives_s)
    job_id = plant.submit(f"Behind {subject}", model="heavy")

    assert wait_for(lambda: plant.row(job_id).get("parked"), timeout_s=TIMEOUT_S)
    plant.run_cli("resume", subject)
    pass_by(copy_lives_s)
    plant.set_back(job_id, "due_at_epoch_ms", "not_before_epoch_ms")
    plant.sweep()

    row = plant.until(job_id, "completed", "failed")
    assert (row["status"], row["attempts"], row["attempts_total"]) == ("completed", 1, 1)
    assert plant.calls(f"Behind {subject}")["calls"] == 1


def test_deploy_ends_no_pause(plant: Plant) -> None:
    subjects = ["lane:batch", "model:heavy", "tenant:globex"]
    for subject in subjects:
        plant.run_cli("pause", subject)

    stack.up(
        deploy.Source(ROOT), folder=plant.folder, catalogue=plant.folder.parent / "catalogue.toml"
    )

    assert paused(plant) == subjects
    for subject in subjects:
        assert plant.run_cli("resume", subject)["changed"] is True
    assert paused(plant) == []
