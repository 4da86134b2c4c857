"""An operator at the command line, and an installation in memory as the commands see it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result
from sluiceway.usecases.manage_webhooks import Registrar
from sluiceway_cli.main import cli
from sluiceway_cli.target import Target

from tests.fakes.in_memory import (
    FakeClock,
    InMemoryAudit,
    InMemoryBacklogs,
    InMemoryDeliveries,
    InMemoryDueJobs,
    InMemoryEndpoints,
    InMemoryGates,
    InMemoryJobLists,
    InMemoryJobs,
    InMemoryPartnerKeys,
    InMemoryState,
    InMemoryUsage,
    World,
)
from tests.fakes.outside import FakeBus, FakeWebhookQueue, FakeWebhookSecrets

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Desk(Target):
    """The rows of a World in the place of an installation's tables."""

    world: World = field(default_factory=World)
    webhooks: FakeWebhookQueue = field(default_factory=FakeWebhookQueue)
    events: FakeBus = field(default_factory=FakeBus)

    def __post_init__(self) -> None:
        clock = self.clock
        assert isinstance(clock, FakeClock)
        self.__dict__.update(  # in place of the cached properties
            state=InMemoryState(self.world),
            audit=InMemoryAudit(self.world),
            aws_clock=clock,
            bus=self.events,
            jobs=InMemoryJobs(self.world, clock=clock),
            job_lists=InMemoryJobLists(self.world),
            due_jobs=InMemoryDueJobs(self.world),
            backlogs=InMemoryBacklogs(self.world),
            gates=InMemoryGates(self.world),
            usage=InMemoryUsage(self.world),
            registrar=Registrar(
                endpoints=InMemoryEndpoints(self.world),
                delivery_log=InMemoryDeliveries(self.world),
                webhook_secrets=FakeWebhookSecrets(),
                webhooks=self.webhooks,
                clock=clock,
                randomness=bytes,
            ),
        )

    def partner_keys(self) -> InMemoryPartnerKeys:
        return InMemoryPartnerKeys(self.world)

    @property
    def done(self) -> list[tuple[str, str]]:
        """Action and subject of each record."""
        return [(record.action, record.subject) for record in self.world.audit]

    @property
    def told(self) -> list[tuple[str, str]]:
        """Name and subject of each notice."""
        return [(notice.detail_type, notice.subject) for notice in self.events.taken]


def stand_at(monkeypatch: pytest.MonkeyPatch, desk: Target, *modules: str) -> None:
    """Makes it what the commands of these modules find."""
    for module in ("main", *modules):
        monkeypatch.setattr(f"sluiceway_cli.{module}.find_target", lambda _: desk)


def run(*arguments: str) -> Result:
    """The command, which ends as a command does."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*arguments: str, code: int = 0) -> Any:
    """What the command prints with `--json`."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)
