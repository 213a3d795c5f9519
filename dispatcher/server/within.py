"""Bounds what a task waits for."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Final

_AGAIN_S: Final = 0.05


class Within:
    """As ``asyncio.timeout``, but the task is cancelled again every ``_AGAIN_S`` until it leaves.

    ``asyncio.wait_for`` of Python 3.11, in redis-py, may swallow a cancellation. Two at one turn of the loop are one.
    If the loop itself stood still at the end, the task gets ``_AGAIN_S`` to read the answer that has come meanwhile.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._times = 0

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("this has to be called in a task")
        self._task, self._before = task, task.cancelling()
        loop = asyncio.get_running_loop()
        self._ends_s = loop.time() + self._span_s
        self._timer = loop.call_later(self._span_s, self._cancel)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for _ in range(self._times):
            self._task.uncancel()
        is_ours = self._times > 0 and self._task.cancelling() <= self._before
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _cancel(self) -> None:
        loop = asyncio.get_running_loop()
        has_stood_still = loop.time() - self._ends_s > _AGAIN_S
        self._ends_s = math.inf
        if not has_stood_still:
            self._times += 1
            self._task.cancel()
        self._timer = loop.call_later(_AGAIN_S, self._cancel)
