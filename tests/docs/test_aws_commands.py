"""The AWS commands in the documents can be typed: each is one that AWS's own models know."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from botocore import xform_name
from botocore.session import get_session

from tests.docs.test_docs import DOCUMENTS, RUNBOOK, template, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES = {"deploy": "codedeploy"}
"""Where the command line has a name of its own."""

OF_THE_COMMAND_LINE = {"query", "output", "region", "endpoint-url", "profile", "max-items"}
"""Options that every command takes, or every one that gives a list."""


def commands_in(document: str) -> Iterator[list[str]]:
    """The arguments of each call of `aws`, in code blocks and within a line."""
    text = text_of(document)
    blocks = re.findall(r"^[ ]*```sh\n(.*?)^[ ]*```", text, re.DOTALL | re.MULTILINE)
    whole = "\n".join([*blocks, *re.findall(r"`(aws [^`]+)`", text)]).replace("\\\n", " ")
    for found in re.finditer(r"(?:^|[\s(])aws ((?:'[^']*'|[^\n'])+)", whole):
        yield shlex.split(found[1].partition(" > ")[0])


COMMANDS = [
    pytest.param(words, id=f"{document.rpartition('/')[2]}-{number}-{'-'.join(words[:2])}")
    for document in DOCUMENTS
    for number, words in enumerate(commands_in(document))
]


@cache
def model(service: str) -> Any:
    return get_session().get_service_model(SERVICES.get(service, service))


def options_of(words: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in words if re.match(r"--[a-z]", word)}


@pytest.mark.parametrize("words", COMMANDS)
def test_command_is_one_of_aws(words: list[str]) -> None:
    service, command, *rest = words
    if command == "wait":
        name = get_session().get_waiter_model(SERVICES.get(service, service))
        waits = {xform_name(waiter, "-"): waiter for waiter in name.waiter_names}
        operation = name.get_waiter(waits[rest[0]]).operation
    else:
        operations = {xform_name(of, "-"): of for of in model(service).operation_names}
        operation = operations[command]
    shape = model(service).operation_model(operation).input_shape
    known = {xform_name(name, "-"): of for name, of in shape.members.items()}
    flags = {f"no-{name}" for name, of in known.items() if of.type_name == "boolean"}
    needed = {xform_name(name, "-") for name in shape.required_members}

    given = options_of(rest)

    assert given <= known.keys() | flags | OF_THE_COMMAND_LINE
    if given:  # else only the command's name is told
        assert needed - {"no-cli-pager"} <= given


def test_restored_table_gets_back_all_that_the_template_switches_on() -> None:
    # A restored table keeps keys, indexes, billing and encryption, and nothing else.
    text = text_of(RUNBOOK)
    kept = {"KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes"}
    kept |= {"BillingMode", "SSESpecification"}
    commands = {
        "DeletionProtectionEnabled": "--deletion-protection-enabled",
        "PointInTimeRecoverySpecification": "--point-in-time-recovery-specification",
        "StreamSpecification": "--stream-specification",
        "TimeToLiveSpecification": "--time-to-live-specification",
    }

    lost = {
        name
        for of in template()["Resources"].values()
        if of["Type"] == "AWS::DynamoDB::Table"
        for name in of["Properties"].keys() - kept
    }

    assert lost == commands.keys()
    assert [option for option in commands.values() if option not in text] == []


def test_restored_tables_mapping_is_made_as_the_templates_is() -> None:
    (events,) = template()["Resources"]["PublishEventsFunction"]["Properties"]["Events"].values()
    of = events["Properties"]
    (made,) = (words for words in commands_in(RUNBOOK) if words[1] == "create-event-source-mapping")

    given = dict(zip(made, [*made[1:], ""], strict=True))

    assert given["--function-name"].endswith(":live")
    assert given["--starting-position"] == of["StartingPosition"]
    assert given["--batch-size"] == str(of["BatchSize"])
    assert given["--maximum-retry-attempts"] == str(of["MaximumRetryAttempts"])
    assert given["--maximum-record-age-in-seconds"] == str(of["MaximumRecordAgeInSeconds"])
    assert ("--bisect-batch-on-function-error" in made) is of["BisectBatchOnFunctionError"]
    assert {"--filter-criteria", "--destination-config"} <= set(made)
