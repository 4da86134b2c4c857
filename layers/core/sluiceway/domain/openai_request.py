"""Requests in OpenAI's form become submits.

A member is sent to the vendor as an option, or is ours, or changes nothing and is dropped, or is
refused: none is ignored that would change the answer or its form. A member that is null is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
)

from sluiceway.domain.errors import ValidationFailedError
from sluiceway.domain.request import (
    MAX_FAULTS_TOLD,
    PARTS,
    TEXT,
    Objects,
    ShortText,
    Strict,
    SubmitRequest,
    submit_of,
    validated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _only_a_bool(given: Any) -> Any:
    """To Python 0 is False, to JSON it isn't."""
    return given if isinstance(given, bool) else _NOTHING


def _no_bool(given: Any) -> Any:
    """Nor is true 1."""
    return _NOTHING if isinstance(given, bool) else given


_NOTHING = object()
"""Fits no type."""

_False = Annotated[Literal[False], BeforeValidator(_only_a_bool)]
_Zero = Annotated[Literal[0], BeforeValidator(_no_bool)]
_One = Annotated[Literal[1], BeforeValidator(_no_bool)]
_Tokens = Annotated[int, Field(ge=1)]


class Ours(Strict):
    """`extra_body={"sluiceway": {...}}`: members of a submit, which checks their values."""

    priority: Any = None
    cache: Any = None
    deadline_s: Any = None
    max_cost: Any = None
    callback_url: Any = None


class _Common(Strict):
    """What both forms have."""

    model: ShortText
    metadata: dict[str, Any] | None = None
    sluiceway: Ours = Ours()
    temperature: float | None = None
    top_p: float | None = None
    # Dropped: they change nothing here, or say what is so anyhow.
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    stream: _False | None = None
    top_logprobs: _Zero | None = None
    user: str | None = None

    @field_validator("stream", mode="before")
    @classmethod
    def _nothing_streams(cls, stream: Any) -> Any:
        if stream is True:
            raise ValueError("nothing is streamed here: leave it out, or ask in the background")
        return stream


class ChatRequest(_Common):
    """`POST /chat/completions`."""

    messages: Annotated[Objects, Field(min_length=1)]
    frequency_penalty: float | None = None
    function_call: Any = None
    functions: Objects | None = None
    logit_bias: dict[str, int] | None = None
    max_completion_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    stop: Any = None
    tool_choice: Any = None
    tools: Objects | None = None
    verbosity: str | None = None
    # Dropped
    logprobs: _False | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    n: _One | None = None


CHAT_OPTIONS = frozenset(
    {
        *("frequency_penalty", "function_call", "functions", "logit_bias", "max_completion_tokens"),
        *("max_tokens", "parallel_tool_calls", "prediction", "presence_penalty"),
        *("reasoning_effort", "response_format", "seed", "stop", "temperature", "tool_choice"),
        *("tools", "top_p", "verbosity"),
    }
)
"""Members of a chat that are sent to the vendor as they are, and so are part of the keys."""


class _Part(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


_Parts = Annotated[list[_Part], Field(min_length=1, fail_fast=True)]


class _Item(Strict):
    """A message; one that an answer held may come back as it was."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(TEXT)] | Annotated[_Parts, Tag(PARTS)],
        Discriminator(lambda value: TEXT if isinstance(value, str) else PARTS),
    ]
    type: Literal["message"] = "message"
    id: Any = None
    phase: Any = None
    status: Any = None


_Items = Annotated[list[_Item], Field(min_length=1, fail_fast=True)]


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: Any = None
    description: Any = None
    schema_: Annotated[Any, Field(alias="schema")] = None
    strict: Any = None


class _TextConfig(Strict):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(Strict):
    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(_Common):
    """`POST /responses`."""

    input: Annotated[
        Annotated[str, StringConstraints(min_length=1), Tag(TEXT)] | Annotated[_Items, Tag(PARTS)],
        Discriminator(lambda value: TEXT if isinstance(value, str) else PARTS),
    ]
    instructions: str | None = None
    background: bool | None = None
    max_output_tokens: _Tokens | None = None
    reasoning: _Reasoning = _Reasoning()
    text: _TextConfig = _TextConfig()
    # Dropped
    include: Annotated[list[str], Field(max_length=0)] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["auto", "none"] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    truncation: Literal["disabled"] | None = None


ANTHROPIC_OPTIONS: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "stop": "stop_sequences",
    "temperature": "temperature",
    "top_p": "top_p",
}
"""The options that Anthropic's protocol has, too, by the name that it gives them."""

_NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
}
"""What clients send though it says nothing; a protocol that lacks the option can do it, too."""

_OPENAIS_MEMBERS = ("function_call", "name", "tool_call_id", "tool_calls")
_OPENAIS_PARTS = frozenset({"file", "image_url", "input_audio", "refusal"})
"""Of a message; Anthropic's protocol has other forms for them, or none."""


def chat_of(value: Any, *, protocol_of: Callable[[str], str], local: bool = False) -> SubmitRequest:
    """The submit in a chat. `protocol_of`: a model's vendor's, by the model's name.

    Raises ValidationFailedError, and as `protocol_of` does.
    """
    given = _without_nulls(value)
    asked = validated(ChatRequest, given)
    options = {name: given[name] for name in given if name in CHAT_OPTIONS}
    protocol = protocol_of(asked.model)
    messages = [_told_again(message) for message in asked.messages]
    if protocol == "anthropic":
        _refuse_openais(messages)
    return _submit(
        asked,
        _plain(messages),
        _for_protocol(protocol, options, {}),
        place=lambda rest: f"messages.{rest.partition('.')[2]}".rstrip("."),
        local=local,
    )


def response_of(
    value: Any, *, protocol_of: Callable[[str], str], local: bool = False
) -> SubmitRequest:
    """The submit in a request for a response. Raises as `chat_of` does."""
    given = _without_nulls(value)
    asked = validated(ResponsesRequest, given)
    protocol = protocol_of(asked.model)
    messages: list[dict[str, Any]] = (
        [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    )
    if isinstance(asked.input, str):
        messages.append({"role": "user", "content": asked.input})
    else:
        messages += [_message(item) for item in asked.input]
    return _submit(
        asked,
        _plain(messages),
        _for_protocol(protocol, _options_of(asked, given), _CHAT_NAMES),
        place=lambda _: "input",
        local=local,
    )


_CHAT_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
"""What a response's request calls them."""


def _options_of(asked: ResponsesRequest, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a chat that say the same."""
    options: dict[str, Any] = {
        "max_completion_tokens": given.get("max_output_tokens"),
        "temperature": given.get("temperature"),
        "top_p": given.get("top_p"),
        "reasoning_effort": asked.reasoning.effort,
        "verbosity": asked.text.verbosity,
    }
    form = asked.text.format
    if form is not None and form.type == "json_object":
        options["response_format"] = {"type": "json_object"}
    elif form is not None and form.type == "json_schema":
        schema = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {name: value for name, value in options.items() if value is not None}


def _message(item: _Item) -> dict[str, Any]:
    content = item.content
    if isinstance(content, str):
        return {"role": item.role, "content": content}
    if len(content) == 1:
        return {"role": item.role, "content": content[0].text}
    parts = [{"type": "text", "text": part.text} for part in content]
    return {"role": item.role, "content": parts}


def _told_again(message: dict[str, Any]) -> dict[str, Any]:
    """The message without the empty members that clients send back with an answer of ours."""
    return {
        name: value
        for name, value in message.items()
        if name == "content" or not (value is None or (name == "annotations" and value == []))
    }


def _plain(messages: list[dict[str, Any]]) -> Any:
    """An input. One text of the user is the text, so that it is the same work in every form."""
    if len(messages) == 1 and messages[0].keys() == {"role", "content"}:
        role, content = messages[0]["role"], messages[0]["content"]
        if role == "user" and isinstance(content, str) and content:
            return content
    return {"messages": messages}


def _for_protocol(
    protocol: str, options: dict[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """The options as the vendor's protocol has them. `names`: what the partner calls an option.

    Raises ValidationFailedError for one that it lacks: the vendor would refuse it, later.
    """
    if protocol != "anthropic":
        return options
    options = {
        name: value
        for name, value in options.items()
        if name not in _NEUTRAL or value != _NEUTRAL[name]
    }
    faults = tuple(
        {"field": names.get(name, name), "message": "This model's vendor has no such option"}
        for name in options
        if name not in ANTHROPIC_OPTIONS
    )
    if faults:
        raise ValidationFailedError("The body doesn't fit the model.", errors=faults)
    renamed = {ANTHROPIC_OPTIONS[name]: value for name, value in options.items()}
    if isinstance(renamed.get("stop_sequences"), str):
        renamed["stop_sequences"] = [renamed["stop_sequences"]]
    return renamed


def _refuse_openais(messages: list[dict[str, Any]]) -> None:
    """Raises ValidationFailedError for what Anthropic's vendors would refuse, later."""
    faults = []
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            faults.append((f"{number}.role", "role"))
        faults += [(f"{number}.{name}", "member") for name in _OPENAIS_MEMBERS if name in message]
        content = message.get("content")
        faults += [
            (f"{number}.content.{place}.type", "part")
            for place, part in enumerate(content if isinstance(content, list) else ())
            if isinstance(part, dict) and part.get("type") in _OPENAIS_PARTS
        ]
    if faults:
        told = tuple(
            {"field": f"messages.{field}", "message": f"This model's vendor has no such {kind}"}
            for field, kind in faults[:MAX_FAULTS_TOLD]
        )
        raise ValidationFailedError("The body doesn't fit the model.", errors=told)


def _submit(
    asked: _Common,
    given: Any,
    options: dict[str, Any],
    *,
    place: Callable[[str], str],
    local: bool,
) -> SubmitRequest:
    """`place` gives the partner's name for a fault within our `input`."""
    wanted = {
        "model": asked.model,
        "input": given,
        "options": options,
        "metadata": asked.metadata or {},
        **asked.sluiceway.model_dump(exclude_unset=True),
    }
    try:
        return submit_of(wanted, local=local)
    except ValidationFailedError as error:
        faults = tuple({**fault, "field": _place(fault["field"], place)} for fault in error.errors)
        raise ValidationFailedError(str(error), errors=faults) from None


def _place(field: str, of_input: Callable[[str], str]) -> str:
    head, _, rest = field.partition(".")
    if head == "input":
        return of_input(rest)
    return f"sluiceway.{field}" if head in Ours.model_fields else field


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: member for name, member in value.items() if member is not None}
