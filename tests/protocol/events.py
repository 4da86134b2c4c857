"""The stream of the Jobs table, whoever it is told to, and what they must have heard in the end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb_jobs import _values_of
from sluiceway.domain.job import OPEN, Job
from sluiceway.domain.times import rfc3339
from sluiceway.domain.webhook import DETAIL_TYPES

from tests.contract.harness import template_resources
from tests.fakes.in_memory import InMemoryEndpoints, World
from tests.fakes.outside import FakeBus, FakeWebhookQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sluiceway.domain.webhook import JobEvent

BATCH = 10
"""Records of one invocation. The template says 100; no scenario has so many."""

Ending = tuple[str, str, str, int, bool]
"""Tenant, job id, status, redrives, discarded: what an event's id must stand for."""


# ------------------------------------------------------------------------------------ the stream


@dataclass(frozen=True, slots=True)
class Change:
    """One write of a job's row that changed it: a record of the stream."""

    old: Job | None
    new: Job
    at_ms: int
    stored: Mapping[str, Any] | None = None
    """The record as a real stream has it."""

    @property
    def event_name(self) -> str:
        return "INSERT" if self.old is None else "MODIFY"

    @property
    def invokes(self) -> bool:
        """Whether the template lets the publisher see it."""
        return _passes(self.event_name, self.old and self.old.status.value, self.new.status.value)

    @property
    def ending(self) -> Ending | None:
        """The end that the job reached in it; nobody is told of a refresh's."""
        job = self.new
        if job.refresh or job.open or (self.old is not None and self.old.status is job.status):
            return None
        return job.tenant, job.job_id, job.status.value, job.redrives, job.discarded

    def record(self) -> Mapping[str, Any]:
        """As Lambda delivers it."""
        return self.stored or {
            "eventName": self.event_name,
            "dynamodb": {
                "ApproximateCreationDateTime": self.at_ms / 1000,
                "NewImage": Image(self.new),
                **({} if self.old is None else {"OldImage": Image(self.old)}),
            },
        }


class Rows(dict[tuple[str, str], Job]):
    """The rows of the Jobs table in memory; what changes one is in the stream."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._unread: list[Change] = []

    def __setitem__(self, key: tuple[str, str], job: Job) -> None:
        old = self.get(key)
        super().__setitem__(key, job)
        if job != old:
            self._unread.append(Change(old, job, self._now_ms()))

    def read(self) -> list[Change]:
        """What came since the last time."""
        unread, self._unread = self._unread, []
        return unread


class Stream:
    """Lambda's reader of the stream: in order, and each batch again until it went through."""

    def __init__(self, read: Callable[[], list[Change]]) -> None:
        self._read = read
        self._changes: list[Change] = []
        self._told = 0
        """So many of them need not be brought again."""

    def changes(self) -> list[Change]:
        """All that there were."""
        self._changes += self._read()
        return self._changes

    @property
    def ended(self) -> bool:
        """Nothing is left to be told."""
        return self._told == len(self.changes())

    def batch(self) -> tuple[list[Mapping[str, Any]], int]:
        """The next records that the publisher sees, and how far they go."""
        changes = self.changes()
        while self._told < len(changes) and not changes[self._told].invokes:
            self._told += 1
        until = min(self._told + BATCH, len(changes))
        return [one.record() for one in changes[self._told : until] if one.invokes], until

    def advance(self, until: int) -> None:
        """The batch went through."""
        self._told = until


class Image(Mapping[str, Any]):
    """A row as DynamoDB has it, made as far as somebody looks: most of it is of no use here."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def _values(self) -> dict[str, Any]:
        values = _values_of(self._job)
        return {name: value for name, value in values.items() if value is not None}

    def __getitem__(self, name: str) -> Any:
        if name == "status":
            return {"S": self._job.status.value}
        return _attribute(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return name in self._values


def _attribute(value: Any) -> dict[str, Any]:
    """As boto3's serializer, which takes ten times as long."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case set():
            return {"SS": list(value)}
        case list():
            return {"L": [_attribute(one) for one in value]}
    return {"M": {name: _attribute(one) for name, one in value.items()}}


@cache
def _passes(event_name: str, old_status: str | None, new_status: str) -> bool:
    """A filter of anything but the statuses matches nothing here."""
    images = {"NewImage": {"status": {"S": new_status}}}
    if old_status is not None:
        images["OldImage"] = {"status": {"S": old_status}}
    return passes({"eventName": event_name, "dynamodb": images})


def passes(record: Mapping[str, Any]) -> bool:
    """Whether the template lets the publisher see a record."""
    return any(matches(pattern, record) for pattern in _patterns())


def matches(pattern: Any, found: Any) -> bool:
    if isinstance(pattern, list):
        return found in pattern
    return isinstance(found, Mapping) and all(
        name in found and matches(part, found[name]) for name, part in pattern.items()
    )


@cache
def _patterns() -> list[Any]:
    """The filters of the publisher in template.yaml."""
    source = template_resources()["PublishEventsFunction"]["Properties"]["Events"]["JobsStream"]
    filters = source["Properties"]["FilterCriteria"]["Filters"]
    return [json.loads(each["Pattern"]) for each in filters]


# ------------------------------------------------------------------------------------ who is told


class Bus(FakeBus):
    """Keeps what is on the wire, of whatever it took."""

    def __init__(self) -> None:
        super().__init__()
        self.details: list[dict[str, Any]] = []

    def put(self, events: Sequence[JobEvent]) -> list[JobEvent]:
        before = len(self.taken)
        left = super().put(events)
        self.details += [
            {**event.detail(), "type": event.detail_type, "discarded": event.discarded}
            for event in self.taken[before:]
        ]
        return left


class Told:
    """What the bus and the webhook queue heard, against what happened."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.bus = Bus()
        self.endpoints = InMemoryEndpoints(World())
        self.webhooks = FakeWebhookQueue()

    def check(self, jobs: Iterable[Job], promised: Mapping[tuple[str, str], set[str]]) -> None:
        """Everybody knows of each end, under one id of its own, and of nothing else.

        `promised`: the addresses that partners were told would be called, by job.
        """
        ends = {end: one for one in self._stream.changes() if (end := one.ending) is not None}
        ids = self._check_bus(ends)
        called = self._check_webhooks({ids[end]: one for end, one in ends.items()})
        for job in jobs:
            assert job.status not in OPEN
            if job.refresh:
                continue
            last = job.tenant, job.job_id, job.status.value, job.redrives, job.discarded
            assert last in ends, f"nobody was told how it ended: {last}"
            missing = promised.get((job.tenant, job.job_id), set()) - called[ids[last]]
            assert not missing, f"nobody calls {missing} about {last}"

    def _check_bus(self, ends: Mapping[Ending, Change]) -> dict[Ending, str]:
        """The ids."""
        heard: dict[Ending, dict[str, Any]] = {}
        for detail in self.bus.details:
            names = ("tenant", "job_id", "status", "redrives", "discarded")
            end: Any = tuple(detail[name] for name in names)
            assert heard.setdefault(end, detail) == detail, f"told differently: {detail}"
        assert heard.keys() == ends.keys(), (
            f"not told: {ends.keys() - heard.keys()}; never was: {heard.keys() - ends.keys()}"
        )
        ids = {end: detail["id"] for end, detail in heard.items()}
        assert len(set(ids.values())) == len(ids), f"one id for two ends: {ids}"
        for end, detail in heard.items():
            job = ends[end].new
            error = None if job.error is None else job.error.code
            assert detail["type"] == DETAIL_TYPES[job.status]
            assert detail["attempts"] == job.attempts_total, f"{detail} {job}"
            assert detail.get("error", {}).get("code") == error, f"{detail} {job}"
            ended_at_ms = job.completed_at_epoch_ms or job.failed_at_epoch_ms
            assert detail["completed_at"] == rfc3339(ended_at_ms), f"{detail} {job}"
        return ids

    def _check_webhooks(self, ends: Mapping[str, Change]) -> dict[str, set[str]]:
        """The addresses that are called about each event."""
        called: dict[str, set[str]] = defaultdict(set)
        bodies: dict[str, str] = {}
        for delivery in self.webhooks.taken:
            assert delivery.event_id in ends, f"no event has this id: {delivery}"
            job = ends[delivery.event_id].new
            assert (delivery.tenant, delivery.job_id) == (job.tenant, job.job_id)
            called[delivery.event_id].add(delivery.url)
            body = bodies.setdefault(delivery.event_id, delivery.body)
            assert body == delivery.body, f"signed differently: {body} {delivery.body}"
            assert json.loads(body)["type"] == f"job.{job.status.value}"
        for event_id, one in ends.items():
            assert called[event_id] == set(one.new.callback_urls), (
                f"called {called[event_id]} about {one.ending}, wanted {one.new.callback_urls}"
            )
        return called
