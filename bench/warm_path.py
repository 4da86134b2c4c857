"""What a warm event costs the processor: each path of the functions, beside its AWS calls alone.

The handlers run in this process as bootstrap.py wires them, with their adapters and botocore. Only
the network is taken away: each path runs once on moto, and from then on every request is answered
with what moto said then, below botocore's signing, serialising and parsing and below httpx's
client. The floor of a path is the same requests, made plainly with boto3 and httpx and with nothing
around them; both run in turns, and of several turns the quickest counts.
"""

import argparse
import cProfile
import gc
import io
import json
import os
import pstats
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from types import FrameType
from typing import Any

import boto3
import httpx
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_latencies import DynamoDBLatencies
from sluiceway.adapters.http_vendors import HttpVendors
from sluiceway.adapters.http_webhooks import HttpWebhooks
from sluiceway.adapters.secrets_manager import SecretsManagerKeys
from sluiceway.domain import api_key
from sluiceway.domain.timeouts import LEAST_SAMPLES
from sluiceway.ports import PartnerKey

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report
from bench.aws_calls import Context, function
from bench.report import NotMeasuredError

# Their types are of no use here, and mypy would have to be taught those of the emulator.
appconfig: Any = import_module("tests.fakes.appconfig")
template: Any = import_module("tests.template.calls")

EVENTS, TURNS = 60, 7
"""Of each path in one turn, and turns."""

WARM_UP = 30

SAMPLED_S = 1.5
"""Of each path, for the profile."""

SAMPLE_EVERY_S = 0.0005
LEAST_SHARE = 0.005
"""Of a path, that is shown."""

LARGE_SHARE = 0.1
"""That is worth a look."""

ALLOCATED = 20
"""Events whose memory is looked at."""

BATCH = 10
"""Records of the stream that the publisher is given at once, a webhook for each."""

PROMPT_CHARS, ANSWER_CHARS = 1000, 1000

MAX_ASIDE = 0.05
"""Of a path's requests, those that it makes only now and then."""

CALLBACK = "https://hooks.partner.example/sluiceway"
KEY = "swk_" + "B" * 43

CATALOGUE = f"""
[vendors.vendor]
protocol = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key_secret = "{template.SECRETS}vendor"

[models.demo-chat]
vendor = "vendor"
vendor_model = "sim-chat-1"
version = "1"
requests_per_minute = 600000
burst = 1000
price = {{ input_per_million = 3.0, output_per_million = 15.0 }}
"""

FLAGS = json.dumps(
    {
        name: {
            "default": True,
            "rules": {
                "off for some tenants": {
                    "when_match": False,
                    "conditions": [
                        {"action": "KEY_IN_VALUE", "key": "tenant", "value": ["globex"]}
                    ],
                }
            },
        }
        for name in ("submit", "webhooks")
    }
)
"""Both features that these paths look at, each off for somebody else."""

FUNCTIONS = ("authorize", "api", "run_job", "sweep_jobs", "publish_events", "deliver_webhook")


# ------------------------------------------------------------------------------------ network


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to AWS and its answer."""

    service: str
    operation: str
    params: Mapping[str, Any]
    """As the client's method takes them."""
    begins: bytes
    """The request's body to its first comma: of one to DynamoDB, with the table."""
    known_as: str
    """What the same request is known by when it is made at another time."""
    status: int
    headers: Mapping[str, str]
    body: bytes

    def is_like(self, operation: str, body: bytes) -> bool:
        """Whether it is this request, maybe about another row of the same table."""
        return operation == self.operation and body.startswith(self.begins)

    def answer(self, url: str) -> AWSResponse:
        """As botocore's HTTP session gives it."""
        headers: Any = self.headers
        return AWSResponse(url, self.status, headers, _Raw(self.body))


class _Raw(io.BytesIO):
    """As much of urllib3's response as botocore reads."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.getvalue()


class Recorder:
    """Keeps what the clients of a session ask and are answered."""

    def __init__(self, session: boto3.Session) -> None:
        """Hooks all clients that the session makes from here on."""
        self.exchanges: list[Exchange] = []
        self._params: Mapping[str, Any] = {}
        self._body = b""
        session.events.register("provide-client-params", self._asks)
        session.events.register("request-created", self._sends)
        session.events.register("response-received", self._hears)

    def _asks(self, params: Mapping[str, Any], **_: Any) -> None:
        self._params = deepcopy(params)

    def _sends(self, request: Any, **_: Any) -> None:
        self._body = _bytes(request.data)

    def _hears(self, event_name: str, response_dict: Mapping[str, Any], **_: Any) -> None:
        service, operation = event_name.split(".")[1:]
        self.exchanges.append(
            Exchange(
                _CLIENTS[service],
                operation,
                self._params,
                self._body.partition(b",")[0],
                _known_as(operation, self._body),
                response_dict["status_code"],
                {**response_dict["headers"]},
                response_dict["body"],
            )
        )


_CLIENTS = {
    "dynamodb": "dynamodb",
    "sqs": "sqs",
    "eventbridge": "events",
    "secrets-manager": "secretsmanager",
}
"""Clients by what botocore's events call their services."""


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _known_as(operation: str, body: bytes) -> str:
    said = json.loads(body)
    return f"{operation} {said.get('TableName', '')} {json.dumps(said.get('Key', ''))}"


class Network:
    """Answers all requests of a session's clients with what was recorded."""

    def __init__(self, session: boto3.Session) -> None:
        """Hooks all clients that the session makes from here on."""
        self._script: Sequence[Exchange] = ()
        self._at = 0
        self._aside: Mapping[str, Exchange] = {}
        self.asked = self.asked_aside = 0
        self.fault = ""
        events: Any = session.events
        events.register_first("before-send", self._send)

    def play(self, script: Sequence[Exchange], aside: Mapping[str, Exchange]) -> None:
        """Answers by `script`, over and over; `aside`: what may be asked at any time."""
        self._script, self._aside = script, aside
        self._at = self.asked = self.asked_aside = 0

    def check(self) -> None:
        """Raises NotMeasuredError when other requests came than those of the script."""
        if self.fault:
            raise NotMeasuredError(self.fault)
        if self._at % max(1, len(self._script)):
            raise NotMeasuredError("an event made fewer requests than the one that was recorded")
        if self.asked_aside > MAX_ASIDE * self.asked + len(self._aside):
            raise NotMeasuredError(f"{self.asked_aside} of {self.asked} requests were others")

    def _send(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        self.asked += 1
        operation, body = event_name.rpartition(".")[2], _bytes(request.body)
        if self._script:
            due = self._script[self._at % len(self._script)]
            if due.is_like(operation, body):
                self._at += 1
                return due.answer(request.url)
        self.asked_aside += 1
        known_as = _known_as(operation, body)
        # Or again, as by a submit that took so long that it looks into the cache once more.
        like = [one for one in self._script if one.is_like(operation, body)]
        found = self._aside.get(known_as) or next(iter(like), None)
        if found is None:
            self.fault = self.fault or f"an event asked {known_as}, which nobody recorded"
            raise NotMeasuredError(self.fault)
        return found.answer(request.url)


class Outside(httpx.AsyncBaseTransport):
    """The vendor and the partners' hosts: each answers at once, always the same."""

    ANSWER = json.dumps(
        {
            "id": "chatcmpl-0123456789",
            "object": "chat.completion",
            "created": 1767225600,
            "model": "sim-chat-1",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {
                        "role": "assistant",
                        "content": " ".join(sorted(topics)[:200])[:ANSWER_CHARS],
                    },
                }
            ],
            "usage": {"prompt_tokens": 250, "completion_tokens": 250, "total_tokens": 500},
        }
    ).encode()

    def __init__(self) -> None:
        """Keeps the last request."""
        self.last: httpx.Request | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        self.last = request
        return httpx.Response(
            200,
            headers={"content-type": "application/json", "x-request-id": "req_0123456789"},
            stream=httpx.ByteStream(self.ANSWER),
        )


# ------------------------------------------------------------------------------------ handlers


Event = dict[str, Any]


class Handlers:
    """The functions in this process, as their builders make them for one session."""

    def __init__(self, modules: Mapping[str, Any], outside: Outside) -> None:
        """`outside` takes the place of the internet."""
        self._modules = modules
        self.authorize_deps = bootstrap.authorize_deps.__wrapped__()
        self.api_deps = bootstrap.api_deps.__wrapped__()
        run = bootstrap.run_deps.__wrapped__()
        clock = bootstrap.SystemClock()
        secrets: Any = bootstrap.session().create_client("secretsmanager")
        vendors = HttpVendors(
            api_keys=SecretsManagerKeys(lambda: secrets, clock), clock=clock, transport=outside
        )
        worker = _with(run.worker, vendors=vendors)
        self.run_deps = bootstrap.RunDeps(worker, run.queue, run.lane_of_queue, run.telemetry)
        self.sweep_deps = bootstrap.sweep_deps.__wrapped__()
        self.publish_deps = bootstrap.publish_deps.__wrapped__()
        deliver = bootstrap.deliver_deps.__wrapped__()
        client = HttpWebhooks(local=False, resolve=_look_up, transport=outside)
        courier = _with(deliver.courier, webhook_client=client)
        self.deliver_deps = bootstrap.DeliverDeps(courier, deliver.webhooks, deliver.telemetry)
        self._closing = (vendors, client)

    def close(self) -> None:
        """Ends the event loops."""
        for client in self._closing:
            client.close()

    def __call__(self, name: str, event: Event) -> Any:
        """Runs a function's handler on an event."""
        module, context = self._modules[name], _CONTEXTS[name]
        match name:
            case "api":
                return module.handle(event, context, self.api_deps.now())
            case "authorize":
                return module.handle(event, context, self.authorize_deps)
            case "run_job":
                return module.handle(event, context, self.run_deps)
            case "sweep_jobs":
                return module.handle(event, context, self.sweep_deps)
            case "publish_events":
                return module.handle(event, context, self.publish_deps)
        return module.handle(event, context, self.deliver_deps)


_CONTEXTS = {name: Context(name) for name in FUNCTIONS}


def _with(make: Callable[[], Any], **members: Any) -> Callable[[], Any]:
    """`make`, whose results have other members: made anew only when `make` gives another."""
    latest: list[Any] = [None, None]

    def made() -> Any:
        given = make()
        if given is not latest[0]:
            kind = type(given)
            parts = {name: getattr(given, name) for name in kind.__annotations__}
            latest[:] = given, kind(**{**parts, **members})
        return latest[1]

    return made


async def _look_up(host: str, port: int) -> list[str]:
    """Any host's address; a look-up is the network's."""
    return ["93.184.215.14" if host and port else ""]


# ------------------------------------------------------------------------------------ paths


class Stack:
    """The tables and queues as the template has them, on moto, and the functions."""

    def __init__(self, handlers: Handlers, session: boto3.Session) -> None:
        """Inside moto's mock."""
        self.handlers = handlers
        self._dynamodb = session.client("dynamodb")
        self._sqs = session.client("sqs")
        self._serial = 0
        hashed = api_key.key_hash(KEY)
        handlers.authorize_deps.keys.add(
            PartnerKey(
                key_hash=hashed,
                key_id=api_key.key_id(hashed),
                tenant="acme",
                scopes=("submit", "read", "cancel"),
                created_at_epoch_s=int(time.time()),
            )
        )
        # Of a model that was called before: one call in ten gives a sample.
        latencies = DynamoDBLatencies(Table(self._dynamodb), "CoordinationTable")
        for _ in range(10 * LEAST_SAMPLES):
            now_ms = time.time_ns() // 1_000_000
            latencies.add("latency#vendor#sim-chat-1", 1_000, now_ms=now_ms, surely=True)

    def prompt(self) -> str:
        """A new one, in English."""
        self._serial += 1
        return prompt(self._serial)

    def submit(self, text: str, **members: Any) -> str:
        """The id of the job or hit."""
        answer = self.handlers("api", submission(text, **members))
        if answer["statusCode"] not in {200, 202}:
            raise NotMeasuredError(f"a submit was answered {answer['body']}")
        return str(json.loads(answer["body"])["id"])

    def run(self, job_id: str) -> None:
        """Runs a job that was submitted."""
        self.handlers("run_job", message(job_id))

    def row(self, job_id: str) -> dict[str, Any]:
        """The job's row as it is now."""
        key = {"tenant": {"S": "acme"}, "job_id": {"S": job_id}}
        row: dict[str, Any] = self._dynamodb.get_item(TableName="JobsTable", Key=key)["Item"]
        return row


@cache
def _prose() -> str:
    return " ".join(" ".join(topics[name].split()) for name in sorted(topics))


def prompt(serial: int) -> str:
    """Python's language reference, from somewhere on."""
    begins = serial * 37 % (len(_prose()) - PROMPT_CHARS)
    return f"{serial:012} {_prose()[begins : begins + PROMPT_CHARS]}"


def sample(name: str) -> Event:
    """One of events/, as the services send them."""
    event: Event = json.loads((report.ROOT / "events" / f"{name}.json").read_text("utf-8"))
    return event


def submission(text: str, **members: Any) -> Event:
    """A submit, as API Gateway hands it over."""
    body = {
        "model": "demo-chat",
        "input": {"messages": [{"role": "user", "content": text}]},
        "options": {"temperature": 0},
        "metadata": {"order": "1001"},
        **members,
    }
    return sample("api_submit") | {"body": json.dumps(body)}


def fetching(job_id: str) -> Event:
    """A job is asked for."""
    return sample("api_get_job") | {"path": f"/jobs/{job_id}"}


def message(job_id: str) -> Event:
    """A job's message in the interactive lane, sent just now."""
    event = sample("run_job")
    (record,) = event["Records"]
    record["body"] = json.dumps({"tenant": "acme", "job_id": job_id})
    record["attributes"]["SentTimestamp"] = str(time.time_ns() // 1_000_000)
    record["eventSourceARN"] = "arn:aws:sqs:us-east-1:123456789012:InteractiveQueue"
    return event


def fresh_submit(stack: Stack) -> Event:
    """Work that nobody asked for yet."""
    return submission(stack.prompt())


def duplicate(stack: Stack) -> Event:
    """Work whose job is open."""
    text = stack.prompt()
    stack.submit(text)
    return submission(text)


def hit(stack: Stack) -> Event:
    """Work whose result is in the cache."""
    text = stack.prompt()
    stack.run(stack.submit(text))
    return submission(text)


def get(stack: Stack) -> Event:
    """A partner fetches the result."""
    job_id = stack.submit(stack.prompt())
    stack.run(job_id)
    return fetching(job_id)


def poll(stack: Stack) -> Event:
    """A partner asks too early."""
    return fetching(stack.submit(stack.prompt()))


def run(stack: Stack) -> Event:
    """The first attempt succeeds."""
    return message(stack.submit(stack.prompt()))


def authorize(_: Stack) -> Event:
    """API Gateway doesn't know the key, or not any more."""
    event = sample("authorize")
    event["headers"]["Authorization"] = f"Bearer {KEY}"
    return event


def sweep(_: Stack) -> Event:
    """The minute's sweep, and nobody has asked for anything yet."""
    return {}


def publish(_: Stack) -> Event:
    """Jobs of one tenant have ended, each with a callback."""
    (record,) = sample("publish_events")["Records"]
    records = []
    for number in range(BATCH):
        job_id = {"S": f"job_01KDVT7V0000000000000000{number:02}"}
        told = deepcopy(record)
        for image in ("Keys", "NewImage", "OldImage"):
            told["dynamodb"][image]["job_id"] = job_id
        records.append(told)
    return {"Records": records}


def deliver(stack: Stack) -> Event:
    """A webhook arrives at the first attempt."""
    job_id = stack.submit(stack.prompt(), callback_url=CALLBACK)
    stack.run(job_id)
    event = sample("deliver_webhook")
    (record,) = event["Records"]
    body = json.loads(record["body"]) | {"job_id": job_id, "url": CALLBACK}
    record["body"] = json.dumps(body)
    return event


def _says(http_status: int, /, **members: Any) -> Callable[[Any], bool]:
    """Whether the API answered so."""

    def expected(answer: Any) -> bool:
        body = json.loads(answer["body"])
        return bool(answer["statusCode"] == http_status and members.items() <= body.items())

    return expected


def _kept_nothing(answer: Any) -> bool:
    return bool(answer == {"batchItemFailures": []})


@dataclass(frozen=True, slots=True)
class Way:
    """What one kind of event does."""

    name: str
    function: str
    prepare: Callable[[Stack], Event]
    """Brings the stack to where the path begins, and gives its event."""
    expected: Callable[[Any], bool]
    """Whether an answer of the handler is this path's."""
    another: Callable[[int], Event] | None = None
    """An event for each number, where each must be another; None: always the one."""


WAYS = (
    # The first one: those that follow leave jobs behind.
    Way("sweep, idle", "sweep_jobs", sweep, lambda answer: answer["sent"] == 0),
    Way(
        "submit, fresh",
        "api",
        fresh_submit,
        _says(202, status="queued", deduplicated=False),
        lambda number: submission(prompt(10**6 + number)),
    ),
    Way("submit, duplicate", "api", duplicate, _says(202, deduplicated=True)),
    Way("submit, hit", "api", hit, _says(200, status="completed")),
    Way("get, completed", "api", get, _says(200, status="completed")),
    Way("get, queued", "api", poll, _says(200, status="queued")),
    Way("run", "run_job", run, _kept_nothing),
    Way("authorize", "authorize", authorize, lambda answer: answer["principalId"] == "acme"),
    Way(f"publish {BATCH}", "publish_events", publish, lambda answer: answer is None),
    Way("deliver", "deliver_webhook", deliver, _kept_nothing),
)

_ASIDE = ('"state"', '"backlog"', '"latency#', "GetSecretValue")
"""Requests that belong to no one event: copies in the process grow old, one call in some gives a
sample of its time."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A path as it went on moto."""

    way: Way
    event: Event
    script: tuple[Exchange, ...]
    outside: httpx.Request | None
    """To the vendor or to a partner's host."""

    def events(self, count: int) -> list[Event]:
        """Events that go this way."""
        if self.way.another is None:
            return [self.event] * count
        return [self.way.another(number) for number in range(count)]


def fresh_session(**credentials: str) -> boto3.Session:
    """A session that the functions' builders will use."""
    bootstrap.session.cache_clear()
    return boto3.Session(
        botocore_session=bootstrap.session(), region_name="us-east-1", **credentials
    )


def record(
    ways: Sequence[Way], modules: Mapping[str, Any]
) -> tuple[list[Recorded], dict[str, Exchange], dict[str, str]]:
    """Each path as it goes, what is asked aside, and the environment of the functions."""
    found = []
    with mock_aws():
        session = fresh_session()
        environment = template.make_resources(session, "dynamodb")
        os.environ.update(environment)
        appconfig.FakeAppConfig(session, catalogue=CATALOGUE, flags=FLAGS)
        outside = Outside()
        recorder = Recorder(session)
        stack = Stack(Handlers(modules, outside), session)
        for way in ways:
            for _ in range(2):  # what is asked only once, the first one asks
                event = way.prepare(stack)
                begins, outside.last = len(recorder.exchanges), None
                _expect(way, stack.handlers(way.function, event))
            script = tuple(one for one in recorder.exchanges[begins:] if not _is_aside(one))
            found.append(Recorded(way, event, script, outside.last))
        stack.handlers.close()
    aside = {one.known_as: one for one in recorder.exchanges if _is_aside(one)}
    return found, aside, environment


def _is_aside(exchange: Exchange) -> bool:
    return any(mark in exchange.known_as for mark in _ASIDE)


def _expect(way: Way, answer: Any) -> None:
    if not way.expected(answer):
        raise NotMeasuredError(f"{way.name}: the answer was {answer!r}")


# ------------------------------------------------------------------------------------ measuring


class Bench:
    """The functions and their floor, on one network that isn't there."""

    def __init__(self, modules: Mapping[str, Any], aside: Mapping[str, Exchange]) -> None:
        """Outside moto's mock, in the environment of the functions."""
        session = fresh_session(
            aws_access_key_id="bench",
            aws_secret_access_key="bench",  # noqa: S106 - nobody checks it
            aws_session_token="bench",  # noqa: S106
        )
        appconfig.FakeAppConfig(session, catalogue=CATALOGUE, flags=FLAGS)
        self._aside = aside
        self._network = Network(session)
        self._handlers = Handlers(modules, Outside())
        make: Any = session.client
        self._clients = {service: make(service) for service in _CLIENTS.values()}
        self._outside = httpx.Client(transport=_AtOnce(), trust_env=False)

    def close(self) -> None:
        """Ends the event loops."""
        self._handlers.close()

    def handle(self, recorded: Recorded, events: Sequence[Event]) -> list[Any]:
        """The handler's answers to the events, which went as they were recorded."""
        way, network, handlers = recorded.way, self._network, self._handlers
        network.play(recorded.script, self._aside)
        answers = [handlers(way.function, event) for event in events]
        network.check()
        return answers

    def floor(self, recorded: Recorded, count: int) -> None:
        """As many times the path's requests, and nothing else."""
        calls = [
            (getattr(self._clients[one.service], _method(one.operation)), one.params)
            for one in recorded.script
        ]
        request = recorded.outside
        self._network.play(recorded.script, self._aside)
        for _ in range(count):
            for call, params in calls:
                try:
                    call(**params)
                except ClientError:  # a refusal, as it was recorded
                    continue
            if request is not None:
                self._outside.post(
                    str(request.url), content=request.content, headers={**request.headers}
                )
        self._network.check()


@cache
def _method(operation: str) -> str:
    return xform_name(operation)


class _AtOnce(httpx.BaseTransport):
    """As Outside, for the floor."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        del request
        return httpx.Response(200, stream=httpx.ByteStream(Outside.ANSWER))


@dataclass(slots=True)
class Figures:
    """What was found of one path, for one event."""

    name: str
    function: str
    requests: int
    """To AWS."""
    cpu_us: float = float("inf")
    floor_us: float = float("inf")
    peak_bytes: int = 0
    """Of memory that is held at once, over what the process held before."""
    kept_blocks: float = 0.0
    """Of memory, that are still there afterwards: 0, or the process grows."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the path's time, by what it is spent on."""

    @property
    def ratio(self) -> float:
        """Of the path to its requests alone."""
        return self.cpu_us / self.floor_us


def _cpu_us(work: Callable[[], object], count: int) -> float:
    """CPU time of all threads, for one of `count` events."""
    gc.collect()
    begun_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - begun_ns) / 1000 / count


def measure(
    bench: Bench, recorded: Sequence[Recorded], *, events: int, turns: int
) -> list[Figures]:
    """CPU time of each path and of its floor, in turns."""
    found = [Figures(one.way.name, one.way.function, len(one.script)) for one in recorded]
    for one in recorded:
        for answer in bench.handle(one, one.events(WARM_UP)):
            _expect(one.way, answer)
        bench.floor(one, WARM_UP)
    gc.collect()
    gc.freeze()  # moto's objects are none of a function's, and each collection would look at them
    for _ in range(turns):
        for one, figures in zip(recorded, found, strict=True):
            given = one.events(events)
            taken_us = _cpu_us(lambda one=one, given=given: bench.handle(one, given), events)  # type: ignore[misc]
            floor_us = _cpu_us(lambda one=one: bench.floor(one, events), events)  # type: ignore[misc]
            figures.cpu_us = min(figures.cpu_us, taken_us)
            figures.floor_us = min(figures.floor_us, floor_us)
    return found


def weigh(bench: Bench, recorded: Recorded, figures: Figures) -> None:
    """Memory of one event: the median of several, one at a time."""
    peaks = []
    tracemalloc.start()
    for event in recorded.events(ALLOCATED):
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        bench.handle(recorded, [event])
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    figures.peak_bytes = sorted(peaks)[len(peaks) // 2]
    events = recorded.events(EVENTS)
    gc.collect()
    blocks = sys.getallocatedblocks()
    bench.handle(recorded, events)
    gc.collect()
    figures.kept_blocks = (sys.getallocatedblocks() - blocks) / EVENTS


# ------------------------------------------------------------------------------------ profile


GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("bench/warm_path.py",)),
    ("AWS: signing", ("botocore/auth.py", "botocore/signers.py", "botocore/credentials.py")),
    ("AWS: validating parameters", ("botocore/validate.py",)),
    ("AWS: serialising", ("botocore/serialize.py",)),
    ("AWS: parsing", ("botocore/parsers.py",)),
    ("AWS: endpoint and region", ("botocore/endpoint_provider.py", "botocore/regions.py")),
    ("AWS: the rest of botocore", ("botocore/", "urllib3/", "boto3/")),
    ("HTTP to others (httpx, asyncio)", ("/httpx/", "/httpcore/", "/asyncio/", "http_outbound.py")),
    ("log lines", ("aws_lambda_powertools/logging/", "sluiceway/telemetry.py")),
    ("metrics", ("aws_lambda_powertools/metrics/",)),
    (
        "routing",
        ("powertools/event_handler/", "utilities/data_classes/", "routes/table.py"),
    ),
    ("flags", ("utilities/feature_flags/",)),
    ("configuration", ("utilities/parameters/", "adapters/appconfig.py")),
    ("validation", ("/pydantic", "domain/request.py")),
    ("strict JSON", ("domain/strict_json.py",)),
    ("keys", ("domain/keys.py", "rfc8785")),
    ("replies", ("sluiceway/http.py", "routes/request.py")),
    ("compression", ("domain/payload.py",)),
    ("rows", ("adapters/dynamodb.py", "adapters/dynamodb_jobs.py")),
    ("adapters, the rest", ("sluiceway/adapters/",)),
    ("domain", ("sluiceway/domain/",)),
    ("use cases", ("sluiceway/usecases/",)),
    ("functions and routes", ("core/sluiceway/", "/app.py")),
)
"""What time is spent on, by the innermost file that is one of these; "" isn't counted."""


@cache
def _group_of(file: str) -> str | None:
    for name, parts in GROUPS:
        if any(part in file for part in parts):
            return name
    return None


class Sampler:
    """Looks again and again at what the main thread does, without slowing single calls."""

    def __init__(self) -> None:
        """Use it within `running`."""
        self.stacks: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples all that is done inside."""
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, SAMPLE_EVERY_S, SAMPLE_EVERY_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _look(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            group = _group_of(frame.f_code.co_filename)
            if group is not None:
                self.stacks[group] += 1
                return
            frame = frame.f_back

    def shares(self) -> dict[str, float]:
        """Of each group, without what isn't counted."""
        counted = {name: count for name, count in self.stacks.items() if name}
        total = sum(counted.values())
        return {name: count / total for name, count in counted.items()}


def profile(bench: Bench, recorded: Recorded, figures: Figures, *, for_s: float) -> None:
    """What the path's time is spent on."""
    sampler = Sampler()
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        events = recorded.events(EVENTS)
        with sampler.running():
            bench.handle(recorded, events)
    figures.shares = sampler.shares()


def full_profile(bench: Bench, recorded: Recorded) -> str:
    """Every function of the path, for a developer: those that take the most themselves first."""
    profiler = cProfile.Profile()
    events = recorded.events(10 * EVENTS)
    bench.handle(recorded, events[:WARM_UP])
    profiler.enable()
    bench.handle(recorded, events)
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(60)
    pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(120)
    return text.getvalue()


# ------------------------------------------------------------------------------------ telling


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and tells."""
    given = _options(arguments)
    os.environ.update(
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="bench",  # noqa: S106
        POWERTOOLS_SERVICE_NAME="sluiceway",
        POWERTOOLS_METRICS_NAMESPACE="Sluiceway",
        POWERTOOLS_LOG_LEVEL="INFO",
    )
    os.environ.pop("_X_AMZN_TRACE_ID", None)
    ways = [way for way in WAYS if given.profile in {None, way.name}]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        modules = {name: function(name) for name in FUNCTIONS}
        recorded, aside, environment = record(ways, modules)
        os.environ.update(environment)
        bench = Bench(modules, aside)
        try:
            if given.profile:
                text = full_profile(bench, recorded[0])
            else:
                found = measure(bench, recorded, events=given.events, turns=given.turns)
                for one, figures in zip(recorded, found, strict=True):
                    weigh(bench, one, figures)
                    profile(bench, one, figures, for_s=given.sampled_s)
        finally:
            bench.close()
    if given.profile:
        print(text)
        return 0
    _tell(given, found)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    def add(parser: argparse.ArgumentParser) -> None:
        names = [way.name for way in WAYS]
        parser.add_argument(
            "--profile",
            choices=names,
            metavar="PATH",
            help=f"print one path's functions by their time instead: {'; '.join(names)}",
        )
        parser.add_argument("--events", type=int, default=EVENTS, help="of each path in a turn")
        parser.add_argument("--turns", type=int, default=TURNS)
        parser.add_argument("--sampled-s", type=float, default=SAMPLED_S, help="of each path")

    return report.options(__doc__, arguments, add=add)


def _tell(given: argparse.Namespace, found: Sequence[Figures]) -> None:
    report.tell(
        given,
        "warm_path",
        figures={
            "events": given.events,
            "turns": given.turns,
            "paths": [asdict(one) | {"ratio": one.ratio} for one in found],
        },
        parts=[
            report.Table("What an event costs", *_costs(found)),
            report.Bars(
                "cpu",
                "CPU time of a warm event",
                "CPU time, ms",
                [one.name for one in found],
                {
                    "the function": [round(one.cpu_us / 1000, 3) for one in found],
                    "its requests alone": [round(one.floor_us / 1000, 3) for one in found],
                },
            ),
            report.Table("What the time is spent on, in percent", *_spent(found)),
            large_items(found),
        ],
        also=("boto3", "pydantic", "aws-lambda-powertools"),
    )


def _costs(found: Sequence[Figures]) -> tuple[list[str], list[list[str]]]:
    head = ["path", "AWS calls", "CPU, µs", "floor, µs", "ratio", "peak, KB", "blocks kept"]
    return head, [
        [
            one.name,
            str(one.requests),
            f"{one.cpu_us:,.0f}",
            f"{one.floor_us:,.0f}",
            f"{one.ratio:.2f}",
            f"{one.peak_bytes / 1024:,.0f}",
            f"{one.kept_blocks:.1f}",
        ]
        for one in found
    ]


def _spent(found: Sequence[Figures]) -> tuple[list[str], list[list[str]]]:
    lines = [
        [group, *(_percent(one.shares.get(group, 0.0)) for one in found)]
        for group in dict.fromkeys(name for name, _ in GROUPS)
        if any(one.shares.get(group, 0.0) >= LEAST_SHARE for one in found)
    ]
    return ["", *(one.name for one in found)], lines


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= LEAST_SHARE else "-"


def large_items(found: Sequence[Figures]) -> str:
    """What isn't botocore's or httpx's and takes a tenth of a path, or the most of any."""
    own = [
        (share, f"{group} ({share:.0%} of “{one.name}”)")
        for one in found
        for group, share in one.shares.items()
        if not group.startswith(("AWS", "HTTP"))
    ]
    large = [told for share, told in sorted(own, reverse=True) if share >= LARGE_SHARE]
    if large:
        return f"Own items of a tenth or more: {', '.join(large)}."
    return f"No own item takes a tenth of a path; the largest is {max(own)[1]}."


if __name__ == "__main__":
    report.run(main)
