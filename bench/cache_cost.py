"""What the cache costs and saves: calls, units, time of the handlers, and money at list prices.

Calls and units are counted as bench/aws_calls.py does it, on a local stack of its own. Times are
those of the handlers' own code, on stores in memory and on DynamoDB Local. Both go into
cli/sluiceway_cli/counted.json, from which `sluiceway_cli.costs` computes what things cost; what it
assumes stands there. Run it from the repository's folder.
"""

import base64
import io
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from pydoc_data.topics import topics
from statistics import quantiles
from threading import Thread
from types import ModuleType
from typing import Any, NoReturn

import boto3
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import to_item
from sluiceway.adapters.dynamodb_cache import _values_of as row_of_entry
from sluiceway.bootstrap import RunDeps
from sluiceway.domain import catalogue
from sluiceway.domain.freshness import CacheEntry
from sluiceway.domain.payload import INLINE_RESULT_BYTES, Payload, compress
from sluiceway.ports import JobStore, ResultCache, VendorAnswer
from sluiceway.routes.request import ApiDeps
from sluiceway.telemetry import PowertoolsTelemetry
from sluiceway.usecases.invalidate_cache import Invalidator
from sluiceway.usecases.run_job import Worker
from sluiceway.usecases.submit_job import Submitter
from sluiceway_cli.costs import (
    GB,
    KB,
    LIST,
    MILLION,
    ROW_OVERHEAD_BYTES,
    STACK,
    WAITS_MS,
    BreakEven,
    Counts,
    Step,
    Stored,
    Workload,
    break_even,
    cost_of,
    cost_of_cache,
    cost_of_events,
    idle_cost,
    valkey_least,
)
from sluiceway_cli.costs import (
    Path as CostPath,
)
from sluiceway_local import dynamodb_local, emulator, state

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import aws_calls, report
from bench.aws_calls import Call, Gateway, Units, item_bytes, read_units, write_units
from tests.contract.harness import make_tables, store_on
from tests.fakes.in_memory import (
    FakeClock,
    FakeFlags,
    FakeVendors,
    InMemoryAudit,
    InMemoryBacklogs,
    InMemoryBatches,
    InMemoryCache,
    InMemoryGates,
    InMemoryJobLists,
    InMemoryJobs,
    InMemoryLatencies,
    InMemoryOwedAnswers,
    InMemoryPayloads,
    InMemoryQueue,
    InMemoryRates,
    InMemoryState,
    InMemoryUsage,
    World,
)

COUNTED = report.ROOT / "cli" / "sluiceway_cli" / "counted.json"

SIZES_KB = (1, 10, 100)
"""Of the answers in the tables, which are timed, too."""

ANSWERS_KB = (1, 4, 10, 16, 100)
PROMPTS_KB = (0.2, 2, 8, 32, 128, 256)
"""That are counted. Compressed, 16 KB of an answer and 256 KB of a prompt go to S3."""

HIT_RATIOS = (0.0, 0.5, 0.9)

TIMED = 100
"""Events of each kind and size whose handler is timed, after WARM_UP others."""

WARM_UP = 20

CATALOGUE = catalogue.parse(
    """
    [vendors.simulator]
    [models.demo-chat]
    vendor = "simulator"
    vendor_model = "sim-chat-1"
    version = "1"
    cache = { jitter = 0.0 }
    """
)


# ------------------------------------------------------------------------------------ answers


@cache
def _prose() -> bytes:
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    return text.encode("ascii", "ignore")


def english(size: int) -> str:
    """Prose of that many bytes: Python's language reference, which comes with it."""
    return _prose()[:size].decode()


def json_text(size: int) -> str:
    """A list of records as a model asked for JSON writes it, cut at that many bytes."""
    rng = random.Random(size)  # noqa: S311 - repeatable on purpose
    words = english(50 * KB).split()
    records = [
        {
            "id": number,
            "name": " ".join(rng.choices(words, k=2)),
            "category": rng.choice(["invoice", "contract", "letter", "report"]),
            "confidence": round(rng.random(), 3),
            "summary": " ".join(rng.choices(words, k=12)),
            "needs_review": rng.random() < 0.2,  # noqa: PLR2004 - one in five
        }
        for number in range(size // 100 + 1)
    ]
    return json.dumps(records, indent=2)[:size]


def base64_text(size: int) -> str:
    """Random bytes in base64: nothing in it but the alphabet can be compressed."""
    return base64.b64encode(random.Random(size).randbytes(size))[:size].decode()  # noqa: S311


KINDS: Mapping[str, Callable[[int], str]] = {
    "English": english,
    "JSON": json_text,
    "random base64": base64_text,
}


def document(text: str) -> bytes:
    """What is kept of an answer."""
    return json.dumps({"text": text, "finish_reason": "stop"}).encode()


# ------------------------------------------------------------------------------------ paths


@dataclass(frozen=True, slots=True)
class Size:
    """Of English text."""

    prompt_kb: float = PROMPTS_KB[0]
    answer_kb: float = ANSWERS_KB[0]


LEAST = Size()
SIZES = (*(Size(answer_kb=kb) for kb in ANSWERS_KB), *(Size(prompt_kb=kb) for kb in PROMPTS_KB[1:]))

Drive = Callable[[Gateway, Size], list[Call]]


def _prompt(gateway: Gateway, size: Size) -> str:
    """A new one, to which the vendor answers in that size."""
    mark = gateway.prompt(12)
    gateway.fault(mark, text=english(round(size.answer_kb * KB)))
    return mark + english(round(size.prompt_kb * KB) - len(mark))


def _cached(gateway: Gateway, size: Size) -> str:
    prompt = _prompt(gateway, size)
    gateway.run(gateway.submit(prompt))
    return prompt


def fresh_hit(gateway: Gateway, size: Size) -> list[Call]:
    """A submit whose answer is there."""
    prompt = _cached(gateway, size)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def queued_hit(gateway: Gateway, size: Size) -> list[Call]:
    """A submit of what is stale while a refresh is under way."""
    prompt = _cached(gateway, size)
    aws_calls.make_stale(gateway, prompt)
    gateway.submit(prompt, status=200)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def queueing_hit(gateway: Gateway, size: Size) -> list[Call]:
    """The submit that queues the refresh."""
    prompt = _cached(gateway, size)
    aws_calls.make_stale(gateway, prompt)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def refresh_run(gateway: Gateway, size: Size) -> list[Call]:
    """The worker renews an entry."""
    prompt = _cached(gateway, size)
    cache_key = aws_calls.make_stale(gateway, prompt)
    gateway.submit(prompt, status=200)
    record = gateway.receive(gateway.tables.refresh_of(cache_key), "batch")
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def miss(model: str) -> Drive:
    """A submit of new work."""

    def drive(gateway: Gateway, size: Size) -> list[Call]:
        prompt = _prompt(gateway, size)
        with gateway.counting() as calls:
            gateway.submit(prompt, model=model)
        return calls

    return drive


def first_run(model: str) -> Drive:
    """The worker does new work."""

    def drive(gateway: Gateway, size: Size) -> list[Call]:
        record = gateway.receive(gateway.submit(_prompt(gateway, size), model=model))
        with gateway.counting() as calls:
            gateway.deliver(record)
        return calls

    return drive


def fetched(model: str) -> Drive:
    """The partner gets the answer."""

    def drive(gateway: Gateway, size: Size) -> list[Call]:
        job_id = gateway.submit(_prompt(gateway, size), model=model)
        gateway.run(job_id)
        with gateway.counting() as calls:
            gateway.fetch(job_id, status="completed")
        return calls

    return drive


def polled(gateway: Gateway, size: Size) -> list[Call]:
    """The partner asks for a job that is open still."""
    job_id = gateway.submit(_prompt(gateway, size))
    with gateway.counting() as calls:
        gateway.fetch(job_id, status="queued")
    return calls


def published(tenant: str) -> Drive:
    """The stream tells of the end of a job of this tenant."""

    def drive(gateway: Gateway, size: Size) -> list[Call]:
        job_id = gateway.submit(_prompt(gateway, size), tenant=tenant)
        gateway.run(job_id)
        with gateway.counting() as calls:
            publish(gateway, tenant, job_id)
        return calls

    return drive


def delivered(gateway: Gateway, size: Size) -> list[Call]:
    """A partner's server hears of it."""
    job_id = gateway.submit(_prompt(gateway, size), tenant=TOLD)
    gateway.run(job_id)
    publish(gateway, TOLD, job_id)
    record = receive_webhook(gateway, job_id)
    with gateway.counting() as calls:
        deliver_webhook(record)
    return calls


def publish(gateway: Gateway, tenant: str, job_id: str) -> None:
    """What the stream brings of a job that has just been completed."""
    row = job_row(gateway, tenant, job_id)
    change = {"NewImage": row, "OldImage": {**row, "status": {"S": "processing"}}}
    record = {"eventName": "MODIFY", "dynamodb": change}
    context = aws_calls.Context("publish_events")
    _publisher().handle({"Records": [record]}, context, bootstrap.publish_deps())


def receive_webhook(gateway: Gateway, job_id: str) -> aws_calls.Record:
    """The message about this job. The deployed publisher may have sent one, too."""
    sqs = emulator.client("sqs", gateway.local.endpoint_url)
    url = gateway.local.outputs["WebhookQueueUrl"]
    for _ in range(20):
        told = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["All"],
        )
        for message in told.get("Messages", []):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            if json.loads(message["Body"])["job_id"] == job_id:
                return aws_calls.record_of(message, url)
    raise report.NotMeasuredError(f"no webhook of {job_id} came")


def deliver_webhook(record: aws_calls.Record) -> None:
    """One that arrives."""
    context = aws_calls.Context("deliver_webhook")
    answer = _deliverer().handle({"Records": [record]}, context, bootstrap.deliver_deps())
    aws_calls.expect("kept webhooks", answer["batchItemFailures"], [])


def job_row(gateway: Gateway, tenant: str, job_id: str) -> Mapping[str, Any]:
    """As it is in the table."""
    key = {"tenant": {"S": tenant}, "job_id": {"S": job_id}}
    row = gateway.tables.row(gateway.local.outputs["JobsTableName"], key)
    if row is None:
        raise report.NotMeasuredError(f"there is no row of {job_id}")
    return row


def stored_of(gateway: Gateway, job_id: str) -> tuple[int, int]:
    """Bytes of the row of a job, and of its objects."""
    row = job_row(gateway, "acme", job_id)
    s3, bucket = emulator.client("s3", gateway.local.endpoint_url), "PayloadBucketName"
    objects = [
        s3.head_object(Bucket=gateway.local.outputs[bucket], Key=row[name]["S"])["ContentLength"]
        for name in ("input_ref", "result_ref")
        if name in row
    ]
    return item_bytes(row), sum(objects)


@cache
def _publisher() -> ModuleType:
    return aws_calls.function("publish_events")


@cache
def _deliverer() -> ModuleType:
    return aws_calls.function("deliver_webhook")


class _Partner(BaseHTTPRequestHandler):
    """A server that takes each webhook."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def partner_told(gateway: Gateway) -> Iterator[None]:
    """Registers a server of its own as the webhook of TOLD."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Partner) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            body = json.dumps({"url": f"http://127.0.0.1:{server.server_port}/"})
            aws_calls.expect("a webhook", gateway.ask("POST", "/webhooks", TOLD, body)[0], 201)
            yield
        finally:
            server.shutdown()
            thread.join()


TOLD = "globex"
"""The partner who has a webhook."""

PATHS: Mapping[str, Drive] = {
    "fresh hit": fresh_hit,
    "stale hit, refresh queued already": queued_hit,
    "stale hit that queues a refresh": queueing_hit,
    "miss: submit": miss("own"),
    "miss: run": first_run("own"),
    "miss: get": fetched("own"),
    "refresh: run": refresh_run,
    "no cache: submit": miss("uncached"),
    "no cache: run": first_run("uncached"),
    "no cache: get": fetched("uncached"),
    "poll": polled,
}

SIZELESS: Mapping[str, tuple[str, Drive]] = {
    "authorize": ("authorize", lambda gateway, _: aws_calls.authorized(gateway)),
    "publish": ("publish_events", published("acme")),
    "publish with a webhook": ("publish_events", published(TOLD)),
    "deliver": ("deliver_webhook", delivered),
    "retryable error": ("run_job", lambda gateway, _: aws_calls.run_retryable(gateway)),
}
"""Paths for which sizes don't matter, and their functions."""


def function_of(path: str) -> str:
    """Who does it."""
    if path in SIZELESS:
        return SIZELESS[path][0]
    return "run_job" if path.endswith(": run") else "api"


@dataclass(frozen=True, slots=True)
class Counted:
    """One path with texts of one size."""

    name: str
    size: Size
    calls: tuple[Call, ...]

    @property
    def units(self) -> Units:
        """By AWS's rules."""
        return sum((call.units for call in self.calls), Units())

    @property
    def reads_and_writes(self) -> int:
        """Calls to DynamoDB."""
        return sum(call.service == "dynamodb" for call in self.calls)

    @property
    def cache_units(self) -> Units:
        """Of these, what the cache's rows cost."""
        return sum((call.cache_units for call in self.calls), Units())

    def step(self, *, code_ms: float, log_bytes: float) -> Step:
        """As the model of costs wants it."""
        operations = Counter(call.operation for call in self.calls)
        return Step(
            calls=dict(operations),
            read_units=self.units.read,
            write_units=self.units.write,
            cache_read_units=self.cache_units.read,
            cache_write_units=self.cache_units.write,
            code_ms=round(code_ms, 3),
            log_bytes=round(log_bytes),
        )


Paths = dict[tuple[str, Size], Counted]


def count_paths(gateway: Gateway) -> Paths:
    """All of them, warm."""
    for warm_up in (fresh_hit, delivered, SIZELESS["authorize"][1]):
        warm_up(gateway, LEAST)
    found: Paths = {}
    for size in SIZES:
        print(f"  calls, {size.prompt_kb} KB in, {size.answer_kb} KB out", file=sys.stderr)
        for name, drive in PATHS.items():
            found[name, size] = Counted(name, size, tuple(drive(gateway, size)))
    for name, (_, drive) in SIZELESS.items():
        tries = [Counted(name, LEAST, tuple(drive(gateway, LEAST))) for _ in range(2)]
        found[name, LEAST] = min(tries, key=lambda one: len(one.calls))
    for name, drive in PATHS.items():
        fewest = min(found[name, size].reads_and_writes for size in SIZES)
        for size in SIZES:
            found[name, size] = _steady(found[name, size], fewest, lambda: drive(gateway, size))  # noqa: B023 - called at once
    return found


def _steady(counted: Counted, fewest: int, again: Callable[[], list[Call]]) -> Counted:
    """Whatever the size, a path makes as many calls to DynamoDB.

    One more is made by a process that was held up: it looks whether something came meanwhile, or
    what it knows has become old.
    """
    for _ in range(TRIES):
        if counted.reads_and_writes == fewest:
            return counted
        counted = replace(counted, calls=tuple(again()))
    raise report.NotMeasuredError(f"{counted.name}: more than {fewest} calls, {counted.size}")


TRIES = 5


def stored_jobs(gateway: Gateway) -> dict[Size, tuple[int, int]]:
    """Bytes of a completed job's row, and of its objects in S3."""
    found = {}
    for size in SIZES:
        job_id = gateway.submit(_prompt(gateway, size))
        gateway.run(job_id)
        found[size] = stored_of(gateway, job_id)
    return found


# ------------------------------------------------------------------------------------ times


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where jobs and entries are, and which time counts."""

    jobs: JobStore
    cache: ResultCache
    clock: FakeClock
    timer: Callable[[], int]
    """Nanoseconds. In memory nothing waits, so there the CPU's time says it all, undisturbed."""


class Drain(io.TextIOBase):
    """Takes logs and metrics, and counts their bytes; they are ASCII."""

    bytes = 0

    def write(self, text: str) -> int:
        """See TextIOBase."""
        self.bytes += len(text)
        return len(text)


def _no_webhooks() -> NoReturn:
    raise NotImplementedError("nobody asks for webhooks here")


@dataclass
class Handlers:
    """The API and the worker on a shelf; queue and payloads are in memory, and so is the vendor."""

    shelf: Shelf
    answer: str
    log: "Drain"
    queue: InMemoryQueue = field(default_factory=InMemoryQueue)
    took_ms: dict[str, list[float]] = field(default_factory=dict)
    logged: Counter[str] = field(default_factory=Counter)
    """Bytes by path."""

    def __post_init__(self) -> None:
        serial = count()
        world, clock = World(), self.shelf.clock
        telemetry = PowertoolsTelemetry()
        payloads = InMemoryPayloads(World())
        vendors = FakeVendors()
        vendors.default = VendorAnswer(self.answer, "stop", 100, len(self.answer) // 4, 10)
        shared = InMemoryState(world)
        self._api, self._run = aws_calls.function("api"), aws_calls.function("run_job")
        self._api_deps = ApiDeps(
            submitter=Submitter(
                catalogue=CATALOGUE,
                flags=FakeFlags(),
                jobs=self.shelf.jobs,
                cache=self.shelf.cache,
                rates=InMemoryRates(world),
                backlogs=InMemoryBacklogs(world),
                state=shared,
                payloads=payloads,
                queue=self.queue,
                clock=clock,
                randomness=lambda size: next(serial).to_bytes(size, "big"),
                rand=lambda: 0.5,
            ),
            invalidator=Invalidator(
                self.shelf.cache, shared, InMemoryAudit(world), clock, telemetry
            ),
            lists=InMemoryJobLists(world),
            usage=InMemoryUsage(world),
            batches=InMemoryBatches(world),
            owed=InMemoryOwedAnswers(world),
            registrar=_no_webhooks,
            telemetry=telemetry,
            pause=clock.pause,
            idempotency=lambda: None,
        )
        self._run_deps = RunDeps(
            worker=lambda: Worker(
                catalogue=CATALOGUE,
                jobs=self.shelf.jobs,
                cache=self.shelf.cache,
                state=shared,
                payloads=payloads,
                gates=InMemoryGates(world),
                latencies=InMemoryLatencies(world),
                backlogs=InMemoryBacklogs(world),
                vendors=vendors,
                clock=clock,
                telemetry=telemetry,
                rand=lambda: 0.5,
                token=lambda: f"token-{next(serial)}",
                pause=lambda _: None,
                lease_ms=100_000,
            ),
            queue=self.queue,
            lane_of_queue={"interactive": "interactive", "batch": "batch"},
            telemetry=telemetry,
        )

    def submit(self, path: str, prompt: str, status: int) -> None:
        """Times a submit."""
        body = json.dumps({"model": "demo-chat", "input": prompt})
        event = aws_calls.api_event("POST", "/jobs", "acme", body)
        context = aws_calls.Context("api")
        began_ns, logged = self.shelf.timer(), self.log.bytes
        answer = self._api.handle(event, context, self._api_deps)
        self._note(path, began_ns, logged)
        if answer["statusCode"] != status:
            raise report.NotMeasuredError(f"{path}: {answer['statusCode']}, not {status}")

    def run(self, path: str, sent: tuple[str, str, str]) -> None:
        """Times the worker on a message."""
        lane, tenant, job_id = sent
        record = {
            "messageId": "message",
            "receiptHandle": "receipt",
            "body": json.dumps({"tenant": tenant, "job_id": job_id}),
            "attributes": {
                "ApproximateReceiveCount": "1",
                "SentTimestamp": str(self.shelf.clock.now_ms()),
            },
            "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:{lane}",
        }
        context = aws_calls.Context("run_job")
        began_ns, logged = self.shelf.timer(), self.log.bytes
        answer = self._run.handle({"Records": [record]}, context, self._run_deps)
        self._note(path, began_ns, logged)
        if answer["batchItemFailures"]:
            raise report.NotMeasuredError(f"{path}: not acknowledged")

    def _note(self, path: str, began_ns: int, logged: int) -> None:
        self.took_ms.setdefault(path, []).append((self.shelf.timer() - began_ns) / 1e6)
        self.logged[path] += self.log.bytes - logged

    def live(self) -> None:
        """Every path so many times: miss and run, hits, stale hits, refreshes."""
        prompts = [f"prompt {number} ".ljust(200, ".") for number in range(WARM_UP + TIMED)]
        for prompt in prompts:
            self.submit("miss: submit", prompt, 202)
            self.run("miss: run", self.queue.sends.pop())
        for prompt in prompts:
            self.submit("fresh hit", prompt, 200)
        self.shelf.clock.advance(s=CATALOGUE.models["demo-chat"].cache.soft_ttl_s)
        for prompt in prompts:
            self.submit("stale hit that queues a refresh", prompt, 200)
        for prompt in prompts:
            self.submit("stale hit, refresh queued already", prompt, 200)
        self.shelf.clock.advance(1)
        for sent in list(self.queue.sends):
            self.run("refresh: run", sent)


@dataclass(frozen=True, slots=True)
class Times:
    """Of a handler, milliseconds; and what it logs of an event."""

    p50_ms: float
    p95_ms: float
    log_bytes: float


TimesOf = dict[tuple[str, str, int], Times]
"""By store, path and size."""


@contextmanager
def _dynamodb_local() -> Iterator[Callable[[], Shelf] | None]:
    """Makes shelves on DynamoDB Local; None where it can't be had."""
    folder = report.ROOT / state.FOLDER
    reason = dynamodb_local.unavailable(folder)
    if reason is not None:
        print(f"  {reason}: not timed", file=sys.stderr)
        yield None
        return
    home = dynamodb_local.fetch(folder)
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as draft:
        process, url = dynamodb_local.start(home, Path(draft) / "log")
        numbers = count()
        client = boto3.client(
            "dynamodb",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - it opens nothing
        )

        def shelf() -> Shelf:
            clock = FakeClock()
            store = store_on(client, make_tables(client, f"bench{next(numbers)}"), clock)
            return Shelf(store.jobs, store.cache, clock, time.perf_counter_ns)

        try:
            yield shelf
        finally:
            client.close()
            process.stop()


def _in_memory() -> Shelf:
    world, clock = World(), FakeClock()
    return Shelf(InMemoryJobs(world, clock=clock), InMemoryCache(world), clock, time.thread_time_ns)


def time_handlers(log: Drain) -> TimesOf:
    """Logs and metrics are written, as on Lambda. Powertools keeps its first stream: `log`."""
    found: TimesOf = {}
    with ExitStack() as ends:
        shelves: dict[str, Callable[[], Shelf]] = {"memory": _in_memory}
        local = ends.enter_context(_dynamodb_local())
        if local is not None:
            shelves["DynamoDB Local"] = local
        for store, shelf in shelves.items():
            for size_kb in SIZES_KB:
                print(f"  times on {store}, answers of {size_kb} KB", file=sys.stderr)
                with redirect_stdout(log):
                    handlers = Handlers(shelf(), english(size_kb * KB), log)
                    handlers.live()
                for path, took in handlers.took_ms.items():
                    cuts = quantiles(took[WARM_UP:], n=20)
                    logged = handlers.logged[path] / len(took)
                    found[store, path, size_kb] = Times(cuts[9], cuts[18], logged)
    return found


def time_of(path: str, answer_kb: float, times: TimesOf) -> tuple[float, float]:
    """Milliseconds of a whole core, and bytes of logs; between the sizes it goes straight.

    What isn't timed is taken to be like a fresh hit, which reads one row and answers, too.
    """
    timed = path.replace("no cache", "miss")
    if ("memory", timed, SIZES_KB[0]) not in times:
        timed = "fresh hit"
    of = {kb: times["memory", timed, kb] for kb in SIZES_KB}
    low = max(kb for kb in SIZES_KB if kb <= answer_kb)
    high = min(kb for kb in SIZES_KB if kb >= answer_kb)
    part = (answer_kb - low) / (high - low) if high > low else 0.0
    code_ms = of[low].p50_ms * (1 - part) + of[high].p50_ms * part
    return code_ms, of[low].log_bytes


def counts_of(paths: Paths, times: TimesOf, stored: Mapping[Size, tuple[int, int]]) -> Counts:
    """What `sluiceway_cli.costs` works with."""

    def step(name: str, size: Size) -> Step:
        code_ms, log_bytes = time_of(name, size.answer_kb, times)
        return paths[name, size].step(code_ms=code_ms, log_bytes=log_bytes)

    def path(name: str) -> CostPath:
        if name in SIZELESS:
            only = {0.0: step(name, LEAST)}
            return CostPath(function_of(name), only, only)
        return CostPath(
            function_of(name),
            {kb: step(name, Size(answer_kb=kb)) for kb in ANSWERS_KB},
            {kb: step(name, Size(prompt_kb=kb)) for kb in PROMPTS_KB},
        )

    packed = {kb: compress(document(english(kb * KB))) for kb in ANSWERS_KB}
    inline = {kb: one for kb, one in packed.items() if len(one) <= INLINE_RESULT_BYTES}
    return Counts(
        made={"on": f"{datetime.now(UTC):%Y-%m-%d}", "python": platform.python_version()},
        paths={name: path(name) for name in (*PATHS, *SIZELESS)},
        job_by_prompt=_stored({kb: stored[Size(prompt_kb=kb)] for kb in PROMPTS_KB}),
        job_by_answer=_stored({kb: stored[Size(answer_kb=kb)] for kb in ANSWERS_KB}),
        entry=_stored(
            {
                kb: (row_bytes(inline.get(kb)), 0 if kb in inline else len(one))
                for kb, one in packed.items()
            }
        ),
    )


def _stored(sizes: Mapping[float, tuple[int, int]]) -> Stored:
    return Stored(
        {kb: row for kb, (row, _) in sizes.items()}, {kb: one for kb, (_, one) in sizes.items()}
    )


# ------------------------------------------------------------------------------------ money


def workload_of(answer_kb: float, hit_ratio: float | None) -> Workload:
    """A million small prompts; without a hit ratio: of a model that has no cache."""
    return Workload(
        hit_ratio=hit_ratio or 0.0,
        prompt_kb=PROMPTS_KB[0],
        answer_kb=answer_kb,
        polls=1,
        cache="none" if hit_ratio is None else "dynamodb",
    )


def usd_of(path: str, answer_kb: float, counts: Counts) -> float:
    """USD of a million events of a path: units, requests, Lambda's time, messages and objects."""
    return cost_of_events({path: MILLION}, workload_of(answer_kb, 0.0), counts).usd


# ------------------------------------------------------------------------------------ rows


def row_bytes(packed: bytes | None) -> int:
    """Size of a cache row that holds these bytes, or refers to an object."""
    ref = f"results/job_{'0' * 26}/1"
    now_ms = 1_798_761_600_123
    entry = CacheEntry(
        cache_key="c1_" + "k" * 43,
        scope="tenant",
        tenant="acme",
        model="demo-chat",
        result=Payload(ref=ref) if packed is None else Payload(inline=packed),
        input_tokens=1234,
        output_tokens=1234,
        cost_nanos=12_345_678,
        asked_at_epoch_ms=now_ms,
        stored_at_epoch_ms=now_ms,
        soft_expires_at_epoch_ms=now_ms,
        hard_expires_at_epoch_ms=now_ms,
        kept_until_epoch_ms=now_ms,
        ttl_epoch_s=now_ms // 1000,
        upstream_latency_ms=12_345,
        vendor_request_id="req_0123456789abcdef0123",
    )
    return item_bytes(to_item(row_of_entry(entry)))


def write_cost(size: int) -> float:
    """WRU of a row of so many bytes in the finish's transaction."""
    return aws_calls.TRANSACTION_FACTOR * write_units({"row": {"B": b"x" * (size - 3)}})


def compression_table() -> tuple[list[str], list[list[str]]]:
    """What a cached KB costs in write units."""
    head = [
        *("answer", "KB", "compressed, bytes", "share, %", "plain: WRU"),
        *("plain: WRU a KB", "compressed: WRU", "compressed: WRU a KB", "as it is kept: WRU"),
    ]
    lines = []
    for kind, make in KINDS.items():
        for size_kb in SIZES_KB:
            plain = document(make(size_kb * KB))
            packed = compress(plain)
            raw, small = write_cost(row_bytes(plain)), write_cost(row_bytes(packed))
            kept = small if len(packed) <= INLINE_RESULT_BYTES else write_cost(row_bytes(None))
            in_s3 = " + 1 PUT" if len(packed) > INLINE_RESULT_BYTES else ""
            lines.append(
                [
                    *(kind, str(size_kb), f"{len(packed):,}"),
                    f"{100 * len(packed) / len(plain):.0f}",
                    *(f"{raw:g}", f"{raw / size_kb:.1f}", f"{small:g}", f"{small / size_kb:.1f}"),
                    f"{kept:g}{in_s3}",
                ]
            )
    return head, lines


HITS = (0, 1, 10, 100, 1000)


def row_price(packed_bytes: int, hits: int) -> float:
    """USD of an answer in both rows that hold it, job and entry, and of its reads."""
    added = row_bytes(b"x" * packed_bytes)
    # The finish writes it into the job's row as well, which is about as big without it.
    writes = 2 * write_cost(added)
    reads = (1 + hits) * read_units({"row": {"B": b"x" * (added - 3)}}, consistent=True)
    return writes * LIST.one("write") + reads * LIST.one("read")


def object_price(hits: int, *, waits: bool) -> float:
    """USD of the same answer in S3; `waits`: Lambda's time for it, too."""
    mb = STACK.memory_mb
    put, get = LIST.one("put"), LIST.one("get")
    if waits:
        put += WAITS_MS["PutObject"] / 1000 * mb["run_job"] / 1024 * LIST.one("gb_second")
        get += WAITS_MS["GetObject"] / 1000 * mb["api"] / 1024 * LIST.one("gb_second")
    row = row_bytes(None)
    writes = 2 * write_cost(row)
    reads = (1 + hits) * read_units({"row": {"B": b"x" * (row - 3)}}, consistent=True)
    return put + (1 + hits) * get + writes * LIST.one("write") + reads * LIST.one("read")


def object_from(hits: int, *, waits: bool) -> int:
    """The compressed size in bytes from which an object is cheaper than the row, whatever more."""
    last = 0
    for packed_bytes in range(0, 64 * KB, 64):
        if row_price(packed_bytes, hits) <= object_price(hits, waits=waits):
            last = packed_bytes
    return last + 64


def object_table() -> tuple[list[str], list[list[str]]]:
    """By the hits that an entry has in its life."""
    head = [
        *("hits of the entry", "S3 is cheaper from, compressed bytes"),
        "with Lambda's wait for S3",
    ]
    lines = [
        [f"{hits:,}", f"{object_from(hits, waits=False):,}", f"{object_from(hits, waits=True):,}"]
        for hits in HITS
    ]
    return head, lines


def storage_table() -> tuple[list[str], list[list[str]]]:
    """What a million entries cost a month."""
    head = [
        *("answer", "KB", "row, bytes", "object, bytes", "DynamoDB, USD", "S3, USD"),
        *("both, USD a month", "USD per GB-month of answers"),
    ]
    lines = []
    for kind, make in KINDS.items():
        for size_kb in SIZES_KB:
            packed = compress(document(make(size_kb * KB)))
            inline = len(packed) <= INLINE_RESULT_BYTES
            row = row_bytes(packed if inline else None)
            stored = 0 if inline else len(packed)
            rows = MILLION * (row + ROW_OVERHEAD_BYTES) / GB * LIST.one("row_storage")
            objects = MILLION * stored / GB * LIST.one("object_storage")
            lines.append(
                [
                    *(kind, str(size_kb), f"{row:,}", f"{stored:,}"),
                    *(f"{rows:.2f}", f"{objects:.2f}", f"{rows + objects:.2f}"),
                    f"{(rows + objects) / (MILLION * size_kb * KB / GB):.3f}",
                ]
            )
    return head, lines


# ------------------------------------------------------------------------------------ report


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured."""

    paths: Paths
    times: TimesOf
    counts: Counts


def path_table(found: Findings) -> tuple[list[str], list[list[str]]]:
    """Calls and units; sizes side by side."""
    sizes = " / ".join(map(str, SIZES_KB))
    head = [
        *("path", f"calls, {sizes} KB", f"RRU, {sizes} KB", f"WRU, {sizes} KB"),
        *(f"S3 requests, {sizes} KB", f"USD per million, {sizes} KB"),
    ]
    lines = []
    for name in (*PATHS, *SIZELESS):
        of_sizes = [LEAST] if name in SIZELESS else [Size(answer_kb=kb) for kb in SIZES_KB]
        cells = [found.paths[name, size] for size in of_sizes]
        s3 = [[call.operation for call in cell.calls if call.service == "s3"] for cell in cells]
        lines.append(
            [
                name,
                _side([len(cell.calls) for cell in cells]),
                _side([f"{cell.units.read:g}" for cell in cells]),
                _side([f"{cell.units.write:g}" for cell in cells]),
                _side([", ".join(operations) or "-" for operations in s3]),
                _side([f"{usd_of(name, size.answer_kb, found.counts):.2f}" for size in of_sizes]),
            ]
        )
    return head, lines


def _side(cells: Iterable[object]) -> str:
    return " / ".join(map(str, cells))


def time_table(found: Findings) -> tuple[list[str], list[list[str]]]:
    """p50 and p95 of the handlers."""
    stores = list(dict.fromkeys(store for store, _, _ in found.times))
    head = ["path", "KB"]
    for store in stores:
        head += [f"{store}: p50, ms", f"{store}: p95, ms"]
    lines = []
    for path in dict.fromkeys(path for _, path, _ in found.times):
        for size_kb in SIZES_KB:
            line = [path, str(size_kb)]
            for store in stores:
                times = found.times[store, path, size_kb]
                line += [f"{times.p50_ms:.2f}", f"{times.p95_ms:.2f}"]
            lines.append(line)
    return head, lines


SHOWN = ("DynamoDB", "Lambda", "API Gateway", "SQS", "S3", "CloudWatch")
"""Services that have a column."""


def cost_table(counts: Counts) -> tuple[list[str], list[list[str]]]:
    """USD of a million requests a month."""
    head = [
        *("answer, KB", "cache", "vendor calls", *SHOWN, "other"),
        *("all, USD", "of no cache, %"),
    ]
    lines = []
    for size_kb in SIZES_KB:
        none = cost_of(workload_of(size_kb, None), counts)
        for ratio in (None, *HIT_RATIOS):
            workload = workload_of(size_kb, ratio)
            cost = cost_of(workload, counts)
            services = cost.by_service
            shown = [services.pop(name, 0.0) for name in SHOWN]
            lines.append(
                [
                    str(size_kb),
                    "none" if ratio is None else f"{100 * ratio:.0f} % hits",
                    f"{workload.jobs:,.0f}",
                    *(f"{usd:.2f}" for usd in (*shown, sum(services.values()), cost.usd)),
                    f"{100 * cost.usd / none.usd:.0f}",
                ]
            )
    return head, lines


def cost_plot(counts: Counts) -> report.Plot:
    """USD of a million requests against the hit ratio."""
    ratios = [part / 20 for part in range(21)]
    return report.Plot(
        name="hits",
        title="What a million requests a month cost, by the part that the cache answers",
        x="hits, % of the requests",
        y="USD a million requests",
        series={
            f"answers of {size_kb} KB": [
                (100 * ratio, round(cost_of(workload_of(size_kb, ratio), counts).usd, 2))
                for ratio in ratios
            ]
            for size_kb in SIZES_KB
        },
    )


def idle_table() -> tuple[list[str], list[list[str]]]:
    """What an installation costs a month before the first request."""
    lines = []
    for line in idle_cost("valkey").lines:
        many = f"{line.many:,.0f}" if line.many >= 1 else f"{line.many:.3g}"
        lines.append([line.service, line.item, f"{many} {line.unit}", f"{line.usd:.2f}"])
    base, valkey = idle_cost().usd, idle_cost("valkey").usd
    lines.append(["all", "with the cache in DynamoDB", "", f"{base:.2f}"])
    lines.append(["all", "with the cache in Valkey", "", f"{valkey:.2f}"])
    return ["service", "what", "a month", "USD a month"], lines


ENTRIES_H = (1, 48)
"""An entry that stays for an hour, and one with the catalogue's defaults."""


def break_even_table(counts: Counts) -> tuple[list[str], list[list[str]]]:
    """From where on Valkey is the cheaper cache."""
    head = [
        *("answer, KB", "hits, %", "an entry stays, h", "Valkey is cheaper from, hits a month"),
        "in a network that has a NAT gateway, from",
    ]
    lines = []
    for size_kb in SIZES_KB:
        for ratio in HIT_RATIOS[1:]:
            for entry_h in ENTRIES_H:
                workload = replace(workload_of(size_kb, ratio), entry_h=entry_h)
                found = [break_even(workload, counts, nat=nat) for nat in (True, False)]
                cells = [_hits(one) for one in found]
                lines.append([str(size_kb), f"{100 * ratio:.0f}", str(entry_h), *cells])
    return head, lines


def _hits(found: BreakEven) -> str:
    if found.hits is None:
        return "never"
    return f"{round(found.hits, 2 - len(f'{found.hits:.0f}')):,.0f}"  # two digits say it


def break_even_plot(counts: Counts) -> report.Plot:
    """USD of the cache alone against the hits, in both places."""
    ratio, answer_kb, entry_h = HIT_RATIOS[1], SIZES_KB[1], ENTRIES_H[0]
    least = idle_cost("valkey").usd - idle_cost().usd
    names = ("DynamoDB", "Valkey, its network has a NAT gateway", "Valkey, with a new NAT gateway")
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for power in range(20, 39):
        hits = round(10 ** (power / 4))
        of_one = replace(workload_of(answer_kb, ratio), requests=hits / ratio, entry_h=entry_h)
        usd = cost_of_cache(of_one, counts)
        bills = (usd["dynamodb"], usd["valkey"] + valkey_least().usd, usd["valkey"] + least)
        for name, bill in zip(names, bills, strict=True):
            series[name].append((hits, round(bill, 2)))
    return report.Plot(
        name="break_even",
        title=(
            f"What the cache costs a month: answers of {answer_kb} KB that stay for {entry_h} h, "
            f"{100 * ratio:.0f} % hits"
        ),
        x="hits a month",
        y="USD a month",
        series=series,
        log_x=True,
        log_y=True,
    )


def price_table() -> tuple[list[str], list[list[str]]]:
    """The list prices."""
    head = ["what", "USD", "of"]
    return head, [
        [one.what, f"{one.usd:g}", "a million" if one.of == MILLION else str(one.of)]
        for one in LIST.table.values()
    ]


def parts(found: Findings) -> list[report.Part]:
    """For people."""
    counts = found.counts
    return [
        report.Table("Calls and units", *path_table(found)),
        report.Table("Time of the handlers", *time_table(found)),
        report.Table("A million requests a month", *cost_table(counts)),
        cost_plot(counts),
        report.Table("An idle installation", *idle_table()),
        report.Table("DynamoDB or Valkey", *break_even_table(counts)),
        break_even_plot(counts),
        report.Table(f"List prices, {LIST.region}, {LIST.date}", *price_table()),
        report.Table("Write units of a cached kilobyte", *compression_table()),
        report.Table("From which size S3 is cheaper than the row", *object_table()),
        report.Table("Storage of a million entries", *storage_table()),
    ]


def figures(found: Findings) -> dict[str, Any]:
    """For programs."""
    return {
        "counts": json.loads(found.counts.text()),
        "times": [
            {
                "store": store,
                "path": path,
                "answer_kb": kb,
                "p50_ms": one.p50_ms,
                "p95_ms": one.p95_ms,
            }
            for (store, path, kb), one in found.times.items()
        ],
        "idle_usd": {cache_: idle_cost(cache_).usd for cache_ in ("dynamodb", "valkey")},
        "million_usd": {
            f"{size_kb} KB, {ratio}": cost_of(workload_of(size_kb, ratio), found.counts).usd
            for size_kb in SIZES_KB
            for ratio in (None, *HIT_RATIOS)
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured."""
    given = report.options(__doc__, arguments)
    log = Drain()
    times = time_handlers(log)
    with (
        aws_calls.gateway_on_local_stack() as gateway,
        redirect_stdout(log),
        partner_told(gateway),
    ):
        paths, stored = count_paths(gateway), stored_jobs(gateway)
    counts = counts_of(paths, times, stored)
    if given.save:
        COUNTED.write_text(counts.text())
    found = Findings(paths, times, counts)
    report.tell(given, "cache_cost", figures=figures(found), parts=parts(found))
    return 0


if __name__ == "__main__":
    report.run(main)
