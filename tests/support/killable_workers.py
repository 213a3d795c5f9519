"""Workers that are to die: forked from a process that has everything imported, so that a new one costs little."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.forked import FORKS_CHEAPLY, SEEN_BY_ALL
from tests.support.journal import Entry, Life, read_entries, read_journal
from tests.support.kill_points import KillPoint
from tests.support.processes import PATIENCE_S


@dataclass(slots=True)
class KillableWorker:
    """One worker process; ``code`` is its exit code once it has ended, a signal's number negative."""

    number: int
    kill_point: KillPoint | None
    log: Path
    journal: Path
    pid: int = 0
    code: int | None = field(default=None)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.code is None:
            os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        """Whether it is frozen (SIGSTOP)."""
        state = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return state == "T"

    def said(self) -> str:
        """What it has written to stderr."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log lines of one event; a last one that was cut off is none."""
        lines = (line for line in self.said().splitlines() if line.startswith("{") and line.endswith("}"))
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def entries(self) -> list[Entry]:
        """Its journal, line by line."""
        return read_entries(self.journal)

    def life(self) -> Life:
        """What it did, by its journal."""
        return read_journal(self.journal)


class KillableWorkers:
    """Starts worker processes in ``cwd``; a context manager that ends all that still live, by their process ids.

    ``started`` are all that were started since the last ``clear``.
    """

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._told = b""
        self.started: list[KillableWorker] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking_server"],
            cwd=cwd,
            env={**SEEN_BY_ALL, **FORKS_CHEAPLY},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._process.communicate(timeout=PATIENCE_S)

    def start(self, env: Mapping[str, str], kill_point: KillPoint | None = None) -> KillableWorker:
        """A new worker with this environment and nothing else; returns when it has been forked."""
        number = len(self.started)
        stem = f"worker{number}.{os.urandom(4).hex()}"
        process = KillableWorker(number, kill_point, self._cwd / f"{stem}.log", self._cwd / f"{stem}.journal")
        self.started.append(process)
        order = {
            "number": number,
            "env": {**SEEN_BY_ALL, "DISPATCHER_LOG_FORMAT": "json", **env},
            "cwd": str(self._cwd),
            "log": str(process.log),
            "journal": str(process.journal),
            "kill_point": kill_point.as_json() if kill_point else None,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + PATIENCE_S
        while not process.pid:
            self.poll(0.05)
            assert time.monotonic() < end, "a worker was not forked"
        return process

    def living(self) -> list[KillableWorker]:
        """Those that are not known to have ended."""
        return [each for each in self.started if each.code is None and each.pid]

    def poll(self, timeout_s: float = 0.0) -> None:
        """Learn who has ended; waits ``timeout_s`` at most for news."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while select.select([descriptor], [], [], timeout_s)[0]:
            piece = os.read(descriptor, 65_536)
            assert piece, f"the forking server ended with {self._process.wait(PATIENCE_S)}"
            *whole, self._told = (self._told + piece).split(b"\n")
            for line in whole:
                self._hear(json.loads(line))
            timeout_s = 0.0

    def clear(self) -> None:
        """Kill all that still live, and forget everybody."""
        self.poll()
        for process in self.living():
            process.signal(signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while self.living():
            self.poll(0.05)
            assert time.monotonic() < end, f"killed, still running: {self.living()}"
        self.started.clear()

    def stop(self, timeout_s: float = PATIENCE_S) -> None:
        """Tell all that live to stop, and wait until they have."""
        for process in self.living():
            process.signal(signal.SIGTERM)
        end = time.monotonic() + timeout_s
        while self.living():
            self.poll(0.05)
            assert time.monotonic() < end, f"told to stop, still running: {self.living()}"

    def _hear(self, told: dict[str, int]) -> None:
        if "began" in told:
            self.started[told["began"]].pid = told["pid"]
            return
        ended = [each for each in self.living() if each.pid == told["ended"]]
        for process in ended:
            process.code = told["code"]
