"""The wire form of OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from sluiceway.domain.errors import VendorError
from sluiceway.ports import VendorAnswer

PATH = "/chat/completions"
REQUEST_ID_HEADER = "x-request-id"
MAX_TOKENS = 10**9
MAX_REQUEST_ID = 256


def request_headers(secret: str) -> dict[str, str]:
    """Headers that carry the vendor's key."""
    return {"authorization": f"Bearer {secret}"} if secret else {}


def request_body(vendor_model: str, work: dict[str, Any]) -> dict[str, Any]:
    """The body for `{"input", "options"}`; what is ours can't be overridden by an option."""
    return {**work["options"], "model": vendor_model, "messages": messages(work["input"])}


def messages(given: Any) -> list[dict[str, Any]]:
    """An input as messages: a text is one message of the user."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    listed: list[dict[str, Any]] = given["messages"]
    return listed


def error_code(document: Any) -> str:
    """The vendor's own name for an error; "" when there is none that is safe to repeat."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return ""
    return safe_name(error.get("code")) or safe_name(error.get("type"))


def safe_name(value: Any) -> str:
    """`value` when it is a short identifier, and so holds no text of ours; else ""."""
    if isinstance(value, str) and len(value) <= 64 and value.replace("_", "").isalnum():  # noqa: PLR2004
        return value if value.isascii() else ""
    return ""


def answer(document: dict[str, Any], *, latency_ms: int, request_id: str | None) -> VendorAnswer:
    """The answer in a reply of status 200. Raises KeyError and its like for malformed ones."""
    choice = document["choices"][0]
    message = choice["message"]
    reason = choice["finish_reason"]
    text = message.get("content")
    calls = [
        {"type": name, name: message[name]}
        for name in ("tool_calls", "function_call")  # the second: before there were tools
        if message.get(name)
    ]
    usage = document.get("usage") or {}
    input_tokens = tokens(usage.get("prompt_tokens"))
    output_tokens = tokens(usage.get("completion_tokens"))
    if reason == "content_filter" or message.get("refusal"):
        raise VendorError(
            "vendor_filtered",
            "The vendor filtered the answer.",
            retryable=False,
            http_status=200,
            vendor_request_id=request_id,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
    if not isinstance(text, str) and not (text is None and calls):
        raise ValueError("neither text nor tool calls")
    return VendorAnswer(
        text=text or "",
        finish_reason="tool_calls" if calls else _REASONS[reason],
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        latency_ms=latency_ms,
        vendor_request_id=request_id_of(request_id, document),
        content=calls or None,
    )


def request_id_of(header: str | None, document: dict[str, Any]) -> str | None:
    """The vendor's name for the call: of the header, else the answer's own id."""
    given = header or document.get("id")
    return given if isinstance(given, str) and len(given) <= MAX_REQUEST_ID else None


def tokens(count: Any) -> int:
    """A vendor's count, from which the cost is computed; none is 0.

    Raises ValueError for an absurd one.
    """
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_TOKENS:
        raise ValueError("no count of tokens")
    return count


_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
