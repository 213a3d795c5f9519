"""A worker process as RQ sees it: in its registry, on its dashboards, under its commands.

RQ's worker is kept beside our loop, and its ``work()`` is never called: its registry clean-up and its failure path
import what a job's hash names.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final
from warnings import catch_warnings

from redis.exceptions import OutOfMemoryError
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now as rq_now
from rq.worker import BaseWorker, WorkerStatus

from dispatcher.core.units import Lane
from dispatcher.server.connection import Client, translate_outages
from dispatcher.store.rq_keys import QueueKeys

_PUBSUB_PAUSE_S: Final = 1.0
_UNKNOWN: Final = "unknown"

SENDERS: Final = ("senders", "senders_busy")
"""Fields of ours in RQ's entry of a worker."""


class RqPresence:
    """Registers a worker with RQ, keeps its entry up to date, and listens to RQ's commands.

    A command to shut down reaches the process as SIGINT. Every method raises ``GateUnavailable`` when the server is
    away. ``state`` is written with the next ``renew``.
    """

    def __init__(self, name: str, client: Client, queue: QueueKeys) -> None:
        self._queue = queue
        lanes = [Queue(queue.lane_name(lane), connection=client, serializer=JSONSerializer) for lane in Lane]
        self._worker = _RqWorker(lanes, name=name, connection=client, serializer=JSONSerializer)
        self._worker.birth_date = rq_now()
        self._has_entered = False
        self.state = WorkerStatus.STARTED
        self.senders = (0, 0)
        """How many posts may be under way at once, and how many are; written with the next ``renew``."""

    def enter(self) -> None:
        """Learn the own address and listen to commands, the first time it is called."""
        if not self._has_entered:
            with translate_outages():
                self._worker.learn_address()
                self._worker.subscribe()  # type: ignore[no-untyped-call]  # RQ's
            self._has_entered = True

    def renew(self, next_in_s: float) -> None:
        """Write the whole entry: so it comes back on a server that forgot it. It outlives the pause to the next time.

        A full server refuses it, which changes nothing: the lease counts, and a full server empties when workers go on.
        """
        worker = self._worker
        worker.last_heartbeat = rq_now()
        entry: dict[Any, Any] = {**worker.serialize(), "state": self.state.value}
        entry |= dict(zip(SENDERS, map(str, self.senders), strict=True))
        with translate_outages(), worker.connection.pipeline(transaction=False) as pipe:
            pipe.hset(worker.key, mapping=entry)
            pipe.expire(worker.key, max(worker.worker_ttl + 60, math.ceil(2 * next_in_s)))
            for registry in self._registries:
                pipe.sadd(registry, worker.key)
            try:
                pipe.execute()
            except OutOfMemoryError:
                return

    def leave(self) -> None:
        """Take the worker off RQ's registry, and stop listening."""
        with translate_outages():
            try:
                self._worker.register_death()  # type: ignore[no-untyped-call]  # RQ's
            except OutOfMemoryError:  # RQ notes the death in the entry
                self._remove_entry()
            self._worker.unsubscribe()

    def _remove_entry(self) -> None:
        """What a full server allows: without a transaction, and nothing is added."""
        worker = self._worker
        with worker.connection.pipeline(transaction=False) as pipe:
            for registry in self._registries:
                pipe.srem(registry, worker.key)
            pipe.delete(worker.key)
            pipe.execute()

    @property
    def _registries(self) -> tuple[str, ...]:
        return (self._queue.all_workers, *map(self._queue.workers, Lane))


class _RqWorker(BaseWorker):
    """RQ's worker with the connection and the threads that we need it to have."""

    def learn_address(self) -> None:
        with catch_warnings(action="ignore"):  # where the server's user may not ask, RQ warns on stderr
            super()._set_ip_address(self.connection)

    def _set_ip_address(self, connection: Client) -> None:
        del connection
        self.ip_address = _UNKNOWN  # the constructor asks the server, which may be away

    def _set_connection(self, connection: Client) -> Client:
        return connection  # RQ would raise the time-outs to minutes

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:  # noqa: ANN401 - RQ's
        del exc, pubsub, pubsub_thread
        time.sleep(_PUBSUB_PAUSE_S)  # in RQ's own thread; the loop says that the server is away

    def unsubscribe(self) -> None:
        """End RQ's pub/sub thread without waiting for it: it sleeps up to a minute, and dies with the process."""
        if self.pubsub_thread and self.pubsub:
            self.pubsub_thread.stop()
            self.pubsub.close()
