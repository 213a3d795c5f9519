"""The limiter for asyncio: what tasks ask at the same time goes to the server in one call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from dispatcher.core.limits import Admitted, Demand, Scope, Verdict, all_scopes
from dispatcher.errors import GateUnavailable
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
    slot_of,
)
from dispatcher.limiter.coalescing import Coalescer
from dispatcher.limiter.refusals import check_client, in_our_words, is_wrong_type, refusal, unauthorised, wrong_type
from dispatcher.limiter.wakeups import AsyncWaiter, async_bells_of
from dispatcher.limiter.wire import (
    BATCH,
    Call,
    Calls,
    Usage,
    WaitAnswer,
    WaitingRequest,
    limited,
    read_turns,
    read_usage,
    read_verdicts,
)
from dispatcher.server.async_connection import AsyncScript

_Asked: TypeAlias = tuple[str, str, tuple[Demand, ...], str | None, bool]
"""A decision that is asked for: the id, its slot, the demands, the version of the limits, and whether the id is new."""

QUIT_S: Final = 1.0
"""How long a cancelled task tries to leave its line. The server forgets it by itself after about as long."""


class AsyncLimiter:
    """``Limiter`` for asyncio: the same promises, arguments and errors, and the same limits as all who share them.

    ``client`` is of ``redis.asyncio``. The first question goes to the server at once; what is asked while its answer is
    on the way goes together, up to 128 in one call. A task that is cancelled while it asks may have been charged; ask
    ``try_acquire`` with the same id, or release it. One limiter belongs to one event loop.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - redis.asyncio's Redis or RedisCluster, which have no common type
        *,
        namespace: str = "limiter",
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``clock`` gives microseconds instead of the server's clock: for tests and simulations."""
        check_client(client, (Redis, RedisCluster), "Limiter takes the others")
        self._client = client
        self._calls = Calls(namespace)
        self._clock = clock
        self._scripts = {name: AsyncScript(client, name) for name in ("gate", "usage", "wait", "release", "reset")}
        self._decisions: Coalescer[_Asked, Verdict] = Coalescer(self._decide)
        self._turns: Coalescer[WaitingRequest, WaitAnswer] = Coalescer(self._take_turns)
        self._once = self._scripts["gate"].once

    async def try_acquire(  # noqa: PLR0913 - what one call may be told, by name
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        with_left: bool = False,
        version: str | None = None,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``Limiter.try_acquire``; with ``with_left``, ``now_us`` or a ``cost`` it asks apart from other tasks."""
        id_, demands = checked_id(id), checked_scopes(scopes)
        slot, version = slot_of(id_, checked_cost(cost, demands)), checked_version(version)
        fresh = id is None and self._once
        if with_left or cost > 1 or now_us is not None:
            call = self._calls.decide([slot], [demands], fresh=fresh, version=version, left=with_left, cost=cost)
            return read_verdicts(await self._call("gate", call, checked_now(now_us)), call, [id_])[0]
        return await self._decisions.ask((id_, slot, demands, version, fresh), (version, fresh), demands)

    async def try_acquire_many(
        self,
        requests: Iterable[Scopes],
        ids: Iterable[str | None] | None = None,
        *,
        version: str | None = None,
        now_us: int | None = None,
    ) -> list[Verdict]:
        """As ``Limiter.try_acquire_many``."""
        fresh = ids is None and self._once
        demands, names = checked_requests(requests, ids)
        slots = names if ids is None else [slot_of(name) for name in names]
        version, now_us = checked_version(version), checked_now(now_us)
        verdicts: list[Verdict] = []
        for call in self._calls.decide_many(slots, demands, fresh=fresh, version=version):
            asked = names[len(verdicts) : len(verdicts) + BATCH]
            verdicts += read_verdicts(await self._call("gate", call, now_us), call, asked)
        return verdicts

    async def peek(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        now_us: int | None = None,
    ) -> Verdict:
        """As ``Limiter.peek``."""
        id_, demands = checked_id(id), checked_scopes(scopes)
        call = self._calls.decide([slot_of(id_, checked_cost(cost, demands))], [demands], peek=True, cost=cost)
        return read_verdicts(await self._call("gate", call, checked_now(now_us)), call, None)[0]

    async def acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        timeout: float | None = None,  # noqa: ASYNC109 - the same surface as Limiter's; the wait itself needs it
    ) -> Admitted:
        """As ``Limiter.acquire``. A task that is cancelled leaves the line, which takes a second at most."""
        id_, demands = checked_id(id), checked_scopes(scopes)
        request = (slot_of(id_, checked_cost(cost, demands)), demands)
        timeout = checked_timeout(timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        asking = WaitingRequest(request, "-", "ask", cost=cost)
        turn = await self._ask_turn(asking)
        while turn.denied is not None and turn.wait_s == 0:  # very many who waited have died; each call removes some
            if timeout and ends is not None and time.monotonic() >= ends:
                break
            turn = await self._ask_turn(asking)
        if turn.denied is None:
            return Admitted(id_)
        if timeout != 0:
            async with self._heard(ends) as waiter:
                if waiter is not None:
                    waiting = WaitingRequest(request, waiter.token, "join", cost=cost)
                    turn = await self._wait_for_turn(waiting, waiter, ends)
        if turn.denied is not None:
            raise limited(turn.denied)
        return Admitted(id_)

    @asynccontextmanager
    async def ensure(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        cost: int = 1,
        timeout: float | None = 0,  # noqa: ASYNC109 - the same surface as Limiter's
    ) -> AsyncGenerator[Admitted, None]:
        """As ``Limiter.ensure``, with ``async with``."""
        yield await self.acquire(scopes, id, cost=cost, timeout=timeout)

    async def release(self, scopes: Scopes, id: str, *, cost: int = 1) -> bool:  # noqa: A002 - the field's word
        """As ``Limiter.release``."""
        slot = slot_of(given_id(id), checked_cost(cost))
        call = self._calls.release(slot, releasable(checked_scopes(scopes)), cost)
        return bool(await self._call("release", call))

    async def reset(self, scopes: Scopes) -> int:
        """As ``Limiter.reset``."""
        return int(await self._call("reset", self._calls.reset(list(all_scopes(checked_scopes(scopes))))))

    async def usage(self, scope: Scope, *, now_us: int | None = None) -> list[Usage]:
        """As ``Limiter.usage``."""
        return (await self.usage_many([scope], now_us=now_us))[0]

    async def usage_many(self, scopes: Iterable[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """As ``Limiter.usage_many``."""
        call = self._calls.usage([checked_scope(scope) for scope in scopes])
        return read_usage(await self._call("usage", call, checked_now(now_us)), call.scopes) if call.scopes else []

    async def enforce(self, version: str) -> None:
        """As ``Limiter.enforce``."""
        version = new_version(version)
        with in_our_words():
            await self._client.set(self._calls.keys.limits_version, version)

    async def _decide(self, asked: Sequence[_Asked]) -> list[Verdict]:
        ids, slots, demands, (version, *_), (fresh, *_) = zip(*asked, strict=True)
        call = self._calls.decide(slots, demands, fresh=fresh, version=version)
        return read_verdicts(await self._call("gate", call), call, ids)

    def _ask_turn(self, waiting: WaitingRequest) -> asyncio.Future[WaitAnswer]:
        slot, demands = waiting.request
        return self._turns.ask(waiting, (None if waiting.cost == 1 else slot, False), demands)

    async def _take_turns(self, asked: Sequence[WaitingRequest]) -> list[WaitAnswer]:
        call = self._calls.wait(asked)
        return read_turns(await self._call("wait", call), call)

    async def _call(self, name: str, call: Call, now_us: int | None = None) -> Any:  # noqa: ANN401 - what Lua returns
        if now_us is None and self._clock is not None:
            now_us = self._clock()
        try:
            return await self._scripts[name](call.keys, call.arguments(now_us))
        except ResponseError as failure:
            if is_wrong_type(failure):
                with in_our_words():
                    kinds = {key: await self._client.type(key) for key in call.keys}
                raise wrong_type(kinds) from failure
            raise refusal(failure) from failure
        except GateUnavailable as error:
            raise unauthorised(error) or error from error.__cause__

    @asynccontextmanager
    async def _heard(self, ends: float | None) -> AsyncGenerator[AsyncWaiter | None, None]:
        """As ``Limiter._heard``."""
        prefix = self._calls.keys.bells
        async with AsyncExitStack() as stack:
            with in_our_words():
                bells, pool = async_bells_of(self._client, prefix)
                waiter = await stack.enter_async_context(bells.waiter(pool, prefix, ends))
            yield waiter

    async def _wait_for_turn(self, waiting: WaitingRequest, waiter: AsyncWaiter, ends: float | None) -> WaitAnswer:
        try:
            while True:
                turn = await self._ask_turn(waiting)
                if turn.denied is None or waiting.step == "leave":
                    return turn
                waiting = waiting._replace(arrived=turn.arrived)
                left_s = turn.wait_s if ends is None else min(turn.wait_s, ends - time.monotonic())
                await waiter.wait(left_s)
                if ends is not None and time.monotonic() >= ends:
                    waiting = waiting._replace(step="leave")
        except BaseException:  # cancelled: nobody shall wait for this one
            quits = self._ask_turn(waiting._replace(step="quit"))
            quits.add_done_callback(_look_at)
            await asyncio.wait({quits}, timeout=QUIT_S)
            raise


def _look_at(answer: asyncio.Future[WaitAnswer]) -> None:
    """Take a failure as seen. If the server did not hear that a task leaves, it forgets the task by itself."""
    if not answer.cancelled():
        answer.exception()
