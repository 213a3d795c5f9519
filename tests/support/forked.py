"""``dispatcher ARGUMENTS`` as a process that is forked from one that has everything imported: a few milliseconds each.

What is spared is the import alone. A test whose subject is the start of the interpreter starts one.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

import dispatcher
from dispatcher.cli import main
from dispatcher.server.scripts import read_script
from dispatcher.settings.limits_file import load_limits
from tests.support import secrecy

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
PYTHON_DISPATCHER: Final = (sys.executable, "-m", "dispatcher")
_FACT: Final = struct.Struct("i")

SEEN_BY_ALL: Final = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_REPOSITORY)}
"""The environment of every process that a test starts: it runs the code of this tree, wherever it is installed from."""

FORKS_CHEAPLY: Final = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment of a process that forks others: its memory is huge pages, which a fork copies none of."""


class Forked:
    """A command that runs. It has the streams and methods of ``subprocess.Popen`` that the tests use."""

    def __init__(  # noqa: PLR0913 - as Popen's
        self,
        arguments: tuple[str, ...],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: int,
        stdout: int,
        stderr: int,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        """A stream is a descriptor, ``PIPE`` or ``DEVNULL``."""
        self.args = ("dispatcher", *arguments)
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._text = text
        order = {
            "name": "dispatcher",
            "arguments": arguments,
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "session": start_new_session,
        }
        with ExitStack() as theirs:
            self._told, tells = os.pipe()
            theirs.callback(os.close, tells)
            given = [self._stream(name, kind, theirs) for name, kind in _named(stdin, stdout, stderr)]
            _parent().send(json.dumps(order).encode(), (*given, tells))
        fact = os.read(self._told, _FACT.size)
        assert fact, "the process that forks commands has ended"
        self.pid: int = _FACT.unpack(fact)[0]

    def poll(self) -> int | None:
        """The exit code if it has ended, a signal's number negative."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            fact = os.read(self._told, _FACT.size)
            os.close(self._told)
            assert fact, "the process that forks commands has ended"
            (self.returncode,) = _FACT.unpack(fact)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; ``subprocess.TimeoutExpired`` if it still runs by then."""
        if self.returncode is None:
            select.select([self._told], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, given: str | bytes = b"", timeout: float | None = None) -> tuple[Any, Any]:
        """Write what is given, read both streams to their ends; None for one that is no pipe."""
        end = None if timeout is None else time.monotonic() + timeout
        said: dict[str, Any] = {}

        def write(stream: IO[Any]) -> None:
            with suppress(BrokenPipeError):
                if given:
                    stream.write(given)
            with suppress(BrokenPipeError):
                stream.close()

        def read(name: str, stream: IO[Any]) -> None:
            said[name] = stream.read()
            stream.close()

        threads = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.stdout), ("stderr", self.stderr))
            if stream is not None and not stream.closed
        ]
        if self.stdin is not None and not self.stdin.closed:
            threads.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        if secrecy.SHOWN_BY not in self.args:
            for stream in filter(None, said.values()):
                secrecy.found.add(f"pipes of {self.args!r}", stream)
        return said.get("stdout"), said.get("stderr")

    def send_signal(self, number: int) -> None:
        """Unless it is known to have ended; all command lines are searched before."""
        if self.poll() is None:
            secrecy.found.add_command_lines()
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _stream(self, name: str, kind: int, theirs: ExitStack) -> int:
        """The descriptor for the command; our end of a pipe becomes an attribute."""
        if kind == subprocess.DEVNULL:
            given = os.open(os.devnull, os.O_RDWR)
        elif kind == subprocess.PIPE:
            reads, writes = os.pipe()
            given, ours = (reads, writes) if name == "stdin" else (writes, reads)
            mode = ("w" if name == "stdin" else "r") + ("" if self._text else "b")
            setattr(self, name, os.fdopen(ours, mode, encoding="utf-8" if self._text else None))
        else:
            return kind
        theirs.callback(os.close, given)
        return given


def _named(stdin: int, stdout: int, stderr: int) -> tuple[tuple[str, int], ...]:
    return ("stdin", stdin), ("stdout", stdout), ("stderr", stderr)


class _Parent:
    """The process that has everything imported, and forks what is ordered; it ends with the socket of the orders.

    ``folder`` holds the commands ``dispatcher`` and ``program``, whose orders come each by a connection of its own.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsp-"))  # a short path: it holds a socket
        code = Path(__file__).with_name("forked_command.py").read_text(encoding="utf-8")
        for name in ("dispatcher", "program"):
            command = self.folder / name
            command.write_text(f"#!{sys.executable} -SE\n{code}", encoding="utf-8")
            command.chmod(0o700)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(os.fspath(self.folder / "orders"))
            listener.listen()
            descriptors = theirs.fileno(), listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", *map(str, descriptors)],
                env={**SEEN_BY_ALL, **FORKS_CHEAPLY},
                cwd=self.folder,  # not in that of the test that is the first to need it
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )

    def send(self, order: bytes, descriptors: tuple[int, ...]) -> None:
        socket.send_fds(self._socket, [order], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()
        shutil.rmtree(self.folder)


_parents: list[_Parent] = []


def _parent() -> _Parent:
    if not _parents:
        _parents.append(_Parent())
    return _parents[0]


def shell_folder() -> Path:
    """A PATH that begins with this folder makes ``dispatcher`` a command of a shell, until ``close``.

    ``program`` there runs Python code from its standard input, with every module of the dispatcher imported.
    Whoever kills it with -9 kills the command of the shell, not what runs for it.
    """
    return _parent().folder


def close() -> None:
    """End the process that forks, if there is one."""
    while _parents:
        _parents.pop().close()


def serve(orders: socket.socket, listener: socket.socket) -> None:
    """Fork what is ordered and tell its process id and its end. Returns in each child, once that is set up.

    An order comes by ``orders``, or by a connection of its own to ``listener``.
    """
    heard, rung = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(rung, False)
    signal.set_wakeup_fd(rung)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tells: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([orders.fileno(), listener.fileno(), heard], [], [])
        with suppress(BlockingIOError):
            os.read(heard, 4096)
        for pid, code in _ended():
            with suppress(BrokenPipeError):
                os.write(tells[pid], _FACT.pack(code))
            os.close(tells.pop(pid))
        if orders.fileno() in ready:
            order, descriptors, _, _ = socket.recv_fds(orders, 1_000_000, 4)
            if not order:
                sys.exit()
        elif listener.fileno() in ready:
            with listener.accept()[0] as source:
                order, descriptors, _, _ = socket.recv_fds(source, 1_000_000, 4)
        else:
            continue
        *streams, tell = descriptors
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            _become(json.loads(order), streams)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        tells[pid] = tell
        os.write(tell, _FACT.pack(pid))
        for stream in streams:
            os.close(stream)


def _ended() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    with suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((end[0], os.waitstatus_to_exitcode(end[1])))
    return found


def _become(order: dict[str, Any], streams: list[int]) -> None:
    """Give the forked process what an interpreter that starts would have."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()  # the zone is read at a start only
    sys.argv = [order["name"], *order["arguments"]]
    for theirs, descriptor in enumerate(streams):
        os.dup2(descriptor, theirs)
    os.closerange(3, 1 << 16)
    reads, writes, complains = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = os.fdopen(0, "r", encoding=reads.encoding, errors=reads.errors, closefd=False)
    sys.stdout = os.fdopen(
        1, "w", 1 if os.isatty(1) else -1, encoding=writes.encoding, errors=writes.errors, closefd=False
    )
    sys.stderr = os.fdopen(2, "w", 1, encoding=complains.encoding, errors=complains.errors, closefd=False)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))  # by name: type checkers hold these to be final


def _import_everything() -> None:
    """What each command would do alike is done once."""
    metadata.version = cache(metadata.version)  # as in conftest.py
    metadata.version("redis")
    left_out: tuple[str, ...] = ("dispatcher.__main__", "dispatcher.testing.plugin")
    if find_spec("starlette") is None:  # without the extra serve
        left_out += ("dispatcher.web",)
    for module in pkgutil.walk_packages(dispatcher.__path__, "dispatcher."):
        if not module.name.startswith(left_out):
            import_module(module.name)
    warm_up()


def warm_up() -> None:
    """Before the first fork: what every command or worker would read, compile and collect anew."""
    for file in _REPOSITORY.glob("lua/*.lua"):
        read_script(file.stem)
    load_limits(_REPOSITORY / "config" / "limits.yaml")  # compiles the patterns of the parser
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # as in conftest.py


def run() -> None:
    """The command line. Its end is that of the process: taking an interpreter apart costs more than most commands."""
    try:
        if sys.argv[0] == "program":
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})  # noqa: S102 - what was ordered
        else:
            main()
    except SystemExit as end:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # what the interpreter makes of it, tests of real ones say
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    _import_everything()
    serve(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])))
    run()
