"""Submit and fetch with their ports in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sluiceway.domain.job import Job, JobStatus
from sluiceway.domain.request import SubmitRequest
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.get_job import Fetched, get_job
from sluiceway.usecases.submit_job import (
    Accepted,
    DryRun,
    Hit,
    Origin,
    Submitter,
    dry_run,
    submit_job,
)

from tests.fakes.in_memory import (
    FakeClock,
    FakeFlags,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryJobs,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    World,
)
from tests.unit.samples import CATALOGUE, an_entry

if TYPE_CHECKING:
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.ports import Flags


@dataclass
class Gateway:
    """The use cases with their ports."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    queue: InMemoryQueue = field(default_factory=InMemoryQueue)
    catalogue: Catalogue = CATALOGUE
    rand: float = 0.5

    def __post_init__(self) -> None:
        self.jobs = InMemoryJobs(self.world, clock=self.clock)
        self.cache = InMemoryCache(self.world)
        self.state = InMemoryState(self.world)
        self.payloads = InMemoryPayloads(self.world)
        self.flags: Flags = FakeFlags()
        self._serial = itertools.count()

    def submit(
        self, tenant: str = "acme", *, scopes: str = "submit bypass", **members: Any
    ) -> Hit | Accepted:
        return submit_job(*self._asked(tenant, scopes, members))

    def dry_run(
        self, tenant: str = "acme", *, scopes: str = "submit bypass", **members: Any
    ) -> DryRun:
        return dry_run(*self._asked(tenant, scopes, members))

    def _asked(
        self, tenant: str, scopes: str, members: dict[str, Any]
    ) -> tuple[SubmitRequest, Caller, Origin, Submitter]:
        body = {"model": "demo-chat", "input": "hello", **members}
        return (
            SubmitRequest.model_validate(body),
            Caller(tenant, frozenset(scopes.split()), "key_1"),
            Origin("req-1", "corr-1", "Root=1-5759e988"),
            Submitter(
                flags=self.flags,
                catalogue=self.catalogue,
                jobs=self.jobs,
                cache=self.cache,
                rates=InMemoryRates(self.world),
                backlogs=InMemoryBacklogs(self.world),
                state=self.state,
                payloads=self.payloads,
                queue=self.queue,
                clock=self.clock,
                randomness=lambda size: next(self._serial).to_bytes(size, "big"),
                rand=lambda: self.rand,
            ),
        )

    def accept(self, tenant: str = "acme", **members: Any) -> Job:
        outcome = self.submit(tenant, **members)
        assert isinstance(outcome, Accepted)
        return outcome.job

    def hit(self, tenant: str = "acme", **members: Any) -> Hit:
        outcome = self.submit(tenant, **members)
        assert isinstance(outcome, Hit)
        return outcome

    def fetch(self, job_id: str, tenant: str = "acme") -> Fetched:
        return get_job(
            job_id,
            Caller(tenant, frozenset({"read"}), "key_1"),
            catalogue=self.catalogue,
            flags=self.flags,
            jobs=self.jobs,
            cache=self.cache,
            state=self.state,
            payloads=self.payloads,
            backlogs=InMemoryBacklogs(self.world),
            clock=self.clock,
        )

    def end(self, job: Job, status: JobStatus = JobStatus.COMPLETED) -> None:
        """Ends a job without closing its claim, as a worker that had to give up settling does."""
        self.world.jobs[job.tenant, job.job_id] = replace(job, status=status)

    def store(self, job: Job, **members: Any) -> CacheEntry:
        """Puts a result for this job's work into the cache."""
        members = {
            "scope": job.cache_scope,
            "tenant": job.tenant,
            "model": job.model,
            "cache_key": job.cache_key,
            **members,
        }
        entry = an_entry(**members)
        self.world.entries[entry.cache_key] = entry
        return entry
