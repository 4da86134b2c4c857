"""Usage: what a tenant's jobs came to."""

from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import Field
from sluiceway.domain.usage import UsageRow
from sluiceway.http import usage_reply

from sluiceway_local.openapi.forms import KEYED, Answer, Count, Money, answer, area, refusals

AREA = area("usage", "What the tenant's jobs came to.")

_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
Day = Annotated[
    str, Field(pattern=_DAY, json_schema_extra={"format": "date"}, examples=["2026-01-01"])
]


class DayOfModel(Answer):
    """What ended on a day (UTC), of one model."""

    date: Day
    model: str
    completed: Count
    """Jobs with a result, those of `from_cache` included."""
    failed: Count
    """Ends of runs: a redriven job that fails again counts twice."""
    cancelled: Count
    from_cache: Count
    """Completed jobs that found a result in the cache when their turn came."""
    input_tokens: Count
    """Paid for, as `output_tokens` are."""
    output_tokens: Count
    cost: Money
    """In the unit of the catalogue's prices."""
    saved: Money
    """What the jobs of `from_cache` would have cost."""


class UsageList(Answer):
    """The days and models with any usage, newest first, and models by name."""

    object: Literal["list"]
    from_: Day = Field(alias="from")
    to: Day
    data: list[DayOfModel]


_SAMPLE = UsageRow(
    day="2026-01-31",
    model="demo-chat",
    completed=12,
    failed=1,
    from_cache=2,
    input_tokens=120,
    output_tokens=240,
    cost_nanos=3_960_000,
    saved_nanos=660_000,
)


@AREA.call(
    "GET",
    "/usage",
    "getUsage",
    scope="read",
    summary="Ask what the tenant's jobs came to",
    description="By day and model. Results that the cache gave to a submit are in no count.",
    answers={
        200: answer(
            "The usage.", UsageList, {"One day": usage_reply("2026-01-01", "2026-01-31", [_SAMPLE])}
        ),
        **refusals(*KEYED),
    },
)
def _usage(
    first: Annotated[
        str | None,
        Query(
            alias="from",
            pattern=_DAY,
            json_schema_extra={"format": "date"},
            description="The first day (UTC); 30 days before the last without it.",
        ),
    ] = None,
    last: Annotated[
        str | None,
        Query(
            alias="to",
            pattern=_DAY,
            json_schema_extra={"format": "date"},
            description="The last day (UTC); today without it. 92 days may be asked for at once.",
        ),
    ] = None,
) -> None: ...
