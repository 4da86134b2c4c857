"""Deploys of changed code and parameters: versions behind an alias, and what goes on over them."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from samtranslator.yaml_helper import yaml_parse
from sluiceway_local import deploy, emulator, stack

from tests.local.plant import ROOT, built

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("rollout") / ".sluiceway") as made:
        yield made


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what is deployed."""
    shutil.copy(ROOT / "template.yaml", tmp_path)
    for folder in ("functions", "layers"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def redeploy(plant: Plant, sources: Path) -> None:
    stack.up(
        deploy.Source(sources),
        folder=plant.folder,
        catalogue=plant.folder.parent / "catalogue.toml",
    )


def live(plant: Plant) -> dict[str, str]:
    """The version behind each function's alias."""
    return {
        name.removesuffix("FunctionName"): plant.functions.get_alias(
            FunctionName=function, Name="live"
        )["FunctionVersion"]
        for name, function in plant.local.outputs.items()
        if name.endswith("FunctionName")
    }


def versions_that_ran(plant: Plant, function: str) -> set[str]:
    """By the names of the function's log streams."""
    logs: Any = emulator.client("logs", plant.local.endpoint_url)
    (group,) = (
        one["logGroupName"]
        for one in logs.describe_log_groups()["logGroups"]
        if one["logGroupName"].endswith(f"/{function}LogGroup")
    )
    streams = logs.describe_log_streams(logGroupName=group)["logStreams"]
    return {one["logStreamName"].partition("[")[2].partition("]")[0] for one in streams}


def test_changed_function_runs_and_the_others_stay(plant: Plant, sources: Path) -> None:
    before = live(plant)
    job_id = plant.submit("Before the deploy")
    plant.until(job_id, "completed")
    with (sources / "functions/run_job/app.py").open("a") as code:
        code.write("\n# changed\n")

    redeploy(plant, sources)
    job_id = plant.submit("After the deploy")
    plant.until(job_id, "completed")

    moved = {name: version for name, version in live(plant).items() if version != before[name]}
    assert moved == {"RunJob": str(int(before["RunJob"]) + 1)}
    assert versions_that_ran(plant, "RunJob") == {before["RunJob"], moved["RunJob"]}


def test_changed_library_is_published_with_every_function(plant: Plant, sources: Path) -> None:
    before = live(plant)
    with (sources / "layers/core/sluiceway/__init__.py").open("a") as code:
        code.write("\n# changed\n")

    redeploy(plant, sources)

    assert [name for name, version in live(plant).items() if version == before[name]] == []


def test_deploy_that_changes_nothing_publishes_nothing(plant: Plant, sources: Path) -> None:
    redeploy(plant, sources)
    before = live(plant)

    redeploy(plant, sources)

    assert live(plant) == before


def test_changed_parameter_is_published_with_every_function(
    plant: Plant, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redeploy(plant, sources)
    before = live(plant)
    monkeypatch.setitem(deploy.PARAMETERS, "LogLevel", "DEBUG")

    redeploy(plant, sources)

    assert [name for name, version in live(plant).items() if version == before[name]] == []
    of_alias = plant.functions.get_function_configuration(
        FunctionName=plant.local.outputs["RunJobFunctionName"], Qualifier="live"
    )
    assert of_alias["Environment"]["Variables"]["POWERTOOLS_LOG_LEVEL"] == "DEBUG"


def test_version_that_was_replaced_goes_when_none_of_its_jobs_can_be_at_work(
    plant: Plant, sources: Path
) -> None:
    template = yaml_parse((sources / "template.yaml").read_text())
    before = live(plant)["RunJob"]
    plant.until(plant.submit("Of the version that is replaced"), "completed")
    replaced = plant.processes_of("RunJob")
    with (sources / "functions/run_job/app.py").open("a") as code:
        code.write(f"\n# after {before}\n")

    redeploy(plant, sources)
    plant.until(plant.submit("Of the version that is new"), "completed")
    kept, running = versions(plant), plant.processes_of("RunJob")
    deploy.forget_old_versions(
        template,
        endpoint_url=plant.local.endpoint_url,
        stack=plant.local.stack,
        now_s=time.time() + 120 + deploy.LAST_INVOCATION_S,
    )

    after = live(plant)["RunJob"]
    assert kept[-2:] == [before, after]
    assert set(replaced) < set(running)
    assert versions(plant) == [after]
    assert set(plant.processes_of("RunJob")).isdisjoint(replaced)


def versions(plant: Plant) -> list[str]:
    """Of the worker."""
    found = plant.functions.list_versions_by_function(
        FunctionName=plant.local.outputs["RunJobFunctionName"]
    )["Versions"]
    return [one["Version"] for one in found if one["Version"] != "$LATEST"]
