"""The API under Schemathesis, without a stack: the document is true of what it never thought of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import schemathesis

from tests.fakes import fuzzer
from tests.functions.conformance import DOCUMENT
from tests.functions.served import KEY, served

if TYPE_CHECKING:
    from tests.functions.stage import Stage

EXAMPLES = 40


@pytest.mark.parametrize("area", [tag["name"] for tag in DOCUMENT["tags"]])
def test_no_request_has_an_answer_that_is_not_documented(
    stage: Stage, capsys: pytest.CaptureFixture[str], area: str
) -> None:
    with served(stage) as url:
        settings = fuzzer.config(base_url=url, examples=EXAMPLES, key=KEY)
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=settings)

        outcome = fuzzer.run(schema.include(tag=area))

    with capsys.disabled():
        print(f"\n{area}, {outcome}")  # noqa: T201 - the count of cases is told
    assert outcome.faults == {}
    assert fuzzer.calls_of(DOCUMENT, area) - outcome.done <= fuzzer.RARE
