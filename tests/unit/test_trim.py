"""What the build takes from botocore's data."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
DATA = Path(botocore.__file__).parent / "data"


SIGNED = """
import boto3, botocore.session, sys
folder, service, operation = sys.argv[1:]
session = botocore.session.get_session()
session.get_component("data_loader")._search_paths = [folder]
client = boto3.Session("key", "secret", region_name="eu-central-1", botocore_session=session)
print(client.client(service).generate_presigned_url(operation))
"""
"""Signing a URL finds its address as a call does, and sends nothing."""


@pytest.fixture
def trim() -> Callable[..., None]:
    spec = importlib.util.spec_from_file_location("trim", ROOT / "layers/trim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trim: Callable[..., None] = module.trim
    return trim


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Some services of botocore's own data, and what belongs to none."""
    for name in ("s3", "sns", "sqs"):
        for source in (DATA / name).rglob("*"):
            target = tmp_path / source.relative_to(DATA)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_file():
                target.write_bytes(source.read_bytes())
    for source in DATA.glob("*.json"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    return tmp_path


def model(folder: Path) -> Any:
    (found,) = (folder / "sqs").rglob("service-2.json*")
    content = found.read_bytes()
    return json.loads(gzip.decompress(content) if found.suffix == ".gz" else content)


def without_texts(content: Any) -> Any:
    if isinstance(content, dict):
        kept = {n: v for n, v in content.items() if n != "documentation" or isinstance(v, dict)}
        return {name: without_texts(value) for name, value in kept.items()}
    return [without_texts(one) for one in content] if isinstance(content, list) else content


def test_other_services_go(trim: Callable[..., None], data: Path) -> None:
    trim(data, ["sqs"])

    assert [path.name for path in data.iterdir() if path.is_dir()] == ["sqs"]
    partitions = json.loads((data / "endpoints.json").read_text())["partitions"]
    assert {name for one in partitions for name in one["services"]} == {"sqs"}


def test_service_that_is_not_there_is_told_before_anything_goes(
    trim: Callable[..., None], data: Path
) -> None:
    with pytest.raises(LookupError, match="sqss"):
        trim(data, ["sqss", "sns"])

    assert {path.name for path in data.iterdir() if path.is_dir()} == {"s3", "sns", "sqs"}


def test_model_keeps_everything_but_texts(trim: Callable[..., None], data: Path) -> None:
    before = model(data)

    trim(data, ["sqs"])

    assert model(data) == without_texts(before)
    assert len(json.dumps(model(data))) < len(json.dumps(before)) / 2


def test_clients_are_the_same_afterwards(trim: Callable[..., None], data: Path) -> None:
    trim(data, ["sqs"])
    trim(data, ["sqs"])  # a build on top of a build

    code = (
        "import botocore.session, sys\n"
        "session = botocore.session.get_session()\n"
        "session.get_component('data_loader')._search_paths = [sys.argv[1]]\n"
        "client = session.create_client('sqs', region_name='eu-central-1')\n"
        "print(client.meta.endpoint_url, len(client.meta.service_model.operation_names))\n"
    )
    told = [
        subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
        ).stdout
        for folder in (DATA, data)
    ]
    assert told[0] == told[1]
    assert "sqs.eu-central-1.amazonaws.com" in told[0]


@pytest.mark.parametrize(("service", "operation"), [("sqs", "list_queues"), ("s3", "list_buckets")])
def test_calls_get_as_far_as_the_network_afterwards(
    service: str, operation: str, trim: Callable[..., None], data: Path
) -> None:
    trim(data, ["s3", "sqs"])

    told = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", SIGNED, str(data), service, operation],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("https://")
