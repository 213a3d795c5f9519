"""What one peer may cost: connections, bytes and seconds, each with its bound."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from dispatcher.server.within import Within
from dispatcher.web.problems import AWAY_RETRY_S, Problem, document, unavailable

MOST_CONNECTIONS: Final = 512
MOST_HEAD: Final = 16 * 1024
MOST_BODY: Final = 4 * 1024 * 1024
MOST_BODIES: Final = 64 * 1024 * 1024
"""Bytes of the bodies of all requests together that are in hand: four of the largest that there are."""

HEAD_S: Final = 10.0
BODY_S: Final = 10.0
ANSWER_S: Final = 2.4
"""Within 2.5 s of the body's end there is an answer; a tenth of a second is for writing it."""

KEEP_ALIVE_S: Final = 5
READ_S: Final = 30.0
"""How long a peer may take to read an answer."""

_LINE: Final = len(b": \r\n")
_PLAIN: Final = frozenset({"", "identity"})
"""The encodings of a body that is not compressed."""

Handler: TypeAlias = Callable[[Request, bytes], Awaitable[Response]]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def bounded(handler: Handler, most: int = MOST_BODY, remedy: str = "") -> Endpoint:
    """The handler behind the bounds of one request; it gets the whole body, and in ``asked_at`` when that had come.

    A body of over ``most`` bytes is answered with 413, whose detail ends with ``remedy``.
    """

    async def endpoint(request: Request) -> Response:
        _check_head(request)
        with Held() as held:
            body = await _read(request, most, remedy, held)
            request.state.asked_at = asyncio.get_running_loop().time()
            try:
                async with Within(ANSWER_S):
                    return await handler(request, body)
            except TimeoutError:
                raise unavailable("there was no answer in time; what was asked for may have been done") from None

    return endpoint


class Held:
    """The bytes of one body among those of all requests of this process, from their arrival until the answer."""

    of_all = 0

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, count: int) -> None:
        """So many more have come; raises ``Problem`` where they are too many for all together."""
        self._bytes += count
        Held.of_all += count
        if Held.of_all > MOST_BODIES:
            detail = f"the bodies of all requests in hand are over {MOST_BODIES} bytes together"
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                detail,
                headers={"Retry-After": str(AWAY_RETRY_S), "Connection": "close"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        Held.of_all -= self._bytes


def _check_head(request: Request) -> None:
    scope = request.scope
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) + _LINE for name, value in scope["headers"]) > MOST_HEAD:
        raise Problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head of the request is over {MOST_HEAD} bytes")


async def _read(request: Request, most: int, remedy: str, held: Held) -> bytes:
    """The body; raises ``Problem`` for one that is too large or too slow."""
    too_large = Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is over {most} bytes{remedy}")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                held.add(len(piece))
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        detail = f"the body took over {BODY_S:g} s"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "the connection ended before the body did") from None
    encodings = [each for each in request.headers.getlist("content-encoding") if each.strip().lower() not in _PLAIN]
    if body and encodings:
        detail = f"content-encoding is {encodings[0][:80]!r}, expected none"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    return bytes(body)


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which also bounds connections, and the time of every phase of a request.

    A connection waits for a head, then for a body, then for its answer to be read; a timer for each phase ends it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **options)
        self._phase: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"there are {MOST_CONNECTIONS} connections already")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def eof_received(self) -> bool:  # type: ignore[override] # as asyncio has it
        """See ``asyncio.Protocol``; a peer that ends its side behind a whole request still gets the answer."""
        self._has_ended = True
        is_whole = self.conn.their_state in {h11.DONE, h11.MUST_CLOSE}
        return is_whole and self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """See uvicorn; from here on its own timer bounds the time until the next request."""
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE:
            self._watch()
            return
        self._stop_timer()
        if self._has_ended:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn; a peer that has not read its answer holds the connection no longer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(READ_S, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called where h11 refuses what it reads; it knows which answer that has."""
        hint = getattr(sys.exception(), "error_status_hint", HTTPStatus.BAD_REQUEST)
        too_large = f"the head of the request is over {MOST_HEAD} bytes"
        self._refuse(hint, too_large if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else msg)

    def _watch(self) -> None:
        """Begin the timer of the phase that the request is in, unless it runs; the next request has its own."""
        phase = self.conn.their_state
        if (self.cycle, phase) == self._phase or self.transport.is_closing():
            return
        self._stop_timer()
        self._phase = (self.cycle, phase)
        if phase is h11.IDLE:
            self._timer = self.loop.call_later(HEAD_S, self._head_is_late)
        else:
            bound = BODY_S + ANSWER_S if phase is h11.SEND_BODY else ANSWER_S + READ_S
            self._timer = self.loop.call_later(bound, self.transport.abort)

    def _stop_timer(self) -> None:
        self._phase = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request took over {HEAD_S:g} s")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer without the application, and close; h11 may be in a state in which it writes nothing."""
        body = json.dumps(document(status, detail, {})).encode()
        lines = [
            f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}",
            "content-type: application/problem+json",
            f"content-length: {len(body)}",
            "connection: close",
            *([f"retry-after: {AWAY_RETRY_S}"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
        ]
        if not self.transport.is_closing():
            self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            self.transport.close()
            self.loop.call_later(READ_S, self.transport.abort)
