"""The keys of RQ that serve as the intake, with their types and lifetimes. They carry no hash tag."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dispatcher.core.units import Lane

_LANE_SUFFIX: Final = {Lane.HIGH: ":high", Lane.NORMAL: "", Lane.LOW: ":low"}


@dataclass(frozen=True)
class QueueKeys:
    """The keys of RQ that serve as the intake."""

    queue: str

    def lane_name(self, lane: Lane) -> str:
        """The RQ queue's name of a lane."""
        return self.queue + _LANE_SUFFIX[lane]

    def lane(self, lane: Lane) -> str:
        """LIST, RQ's queue of a lane: job ids, the next one left."""
        return f"rq:queue:{self.lane_name(lane)}"

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lists of all lanes, the most urgent first."""
        return tuple(self.lane(lane) for lane in Lane)

    @cached_property
    def intermediates(self) -> tuple[str, ...]:
        """The lists of ``intermediate`` of all lanes, the most urgent first."""
        return tuple(map(self.intermediate, Lane))

    def intermediate(self, lane: Lane) -> str:
        """LIST, what a stock worker has popped from a lane and not yet begun."""
        return f"{self.lane(lane)}:intermediate"

    @cached_property
    def scheduled(self) -> tuple[str, ...]:
        """ZSET, RQ's registry of jobs that are due later, with the second from which on they are; one for each lane."""
        return tuple(f"rq:scheduled:{self.lane_name(lane)}" for lane in Lane)

    def workers(self, lane: Lane) -> str:
        """SET, the keys of RQ's entries of the workers of a lane."""
        return f"rq:workers:{self.lane_name(lane)}"

    @cached_property
    def all_workers(self) -> str:
        """SET, as ``workers``, of every queue on the server."""
        return "rq:workers"

    def failed(self, lane: Lane) -> str:
        """ZSET, RQ's registry of failed jobs of a lane."""
        return f"rq:failed:{self.lane_name(lane)}"

    def deferred(self, lane: Lane) -> str:
        """ZSET, RQ's registry of jobs of a lane that depend on others."""
        return f"rq:deferred:{self.lane_name(lane)}"

    def started(self, lane: Lane) -> str:
        """ZSET, RQ's registry of executions of a lane, with the second at which each is given up."""
        return f"rq:wip:{self.lane_name(lane)}"

    @cached_property
    def binding(self) -> str:
        """STRING, the namespace this queue is bound to; permanent. Under RQ's prefix since it belongs to the queue."""
        return f"rq:queue:{self.queue}:namespace"

    @cached_property
    def queues(self) -> str:
        """SET, RQ's set of queues."""
        return "rq:queues"

    @cached_property
    def suspended(self) -> str:
        """STRING, set by ``rq suspend``."""
        return "rq:suspended"

    def job(self, job_id: str) -> str:
        """HASH, an RQ job; ours live until they are taken."""
        return f"rq:job:{job_id}"
