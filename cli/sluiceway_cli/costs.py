"""What an installation costs on AWS: counted calls and units, at list prices, as pure functions.

Counts come from `counted.json`, which bench/cache_cost.py writes; what the counts leave open is
assumed here, each with its name. Money is USD and a month is 730 hours.
"""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Self

MILLION = 1_000_000
KB = 1024
GB = 1e9
MONTH_H = 730
MONTH_S = MONTH_H * 3600
CACHES = ("dynamodb", "valkey", "none")

# ------------------------------------------------------------------------------------ prices


@dataclass(frozen=True, slots=True)
class Price:
    """USD of so many of something."""

    what: str
    usd: float
    of: int = 1


LIST_PRICES: Mapping[str, Price] = {
    "read": Price("DynamoDB on demand, read request units", 0.125, MILLION),
    "write": Price("DynamoDB on demand, write request units", 0.625, MILLION),
    "row_storage": Price("DynamoDB storage, GB-month", 0.25),
    "row_backup": Price("DynamoDB point-in-time recovery, GB-month", 0.20),
    "invocation": Price("Lambda x86, requests", 0.20, MILLION),
    "gb_second": Price("Lambda x86, GB-seconds", 16.6667, MILLION),
    "request": Price("API Gateway REST, requests", 3.50, MILLION),
    "message": Price("SQS standard, requests", 0.40, MILLION),
    "fair": Price("SQS fair queue, requests with a group, on top", 0.10, MILLION),
    "put": Price("S3 Standard, PUT", 5.0, MILLION),
    "get": Price("S3 Standard, GET", 0.40, MILLION),
    "object_storage": Price("S3 Standard storage, GB-month", 0.023),
    "event": Price("EventBridge, custom events", 1.0, MILLION),
    "schedule": Price("EventBridge Scheduler, invocations", 1.0, MILLION),
    "log_ingestion": Price("CloudWatch Logs, GB taken in", 0.50),
    "log_storage": Price("CloudWatch Logs, GB-month kept", 0.03),
    "metric": Price("CloudWatch, custom metric-months", 0.30),
    "alarm": Price("CloudWatch, metrics of alarms, months", 0.10),
    "dashboard": Price("CloudWatch, dashboard-months", 3.0),
    "trace": Price("X-Ray, traces recorded", 5.0, MILLION),
    "secret": Price("Secrets Manager, secret-months", 0.40),
    "configuration_call": Price("AppConfig, requests", 0.20, MILLION),
    "data_out": Price("Data out to the internet, GB", 0.09),
    "valkey_storage": Price("ElastiCache Serverless for Valkey, GB-hours", 0.084),
    "valkey_unit": Price("ElastiCache Serverless for Valkey, ECPUs", 0.0023, MILLION),
    "nat_hour": Price("NAT gateway, hours", 0.045),
    "nat_data": Price("NAT gateway, GB", 0.045),
}
"""us-east-1, the first tier beyond what is free."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What each unit costs."""

    date: str = "2026-11-30"
    region: str = "us-east-1"
    table: Mapping[str, Price] = field(default_factory=lambda: LIST_PRICES)

    def one(self, name: str) -> float:
        """USD of one."""
        price = self.table[name]
        return price.usd / price.of

    def changed(self, usd: Mapping[str, float]) -> "Prices":
        """Other prices of these names, of as many units as before. Raises ValueError."""
        for name, price in usd.items():
            if name not in self.table:
                raise ValueError(f"there is no price {name!r}; there are {', '.join(self.table)}")
            if not (math.isfinite(price) and price >= 0):
                raise ValueError(f"the price {name} is a number from 0 on")
        new = {name: replace(self.table[name], usd=price) for name, price in usd.items()}
        return replace(self, table={**self.table, **new})


LIST = Prices()


# ------------------------------------------------------------------------------------ assumed

WAITS_MS: Mapping[str, float] = {
    "GetItem": 4,
    "TransactWriteItems": 15,
    "SendMessage": 8,
    "PutObject": 35,
    "GetObject": 20,
    "Valkey": 1,
}
"""Of one call from a warm function in the same region; a command to Valkey counts as one."""

UPDATE_MS = 8
"""Of one conditional write, and of every call that WAITS_MS doesn't name."""

FULL_CORE_MB = 1769
"""Lambda gives a whole core at so much memory, and less of one in proportion below."""

ROW_OVERHEAD_BYTES = 100
"""That AWS bills for the storage of each item on top."""

POLLERS = 5
LONG_POLL_S = 20
"""Lambda keeps at least so many long polls open at each queue that it reads."""

KEYS_OF_A_TENANT = 2
"""That are in use at a time."""

POLICY_KEPT_S = 60
"""API Gateway keeps the authorizer's answer for a key so long (template.yaml)."""

TRACED_PER_S, TRACED_REST = 1.0, 0.05
"""X-Ray's default rule: the first trace of each second, and of the others one in twenty. A trace
begins at the API, at a function behind a queue, where it is linked to the sender's, and at the one
behind the stream.
"""

LAMBDA_LOG_BYTES = 330
"""START, END and REPORT of one invocation."""

SWEEP_LOG_BYTES = 2_000
"""What the sweeper tells of both lanes and of itself."""

ACCESS_LOG_BYTES = 450
"""API Gateway's line about one request."""

ENVELOPE_BYTES = 1_200
"""Of an answer beside its text: headers and the other members of the job."""

WEBHOOK_S = 0.5
"""A partner's server answers a webhook in so long."""

IDLE_SWEEP_S = 0.5
BUSY_SWEEP_S = 50
"""A sweep that finds nothing open, and one that polls for the rest of its minute."""

ENTRY_OVERHEAD_BYTES = 200
"""Of an entry in Valkey, beside what its row in DynamoDB has."""

READ_ECPUS, SCRIPT_ECPUS = 2, 6
"""Of a command to Valkey that reads an entry, and of a script, beside the kilobytes sent."""

VALKEY_LEAST_BYTES = 100 * 10**6
"""ElastiCache Serverless bills so much storage of a Valkey cache at least."""

METRICS = (
    *("JobsSubmitted", "JobsCompleted", "JobsDeduplicated", "CacheHit", "CacheMiss"),
    *("CacheStale", "QueueWait", "ProcessingTime", "VendorLatency", "LeaseAcquired"),
    *("LeaseReleased", "GateWait", "CostEstimate"),
)
"""What jobs that end well count into: in all, and for each model, lane and tenant."""

LANES = 2

STEADY_METRICS = 12
"""That the sweeper counts with nothing to do: four in all and for each lane."""

CONFIGURATION_KEPT_S = 30
"""A process that works asks for the catalogue and the flags so often."""

MOST_REQUESTS = 1e12
"""A month; who has more asks AWS for other prices."""

MOST_PROMPT_KB = 1024
"""A larger body is refused by the API."""

MOST_ANSWER_KB = 32 * 1024
"""A larger answer of a vendor is taken for none."""

MOST_VENDOR_S = 900
"""A function runs no longer."""

LEFT_OUT = (
    "the vendors' bills (but --vendor-price)",
    "free tiers, discounts and taxes",
    "cold starts",
    "retries, parks, redrives and conflicts of transactions",
    "stale hits and their refreshes",
    "Idempotency-Key (2 writes a submit) and rates of tenants (1 write a submit)",
    "KMS calls of DynamoDB's encryption",
    "the firewall, CodeDeploy and the bucket's lifecycle",
)


# ------------------------------------------------------------------------------------ counts


@dataclass(frozen=True, slots=True)
class Step:
    """What one event of a path makes AWS do. Fractions come of sizes between those counted."""

    calls: Mapping[str, float] = field(default_factory=dict)
    """By operation, of all services."""
    read_units: float = 0.0
    write_units: float = 0.0
    cache_read_units: float = 0.0
    """Of `read_units`, those of the row that is in Valkey elsewhere."""
    cache_write_units: float = 0.0
    code_ms: float = 0.0
    """Of a whole core."""
    log_bytes: float = 0.0

    def times(self, factor: float) -> "Step":
        """So many of them; negative ones are taken away."""
        numbers = {name: factor * getattr(self, name) for name in _NUMBERS}
        return Step({name: factor * many for name, many in self.calls.items()}, **numbers)

    def __add__(self, other: "Step") -> "Step":
        calls = {
            name: self.calls.get(name, 0) + other.calls.get(name, 0)
            for name in {**self.calls, **other.calls}
        }
        return Step(calls, **{n: getattr(self, n) + getattr(other, n) for n in _NUMBERS})

    @property
    def wait_ms(self) -> float:
        """For AWS."""
        return sum(many * WAITS_MS.get(name, UPDATE_MS) for name, many in self.calls.items())


_NUMBERS = tuple(one.name for one in fields(Step) if one.name != "calls")


@dataclass(frozen=True, slots=True)
class Path:
    """One kind of event, counted with answers and with prompts of several sizes (English text)."""

    function: str
    by_answer: Mapping[float, Step]
    """By KB of the answer, with the least prompt."""
    by_prompt: Mapping[float, Step]
    """By KB of the prompt, with the least answer; its first is the first of `by_answer`."""

    def step(self, prompt_kb: float, answer_kb: float) -> Step:
        """Between the sizes that were counted it goes straight; what both add is added up."""
        first = next(iter(self.by_answer.values()))
        return (
            _between(self.by_answer, answer_kb)
            + _between(self.by_prompt, prompt_kb)
            + first.times(-1)
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that stay, by KB of text: of the row, and in S3."""

    row: Mapping[float, float]
    object: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Counts:
    """All that was counted."""

    made: Mapping[str, str]
    """When, and by which versions."""
    paths: Mapping[str, Path]
    job_by_prompt: Stored
    """Of a completed job with the least answer."""
    job_by_answer: Stored
    """Of one with the least prompt; the objects are the entry's, too."""
    entry: Stored

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of the file's text."""
        told = json.loads(text)
        return cls(
            made=told["made"],
            paths={
                name: Path(one["function"], _steps(one["by_answer"]), _steps(one["by_prompt"]))
                for name, one in told["paths"].items()
            },
            **{name: _stored(told[name]) for name in ("job_by_prompt", "job_by_answer", "entry")},
        )

    def text(self) -> str:
        """What `parse` reads."""
        return json.dumps(asdict(self), indent=1, sort_keys=False) + "\n"


def _steps(told: Mapping[str, Any]) -> dict[float, Step]:
    return {float(kb): Step(**step) for kb, step in told.items()}


def _stored(told: Mapping[str, Mapping[str, float]]) -> Stored:
    sizes = {name: {float(kb): n for kb, n in told[name].items()} for name in ("row", "object")}
    return Stored(**sizes)


@cache
def counted() -> Counts:
    """What comes with the command line."""
    return Counts.parse(resources.files("sluiceway_cli").joinpath("counted.json").read_text())


def _between(by_kb: Mapping[float, Step], kb: float) -> Step:
    low, high, part = _around(list(by_kb), kb)
    return by_kb[low].times(1 - part) + by_kb[high].times(part)


def _bytes_at(by_kb: Mapping[float, float], kb: float) -> float:
    low, high, part = _around(list(by_kb), kb)
    return by_kb[low] * (1 - part) + by_kb[high] * part


def _around(sizes: Sequence[float], kb: float) -> tuple[float, float, float]:
    """The sizes below and above, and how far it is from the first; beyond the ends, these."""
    at = bisect_left(sizes, kb)
    if at == 0 or at == len(sizes):
        end = sizes[min(at, len(sizes) - 1)]
        return end, end, 0.0
    low, high = sizes[at - 1], sizes[at]
    return low, high, (kb - low) / (high - low)


# ------------------------------------------------------------------------------------ workload


@dataclass(frozen=True, slots=True)
class Workload:
    """A month's requests, as even as rain."""

    requests: float = MILLION
    """Submits; each is answered from the cache or makes a job."""
    hit_ratio: float = 0.3
    prompt_kb: float = 2.0
    answer_kb: float = 2.0
    vendor_s: float = 10.0
    """Of one call; the worker waits for it and is billed."""
    polls: float = 2.0
    """GETs of a job, the last of which brings its answer."""
    webhook_ratio: float = 0.0
    """Of the jobs, those of which a partner's server is told."""
    tenants: int = 5
    """That send requests; each with KEYS_OF_A_TENANT."""
    models: int = 3
    cache: str = "dynamodb"
    entry_h: float = 48.0
    """How long an entry stays: its hard TTL and the time in which it is served on errors."""
    row_days: float = 23.0
    """How long a job's row stays: 22 days from its deadline on."""
    result_days: float = 3.0
    """How long an object in S3 stays."""
    vendor_price: float = 0.0
    """Of one call to the vendor, USD."""

    @property
    def hits(self) -> float:
        """Answered from the cache."""
        return 0.0 if self.cache == "none" else self.requests * self.hit_ratio

    @property
    def jobs(self) -> float:
        """The others."""
        return self.requests - self.hits

    @property
    def vendor_usd(self) -> float:
        """The vendor's bill."""
        return self.jobs * self.vendor_price

    @property
    def saved_usd(self) -> float:
        """What the vendor would have got for the hits."""
        return self.hits * self.vendor_price

    def problem(self) -> str | None:
        """What can't be, in words."""
        if self.cache not in CACHES:
            return f"the cache is one of {', '.join(CACHES)}"
        if not 0 <= self.hit_ratio <= 1 or not 0 <= self.webhook_ratio <= 1:
            return "a ratio is between 0 and 1"
        numbers = (getattr(self, one.name) for one in fields(self) if one.name != "cache")
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            return "numbers are finite, and none is negative"
        return "there is one tenant at least" if self.tenants < 1 else None


def events_of(workload: Workload) -> dict[str, float]:
    """How many events of each path a month has."""
    jobs, kind = workload.jobs, "no cache" if workload.cache == "none" else "miss"
    last = min(1.0, workload.polls)
    per_key_s = api_requests(workload) / workload.tenants / KEYS_OF_A_TENANT / MONTH_S
    return {
        # A key's policy is asked for by its first request after the last answer ran out.
        "authorize": api_requests(workload) / (1 + per_key_s * POLICY_KEPT_S),
        "fresh hit": workload.hits,
        f"{kind}: submit": jobs,
        f"{kind}: run": jobs,
        "poll": jobs * (workload.polls - last),
        f"{kind}: get": jobs * last,
        "publish": jobs * (1 - workload.webhook_ratio),
        "publish with a webhook": jobs * workload.webhook_ratio,
        "deliver": jobs * workload.webhook_ratio,
    }


def api_requests(workload: Workload) -> float:
    """Requests to the API."""
    return workload.requests + workload.jobs * workload.polls


# ------------------------------------------------------------------------------------ the stack


@dataclass(frozen=True, slots=True)
class Stack:
    """What template.yaml makes, as far as it costs; tests/template checks the numbers."""

    memory_mb: Mapping[str, int] = field(
        default_factory=lambda: {
            "authorize": 512,
            "api": 1024,
            "run_job": 512,
            "sweep_jobs": 256,
            "publish_events": 512,
            "deliver_webhook": 512,
        }
    )
    polled_queues: int = 3
    sweeps_per_h: int = 60
    alarm_metrics: int = 30
    """An alarm on an expression is billed for each metric in it."""
    dashboards: int = 1
    secrets: int = 1
    """Its own; the vendors' keys come on top."""
    vendors: int = 1
    due_shards: int = 8
    polls_of_a_sweep: int = 11


STACK = Stack()


# ------------------------------------------------------------------------------------ cost


@dataclass(frozen=True, slots=True)
class Line:
    """One item of a bill."""

    service: str
    item: str
    many: float
    unit: str
    usd: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A bill."""

    lines: tuple[Line, ...]

    @property
    def usd(self) -> float:
        """All of it."""
        return sum(line.usd for line in self.lines)

    @property
    def by_service(self) -> dict[str, float]:
        """In the order of the lines."""
        sums: dict[str, float] = {}
        for line in self.lines:
            sums[line.service] = sums.get(line.service, 0.0) + line.usd
        return sums


def billed_s(step: Step, memory_mb: int) -> float:
    """Seconds that Lambda bills for a warm event, the vendor's left out."""
    return (step.code_ms * max(1.0, FULL_CORE_MB / memory_mb) + step.wait_ms) / 1000


def cost_of(
    workload: Workload, counts: Counts, prices: Prices = LIST, stack: Stack = STACK
) -> Cost:
    """What a month of this workload costs beside `idle_cost`. Raises ValueError."""
    if problem := workload.problem():
        raise ValueError(problem)
    events = {path: many for path, many in events_of(workload).items() if many}
    lines = [
        *cost_of_events(events, workload, counts, prices, stack).lines,
        *_dynamodb_storage(workload, counts, prices),
        *_valkey(events, workload, counts, prices),
        *_around_the_functions(workload, counts, prices),
        *_sweeps(workload, prices, stack),
    ]
    return Cost(tuple(line for line in lines if line.many))


def cost_of_events(
    events: Mapping[str, float],
    workload: Workload,
    counts: Counts,
    prices: Prices = LIST,
    stack: Stack = STACK,
) -> Cost:
    """What so many events of each path cost by themselves, without what a month has around them."""
    steps = {path: _step(path, workload, counts).times(many) for path, many in events.items()}
    whole = sum(steps.values(), Step())
    gb_s: dict[str, float] = {}
    of_function: defaultdict[str, float] = defaultdict(float)
    for path, many in events.items():
        function = counts.paths[path].function
        of_function[function] += many
        mb = stack.memory_mb[function]
        waits_s = {"run_job": workload.vendor_s, "deliver_webhook": WEBHOOK_S}.get(function, 0.0)
        seconds = billed_s(steps[path], mb) + many * waits_s
        gb_s[function] = gb_s.get(function, 0.0) + seconds * mb / KB
    requests, invocations = of_function["api"], sum(events.values())
    # Lambda's poller receives a message before its run, and deletes it afterwards.
    messages = sum(whole.calls.get(name, 0.0) for name in ("SendMessage", "SendMessageBatch"))
    messages += 2 * (of_function["run_job"] + of_function["deliver_webhook"])
    log_bytes = whole.log_bytes + LAMBDA_LOG_BYTES * invocations + ACCESS_LOG_BYTES * requests
    lines = [
        _line(prices, "read", "DynamoDB", "reads", whole.read_units, "RRU"),
        _line(prices, "write", "DynamoDB", "writes", whole.write_units, "WRU"),
        _line(prices, "invocation", "Lambda", "requests", invocations, "requests"),
        *(
            _line(prices, "gb_second", "Lambda", f"time of {name}", many, "GB-s")
            for name, many in gb_s.items()
        ),
        _line(prices, "request", "API Gateway", "requests", requests, "requests"),
        _line(prices, "message", "SQS", "sends, receives, deletes", messages, "requests"),
        _line(prices, "fair", "SQS", "fair queues, on top", messages, "requests"),
        *(
            _line(prices, price, "S3", operation, whole.calls.get(operation, 0.0), "requests")
            for price, operation in (("put", "PutObject"), ("get", "GetObject"))
        ),
        _line(
            *(prices, "event", "EventBridge", "events of ended jobs"),
            *(whole.calls.get("PutEvents", 0.0), "events"),
        ),
        _line(prices, "log_ingestion", "CloudWatch", "logs taken in", log_bytes / GB, "GB"),
        _line(prices, "log_storage", "CloudWatch", "logs, kept for a month", log_bytes / GB, "GB"),
    ]
    return Cost(tuple(line for line in lines if line.many))


def _line(prices: Prices, price: str, service: str, item: str, many: float, unit: str) -> Line:
    return Line(service, item, many, unit, many * prices.one(price))


def _step(path: str, workload: Workload, counts: Counts) -> Step:
    """Of one event, with the cache where the workload has it."""
    step = counts.paths[path].step(workload.prompt_kb, workload.answer_kb)
    reads, writes = bool(step.cache_read_units), bool(step.cache_write_units)
    if workload.cache != "valkey" or not (reads or writes):
        return step
    # A read is a call of its own; an entry is written within the transaction of its job's end.
    moved = {"GetItem": step.calls.get("GetItem", 0) - reads, "Valkey": reads + writes}
    return replace(
        step,
        calls={**step.calls, **moved},
        read_units=step.read_units - step.cache_read_units,
        write_units=step.write_units - step.cache_write_units,
    )


def _dynamodb_storage(workload: Workload, counts: Counts, prices: Prices) -> Iterator[Line]:
    least = next(iter(counts.job_by_answer.row.values()))
    job = _bytes_at(counts.job_by_prompt.row, workload.prompt_kb) - least
    job += _bytes_at(counts.job_by_answer.row, workload.answer_kb) + ROW_OVERHEAD_BYTES
    kept = workload.jobs * job * workload.row_days * 24 / MONTH_H
    if workload.cache == "dynamodb":
        kept += entries(workload) * (
            _bytes_at(counts.entry.row, workload.answer_kb) + ROW_OVERHEAD_BYTES
        )
    yield _line(prices, "row_storage", "DynamoDB", "storage", kept / GB, "GB-month")
    yield _line(prices, "row_backup", "DynamoDB", "backups", kept / GB, "GB-month")


def entries(workload: Workload) -> float:
    """That are in the cache on average: each job's lives for its time."""
    return 0.0 if workload.cache == "none" else workload.jobs * workload.entry_h / MONTH_H


def entry_units(workload: Workload, counts: Counts) -> tuple[float, float]:
    """ECPUs of a read of an entry, and of the script that stores one."""
    kilobytes = (_bytes_at(counts.entry.row, workload.answer_kb)) / KB
    return READ_ECPUS + kilobytes, SCRIPT_ECPUS + kilobytes


def entry_bytes(workload: Workload, counts: Counts) -> float:
    """Of an entry in Valkey."""
    return _bytes_at(counts.entry.row, workload.answer_kb) + ENTRY_OVERHEAD_BYTES


def _valkey(
    events: Mapping[str, float], workload: Workload, counts: Counts, prices: Prices
) -> Iterator[Line]:
    if workload.cache != "valkey":
        return
    read, store = entry_units(workload, counts)
    units = 0.0
    for path, many in events.items():
        step = counts.paths[path].step(workload.prompt_kb, workload.answer_kb)
        units += many * (read * bool(step.cache_read_units) + store * bool(step.cache_write_units))
    yield _line(prices, "valkey_unit", "Valkey", "commands", units, "ECPU")
    beyond = max(0.0, entries(workload) * entry_bytes(workload, counts) - VALKEY_LEAST_BYTES)
    many = beyond / GB * MONTH_H
    yield _line(prices, "valkey_storage", "Valkey", "storage beyond the least", many, "GB-hour")
    # Vendors are called, and queues written, through it; DynamoDB and S3 have endpoints.
    through = workload.jobs * (workload.prompt_kb + workload.answer_kb) * KB / GB
    yield _line(prices, "nat_data", "Valkey", "data through the NAT gateway", through, "GB")


def _around_the_functions(workload: Workload, counts: Counts, prices: Prices) -> Iterator[Line]:
    requests, jobs = api_requests(workload), workload.jobs
    kept = jobs * (
        _bytes_at(counts.job_by_prompt.object, workload.prompt_kb)
        + _bytes_at(counts.job_by_answer.object, workload.answer_kb)
    )
    gb_months = kept / GB * workload.result_days * 24 / MONTH_H
    yield _line(prices, "object_storage", "S3", "storage", gb_months, "GB-month")
    sets = sum(
        many * metric_months(workload.requests / many)
        for many in (1, LANES, workload.models, workload.tenants)
        if many
    )
    many = len(METRICS) * sets
    yield _line(prices, "metric", "CloudWatch", "metrics by model, lane, tenant", many, "metrics")
    many = metric_months(requests)
    yield _line(prices, "metric", "CloudWatch", "metric of the access log", many, "metrics")
    told = jobs * workload.webhook_ratio
    many = sum(map(traces, (requests, jobs, jobs, told)))  # runs, and events of their ends
    yield _line(prices, "trace", "X-Ray", "traces", many, "traces")
    processes = 1 + jobs * workload.vendor_s / MONTH_S
    looks = 2 * min(processes * MONTH_S / CONFIGURATION_KEPT_S, requests + jobs)
    yield _line(prices, "configuration_call", "AppConfig", "looks", looks, "requests")
    answers = (workload.hits + jobs * min(1.0, workload.polls)) * workload.answer_kb * KB
    out = answers + requests * ENVELOPE_BYTES + jobs * workload.prompt_kb * KB
    yield _line(prices, "data_out", "Data out", "answers, and prompts to vendors", out / GB, "GB")


def metric_months(requests: float) -> float:
    """A metric is billed for the hours in which something counts into it; they come at random."""
    return 1 - math.exp(-requests / MONTH_H)


def traces(requests: float) -> float:
    """That X-Ray records of a month's so many, which come at random."""
    per_s = requests / MONTH_S
    first_per_s = TRACED_PER_S * (1 - math.exp(-per_s / TRACED_PER_S))
    return MONTH_S * (first_per_s + TRACED_REST * (per_s - first_per_s))


def _sweeps(workload: Workload, prices: Prices, stack: Stack) -> Iterator[Line]:
    """What sweeps do beyond those of an idle stack: they poll while a job is open."""
    open_part = 1 - math.exp(-workload.jobs / MONTH_S * (workload.vendor_s + 1))
    sweeps = stack.sweeps_per_h * MONTH_H * open_part
    gb_s = sweeps * (BUSY_SWEEP_S - IDLE_SWEEP_S) * stack.memory_mb["sweep_jobs"] / KB
    yield _line(prices, "gb_second", "Lambda", "time of sweep_jobs, polling", gb_s, "GB-s")
    polls = sweeps * (stack.polls_of_a_sweep - 1)
    units = polls * 2 * stack.due_shards * 0.5
    yield _line(prices, "read", "DynamoDB", "the sweeper's queries", units, "RRU")
    yield _line(prices, "write", "DynamoDB", "the sweeper's picture", polls, "WRU")


# ------------------------------------------------------------------------------------ idle


def idle_cost(cache_: str = "dynamodb", prices: Prices = LIST, stack: Stack = STACK) -> Cost:
    """What a deployed stack costs a month with no request at all."""
    sweeps = stack.sweeps_per_h * MONTH_H
    receives = stack.polled_queues * POLLERS * MONTH_S / LONG_POLL_S
    gb_s = sweeps * IDLE_SWEEP_S * stack.memory_mb["sweep_jobs"] / KB
    log_gb = sweeps * (LAMBDA_LOG_BYTES + SWEEP_LOG_BYTES) / GB
    lines = [
        _line(prices, "message", "SQS", "empty receives", receives, "requests"),
        _line(prices, "message", "SQS", "the sweeper's looks at the lanes", 2 * sweeps, "requests"),
        _line(prices, "schedule", "EventBridge", "schedule of the sweeper", sweeps, "invocations"),
        _line(prices, "invocation", "Lambda", "requests of sweep_jobs", sweeps, "requests"),
        _line(prices, "gb_second", "Lambda", "time of sweep_jobs", gb_s, "GB-s"),
        _line(
            *(prices, "read", "DynamoDB", "the sweeper's queries"),
            *(sweeps * (2 * stack.due_shards * 0.5 + 2), "RRU"),
        ),
        _line(prices, "write", "DynamoDB", "the sweeper's picture", sweeps, "WRU"),
        _line(prices, "log_ingestion", "CloudWatch", "the sweeper's logs", log_gb, "GB"),
        _line(prices, "log_storage", "CloudWatch", "its logs, kept for a month", log_gb, "GB"),
        _line(prices, "alarm", "CloudWatch", "alarms", stack.alarm_metrics, "metrics"),
        _line(prices, "metric", "CloudWatch", "the sweeper's metrics", STEADY_METRICS, "metrics"),
        _line(prices, "dashboard", "CloudWatch", "dashboard", stack.dashboards, "dashboards"),
        _line(
            *(prices, "secret", "Secrets Manager", "secrets, with a vendor's key"),
            *(stack.secrets + stack.vendors, "secrets"),
        ),
        # The sweeper's process is warm, and asks for catalogue and flags each minute.
        _line(prices, "configuration_call", "AppConfig", "looks", 2 * sweeps, "requests"),
        _line(prices, "trace", "X-Ray", "traces of sweeps", sweeps, "traces"),
    ]
    if cache_ == "valkey":
        lines += [valkey_least(prices), nat_gateway(prices)]
    return Cost(tuple(lines))


def valkey_least(prices: Prices = LIST) -> Line:
    """The storage that is billed at least."""
    many = VALKEY_LEAST_BYTES / GB * MONTH_H
    return _line(prices, "valkey_storage", "Valkey", "the least storage", many, "GB-hour")


def nat_gateway(prices: Prices = LIST) -> Line:
    """One; an endpoint for DynamoDB and one for S3 cost nothing."""
    return _line(prices, "nat_hour", "Valkey", "a NAT gateway", MONTH_H, "hours")


# ------------------------------------------------------------------------------------ break-even


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From where on Valkey is the cheaper cache; None: it never is."""

    answer_kb: float
    hit_ratio: float
    requests: float | None
    """A month."""
    least_usd: float
    """What Valkey costs a month before the first request."""

    @property
    def hits(self) -> float | None:
        """A month."""
        return None if self.requests is None else self.requests * self.hit_ratio


def cost_of_cache(workload: Workload, counts: Counts, prices: Prices = LIST) -> dict[str, float]:
    """USD a month of the cache alone, in each place, without what Valkey costs at least.

    It is what the rest doesn't cost that has no cache in DynamoDB: units, storage and waits there;
    commands, storage and data there.
    """
    bills = {
        one: cost_of(replace(workload, cache=one), counts, prices) for one in ("dynamodb", "valkey")
    }
    valkey = bills["valkey"].by_service.get("Valkey", 0.0)
    rest = bills["valkey"].usd - valkey
    return {"dynamodb": bills["dynamodb"].usd - rest, "valkey": valkey}


def break_even(
    workload: Workload, counts: Counts, prices: Prices = LIST, *, nat: bool = True
) -> BreakEven:
    """For requests like these; `nat`: the network has no NAT gateway yet.

    What is compared is all that the cache changes: units, commands, storage, waits, and what
    Valkey and its network cost at least.
    """
    fixed = valkey_least(prices).usd + (nat_gateway(prices).usd if nat else 0.0)

    def dearer(requests: float) -> float:
        """By how much Valkey is."""
        of_cache = cost_of_cache(replace(workload, requests=requests), counts, prices)
        return fixed + of_cache["valkey"] - of_cache["dynamodb"]

    # The least storage costs what it holds: so once Valkey is the cheaper one, it stays so.
    found = _root(dearer, 0.0, MOST_REQUESTS) if dearer(MOST_REQUESTS) < 0 else None
    return BreakEven(workload.answer_kb, workload.hit_ratio, found, fixed)


def _root(function: Callable[[float], float], positive: float, negative: float) -> float:
    """Where it gets from above 0 to 0."""
    for _ in range(100):
        middle = (positive + negative) / 2
        if function(middle) > 0:
            positive = middle
        else:
            negative = middle
    return negative
