"""Requests in OpenAI's form: what becomes of each member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.errors import ValidationFailedError
from sluiceway.domain.openai_request import (
    ANTHROPIC_OPTIONS,
    CHAT_OPTIONS,
    ChatRequest,
    Ours,
    ResponsesRequest,
    chat_of,
    response_of,
)
from sluiceway.domain.request import SubmitRequest

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO = [{"role": "user", "content": "hello"}]
DROPPED: dict[str, Any] = {
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": False,
    "stream": False,
    "top_logprobs": 0,
    "user": "u",
}


def openai(_: str) -> str:
    return "openai"


def anthropic(_: str) -> str:
    return "anthropic"


def chat(protocol_of: Callable[[str], str] = openai, **members: Any) -> SubmitRequest:
    body = {"model": "demo-chat", "messages": HELLO, **members}
    return chat_of(body, protocol_of=protocol_of)


def response(protocol_of: Callable[[str], str] = openai, **members: Any) -> SubmitRequest:
    body = {"model": "demo-chat", "input": "hello", **members}
    return response_of(body, protocol_of=protocol_of)


def faults_of(ask: Callable[..., SubmitRequest], **members: Any) -> set[str]:
    with pytest.raises(ValidationFailedError) as caught:
        ask(**members)
    return {fault["field"] for fault in caught.value.errors}


# ------------------------------------------------------------------ the input


@given(text=st.text(min_size=1))
def test_one_text_of_the_user_is_the_same_work_in_every_form(text: str) -> None:
    expected = SubmitRequest.model_validate({"model": "demo-chat", "input": text})

    assert chat(messages=[{"role": "user", "content": text}]) == expected
    assert response(input=text) == expected
    assert response(input=[{"role": "user", "content": text}]) == expected
    parts = [{"type": "input_text", "text": text}]
    assert response(input=[{"type": "message", "role": "user", "content": parts}]) == expected


@given(
    texts=st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), min_size=2
    )
)
def test_messages_come_through_word_for_word(texts: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in texts]

    assert chat(messages=messages).plain_input() == {"messages": messages}
    assert response(input=messages).plain_input() == {"messages": messages}


@given(instructions=st.text(min_size=1), text=st.text(min_size=1))
def test_instructions_are_the_first_message(instructions: str, text: str) -> None:
    assert response(instructions=instructions, input=text).plain_input() == {
        "messages": [
            {"role": "system", "content": instructions},
            {"role": "user", "content": text},
        ]
    }


def test_answer_of_a_response_may_be_sent_back_as_it_was() -> None:
    answer = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "one", "annotations": [], "logprobs": None}],
    }

    asked = response(input=[*HELLO, answer, {"role": "user", "content": "and?"}])

    assert asked.plain_input()["messages"][1] == {"role": "assistant", "content": "one"}


def test_several_parts_stay_parts() -> None:
    parts = [{"type": "input_text", "text": text} for text in ("a", "b")]

    asked = response(input=[{"role": "user", "content": parts}])

    assert asked.plain_input()["messages"][0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_answer_of_a_chat_may_be_sent_back_as_it_was() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [call],
    }
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}

    asked = chat(messages=[*HELLO, answer, result])

    assert asked.plain_input()["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        result,
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": "x", "more": 1}, "messages.0.more"),
        ({"role": "function", "content": "x"}, "messages.0.role"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "messages.0.refusal"),
        ({"content": "x"}, "messages.0.role"),
    ],
    ids=str,
)
def test_message_that_is_none_is_named_as_the_client_knows_it(
    message: dict[str, Any], field: str
) -> None:
    assert faults_of(chat, messages=[message]) == {field}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://x/"}]},
        {"role": "user", "content": []},
        {"role": "tool", "content": "x"},
        {"type": "item_reference", "id": "msg_1"},
    ],
    ids=str,
)
def test_item_that_is_no_text_is_refused(item: dict[str, Any]) -> None:
    assert all(field.startswith("input.0") for field in faults_of(response, input=[item]))


# ------------------------------------------------------------------ options


def test_options_are_sent_as_they_are() -> None:
    options: dict[str, Any] = {
        "frequency_penalty": 0.5,
        "function_call": "auto",
        "functions": [{"name": "f"}],
        "logit_bias": {"50256": -100},
        "max_completion_tokens": 10,
        "max_tokens": 10,
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "x"},
        "presence_penalty": 1,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "seed": 2**60,
        "stop": ["a", "b"],
        "temperature": 1,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "top_p": 0.1,
        "verbosity": "low",
    }
    assert options.keys() == CHAT_OPTIONS

    assert chat(**options).options == options


def test_every_member_of_a_chat_has_its_place() -> None:
    dropped = {*DROPPED, "logprobs", "modalities", "n"}

    assert set(ChatRequest.model_fields) == (
        CHAT_OPTIONS | dropped | {"model", "messages", "metadata", "sluiceway"}
    )


def test_options_of_a_response_are_those_of_a_chat_that_says_the_same() -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}

    asked = response(
        max_output_tokens=10,
        temperature=0,
        top_p=1,
        reasoning={"effort": "low", "summary": None},
        text={"format": {"type": "json_schema", **schema}, "verbosity": "high"},
    )

    assert asked == chat(
        max_completion_tokens=10,
        temperature=0,
        top_p=1,
        reasoning_effort="low",
        response_format={"type": "json_schema", "json_schema": schema},
        verbosity="high",
    )


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"response_format": {"type": "json_object"}}),
    ],
    ids=str,
)
def test_format_of_a_response_is_that_of_a_chat(
    form: dict[str, Any], options: dict[str, Any]
) -> None:
    assert response(text={"format": form}).options == options


@pytest.mark.parametrize("ask", [chat, response])
def test_what_changes_nothing_is_dropped(ask: Callable[..., SubmitRequest]) -> None:
    assert ask(**DROPPED) == ask()


@pytest.mark.parametrize(
    "members",
    [{"logprobs": False, "modalities": ["text"], "n": 1}, {"stream": None, "audio": None}],
    ids=str,
)
def test_what_changes_nothing_of_a_chat_is_dropped(members: dict[str, Any]) -> None:
    assert chat(**members) == chat()


def test_what_changes_nothing_of_a_response_is_dropped() -> None:
    assert response() == response(
        background=True,
        include=[],
        parallel_tool_calls=True,
        previous_response_id=None,
        tool_choice="auto",
        tools=[],
        truncation="disabled",
    )


@pytest.mark.parametrize(
    "members",
    [
        {"stream": True},
        {"stream": 0},
        {"n": 2},
        {"n": True},
        {"logprobs": 0},
        {"top_logprobs": False},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"modalities": ["text", "audio"]},
        {"service_tier": "flex"},
        {"audio": {"voice": "alloy"}},
        {"web_search_options": {}},
        {"stream_options": {"include_usage": True}},
        {"top_k": 40},
        {"temperature": "1"},
        {"max_tokens": 0},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_what_would_change_the_answer_of_a_chat_is_refused(members: dict[str, Any]) -> None:
    (name,) = members

    assert {field.partition(".")[0] for field in faults_of(chat, **members)} == {name}


@pytest.mark.parametrize(
    "members",
    [
        {"stream": True},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"previous_response_id": "job_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"include": ["reasoning.encrypted_content"]},
        {"truncation": "auto"},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"text": {"format": {"type": "grammar"}}},
        {"max_tool_calls": 1},
        {"background": "yes"},
    ],
    ids=str,
)
def test_what_would_change_a_response_is_refused(members: dict[str, Any]) -> None:
    (name,) = members

    assert {field.partition(".")[0] for field in faults_of(response, **members)} == {name}


@pytest.mark.parametrize("schema", [ChatRequest, ResponsesRequest])
@pytest.mark.parametrize("body", [None, [], "text", {}])
def test_body_that_is_no_request_is_refused(schema: type, body: Any) -> None:
    make = chat_of if schema is ChatRequest else response_of

    with pytest.raises(ValidationFailedError):
        make(body, protocol_of=openai)


# ------------------------------------------------------------------ Anthropic's vendors


def test_options_get_the_names_of_anthropics_protocol() -> None:
    asked = chat(anthropic, max_completion_tokens=10, stop="a", temperature=0.5, top_p=1)

    assert asked.options == {
        "max_tokens": 10,
        "stop_sequences": ["a"],
        "temperature": 0.5,
        "top_p": 1,
    }
    assert response(anthropic, max_output_tokens=10).options == {"max_tokens": 10}


@pytest.mark.parametrize("name", sorted(CHAT_OPTIONS - ANTHROPIC_OPTIONS.keys()))
def test_option_that_anthropics_protocol_lacks_is_refused(name: str) -> None:
    values: dict[str, Any] = {
        "functions": [],
        "logit_bias": {},
        "parallel_tool_calls": True,
        "prediction": {},
        "reasoning_effort": "low",
        "response_format": {},
        "seed": 1,
        "tools": [],
        "verbosity": "low",
    }

    faults = faults_of(lambda **members: chat(anthropic, **members), **{name: values.get(name, 1)})

    assert faults == {name}


@pytest.mark.parametrize("ask", [chat, response])
def test_stream_is_refused_with_what_to_do_instead(ask: Callable[..., SubmitRequest]) -> None:
    with pytest.raises(ValidationFailedError) as caught:
        ask(stream=True)

    (fault,) = caught.value.errors
    assert fault["field"] == "stream"
    assert "leave it out" in fault["message"]


def test_option_that_says_nothing_is_left_out_where_the_protocol_lacks_it() -> None:
    asked = chat(
        anthropic,
        frequency_penalty=0,
        presence_penalty=0.0,
        response_format={"type": "text"},
        max_tokens=5,
    )

    assert asked.options == {"max_tokens": 5}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "tool_call_id": "c", "content": "x"}, "role"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "tool_calls"),
        ({"role": "user", "content": "x", "name": "bob"}, "name"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content.0.type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content.0.type"),
    ],
    ids=str,
)
def test_message_that_anthropics_protocol_lacks_is_refused(
    message: dict[str, Any], field: str
) -> None:
    asked = {"messages": [*HELLO, message]}

    assert f"messages.1.{field}" in faults_of(lambda **members: chat(anthropic, **members), **asked)
    assert chat(openai, **asked).model == "demo-chat"


def test_parts_that_anthropics_protocol_has_are_sent_on() -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "image", "source": {"type": "url"}}]

    asked = chat(anthropic, messages=[{"role": "user", "content": parts}])

    assert asked.plain_input()["messages"][0]["content"] == parts


def test_option_that_anthropics_protocol_lacks_is_named_as_a_response_knows_it() -> None:
    def ask(**members: Any) -> SubmitRequest:
        return response(anthropic, **members)

    assert faults_of(ask, text={"format": {"type": "json_object"}}) == {"text.format"}
    assert faults_of(ask, reasoning={"effort": "low"}) == {"reasoning.effort"}


# ------------------------------------------------------------------ ours


@pytest.mark.parametrize("ask", [chat, response])
def test_our_members_mean_what_they_mean_in_a_submit(ask: Callable[..., SubmitRequest]) -> None:
    ours: dict[str, Any] = {
        "priority": "batch",
        "cache": {"mode": "bypass"},
        "deadline_s": 60,
        "max_cost": 0.5,
        "callback_url": "https://hooks.example/",
    }
    assert ours.keys() == Ours.model_fields.keys()

    asked = ask(sluiceway=ours, metadata={"order": "1"})

    assert asked == SubmitRequest.model_validate(
        {"model": "demo-chat", "input": "hello", "metadata": {"order": "1"}, **ours}
    )


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"sluiceway": {"priority": "urgent"}}, "sluiceway.priority"),
        ({"sluiceway": {"cache": {"mode": "never"}}}, "sluiceway.cache.mode"),
        ({"sluiceway": {"input": "x"}}, "sluiceway.input"),
        ({"sluiceway": {"callback_url": "http://10.0.0.1/"}}, "sluiceway.callback_url"),
        ({"metadata": {"order": 1}}, "metadata.order"),
        ({"model": ""}, "model"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ask", [chat, response])
def test_fault_in_our_members_is_named_in_its_place(
    ask: Callable[..., SubmitRequest], members: dict[str, Any], field: str
) -> None:
    assert faults_of(ask, **members) == {field}


@pytest.mark.parametrize(
    ("ask", "members", "field"),
    [
        (chat, {"messages": [1] * 9}, "messages"),
        (chat, {"messages": [{"role": "user", "content": [1] * 9}]}, "messages.0.content"),
        (chat, {"messages": [{"role": "user", "tool_calls": [1] * 9}]}, "messages.0.tool_calls"),
        (chat, {"tools": [1] * 9}, "tools"),
        (chat, {"modalities": [1] * 9}, "modalities"),
        (response, {"input": [1] * 9}, "input"),
        (response, {"input": [{"role": "user", "content": [1] * 9}]}, "input.0.content"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_long_list_is_one_fault_and_not_one_for_each_that_is_wrong(
    ask: Callable[..., SubmitRequest], members: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationFailedError) as caught:
        ask(**members)

    (fault,) = caught.value.errors
    assert fault["field"] == f"{field}.0"
