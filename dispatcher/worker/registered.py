"""RQ's worker without what would be in our way: the face that RQ's registry, dashboards and commands see.

RQ's registry clean-up and failure path never run here: they import what a job's hash names.
"""

from __future__ import annotations

import time
from typing import Any, Final

from redis.exceptions import OutOfMemoryError
from rq.utils import now as rq_now
from rq.utils import utcformat
from rq.worker import BaseWorker

from dispatcher.connection import Client

_PUBSUB_PAUSE_S: Final = 1.0


class RegisteredWorker(BaseWorker):
    """Registered and steered like any RQ worker; what it does instead of running jobs is its subclass's matter."""

    def enter(self) -> None:
        """Learn the own address, and listen to RQ's commands.

        Raises what redis-py raises; then it may be called again, as RQ's constructor and its way into the loop, which
        would do this, cannot be.
        """
        super()._set_ip_address(self.connection)
        super().subscribe()  # type: ignore[no-untyped-call]  # RQ's

    def _set_ip_address(self, connection: Client) -> None:
        del connection
        self.ip_address = "unknown"  # until it has entered

    def subscribe(self) -> None:
        """``enter`` does it."""

    def register_birth(self) -> None:
        """The first heartbeat does it: also on a full server, which a worker that starts is to empty."""
        self.birth_date = rq_now()

    def run_maintenance_tasks(self) -> None:
        """RQ's clean-up imports what jobs name and fails events: never here."""
        self.last_cleaned_at = rq_now()  # type: ignore[assignment]  # RQ declares None and sets a datetime

    def check_for_suspension(self, burst: bool) -> None:  # noqa: FBT001 - RQ's signature
        """``take`` asks in the same round trip."""

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:  # noqa: ANN401 - RQ's signature
        """RQ's loop calls it where an error would end the worker unseen; ``_beat`` does it in its place."""

    def set_state(self, state: str, pipeline: Any = None) -> None:  # noqa: ANN401 - RQ's signature
        """Kept here and written with the next heartbeat."""
        del pipeline
        self._state = state

    def procline(self, message: str) -> None:
        """The process keeps its name."""

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

    def register_alive(self) -> None:
        """Write the worker's entry in RQ's registry as a whole: it survives a server that forgot it."""
        self.last_heartbeat = rq_now()
        with self.connection.pipeline(transaction=False) as pipe:
            entry: dict[Any, Any] = {**self.serialize(), "state": self._state}
            pipe.hset(self.key, mapping=entry)
            pipe.expire(self.key, self.worker_ttl + 60)
            pipe.sadd("rq:workers", self.key)
            for name in self.queue_names():
                pipe.sadd(f"rq:workers:{name}", self.key)
            try:
                pipe.execute()
            except OutOfMemoryError:
                return  # what counts is the lease; a full server empties when its workers go on

    def serialize(self) -> dict[str, Any]:
        """RQ's own fields."""
        return {**super().serialize(), "last_heartbeat": utcformat(self.last_heartbeat or rq_now())}
