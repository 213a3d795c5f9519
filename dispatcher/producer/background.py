"""Events that are offered by whoever must not wait: a bounded buffer, and one thread that hands them over."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakSet

from dispatcher.core.event import new_event_id
from dispatcher.errors import ConfigError, InvalidEvent, QueueFull, QueueUnavailable

Fields: TypeAlias = Mapping[str, Any]

MOST_WAITING: Final = 1_000
"""Events that wait in the buffer; beyond that, new ones are left out and counted."""

EVERY_S: Final = 0.2
"""How long an event waits for others at most, before they are handed over together."""

BATCH: Final = 200
"""So many are handed over at once, without a wait."""

EXIT_S: Final = 2.0
"""How long ``flush``, and the end of the interpreter, wait for what is still in the buffer."""

_RETRY_FROM_S: Final = 0.2
_RETRY_TO_S: Final = 5.0


class Sender(Protocol):
    """What hands the events over: a ``Producer``."""

    def send_many(self, events: list[Fields]) -> list[str]:
        """Hand over several; see ``Producer.send_many``.

        Raises as that does. Any other exception, but ``OSError``, is taken for the fault of an event.
        """
        ...


class BackgroundSender:
    """Takes events without a wait, and hands them over from a daemon thread of its own.

    ``connect`` makes the producer when the thread first needs it. While that fails, or the queue is away or full,
    events wait: the thread says why on stderr, once, and tries again. An event that finds no room, or that is invalid,
    is left out and counted; once the others can be handed over, ``told`` makes one event of the count. Each event has
    an id, so one that is handed over twice arrives once. A forked child begins with an empty buffer: what waits is the
    parent's to send.
    """

    def __init__(
        self,
        connect: Callable[[], Sender],
        told: Callable[[int], Fields],
        *,
        most_waiting: int = MOST_WAITING,
        every_s: float = EVERY_S,
    ) -> None:
        self._connect = connect
        self._told = told
        self._most_waiting = most_waiting
        self._every_s = every_s
        self._producer: Sender | None = None
        self.begin_anew()
        _senders.add(self)

    def begin_anew(self) -> None:
        """Forget the buffer, its lock and its thread, as a forked child must."""
        self._changed = threading.Condition()
        self._waiting: deque[Fields] = deque()
        self._in_hand = 0
        self._left_out = 0
        self._hurries = False
        self._waited_in_vain = False
        self._ends = False
        self._thread: threading.Thread | None = None
        self._producer = None
        self._complained_of = ""

    def offer(self, event: Fields) -> None:
        """Have the event handed over. Never waits and never raises."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                self._left_out += 1
                return
            id_ = event.get("id")
            self._waiting.append({**event, "id": new_event_id() if id_ is None else id_})
            if self._thread is None:
                self._begin_thread()
            if len(self._waiting) in {1, BATCH}:
                self._changed.notify_all()

    def _begin_thread(self) -> None:
        _flush_at_the_end_of_a_fork()
        thread = threading.Thread(target=self._run, name="dispatcher-sender", daemon=True)
        with suppress(RuntimeError):  # the interpreter ends, or there is no room for a thread: the next event tries
            thread.start()
            self._thread = thread

    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that hands events over."""
        return threading.current_thread() is self._thread

    def flush(self, within_s: float = EXIT_S) -> bool:
        """Wait until nothing is in the buffer, no longer than ``within_s``; returns whether nothing is.

        After a wait in vain it does not wait again before something was handed over: at its end a program flushes more
        than once.
        """
        if self.is_own_thread():
            return False
        with self._changed:
            within_s = 0.0 if self._waited_in_vain else within_s
            self._hurries = True
            self._changed.notify_all()
            is_empty = self._changed.wait_for(lambda: not self._waiting and not self._in_hand, within_s)
            self._hurries, self._waited_in_vain = False, not is_empty
            return is_empty

    def close(self, within_s: float = EXIT_S) -> None:
        """Flush, and end the thread; an event that is offered later begins a new one."""
        self.flush(within_s)
        with self._changed:
            self._ends, self._thread = True, None
            self._changed.notify_all()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._has_ended(me))
                self._changed.wait_for(lambda: len(self._waiting) >= BATCH or self._is_urgent(me), self._every_s)
                if self._has_ended(me) and not self._waiting:
                    return
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._in_hand = len(batch)
            self._hand_over(batch, me)
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()

    def _has_ended(self, me: threading.Thread) -> bool:
        return self._ends and self._thread is not me

    def _is_urgent(self, me: threading.Thread) -> bool:
        return self._hurries or self._has_ended(me)

    def _hand_over(self, batch: list[Fields], me: threading.Thread) -> None:
        """Try until the whole batch is on the queue; without end, but for that of the process or of ``close``."""
        pause_s = _RETRY_FROM_S
        left_out, told, is_alone = 0, list[Fields](), False
        while True:
            if self._left_out and not (told or is_alone):  # the same event each time: an answer may have been lost
                left_out = self._left_out
                told = [{"id": new_event_id(), **self._told(left_out)}]
            try:
                self._connected().send_many([*batch, *told])
            except (QueueUnavailable, QueueFull, ConfigError, OSError) as error:
                self._complain(error)
                pause_s = self._wait(pause_s, me)
                if self._has_ended(me):
                    return
            except Exception as error:  # noqa: BLE001 - it is the fault of an event, and none may hold up the others
                if (invalid := _invalid_in([*batch, *told], error)) is None:
                    batch, is_alone = self._first_of(batch), True
                else:
                    batch = [event for event in batch if event is not invalid]
                    with self._changed:  # if no event can be made of the count, nobody is told
                        self._left_out = 0 if invalid in told else self._left_out + 1
                left_out, told = 0, []  # it was not handed over, and now the count is another
            else:
                with self._changed:
                    self._left_out -= left_out
                    self._waited_in_vain = False
                self._complained_of = ""
                return

    def _connected(self) -> Sender:
        if self._producer is None:
            try:
                self._producer = self._connect()
            except Exception as error:
                raise QueueUnavailable(str(error)) from error
        return self._producer

    def _first_of(self, batch: list[Fields]) -> list[Fields]:
        """The first event alone; the others are the next to be handed over."""
        with self._changed:
            self._waiting.extendleft(reversed(batch[1:]))
            self._in_hand = 1
        return batch[:1]

    def _complain(self, error: Exception) -> None:
        """Say once on stderr why events wait: the log may go nowhere else."""
        if (said := str(error)) != self._complained_of and sys.stderr is not None:
            self._complained_of = said
            with suppress(OSError, ValueError):  # it is closed
                sys.stderr.write(f"dispatcher: events wait, they cannot be handed over: {said}\n")

    def _wait(self, pause_s: float, me: threading.Thread) -> float:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended(me), pause_s)
        return min(2 * pause_s, _RETRY_TO_S)


def _invalid_in(events: list[Fields], error: Exception) -> Fields | None:
    """The event for which the error came; None where that may be any of them."""
    if isinstance(error, InvalidEvent) and error.rest:
        return next((event for event in events if event is error.rest[-1]), None)
    return events[0] if len(events) == 1 else None


_senders: WeakSet[BackgroundSender] = WeakSet()


def _flush_all() -> None:
    end = time.monotonic() + EXIT_S
    for sender in list(_senders):
        sender.flush(max(0.0, end - time.monotonic()))


_flushed_by_finalizer: int | None = None
"""The process that has one."""


def _flush_at_the_end_of_a_fork() -> None:
    """Flush where ``atexit`` does not: a child of ``multiprocessing`` that was forked ends without it."""
    global _flushed_by_finalizer  # noqa: PLW0603 - once in each process
    if "multiprocessing.util" not in sys.modules or _flushed_by_finalizer == os.getpid():
        return
    from multiprocessing.process import parent_process
    from multiprocessing.util import Finalize

    if parent_process() is not None:
        Finalize(None, _flush_all, exitpriority=0)
        _flushed_by_finalizer = os.getpid()


def _begin_all_anew() -> None:
    for sender in list(_senders):
        sender.begin_anew()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_begin_all_anew)
