"""The live tests' vendor: a Lambda function behind a URL, in this one file of the standard library.

It speaks OpenAI's form, takes webhooks, and logs a line about each request, which the tests count.
No line holds a prompt. An option `sim` in a request says what it does: `delay_s`, `status` until
`until_epoch_s`, and `size_bytes` of the answer.
"""

import base64
import hashlib
import hmac
import json
import os
import random
import time
from typing import Any


def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    arrived_ms = time.time_ns() // 1_000_000
    body = event.get("body") or "{}"
    if event.get("isBase64Encoded"):
        body = base64.b64decode(body).decode()
    headers, key = event["headers"], os.environ["VENDOR_KEY"]
    if hmac.compare_digest(event["rawPath"], hook_path(key)):
        tell(hook=headers.get("webhook-id"), signed="webhook-signature" in headers)
        return {"statusCode": 204}
    if not hmac.compare_digest(headers.get("authorization", ""), f"Bearer {key}"):
        return answer(401, {"error": {"code": "invalid_api_key"}})
    asked = json.loads(body)
    sim = asked.get("sim", {})
    time.sleep(sim.get("delay_s", 0.2))
    failing = time.time() < sim.get("until_epoch_s", 0)
    status = sim.get("status", 200) if failing else 200
    prompt = asked["messages"][-1]["content"]
    tell(
        call=digest(prompt),
        key=headers.get("idempotency-key"),
        status=status,
        arrived_ms=arrived_ms,
        left_ms=time.time_ns() // 1_000_000,
    )
    if status != 200:
        return answer(status, {"error": {"code": "simulated"}})
    text = f"Answer {digest(prompt)}"
    if size := sim.get("size_bytes", 0):  # nothing that packs well
        text = random.Random(prompt).randbytes(size // 2).hex()  # noqa: S311 - no secret
    message = {"role": "assistant", "content": text}
    return answer(
        200,
        {
            "id": f"live-{digest(prompt)}",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        },
    )


def hook_path(key: str) -> str:
    """Where it takes webhooks: nobody guesses it, and it doesn't show the key."""
    return f"/hook/{hashlib.sha256(key.encode()).hexdigest()}"


def digest(prompt: str) -> str:
    """What a log line calls a prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201 - a function's log


def answer(status: int, document: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    return {"statusCode": status, "headers": headers, "body": json.dumps(document)}
