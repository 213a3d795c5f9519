"""The command line from outside: run to its end, or started and steered; always by its own environment."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tests.support.forked import Forked
from tests.support.processes import PATIENCE_S

PYTHON_DISPATCHER: Final = (sys.executable, "-m", "dispatcher")


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def run(*arguments: str, stdin: str | bytes = b"", **env: str) -> Result:
    """Run ``dispatcher ARGUMENTS`` in the current directory, with nothing but ``env`` and PATH in its environment."""
    process = Forked(
        arguments, env=environment(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    given = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        out, err = process.communicate(given, timeout=2 * PATIENCE_S)
    finally:
        process.kill()
    return Result(process.wait(), out.decode(), err.decode())


@contextmanager
def started(*arguments: str, **env: str) -> Iterator[Forked]:
    """Start ``dispatcher ARGUMENTS`` in a session of its own, all streams pipes of text; killed at the end."""
    process = Forked(
        arguments,
        env=environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: Forked) -> Result:
    """How a started command ends by itself."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Result(process.wait(), out, err)


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A terminal to hand to a command as a stream, and what was written to it, once its other users have ended."""
    ours, theirs = pty.openpty()
    drawn = bytearray()

    def collect() -> None:
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 65_536):
                drawn.extend(piece)

    reader = threading.Thread(target=collect)
    reader.start()

    def written() -> str:
        with suppress(OSError):
            os.close(theirs)
        reader.join(PATIENCE_S)
        return drawn.decode()

    try:
        yield theirs, written
    finally:
        written()
        os.close(ours)


def environment(given: dict[str, str]) -> dict[str, str]:
    """What a command gets to see."""
    return {"PATH": os.environ["PATH"], **given}
