"""The sample events, and which trigger of the template each is of."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.protocol.events import matches
from tests.template.rendering import RESOURCES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS = ROOT / "events"
SAMPLES: dict[str, Any] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted(EVENTS.glob("*.json"))
}
ACCOUNT = "123456789012"
REGION = "us-east-1"


def triggers() -> Iterator[tuple[str, str, Any]]:
    """Of each trigger of the template: its function, its name, and how its events are known."""
    authorizers = RESOURCES["Api"]["Properties"]["Auth"]["Authorizers"]
    for name, of in authorizers.items():
        function = _function_of(of["FunctionArn"])
        yield function, f"{name}: authorizer, {of['FunctionPayloadType']}", _is_authorizers
    for name, resource in RESOURCES.items():
        for validator in resource.get("Properties", {}).get("Validators", []):
            if validator["Type"] == "LAMBDA":
                yield _function_of(validator["Content"]), f"{name}: validator", _is_validators
        for event, of in resource.get("Properties", {}).get("Events", {}).items():
            for told, test in _triggers_of(of["Type"], of["Properties"]):
                yield name, f"{event}: {told}", test


def _triggers_of(kind: str, of: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    match kind:
        case "Api":
            yield f"{of['Method']} {of['Path']}", _route(of["Method"], of["Path"])
        case "SQS":
            queue = of["Queue"]["Fn::GetAtt"][0]
            yield queue, _source(rf"arn:aws:sqs:{REGION}:{ACCOUNT}:sluiceway-{queue}-\w+")
        case "DynamoDB":
            for each in of["FilterCriteria"]["Filters"]:
                pattern = json.loads(each["Pattern"])
                statuses = pattern["dynamodb"]["NewImage"]["status"]["S"]
                yield ", ".join(statuses), _filtered(pattern, of["Stream"]["Fn::GetAtt"][0])
        case "EventBridgeRule":
            pattern = of["Pattern"]
            yield ", ".join(pattern["detail-type"]), _picked(pattern)
        case "ScheduleV2":
            yield of["ScheduleExpression"], _equal_to(json.loads(of["Input"]))
        case _:
            raise NotImplementedError(kind)


def _function_of(reference: dict[str, Any]) -> str:
    (value,) = reference.values()
    name: str = value[0] if isinstance(value, list) else value.strip("${}").partition(".")[0]
    return name


def _is_authorizers(event: Any) -> bool:
    return event.get("type") == "REQUEST" and "methodArn" in event


def _is_validators(event: Any) -> bool:
    return {"applicationId", "configurationProfileId", "content", "uri"} <= set(event)


def _route(method: str, path: str) -> Any:
    return lambda event: (
        "methodArn" not in event
        and (event.get("httpMethod"), event.get("resource")) == (method, path)
    )


def _source(arn: str) -> Any:
    def of_source(event: Any) -> bool:
        records = event.get("Records", [])
        return bool(records) and all(
            re.fullmatch(arn, record["eventSourceARN"]) for record in records
        )

    return of_source


def _filtered(pattern: dict[str, Any], table: str) -> Any:
    stream = rf"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/sluiceway-{table}-\w+/stream/\S+"
    return lambda event: (
        _source(stream)(event)
        and all(matches(pattern, record) for record in event.get("Records", []))
    )


def _picked(pattern: dict[str, Any]) -> Any:
    return lambda event: "detail" in event and matches(pattern, event)


def _equal_to(expected: Any) -> Any:
    return lambda event: event == expected


TRIGGERS = {(function, name): test for function, name, test in triggers()}


def triggers_of(event: Any) -> list[tuple[str, str]]:
    """The function and the name of each trigger that would bring the event."""
    return [key for key, test in TRIGGERS.items() if test(event)]


@dataclass(frozen=True, slots=True)
class Row:
    """What the samples' README says of one."""

    trigger: str
    function: str
    answer: str
    """The status, the policy's effect or the JSON, without the words behind it."""


def table() -> dict[str, Row]:
    """The rows of the samples' README, by the file's name without its end."""
    rows = re.findall(
        r"^\| \[(\w+)\.json\]\(\1\.json\) \| `(.+?)` \| `(\w+)` \| `(.+?)`",
        (EVENTS / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {name: Row(*told) for name, *told in rows}
