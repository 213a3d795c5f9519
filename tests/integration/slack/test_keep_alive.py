"""Connections that are kept between posts: when one is used again, and what is known when it ends."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pytest

from dispatcher.core.posts import Ambiguous, Message, PostResult, Receipt, Retryable
from dispatcher.core.states import boottime_s
from dispatcher.slack.credentials import BotToken, Webhook
from dispatcher.slack.sink import SlackSink
from dispatcher.slack.transport import IDLE_S, MAX_AGE_S, MOST_IDLE, ExchangeFailed, Transport
from tests.support.processes import until
from tests.support.raw_server import (
    POSTED,
    POSTED_AND_KEPT,
    KeepingServer,
    RawServer,
    cut,
    http_reply,
    kept_reply,
    read_request,
)
from tests.support.slack import MESSAGE, SuspendedClock, slack_sink

RESET: Final = struct.pack("ii", 1, 0)
OK: Final = Receipt("C1", "1.000001")


@pytest.fixture(params=["http", "https"])
def spoken(request: pytest.FixtureRequest, tls: ssl.SSLContext) -> ssl.SSLContext | None:
    return tls if request.param == "https" else None


def sink_of(server: KeepingServer, timeout_s: float = 5.0) -> SlackSink:
    return slack_sink(BotToken("xoxb-1"), base_url=server.url(), timeout_s=timeout_s)


def counts(server: KeepingServer) -> list[int]:
    """How many requests each connection has carried."""
    return [len(requests) for requests in server.requests]


# When it is used again


def test_posts_one_after_the_other_share_a_connection(spoken: ssl.SSLContext | None) -> None:
    with KeepingServer(tls=spoken) as server:
        sink = sink_of(server)
        assert [sink.post(MESSAGE) for _ in range(3)] == [OK] * 3
        assert counts(server) == [3]
        assert b"\r\nConnection:" not in server.requests[0][0]


def test_posts_by_webhook_share_a_connection() -> None:
    with KeepingServer(lambda _: kept_reply(b"ok")) as server:
        sink = slack_sink(Webhook(server.url("/services/x")))
        assert [sink.post(MESSAGE) for _ in range(2)] == [Receipt("#ops", None)] * 2
        assert counts(server) == [2]


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Down", "302 Found"])
def test_a_whole_answer_of_any_status_leaves_the_connection_usable(status: str) -> None:
    with KeepingServer(lambda _: kept_reply(b"{}", status)) as server:
        sink = sink_of(server)
        sink.post(MESSAGE)
        sink.post(MESSAGE)
        assert counts(server) == [2]


def test_an_answer_of_many_pieces_is_read_whole(spoken: ssl.SSLContext | None) -> None:
    answer = kept_reply(b'{"ok": true, "channel": "C1", "ts": "1.000001", "more": "%b"}' % (b"x" * 300_000))
    with KeepingServer(lambda _: answer, tls=spoken) as server:
        sink = sink_of(server)
        assert [sink.post(MESSAGE) for _ in range(2)] == [OK] * 2
        assert counts(server) == [2]


def test_an_interim_answer_is_passed_over_and_leaves_the_connection_usable() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\nLink: </x>\r\n\r\n"
    with KeepingServer(lambda _: interim + POSTED_AND_KEPT) as server:
        sink = sink_of(server)
        assert [sink.post(MESSAGE) for _ in range(2)] == [OK] * 2
        assert counts(server) == [2]


@pytest.mark.parametrize(
    "answer",
    [
        POSTED,
        POSTED_AND_KEPT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        POSTED_AND_KEPT + b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nContent-Length: 9\r\n\r\n<",
    ],
    ids=["close", "HTTP/1.0", "more than asked for", "only interim", "cut"],
)
def test_after_such_an_answer_a_connection_is_not_used_again(answer: bytes) -> None:
    with KeepingServer(lambda request: answer if b"first" in request else POSTED_AND_KEPT) as server:
        sink = sink_of(server, timeout_s=0.5)
        sink.post(Message("e1", "#ops", "first"))
        assert sink.post(MESSAGE) == OK
        assert counts(server) == [1, 1]


@pytest.mark.parametrize("behind", [kept_reply(b"", "408 Request Timeout"), POSTED_AND_KEPT], ids=["408", "200"])
@pytest.mark.parametrize("status", ["200 OK", "500 Down"])
def test_of_two_answers_to_one_post_the_first_counts(status: str, behind: bytes) -> None:
    first = POSTED_AND_KEPT if status == "200 OK" else kept_reply(b"", status)
    with KeepingServer(lambda _: first + behind) as server:
        assert isinstance(sink_of(server).post(MESSAGE), Receipt if status == "200 OK" else Ambiguous)


def test_a_reply_sent_unasked_is_not_taken_for_the_answer_to_the_next_post(spoken: ssl.SSLContext | None) -> None:
    """As from a proxy that says 408 to an idle connection."""
    idle, told = threading.Event(), threading.Event()
    requests: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        with spoken.wrap_socket(connection, server_side=True) if spoken else connection as stream:
            requests.append([])
            while request := read_request(stream):
                requests[-1].append(request)
                stream.sendall(POSTED_AND_KEPT)
                if idle.wait(5) and not told.is_set():
                    stream.sendall(http_reply(b"", "408 Request Timeout"))
                    told.set()

    with RawServer(serve) as server:
        sink = slack_sink(
            BotToken("xoxb-1"), base_url=f"{'https' if spoken else 'http'}://127.0.0.1:{server.port}/api/"
        )
        sink.post(MESSAGE)
        idle.set()
        assert told.wait(5)
        assert sink.post(MESSAGE) == OK
        del sink
        gc.collect()
    assert [len(each) for each in requests] == [1, 1]


def test_a_connection_that_has_ended_meanwhile_is_not_used(spoken: ssl.SSLContext | None) -> None:
    with KeepingServer(tls=spoken) as server:
        sink = sink_of(server)
        sink.post(MESSAGE)
        cut(server.connections[0])
        assert sink.post(MESSAGE) == OK
        assert counts(server) == [1, 1]


def test_after_its_time_an_idle_connection_is_not_used_though_nobody_has_closed_it() -> None:
    clock = SuspendedClock()
    with KeepingServer() as server:
        transport = Transport(server.url(), 5, clock=clock)
        transport.post(server.url(), {}, b"")
        clock.by_s += IDLE_S
        transport.post(server.url(), {}, b"")
        assert counts(server) == [1, 1]


def test_a_connection_in_use_is_replaced_after_its_age() -> None:
    clock = SuspendedClock()
    with KeepingServer() as server:
        transport = Transport(server.url(), 5, clock=clock)
        for _ in range(int(MAX_AGE_S) + 1):
            transport.post(server.url(), {}, b"")
            clock.by_s += 1
        assert counts(server) == [int(MAX_AGE_S), 1]


def test_a_name_is_reconciled_once_for_each_connection() -> None:
    asked: list[str] = []
    with KeepingServer() as server:

        def look_up(host: str, _port: int, **_: object) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", server.port))]

        transport = Transport("http://slack.test/", 5, resolve=look_up)
        for _ in range(2):
            transport.post("http://slack.test/", {}, b"")
    assert asked == ["slack.test"]


# When it is closed


def test_an_idle_connection_is_closed_after_its_time_though_nothing_else_is_posted() -> None:
    with KeepingServer() as server:
        transport = Transport(server.url(), 5, idle_s=0.1)
        for _ in range(2):
            transport.post(server.url(), {}, b"")
            until(lambda: server.open == 0, "the end of the idle connection")


def test_with_its_transport_an_idle_connection_ends_at_once() -> None:
    with KeepingServer() as server:
        transport = Transport(server.url(), 5, idle_s=3_600)
        transport.post(server.url(), {}, b"")
        assert server.open == 1
        del transport
        gc.collect()
        until(lambda: server.open == 0, "the end of the idle connection")


def test_only_so_many_connections_are_idle() -> None:
    together = threading.Barrier(MOST_IDLE + 3)

    def answer(_request: bytes) -> bytes:
        together.wait(10)
        return POSTED_AND_KEPT

    with KeepingServer(answer) as server, ThreadPoolExecutor(together.parties) as threads:
        sink = sink_of(server, timeout_s=10)
        posts = [threads.submit(sink.post, MESSAGE) for _ in range(together.parties)]
        assert [each.result() for each in posts] == [OK] * together.parties
        until(lambda: server.open == MOST_IDLE, "the end of those that are too many")


def test_the_connection_that_was_used_last_is_used_next_so_that_the_others_may_end() -> None:
    together = threading.Barrier(2)

    def answer(request: bytes) -> bytes:
        if b"together" in request:
            together.wait(10)
        return POSTED_AND_KEPT

    with KeepingServer(answer) as server, ThreadPoolExecutor(2) as threads:
        sink = sink_of(server)
        list(threads.map(sink.post, [Message(f"e{number}", "#ops", "together") for number in range(2)]))
        for _ in range(4):
            sink.post(MESSAGE)
        assert sorted(counts(server)) == [1, 5]


def test_a_forked_child_leaves_its_parents_connections_alone(spoken: ssl.SSLContext | None) -> None:
    with KeepingServer(tls=spoken) as server:
        sink = sink_of(server)
        sink.post(MESSAGE)
        child = os.fork()
        if child == 0:
            os._exit(0 if sink.post(MESSAGE) == OK else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert sink.post(MESSAGE) == OK
        assert counts(server) == [2, 1]


def test_a_forked_child_closes_its_own_idle_connections_in_time_too() -> None:
    with KeepingServer() as server:
        transport = Transport(server.url(), 5, idle_s=0.1)
        transport.post(server.url(), {}, b"")
        goes_on, ends = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ends)
            transport.post(server.url(), {}, b"")
            os.read(goes_on, 1)
            os._exit(0)
        until(lambda: counts(server) == [1, 1] and server.open == 0, "the end of both connections")
        os.close(goes_on)
        os.close(ends)
        assert os.waitpid(child, 0)[1] == 0


# Through a proxy


def test_a_tunnel_through_a_proxy_is_kept(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with tls.wrap_socket(connection, server_side=True) as secure:
            while request := read_request(secure):
                asked.append(request)
                secure.sendall(POSTED_AND_KEPT)

    with RawServer(serve) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.port}")
        sink = slack_sink(BotToken("xoxb-1"), base_url="https://slack.test/api/")
        assert [sink.post(MESSAGE) for _ in range(2)] == [OK] * 2
        del sink
        gc.collect()
    assert [request.split(b" ")[0] for request in asked] == [b"CONNECT", b"POST", b"POST"]


def test_each_request_over_a_kept_connection_to_a_proxy_carries_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    with KeepingServer() as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{proxy.port}")
        sink = slack_sink(BotToken("xoxb-1"), base_url="http://slack.test/api/")
        assert [sink.post(MESSAGE) for _ in range(2)] == [OK] * 2
        (requests,) = proxy.requests
    assert [b"Proxy-Authorization: Basic dXNlcjpwYXNz\r\n" in request for request in requests] == [True] * 2


# When its end and the next request cross


@dataclass
class Ending:
    """A clock that has a server end its connection when it is read for the ``left``-th time from now on."""

    left: int
    due: threading.Event
    done: threading.Event

    def __call__(self) -> float:
        self.left -= 1
        if self.left == 0:
            self.due.set()
            self.done.wait(5)
        return boottime_s()


def end_in_order(connection: socket.socket) -> None:
    """Says that nothing more comes, which acknowledges what has arrived, and closes."""
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(0)
        with suppress(ssl.SSLError):  # the other side has not said so too, or has sent a request
            connection.unwrap()
    else:
        connection.shutdown(socket.SHUT_WR)
    connection.close()


def end_without_a_word(connection: socket.socket) -> None:
    connection.close()


def end_by_reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def test_a_new_connection_that_ends_unread_leaves_the_fate_unknown() -> None:
    """Or an event would be tried for ever at a server that takes connections and closes them."""
    due, done = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        due.wait(5)
        end_in_order(connection)
        done.set()

    with RawServer(serve) as server:
        url = f"http://127.0.0.1:{server.port}/"
        transport = Transport(url, 5, clock=Ending(WHEN_CONNECTED, due, done))
        with pytest.raises(ExchangeFailed) as caught:
            transport.post(url, {}, b"first")
    assert caught.value.code == "connection_lost"


def second_post(reading: int, tls: ssl.SSLContext | None, end: Callable[[socket.socket], None]) -> str:
    """What a post comes to over a kept connection that the server ends, without another look at it, meanwhile."""
    due, done = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        with tls.wrap_socket(connection, server_side=True) if tls else connection as spoken:
            read_request(spoken)
            if due.is_set():
                spoken.sendall(POSTED)
                return
            spoken.sendall(POSTED_AND_KEPT)
            due.wait(5)
            end(spoken)
            done.set()

    clock = Ending(0, due, done)
    with RawServer(serve) as server:
        url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.port}/"
        transport = Transport(url, 5, clock=clock)
        transport.post(url, {}, b"first")
        clock.left = reading
        try:
            transport.post(url, {}, b"second")
        except ExchangeFailed as failure:
            return failure.code
        return "posted"


WHEN_CONNECTED: Final = 4
"""When a first post reads its clock: twice for its deadline, once for the time to connect, and then."""

BEFORE_THE_CHECK, BEFORE_THE_WRITE, BEFORE_THE_READ = (1, 2, 3), 4, 5
"""When a post reads its clock: twice for its deadline and once for the connection's age, then before each operation."""


@pytest.mark.parametrize("end", [end_in_order, end_without_a_word, end_by_reset])
def test_a_connection_that_ends_before_the_post_looks_at_it_does_no_harm(
    spoken: ssl.SSLContext | None, end: Callable[[socket.socket], None]
) -> None:
    assert [second_post(reading, spoken, end) for reading in BEFORE_THE_CHECK] == ["posted"] * 3


def test_a_request_that_the_system_does_not_take_goes_over_another_connection(spoken: ssl.SSLContext | None) -> None:
    assert second_post(BEFORE_THE_WRITE, spoken, end_by_reset) == "posted"


def test_a_request_that_crosses_an_end_in_order_was_certainly_not_read(spoken: ssl.SSLContext | None) -> None:
    assert second_post(BEFORE_THE_WRITE, spoken, end_in_order) == "connection_closed"


def test_over_tls_an_end_without_a_word_may_be_a_reset_so_the_fate_is_unknown(tls: ssl.SSLContext) -> None:
    assert second_post(BEFORE_THE_WRITE, tls, end_without_a_word) == "connection_lost"


@pytest.mark.parametrize("end", [end_in_order, end_without_a_word, end_by_reset])
def test_of_a_request_that_has_arrived_the_fate_is_unknown_when_its_connection_ends(
    spoken: ssl.SSLContext | None, end: Callable[[socket.socket], None]
) -> None:
    """The server may have read it: to the client it looks the same."""
    assert second_post(BEFORE_THE_READ, spoken, end) == "connection_lost"


@pytest.mark.parametrize("posts", [300, pytest.param(1_200, marks=pytest.mark.slow)])
def test_no_post_is_made_twice_or_denied_whenever_a_server_ends_its_idle_connections(posts: int) -> None:
    chance = random.Random(7)
    with KeepingServer(patience_s=lambda: chance.uniform(0, 0.004)) as server, ThreadPoolExecutor(8) as threads:
        sink = sink_of(server)

        def post(number: int) -> tuple[str, PostResult]:
            threading.Event().wait(chance.uniform(0, 0.004))
            text = f"event-{number}."
            return text, sink.post(Message(text, "#ops", text))

        results = list(threads.map(post, range(posts)))
        landed = Counter(json.loads(each.partition(b"\r\n\r\n")[2])["text"] for each in chain(*server.requests))
    assert max(landed.values()) == 1
    for text, result in results:
        match result:
            case Receipt():
                assert text in landed
            case Retryable(code):
                assert (code, text in landed) == ("connection_closed", False)
            case _:
                assert isinstance(result, Ambiguous)
