"""Limiters without a server: what the real ones decide, computed in memory at an instant of the test's own.

They check what they are asked as the real ones do, because it is their code.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from threading import RLock
from typing import Final, TypeAlias

from dispatcher.core.limits import Admitted, Demand, Denied, FirstOf, Kind, Left, Limit, Scope, Verdict, all_scopes
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable, StaleLimits
from dispatcher.limiter.arguments import (
    Scopes,
    checked_cost,
    checked_id,
    checked_now,
    checked_requests,
    checked_scope,
    checked_scopes,
    checked_timeout,
    checked_version,
    given_id,
    new_version,
    releasable,
)
from dispatcher.limiter.blocking import Limiter
from dispatcher.limiter.concurrent import AsyncLimiter
from dispatcher.limiter.wire import Calls, Usage, limited

_BEGINS_US: Final = 1_700_000_000 * US
_CALLS: Final = Calls("fake")

_Owner: TypeAlias = tuple[str | int, int]
"""An id, or the number of a request without one; and how many slots it takes at once."""


class _Slots:
    """What was charged, by the name of its scope: the instant of each owner's slots."""

    def __init__(self) -> None:
        self.now_us = _BEGINS_US
        self.is_away = False
        self.version: str | None = None
        self._charged: dict[tuple[str, bool], dict[_Owner, int]] = {}
        self._count = 0

    def call(self, version: str | None = None) -> None:
        """What every call meets before it is answered."""
        if self.is_away:
            raise GateUnavailable("Redis did not answer: the fake limiter was told so")
        if version is not None and self.version not in {None, version}:
            raise StaleLimits(version, str(self.version))

    def of(self, scope: Scope) -> dict[_Owner, int]:
        return self._charged.setdefault((scope.name, scope.ids), {})

    def decide(
        self, id_: str, demands: tuple[Demand, ...], *, charges: bool, cost: int = 1, with_left: bool = False
    ) -> Verdict:
        owner = (id_, cost)
        latest_us, denied, chosen = self.now_us, None, []
        for demand in demands:
            answers = [(*self._free_at(owner, scope), scope) for scope in _alternatives(demand)]
            free_us, limit, scope = min(answers, key=lambda answer: answer[0])  # of equals the first
            chosen.append(scope)
            if limit is not None and free_us > latest_us:
                latest_us, denied = free_us, (scope.name, limit)
        if denied is not None:
            return Denied(*denied, latest_us - self.now_us)
        for demand, scope in zip(demands, chosen, strict=True) if charges else ():
            self._charge(owner, scope)
            for other in _alternatives(demand):
                if other is not scope and other.ids:
                    self.of(other).pop(owner, None)
        left = [Left(scope.name, each.limit, max(0, each.limit.max - each.used)) for scope, each in self._uses(demands)]
        return Admitted(id_ if charges else None, tuple(left) if with_left else None)

    def usage(self, scope: Scope) -> list[Usage]:
        instants = _instants(self.of(scope))
        return [
            Usage(
                limit,
                sum(_leaves(at_us, limit) > self.now_us for at_us in instants),
                _room_at(instants, limit, self.now_us) - self.now_us,
            )
            for limit in scope.limits
        ]

    def release(self, owner: _Owner, scopes: Iterable[Scope]) -> bool:
        return sum(self._counts(scope, self.of(scope).pop(owner, None)) for scope in scopes) > 0

    def reset(self, scopes: Iterable[Scope]) -> int:
        forgotten = [(scope, self._charged.pop((scope.name, scope.ids), {})) for scope in scopes]
        return sum(any(self._counts(scope, at_us) for at_us in charged.values()) for scope, charged in forgotten)

    def _counts(self, scope: Scope, at_us: int | None) -> bool:
        """Whether a limit of the scope still counts what was charged at that instant."""
        return at_us is not None and any(_leaves(at_us, limit) > self.now_us for limit in scope.limits)

    def _uses(self, demands: tuple[Demand, ...]) -> Generator[tuple[Scope, Usage], None, None]:
        for scope in all_scopes(demands):
            for usage in self.usage(scope):
                yield scope, usage

    def _free_at(self, owner: _Owner, scope: Scope) -> tuple[int, Limit | None]:
        others = _instants({other: at_us for other, at_us in self.of(scope).items() if other != owner})
        rooms = [(_room_at(others, limit, self.now_us, owner[1]), limit) for limit in scope.limits]
        free_us, limit = max(rooms, key=lambda room: room[0], default=(self.now_us, None))  # of equals the first
        return free_us, limit

    def _charge(self, owner: _Owner, scope: Scope) -> None:
        self._count += 1
        self.of(scope)[owner if scope.ids else (self._count, owner[1])] = self.now_us


class FakeLimiter(Limiter):
    """``Limiter`` without a server, for tests of programs that limit.

    It has a clock of its own, which stands still: ``forward(seconds)`` moves it, and so does ``acquire`` where it would
    wait. With ``is_away = True`` every call raises ``GateUnavailable``. It decides for one process, and is exact like
    the real one as long as the limits of a scope stay as they are.
    """

    def __init__(self) -> None:
        self._slots = _Slots()
        self._lock = RLock()

    @property
    def is_away(self) -> bool:
        """Whether every call raises ``GateUnavailable``."""
        return self._slots.is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._slots.is_away = is_away

    @property
    def now_us(self) -> int:
        """The instant of its clock, in microseconds since 1970."""
        return self._slots.now_us

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._slots.now_us += round(seconds * US)

    def try_acquire(  # noqa: PLR0913 - what one call may be told, by name
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as Limiter
        *,
        cost: int = 1,
        with_left: bool = False,
        version: str | None = None,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``Limiter.try_acquire``."""
        demands, id_ = checked_scopes(scopes), checked_id(id)
        cost = checked_cost(cost, demands)
        self._slots.call(checked_version(version))
        with self._at(now_us):
            return self._slots.decide(id_, demands, charges=True, cost=cost, with_left=with_left)

    def try_acquire_many(
        self,
        requests: Iterable[Scopes],
        ids: Iterable[str | None] | None = None,
        *,
        version: str | None = None,
        now_us: int | None = None,
    ) -> list[Verdict]:
        """As ``Limiter.try_acquire_many``."""
        demands, names = checked_requests(requests, ids)
        _CALLS.decide_many(names, demands, fresh=False, version=None)  # for what it refuses
        self._slots.call(checked_version(version))
        with self._at(now_us):
            return [self._slots.decide(id_, each, charges=True) for id_, each in zip(names, demands, strict=True)]

    def peek(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as Limiter
        *,
        cost: int = 1,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``Limiter.peek``."""
        demands, id_ = checked_scopes(scopes), checked_id(id)
        cost = checked_cost(cost, demands)
        self._slots.call()
        with self._at(now_us):
            return self._slots.decide(id_, demands, charges=False, cost=cost)

    def acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as Limiter
        *,
        cost: int = 1,
        timeout: float | None = None,
    ) -> Admitted:
        """As ``Limiter.acquire``; the clock moves to the instant at which there is room, or by ``timeout``."""
        id_, timeout = checked_id(id), checked_timeout(timeout)
        with self._lock:
            verdict = self.try_acquire(scopes, id_, cost=cost)
            if isinstance(verdict, Denied):
                wait_s = verdict.retry_after_us / US
                if timeout is not None and wait_s > timeout:
                    self.forward(timeout)
                    raise limited(verdict)
                self._slots.now_us += verdict.retry_after_us
                verdict = self.try_acquire(scopes, id_, cost=cost)
        if isinstance(verdict, Denied):
            raise limited(verdict)
        return verdict

    def release(self, scopes: Scopes, id: str, *, cost: int = 1) -> bool:  # noqa: A002 - as Limiter
        """As ``Limiter.release``."""
        demands, owner = releasable(checked_scopes(scopes)), (given_id(id), checked_cost(cost))
        self._slots.call()
        with self._lock:
            return self._slots.release(owner, demands)

    def reset(self, scopes: Scopes) -> int:
        """As ``Limiter.reset``."""
        demands = checked_scopes(scopes)
        self._slots.call()
        with self._lock:
            return self._slots.reset(all_scopes(demands))

    def usage_many(self, scopes: Iterable[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """As ``Limiter.usage_many``."""
        checked = [checked_scope(scope) for scope in scopes]
        self._slots.call()
        with self._at(now_us):
            return [self._slots.usage(scope) for scope in checked]

    def enforce(self, version: str) -> None:
        """As ``Limiter.enforce``."""
        checked = new_version(version)
        self._slots.call()
        self._slots.version = checked

    @contextmanager
    def _at(self, now_us: int | None) -> Generator[None, None, None]:
        given = checked_now(now_us)
        with self._lock:
            before = self._slots.now_us
            self._slots.now_us = before if given is None else given
            try:
                yield
            finally:
                self._slots.now_us = before


class AsyncFakeLimiter(AsyncLimiter):
    """``AsyncLimiter`` without a server; ``blocking`` is the ``FakeLimiter`` that decides, with its clock."""

    def __init__(self) -> None:
        self.blocking = FakeLimiter()

    async def try_acquire(  # noqa: PLR0913 - what one call may be told, by name
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as AsyncLimiter
        *,
        cost: int = 1,
        with_left: bool = False,
        version: str | None = None,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``AsyncLimiter.try_acquire``."""
        return self.blocking.try_acquire(scopes, id, cost=cost, with_left=with_left, version=version, now_us=now_us)

    async def try_acquire_many(
        self,
        requests: Iterable[Scopes],
        ids: Iterable[str | None] | None = None,
        *,
        version: str | None = None,
        now_us: int | None = None,
    ) -> list[Verdict]:
        """As ``AsyncLimiter.try_acquire_many``."""
        return self.blocking.try_acquire_many(requests, ids, version=version, now_us=now_us)

    async def peek(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as AsyncLimiter
        *,
        cost: int = 1,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``AsyncLimiter.peek``."""
        return self.blocking.peek(scopes, id, cost=cost, now_us=now_us)

    async def acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - as AsyncLimiter
        *,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109 - as AsyncLimiter
    ) -> Admitted:
        """As ``FakeLimiter.acquire``."""
        return self.blocking.acquire(scopes, id, cost=cost, timeout=timeout)

    async def release(self, scopes: Scopes, id: str, *, cost: int = 1) -> bool:  # noqa: A002 - as AsyncLimiter
        """As ``AsyncLimiter.release``."""
        return self.blocking.release(scopes, id, cost=cost)

    async def reset(self, scopes: Scopes) -> int:
        """As ``AsyncLimiter.reset``."""
        return self.blocking.reset(scopes)

    async def usage_many(self, scopes: Iterable[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """As ``AsyncLimiter.usage_many``."""
        return self.blocking.usage_many(scopes, now_us=now_us)

    async def enforce(self, version: str) -> None:
        """As ``AsyncLimiter.enforce``."""
        self.blocking.enforce(version)


def _alternatives(demand: Demand) -> tuple[Scope, ...]:
    return demand.scopes if isinstance(demand, FirstOf) else (demand,)


def _leaves(at_us: int, limit: Limit) -> int:
    """When a slot that was charged at an instant leaves the limit's window."""
    if limit.kind is Kind.FIXED:
        return (at_us // limit.window_us + 1) * limit.window_us
    return at_us + limit.window_us


def _instants(owners: dict[_Owner, int]) -> list[int]:
    """The instant of each slot."""
    return [at_us for (_, cost), at_us in owners.items() for _ in range(cost)]


def _room_at(instants: Iterable[int], limit: Limit, now_us: int, cost: int = 1) -> int:
    """The first instant from now on at which ``cost`` slots fit."""
    leaving = sorted(leaves for at_us in instants if (leaves := _leaves(at_us, limit)) > now_us)
    room = limit.max - cost
    return now_us if len(leaving) <= room else leaving[len(leaving) - room - 1]
