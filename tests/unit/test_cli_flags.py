"""`sluiceway flags`: what is on, and switching it for all, a model or a tenant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.appconfig import KEPT_MS
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.domain import flags
from sluiceway_cli.rollouts import EFFECTIVE_WITHIN_S

from tests.fakes.examples import a_partner_key
from tests.unit.configuration_desk import Desk, make_desk, states
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from tests.fakes.in_memory import FakeClock

CATALOGUE = '[vendors.v]\n[models.chat]\nvendor = "v"\nvendor_model = "c"\nversion = "1"\n'
USUAL = [{"feature": feature, "on": on, "exceptions": {}} for feature, on in flags.FEATURES.items()]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    monkeypatch.setenv("LOGNAME", "ann")
    made = make_desk(clock)
    stand_at(monkeypatch, made, "flags_commands")
    made.deployed(made.catalogue_profile, CATALOGUE)
    made.partner_keys().add(a_partner_key())
    return made


def document(desk: Desk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desk.flags_profile.running_text() or "{}")
    return found


# ------------------------------------------------------------------------------------ set


def test_switch_beside_a_feature_of_newer_code_leaves_that_out_and_says_so(desk: Desk) -> None:
    newer = {"teleport": {"default": True}, "bypass": {"default": False}}
    desk.deployed(desk.flags_profile, json.dumps(newer))

    done = run("flags", "set", "submit", "off")

    assert done.exit_code == 0
    assert "teleport: this version has no such feature" in done.stderr
    assert document(desk) == {"bypass": {"default": False}, "submit": {"default": False}}
    assert desk.flags().on("bypass") is False


@pytest.mark.parametrize("feature", flags.FEATURES)
def test_feature_is_switched_for_all_and_back(desk: Desk, feature: str) -> None:
    usual = flags.FEATURES[feature]
    other, back = ("off", "on") if usual else ("on", "off")

    switched = told("flags", "set", feature, other)
    between = parse_flags(desk.flags_profile.running_text() or "").on(feature)
    told("flags", "set", feature, back)

    assert switched["changes"] == [{"feature": feature, "before": back, "after": other}]
    assert (switched["changed"], switched["deployment"]["state"]) == (True, "COMPLETE")
    assert between is not usual
    assert document(desk) == {}
    assert desk.done == [(f"flags.{state}", f"flag:{feature}") for state in (other, back)]
    assert desk.told == [("FlagsChanged", f"flag:{feature}")] * 2


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (("submit", "off", "--model", "chat"), "model:chat"),
        (("submit", "off", "--tenant", "acme"), "tenant:acme"),
        (("model:chat", "off"), "model:chat"),
        (("tenant:acme", "off"), "tenant:acme"),
    ],
)
def test_submit_is_switched_off_for_one(desk: Desk, words: tuple[str, ...], subject: str) -> None:
    result = run("flags", "set", *words)

    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        f"submit: on -> on, but off for {subject}",
        f"Version 1 is in force: within {EFFECTIVE_WITHIN_S} s everywhere.",
    ]
    kind, name = subject.split(":")
    assert flags.exceptions(document(desk), "submit") == {kind: frozenset({name})}
    assert desk.done == [("flags.off", f"flag:submit:{subject}")]
    (notice,) = desk.events.taken
    assert notice.facts == {"on": False, "version": 1, "gradual": False}


def test_time_to_effect_is_that_of_the_processes_copies() -> None:
    assert KEPT_MS / 1000 < EFFECTIVE_WITHIN_S <= 35


def test_switch_that_is_so_already_does_nothing(desk: Desk) -> None:
    result = run("flags", "set", "submit", "on")

    assert "is so already" in result.stdout
    assert (states(desk.flags_profile), desk.done, desk.told) == ([], [], [])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("sumbit", "off"), 1, "there is no feature 'sumbit'; there are: submit, bypass"),
        (("submit", "off", "--model", "caht"), 1, "did you mean chat?"),
        (("model:caht", "off"), 1, "did you mean chat?"),
        (("degraded", "on", "--model", "chat"), 1, "can't be switched for one model"),
        (("lane:batch", "off"), 2, "neither model:NAME nor tenant:NAME"),
        (("tenant:", "off"), 2, "neither model:NAME nor tenant:NAME"),
        (("model:chat", "off", "--tenant", "acme"), 2, "for one model, for one tenant or for all"),
        (("submit", "maybe"), 2, "maybe"),
    ],
)
def test_switch_that_would_do_nothing_is_refused(
    desk: Desk, words: tuple[str, ...], code: int, text: str
) -> None:
    result = run("flags", "set", *words)

    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert (states(desk.flags_profile), desk.done) == ([], [])


@pytest.mark.usefixtures("desk")
def test_tenant_without_a_key_is_switched_off_with_a_warning() -> None:
    result = run("flags", "set", "tenant:amce", "off")

    assert result.exit_code == 0
    assert "No API key is of this tenant" in result.stderr


def test_model_that_left_the_catalogue_is_switched_on_again(desk: Desk) -> None:
    run("flags", "set", "model:chat", "off")
    desk.deployed(desk.catalogue_profile, "[service]\n")

    assert run("flags", "set", "model:chat", "on").exit_code == 0
    assert document(desk) == {}


# ------------------------------------------------------------------------------------ gradual


def test_gradual_switch_is_on_its_way(desk: Desk) -> None:
    result = run("flags", "set", "bypass", "off", "--gradual")
    blocked = run("flags", "set", "batches", "off")

    assert "Version 1 is on its way: 20 % more" in result.stdout
    assert blocked.exit_code == 1
    assert "--replace" in blocked.stderr
    assert states(desk.flags_profile) == [(1, "DEPLOYING")]


def test_switch_that_replaces_keeps_what_was_on_its_way(desk: Desk) -> None:
    run("flags", "set", "bypass", "off", "--gradual")

    shown = told("flags", "set", "batches", "off", "--replace")

    assert [one["feature"] for one in shown["changes"]] == ["bypass", "batches"]
    assert document(desk) == {"bypass": {"default": False}, "batches": {"default": False}}
    assert states(desk.flags_profile) == [(2, "COMPLETE"), (1, "ROLLED_BACK")]


def test_switch_back_of_what_is_on_its_way_stops_it(desk: Desk) -> None:
    run("flags", "set", "bypass", "off", "--gradual")

    result = run("flags", "set", "bypass", "on", "--replace")

    assert "Version 1 was stopped" in result.stdout
    assert states(desk.flags_profile) == [(1, "ROLLED_BACK")]
    assert desk.done == [("flags.off", "flag:bypass"), ("flags.on", "flag:bypass")]


@pytest.mark.parametrize("already", [0, 1])
@pytest.mark.parametrize(
    "operation", ["ListDeployments", "CreateHostedConfigurationVersion", "StartDeployment"]
)
def test_two_operators_at_once_lose_no_switch(desk: Desk, operation: str, already: int) -> None:
    theirs = json.dumps(flags.switched({}, "openai", on=False))
    desk.deployed(desk.catalogue_profile, CATALOGUE)
    for _ in range(already):
        desk.deployed(desk.flags_profile, "{}")
    desk.meanwhile(operation, lambda: desk.deployed(desk.flags_profile, theirs))

    result = run("flags", "set", "bypass", "off")
    again = run("flags", "set", "bypass", "off")

    assert ("somebody else" in result.stderr) is (operation != "ListDeployments")
    assert again.exit_code == 0
    assert document(desk) == {"bypass": {"default": False}, "openai": {"default": False}}


# ------------------------------------------------------------------------------------ show


@pytest.mark.usefixtures("desk")
def test_show_tells_each_feature_and_what_is_on_its_way() -> None:
    before = told("flags", "show")
    run("flags", "set", "submit", "off", "--model", "chat")
    run("flags", "set", "tenant:acme", "off")
    run("flags", "set", "degraded", "on", "--gradual")

    shown = told("flags", "show")

    assert before == {"version": 0, "features": USUAL, "under_way": None}
    submit, *others = shown["features"]
    assert submit == {
        "feature": "submit",
        "on": True,
        "exceptions": {"model": ["chat"], "tenant": ["acme"]},
    }
    assert others == USUAL[1:]
    assert (shown["version"], shown["under_way"]["version"]) == (2, 3)
    assert shown["under_way"]["by"] == "user:ann"
    lines = run("flags", "show").stdout.splitlines()
    assert lines[0].split("  ")[0] == "submit"
    assert "on, but off for model:chat tenant:acme  *" in lines[0]
    assert lines[-3] == "Version 2 is in force."
    assert lines[-2].startswith("Version 3 is on its way: DEPLOYING")
    assert lines[-1] == "degraded: off -> on"
