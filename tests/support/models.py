"""Brute-force models: what the gate has to answer, computed the slow and obvious way from a plain list of slots.

They share no code with the scripts. Speed does not matter here; that each rule can be read off does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from dispatcher.limiter import Usage
from dispatcher.model import US, Admitted, Denied, Kind, Limit, Scope, Verdict

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
    """Every slot of every scope, by its id; decides by counting."""

    def __init__(self) -> None:
        self.slots: defaultdict[str, dict[str, Slot]] = defaultdict(dict)

    def ask(self, id_: str, scopes: Sequence[Scope], now_us: int) -> Verdict:
        """The verdict, with nothing charged."""
        latest, denied = now_us, None
        for scope in scopes:
            others = self._against(id_, scope.name, now_us)
            for limit in scope.limits:
                free_us = _room_at(others, limit, now_us)
                if free_us > latest:
                    latest, denied = free_us, (scope.name, limit)
        return Admitted() if denied is None else Denied(*denied, latest - now_us)

    def usage(self, scope: Scope, now_us: int) -> list[Usage]:
        """How many slots count in each window, and how long until there is room for one more."""
        slots = self.slots[scope.name].values()
        return [
            Usage(
                limit,
                sum(at_us > now_us for at_us in _departures(slots, limit)),
                _room_at(slots, limit, now_us) - now_us,
            )
            for limit in scope.limits
        ]

    def decide(self, id_: str, scopes: Sequence[Scope], now_us: int) -> Verdict:
        """The verdict; admitted, the id's slots move to now, none of them back."""
        verdict = self.ask(id_, scopes, now_us)
        if isinstance(verdict, Admitted):
            for scope in scopes:
                self._sweep(scope.name, now_us)
                match self.slots[scope.name].get(id_):
                    case Charged(at_us):
                        self.slots[scope.name][id_] = Charged(max(at_us, now_us))
                    case Held() | None:
                        self.slots[scope.name][id_] = Charged(now_us)
                    case other:
                        assert_never(other)
        return verdict

    def hold(self, id_: str, scope: str, until_us: int) -> None:
        """The id's slot is held; an id without one gets none."""
        if id_ in self.slots[scope]:
            self.slots[scope][id_] = Held(until_us)

    def release(self, id_: str, scope: str) -> None:
        """The id's slot goes back."""
        self.slots[scope].pop(id_, None)

    def edges(self, scopes: Iterable[Scope], now_us: int) -> list[int]:
        """The instants after now at which some slot leaves some window."""
        return sorted(
            {
                at_us
                for scope in scopes
                for limit in scope.limits
                for at_us in _departures(self.slots[scope.name].values(), limit)
                if at_us > now_us
            }
        )

    def forget_all_but(self, kept: Mapping[str, Slot], scope: Scope) -> None:
        """Take over what the store kept of a scope after it charged a slot there.

        It may have dropped old history alone: of the charged slots the newest stay, one more than the largest
        limit, and every held slot stays. What it dropped counts as empty from now on, should the limits grow.
        """
        mine = self.slots[scope.name]
        assert kept.items() <= mine.items(), f"{scope.name} holds {kept}, expected a part of {mine}"
        newest = max((limit.max for limit in scope.limits), default=0) + 1
        assert _charges(kept)[:newest] == _charges(mine)[:newest], f"{scope.name} lost a slot that may count"
        assert all(id_ in kept for id_, slot in mine.items() if isinstance(slot, Held))
        self.slots[scope.name] = dict(kept)

    def _against(self, id_: str, scope: str, now_us: int) -> list[Slot]:
        """The slots in the id's way: those of others; if its own is held, of the held ones those that end before."""
        slots = self.slots[scope]
        others = {owner: slot for owner, slot in slots.items() if owner != id_}
        match slots.get(id_):
            case Held(until_us) if until_us > now_us:
                rank = (until_us, id_)
                return [
                    slot for owner, slot in others.items() if isinstance(slot, Charged) or (slot.until_us, owner) < rank
                ]
            case _:
                return list(others.values())

    def _sweep(self, scope: str, now_us: int) -> None:
        for id_, slot in list(self.slots[scope].items()):
            if isinstance(slot, Held) and slot.until_us <= now_us:
                del self.slots[scope][id_]


def stored_slots(rows: Iterable[tuple[bytes, float]]) -> dict[str, Slot]:
    """The slots in a scope's sorted set, as ``ZRANGE ... WITHSCORES`` gives them."""
    return {
        member.decode(): Held(int(score) - HELD) if score >= HELD else Charged(int(score)) for member, score in rows
    }


def most_in_any_window(instants_us: Iterable[int], window_us: int) -> int:
    """The most instants that any half-open window ``(t - window, t]`` holds."""
    instants = sorted(instants_us)
    return max((sum(end - window_us < at <= end for at in instants) for end in instants), default=0)


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


def _room_at(slots: Iterable[Slot], limit: Limit, now_us: int) -> int:
    """The smallest instant from now on at which fewer than ``max`` slots count, with nothing else happening."""
    departures = _departures(slots, limit)
    instants = [now_us, *sorted(at_us for at_us in departures if at_us > now_us)]
    return next(at for at in instants if sum(leaves > at for leaves in departures) < limit.max)


def _charges(slots: Mapping[str, Slot]) -> list[int]:
    return sorted((slot.at_us for slot in slots.values() if isinstance(slot, Charged)), reverse=True)
