"""Times in which the stand-in is down, by its clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Outage:
    """Down from one instant to another, both in seconds after the stand-in's start.

    ``refuses``: nobody gets a connection, and those that are open end; else every call is answered with a page and
    status 503. Raises ``ValueError`` for a span that is none.
    """

    begins_s: float
    ends_s: float
    refuses: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.begins_s < self.ends_s:
            raise ValueError(f"the outage is from {self.begins_s:g} to {self.ends_s:g}, expected a later end")

    def covers(self, after_s: float) -> bool:
        """Whether it lasts at this instant, in seconds after the start."""
        return self.begins_s <= after_s < self.ends_s


class Watch:
    """Starts and ends outages in time; looks at a clock that a test may move, and so again and again."""

    def __init__(
        self, is_closed: Callable[[], bool], close: Callable[[], None], open_: Callable[[], None], *, was_closed: bool
    ) -> None:
        self._is_closed = is_closed
        self._was_closed = was_closed
        self._close = close
        self._open = open_
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slack-stand-in-outages", daemon=True)

    def start(self) -> None:
        """Watch from now on, in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is closed or opened any more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            if (is_closed := self._is_closed()) != self._was_closed:
                (self._close if is_closed else self._open)()
                self._was_closed = is_closed
            self._ended.wait(_LOOK_EVERY_S)
