"""One function as Lambda has it: a process of its own, which takes an event at a time.

The handler and the wiring are the real ones; only AppConfig, which neither emulator has, is a file.
It is run as `python -m tests.localstack.function NAME PORT CATALOGUE`.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import boto3
from sluiceway import bootstrap
from sluiceway_local.poller import Context

from tests.fakes.appconfig import FakeAppConfig


def main(name: str, port: str, catalogue: str) -> None:
    """Listens until somebody ends it. What the handler raises is told as Lambda tells it."""
    handler = importlib.import_module(f"functions.{name}.app").handler
    FakeAppConfig(
        boto3.Session(botocore_session=bootstrap.session()),
        catalogue=Path(catalogue).read_text("utf-8"),
        flags="{}",
    )
    with Listener(("127.0.0.1", int(port))) as listener:
        while True:
            with listener.accept() as caller, suppress(EOFError, ConnectionError):
                asked = json.loads(caller.recv_bytes())
                caller.send_bytes(json.dumps(answer(handler, name, asked)).encode())


def answer(handler: Any, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The handler's answer, or its error."""
    try:
        return {"answer": handler(asked["event"], Context(name, asked["timeout_s"]))}
    except Exception as error:  # noqa: BLE001 - Lambda's boundary
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(*sys.argv[1:])
