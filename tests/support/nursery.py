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
from typing import Any, Final, Self

from tests.support.diary import Life, read_diary
from tests.support.doom import Doom
from tests.support.processes import PATIENCE_S

_REPOSITORY: Final = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Mortal:
    """One worker process; ``code`` is its exit code once it has ended, a signal's number negative."""

    number: int
    doom: Doom | None
    log: Path
    diary: Path
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

    def life(self) -> Life:
        """What it did, by its diary."""
        return read_diary(self.diary)


class Nursery:
    """Bears worker processes in ``cwd``; a context manager that ends all that still live, by their process ids.

    ``mortals`` are all that were born since the last ``clear``.
    """

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._told = b""
        self.mortals: list[Mortal] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.mortals"],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_REPOSITORY)},
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

    def bear(self, env: Mapping[str, str], doom: Doom | None = None) -> Mortal:
        """A new worker with this environment and nothing else; returns when it has been forked."""
        number = len(self.mortals)
        stem = f"mortal{number}.{os.urandom(4).hex()}"
        mortal = Mortal(number, doom, self._cwd / f"{stem}.log", self._cwd / f"{stem}.diary")
        self.mortals.append(mortal)
        order = {
            "number": number,
            "env": {"PATH": os.environ["PATH"], "DISPATCHER_LOG_FORMAT": "json", **env},
            "cwd": str(self._cwd),
            "log": str(mortal.log),
            "diary": str(mortal.diary),
            "doom": doom.as_json() if doom else None,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + PATIENCE_S
        while not mortal.pid:
            self.poll(0.05)
            assert time.monotonic() < end, "a worker was not forked"
        return mortal

    def living(self) -> list[Mortal]:
        """Those that are not known to have ended."""
        return [each for each in self.mortals if each.code is None and each.pid]

    def poll(self, timeout_s: float = 0.0) -> None:
        """Learn who has ended; waits ``timeout_s`` at most for news."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while select.select([descriptor], [], [], timeout_s)[0]:
            piece = os.read(descriptor, 65_536)
            assert piece, f"the nursery ended with {self._process.wait(PATIENCE_S)}"
            *whole, self._told = (self._told + piece).split(b"\n")
            for line in whole:
                self._hear(json.loads(line))
            timeout_s = 0.0

    def clear(self) -> None:
        """Kill all that still live, and forget everybody."""
        self.poll()
        for mortal in self.living():
            mortal.signal(signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while self.living():
            self.poll(0.05)
            assert time.monotonic() < end, f"killed, still running: {self.living()}"
        self.mortals.clear()

    def stop(self, timeout_s: float = PATIENCE_S) -> None:
        """Tell all that live to stop, and wait until they have."""
        for mortal in self.living():
            mortal.signal(signal.SIGTERM)
        end = time.monotonic() + timeout_s
        while self.living():
            self.poll(0.05)
            assert time.monotonic() < end, f"told to stop, still running: {self.living()}"

    def _hear(self, told: dict[str, int]) -> None:
        if "began" in told:
            self.mortals[told["began"]].pid = told["pid"]
            return
        ended = [each for each in self.living() if each.pid == told["ended"]]
        for mortal in ended:
            mortal.code = told["code"]
