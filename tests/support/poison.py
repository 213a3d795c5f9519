"""Events that Slack never takes: what each of their posts meets, by each credential, over real HTTP in made-up time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dispatcher.core.posts import Message, PostResult
from dispatcher.core.states import ScanResult, Search
from dispatcher.core.units import US
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.taxonomy import TABLE, Meaning, row_for
from dispatcher.stand_in import Drip, Fault, Hang, Setup, SlackError, StandIn
from dispatcher.stand_in.chance import faults_of
from dispatcher.stand_in.faults import POST, Faults
from dispatcher.stand_in.setup import SCOPES
from tests.support.doubles import Clock
from tests.support.slack import slack_sink

ANSWER_US: Final = 50_000
DEADLINE_US: Final = 10 * US
"""What a post takes in made-up time: when it is answered, and when it is not."""

_DEADLINE_S: Final = 0.3
"""What a post takes that is not answered, in real time."""

_LEFT_NEVER: Final = ("connection_refused", "tls_failed")


class Credential(StrEnum):
    """By what is posted, and so what can be read."""

    HISTORY = "history"
    WRITE_ONLY = "write only"
    WEBHOOK = "webhook"

    @property
    def scopes(self) -> tuple[str, ...]:
        return SCOPES if self is Credential.HISTORY else ("chat:write", "chat:write.public")


@dataclass(frozen=True, slots=True)
class Poison:
    """What every post of an event meets: a fault, or with none the ``code`` of a request that never leaves."""

    code: str
    meaning: Meaning
    fault: Fault | None = None

    def __str__(self) -> str:
        return self.code if self.fault is None else f"{self.code}: {self.fault}"

    @property
    def is_late(self) -> bool:
        """Whether no answer comes before the deadline."""
        reply = None if self.fault is None else self.fault.reply
        return isinstance(reply, Hang) or (isinstance(reply, Drip) and reply.interval_s >= 1)

    @property
    def took_us(self) -> int:
        return DEADLINE_US if self.is_late else ANSWER_US


POISONS: Final = (
    *(Poison(code, row_for(code).meaning) for code in _LEFT_NEVER),
    *(
        Poison(fault.reply.code if isinstance(fault.reply, SlackError) else code, row.meaning, fault)
        for row in TABLE
        for code in row.codes
        for fault in faults_of(replace(row, codes=(code,)))
    ),
)
"""All that the taxonomy knows and the stand-in can play, each landed and not where both may be."""


class Slack:
    """The stand-in by a stage's clock, and the sink of a credential; posts of ``poisoned`` events meet ``poison``."""

    can_update = False

    def __init__(self, stand_in: StandIn, credential: Credential, clock: Clock, faults: _Next) -> None:
        self.stand_in = stand_in
        self.poisoned: Collection[str] = ()
        self.poison: Poison | None = None
        self.posts: list[tuple[int, str]] = []
        """The instant and the event of every post that was begun."""
        self.took_us = ANSWER_US
        self._clock = clock
        self._faults = faults
        self._usual, self._hurried = (self._sink(credential, timeout_s) for timeout_s in (5.0, _DEADLINE_S))
        self._untrusted = slack_sink(
            BotToken(stand_in.token), base_url=stand_in.base_url.replace("http:", "https:"), timeout_s=5.0
        )

    def _sink(self, credential: Credential, timeout_s: float) -> SlackSink:
        if credential is Credential.WEBHOOK:
            return slack_sink(Webhook(self.stand_in.webhook_url), timeout_s=timeout_s)
        return slack_sink(BotToken(self.stand_in.token), base_url=self.stand_in.base_url, timeout_s=timeout_s)

    def post(self, message: Message, *, by_s: float | None = None) -> PostResult:
        self.posts.append((self._clock.now_us, message.event_id))
        if self.poison is None or message.event_id not in self.poisoned:
            self.took_us = ANSWER_US
            return self._usual.post(message, by_s=by_s)
        self.took_us = self.poison.took_us
        return self._post_poisoned(message, self.poison)

    def _post_poisoned(self, message: Message, poison: Poison) -> PostResult:
        if poison.code == "tls_failed":
            return self._untrusted.post(message)
        if poison.fault is None:
            with self.stand_in.down():
                return self._usual.post(message)
        with self._faults.are(poison.fault):
            return (self._hurried if poison.is_late else self._usual).post(message)

    def update(self, channel: str, ts: str, message: Message, *, by_s: float | None = None) -> PostResult:
        raise NotImplementedError

    def scan(self, search: Search) -> ScanResult:
        self.took_us = ANSWER_US
        return self._usual.scan(search)

    def posts_of(self, id_: str) -> int:
        """How often it was posted."""
        return sum(posted == id_ for _, posted in self.posts)


class _Next:
    """Dice that always fall as they are told to."""

    def __init__(self) -> None:
        self._fault: Fault | None = None

    @contextmanager
    def are(self, fault: Fault) -> Iterator[None]:
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    def draw(self, kind: str) -> Fault | None:
        return self._fault if kind == POST else None

    def reset(self) -> None:
        self._fault = None


def open_slack(running: ExitStack, credential: Credential, clock: Clock, setup: Setup | None = None) -> Slack:
    """A stand-in that ends with ``running``; its time is that of ``clock``."""
    faults = _Next()
    setup = setup or Setup(scopes=credential.scopes, clock=lambda: clock.now_us / US)
    stand_in = running.enter_context(StandIn(setup=setup, faults=Faults(faults)))
    return Slack(stand_in, credential, clock, faults)
