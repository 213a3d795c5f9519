"""What operators look at and do in a namespace, over one client; and the producer of a command that sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from dispatcher.app.servers import Server, keys_of, reach
from dispatcher.core.units import US, Lane
from dispatcher.errors import GateUnavailable, QueueUnavailable
from dispatcher.jsonio import answer_text
from dispatcher.server.clients import ANSWER_TIMEOUT_S, connect
from dispatcher.server.connection import Client, translate_outages
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.settings.plain import AnySettings
from dispatcher.store.rq_keys import QueueKeys

if TYPE_CHECKING:
    from dispatcher.app.limits import LoadedLimits
    from dispatcher.core.policy import Policy
    from dispatcher.limiter.blocking import Limiter
    from dispatcher.producer.blocking import Producer
    from dispatcher.server.writing import WriteRefusal
    from dispatcher.store.audit import Audit
    from dispatcher.store.dead_letters import DeadLetters
    from dispatcher.store.decisions import Decisions
    from dispatcher.store.explanations import Explanations
    from dispatcher.store.operator_controls import Pausing
    from dispatcher.store.parked_events import ParkedEvents
    from dispatcher.store.silences import Silencing
    from dispatcher.store.snapshot import Books
    from dispatcher.store.versions import Versions


class Desk:
    """A namespace as operators reach it. Blocking; threads may share it. Each call of the client is bounded.

    What a part needs is imported when the part is first asked for: a command loads no more than it needs.
    """

    def __init__(self, settings: AnySettings, server: Server, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.settings = settings
        self.server = server
        self.keys, self._queue = keys_of(settings)
        self.client: Client = connect(server.url, timeout_s=timeout_s)

    def check(self) -> None:
        """Return where the namespace is one of ours; raises ``ConfigError``, and ``GateUnavailable``."""
        check_layout(self.client, self.keys)

    def reach(self) -> None:
        """``check``, which names the server where that does not answer."""
        reach(self.client, self.server.shown)
        self.check()

    @cached_property
    def audit(self) -> Audit:
        """The trail of what operators did."""
        from dispatcher.store.audit import Audit

        return Audit(self.client, self.keys)

    @cached_property
    def books(self) -> Books:
        """The books."""
        from dispatcher.store.snapshot import Books

        return Books(self.client, self.keys, self._queue)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """The dead letters."""
        from dispatcher.store.dead_letters import DeadLetters

        return DeadLetters(self.client, self.keys, self._queue)

    @cached_property
    def decisions(self) -> Decisions:
        """What became of the newest events."""
        from dispatcher.store.decisions import Decisions

        return Decisions(self.client, self.keys)

    @cached_property
    def explanations(self) -> Explanations:
        """What explains events."""
        from dispatcher.settings.content import policy_if_readable
        from dispatcher.store.explanations import Explanations

        return Explanations(self.client, self.keys, self._queue, read_limits=policy_if_readable)

    @cached_property
    def limiter(self) -> Limiter:
        """The use of limits."""
        from dispatcher.limiter.blocking import Limiter

        return Limiter(self.client, namespace=self.settings.namespace)

    @cached_property
    def pausing(self) -> Pausing:
        """What pauses and resumes."""
        from dispatcher.store.operator_controls import Pausing

        return Pausing(self.client, self.keys)

    @cached_property
    def silencing(self) -> Silencing:
        """The silences."""
        from dispatcher.store.silences import Silencing

        return Silencing(self.client, self.keys)

    @cached_property
    def versions(self) -> Versions:
        """The versions of the limits."""
        from dispatcher.store.versions import Versions

        return Versions(self.client, self.keys)

    def limits(self) -> LoadedLimits:
        """The limits in force; before any are, those of the file."""
        from dispatcher.app.limits import limits_to_look_at

        return limits_to_look_at(self.settings, self.versions)

    def parked(self, policy: Policy) -> ParkedEvents:
        """The parked events, as these limits see them."""
        from dispatcher.store.parked_events import ParkedEvents

        policy = replace(policy, by_webhook=self.settings.by_webhook)
        remember_us = round(self.settings.dedup_window.total_seconds() * US)
        return ParkedEvents(self.client, self.keys, self._queue, policy, remember_us=remember_us)

    def workers(self) -> Sequence[Mapping[str, str]]:
        """See ``workers_of``."""
        return workers_of(self.client, self._queue)

    def is_served(self) -> bool:
        """Whether a worker takes from the queue, one of ours or of RQ; true where the server does not let us look."""
        from redis.exceptions import RedisError

        try:
            return bool(self.workers())
        except (GateUnavailable, RedisError):
            return True

    def refusal(self) -> WriteRefusal | None:
        """See ``write_refusal``."""
        from dispatcher.server.writing import write_refusal

        return write_refusal(self.client, self.keys.layout)

    def server_version(self) -> str:
        """What the server calls itself and its version: ``valkey 8.0.1``. Raises ``GateUnavailable``."""
        with translate_outages():
            facts = self.client.info("server")
        name = "valkey" if "valkey_version" in facts else "redis"
        return f"{name} {facts.get(f'{name}_version', 'unknown')}"


def open_desk(settings: AnySettings, server: Server) -> Desk:
    """The desk of a namespace whose server answers; raises as ``Desk.reach`` does."""
    desk = Desk(settings, server)
    desk.reach()
    return desk


def build_producer(settings: AnySettings, server: Server) -> Producer:
    """A producer; raises ``QueueUnavailable``, ``ConfigError`` when the server does not answer now."""
    from dispatcher.producer.blocking import ANSWER_TIMEOUT_S, Producer

    client = connect(server.url, timeout_s=ANSWER_TIMEOUT_S)
    try:
        reach(client, server.shown)
    except GateUnavailable as error:
        raise QueueUnavailable(str(error)) from error
    return Producer(client, namespace=settings.namespace, queue=settings.queue, max_waiting=settings.max_waiting)


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
