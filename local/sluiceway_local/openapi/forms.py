"""What the areas of the document are written in: calls, answers, refusals and headers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Header
from aws_lambda_powertools.event_handler.router import APIGatewayRouter
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from sluiceway.domain import errors
from sluiceway.http import STATUS, Reply, problem
from sluiceway.openai_http import openai_error

SECURITY_SCHEME = "PartnerKey"
"""As the template names it."""

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"

Absent = SkipJsonSchema[None]
"""`X | Absent = None`: a member that may be left out, and is never null."""

Moment = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
        json_schema_extra={"format": "date-time"},
        examples=["2026-01-01T00:00:00.000Z"],
    ),
]
"""RFC 3339, UTC, with milliseconds."""

Count = Annotated[int, Field(ge=0)]
Money = Annotated[float, Field(ge=0)]
"""In the unit of the catalogue's prices."""


class Answer(BaseModel):
    """What an answer holds. Clients have to bear members that they don't know."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Fault(Answer):
    """One member of the body that is wrong."""

    field: str
    """Where it is, with dots between names and places: `input.messages.0.role`."""
    message: str


class Problem(Answer):
    """An error (RFC 9457)."""

    type: str
    title: str
    """The status in words."""
    status: int | Absent = None
    """That of the answer; the gateway's own refusals may lack it."""
    code: str
    """For programs; never changes. There may be new ones."""
    detail: str
    """For people; may change."""
    retryable: bool
    """Whether the same request may succeed later."""
    request_id: str
    errors: Annotated[list[Fault], Field(min_length=1)] | Absent = None
    """Of a body that doesn't fit its schema."""


# ------------------------------------------------------------------------------------ headers

PARAMETERS = ("Idempotency-Key", "Prefer", "X-Correlation-Id")
"""The headers of requests."""

HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Age": (
        "Seconds since the result was stored in the cache.",
        {"type": "integer", "minimum": 0},
    ),
    "Cache-Control": (
        "Answers are the tenant's own.",
        {"type": "string", "const": "no-store"},
    ),
    "Cache-Status": (
        "The cache's part in the answer (RFC 9211).",
        {
            "type": "string",
            "pattern": "^sluiceway; (hit(; ttl=-?[0-9]+)?|fwd=(miss|stale|bypass))$",
        },
    ),
    "Idempotent-Replayed": (
        "The first answer to this Idempotency-Key is told again.",
        {"type": "string", "const": "true"},
    ),
    "Location": ("The path of what was made.", {"type": "string", "pattern": "^/"}),
    "Preference-Applied": (
        "How long the answer could have been held.",
        {"type": "string", "pattern": "^wait=[0-9]+$"},
    ),
    "RateLimit": (
        "Where the tenant stands in its minute (draft-ietf-httpapi-ratelimit-headers).",
        {"type": "string", "pattern": '^"minute";r=[0-9]+;t=[0-9]+$'},
    ),
    "RateLimit-Policy": (
        "What the tenant may do in a minute.",
        {"type": "string", "pattern": '^"minute";q=[0-9]+;w=60$'},
    ),
    "Retry-After": (
        "Whole seconds after which to ask again.",
        {"type": "integer", "minimum": 1},
    ),
    "WWW-Authenticate": ("The scheme of the keys.", {"type": "string", "const": "Bearer"}),
    "X-Correlation-Id": (
        "The request's own X-Correlation-Id, or its request id.",
        {"type": "string", "pattern": "^[!-~]{1,128}$"},
    ),
    "X-Job-Id": ("The job's id.", {"type": "string"}),
    "X-Should-Retry": (
        "Whether OpenAI's clients are to try again by themselves.",
        {"type": "string", "enum": ["true", "false"]},
    ),
    "X-Request-Id": (
        "Names the request in the operators' logs.",
        {"type": "string", "minLength": 1},
    ),
}
"""What each header of an answer says, and its schema."""

IF_ANY = "-if-any"
"""Ends the name of a header's component where the header is not in each of the answers."""

_OF_OURS = ("X-Request-Id", "X-Correlation-Id", "Cache-Control")
"""On every answer that the gateway didn't give by itself."""


def _headers(always: Iterable[str] = (), sometimes: Iterable[str] = ()) -> dict[str, Any]:
    for name in (*always, *sometimes):
        assert name in HEADERS  # noqa: S101 - a slip in an area, which its tests show
    names = {**dict.fromkeys(sometimes, IF_ANY), **dict.fromkeys(always, "")}
    return {
        name: {"$ref": f"#/components/headers/{name}{end}"} for name, end in sorted(names.items())
    }


def header_components() -> dict[str, Any]:
    """The headers that answers refer to."""
    return {
        f"{name}{end}": {
            "description": description,
            "required": not end,
            "schema": schema,
        }
        for name, (description, schema) in sorted(HEADERS.items())
        for end in ("", IF_ANY)
    }


# ------------------------------------------------------------------------------------ answers


def answer(  # noqa: D417 - the rest say themselves
    description: str,
    model: Any,
    examples: Mapping[str, Reply],
    *,
    always: Sequence[str] = (),
    sometimes: Sequence[str] = (),
    links: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An answer that isn't a refusal.

    Args:
        examples: By what they show; their replies are the ones that the API itself would make.
        always: Headers that each such answer has, besides those that all have.
        sometimes: Headers that it may have.
    """
    told: dict[str, Any] = {
        "description": description,
        "headers": _headers((*_OF_OURS, *always), sometimes),
        "content": {
            JSON: {
                "model": model,
                "examples": {
                    _key(summary): {"summary": summary, "value": reply.body}
                    for summary, reply in examples.items()
                },
            }
        },
    }
    if links:
        told["links"] = dict(links)
    return told


def nothing(description: str) -> dict[str, Any]:
    """An answer without a body."""
    return {"description": description, "headers": _headers(_OF_OURS), "content": {}}


def refusals(*codes: str) -> dict[int, dict[str, Any]]:
    """The answers to what is refused with one of these codes, by status."""
    of_status: dict[int, list[str]] = {}
    for code in codes:
        of_status.setdefault(STATUS[code], []).append(code)
    return {status: _refusal(status, found) for status, found in sorted(of_status.items())}


def openai_refusals(
    *codes: str, model: Any, besides: Mapping[int, str] | None = None
) -> dict[int, dict[str, Any]]:
    """As `refusals`, in OpenAI's form, of `model`; what the gateway itself refuses is not.

    `besides`: what else an answer with a status may mean.
    """
    found = refusals(*codes)
    for status, meaning in (besides or {}).items():
        told = found.setdefault(status, _refusal(status, []))
        told["description"] = f"{told['description']} {meaning}".strip()
        # A job that failed is no reason to come again.
        told["headers"] = _headers(("X-Should-Retry",), (*_OF_OURS, "Retry-After"))
    for told in found.values():
        told["headers"] |= _headers((), ("RateLimit", "RateLimit-Policy"))
        told["headers"] |= _headers((), ("X-Job-Id", "X-Should-Retry"))
        content = told["content"]
        names = content[PROBLEM_JSON]["examples"]
        content[JSON] = {
            "model": model,
            "examples": {
                name: {
                    "summary": _meaning(name),
                    "value": openai_error(_error(name), problem(_error(name), _REQUEST_ID)).body,
                }
                for name in names
            }
            or {"job_cancelled": {"summary": "A job that was cancelled", "value": _JOB_CANCELLED}},
        }
        if not names:
            del content[PROBLEM_JSON]
    return dict(sorted(found.items()))


_REQUEST_ID = "f8b2c1d0-0000-4000-8000-000000000000"
_JOB_CANCELLED = {
    "error": {
        "message": "The job was cancelled.",
        "type": "invalid_request_error",
        "param": None,
        "code": "job_cancelled",
        "job_id": "job_01KDVT7V00000000000000000A",
    }
}


def _refusal(status: int, codes: list[str]) -> dict[str, Any]:
    busy = all(issubclass(_error_of(code), errors.BusyError) for code in codes)
    always = [
        *(["Retry-After"] if busy else []),
        *(["WWW-Authenticate"] if status == STATUS["unauthenticated"] else []),
    ]
    return {
        "description": " ".join(_meaning(code) for code in codes),
        "headers": _headers(always, _OF_OURS),
        "content": {
            PROBLEM_JSON: {
                "model": Problem,
                "examples": {
                    code: {"$ref": f"#/components/examples/{code}"} for code in sorted(codes)
                },
            }
        },
    }


def problem_components() -> dict[str, Any]:
    """An example of each error, as the API tells it."""
    return {code: {"summary": _meaning(code), "value": _example(code)} for code in sorted(_ERRORS)}


def _example(code: str) -> Any:
    return problem(_error(code), _REQUEST_ID).body


def _error(code: str) -> errors.SluicewayError:
    kind = _error_of(code)
    detail = _meaning(code)
    if issubclass(kind, errors.StillRunningError):
        return kind(detail, retry_after_s=1, job_id="job_01KDVT7V00000000000000000A")
    if issubclass(kind, errors.BusyError):
        return kind(detail, retry_after_s=1)
    if issubclass(kind, errors.ValidationFailedError):
        fault = {"field": "input.messages.0.role", "message": "Input should be 'user'"}
        return kind(detail, errors=(fault,))
    return kind(detail)


def _meaning(code: str) -> str:
    """The first sentence of the error's own docstring."""
    if code in _MEANINGS:
        return _MEANINGS[code]
    text = (_error_of(code).__doc__ or "").strip().splitlines()[0]
    return text if text.endswith(".") else f"{text}."


_MEANINGS = {
    "degraded": "The tables or the configuration can't be had, or the lanes are far behind.",
    "internal": "Something failed on our side. The same request may be sent again.",
    "invalid_request": "A parameter or a header is wrong, or the body is no JSON as we take it.",
    "quota_exceeded": "The tenant's open jobs, or a budget of its day, are used up.",
    "rate_limited": "The tenant's minute, or the gateway's second, is used up.",
    "unauthenticated": "There is no API key, or none that is valid.",
}
"""Of codes that stand for several errors."""


def _error_of(code: str) -> type[errors.SluicewayError]:
    return _ERRORS[code]


def _all_errors(
    kind: type[errors.SluicewayError] = errors.SluicewayError,
) -> dict[str, type[errors.SluicewayError]]:
    """The errors by their code; of several with one code, the one that was defined first."""
    found = {kind.code: kind} if kind.code in STATUS else {}
    for below in kind.__subclasses__():
        for code, error in _all_errors(below).items():
            found.setdefault(code, error)
    return found


_ERRORS = _all_errors()

OPEN = ("invalid_request", "rate_limited", "internal", "degraded")
"""What may be said of any request: a process that could never read a catalogue does nothing."""

KEYED = (*OPEN, "unauthenticated", "forbidden")
"""Of any request that needs a key."""

BODY = ("payload_too_large", "unsupported_media_type", "validation_failed")
"""Of any with a body."""


# ------------------------------------------------------------------------------------ calls

CorrelationId = Annotated[
    str | None,
    Header(
        alias="X-Correlation-Id",
        pattern=r"^[!-~]{1,128}$",
        description="Stored with the job, logged, and returned.",
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        alias="Prefer",
        description=(
            "`wait=n` holds the answer until the job has ended, n seconds at most, and 20 whatever "
            "n is. Other preferences, and what isn't well formed, are ignored (RFC 7240)."
        ),
        openapi_examples={"wait": {"value": "wait=10"}},
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r'^([!-~]{1,255}|"[!-~]{1,255}")$',
        description=(
            "In quotes or not. The same request with the same key is answered as the first one for "
            "24 hours; the same key with another body is refused."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class Area:
    """The calls of one part of the API."""

    name: str
    description: str
    router: APIGatewayRouter

    def call(
        self,
        method: str,
        path: str,
        operation_id: str,
        *,
        scope: str | None,
        summary: str,
        description: str = "",
        answers: Mapping[int, dict[str, Any]],
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a call; the function below it has the types of its parameters.

        `scope`: what the key must have; None for a call that needs no key.
        """
        register: Callable[[Callable[..., Any]], Callable[..., Any]] = self.router.route(
            path,
            method,
            operation_id=operation_id,
            summary=summary,
            description=" ".join(
                part for part in (description, f"Scope: `{scope}`." if scope else "") if part
            ),
            responses=dict(sorted(answers.items())),  # type: ignore[arg-type]
            tags=[self.name],
            # In 3.1 a scheme of any type may name the roles that a call needs.
            security=[{SECURITY_SCHEME: [scope]}] if scope else None,
        )
        return register


def area(name: str, description: str) -> Area:
    """An area without calls yet."""
    return Area(name, description, APIGatewayRouter())  # type: ignore[no-untyped-call]


def _key(summary: str) -> str:
    """`a_job_that_waits` for "A job that waits."."""
    return "_".join("".join(c if c.isalnum() else " " for c in summary.lower()).split())
