"""The template for `sam local invoke`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse
from sluiceway_local import sam, state
from sluiceway_local.state import LocalStack

from tests.local import built as builds

ROOT = Path(__file__).parents[2]
FUNCTION = "AWS::Serverless::Function"


def made(**variables: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was built, as far as SAM looks at it, and what is made of it."""
    built = yaml_parse((ROOT / "template.yaml").read_text("utf-8"))
    return built, sam.template(built, ROOT, variables)


def test_function_has_the_variables_of_the_stack_alone() -> None:
    variables = {"JOBS_TABLE": "jobs-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}

    _, template = made(RunJobFunction=variables)

    assert template["Resources"]["RunJobFunction"]["Properties"]["Environment"] == {
        "Variables": variables
    }
    assert "Environment" not in template["Globals"]["Function"]


def test_code_is_found_from_any_folder() -> None:
    _, template = made()

    functions = [of for of in template["Resources"].values() if of["Type"] == FUNCTION]
    folders = [Path(of["Properties"]["CodeUri"]) for of in functions]
    layer = Path(template["Resources"]["CoreLayer"]["Properties"]["ContentUri"])
    assert len(functions) == 8
    assert all(path.is_absolute() and path.is_dir() for path in (*folders, layer))


def test_all_else_is_as_it_was_built() -> None:
    built, template = made(RunJobFunction={})

    for name, resource in template["Resources"].items():
        changed = {"CodeUri", "ContentUri", "Environment"}
        before = built["Resources"][name]
        assert {**resource, "Properties": None} == {**before, "Properties": None}
        assert {
            key: of for key, of in resource.get("Properties", {}).items() if key not in changed
        } == {key: of for key, of in before.get("Properties", {}).items() if key not in changed}


def test_stack_that_has_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state.write(LocalStack("", "http://127.0.0.1:1", "us-east-1", "s", {}, {}, "", 1))

    with pytest.raises(SystemExit, match="there is no local stack"):
        sam.main()


OUTDATED = "what is built is older than the sources; run: make build"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("layers/trim.py", OUTDATED),
        ("layers/core/sluiceway/catalogue.toml", OUTDATED),
        ("functions/api/app.py", OUTDATED),
        ("functions/api/__pycache__/app.cpython-313.pyc", None),
        ("docs/local.md", None),
    ],
)
def test_build_is_outdated_when_what_it_is_made_of_is_newer(
    tmp_path: Path, changed: str, told: str | None
) -> None:
    names = ("template.yaml", "layers/trim.py", ".aws-sam/build/template.yaml", changed)
    for at_epoch_s, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (at_epoch_s, at_epoch_s))

    assert builds.outdated(tmp_path) == told


def test_build_that_is_not_there_is_outdated(tmp_path: Path) -> None:
    assert builds.outdated(tmp_path) == "nothing is built; run: make build"
