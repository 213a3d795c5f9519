"""A thread that receives and reads what was asked for ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Reader(Generic[T]):
    """A thread that receives and reads a batch, while the one that asked for it waits for the server anyway."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._brought: SimpleQueue[T | BaseException] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="reader").start()

    def ask(self, receive: Callable[[], T]) -> None:
        """Let it receive a batch; to be followed by ``result``."""
        self._asked.put(receive)

    def result(self) -> T:
        """The batch, or what receiving it raised."""
        brought = self._brought.get()
        if isinstance(brought, BaseException):
            raise brought
        return brought

    def has_result(self) -> bool:
        """Whether ``result`` would not wait."""
        return not self._brought.empty()

    def _run(self) -> None:
        while True:
            try:
                self._brought.put(self._asked.get()())
            except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
                self._brought.put(error)
