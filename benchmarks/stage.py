"""Where a benchmark runs: on a server of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

from benchmarks.effort import Cores
from dispatcher.server.embedded.launch import SMALL_HASHES
from tests.support.servers import RedisServer


@contextmanager
def stage(cores: Cores) -> Iterator[tuple[RedisServer, Redis]]:
    """An empty server on a unix socket, without persistence, and a client of it; empty again and ended afterwards.

    It keeps small hashes as the embedded server does. Only Linux is told which cores to use.
    """
    with RedisServer(options=SMALL_HASHES) as server, server.client() as client, _on(cores, server.pid):
        yield server, client
        client.flushall()


@contextmanager
def _on(cores: Cores, server_pid: int) -> Iterator[None]:
    if sys.platform != "linux" or cores is Cores.FREE:
        yield
        return
    before = os.sched_getaffinity(0)
    ours, theirs = min(before), max(before) if cores is Cores.APART else min(before)
    os.sched_setaffinity(server_pid, {theirs})
    os.sched_setaffinity(0, {ours})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
