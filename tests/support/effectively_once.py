"""A fleet whose Slack fails by chance and whose workers are killed, and an account of where each message is."""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.core.units import US
from dispatcher.producer.blocking import Producer
from dispatcher.server.connection import Client
from dispatcher.slack.taxonomy import COOL_DOWN_US, row_for
from dispatcher.stand_in import TRANSIENT, SlackError, StandIn
from dispatcher.store.dead_letters import DeadLetters, Filter
from dispatcher.store.decisions import Decisions
from dispatcher.store.snapshot import Books, Snapshot
from tests.support.kill_points import KillPoint
from tests.support.kill_round import KEYS, QUEUE
from tests.support.killable_workers import KillableWorkers
from tests.support.snapshots import is_drained

_DEATHS: Final = 3
_SOON_US: Final = 3 * US
_LOOK_S: Final = 0.02
_LET_THE_NEXT_ONE_TRY: Final = """\
local probe = tonumber(redis.call('HGET', KEYS[1], 'probe'))
if probe and probe > ARGV[1] + ARGV[2] then
  redis.call('HSET', KEYS[1], 'probe', ARGV[1])
  return 1
end
"""
CHANNELS: Final = 6

QUICK: Final = tuple(
    fault
    for fault in TRANSIENT
    if not (isinstance(fault.reply, SlackError) and row_for(fault.reply.code).cool_down_us > COOL_DOWN_US)
)
"""Every fault that passes by itself, landed and not, but for those after which a channel cools down for a minute."""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of all messages, at Slack and in the books."""

    sent: int
    arrived: int
    lost: list[str]
    """Neither at Slack nor among the dead letters, or settled as sent and not at Slack."""
    duplicated: int
    reported: int
    """Copies that may stand there, as the decisions about what was sent say."""
    dead: Counter[str]
    unreported: list[str]
    """Messages of which more copies arrived than was said."""
    faults: Counter[str] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"sent {self.sent}, arrived {self.arrived}, lost {len(self.lost)}, duplicated {self.duplicated}, "
            f"reported {self.reported}, dead {dict(self.dead)}, faults {self.faults.total()}"
        )


@dataclass(slots=True)
class Fleet:
    """``places`` workers at a time; a worker with a kill point dies, and another takes its place."""

    killable: KillableWorkers
    client: Client
    slack: StandIn
    env: Mapping[str, str]
    places: int
    ids: list[str] = field(default_factory=list)
    killed: int = 0

    def run(self, count: int, kill_points: Sequence[KillPoint], timeout_s: float) -> Snapshot:
        """Send so many messages while workers die, and wait until all have ended; the books balance at every look."""
        books, producer, pending = Books(self.client, KEYS, QUEUE), Producer(self.client), deque(kill_points)
        end = time.monotonic() + timeout_s
        portion = max(10, count // (len(kill_points) + 1))
        while True:
            for _ in range(self.places - len(self.killable.living())):
                self.killable.start(self.env, pending.popleft() if pending else None)
            snapshot = books.snapshot()
            assert snapshot.imbalances() == []
            is_killing = bool(pending) or any(each.kill_point for each in self.killable.living())
            if snapshot.waiting + snapshot.events < portion and (len(self.ids) < count or is_killing):
                first, sending = len(self.ids), min(portion, max(count - len(self.ids), 10))
                self.ids += producer.send_many(message(n) for n in range(first, first + sending))
            elif is_drained(snapshot) and not is_killing:
                break
            elif snapshot.waiting + snapshot.leased + snapshot.requeued == 0:
                hasten(self.client)
            assert time.monotonic() < end, f"not done after {timeout_s} s: {snapshot}; {pending}"
            self.killable.poll(_LOOK_S)
        self.killable.stop()
        ended = [(each.code, each.said()[-2000:]) for each in self.killable.started]
        assert [each for each in ended if each[0] not in {0, -signal.SIGKILL}] == []
        self.killed = sum(code == -signal.SIGKILL for code, _ in ended)
        return books.snapshot()

    def account(self) -> Account:
        """Where everything is."""
        texts = Counter(posted.text.rpartition("\n")[2] for posted in self.slack.ledger.posted())
        decided = {each.id: each for each in Decisions(self.client, KEYS).newest()}
        letters = {letter.id: letter for letter in DeadLetters(self.client, KEYS, QUEUE).find(Filter())}
        sent = {id_ for id_, each in decided.items() if each.outcome == "sent"}
        arrived = {id_ for id_ in self.ids if texts[id_]}
        spare = {id_: count - 1 for id_ in self.ids if (count := texts[id_]) > 1}
        told = {id_: each.copies for id_, each in decided.items()}
        return Account(
            sent=len(sent),
            arrived=len(arrived),
            lost=[id_ for id_ in self.ids if id_ not in (arrived if id_ in sent else letters)],
            duplicated=sum(spare.values()),
            reported=sum(told[id_] for id_ in sent),
            dead=Counter(letter.reason for letter in letters.values()),
            unreported=[id_ for id_, copies in spare.items() if copies > told[id_] and id_ not in letters],
            faults=self.slack.faults.counts,
        )

    def too_soon_given_up(self) -> list[str]:
        """Dead letters ``exhausted`` that fewer than three workers died with."""
        lives = [each.life() for each in self.killable.started if each.code == -signal.SIGKILL]
        deaths = Counter(id_ for life in lives for id_ in life.held)
        unheard = sum(life.asked for life in lives)
        letters = DeadLetters(self.client, KEYS, QUEUE).find(Filter())
        return [each.id for each in letters if each.reason == "exhausted" and deaths[each.id] + unheard < _DEATHS]


def hasten(client: Client) -> None:
    """Nothing is left but what waits for minutes after several failures, or for a prober that died: now it may."""
    seconds, microseconds = client.time()
    now_us = seconds * US + microseconds
    is_let: Any = client.eval(_LET_THE_NEXT_ONE_TRY, 1, KEYS.pause, now_us, _SOON_US)
    late: Any = client.zrangebyscore(KEYS.timers, now_us + _SOON_US, "+inf")
    if late:
        client.zadd(KEYS.timers, dict.fromkeys(late, now_us), xx=True)
    if late or is_let:
        client.rpush(KEYS.wake, "1")


def message(number: int) -> dict[str, str]:
    """The text is the id: a webhook's message carries no mark. A fallback puts a line above it."""
    return {
        "category": "news",
        "id": f"message-{number}",
        "text": f"message-{number}",
        "channel": f"#c{number % CHANNELS}",
    }
