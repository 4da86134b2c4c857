"""DynamoDB clients on which things go wrong: what the adapters must live with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

WRITES = frozenset({"transact_write_items", "put_item", "update_item", "delete_item"})


def refused(code: str, **more: Any) -> ClientError:
    """An answer of DynamoDB that isn't a success."""
    return ClientError({"Error": {"Code": code, "Message": "as the test wants it"}, **more}, "Any")


def cancelled(*codes: str) -> ClientError:
    """A transaction that was cancelled, with a reason for each of its writes."""
    return refused(
        "TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes]
    )


def timed_out() -> ReadTimeoutError:
    """No answer came; the request may have been carried out."""
    return ReadTimeoutError(endpoint_url="http://127.0.0.1")


def unreachable() -> EndpointConnectionError:
    """No connection came about."""
    return EndpointConnectionError(endpoint_url="http://127.0.0.1")


class ScriptedClient:
    """Has no tables. Raises these errors, one for each call, and is content from then on."""

    def __init__(self, *errors: Exception, answer: Mapping[str, Any] | None = None) -> None:
        self.errors = list(errors)
        self.answer = answer or {}
        self.requests: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Mapping[str, Any]]:
        return self._call

    def _call(self, **request: Any) -> Mapping[str, Any]:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        return self.answer


class FaultyClient:
    """A real client whose writes meet faults.

    `before(request)` may raise instead of the write. After a write that was carried out, the next
    of `replies` is raised instead of its answer; None lets the answer through. `meanwhile` runs
    once, after the first write that was refused.
    """

    def __init__(
        self,
        client: DynamoDBClient,
        *,
        before: Callable[[dict[str, Any]], None] = lambda _: None,
        replies: list[Exception | None] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._before = before
        self._replies = replies or []
        self._meanwhile: Callable[[], None] | None = meanwhile
        self.writes = 0
        """That were asked for, whatever came of them."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        if name not in WRITES:
            return real

        def write(**request: Any) -> Any:
            self.writes += 1
            self._before(request)
            try:
                answer = real(**request)
            except ClientError:
                happens, self._meanwhile = self._meanwhile, None
                if happens is not None:
                    happens()
                raise
            lost = self._replies.pop(0) if self._replies else None
            if lost is not None:
                raise lost
            return answer

        return write


def coordination_keys(request: dict[str, Any]) -> list[str]:
    """The keys of the coordination rows that a transaction touches."""
    actions = [body for action in request["TransactItems"] for body in action.values()]
    rows = [body.get("Key") or body["Item"] for body in actions]
    return [row["coordination_key"]["S"] for row in rows if "coordination_key" in row]


@contextmanager
def transactions(client: DynamoDBClient, do: Callable[..., None]) -> Iterator[None]:
    """`do` sees each transaction before it is sent, and may raise."""
    name = "provide-client-params.dynamodb.TransactWriteItems"
    client.meta.events.register(name, do)
    try:
        yield
    finally:
        client.meta.events.unregister(name, do)


def meet_another(**_: Any) -> None:
    """Another transaction is at the same items."""
    raise cancelled("TransactionConflict")
