"""kill -9 between the steps of repeats, recoveries, silences and quiet hours: all is told once, and no key is lost."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from dispatcher.core.event import Event, Status
from dispatcher.core.matchers import parse_matchers
from dispatcher.core.units import DAY_US, US
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.stand_in import StandIn
from dispatcher.store.decisions import Decisions
from dispatcher.store.silences import Silencing, Wanted
from dispatcher.store.snapshot import Books
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.processes import environment, until
from tests.support.servers import Database

LIMITS: Final = """\
global: {{limits: []}}
channels: {{default: {{pace: none}}}}
defaults: {{limits: [], channel: "#n"}}
categories:
  alerts: {{once: {{per: 1d, then: edit}}}}
  waits: {{on_limit: defer, max_parked: {most}}}
  nights: {{}}
"""
QUIET: Final = """\
quiet: {{now: {{times: ["{begins}-{ends}"], zone: UTC, categories: [nights], then: defer}}}}
"""
EDITS: Final = KEYS.scope("pace:edits")
EACH: Final = 3
"""Events of each kind in a round: few enough that no event meets three deaths."""

HELD: Final = [  # while a silence and quiet hours hold
    *(KillPoint(step, moment, 1) for step in ("line up", "gate", "start", "settle") for moment in ("middle", "after")),
    *(KillPoint(step, moment, 1) for step in ("edit", "post") for moment in ("before", "after")),
    KillPoint("take", "after", 1),
    KillPoint("settle", "before", 1),
]
OVER: Final = [  # when they end, and failures are over
    *(KillPoint(step, moment, 1) for step in ("recover", "gate", "start", "settle") for moment in ("middle", "after")),
    *(KillPoint(step, moment, 1) for step in ("edit", "post") for moment in ("before", "after")),
    KillPoint("advance", "after", 1),
    KillPoint("settle", "before", 1),
]
"""In each round two workers of either list die, one after another."""


@dataclass(slots=True)
class Night:
    """Failures with repeats, a silence and quiet hours, and workers that die meanwhile, one after another."""

    killable: KillableWorkers
    client: Database
    slack: StandIn
    limits: Path
    env: dict[str, str]
    number: int = 0
    sent: list[str] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    """How often a message with this text is to stand in Slack."""

    def go(self, held: Sequence[KillPoint], over: Sequence[KillPoint]) -> None:
        """One round: something fails, and is over."""
        self.number += 1
        silencing = Silencing(self.client, KEYS)
        self._quiet(holds=True)
        begun = silencing.begin(Wanted(parse_matchers([f"round={self.number}"]), DAY_US, "anna", "work"))
        alerts = [self._send("alerts", key=key) for key in self._keys() for _ in range(3)]
        silenced = [self._send(name, round=str(self.number)) for name in ("drops", "waits") for _ in range(EACH)]
        quiet = [self._send("nights") for _ in range(EACH)]
        self._kill(held)
        self.messages += Counter(f"{key}\n_x3" for key in self._keys())
        self._work(ended={*alerts, *silenced[:EACH]}, parked={*silenced[EACH:], *quiet})
        assert [each.suppressed for each in silencing.all() if each.silence.id == begun.id] == [2 * EACH]

        silencing.expire(begun.id)
        self._quiet(holds=False)
        recoveries = [self._send("alerts", key=key, status=Status.RESOLVED) for key in self._keys()]
        self._kill(over)
        self.messages -= Counter(f"{key}\n_x3" for key in self._keys())
        self.messages += Counter(f":white_check_mark: ~{key}~\nx3" for key in self._keys())
        self.messages[
            f"Silence by anna ended: {2 * EACH} suppressed, {EACH} of them deferred (round={self.number})"
        ] += 1
        self.messages += Counter(map(self._text, (*silenced[EACH:], *quiet)))
        self._work(ended={*recoveries, *silenced, *quiet})

        again = [self._send("alerts", key=key) for key in self._keys()]
        self.messages += Counter(self._keys())
        self._work(ended={*again})

    def _keys(self) -> list[str]:
        return [f"key {self.number} {n}" for n in "abc"[:EACH]]

    def _send(self, category: str, key: str | None = None, status: Status = Status.FIRING, **labels: str) -> str:
        id_ = f"e{len(self.sent)}"
        text = key or self._text(id_)
        event = Event(category, text, id=id_, labels=labels, dedup_key=key, status=status)
        self.sent += Producer(self.client).send_many([event])
        return id_

    @staticmethod
    def _text(id_: str) -> str:
        return f"text of {id_}"

    def _quiet(self, *, holds: bool) -> None:
        """The workers that are started from now on put limits in force that never were, with quiet hours or without."""
        now, limits = datetime.now(UTC), LIMITS.format(most=1_000 + self.number)
        begins, ends = (f"{now + timedelta(hours=hours):%H:%M}" for hours in (-1, 2))
        self.limits.write_text(limits + (QUIET.format(begins=begins, ends=ends) if holds else ""), encoding="utf-8")

    def _kill(self, kill_points: Sequence[KillPoint]) -> None:
        for kill_point in kill_points:
            victim = self.killable.start(self.env, kill_point)
            until(self._nobody_lives, f"a death at {kill_point}")
            assert victim.code == -signal.SIGKILL, victim.said()[-2000:]

    def _nobody_lives(self) -> bool:
        self.killable.poll(0.01)
        return self._look() and not self.killable.living()

    def _work(self, *, ended: set[str], parked: frozenset[str] | set[str] = frozenset()) -> None:
        """A worker that nobody kills goes on until these have ended, those wait, and Slack shows all that it should."""
        worker = self.killable.start(self.env)
        until(lambda: self._look() and self._ended() >= ended, f"the end of all; it said: {worker.said()[-2000:]}")
        until(lambda: self._look() and self._parked() == parked, "what is to wait")
        until(lambda: self._look() and (self._shown() == self.messages or self._is_wrong()), "what is to be told")
        self.killable.stop()
        assert self._shown() == self.messages
        assert worker.code == 0, worker.said()[-2000:]

    def _shown(self) -> Counter[str]:
        return Counter(re.sub(r", (last|after) .*$", "", posted.text) for posted in self.slack.ledger.posted())

    def _is_wrong(self) -> bool:
        """Whether there are more messages than there should be."""
        return self._shown().total() > self.messages.total()

    def _look(self) -> bool:
        assert Books(self.client, KEYS, QUEUE).snapshot().imbalances() == []
        self._hasten()
        return True

    def _hasten(self) -> None:
        """Edits of one message need not be half a minute apart, and those of all may be more than 40 a minute."""
        client, now_us = self.client, self.client.time()[0] * US
        for key in client.scan_iter(f"{KEYS.subject_prefix}*"):
            if client.hexists(key, "editable"):
                client.hset(key, "editable", 0)
        if client.zcard(EDITS) > 30:
            client.delete(EDITS)
            client.zadd(KEYS.lines, {"channel:edits": now_us}, xx=True)
        for id_ in client.zrangebyscore(KEYS.timers, now_us + 3 * US, "+inf"):
            count, shown = client.hmget(KEYS.tally(id_.decode()), "count", "shown")
            if not id_.startswith(b"repeat:") or count != shown:
                client.zadd(KEYS.timers, {id_: now_us}, xx=True)
                client.rpush(KEYS.wake, "1")

    def _ended(self) -> set[str]:
        return {each.id for each in Decisions(self.client, KEYS).newest()}

    def _parked(self) -> set[str]:
        parked: list[bytes] = self.client.zrange(KEYS.parked, 0, -1)
        return {id_.decode() for id_ in parked} & {*self.sent}


@pytest.fixture
def night(redis_url: str, killable: KillableWorkers, tmp_path: Path) -> Iterator[Night]:
    with StandIn() as slack:
        path = tmp_path / "limits.yaml"
        env = environment(
            redis_url,
            slack.base_url,
            slack.token,
            path,
            DISPATCHER_LEASE="1",
            DISPATCHER_SLACK_TIMEOUT="0.5",
            DISPATCHER_BATCH="4",
        )
        yield Night(killable, connect(redis_url), slack, path, env)
        killable.clear()


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([((HELD[1], HELD[5]), (OVER[0], OVER[9]))], id="4 deaths"),
        pytest.param(
            [(HELD[n : n + 2], OVER[n : n + 2]) for n in range(0, len(HELD), 2)],
            id=f"{len(HELD) + len(OVER)} deaths",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_is_told_and_counted_once_and_no_key_is_lost(
    night: Night, rounds: Sequence[tuple[Sequence[KillPoint], Sequence[KillPoint]]]
) -> None:
    for held, over in rounds:
        night.go(held, over)
