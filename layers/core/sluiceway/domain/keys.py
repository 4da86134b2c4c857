"""The two keys of a request: what work it is, and which result answers it.

Equal work must give equal keys whatever its spelling (member order, white space, 1 or 1.0, line
ends, composed or decomposed letters), and different work must never share one.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import rfc8785

SCHEMA_VERSION = 1
"""Raise it when the keyed members change their meaning: old claims and entries never match then."""

CACHE_KEY_PATTERN = r"^c[0-9]+_[A-Za-z0-9_-]{43}$"

_EXACT_INTEGERS = 2**53
"""RFC 8785 numbers are doubles: beyond this, neighbouring integers are the same double."""


_MOST_MARKS = 30
"""On one letter, as in Unicode's stream-safe text format."""


@dataclass(frozen=True, slots=True)
class Keys:
    """`job_key` finds the open job for this work, `cache_key` a reusable result.

    Each is 46 ASCII characters: a prefix with the kind and the schema version, and a SHA-256 in
    base64url. They hold no text of the request.
    """

    job_key: str
    cache_key: str


@dataclass(frozen=True, slots=True)
class Work:
    """All that defines one piece of work, and nothing else.

    Request time, metadata, priority, deadline and headers are left out on purpose: they don't
    change the answer.
    """

    operation: str
    tenant: str
    model: str
    model_version: str
    input: Any
    options: dict[str, Any]
    locale: str | None
    safety_profile: str | None
    cache_scope: str
    """`none`, `tenant` or `shared`; only `shared` leaves the tenant out of the cache key."""
    window: int | None = None
    """Number of the time window, for models whose equal requests differ from window to window."""
    model_epoch: int = 0
    tenant_epoch: int = 0
    """Raising one invalidates. A shared entry is found whatever the tenant's epoch is: it would be
    shared with nobody otherwise. Its age answers for it (submit_job)."""
    cache_mode: str = "use"
    no_store: bool = False
    """What becomes of the result is no part of which result it is: only in the job key."""
    invalidated_at_epoch_ms: int | None = None
    """Of the cache key. Only in the job key: nobody joins a job from before."""


def keys_of(work: Work) -> Keys:
    """Both keys of `work`, the same in every process and for ever within a schema version."""
    shared = {
        "schema": SCHEMA_VERSION,
        "operation": work.operation,
        "model": work.model,
        "model_version": work.model_version,
        "input": work.input,
        "options": work.options,
        "locale": work.locale,
        "safety_profile": work.safety_profile,
        "window": work.window,
        "epoch": work.model_epoch,
        "scope": work.cache_scope,
    }
    owned = shared | {"tenant": work.tenant, "tenant_epoch": work.tenant_epoch}
    modes = {
        "mode": work.cache_mode,
        "no_store": work.no_store,
        "invalidated_at": work.invalidated_at_epoch_ms,
    }
    # The prompt is in both, and written once.
    written = {name: _canonical(value) for name, value in (owned | modes).items()}
    cached = shared if work.cache_scope == "shared" else owned
    return Keys(
        job_key=f"j{SCHEMA_VERSION}_{_digest(_object(written))}",
        cache_key=f"c{SCHEMA_VERSION}_{_digest(_object({name: written[name] for name in cached}))}",
    )


def digest_of(value: Any) -> str:
    """Of a JSON value: 43 URL-safe characters, the same for the same meaning."""
    return _digest(_canonical(value))


def _digest(canonical: str) -> str:
    digest = hashlib.sha256(canonical.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _canonical(value: Any) -> str:
    """`value` in the form of RFC 8785, different for different values.

    Strings get the tag `s` and big integers become strings with the tag `i`, so that no string is
    taken for an integer. Only strings that are values are normalised: two member names that differ
    in their spelling stay two names, or one of their values would be lost from the key.
    """
    match value:
        case str():
            return _quoted("s" + _composed(_fold_line_ends(value)))
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < _EXACT_INTEGERS else f'"i{value}"'
        case float():
            # 1e20 and 100000000000000000000 are one number, so they take one way.
            if value.is_integer():
                return _canonical(int(value))
            return rfc8785.dumps(value).decode()
        case list() | tuple():
            return f"[{','.join(map(_canonical, value))}]"
        case dict():
            return _object({name: _canonical(item) for name, item in value.items()})
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _object(members: dict[str, str]) -> str:
    """An object whose values are canonical already: RFC 8785 orders its names as UTF-16."""
    names = sorted(members, key=lambda name: name.encode("utf-16-be"))
    return f"{{{','.join(f'{_quoted(name)}:{members[name]}' for name in names)}}}"


_quoted = json.JSONEncoder(ensure_ascii=False).encode
"""A text as a JSON string: what RFC 8785 escapes is what this escapes, in the same way."""


def _composed(text: str) -> str:
    """NFC of `text`, in time that grows with its length.

    Sorting a run of marks takes the square of its length, so it is cut where no language has so
    many. Each piece stays equivalent to what it was, so different texts never become one.
    """
    if text.isascii():
        return text
    marks = [
        one for one in set(text) if unicodedata.combining(unicodedata.normalize("NFD", one)[0])
    ]
    if not marks:
        return unicodedata.normalize("NFC", text)
    run = re.compile(f"[{re.escape(''.join(marks))}]{{{_MOST_MARKS}}}")
    ends = [0, *(found.end() for found in run.finditer(text)), len(text)]
    return "".join(
        unicodedata.normalize("NFC", text[start:end]) for start, end in itertools.pairwise(ends)
    )


def _fold_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
