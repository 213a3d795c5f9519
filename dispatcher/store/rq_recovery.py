"""Brings back what stock RQ workers and their maintenance leave: ids nobody works on, jobs of ours in RQ's registries.

It also takes the names of workers that were killed out of RQ's registry.

A stock worker that is killed leaves its job in the intermediate list or the started registry, RQ's maintenance moves
it to the failed one, and a job with dependencies waits in the deferred one, because ours end without telling RQ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from redis.exceptions import OutOfMemoryError

from dispatcher.core.units import US, Lane
from dispatcher.server.connection import Client, JsonScript, translate_outages
from dispatcher.server.keys import Keys
from dispatcher.store.intake import names_us
from dispatcher.store.rq_keys import QueueKeys

EVERY: Final = timedelta(seconds=60)
"""How often one worker of the fleet sweeps."""

_PAGE: Final = 200
"""Members of a registry that one sweep looks at; each minute the next ones have their turn."""

_MOST_NAMES: Final = 1_000
_FAILED, _DEFERRED, _STARTED = 3, 4, 5  # positions in the keys of sweep.lua
_GIVEN_UP_S: Final = 60


class Sweep:
    """Sweeps the lanes of one queue. Raises ``GateUnavailable`` when the server is away; what was moved stays moved."""

    def __init__(
        self, client: Client, keys: Keys, queue: QueueKeys, *, owner: str, clock: Callable[[], int] | None = None
    ) -> None:
        self._client = client
        self._keys = keys
        self._queue = queue
        self._owner = owner
        self._clock = clock
        self._sweep = JsonScript(client, "sweep", clock)

    def is_due(self) -> bool | None:
        """Whether this caller is to sweep now: nobody did within the interval.

        None if the server is full: it is left alone, since what would go back on a lane needs room.
        """
        with translate_outages():
            try:
                return bool(self._client.set(self._keys.sweep, self._owner, nx=True, px=EVERY))
            except OutOfMemoryError:
                return None

    def sweep(self) -> int:
        """Sweep now; returns how many ids are back on their lanes."""
        self._forget_workers()
        return sum(self._sweep_lane(lane) for lane in Lane)

    def _forget_workers(self) -> None:
        """Take the names of workers that were killed out of RQ's registry: their entries have ended, the names stay."""
        registries = [self._queue.workers(lane) for lane in Lane]
        with translate_outages():
            names: list[Any] = sorted(self._client.sunion(registries))[:_MOST_NAMES]
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(name)
                alive = pipe.execute()
            gone = [name for name, is_alive in zip(names, alive, strict=True) if not is_alive]
            if gone:
                with self._client.pipeline(transaction=False) as pipe:
                    for registry in (self._queue.all_workers, *registries):
                        pipe.srem(registry, *gone)
                    pipe.execute()

    def _sweep_lane(self, lane: Lane) -> int:
        keys, queue = self._keys, self._queue
        registries = {
            _FAILED: queue.failed(lane),
            _DEFERRED: queue.deferred(lane),
            _STARTED: queue.started(lane),
        }
        mine: list[tuple[str, str, int]] = []
        for position in registries:
            jobs = [(member, member.split(":")[0], position) for member in self._members(position, registries)]
            mine += [
                job for job, is_ours in zip(jobs, self._are_ours([job[1] for job in jobs]), strict=True) if is_ours
            ]
        names = [queue.lane(lane), queue.intermediate(lane), *registries.values(), keys.abandoned]
        names += [queue.job(job_id) for _, job_id, _ in mine]
        return int(self._sweep(names, {"jobs": [list(job) for job in mine]}))

    def _members(self, position: int, registries: dict[int, str]) -> list[str]:
        registry = registries[position]
        newest = "+inf" if position != _STARTED else str(int(time.time()) - _GIVEN_UP_S)
        with translate_outages():
            pages = math.ceil(self._client.zcount(registry, "-inf", newest) / _PAGE)
            start = self._minute() % pages * _PAGE if pages > 1 else 0
            members: Any = self._client.zrangebyscore(registry, "-inf", newest, start=start, num=_PAGE)
        return [member.decode("utf-8", "replace") for member in members]

    def _minute(self) -> int:
        """All workers of the fleet count the same minutes, whoever sweeps."""
        now_s = time.time() if self._clock is None else self._clock() / US
        return int(now_s // EVERY.total_seconds())

    def _are_ours(self, job_ids: Sequence[str]) -> list[bool]:
        with translate_outages(), self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(self._queue.job(job_id), "data")
            answers: list[Any] = pipe.execute()
        return [data is not None and names_us(data) for data in answers]
