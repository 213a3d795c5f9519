"""``dispatcher serve`` as a process of a test, and clients of it."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import httpx
from redis.asyncio import Redis
from starlette.applications import Starlette

from dispatcher.app.operating import Desk
from dispatcher.app.servers import Server
from dispatcher.app.serving import Readiness, open_intake
from dispatcher.logs.event_log import build_event_log
from dispatcher.settings.environment import Settings
from dispatcher.web.app import App
from dispatcher.web.auth import Guard
from dispatcher.web.hooks import Hooks
from dispatcher.web.ingest import Ingest
from dispatcher.web.metrics import Metrics
from dispatcher.web.operating import Operating
from dispatcher.web.page.routes import Page
from dispatcher.web.reading import Reading
from dispatcher.web.threads import Threads
from tests.support.processes import PATIENCE_S, Command

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody: each client would read all the certificates of the machine, which takes longer than most requests."""

TOKENS: Final = """\
# name  scopes  secret
shop    ingest         secret-of-shop
eve     read           secret-of-eve
olga    read,operate   secret-of-olga
prom    metrics        secret-of-prom
"""


def app_on(redis_url: str, client: Redis | None = None, *, tokens: Path | None = None) -> Starlette:
    """The application in this process; who uses it to enqueue closes the ``client``."""
    guard = Guard(tokens)
    settings, server, log, threads = Settings.isolated(), Server(redis_url, "there"), build_event_log(), Threads()
    client = client or Redis.from_url(redis_url)
    desk = Desk(settings, server, timeout_s=0.2)
    ingest = Ingest(open_intake(settings, client))
    operating = Operating(desk, threads, log)
    return App(
        guard=guard,
        ingest=ingest,
        hooks=Hooks(ingest, desk, threads, log),
        reading=Reading(desk, threads),
        operating=operating,
        metrics=Metrics(desk, threads),
        page=Page(guard, desk, operating, threads),
        readiness=Readiness(settings, client),
        log=log,
    ).build()


class Serving(Command):
    """The process, and a client that asks it."""

    def __init__(self, redis_url: str, cwd: Path, *arguments: str, port: int = 0, **env: str) -> None:
        env = {"DISPATCHER_REDIS_URL": redis_url, **env}
        super().__init__("serve", "--port", str(port), *arguments, env=env, cwd=cwd, name="serve")
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        if self._url is None:
            self._url = str(self.await_line("serve.started")["url"])
        return self._url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, secret: str | None = None, **options: Any) -> httpx.Client:  # noqa: ANN401 - httpx's own
        """A client; with the secret of a token, if one is given."""
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S, verify=_NO_TLS, **options)

    def post(self, path: str, content: object, **headers: str) -> httpx.Response:
        """One request; ``content`` that is no bytes is sent as JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        named = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        with self.client() as client:
            return client.post(path, content=body, headers=named)

    @contextmanager
    def raw(self) -> Iterator[Raw]:
        """A connection on which anything can be written."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            yield Raw(connection)

    def __enter__(self) -> Self:
        super().__enter__()
        return self


class Raw:
    """Bytes to and from a server."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, *lines: str, body: bytes = b"") -> None:
        """A head of these lines, with an empty line behind it, and a body."""
        self.connection.sendall("\r\n".join((*lines, "", "")).encode() + body)

    def answer(self) -> tuple[int, str]:
        """The status and all that follows until the server closes; 0 where it says nothing."""
        pieces = []
        while piece := self._piece():
            pieces.append(piece)
        text = b"".join(pieces).decode()
        return (int(text.split(" ", 2)[1]) if text else 0), text

    def _piece(self) -> bytes:
        try:
            return self.connection.recv(65_536)
        except ConnectionResetError:
            return b""
