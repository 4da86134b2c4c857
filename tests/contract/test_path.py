"""What the use cases promise, on each store: whole ways of requests, with a scripted vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import VendorError
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import JobStatus
from sluiceway.ports import VendorAnswer
from sluiceway.usecases.run_job import Acknowledge, GiveBack
from sluiceway.usecases.submit_job import Accepted

from tests.contract.path import CATALOGUE, Path
from tests.fakes.in_memory import LeaseRow

if TYPE_CHECKING:
    from tests.contract.harness import Store

UNAVAILABLE = VendorError("vendor_unavailable", "The vendor answered 503.", retryable=True)
REFUSED = VendorError("vendor_rejected", "The vendor answered 400.", retryable=False)
WHOLE = VendorAnswer("a good answer", "stop", 10, 20, 300, "req_vendor_1")


@pytest.fixture
def path(store: Store) -> Path:
    return Path(store)


@pytest.mark.proves(6, 7)
def test_vendor_that_never_answers_is_asked_the_same_as_often_as_is_allowed(path: Path) -> None:
    most = CATALOGUE.models["demo-chat"].max_attempts
    path.vendors.default = UNAVAILABLE
    path.submit()
    (message,) = path.queue.sends
    sent_ms = path.store.clock.now_ms()

    for _ in range(most + 2):
        path.deliver(message, sent_ms=sent_ms)
        path.store.clock.advance(s=121)

    job = path.job_of(message)
    assert (job.status, job.attempts, job.attempts_total) == (JobStatus.FAILED, most, most)
    assert path.vendors.per_key == {job.job_id: most}
    assert len({call.body for call in path.vendors.calls}) == 1


@pytest.mark.proves(11)
@pytest.mark.parametrize(
    "answer",
    [
        WHOLE._replace(finish_reason="length"),
        WHOLE._replace(finish_reason="tool_calls"),
        WHOLE._replace(text=""),
    ],
    ids=["cut off", "tool calls", "empty"],
)
def test_answer_that_is_not_whole_is_the_jobs_alone(path: Path, answer: VendorAnswer) -> None:
    path.vendors.default = answer
    path.submit()

    job = path.run_next()

    assert job.status is JobStatus.COMPLETED
    assert path.store.cache.read(job.cache_key) is None
    assert isinstance(path.submit(), Accepted)


@pytest.mark.proves(3, 14)
def test_wait_for_anothers_lease_costs_no_attempt_and_after_the_sixth_no_receive(
    path: Path,
) -> None:
    path.submit()
    (message,) = path.queue.sends
    ends_ms = path.store.clock.now_ms() + 600_000
    path.store.rows.put_lease(
        path.job_of(message).cache_key, LeaseRow("job_another", "token-another", 7, ends_ms)
    )

    decisions = []
    for receives in range(1, 8):
        decisions.append(path.deliver(message, receives=receives))
        path.store.clock.advance(s=60)

    job = path.job_of(message)
    assert [type(one) for one in decisions] == [GiveBack] * 6 + [Acknowledge]
    assert (job.status, job.attempts_total, job.parked) == (JobStatus.QUEUED, 0, True)
    assert path.vendors.total == 0


@pytest.mark.proves(17, 19)
def test_failed_refresh_leaves_the_old_answer_until_its_hard_ttl(path: Path) -> None:
    path.submit()
    stored = path.run_next()
    path.store.clock.advance(s=301)
    stale = path.hit()
    path.vendors.script = [REFUSED]

    refresh = path.run_next()

    assert stale.refresh is not None
    assert (refresh.job_id, refresh.status) == (stale.refresh.job_id, JobStatus.FAILED)
    path.store.clock.advance(s=3_600 - 302)
    last = path.hit()
    assert (last.freshness, last.entry.result) == (Freshness.STALE, stored.result)
    path.store.clock.advance(s=1)
    assert isinstance(path.submit(), Accepted)


@pytest.mark.proves(21)
def test_reading_an_entry_moves_none_of_its_times(path: Path) -> None:  # case C19
    path.submit()
    entry = path.store.cache.read(path.run_next().cache_key)
    assert entry is not None

    hits = []
    for _ in range(4):
        path.store.clock.advance(s=99)
        hits.append(path.hit())

    times = ("stored_at", "soft_expires_at", "hard_expires_at", "kept_until")
    for hit in hits:
        assert [getattr(hit.entry, f"{name}_epoch_ms") for name in times] == [
            getattr(entry, f"{name}_epoch_ms") for name in times
        ]
    assert [hit.at_ms - entry.stored_at_epoch_ms for hit in hits] == [
        *(99_000, 198_000, 297_000, 396_000)
    ]
    assert [hit.freshness for hit in hits] == [Freshness.FRESH] * 3 + [Freshness.STALE]
