"""What one peer may cost: bytes, seconds and connections."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import uvicorn
from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.app.servers import Server
from dispatcher.app.serving import connect_ingest
from dispatcher.producer.blocking import CHUNK
from dispatcher.web import bounds, ingest, server
from dispatcher.web.listening import listen
from tests.integration.web.test_alertmanager import alert, notification
from tests.integration.web.test_ingest import queued
from tests.support.delay_proxy import DelayProxy
from tests.support.processes import PATIENCE_S, until
from tests.support.servers import Database, RedisServer
from tests.support.serving import Raw, Serving, app_on
from tests.support.standstill import answered_meanwhile

HEAD = ("POST /v1/events/errors HTTP/1.1", "Host: localhost", "Content-Type: text/plain")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server in this process whose spans of time are short; it needs no Redis until an event is whole."""
    for name in ("HEAD_S", "BODY_S", "ANSWER_S", "READ_S"):
        monkeypatch.setattr(bounds, name, 0.2)
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.2)
    with running(redis_url="redis://127.0.0.1:1") as port:
        yield port


@contextmanager
def running(redis_url: str) -> Iterator[int]:
    async def serve() -> None:
        async with Redis.from_url(redis_url) as client:
            app = app_on(redis_url, client)
            app.router.routes.append(Route("/sleep", bounds.bounded(sleep), methods=["GET", "POST"]))
            app.router.routes.append(Route("/defect", bounds.bounded(fail)))
            app.router.routes.append(Route("/large", bounds.bounded(tell_much)))
            app.router.routes.append(Route("/peers", bounds.bounded(count_peers)))
            servers.append(server.server_of(app))
            await servers[0].serve([listening])

    async def sleep(_request: Request, _body: bytes) -> Response:
        await asyncio.Event().wait()
        return Response()

    async def fail(_request: Request, _body: bytes) -> Response:
        raise ZeroDivisionError

    async def tell_much(_request: Request, _body: bytes) -> Response:
        return Response(b"x" * 20_000_000)

    async def count_peers(_request: Request, _body: bytes) -> Response:
        return Response(str(len(servers[0].server_state.connections)))

    servers: list[uvicorn.Server] = []
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        servers[0].should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server ends although peers are connected"


@contextmanager
def connected(port: int) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        yield Raw(connection)


def test_a_slow_head_is_cut(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.connection.sendall(b"POST /v1/events HTTP/1.1\r\nHost:")
        code, text = peer.answer()
    assert code == 408
    assert "the head of the request took over" in text


def test_a_slow_body_is_cut(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send(*HEAD, "Content-Length: 10", body=b"12345")
        code, text = peer.answer()
    assert code == 408
    assert "the body took over" in text


def test_an_endless_body_is_cut_after_its_refusal_too(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send(*HEAD, "Content-Length: 999999999", body=b"12345")
        assert peer.answer()[0] == 413


def test_a_connection_that_is_kept_and_not_used_ends(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send("GET /-/healthy HTTP/1.1", "Host: localhost")
        assert peer.answer()[0] == 200


def test_a_connection_ends_though_its_peer_never_reads_the_answer(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send("GET /large HTTP/1.1", "Host: localhost")
        until(lambda: httpx.get(f"http://127.0.0.1:{hurried}/peers").text == "1", "the end of the connection")


def test_what_gets_no_answer_in_time_is_503(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send("GET /sleep HTTP/1.1", "Host: localhost", "Connection: close")
        code, text = peer.answer()
    assert code == 503
    assert "retry-after: 2" in text


def test_each_of_the_requests_that_are_sent_ahead_has_its_own_time(
    hurried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ANSWER_S", 0.1)
    monkeypatch.setattr(bounds, "READ_S", 1.0)
    with connected(hurried) as peer:
        peer.connection.sendall(b"GET /sleep HTTP/1.1\r\nHost: localhost\r\n\r\n" * 12)
        _, text = peer.answer()
    assert text.count("there was no answer in time") == 12


def test_a_peer_that_ends_its_side_gets_all_answers(hurried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "READ_S", PATIENCE_S)
    with connected(hurried) as peer:
        peer.connection.sendall(b"GET /sleep HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        peer.connection.shutdown(socket.SHUT_WR)
        _, text = peer.answer()
    assert text.count("there was no answer in time") == 2


def test_the_answer_to_a_defect_says_that_its_connection_ends(hurried: int) -> None:
    with connected(hurried) as peer:
        peer.send("GET /defect HTTP/1.1", "Host: localhost")
        code, text = peer.answer()
    assert code == 500
    assert "connection: close" in text.lower()


def test_a_defect_is_counted_among_the_answers(redis_url: str) -> None:
    with running(redis_url) as port:
        assert answer_to(port, "GET /defect", b"")[0] == 500
        text = answer_to(port, "GET /metrics", b"")[1]
    assert 'dispatcher_http_requests_total{code="500",route="none"} 1.0' in text


ASKED = (
    ("POST /v1/events/errors", b"disk full"),
    ("POST /v1/alertmanager", json.dumps(notification(alert(1))).encode()),
    ("POST /v1/hooks/github", b"{}"),
    ("GET /v1/status", b""),
    ("GET /-/ready", b""),
    ("GET /metrics", b""),
    ("GET /", b""),
)
"""Requests that need Redis; those who send webhooks come again at 5xx alone."""


@pytest.mark.parametrize(("asked", "body"), ASKED, ids=lambda value: value if isinstance(value, str) else "")
def test_where_redis_is_away_the_answer_is_to_come_again(hurried: int, asked: str, body: bytes) -> None:
    code, text = answer_to(hurried, asked, body)
    assert code == 503
    assert "retry-after: 2" in text.lower()
    if asked.endswith(("errors", "alertmanager")):
        assert '"ids":[],"rest_from":0' in text


def test_where_redis_does_not_answer_it_is_the_same_within_the_time_of_an_answer(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ANSWER_S", 0.2)
    with running(own_server.url) as port:
        own_server.freeze()
        try:
            answers = [answer_to(port, asked, body) for asked, body in ASKED]
            assert answer_to(port, "GET /-/healthy", b"")[0] == 200
        finally:
            own_server.cont()
    assert [code for code, _ in answers] == [503] * len(ASKED)


def test_a_request_of_events_without_an_answer_in_time_is_counted_as_refused(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ANSWER_S", 0.2)
    with running(own_server.url) as port:
        own_server.freeze()
        try:
            assert "there was no answer in time" in answer_to(port, *ASKED[0])[1]
            monkeypatch.setattr(bounds, "ANSWER_S", PATIENCE_S)
            shown = answer_to(port, "GET /metrics", b"")[1]
        finally:
            own_server.cont()
    assert 'result="refused",source="local"} 1.0' in shown


@pytest.mark.parametrize("still_s", [2.1, 60.0])
def test_what_was_enqueued_while_the_process_stood_still_is_answered_so(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, still_s: float
) -> None:
    async def main() -> None:
        client = connect_ingest(Server(own_server.url, "there"))
        transport = httpx.ASGITransport(app_on(own_server.url, client))
        async with client, httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await http.post("/v1/events/errors", content=b"x")
            late = http.post("/v1/events/errors", content=b"late")
            answer = await answered_meanwhile(late, own_server, monkeypatch, still_s)
            assert (answer.status_code, answer.json()["enqueued"]) == (202, 1)

    asyncio.run(main())


def test_lines_that_are_not_all_enqueued_in_time_say_how_far_they_got(own_server: RedisServer) -> None:
    goes_on = threading.Event()

    def hold_the_second_part(piece: bytes) -> None:
        if b"e700" in piece or b"e800" in piece:
            goes_on.wait(PATIENCE_S)

    body = b"".join(b'{"category": "errors", "text": "x", "id": "e%d"}\n' % n for n in range(1_200))
    with DelayProxy(own_server.socket) as proxy, running(proxy.url) as port:
        url = f"http://127.0.0.1:{port}/v1/events"
        proxy.on_call = hold_the_second_part
        answer = httpx.post(url, content=body, headers={"Content-Type": "application/x-ndjson"})
        goes_on.set()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert (answer.json()["rest_from"], answer.json()["ids"]) == (500, [f"e{n}" for n in range(500)])
        again = httpx.post(url, content=body, headers={"Content-Type": "application/x-ndjson"})
    assert (again.status_code, len(again.json()["ids"])) == (202, 1_200)
    with own_server.client() as redis:
        assert queued(redis) == [f"e{n}" for n in range(1_200)]


def test_a_part_of_the_lines_that_has_begun_is_waited_for_and_no_other_begins_late(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def let_the_time_be_over(piece: bytes) -> None:
        if b"e700" in piece:
            monkeypatch.setattr(ingest, "BEGUN_S", -1.0)

    body = b"".join(b'{"category": "errors", "text": "x", "id": "e%d"}\n' % n for n in range(1_200))
    with DelayProxy(own_server.socket) as proxy, running(proxy.url) as port:
        proxy.on_call = let_the_time_be_over
        url = f"http://127.0.0.1:{port}/v1/events"
        answer = httpx.post(url, content=body, headers={"Content-Type": "application/x-ndjson"})
    assert (answer.status_code, answer.json()["rest_from"]) == (503, 1_000)
    with own_server.client() as redis:
        assert queued(redis) == answer.json()["ids"] == [f"e{n}" for n in range(1_000)]


def test_lines_go_to_the_server_in_parts_that_are_bounded_by_their_bytes_too(
    redis: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "CHUNK_BYTES", 2_000)
    body = b"".join(b'{"category": "errors", "text": "%s"}\n' % (b"x" * 900) for _ in range(CHUNK + 1))
    redis.config_resetstat()
    with running(redis_url) as port:
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/events", content=body, headers={"Content-Type": "application/jsonl"}
        )
    assert len(answer.json()["ids"]) == CHUNK + 1
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] > CHUNK / 2


def answer_to(port: int, asked: str, body: bytes) -> tuple[int, str]:
    with connected(port) as peer:
        length = f"Content-Length: {len(body)}"
        peer.send(f"{asked} HTTP/1.1", "Host: localhost", length, "Connection: close", body=body)
        return peer.answer()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["X-Bomb: " + "x" * 20_000], 431),
        ([f"X-{n}: x" for n in range(4_000)], 431),
        (["Content-Length: x"], 400),
        (["no colon"], 400),
        (["Transfer-Encoding: gzip"], 501),
    ],
    ids=["one header", "many headers", "a length that is none", "no header", "an encoding"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
def test_a_head_that_is_too_large_or_none_is_refused(
    serving: Serving, lines: list[str], expected: int, *, at_once: bool
) -> None:
    head = "\r\n".join((*HEAD, "Connection: close", *lines, "", "")).encode()
    with serving.raw() as peer:
        for piece in [head] if at_once else [head[:9_000], head[9_000:]]:
            peer.connection.sendall(piece)
        assert peer.answer()[0] == expected


def test_a_body_over_4_mb_is_413_also_where_its_length_is_not_said(serving: Serving) -> None:
    assert serving.post("/v1/events", b" " * (bounds.MOST_BODY + 1)).status_code == 413
    pieces = iter([b" " * 1_000_000] * 5)
    with serving.client() as client:
        assert client.post("/v1/events", content=pieces).status_code == 413


def test_bodies_that_are_too_large_together_are_refused_until_one_of_them_is_done(
    hurried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BODY_S", PATIENCE_S)
    monkeypatch.setattr(bounds, "MOST_BODIES", 10)
    head = ("POST /sleep HTTP/1.1", "Host: localhost", "Content-Length: 8", "Connection: close")
    with connected(hurried) as first:
        first.send(*head, body=b"1234567")
        until(lambda: bounds.Held.of_all == 7, "the first body to come")
        with connected(hurried) as second:
            second.send(*head, body=b"1234567")
            code, text = second.answer()
        assert (code, "retry-after: 2" in text) == (503, True)
        assert "the bodies of all requests in hand are over 10 bytes together" in text
    until(lambda: bounds.Held.of_all == 0, "the first body to be gone")
    with connected(hurried) as third:
        third.send(*head, body=b"12345678")
        assert "there was no answer in time" in third.answer()[1]


def test_more_than_512_connections_are_refused_and_those_before_are_served(serving: Serving) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(serving.raw()) for _ in range(bounds.MOST_CONNECTIONS)]
        with serving.raw() as late:
            code, text = late.answer()
        assert code == 503
        assert "retry-after: 2" in text
        peers[-1].send("GET /-/healthy HTTP/1.1", "Host: localhost", "Connection: close")
        assert peers[-1].answer()[0] == 200
    with serving.client() as client:
        until(lambda: client.get("/-/healthy").status_code == 200, "the others to be gone")


def test_requests_in_one_packet_are_answered_in_order(serving: Serving) -> None:
    with serving.raw() as peer:
        one = "\r\n".join((*HEAD, "X-Id: {}", "Content-Length: 1", "", "x"))
        last = one.replace("X-Id", "Connection: close\r\nX-Id")
        peer.connection.sendall("".join([one.format("p1"), one.format("p2"), last.format("p3")]).encode())
        _, text = peer.answer()
    assert re.findall(r'"ids":\["(p\d)"\]', text) == ["p1", "p2", "p3"]
    assert text.count("202 Accepted") == 3
