"""A process may end at any of its calls: in each scenario every single one is tried."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from moto import mock_aws
from sluiceway.adapters.dynamodb import to_item
from sluiceway.adapters.dynamodb_jobs import _values_of
from sluiceway.domain.job import JobStatus

from tests.protocol.events import Image
from tests.protocol.on_moto import on_moto
from tests.protocol.stage import TOO_BIG_FOR_A_ROW, Stage, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.protocol.stage import When

WHENS: tuple[When, ...] = ("before", "after")
COMPLETED = frozenset({JobStatus.COMPLETED})
DISCARDED = frozenset({JobStatus.FAILED})
CANCELLED = frozenset({JobStatus.CANCELLED})
DEAD = frozenset({JobStatus.DEAD_LETTERED})

RUN = frozenset({"run"})
PUBLISH = frozenset({"publish"})
OPERATOR = frozenset({"discard", "redrive_job"})
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
}


ON_MOTO = {name for name, one in SCENARIOS.items() if one.pairs in {PUBLISH, OPERATOR}} | {
    "success",
    "cancel_during",
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
    stage.breaker.meanwhile["submit jobs.raise_lane"] = lambda: fail_slowly(stage)

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
