"""A process may end at any of its calls: in each scenario every single one is tried."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from moto import mock_aws
from sluiceway.adapters.dynamodb import to_item
from sluiceway.adapters.dynamodb_jobs import _values_of
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.job import Job, JobStatus
from sluiceway.usecases.invalidate_cache import Invalidation

from tests.protocol.events import Image
from tests.protocol.on_moto import STATE_LAGS_MS, on_moto
from tests.protocol.stage import TOO_BIG_FOR_A_ROW, Stage, call_of, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.usecases.submit_job import Hit

    from tests.protocol.stage import When

WHENS: tuple[When, ...] = ("before", "after")
COMPLETED = frozenset({JobStatus.COMPLETED})
DISCARDED = frozenset({JobStatus.FAILED})
CANCELLED = frozenset({JobStatus.CANCELLED})
DEAD = frozenset({JobStatus.DEAD_LETTERED})
ENDED = COMPLETED | DISCARDED
"""A refresh fails, and that is its end."""

RUN = frozenset({"run"})
PUBLISH = frozenset({"publish"})
OPERATOR = frozenset({"discard", "redrive_job"})
READ_AND_RUN = frozenset({"submit", "run"})
INVALIDATE_AND_RUN = frozenset({"invalidate", "run"})
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scenario:
    """What is played, and how its jobs may end."""

    play: Callable[[Stage], None]
    ends: frozenset[JobStatus] = COMPLETED
    calls: int | None = None
    """What all of it costs when nothing crashes."""
    pairs: frozenset[str] = RUN
    """Of these processes every two crashes are tried, too: of none where another scenario takes
    the same way, and longer."""


def success(stage: Stage) -> None:
    stage.surely_submit()
    stage.drain()


def big_payloads(stage: Stage) -> None:
    stage.surely_submit(TOO_BIG_FOR_A_ROW * 12)
    stage.drain()


def duplicate_submit(stage: Stage) -> None:
    stage.surely_submit(lane="batch")
    stage.surely_submit(lane="interactive")
    stage.drain()


def duplicate_message(stage: Stage) -> None:
    stage.surely_submit()
    for number in list(stage.lanes.messages):
        stage.lanes.duplicate(number)
    stage.vendor.meanwhile.append(lambda: deliver_others(stage))
    stage.drain()


def lost_send(stage: Stage) -> None:
    stage.lanes.lose_sends = 1
    stage.surely_submit()
    stage.drain()


def lost_message(stage: Stage) -> None:
    stage.surely_submit()
    stage.lanes.messages.clear()
    stage.drain()


def retryable_error(stage: Stage) -> None:
    stage.vendor.script += ["unavailable"]
    stage.surely_submit()
    stage.drain()


def retry_after(stage: Stage) -> None:
    stage.vendor.script += ["later"]
    stage.surely_submit()
    stage.drain()


def attempts_used_up(stage: Stage) -> None:
    stage.vendor.default = "unavailable"
    stage.surely_submit()
    stage.drain()


def refused_for_good(stage: Stage) -> None:
    stage.vendor.default = "refused"
    stage.surely_submit()
    stage.drain()


def refused_and_redriven(stage: Stage) -> None:
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.vendor.default = "ok"
    stage.surely_redrive(key_of(job))
    stage.drain()


def redriven_in_vain(stage: Stage) -> None:
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.surely_redrive(key_of(job))
    stage.drain()


def truncated_answer(stage: Stage) -> None:
    stage.vendor.script += ["truncated"]
    stage.surely_submit()
    stage.drain()


def shared_key(stage: Stage) -> None:
    stage.surely_submit(model="shared", tenant="acme")
    stage.surely_submit(model="shared", tenant="globex")
    stage.vendor.meanwhile.append(lambda: deliver_others(stage))
    stage.drain()


def shared_key_uncacheable(stage: Stage) -> None:
    stage.vendor.script += ["truncated"]
    shared_key(stage)


def cancel_before(stage: Stage) -> None:
    job = stage.surely_submit()
    stage.surely_cancel(key_of(job))
    stage.drain()


def cancel_during(stage: Stage) -> None:
    job = stage.surely_submit()
    stage.vendor.meanwhile.append(lambda: stage.surely_cancel(key_of(job)))
    stage.drain()


def cancel_waiting(stage: Stage) -> None:
    stage.vendor.script += ["later"]
    job = stage.surely_submit()
    stage.step()
    stage.surely_cancel(key_of(job))
    stage.drain()


def cancel_after(stage: Stage) -> None:
    job = stage.surely_submit()
    stage.drain()
    stage.surely_cancel(key_of(job))
    stage.drain()


def deadline_in_a_lane(stage: Stage) -> None:
    stage.surely_submit(deadline_s=60)
    stage.advance(61_000)
    stage.drain()


def deadline_without_a_message(stage: Stage) -> None:
    stage.surely_submit(deadline_s=60)
    stage.lanes.messages.clear()
    stage.drain()


def deadline_while_parked(stage: Stage) -> None:
    stage.vendor.default = "later"
    stage.surely_submit(deadline_s=400)
    stage.drain()


def deadline_and_redrive(stage: Stage) -> None:
    job = stage.surely_submit(deadline_s=60)
    stage.advance(61_000)
    stage.drain()
    stage.surely_redrive(key_of(job))
    stage.drain()


def careful_vendor(stage: Stage) -> None:
    stage.surely_submit(model="careful")
    stage.drain()


def careful_vendor_unavailable(stage: Stage) -> None:
    stage.vendor.script += ["unavailable", "later"]
    stage.surely_submit(model="careful")
    stage.drain()


def careful_vendor_redriven(stage: Stage) -> None:
    stage.vendor.default = "refused"
    job = stage.surely_submit(model="careful")
    stage.drain()
    stage.vendor.default = "ok"
    stage.surely_redrive(key_of(job))
    stage.drain()


def unsettled_result(stage: Stage) -> None:
    stage.surely_submit()
    busy_during_a_call(stage)
    stage.drain()


def unsettled_failure(stage: Stage) -> None:
    stage.vendor.default = "refused"
    stage.surely_submit()
    busy_during_a_call(stage)
    stage.drain()


def unsettled_and_submitted_again(stage: Stage) -> None:
    stage.vendor.script += ["truncated"]  # so that the second submit is no hit
    stage.surely_submit()
    busy_during_a_call(stage)
    stage.step()
    stage.surely_submit()
    stage.drain()


def unsettled_and_redriven(stage: Stage) -> None:
    """The redrive comes before the sweep that settles."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    busy_during_a_call(stage)
    deliver_all(stage)
    stage.vendor.default = "ok"
    stage.advance(6_000)
    stage.surely_redrive(key_of(job))
    stage.drain()


def worker_dies_once(stage: Stage) -> None:
    stage.vendor.meanwhile.append(lambda: stage.advance(200_000))
    stage.surely_submit()
    stage.drain()


def worker_dies_in_each_attempt(stage: Stage) -> None:
    stage.vendor.meanwhile += [lambda: stage.advance(200_000)] * 4
    stage.surely_submit()
    stage.drain()


def all_are_told(stage: Stage) -> None:
    """The bus and the webhook queue take what they are given by and by."""
    stage.told.bus.refusals += [1, 0, 0, 1, 1, 1]
    stage.told.webhooks.refusals += [0, 1, 2, 2, 1]
    stage.surely_submit()
    stage.surely_submit(callback="https://partner.invalid/others")
    stage.surely_submit(callback=None)
    stage.vendor.default = "refused"
    stage.drain()


def told_late(stage: Stage) -> None:
    """The job has another run behind it before anybody hears of the first."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    all_but_publish(stage)
    stage.vendor.default = "ok"
    stage.surely_redrive(key_of(job))
    all_but_publish(stage)
    stage.drain()


def discarded(stage: Stage) -> None:
    """What a discard that died leaves in the dead-letter queue is acknowledged when it is moved."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.surely_discard(key_of(job))
    assert stage.crashed or not stage.lanes.dead
    stage.drain()
    stage.surely_redrive_job(key_of(job))  # in vain
    stage.surely_redrive(key_of(job))
    stage.drain()
    assert stage.job(key_of(job)).discarded
    assert not stage.lanes.dead


def discarded_while_redriven(stage: Stage) -> None:
    """Its message is on its way again."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.surely_redrive(key_of(job))
    stage.surely_discard(key_of(job))
    stage.drain()
    assert stage.job(key_of(job)).discarded


def discarded_unsettled(stage: Stage) -> None:
    """The discard comes before the sweep that settles."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    busy_during_a_call(stage)
    deliver_all(stage)
    stage.surely_discard(key_of(job))
    stage.drain()


def discard_meets_redrive(stage: Stage) -> None:
    """Another operator redrives the job between the discard's read and its write."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.lose_letters(key_of(job))
    stage.vendor.default = "ok"
    stage.breaker.meanwhile["discard jobs.get"] = lambda: stage.surely_redrive_job(key_of(job))
    stage.surely_discard(key_of(job))
    stage.drain()


def redriven_without_a_message(stage: Stage) -> None:
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.lose_letters(key_of(job))
    stage.vendor.default = "ok"
    stage.surely_redrive_job(key_of(job))
    stage.drain()
    assert stage.job(key_of(job)).redrives == 1


def deadline_and_redriven_without_a_message(stage: Stage) -> None:
    """There never was a dead letter."""
    job = stage.surely_submit(deadline_s=300)
    stage.lanes.messages.clear()
    stage.lanes.lose_sends = 10
    stage.drain()
    stage.lanes.lose_sends = 0
    stage.surely_redrive_job(key_of(job))
    stage.drain()
    assert stage.job(key_of(job)).redrives == 1


def unsettled_and_redriven_without_a_message(stage: Stage) -> None:
    """The redrive comes before the sweep that settles."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    busy_during_a_call(stage)
    deliver_all(stage)
    stage.lose_letters(key_of(job))
    stage.vendor.default = "ok"
    stage.advance(6_000)
    stage.surely_redrive_job(key_of(job))
    stage.drain()


def redriven_by_command(stage: Stage) -> None:
    """A command that died hides the message, so that the next redrives without; then it comes."""
    stage.vendor.default = "refused"
    job = stage.surely_submit()
    stage.drain()
    stage.vendor.default = "ok"
    stage.surely_redrive_job(key_of(job))
    stage.drain()
    assert stage.crashed or not stage.lanes.dead
    stage.surely_redrive(key_of(job))
    stage.drain()
    assert stage.job(key_of(job)).redrives == 1
    assert not stage.lanes.dead


def refreshed(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_early(stage: Stage) -> None:
    """The entry that is still fresh doesn't answer the refresh."""
    stale(stage, model="early", age_s=2_996)
    stage.surely_hit(model="early")
    assert len(refreshes(stage)) == 1
    stage.drain()
    hit = renewed(stage, model="early")
    assert call_of(hit.entry.vendor_request_id) > 0


def refresh_big_payloads(stage: Stage) -> None:
    text = TOO_BIG_FOR_A_ROW * 12
    stale(stage, text=text)
    stage.surely_hit(text)
    stage.drain()
    renewed(stage, text=text)


def refresh_lost_send(stage: Stage) -> None:
    stale(stage)
    stage.lanes.lose_sends = 1
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_lost_message(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    stage.lanes.messages.clear()
    stage.drain()
    renewed(stage)


def refresh_duplicate_message(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    for number in list(stage.lanes.messages):
        stage.lanes.duplicate(number)
    stage.vendor.meanwhile.append(lambda: deliver_others(stage))
    stage.drain()
    renewed(stage)


def refresh_unavailable(stage: Stage) -> None:
    stale(stage)
    stage.vendor.script += ["unavailable"]
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_parked(stage: Stage) -> None:
    stale(stage)
    stage.vendor.script += ["later"]
    stage.surely_hit()
    stage.drain()
    if stage.crashed > 1 and refreshes(stage)[0].error:
        cools_down(stage, "deadline_exceeded")
    else:
        renewed(stage)


def refresh_refused(stage: Stage) -> None:
    """Again after the cool-down, which is longer then; and then it comes off."""
    stale(stage)
    stage.vendor.default = "refused"
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "vendor_rejected")
    past_the_cool_down(stage)
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "vendor_rejected", failures=2)
    past_the_cool_down(stage)
    stage.vendor.default = "ok"
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_attempts_used_up(stage: Stage) -> None:
    stale(stage)
    stage.vendor.default = "unavailable"
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "vendor_unavailable", "worker_crashed", "attempts_exhausted")


def refresh_deadline_without_a_message(stage: Stage) -> None:
    stale(stage)
    stage.lanes.lose_sends = 1000
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "deadline_exceeded")


def refresh_deadline_in_a_lane(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    stage.advance(601_000)
    stage.drain()
    cools_down(stage, "deadline_exceeded")


def refresh_deadline_while_parked(stage: Stage) -> None:
    stale(stage)
    stage.vendor.default = "later"
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "deadline_exceeded")


def refresh_truncated(stage: Stage) -> None:
    stale(stage)
    stage.vendor.default = "truncated"
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "not_cacheable")


def refresh_worker_dies(stage: Stage) -> None:
    stale(stage)
    stage.vendor.meanwhile.append(lambda: stage.advance(200_000))
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_worker_dies_in_each_attempt(stage: Stage) -> None:
    stale(stage)
    stage.vendor.meanwhile += [lambda: stage.advance(125_000)] * 4
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "worker_crashed", "deadline_exceeded")


def refresh_late_worker(stage: Stage) -> None:
    """Between the answer and its write another takes over, and completes the refresh."""
    stale(stage)
    stage.surely_hit()

    def take_over() -> None:
        stage.advance(107_000)
        for number in list(stage.lanes.messages):
            stage.lanes.duplicate(number)
        deliver_others(stage)

    stage.breaker.meanwhile["run jobs.renew"] = take_over
    stage.drain()
    renewed(stage)


def refresh_unsettled_result(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    busy_during_a_call(stage)
    stage.drain()
    renewed(stage)


def refresh_unsettled_failure(stage: Stage) -> None:
    """Until it is settled the mark stands, and readers queue no other."""
    stale(stage)
    stage.vendor.default = "refused"
    stage.surely_hit()
    busy_during_a_call(stage)
    stage.step()
    stage.surely_hit()
    stage.drain()
    cools_down(stage, "vendor_rejected")


def refresh_near_its_last_receive(stage: Stage) -> None:
    """Two crashes more, and the message is a stray in the dead-letter queue."""
    stale(stage)
    stage.surely_hit()
    received(stage, 8)
    stage.drain()
    renewed(stage)
    clear_strays(stage)


def refresh_refused_on_its_last_receive(stage: Stage) -> None:
    stale(stage)
    stage.vendor.default = "refused"
    stage.surely_hit()
    received(stage, 9)
    stage.drain()
    cools_down(stage, "vendor_rejected")
    clear_strays(stage)


def two_readers(stage: Stage) -> None:
    """Both read the entry before either queues the refresh."""
    stale(stage)
    stage.breaker.meanwhile["submit cache.look"] = lambda: read(stage)
    stage.surely_hit()
    stage.surely_hit()
    assert len(refreshes(stage)) == 1
    stage.drain()
    renewed(stage)
    assert len(refreshes(stage)) == 1


def two_tenants_read(stage: Stage) -> None:
    stale(stage, model="common", tenant="acme")
    stage.surely_hit(model="common", tenant="globex")
    stage.surely_hit(model="common", tenant="acme")
    stage.vendor.meanwhile.append(lambda: read(stage, model="common", tenant="globex"))
    stage.drain()
    renewed(stage, model="common", tenant="globex")
    assert len(refreshes(stage)) == 1


def stale_read_while_forced(stage: Stage) -> None:
    """The refresh that a reader queues meanwhile is completed by the forced one's answer."""
    stale(stage)
    stage.surely_submit(mode="refresh")
    stage.vendor.meanwhile.append(lambda: read_and_deliver(stage))
    stage.drain()
    renewed(stage)


def forced_while_refreshed(stage: Stage) -> None:
    """The forced refresh asks again: the other asked before it was wanted."""
    stale(stage)
    stage.surely_hit()
    stage.vendor.meanwhile.append(lambda: submit_and_deliver(stage, mode="refresh"))
    stage.drain()
    renewed(stage)


def expired_while_refreshed(stage: Stage) -> None:
    """The reader past the hard TTL has a job of its own, which the refresh's answer completes."""
    stale(stage, model="brief")
    stage.surely_hit(model="brief")
    stage.advance(284_000)

    def expire() -> None:
        stage.advance(10_000)
        submit_and_deliver(stage, model="brief")

    stage.vendor.meanwhile.append(expire)
    stage.drain()


def expired_while_refreshed_in_vain(stage: Stage) -> None:
    stale(stage, model="brief")
    stage.vendor.script += ["refused"]
    stage.surely_hit(model="brief")
    stage.advance(284_000)

    def expire() -> None:
        stage.advance(10_000)
        submit_and_deliver(stage, model="brief")

    stage.vendor.meanwhile.append(expire)
    stage.drain()


def forced_while_used(stage: Stage) -> None:
    stage.surely_submit()
    stage.vendor.meanwhile.append(lambda: submit_and_deliver(stage, mode="refresh"))
    stage.drain()
    renewed(stage)


def forced_and_joined_while_used(stage: Stage) -> None:
    """The second joins the first: the answer that would do for the first won't for both."""
    stage.surely_submit()
    stage.surely_submit(mode="refresh")
    stage.advance(10)

    def join() -> None:
        stage.advance(10)
        submit_and_deliver(stage, mode="refresh")

    stage.vendor.meanwhile.append(join)
    stage.drain()
    renewed(stage)


def forced_while_forced(stage: Stage) -> None:
    """The second takes the claim of the first, which has begun, and the third joins the second."""
    stage.surely_submit(mode="refresh")

    def others() -> None:
        with stage.breaker.unnumbered():
            stage.surely_submit(mode="refresh")
        submit_and_deliver(stage, mode="refresh")

    stage.vendor.meanwhile.append(others)
    stage.drain()
    renewed(stage)


def forced_while_forced_and_redriven(stage: Stage) -> None:
    """The first fails, and is redriven while the second, which has its claim, waits."""
    stage.vendor.script += ["refused", "later"]
    first = key_of(stage.surely_submit(mode="refresh"))
    stage.vendor.meanwhile.append(lambda: submit_and_deliver(stage, mode="refresh"))
    while not (stage.quiet or any(dead.job == first for dead in stage.lanes.dead.values())):
        stage.step()
    stage.surely_redrive(first)
    stage.drain()


def forced_by_a_clock_behind(stage: Stage) -> None:
    """By the clocks the call that was over had yet to come."""
    stage.surely_submit()
    stage.drain()
    stage.skew(-5_000)
    stage.surely_submit(mode="refresh")
    stage.drain()


def past_the_cache_while_used(stage: Stage) -> None:
    """Neither waits for the lease of the other, and neither stores anything."""
    stage.surely_submit()

    def others() -> None:
        with stage.breaker.unnumbered():
            stage.submit(mode="bypass")
            stage.submit(no_store=True)
        deliver_others(stage)

    stage.vendor.meanwhile.append(others)
    stage.drain()
    renewed(stage)


def invalidated_while_used(stage: Stage) -> None:
    """The job completes, and whoever asks after it has a job of his own."""
    job = stage.surely_submit()
    key = Invalidation("key", job.cache_key)
    stage.vendor.meanwhile.append(lambda: stage.surely_invalidate(key))
    stage.drain()
    stage.surely_ask()
    stage.drain()
    renewed(stage)


def invalidated_while_refreshed(stage: Stage) -> None:
    key = Invalidation("key", stale(stage))
    stage.surely_hit()
    stage.vendor.meanwhile.append(lambda: stage.surely_invalidate(key))
    stage.drain()
    stage.surely_ask()
    stage.drain()
    renewed(stage)


def model_invalidated_while_refreshed(stage: Stage) -> None:
    stale(stage)
    stage.surely_hit()
    what = Invalidation("model", "plain")
    stage.vendor.meanwhile.append(lambda: stage.surely_invalidate(what))
    stage.drain()
    stage.advance(STATE_LAGS_MS)
    stage.surely_submit()
    stage.drain()
    renewed(stage)


def polled(stage: Stage) -> None:
    """What is parked for less than a minute comes by a pass of the sweep that goes on."""
    stage.polls = True
    stage.vendor.script += ["later"]
    stage.surely_submit()
    stage.drain()


def refresh_polled(stage: Stage) -> None:
    stale(stage)
    stage.polls = True
    stage.lanes.lose_sends = 1
    stage.vendor.script += ["unavailable"]
    stage.surely_hit()
    stage.drain()
    renewed(stage)


def refresh_polled_to_its_deadline(stage: Stage) -> None:
    stale(stage, model="brief")
    stage.polls = True
    stage.vendor.default = "later"
    stage.surely_hit(model="brief")
    stage.drain()


# ------------------------------------------------------------------ what scenarios are made of


def stale(
    stage: Stage,
    *,
    text: str = "one",
    model: str = "plain",
    tenant: str = "acme",
    age_s: int | None = None,
) -> str:
    """There is an entry, mostly past its soft TTL, without a crash until then. Its key."""
    with stage.breaker.unnumbered():
        job = stage.surely_submit(text, model=model, tenant=tenant)
        stage.drain()
    stage.advance((age_s or (610 if model == "brief" else 3_500)) * 1000)
    return job.cache_key


def read(stage: Stage, **how: Any) -> None:
    """Another reader, who doesn't crash."""
    with stage.breaker.unnumbered():
        stage.surely_hit(**how)


def read_and_deliver(stage: Stage) -> None:
    read(stage)
    deliver_others(stage)
    stage.advance(10)


def submit_and_deliver(stage: Stage, **how: Any) -> None:
    with stage.breaker.unnumbered():
        stage.surely_submit(**how)
    deliver_others(stage)


def received(stage: Stage, receives: int) -> None:
    """Each worker that got the message so far has crashed at once."""
    for message in stage.lanes.messages.values():
        message.receives = message.unanswered = receives


def clear_strays(stage: Stage) -> None:
    """Moved back, what is in the dead-letter queue is acknowledged."""
    with stage.breaker.unnumbered():
        for number in list(stage.lanes.dead):
            stage.redrive(number)
        stage.drain()
    assert not stage.lanes.dead


def refreshes(stage: Stage) -> list[Job]:
    return [job for job in stage.stores.look().jobs.values() if job.refresh]


def renewed(stage: Stage, text: str = "one", **how: Any) -> Hit:
    """The next reader has a fresh answer, and nothing of refreshes is left."""
    with stage.breaker.unnumbered():
        hit = stage.surely_hit(text, **how)
    assert hit.freshness is Freshness.FRESH, stage.picture()
    assert hit.entry.refresh_failures == 0, stage.picture()
    assert hit.entry.refresh_after_epoch_ms is None, stage.picture()
    return hit


def cools_down(stage: Stage, *codes: str, failures: int = 1) -> None:
    """The old answer is kept, and while it cools down its readers queue nothing."""
    (entry,) = stage.stores.look().entries.values()
    assert (entry.refresh_failures, entry.refresh_error in codes) == (failures, True), entry
    assert call_of(entry.vendor_request_id) == 0, stage.picture()
    stage.lanes.lose_sends = 0
    if stage.now_ms < (entry.refresh_after_epoch_ms or 0):
        with stage.breaker.unnumbered():
            hit = stage.surely_hit()
        assert hit.freshness is Freshness.STALE, stage.picture()
        assert hit.refresh is None, stage.picture()


def past_the_cool_down(stage: Stage) -> None:
    (entry,) = stage.stores.look().entries.values()
    stage.advance(max(0, (entry.refresh_after_epoch_ms or 0) - stage.now_ms))


def all_but_publish(stage: Stage) -> None:
    """Until it is quiet, but for the publisher, which lags."""
    while not stage.quiet:
        stage.step()


def deliver_all(stage: Stage) -> None:
    """Until the lanes are empty, without a sweep."""
    while stage.lanes.messages:
        if not stage.visible():
            moments = [message.visible_at_ms for message in stage.lanes.messages.values()]
            stage.advance(min(moments) - stage.now_ms)
        stage.deliver(stage.visible()[0])


def deliver_others(stage: Stage) -> None:
    """Whatever else is in the lanes comes now."""
    for message in stage.visible():
        stage.deliver(message)


def busy_during_a_call(stage: Stage) -> None:
    """Claims and counters can't be written when the next call ends, until its worker has ended."""
    world = stage.stores.look()

    def busy() -> None:
        world.counters_busy = True

    stage.vendor.meanwhile.append(busy)


SCENARIOS: dict[str, Scenario] = {
    "success": Scenario(success, calls=1),
    "big_payloads": Scenario(big_payloads, calls=1),
    "duplicate_submit": Scenario(duplicate_submit, calls=1),
    "duplicate_message": Scenario(duplicate_message, calls=1),
    "lost_send": Scenario(lost_send, calls=1),
    "lost_message": Scenario(lost_message, calls=1),
    "retryable_error": Scenario(retryable_error, calls=2),
    "retry_after": Scenario(retry_after, calls=2),
    "attempts_used_up": Scenario(attempts_used_up, DEAD, calls=4),
    "refused_for_good": Scenario(refused_for_good, DEAD, calls=1),
    "refused_and_redriven": Scenario(refused_and_redriven, calls=2),
    "redriven_in_vain": Scenario(redriven_in_vain, DEAD, calls=2, pairs=NONE),
    "truncated_answer": Scenario(truncated_answer, calls=1),
    "shared_key": Scenario(shared_key, calls=1),
    "shared_key_uncacheable": Scenario(shared_key_uncacheable, calls=2),
    "cancel_before": Scenario(cancel_before, CANCELLED, calls=0),
    "cancel_during": Scenario(cancel_during, CANCELLED, calls=1),
    "cancel_waiting": Scenario(cancel_waiting, CANCELLED, calls=1),
    "cancel_after": Scenario(cancel_after, calls=1),
    "deadline_in_a_lane": Scenario(deadline_in_a_lane, DEAD, calls=0),
    "deadline_without_a_message": Scenario(deadline_without_a_message, DEAD, calls=0),
    "deadline_while_parked": Scenario(deadline_while_parked, DEAD, calls=2),
    "deadline_and_redrive": Scenario(deadline_and_redrive, COMPLETED | DEAD, calls=1),
    "careful_vendor": Scenario(careful_vendor, COMPLETED | DEAD, calls=1),
    "careful_vendor_unavailable": Scenario(careful_vendor_unavailable, COMPLETED | DEAD, calls=3),
    "careful_vendor_redriven": Scenario(careful_vendor_redriven, COMPLETED | DEAD, calls=2),
    "unsettled_result": Scenario(unsettled_result, calls=1),
    "unsettled_failure": Scenario(unsettled_failure, DEAD, calls=1),
    "unsettled_and_submitted_again": Scenario(unsettled_and_submitted_again, calls=2),
    "unsettled_and_redriven": Scenario(unsettled_and_redriven, calls=2),
    "worker_dies_once": Scenario(worker_dies_once, calls=2),
    "worker_dies_in_each_attempt": Scenario(worker_dies_in_each_attempt, DEAD, calls=4, pairs=NONE),
    "all_are_told": Scenario(all_are_told, DEAD, calls=1, pairs=PUBLISH),
    "told_late": Scenario(told_late, calls=2, pairs=PUBLISH),
    "discarded": Scenario(discarded, DISCARDED, calls=1, pairs=OPERATOR),
    "discarded_while_redriven": Scenario(
        discarded_while_redriven, DISCARDED, calls=1, pairs=OPERATOR
    ),
    "discarded_unsettled": Scenario(discarded_unsettled, DISCARDED | DEAD, calls=1, pairs=OPERATOR),
    "discard_meets_redrive": Scenario(
        discard_meets_redrive, COMPLETED | DISCARDED, calls=2, pairs=OPERATOR
    ),
    "redriven_without_a_message": Scenario(redriven_without_a_message, calls=2, pairs=OPERATOR),
    "deadline_and_redriven_without_a_message": Scenario(
        deadline_and_redriven_without_a_message, calls=1, pairs=NONE
    ),
    "unsettled_and_redriven_without_a_message": Scenario(
        unsettled_and_redriven_without_a_message, calls=2, pairs=OPERATOR
    ),
    "redriven_by_command": Scenario(redriven_by_command, calls=2, pairs=OPERATOR),
    "refreshed": Scenario(refreshed, calls=2, pairs=READ_AND_RUN),
    "refresh_early": Scenario(refresh_early, calls=2, pairs=NONE),
    "refresh_big_payloads": Scenario(refresh_big_payloads, calls=2, pairs=NONE),
    "refresh_lost_send": Scenario(refresh_lost_send, calls=2),
    "refresh_lost_message": Scenario(refresh_lost_message, calls=2, pairs=NONE),
    "refresh_duplicate_message": Scenario(refresh_duplicate_message, calls=2),
    "refresh_unavailable": Scenario(refresh_unavailable, calls=3),
    "refresh_parked": Scenario(refresh_parked, ENDED, calls=3),
    "refresh_refused": Scenario(refresh_refused, ENDED, calls=4, pairs=NONE),
    "refresh_attempts_used_up": Scenario(refresh_attempts_used_up, ENDED, calls=5, pairs=NONE),
    "refresh_deadline_without_a_message": Scenario(
        refresh_deadline_without_a_message, ENDED, calls=1, pairs=NONE
    ),
    "refresh_deadline_in_a_lane": Scenario(refresh_deadline_in_a_lane, ENDED, calls=1),
    "refresh_deadline_while_parked": Scenario(refresh_deadline_while_parked, ENDED, calls=3),
    "refresh_truncated": Scenario(refresh_truncated, calls=2),
    "refresh_worker_dies": Scenario(refresh_worker_dies, calls=3),
    "refresh_worker_dies_in_each_attempt": Scenario(
        refresh_worker_dies_in_each_attempt, ENDED, calls=5, pairs=NONE
    ),
    "refresh_late_worker": Scenario(refresh_late_worker, calls=3),
    "refresh_unsettled_result": Scenario(refresh_unsettled_result, calls=2),
    "refresh_unsettled_failure": Scenario(refresh_unsettled_failure, ENDED, calls=2),
    "refresh_near_its_last_receive": Scenario(refresh_near_its_last_receive, calls=2),
    "refresh_refused_on_its_last_receive": Scenario(
        refresh_refused_on_its_last_receive, ENDED, calls=2
    ),
    "two_readers": Scenario(two_readers, calls=2, pairs=READ_AND_RUN),
    "two_tenants_read": Scenario(two_tenants_read, calls=2, pairs=READ_AND_RUN),
    "stale_read_while_forced": Scenario(stale_read_while_forced, calls=2),
    "forced_while_refreshed": Scenario(forced_while_refreshed, calls=3, pairs=NONE),
    "expired_while_refreshed": Scenario(expired_while_refreshed, calls=2),
    "expired_while_refreshed_in_vain": Scenario(
        expired_while_refreshed_in_vain, ENDED | DEAD, calls=3, pairs=NONE
    ),
    "forced_while_used": Scenario(forced_while_used, calls=2),
    "forced_and_joined_while_used": Scenario(forced_and_joined_while_used, calls=2, pairs=NONE),
    "forced_while_forced": Scenario(forced_while_forced, calls=2),
    "forced_while_forced_and_redriven": Scenario(
        forced_while_forced_and_redriven, COMPLETED | DEAD, calls=3, pairs=NONE
    ),
    "forced_by_a_clock_behind": Scenario(forced_by_a_clock_behind, calls=1, pairs=NONE),
    "past_the_cache_while_used": Scenario(past_the_cache_while_used, calls=3),
    "invalidated_while_used": Scenario(invalidated_while_used, calls=2, pairs=INVALIDATE_AND_RUN),
    "invalidated_while_refreshed": Scenario(invalidated_while_refreshed, calls=3, pairs=NONE),
    "model_invalidated_while_refreshed": Scenario(
        model_invalidated_while_refreshed, calls=3, pairs=NONE
    ),
    "polled": Scenario(polled, calls=2, pairs=NONE),
    "refresh_polled": Scenario(refresh_polled, calls=3, pairs=NONE),
    "refresh_polled_to_its_deadline": Scenario(
        refresh_polled_to_its_deadline, ENDED, calls=3, pairs=NONE
    ),
}


ON_MOTO = {name for name, one in SCENARIOS.items() if one.pairs in {PUBLISH, OPERATOR}} | {
    "success",
    "cancel_during",
    *(name for name in SCENARIOS if name.startswith("refresh") and "unsettled" not in name),
    *("two_readers", "two_tenants_read", "stale_read_while_forced", "forced_while_refreshed"),
    *("expired_while_refreshed", "forced_while_used", "past_the_cache_while_used"),
    *("forced_and_joined_while_used", "forced_while_forced", "forced_while_forced_and_redriven"),
    *("invalidated_while_used", "invalidated_while_refreshed"),
    "model_invalidated_while_refreshed",
    "deadline_and_redriven_without_a_message",
}


def played(
    scenario: Scenario, crashes: dict[int, When], counted: frozenset[str] | None = None
) -> Stage:
    """Plays a scenario with these crashes, and checks how it ends."""
    stage = Stage(counted=counted)
    stage.breaker.crashes = crashes
    try:
        scenario.play(stage)
        stage.check_end()
        ends = {job.status for job in stage.stores.look().jobs.values()}
        assert ends <= scenario.ends, f"{ends}: {stage.picture()}"
    except AssertionError as error:
        log = [*stage.breaker.log, *("(not reached)" for _ in crashes)]
        where = [f"{when} call {at}, {log[min(at, len(log) - 1)]}" for at, when in crashes.items()]
        raise AssertionError(f"crashed {' and '.join(where)}: {error}") from error
    return stage


def points(calls: int, start: int = 0) -> Iterator[tuple[int, When]]:
    """Before and after each call from this number on."""
    return itertools.product(range(start, calls), WHENS)


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return SCENARIOS[request.param]


def test_scenario_without_a_crash_calls_no_more_than_needed(scenario: Scenario) -> None:
    stage = played(scenario, {})

    assert stage.vendor.calls.total() == scenario.calls


@pytest.mark.proves(1, 6, 16, on="moto")
@pytest.mark.parametrize("name", sorted(ON_MOTO))
def test_scenario_on_the_real_stores_and_their_stream_ends_alike(name: str) -> None:
    with mock_aws():
        stage = Stage(on_moto, check_each_call=False)

        SCENARIOS[name].play(stage)
        stage.check_end()

        assert {job.status for job in stage.stores.look().jobs.values()} <= SCENARIOS[name].ends


def test_crash_at_any_call_leaves_one_end_and_nothing_else(
    scenario: Scenario, count_points: Callable[[str, int], None]
) -> None:
    calls = len(played(scenario, {}).breaker.log)

    for at, when in points(calls):
        played(scenario, {at: when})

    count_points("single", 2 * calls)


@pytest.mark.parametrize(
    "scenario", [name for name, one in SCENARIOS.items() if one.pairs], indirect=True
)
def test_crash_at_any_two_calls_leaves_one_end_and_nothing_else(
    scenario: Scenario, count_points: Callable[[str, int], None]
) -> None:
    pairs = 0
    for first, when in points(len(played(scenario, {}, scenario.pairs).breaker.log)):
        # What comes after the first crash isn't what came without it.
        calls = len(played(scenario, {first: when}, scenario.pairs).breaker.log)
        for second, when_again in points(calls, first + 1):
            played(scenario, {first: when, second: when_again}, scenario.pairs)
            pairs += 1

    count_points("pairs", pairs)


INVALIDATIONS: dict[str, Callable[[Job], Invalidation]] = {
    "key": lambda job: Invalidation("key", job.cache_key),
    "model": lambda job: Invalidation("model", job.model),
    "tenant": lambda job: Invalidation("tenant", job.tenant),
}


def invalidated_at(
    stage: Stage, at: int, what: Callable[[Job], Invalidation], *, refresh: bool
) -> None:
    """A job runs, or a refresh; at this call its key is invalidated, and a partner asks again."""
    with stage.breaker.unnumbered():
        job = stage.surely_submit()
        if refresh:
            stage.drain()
            stage.advance(3_500_000)
            stage.surely_hit()

    def invalidate() -> None:
        with stage.breaker.unnumbered():
            stage.surely_invalidate(what(job))
            stage.surely_submit()

    stage.breaker.meanwhile[at] = invalidate
    stage.drain()
    renewed(stage)
    stage.check_end()


@pytest.mark.parametrize("refresh", [False, True], ids=["job", "refresh"])
@pytest.mark.parametrize("kind", INVALIDATIONS)
def test_invalidation_at_any_call_of_a_run_brings_a_new_job_and_nothing_old_back(
    kind: str, count_points: Callable[[str, int], None], *, refresh: bool
) -> None:
    def play(at: int, crashes: dict[int, When]) -> int:
        stage = Stage(counted=RUN)
        stage.breaker.crashes = crashes
        invalidated_at(stage, at, INVALIDATIONS[kind], refresh=refresh)
        return len(stage.breaker.log)

    count = 0
    for at in range(7):
        for crash, when in points(play(at, {})):
            if crash != at:
                play(at, {crash: when})
                count += 1

    count_points("with an invalidation", count)


def test_send_that_a_sweep_decided_before_a_failure_is_not_sent_long_after_it() -> None:
    stage = Stage()
    stage.vendor.default = "refused"
    stage.surely_submit()
    stage.advance(130_000)
    stage.breaker.meanwhile["sweep due_jobs.postpone"] = lambda: fail_slowly(stage)

    stage.sweep()
    stage.drain()

    stage.check_end()
    assert stage.vendor.calls.total() == 1


def test_send_for_a_more_urgent_duplicate_is_not_sent_long_after_a_failure() -> None:
    stage = Stage()
    stage.vendor.default = "refused"
    stage.surely_submit(lane="batch")
    stage.breaker.meanwhile["submit jobs.move_lane"] = lambda: fail_slowly(stage)

    stage.submit(lane="interactive")
    stage.drain()

    stage.check_end()
    assert stage.vendor.calls.total() == 1


def test_images_of_the_stream_are_those_of_dynamodb() -> None:
    stage = Stage()
    told_late(stage)
    (job,) = stage.stores.look().jobs.values()
    failures = [one.new for one in stage.stream.changes() if one.new.error]

    for one in (job, *failures):
        assert dict(Image(one)) == to_item(_values_of(one))


def fail_slowly(stage: Stage) -> None:
    """The job fails, while somebody waits for the answer to a write."""
    deliver_others(stage)
    stage.advance(8_000)
