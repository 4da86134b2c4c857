"""The template as its tests read it: as it is written, and as CloudFormation would resolve it."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())
"""As it is written. For reading only: all tests share it."""

RESOURCES: dict[str, Any] = SOURCE["Resources"]
PARAMETERS: dict[str, Any] = SOURCE["Parameters"]

_ABSENT = object()

_ALIAS = re.compile(r"\$\{(\w+)Aliaslive\}|\$\{(\w+)\.Arn\}:live")
"""Other ways to say what everything calls in the place of a function."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What CloudFormation makes of the template under some parameters.

    Conditions, mappings and parameters are resolved; what only a deployment knows stays: `Ref` and
    `Fn::GetAtt` of resources, `Fn::Sub` and pseudo parameters.
    """

    resources: dict[str, Any]

    def properties(self, logical_id: str) -> dict[str, Any]:
        """Of a resource that exists under these parameters."""
        found: dict[str, Any] = self.resources[logical_id]["Properties"]
        return found

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """The properties of all resources of a type, by logical id."""
        return {
            name: resource.get("Properties", {})
            for name, resource in self.resources.items()
            if resource["Type"] == kind
        }


@cache
def render(**parameters: str) -> Stack:
    """The stack with these parameters; the others have their defaults."""
    values = {name: str(of["Default"]) for name, of in PARAMETERS.items()} | parameters
    resolve = _Resolver(values)
    kept = {
        name: {key: value for key, value in resource.items() if key != "Condition"}
        for name, resource in transform(Rollout=values["Rollout"])["Resources"].items()
        if "Condition" not in resource or resolve.condition(resource["Condition"])
    }
    return Stack(resolve(kept))


def render_with(backend: str) -> Stack:
    """The stack whose cache is there, in a network if it needs one."""
    network = {"VpcId": "vpc-1", "PrivateSubnetIds": "subnet-1,subnet-2"}
    return render(CacheBackend=backend, **(network if backend == "valkey" else {}))


def variants(*names: str) -> Iterator[dict[str, str]]:
    """Every combination of the values that these parameters allow."""
    for values in product(*(PARAMETERS[name]["AllowedValues"] for name in names)):
        yield dict(zip(names, map(str, values), strict=True))


def alias_of(function: str) -> dict[str, str]:
    """What everything calls in the place of a function."""
    return {"Ref": f"{function}Aliaslive"}


@cache
def transform(changed: str = "", **parameters: str) -> dict[str, Any]:
    """The template after SAM's transform, which resolves nothing but what it decides itself.

    Of the functions and layers, `changed` has other code than in any other transform.
    """
    template = copy.deepcopy(SOURCE)
    for name, resource in template["Resources"].items():
        for code in ("CodeUri", "ContentUri"):
            if code in resource.get("Properties", {}):
                key = "changed" if name == changed else "key"
                resource["Properties"][code] = {"Bucket": "bucket", "Key": key}
    translator = Translator({}, Parser(), boto_session=boto3.Session(region_name="us-east-1"))
    transformed: dict[str, Any] = translator.translate(template, parameter_values=parameters)
    return transformed


class _Resolver:
    """CloudFormation's functions, as far as the template uses them."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def __call__(self, value: Any) -> Any:
        """`value` with what can be known filled in."""
        resolved = self._resolve(value)
        return None if resolved is _ABSENT else resolved

    def condition(self, name: str) -> bool:
        """Whether the condition of this name holds."""
        return self._test(SOURCE["Conditions"][name])

    def _resolve(self, value: Any) -> Any:
        match value:
            case {"Ref": "AWS::NoValue"}:
                return _ABSENT
            case {"Ref": str(name)} if name in self._parameters:
                return self._parameters[name]
            case {"Fn::If": [str(name), yes, no]}:
                return self._resolve(yes if self.condition(name) else no)
            case {"Fn::FindInMap": [table, row, column]}:
                return SOURCE["Mappings"][table][self._resolve(row)][column]
            case {"Fn::Sub": ["${Workers}", {"Workers": workers}]}:
                return str(self._resolve(workers))
            case {"Fn::Sub": str(text)} if alias := _ALIAS.fullmatch(text):
                return alias_of(alias[1] or alias[2])
            case dict():
                items = {key: self._resolve(item) for key, item in value.items()}
                return {key: item for key, item in items.items() if item is not _ABSENT}
            case list():
                return [item for item in map(self._resolve, value) if item is not _ABSENT]
        return value

    def _test(self, condition: Any) -> bool:
        match condition:
            case {"Condition": str(name)}:
                return self.condition(name)
            case {"Fn::Equals": [one, other]}:
                return bool(self._resolve(one) == self._resolve(other))
            case {"Fn::Not": [negated]}:
                return not self._test(negated)
            case {"Fn::And": parts}:
                return all(map(self._test, parts))
            case {"Fn::Or": parts}:
                return any(map(self._test, parts))
        raise NotImplementedError(condition)
