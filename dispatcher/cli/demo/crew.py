"""The demo's worker processes: forked before anything runs in a thread, ended with the demo, however that ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

_END_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.01


class Crew:
    """Processes that each wait for a word and then call ``work`` with it; each writes its stderr to a log of its own.

    They are in the background of the terminal, so Ctrl-C is the demo's alone. When the demo dies they get SIGTERM.
    """

    def __init__(self, work: Callable[[str], None], logs: list[Path]) -> None:
        self.logs = logs
        self._words: dict[int, int] = {}
        self.lost: list[int] = []
        """Processes that ended before they were told to."""
        for log in logs:
            hears, says = os.pipe()
            pid = os.fork()
            if pid == 0:
                for other in (says, *self._words.values()):
                    os.close(other)
                _become_worker(work, hears, log)
            os.close(hears)
            self._words[pid] = says

    def begin(self, word: str) -> None:
        """Have them start with ``word``."""
        for says in self._words.values():
            os.write(says, f"{word}\n".encode())

    def check(self) -> None:
        """Note who has ended."""
        for pid in [pid for pid in self._words if os.waitpid(pid, os.WNOHANG)[0]]:
            os.close(self._words.pop(pid))
            self.lost.append(pid)

    def end(self) -> None:
        """SIGTERM to each, and SIGKILL to who takes longer than 10 s; returns when all have ended."""
        lost = list(self.lost)
        for pid in self._words:
            os.kill(pid, signal.SIGTERM)
        give_up = time.monotonic() + _END_TIMEOUT_S
        while self._words:
            self.check()
            if self._words and time.monotonic() > give_up:
                for pid in self._words:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)
        self.lost = lost


def _become_worker(work: Callable[[str], None], hears: int, log: Path) -> NoReturn:
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(written, 1)
        os.dup2(written, 2)
        word = b""
        while not word.endswith(b"\n"):
            piece = os.read(hears, 1024)
            if not piece:
                os._exit(0)
            word += piece
        threading.Thread(target=_end_with, args=(hears,), daemon=True, name="demo").start()
        work(word.decode().strip())
        code = 0
    except BaseException as error:  # noqa: BLE001 - a forked process must not go on as the demo
        with suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _end_with(demo: int) -> None:
    """SIGTERM for this process when the demo's end of the pipe closes."""
    os.read(demo, 1)
    os.kill(os.getpid(), signal.SIGTERM)
