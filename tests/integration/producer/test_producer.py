"""``Producer``: what one call costs, what it loads, and how a long one goes on where it stopped."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import pytest
from redis import Redis

from dispatcher import ConfigError, Event, InvalidEvent, Producer, QueueFull, QueueUnavailable
from dispatcher.core.event import MAX_EVENT_BYTES
from dispatcher.producer.blocking import CHUNK, CHUNK_BYTES
from dispatcher.server.clients import connect
from dispatcher.server.embedded import EmbeddedServer
from dispatcher.server.keys import Keys
from dispatcher.store.intake import Enqueued, Intake, claim_namespace
from dispatcher.store.rq_keys import QueueKeys
from tests.support.processes import until
from tests.support.servers import Database, RedisServer

QUEUE = QueueKeys("notifications")
LANE = QUEUE.lanes[1]


def test_a_producer_waits_no_longer_than_two_seconds_for_an_embedded_server_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("DISPATCHER_REDIS_URL", raising=False)
    with EmbeddedServer.join(tmp_path) as server, Redis.from_url(server.url) as redis:
        pid = int(redis.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(QueueUnavailable, match="has not answered for 2 s"):
                Producer.from_env()
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_variable_that_is_misspelt_is_a_warning_where_a_producer_is_made(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxp-another-programs")
    monkeypatch.setenv("DISPATCHER_QUEU", "q")
    with pytest.warns(UserWarning, match="did you mean DISPATCHER_QUEUE") as caught, Producer.from_env():
        pass
    assert [warning.filename for warning in caught] == [__file__]


def test_a_line_of_the_env_file_that_a_producer_does_not_read_is_no_warning(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("what the application reads\n", encoding="utf-8")
    monkeypatch.setenv("DISPATCHER_REDIS_URL", redis_url)
    with warnings.catch_warnings(action="error"), Producer.from_env():
        pass


def events(count: int, *, ids: bool = True) -> list[dict[str, str]]:
    return [{"category": "errors", "text": f"text {n}", **({"id": f"e{n}"} if ids else {})} for n in range(count)]


def calls(redis: Database, name: str) -> int:
    return int(redis.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


def queued(redis: Database, lane: str = LANE) -> list[str]:
    return [id_.decode() for id_ in redis.lrange(lane, 0, -1)]


@pytest.mark.parametrize("front", ["from dispatcher import AsyncProducer, Event, Producer", "import dispatcher.shards"])
def test_importing_a_producer_loads_neither_redis_nor_settings(front: str) -> None:
    program = f"import sys\n{front}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "dispatcher" in said
    assert set(said).isdisjoint({"rq", "redis", "pydantic", "pydantic_settings", "ruamel", "click", "slack_sdk"})


def test_a_job_says_whether_somebody_has_chosen_its_id(redis: Database) -> None:
    producer = Producer(redis)
    ids = producer.send("errors", "x"), producer.send("errors", "y", id="a")
    assert [redis.hget(QUEUE.job(id_), "category") for id_ in ids] == [b"errors 0", b"errors 1"]


def test_a_send_is_one_command_also_the_first_of_a_producer(redis: Database) -> None:
    Producer(redis).send("errors", "so that the server knows the script")
    claim_namespace(redis, Keys("dispatcher"), QUEUE)
    redis.config_resetstat()
    Producer(redis).send("errors", "x")
    assert calls(redis, "evalsha") == 1
    outside = {"cmdstat_evalsha", "cmdstat_config|resetstat", "cmdstat_info"}
    in_script = {"get", "llen", "hlen", "hset", "rpush", "sadd"}
    assert set(redis.info("commandstats")) - outside == {f"cmdstat_{name}" for name in in_script}


def test_send_many_is_one_command_for_five_hundred(redis: Database) -> None:
    producer = Producer(redis)
    producer.send("errors", "so that the server knows the script")
    redis.config_resetstat()
    ids = producer.send_many(events(2 * CHUNK + 1, ids=False))
    assert calls(redis, "evalsha") == 3
    assert queued(redis)[1:] == ids
    assert len(set(ids)) == 2 * CHUNK + 1


@pytest.mark.parametrize("letter", ["x", "漢"], ids=["ascii", "of three bytes"])
def test_chunks_are_bounded_by_their_bytes_too(redis: Database, letter: str) -> None:
    producer = Producer(redis)
    producer.send("errors", "so that the server knows the script")
    redis.config_resetstat()
    text = letter * ((MAX_EVENT_BYTES - 100) // len(letter.encode()))
    producer.send_many({"category": "errors", "text": text} for _ in range(40))
    assert calls(redis, "evalsha") == 3
    assert -(-40 * MAX_EVENT_BYTES // CHUNK_BYTES) == 3


def test_no_more_than_a_chunk_is_held(redis: Database) -> None:
    alive: weakref.WeakSet[Text] = weakref.WeakSet()
    most = 0

    def source() -> Iterator[dict[str, str]]:
        nonlocal most
        for n in range(4 * CHUNK):
            if n % 50 == 0:
                gc.collect()
            most = max(most, len(alive))
            text = Text(f"text {n}")
            alive.add(text)
            yield {"category": "errors", "text": text}
            del text

    gc.collect()
    gc.freeze()  # what was there before need not be gone through each time
    try:
        Producer(redis).send_many(source())
    finally:
        gc.unfreeze()
    assert CHUNK - 60 <= most <= CHUNK + 1


def test_the_next_chunk_of_a_list_is_made_while_the_server_works(own_server: RedisServer) -> None:
    read: list[Any] = []
    given = [Watched(each, read) for each in events(2 * CHUNK)]
    with connect(own_server.url) as client, ThreadPoolExecutor(1) as thread:
        producer = Producer(client)
        producer.send("errors", "opens the connection")
        own_server.freeze()
        sending = thread.submit(producer.send_many, given)
        until(lambda: len(read) == len(given) or None, "the second chunk is made")
        own_server.cont()
        assert sending.result() == [each["id"] for each in given]
        assert queued(client)[1:] == sending.result()


@pytest.mark.parametrize("is_known", [True, False], ids=["script known", "script unknown"])
def test_an_answer_that_came_in_time_is_read_after_it_too(redis: Database, *, is_known: bool) -> None:
    intake = Intake(redis, Keys("dispatcher"), QUEUE, max_waiting=10, within_s=0.5)
    intake.enqueue([("opens-the-connection", Event("errors", "x"))])
    if not is_known:
        redis.script_flush()
    answer = intake.ask_jobs([intake.calls.job("late", Event("errors", "x"))])
    end_s = time.monotonic() + 0.5
    until(lambda: time.monotonic() > end_s or None, "the bound has passed")
    assert answer() == [Enqueued.DONE]
    assert queued(redis)[1:] == ["late"]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_an_element_that_raises_leaves_no_connection_in_use(
    redis_url: str, redis: Database, error: BaseException
) -> None:
    class Raises(Watched):
        """The fields of an event that cannot be read."""

        def __iter__(self) -> NoReturn:
            raise error

    with Redis.from_url(redis_url, max_connections=1) as client:
        producer = Producer(client)
        with pytest.raises(type(error)) as caught:
            producer.send_many([*events(CHUNK + 3), Raises({}, [])])
        assert queued(redis) == [f"e{n}" for n in range(CHUNK)]
        assert producer.send("errors", "while the traceback is held", id="next") == "next"
    del caught


def test_an_iterator_may_use_the_producer_itself(redis_url: str, redis: Database) -> None:
    def source() -> Iterator[dict[str, str]]:
        for n, each in enumerate(events(CHUNK + 1)):
            if n == CHUNK:
                producer.send("errors", "the first chunk is made", id="between")
            yield each

    with Redis.from_url(redis_url, max_connections=1) as client:
        producer = Producer(client)
        producer.send_many(source())
    assert queued(redis)[CHUNK:] == ["between", f"e{CHUNK}"]


class Watched(Mapping[str, str]):
    """The fields of an event, which tell that they were read."""

    def __init__(self, fields: dict[str, str], read: list[Any]) -> None:
        self._fields = fields
        self._read = read

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[str]:
        self._read.append(self)
        return iter(self._fields)


class Text(str):
    """A text that can be watched."""

    __slots__ = ("__weakref__",)


def test_generated_ids_have_the_form_of_those_that_are_not_remembered(redis: Database) -> None:
    producer = Producer(redis)
    one, *many = producer.send("errors", "x"), *producer.send_many(events(50, ids=False))
    for id_ in (one, *many):
        assert [len(part) for part in id_.split("-")] == [8, 4, 4, 4, 12]
        assert id_[14] == "4"
        assert set(id_) <= set("0123456789abcdef-")


def test_the_job_is_rqs_own_form(redis: Database) -> None:
    Producer(redis).send("errors", "first line\nsecond line", id="x", labels={"host": "db1"}, priority="high")
    job = {name.decode(): value.decode() for name, value in redis.hgetall(QUEUE.job("x")).items()}
    assert job["description"] == "errors: first line second line"
    function, instance, (event,), keywords = json.loads(job["data"])
    assert (function, instance, keywords) == ("dispatcher.jobs.dispatch", None, {})
    assert (event["text"], event["labels"]) == ("first line\nsecond line", {"host": "db1"})
    assert (job["origin"], job["status"]) == ("notifications:high", "queued")
    assert queued(redis, QUEUE.lanes[0]) == ["x"]


@pytest.mark.parametrize("given", ["x", 7, None, ["errors", "x"]], ids=str)
def test_a_value_that_is_no_object_is_an_invalid_event(redis: Database, given: object) -> None:
    with pytest.raises(InvalidEvent, match=r"^event 0: event is .*, expected an Event or a mapping of its fields$"):
        Producer(redis).send_many([given])  # type: ignore[list-item] # what is tested


def test_an_event_that_is_too_large_is_refused_wherever_it_was_made(redis: Database) -> None:
    large = Event("errors", "x" * MAX_EVENT_BYTES)
    with pytest.raises(InvalidEvent, match=r"^event 1: event is \d+ bytes as JSON, expected at most 262144$"):
        Producer(redis).send_many([Event("errors", "x"), large])
    assert queued(redis) == []


def test_a_server_that_goes_away_leaves_open_one_chunk(own_server: RedisServer) -> None:
    def source() -> Iterator[dict[str, str]]:
        for n, each in enumerate(given):
            if n == CHUNK + 1:
                own_server.kill()
            yield each

    given = events(3 * CHUNK)
    with connect(own_server.url) as client:
        stream = source()
        with pytest.raises(QueueUnavailable) as caught:
            Producer(client).send_many(stream)
        assert list(caught.value.ids) == [f"e{n}" for n in range(CHUNK)]
        assert list(caught.value.rest) == given[CHUNK : 2 * CHUNK]
        own_server.start()
        rest = chain(caught.value.rest, stream)
        given_ids = Producer(client).send_many(rest)
        assert given_ids == [f"e{n}" for n in range(CHUNK, 3 * CHUNK)]
        assert queued(client) == [f"e{n}" for n in range(3 * CHUNK)]


def test_the_binding_of_the_queue_is_looked_at_in_every_call(redis: Database) -> None:
    producer = Producer(redis)
    producer.send("errors", "before any worker")
    claim_namespace(redis, Keys("shop"), QUEUE)
    with pytest.raises(ConfigError, match="queue 'notifications' belongs to namespace 'shop', not to 'dispatcher'"):
        producer.send("errors", "x")
    assert len(queued(redis)) == 1


def test_the_answers_of_a_client_that_decodes_are_read_too(redis_url: str, redis: Database) -> None:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        with pytest.raises(QueueFull):
            Producer(client, max_waiting=2).send_many(events(3))
        claim_namespace(redis, Keys("shop"), QUEUE)
        with pytest.raises(ConfigError, match="belongs to namespace 'shop'"):
            Producer(client).send("errors", "x")


def test_a_producer_of_the_environment_closes_what_it_opened(tmp_path: Path) -> None:
    with EmbeddedServer.join(tmp_path / ".dispatcher") as server, connect(server.url) as client:
        with Producer.from_env() as producer:
            producer.send("errors", "x")
            opened = len(client.client_list())
        until(lambda: len(client.client_list()) < opened, "the end of its connection")
    with pytest.raises(ConfigError, match="no embedded server"):
        Producer.from_env()


def test_the_server_is_left_though_the_connections_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_client: Redis) -> None:
        raise OSError("no")

    with EmbeddedServer.join(tmp_path / ".dispatcher"):
        producer = Producer.from_env()
    with monkeypatch.context() as broken:
        broken.setattr(Redis, "close", fail)
        with pytest.raises(OSError, match="no"):
            producer.close()
    with pytest.raises(ConfigError, match="no embedded server"):
        Producer.from_env()


def test_a_client_that_was_handed_in_stays_open(redis: Database) -> None:
    with Producer(redis) as producer:
        producer.send("errors", "x")
    assert redis.ping()
