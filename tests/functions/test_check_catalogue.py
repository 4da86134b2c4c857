"""The validator of catalogues: an exception is how AppConfig is told of faults."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
from sluiceway.bootstrap import CheckDeps
from sluiceway.domain.errors import ConfigurationError

from functions.check_catalogue import app
from tests.functions.stage import sample
from tests.unit.logs import a_context

if TYPE_CHECKING:
    from tests.functions.stage import Stage

MODEL = '[vendors.v]\n[models.m]\nvendor = "v"\nvendor_model = "m"\nversion = "1"\n'


def check(stage: Stage, content: bytes | None = None) -> None:
    event = sample("check_catalogue")
    if content is not None:
        event["content"] = b64encode(content).decode()
    deps = CheckDeps(100, stage.telemetry)
    app.handle(event, a_context(function_name="check_catalogue"), deps)


def test_sample_event_is_content(stage: Stage) -> None:
    check(stage)


@pytest.mark.parametrize("content", [b"", MODEL.encode(), b"# only a comment"])
def test_catalogue_that_is_right_is_let_through(stage: Stage, content: bytes) -> None:
    check(stage, content)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff", "not UTF-8"),
        (b"[models", "not TOML"),
        (b"{}", "not TOML"),
        (b'[models.m]\nvendor = "v"\nvendor_model = "m"\nversion = "1"\n', "no vendor 'v'"),
        (f"{MODEL}burst = 0\n".encode(), "models.m.burst"),
        (f"{MODEL}timeout_s = {{ max = 71 }}\n".encode(), "a call may take 70 s"),
    ],
)
def test_catalogue_with_a_fault_is_refused(stage: Stage, content: bytes, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        check(stage, content)
