"""API keys: how they look, and what of them is stored."""

import base64
import hashlib

PREFIX = "swk_"
SCOPES = ("submit", "read", "cancel", "bypass", "admin")


def api_key(randomness: bytes) -> str:
    """A key of 256 random bits; the prefix lets scanners find keys that leak."""
    return PREFIX + base64.urlsafe_b64encode(randomness).rstrip(b"=").decode()


def key_hash(key: str) -> str:
    """What the Partners table knows a key by. No salt: the key is 256 random bits itself."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(hashed: str) -> str:
    """A name for people; it opens nothing."""
    return f"key_{hashed[:16]}"
