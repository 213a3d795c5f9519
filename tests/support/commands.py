"""The command line from outside: run to its end, or started and steered; always by its own environment."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from tests.support.forked import SEEN_BY_ALL, Forked
from tests.support.processes import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class Streams(NamedTuple):
    """Where the streams of a command lead: descriptors, or pipes to the test."""

    stdin: int = subprocess.PIPE
    stdout: int = subprocess.PIPE
    stderr: int = subprocess.PIPE


def run(*arguments: str, stdin: str | bytes = b"", **env: str) -> Result:
    """Run ``dispatcher ARGUMENTS`` in the current directory. Its environment is ``env``, and what all processes see."""
    return run_on(Streams(), *arguments, stdin=stdin, **env)


def run_on(streams: Streams, *arguments: str, stdin: str | bytes = b"", **env: str) -> Result:
    """As ``run``, on given streams; the result holds what went to pipes."""
    process = Forked(arguments, env=environment(env), **streams._asdict())
    try:
        out, err = process.communicate(stdin.encode() if isinstance(stdin, str) else stdin, timeout=2 * PATIENCE_S)
    finally:
        process.kill()
    return Result(process.wait(), (out or b"").decode(), (err or b"").decode())


def started(*arguments: str, **env: str) -> AbstractContextManager[Forked]:
    """Start ``dispatcher ARGUMENTS`` in a session of its own, all streams pipes of text; killed at the end."""
    return started_on(Streams(), *arguments, **env)


@contextmanager
def started_on(streams: Streams, *arguments: str, **env: str) -> Iterator[Forked]:
    """As ``started``, on given streams."""
    process = Forked(arguments, env=environment(env), **streams._asdict(), text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: Forked) -> Result:
    """How a started command ends by itself."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Result(process.wait(), out, err)


def rest_of(ours: int) -> str:
    """All that was written to a terminal whose other side is closed; not all of it arrives at once."""
    drawn = b""
    with suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 65_536):
            drawn += piece
    return drawn.decode()


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


def run_typing(answer: str, *arguments: str, env: Mapping[str, str], stderr: int | None = None) -> tuple[Result, str]:
    """Run a command on a terminal, or with another stderr, where this is typed; also what the terminal shows."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        streams = Streams(stdin=theirs, stderr=theirs if stderr is None else stderr)
        result = run_on(streams, *arguments, TERM="xterm", NO_COLOR="1", **env)
    finally:
        os.close(theirs)
    said = rest_of(ours)
    os.close(ours)
    return result, said


def environment(given: dict[str, str]) -> dict[str, str]:
    """What a command gets to see."""
    return {**SEEN_BY_ALL, **given}
