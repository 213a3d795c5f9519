"""Producers put events on the lanes, atomically per call, and no id twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from dispatcher.core.event import Event, job_id_for
from dispatcher.core.posts import Rejected, Retryable
from dispatcher.core.units import Lane
from dispatcher.errors import ConfigError, QueueUnavailable
from dispatcher.producer.blocking import Producer
from dispatcher.server.clients import connect
from dispatcher.server.connection import Script
from dispatcher.server.keys import LAYOUT_VERSION, Keys
from dispatcher.store.intake import Enqueued, Intake, claim_namespace
from dispatcher.store.rq_keys import QueueKeys
from tests.support.servers import Database, RedisServer
from tests.support.stage import REMEMBER_US, Stage

DONE, DUPLICATE, FULL = Enqueued.DONE, Enqueued.DUPLICATE, Enqueued.FULL


def test_each_event_lies_on_the_lane_of_its_priority_in_order(stage: Stage, redis: Database) -> None:
    for id_, lane in (("n1", Lane.NORMAL), ("h1", Lane.HIGH), ("l1", Lane.LOW), ("n2", Lane.NORMAL)):
        stage.send(id_, priority=lane)
    lanes = [redis.lrange(lane, 0, -1) for lane in stage.queue.lanes]
    assert lanes == [[b"h1"], [b"n1", b"n2"], [b"l1"]]
    assert redis.smembers(stage.queue.queues) == {lane.encode() for lane in stage.queue.lanes}


@pytest.mark.parametrize(
    "name",
    ["x", "a b", "ä", "😀" * 3, "a/b:c", "x" * 128, '"quoted\\"', "{stage}", "#ops", "id-1"],
)
def test_an_id_of_any_characters_comes_back_with_its_event(stage: Stage, name: str) -> None:
    stage.send(name)
    (leased,) = stage.worker().take().batch
    assert (leased.id, leased.event.id) == (job_id_for(name), name)  # type: ignore[union-attr]  # is what the test asks


def mark_of(redis: Database, job_id: str) -> list[bytes | None]:
    """What a job says of itself to the pre-check, and what the record shows of it (lua/include/intake.lua)."""
    found: list[bytes | None] = redis.hmget(f"rq:job:{job_id}", "category", "shown")
    return found


def test_a_job_bears_its_category_and_whether_its_id_is_to_be_remembered(stage: Stage, redis: Database) -> None:
    stage.send("chosen", category="deploys.eu-1")
    assert mark_of(redis, "chosen") == [b"deploys.eu-1 1", b'"text of chosen",{}']
    assert mark_of(redis, stage.send_unnamed("news")) == [b"news 0", b'"unnamed",{}']
    assert mark_of(redis, Producer(redis).send("news", "x")) == [b"news 0", b'"x",{}']
    named = Producer(redis).send("news", "x", labels={"a": "b"}, id="named")
    assert mark_of(redis, named) == [b"news 1", b'"x",{"a":"b"}']


@pytest.mark.parametrize("name", ["a b", "ä", "a/b:c", "{stage}"])
def test_a_job_that_is_not_called_as_its_event_bears_no_mark(stage: Stage, redis: Database, name: str) -> None:
    stage.send(name)
    (job_id,) = (id_.decode() for id_ in redis.lrange(stage.queue.lanes[1], 0, -1))
    assert job_id == job_id_for(name) != name
    assert mark_of(redis, job_id) == [None, None]
    assert redis.hget(f"rq:job:{job_id}", "description") == f"errors: text of {name}".encode()


@pytest.mark.parametrize("text", ["first\nsecond", "\nx", "x\n", "x"])
def test_newlines_in_the_text_spoil_neither_mark_nor_description_of_a_job(
    stage: Stage, redis: Database, text: str
) -> None:
    stage.intake.enqueue([("x", Event("errors", text, id="x"))])
    assert mark_of(redis, "x") == [b"errors 1", f'"{" ".join(text.split())}",{{}}'.encode()]
    assert redis.hget("rq:job:x", "description") == f"errors: {text}".replace("\n", " ").encode()
    (leased,) = stage.worker().take().batch
    assert leased.event.text == text  # type: ignore[union-attr]  # is what the test asks


def test_a_repeated_id_is_a_duplicate_within_a_call_and_later(stage: Stage, redis: Database) -> None:
    assert stage.send("x", "y", "x") == [DONE, DONE, DUPLICATE]
    assert stage.send("y") == [DUPLICATE]
    assert redis.llen(stage.queue.lanes[1]) == 2


def test_the_first_payload_of_an_id_wins(stage: Stage) -> None:
    stage.intake.enqueue([("x", Event("errors", "first", id="x"))])
    stage.intake.enqueue([("x", Event("errors", "second", id="x"))])
    (leased,) = stage.worker().take().batch
    assert leased.event.text == "first"  # type: ignore[union-attr]  # is what the test asks


def test_an_id_is_present_wherever_its_event_is(stage: Stage) -> None:
    worker = stage.worker()
    stage.send("leased", "parked", "line", "dead", "sent")
    batch = {each.id: each for each in worker.take().batch}
    (parked,) = worker.dispatch([batch["parked"]])
    worker.answer(parked, Retryable("refused", "connection refused"))
    (dead,) = worker.dispatch([batch["dead"]])
    worker.answer(dead, Rejected("is_archived", "archived"))
    (sent,) = worker.dispatch([batch["sent"]])
    assert stage.send("sent") == [DUPLICATE]  # a post is under way
    assert worker.dispatch([batch["line"]]) == []
    worker.deliver([sent])
    assert stage.send("leased", "parked", "line", "dead", "sent") == [DUPLICATE] * 5


def test_a_dead_id_is_present_for_as_long_as_its_letter_is(stage: Stage, redis: Database) -> None:
    redis.rpush(stage.queue.lanes[1], "x")
    stage.worker().run()
    stage.clock.now_us += 10 * REMEMBER_US
    assert stage.send("x") == [DUPLICATE]
    redis.delete(stage.keys.dead, stage.keys.dead_ids, stage.keys.dead_bytes, stage.keys.metrics)
    assert stage.send("x") == [DONE]


def test_a_settled_id_is_forgotten_after_the_window(stage: Stage) -> None:
    worker = stage.worker()
    stage.send("x")
    worker.run()
    stage.clock.now_us += REMEMBER_US - 1
    assert stage.send("x") == [DUPLICATE]
    stage.clock.now_us += 1
    assert stage.send("x") == [DONE]
    worker.run()
    assert worker.desk.posts == ["x", "x"]


def test_a_generated_id_is_not_remembered(stage: Stage, redis: Database) -> None:
    id_ = stage.send_unnamed()
    worker = stage.worker()
    worker.run()
    assert not redis.exists(stage.keys.seen)
    assert stage.intake.enqueue([(id_, Event("errors", "again"))]) == [DONE]


def test_a_full_queue_refuses_what_does_not_fit(redis: Database) -> None:
    stage = Stage(redis)
    intake = Intake(redis, stage.keys, stage.queue, max_waiting=2)
    events = [(id_, Event("errors", "t", id=id_)) for id_ in ("a", "b", "a", "c", "d")]
    assert intake.enqueue(events) == [DONE, DONE, DUPLICATE, FULL, FULL]
    assert redis.llen(stage.queue.lanes[1]) == 2
    assert sorted(redis.keys("rq:job:*")) == [b"rq:job:a", b"rq:job:b"]


def test_a_taken_or_parked_event_counts_against_max_waiting_until_it_ends(redis: Database) -> None:
    stage = Stage(redis)
    intake = Intake(redis, stage.keys, stage.queue, max_waiting=2)
    more = [("more", Event("errors", "t", id="more"))]
    stage.send("leased", "parked")
    worker = stage.worker()
    leased, parked = worker.take().batch
    (started,) = worker.dispatch([parked])
    worker.answer(started, Retryable("refused", "connection refused"))
    assert redis.llen(stage.queue.lanes[1]) == 0
    assert (stage.snapshot().in_flight, stage.snapshot().parked) == (1, 1)
    assert intake.enqueue(more) == [FULL]
    worker.deliver(worker.dispatch([leased]))
    assert intake.enqueue(more * 2) == [DONE, DUPLICATE]
    assert intake.enqueue([("last", Event("errors", "t", id="last"))]) == [FULL]


GOOD = "21errors\nshown\ndescription\ndata"


def enqueue(redis: Database, stage: Stage, *rows: str | bytes, most: str = "10", at: str = "", jobs: int = 0) -> bytes:
    """Call enqueue.lua with rows as they are; ``jobs`` where their number is to differ from that of the rows."""
    keys, _ = stage.intake.calls.enqueue([], None)
    names = [f"rq:job:j{n}" for n in range(jobs or len(rows))]
    answer: bytes = Script(redis, "enqueue")([*keys, *names], ["1", "stage", most, "2026-01-01", at, 0, "", *rows])
    return answer


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "2",
        "21errors",
        "21errors\n",
        "21e\ns\n",
        "01e\ns\nd\ndata",
        "41e\ns\nd\ndata",
        "2xe\ns\nd\ndata",
        b"21\xff\nd",
    ],
    ids=[
        "nothing",
        "lane alone",
        "no line feed",
        "one line feed",
        "two line feeds",
        "lane 0",
        "lane 4",
        "no mark",
        "no text",
    ],
)
def test_a_malformed_event_is_refused_and_none_of_its_call_is_written(
    stage: Stage, redis: Database, bad: str | bytes
) -> None:
    for rows in ([GOOD, bad], [bad, GOOD], [GOOD, bad, GOOD]):
        with pytest.raises(ResponseError, match=f"event {rows.index(bad) + 1} is not as enqueue.lua says"):
            enqueue(redis, stage, *rows)
        assert redis.keys() == []
    assert enqueue(redis, stage, GOOD) == b"1"


@pytest.mark.parametrize("said", [{"most": "many"}, {"most": ""}, {"at": "noon"}, {"jobs": 1}, {"jobs": 3}], ids=str)
def test_a_malformed_call_is_refused_and_nothing_is_written(
    stage: Stage, redis: Database, said: dict[str, Any]
) -> None:
    with pytest.raises(ResponseError, match="expected"):
        enqueue(redis, stage, GOOD, GOOD, **said)
    assert redis.keys() == []


def test_more_events_than_one_call_may_hold_are_refused_and_nothing_is_written(stage: Stage, redis: Database) -> None:
    with pytest.raises(ResponseError, match="expected up to 1000 jobs"):
        enqueue(redis, stage, *[GOOD] * 1_001, most="9999")
    assert redis.keys() == []
    assert enqueue(redis, stage, *[GOOD] * 1_000, most="9999") == b"1" * 1_000


def test_a_category_and_a_description_may_be_empty_and_data_may_hold_line_feeds(stage: Stage, redis: Database) -> None:
    assert enqueue(redis, stage, "10\n\n\n", "30\n\n\na\nb\n") == b"11"
    assert [redis.hget(f"rq:job:j{n}", "data") for n in range(2)] == [b"", b"a\nb\n"]
    assert [redis.hget(f"rq:job:j{n}", "category") for n in range(2)] == [None, None]
    assert [redis.lrange(lane, 0, -1) for lane in stage.queue.lanes] == [[b"j0"], [], [b"j1"]]


@pytest.mark.parametrize("place", range(10), ids=lambda place: f"KEYS {place + 1}")
def test_a_key_of_another_type_is_met_before_anything_is_written(stage: Stage, redis: Database, place: int) -> None:
    keys, _ = stage.intake.calls.enqueue([], None)
    strange = [*keys, "rq:job:j1"][place]
    redis.xadd(strange, {"not": "ours"})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        enqueue(redis, stage, GOOD, GOOD.replace("21", "20", 1), GOOD)
    assert redis.keys() == [strange.encode()]
    assert redis.type(strange) == b"stream"


def test_a_right_that_is_missing_for_the_lane_leaves_no_job_behind(own_server: RedisServer) -> None:
    with own_server.client() as redis:
        stage = Stage(redis)
        refused_by_an_acl(redis)
        with pytest.raises(ConfigError, match="the server's ACL does not let"):
            stage.intake.enqueue([("x", Event("errors", "t", id="x"))])
        assert redis.keys("rq:job:*") == []
        redis.acl_setuser("default", commands=["+rpush"])
        assert stage.send("x") == [DONE], "it is no duplicate of what was refused"


def test_another_layout_is_refused_and_nothing_is_enqueued(stage: Stage, redis: Database) -> None:
    redis.set(stage.keys.layout, "7")
    with pytest.raises(ConfigError, match=f"holds key layout '7', this version reads layout '{LAYOUT_VERSION}'"):
        stage.intake.enqueue([("x", Event("errors", "t", id="x"))])
    assert redis.keys() == [stage.keys.layout.encode()]
    with pytest.raises(ConfigError, match="layout '7'"):
        claim_namespace(redis, stage.keys, stage.queue)


def test_a_queue_belongs_to_the_first_namespace_that_claims_it(stage: Stage, redis: Database) -> None:
    claim_namespace(redis, stage.keys, stage.queue)
    claim_namespace(redis, stage.keys, stage.queue)
    assert redis.get(stage.keys.layout) == LAYOUT_VERSION.encode()
    with pytest.raises(ConfigError, match="queue 'q' belongs to namespace 'stage', not to 'other'"):
        claim_namespace(redis, Keys("other"), stage.queue)
    claim_namespace(redis, Keys("other"), QueueKeys("other"))


def test_nothing_is_enqueued_for_a_queue_of_another_namespace(stage: Stage, redis: Database) -> None:
    claim_namespace(redis, Keys("shop"), stage.queue)
    with pytest.raises(ConfigError, match="queue 'q' belongs to namespace 'shop', not to 'stage'"):
        stage.intake.enqueue([("x", Event("errors", "x"))])
    assert redis.llen(stage.queue.lanes[1]) == 0


def refused_by_a_type(redis: Database) -> None:
    redis.set(QueueKeys("notifications").lanes[1], "something else")


def refused_by_an_acl(redis: Database) -> None:
    redis.acl_setuser("default", enabled=True, nopass=True, reset=True, keys=["*"], commands=["+@all", "-rpush"])


def refused_by_a_password(redis: Database) -> None:
    redis.config_set("requirepass", "other")


@pytest.mark.parametrize(
    ("refuse", "message"),
    [
        (
            refused_by_a_type,
            "holds another type of data (WRONGTYPE), so another program uses its name: set DISPATCHER_",
        ),
        (refused_by_an_acl, "the server's ACL does not let the user of DISPATCHER_REDIS_URL do what the dispatcher"),
        (refused_by_a_password, "asks for a password, and DISPATCHER_REDIS_URL has none: write it before the host"),
    ],
)
def test_a_producer_is_told_in_our_words_what_the_server_refuses(
    own_server: RedisServer, refuse: Callable[[Database], None], message: str
) -> None:
    with own_server.client() as redis:
        refuse(redis)
        with connect(own_server.url) as client, pytest.raises(ConfigError, match=re.escape(message)) as caught:
            Producer(client).send("errors", "x")
    assert "user_script" not in str(caught.value)


def test_a_producer_at_a_replica_or_a_full_server_is_told_so(own_server: RedisServer) -> None:
    with own_server.client() as redis, connect(own_server.url) as client:
        redis.config_set("maxmemory", 1)
        with pytest.raises(QueueUnavailable, match=r"^Redis is full .* used memory > 'maxmemory'$"):
            Producer(client).send("errors", "x")
        redis.config_set("maxmemory", 0)
        redis.replicaof("127.0.0.1", 1)
        with pytest.raises(QueueUnavailable, match=r"^Redis is a read-only replica: You can't write .* replica$"):
            Producer(client).send("errors", "x")
