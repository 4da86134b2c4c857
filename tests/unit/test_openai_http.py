"""Replies in OpenAI's form: what becomes of a job's members."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from sluiceway.domain.job import JobStatus
from sluiceway.http import Reply
from sluiceway.openai_http import chat_completion, is_open, response, unanswered

from tests.fakes.in_memory import NOW_MS

TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}}
FUNCTION = {"name": "weather", "arguments": "{}"}


def a_reply(status: str = "completed", *, finish_reason: str = "stop", **members: Any) -> Reply:
    """A job as the partner API tells it."""
    result = {"text": "an answer", "finish_reason": finish_reason, "vendor_request_id": None}
    body: dict[str, Any] = {
        "id": "job_1",
        "status": status,
        "model": "demo-chat",
        "created_at": "2026-01-01T00:00:00.250Z",
        "completed_at": None,
        "metadata": {},
        "urls": {"self": "/v1/jobs/job_1"},
    }
    if status == "completed":
        body |= {
            "completed_at": "2026-01-01T00:00:05.900Z",
            "result": result | members.pop("result", {}),
            "usage": {"input_tokens": 3, "output_tokens": 4, "cost": 0.1, "saved": 0},
        }
    return Reply(200, body | members, {"Cache-Status": "sluiceway; hit", "Age": "1", "X-More": "1"})


def message_of(reply: Reply) -> dict[str, Any]:
    ChatCompletion.model_validate(reply.body, strict=True)
    message: dict[str, Any] = reply.body["choices"][0]["message"]
    return message


@pytest.mark.parametrize("status", JobStatus)
def test_every_job_is_a_response(status: JobStatus) -> None:
    failed = status in {JobStatus.FAILED, JobStatus.DEAD_LETTERED}
    error: dict[str, Any] = {"error": {"code": "vendor_timeout", "message": "m"}} if failed else {}

    told = response(a_reply(status.value, **error))

    Response.model_validate(told.body, strict=True)
    assert (told.body["error"] is not None) is failed
    assert is_open(a_reply(status.value)) is (status.value in {"queued", "processing", "retrying"})


def test_times_are_epoch_seconds() -> None:
    told = response(a_reply()).body

    assert told["created_at"] == NOW_MS // 1000
    assert told["completed_at"] == NOW_MS // 1000 + 5
    assert chat_completion(a_reply()).body["created"] == NOW_MS // 1000


def test_headers_of_the_cache_stay() -> None:
    for told in (response(a_reply()), chat_completion(a_reply())):
        assert told.headers == {
            "Cache-Status": "sluiceway; hit",
            "Age": "1",
            "X-Job-Id": "job_1",
        }


def test_cut_off_answer_is_told_in_both_forms() -> None:
    reply = a_reply(finish_reason="length")

    assert chat_completion(reply).body["choices"][0]["finish_reason"] == "length"
    told = Response.model_validate(response(reply).body, strict=True)
    assert (told.status, told.completed_at) == ("incomplete", None)
    assert told.output_text == "an answer"


@pytest.mark.parametrize("text", ["", "Let me see."])
def test_tool_use_of_anthropic_is_a_tool_call(text: str) -> None:
    content = [{"type": "text", "text": text}, TOOL_USE]
    reply = a_reply(finish_reason="tool_calls", result={"text": text, "content": content})

    message = message_of(chat_completion(reply))
    told = Response.model_validate(response(reply).body, strict=True)

    (call,) = message["tool_calls"]
    assert message["content"] == (text or None)
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Zürich"}'}
    assert [item.type for item in told.output] == ["message"] * bool(text) + ["function_call"]
    assert told.output[-1].model_dump()["call_id"] == "toolu_1"


def test_call_of_a_function_is_told_as_one() -> None:
    content = [{"type": "function_call", "function_call": FUNCTION}]
    reply = a_reply(finish_reason="tool_calls", result={"text": "", "content": content})

    told = chat_completion(reply)

    assert message_of(told)["function_call"] == FUNCTION
    assert told.body["choices"][0]["finish_reason"] == "function_call"


def test_what_a_vendors_own_tools_did_is_left_out() -> None:
    content = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "text", "text": "an answer"},
    ]
    reply = a_reply(finish_reason="tool_calls", result={"content": content})

    told = chat_completion(reply)

    assert message_of(told) == {"role": "assistant", "content": "an answer", "refusal": None}
    assert told.body["choices"][0]["finish_reason"] == "stop"
    Response.model_validate(response(reply).body, strict=True)


@pytest.mark.parametrize(
    ("code", "status", "kind", "of_response"),
    [
        ("vendor_rejected", 400, "invalid_request_error", "invalid_prompt"),
        ("vendor_filtered", 400, "invalid_request_error", "invalid_prompt"),
        ("vendor_rate_limited", 500, "server_error", "rate_limit_exceeded"),
        ("vendor_auth_failed", 500, "server_error", "server_error"),
        ("deadline_exceeded", 504, "server_error", "server_error"),
    ],
)
def test_failed_job_is_an_error_that_says_not_to_try_again(
    code: str, status: int, kind: str, of_response: str
) -> None:
    reply = a_reply("failed", error={"code": code, "message": "It failed.", "retryable": True})

    told = unanswered(reply)

    assert told is not None
    assert told.status == status
    assert told.body == {
        "error": {
            "message": "It failed.",
            "type": kind,
            "param": None,
            "code": code,
            "job_id": "job_1",
        }
    }
    assert told.headers == {"X-Should-Retry": "false", "X-Job-Id": "job_1"}
    error = response(reply).body["error"]
    assert (error["code"], error["job_code"]) == (of_response, code)


def test_completed_job_is_no_error() -> None:
    assert unanswered(a_reply()) is None
