"""A slow link to the stand-in, in a process of its own: ``python -m benchmarks.link PORT MILLISECONDS [CERTIFICATE]``.

What passes in either direction arrives half of so many milliseconds later, and the handshake of TCP takes all of them.
At the far end TLS ends where there is a certificate (a file that holds its key too). The process says its port in one
line, and then "opened" for each connection.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from benchmarks.processes import Process
from benchmarks.slack import Slack

_HOST: Final = "127.0.0.1"
_PIECE: Final = 65_536
_OPENED: Final = "opened"
_APART_S: Final = 1e-6
"""Between two pieces that would arrive at one instant: they stay in order."""

_Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Link:
    """A running link: where a worker finds the stand-in behind it, and how many connections were opened."""

    slack: Slack
    process: Process

    def opened(self) -> int:
        """Since it began."""
        return self.process.said().count(_OPENED)


@contextmanager
def link(to: Slack, round_trip_ms: int, folder: Path, certificate: Path | None = None) -> Iterator[Link]:
    """It runs as long as the context lasts."""
    told = [] if certificate is None else [str(certificate)]
    command = (sys.executable, "-m", "benchmarks.link", str(urlsplit(to.base_url).port), str(round_trip_ms), *told)
    with Process(*command, folder=folder) as process:
        process.until(lambda: "\n" in process.said(), "the port of the link")
        scheme = "http" if certificate is None else "https"
        port = process.said().split()[0]
        yield Link(Slack(f"{scheme}://{_HOST}:{port}/api/", to.token), process)


async def _serve(port: int, round_trip_s: float, tls: ssl.SSLContext | None) -> None:
    """Until SIGTERM. The near end delays what passes; the far end speaks TLS and asks the stand-in."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = f"Host: {_HOST}:{port}".encode()
        await _join((reader, writer), await asyncio.open_connection(_HOST, port), 0.0, lambda piece: _named(piece, own))

    async with await asyncio.start_server(leave, _HOST, 0, ssl=tls) as far:
        far_port = far.sockets[0].getsockname()[1]

        async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            print(_OPENED, flush=True)  # noqa: T201 - to its parent
            await _join((reader, writer), await asyncio.open_connection(_HOST, far_port), round_trip_s, _as_it_is)

        async with await asyncio.start_server(enter, _HOST, 0) as near:
            print(near.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - to its parent
            await ended.wait()


def _as_it_is(piece: bytes) -> bytes:
    return piece


def _named(piece: bytes, host: bytes) -> bytes:
    """Requests name the link as their host; the stand-in is told its own name."""
    before, found, after = piece.partition(b"Host: ")
    return before + host + b"\r\n" + after.partition(b"\r\n")[2] if found else piece


async def _join(near: _Ends, far: _Ends, round_trip_s: float, changed: Callable[[bytes], bytes]) -> None:
    """Until both sides have ended."""
    handshake_ends_at = asyncio.get_running_loop().time() + round_trip_s
    await asyncio.gather(
        _pass_on(near[0], far[1], handshake_ends_at, round_trip_s / 2, changed),
        _pass_on(far[0], near[1], handshake_ends_at, round_trip_s / 2, _as_it_is),
        return_exceptions=True,  # a connection that is reset ends
    )


async def _pass_on(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    from_s: float,
    delay_s: float,
    changed: Callable[[bytes], bytes],
) -> None:
    loop, at = asyncio.get_running_loop(), 0.0

    def later() -> float:
        return max(at + _APART_S, max(from_s, loop.time()) + delay_s)

    try:
        while piece := await source.read(_PIECE):
            at = later()
            loop.call_at(at, sink.write, changed(piece))
    finally:
        loop.call_at(later(), sink.close)


def main() -> None:
    """As the module says."""
    port, milliseconds, *certificate = sys.argv[1:]
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate[0])
    asyncio.run(_serve(int(port), int(milliseconds) / 1_000, tls))


if __name__ == "__main__":
    main()
