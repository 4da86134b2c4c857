"""Fakes of what is outside: the event bus, the webhooks' queue, secrets, the partners' servers.

Each is scripted and remembers what it was asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.secrets_manager import SecretsManagerKeys
from sluiceway.domain.errors import WebhookError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluiceway.domain.address import Target
    from sluiceway.domain.webhook import Delivery
    from sluiceway.ports import Clock, E

MASTER = b"0123456789abcdef0123456789abcdef"


class FakeSecretsManager:
    """boto3's client of Secrets Manager with one secret, whatever the name.

    `failure` is raised, when there is one.
    """

    def __init__(self, text: str = "sk-hunter2") -> None:
        self.answer: dict[str, Any] = {"SecretString": text}
        self.failure: Exception | None = None
        self.asked: list[str] = []

    def rotate(self, text: str) -> None:
        self.answer = {"SecretString": text}

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]:  # noqa: N803 - boto3's name
        self.asked.append(SecretId)
        if self.failure is not None:
            raise self.failure
        return self.answer

    def vendor_keys(self, clock: Clock) -> SecretsManagerKeys:
        """The adapter that reads vendors' keys from here."""
        return SecretsManagerKeys(lambda: self, clock)  # type: ignore[arg-type,return-value]


class FakeBus:
    """Takes all but the first events of each turn that `refusals` names (port EventBus)."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.taken: list[Any] = []
        self.turns = 0

    def put(self, events: Sequence[E]) -> list[E]:
        self.turns += 1
        refused = self.refusals.pop(0) if self.refusals else 0
        self.taken += events[refused:]
        return list(events[:refused])


class FakeWebhookQueue:
    """As FakeBus (port WebhookQueue)."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.taken: list[Delivery] = []
        self.gives_back: list[tuple[str, float]] = []

    def send(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        refused = self.refusals.pop(0) if self.refusals else 0
        self.taken += deliveries[refused:]
        return list(deliveries[:refused])

    def give_back(self, receipt: str, delay_s: float) -> None:
        self.gives_back.append((receipt, delay_s))


@dataclass
class FakeWebhookSecrets:
    """Has MASTER, unless said otherwise (port WebhookSecrets)."""

    failure: WebhookError | None = None

    def master(self) -> bytes:
        if self.failure is not None:
            raise self.failure
        return MASTER


@dataclass(frozen=True, slots=True)
class Posted:
    """One request to a partner's server."""

    target: Target
    headers: Mapping[str, str]
    body: bytes
    timeout_s: float


@dataclass
class FakeWebhookClient:
    """Answers what the script says, then 204 (port WebhookClient)."""

    script: list[int | WebhookError] = field(default_factory=list)
    posts: list[Posted] = field(default_factory=list)

    def post(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> int:
        self.posts.append(Posted(target, headers, body, timeout_s))
        turn = self.script.pop(0) if self.script else 204
        if isinstance(turn, WebhookError):
            raise turn
        return turn
