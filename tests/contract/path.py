"""The use cases on a store: submit, run, hit, stale, refresh."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.request import SubmitRequest
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.run_job import Acknowledge, Delivery, Worker, run_job
from sluiceway.usecases.submit_job import Accepted, Hit, Origin, Submitter, submit_job

from tests.fakes.in_memory import (
    FakeFlags,
    FakeVendors,
    InMemoryBacklogs,
    InMemoryGates,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    RecordingTelemetry,
    World,
)

if TYPE_CHECKING:
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.job import Job
    from sluiceway.usecases.run_job import Decision

    from tests.contract.harness import Store

CATALOGUE = catalogues.parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { soft_ttl_s = 300, hard_ttl_s = 3600, stale_if_error_s = 60, jitter = 0.0 }
    """
)
CALLER = Caller("acme", frozenset({"submit", "read", "bypass"}), "key_1")

Message = tuple[str, str, str]
"""Lane, tenant and job id."""


@dataclass
class Path:
    """The use cases on a store, a lane that a test reads, and a vendor that it scripts."""

    store: Store

    def __post_init__(self) -> None:
        world = World()
        self.vendors, self.queue = FakeVendors(), InMemoryQueue()
        self.state, self.payloads = InMemoryState(world), InMemoryPayloads(world)
        self._tokens = (f"token-{number}" for number in itertools.count(1))

    def submit(self) -> Hit | Accepted:
        return submit_job(
            SubmitRequest(model="demo-chat", input="Hello"),
            CALLER,
            Origin("request", "correlation"),
            Submitter(
                flags=FakeFlags(),
                catalogue=CATALOGUE,
                jobs=self.store.jobs,
                cache=self.store.cache,
                rates=InMemoryRates(World()),
                backlogs=InMemoryBacklogs(World()),
                state=self.state,
                payloads=self.payloads,
                queue=self.queue,
                clock=self.store.clock,
                randomness=secrets.token_bytes,
                rand=lambda: 0.5,
            ),
        )

    def run_next(self, catalogue: Catalogue = CATALOGUE) -> Job:
        """Delivers the oldest message, and gives its job as it is then."""
        message = self.queue.sends.pop(0)
        assert self.deliver(message, catalogue=catalogue) == Acknowledge()
        return self.job_of(message)

    def deliver(
        self,
        message: Message,
        *,
        receives: int = 1,
        sent_ms: int | None = None,
        catalogue: Catalogue = CATALOGUE,
    ) -> Decision:
        """What the worker decides about a message, which was sent just now unless told."""
        lane, tenant, job_id = message
        now_ms = self.store.clock.now_ms()
        return run_job(
            Delivery(tenant, job_id, receives, sent_ms or now_ms, lane, now_ms + 110_000),
            Worker(
                catalogue=catalogue,
                jobs=self.store.jobs,
                cache=self.store.cache,
                state=self.state,
                payloads=self.payloads,
                gates=InMemoryGates(World()),
                latencies=InMemoryLatencies(World()),
                backlogs=InMemoryBacklogs(World()),
                vendors=self.vendors,
                clock=self.store.clock,
                telemetry=RecordingTelemetry(),
                rand=lambda: 0.5,
                token=lambda: next(self._tokens),
                pause=lambda _: None,
                lease_ms=100_000,
            ),
        )

    def job_of(self, message: Message) -> Job:
        """As it is stored."""
        _, tenant, job_id = message
        job = self.store.jobs.get(tenant, job_id)
        assert job is not None
        return job

    def hit(self) -> Hit:
        outcome = self.submit()
        assert isinstance(outcome, Hit)
        return outcome
