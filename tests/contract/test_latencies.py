"""Latencies: the shared samples of what calls took, on the fake and on DynamoDB."""

from __future__ import annotations

import itertools
import random
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.dynamodb import Table, to_item
from sluiceway.adapters.dynamodb_latencies import (
    COPY_LIVES_MS,
    COPY_OF_FEW_LIVES_MS,
    DynamoDBLatencies,
)
from sluiceway.domain.timeouts import (
    ENOUGH_SAMPLES,
    LEAST_SAMPLES,
    RING,
    SAMPLE_LIVES_MS,
    key_of,
)

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import make_tables
from tests.fakes.in_memory import NOW_MS, InMemoryLatencies, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient
    from sluiceway.ports import Latencies

KEY = key_of("simulator", "sim-chat-1")
_prefixes = itertools.count(1)


def in_turn() -> Callable[[], float]:
    """Chance that has each place of the ring in turn."""
    return itertools.cycle((place + 0.5) / RING for place in range(RING)).__next__


class OnDynamoDB:
    """Processes that share a table, whose calls are counted."""

    def __init__(self, client: DynamoDBClient) -> None:
        self.client = client
        self.calls: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        tables = make_tables(client, f"latencies-{next(_prefixes)}-{secrets.token_hex(4)}")
        self.name = tables.names.coordination
        self.rand = in_turn()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(**request: Any) -> Any:
            self.calls[name] += 1
            self.requests.append(request)
            return method(**request)

        return call

    def process(self, client: Any = None) -> Latencies:
        table = Table(client or self, pause=lambda _: None)
        return DynamoDBLatencies(table, self.name, rand=lambda: self.rand())  # noqa: PLW0108 - tests change it

    def row(self, key: str = KEY) -> dict[str, Any] | None:
        key_item = to_item({"coordination_key": key})
        return self.client.get_item(TableName=self.name, Key=key_item, ConsistentRead=True).get(
            "Item"
        )


class InMemory:
    """The fake."""

    def __init__(self) -> None:
        self.world = World()
        self.rand = in_turn()

    def process(self) -> Latencies:
        return InMemoryLatencies(self.world, rand=self.rand)


Place = InMemory | OnDynamoDB


@pytest.fixture(params=["in_memory", "moto", "dynamodb_local"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "in_memory":
        return InMemory()
    return OnDynamoDB(request.getfixturevalue(f"{request.param}_client"))


@pytest.fixture
def tables(dynamodb: DynamoDBClient) -> OnDynamoDB:
    return OnDynamoDB(dynamodb)


def fill(latencies: Latencies, latency_ms: int, *, number: int = RING, at_ms: int = 0) -> None:
    for _ in range(number):
        latencies.add(KEY, latency_ms, now_ms=NOW_MS + at_ms, surely=True)


def median(latencies: Latencies, at_ms: int = 0, *, key: str = KEY) -> int | None:
    return latencies.median_ms(key, now_ms=NOW_MS + at_ms)


# ------------------------------------------------------------------ what is known


def test_nothing_is_known_of_a_model_that_nobody_called(place: Place) -> None:
    assert median(place.process()) is None


def test_what_one_process_adds_the_others_know(place: Place) -> None:
    fill(place.process(), 400)

    assert median(place.process()) == 400


def test_few_samples_are_not_enough(place: Place) -> None:
    latencies = place.process()
    fill(latencies, 400, number=LEAST_SAMPLES - 1)

    assert median(latencies) is None
    assert median(place.process()) is None


def test_each_vendors_model_has_its_own(place: Place) -> None:
    latencies = place.process()
    fill(latencies, 400)

    assert median(latencies, key=key_of("simulator", "other")) is None


def test_new_samples_take_the_place_of_others(place: Place) -> None:
    latencies = place.process()
    fill(latencies, 400)
    fill(latencies, 900)

    assert median(latencies) == 900


def test_samples_are_forgotten_after_an_hour(place: Place) -> None:
    fill(place.process(), 400)

    assert median(place.process(), SAMPLE_LIVES_MS) == 400
    assert median(place.process(), SAMPLE_LIVES_MS + 1) is None


def test_a_sample_of_its_own_is_known_to_a_process_at_once(place: Place) -> None:
    latencies = place.process()
    assert median(latencies) is None

    fill(latencies, 400)

    assert median(latencies) == 400


# ------------------------------------------------------------------ what it costs


def test_ring_holds_so_many_and_goes_when_it_is_not_used(tables: OnDynamoDB) -> None:
    fill(tables.process(), 400)

    row = tables.row()
    assert row is not None
    assert row.keys() - {"coordination_key", "ttl_epoch_s"} == {str(place) for place in range(RING)}
    lives_s = int(row["ttl_epoch_s"]["N"]) - NOW_MS // 1000
    assert lives_s * 1000 == 2 * SAMPLE_LIVES_MS


def test_sample_is_one_blind_write(tables: OnDynamoDB) -> None:
    tables.process().add(KEY, 400, now_ms=NOW_MS)

    assert tables.calls == {"update_item": 1}
    assert "ConditionExpression" not in tables.requests[0]


def test_row_is_read_every_half_minute_and_not_consistently(tables: OnDynamoDB) -> None:
    writer = tables.process()
    while median(writer) is None:
        writer.add(KEY, 400, now_ms=NOW_MS)
    tables.calls.clear()
    tables.requests.clear()
    latencies = tables.process()

    for at_ms in (0, 1, COPY_LIVES_MS - 1, COPY_LIVES_MS, 2 * COPY_LIVES_MS - 1):
        median(latencies, at_ms)

    assert tables.calls == {"get_item": 2}
    assert [request["ConsistentRead"] for request in tables.requests] == [False, False]


def test_row_of_few_samples_is_read_more_often(tables: OnDynamoDB) -> None:
    latencies = tables.process()

    for at_ms in (0, COPY_OF_FEW_LIVES_MS - 1, COPY_OF_FEW_LIVES_MS):
        assert median(latencies, at_ms) is None

    assert tables.calls == {"get_item": 2}


def test_fewer_samples_give_a_median_to_who_is_content_with_them(place: Place) -> None:
    place.process().add(KEY, 400, now_ms=NOW_MS)

    assert place.process().median_ms(KEY, now_ms=NOW_MS) is None
    assert place.process().median_ms(KEY, now_ms=NOW_MS, least=1) == 400


def test_clock_that_went_back_keeps_no_copy_alive(tables: OnDynamoDB) -> None:
    latencies = tables.process()

    median(latencies, 3_600_000)
    median(latencies)

    assert tables.calls == {"get_item": 2}


def test_each_call_is_written_while_few_are_known_and_then_one_in_ten(tables: OnDynamoDB) -> None:
    latencies = tables.process()
    # Never by chance, and each time at another place.
    tables.rand = itertools.cycle((place + 0.5) / RING for place in range(4, 31)).__next__

    for _ in range(30):
        latencies.add(KEY, 400, now_ms=NOW_MS)
    assert tables.calls == {"update_item": ENOUGH_SAMPLES}
    tables.calls.clear()

    tables.rand = random.Random(3).random  # noqa: S311
    for _ in range(300):
        latencies.add(KEY, 400, now_ms=NOW_MS)

    assert 15 <= tables.calls["update_item"] <= 45


def test_sure_samples_are_all_written(tables: OnDynamoDB) -> None:
    latencies = tables.process()
    fill(latencies, 400)
    tables.calls.clear()
    tables.rand = lambda: 0.999

    latencies.add(KEY, 400, now_ms=NOW_MS)
    latencies.add(KEY, 60_000, now_ms=NOW_MS, surely=True)

    assert tables.calls == {"update_item": 1}


def test_lost_reply_writes_the_same_sample_again(tables: OnDynamoDB) -> None:
    client: Any = FaultyClient(tables.client, replies=[timed_out()])

    tables.process(client).add(KEY, 400, now_ms=NOW_MS)

    row = tables.row()
    assert row is not None
    assert len(row) == 3


@pytest.mark.parametrize(
    "damage",
    ["slow", 7, [], [NOW_MS], ["once", 400], [NOW_MS, "long"], [NOW_MS, 1, 1], [NOW_MS, True]],
    ids=repr,
)
def test_damaged_sample_is_as_good_as_none(tables: OnDynamoDB, damage: Any) -> None:
    fill(tables.process(), 400)
    for place in range(RING // 2):
        tables.client.update_item(
            TableName=tables.name,
            Key=to_item({"coordination_key": KEY}),
            UpdateExpression="SET #place = :damage",
            ExpressionAttributeNames={"#place": str(place)},
            ExpressionAttributeValues=to_item({":damage": damage}),
        )
    process = tables.process()

    assert median(process) == 400
    fill(process, 900)
    assert median(tables.process()) == 900
