"""What a push or a switch would change, member by member and not as text."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from sluiceway.domain import flags
from sluiceway.domain.catalogue import Catalogue

GROUPS = ("vendors", "models", "tenants")


@dataclass(frozen=True, slots=True)
class Change:
    """One member that is another afterwards."""

    member: str
    before: Any
    """None: there was none."""
    after: Any
    """None: there is none any more."""

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.member}: added ({self.after})"
        if self.after is None:
            return f"{self.member}: removed"
        return f"{self.member}: {_shown(self.before)} -> {_shown(self.after)}"


def of_catalogues(before: Catalogue, after: Catalogue) -> list[Change]:
    """As they are obeyed: with defaults, and with what tenants have of `tenants.default`."""
    found = list(_of_members("service", before.service, after.service))
    for group in GROUPS:
        old, new = getattr(before, group), getattr(after, group)
        for name in sorted({*old, *new}):
            member = f"{group}.{name}"
            if name not in old:
                found.append(Change(member, None, _told(new[name])))
            elif name not in new:
                found.append(Change(member, _told(old[name]), None))
            else:
                found += _of_members(member, old[name], new[name])
    return found


def of_flags(before: flags.Document, after: flags.Document) -> list[Change]:
    """Each feature that is another, for all or for some."""
    return [
        Change(feature, state(before, feature), state(after, feature))
        for feature in flags.FEATURES
        if state(before, feature) != state(after, feature)
    ]


def state(document: flags.Document, feature: str) -> str:
    """`on` or `off`, and for whom it is the other."""
    on = flags.is_on(document, feature)
    those = [
        f"{kind}:{name}"
        for kind, names in flags.exceptions(document, feature).items()
        for name in sorted(names)
    ]
    but = f", but {flags.word(not on)} for {' '.join(those)}" if those else ""
    return f"{flags.word(on)}{but}"


def _of_members(path: str, before: BaseModel, after: BaseModel) -> Iterator[Change]:
    old, new = dict(_flat(before.model_dump())), dict(_flat(after.model_dump()))
    return (
        Change(f"{path}.{name}", old[name], new[name]) for name in old if old[name] != new[name]
    )


def _flat(members: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _told(entry: BaseModel) -> str:
    """What it says besides the defaults."""
    members = _flat(entry.model_dump(exclude_defaults=True))
    return ", ".join(f"{name} = {_shown(value)}" for name, value in members) or "with defaults"


def _shown(value: Any) -> str:
    """As TOML has it."""
    return json.dumps(value, ensure_ascii=False)
