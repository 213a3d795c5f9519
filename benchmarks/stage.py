"""Where a benchmark runs: on a server of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from benchmarks.effort import Cores
from benchmarks.slack import Slack, slack
from dispatcher.server.embedded.launch import SMALL_HASHES
from tests.support.servers import Database, RedisServer


@contextmanager
def stage(cores: Cores) -> Iterator[tuple[RedisServer, Redis]]:
    """An empty server on a unix socket, without persistence, and a client of it; empty again and ended afterwards.

    It keeps small hashes as the embedded server does. Only Linux is told which cores to use.
    """
    with RedisServer(options=SMALL_HASHES) as server, server.client() as client, _on(cores, server.pid):
        yield server, client
        client.flushall()


@contextmanager
def stage_with_slack(cores: Cores) -> Iterator[tuple[RedisServer, Redis, Slack, Path]]:
    """As ``stage``, with a stand-in for Slack, and a folder that is gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as made,
        stage(cores) as (server, client),
        slack(Path(made)) as posted,
    ):
        yield server, client, posted, Path(made)


def server_cpu_s(client: Database) -> float:
    """What the server has used since it began."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def server_bytes(client: Database) -> int:
    """The memory that the server uses."""
    return int(client.info("memory")["used_memory"])


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
