"""``dispatcher send`` of one event. Imports what it takes to speak to Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.app.operating import Desk, build_producer
from dispatcher.app.servers import open_server
from dispatcher.cli.context import some_settings_in_force
from dispatcher.cli.exits import DONE, QUEUE_FULL, UNREACHABLE, Ended
from dispatcher.cli.terminal import Terminal
from dispatcher.core.event import Event
from dispatcher.errors import GateUnavailable, QueueUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.connection import is_answer_missing
from dispatcher.store.intake import Enqueued, queue_is_full

if TYPE_CHECKING:
    from dispatcher.app.servers import Server
    from dispatcher.settings.plain import AnySettings


def send_one(terminal: Terminal, event: Event, *, as_json: bool) -> int:
    """Enqueue one event; returns the exit code."""
    with open_queue(terminal, quiet=as_json) as queue:
        try:
            (((event_id, result),),) = queue.producer.enqueue_chunks([event])
        except QueueUnavailable as error:
            if not (isinstance(error.__cause__, GateUnavailable) and is_answer_missing(error.__cause__)):
                raise
            again = "may be posted twice, since it has no --id" if event.id is None else "is not posted twice"
            said = f"{error}; whether the event is on the queue is not known: sent again, it {again}"
            raise Ended(UNREACHABLE, said) from error
        if result is Enqueued.DONE:
            queue.warn_unless_served()
    match result:
        case Enqueued.FULL:
            raise Ended(QUEUE_FULL, queue.full)
        case Enqueued.DUPLICATE:
            terminal.say(f"id {event_id!r} is present or was settled not long ago: a duplicate, not enqueued again")
    if as_json:
        terminal.print_json(counts(enqueued=int(result), duplicate=int(not result)))
    else:
        terminal.print(event_id)
    return DONE


class Queue(NamedTuple):
    """Where events go, what is said when it is full, and what says that nobody takes from it, where that is so."""

    producer: Producer
    full: str
    warn_unless_served: Callable[[], None]


def counts(*, enqueued: int = 0, duplicate: int = 0, invalid: int = 0) -> dict[str, int]:
    """What ``--json`` prints."""
    return {"enqueued": enqueued, "duplicate": duplicate, "invalid": invalid}


@contextmanager
def open_queue(terminal: Terminal, *, quiet: bool) -> Iterator[Queue]:
    """The queue of the settings, which unless ``quiet`` is named, and told of where nobody serves it."""
    settings = some_settings_in_force(terminal)
    with open_server(settings, start=False) as server:
        if not quiet:
            terminal.say(f"queue {settings.queue} on {server.shown}")
        yield Queue(
            build_producer(settings, server),
            queue_is_full(settings.max_waiting),
            lambda: None if quiet else _warn_unless_served(terminal, settings, server),
        )


def _warn_unless_served(terminal: Terminal, settings: AnySettings, server: Server) -> None:
    if not Desk(settings, server).is_served():
        terminal.warn(f"no worker serves the queue {settings.queue} now: its events wait until one starts")
