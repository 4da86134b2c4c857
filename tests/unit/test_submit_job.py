"""Submit: a hit, an attachment to an open job, or a new job."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.errors import ModelNotFoundError, QuotaExceededError, StoreBusyError
from sluiceway.domain.job import OPEN, Job, JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.usecases import payloads as payloads_of
from sluiceway.usecases.submit_job import Accepted, Hit

from tests.fakes.in_memory import NOW_MS, Claim, InMemoryJobs
from tests.unit.gateway import Gateway
from tests.unit.samples import CATALOGUE, DAY_MS, packed, written

if TYPE_CHECKING:
    from sluiceway.ports import BudgetSpent, CapReached, Claimed, Submitted

ENDED = sorted(set(JobStatus) - OPEN)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


# ------------------------------------------------------------------ a new job


def test_submit_writes_the_job_its_claim_and_the_counter(gateway: Gateway) -> None:
    job = gateway.accept()

    assert gateway.world.jobs == {("acme", job.job_id): job}
    assert gateway.world.claims[job.job_key].job_id == job.job_id
    assert gateway.world.open_jobs("acme") == 1


def test_submit_claims_the_work_for_an_hour_past_the_deadline(gateway: Gateway) -> None:
    job = gateway.accept(deadline_s=60)

    assert gateway.world.claims[job.job_key].ends_at_epoch_ms == NOW_MS + 60_000 + 3_600_000


def test_submit_sends_the_job_to_its_lane_after_it_is_written(gateway: Gateway) -> None:
    job = gateway.accept()

    assert gateway.queue.sends == [("interactive", "acme", job.job_id)]


def test_submitted_job_tells_who_asked_for_what(gateway: Gateway) -> None:
    job = gateway.accept(metadata={"order": "7"}, deadline_s=60)

    assert (job.tenant, job.key_id, job.request_id, job.correlation_id, job.trace_header) == (
        "acme",
        "key_1",
        "req-1",
        "corr-1",
        "Root=1-5759e988",
    )
    assert (job.model, job.model_version, job.metadata) == ("demo-chat", "1", {"order": "7"})
    assert job.status is JobStatus.QUEUED


def test_submitted_job_has_its_times(gateway: Gateway) -> None:
    job = gateway.accept(deadline_s=60)

    assert job.created_at_epoch_ms == job.enqueued_at_epoch_ms == NOW_MS
    assert (job.deadline_s, job.deadline_epoch_ms) == (60, NOW_MS + 60_000)
    assert job.due_at_epoch_ms == NOW_MS + 60_000


def test_submitted_job_outlives_the_dead_letter_queue_in_epoch_seconds(  # case D02
    gateway: Gateway,
) -> None:
    job = gateway.accept(deadline_s=7 * 86_400)

    days = (job.ttl_epoch_s - NOW_MS // 1000) / 86_400
    assert 7 + 14 < days < 60
    assert len(str(job.ttl_epoch_s)) == 10


def test_submitted_job_keeps_the_input_as_it_came(gateway: Gateway) -> None:
    text = 'Cafe\u0301\r\n\x00\x07\ufffe 😀 <&> "q"'

    job = gateway.accept(input=text, options={"seed": 9007199254740993, "top_p": 1.0})

    assert json.loads(payloads_of.load(job.input, payloads=gateway.payloads)) == {
        "input": text,
        "options": {"seed": 9007199254740993, "top_p": 1.0},
    }


def test_small_input_stays_in_the_row(gateway: Gateway) -> None:
    job = gateway.accept()

    assert job.input.inline is not None
    assert gateway.world.payloads == {}


def test_big_input_goes_to_the_payloads_under_its_job(gateway: Gateway) -> None:
    text = "".join(chr(0x4E00 + number % 20_000) for number in range(100_000))

    job = gateway.accept(input=text)

    assert job.input == Payload(ref=f"inputs/acme/{job.job_id}")
    assert set(gateway.world.payloads) == {f"inputs/acme/{job.job_id}"}
    kept = json.loads(payloads_of.load(job.input, payloads=gateway.payloads))
    assert kept["input"] == text


@pytest.mark.parametrize(
    ("model", "priority", "lane"),
    [
        ("demo-chat", None, "interactive"),
        ("demo-chat", "batch", "batch"),
        ("demo-heavy", None, "batch"),
        ("demo-heavy", "interactive", "interactive"),
    ],
)
def test_submit_chooses_the_lane_by_priority_and_weight(
    gateway: Gateway, model: str, priority: str | None, lane: str
) -> None:
    job = gateway.accept(model=model, priority=priority)

    assert job.lane == lane
    assert gateway.queue.sends[0][0] == lane


def test_submit_is_accepted_although_the_send_failed(gateway: Gateway) -> None:
    gateway.queue.broken = True

    job = gateway.accept()

    stored = gateway.jobs.get("acme", job.job_id)
    assert stored == job
    assert stored.due_at_epoch_ms == NOW_MS + 120_000


def test_submit_refuses_a_model_that_is_not_there(gateway: Gateway) -> None:
    with pytest.raises(ModelNotFoundError):
        gateway.submit(model="other")

    assert written(gateway.world) == {}
    assert gateway.queue.sends == []


# ------------------------------------------------------------------ the cap


def test_submit_refuses_what_is_over_the_cap(gateway: Gateway) -> None:
    for number in range(2):
        gateway.accept("small", input=f"number {number}")

    with pytest.raises(QuotaExceededError) as caught:
        gateway.submit("small", input="one too many")

    assert caught.value.retry_after_s >= 1
    assert len(gateway.world.jobs) == 2
    assert len(gateway.queue.sends) == 2


def test_submit_at_the_cap_still_attaches_to_an_open_job(gateway: Gateway) -> None:
    first = gateway.accept("small", input="number 0")
    gateway.accept("small", input="number 1")

    outcome = gateway.submit("small", input="number 0")

    assert outcome == Accepted(first, deduplicated=True)


def test_submit_at_one_tenants_cap_leaves_others_alone(gateway: Gateway) -> None:
    for number in range(2):
        gateway.accept("small", input=f"number {number}")

    assert gateway.accept("globex", input="number 0").tenant == "globex"


def test_submit_uses_each_shard_of_the_cap() -> None:
    wide = Tenant(in_flight=200)
    gateway = Gateway(catalogue=CATALOGUE.model_copy(update={"tenants": {"acme": wide}}))

    for number in range(200):
        gateway.accept(input=f"number {number}")

    with pytest.raises(QuotaExceededError):
        gateway.submit(input="one too many")
    assert gateway.world.open_jobs("acme") == 200


# ------------------------------------------------------------------ duplicates


def test_submit_of_the_same_work_attaches_to_the_open_job(gateway: Gateway) -> None:
    first = gateway.accept()
    gateway.clock.advance(s=5)

    outcome = gateway.submit()

    assert outcome == Accepted(first, deduplicated=True)
    assert len(gateway.queue.sends) == 1
    assert gateway.world.open_jobs("acme") == 1


def test_duplicate_sees_the_job_as_it_is_now(gateway: Gateway) -> None:
    first = gateway.accept()
    now = replace(first, status=JobStatus.RETRYING, attempts=2)
    gateway.world.jobs["acme", first.job_id] = now

    outcome = gateway.submit()

    assert outcome == Accepted(now, deduplicated=True)


@pytest.mark.parametrize(
    "members",
    [
        {"metadata": {"order": "8"}},
        {"deadline_s": 60},
        {"options": {"temperature": 1.0, "stop": ["a"]}},
        {"input": "a\r\nb"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_duplicate_is_the_same_whatever_its_spelling(
    gateway: Gateway, members: dict[str, Any]
) -> None:
    first = gateway.accept(input="a\nb", options={"stop": ["a"], "temperature": 1})

    again = {"input": "a\nb", "options": {"stop": ["a"], "temperature": 1}, **members}
    outcome = gateway.submit(**again)

    assert outcome == Accepted(first, deduplicated=True)


@pytest.mark.parametrize(
    "members",
    [
        {"model": "demo-heavy"},
        {"input": "hello!"},
        {"input": {"messages": [{"role": "user", "content": "hello"}]}},
        {"options": {"temperature": 0}},
        {"locale": "de"},
        {"safety_profile": "strict"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_other_work_is_another_job(gateway: Gateway, members: dict[str, Any]) -> None:
    first = gateway.accept()

    outcome = gateway.submit(**members)

    assert isinstance(outcome, Accepted)
    assert not outcome.deduplicated
    assert outcome.job.job_id != first.job_id


def test_another_version_of_the_model_is_another_job(gateway: Gateway) -> None:
    first = gateway.accept()
    newer = CATALOGUE.model("demo-chat").model_copy(update={"version": "2"})
    gateway.catalogue = CATALOGUE.model_copy(update={"models": {"demo-chat": newer}})

    second = gateway.accept()

    assert second.job_id != first.job_id
    assert second.model_version == "2"


def test_another_tenants_same_work_is_another_job(gateway: Gateway) -> None:
    first = gateway.accept("acme")

    outcome = gateway.submit("globex")

    assert isinstance(outcome, Accepted)
    assert not outcome.deduplicated
    assert outcome.job.job_id != first.job_id


def test_equal_requests_at_once_give_one_job() -> None:
    gateway = Gateway()
    barrier = threading.Barrier(20)

    def submit(_: int) -> Hit | Accepted:
        barrier.wait()
        return gateway.submit()

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(submit, range(20)))

    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len(accepted) == 20
    assert len({outcome.job.job_id for outcome in accepted}) == 1
    assert [outcome.deduplicated for outcome in accepted].count(False) == 1
    assert len(gateway.queue.sends) == 1


def test_urgent_duplicate_moves_a_batch_job_and_sends_it_again(gateway: Gateway) -> None:
    first = gateway.accept(priority="batch")

    outcome = gateway.submit(priority="interactive")

    assert outcome == Accepted(replace(first, lane="interactive"), deduplicated=True)
    assert gateway.world.jobs["acme", first.job_id].lane == "interactive"
    assert gateway.queue.sends == [
        ("batch", "acme", first.job_id),
        ("interactive", "acme", first.job_id),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [("interactive", "batch"), ("interactive", "interactive"), ("batch", "batch")],
)
def test_duplicate_that_is_no_more_urgent_moves_nothing(
    gateway: Gateway, first: str, second: str
) -> None:
    job = gateway.accept(priority=first)

    outcome = gateway.submit(priority=second)

    assert outcome == Accepted(job, deduplicated=True)
    assert len(gateway.queue.sends) == 1


# ------------------------------------------------------------------ claims that outlived their job


@pytest.mark.parametrize("status", ENDED)
def test_submit_takes_over_the_claim_of_a_job_that_ended(
    gateway: Gateway, status: JobStatus
) -> None:
    first = gateway.accept()
    gateway.end(first, status)

    outcome = gateway.submit()

    assert isinstance(outcome, Accepted)
    assert not outcome.deduplicated
    assert outcome.job.job_id != first.job_id
    assert gateway.world.claims[first.job_key].job_id == outcome.job.job_id


def test_submit_takes_over_the_claim_of_a_job_that_is_gone(gateway: Gateway) -> None:
    first = gateway.accept()
    del gateway.world.jobs["acme", first.job_id]

    assert gateway.accept().job_id != first.job_id


def test_submit_takes_over_a_claim_that_ended(gateway: Gateway) -> None:
    first = gateway.accept(deadline_s=60)
    gateway.clock.advance(s=60 + 3600 + 1)

    assert gateway.accept().job_id != first.job_id


def test_submit_after_a_failure_is_a_new_attempt_at_once(gateway: Gateway) -> None:
    first = gateway.accept()
    ended = replace(first, status=JobStatus.FAILED)
    gateway.jobs.apply(first, ended)

    second = gateway.accept()

    assert second.job_id != first.job_id
    assert second.status is JobStatus.QUEUED


class ChangingHands(InMemoryJobs):
    """A claim that is another job's, ended, at each look."""

    def submit(
        self, job: Job, *, replacing: str | None = None, **named: Any
    ) -> Submitted | Claimed | CapReached | BudgetSpent:
        self._world.claims[job.job_key] = Claim(f"job_{replacing}", NOW_MS + DAY_MS)
        return super().submit(job, replacing=replacing, **named)


def test_submit_gives_up_on_a_claim_that_keeps_changing_hands(gateway: Gateway) -> None:
    gateway.jobs = ChangingHands(gateway.world, clock=gateway.clock)

    with pytest.raises(StoreBusyError) as caught:
        gateway.submit()

    assert caught.value.retry_after_s >= 1
    assert gateway.world.jobs == {}


# ------------------------------------------------------------------ the cache


def test_submit_answers_from_the_cache(gateway: Gateway) -> None:
    job = gateway.accept()
    gateway.store(job)

    outcome = gateway.submit()

    assert isinstance(outcome, Hit)
    assert outcome.entry.cache_key == job.cache_key
    assert json.loads(outcome.result) == {"text": "a cached answer", "finish_reason": "stop"}


def test_hit_writes_and_sends_nothing(gateway: Gateway) -> None:
    job = gateway.accept()
    other = Gateway()
    other.store(job)
    before = written(other.world)

    outcome = other.submit()

    assert isinstance(outcome, Hit)
    assert written(other.world) == before
    assert other.queue.sends == []


def test_hit_reads_a_big_result_from_the_payloads(gateway: Gateway) -> None:
    job = gateway.accept()
    document = packed({"text": "big"}).inline
    assert document is not None
    gateway.world.payloads["results/acme/x/1"] = document
    gateway.store(job, result=Payload(ref="results/acme/x/1"))

    outcome = gateway.submit()

    assert isinstance(outcome, Hit)
    assert json.loads(outcome.result) == {"text": "big"}


@pytest.mark.parametrize("document", [{}, [], 0, "", None, False])
def test_stored_falsy_result_is_a_hit(gateway: Gateway, document: Any) -> None:
    job = gateway.accept()
    gateway.store(job, result=packed(document))

    outcome = gateway.submit()

    assert isinstance(outcome, Hit)
    assert json.loads(outcome.result) == document


def test_entry_whose_object_was_collected_is_a_miss(gateway: Gateway) -> None:
    first = gateway.accept()
    gateway.end(first)
    gateway.store(first, result=Payload(ref="results/acme/gone/1"))

    assert gateway.accept().job_id != first.job_id


@pytest.mark.parametrize("past_ms", [0, 1_000])
def test_entry_past_its_expiry_is_a_miss_though_it_is_still_there(
    gateway: Gateway, past_ms: int
) -> None:
    first = gateway.accept()
    gateway.end(first)
    expired_ms = NOW_MS - past_ms
    gateway.store(first, soft_expires_at_epoch_ms=expired_ms, hard_expires_at_epoch_ms=expired_ms)

    outcome = gateway.submit()

    assert isinstance(outcome, Accepted)
    assert not outcome.deduplicated


def test_entry_is_served_until_its_expiry_and_never_moved_by_it(gateway: Gateway) -> None:
    job = gateway.accept()
    gateway.store(
        job,
        soft_expires_at_epoch_ms=NOW_MS + 50_000,
        hard_expires_at_epoch_ms=NOW_MS + 100_000,
    )
    gateway.end(job)

    outcomes = []
    for _ in range(12):
        outcomes.append(gateway.submit())
        gateway.clock.advance(s=10)

    assert [isinstance(outcome, Hit) for outcome in outcomes] == [True] * 10 + [False] * 2


def test_another_tenants_entry_is_a_miss(gateway: Gateway) -> None:
    job = gateway.accept("acme")
    gateway.store(job)

    outcome = gateway.submit("globex")

    assert isinstance(outcome, Accepted)
    assert outcome.job.cache_key != job.cache_key


def test_shared_entry_is_a_hit_for_every_tenant(gateway: Gateway) -> None:
    job = gateway.accept("acme", model="demo-shared")
    gateway.store(job)

    assert isinstance(gateway.submit("globex", model="demo-shared"), Hit)


def test_shared_entry_is_a_miss_for_a_tenant_that_does_not_share(gateway: Gateway) -> None:
    job = gateway.accept("acme", model="demo-shared")
    gateway.store(job)

    outcome = gateway.submit("private", model="demo-shared")

    assert isinstance(outcome, Accepted)
    assert outcome.job.cache_scope == "tenant"


def test_entry_of_a_tenant_that_does_not_share_is_its_own(gateway: Gateway) -> None:
    job = gateway.accept("private", model="demo-shared")
    gateway.store(job)

    assert isinstance(gateway.submit("private", model="demo-shared"), Hit)
    assert isinstance(gateway.submit("acme", model="demo-shared"), Accepted)


def test_model_without_a_cache_never_reads_it(gateway: Gateway) -> None:
    job = gateway.accept(model="demo-uncached")
    gateway.store(job)

    outcome = gateway.submit(model="demo-uncached")

    assert outcome == Accepted(job, deduplicated=True)
    assert gateway.cache.reads == 0


# ------------------------------------------------------------------ time windows


def test_equal_requests_of_one_window_are_one_job(gateway: Gateway) -> None:
    gateway.clock.set(NOW_MS)
    first = gateway.accept(model="demo-window")
    gateway.clock.advance(ms=59_999)

    assert gateway.submit(model="demo-window") == Accepted(first, deduplicated=True)


def test_equal_requests_of_different_windows_are_different_work(gateway: Gateway) -> None:
    first = gateway.accept(model="demo-window")
    gateway.store(first)
    gateway.clock.advance(ms=60_000)

    second = gateway.accept(model="demo-window")

    assert second.job_id != first.job_id
    assert second.cache_key != first.cache_key
