"""kill -9 of workers, at every step and at any instant: every event has one outcome, and no limit is passed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import StandIn
from dispatcher.store.snapshot import Books
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS, QUEUE, Round, check, limits, mixed
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import Command, environment, until
from tests.support.snapshots import is_settled, watch

EVENTS_PER_KILL = 30
MANY = 100
Begin = Callable[[int], Round]

STEPS = {
    "take": [("take", "after", 4), ("ask for more", "middle", 4), ("prefetch", "after", 3)],
    "gate": [("gate", "before", 3), ("gate", "middle", 3), ("gate", "after", 3)],
    "line up": [("line up", "before", 2), ("line up", "middle", 2), ("line up", "after", 2)],
    "advance": [("advance", "after", 2)],
    "start": [("start", "before", 3), ("start", "middle", 3), ("start", "after", 3)],
    "settle": [("settle", "before", 4), ("settle", "middle", 4), ("settle", "after", 4)],
    "post": [("post", "before", 8), ("post", "after", 8)],
    "park": [("park", "after", 3), ("start", "middle", 3)],
    "wake": [("wake", "after", 3)],
    "take over": [("take", "after", 2), ("take over", "after", 1)],
    "renew": [("renew", "before", 2), ("renew", "middle", 2), ("renew", "after", 2)],
    "give back": [("give back", "before", 3), ("give back", "middle", 3), ("keep only", "middle", 3)],
}


@pytest.fixture
def begin(redis_url: str, killable: KillableWorkers, tmp_path: Path) -> Iterator[Begin]:
    """Makes a round whose limits bind for so many events."""
    path = tmp_path / "limits.yaml"
    with StandIn() as slack:
        env = environment(
            redis_url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_LEASE="1",
            DISPATCHER_SLACK_TIMEOUT="0.5",
            DISPATCHER_RECONCILE_GRACE="1",  # on a busy machine the stand-in may take in a post after its time-out
            DISPATCHER_BATCH="12",
        )

        def make(events: int) -> Round:
            path.write_text(limits(events), encoding="utf-8")
            return Round(killable, connect(redis_url), slack, env)

        yield make
        killable.clear()


PARTS = {
    "until it is decided": ("take", "gate", "line up", "advance"),
    "until it is posted": ("start", "post", "park", "wake"),
    "until it is settled": ("settle", "take over", "renew", "give back"),
}
DEATHS = [
    *(pytest.param([death for step in steps for death in STEPS[step]], 0, id=part) for part, steps in PARTS.items()),
    *(pytest.param(deaths, MANY, id=f"{step}, often", marks=pytest.mark.slow) for step, deaths in STEPS.items()),
]


@pytest.mark.parametrize(("deaths", "most"), DEATHS)
def test_killed_at_a_step_nothing_is_lost(begin: Begin, deaths: list[tuple[str, str, int]], most: int) -> None:
    kills = max(most, len(deaths))
    chance = random.Random(deaths[0][0])
    kill_points = []
    for n in range(kills):
        name, moment, latest = deaths[n % len(deaths)]
        kill_points.append(KillPoint(name, moment, chance.randint(1, latest)))
    events = kills * EVENTS_PER_KILL
    a_round = begin(events)
    end = a_round.run(kill_points, events, timeout_s=60 + 4 * kills)
    assert len(a_round.killed) == kills + a_round.baits
    check(a_round, end)


@pytest.mark.parametrize("kills", [3, pytest.param(MANY, marks=pytest.mark.slow)])
def test_killed_at_any_instant_nothing_is_lost(begin: Begin, kills: int) -> None:
    chance = random.Random(kills)
    shots = [chance.uniform(0.1, 0.3 * kills) for _ in range(kills)]
    events = kills * EVENTS_PER_KILL
    a_round = begin(events)
    end = a_round.run([], events, shots=sorted(shots), timeout_s=60 + 4 * kills)
    assert len(a_round.killed) == kills + a_round.baits
    check(a_round, end)


PLAIN = """\
global: {limits: [600/30m]}
channels: {default: {pace: none}}
defaults: {limits: [50/30m], channel: "#n"}
"""


@pytest.fixture
def plain_limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(PLAIN, encoding="utf-8")
    return path


def test_workers_that_freeze_at_any_step_and_wake_after_their_leases_change_nothing(begin: Begin) -> None:
    a_round = begin(300)
    books = Books(a_round.client, KEYS, QUEUE)
    a_round.ids += Producer(a_round.client).send_many(mixed(0, 300))
    frozen = []
    for step in ("gate", "line up", "start", "settle", "post"):
        frozen.append(a_round.killable.start(a_round.env, KillPoint(step, "before", 2, signal.SIGSTOP)))
        until(frozen[-1].is_stopped, f"the worker frozen at {step}")
    a_round.killable.start(a_round.env)
    watch(books, is_settled, 20)
    for worker in frozen:
        worker.signal(signal.SIGCONT)
    a_round.killable.stop()
    assert [(worker.code, bool(worker.life().lost)) for worker in frozen] == [(0, True)] * len(frozen)
    check(a_round, books.snapshot())


def test_a_worker_that_wakes_leaves_alone_what_another_holds_now(begin: Begin) -> None:
    a_round = begin(300)
    books = Books(a_round.client, KEYS, QUEUE)
    a_round.ids += Producer(a_round.client).send_many(mixed(0, 300))
    first = a_round.killable.start(a_round.env, KillPoint("settle", "before", 2, signal.SIGSTOP))
    until(first.is_stopped, "the first worker frozen")
    second = a_round.killable.start(a_round.env, KillPoint("take over", "after", 1, signal.SIGSTOP))
    until(second.is_stopped, "the second worker frozen with what the first one held")
    assert len(books.snapshot().leases) == 1
    noted = len(first.entries())
    first.signal(signal.SIGCONT)
    watch(books, is_settled, 20)
    second.signal(signal.SIGCONT)
    a_round.killable.stop()
    assert (first.code, second.code) == (0, 0)
    settling, settled = first.entries()[noted : noted + 2]
    assert (settling.entry, settled.entry) == ("settling", "settled")
    assert settled.ids["all"], "the posts whose results it had when it was frozen"
    assert settled.ids["done"] == [], "what is another's, or is to be reconciled, was settled"
    check(a_round, books.snapshot())


def test_workers_end_when_their_parent_is_killed(redis_url: str, plain_limits: Path, tmp_path: Path) -> None:
    client = connect(redis_url)
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, slack.token, plain_limits)
        with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as parent:
            until(lambda: client.scard("rq:workers") == 2, "two workers")
            parent.signal(signal.SIGKILL)
            until(lambda: client.scard("rq:workers") == 0, "no worker")


def test_a_worker_that_crashes_is_started_again(redis_url: str, plain_limits: Path, tmp_path: Path) -> None:
    client = connect(redis_url)
    with StandIn() as slack:
        env = environment(redis_url, slack.base_url, slack.token, plain_limits)
        with Command("worker", "--processes", "2", env=env, cwd=tmp_path) as parent:
            until(lambda: len(parent.named("worker.started")) == 2, "two workers")
            victim = int(parent.named("worker.started")[0]["worker"].rsplit(".", 2)[1])
            assert victim != parent.pid
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(parent.named("worker.started")) == 3, "a third worker")
            assert [line["pid"] for line in parent.named("worker.crashed")] == [victim]
            Producer(client).send("errors", "still served")
            until(lambda: len(slack.ledger) == 1, "the post")
            parent.signal(signal.SIGTERM)
            assert parent.wait() == 0
