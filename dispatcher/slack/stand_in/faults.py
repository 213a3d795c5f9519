"""What goes wrong on purpose: for each of the next calls, whether it is carried out and what comes back.

A fault is two independent choices. ``landed(Reset())`` accepts the message and then resets the connection;
``not_landed(Reset())`` resets it before. Calls without a fault in the queue are answered normally.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final, TypeAlias

POST: Final = "post"
"""The queue of all posts, by the Web API and by webhooks; other calls have a queue under their method's name."""


class Hold:
    """Lets a test keep an answer back and see that the call has arrived, without sleeping."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._released = threading.Event()

    def wait_for_arrival(self, timeout_s: float = 5.0) -> None:
        """Return when a call is being held; raises ``TimeoutError`` when none comes."""
        if not self._arrived.wait(timeout_s):
            raise TimeoutError(f"no call arrived at the hold within {timeout_s:g} s")

    def release(self) -> None:
        """Let the held answer go."""
        self._released.set()

    def keep(self) -> None:
        """Called by the stand-in: wait until released."""
        self._arrived.set()
        self._released.wait()


@dataclass(frozen=True, slots=True)
class SlackError:
    """Slack's own refusal: ``{"ok": false, "error": code}``, for a webhook its status and plain text."""

    code: str


@dataclass(frozen=True, slots=True)
class Page:
    """An HTTP status with a web page, as a proxy or Slack's edge sends it."""

    status: int
    html: str = "<!DOCTYPE html><html><head><title>Server Error</title></head><body>Please try again</body></html>"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RateLimited:
    """HTTP 429 with any Retry-After, or none. The stand-in's rates know nothing of it; who ignores it is counted."""

    retry_after: str | None = "1"


@dataclass(frozen=True, slots=True)
class Text:
    """Status 200 with this instead of the answer: empty, or not JSON."""

    body: str = ""


@dataclass(frozen=True, slots=True)
class CutBody:
    """The first half of the answer's body under the length of the whole, then the end of the connection."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST) instead of an answer."""


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is closed (FIN) instead of an answer."""


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer, until the caller gives up or the stand-in stops."""


@dataclass(frozen=True, slots=True)
class Held:
    """The answer, when the hold is released."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer, after ``after_s`` seconds."""

    after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Drip:
    """The answer, ``at_once`` bytes first and then one byte every ``interval_s``."""

    interval_s: float = 0.05
    at_once: int = 0


OddAnswer: TypeAlias = SlackError | Page | RateLimited | Text | Held | Slow
BrokenAnswer: TypeAlias = CutBody | Reset | Close | Hang | Drip
FaultReply: TypeAlias = OddAnswer | BrokenAnswer


@dataclass(frozen=True, slots=True)
class Fault:
    """One call's fate: ``landed`` says whether it is carried out, ``reply`` what the caller gets to see."""

    landed: bool
    reply: FaultReply


def landed(reply: FaultReply) -> Fault:
    """The call is carried out, and answered like this."""
    return Fault(landed=True, reply=reply)


def not_landed(reply: FaultReply) -> Fault:
    """The call is not carried out, and answered like this; an answer that arrives whole says that it failed."""
    return Fault(landed=False, reply=reply)


@dataclass(slots=True)
class Faults:
    """The faults to come, one queue per kind of call; may be filled while calls arrive."""

    played: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queues: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))

    def add(self, *faults: Fault, kind: str = POST) -> None:
        """Queue faults for the next calls of a kind: ``POST``, or a method such as ``auth.test``."""
        with self._lock:
            self._queues[kind].extend(faults)

    def take(self, kind: str) -> Fault | None:
        """The next fault for a call of this kind, if there is one."""
        with self._lock:
            queue = self._queues[kind]
            if not queue:
                return None
            self.played += 1
            return queue.popleft()

    def clear(self) -> None:
        """Forget those to come and the count of those that were."""
        with self._lock:
            self._queues.clear()
            self.played = 0
