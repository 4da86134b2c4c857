"""Measure the same work with other ways of calling a vendor, on the same simulator.

sluiceway   the real template on the emulator, used by its Python client
celery      Celery's workers with Redis, and a rate limit
powertools  a pool of threads that call within Powertools' idempotency decorator
httpx       a pool of threads that call with retries

Each has a vendor of its own, started anew, and as many workers. In the first run nothing goes
wrong. In the second, all workers are killed in the middle and started again.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from boto3.dynamodb.types import TypeSerializer
from sluiceway_client import Client, SluicewayError
from sluiceway_local import emulator, processes

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import burst, report
from bench.vendor import Limit, Vendor, percentiles, started, starts

HERE = Path(__file__).parent
CELERY_PYTHON = report.ROOT / ".venv-bench/bin/python"

AT_ONCE = 0.4
"""Of the items are there at the start; the others come steadily."""

STEADY_PER_S = 6.0

KILL_AFTER = 1 / 3
"""Of the works are answered when the workers are killed."""

WORKERS = 8
"""Of each. More would help nobody at this limit, and make Celery's rate limit late sooner."""

CONNECTIONS = 6
"""Of Sluiceway's submitters: an emulator starts a process for each request at once."""

MAX_ATTEMPTS = 10
BACKOFF_MAX_S = 8
TIMEOUT_S = 15
TRY_AGAIN_S = 20
"""After a crash: Celery's visibility timeout, and the time in progress of Powertools."""

READY_IN_S = 40.0
BROUGHT_UP_IN_S = 300.0

_ENDING = threading.Event()


@dataclass(frozen=True, slots=True)
class Setting:
    """What all contenders share."""

    limit: Limit
    latency_s: float
    workers: int
    deadline_s: float
    celery_python: Path


@dataclass(frozen=True, slots=True)
class Item:
    """A unit of work that somebody wants the result of; equal prompts are the same work."""

    number: int
    due_s: float
    """After the start."""
    tenant: str
    prompt: str
    key: str
    """Of this item alone."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one contender, when nothing goes wrong."""

    items: int
    works: int
    calls: int
    refused: int
    """Answers 429."""
    again: int
    """Answered calls beyond one for each work."""
    paid_again: int
    """Those that the vendor charged: it replays a call whose Idempotency-Key it knows."""
    quota_used: float
    """What the vendor answered, of what it allowed until the last answered call."""
    without_result: int
    took_s: float
    """From the first submit to the last result."""
    added_s: tuple[float, float, float]
    """Percentiles 50, 95 and 99 of submit to result, without the vendor's time."""
    over_ideal_s: float
    """The mean of what a result came later than from a perfect scheduler."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Of one contender whose workers were killed."""

    items: int
    before: int
    """Results before the kill."""
    lost: int
    """Items without a result in the end."""
    lost_without_list: int
    """The same when the callers kept no list of their own."""
    again: int
    paid_again: int
    last_s: float
    """From the kill to the last result."""
    moved_s: float
    """By how much leases and due times were moved on, rather than waited for."""


class Running(Protocol):
    """A contender that is ready for work."""

    keeps_items: bool
    """Whether items outlive the workers."""

    def go(self, items: Sequence[Item], begins_at_s: float) -> None:
        """Has the items submitted, each when it is due."""

    def told(self) -> dict[int, tuple[float, str | None]]:
        """When each item ended, by its number, and the text when it has one."""

    def kill(self) -> None:
        """Ends all workers without a word."""

    def again(self, left: Sequence[Item], begins_at_s: float) -> float:
        """Starts them again; `left` is for those that keep nothing. Seconds moved on."""


# ------------------------------------------------------------------------------------ the work


def items_of(count: int, *, name: str, repeated: bool = True) -> list[Item]:
    """About as many, in a random order; `repeated`: two of five are another's of their tenant."""
    rng = random.Random(f"{burst.SEED} {name}")  # noqa: S311
    share = 1 if repeated else 1 - burst.DUPLICATES
    wanted = burst.burst_of(round(count / share), burst.TENANTS)
    if not repeated:
        wanted = list({body["input"]: (tenant, body) for tenant, body in wanted}.values())
    at_once = round(AT_ONCE * len(wanted))
    return [
        Item(
            number,
            max(0, number - at_once + 1) / STEADY_PER_S,
            tenant,
            f"{name} {body['input']}",
            f"{rng.getrandbits(128):032x}",
        )
        for number, (tenant, body) in enumerate(wanted)
    ]


def ideal(items: Sequence[Item], setting: Setting, *, joined: bool) -> dict[int, float]:
    """When a perfect scheduler has each result, in seconds after the start.

    Joined, it calls once for each work; else once for each item.
    """
    names = {item.number: item.prompt if joined else str(item.number) for item in items}
    first: dict[str, float] = {}
    for item in items:
        first.setdefault(names[item.number], item.due_s)
    made = starts(list(first.values()), setting.limit)
    ready = {name: at_s + setting.latency_s for name, at_s in zip(first, made, strict=True)}
    return {item.number: max(item.due_s, ready[names[item.number]]) for item in items}


def added(ended_s: Mapping[int, float], items: Sequence[Item], latency_s: float) -> list[float]:
    """Of each ended item, how long it took beyond the vendor's time."""
    return [
        max(0.0, ended_s[item.number] - item.due_s - latency_s)
        for item in items
        if item.number in ended_s
    ]


def right(told: Mapping[int, tuple[float, str | None]], items: Sequence[Item]) -> dict[int, float]:
    """When each item had its own result. Raises NotMeasuredError for another's."""
    prompts = {item.number: item.prompt for item in items}
    found = {number: at_s for number, (at_s, text) in told.items() if text is not None}
    for number in found:
        text = told[number][1] or ""
        if not text.startswith(f"You said: {prompts[number]} ["):
            raise report.NotMeasuredError(f"item {number} got another's result")
    return found


def until(happened: Callable[[], bool], *, timeout_s: float) -> bool:
    """Polls; raises NotMeasuredError when the program is told to end."""
    found = processes.wait_for(lambda: _ENDING.is_set() or happened(), timeout_s=timeout_s)
    if _ENDING.is_set():
        raise report.NotMeasuredError("it was told to end")
    return found


def measure(running: Running, vendor: Vendor, items: Sequence[Item], setting: Setting) -> Figures:
    """The first run."""
    vendor.ask("DELETE", "calls")
    began_s = time.time() + 0.5
    running.go(items, began_s)
    ends_s = setting.deadline_s + items[-1].due_s
    until(lambda: len(running.told()) == len(items), timeout_s=ends_s)
    ended_s = {n: at_s - began_s for n, at_s in right(running.told(), items).items()}
    if not ended_s:
        raise report.NotMeasuredError("nothing had a result")
    again, paid_again = _again(vendor, items)
    times = vendor.ask("GET", "times")["calls"]
    answered = [at_s for at_s, status in times if status == httpx.codes.OK]
    best = ideal(items, setting, joined=True)
    p50, p95, p99 = percentiles(added(ended_s, items, setting.latency_s), 50, 95, 99)
    return Figures(
        items=len(items),
        works=len({item.prompt for item in items}),
        calls=len(times),
        refused=sum(status == httpx.codes.TOO_MANY_REQUESTS for _, status in times),
        again=again,
        paid_again=paid_again,
        quota_used=setting.limit.used(len(answered), in_s=max(answered) - began_s),
        without_result=len(items) - len(ended_s),
        took_s=max(ended_s.values()),
        added_s=(p50, p95, p99),
        over_ideal_s=sum(at_s - best[number] for number, at_s in ended_s.items()) / len(ended_s),
    )


def kill(running: Running, vendor: Vendor, items: Sequence[Item], setting: Setting) -> Killed:
    """The second run. Raises NotMeasuredError when the kill came too late."""
    vendor.ask("DELETE", "calls")
    running.go(items, time.time() + 0.5)
    enough = KILL_AFTER * len({item.prompt for item in items})
    until(lambda: _charged(vendor, items) >= enough, timeout_s=setting.deadline_s)
    running.kill()
    killed_s = time.time()
    before = right(running.told(), items)
    if len(before) == len(items):
        raise report.NotMeasuredError("all had ended before the kill")
    moved_s = running.again([item for item in items if item.number not in before], killed_s)
    until(lambda: len(running.told()) == len(items), timeout_s=setting.deadline_s)
    after = right(running.told(), items)
    again, paid_again = _again(vendor, items)
    return Killed(
        items=len(items),
        before=len(before),
        lost=len(items) - len(after),
        lost_without_list=len(items) - len(after if running.keeps_items else before),
        again=again,
        paid_again=paid_again,
        last_s=max(after.values()) - killed_s,
        moved_s=moved_s,
    )


def _charged(vendor: Vendor, items: Sequence[Item]) -> int:
    """How many works the vendor has answered."""
    counts = vendor.ask("GET", "calls")["by_prompt"]
    prompts = {item.prompt for item in items}
    return sum(counts.get(prompt, {"charged": 0})["charged"] > 0 for prompt in prompts)


def _again(vendor: Vendor, items: Sequence[Item]) -> tuple[int, int]:
    """Answered calls beyond one for each work, and how many of them were charged."""
    counts, works = vendor.ask("GET", "calls"), _charged(vendor, items)
    return counts["charged"] + counts["replayed"] - works, counts["charged"] - works


# ------------------------------------------------------------------------------------ sluiceway


LONG_AGO_MS = 60_000
"""More than clocks may differ: a lease that ended just now isn't taken over yet."""


class Sluiceway:
    """Partners whose threads submit with the Python client, and wait for the results."""

    keeps_items = True

    def __init__(self, here: burst.Place) -> None:
        """`here` is warm."""
        self._here = here
        self._told: dict[int, tuple[float, str | None]] = {}
        self._http = httpx.Client(
            limits=httpx.Limits(max_connections=CONNECTIONS),
            timeout=httpx.Timeout(60, pool=None),
        )

    def go(self, items: Sequence[Item], begins_at_s: float) -> None:
        """Each item has a thread, which dies with this program."""
        self._told = {}
        clients = {
            tenant: Client(self._here.local.api_url, self._here.key(tenant), http_client=self._http)
            for tenant in burst.TENANTS
        }

        def one(item: Item) -> None:
            time.sleep(max(0.0, begins_at_s + item.due_s - time.time()))
            text = None
            with suppress(SluicewayError):
                job = clients[item.tenant].run(
                    model="limited", input=item.prompt, idempotency_key=item.key
                )
                text = job.result.text if job.result else None
            self._told[item.number] = (time.time(), text)

        for item in items:
            threading.Thread(target=one, args=(item,), daemon=True).start()

    def told(self) -> dict[int, tuple[float, str | None]]:
        """As the threads note it."""
        return dict(self._told)

    def kill(self) -> None:
        """The emulator starts others when it has a message for them."""
        local = self._here.local
        workers = emulator.processes_of(local.outputs["RunJobFunctionName"], emulator_pid=local.pid)
        if not workers:
            raise report.NotMeasuredError("there was no worker to kill")
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

    def again(self, left: Sequence[Item], begins_at_s: float) -> float:
        """Ends the leases of the dead and has all open jobs due, which else takes minutes.

        A job whose worker died before the start is queued, like one whose message still waits; the
        copies of these are acknowledged unread.
        """
        del left
        local, past_ms = self._here.local, round(begins_at_s * 1000) - LONG_AGO_MS
        dynamodb = emulator.client("dynamodb", local.endpoint_url)

        def set_back(table: str, key: Mapping[str, Any], name: str, **seen: Any) -> None:
            """Unless somebody was faster: then the row is as he wants it."""
            (condition,) = seen
            with suppress(dynamodb.exceptions.ConditionalCheckFailedException):
                dynamodb.update_item(
                    TableName=local.outputs[table],
                    Key=_item(key),
                    UpdateExpression="SET #name = :past",
                    ConditionExpression="#seen = :seen",
                    ExpressionAttributeNames={"#name": name, "#seen": condition},
                    ExpressionAttributeValues=_item({":past": past_ms, ":seen": seen[condition]}),
                )

        due_ms = begins_at_s * 1000
        for row in self._here.rows():
            if row["status"] not in {"queued", "processing"}:
                continue
            if row["status"] == "processing":
                lease = {"coordination_key": f"lease#{row['cache_key']}"}
                set_back("CoordinationTableName", lease, "ends_at_epoch_ms", fence=row["fence"])
            due_ms = max(due_ms, float(row["due_at_epoch_ms"]))
            job = {"tenant": row["tenant"], "job_id": row["job_id"]}
            set_back("JobsTableName", job, "due_at_epoch_ms", status=row["status"])
        emulator.client("lambda", local.endpoint_url).invoke(
            FunctionName=local.outputs["SweepJobsFunctionName"],
            InvocationType="Event",
            Payload=b"{}",
        )
        return due_ms / 1000 - begins_at_s


def _item(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: TypeSerializer().serialize(value) for name, value in values.items()}


# ------------------------------------------------------------------------------------ the peers


class Child:
    """A program that submits, or calls itself, and tells the results in its log."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        """It is started, and waits for its plan; `folder` is its own."""
        folder.mkdir()
        self._plan, self._log = folder / "plan.json", folder / "log"
        self.process = processes.start([*command, str(self._plan)], env=environment, log=self._log)

    def wait_until_ready(self) -> None:
        """Raises NotMeasuredError when it doesn't come up."""

        def ready() -> bool:
            return '{"ready": true}' in self._log.read_text() or not self.process.alive()

        if not until(ready, timeout_s=READY_IN_S) or not self.process.alive():
            raise report.NotMeasuredError(f"a peer didn't start: {self._log.read_text()[-2000:]}")

    def go(self, items: Sequence[Item], begins_at_s: float) -> None:
        """All or nothing: it takes the plan when it sees it."""
        draft = self._plan.with_suffix(".draft")
        draft.write_text(
            json.dumps({"begins_at_s": begins_at_s, "items": [asdict(item) for item in items]})
        )
        draft.replace(self._plan)

    def told(self) -> dict[int, tuple[float, str | None]]:
        """The whole lines of its log that are results."""
        lines = self._log.read_text().split("\n")[:-1]
        found = [json.loads(line) for line in lines if line.startswith('{"number"')]
        return {one["number"]: (one["at_s"], one["text"]) for one in found}

    def kill(self) -> None:
        """Without a word."""
        kill_group(self.process)


def kill_group(process: processes.Process) -> None:
    """Ends it and what it started without a word; returns when it is gone."""
    os.killpg(process.pid, signal.SIGKILL)
    processes.wait_for(lambda: not process.alive(), timeout_s=processes.STOP_TIMEOUT_S)


class Callers:
    """A process whose threads call the vendor."""

    keeps_items = False

    def __init__(self, start: Callable[[], Child]) -> None:
        """`start` starts the process."""
        self._start = start
        self._before: dict[int, tuple[float, str | None]] = {}
        self.child = start()
        self.child.wait_until_ready()

    def go(self, items: Sequence[Item], begins_at_s: float) -> None:
        """The threads take them in turn."""
        self.child.go(items, begins_at_s)

    def told(self) -> dict[int, tuple[float, str | None]]:
        """By it and by those before it."""
        return self._before | self.child.told()

    def kill(self) -> None:
        """The items that wait in the process go with it."""
        self.child.kill()

    def again(self, left: Sequence[Item], begins_at_s: float) -> float:
        """As by a caller that kept a list of what it has no result of."""
        self._before = self.child.told()
        self.child = self._start()
        self.child.wait_until_ready()
        self.child.go(left, begins_at_s)
        return 0.0


@contextmanager
def httpx_callers(setting: Setting, vendor: Vendor, folder: Path) -> Iterator[Running]:
    """Plain calls with retries."""
    with _callers({"kind": "httpx"}, setting, vendor, folder) as callers:
        yield callers


@contextmanager
def powertools_callers(setting: Setting, vendor: Vendor, folder: Path) -> Iterator[Running]:
    """Its table is on an emulator of its own."""
    port, log = emulator.free_port(), folder / "emulator.log"
    process = emulator.start(port, log)
    try:
        emulator.wait_until_ready(process, port, log)
        endpoint_url, table = f"http://127.0.0.1:{port}", "idempotency"
        more = {
            "kind": "powertools",
            "endpoint_url": endpoint_url,
            "table": table,
            "in_progress_s": TRY_AGAIN_S,
        }
        emulator.client("dynamodb", endpoint_url).create_table(
            TableName=table,
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with _callers(more, setting, vendor, folder) as callers:
            yield callers
    finally:
        process.stop()


@contextmanager
def _callers(
    more: Mapping[str, Any], setting: Setting, vendor: Vendor, folder: Path
) -> Iterator[Running]:
    settings = {**_settings(setting, vendor), **more}
    began: list[Child] = []

    def start() -> Child:
        child = Child(
            [sys.executable, str(HERE / "caller_peer.py")],
            processes.clean_environment(PEER_SETTINGS=json.dumps(settings)),
            folder / f"caller-{len(began)}",
        )
        began.append(child)
        return child

    try:
        yield Callers(start)
    finally:
        for child in began:
            child.process.stop()


class Celery:
    """Workers, and a submitter that outlives them."""

    keeps_items = True

    def __init__(self, submitter: Child, start_workers: Callable[[], processes.Process]) -> None:
        """The workers are up when the submitter is ready."""
        self._start_workers = start_workers
        self._workers = start_workers()
        self._submitter = submitter
        submitter.wait_until_ready()

    def go(self, items: Sequence[Item], begins_at_s: float) -> None:
        """It sends a task for each."""
        self._submitter.go(items, begins_at_s)

    def told(self) -> dict[int, tuple[float, str | None]]:
        """By the submitter, which gets the results from the backend."""
        return self._submitter.told()

    def kill(self) -> None:
        """Redis stays."""
        kill_group(self._workers)

    def again(self, left: Sequence[Item], begins_at_s: float) -> float:
        """The same command again."""
        del left, begins_at_s
        self._workers = self._start_workers()
        return 0.0


@contextmanager
def celery(setting: Setting, vendor: Vendor, folder: Path) -> Iterator[Running]:
    """Raises MissingError where Redis or Celery is missing."""
    server, python = shutil.which("redis-server"), setting.celery_python
    celery_version(python)
    if server is None:
        raise MissingError("there is no redis-server on the PATH")
    port = emulator.free_port()
    settings = _settings(setting, vendor) | {
        "broker": f"redis://127.0.0.1:{port}/0",
        "per_minute": setting.limit.per_minute,
        "visibility_s": TRY_AGAIN_S,
    }
    environment = processes.clean_environment(
        PEER_SETTINGS=json.dumps(settings), PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1"
    )
    began: list[processes.Process] = []

    def start(name: str, *command: str) -> processes.Process:
        log = folder / f"{name}-{len(began)}.log"
        began.append(processes.start(command, env=environment, log=log))
        return began[-1]

    def start_workers() -> processes.Process:
        size = ("--concurrency", str(setting.workers))
        app = ("-m", "celery", "-A", "celery_peer", "worker", "--loglevel", "WARNING")
        return start("worker", str(python), *app, *size)

    try:
        data = ("--save", "", "--appendonly", "no", "--dir", str(folder))
        start("redis", server, "--port", str(port), "--bind", "127.0.0.1", *data)
        until(lambda: not emulator.port_is_free(port), timeout_s=READY_IN_S)
        submitter = Child(
            [str(python), str(HERE / "celery_peer.py")], environment, folder / "submitter"
        )
        began.append(submitter.process)
        yield Celery(submitter, start_workers)
    finally:
        for process in reversed(began):
            process.stop()


class MissingError(Exception):
    """What a contender needs isn't on this machine."""


def celery_version(python: Path) -> str:
    """Raises MissingError."""
    if not python.exists():
        raise MissingError(f"there is no {python.name} in {python.parents[1].name}")
    code = "from importlib.metadata import version as v; print(v('celery'), v('redis'))"
    done = subprocess.run(  # noqa: S603 - our own command line
        [str(python), "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MissingError(f"Celery is not installed in {python.parents[1].name}")
    return "Celery {}, redis-py {}".format(*done.stdout.split())


def _settings(setting: Setting, vendor: Vendor) -> dict[str, Any]:
    return {
        "vendor_url": vendor.url,
        "workers": setting.workers,
        "max_attempts": MAX_ATTEMPTS,
        "backoff_max_s": BACKOFF_MAX_S,
        "timeout_s": TIMEOUT_S,
    }


PEERS: dict[str, Callable[[Setting, Vendor, Path], Any]] = {
    "httpx": httpx_callers,
    "powertools": powertools_callers,
    "celery": celery,
}


@contextmanager
def alone(name: str, setting: Setting) -> Iterator[tuple[Running, Vendor]]:
    """A peer with a fresh vendor; both end with it."""
    with tempfile.TemporaryDirectory(prefix="sluiceway-peers-") as made:
        folder = Path(made)
        log = folder / "vendor.log"
        with (
            started(setting.limit, latency_s=setting.latency_s, log=log) as vendor,
            PEERS[name](setting, vendor, folder) as running,
        ):
            yield running, vendor


def measure_peer(name: str, items: Sequence[Item], setting: Setting) -> Figures:
    """The first run of a peer."""
    with alone(name, setting) as (running, vendor):
        return measure(running, vendor, items, setting)


def kill_peer(name: str, items: Sequence[Item], setting: Setting) -> Killed:
    """The second."""
    with alone(name, setting) as (running, vendor):
        return kill(running, vendor, items, setting)


# ------------------------------------------------------------------------------------ telling

TITLES = {
    "sluiceway": "Sluiceway",
    "celery": "Celery",
    "powertools": "Powertools idempotency",
    "httpx": "httpx with retries",
}

HEAD = (
    *("contender", "vendor calls", "429", "answered again", "paid again", "quota used"),
    *("without result", "took s"),
)
WAIT_HEAD = ("contender", "p50 s", "p95 s", "p99 s", "mean over the ideal s")
KILL_HEAD = (
    *("contender", "results before", "lost", "answered again", "paid again"),
    "last result s after the kill",
)


def _ideals(items: Sequence[Item], setting: Setting) -> dict[str, tuple[list[float], float]]:
    """Percentiles and mean excess of perfect schedulers."""
    best = ideal(items, setting, joined=True)
    found = {}
    for name, joined in (("ideal", True), ("ideal, a call for each item", False)):
        ended_s = ideal(items, setting, joined=joined)
        over_s = sum(at_s - best[number] for number, at_s in ended_s.items()) / len(items)
        waits_s = percentiles(added(ended_s, items, setting.latency_s), 50, 95, 99)
        found[name] = (waits_s, over_s)
    return found


def _main_table(found: Mapping[str, Figures], items: Sequence[Item]) -> report.Table:
    works = len({item.prompt for item in items})
    return report.Table(
        f"{len(items)} items, {works} different works, nothing goes wrong",
        HEAD,
        [
            (
                TITLES[name],
                str(one.calls),
                str(one.refused),
                str(one.again),
                str(one.paid_again),
                f"{one.quota_used:.0%}",
                str(one.without_result),
                f"{one.took_s:.1f}",
            )
            for name, one in found.items()
        ],
    )


def _wait_table(
    found: Mapping[str, Figures], ideals: Mapping[str, tuple[list[float], float]]
) -> report.Table:
    rows = [(name, waits_s, over_s) for name, (waits_s, over_s) in ideals.items()]
    rows += [(TITLES[name], list(one.added_s), one.over_ideal_s) for name, one in found.items()]
    return report.Table(
        "From submit to result, without the vendor's time",
        WAIT_HEAD,
        [
            (name, *(f"{wait_s:.1f}" for wait_s in waits_s), f"{over_s:.1f}")
            for name, waits_s, over_s in rows
        ],
    )


def kill_table(found: Mapping[str, Killed]) -> report.Table:
    """Callers in a process have a line for what their tool kept, and one for a list of theirs."""
    lines: list[tuple[str, ...]] = []
    for name, one in found.items():
        in_process = name in {"powertools", "httpx"}
        if in_process:
            lost = str(one.lost_without_list)
            lines.append((TITLES[name], str(one.before), lost, "0", "0", "-"))
        lines.append(
            (
                TITLES[name] + (", the caller kept a list" if in_process else ""),
                str(one.before),
                str(one.lost),
                str(one.again),
                str(one.paid_again),
                f"{one.last_s:.0f}" + (f" + {one.moved_s:.0f}" if one.moved_s else ""),
            )
        )
    items = max((one.items for one in found.values()), default=0)
    return report.Table(f"{items} items, all workers killed in the middle", KILL_HEAD, lines)


def _bars(
    found: Mapping[str, Figures], ideals: Mapping[str, tuple[list[float], float]]
) -> list[report.Bars]:
    names = [TITLES[name].split()[0] for name in found]  # there is little room below a bar
    return [
        report.Bars(
            "calls",
            "Calls to the vendor for the same work",
            "calls",
            names,
            {
                "of different works": [
                    one.calls - one.refused - one.again for one in found.values()
                ],
                "answered again": [one.again for one in found.values()],
                "refused with 429": [one.refused for one in found.values()],
            },
        ),
        report.Bars(
            "waits",
            "From submit to result, without the vendor's time",
            "seconds",
            ["ideal", *names],
            {
                f"p{percent}": [
                    ideals["ideal"][0][at],
                    *(one.added_s[at] for one in found.values()),
                ]
                for at, percent in enumerate((50, 95))
            },
        ),
    ]


@contextmanager
def _stack(given: argparse.Namespace, setting: Setting) -> Iterator[burst.Place]:
    """Sluiceway's place, with the vendor and the workers of the others."""
    shared = burst.Setting(given.items, given.per_minute, setting.latency_s, BROUGHT_UP_IN_S)
    with burst.place(shared, true_per_minute=given.per_minute, lanes=("interactive",)) as here:
        queue = here.local.outputs["InteractiveQueueUrl"].rsplit("/", 1)[1]
        client = emulator.client("lambda", here.local.endpoint_url)
        found = client.list_event_source_mappings()["EventSourceMappings"]
        (lane,) = (one for one in found if one["EventSourceArn"].endswith(f":{queue}"))
        changed = client.update_event_source_mapping(
            UUID=lane["UUID"], ScalingConfig={"MaximumConcurrency": setting.workers}
        )
        if changed["ScalingConfig"]["MaximumConcurrency"] != setting.workers:
            raise report.NotMeasuredError("the lane kept another number of workers")
        yield here


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured that this machine has."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", action="append", choices=TITLES)
        parser.add_argument("--items", type=int, default=90)
        parser.add_argument("--kill-items", type=int, default=40)
        parser.add_argument("--per-minute", type=int, default=300, help="what the vendor allows")
        parser.add_argument("--latency-s", type=float, default=0.3, help="of the vendor")
        parser.add_argument("--deadline-s", type=float, default=90, help="after the last submit")
        parser.add_argument("--celery-python", type=Path, default=CELERY_PYTHON)

    given = report.options(__doc__, arguments, add=add)
    setting = Setting(
        Limit(given.per_minute, burst.VENDOR_BURST),
        given.latency_s,
        WORKERS,
        given.deadline_s,
        given.celery_python,
    )
    if given.items < 1 or given.kill_items < 1 or given.per_minute < 1:
        raise report.NotMeasuredError("there is one item at least, and one call a minute")
    wanted = [name for name in TITLES if name in (given.only or TITLES)]
    items = items_of(given.items, name="work")
    to_kill = items_of(given.kill_items, name="kill", repeated=False)
    figures: dict[str, Figures] = {}
    missing: dict[str, str] = {}
    for name in wanted:
        if name in PEERS:
            try:
                figures[name] = measure_peer(name, items, setting)
            except MissingError as error:
                missing[name] = str(error)
    killed = {}
    # The second runs of the peers count, and tell no times, so they go on side by side, and while
    # the stack comes up.
    with ThreadPoolExecutor() as pool:
        try:
            tasks = {name: pool.submit(kill_peer, name, to_kill, setting) for name in figures}
            if "sluiceway" in wanted:
                with _stack(given, setting) as here:
                    wait(tasks.values())
                    figures["sluiceway"] = measure(Sluiceway(here), here.vendor, items, setting)
                    killed["sluiceway"] = kill(Sluiceway(here), here.vendor, to_kill, setting)
            killed |= {name: task.result() for name, task in tasks.items()}
        except BaseException:
            _ENDING.set()  # else the others are waited for
            raise
    figures = {name: figures[name] for name in TITLES if name in figures}
    killed = {name: killed[name] for name in TITLES if name in killed}
    if not figures:
        raise report.NotMeasuredError("; ".join(missing.values()))
    ideals = _ideals(items, setting)
    also = (
        [f"Celery is that of {celery_version(setting.celery_python)}."]
        if "celery" in figures
        else []
    )
    report.tell(
        given,
        "peers",
        figures={
            "setting": asdict(setting) | {"celery_python": None},
            "ideal": {
                name: {"added_s": waits, "over_ideal_s": over}
                for name, (waits, over) in ideals.items()
            },
            "contenders": {name: asdict(one) for name, one in figures.items()},
            "killed": {name: asdict(one) for name, one in killed.items()},
            "not_measured": missing,
        },
        parts=[
            *also,
            *(f"{TITLES[name]} was not measured: {why}." for name, why in missing.items()),
            _main_table(figures, items),
            _wait_table(figures, ideals),
            kill_table(killed),
            *_bars(figures, ideals),
        ],
        also=["httpx", "aws-lambda-powertools"],
    )
    return 0


if __name__ == "__main__":
    report.run(main)
