"""A stage that is not looked at after every step: for what is malformed on purpose, and for many steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from dispatcher.core.posts import Receipt
from tests.support.servers import Database
from tests.support.stage import Stage, Worker, policy_from

FREE: Final = 'channels: {default: {pace: 1/1s}, "#free": {pace: none}}\n'
"""The channel ``#free`` has no pace; all others take one post each second."""


class QuietStage(Stage):
    """A stage whose every step is taken for granted."""

    def __init__(self, redis: Database, text: str) -> None:
        super().__init__(redis, policy_from(text))

    def check(self, *, takes_tokens: bool = False) -> None:
        """Look at nothing."""

    def watching_the_bell(  # type: ignore[override]  # whoever calls it only enters it
        self, also: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[None]:
        """Watch nothing."""
        del also
        return nullcontext()

    def worker(self, owner: str = "ann", lease_us: int = 30_000_000) -> Worker:
        """A worker whose every post gets a timestamp of its own."""
        worker = super().worker(owner, lease_us)
        numbers = iter(range(1, 1_000_000))
        worker.desk.reply = lambda message: Receipt(message.channel, f"{next(numbers)}.{owner}")
        return worker
