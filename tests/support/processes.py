"""Worker processes of the tests: the real command, its log lines as values, ended by pid."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.support.forked import PYTHON_DISPATCHER, SEEN_BY_ALL, Forked

PATIENCE_S: Final = 20.0
"""How long anything a test waits for may take on a busy machine."""

T = TypeVar("T")

LIMITS: Final = """\
global: {limits: [100/30m]}
channels: {default: {pace: 10/10s}}
defaults: {limits: [10/30m], channel: "#notifications"}
"""


class Command:
    """One process of the command line, with an environment of its own; a context manager that kills what still runs.

    ``from_scratch`` starts an interpreter for it: for tests of what happens while it loads.
    """

    def __init__(
        self, *arguments: str, env: Mapping[str, str], cwd: Path, name: str = "command", from_scratch: bool = False
    ) -> None:
        self._log_path = cwd / f"{name}.{os.urandom(4).hex()}.log"
        self._log = self._log_path.open("wb")
        seen = {**SEEN_BY_ALL, "DISPATCHER_LOG_FORMAT": "json", **env}
        log, nothing, pipe = self._log.fileno(), subprocess.DEVNULL, subprocess.PIPE
        self.process: Forked | subprocess.Popen[bytes] = (
            subprocess.Popen(
                [*PYTHON_DISPATCHER, *arguments], env=seen, cwd=cwd, stdin=nothing, stdout=pipe, stderr=log
            )
            if from_scratch
            else Forked(arguments, env=seen, cwd=cwd, stdin=nothing, stdout=pipe, stderr=log)
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code."""
        return self.process.wait(timeout_s)

    def stderr(self) -> str:
        return self._log_path.read_text(encoding="utf-8")

    def lines(self) -> list[dict[str, Any]]:
        """Every JSON log line so far."""
        return [json.loads(line) for line in self.stderr().splitlines() if line.startswith("{") and line.endswith("}")]

    def named(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        return [line for line in self.lines() if line["event"] == event]

    def await_line(self, event: str) -> dict[str, Any]:
        """The first log line of an event, waited for."""
        return until(lambda: next(iter(self.named(event)), None), f"a log line {event}; said: {self.stderr()[-2000:]}")


def until(probe: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """What ``look`` returns once that is something; fails saying what was waited for."""
    end = time.monotonic() + timeout_s
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        select.select([], [], [], 0.01)


def environment(redis_url: str, base_url: str, token: str, limits: Path, **more: str) -> dict[str, str]:
    """What a worker needs to post to the stand-in."""
    return {
        "DISPATCHER_REDIS_URL": redis_url,
        "DISPATCHER_SLACK_BASE_URL": base_url,
        "DISPATCHER_SLACK_TOKEN": token,
        "DISPATCHER_LIMITS_FILE": str(limits),
        "DISPATCHER_RECONCILE_GRACE": "0.2",
        **more,
    }


def settled(commands: Iterator[Command] | list[Command]) -> dict[str, list[dict[str, Any]]]:
    """The lines ``event.settled`` of all, by event id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for command in commands:
        for line in command.named("event.settled"):
            found.setdefault(line["event_id"], []).append(line)
    return found
