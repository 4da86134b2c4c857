"""DynamoDB's dialect: items, expressions, refusals, and patience with what passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from boto3.dynamodb.types import TypeSerializer
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.adapters.dynamodb import (
    MAX_LOST,
    MAX_TRIES,
    Refusal,
    Table,
    Write,
    changes,
    from_item,
    to_item,
)
from sluiceway.adapters.dynamodb_audit import DynamoDBAudit
from sluiceway.adapters.dynamodb_due_jobs import DynamoDBDueJobs
from sluiceway.domain.errors import DamagedRowError, StoreBusyError

from tests.contract.clients import (
    FaultyClient,
    ScriptedClient,
    cancelled,
    refused,
    timed_out,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.contract.harness import Tables

DELETE = Write("table", {"id": "a"})
PUT = Write("table", {"id": "a"}, item={"id": "a"}, condition="attribute_not_exists(#id)")
UPDATE = Write("table", {"id": "a"}, update="SET #x = :x", values={"x": 1})
CHECK = Write("table", {"id": "a"}, condition="attribute_exists(#id)", check=True)

PASSING = [
    "TransactionConflictException",
    "TransactionInProgressException",
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "InternalServerError",
]


def a_table(client: object, pauses: list[float] | None = None) -> Table:
    """On this client; pauses take no time and are noted."""
    noted = pauses if pauses is not None else []
    return Table(cast("DynamoDBClient", client), pause=noted.append, rand=lambda: 1.0)


# ------------------------------------------------------------------------------------ items


def test_items_keep_every_plain_value() -> None:
    values = {
        "text": "é\U0001f30a\x00",
        "empty": "",
        "bytes": b"\x00\xff",
        "no bytes": b"",
        "number": 2**63,
        "yes": True,
        "no": False,
        "list": ["a", 1, None, {"deep": b"x", "none": None}],
        "map": {"a": {"b": [True]}},
        "set": {"a", "b"},
        "numbers": {1, 2},
    }

    assert from_item(to_item(values)) == values


@pytest.mark.parametrize("value", [True, False, 1, 0, "", b""], ids=repr)
def test_items_keep_the_kind_of_what_equals_another(value: object) -> None:  # case C16, C17
    item = from_item(to_item({"a": value, "b": [value]}))

    assert (type(item["a"]), [type(one) for one in item["b"]]) == (type(value), [type(value)])
    assert item == {"a": value, "b": [value]}


def test_items_leave_none_out() -> None:
    assert to_item({"a": None, "b": 1}) == {"b": {"N": "1"}}


PLAIN = st.none() | st.booleans() | st.text() | st.binary() | st.integers(-(10**38) + 1, 10**38 - 1)
SETS = [
    st.frozensets(kind, min_size=1)
    for kind in (st.text(), st.binary(), st.integers(-(10**38) + 1, 10**38 - 1))
]


@given(
    st.recursive(
        PLAIN | st.one_of(SETS),
        lambda deeper: st.lists(deeper) | st.dictionaries(st.text(), deeper),
    )
)
def test_items_are_those_of_boto3(value: object) -> None:
    theirs = TypeSerializer().serialize(value)

    ours = to_item({"a": {"nested": value}})

    assert ours == {"a": {"M": {"nested": theirs}}}
    assert from_item(ours) == {"a": {"nested": value}}


def test_items_refuse_floats_as_boto3_does() -> None:  # case T08
    with pytest.raises(TypeError, match="float"):
        to_item({"cost": 0.1})


@pytest.mark.parametrize("mixed", [set(), {1, "a"}])
def test_items_refuse_a_set_of_no_one_kind(mixed: set[object]) -> None:
    with pytest.raises(ValueError, match="unpack"):
        to_item({"set": mixed})


@pytest.mark.parametrize("number", ["1E+3", "1000.0", "1e3"])
def test_items_read_an_integer_however_it_is_spelt(number: str) -> None:
    assert from_item({"n": {"N": number}}) == {"n": 1000}


@pytest.mark.parametrize("damaged", [{"X": "a"}, {"B": "text"}])
def test_items_refuse_what_is_no_attribute(damaged: dict[str, str]) -> None:
    with pytest.raises(TypeError):
        from_item({"a": damaged})


@pytest.mark.parametrize("number", ["", "soon", "NaN", "Infinity"])
def test_items_refuse_a_number_that_is_none(number: str) -> None:
    with pytest.raises(ValueError, match="number"):
        from_item({"n": {"N": number}})


def test_items_give_integers_and_not_decimals() -> None:
    value = from_item({"n": {"N": "12"}})["n"]

    assert type(value) is int


# ------------------------------------------------------------------------------------ changes


def test_changes_set_what_differs_and_leave_the_rest_alone() -> None:
    update, values = changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 6})

    assert update == "SET #b = :new_b, #c = :new_c"
    assert values == {"new_b": 5, "new_c": 6}


def test_changes_set_what_is_new_and_remove_what_becomes_none() -> None:
    update, values = changes({"a": 1, "b": None}, {"a": None, "b": 2})

    assert update == "SET #b = :new_b REMOVE #a"
    assert values == {"new_b": 2}


def test_changes_never_remove_what_was_not_there() -> None:
    assert changes({"a": None}, {"a": None}) == ("", {})


def test_changes_keep_empty_values_apart_from_none() -> None:
    update, values = changes({"a": None, "b": 1}, {"a": b"", "b": 0})

    assert update == "SET #a = :new_a, #b = :new_b"
    assert values == {"new_a": b"", "new_b": 0}


# ------------------------------------------------------------------------------------ expressions


@pytest.mark.parametrize(
    "write",
    [
        Write("table", {"id": "a"}, update="SET status = :x", values={"x": 1}),
        Write("table", {"id": "a"}, update="SET #x = state"),
        Write("table", {"id": "a"}, condition="attribute_exists(ttl)"),
        Write("table", {"id": "a"}, condition="#a < :b and #b = :c"),
        Write("table", {"id": "a"}, item={"id": "a"}, condition="attribute_not_exists(name)"),
    ],
)
def test_expression_with_a_bare_name_is_refused(write: Write) -> None:  # case T10
    client = ScriptedClient()

    with pytest.raises(ValueError, match="bare names"):
        a_table(client).write(write)

    assert client.requests == []


@pytest.mark.parametrize(
    "request_of_query",
    [
        {"KeyConditionExpression": "tenant = :owner"},
        {
            "KeyConditionExpression": "#tenant = :owner",
            "FilterExpression": "status = :c",
        },
        {"KeyConditionExpression": "#tenant = :owner", "ProjectionExpression": "#lane, model"},
    ],
    ids=["key", "filter", "projection"],
)
def test_query_with_a_bare_name_is_refused(request_of_query: dict[str, str]) -> None:  # case T10
    client = ScriptedClient()

    with pytest.raises(ValueError, match="bare names"):
        a_table(client).query(TableName="table", **request_of_query)
    with pytest.raises(ValueError, match="bare names"):
        list(a_table(client).pages(TableName="table", **request_of_query))

    assert client.requests == []


def test_expression_names_and_values_are_those_it_uses() -> None:
    write = Write(
        "table",
        {"id": "a"},
        update="SET #end = :end",
        condition="#end < :end_before",
        values={"end": 1, "end_before": 2, "unused": 3},
    )

    _, request = write.request()

    assert request["ExpressionAttributeNames"] == {"#end": "end"}
    assert request["ExpressionAttributeValues"] == {":end": {"N": "1"}, ":end_before": {"N": "2"}}


def test_reserved_words_work_as_names_of_attributes(  # case T10
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    words = ("status", "state", "ttl", "name", "values", "token", "timestamp", "language", "role")
    key = {"cache_key": "a"}
    table = a_table(dynamodb)

    refusal = table.write(
        Write(
            tables.names.cache,
            key,
            update="SET " + ", ".join(f"#{word} = :x" for word in words),
            condition=" AND ".join(f"attribute_not_exists(#{word})" for word in words),
            values={"x": 1},
        )
    )

    assert refusal is None
    assert table.read(tables.names.cache, key) == {**key, **dict.fromkeys(words, 1)}


# ------------------------------------------------------------------------------------ transactions


@pytest.mark.parametrize(
    "second", [DELETE, PUT, UPDATE, CHECK], ids=["delete", "put", "update", "check"]
)
def test_transaction_with_two_writes_to_one_item_is_refused(second: Write) -> None:  # case T02
    client = ScriptedClient()

    with pytest.raises(ValueError, match="same item"):
        a_table(client).transact([UPDATE, second])
    with pytest.raises(ValueError, match="same item"):
        a_table(client).transact([second, UPDATE])

    assert client.requests == []


def test_transaction_may_touch_the_same_key_in_two_tables(
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    table = a_table(dynamodb)

    refusals = table.transact(
        [
            Write(tables.names.cache, {"cache_key": "a"}, item={"cache_key": "a"}),
            Write(
                tables.names.coordination,
                {"coordination_key": "a"},
                item={"coordination_key": "a"},
            ),
        ]
    )

    assert refusals is None


def test_refused_transaction_tells_which_write_and_what_was_there(
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    name = tables.names.cache
    table = a_table(dynamodb)
    table.write(Write(name, {"cache_key": "b"}, item={"cache_key": "b", "x": 1, "y": b"\x00"}))

    refusals = table.transact(
        [
            Write(name, {"cache_key": "a"}, item={"cache_key": "a"}),
            Write(
                name,
                {"cache_key": "b"},
                update="SET #x = :two",
                condition="#x = :two",
                values={"two": 2},
            ),
            Write(name, {"cache_key": "c"}, condition="attribute_exists(#cache_key)"),
        ]
    )

    assert refusals == [None, Refusal({"cache_key": "b", "x": 1, "y": b"\x00"}), Refusal(None)]
    assert table.read(name, {"cache_key": "a"}) is None


def test_check_within_a_transaction_refuses_it_and_writes_nothing(
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    name = tables.names.cache
    table = a_table(dynamodb)

    refusals = table.transact(
        [
            Write(name, {"cache_key": "a"}, item={"cache_key": "a"}),
            Write(name, {"cache_key": "b"}, check=True, condition="attribute_exists(#cache_key)"),
        ]
    )

    assert refusals == [None, Refusal(None)]
    assert table.read(name, {"cache_key": "a"}) is None


@pytest.mark.parametrize("write_first", [True, False])
def test_single_write_that_is_refused_tells_what_was_there(
    dynamodb: DynamoDBClient, tables: Tables, *, write_first: bool
) -> None:
    name, row = tables.names.cache, {"cache_key": "a", "x": 1}
    table = a_table(dynamodb)
    if write_first:
        table.write(Write(name, {"cache_key": "a"}, item=row))

    refusal = table.write(
        Write(
            name,
            {"cache_key": "a"},
            update="SET #x = :two",
            condition="#x = :two",
            values={"two": 2},
        )
    )

    assert refusal == Refusal(row if write_first else None)


def test_several_items_are_read_in_the_order_of_their_keys(
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    name = tables.names.cache
    table = a_table(dynamodb)
    for key in ("a", "b"):
        table.write(Write(name, {"cache_key": key}, item={"cache_key": key, "x": key}))

    rows = table.read_all(name, [{"cache_key": key} for key in ("b", "none", "a")])

    assert rows == [{"cache_key": "b", "x": "b"}, None, {"cache_key": "a", "x": "a"}]


def test_several_items_of_which_some_were_left_out_are_store_busy() -> None:
    client = ScriptedClient(
        answer={"Responses": {}, "UnprocessedKeys": {"table": {"Keys": [{"id": {"S": "a"}}]}}}
    )

    with pytest.raises(StoreBusyError):
        a_table(client).read_all("table", [{"id": "a"}])


# ------------------------------------------------------------------------------------ patience


@pytest.mark.parametrize("code", PASSING)
def test_transaction_is_tried_again_after_what_passes(code: str) -> None:
    client = ScriptedClient(refused(code), refused(code))

    refusals = a_table(client).transact([UPDATE])

    assert refusals is None
    assert len(client.requests) == 3


@pytest.mark.parametrize(
    "reason", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"]
)
def test_transaction_that_was_cancelled_by_what_passes_is_tried_again(reason: str) -> None:
    client = ScriptedClient(cancelled("None", reason), cancelled(reason, "None"))

    refusals = a_table(client).transact([UPDATE, Write("other", {"id": "a"})])

    assert refusals is None
    assert len(client.requests) == 3


@pytest.mark.parametrize("of", ["the item", "the request"])
def test_transaction_on_a_number_that_is_none_is_a_damaged_row(of: str) -> None:
    text = "An operand in the update expression has an incorrect data type"
    error = refused("ValidationException")
    if of == "the item":  # as DynamoDB says it; emulators say it of the request
        error = cancelled("None", "ValidationError")
        error.response["CancellationReasons"][1]["Message"] = text  # type: ignore[typeddict-item]
    else:
        error.response["Error"]["Message"] = text

    with pytest.raises(DamagedRowError):
        a_table(ScriptedClient(error)).transact([UPDATE])


def test_transaction_is_given_up_after_so_many_conflicts() -> None:
    client = ScriptedClient(*[cancelled("TransactionConflict") for _ in range(MAX_TRIES)])

    with pytest.raises(StoreBusyError) as error:
        a_table(client).transact([UPDATE])

    assert len(client.requests) == MAX_TRIES
    assert error.value.retry_after_s == 1


def test_transaction_that_succeeds_on_the_last_try_is_written() -> None:
    client = ScriptedClient(*[cancelled("TransactionConflict") for _ in range(MAX_TRIES - 1)])

    refusals = a_table(client).transact([UPDATE])

    assert refusals is None


def test_transaction_with_a_refused_condition_is_not_tried_again() -> None:
    client = ScriptedClient(cancelled("TransactionConflict", "ConditionalCheckFailed"))

    refusals = a_table(client).transact([UPDATE, Write("other", {"id": "a"})])

    assert refusals == [None, Refusal(None)]
    assert len(client.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        refused("ValidationException"),
        refused("AccessDeniedException"),
        refused("ResourceNotFoundException"),
        cancelled("ValidationError", "None"),
        cancelled("ItemCollectionSizeLimitExceeded", "None"),
        refused("TransactionCanceledException"),
    ],
    ids=["validation", "access", "no table", "item validation", "size", "no reasons"],
)
def test_transaction_that_fails_for_good_raises_what_was_said(error: ClientError) -> None:
    client = ScriptedClient(error)

    with pytest.raises(ClientError) as raised:
        a_table(client).transact([UPDATE])

    assert raised.value is error
    assert len(client.requests) == 1


@pytest.mark.parametrize("write", [PUT, UPDATE, DELETE], ids=["put", "update", "delete"])
@pytest.mark.parametrize("code", PASSING)
def test_single_write_is_tried_again_after_what_passes(write: Write, code: str) -> None:
    client = ScriptedClient(refused(code))

    refusal = a_table(client).write(write)

    assert refusal is None
    assert len(client.requests) == 2


def test_single_write_is_given_up_after_so_many_conflicts() -> None:
    client = ScriptedClient(*[refused("TransactionConflictException") for _ in range(MAX_TRIES)])

    with pytest.raises(StoreBusyError):
        a_table(client).write(UPDATE)

    assert len(client.requests) == MAX_TRIES


def test_single_write_that_fails_for_good_raises_what_was_said() -> None:
    client = ScriptedClient(refused("AccessDeniedException"))

    with pytest.raises(ClientError, match="AccessDenied"):
        a_table(client).write(UPDATE)

    assert len(client.requests) == 1


def test_pauses_grow_and_take_about_two_seconds_in_all() -> None:
    pauses: list[float] = []
    client = ScriptedClient(*[cancelled("TransactionConflict") for _ in range(MAX_TRIES)])

    with pytest.raises(StoreBusyError):
        a_table(client, pauses).transact([UPDATE])

    assert len(pauses) == MAX_TRIES - 1
    assert pauses == sorted(pauses)
    assert 1.0 < sum(pauses) < 3.0


def test_pauses_are_spread_at_random_so_that_rivals_part() -> None:
    pauses: list[float] = []
    client = ScriptedClient(cancelled("TransactionConflict"))

    Table(cast("DynamoDBClient", client), pause=pauses.append, rand=lambda: 0.0).transact([UPDATE])

    assert pauses == [0.0]


@pytest.mark.parametrize("lost", [timed_out, unreachable])
def test_lost_connection_is_tried_again_and_then_store_busy(lost: Any) -> None:
    client = ScriptedClient(*[lost() for _ in range(MAX_LOST)])

    with pytest.raises(StoreBusyError) as error:
        a_table(client).transact([UPDATE])

    assert len(client.requests) == MAX_LOST
    assert type(error.value.__cause__) is type(lost())


def test_transaction_is_repeated_with_its_first_token() -> None:
    client = ScriptedClient(timed_out(), cancelled("TransactionConflict"))

    a_table(client).transact([UPDATE])

    tokens = {request["ClientRequestToken"] for request in client.requests}
    assert len(client.requests) == 3
    assert len(tokens) == 1


def test_transactions_have_tokens_of_their_own() -> None:
    client = ScriptedClient()
    table = a_table(client)

    table.transact([UPDATE])
    table.transact([UPDATE])

    first, second = (request["ClientRequestToken"] for request in client.requests)
    assert first != second


@pytest.mark.parametrize("dynamodb", ["dynamodb_local"], indirect=True)  # moto knows no tokens
def test_transaction_that_was_carried_out_is_a_success_when_it_is_repeated(
    dynamodb: DynamoDBClient, tables: Tables
) -> None:
    client = FaultyClient(dynamodb, replies=[timed_out()])
    write = Write(
        tables.names.cache,
        {"cache_key": "a"},
        update="ADD #x :one",
        condition="attribute_not_exists(#x)",
        values={"one": 1},
    )

    refusals = a_table(client).transact([write])

    assert refusals is None
    assert client.writes == 2
    assert a_table(dynamodb).read(tables.names.cache, {"cache_key": "a"}) == {
        "cache_key": "a",
        "x": 1,
    }


@pytest.mark.parametrize(
    "error",
    [refused("ProvisionedThroughputExceededException"), timed_out()],
    ids=["throttled", "timed out"],
)
def test_read_that_does_not_come_through_is_store_busy(error: Exception) -> None:
    client = ScriptedClient(*[error] * 100)

    with pytest.raises(StoreBusyError):
        a_table(client).read("table", {"id": "a"})


QUERIES: dict[str, Callable[[Table], object]] = {
    "due": lambda table: DynamoDBDueJobs(table, "jobs").due("0", until_ms=1, limit=1),
    "indexed": lambda table: list(DynamoDBDueJobs(table, "jobs").indexed("0")),
    "counted": lambda table: [
        job for _, jobs in DynamoDBDueJobs(table, "jobs").counted("0", before={}) for job in jobs
    ],
    "audit": lambda table: DynamoDBAudit(table, "jobs").list(since_ms=1, until_ms=1, limit=1),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_query_waits_out_a_throttle(query: Callable[[Table], object]) -> None:
    throttle = refused("ThrottlingException")
    client = ScriptedClient(throttle, throttle, answer={"Items": [], "ScannedCount": 0})
    pauses: list[float] = []

    assert query(a_table(client, pauses)) == []
    assert (len(client.requests), len(pauses)) == (3, 2)


def test_pages_are_read_as_they_are_wanted() -> None:
    more = {"Items": [{"id": {"S": "a"}}], "LastEvaluatedKey": {"id": {"S": "a"}}}
    client = ScriptedClient(answer=more)
    pages = a_table(client).pages(TableName="table")

    assert (next(pages), len(client.requests)) == ([{"id": {"S": "a"}}], 1)
    client.answer = {"Items": []}
    assert list(pages) == [[]]
    assert client.requests[1] == {
        "TableName": "table",
        "ExclusiveStartKey": {"id": {"S": "a"}},
    }
