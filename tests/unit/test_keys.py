"""Equal work has equal keys, whatever its spelling; different work never shares one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
import sluiceway
from hypothesis import assume, example, given
from hypothesis import strategies as st
from sluiceway.domain import strict_json
from sluiceway.domain.keys import Keys, Work, digest_of, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable

WORK = Work(
    operation="chat",
    tenant="acme",
    model="demo-chat",
    model_version="1",
    input="hello",
    options={"temperature": 0},
    locale=None,
    safety_profile=None,
    cache_scope="tenant",
)

LAYER = Path(sluiceway.__file__).parents[1]

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.dictionaries(TEXT, JSON, max_size=4)


def keys(**members: Any) -> Keys:
    return keys_of(replace(WORK, **members))


def job_key_of_option(value: Any) -> str:
    return keys(options={"o": value}).job_key


def read(literal: str) -> Any:
    """A number as it comes out of a request body."""
    return strict_json.parse(literal.encode())


def reordered(value: Any, order: Callable[[list[Any]], list[Any]]) -> Any:
    """`value` with the members of each object in another order."""
    if isinstance(value, dict):
        return {name: reordered(item, order) for name, item in order(list(value.items()))}
    if isinstance(value, list):
        return [reordered(item, order) for item in value]
    return value


# ------------------------------------------------------------------ form


def test_keys_are_short_url_safe_digests() -> None:  # case K05
    found = keys(input="a long prompt " * 20_000)

    assert re.fullmatch(r"j1_[A-Za-z0-9_-]{43}", found.job_key)
    assert re.fullmatch(r"c1_[A-Za-z0-9_-]{43}", found.cache_key)


def test_keys_hold_no_text_of_the_request() -> None:  # case K05
    found = keys(input="hunter2", locale="hunter2", options={"hunter2": "hunter2"})

    assert "hunter2" not in found.job_key + found.cache_key


def test_keys_of_a_known_request_never_change() -> None:
    found = keys_of(WORK)

    # A change here loses every open claim and every cached result: raise SCHEMA_VERSION with it.
    assert found == Keys(
        job_key="j1_yEqPBJRqYOF2u1cF9lQ5L41FTFqOqQ-MEjRX6PUr14w",
        cache_key="c1_KJW63TcGhavtjXUQDnOZMORnWJ_8P470Z84DNutCyhc",
    )


def tagged(value: Any) -> Any:
    """What the digest is of, as a JSON value."""
    match value:
        case str():
            return "s" + unicodedata.normalize("NFC", re.sub("\r\n?", "\n", value))
        case bool() | None:
            return value
        case int() if abs(value) >= 2**53:
            return f"i{value}"
        case float() if value.is_integer():
            return tagged(int(value))
        case list():
            return [tagged(item) for item in value]
        case dict():
            return {name: tagged(item) for name, item in value.items()}
    return value


ESCAPED = "".join(map(chr, range(0x20))) + '"\\/\x7f\x80\u2028\ue000\U0001f30a'


@given(JSON)
@example({ESCAPED: ESCAPED, "\ue000": 1e-7, "\U0001f30a": -0.0})
def test_digest_is_of_the_canonical_json_of_rfc_8785(value: Any) -> None:
    canonical = rfc8785.dumps(tagged(value))

    digest = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest())

    assert digest_of(value) == digest.rstrip(b"=").decode()


def test_keys_are_the_same_in_every_process() -> None:  # case K06
    program = (
        "import json, sys\n"
        "from sluiceway.domain.keys import Work, keys_of\n"
        "found = keys_of(Work(**json.load(sys.stdin)))\n"
        "print(found.job_key, found.cache_key)"
    )
    work = {field.name: getattr(WORK, field.name) for field in fields(Work)}
    work["options"] = {"b": {"y": [1.0, "é"], "x": {"n": None}}, "a": True, "c": 2**60}
    sent = json.dumps(work)

    printed = [
        subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", program],
            input=sent,
            env={**os.environ, "PYTHONPATH": str(LAYER), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert printed[0] == printed[1]
    here = keys_of(Work(**json.loads(sent)))
    assert printed[0].split() == [here.job_key, here.cache_key]


# ------------------------------------------------------------------ what is equal


@given(OPTIONS, st.randoms(use_true_random=False))
def test_keys_ignore_the_order_of_members_at_any_depth(  # case K01
    options: dict[str, Any], random: Any
) -> None:
    def shuffled(items: list[Any]) -> list[Any]:
        random.shuffle(items)
        return items

    wrapped = {"inner": [options], **options}

    assert keys(options=reordered(wrapped, shuffled)) == keys(options=wrapped)


def test_keys_ignore_the_order_of_members_in_messages() -> None:  # case K01
    one = {"messages": [{"role": "user", "content": "hi", "name": "ann"}]}
    other = {"messages": [{"name": "ann", "content": "hi", "role": "user"}]}

    assert keys(input=one) == keys(input=other)


@pytest.mark.parametrize(
    "literals",
    [
        ("1", "1.0", "1e0", "10e-1"),
        ("0", "-0", "-0.0", "0.0", "0e5"),
        ("1e-7", "0.0000001", "1E-7"),
        ("1e20", "100000000000000000000", "1e+20"),
        ("0.1", "0.10", "1e-1"),
        ("9007199254740992", "9007199254740992.0"),
        ("-9007199254740994", "-9007199254740994.0"),
    ],
)
def test_keys_ignore_how_a_number_is_spelt(literals: tuple[str, ...]) -> None:  # case K10
    found = {job_key_of_option(read(literal)) for literal in literals}

    assert len(found) == 1


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\rb"])
def test_keys_ignore_the_kind_of_line_end(text: str) -> None:
    assert keys(input=text) == keys(input="a\nb")
    assert keys(input={"messages": [{"role": "user", "content": text}]}) == keys(
        input={"messages": [{"role": "user", "content": "a\nb"}]}
    )


def test_keys_ignore_how_letters_are_composed() -> None:  # case K15
    assert keys(input="Caf\u00e9") == keys(input="Cafe\u0301")


# ------------------------------------------------------------------ what is different


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "embed"},
        {"tenant": "globex"},
        {"model": "demo-heavy"},
        {"model_version": "2"},
        {"input": "hello "},
        {"options": {"temperature": 1}},
        {"options": {}},
        {"locale": "en"},
        {"safety_profile": "strict"},
        {"cache_scope": "none"},
        {"cache_scope": "shared"},
        {"window": 0},
        {"model_epoch": 1},
        {"tenant_epoch": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_keys_change_with_each_member_of_the_work(change: dict[str, Any]) -> None:  # case K19
    changed = keys(**change)

    assert changed.job_key != keys_of(WORK).job_key
    assert changed.cache_key != keys_of(WORK).cache_key


@pytest.mark.parametrize(
    "change", [{"cache_mode": "refresh"}, {"no_store": True}, {"invalidated_at_epoch_ms": 1}]
)
def test_what_becomes_of_the_result_is_in_the_job_key_alone(change: dict[str, Any]) -> None:
    changed = keys(**change)

    assert changed.job_key != keys_of(WORK).job_key
    assert changed.cache_key == keys_of(WORK).cache_key


def test_keys_cover_every_member_of_the_work() -> None:
    tested = {
        "operation",
        "tenant",
        "model",
        "model_version",
        "input",
        "options",
        "locale",
        "safety_profile",
        "cache_scope",
        "window",
        "model_epoch",
        "tenant_epoch",
        "cache_mode",
        "no_store",
        "invalidated_at_epoch_ms",
    }

    assert {field.name for field in fields(Work)} == tested


@given(
    st.sampled_from(["tenant", "model", "model_version", "locale", "safety_profile", "input"]),
    st.text(min_size=1, max_size=12),
)
def test_keys_change_with_any_other_text(member: str, text: str) -> None:
    assume(text != getattr(WORK, member))

    assert keys(**{member: text}).job_key != keys_of(WORK).job_key


@given(OPTIONS, TEXT, JSON)
def test_keys_change_with_any_added_option(  # case K04
    options: dict[str, Any], name: str, value: Any
) -> None:
    assume(name not in options)

    assert keys(options={**options, name: value}).job_key != keys(options=options).job_key


@given(JSON, JSON)
def test_keys_differ_for_inputs_that_differ(one: Any, other: Any) -> None:
    def plain(value: Any) -> str:
        """What makes two values equal work: canonical numbers, letters and line ends."""
        return json.dumps(_plain(value), sort_keys=True)

    same_work = plain(one) == plain(other)

    assert (keys(input=one) == keys(input=other)) == same_work


def _plain(value: Any) -> Any:
    match value:
        case str():
            folded = value.replace("\r\n", "\n").replace("\r", "\n")
            return unicodedata.normalize("NFC", folded)
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
    return value


def test_keys_tell_apart_the_types_that_look_alike() -> None:  # case K12
    alike = [1, True, "1", "1.0", "true", [1], {"1": 1}, 0, False, None, "", "0", "null", [], {}]

    found = {job_key_of_option(value) for value in alike}

    assert len(found) == len(alike)


def test_keys_tell_apart_zero_and_absent() -> None:
    found = {
        keys(options=options).job_key
        for options in ({}, {"top_k": 0}, {"top_k": None}, {"top_k": False}, {"top_k": ""})
    }

    assert len(found) == 5


def test_keys_tell_apart_integers_that_doubles_confuse() -> None:  # case K09
    found = {job_key_of_option(2**53 + step) for step in range(-2, 6)}

    assert len(found) == 8


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1, 10**99, 7, -7])
@pytest.mark.parametrize("tag", ["i", "s", "si", ""])
def test_keys_never_take_a_text_for_a_number(number: int, tag: str) -> None:
    assert job_key_of_option(f"{tag}{number}") != job_key_of_option(number)


@given(st.integers(), TEXT)
def test_keys_never_take_any_text_for_any_number(number: int, text: str) -> None:
    assert job_key_of_option(text) != job_key_of_option(number)


def test_keys_tell_apart_member_names_of_different_spelling() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"

    found = {
        keys(options=options).job_key
        for options in (
            {composed: 1, decomposed: 2},
            {composed: 2, decomposed: 1},
            {composed: 1},
            {decomposed: 2},
        )
    }

    assert len(found) == 4


def test_keys_keep_the_order_of_lists() -> None:
    assert job_key_of_option([1, 2]) != job_key_of_option([2, 1])


def test_keys_tell_apart_structured_output_schemas() -> None:  # case K20
    def request(properties: dict[str, Any] | None) -> str:
        if properties is None:
            return keys(options={}).job_key
        schema = {"type": "object", "properties": properties}
        return keys(options={"response_format": {"json_schema": schema}}).job_key

    name, age = {"name": {"type": "string"}}, {"age": {"type": "integer"}}
    size: dict[str, Any] = {"size": {}}

    assert request({**name, **age}) == request({**age, **name})
    assert len({request(None), request({**name, **age}), request({**name, **size})}) == 3


def test_keys_refuse_what_is_no_json() -> None:
    with pytest.raises(TypeError, match="bytes is not a JSON type"):
        job_key_of_option(b"raw")


# ------------------------------------------------------------------ scopes


@pytest.mark.parametrize("scope", ["none", "tenant"])
def test_cache_key_is_each_tenants_own_unless_shared(scope: str) -> None:  # case A01
    acme = keys(tenant="acme", cache_scope=scope)
    globex = keys(tenant="globex", cache_scope=scope)

    assert acme.cache_key != globex.cache_key


def test_cache_key_is_one_for_all_tenants_when_shared() -> None:
    acme = keys(tenant="acme", cache_scope="shared")
    globex = keys(tenant="globex", cache_scope="shared")

    assert acme.cache_key == globex.cache_key
    assert acme.job_key != globex.job_key


def test_shared_cache_key_outlives_a_tenants_epoch_and_not_the_models() -> None:
    before = keys(cache_scope="shared")

    assert keys(cache_scope="shared", tenant_epoch=7).cache_key == before.cache_key
    assert keys(cache_scope="shared", tenant_epoch=7).job_key != before.job_key
    assert keys(cache_scope="shared", model_epoch=7).cache_key != before.cache_key


@given(TEXT, TEXT)
def test_cache_key_never_crosses_scopes(one: str, other: str) -> None:
    shared = keys(tenant=one, cache_scope="shared").cache_key

    assert shared != keys(tenant=other, cache_scope="tenant").cache_key


@pytest.mark.parametrize("marks", ["\u0327\u0300", "\u0f73"], ids=["accents", "made of two"])
def test_text_of_many_marks_has_its_key_in_bearable_time(marks: str) -> None:
    began_s = time.process_time()

    many = keys(input="a" + marks * 170_000)

    assert time.process_time() - began_s < 10  # minutes, when a run is sorted as a whole
    assert many != keys(input="a" + marks * 169_999)


@given(st.permutations(["\u0327", "\u0300", "\u0323", "\u0301"] * 7))
def test_marks_of_one_letter_in_another_order_are_the_same_text(marks: list[str]) -> None:
    text = "e" + "".join(marks)

    assert keys(input=text) == keys(input=unicodedata.normalize("NFC", text))
