"""Inputs and results as they are kept: compressed, and in the row only while they are small."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

INLINE_INPUT_BYTES = 64 * 1024
INLINE_RESULT_BYTES = 4 * 1024
"""Compressed. A larger result is written once, before the finish, and job and entry refer to it."""

LAST_RESORT_BYTES = 200 * 1024
"""Compressed: a paid result that the payload store didn't take. With an inline input it fits into
DynamoDB's 400 KB for a row."""

INLINE_PLAIN_BYTES = 1024 * 1024
"""A payload that unpacks to more is an object however well it compresses: a reply may have to
point to it."""

MAX_PLAIN_BYTES = 64 * 1024 * 1024
"""Unpacking stops here: more than any vendor's answer that we accept."""

_GZIP = 31
"""zlib's number for the gzip format: what HTTP clients unpack by themselves."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Compressed bytes, or the name of the object that holds them. Exactly one is set."""

    inline: bytes | None = None
    ref: str | None = None


def compress(plain: bytes) -> bytes:
    """`plain` as gzip, the same bytes for the same input."""
    packer = zlib.compressobj(wbits=_GZIP)
    return packer.compress(plain) + packer.flush()


def decompress(packed: bytes) -> bytes:
    """What `compress` was given.

    Raises ValueError when it is damaged or over MAX_PLAIN_BYTES.
    """
    try:
        unpacker = zlib.decompressobj(wbits=_GZIP)
        plain = unpacker.decompress(packed, MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise ValueError("the payload is damaged") from error
    if not unpacker.eof:
        raise ValueError("the payload is cut off or too large")
    return plain
