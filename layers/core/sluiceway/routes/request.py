"""What a route needs of a request, and how it answers."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sluiceway.domain import strict_json
from sluiceway.domain.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    SluicewayError,
    UnsupportedMediaTypeError,
)
from sluiceway.domain.request import MAX_BODY_BYTES
from sluiceway.http import Reply, problem
from sluiceway.openai_http import openai_error
from sluiceway.telemetry import PowertoolsTelemetry, trace_header
from sluiceway.usecases.authorize import Caller
from sluiceway.usecases.submit_job import Origin, Submitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

    from sluiceway.ports import Batches, JobLists, OwedAnswers, UsageReader
    from sluiceway.usecases.invalidate_cache import Invalidator
    from sluiceway.usecases.manage_webhooks import Registrar

UNEXPECTED = "Something failed on our side. The same request may be sent again."

_JSON_TYPES = frozenset(
    {"", "application/json", "application/octet-stream", "application/x-www-form-urlencoded"}
)
"""curl calls a body a form unless it is told otherwise, and gateways call one that they took for
binary an octet-stream; what counts is that it is JSON."""

HOLD_S = 25
"""A call in OpenAI's form is held so long; API Gateway gives up after 29 s."""

HOLD_ENDS_BEFORE_S = 3
"""The end of the invocation: time to look at the job once more, and to answer."""

_TOO_LARGE = f"The body may be {MAX_BODY_BYTES} bytes at most."
_VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")


class ApiDeps(NamedTuple):
    """What the API works with."""

    submitter: Submitter
    invalidator: Invalidator
    lists: JobLists
    usage: UsageReader
    batches: Batches
    owed: OwedAnswers
    registrar: Callable[[], Registrar]
    """Of webhooks; made when the first request is about one."""
    telemetry: PowertoolsTelemetry
    pause: Callable[[float], None]
    """Seconds; for requests that wait for their job."""
    idempotency: Callable[[], Any]
    """Powertools' persistence layer, made when the first Idempotency-Key comes."""
    local: bool = False
    """Callbacks may go anywhere."""
    hold_s: float = HOLD_S


@dataclass(frozen=True)
class Request:
    """An API Gateway proxy event."""

    event: Mapping[str, Any]
    context: LambdaContext
    deps: ApiDeps

    @cached_property
    def headers(self) -> dict[str, str]:
        """By their names in lower case."""
        return {name.lower(): value for name, value in (self.event.get("headers") or {}).items()}

    def all_of(self, header: str) -> list[str]:
        """What it says each time that it comes; `headers` has the last one only."""
        many = self.event.get("multiValueHeaders") or {}
        given = [one for name, values in many.items() if name.lower() == header for one in values]
        return given or [value for name, value in self.headers.items() if name == header]

    @property
    def request_id(self) -> str:
        """The one that the partner sees."""
        return str(self.event["requestContext"]["requestId"])

    @property
    def base_path(self) -> str:
        """What stands before our paths: the stage, or whatever a custom domain maps to it."""
        full: str = self.event["requestContext"].get("path") or self.event["path"]
        return full.rstrip("/").removesuffix(self.event["path"].rstrip("/")).rstrip("/")

    def caller(self, scope: str) -> Caller:
        """Whom the authorizer let in; its context arrives as strings.

        Raises UnauthenticatedError without a tenant, ForbiddenError when the key lacks `scope`.
        """
        context = self.event["requestContext"].get("authorizer") or {}
        caller = Caller(
            tenant=context.get("tenant") or "",
            scopes=frozenset((context.get("scopes") or "").split()),
            key_id=context.get("key_id") or "",
        )
        caller.require(scope)
        return caller

    def origin(self) -> Origin:
        """Raises InvalidRequestError for a malformed X-Correlation-Id."""
        given = self.headers.get("x-correlation-id")
        if given is not None and not _VISIBLE.fullmatch(given):
            raise InvalidRequestError("X-Correlation-Id is 1 to 128 visible ASCII characters.")
        return Origin(self.request_id, given or self.request_id, trace_header())

    def body(self) -> bytes:
        """The decoded body, JSON by its declared type and of bearable size.

        Raises UnsupportedMediaTypeError, PayloadTooLargeError and InvalidRequestError.
        """
        media_type, _, parameters = self.headers.get("content-type", "").partition(";")
        media_type = media_type.strip().lower()
        if media_type not in _JSON_TYPES and not media_type.endswith("+json"):
            raise UnsupportedMediaTypeError("Send JSON as application/json.")
        charset = re.search(r'charset="?([^";]+)', parameters, re.IGNORECASE)
        if charset and charset[1].strip().lower() not in {"utf-8", "utf8", "us-ascii"}:
            raise UnsupportedMediaTypeError("Send JSON as UTF-8.")
        text: str = self.event.get("body") or ""
        if len(text) > 2 * MAX_BODY_BYTES:  # in base64, too
            raise PayloadTooLargeError(_TOO_LARGE)
        if self.event.get("isBase64Encoded"):
            try:
                data = base64.b64decode(text, validate=True)
            except ValueError as error:
                raise InvalidRequestError("The body is not base64.") from error
        else:
            data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_BODY_BYTES:
            raise PayloadTooLargeError(_TOO_LARGE)
        return data

    def json(self) -> Any:
        """The body's JSON value. Raises as `body` and `strict_json.parse` do."""
        return strict_json.parse(self.body())

    def optional_json(self) -> Any:
        """As `json`; no body is an object without members."""
        body = self.body()
        return strict_json.parse(body) if body.strip() else {}

    def parameters(self, *known: str) -> dict[str, str]:
        """The query's parameters.

        One that we don't know may change what the client expects, so it isn't ignored, and of one
        that comes twice nobody knows which is meant. Raises InvalidRequestError.
        """
        given = dict(self.event.get("queryStringParameters") or {})
        unknown = given.keys() - set(known)
        if unknown:
            names = ", ".join(sorted(name[:32] for name in unknown))
            raise InvalidRequestError(f"This path takes no parameter {names}.")
        repeated = self.event.get("multiValueQueryStringParameters") or {}
        for name in given:
            if len(repeated.get(name) or [""]) > 1:
                raise InvalidRequestError(f"The parameter {name} may be given once.")
        return given

    def bearable_s(self, wait_s: float, *, before_end_s: float) -> float:
        """As much of a wait as leaves the invocation `before_end_s` for its answer."""
        left_s = self.context.get_remaining_time_in_millis() / 1000 - before_end_s
        return max(0.0, min(wait_s, left_s))

    def answer(self, reply: Reply) -> dict[str, Any]:
        """The reply for API Gateway, with the headers that all of them have."""
        given = self.headers.get("x-correlation-id", "")
        headers = {
            "Content-Type": reply.content_type,
            **reply.headers,
            "X-Request-Id": self.request_id,
            "X-Correlation-Id": given if _VISIBLE.fullmatch(given) else self.request_id,
            "Cache-Control": "no-store",
        }
        return {
            "statusCode": reply.status,
            "multiValueHeaders": {name: [value] for name, value in headers.items()},
            # The status and the headers of a GET, and no more.
            "body": "" if self.event["httpMethod"] == "HEAD" else reply.serialised(),
            "isBase64Encoded": False,
        }

    def refuse(self, error: SluicewayError) -> dict[str, Any]:
        """The error as problem+json, or in OpenAI's form where its clients ask."""
        reply = problem(error, self.request_id)
        path = self.event["path"].rstrip("/") + "/"
        if path.startswith(("/chat/", "/responses/")):
            reply = openai_error(error, reply)
        return self.answer(reply)


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false; false when it is absent. Raises InvalidRequestError."""
    value = parameters.get(name, "false")
    if value not in {"true", "false"}:
        raise InvalidRequestError(f"{name} is true or false.")
    return value == "true"
