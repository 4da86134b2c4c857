"""Measure the start of each function, from what `make build` made, beside two floors.

A fresh interpreter of the template's Python imports the function and answers its first event. AWS
is a recording: the event is answered once by the emulator with template.yaml deployed, and then
each start gets the same answers again from this process, at once. So what is measured is the
function's own work, and the calls that it makes cost no more than a loopback connection.

The floors are a function with boto3 and one DynamoDB client that reads one item, the same with
Powertools' Logger and a pydantic model, and that with one call by httpx. They run in the same
rounds, with the same layer.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
from sluiceway_local import emulator, processes, pythons
from sluiceway_local.state import LocalStack

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import aws_calls, report

BUILD = report.ROOT / ".aws-sam" / "build"
LAYER = BUILD / "CoreLayer" / "python"
PYTHON = "3.13"
"""The template's."""

ROUNDS = 12
"""Each starts every function once, and the floors."""

IMPORT_ROUNDS = 3

FUNCTIONS = {
    "authorize": "AuthorizeFunction",
    "api": "ApiFunction",
    "run_job": "RunJobFunction",
    "sweep_jobs": "SweepJobsFunction",
    "publish_events": "PublishEventsFunction",
    "deliver_webhook": "DeliverWebhookFunction",
    "invalidate_cache": "InvalidateCacheFunction",
    "check_catalogue": "CheckCatalogueFunction",
}
EVENTS = {
    "authorize": "a good key",
    "api": "a submit",
    "run_job": "a job",
    "sweep_jobs": "a sweep with nothing due",
    "publish_events": "a job's end",
    "deliver_webhook": "a webhook",
    "invalidate_cache": "a model's entries",
    "check_catalogue": "a catalogue",
}

GOALS = {"authorize": 1.15, "api": 1.3, "run_job": 1.3}
"""Times the second floor."""

TRACED = "api, traced"
"""As `api`, when X-Ray samples the request: the tracer is imported then."""

SAMPLED = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled={}"

FLOORS = {
    "floor: boto3": """
import os
import boto3
client = boto3.client("dynamodb")
def handler(event, context):
    return client.get_item(TableName=os.environ["PARTNERS_TABLE"], Key={"key_hash": {"S": "1"}})
""",
    "floor: boto3, Logger, pydantic": """
import os
import boto3
from aws_lambda_powertools import Logger
from pydantic import BaseModel
class Event(BaseModel):
    name: str
logger = Logger(service="floor")
client = boto3.client("dynamodb")
def handler(event, context):
    logger.info(Event.model_validate({"name": "floor"}).name)
    return client.get_item(TableName=os.environ["PARTNERS_TABLE"], Key={"key_hash": {"S": "1"}})
""",
    "floor: boto3, Logger, pydantic, httpx": """
import asyncio
import os
import boto3
import httpx
from aws_lambda_powertools import Logger
from pydantic import BaseModel
class Event(BaseModel):
    name: str
logger = Logger(service="floor")
client = boto3.client("dynamodb")
async def call(url):
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(url)).status_code
def handler(event, context):
    logger.info(Event.model_validate({"name": "floor"}).name)
    client.get_item(TableName=os.environ["PARTNERS_TABLE"], Key={"key_hash": {"S": "1"}})
    return asyncio.run(call(event["url"]))
""",
}
BARE, FLOOR, CALLING = FLOORS
FLOOR_EVENTS = {BARE: "one read", FLOOR: "one read", CALLING: "one read and one call"}

RUNNER = """
import time
began, cpu_began = time.perf_counter(), time.process_time()
import json, sys
class Context:
    aws_request_id = "6f0c8a2e-0000-4000-8000-000000000000"
    function_name = "function"
    function_version = "1"
    memory_limit_in_mb = 512
    invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:function"
    def get_remaining_time_in_millis(self):
        return 100_000
with open(sys.argv[1]) as file:
    event = json.load(file)
prepared, cpu_prepared = time.perf_counter(), time.process_time()
import app
imported, cpu_imported = time.perf_counter(), time.process_time()
answer = app.handler(event, Context())
ended, cpu_ended = time.perf_counter(), time.process_time()
print(json.dumps({
    "import_ms": (imported - prepared) * 1000, "event_ms": (ended - imported) * 1000,
    "cpu_ms": (cpu_ended - cpu_prepared) * 1000, "answer": answer,
}, default=str), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One of AWS's, as it came."""

    request: str
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass
class Recording:
    """AWS for one function: answers are taken from the emulator once, and given again."""

    endpoint_url: str
    answers: list[Answer] = field(default_factory=list)
    given: int = 0
    whole: bool = False
    faults: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The recorded answer to the next request, which must be the one that was recorded."""
        request = f"{method} {headers.get('x-amz-target') or urlsplit(path).path}"
        if not self.whole:
            self.answers.append(self._ask(request, method, path, headers, body))
            return self.answers[-1]
        told = self.answers[self.given] if self.given < len(self.answers) else None
        self.given += 1
        if told is None or told.request != request:
            self.faults.append(f"{request} came instead of {told.request if told else 'nothing'}")
            return Answer(request, 500, (), b"")
        return told

    def _ask(
        self, request: str, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        connection = HTTPConnection(urlsplit(self.endpoint_url).netloc, timeout=60)
        sent = {name: value for name, value in headers.items() if name.lower() != "connection"}
        connection.request(method, path, body, sent)
        got = connection.getresponse()
        content = got.read()
        connection.close()
        left_out = {"connection", "content-length", "transfer-encoding", "keep-alive"}
        kept = [(name, value) for name, value in got.getheaders() if name.lower() not in left_out]
        return Answer(request, got.status, kept, content)


class _Aws(BaseHTTPRequestHandler):
    """Answers as the recording of the server says."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: else each answer waits 40 ms for the other's ack
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        recording: Recording = self.server.recording  # type: ignore[attr-defined]
        headers = {name.lower(): value for name, value in self.headers.items()}
        told = recording.answer(self.command, self.path, headers, self.rfile.read(length))
        self.send_response_only(told.status)
        for name, value in told.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(told.body)))
        self.end_headers()
        self.wfile.write(told.body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - its names

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Sink(BaseHTTPRequestHandler):
    """Where a webhook goes, and a floor's call."""

    def _take(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(204)
        self.end_headers()

    do_GET = do_POST = _take  # noqa: N815 - its names

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """A server on a free port of the loopback interface, in threads."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def python() -> str:
    """An interpreter of the template's version. Raises NotMeasuredError."""
    found = pythons.find(PYTHON)
    if found is None:
        raise report.NotMeasuredError(f"no Python {PYTHON} found")
    return found


# ------------------------------------------------------------------------------------ starts


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a function."""

    import_ms: float
    event_ms: float
    cpu_ms: float
    answer: Any

    @property
    def all_ms(self) -> float:
        """Import and first event."""
        return self.import_ms + self.event_ms


@dataclass
class Starter:
    """Starts functions in processes of their own."""

    python: str
    folder: Path
    aws: ThreadingHTTPServer
    environments: Mapping[str, Mapping[str, str]]
    recordings: dict[str, Recording] = field(default_factory=dict)

    def start(self, name: str, *options: str, out: Path | None = None) -> Start:
        """Raises NotMeasuredError when the function doesn't end well."""
        recording = self.recordings[name]
        recording.given = 0
        self.aws.recording = recording  # type: ignore[attr-defined]
        code = self.folder / _folder(name) if name in FLOORS else BUILD / FUNCTIONS[_plain(name)]
        port = self.aws.server_address[1]
        done = subprocess.run(  # noqa: S603 - our own code
            [
                *(self.python, "-S", "-P", "-B", *options),
                *(
                    str(self.folder / "runner.py"),
                    str(self.folder / f"{_folder(_plain(name))}.json"),
                ),
            ],
            env={
                "PATH": os.defpath,
                "PYTHONPATH": f"{code}:{LAYER}",
                "AWS_DEFAULT_REGION": processes.REGION,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_LAMBDA_FUNCTION_NAME": "function",
                "LAMBDA_TASK_ROOT": str(code),
                **self.environments["authorize" if name in FLOORS else _plain(name)],
                "_X_AMZN_TRACE_ID": SAMPLED.format(int(name == TRACED)),
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if out is not None:
            out.write_text(done.stderr)
        if done.returncode or recording.faults:
            fault = "; ".join(recording.faults) or done.stderr[-2000:]
            raise report.NotMeasuredError(f"{name}: {fault}")
        return Start(**json.loads(done.stderr.splitlines()[-1]))

    def record(self, name: str, endpoint_url: str, good: Callable[[Any], bool]) -> None:
        """Answers the event by the emulator, and keeps what AWS said."""
        recording = self.recordings[name] = Recording(endpoint_url)
        answer = self.start(name).answer
        if not good(answer):
            raise report.NotMeasuredError(f"{name} answered {json.dumps(answer)[:500]}")
        recording.whole = True


def _folder(name: str) -> str:
    """A colon would end an entry of the path."""
    return name.replace(":", "").replace(" ", "-")


def _plain(name: str) -> str:
    return "api" if name == TRACED else name


GOOD: dict[str, Callable[[Any], bool]] = {
    "authorize": lambda told: told["policyDocument"]["Statement"][0]["Effect"] == "Allow",
    "api": lambda told: told["statusCode"] == 202,  # noqa: PLR2004
    "run_job": lambda told: told == {"batchItemFailures": []},
    "sweep_jobs": lambda told: set(told.values()) == {0},
    "publish_events": lambda told: told is None,
    "deliver_webhook": lambda told: told == {"batchItemFailures": []},
    "invalidate_cache": lambda told: told is None,
    "check_catalogue": lambda told: told is None,
}


def events_of(gateway: aws_calls.Gateway, local: LocalStack, sink: str) -> dict[str, Any]:
    """The first event of each function, for the stack as it is."""
    samples = {
        path.stem: json.loads(path.read_text()) for path in (report.ROOT / "events").glob("*.json")
    }
    job_id = gateway.submit("cold start: run this")
    authorize = samples["authorize"]
    authorize["headers"]["Authorization"] = f"Bearer {local.partners['acme']}"
    samples["invalidate_cache"]["detail"] = {"model": "own"}
    return {
        **{name: samples[name] for name in ("publish_events", "check_catalogue")},
        "authorize": authorize,
        "api": aws_calls.api_event(
            "POST", "/jobs", "acme", json.dumps({"model": "own", "input": "cold start: submit"})
        ),
        "run_job": {"Records": [gateway.receive(job_id)]},
        "sweep_jobs": {},
        "invalidate_cache": samples["invalidate_cache"],
        "deliver_webhook": {"Records": [_webhook(local, sink)]},
    }


def _webhook(local: LocalStack, sink: str) -> dict[str, Any]:
    """The message of a test of a webhook that goes to the sink."""
    headers = {"Authorization": f"Bearer {local.partners['acme']}"}
    with httpx.Client(base_url=local.api_url, headers=headers, timeout=60) as client:
        made = client.post("/webhooks", json={"url": sink})
        client.post(f"/webhooks/{made.json()['id']}/test").raise_for_status()
    url = local.outputs["WebhookQueueUrl"]
    sqs = emulator.client("sqs", local.endpoint_url)
    told = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=10, MessageSystemAttributeNames=["All"]
    )
    return aws_calls.record_of(told["Messages"][0], url)


def measure(starter: Starter) -> dict[str, list[Start]]:
    """The starts of each round, floors and functions in turn."""
    names = [*FLOORS, *FUNCTIONS, TRACED]
    for name in names:  # what the machine keeps of files is there in each round
        starter.start(name)
    return {
        name: list(starts)
        for name, starts in zip(
            names,
            zip(*([starter.start(name) for name in names] for _ in range(ROUNDS)), strict=True),
            strict=True,
        )
    }


# ------------------------------------------------------------------------------------ dependencies


def distributions() -> dict[str, list[Path]]:
    """What the layer carries: the files of each distribution, and of the library itself."""
    found: dict[str, list[Path]] = {}
    for told in LAYER.glob("*.dist-info/RECORD"):
        name = told.parent.name.partition("-")[0].lower().replace("_", "-")
        files = [LAYER / line.split(",")[0] for line in told.read_text().splitlines()]
        found[name] = [path for path in files if path.is_file()]
        packages = {
            path.relative_to(LAYER).parts[0] for path in found[name] if ".." not in str(path)
        }
        found[name] += [
            cached
            for package in packages
            for cached in (LAYER / package).rglob("*.pyc")
            if not package.endswith(".dist-info")
        ]
        found[name] = sorted(set(found[name]))
    found["sluiceway"] = [path for path in (LAYER / "sluiceway").rglob("*") if path.is_file()]
    return found


def sizes(files: Sequence[Path], folder: Path) -> tuple[int, int]:
    """Bytes as they are and in a zip archive."""
    archive = folder / "size.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in files:
            zipped.write(path, path.relative_to(LAYER))
    return sum(path.stat().st_size for path in files), archive.stat().st_size


def import_times(starter: Starter, name: str, owner: Mapping[str, str]) -> Counter[str]:
    """Milliseconds of imports in a start, by distribution; the shortest of some starts.

    Told by `-X importtime`, which itself costs some time at each module.
    """
    best: dict[str, float] = {}
    for _ in range(IMPORT_ROUNDS):
        out = starter.folder / "imports.txt"
        starter.start(name, "-X", "importtime", out=out)
        for self_us, module in re.findall(
            r"^import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)$", out.read_text(), re.MULTILINE
        ):
            best[module] = min(best.get(module, 1e9), int(self_us) / 1000)
    told: Counter[str] = Counter()
    for module, took_ms in best.items():
        told[owner.get(module.partition(".")[0], "Python itself")] += took_ms  # type: ignore[assignment]
    return told


def dependencies(starter: Starter) -> list[dict[str, Any]]:
    """Of each distribution in the layer: its size, and what its imports cost."""
    found = distributions()
    owner = {
        path.relative_to(LAYER).parts[0].removesuffix(".py").partition(".")[0]: name
        for name, files in found.items()
        for path in files
        if ".." not in path.parts and not path.relative_to(LAYER).parts[0].endswith(".dist-info")
    }
    times = {name: import_times(starter, name, owner) for name in ("api", "run_job", "authorize")}
    rows = []
    for name in [*found, "Python itself"]:
        unzipped, zipped = sizes(found.get(name, []), starter.folder)
        rows.append(
            {
                "distribution": name,
                "bytes": unzipped,
                "zipped_bytes": zipped,
                "import_ms": {function: round(told[name], 2) for function, told in times.items()},
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])


# ------------------------------------------------------------------------------------ report


def ratio(found: Mapping[str, Sequence[Start]], name: str, floor: str) -> float:
    """Of a start to the floor's of the same round, in the middle."""
    return median(
        one.all_ms / other.all_ms for one, other in zip(found[name], found[floor], strict=True)
    )


def start_table(found: Mapping[str, Sequence[Start]]) -> report.Table:
    """Head and lines."""
    head = [
        *("function", "first event", "import, ms", "event, ms", "all, ms", "CPU, ms"),
        *("of the first floor", "of the second floor", "goal", "of the third floor"),
    ]
    lines = []
    for name, starts in found.items():
        lines.append(
            [
                name,
                FLOOR_EVENTS.get(name) or EVENTS[_plain(name)],
                *(
                    f"{median(getattr(one, part) for one in starts):.0f}"
                    for part in ("import_ms", "event_ms", "all_ms", "cpu_ms")
                ),
                f"{ratio(found, name, BARE):.2f}",
                f"{ratio(found, name, FLOOR):.2f}",
                f"{GOALS[name]:.2f}" if name in GOALS else "-",
                f"{ratio(found, name, CALLING):.2f}",
            ]
        )
    return report.Table("Starts", head, lines)


def dependency_table(rows: Sequence[Mapping[str, Any]]) -> report.Table:
    """Head and lines."""
    functions = list(rows[0]["import_ms"])
    head = [
        *("what", "MB", "MB zipped"),
        *(f"imports in a start of {name}, ms" for name in functions),
    ]

    def line(name: str, counted: Sequence[Mapping[str, Any]]) -> list[str]:
        return [
            name,
            f"{sum(row['bytes'] for row in counted) / 1e6:.2f}",
            f"{sum(row['zipped_bytes'] for row in counted) / 1e6:.2f}",
            *(f"{sum(row['import_ms'][one] for row in counted):.1f}" for one in functions),
        ]

    return report.Table(
        "What the layer carries",
        head,
        [*(line(row["distribution"], [row]) for row in rows), line("all", rows)],
    )


def bars(found: Mapping[str, Sequence[Start]]) -> report.Bars:
    """Import and first event of each."""
    return report.Bars(
        "starts",
        "A start: import and first event",
        "ms, median",
        [name.replace("floor: ", "") for name in found],
        {
            label: [median(getattr(one, part) for one in starts) for starts in found.values()]
            for label, part in (("import", "import_ms"), ("first event", "event_ms"))
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured, whatever the goals say."""
    given = report.options(__doc__, arguments)
    interpreter = python()
    if not (BUILD / "template.yaml").exists():
        raise report.NotMeasuredError("nothing is built; run make build (it needs Python 3.13)")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sluiceway-bench-")))
        aws = ends.enter_context(serving(_Aws))
        sink = ends.enter_context(serving(Sink))
        (folder / "runner.py").write_text(RUNNER)
        for name, code in FLOORS.items():
            (folder / _folder(name)).mkdir()
            (folder / _folder(name) / "app.py").write_text(code)
            url = {"url": f"http://127.0.0.1:{sink.server_address[1]}/"}
            (folder / f"{_folder(name)}.json").write_text(json.dumps(url))
        gateway = ends.enter_context(aws_calls.gateway_on_local_stack())
        local = gateway.local
        starter = Starter(interpreter, folder, aws, environments(local))
        sink_url = f"http://127.0.0.1:{sink.server_address[1]}/"
        for name, event in events_of(gateway, local, sink_url).items():
            (folder / f"{name}.json").write_text(json.dumps(event))
        for name in (*FLOORS, *FUNCTIONS, TRACED):
            good = GOOD.get(_plain(name), lambda _: True)
            if name == TRACED:  # the same work again would find the job of the first
                starter.recordings[name] = starter.recordings["api"]
                continue
            starter.record(name, local.endpoint_url, good)
        found = measure(starter)
        rows = dependencies(starter)
    report.tell(
        given,
        "cold_start",
        figures={
            "rounds": ROUNDS,
            "python": PYTHON,
            "starts": {
                name: [
                    {"import_ms": one.import_ms, "event_ms": one.event_ms, "cpu_ms": one.cpu_ms}
                    for one in starts
                ]
                for name, starts in found.items()
            },
            "aws_calls": {
                name: [answer.request for answer in recording.answers]
                for name, recording in starter.recordings.items()
            },
            "dependencies": rows,
        },
        parts=[start_table(found), bars(found), dependency_table(rows)],
    )
    return 0


def environments(local: LocalStack) -> dict[str, dict[str, str]]:
    """The variables of each deployed function; metrics and logs are written as on Lambda."""
    deployed = emulator.client("lambda", local.endpoint_url).list_functions()["Functions"]
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for function in deployed:
        for name, logical in FUNCTIONS.items():
            if logical in function["FunctionName"]:
                found[name] = function.get("Environment", {}).get("Variables", {})
    if missing := FUNCTIONS.keys() - found.keys():
        raise report.NotMeasuredError(f"not deployed: {', '.join(sorted(missing))}")
    return found


if __name__ == "__main__":
    report.run(main)
