"""What `sam build` made, imported with nothing else on the path: what AWS will run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from samtranslator.yaml_helper import yaml_parse
from sluiceway_cli.api import Api
from sluiceway_local import deploy, emulator, pythons, stack
from sluiceway_local.processes import wait_for

from tests.local import built
from tests.local.built import BUILD, LAYER, ROOT, VERSION
from tests.template.calls import BACKENDS, DEPS
from tests.template.rendering import render, render_with

pytestmark = pytest.mark.slow

VALKEY_LAYER = BUILD / "ValkeyLayer/python"
SOURCES = ROOT / "layers/core/sluiceway"
FUNCTIONS = sorted(render().of_type("AWS::Lambda::Function"))
MAX_UNZIPPED_BYTES = 250 * 1024 * 1024
"""Lambda's limit, function and layers together."""

CATALOGUE = "catalogue.toml"
"""The one file that may be replaced between the build and a deployment."""


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != CATALOGUE
    }


def settings_of(function: str, backend: str) -> dict[str, str]:
    """The names that the template sets, and the values that are read before they are used."""
    variables = render_with(backend).properties(function)["Environment"]["Variables"]
    read = {"CACHE_BACKEND": backend, "CACHE_URL": "valkeys://cache.invalid:6379"}
    ours = {name for name in variables if not name.startswith("POWERTOOLS_")} - {"PARAMETERS"}
    return {name: read.get(name, "100") for name in ours}


@pytest.fixture(scope="module")
def python() -> str:
    """A Python of the template's version, for what was built on a machine like Lambda's."""
    reason = built.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return str(pythons.find(VERSION))


@pytest.fixture
def run(python: str, tmp_path: Path) -> Any:
    """Runs code as a function would, and gives the JSON that it prints."""

    def run(function: str, code: str, *more_layers: Path, **environment: str) -> Any:
        # -S: no site-packages; -P: not this folder either.
        path = ":".join(map(str, (BUILD / function, *more_layers, LAYER)))
        done = subprocess.run(  # noqa: S603 - our own code
            [python, "-S", "-P", "-B", "-c", code],
            env={"PYTHONPATH": path, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ------------------------------------------------------------------------------------ what it runs


@pytest.mark.parametrize("function", FUNCTIONS)
def test_built_handler_imports_without_any_environment(function: str, run: Any) -> None:
    code = "import json, app; print(json.dumps(callable(app.handler)))"

    callable_handler = run(function, code)

    assert callable_handler is True


@pytest.mark.parametrize("function", FUNCTIONS)
def test_built_handler_takes_everything_from_the_layer(function: str, run: Any) -> None:
    code = (
        "import app, json, sys, sysconfig\n"
        "import boto3, httpx, pydantic, sluiceway\n"
        "files = {n: getattr(module, '__file__', None) for n, module in sys.modules.items()}\n"
        "print(json.dumps([sysconfig.get_path('stdlib'), files]))"
    )

    stdlib, files = run(function, code)

    of_packages = {
        name: Path(files[name]).is_relative_to(LAYER)
        for name in ("sluiceway", "boto3", "pydantic", "httpx")
    }
    strangers = [
        file
        for file in files.values()
        if file and not any(map(Path(file).is_relative_to, (stdlib, LAYER, BUILD / function)))
    ]
    assert all(of_packages.values()), of_packages
    assert strangers == []


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_built_function_wires_itself_from_its_settings(
    function: str, backend: str, run: Any
) -> None:
    builder = DEPS[function][0].__name__
    code = (
        "import app, json, sys\n"
        "from sluiceway import bootstrap\n"
        f"print(json.dumps([type(bootstrap.{builder}()).__name__, 'valkey' in sys.modules]))"
    )
    layers = [VALKEY_LAYER] if backend == "valkey" else []
    settings = settings_of(function, backend)

    deps, valkey_loaded = run(function, code, *layers, AWS_DEFAULT_REGION="us-east-1", **settings)

    assert deps == "Live" or deps.endswith("Deps")
    assert valkey_loaded is (settings.get("CACHE_BACKEND") == "valkey")


@pytest.mark.parametrize(
    ("service", "operation"),
    [
        ("appconfigdata", "start_configuration_session"),
        ("dynamodb", "list_tables"),
        ("events", "list_event_buses"),
        ("s3", "list_buckets"),
        ("secretsmanager", "list_secrets"),
        ("sqs", "list_queues"),
    ],
)
def test_calls_of_the_layers_clients_get_as_far_as_the_network(
    service: str, operation: str, run: Any
) -> None:
    wanted = {"ApplicationIdentifier": "a", "EnvironmentIdentifier": "e"}
    wanted["ConfigurationProfileIdentifier"] = "p"
    code = (
        "import boto3, json\n"
        f"client = boto3.client({service!r}, 'us-east-1')\n"
        f"given = {wanted if service == 'appconfigdata' else {}!r}\n"
        f"print(json.dumps(client.generate_presigned_url({operation!r}, given)))\n"
    )

    url = run("RunJobFunction", code, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")

    assert url.startswith("https://")


# ------------------------------------------------------------------------------------ contents


@pytest.mark.usefixtures("python")
def test_layer_carries_the_whole_library() -> None:
    built = files_of(LAYER / "sluiceway")

    assert built == files_of(SOURCES)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("python")
def test_built_function_is_its_sources(function: str) -> None:
    template = yaml_parse((ROOT / "template.yaml").read_text("utf-8"))
    folder = template["Resources"][function]["Properties"]["CodeUri"]

    built = files_of(BUILD / function)

    assert built == files_of(ROOT / folder)


@pytest.mark.parametrize("name", ["core", "valkey"])
@pytest.mark.usefixtures("python")
def test_layer_carries_exactly_what_is_locked(name: str) -> None:
    lock = (ROOT / f"layers/{name}/requirements.txt").read_text("utf-8")
    locked = {
        (package.replace("-", "_").lower(), version)
        for package, version, older in re.findall(
            r"^([\w.-]+)==([^\s;]+)( ; python_full_version < )?", lock, re.MULTILINE
        )
        if not older  # a package for Pythons before the layer's
    }

    carried = {
        tuple(path.name.removesuffix(".dist-info").lower().rsplit("-", 1))
        for path in {"core": LAYER, "valkey": VALKEY_LAYER}[name].glob("*.dist-info")
    }

    assert carried == locked


@pytest.mark.usefixtures("python")
def test_layer_of_valkey_is_small_and_compiled() -> None:
    sources = set((VALKEY_LAYER / "valkey").rglob("*.py"))

    compiled = {
        path.parent.parent / f"{path.name.split('.')[0]}.py"
        for path in (VALKEY_LAYER / "valkey").rglob(f"*.cpython-{VERSION.replace('.', '')}.pyc")
    }

    assert compiled == sources
    assert sum(map(len, files_of(VALKEY_LAYER).values())) < 2_000_000
    assert not (LAYER / "valkey").exists()


@pytest.mark.usefixtures("python")
def test_layer_carries_nothing_of_the_tools() -> None:
    names = {path.name for path in LAYER.iterdir()}

    ours = {name for name in names if name.startswith("sluiceway")}

    assert ours == {"sluiceway"}
    assert not {name for name in names if name.startswith(("mypy_boto3", "boto3_stubs", "pytest"))}


@pytest.mark.usefixtures("python")
def test_layer_is_compiled_for_a_file_system_that_takes_no_writes() -> None:
    sources = set((LAYER / "sluiceway").rglob("*.py"))

    compiled = {
        path.parent.parent / f"{path.name.split('.')[0]}.py"
        for path in (LAYER / "sluiceway").rglob(f"*.cpython-{VERSION.replace('.', '')}.pyc")
    }

    assert compiled == sources


@pytest.mark.usefixtures("python")
def test_layer_knows_the_services_that_the_functions_call_and_few_others() -> None:
    services = {path.name for path in (LAYER / "botocore/data").iterdir() if path.is_dir()}

    assert services >= {"dynamodb", "sqs", "s3", "secretsmanager", "sts"}
    assert len(services) < 20


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("python")
def test_function_and_layer_fit_into_lambda(function: str) -> None:
    folders = (BUILD / "CoreLayer", BUILD / function)

    size = sum(len(data) for folder in folders for data in files_of(folder).values())

    assert size < MAX_UNZIPPED_BYTES


@pytest.mark.usefixtures("python")
def test_built_template_has_no_aliases() -> None:
    # CloudFormation's documentation promises none of YAML's aliases.
    text = (BUILD / "template.yaml").read_text("utf-8")

    marks = [
        token for token in yaml.scan(text) if isinstance(token, (yaml.AnchorToken, yaml.AliasToken))
    ]

    assert marks == []


@pytest.mark.usefixtures("python")
def test_built_template_is_the_one_that_was_written_with_other_paths() -> None:
    source = yaml_parse((ROOT / "template.yaml").read_text("utf-8"))

    built = yaml_parse((BUILD / "template.yaml").read_text("utf-8"))

    for resource in (*source["Resources"].values(), *built["Resources"].values()):
        resource.pop("Metadata", None)
        for path in ("CodeUri", "ContentUri"):
            resource.get("Properties", {}).pop(path, None)
    assert built == source


# ------------------------------------------------------------------------------------ the stack


@pytest.mark.usefixtures("python")
def test_built_stack_runs_the_main_job(tmp_path: Path) -> None:
    folder = tmp_path / ".sluiceway"
    source = deploy.Source(ROOT, built=True)

    try:
        python = stack.interpreter(built=True, say=lambda _: None)
        local = stack.up(source, port=emulator.free_port(), folder=folder, python=python)
        api = Api(local.api_url, local.partners["acme"])
        job = api.submit({"model": "demo-chat", "input": "As it was built"})
        assert wait_for(lambda: api.job(job["id"])["status"] == "completed", timeout_s=90)
        hit = api.submit({"model": "demo-chat", "input": "As it was built"})
        api.close()
    finally:
        stack.down(folder)

    assert hit["cache"]["status"] == "hit"
    assert hit["result"]["text"].startswith("You said: As it was built")
