"""The document that a whole stack serves, under Schemathesis: the gateway, real tables and all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
import schemathesis
from sluiceway_local import deploy, emulator, stack

from tests.fakes import fuzzer
from tests.functions.conformance import DOCUMENT
from tests.local.plant import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluiceway_local.state import LocalStack

pytestmark = pytest.mark.slow

EXAMPLES = 60
KEYLESS = ("/health", "/openapi.json")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder: Path = tmp_path_factory.mktemp("stack") / ".sluiceway"
    try:
        yield stack.up(deploy.Source(ROOT), port=emulator.free_port(), folder=folder)
    finally:
        stack.down(folder)


def test_document_is_served_to_whoever_asks(local: LocalStack) -> None:
    answer = httpx.get(f"{local.api_url}/openapi.json")

    assert (answer.status_code, answer.json()) == (200, DOCUMENT)


@pytest.mark.parametrize("key", [None, "Bearer nobody's", "Basic YTpi"])
@pytest.mark.parametrize(
    "call",
    [
        f"{method.upper()} {path}"
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if path not in KEYLESS
    ],
)
def test_call_without_a_key_is_refused(local: LocalStack, call: str, key: str | None) -> None:
    method, path = call.split(" ")
    headers = {} if key is None else {"authorization": key}

    answer = httpx.request(
        method, local.api_url + path.replace("{", "").replace("}", ""), headers=headers
    )

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("area", [tag["name"] for tag in DOCUMENT["tags"]])
def test_no_request_has_an_answer_that_is_not_documented(
    local: LocalStack, capsys: pytest.CaptureFixture[str], area: str
) -> None:
    settings = fuzzer.config(base_url=local.api_url, examples=EXAMPLES, key=local.partners["acme"])
    schema = schemathesis.openapi.from_url(f"{local.api_url}/openapi.json", config=settings)

    outcome = fuzzer.run(schema.include(tag=area))

    with capsys.disabled():
        print(f"\n{area}, {outcome}")  # noqa: T201 - the count of cases is told
    assert outcome.faults == {}
    assert fuzzer.calls_of(DOCUMENT, area) - outcome.done <= fuzzer.RARE
