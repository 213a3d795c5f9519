"""The HTTP side of ``up``: one child beside the workers, on a socket of its parent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dispatcher.cli.exits import DEFECT, DONE
from dispatcher.cli.serve import guard_of, missing_packages, reread_tokens, serve_on
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.web.listening import listen, url_of

if TYPE_CHECKING:
    import socket

    from dispatcher.cli.worker import Job
    from dispatcher.web.auth import Guard


@dataclass(frozen=True, slots=True)
class Http:
    """``said`` tells a person where it is, or why it is not; ``door`` is None where it is not."""

    said: str
    door: Door | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """The child that serves."""

    listening: socket.socket
    guard: Guard
    patience_s: ClassVar[float] = 15.0

    def run(self, job: Job) -> int:
        """Serve until a signal; returns the exit code."""
        from dispatcher.app.servers import kept_server

        reread_tokens(self.guard, job.log)  # the parent may have read them long ago
        try:
            with kept_server(job.settings, job.log.say), job.interruption.outranks_errors():
                serve_on(self.listening, job.settings, job.server, self.guard, job.log, job.interruption)
        except DispatcherError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours; what was answered with 202 is on the queue
            job.log.failed(error, "serve.failed")
            return DEFECT
        return DONE

    def reread(self) -> None:
        """In the parent, for a child to come that finds faults in the file; the child of now tells of these."""
        with suppress(ConfigError):
            self.guard.reread()

    def close(self) -> None:
        """For the others: else the socket would be open, and nobody would answer, for as long as one of them runs."""
        self.listening.close()


@contextmanager
def opened(job: Job, *, wanted: bool) -> Iterator[Http]:
    """The socket, until it is closed or the context ends; none without the extra, or where the port is in use.

    Raises ``ConfigError`` where the tokens are wrong, or missing at an address that is not loopback's.
    """
    settings = job.settings
    if not wanted:
        yield Http("no, as --no-serve says")
        return
    if missing_packages():
        yield Http("no; for it: install the extra 'serve' of the package, in a checkout by pip install '.[serve]'")
        return
    guard = guard_of(settings, settings.serve_host)
    try:
        listening = listen(settings.serve_host, settings.serve_port)
    except ConfigError as error:
        detail = f"{error}; set DISPATCHER_SERVE_PORT to another, 0 for a free one"
        yield Http(f"no: {error}", fault=f"HTTP is off: {detail}")
        return
    with listening:
        yield Http(f"{url_of(listening)}: its page, in a browser, shows what happens", Door(listening, guard))
