"""Jobs of a stock RQ producer in a storm: the pre-check drops them by marks that the worker gives. In made-up time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue
from rq.serializers import JSONSerializer

from dispatcher.core.event import Event
from dispatcher.core.explain import Decision
from dispatcher.core.states import Leased, Undecodable
from dispatcher.core.units import Lane
from dispatcher.errors import GateUnavailable
from dispatcher.store.intake import seal
from dispatcher.store.leases import AHEAD
from dispatcher.store.stock_jobs import StockJobs
from tests.support.servers import RedisServer
from tests.support.stage import UNPACED, Stage, Worker, gone, handed_out

LIMITS: Final = (
    f'channels: {{"{UNPACED}": {{pace: none}}}}\nglobal: {{limits: []}}\n'
    f'defaults: {{limits: [1/30m], channel: "{UNPACED}"}}\n'
)
ROOM: Final = 10
MANY: Final = 40
"""More than one take hands out here."""
LOOKED_AT: Final = 8 * ROOM
"""By one take."""


def push(stage: Stage, *ids: str, lane: Lane = Lane.NORMAL, **event: Any) -> None:  # noqa: ANN401 - what JSON holds
    """By RQ's own producer."""
    name = stage.queue.lane(lane).removeprefix("rq:queue:")
    queue = Queue(name, connection=stage.redis, serializer=JSONSerializer)
    for id_ in ids:
        payload = {"category": "errors", "text": f"text of {id_}"} | event
        queue.enqueue("dispatcher.jobs.dispatch", payload, job_id=id_)


def close(stage: Stage, owner: str = "ann") -> Worker:
    """A worker whose gate has refused an event of the category, and that was handed out jobs without a mark."""
    worker = stage.worker(owner)
    worker.follow(stage.put_in_force(LIMITS))
    stage.send("sent", "refused")
    worker.run()
    push(stage, "first")
    assert worker.taken(ROOM) == ["first"]
    worker.dispatch([])
    return worker


@pytest.fixture
def jobs(stage: Stage) -> StockJobs:
    """After a take has met a job without a mark."""
    jobs = StockJobs(stage.redis, stage.queue)
    jobs.taken([], ["first"], has_unmarked=True)
    return jobs


def marked(jobs: StockJobs, room: int = ROOM) -> list[str]:
    """The ids of which the next take gets marks; those behind them are read, too."""
    text = "".join(each.decode() for each in jobs.marks(room))
    jobs.receive()()
    ids: list[str] = json.loads(text)["ids"] if text else []
    return ids


@pytest.fixture
def ann(stage: Stage) -> Worker:
    return close(stage)


def numbered(begin: str, number: int = MANY) -> list[str]:
    return [f"{begin}-{n}" for n in range(number)]


def decision(stage: Stage, id_: str) -> Decision | None:
    found = stage.decision(id_)
    return found and replace(found, id="", text=None)


def test_after_one_job_without_a_mark_the_next_ones_are_dropped_as_they_are_taken(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a"))
    taken = ann.take(ROOM)
    assert (gone(taken), taken.batch) == (numbered("a"), [])
    assert stage.redis.keys("rq:job:*") == []
    assert stage.snapshot().imbalances() == []


def test_the_record_says_of_them_what_the_gate_says(stage: Stage, ann: Worker) -> None:
    bob = stage.worker("bob")
    version = stage.versions.in_force()
    assert version is not None
    bob.follow(version)
    labels = {"host": "db1", "rack": "ü\n\"'"}
    push(stage, "a", labels=labels, text="disk  full\non db1")
    assert gone(ann.take(ROOM)) == ["a"]
    push(stage, "twin", labels=labels, text="disk  full\non db1")
    bob.run()
    assert decision(stage, "a") == decision(stage, "twin")
    found = [stage.decision(id_) for id_ in ("a", "twin")]
    assert [each and each.text for each in found] == ["disk full on db1"] * 2


@pytest.mark.parametrize("marked", ["by the producer", "by the worker"])
def test_a_job_that_rq_brings_back_after_a_stock_worker_posted_its_event_is_a_duplicate_in_a_storm_too(
    stage: Stage, marked: str
) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    version = stage.put_in_force(LIMITS)
    ann.follow(version)
    bob.follow(version)
    made = stage.send_unnamed()
    if marked == "by the worker":
        stage.redis.hdel(stage.queue.job(made), "category", "shown")
    (lane,) = (lane for lane in stage.queue.lanes if stage.redis.lrem(lane, 0, made))
    bob.finish(bob.outbox.adopt(made, stage.redis.hget(stage.queue.job(made), "data").decode()))
    assert stage.total("sent") == 1
    stage.send("refused")
    ann.run()
    push(stage, "first")
    ann.dispatch(ann.take(ROOM).batch)
    stage.redis.rpush(lane, made)
    stage.redis.hset(stage.queue.job(made), "enqueued_at", "2024-11-20T00:00:00.000000Z")
    taken = ann.take(ROOM)
    assert (taken.duplicates, gone(taken), taken.batch) == ([made], [], [])
    found = stage.explanations.explain(made)
    assert found.outcome == "sent"
    assert stage.snapshot().imbalances() == []


def test_their_ids_are_remembered_unless_rq_made_them(stage: Stage, ann: Worker) -> None:
    made = "2f1b1c6e-90f3-4e05-9ad4-3a1d3f0f6f11"
    push(stage, "chosen", made)
    assert gone(ann.take(ROOM)) == ["chosen", made]
    push(stage, "chosen", made)
    taken = ann.take(ROOM)
    assert (taken.duplicates, gone(taken)) == (["chosen"], [made])


def test_of_other_categories_they_are_handed_out(stage: Stage, ann: Worker) -> None:
    push(stage, "a")
    push(stage, "b", category="deploys")
    push(stage, "c")
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["a", "c"], ["b"])


@pytest.mark.parametrize(
    "event",
    [
        {"status": "resolved", "dedup_key": "disk"},
        {"not_before": 4_000_000_000},
        {"id": "a:b"},
        {"text": ""},
        {"priority": "highest"},
    ],
    ids=["recovery", "not due", "other id", "no text", "unknown priority"],
)
def test_what_only_a_worker_may_decide_is_handed_out(stage: Stage, ann: Worker, event: dict[str, Any]) -> None:
    push(stage, "before")
    push(stage, "a", **event)
    push(stage, "after")
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["before", "after"], ["a"])


def test_jobs_of_another_function_are_handed_out(stage: Stage, ann: Worker) -> None:
    push(stage, "before")
    queue = Queue(stage.queue.queue, connection=stage.redis, serializer=JSONSerializer)
    queue.enqueue("os.getcwd", job_id="other")
    taken = ann.take(ROOM)
    assert gone(taken) == ["before"]
    assert [type(each) for each in taken.batch] == [Undecodable]


def test_the_jobs_behind_are_read_while_the_server_takes(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a", 3 * LOOKED_AT))
    takes = [ann.take(ROOM) for _ in range(3)]
    assert [gone(taken) for taken in takes] == [
        numbered("a", 3 * LOOKED_AT)[first : first + LOOKED_AT] for first in (0, LOOKED_AT, 2 * LOOKED_AT)
    ]
    assert all(taken.batch == [] for taken in takes)


def test_a_job_that_took_the_place_of_the_one_that_was_read_is_handed_out(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a", LOOKED_AT), "b", "c", "d")
    ann.take(ROOM)
    stage.redis.delete(stage.queue.job("c"))
    stage.redis.lrem(stage.queue.lane(Lane.NORMAL), 1, "c")
    push(stage, "c", category="deploys")
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["b", "d"], ["c"])


def test_a_mark_of_the_jobs_own_wins_over_one_that_was_given(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a", LOOKED_AT), "b", "c", "d")
    ann.take(ROOM)
    stage.redis.hset(stage.queue.job("c"), mapping={"category": "deploys 1", "shown": ""})
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["b", "d"], ["c"])


def test_a_job_that_expired_after_it_was_read_is_told_as_expired(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a", LOOKED_AT), "b")
    ann.take(ROOM)
    stage.redis.delete(stage.queue.job("b"))
    (expired,) = ann.take(ROOM).batch
    assert isinstance(expired, Undecodable)
    assert (expired.id, expired.reason.value) == ("b", "expired")


def test_what_a_full_take_has_not_looked_at_is_dropped_by_the_next(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("d", ROOM), category="deploys")
    push(stage, *numbered("a", LOOKED_AT))
    first = ann.take(ROOM)
    assert (handed_out(first), gone(first)) == (numbered("d", ROOM), [])
    second = ann.take(ROOM)
    assert (handed_out(second), gone(second)) == ([], numbered("a", LOOKED_AT))


def test_a_dead_letter_that_is_replayed_is_handed_out(stage: Stage, ann: Worker) -> None:
    push(stage, "before", "a")
    stage.redis.hset(stage.queue.job("a"), "replays", "1")
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["before"], ["a"])


def test_a_job_of_much_data_is_handed_out(stage: Stage, ann: Worker) -> None:
    push(stage, "small", "large")
    stage.redis.hset(stage.queue.job("large"), "data", seal(Event("errors", "text of large")) + " " * 16_384)
    taken = ann.take(ROOM)
    assert (gone(taken), handed_out(taken)) == (["small"], ["large"])
    assert isinstance(taken.batch[0], Leased)


def test_a_user_without_rights_to_every_key_has_them_handed_out() -> None:
    with RedisServer() as server, server.client() as admin:
        admin.acl_setuser(
            "shop", enabled=True, nopass=True, commands=["+@all"], keys=["{stage}:*", "rq:*"], channels=["*"]
        )
        with Redis(unix_socket_path=str(server.socket), username="shop", password="any") as client:
            stage = Stage(client)
            ann = close(stage)
            push(stage, "a", "b")
            assert ann.taken(ROOM) == ["a", "b"]


# What is read before it is taken


def test_nothing_is_read_before_a_job_without_a_mark_was_handed_out(stage: Stage) -> None:
    push(stage, "a")
    jobs = StockJobs(stage.redis, stage.queue)
    assert marked(jobs) == []
    jobs.taken([], ["first"], has_unmarked=False)
    assert marked(jobs) == []


def test_after_a_look_that_finds_none_more_and_more_takes_do_without_one(stage: Stage, jobs: StockJobs) -> None:
    for rest in (2, 4, 8, 16, 32, 64, 64):
        assert marked(jobs) == []
        push(stage, "a")
        for _ in range(rest):
            jobs.taken([], ["first"], has_unmarked=True)
            assert marked(jobs) == []
        stage.redis.delete(stage.queue.lane(Lane.NORMAL))
        jobs.taken([], ["first"], has_unmarked=True)
    push(stage, "b")
    assert marked(jobs) == ["b"]
    jobs.taken(["b"], [], has_unmarked=False)
    stage.redis.delete(stage.queue.lane(Lane.NORMAL))
    assert marked(jobs) == []
    push(stage, "c")
    for _ in range(3):
        jobs.taken([], ["first"], has_unmarked=True)
    assert marked(jobs) == ["c"]


def test_as_many_are_read_as_a_take_looks_at(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", 600))
    assert marked(jobs, 1) == numbered("a", 8)
    jobs.taken(numbered("a", 8), [], has_unmarked=False)
    assert marked(StockJobs(stage.redis, stage.queue)) == []
    for room, looked_at in ((100, 512), (550, 550)):
        others = StockJobs(stage.redis, stage.queue)
        others.taken([], ["first"], has_unmarked=True)
        assert marked(others, room) == numbered("a", looked_at)


def test_behind_a_single_job_without_a_mark_more_are_read(stage: Stage, jobs: StockJobs) -> None:
    push(stage, "a")
    stage.send(*numbered("ours", 7))
    push(stage, "b")
    assert marked(jobs, 1) == ["a"]
    jobs.taken(["a"], [], has_unmarked=False)
    assert marked(jobs, 1) == ["b"]


def test_a_take_of_no_new_events_gets_no_marks(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", LOOKED_AT + 1))
    assert marked(jobs) == numbered("a", LOOKED_AT)
    jobs.taken(numbered("a", LOOKED_AT), [], has_unmarked=False)
    assert marked(jobs, 0) == []
    assert marked(jobs) == [f"a-{LOOKED_AT}"]


def test_lanes_are_read_one_after_another(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("h", 70), lane=Lane.HIGH)
    push(stage, *numbered("n", 3))
    push(stage, *numbered("l", 20), lane=Lane.LOW)
    every = [*numbered("h", 70), *numbered("n", 3), *numbered("l", 20)]
    assert marked(jobs) == every[:LOOKED_AT]
    jobs.taken(every[:LOOKED_AT], [], has_unmarked=False)
    assert marked(jobs) == every[LOOKED_AT:]


def test_the_marks_of_a_take_that_was_not_full_are_forgotten(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", LOOKED_AT + 2))
    marked(jobs)
    jobs.taken([], numbered("d", ROOM - 1), has_unmarked=False)
    assert marked(jobs) == numbered("a", LOOKED_AT + 2)[LOOKED_AT:]


def test_the_marks_of_a_full_take_that_are_left_come_before_those_behind(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", LOOKED_AT + 2))
    marked(jobs)
    jobs.taken(["a-0", "a-2"], ["a-1", *numbered("d", ROOM - 1)], has_unmarked=False)
    jobs.taken([], numbered("d", ROOM), has_unmarked=False)  # a take that got none
    assert marked(jobs) == numbered("a", LOOKED_AT + 2)[3:]


def test_no_more_are_read_than_a_take_looks_at(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", 5 * LOOKED_AT))
    for _ in range(4):
        told = marked(jobs)
        jobs.taken([], told[:ROOM], has_unmarked=True)
        assert len(told) <= 2 * LOOKED_AT


def test_a_mark_of_ours_is_not_made_again(stage: Stage, jobs: StockJobs) -> None:
    push(stage, "before")
    stage.send("ours")
    push(stage, "after")
    assert marked(jobs) == ["before", "after"]


def test_one_look_reads_a_mebibyte_of_data(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("a", 130))
    for id_ in numbered("a", 130):
        stage.redis.hset(stage.queue.job(id_), "data", seal(Event("errors", "t")).ljust(16_384))
    assert marked(jobs, 100) == numbered("a", 8 + 16 + 32 + 64)


def test_data_of_which_no_mark_is_made_counts_as_read(stage: Stage, jobs: StockJobs) -> None:
    push(stage, *numbered("large", 8), "small")
    for id_ in numbered("large", 8):
        stage.redis.hset(stage.queue.job(id_), "data", "x" * 131_072)
    assert marked(jobs) == []


@pytest.mark.parametrize(("id_", "instant"), [("a b", "2026-11-26T12:00:00Z"), ("a", "26 November")])
def test_where_an_id_or_an_instant_holds_a_blank_no_marks_are_made(
    stage: Stage, jobs: StockJobs, id_: str, instant: str
) -> None:
    push(stage, "b")
    fields = stage.redis.hgetall(stage.queue.job("b")) | {b"enqueued_at": instant}
    stage.redis.hset(stage.queue.job(id_), mapping=fields)
    stage.redis.rpush(stage.queue.lane(Lane.NORMAL), id_)
    assert marked(jobs) == []


def test_without_an_instant_no_mark_is_made(stage: Stage, jobs: StockJobs) -> None:
    push(stage, "a", "b")
    stage.redis.hdel(stage.queue.job("a"), "enqueued_at")
    assert marked(jobs) == ["b"]


def test_while_the_server_is_away_nothing_is_read() -> None:
    with RedisServer() as server, server.client(retry=Retry(NoBackoff(), 0)) as client:
        jobs = StockJobs(client, Stage(client).queue)
        server.stop()
        jobs.taken([], ["first"], has_unmarked=True)
        with pytest.raises(GateUnavailable):
            jobs.marks(ROOM)


# Takes that follow one another


def test_a_take_looks_at_as_many_jobs_as_were_read_for_it(stage: Stage, ann: Worker) -> None:
    push(stage, *numbered("a", 600))
    taken = ann.take(100)
    assert (gone(taken), taken.batch) == (numbered("a", 512), [])


def test_one_batch_is_prefetched_while_such_jobs_come_and_two_before_and_after(stage: Stage) -> None:
    ann = stage.worker()
    ann.follow(stage.put_in_force(LIMITS))
    stage.send(*numbered("sent", 4 * ROOM), category="deploys")
    assert depth(ann) == AHEAD
    stage.redis.delete(stage.queue.lane(Lane.NORMAL))
    ann.keep_only()
    closed = close(stage, "bob")
    push(stage, *numbered("a", 4 * LOOKED_AT))
    assert depth(closed) == 1
    closed.prefilter.clear()
    assert depth(closed) == AHEAD


def depth(worker: Worker) -> int:
    """How many batches it prefetches behind one."""
    taken = worker.take(ROOM)
    for _ in range(AHEAD + 1):
        worker.outbox.prefetch(taken, ROOM, 0)
    return worker.outbox.ahead
