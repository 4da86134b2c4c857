"""Replies of the partner API in OpenAI's form, made of the replies that it gives otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sluiceway.domain.errors import RejectedError, SluicewayError, StillRunningError
from sluiceway.domain.job import OPEN
from sluiceway.http import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED_STATUS: Mapping[str, int] = {
    "vendor_rejected": 400,
    "vendor_filtered": 400,
    "vendor_timeout": 504,
    "deadline_exceeded": 504,
}
"""HTTP status of a held call whose job failed, by the job's error code; the others are 500."""

CANCELLED = "job_cancelled"
"""The code of a held chat whose job was cancelled: there is no other form for it."""

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}

_STATUS = {
    "queued": "queued",
    "processing": "in_progress",
    "retrying": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "dead_lettered": "failed",
    "cancelled": "cancelled",
}
"""Of a response, by its job's."""

_RESPONSE_ERRORS = {
    "vendor_rejected": "invalid_prompt",
    "vendor_filtered": "invalid_prompt",
    "vendor_rate_limited": "rate_limit_exceeded",
    "vendor_quota_exhausted": "rate_limit_exceeded",
}
"""OpenAI's code of a failed response, by the job's; the others are `server_error`."""

_KEPT_HEADERS = frozenset(
    {"Age", "Cache-Status", "RateLimit", "RateLimit-Policy", "Retry-After", "Idempotent-Replayed"}
)


def openai_error(error: SluicewayError, problem: Reply) -> Reply:
    """The error of a reply in problem+json, told as OpenAI does."""
    faults = error.errors if isinstance(error, RejectedError) else ()
    told = "; ".join(f"{fault['field']}: {fault['message']}" for fault in faults)
    reply = _error(
        problem.status,
        code=problem.body["code"],
        message=f"{error} {told}".strip(),
        param=faults[0]["field"] if faults else None,
        retry=problem.body["retryable"],
    )
    headers = {**problem.headers, **reply.headers}
    if not isinstance(error, StillRunningError):
        return replace(reply, headers=headers)
    body = {"error": {**reply.body["error"], "job_id": error.job_id}}
    return replace(reply, body=body, headers={**headers, "X-Job-Id": error.job_id})


def unanswered(job: Reply) -> Reply | None:
    """Of a job that has ended: the error when it has no answer that could be told, else None.

    Nobody is to try it again by himself: that would be another job, and the gateway has tried.
    """
    body = job.body
    if body["status"] == "cancelled":
        status, code, message = 409, CANCELLED, "The job was cancelled."
    elif "error" in body:
        code, message = body["error"]["code"], body["error"]["message"]
        status = FAILED_STATUS.get(code, 500)
    elif "result_url" in body:
        status, code = 500, "result_too_large"
        message = f"The answer is too large for this form: GET {body['urls']['self']} has it."
    else:
        return None
    reply = _error(status, code=code, message=message, param=None, retry=False)
    return Reply(
        status,
        {"error": {**reply.body["error"], "job_id": body["id"]}},
        {**_headers(job, status), **reply.headers},
    )


def chat_completion(job: Reply) -> Reply:
    """A completed job as a chat completion."""
    body = job.body
    result, usage = body["result"], body["usage"]
    message: dict[str, Any] = {"role": "assistant", "content": result["text"], "refusal": None}
    finish_reason = result["finish_reason"]
    if finish_reason == "tool_calls":
        asked = _asked_of_the_client(result)
        message |= asked
        if asked:
            message["content"] = result["text"] or None
        # "stop": only the vendor's own tools were called, and their answer is in the text.
        finish_reason = next(iter(asked), "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    told = {
        "id": body["id"],
        "object": "chat.completion",
        "created": _epoch_s(body["created_at"]),
        "model": body["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        },
    }
    return Reply(200, told, _headers(job, 200))


def response(job: Reply, *, background: bool = True) -> Reply:
    """A job as a response. `background`: whether it was asked for so; nobody keeps it."""
    body = job.body
    status, result = _STATUS[body["status"]], body.get("result")
    if result is not None and result["finish_reason"] == "length":
        status = "incomplete"
    error = body.get("error")
    told = {
        "id": body["id"],
        "object": "response",
        "created_at": _epoch_s(body["created_at"]),
        "completed_at": _epoch_s(body["completed_at"]) if status == "completed" else None,
        "status": status,
        "background": background,
        "model": body["model"],
        "output": [] if result is None else _output(body["id"], status, result),
        "error": None
        if error is None
        else {
            "code": _RESPONSE_ERRORS.get(error["code"], "server_error"),
            "message": error["message"],
            "job_code": error["code"],
        },
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": _usage(body["usage"]) if "usage" in body else None,
        "metadata": body["metadata"],
        "instructions": None,
        "temperature": None,
        "top_p": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    return Reply(200, told, _headers(job, 200))


def is_open(job: Reply) -> bool:
    """Whether the job that the reply tells of may still get an answer."""
    return job.body["status"] in OPEN


def _error(status: int, *, code: str, message: str, param: str | None, retry: bool) -> Reply:
    """`retry`: what the client's own retries are to do, whatever they make of the status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004
    error = {
        "message": message,
        "type": _ERROR_TYPES.get(status, kind),
        "param": param,
        "code": code,
    }
    return Reply(status, {"error": error}, {"X-Should-Retry": "true" if retry else "false"})


def _output(job_id: str, status: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """A message, and the calls of tools that it asks for."""
    ended = "incomplete" if status == "incomplete" else "completed"
    calls = _tool_calls(result)
    message = {
        "type": "message",
        "id": f"msg_{job_id}",
        "role": "assistant",
        "status": ended,
        "content": [{"type": "output_text", "text": result["text"], "annotations": []}],
    }
    return [
        *([message] if result["text"] or not calls else []),
        *(
            {
                "type": "function_call",
                "id": f"fc_{call['id']}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "status": ended,
            }
            for call in calls
            if "function" in call
        ),
    ]


def _asked_of_the_client(result: dict[str, Any]) -> dict[str, Any]:
    """`tool_calls`, or the `function_call` of before there were tools; the client is to make them.

    The names are those of the finish reasons, too.
    """
    if calls := _tool_calls(result):
        return {"tool_calls": calls}
    for part in result.get("content") or ():
        if part.get("type") == "function_call":
            return {"function_call": part["function_call"]}
    return {}


def _tool_calls(result: dict[str, Any]) -> list[dict[str, Any]]:
    """In OpenAI's form: as OpenAI's vendors gave them, or out of Anthropic's blocks."""
    calls: list[dict[str, Any]] = []
    for part in result.get("content") or ():
        if part.get("type") == "tool_calls":
            calls += part["tool_calls"]
        elif part.get("type") == "tool_use":
            arguments = json.dumps(part.get("input") or {}, ensure_ascii=False)
            function = {"name": part["name"], "arguments": arguments}
            calls.append({"id": part["id"], "type": "function", "function": function})
    return calls


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The type wants the details; what isn't known of them is 0."""
    return {
        "input_tokens": usage["input_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
    }


def _headers(job: Reply, status: int) -> dict[str, str]:
    kept = {name: value for name, value in job.headers.items() if name in _KEPT_HEADERS}
    if status != 200:  # noqa: PLR2004 - the headers of an answer that there isn't
        kept = {name: value for name, value in kept.items() if name.startswith("RateLimit")}
    return {**kept, "X-Job-Id": job.body["id"]}


def _epoch_s(moment: str) -> int:
    """Of RFC 3339."""
    return int(datetime.fromisoformat(moment).timestamp())
