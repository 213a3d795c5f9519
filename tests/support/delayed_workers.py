"""Workers that are held up between any two steps: frozen, cut short by a slow server or network, unread, killed.

Each worker has a way of its own to the server and to Slack, through proxies. What passes there is one step of a post:
its mark, its request, its answer, a history scan and what that shows. Before any of it passes, it may be delayed, or
its worker may be frozen, for shorter or longer than its lease.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.stand_in import StandIn
from tests.support.delay_proxy import DelayProxy
from tests.support.piped import Piped

WORKERS: Final = 3
SLACK_TIMEOUT_S: Final = 0.5
LEASE_S: Final = 0.75
GRACE_S: Final = 0.4
"""More than a third of what a post may take: the last look is made when the post has arrived, if it ever does."""

LONG_S: Final = (2.5, 4.5)
"""So long that another worker takes over, looks the post up and makes it again."""

SHORT_S: Final = (0.0, 0.5)

_MARKED: Final = b'"events":["go"'
"""What the server answers when a post is marked, and may leave."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How often, of all that passes, it is delayed, for how long at most, and how often its worker is frozen."""

    delay: float
    delay_s: float
    freeze: float
    spans: tuple[tuple[float, float], ...] = (LONG_S, SHORT_S)


ODDS: Final = {
    "mark": Odds(0.1, 2 * SLACK_TIMEOUT_S, 0.5, (LONG_S,)),
    "call of the server": Odds(0.01, 1.0, 0.003),
    "answer of the server": Odds(0.01, 1.0, 0.003),
    "request to Slack": Odds(0.1, 4 * SLACK_TIMEOUT_S, 0.03),
    "answer of Slack": Odds(0.1, 2 * SLACK_TIMEOUT_S, 0.03),
}


class Chance:
    """What happens when, by a seed; the threads that ask it take turns. It is written down in ``trace``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._calm = threading.Event()
        self._frozen = 0
        self._began = time.monotonic()
        self.trace: list[str] = []

    def draw(self, odds: Odds) -> tuple[float, float]:
        """For how long to delay what passes, and to freeze its worker; 0 for not at all."""
        with self._lock:
            delay = self._random.random() < odds.delay
            freeze = self._random.random() < odds.freeze
            delay_s = self._random.uniform(0.0, odds.delay_s)
            freeze_s = self._random.uniform(*self._random.choice(odds.spans))
        return (0.0, 0.0) if self._calm.is_set() else (delay * delay_s, freeze * freeze_s)

    def may_freeze(self, most: int) -> bool:
        """Whether fewer than ``most`` are frozen; then one more is."""
        with self._lock:
            is_allowed = self._frozen < most
            self._frozen += is_allowed
        return is_allowed

    def goes_on(self) -> None:
        """One less is frozen."""
        with self._lock:
            self._frozen -= 1

    def happens(self, odds: float) -> bool:
        """Whether something of these odds happens now."""
        with self._lock:
            return self._random.random() < odds

    def choose(self, *among: DelayedWorker) -> DelayedWorker:
        """One of them."""
        with self._lock:
            return self._random.choice(among)

    def note(self, who: int, what: str) -> None:
        """Write down what happens."""
        self.trace.append(f"{time.monotonic() - self._began:7.3f} s  worker {who}  {what}")

    def wait(self, seconds: float) -> None:
        """Let time pass, unless it has become calm."""
        self._calm.wait(seconds)

    def end(self) -> None:
        """From now on nothing happens any more; who waits goes on."""
        self._calm.set()


class DelayedWorker:
    """One worker process, behind its proxies; a context manager."""

    def __init__(self, chance: Chance, server: Path, slack: StandIn, env: Mapping[str, str], cwd: Path) -> None:
        self._chance = chance
        self._stack = ExitStack()
        self._freezing = threading.Lock()
        to_server = self._stack.enter_context(DelayProxy(server))
        to_slack = self._stack.enter_context(DelayProxy(slack.port, is_http=True, patience_s=SLACK_TIMEOUT_S))
        self.process = Piped(
            "worker",
            env={
                **env,
                "DISPATCHER_REDIS_URL": to_server.url,
                "DISPATCHER_SLACK_BASE_URL": f"http://127.0.0.1:{to_slack.port}/api/",
                "DISPATCHER_SLACK_TOKEN": slack.token,
                "DISPATCHER_SLACK_TIMEOUT": str(SLACK_TIMEOUT_S),
                "DISPATCHER_LEASE": str(LEASE_S),
                "DISPATCHER_RECONCILE_GRACE": str(GRACE_S),
                "DISPATCHER_BATCH": "8",
                "DISPATCHER_SENDERS": "4",
            },
            cwd=cwd,
        )
        self.process.read()
        self.pid = self.process.process.pid
        to_server.on_call = self._hinder("call of the server")
        to_server.on_reply = self._hinder("answer of the server")
        to_slack.on_call = self._hinder("request to Slack")
        to_slack.on_reply = self._hinder("answer of Slack")

    def has_started(self) -> bool:
        """Whether it works by now."""
        return bool(self.process.lines("worker.started"))

    def freeze(self, seconds: float, at: str = "anywhere") -> None:
        """Stop it, and let it go on so much later; one at a time, so that others take over."""
        if not self._freezing.acquire(blocking=False):
            return
        if not self._chance.may_freeze(1):
            self._freezing.release()
        else:
            self._chance.note(self.pid, f"is frozen for {seconds:.2f} s, at: {at}")
            self.process.signal(signal.SIGSTOP)
            threading.Thread(target=self._thaw, args=(seconds,), daemon=True).start()

    def end(self, number: signal.Signals) -> None:
        """Kill it, or tell it to stop."""
        self._chance.note(self.pid, number.name)
        with self._freezing:
            self.process.signal(number)

    def close(self) -> None:
        self.process.close()
        self._stack.close()

    def _thaw(self, seconds: float) -> None:
        self._chance.wait(seconds)
        self.process.signal(signal.SIGCONT)
        self._chance.note(self.pid, "goes on")
        self._chance.goes_on()
        self._freezing.release()

    def _hinder(self, kind: str) -> Callable[[bytes], None]:
        def meanwhile(piece: bytes) -> None:
            found = "mark" if _MARKED in piece else kind
            delay_s, freeze_s = self._chance.draw(ODDS[found])
            if freeze_s:
                self.freeze(freeze_s, found)
            if delay_s:
                self._chance.note(self.pid, f"{found} is delayed by {delay_s:.2f} s")
                self._chance.wait(delay_s)

        return meanwhile


def is_over(worker: DelayedWorker) -> bool:
    """Whether it has ended."""
    try:
        worker.process.process.wait(0)
    except subprocess.TimeoutExpired:
        return False
    return True
