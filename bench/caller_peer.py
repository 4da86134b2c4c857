"""Callers in one process as peers of `bench/peers.py`: threads that call the vendor themselves.

httpx       a call with retries for each item
powertools  the same within Powertools' idempotency decorator, with its table on DynamoDB

    python caller_peer.py PLAN

The settings come from PEER_SETTINGS, a JSON object: `kind`, `vendor_url`, `workers`,
`max_attempts`, `backoff_max_s`, `timeout_s`; for Powertools also `endpoint_url`, `table` and
`in_progress_s`.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx

SETTINGS: dict[str, Any] = json.loads(os.environ["PEER_SETTINGS"])
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
WAIT_FOR_OTHER_S = 0.2

_http = httpx.Client(
    timeout=SETTINGS["timeout_s"],
    limits=httpx.Limits(max_connections=SETTINGS["workers"]),
)
_out = threading.Lock()


def ask(prompt: str, key: str) -> str:
    """The vendor's answer: exponential backoff with full jitter on top of its Retry-After.

    Raises httpx.HTTPError when the attempts are used up, or the vendor refuses for good.
    """
    for attempt in range(SETTINGS["max_attempts"]):
        floor_s, last = 0.0, attempt + 1 == SETTINGS["max_attempts"]
        try:
            reply = _http.post(
                f"{SETTINGS['vendor_url']}/v1/chat/completions",
                headers={"authorization": "Bearer peer", "idempotency-key": key},
                json={"model": "peer", "messages": [{"role": "user", "content": prompt}]},
            )
        except httpx.TransportError:
            if last:
                raise
        else:
            if last or reply.status_code not in RETRIED:
                text: str = reply.raise_for_status().json()["choices"][0]["message"]["content"]
                return text
            floor_s = float(reply.headers.get("retry-after", 0))
        most_s = min(SETTINGS["backoff_max_s"], 2**attempt)
        time.sleep(floor_s + random.uniform(0, most_s))  # noqa: S311
    raise AssertionError("there is no attempt")


def with_httpx() -> Callable[[dict[str, Any]], str]:
    """A call for each item; its key is the item's own."""
    return lambda item: ask(item["prompt"], item["key"])


def with_powertools() -> Callable[[dict[str, Any]], str]:
    """A call for each work; equal ones wait for the first, and get what is stored."""
    import boto3  # noqa: PLC0415 - the other kind does without
    from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )
    from aws_lambda_powertools.utilities.idempotency.exceptions import (  # noqa: PLC0415
        IdempotencyAlreadyInProgressError,
    )
    from botocore.config import Config  # noqa: PLC0415

    class Context:
        """What Lambda gives: how long an invocation may still take."""

        def get_remaining_time_in_millis(self) -> int:
            return int(SETTINGS["in_progress_s"] * 1000)

    store = DynamoDBPersistenceLayer(
        table_name=SETTINGS["table"],
        boto3_client=boto3.client(
            "dynamodb",
            endpoint_url=SETTINGS["endpoint_url"],
            config=Config(max_pool_connections=SETTINGS["workers"]),
        ),
    )
    config = IdempotencyConfig(lambda_context=cast("Any", Context()))

    @idempotent_function(  # type: ignore[untyped-decorator]
        data_keyword_argument="work", config=config, persistence_store=store
    )
    def call(*, work: dict[str, str], key: str) -> str:
        return ask(work["prompt"], key)

    def one(item: dict[str, Any]) -> str:
        work = {"tenant": item["tenant"], "prompt": item["prompt"]}
        while True:
            try:
                text: str = call(work=work, key=f"{item['tenant']} {item['prompt']}")
            except IdempotencyAlreadyInProgressError:
                time.sleep(WAIT_FOR_OTHER_S)
            else:
                return text

    return one


def _say(**told: object) -> None:
    with _out:
        print(json.dumps(told), flush=True)


def submit(plan: Path) -> None:
    """Hands each item to the threads when its time has come, and tells each result as it comes.

    `{"ready": true}` is told first; then the plan is waited for.
    """
    one = {"httpx": with_httpx, "powertools": with_powertools}[SETTINGS["kind"]]()

    def work(item: dict[str, Any]) -> None:
        text = failed = None
        try:
            text = one(item)
        except Exception as error:  # noqa: BLE001 - told, and the item has no result
            failed = type(error).__name__
        _say(number=item["number"], at_s=time.time(), text=text, failed=failed)

    _say(ready=True)
    while not plan.exists():
        time.sleep(0.01)
    given = json.loads(plan.read_text())
    with ThreadPoolExecutor(SETTINGS["workers"]) as pool:
        for item in sorted(given["items"], key=lambda item: float(item["due_s"])):
            time.sleep(max(0.0, given["begins_at_s"] + item["due_s"] - time.time()))
            pool.submit(work, item)


if __name__ == "__main__":
    submit(Path(sys.argv[1]))
