"""One deployment of `local up --watch`: checks what changed, and deploys it.

A process of its own, so that it has the library as it is on disk now. It reads a `Request` from
its standard input and prints one line, an `Outcome`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import sys
import tomllib
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from samtranslator.yaml_helper import yaml_parse

LIBRARY = "layers/core/sluiceway"
TEMPLATE = "template.yaml"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be deployed: all paths that differ from what was deployed last."""

    root: str
    folder: str
    """Of the stack."""
    changed: list[str]
    """By their names within `root`; a catalogue may be elsewhere."""
    vendor_url: str | None = None
    catalogue: str | None = None
    """The one of `changed` that is one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    deployed: list[str] = field(default_factory=list)
    """In words; empty when the stack has nothing of what changed."""
    faults: list[str] = field(default_factory=list)
    """Why nothing was deployed, with file and line where there is one."""
    begun: bool = False
    """Whether the stack may have changed, also if it failed."""
    moved_to: str = ""
    """The API's address, if it is another one now."""


def deployed_by(
    changed: Iterable[str], *, functions: Collection[str], catalogue: str | None = None
) -> list[str]:
    """What a deployment of these paths replaces. `functions`: the folders of the template's."""
    found = dict.fromkeys(_part(path, functions, catalogue) for path in changed)
    return [part for part in found if part]


def _part(path: str, functions: Collection[str], catalogue: str | None) -> str:
    if path == catalogue:
        return "the catalogue"
    if path == TEMPLATE:
        return "the template"
    if path.startswith(f"{LIBRARY}/"):
        return "the library with all functions"
    name = path.split("/")[1]
    return name if name in functions else ""


def syntax_faults(root: Path, changed: Iterable[str]) -> Iterator[str]:
    """Of the Python files, the template and the catalogue, as `file:line: what`."""
    for name in changed:
        path = root / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        try:
            if name.endswith(".py"):
                compile(data, name, "exec", dont_inherit=True)
            elif name == TEMPLATE:
                yaml_parse(data.decode())
            elif name.endswith(".toml"):
                tomllib.loads(data.decode())
        except SyntaxError as error:
            yield f"{name}:{error.lineno}: {type(error).__name__}: {error.msg}"
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            yield f"{name}:{mark.line + 1 if mark else 1}: {error.problem}"
        except (ValueError, yaml.YAMLError) as error:  # TOML says the line itself
            yield f"{name}: {error}"


def import_faults(root: Path, changed: Iterable[str], functions: Iterable[str]) -> Iterator[str]:
    """What goes wrong when these functions start, told where it does.

    What changed in the library is imported, too: much of it is, at first use only.
    """
    for source in changed:
        if (
            source.startswith(f"{LIBRARY}/")
            and source.endswith(".py")
            and (root / source).is_file()
        ):
            parts = Path(source).relative_to(Path(LIBRARY).parent).with_suffix("").parts
            try:
                importlib.import_module(".".join(parts).removesuffix(".__init__"))
            except BaseException as error:  # noqa: BLE001 - anything may be in a module
                absent = error.name if isinstance(error, ModuleNotFoundError) else None
                if absent is None or absent.startswith("sluiceway"):  # another may be optional
                    yield f"{_place(error, root)}{type(error).__name__}: {error}"
    for name in functions:
        path = root / "functions" / name / "app.py"
        if not path.is_file():
            yield f"functions/{name}/app.py: there is none"
            continue
        sys.path.insert(0, str(path.parent))
        try:
            if "handler" not in runpy.run_path(str(path)):
                yield f"functions/{name}/app.py: it has no `handler`"
        except BaseException as error:  # noqa: BLE001 - anything may be in a module
            yield f"{_place(error, root)}{type(error).__name__}: {error}"
        finally:
            sys.path.remove(str(path.parent))


def _place(error: BaseException, root: Path) -> str:
    """The last of our own lines that the error went through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_within(error.filename, root)}:{error.lineno}: "
    ours = [
        f"{_within(frame.filename, root)}:{frame.lineno}: "
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(root)
    ]
    return ours[-1] if ours else ""


def _within(filename: str, root: Path) -> str:
    path = Path(filename)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else filename


def redeploy(request: Request) -> Outcome:
    """Deploys, unless something is wrong with what changed."""
    root = Path(request.root)
    if faults := list(syntax_faults(root, request.changed)):
        return Outcome(faults=faults)
    from sluiceway_local import deploy  # noqa: PLC0415 - AWS's libraries, after what is quick

    template = _template(root)
    if template is None:
        return Outcome(faults=[f"{TEMPLATE}: it has no `Resources`, each with a `Type`"])
    functions = deploy.functions(template)
    deployed = deployed_by(request.changed, functions=functions, catalogue=request.catalogue)
    if not deployed:
        return Outcome()
    everything = any(path.startswith(f"{LIBRARY}/") for path in request.changed)
    started = functions if everything else [name for name in functions if name in deployed]
    if faults := list(import_faults(root, request.changed, started)):
        return Outcome(faults=faults)
    # They import the library, which is checked now.
    from sluiceway.domain.errors import ConfigurationError  # noqa: PLC0415

    from sluiceway_local import stack, state  # noqa: PLC0415

    before = state.read(Path(request.folder))
    try:
        local = stack.up(
            deploy.Source(root),
            vendor_url=request.vendor_url,
            catalogue=root / request.catalogue if request.catalogue else None,
            folder=Path(request.folder),
            wait_s=stack.OTHERS_S,
        )
    except Exception as error:  # noqa: BLE001 - the boundary: it is told, and the next save goes on
        refused = isinstance(error, (state.BusyError, ConfigurationError))
        return Outcome(faults=[str(error) or type(error).__name__], begun=not refused)
    moved = before is None or before.api_url != local.api_url
    return Outcome(deployed=deployed, begun=True, moved_to=local.api_url if moved else "")


def _template(root: Path) -> dict[str, Any] | None:
    """None when it is no template at all; whether it is a good one, CloudFormation says."""
    template = yaml_parse((root / TEMPLATE).read_text("utf-8"))
    resources = template.get("Resources") if isinstance(template, dict) else None
    if not isinstance(resources, dict):
        return None
    typed = all(isinstance(one, dict) and "Type" in one for one in resources.values())
    return template if typed else None


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # a module that is imported may print
        outcome = redeploy(Request(**json.load(sys.stdin)))
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
