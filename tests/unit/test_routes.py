"""The table of the API's paths."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from sluiceway.domain.errors import MethodNotAllowedError, RouteNotFoundError
from sluiceway.routes import table
from sluiceway.routes.table import ROUTES, find

TARGETS = {(path, target) for path, methods in ROUTES.items() for target in methods.values()}


@pytest.mark.parametrize(("path", "target"), sorted(TARGETS))
def test_handler_takes_the_request_and_the_named_parts(path: str, target: str) -> None:
    taken = list(inspect.signature(table.handler(target)).parameters)

    assert taken[1:] == re.findall(r"<(\w+)>", path)


def test_every_function_of_the_routes_is_in_the_table() -> None:
    modules = {target.partition(".")[0] for _, target in TARGETS}

    public = {
        f"{module}.{name}"
        for module in modules
        for name in vars(import_module(f"sluiceway.routes.{module}"))
        if re.match(r"(get|post|delete|put|patch)_", name)
        and vars(import_module(f"sluiceway.routes.{module}"))[name].__module__.endswith(module)
    }
    assert public == {target for _, target in TARGETS}


def test_modules_of_routes_are_those_of_the_table() -> None:
    folder = Path(table.__file__).parent

    modules = {path.stem for path in folder.glob("*.py")} - {
        *("__init__", "table", "request", "idempotency")
    }
    assert modules == {target.partition(".")[0] for _, target in TARGETS}


def test_parts_of_the_path_are_given_as_they_came() -> None:
    _, named = find("POST", "/webhooks/whk_1/deliveries/dl%20v/redeliver")

    assert named == {"webhook_id": "whk_1", "delivery_id": "dl%20v"}


@pytest.mark.parametrize("path", ["/jobs", "/jobs/", "/jobs//"])
def test_slashes_at_the_end_change_nothing(path: str) -> None:
    found, _ = find("GET", path)

    assert found.__name__ == "get_jobs"


def test_head_is_answered_as_get() -> None:
    assert find("HEAD", "/jobs/job_1") == find("GET", "/jobs/job_1")


@pytest.mark.parametrize(
    "path", ["", "/", "//", "jobs", "//jobs", "/job", "/jobs//cancel", "/jobs/a/b", "/Jobs"]
)
def test_unknown_path_is_refused(path: str) -> None:
    with pytest.raises(RouteNotFoundError):
        find("GET", path)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/jobs", ("GET", "HEAD", "POST")),
        ("HEAD", "/batches", ("POST",)),
        ("__init__", "/webhooks/whk_1", ("DELETE", "GET", "HEAD")),
        ("get", "/jobs", ("GET", "HEAD", "POST")),
    ],
)
def test_missing_method_is_refused_with_those_that_there_are(
    method: str, path: str, allow: tuple[str, ...]
) -> None:
    with pytest.raises(MethodNotAllowedError) as refused:
        find(method, path)

    assert refused.value.allow == allow
