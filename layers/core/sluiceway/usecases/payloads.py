"""Keeping inputs and results: in the row while small, else in the payload store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.domain.payload import INLINE_PLAIN_BYTES, Payload, compress, decompress

if TYPE_CHECKING:
    from sluiceway.ports import PayloadStore


def keep(plain: bytes, name: str, *, inline_bytes: int, payloads: PayloadStore) -> Payload:
    """A payload that holds `plain`; it is written under `name` when it is too big for a row."""
    packed = compress(plain)
    if len(packed) <= inline_bytes and len(plain) <= INLINE_PLAIN_BYTES:
        return Payload(inline=packed)
    payloads.put(name, packed)
    return Payload(ref=name)


def load(payload: Payload, *, payloads: PayloadStore) -> bytes:
    """What `keep` was given. Raises KeyError when the object is gone, ValueError when damaged."""
    packed = payload.inline if payload.ref is None else payloads.get(payload.ref)
    if packed is None:
        raise KeyError("the payload is neither inline nor stored")
    return decompress(packed)
