"""A worker takes events under its lease: in order, no id twice, and nothing is ever out of every structure."""

from __future__ import annotations

import zlib

import pytest
from redis.exceptions import ResponseError
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from dispatcher.core.event import Event
from dispatcher.core.explain import State
from dispatcher.core.limits import Reason
from dispatcher.core.posts import Paused, Rejected, Retryable
from dispatcher.core.states import Candidate, Leased, Undecodable
from dispatcher.core.units import US, Lane
from dispatcher.store.intake import seal
from dispatcher.store.leases import Outbox, Taken
from tests.support.deferral import keep_beating
from tests.support.doubles import Clock
from tests.support.servers import Database
from tests.support.stage import LEASE_US, REMEMBER_US, UNPACED, Stage, Worker, handed_out, policy_of


def push(stage: Stage, lane: Lane, job_id: str | bytes, data: str | bytes | None = None) -> None:
    """A job as a stranger pushes it, without looking whether the id is known."""
    if data is not None:
        stage.redis.hset(f"rq:job:{job_id!s}", "data", data)
    stage.redis.rpush(stage.queue.lane(lane), job_id)


def texts(taken: Taken) -> list[str]:
    return [each.event.text for each in taken.batch if isinstance(each, Leased)]


# Order


def test_high_comes_before_normal_and_normal_before_low(stage: Stage) -> None:
    for lane in (Lane.LOW, Lane.NORMAL, Lane.HIGH):
        stage.send(f"{lane}1", f"{lane}2", priority=lane)
    assert stage.worker().taken() == ["high1", "high2", "normal1", "normal2", "low1", "low2"]


def test_low_has_a_share_of_every_batch_and_comes_last(stage: Stage) -> None:
    stage.send(*(f"h{n}" for n in range(90)), priority=Lane.HIGH)
    stage.send(*(f"n{n}" for n in range(90)))
    stage.send(*(f"l{n}" for n in range(9)), priority=Lane.LOW)
    worker = stage.worker()
    batches = [worker.taken(new=32) for _ in range(6)]
    assert [sum(id_.startswith("l") for id_ in batch) for batch in batches[:4]] == [2, 2, 2, 2]
    assert batches[0] == [*(f"h{n}" for n in range(30)), "l0", "l1"]
    assert [len(batch) for batch in batches] == [32, 32, 32, 32, 32, 29]


@pytest.mark.parametrize("new", [1, 2, 3, 8, 15, 16, 17, 24])
def test_low_has_one_place_in_sixteen_whatever_the_batch(stage: Stage, new: int) -> None:
    stage.send(*(f"h{n}" for n in range(200)), priority=Lane.HIGH)
    stage.send(*(f"l{n}" for n in range(20)), priority=Lane.LOW)
    outbox, taken = stage.worker().outbox, list[str]()
    while len(taken) < 144:
        taken += [each.id for each in outbox.take(new, 0).batch]
    assert 8 <= sum(id_.startswith("l") for id_ in taken[:144]) <= 10


@pytest.mark.parametrize(("new", "low"), [(64, 4), (128, 8), (256, 8)])
def test_low_has_its_share_also_where_large_events_fill_the_batch(stage: Stage, new: int, low: int) -> None:
    large = "x" * 140_000
    for n in range(300):
        push(stage, Lane.HIGH if n % 2 else Lane.NORMAL, f"n{n}", large)
    for n in range(40):
        push(stage, Lane.LOW, f"l{n}", large)
    outbox = stage.worker().outbox
    batches = [[each.id for each in outbox.take(new, 0).batch] for _ in range(2)]
    assert [sum(id_.startswith("l") for id_ in batch) for batch in batches] == [low, low]
    assert [len(batch) < new for batch in batches] == [new > 64, new > 64]


def test_a_batch_of_one_is_the_most_urgent(stage: Stage) -> None:
    stage.send("low", priority=Lane.LOW)
    stage.send("normal")
    stage.send("high", priority=Lane.HIGH)
    worker = stage.worker()
    assert [worker.taken(new=1) for _ in range(3)] == [["high"], ["normal"], ["low"]]


def test_a_batch_takes_no_more_new_events_than_it_was_asked_for(stage: Stage) -> None:
    stage.send("a", "b", "c", priority=Lane.HIGH)
    stage.send("d", "e", "f")
    worker = stage.worker()
    takes = [worker.take(new=4), worker.take(new=4), worker.take(new=4)]
    assert [[each.id for each in taken.batch] for taken in takes] == [["a", "b", "c", "d"], ["e", "f"], []]
    assert [taken.more for taken in takes] == [True, False, False]


def test_a_worker_that_wants_nothing_new_gets_nothing_new(stage: Stage) -> None:
    stage.send("a")
    taken = stage.worker().take(new=0)
    assert (taken.batch, taken.more) == ([], True)


def test_due_events_and_events_that_others_left_are_taken_before_new_ones(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("due", channel="#a")
    (due,) = ann.go()
    ann.answer(due, Retryable("refused", "connection refused"))
    stage.send("left1", "left2")
    ann.take()
    ann.give_back()
    stage.send("new1", "new2")
    stage.clock.forward(5)
    assert bob.taken(new=4) == ["due", "left1", "left2", "new1"]
    assert bob.taken(new=4) == ["new2"]


# Ids that are known, and jobs that are none


def test_a_job_pushed_again_is_a_duplicate_while_its_event_is_held(stage: Stage) -> None:
    worker = stage.worker()
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "first")))
    assert texts(worker.take()) == ["first"]
    push(stage, Lane.HIGH, "x", seal(Event("errors", "second")))
    taken = worker.take()
    assert (taken.batch, taken.duplicates) == ([], ["x"])
    assert stage.total("duplicate") == 1
    assert not stage.redis.exists("rq:job:x")


@pytest.mark.parametrize("second", list(Lane))
def test_an_id_that_lies_on_the_lanes_twice_is_taken_once(stage: Stage, second: Lane) -> None:
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "the text")))
    push(stage, second, "x")
    taken = stage.worker().take()
    assert (texts(taken), taken.duplicates) == (["the text"], ["x"])
    stage.check()


def test_a_job_pushed_again_is_a_duplicate_when_it_is_dead_or_settled_and_remembered(stage: Stage) -> None:
    worker = stage.worker()
    stage.send("dead", "sent")
    for started in (*worker.go(), *worker.go()):
        worker.answer(started, Rejected("is_archived", "archived"))
    worker.run()
    for id_ in ("dead", "sent"):
        push(stage, Lane.NORMAL, id_, seal(Event("errors", "again")))
    assert worker.take().duplicates == ["dead", "sent"]
    stage.clock.now_us += REMEMBER_US
    push(stage, Lane.NORMAL, "sent", seal(Event("errors", "much later")))
    assert texts(worker.take()) == ["much later"]


def test_a_repeat_takes_the_place_of_one_event_and_no_more(stage: Stage) -> None:
    worker = stage.worker()
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "first")))
    worker.take()
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "second")))
    ids = [f"new{n}" for n in range(200)]
    stage.send(*ids)
    taken = worker.take(new=201)
    assert ([each.id for each in taken.batch], taken.duplicates) == (ids, ["x"])


def test_a_job_whose_hash_has_expired_is_a_dead_letter(stage: Stage) -> None:
    push(stage, Lane.NORMAL, "x")
    worker = stage.worker()
    taken = worker.take()
    assert taken.batch == [Undecodable("x", Reason.EXPIRED, taken.batch[0].detail)]  # type: ignore[union-attr]  # undecodable
    worker.dispatch(taken.batch)
    assert [letter["reason"] for letter in stage.letters()] == ["expired"]
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "again")))
    assert worker.take().duplicates == ["x"]


def test_a_job_whose_hash_has_expired_is_a_duplicate_of_a_known_id(stage: Stage) -> None:
    worker = stage.worker()
    stage.send("x")
    worker.take()
    push(stage, Lane.NORMAL, "x")
    assert worker.take().duplicates == ["x"]


@pytest.mark.parametrize(
    ("pushed", "id_"),
    [
        (b"", "~da39a3ee"),
        (b"a b\tc\n", "a?b?c?~191db197"),
        (b"\xff\xfe\x00", "???~b11b4321"),
        ("ä".encode(), "??~961fa22f"),
        (b"]}\"'\\{", "]}\"'\\{"),
        (b"%d%s", "%d%s"),
        (b"x" * 300, "x" * 247 + "~02fd6825"),
    ],
    ids=["empty", "white space", "no text", "not ascii", "brackets", "percent", "long"],
)
def test_any_pushed_job_id_is_settled_under_printable_characters(stage: Stage, pushed: bytes, id_: str) -> None:
    push(stage, Lane.NORMAL, pushed)
    worker = stage.worker()
    worker.run()
    (letter,) = stage.letters()
    assert (letter["id"], letter["reason"]) == (id_, "expired")
    assert stage.snapshot().overall()["received"] == 1


@pytest.mark.parametrize(
    "ids", [("a b", "a:b"), ("ä", "ö"), ("x" * 256 + "a", "x" * 256 + "b")], ids=["blank", "letters", "length"]
)
def test_ids_that_cannot_be_printed_or_are_too_long_stay_two(stage: Stage, ids: tuple[str, str]) -> None:
    for id_ in ids:
        push(stage, Lane.NORMAL, id_, seal(Event("errors", id_)))
    taken = stage.worker().take()
    assert (len({each.id for each in taken.batch}), taken.duplicates) == (2, [])


@pytest.mark.parametrize("value", ["", "-1", "007", '9,"a":1', "1" * 10])
def test_a_malformed_replays_field_of_a_job_counts_as_no_replay(stage: Stage, value: str) -> None:
    stage.send("a", "b")
    stage.redis.hset("rq:job:a", "replays", value)
    batch = stage.worker().take().batch
    assert [(each.id, each.replays) for each in batch if isinstance(each, Leased)] == [("a", 0), ("b", 0)]


KEYS_OF_A_TAKE = (
    *("events", "leases", "requeued", "parked", "lines", "timers", "beat", "seq", "totals", "seen", "dead_ids"),
    *("deciding", "freed", "silencing", "endings", "names", "paused", "limits_version"),
)


@pytest.mark.parametrize("name", [*KEYS_OF_A_TAKE, "leased", *(f"decisions {n}" for n in range(4))])
def test_a_key_of_another_type_is_refused_before_anything_leaves_its_lane(stage: Stage, name: str) -> None:
    stage.send("a", "b")
    kind, _, place = name.partition(" ")
    if kind == "decisions":
        key = stage.keys.decisions[int(place)]
    else:
        key = stage.keys.leased("ann") if kind == "leased" else getattr(stage.keys, kind)
    stage.redis.delete(key)
    stage.redis.lpush(key, "another program's")
    with pytest.raises(ResponseError, match=r"WRONGTYPE"):
        stage.worker("ann").take()
    assert stage.redis.lrange(stage.queue.lane(Lane.NORMAL), 0, -1) == [b"a", b"b"]
    assert stage.redis.exists("rq:job:a", "rq:job:b") == 2


def test_a_job_key_of_another_type_holds_nobody_up(stage: Stage, redis: Database) -> None:
    redis.set("rq:job:x", "not a hash")
    push(stage, Lane.NORMAL, "x")
    stage.send("y")
    worker = stage.worker()
    taken = worker.take()
    assert [type(each) for each in taken.batch] == [Undecodable, Leased]
    assert not redis.exists("rq:job:x")


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"{not json", "not JSON"),
        (b"\x80\x04N.", "pickled"),
        (b'["os.system", null, ["true"], {}]', "this worker runs only"),
        (b"", "no payload is left"),
        (b"\xff\xfe", "not JSON"),
    ],
    ids=["malformed", "pickle", "other function", "empty", "bytes"],
)
def test_an_undecodable_job_is_a_dead_letter_with_its_raw_payload(stage: Stage, data: bytes, detail: str) -> None:
    push(stage, Lane.NORMAL, "x", data)
    stage.send("y")
    worker = stage.worker()
    worker.run()
    ((_, letter),) = stage.redis.xrange(stage.keys.dead)
    assert detail in letter[b"detail"].decode()
    assert letter[b"payload"] == data
    assert stage.snapshot().by_category("dead") == {"-": 1}
    assert worker.desk.posts == ["y"]


@pytest.mark.parametrize(
    ("call", "category"),
    [
        (b'[null, null, [{"category": "errors", "txt": "x"}], {}]', b"errors"),
        (b'[null, null, [], {"category": "errors"}]', b"errors"),
        (b'{"category": "errors", "text": "\\ud800"}', b"errors"),
        (zlib.compress(b'[null, null, [{"category": "errors"}], {}]'), b"errors"),
        (b'[null, null, [{"category": "errors", "text": "%s"}], {}]' % (b"x" * 300_000), b"errors"),
        (b'[null, null, [{"category": "no spaces", "text": "x"}], {}]', None),
        (b'[null, null, [{"category": "errors"', None),
    ],
    ids=["an event", "keywords", "no job", "compressed", "too large", "no category", "cut off"],
)
def test_what_is_no_event_keeps_the_category_that_its_payload_shows(
    stage: Stage, call: bytes, category: bytes | None
) -> None:
    push(stage, Lane.NORMAL, "x", call)
    stage.worker().run()
    ((_, letter),) = stage.redis.xrange(stage.keys.dead)
    assert letter.get(b"category") == category
    assert stage.snapshot().by_category("dead") == {"-": 1}


def test_of_an_oversized_payload_a_mebibyte_is_kept(stage: Stage) -> None:
    push(stage, Lane.NORMAL, "x", b"[" * (2**20 + 7))
    stage.worker().run()
    ((_, letter),) = stage.redis.xrange(stage.keys.dead)
    assert letter[b"payload"] == b"[" * 2**20
    assert letter[b"reason"] == b"invalid"


def test_a_payload_may_hold_line_breaks(stage: Stage) -> None:
    push(stage, Lane.NORMAL, "x", seal(Event("errors", "text")).replace(", ", ",\n "))
    assert texts(stage.worker().take()) == ["text"]


def test_a_stock_workers_job_is_adopted_as_if_it_had_been_taken(stage: Stage) -> None:
    worker = stage.worker()
    taken = worker.outbox.adopt("x", seal(Event("errors", "text")))
    assert texts(taken) == ["text"]
    stage.check()
    assert worker.outbox.adopt("x", seal(Event("errors", "text"))).duplicates == ["x"]
    stage.check()
    assert stage.snapshot().overall()["received"] == 2


def test_an_adopter_gets_the_adopted_event_alone(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b")
    ann.take()
    ann.give_back()
    taken = bob.outbox.adopt("x", seal(Event("errors", "text")))
    assert [each.id for each in taken.batch] == ["x"]
    stage.check()


def test_a_lost_counter_of_first_sights_goes_on_beyond_all_numbers_that_were_given(redis: Database) -> None:
    """The numbers name the slots: one that is given again would take the place of a slot that counts."""
    stage = Stage(redis, policy_of("", "3/30m"))
    ann = stage.worker()
    stage.send("a", "b", channel=UNPACED)
    ann.run()
    redis.delete(stage.keys.seq)
    stage.send("c", "d", channel=UNPACED)
    ann.run()
    assert (stage.total("sent"), stage.total("dropped")) == (3, 1)
    assert len(stage.slots("category:errors")) == 3
    stage.check()


def adopted_by(worker: Worker, queue: Queue, job: Job) -> Taken:
    """A stock worker has popped the job, and runs it."""
    queue.remove(job)
    return worker.outbox.adopt(job.id, job.data.decode())


@pytest.fixture
def queue(stage: Stage) -> Queue:
    return Queue("q", connection=stage.redis, serializer=JSONSerializer)


def test_a_job_that_rq_brings_back_after_its_event_was_posted_is_a_duplicate(stage: Stage, queue: Queue) -> None:
    """The settlement got no answer, so the function failed. RQ has made up the id: it is not remembered."""
    ann = stage.worker()
    jobs = [queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "x"}) for _ in range(3)]
    for job in jobs:
        ann.finish(adopted_by(ann, queue, job))
    assert stage.total("sent") == len(jobs)
    requeued, scheduled, again = jobs
    FailedJobRegistry(queue=queue).add(requeued, ttl=1_000)
    requeued.requeue()
    stage.redis.zadd(stage.queue.scheduled[1], {scheduled.id: stage.clock.now_us // US})
    found = [ann.take(), ann.take(), adopted_by(ann, queue, again)]
    assert [(taken.duplicates, taken.batch) for taken in found] == [([job.id], []) for job in jobs]
    assert set(stage.redis.keys("rq:job:*")) <= {again.key.encode()}
    stage.check()
    assert stage.snapshot().imbalances() == []


@pytest.mark.parametrize("taker", ["ours", "stock"])
def test_a_later_job_of_an_id_that_is_no_longer_remembered_is_a_new_event(
    stage: Stage, queue: Queue, taker: str
) -> None:
    """RQ keeps the fields of a finished job that it does not know."""
    ann = stage.worker()
    job = queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "first"}, job_id="x")
    stage.redis.hset(job.key, "created_at", "2024-11-20T00:00:00.000000Z")
    ann.finish(adopted_by(ann, queue, job))
    stage.clock.forward(2 * REMEMBER_US // US)
    later = queue.enqueue("dispatcher.jobs.dispatch", {"category": "errors", "text": "second"}, job_id="x")
    assert stage.explanations.explain("x").state is State.WAITING
    taken = adopted_by(ann, queue, later) if taker == "stock" else ann.take()
    assert (taken.duplicates, texts(taken)) == ([], ["second"])
    stage.check()


# Suspended


def test_while_suspended_nothing_is_taken(stage: Stage, redis: Database) -> None:
    ann = stage.worker()
    stage.send("parked", channel="#a", max_age=10)
    stage.send("timed", channel="#b")
    for started in ann.go():
        ann.answer(started, Retryable("refused", "connection refused"))
    redis.set(stage.queue.suspended, "1")
    stage.send("new")
    stage.clock.forward(11)
    taken = ann.take()
    assert (taken.batch, taken.suspended) == ([], True)
    assert (taken.next_us, taken.next_busy_us, taken.lease_us) == (None, None, stage.clock.now_us + LEASE_US)
    redis.delete(stage.queue.suspended)
    assert ann.taken() == ["parked", "timed", "new"]


# What is due and what is new


def test_what_is_due_leaves_a_quarter_of_the_batch_to_what_is_new(stage: Stage, ann: Worker) -> None:
    stage.send(*(f"p{n}" for n in range(8)), channel=UNPACED)
    ann.go(free=0)
    stage.send(*(f"n{n}" for n in range(8)), channel=UNPACED)
    stage.send("scheduled", channel=UNPACED, not_before=stage.clock.now_us / US)
    taken = ann.taken(new=8, due=8)
    assert (taken[:8], taken[8:]) == ([f"p{n}" for n in range(8)], ["n0", "n1"])


# Leases


def test_events_are_taken_over_when_the_lease_ends_and_not_before(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b", "c")
    ann.take()
    keep_beating(stage, 20, "bob")
    stage.clock.now_us += 10_000_000 - 1
    assert bob.taken() == []
    stage.clock.now_us += 1
    stage.send("d")
    assert bob.taken() == ["a", "b", "c", "d"]
    assert stage.snapshot().leases.keys() == {"bob"}


def test_an_event_that_was_taken_over_keeps_its_first_sight(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a")
    (first,) = ann.take().batch
    keep_beating(stage, 30, "bob")
    assert isinstance(first, Leased)
    assert bob.take().batch == [first._replace(takes=2, deaths=1)]


def test_a_poison_candidate_is_taken_alone_and_after_a_third_death_is_a_dead_letter(stage: Stage) -> None:
    stage.send("a", "b")
    for name in ("ann", "ben"):
        assert stage.worker(name).taken() == ["a", "b"]
        keep_beating(stage, 30, "eve")
    stage.send("c")
    cat, dan, eve = (stage.worker(name) for name in ("cat", "dan", "eve"))
    (alone,) = cat.take().batch
    assert isinstance(alone, Leased)
    assert (alone.id, alone.deaths) == ("a", 2)
    assert dan.taken() == ["b"]
    assert eve.taken() == ["c"]
    keep_beating(stage, 30, "eve")
    (killer,) = stage.worker("fay").take().batch
    assert isinstance(killer, Leased)
    assert killer.deaths == 3


def test_a_renewed_lease_is_not_taken_over(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a")
    ann.take()
    keep_beating(stage, 120, "ann", "bob")
    assert bob.taken() == []


def test_a_worker_takes_nothing_that_it_holds_a_second_time(stage: Stage) -> None:
    ann = stage.worker("ann")
    stage.send("a")
    ann.take()
    stage.clock.forward(500)
    assert ann.taken() == []
    stage.clock.forward(5)
    assert ann.taken() == []


def test_a_worker_whose_lease_was_taken_over_changes_nothing(stage: Stage, redis: Database) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("sending", "leased")
    batch = ann.take().batch
    (started,) = ann.dispatch(batch[:1])
    keep_beating(stage, 30, "bob")
    assert bob.taken() == ["sending", "leased"]
    held = {key: redis.dump(key) for key in redis.scan_iter()}
    assert ann.answer(started, Rejected("is_archived", "archived")) is False
    assert ann.start(batch[1]) is None  # type: ignore[arg-type]  # an event
    assert {key: redis.dump(key) for key in redis.scan_iter()} == held
    assert [each.id for each in ann.told.losses] == ["sending"]


def test_a_lease_that_ran_out_and_was_not_taken_over_still_settles(stage: Stage) -> None:
    ann = stage.worker("ann")
    stage.send("a")
    started = ann.go()
    stage.clock.forward(3_000)
    ann.deliver(started)
    assert stage.total("sent") == 1


def test_one_call_takes_over_two_hundred_events_of_all_dead_workers_together(stage: Stage) -> None:
    owners = ("ann", "bea", "cat", "dan")
    for name in owners:
        stage.send(*(f"{name}-{n}" for n in range(90)))
        stage.worker(name).take()
    bob = stage.worker("bob")
    keep_beating(stage, 30, "bob")
    assert bob.taken(new=500) == []
    assert sum(stage.redis.scard(stage.keys.leased(name)) for name in owners) == 160
    assert len(bob.taken(new=500)) == 360
    assert stage.snapshot().leases.keys() == {"bob"}


def test_the_events_of_many_dead_workers_are_taken_over_in_old_order(stage: Stage) -> None:
    owners = [f"owner{n}" for n in range(9)]
    for n, owner in enumerate(reversed(owners)):
        stage.send(f"{n}a", f"{n}b")
        stage.worker(owner).take()
    bob = stage.worker("bob")
    keep_beating(stage, 30, "bob")
    taken = [id_ for _ in range(3) for id_ in bob.taken()]
    assert sorted(taken) == [f"{n}{part}" for n in range(9) for part in "ab"]
    assert stage.snapshot().leases.keys() == {"bob"}


def test_requeued_events_are_taken_in_their_old_order_up_to_the_number_asked_for(stage: Stage) -> None:
    ann, bob, cid = stage.worker("ann"), stage.worker("bob"), stage.worker("cid")
    stage.send("a", "b", "c", "d")
    assert ann.taken(new=1) == ["a"]
    assert bob.taken(new=1) == ["b"]
    assert ann.taken(new=2) == ["c", "d"]
    assert (ann.give_back(), bob.give_back()) == (3, 1)
    takes = [cid.take(new=3), cid.take(new=3)]
    assert [[each.id for each in taken.batch] for taken in takes] == [["a", "b", "c"], ["d"]]
    assert [taken.more for taken in takes] == [True, False]


def test_a_worker_that_wants_nothing_new_gets_no_requeued_events(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b")
    ann.take()
    ann.give_back()
    assert bob.taken(new=0) == []
    assert bob.taken() == ["a", "b"]


def test_an_expired_event_is_not_taken_together_with_a_poison_pill_candidate(stage: Stage) -> None:
    ann = stage.worker("ann")
    stage.send("late", max_age=60)
    (started,) = ann.go()
    ann.answer(started, Retryable("refused", "connection refused"))
    stage.send("a")
    for owner in ("bob", "cat"):
        assert stage.worker(owner).taken(1, 0) == ["a"]
        stage.clock.forward(LEASE_US // US + 1)
        ann.renew()
        stage.clock.forward(2)
    dan = stage.worker("dan")
    assert dan.taken(1, 0) == ["a"]
    assert dan.taken(0, 0) == ["late"]


def test_a_worker_that_wants_nothing_new_gets_no_poison_candidate(stage: Stage) -> None:
    stage.send("a")
    for n in range(2):
        worker = stage.worker(f"victim{n}")
        assert worker.taken() == ["a"]
        die(stage, worker)
    bob = stage.worker("bob")
    assert bob.taken(new=0) == []
    assert bob.taken(new=1, due=0) == ["a"]


def die(stage: Stage, worker: Worker) -> None:
    """Its lease ends; another one that lives takes over what it held, and has no room for it."""
    keep_beating(stage, 30, "witness")
    stage.worker("witness").take(new=0, due=0)
    assert worker.owner not in stage.snapshot().leases


def test_events_that_two_workers_died_with_are_handed_out_one_by_one(stage: Stage) -> None:
    stage.send("a", "b", "c")
    for n in range(2):
        worker = stage.worker(f"victim{n}")
        assert worker.taken() == ["a", "b", "c"]
        die(stage, worker)
    stage.send("new")
    ann, bob = stage.worker("ann"), stage.worker("bob")
    takes = [ann.take(), bob.take(), ann.take(), ann.take()]
    assert [[each.id for each in taken.batch] for taken in takes] == [["a"], ["b"], ["c"], ["new"]]
    assert [taken.more for taken in takes[:2]] == [True, True]


def test_a_poison_candidate_may_be_the_probe_of_a_pause_and_waits_for_its_instant(stage: Stage) -> None:
    stage.send("x", channel="#x")
    for n in range(2):
        worker = stage.worker(f"victim{n}")
        assert [each.candidate.leased.id for each in worker.go_on()] == ["x"]
        die(stage, worker)
    ann = stage.worker("ann")
    stage.send("y", channel="#y")
    (y,) = ann.dispatch(ann.take(due=0).batch)
    ann.answer(y, Paused("invalid_auth", "the token is not valid"))
    stage.clock.now_us += US - 1
    assert ann.taken() == []
    stage.clock.now_us += 1
    assert ann.taken() == ["x"]


def test_a_dead_workers_post_waits_for_another_attempt(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("x", "behind")
    (started,) = ann.go()
    assert (started.attempt, stage.line("#general")) == (1, ["behind"])
    keep_beating(stage, 30, "bob")
    batch = bob.take().batch
    (again,) = [each for each in batch if isinstance(each, Leased) and each.id == "x"]
    assert (again.attempt, again.held, again.slot) == (1, False, started.candidate.leased.slot)
    assert stage.posting("#general") != "x"
    bob.deliver(bob.dispatch(batch))
    bob.run()
    assert stage.slots("category:errors") == {"x": stage.clock.now_us, "behind": stage.clock.now_us}
    assert sorted(bob.desk.posts) == ["behind", "x"]
    assert stage.total("sent") == 2


def test_a_dead_workers_channel_is_free_for_the_next_in_line(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("x", "behind", channel="#a")
    ann.go()
    keep_beating(stage, 30, "bob")
    bob.take(new=0, due=0)
    assert stage.posting("#a") is None
    assert stage.line_at("#a") == stage.clock.now_us
    taken = bob.take(new=0, due=0)
    assert (taken.next_us, taken.next_busy_us) == (stage.clock.now_us, stage.clock.now_us + 86_370 * US)
    assert bob.taken(due=1) == ["x"]
    assert bob.taken(due=1) == ["behind"]


def test_a_turn_stays_with_the_event_of_a_dead_worker_until_it_is_posted(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("first", "second", "third")
    ann.deliver(ann.go())
    assert ann.taken(due=1) == ["second"]  # and it dies before it starts the post
    keep_beating(stage, 30, "bob")
    batch = bob.take().batch
    assert [each.id for each in batch] == ["second"]
    bob.deliver(bob.dispatch(batch))
    bob.run()
    assert bob.desk.posts == ["second", "third"]


def test_after_an_interruption_live_workers_renew_before_anybody_is_taken_over(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a")
    ann.take()
    stage.clock.forward(3_600)  # nobody could call: the server was away
    taken = bob.take()
    assert taken.batch == []
    assert taken.lease_us == stage.clock.now_us + 2_000_000
    stage.clock.now_us += 2_000_000 - 1
    assert (bob.taken(), stage.snapshot().leased) == ([], 1)
    ann.renew()
    stage.clock.forward(10)
    assert bob.taken() == []


def test_two_seconds_after_an_interruption_those_who_did_not_renew_are_taken_over(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a")
    ann.take()
    stage.clock.forward(3_600)
    assert bob.taken() == []
    stage.clock.forward(2)
    assert bob.taken() == ["a"]


def steady(stage: Stage, own: Clock) -> Outbox:
    """A worker whose own clock goes on while that of the server is stepped."""
    return Outbox(
        stage.redis, stage.keys, stage.queue,
        owner="bob", lease_us=LEASE_US, remember_us=US, clock=stage.clock, own_clock=lambda: own.now_us / US,
    )  # fmt: skip


def test_after_a_step_forward_of_the_clock_nobody_is_taken_over_for_a_lease(stage: Stage) -> None:
    """Live workers do not notice the step: they renew only with their next heartbeat."""
    own = Clock()
    bob = steady(stage, own)
    stage.send("a")
    stage.worker("ann").take()
    bob.renew()
    stage.clock.forward(3_600)
    for _ in range(4):
        assert bob.take(1, 0).batch == []
        own.now_us += LEASE_US // 4
        stage.clock.now_us += LEASE_US // 4
    assert [each.id for each in bob.take(1, 0).batch] == ["a"]


def test_a_prefetch_that_meets_a_step_forward_of_the_clock_lets_nobody_be_taken_over(stage: Stage) -> None:
    own = Clock()
    bob = steady(stage, own)
    stage.send("a")
    stage.worker("ann").take()
    stage.send("b", "c", "d")
    taken = bob.take(1, 0)
    stage.clock.forward(3_600)
    bob.prefetch(taken, 1, 0)
    assert handed_out(bob.take(1, 0)) == ["c"]
    for clock in (stage.clock, own):
        clock.forward(3)
    assert handed_out(bob.take(3, 0)) == ["d"]


def test_a_worker_that_has_only_prefetched_of_late_knows_how_long_ago_it_called(stage: Stage) -> None:
    own = Clock()
    bob = steady(stage, own)
    stage.send("a", "b", "c", "d")
    taken = bob.take(1, 0)
    for _ in range(2):
        for clock in (stage.clock, own):
            clock.now_us += LEASE_US // 3
        bob.prefetch(taken, 1, 0)
        taken = bob.take(1, 0)
    stage.worker("ann").take()
    stage.clock.forward(3_600)
    bob.renew()
    for clock in (stage.clock, own):
        clock.forward(3)
    assert bob.take(1, 0).batch == []


@pytest.mark.parametrize(("quiet_us", "interrupted"), [(LEASE_US // 2, False), (LEASE_US // 2 + 1, True)])
def test_half_a_lease_without_any_call_is_an_interruption(stage: Stage, quiet_us: int, *, interrupted: bool) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    ann.take()
    stage.clock.now_us += quiet_us
    bob.take()
    ann.take()
    grace = stage.redis.hget(stage.keys.beat, "grace")
    assert grace == (str(stage.clock.now_us + 2_000_000).encode() if interrupted else None)


# Giving back


def test_events_that_a_stopping_worker_gives_back_are_taken_next_in_order(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b")
    ann.take()
    stage.send("c")
    assert ann.give_back() == 2
    assert stage.snapshot().leases == {}
    assert stage.redis.llen(stage.keys.wake) == 1
    assert bob.taken() == ["a", "b", "c"]


def test_an_event_that_a_stopping_worker_keeps_is_taken_over_at_once(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b", "c")
    ann.take()
    assert ann.outbox.give_back(keep=["b"]) == 2
    stage.check()
    assert bob.taken() == ["a", "b", "c"]


def test_giving_back_nothing_wakes_nobody(stage: Stage) -> None:
    ann = stage.worker("ann")
    stage.send("a")
    ann.take()
    assert ann.keep_only("a") == 0
    ann.run()
    ann.settle([])
    assert stage.redis.llen(stage.keys.wake) == 0


@pytest.mark.parametrize("by", ["giving back", "waiting"])
def test_the_bell_holds_sixteen_tokens_at_most(stage: Stage, by: str) -> None:
    ann = stage.worker("ann")
    stage.send("a")
    (leased,) = ann.take().batch
    assert isinstance(leased, Leased)
    stage.redis.rpush(stage.keys.wake, *("1" * 40))
    if by == "waiting":
        ann.outbox.start([Candidate(leased, stage.policy.terms(leased))], free=0)
    else:
        ann.outbox.give_back()
    assert stage.redis.llen(stage.keys.wake) == 16


def test_a_worker_that_lost_an_answer_keeps_only_what_it_knows_of(stage: Stage) -> None:
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("a", "b", "c", "d")
    ann.take()
    assert ann.keep_only("b", "d", "unknown") == 2
    assert bob.taken() == ["a", "c"]
    assert stage.snapshot().leases.keys() == {ann.outbox.owner, "bob"}


def test_a_post_that_was_given_back_uses_no_attempt(stage: Stage) -> None:
    ann = stage.worker("ann")
    stage.send("x")
    (started,) = ann.go()
    assert ann.keep_only() == 1
    (again,) = ann.take().batch
    assert isinstance(again, Leased)
    assert (started.attempt, again.attempt, again.unknown) == (1, 0, 0)
    ann.deliver(ann.dispatch([again]))
    assert stage.total("sent") == 1


def test_an_admitted_event_that_was_given_back_is_not_dropped_by_a_limit(redis: Database) -> None:
    stage = Stage(redis, policy=policy_of(limits="1/30s"))
    ann = stage.worker("ann")
    stage.send("x", channel="#a")
    ann.go()
    stage.clock.forward(12)
    ann.keep_only()  # the answer to the start was lost
    stage.clock.forward(12)
    stage.worker("bob").renew()
    stage.clock.forward(12)
    (x,) = ann.take().batch
    stage.send("y", channel=UNPACED)
    bob = stage.worker("bob")
    bob.deliver(bob.go())
    assert ann.dispatch([x]) == []
    assert (stage.total("dropped"), stage.snapshot().parked) == (0, 1)


def test_an_event_that_ends_dropped_leaves_no_slot_of_an_earlier_admission(redis: Database) -> None:
    stage = Stage(redis, policy=policy_of(limits="1/30s"))
    ann, bob = stage.worker("ann"), stage.worker("bob")
    stage.send("x", channel="#a")
    (held,) = ann.take().batch
    assert isinstance(held, Leased)
    stage.gate.try_acquire_many([(held.slot, stage.policy.scopes("errors"))])  # and it dies before it starts the post
    keep_beating(stage, 30, "bob")
    stage.clock.forward(5)
    stage.send("y", channel="#b")
    x, y = bob.take().batch
    bob.deliver(bob.dispatch([y]))
    bob.dispatch([x])
    assert stage.total("dropped") == 1
    assert set(stage.slots("global")) == {"y"}
