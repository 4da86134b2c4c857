"""The worker's use case with its ports in memory, and one job in the table."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluiceway.domain import job as transitions
from sluiceway.domain.errors import VendorError
from sluiceway.ports import VendorAnswer
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.run_job import Acknowledge, Decision, Delivery, Worker, run_job

from tests.fakes.in_memory import (
    NOW_MS,
    Claim,
    FakeClock,
    FakeVendors,
    InMemoryBacklogs,
    InMemoryCache,
    InMemoryGates,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryPayloads,
    InMemoryState,
    LeaseRow,
    RecordingTelemetry,
    World,
)
from tests.unit.samples import CACHE_KEY, CATALOGUE, DAY_MS, JOB_ID, a_job, an_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.domain.freshness import CacheEntry
    from sluiceway.domain.job import Job

LEASE_MS = 100_000
FUNCTION_MS = 110_000

ANSWER = VendorAnswer(
    text="an answer",
    finish_reason="stop",
    input_tokens=10,
    output_tokens=20,
    latency_ms=300,
    vendor_request_id="req_vendor_1",
)


@dataclass
class Bench:
    """The use case with its ports, and one job in the table."""

    world: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    vendors: FakeVendors = field(default_factory=FakeVendors)
    telemetry: RecordingTelemetry = field(default_factory=RecordingTelemetry)
    lease_ms: int = LEASE_MS
    catalogue: Catalogue = CATALOGUE
    function_ms: int = FUNCTION_MS
    rand: float = 0.5

    def __post_init__(self) -> None:
        self.jobs = InMemoryJobs(self.world, clock=self.clock)
        self.cache = InMemoryCache(self.world)
        self.gates = InMemoryGates(self.world)
        self.latencies = InMemoryLatencies(self.world)
        self.payloads = InMemoryPayloads(self.world)
        self._serial = itertools.count(1)
        self.pause: Callable[[float], None] = self.clock.pause
        self.vendors.default = ANSWER

    def put(self, job: Job) -> Job:
        """A job as its submit left it, with its claim and its place in the counter."""
        self.world.jobs[job.tenant, job.job_id] = job
        if job.open:
            self.world.claims[job.job_key] = Claim(job.job_id, NOW_MS + 2 * DAY_MS)
            self.world.in_flight[job.tenant, job.counter_shard] += 1
        return job

    def put_entry(self, **members: Any) -> CacheEntry:
        entry = an_entry(**members)
        self.world.entries[entry.cache_key] = entry
        return entry

    def hold_lease(self, job_id: str = "job_other", *, ends_in_ms: int = LEASE_MS) -> LeaseRow:
        """Somebody works on the cache key."""
        row = LeaseRow(job_id, "their-token", 5, self.clock.now_ms() + ends_in_ms)
        self.world.leases[CACHE_KEY] = row
        return row

    def deliver(
        self,
        *,
        receives: int = 1,
        tenant: str = "acme",
        job_id: str = JOB_ID,
        enqueued_at_ms: int = NOW_MS,
        lane: str = "interactive",
    ) -> Decision:
        return run_job(
            Delivery(
                tenant=tenant,
                job_id=job_id,
                receives=receives,
                enqueued_at_ms=enqueued_at_ms,
                lane=lane,
                function_ends_ms=self.clock.now_ms() + self.function_ms,
            ),
            Worker(
                catalogue=self.catalogue,
                jobs=self.jobs,
                cache=self.cache,
                state=InMemoryState(self.world),
                payloads=self.payloads,
                gates=self.gates,
                latencies=self.latencies,
                backlogs=InMemoryBacklogs(self.world),
                vendors=self.vendors,
                clock=self.clock,
                telemetry=self.telemetry,
                rand=lambda: self.rand,
                token=lambda: f"token-{next(self._serial)}",
                pause=self.pause,
                lease_ms=self.lease_ms,
            ),
        )

    def run(self, job: Job, *, receives: int = 1) -> Decision:
        """Delivers this job's message."""
        return self.deliver(tenant=job.tenant, job_id=job.job_id, receives=receives)

    def until_done(self, *, most: int = 20) -> list[Decision]:
        """Delivers again and again, as SQS does, until the message is acknowledged or moved on."""
        decisions: list[Decision] = []
        for receives in range(1, most + 1):
            decisions.append(self.deliver(receives=receives))
            decision = decisions[-1]
            if isinstance(decision, Acknowledge) or not self.job.open:
                break
            self.clock.advance(s=decision.delay_s)
        return decisions

    @property
    def job(self) -> Job:
        return self.world.jobs["acme", JOB_ID]

    @property
    def result(self) -> Any:
        assert self.job.result is not None
        return json.loads(payloads_of.load(self.job.result, payloads=self.payloads))


def unavailable(**members: Any) -> VendorError:
    members = {"retryable": True, "http_status": 503, **members}
    return VendorError("vendor_unavailable", "The vendor answered 503.", **members)


def rejected(**members: Any) -> VendorError:
    members = {"retryable": False, "http_status": 400, **members}
    return VendorError("vendor_rejected", "The vendor answered 400.", **members)


def processing(*, fence: int = 1, attempts: int = 1, **members: Any) -> Job:
    """A job whose attempt has begun."""
    job = a_job(attempts=attempts - 1, attempts_total=attempts - 1, **members)
    return transitions.started(
        job, fence=fence, now_ms=NOW_MS, receives=1, function_ends_ms=NOW_MS + FUNCTION_MS
    )


def incompressible(size: int) -> str:
    """Text of so many characters that doesn't compress to nothing."""
    return "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(size))
