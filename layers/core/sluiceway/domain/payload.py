"""Inputs and results as they are kept: compressed, and in the row only while they are small."""

import zlib
from dataclasses import dataclass

INLINE_INPUT_BYTES = 64 * 1024
INLINE_RESULT_BYTES = 4 * 1024
"""Compressed. A larger result is written once, before the finish, and job and entry refer to it."""

MAX_PLAIN_BYTES = 64 * 1024 * 1024
"""Unpacking stops here: more than any vendor's answer that we accept."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Compressed bytes, or the name of the object that holds them. Exactly one is set."""

    inline: bytes | None = None
    ref: str | None = None


def compress(plain: bytes) -> bytes:
    """`plain` by zlib."""
    return zlib.compress(plain)


def decompress(packed: bytes) -> bytes:
    """What `compress` was given.

    Raises ValueError when it is damaged or over MAX_PLAIN_BYTES.
    """
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(packed, MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise ValueError("the payload is damaged") from error
    if not unpacker.eof:
        raise ValueError("the payload is cut off or too large")
    return plain
