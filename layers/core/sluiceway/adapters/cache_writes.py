"""What the transitions of jobs do to the cache, for whichever store holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sluiceway.adapters.dynamodb import Write
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.job import Job


class CacheWrites(Protocol):
    """The cache's part in the transactions of DynamoDBJobs.

    Each method gives the writes that belong to the transaction. A store that can't take part in it
    does its part at once, before the transaction and whatever becomes of that, and gives none; it
    raises nothing then, since a job never depends on it.
    """

    def store(self, entry: CacheEntry, job: Job) -> list[Write]:
        """The entry that `job` fills, unless its key was invalidated after the job's creation."""
        ...

    def refresh_queued(self, entry: CacheEntry, job: Job) -> list[Write] | None:
        """Later readers of the entry, as it was read, leave the refresh to `job`.

        None: the entry is no longer as it was read, so there is nothing to queue.
        """
        ...

    def refresh_won(self, entry: CacheEntry, job: Job) -> None:
        """The transaction with the writes above was written."""
        ...

    def refresh_failed(self, job: Job) -> list[Write]:
        """The entry that the failed refresh `job` was for cools down."""
        ...
