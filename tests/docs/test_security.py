"""The security model names what there is: every function, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, first_column, names_in, rows_of, section, text_of
from tests.template.rendering import RESOURCES

SECURITY = "docs/security.md"
NAMED = sorted(set(re.findall(r"`((?:tests|requirements)/\S+)`", text_of(SECURITY))))


def test_every_function_has_a_row_that_says_what_it_may() -> None:
    functions = {
        Path(of["Properties"]["CodeUri"]).name
        for of in RESOURCES.values()
        if of["Type"] == "AWS::Serverless::Function"
    }

    assert first_column(SECURITY, "Who may what") == functions


def test_every_threat_names_a_test_of_what_stands_against_it() -> None:
    threats = list(rows_of(section(SECURITY, "Threats")))

    assert len(threats) >= 12
    assert [threat for threat, _, tests in threats if not set(names_in(tests)) & set(NAMED)] == []


@pytest.mark.parametrize("path", NAMED)
def test_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).is_file()
