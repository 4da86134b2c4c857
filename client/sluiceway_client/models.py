"""What is sent and what comes back: typed, frozen, and open to members that a newer server adds.

Times are datetimes in UTC, costs are in the unit of the installation's prices. The text of a result
and whatever opens something (a secret, a signed address) is not in an object's repr, which ends up
in logs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date as Day  # noqa: N812 - a row has a member of that name
from datetime import datetime
from types import NoneType
from typing import Any, Literal, Required, Self, TypedDict, get_args, get_origin, get_type_hints

from sluiceway_client.errors import NoResultError

# ------------------------------------------------------------------------------------ what is sent


class CacheOptions(TypedDict, total=False):
    """How a job and its result deal with the cache."""

    mode: Literal["use", "refresh", "bypass", "only"]
    """`only` asks no vendor: without an entry it is a CacheMissError."""
    max_age_s: int
    """No answer that is older."""
    ttl_s: int
    """The result is served no longer than that."""
    no_store: bool


class JobRequest(TypedDict, total=False):
    """A job as it is submitted. None is the same as absent."""

    model: Required[str]
    input: Required[str | Mapping[str, Any]]
    """Text, or `{"messages": [...]}`."""
    options: Mapping[str, Any] | None
    """Sent to the vendor: `temperature`, `max_tokens` and the like."""
    priority: Literal["interactive", "batch"] | None
    cache: CacheOptions | None
    metadata: Mapping[str, str] | None
    """Given back with the job."""
    callback_url: str | None
    """Where a webhook tells of the job's end."""
    deadline_s: int | None
    """The job fails when it hasn't ended by then."""
    max_cost: float | None
    """A job that may cost more is refused."""
    locale: str | None
    safety_profile: str | None


class BatchRequest(JobRequest, total=False):
    """A job of a batch."""

    custom_id: Required[str]
    """Your own name for it, once in the batch."""


# ------------------------------------------------------------------------------------ reading


class Readable:
    """A dataclass that is read from a JSON object, by the types of its members."""

    __slots__ = ()

    @classmethod
    def read(cls, body: Mapping[str, Any], **more: Any) -> Self:
        """Unknown members are left out, and null is the same as absent. `more` goes first.

        Raises TypeError, ValueError, KeyError or AttributeError for what isn't such an object.
        """
        values = {
            name: _value(hint, body[name])
            for name, hint in get_type_hints(cls).items()
            if body.get(name) is not None
        }
        return cls(**{**values, **more})


def _value(hint: Any, value: Any) -> Any:
    """The JSON value as the type says. Raises TypeError for one of another type."""
    parts = get_args(hint)
    if NoneType in parts:
        hint = next(part for part in parts if part is not NoneType)
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], one) for one in value)
    if hint in {datetime, Day}:
        return hint.fromisoformat(value)
    if isinstance(hint, type) and issubclass(hint, Readable):
        return hint.read(value)
    if not isinstance(value, _JSON_TYPES.get(get_origin(hint) or hint, object)):
        raise TypeError("the value is of another type")
    return value


_JSON_TYPES: Mapping[Any, Any] = {
    str: str,
    bool: bool,
    int: int | float,
    float: int | float,
    Mapping: dict,
}
"""What a member of a type is in JSON, which has one kind of number. Not in it: anything."""


# ------------------------------------------------------------------------------------ jobs


@dataclass(frozen=True, slots=True)
class Result(Readable):
    """A model's answer."""

    text: str = field(default="", repr=False)
    finish_reason: str | None = None
    """`stop`, `length` (cut off by the token limit) or `tool_calls`."""
    vendor_request_id: str | None = None
    content: Any = field(default=None, repr=False)
    """The parts of an answer that is more than text, as the vendor gave them."""


@dataclass(frozen=True, slots=True)
class Usage(Readable):
    """What a job took. `saved` is what the cache spared."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True, slots=True)
class Cache(Readable):
    """The cache's part in a job."""

    status: str
    """`hit`, `stale`, `degraded`, `miss`, `refresh` or `bypass`."""
    age_s: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Queue(Readable):
    """Where an open job stands, about: place 1 is the next, 0 is at work."""

    position: int
    eta_s: int


@dataclass(frozen=True, slots=True)
class JobError(Readable):
    """Why a job failed, or why one of a batch was refused."""

    code: str
    message: str = ""
    retryable: bool = False
    at: datetime | None = None
    errors: tuple[Mapping[str, str], ...] = ()
    """Of a refusal: one `{"field", "message"}` for each wrong member."""
    retry_after_s: float | None = None
    """Of a refusal that may pass: in how many seconds."""

    @classmethod
    def read(cls, body: Mapping[str, Any], **more: Any) -> Self:
        """A refusal is a problem (RFC 9457), with `detail` where a job's error has `message`."""
        return super(JobError, cls).read({"message": body.get("detail"), **body}, **more)


@dataclass(frozen=True, slots=True)
class Fallback(Readable):
    """An old answer, given with a job that is late."""

    result: Result
    age_s: int = 0


ENDED = frozenset({"completed", "failed", "dead_lettered", "cancelled"})


@dataclass(frozen=True, slots=True)
class Job(Readable):
    """A job as it was when it was asked for."""

    id: str
    status: str
    """`queued`, `processing`, `retrying`, `completed`, `failed`, `dead_lettered`, `cancelled`."""
    model: str
    created_at: datetime
    cache: Cache
    started_at: datetime | None = None
    completed_at: datetime | None = None
    """When it ended, however it did."""
    priority: str = "interactive"
    attempts: int = 0
    deduplicated: bool = False
    """The same work was open already, and this is its job."""
    queue: Queue | None = None
    """While it is open."""
    result: Result | None = None
    result_url: str | None = field(default=None, repr=False)
    """Of a result that is too big for the reply: `Client.result` fetches it."""
    fallback: Fallback | None = None
    usage: Usage | None = None
    error: JobError | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    """While it is open: in how many seconds the server wants to be asked again."""

    @property
    def ended(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self.status in ENDED

    @property
    def text(self) -> str:
        """The result's text. Raises NoResultError when there is no result in this object."""
        if self.result is None:
            raise NoResultError(self)
        return self.result.text


@dataclass(frozen=True, slots=True)
class Estimate(Readable):
    """What a call may take, and what it may cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class DryRun(Readable):
    """What a submit would get now."""

    model: str
    priority: str
    job_key: str
    cache_key: str
    cache: Cache
    estimate: Estimate
    queue: Queue
    deduplicated: bool = False
    """The same work is open already: a submit would get its job."""


# ------------------------------------------------------------------------------------ batches


@dataclass(frozen=True, slots=True)
class RequestCounts(Readable):
    """The jobs of a batch by how they stand."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    in_progress: int = 0


@dataclass(frozen=True, slots=True)
class BatchItem(Readable):
    """A job of a batch, or why it was refused: one of the two is set."""

    custom_id: str
    job: Job | None = None
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class Batch(Readable):
    """A batch as it was when it was asked for; `data` is in the order of the submit."""

    id: str
    status: str
    """`in_progress`, or `completed` when all its jobs have ended, well or not."""
    request_counts: RequestCounts
    created_at: datetime | None = None
    usage: Usage | None = None
    data: tuple[BatchItem, ...] = ()
    retry_after_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether all its jobs have."""
        return self.status != "in_progress"


# ------------------------------------------------------------------------------------ the rest


@dataclass(frozen=True, slots=True)
class Model(Readable):
    """A model that this key may use."""

    id: str
    owned_by: str | None = None
    """The vendor."""
    version: str | None = None


@dataclass(frozen=True, slots=True)
class UsageRow(Readable):
    """What a model's jobs that ended on a day (UTC) took."""

    date: Day
    model: str
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    from_cache: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True, slots=True)
class Webhook(Readable):
    """An address that is told of jobs' ends."""

    id: str
    url: str | None = None
    """None for the one that stands for the jobs' own `callback_url`."""
    events: tuple[str, ...] = ()
    description: str | None = None
    status: str = "enabled"
    """`enabled` or `disabled`."""
    disabled_reason: str | None = None
    """`gone`: it answered 410."""
    disabled_at: datetime | None = None
    created_at: datetime | None = None
    secret: str | None = field(default=None, repr=False)
    """For `verify_webhook`; shown when the webhook is made or its secret rotated, not again."""


@dataclass(frozen=True, slots=True)
class Delivery(Readable):
    """An event on its way to a webhook."""

    id: str
    event_id: str
    type: str
    status: str
    """`pending`, `delivered`, `failed`, or `suppressed`: webhooks were switched off."""
    job_id: str | None = None
    """None of a test."""
    url: str | None = None
    """Of a job's `callback_url`; else the webhook has it."""
    attempts: int = 0
    http_status: int | None = None
    """Of the last attempt."""
    error: str | None = None
    created_at: datetime | None = None
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What a verified webhook tells."""

    id: str
    """The same each time the same thing is told: remember it, and act once."""
    type: str
    """`job.completed`, `job.failed`, `job.dead_lettered`, `job.cancelled` or `webhook.test`."""
    timestamp: datetime
    """When it happened."""
    data: Mapping[str, Any]

    @property
    def job_id(self) -> str | None:
        """The job that it is about, for `Client.get`."""
        job_id: str | None = self.data.get("job_id")
        return job_id
