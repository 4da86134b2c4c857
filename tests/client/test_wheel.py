"""The client as it is shipped: a wheel of its own, which needs httpx and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sluiceway_client

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"
PACKAGE = CLIENT / "sluiceway_client"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built by hatchling, which asks nobody for anything."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=CLIENT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert shipped == {
        f"sluiceway_client/{path.name}"
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert "sluiceway_client/py.typed" in shipped


def test_wheel_needs_httpx_alone(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    told = message_from_bytes(wheel.read(name))

    assert told["Name"] == "sluiceway-client"
    assert told["Version"] == sluiceway_client.__version__
    assert told["Requires-Python"] == ">=3.11"
    assert told.get_all("Requires-Dist") == ["httpx<1,>=0.27"]


def test_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/LICENSE")]

    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_client_imports_httpx_and_the_standard_library_alone() -> None:
    imported = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])

    assert imported - sys.stdlib_module_names == {"httpx", "sluiceway_client"}


def test_everything_public_is_exported() -> None:
    public = {
        name
        for module in ("models", "errors", "webhooks", "client")
        for node in ast.parse((PACKAGE / f"{module}.py").read_text("utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not (name := node.name).startswith("_")
    }

    assert public - {"Readable", "api_error", "retry_after_s"} == set(sluiceway_client.__all__) - {
        "__version__"
    }
