"""`sluiceway catalogue`: check, push, show, history and rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sluiceway.domain.backlog import Backlog, Group, Waits
from sluiceway_cli.configurations import OvertakenError
from sluiceway_cli.main import cli
from sluiceway_cli.rollouts import EFFECTIVE_WITHIN_S

from tests.fakes.examples import NOW_MS, a_job
from tests.unit.configuration_desk import Desk, make_desk, states
from tests.unit.desk import run, stand_at, told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.in_memory import FakeClock

VENDOR = '[vendors.v]\nbase_url = "https://v.example/v1"\napi_key_secret = "sluiceway/vendors/v"\n'
SIMULATOR = "http://127.0.0.1:7/v1"


def model(name: str, **members: Any) -> str:
    told = "".join(f"{key} = {value}\n" for key, value in members.items())
    return f'[models.{name}]\nvendor = "v"\nvendor_model = "{name}-1"\nversion = "1"\n{told}'


FIRST = f"# ours\n{VENDOR}{model('chat', requests_per_minute=600)}"
SECOND = f"# ours\n{VENDOR}{model('chat', requests_per_minute=300)}"
THIRD = f"{VENDOR}{model('chat', requests_per_minute=100)}"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    return at_desk(monkeypatch, make_desk(clock))


def at_desk(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> Desk:
    monkeypatch.setenv("LOGNAME", "ann")
    stand_at(monkeypatch, desk, "catalogue_commands")
    return desk


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "c.toml"
    made.write_text(SECOND)
    return made


# ------------------------------------------------------------------------------------ check


def test_check_says_what_a_right_catalogue_holds(desk: Desk, file: Path) -> None:
    assert told("catalogue", "check", str(file)) == {
        "valid": True,
        "faults": [],
        "warnings": [],
        "lease_s": 100.0,
        "vendors": 1,
        "models": 1,
        "tenants": 0,
    }
    assert "vendors 1, models 1, tenants 0." in run("catalogue", "check", str(file)).stdout
    assert states(desk.catalogue_profile) == []


@pytest.mark.usefixtures("desk")
def test_check_names_every_fault_at_once(file: Path) -> None:
    file.write_text(FIRST + "burst = 0\nmax_attempts = 99\nwheels = 4\n")

    result = run("catalogue", "check", str(file))

    assert result.exit_code == 1
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        *("models.chat.burst", "models.chat.max_attempts", "models.chat.wheels")
    ]


@pytest.mark.usefixtures("desk")
def test_check_compares_times_with_the_lease_of_the_stack(file: Path) -> None:
    file.write_text(FIRST + "timeout_s = { max = 71 }\n")

    shown = told("catalogue", "check", str(file), code=1)

    assert "a call may take 70 s" in shown["faults"][0]


def test_check_goes_without_a_stack_and_without_the_lease(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    desk.workers.lease_s = None
    unread = told("catalogue", "check", str(file))

    def nothing_here(_: object) -> Desk:
        raise ValueError("no stack")

    monkeypatch.setattr("sluiceway_cli.catalogue_commands.find_target", nothing_here)
    alone = run("catalogue", "check", str(file))

    assert unread["valid"]
    assert "lease can't be read" in unread["warnings"][0]
    assert alone.exit_code == 0
    assert "not compared" in alone.stdout
    assert run("--stack", "typo", "catalogue", "check", str(file)).exit_code == 1


def test_mark_of_byte_order_is_left_out(desk: Desk, file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + SECOND.encode())

    pushed = told("catalogue", "push", str(file), "--now", "--yes")

    assert desk.catalogue_profile.text(pushed["version"]) == SECOND


@pytest.mark.parametrize(
    ("text", "warning"),
    [("", "no model"), (f"{SECOND}# {'x' * 1_200_000}\n", "1.2 MB, and AppConfig takes 1 MB")],
    ids=["empty", "large"],
)
@pytest.mark.usefixtures("desk")
def test_check_warns_of_what_is_hardly_meant(file: Path, text: str, warning: str) -> None:
    file.write_text(text)

    shown = told("catalogue", "check", str(file))

    assert shown["valid"]
    assert warning in shown["warnings"][0]


@pytest.mark.parametrize("content", [b"\xff", b"[models", b"[models.x]\n"])
@pytest.mark.usefixtures("desk")
def test_file_that_is_no_catalogue_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    assert run("catalogue", "check", str(file)).exit_code == 1
    assert run("catalogue", "push", str(file), "--yes").exit_code == 1


@pytest.mark.parametrize(
    ("secret", "refusal", "warning"),
    [
        ("sluiceway/vendors/w", "ResourceNotFoundException", "isn't there"),
        ("sluiceway/vendors/w", "AccessDeniedException", "can't be seen: AccessDenied"),
        ("other/w", "ResourceNotFoundException", "may not read"),
    ],
)
def test_secret_that_the_workers_will_miss_is_told(
    desk: Desk, file: Path, secret: str, refusal: str, warning: str
) -> None:
    desk.secrets.refusal = refusal
    file.write_text(FIRST.replace("sluiceway/vendors/v", secret))

    shown = told("catalogue", "check", str(file))

    assert shown["valid"]
    assert [warning in one for one in shown["warnings"]] == [True]


# ------------------------------------------------------------------------------------ push


def test_first_push_brings_the_text_as_it_is_into_force(desk: Desk, file: Path) -> None:
    shown = told("catalogue", "push", str(file), "--now", "--yes")

    assert (shown["pushed"], shown["version"]) == (True, 1)
    assert [one["member"] for one in shown["changes"]] == ["vendors.v", "models.chat"]
    assert shown["deployment"]["state"] == "COMPLETE"
    assert desk.catalogue_profile.running_text() == SECOND
    assert desk.done == [("catalogue.push", "version:1")]
    assert desk.told == [("CatalogueChanged", "version:1")]


def test_push_tells_its_changes_by_member_and_goes_gradually(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, FIRST)

    result = run("catalogue", "push", str(file), "--yes")

    assert result.exit_code == 0
    out = result.stdout.splitlines()
    assert out[:2] == ["models.chat.requests_per_minute: 600 -> 300", "1 change."]
    assert out[2] == (
        "Version 2 is on its way: 20 % more of the processes each 2 min, all of them after 10 "
        "min, and it can be stopped for 10 min more."
    )
    assert states(desk.catalogue_profile) == [(2, "DEPLOYING"), (1, "COMPLETE")]
    assert desk.catalogue_profile.running_text() == FIRST
    (notice,) = desk.events.taken
    assert notice.facts == {"gradual": True, "changes": 1}


def test_push_of_what_is_in_force_does_nothing(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, SECOND)

    shown = told("catalogue", "push", str(file))

    assert (shown["pushed"], shown["version"], shown["changes"]) == (False, 1, [])
    assert "in force already" in run("catalogue", "push", str(file)).stdout
    assert (desk.done, desk.told) == ([], [])
    assert states(desk.catalogue_profile) == [(1, "COMPLETE")]


def test_push_of_other_comments_keeps_them(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, SECOND)
    file.write_text("# theirs\n" + SECOND)

    result = run("catalogue", "push", str(file), "--now", "--yes")

    assert "No member changes" in result.stdout
    assert run("catalogue", "show").stdout == "# theirs\n" + SECOND


def test_push_of_very_much_is_told_in_short(desk: Desk, file: Path) -> None:
    tenants = "".join(f"[tenants.t{number}]\nshare = 2\n" for number in range(300))
    desk.deployed(desk.catalogue_profile, SECOND + tenants)

    result = run("catalogue", "push", str(file), "--now", "--yes")

    assert "and 250 more\n300 changes." in result.stdout
    assert "and 250 more like these" in result.stderr
    assert len(result.output.splitlines()) < 120


def test_bad_push_leaves_what_is_in_force(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, FIRST)
    file.write_text(FIRST + "timeout_s = { max = 300 }\nmax_attempts = 3\n")

    shown = told("catalogue", "push", str(file), "--yes", code=1)

    assert (shown["valid"], len(shown["faults"])) == (False, 1)
    assert "timeout_s.max" in run("catalogue", "push", str(file), "--yes").stderr
    assert desk.catalogue_profile.running_text() == FIRST
    assert (states(desk.catalogue_profile), desk.done) == ([(1, "COMPLETE")], [])


def test_push_that_nobody_confirms_does_nothing(desk: Desk, file: Path) -> None:
    result = run("catalogue", "push", str(file))

    assert result.exit_code == 1
    assert "models.chat: added" in result.stdout
    assert "say --yes" in result.stderr
    assert (states(desk.catalogue_profile), desk.done) == ([], [])


def test_push_waits_for_none_that_is_on_its_way(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, FIRST, gradual=True)

    result = run("catalogue", "push", str(file), "--yes")

    assert result.exit_code == 1
    assert "version 1 is on its way" in result.stderr
    assert (states(desk.catalogue_profile), desk.done) == ([(1, "DEPLOYING")], [])


@pytest.mark.parametrize("operation", ["CreateHostedConfigurationVersion", "StartDeployment"])
def test_push_that_another_overtook_loses_nothing(desk: Desk, file: Path, operation: str) -> None:
    profile = desk.catalogue_profile
    desk.deployed(profile, FIRST)
    desk.meanwhile(operation, lambda: desk.deployed(profile, THIRD))

    result = run("catalogue", "push", str(file), "--now", "--yes")

    assert result.exit_code == 1
    assert "somebody else" in result.stderr
    assert profile.running_text() == THIRD
    assert desk.done == []


def test_push_after_a_rollback_that_it_has_not_seen_is_refused(desk: Desk) -> None:
    profile = desk.catalogue_profile
    last = desk.deployed(profile, FIRST, SECOND)
    seen = profile.history()
    profile.take_back(last, pause=desk.pause)

    with pytest.raises(OvertakenError):
        profile.push(THIRD, desk.rollout_id(gradual=False), seen=seen, description="")

    assert profile.running_text() == FIRST


def test_push_that_an_alarm_takes_back_at_once_is_told(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, FIRST)
    desk.takes_back(desk.catalogue_profile)

    result = run("catalogue", "push", str(file), "--now", "--yes")

    assert result.exit_code == 1
    assert "took version 2 back at once" in result.stderr
    assert desk.done == []


def test_removal_says_what_becomes_of_open_jobs_and_tenants(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, SECOND + model("old") + "[tenants.acme]\nshare = 2\n")
    for number, name in enumerate(["old", "old", "chat", "old"]):
        job = a_job(number, model=name)
        desk.world.jobs[job.tenant, job.job_id] = job

    shown = told("catalogue", "push", str(file), "--yes")

    removed = [(one["member"], one["after"]) for one in shown["changes"]]
    assert removed == [("models.old", None), ("tenants.acme", None)]
    assert "its open jobs (3 now) fail" in shown["warnings"][0]
    assert "tenants.default" in shown["warnings"][1]


def test_removal_tells_about_how_many_jobs_are_open_of_a_long_backlog(
    desk: Desk, file: Path
) -> None:
    desk.deployed(desk.catalogue_profile, SECOND + model("old") + model("rare"))
    groups = (Group("interactive", "old", "acme", waiting=6_000),)
    desk.backlogs.write(Backlog(NOW_MS, groups, waits={"interactive": Waits()}))

    shown = told("catalogue", "push", str(file), "--yes")

    assert "its open jobs (about 6000 now) fail" in shown["warnings"][0]
    assert "its open jobs (about 0 now) fail" in shown["warnings"][1]


def test_what_is_in_force_and_cannot_be_read_is_replaced(desk: Desk, file: Path) -> None:
    desk.deployed(desk.catalogue_profile, "[models")

    shown = told("catalogue", "push", str(file), "--now", "--yes")

    assert "can't be read" in shown["warnings"][0]
    assert desk.catalogue_profile.running_text() == SECOND


def test_notice_that_is_not_taken_undoes_nothing(desk: Desk, file: Path) -> None:
    desk.events.refusals.append(1)

    result = run("catalogue", "push", str(file), "--now", "--yes")

    assert result.exit_code == 0
    assert "Nobody was notified" in result.stderr
    assert desk.done == [("catalogue.push", "version:1")]


# ------------------------------------------------------------------------------------ local


def test_local_stack_calls_its_simulator(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, file: Path
) -> None:
    desk = at_desk(monkeypatch, make_desk(clock, local=True, vendor_url=SIMULATOR))

    result = run("catalogue", "push", str(file), "--now", "--yes")

    text = desk.catalogue_profile.running_text()
    assert f"replaced by the simulator's: {SIMULATOR}" in result.stdout
    assert text == SECOND.replace("https://v.example/v1", SIMULATOR)
    assert told("catalogue", "push", str(file))["pushed"] is False


@pytest.mark.parametrize("given", ["", "base_url = 'https://v.example'"])
def test_local_stack_calls_nobody_else(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, file: Path, given: str
) -> None:
    desk = at_desk(monkeypatch, make_desk(clock, local=True, vendor_url=SIMULATOR))
    file.write_text(f"[vendors.v]\n{given}\n")

    result = run("catalogue", "push", str(file), "--yes")

    assert "vendors.v.base_url" in result.stderr
    assert states(desk.catalogue_profile) == []


# ------------------------------------------------------------------------------------ looks


def test_show_prints_what_is_in_force_or_a_version(desk: Desk) -> None:
    packaged = run("catalogue", "show").stdout
    desk.deployed(desk.catalogue_profile, FIRST, SECOND)
    desk.deployed(desk.catalogue_profile, THIRD, gradual=True)

    assert packaged.startswith("# The packaged catalogue")
    shown = run("catalogue", "show")
    assert shown.stdout == SECOND
    assert shown.stderr == "Version 3 is on its way; this is 2.\n"
    assert run("catalogue", "show", "--version", "1").stdout == FIRST
    assert told("catalogue", "show") == {"version": 2, "text": SECOND}
    assert "no version 9" in run("catalogue", "show", "--version", "9").stderr


def test_history_tells_versions_newest_first_and_by_whom(desk: Desk) -> None:
    desk.deployed(desk.catalogue_profile, FIRST, SECOND)
    desk.deployed(desk.catalogue_profile, THIRD, gradual=True)

    shown = told("catalogue", "history")

    rows = [(one["version"], one["state"], one["by"]) for one in shown["deployments"]]
    assert rows == [
        (3, "DEPLOYING", "user:bob"),
        (2, "COMPLETE", "user:bob"),
        (1, "COMPLETE", "user:bob"),
    ]
    assert (shown["in_force"], shown["complete"]) == (2, True)
    out = run("catalogue", "history", "--limit", "2")
    assert [line.endswith("in force") for line in out.stdout.splitlines()] == [False, True]
    assert "There are more" in out.stderr


# ------------------------------------------------------------------------------------ rollback


def test_rollback_stops_what_is_on_its_way(desk: Desk) -> None:
    desk.deployed(desk.catalogue_profile, FIRST)
    desk.deployed(desk.catalogue_profile, SECOND, gradual=True)

    result = run("catalogue", "rollback", "--yes")

    assert f"Version 1 is in force: within {EFFECTIVE_WITHIN_S} s" in result.stdout
    assert states(desk.catalogue_profile) == [(2, "ROLLED_BACK"), (1, "COMPLETE")]
    assert desk.done == [("catalogue.rollback", "version:1")]
    assert desk.told == [("CatalogueChanged", "version:1")]


def test_rollback_of_the_first_push_leaves_what_is_packaged(desk: Desk) -> None:
    desk.deployed(desk.catalogue_profile, FIRST, gradual=True)

    assert told("catalogue", "rollback", "--yes")["version"] == 0
    assert "What is packaged is in force" in run("catalogue", "history").stdout


def test_rollbacks_go_further_back_each_time(desk: Desk) -> None:
    profile = desk.catalogue_profile
    desk.deployed(profile, FIRST, SECOND, THIRD)

    result = run("catalogue", "rollback", "--yes")
    second = profile.running_text()
    run("catalogue", "rollback", "--yes")
    first = profile.running_text()
    none_left = run("catalogue", "rollback", "--yes")

    assert "models.chat.requests_per_minute: 100 -> 300" in result.stdout
    assert (second, first) == (SECOND, FIRST)
    assert "no version before" in none_left.stderr
    assert desk.done == [("catalogue.rollback", "version:2"), ("catalogue.rollback", "version:1")]


def test_rollback_long_after_the_push_deploys_the_version_anew(
    desk: Desk, clock: FakeClock
) -> None:
    desk.deployed(desk.catalogue_profile, FIRST, SECOND)
    clock.advance(s=10**9)

    run("catalogue", "rollback", "--yes")

    assert states(desk.catalogue_profile) == [(1, "COMPLETE"), (2, "COMPLETE"), (1, "COMPLETE")]


def test_rollback_goes_to_any_version_also_while_another_is_on_its_way(desk: Desk) -> None:
    profile = desk.catalogue_profile
    desk.deployed(profile, FIRST, SECOND)
    desk.deployed(profile, THIRD, gradual=True)

    told("catalogue", "rollback", "--version", "1", "--yes")
    forward = told("catalogue", "rollback", "--version", "3", "--yes")

    assert forward["version"] == 3
    assert profile.running_text() == THIRD
    assert "version 3 is in force" in run("catalogue", "rollback", "--version", "3").stderr


def test_rollback_to_what_is_wrong_by_now_is_refused(desk: Desk) -> None:
    desk.deployed(desk.catalogue_profile, FIRST + "timeout_s = { max = 80 }\n", SECOND)

    result = run("catalogue", "rollback", "--yes")

    assert result.exit_code == 1
    assert "timeout_s.max" in result.stderr
    assert desk.catalogue_profile.running_text() == SECOND


def test_rollback_that_nobody_confirms_does_nothing(desk: Desk) -> None:
    desk.deployed(desk.catalogue_profile, FIRST, SECOND)
    asked = run("catalogue", "rollback")
    desk.deployed(desk.catalogue_profile, THIRD, gradual=True)

    assert "say --yes" in asked.stderr
    assert "say --yes" in run("catalogue", "rollback").stderr
    assert desk.catalogue_profile.history().under_way is not None
    assert desk.done == []


def test_rollback_before_the_first_push_has_nothing_to_do(desk: Desk) -> None:
    assert "no version before" in run("catalogue", "rollback", "--yes").stderr
    assert desk.done == []


# ------------------------------------------------------------------------------------ a terminal


@pytest.mark.parametrize(("answer", "pushed"), [("y\n", True), ("n\n", False), ("", False)])
def test_push_on_a_terminal_asks_after_it_told_the_changes(
    desk: Desk, file: Path, monkeypatch: pytest.MonkeyPatch, answer: str, *, pushed: bool
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)

    result = CliRunner().invoke(cli, ["catalogue", "push", str(file), "--now"], input=answer)

    assert result.stdout.index("2 changes.") < result.stdout.index("Push it?")
    assert (result.exit_code == 0) is pushed
    assert ("Aborted!" in result.stderr) is not pushed
    assert "Error" not in result.stderr
    assert bool(states(desk.catalogue_profile)) is pushed
