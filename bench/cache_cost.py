"""What the cache costs and saves: calls, units, time of the handlers, and money at list prices.

Calls and units are counted as bench/aws_calls.py does it, on a local stack of its own. Times are
those of the handlers' own code, on stores in memory and on DynamoDB Local; what AWS adds to them is
assumed (WAITS_MS), since an emulator's times are not AWS's. Run it from the repository's folder.
"""

import base64
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from pydoc_data.topics import topics
from statistics import quantiles
from typing import Any, NoReturn, TextIO

import boto3
from samtranslator.yaml_helper import yaml_parse
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
from sluiceway_local import dynamodb_local, state

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

MARKERS = ("<!-- cache_cost -->", "<!-- /cache_cost -->")

KB = 1024
SIZES_KB = (1, 10, 100)
"""Of the answers."""

HIT_RATIOS = (0.0, 0.5, 0.9)
MILLION = 1_000_000

PRICES_DATE = "2026-11-29"
PRICES: Mapping[str, tuple[str, float, int]] = {
    "read": ("DynamoDB on demand, read request units", 0.125, MILLION),
    "write": ("DynamoDB on demand, write request units", 0.625, MILLION),
    "row_storage": ("DynamoDB storage, GB-month", 0.25, 1),
    "invocation": ("Lambda x86, requests", 0.20, MILLION),
    "gb_second": ("Lambda x86, GB-seconds", 16.6667, MILLION),
    "request": ("API Gateway REST, requests", 3.50, MILLION),
    "message": ("SQS standard, requests", 0.40, MILLION),
    "fair": ("SQS fair queue, requests with a group, on top", 0.10, MILLION),
    "put": ("S3 Standard, PUT", 5.0, MILLION),
    "get": ("S3 Standard, GET", 0.40, MILLION),
    "object_storage": ("S3 Standard storage, GB-month", 0.023, 1),
}
"""us-east-1, first tier beyond what is free, USD: what it is for, the price, and of how many."""

WAITS_MS = {
    "GetItem": 4,
    "TransactWriteItems": 15,
    "SendMessage": 8,
    "PutObject": 35,
    "GetObject": 20,
}
"""Assumed, of one call to AWS from a warm function in the same region."""

VENDOR_S = 10
"""Assumed, of one call to the vendor; the worker waits for it and is billed."""

FULL_CORE_MB = 1769
"""Lambda gives a whole core at so much memory, and less of one in proportion below."""

ROW_OVERHEAD_BYTES = 100
"""That AWS bills for the storage of each item on top."""

GB = 1e9

TIMED = 200
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


def price(name: str) -> float:
    """USD of one."""
    _, usd, of = PRICES[name]
    return usd / of


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


Drive = Callable[[Gateway, str], list[Call]]
"""Of a gateway and the vendor's answer."""


def _prompt(gateway: Gateway, answer: str) -> str:
    prompt = gateway.prompt()
    gateway.fault(prompt, text=answer)
    return prompt


def _cached(gateway: Gateway, answer: str) -> str:
    prompt = _prompt(gateway, answer)
    gateway.run(gateway.submit(prompt))
    return prompt


def fresh_hit(gateway: Gateway, answer: str) -> list[Call]:
    """A submit whose answer is there."""
    prompt = _cached(gateway, answer)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def queued_hit(gateway: Gateway, answer: str) -> list[Call]:
    """A submit of what is stale while a refresh is under way."""
    prompt = _cached(gateway, answer)
    aws_calls.make_stale(gateway, prompt)
    gateway.submit(prompt, status=200)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def queueing_hit(gateway: Gateway, answer: str) -> list[Call]:
    """The submit that queues the refresh."""
    prompt = _cached(gateway, answer)
    aws_calls.make_stale(gateway, prompt)
    with gateway.counting() as calls:
        gateway.submit(prompt, status=200)
    return calls


def refresh_run(gateway: Gateway, answer: str) -> list[Call]:
    """The worker renews an entry."""
    prompt = _cached(gateway, answer)
    cache_key = aws_calls.make_stale(gateway, prompt)
    gateway.submit(prompt, status=200)
    record = gateway.receive(gateway.tables.refresh_of(cache_key), "batch")
    with gateway.counting() as calls:
        gateway.deliver(record)
    return calls


def miss(model: str) -> Drive:
    """A submit of new work."""

    def drive(gateway: Gateway, answer: str) -> list[Call]:
        prompt = _prompt(gateway, answer)
        with gateway.counting() as calls:
            gateway.submit(prompt, model=model)
        return calls

    return drive


def first_run(model: str) -> Drive:
    """The worker does new work."""

    def drive(gateway: Gateway, answer: str) -> list[Call]:
        record = gateway.receive(gateway.submit(_prompt(gateway, answer), model=model))
        with gateway.counting() as calls:
            gateway.deliver(record)
        return calls

    return drive


def fetched(model: str) -> Drive:
    """The partner gets the answer."""

    def drive(gateway: Gateway, answer: str) -> list[Call]:
        job_id = gateway.submit(_prompt(gateway, answer), model=model)
        gateway.run(job_id)
        with gateway.counting() as calls:
            gateway.fetch(job_id, status="completed")
        return calls

    return drive


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
}


@dataclass(frozen=True, slots=True)
class Counted:
    """One path with an answer of one size."""

    name: str
    size_kb: int
    calls: tuple[Call, ...]

    @property
    def worker(self) -> bool:
        """Whether run_job does it, and not the API."""
        return self.name.endswith(": run")

    @property
    def units(self) -> Units:
        """By AWS's rules."""
        return sum((call.units for call in self.calls), Units())


Paths = dict[tuple[str, int], Counted]


def count_paths(gateway: Gateway) -> Paths:
    """All of them, warm."""
    fresh_hit(gateway, "warm up")
    found = {}
    for size_kb in SIZES_KB:
        print(f"  calls with answers of {size_kb} KB", file=sys.stderr)
        for name, drive in PATHS.items():
            calls = tuple(drive(gateway, english(size_kb * KB)))
            found[name, size_kb] = Counted(name, size_kb, calls)
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


def _no_webhooks() -> NoReturn:
    raise NotImplementedError("nobody asks for webhooks here")


@dataclass
class Handlers:
    """The API and the worker on a shelf; queue and payloads are in memory, and so is the vendor."""

    shelf: Shelf
    answer: str
    queue: InMemoryQueue = field(default_factory=InMemoryQueue)
    took_ms: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        serial = count()
        world, clock = World(), self.shelf.clock
        telemetry = PowertoolsTelemetry()
        payloads = InMemoryPayloads(World())
        vendors = FakeVendors()
        vendors.default = VendorAnswer(self.answer, "stop", 100, len(self.answer) // 4, VENDOR_S)
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
        began_ns = self.shelf.timer()
        answer = self._api.handle(event, context, self._api_deps)
        self._note(path, began_ns)
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
        began_ns = self.shelf.timer()
        answer = self._run.handle({"Records": [record]}, context, self._run_deps)
        self._note(path, began_ns)
        if answer["batchItemFailures"]:
            raise report.NotMeasuredError(f"{path}: not acknowledged")

    def _note(self, path: str, began_ns: int) -> None:
        self.took_ms.setdefault(path, []).append((self.shelf.timer() - began_ns) / 1e6)

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
    """Of a handler, milliseconds."""

    p50_ms: float
    p95_ms: float


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


def time_handlers(nowhere: TextIO) -> TimesOf:
    """Logs and metrics are written, as on Lambda, but nobody reads them.

    `nowhere` takes them, and stays open: Powertools keeps its first stream.
    """
    found: TimesOf = {}
    with ExitStack() as ends:
        shelves: dict[str, Callable[[], Shelf]] = {"memory": _in_memory}
        local = ends.enter_context(_dynamodb_local())
        if local is not None:
            shelves["DynamoDB Local"] = local
        for store, shelf in shelves.items():
            for size_kb in SIZES_KB:
                print(f"  times on {store}, answers of {size_kb} KB", file=sys.stderr)
                with redirect_stdout(nowhere):
                    handlers = Handlers(shelf(), english(size_kb * KB))
                    handlers.live()
                for path, took in handlers.took_ms.items():
                    cuts = quantiles(took[WARM_UP:], n=20)
                    found[store, path, size_kb] = Times(cuts[9], cuts[18])
    return found


# ------------------------------------------------------------------------------------ money


@cache
def memory_mb() -> dict[str, int]:
    """Of the two functions, by the template."""
    resources = yaml_parse((report.ROOT / "template.yaml").read_text())["Resources"]
    return {
        name: int(resources[logical_id]["Properties"]["MemorySize"])
        for name, logical_id in {"api": "ApiFunction", "run_job": "RunJobFunction"}.items()
    }


@dataclass(frozen=True, slots=True)
class Bill:
    """USD of one event, by service."""

    dynamodb: float = 0.0
    lambda_: float = 0.0
    gateway: float = 0.0
    sqs: float = 0.0
    s3: float = 0.0

    @property
    def total(self) -> float:
        """All services."""
        return self.dynamodb + self.lambda_ + self.gateway + self.sqs + self.s3

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(
            self.dynamodb + other.dynamodb,
            self.lambda_ + other.lambda_,
            self.gateway + other.gateway,
            self.sqs + other.sqs,
            self.s3 + other.s3,
        )

    def times(self, factor: float) -> "Bill":
        """Of so many events."""
        return Bill(
            factor * self.dynamodb,
            factor * self.lambda_,
            factor * self.gateway,
            factor * self.sqs,
            factor * self.s3,
        )


def bill(path: Counted, times: TimesOf) -> Bill:
    """What one event of this path costs."""
    operations = [call.operation for call in path.calls]
    units, mb = path.units, memory_mb()["run_job" if path.worker else "api"]
    timed = path.name.replace("no cache", "miss").replace("miss: get", "fresh hit")
    code_ms = times["memory", timed, path.size_kb].p50_ms * max(1, FULL_CORE_MB / mb)
    seconds = (code_ms + sum(WAITS_MS.get(name, 0) for name in operations)) / 1000
    seconds += VENDOR_S if path.worker else 0
    # A message is sent by the submit, and received and deleted around the run.
    messages = operations.count("SendMessage") + (2 if path.worker else 0)
    return Bill(
        dynamodb=units.read * price("read") + units.write * price("write"),
        lambda_=price("invocation") + mb / 1024 * seconds * price("gb_second"),
        gateway=0 if path.worker else price("request"),
        sqs=messages * (price("message") + price("fair")),
        s3=operations.count("PutObject") * price("put")
        + operations.count("GetObject") * price("get"),
    )


def request_bill(paths: Paths, times: TimesOf, size_kb: int, hit_ratio: float | None) -> Bill:
    """Of one request on average; without a hit ratio: of a model that has no cache."""
    kind = "no cache" if hit_ratio is None else "miss"
    work = Bill()
    for step in ("submit", "run", "get"):
        work += bill(paths[f"{kind}: {step}", size_kb], times)
    hit = bill(paths["fresh hit", size_kb], times)
    ratio = hit_ratio or 0.0
    return work.times(1 - ratio) + hit.times(ratio)


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
    return writes * price("write") + reads * price("read")


def object_price(hits: int, *, waits: bool) -> float:
    """USD of the same answer in S3; `waits`: Lambda's time for it, too."""
    mb = memory_mb()
    put, get = price("put"), price("get")
    if waits:
        put += WAITS_MS["PutObject"] / 1000 * mb["run_job"] / 1024 * price("gb_second")
        get += WAITS_MS["GetObject"] / 1000 * mb["api"] / 1024 * price("gb_second")
    row = row_bytes(None)
    writes = 2 * write_cost(row)
    reads = (1 + hits) * read_units({"row": {"B": b"x" * (row - 3)}}, consistent=True)
    return put + (1 + hits) * get + writes * price("write") + reads * price("read")


def break_even(hits: int, *, waits: bool) -> int:
    """The compressed size in bytes from which an object is cheaper than the row, whatever more."""
    last = 0
    for packed_bytes in range(0, 64 * KB, 64):
        if row_price(packed_bytes, hits) <= object_price(hits, waits=waits):
            last = packed_bytes
    return last + 64


def break_even_table() -> tuple[list[str], list[list[str]]]:
    """By the hits that an entry has in its life."""
    head = [
        *("hits of the entry", "S3 is cheaper from, compressed bytes"),
        "with Lambda's wait for S3",
    ]
    lines = [
        [f"{hits:,}", f"{break_even(hits, waits=False):,}", f"{break_even(hits, waits=True):,}"]
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
            rows = MILLION * (row + ROW_OVERHEAD_BYTES) / GB * price("row_storage")
            objects = MILLION * stored / GB * price("object_storage")
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


def path_table(found: Findings) -> tuple[list[str], list[list[str]]]:
    """Calls and units; sizes side by side."""
    sizes = " / ".join(map(str, SIZES_KB))
    head = [
        *("path", f"calls, {sizes} KB", f"RRU, {sizes} KB", f"WRU, {sizes} KB"),
        *(f"S3 requests, {sizes} KB", f"USD per million, {sizes} KB"),
    ]
    lines = []
    for name in PATHS:
        cells = [found.paths[name, size_kb] for size_kb in SIZES_KB]
        s3 = [[call.operation for call in cell.calls if call.service == "s3"] for cell in cells]
        lines.append(
            [
                name,
                _side([len(cell.calls) for cell in cells]),
                _side([f"{cell.units.read:g}" for cell in cells]),
                _side([f"{cell.units.write:g}" for cell in cells]),
                _side([", ".join(operations) or "-" for operations in s3]),
                _side([f"{MILLION * bill(cell, found.times).total:.2f}" for cell in cells]),
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


def cost_table(found: Findings) -> tuple[list[str], list[list[str]]]:
    """USD of a million requests."""
    head = [
        *("answer, KB", "cache", "vendor calls", "DynamoDB", "Lambda"),
        *("API Gateway", "SQS", "S3", "all, USD", "of no cache, %"),
    ]
    lines = []
    for size_kb in SIZES_KB:
        none = request_bill(found.paths, found.times, size_kb, None).times(MILLION)
        for ratio in (None, *HIT_RATIOS):
            cost = request_bill(found.paths, found.times, size_kb, ratio).times(MILLION)
            lines.append(
                [
                    str(size_kb),
                    "none" if ratio is None else f"{100 * ratio:.0f} % hits",
                    f"{MILLION * (1 - (ratio or 0)):,.0f}",
                    *(f"{cost.dynamodb:.2f}", f"{cost.lambda_:.2f}", f"{cost.gateway:.2f}"),
                    *(f"{cost.sqs:.2f}", f"{cost.s3:.2f}", f"{cost.total:.2f}"),
                    f"{100 * cost.total / none.total:.0f}",
                ]
            )
    return head, lines


def price_table() -> tuple[list[str], list[list[str]]]:
    """The list prices."""
    head = ["what", "USD", "of"]
    return head, [
        [what, f"{usd:g}", "a million" if of == MILLION else str(of)]
        for what, usd, of in PRICES.values()
    ]


def sections(found: Findings) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Tables by their titles."""
    return {
        "Calls and units": path_table(found),
        "Time of the handlers": time_table(found),
        "A million requests": cost_table(found),
        f"List prices, us-east-1, {PRICES_DATE}": price_table(),
        "Write units of a cached kilobyte": compression_table(),
        "From which size S3 is cheaper than the row": break_even_table(),
        "Storage of a million entries": storage_table(),
    }


def report_markdown(found: Findings) -> str:
    """The section of docs/benchmarks.md."""
    parts = [report.made_with("bench/cache_cost.py --markdown")]
    for title, table in sections(found).items():
        parts += ["", f"### {title}", "", report.as_markdown(*table)]
    return "\n".join(parts)


def report_text(found: Findings) -> str:
    """For a terminal."""
    return "\n\n".join(
        f"{title}\n{report.as_text(*table)}" for title, table in sections(found).items()
    )


def report_json(found: Findings) -> dict[str, Any]:
    """For programs."""
    return {
        "machine": report.machine(),
        "prices_date": PRICES_DATE,
        "tables": {
            title: [dict(zip(head, line, strict=True)) for line in lines]
            for title, (head, lines) in sections(found).items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured."""
    options = report.options(__doc__, arguments)
    with Path(os.devnull).open("w") as nowhere:
        times = time_handlers(nowhere)
        with aws_calls.gateway_on_local_stack() as gateway:
            paths = count_paths(gateway)
    found = Findings(paths, times)
    report.tell(
        options,
        MARKERS,
        as_json=lambda: report_json(found),
        section=lambda: report_markdown(found),
        text=lambda: report_text(found),
    )
    return 0


if __name__ == "__main__":
    report.run(main)
