"""Events that somebody else removes from the queue, as Delete and Empty of a dashboard for RQ do."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Final

from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from dispatcher.core.event import Event
from dispatcher.core.explain import State
from dispatcher.core.limits import DEFAULT_BOUNDS
from dispatcher.core.policy import OnLimit
from dispatcher.logs.event_log import build_event_log
from dispatcher.store.intake import Enqueued, seal
from dispatcher.store.removals import Removals
from dispatcher.store.rq_recovery import Sweep
from dispatcher.worker.housekeeping import Housekeeping
from tests.support.doubles import START_US
from tests.support.servers import Database
from tests.support.stage import UNPACED, Stage, Worker, policy_of

MOST: Final = 1_000
"""Decisions that are kept."""


def removals(stage: Stage) -> Removals:
    return Removals(stage.redis, stage.keys, clock=stage.clock)


def empty(stage: Stage) -> None:
    """As a dashboard does."""
    Queue("q", connection=stage.redis, serializer=JSONSerializer).empty()  # type: ignore[no-untyped-call]  # RQ's


def delete(stage: Stage, id_: str) -> None:
    """As a dashboard does."""
    Job.fetch(id_, connection=stage.redis, serializer=JSONSerializer).delete()


def cancel(stage: Stage, id_: str) -> None:
    Job.fetch(id_, connection=stage.redis, serializer=JSONSerializer).cancel()


def test_what_was_deleted_or_emptied_is_found_once_and_is_explained(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    unnamed = stage.send_unnamed()
    delete(stage, "a")
    assert (removals(stage).find(MOST), removals(stage).find(MOST)) == (["a"], [])
    stage.clock.forward(60)
    empty(stage)
    assert set(removals(stage).find(MOST)) == {"b", unnamed}
    told = stage.explanations.explain("a")
    assert (told.state, told.outcome) == (State.REMOVED, None)
    assert told.sentence.startswith("Removed from the queue by somebody else before ")
    assert stage.redis.zscore(stage.keys.removed, "a") == START_US
    stage.check()
    stage.send("a", channel=UNPACED)
    assert stage.explanations.explain("a").state is State.WAITING
    ann.run()
    assert (stage.explanations.explain("a").outcome, removals(stage).find(MOST)) == ("sent", [])


def test_what_was_cancelled_with_rq_is_removed_and_its_id_is_free_again(stage: Stage, ann: Worker) -> None:
    stage.send("a", "b", channel=UNPACED)
    cancel(stage, "a")
    assert stage.explanations.explain("a").state is State.UNKNOWN
    assert (removals(stage).find(MOST), removals(stage).find(MOST)) == (["a"], [])
    assert stage.explanations.explain("a").state is State.REMOVED
    assert (stage.redis.exists(stage.queue.job("a")), stage.redis.keys("rq:canceled:*")) == (0, [])
    stage.check()
    assert stage.send("a", channel=UNPACED) == [Enqueued.DONE]
    ann.run()
    assert (stage.total("sent"), removals(stage).find(MOST)) == (2, [])


def test_a_cancelled_job_is_removed_also_where_decisions_may_have_been_replaced(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    cancel(stage, "a")
    stage.send_unnamed()
    stage.send_unnamed()
    ann.run()
    assert removals(stage).find(2) == ["a"]


def test_what_a_stock_worker_has_entered_is_not_removed_by_cancelling_its_job(stage: Stage, ann: Worker) -> None:
    stage.send("a", channel=UNPACED)
    stage.redis.delete(stage.queue.lanes[1])
    ann.outbox.adopt("a", seal(Event("errors", "text", id="a", channel=UNPACED)))
    cancel(stage, "a")
    assert removals(stage).find(MOST) == []
    assert stage.redis.exists(stage.queue.job("a"))


def test_what_a_worker_took_is_not_missed_wherever_it_is(redis: Database) -> None:
    stage = Stage(redis, policy_of("", "1/30m", on_limit=OnLimit.DEFER))
    ann = stage.worker()
    stage.send("sent", "parked", channel=UNPACED)
    ann.run()
    stage.send("held", channel=UNPACED)
    ann.take()
    stage.send_unnamed("other")
    ann.run()
    stage.send("waits", channel=UNPACED)
    assert removals(stage).find(MOST) == []
    assert redis.lrange(stage.keys.enqueued, 0, -1) == [b"waits"]


def test_where_decisions_may_have_been_replaced_since_the_last_look_nothing_is_missed(stage: Stage) -> None:
    stage.bounds = replace(DEFAULT_BOUNDS, decisions=4)
    bob = stage.worker("bob")
    removals(stage).find(4)
    for number, expected in ((3, 0), (2, 1)):
        stage.send("doomed", channel=UNPACED)
        delete(stage, "doomed")
        for _ in range(number):
            stage.send_unnamed()
        bob.run()
        assert len(removals(stage).find(4)) == expected


def test_a_worker_warns_of_removed_events_with_some_ids(redis: Database) -> None:
    stage = Stage(redis)
    stage.send(*(f"e{n}" for n in range(700)))
    empty(stage)
    said = io.StringIO()
    sweep, letters = Sweep(redis, stage.keys, stage.queue, owner="ann"), stage.dead_letters
    keeping = Housekeeping(sweep, removals(stage), letters, build_event_log(stream=said, style="json"))
    keeping.keep_up(DEFAULT_BOUNDS)
    keeping.keep_up(DEFAULT_BOUNDS)
    (line,) = map(json.loads, said.getvalue().splitlines())
    assert (line["event"], line["level"], line["count"], line["ids"]) == (
        "jobs.removed", "warning", 700, "e0 e1 e2 e3 e4",
    )  # fmt: skip


def test_only_the_ids_that_were_enqueued_last_are_kept_and_they_expire(redis: Database) -> None:
    stage = Stage(redis)
    stage.intake = type(stage.intake)(redis, stage.keys, stage.queue, max_waiting=100_000, clock=stage.clock)
    for first in range(0, 12_000, 1_000):
        stage.send(*(f"e{n}" for n in range(first, first + 1_000)))
    assert 10_000 <= redis.llen(stage.keys.enqueued) <= 11_000
    assert redis.lindex(stage.keys.enqueued, -1) == b"e11999"
    assert 0 < redis.ttl(stage.keys.enqueued) <= 86_400
    redis.delete(stage.queue.lanes[1], *(stage.queue.job(f"e{n}") for n in range(12_000)))
    redis.config_resetstat()
    assert len(removals(stage).find(100_000)) > 10_000 - 1
    rows = redis.info("commandstats")
    calls = rows["cmdstat_evalsha"]["calls"]
    assert sum(row["calls"] for row in rows.values()) / calls < 500 * 9
    assert redis.zcard(stage.keys.removed) == 10_000
    assert 0 < redis.ttl(stage.keys.removed) <= 7 * 86_400 + 1
