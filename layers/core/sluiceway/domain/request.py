"""The bodies of requests: their schemas, and what they may not hold."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sluiceway.domain import strict_json
from sluiceway.domain.errors import PayloadTooLargeError, ValidationFailedError
from sluiceway.domain.ids import NAME_PATTERN
from sluiceway.domain.job import MAX_URL_CHARACTERS
from sluiceway.domain.keys import CACHE_KEY_PATTERN

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_BODY_BYTES = 1024 * 1024
"""Of the decoded body."""

DEFAULT_DEADLINE_S = 24 * 3600
MAX_DEADLINE_S = 7 * 24 * 3600
MAX_BATCH_JOBS = 100
"""As many as are read at once."""

MAX_AGE_S = 365 * 24 * 3600
"""More than anything is kept; a bound on numbers that add up."""

_OWNED_BY_US = ("messages", "model", "stream")
"""Options that would change what `model` and `input` say, or the form of the answer."""

MAX_FAULTS_TOLD = 50
MAX_NAME_TOLD = 64
"""Characters of a member's name: a name is a text of the body too, and may be as long as one."""

# The forms that a member may have. A fault is told of the form that was meant, not of each.
TEXT, PARTS, _CHAT = "<text>", "<parts>", "<chat>"

Lane = Literal["interactive", "batch"]


def _whole(value: Any) -> Any:
    """JSON has one kind of number, so 60.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Address = Annotated[
    str, Field(json_schema_extra={"format": "uri", "maxLength": MAX_URL_CHARACTERS})
]
"""Of a webhook; `callback_of` says which are taken."""

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
"""A fault is told of the first only: a body has room for half a million."""


def callable_url(url: str, info: ValidationInfo) -> str:
    """The URL in one form. Raises ValueError for one that is never called."""
    from sluiceway.domain.address import callback_of  # noqa: PLC0415 - few requests name one

    return callback_of(url, local=bool((info.context or {}).get("local")))


class Strict(BaseModel):
    """A schema that guesses nothing: no other types, no unknown members."""

    no_such_member: ClassVar[str] = "There is no such member"

    # Built when the first of its kind comes: a process pays for what it is asked.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


_Request = TypeVar("_Request", bound=Strict)


class Message(Strict):
    """One message of a chat, in the form that the vendors share."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[str, Tag(TEXT)] | Annotated[Objects | None, Tag(PARTS)],
        Discriminator(lambda value: TEXT if isinstance(value, str) else PARTS),
    ] = None
    name: ShortText | None = None
    tool_call_id: ShortText | None = None
    tool_calls: Objects | None = None


class Chat(Strict):
    """An input of several messages."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)]


class CacheRequest(Strict):
    """How this request and its result deal with the cache (docs/caching.md)."""

    mode: Literal["use", "refresh", "bypass", "only"] = "use"
    """What the cache may answer: `use` what it has, ask the vendor anew and keep the result
    (`refresh`) or not look (`bypass`), or `only` what it has."""
    max_age_s: Annotated[int, Field(ge=0, le=MAX_AGE_S), WHOLE] | None = None
    """No answer that was older when the request came in."""
    ttl_s: Annotated[int, Field(ge=1, le=MAX_AGE_S), WHOLE] | None = None
    """The result is served no longer; the model's own times hold, too."""
    no_store: bool = False
    """The result is not cached."""


class SubmitRequest(Strict):
    """What a partner asks for."""

    no_such_member = "There is no such member; what is meant for the model goes into options"

    model: ShortText
    """A name of the catalogue."""
    input: Annotated[
        Annotated[str, StringConstraints(min_length=1), Tag(TEXT)] | Annotated[Chat, Tag(_CHAT)],
        Discriminator(lambda value: TEXT if isinstance(value, str) else _CHAT),
    ]
    """A text, or a chat."""
    options: dict[str, Any] = Field(
        default_factory=dict,
        json_schema_extra={
            "propertyNames": {"not": {"enum": [*_OWNED_BY_US]}},
            "properties": {"n": {"const": 1}},
        },
    )
    """Sent to the vendor as they are, and a part of the keys."""
    priority: Lane | None = None
    """The lane; without it `batch` for heavy models, else `interactive`."""
    cache: CacheRequest = CacheRequest.model_construct()
    locale: Annotated[str, StringConstraints(min_length=2, max_length=35)] | None = None
    """A part of the keys, not sent."""
    safety_profile: ShortText | None = None
    """A part of the keys, not sent."""
    metadata: Annotated[
        dict[ShortText, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)
    ] = Field(default_factory=dict)
    """Given back with the job."""
    callback_url: Address | None = None
    """Where the job's webhooks go: https on port 443."""
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """In the unit of the catalogue's prices: a job that may cost more is refused."""
    deadline_s: Annotated[int, Field(ge=1, le=MAX_DEADLINE_S), WHOLE] = DEFAULT_DEADLINE_S
    """A job that is still open after so long fails."""

    @field_validator("options")
    @classmethod
    def _options_leave_ours_alone(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in _OWNED_BY_US:
            if name in options:
                raise ValueError(f"may not hold {name}")
        if options.get("n", 1) != 1 or isinstance(options.get("n"), bool):
            raise ValueError("n may only be 1: a job has one result")
        return options

    @field_validator("callback_url")
    @classmethod
    def _callback_may_be_called(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        return callable_url(url, info)

    def plain_input(self) -> Any:
        """`input` as JSON values: the text, or `{"messages": [...]}` with what came in only."""
        if isinstance(self.input, str):
            return self.input
        return self.input.model_dump(exclude_unset=True)


class BatchItemRequest(BaseModel):
    """One item of a batch. What else it holds is a submit, validated by itself (`submit_of`)."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)

    custom_id: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]

    @property
    def submit(self) -> dict[str, Any]:
        """The members of the submit."""
        return dict(self.model_extra or {})


class BatchRequest(Strict):
    """The envelope of a batch; wrong items are no fault of it."""

    jobs: Annotated[list[BatchItemRequest], Field(min_length=1, max_length=MAX_BATCH_JOBS)]

    @field_validator("jobs")
    @classmethod
    def _names_are_unique(cls, jobs: list[BatchItemRequest]) -> list[BatchItemRequest]:
        first: dict[str, int] = {}
        for number, one in enumerate(jobs):
            if first.setdefault(one.custom_id, number) != number:
                raise ValueError(f"{number} has the custom_id of {first[one.custom_id]}")
        return jobs


class InvalidateRequest(Strict):
    """Exactly one of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "string"}}}
                for name in ("model", "tenant", "key")
            ]
        }
    )

    model: Annotated[str, StringConstraints(pattern=rf"^{NAME_PATTERN}$")] | None = None
    tenant: Annotated[str, StringConstraints(pattern=rf"^{NAME_PATTERN}$")] | None = None
    key: Annotated[str, StringConstraints(pattern=CACHE_KEY_PATTERN)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> InvalidateRequest:
        if len([one for one in (self.model, self.tenant, self.key) if one is not None]) != 1:
            raise ValueError("give exactly one of model, tenant and key")
        return self


def parse_submit(body: bytes, *, local: bool = False) -> SubmitRequest:
    """The submit in a body.

    Raises PayloadTooLargeError, InvalidRequestError (not JSON as we take it), and as `submit_of`.
    """
    if len(body) > MAX_BODY_BYTES:
        raise PayloadTooLargeError(f"The body may be {MAX_BODY_BYTES} bytes at most.")
    return submit_of(strict_json.parse(body), local=local)


def submit_of(value: Any, *, local: bool = False) -> SubmitRequest:
    """The submit that parsed JSON holds. In `local` mode a callback may go anywhere.

    Raises ValidationFailedError, which names each wrong member and repeats none of its text.
    """
    return validated(SubmitRequest, value, local=local)


def batch_of(value: Any) -> BatchRequest:
    """The envelope of a batch, of parsed JSON. Raises ValidationFailedError."""
    return validated(BatchRequest, value)


def parse_invalidation(value: Any) -> InvalidateRequest:
    """What to invalidate, of parsed JSON. Raises ValidationFailedError."""
    return validated(InvalidateRequest, value)


def validated(schema: type[_Request], value: Any, *, local: bool = False) -> _Request:
    """The request that parsed JSON holds.

    Raises ValidationFailedError, which names each wrong member and repeats none of its text.
    """
    if not isinstance(value, dict):
        raise ValidationFailedError("The body is not a JSON object.")
    try:
        return schema.model_validate(value, context={"local": local})
    except ValidationError as error:
        faults = tuple(
            {"field": _path(fault["loc"]), "message": _message(schema, fault)}
            for fault in islice(
                error.errors(include_url=False, include_context=False, include_input=False),
                MAX_FAULTS_TOLD,
            )
        )
        raise ValidationFailedError("The body doesn't fit the schema.", errors=faults) from None


_PLAINER = {
    "missing": "This member is required",
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
    "string_type": "Input should be a string",
}
"""Where pydantic speaks of Python."""


def _message(schema: type[Strict], fault: ErrorDetails) -> str:
    if fault["type"] == "extra_forbidden":
        return (schema if len(fault["loc"]) == 1 else Strict).no_such_member
    return _PLAINER.get(fault["type"], fault["msg"].removeprefix("Value error, "))


def _path(location: tuple[int | str, ...]) -> str:
    """`input.messages.0.role` for a fault's place."""
    return ".".join(
        str(part)[:MAX_NAME_TOLD] for part in location if part not in {TEXT, PARTS, _CHAT}
    )
