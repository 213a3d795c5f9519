"""The process: what its end, its death and an outage of Redis leave behind, and what it says of itself."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dispatcher.cli import serve
from dispatcher.errors import ConfigError
from dispatcher.server.keys import Keys
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.web.listening import listen
from tests.integration.web.test_ingest import queued
from tests.support.commands import run
from tests.support.processes import until
from tests.support.servers import Database, RedisServer, free_port
from tests.support.serving import Serving

EVENT = {"category": "errors", "text": "disk full"}


class Load:
    """Clients that send events, each again until it is accepted; ``accepted`` are the ids.

    Half of the clients give ids to their events, the others a key to each request.
    """

    def __init__(self, url: str, clients: int = 4) -> None:
        self.accepted: list[str] = []
        self.retries = 0
        self._url = url
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(clients)]

    def _send(self, client: int) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=5) as http:
            while not self._ends.is_set():
                name = f"c{client}-{number}"
                event, headers = ({**EVENT, "id": name}, {}) if client % 2 else (EVENT, {"Idempotency-Key": name})
                try:
                    answer = http.post("/v1/events", json=[event], headers=headers)
                except httpx.HTTPError:
                    self.retries += 1
                    self._ends.wait(0.01)
                    continue
                if answer.status_code == 202:
                    self.accepted += answer.json()["ids"]
                    number += 1
                else:
                    assert answer.status_code == 503, answer.text
                    self.retries += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            until(lambda: len(self.accepted) > 50, "events to be accepted")
            yield
        finally:
            self._ends.set()
            for thread in self._threads:
                thread.join(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_process_that_ends_under_load_loses_and_doubles_nothing(
    redis_url: str, redis: Database, tmp_path: Path, number: signal.Signals
) -> None:
    port = free_port()
    with Serving(redis_url, tmp_path, port=port) as first:
        load = Load(first.url)
        with load.running():
            first.signal(number)
            assert first.wait() == (0 if number is signal.SIGTERM else -number)
            before = len(load.accepted)
            with Serving(redis_url, tmp_path, port=port) as second:
                assert second.url == first.url
                until(lambda: len(load.accepted) > before + 50, "events to be accepted again")
    found = queued(redis)
    assert len(found) == len(set(found))
    assert set(load.accepted) <= set(found)
    assert len(set(found) - set(load.accepted)) <= 4, "of each client at most the one that it was sending at the end"
    assert [line["event"] for line in first.lines()][-1] == (
        "serve.stopped" if number is signal.SIGTERM else "serve.started"
    )


def test_a_restart_of_redis_under_load_loses_and_doubles_nothing(own_server: RedisServer, tmp_path: Path) -> None:
    with Serving(own_server.url, tmp_path) as serving:
        load = Load(serving.url)
        with load.running():
            own_server.restart()
            before = len(load.accepted)
            until(lambda: len(load.accepted) > before + 50, "events to be accepted again")
    with own_server.client() as client:
        found = queued(client)
    assert len(found) == len(set(found))
    assert set(load.accepted) <= set(found)


def test_what_is_in_hand_at_a_stop_is_finished(redis_url: str, redis: Database, tmp_path: Path) -> None:
    with Serving(redis_url, tmp_path) as serving, serving.raw() as peer:
        peer.send("POST /v1/events/errors HTTP/1.1", "Host: localhost", "X-Id: late", "Content-Length: 4", body=b"di")
        assert _listens(serving.url), "the head was read before"
        serving.signal(signal.SIGTERM)
        until(lambda: not _listens(serving.url), "the end of listening")
        peer.connection.sendall(b"sk")
        assert peer.answer()[0] == 202
        assert serving.wait() == 0
    assert queued(redis) == ["late"]


def _listens(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/healthy", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def test_it_is_ready_when_redis_answers_and_limits_are_in_force(own_server: RedisServer, tmp_path: Path) -> None:
    with Serving(own_server.url, tmp_path) as serving, serving.client() as client:
        answer = client.get("/-/ready")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "no limits are in force" in answer.json()["detail"]
        with own_server.client() as redis:
            redis.set(Keys("dispatcher").limits_version, "1-x")
            assert client.get("/-/ready").json() == {"status": "ready"}
            redis.config_set("maxmemory", 1)
            assert client.get("/-/ready").json() == {"status": "ready"}
            redis.config_set("maxmemory", 0)
            redis.config_set("min-replicas-to-write", 1)
            refused = client.get("/-/ready")
            assert (refused.status_code, "Not enough good replicas" in refused.json()["detail"]) == (503, True)
            redis.config_set("min-replicas-to-write", 0)
        assert client.get("/-/ready").json() == {"status": "ready"}
        own_server.stop()
        assert client.get("/-/ready").status_code == 503
        assert client.get("/-/healthy").status_code == 200
        own_server.start()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (Keys("dispatcher").layout, "namespace 'dispatcher' holds key layout '99', this version reads layout"),
        (QueueKeys("notifications").binding, "queue 'notifications' belongs to namespace '99', not to 'dispatcher'"),
    ],
    ids=["another layout", "a queue of another namespace"],
)
def test_what_no_waiting_helps_ends_the_start_and_is_why_a_process_is_not_ready(
    redis: Database, redis_url: str, tmp_path: Path, key: str, said: str
) -> None:
    with Serving(redis_url, tmp_path) as serving, serving.client() as client:
        assert serving.url
        redis.set(key, "99")
        assert said in client.get("/-/ready").json()["detail"]
    refused = run("serve", "--port", "0", DISPATCHER_REDIS_URL=redis_url)
    assert (refused.code, said in refused.err) == (78, True)


def test_a_server_that_is_away_at_the_start_and_comes_back_is_told_once_each(
    own_server: RedisServer, tmp_path: Path
) -> None:
    own_server.stop()
    with Serving(own_server.url, tmp_path) as serving:
        lost = serving.await_line("redis.lost")
        assert (lost["level"], serving.url != "") == ("warning", True)
        own_server.start()
        assert serving.await_line("redis.found")["away_s"] > 0
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0
    events = [line["event"] for line in serving.lines()]
    assert events == ["serve.started", "redis.lost", "redis.found", "serve.stopped"]


def test_a_server_that_refuses_the_login_at_the_start_is_told_of_as_one_that_is_away(
    own_server: RedisServer, tmp_path: Path
) -> None:
    with own_server.client() as redis:
        redis.config_set("requirepass", "secret")
        with Serving(own_server.url, tmp_path) as serving:
            assert "asks for a password" in serving.await_line("redis.lost")["detail"]
            redis.config_set("requirepass", "")
            serving.await_line("redis.found")


def test_a_full_server_is_a_reason_to_come_again_later(tmp_path: Path) -> None:
    with (
        RedisServer(options=("--maxmemory", "1mb")) as server,
        Serving(server.url, tmp_path) as serving,
    ):
        answer = serving.post("/v1/events", EVENT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "Redis is full" in answer.json()["detail"]


def test_head_and_body_of_an_answer_do_not_wait_for_each_other() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_named(serving: Serving, redis_url: str) -> None:
    result = run("serve", "--port", str(serving.port), DISPATCHER_REDIS_URL=redis_url)
    assert result.code == 78
    assert f"127.0.0.1 port {serving.port} cannot be listened on" in result.err


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(
        ConfigError, match=r"needs uvicorn: install the extra 'serve' of the package, .* pip install '\.\[serve\]'"
    ):
        serve.check_packages()


def test_tokens_are_written_where_there_are_none_and_kept_where_there_are(tmp_path: Path, redis_url: str) -> None:
    made = tmp_path / "tokens"
    written = []
    for _ in range(2):
        with Serving(redis_url, tmp_path, "--tokens", "tokens", "--create-tokens") as serving:
            serving.await_line("serve.started")
            written.append(made.read_text(encoding="ascii"))
            with serving.client(written[0].split()[2]) as client:
                assert client.put("/v1/pause").status_code == 204
    assert written[0].split()[:2] == ["operator", "ingest,read,operate,metrics"]
    assert written[0] == written[1]
    assert made.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "tokens" in path.name] == ["tokens"]


@pytest.mark.parametrize("arguments", [(), ("--tokens", "away/tokens")], ids=["no name", "no folder"])
def test_tokens_that_cannot_be_written_are_told(redis_url: str, arguments: tuple[str, ...]) -> None:
    said = run("serve", "--create-tokens", *arguments, DISPATCHER_REDIS_URL=redis_url)
    assert said.code == 78
    assert "tokens" in said.err
