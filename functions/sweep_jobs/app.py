"""The sweeper: each minute, jobs that got stuck are helped on.

The schedule's event, `{"poll": true}`, keeps it at it for its minute; any other, such as `{}` by
hand, is one pass.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.usecases.sweep_jobs import sweep_jobs

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import SweepDeps


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    """Answers any event with what the sweep did, in jobs."""
    return handle(event, context, bootstrap.sweep_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: SweepDeps) -> dict[str, int]:
    """An error is Lambda's to count; the next minute's sweep goes on."""
    poll = isinstance(event, dict) and event.get("poll") is True
    with deps.telemetry.invocation(context):
        return asdict(sweep_jobs(deps.sweeper(context.get_remaining_time_in_millis), poll=poll))
