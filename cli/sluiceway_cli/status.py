"""What an operator on call wants to know of an installation, as one document.

Everything is read from tables and queues, bounded in rows and in time. A part that can't be read is
None, and `unknown` says why; it never keeps the others from being told.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.domain import flags
from sluiceway.domain.backlog import Backlog, Pace, Waits
from sluiceway.domain.catalogue import Catalogue, Service
from sluiceway.domain.errors import SluicewayError
from sluiceway.domain.gate import Gate, Limits
from sluiceway.domain.job import DUE_SHARDS, LANES, OPEN, JobStatus
from sluiceway.domain.times import rfc3339
from sluiceway.ports import Clock, DueJobs, IndexedJob, ServiceState
from sluiceway.usecases.paint_backlog import waits_of

from sluiceway_cli import pauses
from sluiceway_cli.configurations import History
from sluiceway_cli.counts import Counted
from sluiceway_cli.pauses import Lane
from sluiceway_cli.target import Target
from sluiceway_cli.times import age

COUNTED_ONE_BY_ONE = 5_000
"""Of more open jobs the sweeper's last picture tells, whatever their number."""

WITHIN_MS = 5_000
"""Counting them one by one ends then, or at twice as many as that."""

MINUTES = (5, 60)
"""Of the traffic."""

METRICS = {
    "submitted": "JobsSubmitted",
    "deduplicated": "JobsDeduplicated",
    "hits": "CacheHit",
    "stale": "CacheStale",
    "misses": "CacheMiss",
    "completed": "JobsCompleted",
    "failed": "JobsFailed",
    "dead_lettered": "JobsDeadLettered",
    "retries": "Retries",
}
"""Members of the traffic, and the metrics that they are."""

QUEUES = {
    "dead_letters": "DeadLetterQueueUrl",
    "webhooks": "WebhookQueueUrl",
    "webhook_dead_letters": "WebhookDeadLetterQueueUrl",
    "unpublished": "UnpublishedQueueUrl",
    "invalidations": "InvalidationDeadLetterQueueUrl",
}
"""The queues besides the lanes, and the stack's outputs with their addresses."""

FAILS_OFTEN = 0.05
"""So many failures for each end of a job are more than bad luck."""

RETRIES_OFTEN = 0.5
"""So many retries for each completed job."""

IDLE_S = 60
"""A job that waits so long while no worker is busy waits for nothing good."""

CLOCKS_DIFFER_MS = 5_000
"""Ages are told by this machine's clock."""

Found = TypeVar("Found")
Document = dict[str, Any]


@dataclass(slots=True)
class Looker:
    """Looks at an installation, again and again with the same clients."""

    target: Target
    _sqs: Any = None
    _lanes: dict[str, Lane] = field(default_factory=dict)
    _unknown: dict[str, str] = field(default_factory=dict)
    _deaf: dict[str, str] = field(default_factory=dict)
    """By service: why it didn't answer in this look; then it isn't asked again."""

    def look(self) -> Document:
        """The document; its members are in docs/operations.md, "Looking"."""
        self._unknown, self._deaf = {}, {}
        now_ms = self.target.clock.now_ms()
        catalogue = self._try("catalogue", self.target.catalogue, service="appconfig")
        known = catalogue or Catalogue()
        state = self._try("state", self._state, service="dynamodb")
        gates = self._try("models", partial(self._gates, known, now_ms), service="dynamodb")
        shut = {
            name
            for name, model in known.models.items()
            if (gate := (gates or {}).get(pauses.gate_of(model)[0])) is not None
            and (closed := gate.shut(now_ms)) is not None
            and not closed.far
        }
        paused = (state or ServiceState()).paused_tenants
        jobs = self._try(
            "jobs",
            partial(open_jobs, self.target, paused_tenants=paused, shut_models=shut),
            service="dynamodb",
        )
        lanes = self._told_lanes(jobs, state, now_ms)
        models = None
        if catalogue is not None and gates is not None:
            models = _models(catalogue, gates, jobs or OpenJobs(), now_ms)
        queues = {
            name: self._try(f"queue {name}", partial(self._messages, output), service="sqs")
            for name, output in QUEUES.items()
        }
        histories = self._try("versions", self._histories, service="appconfig")
        switched = self._try("flags", partial(self._switched, histories), service="appconfig")
        ahead_ms = self._try("clock", self.target.clock_ahead_ms, service="dynamodb")
        traffic = self._try(
            "traffic",
            lambda: _traffic(
                self.target.counts.count(tuple(METRICS.values()), MINUTES, now_ms=now_ms)
            ),
        )
        document: Document = {
            "at": rfc3339(now_ms),
            "installation": installation(self.target, catalogue, histories or {}),
            "degraded": None if state is None else _degraded(state, now_ms),
            "counted_all": jobs is None or jobs.whole,
            "counted_at": None if jobs is None else rfc3339(jobs.counted_at_epoch_ms),
            "lanes": lanes,
            "models": models,
            "traffic": traffic,
            "queues": queues,
            "paused": _paused(state, models, lanes),
            "switched": switched,
            "unknown": self._unknown,
        }
        problems = [*_problems(document, known.service), *_of_clock(ahead_ms or 0)]
        if catalogue is not None:
            problems = [*_of_models_gone(catalogue, jobs or OpenJobs()), *problems]
        return {"problems": problems, **document}

    def _try(
        self, part: str, read: Callable[[], Found], *, service: str | None = None
    ) -> Found | None:
        """`service`: of AWS; when it doesn't even answer, other parts don't wait for it."""
        if service in self._deaf:
            self._unknown[part] = self._deaf[service]
            return None
        try:
            return read()
        except ClientError as error:
            told = error.response["Error"]
            self._unknown[part] = f"{told.get('Code')}: {told.get('Message')}"
        except _CANT_READ as error:
            self._unknown[part] = str(error)
            if service is not None and _no_answer(error):
                self._deaf[service] = str(error)
        return None

    def _histories(self) -> dict[str, History]:
        """Of the catalogue and of the flags."""
        return {
            "catalogue": self.target.catalogue_profile.history(),
            "flags": self.target.flags_profile.history(),
        }

    def _switched(self, histories: Mapping[str, History] | None) -> list[str]:
        """The features that aren't as they come."""
        profile = self.target.flags_profile
        running = (profile.history() if histories is None else histories["flags"]).running
        return flags.told(json.loads("{}" if running is None else profile.text(running.version)))

    def _state(self) -> ServiceState:
        return self.target.state.read()

    def _picture(self) -> Backlog:
        return self.target.backlogs.read()

    def _gates(self, catalogue: Catalogue, now_ms: int) -> dict[str, Gate]:
        """By key."""
        keys = {pauses.gate_of(model)[0] for model in catalogue.models.values()}
        return {key: self.target.gates.look(key, now_ms=now_ms) for key in sorted(keys)}

    def _told_lanes(
        self,
        jobs: "OpenJobs | None",
        state: ServiceState | None,
        now_ms: int,
    ) -> dict[str, Document]:
        known = state or ServiceState()
        picture = None
        lanes: dict[str, Document] = {}
        for name in LANES:
            counts = None if jobs is None else _counted(jobs, name, now_ms)
            mapping = self._try(f"mapping of {name}", partial(self._mapping, name), service="sqs")
            workers = mapping[1] if mapping is not None else None
            if workers is None:  # as the sweeper painted it last
                picture = picture or self._try("workers", self._picture, service="dynamodb")
                workers = (picture.workers if picture else {}).get(name)
            lanes[name] = {
                **(counts or dict.fromkeys(_COUNTS)),
                "messages": self._try(
                    f"queue {name}",
                    partial(self._messages, f"{name.capitalize()}QueueUrl"),
                    service="sqs",
                ),
                "mapping_state": None if mapping is None else mapping[0],
                "paused": name in known.paused_lanes,
                "workers": workers,
            }
        return lanes

    def _mapping(self, name: str) -> tuple[str, int | None]:
        if name not in self._lanes:
            self._lanes[name] = self.target.lane(name)
        return self._lanes[name].look()

    def _messages(self, output: str) -> dict[str, int]:
        """About how many messages the queue has."""
        if output not in self.target.outputs:
            raise ValueError(f"the stack has no output {output}: deploy it again")
        self._sqs = self._sqs or self.target.client("sqs")
        attributes = self._sqs.get_queue_attributes(
            QueueUrl=self.target.outputs[output], AttributeNames=list(_ATTRIBUTES.values())
        )["Attributes"]
        return {name: int(attributes[attribute]) for name, attribute in _ATTRIBUTES.items()}


_CANT_READ = (
    *(BotoCoreError, SluicewayError, ImportError, LookupError, OSError, RuntimeError, ValueError),
)


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """The open jobs, counted here, or by the sweeper a moment ago."""

    counted_at_epoch_ms: int = 0
    whole: bool = True
    """False: there are as many at least."""
    waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By lane and model; "" for models of which there are too many."""
    processing: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The same."""
    waits: Mapping[str, Waits] = field(default_factory=dict)
    """By lane."""
    slots_kept: Mapping[str, int] | None = field(default_factory=dict)
    """By model; None: the sweeper doesn't tell."""

    @property
    def nearly(self) -> str:
        """What stands before the number of one model's jobs: the sweeper may have estimated it."""
        if self.slots_kept is None:
            return "about "
        return "" if self.whole else "at least "

    def open_of(self, model: str) -> int:
        """How many there are of a model."""
        return sum(
            many
            for counts in (self.waiting, self.processing)
            for (_, name), many in counts.items()
            if name == model
        )


def open_jobs(
    target: Target,
    *,
    paused_tenants: Collection[str] = (),
    shut_models: Collection[str] = (),
) -> OpenJobs:
    """The open jobs, counted at a cost that doesn't grow with a long backlog."""
    now_ms = target.clock.now_ms()
    picture = target.backlogs.read().at(now_ms)
    if picture.waits and picture.open > COUNTED_ONE_BY_ONE:  # one of older code tells no age
        return _as_painted(picture)
    jobs, whole = _indexed(target.due_jobs, target.clock)
    return OpenJobs(
        counted_at_epoch_ms=now_ms,
        whole=whole,
        waiting=Counter((job.lane, job.model) for job in jobs if not _at_work(job)),
        processing=Counter((job.lane, job.model) for job in jobs if _at_work(job)),
        waits=waits_of(jobs, now_ms=now_ms, paused_tenants=paused_tenants, shut_models=shut_models),
        slots_kept=Counter(
            job.model for job in jobs if not _at_work(job) and (job.slot_at_epoch_ms or 0) > now_ms
        ),
    )


def _at_work(job: IndexedJob) -> bool:
    return job.status == JobStatus.PROCESSING


def _indexed(due_jobs: DueJobs, clock: Clock) -> tuple[list[IndexedJob], bool]:
    """The open jobs, and whether these are all: reading them is bounded in rows and in time."""
    stop_at_ms = clock.now_ms() + WITHIN_MS
    found: list[IndexedJob] = []
    whole = True
    for shard in range(DUE_SHARDS):
        for number, job in enumerate(due_jobs.indexed(str(shard))):
            if number == 2 * COUNTED_ONE_BY_ONE // DUE_SHARDS or clock.now_ms() > stop_at_ms:
                whole = False
                break
            if job.status in OPEN:
                found.append(job)
    return found, whole


def _as_painted(picture: Backlog) -> OpenJobs:
    waiting: Counter[tuple[str, str]] = Counter(
        {(lane, ""): many for lane, many in picture.besides.items()}
    )
    processing: Counter[tuple[str, str]] = Counter()
    for group in picture.groups:
        waiting[group.lane, group.model] += group.waiting
        processing[group.lane, group.model] += group.running
    return OpenJobs(
        counted_at_epoch_ms=picture.measured_at_epoch_ms,
        waiting=waiting,
        processing=processing,
        waits=picture.waits,
        slots_kept=None,
    )


def _no_answer(error: BaseException) -> bool:
    """Also where an adapter told it in its own words."""
    return isinstance(error, BotoCoreError) or isinstance(error.__cause__, BotoCoreError)


_ATTRIBUTES = {
    "visible": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}

_COUNTS = ("open", "waiting", "parked", "processing", "oldest_age_s", "ready", "ready_for_s")


def _version(history: History) -> str:
    """Which is in force, and which is on its way."""
    running, coming = history.running, history.under_way
    told = "nothing pushed" if running is None else f"version {running.version}"
    if coming is not None:
        told += f", version {coming.version} on its way ({coming.percentage:g} %)"
    return told


def installation(
    target: Target, catalogue: Catalogue | None, histories: Mapping[str, History]
) -> list[dict[str, str]]:
    """What is being looked at, as rows of `name` and `value`: what is deployed, and with what."""
    where = "this folder's local stack" if target.local else target.region or "AWS"
    rows = [{"name": "api", "value": f"{target.api_url} ({where})"}]
    for name, history in histories.items():
        models = f", {len(catalogue.models)} models" if catalogue and name == "catalogue" else ""
        rows.append({"name": name, "value": _version(history) + models})
    return rows


def _counted(jobs: OpenJobs, lane: str, now_ms: int) -> Document:
    waiting, processing = (
        sum(many for (name, _), many in counts.items() if name == lane)
        for counts in (jobs.waiting, jobs.processing)
    )
    waits = jobs.waits.get(lane, Waits())
    return {
        "open": waiting + processing,
        "waiting": waiting,
        "parked": waits.parked,
        "processing": processing,
        "oldest_age_s": _age_s(waits.oldest_epoch_ms, now_ms),
        "ready": waits.ready,
        "ready_for_s": _age_s(waits.ready_since_epoch_ms, now_ms),
    }


def _age_s(since_ms: int, now_ms: int) -> int:
    return max(0, now_ms - since_ms) // 1000 if since_ms else 0


def _models(
    catalogue: Catalogue, gates: Mapping[str, Gate], jobs: OpenJobs, now_ms: int
) -> list[Document]:
    """One for each gate, which models of one `vendor_model` share."""
    told = []
    by_gate = sorted(((pauses.gate_of(model)[0], name) for name, model in catalogue.models.items()))
    for key, group in groupby(by_gate, lambda one: one[0]):
        names = [name for _, name in group]
        model, gate = catalogue.models[names[0]], gates[key]
        limits = Limits.of(model)
        share = gate.rate_permille(now_ms) / 1000
        kept = jobs.slots_kept
        told.append(
            {
                "models": names,
                "vendor": model.vendor,
                "vendor_model": model.vendor_model,
                "state": _state_of(gate, now_ms),
                "closed_until": _ahead(gate.closed_until_ms, now_ms),
                "requests_per_minute": limits.requests_per_minute,
                "requests_per_minute_now": round(limits.requests_per_minute * share),
                "tokens_per_minute": limits.tokens_per_minute,
                "tokens_per_minute_now": round(limits.tokens_per_minute * share),
                "next_slot": _ahead(Pace.of(gate, limits, now_ms=now_ms).slot_at_epoch_ms, now_ms),
                "slots_kept": None if kept is None else sum(kept.get(name, 0) for name in names),
                "waiting": sum(many for (_, name), many in jobs.waiting.items() if name in names),
            }
        )
    return told


def _state_of(gate: Gate, now_ms: int) -> str:
    """`paused`, `down`: the vendor fails, `closed`: it refused calls, or `open`."""
    if gate.paused:
        return "paused"
    if gate.probing:
        return "down"
    return "closed" if gate.closed_until_ms > now_ms else "open"


def _ahead(moment_ms: int, now_ms: int) -> str | None:
    return rfc3339(moment_ms) if moment_ms > now_ms else None


def _degraded(state: ServiceState, now_ms: int) -> Document:
    since_ms = state.degraded_since_epoch_ms
    return {
        "on": since_ms is not None,
        "since": rfc3339(since_ms),
        "for_s": None if since_ms is None else max(0, now_ms - since_ms) // 1000,
    }


def _traffic(counted: Counted) -> Document:
    return {
        "counted_all": counted.whole,
        **{f"last_{minutes}_min": _sums(counted.sums[minutes]) for minutes in MINUTES},
    }


def _sums(sums: Mapping[str, int]) -> Document:
    told: Document = {name: sums.get(metric, 0) for name, metric in METRICS.items()}
    hits = told["hits"] + told["stale"]
    looked = hits + told["misses"]
    return {**told, "hit_ratio": round(hits / looked, 3) if looked else None}


def _paused(
    state: ServiceState | None, models: list[Document] | None, lanes: Mapping[str, Document]
) -> list[str]:
    """Subjects, as `sluiceway pause` takes them."""
    paused = [
        f"lane:{name}"
        for name, lane in lanes.items()
        if lane["paused"] or lane["mapping_state"] not in {None, "Enabled"}
    ]
    paused += sorted(
        f"model:{name}"
        for one in models or ()
        if one["state"] == "paused"
        for name in one["models"]
    )
    return paused + sorted(f"tenant:{name}" for name in (state.paused_tenants if state else ()))


# ------------------------------------------------------------------------------------ problems


def _problem(level: str, text: str, then: str = "") -> Document:
    """`level`: `bad` or `warning`. `then`: the command or the section to go on with."""
    return {"level": level, "text": text, "then": then}


def _problems(document: Document, service: Service) -> list[Document]:
    """What is wrong, the worst first."""
    found = [
        *_of_degraded(document),
        *_of_queues(document["queues"]),
        *_of_lanes(document, service),
        *_of_models(document["models"] or ()),
        *_of_traffic(document["traffic"]),
        *_of_pauses(document),
        *(_problem("warning", text, "sluiceway flags show") for text in document["switched"] or ()),
        *_of_unknown(document["unknown"]),
    ]
    return sorted(found, key=lambda one: one["level"] != "bad")


def _of_pauses(document: Document) -> Iterable[Document]:
    """Those that somebody made; models of one gate are paused together."""
    lanes = {
        f"lane:{name}"
        for name, lane in document["lanes"].items()
        if not lane["paused"] or lane["mapping_state"] == "Enabled"
    }
    by_gate = [
        [f"model:{name}" for name in one["models"]]
        for one in document["models"] or ()
        if one["state"] == "paused"
    ]
    others = [
        [subject]
        for subject in document["paused"]
        if subject not in lanes and not subject.startswith("model:")
    ]
    for subjects in (*by_gate, *others):
        are = "is" if len(subjects) == 1 else "are"
        text = f"{', '.join(subjects)} {are} paused"
        yield _problem("warning", text, f"sluiceway resume {subjects[0]}")


def _of_clock(ahead_ms: int) -> Iterable[Document]:
    if abs(ahead_ms) > CLOCKS_DIFFER_MS:
        way = "ahead of" if ahead_ms > 0 else "behind"
        text = (
            f"this machine's clock is {abs(ahead_ms) // 1000} s {way} that of AWS: ages are wrong"
        )
        yield _problem("warning", text, "set it before anything else")


def _of_unknown(unknown: Mapping[str, str]) -> Iterable[Document]:
    """One for each reason."""
    parts: dict[str, list[str]] = {}
    for part, reason in unknown.items():
        parts.setdefault(reason, []).append(part)
    for reason, those in parts.items():
        yield _problem("warning", f"unknown: {', '.join(those)}: {reason}")


def _of_degraded(document: Document) -> Iterable[Document]:
    degraded = document["degraded"]
    if degraded is not None and degraded["on"]:
        lasts = age(degraded["for_s"])
        yield _problem("bad", f"degraded mode for {lasts}", "docs/caching.md, Degraded mode")


def _of_queues(queues: Mapping[str, Any]) -> Iterable[Document]:
    told = {
        "dead_letters": ("bad", "in the dead-letter queue", "sluiceway dlq list"),
        "webhook_dead_letters": (
            "warning",
            "in the webhooks' dead-letter queue",
            "docs/operations.md, Event bus and webhooks",
        ),
        "unpublished": (
            "bad",
            "in the queue of what publishing gave up on",
            "docs/operations.md, Event bus and webhooks",
        ),
        "invalidations": (
            "bad",
            "in the queue of invalidations that could not be followed",
            "docs/operations.md, The cache",
        ),
    }
    for name, (level, where, then) in told.items():
        messages = sum((queues.get(name) or {}).values())
        if messages:
            what = "1 message is" if messages == 1 else f"{messages} messages are"
            yield _problem(level, f"{what} {where}", then)


def _of_lanes(document: Document, service: Service) -> Iterable[Document]:
    for name, lane in document["lanes"].items():
        state = lane["mapping_state"]
        off = state not in {None, "Enabled"}
        if lane["paused"] and state == "Enabled":
            text = f"lane:{name} is paused by half: its mapping is Enabled, so its jobs run"
            yield _problem("warning", text, f"sluiceway pause lane:{name}")
        if off and not lane["paused"]:
            text = f"nobody paused lane:{name}, and its mapping is {state}"
            yield _problem("bad", text, f"sluiceway resume lane:{name}")
        if lane["open"] is None:
            continue
        oldest_s = lane["oldest_age_s"]
        if oldest_s >= service.degraded_after_s:
            text = f"the oldest job of {name} waits for {age(oldest_s)}"
            yield _problem("bad", text, "docs/runbook.md, Jobs wait too long")
        elif oldest_s >= service.degraded_until_s:
            text = f"the oldest job of {name} waits for {age(oldest_s)}"
            yield _problem("warning", text, "docs/runbook.md, Jobs wait too long")
        ready = lane["ready"]
        if ready and not lane["processing"] and not off and lane["ready_for_s"] >= IDLE_S:
            text = f"jobs of {name} wait, and no worker is busy"
            yield _problem("bad", text, "docs/runbook.md, Workers are idle while jobs wait")
        if ready and lane["workers"] and lane["processing"] >= lane["workers"]:
            text = f"all {lane['workers']} workers of {name} are busy, and {ready} jobs wait"
            yield _problem("warning", text, "docs/capacity.md")


def _of_models(models: Iterable[Document]) -> Iterable[Document]:
    for one in models:
        names, until = ", ".join(one["models"]), one["closed_until"]
        if one["state"] == "down":
            when = f"closed until {until}" if until else "one call at a time probes it"
            text = f"the vendor of {names} is down: {when}"
            yield _problem("bad", text, "docs/runbook.md, Before anything else")
        elif one["state"] == "closed":
            text = f"the gate of {names} is closed until {until}"
            yield _problem("bad", text, "docs/runbook.md, Slow a vendor or a tenant down")
        elif one["requests_per_minute_now"] < one["requests_per_minute"]:
            now, most = one["requests_per_minute_now"], one["requests_per_minute"]
            text = f"{names} runs at {now} of {most} a minute since the vendor refused calls"
            yield _problem("warning", text)


def _of_models_gone(catalogue: Catalogue, jobs: OpenJobs) -> Iterable[Document]:
    """Open jobs that nobody can run."""
    named = {name for _, name in (*jobs.waiting, *jobs.processing)}
    for name in sorted(named - catalogue.models.keys() - {""}):
        many = jobs.open_of(name)
        those = f"{jobs.nearly}1 open job is" if many == 1 else f"{jobs.nearly}{many} open jobs are"
        will = "it" if many == 1 else "they"
        text = f"{those} of {name}, which the catalogue lacks: {will} will fail"
        yield _problem("bad", text, "docs/runbook.md, Roll back a catalogue")


def _of_traffic(traffic: Document | None) -> Iterable[Document]:
    if traffic is None:
        return
    last = traffic[f"last_{MINUTES[0]}_min"]
    ends = last["completed"] + last["failed"]
    if last["failed"]:
        level = "bad" if last["failed"] >= FAILS_OFTEN * ends else "warning"
        text = f"{last['failed']} of {ends} jobs that ended in the last {MINUTES[0]} min failed"
        yield _problem(level, text, "docs/runbook.md, Why did this job fail")
    if last["retries"] > RETRIES_OFTEN * max(last["completed"], 1):
        jobs = (
            "1 completed job" if last["completed"] == 1 else f"{last['completed']} completed jobs"
        )
        text = f"{last['retries']} retries for {jobs} in {MINUTES[0]} min"
        yield _problem("warning", text, "docs/runbook.md, Before anything else")
