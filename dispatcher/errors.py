"""Every error the dispatcher raises; the class says what to do next.

    DispatcherError
      ConfigError          mend the configuration: said at start, before anything runs
      RateLimited          the limiter library's guard: come back after ``retry_after``
      GateUnavailable      Redis did not answer: ask again later, with the same id
      GateRefused          Redis refused the gate: asking again does not help
      StaleLimits          the limits have changed: ask by those in force
      SendStopped          base of what ends ``send`` and ``send_many``; tells how far they got
        InvalidEvent         the producer's fault: mend the event
          EventTooLarge        of more bytes than one may have
        QueueUnavailable     Redis did not answer a producer: try again later
        QueueFull            too many events are held: slow down
        DuplicateEvent       asked for by ``on_duplicate="raise"``: ids that are already present

What a post to Slack came to is a value (``dispatcher.core.posts.PostResult``), not an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DispatcherError(Exception):
    """Base of all; catching it catches nothing of other libraries."""


class ConfigError(DispatcherError):
    """The configuration cannot work; ``problems`` holds one full sentence for each fault found.

    ``warnings`` are sentences about what is no fault and may be part of the reason, such as a misspelt name.
    """

    def __init__(self, *problems: str, warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join((*problems, *warnings)))
        self.problems = problems
        self.warnings = tuple(warnings)


class RateLimited(DispatcherError):
    """A limit of our own refused; never used for another service's 429.

    ``retry_after`` is in seconds, exact to the microsecond.
    """

    def __init__(self, scope: str, limit: str, retry_after: float) -> None:
        super().__init__(scope, limit, retry_after)  # with these it is made again in another process
        self.scope = scope
        self.limit = limit
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.scope} has used its {self.limit}; there is room in {self.retry_after:.6f} s"


class GateUnavailable(DispatcherError):
    """Redis did not answer, is full, or is a read-only replica; whether the call changed anything is unknown.

    A worker's events stay leased, and are taken again.
    """


class GateRefused(DispatcherError):
    """Redis answered the gate with an error that no repetition mends, such as a key of another type."""


class StaleLimits(DispatcherError):
    """A call named other limits than those in force; nothing was decided."""

    def __init__(self, asked: str, in_force: str) -> None:
        super().__init__(asked, in_force)
        self.asked = asked
        self.in_force = in_force

    def __str__(self) -> str:
        return f"the call names version {self.asked} of the limits, but version {self.in_force} is in force"


class SendStopped(DispatcherError):
    """What ends ``send`` and ``send_many``; after ``send_many`` it tells how to go on.

    ``ids`` are the ids of the events before, in order: on the queue, or duplicates. ``rest`` are the events, as they
    were given, that were taken out of the iterable and are not known to be on the queue, in order: at most one chunk.
    So ``send_many(chain(error.rest, source))`` goes on where an iterator ``source`` stopped, and so does
    ``send_many(events[len(error.ids):])`` with a list.
    """

    ids: Sequence[str] = ()
    rest: Sequence[Any] = ()


class InvalidEvent(SendStopped):
    """An event that can never be dispatched; the message names the key, its value and what was expected.

    Of ``send_many`` it is the last of ``rest``; what stands before it there is valid, and not enqueued. ``pointer``
    is the place of the fault in the event as a JSON pointer (RFC 6901): ``/labels``, or empty for the event as a whole.
    """

    def __init__(self, *words: str, pointer: str = "") -> None:
        super().__init__(*words)
        self.pointer = pointer


class EventTooLarge(InvalidEvent):
    """An event of more bytes than one may have."""


class QueueUnavailable(SendStopped):
    """Redis did not answer the producer. Nobody knows whether the event arrived.

    If you chose an id, send the event again: if it has arrived, the second one is a duplicate. Of ``send_many`` all of
    ``rest`` arrived or nothing of it.
    """


class QueueFull(SendStopped):
    """``DISPATCHER_MAX_WAITING`` events are held, on the queue, in flight or parked; this one was not enqueued.

    Of ``send_many`` nothing that follows it was enqueued either.
    """


class DuplicateEvent(SendStopped):
    """The id is already present or remembered; it was not enqueued again.

    ``send_many`` raises it at its end: all other events are on the queue, and ``duplicates`` are the ids that were not
    enqueued again.
    """

    duplicates: Sequence[str] = ()
