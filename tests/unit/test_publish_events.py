"""Publish: from the stream to the event bus and the webhook queue, at least once and thin."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from sluiceway.adapters.dynamodb_stream import event_of
from sluiceway.adapters.eventbridge_events import EventBridgeEvents
from sluiceway.adapters.sqs_webhooks import SQSWebhooks, read_body
from sluiceway.domain.endpoint import NO_ENDPOINTS, Endpoint, Endpoints
from sluiceway.domain.errors import NotPublishedError, StoreBusyError
from sluiceway.domain.webhook import Delivery, JobEvent, deliveries
from sluiceway.usecases.publish_events import TRIES, publish_events

from tests.fakes.in_memory import NOW_MS, InMemoryEndpoints, RecordingTelemetry, World
from tests.fakes.outside import FakeBus, FakeWebhookQueue
from tests.functions.stage import sample

if TYPE_CHECKING:
    from sluiceway.ports import WebhookEndpoints

FINAL = ("completed", "failed", "dead_lettered", "cancelled")
OPEN = ("queued", "processing", "retrying")


def an_event(number: int = 1, **members: Any) -> JobEvent:
    event = event_of(a_record())
    assert event is not None
    return replace(event, **{"job_id": f"job_{number}", **members})


def a_record(new: dict[str, Any] | None = None, old: dict[str, Any] | None = None) -> Any:
    """The sample record, with these attributes of its images changed; None takes one away."""
    record = deepcopy(sample("publish_events")["Records"][0])
    for image, changes in (("NewImage", new), ("OldImage", old)):
        for name, value in (changes or {}).items():
            if value is None:
                del record["dynamodb"][image][name]
            else:
                record["dynamodb"][image][name] = value
    return record


def moved(old: str, new: str, **attributes: Any) -> Any:
    """A record of a job that went from one status to another and has no end time of its own."""
    members = {"status": {"S": new}, "completed_at_epoch_ms": None, **attributes}
    return a_record(members, {"status": {"S": old}})


FAILED_AT = {"N": str(NOW_MS + 2000)}
ERROR = {
    "M": {
        "code": {"S": "vendor_rejected"},
        "message": {"S": "The vendor answered 400."},
        "retryable": {"BOOL": False},
        "at_epoch_ms": {"N": str(NOW_MS + 2000)},
    }
}


# ------------------------------------------------------------------ the stream


@pytest.mark.parametrize("status", FINAL)
def test_final_status_is_an_event(status: str) -> None:
    event = event_of(moved("processing", status, failed_at_epoch_ms=FAILED_AT, error=ERROR))

    assert event is not None
    assert event.status == status
    assert (event.tenant, event.model, event.attempts) == ("acme", "demo-chat", 1)


@pytest.mark.parametrize("status", OPEN)
def test_open_status_is_none(status: str) -> None:
    assert event_of(moved("queued", status)) is None


@pytest.mark.parametrize("status", FINAL)
def test_change_within_a_final_status_is_none(status: str) -> None:
    assert event_of(moved(status, status)) is None


def test_deleted_row_is_none() -> None:
    record = a_record()
    del record["dynamodb"]["NewImage"]

    assert event_of(record) is None


def test_row_that_is_no_partners_is_none() -> None:
    assert event_of(a_record({"tenant": {"S": "refresh#c1_key"}})) is None


def test_failed_job_tells_its_error() -> None:
    event = event_of(moved("processing", "failed", failed_at_epoch_ms=FAILED_AT, error=ERROR))

    assert event is not None
    assert (event.error_code, event.error_retryable) == ("vendor_rejected", False)
    assert event.at_epoch_ms == event.completed_at_epoch_ms == NOW_MS + 2000


def test_dead_letter_of_a_failed_job_happened_when_the_stream_says() -> None:
    event = event_of(moved("failed", "dead_lettered", failed_at_epoch_ms=FAILED_AT, error=ERROR))

    assert event is not None
    assert event.completed_at_epoch_ms == NOW_MS + 2000
    assert event.at_epoch_ms == NOW_MS + 1000


def test_discarding_is_told_as_another_failure() -> None:
    ended = {"failed_at_epoch_ms": FAILED_AT, "error": ERROR}
    first = event_of(moved("processing", "failed", **ended))
    later = {"M": {**ERROR["M"], "at_epoch_ms": {"N": str(NOW_MS + 9000)}}}
    second = event_of(
        moved("dead_lettered", "failed", **{**ended, "error": later}, discarded={"BOOL": True})
    )

    assert first is not None
    assert second is not None
    assert first.event_id != second.event_id
    assert second.at_epoch_ms == NOW_MS + 9000


def test_redriven_job_ends_under_another_id() -> None:
    first, second = event_of(a_record()), event_of(a_record({"redrives": {"N": "1"}}))

    assert first is not None
    assert second is not None
    assert first.event_id != second.event_id


def test_same_record_is_the_same_event_word_for_word() -> None:
    first, second = event_of(a_record()), event_of(a_record())

    assert first is not None
    assert first == second
    assert first.detail() == an_event(job_id=first.job_id).detail()


@pytest.mark.parametrize("tenant", ["acme", "globex"])
def test_event_holds_nothing_of_prompt_result_or_metadata(tenant: str) -> None:
    event = event_of(a_record({"tenant": {"S": tenant}}))

    assert event is not None
    told = json.dumps(event.detail()) + event.webhook_body
    assert "hunter2" not in told
    assert "hooks.partner.example" not in told
    for encoded in ("YSBwcm9tcHQg", "YSByZXN1bHQg"):
        assert encoded not in told


# ------------------------------------------------------------------ the use case


class Outside:
    """Bus and queue, and the pauses between the tries."""

    def __init__(
        self, bus: FakeBus | None = None, webhooks: FakeWebhookQueue | None = None
    ) -> None:
        self.bus, self.webhooks = bus or FakeBus(), webhooks or FakeWebhookQueue()
        self.telemetry = RecordingTelemetry()
        self.pauses: list[float] = []
        self.world = World()
        self.endpoints: WebhookEndpoints = InMemoryEndpoints(self.world)

    def publish(self, *events: JobEvent) -> None:
        publish_events(
            events,
            bus=self.bus,
            endpoints=self.endpoints,
            webhooks=self.webhooks,
            telemetry=self.telemetry,
            pause=self.pauses.append,
        )


def test_event_goes_to_the_bus_and_its_webhooks_to_the_queue() -> None:
    outside = Outside()
    event = an_event(callback_urls=("https://a.example/", "https://b.example/"))

    outside.publish(event)

    assert outside.bus.taken == [event]
    assert outside.webhooks.taken == deliveries(event, NO_ENDPOINTS)
    assert outside.pauses == []
    assert outside.telemetry.events == [("events_published", None, {"events": 1, "webhooks": 2})]


def test_job_without_callbacks_has_no_webhook() -> None:
    outside = Outside()

    outside.publish(an_event(callback_urls=()))

    assert outside.webhooks.taken == []
    assert len(outside.bus.taken) == 1


def test_event_goes_to_the_endpoints_of_its_tenant() -> None:
    outside = Outside()
    outside.world.endpoints["acme"] = (*NO_ENDPOINTS, Endpoint("whk_1", "https://a.example/"))
    outside.world.endpoints["globex"] = (*NO_ENDPOINTS, Endpoint("whk_2", "https://a.example/"))
    events = [
        an_event(number, callback_urls=(), tenant=tenant)
        for number, tenant in enumerate(("acme", "globex", "initech"))
    ]

    outside.publish(*events)

    told = [(one.tenant, one.endpoint_id, one.job_id) for one in outside.webhooks.taken]
    assert told == [("acme", "whk_1", "job_0"), ("globex", "whk_2", "job_1")]


def test_tenants_whose_endpoints_cannot_be_had_are_left_to_the_stream() -> None:
    asked: list[str] = []

    class Busy(InMemoryEndpoints):
        def read(self, tenant: str) -> Endpoints:
            asked.append(tenant)
            if tenant == "globex":
                raise StoreBusyError("no", retry_after_s=1)
            return super().read(tenant)

    outside = Outside()
    outside.endpoints = Busy(outside.world)
    tenants = ("initech", "globex", "acme")

    with pytest.raises(NotPublishedError):
        outside.publish(*(an_event(tenant=tenant) for tenant in tenants))

    assert len(outside.bus.taken) == 3
    assert {one.tenant for one in outside.webhooks.taken} == {"acme"}
    assert asked == ["acme", "globex"]  # the next one would have waited as long
    assert outside.telemetry.events[-1] == (
        "events_left",
        None,
        {"events": 0, "webhooks": 0, "unaddressed": 2},
    )


def test_nothing_to_tell_is_not_told() -> None:
    outside = Outside()

    outside.publish()

    assert (outside.bus.turns, outside.telemetry.events) == (0, [])


def test_what_was_refused_is_tried_again_and_nothing_else() -> None:
    outside = Outside(FakeBus(2, 1), FakeWebhookQueue(1))
    events = [an_event(number) for number in range(3)]

    outside.publish(*events)

    assert sorted(event.job_id for event in outside.bus.taken) == ["job_0", "job_1", "job_2"]
    assert sorted(one.job_id for one in outside.webhooks.taken) == ["job_0", "job_1", "job_2"]
    assert outside.pauses == [0.2, 0.4]


@pytest.mark.parametrize("part", ["bus", "webhooks"])
def test_what_stays_refused_brings_the_batch_back(part: str) -> None:
    refusals = [1] * TRIES
    outside = Outside(
        FakeBus(*refusals) if part == "bus" else None,
        FakeWebhookQueue(*refusals) if part == "webhooks" else None,
    )

    with pytest.raises(NotPublishedError):
        outside.publish(an_event(1), an_event(2))

    # The other is told all the same: neither waits for the other to work again.
    assert len(outside.bus.taken) == (1 if part == "bus" else 2)
    assert len(outside.webhooks.taken) == (1 if part == "webhooks" else 2)
    assert outside.telemetry.names == ["events_published", "events_left"]


# ------------------------------------------------------------------ EventBridge


class EventBridge:
    """PutEvents; each answer is a failure, or the places of the entries that it refuses."""

    def __init__(self, *answers: Exception | tuple[int, ...]) -> None:
        self.answers = list(answers)
        self.batches: list[list[dict[str, Any]]] = []

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.batches.append(Entries)
        answer = self.answers.pop(0) if self.answers else ()
        if isinstance(answer, Exception):
            raise answer
        entries = [
            {"ErrorCode": "ThrottlingException"} if place in answer else {"EventId": str(place)}
            for place in range(len(Entries))
        ]
        return {"FailedEntryCount": len(answer), "Entries": entries}


THROTTLED = ClientError({"Error": {"Code": "ThrottlingException", "Message": ""}}, "PutEvents")
UNREACHABLE = EndpointConnectionError(endpoint_url="https://events.us-east-1.amazonaws.com")


def test_entry_is_as_the_contract_says() -> None:
    client = EventBridge()
    event = an_event()

    EventBridgeEvents(client, "sluiceway").put([event])

    (((entry,),)) = client.batches
    detail = json.loads(entry.pop("Detail"))
    assert detail == event.detail()
    assert entry.pop("Time").timestamp() * 1000 == event.at_epoch_ms
    assert entry == {
        "Source": "sluiceway",
        "DetailType": "JobCompleted",
        "EventBusName": "sluiceway",
    }


@pytest.mark.parametrize(
    ("status", "detail_type"),
    [
        ("completed", "JobCompleted"),
        ("failed", "JobFailed"),
        ("dead_lettered", "JobDeadLettered"),
        ("cancelled", "JobCancelled"),
    ],
)
def test_each_status_has_its_detail_type(status: str, detail_type: str) -> None:
    assert an_event(status=status).detail_type == detail_type


def test_ten_events_go_at_once_and_no_more() -> None:
    client = EventBridge()

    EventBridgeEvents(client, "bus").put([an_event(number) for number in range(23)])

    assert [len(batch) for batch in client.batches] == [10, 10, 3]


def test_refused_entries_are_given_back_and_the_others_are_not() -> None:
    failures: list[str] = []
    client = EventBridge((1, 9), (), (0,))
    events = [an_event(number) for number in range(21)]

    refused = EventBridgeEvents(client, "bus", on_failure=failures.append).put(events)

    assert refused == [events[1], events[9], events[20]]
    assert failures == ["ThrottlingException"] * 3


@pytest.mark.parametrize("failure", [THROTTLED, UNREACHABLE])
def test_failed_call_gives_back_its_batch_and_those_after_it(failure: Exception) -> None:
    client = EventBridge((2,), failure)
    events = [an_event(number) for number in range(30)]

    refused = EventBridgeEvents(client, "bus").put(events)

    assert refused == [events[2], *events[10:]]
    assert len(client.batches) == 2


# ------------------------------------------------------------------ SQS


class SQS:
    """SendMessageBatch, as EventBridge above."""

    def __init__(self, *answers: Exception | tuple[int, ...]) -> None:
        self.answers = list(answers)
        self.batches: list[list[dict[str, Any]]] = []
        self.given_back: list[dict[str, Any]] = []

    def send_message_batch(self, **request: Any) -> dict[str, Any]:
        self.batches.append(request["Entries"])
        answer = self.answers.pop(0) if self.answers else ()
        if isinstance(answer, Exception):
            raise answer
        ids = [entry["Id"] for entry in request["Entries"]]
        failed = [{"Id": one, "Code": "InternalError"} for one in ids if int(one) in answer]
        sent = [{"Id": one} for one in ids if int(one) not in answer]
        return {"Failed": failed, "Successful": sent} if failed else {"Successful": sent}

    def change_message_visibility(self, **request: Any) -> None:
        if self.answers:
            raise self.answers.pop(0)  # type: ignore[misc]
        self.given_back.append(request)


def some_deliveries(count: int) -> list[Delivery]:
    return [one for number in range(count) for one in deliveries(an_event(number), NO_ENDPOINTS)]


def test_message_is_read_as_it_was_written() -> None:
    client = SQS()
    sent = some_deliveries(12)

    assert SQSWebhooks(client, "url").send(sent) == []  # type: ignore[arg-type]

    assert [len(batch) for batch in client.batches] == [10, 2]
    entries = [entry for batch in client.batches for entry in batch]
    assert [read_body(entry["MessageBody"]) for entry in entries] == sent
    assert {entry["MessageGroupId"] for entry in entries} == {"acme"}


def test_refused_messages_are_given_back() -> None:
    failures: list[str] = []
    sent = some_deliveries(22)
    client = SQS((0,), UNREACHABLE)

    refused = SQSWebhooks(client, "url", on_failure=failures.append).send(sent)  # type: ignore[arg-type]

    assert refused == [sent[0], *sent[10:]]
    assert failures == ["InternalError", "EndpointConnectionError"]


def test_wait_is_a_visibility_in_whole_seconds() -> None:
    client = SQS()
    queue = SQSWebhooks(client, "url")  # type: ignore[arg-type]

    for delay_s in (0.0, 5.2, 23_760.0, 1e9):
        queue.give_back("receipt", delay_s)

    assert [one["VisibilityTimeout"] for one in client.given_back] == [0, 6, 23_760, 42_000]


def test_message_that_is_gone_is_left_alone() -> None:
    SQSWebhooks(SQS(THROTTLED), "url").give_back("receipt", 1.0)  # type: ignore[arg-type]


MESSAGE = asdict(some_deliveries(1)[0])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no json",
        "[]",
        "null",
        "{}",
        '{"tenant": "acme", "job_id": "job_1"}',
        json.dumps({**MESSAGE, "body": 1}),
        json.dumps({**MESSAGE, "body": "é"}),
        json.dumps({name: value for name, value in MESSAGE.items() if name != "url"}),
        json.dumps({**MESSAGE, "at_epoch_ms": "1"}),
        json.dumps({**MESSAGE, "at_epoch_ms": True}),
        json.dumps({**MESSAGE, "at_epoch_ms": -1}),
        json.dumps({**MESSAGE, "at_epoch_ms": 1 << 48}),
        "[" * 100_000,
    ],
)
def test_message_that_is_not_ours_is_none(body: str) -> None:
    assert read_body(body) is None


def test_message_of_newer_code_is_read_without_what_it_says_besides() -> None:
    body = json.dumps({**MESSAGE, "more": ["x"]})

    assert read_body(body) == some_deliveries(1)[0]
