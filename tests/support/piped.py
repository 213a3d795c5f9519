"""A command whose stderr is a pipe: the test is its reader, and may stall."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.forked import SEEN_BY_ALL, Forked

PIPE_BYTES: Final = 4096
"""The least a pipe can hold: some 15 lines."""


class Piped:
    """One process of the command line. Nobody reads what it says until ``read``, and after ``stall``."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path) -> None:
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.process = Forked(
            arguments,
            env={**SEEN_BY_ALL, "DISPATCHER_LOG_FORMAT": "json", **env},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writes,
        )
        os.close(writes)
        self._got = b""
        self._goes_on = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(reads,), daemon=True)
        self._reader.start()

    def read(self) -> None:
        """From now on all that it says is read."""
        self._goes_on.set()

    def stall(self) -> None:
        """From now on nothing is, until ``read``."""
        self._goes_on.clear()

    def said(self) -> str:
        """What was read so far, whole lines."""
        return self._got[: self._got.rfind(b"\n") + 1].decode()

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """What was read of its log lines, of one event or all."""
        found = [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]
        return [line for line in found if event is None or line["event"] == event]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self.process.send_signal(number)

    def stop(self, within_s: float) -> int:
        """Tell it to stop; its exit code, which it has within the time."""
        self.process.terminate()
        return self.process.wait(within_s)

    def close(self) -> None:
        """Kill it if it still runs, and read what is left."""
        self.process.kill()
        self.process.wait()
        self.read()
        self._reader.join()

    def _read(self, reads: int) -> None:
        with os.fdopen(reads, "rb", buffering=0) as pipe:
            while self._goes_on.wait() and (piece := pipe.read(65_536)):
                self._got += piece
