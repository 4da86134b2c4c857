"""The routes in OpenAI's form. Their errors are in its form too, but for the gateway's own."""

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Body
from sluiceway.domain.openai_request import ChatRequest, ResponsesRequest
from sluiceway.openai_http import CANCELLED, FAILED_STATUS, chat_completion, response

from sluiceway_local.openapi import samples
from sluiceway_local.openapi.forms import (
    BODY,
    KEYED,
    Absent,
    Answer,
    Count,
    IdempotencyKey,
    answer,
    area,
    openai_refusals,
)
from sluiceway_local.openapi.jobs import JobId

AREA = area("openai", "For clients of OpenAI's API: chat completions and responses.")


class ErrorDetail(Answer):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str
    """Of the API's error codes, or of a job's."""
    job_id: str | Absent = None
    """Whose answer it would have been."""


class OpenAIError(Answer):
    """An error in OpenAI's form."""

    error: ErrorDetail


class FunctionOfCall(Answer):
    """What a tool call calls."""

    name: str
    arguments: str


class ChatMessage(Answer):
    """The answer of a chat."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[dict[str, Any]] | Absent = None
    """As the vendor gave them."""
    function_call: dict[str, Any] | Absent = None


class Choice(Answer):
    """The only one."""

    index: Literal[0]
    message: ChatMessage
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    logprobs: None


class ChatUsage(Answer):
    """What the answer took."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class ChatCompletion(Answer):
    """The answer of a chat, in OpenAI's form."""

    id: str
    """Of the job."""
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[Choice]
    usage: ChatUsage


class ResponseFailure(Answer):
    """Why a response failed."""

    code: str
    message: str
    job_code: str
    """The job's own error code."""


class IncompleteDetails(Answer):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class InputDetails(Answer):
    """Not known: 0."""

    cached_tokens: Count
    cache_write_tokens: Count


class OutputDetails(Answer):
    """Not known: 0."""

    reasoning_tokens: Count


class ResponseUsage(Answer):
    """What the answer took."""

    input_tokens: Count
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Count


class ResponseObject(Answer):
    """A job as a response, in OpenAI's form."""

    id: str
    """Of the job."""
    object: Literal["response"]
    created_at: Count
    completed_at: Count | None
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    background: bool
    model: str
    output: list[dict[str, Any]]
    """Messages and calls of functions."""
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    metadata: dict[str, str]
    instructions: None
    temperature: None
    top_p: None
    tools: list[Any]
    tool_choice: Literal["auto"]
    parallel_tool_calls: bool


_HEADERS = (
    *("Age", "Cache-Status", "Idempotent-Replayed", "RateLimit", "RateLimit-Policy"),
    "Retry-After",
)
_SUBMIT = (
    *KEYED,
    *BODY,
    *("model_not_found", "cache_miss", "job_not_found", "result_expired", "cost_limit"),
    *("idempotency_in_progress", "idempotency_key_reused", "quota_exceeded", "queue_full"),
    "feature_disabled",
)
_COMPLETED = samples.job(200, samples.COMPLETED)


def _failed(*, held: bool, submits: bool) -> dict[int, str]:
    """What a job that has no answer to tell gives, by status."""
    told = {500: "The answer is too large for this form, or the job failed (`X-Should-Retry`)."}
    if held:
        told |= dict.fromkeys(FAILED_STATUS.values(), "Or the job failed, with its own code.")
        told[409] = f"Or the job was cancelled: `{CANCELLED}`."
    return told if held or submits else {}


@AREA.call(
    "POST",
    "/chat/completions",
    "createChatCompletion",
    scope="submit",
    summary="Chat, and wait for the answer",
    description=(
        "Held for 25 s, then 504 `still_running`: the same request goes on with the same job. "
        "Needs the scope `read`, too."
    ),
    answers={
        200: answer(
            "The answer.",
            ChatCompletion,
            {"An answer": chat_completion(_COMPLETED)},
            always=("X-Job-Id",),
            sometimes=_HEADERS,
        ),
        **openai_refusals(
            *_SUBMIT, "still_running", model=OpenAIError, besides=_failed(held=True, submits=True)
        ),
    },
)
def _chat(
    body: Annotated[
        ChatRequest,
        Body(
            description="As OpenAI's; what would change the answer and isn't known is refused.",
            openapi_examples={
                "chat": {
                    "summary": "A question",
                    "value": {
                        "model": "demo-chat",
                        "messages": [{"role": "user", "content": "What does a sluice gate do?"}],
                    },
                }
            },
        ),
    ],
    key: IdempotencyKey = None,
) -> None: ...


@AREA.call(
    "POST",
    "/responses",
    "createResponse",
    scope="submit",
    summary="Ask for a response",
    description=(
        "At once with `background: true`, else held as a chat is. Needs the scope `read`, too."
    ),
    answers={
        200: answer(
            "The response.",
            ResponseObject,
            {
                "An answer": response(_COMPLETED),
                "One that waits": response(samples.job(200, samples.QUEUED)),
            },
            always=("X-Job-Id",),
            sometimes=_HEADERS,
        ),
        **openai_refusals(
            *_SUBMIT, "still_running", model=OpenAIError, besides=_failed(held=True, submits=True)
        ),
    },
)
def _respond(
    body: Annotated[
        ResponsesRequest,
        Body(
            description="As OpenAI's; what would change the answer and isn't known is refused.",
            openapi_examples={
                "background": {
                    "summary": "In the background",
                    "value": {
                        "model": "demo-chat",
                        "input": "What does a sluice gate do?",
                        "background": True,
                    },
                }
            },
        ),
    ],
    key: IdempotencyKey = None,
) -> None: ...


@AREA.call(
    "GET",
    "/responses/<job_id>",
    "getResponse",
    scope="read",
    summary="Fetch a response",
    answers={
        200: answer(
            "The response.",
            ResponseObject,
            {
                "An answer": response(_COMPLETED),
                "One that failed": response(samples.job(200, samples.FAILED)),
            },
            always=("X-Job-Id",),
            sometimes=_HEADERS,
        ),
        **openai_refusals(
            *KEYED,
            *("job_not_found", "result_expired"),
            model=OpenAIError,
            besides=_failed(held=False, submits=True),
        ),
    },
)
def _get(job_id: JobId) -> None: ...


@AREA.call(
    "POST",
    "/responses/<job_id>/cancel",
    "cancelResponse",
    scope="cancel",
    summary="Cancel a response",
    description="Again for a cancelled one.",
    answers={
        200: answer(
            "The cancelled response.",
            ResponseObject,
            {"A cancelled one": response(samples.job(200, samples.CANCELLED))},
            always=("X-Job-Id",),
            sometimes=_HEADERS,
        ),
        **openai_refusals(*KEYED, "job_not_found", "not_cancellable", model=OpenAIError),
    },
)
def _cancel(job_id: JobId) -> None: ...
