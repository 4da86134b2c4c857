"""Features: what operators have switched off is refused, whoever asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.domain.errors import FeatureDisabledError

if TYPE_CHECKING:
    from sluiceway.ports import Flags

_NAMES = {
    "submit": "New jobs are",
    "bypass": "The cache modes refresh and bypass are",
    "batches": "Batches are",
    "openai": "The calls in OpenAI's form are",
    "webhooks": "Webhooks are",
}
"""How a feature is called in a refusal."""


def require_feature(feature: str, *, flags: Flags, tenant: str, model: str = "") -> None:
    """Raises FeatureDisabledError, which says what is off, and nothing of other tenants.

    `model`: where the feature may be off for one. A feature that is on costs one look.
    """
    if flags.on(feature, model=model, tenant=tenant):
        return
    name, whose = _NAMES[feature], ""
    if flags.on(feature):  # for the others, that is
        if not flags.on(feature, tenant=tenant):
            whose = " for this tenant"
        elif feature == "submit":
            name = f"The model {model} is"
        else:
            whose = f" for the model {model}"
    raise FeatureDisabledError(f"{name} switched off{whose}.")
