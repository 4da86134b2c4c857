"""The body of a submit: what it may hold, and how a wrong member is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluiceway.domain.errors import (
    InvalidRequestError,
    PayloadTooLargeError,
    SluicewayError,
    ValidationFailedError,
)
from sluiceway.domain.request import MAX_BODY_BYTES, SubmitRequest, parse_submit

BODY: dict[str, Any] = {"model": "demo-chat", "input": "hello"}


def submit(**members: Any) -> SubmitRequest:
    """Parses a good body with these members in it."""
    return parse_submit(json.dumps({**BODY, **members}).encode())


def chat(**message: Any) -> dict[str, Any]:
    """An input of one message."""
    return {"messages": [{"role": "user", "content": "hello", **message}]}


def fields_named(body: bytes) -> list[str]:
    """Parses a wrong body and gives the places that the error names."""
    with pytest.raises(ValidationFailedError) as caught:
        parse_submit(body)
    return [error["field"] for error in caught.value.errors]


def wrong(**members: Any) -> list[str]:
    return fields_named(json.dumps({**BODY, **members}).encode())


# ------------------------------------------------------------------ good bodies


def test_request_of_a_bare_body_has_the_defaults() -> None:
    request = submit()

    assert request == SubmitRequest(
        model="demo-chat",
        input="hello",
        options={},
        priority=None,
        locale=None,
        safety_profile=None,
        metadata={},
        deadline_s=86_400,
    )


def test_request_takes_every_member() -> None:
    request = submit(
        input=chat(),
        options={"temperature": 0.5, "stop": ["a"], "nested": {"deep": [None]}},
        priority="batch",
        locale="de-CH",
        safety_profile="strict",
        metadata={"order": "7"},
        deadline_s=60,
    )

    assert request.options == {"temperature": 0.5, "stop": ["a"], "nested": {"deep": [None]}}
    assert (request.priority, request.locale, request.safety_profile) == (
        "batch",
        "de-CH",
        "strict",
    )
    assert (request.metadata, request.deadline_s) == ({"order": "7"}, 60)


@pytest.mark.parametrize(
    "text", ["a\r\nb", "\x00\x07\x0b\ufffe\uffff", "😀 𠀀 Ѱ", '<&> "q"', " ", "Cafe\u0301"]
)
def test_request_keeps_the_text_as_it_came(text: str) -> None:
    assert submit(input=text).plain_input() == text
    assert submit(input=chat(content=text)).plain_input() == chat(content=text)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "user", "content": "hi", "name": "ann"},
    ],
)
def test_request_keeps_messages_with_the_members_they_came_with(message: dict[str, Any]) -> None:
    given = {"messages": [message]}

    assert submit(input=given).plain_input() == given


def test_request_keeps_big_integers_and_types_in_options() -> None:
    given = {"seed": 9007199254740993, "flag": True, "top_k": 0, "x": 1.0, "none": None}

    kept = submit(options=given).options

    assert repr(kept) == repr(given)


@pytest.mark.parametrize(
    "members",
    [
        {"model": "m"},
        {"model": "m" * 64},
        {"deadline_s": 1},
        {"deadline_s": 604_800},
        {"deadline_s": 60.0},
        {"locale": "de"},
        {"locale": "x" * 35},
        {"safety_profile": "s" * 64},
        {"metadata": {f"name{index}": "v" * 512 for index in range(16)}},
        {"metadata": {"k" * 64: ""}},
        {"input": {"messages": [{"role": "user", "content": "x"}] * 2048}},
        {"input": chat(name="n" * 64, tool_call_id="t" * 64)},
        {"priority": "interactive"},
        {"options": {"n": 1}},
    ],
    ids=lambda members: next(iter(members)),
)
def test_request_takes_members_at_their_limits(members: dict[str, Any]) -> None:
    assert submit(**members) is not None


def test_request_takes_a_body_of_exactly_the_limit() -> None:
    room = MAX_BODY_BYTES - len(json.dumps({**BODY, "input": ""}).encode())

    request = submit(input="x" * room)

    assert request.input == "x" * room


# ------------------------------------------------------------------ wrong bodies


def test_request_refuses_a_body_of_a_byte_more() -> None:
    room = MAX_BODY_BYTES - len(json.dumps({**BODY, "input": ""}).encode())

    with pytest.raises(PayloadTooLargeError):
        submit(input="x" * (room + 1))


def test_request_counts_bytes_not_characters() -> None:
    body = json.dumps({**BODY, "input": "€" * 350_000}, ensure_ascii=False).encode()

    with pytest.raises(PayloadTooLargeError):
        parse_submit(body)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b"null", b"true"])
def test_request_refuses_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(ValidationFailedError, match="not a JSON object"):
        parse_submit(body)


def test_request_refuses_what_is_no_json() -> None:
    with pytest.raises(InvalidRequestError):
        parse_submit(b"model=demo-chat")


@pytest.mark.parametrize("name", ["model", "input"])
def test_request_refuses_a_body_without_what_it_needs(name: str) -> None:
    body = {key: value for key, value in BODY.items() if key != name}

    assert fields_named(json.dumps(body).encode()) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "reasoning_effort",
        "tenant_id",
        "tenant",
        "stream",
        "messages",
        "temperature",
        "Model",
        "model ",
        "",
        "__class__",
    ],
)
def test_request_refuses_unknown_members_by_name(name: str) -> None:
    assert wrong(**{name: "other"}) == [name]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": "m" * 65}, "model"),
        ({"model": None}, "model"),
        ({"model": 1}, "model"),
        ({"model": ["demo-chat"]}, "model"),
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": True}, "input"),
        ({"input": ["hello"]}, "input"),
        ({"input": {}}, "input.messages"),
        ({"input": {"messages": []}}, "input.messages"),
        ({"input": {"messages": None}}, "input.messages"),
        ({"input": {"messages": "hello"}}, "input.messages"),
        ({"input": {"messages": [{"role": "user"}] * 2049}}, "input.messages"),
        ({"input": {"messages": [5]}}, "input.messages.0"),
        ({"input": {"messages": [{"role": "user"}], "model": "x"}}, "input.model"),
        ({"input": {"messages": [{"role": "user"}, {"role": "king"}]}}, "input.messages.1.role"),
        ({"input": {"messages": [{"content": "x"}]}}, "input.messages.0.role"),
        ({"input": chat(extra=1)}, "input.messages.0.extra"),
        ({"input": chat(name="")}, "input.messages.0.name"),
        ({"input": chat(name="n" * 65)}, "input.messages.0.name"),
        ({"input": chat(tool_call_id=7)}, "input.messages.0.tool_call_id"),
        ({"input": chat(tool_calls={})}, "input.messages.0.tool_calls"),
        ({"input": chat(tool_calls=["x"])}, "input.messages.0.tool_calls.0"),
        ({"options": None}, "options"),
        ({"options": []}, "options"),
        ({"options": "{}"}, "options"),
        ({"options": {"model": "other"}}, "options"),
        ({"options": {"messages": []}}, "options"),
        ({"options": {"stream": False}}, "options"),
        ({"options": {"n": 2}}, "options"),
        ({"options": {"n": 0}}, "options"),
        ({"options": {"n": True}}, "options"),
        ({"options": {"n": "1"}}, "options"),
        ({"options": {"n": None}}, "options"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 1}, "priority"),
        ({"locale": "d"}, "locale"),
        ({"locale": "x" * 36}, "locale"),
        ({"locale": 1}, "locale"),
        ({"safety_profile": ""}, "safety_profile"),
        ({"safety_profile": "s" * 65}, "safety_profile"),
        ({"metadata": None}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {f"name{index}": "" for index in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": None}}, "metadata.k"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"deadline_s": 604_801}, "deadline_s"),
        ({"deadline_s": 10**60}, "deadline_s"),
        ({"deadline_s": True}, "deadline_s"),
        ({"deadline_s": "60"}, "deadline_s"),
        ({"deadline_s": 60.5}, "deadline_s"),
        ({"deadline_s": None}, "deadline_s"),
    ],
)
def test_request_names_the_member_that_is_wrong(members: dict[str, Any], field: str) -> None:
    assert wrong(**members) == [field]


@pytest.mark.parametrize("content", [5, True, {"type": "text"}, ["text"], [{"type": "text"}, 5]])
def test_request_names_wrong_content_without_the_parsers_own_words(content: Any) -> None:
    named = wrong(input=chat(content=content))

    places = {place.rstrip(".0123456789") for place in named}
    assert places == {"input.messages.0.content"}


def test_request_names_members_that_are_called_like_our_own_words() -> None:
    assert wrong(metadata={"chat": 1}) == ["metadata.chat"]
    assert wrong(chat=1) == ["chat"]
    assert wrong(input={"messages": [{"role": "user"}], "text": 1}) == ["input.text"]


@pytest.mark.parametrize("name", ["", "k" * 65])
def test_request_limits_the_names_in_metadata(name: str) -> None:
    with pytest.raises(ValidationFailedError):
        submit(metadata={name: "v"})


def test_request_names_every_wrong_member_at_once() -> None:
    assert sorted(wrong(model=5, priority="x", extra=1)) == ["extra", "model", "priority"]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            {"temperature": 1},
            {
                "field": "temperature",
                "message": "There is no such member; what is meant for the model goes into options",
            },
        ),
        ({"cache": {"ttl": 1}}, {"field": "cache.ttl", "message": "There is no such member"}),
        ({"input": [1]}, {"field": "input", "message": "Input should be an object"}),
        (
            {"callback_url": "ftp://x"},
            {
                "field": "callback_url",
                "message": "is no plain http(s) URL without user, password and fragment",
            },
        ),
    ],
)
def test_request_errors_say_what_to_do_in_words_of_json(
    members: dict[str, Any], told: dict[str, str]
) -> None:
    with pytest.raises(ValidationFailedError) as caught:
        submit(**members)

    assert caught.value.errors == (told,)


@pytest.mark.parametrize(
    "members",
    [
        {"model": ["hunter2"]},
        {"model": "hunter2" * 20},
        {"input": ["hunter2"]},
        {"input": chat(role="hunter2")},
        {"input": chat(content={"hunter2": "hunter2"})},
        {"input": chat(name="hunter2" * 20)},
        {"options": "hunter2"},
        {"options": {"n": "hunter2"}},
        {"priority": "hunter2"},
        {"locale": "hunter2" * 20},
        {"metadata": {"k": "hunter2" * 100}},
        {"metadata": {"k": ["hunter2"]}},
        {"deadline_s": "hunter2"},
        {"extra": "hunter2"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_request_errors_repeat_no_text_of_the_body(members: dict[str, Any]) -> None:
    with pytest.raises(SluicewayError) as caught:
        submit(**members)

    told = str(caught.value) + repr(getattr(caught.value, "errors", ""))
    assert "hunter2" not in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "members",
    [
        {"input": chat(content=[0] * 60_000)},
        {f"unknown{index}": 0 for index in range(20_000)},
        {"x" * 900_000: 1},
        {"metadata": {"k" * 900_000: "v"}},
    ],
    ids=["many wrong parts", "many unknown members", "a long name", "a long name in metadata"],
)
def test_request_errors_are_of_bearable_size(members: dict[str, Any]) -> None:
    # Lambda can't return an answer of over 6 MB: the partner would get a 502 for a 422. And a name
    # of this length is a text of the body.
    with pytest.raises(ValidationFailedError) as caught:
        submit(**members)

    count, size = len(caught.value.errors), len(json.dumps(caught.value.errors))
    assert 1 <= count <= 1000
    assert size < 100_000
