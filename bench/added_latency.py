"""Measure what the gateway adds to a vendor's time, on the emulator, at rising rates.

A partner's client submits at random moments, each request in a thread of its own and whatever
became of those before it, and has the result in its hands some time later. *Added* is that time
less what the vendor took for it by its own log. It is told by parts, each between two moments of
the job: of the client's clock, of the job's row, of what the functions logged, and of the vendor's
log. All of them are clocks of one machine.

The emulator's floor is what the same steps take when they do nothing: an empty function behind the
emulator's API Gateway and behind its poller, and calls to its tables.
"""

import argparse
import io
import math
import random
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
from sluiceway.usecases.wait_job import wait_while
from sluiceway_cli.costs import UPDATE_MS, WAITS_MS
from sluiceway_cli.target import Target
from sluiceway_client import Client, Job
from sluiceway_client.errors import SluicewayError
from sluiceway_local import emulator

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import burst, report
from bench import vendor as vendors
from bench.report import NotMeasuredError

RATES_PER_S = (2.0, 5.0, 10.0, 15.0, 20.0)
FOR_S = 12.0
"""Of one rate."""

ACHIEVED = 0.95
"""Of the requests of a rate; below, it is saturated."""

GRACE_S = 1.0
"""On top of the vendor's time, for the last requests of a rate: who has no result by then adds to a
backlog that grows."""

WAY_PER_S, WAY_FOR_S = 4.0, 5.0
"""Of the other ways to a result."""

FOLLOWS_S = 0.1
"""A duplicate after the one that it repeats."""

CALLS_PER_MINUTE = 6_000
"""That the vendor and the gate allow: nobody waits for a slot."""

WARM_AT_ONCE, WARM_S = (1, 4, 8, 16), 1.0
LEAST_FOR_P99 = 100
FLOORS = 60
"""Of each floor."""

POLLER_REST_S = 0.08
"""The emulator's poller looks again at once when a message is done, and then pauses for 50 ms."""

JOBS_TAKE_S, JOBS_VARY = (0.5, 2.0, 10.0), 0.2
"""Of which it is told what the looks of a held request add."""

LONGEST_S, WARM_GIVE_UP_S = 15.0, 45.0
"""A request without a result by then has failed; one that lets a process start is patient."""

GIVE_UP_S = 90.0
"""With requests of which not even a failure is known: the client gives up before."""

SEED = 20

# ------------------------------------------------------------------------------------ parts

MOMENTS = (
    *("due", "sent", "created", "submitted", "started", "leased"),
    *("called", "answered", "completed", "seen"),
)
"""Of a request whose job ran, in this order; `called` and `answered` are the vendor's."""


@dataclass(frozen=True, slots=True)
class Part:
    """What lies between two moments that follow each other."""

    begins: str
    ends: str
    what: str
    floor: tuple[str, ...] = ()
    """What of it an emulator's step or call takes, in the names of `floors`."""


PARTS = {
    "client": Part("due", "sent", "the client is late with it"),
    "request": Part(
        "sent",
        "created",
        "API Gateway, the authorizer, the API's function, the record of the Idempotency-Key",
        ("gateway, there", "UpdateItem"),
    ),
    "submit": Part(
        "created",
        "submitted",
        "the look into the cache, the job's transaction, the send",
        ("GetItem", "TransactWriteItems", "SendMessage"),
    ),
    "lane": Part(
        "submitted", "started", "the poller, the worker's function, the job", ("poller", "GetItem")
    ),
    "start": Part("started", "leased", "the transaction of the start", ("TransactWriteItems",)),
    "gate": Part(
        "leased",
        "called",
        "the look into the cache, the gate, the connection",
        ("GetItem", "UpdateItem"),
    ),
    "finish": Part(
        "answered", "completed", "the answer read, the transaction of the finish",
        ("TransactWriteItems",),
    ),
    "answer": Part(
        "completed",
        "seen",
        "until the request that is held looks at the job, and its answer",
        ("GetItem", "gateway, back"),
    ),
}  # fmt: skip
"""Of what is added, in the order of time."""

AWS_MS = {**WAITS_MS, "UpdateItem": UPDATE_MS}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request by the client's clock, in epoch seconds."""

    due_s: float
    sent_s: float
    seen_s: float
    job: Job | None
    """None: it failed."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rate:
    """What the client saw of one rate."""

    offered_per_s: float
    achieved_per_s: float
    """With a result within `GRACE_S` and the vendor's time, of each second of the rate."""
    errors: int
    seen: tuple[Seen, ...] = field(repr=False)

    @property
    def saturated(self) -> bool:
        """Whether the emulator doesn't carry it."""
        return self.errors > 0 or self.achieved_per_s < ACHIEVED * self.offered_per_s


def in_order(moments: Mapping[str, float]) -> dict[str, float]:
    """The moments of a job with none after its successor.

    Two functions are at work at once: the worker may have started before the API says that the
    message is sent. And rows and logs tell whole milliseconds.
    """
    ordered: dict[str, float] = {}
    latest_s = moments[MOMENTS[-1]]
    for name in reversed(MOMENTS):
        latest_s = min(latest_s, moments[name])
        ordered[name] = latest_s
    return {name: ordered[name] for name in MOMENTS}


def parts_ms(moments: Mapping[str, float]) -> dict[str, float]:
    """How long each part took; together that is what was added."""
    ordered = in_order(moments)
    return {
        name: (ordered[part.ends] - ordered[part.begins]) * 1000 for name, part in PARTS.items()
    }


def added_ms(seen: Seen, vendor_s: tuple[float, float] | None) -> float:
    """A request's time without what of it the vendor was at work for its job."""
    whole_s = seen.seen_s - seen.due_s
    if vendor_s is None:
        return whole_s * 1000
    spent_s = min(seen.seen_s, vendor_s[1]) - max(seen.due_s, vendor_s[0])
    return (whole_s - max(0.0, spent_s)) * 1000


def percentile(values: Sequence[float], percent: int) -> float:
    """Between the values, of at least one."""
    (found,) = vendors.percentiles(values, percent)
    return found


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """In the figures; a p99 of few values would be the greatest one."""
    enough = len(values) >= LEAST_FOR_P99
    return {
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "p99": percentile(values, 99) if enough else None,
        "most": max(values),
    }


def summed(floors: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    """Of steps that follow each other, as often as each was taken."""
    return [sum(ms) for ms in zip(*(floors[name] for name in names), strict=True)]


# ------------------------------------------------------------------------------------ looks


@dataclass(slots=True)
class _Clock:
    """Goes by itself, from pause to pause."""

    at_ms: float = 0.0

    def now_ms(self) -> int:
        """See ports.Clock."""
        return round(self.at_ms)

    def pause(self, wait_s: float) -> None:
        """Is over at once."""
        self.at_ms += wait_s * 1000


def look_ms(takes_ms: float) -> tuple[float, int]:
    """How long a job waits for the look that finds its end, and how many looks there are.

    Looks themselves take no time here.
    """
    clock, looks = _Clock(), count(1)

    def look() -> tuple[bool, int]:
        return clock.at_ms >= takes_ms, next(looks)

    _, looked = wait_while(
        look, lambda seen: not seen[0], until_ms=20_000, clock=clock, pause=clock.pause
    )
    return clock.at_ms - takes_ms, looked


def look_lines() -> list[tuple[str, ...]]:
    """For jobs that take as long, give or take a part of it."""
    lines: list[tuple[str, ...]] = []
    for takes_s in JOBS_TAKE_S:
        shares = [1 + JOBS_VARY * step / 500 for step in range(-500, 501)]
        found = [look_ms(takes_s * 1000 * share) for share in shares]
        waits_ms = [wait_ms for wait_ms, _ in found]
        looks = statistics.mean(looked for _, looked in found)
        lines.append(
            (f"{takes_s:g}", f"{looks:.1f}", _ms(statistics.mean(waits_ms)), _ms(max(waits_ms)))
        )
    return lines


# ------------------------------------------------------------------------------------ load


def arrivals_s(per_s: float, for_s: float, rng: random.Random) -> list[float]:
    """Moments of a Poisson process, given how many they are."""
    return sorted(rng.uniform(0, for_s) for _ in range(round(per_s * for_s)))


def send(requests: Iterable[tuple[float, Callable[[], Job]]]) -> list[Seen]:
    """Does each at its moment, in seconds from now on, whatever becomes of the others."""
    found: dict[int, Seen] = {}
    threads = []
    begins_s = time.time() + 0.1

    def one(number: int, due_s: float, act: Callable[[], Job]) -> None:
        sent_s, job, error = time.time(), None, ""
        try:
            job = act()
        except SluicewayError as failure:
            error = type(failure.__cause__ or failure).__name__  # httpx's, where there is one
        found[number] = Seen(due_s, sent_s, time.time(), job, error)

    for number, (after_s, act) in enumerate(requests):
        due_s = begins_s + after_s
        time.sleep(max(0.0, due_s - time.time()))
        threads.append(threading.Thread(target=one, args=(number, due_s, act), daemon=True))
        threads[-1].start()
    ends_s = time.monotonic() + GIVE_UP_S
    for thread in threads:
        thread.join(max(0.0, ends_s - time.monotonic()))
    if len(found) < len(threads):
        raise NotMeasuredError("some requests got no answer")
    return [found[number] for number in range(len(threads))]


def rate_of(for_s: float, vendor_s: float, seen: Sequence[Seen]) -> Rate:
    """What the client saw of one rate; `vendor_s`: what the vendor takes for a call."""
    until_s = min(one.due_s for one in seen) + for_s + vendor_s + GRACE_S
    in_time = sum(one.job is not None and one.seen_s <= until_s for one in seen)
    return Rate(
        offered_per_s=len(seen) / for_s,
        achieved_per_s=in_time / for_s,
        errors=sum(one.job is None for one in seen),
        seen=tuple(seen),
    )


class Partner:
    """The ways in which one gets a result."""

    def __init__(self, here: burst.Place) -> None:
        """At this stack."""
        self._http = httpx.Client(limits=httpx.Limits(max_connections=None))
        self._client = Client(
            here.local.api_url, here.key("acme"), max_retries=0, http_client=self._http
        )

    def held(self, text: str) -> Job:
        """The server holds the submit."""
        return self._client.run(model="limited", input=text, timeout_s=LONGEST_S)

    def polled(self, text: str) -> Job:
        """It answers at once, and is asked again when it says."""
        job = self._client.submit(model="limited", input=text)
        while not job.ended:
            time.sleep(max(1.0, job.retry_after_s or 0.0))
            job = self._client.get(job)
        return job

    def warm(self) -> None:
        """Lets as many processes of each function start as will be at work at once.

        More and more: so many that start together may take longer than the API holds a request.
        """

        def call(text: str) -> Job:
            slow = {"sim": {"delay_s": WARM_S}}
            return self._client.run(
                model="limited", input=text, options=slow, timeout_s=WARM_GIVE_UP_S
            )

        for turn, at_once in enumerate(WARM_AT_ONCE):
            seen = send((0.0, partial(call, f"warm {turn} {n}")) for n in range(at_once))
        if any(one.job is None for one in seen):
            raise NotMeasuredError("the functions didn't warm up")


# ------------------------------------------------------------------------------------ looking


class Traces:
    """What rows, logs and the vendor tell of jobs, once they have ended."""

    def __init__(self, here: burst.Place, since_ms: int) -> None:
        """Reads all of it at once. Raises NotMeasuredError when logs can't be read in full."""
        local = here.local
        time.sleep(1.0)  # an emulator has the lines of an invocation after its end
        logs = Target(
            api_url=local.api_url,
            outputs=local.outputs,
            endpoint_url=local.endpoint_url,
            region=local.region,
            vendor_url=local.vendor_url,
        ).logs
        self._rows = {row["job_id"]: row for row in here.rows()}
        self._logged: dict[str, dict[str, float]] = {}
        for function, event in LOGGED:
            look = logs.find(
                function, event, since_ms=since_ms, until_ms=round(time.time() * 1000) + 1000
            )
            if not look.whole:
                raise NotMeasuredError("the log is too long to be read")
            self._logged[event] = {
                line.members["job_id"]: line.at_epoch_ms / 1000
                for line in look.lines
                if line.members.get("message") == event
            }
        self._calls: dict[str, list[tuple[float, float]]] = {}
        for call in here.vendor.ask("GET", "spans")["calls"]:
            if call["status"] == 200:  # noqa: PLR2004
                span = call["arrived_at_s"], call["left_at_s"]
                self._calls.setdefault(call["idempotency_key"], []).append(span)

    def vendor_s(self, job: Job) -> tuple[float, float]:
        """When the vendor was at work for it. Raises NotMeasuredError unless it was once."""
        calls = self._calls.get(job.id, [])
        if len(calls) != 1:
            raise NotMeasuredError(f"the vendor was called {len(calls)} times for a job")
        return calls[0]

    def added_ms(self, seen: Seen) -> float:
        """Of a request whose own job ran at its first try.

        Raises NotMeasuredError for one that went another way.
        """
        job = _job(seen)
        if job.status != "completed" or job.deduplicated or job.cache.status != "miss":
            raise NotMeasuredError(f"a new job was {job.status}, its cache {job.cache.status}")
        attempts = self._rows[job.id]["attempts_total"]
        if attempts != 1:
            raise NotMeasuredError(f"a job took {attempts} attempts")
        return added_ms(seen, self.vendor_s(job))

    def parts_ms(self, requests: Sequence[Seen]) -> list[dict[str, float]]:
        """Of each request whose lines are in the logs.

        An emulator that is busy may leave one out. Raises NotMeasuredError when too many are.
        """
        told = [parts_ms(self._moments(seen)) for seen in requests if self._logged_all(_job(seen))]
        if len(told) < LOGGED_AT_LEAST * len(requests):
            raise NotMeasuredError(f"the logs tell of {len(told)} of {len(requests)} jobs")
        return told

    def _logged_all(self, job: Job) -> bool:
        return all(job.id in lines for lines in self._logged.values())

    def _moments(self, seen: Seen) -> dict[str, float]:
        """In epoch seconds."""
        job = _job(seen)
        row = self._rows[job.id]
        called_s, answered_s = self.vendor_s(job)
        return {
            "due": seen.due_s,
            "sent": seen.sent_s,
            "created": int(row["created_at_epoch_ms"]) / 1000,
            "submitted": self._logged["job_submitted"][job.id],
            "started": int(row["started_at_epoch_ms"]) / 1000,
            "leased": self._logged["lease_acquired"][job.id],
            "called": called_s,
            "answered": answered_s,
            "completed": self._logged["job_completed"][job.id],
            "seen": seen.seen_s,
        }


LOGGED = (("api", "job_submitted"), ("run_job", "lease_acquired"), ("run_job", "job_completed"))
"""Each is logged right after the write that it tells of."""

LOGGED_AT_LEAST = 0.9
"""Of the jobs of a rate."""


def _job(seen: Seen) -> Job:
    if seen.job is None:
        raise NotMeasuredError(f"a request failed: {seen.error}")
    return seen.job


# ------------------------------------------------------------------------------------ the floor

EMPTY = """
# It logs a line, as the gateway's functions do: the emulator waits for one.
import os, time

def handler(event, context):
    now_s = time.time()
    print(now_s)
    for record in event.get("Records", ()):
        with open(os.environ["STAMPS"], "a") as stamps:
            stamps.write(f"{record['body']} {now_s}\\n")
    return {"statusCode": 200, "body": str(now_s)}
"""


def floors(endpoint_url: str, folder: Path) -> dict[str, list[float]]:
    """What the emulator's own steps take, in ms, when nothing else is at work."""
    stamps = folder / "stamps"
    url, queue_url = _empty_function(endpoint_url, stamps)
    found: dict[str, list[float]] = {"gateway, there": [], "gateway, back": [], "poller": []}
    with httpx.Client() as http:
        for warm in (True, False):
            for _ in range(3 if warm else FLOORS):
                sent_s = time.time()
                answer = http.get(url)
                back_s = time.time()
                if not warm:
                    found["gateway, there"].append((float(answer.text) - sent_s) * 1000)
                    found["gateway, back"].append((back_s - float(answer.text)) * 1000)
    found |= _floors_of_calls(endpoint_url, queue_url, stamps, found["poller"])
    return found


def _floors_of_calls(
    endpoint_url: str, queue_url: str, stamps: Path, poller: list[float]
) -> dict[str, list[float]]:
    dynamodb, sqs = (emulator.client(name, endpoint_url) for name in ("dynamodb", "sqs"))
    dynamodb.create_table(
        TableName="floor",
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )

    def key(name: str) -> dict[str, Any]:
        return {"key": {"S": name}}

    found: dict[str, list[float]] = {}
    calls: dict[str, Callable[[int], object]] = {
        "GetItem": lambda _: dynamodb.get_item(
            TableName="floor", Key=key("a"), ConsistentRead=True
        ),
        "UpdateItem": lambda n: dynamodb.update_item(
            TableName="floor",
            Key=key("a"),
            UpdateExpression="SET #n = :n",
            ExpressionAttributeNames={"#n": "n"},
            ExpressionAttributeValues={":n": {"N": str(n)}},
        ),
        "TransactWriteItems": lambda n: dynamodb.transact_write_items(
            TransactItems=[
                {"Put": {"TableName": "floor", "Item": {**key(f"{name} {n}"), "n": {"N": "1"}}}}
                for name in "bcd"
            ]
        ),
        "SendMessage": lambda n: sqs.send_message(QueueUrl=queue_url, MessageBody=str(n)),
    }
    for name, call in calls.items():
        found[name] = []
        for n in range(-3, FLOORS):  # the first ones warm up
            before_s = time.time()
            call(n)
            after_s = time.time()
            if n >= 0:
                found[name].append((after_s - before_s) * 1000)
            if name == "SendMessage":  # the next one when its function has run
                stamped_s = _stamp(stamps, n)
                if n >= 0:
                    poller.append(max(0.0, stamped_s - after_s) * 1000)
                time.sleep(POLLER_REST_S)
    return found


def _stamp(stamps: Path, n: int) -> float:
    """When the function had the message. Raises NotMeasuredError when it gets none."""
    ends_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < ends_s:
        lines = stamps.read_text().splitlines() if stamps.exists() else []
        if lines and lines[-1].startswith(f"{n} "):
            return float(lines[-1].split()[1])
        time.sleep(0.002)
    raise NotMeasuredError("the emulator's poller brought no message")


def _empty_function(endpoint_url: str, stamps: Path) -> tuple[str, str]:
    """Deploys it; the addresses of its API and of its queue."""
    functions, gateway, sqs = (
        emulator.client(name, endpoint_url) for name in ("lambda", "apigateway", "sqs")
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", EMPTY)
    arn = functions.create_function(
        FunctionName="floor",
        Runtime="python3.13",
        Handler="app.handler",
        Role="arn:aws:iam::000000000000:role/floor",
        Code={"ZipFile": packed.getvalue()},
        Environment={"Variables": {"STAMPS": str(stamps)}},
    )["FunctionArn"]
    functions.get_waiter("function_active_v2").wait(FunctionName="floor", WaiterConfig={"Delay": 1})
    queue_url = sqs.create_queue(QueueName="floor")["QueueUrl"]
    queue_arn = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
    functions.create_event_source_mapping(
        FunctionName="floor",
        EventSourceArn=queue_arn["Attributes"]["QueueArn"],
        BatchSize=1,
        ScalingConfig={"MaximumConcurrency": 2},
    )
    api_id = gateway.create_rest_api(name="floor")["id"]
    resource_id = gateway.get_resources(restApiId=api_id)["items"][0]["id"]
    of = {"restApiId": api_id, "resourceId": resource_id, "httpMethod": "GET"}
    gateway.put_method(**of, authorizationType="NONE")
    gateway.put_integration(
        **of,
        type="AWS_PROXY",
        integrationHttpMethod="POST",
        uri=f"arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{arn}/invocations",
    )
    gateway.create_deployment(restApiId=api_id, stageName="v1")
    return f"{endpoint_url}/_aws/execute-api/{api_id}/v1/", queue_url


# ------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True, slots=True)
class Setting:
    """What is done."""

    rates_per_s: tuple[float, ...]
    for_s: float
    vendor_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it; all times in ms."""

    rates: tuple[Rate, ...]
    added: dict[float, list[float]]
    """Of each request, by the rate; of rates that the emulator carries."""
    parts: dict[float, list[dict[str, float]]]
    """What each part took of it."""
    ways: dict[str, list[float]]
    """What each way to a result adds."""
    floors: dict[str, list[float]]


def measure(setting: Setting) -> Found:
    """On a stack of its own. Raises NotMeasuredError when a path goes another way."""
    vendor = burst.Setting(
        jobs=0, per_minute=CALLS_PER_MINUTE, latency_s=setting.vendor_s, give_up_s=GIVE_UP_S
    )
    with (
        tempfile.TemporaryDirectory(prefix="sluiceway-latency-") as folder,
        burst.place(
            vendor,
            true_per_minute=CALLS_PER_MINUTE,
            lanes=(),
        ) as here,
    ):
        Partner(here).warm()
        taken = floors(here.local.endpoint_url, Path(folder))
        since_ms = round(time.time() * 1000)
        partner = Partner(here)
        sent = _other_ways(partner)
        rates = list(_rising(partner, setting))  # it may end in a crowd
        traces = Traces(here, since_ms)
    carried = [rate for rate in rates if not rate.saturated]
    if not carried:
        raise NotMeasuredError("the emulator doesn't carry the lowest rate")
    added = {rate.offered_per_s: [traces.added_ms(seen) for seen in rate.seen] for rate in carried}
    parts = {rate.offered_per_s: traces.parts_ms(rate.seen) for rate in carried}
    return Found(tuple(rates), added, parts, _ways(sent, traces, added), taken)


def _rising(partner: Partner, setting: Setting) -> Iterable[Rate]:
    """Up to the first that is too much."""
    for per_s in setting.rates_per_s:
        rng = random.Random(f"{SEED} {per_s}")  # noqa: S311
        moments = arrivals_s(per_s, setting.for_s, rng)
        seen = send(
            (after_s, partial(partner.held, f"at {per_s:g} a second: {n}"))
            for n, after_s in enumerate(moments)
        )
        rate = rate_of(setting.for_s, setting.vendor_s, seen)
        yield rate
        if rate.saturated:
            return


HELD, POLLED, HIT, DUPLICATE = "held", "polled", "hit", "duplicate"


def _other_ways(partner: Partner) -> dict[str, list[Seen]]:
    rng = random.Random(SEED)  # noqa: S311
    moments = arrivals_s(WAY_PER_S, WAY_FOR_S, rng)
    polled = send(
        (after_s, partial(partner.polled, f"again {n}")) for n, after_s in enumerate(moments)
    )
    hits = send((after_s, partial(partner.held, f"again {n}")) for n, after_s in enumerate(moments))
    pairs = sorted(
        (after_s + late_s, n) for n, after_s in enumerate(moments[::2]) for late_s in (0, FOLLOWS_S)
    )
    both = send((after_s, partial(partner.held, f"pair {n}")) for after_s, n in pairs)
    return {POLLED: polled, HIT: hits, DUPLICATE: duplicates(both)}


def duplicates(seen: Sequence[Seen]) -> list[Seen]:
    """Of pairs with the same prompt, those that came upon the other's job.

    Raises NotMeasuredError when a pair went another way.
    """
    joined = [one for one in seen if _job(one).deduplicated]
    if len(seen) != 2 * len(joined) or len({_job(one).id for one in seen}) != len(joined):
        raise NotMeasuredError(f"{len(joined)} of {len(seen)} requests came upon another's job")
    return joined


def _ways(
    sent: Mapping[str, Sequence[Seen]],
    traces: Traces,
    added: Mapping[float, list[float]],
) -> dict[str, list[float]]:
    if not all(_job(seen).cache.status == "hit" for seen in sent[HIT]):
        raise NotMeasuredError("a repeated prompt was no hit")
    near = min(added, key=lambda per_s: abs(per_s - WAY_PER_S))
    return {
        f"{HELD}, at {near:g} a second": added[near],
        POLLED: [added_ms(seen, traces.vendor_s(_job(seen))) for seen in sent[POLLED]],
        DUPLICATE: [added_ms(seen, traces.vendor_s(_job(seen))) for seen in sent[DUPLICATE]],
        HIT: [added_ms(seen, None) for seen in sent[HIT]],
    }


# ------------------------------------------------------------------------------------ telling


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def rate_lines(found: Found) -> list[tuple[str, ...]]:
    """Nothing is told of what a saturated rate adds: it depends on for how long it lasts."""
    lines = []
    for rate in found.rates:
        told = {} if rate.saturated else percentiles(found.added[rate.offered_per_s])
        lines.append(
            (
                f"{rate.offered_per_s:g}",
                f"{rate.achieved_per_s:.1f}",
                str(len(rate.seen)),
                str(rate.errors),
                *(_ms(told.get(name)) for name in ("p50", "p95", "p99", "most")),
                "saturated" if rate.saturated else "",
            )
        )
    return lines


def part_lines(found: Found) -> list[tuple[str, ...]]:
    """Of the lowest and of the highest rate that the emulator carries."""
    lines = []
    for name, part in (*PARTS.items(), ("all", None)):
        floor = _floor(found, name)
        jobs = [[job[name] for job in _with_all(found.parts[at])] for at in _ends(found)]
        aws_ms = sum(AWS_MS.get(step, 0) for step in _steps(name))
        lines.append(
            (
                name,
                part.what if part else "",
                *(_ms(percentile(values, percent)) for values in jobs for percent in (50, 95)),
                *(_ms(percentile(floor, percent)) if floor else "-" for percent in (50, 95)),
                _ms(aws_ms) if aws_ms else "-",
            )
        )
    return lines


def _with_all(jobs: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    return [{**job, "all": sum(job.values())} for job in jobs]


def _ends(found: Found) -> list[float]:
    """The lowest and the highest rate that the emulator carries, which may be the same one."""
    return sorted({min(found.parts), max(found.parts)})


def _steps(name: str) -> tuple[str, ...]:
    if name == "all":
        return tuple(step for part in PARTS.values() for step in part.floor)
    return PARTS[name].floor


def _floor(found: Found, name: str) -> list[float]:
    steps = _steps(name)
    return summed(found.floors, steps) if steps else []


def parts_of(found: Found) -> list[report.Part]:
    """What people read."""
    ends = _ends(found)
    floor = percentile(_floor(found, "all"), 50)
    median = percentile(found.added[ends[0]], 50)
    quantiles = {at: percentiles(values) for at, values in found.added.items()}
    told = "".join(
        f"{rate.offered_per_s:g} requests a second are more than the emulator carries here."
        for rate in found.rates
        if rate.saturated
    )
    return [
        report.Table(
            "What a held request takes longer than the vendor, ms",
            ("offered a second", "achieved", "requests", "errors", "p50", "p95", "p99", "most", ""),
            rate_lines(found),
        ),
        told or "None of these rates is more than the emulator carries here.",
        report.Plot(
            "rates",
            "What is added at rising rates",
            "requests offered a second",
            "added, ms",
            _lines_of_plot(quantiles),
        ),
        report.Table(
            "Where it goes, ms",
            (
                *("part", "what"),
                *(f"{at:g}/s, {percent}" for at in ends for percent in ("p50", "p95")),
                *("emulator's floor, p50", "p95", "its AWS calls, assumed"),
            ),
            part_lines(found),
        ),
        (
            f"Of the median of {median:.0f} ms at {ends[0]:g} a second, the emulator's own steps "
            f"take {floor:.0f} ms when nothing else is at work."
        ),
        report.Bars(
            "parts",
            "Where it goes, the median of each part",
            "ms",
            tuple(PARTS),
            {
                **{
                    f"{at:g} a second": [
                        percentile([job[name] for job in found.parts[at]], 50) for name in PARTS
                    ]
                    for at in ends
                },
                "emulator's floor": [
                    percentile(_floor(found, name), 50) if PARTS[name].floor else 0.0
                    for name in PARTS
                ],
            },
        ),
        report.Table(
            "What a held request waits for the look that finds its job's end, computed",
            (f"the job takes, s, ±{JOBS_VARY:.0%}", "looks", "mean, ms", "most, ms"),
            look_lines(),
        ),
        report.Table(
            f"Other ways to a result, at {WAY_PER_S:g} a second, ms",
            ("way", "requests", "p50", "p95", "most"),
            [
                (
                    way,
                    str(len(values)),
                    *(_ms(percentiles(values)[name]) for name in ("p50", "p95", "most")),
                )
                for way, values in found.ways.items()
            ],
        ),
    ]


def _lines_of_plot(
    quantiles: Mapping[float, Mapping[str, float | None]],
) -> dict[str, list[tuple[float, float]]]:
    lines = {
        name: [(at, value) for at, told in quantiles.items() if (value := told[name]) is not None]
        for name in ("p50", "p95", "p99")
    }
    return {name: points for name, points in lines.items() if points}


def _figures(found: Found, setting: Setting) -> dict[str, Any]:
    return {
        "setting": asdict(setting),
        "rates": [
            {
                "offered_per_s": rate.offered_per_s,
                "achieved_per_s": rate.achieved_per_s,
                "requests": len(rate.seen),
                "errors": Counter(seen.error for seen in rate.seen if seen.error),
                "saturated": rate.saturated,
                "added_ms": None
                if rate.saturated
                else percentiles(found.added[rate.offered_per_s]),
                "parts_ms": None
                if rate.saturated
                else {
                    name: percentiles([job[name] for job in found.parts[rate.offered_per_s]])
                    for name in PARTS
                },
            }
            for rate in found.rates
        ],
        "ways_ms": {way: percentiles(values) for way, values in found.ways.items()},
        "floors_ms": {name: percentiles(values) for name, values in found.floors.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured, whatever the figures say."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--rate", type=float, action="append", help="requests a second; several, rising"
        )
        parser.add_argument("--for-s", type=float, default=FOR_S, help="of each rate")
        parser.add_argument("--vendor-s", type=float, default=0.3, help="that it takes for a call")

    given = report.options(__doc__, arguments, add=add)
    setting = Setting(tuple(given.rate or RATES_PER_S), given.for_s, given.vendor_s)
    rates_per_s = setting.rates_per_s
    rise = all(low < high for low, high in pairwise((0, *rates_per_s, math.inf)))
    if not (rise and given.for_s > 0):
        raise NotMeasuredError("rates rise from above 0, and each lasts for some seconds")
    found = measure(setting)
    report.tell(
        given,
        "added_latency",
        figures=_figures(found, setting),
        parts=parts_of(found),
    )
    return 0


if __name__ == "__main__":
    report.run(main)
