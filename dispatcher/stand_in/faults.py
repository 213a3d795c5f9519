"""What goes wrong on purpose: for each of the next calls, whether it is carried out and what comes back.

A fault is two independent choices. ``landed(Reset())`` accepts the message and then resets the connection;
``not_landed(Reset())`` resets it before. Calls without a fault in the queue are answered normally.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

_WORD_BEGINS: Final = re.compile("(?<=[a-z])(?=[A-Z])")

POST: Final = "post"
"""The queue of all posts, by the Web API and by webhooks; other calls have a queue under their method's name."""


class Hold:
    """Lets a test keep an answer back and see that the call has arrived, without sleeping."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._released = threading.Event()

    def wait_for_arrival(self, timeout_s: float = 20.0) -> None:
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
class TooManyRequests:
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


OddAnswer: TypeAlias = SlackError | Page | TooManyRequests | Text | Held | Slow
BrokenAnswer: TypeAlias = CutBody | Reset | Close | Hang | Drip
FaultReply: TypeAlias = OddAnswer | BrokenAnswer


@dataclass(frozen=True, slots=True)
class Fault:
    """One call's fate: ``landed`` says whether it is carried out, ``reply`` what the caller gets to see."""

    landed: bool
    reply: FaultReply

    def __str__(self) -> str:
        named = {SlackError: "code", Page: "status"}.get(type(self.reply))
        what = getattr(self.reply, named) if named else _WORD_BEGINS.sub(" ", type(self.reply).__name__).lower()
        return f"{what}, {'landed' if self.landed else 'not landed'}"


def landed(reply: FaultReply) -> Fault:
    """The call is carried out, and answered like this."""
    return Fault(landed=True, reply=reply)


def not_landed(reply: FaultReply) -> Fault:
    """The call is not carried out, and answered like this; an answer that arrives whole says that it failed."""
    return Fault(landed=False, reply=reply)


class Dice(Protocol):
    """Decides about calls that no fault was queued for; see ``chance.Chance``."""

    def draw(self, kind: str) -> Fault | None:
        """The fate of the next call of a kind; ``None``: it goes well."""

    def reset(self) -> None:
        """Begin anew."""


class Faults:
    """The faults to come, one queue per kind of call; may be filled while calls arrive.

    A call that finds its queue empty is left to ``dice``, where there are any. ``counts`` says how often each
    was played, by its words: ``reset, landed``.
    """

    def __init__(self, dice: Dice | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._dice = dice
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Fault]] = defaultdict(deque)

    @property
    def played(self) -> int:
        """How many were played."""
        with self._lock:
            return self.counts.total()

    def add(self, *faults: Fault, kind: str = POST) -> None:
        """Queue faults for the next calls of a kind: ``POST``, or a method such as ``auth.test``."""
        with self._lock:
            self._queues[kind].extend(faults)

    def take(self, kind: str) -> Fault | None:
        """The fault for the next call of this kind, if there is one."""
        with self._lock:
            queue = self._queues[kind]
            fault = queue.popleft() if queue else self._dice.draw(kind) if self._dice else None
            if fault is not None:
                self.counts[str(fault)] += 1
            return fault

    def note(self, fault: Fault) -> None:
        """Count one that was played for another reason."""
        with self._lock:
            self.counts[str(fault)] += 1

    def clear(self) -> None:
        """Forget those to come and the count of those that were; dice begin anew."""
        with self._lock:
            self._queues.clear()
            self.counts.clear()
            if self._dice:
                self._dice.reset()
