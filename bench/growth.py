"""What grows with the number of open jobs: calls and units of each path, sweeps, lists and status.

DynamoDB Local, AWS's own emulator, is filled with rows as the adapters write them, which are put
there past the count. Calls and units are counted as bench/aws_calls.py does it; times are the CPU's
in this process, without the counting, since an emulator's times are not AWS's. It needs Java. Run
it from the repository's folder.
"""

import argparse
import base64
import hashlib
import http.client
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from boto3.dynamodb.types import Binary
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import to_item
from sluiceway.adapters.dynamodb_backlog import BACKLOG_KEY
from sluiceway.adapters.dynamodb_jobs import _values_of as row_of_job
from sluiceway.bootstrap import SweepDeps
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain import ids
from sluiceway.domain import job as transitions
from sluiceway.domain.counters import shard_caps
from sluiceway.domain.job import Job, JobError, JobStatus, due_shard
from sluiceway.domain.ticket import Ticket
from sluiceway.ports import DueJob, DueJobs, IndexedJob, JobQueue
from sluiceway.usecases.sweep_jobs import MOST_READ
from sluiceway_cli import listing
from sluiceway_cli.listing import Wanted
from sluiceway_cli.status import Looker
from sluiceway_cli.target import Target
from sluiceway_local import dynamodb_local, state

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import aws_calls, report
from bench.aws_calls import Call, Context, Gateway, Units, expect, item_bytes, number
from tests.contract.harness import template_resources

SIZES = (1_000, 10_000, 100_000)
"""Open jobs."""

DUE = (0, 100, 1_000)
"""Of these, in a sweep."""

TENANTS = ("acme", *(f"tenant-{n}" for n in range(9)))
"""Every second job is of the first, and the others have equal parts of the rest."""

JOBS_LIST_FAILED = "`sluiceway jobs list --tenant acme --status failed`"
"""It reads many rows in vain, so once is enough."""

OPEN_JOBS_AT_MOST = 1_000_000
"""Of one tenant, and of all: no limit gets in the way."""

CATALOGUE = "[service]\nqueue_full = 1000000\n" + aws_calls.CATALOGUE.replace(
    "{in_flight}", str(OPEN_JOBS_AT_MOST)
)

AGES_MS = 300_000
"""The jobs were enqueued within the last so many."""

DUE_IN_MS = 3_600_000
"""And nobody has to look at them for so long."""

IN_A_BATCH = 25
"""Rows of one BatchWriteItem, at most."""

FILLERS = 3
"""Threads: DynamoDB Local is slower than one."""

TABLES = ("JobsTable", "CacheTable", "CoordinationTable", "PartnersTable")

NEARLY = 0.01
"""A count of the open jobs is right when it is off by no more: a few come and go in between."""

TRIES = 3
"""Of what can be done again: the least counts."""


# ------------------------------------------------------------------------------------ filling


@dataclass(slots=True)
class Filler:
    """Puts open jobs into the Jobs table, past the SDK, which takes ten times as long."""

    url: str
    table: str
    kinds: Sequence[Job]
    """The jobs are like these by turns."""
    messages: Counter[str] = field(default_factory=Counter)
    """By lane: as many as its jobs, so that none is missing."""
    rows: int = 0

    def fill(self, rows: int) -> None:
        """Until there are so many."""
        new = range(self.rows, rows)
        self._put(new, self.kinds, DUE_IN_MS)
        self.messages.update(self.kinds[at % len(self.kinds)].lane for at in new)
        self.rows = rows

    def make_due(self, rows: int) -> None:
        """The first so many become jobs that wait in a lane and have to be looked at now."""
        self._put(
            range(rows), [replace(self.kinds[0], lane=one.lane) for one in self.kinds], -1_000
        )

    def put_back(self, rows: int) -> None:
        """These are as they were filled in: what a sweep looked at is due again soon."""
        self._put(range(rows), self.kinds, DUE_IN_MS)

    def _put(self, rows: range, kinds: Sequence[Job], due_in_ms: int) -> None:
        now_ms = bootstrap.SystemClock().now_ms()
        likes = [_template(job, now_ms + due_in_ms) for job in kinds]
        parts = [rows[at : at + IN_A_BATCH] for at in range(0, len(rows), IN_A_BATCH)]
        with ThreadPoolExecutor(FILLERS) as threads:
            shares = [parts[at::FILLERS] for at in range(FILLERS)]
            list(threads.map(lambda share: self._write(share, likes, now_ms), shares))

    def _write(self, parts: Sequence[range], likes: Sequence[str], now_ms: int) -> None:
        """As the SDK would, but with rows that are made of text, and unsigned."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc)
        headers = {
            "X-Amz-Target": "DynamoDB_20120810.BatchWriteItem",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/"
            "aws4_request, SignedHeaders=host, Signature=0",
        }
        for part in parts:
            puts = ",".join(_row(likes[at % len(likes)], at, now_ms) for at in part)
            connection.request(
                "POST", "/", f'{{"RequestItems":{{"{self.table}":[{puts}]}}}}', headers
            )
            answer = connection.getresponse()
            told = answer.read()
            if answer.status != http.HTTPStatus.OK or json.loads(told)["UnprocessedItems"]:
                raise report.NotMeasuredError(f"the table wasn't filled: {told[:200]!r}")


NAMES = ("TENANT", "JOB_ID", "JOB_KEY", "CACHE_KEY", "SHARD", "ENQUEUED")
"""Places in a template, each between @."""


def _template(like: Job, due_at_ms: int) -> str:
    """The put of a row like that of this job."""
    values = row_of_job(replace(like, due_at_epoch_ms=due_at_ms))
    item = to_item(values) | {
        "tenant": {"S": "@TENANT@"},
        "job_id": {"S": "@JOB_ID@"},
        "job_key": {"S": "@JOB_KEY@"},
        "cache_key": {"S": "@CACHE_KEY@"},
        "due_shard": {"S": "@SHARD@"},
        "enqueued_at_epoch_ms": {"N": "@ENQUEUED@"},
    }
    return json.dumps({"PutRequest": {"Item": item}}, default=_as_text)


def _as_text(value: Any) -> str:
    raw = bytes(value.value) if isinstance(value, Binary) else value  # type: ignore[attr-defined]
    return base64.b64encode(raw).decode()


def _row(template: str, at: int, now_ms: int) -> str:
    """The put of the row of this number, the same in every run."""
    job_id = ids.job_id(
        at, hashlib.blake2b(str(at).encode(), digest_size=ids.RANDOM_BYTES).digest()
    )
    values = {
        "TENANT": TENANTS[0] if at % 2 else TENANTS[1 + at // 2 % (len(TENANTS) - 1)],
        "JOB_ID": job_id,
        "JOB_KEY": f"j1_{at:043d}",
        "CACHE_KEY": f"c1_{at:043d}",
        "SHARD": due_shard(job_id),
        "ENQUEUED": now_ms - 1 - at * 7_919 % AGES_MS,
    }
    for name, value in values.items():
        template = template.replace(f"@{name}@", str(value))
    return template


def kinds_of(job: Job, now_ms: int) -> list[Job]:
    """Ten jobs as they stand in a backlog, made of one that was just submitted.

    Half of them wait for a worker, two of these in the batch lane; the others are parked with and
    without a slot, or wait for another attempt.
    """
    started = transitions.started(
        job, fence=1, now_ms=now_ms, receives=1, function_ends_ms=now_ms + 120_000
    )
    later_ms = now_ms + DUE_IN_MS
    overloaded = JobError(
        code="vendor_unavailable",
        message="The vendor answered 503.",
        retryable=True,
        attempt=1,
        at_epoch_ms=now_ms,
        error_class="VendorError",
        http_status=503,
    )
    parked = transitions.gated(started, not_before_ms=later_ms, slot=None)
    slotted = transitions.gated(started, not_before_ms=later_ms, slot=Ticket(later_ms, 1))
    again = transitions.retrying(started, overloaded, not_before_ms=later_ms)
    return [
        job,
        job,
        job,
        *[replace(job, lane="batch")] * 2,
        parked,
        parked,
        slotted,
        slotted,
        again,
    ]


# ------------------------------------------------------------------------------------ looking on


@dataclass(slots=True)
class CountedDueJobs:
    """The index of due jobs, and how much of it was told (port DueJobs)."""

    due_jobs: DueJobs
    read: int = 0
    """Jobs that were read one by one, or found among the others."""
    told: int = 0
    """Jobs that DynamoDB counted."""

    def due(self, shard: str, *, until_ms: int, limit: int) -> list[DueJob]:
        """See DueJobs."""
        return self.due_jobs.due(shard, until_ms=until_ms, limit=limit)

    def indexed(self, shard: str) -> Iterator[IndexedJob]:
        """See DueJobs."""
        for job in self.due_jobs.indexed(shard):
            self.read += 1
            yield job

    def counted(
        self,
        shard: str,
        *,
        before: Mapping[tuple[str, str], int],
        besides_tenants: Collection[str] = (),
        besides_models: Collection[str] = (),
    ) -> Iterator[tuple[int, list[IndexedJob]]]:
        """See DueJobs."""
        for many, jobs in self.due_jobs.counted(
            shard, before=before, besides_tenants=besides_tenants, besides_models=besides_models
        ):
            self.told += many
            self.read += len(jobs)
            yield many, jobs

    def postpone(self, job: Job, *, due_at_ms: int, sent: bool = True) -> bool:
        """See DueJobs."""
        return self.due_jobs.postpone(job, due_at_ms=due_at_ms, sent=sent)


@dataclass(slots=True)
class FullLanes:
    """The lanes, as if the messages of the jobs that were filled in were there (port JobQueue)."""

    queue: JobQueue
    besides: Mapping[str, int]

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        """See JobQueue."""
        return self.queue.send(job, delay_s=delay_s)

    def backlog(self, lane: str) -> int:
        """See JobQueue."""
        return self.queue.backlog(lane) + self.besides[lane]

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        """See JobQueue."""
        self.queue.give_back(lane, receipt, delay_s)


# ------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True, slots=True)
class Measured:
    """What one path took."""

    calls: tuple[Call, ...]
    cpu_ms: float
    read: int = 0
    """Of the index of due jobs, one by one."""
    counted: int = 0
    """Of the index, by DynamoDB."""
    did: Mapping[str, int] = field(default_factory=dict)
    """What a sweep did, in jobs."""

    @property
    def count(self) -> int:
        """HTTP requests to AWS."""
        return sum(call.requests for call in self.calls)

    @property
    def units(self) -> Units:
        """By AWS's rules; those of queries by DynamoDB Local."""
        return sum((call.units for call in self.calls), Units())

    @property
    def cost(self) -> tuple[int, float, float]:
        """Calls, RRU and WRU."""
        return self.count, self.units.read, self.units.write

    @property
    def told(self) -> str:
        """The calls in their order."""
        return "; ".join(call.told for call in self.calls)


@dataclass(frozen=True, slots=True)
class AtSize:
    """All that was measured with so many open jobs."""

    paths: Mapping[str, Measured]
    """Of partners and workers."""
    sweeps: Mapping[int, Measured]
    """By the number of jobs that were due."""
    looks: Mapping[str, Measured]
    """Of operators, and of partners who filter."""
    picture_bytes: int


@dataclass(frozen=True, slots=True)
class Bench:
    """A gateway over a table that grows."""

    gateway: Gateway
    filler: Filler
    sweep: Callable[[], Measured]
    looker: Looker

    def at(self, size: int) -> AtSize:
        """Everything, with so many open jobs."""
        self.filler.fill(size)
        shards = len(shard_caps(OPEN_JOBS_AT_MOST))
        self.gateway.tables.fill_counters(TENANTS[0], shards, size // 2 // shards)
        first = self.sweep()
        picture = self.looker.target.backlogs.read()
        _expect_about("open jobs in the picture", picture.open, size)
        self.gateway.picture.write(picture)
        self.gateway.forget_picture()
        # The first time a process does more, and a submit that takes long looks again.
        rounds = [self._paths() for _ in range(2 * TRIES)]
        paths = {
            path: min((one[path] for one in rounds), key=lambda measured: measured.cost)
            for path in rounds[0]
        }
        looks = self._looks()
        sweeps = {due: self._sweep(due) for due in DUE}
        self.filler.put_back(max(DUE))
        self.gateway.empty_lanes()
        sweeps[0] = min(first, sweeps[0], key=lambda one: one.cpu_ms)
        return AtSize(paths, sweeps, looks, item_bytes(self._picture_row()))

    def _paths(self) -> dict[str, Measured]:
        """A job that is cancelled, and one that is run."""
        gateway = self.gateway
        found = {}
        prompt, job_ids = gateway.prompt(), []
        found["submit, fresh"] = self._measure(lambda: job_ids.append(gateway.submit(prompt)))
        found["submit, duplicate of an open job"] = self._measure(
            lambda: gateway.submit(prompt, deduplicated=True)
        )
        found["get, open job"] = self._measure(lambda: gateway.fetch(job_ids[0], status="queued"))
        found["cancel"] = self._measure(lambda: self._cancel(job_ids[0]))
        prompt, record = self._received()
        found["run, first attempt succeeds"] = self._measure(lambda: gateway.deliver(record))
        found["submit, cache hit, fresh"] = self._measure(
            lambda: gateway.submit(prompt, status=200)
        )
        before_ours = ids.job_id(OPEN_JOBS_AT_MOST, bytes(ids.RANDOM_BYTES))
        found["list, 20 jobs"] = self._measure(lambda: self._list({"after": before_ours}))
        return found

    def _received(self) -> tuple[str, aws_calls.Record]:
        """A prompt and its job's message. A send that can't start in time is the sweeper's."""
        for left in reversed(range(TRIES)):
            job_id = self.gateway.submit(prompt := self.gateway.prompt())
            try:
                return prompt, self.gateway.receive(job_id)
            except report.NotMeasuredError:
                self._cancel(job_id)
                if not left:
                    raise
        raise AssertionError

    def _looks(self) -> dict[str, Measured]:
        looks: dict[str, Callable[[], object]] = {
            "`GET /jobs?status=queued`": lambda: self._list({"status": "queued"}),
            "`GET /jobs?status=failed`, of which there is none": lambda: self._list(
                {"status": "failed"}, found=0
            ),
            "`sluiceway jobs list`": lambda: self._jobs_list(Wanted()),
            JOBS_LIST_FAILED: lambda: self._jobs_list(
                Wanted(statuses=[JobStatus.FAILED]), TENANTS[:1], found=0
            ),
            "`sluiceway status`": self._status,
        }
        return {
            name: min(
                (self._measure(look) for _ in range(1 if name == JOBS_LIST_FAILED else TRIES)),
                key=lambda one: one.cpu_ms,
            )
            for name, look in looks.items()
        }

    def _sweep(self, due: int) -> Measured:
        self.filler.make_due(due)
        swept = self.sweep()
        expect("jobs that the sweep helped", sum(swept.did.values()), due)
        return swept

    def _cancel(self, job_id: str) -> None:
        status, body = self.gateway.ask("POST", f"/jobs/{job_id}/cancel", "acme")
        expect("the answer to a cancel", (status, body.get("status")), (200, "cancelled"))

    def _list(self, query: Mapping[str, str], found: int = 20) -> None:
        status, body = self.gateway.ask("GET", "/jobs", "acme", query=query)
        expect("the answer to a list", (status, len(body["data"])), (200, found))

    def _jobs_list(self, wanted: Wanted, tenants: Sequence[str] = TENANTS, found: int = 20) -> None:
        target = self.looker.target
        listed = listing.by_tables(
            tenants, wanted, limit=20, job_lists=target.job_lists, clock=target.clock
        )
        expect("the jobs of a list", len(listed.rows), found)

    def _status(self) -> None:
        document = self.looker.look()
        expect("what status doesn't know", document["unknown"], {})
        told = sum(lane["open"] for lane in document["lanes"].values())
        _expect_about("open jobs in status", told, self.filler.rows)

    def _picture_row(self) -> Mapping[str, Any]:
        tables = self.gateway.tables
        key = to_item(BACKLOG_KEY)
        return tables.row(tables.coordination, key) or {}

    def _measure(self, does: Callable[[], object]) -> Measured:
        return measured(self.gateway, does)


def measured(gateway: Gateway, does: Callable[[], object]) -> Measured:
    """The calls of what is done, and its CPU time without that of the counting."""
    own_s, began_s = gateway.recorder.own_cpu_s, time.process_time()
    with gateway.counting() as calls:
        does()
    took_s = time.process_time() - began_s - (gateway.recorder.own_cpu_s - own_s)
    if not calls:
        raise report.NotMeasuredError("a path asked nothing of AWS")
    return Measured(tuple(calls), took_s * 1000)


def _expect_about(what: str, found: int, expected: int) -> None:
    if abs(found - expected) > NEARLY * expected:
        raise report.NotMeasuredError(f"{what}: {found}, not about {expected}")


def sweeps_with(
    gateway: Gateway, filler: Filler, catalogue: catalogues.Catalogue
) -> Callable[[], Measured]:
    """One pass of the real handler, each time."""
    app = aws_calls.function("sweep_jobs")
    deps = bootstrap.sweep_deps()
    sweeper = deps.sweeper(Context.get_remaining_time_in_millis)

    def sweep() -> Measured:
        due_jobs = CountedDueJobs(sweeper.due_jobs)
        lanes = FullLanes(sweeper.queue, filler.messages)
        given = sweeper._replace(catalogue=catalogue, due_jobs=due_jobs, queue=lanes)
        mine = SweepDeps(lambda _: given, deps.telemetry)
        did: dict[str, int] = {}
        told = measured(gateway, lambda: did.update(app.handle({}, Context("sweep_jobs"), mine)))
        return replace(told, read=due_jobs.read, counted=due_jobs.told, did=did)

    return sweep


def check(found: Mapping[int, AtSize]) -> None:
    """Raises NotMeasuredError where something depends on the open jobs that mustn't.

    These are calls and units of a job, and of a due job in a sweep; and how many jobs are read one
    by one.
    """
    sizes = list(found.values())
    for path in sizes[0].paths:
        costs = {size.paths[path].cost: size.paths[path].told for size in sizes}
        if len(costs) > 1:
            raise report.NotMeasuredError(f"{path}: calls, RRU and WRU differ: {costs}")
    for due in DUE[1:]:
        more = {_of_due(size.sweeps[due]) for size in sizes}
        if len(more) > 1:
            raise report.NotMeasuredError(f"{due} due jobs: calls or units differ: {sorted(more)}")
    for number_of_jobs, size in found.items():
        if (read := max(sweep.read for sweep in size.sweeps.values())) > MOST_READ:
            raise report.NotMeasuredError(f"{read} of {number_of_jobs} jobs were read one by one")


def _of_due(sweep: Measured) -> tuple[int, int, float, float]:
    """Calls for jobs, messages sent, RRU and WRU of these calls.

    What else a sweep reads, such as the state and the gates, hangs on the age of its copies.
    """
    mine = [call for call in sweep.calls if call.rows == "job"]
    units = sum((call.units for call in mine), Units())
    return sum(call.requests for call in mine), sweep.did.get("sent", 0), units.read, units.write


# ------------------------------------------------------------------------------------ stack


@contextmanager
def bench_on_local_stack() -> Iterator[Bench]:
    """A stack of its own whose DynamoDB is DynamoDB Local. Raises NotMeasuredError without Java."""
    folder = report.ROOT / state.FOLDER
    reason = dynamodb_local.unavailable(folder)
    if reason is not None:
        raise report.NotMeasuredError(reason)
    home = dynamodb_local.fetch(folder)
    with ExitStack() as ends:
        draft = ends.enter_context(tempfile.TemporaryDirectory(prefix="sluiceway-bench-"))
        process, url = dynamodb_local.start(home, Path(draft) / "log")
        ends.callback(process.stop)
        gateway = ends.enter_context(
            aws_calls.gateway_on_local_stack(CATALOGUE, dynamodb_url=url, make_tables=make_tables)
        )
        catalogue = catalogues.parse(CATALOGUE.format(url="http://127.0.0.1:9"))
        target = Target(gateway.local.api_url, outputs=gateway.local.outputs, local=True)
        job = target.jobs.get("acme", gateway.submit(gateway.prompt()))
        if job is None:
            raise report.NotMeasuredError("there is no job to make others like")
        gateway.ask("POST", f"/jobs/{job.job_id}/cancel", "acme")
        kinds = kinds_of(job, target.clock.now_ms())
        filler = Filler(url, target.outputs["JobsTableName"], kinds)
        yield Bench(gateway, filler, sweeps_with(gateway, filler, catalogue), Looker(target))


def make_tables(client: Any, outputs: Mapping[str, str]) -> None:
    """The tables that the template has, under the names that were deployed."""
    for logical_id in TABLES:
        properties = template_resources()[logical_id]["Properties"]
        wanted = ("KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes", "BillingMode")
        definition = {name: properties[name] for name in wanted if name in properties}
        client.create_table(TableName=outputs[f"{logical_id}Name"], **definition)


# ------------------------------------------------------------------------------------ report


def parts(found: Mapping[int, AtSize]) -> list[report.Part]:
    """For people."""
    sizes = ", ".join(f"{size:,}" for size in found)
    return [
        f"With {sizes} open jobs each of these costs the same.",
        report.Table("Of a job", ["path", "calls", "RRU", "WRU"], _path_lines(found)),
        report.Table(
            "A sweep",
            [
                *("open jobs", "due jobs", "calls", "RRU", "WRU", "jobs read one by one"),
                *("jobs counted by DynamoDB", "messages sent", "CPU, ms"),
            ],
            _sweep_lines(found),
        ),
        report.Plot(
            "sweep",
            "What a sweep takes of this process",
            x="open jobs",
            y="CPU, ms",
            series={
                f"{due:,} due": [
                    (size, round(at.sweeps[due].cpu_ms, 1)) for size, at in found.items()
                ]
                for due in DUE
            },
            log_x=True,
        ),
        report.Plot(
            "calls",
            "AWS calls",
            x="open jobs",
            y="calls",
            series={
                "a job: submit, run": [
                    (
                        size,
                        at.paths["submit, fresh"].count
                        + at.paths["run, first attempt succeeds"].count,
                    )
                    for size, at in found.items()
                ],
                "a sweep with nothing due": [
                    (size, at.sweeps[0].count) for size, at in found.items()
                ],
                "sluiceway status": [
                    (size, at.looks["`sluiceway status`"].count) for size, at in found.items()
                ],
            },
            log_x=True,
        ),
        report.Table(
            "Lists and status",
            ["what", "open jobs", "calls", "RRU", "CPU, ms"],
            _look_lines(found),
        ),
    ]


def _path_lines(found: Mapping[int, AtSize]) -> list[list[str]]:
    paths = next(iter(found.values())).paths
    return [
        [path, str(one.count), number(one.units.read), number(one.units.write)]
        for path, one in paths.items()
    ]


def _sweep_lines(found: Mapping[int, AtSize]) -> list[list[str]]:
    return [
        [
            *(f"{size:,}", f"{due:,}", f"{sweep.count:,}"),
            *(number(sweep.units.read), number(sweep.units.write)),
            *(f"{sweep.read:,}", f"{sweep.counted:,}", f"{sweep.did.get('sent', 0):,}"),
            f"{sweep.cpu_ms:,.0f}",
        ]
        for size, at in found.items()
        for due, sweep in at.sweeps.items()
    ]


def _look_lines(found: Mapping[int, AtSize]) -> list[list[str]]:
    return [
        [
            *(name, f"{size:,}", str(one.count), number(one.units.read)),
            f"{one.cpu_ms:,.0f}",
        ]
        for name in next(iter(found.values())).looks
        for size, at in found.items()
        for one in [at.looks[name]]
    ]


def figures(found: Mapping[int, AtSize]) -> dict[str, Any]:
    """For programs: by open jobs."""
    return {
        str(size): {
            "paths": {name: _json_of(one) for name, one in at.paths.items()},
            "sweeps": {str(due): _json_of(one) for due, one in at.sweeps.items()},
            "looks": {name: _json_of(one) for name, one in at.looks.items()},
            "picture_bytes": at.picture_bytes,
        }
        for size, at in found.items()
    }


def _json_of(one: Measured) -> dict[str, Any]:
    return {
        "calls": one.count,
        "rru": one.units.read,
        "wru": one.units.write,
        "cpu_ms": round(one.cpu_ms, 1),
        "read": one.read,
        "counted": one.counted,
        "did": dict(one.did),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all was measured, and what mustn't depend on the open jobs doesn't."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--jobs",
            type=int,
            nargs="+",
            default=SIZES,
            help="open jobs, the fewest first (default: 1000 10000 100000)",
        )

    given = report.options(__doc__, arguments, add=add)
    if min(given.jobs) < max(DUE):
        raise report.NotMeasuredError(f"{max(DUE)} of the open jobs have to be due")
    found, began_s = {}, time.monotonic()
    # What the functions log and count is a part of their work, but of no use here.
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        bench_on_local_stack() as bench,
    ):
        for size in given.jobs:
            print(
                f"  {size:,} open jobs, after {time.monotonic() - began_s:.0f} s", file=sys.stderr
            )
            found[size] = bench.at(size)
    try:
        check(found)
    except report.NotMeasuredError:
        json.dump(figures(found), sys.stderr, indent=1)
        raise
    report.tell(given, "growth", figures=figures(found), parts=parts(found))
    return 0


if __name__ == "__main__":
    report.run(main)
