"""The composition root: reads the environment, and wires ports to adapters, once.

Nothing else reads the environment or makes a client. Each function calls its own builder on its
first event and keeps what it gives while it is warm.
"""

from __future__ import annotations

import gc

# A start makes a hundred thousand objects that stay, and Python would look through them for garbage
# time and again: 6 % of a cold start. What an event leaves behind is collected all the same.
gc.set_threshold(50_000)

import operator
import os
import random
import secrets
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import botocore
import botocore.session
from botocore.config import Config

from sluiceway.adapters import signatures
from sluiceway.adapters.dynamodb import Table
from sluiceway.telemetry import PowertoolsTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluiceway.adapters.appconfig import AppConfigReader
    from sluiceway.adapters.dynamodb_cache import DynamoDBCache
    from sluiceway.adapters.valkey_cache import ValkeyCache
    from sluiceway.domain.catalogue import Catalogue
    from sluiceway.ports import (
        Clock,
        EventBus,
        Flags,
        JobQueue,
        JobStore,
        PartnerKeys,
        PayloadStore,
        ResultCache,
        WebhookEndpoints,
        WebhookQueue,
        WebhookSecrets,
    )
    from sluiceway.routes.request import ApiDeps
    from sluiceway.usecases.deliver_webhook import Courier
    from sluiceway.usecases.invalidate_cache import Invalidator
    from sluiceway.usecases.manage_webhooks import Registrar
    from sluiceway.usecases.run_job import Worker
    from sluiceway.usecases.sweep_jobs import Sweeper

# Two things that botocore does for each call, and each takes a tenth of its time: it looks at every
# value of every parameter, as the services do again and the tests do of every call, and it
# spells out the machine and all features for the user agent, twice.
_LEAN = Config(parameter_validation=False, user_agent=f"Botocore/{botocore.__version__} sluiceway")
# botocore's own defaults change between versions, so what the protocol relies on is said here.
_STORE_CONFIG = _LEAN.merge(
    Config(
        connect_timeout=1.0,
        read_timeout=3.0,
        retries={"mode": "standard", "total_max_attempts": 2},
    )
)
# What a request doesn't wait for: one try, and at most a second.
_HASTY_CONFIG = _LEAN.merge(
    Config(
        connect_timeout=0.5,
        read_timeout=0.5,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
)
_SIGNED_URLS = Config(signature_version="s3v4")
# One try: connect and read together stay under sqs_queue.SEND_LIMIT_S.
SEND_CONFIG = _LEAN.merge(
    Config(
        connect_timeout=0.5,
        read_timeout=1.5,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment variables that template.yaml sets, in lower case.

    A function has those that it uses; the others are empty. No pydantic here: the authorizer does
    without it, and it is a fifth of a start-up.
    """

    jobs_table: str = ""
    cache_backend: str = ""
    cache_table: str = ""
    cache_url: str = ""
    coordination_table: str = ""
    idempotency_table: str = ""
    partners_table: str = ""
    payload_bucket: str = ""
    interactive_queue_url: str = ""
    batch_queue_url: str = ""
    webhook_queue_url: str = ""
    webhook_master: str = ""
    event_bus: str = ""
    configuration: str = ""
    target: str = ""
    lease_s: int = 0
    interactive_workers: int = 0
    batch_workers: int = 0

    @classmethod
    def from_environment(cls, *names: str) -> Settings:
        """The settings of these names; with `cache_backend`, what that one needs, too.

        Raises KeyError for one that isn't set.
        """
        given = {name: os.environ[name.upper()] for name in names}
        if backend := given.get("cache_backend"):
            name = _CACHE_BACKENDS[backend]
            given[name] = os.environ[name.upper()]
        numbers = {name: int(given[name]) for name in _NUMBERS if name in given}
        return cls(**{**given, **numbers})  # type: ignore[arg-type]

    @property
    def local(self) -> bool:
        """Whether this stack runs on an emulator: webhooks may go anywhere then."""
        return self.target == "local"


_CACHE_BACKENDS = {"dynamodb": "cache_table", "valkey": "cache_url"}
"""Where entries may be, and the setting that says where exactly."""

_STORES = ("jobs_table", "cache_backend", "coordination_table", "payload_bucket")
_NUMBERS = ("lease_s", "interactive_workers", "batch_workers")
_LANES = ("interactive_queue_url", "batch_queue_url")


T = TypeVar("T")


class Live(Generic[T]):
    """What a function works with, under the configuration of the moment.

    Its parts are made once; what depends on the configuration is put together anew when that
    changes, and stays the same within an event.
    """

    def __init__(self, read: Callable[[], tuple[Any, ...]], build: Callable[..., T]) -> None:
        """`read` gives what `build` takes: the same objects until something has changed."""
        self.read = read
        self.build = build
        self._latest: tuple[tuple[Any, ...], T] | None = None

    def now(self) -> T:
        """Raises StoreBusyError when no configuration was ever read."""
        given = self.read()
        if self._latest is None or any(map(operator.is_not, given, self._latest[0])):
            self._latest = given, self.build(*given)
        return self._latest[1]


class SystemClock:
    """The machine's clock (port Clock)."""

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000


class AuthorizeDeps(NamedTuple):
    """What the authorizer works with."""

    keys: PartnerKeys
    clock: Clock
    telemetry: PowertoolsTelemetry


class RunDeps(NamedTuple):
    """What the worker works with; `worker` is of the configuration of the moment."""

    worker: Callable[[], Worker]
    queue: JobQueue
    lane_of_queue: dict[str, str]
    """By the queue's name, the last part of its ARN."""
    telemetry: PowertoolsTelemetry


class SweepDeps(NamedTuple):
    """What the sweeper works with; `sweeper` is made anew for each event, which ends in time."""

    sweeper: Callable[[Callable[[], int]], Sweeper]
    telemetry: PowertoolsTelemetry


class PublishDeps(NamedTuple):
    """What the publisher works with."""

    bus: EventBus
    endpoints: WebhookEndpoints
    webhooks: WebhookQueue
    telemetry: PowertoolsTelemetry
    pause: Callable[[float], None]


class InvalidateDeps(NamedTuple):
    """What the invalidator works with."""

    invalidator: Invalidator
    catalogue: Catalogue
    telemetry: PowertoolsTelemetry


class DeliverDeps(NamedTuple):
    """What the deliverer works with; `courier` is of the flags of the moment."""

    courier: Callable[[], Courier]
    webhooks: WebhookQueue
    telemetry: PowertoolsTelemetry


class CheckDeps(NamedTuple):
    """What the validator of catalogues works with."""

    lease_s: float
    telemetry: PowertoolsTelemetry


@cache
def authorize_deps() -> AuthorizeDeps:
    """For functions/authorize."""
    from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys  # noqa: PLC0415

    settings, telemetry = Settings.from_environment("partners_table"), PowertoolsTelemetry()
    return AuthorizeDeps(
        keys=DynamoDBPartnerKeys(
            _table(telemetry),
            settings.partners_table,
            hasty=lambda: Table(_client("dynamodb", _HASTY_CONFIG)),
        ),
        clock=SystemClock(),
        telemetry=telemetry,
    )


@cache
def api_deps() -> Live[ApiDeps]:
    """For functions/api."""
    from sluiceway.adapters.dynamodb_audit import DynamoDBAudit  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_batches import DynamoDBBatches  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_job_lists import DynamoDBJobLists  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_owed_answers import DynamoDBOwedAnswers  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_rates import DynamoDBRates  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_state import DynamoDBState  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_usage import DynamoDBUsage  # noqa: PLC0415
    from sluiceway.routes.request import ApiDeps  # noqa: PLC0415
    from sluiceway.usecases.invalidate_cache import Invalidator  # noqa: PLC0415
    from sluiceway.usecases.submit_job import Submitter  # noqa: PLC0415

    settings = Settings.from_environment(
        *(*_STORES, *_LANES, "idempotency_table", "webhook_queue_url", "webhook_master", "target"),
        "configuration",
    )
    telemetry = PowertoolsTelemetry()
    table, clock = _table(telemetry), SystemClock()
    jobs, results, payloads = _stores(settings, table, telemetry)
    state = DynamoDBState(table, settings.coordination_table, clock=clock)
    backlogs = DynamoDBBacklogs(table, settings.coordination_table, clock=clock)
    queue = _queue(settings, telemetry)
    registrar = cache(lambda: _registrar(settings, table, telemetry))
    idempotency = cache(lambda: _idempotency(table, settings.idempotency_table))

    def build(catalogue: Catalogue, flags: Flags) -> ApiDeps:
        telemetry.know_vendors(catalogue.vendor_by_model)
        return ApiDeps(
            submitter=Submitter(
                catalogue=catalogue,
                flags=flags,
                jobs=jobs,
                cache=results,
                state=state,
                rates=DynamoDBRates(table, settings.coordination_table),
                backlogs=backlogs,
                payloads=payloads,
                queue=queue,
                clock=clock,
                randomness=secrets.token_bytes,
                rand=random.random,
            ),
            invalidator=Invalidator(
                cache=results,
                state=state,
                audit=DynamoDBAudit(table, settings.jobs_table),
                clock=clock,
                telemetry=telemetry,
            ),
            lists=DynamoDBJobLists(table, settings.jobs_table),
            usage=DynamoDBUsage(table, settings.jobs_table, clock=clock),
            batches=DynamoDBBatches(table, settings.jobs_table),
            owed=DynamoDBOwedAnswers(table, settings.coordination_table),
            registrar=registrar,
            telemetry=telemetry,
            pause=time.sleep,
            idempotency=idempotency,
            local=settings.local,
        )

    catalogue_now, flags_now = _configuration(settings, telemetry)
    return Live(lambda: (catalogue_now(), flags_now()), build)


@cache
def run_deps() -> RunDeps:
    """For functions/run_job."""
    from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_gates import DynamoDBGates  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_latencies import DynamoDBLatencies  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_state import DynamoDBState  # noqa: PLC0415
    from sluiceway.adapters.http_vendors import HttpVendors  # noqa: PLC0415
    from sluiceway.adapters.secrets_manager import SecretsManagerKeys  # noqa: PLC0415
    from sluiceway.usecases.run_job import Worker  # noqa: PLC0415

    settings = Settings.from_environment(*_STORES, *_LANES, "lease_s", "configuration")
    telemetry = PowertoolsTelemetry()
    clock = SystemClock()
    table = _table(telemetry)
    jobs, results, payloads = _stores(settings, table, telemetry)
    secret_client: Callable[[], Any] = cache(lambda: _store("secretsmanager", telemetry))
    state = DynamoDBState(table, settings.coordination_table, clock=clock)
    latencies = DynamoDBLatencies(table, settings.coordination_table)
    backlogs = DynamoDBBacklogs(table, settings.coordination_table, clock=clock)
    vendors = HttpVendors(api_keys=SecretsManagerKeys(secret_client, clock), clock=clock)

    def build(catalogue: Catalogue) -> Worker:
        telemetry.know_vendors(catalogue.vendor_by_model)
        return Worker(
            catalogue=catalogue,
            jobs=jobs,
            cache=results,
            state=state,
            payloads=payloads,
            gates=DynamoDBGates(table, settings.coordination_table),
            latencies=latencies,
            backlogs=backlogs,
            vendors=vendors,
            clock=clock,
            telemetry=telemetry,
            rand=random.random,
            token=lambda: secrets.token_urlsafe(16),
            pause=time.sleep,
            lease_ms=settings.lease_s * 1000,
        )

    catalogue_now, _ = _configuration(settings, telemetry)
    return RunDeps(
        worker=Live(lambda: (catalogue_now(),), build).now,
        queue=_queue(settings, telemetry),
        lane_of_queue={
            settings.interactive_queue_url.rsplit("/", 1)[-1]: "interactive",
            settings.batch_queue_url.rsplit("/", 1)[-1]: "batch",
        },
        telemetry=telemetry,
    )


@cache
def sweep_deps() -> SweepDeps:
    """For functions/sweep_jobs."""
    from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_due_jobs import DynamoDBDueJobs  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_gates import DynamoDBGates  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs, TableNames  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_latencies import DynamoDBLatencies  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_state import DynamoDBState  # noqa: PLC0415
    from sluiceway.usecases.sweep_jobs import Sweeper  # noqa: PLC0415

    settings = Settings.from_environment(
        *("jobs_table", "cache_backend", "coordination_table", *_LANES),
        *("interactive_workers", "batch_workers", "configuration", "event_bus"),
    )
    telemetry = PowertoolsTelemetry()
    table, clock = _table(telemetry), SystemClock()
    names = TableNames(settings.jobs_table, settings.cache_table, settings.coordination_table)
    jobs = DynamoDBJobs(table, names, _cache(settings, table, telemetry), clock=clock)
    due_jobs = DynamoDBDueJobs(table, settings.jobs_table)
    queue = _queue(settings, telemetry)
    state = DynamoDBState(table, settings.coordination_table, clock=clock)
    gates = DynamoDBGates(table, settings.coordination_table)
    latencies = DynamoDBLatencies(table, settings.coordination_table)
    backlogs = DynamoDBBacklogs(table, settings.coordination_table, clock=clock)
    bus = _bus(settings, telemetry)
    catalogue_now, flags_now = _configuration(settings, telemetry)

    def sweeper(time_left_ms: Callable[[], int]) -> Sweeper:
        catalogue = catalogue_now()
        telemetry.know_vendors(catalogue.vendor_by_model)
        return Sweeper(
            jobs=jobs,
            state=state,
            due_jobs=due_jobs,
            queue=queue,
            gates=gates,
            latencies=latencies,
            clock=clock,
            telemetry=telemetry,
            time_left_ms=time_left_ms,
            pause=time.sleep,
            catalogue=catalogue,
            flags=flags_now(),
            bus=bus,
            backlogs=backlogs,
            workers={"interactive": settings.interactive_workers, "batch": settings.batch_workers},
        )

    return SweepDeps(sweeper, telemetry)


@cache
def publish_deps() -> PublishDeps:
    """For functions/publish_events."""
    from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints  # noqa: PLC0415

    settings = Settings.from_environment("event_bus", "jobs_table", "webhook_queue_url")
    telemetry = PowertoolsTelemetry()
    return PublishDeps(
        bus=_bus(settings, telemetry),
        endpoints=DynamoDBEndpoints(_table(telemetry), settings.jobs_table),
        webhooks=_webhooks(settings, telemetry),
        telemetry=telemetry,
        pause=time.sleep,
    )


@cache
def deliver_deps() -> DeliverDeps:
    """For functions/deliver_webhook."""
    from sluiceway.adapters.dynamodb_cache import DynamoDBCache  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_deliveries import DynamoDBDeliveries  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs, TableNames  # noqa: PLC0415
    from sluiceway.adapters.http_webhooks import HttpWebhooks  # noqa: PLC0415
    from sluiceway.usecases.deliver_webhook import Courier  # noqa: PLC0415

    settings = Settings.from_environment(
        "jobs_table", "webhook_queue_url", "webhook_master", "configuration", "target"
    )
    telemetry, clock = PowertoolsTelemetry(), SystemClock()
    table = _table(telemetry)
    names = TableNames(settings.jobs_table, "", "")  # it ends no job, so it needs no other table
    jobs = DynamoDBJobs(table, names, DynamoDBCache(table, names.cache), clock=clock)
    webhook_secrets = _webhook_secrets(settings, telemetry)

    def build(flags: Flags) -> Courier:
        return Courier(
            jobs=jobs,
            endpoints=DynamoDBEndpoints(table, settings.jobs_table),
            delivery_log=DynamoDBDeliveries(table, settings.jobs_table),
            webhook_secrets=webhook_secrets,
            webhook_client=HttpWebhooks(local=settings.local),
            flags=flags,
            clock=clock,
            telemetry=telemetry,
            rand=random.random,
            local=settings.local,
        )

    _, flags_now = _configuration(settings, telemetry)
    return DeliverDeps(
        courier=Live(lambda: (flags_now(),), build).now,
        webhooks=_webhooks(settings, telemetry),
        telemetry=telemetry,
    )


@cache
def invalidate_deps() -> Live[InvalidateDeps]:
    """For functions/invalidate_cache."""
    from sluiceway.adapters.dynamodb_audit import DynamoDBAudit  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_state import DynamoDBState  # noqa: PLC0415
    from sluiceway.usecases.invalidate_cache import Invalidator  # noqa: PLC0415

    settings = Settings.from_environment(
        "jobs_table", "cache_backend", "coordination_table", "configuration"
    )
    telemetry, clock = PowertoolsTelemetry(), SystemClock()
    table = _table(telemetry)
    invalidator = Invalidator(
        cache=_cache(settings, table, telemetry),
        state=DynamoDBState(table, settings.coordination_table, clock=clock),
        audit=DynamoDBAudit(table, settings.jobs_table),
        clock=clock,
        telemetry=telemetry,
    )
    catalogue_now, _ = _configuration(settings, telemetry)
    return Live(
        lambda: (catalogue_now(),),
        lambda catalogue: InvalidateDeps(invalidator, catalogue, telemetry),
    )


@cache
def check_deps() -> CheckDeps:
    """For functions/check_catalogue."""
    settings = Settings.from_environment("lease_s")
    return CheckDeps(settings.lease_s, PowertoolsTelemetry())


def packaged_text() -> str:
    """What holds until a catalogue is pushed: `sluiceway/catalogue.toml` of the layer."""
    return resources.files("sluiceway").joinpath("catalogue.toml").read_text("utf-8")


def packaged_catalogue() -> Catalogue:
    """`packaged_text`, parsed."""
    from sluiceway.domain import catalogue  # noqa: PLC0415

    return catalogue.parse(packaged_text())


def _configuration(
    settings: Settings, telemetry: PowertoolsTelemetry
) -> tuple[AppConfigReader[Catalogue], AppConfigReader[Flags]]:
    """Readers of the catalogue and of the flags; what isn't read costs nothing."""
    from sluiceway.adapters.appconfig import AppConfigReader  # noqa: PLC0415
    from sluiceway.domain.flags import Defaults  # noqa: PLC0415

    client = _made_once(lambda: _store("appconfigdata", telemetry))
    hasty = _made_once(lambda: _client("appconfigdata", SEND_CONFIG))

    def on_failure(profile: str, reason: str) -> None:
        telemetry.event("configuration_kept", profile=profile, reason=reason)

    def ignore(profile: str) -> Callable[[Sequence[str]], None]:
        def told(names: Sequence[str]) -> None:
            telemetry.event("configuration_ignored", profile=profile, members=", ".join(names[:10]))

        return told

    def parse_flags(text: str) -> Flags:
        from sluiceway.adapters import powertools_flags  # noqa: PLC0415

        return powertools_flags.parse_flags(text, on_unknown=ignore("flags"))

    def parse_catalogue(text: str) -> Catalogue:
        from sluiceway.domain import catalogue  # noqa: PLC0415

        return catalogue.parse(text, on_unknown=ignore("catalogue"))

    return (
        AppConfigReader(
            client,
            settings.configuration,
            "catalogue",
            hasty=hasty,
            parse=parse_catalogue,
            otherwise=packaged_catalogue,
            clock=SystemClock(),
            on_failure=on_failure,
        ),
        AppConfigReader(
            client,
            settings.configuration,
            "flags",
            hasty=hasty,
            parse=parse_flags,
            otherwise=Defaults,
            clock=SystemClock(),
            on_failure=on_failure,
        ),
    )


@cache
def session() -> botocore.session.Session:
    """The session of all clients. What boto3 puts around it, a twelfth of a start, nobody uses."""
    return botocore.session.get_session()


def _client(service: str, config: Config) -> Any:
    return session().create_client(service, config=config)


def _store(service: Any, telemetry: PowertoolsTelemetry, config: Config = _STORE_CONFIG) -> Any:
    """A client that may try again. Those with one try don't: a send that waited is given up."""
    return signatures.renew(_client(service, config), lambda: telemetry.event("signature_expired"))


def _table(telemetry: PowertoolsTelemetry) -> Table:
    return Table(_store("dynamodb", telemetry))


def _stores(
    settings: Settings, table: Table, telemetry: PowertoolsTelemetry
) -> tuple[JobStore, ResultCache, PayloadStore]:
    from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs, TableNames  # noqa: PLC0415
    from sluiceway.adapters.s3_payloads import S3Payloads  # noqa: PLC0415

    names = TableNames(settings.jobs_table, settings.cache_table, settings.coordination_table)
    results = _cache(settings, table, telemetry)
    payload_client = _made_once(lambda: _store("s3", telemetry, _STORE_CONFIG.merge(_SIGNED_URLS)))
    return (
        DynamoDBJobs(table, names, results, clock=SystemClock()),
        results,
        S3Payloads(payload_client, settings.payload_bucket),
    )


def _made_once(make: Callable[[], Any]) -> Callable[[], Any]:
    """`make` at first use. Clients may be shared by threads, but not made by several at once."""
    lock, made = Lock(), cache(make)

    def get() -> Any:
        with lock:
            return made()

    return get


def _cache(
    settings: Settings, table: Table, telemetry: PowertoolsTelemetry
) -> DynamoDBCache | ValkeyCache:
    """The cache of the stack. Valkey's client is in a layer that only its stacks have."""
    if settings.cache_backend == "valkey":
        from sluiceway.adapters import valkey_cache  # noqa: PLC0415

        return valkey_cache.ValkeyCache(
            valkey_cache.connect(settings.cache_url),
            clock=SystemClock(),
            on_failure=lambda what, error_class: telemetry.event(
                "cache_unreachable", what=what, error_class=error_class
            ),
        )
    from sluiceway.adapters.dynamodb_cache import DynamoDBCache  # noqa: PLC0415

    return DynamoDBCache(table, settings.cache_table)


def _idempotency(table: Table, name: str) -> Any:
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415
        DynamoDBPersistenceLayer,
    )

    return DynamoDBPersistenceLayer(table_name=name, boto3_client=table.client)


def _registrar(settings: Settings, table: Table, telemetry: PowertoolsTelemetry) -> Registrar:
    from sluiceway.adapters.dynamodb_deliveries import DynamoDBDeliveries  # noqa: PLC0415
    from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints  # noqa: PLC0415
    from sluiceway.usecases.manage_webhooks import Registrar  # noqa: PLC0415

    return Registrar(
        endpoints=DynamoDBEndpoints(table, settings.jobs_table),
        delivery_log=DynamoDBDeliveries(table, settings.jobs_table),
        webhook_secrets=_webhook_secrets(settings, telemetry),
        webhooks=_webhooks(settings, telemetry),
        clock=SystemClock(),
        randomness=secrets.token_bytes,
    )


def _bus(settings: Settings, telemetry: PowertoolsTelemetry) -> EventBus:
    from sluiceway.adapters.eventbridge_events import EventBridgeEvents  # noqa: PLC0415

    return EventBridgeEvents(
        _client("events", SEND_CONFIG),
        settings.event_bus,
        on_failure=lambda code: telemetry.event("publish_failed", to="bus", code=code),
    )


def _webhooks(settings: Settings, telemetry: PowertoolsTelemetry) -> WebhookQueue:
    from sluiceway.adapters.sqs_webhooks import SQSWebhooks  # noqa: PLC0415

    return SQSWebhooks(
        _client("sqs", SEND_CONFIG),
        settings.webhook_queue_url,
        on_failure=lambda code: telemetry.event("publish_failed", to="webhooks", code=code),
    )


def _webhook_secrets(settings: Settings, telemetry: PowertoolsTelemetry) -> WebhookSecrets:
    from sluiceway.adapters.secrets_manager_webhooks import SecretsManagerWebhooks  # noqa: PLC0415

    client: Callable[[], Any] = cache(lambda: _store("secretsmanager", telemetry))
    return SecretsManagerWebhooks(client, settings.webhook_master, SystemClock())


def _queue(settings: Settings, telemetry: PowertoolsTelemetry) -> JobQueue:
    from sluiceway.adapters.sqs_queue import SQSJobQueue  # noqa: PLC0415

    return SQSJobQueue(
        _client("sqs", SEND_CONFIG),
        {"interactive": settings.interactive_queue_url, "batch": settings.batch_queue_url},
        on_failure=lambda error_class: telemetry.event("send_failed", error_class=error_class),
    )
