"""Brute-force models: what the gate has to answer, computed the slow and obvious way from plain lists of slots.

They share no code with the scripts. Speed does not matter here; that each rule can be read off does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Limit, Scope, Verdict
from dispatcher.core.units import US
from dispatcher.limiter import Usage

HOLDING_WINDOW_US: Final = 60 * US
"""Held slots count in rolling windows of at least this length."""

HELD: Final = 2**52
"""The scripts mark a held slot by this offset on its score."""


@dataclass(frozen=True, slots=True)
class Charged:
    """A slot whose attempt was at ``at_us``."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Held:
    """A slot of an event that waits, at the longest until ``until_us``."""

    until_us: int


Slot: TypeAlias = Charged | Held


class GateModel:
    """Every slot of every scope; decides by counting.

    ``slots`` are those that belong to ids. A scope without ids has a log of instants, or, where all its windows are
    fixed, for each length of a window the instants that were counted in it.
    """

    def __init__(self) -> None:
        self.slots: defaultdict[str, dict[str, Slot]] = defaultdict(dict)
        self.logs: defaultdict[str, list[int]] = defaultdict(list)
        self.quotas: defaultdict[str, dict[int, list[int]]] = defaultdict(dict)
        self.charged: set[str] = set()
        """The scopes charged since whoever looks at it emptied it."""

    def ask(self, id_: str, demands: Sequence[Demand], now_us: int, cost: int = 1) -> Verdict:
        """The verdict, with nothing charged."""
        return self._weigh(_slots_of(id_, cost), demands, now_us)[0]

    def decide(self, id_: str, demands: Sequence[Demand], now_us: int, cost: int = 1) -> Verdict:
        """The verdict; admitted, the id's slots move to now, none of them back, and from one alternative to another."""
        owned = _slots_of(id_, cost)
        verdict, chosen = self._weigh(owned, demands, now_us)
        if isinstance(verdict, Admitted):
            for demand, scope in zip(demands, chosen, strict=True):
                for slot in owned:
                    self._charge(slot, scope, now_us)
                for other in _alternatives(demand):
                    if other is not scope:
                        self.release(id_, other.name, cost)
        return verdict

    def usage(self, scope: Scope, now_us: int) -> list[Usage]:
        """How many slots count in each window, and how long until there is room for one more."""
        if has_quota(scope):
            return [self._quota_usage(scope.name, limit, now_us) for limit in scope.limits]
        slots = self.slots[scope.name].values() if scope.ids else self._logged(scope.name)
        held = [slot for slot in slots if isinstance(slot, Held)]
        return [
            Usage(
                limit,
                sum(at_us > now_us for at_us in _departures(slots, limit)),
                _room_at(slots, limit, now_us) - now_us,
                sum(at_us > now_us for at_us in _departures(held, limit)),
            )
            for limit in scope.limits
        ]

    def hold(self, id_: str, scope: str, until_us: int) -> None:
        """The id's slot is held; an id without one gets none."""
        if id_ in self.slots[scope]:
            self.slots[scope][id_] = Held(until_us)

    def release(self, id_: str, scope: str, cost: int = 1) -> None:
        """The id's slots go back."""
        for slot in _slots_of(id_, cost):
            self.slots[scope].pop(slot, None)

    def counts(self, id_: str, scope: Scope, now_us: int, cost: int = 1) -> bool:
        """Whether a limit of the scope counts slots of the id."""
        mine = [slot for each in _slots_of(id_, cost) if (slot := self.slots[scope.name].get(each)) is not None]
        return any(at_us > now_us for limit in scope.limits for at_us in _departures(mine, limit))

    def edges(self, scopes: Iterable[Scope], now_us: int) -> list[int]:
        """The instants after now at which some slot leaves some window."""
        return sorted(
            {
                at_us
                for scope in scopes
                for limit in scope.limits
                for at_us in _departures(self._all_slots(scope), limit)
                if at_us > now_us
            }
        )

    def forget_all_but(self, kept: Mapping[str, Slot], scope: Scope, now_us: int) -> None:
        """Take over what the store kept of a scope after it charged a slot there.

        It may have dropped what has left every window, the oldest first. What it dropped counts as empty from now on,
        should the limits grow or the clock be stepped back.
        """
        mine = self.slots[scope.name]
        assert kept.items() <= mine.items(), f"{scope.name} holds {kept}, expected a part of {mine}"
        dropped = {id_: slot for id_, slot in mine.items() if id_ not in kept}
        assert not any(at_us > now_us for limit in scope.limits for at_us in _departures(dropped.values(), limit)), (
            f"{scope} lost a slot that counts: {dropped} of {mine}"
        )
        assert not any(isinstance(slot, Held) and slot.until_us > now_us for slot in dropped.values())
        assert max(_charges(dropped), default=0) <= min(_charges(kept), default=now_us), (
            f"{scope} lost {dropped} before {kept}"
        )
        self.slots[scope.name] = dict(kept)

    def forget_all_logged_but(self, kept: Sequence[int], scope: Scope) -> None:
        """``forget_all_but`` of a log, the newest first: there as many stay as the largest limit says, and no more."""
        mine, largest = self.logs[scope.name][::-1], max(limit.max for limit in scope.limits)
        assert list(kept) == mine[:largest], f"the log {scope.name} holds {kept}, expected the newest of {mine}"
        self.logs[scope.name] = list(kept)[::-1]

    def _weigh(self, owned: Sequence[str], demands: Sequence[Demand], now_us: int) -> tuple[Verdict, list[Scope]]:
        """The verdict, and of each demand the scope that is charged or freed."""
        latest, denied, chosen = now_us, None, []
        for demand in demands:
            answers = [(self._free_at(owned, scope, now_us), scope) for scope in _alternatives(demand)]
            (free_us, limit), scope = min(answers, key=lambda answer: answer[0][0])  # of equals the first
            chosen.append(scope)
            if free_us > latest:
                latest, denied = free_us, (scope.name, limit)
        if denied is None or denied[1] is None:
            return Admitted(), chosen
        return Denied(denied[0], denied[1], latest - now_us), chosen

    def _free_at(self, owned: Sequence[str], scope: Scope, now_us: int) -> tuple[int, Limit | None]:
        """The instant, from now on, at which every window has room, and the limit that says so last."""
        latest, last = now_us, None
        others = self._against(owned, scope.name, now_us) if scope.ids else self._logged(scope.name)
        for limit in scope.limits:
            if has_quota(scope):
                free_us = now_us + self._quota_usage(scope.name, limit, now_us, len(owned)).wait_us
            else:
                free_us = _room_at(others, limit, now_us, len(owned))
            if free_us > latest:
                latest, last = free_us, limit
        return latest, last

    def _charge(self, id_: str, scope: Scope, now_us: int) -> None:
        self.charged.add(scope.name)
        if has_quota(scope):
            counted = self.quotas[scope.name]
            current = {us: each for us, each in counted.items() if max(each) // us >= now_us // us}
            named = {limit.window_us: [*counted.get(limit.window_us, ()), now_us] for limit in scope.limits}
            self.quotas[scope.name] = current | named
            return
        if not scope.ids:
            log = self.logs[scope.name]
            log.append(max(now_us, *log) if log else now_us)
            return
        slots = self.slots[scope.name]
        match slots.get(id_):
            case Charged(at_us):
                slots[id_] = Charged(max(at_us, now_us))
            case Held() | None:
                slots[id_] = Charged(now_us)
            case other:
                assert_never(other)

    def _quota_usage(self, scope: str, limit: Limit, now_us: int, cost: int = 1) -> Usage:
        """What the last window that was counted in holds; before it has begun, nobody finds room."""
        counted = self.quotas[scope].get(limit.window_us, [])
        current = now_us // limit.window_us
        last = max([current, *(at_us // limit.window_us for at_us in counted)])
        used = sum(at_us // limit.window_us == last for at_us in counted)
        opens_us = (last if used + cost <= limit.max else last + 1) * limit.window_us
        return Usage(limit, used, max(0, opens_us - now_us))

    def _logged(self, scope: str) -> list[Slot]:
        return [Charged(at_us) for at_us in self.logs[scope]]

    def _all_slots(self, scope: Scope) -> list[Slot]:
        if has_quota(scope):
            return [Charged(at_us) for instants in self.quotas[scope.name].values() for at_us in instants]
        return list(self.slots[scope.name].values()) if scope.ids else self._logged(scope.name)

    def _against(self, owned: Sequence[str], scope: str, now_us: int) -> list[Slot]:
        """The slots in an id's way: those of others; if its own is held, of the held ones those that end before."""
        slots = self.slots[scope]
        others = {owner: slot for owner, slot in slots.items() if owner not in owned}
        match slots.get(owned[0]):
            case Held(until_us) if until_us > now_us:
                rank = (until_us, owned[0])
                return [
                    slot for owner, slot in others.items() if isinstance(slot, Charged) or (slot.until_us, owner) < rank
                ]
            case _:
                return list(others.values())


def has_quota(scope: Scope) -> bool:
    """Whether the scope is kept as counts of aligned windows."""
    return not scope.ids and all(limit.kind is Kind.FIXED for limit in scope.limits)


def stored_slots(rows: Iterable[tuple[bytes, float]]) -> dict[str, Slot]:
    """The slots in a scope's sorted set, as ``ZRANGE ... WITHSCORES`` gives them."""
    return {
        member.decode(): Held(int(score) - HELD) if score >= HELD else Charged(int(score)) for member, score in rows
    }


def most_in_any_window(instants_us: Iterable[int], window_us: int) -> int:
    """The most instants that any half-open window ``(t - window, t]`` holds."""
    instants = sorted(instants_us)
    most = first = 0
    for last, end in enumerate(instants):
        while instants[first] <= end - window_us:
            first += 1
        most = max(most, last - first + 1)
    return most


def _slots_of(id_: str, cost: int) -> list[str]:
    """The slots of an id, as they are stored."""
    return [id_] if cost == 1 else [f"{id_}#{n:04d}" for n in range(1, cost + 1)]


def _alternatives(demand: Demand) -> tuple[Scope, ...]:
    return demand.scopes if isinstance(demand, FirstOf) else (demand,)


def _departures(slots: Iterable[Slot], limit: Limit) -> list[int]:
    """When each slot that counts in the limit's window leaves it."""
    departures = []
    for slot in slots:
        match slot:
            case Charged(at_us) if limit.kind is Kind.FIXED:
                departures.append((at_us // limit.window_us + 1) * limit.window_us)
            case Charged(at_us):
                departures.append(at_us + limit.window_us)
            case Held(until_us):
                if limit.kind is Kind.FIXED or limit.window_us >= HOLDING_WINDOW_US:
                    departures.append(until_us)
            case _:
                assert_never(slot)
    return departures


def _room_at(slots: Iterable[Slot], limit: Limit, now_us: int, cost: int = 1) -> int:
    """The smallest instant from now on at which ``cost`` slots fit, with nothing else happening."""
    departures = _departures(slots, limit)
    instants = [now_us, *sorted(at_us for at_us in departures if at_us > now_us)]
    return next(at for at in instants if sum(leaves > at for leaves in departures) + cost <= limit.max)


def _charges(slots: Mapping[str, Slot]) -> list[int]:
    return [slot.at_us for slot in slots.values() if isinstance(slot, Charged)]
