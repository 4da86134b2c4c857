"""Gates and rooms in DynamoDB (port Gates).

Coordination rows, by `coordination_key`:
    gate#<vendor>#<vendor model>        the attributes of domain.gate.Gate; `paused_by`, a token of
                                        the last call that paused or resumed it; `token_lead_us`
                                        (see _keep_lead) and `settled_by` (see settle)
    gate#<vendor>#<vendor model>#<n>    the other shards of a gate that is hotter than a partition
    running#<vendor>                    for each room a map: token of a worker -> when it has left
    running#lane:<lane>                 the same, for each tenant and model that is held to a share
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sluiceway.adapters.dynamodb import Refusal, Table, Write
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.gate import FURTHEST_SLOT_MS, PAUSED_SHARDS, Gate, Limits, Room, Shut
from sluiceway.domain.ticket import Ticket

_MAX_TRIES = 4
"""At a row that others change while we guess."""

_BUSY_MS = 1_000
"""After so many wrong guesses: another look soon."""

_COPY_LIVES_MS = 1_000
"""How long a copy that says "shut" is believed without a look."""

_MOST_DEAD = 40
"""Places of dead workers that one write empties: an expression has 4 KB at most."""

_MOST_UNUSED = 8
"""Empty rooms that a row keeps, and so many more that one write takes out: a lane has rooms for
whoever ran in it."""

_NAMES = tuple(field.name for field in fields(Gate))
_TYPES = {**{name: type(value) for name, value in asdict(Gate()).items()}, "token_lead_us": int}


class DynamoDBGates:
    """Weakness: a lost reply takes a second slot, which stays unused."""

    def __init__(
        self, table: Table, coordination: str, *, rand: Callable[[], float] = random.random
    ) -> None:
        """`coordination`: name of the Coordination table. `rand`, in [0, 1), picks a shard."""
        self._table = table
        self._name = coordination
        self._rand = rand
        self._copies: dict[str, tuple[Gate, int]] = {}
        """Each gate as it was seen last, and when: what the next take assumes."""
        self._running: dict[str, Mapping[str, Any]] = {}
        """The same of each vendor's rooms."""

    # ------------------------------------------------------------------ slots

    def take(
        self,
        key: str,
        limits: Limits,
        *,
        tokens: int,
        now_ms: int,
        probe_ms: int,
        furthest_ms: int,
    ) -> Ticket | Shut:
        """See Gates."""
        shard = int(self._rand() * limits.shards)
        row = _row(key, shard)
        copy, seen_at_ms = self._copies.get(row, (Gate(), 0))
        if 0 <= now_ms - seen_at_ms < _COPY_LIVES_MS and (
            shut := copy.shut(now_ms) or copy.far(limits, tokens, now_ms, furthest_ms)
        ):
            return shut
        if not limits.any:
            copy = self._look(row, now_ms)
            if not copy.probing:
                return copy.shut(now_ms) or Ticket(now_ms, copy.version, shard)
        for _ in range(_MAX_TRIES):
            take = self._take_write(row, copy, limits, tokens, now_ms, furthest_ms)
            if copy.probing:  # one call finds out; the others wait for it
                take = _with_set(take, "#closed_until_ms = :probe", probe=now_ms + probe_ms)
            answer = self._table.update(take)
            if not isinstance(answer, Refusal):
                self._see(row, answer, now_ms)
                before = replace(
                    copy,
                    next_request_at_us=answer.get("next_request_at_us", 0)
                    - copy.interval_us(limits, now_ms),
                    next_token_at_us=answer.get("next_token_at_us", 0)
                    - copy.tokens_us(limits, tokens, now_ms),
                )
                slot_us = before.slot_at_us(limits, tokens, now_ms * 1000)
                return Ticket(-(-slot_us // 1000), copy.version, shard)
            copy = self._see(row, answer, now_ms)
            waits = copy.probe_waits(limits, tokens, now_ms)
            far = copy.far(limits, tokens, now_ms, furthest_ms)
            if shut := copy.shut(now_ms) or waits or far:
                return shut
        return Shut(now_ms + _BUSY_MS)

    def look(self, key: str, *, now_ms: int) -> Gate:
        """See Gates. Of a gate that is split it is the first part."""
        row = _row(key, 0)
        copy, seen_at_ms = self._copies.get(row, (Gate(), 0))
        if not 0 <= now_ms - seen_at_ms < _COPY_LIVES_MS:
            copy = self._look(row, now_ms)
        return copy

    def still_open(self, key: str, ticket: Ticket, *, now_ms: int) -> bool:
        """See Gates."""
        row = _row(key, ticket.shard)
        gate = self._look(row, now_ms)
        return gate.version == ticket.version and gate.shut(now_ms) is None

    def settle(self, key: str, limits: Limits, ticket: Ticket, *, tokens: int, now_ms: int) -> None:
        """See Gates.

        `settled_by` tells a repetition after a lost reply, if no other call settled in between.
        """
        row = _row(key, ticket.shard)
        copy, _ = self._copies.get(row, (Gate(), 0))
        back_us = copy.back_us(limits, ticket, tokens, now_ms)
        if not back_us:
            return
        lines = ["next_token_at_us"]
        if limits.requests_per_minute:
            lines.append("token_lead_us")
        sets = [f"#{line} = #{line} - :back" for line in lines] + ["#settled_by = :by"]
        conditions = [f"attribute_exists(#{line})" for line in lines]
        conditions.append("(attribute_not_exists(#settled_by) OR #settled_by <> :by)")
        conditions.append(_of_version(ticket.version))
        if back_us < 0:
            conditions.append("#next_token_at_us < :far")
        self._table.write(
            Write(
                self._name,
                _key(row),
                update=_update(limits, sets),
                condition=" AND ".join(conditions),
                values={
                    "back": back_us,
                    "by": secrets.token_urlsafe(6),
                    "version": ticket.version,
                    "far": (now_ms + FURTHEST_SLOT_MS) * 1000,
                },
            )
        )

    def _take_write(
        self, row: str, copy: Gate, limits: Limits, tokens: int, now_ms: int, furthest_ms: int
    ) -> Write:
        """A take that is right when the row is as busy as `copy` says, and of its version."""
        now_us = now_ms * 1000
        sets, conditions = ["#version = :version"], [_of_version(copy.version), _OPEN]
        values: dict[str, Any] = {"version": copy.version, "now": now_ms, "now_us": now_us}
        lines = _lines(copy, limits, tokens, now_us)
        for line, other in zip(lines, reversed(lines), strict=True):
            name = line.name
            values[f"move_{name}"] = line.move_us
            values[f"due_{name}"] = now_us + line.ahead_us
            # A probe takes no slot ahead of its time; nobody takes one that is too far ahead.
            slot_ahead_us = 0 if copy.probing else furthest_ms * 1000
            most_us = min(FURTHEST_SLOT_MS * 1000, line.ahead_us + slot_ahead_us)
            values[f"most_{name}"] = now_us + most_us
            sets.append(f"#{name} = " + (f"#{line.base} + " if line.base else "") + f":move_{name}")
            if not line.base:
                conditions.append(f"(attribute_not_exists(#{name}) OR #{name} < :now_us)")
                if other.base:
                    conditions.append(f"#{other.name} <= :due_{other.name}")
            elif line.base == name:
                conditions.append(f"#{name} BETWEEN :now_us AND :most_{name}")
            else:
                conditions.append(f"#{line.base} > :due_{line.base}")
        if len(lines) > 1:
            request, token = lines
            _keep_lead(request, token, sets, conditions, values)
        return Write(
            self._name,
            _key(row),
            update=_update(limits, sets),
            condition=" AND ".join(conditions),
            values=values,
        )

    # ------------------------------------------------------------------ the vendor's behaviour

    def close(
        self, key: str, limits: Limits, ticket: Ticket, *, now_ms: int, until_ms: int
    ) -> bool:
        """See Gates."""
        ours = self._close(_row(key, ticket.shard), limits, ticket.version, now_ms, until_ms)
        for shard in range(limits.shards):
            if shard != ticket.shard and ours:
                row = _row(key, shard)
                gate = self._look(row, now_ms)
                self._close(row, limits, gate.version, now_ms, until_ms)
        return ours

    def _close(self, row: str, limits: Limits, version: int, now_ms: int, until_ms: int) -> bool:
        copy, _ = self._copies.get(row, (Gate(), 0))
        if copy.version != version:
            copy = self._look(row, now_ms)
        new = copy.closed(limits, now_ms=now_ms, until_ms=until_ms)
        sets = ["#version = :new_version", "#closed_until_ms = :until", *_emptied(limits)]
        if limits.any:
            sets += ["#refused_permille = :refused", "#returns_from_ms = :returns"]
        answer = self._table.update(
            Write(
                self._name,
                _key(row),
                update=_update(limits, sets),
                condition=_of_version(version),
                values={
                    "version": version,
                    "new_version": version + 1,
                    "until": new.closed_until_ms,
                    "refused": new.refused_permille,
                    "returns": new.returns_from_ms,
                    **_lines_of(new),
                },
            )
        )
        self._see(row, answer, now_ms)
        if not isinstance(answer, Refusal):
            return True
        # Another call's refusal closed it already, for the same reason: the wait may be longer.
        longer = self._table.update(
            Write(
                self._name,
                _key(row),
                update="SET #closed_until_ms = :until",
                condition="attribute_not_exists(#closed_until_ms) OR #closed_until_ms < :until",
                values={"until": until_ms},
            )
        )
        self._see(row, longer, now_ms)
        return False

    def failed(self, key: str, limits: Limits, ticket: Ticket, *, now_ms: int) -> None:
        """See Gates. Failures of calls whose slots are from before count once."""
        row = _row(key, ticket.shard)
        counted = self._table.update(
            Write(
                self._name,
                _key(row),
                update=(
                    "SET #version = :version, #failures = if_not_exists(#failures, :zero) + :one"
                ),
                condition=_of_version(ticket.version),
                values={"version": ticket.version, "zero": 0, "one": 1},
            )
        )
        down = self._see(row, counted, now_ms).down(limits, now_ms)
        if isinstance(counted, Refusal) or down is None:
            return
        answer = self._table.update(
            Write(
                self._name,
                _key(row),
                update=_update(
                    limits,
                    [
                        "#version = :new_version",
                        "#closed_until_ms = :until",
                        "#probing = :probing",
                        "#failures = :failures",
                        *_emptied(limits),
                    ],
                ),
                condition=_of_version(ticket.version),
                values={
                    "version": ticket.version,
                    "new_version": down.version,
                    "until": down.closed_until_ms,
                    "probing": True,
                    "failures": down.failures,
                    **_lines_of(down),
                },
            )
        )
        self._see(row, answer, now_ms)

    def worked(self, key: str, ticket: Ticket) -> None:
        """See Gates. Nothing is written for a vendor that was up."""
        row = _row(key, ticket.shard)
        copy, seen_at_ms = self._copies.get(row, (Gate(), 0))
        if copy.version != ticket.version or not (copy.failures or copy.probing):
            return
        up = copy.up()
        opens = ", #closed_until_ms = :zero REMOVE #probing" if copy.probing else ""
        answer = self._table.update(
            Write(
                self._name,
                _key(row),
                update=f"SET #version = :new_version, #failures = :zero{opens}",
                condition=_of_version(copy.version),
                values={"version": copy.version, "new_version": up.version, "zero": 0},
            )
        )
        self._see(row, answer, seen_at_ms)

    # ------------------------------------------------------------------ pauses

    def pause(self, key: str, limits: Limits) -> bool:
        """See Gates."""
        changed = [self._pause(row) for row in _rows(key, limits)]
        return any(changed)

    def resume(self, key: str, limits: Limits, *, now_ms: int) -> bool:
        """See Gates. The first row is the last: while it is paused, `shut` says so."""
        changed = [self._resume(row, limits, now_ms) for row in reversed(_rows(key, limits))]
        return any(changed)

    def _pause(self, row: str) -> bool:
        token = secrets.token_urlsafe(6)
        refusal = self._table.write(
            Write(
                self._name,
                _key(row),
                update=(
                    "SET #version = if_not_exists(#version, :zero) + :one, "
                    "#paused = :paused, #paused_by = :by"
                ),
                condition="attribute_not_exists(#paused)",
                values={"zero": 0, "one": 1, "paused": True, "by": token},
            )
        )
        self._copies.pop(row, None)
        # Refused by our own write, when its reply was lost.
        return refusal is None or (refusal.old or {}).get("paused_by") == token

    def _resume(self, row: str, limits: Limits, now_ms: int) -> bool:
        token = secrets.token_urlsafe(6)
        for _ in range(_MAX_TRIES):
            values = self._table.read(self._name, _key(row)) or {}
            gate = gate_of(values)
            if not gate.paused:
                return False
            if _is_damaged(values):
                self._begin_anew(row, limits, now_ms)
                return True
            new = gate.resumed(limits, now_ms)
            sets = ["#version = :new_version", "#paused_by = :by", *_emptied(limits)]
            refusal = self._table.write(
                Write(
                    self._name,
                    _key(row),
                    update=_update(limits, sets, "#paused"),
                    condition=f"{_of_version(gate.version)} AND attribute_exists(#paused)",
                    values={
                        "version": gate.version,
                        "new_version": new.version,
                        "by": token,
                        **_lines_of(new),
                    },
                )
            )
            self._copies.pop(row, None)
            if refusal is None or (refusal.old or {}).get("paused_by") == token:
                return True
        raise StoreBusyError("The gate changes all the time.", retry_after_s=1)

    def _begin_anew(self, row: str, limits: Limits, now_ms: int) -> None:
        """In the place of a damaged row; its version is none that a slot was taken under."""
        gate = Gate(version=now_ms).resumed(limits, now_ms)
        members = {name: value for name, value in asdict(gate).items() if value}
        self._table.replace(self._name, {**_key(row), **members})
        self._copies.pop(row, None)

    # ------------------------------------------------------------------ rooms

    def enter(self, rooms: Sequence[Room], token: str, *, now_ms: int, until_ms: int) -> bool:
        """See Gates."""
        if not rooms:
            return True
        row = f"running#{rooms[0].vendor}"
        known: Mapping[str, Any] = self._running.get(row, {})
        for _ in range(_MAX_TRIES):
            answer = self._table.update(
                self._enter_write(row, rooms, known, token, now_ms, until_ms)
            )
            known = (answer.old or {}) if isinstance(answer, Refusal) else answer
            self._running[row] = known
            if all(token in known.get(room.name, {}) for room in rooms):
                return True  # also when the reply of our own write was lost
            if any(_taken(known, room, now_ms) >= room.places for room in rooms):
                return False
        return False

    def leave(self, rooms: Sequence[Room], token: str) -> None:
        """See Gates."""
        if not rooms:
            return
        names = {f"room{number}": room.name for number, room in enumerate(rooms)}
        paths = [f"#{alias}.#token" for alias in names]
        self._table.write(
            Write(
                self._name,
                _key(f"running#{rooms[0].vendor}"),
                update="REMOVE " + ", ".join(paths),
                condition=f"attribute_exists({paths[0]})",
                names={**names, "token": token},
            )
        )

    def _enter_write(
        self,
        row: str,
        rooms: Sequence[Room],
        known: Mapping[str, Any],
        token: str,
        now_ms: int,
        until_ms: int,
    ) -> Write:
        """Takes the places, of the dead in a full room too; right when the maps are as `known`.

        Where more are dead than one write empties, it only empties.
        """
        sets, removes, conditions = [], [], []
        only_empties = False
        names = {"token": token}
        values: dict[str, Any] = {"until": until_ms}
        for number, room in enumerate(rooms):
            alias = f"room{number}"
            names[alias], values[f"places{number}"] = room.name, room.places
            inside: Mapping[str, int] | None = known.get(room.name)
            if inside is None:
                sets.append(f"#{alias} = :alone")
                conditions.append(f"attribute_not_exists(#{alias})")
                continue
            sets.append(f"#{alias}.#token = :until")
            conditions += [f"attribute_not_exists(#{alias}.#token)"]
            dead = [one for one, left_ms in inside.items() if _left(left_ms, now_ms)][:_MOST_DEAD]
            if len(inside) < room.places or not dead:
                conditions.append(f"size(#{alias}) < :places{number}")
                continue
            for index, one in enumerate(dead):
                name = f"dead{number}_{index}"
                names[name], values[name] = one, inside[one]
                removes.append(f"#{alias}.#{name}")
                conditions.append(f"#{alias}.#{name} = :{name}")
            only_empties |= len(inside) - len(dead) >= room.places
            conditions.append(f"size(#{alias}) <= :most{number}")
            values[f"most{number}"] = max(room.places + len(dead) - 1, len(inside))
        for number, name in enumerate(_unused(known, rooms, now_ms)):
            names[f"unused{number}"], values[f"unused{number}"] = name, known[name]
            removes.append(f"#unused{number}")
            conditions.append(f"#unused{number} = :unused{number}")
        update = "" if only_empties else "SET " + ", ".join(sets)
        update += " REMOVE " + ", ".join(removes) if removes else ""
        values["alone"] = {token: until_ms}
        return Write(
            self._name,
            _key(row),
            update=update,
            condition=" AND ".join(conditions),
            values=values,
            names=names,
        )

    # ------------------------------------------------------------------ copies

    def _look(self, row: str, now_ms: int) -> Gate:
        return self._see(row, self._table.read(self._name, _key(row)), now_ms)

    def _see(self, row: str, answer: Mapping[str, Any] | Refusal | None, now_ms: int) -> Gate:
        """Keeps the row of a read, of a write, or of one that was refused."""
        gate = gate_of(answer.old if isinstance(answer, Refusal) else answer)
        self._copies[row] = (gate, now_ms)
        return gate


_OPEN = (
    "(attribute_not_exists(#closed_until_ms) OR #closed_until_ms <= :now) "
    "AND attribute_not_exists(#paused)"
)


def _of_version(version: int) -> str:
    """A row that nobody wrote yet is of version 0."""
    if version:
        return "#version = :version"
    return "(attribute_not_exists(#version) OR #version = :version)"


def _emptied(limits: Limits) -> list[str]:
    """Begins the lines of the limits anew: those of `_lines_of` a gate."""
    return [
        f"#{name} = :{value}"
        for name, value, limit in (
            ("next_request_at_us", "request", limits.requests_per_minute),
            ("next_token_at_us", "token", limits.tokens_per_minute),
            ("token_lead_us", "lead", limits.requests_per_minute and limits.tokens_per_minute),
        )
        if limit
    ]


def _lines_of(gate: Gate) -> dict[str, int]:
    request_us, token_us = gate.next_request_at_us, gate.next_token_at_us
    return {"request": request_us, "token": token_us, "lead": token_us - request_us}


def _update(limits: Limits, sets: Sequence[str], *removes: str) -> str:
    """Without both limits one of the lines stays behind, and the lead would be wrong."""
    if not (limits.requests_per_minute and limits.tokens_per_minute):
        removes = ("#token_lead_us", *removes)
    removing = f"REMOVE {', '.join(removes)} " if removes else ""
    return f"{removing}SET {', '.join(sets)}"


@dataclass(frozen=True, slots=True)
class _Line:
    """How a take moves the line of one limit: to where `base` is, and `move_us` on."""

    name: str
    ahead_us: int
    """How far ahead it may be, and a slot is due at once."""
    base: str
    """Itself when it is busy, the other line when the call waits for that; empty: to `move_us`."""
    move_us: int
    next_us: int


def _lines(copy: Gate, limits: Limits, tokens: int, now_us: int) -> list[_Line]:
    """Those of the limits that there are: requests, tokens. See Gate.taken."""
    now_ms = now_us // 1000
    slot_us = copy.slot_at_us(limits, tokens, now_us)
    request_ahead_us, token_ahead_us = copy.ahead_us(limits, tokens, now_ms)
    request, token = "next_request_at_us", "next_token_at_us"

    def line(name: str, other: str, step_us: int, ahead_us: int, other_ahead_us: int) -> _Line:
        next_us: int = getattr(copy, name)
        if slot_us > max(next_us, now_us):
            base, move_us = other, step_us - other_ahead_us
        elif next_us >= now_us:
            base, move_us = name, step_us
        else:
            base, move_us = "", now_us + step_us
        return _Line(name, ahead_us, base, move_us, next_us)

    lines = []
    if limits.requests_per_minute:
        step_us = copy.interval_us(limits, now_ms)
        lines.append(line(request, token, step_us, request_ahead_us, token_ahead_us))
    if limits.tokens_per_minute:
        step_us = copy.tokens_us(limits, tokens, now_ms)
        lines.append(line(token, request, step_us, token_ahead_us, request_ahead_us))
    return lines


def _keep_lead(
    request: _Line, token: _Line, sets: list[str], conditions: list[str], values: dict[str, Any]
) -> None:
    """Which line a call waits for is a matter of how far they are apart.

    A condition can't subtract, so the row holds it: `token_lead_us`, by how much the tokens' line
    is ahead of the requests'. A row that lacks it, of a gate that had one limit, is as in the copy.

                        lead < -ahead of requests   │   between   │   lead > ahead of tokens
        waits for       requests: moves tokens      │   neither   │   tokens: moves requests
    """
    values["lead"] = token.next_us - request.next_us
    values["least_lead"], values["most_lead"] = -request.ahead_us, token.ahead_us
    values["apart"] = token.move_us - request.move_us
    match request.base, token.base:
        case (first, second) if first == second:
            lead = ":apart"
        case "", _:
            lead = "#next_token_at_us + :apart"
        case _, "":
            lead = ":apart - #next_request_at_us"
        case _:
            lead = "if_not_exists(#token_lead_us, :lead) + :apart"
    sets.append(f"#token_lead_us = {lead}")
    if not (request.base and token.base):
        return
    if request.base == token.name:
        known = "#token_lead_us > :most_lead"
    elif token.base == request.name:
        known = "#token_lead_us < :least_lead"
    else:
        known = "#token_lead_us BETWEEN :least_lead AND :most_lead"
    same = []
    for line in (request, token):
        values[f"same_{line.name}"] = line.next_us
        gone = f"attribute_not_exists(#{line.name}) OR " if not line.next_us else ""
        same.append(f"({gone}#{line.name} = :same_{line.name})")
    conditions.append(f"({known} OR attribute_not_exists(#token_lead_us) AND {' AND '.join(same)})")


def open_check(coordination: str, key: str, ticket: Ticket, now_ms: int) -> Write:
    """The condition of a transaction that a kept slot counts."""
    return Write(
        coordination,
        _key(_row(key, ticket.shard)),
        check=True,
        condition=f"{_of_version(ticket.version)} AND {_OPEN}",
        values={"version": ticket.version, "now": now_ms},
    )


def gate_of(values: Mapping[str, Any] | None) -> Gate:
    """The gate in a row; a damaged one is paused until somebody resumes it.

    Nobody knows what the vendor was sent, and the other gates mustn't wait for this one.
    """
    known = values or {}
    if _is_damaged(known):
        return Gate(paused=True)
    return Gate(**{name: known[name] for name in _NAMES if name in known})


def _is_damaged(values: Mapping[str, Any]) -> bool:
    return any(name in values and type(values[name]) is not kind for name, kind in _TYPES.items())


def _with_set(write: Write, assignment: str, **values: Any) -> Write:
    return replace(
        write, update=f"{write.update}, {assignment}", values={**(write.values or {}), **values}
    )


def _unused(known: Mapping[str, Any], rooms: Sequence[Room], now_ms: int) -> list[str]:
    """The rooms with nobody alive inside, of more than a row keeps."""
    wanted = {room.name for room in rooms}
    empty = [
        name
        for name, inside in sorted(known.items())
        if isinstance(inside, Mapping)
        and name not in wanted
        and len(inside) <= 1
        and all(_left(left_ms, now_ms) for left_ms in inside.values())
    ]
    return empty[:_MOST_UNUSED] if len(empty) > _MOST_UNUSED else []


def _taken(known: Mapping[str, Any], room: Room, now_ms: int) -> int:
    return sum(not _left(left_ms, now_ms) for left_ms in known.get(room.name, {}).values())


def _left(left_ms: Any, now_ms: int) -> bool:
    """Whether a worker has left by its time; one whose time is damaged has."""
    return not isinstance(left_ms, int) or left_ms <= now_ms


def _row(key: str, shard: int) -> str:
    return key if shard == 0 else f"{key}#{shard}"


def _rows(key: str, limits: Limits) -> list[str]:
    """All that a pause is about."""
    return [_row(key, shard) for shard in range(max(PAUSED_SHARDS, limits.shards))]


def _key(row: str) -> dict[str, str]:
    return {"coordination_key": row}
