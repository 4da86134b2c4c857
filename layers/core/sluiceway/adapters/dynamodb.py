"""DynamoDB's dialect in one place: items, expressions, transactions and their refusals."""

from __future__ import annotations

import random
import re
import time
import uuid
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectionError, HTTPClientError  # noqa: A004

from sluiceway.domain.errors import DamagedRowError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

Item = dict[str, Any]

MAX_TRIES = 8
"""Of a write that others get in the way of; with the pauses below about two seconds."""

MAX_LOST = 3
"""Connections lost, after the SDK's own retries: with its timeouts less than a request may last."""

_REFUSED = "ConditionalCheckFailed"

_PAUSE_BASE_S = 0.02
_PAUSE_MAX_S = 0.5

_BUSY = frozenset(
    {
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "ThrottlingError",
        "ThrottlingException",
        "RequestLimitExceeded",
        "InternalServerError",
        "ServiceUnavailable",
    }
)

_WORDS = frozenset(
    {
        *("SET", "REMOVE", "ADD", "DELETE", "AND", "OR", "NOT", "IN", "BETWEEN"),
        *("attribute_exists", "attribute_not_exists", "if_not_exists"),
        *("begins_with", "contains", "size", "list_append"),
    }
)


# ------------------------------------------------------------------------------------ items


def to_item(values: Mapping[str, Any]) -> Item:
    """Attributes as DynamoDB takes them; None is left out.

    Raises TypeError for a float and for whatever else a row can't hold, and ValueError for a set
    that is empty or of several kinds.
    """
    return {name: _typed(value) for name, value in values.items() if value is not None}


def from_item(item: Item) -> dict[str, Any]:
    """Plain values: integers, not Decimals; bytes, not Binary.

    Raises TypeError or ValueError for what isn't an attribute.
    """
    return {name: _plain(value) for name, value in item.items()}


def members(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a dataclass has of stored values: what newer code wrote besides is left alone."""
    return {name: values[name] for name in kind.__dataclass_fields__ if name in values}


# boto3's own serializer would do, but its Decimals and its questions about each value's type take
# five times as long, and a row has forty attributes.
def _typed(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"S": value}
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case None:
            return {"NULL": True}
        case dict():
            return {"M": {name: _typed(one) for name, one in value.items()}}
        case list() | tuple():
            return {"L": [_typed(one) for one in value]}
        case set() | frozenset():
            typed = [_typed(one) for one in value]
            (kind,) = {kind for one in typed for kind in one}
            return {f"{kind}S": [one[kind] for one in typed]}
    raise TypeError(f"a row can't hold a {type(value).__name__}")


def _plain(attribute: Mapping[str, Any]) -> Any:
    ((kind, content),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return content
        case "N":
            return integer(content)
        case "B":
            return bytes(content)
        case "NULL":
            return None
        case "M":
            return {name: _plain(one) for name, one in content.items()}
        case "L":
            return [_plain(one) for one in content]
        case "SS" | "NS" | "BS":
            return {_plain({kind[0]: one}) for one in content}
    raise TypeError(f"DynamoDB has no type {kind}")


def integer(digits: str) -> int:
    """Of a number as DynamoDB writes it; a fraction, which nobody here stores, is cut off."""
    try:
        return int(digits)
    except ValueError:
        pass
    try:
        return int(Decimal(digits))
    except (ArithmeticError, ValueError) as error:
        raise ValueError("not a number of DynamoDB's") from error


# ------------------------------------------------------------------------------------ expressions


@lru_cache(maxsize=256)
def _names(text: str) -> dict[str, str]:
    """The names behind the `#aliases` of an expression.

    Raises ValueError for a bare word: DynamoDB reserves 573 of them, emulators reserve others.
    """
    bare = set(re.findall(r"(?<![#:\w])[A-Za-z_]\w*", text)) - _WORDS
    if bare:
        raise ValueError(f"expression with bare names: {sorted(bare)}")
    return {alias: alias[1:] for alias in re.findall(r"#\w+", text)}


@dataclass(frozen=True, slots=True)
class Write:
    """One write to one item, alone or within a transaction.

    `update` and `condition` say `#name` for the attribute `name`, `:value` for `values["value"]`.
    A write with `item` puts, with `update` updates, with neither deletes.
    """

    table: str
    key: Mapping[str, str]
    condition: str | None = None
    values: Mapping[str, Any] | None = None
    update: str | None = None
    item: Mapping[str, Any] | None = None
    check: bool = False
    """Only the condition, no write: within a transaction."""
    names: Mapping[str, str] | None = None
    """What an alias stands for when the attribute's name can't be one: `{"epoch": "model:a.b"}`."""

    def request(self) -> tuple[str, dict[str, Any]]:
        """The name of its action within TransactWriteItems, and the action."""
        text = f"{self.update or ''} {self.condition or ''}"
        request: dict[str, Any] = {"TableName": self.table}
        if self.item is not None:
            action, request["Item"] = "Put", to_item(self.item)
        else:
            action = "Delete" if self.update is None else "Update"
            if self.check:
                action = "ConditionCheck"
            request["Key"] = to_item(self.key)
        if self.update is not None:
            request["UpdateExpression"] = self.update
        if self.condition is not None:
            request["ConditionExpression"] = self.condition
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if names := _names(text):
            given = {f"#{alias}": name for alias, name in (self.names or {}).items()}
            request["ExpressionAttributeNames"] = {
                alias: given.get(alias, name) for alias, name in names.items()
            }
        used = {
            name: value
            for name, value in (self.values or {}).items()
            if re.search(rf":{name}\b", text)
        }
        if used:
            request["ExpressionAttributeValues"] = {
                f":{name}": _typed(value) for name, value in used.items()
            }
        return action, request


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The update expression that makes `old` into `new`, and its values; None removes."""
    differing = [name for name in new if new[name] != old.get(name)]
    sets = [name for name in differing if new[name] is not None]
    removes = [name for name in differing if new[name] is None]
    parts = []
    if sets:
        parts.append("SET " + ", ".join(f"#{name} = :new_{name}" for name in sets))
    if removes:
        parts.append("REMOVE " + ", ".join(f"#{name}" for name in removes))
    return " ".join(parts), {f"new_{name}": new[name] for name in sets}


# ------------------------------------------------------------------------------------ writing


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition that didn't hold, and the item as it was then; None when there was no item."""

    old: dict[str, Any] | None


class FullRowError(StoreBusyError):
    """The item would be over DynamoDB's 400 KB; nobody but an operator can help."""


class Table:
    """A client with the patience that contended items need."""

    def __init__(
        self,
        client: DynamoDBClient,
        *,
        pause: Callable[[float], None] = time.sleep,
        rand: Callable[[], float] = random.random,
    ) -> None:
        """`pause` waits that many seconds; `rand` is in [0, 1)."""
        self.client = client
        self._pause = pause
        self._rand = rand

    def read(
        self, table: str, key: Mapping[str, str], *, consistent: bool = True
    ) -> dict[str, Any] | None:
        """The item, read consistently, or for half the price as it was a moment ago."""
        answer = self._read(
            lambda: self.client.get_item(
                TableName=table, Key=to_item(key), ConsistentRead=consistent
            )
        )
        item = answer.get("Item")
        return None if item is None else from_item(item)

    def read_all(
        self, table: str, keys: Sequence[Mapping[str, str]]
    ) -> list[dict[str, Any] | None]:
        """The items of up to 100 keys, in their order, read consistently.

        More than 16 MB take several calls. Raises StoreBusyError when a throttle left some out.
        """
        request: Any = {table: {"Keys": [to_item(key) for key in keys], "ConsistentRead": True}}
        items: list[dict[str, Any]] = []
        while request:
            answer = self._read(partial(self.client.batch_get_item, RequestItems=request))
            found = answer["Responses"].get(table, ())
            items += [from_item(item) for item in found]
            request = answer.get("UnprocessedKeys")
            if request and not found:
                raise StoreBusyError("The tables are busy.", retry_after_s=1)
        return [next((item for item in items if key.items() <= item.items()), None) for key in keys]

    def query(self, **request: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """One page: its items, and the whole answer. `request` is that of Query."""
        answer = self._page(request)
        return [from_item(item) for item in answer["Items"]], answer

    def pages(self, **request: Any) -> Iterator[list[Any]]:
        """The items of all pages, each read as it is wanted. `request` is that of Query.

        They are the client's own: of many rows the parsing costs the most.
        """
        return (answer["Items"] for answer in self.answers(**request))

    def answers(self, **request: Any) -> Iterator[Any]:
        """As `pages`, with all that the answers have."""
        while True:
            answer = self._page(request)
            yield answer
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _page(self, request: dict[str, Any]) -> Any:
        for name, value in request.items():
            if name.endswith("Expression"):
                _names(value)  # refuses bare ones
        return self._read(lambda: self.client.query(**request))

    def _read(self, call: Callable[[], Any]) -> Any:
        answer = self._patiently(call, MAX_TRIES)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def transact(
        self, writes: Sequence[Write], *, tries: int = MAX_TRIES
    ) -> list[Refusal | None] | None:
        """Writes all or nothing.

        None when it is written; else for each write the refusal of its condition, or None when it
        wasn't at fault. Conflicts, throttles and lost connections are tried again; then
        StoreBusyError. The token makes the repetition of what was written a success.
        An attribute that isn't of its type makes it impossible: DamagedRowError.
        Two writes to one item are refused here, as DynamoDB does and emulators don't: ValueError.
        """
        places = [(write.table, tuple(sorted(write.key.items()))) for write in writes]
        if len(set(places)) != len(places):
            raise ValueError("two writes of one transaction touch the same item")
        actions: Any = [
            {action: request} for action, request in (write.request() for write in writes)
        ]
        token = str(uuid.uuid4())
        error = self._patiently(
            lambda: self.client.transact_write_items(
                TransactItems=actions, ClientRequestToken=token
            ),
            tries,
        )
        if not isinstance(error, ClientError):
            return None
        response: Any = error.response
        reasons = response.get("CancellationReasons", [])
        if not any(reason.get("Code") == _REFUSED for reason in reasons):
            raise _told(error)
        return [_refusal(reason) if reason.get("Code") == _REFUSED else None for reason in reasons]

    def write(self, write: Write, *, tries: int = MAX_TRIES) -> Refusal | None:
        """One conditional write, tried again like a transaction. None when it is written."""
        action, request = write.request()
        call: Any = {
            "Put": self.client.put_item,
            "Update": self.client.update_item,
            "Delete": self.client.delete_item,
        }[action]
        error = self._patiently(lambda: call(**request), tries)
        if not isinstance(error, ClientError):
            return None
        if error.response["Error"]["Code"] != f"{_REFUSED}Exception":
            if "size" in str(error).lower() and "exceed" in str(error).lower():
                raise FullRowError("The row is full.", retry_after_s=60) from error
            raise _told(error)
        return _refusal(error.response)

    def update(self, write: Write) -> dict[str, Any] | Refusal:
        """One conditional update; gives the item as it is then."""
        _, request = write.request()
        call: Any = self.client.update_item
        answer = self._patiently(lambda: call(**request, ReturnValues="ALL_NEW"), MAX_TRIES)
        if not isinstance(answer, ClientError):
            return from_item(answer["Attributes"])
        if answer.response["Error"]["Code"] != f"{_REFUSED}Exception":
            raise _told(answer)
        return _refusal(answer.response)

    def replace(self, table: str, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Puts the item; gives the one that was there."""
        answer = self._read(
            lambda: self.client.put_item(
                TableName=table, Item=to_item(item), ReturnValues="ALL_OLD"
            )
        )
        old = answer.get("Attributes")
        return None if old is None else from_item(old)

    def _patiently(self, call: Callable[[], Any], tries: int) -> Any:
        """The answer, or the ClientError that waiting doesn't cure. Else StoreBusyError."""
        lost = 0
        for turn in range(tries):
            if turn:
                self._pause(self._rand() * min(_PAUSE_MAX_S, _PAUSE_BASE_S * 2**turn))
            try:
                return call()
            except (HTTPClientError, ConnectionError) as error:
                lost += 1
                if lost == MAX_LOST:
                    raise StoreBusyError("The tables can't be reached.", retry_after_s=1) from error
            except ClientError as error:
                if not _passing(error):
                    return error
        raise StoreBusyError("The tables are busy.", retry_after_s=1)


def _passing(error: ClientError) -> bool:
    """Whether waiting may cure it. A cancelled transaction's refused condition is its answer."""
    response: Any = error.response
    if response["Error"]["Code"] != "TransactionCanceledException":
        return response["Error"]["Code"] in _BUSY
    codes = {reason.get("Code") for reason in response.get("CancellationReasons", [])}
    return _REFUSED not in codes and bool(codes & _BUSY)


def _told(error: ClientError) -> Exception:
    """The error; DamagedRowError when a number that is added to is none.

    DynamoDB says so of the item in a transaction, emulators of the whole request.
    """
    response: Any = error.response
    told = [response["Error"], *response.get("CancellationReasons", [])]
    if any("incorrect data type" in (one.get("Message") or "") for one in told):
        damaged = DamagedRowError("A row has something else where a number belongs.")
        damaged.__cause__ = error
        return damaged
    return error


def _refusal(answer: Any) -> Refusal:
    old = answer.get("Item")
    return Refusal(from_item(old) if old else None)
