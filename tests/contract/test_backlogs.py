"""Backlogs: the picture of what waits and runs, of which every process has a copy."""

from __future__ import annotations

import json
import random
import secrets
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters.dynamodb import to_item
from sluiceway.adapters.dynamodb_backlog import BACKLOG_KEY, COPY_LIVES_MS, DynamoDBBacklogs
from sluiceway.domain.backlog import MOST_GROUPS, TELLS_FOR_MS, Backlog, Group, Pace, Waits
from sluiceway.domain.errors import StoreBusyError

from tests.contract.clients import FaultyClient, timed_out
from tests.contract.harness import make_tables, store_on
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from typing import Any

    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.contract.harness import Store, Tables
    from tests.fakes.in_memory import FakeClock

PICTURE = Backlog(
    measured_at_epoch_ms=NOW_MS,
    groups=(
        Group(
            *("interactive", "demo-chat", "acme"),
            waiting=5,
            slotted=2,
            running=1,
            oldest_epoch_ms=NOW_MS - 60_000,
            later_epoch_ms=(NOW_MS - 30_000, NOW_MS),
        ),
        Group("batch", "demo-chat", "refresh#", running=1, oldest_epoch_ms=NOW_MS - 1),
    ),
    paces={"demo-chat": Pace(100.5, 2_000, NOW_MS + 1, NOW_MS - 2)},
    workers={"interactive": 8, "batch": 2},
    besides={"batch": 7},
    waits={"interactive": Waits(2, NOW_MS - 60_000, 3, NOW_MS - 30_000), "batch": Waits(1)},
)


def at(after_ms: int) -> Backlog:
    """A picture that was measured so much later."""
    return Backlog(measured_at_epoch_ms=NOW_MS + after_ms, workers={"batch": after_ms})


def test_there_is_no_picture_before_the_first(store: Store) -> None:
    assert store.backlogs.read() == Backlog()


def test_picture_is_read_as_it_was_written(store: Store) -> None:
    store.backlogs.write(PICTURE)

    assert store.backlogs.read() == PICTURE


@pytest.mark.parametrize(
    "picture",
    [b"", b"no picture", zlib.compress(b"[]"), zlib.compress(b'{"groups": [[1]]}'), "", 1, None],
)
def test_picture_of_another_form_tells_nothing_and_is_replaced(
    dynamodb: DynamoDBClient, tables: Tables, dynamodb_store: Store, picture: Any
) -> None:
    dynamodb.put_item(
        TableName=tables.names.coordination,
        Item=to_item({**BACKLOG_KEY, "measured_at_epoch_ms": NOW_MS - 1, "picture": picture}),
    )

    assert dynamodb_store.backlogs.read() == Backlog()
    dynamodb_store.backlogs.write(PICTURE)
    assert dynamodb_store.backlogs.read() == PICTURE


def test_later_picture_replaces_an_earlier_one_and_never_the_reverse(store: Store) -> None:
    store.backlogs.write(at(1))
    store.backlogs.write(at(2))
    store.backlogs.write(at(1))

    assert store.backlogs.read() == at(2)


@pytest.mark.parametrize(("ahead_ms", "then_ms"), [(TELLS_FOR_MS, TELLS_FOR_MS), (10**9, 0)])
def test_picture_of_a_clock_that_was_far_ahead_is_replaced(
    store: Store, ahead_ms: int, then_ms: int
) -> None:
    store.backlogs.write(at(ahead_ms))
    store.backlogs.write(at(0))

    assert store.backlogs.read() == at(then_ms)


def test_copy_answers_until_it_has_lived(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock
) -> None:
    reader = store_on(dynamodb, tables, clock).backlogs
    reader.read()
    dynamodb_store.backlogs.write(at(1))

    clock.advance(COPY_LIVES_MS - 1)
    before = reader.read()
    clock.advance(1)

    assert (before, reader.read()) == (Backlog(), at(1))


@pytest.mark.parametrize("back_s", [6, 3600])
def test_copy_of_a_clock_that_went_back_is_used_no_more(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock, back_s: int
) -> None:
    reader = store_on(dynamodb, tables, clock).backlogs
    reader.read()
    dynamodb_store.backlogs.write(at(1))

    clock.advance(s=-back_s)

    assert reader.read() == at(1)


def test_write_whose_reply_is_lost_is_no_failure(
    dynamodb: DynamoDBClient, tables: Tables, clock: FakeClock
) -> None:
    client: Any = FaultyClient(dynamodb, replies=[timed_out()])
    backlogs = store_on(client, tables, clock).backlogs

    backlogs.write(PICTURE)

    assert client.writes == 2
    assert backlogs.read() == PICTURE


def test_biggest_picture_fits_in_what_is_said_of_it(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables
) -> None:
    chance = random.Random(1)  # noqa: S311
    groups = tuple(
        Group(
            *(chance.choice(("interactive", "batch")), f"model-{chance.randrange(20)}"),
            tenant=f"tenant-{number % 500}-{chance.randrange(10**6)}",
            waiting=chance.randrange(10_000),
            running=chance.randrange(10),
            oldest_epoch_ms=NOW_MS - chance.randrange(10**7),
            later_epoch_ms=tuple(NOW_MS - chance.randrange(10**6) for _ in range(8)),
        )
        for number in range(MOST_GROUPS)
    )
    picture = replace(PICTURE, groups=groups)
    dynamodb_store.backlogs.write(picture)

    row = dynamodb.get_item(
        TableName=tables.names.coordination,
        Key={"coordination_key": {"S": BACKLOG_KEY["coordination_key"]}},
    )

    assert 20_000 < len(row["Item"]["picture"]["B"]) < 60_000
    assert isinstance(dynamodb_store.backlogs, DynamoDBBacklogs)
    assert dynamodb_store.backlogs.read() == picture


# ------------------------------------------------------------------------------------ damaged rows


def put_row(client: DynamoDBClient, tables: Tables, **members: Any) -> None:
    client.put_item(TableName=tables.names.coordination, Item=to_item({**BACKLOG_KEY, **members}))


def picture_of(**members: Any) -> bytes:
    document = {"groups": [], "paces": {}, "workers": {}, "besides": {}, **members}
    return zlib.compress(json.dumps(document).encode())


LINE = ["interactive", "demo-chat", "acme"]


def test_picture_of_older_code_tells_nothing_of_what_waits_for_what(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables
) -> None:
    put_row(dynamodb, tables, measured_at_epoch_ms=NOW_MS, picture=picture_of(besides={"batch": 3}))

    assert dynamodb_store.backlogs.read() == Backlog(NOW_MS, besides={"batch": 3})


@pytest.mark.parametrize(
    "picture",
    [
        None,
        "text",
        b"not compressed",
        picture_of()[:-4],
        zlib.compress(b"not JSON"),
        zlib.compress(b"\xff"),
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        picture_of(groups=7),
        picture_of(groups=[[LINE, [1, 0, 0]]]),
        picture_of(groups=[[LINE, ["many", 0, 0], [0]]]),
        picture_of(groups=[[LINE, [1, 0, 0], ["once"]]]),
        picture_of(groups=[[LINE, [1, 0, 0], []]]),
        picture_of(paces={"demo-chat": [1.0]}),
        picture_of(paces={"demo-chat": ["fast", 0, 0, 0]}),
        picture_of(paces={"demo-chat": [1.0, "long", 0, 0]}),
        picture_of(workers=8),
        picture_of(workers={"batch": "two"}),
        picture_of(besides={"batch": None}),
        picture_of(waits={"batch": [1, 2, 3]}),
    ],
    ids=repr,
)
def test_damaged_picture_is_none_until_the_next_is_painted_over_it(
    dynamodb_store: Store, dynamodb: DynamoDBClient, tables: Tables, picture: Any
) -> None:
    put_row(dynamodb, tables, measured_at_epoch_ms=NOW_MS - 1, picture=picture)

    assert dynamodb_store.backlogs.read() == Backlog()

    dynamodb_store.backlogs.write(PICTURE)
    assert dynamodb_store.backlogs.read() == PICTURE


@pytest.mark.parametrize("measured_at", [None, "soon", True, [1]], ids=repr)
def test_picture_whose_time_is_damaged_is_none_until_the_next_is_painted_over_it(
    dynamodb_local_client: DynamoDBClient, clock: FakeClock, measured_at: Any
) -> None:
    # moto compares no number with a text.
    tables = make_tables(dynamodb_local_client, f"pictures-{secrets.token_hex(4)}")
    backlogs = store_on(dynamodb_local_client, tables, clock).backlogs
    put_row(dynamodb_local_client, tables, measured_at_epoch_ms=measured_at, picture=picture_of())

    assert backlogs.read().groups == ()

    backlogs.write(PICTURE)
    assert backlogs.read() == PICTURE


def test_picture_too_big_for_its_row_is_refused_and_the_last_one_stays(
    dynamodb_local_client: DynamoDBClient, clock: FakeClock
) -> None:
    # moto counts no bytes.
    tables = make_tables(dynamodb_local_client, f"pictures-{secrets.token_hex(4)}")
    backlogs = store_on(dynamodb_local_client, tables, clock).backlogs
    backlogs.write(PICTURE)
    groups = tuple(
        Group("batch", "demo-chat", random.Random(number).randbytes(300).hex(), waiting=1)  # noqa: S311
        for number in range(2 * MOST_GROUPS)
    )

    with pytest.raises(StoreBusyError):  # which the sweeper goes on from
        backlogs.write(Backlog(NOW_MS + 1, groups))

    assert backlogs.read() == PICTURE
