"""Death at a chosen step: wraps the steps of the real worker so that its process gets SIGKILL there.

The product knows nothing of it: what is wrapped are methods that ``dispatcher`` promises, in a process of the test's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Final

from redis.connection import AbstractConnection

from dispatcher.core.states import Leased, Waiting
from dispatcher.slack.sink import SlackSink
from dispatcher.store.admission import Admission
from dispatcher.store.leases import Outbox

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The process dies ``before``, in the ``middle`` of or ``after`` the ``call``-th call of a step of ``STEPS``.

    In the middle means that the command has been sent and nobody hears the answer. Of steps that are known by what
    they brought, only calls that brought it count, and they are died after. ``number`` is the signal that the process
    gets; after any but SIGKILL it goes on, and is left alone from then on.
    """

    step: str
    moment: str
    call: int
    number: int = signal.SIGKILL

    def as_json(self) -> dict[str, Any]:
        """What ``KillPoint(**...)`` reads."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """A method, and the answers of it that count; with ``at_stop`` the process is told to stop at a take first."""

    owner: type
    method: str
    counts: Callable[[Any], bool] | None = None
    at_stop: bool = False


def _took_over(taken: Any) -> bool:  # noqa: ANN401 - what take answers
    return any(isinstance(each, Leased) and each.deaths for each in taken.batch)


def _woke(taken: Any) -> bool:  # noqa: ANN401 - what take answers
    return any(isinstance(each, Leased) and each.held and not each.deaths for each in taken.batch)


def _advanced(taken: Any) -> bool:  # noqa: ANN401 - what take answers
    return any(isinstance(each, Leased) and each.line for each in taken.batch)


def _parked(answers: Any) -> bool:  # noqa: ANN401 - what start answers
    return any(isinstance(each, Waiting) for each in answers)


STEPS: Final = {
    "take": Step(Outbox, "take", lambda taken: bool(taken.batch)),
    "ask for more": Step(Outbox, "take"),
    "prefetch": Step(Outbox, "prefetch"),
    "gate": Step(Admission, "admit"),
    "line up": Step(Outbox, "line_up"),
    "advance": Step(Outbox, "take", _advanced),
    "start": Step(Outbox, "start"),
    "settle": Step(Outbox, "settle"),
    "renew": Step(Outbox, "renew"),
    "take over": Step(Outbox, "take", _took_over),
    "wake": Step(Outbox, "take", _woke),
    "park": Step(Outbox, "start", _parked),
    "post": Step(SlackSink, "post"),
    "edit": Step(SlackSink, "update"),
    "recover": Step(Outbox, "recover"),
    "scan": Step(SlackSink, "scan"),
    "give back": Step(Outbox, "give_back", at_stop=True),
    "keep only": Step(Outbox, "keep_only", at_stop=True),
}


def wrap(owner: type, name: str, around: Callable[[Method], Method]) -> None:
    """Put a method in the place of another of a class, for this process."""
    setattr(owner, name, around(getattr(owner, name)))


def die_at(kill_point: KillPoint) -> None:
    """From now on this process dies as told."""
    step = STEPS[kill_point.step]
    if step.at_stop:
        takes = count(1)
        wrap(Outbox, "take", lambda take: _stopping(take, lambda: next(takes) == kill_point.call))
        kill_point = replace(kill_point, call=1)
    wrap(step.owner, step.method, lambda method: _killing(method, kill_point, step.counts))


def _killing(method: Method, kill_point: KillPoint, counts: Callable[[Any], bool] | None) -> Method:
    calls = count(1)

    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if counts is not None:
            answer = method(*arguments, **named)
            if counts(answer) and next(calls) == kill_point.call:
                _kill_now(kill_point)
            return answer
        is_last = next(calls) == kill_point.call
        if is_last and kill_point.moment == "before":
            _kill_now(kill_point)
        if is_last and kill_point.moment == "middle":
            _kill_at_reply(kill_point)
        answer = method(*arguments, **named)
        if is_last and kill_point.moment == "after":
            _kill_now(kill_point)
        return answer

    return call


def _kill_now(kill_point: KillPoint) -> None:
    os.kill(os.getpid(), kill_point.number)


def _kill_at_reply(kill_point: KillPoint) -> None:
    """The next answer that this thread would read from a server finds nobody."""
    thread = threading.get_ident()
    replies = count(1)

    def deaf(read: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - redis-py's
            if threading.get_ident() == thread and next(replies) == 1:
                _kill_now(kill_point)
            return read(*arguments, **named)

        return call

    wrap(AbstractConnection, "read_response", deaf)


def _stopping(take: Method, is_time: Callable[[], bool]) -> Method:
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - what take takes
        taken = take(*arguments, **named)
        if taken.batch and is_time():
            os.kill(os.getpid(), signal.SIGTERM)
        return taken

    return call
