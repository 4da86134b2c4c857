"""The lanes in SQS (port JobQueue)."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain import ids
from sluiceway.domain.backoff import MAX_VISIBILITY_S
from sluiceway.domain.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mypy_boto3_sqs import SQSClient

    from sluiceway.domain.job import Job

SEND_LIMIT_S = 3.0
"""A send that was decided ends or is given up within it, so the client's timeouts
must add up to less and it must not retry: bootstrap.py sets both."""
MAX_DELAY_S = 900


class SQSJobQueue:
    """Weakness: a send that failed here may have arrived all the same; copies are harmless."""

    def __init__(
        self,
        client: SQSClient,
        queue_urls: Mapping[str, str],
        *,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`queue_urls`: by lane. `on_failure` is told the class of an error that lost a send."""
        self._client = client
        self._queue_urls = queue_urls
        self._on_failure = on_failure

    def send(self, job: Job, *, delay_s: int = 0) -> bool:
        """See JobQueue."""
        extra: dict[str, Any] = {"DelaySeconds": min(MAX_DELAY_S, delay_s)} if delay_s else {}
        if job.trace_header:
            extra["MessageSystemAttributes"] = {
                "AWSTraceHeader": {"DataType": "String", "StringValue": job.trace_header}
            }
        try:
            self._client.send_message(
                QueueUrl=self._queue_urls[job.lane],
                MessageBody=message_body(job.tenant, job.job_id),
                # Fair queues: one tenant can't crowd the others out, nor can refreshes.
                MessageGroupId=f"{'refresh' if job.refresh else job.tenant}:{job.model}",
                **extra,
            )
        except (BotoCoreError, ClientError) as error:
            self._on_failure(type(error).__name__)
            return False
        return True

    def backlog(self, lane: str) -> int:
        """See JobQueue."""
        try:
            attributes = self._client.get_queue_attributes(
                QueueUrl=self._queue_urls[lane],
                AttributeNames=[
                    "ApproximateNumberOfMessages",
                    "ApproximateNumberOfMessagesDelayed",
                    "ApproximateNumberOfMessagesNotVisible",
                ],
            )["Attributes"]
        except (BotoCoreError, ClientError) as error:
            self._on_failure(type(error).__name__)
            raise StoreBusyError("The lane can't be measured.", retry_after_s=1) from error
        return sum(map(int, attributes.values()))

    def give_back(self, lane: str, receipt: str, delay_s: float) -> None:
        """See JobQueue. A message that is gone or visible already is left alone."""
        try:
            self._client.change_message_visibility(
                QueueUrl=self._queue_urls[lane],
                ReceiptHandle=receipt,
                VisibilityTimeout=min(MAX_VISIBILITY_S, max(0, math.ceil(delay_s))),
            )
        except (BotoCoreError, ClientError) as error:
            # It comes back when its visibility ends, which is later but as good.
            self._on_failure(type(error).__name__)


def message_body(tenant: str, job_id: str) -> str:
    """ASCII, under 1 KB: SQS refuses some characters, and the row holds the rest anyway."""
    return json.dumps({"tenant": tenant, "job_id": job_id})


def read_body(body: str) -> tuple[str, str] | None:
    """Tenant and job id of a message; None when it isn't one of ours."""
    try:
        value = json.loads(body)
        tenant, job_id = value["tenant"], value["job_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (isinstance(tenant, str) and isinstance(job_id, str)):
        return None
    if not ids.owner(tenant) or not ids.well_formed(job_id):
        return None
    return tenant, job_id
