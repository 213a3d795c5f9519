"""The same trace on made-up time and in real time, by a worker process and to a strict Slack: each event ends alike."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.keys import Keys
from dispatcher.settings.limits_file import read_limits
from dispatcher.simulate.arrivals import Arrival, Arrivals, Details
from dispatcher.simulate.simulation import simulate
from dispatcher.stand_in import STRICT, Setup, StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support.processes import Command, environment, settled, until
from tests.support.servers import Database

KEYS: Final = Keys("dispatcher")
QUEUE: Final = QueueKeys("notifications")

LIMITS: Final = """\
global: {limits: [11/7250ms]}
channels: {default: {pace: 1/1050ms}}
defaults: {limits: [2/3500ms]}
categories:
  drops: {channel: "#drops"}
  kept: {limits: [4/6500ms], guarantee: 3, channel: "#kept"}
  letters: {limits: [1/2500ms, 2/5500ms], on_limit: dead-letter, channel: "#letters"}
  defers: {limits: [1/2250ms], on_limit: defer, max_parked: 4, channel: "#defers"}
  tired: {limits: [1/4250ms], on_limit: defer, max_age: 3100ms, channel: "#tired"}
  digests: {limits: [2/5500ms], on_limit: digest, digest_delay: 20s, channel: "#digests"}
  hosts: {limits: [], per_label: {host: [1/3500ms]}, channel: "#hosts"}
"""
"""Limits of minutes, as it were, with seconds for minutes. Windows end a quarter second off the beat of the events,
or more, so that what a busy machine takes for an event decides nothing."""

HELD_UP_S: Final = 0.15
"""A round in which the machine held the test or the worker up for longer says nothing."""

ROUNDS: Final = 3
"""So many are made at most until one was not held up; the last one counts in any case."""

STORM_S, STORM_EVERY_S = 8, 22
NAMES: Final = ("drops", "kept", "letters", "defers", "tired", "digests", "hosts", "other")


Came: TypeAlias = tuple[int, str, dict[str, str]]
"""The second at which an event is to come, its category and its labels."""


class Watch:
    """How long the machine has held up the test, between two looks at the clock, or the worker, until it decided."""

    def __init__(self, redis: Database) -> None:
        self.held_up_s = 0.0
        self._redis = redis
        self._looked_s = self._busy_since_s = time.time()

    def has_come(self, at_s: float) -> bool:
        """Whether the instant has come. Every look also asks whether the worker has something to decide."""
        is_busy = self._redis.exists(*QUEUE.lanes, KEYS.deciding)
        now_s = time.time()
        self._busy_since_s = self._busy_since_s if is_busy else now_s
        self.held_up_s = max(self.held_up_s, now_s - min(self._looked_s, self._busy_since_s))
        self._looked_s = now_s
        return now_s >= at_s


def arrivals(storms: int, seed: int) -> list[Came]:
    """Storms of fifty events, each at a whole second, in order. Between two there is time to post what waits."""
    chance = random.Random(seed)
    came = sorted(
        (STORM_EVERY_S * storm + chance.randrange(STORM_S), storm) for storm in range(storms) for _ in range(50)
    )
    return [(at_s, chance.choice(NAMES), {"host": chance.choice("ab")}) for at_s, _ in came]


def simulated(redis: Database, came: Sequence[Came], at_s: Sequence[float]) -> dict[str, str]:
    """What a simulation says of each event, by its id, if they come at these instants."""
    ends: dict[str, str] = {}
    redis.flushall()
    with Arrivals() as trace:
        for line, (_, category, labels) in enumerate(came):
            details = Details(id=f"e-{line}", labels=tuple(labels.items()))
            trace.add(Arrival(round(at_s[line] * US), line, category, details))
        policy = read_limits(LIMITS, "limits.yaml").policy
        simulate(
            redis, trace, policy, ended=lambda line, outcome, _: ends.update({f"e-{line}": outcome}), instant_us=1_000
        )
    return ends


def real(
    redis: Database, redis_url: str, tmp_path: Path, came: Sequence[Came]
) -> tuple[dict[str, str], list[float], float]:
    """What became of each event in real time, when each was sent, and for how long the machine held up the round.

    What has not ended when all that was admitted is posted is waiting. ``late`` stands behind what ended after the last
    one came: a busy machine makes the last post later than a simulation.
    """
    redis.flushall()
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    books = Books(redis, KEYS, QUEUE)
    with StandIn(setup=Setup.paced(STRICT)) as slack:
        variables = environment(redis_url, slack.base_url, slack.token, limits)
        # One worker: in which order two of them decide about events of one second, nobody promises.
        with Command("worker", env=variables, cwd=tmp_path, name="worker") as worker:
            worker.await_line("worker.started")
            producer, watch, began, sent_s = Producer(redis), Watch(redis), time.time(), []
            for line, (at_s, category, labels) in enumerate(came):
                until(partial(watch.has_come, began + at_s), "the instant of an event")
                producer.send(category, f"event {line}", id=f"e-{line}", labels=labels)
                sent_s.append(time.time())
            until(books.is_drained, "what was admitted to be posted")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.stderr()
        lines = {id_: line for id_, (line,) in settled([worker]).items()}
    last = datetime.fromtimestamp(sent_s[-1], UTC).isoformat()
    ends = {id_: line["outcome"] + " late" * (line["time"] > last) for id_, line in lines.items()}
    return {f"e-{n}": ends.get(f"e-{n}", "waiting") for n in range(len(came))}, sent_s, watch.held_up_s


def undisturbed(
    redis: Database, redis_url: str, tmp_path: Path, came: Sequence[Came]
) -> tuple[dict[str, str], list[float]]:
    """The same of a round that the machine did not hold up, if there is one."""
    for left in reversed(range(ROUNDS)):
        found, sent_s, held_up_s = real(redis, redis_url, tmp_path, came)
        if held_up_s <= HELD_UP_S or not left:
            return found, sent_s
    raise AssertionError("the last round counts")


def different(redis: Database, redis_url: str, tmp_path: Path, came: Sequence[Came]) -> dict[str, tuple[str, str]]:
    """The events that ended differently. All ways to end were seen.

    What waits at the end of the simulation may have ended late.
    """
    found, sent_s = undisturbed(redis, redis_url, tmp_path, came)
    expected = simulated(redis, came, sent_s)
    assert set(Counter(expected.values())) >= {"sent", "dropped", "dead", "digested"}
    pairs = {id_: (outcome, found[id_]) for id_, outcome in expected.items()}
    return {
        id_: (a, b)
        for id_, (a, b) in pairs.items()
        if a != b.removesuffix(" late") and not (a == "waiting" and b.endswith(" late"))
    }


def test_in_real_time_each_event_ends_as_it_was_simulated(redis: Database, redis_url: str, tmp_path: Path) -> None:
    assert different(redis, redis_url, tmp_path, arrivals(1, 3)) == {}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("seed", [4, 5])
def test_for_minutes_each_event_ends_as_it_was_simulated(
    redis: Database, redis_url: str, tmp_path: Path, seed: int
) -> None:
    assert different(redis, redis_url, tmp_path, arrivals(5, seed)) == {}
