"""``python -m benchmarks.sampled FILE CLOCK COMMAND...``: the command line with its main thread's stack looked at.

SIGUSR1 begins the looking, a second one ends it and writes what was seen to FILE. CLOCK is ``wall`` (each millisecond,
so that waiting is seen too) or ``cpu`` (each millisecond of CPU time of all threads). A look falls between two steps of
Python: what a C function takes is seen at the line that called it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from dispatcher.cli import main

EVERY_S: Final = 0.001
CLOCKS: Final = {"wall": (signal.ITIMER_REAL, signal.SIGALRM), "cpu": (signal.ITIMER_PROF, signal.SIGPROF)}


class Sampler:
    """Counts where the main thread is."""

    def __init__(self, file: Path, clock: str) -> None:
        self._file = file
        self._timer, self._signal = CLOCKS[clock]
        self._own: Counter[CodeType] = Counter()
        self._within: Counter[CodeType] = Counter()
        self._names: dict[CodeType, str] = {}
        self._used: dict[str, float] | None = None

    def install(self) -> None:
        """Listen to SIGUSR1."""
        signal.signal(signal.SIGUSR1, self._switch)
        signal.signal(self._signal, self._look)

    def _switch(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if self._used is None:
            self._used = used()
            signal.setitimer(self._timer, EVERY_S, EVERY_S)
            return
        signal.setitimer(self._timer, 0)
        content = {
            "used": {name: after - self._used[name] for name, after in used().items()},
            "samples": self._own.total(),
            "functions": [
                {
                    "name": self._names[code],
                    "place": f"{code.co_filename}:{code.co_firstlineno}",
                    "within": within,
                    "own": self._own[code],
                }
                for code, within in self._within.most_common()
            ],
        }
        written = self._file.with_suffix(".part")
        written.write_text(json.dumps(content), encoding="utf-8")
        os.replace(written, self._file)  # noqa: PTH105 - the short way; whoever waits for it sees all or nothing

    def _look(self, signum: int, frame: FrameType | None) -> None:
        del signum
        seen = set()
        if frame is not None:
            self._own[frame.f_code] += 1
        while frame is not None:
            if frame.f_code not in self._names:
                self._names[frame.f_code] = name_of(frame)
            seen.add(frame.f_code)
            frame = frame.f_back
        self._within.update(seen)


def name_of(frame: FrameType) -> str:
    """What is called; what a dataclass has generated is named after the class."""
    code = frame.f_code
    if code.co_filename == "<string>" and "self" in frame.f_locals:
        return f"{type(frame.f_locals['self']).__qualname__}.{code.co_name}"
    return code.co_qualname


def used() -> dict[str, float]:
    """Seconds so far: on the clock, of the main thread, and of the process in itself and in the kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall": time.monotonic(),
        "main": time.thread_time(),
        "user": usage.ru_utime,
        "kernel": usage.ru_stime,
    }


if __name__ == "__main__":
    Sampler(Path(sys.argv[1]), sys.argv[2]).install()
    sys.argv = ["dispatcher", *sys.argv[3:]]
    sys.exit(main())
