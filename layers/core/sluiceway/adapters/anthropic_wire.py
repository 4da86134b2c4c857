"""The wire form of Anthropic's messages."""

from __future__ import annotations

from typing import Any

from sluiceway.adapters import openai_wire
from sluiceway.domain.errors import VendorError
from sluiceway.ports import VendorAnswer

PATH = "/messages"
REQUEST_ID_HEADER = "request-id"
VERSION = "2023-06-01"

DEFAULT_MAX_TOKENS = 4096
"""The protocol demands a limit; a partner sets another by `options.max_tokens`."""

_SYSTEM = frozenset({"system", "developer"})


def request_headers(secret: str) -> dict[str, str]:
    """Headers that carry the vendor's key and the version of the protocol."""
    return {"x-api-key": secret, "anthropic-version": VERSION}


def request_body(vendor_model: str, work: dict[str, Any]) -> dict[str, Any]:
    """The body for `{"input", "options"}`; system messages move to their own member."""
    given = openai_wire.messages(work["input"])
    options = dict(work["options"])
    system: list[Any] = [message.get("content") for message in given if message["role"] in _SYSTEM]
    system = [part for part in system if part]
    if system and isinstance(options.get("system"), str | list):
        system.insert(0, options.pop("system"))
    body = {
        "max_tokens": DEFAULT_MAX_TOKENS,
        **options,
        "model": vendor_model,
        "messages": [message for message in given if message["role"] not in _SYSTEM],
    }
    if system:
        body["system"] = (
            "\n\n".join(system)
            if all(isinstance(part, str) for part in system)
            else [block for part in system for block in _blocks(part)]
        )
    return body


def error_code(document: Any) -> str:
    """The vendor's own name for an error; "" when there is none that is safe to repeat."""
    error = document.get("error") if isinstance(document, dict) else None
    return openai_wire.safe_name(error.get("type")) if isinstance(error, dict) else ""


def answer(document: dict[str, Any], *, latency_ms: int, request_id: str | None) -> VendorAnswer:
    """The answer in a reply of status 200. Raises KeyError and its like for malformed ones."""
    blocks = document["content"]
    reason = document["stop_reason"]
    if reason == "refusal":
        usage = document.get("usage") or {}
        raise VendorError(
            "vendor_filtered",
            "The vendor refused to answer.",
            retryable=False,
            http_status=200,
            vendor_request_id=request_id,
            input_tokens=openai_wire.tokens(usage.get("input_tokens")),
            output_tokens=openai_wire.tokens(usage.get("output_tokens")),
        )
    if not isinstance(blocks, list) or not blocks:
        raise ValueError("no content")
    usage = document["usage"]
    kinds = {block["type"] for block in blocks}
    return VendorAnswer(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        # The vendor's own tools, too: what they found isn't there the next time.
        finish_reason="tool_calls" if any(map(_of_a_tool, kinds)) else _REASONS[reason],
        input_tokens=openai_wire.tokens(usage["input_tokens"]),
        output_tokens=openai_wire.tokens(usage["output_tokens"]),
        latency_ms=latency_ms,
        vendor_request_id=openai_wire.request_id_of(request_id, document),
        content=None if kinds == {"text"} else blocks,
    )


def _of_a_tool(kind: str) -> bool:
    """`tool_use`, `server_tool_use`, `mcp_tool_use`, `web_search_tool_result` and their like."""
    return kind.endswith(("tool_use", "tool_result"))


def _blocks(part: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part}] if isinstance(part, str) else list(part)


_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "pause_turn": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
