"""What docs/operations.md says of the commands for operators, against the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sluiceway_cli.cache_commands import entry_row
from sluiceway_cli.logs import OUTPUTS
from sluiceway_cli.reasons import CAUSES
from sluiceway_cli.status import Looker
from sluiceway_cli.target import Target

from tests.docs.test_docs import (
    LAYER,
    OPERATIONS,
    ROOT,
    RUNBOOK,
    first_column,
    job_error_codes,
    section,
    text_of,
)
from tests.fakes.examples import a_job, an_entry
from tests.fakes.in_memory import InMemoryCache, InMemoryPayloads, InMemoryState

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock, World

ACTION = r"(?:cache|catalogue|flags|key|dlq|job|pause|webhook)\.[a-z]+"


def test_members_of_an_entry_are_documented(world: World, clock: FakeClock) -> None:
    target = Target("", clock=clock)
    target.__dict__.update(  # in place of the cached properties
        cache=InMemoryCache(world), state=InMemoryState(world), payloads=InMemoryPayloads(world)
    )
    world.entries["c1_x"] = an_entry(a_job())

    assert set(entry_row("c1_x", target)) == first_column(OPERATIONS, "The cache")


def test_actions_on_record_are_documented() -> None:
    sources = [*(ROOT / "cli").rglob("*.py"), *(LAYER / "usecases").rglob("*.py")]
    text = "".join(path.read_text("utf-8") for path in sources)
    named = set(re.findall(f'"({ACTION})"', text))
    documented = first_column(OPERATIONS, "Audit records")

    assert named == {name for name in documented if re.fullmatch(ACTION, name)}
    assert {"cache.invalidate", "key.create", "dlq.redrive", "job.cancel", "pause.end"} <= named


def test_members_of_a_status_are_documented() -> None:
    nowhere = Target("", endpoint_url="http://127.0.0.1:9", region="us-east-1")

    document = Looker(nowhere).look()

    assert set(document) == first_column(OPERATIONS, "Status")


def test_sources_of_a_time_line_are_documented() -> None:
    assert first_column(OPERATIONS, "Jobs") == {"row", "audit", "webhook", *OUTPUTS}


def test_causes_of_failures_are_all_known_and_lead_into_the_runbook() -> None:
    sections = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.*)$", text_of(RUNBOOK), re.MULTILINE)
    }

    assert job_error_codes() <= set(CAUSES)
    assert {anchor for _, anchor in CAUSES.values()} <= sections


def test_sections_that_the_status_names_are_there() -> None:
    source = (ROOT / "cli/sluiceway_cli/status.py").read_text("utf-8")
    named = re.findall(r'"(docs/[a-z]+\.md), ([^"]+)"', source)

    assert named
    for document, title in named:
        assert section(document, title)
