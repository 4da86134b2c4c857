"""Payloads come back as they were kept, or not at all."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.domain.payload import (
    INLINE_PLAIN_BYTES,
    MAX_PLAIN_BYTES,
    Payload,
    compress,
    decompress,
)
from sluiceway.usecases import payloads as payloads_of

from tests.fakes.in_memory import InMemoryPayloads, World


@given(st.binary())
def test_payload_comes_back_as_it_was(plain: bytes) -> None:
    assert decompress(compress(plain)) == plain


@given(st.binary())
def test_payload_packs_alike_each_time(plain: bytes) -> None:
    assert compress(plain) == compress(plain)


def test_payload_is_what_http_clients_unpack() -> None:
    assert gzip.decompress(compress(b"hello")) == b"hello"


@given(st.binary(max_size=200), st.data())
def test_payload_that_is_cut_off_is_refused(plain: bytes, data: st.DataObject) -> None:
    packed = compress(plain)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]

    with pytest.raises(ValueError, match="payload"):
        decompress(cut)


@pytest.mark.parametrize("packed", [b"", b"\x00", b"hello", b"\x1f\x8b", b"{}"])
def test_payload_that_is_no_packed_data_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="payload"):
        decompress(packed)


@pytest.mark.parametrize("place", [12, -6])
def test_payload_that_is_damaged_is_refused(place: int) -> None:
    packed = bytearray(compress(b"a text that is long enough to be damaged in the middle"))
    packed[place] ^= 0xFF

    with pytest.raises(ValueError, match="payload"):
        decompress(bytes(packed))


def test_payload_unpacks_up_to_its_limit() -> None:
    assert len(decompress(compress(b"x" * MAX_PLAIN_BYTES))) == MAX_PLAIN_BYTES


def test_payload_that_unpacks_to_more_is_refused() -> None:
    bomb = compress(bytes(MAX_PLAIN_BYTES + 1))

    with pytest.raises(ValueError, match="too large"):
        decompress(bomb)


# ------------------------------------------------------------------ where they are kept


@given(st.binary(max_size=600), st.integers(0, 300))
def test_payload_is_loaded_from_wherever_it_was_kept(plain: bytes, inline_bytes: int) -> None:
    payloads = InMemoryPayloads(World())

    kept = payloads_of.keep(plain, "name", inline_bytes=inline_bytes, payloads=payloads)

    assert payloads_of.load(kept, payloads=payloads) == plain


def test_payload_stays_inline_up_to_its_limit(world: World) -> None:
    size = len(compress(b"hello"))

    kept = payloads_of.keep(b"hello", "name", inline_bytes=size, payloads=InMemoryPayloads(world))

    assert kept == Payload(inline=compress(b"hello"))
    assert world.payloads == {}


def test_payload_over_its_limit_is_stored_under_its_name(world: World) -> None:
    size = len(compress(b"hello"))

    kept = payloads_of.keep(
        b"hello", "name", inline_bytes=size - 1, payloads=InMemoryPayloads(world)
    )

    assert kept == Payload(ref="name")
    assert world.payloads == {"name": compress(b"hello")}


def test_payload_that_compresses_too_well_is_stored(world: World) -> None:
    kept = payloads_of.keep(
        b"x" * (INLINE_PLAIN_BYTES + 1),
        "name",
        inline_bytes=64 * 1024,
        payloads=InMemoryPayloads(world),
    )

    assert kept == Payload(ref="name")


def test_payload_whose_object_is_gone_is_a_key_error(world: World) -> None:
    with pytest.raises(KeyError):
        payloads_of.load(Payload(ref="gone"), payloads=InMemoryPayloads(world))


def test_payload_that_is_nowhere_is_a_key_error(world: World) -> None:
    with pytest.raises(KeyError):
        payloads_of.load(Payload(), payloads=InMemoryPayloads(world))


def test_payload_of_empty_bytes_is_not_taken_for_missing(world: World) -> None:
    kept = payloads_of.keep(b"", "name", inline_bytes=100, payloads=InMemoryPayloads(world))

    assert payloads_of.load(kept, payloads=InMemoryPayloads(world)) == b""
