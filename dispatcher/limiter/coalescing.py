"""Questions that tasks ask at the same time go to the server together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from dispatcher.core.limits import Demand, Scope, all_scopes
from dispatcher.errors import GateRefused
from dispatcher.limiter.wire import BATCH

Question = TypeVar("Question")
Answer = TypeVar("Answer")

Ask: TypeAlias = Callable[[Sequence[Question]], Awaitable[list[Answer]]]

CallKind: TypeAlias = tuple[str | None, bool]
"""Only questions of one kind share a call. It says the version, and whether the ids are new. A question with a cost has
its slot in place of the version, so that it goes alone."""


class Coalescer(Generic[Question, Answer]):
    """Collects what is asked while an answer is on the way, and asks it together."""

    def __init__(self, ask: Ask[Question, Answer]) -> None:
        self._ask = ask
        self._batches: deque[_Batch[Question, Answer]] = deque()
        self._flying: asyncio.Task[None] | None = None

    def ask(self, question: Question, kind: CallKind, demands: tuple[Demand, ...]) -> asyncio.Future[Answer]:
        """The answer to one question about ``demands``, to be awaited; two lists of limits of one scope go apart."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self._batches or not self._batches[-1].takes(question, kind, demands, answer):
            self._batches.append(_Batch(kind))
            self._batches[-1].takes(question, kind, demands, answer)
        if self._flying is None:
            self._begin()
        return answer

    def _begin(self) -> None:
        self._flying = asyncio.create_task(self._fly())
        self._flying.add_done_callback(self._landed)

    async def _fly(self) -> None:
        while self._batches:
            batch = self._batches.popleft()
            await batch.send(self._ask)
            await asyncio.sleep(0)  # who was answered may ask again: that goes out from here, without another task

    def _landed(self, _: asyncio.Task[None]) -> None:
        """Go on in a new task if questions are left.

        An event loop that ends cancels this task as well, and those who wait still have to say that they leave.
        """
        self._flying = None
        if self._batches:
            self._begin()


class _Batch(Generic[Question, Answer]):
    """Questions that may go in one call."""

    def __init__(self, kind: CallKind) -> None:
        self._kind = kind
        self._scopes: dict[str, Scope] = {}
        self._demands: dict[int, tuple[Demand, ...]] = {}
        self._questions: list[Question] = []
        self._answers: list[asyncio.Future[Answer]] = []

    def takes(
        self, question: Question, kind: CallKind, demands: tuple[Demand, ...], answer: asyncio.Future[Answer]
    ) -> bool:
        """Take the question along, if it may go with the others."""
        if len(self._questions) >= BATCH or kind != self._kind:
            return False
        if id(demands) not in self._demands:
            scopes = all_scopes(demands)
            known = self._scopes
            for scope in scopes:
                other = known.get(scope.name, scope)
                if other is not scope and other != scope:
                    return False
            for scope in scopes:
                known[scope.name] = scope
            self._demands[id(demands)] = demands
        self._questions.append(question)
        self._answers.append(answer)
        return True

    async def send(self, ask: Ask[Question, Answer]) -> None:
        """Ask what somebody still waits for, and hand the answers out."""
        asked = [pair for pair in zip(self._questions, self._answers, strict=True) if not pair[1].done()]
        if not asked:
            return
        try:
            await _hand_out(ask, *zip(*asked, strict=True))
        except asyncio.CancelledError:  # those who were not answered are cancelled as well
            for waiting in self._answers:
                waiting.cancel()
            raise


async def _hand_out(
    ask: Ask[Question, Answer], questions: Sequence[Question], waiting: Sequence[asyncio.Future[Answer]]
) -> None:
    """Ask, and hand the answers out. A failure goes to all who wait.

    A call that the server refuses has changed nothing. Then each question goes alone: another one may be the reason.
    """
    try:
        answers = await ask(questions)
    except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for it have to learn of it
        if isinstance(error, GateRefused) and len(questions) > 1:
            for question, one in zip(questions, waiting, strict=True):
                await _hand_out(ask, [question], [one])
            return
        for one in waiting:
            if not one.done():
                one.set_exception(error)
        return
    for one, answer in zip(waiting, answers, strict=True):
        if not one.done():
            one.set_result(answer)
