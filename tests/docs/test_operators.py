"""What docs/operations.md says of the commands for operators, against the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sluiceway_cli.cache_commands import entry_row
from sluiceway_cli.target import Target

from tests.docs.test_docs import LAYER, OPERATIONS, ROOT, first_column
from tests.fakes.examples import a_job, an_entry
from tests.fakes.in_memory import InMemoryCache, InMemoryPayloads, InMemoryState

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock, World

ACTION = r"(?:cache|key|dlq|job|pause|webhook)\.[a-z]+"


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
