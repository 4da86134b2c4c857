"""What is switched off is refused, with words for whom it is off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.domain import flags
from sluiceway.domain.errors import FeatureDisabledError, ForbiddenError, ModelNotFoundError
from sluiceway.domain.freshness import Freshness
from sluiceway.usecases.features import require_feature

from tests.fakes.in_memory import NOW_MS, FakeFlags
from tests.unit.gateway import Gateway
from tests.unit.samples import DAY_MS, written

if TYPE_CHECKING:
    from sluiceway.ports import Flags

CALLBACK = "https://hooks.example/"


def switched(*changes: tuple[str, bool, str]) -> Flags:
    """Features on or off, one after the other, for all or for a subject."""
    document: flags.Document = {}
    for feature, on, subject in changes:
        document = flags.switched(document, feature, on=on, subject=subject)
    return parse_flags(json.dumps(document))


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


# ------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("submit", False, "")], "New jobs are switched off."),
        ([("submit", False, "model:m")], "The model m is switched off."),
        ([("submit", False, "tenant:t")], "New jobs are switched off for this tenant."),
        (
            [("submit", False, ""), ("submit", True, "tenant:other")],
            "New jobs are switched off.",
        ),
        (
            [("submit", False, "tenant:t"), ("submit", False, "model:m")],
            "New jobs are switched off for this tenant.",
        ),
        ([("bypass", False, "")], "The cache modes refresh and bypass are switched off."),
        (
            [("bypass", False, "model:m")],
            "The cache modes refresh and bypass are switched off for the model m.",
        ),
        ([("batches", False, "tenant:t")], "Batches are switched off for this tenant."),
        ([("openai", False, "")], "The calls in OpenAI's form are switched off."),
        ([("webhooks", False, "tenant:t")], "Webhooks are switched off for this tenant."),
    ],
    ids=str,
)
def test_refusal_says_what_is_off_for_whom(changes: Any, told: str) -> None:
    with pytest.raises(FeatureDisabledError) as refused:
        require_feature(changes[0][0], flags=switched(*changes), tenant="t", model="m")

    assert str(refused.value) == told


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [("submit", False, "model:other")],
        [("submit", False, "tenant:other")],
        [("submit", False, ""), ("submit", True, "tenant:t")],
        [("submit", False, ""), ("submit", True, "model:m")],
        [("bypass", False, "")],
    ],
    ids=str,
)
def test_what_is_on_for_who_asks_is_not_refused(changes: Any) -> None:
    require_feature("submit", flags=switched(*changes), tenant="t", model="m")


# ------------------------------------------------------------------ submit


@pytest.mark.parametrize("subject", ["", "model:demo-chat", "tenant:acme"])
def test_new_jobs_that_are_off_leave_nothing_behind(gateway: Gateway, subject: str) -> None:
    gateway.flags = switched(("submit", False, subject))

    for ask in (gateway.submit, gateway.dry_run):
        with pytest.raises(FeatureDisabledError):
            ask()

    assert written(gateway.world) == {}
    assert gateway.world.minutes == {}
    assert gateway.queue.sends == []


def test_answer_in_the_cache_is_not_given_while_its_model_is_off(gateway: Gateway) -> None:
    gateway.store(gateway.accept())
    gateway.hit()

    gateway.flags = switched(("submit", False, "model:demo-chat"))

    with pytest.raises(FeatureDisabledError):
        gateway.submit()


@pytest.mark.parametrize("subject", ["model:demo-chat", "tenant:acme"])
def test_other_models_and_tenants_go_on(gateway: Gateway, subject: str) -> None:
    gateway.flags = switched(("submit", False, subject))

    gateway.accept("globex", model="demo-heavy")


def test_open_job_is_joined_no_more_while_new_jobs_are_off(gateway: Gateway) -> None:
    job = gateway.accept()
    gateway.flags = switched(("submit", False, ""))

    with pytest.raises(FeatureDisabledError):
        gateway.submit()

    assert gateway.fetch(job.job_id).found == job


def test_unknown_model_is_unknown_whatever_is_off(gateway: Gateway) -> None:
    gateway.flags = switched(("submit", False, ""))

    with pytest.raises(ModelNotFoundError):
        gateway.submit(model="no-such-model")


def test_hit_of_a_model_that_is_off_is_still_read_by_its_id(gateway: Gateway) -> None:
    entry = gateway.store(gateway.accept())
    gateway.flags = switched(("submit", False, "model:demo-chat"))

    assert gateway.fetch(f"hit_{entry.cache_key}").found == entry


# ------------------------------------------------------------------ bypass


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
@pytest.mark.parametrize("subject", ["", "model:demo-chat", "tenant:acme"])
def test_modes_past_the_cache_are_refused_while_they_are_off(
    gateway: Gateway, mode: str, subject: str
) -> None:
    gateway.flags = switched(("bypass", False, subject))

    with pytest.raises(FeatureDisabledError):
        gateway.submit(cache={"mode": mode})

    if subject:
        gateway.accept("globex", model="demo-heavy", cache={"mode": mode})


@pytest.mark.parametrize("mode", ["refresh", "bypass"])
def test_key_without_the_scope_is_told_so_first(gateway: Gateway, mode: str) -> None:
    gateway.flags = switched(("bypass", False, ""))

    with pytest.raises(ForbiddenError):
        gateway.submit(scopes="submit", cache={"mode": mode})


@pytest.mark.parametrize("cache", [{}, {"mode": "use"}, {"max_age_s": 0}, {"no_store": True}])
def test_other_wishes_go_on_without_the_modes_past_the_cache(
    gateway: Gateway, cache: dict[str, Any]
) -> None:
    gateway.flags = switched(("bypass", False, ""))

    gateway.accept(cache=cache)


# ------------------------------------------------------------------ webhooks


@pytest.mark.parametrize("subject", ["", "tenant:acme"])
def test_callback_is_refused_while_webhooks_are_off(gateway: Gateway, subject: str) -> None:
    gateway.flags = switched(("webhooks", False, subject))

    for ask in (gateway.submit, gateway.dry_run):
        with pytest.raises(FeatureDisabledError):
            ask(callback_url=CALLBACK)

    assert written(gateway.world) == {}
    gateway.accept()


# ------------------------------------------------------------------ refresh


@pytest.mark.parametrize("model", ["demo-chat", "demo-early"])
@pytest.mark.parametrize("subject", ["", "model"])
def test_entry_is_served_without_a_refresh_while_that_is_off(
    gateway: Gateway, model: str, subject: str
) -> None:
    gateway.rand = 0.9  # this reader looks 2.3 s ahead, where the model has early refreshes
    gateway.store(
        gateway.accept(model=model),
        upstream_latency_ms=1_000,
        stored_at_epoch_ms=NOW_MS - 60_000,
        soft_expires_at_epoch_ms=NOW_MS - 1 if model == "demo-chat" else NOW_MS + 2_000,
    )
    gateway.flags = switched(("refresh", False, f"model:{model}" if subject else ""))

    quiet = gateway.hit(model=model)
    gateway.flags = FakeFlags()
    loud = gateway.hit(model=model)

    wanted = Freshness.STALE if model == "demo-chat" else Freshness.FRESH
    assert (quiet.freshness, quiet.refresh) == (wanted, None)
    assert loud.refresh is not None


def test_refresh_that_is_off_for_another_model_goes_on(gateway: Gateway) -> None:
    gateway.store(gateway.accept(), soft_expires_at_epoch_ms=NOW_MS - 1)
    gateway.flags = switched(("refresh", False, "model:demo-heavy"))

    assert gateway.hit().refresh is not None


# ------------------------------------------------------------------ degraded


@pytest.mark.parametrize("mode_on", [True, False])
@pytest.mark.parametrize("flag_on", [True, False])
def test_young_job_has_a_fallback_only_when_degraded_mode_is_switched_on(
    gateway: Gateway, *, flag_on: bool, mode_on: bool
) -> None:
    job = gateway.accept()
    gateway.store(job, hard_expires_at_epoch_ms=NOW_MS - 1, kept_until_epoch_ms=NOW_MS + DAY_MS)
    gateway.flags = FakeFlags(degraded=flag_on)
    gateway.state.set_degraded(NOW_MS if mode_on else None)

    fetched = gateway.fetch(job.job_id)

    assert (fetched.fallback is not None) is (flag_on and mode_on)
