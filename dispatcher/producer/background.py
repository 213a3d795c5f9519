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

from dispatcher.core.event import in_words, new_event_id
from dispatcher.errors import ConfigError, InvalidEvent, QueueFull, QueueUnavailable

Fields: TypeAlias = Mapping[str, Any]

MOST_WAITING: Final = 1_000
"""Events that wait in the buffer; beyond that, new ones are left out and counted."""

EVERY_S: Final = 0.2
"""How long an event waits for others at most, before they are handed over together."""

BATCH: Final = 200
"""So many are handed over at once, without a wait."""

MOST_REASONS: Final = 10
"""So many reasons why events are invalid are said."""

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
    is left out and counted; once the others can be handed over, ``told`` makes one event of these two counts. Why
    events are invalid is said on stderr: each reason once, ``MOST_REASONS`` in all. Each event has an id, so one that
    is handed over twice arrives once. A forked child begins with an empty buffer: what waits is the parent's to send.
    """

    def __init__(
        self,
        connect: Callable[[], Sender],
        told: Callable[[int, int], Fields],
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
        self._lock = threading.RLock()  # taken in one step: a signal handler may raise within that of a Condition
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Fields] = deque()
        self._in_hand = 0
        self._too_many = 0
        self._invalid = 0
        self._hurries = False
        self._waited_in_vain = False
        self._ends = False
        self._thread: threading.Thread | None = None
        self._producer = None
        self._complained_of = ""
        self._reasons: set[str] = set()

    def offer(self, event: Fields) -> None:
        """Have the event handed over. Never waits and never raises."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                self._too_many += 1
                return
            id_ = event.get("id")
            self._waiting.append({**event, "id": new_event_id() if id_ is None else id_})
            if self._thread is None:
                self._begin_thread()
            if len(self._waiting) in {1, BATCH}:
                self._changed.notify_all()

    def leave_out(self, error: Exception) -> None:
        """Count an event of which nothing can be made, and say why. Never waits for the queue and never raises."""
        with self._lock:
            self._invalid += 1
        self._say_invalid(error, {})

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
        with self._lock:
            within_s = 0.0 if self._waited_in_vain else within_s
            self._hurries = True
            self._changed.notify_all()
            is_empty = self._changed.wait_for(lambda: not self._waiting and not self._in_hand, within_s)
            self._hurries, self._waited_in_vain = False, not is_empty
            return is_empty

    def close(self, within_s: float = EXIT_S) -> None:
        """Flush, and end the thread; an event that is offered later begins a new one."""
        self.flush(within_s)
        with self._lock:
            self._ends, self._thread = True, None
            self._changed.notify_all()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._waiting or self._has_ended(me))
                self._changed.wait_for(lambda: len(self._waiting) >= BATCH or self._is_urgent(me), self._every_s)
                if self._has_ended(me) and not self._waiting:
                    return
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._in_hand = len(batch)
            self._hand_over(batch, me)
            with self._lock:
                self._in_hand = 0
                self._changed.notify_all()

    def _has_ended(self, me: threading.Thread) -> bool:
        return self._ends and self._thread is not me

    def _is_urgent(self, me: threading.Thread) -> bool:
        return self._hurries or self._has_ended(me)

    def _hand_over(self, batch: list[Fields], me: threading.Thread) -> None:
        """Try until the whole batch is on the queue; without end, but for that of the process or of ``close``."""
        pause_s = _RETRY_FROM_S
        too_many, not_valid, told, is_alone = 0, 0, list[Fields](), False
        while True:
            if (self._too_many or self._invalid) and not (told or is_alone):
                too_many, not_valid = self._too_many, self._invalid
                # The same event each time: an answer may have been lost.
                told = [{"id": new_event_id(), **self._told(too_many, not_valid)}]
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
                    self._say_invalid(error, invalid)
                    with self._lock:
                        if invalid in told:  # if no event can be made of the counts, nobody is told
                            self._too_many = self._invalid = 0
                        else:
                            self._invalid += 1
                too_many, not_valid, told = 0, 0, []  # it was not handed over, and now the counts are others
            else:
                with self._lock:
                    self._too_many -= too_many
                    self._invalid -= not_valid
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
        with self._lock:
            self._waiting.extendleft(reversed(batch[1:]))
            self._in_hand = 1
        return batch[:1]

    def _complain(self, error: Exception) -> None:
        """Say once why events wait."""
        if (said := str(error)) != self._complained_of:
            self._complained_of = said
            _say(f"events wait, they cannot be handed over: {said}")

    def _say_invalid(self, error: Exception, event: Fields) -> None:
        """Say a reason once: what is wrong with an event, and with which one."""
        cause = error.__cause__ if isinstance(error.__cause__, InvalidEvent) else error  # without a position in a batch
        said = str(cause) if isinstance(cause, InvalidEvent) else _named(cause)
        if said not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(said)
            text = event.get("text")
            which = f" with the text {in_words(text)}" if isinstance(text, str) else ""
            _say(f"an event{which} is left out, it is not valid: {said}")

    def _wait(self, pause_s: float, me: threading.Thread) -> float:
        with self._lock:
            self._changed.wait_for(lambda: self._has_ended(me), pause_s)
        return min(2 * pause_s, _RETRY_TO_S)


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its words cannot be had
        return type(error).__name__


def _say(words: str) -> None:
    """Say it on stderr: the log may go nowhere else."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # it is closed
            sys.stderr.write(f"dispatcher: {words}\n")


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
