"""What all functions have in common, and what each gets from its environment."""

from __future__ import annotations

import dataclasses
import json
import os
import re

import pytest
from sluiceway import bootstrap, telemetry

from tests.template.calls import BACKENDS, DEPS, NO_VALKEY
from tests.template.rendering import RESOURCES, ROOT, SOURCE, render, render_with

FUNCTIONS = sorted(render().of_type("AWS::Lambda::Function"))
RUNTIME = "python3.13"

SETTINGS = {field.name.upper() for field in dataclasses.fields(bootstrap.Settings)}


def environment(function: str, backend: str = "dynamodb") -> dict[str, object]:
    of = render_with(backend).properties(function)
    variables: dict[str, object] = of["Environment"]["Variables"]
    return variables


def own_settings(function: str, backend: str) -> dict[str, str]:
    """With values that a builder is content with."""
    return {
        name: value if isinstance(value, str) else {"CACHE_URL": NO_VALKEY}.get(name, "100")
        for name, value in environment(function, backend).items()
        if not name.startswith("POWERTOOLS_") and name != "PARAMETERS"
    }


SETTINGS_OF_FUNCTIONS = [
    pytest.param(function, backend, name, id=f"{function}-{backend}-{name}")
    for function in FUNCTIONS
    for backend in BACKENDS
    for name in sorted(own_settings(function, backend))
]


@pytest.fixture
def fresh_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of our settings, whatever this machine has set."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# ------------------------------------------------------------------------------------ in common


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_runs_the_built_python_and_the_one_layer(function: str) -> None:
    of = render().properties(function)
    (layer,) = of["Layers"]

    compatible = render().properties(layer["Ref"])["CompatibleRuntimes"]

    assert of["Runtime"] == RUNTIME
    assert compatible == [RUNTIME]
    assert RESOURCES["CoreLayer"]["Metadata"]["BuildMethod"] == RUNTIME


def test_functions_in_the_network_of_valkey_and_no_others_have_its_layer() -> None:
    stack = render_with("valkey")
    functions = {name: stack.properties(name) for name in FUNCTIONS}

    two = {name for name, of in functions.items() if len(of["Layers"]) == 2}
    layer = stack.properties(functions["ApiFunction"]["Layers"][1]["Ref"])

    assert two == {name for name, of in functions.items() if "VpcConfig" in of}
    assert two == {name for name in FUNCTIONS if "CACHE_URL" in environment(name, "valkey")}
    assert layer["CompatibleRuntimes"] == [RUNTIME]
    assert RESOURCES["ValkeyLayer"]["Metadata"]["BuildMethod"] == RUNTIME


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_is_a_folder_with_a_handler(function: str) -> None:
    folder = ROOT / RESOURCES[function]["Properties"]["CodeUri"]

    handler = render().properties(function)["Handler"]

    assert handler == "app.handler"
    assert "\ndef handler(" in (folder / "app.py").read_text("utf-8")


def test_every_folder_of_functions_is_deployed() -> None:
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}

    deployed = {RESOURCES[function]["Properties"]["CodeUri"] for function in FUNCTIONS}

    assert deployed == {f"functions/{folder}" for folder in folders}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_is_traced(function: str) -> None:
    assert render().properties(function)["TracingConfig"] == {"Mode": "Active"}


def test_each_function_logs_to_its_own_group() -> None:
    groups = {name: render().properties(name)["LoggingConfig"]["LogGroup"] for name in FUNCTIONS}

    expected = {name: {"Ref": name.replace("Function", "LogGroup")} for name in FUNCTIONS}

    assert groups == expected


@pytest.mark.parametrize("days", ["1", "365"])
@pytest.mark.parametrize("group", sorted(render().of_type("AWS::Logs::LogGroup")))
def test_log_group_keeps_lines_as_long_as_the_parameter_says(group: str, days: str) -> None:
    stack = render(LogRetentionDays=days)

    assert stack.properties(group)["RetentionInDays"] == days


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_says_what_it_does(function: str) -> None:
    assert render().properties(function)["Description"].endswith(".")


# ------------------------------------------------------------------------------------ environment


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_variables_are_settings_of_ours_or_of_powertools(function: str, backend: str) -> None:
    assert own_settings(function, backend).keys() <= SETTINGS


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_builder_is_content_with_the_functions_settings(
    function: str, backend: str, fresh_environment: pytest.MonkeyPatch
) -> None:
    builder, (kind, *_) = DEPS[function]
    for name, value in own_settings(function, backend).items():
        fresh_environment.setenv(name, value)

    deps = builder.__wrapped__()

    assert isinstance(deps, (kind, bootstrap.Live))


@pytest.mark.parametrize(("function", "backend", "name"), SETTINGS_OF_FUNCTIONS)
def test_builder_needs_each_of_the_functions_settings(
    function: str, backend: str, name: str, fresh_environment: pytest.MonkeyPatch
) -> None:
    builder, _ = DEPS[function]
    for other, value in own_settings(function, backend).items():
        if other != name:
            fresh_environment.setenv(other, value)

    with pytest.raises(KeyError, match=name):
        builder.__wrapped__()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_environment_names_the_service_as_the_library_does(function: str) -> None:
    variables = environment(function)

    assert variables["POWERTOOLS_SERVICE_NAME"] == telemetry.SERVICE
    assert variables["POWERTOOLS_METRICS_NAMESPACE"] == telemetry.NAMESPACE


@pytest.mark.parametrize("function", FUNCTIONS)
def test_traces_hold_no_answers_and_no_errors(function: str) -> None:
    variables = environment(function)

    assert variables["POWERTOOLS_TRACER_CAPTURE_RESPONSE"] == "false"
    assert variables["POWERTOOLS_TRACER_CAPTURE_ERROR"] == "false"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_environment_holds_no_secret(function: str) -> None:
    variables = environment(function)

    telling = [n for n in variables if re.search(r"SECRET|PASSWORD|TOKEN|CREDENTIAL|API_?KEY", n)]

    assert telling == []
    assert "{{resolve:" not in json.dumps(variables)


def test_no_parameter_asks_for_a_secret() -> None:
    assert not [name for name, of in SOURCE["Parameters"].items() if "NoEcho" in of]


def test_environment_of_these_tests_has_no_settings() -> None:
    assert not SETTINGS & os.environ.keys()
