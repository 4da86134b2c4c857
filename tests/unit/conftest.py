"""How hypothesis works here: a busy machine fails no property by being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None, print_blob=True)
settings.load_profile("unit")
