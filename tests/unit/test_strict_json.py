"""JSON is read in one way only, or refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain import strict_json
from sluiceway.domain.errors import InvalidRequestError, SluicewayError, ValidationFailedError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def nested(levels: int) -> bytes:
    """Arrays and objects by turns, `levels` deep."""
    opened = "".join("[" if level % 2 == 0 else '{"a":' for level in range(levels))
    closed = "".join("]" if level % 2 == 0 else "}" for level in reversed(range(levels)))
    return f"{opened}{'1' if levels % 2 == 0 else ''}{closed}".encode()


@given(JSON)
def test_parse_reads_what_was_dumped(value: Any) -> None:
    assert strict_json.parse(strict_json.dump(value)) == value


@given(JSON)
def test_parse_keeps_the_types_of_values(value: Any) -> None:
    read = strict_json.parse(strict_json.dump([value]))

    assert repr(read) == repr([value])


@given(st.binary(max_size=64))
def test_parse_raises_nothing_but_its_own_errors(data: bytes) -> None:
    with suppress(InvalidRequestError, ValidationFailedError):
        strict_json.parse(data)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("template", ["%s", '{"options":{"temperature":%s}}', "[[[%s]]]"])
def test_parse_refuses_constants_that_are_no_json(constant: str, template: str) -> None:  # case K13
    with pytest.raises(InvalidRequestError, match="not JSON"):
        strict_json.parse((template % constant).encode())


def test_parse_leaves_the_string_nan_a_string() -> None:
    assert strict_json.parse(b'{"temperature":"NaN"}') == {"temperature": "NaN"}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1E+400", "1" + "0" * 90 + ".0e300"])
def test_parse_refuses_numbers_beyond_a_double(number: str) -> None:
    with pytest.raises(InvalidRequestError, match="range of a double"):
        strict_json.parse(f'{{"n":{number}}}'.encode())


@pytest.mark.parametrize("digits", [101, 5_000, 200_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_parse_refuses_integers_of_absurd_length(digits: int, sign: str) -> None:
    with pytest.raises(InvalidRequestError, match="digits"):
        strict_json.parse(f'{{"seed":{sign}{"9" * digits}}}'.encode())


@pytest.mark.parametrize("number", [10**100 - 1, 1 - 10**100], ids=["positive", "negative"])
def test_parse_takes_a_hundred_digits_whatever_the_sign(number: int) -> None:
    assert strict_json.parse(str(number).encode()) == number


def test_parse_keeps_integers_beyond_a_double_exact() -> None:  # case K09
    read = strict_json.parse(b"[9007199254740993, 9007199254740992]")

    assert read == [9007199254740993, 9007199254740992]
    assert all(type(number) is int for number in read)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","prompt":"x","model":"huge"}',
        b'{"a":{"b":1,"b":1}}',
        b'[{"deep":[{"x":1,"y":2,"x":3}]}]',
        b'{"model":1,"\\u006dodel":2}',
        '{"é":1,"\\u00e9":2}'.encode(),
        b'{"":1,"":2}',
    ],
)
def test_parse_refuses_repeated_names_at_any_depth(body: bytes) -> None:  # case K14
    with pytest.raises(InvalidRequestError, match="repeats a member name"):
        strict_json.parse(body)


def test_parse_takes_one_name_in_several_objects() -> None:
    assert strict_json.parse(b'{"a":{"a":1},"b":[{"a":2},{"a":3}]}') == {
        "a": {"a": 1},
        "b": [{"a": 2}, {"a": 3}],
    }


def test_parse_takes_nesting_of_32_levels() -> None:
    assert strict_json.parse(nested(32)) is not None


def test_parse_refuses_nesting_of_33_levels() -> None:
    with pytest.raises(InvalidRequestError, match="more than 32 levels"):
        strict_json.parse(nested(33))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=["arrays", "unclosed arrays", "objects"],
)
def test_parse_survives_bottomless_nesting(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        strict_json.parse(body)


def test_parse_takes_wide_bodies() -> None:
    wide = [[index] for index in range(20_000)]

    assert strict_json.parse(json.dumps(wide).encode()) == wide


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        '{"a":1}'.encode("utf-16-be"),
        '{"a":1}'.encode("utf-32"),
        b'{"a":"\xff"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":"caf\xe9"}',
        b'{"a":"\xed\xa0\xbd"}',
        b'{"a":"\xf0\x9f\x98"}',
    ],
    ids=[
        "byte order mark",
        "utf-16 with mark",
        "utf-16-le",
        "utf-16-be",
        "utf-32",
        "no utf-8",
        "overlong",
        "latin-1",
        "surrogate in utf-8",
        "cut off",
    ],
)
def test_parse_refuses_other_encodings(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        strict_json.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"bad \\ud83d end"}',
        b'{"prompt":"bad \\ude00 end"}',
        b'{"prompt":"wrong way \\ude00\\ud83d"}',
        b'{"\\ud83d":1}',
        b'{"a":[{"b":{"c\\udc00":null}}]}',
        b'"\\ud800"',
    ],
)
def test_parse_refuses_lone_surrogates_as_no_text(body: bytes) -> None:  # case K17
    with pytest.raises(ValidationFailedError):
        strict_json.parse(body)


def test_parse_joins_surrogate_pairs() -> None:
    assert strict_json.parse(b'{"\\ud83d\\ude00":"\\ud83d\\ude00"}') == {"😀": "😀"}


@pytest.mark.parametrize(
    "text",
    ["\x00", "\x07", "\x0b", "\ufffe", "\uffff", "a\r\nb", '<&> "q"', "Ѱ", "𠀀", "👩‍👩‍👧"],
)
def test_parse_leaves_characters_as_they_are(text: str) -> None:
    assert strict_json.parse(json.dumps({"a": text}).encode()) == {"a": text}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1}x',
        b'{"a":1}{"b":2}',
        b"{'a':1}",
        b'{"a":1,}',
        b"[1,]",
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":0x10}',
        b'// note\n{"a":1}',
        b'{"a":"line\nend"}',
        b'{"a":"\\x41"}',
        b"{a:1}",
        b"<html>",
        b"undefined",
        b'{"a":1}\x00',
        b'\x0c{"a":1}',
    ],
)
def test_parse_refuses_what_is_no_json(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        strict_json.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "hunter2" "more"}',
        b'{"prompt": "hunter2',
        b'{"hunter2":1,"hunter2":2}',
        b'{"prompt": "\\hunter2"}',
        b'{"hunter2 \\ud800":1}',
        b"hunter2",
    ],
)
def test_parse_errors_repeat_no_text_of_the_body(body: bytes) -> None:
    with pytest.raises(SluicewayError) as caught:
        strict_json.parse(body)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_dump_refuses_numbers_that_json_lacks(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        strict_json.dump({"a": number})


def test_dump_keeps_member_order_and_exact_numbers() -> None:
    assert (
        strict_json.dump({"b": 9007199254740993, "a": 1.0, "é": None})
        == '{"b":9007199254740993,"a":1.0,"é":null}'.encode()
    )
