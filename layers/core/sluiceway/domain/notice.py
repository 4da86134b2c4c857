"""What operators are notified of besides alarms: events on the bus, from `sluiceway.ops`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluiceway.domain.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "sluiceway.ops"

KINDS = (
    "DegradedBegan",
    "DegradedEnded",
    "PauseBegan",
    "PauseEnded",
    "FlagsChanged",
    "CatalogueChanged",
)
"""The names on the event bus, which the rule of the ops topic lists (template.yaml)."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator, or the sweeper, has switched."""

    detail_type: str
    """One of KINDS."""
    at_epoch_ms: int
    subject: str
    """As in an audit record: `lane:NAME`, `model:NAME`, `service`, `version:N` and so on."""
    actor: str
    """Who did it, as in an audit record; `sweeper` for what happened by itself."""
    facts: Mapping[str, str | int | bool] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Whose event it is, on the bus."""
        return SOURCE

    def detail(self) -> dict[str, Any]:
        """What the event says. It holds names and numbers only."""
        return {
            "at": rfc3339(self.at_epoch_ms),
            "subject": self.subject,
            "actor": self.actor,
            **self.facts,
        }
