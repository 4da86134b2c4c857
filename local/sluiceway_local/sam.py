"""Prints a template for `sam local invoke`: what was built, with the settings of the local stack.

`python -m sluiceway_local.sam > .sluiceway/sam.json`, while the stack runs. SAM knows no name that
only a deployment gives, and its `--env-vars` adds no variable that the template doesn't have, such
as AWS_ENDPOINT_URL; so all variables are written into a template.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from sluiceway_local import emulator, stack
from sluiceway_local.state import LocalStack

_CODE = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}


def template(
    built: dict[str, Any], folder: Path, variables: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """`built`, whose paths are relative to `folder`, with a function's variables by logical id."""
    resources = {name: dict(of) for name, of in built["Resources"].items()}
    for name, resource in resources.items():
        path = _CODE.get(resource["Type"])
        if path is None:
            continue
        properties = resource["Properties"]
        resource["Properties"] = {**properties, path: str((folder / properties[path]).resolve())}
        if name in variables:
            resource["Properties"]["Environment"] = {"Variables": dict(variables[name])}
    function = {key: of for key, of in built["Globals"]["Function"].items() if key != "Environment"}
    return {**built, "Globals": {**built["Globals"], "Function": function}, "Resources": resources}


def variables_of(local: LocalStack) -> dict[str, dict[str, str]]:
    """What the stack's functions have, and the emulator's address, by logical id."""
    formation = emulator.client("cloudformation", local.endpoint_url)
    functions = emulator.client("lambda", local.endpoint_url)
    found = {}
    resources = formation.describe_stack_resources(StackName=local.stack)["StackResources"]
    for resource in resources:
        if resource["ResourceType"] == "AWS::Lambda::Function":
            told = functions.get_function_configuration(FunctionName=resource["PhysicalResourceId"])
            found[resource["LogicalResourceId"]] = {
                **told["Environment"]["Variables"],
                "AWS_ENDPOINT_URL": local.endpoint_url,
            }
    return found


def main() -> str:
    """The text. Raises SystemExit with what is wrong when nothing runs or nothing is built."""
    local = stack.running()
    if local is None:
        raise SystemExit("there is no local stack; run: sluiceway local up --detach")
    try:
        source = stack.source(built=True)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    built = yaml_parse(source.template.read_text())
    return json.dumps(template(built, source.template.parent, variables_of(local)), indent=2)


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")
