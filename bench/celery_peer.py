"""Celery as a peer of `bench/peers.py`: the tasks of its workers, and a submitter.

It runs where Celery is installed, and imports nothing of ours. The settings come from
PEER_SETTINGS, a JSON object: `broker`, `vendor_url`, `per_minute`, `max_attempts`,
`backoff_max_s`, `visibility_s`, `timeout_s`.

    celery -A celery_peer worker --concurrency 8
    python celery_peer.py PLAN
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from celery import Celery  # type: ignore[import-not-found,unused-ignore]
from celery.signals import worker_process_init  # type: ignore[import-not-found,unused-ignore]

SETTINGS: dict[str, Any] = json.loads(os.environ["PEER_SETTINGS"])
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

_TRANSPORT = {
    "visibility_timeout": SETTINGS["visibility_s"],
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
}

app = Celery("celery_peer", broker=SETTINGS["broker"], backend=SETTINGS["broker"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=_TRANSPORT,
    result_backend_transport_options=_TRANSPORT,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)

_clients: list[httpx.Client] = []


class BusyError(Exception):
    """The vendor is to be called again later."""


@worker_process_init.connect  # type: ignore[untyped-decorator,unused-ignore]
def _connect(**_: object) -> None:
    """Each process of the pool has connections of its own."""
    _clients.append(httpx.Client(timeout=SETTINGS["timeout_s"]))


@app.task(  # type: ignore[untyped-decorator,unused-ignore]
    bind=True,
    rate_limit=f"{SETTINGS['per_minute']}/m",
    autoretry_for=(BusyError, httpx.TransportError),
    max_retries=SETTINGS["max_attempts"] - 1,
    retry_backoff=True,
    retry_backoff_max=SETTINGS["backoff_max_s"],
    retry_jitter=True,
)
def call(self: Any, prompt: str) -> str:
    """The vendor's answer. The task's id stays the same over retries, so it is the key."""
    reply = _clients[0].post(
        f"{SETTINGS['vendor_url']}/v1/chat/completions",
        headers={"authorization": "Bearer peer", "idempotency-key": self.request.id},
        json={"model": "peer", "messages": [{"role": "user", "content": prompt}]},
    )
    if reply.status_code in RETRIED:
        raise BusyError(reply.status_code)
    reply.raise_for_status()
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


def submit(plan: Path) -> None:
    """Sends each item when its time has come, and tells each result as it comes.

    `{"ready": true}` is told when workers answer; then the plan is waited for.
    """
    while not app.control.ping(timeout=0.5):
        pass
    _say(ready=True)
    while not plan.exists():
        time.sleep(0.01)
    given = json.loads(plan.read_text())
    left = sorted(given["items"], key=lambda item: item["due_s"])
    numbers: dict[str, int] = {}

    def tell(result: Any) -> None:
        failed = None if result.successful() else type(result.result).__name__
        text = None if failed else result.result
        _say(number=numbers.pop(result.id), at_s=time.time(), text=text, failed=failed)

    while left or numbers:
        while left and given["begins_at_s"] + left[0]["due_s"] <= time.time():
            item = left.pop(0)
            sent = call.apply_async([item["prompt"]])
            numbers[sent.id] = item["number"]
            sent.then(tell)
        app.backend.result_consumer.drain_events(timeout=0.01)


if __name__ == "__main__":
    submit(Path(sys.argv[1]))
