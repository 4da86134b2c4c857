"""The catalogue and the flags as a process reads them, and how a switch changes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sluiceway.adapters.appconfig import KEPT_MS, AppConfigReader
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.bootstrap import Live
from sluiceway.domain import flags
from sluiceway.domain.errors import ConfigurationError, StoreBusyError

from tests.fakes.appconfig import FakeAppConfig
from tests.fakes.in_memory import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

UNREACHABLE = EndpointConnectionError(endpoint_url="https://appconfigdata.example")
GONE = ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}, "Any")


def parse_word(text: str) -> str:
    if " " in text:
        raise ConfigurationError(("one word",))
    return text


@dataclass
class Reader:
    """A reader of words, and the AppConfig that it reads."""

    session: boto3.Session = field(default_factory=lambda: boto3.Session(region_name="us-east-1"))
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The kinds of clients, one each time."""
    parse: Callable[[str], str] = parse_word

    def __post_init__(self) -> None:
        self.appconfig = FakeAppConfig(self.session)
        self.read = AppConfigReader(
            lambda: self.client("patient"),
            "application",
            "catalogue",
            hasty=lambda: self.client("hasty"),
            parse=self.parse,
            otherwise=lambda: "packaged",
            clock=self.clock,
            on_failure=lambda profile, reason: self.told.append((profile, reason)),
        )

    def client(self, kind: str) -> Any:
        self.asked.append(kind)
        return self.session.client("appconfigdata")

    def deploy(self, text: str) -> None:
        self.appconfig.documents["catalogue"] = text

    def later(self) -> str:
        self.clock.advance(KEPT_MS)
        return self.read()


# ------------------------------------------------------------------------------------ the reader


def test_before_the_first_deployment_what_is_packaged_holds() -> None:
    reader = Reader()

    assert reader.read() == "packaged"
    assert reader.told == []


def test_stack_to_which_nothing_was_ever_deployed_is_no_failure() -> None:
    reader = Reader()
    first = reader.read()

    later = [reader.later() for _ in range(3)]

    assert all(value is first for value in later)
    assert reader.told == []
    reader.deploy("first")
    assert reader.later() == "first"


def test_deployment_that_is_gone_is_told_and_leaves_the_last_one_in_force() -> None:
    reader = Reader()
    reader.deploy("first")
    reader.read()
    reader.appconfig.failing = GONE

    assert reader.later() == "first"
    assert reader.told == [("catalogue", "ClientError")]


def test_what_is_deployed_is_in_force_after_half_a_minute() -> None:
    reader = Reader()
    reader.deploy("first")
    before = reader.read()
    reader.deploy("second")

    reader.clock.advance(KEPT_MS - 1)
    still = reader.read()
    reader.clock.advance(1)

    assert (before, still, reader.read()) == ("first", "first", "second")


def test_what_has_not_changed_is_the_same_object_and_asked_for_once() -> None:
    reader = Reader()
    reader.deploy("first")
    first = reader.read()
    calls = len(reader.appconfig.calls)

    again = reader.read()
    later = reader.later()

    assert first is again is later
    assert reader.appconfig.calls[calls:] == ["latest"]


def test_bad_content_leaves_the_last_one_in_force_and_is_told() -> None:
    reader = Reader()
    reader.deploy("first")
    reader.read()

    reader.deploy("two words")

    assert reader.later() == "first"
    assert reader.told == [("catalogue", "invalid")]
    reader.deploy("third")
    assert reader.later() == "third"


def test_bad_content_that_was_taken_back_is_followed_by_what_was_before() -> None:
    reader = Reader()
    reader.deploy("first")
    reader.read()
    reader.deploy("two words")
    reader.later()

    reader.deploy("first")

    assert reader.later() == "first"
    assert len(reader.told) == 1


def test_bad_content_that_was_taken_away_is_forgotten_with_its_session() -> None:
    reader = Reader()
    reader.deploy("two words")
    with pytest.raises(StoreBusyError):
        reader.read()
    reader.appconfig.failing = UNREACHABLE
    with pytest.raises(StoreBusyError):
        reader.read()
    reader.appconfig.failing = None

    del reader.appconfig.documents["catalogue"]

    assert reader.read() == "packaged"


def test_appconfig_that_cant_be_reached_leaves_the_last_one_in_force() -> None:
    reader = Reader()
    reader.deploy("first")
    reader.read()
    reader.appconfig.failing = UNREACHABLE

    kept = reader.later()
    again = reader.read()
    reader.appconfig.failing = None
    reader.deploy("second")

    assert kept == again == "first"
    assert reader.told == [("catalogue", "EndpointConnectionError")]
    assert reader.later() == "second"


def test_only_who_has_nothing_to_go_on_with_waits_for_appconfig() -> None:
    reader = Reader()
    reader.appconfig.failing = UNREACHABLE
    with pytest.raises(StoreBusyError):
        reader.read()
    reader.appconfig.failing = None
    reader.read()
    cold = list(reader.asked)

    reader.later()
    reader.appconfig.failing = UNREACHABLE
    reader.later()
    reader.later()

    assert cold == ["patient", "patient"]
    assert reader.asked[2:] == ["hasty", "hasty", "hasty"]


@pytest.mark.parametrize("deployed", ["first", "two words"])
def test_process_that_never_read_any_does_nothing(deployed: str) -> None:
    reader = Reader()
    reader.deploy(deployed)
    if deployed == "first":
        reader.appconfig.failing = UNREACHABLE

    with pytest.raises(StoreBusyError):
        reader.read()
    reader.appconfig.failing = None
    reader.deploy("second")

    assert reader.read() == "second"


def test_clock_that_goes_back_makes_it_read_again() -> None:
    reader = Reader()
    reader.deploy("first")
    reader.read()
    reader.deploy("second")

    reader.clock.advance(-3_600_000)

    assert reader.read() == "second"


@pytest.mark.parametrize("error", [RecursionError, ValueError], ids=lambda error: error.__name__)
def test_content_that_nobody_thought_of_leaves_the_last_one_in_force(
    error: type[Exception],
) -> None:
    def parse(text: str) -> str:
        if text == "odd":
            raise error
        return text

    reader = Reader(parse=parse)
    reader.deploy("first")
    reader.read()

    reader.deploy("odd")

    assert reader.later() == "first"
    assert reader.told == [("catalogue", "invalid")]


# ------------------------------------------------------------------------------------ live


def test_live_builds_anew_only_when_something_changed() -> None:
    given = [["a"], ["b"]]
    live: Live[tuple[Any, ...]] = Live(lambda: tuple(given), lambda *parts: (object(), parts))

    first, same = live.now(), live.now()
    given[1] = ["b"]  # equal, but another

    assert first is same
    assert live.now() is not first


# ------------------------------------------------------------------------------------ flags


def on(document: flags.Document, feature: str, **who: str) -> bool:
    return parse_flags(json.dumps(document)).on(feature, **who)


@pytest.mark.parametrize("feature", flags.FEATURES)
def test_without_a_document_a_feature_is_as_it_comes(feature: str) -> None:
    assert parse_flags("{}").on(feature, model="m", tenant="t") is flags.FEATURES[feature]


@pytest.mark.parametrize("feature", flags.FEATURES)
@pytest.mark.parametrize("wanted", [True, False])
def test_feature_is_switched_for_all(feature: str, wanted: bool) -> None:  # noqa: FBT001
    document = flags.switched({}, feature, on=wanted)

    assert on(document, feature, model="m", tenant="t") is wanted
    assert flags.switched(document, feature, on=flags.FEATURES[feature]) == {}


@pytest.mark.parametrize("subject", ["model:m", "tenant:t"])
def test_feature_is_switched_for_one_and_back(subject: str) -> None:
    kind, name = subject.split(":")

    document = flags.switched({}, "submit", on=False, subject=subject)

    assert on(document, "submit", **{kind: name}) is False
    assert on(document, "submit", **{kind: "other"}) is True
    assert flags.exceptions(document, "submit") == {kind: frozenset({name})}
    assert flags.switched(document, "submit", on=True, subject=subject) == {}


def test_several_exceptions_stand_side_by_side() -> None:
    document: flags.Document = {}
    for subject in ("model:a", "model:b", "tenant:t"):
        document = flags.switched(document, "submit", on=False, subject=subject)

    document = flags.switched(document, "submit", on=True, subject="model:a")

    assert [on(document, "submit", model=name, tenant="x") for name in ("a", "b")] == [True, False]
    assert on(document, "submit", model="a", tenant="t") is False


def test_feature_that_is_off_is_on_for_one_alone() -> None:
    document = flags.switched({}, "bypass", on=False)

    document = flags.switched(document, "bypass", on=True, subject="tenant:t")

    assert on(document, "bypass", tenant="t") is True
    assert on(document, "bypass", tenant="other") is False


def test_switch_changes_no_other_document() -> None:
    before = flags.switched({}, "submit", on=False, subject="model:a")
    copy = json.loads(json.dumps(before))

    flags.switched(before, "submit", on=False, subject="model:b")

    assert before == copy


@pytest.mark.parametrize(
    ("feature", "subject"), [("sumbit", ""), ("submit", "a"), ("submit", "lane:x")]
)
def test_switch_of_what_does_not_exist_is_refused(feature: str, subject: str) -> None:
    with pytest.raises(ValueError, match=r"there is no feature|neither"):
        flags.switched({}, feature, on=True, subject=subject)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"sumbit": {"default": true}}', '{"submit": {}}', '{"submit": true}'),
        '{"submit": {"default": "yes"}}',
        '{"submit": {"default": true, "rules": {"r": {"when_match": false}}}}',
    ],
)
def test_bad_documents_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_flags(text)


def test_features_of_newer_code_are_left_out_and_keep_no_other_from_being_switched() -> None:
    told: list[str] = []
    newer = {"teleport": {"default": 7}, "submit": {"default": False}}

    read = parse_flags(json.dumps(newer), on_unknown=told.extend)

    assert (read.on("submit"), read.on("bypass"), told) == (False, True, ["teleport"])
