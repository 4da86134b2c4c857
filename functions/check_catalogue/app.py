"""The validator of catalogues: AppConfig asks it before a deployment, whoever begins that."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import CheckDeps


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Takes a version of the profile: its `content` is the text in base64."""
    handle(event, context, bootstrap.check_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: CheckDeps) -> None:
    """Raises ConfigurationError with the faults, which AppConfig shows to whoever deploys."""
    with deps.telemetry.invocation(context):
        catalogue = catalogues.parse(_text(event))
        if faults := catalogues.check_times(catalogue, lease_s=deps.lease_s):
            raise ConfigurationError(faults)


def _text(event: dict[str, Any]) -> str:
    try:
        return b64decode(event["content"]).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError((f"not UTF-8: {error}",)) from error
