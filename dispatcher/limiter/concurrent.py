"""The limiter for asyncio: what tasks ask at the same time goes to the server in one call."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from dispatcher.connection import answered
from dispatcher.errors import DispatcherError
from dispatcher.limiter.arguments import (
    Scopes,
    checked_id,
    checked_now,
    checked_requests,
    checked_scope,
    checked_scopes,
    checked_timeout,
    checked_version,
    new_id,
    releasable,
    slot_of,
)
from dispatcher.limiter.bells import AsyncBells
from dispatcher.limiter.calls import (
    BATCH,
    Call,
    Calls,
    Request,
    Turn,
    Usage,
    WaitingRequest,
    limited,
    read_turns,
    read_usage,
    read_verdicts,
)
from dispatcher.limiter.refusals import is_wrong_type, refusal, wrong_type
from dispatcher.model import Admitted, Demand, Scope, Verdict, all_scopes
from dispatcher.scripts import read_script

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class AsyncLimiter:
    """``Limiter`` for asyncio: the same promises, arguments and errors, and the same limits as all who share them.

    ``client`` is of ``redis.asyncio``. The first question goes to the server at once; what is asked while its answer is
    on the way goes together, up to 128 in one call. A task that is cancelled while it asks may have been charged; ask
    again with the same id, or release it. One limiter belongs to one event loop.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - redis.asyncio's Redis or RedisCluster, which have no common type
        *,
        namespace: str = "limiter",
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``clock`` gives microseconds instead of the server's clock: for tests and simulations."""
        self._client = client
        self._calls = Calls(namespace)
        self._clock = clock
        self._scripts = {
            name: client.register_script(read_script(name)) for name in ("gate", "usage", "wait", "release")
        }
        self._decisions: _Coalescer[tuple[str, Request, str | None], Verdict] = _Coalescer(
            self._decide, lambda asked: (asked[2], asked[1][1])
        )
        self._turns: _Coalescer[WaitingRequest, Turn] = _Coalescer(
            self._take_turns, lambda asked: (None, asked.request[1])
        )
        self._bell = new_id()
        self._bells = AsyncBells(client, self._calls.keys.bells + self._bell)

    async def try_acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        version: str | None = None,
    ) -> Verdict:
        """As ``Limiter.try_acquire``."""
        id_ = checked_id(id)
        return await self._decisions.ask((id_, (slot_of(id_), checked_scopes(scopes)), checked_version(version)))

    async def try_acquire_many(
        self,
        requests: Iterable[Scopes],
        ids: Iterable[str | None] | None = None,
        *,
        version: str | None = None,
        now_us: int | None = None,
    ) -> list[Verdict]:
        """As ``Limiter.try_acquire_many``."""
        demands, names = checked_requests(requests, ids)
        slots = [slot_of(name) for name in names]
        version, now_us = checked_version(version), checked_now(now_us)
        calls = [
            self._calls.decide(zip(slots[at : at + BATCH], demands[at : at + BATCH], strict=True), version=version)
            for at in range(0, len(slots), BATCH)
        ]
        verdicts: list[Verdict] = []
        for call in calls:
            asked = names[len(verdicts) : len(verdicts) + BATCH]
            verdicts += read_verdicts(await self._call("gate", call, now_us), call, asked)
        return verdicts

    async def peek(self, scopes: Scopes, id: str | None = None) -> Verdict:  # noqa: A002 - the field's word
        """As ``Limiter.peek``."""
        call = self._calls.decide([(slot_of(checked_id(id)), checked_scopes(scopes))], peek=True)
        return read_verdicts(await self._call("gate", call), call, None)[0]

    async def acquire(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same surface as Limiter's; the wait itself needs it
    ) -> Admitted:
        """As ``Limiter.acquire``. A task that is cancelled leaves the line."""
        id_ = checked_id(id)
        request = (slot_of(id_), checked_scopes(scopes))
        timeout = checked_timeout(timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        turn = await self._turns.ask(WaitingRequest(request, "-", "ask"))
        if turn.denied is None:
            return Admitted(id_)
        if timeout != 0:
            token = f"{self._bell}:{new_id()}"
            try:
                turn = await self._wait_for_turn(request, token, ends)
            finally:
                await self._bells.leave(token)
        if turn.denied is not None:
            raise limited(turn.denied)
        return Admitted(id_)

    @asynccontextmanager
    async def ensure(
        self,
        scopes: Scopes,
        id: str | None = None,  # noqa: A002 - the field's word
        *,
        timeout: float | None = 0,  # noqa: ASYNC109 - the same surface as Limiter's
    ) -> AsyncGenerator[Admitted, None]:
        """As ``Limiter.ensure``, with ``async with``."""
        yield await self.acquire(scopes, id, timeout=timeout)

    async def release(self, scopes: Scopes, id: str) -> bool:  # noqa: A002 - the field's word
        """As ``Limiter.release``."""
        call = self._calls.release(slot_of(checked_id(id)), releasable(checked_scopes(scopes)))
        return bool(await self._call("release", call))

    async def usage(self, scope: Scope, *, now_us: int | None = None) -> list[Usage]:
        """As ``Limiter.usage``."""
        return (await self.usage_many([scope], now_us=now_us))[0]

    async def usage_many(self, scopes: Sequence[Scope], *, now_us: int | None = None) -> list[list[Usage]]:
        """As ``Limiter.usage_many``."""
        if not scopes:
            return []
        call = self._calls.usage([checked_scope(scope) for scope in scopes])
        return read_usage(await self._call("usage", call, checked_now(now_us)), scopes)

    async def enforce(self, version: str) -> None:
        """As ``Limiter.enforce``."""
        with answered():
            await self._client.set(self._calls.keys.limits_version, checked_version(version) or "")

    async def _decide(self, asked: Sequence[tuple[str, Request, str | None]]) -> list[Verdict]:
        call = self._calls.decide([request for _, request, _ in asked], version=asked[0][2])
        return read_verdicts(await self._call("gate", call), call, [id_ for id_, _, _ in asked])

    async def _take_turns(self, asked: Sequence[WaitingRequest]) -> list[Turn]:
        call = self._calls.wait(asked)
        return read_turns(await self._call("wait", call), call)

    async def _call(self, name: str, call: Call, now_us: int | None = None) -> Any:  # noqa: ANN401 - what Lua returns
        if now_us is None and self._clock is not None:
            now_us = self._clock()
        try:
            with answered():
                return await self._scripts[name](keys=call.keys, args=[call.argument(now_us)])
        except ResponseError as failure:
            if is_wrong_type(failure):
                raise wrong_type({key: await self._client.type(key) for key in call.keys}) from failure
            raise refusal(failure) from failure

    async def _wait_for_turn(self, request: Request, token: str, ends: float | None) -> Turn:
        step, arrived = "join", None
        try:
            while True:
                await self._bells.join(token)
                turn = await self._turns.ask(WaitingRequest(request, token, step, arrived))
                if turn.denied is None or step == "leave":
                    return turn
                arrived = turn.arrived
                left_s = turn.wait_s if ends is None else min(turn.wait_s, ends - time.monotonic())
                await self._bells.wait(token, left_s)
                step = "leave" if ends is not None and time.monotonic() >= ends else "join"
        except BaseException:  # cancelled: nobody shall wait for this one; if that cannot be said, it lapses
            with suppress(DispatcherError):
                await asyncio.shield(self._turns.ask(WaitingRequest(request, token, "quit", arrived)))
            raise


class _Coalescer(Generic[Question, Answer]):
    """Collects what is asked while an answer is on the way, and asks it together."""

    def __init__(
        self,
        ask: Callable[[Sequence[Question]], Awaitable[list[Answer]]],
        terms: Callable[[Question], tuple[str | None, tuple[Demand, ...]]],
    ) -> None:
        """``terms`` says what a question is about: those of two versions, or of two lists of limits, go apart."""
        self._ask = ask
        self._terms = terms
        self._batches: deque[_Batch[Question, Answer]] = deque()
        self._flying: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer to one question."""
        version, demands = self._terms(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self._batches or not self._batches[-1].takes(question, version, demands, answer):
            self._batches.append(_Batch(version))
            self._batches[-1].takes(question, version, demands, answer)
        if self._flying is None:
            self._flying = asyncio.create_task(self._fly())
        return await answer

    async def _fly(self) -> None:
        try:
            while self._batches:
                batch = self._batches.popleft()
                await batch.send(self._ask)
        finally:
            self._flying = None


class _Batch(Generic[Question, Answer]):
    """Questions that may go in one call."""

    def __init__(self, version: str | None) -> None:
        self._version = version
        self._scopes: dict[str, Scope] = {}
        self._questions: list[Question] = []
        self._answers: list[asyncio.Future[Answer]] = []

    def takes(
        self, question: Question, version: str | None, demands: tuple[Demand, ...], answer: asyncio.Future[Answer]
    ) -> bool:
        """Take the question along, if it may go with the others."""
        if len(self._questions) >= BATCH or version != self._version:
            return False
        scopes = all_scopes(demands)
        known = self._scopes
        for scope in scopes:
            other = known.get(scope.name, scope)
            if other is not scope and other != scope:
                return False
        for scope in scopes:
            known[scope.name] = scope
        self._questions.append(question)
        self._answers.append(answer)
        return True

    async def send(self, ask: Callable[[Sequence[Question]], Awaitable[list[Answer]]]) -> None:
        """Ask, and hand the answers out; a failure goes to every one who asked."""
        try:
            answers = await ask(self._questions)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for it have to learn of it
            for waiting in self._answers:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for waiting, answer in zip(self._answers, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
