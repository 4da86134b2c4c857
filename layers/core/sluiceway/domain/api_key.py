"""API keys: how they look, and what of them is stored."""

from __future__ import annotations

import base64
import hashlib
import re

PREFIX = "swk_"
SCOPES = ("submit", "read", "cancel", "bypass", "admin")

POLICY_KEPT_S = 60
"""How long API Gateway keeps the authorizer's answer (template.yaml, ReauthorizeEvery): for so long
a key still works when it was revoked, has expired or was replaced."""

USE_NOTED_EVERY_S = 3600
"""A key's last use is written this often at most."""

_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


def api_key(randomness: bytes) -> str:
    """A key of 256 random bits; the prefix lets scanners find keys that leak."""
    return PREFIX + base64.urlsafe_b64encode(randomness).rstrip(b"=").decode()


def well_formed(text: str) -> bool:
    """Whether it can be a key at all; what can't isn't looked up."""
    return _FORM.fullmatch(text) is not None


def key_hash(key: str) -> str:
    """What the Partners table knows a key by. No salt: the key is 256 random bits itself."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(hashed: str) -> str:
    """A name for people; it opens nothing."""
    return f"key_{hashed[:16]}"
