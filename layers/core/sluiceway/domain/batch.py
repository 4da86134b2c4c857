"""Batches: what became of the jobs that came in one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.domain.freshness import KeptHit


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an item has no job: the error that its submit alone would have got."""

    code: str
    message: str
    errors: tuple[Mapping[str, str], ...] = ()
    """One `{"field", "message"}` for each wrong member, or the first of them."""
    retry_after_s: int | None = None
    """Of what may be sent again."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item, and exactly one of a job, a hit and a refusal."""

    custom_id: str
    """The partner's own name for it."""
    job_id: str | None = None
    deduplicated: bool = False
    """The job was there before, by an earlier item perhaps."""
    hit: KeptHit | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of one request, in their order."""

    tenant: str
    batch_id: str
    created_at_epoch_ms: int
    ttl_epoch_s: int
    """It is not found from then on."""
    items: tuple[BatchItem, ...]

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Of its jobs, each once."""
        return tuple(dict.fromkeys(one.job_id for one in self.items if one.job_id is not None))
