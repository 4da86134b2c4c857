"""The dead-letter queue in SQS, as an operator looks into it and empties it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from sluiceway.adapters.sqs_queue import read_body

from sluiceway_cli.interruptions import Interruptions

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

LOOK_S = 300
"""Nobody else gets the messages of a look for so long at most, should it die."""

BATCH = 10
"""SQS gives and takes so many messages at once."""

TASK_POLL_S = 1.0
SENT_BY_HAND = "CouldNotDetermineMessageSource"
"""Why SQS can't move a message back: somebody sent it to the dead-letter queue."""

_NO_SUCH_ACTION = frozenset(
    {"InvalidAction", "UnknownOperationException", "NotImplemented", "InternalFailure"}
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of the queue. Its body is kept from everybody who prints: it may be anything."""

    message_id: str
    body: str
    trace_header: str | None = None

    @property
    def work(self) -> tuple[str, str] | None:
        """Tenant and job id; None when the message isn't one of ours."""
        return read_body(self.body)


class Look:
    """Reads each message once, and holds it until the look ends."""

    def __init__(
        self,
        client: "SQSClient",
        queue_url: str,
        *,
        wait_s: int,
        limit: int | None = None,
        interruptions: Interruptions | None = None,
    ) -> None:
        """`wait_s`: how long an empty queue is asked. `limit`: messages at most."""
        self._client = client
        self._queue_url = queue_url
        self._wait_s = wait_s
        self._limit = limit
        self._interruptions = interruptions or Interruptions()
        self._receipts: dict[str, str] = {}
        self._seen: set[str] = set()
        self.complete = True
        """False when the limit cut it short."""

    @property
    def seen(self) -> int:
        """Messages so far."""
        return len(self._seen)

    @property
    def holding(self) -> int:
        """Messages that are hidden by this look now."""
        return len(self._receipts)

    def __iter__(self) -> Iterator[Letter]:
        """Ends when SQS has nothing to give: the queue is empty, or all of it was seen and is held.

        What was seen may come again when the look takes long; then it is held again.
        """
        while True:
            room = BATCH if self._limit is None else min(BATCH, self._limit - len(self._seen))
            if room <= 0:
                self.complete = False
                return
            with self._interruptions.held():  # what SQS has given is known before anything ends
                messages = self._client.receive_message(
                    QueueUrl=self._queue_url,
                    MaxNumberOfMessages=room,
                    VisibilityTimeout=LOOK_S,
                    WaitTimeSeconds=self._wait_s,
                    MessageSystemAttributeNames=["AWSTraceHeader"],
                ).get("Messages", [])
                self._receipts |= {each["MessageId"]: each["ReceiptHandle"] for each in messages}
            fresh = [each for each in messages if each["MessageId"] not in self._seen]
            if not messages:
                return
            self._seen |= {each["MessageId"] for each in fresh}
            for each in fresh:
                trace = each.get("Attributes", {}).get("AWSTraceHeader")
                yield Letter(each["MessageId"], each["Body"], trace)

    def move(self, letter: Letter, queue_url: str, *, group: str) -> None:
        """Sends the message to a lane, then removes it here: in between there are two, not none.

        Raises ClientError or BotoCoreError when it couldn't be sent.
        """
        extra: dict[str, Any] = {}
        if letter.trace_header:
            extra["MessageSystemAttributes"] = {
                "AWSTraceHeader": {"DataType": "String", "StringValue": letter.trace_header}
            }
        with self._interruptions.held():
            self._client.send_message(
                QueueUrl=queue_url, MessageBody=letter.body, MessageGroupId=group, **extra
            )
            with suppress(ClientError, BotoCoreError):  # then it is a copy, and copies are harmless
                self.remove(letter)

    def remove(self, letter: Letter) -> None:
        """Deletes the message."""
        self._client.delete_message(
            QueueUrl=self._queue_url, ReceiptHandle=self._receipts[letter.message_id]
        )
        del self._receipts[letter.message_id]

    def end(self) -> None:
        """Makes what is left visible again; what can't be is visible when its time is over."""
        receipts = list(self._receipts.values())
        for first in range(0, len(receipts), BATCH):
            entries: Any = [
                {"Id": str(index), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
                for index, receipt in enumerate(receipts[first : first + BATCH])
            ]
            try:
                self._client.change_message_visibility_batch(
                    QueueUrl=self._queue_url, Entries=entries
                )
            except ClientError:
                continue
            except BotoCoreError:  # nobody answers, and signals wait for this end
                return


class DeadLetters:
    """Weakness: a look counts as a receive, and hides the messages from others meanwhile."""

    def __init__(
        self,
        client: "SQSClient",
        queue_url: str,
        lanes: Mapping[str, str],
        *,
        wait_s: int = 1,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`lanes`: queue URLs by lane. `wait_s` of 0 may overlook messages on AWS."""
        self._client = client
        self._queue_url = queue_url
        self._wait_s = wait_s
        self._pause = pause
        self.lanes = lanes
        self.unseen = 0
        """How many messages SQS counts beyond those that the last look saw: somebody else looks at
        them, a look that was cut off has hidden them, or the limit left them out."""

    @contextmanager
    def look(self, *, limit: int | None = None) -> Iterator[Look]:
        """A look at all messages; those that nobody moved or removed are visible again after it.

        So they are when SIGINT, SIGTERM or SIGHUP end it.
        """
        self.unseen = 0
        interruptions = Interruptions()
        look = Look(
            self._client,
            self._queue_url,
            wait_s=self._wait_s,
            limit=limit,
            interruptions=interruptions,
        )
        count = self._count()
        with interruptions.caught():
            try:
                with interruptions.released():
                    yield look
                    self.unseen = self._beyond(look, count)
            finally:
                look.end()

    def _beyond(self, look: Look, count: int) -> int:
        """How many messages there are that the look didn't see; `count`: of before the look.

        SQS counts late, and somebody else may remove some, so both counts have to say so.
        """
        unseen = count - look.seen
        if unseen > 0:
            with suppress(ClientError, BotoCoreError):
                unseen = min(unseen, self._count() - look.holding)
        return max(0, unseen)

    def _count(self) -> int:
        """The messages in the queue, hidden ones included; approximate on AWS."""
        answer = self._client.get_queue_attributes(
            QueueUrl=self._queue_url,
            AttributeNames=[
                "ApproximateNumberOfMessages",
                "ApproximateNumberOfMessagesNotVisible",
            ],
        )
        return sum(map(int, answer["Attributes"].values()))

    def can_move_by_itself(self) -> bool:
        """Whether the endpoint has StartMessageMoveTask; emulators lack it."""
        try:
            self._client.list_message_move_tasks(SourceArn=self._arn(self._queue_url), MaxResults=1)
        except NotImplementedError:
            return False
        except ClientError as error:
            if error.response["Error"]["Code"] in _NO_SUCH_ACTION:
                return False
            raise
        return True

    def move_all(self, *, rate: int, lane: str | None = None) -> str | None:
        """Has SQS move every message to where it came from, or to `lane`, and waits for the end.

        Gives the reason when it failed. `rate`: messages a second, 500 at most.
        """
        source = self._arn(self._queue_url)
        destination: Any = {} if lane is None else {"DestinationArn": self._arn(self.lanes[lane])}
        self._client.start_message_move_task(
            SourceArn=source, MaxNumberOfMessagesPerSecond=rate, **destination
        )
        while True:
            tasks = self._client.list_message_move_tasks(SourceArn=source, MaxResults=1)["Results"]
            status = tasks[0].get("Status", "RUNNING") if tasks else "COMPLETED"
            if status == "COMPLETED":
                return None
            if status not in {"RUNNING", "CANCELLING"}:
                return tasks[0].get("FailureReason", status)
            self._pause(TASK_POLL_S)

    def _arn(self, queue_url: str) -> str:
        answer = self._client.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        return answer["Attributes"]["QueueArn"]
