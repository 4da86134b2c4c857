"""Pauses: a lane by its event source mapping, a model by its gate, a tenant by the state row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError
from sluiceway.domain import gate
from sluiceway.domain.catalogue import Catalogue, Model
from sluiceway.domain.gate import Limits
from sluiceway.ports import Clock, Gates

LOOK_EVERY_S = 1.0
"""At a mapping that changes."""


# ------------------------------------------------------------------------------------ lanes


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane's mapping: what has the queue read for the function."""

    functions: Any
    """A client of Lambda."""
    mapping_id: str

    def state(self) -> str:
        """`Enabled`, `Disabled`, or one that ends in `ing` while it changes."""
        answer = self.functions.get_event_source_mapping(UUID=self.mapping_id)
        return str(answer["State"])

    def look(self) -> tuple[str, int | None]:
        """`state`, and how many workers the lane may have at once, as far as that is told."""
        answer = self.functions.get_event_source_mapping(UUID=self.mapping_id)
        return str(answer["State"]), answer.get("ScalingConfig", {}).get("MaximumConcurrency")

    def enable(self, enabled: bool) -> bool:  # noqa: FBT001
        """Begins the change; False when another change is under way."""
        try:
            self.functions.update_event_source_mapping(UUID=self.mapping_id, Enabled=enabled)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceInUseException":
                raise
            return False
        return True


def find_lane(functions: Any, *, function: str, queue_arn: str) -> Lane:
    """The mapping from the queue to the function, to whichever alias or version of it.

    Raises ValueError when there isn't just one.
    """
    # Asked for a function's mappings, Lambda doesn't say whether it means those of its aliases.
    answer = functions.list_event_source_mappings(EventSourceArn=queue_arn)
    found = [
        one["UUID"]
        for one in answer["EventSourceMappings"]
        if one["FunctionArn"].split(":")[6] == function  # arn:aws:lambda:region:account:function:
    ]
    if len(found) != 1:
        raise ValueError(f"{function} has {len(found)} event source mappings of {queue_arn}, not 1")
    return Lane(functions, found[0])


def switch_lane(
    lane: Lane, *, enabled: bool, timeout_s: float, clock: Clock, pause: Callable[[float], None]
) -> tuple[str, bool]:
    """Enables or disables the mapping, and waits for it.

    Gives the state at the end, which changes still when the time was too short, and whether it was
    to be changed at all.
    """
    wanted, under_way = ("Enabled", "Enabling") if enabled else ("Disabled", "Disabling")
    ends_ms = clock.now_ms() + timeout_s * 1000
    state = lane.state()
    changed = state not in {wanted, under_way}
    asked = False
    while state != wanted:
        # A mapping that changes can't be changed.
        asked = asked or (not state.endswith("ing") and lane.enable(enabled))
        state = lane.state()
        if state == wanted or clock.now_ms() >= ends_ms:
            break
        pause(LOOK_EVERY_S)
    return state, changed


# ------------------------------------------------------------------------------------ models


def gate_of(model: Model) -> tuple[str, Limits]:
    """Key and limits of the model's gate."""
    return gate.key_of(model.vendor, model.vendor_model), Limits.of(model)


def sharing(name: str, catalogue: Catalogue) -> list[str]:
    """The other models of this one's gate."""
    key, _ = gate_of(catalogue.models[name])
    return sorted(
        other
        for other, model in catalogue.models.items()
        if other != name and gate_of(model)[0] == key
    )


def paused_models(catalogue: Catalogue, gates: Gates, *, now_ms: int) -> list[str]:
    """The catalogue's models whose gates are paused."""
    names: dict[str, list[str]] = {}
    for name, model in catalogue.models.items():
        names.setdefault(gate_of(model)[0], []).append(name)
    return sorted(
        name
        for key, those in names.items()
        if gates.look(key, now_ms=now_ms).paused
        for name in those
    )
