"""StateStore: epochs and degraded mode, of which every process has a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb_state import COPY_LIVES_MS
from sluiceway.ports import ServiceState

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import store_on
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

EFFECTIVE_WITHIN_MS = 5_000
MODEL = "model:demo-chat"


def test_state_of_a_new_installation_is_empty(store: Store) -> None:
    state = store.state.read()

    assert state == ServiceState()
    assert (state.epoch(MODEL), state.degraded) == (0, False)


# ------------------------------------------------------------------------------------ the copy


@pytest.mark.proves(20)
def test_change_is_seen_when_the_copy_has_lived(store: Store) -> None:
    store.state.read()
    store.state.invalidate(MODEL, now_ms=NOW_MS)
    store.state.set_degraded(NOW_MS)

    store.clock.advance(COPY_LIVES_MS)

    state = store.state.read()
    assert (state.epoch(MODEL), state.degraded_since_epoch_ms) == (NOW_MS, NOW_MS)


def test_copy_answers_until_it_has_lived(dynamodb_store: Store) -> None:
    dynamodb_store.state.read()
    dynamodb_store.state.invalidate(MODEL, now_ms=NOW_MS)

    dynamodb_store.clock.advance(COPY_LIVES_MS - 1)

    assert dynamodb_store.state.read().epoch(MODEL) == 0


def test_copy_is_younger_than_a_change_may_take() -> None:
    assert COPY_LIVES_MS < EFFECTIVE_WITHIN_MS


def test_reads_do_not_make_the_copy_younger(store: Store) -> None:
    store.state.read()
    store.state.invalidate(MODEL, now_ms=NOW_MS)

    for _ in range(10):
        store.clock.advance(COPY_LIVES_MS // 10)
        state = store.state.read()

    assert state.epoch(MODEL) == NOW_MS


def test_clock_that_went_back_keeps_no_copy_alive(store: Store) -> None:
    store.state.read()
    store.state.invalidate(MODEL, now_ms=NOW_MS)

    store.clock.advance(-3_600_000)

    assert store.state.read().epoch(MODEL) == NOW_MS


# ------------------------------------------------------------------------------------ epochs


@pytest.mark.proves(20)
def test_invalidation_gives_the_epoch_that_is_read(store: Store) -> None:
    epoch = store.state.invalidate(MODEL, now_ms=NOW_MS)

    assert epoch == NOW_MS
    assert store.state.read().epoch(MODEL) == NOW_MS


@pytest.mark.parametrize("clock_ms", [NOW_MS, NOW_MS - 1, NOW_MS - 3_600_000, NOW_MS + 1])
def test_epoch_grows_whatever_the_clock_says(store: Store, clock_ms: int) -> None:
    store.state.invalidate(MODEL, now_ms=NOW_MS)

    epoch = store.state.invalidate(MODEL, now_ms=clock_ms)

    assert epoch == NOW_MS + 1
    assert store.state.read().epoch(MODEL) == NOW_MS + 1


def test_subjects_have_epochs_of_their_own_whatever_their_names(store: Store) -> None:
    subjects = [
        "model:gpt-4.1-mini",
        "model:gpt-4",
        "model:gpt-4_1-mini",
        "model:acme",
        "tenant:acme",
        "tenant:acme.de",
        "tenant:9-to.5_x",
        f"tenant:{'a' * 63}",
    ]

    for number, subject in enumerate(subjects):
        store.state.invalidate(subject, now_ms=NOW_MS + number)

    epochs = store.state.read().epochs
    assert epochs == {subject: NOW_MS + number for number, subject in enumerate(subjects)}


def test_invalidation_whose_reply_is_lost_only_raises_the_epoch(
    dynamodb: Any, tables: Tables, clock: FakeClock
) -> None:
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    epoch = store_on(client, tables, clock).state.invalidate(MODEL, now_ms=NOW_MS)

    assert NOW_MS <= epoch == store_on(dynamodb, tables, clock).state.read().epoch(MODEL)


# ------------------------------------------------------------------------------------ degraded


def test_degraded_mode_began_when_it_began_first(store: Store) -> None:
    store.state.set_degraded(NOW_MS)
    store.state.set_degraded(NOW_MS + 1000)

    state = store.state.read()

    assert (state.degraded, state.degraded_since_epoch_ms) == (True, NOW_MS)


@pytest.mark.parametrize("times", [1, 2])
def test_degraded_mode_ends_and_may_begin_again(store: Store, times: int) -> None:
    store.state.set_degraded(NOW_MS)
    for _ in range(times):
        store.state.set_degraded(None)
    ended = store.state.read()

    store.state.set_degraded(NOW_MS + 60_000)
    store.clock.advance(COPY_LIVES_MS)

    assert not ended.degraded
    assert store.state.read().degraded_since_epoch_ms == NOW_MS + 60_000


def test_degraded_mode_that_never_began_may_be_ended(store: Store) -> None:
    store.state.set_degraded(None)

    assert store.state.read() == ServiceState()


def test_degraded_mode_and_epochs_leave_each_other_alone(store: Store) -> None:
    store.state.invalidate(MODEL, now_ms=NOW_MS)
    store.state.set_degraded(NOW_MS + 1)
    store.state.invalidate("tenant:acme", now_ms=NOW_MS + 2)
    store.state.set_degraded(None)

    assert store.state.read() == ServiceState({MODEL: NOW_MS, "tenant:acme": NOW_MS + 2})


def test_who_begins_or_ends_degraded_mode_is_told_so_and_nobody_else(store: Store) -> None:
    outcomes = [
        store.state.set_degraded(since_ms)
        for since_ms in (None, NOW_MS, NOW_MS, NOW_MS + 1, None, None, NOW_MS + 2)
    ]

    assert outcomes == [False, True, False, False, True, False, True]
    assert store.state.read().degraded_since_epoch_ms == NOW_MS + 2


@pytest.mark.parametrize("since_ms", [NOW_MS, None], ids=["begins", "ends"])
def test_of_two_processes_one_switches_degraded_mode(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store, since_ms: int | None
) -> None:
    if since_ms is None:
        dynamodb_store.state.set_degraded(NOW_MS - 1)
    states = [store_on(dynamodb, tables, clock).state for _ in range(2)]
    seen = [state.read() for state in states]

    outcomes = [state.set_degraded(since_ms) for state in states]

    assert seen[0] == seen[1]
    assert outcomes == [True, False]
    assert all(state.read().degraded_since_epoch_ms == since_ms for state in states)


@pytest.mark.parametrize("since_ms", [NOW_MS, None], ids=["begins", "ends"])
def test_switch_of_degraded_mode_whose_reply_is_lost_is_ours(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store, since_ms: int | None
) -> None:
    if since_ms is None:
        dynamodb_store.state.set_degraded(NOW_MS - 1)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    assert store_on(client, tables, clock).state.set_degraded(since_ms) is True
    assert client.writes == 2
    assert dynamodb_store.state.set_degraded(since_ms) is False


def test_part_of_degraded_mode_is_taken_once(store: Store) -> None:
    store.state.set_degraded(NOW_MS)

    outcomes = [
        store.state.tell_degraded(NOW_MS, from_ms, from_ms + 60)
        for from_ms in (NOW_MS, NOW_MS, NOW_MS + 59, NOW_MS + 60, NOW_MS + 200)
    ]

    assert outcomes == [True, False, False, True, True]
    assert store.state.read().degraded_told_epoch_ms == NOW_MS + 260


@pytest.mark.parametrize("since_ms", [NOW_MS - 1, NOW_MS + 1])
def test_part_of_another_degraded_mode_is_not_taken(store: Store, since_ms: int) -> None:
    store.state.set_degraded(NOW_MS)

    assert not store.state.tell_degraded(since_ms, NOW_MS, NOW_MS + 60)
    assert store.state.read().degraded_told_epoch_ms is None


def test_part_of_no_degraded_mode_is_not_taken(store: Store) -> None:
    assert not store.state.tell_degraded(NOW_MS, NOW_MS, NOW_MS + 60)
    assert store.state.read() == ServiceState()


def test_next_degraded_mode_is_not_told_of_before_it_is(store: Store) -> None:
    store.state.set_degraded(NOW_MS)
    store.state.tell_degraded(NOW_MS, NOW_MS, NOW_MS + 60)
    store.state.set_degraded(None)
    ended = store.state.read()

    store.state.set_degraded(NOW_MS + 30)

    assert ended == ServiceState()
    assert store.state.read().degraded_told_epoch_ms is None


def test_part_of_degraded_mode_whose_reply_is_lost_is_ours(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    dynamodb_store.state.set_degraded(NOW_MS)
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])

    assert store_on(client, tables, clock).state.tell_degraded(NOW_MS, NOW_MS, NOW_MS + 60)
    assert client.writes == 2
    assert not dynamodb_store.state.tell_degraded(NOW_MS, NOW_MS, NOW_MS + 60)


# ------------------------------------------------------------------------------------ pauses


def test_paused_tenants_are_read_and_resumed_one_by_one(store: Store) -> None:
    names = ["acme", "acme.de", "9-to.5_x", "a" * 63]
    for name in names:
        assert store.state.pause_tenant(name)
    both = store.state.read().paused_tenants

    store.state.resume_tenant("acme")
    store.clock.advance(COPY_LIVES_MS)

    assert both == set(names)
    assert store.state.read().paused_tenants == set(names[1:])


def test_who_pauses_or_resumes_a_tenant_is_told_so_and_nobody_else(store: Store) -> None:
    state = store.state

    outcomes = [
        change("acme")
        for change in (
            state.resume_tenant,
            state.pause_tenant,
            state.pause_tenant,
            state.resume_tenant,
            state.resume_tenant,
            state.pause_tenant,
        )
    ]

    assert outcomes == [False, True, False, True, False, True]
    assert state.read().paused_tenants == {"acme"}


def test_paused_lanes_are_told_apart_from_tenants_of_their_name(store: Store) -> None:
    state = store.state
    changes = (state.resume_lane, state.pause_lane, state.pause_lane, state.resume_lane)

    outcomes = [change("batch") for change in changes]
    state.pause_lane("interactive")
    state.pause_tenant("batch")

    assert outcomes == [False, True, False, True]
    assert state.read().paused_lanes == {"interactive"}
    assert state.read().paused_tenants == {"batch"}


def test_last_tenant_that_is_resumed_leaves_nothing(store: Store) -> None:
    store.state.pause_tenant("acme")
    store.state.resume_tenant("acme")

    assert store.state.read() == ServiceState()


def test_pauses_leave_epochs_and_degraded_mode_alone(store: Store) -> None:
    store.state.pause_tenant("acme")
    store.state.invalidate("tenant:acme", now_ms=NOW_MS)
    store.state.set_degraded(NOW_MS)
    store.state.pause_tenant("globex")
    store.state.resume_tenant("globex")

    assert store.state.read() == ServiceState({"tenant:acme": NOW_MS}, NOW_MS, frozenset({"acme"}))


def test_pause_is_seen_by_others_when_their_copy_has_lived(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store
) -> None:
    other = store_on(dynamodb, tables, clock).state
    other.read()
    dynamodb_store.state.pause_tenant("acme")

    assert other.read().paused_tenants == frozenset()
    clock.advance(COPY_LIVES_MS)
    assert other.read().paused_tenants == {"acme"}


@pytest.mark.parametrize("paused", [False, True], ids=["pause", "resume"])
def test_pause_or_resume_of_a_tenant_whose_reply_is_lost_is_ours(
    dynamodb: Any, tables: Tables, clock: FakeClock, dynamodb_store: Store, *, paused: bool
) -> None:
    if paused:
        dynamodb_store.state.pause_tenant("acme")
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])
    state = store_on(client, tables, clock).state

    changed = state.resume_tenant("acme") if paused else state.pause_tenant("acme")

    assert changed
    assert client.writes == 2
    assert ("acme" in dynamodb_store.state.read().paused_tenants) is not paused
