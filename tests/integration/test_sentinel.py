"""Producers and workers that ask Sentinels for the primary, and a failover under them."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from dispatcher import AsyncProducer, Producer, QueueUnavailable
from dispatcher.errors import ConfigError
from dispatcher.server.clients import connect, connect_async
from dispatcher.server.keys import Keys
from dispatcher.stand_in import StandIn
from dispatcher.store.rq_keys import QueueKeys
from dispatcher.store.snapshot import Books
from tests.support import commands
from tests.support.processes import LIMITS, Command, environment, until
from tests.support.sentinels import SERVICE, Watched, watched_primary
from tests.support.servers import RedisServer, free_port
from tests.support.topologies import sentinel_of

KEYS, QUEUE = Keys("dispatcher"), QueueKeys("notifications")


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watched_primary() as servers:
        yield servers


def is_sent(producer: Producer, text: str) -> bool:
    try:
        producer.send("errors", text, id=text)
    except QueueUnavailable:
        return False
    return True


def test_a_producer_and_a_worker_go_on_at_the_new_primary_after_its_death(
    watched: Watched, slack: StandIn, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    env = environment(watched.url, slack.base_url, slack.token, limits)
    with Command("worker", env=env, cwd=tmp_path) as worker, connect(watched.url, timeout_s=2) as client:
        assert worker.await_line("worker.started")["server"] == watched.url
        producer = Producer(client)
        producer.send("errors", "before")
        until(lambda: len(slack.ledger) == 1, "the first post")
        watched.await_sync()
        watched.primary.kill()
        with pytest.raises(QueueUnavailable):
            producer.send("errors", "meanwhile", id="meanwhile")
        watched.await_promotion()
        until(lambda: is_sent(producer, "after"), "the new primary")
        until(lambda: len(slack.ledger) == 2, "the second post")
        worker.await_line("redis.found")
        assert [posted.text for posted in slack.ledger.posted()] == ["before", "after"]
        assert (len(worker.named("redis.lost")), len(worker.named("redis.found"))) == (1, 1)
        books = Books(client, KEYS, QUEUE)
        until(lambda: books.snapshot().overall()["sent"] == 2, "both outcomes")
        assert books.snapshot().imbalances() == []


def test_clients_of_a_primary_that_was_made_a_replica_go_to_the_new_primary(
    watched: Watched, slack: StandIn, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS, encoding="utf-8")
    env = environment(watched.url, slack.base_url, slack.token, limits)
    with Command("worker", env=env, cwd=tmp_path) as worker, connect(watched.url, timeout_s=2) as client:
        worker.await_line("worker.started")
        producer = Producer(client)
        producer.send("errors", "before")
        until(lambda: len(slack.ledger) == 1, "the first post")
        watched.await_sync()
        watched.switch()
        until(lambda: is_sent(producer, "after"), "the new primary")
        until(lambda: len(slack.ledger) == 2, "the second post")
        assert (len(worker.named("redis.lost")), len(worker.named("redis.found"))) == (1, 1)


def test_an_asyncio_producer_goes_to_the_new_primary(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncProducer.from_env() as producer:
            await producer.send("errors", "before")
            watched.await_sync()
            watched.switch()
            for _ in range(3):  # one for the connection that is still at the old primary
                with suppress(QueueUnavailable):
                    await producer.send("errors", "after", id="after")

    monkeypatch.setenv("DISPATCHER_REDIS_URL", watched.url)
    asyncio.run(asyncio.wait_for(main(), 20))
    with watched.replica.client() as client:
        assert client.llen(QUEUE.lanes[1]) == 2


def test_the_answer_of_a_replica_ends_the_connection_since_its_address_may_lead_elsewhere(
    own_server: RedisServer,
) -> None:
    with own_server.client() as database, connect(own_server.url) as client:
        producer = Producer(client)
        producer.send("errors", "x")
        before = {each["id"] for each in database.client_list()}
        database.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(QueueUnavailable, match="Redis is a read-only replica"):
            producer.send("errors", "y", id="y")
        database.replicaof("NO", "ONE")
        producer.send("errors", "y", id="y")
        assert len({each["id"] for each in database.client_list()} - before) == 1


@pytest.fixture
def one_sentinel() -> Iterator[tuple[RedisServer, str]]:
    """A primary, and its address by way of a Sentinel; two more are named that do not answer."""
    with RedisServer(port=free_port()) as primary, sentinel_of(primary, SERVICE) as port:
        yield primary, f"sentinel://127.0.0.1:{free_port()},127.0.0.1:{port},127.0.0.1:{free_port()}/{SERVICE}/3"


def test_one_sentinel_that_answers_is_enough_and_the_database_is_kept(one_sentinel: tuple[RedisServer, str]) -> None:
    primary, url = one_sentinel
    with connect(url) as client:
        Producer(client).send("errors", "x", id="x")
    with Redis(port=primary.port, db=3) as database:
        assert database.lrange(QUEUE.lanes[1], 0, -1) == [b"x"]


def test_a_child_asks_sentinels_though_a_thread_of_its_parent_was_asking_when_it_was_forked(
    one_sentinel: tuple[RedisServer, str],
) -> None:
    primary, url = one_sentinel
    with socket.create_server(("127.0.0.1", 0)) as silent:
        both = f"sentinel://127.0.0.1:{silent.getsockname()[1]},{url.split(',')[1]}/{SERVICE}/3"
        with connect(both, timeout_s=8) as client, ThreadPoolExecutor(1) as threads:
            producer = Producer(client)
            sent = threads.submit(producer.send, "errors", "x")
            asked = silent.accept()[0]
            assert asked.recv(1), "the thread waits for the answer"
            child = os.fork()
            if child == 0:
                os._exit(0 if is_sent(producer, "of the child") else 1)
            assert os.waitpid(child, 0)[1] == 0
            sent.result()
            asked.close()
    with Redis(port=primary.port, db=3) as database:
        assert database.llen(QUEUE.lanes[1]) == 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what the loops that ended have left open
def test_an_asyncio_producer_asks_sentinels_in_one_event_loop_after_another(
    one_sentinel: tuple[RedisServer, str],
) -> None:
    primary, url = one_sentinel
    producer = AsyncProducer(connect_async(url))

    async def send_many_at_once(producer: AsyncProducer) -> None:
        await asyncio.gather(*(producer.send("errors", "text") for _ in range(20)))

    for _ in range(2):
        asyncio.run(send_many_at_once(producer))
    with Redis(port=primary.port, db=3) as database:
        assert database.llen(QUEUE.lanes[1]) == 40
    del producer
    gc.collect()


def test_every_command_takes_the_address_of_sentinels(one_sentinel: tuple[RedisServer, str]) -> None:
    _, url = one_sentinel
    env = {"DISPATCHER_REDIS_URL": url, "DISPATCHER_SINK": "console"}
    sent = commands.run("send", "errors", "over Sentinel", **env)
    assert f"queue notifications on {url}" in sent.err
    assert commands.run("worker", "--burst", **env).out == "#notifications  over Sentinel\n"
    for arguments in (("status", "--check"), ("limits", "show"), ("dead", "list"), ("status", "--json")):
        assert commands.run(*arguments, **env).code == 0, arguments
    doctor = commands.run("doctor", **env)
    assert "cannot be reached" not in doctor.out + doctor.err


def test_a_password_of_the_primary_is_asked_for_and_taken_from_the_address(
    one_sentinel: tuple[RedisServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, url = one_sentinel
    with primary.client() as database:
        database.config_set("requirepass", "of-the-primary")
    message = "the server at the Sentinels' 'main' asks for a password"
    with connect(url) as client, pytest.raises(ConfigError, match=message):
        Producer(client).send("errors", "x")
    monkeypatch.setenv("DISPATCHER_REDIS_URL", url.replace("//", "//:of-the-primary@"))
    with Producer.from_env() as producer:
        producer.send("errors", "x")


def test_a_sentinel_that_asks_for_its_own_password_says_where_to_put_it() -> None:
    with RedisServer(port=free_port()) as primary:
        config = primary.directory / "sentinel.conf"
        config.write_text(f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\nrequirepass of-the-sentinel\n")
        with RedisServer(port=free_port(), config=config, options=("--sentinel",)) as sentinel:
            url = f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/0"
            message = r"the Sentinels at 127\.0\.0\.1:\d+ refuse us .*: in DISPATCHER_REDIS_URL, put their own password"
            with connect(url) as client, pytest.raises(ConfigError, match=message):
                Producer(client).send("errors", "x")
            with connect(f"{url}?sentinel_password=of-the-sentinel") as client:
                Producer(client).send("errors", "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--sentinel",),
            r"no Sentinel at {place} names the primary \({place}: .*no permission.*\): .* run SENTINEL MASTERS$",
        ),
        ((), r"not all at {place} are Sentinels, and none names the primary \({place}: unknown command .*\): "),
    ],
    ids=["a Sentinel that does not let us ask", "a server that is no Sentinel"],
)
def test_a_sentinel_that_answers_an_error_is_named_unless_another_one_names_the_primary(
    one_sentinel: tuple[RedisServer, str], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    primary, url = one_sentinel
    config = tmp_path / "refusing.conf"
    config.write_text(
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\nuser default on nopass ~* &* +@all -sentinel\n"
    )

    async def send(url: str) -> None:
        async with AsyncProducer(connect_async(url)) as producer:
            await producer.send("errors", "x")

    with RedisServer(port=free_port(), config=config if options else None, options=options) as refusing:
        both = url.replace("//", f"//127.0.0.1:{refusing.port},")
        with connect(both) as client:
            Producer(client).send("errors", "x")
        asyncio.run(send(both))
        place = rf"127\.0\.0\.1:{refusing.port}"
        alone = f"sentinel://127.0.0.1:{refusing.port}/{SERVICE}/0"
        with connect(alone) as client, pytest.raises(ConfigError, match=message.format(place=place)):
            Producer(client).send("errors", "x")
        with pytest.raises(ConfigError, match=message.format(place=place)):
            asyncio.run(send(alone))


@pytest.mark.parametrize("wrong", ["another name", "another password", "no Sentinel", "no right to ask"])
def test_a_wrong_answer_is_an_outage_while_another_sentinel_does_not_answer(tmp_path: Path, wrong: str) -> None:
    rules = {
        "another password": "requirepass secret",
        "no right to ask": "user default on nopass ~* &* +@all -sentinel",
    }
    said = {
        "another name": "watches else",
        "another password": "Authentication required.",
        "no Sentinel": "unknown command .*",
        "no right to ask": ".*no permission.*",
    }[wrong]
    config = tmp_path / "one.conf"
    service = "else" if wrong == "another name" else SERVICE
    config.write_text(f"sentinel monitor {service} 127.0.0.1 {free_port()} 1\n{rules.get(wrong, '')}\n")
    is_sentinel = wrong != "no Sentinel"
    options = ("--sentinel",) if is_sentinel else ()
    with RedisServer(port=free_port(), config=config if is_sentinel else None, options=options) as one:
        other = free_port()
        url = f"sentinel://127.0.0.1:{one.port},127.0.0.1:{other}/{SERVICE}/0"
        message = (
            rf"that can be reached names 'main' \(127\.0\.0\.1:{one.port}: {said}; 127\.0\.0\.1:{other}: .*refused"
        )
        with connect(url) as client, pytest.raises(QueueUnavailable, match=message):
            Producer(client).send("errors", "x")


def test_a_service_that_no_sentinel_knows_is_a_fault_of_the_address(one_sentinel: tuple[RedisServer, str]) -> None:
    url = f"sentinel://{one_sentinel[1].split(',')[1]}/{SERVICE}/3"  # the one that answers
    message = r"know no service 'other': in DISPATCHER_REDIS_URL, name one that they watch, which is main"
    with connect(url.replace("/main/", "/other/")) as client, pytest.raises(ConfigError, match=f"{message}$"):
        Producer(client).send("errors", "x")
    worker = commands.run("worker", DISPATCHER_REDIS_URL=url.replace("/main/", "/other/"), DISPATCHER_SINK="console")
    assert worker.code == 78
    assert re.search(message, worker.err)


def test_sentinels_that_do_not_answer_are_told_by_where_they_are() -> None:
    ports = free_port(), free_port()
    url = f"sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{SERVICE}/0"
    places = [rf"127\.0\.0\.1:{port}" for port in ports]
    message = (
        rf"no Sentinel at {places[0]}, {places[1]} can be reached \({places[0]}: .*refused.*{places[1]}: .*refused"
    )
    with connect(url) as client, pytest.raises(QueueUnavailable, match=message):
        Producer(client).send("errors", "x")
