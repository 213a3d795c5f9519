"""The stand-in's HTTP: reads a request, has it answered, and plays the fault that is due for it."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, assert_never
from urllib.parse import parse_qsl, urlsplit

from dispatcher.core.units import is_loopback
from dispatcher.stand_in import faults as fault
from dispatcher.stand_in.answers import WEBHOOK, Answer, Call, rate_limited, refused
from dispatcher.stand_in.page import as_json, render
from dispatcher.stand_in.workspace import POSTING, Workspace

HOST: Final = "127.0.0.1"
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024

_JSON: Final = "application/json; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_TEXT: Final = "text/plain; charset=utf-8"
_PAGES: Final = ("/", "/ledger")
_HTTP_PORT: Final = 80
_DOWN: Final = fault.not_landed(fault.Page(HTTPStatus.SERVICE_UNAVAILABLE))
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class Server(ThreadingHTTPServer):
    """One thread per connection; ``cut_off`` ends them all, so that closing the server waits for nobody."""

    request_queue_size = 512  # the default of 5 makes callers who come at once wait for seconds
    daemon_threads = False  # so that server_close waits for the threads

    def __init__(self, port: int, workspace: Workspace, faults: fault.Faults) -> None:
        """Bound but not listening yet: connections are refused, and nobody else gets the port."""
        super().__init__((HOST, port), Handler, bind_and_activate=False)
        self.workspace = workspace
        self.faults = faults
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._holds: set[fault.Hold] = set()
        try:
            self.server_bind()
        except OSError:
            self.server_close()
            raise

    def server_bind(self) -> None:
        """Bind without looking up this machine's name as the parent does: that can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def note(self, connection: socket.socket) -> None:
        """Remember a connection that ``cut_off`` has to end."""
        with self._lock:
            self._open.add(connection)
        if self.stopping.is_set():
            _shut(connection)

    def forget(self, connection: socket.socket) -> None:
        """The connection has ended by itself."""
        with self._lock:
            self._open.discard(connection)

    def keep(self, hold: fault.Hold) -> None:
        """Wait for a hold, but not beyond ``cut_off``."""
        with self._lock:
            self._holds.add(hold)
        if not self.stopping.is_set():
            hold.keep()

    def cut_off(self) -> None:
        """End every connection, whatever it is waiting for."""
        self.stopping.set()
        with self._lock:
            for connection in self._open:
                _shut(connection)
            for hold in self._holds:
                hold.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the parent's signature
        """A caller that went away is no error of ours; anything else is printed, as the parent does."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection; by HTTP/1.1 it may carry several requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        """Called by the parent when the connection is made."""
        super().setup()
        self.server.note(self.connection)

    def finish(self) -> None:
        """Called by the parent when the connection ends."""
        self.server.forget(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the parent's signature
        """Says nothing: the ledger and the page show what happened."""

    def parse_request(self) -> bool:
        """Called by the parent to read a request: whether it is to be served."""
        return super().parse_request() and self._is_let_in()

    def _is_let_in(self) -> bool:
        """Refuses what a browser sends for others: by a name of theirs that leads here, or from a page of theirs."""
        if not self._is_own(self.headers.get("Host", "")):
            said = f"expected Host: {HOST}:{self.server.server_port}, as in the address this stand-in told"
            self._turn_away(HTTPStatus.MISDIRECTED_REQUEST, said)
            return False
        changes_something = self.command != "GET" or urlsplit(self.path).path not in _PAGES
        if changes_something and self._is_of_another_site():
            self._turn_away(HTTPStatus.FORBIDDEN, "pages of other sites may not call this stand-in")
            return False
        return True

    def _turn_away(self, status: int, said: str) -> None:
        if self._body() is None:
            self.close_connection = True
        self._send(status, _TEXT, said.encode())

    def _is_own(self, host: str) -> bool:
        """Whether a host and port are this machine and this port."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or _HTTP_PORT
        except ValueError:
            return False
        return port == self.server.server_port and (name == HOST or is_loopback(name))

    def _is_of_another_site(self) -> bool:
        origin = self.headers.get("Origin")
        is_own = origin is None or (origin.startswith("http://") and self._is_own(origin.removeprefix("http://")))
        return not is_own or self.headers.get("Sec-Fetch-Site") == "cross-site"

    def do_GET(self) -> None:
        """The page, the ledger, and methods whose arguments stand in the address."""
        path, shown = urlsplit(self.path).path, (self.server.workspace, self.server.faults)
        if path == "/":
            self._send(HTTPStatus.OK, _HTML, render(*shown).encode("utf-8", "replace"))
        elif path == "/ledger":
            self._send(HTTPStatus.OK, _JSON, json.dumps(as_json(*shown)).encode())
        elif path.startswith("/api/"):
            self._serve(self._api_call(path, dict(parse_qsl(urlsplit(self.path).query))))
        else:
            self._send(HTTPStatus.NOT_FOUND, _TEXT, b"not found")

    def do_POST(self) -> None:
        """Methods, webhooks and the reset."""
        path, body = urlsplit(self.path).path, self._body()
        if body is None:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TEXT, b"too large")
        elif path == "/reset":
            self.server.faults.clear()
            self.server.workspace.reset()
            self._send(HTTPStatus.OK, _TEXT, b"ok")
        elif path.startswith("/api/"):
            self._serve(self._api_call(path, self._arguments(body)))
        elif path.startswith("/services/"):
            self._serve(Call(WEBHOOK, {"path": path, "payload": self._payload(body)}))
        else:
            self._send(HTTPStatus.NOT_FOUND, _TEXT, b"not found")

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_REQUEST_BYTES or "Transfer-Encoding" in self.headers:
            return None
        return self.rfile.read(int(length))

    def _arguments(self, body: bytes) -> dict[str, Any]:
        """The arguments in a JSON or form body; none when there is nothing to read."""
        text = body.decode("utf-8", "replace")
        if self._is_form():
            return dict(parse_qsl(text, keep_blank_values=True))
        decoded = _decoded(text)
        return decoded if isinstance(decoded, dict) else {}

    def _payload(self, body: bytes) -> object:
        """What a webhook is sent, as JSON or in a form's field ``payload``; None where nothing can be read."""
        if self._is_form():
            return _decoded(self._arguments(body).get("payload"))
        return _decoded(body.decode("utf-8", "replace"))

    def _is_form(self) -> bool:
        return self.headers.get_content_type() == "application/x-www-form-urlencoded"

    def _api_call(self, path: str, arguments: dict[str, Any]) -> Call:
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        token = bearer.strip() if scheme.lower() == "bearer" else arguments.pop("token", None)
        return Call(path.removeprefix("/api/"), arguments, token or None)

    def _serve(self, call: Call) -> None:
        self.server.workspace.arrived(call)
        due = self._fault_for(call)
        if due is None:
            self._answer(self.server.workspace.answer(call))
            return
        answer = self.server.workspace.answer(call) if due.landed else _not_done(call)
        self._play(due.reply, call, answer)

    def _fault_for(self, call: Call) -> fault.Fault | None:
        if self.server.workspace.is_down(refusing=False):
            self.server.faults.note(_DOWN)
            return _DOWN
        return self.server.faults.take(fault.POST if call.method in POSTING else call.method)

    def _play(self, reply: fault.FaultReply, call: Call, answer: Answer) -> None:
        match reply:
            case fault.SlackError(code):
                self._answer(refused(call.method, code))
            case fault.TooManyRequests(retry_after):
                if retry_after is not None and retry_after.isdecimal():
                    self.server.workspace.told_to_wait(call, int(retry_after))
                self._answer(rate_limited(call.method, retry_after))
            case fault.Page(status, html, headers):
                self._send(status, _HTML, html.encode(), dict(headers))
            case fault.Text(text):
                self._send(HTTPStatus.OK, _JSON, text.encode())
            case fault.Held(hold):
                self.server.keep(hold)
                self._answer(answer)
            case fault.Slow(after_s):
                self.server.stopping.wait(after_s)
                self._answer(answer)
            case _:
                self.close_connection = True
                self._break(reply, *self._written(answer))

    def _break(self, reply: fault.BrokenAnswer, head: bytes, body: bytes) -> None:
        match reply:
            case fault.CutBody():
                self._write(head + body[: len(body) // 2])
            case fault.Drip(interval_s, at_once):
                self._drip(head + body, interval_s, at_once)
            case fault.Hang():
                self.connection.recv(1)
            case fault.Close():
                return
            case fault.Reset():
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                self.rfile.close()  # the socket closes only when nothing reads from it any more
                self.connection.close()
            case unreachable:
                assert_never(unreachable)

    def _drip(self, answer: bytes, interval_s: float, at_once: int) -> None:
        self._write(answer[:at_once])
        for position in range(at_once, len(answer)):
            if self.server.stopping.wait(interval_s):
                break
            self._write(answer[position : position + 1])

    def _answer(self, answer: Answer) -> None:
        self._write(b"".join(self._written(answer)))

    def _send(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._write(self._head(status, kind, len(body), headers or {}) + body)

    def _written(self, answer: Answer) -> tuple[bytes, bytes]:
        """The head and the body of an answer."""
        is_text = isinstance(answer.body, str)
        body = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
        return self._head(answer.status, _TEXT if is_text else _JSON, len(body), answer.headers), body

    def _head(self, status: int, kind: str, length: int, headers: Mapping[str, str]) -> bytes:
        lines = [
            f"HTTP/1.1 {status} {_phrase(status)}",
            f"Date: {formatdate(self.server.workspace.setup.clock(), usegmt=True)}",
            f"Content-Type: {kind}",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in headers.items()),
            *(["Connection: close"] if self.close_connection else []),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, data: bytes) -> None:
        """One write per answer, so that it leaves in one piece."""
        self.wfile.write(data)


def _not_done(call: Call) -> Answer:
    """What a call is told in the end that was not carried out: never that all is well."""
    return Answer("rollup_error", 500) if call.method == WEBHOOK else refused(call.method, "internal_error")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _decoded(text: object) -> Any:  # noqa: ANN401 - decoded JSON
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself
