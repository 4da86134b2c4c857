"""How a Python of a version is found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import pythons

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "{}.{}".format(*sys.version_info)


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a pyenv with nothing in it, and a PATH that is empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path / "pyenv"


def test_python_of_the_path_is_found(pyenv: Path) -> None:
    write_program(pyenv.parent / f"path/python{VERSION}", f'exec {sys.executable} "$@"')

    assert pythons.find(VERSION) == sys.executable


def test_python_that_pyenv_stands_in_for_is_found_where_it_is(pyenv: Path) -> None:
    write_program(pyenv.parent / f"path/python{VERSION}", "exit 127")
    write_program(
        pyenv / f"versions/{VERSION}.0/bin/python{VERSION}", f'exec {sys.executable} "$@"'
    )

    assert pythons.find(VERSION) == sys.executable


def test_python_that_is_another_version_is_not_found(pyenv: Path) -> None:
    write_program(pyenv.parent / "path/python3.99", f'exec {sys.executable} "$@"')

    assert pythons.find("3.99") is None


@pytest.mark.usefixtures("pyenv")
def test_python_that_is_nowhere_is_not_found() -> None:
    assert pythons.find(VERSION) is None
