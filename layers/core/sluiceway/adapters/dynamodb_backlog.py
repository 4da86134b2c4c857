"""The picture of the backlog in one row of the Coordination table (port Backlogs).

Attributes: `measured_at_epoch_ms`, and `picture`, the rest as compressed JSON.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, Write
from sluiceway.domain.backlog import TELLS_FOR_MS, Backlog, Group, Pace, Waits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.ports import Clock

COPY_LIVES_MS = 2_000

BACKLOG_KEY = {"coordination_key": "backlog"}


class DynamoDBBacklogs:
    """Weakness: one row is read by every busy process each 2 s.

    With 1,000 groups it has up to 60 KB, 8 read units of the 3,000 that a partition has a second.
    """

    def __init__(self, table: Table, coordination: str, *, clock: Clock) -> None:
        """`coordination`: name of the Coordination table."""
        self._table = table
        self._name = coordination
        self._clock = clock
        self._copy = Backlog()
        self._copied_at_ms = -COPY_LIVES_MS

    def read(self) -> Backlog:
        """See Backlogs."""
        now_ms = self._clock.now_ms()
        # A clock that went back makes the copy old, too.
        if not 0 <= now_ms - self._copied_at_ms < COPY_LIVES_MS:
            values = self._table.read(self._name, BACKLOG_KEY, consistent=False)
            self._copy = _backlog_of(values or {})
            self._copied_at_ms = now_ms
        return self._copy

    def write(self, backlog: Backlog) -> None:
        """See Backlogs. One that is damaged, or of a clock that was far ahead, is replaced, too."""
        measured_at_ms = backlog.measured_at_epoch_ms
        self._copied_at_ms = -COPY_LIVES_MS  # of any time: the copy is used no more
        self._table.write(
            Write(
                self._name,
                BACKLOG_KEY,
                update="SET #measured_at_epoch_ms = :measured, #picture = :picture",
                condition="NOT #measured_at_epoch_ms BETWEEN :measured AND :wrong",
                values={
                    "measured": measured_at_ms,
                    "picture": _picture_of(backlog),
                    "wrong": measured_at_ms + TELLS_FOR_MS,
                },
            )
        )


def _picture_of(backlog: Backlog) -> bytes:
    base_ms = backlog.measured_at_epoch_ms
    document = {
        "groups": [
            [
                (group.lane, group.model, group.tenant),
                (group.waiting, group.slotted, group.running),
                [at_ms - base_ms for at_ms in (group.oldest_epoch_ms, *group.later_epoch_ms)],
            ]
            for group in backlog.groups
        ],
        "paces": {
            model: [
                *(pace.interval_ms, pace.latency_ms),
                *(pace.opens_at_epoch_ms, pace.slot_at_epoch_ms),
            ]
            for model, pace in backlog.paces.items()
        },
        "workers": dict(backlog.workers),
        "besides": dict(backlog.besides),
        "waits": {
            lane: [
                *(waits.parked, waits.oldest_epoch_ms),
                *(waits.ready, waits.ready_since_epoch_ms),
            ]
            for lane, waits in backlog.waits.items()
        },
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def _backlog_of(values: Mapping[str, Any]) -> Backlog:
    """The picture in a row; that of no open jobs when there is none, or a damaged one.

    The sweeper paints the next one over it: until then it mustn't stop who looks at it.
    """
    try:
        return _parsed(values)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error):
        return Backlog()


def _parsed(values: Mapping[str, Any]) -> Backlog:
    base_ms = int(values["measured_at_epoch_ms"])
    document = json.loads(zlib.decompress(values["picture"]))
    return Backlog(
        measured_at_epoch_ms=base_ms,
        groups=tuple(
            Group(
                *(str(lane), str(model), str(tenant)),
                *(int(waiting), int(slotted), int(running)),
                oldest_epoch_ms=base_ms + oldest,
                later_epoch_ms=tuple(base_ms + at for at in later),
            )
            for (lane, model, tenant), (waiting, slotted, running), (oldest, *later) in document[
                "groups"
            ]
        ),
        paces={
            model: Pace(float(interval_ms), int(latency_ms), int(opens_at_ms), int(slot_at_ms))
            for model, (interval_ms, latency_ms, opens_at_ms, slot_at_ms) in document[
                "paces"
            ].items()
        },
        workers=_counts(document["workers"]),
        besides=_counts(document["besides"]),
        waits={
            lane: Waits(int(parked), int(oldest_ms), int(ready), int(since_ms))
            for lane, (parked, oldest_ms, ready, since_ms) in document.get("waits", {}).items()
        },
    )


def _counts(by_lane: Mapping[str, Any]) -> dict[str, int]:
    return {lane: int(count) for lane, count in by_lane.items()}
