"""How API keys look, and what is stored of them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain import api_key

RANDOM = st.binary(min_size=32, max_size=32)


@given(RANDOM)
def test_api_key_has_a_prefix_and_is_visible_ascii(randomness: bytes) -> None:
    key = api_key.api_key(randomness)

    assert key.startswith("swk_")
    assert len(key) == 47
    assert key.isascii()
    assert " " not in key


@given(RANDOM, RANDOM)
def test_api_keys_keep_all_of_their_randomness(one: bytes, other: bytes) -> None:
    assert (api_key.api_key(one) == api_key.api_key(other)) == (one == other)


def test_api_key_is_stored_as_its_sha_256() -> None:
    key = api_key.api_key(b"\x07" * 32)

    assert api_key.key_hash(key) == hashlib.sha256(key.encode()).hexdigest()


@given(RANDOM)
def test_api_key_has_the_form_of_one(randomness: bytes) -> None:
    assert api_key.well_formed(api_key.api_key(randomness))


@pytest.mark.parametrize(
    "text",
    [
        *("", "swk_", f"swk_{'A' * 42}", f"swk_{'A' * 44}", f"swk_{'A' * 42}="),
        *(f"swk_{'A' * 43}\n", f"key_{'A' * 43}"),
    ],
    ids=ascii,
)
def test_other_text_has_not(text: str) -> None:
    assert not api_key.well_formed(text)


def test_key_id_opens_nothing() -> None:
    key = api_key.api_key(b"\x07" * 32)
    hashed = api_key.key_hash(key)

    named = api_key.key_id(hashed)

    assert named == f"key_{hashed[:16]}"
    assert api_key.key_hash(named) != hashed
