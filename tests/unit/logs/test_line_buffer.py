"""Lines wait for their reader in memory: nobody who puts one waits, and what finds no room is counted."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, TextIO

import pytest

from dispatcher.logs.line_buffer import LineBuffer
from tests.support.forked import SEEN_BY_ALL
from tests.support.processes import until

PATIENCE_S: Final = 20.0
LINE: Final = b"x" * 99 + b"\n"
PIPE_BYTES: Final = 4096


class Pipe:
    """A file that a test reads when it wants to."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stream: TextIO = os.fdopen(writes, "w", encoding=encoding)
        self.got = b""
        self._thread: threading.Thread | None = None

    def begin_to_read(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def lines(self, count: int) -> list[bytes]:
        """The first so many lines that arrive."""
        if self._thread is None:
            self.begin_to_read()
        until(lambda: self.got.count(b"\n") >= count, f"{count} lines")
        return self.got.splitlines()

    def close(self) -> None:
        os.close(self.reads)

    def _read(self) -> None:
        while piece := os.read(self.reads, 65_536):
            self.got += piece


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    yield opened
    opened.stream.close()


def stalled(pipe: Pipe, most_bytes: int) -> LineBuffer:
    """A buffer whose thread waits in the middle of a write."""
    lines = LineBuffer(pipe.stream, most_bytes=most_bytes)
    lines.put(LINE * (2 * PIPE_BYTES // len(LINE)))
    assert not lines.drain(0.01)
    return lines


def test_lines_without_room_are_left_out_and_counted_in_their_place(pipe: Pipe) -> None:
    lines = stalled(pipe, 20_000)
    lines.tell = lambda count: lines.put(b"%d left out\n" % count)
    for number in range(1000):
        lines.put(b"%03d" % number + LINE[3:])
    pipe.begin_to_read()
    assert lines.drain(PATIENCE_S)
    lines.put(b"later\n")
    until(lambda: pipe.got.endswith(b"later\n"), "the last line")
    *before, gap, later = [line.partition(b"x")[0] for line in pipe.got.splitlines() if line[:1] != b"x"]
    assert before == [b"%03d" % number for number in range(len(before))]
    assert (gap, later) == (b"%d left out" % (1000 - len(before)), b"later")
    assert 0 < len(before) < 1000


def test_a_gap_is_told_without_another_line(pipe: Pipe) -> None:
    lines = stalled(pipe, 10_000)
    told: list[int] = []
    lines.tell = told.append
    lines.put(LINE * 1000)
    assert told == []
    pipe.begin_to_read()
    until(lambda: told, "the count")
    assert told == [1000]


def test_a_reader_that_is_gone_holds_up_nobody() -> None:
    pipe = Pipe()
    lines = LineBuffer(pipe.stream)
    pipe.close()
    lines.put(LINE)
    assert lines.drain(PATIENCE_S)
    pipe.stream.close()


def test_lines_that_a_full_disk_refuses_are_counted_when_it_takes_lines_again(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, write = LineBuffer(pipe.stream), os.write
    told: list[int] = []
    lines.tell = told.append

    def full(_file: int, _piece: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    lines.put(LINE * 3)
    assert lines.drain(PATIENCE_S)
    monkeypatch.setattr(os, "write", write)
    assert told == []
    lines.put(LINE)
    until(lambda: told == [3], "the count")


FILLS: Final = """
import os, resource, sys
from dispatcher.logs.line_buffer import LineBuffer

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

lines = LineBuffer(sys.stderr)
lines.tell = lambda count: lines.put(b"%d left out\\n" % count)
room(250)
lines.put(b"".join(b"%099d\\n" % number for number in range(5)))
lines.put(b"%099d\\n" % 5)
room(300)
lines.put(b"%099d\\n" % 6)
room(1000)
lines.put(b"later\\n")
lines.put(b"last\\n")
"""


def test_a_line_that_a_full_disk_tears_is_counted_and_spoils_no_other(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", FILLS], env=SEEN_BY_ALL, cwd=tmp_path, stderr=log, check=True)
    written = (tmp_path / "log").read_bytes().splitlines()
    assert written[:2] == [b"%099d" % number for number in range(2)]
    assert [len(line) for line in written[2:4]] == [50, 49], "what was torn: of the third line, of the last one"
    assert written[4:] == [b"later", b"5 left out", b"last"]


def test_the_thread_that_writes_what_waited_ends_with_the_buffer(pipe: Pipe) -> None:
    before = {*threading.enumerate()}
    lines = stalled(pipe, 10_000)
    (thread,) = {*threading.enumerate()} - before
    pipe.begin_to_read()
    assert lines.drain(PATIENCE_S)
    lines.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_file_that_was_made_non_blocking_gets_every_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    lines = LineBuffer(pipe.stream)
    for number in range(1000):
        lines.put(b"%09d\n" % number)
    assert not lines.drain(0.01)
    assert pipe.lines(1000) == [b"%09d" % number for number in range(1000)]


def test_a_stream_of_another_encoding_gets_what_it_can_show() -> None:
    pipe = Pipe("ascii")
    lines = LineBuffer(pipe.stream)
    lines.put("für\n".encode())
    assert pipe.lines(1) == [b"f\\xfcr"]
    pipe.stream.close()


def test_a_stream_without_a_file_is_written_as_well() -> None:
    stream = io.StringIO()
    lines = LineBuffer(stream)
    lines.put("für\n".encode())
    assert lines.drain(PATIENCE_S)
    assert stream.getvalue() == "für\n"


FORKS: Final = """
import os, sys
from dispatcher.logs.line_buffer import LineBuffer

def put(who):
    for number in range(400):
        lines.put(b"%s %050d\\n" % (who, number))

lines = LineBuffer(sys.stderr)
put(b"parent")
child = os.fork()
put(b"parent-again" if child else b"child")
if not child:
    os.close(1)
if not lines.drain(20):
    os._exit(1)
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_forked_process_writes_its_own_lines_whole_and_none_of_its_parent(pipe: Pipe, tmp_path: Path) -> None:
    """The reader stalls when it forks: the parent's thread is in the middle of a write."""
    begun, told = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        env=SEEN_BY_ALL,
        cwd=tmp_path,
        stdout=told,
        stderr=pipe.stream,
    )
    os.close(told)
    until(lambda: is_full(pipe), "the reader stalled")
    pipe.begin_to_read()
    assert process.wait(PATIENCE_S) == 0
    os.close(begun)
    written = pipe.lines(1200)
    for who in (b"parent", b"parent-again", b"child"):
        own = [line for line in written if line.partition(b" ")[0] == who]
        assert own == [b"%s %050d" % (who, number) for number in range(400)]
    assert len(written) == 1200


def is_full(pipe: Pipe) -> bool:
    return not select.select([], [pipe.stream], [], 0)[1]


@pytest.mark.parametrize("kind", ["file", "pipe", "socket", "terminal"])
def test_a_line_is_written_before_put_returns_where_its_reader_takes_it(kind: str, tmp_path: Path) -> None:
    """What a process has told is there also when it is killed a moment later."""
    reads, writes = opened(kind, tmp_path)
    with os.fdopen(writes, "w") as stream:
        before = {*threading.enumerate()}
        with closing(LineBuffer(stream)) as lines:
            lines.put(LINE)
        assert os.read(reads, 1000).replace(b"\r", b"") == LINE
        assert {*threading.enumerate()} <= before
    os.close(reads)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_writer_does_not_wait_for_a_pipe_a_socket_or_a_terminal(kind: str, tmp_path: Path) -> None:
    reads, writes = opened(kind, tmp_path)
    with os.fdopen(writes, "w") as stream:
        with closing(LineBuffer(stream, most_bytes=1_000_000)) as lines:
            for _ in range(10_000):
                lines.put(LINE)
            assert not lines.drain(0.01)
        got = b""
        while got.count(b"\n") < 10_000:
            got += os.read(reads, 65_536).replace(b"\r", b"")
        assert got == LINE * 10_000
    os.close(reads)


def opened(kind: str, place: Path) -> tuple[int, int]:
    """The two ends of a way from who writes lines to who reads them."""
    match kind:
        case "pipe":
            return os.pipe()
        case "terminal":
            return pty.openpty()
        case "socket":
            ours, theirs = socket.socketpair()
            return ours.detach(), theirs.detach()
        case _:
            (place / "log").touch()
            return os.open(place / "log", os.O_RDONLY), os.open(place / "log", os.O_WRONLY)
