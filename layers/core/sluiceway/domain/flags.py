"""Feature flags: what operators switch while everything runs.

The document is that of Powertools' feature flags: by feature a `default`, and rules that say
otherwise for some models or tenants. What it doesn't name is as it is in FEATURES.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FEATURES: Mapping[str, bool] = {
    "submit": True,
    "bypass": True,
    "batches": True,
    "openai": True,
    "webhooks": True,
    "refresh": True,
    "degraded": False,
}
"""Each feature, and whether it is on when no document says otherwise."""

SUBJECTS = ("model", "tenant")
"""For what a feature may be switched apart from its default."""

ASKED_FOR: Mapping[str, tuple[str, ...]] = {
    "submit": ("model", "tenant"),
    "bypass": ("model", "tenant"),
    "batches": ("tenant",),
    "openai": ("tenant",),
    "webhooks": ("tenant",),
    "refresh": ("model",),
    "degraded": (),
}
"""Which of them each feature is looked at for: an exception of another kind would do nothing."""

Document = dict[str, Any]


def switched(document: Document, feature: str, *, on: bool, subject: str = "") -> Document:
    """The document with the feature on or off: for all, or for `model:NAME` or `tenant:NAME`.

    Switched for all, nobody keeps an exception. Raises ValueError for what doesn't exist.
    """
    if feature not in FEATURES:
        raise ValueError(f"there is no feature {feature!r}; there are: {', '.join(FEATURES)}")
    new = deepcopy(document)
    if not subject:
        new[feature] = {"default": on}
    else:
        kind, name = _parts(subject)
        if kind not in ASKED_FOR[feature]:
            raise ValueError(f"{feature} can't be switched for one {kind} alone")
        default = is_on(document, feature)
        names = exceptions(document, feature).get(kind, frozenset())
        names = names - {name} if on is default else names | {name}
        rules = {**_rules(new, feature)}
        if names:
            rules[_rule_name(kind, on=not default)] = _rule(kind, names, on=not default)
        else:
            rules.pop(_rule_name(kind, on=not default), None)
        new[feature] = {"default": default, **({"rules": rules} if rules else {})}
    if new[feature] == {"default": FEATURES[feature]}:
        del new[feature]
    return new


def is_on(document: Document, feature: str) -> bool:
    """For all whom no exception names."""
    default: bool = document.get(feature, {}).get("default", FEATURES[feature])
    return default


def word(on: bool) -> str:  # noqa: FBT001
    """`on` or `off`."""
    return "on" if on else "off"


def exceptions(document: Document, feature: str) -> dict[str, frozenset[str]]:
    """For whom the feature is not as its default says: names of models and of tenants."""
    default = is_on(document, feature)
    found = {}
    for kind in SUBJECTS:
        rule = _rules(document, feature).get(_rule_name(kind, on=not default))
        if rule is not None:
            found[kind] = frozenset(rule["conditions"][0]["value"])
    return found


def told(document: Document) -> list[str]:
    """What isn't as it comes, in words: `submit is off for model demo-chat`."""
    found = []
    for feature, usual in FEATURES.items():
        default = is_on(document, feature)
        if default is not usual:
            found.append(f"{feature} is {word(default)}")
        found += [
            f"{feature} is {word(not default)} for {kind} {name}"
            for kind, names in exceptions(document, feature).items()
            for name in sorted(names)
        ]
    return found


def unknown(document: object) -> list[str]:
    """The features of a document that there aren't."""
    return sorted(set(document) - set(FEATURES)) if isinstance(document, dict) else []


def check(document: object) -> tuple[str, ...]:
    """What is wrong with a document besides what Powertools' own check finds."""
    if not isinstance(document, dict):
        return ("a document of flags is a JSON object",)
    faults = [
        f"{name}: there is no such feature; there are: {', '.join(FEATURES)}"
        for name in unknown(document)
    ]
    faults += [
        f"{name}: the default is true or false"
        for name, feature in document.items()
        if not isinstance(feature, dict) or not isinstance(feature.get("default"), bool)
    ]
    return tuple(faults)


def _parts(subject: str) -> tuple[str, str]:
    kind, _, name = subject.partition(":")
    if kind not in SUBJECTS or not name:
        raise ValueError(f"{subject!r} is neither model:NAME nor tenant:NAME")
    return kind, name


def _rules(document: Document, feature: str) -> dict[str, Any]:
    rules: dict[str, Any] = document.get(feature, {}).get("rules", {})
    return rules


def _rule_name(kind: str, *, on: bool) -> str:
    return f"{word(on)} for {kind}s"


def _rule(kind: str, names: frozenset[str], *, on: bool) -> dict[str, Any]:
    condition = {"action": "KEY_IN_VALUE", "key": kind, "value": sorted(names)}
    return {"when_match": on, "conditions": [condition]}


class Defaults:
    """What holds where no document is deployed (port Flags)."""

    def on(self, feature: str, *, model: str = "", tenant: str = "") -> bool:  # noqa: ARG002
        """See Flags."""
        return FEATURES[feature]
