"""Which installation a command talks to."""

import json
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.adapters.dynamodb import Table, to_item
from sluiceway.adapters.dynamodb_audit import DynamoDBAudit
from sluiceway.adapters.dynamodb_backlog import DynamoDBBacklogs
from sluiceway.adapters.dynamodb_cache import DynamoDBCache
from sluiceway.adapters.dynamodb_deliveries import DynamoDBDeliveries
from sluiceway.adapters.dynamodb_due_jobs import DynamoDBDueJobs
from sluiceway.adapters.dynamodb_endpoints import DynamoDBEndpoints
from sluiceway.adapters.dynamodb_gates import DynamoDBGates
from sluiceway.adapters.dynamodb_job_lists import DynamoDBJobLists
from sluiceway.adapters.dynamodb_jobs import DynamoDBJobs, TableNames
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway.adapters.dynamodb_rates import DynamoDBRates
from sluiceway.adapters.dynamodb_state import STATE_KEY, DynamoDBState
from sluiceway.adapters.dynamodb_usage import DynamoDBUsage
from sluiceway.adapters.eventbridge_events import EventBridgeEvents
from sluiceway.adapters.powertools_flags import parse_flags
from sluiceway.adapters.s3_payloads import S3Payloads
from sluiceway.adapters.secrets_manager_webhooks import SecretsManagerWebhooks
from sluiceway.adapters.sqs_queue import SQSJobQueue
from sluiceway.adapters.sqs_webhooks import SQSWebhooks
from sluiceway.bootstrap import SEND_CONFIG, SystemClock, packaged_text
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.catalogue import Catalogue
from sluiceway.domain.job import Job, JobError
from sluiceway.domain.times import rfc3339
from sluiceway.ports import (
    AuditLog,
    Backlogs,
    Clock,
    DueJobs,
    EventBus,
    Flags,
    Gates,
    JobLists,
    JobQueue,
    JobStore,
    PartnerKeys,
    PayloadStore,
    StateStore,
    UsageReader,
)
from sluiceway.usecases.invalidate_cache import Invalidator
from sluiceway.usecases.manage_webhooks import Registrar
from sluiceway.usecases.submit_job import Submitter

from sluiceway_cli.configurations import Profile
from sluiceway_cli.counts import CloudWatchCounts, Counts
from sluiceway_cli.dead_letters import DeadLetters
from sluiceway_cli.dlq import Operator
from sluiceway_cli.logs import OUTPUTS, FunctionLogs
from sluiceway_cli.pauses import Lane, find_lane
from sluiceway_cli.records import Notifier, Recorder, local_actor

LOCAL_FILE = Path(".sluiceway/local.json")
KEY_VARIABLE = "SLUICEWAY_API_KEY"
URL_VARIABLE = "SLUICEWAY_API_URL"

_PATIENT = Config(connect_timeout=3, retries={"mode": "standard", "total_max_attempts": 2})


@cache
def emulator_session() -> Any:
    """A session of boto3 that makes the clients of an emulator.

    It reads nothing of the user's AWS: a profile that there isn't, or settings that an emulator
    knows nothing of, must not matter.
    """
    nothing = (None, None, None, None)
    no_file = (None, None, os.devnull, None)
    session = botocore.session.Session(
        session_vars={
            "profile": nothing,
            "config_file": no_file,
            "credentials_file": no_file,
            "use_fips_endpoint": nothing,
            "use_dualstack_endpoint": nothing,
        }
    )
    session.set_default_client_config(Config(proxies={}))  # none of them reaches our loopback
    session.set_credentials("test", "test")
    return boto3.Session(botocore_session=session)


class Quiet:
    """No telemetry: a command prints what it did (port Telemetry)."""

    def about(self, job: Job) -> None:
        """See Telemetry."""

    def event(self, name: str, job: Job | None = None, **fields: str | int | bool) -> None:
        """See Telemetry."""

    def span(self, name: str, job: Job) -> AbstractContextManager[None]:  # noqa: ARG002
        """See Telemetry."""
        return nullcontext()


def _ignore(members: Sequence[str]) -> None:
    """What newer code put into a configuration, which this one can't show."""


@dataclass(frozen=True)
class AwsClock:
    """AWS's time, told by this machine's clock (port Clock)."""

    clock: Clock
    ask: Callable[[], int]
    """How far it is ahead; asked when somebody wants to know the time, and once."""

    @cached_property
    def ahead_ms(self) -> int:
        """The answer."""
        return self.ask()

    def now_ms(self) -> int:
        """See Clock."""
        ahead_ms = self.ahead_ms  # first: it may take a while
        return self.clock.now_ms() - ahead_ms


@dataclass(frozen=True)
class Target:
    """An installation: its addresses, and how to reach its tables."""

    api_url: str
    outputs: dict[str, str] = field(default_factory=dict)
    partners: dict[str, str] = field(default_factory=dict)
    endpoint_url: str | None = None
    region: str | None = None
    local: bool = False
    """The stack of this folder."""
    vendor_url: str | None = None
    """Where all vendors of a local stack answer."""
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep
    """Waits that many seconds."""

    @property
    def can_read_tables(self) -> bool:
        """Whether this is an operator's view; a partner knows only the API's address."""
        return bool(self.outputs)

    def api_key(self, tenant: str | None) -> str:
        """The partner's key: of the environment, or of the local stack's partner `tenant`."""
        if tenant is not None:
            if tenant not in self.partners:
                known = ", ".join(self.partners) or "none"
                raise ValueError(f"no local partner {tenant!r}; there are: {known}")
            return self.partners[tenant]
        key = os.environ.get(KEY_VARIABLE)
        if not key:
            raise ValueError(f"set {KEY_VARIABLE}, or name a partner of the local stack: --tenant")
        return key

    def client(self, service: Any, config: Config = _PATIENT) -> Any:
        """A client of the installation's AWS services."""
        if self.endpoint_url is None:
            return boto3.client(service, config=config)
        return emulator_session().client(
            service,
            config=config,
            endpoint_url=self.endpoint_url,
            region_name=self.region,
        )

    def partner_keys(self) -> PartnerKeys:
        """The API keys."""
        return DynamoDBPartnerKeys(self._table, self._output("PartnersTableName"))

    def find_job(self, job_id: str, tenant: str | None = None) -> Job | None:
        """The job of this tenant; without one, of whichever tenant with a key has it.

        The owner is a part of a job's key, so there is no other way to find it by its id alone.
        """
        if tenant is not None:
            return self.jobs.get(tenant, job_id)
        tenants = sorted({key.tenant for key in self.partner_keys().all()})
        found = (self.jobs.get(owner, job_id) for owner in tenants)
        return next((job for job in found if job is not None), None)

    @cached_property
    def cache(self) -> DynamoDBCache:
        """What is cached; empty where entries are in Valkey, in a network that we are not in."""
        return DynamoDBCache(self._table, self._output("CacheTableName"))

    @property
    def reachable_cache(self) -> DynamoDBCache:
        """`cache`, where its entries can be seen from here. Raises ValueError."""
        if self.outputs.get("CacheBackend") == "valkey":
            raise ValueError(
                "the entries are in Valkey, in a network that the command line isn't in; "
                "invalidate a key by POST /admin/cache/invalidate or by an event"
            )
        return self.cache

    @cached_property
    def state(self) -> StateStore:
        """What holds for all functions."""
        return DynamoDBState(self._table, self._output("CoordinationTableName"), clock=self.clock)

    @cached_property
    def audit(self) -> AuditLog:
        """Who did what."""
        return DynamoDBAudit(self._table, self._output("JobsTableName"))

    @cached_property
    def record(self) -> Recorder:
        """Writes an audit record of what a command did: action and subject."""
        return Recorder(self.audit, self.clock, lambda: self.actor)

    @cached_property
    def bus(self) -> EventBus:
        """Where operators hear of what is switched."""
        return EventBridgeEvents(self.client("events"), self._output("EventBusName"))

    @cached_property
    def notify(self) -> Notifier:
        """Tells the bus of what a command switched: name, subject and facts."""
        return Notifier(self.bus, self.clock, lambda: self.actor)

    @cached_property
    def actor(self) -> str:
        """Who runs the command: whom AWS takes us for, and on an emulator the login."""
        if self.endpoint_url is not None:
            return local_actor()
        try:
            sts = self.client("sts", _PATIENT.merge(Config(read_timeout=5)))
            return f"aws:{sts.get_caller_identity()['Arn']}"
        except (BotoCoreError, ClientError):
            return local_actor()

    def clock_ahead_ms(self) -> int:
        """How far this machine's clock is ahead of AWS's at least; negative: behind.

        0, too, when no reply says what time it is there. `Date` has whole seconds, and the reply
        took some time, so a small difference can't be told.
        """
        name, before_ms = self._output("CoordinationTableName"), self.clock.now_ms()
        try:
            answer: Any = self._table.client.get_item(
                TableName=name, Key=to_item(STATE_KEY), ConsistentRead=True
            )
        except ClientError as error:  # a refusal has the time, too
            answer = error.response
        after_ms = self.clock.now_ms()
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        try:
            aws_ms = round(parsedate_to_datetime(headers.get("date")).timestamp() * 1000)
        except (TypeError, ValueError):
            return 0
        return max(0, before_ms - (aws_ms + 999)) or min(0, after_ms - aws_ms)

    @cached_property
    def aws_clock(self) -> Clock:
        """For times that are written where functions compare them with their own clocks.

        A gate that is resumed by a clock ten minutes ahead would open ten minutes late.
        """
        return AwsClock(self.clock, self.clock_ahead_ms)

    def invalidator(self) -> Invalidator:
        """What an invalidation works with."""
        return Invalidator(self.cache, self.state, self.audit, self.clock, Quiet())

    @cached_property
    def payloads(self) -> PayloadStore:
        """Inputs and results that are too big for a row."""
        return S3Payloads(lambda: self.client("s3"), self._output("PayloadBucketName"))

    @cached_property
    def jobs(self) -> JobStore:
        """The jobs, for operators."""
        return DynamoDBJobs(self._table, self._names, self.cache, clock=self.clock)

    @cached_property
    def job_lists(self) -> JobLists:
        """The jobs of a tenant, many at once."""
        return DynamoDBJobLists(self._table, self._output("JobsTableName"))

    @cached_property
    def usage(self) -> UsageReader:
        """What tenants' jobs came to."""
        return DynamoDBUsage(self._table, self._output("JobsTableName"), clock=self.clock)

    @cached_property
    def due_jobs(self) -> DueJobs:
        """The open jobs, by the index."""
        return DynamoDBDueJobs(self._table, self._output("JobsTableName"))

    @cached_property
    def backlogs(self) -> Backlogs:
        """The picture of what waits and runs."""
        return DynamoDBBacklogs(
            self._table, self._output("CoordinationTableName"), clock=self.clock
        )

    @cached_property
    def logs(self) -> FunctionLogs:
        """What the functions have logged."""
        return FunctionLogs(
            lambda: self.client("lambda"),
            lambda: self.client("logs"),
            {name: self.outputs[out] for name, out in OUTPUTS.items() if out in self.outputs},
            clock=self.clock,
        )

    @cached_property
    def counts(self) -> Counts:
        """How often what happened lately. Raises ImportError where an emulator's has no reader."""
        if self.endpoint_url is None:
            return CloudWatchCounts(self.client("cloudwatch"))
        from sluiceway_local.log_counts import LogCounts  # noqa: PLC0415 - partners don't have it

        return LogCounts(self.logs)

    @cached_property
    def gates(self) -> Gates:
        """Who may call a vendor's model."""
        return DynamoDBGates(self._table, self._output("CoordinationTableName"))

    @cached_property
    def queue(self) -> JobQueue:
        """The lanes."""
        return SQSJobQueue(self.client("sqs", SEND_CONFIG), self._lane_urls)

    def lane(self, name: str) -> Lane:
        """The event source mapping of a lane. Raises ValueError."""
        attributes = self.client("sqs").get_queue_attributes(
            QueueUrl=self._lane_urls[name], AttributeNames=["QueueArn"]
        )["Attributes"]
        function = self._output("RunJobFunctionName")
        return find_lane(self.client("lambda"), function=function, queue_arn=attributes["QueueArn"])

    def operator(self) -> Operator:
        """What the commands on the dead-letter queue work with."""
        # Ctrl-C waits for a receive's answer (dead_letters.py), so that is soon given up.
        sqs = self.client("sqs", _PATIENT.merge(Config(read_timeout=10)))
        letters = DeadLetters(sqs, self._output("DeadLetterQueueUrl"), self._lane_urls)
        return Operator(letters, self.jobs, self._claimed_by, self.aws_clock, record=self.record)

    def submitter(self) -> Submitter:
        """What an operator's submit works with."""
        return Submitter(
            catalogue=self.catalogue(),
            flags=self.flags(),
            jobs=self.jobs,
            cache=self.cache,
            payloads=self.payloads,
            state=self.state,
            rates=DynamoDBRates(self._table, self._output("CoordinationTableName")),
            backlogs=self.backlogs,
            queue=self.queue,
            clock=self.aws_clock,
            randomness=secrets.token_bytes,
            rand=random.random,
        )

    @cached_property
    def registrar(self) -> Registrar:
        """What the commands on webhooks work with."""
        jobs = self._output("JobsTableName")
        return Registrar(
            endpoints=DynamoDBEndpoints(self._table, jobs),
            delivery_log=DynamoDBDeliveries(self._table, jobs),
            webhook_secrets=SecretsManagerWebhooks(
                lambda: self.client("secretsmanager"),
                self._output("WebhookMasterArn"),
                self.clock,
            ),
            webhooks=SQSWebhooks(self.client("sqs", SEND_CONFIG), self._output("WebhookQueueUrl")),
            clock=self.clock,
            randomness=secrets.token_bytes,
        )

    @cached_property
    def catalogue_profile(self) -> Profile:
        """The catalogue's versions and deployments."""
        return self._profile("Catalogue", "application/toml")

    @cached_property
    def flags_profile(self) -> Profile:
        """The flags' versions and deployments."""
        return self._profile("Flags", "application/json")

    def rollout_id(self, *, gradual: bool) -> str:
        """How fast a deployment reaches the functions."""
        return self._output("GradualRolloutId" if gradual else "ImmediateRolloutId")

    def catalogue(self) -> Catalogue:
        """What is in force; before the first push, what is packaged.

        As in the functions, without what newer code alone knows.
        """
        text = self.catalogue_profile.running_text()
        return catalogues.parse(packaged_text() if text is None else text, on_unknown=_ignore)

    def lease_s(self) -> float:
        """How long a worker's lease lasts, by the settings of the function."""
        answer = self.client("lambda").get_function_configuration(
            FunctionName=self._output("RunJobFunctionName")
        )
        return float(answer["Environment"]["Variables"]["LEASE_S"])

    def flags(self) -> Flags:
        """What is in force; as in the functions, without features that newer code alone knows."""
        return parse_flags(self.flags_profile.running_text() or "{}", on_unknown=_ignore)

    def _profile(self, name: str, content_type: str) -> Profile:
        return Profile(
            self.client("appconfig"),
            application_id=self._output("ConfigurationId"),
            environment_id=self._output(f"{name}EnvironmentId"),
            profile_id=self._output(f"{name}ProfileId"),
            content_type=content_type,
        )

    def _claimed_by(self, job: Job) -> str | None:
        row = self._table.read(
            self._names.coordination, {"coordination_key": f"claim#{job.job_key}"}
        )
        return None if row is None else str(row["job_id"])

    @property
    def _lane_urls(self) -> dict[str, str]:
        return {
            "interactive": self._output("InteractiveQueueUrl"),
            "batch": self._output("BatchQueueUrl"),
        }

    @property
    def _names(self) -> TableNames:
        return TableNames(
            self._output("JobsTableName"),
            self._output("CacheTableName"),
            self._output("CoordinationTableName"),
        )

    @cached_property
    def _table(self) -> Table:
        return Table(self.client("dynamodb"))

    def _output(self, name: str) -> str:
        try:
            return self.outputs[name]
        except KeyError:
            raise ValueError("this needs the local stack of this folder, or --stack") from None


def find_target(stack: str | None) -> Target:
    """The local stack of this folder, else the stack of that name, else an API's address alone.

    Raises ValueError with what to do when there is none.
    """
    if stack is not None:
        return _stack_on_aws(stack)
    if LOCAL_FILE.exists():
        try:
            local = json.loads(LOCAL_FILE.read_text())
            return Target(
                api_url=local["api_url"],
                outputs=local["outputs"],
                partners=local["partners"],
                endpoint_url=local["endpoint_url"],
                region=local["region"],
                local=True,
                vendor_url=local.get("vendor_url"),
            )
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{LOCAL_FILE} is damaged; start anew: sluiceway local down, then up"
            ) from None
    if url := os.environ.get(URL_VARIABLE):
        return Target(api_url=url.rstrip("/"))
    raise ValueError(
        "no stack: start one here with `sluiceway local up`, name one with --stack, "
        f"or set {URL_VARIABLE}"
    )


def _stack_on_aws(stack: str) -> Target:
    try:
        answer = boto3.client("cloudformation").describe_stacks(StackName=stack)
    except (BotoCoreError, ClientError) as error:
        raise ValueError(f"the stack {stack!r} can't be read: {error}") from error
    outputs = {
        output["OutputKey"]: output["OutputValue"]
        for output in answer["Stacks"][0].get("Outputs", [])
    }
    if "ApiUrl" not in outputs:
        raise ValueError(f"the stack {stack!r} is not an installation of Sluiceway")
    api_url, endpoint_url = outputs["ApiUrl"], os.environ.get("AWS_ENDPOINT_URL")
    if endpoint_url:  # an emulator answers for every API at its own address
        api_id, stage = api_url.split("//", 1)[1].split(".", 1)[0], api_url.rsplit("/", 1)[1]
        api_url = f"{endpoint_url}/_aws/execute-api/{api_id}/{stage}"
    return Target(
        api_url=api_url,
        outputs=outputs,
        endpoint_url=endpoint_url,
        region=os.environ.get("AWS_DEFAULT_REGION"),
    )


def job_row(job: Job) -> dict[str, Any]:
    """What operators read of a job: names, ids, times and numbers, in the order of its life."""
    return {
        "job_id": job.job_id,
        "tenant": job.tenant,
        "status": job.status.value,
        "model": job.model,
        "model_version": job.model_version,
        "lane": job.lane,
        "attempts": job.attempts,
        "attempts_total": job.attempts_total,
        "receives": job.receives,
        "redrives": job.redrives,
        "resends": job.resends,
        "created_at": rfc3339(job.created_at_epoch_ms),
        "enqueued_at": rfc3339(job.enqueued_at_epoch_ms),
        "started_at": rfc3339(job.started_at_epoch_ms),
        "called_at": rfc3339(job.called_at_epoch_ms),
        "completed_at": rfc3339(job.completed_at_epoch_ms),
        "failed_at": rfc3339(job.failed_at_epoch_ms),
        "deadline": rfc3339(job.deadline_epoch_ms),
        "due_at": rfc3339(job.due_at_epoch_ms),
        "not_before": rfc3339(job.not_before_epoch_ms),
        "parked": job.parked,
        "discarded": job.discarded,
        "unsettled": job.unsettled,
        "queue_wait_ms": job.queue_wait_ms,
        "upstream_latency_ms": job.upstream_latency_ms,
        "result_source": job.result_source,
        "input_tokens": job.input_tokens,
        "output_tokens": job.output_tokens,
        "cost_nanos": job.cost_nanos,
        "lost_nanos": job.lost_nanos,
        "saved_nanos": job.saved_nanos,
        "vendor_request_id": job.vendor_request_id,
        "fence": job.fence,
        "revision": job.revision,
        "job_key": job.job_key,
        "cache_key": job.cache_key,
        "cache_scope": job.cache_scope,
        "counter_shard": job.counter_shard,
        "request_id": job.request_id,
        "correlation_id": job.correlation_id,
        "trace_header": job.trace_header,
        "key_id": job.key_id,
        "input_ref": job.input.ref,
        "result_ref": job.result.ref if job.result else None,
        "metadata": job.metadata,
        "callbacks": len(job.callback_urls),
        "error_code": job.error.code if job.error else None,
        "reason": job.error.message if job.error else None,
        "last_errors": [_error_row(error) for error in job.last_errors],
    }


def _error_row(error: JobError) -> dict[str, Any]:
    return {
        "attempt": error.attempt,
        "at": rfc3339(error.at_epoch_ms),
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "error_class": error.error_class,
        "http_status": error.http_status,
    }
