"""Schemathesis against a served document: very many requests, good and bad, all answers checked."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schemathesis.checks import CheckContext
    from schemathesis.core.transport import Response
    from schemathesis.generation.case import Case
    from schemathesis.schemas import BaseSchema

SEED = int(os.environ.get("SLUICEWAY_SCHEMATHESIS_SEED", "1"))
"""Much the same requests in each run of CI, as far as answers don't lead to others."""

TIMES = int(os.environ.get("SLUICEWAY_SCHEMATHESIS_TIMES", "1"))
"""So many times as long."""

RARE = {
    "POST /responses/{job_id}/cancel",
    "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
}
"""Calls that need what a chain of others seldom carries to them; they have tests of their own."""

METHODS = ["get", "put", "post", "delete", "options", "patch"]
"""What a call is tried with besides its own: those that API Gateway has."""

_UNFIT = ("invalid_request", "validation_failed")
_BEYOND_A_SCHEMA = frozenset({"callback_url", "url", "jobs"})
"""Where a webhook may go, and that names in a batch are unique. So are the days of `/usage`."""


@schemathesis.check
def taken_when_it_fits(_: CheckContext, response: Response, case: Case) -> None:
    """What fits the schema may be refused for what it means, but not for its form.

    What OpenAI's clients may send is not all in the schema, since it is the vendor's to judge.
    """
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code not in {400, 422} or "openai" in (case.operation.tags or []):
        return
    problem = response.json()
    if response.status_code == 422:
        fields = {one["field"] for one in problem.get("errors", [])}
        beyond = fields <= _BEYOND_A_SCHEMA  # with none it is about more than the body
    else:
        beyond = case.operation.path == "/usage"
    if beyond:
        return
    assert problem["code"] not in _UNFIT, f"refused, but it fits the schema: {problem}"


@dataclass
class Outcome:
    """What came of a run."""

    statuses: Counter[str] = field(default_factory=Counter)
    """How many answers a call gave with a status: by `POST /jobs 202`."""
    faults: dict[str, str] = field(default_factory=dict)
    """What was wrong, each kind of a call once, with a request that shows it."""

    @property
    def cases(self) -> int:
        return sum(self.statuses.values())

    @property
    def done(self) -> set[str]:
        """The calls that got as far as to what they are for, once at least; 409 came too late."""
        found = (name.rpartition(" ") for name in self.statuses)
        return {call for call, _, status in found if status.startswith("2") or status == "409"}

    def __str__(self) -> str:
        told = [f"schemathesis: {self.cases} cases, seed {SEED}"]
        of_call: dict[str, list[str]] = {}
        for name, count in sorted(self.statuses.items()):
            call, _, status = name.rpartition(" ")
            of_call.setdefault(call, []).append(f"{status} x {count}")
        told += [f"  {call}: {', '.join(found)}" for call, found in of_call.items()]
        return "\n".join(told)


def calls_of(document: Mapping[str, Any], area: str) -> set[str]:
    """The calls of an area of the document."""
    return {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if area in operation["tags"]
    }


def config(*, base_url: str, examples: int, key: str, **more: Any) -> SchemathesisConfig:
    """`examples`: how many a call gets of generated requests, besides the systematic ones."""
    return SchemathesisConfig.from_dict(
        {
            "seed": SEED,
            "workers": 1,  # threads upset Python's own parser, which Hypothesis uses
            "base-url": base_url,
            "headers": {"Authorization": f"Bearer {key}"},
            "continue-on-failure": True,
            "generation": {"max-examples": examples * TIMES, "no-shrink": True},
            "checks": {
                # 503 is what busy tables give; 504 has to be documented, as every status.
                "not_a_server_error": {"expected-statuses": ["2xx", "4xx", 503, 504]},
                # What fits the schema may be refused for what it means: see below.
                "positive_data_acceptance": {"enabled": False},
            },
            "phases": {
                "coverage": {"unexpected-methods": METHODS},
                # Each of these is several calls, with what one answered in the next.
                "stateful": {"generation": {"max-examples": max(1, examples * TIMES // 2)}},
            },
            **more,
        }
    )


def run(schema: BaseSchema) -> Outcome:
    """Sends the requests, and tells what came of them."""
    outcome = Outcome()
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            if type(event.value).__name__ == "NoLinksFound":
                continue  # no call of this area gives what another one needs
            outcome.faults.setdefault(f"{event.label}: {event.value!r}", "")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            _take(event, outcome)
    return outcome


def _take(event: events.ScenarioFinished, outcome: Outcome) -> None:
    recorder = event.recorder
    for case_id, interaction in recorder.interactions.items():
        node = recorder.cases.get(case_id)
        call = node.value.operation.label if node else "?"
        status = interaction.response.status_code if interaction.response else "no answer"
        outcome.statuses[f"{call} {status}"] += 1
        for check in recorder.checks.get(case_id, []):
            if check.failure_info is None:
                continue
            failure = check.failure_info.failure
            name = f"{call}: {check.name}: {failure.title}"
            outcome.faults.setdefault(
                name, f"{failure.message}\n{check.failure_info.code_sample}"[:2000]
            )
