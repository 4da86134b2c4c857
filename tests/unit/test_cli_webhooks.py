"""`sluiceway webhooks`: what operators do in a tenant's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.endpoint import NO_ENDPOINTS, secret_text, signing_key
from sluiceway.domain.webhook import Attempt, DeliveryStatus

from tests.fakes.examples import a_delivery
from tests.fakes.in_memory import NOW_MS, FakeClock
from tests.fakes.outside import MASTER
from tests.unit.desk import Desk, run, stand_at, told

if TYPE_CHECKING:
    from typing import Any

    from sluiceway.domain.webhook import Delivery

URL = "https://hooks.example/path"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    made = Desk("", clock=clock, endpoint_url=None)
    made.__dict__["actor"] = "user:me"
    stand_at(monkeypatch, made, "webhook_commands")
    return made


def create(*options: str) -> Any:
    return told("webhooks", "create", URL, "--tenant", "acme", *options)


def tried(desk: Desk, webhook_id: str, number: int = 1) -> Delivery:
    delivery = a_delivery(number, endpoint_id=webhook_id)
    attempt = Attempt(NOW_MS + 9, DeliveryStatus.PENDING, 500, "refused")
    desk.registrar.delivery_log.record(delivery, attempt)
    return delivery


def test_created_webhook_is_told_with_its_secret(desk: Desk) -> None:
    made = create("--event", "job.failed", "--description", "theirs")

    assert (made["url"], made["events"], made["description"]) == (URL, ["job.failed"], "theirs")
    assert made["secret"] == secret_text(signing_key(MASTER, "acme", made["id"], 1))
    assert [one.endpoint_id for one in desk.registrar.endpoints.read("acme")] == [
        *("callbacks", made["id"])
    ]
    assert desk.done == [("webhook.create", f"webhook:acme:{made['id']}")]


def test_address_that_may_not_be_called_is_refused_with_its_reason(desk: Desk) -> None:
    result = run("webhooks", "create", "http://10.0.0.1/", "--tenant", "acme")

    assert result.exit_code == 1
    assert "url: " in result.output
    assert "https on port 443" in result.output
    assert desk.done == []


@pytest.mark.usefixtures("desk")
def test_list_shows_no_secret() -> None:
    made = create()

    listed = told("webhooks", "list", "--tenant", "acme")["webhooks"]
    printed = run("webhooks", "list", "--tenant", "acme").output

    assert [one["id"] for one in listed] == ["callbacks", made["id"]]
    assert URL in printed
    assert "the addresses that come with jobs" in printed
    assert made["secret"] not in printed + str(listed)


def test_deleted_webhook_is_gone(desk: Desk) -> None:
    made = create()

    assert told("webhooks", "delete", made["id"], "--tenant", "acme")["deleted"] is True
    assert desk.registrar.endpoints.read("acme") == NO_ENDPOINTS
    assert desk.done[-1] == ("webhook.delete", f"webhook:acme:{made['id']}")


@pytest.mark.parametrize(("options", "until_s"), [((), 86_400), (("--overlap-s", "60"), 60)])
def test_rotation_gives_a_new_secret(desk: Desk, options: tuple[str, ...], until_s: int) -> None:
    rotated = told("webhooks", "rotate", "callbacks", "--tenant", "acme", *options)

    (callbacks,) = desk.registrar.endpoints.read("acme")
    assert rotated["secret"] == secret_text(signing_key(MASTER, "acme", "callbacks", 2))
    assert callbacks.generations(NOW_MS + until_s * 1000 - 1) == (2, 1)
    assert callbacks.generations(NOW_MS + until_s * 1000) == (2,)
    assert desk.done == [("webhook.rotate", "webhook:acme:callbacks")]


def test_secret_is_to_be_kept(desk: Desk) -> None:
    printed = run("webhooks", "rotate", "callbacks", "--tenant", "acme").output

    assert "whsec_" in printed
    assert "not shown again" in printed
    assert len(desk.done) == 1


def test_test_is_queued(desk: Desk) -> None:
    made = create()

    queued = told("webhooks", "test", made["id"], "--tenant", "acme")

    assert [one.delivery_id for one in desk.webhooks.taken] == [queued["id"]]
    assert desk.done[-1] == ("webhook.test", f"webhook:acme:{made['id']}")


def test_deliveries_are_listed_newest_first(desk: Desk) -> None:
    made = create()
    first, second = (tried(desk, made["id"], number) for number in (1, 2))
    command = ("webhooks", "deliveries", made["id"], "--tenant", "acme", "--limit", "1")

    page = told(*command)
    rest = told(*command, "--after", second.delivery_id)
    printed = run(*command).output

    assert [one["id"] for one in page["deliveries"]] == [second.delivery_id]
    assert [one["id"] for one in rest["deliveries"]] == [first.delivery_id]
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert "pending" in printed
    assert "500 refused" in printed
    assert f"--after {second.delivery_id}" in printed


def test_webhook_is_sent_again(desk: Desk) -> None:
    made = create()
    delivery = tried(desk, made["id"])

    told("webhooks", "redeliver", made["id"], delivery.delivery_id, "--tenant", "acme")

    assert desk.webhooks.taken == [delivery]
    assert desk.done[-1] == ("webhook.redeliver", f"webhook:acme:{made['id']}")


@pytest.mark.parametrize(
    "command",
    [
        ("delete", "whk_1"),
        ("rotate", "whk_1"),
        ("test", "whk_1"),
        ("deliveries", "whk_1"),
        ("redeliver", "whk_1", "dlv_0123456789ABCDEFGHJKMNPQRS"),
        ("delete", "callbacks"),
        ("test", "callbacks"),
        ("redeliver", "callbacks", "dlv_0123456789ABCDEFGHJKMNPQRS"),
    ],
)
def test_what_is_not_there_is_refused_and_not_on_record(
    desk: Desk, command: tuple[str, ...]
) -> None:
    result = run("webhooks", *command, "--tenant", "acme")

    assert result.exit_code == 1
    assert desk.done == []
    assert desk.webhooks.taken == []


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("list", "--tenant", "Not A Tenant"),
        ("redeliver", "whk_1", "job_1", "--tenant", "acme"),
        ("deliveries", "whk_1", "--after", "job_1", "--tenant", "acme"),
        ("create", URL, "--event", "job.started", "--tenant", "acme"),
        ("rotate", "whk_1", "--overlap-s", "604801", "--tenant", "acme"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(desk: Desk, command: tuple[str, ...]) -> None:
    assert run("webhooks", *command).exit_code == 2
    assert desk.done == []
