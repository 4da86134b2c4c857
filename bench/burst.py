"""Measure a burst on the emulator, against a vendor that enforces its own limit.

Each scenario has a stack and a vendor of its own. The lanes are paused while a burst is submitted,
so that it is there as a whole when they go on; the workers are warm by then.

met       the vendor allows what the catalogue says
halved    it allows half of that, and nobody told the gateway
outage    it is down for a minute in the middle
fairness  one tenant's burst is there, and four small ones come after it
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boto3.dynamodb.types import TypeDeserializer
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway.bootstrap import SystemClock
from sluiceway.domain.job import JobStatus
from sluiceway_cli.api import Api
from sluiceway_cli.keys import create_key
from sluiceway_local import emulator, processes, stack
from sluiceway_local.state import LocalStack

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report
from bench.vendor import Limit, Vendor, percentiles, started

DUPLICATES = 0.4
"""Of the submits of a burst."""

TENANTS = ("acme", "globex", "initech")
BIG, SMALL = "acme", ("bluth", "globex", "hooli", "initech")
BIG_JOBS, SMALL_JOBS, SMALL_COME_AFTER_S = 500, 10, 10.0

VENDOR_BURST, GATE_BURST = 10, 5
"""A gate that allows the vendor's whole burst leaves nothing for what delays calls on their way."""

OUTAGE_S, OUTAGE_AFTER_S = 60, 20

SUBMITTERS = 6
WARM_CALLS, WARM_S = 24, 3.0
SEED = 20


@dataclass(frozen=True, slots=True)
class Setting:
    """What all scenarios share."""

    jobs: int
    per_minute: int
    latency_s: float
    give_up_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one burst."""

    scenario: str
    submitted: int
    jobs: int
    """Different ones."""
    lost: int
    """Not completed in the end."""
    vendor_per_minute: int
    took_s: float
    """From the first worker's start to the last answered call."""
    quota_used: float
    """Of what the vendor allowed in that time, its burst left out."""
    refused: int
    """Answers 429."""
    twice: int
    """Jobs that were answered more than once."""
    by_minute: tuple[float, ...]
    """The quota used in each whole minute from the first worker's start on."""
    refused_by_minute: tuple[int, ...]
    outage_calls: int = 0
    recovered_in_s: float = 0.0
    """From the end of the outage to the first answered call."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of one tenant's burst beside four small ones."""

    vendor_per_minute: int
    contended_s: float
    served: dict[str, int]
    """Starts of each tenant in that time."""
    jain: float
    alone_p95_s: float
    beside_p95_s: float
    lost: int


class Place:
    """A stack with a vendor, as a scenario uses it."""

    def __init__(self, local: LocalStack, vendor: Vendor, setting: Setting) -> None:
        self.local = local
        self.vendor = vendor
        self.setting = setting
        self._dynamodb = emulator.client("dynamodb", local.endpoint_url)
        self._lambda = emulator.client("lambda", local.endpoint_url)
        self._keys = dict(local.partners)

    def key(self, tenant: str) -> str:
        """An API key of the tenant."""
        if tenant not in self._keys:
            keys = DynamoDBPartnerKeys(
                Table(self._dynamodb), self.local.outputs["PartnersTableName"]
            )
            self._keys[tenant] = create_key(
                tenant, ("submit", "read"), keys=keys, clock=SystemClock()
            )[0]
        return self._keys[tenant]

    def submit(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> set[str]:
        """Submits for `(tenant, body)`; the ids of the jobs."""
        apis = {
            tenant: Api(self.local.api_url, self.key(tenant))
            for tenant in {tenant for tenant, _ in requests}
        }

        def send(one: tuple[str, dict[str, Any]]) -> str:
            job_id: str = apis[one[0]].submit(one[1])["id"]
            return job_id

        with ThreadPoolExecutor(SUBMITTERS) as pool:
            return set(pool.map(send, requests))

    def warm(self, lanes: Sequence[str]) -> None:
        """Lets every worker of the lanes start once, and forgets the calls."""
        for lane in lanes:
            body = {"model": "warm", "priority": lane, "options": {"sim": {"delay_s": WARM_S}}}
            self.submit([("acme", body | {"input": f"{lane} {n}"}) for n in range(WARM_CALLS)])
        self.wait(lambda: not self.open_jobs(), "the workers didn't warm up")
        self.vendor.ask("DELETE", "calls")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No worker starts within."""
        name = self.local.outputs["RunJobFunctionName"]
        found = self._lambda.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
        for enabled in (False, True):
            for mapping in found:
                self._lambda.update_event_source_mapping(UUID=mapping["UUID"], Enabled=enabled)
            if not enabled:
                time.sleep(1)
                yield

    def rows(self) -> list[dict[str, Any]]:
        """Every job but those that warmed up."""
        read = TypeDeserializer().deserialize
        pages = self._dynamodb.get_paginator("scan").paginate(
            TableName=self.local.outputs["JobsTableName"],
            ConsistentRead=True,
            ProjectionExpression="tenant, job_id, #s, model, created_at_epoch_ms, "
            "started_at_epoch_ms, completed_at_epoch_ms, due_at_epoch_ms, cache_key, fence, "
            "attempts_total",
            ExpressionAttributeNames={"#s": "status"},
        )
        rows = [
            {name: read(value) for name, value in item.items()}
            for page in pages
            for item in page["Items"]
        ]
        return [row for row in rows if row.get("model") not in {"warm", None}]

    def open_jobs(self) -> int:
        """How many haven't ended."""
        left = self._dynamodb.scan(
            TableName=self.local.outputs["JobsTableName"],
            IndexName="due_at",
            Select="COUNT",
        )
        count: int = left["Count"]
        return count

    def wait(self, happened: Callable[[], bool], otherwise: str) -> None:
        """Raises RuntimeError when it doesn't happen in time."""
        if not processes.wait_for(happened, timeout_s=self.setting.give_up_s, pause_s=0.5):
            raise RuntimeError(otherwise)


@contextmanager
def place(
    setting: Setting,
    *,
    true_per_minute: int,
    in_flight: int = 5000,
    lanes: Sequence[str] = ("interactive", "batch"),
) -> Iterator[Place]:
    """A stack and a vendor, with warm workers in these lanes; both end with it."""
    catalogue = f"""
[vendors.simulator]
base_url = "http://127.0.0.1:1/v1"
api_key_secret = "sluiceway/vendors/simulator"

[models.limited]
vendor = "simulator"
vendor_model = "sim-limited-1"
version = "1"
requests_per_minute = {setting.per_minute}
burst = {GATE_BURST}
max_attempts = 10

[models.warm]
vendor = "warm"
vendor_model = "sim-warm-1"
version = "1"

[vendors.warm]
base_url = "http://127.0.0.1:1/v1"
api_key_secret = "sluiceway/vendors/simulator"

[tenants.default]
in_flight = {in_flight}
"""
    with tempfile.TemporaryDirectory(prefix="sluiceway-burst-") as name:
        folder = Path(name)
        (folder / "catalogue-of-burst.toml").write_text(catalogue)
        limit = Limit(true_per_minute, VENDOR_BURST)
        with started(limit, latency_s=setting.latency_s, log=folder / "vendor.log") as vendor:
            try:
                local = stack.up(
                    stack.source(),
                    port=emulator.free_port(),
                    folder=folder,
                    vendor_url=f"{vendor.url}/v1",
                    catalogue=folder / "catalogue-of-burst.toml",
                )
                here = Place(local, vendor, setting)
                here.warm(lanes)
                yield here
            finally:
                stack.down(folder)


def burst_of(jobs: int, tenants: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The submits of a burst in a random order: for each tenant as many, some of them again."""
    rng = random.Random(SEED)  # noqa: S311
    each = jobs // len(tenants)
    different = round(each * (1 - DUPLICATES))
    wanted = [
        (tenant, {"model": "limited", "input": f"{tenant} {number % different}"})
        for tenant in tenants
        for number in range(each)
    ]
    rng.shuffle(wanted)
    return wanted


def run_burst(setting: Setting, scenario: str) -> Figures:
    """One of met, halved and outage."""
    true = setting.per_minute // (2 if scenario == "halved" else 1)
    # So many that the minutes that count are whole ones.
    jobs = setting.jobs * {"met": 1, "halved": 2, "outage": 3}[scenario]
    submits = burst_of(jobs, TENANTS)
    with place(setting, true_per_minute=true) as here:
        with here.paused():
            ids = here.submit(submits)
        outage = (0.0, 0.0)
        if scenario == "outage":
            here.wait(lambda: bool(here.vendor.ask("GET", "times")["calls"]), "nothing was called")
            time.sleep(OUTAGE_AFTER_S)
            outage = (time.time(), time.time() + OUTAGE_S)
            here.vendor.ask("POST", "faults", {"fault": {"status": 503}, "for_s": OUTAGE_S})
        here.wait(lambda: not here.open_jobs(), "some jobs didn't end")
        rows, calls = here.rows(), here.vendor.ask("GET", "times")["calls"]
        by_prompt = here.vendor.ask("GET", "calls")["by_prompt"]
    began_s = min(int(row["started_at_epoch_ms"]) for row in rows) / 1000
    answered = [at_s for at_s, status in calls if status == 200]  # noqa: PLR2004
    refused = [at_s for at_s, status in calls if status == 429]  # noqa: PLR2004
    ended_s = max(answered)

    def in_minute(times: Sequence[float], minute: int) -> int:
        return sum(0 <= at_s - began_s - 60 * minute < 60 for at_s in times)  # noqa: PLR2004

    minutes = range(int((ended_s - began_s) // 60))
    usable_s = ended_s - began_s - (outage[1] - outage[0])
    return Figures(
        scenario=scenario,
        submitted=len(submits),
        jobs=len(ids),
        lost=len(ids)
        - sum(row["status"] == JobStatus.COMPLETED and row["job_id"] in ids for row in rows),
        vendor_per_minute=true,
        took_s=ended_s - began_s,
        quota_used=Limit(true, 0).used(len(answered) - GATE_BURST, in_s=usable_s),
        refused=len(refused),
        twice=sum(counts["charged"] > 1 for counts in by_prompt.values()),
        by_minute=tuple(in_minute(answered, minute) / true for minute in minutes),
        refused_by_minute=tuple(in_minute(refused, minute) for minute in minutes),
        outage_calls=sum(outage[0] <= at_s < outage[1] for at_s, _ in calls),
        recovered_in_s=min(
            (at_s - outage[1] for at_s in answered if at_s >= outage[1]), default=0.0
        ),
    )


def run_fairness(setting: Setting) -> Fairness:
    """The small tenants alone, and beside the big one."""
    alone_s: list[float] = []
    with place(setting, true_per_minute=setting.per_minute) as here:
        small = [
            (tenant, {"model": "limited", "input": f"{tenant} {number}"})
            for number in range(SMALL_JOBS)
            for tenant in SMALL
        ]
        here.submit(small)
        here.wait(lambda: not here.open_jobs(), "the small ones didn't end")
        alone_s = [_wait_s(row) for row in here.rows()]
    with place(setting, true_per_minute=setting.per_minute) as here:
        with here.paused():
            here.submit([(BIG, {"model": "limited", "input": f"{n}"}) for n in range(BIG_JOBS)])
        here.wait(lambda: bool(here.vendor.ask("GET", "times")["calls"]), "nothing was called")
        time.sleep(SMALL_COME_AFTER_S)
        came_ms = time.time() * 1000
        here.submit(small)
        here.wait(lambda: not here.open_jobs(), "some jobs didn't end")
        rows = here.rows()
    ended_ms = max(int(row["started_at_epoch_ms"]) for row in rows if row["tenant"] != BIG)
    served = Counter(
        str(row["tenant"]) for row in rows if came_ms <= int(row["started_at_epoch_ms"]) <= ended_ms
    )
    counts = [served[tenant] for tenant in (BIG, *SMALL)]
    return Fairness(
        vendor_per_minute=setting.per_minute,
        contended_s=(ended_ms - came_ms) / 1000,
        served=dict(sorted(served.items())),
        jain=sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)),
        alone_p95_s=percentiles(alone_s, 95)[0],
        beside_p95_s=percentiles([_wait_s(row) for row in rows if row["tenant"] != BIG], 95)[0],
        lost=sum(row["status"] != JobStatus.COMPLETED for row in rows),
    )


def _wait_s(row: dict[str, Any]) -> float:
    return (int(row["completed_at_epoch_ms"]) - int(row["created_at_epoch_ms"])) / 1000


# ------------------------------------------------------------------------------------ telling

HEAD = (
    *("scenario", "submits", "jobs", "vendor's limit", "took s", "quota used"),
    *("429", "twice", "lost"),
)


def _lines(found: Sequence[Figures]) -> list[tuple[str, ...]]:
    return [
        (
            one.scenario,
            str(one.submitted),
            str(one.jobs),
            f"{one.vendor_per_minute}/min",
            f"{one.took_s:.1f}",
            f"{one.quota_used:.1%}",
            str(one.refused),
            str(one.twice),
            str(one.lost),
        )
        for one in found
    ]


def _notes(found: Sequence[Figures], fair: Fairness | None) -> list[str]:
    notes = []
    for one in found:
        if one.scenario == "halved":
            minutes = ", ".join(
                f"{used:.0%} ({refused} times 429)"
                for used, refused in zip(one.by_minute, one.refused_by_minute, strict=True)
            )
            notes.append(f"The true limit used in each minute of halved: {minutes}.")
        if one.scenario == "outage":
            notes += [
                f"In the outage of {OUTAGE_S} s the vendor got {one.outage_calls} calls.",
                (
                    f"It answered again {one.recovered_in_s:.1f} s after the end of the outage, "
                    "whose time is left out of the quota used."
                ),
            ]
    if fair is not None:
        served = ", ".join(f"{tenant} {count}" for tenant, count in fair.served.items())
        notes += [
            (
                f"Fairness at {fair.vendor_per_minute}/min: {BIG} has {BIG_JOBS} jobs, and four "
                f"others come with {SMALL_JOBS} each {SMALL_COME_AFTER_S:g} s later."
            ),
            (
                f"In the {fair.contended_s:.0f} s until the last of theirs began, began {served}; "
                f"Jain's index {fair.jain:.3f}."
            ),
            (
                "From submit to result, 95 % of theirs take less than "
                f"{fair.beside_p95_s:.1f} s beside {BIG}, and {fair.alone_p95_s:.1f} s without; "
                f"lost: {fair.lost}."
            ),
        ]
    return notes


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was measured, whatever the figures say."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", action="append", choices=(*SCENARIOS, "fairness"))
        parser.add_argument("--jobs", type=int, default=600, help="submits of a burst")
        parser.add_argument("--per-minute", type=int, default=600)
        parser.add_argument("--fair-per-minute", type=int, default=60)
        parser.add_argument("--latency-s", type=float, default=0.3, help="of the vendor")
        parser.add_argument("--give-up-s", type=float, default=900)

    given = report.options(__doc__, arguments, add=add)
    setting = Setting(given.jobs, given.per_minute, given.latency_s, given.give_up_s)
    wanted = given.only or [*SCENARIOS, "fairness"]
    found = [run_burst(setting, scenario) for scenario in SCENARIOS if scenario in wanted]
    fair = None
    if "fairness" in wanted:
        fair = run_fairness(
            Setting(given.jobs, given.fair_per_minute, given.latency_s, given.give_up_s)
        )
    report.tell(
        given,
        "burst",
        figures={
            "setting": asdict(setting),
            "bursts": [asdict(one) for one in found],
            "fairness": asdict(fair) if fair else None,
        },
        parts=[
            report.Table("", HEAD, _lines(found)),
            "\n".join(f"- {note}" for note in _notes(found, fair)),
        ],
    )
    return 0


SCENARIOS = ("met", "halved", "outage")

if __name__ == "__main__":
    report.run(main)
