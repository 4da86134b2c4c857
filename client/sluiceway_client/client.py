"""The two clients: each carries out the steps of `calls`, one by blocking, one by awaiting."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import date
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from sluiceway_client.calls import Calls, PageAfter, Pause, Send, Steps, http_request
from sluiceway_client.models import (
    Batch,
    BatchRequest,
    Delivery,
    DryRun,
    Job,
    JobRequest,
    Model,
    Result,
    UsageRow,
    Webhook,
)

T = TypeVar("T")

TIMEOUT_S = 30.0
"""API Gateway gives up after 29."""

MAX_RETRIES = 3


def _setting(given: str | None, argument: str, variable: str) -> str:
    value = given or os.environ.get(variable)
    if not value:
        raise ValueError(f"give {argument}, or set {variable}")
    return value


def _calls(base_url: str | None, api_key: str | None, **more: Any) -> Calls:
    return Calls(
        _setting(base_url, "base_url", "SLUICEWAY_API_URL"),
        _setting(api_key, "api_key", "SLUICEWAY_API_KEY"),
        **more,
    )


class Client:
    """The API of one installation, for one key; threads may share it.

        with Client("https://HOST/v1", "swk_...") as client:
            job = client.run(model="demo-chat", input="Say hello.")

    Every call raises ApiError (its subclasses say what to do), ConnectionFailedError and
    BadReplyError. What can be repeated is: up to `max_retries` times, within two minutes, and not
    before the server's Retry-After.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        http_client: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        """`base_url` ends in the stage, as in `https://HOST/v1`.

        Without them, SLUICEWAY_API_URL and SLUICEWAY_API_KEY of the environment are taken.
        `timeout`: seconds without a byte of a reply; a wait that is asked for comes on top.
        `http_client`: for proxies, certificates and the like; it stays open when this is closed.
        `sleep`, `clock` and `rand` replace time and chance in tests. Raises ValueError.
        """
        self._calls = _calls(
            base_url,
            api_key,
            timeout_s=timeout,
            max_retries=max_retries,
            clock=clock,
            rand=rand,
        )
        self._own = http_client is None
        self._http = http_client or httpx.Client()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        if self._own:
            self._http.close()

    # -------------------------------------------------------------------------------- jobs

    def submit(
        self,
        *,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        **request: Unpack[JobRequest],
    ) -> Job:
        """The accepted job, the open one that does the same work, or the answer of the cache.

        `request`: the members of JobRequest. `idempotency_key`: a random one without it; with your
        own, a submit that your program repeats after a crash is the same one, for 24 hours.
        `wait_s`: the server holds the reply until the job ends, 20 s at most.
        """
        return self._run(
            self._calls.submit(request, idempotency_key=idempotency_key, wait_s=wait_s)
        )

    def run(
        self,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        **request: Unpack[JobRequest],
    ) -> Job:
        """Submits the job and waits: the completed job with its result. Raises as `wait` does."""
        return self._run(
            self._calls.run(request, idempotency_key=idempotency_key, timeout_s=timeout_s)
        )

    def dry_run(self, **request: Unpack[JobRequest]) -> DryRun:
        """What a submit would get; nothing is written, counted or sent."""
        return self._run(self._calls.dry_run(request))

    def get(self, job: Job | str, wait_s: float | None = None) -> Job:
        """The job as it is now; with `wait_s` the server holds the reply as in `submit`."""
        return self._run(self._calls.get(job, wait_s=wait_s))

    def wait(self, job: Job | str, timeout_s: float | None = None) -> Job:
        """The job with its result, once it has completed.

        `timeout_s`: a request that is under way then is not cut off. Without it the job's own
        deadline is the end. Raises JobFailedError, JobCancelledError, and WaitTimeoutError, which
        is a TimeoutError.
        """
        return self._run(self._calls.wait(job, timeout_s=timeout_s))

    def result(self, job: Job | str) -> Result:
        """The result of a completed job, fetched from its signed address when it is a big one.

        Raises NoResultError for an open job, JobFailedError and JobCancelledError.
        """
        return self._run(self._calls.result(job))

    def cancel(self, job: Job | str) -> Job:
        """The cancelled job. Raises ConflictError for one that ended otherwise."""
        return self._run(self._calls.cancel(job))

    def jobs(
        self, *, status: str | None = None, model: str | None = None, limit: int | None = None
    ) -> Iterator[Job]:
        """This tenant's jobs, newest first; pages of `limit` jobs are fetched as they are needed.

        Whether they have their results is the server's choice: `result` fetches what is missing.
        """
        return self._each(self._calls.jobs(status=status, model=model, limit=limit))

    # -------------------------------------------------------------------------------- batches

    def create_batch(
        self, jobs: Sequence[BatchRequest], *, idempotency_key: str | None = None
    ) -> Batch:
        """Submits up to 100 jobs; each is accepted or refused by itself."""
        return self._run(self._calls.create_batch(jobs, idempotency_key=idempotency_key))

    def get_batch(self, batch: Batch | str) -> Batch:
        """The batch as it is now."""
        return self._run(self._calls.get_batch(batch))

    def wait_batch(self, batch: Batch | str, timeout_s: float | None = None) -> Batch:
        """The batch once all its jobs have ended, well or not. Raises WaitTimeoutError."""
        return self._run(self._calls.wait_batch(batch, timeout_s=timeout_s))

    # -------------------------------------------------------------------------------- models, usage

    def models(self) -> list[Model]:
        """The models that this key may use."""
        return self._run(self._calls.models())

    def usage(
        self, from_: date | str | None = None, to: date | str | None = None
    ) -> list[UsageRow]:
        """Jobs, tokens and costs by day (UTC) and model, both days included."""
        return self._run(self._calls.usage(from_, to))

    # -------------------------------------------------------------------------------- webhooks

    def create_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Webhook:
        """The webhook with its secret, which is shown this once. `events`: all without it.

        `idempotency_key` as in `submit`: with the same one it is made once, and told again.
        """
        return self._run(
            self._calls.create_webhook(
                url, events=events, description=description, idempotency_key=idempotency_key
            )
        )

    def webhooks(self) -> list[Webhook]:
        """This tenant's webhooks."""
        return self._run(self._calls.webhooks())

    def get_webhook(self, webhook: Webhook | str) -> Webhook:
        """The webhook as it is now."""
        return self._run(self._calls.get_webhook(webhook))

    def delete_webhook(self, webhook: Webhook | str) -> None:
        """Nothing is sent there any more."""
        self._run(self._calls.delete_webhook(webhook))

    def test_webhook(self, webhook: Webhook | str) -> Delivery:
        """Sends a `webhook.test` there: the delivery, still pending."""
        return self._run(self._calls.test_webhook(webhook))

    def rotate_webhook(self, webhook: Webhook | str, *, overlap_s: int | None = None) -> Webhook:
        """The webhook with its new secret, shown this once; the old one signs too for a while."""
        return self._run(self._calls.rotate_webhook(webhook, overlap_s=overlap_s))

    def webhook_deliveries(
        self, webhook: Webhook | str, *, limit: int | None = None
    ) -> Iterator[Delivery]:
        """What was sent there, newest first; pages of `limit` are fetched as they are needed."""
        return self._each(self._calls.webhook_deliveries(webhook, limit=limit))

    def redeliver(self, webhook: Webhook | str, delivery: Delivery | str) -> Delivery:
        """Sends it once more, with the same id: the delivery, pending again."""
        return self._run(self._calls.redeliver(webhook, delivery))

    # -------------------------------------------------------------------------------- steps

    def _run(self, steps: Steps[T]) -> T:
        answer: httpx.Response | httpx.RequestError | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Pause):
                self._sleep(step.seconds)
                answer = None
            else:
                answer = self._sent(step)

    def _sent(self, send: Send) -> httpx.Response | httpx.RequestError:
        try:
            # A redirect is none of this API's, and the key is nobody else's.
            return self._http.send(
                http_request(self._http, send), auth=None, follow_redirects=False
            )
        except httpx.RequestError as error:
            return error

    def _each(self, page_after: PageAfter[T]) -> Iterator[T]:
        after = None
        while True:
            page = self._run(page_after(after))
            yield from page.data
            if page.after in {None, after}:
                return
            after = page.after


class AsyncClient:
    """Client for asyncio: the same calls, awaited.

    async with AsyncClient() as client:
        job = await client.run(model="demo-chat", input="Say hello.")
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        http_client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        """See Client."""
        self._calls = _calls(
            base_url,
            api_key,
            timeout_s=timeout,
            max_retries=max_retries,
            clock=clock,
            rand=rand,
        )
        self._own = http_client is None
        self._http = http_client or httpx.AsyncClient()
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        if self._own:
            await self._http.aclose()

    # -------------------------------------------------------------------------------- jobs

    async def submit(
        self,
        *,
        idempotency_key: str | None = None,
        wait_s: float | None = None,
        **request: Unpack[JobRequest],
    ) -> Job:
        """See Client."""
        return await self._run(
            self._calls.submit(request, idempotency_key=idempotency_key, wait_s=wait_s)
        )

    async def run(
        self,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        **request: Unpack[JobRequest],
    ) -> Job:
        """See Client."""
        return await self._run(
            self._calls.run(request, idempotency_key=idempotency_key, timeout_s=timeout_s)
        )

    async def dry_run(self, **request: Unpack[JobRequest]) -> DryRun:
        """See Client."""
        return await self._run(self._calls.dry_run(request))

    async def get(self, job: Job | str, wait_s: float | None = None) -> Job:
        """See Client."""
        return await self._run(self._calls.get(job, wait_s=wait_s))

    async def wait(self, job: Job | str, timeout_s: float | None = None) -> Job:
        """See Client."""
        return await self._run(self._calls.wait(job, timeout_s=timeout_s))

    async def result(self, job: Job | str) -> Result:
        """See Client."""
        return await self._run(self._calls.result(job))

    async def cancel(self, job: Job | str) -> Job:
        """See Client."""
        return await self._run(self._calls.cancel(job))

    def jobs(
        self, *, status: str | None = None, model: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Job]:
        """See Client."""
        return self._each(self._calls.jobs(status=status, model=model, limit=limit))

    # -------------------------------------------------------------------------------- batches

    async def create_batch(
        self, jobs: Sequence[BatchRequest], *, idempotency_key: str | None = None
    ) -> Batch:
        """See Client."""
        return await self._run(self._calls.create_batch(jobs, idempotency_key=idempotency_key))

    async def get_batch(self, batch: Batch | str) -> Batch:
        """See Client."""
        return await self._run(self._calls.get_batch(batch))

    async def wait_batch(self, batch: Batch | str, timeout_s: float | None = None) -> Batch:
        """See Client."""
        return await self._run(self._calls.wait_batch(batch, timeout_s=timeout_s))

    # -------------------------------------------------------------------------------- models, usage

    async def models(self) -> list[Model]:
        """See Client."""
        return await self._run(self._calls.models())

    async def usage(
        self, from_: date | str | None = None, to: date | str | None = None
    ) -> list[UsageRow]:
        """See Client."""
        return await self._run(self._calls.usage(from_, to))

    # -------------------------------------------------------------------------------- webhooks

    async def create_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Webhook:
        """See Client."""
        return await self._run(
            self._calls.create_webhook(
                url, events=events, description=description, idempotency_key=idempotency_key
            )
        )

    async def webhooks(self) -> list[Webhook]:
        """See Client."""
        return await self._run(self._calls.webhooks())

    async def get_webhook(self, webhook: Webhook | str) -> Webhook:
        """See Client."""
        return await self._run(self._calls.get_webhook(webhook))

    async def delete_webhook(self, webhook: Webhook | str) -> None:
        """See Client."""
        await self._run(self._calls.delete_webhook(webhook))

    async def test_webhook(self, webhook: Webhook | str) -> Delivery:
        """See Client."""
        return await self._run(self._calls.test_webhook(webhook))

    async def rotate_webhook(
        self, webhook: Webhook | str, *, overlap_s: int | None = None
    ) -> Webhook:
        """See Client."""
        return await self._run(self._calls.rotate_webhook(webhook, overlap_s=overlap_s))

    def webhook_deliveries(
        self, webhook: Webhook | str, *, limit: int | None = None
    ) -> AsyncIterator[Delivery]:
        """See Client."""
        return self._each(self._calls.webhook_deliveries(webhook, limit=limit))

    async def redeliver(self, webhook: Webhook | str, delivery: Delivery | str) -> Delivery:
        """See Client."""
        return await self._run(self._calls.redeliver(webhook, delivery))

    # -------------------------------------------------------------------------------- steps

    async def _run(self, steps: Steps[T]) -> T:
        answer: httpx.Response | httpx.RequestError | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
                answer = None
            else:
                answer = await self._sent(step)

    async def _sent(self, send: Send) -> httpx.Response | httpx.RequestError:
        try:
            return await self._http.send(
                http_request(self._http, send), auth=None, follow_redirects=False
            )
        except httpx.RequestError as error:
            return error

    async def _each(self, page_after: PageAfter[T]) -> AsyncIterator[T]:
        after = None
        while True:
            page = await self._run(page_after(after))
            for one in page.data:
                yield one
            if page.after in {None, after}:
                return
            after = page.after
