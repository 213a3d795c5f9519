"""Blocking work in a few threads, each within the deadline of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self, TypeVar

from dispatcher.errors import GateUnavailable
from dispatcher.server.connection import translate_refusals
from dispatcher.web.problems import unavailable_by

MOST: Final = 4

T = TypeVar("T")


class Threads:
    """Where blocking calls run; a context manager, whose end waits for what runs.

    A thread that a request no longer waits for goes on to its end. Work that has no thread yet ends with its request.
    """

    def __init__(self) -> None:
        self._operators = ThreadPoolExecutor(MOST, thread_name_prefix="operator")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._operators, self._reader):
            pool.shutdown(cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns; raises as it does, ``Problem`` if Redis is away, ``ConfigError`` if it refuses."""

        def translated() -> T:
            with translate_refusals():
                return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._operators, translated)
        except GateUnavailable as error:
            raise unavailable_by(error) from error

    async def read(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which reads limits and needs no Redis; raises as it does.

        A thread of its own does one after another, so limits take nothing from ``run``.
        """
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)
