"""The stand-in's server: start, stop, addresses, and what tests steer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from dispatcher.errors import ConfigError
from dispatcher.stand_in.faults import Faults
from dispatcher.stand_in.ledger import Ledger
from dispatcher.stand_in.outages import Watch
from dispatcher.stand_in.setup import WEBHOOK_PATH, Setup
from dispatcher.stand_in.wire import HOST, Server
from dispatcher.stand_in.workspace import Workspace

_POLL_S = 0.02  # how long a stop may wait for the accepting thread


class StandIn:
    """A local Slack on 127.0.0.1.

    ``port`` 0 takes a free one; ``setup`` says what its workspace is like, ``faults`` what goes wrong by chance. The
    attribute ``faults`` takes what is to go wrong next, ``workspace`` is what Slack would hold, ``ledger`` what has
    landed. Use it as a context manager, or ``start`` and ``stop``; state outlives a stop.
    """

    def __init__(self, port: int = 0, setup: Setup | None = None, faults: Faults | None = None) -> None:
        self.workspace = Workspace(setup or Setup())
        self.faults = faults or Faults()
        self._port = port
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None

    @property
    def port(self) -> int:
        """The port, known once started."""
        return self._port

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self._port}/"

    @property
    def base_url(self) -> str:
        """The Web API root, for ``DISPATCHER_SLACK_BASE_URL``."""
        return f"{self.url}api/"

    @property
    def webhook_url(self) -> str:
        """The incoming webhook, for ``DISPATCHER_SLACK_WEBHOOK_URL``."""
        return f"{self.url}{WEBHOOK_PATH.removeprefix('/')}"

    @property
    def token(self) -> str:
        """The one bot token it accepts."""
        return self.workspace.setup.token

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a worker posts here."""
        return {"DISPATCHER_SLACK_BASE_URL": self.base_url, "DISPATCHER_SLACK_TOKEN": self.token}

    @property
    def ledger(self) -> Ledger:
        """What has landed."""
        return self.workspace.ledger

    def start(self) -> None:
        """Listen, and answer in the background; raises ``ConfigError`` when the port is taken."""
        self._server = self._bind()
        self._port = self._server.server_port
        if not (is_down := self._is_down()):
            self._listen(self._server)
        if any(outage.refuses for outage in self.workspace.setup.outages):
            self._watch = Watch(self._is_down, self.go_down, self.come_back, was_closed=is_down)
            self._watch.start()

    def stop(self) -> None:
        """End every connection and the server; returns when its threads have ended. Twice does no harm."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._close()

    def go_down(self) -> None:
        """From now on connections are refused; those that are open end. The port stays ours."""
        self._close()
        self._server = self._bind()

    def come_back(self) -> None:
        """Listen again on the same port."""
        if self._server is not None and self._thread is None:
            self._listen(self._server)

    @contextmanager
    def down(self) -> Iterator[None]:
        """A window in which connections are refused."""
        self.go_down()
        try:
            yield
        finally:
            self.come_back()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_down(self) -> bool:
        return self.workspace.is_down(refusing=True)

    def _bind(self) -> Server:
        try:
            return Server(self._port, self.workspace, self.faults)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {self._port} on {HOST} cannot be used ({error}), expected a free one") from error

    def _listen(self, server: Server) -> None:
        server.server_activate()
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="slack-stand-in", daemon=True
        )
        self._thread.start()

    def _close(self) -> None:
        if self._server is None:
            return
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.cut_off()
        self._server.server_close()
        self._server = None
