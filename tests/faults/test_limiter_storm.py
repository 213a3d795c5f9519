"""Sixteen processes hammer one limit; the server forgets its scripts, is restarted and killed, and two of them die."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Final

import pytest

from dispatcher.core.limits import Denied, Limit, Scope
from dispatcher.core.units import US
from dispatcher.errors import GateUnavailable
from dispatcher.limiter import Limiter
from dispatcher.server.clients import connect
from dispatcher.server.keys import Keys
from tests.support.models import most_in_any_window
from tests.support.processes import until
from tests.support.servers import Database, RedisServer

PROCESSES: Final = 16
KEYS: Final = Keys("storm")
RECORD: Final = Scope("record", (Limit.parse("1000000/1d"),))
"""Keeps the instants of all admissions, also of those whose answer was lost."""

Span = tuple[int, int]


def hammer(url: str, limit: Limit) -> None:
    """Ask without end; of those who are refused, one asks again in each millisecond."""
    with connect(url, timeout_s=2) as client:
        limiter, scopes = Limiter(client, namespace="storm"), (Scope("user", (limit,)), RECORD)
        while True:
            try:
                verdict = limiter.try_acquire(scopes)
            except GateUnavailable:
                time.sleep(0.002)
                continue
            if isinstance(verdict, Denied):
                time.sleep(min(verdict.retry_after_us / US, PROCESSES * 0.001))


@contextmanager
def processes(url: str, limit: Limit) -> Iterator[list[BaseProcess]]:
    children: list[BaseProcess] = [
        get_context("fork").Process(target=hammer, args=(url, limit)) for _ in range(PROCESSES)
    ]
    for child in children:
        child.start()
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.join()


class Storm:
    """The server under the storm, and the spans in which it was up."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.up: list[Span] = []
        self.since_us = _now_us()

    def admissions(self) -> list[int]:
        client: Database
        with connect(self.server.url) as client:
            rows = client.zrange(KEYS.scope("record"), 0, -1, withscores=True)
        return [int(at_us) for _, at_us in rows]

    def go_on(self, admissions: int) -> None:
        """Until so many more were admitted."""
        with connect(self.server.url) as client:
            goal = self._count(client) + admissions
            until(lambda: self._count(client) >= goal, f"{admissions} admissions", 120)

    def forget_scripts(self) -> None:
        with connect(self.server.url) as client:
            client.script_flush()

    def restart(self) -> None:
        self._down()
        self.server.restart()
        self.since_us = _now_us()

    def kill(self) -> None:
        self._down()
        self.server.kill()
        self.server.start()
        self.since_us = _now_us()

    def end(self) -> None:
        self._down()

    def _down(self) -> None:
        self.up.append((self.since_us, _now_us()))

    def _count(self, client: Database) -> int:
        return int(client.zcard(KEYS.scope("record")))


def allowed(limit: Limit, up: list[Span]) -> int:
    """How many the limit lets pass at most while the server is up, each as early as it can be."""
    instants: list[int] = []
    for begins_us, ends_us in up:
        at_us = begins_us
        while True:
            if len(instants) >= limit.max:
                at_us = max(at_us, instants[-limit.max] + limit.window_us)
            if at_us > ends_us:
                break
            instants.append(at_us)
    return len(instants)


def _now_us() -> int:
    return time.time_ns() // 1_000


def brave(limit: Limit, admissions: int, rounds: int) -> tuple[int, int]:
    """Go through the storm, never over in any window. Returns how many were admitted, and how many could have been."""
    with RedisServer(append_only=True, options=("--appendfsync", "always")) as server:
        storm = Storm(server)
        with processes(server.url, limit) as children:
            storm.go_on(1)
            storm.since_us = storm.admissions()[0]
            for _ in range(rounds):
                storm.go_on(admissions)
                storm.forget_scripts()
                storm.go_on(admissions)
                storm.kill()
                storm.go_on(admissions)
                children[0].kill()
                storm.restart()
                storm.go_on(admissions)
                children[1].kill()
                storm.kill()
                storm.go_on(admissions)
            storm.end()
        instants = storm.admissions()
    assert most_in_any_window(instants, limit.window_us) <= limit.max
    return len(instants), allowed(limit, storm.up)


def test_a_limit_holds_and_goes_on_admitting_through_a_storm() -> None:
    admitted, _ = brave(Limit(60, window_us=US), admissions=60, rounds=1)
    assert admitted > 5 * 60


@pytest.mark.slow
@pytest.mark.alone  # no more is used of a limit than its clients find time to ask for
@pytest.mark.parametrize("limit", [Limit(500, window_us=US), Limit(40, window_us=US // 4)], ids=str)
def test_a_limit_holds_and_is_used_up_through_a_long_storm(limit: Limit) -> None:
    admitted, possible = brave(limit, admissions=2 * limit.max, rounds=3)
    assert admitted >= 0.99 * possible, f"{admitted} of {possible}"
