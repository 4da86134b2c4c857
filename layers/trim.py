"""Takes from a built layer what no function reads: `make build` runs it, with the layer's Python.

A layer's size is time at a cold start, and so is what botocore reads when a client is made: models
of services with their whole documentation, and the endpoints of 400 services. What stays is used
as it is; what is taken away are services that nobody here calls, and texts.
"""

import gzip
import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any


def trim(data: Path, services: Collection[str]) -> None:
    """Trims botocore's folder `data`, twice as well as once.

    Raises LookupError for a service that botocore doesn't have, before anything is taken away.
    """
    if missing := sorted(name for name in services if not (data / name).is_dir()):
        raise LookupError(f"botocore has no {', '.join(missing)}")
    for folder in data.iterdir():
        if folder.is_dir() and folder.name not in services:
            shutil.rmtree(folder)
    for packed in data.rglob("*.json.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    for file in data.rglob("*.json"):
        if file.name == "examples-1.json":
            file.unlink()
            continue
        content = json.loads(file.read_bytes())
        if file == data / "endpoints.json":
            content = _only(content, services)
        file.write_text(json.dumps(_without_texts(content), separators=(",", ":")))


READ = "clientContextParams"
"""Members of a model of whose documentation botocore makes something: without it no call of S3
gets as far as the network."""


def _without_texts(content: Any) -> Any:
    """Without documentation; a member of that name that is no text is something else."""
    if isinstance(content, dict):
        return {
            name: value if name == READ else _without_texts(value)
            for name, value in content.items()
            if not (name == "documentation" and isinstance(value, str))
        }
    return [_without_texts(one) for one in content] if isinstance(content, list) else content


def _only(endpoints: Any, services: Collection[str]) -> Any:
    """Of each partition all but the endpoints of other services."""
    for partition in endpoints["partitions"]:
        partition["services"] = {
            name: told for name, told in partition["services"].items() if name in services
        }
    return endpoints


if __name__ == "__main__":
    trim(Path(sys.argv[1]), sys.argv[2:])
