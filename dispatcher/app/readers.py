"""Opens what only looks, or does one thing for an operator or a producer. Each loads no more than it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dispatcher.app.servers import Server, keys_of, reach
from dispatcher.core.units import US, Lane
from dispatcher.errors import GateUnavailable, QueueUnavailable
from dispatcher.jsonio import answer_text
from dispatcher.server.clients import connect
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.settings.plain import AnySettings
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.core.policy import Policy
    from dispatcher.producer.blocking import Producer
    from dispatcher.server.writing import WriteRefusal
    from dispatcher.settings.environment import Settings
    from dispatcher.store.audit import Audit
    from dispatcher.store.dead_letters import DeadLetters
    from dispatcher.store.decisions import Decisions
    from dispatcher.store.explanations import Explanations
    from dispatcher.store.operator_controls import Pausing
    from dispatcher.store.parked_events import ParkedEvents
    from dispatcher.store.silences import Silencing
    from dispatcher.store.versions import Versions


def build_producer(settings: AnySettings, server: Server) -> Producer:
    """A producer; raises ``QueueUnavailable``, ``ConfigError`` when the server does not answer now."""
    from dispatcher.producer.blocking import ANSWER_TIMEOUT_S, Producer

    client = connect(server.url, timeout_s=ANSWER_TIMEOUT_S)
    try:
        reach(client, server.shown)
    except GateUnavailable as error:
        raise QueueUnavailable(str(error)) from error
    return Producer(client, namespace=settings.namespace, queue=settings.queue, max_waiting=settings.max_waiting)


def is_served(settings: AnySettings, server: Server) -> bool:
    """Whether a worker takes from the queue, one of ours or of RQ; true where the server does not let us look."""
    from redis.exceptions import RedisError

    _, queue = keys_of(settings)
    try:
        with connect(server.url) as client:
            return bool(workers_of(client, queue))
    except (GateUnavailable, RedisError):
        return True


class Readers:
    """What only looks, over one client: at the books, the use of limits, live workers, whether writes are taken."""

    def __init__(self, client: Client, settings: AnySettings) -> None:
        from dispatcher.limiter.blocking import Limiter
        from dispatcher.store.snapshot import Books

        self._client = client
        self._keys, self._queue = keys_of(settings)
        self.books = Books(client, self._keys, self._queue)
        self.limiter = Limiter(client, namespace=settings.namespace)

    def workers(self) -> Sequence[Mapping[str, str]]:
        """See ``workers_of``."""
        return workers_of(self._client, self._queue)

    def refusal(self) -> WriteRefusal | None:
        """See ``write_refusal``."""
        from dispatcher.server.writing import write_refusal

        return write_refusal(self._client, self._keys.layout)

    def versions(self) -> Versions:
        """Those of the limits."""
        from dispatcher.store.versions import Versions

        return Versions(self._client, self._keys)


def build_readers(settings: AnySettings, server: Server) -> Readers:
    """Readers of the namespace; raises ``GateUnavailable`` or ``ConfigError``, also where another version wrote it."""
    return Readers(client_of_namespace(settings, server), settings)


def open_dead_letters(settings: AnySettings, server: Server) -> DeadLetters:
    """The dead letters of the namespace; raises as ``build_readers`` does."""
    from dispatcher.store.dead_letters import DeadLetters

    return DeadLetters(client_of_namespace(settings, server), *keys_of(settings))


def open_decisions(settings: AnySettings, server: Server) -> Decisions:
    """The decision record; raises as ``build_readers`` does."""
    from dispatcher.store.decisions import Decisions

    return Decisions(client_of_namespace(settings, server), keys_of(settings)[0])


def open_explanations(settings: AnySettings, server: Server) -> Explanations:
    """What explains events of the namespace; raises as ``build_readers`` does."""
    from dispatcher.settings.content import policy_if_readable
    from dispatcher.store.explanations import Explanations

    client = client_of_namespace(settings, server)
    return Explanations(client, *keys_of(settings), read_limits=policy_if_readable)


def open_audit(settings: AnySettings, server: Server) -> Audit:
    """The trail of what operators did; raises as ``build_readers`` does."""
    from dispatcher.store.audit import Audit

    return Audit(client_of_namespace(settings, server), keys_of(settings)[0])


def open_pausing(settings: AnySettings, server: Server) -> Pausing:
    """What pauses and resumes posting by hand; raises as ``build_readers`` does."""
    from dispatcher.store.operator_controls import Pausing

    keys, _ = keys_of(settings)
    return Pausing(client_of_namespace(settings, server), keys)


def open_silencing(settings: AnySettings, server: Server) -> Silencing:
    """The silences of the namespace; raises as ``build_readers`` does."""
    from dispatcher.store.silences import Silencing

    keys, _ = keys_of(settings)
    return Silencing(client_of_namespace(settings, server), keys)


def open_parked_events(settings: Settings, server: Server, policy: Policy) -> ParkedEvents:
    """The parked events of the namespace; raises as ``build_readers`` does."""
    return parked_events(client_of_namespace(settings, server), settings, policy)


def parked_events(client: Client, settings: Settings, policy: Policy) -> ParkedEvents:
    """The parked events, as these limits see them."""
    from dispatcher.store.parked_events import ParkedEvents

    remember_us = round(settings.dedup_window.total_seconds() * US)
    policy = replace(policy, by_webhook=settings.by_webhook)
    return ParkedEvents(client, *keys_of(settings), policy, remember_us=remember_us)


def open_versions(settings: AnySettings, server: Server) -> Versions:
    """The versions of the limits of the namespace; raises as ``build_readers`` does."""
    from dispatcher.store.versions import Versions

    return Versions(client_of_namespace(settings, server), keys_of(settings)[0])


def counted_categories(settings: AnySettings, server: Server) -> set[str]:
    """The categories of which an event was counted; raises as ``build_readers`` does."""
    from dispatcher.store.snapshot import Books

    return Books(client_of_namespace(settings, server), *keys_of(settings)).categories()


def client_of_namespace(settings: AnySettings, server: Server) -> Client:
    """A client of a server that answers; raises as ``build_readers`` does."""
    client = connect(server.url)
    reach(client, server.shown)
    check_layout(client, keys_of(settings)[0])
    return client


def check_layout(client: Client, keys: Keys) -> None:
    """Return where the namespace is one of ours, or empty; raises ``ConfigError``, and ``GateUnavailable``."""
    with translate_outages():
        layout = client.get(keys.layout)
    if layout is not None and (found := answer_text(layout)) != LAYOUT_VERSION:
        from dispatcher.store.intake import wrong_layout

        raise wrong_layout(found, keys.namespace)


def workers_of(client: Client, queue: QueueKeys) -> Sequence[dict[str, str]]:
    """RQ's entries of the workers of a queue that live: name, host, pid, last heartbeat, state, and its senders."""
    with translate_outages():
        names = sorted(client.smembers(queue.workers(Lane.NORMAL)))
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, "hostname", "pid", "last_heartbeat", "state", "senders", "senders_busy")
            rows = pipe.execute()
    workers = []
    for name, (host, pid, beat, state, senders, busy) in zip(names, rows, strict=True):
        if beat is not None:
            workers.append(
                {
                    "name": answer_text(name).removeprefix("rq:worker:"),
                    "host": (host or b"").decode(),
                    "pid": (pid or b"").decode(),
                    "last_heartbeat": beat.decode(),
                    "state": (state or b"").decode(),
                    "senders": (senders or b"0").decode(),
                    "senders_busy": (busy or b"0").decode(),
                }
            )
    return workers
