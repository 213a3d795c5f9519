"""What goes to the gate's scripts and what comes back, as values: keys, JSON, and the answer read again.

Pure: the blocking and the asyncio limiter differ in how they call, not in what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Left, Limit, Opening, Scope, Verdict
from dispatcher.core.units import US
from dispatcher.errors import RateLimited, StaleLimits
from dispatcher.jsonio import decode, encode
from dispatcher.server.keys import Keys

Request: TypeAlias = tuple[str, tuple[Demand, ...]]
"""The id that is to own the slots, and what to ask a slot of."""

BATCH: Final = 128
"""So many requests go to the server in one call; with more, other clients would wait for over a millisecond."""

_ALONE: Final = b'{"verdicts":[0]}'


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a limit is used, the time until it has room for one more (0: it has), and how many slots are held."""

    limit: Limit
    used: int
    wait_us: int
    held: int = 0

    @property
    def is_held(self) -> bool:
        """Whether all slots are held: there is no room until one of the events that wait is posted."""
        return self.held >= self.limit.max


Step: TypeAlias = Literal["ask", "join", "leave", "quit"]


class WaitingRequest(NamedTuple):
    """A request that waits for its turn: who waits, since when (None: just arrived), and the step of wait.lua."""

    request: Request
    token: str
    step: Step
    arrived: str | None = None
    cost: int = 1


class WaitAnswer(NamedTuple):
    """What wait.lua answered: admitted, or the denial and in how many seconds to ask again."""

    arrived: str
    denied: Denied | None
    wait_s: float = 0.0


class Call(NamedTuple):
    """Keys and facts for a script, and the scopes that its answer points to.

    For the gate also the ids of the requests, and for each the position of its row in the facts, from 1.
    """

    keys: list[str]
    facts: dict[str, Any]
    scopes: list[Scope]
    version: str = ""
    ids: Sequence[str] = ()
    of: Sequence[int] = ()

    def arguments(self, now_us: int | None) -> list[bytes]:
        """What the script is called with; the instant takes the place of the server's clock."""
        facts = encode(self.facts if now_us is None else {"now": now_us, **self.facts})
        return [facts, bytes(self.of), encode(self.ids)] if len(self.ids) > 1 else [facts]


class Calls:
    """Builds the calls of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.keys = Keys(namespace)

    def decide(  # noqa: PLR0913 - what gate.lua may be told, by name
        self,
        slots: Sequence[str],
        demands: Sequence[tuple[Demand, ...]],
        *,
        peek: bool = False,
        fresh: bool = False,
        ahead: Sequence[Scope] = (),
        version: str | None = None,
        shadows: Sequence[tuple[Scope, ...]] = (),
        left: bool = False,
        cost: int = 1,
    ) -> Call:
        """For gate.lua; ``shadows`` for admit.lua, those of each request; a ``cost`` for a request alone.

        Requests that ask for the same object share a row. One call of gate.lua takes at most 255 rows.

        Raises ``ValueError`` when one name stands in it with different limits or ``ids``.
        """
        positions = _Positions()
        rows: list[list[Any]] = []
        cast: list[list[Any]] = []
        kinds: list[Any] = list(map(id, demands))
        if shadows:
            kinds = list(zip(kinds, map(id, shadows), strict=True))
        row_of: dict[Any, int] = {}
        for kind, n in dict(zip(kinds, count())).items():  # a request of each kind
            rows.append([slots[0] if len(slots) == 1 else 0, *positions.of(demands[n])])
            if shadows:
                cast.append(positions.of(shadows[n]))
            row_of[kind] = len(rows)
        facts: dict[str, Any] = {"rows": rows}
        if any(cast):
            facts["shadows"] = cast
        for name, is_set in (("peek", peek), ("fresh", fresh), ("left", left)):
            if is_set:
                facts[name] = True
        if cost > 1:
            facts["cost"] = cost
        if ahead:
            facts["ahead"] = [positions.position(scope) for scope in ahead]
        keys, facts, scopes, *_ = self._call(positions.found, facts)
        if version is not None:
            keys.append(self.keys.limits_version)
            facts["version"] = version
        return Call(keys, facts, scopes, version or "", slots, [row_of[kind] for kind in kinds])

    def decide_many(
        self, slots: Sequence[str], demands: Sequence[tuple[Demand, ...]], *, fresh: bool, version: str | None
    ) -> list[Call]:
        """For gate.lua, as many calls as it takes; raises as ``decide`` does, before the first is sent."""
        calls = [
            self.decide(slots[at : at + BATCH], demands[at : at + BATCH], fresh=fresh, version=version)
            for at in range(0, len(slots), BATCH)
        ]
        if len(calls) > 1:
            together = _Positions()
            for call in calls:
                together.of(tuple(call.scopes))
        return calls

    def wait(self, waiting: Sequence[WaitingRequest]) -> Call:
        """For wait.lua."""
        positions = _Positions()
        turns: list[dict[str, Any]] = []
        for each in waiting:
            slot, demands = each.request
            turn: dict[str, Any] = {"request": [slot, *positions.of(demands)], "token": each.token, "step": each.step}
            if each.cost > 1:
                turn |= {"cost": each.cost, "token": f"{each.token}*{each.cost}"}
            turns.append(turn if each.arrived is None else turn | {"arrived": each.arrived})
        return self._with_lines(positions.found, {"turns": turns})

    def reset(self, scopes: list[Scope]) -> Call:
        """For reset.lua."""
        return self._with_lines(scopes, {})

    def release(self, slot: str, scopes: list[Scope], cost: int = 1) -> Call:
        """For release.lua."""
        return self._with_lines(scopes, {"id": slot} if cost == 1 else {"id": slot, "cost": cost})

    def usage(self, scopes: Sequence[Scope]) -> Call:
        """For usage.lua."""
        return self._call(list(scopes), {})

    def _call(self, scopes: list[Scope], facts: dict[str, Any]) -> Call:
        windows: list[Any] = []
        known: dict[int, int] = {}
        for n, scope in enumerate(scopes, 1):
            own = windows_of(scope.limits)
            first = known.setdefault(id(own), n)
            windows.append(own if first == n else first)
        said: dict[str, Any] = {"scopes": windows, **facts}
        if all(scope.ids for scope in scopes):
            return Call([self.keys.scope(scope.name) for scope in scopes], said, scopes)
        stores = said["stores"] = [_store(scope.limits) if not scope.ids else "set" for scope in scopes]
        return Call([self._key(scope, store) for scope, store in zip(scopes, stores, strict=True)], said, scopes)

    def _with_lines(self, scopes: list[Scope], facts: dict[str, Any]) -> Call:
        call = self._call(scopes, facts | {"bells": self.keys.bells})
        waiters = [self.keys.waiters(scope.name) for scope in scopes]
        promises = [self.keys.promises(scope.name) for scope in scopes]
        return Call([*call.keys, *waiters, *promises], call.facts, scopes)

    def _key(self, scope: Scope, store: str) -> str:
        match store:
            case "log":
                return self.keys.log(scope.name)
            case "quota":
                return self.keys.quota(scope.name)
            case _:
                return self.keys.scope(scope.name)


class _Positions:
    """The distinct scopes of a call, in the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[Scope] = []
        self._by_name: dict[str, int] = {}

    def of(self, demands: tuple[Demand, ...]) -> list[Any]:
        """A request's positions, as they follow its id."""
        return [
            [self.position(scope) for scope in demand.scopes] if isinstance(demand, FirstOf) else self.position(demand)
            for demand in demands
        ]

    def position(self, scope: Scope) -> int:
        """Where the scope stands, counted from 1."""
        position = self._by_name.get(scope.name)
        if position is None:
            self.found.append(scope)
            position = self._by_name[scope.name] = len(self.found)
        elif (known := self.found[position - 1]) is not scope and known != scope:
            raise ValueError(f"scope {scope.name!r} stands in one call with different limits or ids, expected the same")
        return position


@lru_cache(maxsize=4096)
def windows_of(limits: tuple[Limit, ...]) -> list[list[Any]]:
    """The windows of a scope, as the scripts take them."""
    return [
        [limit.max, limit.window_us] if limit.kind is Kind.ROLLING else [limit.max, limit.window_us, limit.kind.value]
        for limit in limits
    ]


def _store(limits: tuple[Limit, ...]) -> str:
    return "quota" if all(limit.kind is Kind.FIXED for limit in limits) else "log"


def read_verdicts(answer: bytes | str, call: Call, ids: Sequence[str] | None) -> list[Verdict]:
    """The verdicts of gate.lua; raises ``StaleLimits`` when the call named another version than the one in force."""
    if ids is not None and len(ids) == 1 and answer == _ALONE:
        return [Admitted(ids[0])]
    facts = decode(answer)
    if "stale" in facts:
        raise StaleLimits(call.version, facts["stale"])
    if ids is not None and "left" in facts:
        return [Admitted(ids[0], _left_of(facts["left"], call.scopes))]
    return verdicts_of(facts, call, ids)


def _left_of(rows: Sequence[Sequence[int]], scopes: Sequence[Scope]) -> tuple[Left, ...]:
    """What is left, in the order of the scopes and of their limits."""
    return tuple(
        Left(scope.name, limit, left)
        for scope, row in zip(scopes, rows, strict=True)
        for limit, left in zip(scope.limits, row, strict=True)
    )


def verdicts_of(facts: dict[str, Any], call: Call, ids: Sequence[str] | None) -> list[Verdict]:
    """The verdicts in an answer that was decoded."""
    verdicts: list[Verdict] = []
    known: dict[tuple[int, ...], Denied] = {}
    for n, row in enumerate(facts["verdicts"]):
        if row == 0:
            verdicts.append(Admitted() if ids is None else Admitted(ids[n]))
        elif type(row) is int:
            verdicts.append(verdicts[row - 1])
        else:
            denied = known.get(denial := tuple(row))
            if denied is None:
                denied = known[denial] = denied_of(row, call.scopes)
            verdicts.append(denied)
    return verdicts


def openings_of(facts: dict[str, Any], ahead: Sequence[Scope]) -> list[Opening]:
    """The openings in an answer that was decoded."""
    rows = facts["ahead"] if ahead else []
    return [Opening(scope.name, int(at), room) for scope, (at, room) in zip(ahead, rows, strict=True)]


def denied_of(row: Sequence[int], scopes: Sequence[Scope]) -> Denied:
    """A denial as the scripts say it: the positions of scope and window, and the time until there is room."""
    scope, window, retry_after_us = row
    denier = scopes[scope - 1]
    return Denied(denier.name, denier.limits[window - 1], retry_after_us)


def read_usage(answer: bytes | str, scopes: Sequence[Scope]) -> list[list[Usage]]:
    """For each scope of usage.lua's call what is used of each of its limits."""
    return [
        [Usage(limit, *row) for limit, row in zip(scope.limits, rows, strict=True)]
        for scope, rows in zip(scopes, decode(answer)["scopes"], strict=True)
    ]


def read_turns(answer: bytes | str, call: Call) -> list[WaitAnswer]:
    """The answers of wait.lua."""
    return [
        WaitAnswer(arrived, denied_of(denial[:3], call.scopes), denial[3] / US) if denial else WaitAnswer(arrived, None)
        for arrived, *denial in decode(answer)["turns"]
    ]


def limited(denied: Denied) -> RateLimited:
    """The denial as an exception."""
    return RateLimited(denied.scope, str(denied.limit), denied.retry_after_us / US)
