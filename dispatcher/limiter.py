"""The gate as a library: exact limits over several scopes and windows, decided by one atomic script on Redis.

limiter = Limiter(redis.Redis(), namespace="shop")
verdict = limiter.try_acquire([Scope("user:42", (Limit.parse("100/1m"),))])
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.connection import Client, JsonScript
from dispatcher.errors import GateUnavailable, RateLimited
from dispatcher.event import new_event_id, slot_id
from dispatcher.keys import Keys
from dispatcher.model import Admitted, Denied, Limit, Scope, Verdict

__all__ = ["Admitted", "Denied", "GateUnavailable", "Limit", "Limiter", "RateLimited", "Scope", "Usage", "Verdict"]

_ADMITTED = Admitted()


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a limit is used, and the time until it has room for one more (0: it has)."""

    limit: Limit
    used: int
    wait_us: int


class Limiter:
    """Decides whether something may happen now. All processes that use one namespace share the limits.

    For each rolling limit (N, W) no half-open window of length W ever holds more than N admitted ids. A slot belongs to
    an id: the same id again costs no second slot, its slot moves to now. Redis being away raises ``GateUnavailable``:
    whether a slot was charged is then unknown until the same id asks again.
    """

    def __init__(
        self, client: Client, *, namespace: str = "dispatcher", clock: Callable[[], int] | None = None
    ) -> None:
        """``clock`` gives microseconds instead of the server's clock: for tests and simulations."""
        self._keys = Keys(namespace)
        self._gate = JsonScript(client, "gate", clock)
        self._usage = JsonScript(client, "usage", clock)

    def try_acquire(self, scopes: Sequence[Scope], id: str | None = None, *, now_us: int | None = None) -> Verdict:  # noqa: A002 - the field's word
        """Charge one slot in every scope, or none. ``now_us`` replaces the server's clock."""
        slot = slot_id(id if id is not None else new_event_id(), 0)
        return self.try_acquire_many([(slot, tuple(scopes))], now_us=now_us)[0]

    def try_acquire_many(
        self, requests: Sequence[tuple[str, tuple[Scope, ...]]], *, now_us: int | None = None
    ) -> list[Verdict]:
        """Decide each request ``(id, scopes)`` in order, as if asked one after another at one instant."""
        return self._decide(requests, now_us, peek=False)

    def peek(self, scopes: Sequence[Scope], id: str | None = None, *, now_us: int | None = None) -> Verdict:  # noqa: A002 - the field's word
        """What ``try_acquire`` would answer; charges nothing."""
        slot = slot_id(id if id is not None else new_event_id(), 0)
        return self._decide([(slot, tuple(scopes))], now_us, peek=True)[0]

    def usage(self, scopes: Sequence[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """For each limit of each scope how much of it is used; reads only."""
        if not scopes:
            return []
        call = _at(now_us) | {"scopes": [_windows(scope) for scope in scopes]}
        answer = json.loads(self._usage([self._keys.scope(scope.name) for scope in scopes], call))
        return [
            [Usage(limit, used, wait_us) for limit, (used, wait_us) in zip(scope.limits, rows, strict=True)]
            for scope, rows in zip(scopes, answer["scopes"], strict=True)
        ]

    def _decide(
        self, requests: Sequence[tuple[str, tuple[Scope, ...]]], now_us: int | None, *, peek: bool
    ) -> list[Verdict]:
        positions: dict[Scope, int] = {}
        for _, scopes in requests:
            for scope in scopes:
                positions.setdefault(scope, len(positions) + 1)
        if not positions:
            return [_ADMITTED] * len(requests)
        distinct = list(positions)
        _refuse_two_of_one_name(distinct)
        call = _at(now_us) | {
            "scopes": [_windows(scope) for scope in distinct],
            "requests": [[slot, *[positions[scope] for scope in scopes]] for slot, scopes in requests],
        }
        if peek:
            call["peek"] = True
        answer = json.loads(self._gate([self._keys.scope(scope.name) for scope in distinct], call))
        return [_verdict(row, distinct) for row in answer["verdicts"]]


def _refuse_two_of_one_name(scopes: Sequence[Scope]) -> None:
    names = Counter(scope.name for scope in scopes)
    for name, count in names.items():
        if count > 1:
            raise ValueError(f"scope {name!r} stands in one call with {count} different lists of limits, expected one")


def _at(now_us: int | None) -> dict[str, Any]:
    return {} if now_us is None else {"now": now_us}


def _windows(scope: Scope) -> list[list[int | str]]:
    return [[limit.max, limit.window_us, limit.kind.value] for limit in scope.limits]


def _verdict(row: int | list[int], scopes: Sequence[Scope]) -> Verdict:
    if isinstance(row, int):
        return _ADMITTED
    scope, window, retry_after_us = row
    denier = scopes[scope - 1]
    return Denied(denier.name, denier.limits[window - 1], retry_after_us)
