"""Reads JSON without guessing.

Parsers differ about repeated names, NaN and huge numbers; what one layer checks, another must not
read in another way. So everything on which parsers differ is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sluiceway.domain.errors import InvalidRequestError, ValidationFailedError

MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 100
"""Longer integers are refused: no vendor takes them, and their parsing time is quadratic."""


def parse(data: bytes) -> Any:
    """The value that `data` holds as UTF-8 JSON.

    Raises InvalidRequestError for anything but plain JSON (repeated member names, NaN, Infinity,
    numbers beyond a double or of over 100 digits, nesting over 32), and ValidationFailedError for
    lone surrogates, which are JSON but no text.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequestError("The body is not UTF-8.") from error
    except RecursionError as error:
        raise InvalidRequestError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    if _depth(value) > MAX_DEPTH:
        raise InvalidRequestError(_TOO_DEEP)
    if b"\\u" in data:  # UTF-8 has none; an escape may be half of a pair
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValidationFailedError("The body holds half of a surrogate pair.") from error
    return value


def dump(value: Any) -> bytes:
    """`value` as compact UTF-8 JSON, members in their order; integers and floats stay exact.

    Raises ValueError for NaN and infinities: nothing we write may hold them.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


_TOO_DEEP = f"The body is nested more than {MAX_DEPTH} levels deep."


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidRequestError("The body repeats a member name within one object.")
    return members


def _refuse_constant(name: str) -> Any:
    raise InvalidRequestError(f"The body holds {name}, which is not JSON.")


def _bounded_int(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_INTEGER_DIGITS:
        raise InvalidRequestError(f"The body holds a number of over {MAX_INTEGER_DIGITS} digits.")
    return int(digits)


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidRequestError("The body holds a number beyond the range of a double.")
    return value


def _depth(value: Any) -> int:
    """Levels of nesting; iterative, since a recursive walk is what deep input attacks."""
    deepest = 0
    rest = [(value, 1)]
    while rest:
        item, level = rest.pop()
        if isinstance(item, dict):
            children: Any = item.values()
        elif isinstance(item, list):
            children = item
        else:
            continue
        deepest = max(deepest, level)
        rest.extend((child, level + 1) for child in children)
    return deepest
