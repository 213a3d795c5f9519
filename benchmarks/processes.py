"""Processes that a benchmark runs: an environment of their own, their output in a file, ended by id."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.figures import Unproven

ROOT: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 60.0
"""How long a process may take to be ready, or to end."""

_LOOK_S: Final = 0.02
_LAST_WORDS: Final = 2_000
_PROC: Final = Path("/proc")


class Process:
    """One command, run in ``folder``; a context manager that ends it. ``benchmarks`` can be imported in it."""

    def __init__(self, *command: str, folder: Path, **env: str) -> None:
        self._shown = " ".join(command)
        self.log = folder / f"{secrets.token_hex(4)}.log"
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """SIGTERM, and SIGKILL to what still runs a minute later."""
        self._child.terminate()
        try:
            self._child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def said(self) -> str:
        """Everything it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self, seconds: float = PATIENCE_S, *, codes: Collection[int] = (0,)) -> int:
        """The code with which it ended by itself; raises ``Unproven`` unless it is one of ``codes``, and in time."""
        end = time.monotonic() + seconds
        killer = threading.Timer(seconds, self._child.kill)  # a wait with a time limit looks only every 50 ms
        killer.start()
        code = self._child.wait()
        killer.cancel()
        if code == -signal.SIGKILL and time.monotonic() >= end:
            raise Unproven(f"{self._shown} did not end within {seconds:g} s")
        if code not in codes:
            raise Unproven(f"{self._shown} ended with {code}: {self.said()[-_LAST_WORDS:]}")
        return code

    def check(self) -> None:
        """Raises ``Unproven`` with its last words when it has ended."""
        if self._child.poll() is not None:
            raise Unproven(f"{self._shown} has ended: {self.said()[-_LAST_WORDS:]}")

    def until(self, look: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        """Return when ``look`` is true; raises ``Unproven`` when the process ends, or it takes longer."""
        end = time.monotonic() + seconds
        while not look():
            self.check()
            if time.monotonic() > end:
                raise Unproven(f"waited {seconds:g} s in vain for {what}: {self.said()[-_LAST_WORDS:]}")
            time.sleep(_LOOK_S)


def prefer(*pids: int) -> None:
    """Let these processes run before others, where the system lets us: so other load is not measured with them."""
    with suppress(PermissionError):
        for pid in pids:
            os.setpriority(os.PRIO_PROCESS, pid, -20)  # no real-time class: the system would stop it for 50 ms a second


def family(pid: int) -> list[int]:
    """A process and all below it; empty where there is no /proc."""
    found = []
    left = [pid] if (_PROC / str(pid)).exists() else []
    while left:
        found.append(each := left.pop())
        for children in (_PROC / str(each) / "task").glob("*/children"):
            left += map(int, children.read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """What a process and all below it have used since they began; 0 where there is no /proc."""
    ticks = 0
    for each in family(pid):
        fields = (_PROC / str(each) / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """The memory of one process that is not swapped out; 0 where there is no /proc."""
    path = _PROC / str(pid) / "statm"
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0
