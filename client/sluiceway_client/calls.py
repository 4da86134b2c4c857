"""The calls of the API without any I/O: what to send, and what to do about the answer.

Each call is a generator. It yields Send and Pause, is given what came of them, and returns its
value. The two clients only carry the steps out, so that nothing of the API is said twice.
"""

import json
import math
import re
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Generic, TypeAlias, TypeVar

import httpx

from sluiceway_client.errors import (
    ApiError,
    BadReplyError,
    ConnectionFailedError,
    JobCancelledError,
    JobFailedError,
    NoResultError,
    ResultExpiredError,
    WaitTimeoutError,
    api_error,
    retry_after_s,
)
from sluiceway_client.models import (
    Batch,
    BatchRequest,
    Delivery,
    DryRun,
    Job,
    JobRequest,
    Model,
    Readable,
    Result,
    UsageRow,
    Webhook,
)

__version__ = "0.1.0"

LONGEST_HOLD_S = 20
"""The server holds no request longer (`Prefer: wait`)."""

LEAST_POLL_S, LONGEST_POLL_S = 1.0, 60.0
"""Bounds of the server's Retry-After between two looks at what is open."""

BATCH_POLL_S = 5.0
"""Between two looks at a batch, when the server doesn't say."""

BACKOFF_BASE_S, BACKOFF_MAX_S = 0.5, 8.0
RETRY_FOR_S = 120.0
"""A call is not tried again later than this after its beginning. A longer Retry-After, as that of a
budget of the day, is left to the caller."""

_LINK_IS_CLOSED = frozenset({400, 403, 404})
"""What S3 says of a signed address that is past its time, and of an object that is gone."""

T = TypeVar("T")
Read = TypeVar("Read", bound=Readable)
Open = TypeVar("Open", Job, Batch)

# ------------------------------------------------------------------------------------ steps


@dataclass(frozen=True, slots=True)
class Send:
    """Send this, and give back the httpx.Response, or the httpx.RequestError."""

    method: str
    url: str = field(repr=False)
    """Perhaps a signed one: neither it nor the key nor an input is in a repr."""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: bytes | None = field(default=None, repr=False)
    read_s: float = 30.0
    """For how long the server may be silent."""
    connect_s: float = 30.0
    foreign: bool = False
    """To another host than the API: without the API key."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, and give back nothing."""

    seconds: float


Steps: TypeAlias = Generator[Send | Pause, Any, T]


def http_request(http: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
    """The request for either of httpx's clients."""
    # Waiting for a free connection is nobody's failure: many jobs may be waited for at once.
    timeout = httpx.Timeout(send.connect_s, read=send.read_s, pool=None)
    request = http.build_request(
        send.method,
        send.url,
        params=send.params or None,  # None leaves the query of a signed address as it is
        headers=send.headers,
        content=send.content,
        timeout=timeout,
    )
    if send.foreign:
        for name in ("authorization", "cookie"):  # a client that was given may have its own
            request.headers.pop(name, None)
    return request


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `after` asks for the next one, None after the last."""

    data: tuple[T, ...]
    after: str | None


PageAfter: TypeAlias = Callable[[str | None], Steps[Page[T]]]

# ------------------------------------------------------------------------------------ calls


class Calls:
    """The API of one installation, for one key. Immutable, so that threads may share it."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_s: float,
        max_retries: int,
        clock: Callable[[], float],
        rand: Callable[[], float],
    ) -> None:
        """`clock`: seconds of any origin. `rand`: in [0, 1). Raises ValueError."""
        try:
            url = httpx.URL(base_url.strip().rstrip("/"))
        except httpx.InvalidURL as error:
            raise ValueError("base_url is not a URL") from error
        if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
            raise ValueError("base_url is a URL like https://HOST/v1")
        if url.userinfo:
            # httpx would send it in the place of the key, and base_url is in the client's repr.
            raise ValueError("base_url holds no user and no password: the key is api_key")
        key = api_key.strip()
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            # httpx would say so too, and repeat the key.
            raise ValueError("the API key is not of visible ASCII characters")
        self.base_url = str(url)
        self._headers = {
            "accept": "application/json",
            "authorization": f"Bearer {key}",
            "user-agent": f"sluiceway-client/{__version__}",
        }
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._clock = clock
        self._rand = rand

    # -------------------------------------------------------------------------------- jobs

    def submit(
        self,
        request: Mapping[str, Any] | JobRequest,
        *,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        until: float = math.inf,
    ) -> Steps[Job]:
        """`until`: of the clock; no try begins later."""
        reply = yield from self._call(
            "POST",
            "jobs",
            body=_given(request),
            headers=_idempotency(idempotency_key),
            wait_s=wait_s,
            repeat=True,
            until=until,
        )
        return _job(reply)

    def dry_run(self, request: Mapping[str, Any] | JobRequest) -> Steps[DryRun]:
        reply = yield from self._call(
            "POST", "jobs", params={"dry_run": "true"}, body=_given(request), repeat=True
        )
        return _read(reply, DryRun.read)

    def get(
        self, job: Job | str, *, wait_s: float | None = None, until: float = math.inf
    ) -> Steps[Job]:
        reply = yield from self._call("GET", f"jobs/{_id(job)}", wait_s=wait_s, until=until)
        return _job(reply)

    def cancel(self, job: Job | str) -> Steps[Job]:
        reply = yield from self._call("POST", f"jobs/{_id(job)}/cancel", repeat=True)
        return _job(reply)

    def jobs(self, *, status: str | None, model: str | None, limit: int | None) -> PageAfter[Job]:
        return self._pages("jobs", Job, status=status, model=model, limit=limit)

    def run(
        self,
        request: Mapping[str, Any] | JobRequest,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Steps[Job]:
        until = self._until(timeout_s)
        job = yield from self.submit(
            request, idempotency_key=idempotency_key, wait_s=self._left_s(until), until=until
        )
        return (yield from self._completed(job, until))

    def wait(self, job: Job | str, *, timeout_s: float | None = None) -> Steps[Job]:
        until = self._until(timeout_s)
        if isinstance(job, str):
            job = yield from self.get(job, wait_s=self._left_s(until), until=until)
        return (yield from self._completed(job, until))

    def result(self, job: Job | str) -> Steps[Result]:
        if isinstance(job, str) or (job.result is None and job.result_url is None):
            job = yield from self.get(job)
        try:
            return (yield from self._result(job))
        except ApiError as error:
            if error.status not in _LINK_IS_CLOSED:
                raise
        job = yield from self.get(job)  # with an address that is signed anew
        try:
            return (yield from self._result(job))
        except ApiError as error:
            if error.status not in _LINK_IS_CLOSED:
                raise
            raise ResultExpiredError(
                "result_expired", error.status, "the result can't be fetched any more"
            ) from error

    def _result(self, job: Job) -> Steps[Result]:
        """Raises ApiError for a result that isn't at its address."""
        _check_completed(job)
        if job.result is not None:
            return job.result
        if job.result_url is None:
            raise NoResultError(job)
        try:
            httpx.URL(job.result_url)
        except httpx.InvalidURL as error:
            raise BadReplyError(f"the result_url of {job.id} is no address") from error
        reply = yield from self._tried(
            Send(
                "GET",
                job.result_url,
                headers={"user-agent": self._headers["user-agent"]},
                read_s=self._timeout_s,
                connect_s=self._timeout_s,
                foreign=True,
            ),
            repeat=True,
        )
        return _read(reply, Result.read)

    def _completed(self, job: Job, until: float) -> Steps[Job]:
        """The job with its result, once it has completed."""

        def look() -> Steps[Job]:
            return self.get(job, wait_s=self._left_s(until), until=until)

        ended = yield from self._ended(job, look, until, LEAST_POLL_S)
        _check_completed(ended)
        if ended.result is None:
            ended = replace(ended, result=(yield from self.result(ended)))
        return ended

    # -------------------------------------------------------------------------------- batches

    def create_batch(
        self, jobs: Sequence[BatchRequest], *, idempotency_key: str | None = None
    ) -> Steps[Batch]:
        reply = yield from self._call(
            "POST",
            "batches",
            body={"jobs": [_given(job) for job in jobs]},
            headers=_idempotency(idempotency_key),
            repeat=True,
        )
        return _batch(reply)

    def get_batch(self, batch: Batch | str, *, until: float = math.inf) -> Steps[Batch]:
        reply = yield from self._call("GET", f"batches/{_id(batch)}", until=until)
        return _batch(reply)

    def wait_batch(self, batch: Batch | str, *, timeout_s: float | None = None) -> Steps[Batch]:
        until = self._until(timeout_s)
        if isinstance(batch, str):
            batch = yield from self.get_batch(batch, until=until)
        batch_id = batch.id
        return (
            yield from self._ended(
                batch, lambda: self.get_batch(batch_id, until=until), until, BATCH_POLL_S
            )
        )

    # -------------------------------------------------------------------------------- models, usage

    def models(self) -> Steps[list[Model]]:
        reply = yield from self._call("GET", "models")
        return _list(reply, Model)

    def usage(self, from_: date | str | None, to: date | str | None) -> Steps[list[UsageRow]]:
        reply = yield from self._call("GET", "usage", params=_days(from_, to))
        return _list(reply, UsageRow)

    # -------------------------------------------------------------------------------- webhooks

    def create_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] | None,
        description: str | None,
        idempotency_key: str | None,
    ) -> Steps[Webhook]:
        body = {
            "url": url,
            "events": None if events is None else list(events),
            "description": description,
        }
        reply = yield from self._call(
            "POST",
            "webhooks",
            body=_given(body),
            headers=_idempotency(idempotency_key),
            repeat=True,
        )
        return _read(reply, Webhook.read)

    def webhooks(self) -> Steps[list[Webhook]]:
        reply = yield from self._call("GET", "webhooks")
        return _list(reply, Webhook)

    def get_webhook(self, webhook: Webhook | str) -> Steps[Webhook]:
        return self._read_call(Webhook, "GET", f"webhooks/{_id(webhook)}")

    def delete_webhook(self, webhook: Webhook | str) -> Steps[None]:
        yield from self._call("DELETE", f"webhooks/{_id(webhook)}")

    def test_webhook(self, webhook: Webhook | str) -> Steps[Delivery]:
        return self._read_call(Delivery, "POST", f"webhooks/{_id(webhook)}/test")

    def rotate_webhook(self, webhook: Webhook | str, *, overlap_s: int | None) -> Steps[Webhook]:
        body = _given({"overlap_s": overlap_s})
        return self._read_call(Webhook, "POST", f"webhooks/{_id(webhook)}/rotate", body=body)

    def webhook_deliveries(
        self, webhook: Webhook | str, *, limit: int | None
    ) -> PageAfter[Delivery]:
        return self._pages(f"webhooks/{_id(webhook)}/deliveries", Delivery, limit=limit)

    def redeliver(self, webhook: Webhook | str, delivery: Delivery | str) -> Steps[Delivery]:
        path = f"webhooks/{_id(webhook)}/deliveries/{_id(delivery)}/redeliver"
        return self._read_call(Delivery, "POST", path)

    # -------------------------------------------------------------------------------- time

    def _until(self, timeout_s: float | None) -> float:
        return math.inf if timeout_s is None else self._clock() + timeout_s

    def _left_s(self, until: float) -> float:
        return until - self._clock()

    def _ended(
        self, last: Open, look: Callable[[], Steps[Open]], until: float, poll_s: float
    ) -> Steps[Open]:
        """Looks again when the server wants it, until it has ended. Raises WaitTimeoutError."""
        while not last.ended:
            left_s = self._left_s(until)
            if left_s <= 0:
                raise WaitTimeoutError(last)
            wished_s = poll_s if last.retry_after_s is None else last.retry_after_s
            yield Pause(min(max(LEAST_POLL_S, wished_s), LONGEST_POLL_S, left_s))
            last = yield from look()
        return last

    # -------------------------------------------------------------------------------- one call

    def _pages(self, path: str, kind: type[Read], **params: Any) -> PageAfter[Read]:
        def page_after(after: str | None) -> Steps[Page[Read]]:
            reply = yield from self._call("GET", path, params=_texts({**params, "after": after}))
            return _read(reply, lambda body: _page(body, kind))

        return page_after

    def _read_call(
        self,
        kind: type[Read],
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
    ) -> Steps[Read]:
        reply = yield from self._call(method, path, body=body)
        return _read(reply, kind.read)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float | None = None,
        repeat: bool = False,
        until: float = math.inf,
    ) -> Steps[httpx.Response]:
        """The reply, 2xx. `repeat`: doing it twice is doing it once, as a GET always is.

        Raises ApiError and ConnectionFailedError.
        """
        sent = {**self._headers, **(headers or {})}
        hold_s = max(0, int(min(wait_s or 0, LONGEST_HOLD_S)))
        if hold_s > 0:
            sent["prefer"] = f"wait={hold_s}"
        content = None
        if body is not None:
            sent["content-type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        send = Send(
            method,
            f"{self.base_url}/{path}",
            params or {},
            sent,
            content,
            read_s=self._timeout_s + hold_s,
            connect_s=self._timeout_s,
        )
        return (yield from self._tried(send, repeat=repeat or method == "GET", until=until))

    def _tried(self, send: Send, *, repeat: bool, until: float = math.inf) -> Steps[httpx.Response]:
        """Sends it, again if need be: at most `max_retries` times, and not after `until`."""
        give_up_at = min(self._clock() + RETRY_FOR_S, until)
        tries = 0
        while True:
            answer: httpx.Response | httpx.RequestError = yield send
            if isinstance(answer, httpx.Response) and answer.is_success:
                return answer
            failure = _failure(answer, send)
            tries += 1
            # On top of what the server wishes, so that those who were refused together don't come
            # back together.
            backoff_s = self._rand() * min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** min(tries, 30))
            pause_s = (failure.retry_after_s or 0.0) + backoff_s
            if (
                not repeat
                or not failure.retryable
                or tries > self._max_retries
                or self._clock() + pause_s > give_up_at
            ):
                raise failure from (answer if isinstance(answer, Exception) else None)
            yield Pause(pause_s)


def _failure(
    answer: httpx.Response | httpx.RequestError, send: Send
) -> ApiError | ConnectionFailedError:
    if isinstance(answer, httpx.Response):
        return api_error(answer.status_code, answer.headers, _json_or_none(answer))
    # Without the path and the query: a signed address opens something.
    host = httpx.URL(send.url).netloc.decode()
    return ConnectionFailedError(f"no reply from {host}: {type(answer).__name__}")


# ------------------------------------------------------------------------------------ forms


def _given(request: Mapping[str, Any] | JobRequest | BatchRequest) -> dict[str, Any]:
    return {name: value for name, value in request.items() if value is not None}


def _texts(params: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value is not None}


def _days(from_: date | str | None, to: date | str | None) -> dict[str, str]:
    days = {"from": from_, "to": to}
    return _texts(
        {name: f"{day:%Y-%m-%d}" if isinstance(day, date) else day for name, day in days.items()}
    )


def _idempotency(key: str | None) -> dict[str, str]:
    """The header, the same in every try of a call. Raises ValueError."""
    key = str(uuid.uuid4()) if key is None else key
    if not re.fullmatch(r"[\x21-\x7e]{1,255}", key):
        raise ValueError("an idempotency_key is 1 to 255 visible ASCII characters")
    return {"idempotency-key": key}


def _id(thing: Job | Batch | Webhook | Delivery | str) -> str:
    """An id as a part of a path. Raises ValueError for one that would be another path."""
    name = thing if isinstance(thing, str) else thing.id
    if not re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]*", name):
        raise ValueError("this is no id")
    return name


def _check_completed(job: Job) -> None:
    """Raises JobFailedError or JobCancelledError for a job that ended otherwise."""
    if job.status == "cancelled":
        raise JobCancelledError(job)
    if job.ended and job.status != "completed":
        raise JobFailedError(job)


def _json_or_none(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except (ValueError, RecursionError):
        return None


_NOT_OF_THE_FORM = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,  # JSON that is nested too deep
)


def _read(reply: httpx.Response, read: Callable[[Any], T]) -> T:
    """What the reply says. Raises BadReplyError for one that isn't of this API."""
    try:
        return read(reply.json())
    except _NOT_OF_THE_FORM as error:
        raise BadReplyError(
            f"the reply with status {reply.status_code} is not of the form that was expected: "
            "check base_url, and what stands between"
        ) from error


def _job(reply: httpx.Response) -> Job:
    return _read(reply, lambda body: Job.read(body, retry_after_s=retry_after_s(reply.headers)))


def _batch(reply: httpx.Response) -> Batch:
    return _read(reply, lambda body: Batch.read(body, retry_after_s=retry_after_s(reply.headers)))


def _page(body: Any, kind: type[Read]) -> Page[Read]:
    after = body.get("last_id") if body.get("has_more") else None
    if not isinstance(after, str | None):
        raise TypeError("last_id is no text")
    return Page(tuple(kind.read(one) for one in body["data"]), after)


def _list(reply: httpx.Response, kind: type[Read]) -> list[Read]:
    return _read(reply, lambda body: [kind.read(one) for one in body["data"]])
