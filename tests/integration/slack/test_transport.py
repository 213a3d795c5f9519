"""Tests of what happens on the way to Slack: connections, TLS, deadlines and proxies."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher.core.posts import Ambiguous, Receipt, Retryable
from dispatcher.core.states import boottime_s
from dispatcher.errors import ConfigError
from dispatcher.slack.credentials import BotToken
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.transport import ExchangeFailed, Transport
from dispatcher.stand_in import StandIn
from tests.support.hung_servers import resetting
from tests.support.raw_server import POSTED, RawServer, http_reply, read_request
from tests.support.slack import MESSAGE, SuspendedClock, slack_sink, token_sink, webhook_sink


def test_a_refused_connection_is_retryable_and_ends_with_the_outage(slack: StandIn) -> None:
    sink = token_sink(slack)
    with slack.down():
        result = sink.post(MESSAGE)
    assert isinstance(result, Retryable)
    assert (result.code, result.uses_attempt) == ("connection_refused", True)
    assert isinstance(sink.post(MESSAGE), Receipt)


def look_up_nothing(*_: object, **__: object) -> list[Any]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_an_unknown_name_is_retryable() -> None:
    transport = Transport("http://slack.test/api/", 5, resolve=look_up_nothing)
    with pytest.raises(ExchangeFailed, match=r"slack\.test: Name or service not known") as caught:
        transport.post("http://slack.test/api/x", {}, b"")
    assert caught.value.code == "dns_failed"


def test_a_name_server_that_does_not_answer_is_left_behind_at_the_deadline() -> None:
    answered = threading.Event()

    def look_up_slowly(*_: object, **__: object) -> list[Any]:
        answered.wait(10)
        return []

    transport = Transport("http://slack.test/api/", 0.5, resolve=look_up_slowly)
    began = time.monotonic()
    with pytest.raises(ExchangeFailed, match=r"slack\.test was not resolved within 0\.5 s") as caught:
        transport.post("http://slack.test/api/x", {}, b"")
    answered.set()
    assert caught.value.code == "dns_failed"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("proxy", [None, "http://proxy.test:3128"])
def test_a_system_without_room_for_a_thread_makes_no_connection(
    monkeypatch: pytest.MonkeyPatch, proxy: str | None
) -> None:
    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    transport = Transport("http://slack.test/api/", 5, resolve=look_up_nothing)
    monkeypatch.setattr(threading.Thread, "start", no_room)
    host = "slack.test" if proxy is None else "proxy.test"
    with pytest.raises(ExchangeFailed, match=rf"^{host} cannot be looked up: can't start new thread$") as caught:
        transport.post("http://slack.test/api/x", {}, b"")
    assert caught.value.code == "connect_failed"


@pytest.mark.parametrize(("url", "port"), [("http://slack.test/", 80), ("https://slack.test/", 443)])
def test_a_url_without_a_port_means_the_one_of_its_scheme(url: str, port: int) -> None:
    asked: list[int] = []

    def look_up(_host: str, port: int, **_: object) -> list[Any]:
        asked.append(port)
        return look_up_nothing()

    with pytest.raises(ExchangeFailed):
        Transport(url, 5, resolve=look_up).post(url, {}, b"")
    assert asked == [port]


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    """An address where a connection is neither made nor refused: the listener's queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, 5):
            yield address


def test_a_connection_that_is_never_made_is_retryable_at_the_deadline(silent_address: tuple[str, int]) -> None:
    sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{silent_address[1]}/api/", timeout_s=0.2)
    result = sink.post(MESSAGE)
    assert isinstance(result, Retryable)
    assert result.code == "connect_timeout"


def answer(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(POSTED)


def test_a_silent_address_leaves_time_for_the_next(silent_address: tuple[str, int]) -> None:
    with RawServer(answer) as server:

        def look_up(_host: str, _port: int, **_: object) -> list[Any]:
            addresses = (silent_address, ("127.0.0.1", server.port))
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]

        reply = Transport("http://slack.test/", 3, resolve=look_up).post("http://slack.test/api/auth.test", {}, b"")
    assert reply.status == 200


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with RawServer(answer) as server:

        def look_up(_host: str, _port: int, **_: object) -> list[Any]:
            with socket.create_server(("127.0.0.1", 0)) as gone:
                dead = gone.getsockname()
            addresses = (dead, ("127.0.0.1", server.port))
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]

        reply = Transport("http://slack.test/", 5, resolve=look_up).post("http://slack.test/api/auth.test", {}, b"")
    assert reply.status == 200


def test_the_next_address_is_tried_when_this_host_lacks_the_family_of_one() -> None:
    with RawServer(answer) as server:

        def look_up(_host: str, _port: int, **_: object) -> list[Any]:
            unknown = (9_999, socket.SOCK_STREAM, 0, "", ("::1", server.port))
            return [unknown, (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", server.port))]

        reply = Transport("http://slack.test/", 5, resolve=look_up).post("http://slack.test/api/auth.test", {}, b"")
    assert reply.status == 200


def test_a_server_that_speaks_no_tls_is_retryable(slack: StandIn) -> None:
    result = slack_sink(BotToken(slack.token), base_url=slack.base_url.replace("http:", "https:")).post(MESSAGE)
    assert isinstance(result, Retryable)
    assert result.code == "tls_failed"


def test_an_untrusted_certificate_is_retryable(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")

    def serve(connection: socket.socket) -> None:
        tls.wrap_socket(connection, server_side=True).close()

    with RawServer(serve) as server:
        result = slack_sink(BotToken("xoxb-1"), base_url=f"https://127.0.0.1:{server.port}/api/").post(MESSAGE)
    assert isinstance(result, Retryable)
    assert result.code == "tls_failed"
    assert "certificate verify failed" in result.detail


def test_a_handshake_that_never_ends_is_retryable_at_the_deadline() -> None:
    def serve(connection: socket.socket) -> None:
        while connection.recv(65_536):
            pass

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"https://127.0.0.1:{server.port}/api/", timeout_s=0.2)
        began = time.monotonic()
        result = sink.post(MESSAGE)
    assert isinstance(result, Retryable)
    assert result.code == "connect_timeout"
    assert time.monotonic() - began < 2


def test_the_deadline_holds_over_tls(tls: ssl.SSLContext) -> None:
    def serve(connection: socket.socket) -> None:
        with tls.wrap_socket(connection, server_side=True) as secure:
            read_request(secure)
            for byte in POSTED:
                secure.sendall(bytes([byte]))
                time.sleep(0.05)

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"https://127.0.0.1:{server.port}/api/", timeout_s=0.3)
        began = time.monotonic()
        result = sink.post(MESSAGE)
        took = time.monotonic() - began
    assert isinstance(result, Ambiguous)
    assert result.code == "reply_timeout"
    assert 0.29 < took < 2


def test_the_deadline_holds_while_the_request_is_sent() -> None:
    def serve(connection: socket.socket) -> None:
        while connection.recv(16_384):  # slowly enough to last, fast enough for no single write to time out
            time.sleep(0.005)

    with RawServer(serve) as server:
        transport = Transport(f"http://127.0.0.1:{server.port}/", 0.3)
        began = time.monotonic()
        with pytest.raises(ExchangeFailed) as caught:
            transport.post(f"http://127.0.0.1:{server.port}/", {}, b"x" * 20_000_000)
        took = time.monotonic() - began
    assert caught.value.code == "reply_timeout"
    assert took < 2


# An instant by which a post is to be made


def test_a_post_whose_time_has_passed_is_not_sent(slack: StandIn) -> None:
    sinks = (token_sink(slack), webhook_sink(slack))
    for sink in sinks:
        result = sink.post(MESSAGE, by_s=boottime_s() - 100)
        assert isinstance(result, Retryable)
        assert (result.code, result.uses_attempt) == ("too_late", False)
        assert "its time ended 100." in result.detail
    result = sinks[0].update("C1", "1.000001", MESSAGE, by_s=boottime_s())
    assert isinstance(result, Retryable)
    assert result.code == "too_late"
    assert slack.workspace.traffic.calls == {}
    assert isinstance(sinks[0].post(MESSAGE, by_s=boottime_s() + 5), Receipt)


def test_a_post_ends_at_its_instant_though_its_time_out_is_longer() -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.recv(1)

    with RawServer(serve) as server:
        sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{server.port}/api/", timeout_s=30)
        began = boottime_s()
        results = [each("C1", "1.000001") for each in (posted_by(sink, 0.3), edited_by(sink, 0.3))]
        took = boottime_s() - began
    assert [(type(result), result.code) for result in results] == [(Ambiguous, "reply_timeout")] * 2
    assert [request.split(b" ")[1] for request in asked] == [b"/api/chat.postMessage", b"/api/chat.update"]
    assert 0.59 < took < 4


def posted_by(sink: SlackSink, after_s: float) -> Callable[[str, str], Any]:
    return lambda _channel, _ts: sink.post(MESSAGE, by_s=boottime_s() + after_s)


def edited_by(sink: SlackSink, after_s: float) -> Callable[[str, str], Any]:
    return lambda channel, ts: sink.update(channel, ts, MESSAGE, by_s=boottime_s() + after_s)


def test_a_connection_that_is_not_made_by_the_instant_is_retryable(silent_address: tuple[str, int]) -> None:
    sink = slack_sink(BotToken("xoxb-1"), base_url=f"http://127.0.0.1:{silent_address[1]}/api/", timeout_s=30)
    began = time.monotonic()
    result = sink.post(MESSAGE, by_s=boottime_s() + 0.2)
    assert isinstance(result, Retryable)
    assert result.code == "connect_timeout"
    left = re.search(r"\(no connection within ([0-9.]+) s\)$", result.detail)
    assert left is not None
    assert 0 < float(left[1]) <= 0.2
    assert time.monotonic() - began < 2


def test_when_the_machine_sleeps_after_it_has_connected_nothing_is_sent(tls: ssl.SSLContext) -> None:
    clock, received = SuspendedClock(), bytearray(b"read:")

    def serve(connection: socket.socket) -> None:
        connection.recv(1, socket.MSG_PEEK)  # the client is within its handshake
        clock.by_s = 60
        with tls.wrap_socket(connection, server_side=True) as secure:
            received.extend(b"nothing")
            received.extend(secure.recv(65_536))

    with RawServer(serve) as server:
        url = f"https://127.0.0.1:{server.port}/"
        with pytest.raises(ExchangeFailed) as caught:
            Transport(url, 10, clock=clock).post(url, {}, b"text")
    assert (caught.value.code, bytes(received)) == ("too_late", b"read:nothing")


def test_a_request_is_ambiguous_if_the_machine_sleeps_before_the_answer() -> None:
    clock = SuspendedClock()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        clock.by_s = 60
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        connection.recv(1)

    with RawServer(serve) as server:
        url = f"http://127.0.0.1:{server.port}/"
        with pytest.raises(ExchangeFailed) as caught:
            Transport(url, 30, clock=clock).post(url, {}, b"text")
    assert caught.value.code == "reply_timeout"


def test_an_answer_of_another_status_whose_body_is_cut_has_none() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(http_reply(b'{"ok": true}  ', "503 Down")[:-2])

    with RawServer(serve) as server:
        url = f"http://127.0.0.1:{server.port}/"
        reply = Transport(url, 5).post(url, {}, b"")
    assert (reply.status, reply.body) == (503, b"")


def test_an_answer_that_names_no_length_ends_with_its_connection() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    with RawServer(serve) as server:
        url = f"http://127.0.0.1:{server.port}/"
        reply = Transport(url, 5).post(url, {}, b"")
    assert (reply.status, reply.body) == (200, b"{}")


# What the kernel does with a connection that we gave up


def ending(connection: socket.socket) -> str:
    """How the other side has ended the connection: closed or reset."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        return "reset"
    return "closed"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "reset"),
        (b"HTTP/1.1 503 Down\r\nContent-Length: 100\r\n\r\n<", "reset"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "reset"),
        (POSTED, "closed"),
        (http_reply(b"", "503 Down"), "closed"),
        (http_reply(b"{}", "429 Too Many Requests"), "closed"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "closed"),
    ],
    ids=["none", "cut", "cut 503", "cut chunks", "whole", "503", "429", "chunks"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_is_reset_unless_the_answer_came_whole(
    tls: ssl.SSLContext, scheme: str, answer: bytes, expected: str
) -> None:
    endings: list[str] = []

    def serve(connection: socket.socket) -> None:
        spoken = tls.wrap_socket(connection, server_side=True) if scheme == "https" else connection
        read_request(spoken)
        spoken.sendall(answer)
        raw = spoken if scheme == "http" else socket.socket(fileno=spoken.detach())
        with raw:
            raw.settimeout(5)
            endings.append(ending(raw))

    with RawServer(serve) as server:
        slack_sink(BotToken("xoxb-1"), base_url=f"{scheme}://127.0.0.1:{server.port}/api/", timeout_s=0.4).post(MESSAGE)
    assert endings == [expected]


def test_the_rest_of_a_request_that_was_given_up_is_never_delivered() -> None:
    """The peer's window is full, so the kernel holds the rest of the request back, as it does on a path that is cut."""
    size = 200_000
    given_up = threading.Event()
    sizes: list[int] = []
    endings: list[str] = []

    def serve(connection: socket.socket) -> None:
        given_up.wait(10)
        try:
            while part := connection.recv(65_536):
                sizes.append(len(part))
            endings.append("closed")
        except ConnectionResetError:
            endings.append("reset")

    with RawServer(serve, window=4_096) as server:
        url = f"http://127.0.0.1:{server.port}/"
        with pytest.raises(ExchangeFailed) as caught:
            Transport(url, 0.4).post(url, {}, b"x" * size)
        given_up.set()
    assert caught.value.code == "reply_timeout"
    assert endings == ["reset"]
    assert sum(sizes) < size


def test_no_proxy_stands_between_us_and_this_machine(slack: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert isinstance(token_sink(slack).post(MESSAGE), Receipt)
    assert isinstance(webhook_sink(slack).post(MESSAGE), Receipt)


def test_a_plain_proxy_gets_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.sendall(POSTED)

    with RawServer(serve) as server:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{server.port}")
        sink = slack_sink(BotToken("xoxb-1"), base_url="http://slack.test/api/")
        assert sink.post(MESSAGE) == Receipt("C1", "1.000001")
    assert asked[0].startswith(b"POST http://slack.test/api/chat.postMessage HTTP/1.1\r\n")
    assert b"\r\nHost: slack.test\r\n" in asked[0]


def test_a_proxy_connects_us_through_to_tls(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with tls.wrap_socket(connection, server_side=True) as secure:
            asked.append(read_request(secure))
            secure.sendall(POSTED)

    with RawServer(serve) as server:
        monkeypatch.setenv("https_proxy", f"http://user:p%40ss@127.0.0.1:{server.port}")
        sink = slack_sink(BotToken("xoxb-1"), base_url="https://slack.test/api/")
        assert sink.post(MESSAGE) == Receipt("C1", "1.000001")
    assert asked[0].startswith(b"CONNECT slack.test:443 HTTP/1.1\r\n")
    assert b"\r\nHost: slack.test:443\r\n" in asked[0]
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in asked[0]
    assert b"xoxb" not in asked[0]
    assert b"Proxy-Authorization" not in asked[1]


def test_a_proxy_that_refuses_is_retryable_and_keeps_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(http_reply(b"", "407 Proxy Authentication Required"))

    with RawServer(serve) as server:
        monkeypatch.setenv("https_proxy", f"http://user:hunter22@127.0.0.1:{server.port}")
        result = slack_sink(BotToken("xoxb-1"), base_url="https://slack.test/api/").post(MESSAGE)
    assert isinstance(result, Retryable)
    assert result.code == "proxy_failed"
    assert f"the proxy at 127.0.0.1, port {server.port}: its answer was HTTP 407" in result.detail
    assert "hunter22" not in repr(result)


@pytest.mark.parametrize(
    ("serve", "detail"),
    [
        (lambda connection: connection.recv(1), "no answer within 0.5 s"),
        (lambda connection: resetting(connection, threading.Event()), "Connection reset by peer"),
        (lambda connection: connection.shutdown(socket.SHUT_WR), "the connection ended without an answer"),
    ],
    ids=["silent", "reset", "ended"],
)
def test_a_proxy_that_does_not_answer_is_told_as_the_proxy(
    serve: Callable[[socket.socket], object], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket) -> None:
        read_request(connection)
        serve(connection)

    with RawServer(answer) as server:
        monkeypatch.setenv("https_proxy", f"http://user:hunter22@127.0.0.1:{server.port}")
        with pytest.raises(ExchangeFailed) as caught:
            Transport("https://slack.test/api/", 0.5).post("https://slack.test/api/", {}, b"")
    assert (caught.value.code, caught.value.detail) == (
        "proxy_failed",
        f"the proxy at 127.0.0.1, port {server.port}: {detail}",
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("place", "detail"),
    [
        ("127.0.0.1:1", r"the proxy at 127\.0\.0\.1, port 1: Connection refused"),
        ("proxy.test:3128", r"the proxy at proxy\.test, port 3128: proxy\.test: Name or service not known"),
    ],
    ids=["nobody listens there", "a name without an address"],
)
def test_a_proxy_that_is_not_reached_is_told_as_the_proxy(
    scheme: str, place: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", f"http://user:hunter22@{place}")
    url = f"{scheme}://slack.test/api/"
    with pytest.raises(ExchangeFailed, match=f"^{detail}$") as caught:
        Transport(url, 5, resolve=look_up_nothing).post(url, {}, b"")
    assert caught.value.code == "proxy_failed"


def test_a_proxy_that_no_proxy_names_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "slack.test")
    with pytest.raises(ExchangeFailed) as caught:
        Transport("http://slack.test/", 5, resolve=look_up_nothing).post("http://slack.test/x", {}, b"")
    assert caught.value.code == "dns_failed"


@pytest.mark.parametrize(
    "url", ["socks5://u:hunter22@127.0.0.1:1080", "https://u:hunter22@proxy", "http://u:hunter22@x:y"]
)
def test_a_proxy_we_cannot_use_is_refused_without_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY .* expected http://HOST:PORT") as caught:
        slack_sink(BotToken("xoxb-1"))
    assert "hunter22" not in str(caught.value)
